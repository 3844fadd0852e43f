// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

// BenchmarkNext reads 64 MB of lines of 300 bytes to their end, as one plain file and as one gzip file.
func BenchmarkNext(b *testing.B) {
	line := strings.Repeat("0123456789", 30)[:299] + "\n"
	text := strings.Repeat(line, 64<<20/len(line))
	for _, kind := range []string{"plain", "gzip"} {
		b.Run(kind, func(b *testing.B) {
			dir := b.TempDir()
			data, name := text, "demo.device.log"
			if kind == "gzip" {
				var z strings.Builder
				w := gzip.NewWriter(&z)
				_, _ = w.Write([]byte(text))
				_ = w.Close()
				data, name = z.String(), "demo.device.1.log.gz"
			}
			write(b, filepath.Join(dir, name), data)
			b.SetBytes(int64(len(text)))
			var buf []byte
			for b.Loop() {
				set, err := New(Config{Include: []string{dir}, DisableNotify: true})
				if err != nil {
					b.Fatal(err)
				}
				set.Scan(time.Now())
				s := set.Groups()[0].Stream(gpuflog.Device)
				total := 0
				for {
					var ch Chunk
					ch, buf, _ = s.Next(buf)
					if ch.AtEnd {
						break
					}
					total += len(ch.Data)
				}
				if total != len(text) {
					b.Fatalf("read %d bytes of %d", total, len(text))
				}
				_ = set.Close()
			}
		})
	}
}

// BenchmarkScanOfQuietGroups is the cost of a poll when 2000 closed sessions lie around.
func BenchmarkScanOfQuietGroups(b *testing.B) {
	dir := b.TempDir()
	for i := range 2000 {
		write(b, filepath.Join(dir, fmt.Sprint(i), "device.1.log.gz"), "")
	}
	set, err := New(Config{Include: []string{dir}, DisableNotify: true})
	if err != nil {
		b.Fatal(err)
	}
	defer set.Close()
	now := time.Now()
	for range 100 {
		now = now.Add(time.Second)
		set.Scan(now)
	}
	for b.Loop() {
		now = now.Add(200 * time.Millisecond)
		set.Scan(now)
	}
	if n := len(set.Groups()); n != 2000 {
		b.Fatalf("%d groups", n)
	}
}

func TestStream_ConcurrentGroups(t *testing.T) {
	c, dir := one(t, Config{MaxOpenFiles: 2, ChunkBytes: 64})
	want := make([]string, 8)
	for i := range want {
		for n := range 500 {
			want[i] += fmt.Sprintf("line %d of %d\n", n, i)
		}
		write(t, filepath.Join(dir, fmt.Sprintf("demo%d.device.1.log.gz", i)), gz(t, want[i][:3000]))
		write(t, filepath.Join(dir, fmt.Sprintf("demo%d.device.log", i)), want[i][3000:])
	}
	c.scan(tick)
	got := make([]string, len(want))
	var wg sync.WaitGroup
	for i := range want {
		wg.Go(func() {
			s := c.groups[groupKey(dir, fmt.Sprintf("demo%d", i))].Stream(gpuflog.Device)
			for {
				ch, _, err := s.Next(nil)
				if err != nil || ch.AtEnd {
					return
				}
				got[i] += string(ch.Data)
				_ = s.AppendState(nil)
			}
		})
	}
	wg.Wait()
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%d: %s", i, diff(got[i], want[i]))
		}
	}
}
