// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

// scripts are sessions that every point of is tried as the moment of a reading or a restart.
var scripts = map[string]func(r *recorder){
	"A2 rotates three times and keeps two files": func(r *recorder) {
		r.base = "demo"
		for i := range 4 {
			r.put(r.name(gpuflog.Device, ".log"), gpuflog.Device, r.text(50)+r.text(2000))
			l := r.text(3000 * (i % 2))
			r.put(r.name(gpuflog.Device, ".log"), gpuflog.Device, l[:10])
			r.put(r.name(gpuflog.Device, ".log"), gpuflog.Device, l[10:])
			if i < 3 {
				r.rotateShift(gpuflog.Device, 100)
			}
		}
	},
	"C1 rotates and closes": func(r *recorder) {
		for i := range 3 {
			r.put(r.name(gpuflog.Scope, ".log"), gpuflog.Scope, r.text(100))
			r.put(r.name(gpuflog.Device, ".log"), gpuflog.Device, r.text(10)+r.text(5000))
			if i < 2 {
				r.rotateShift(gpuflog.Device, 100)
			}
		}
		r.closeC1(gpuflog.Device)
		r.closeC1(gpuflog.Scope)
	},
	"C3 cuts, publishes behind and closes": func(r *recorder) {
		must(r.t, os.MkdirAll(filepath.Join(r.dir, tmpName), 0o755))
		write(r.t, filepath.Join(r.dir, lockName), "")
		for i := range 4 {
			r.put(r.tmp("device.log"), gpuflog.Device, r.text(10))
			r.put(r.tmp("device.log"), gpuflog.Device, r.text(3000*(i%3)))
			r.cut(gpuflog.Device)
			if i%2 == 1 {
				for range 7 {
					r.work()
				}
			}
		}
		r.put(r.tmp("device.log"), gpuflog.Device, r.text(10))
		r.put(r.tmp("sass.log"), gpuflog.Sass, r.text(10))
		r.closeFiles()
	},
}

func groupKeyOf(r *recorder) string { return groupKey(r.dir, r.base) }

// playScript runs a script, calling act at each step with the step's number; it returns how many
// there were.
func playScript(t *testing.T, script func(*recorder), cfg func(*Config), act func(c *consumer, i int)) (int, *consumer) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "s")
	must(t, os.Mkdir(dir, 0o755))
	conf := Config{Include: []string{dir}, ChunkBytes: 1024}
	if cfg != nil {
		cfg(&conf)
	}
	c := newConsumer(t, conf)
	r := &recorder{t: t, dir: dir}
	i := 0
	r.step = func(string) {
		act(c, i)
		i++
	}
	script(r)
	c.settle()
	for ch := range gpuflog.NumChannels {
		c.want(groupKeyOf(r), ch, r.written[ch])
	}
	c.wantProblems()
	c.reread()
	return i, c
}

func TestRotation_ReadAtAnyMoment(t *testing.T) {
	for name, script := range scripts {
		t.Run(name, func(t *testing.T) {
			total, _ := playScript(t, script, nil, func(*consumer, int) {})
			for from := range total {
				for _, every := range []int{1, 3, 1000} {
					playScript(t, script, nil, func(c *consumer, i int) {
						if i >= from && (i-from)%every == 0 {
							c.poll(10 * time.Millisecond)
						}
					})
				}
			}
		})
	}
}

func TestRotation_RestartAtAnyMoment(t *testing.T) {
	for name, script := range scripts {
		t.Run(name, func(t *testing.T) {
			total, _ := playScript(t, script, nil, func(*consumer, int) {})
			for at := range total {
				for _, gap := range []int{0, 1, 5, 1000} {
					playScript(t, script, nil, func(c *consumer, i int) {
						if i <= at || i > at+gap {
							c.poll(10 * time.Millisecond)
						}
						if i == at {
							c.restart()
						}
					})
				}
			}
		})
	}
}

func TestRotation_RestartBetweenChunks(t *testing.T) {
	for name, script := range scripts {
		t.Run(name, func(t *testing.T) {
			playScript(t, script, func(c *Config) { c.MaxOpenFiles = 1 }, func(c *consumer, _ int) {
				c.scan(10 * time.Millisecond)
				for _, g := range slices.Clone(c.set.Groups()) {
					for _, s := range g.Streams() {
						c.next(s)
						c.next(s)
					}
				}
				c.restart()
			})
		})
	}
}

// TestRotation_RandomSchedules is the property: whatever the order of writing, rotating,
// publishing, reading and restarting, what is delivered is what was written.
func TestRotation_RandomSchedules(t *testing.T) {
	rounds := 20
	if os.Getenv("GPUFLIGHT_SOAK") != "" {
		rounds = 50
	}
	for _, layout := range []string{"a2", "c1", "c3"} {
		for seed := range rounds {
			t.Run(fmt.Sprintf("%s/%d", layout, seed), func(t *testing.T) { randomSchedule(t, layout, uint64(seed)) })
		}
	}
}

// TestRotation_FilesDeletedUnread: the recorder keeps few files and does not wait. What is left
// comes in order and once.
func TestRotation_FilesDeletedUnread(t *testing.T) {
	for seed := range uint64(15) {
		rnd := rand.New(rand.NewPCG(seed, 11))
		c, dir := one(t, Config{ChunkBytes: 256, MaxOpenFiles: 1 + int(seed)%3})
		r := &recorder{t: t, dir: dir, base: "demo", step: func(string) {
			if rnd.IntN(12) == 0 {
				c.scan(tick)
				for _, g := range c.set.Groups() {
					for range rnd.IntN(6) {
						c.next(g.Stream(gpuflog.Device))
					}
				}
			}
			if rnd.IntN(60) == 0 {
				c.restart()
			}
		}}
		for range 60 {
			for range rnd.IntN(4) {
				r.put(r.name(gpuflog.Device, ".log"), gpuflog.Device, r.text(rnd.IntN(600)))
			}
			r.rotateShift(gpuflog.Device, 3)
		}
		c.settle()
		last := 0
		for l := range strings.Lines(string(c.got[flatKey(dir)][gpuflog.Device])) {
			var n int
			i := strings.LastIndexByte(l, ':')
			if _, err := fmt.Sscanf(l[i+1:], "%d}", &n); err != nil || n <= last {
				t.Fatalf("seed %d: line %.60q after number %d (%v)", seed, l, last, err)
			}
			last = n
		}
		for _, p := range c.problems {
			// After a restart a new live file with the old one's inode looks like the old one,
			// shrunk.
			if p.Reason != FileVanished && p.Reason != FileReplaced && p.Reason != FileShrunk {
				t.Fatalf("seed %d: %+v", seed, p)
			}
		}
	}
}

func randomSchedule(t *testing.T, layout string, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 7))
	dir := filepath.Join(t.TempDir(), "s")
	must(t, os.Mkdir(dir, 0o755))
	c := newConsumer(t, Config{
		Include: []string{dir}, ChunkBytes: 1 << (6 + rnd.IntN(8)), MaxOpenFiles: 1 + rnd.IntN(8),
	})
	reader, restarts := rnd.IntN(3), rnd.IntN(3)
	r := &recorder{t: t, dir: dir}
	r.step = func(string) {
		if rnd.IntN(4) < reader {
			c.scan(time.Duration(rnd.IntN(300)) * time.Millisecond)
			for _, g := range c.set.Groups() {
				for _, s := range g.Streams() {
					for range rnd.IntN(20) {
						if !c.next(s) {
							break
						}
					}
				}
			}
		}
		switch k := rnd.IntN(60); {
		case k < restarts:
			c.restart()
			c.checkpoint()
		case k < 2*restarts:
			c.crash()
		case k < 6*restarts:
			c.checkpoint()
		}
	}
	live := func(ch gpuflog.Channel) string { return r.name(ch, ".log") }
	rotate := func(ch gpuflog.Channel) {
		r.rotateShift(ch, 100)
		r.put(live(ch), ch, r.text(rnd.IntN(500))) // a rotation makes room for a line
	}
	channels := 3
	switch layout {
	case "a2":
		r.base = "demo"
	case "c3":
		channels = 4
		must(t, os.Mkdir(filepath.Join(dir, tmpName), 0o755))
		write(t, filepath.Join(dir, lockName), "")
		live = func(ch gpuflog.Channel) string { return r.tmp(ch.String() + ".log") }
		rotate = r.cut
	}
	if layout != "c3" {
		// The recorder opens all its channels at the start.
		for ch := range gpuflog.Channel(channels) {
			r.put(live(ch), ch, r.text(0))
		}
	}
	for range 60 {
		ch := gpuflog.Channel(rnd.IntN(channels))
		switch k := rnd.IntN(10); {
		case k < 6:
			lines := ""
			for range 1 + rnd.IntN(4) {
				lines += r.text(rnd.IntN(1 + rnd.IntN(3000)))
			}
			// A stdio buffer is flushed anywhere.
			for lines != "" {
				n := 1 + rnd.IntN(len(lines))
				r.put(live(ch), ch, lines[:n])
				lines = lines[n:]
			}
		case k < 8:
			rotate(ch)
		default:
			for range rnd.IntN(8) {
				r.work()
			}
		}
	}
	switch {
	case layout == "c1" && rnd.IntN(2) == 0:
		for ch := range gpuflog.Channel(channels) {
			r.closeC1(ch)
		}
	case layout == "c3" && rnd.IntN(2) == 0:
		r.closeFiles()
	}
	c.settle()
	for ch := range gpuflog.Channel(channels) {
		c.want(groupKeyOf(r), ch, r.written[ch])
	}
	c.wantProblems()
	c.restart()
	c.settle()
	for ch := range gpuflog.Channel(channels) {
		c.want(groupKeyOf(r), ch, r.written[ch])
	}
	c.reread()
}
