// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/deep/rule"
	"github.com/gpuflight/gpuflight/semconv"
)

func at(ns int64) time.Time { return time.Unix(0, base+ns) }

// windowOf returns a window of one engine from start to end.
func windowOf(id uint64, e deep.Engine, start, end int64) deep.Window {
	return deep.Window{
		ID: id, Engine: e, Cause: deep.CauseRule, Why: "kernel.rate < 100/s: 12.5/s", For: 2 * time.Second, Start: at(start), End: at(end),
		Closed: deep.ClosedTime, Outcome: deep.Outcome{Status: deep.StatusCollected, Text: "the window was opened and its data collected"},
		Collected: deep.Collected{Rows: 2, Samples: 750, Functions: 1, Lost: 20},
		Parts:     []deep.Part{{Engine: e, Start: at(start), End: at(end), Armed: true, Paused: e == deep.SASS}},
	}
}

// named returns the log records of an event.
func (s *sink) named(event string) []plog.LogRecord {
	var found []plog.LogRecord
	for _, r := range s.logs {
		if r.EventName() == event {
			found = append(found, r)
		}
	}
	return found
}

func listingOf(function, text string) WindowListing {
	return WindowListing{
		Record: &gpuevent.Record{Event: semconv.EventCUDASASSListing, Attrs: []gpuevent.Attr{gpuevent.Str(semconv.CUDAKernelName, function)}},
		Text:   text,
	}
}

func TestWindow_SpanAndLogs(t *testing.T) {
	f := newFixture(t, Config{}).start()
	w := windowOf(3, deep.PC, 1000, 5000)
	met, err := rule.Parse("kernel.rate < 100/s for 2s")
	require.NoError(t, err)
	w.Firing = &rule.Firing{Rule: &met, Value: 12.5, Threshold: 100, Held: 2 * time.Second}
	f.r.WindowOpened(w, false)
	f.r.WindowClosed(w)
	require.True(t, f.r.AddWindow(&Window{
		Window: w, Period: 65536, Dropped: 15, NonUser: 5, HardwareFull: 1, Other: 7, Unresolved: 1, Missing: []string{"never"},
		WithoutListing: 2, LostRows: 6, SkippedContexts: 8, LostContexts: 9, Held: 11, Released: 10, LongestHold: 1500 * time.Millisecond,
		Samples: []gpuevent.PCSample{
			{TimeNs: base + 5000, Function: nameOf("gemm"), PCOffset: gpuevent.Some(64), Reason: "smsp__pcsamp_warps_issue_stalled_barrier", Count: 700, File: "gemm.cu", Line: gpuevent.Some(12)},
			{TimeNs: base + 5000, Function: nameOf("gemm"), PCOffset: gpuevent.Some(80), Reason: "smsp__pcsamp_warps_issue_stalled_wait", Count: 30},
		},
		Counters: []gpuevent.SASSMetric{{TimeNs: base + 5000, Function: nameOf("gemm"), PCOffset: gpuevent.Some(64), Metric: "inst", Value: 1 << 40}},
	}))
	require.True(t, f.r.AddListings(WindowTexts{Window: 3, End: at(5000), Listings: []WindowListing{listingOf("gemm", "0040  BAR.SYNC 0x0\n")}}))
	summary := f.stop()

	span, session := f.sink.spanNamed(t, "deep window"), f.sink.spanNamed(t, "app")
	assert.Equal(t, session.SpanID(), span.ParentSpanID())
	assert.Equal(t, session.TraceID(), span.TraceID())
	assert.Equal(t, pcommon.NewTimestampFromTime(at(1000)), span.StartTimestamp())
	assert.Equal(t, pcommon.NewTimestampFromTime(at(5000)), span.EndTimestamp())
	assert.Equal(t, ptrace.StatusCodeUnset, span.Status().Code())
	want := map[string]any{
		semconv.CUDADeepWindowRowsWithoutSASS: int64(2), semconv.CUDADeepWindowRowsLost: int64(6), semconv.CUDADeepWindowContextsSkipped: int64(8),
		semconv.CUDADeepWindowContextsLost: int64(9), semconv.CUDADeepWindowCallsHeld: int64(11), semconv.CUDADeepWindowCallsReleased: int64(10), semconv.CUDADeepWindowLongestHold: 1.5,
		semconv.CUDADeepWindowID: int64(3), semconv.CUDADeepWindowEngines: []any{"pc_sampling"}, semconv.CUDADeepWindowCause: "rule",
		semconv.CUDADeepWindowWhy: w.Why, semconv.CUDADeepWindowStatus: "collected", semconv.CUDADeepWindowMessage: w.Outcome.Text,
		semconv.CUDADeepWindowCloseReason: "time", semconv.CUDADeepWindowRequestedDuration: 2., semconv.CUDADeepWindowPausedDuration: 0.,
		semconv.CUDADeepWindowRows: int64(3), semconv.CUDADeepWindowRowsOther: int64(7), semconv.CUDADeepWindowRowsUnresolved: int64(1),
		semconv.CUDADeepWindowFunctions: int64(1), semconv.CUDADeepWindowSamples: int64(750), semconv.CUDADeepWindowSamplesDropped: int64(15),
		semconv.CUDADeepWindowSamplesNonUser: int64(5), semconv.CUDADeepWindowHardwareFull: int64(1), semconv.CUDADeepWindowLost: int64(20),
		semconv.CUDADeepWindowMissing: []any{"never"}, semconv.CUDADeepWindowSamplingPeriod: int64(65536),
		semconv.CUDADeepWindowRuleExpression: "kernel.rate < 100/s for 2s", semconv.CUDADeepWindowRuleMetric: "kernel.rate", semconv.CUDADeepWindowRuleOperator: "<",
		semconv.CUDADeepWindowRuleThreshold: 100., semconv.CUDADeepWindowRuleObserved: 12.5, semconv.CUDADeepWindowRuleSustained: 2.,
	}
	want[semconv.CUDAOperation] = semconv.CUDAOperationDeepWindow
	assert.Equal(t, want, span.Attributes().AsRaw())
	delete(want, semconv.CUDAOperation)

	logs := f.sink.named(semconv.EventCUDADeepWindow)
	require.Len(t, logs, 1)
	want[semconv.CUDADeepWindowStartTimeUnixNano], want[semconv.CUDADeepWindowEndTimeUnixNano] = base+1000, base+5000
	want[semconv.LogRecordUID] = firstUID
	assert.Equal(t, want, logs[0].Attributes().AsRaw())
	assert.Equal(t, "Deep window 3 (pc, by rule) of 0s: 750 samples in 1 function, 20 lost.", logs[0].Body().Str())

	samples := f.sink.named(semconv.EventCUDAPCSample)
	require.Len(t, samples, 2)
	assert.Equal(t, "700 × barrier in gemm", samples[0].Body().Str())
	for _, r := range append(append(samples, f.sink.named(semconv.EventCUDASASSMetric)...), f.sink.named(semconv.EventCUDASASSListing)...) {
		assert.Equal(t, span.SpanID(), r.SpanID())
		assert.Equal(t, span.TraceID(), r.TraceID())
	}
	listings := f.sink.named(semconv.EventCUDASASSListing)
	require.Len(t, listings, 1)
	assert.Equal(t, "0040  BAR.SYNC 0x0\n", listings[0].Body().Str())

	require.NotNil(t, summary.Windows)
	assert.Equal(t, uint64(1), summary.Windows.Opened)
	assert.Equal(t, map[string]uint64{"collected": 1}, summary.Windows.ByStatus)
	assert.Zero(t, summary.Windows.Unsent)
	require.Len(t, summary.Windows.Recent, 1)
	assert.Equal(t, uint64(750), summary.Windows.Recent[0].Samples)
	capture := f.sink.named(semconv.EventCUDACapture)
	require.Len(t, capture, 1)
	assert.Contains(t, capture[0].Body().Str(), ", 1 deep windows.")
	assert.Equal(t, "1", attr(capture[0].Attributes(), semconv.CUDACaptureDeepWindows))
	assert.Equal(t, uint64(1), f.sink.total(semconv.MetricGpuflightDeepWindows))
}

// Only work that overlaps a window is marked. A SASS metrics window also distorts the work right
// after it.
func TestWindow_WorkIsEstimated(t *testing.T) {
	const ms = int64(time.Millisecond)
	f := newFixture(t, Config{}).start()
	pc, sass := windowOf(1, deep.PC, 10*ms, 20*ms), windowOf(2, deep.SASS, 40*ms, 50*ms)
	f.r.WindowOpened(pc, false)
	f.src.deliver(kernel("before", 1, ms, ms), kernel("in", 2, 12*ms, ms), kernel("across", 3, 9*ms, 2*ms), copyHead("HtoD", 8, 4, 15*ms, ms))
	f.src.deliver(kernel("open", 5, 90*ms, ms))
	require.Eventually(t, func() bool { return f.sink.has("open") }, time.Minute, time.Millisecond)
	f.r.WindowClosed(pc)
	f.r.WindowOpened(sass, false)
	f.r.WindowClosed(sass)
	f.src.deliver(kernel("between", 6, 25*ms, ms), kernel("after", 7, 60*ms, ms), kernel("later", 8, 310*ms, ms))
	summary := f.stop()
	estimated := map[string]bool{}
	for _, s := range f.sink.spans {
		if _, ok := s.Attributes().Get(semconv.CUDACorrelationID); ok {
			estimated[s.Name()] = attr(s.Attributes(), semconv.CUDATiming) == semconv.CUDATimingEstimated
		}
	}
	assert.Equal(t, map[string]bool{
		"before": false, "in": true, "across": true, "memcpy HtoD": true, "open": true,
		"between": false, "after": true, "later": false,
	}, estimated)
	assert.InDelta(t, 0.01, summary.Windows.PausedSeconds, 1e-9)
	assert.Equal(t, map[string]float64{"": 0.01}, f.sink.points(semconv.MetricGpuflightPausedTime))
	capture := f.sink.named(semconv.EventCUDACapture)[0]
	assert.Equal(t, "partial", attr(capture.Attributes(), semconv.CUDACaptureStatus))
	assert.Contains(t, capture.Body().Str(), "2 deep windows, the results of 2 deep windows lost, nothing recorded for 0.01 s of them.")
	assert.Equal(t, "0.01", attr(capture.Attributes(), semconv.CUDACapturePausedTime))
}

// has reports whether a span of that name was sent.
func (s *sink) has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.spans, func(x ptrace.Span) bool { return x.Name() == name })
}

// The rows of a window that attributes samples to launches belong to the span of the kernel.
func TestWindow_RowsOfLaunch(t *testing.T) {
	f := newFixture(t, Config{}).start()
	w := windowOf(1, deep.PC, 1000, 5000)
	f.r.WindowOpened(w, true)
	f.src.deliver(kernel("gemm", 77, 2000, 100))
	f.r.WindowClosed(w)
	require.True(t, f.r.AddWindow(&Window{Window: w, Samples: []gpuevent.PCSample{
		{Function: nameOf("gemm"), Reason: "known", Count: 1, Correlation: gpuevent.Some(77)},
		{Function: nameOf("gemm"), Reason: "unknown", Count: 1, Correlation: gpuevent.Some(78)},
	}}))
	f.stop()
	under := map[string]pcommon.SpanID{}
	for _, r := range f.sink.named(semconv.EventCUDAPCSample) {
		under[attr(r.Attributes(), semconv.CUDAStallReason)] = r.SpanID()
	}
	assert.Equal(t, map[string]pcommon.SpanID{
		"known": f.sink.spanNamed(t, "gemm").SpanID(), "unknown": f.sink.spanNamed(t, "deep window").SpanID(),
	}, under)
	assert.Nil(t, f.r.engine.windows.launches, "launches are stored without a window that needs them")
}

func TestWindow_Refused(t *testing.T) {
	f := newFixture(t, Config{}).start()
	w := windowOf(1, deep.SASS, 1000, 2000)
	w.Outcome = deep.Outcome{Status: deep.StatusNoPermission, Text: "this process may not read the GPU's counters"}
	w.Parts[0].Armed, w.Collected, w.Closed = false, deep.Collected{}, ""
	f.r.WindowOpened(w, false)
	f.r.WindowClosed(w)
	require.True(t, f.r.AddWindow(&Window{Window: w}))
	f.src.deliver(kernel("k", 1, 1500, 100))
	summary := f.stop()
	span := f.sink.spanNamed(t, "deep window")
	assert.Equal(t, ptrace.StatusCodeError, span.Status().Code())
	assert.Equal(t, w.Outcome.Text, span.Status().Message())
	log := f.sink.named(semconv.EventCUDADeepWindow)[0]
	assert.Equal(t, plog.SeverityNumberWarn, log.SeverityNumber())
	assert.Equal(t, "Deep window 1 (sass, by rule): this process may not read the GPU's counters.", log.Body().Str())
	assert.Equal(t, [2]uint64{0, 1}, [2]uint64{summary.Windows.Opened, summary.Windows.Attempts})
	assert.Empty(t, attr(f.sink.spanNamed(t, "k").Attributes(), semconv.CUDATiming), "no engine ran")
}

// A missing result is reported as lost. A result above the bound can be added again later.
func TestWindow_MissingResult(t *testing.T) {
	f := newFixture(t, Config{}) // not started: it processes nothing
	for id := range uint64(maxResults + 2) {
		w := windowOf(id+1, deep.PC, 1000*int64(id), 1000*int64(id)+500)
		f.r.WindowOpened(w, false)
		f.r.WindowClosed(w)
		assert.Equal(t, id < maxResults, f.r.AddWindow(&Window{Window: w, Samples: []gpuevent.PCSample{{Function: nameOf("k"), Reason: "r", Count: 750}}}))
	}
	summary := f.stop()
	assert.True(t, f.r.AddWindow(&Window{}), "dropped after the end of recording")
	assert.Equal(t, uint64(maxResults+2), summary.Windows.Opened)
	assert.Equal(t, uint64(2), summary.Windows.Unsent)
	assert.Len(t, f.sink.named(semconv.EventCUDAPCSample), maxResults)
	lost := map[string]int{}
	for _, s := range f.sink.spans {
		if s.Name() == "deep window" {
			lost[attr(s.Attributes(), semconv.CUDADeepWindowLost)]++
		}
	}
	assert.Equal(t, map[string]int{"20": maxResults, "750": 2}, lost)
}

// Each large window needs an empty buffer.
func TestWindow_PendingRowsBound(t *testing.T) {
	f := newFixture(t, Config{})
	large := func() *Window { return &Window{Samples: make([]gpuevent.PCSample, maxResultRows+1)} }
	assert.True(t, f.r.AddWindow(large()))
	assert.False(t, f.r.AddWindow(&Window{Samples: make([]gpuevent.PCSample, 1)}))
	assert.False(t, f.r.AddWindow(large()))
	f.r.learnScopes()
	assert.True(t, f.r.AddWindow(large()))
	f.stop()
	assert.Len(t, f.sink.named(semconv.EventCUDAPCSample), 2*(maxResultRows+1))
}

// Listings may arrive long after their window and still belong to its span. Waiting listings are
// bounded, missing ones are counted.
func TestListings_Late(t *testing.T) {
	f := newFixture(t, Config{})
	w := windowOf(3, deep.PC, 1000, 5000)
	f.r.WindowOpened(w, false)
	f.r.WindowClosed(w)
	require.True(t, f.r.AddWindow(&Window{Window: w}))
	f.r.learnScopes()
	f.r.engine.sendResults()
	for id := range uint64(10) {
		f.r.engine.window(&Window{Window: windowOf(10+id, deep.PC, 6000, 7000)})
	}
	large := WindowTexts{Window: 3, End: at(5000), Listings: []WindowListing{listingOf("large", strings.Repeat("x", maxText))}}
	assert.True(t, f.r.AddListings(large), "a single listing may exceed the bound")
	small := WindowTexts{Window: 3, End: at(5000), Listings: []WindowListing{listingOf("one", "NOP"), listingOf("two", "EXIT")}}
	assert.False(t, f.r.AddListings(small))
	f.r.learnScopes()
	assert.True(t, f.r.AddListings(small))
	f.r.CountMissingListings(4)
	summary := f.stop()
	assert.True(t, f.r.AddListings(small), "dropped after the end of recording")

	assert.Equal(t, [2]uint64{3, 4}, [2]uint64{summary.Windows.Texts, summary.Windows.TextsMissing})
	capture := f.sink.named(semconv.EventCUDACapture)[0]
	assert.Contains(t, capture.Body().Str(), ", 4 functions without a listing.")
	assert.Equal(t, "4", attr(capture.Attributes(), semconv.CUDACaptureFunctionsWithoutSASS))
	ref := f.r.engine.windows.refs[3]
	text := map[string]string{}
	for _, l := range f.sink.named(semconv.EventCUDASASSListing) {
		assert.Equal(t, pcommon.SpanID(ref.Span), l.SpanID())
		assert.Equal(t, pcommon.TraceID(ref.Trace), l.TraceID())
		assert.Equal(t, pcommon.NewTimestampFromTime(at(5000)), l.Timestamp())
		text[attr(l.Attributes(), semconv.CUDAKernelName)] += l.Body().Str()
	}
	assert.Equal(t, map[string]string{"one": "NOP", "two": "EXIT", "large": strings.Repeat("x", maxText)}, text)
}

func TestListings_WindowSpanBound(t *testing.T) {
	w := &windows{}
	for id := range uint64(maxRefs + 5) {
		w.remember(id, gpuevent.Ref{})
	}
	assert.Len(t, w.refs, maxRefs)
	assert.NotContains(t, w.refs, uint64(4))
	assert.Contains(t, w.refs, uint64(5))
}

// A range is marked if windows cover a hundredth or more of its time.
func TestWindow_ScopesAreEstimated(t *testing.T) {
	const ms = int64(time.Millisecond)
	f := newFixture(t, Config{}).start()
	f.r.WindowOpened(windowOf(1, deep.SASS, 1000*ms, 1010*ms), false)
	f.r.WindowClosed(windowOf(1, deep.SASS, 1000*ms, 1010*ms))
	for i, c := range []struct {
		name       string
		start, end int64
	}{{"before", 0, 900}, {"in", 1002, 1003}, {"longer", 900, 1900}, {"epoch", 0, 30_000}, {"after", 1270, 1280}} {
		id := uint64(i + 1)
		f.src.event(begin(id, 0, uint32(id), c.start*ms, c.name), endOf(id, uint32(id), c.end*ms))
	}
	f.stop()
	estimated := map[string]bool{}
	for _, s := range f.sink.spans {
		if attr(s.Attributes(), semconv.CUDAOperation) == semconv.CUDAOperationScope {
			estimated[s.Name()] = attr(s.Attributes(), semconv.CUDATiming) == semconv.CUDATimingEstimated
		}
	}
	assert.Equal(t, map[string]bool{"before": false, "in": true, "longer": true, "epoch": false, "after": false}, estimated)
	span := func() time.Time { return at(1000 * ms) }
	assert.False(t, f.r.Distorted(span), "until today")
	f.r.WindowOpened(windowOf(2, deep.PC, 1010*ms, 0), false)
	assert.True(t, f.r.Distorted(span), "while one is open")
}

// 1,000 windows without a reader: the stored events and the summary are bounded.
func TestWindow_EventsBound(t *testing.T) {
	f := newFixture(t, Config{})
	const all = 1000
	for id := range uint64(all) {
		w := windowOf(id+1, deep.PC, int64(id), int64(id)+1)
		f.r.WindowOpened(w, false)
		f.r.WindowClosed(w)
	}
	assert.Len(t, f.r.windowEvents, maxWindowEvents)
	summary := f.stop()
	assert.Equal(t, uint64(maxWindowEvents/2), summary.Windows.Opened)
	assert.Equal(t, uint64(2*all-maxWindowEvents+maxWindowEvents/2), summary.Windows.Unsent)
	assert.Len(t, summary.Windows.Recent, recentWindows)
	assert.LessOrEqual(t, len(f.r.engine.distorted.list()), maxIntervals)
}

// rules is a controller without windows.
type rules struct {
	figures *rule.Figures
	fired   chan string
}

func (r *rules) Figures() *rule.Figures { return r.figures }

func (r *rules) Tick(now time.Time) {
	r.figures.Tick(now, false, func(f *rule.Firing) bool {
		select {
		case r.fired <- f.String():
		default:
		}
		return true
	})
}

func rulesOf(t testing.TB, texts ...string) *rules {
	t.Helper()
	var all []rule.Rule
	for _, text := range texts {
		r, err := rule.Parse(text)
		require.NoError(t, err)
		all = append(all, r)
	}
	figures, err := rule.New(all)
	require.NoError(t, err)
	return &rules{figures: figures, fired: make(chan string, 100)}
}

// Rules observe kernels by name and the ends of scopes.
func TestRules_Observe(t *testing.T) {
	for _, tc := range []struct {
		rule string
		do   func(*fixture, int64)
	}{
		{"kernel(gemm*).p50 over 1s > 1ms", func(f *fixture, i int64) {
			f.src.deliver(kernel("gemm_128", 1, i*1e7, 2e6), kernel("other", 1, i*1e7, 10))
		}},
		{"kernel.rate over 200ms > 10/s", func(f *fixture, i int64) {
			f.src.deliver(kernel("any", 1, i*1e7, 5), kernel("any", 1, i*1e7+10, 5))
		}},
		{"scope(step).p50 over 1s > 1ms", func(f *fixture, i int64) {
			f.src.event(begin(uint64(i)+1000, 0, 1, i*1e7, "step"), endOf(uint64(i)+1000, 1, i*1e7+2e6))
		}},
		{"scope(mine).p50 over 1s < 3600s", func(f *fixture, _ int64) {
			f.r.End(f.r.Begin(Scope{Ref: refOf(1, 1), Sampled: true, Name: "mine"}))
		}},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			r := rulesOf(t, tc.rule)
			f := newFixture(t, Config{Rules: r}).start()
			limit := time.After(time.Minute)
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for i := int64(0); ; i++ {
				tc.do(f, i)
				select {
				case text := <-r.fired:
					assert.Contains(t, text, tc.rule+": ")
				case <-limit:
					t.Fatal("the rule has not fired")
				case <-tick.C:
					continue
				}
				break
			}
			f.stop()
		})
	}
}

// BenchmarkFigures measures the cost of rules for a kernel. Without a matching rule there is none.
func BenchmarkFigures(b *testing.B) {
	for _, c := range []struct {
		name  string
		rules []string
	}{
		{"no rules", nil},
		{"a rule for another kernel", []string{"kernel(other).rate < 100/s"}},
		{"a rate", []string{"kernel.rate < 100/s"}},
		{"a quantile and a rate", []string{"kernel.p95 > 1ms", "kernel.rate < 100/s"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			cfg := Config{InstanceID: testInstance, MaxSpansPerSecond: -1}
			if c.rules != nil {
				cfg.Rules = rulesOf(b, c.rules...)
			}
			r, err := New(cfg, &source{devices: oneDevice}, nowhere{})
			require.NoError(b, err)
			buffer := benchRecords(1, false, nil)
			kernels := 0
			b.ReportAllocs()
			for b.Loop() {
				r.engine.portion([]Records{buffer}, 0)
				kernels += buffer.Len()
			}
			require.Equal(b, uint64(kernels), r.engine.totals.kernels)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(kernels), "ns/kernel")
		})
	}
}

// BenchmarkWindow measures a window with the maximum number of rows, which delays buffers.
func BenchmarkWindow(b *testing.B) {
	r, err := New(Config{InstanceID: testInstance}, &source{devices: oneDevice}, nowhere{})
	require.NoError(b, err)
	w := &Window{Window: windowOf(1, deep.PC, 0, 1)}
	for i := range 10_000 {
		w.Samples = append(w.Samples, gpuevent.PCSample{
			Function: nameOf(fmt.Sprint("kernel_", i%50)), PCOffset: gpuevent.Some(int64(i)), Reason: cupti.EnginePCSampling.String(), Count: 7, File: "file.cu", Line: gpuevent.Some(int64(i)),
		})
	}
	b.ReportAllocs()
	for b.Loop() {
		r.engine.window(w)
		r.engine.send()
	}
}
