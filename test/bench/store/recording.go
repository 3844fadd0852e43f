// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/rows"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
	"github.com/gpuflight/gpuflight/semconv"
)

// source has the rows of a session, in the order of time.
type source interface {
	// next returns the next rows, at least n operations.
	next(n int) []*store.Batch
}

// generated is a generated training.
type generated struct{ *storetest.Training }

func (g generated) next(n int) []*store.Batch { return []*store.Batch{g.Rows(n)} }

// repeated repeats recordings one after another, with new ids and times.
type repeated struct {
	parts []part
	now   int64 // the end of the rows so far
	count int   // of the parts so far
}

// part is the rows of a recording from its first step on, without the session's own span.
type part struct {
	batch    *store.Batch
	from, to int64 // the times of its first and after its last row
}

// newSource returns the recordings in files, or a generator if there are none. Its rows are after end.
func newSource(files []string, end int64) (source, error) {
	if len(files) == 0 {
		return generated{storetest.NewTraining(end)}, nil
	}
	r := &repeated{now: max(end, 1_710_000_000e9)}
	for _, file := range files {
		p, err := readPart(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		r.parts = append(r.parts, p)
	}
	return r, nil
}

// readPart reads a recording as `gpuflight trace` writes it.
func readPart(file string) (p part, err error) {
	all := ptrace.NewTraces()
	stats, err := otlp.ReadFile(file, otlp.Handler{Traces: func(td ptrace.Traces) {
		td.ResourceSpans().MoveAndAppendTo(all.ResourceSpans())
	}})
	if err = errors.Join(append(stats.Errors, err)...); err != nil {
		return p, err
	}
	for _, rs := range all.ResourceSpans().All() {
		rs.Resource().Attributes().PutStr(semconv.ServiceInstanceID, session)
	}
	batches := (&rows.Decoder{}).Traces("", all)
	if len(batches) != 1 {
		return p, fmt.Errorf("it has %d sessions", len(batches))
	}
	b := batches[0]
	b.Spans = slices.DeleteFunc(b.Spans, func(s store.Span) bool { return s.Operation != semconv.CUDAOperationScope })
	if len(b.Spans) == 0 {
		return p, errors.New("it has no scopes")
	}
	p = part{batch: b, from: slices.MinFunc(b.Spans, func(x, y store.Span) int { return int(x.StartNs - y.StartNs) }).StartNs}
	b.Ops = slices.DeleteFunc(b.Ops, func(o store.Op) bool { return o.StartNs < p.from })
	for i := range b.Ops {
		p.to = max(p.to, b.Ops[i].EndNs+1)
	}
	for i := range b.Spans {
		p.to = max(p.to, b.Spans[i].EndNs+1)
	}
	return p, nil
}

func (r *repeated) next(n int) (batches []*store.Batch) {
	for n > 0 {
		p := r.parts[r.count%len(r.parts)]
		b := p.repeat(r.now-p.from, r.count)
		r.now += p.to - p.from
		r.count++
		batches = append(batches, b)
		n -= len(b.Ops)
	}
	return batches
}

// repeat returns the rows after a time, with ids of their own. The numbers of steps go on.
func (p *part) repeat(after int64, count int) *store.Batch {
	b := *p.batch
	b.Ops, b.Spans, b.Places = slices.Clone(b.Ops), slices.Clone(b.Spans), slices.Clone(b.Places)
	mix := uint64(after) * 0x9e3779b97f4a7c15 // differs each time, also in another process; the factor spreads it over all bits
	id := func(id *store.SpanID) {
		if *id != 0 {
			*id ^= store.SpanID(mix)
		}
	}
	trace := func(t *store.TraceID) {
		for i := range 8 {
			t[i] ^= byte(mix >> (8 * i))
		}
	}
	step := func(name *string) {
		if text, ok := strings.CutPrefix(*name, "step "); ok {
			if n, err := strconv.Atoi(text); err == nil {
				*name = "step " + strconv.Itoa(n+count*100)
			}
		}
	}
	for i := range b.Ops {
		o := &b.Ops[i]
		id(&o.Span)
		o.StartNs, o.EndNs = o.StartNs+after, o.EndNs+after
		if o.LaunchStartNs.OK {
			o.LaunchStartNs.V += after
		}
		if o.LaunchEndNs.OK {
			o.LaunchEndNs.V += after
		}
	}
	for i := range b.Spans {
		s := &b.Spans[i]
		id(&s.Span)
		id(&s.Parent)
		trace(&s.Trace)
		step(&s.Name)
		s.StartNs, s.EndNs = s.StartNs+after, s.EndNs+after
	}
	for i := range b.Places[1:] {
		x := &b.Places[i+1]
		x.Key ^= mix
		id(&x.Parent)
		trace(&x.Trace)
		step(&x.ScopeName)
	}
	return &b
}
