// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

func (c *consumer) keys() []string {
	var ks []string
	for _, g := range c.set.Groups() {
		ks = append(ks, g.Key())
	}
	return ks
}

func TestSet_IncludeAndExclude(t *testing.T) {
	dir := t.TempDir()
	other := t.TempDir()
	for _, p := range []string{
		"a.device.log", "a.scope.log", "b.device.log", "notes.log", "device.txt",
		"run-1/s1/device.1.log.gz", "run-1/s1/.tmp/device.log", "run-2/deep/er/c.system.log", "run-2/d.system.log",
	} {
		write(t, filepath.Join(dir, p), "x\n")
	}
	write(t, filepath.Join(other, "linked.device.log"), "x\n")
	must(t, os.Symlink(other, filepath.Join(dir, "link")))
	flat := func(base string) string { return groupKey(dir, base) }
	s1 := groupKey(filepath.Join(dir, "run-1/s1"), "")
	deep := groupKey(filepath.Join(dir, "run-2/deep/er"), "c")
	d := groupKey(filepath.Join(dir, "run-2"), "d")
	for _, tt := range []struct {
		name             string
		include, exclude []string
		want             []string
	}{
		{"a folder, without symlinked folders", []string{""}, nil, []string{s1, flat("a"), flat("b"), deep, d}},
		{"a folder given twice", []string{"", "run-1"}, nil, []string{s1, flat("a"), flat("b"), deep, d}},
		{"a symlinked folder by name", []string{"link"}, nil, []string{groupKey(filepath.Join(dir, "link"), "linked")}},
		{"one file", []string{"a.device.log"}, nil, []string{flat("a")}},
		{"a file that does not exist", []string{"z.device.log"}, nil, nil},
		{"a pattern for files", []string{"*.device.log"}, nil, []string{flat("a"), flat("b")}},
		{"a pattern for folders", []string{"run-*"}, nil, []string{s1, deep, d}},
		{"a deep pattern", []string{"**/*.system.log"}, nil, []string{deep, d}},
		{"a pattern for a session's file", []string{"run-*/*/device.*.gz"}, nil, []string{s1}},
		{"exclude by base name", []string{""}, []string{"b.*", "deep"}, []string{s1, flat("a"), d}},
		{"exclude by path", []string{""}, []string{filepath.Join(dir, "run-*/**"), "**/a.scope.log"}, []string{flat("a"), flat("b")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Config{Exclude: tt.exclude}
			for _, p := range tt.include {
				cfg.Include = append(cfg.Include, filepath.Join(dir, p))
			}
			c := newConsumer(t, cfg)
			c.scan(tick)
			c.scan(3 * time.Second)
			slices.Sort(tt.want)
			if got := c.keys(); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if slices.Contains(tt.exclude, "**/a.scope.log") {
				return // relative to the working directory, so it does not match
			}
			c.wantProblems()
		})
	}
	for _, bad := range []Config{
		{},
		{Include: []string{""}},
		{Include: []string{"/a[b"}},
		{Include: []string{"/a"}, Exclude: []string{"[b"}},
		{Include: []string{"/a"}, MaxLineBytes: -1},
		{Include: []string{"/a"}, GzipGrace: -1},
	} {
		if s, err := New(bad); err == nil {
			s.Close()
			t.Errorf("accepted %+v", bad)
		}
	}
}

func TestGroup_Layouts(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files []string
		base  string
		want  Layout
		after Layout // once the waiting is over
	}{
		{"A2", []string{"x.device.log", "x.device.1.log.gz"}, "x", Flat, Flat},
		{"A2 whose live files are gone", []string{"x.device.1.log.gz"}, "x", Flat, Flat},
		{"A1", []string{"x.device.0.log", "x.device.1.log", "x.scope.0.log"}, "x", Undecided, Numbered},
		{"A0", []string{"x.kernel.0.log"}, "x", Undecided, Numbered},
		{"C1", []string{"device.log", "device.1.log.gz"}, "", C1, C1},
		{"C1 closed", []string{"device.log.gz", "scope.log.gz"}, "", C1, C1},
		{"C2", []string{"device.1.log.gz"}, "", Windows, Windows},
		{"C2 live", []string{".tmp/device.log"}, "", Windows, Windows},
		{"C2 without compression", []string{"device.1.log"}, "", Undecided, Windows},
		{"C3", []string{"device.1.log", ".gpufl-session.lock"}, "", Windows, Windows},
		{"C3 with nothing yet", []string{".gpufl-session.lock"}, "", Windows, Windows},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, dir := one(t, Config{})
			for _, f := range tt.files {
				write(t, filepath.Join(dir, f), "")
				must(t, os.Chtimes(filepath.Join(dir, f), c.now, c.now))
			}
			c.scan(tick)
			g := c.groups[groupKey(dir, tt.base)]
			if g == nil {
				t.Fatal("no group")
			}
			if g.Layout() != tt.want {
				t.Errorf("layout %s, want %s", g.Layout(), tt.want)
			}
			c.scan(2 * time.Second)
			if g.Layout() != tt.after {
				t.Errorf("layout %s later, want %s", g.Layout(), tt.after)
			}
			c.restart()
			c.scan(tick)
			if g := c.groups[groupKey(dir, tt.base)]; g.Layout() != tt.after {
				t.Errorf("layout %s after a restart, want %s", g.Layout(), tt.after)
			}
		})
	}
}

func TestGroup_NumberedFilesAscending(t *testing.T) {
	c, dir := one(t, Config{})
	for n := range 11 {
		write(t, filepath.Join(dir, fmt.Sprintf("demo.kernel.%d.log", n)), fmt.Sprintf("k%d\n", n))
	}
	c.settle()
	c.want(flatKey(dir), gpuflog.Device, "k0\nk1\nk2\nk3\nk4\nk5\nk6\nk7\nk8\nk9\nk10\n")
	files := c.groups[flatKey(dir)].Files()
	if len(files) != 11 || filepath.Base(files[0]) != "demo.kernel.0.log" || filepath.Base(files[10]) != "demo.kernel.10.log" {
		t.Fatalf("files %q", files)
	}
	appendTo(t, filepath.Join(dir, "demo.kernel.10.log"), "more\n")
	c.restart()
	write(t, filepath.Join(dir, "demo.kernel.11.log"), "k11\n")
	c.settle()
	if got := string(c.got[flatKey(dir)][gpuflog.Device]); !strings.HasSuffix(got, "k10\nmore\nk11\n") {
		t.Fatalf("got %q", got)
	}
	c.wantProblems()
}

func TestGroup_UnexpectedNames(t *testing.T) {
	c, dir := one(t, Config{})
	write(t, filepath.Join(dir, lockName), "")
	write(t, filepath.Join(dir, "device.log"), "no\n")
	write(t, filepath.Join(dir, "device.1.log.gz.part"), "no\n")
	write(t, filepath.Join(dir, ".tmp", "device.1.log.gz.part"), "no\n")
	write(t, filepath.Join(dir, ".tmp", "x.device.log"), "no\n")
	write(t, filepath.Join(dir, "device.1.log"), "yes\n")
	c.settle()
	c.want(groupKey(dir, ""), gpuflog.Device, "yes\n")
	c.wantProblems(UnexpectedName)
}

func TestSet_BoundsReported(t *testing.T) {
	c, dir := one(t, Config{MaxGroups: 2, MaxDepth: 1})
	for i := range 4 {
		write(t, filepath.Join(dir, fmt.Sprintf("x%d.device.log", i)), "x\n")
	}
	write(t, filepath.Join(dir, "a", "b", "x.device.log"), "x\n")
	c.poll(tick)
	c.poll(3 * time.Second)
	if n := len(c.set.Groups()); n != 2 {
		t.Fatalf("%d groups", n)
	}
	c.wantProblems(TooManyGroups, TooDeep)
}

func TestStream_TooManyFiles(t *testing.T) {
	c, dir := one(t, Config{})
	for n := 1; n <= maxFiles+5; n++ {
		write(t, filepath.Join(dir, fmt.Sprintf("demo.scope.%d.log.gz", n)), "")
	}
	c.scan(tick)
	if n := len(c.groups[flatKey(dir)].Files()); n != maxFiles {
		t.Fatalf("%d files", n)
	}
	ch, _, err := c.stream(flatKey(dir), gpuflog.Scope).Next(nil)
	must(t, err)
	if len(ch.Problems) == 0 || ch.Problems[0].Reason != TooManyWindows || ch.Problems[0].Count != 5 {
		t.Fatalf("%+v", ch.Problems)
	}
}

// asNobody runs f on a thread whose file accesses are those of an ordinary user.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		f()
		return
	}
	done := make(chan bool)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		defer close(done)
		if err := unix.Setfsuid(65534); err != nil {
			t.Errorf("setfsuid: %v", err)
			return
		}
		f()
	}()
	<-done
}

func TestSet_UnreadableFilesAndFolders(t *testing.T) {
	c, dir := one(t, Config{})
	for d := dir; strings.HasPrefix(d, os.TempDir()+"/"); d = filepath.Dir(d) {
		must(t, os.Chmod(d, 0o755))
	}
	live := filepath.Join(dir, "demo.device.log")
	write(t, live, "secret\n")
	write(t, filepath.Join(dir, "demo.scope.log"), "s\n")
	write(t, filepath.Join(dir, "closed", "x.device.log"), "x\n")
	must(t, os.Chmod(live, 0))
	must(t, os.Chmod(filepath.Join(dir, "closed"), 0))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "closed"), 0o755) })
	asNobody(t, func() {
		for range 30 {
			c.poll(tick)
		}
	})
	c.want(flatKey(dir), gpuflog.Device, "")
	c.want(flatKey(dir), gpuflog.Scope, "s\n")
	c.wantProblems(Permission, Permission) // once each
	if !c.stream(flatKey(dir), gpuflog.Device).Exhausted() {
		t.Fatal("an unreadable file holds up its session's end")
	}
	must(t, os.Chmod(live, 0o644))
	must(t, os.Chmod(filepath.Join(dir, "closed"), 0o755))
	asNobody(t, func() {
		for range 30 {
			c.poll(tick)
		}
	})
	c.want(flatKey(dir), gpuflog.Device, "secret\n")
	c.want(groupKey(filepath.Join(dir, "closed"), "x"), gpuflog.Device, "x\n")
	c.wantProblems(Permission, Permission)
}

func TestStream_UnreadableFile(t *testing.T) {
	for _, layout := range []string{"flat", "windows"} {
		t.Run(layout, func(t *testing.T) {
			c, dir := one(t, Config{})
			for d := dir; strings.HasPrefix(d, os.TempDir()+"/"); d = filepath.Dir(d) {
				must(t, os.Chmod(d, 0o755))
			}
			key, bad := flatKey(dir), filepath.Join(dir, "demo.device.2.log.gz")
			good := filepath.Join(dir, "demo.device.1.log.gz")
			if layout == "windows" {
				key, bad, good = groupKey(dir, ""), filepath.Join(dir, "device.1.log.gz"), filepath.Join(dir, "device.2.log.gz")
			}
			write(t, bad, gz(t, "bad\n"))
			write(t, good, gz(t, "good\n"))
			must(t, os.Chmod(bad, 0))
			asNobody(t, func() {
				for range 40 {
					c.poll(tick)
				}
				c.want(key, gpuflog.Device, "")
				for range 40 {
					c.poll(tick)
				}
			})
			c.want(key, gpuflog.Device, "good\n")
			must(t, os.Chmod(bad, 0o644))
			asNobody(t, func() {
				for range 20 {
					c.poll(tick)
				}
			})
			c.want(key, gpuflog.Device, "good\nbad\n")
		})
	}
}

func TestSet_InotifyNewFiles(t *testing.T) {
	dir := t.TempDir()
	set, err := New(Config{Include: []string{dir}, RescanInterval: time.Hour})
	must(t, err)
	defer set.Close()
	if set.watch == nil {
		t.Skip("inotify does not work here")
	}
	now := time.Now()
	set.Scan(now)
	session := filepath.Join(dir, "a", "s")
	key := groupKey(session, "")
	var got string
	// Everything below is found by events alone: the folders are looked at regularly only once an
	// hour.
	until := func(want string) {
		t.Helper()
		deadline := time.After(time.Minute)
		for got != want {
			select {
			case <-set.Wake():
			case <-deadline:
				t.Fatalf("got %q, want %q", got, want)
			}
			now = now.Add(time.Millisecond)
			set.Scan(now)
			for _, g := range set.Groups() {
				if g.Key() != key || !g.Changed() {
					continue
				}
				for {
					ch, _, err := g.Stream(gpuflog.Device).Next(nil)
					must(t, err)
					if got += string(ch.Data); ch.AtEnd {
						break
					}
				}
			}
		}
	}
	write(t, filepath.Join(session, tmpName, "device.log"), "one\n")
	until("one\n")
	now = now.Add(10 * time.Minute) // long idle: only an event makes it read
	set.Scan(now)
	appendTo(t, filepath.Join(session, tmpName, "device.log"), "two\n")
	until("one\ntwo\n")
	must(t, os.Rename(filepath.Join(session, tmpName, "device.log"), filepath.Join(session, "device.1.log")))
	write(t, filepath.Join(session, tmpName, "device.log"), "three\n")
	until("one\ntwo\nthree\n")
}

func TestGroup_Writer(t *testing.T) {
	c, dir := one(t, Config{})
	s := filepath.Join(dir, "s")
	live := filepath.Join(s, tmpName, "device.log")
	write(t, live, "a\n")
	write(t, filepath.Join(dir, "demo.device.log"), "a\n")
	c.poll(tick)
	g := c.groups[groupKey(s, "")]
	later := c.now.Add(time.Minute)
	if got := c.groups[flatKey(dir)].Writer(later); got != WriterUnknown {
		t.Fatalf("flat: %d", got)
	}
	if got := g.Writer(later); got != WriterUnknown {
		t.Fatalf("C2: %d", got)
	}
	write(t, filepath.Join(s, lockName), "")
	if got := g.Writer(c.now); got != WriterAlive {
		t.Fatalf("free lock, just written: %d", got)
	}
	if got := g.Writer(later); got != WriterGone {
		t.Fatalf("free lock, quiet: %d", got)
	}
	unlock := lockInOtherProcess(t, filepath.Join(s, lockName))
	if got := g.Writer(later); got != WriterAlive {
		t.Fatalf("locked: %d", got)
	}
	unlock()
	if got := g.Writer(later); got != WriterGone {
		t.Fatalf("unlocked: %d", got)
	}
	must(t, os.Rename(live, filepath.Join(s, "device.1.log")))
	must(t, os.Remove(filepath.Join(s, tmpName)))
	c.poll(3 * time.Second)
	if got := g.Writer(c.now); got != WriterGone {
		t.Fatalf("closed: %d", got)
	}
}

const lockEnv = "FILESET_TEST_LOCK"

// TestMain serves as the other process that holds a lock.
func TestMain(m *testing.M) {
	if path := os.Getenv(lockEnv); path != "" {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err == nil {
			err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
		}
		fmt.Println("locked", err)
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func lockInOtherProcess(t *testing.T, path string) (unlock func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), lockEnv+"="+path)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "locked <nil>\n" {
		t.Fatalf("other process said %q, %v", line, err)
	}
	return func() {
		must(t, in.Close())
		must(t, cmd.Wait())
	}
}

func TestSet_ScanUnchangedTree(t *testing.T) {
	c, dir := one(t, Config{})
	for i := range 50 {
		write(t, filepath.Join(dir, fmt.Sprint(i), "s", "device.1.log.gz"), gz(t, "x\n"))
	}
	for range 20 {
		c.poll(3 * time.Second)
	}
	for _, d := range c.set.dirs {
		if d.quiet < quietLooks || d.relist {
			t.Fatalf("%s is still listed: %+v", d.path, d)
		}
	}
	steps := c.steps
	changed := 0
	for _, g := range c.set.Groups() {
		if g.Changed() {
			changed++
		}
	}
	if changed != 0 || len(c.set.Groups()) != 50 {
		t.Fatalf("%d of %d groups changed after %d steps", changed, len(c.set.Groups()), steps)
	}
}
