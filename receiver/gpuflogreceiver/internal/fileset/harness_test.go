// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

// consumer reads a set as a receiver would, and keeps what it was given by group and channel.
type consumer struct {
	t        *testing.T
	cfg      Config
	set      *Set
	now      time.Time
	groups   map[string]*Group
	states   map[string][]byte
	got      map[string]*[gpuflog.NumChannels][]byte
	segs     []gotSegment
	problems []Problem
	removed  []string
	buf      []byte
	steps    int // calls of Next

	kept     map[string][gpuflog.NumChannels]int // bytes got at the last checkpoint
	keptSegs int
}

type gotSegment struct {
	key  string
	ch   gpuflog.Channel
	seg  Segment
	data []byte
}

func newConsumer(t *testing.T, cfg Config) *consumer {
	t.Helper()
	cfg.DisableNotify = true
	c := &consumer{
		t: t, cfg: cfg, now: time.Now(),
		states: make(map[string][]byte), got: make(map[string]*[gpuflog.NumChannels][]byte),
	}
	c.start()
	t.Cleanup(func() { c.set.Close() })
	return c
}

func (c *consumer) start() {
	c.t.Helper()
	set, err := New(c.cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.set, c.groups = set, make(map[string]*Group)
}

// scan moves time on and takes note of new groups.
func (c *consumer) scan(d time.Duration) {
	c.t.Helper()
	c.now = c.now.Add(d)
	ch := c.set.Scan(c.now)
	c.problems = append(c.problems, ch.Problems...)
	for _, g := range ch.Added {
		c.groups[g.Key()] = g
		if c.got[g.Key()] == nil {
			c.got[g.Key()] = new([gpuflog.NumChannels][]byte)
		}
		if st, ok := c.states[g.Key()]; ok {
			if err := g.LoadState(st); err != nil {
				c.t.Fatalf("load state of %s: %v", g.Key(), err)
			}
		}
	}
	for _, g := range ch.Removed {
		c.removed = append(c.removed, g.Key())
		delete(c.groups, g.Key())
		delete(c.states, g.Key())
	}
}

// poll is one round: scan, and read all there is.
func (c *consumer) poll(d time.Duration) {
	c.t.Helper()
	c.scan(d)
	for _, g := range c.set.Groups() {
		for _, s := range g.Streams() {
			for c.next(s) {
			}
		}
	}
}

// next takes one chunk; false at the end.
func (c *consumer) next(s *Stream) bool {
	c.t.Helper()
	ch, buf, err := s.Next(c.buf)
	if err != nil {
		c.t.Fatal(err)
	}
	c.buf = buf
	c.steps++
	return c.take(s, ch)
}

func (c *consumer) take(s *Stream, ch Chunk) bool {
	c.t.Helper()
	c.problems = append(c.problems, ch.Problems...)
	if ch.AtEnd && len(ch.Data) > 0 {
		c.t.Fatalf("data at the end: %q", ch.Data)
	}
	if len(ch.Data) > 0 {
		if !ch.Seg.Tail && ch.Data[len(ch.Data)-1] != '\n' {
			c.t.Fatalf("chunk without newline: %q", ch.Data)
		}
		if got := ch.Seg.To - ch.Seg.From; got != int64(len(ch.Data)) {
			c.t.Fatalf("segment of %d bytes for %d bytes", got, len(ch.Data))
		}
		key := s.Group().Key()
		got := c.got[key]
		got[s.Channel()] = append(got[s.Channel()], ch.Data...)
		c.segs = append(c.segs, gotSegment{key, s.Channel(), ch.Seg, bytes.Clone(ch.Data)})
	}
	return !ch.AtEnd
}

// settle polls until every stream is exhausted.
func (c *consumer) settle() {
	c.t.Helper()
	for range 40 {
		c.poll(700 * time.Millisecond)
		done := true
		for _, g := range c.set.Groups() {
			for _, s := range g.Streams() {
				done = done && s.Exhausted()
			}
		}
		if done {
			// Once more: exhaustion must not be a coincidence of the moment.
			c.poll(700 * time.Millisecond)
			return
		}
	}
	c.t.Fatal("streams are not exhausted after 28 s")
}

// restart stores all states, and goes on with a new set.
func (c *consumer) restart() {
	c.t.Helper()
	for key, g := range c.groups {
		c.states[key] = g.AppendState(nil)
	}
	if err := c.set.Close(); err != nil {
		c.t.Fatal(err)
	}
	c.start()
}

// checkpoint stores all states, to go back to in a crash.
func (c *consumer) checkpoint() {
	for key, g := range c.groups {
		c.states[key] = g.AppendState(nil)
	}
	c.kept = make(map[string][gpuflog.NumChannels]int)
	for key, got := range c.got {
		var n [gpuflog.NumChannels]int
		for ch := range got {
			n[ch] = len(got[ch])
		}
		c.kept[key] = n
	}
	c.keptSegs = len(c.segs)
}

// crash forgets all since the last checkpoint.
func (c *consumer) crash() {
	c.t.Helper()
	for key, got := range c.got {
		for ch := range got {
			got[ch] = got[ch][:c.kept[key][ch]]
		}
	}
	c.segs = c.segs[:c.keptSegs]
	if err := c.set.Close(); err != nil {
		c.t.Fatal(err)
	}
	c.start()
}

// reread reads all segments again, and wants the same bytes.
func (c *consumer) reread() {
	c.t.Helper()
	for _, g := range c.segs {
		stored, rest, err := ParseSegment(g.seg.Append(nil))
		if err != nil || len(rest) > 0 || stored != g.seg {
			c.t.Fatalf("stored segment %+v became %+v (%v)", g.seg, stored, err)
		}
		group := c.groups[g.key]
		if group == nil {
			c.t.Fatalf("no group %s", g.key)
		}
		p, buf, err := group.Stream(g.ch).Reread(stored, c.buf)
		c.buf = buf
		if err != nil {
			c.t.Fatalf("reread %s %s %d-%d: %v", g.key, g.ch, g.seg.From, g.seg.To, err)
		}
		if !bytes.Equal(p, g.data) {
			c.t.Fatalf("reread %s %s %d-%d gave other bytes", g.key, g.ch, g.seg.From, g.seg.To)
		}
	}
}

func (c *consumer) want(key string, ch gpuflog.Channel, want string) {
	c.t.Helper()
	var got string
	if g := c.got[key]; g != nil {
		got = string(g[ch])
	}
	if got != want {
		c.t.Fatalf("%s %s: %s; problems %+v", key, ch, diff(got, want), c.problems)
	}
}

func (c *consumer) wantProblems(want ...Reason) {
	c.t.Helper()
	var got []Reason
	for _, p := range c.problems {
		for range p.Count {
			got = append(got, p.Reason)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		c.t.Fatalf("problems are %v, want %v (%+v)", got, want, c.problems)
	}
}

func diff(got, want string) string {
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	return fmt.Sprintf("got %d bytes, want %d; they differ from %d on: got %.80q, want %.80q",
		len(got), len(want), i, got[i:], want[i:])
}

// must fails the test on an error of a file operation.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, path, data string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(data), 0o644))
}

func appendTo(t *testing.T, path, data string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	must(t, err)
	_, err = f.WriteString(data)
	must(t, errors.Join(err, f.Close()))
}

func gz(t *testing.T, data string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write([]byte(data))
	must(t, errors.Join(err, w.Close()))
	return b.String()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// recorder writes files as GPU Flight does, and calls step before every change that another process
// could see.
type recorder struct {
	t    *testing.T
	dir  string // folder of the flat files, or the session folder
	base string // flat only
	step func(what string)

	line    int
	written [gpuflog.NumChannels]string
	n       [gpuflog.NumChannels]uint64 // log files cut so far
	queue   []staged                    // C2, C3: cut log files that wait for the worker
}

type staged struct {
	ch    gpuflog.Channel
	n     uint64
	stage int
}

func (r *recorder) name(ch gpuflog.Channel, suffix string) string {
	if r.base == "" {
		return filepath.Join(r.dir, ch.String()+suffix)
	}
	return filepath.Join(r.dir, r.base+"."+ch.String()+suffix)
}

// text makes the next line. Lines begin alike, as the real ones do.
func (r *recorder) text(pad int) string {
	r.line++
	return fmt.Sprintf(`{"type":"kernel_event","pid":4242,"app":"demo","pad":"%s","seq":%d}`+"\n", strings.Repeat("x", pad), r.line)
}

func (r *recorder) put(path string, ch gpuflog.Channel, s string) {
	r.step("write")
	appendTo(r.t, path, s)
	r.written[ch] += s
}

func (r *recorder) rename(from, to string) {
	r.step("rename to " + filepath.Base(to))
	must(r.t, os.Rename(from, to))
}

func (r *recorder) remove(path string) {
	r.step("remove " + filepath.Base(path))
	must(r.t, os.Remove(path))
}

// compress writes a gzip file in three pieces.
func (r *recorder) compress(from, to string) {
	b, err := os.ReadFile(from)
	must(r.t, err)
	z := gz(r.t, string(b))
	r.step("create " + filepath.Base(to))
	write(r.t, to, "")
	for i := range 3 {
		r.step("compress")
		appendTo(r.t, to, z[len(z)*i/3:len(z)*(i+1)/3])
	}
}

// rotateShift is the rotation of A2, B and C1.
func (r *recorder) rotateShift(ch gpuflog.Channel, keep int) {
	live := r.name(ch, ".log")
	if !exists(live) {
		return
	}
	for i := keep; i >= 1; i-- {
		from := r.name(ch, fmt.Sprintf(".%d.log.gz", i))
		if !exists(from) {
			continue
		}
		if i == keep {
			r.remove(from)
			continue
		}
		r.rename(from, r.name(ch, fmt.Sprintf(".%d.log.gz", i+1)))
	}
	r.rename(live, r.name(ch, ".1.log"))
	r.compress(r.name(ch, ".1.log"), r.name(ch, ".1.log.gz"))
	r.remove(r.name(ch, ".1.log"))
}

// closeC1 is the clean close of C1.
func (r *recorder) closeC1(ch gpuflog.Channel) {
	if live := r.name(ch, ".log"); exists(live) {
		r.compress(live, live+".gz")
		r.remove(live)
	}
}

func (r *recorder) tmp(name string) string { return filepath.Join(r.dir, tmpName, name) }

// cut ends a live log file of C3.
func (r *recorder) cut(ch gpuflog.Channel) {
	live := r.tmp(ch.String() + ".log")
	if !exists(live) {
		return
	}
	r.n[ch]++
	r.rename(live, r.tmp(fmt.Sprintf("%s.%d.log", ch, r.n[ch])))
	r.queue = append(r.queue, staged{ch: ch, n: r.n[ch]})
}

// work takes one step in publishing the oldest cut log file; false if there is none.
func (r *recorder) work() bool {
	if len(r.queue) == 0 {
		return false
	}
	q := &r.queue[0]
	raw := r.tmp(fmt.Sprintf("%s.%d.log", q.ch, q.n))
	switch q.stage {
	case 0:
		r.compress(raw, raw+".gz.part")
	case 1:
		r.rename(raw+".gz.part", raw+".gz")
	case 2:
		r.remove(raw)
	case 3:
		r.step("sidecar")
		write(r.t, filepath.Join(r.dir, fmt.Sprintf(".gpufl-window.%s.%d.json", q.ch, q.n)), "{}")
	case 4:
		r.rename(raw+".gz", filepath.Join(r.dir, filepath.Base(raw)+".gz"))
		r.queue = r.queue[1:]
		return true
	}
	q.stage++
	return true
}

// closeFiles is the clean close of C3.
func (r *recorder) closeFiles() {
	for ch := range gpuflog.NumChannels {
		r.cut(ch)
	}
	for r.work() {
	}
	r.remove(filepath.Join(r.dir, tmpName))
}
