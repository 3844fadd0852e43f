// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/semconv"
)

func TestNVTXRange_NestPerThread(t *testing.T) {
	f := newFixture(t, Config{})
	f.src.event(
		begin(1, 0, 10, 0, "step"), begin(2, 0, 20, 5, "load"), begin(3, 1, 10, 10, "forward"),
		endOf(3, 10, 50), endOf(2, 20, 60), endOf(1, 10, 100),
	)
	f.src.deliver(
		in(1, kernel("a", 1, 5, 10)), in(2, kernel("b", 2, 6, 10)), in(3, kernel("c", 3, 20, 200)),
	)
	f.start()
	s := f.stop()
	step, load, forward := f.sink.spanNamed(t, "step"), f.sink.spanNamed(t, "load"), f.sink.spanNamed(t, "forward")
	assert.True(t, step.ParentSpanID().IsEmpty())
	assert.True(t, load.ParentSpanID().IsEmpty())
	assert.NotEqual(t, step.TraceID(), load.TraceID(), "a trace for each top-level range")
	assert.NotEqual(t, pcommon.TraceID(f.r.SessionRef().Trace), step.TraceID())
	assert.Equal(t, step.SpanID(), forward.ParentSpanID())
	assert.Equal(t, step.TraceID(), forward.TraceID())
	assert.Equal(t, pcommon.Timestamp(base+10), forward.StartTimestamp())
	assert.Equal(t, pcommon.Timestamp(base+50), forward.EndTimestamp())
	assert.Equal(t, "nvtx", attr(forward.Attributes(), semconv.CUDAScopeSource))
	assert.Equal(t, "1", attr(forward.Attributes(), semconv.CUDAScopeDepth))
	for kernel, scope := range map[string]ptrace.Span{"a": step, "b": load, "c": forward} {
		k := f.sink.spanNamed(t, kernel)
		assert.Equal(t, scope.SpanID(), k.ParentSpanID(), kernel)
		assert.Equal(t, scope.TraceID(), k.TraceID(), kernel)
		assert.Equal(t, scope.Name(), attr(k.Attributes(), semconv.CUDAScopeName))
	}
	assert.Equal(t, uint64(4), s.Spans.Scopes)
}

// linkedTo returns the only link of a span.
func linkedTo(t *testing.T, s ptrace.Span) (pcommon.TraceID, pcommon.SpanID) {
	t.Helper()
	require.Equal(t, 1, s.Links().Len(), s.Name())
	return s.Links().At(0).TraceID(), s.Links().At(0).SpanID()
}

func TestNVTXRange_TraceOfItsOwn(t *testing.T) {
	for name, cfg := range map[string]Config{
		"without a parent": {},
		"with a parent":    {HasParent: true, ParentSampled: true, Parent: refOf(7, 8)},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, cfg)
			f.src.event(
				begin(1, 0, 1, 0, "first"), begin(3, 1, 1, 10, "inner"), endOf(3, 1, 50), endOf(1, 1, 100),
				begin(2, 0, 1, 200, "second"), endOf(2, 1, 300),
			)
			f.src.deliver(in(1, kernel("a", 1, 5, 10)), in(3, kernel("c", 3, 20, 400)), in(2, kernel("b", 2, 210, 220)), kernel("outside", 4, 500, 510))
			f.start()
			f.stop()
			session := f.sink.spanNamed(t, "app")
			traces := map[pcommon.TraceID]bool{session.TraceID(): true}
			if cfg.HasParent {
				assert.Equal(t, pcommon.TraceID{15: 7}, session.TraceID())
				assert.Equal(t, pcommon.SpanID{7: 8}, session.ParentSpanID())
			}
			for scope, kernel := range map[string]string{"first": "a", "second": "b"} {
				root, k := f.sink.spanNamed(t, scope), f.sink.spanNamed(t, kernel)
				assert.True(t, root.ParentSpanID().IsEmpty(), scope)
				assert.False(t, traces[root.TraceID()], "each instance has another trace")
				traces[root.TraceID()] = true
				trace, span := linkedTo(t, root)
				assert.Equal(t, session.TraceID(), trace)
				assert.Equal(t, session.SpanID(), span)
				assert.Equal(t, root.SpanID(), k.ParentSpanID())
				assert.Equal(t, root.TraceID(), k.TraceID())
			}
			first, inner, c := f.sink.spanNamed(t, "first"), f.sink.spanNamed(t, "inner"), f.sink.spanNamed(t, "c")
			assert.Equal(t, first.SpanID(), inner.ParentSpanID())
			assert.Equal(t, first.TraceID(), inner.TraceID())
			assert.Zero(t, inner.Links().Len())
			assert.Equal(t, inner.SpanID(), c.ParentSpanID())
			outside := f.sink.spanNamed(t, "outside")
			assert.Equal(t, session.SpanID(), outside.ParentSpanID())
			assert.Equal(t, session.TraceID(), outside.TraceID())
		})
	}
	t.Run("with a parent that is not sampled", func(t *testing.T) {
		f := newFixture(t, Config{HasParent: true, Parent: refOf(7, 8)})
		f.src.event(begin(1, 0, 1, 0, "step"), endOf(1, 1, 100))
		f.src.deliver(in(1, kernel("k", 1, 5, 10)))
		f.start()
		f.stop()
		assert.Empty(t, f.sink.spans)
	})
}

// The trace of a kernel follows from its scope, in any batch and after any end.
func TestNVTXRange_TraceAcrossBatchesAndThreads(t *testing.T) {
	for name, cfg := range map[string]Config{
		"without a parent": {},
		"with a parent":    {HasParent: true, ParentSampled: true, Parent: refOf(7, 8)},
	} {
		t.Run(name, func(t *testing.T) {
			const threads, batches = 4, 3
			f := newFixture(t, cfg)
			e := f.r.engine
			request := f.r.Begin(Scope{Ref: refOf(3, 4), Sampled: true, Name: "request"})
			f.r.learnScopes()
			for i := range uint64(threads) {
				thread := uint32(i + 1)
				e.scopes.nvtx([]cupti.ScopeEvent{
					begin(i+101, 0, thread, int64(i), fmt.Sprint("step ", i)),
					begin(i+111, i+101, thread, int64(i)+5, fmt.Sprint("inner ", i)),
				}, base)
			}
			e.scopes.nvtx([]cupti.ScopeEvent{begin(121, request, 9, 5, "of the request")}, base)
			batch := func(n int) {
				var heads []cupti.Head
				at := int64(100 * (n + 1))
				for i := range uint64(threads) {
					heads = append(heads,
						in(i+101, kernel(fmt.Sprint("step ", i, " kernel"), 1, at, 10)),
						in(i+111, copyHead("HtoD", int64(i+1), 2, at, 10)))
				}
				e.portion([]Records{&records{heads: append(heads, in(121, kernel("request kernel", 3, at, 10)))}}, 1<<20)
				traces, _, _ := e.batch.Take()
				f.sink.Traces(traces)
			}
			batch(0)
			batch(1)
			for i := range uint64(threads) {
				e.scopes.nvtx([]cupti.ScopeEvent{endOf(i+111, uint32(i+1), 310), endOf(i+101, uint32(i+1), 320)}, base)
			}
			e.scopes.nvtx([]cupti.ScopeEvent{endOf(121, 9, 320)}, base)
			batch(2) // after the ends
			f.r.End(request)
			f.start()
			f.stop()

			session := f.sink.spanNamed(t, "app")
			count := map[pcommon.SpanID]int{}
			traces := map[pcommon.SpanID]pcommon.TraceID{}
			for _, x := range append(f.sink.operation("kernel"), f.sink.operation("memcpy")...) {
				count[x.ParentSpanID()]++
				traces[x.ParentSpanID()] = x.TraceID()
			}
			for i := range threads {
				step, inner := f.sink.spanNamed(t, fmt.Sprint("step ", i)), f.sink.spanNamed(t, fmt.Sprint("inner ", i))
				want := pcommon.TraceID(gpuevent.KeyOf(testInstance).Trace(gpuevent.KindNVTX, uint64(i+101), 0))
				assert.Equal(t, want, step.TraceID())
				assert.True(t, step.ParentSpanID().IsEmpty())
				trace, span := linkedTo(t, step)
				assert.Equal(t, session.TraceID(), trace)
				assert.Equal(t, session.SpanID(), span)
				assert.Equal(t, step.SpanID(), inner.ParentSpanID())
				for _, x := range []ptrace.Span{step, inner} {
					assert.Equal(t, batches, count[x.SpanID()], x.Name())
					assert.Equal(t, want, traces[x.SpanID()], x.Name())
				}
			}
			inside := f.sink.spanNamed(t, "of the request")
			assert.Equal(t, pcommon.TraceID{15: 3}, inside.TraceID())
			assert.Equal(t, pcommon.SpanID{7: 4}, inside.ParentSpanID())
			assert.Zero(t, inside.Links().Len())
			assert.Equal(t, batches, count[inside.SpanID()])
			assert.Equal(t, pcommon.TraceID{15: 3}, traces[inside.SpanID()])
			assert.Len(t, count, 2*threads+1)
		})
	}
}

func TestNVTXRange_InScope(t *testing.T) {
	f := newFixture(t, Config{})
	id := f.r.Begin(Scope{Ref: refOf(3, 4), Sampled: true, Name: "request"})
	quiet := f.r.Begin(Scope{Ref: refOf(5, 6), Sampled: false, Name: "quiet"})
	f.src.event(begin(100, id, 1, 0, "range"), endOf(100, 1, 50), begin(101, quiet, 2, 0, "silent"), endOf(101, 2, 50))
	f.src.deliver(in(100, kernel("k", 1, 5, 10)), in(101, kernel("q", 2, 5, 10)))
	f.r.End(quiet)
	f.r.End(id)
	f.start()
	s := f.stop()
	inner, k := f.sink.spanNamed(t, "range"), f.sink.spanNamed(t, "k")
	assert.Equal(t, pcommon.TraceID{15: 3}, inner.TraceID())
	assert.Equal(t, pcommon.SpanID{7: 4}, inner.ParentSpanID())
	assert.Equal(t, pcommon.TraceID{15: 3}, k.TraceID())
	assert.Equal(t, inner.SpanID(), k.ParentSpanID())
	assert.Len(t, f.sink.operation("scope"), 1)
	assert.Equal(t, uint64(1), s.Spans.Unsampled)
}

// TestNVTXRange_TraceInParts checks a trace in parts. Each part repeats the open ranges with a
// link, and every span's parent is in its own trace, whatever has ended by then.
func TestNVTXRange_TraceInParts(t *testing.T) {
	for _, hasParent := range []bool{false, true} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("parent=%v late=%v", hasParent, late), func(t *testing.T) {
				f := newFixture(t, Config{MaxSpansPerTrace: 5, HasParent: hasParent, ParentSampled: true, Parent: refOf(7, 8)})
				f.src.event(begin(1, 0, 1, 0, "outer"), begin(2, 1, 1, 10, "inner"))
				if late {
					f.src.event(endOf(2, 1, 900), endOf(1, 1, 1000))
				}
				for i := range uint32(20) {
					f.src.deliver(in(uint64(i%2+1), kernel("k", i+1, int64(i)*40, 10)))
				}
				f.start()
				if !late {
					require.Eventually(t, func() bool { return f.r.src.Pending() == 0 }, time.Minute, time.Millisecond)
					time.Sleep(20 * time.Millisecond)
					f.src.event(endOf(2, 1, 900), endOf(1, 1, 1000))
				}
				f.stop()

				all := map[pcommon.SpanID]ptrace.Span{}
				firsts := map[string]ptrace.Span{}
				perTrace := map[pcommon.TraceID]int{}
				for _, x := range f.sink.spans {
					all[x.SpanID()] = x
					perTrace[x.TraceID()]++
					if attr(x.Attributes(), semconv.CUDAScopePart) == "" {
						firsts[x.Name()] = x
					}
				}
				require.Len(t, all, len(f.sink.spans), "every span once")
				require.Len(t, f.sink.operation("kernel"), 20)
				require.Greater(t, len(perTrace), 3)
				repeats := 0
				for _, x := range f.sink.spans {
					if p := x.ParentSpanID(); !p.IsEmpty() && p != (pcommon.SpanID{7: 8}) {
						parent, ok := all[p]
						require.True(t, ok, "%s has a parent that was never sent", x.Name())
						require.Equal(t, parent.TraceID(), x.TraceID())
					}
					if part := attr(x.Attributes(), semconv.CUDAScopePart); part != "" {
						repeats++
						require.Equal(t, 1, x.Links().Len())
						require.Equal(t, firsts[x.Name()].SpanID(), x.Links().At(0).SpanID())
						require.Equal(t, firsts[x.Name()].TraceID(), x.Links().At(0).TraceID())
					}
					if x.Name() == "k" {
						assert.Contains(t, []string{"inner", "outer"}, all[x.ParentSpanID()].Name())
					}
				}
				assert.Positive(t, repeats)
				for trace, n := range perTrace {
					assert.LessOrEqual(t, n, 5+3, trace) // the chain of ranges may pass the bound
				}
				assert.Equal(t, pcommon.Timestamp(base+1000), firsts["outer"].EndTimestamp())
			})
		}
	}
}

func TestNVTXRange_Unfinished(t *testing.T) {
	f := newFixture(t, Config{}).start()
	f.src.event(begin(1, 0, 1, 0, "open"))
	f.src.deliver(in(1, kernel("k", 1, 5, 100)))
	f.stop()
	open := f.sink.spanNamed(t, "open")
	assert.Equal(t, "true", attr(open.Attributes(), semconv.CUDAScopeUnfinished))
	assert.Equal(t, pcommon.Timestamp(base+105), open.EndTimestamp(), "the latest time in a record")
}

func TestNVTXRange_WithoutThread(t *testing.T) {
	f := newFixture(t, Config{}).start()
	f.src.event(
		cupti.ScopeEvent{What: cupti.ScopeBegin, ID: 1, TimeNs: base, Name: "epoch", Domain: "torch"},
		cupti.ScopeEvent{What: cupti.ScopeEnd, ID: 1, TimeNs: base + 10},
	)
	f.stop()
	epoch := f.sink.spanNamed(t, "epoch")
	assert.Equal(t, pcommon.SpanID(f.r.SessionRef().Span), epoch.ParentSpanID())
	assert.Equal(t, "torch", attr(epoch.Attributes(), semconv.CUDANVTXDomain))
}

func TestNVTXRange_Collective(t *testing.T) {
	f := newFixture(t, Config{}).start()
	for id, bytes := range map[uint64]uint64{1: 4096, 2: 0} {
		name := fmt.Sprint("range ", id)
		f.src.event(
			cupti.ScopeEvent{What: cupti.ScopeBegin, ID: id, TimeNs: base, Name: name, Domain: "NCCL", Nested: true, CollectiveBytes: bytes},
			cupti.ScopeEvent{What: cupti.ScopeEnd, ID: id, TimeNs: base + 10, Nested: true},
		)
	}
	f.stop()
	size, ok := f.sink.spanNamed(t, "range 1").Attributes().Get(semconv.CUDACollectiveSize)
	require.True(t, ok)
	assert.Equal(t, int64(4096), size.Int())
	_, ok = f.sink.spanNamed(t, "range 2").Attributes().Get(semconv.CUDACollectiveSize)
	assert.False(t, ok)
}

// A span of the application, and scopes of a program's tasks: their events come like those of NVTX.
func TestScopeEvents_OfTasks(t *testing.T) {
	f := newFixture(t, Config{}).start()
	request, unsampled := refOf(7, 9), refOf(8, 10)
	f.src.event(
		cupti.ScopeEvent{What: cupti.ScopeSpan, ID: 1, TimeNs: base, Name: "GET /", Nested: true, Program: true, Span: request, Sampled: true},
		cupti.ScopeEvent{What: cupti.ScopeSpan, ID: 1, TimeNs: base, Name: "again", Nested: true, Program: true, Span: unsampled, Sampled: true},
		cupti.ScopeEvent{What: cupti.ScopeSpan, ID: 2, TimeNs: base, Name: "GET /health", Nested: true, Program: true, Span: unsampled},
		cupti.ScopeEvent{What: cupti.ScopeBegin, ID: 3, Parent: 1, TimeNs: base + 5, Name: "range", Nested: true},
		cupti.ScopeEvent{What: cupti.ScopeEnd, ID: 3, TimeNs: base + 8, Nested: true},
		cupti.ScopeEvent{What: cupti.ScopeEnd, ID: 1, TimeNs: base + 9, Nested: true},
		cupti.ScopeEvent{What: cupti.ScopeEnd, ID: 1, TimeNs: base + 10, Nested: true},
		cupti.ScopeEvent{What: cupti.ScopeBegin, ID: 4, TimeNs: base + 5, Name: "step", Nested: true, Program: true},
		cupti.ScopeEvent{What: cupti.ScopeEnd, ID: 4, TimeNs: base + 8, Nested: true},
	)
	f.src.deliver(in(1, kernel("a", 1, 5, 10)), in(2, kernel("b", 2, 6, 10)), in(3, kernel("c", 3, 7, 10)), in(4, kernel("d", 4, 7, 10)))
	s := f.stop()
	for name, want := range map[string]struct {
		trace  pcommon.TraceID
		parent pcommon.SpanID
		scope  string
	}{
		"a":     {pcommon.TraceID(request.Trace), pcommon.SpanID(request.Span), "GET /"},
		"range": {pcommon.TraceID(request.Trace), pcommon.SpanID(request.Span), ""},
		"c":     {pcommon.TraceID(request.Trace), f.sink.spanNamed(t, "range").SpanID(), "range"},
		"d":     {f.sink.spanNamed(t, "step").TraceID(), f.sink.spanNamed(t, "step").SpanID(), "step"},
	} {
		got := f.sink.spanNamed(t, name)
		assert.Equal(t, want.trace, got.TraceID(), name)
		assert.Equal(t, want.parent, got.ParentSpanID(), name)
		if want.scope != "" {
			assert.Equal(t, want.scope, attr(got.Attributes(), semconv.CUDAScopeName))
		}
	}
	for _, s := range f.sink.spans {
		assert.NotContains(t, []string{"b", "GET /", "GET /health"}, s.Name(), "the application sends its spans, and b is not sampled")
	}
	assert.Equal(t, "sdk", attr(f.sink.spanNamed(t, "step").Attributes(), semconv.CUDAScopeSource))
	assert.Equal(t, "nvtx", attr(f.sink.spanNamed(t, "range").Attributes(), semconv.CUDAScopeSource))
	assert.Equal(t, pcommon.Timestamp(base+5), f.sink.spanNamed(t, "step").StartTimestamp())
	assert.Equal(t, uint64(1), s.Records.ScopesLost)
}

func TestNVTXMark_Logs(t *testing.T) {
	f := newFixture(t, Config{}).start()
	f.src.event(
		begin(1, 0, 1, 0, "step"),
		cupti.ScopeEvent{What: cupti.ScopeMark, ID: 2, Parent: 1, TimeNs: base + 5, Name: "here", Domain: "d", Color: 0xff00ff80},
		endOf(1, 1, 10),
	)
	f.stop()
	require.Len(t, f.sink.logs, 2)
	l := f.sink.logs[0]
	assert.Equal(t, semconv.EventCUDAMarker, l.EventName())
	assert.Equal(t, "here", l.Body().Str())
	assert.Equal(t, pcommon.Timestamp(base+5), l.Timestamp())
	assert.Equal(t, f.sink.spanNamed(t, "step").SpanID(), l.SpanID())
	assert.Equal(t, map[string]any{
		semconv.CUDAMarkerName: "here", semconv.CUDANVTXDomain: "d", semconv.CUDAMarkerColor: "#00ff80",
		semconv.LogRecordUID: firstUID,
	}, l.Attributes().AsRaw())
}

// Above the limit, ranges have no span, and their work belongs to the enclosing scope.
func TestNVTXRange_Limit(t *testing.T) {
	f := newFixture(t, Config{MaxSpansPerSecond: 2})
	e := f.r.engine
	e.scopes.nvtx([]cupti.ScopeEvent{
		begin(1, 0, 1, 0, "a"), begin(2, 1, 1, 1, "b"), begin(3, 2, 1, 2, "c"), endOf(3, 1, 3),
		begin(4, 0, 2, 4, "d"), endOf(4, 2, 5), endOf(2, 1, 6), endOf(1, 1, 7),
	}, base)
	f.src.deliver(in(3, kernel("inC", 1, 2, 10)), in(4, kernel("inD", 2, 2, 10)))
	f.start()
	s := f.stop()
	assert.Equal(t, uint64(2), s.Spans.ScopesLeftOut)
	assert.Equal(t, f.sink.spanNamed(t, "b").SpanID(), f.sink.spanNamed(t, "inC").ParentSpanID())
	assert.Equal(t, "c", attr(f.sink.spanNamed(t, "inC").Attributes(), semconv.CUDAScopeName))
	assert.Equal(t, pcommon.SpanID(f.r.SessionRef().Span), f.sink.spanNamed(t, "inD").ParentSpanID())
}

func TestScopes_EvictOldest(t *testing.T) {
	f := newFixture(t, Config{})
	s := f.r.engine.scopes
	ops := make([]scopeOp, 0, 2*maxScopes)
	for i := range uint64(maxScopes) {
		ops = append(ops, scopeOp{id: i + 1, begin: true, scope: Scope{Ref: refOf(1, 1), Name: fmt.Sprint(i % 1000)}})
	}
	s.apply(ops, base)
	assert.Len(t, s.byID, maxScopes)
	s.apply([]scopeOp{{id: maxScopes + 1, begin: true}}, base)
	assert.Equal(t, uint64(1), s.lost, "all scopes are open: the new one is dropped")
	assert.Nil(t, s.find(maxScopes+1))

	s.apply([]scopeOp{{id: 5}, {id: 7}, {id: maxScopes + 2, begin: true}}, base)
	assert.Equal(t, uint64(2), s.lost)
	assert.Nil(t, s.find(5), "the first ended scope is evicted")
	assert.NotNil(t, s.find(7))
	assert.NotNil(t, s.find(maxScopes+2))
	s.forget(base + int64(scopeAge))
	assert.NotNil(t, s.find(7))
	s.forget(base + int64(scopeAge) + 1)
	assert.Nil(t, s.find(7))
	assert.LessOrEqual(t, len(s.labels), maxScopeNames+2)
	assert.Equal(t, uint32(labelOther), s.label("999"))
}

func TestNVTXRange_InvalidEvents(t *testing.T) {
	f := newFixture(t, Config{MaxSpansPerSecond: 1})
	f.r.engine.scopes.nvtx([]cupti.ScopeEvent{
		endOf(9, 1, 0),                                  // without a begin
		begin(1, 55, 1, 1, "a"), begin(1, 0, 1, 2, "a"), // in an unknown scope; duplicate
		{What: cupti.ScopeMark, ID: 3, TimeNs: base + 3, Name: "m"}, // above the limit
		endOf(1, 1, 0), endOf(1, 1, 9), // before its begin; duplicate
		{What: 77, ID: 4},
	}, base)
	f.start()
	s := f.stop()
	a := f.sink.spanNamed(t, "a")
	assert.True(t, a.ParentSpanID().IsEmpty())
	assert.Equal(t, a.StartTimestamp(), a.EndTimestamp())
	assert.Equal(t, uint64(1), s.Records.ScopesLost)
	assert.Equal(t, uint64(1), s.Spans.ScopesLeftOut)
	assert.Len(t, f.sink.logs, 1, "no mark")
}

func TestScopes_WithoutSpan(t *testing.T) {
	f := newFixture(t, Config{}).start()
	id := f.r.Begin(Scope{Sampled: false, Name: "unsampled"})
	f.src.deliver(in(id, kernel("k", 1, 0, 10)))
	f.r.End(id)
	s := f.stop()
	k := f.sink.spanNamed(t, "k")
	assert.Equal(t, pcommon.SpanID(f.r.SessionRef().Span), k.ParentSpanID())
	assert.Equal(t, "unsampled", attr(k.Attributes(), semconv.CUDAScopeName))
	assert.Zero(t, s.Spans.Unsampled)
}

func TestScopes_Unknown(t *testing.T) {
	f := newFixture(t, Config{}).start()
	f.src.deliver(in(77, kernel("k", 1, 0, 10)))
	s := f.stop()
	assert.Equal(t, uint64(1), s.Records.ScopesUnknown)
	assert.Equal(t, pcommon.SpanID(f.r.SessionRef().Span), f.sink.spanNamed(t, "k").ParentSpanID())
}

func TestBegin_PendingBound(t *testing.T) {
	f := newFixture(t, Config{})
	for range maxPending {
		f.r.pending = append(f.r.pending, scopeOp{})
	}
	assert.Zero(t, f.r.Begin(Scope{Ref: refOf(1, 1)}))
	f.r.End(0)
	s := f.stop()
	assert.Equal(t, uint64(1), s.Records.ScopesLost)
}

func TestScopes_DerivedIDs(t *testing.T) {
	run := func() []pcommon.SpanID {
		f := newFixture(t, Config{})
		f.src.event(begin(1, 0, 1, 0, "step"), endOf(1, 1, 100))
		f.src.deliver(in(1, kernel("k", 1, 5, 10)), kernel("l", 2, 6, 10))
		f.start()
		f.stop()
		var ids []pcommon.SpanID
		for _, x := range f.sink.spans {
			ids = append(ids, x.SpanID())
		}
		return ids
	}
	first, second := run(), run()
	assert.Equal(t, first, second)
	key := gpuevent.KeyOf(testInstance)
	assert.Contains(t, first, pcommon.SpanID(key.Span(gpuevent.KindNVTX, 1, 0)))
}
