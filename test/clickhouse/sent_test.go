// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clickhouse_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver"
)

// telemetry is the sent data by request.
type telemetry struct {
	traces  []ptrace.Traces
	logs    []plog.Logs
	metrics []pmetric.Metrics
}

// read runs the log receiver over a folder until at least the given number of spans has arrived and
// no more data arrives.
func read(t *testing.T, dir string, spans int) telemetry {
	t.Helper()
	factory := gpuflogreceiver.NewFactory()
	cfg := factory.CreateDefaultConfig()
	require.NoError(t, confmap.NewFromStringMap(map[string]any{"include": []any{dir}, "poll_interval": "50ms"}).Unmarshal(cfg))

	// The receiver calls its consumers sequentially, and not after Shutdown.
	var out telemetry
	seen := testsink.NewStore("cuda.operation")
	toTraces, err := consumer.NewTraces(func(_ context.Context, td ptrace.Traces) error {
		own := ptrace.NewTraces()
		td.CopyTo(own)
		out.traces = append(out.traces, own)
		seen.AddTraces(td)
		return nil
	})
	require.NoError(t, err)
	toLogs, err := consumer.NewLogs(func(_ context.Context, ld plog.Logs) error {
		own := plog.NewLogs()
		ld.CopyTo(own)
		out.logs = append(out.logs, own)
		seen.AddLogs(ld)
		return nil
	})
	require.NoError(t, err)
	toMetrics, err := consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
		own := pmetric.NewMetrics()
		md.CopyTo(own)
		out.metrics = append(out.metrics, own)
		seen.AddMetrics(md)
		return nil
	})
	require.NoError(t, err)

	set := receivertest.NewNopSettings(factory.Type())
	traces, err := factory.CreateTraces(t.Context(), set, cfg, toTraces)
	require.NoError(t, err)
	logs, err := factory.CreateLogs(t.Context(), set, cfg, toLogs)
	require.NoError(t, err)
	metrics, err := factory.CreateMetrics(t.Context(), set, cfg, toMetrics)
	require.NoError(t, err)
	for _, c := range []component.Component{traces, logs, metrics} {
		require.NoError(t, c.Start(t.Context(), componenttest.NewNopHost()))
	}
	settled := seen.Settle(500*time.Millisecond, time.Minute, func() bool { return seen.Distinct().Spans >= spans })
	for _, c := range []component.Component{traces, logs, metrics} {
		require.NoError(t, c.Shutdown(t.Context()))
	}
	require.True(t, settled, "%d spans came, at least %d were expected", seen.Distinct().Spans, spans)
	return out
}

// generate writes a session of that many kernels across midnight and reads it.
func generate(t *testing.T, seed uint64, kernels int64) telemetry {
	t.Helper()
	dir := t.TempDir()
	_, err := gpuflgen.Run(t.Context(), gpuflgen.Config{
		Dir: dir, App: "tables", Seed: seed, Kernels: kernels, Layers: 2, StackBytes: 200, DistinctStacks: 20,
		Start: time.Date(2026, 11, 20, 23, 59, 59, 500e6, time.UTC),
	})
	require.NoError(t, err)
	return read(t, dir, int(kernels))
}

// and returns both in sequence.
func (s telemetry) and(o telemetry) telemetry {
	return telemetry{slices.Concat(s.traces, o.traces), slices.Concat(s.logs, o.logs), slices.Concat(s.metrics, o.metrics)}
}

// pieces splits the data into requests of at most n spans.
func (s telemetry) pieces(n int) telemetry {
	out := telemetry{logs: s.logs, metrics: s.metrics}
	for _, td := range s.traces {
		for _, rs := range td.ResourceSpans().All() {
			for _, ss := range rs.ScopeSpans().All() {
				var to ptrace.ScopeSpans
				for i, sp := range ss.Spans().All() {
					if i%n == 0 {
						td := ptrace.NewTraces()
						rs.Resource().CopyTo(td.ResourceSpans().AppendEmpty().Resource())
						to = td.ResourceSpans().At(0).ScopeSpans().AppendEmpty()
						ss.Scope().CopyTo(to.Scope())
						out.traces = append(out.traces, td)
					}
					sp.CopyTo(to.Spans().AppendEmpty())
				}
			}
		}
	}
	return out
}

// send sends all data over OTLP and returns when it is accepted.
func (s telemetry) send(ctx context.Context, address string) error {
	c, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	for _, td := range s.traces {
		if _, err := ptraceotlp.NewGRPCClient(c).Export(ctx, ptraceotlp.NewExportRequestFromTraces(td)); err != nil {
			return err
		}
	}
	for _, ld := range s.logs {
		if _, err := plogotlp.NewGRPCClient(c).Export(ctx, plogotlp.NewExportRequestFromLogs(ld)); err != nil {
			return err
		}
	}
	for _, md := range s.metrics {
		if _, err := pmetricotlp.NewGRPCClient(c).Export(ctx, pmetricotlp.NewExportRequestFromMetrics(md)); err != nil {
			return err
		}
	}
	return nil
}
