// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"cmp"
	"context"
	"maps"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpuflight/gpuflight/internal/store"
)

func same(_ testing.TB, s store.Store) store.Store { return s }

func TestMemory_Contract(t *testing.T) {
	Run(t, Setup{
		Open:             func(testing.TB) store.Store { return NewMemory() },
		Reopen:           same,
		CountsDuplicates: true,
	})
}

// mutant is a Memory with a defect.
type mutant struct {
	*Memory
	// fails is the scenario that finds the defect; "" means Redelivered.
	fails string
	// in changes what is written, out a pointer to an answer. Each may be nil.
	in  func(*mutant, []*store.Batch) []*store.Batch
	out func(answer any)
	// Calls that a mutant replaces. Each may be nil.
	retain func(context.Context, store.Retention) ([]store.Deleted, error)
	// Additional effects of calls. Each may be nil.
	seal, remove func(m *mutant, project, session string)
	reopen       func(m *mutant)

	ctx  bool // ignores contexts
	keep bool // ignores deletions
}

func answer[T any](m *mutant, v T, err error) (T, error) {
	if m.out != nil && err == nil {
		m.out(&v)
	}
	return v, err
}

func (m *mutant) context(ctx context.Context) context.Context {
	if m.ctx {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

func (m *mutant) Write(ctx context.Context, b []*store.Batch) (store.Result, error) {
	if m.in != nil {
		b = m.in(m, clone(b))
	}
	r, err := m.Memory.Write(m.context(ctx), b)
	return answer(m, r, err)
}

func (m *mutant) Sessions(ctx context.Context, q store.SessionQuery) ([]store.SessionInfo, error) {
	v, err := m.Memory.Sessions(ctx, q)
	return answer(m, v, err)
}

func (m *mutant) Session(ctx context.Context, project, session string) (store.SessionInfo, error) {
	v, err := m.Memory.Session(ctx, project, session)
	return answer(m, v, err)
}

func (m *mutant) Lanes(ctx context.Context, project, session string) ([]store.LaneInfo, error) {
	v, err := m.Memory.Lanes(ctx, project, session)
	return answer(m, v, err)
}

func (m *mutant) Timeline(ctx context.Context, q store.TimelineQuery) (store.Timeline, error) {
	v, err := m.Memory.Timeline(m.context(ctx), q)
	return answer(m, v, err)
}

func (m *mutant) Ops(ctx context.Context, q store.OpQuery) (store.OpPage, error) {
	v, err := m.Memory.Ops(ctx, q)
	return answer(m, v, err)
}

func (m *mutant) Kernels(ctx context.Context, q store.KernelQuery) ([]store.KernelStat, error) {
	v, err := m.Memory.Kernels(ctx, q)
	return answer(m, v, err)
}

func (m *mutant) Scopes(ctx context.Context, project, session string) ([]store.ScopeNode, error) {
	v, err := m.Memory.Scopes(ctx, project, session)
	return answer(m, v, err)
}

func (m *mutant) Instances(ctx context.Context, q store.InstanceQuery) ([]store.Instance, error) {
	v, err := m.Memory.Instances(ctx, q)
	return answer(m, v, err)
}

func (m *mutant) Span(ctx context.Context, project, session string, id store.SpanID, at int64) (*store.OpRow, *store.SpanRow, error) {
	o, s, err := m.Memory.Span(ctx, project, session, id, at)
	if m.out != nil && err == nil {
		m.out(&o)
		m.out(&s)
	}
	return o, s, err
}

func (m *mutant) Spans(ctx context.Context, q store.SpanQuery) ([]store.SpanRow, error) {
	v, err := m.Memory.Spans(ctx, q)
	return answer(m, v, err)
}

func (m *mutant) Gaps(ctx context.Context, q store.GapQuery) (store.Gaps, error) {
	v, err := m.Memory.Gaps(ctx, q)
	return answer(m, v, err)
}

func (m *mutant) Samples(ctx context.Context, q store.SampleQuery) ([]store.SampleSum, error) {
	v, err := m.Memory.Samples(ctx, q)
	return answer(m, v, err)
}

func (m *mutant) Logs(ctx context.Context, q store.LogQuery) ([]store.LogRow, error) {
	v, err := m.Memory.Logs(ctx, q)
	return answer(m, v, err)
}

func (m *mutant) Series(ctx context.Context, q store.SeriesQuery) ([]store.SeriesInfo, error) {
	v, err := m.Memory.Series(ctx, q)
	return answer(m, v, err)
}

func (m *mutant) Points(ctx context.Context, q store.PointQuery) ([]store.PointRow, error) {
	v, err := m.Memory.Points(ctx, q)
	return answer(m, v, err)
}

func (m *mutant) Trace(ctx context.Context, project string, trace store.TraceID) ([]store.TraceRef, error) {
	v, err := m.Memory.Trace(ctx, project, trace)
	return answer(m, v, err)
}

func (m *mutant) Retain(ctx context.Context, l store.Retention) ([]store.Deleted, error) {
	if m.retain != nil {
		return m.retain(ctx, l)
	}
	return m.Memory.Retain(ctx, l)
}

func (m *mutant) Seal(ctx context.Context, project, session string) error {
	if m.seal != nil {
		m.seal(m, project, session)
	}
	return m.Memory.Seal(ctx, project, session)
}

func (m *mutant) Delete(ctx context.Context, project, session string) error {
	if m.remove != nil {
		m.remove(m, project, session)
	}
	if m.keep {
		return nil
	}
	return m.Memory.Delete(ctx, project, session)
}

// on changes one type of answer.
func on[T any](f func(v *T)) func(any) {
	return func(a any) {
		if v, ok := a.(*T); ok {
			f(v)
		}
	}
}

// last changes the last entry of an answer.
func last[T any](f func(v *T)) func(any) {
	return on(func(v *[]T) {
		if n := len(*v); n > 0 {
			f(&(*v)[n-1])
		}
	})
}

// eachBatch changes each batch before it is written.
func eachBatch(f func(m *mutant, b *store.Batch)) func(*mutant, []*store.Batch) []*store.Batch {
	return func(m *mutant, batches []*store.Batch) []*store.Batch {
		for _, b := range batches {
			f(m, b)
		}
		return batches
	}
}

// with calls f with a session, if it exists.
func (m *mutant) with(project, id string, f func(s *session)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sessions[sessionID{project, id}]; s != nil {
		f(s)
	}
}

var mutants = map[string]mutant{
	"one operation lost": {in: eachBatch(func(_ *mutant, b *store.Batch) {
		if len(b.Ops) > 20 {
			b.Ops = append(b.Ops[1:], b.Ops[1])
		}
	})},
	"one byte of events lost": {in: eachBatch(func(_ *mutant, b *store.Batch) {
		for i := range b.Spans {
			if e := b.Spans[i].Events; len(e) > 0 {
				b.Spans[i].Events = e[:len(e)-1]
			}
		}
	})},
	"duplicate UID stored twice": {in: eachBatch(func(m *mutant, b *store.Batch) {
		m.with(b.Project, b.Session, func(s *session) {
			for i := range b.Logs {
				if s.logs[b.Logs[i].UID] != nil {
					b.Logs[i].UID[0] ^= 1
				}
			}
		})
	})},
	"earlier end replaces a span": {in: eachBatch(func(m *mutant, b *store.Batch) {
		m.with(b.Project, b.Session, func(s *session) {
			for _, p := range b.Spans {
				delete(s.spans, rowID{p.StartNs, p.Span})
			}
		})
	})},
	"later end ignored": {fails: "Disorder", in: eachBatch(func(m *mutant, b *store.Batch) {
		m.with(b.Project, b.Session, func(s *session) {
			for i, p := range b.Spans {
				if old := s.spans[rowID{p.StartNs, p.Span}]; old != nil {
					b.Spans[i].EndNs = old.EndNs
				}
			}
		})
	})},
	"first point wins": {fails: "Points", in: eachBatch(func(m *mutant, b *store.Batch) {
		m.with(b.Project, b.Session, func(s *session) {
			for i, p := range b.Points {
				if series, ok := entry(b.Series, p.Series); ok {
					if old := s.points[pointID{series.Key, p.TimeNs}]; old != nil {
						n := p.Series
						b.Points[i] = old.Point
						b.Points[i].Series = n
					}
				}
			}
		})
	})},
	"unknown integer stored as 0": {in: eachBatch(func(_ *mutant, b *store.Batch) {
		for i := range b.Shapes {
			b.Shapes[i].Registers.OK = true
		}
	})},
	"integers of 53 bits": {fails: "Hostile", in: eachBatch(func(_ *mutant, b *store.Batch) {
		for i := range b.Ops {
			b.Ops[i].Bytes.V = int64(float64(b.Ops[i].Bytes.V))
		}
	})},
	"negative duration cut": {fails: "Hostile", in: eachBatch(func(_ *mutant, b *store.Batch) {
		for i, o := range b.Ops {
			if valid(o.StartNs, o.EndNs) {
				b.Ops[i].EndNs = max(o.StartNs, o.EndNs)
			}
		}
	})},
	"NUL in strings lost": {fails: "Hostile", in: eachBatch(func(_ *mutant, b *store.Batch) {
		for i := range b.Spans {
			if b.Spans[i].Name == "\x00" {
				b.Spans[i].Name = ""
			}
		}
	})},
	"rejected rows not counted":     {fails: "Hostile", out: on(func(v *store.Result) { v.Rejected = 0 })},
	"duplicates counted as written": {out: on(func(v *store.Result) { v.Written, v.Duplicates = v.Written+v.Duplicates, 0 })},
	"bin index":                     {out: lastBin(func(b *store.Bin) { b.Index++ })},
	"busy time of a bin":            {out: lastBin(func(b *store.Bin) { b.BusyNs-- })},
	"start of the top of a bin":     {out: lastBin(func(b *store.Bin) { b.TopStart++ })},
	"shape of the top of a bin":     {out: lastBin(func(b *store.Bin) { b.TopShape++ })},
	"last bin":                      {out: on(func(v *store.Timeline) { v.Bins = v.Bins[:max(len(v.Bins)-1, 0)] })},
	"width of bins":                 {out: on(func(v *store.Timeline) { v.Width++ })},
	"more pages":                    {out: on(func(v *store.OpPage) { v.More = len(v.Rows) > 0 })},
	"order of operations":           {out: on(func(v *store.OpPage) { slices.Reverse(v.Rows) })},
	"shapes of a page":              {out: on(func(v *store.OpPage) { v.Shapes = nil })},
	"stack of an operation": {out: on(func(v **store.OpRow) {
		if *v != nil {
			(*v).StackText = ""
		}
	})},
	"path of a span":             {out: last(func(v *store.SpanRow) { v.Path++ })},
	"last span":                  {out: on(func(v *[]store.SpanRow) { *v = (*v)[:max(len(*v)-1, 0)] })},
	"percentile":                 {out: last(func(v *store.KernelStat) { v.P99Ns = v.MaxNs })},
	"queue time of kernels":      {out: last(func(v *store.KernelStat) { v.QueueNs++ })},
	"order of kernels":           {out: on(func(v *[]store.KernelStat) { slices.Reverse(*v) })},
	"last scope":                 {out: on(func(v *[]store.ScopeNode) { *v = (*v)[:max(len(*v)-1, 0)] })},
	"wall time of a scope":       {out: last(func(v *store.ScopeNode) { v.WallNs++ })},
	"ids of paths change":        {out: on(shiftPaths())},
	"device work of an instance": {out: last(func(v *store.Instance) { v.LastNs++ })},
	"order of instances":         {out: on(func(v *[]store.Instance) { slices.Reverse(*v) })},
	"sum of gaps":                {out: on(func(v *store.Gaps) { v.SumNs-- })},
	"kernel before a gap": {out: on(func(v *store.Gaps) {
		for i := range v.Longest {
			v.Longest[i].Before++
		}
	})},
	"value of samples":     {out: last(func(v *store.SampleSum) { v.Value++ })},
	"line of samples":      {out: last(func(v *store.SampleSum) { v.Line.OK = !v.Line.OK })},
	"last log record":      {out: on(func(v *[]store.LogRow) { *v = (*v)[:max(len(*v)-1, 0)] })},
	"body of a log record": {out: last(func(v *store.LogRow) { v.Body.Kind ^= 1 })},
	"count of a series":    {out: last(func(v *store.SeriesInfo) { v.Count++ })},
	"origin of a series":   {out: last(func(v *store.SeriesInfo) { v.OriginRef = &store.Origin{} })},
	"last point":           {out: on(func(v *[]store.PointRow) { *v = (*v)[:max(len(*v)-1, 0)] })},
	"negative zero": {fails: "Hostile", out: on(func(v *[]store.PointRow) {
		for i := range *v {
			(*v)[i].Double += 0
		}
	})},
	"end of a trace":        {out: last(func(v *store.TraceRef) { v.LastNs++ })},
	"order of sessions":     {out: on(func(v *[]store.SessionInfo) { slices.Reverse(*v) })},
	"resource of a session": {out: on(func(v *store.SessionInfo) { v.Resource = nil })},
	"kinds of operations":   {out: on(func(v *store.SessionInfo) { v.Operations[99] = 0 })},
	"end of a lane":         {out: last(func(v *store.LaneInfo) { v.LastNs++ })},
	"sealed mark":           {fails: "Sealed", out: on(func(v *store.SessionInfo) { v.Sealed = true })},
	"contexts":              {fails: "Canceled", ctx: true},
	"retention":             {fails: "Retain", retain: func(context.Context, store.Retention) ([]store.Deleted, error) { return nil, nil }},
	"sealing loses a row": {fails: "Sealed", seal: func(m *mutant, project, id string) {
		m.with(project, id, func(s *session) { maps.DeleteFunc(s.points, func(p pointID, _ *point) bool { return p.time%97 == 0 }) })
	}},
	"sealing changes ids": {fails: "Sealed", seal: func(m *mutant, project, id string) {
		m.with(project, id, func(s *session) {
			for k := range s.lanes {
				s.lanes[k] += 7
			}
			for _, o := range s.ops {
				o.Lane += 7
			}
		})
	}},
	"deletion of all projects": {fails: "Projects", remove: func(m *mutant, _, name string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		maps.DeleteFunc(m.sessions, func(id sessionID, _ *session) bool { return id.session == name && id.project == "project-2" })
	}},
	"deletion": {fails: "Delete", remove: func(*mutant, string, string) {}, keep: true},
	"reopening loses a row": {fails: "Reopened", reopen: func(m *mutant) {
		m.with("", "session-00", func(s *session) {
			maps.DeleteFunc(s.logs, func(u store.UID, _ *store.LogRow) bool { return u[0]%8 == 0 })
		})
	}},
}

// lastBin changes the last bin of a timeline.
func lastBin(f func(*store.Bin)) func(any) {
	return on(func(v *store.Timeline) {
		if n := len(v.Bins); n > 0 {
			f(&v.Bins[n-1])
		}
	})
}

// shiftPaths gives paths other ids in each answer.
func shiftPaths() func(*[]store.ScopeNode) {
	n := atomic.Uint32{}
	return func(v *[]store.ScopeNode) {
		shift := n.Add(1)
		for i := range (*v)[1:] {
			node := &(*v)[i+1]
			node.Path += shift
			if node.Parent != 0 {
				node.Parent += shift
			}
		}
	}
}

func TestRun_Mutants(t *testing.T) {
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.True(t, m.found(t), "the scenario passes")
		})
	}
}

// found reports whether the scenario of a mutant fails.
func (m mutant) found(t *testing.T) bool {
	setup := Setup{
		Open: func(testing.TB) store.Store {
			c := m
			c.Memory = NewMemory()
			return &c
		},
		Reopen: func(_ testing.TB, s store.Store) store.Store {
			if c := s.(*mutant); c.reopen != nil {
				c.reopen(c)
			}
			return s
		},
		CountsDuplicates: true,
	}
	name := cmp.Or(m.fails, "Redelivered")
	i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		scenarios[i].run(newPair(r, &setup))
	}()
	<-done
	return r.failed
}

// recorder records a failure and does not fail the test.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Errorf(string, ...any) { r.failed = true }

func (r *recorder) Fatalf(string, ...any) { r.FailNow() }

func (r *recorder) FailNow() {
	r.failed = true
	runtime.Goexit()
}
