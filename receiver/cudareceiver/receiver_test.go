// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/metadata"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/metadatatest"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"
)

// host remembers what the receiver says of itself.
type host struct {
	mu     sync.Mutex
	states []componentstatus.Status
}

func (h *host) GetExtensions() map[component.ID]component.Component { return nil }

func (h *host) Report(e *componentstatus.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.states = append(h.states, e.Status())
}

func (h *host) reported() []componentstatus.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.states)
}

// machine hands out sources and says what they do.
type machine struct {
	mu    sync.Mutex
	start error
	// hang keeps Start from returning until it is closed.
	hang     chan struct{}
	snapshot *probe.Snapshot
	read     error
	// launches and trace are what Launches and Trace do, nil for errors.
	launches func() map[probe.ProcessID]uint64
	trace    func(probe.TraceOptions) (tracing, error)
	opened   int
	closed   int
}

func (m *machine) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func (m *machine) open(*Config, *zap.Logger) source {
	m.set(func() { m.opened++ })
	return &fakeSource{machine: m}
}

func (m *machine) counts() (opened, closed int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.opened, m.closed
}

type fakeSource struct {
	*machine
	closed bool
}

func (s *fakeSource) Start(context.Context) error {
	if s.hang != nil {
		<-s.hang
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.start
}

func (s *fakeSource) Snapshot() (*probe.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("read after it was closed")
	}
	return s.snapshot, s.read
}

func (s *fakeSource) Launches() (map[probe.ProcessID]uint64, error) {
	if s.launches == nil {
		return nil, errors.New("cannot be read")
	}
	return s.launches(), nil
}

func (s *fakeSource) Trace(o probe.TraceOptions) (tracing, error) {
	if s.trace == nil {
		return nil, errors.New("cannot be traced")
	}
	return s.trace(o)
}

func (s *fakeSource) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.machine.closed++
	return nil
}

// rig is a receiver over a machine of the test's making.
type rig struct {
	*cudaReceiver
	host      *host
	machine   *machine
	logs      *observer.ObservedLogs
	telemetry *componenttest.Telemetry
}

func newRig(t *testing.T) *rig {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	telemetry := componenttest.NewTelemetry()
	t.Cleanup(func() { require.NoError(t, telemetry.Shutdown(context.Background())) })
	set := receivertest.NewNopSettings(metadata.Type)
	set.TelemetrySettings = telemetry.NewTelemetrySettings()
	set.Logger = zap.New(core)
	cfg := config()
	cfg.RootPath = t.TempDir()
	r, err := newReceiver(cfg, set)
	require.NoError(t, err)
	m := &machine{snapshot: &probe.Snapshot{Time: at(1), Runtimes: []probe.RuntimeCheck{
		{State: probe.RuntimePassed}, {State: probe.RuntimeBypasses}, {State: probe.RuntimePassed},
	}, Processes: []probe.Process{{ID: probe.ProcessID{PID: 7}, Graphs: 5}}}}
	r.open = m.open
	r.intervals = intervals{first: time.Millisecond, longest: 4 * time.Millisecond}
	return &rig{cudaReceiver: r, host: &host{}, machine: m, logs: logs, telemetry: telemetry}
}

func (r *rig) start(t *testing.T) {
	t.Helper()
	require.NoError(t, r.Start(t.Context(), r.host))
	t.Cleanup(func() { require.NoError(t, r.Shutdown(context.Background())) })
}

// eventually waits for something that the receiver does on its own.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	require.Eventually(t, holds, time.Minute, time.Millisecond, what)
}

func (r *rig) points(t *testing.T) []string {
	t.Helper()
	md, err := r.scrape(t.Context())
	require.NoError(t, err)
	return points(md)
}

func (r *rig) attached() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.source != nil
}

func ints(pairs ...any) []metricdata.DataPoint[int64] {
	var out []metricdata.DataPoint[int64]
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, metricdata.DataPoint[int64]{Value: int64(pairs[i+1].(int)), Attributes: pairs[i].(attribute.Set)})
	}
	return out
}

func TestSnapshotsAreSentAndLossesCounted(t *testing.T) {
	r := newRig(t)
	r.machine.snapshot.Losses = probe.Losses{
		MapFull: map[string]uint64{"launches": 3, "copies": 1}, RingFull: 2, InFlight: 4, NamesEvicted: 5, AttachFailed: 6, Slow: 7, Denied: 8,
		Skipped: map[string]uint64{probe.SkipMalformed: 9},
	}
	r.start(t)
	eventually(t, "attached", r.attached)
	assert.Contains(t, r.points(t)[0], "gpu.cuda.graph.launch.calls map[] 5 since ")
	assert.Equal(t, []componentstatus.Status{componentstatus.StatusOK}, r.host.reported())

	r.machine.set(func() {
		next := *r.machine.snapshot
		next.Time = at(2)
		next.Losses.MapFull = map[string]uint64{"launches": 10, "copies": 1}
		next.Losses.RingFull = 3
		next.Losses.Folded = 9
		next.Losses.Users = map[uint32]uint64{1000: 6}
		next.Losses.Skipped = map[string]uint64{probe.SkipMalformed: 11, probe.SkipUserShare: 5}
		r.machine.snapshot = &next
	})
	require.Len(t, r.points(t), 1)

	none, same := attribute.NewSet(), metricdatatest.IgnoreTimestamp()
	metadatatest.AssertEqualReceiverCudaCallsLost(t, r.telemetry, ints(
		attribute.NewSet(attribute.String("map", "launches")), 10, attribute.NewSet(attribute.String("map", "copies")), 1), same)
	metadatatest.AssertEqualReceiverCudaEventsLost(t, r.telemetry, ints(none, 3), same)
	metadatatest.AssertEqualReceiverCudaLaunchesFolded(t, r.telemetry, ints(none, 9), same)
	metadatatest.AssertEqualReceiverCudaReturnsMissed(t, r.telemetry, ints(none, 4), same)
	metadatatest.AssertEqualReceiverCudaNamesEvicted(t, r.telemetry, ints(none, 5), same)
	metadatatest.AssertEqualReceiverCudaAttachFailed(t, r.telemetry, ints(none, 6), same)
	metadatatest.AssertEqualReceiverCudaAttachSlow(t, r.telemetry, ints(none, 7), same)
	metadatatest.AssertEqualReceiverCudaFilesSkipped(t, r.telemetry, ints(
		attribute.NewSet(attribute.String("cause", "malformed")), 11, attribute.NewSet(attribute.String("cause", "user_share")), 5), same)
	metadatatest.AssertEqualReceiverCudaDenied(t, r.telemetry, ints(none, 8), same)
	metadatatest.AssertEqualReceiverCudaAvailable(t, r.telemetry, ints(none, 1), same)
	state := func(s string) attribute.Set { return attribute.NewSet(attribute.String("state", s)) }
	metadatatest.AssertEqualReceiverCudaProcesses(t, r.telemetry, ints(state("reported"), 1, state("excluded"), 0, state("dropped"), 0), same)
	check := func(s string) attribute.Set { return attribute.NewSet(attribute.String("check", s)) }
	warned := r.logs.FilterMessage("calls are not counted: a user has more processes than its share").All()
	require.Len(t, warned, 1)
	assert.Equal(t, map[string]any{"user": uint32(1000), "calls": uint64(6)}, warned[0].ContextMap())
	metadatatest.AssertEqualReceiverCudaRuntimes(t, r.telemetry, ints(check("checking"), 0, check("passed"), 2, check("bypassing"), 1), same)
}

func TestWithoutPrivilegeItStaysUpAndSaysSoOnce(t *testing.T) {
	r := newRig(t)
	r.machine.start = errors.New("no right to load eBPF programs: give the collector CAP_BPF and CAP_PERFMON")
	r.start(t)
	eventually(t, "several attempts", func() bool { n, _ := r.machine.counts(); return n >= 4 })
	assert.Empty(t, r.points(t))
	warnings := r.logs.FilterLevelExact(zapcore.WarnLevel).All()
	require.Len(t, warnings, 1)
	assert.Equal(t, "no right to load eBPF programs: give the collector CAP_BPF and CAP_PERFMON", warnings[0].ContextMap()["error"])
	assert.Equal(t, []componentstatus.Status{componentstatus.StatusRecoverableError}, r.host.reported())
	metadatatest.AssertEqualReceiverCudaAvailable(t, r.telemetry, ints(attribute.NewSet(), 0), metricdatatest.IgnoreTimestamp())

	r.machine.set(func() { r.machine.start = nil })
	eventually(t, "attached", r.attached)
	assert.Len(t, r.points(t), 1)
	assert.Equal(t, []componentstatus.Status{componentstatus.StatusRecoverableError, componentstatus.StatusOK}, r.host.reported())
	opened, closed := r.machine.counts()
	assert.Equal(t, opened-1, closed, "each that failed was closed")
}

func TestSumsThatCannotBeReadAreToldOnceAndOpenedAnew(t *testing.T) {
	r := newRig(t)
	r.start(t)
	eventually(t, "attached", r.attached)
	require.Len(t, r.points(t), 1)

	r.machine.set(func() { r.machine.read = errors.New("map is gone") })
	assert.Empty(t, r.points(t))
	assert.Empty(t, r.points(t))
	r.machine.set(func() { r.machine.read = nil })
	require.Len(t, r.points(t), 1, "it came back by itself")
	opened, _ := r.machine.counts()
	assert.Equal(t, 1, opened)

	r.machine.set(func() { r.machine.read = errors.New("map is gone") })
	for range maxFailures {
		assert.Empty(t, r.points(t))
	}
	r.machine.set(func() { r.machine.read = nil })
	eventually(t, "a new source", func() bool { n, _ := r.machine.counts(); return n == 2 && r.attached() })
	require.Len(t, r.points(t), 1)
	assert.Len(t, r.logs.FilterMessage("CUDA calls cannot be read").All(), 2, "once each time")
	assert.Equal(t, []componentstatus.Status{
		componentstatus.StatusOK, componentstatus.StatusRecoverableError, componentstatus.StatusOK,
		componentstatus.StatusRecoverableError, componentstatus.StatusOK,
	}, r.host.reported())
	metadatatest.AssertEqualReceiverCudaSnapshotFailed(t, r.telemetry, ints(attribute.NewSet(), 2+maxFailures), metricdatatest.IgnoreTimestamp())
}

func TestShutdownDetaches(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.Shutdown(t.Context()), "before it was started")

	r = newRig(t)
	require.NoError(t, r.Start(t.Context(), r.host))
	eventually(t, "attached", r.attached)
	require.NoError(t, r.Shutdown(t.Context()))
	require.NoError(t, r.Shutdown(t.Context()))
	opened, closed := r.machine.counts()
	assert.Equal(t, opened, closed)
	assert.Empty(t, r.points(t))
}

func TestShutdownKeepsItsDeadline(t *testing.T) {
	r := newRig(t)
	r.machine.hang = make(chan struct{})
	require.NoError(t, r.Start(t.Context(), r.host))
	eventually(t, "opened", func() bool { n, _ := r.machine.counts(); return n == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, r.Shutdown(ctx), context.DeadlineExceeded)
	close(r.machine.hang)
	eventually(t, "closed in the end", func() bool { _, n := r.machine.counts(); return n == 1 })
	assert.Empty(t, r.host.reported(), "it was never in use")
	require.NoError(t, r.Shutdown(t.Context()))
}

func TestThePipelineGetsMetrics(t *testing.T) {
	r := newRig(t)
	r.cfg.InitialDelay = 0
	r.cfg.CollectionInterval = 5 * time.Millisecond
	sink := &consumertest.MetricsSink{}
	c, err := newController(r.cudaReceiver, r.cudaReceiver, sink)
	require.NoError(t, err)
	require.NoError(t, c.Start(t.Context(), r.host))
	eventually(t, "two collections", func() bool { return sink.DataPointCount() >= 2 })
	require.NoError(t, c.Shutdown(t.Context()))
	require.NoError(t, c.Shutdown(t.Context()))
	for _, md := range sink.AllMetrics() {
		if md.DataPointCount() > 0 {
			assert.Contains(t, points(md)[0], "gpu.cuda.graph.launch.calls map[] 5")
		}
	}
}

func TestWhatHappenedSinceTheLastCollectionIsSentAtTheEnd(t *testing.T) {
	r := newRig(t)
	r.cfg.CollectionInterval = time.Hour
	r.cfg.InitialDelay = time.Hour
	r.machine.snapshot = &probe.Snapshot{Time: time.Now(), Processes: []probe.Process{
		{ID: probe.ProcessID{PID: 1, Start: 10_000_000}, Ended: true, Graphs: 5},
	}}
	sink := &consumertest.MetricsSink{}
	c, err := newController(r.cudaReceiver, r.cudaReceiver, sink)
	require.NoError(t, err)
	require.NoError(t, c.Start(t.Context(), r.host))
	eventually(t, "attached", r.attached)
	assert.Zero(t, sink.DataPointCount())
	require.NoError(t, c.Shutdown(t.Context()))
	require.Equal(t, 1, sink.DataPointCount())
	assert.Contains(t, points(sink.AllMetrics()[0])[0], "gpu.cuda.graph.launch.calls map[] 5")
}
