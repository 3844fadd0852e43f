// SPDX-License-Identifier: Apache-2.0

//go:build linux

package growth_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
)

// grower appends a session to a watched folder. A writer creates the session in another folder step
// by step. grower copies the new bytes of each step in small pieces and records the times.
type grower struct {
	layout  gpuflgen.Layout
	writer  *gpuflgen.Writer
	staging string
	watched string
	random  *rand.Rand
	journal journal
	// channels has the order of names; each has its own file.
	channels []*channel
	err      error
}

// channel is one file that grows.
type channel struct {
	name string
	out  *os.File
	// pending holds bytes that are not copied yet; line is the start of an incomplete line.
	pending, line []byte
	taken         int64
}

func newGrower(t *testing.T, layout gpuflgen.Layout, watched string, seed uint64) *grower {
	t.Helper()
	g := &grower{
		layout: layout, staging: t.TempDir(), watched: watched,
		random: rand.New(rand.NewPCG(seed, 1)), journal: journal{},
	}
	var err error
	g.writer, err = gpuflgen.NewWriter(gpuflgen.Config{
		Dir: g.staging, Layout: layout, App: "growth-" + string(layout), Seed: seed,
		Epochs: 1 << 20, StepsPerEpoch: 20, Layers: 1, StackBytes: 200,
		StepInterval: stepEvery, RotateBytes: -1,
	})
	require.NoError(t, err)
	if layout == gpuflgen.C3 {
		require.NoError(t, os.MkdirAll(filepath.Join(watched, g.writer.Session(), ".tmp"), 0o755))
	}
	for _, name := range []string{"device", "scope", "system", "sass"} {
		if layout == gpuflgen.A2 && name == "sass" {
			continue
		}
		out, err := os.OpenFile(g.live(watched, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		require.NoError(t, err)
		t.Cleanup(func() { _ = out.Close() })
		g.channels = append(g.channels, &channel{name: name, out: out})
	}
	return g
}

// live is the path of a channel's live file below root.
func (g *grower) live(root, channel string) string {
	if g.layout == gpuflgen.A2 {
		return filepath.Join(root, fmt.Sprintf("growth-%s.%s.log", g.layout, channel))
	}
	return filepath.Join(root, g.writer.Session(), ".tmp", channel+".log")
}

// grow appends for d and then ends the session as the recorder does.
func (g *grower) grow(d time.Duration) {
	g.err = func() error {
		for end, next := time.Now().Add(d), time.Now(); time.Now().Before(end); {
			next = next.Add(stepEvery)
			if _, err := g.writer.Step(context.Background()); err != nil {
				return err
			}
			if err := g.writer.Flush(); err != nil {
				return err
			}
			for _, c := range g.channels {
				if err := g.take(c, g.live(g.staging, c.name)); err != nil {
					return err
				}
			}
			if err := g.move(next); err != nil {
				return err
			}
		}
		if err := g.writer.Close(); err != nil {
			return err
		}
		for _, c := range g.channels {
			path := g.live(g.staging, c.name)
			if g.layout == gpuflgen.C3 {
				path = filepath.Join(g.staging, g.writer.Session(), c.name+".1.log.gz")
			}
			if err := g.take(c, path); err != nil {
				return err
			}
		}
		if err := g.move(time.Now().Add(stepEvery)); err != nil {
			return err
		}
		return g.publish()
	}()
}

// take reads new data of the staged file.
func (g *grower) take(c *channel, path string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a channel without records has no file
	}
	if err != nil {
		return err
	}
	if filepath.Ext(path) == ".gz" {
		in, err := gzip.NewReader(bytes.NewReader(text))
		if err != nil {
			return err
		}
		if text, err = io.ReadAll(in); err != nil {
			return err
		}
	}
	c.pending = append(c.pending, text[c.taken:]...)
	c.taken = int64(len(text))
	return nil
}

// move appends all pending bytes in pieces until the time next, with the channels in random order.
// Most pieces end within a line. The rest of the line follows with the channel's next piece.
func (g *grower) move(next time.Time) error {
	total := 0
	for _, c := range g.channels {
		total += len(c.pending)
	}
	begin, moved, whole := time.Now(), 0, total
	for total > 0 {
		c := g.channels[g.random.IntN(len(g.channels))]
		n := min(1+g.random.IntN(4000), len(c.pending))
		if g.random.IntN(4) == 0 {
			n = min(n, 1+g.random.IntN(20))
		}
		if n == 0 {
			continue
		}
		if err := g.write(c, c.pending[:n]); err != nil {
			return err
		}
		c.pending = c.pending[n:]
		total -= n
		moved += n
		due := begin.Add(next.Sub(begin) * time.Duration(moved) / time.Duration(whole))
		if wait := time.Until(due); wait > time.Millisecond {
			time.Sleep(wait)
		}
	}
	time.Sleep(time.Until(next))
	return nil
}

// write appends one piece and records the lines that it completes in the journal.
func (g *grower) write(c *channel, piece []byte) error {
	before := time.Now()
	if _, err := c.out.Write(piece); err != nil {
		return err
	}
	after := time.Now()
	c.line = append(c.line, piece...)
	for {
		i := bytes.IndexByte(c.line, '\n')
		if i < 0 {
			return nil
		}
		if err := g.journal.line(c.line[:i], before, after); err != nil {
			return err
		}
		c.line = c.line[i+1:]
	}
}

// publish ends a C3 session: each live file becomes a compressed file, and .tmp is removed. The
// same data under a new name must not be read again.
func (g *grower) publish() error {
	if g.layout != gpuflgen.C3 {
		return nil
	}
	dir := filepath.Join(g.watched, g.writer.Session())
	for _, c := range g.channels {
		live := g.live(g.watched, c.name)
		text, err := os.ReadFile(live)
		if err != nil {
			return err
		}
		if len(text) > 0 {
			staged := filepath.Join(dir, ".tmp", c.name+".1.log.gz")
			var packed bytes.Buffer
			out := gzip.NewWriter(&packed)
			if _, err := out.Write(text); err != nil {
				return err
			}
			if err := out.Close(); err != nil {
				return err
			}
			if err := os.WriteFile(staged, packed.Bytes(), 0o644); err != nil {
				return err
			}
			if err := os.Rename(staged, filepath.Join(dir, c.name+".1.log.gz")); err != nil {
				return err
			}
		}
		if err := os.Remove(live); err != nil {
			return err
		}
	}
	return os.Remove(filepath.Join(dir, ".tmp"))
}
