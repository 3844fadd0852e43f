// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

const tick = 200 * time.Millisecond

// one sets up a consumer over a fresh folder.
func one(t *testing.T, cfg Config) (c *consumer, dir string) {
	t.Helper()
	dir = t.TempDir()
	cfg.Include = []string{dir}
	return newConsumer(t, cfg), dir
}

func flatKey(dir string) string { return groupKey(dir, "demo") }

func (c *consumer) stream(key string, ch gpuflog.Channel) *Stream {
	c.t.Helper()
	g := c.groups[key]
	if g == nil {
		c.t.Fatalf("no group %s among %d", key, len(c.groups))
	}
	return g.Stream(ch)
}

func TestStream_LivePartialLine(t *testing.T) {
	c, dir := one(t, Config{})
	live := filepath.Join(dir, "demo.device.log")
	write(t, live, "one\ntw")
	c.poll(tick)
	c.want(flatKey(dir), gpuflog.Device, "one\n")
	s := c.stream(flatKey(dir), gpuflog.Device)
	tail, size, err := s.Pending(nil)
	if string(tail) != "tw" || size != 2 || err != nil {
		t.Fatalf("pending %q, %d, %v", tail, size, err)
	}
	if !s.Exhausted() {
		t.Fatal("an unterminated tail counts as unread")
	}
	appendTo(t, live, "o")
	c.poll(tick)
	c.want(flatKey(dir), gpuflog.Device, "one\n")
	appendTo(t, live, "\n\nthree\n")
	c.poll(tick)
	c.want(flatKey(dir), gpuflog.Device, "one\ntwo\n\nthree\n")
	if tail, size, _ := s.Pending(nil); len(tail) != 0 || size != 0 {
		t.Fatalf("pending %q, %d", tail, size)
	}
	if got := s.Backlog(); got != 0 {
		t.Fatalf("backlog %d", got)
	}
	// A second run appends to the same file.
	appendTo(t, live, "four\n")
	c.poll(tick)
	c.want(flatKey(dir), gpuflog.Device, "one\ntwo\n\nthree\nfour\n")
	c.wantProblems()
}

func TestStream_LongPartialLine(t *testing.T) {
	c, dir := one(t, Config{ChunkBytes: 4096, MaxLineBytes: 1 << 20})
	live := filepath.Join(dir, "demo.scope.log")
	var all strings.Builder
	for range 60 {
		p := strings.Repeat("y", 5000)
		all.WriteString(p)
		appendTo(t, live, p)
		c.poll(tick)
		c.want(flatKey(dir), gpuflog.Scope, "")
	}
	all.WriteString("end\nmore\n")
	appendTo(t, live, "end\nmore\n")
	c.poll(tick)
	c.want(flatKey(dir), gpuflog.Scope, all.String())
	c.wantProblems()
}

func TestStream_TakeTail(t *testing.T) {
	for _, tt := range []struct{ name, after, want, restart string }{
		{name: "nothing follows", want: "one\ntwo"},
		{name: "the newline follows", after: "\nthree\n", want: "one\ntwothree\n"},
		{name: "a CRLF follows", after: "\r\nthree\n", want: "one\ntwothree\n"},
		{name: "more of the line follows", after: "{}\nthree\n", want: "one\ntwo{}\nthree\n"},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %v", tt.name, restart), func(t *testing.T) {
				c, dir := one(t, Config{})
				live := filepath.Join(dir, "demo.system.log")
				write(t, live, "one\ntwo")
				c.poll(tick)
				s := c.stream(flatKey(dir), gpuflog.System)
				ch, _, err := s.TakeTail(nil)
				must(t, err)
				if string(ch.Data) != "two" || !ch.Seg.Tail || ch.Seg.From != 4 || ch.Seg.To != 7 {
					t.Fatalf("tail %q, %+v", ch.Data, ch.Seg)
				}
				c.take(s, ch)
				if ch, _, err = s.TakeTail(nil); err != nil || !ch.AtEnd {
					t.Fatalf("a tail was given twice: %+v, %v", ch, err)
				}
				if restart {
					c.restart()
				}
				if tt.after != "" {
					appendTo(t, live, tt.after)
				}
				c.poll(tick)
				c.want(flatKey(dir), gpuflog.System, tt.want)
				if strings.Contains(tt.want, "{}") {
					c.wantProblems(TextAfterTail)
				} else {
					c.wantProblems()
				}
				c.reread()
			})
		}
	}
}

func TestStream_ClosedFileTail(t *testing.T) {
	c, dir := one(t, Config{})
	write(t, filepath.Join(dir, "demo.device.1.log.gz"), gz(t, "a\nlast"))
	write(t, filepath.Join(dir, "demo.device.log"), "b\n")
	c.poll(tick)
	c.want(flatKey(dir), gpuflog.Device, "a\nlastb\n")
	if !c.segs[1].seg.Tail || c.segs[0].seg.Tail || c.segs[2].seg.Tail {
		t.Fatalf("segments %+v", c.segs)
	}
	// A plain closed file may still be copied in, so its tail waits until it has been unchanged for
	// a while.
	write(t, filepath.Join(dir, "sess", "device.1.log"), "x\npart")
	write(t, filepath.Join(dir, "sess", ".gpufl-session.lock"), "")
	key := groupKey(filepath.Join(dir, "sess"), "")
	closed := filepath.Join(dir, "sess", "device.1.log")
	must(t, os.Chtimes(closed, c.now, c.now))
	c.poll(2 * time.Second)
	c.want(key, gpuflog.Device, "x\n")
	appendTo(t, closed, "ial")
	must(t, os.Chtimes(closed, c.now, c.now))
	for range 14 {
		c.poll(tick)
	}
	c.want(key, gpuflog.Device, "x\n")
	c.poll(time.Second)
	c.want(key, gpuflog.Device, "x\npartial")
	c.wantProblems()
}

func TestStream_ShrunkFile(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart ", restart), func(t *testing.T) {
			c, dir := one(t, Config{})
			live := filepath.Join(dir, "demo.device.log")
			write(t, live, "aaaa\nbbbb\n")
			c.poll(tick)
			if restart {
				c.restart()
			}
			write(t, live, "c\n")
			c.settle()
			c.want(flatKey(dir), gpuflog.Device, "aaaa\nbbbb\nc\n")
			c.wantProblems(FileShrunk)
			if p := c.problems[0]; p.Offset != 10 || p.Length != 2 || p.Path != live {
				t.Fatalf("%+v", p)
			}
		})
	}
}

func TestStream_RewrittenFile(t *testing.T) {
	c, dir := one(t, Config{})
	live := filepath.Join(dir, "demo.device.log")
	write(t, live, "aaaa\n")
	c.poll(tick)
	write(t, live, "bbbb\ncccc\n") // longer than before, same inode
	c.poll(tick)
	c.want(flatKey(dir), gpuflog.Device, "aaaa\nbbbb\ncccc\n")
	c.wantProblems(FileReplaced)
}

func TestStream_ReplacedFile(t *testing.T) {
	c, dir := one(t, Config{ChunkBytes: 5})
	live := filepath.Join(dir, "demo.device.log")
	write(t, live, "aaaa\nbbbb\ncccc\n")
	c.scan(tick)
	c.next(c.stream(flatKey(dir), gpuflog.Device))
	write(t, live+".new", "dddd\n")
	must(t, os.Rename(live+".new", live))
	c.settle()
	// The open file still has the rest of the old one.
	c.want(flatKey(dir), gpuflog.Device, "aaaa\nbbbb\ncccc\ndddd\n")
	c.wantProblems()
}

func TestStream_ReplacedClosedFile(t *testing.T) {
	c, dir := one(t, Config{ChunkBytes: 5})
	live := filepath.Join(dir, "demo.device.log")
	write(t, live, "aaaa\nbbbb\ncccc\n")
	c.scan(tick)
	c.next(c.stream(flatKey(dir), gpuflog.Device))
	c.restart()
	must(t, os.Remove(live))
	write(t, live, "dddd\neeee\n")
	c.settle()
	c.want(flatKey(dir), gpuflog.Device, "aaaa\ndddd\neeee\n")
	c.wantProblems(FileReplaced)
	if p := c.problems[0]; p.Offset != 5 || p.Length != 10 {
		t.Fatalf("%+v", p)
	}
	seg := c.segs[0]
	if _, _, err := c.stream(seg.key, seg.ch).Reread(seg.seg, nil); !errors.Is(err, ErrGone) {
		t.Fatalf("reread of a file that is gone: %v", err)
	}
}

func TestStream_VanishedFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	write(t, filepath.Join(dir, "demo.device.log"), "aaaa\nbbbb\n")
	write(t, filepath.Join(dir, "demo.scope.log"), "s\n")
	c := newConsumer(t, Config{Include: []string{dir}, ChunkBytes: 5})
	c.scan(tick)
	c.next(c.stream(flatKey(dir), gpuflog.Device))
	c.poll(0)
	c.want(flatKey(dir), gpuflog.Device, "aaaa\nbbbb\n")
	c.restart()
	c.scan(tick)
	must(t, os.RemoveAll(dir))
	for range 30 {
		c.poll(tick)
	}
	if len(c.removed) != 1 || c.removed[0] != flatKey(dir) || len(c.set.Groups()) != 0 {
		t.Fatalf("removed %v, left %v", c.removed, c.set.Groups())
	}
	c.wantProblems() // both were read to their ends
	if n := c.set.OpenFiles(); n != 0 {
		t.Fatalf("%d files are open", n)
	}
	// What was not read to its end is a loss.
	write(t, filepath.Join(dir, "demo.device.log"), "aaaa\nbbbb\n")
	c.scan(2 * time.Second)
	c.next(c.stream(flatKey(dir), gpuflog.Device))
	c.restart()
	c.scan(tick)
	must(t, os.RemoveAll(dir))
	for range 30 {
		c.poll(tick)
	}
	c.wantProblems(FileVanished)
	if p := c.problems[0]; p.Offset != 5 || p.Length != 5 {
		t.Fatalf("%+v", p)
	}
}

func TestStream_UnlinkedFile(t *testing.T) {
	c, dir := one(t, Config{ChunkBytes: 5})
	live := filepath.Join(dir, "demo.device.log")
	write(t, live, "aaaa\nbbbb\ncc")
	c.scan(tick)
	c.next(c.stream(flatKey(dir), gpuflog.Device))
	must(t, os.Remove(live))
	c.settle()
	c.want(flatKey(dir), gpuflog.Device, "aaaa\nbbbb\ncc")
	c.poll(2 * time.Second)
	if len(c.removed) != 1 {
		t.Fatalf("removed %v", c.removed)
	}
	c.wantProblems()
}

func TestStream_BrokenGzip(t *testing.T) {
	var lines strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&lines, "line %d of the file, %x\n", i, i*i*7919)
	}
	whole := gz(t, lines.String())
	cut := whole[:len(whole)*2/3]
	flipped := []byte(whole)
	flipped[len(flipped)-6] ^= 1 // in the checksum
	for _, tt := range []struct {
		name, data string
		reason     Reason
		whole      bool
	}{
		{"cut in the middle", cut, TruncatedGzip, false},
		{"empty", "", TruncatedGzip, false},
		{"cut in the header", whole[:5], TruncatedGzip, false},
		{"not gzip", strings.Repeat("no gzip\n", 10), CorruptGzip, false},
		{"wrong checksum", string(flipped), CorruptGzip, true},
		{"garbage behind", whole + "garbage garbage", CorruptGzip, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, dir := one(t, Config{ChunkBytes: 1000})
			write(t, filepath.Join(dir, "s", "device.1.log.gz"), tt.data)
			write(t, filepath.Join(dir, "s", "device.2.log.gz"), gz(t, "next\n"))
			key := groupKey(filepath.Join(dir, "s"), "")
			c.poll(tick)
			if n := len(c.problems); n != 0 {
				t.Fatalf("told too early: %+v", c.problems)
			}
			if c.stream(key, gpuflog.Device).Exhausted() {
				t.Fatal("exhausted while waiting")
			}
			c.restart() // the waiting survives it
			c.settle()
			got := string(c.got[key][gpuflog.Device])
			body, ok := strings.CutSuffix(got, "next\n")
			if !ok || !strings.HasPrefix(lines.String(), body) {
				t.Fatalf("got %.100q … %d bytes", got, len(got))
			}
			if tt.whole && body != lines.String() {
				t.Fatalf("%d bytes of %d", len(body), lines.Len())
			}
			if tt.name == "cut in the middle" && len(body) < lines.Len()/3 {
				t.Fatalf("only %d bytes of %d", len(body), lines.Len())
			}
			c.wantProblems(tt.reason)
			if p := c.problems[0]; p.Offset != int64(len(body)) {
				t.Fatalf("offset %d, good prefix %d", p.Offset, len(body))
			}
			c.reread()
		})
	}
}

func TestStream_GzipCopyInProgress(t *testing.T) {
	var lines strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&lines, "line %d of the file, %x\n", i, i*i*7919)
	}
	whole := gz(t, lines.String())
	c, dir := one(t, Config{ChunkBytes: 1000})
	path := filepath.Join(dir, "demo.device.3.log.gz")
	for i := range 10 {
		appendTo(t, path, whole[len(whole)*i/10:len(whole)*(i+1)/10])
		c.poll(tick)
		if i == 5 {
			c.poll(time.Second)
			c.restart()
		}
	}
	c.settle()
	c.want(flatKey(dir), gpuflog.Device, lines.String())
	c.wantProblems()
}

func TestStream_MultiMemberGzip(t *testing.T) {
	c, dir := one(t, Config{ChunkBytes: 4})
	write(t, filepath.Join(dir, "demo.device.1.log.gz"), gz(t, "a\nb")+gz(t, "")+gz(t, "c\nd\n"))
	c.poll(tick)
	c.want(flatKey(dir), gpuflog.Device, "a\nbc\nd\n")
	c.wantProblems()
}

func TestStream_GzipBomb(t *testing.T) {
	c, dir := one(t, Config{ChunkBytes: 1 << 16, MaxLineBytes: 1 << 17})
	write(t, filepath.Join(dir, "demo.device.1.log.gz"), gz(t, "a\n"+strings.Repeat("\x00", 50<<20)+"\nb\n"))
	c.poll(tick)
	c.want(flatKey(dir), gpuflog.Device, "a\nb\n")
	c.wantProblems(LineTooLong)
	if p := c.problems[0]; p.Offset != 2 || p.Length != 50<<20+1 {
		t.Fatalf("%+v", p)
	}
	if n := cap(c.buf); n > 1<<18 {
		t.Fatalf("buffer of %d bytes", n)
	}
}

func TestStream_LongLines(t *testing.T) {
	const limit = 100
	line := func(n int) string { return strings.Repeat("z", n) + "\n" }
	for _, gzipped := range []bool{false, true} {
		for _, tt := range []struct {
			name, in, want string
			offset, length []int64
		}{
			{"exactly the limit", "a\n" + line(limit) + "b\n", "a\n" + line(limit) + "b\n", nil, nil},
			{"one more", "a\n" + line(limit+1) + "b\n", "a\nb\n", []int64{2}, []int64{limit + 2}},
			{"two in a row", line(500) + line(5000) + "b\n", "b\n", []int64{0, 501}, []int64{501, 5001}},
			{"at the end, unterminated", "a\n" + strings.Repeat("z", 300), "a\n", []int64{2}, []int64{300}},
		} {
			t.Run(fmt.Sprint(tt.name, ", gzip ", gzipped), func(t *testing.T) {
				c, dir := one(t, Config{ChunkBytes: 64, MaxLineBytes: limit})
				if gzipped {
					write(t, filepath.Join(dir, "demo.device.1.log.gz"), gz(t, tt.in))
				} else {
					write(t, filepath.Join(dir, "demo.device.1.log"), tt.in)
					write(t, filepath.Join(dir, "demo.device.log"), "")
				}
				c.settle()
				c.want(flatKey(dir), gpuflog.Device, tt.want)
				if len(c.problems) != len(tt.offset) {
					t.Fatalf("problems %+v", c.problems)
				}
				for i, p := range c.problems {
					if p.Reason != LineTooLong || p.Offset != tt.offset[i] || p.Length != tt.length[i] {
						t.Errorf("%+v", p)
					}
				}
				c.reread()
			})
		}
	}
}

func TestStream_LongLiveLineRestart(t *testing.T) {
	c, dir := one(t, Config{ChunkBytes: 64, MaxLineBytes: 100})
	live := filepath.Join(dir, "demo.device.log")
	write(t, live, "a\n"+strings.Repeat("z", 300))
	c.poll(tick)
	c.restart()
	appendTo(t, live, strings.Repeat("z", 5000))
	c.poll(tick)
	c.wantProblems()
	appendTo(t, live, "z\nb\n")
	c.poll(tick)
	c.want(flatKey(dir), gpuflog.Device, "a\nb\n")
	c.wantProblems(LineTooLong)
	if p := c.problems[0]; p.Offset != 2 || p.Length != 5302 {
		t.Fatalf("%+v", p)
	}
}

func TestStream_Fifo(t *testing.T) {
	c, dir := one(t, Config{})
	must(t, unix.Mkfifo(filepath.Join(dir, "demo.device.log"), 0o644))
	write(t, filepath.Join(dir, "demo.scope.log"), "s\n")
	must(t, os.Mkdir(filepath.Join(dir, "demo.system.log"), 0o755))
	c.settle()
	c.want(flatKey(dir), gpuflog.Scope, "s\n")
	c.wantProblems(NotRegular, NotRegular)
	// A fifo that takes a file's place between listing and opening does not block either.
	if _, _, err := openRegular(filepath.Join(dir, "demo.device.log")); !errors.Is(err, errNotRegular) {
		t.Fatal(err)
	}
}

func TestStream_NumberGaps(t *testing.T) {
	c, dir := one(t, Config{})
	put := func(n int) {
		write(t, filepath.Join(dir, "s", fmt.Sprintf("device.%d.log.gz", n)), gz(t, fmt.Sprintf("w%d\n", n)))
	}
	key := groupKey(filepath.Join(dir, "s"), "")
	put(1)
	put(3)
	put(10)
	c.poll(tick)
	c.want(key, gpuflog.Device, "w1\n")
	put(2)
	write(t, filepath.Join(dir, "s", ".gpufl-transport-loss.device.4.json"), "{}")
	write(t, filepath.Join(dir, "s", ".gpufl-transport-loss.agent-device.5.json"), "{}")
	c.poll(tick)
	c.poll(2 * time.Second)
	c.want(key, gpuflog.Device, "w1\nw2\nw3\n")
	c.poll(1900 * time.Millisecond)
	c.want(key, gpuflog.Device, "w1\nw2\nw3\n")
	c.settle()
	c.want(key, gpuflog.Device, "w1\nw2\nw3\nw10\n")
	c.wantProblems(WindowLost, WindowLost, WindowMissing, WindowMissing, WindowMissing, WindowMissing)
	if p := c.problems[2]; p.Number != 6 || p.Count != 4 {
		t.Fatalf("%+v", p)
	}
	// One that comes after all is read, and said to be late, also after a restart.
	c.problems = nil
	c.restart()
	put(8)
	c.settle()
	c.want(key, gpuflog.Device, "w1\nw2\nw3\nw10\nw8\n")
	c.wantProblems(OutOfOrder)
	if p := c.problems[0]; p.Number != 8 {
		t.Fatalf("%+v", p)
	}
	put(4)
	put(5)
	c.restart()
	c.settle()
	c.want(key, gpuflog.Device, "w1\nw2\nw3\nw10\nw8\n") // told lost is final
}

func TestStream_SameBeginnings(t *testing.T) {
	c, dir := one(t, Config{ChunkBytes: 100})
	same := strings.Repeat("the same line in every file\n", 200)
	s := filepath.Join(dir, "s")
	write(t, filepath.Join(s, lockName), "")
	var want string
	for n := 1; n <= 3; n++ {
		write(t, filepath.Join(s, fmt.Sprintf("device.%d.log.gz", n)), gz(t, same))
		want += same
		c.poll(tick)
		c.restart()
	}
	time.Sleep(10 * time.Millisecond) // only its time tells this live file from one that was published and not emptied yet
	write(t, filepath.Join(s, tmpName, "device.log"), same)
	c.poll(tick)
	want += same
	c.want(groupKey(s, ""), gpuflog.Device, want)
	must(t, os.Rename(filepath.Join(s, tmpName, "device.log"), filepath.Join(s, tmpName, "device.4.log")))
	time.Sleep(10 * time.Millisecond)
	write(t, filepath.Join(s, tmpName, "device.log"), same)
	c.settle()
	want += same
	c.want(groupKey(s, ""), gpuflog.Device, want)
	c.wantProblems()
}

func TestStream_SalvagedFile(t *testing.T) {
	for _, restart := range []bool{false, true} {
		for _, tail := range []string{"", "{torn"} {
			t.Run(fmt.Sprintf("restart %v, tail %q", restart, tail), func(t *testing.T) {
				c, dir := one(t, Config{})
				s := filepath.Join(dir, "s")
				live := filepath.Join(s, tmpName, "system.log")
				write(t, live, "a\nb\n"+tail)
				c.poll(tick)
				if restart {
					c.restart()
				}
				write(t, filepath.Join(s, "system.1.log.gz"), gz(t, "a\nb\nshutdown\n"))
				must(t, os.RemoveAll(filepath.Join(s, tmpName)))
				c.settle()
				c.want(groupKey(s, ""), gpuflog.System, "a\nb\nshutdown\n")
				c.wantProblems()
			})
		}
	}
}

func TestStream_CopiedInAnyOrder(t *testing.T) {
	c, dir := one(t, Config{})
	key := flatKey(dir)
	put := func(n int) {
		write(t, filepath.Join(dir, fmt.Sprintf("demo.device.%d.log.gz", n)), gz(t, fmt.Sprintf("w%d\n", n)))
		c.poll(2 * time.Second)
		c.restart()
	}
	write(t, filepath.Join(dir, "demo.device.log"), "live\n")
	c.poll(tick)
	put(1)
	put(10)
	put(2)
	appendTo(t, filepath.Join(dir, "demo.device.log"), "more\n")
	c.settle()
	c.want(key, gpuflog.Device, "live\nw1\nw10\nw2\nmore\n")
	c.wantProblems(OutOfOrder, OutOfOrder, OutOfOrder)
	c.reread()
}

func TestStream_MoreFilesThanStored(t *testing.T) {
	c, dir := one(t, Config{ChunkBytes: 64})
	var want string
	for n := 300; n >= 1; n-- {
		l := fmt.Sprintf("file %d\n", n)
		write(t, filepath.Join(dir, fmt.Sprintf("demo.device.%d.log.gz", n)), gz(t, l))
		want += l
	}
	write(t, filepath.Join(dir, "demo.device.log"), "live\n")
	c.settle()
	c.restart()
	c.settle()
	c.want(flatKey(dir), gpuflog.Device, want+"live\n")
	c.wantProblems()
	if st := c.stream(flatKey(dir), gpuflog.Device).AppendState(nil); len(st) > 5000 {
		t.Fatalf("state of %d bytes", len(st))
	}
}

func TestStream_OpenFilesBound(t *testing.T) {
	c, dir := one(t, Config{MaxOpenFiles: 3, ChunkBytes: 16})
	want := make(map[string]string)
	for round := range 3 {
		for i := range 10 {
			l := fmt.Sprintf("line %d of %d\n", round, i)
			base := fmt.Sprintf("demo%d", i)
			appendTo(t, filepath.Join(dir, base+".device.log"), l)
			want[base] += l
		}
		c.poll(time.Second)
		if n := c.set.OpenFiles(); n != 3 {
			t.Fatalf("%d files are open", n)
		}
	}
	for base, w := range want {
		c.want(groupKey(dir, base), gpuflog.Device, w)
	}
	must(t, c.set.Close())
	if n := c.set.OpenFiles(); n != 0 {
		t.Fatalf("%d files are open after Close", n)
	}
	if _, _, err := c.stream(groupKey(dir, "demo1"), gpuflog.Device).Next(nil); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}
