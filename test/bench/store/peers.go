// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/duckstore"
	"github.com/gpuflight/gpuflight/internal/store/rows"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
	"github.com/gpuflight/gpuflight/semconv"
)

// The questions that all schemas answer.
var questions = [...]string{"timeline, 100 %", "kernels by name, p50, p99", "scope tree", "session list", "span by id and time"}

// question has what the statements of a peer need.
type question struct {
	from, to int64 // of the session
	last     store.Op
}

// peer stores spans with another schema.
type peer interface {
	// write stores spans.
	write(ctx context.Context, td ptrace.Traces) error
	// merge ends the load.
	merge(ctx context.Context) error
	// fresh empties the caches of answers.
	fresh(ctx context.Context) error
	// ask runs a question and returns the number of rows of the answer.
	ask(ctx context.Context, question string, q question) (rows int, err error)
	// usage returns the processor time and the bytes on disk so far.
	usage(ctx context.Context) (processor time.Duration, bytes int64, err error)
	close() error
}

// column is the measurements of one schema.
type column struct {
	name           string
	load, cpu      time.Duration
	bytes          int64
	times          *times
	spans, kernels int64
}

// comparePeers loads the same spans into our store and two other schemas and asks the same questions.
func comparePeers(work, launcher string, kernels int64) error {
	ctx := context.Background()
	if _, err := os.Stat(launcher); err != nil {
		return fmt.Errorf("%w (make .tools/chdb/chdb)", err)
	}
	var columns []*column
	for _, p := range []struct {
		name string
		open func(dir string) (peer, error)
	}{
		{"our store", openOurs},
		{"contrib's ClickHouse schema", func(dir string) (peer, error) { return openContrib(ctx, launcher, dir) }},
		{"otel-desktop-viewer's schema", openDesktop},
	} {
		dir := filepath.Join(work, fmt.Sprint("peer", len(columns)))
		c, err := measure(ctx, p.name, kernels, func() (peer, error) { return p.open(dir) })
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		columns = append(columns, c)
	}
	fmt.Printf("The same %d kernels in %d spans\n\n", columns[0].kernels, columns[0].spans)
	line := func(name string, of func(*column) string) {
		fmt.Printf("| %s |", name)
		for _, c := range columns {
			fmt.Printf(" %s |", of(c))
		}
		fmt.Println()
	}
	line("", func(c *column) string { return c.name })
	fmt.Println("|---" + strings.Repeat("|--:", len(columns)) + "|")
	line("spans/s per core", func(c *column) string { return fmt.Sprintf("%.0f", float64(c.spans)/c.cpu.Seconds()) })
	line("spans/s, wall", func(c *column) string { return fmt.Sprintf("%.0f", float64(c.spans)/c.load.Seconds()) })
	line("bytes a span", func(c *column) string { return fmt.Sprintf("%.1f", float64(c.bytes)/float64(c.spans)) })
	for _, q := range questions {
		line(q+", ms p50/p95", func(c *column) string {
			p50, p95 := c.times.percentiles(q)
			return p50 + "/" + p95
		})
	}
	return nil
}

func measure(ctx context.Context, name string, kernels int64, open func() (peer, error)) (c *column, err error) {
	p, err := open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	c = &column{name: name, times: newTimes()}
	g := storetest.NewTraining(0)
	var q question
	for c.kernels < kernels {
		b := g.Batch(batchSteps)
		td, err := spansOf(b)
		if err != nil {
			return nil, err
		}
		runtime.GC() // of the generator
		before, _, err := p.usage(ctx)
		begin := time.Now()
		if err == nil {
			err = p.write(ctx, td)
		}
		if err != nil {
			return nil, err
		}
		c.load += time.Since(begin)
		after, _, err := p.usage(ctx)
		if err != nil {
			return nil, err
		}
		c.cpu += after - before
		c.kernels += int64(len(b.Ops))
		c.spans += int64(len(b.Ops) + len(b.Spans))
		q.last = b.Ops[7]
		for i := range b.Ops {
			if q.from == 0 || b.Ops[i].StartNs < q.from {
				q.from = b.Ops[i].StartNs
			}
			q.to = max(q.to, b.Ops[i].EndNs)
		}
	}
	if err := p.merge(ctx); err != nil {
		return nil, err
	}
	if _, c.bytes, err = p.usage(ctx); err != nil {
		return nil, err
	}
	want := map[string]int{"kernels by name, p50, p99": 50, "session list": 1, "span by id and time": 1}
	for range rounds {
		if err := p.fresh(ctx); err != nil {
			return nil, err
		}
		for _, name := range questions {
			begin := time.Now()
			n, err := p.ask(ctx, name, q)
			c.times.add(name, time.Since(begin))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if w := want[name]; n == 0 || w != 0 && n != w || name == "scope tree" && n < 40 {
				return nil, fmt.Errorf("%s: %d rows", name, n)
			}
		}
	}
	return c, nil
}

// duck is our store.
type duck struct {
	store.Store
	dir     string
	decoder rows.Decoder
}

func openOurs(dir string) (peer, error) {
	s, err := duckstore.Open(context.Background(), duckstore.Config{Directory: dir})
	return &duck{Store: s, dir: dir}, err
}

func (d *duck) fresh(ctx context.Context) (err error) {
	if err = d.Close(ctx); err != nil {
		return err
	}
	if d.Store, err = duckstore.Open(ctx, duckstore.Config{Directory: d.dir}); err == nil {
		_, err = d.Lanes(ctx, "", session) // opens the files
	}
	return err
}

func (d *duck) close() error { return d.Close(context.Background()) }

func (d *duck) write(ctx context.Context, td ptrace.Traces) error {
	_, err := d.Write(ctx, d.decoder.Traces("", td))
	return err
}

func (d *duck) merge(ctx context.Context) error { return d.Seal(ctx, "", session) }

func (d *duck) usage(ctx context.Context) (time.Duration, int64, error) {
	size, err := sizeOf(d.dir)
	return processorTime(), size, err
}

func (d *duck) ask(ctx context.Context, name string, q question) (int, error) {
	switch name {
	case "timeline, 100 %":
		a, err := d.Timeline(ctx, store.TimelineQuery{Session: session, Bins: 2000})
		return len(a.Bins), err
	case "kernels by name, p50, p99":
		list, err := d.Kernels(ctx, store.KernelQuery{Session: session})
		return len(list), err
	case "scope tree":
		nodes, err := d.Scopes(ctx, "", session)
		return len(nodes), err
	case "session list":
		list, err := d.Sessions(ctx, store.SessionQuery{})
		return len(list), err
	}
	_, _, err := d.Span(ctx, "", session, q.last.Span, q.last.StartNs)
	return 1, err
}

// sizeOf returns the size of all files below a folder.
func sizeOf(dir string) (n int64, err error) {
	err = filepath.Walk(dir, func(_ string, fi os.FileInfo, err error) error {
		if err == nil && fi.Mode().IsRegular() {
			n += fi.Size()
		}
		return err
	})
	return n, err
}

// scopePath is the attribute that the scope tree of the other schemas is made of.
const scopePath = semconv.CUDAScopePath
