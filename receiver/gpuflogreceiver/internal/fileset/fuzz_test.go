// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// FuzzLoadState: whatever a stored state holds, it is refused, or it is a state that stays the same when it is stored
// again, and reading with it ends.
func FuzzLoadState(f *testing.F) {
	dir := f.TempDir()
	session := filepath.Join(dir, "s")
	must(f, os.MkdirAll(filepath.Join(session, tmpName), 0o755))
	for n := 1; n <= 3; n++ {
		must(f, os.WriteFile(filepath.Join(session, fmt.Sprintf("device.%d.log", n)), []byte("line\nline\n"), 0o644))
	}
	must(f, os.WriteFile(filepath.Join(session, tmpName, "device.log"), []byte("live\nta"), 0o644))
	must(f, os.WriteFile(filepath.Join(dir, "demo.scope.log"), []byte("line\nlive\nta"), 0o644))
	must(f, os.WriteFile(filepath.Join(dir, "demo.scope.1.log"), []byte("line\nold\n"), 0o644))
	// The states of a session at every chunk are the seeds.
	set, err := New(Config{Include: []string{dir}, ChunkBytes: 5, DisableNotify: true})
	must(f, err)
	defer set.Close()
	now := time.Now()
	set.Scan(now)
	for _, g := range set.Groups() {
		f.Add(g.AppendState(nil))
		for _, s := range g.Streams() {
			for range 20 {
				_, _, err := s.Next(nil)
				must(f, err)
				f.Add(g.AppendState(nil))
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		set, err := New(Config{Include: []string{dir}, ChunkBytes: 5, MaxLineBytes: 64, DisableNotify: true})
		must(t, err)
		defer set.Close()
		now := time.Now()
		set.Scan(now)
		for _, g := range set.Groups() {
			var err error
			alloctest.Limit{PerByte: 512, Constant: 64 << 10}.Check(t, len(b), func() { err = g.LoadState(b) })
			if err != nil {
				continue
			}
			stored := g.AppendState(nil)
			if len(stored) > 4*6000 {
				t.Fatalf("state of %d bytes", len(stored))
			}
			if err := g.LoadState(stored); err != nil {
				t.Fatalf("refuses its own state: %v", err)
			}
			if again := g.AppendState(nil); !bytes.Equal(stored, again) {
				t.Fatalf("state changed: %x, then %x", stored, again)
			}
		}
		for range 8 {
			now = now.Add(2 * time.Second)
			set.Scan(now)
			for _, g := range set.Groups() {
				for _, s := range g.Streams() {
					for i := 0; ; i++ {
						ch, _, err := s.Next(nil)
						must(t, err)
						if ch.AtEnd {
							break
						}
						if i > 100 {
							t.Fatal("reading does not end")
						}
					}
					if g.layout == Undecided {
						t.Fatal("undecided after it was waited for")
					}
				}
			}
		}
	})
}

func FuzzParseSegment(f *testing.F) {
	f.Add(Segment{From: 3, To: 9000, Number: 4, Tail: true, crc: 7, fp: fingerprint{n: prefixBytes}}.Append(nil))
	f.Add(Segment{To: 1, fp: fingerprint{n: 1}}.Append([]byte(nil)))
	f.Fuzz(func(t *testing.T, b []byte) {
		var g Segment
		var rest []byte
		var err error
		alloctest.Limit{Constant: 16 << 10}.Check(t, len(b), func() { g, rest, err = ParseSegment(b) })
		if err != nil {
			return
		}
		if g.From < 0 || g.To <= g.From || len(rest) >= len(b) {
			t.Fatalf("%+v, %d bytes left", g, len(rest))
		}
		g2, rest, err := ParseSegment(g.Append(nil))
		if err != nil || g2 != g || len(rest) > 0 {
			t.Fatalf("%+v became %+v, %v", g, g2, err)
		}
	})
}

// FuzzIdentify checks that the parts of a data file's name make the same name again. It also checks
// that a fingerprint matches exactly the data with the same beginning.
func FuzzIdentify(f *testing.F) {
	for _, n := range []string{
		"x.device.log", "x.device.12.log.gz", "device.1.log", "system.log.gz", "a.b.kernel.0.log", ".device.log",
		".gpufl-window.sass.3.json", ".gpufl-session.lock", ".gpufl-transport-loss.agent-device.2.json", "device.01.log",
		"device.1.log.gz.part", ".3.log", "..device.log",
	} {
		f.Add(n, []byte("first bytes"), []byte("first"))
	}
	f.Add("x", bytes.Repeat([]byte("a"), 5000), bytes.Repeat([]byte("a"), 4097))
	f.Fuzz(func(t *testing.T, name string, a, b []byte) {
		// A name is taken apart in place, and a fingerprint has a fixed size.
		alloctest.Limit{PerByte: 16, Constant: 16 << 10}.Check(t, len(name)+len(a)+len(b), func() {
			gpuflog.ParseFileName(name)
			parseControl(name)
			fingerprintOf(a).matches(b)
		})
		if fn, ok := gpuflog.ParseFileName(name); ok && !strings.Contains(name, "/") {
			parts := []string{fn.Channel.String()}
			if strings.Contains(name, ".kernel.") && !strings.Contains(name[len(fn.Group.Base):], ".device.") {
				parts[0] = "kernel"
			}
			if fn.Group.Base != "" {
				parts = append([]string{fn.Group.Base}, parts...)
			}
			if fn.Numbered() {
				parts = append(parts, fmt.Sprint(fn.Index))
			}
			parts = append(parts, "log")
			if fn.Compressed {
				parts = append(parts, "gz")
			}
			if got := strings.Join(parts, "."); got != name {
				t.Fatalf("%q is taken for %+v, which is %q", name, fn, got)
			}
			if kind, _, _ := parseControl(name); kind != controlNone && fn.Group.Base == "" {
				t.Fatalf("%q is a session's data file and a control file", name)
			}
		}
		if kind, ch, n := parseControl(name); (kind == controlSidecar || kind == controlLoss) && (n == 0 || ch >= gpuflog.NumChannels) {
			t.Fatalf("%q: %d %d", name, ch, n)
		}
		fp := fingerprintOf(a)
		if int(fp.n) != min(len(a), prefixBytes) || !fp.matches(a) {
			t.Fatal("a fingerprint does not match its own data")
		}
		if want := bytes.HasPrefix(b, a[:fp.n]); fp.matches(b) != want {
			t.Fatalf("matches %v, want %v", !want, want)
		}
	})
}
