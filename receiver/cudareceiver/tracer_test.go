// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/metadata"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/metadatatest"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"
)

// fakeTrace hands out what it was given, and ends when it is told or stopped.
type fakeTrace struct {
	mu      sync.Mutex
	options probe.TraceOptions
	calls   []probe.Call
	losses  probe.TraceLosses
	ended   bool
	stopped bool
}

func (f *fakeTrace) give(calls ...probe.Call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, calls...)
}

func (f *fakeTrace) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
}

func (f *fakeTrace) Take() ([]probe.Call, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls, !f.ended
}

func (f *fakeTrace) Losses() probe.TraceLosses { return f.losses }

func (f *fakeTrace) Stop() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended, f.stopped = true, true
	return nil
}

// traceRig is a tracer at work over a source of the test's making, with a clock that the test moves.
type traceRig struct {
	*rig
	sink   *consumertest.TracesSink
	traces chan *fakeTrace // as they are begun
	// looks are the ticks of the rule, looked says that it has read what seen has; time is when it thinks it is.
	looks  chan time.Time
	seen   chan sight
	looked chan struct{}
	mu     sync.Mutex
	time   time.Time
}

// sight is what the rule is to see, and how much later than the last.
type sight struct {
	after    time.Duration
	launches map[probe.ProcessID]uint64
}

func newTraceRig(t *testing.T, change func(*Config)) *traceRig {
	t.Helper()
	r := &traceRig{
		rig: newRig(t), sink: &consumertest.TracesSink{}, traces: make(chan *fakeTrace, 10),
		looks: make(chan time.Time), seen: make(chan sight, 1), looked: make(chan struct{}), time: time.Unix(1000, 0),
	}
	change(r.cfg)
	require.NoError(t, r.cfg.Trace.Validate())
	r.machine.trace = func(o probe.TraceOptions) (tracing, error) {
		f := &fakeTrace{options: o}
		r.traces <- f
		return f, nil
	}
	r.machine.launches = func() map[probe.ProcessID]uint64 {
		s := <-r.seen
		r.mu.Lock()
		r.time = r.time.Add(s.after)
		r.mu.Unlock()
		r.looked <- struct{}{}
		return s.launches
	}
	return r
}

func (r *traceRig) begin(t *testing.T, next consumer.Traces) {
	t.Helper()
	var err error
	r.tracer, err = newTracer(r.cfg, r.set, r.telemetry(), next)
	require.NoError(t, err)
	r.tracer.now = func() time.Time {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.time
	}
	r.tracer.every = func(d time.Duration) (<-chan time.Time, func()) {
		if d == takeInterval {
			return ticker(time.Millisecond)
		}
		return r.looks, func() {}
	}
	r.start(t)
	eventually(t, "attached", r.attached)
}

func (r *traceRig) telemetry() *metadata.TelemetryBuilder { return r.cudaReceiver.telemetry }

// check lets the rule check, some seconds later, what a process has launched by then. It waits for
// the result of the previous check.
func (r *traceRig) check(t *testing.T, seconds int, id probe.ProcessID, launches uint64) {
	t.Helper()
	r.seen <- sight{time.Duration(seconds) * time.Second, map[probe.ProcessID]uint64{id: launches}}
	select {
	case r.looks <- time.Time{}:
		<-r.looked
	case <-time.After(time.Minute):
		require.FailNow(t, "a trace is on that should not be")
	}
}

func (r *traceRig) signal() { r.tracer.signals <- os.Interrupt }

func (r *traceRig) begun(t *testing.T) *fakeTrace {
	t.Helper()
	select {
	case f := <-r.traces:
		return f
	case <-time.After(time.Minute):
		require.FailNow(t, "no trace was begun")
		return nil
	}
}

func (r *traceRig) logged(message string) func() bool {
	return func() bool { return r.logs.FilterMessage(message).Len() > 0 }
}

func wait(pid int32) probe.Call {
	return probe.Call{Process: probe.ProcessID{PID: pid}, Function: "cuCtxSynchronize", Kind: probe.CallWait, Start: 1, End: 2}
}

func TestASignalOpensAWindow(t *testing.T) {
	r := newTraceRig(t, func(c *Config) { c.Trace.Duration, c.Trace.MaxSpans, c.Trace.RingBytes = time.Minute, 77, 1<<20 })
	r.begin(t, r.sink)
	r.signal()
	f := r.begun(t)
	assert.Equal(t, time.Minute, f.options.Duration)
	assert.Equal(t, 77, f.options.MaxCalls)
	assert.EqualValues(t, 1<<20, f.options.RingBytes)
	assert.True(t, f.options.Select(probe.ProcessID{PID: 7}, 0, probe.Identity{}))
	f.give(wait(7), wait(7), wait(8))
	eventually(t, "spans come while it is on", func() bool { return r.sink.SpanCount() == 3 })

	r.signal() // while it is on
	f.give(wait(7))
	f.losses = probe.TraceLosses{RingFull: 5, InFlightFull: 4, Beyond: 3, Unfinished: 2, AttachFailed: 1}
	f.end()
	eventually(t, "it has ended", r.logged("trace ended"))
	assert.Equal(t, 4+2, r.sink.SpanCount(), "with the roots of two processes")
	assert.Equal(t, 1, r.logs.FilterMessage("signal to trace ignored").Len())
	assert.Empty(t, r.traces, "the second signal opened none")
	ended := r.logs.FilterMessage("trace ended").All()[0].ContextMap()
	assert.EqualValues(t, 4, ended["spans"])
	assert.EqualValues(t, 14, ended["lost"])

	same, none := metricdatatest.IgnoreTimestamp(), attribute.NewSet()
	why := func(s string) attribute.Set { return attribute.NewSet(attribute.String("reason", s)) }
	metadatatest.AssertEqualReceiverCudaTraceCallsLost(t, r.rig.telemetry, ints(
		why("ring_full"), 5, why("in_flight_full"), 4, why("max_spans"), 3, why("unfinished"), 2, why("max_processes"), 0), same)
	metadatatest.AssertEqualReceiverCudaTraceAttachFailed(t, r.rig.telemetry, ints(none, 1), same)
	metadatatest.AssertEqualReceiverCudaTraceWindows(t, r.rig.telemetry, ints(attribute.NewSet(attribute.String("trigger", "signal")), 1), same)

	r.signal()
	r.begun(t).end()
}

func TestARateOpensAWindowAndThenRests(t *testing.T) {
	r := newTraceRig(t, func(c *Config) {
		c.Trace.OnSignal = false
		c.Trace.When.Above = 1000
		c.Trace.Cooldown = time.Minute
		c.Exclude.PIDs = []int32{9}
	})
	r.begin(t, r.sink)
	id := probe.ProcessID{PID: 7}
	r.check(t, 0, id, 1_000_000)
	r.check(t, 10, id, 1_010_000)                       // 1000 a second are not more
	r.check(t, 10, probe.ProcessID{PID: 9}, 10_000_000) // it is excluded
	r.check(t, 10, id, 10_000)                          // new again
	assert.Empty(t, r.traces)
	r.check(t, 10, id, 20_010)
	r.begun(t).end()
	eventually(t, "it has ended", r.logged("trace ended"))
	r.check(t, 30, id, 9_000_000)  // the first check after it
	r.check(t, 10, id, 10_000_000) // it rests
	r.check(t, 20, id, 11_000_000)
	r.begun(t).end()
	eventually(t, "the second has ended", func() bool { return r.logs.FilterMessage("trace ended").Len() == 2 })
	metadatatest.AssertEqualReceiverCudaTraceWindows(t, r.rig.telemetry, ints(attribute.NewSet(attribute.String("trigger", "rate")), 2), metricdatatest.IgnoreTimestamp())
	opened := r.logs.FilterMessage("launch rate of a process starts a trace").All()[0].ContextMap()
	assert.EqualValues(t, 7, opened["pid"])
	assert.InDelta(t, 1001, opened["launches_per_second"], 1e-6)
}

func TestRatesOfProcesses(t *testing.T) {
	a, b, c := probe.ProcessID{PID: 1}, probe.ProcessID{PID: 2}, probe.ProcessID{PID: 3}
	at := time.Unix(50, 0)
	r := &rule{cfg: &TraceRuleConfig{Above: 100, Below: 10}}
	assert.Empty(t, r.check(at, map[probe.ProcessID]uint64{a: 1 << 40, b: 0}), "of one check there is no rate")
	got := r.check(at.Add(10*time.Second), map[probe.ProcessID]uint64{a: 1<<40 + 1001, b: 5, c: 5000})
	assert.Equal(t, []cause{{c, 500}, {a, 100.1}, {b, 0.5}}, got, "one that is new has launched all since the last check")
	assert.Empty(t, r.check(at.Add(20*time.Second), map[probe.ProcessID]uint64{a: 1<<40 + 2001, b: 5, c: 5100}), "100, none and 10")
	assert.Empty(t, r.check(at.Add(20*time.Second), map[probe.ProcessID]uint64{a: 1 << 50}), "no time has passed")
	assert.Empty(t, r.check(at.Add(30*time.Second), map[probe.ProcessID]uint64{a: 7}), "a sum that falls is none")
	r.forget()
	assert.Empty(t, r.check(at.Add(40*time.Second), map[probe.ProcessID]uint64{a: 1 << 60}))
}

func TestAWindowEndsWithTheReceiver(t *testing.T) {
	r := newTraceRig(t, func(*Config) {})
	r.begin(t, r.sink)
	r.signal()
	f := r.begun(t)
	f.give(wait(7))
	require.NoError(t, r.Shutdown(t.Context()))
	assert.True(t, f.stopped)
	assert.Equal(t, 2, r.sink.SpanCount(), "what had come, and its root")
	opened, closed := r.machine.counts()
	assert.Equal(t, opened, closed)
}

func TestAWindowThatCannotBeOpenedIsCounted(t *testing.T) {
	r := newTraceRig(t, func(*Config) {})
	r.machine.trace = nil
	r.begin(t, r.sink)
	r.signal()
	eventually(t, "said", r.logged("calls cannot be traced"))
	metadatatest.AssertEqualReceiverCudaTraceFailed(t, r.rig.telemetry, ints(attribute.NewSet(), 1), metricdatatest.IgnoreTimestamp())
	assert.True(t, r.attached())
}

func TestSpansComeInBatchesAndRefusedOnesAreNotKept(t *testing.T) {
	r := newTraceRig(t, func(*Config) {})
	var mu sync.Mutex
	var sizes []int
	r.begin(t, refusing{func(n int) { mu.Lock(); defer mu.Unlock(); sizes = append(sizes, n) }})
	r.signal()
	f := r.begun(t)
	calls := make([]probe.Call, maxBatch+10)
	for i := range calls {
		calls[i] = wait(7)
	}
	f.give(calls...)
	f.end()
	eventually(t, "it has ended", r.logged("trace ended"))
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, []int{maxBatch, 10, 1}, sizes)
	got, err := r.rig.telemetry.GetMetric("otelcol_receiver_refused_spans")
	require.NoError(t, err)
	refused, ok := got.Data.(metricdata.Sum[int64])
	require.True(t, ok)
	require.Len(t, refused.DataPoints, 1)
	assert.EqualValues(t, maxBatch+10+1, refused.DataPoints[0].Value)
}

func TestPipelinesOfOneConfigurationShareAReceiver(t *testing.T) {
	f := NewFactory()
	set := receivertest.NewNopSettings(metadata.Type)
	cfg := config()
	cfg.RootPath = t.TempDir()
	metrics, err := f.CreateMetrics(t.Context(), set, cfg, consumertest.NewNop())
	require.NoError(t, err)
	traces, err := f.CreateTraces(t.Context(), set, cfg, consumertest.NewNop())
	require.NoError(t, err)
	again, err := f.CreateTraces(t.Context(), set, cfg, consumertest.NewNop())
	require.NoError(t, err)
	assert.Same(t, traces, again)
	other, err := f.CreateTraces(t.Context(), set, config(), consumertest.NewNop())
	require.NoError(t, err)
	assert.NotSame(t, traces, other)
	for _, c := range []component.Component{metrics, traces, other} {
		require.NoError(t, c.Shutdown(context.Background()))
	}
}

type refusing struct{ note func(int) }

func (refusing) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

func (r refusing) ConsumeTraces(_ context.Context, td ptrace.Traces) error {
	r.note(td.SpanCount())
	return errors.New("refused")
}
