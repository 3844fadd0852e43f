// SPDX-License-Identifier: Apache-2.0

//go:build linux

package occupancy_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// measurement is a launch with the number of its blocks per multiprocessor of an H200, by
// cudaOccupancyMaxActiveBlocksPerMultiprocessor.
type measurement struct {
	registers, static, dynamic, threads, blocks int64
	line                                        string
}

// measurements reads the table in internal/testing/testdata, or the one that
// GPUFLIGHT_OCCUPANCY_TABLE names.
func measurements(t *testing.T) []measurement {
	t.Helper()
	path := os.Getenv("GPUFLIGHT_OCCUPANCY_TABLE")
	if path == "" {
		path = filepath.Join(process.Root(t), "internal", "testing", "testdata", "occupancy-h200.csv")
	}
	f, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	var out []measurement
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || line[0] < '0' || line[0] > '9' {
			continue // the header
		}
		fields := strings.Split(line, ",")
		require.Len(t, fields, 5, line)
		var n [5]int64
		for i, text := range fields {
			n[i], err = strconv.ParseInt(text, 10, 64)
			require.NoError(t, err, line)
		}
		out = append(out, measurement{n[0], n[1], n[2], n[3], n[4], line})
	}
	require.NoError(t, lines.Err())
	require.NotEmpty(t, out)
	return out
}

// sms is the number of multiprocessors of an H200.
const sms = 132

// gridOf is the grid of the i-th launch: from less than one wave to many.
func gridOf(i int) int64 { return int64(1 + i*7%20000) }

// TestOccupancy_MeasuredLaunches sends the measured launches as spans. One run has the device's
// properties on the resource, the other only the device's name.
func TestOccupancy_MeasuredLaunches(t *testing.T) {
	rows := measurements(t)
	for name, resource := range map[string]map[string]any{
		"described by the resource": {"cuda.device.compute_capability": "9.0", "cuda.device.sm_count": int64(sms)},
		"known by its name":         {"hw.name": "NVIDIA H200"},
	} {
		t.Run(name, func(t *testing.T) {
			endpoint := process.FreePort(t)
			store := start(t, "otlp", map[string]any{
				"protocols": map[string]any{"grpc": map[string]any{"endpoint": endpoint, "max_recv_msg_size_mib": 64}},
			}, nil)
			send(t, endpoint, resource, rows)
			require.True(t, store.Settle(200*time.Millisecond, 30*time.Second, func() bool {
				return store.Distinct().Spans == len(rows)
			}), "%d spans came of %d", store.Distinct().Spans, len(rows))
			seen := make([]bool, len(rows))
			for _, span := range store.Spans() {
				i := int(binary.BigEndian.Uint64(span.SpanKey.Span[:])) - 1
				require.False(t, seen[i])
				seen[i] = true
				compare(t, rows[i], gridOf(i), span)
			}
		})
	}
}

func send(t *testing.T, endpoint string, resource map[string]any, rows []measurement) {
	t.Helper()
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	require.NoError(t, rs.Resource().Attributes().FromRaw(resource))
	spans := rs.ScopeSpans().AppendEmpty().Spans()
	for i, m := range rows {
		span := spans.AppendEmpty()
		var id pcommon.SpanID
		binary.BigEndian.PutUint64(id[:], uint64(i+1))
		span.SetSpanID(id)
		span.SetTraceID(pcommon.TraceID{1})
		span.SetName("kernel")
		span.SetStartTimestamp(1)
		span.SetEndTimestamp(2)
		require.NoError(t, span.Attributes().FromRaw(map[string]any{
			"cuda.operation":                    "kernel",
			"cuda.kernel.grid":                  []any{gridOf(i), 1, 1},
			"cuda.kernel.block":                 []any{m.threads, 1, 1},
			"cuda.kernel.registers_per_thread":  m.registers,
			"cuda.kernel.shared_memory.static":  m.static,
			"cuda.kernel.shared_memory.dynamic": m.dynamic,
		}))
	}
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err = ptraceotlp.NewGRPCClient(conn).Export(ctx, ptraceotlp.NewExportRequestFromTraces(td))
	require.NoError(t, err)
}

func compare(t *testing.T, m measurement, grid int64, span testsink.Span) {
	t.Helper()
	a := span.Attrs
	warps := m.blocks * ((m.threads + 31) / 32)
	assert.Equal(t, m.blocks, a["cuda.occupancy.active_blocks_per_sm"], "blocks of %s", m.line)
	assert.Equal(t, warps, a["cuda.occupancy.active_warps_per_sm"], "warps of %s", m.line)
	assert.InDelta(t, float64(warps)/64, a["cuda.occupancy.theoretical"], 1e-12, "occupancy of %s", m.line)
	assert.Equal(t, limiters(m), a["cuda.occupancy.limiter"], "limiters of %s", m.line)
	if m.blocks == 0 {
		assert.NotContains(t, a, "cuda.occupancy.waves", m.line)
		assert.NotContains(t, a, "cuda.occupancy.grid_fill", m.line)
		return
	}
	places := m.blocks * sms
	waves := (grid + places - 1) / places
	assert.InEpsilon(t, float64(grid)/float64(places), a["cuda.occupancy.waves"], 1e-12, "waves of %d blocks of %s", grid, m.line)
	assert.InEpsilon(t, float64(grid)/float64(waves*places), a["cuda.occupancy.grid_fill"], 1e-12, "fill of %d blocks of %s", grid, m.line)
}

// limiters returns the resources of an H200 that allow at most the measured number of blocks. An
// H200 has 64 warps, 32 blocks, 16384 registers in each of four sub-partitions and 228 KiB of shared
// memory.
func limiters(m measurement) []any {
	warps := (m.threads + 31) / 32
	perWarp := (m.registers*32 + 255) / 256 * 256
	byRegisters := 16384 / perWarp * 4 / warps
	byShared := 233472 / ((m.static + m.dynamic + 1024 + 127) / 128 * 128)
	if m.static+m.dynamic > 232448 {
		byShared = 0
	}
	var out []any
	for _, r := range []struct {
		name  string
		limit int64
	}{{"warps", 64 / warps}, {"registers", byRegisters}, {"shared_memory", byShared}, {"blocks", 32}} {
		if r.limit == m.blocks {
			out = append(out, r.name)
		}
	}
	return out
}
