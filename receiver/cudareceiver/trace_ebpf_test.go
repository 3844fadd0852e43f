// SPDX-License-Identifier: Apache-2.0

//go:build linux

package cudareceiver

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/stubcuda"
	"github.com/gpuflight/gpuflight/semconv"
)

// needsEBPF skips the test if eBPF is unavailable.
func needsEBPF(t *testing.T, cfg *Config) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("eBPF needs root here")
	}
	trial := openProbe(cfg, zap.NewNop())
	err := trial.Start(t.Context())
	require.NoError(t, trial.Close())
	var refused *ebpf.VerifierError
	if !errors.As(err, &refused) && (errors.Is(err, os.ErrPermission) || errors.Is(err, ebpf.ErrNotSupported)) {
		t.Skip("no eBPF here: ", err)
	}
	require.NoError(t, err)
}

// handing is a source that also passes its traces to the test, which ends them.
type handing struct {
	source
	traces chan<- tracing
}

func (h handing) Trace(o probe.TraceOptions) (tracing, error) {
	tr, err := h.source.Trace(o)
	if err == nil {
		h.traces <- tr
	}
	return tr, err
}

// TestTracesAgainstTheKernel traces two programs that call a stub driver, by eBPF and a signal.
func TestTracesAgainstTheKernel(t *testing.T) {
	r := newRig(t)
	r.cfg.RootPath = "/"
	r.cfg.Trace.Duration = time.Hour
	libraries := stubcuda.Build(t)
	child := libraries.Start(t, "OTEL_SERVICE_NAME=stub", "TRACEPARENT="+parent)
	alone := libraries.Start(t, "TRACEPARENT=garbage")
	child.Must("open %s", libraries.Library)
	alone.Must("open %s", libraries.Library)
	r.cfg.Include.PIDs = []int32{int32(child.PID()), int32(alone.PID())}
	needsEBPF(t, r.cfg)

	sink := &consumertest.TracesSink{}
	var err error
	r.tracer, err = newTracer(r.cfg, r.set, r.cudaReceiver.telemetry, sink)
	require.NoError(t, err)
	traces := make(chan tracing, 1)
	r.open = func(cfg *Config, log *zap.Logger) source { return handing{openProbe(cfg, log), traces} }
	r.start(t)
	eventually(t, "attached", r.attached)
	child.Must("function 1 _Z6kernelv")
	child.Must("threads 4")
	child.Must("launch 10 1 8 256")

	opened := time.Now().UnixNano()
	require.NoError(t, syscall.Kill(syscall.Getpid(), syscall.SIGUSR1))
	eventually(t, "a trace", func() bool { return r.logs.FilterMessage("trace started").Len() == 1 })
	child.Must("launch 250 1 8 256")
	child.Must("copy cuMemcpyHtoDAsync_v2 25 4096")
	child.Must("wait cuStreamSynchronize 5")
	alone.Must("wait cuCtxSynchronize 3")
	called := time.Now().UnixNano()
	traced := <-traces
	require.NoError(t, traced.Stop())
	eventually(t, "its end", func() bool { return r.logs.FilterMessage("trace ended").Len() == 1 })
	child.Must("launch 10 1 8 256") // nobody looks any more
	ended := r.logs.FilterMessage("trace ended").All()[0].ContextMap()
	assert.EqualValues(t, 1123, ended["spans"])
	// Other programs of the machine may call other drivers concurrently, and lose calls.
	lost := traced.Losses().Processes
	assert.NotContains(t, lost, int32(child.PID()))
	assert.NotContains(t, lost, int32(alone.PID()))

	names := map[string]int{}
	var root ptrace.Span
	var children []ptrace.Span
	for _, td := range sink.AllTraces() {
		for _, rs := range td.ResourceSpans().All() {
			pid, _ := rs.Resource().Attributes().Get(semconv.ProcessPID)
			for _, s := range rs.ScopeSpans().At(0).Spans().All() {
				names[s.Name()]++
				const millisecond = 1_000_000 // more than the clocks may differ by
				assert.GreaterOrEqual(t, int64(s.StartTimestamp()), opened-millisecond)
				assert.LessOrEqual(t, s.StartTimestamp(), s.EndTimestamp())
				switch {
				case pid.Int() == int64(child.PID()):
					assert.LessOrEqual(t, int64(s.EndTimestamp()), called+millisecond)
					assert.Equal(t, parent[3:35], s.TraceID().String())
					assert.Equal(t, parent[36:52], s.ParentSpanID().String())
				case s.Kind() == ptrace.SpanKindInternal:
					root = s
				default:
					children = append(children, s)
				}
				if s.Name() == "cuLaunchKernel kernel" {
					name, _ := s.Attributes().Get(semconv.CUDAKernelName)
					assert.Equal(t, "kernel()", name.Str())
					symbol, _ := s.Attributes().Get(semconv.CUDAKernelSymbol)
					assert.Equal(t, "_Z6kernelv", symbol.Str())
				}
			}
		}
	}
	assert.Equal(t, map[string]int{
		"cuLaunchKernel kernel": 1000, "cuMemcpyHtoDAsync_v2": 100, "cuStreamSynchronize": 20, "cuCtxSynchronize": 3, "calls": 1,
	}, names)
	require.Len(t, children, 3)
	for _, s := range children {
		assert.Equal(t, root.TraceID(), s.TraceID())
		assert.Equal(t, root.SpanID(), s.ParentSpanID())
		assert.NotEqual(t, pcommon.SpanID{}, s.SpanID())
		assert.GreaterOrEqual(t, s.StartTimestamp(), root.StartTimestamp())
		assert.LessOrEqual(t, s.EndTimestamp(), root.EndTimestamp())
	}
	// The sums had them all, traced or not.
	md, err := r.scrape(t.Context())
	require.NoError(t, err)
	_, got := counted(md, child.PID())
	assert.EqualValues(t, 1080, got["kernel.launch.calls name=kernel()"])
}
