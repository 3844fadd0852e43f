// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

const recordings = "../../../../internal/testing/testdata/logs"

// TestRecordings compares every stream with an independent concatenation of the files, ordered by hand.
func TestRecordings(t *testing.T) {
	root, err := filepath.Abs(recordings)
	must(t, err)
	folders, err := os.ReadDir(root)
	must(t, err)
	for _, f := range folders {
		if !f.IsDir() {
			continue
		}
		t.Run(f.Name(), func(t *testing.T) {
			dir := filepath.Join(root, f.Name())
			ascending := strings.HasPrefix(f.Name(), "c") || strings.HasPrefix(f.Name(), "golden-c")
			want := expected(t, dir, ascending)
			if len(want) == 0 {
				t.Fatal("no files found")
			}
			c := newConsumer(t, Config{Include: []string{dir}})
			c.poll(time.Hour) // long after the files were written: nothing is waited for
			for _, g := range c.set.Groups() {
				for _, s := range g.Streams() {
					// A recording can end in an unterminated line.
					ch, _, err := s.TakeTail(nil)
					must(t, err)
					c.take(s, ch)
				}
				wantLayout := Flat
				if ascending {
					wantLayout = Windows
				}
				if g.Layout() != wantLayout {
					t.Errorf("%s has layout %s, want %s", g.Key(), g.Layout(), wantLayout)
				}
			}
			streams := 0
			for key, got := range c.got {
				for ch, p := range got {
					id := key + " " + gpuflog.Channel(ch).String()
					if w, ok := want[id]; ok {
						streams++
						if !bytes.Equal(p, w) {
							t.Errorf("%s: %s", id, diff(string(p), string(w)))
						}
					} else if len(p) > 0 {
						t.Errorf("%s gave %d bytes and has no files", id, len(p))
					}
				}
			}
			if streams != len(want) {
				t.Errorf("%d streams of %d were found", streams, len(want))
			}
			c.wantProblems()
			c.reread()
		})
	}
}

func expected(t *testing.T, dir string, ascending bool) map[string][]byte {
	t.Helper()
	type piece struct {
		order int
		data  []byte
	}
	pieces := make(map[string][]piece)
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name := filepath.Base(path)
		if err != nil || d.IsDir() || strings.HasPrefix(name, ".") {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, ".gz") {
			zr, err := gzip.NewReader(bytes.NewReader(data))
			if err != nil {
				return err
			}
			if data, err = io.ReadAll(zr); err != nil {
				return err
			}
		}
		parts := strings.Split(strings.TrimSuffix(strings.TrimSuffix(name, ".gz"), ".log"), ".")
		order := 0
		if n, err := strconv.Atoi(parts[len(parts)-1]); err == nil {
			order, parts = n, parts[:len(parts)-1]
			if !ascending {
				order = -n
			}
		}
		base := strings.Join(parts[:len(parts)-1], ".")
		id := groupKey(filepath.Dir(path), base) + " " + parts[len(parts)-1]
		pieces[id] = append(pieces[id], piece{order, data})
		return nil
	}))
	out := make(map[string][]byte)
	for id, ps := range pieces {
		slices.SortFunc(ps, func(a, b piece) int { return cmp.Compare(a.order, b.order) })
		for _, p := range ps {
			out[id] = append(out[id], p.data...)
		}
	}
	return out
}
