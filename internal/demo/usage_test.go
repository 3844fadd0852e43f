// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
)

// exposition is what the exporter prints of a session: 5 ms on a device that costs 3.60 an hour.
const exposition = `# HELP gpu_cuda_busy_time_seconds_total Time in which at least one kernel ran.
# TYPE gpu_cuda_busy_time_seconds_total counter
gpu_cuda_busy_time_seconds_total{host_name="node",hw_id="GPU-1",hw_name="NVIDIA H200"} 0.003
gpu_cuda_observed_time_seconds_total{host_name="node",hw_id="GPU-1",hw_name="NVIDIA H200"} 0.005
gpu_cuda_time_seconds_total{cuda_operation="kernel",cuda_scope_name="a \"b\" \\\\ {c}, d",hw_id="GPU-1",service_name="minigpt"} 0.002000001
gpu_cuda_time_seconds_total{cuda_operation="kernel",hw_id="GPU-1",service_name="minigpt"} 0.0015
gpu_cuda_time_seconds_total{cuda_operation="memcpy",hw_id="GPU-1",service_name="minigpt"} 2.5e-07
gpu_cuda_kernel_launch_calls_total{hw_id="GPU-1",service_name="minigpt"} 40
gpu_cuda_graph_node_launches_total{hw_id="GPU-1",service_name="minigpt"} 2
gpu_cuda_kernel_duration_seconds_bucket{le="+Inf",service_name="minigpt"} 42
gpu_cuda_cost_total{cuda_cost_currency="USD",service_name="minigpt"} 2e-06
gpu_cuda_cost_total{cuda_cost_currency="USD",cuda_scope_name="a",service_name="minigpt"} 1e-06
gpu_cuda_cost_total{cuda_cost_currency="USD",service_name="_idle"} 2e-06
`

func TestUsageIsReadFromTheExporter(t *testing.T) {
	u, err := parseUsage(exposition)
	require.NoError(t, err)
	require.Len(t, u.cost, 2)
	assert.InDelta(t, 3e-6, u.cost[0].cost, 1e-18)
	assert.InDelta(t, 2e-6, u.cost[1].cost, 1e-18)
	u.cost = nil
	assert.Equal(t, usage{
		devices: []string{"NVIDIA H200 GPU-1"}, busy: 3 * time.Millisecond, observed: 5 * time.Millisecond,
		time: []operationTime{{"kernel", 3_500_001}, {"memcpy", 250}}, launches: 42, currency: "USD",
	}, u)
}

func TestUsageIsPrinted(t *testing.T) {
	u, err := parseUsage(exposition)
	require.NoError(t, err)
	var out strings.Builder
	u.print(&out)
	assert.Equal(t, `device    NVIDIA H200 GPU-1
busy      3.000 ms of 5.000 ms (60.0 %): kernels that overlap count once
used      kernel 3.500 ms, memcpy 0.000 ms: kernels that overlap count each
cost      minigpt 0.000003 USD, _idle 0.000002 USD: 3.60 USD an hour
`, out.String())
}

func TestUsageReportsALineThatIsNone(t *testing.T) {
	for _, line := range []string{"name", `name{a="b" 1`, `name{a=b} 1`, `name{a="b"}`, `name{a="b"} much`, `{a="b"} 1`, "<html>", `name{a="b`} {
		_, err := parseUsage(exposition + line + "\n")
		require.ErrorIs(t, err, errSeries, line)
	}
	u, err := parseUsage("")
	require.NoError(t, err)
	assert.Equal(t, usage{}, u)
}

func TestAwaitUsageComparesWithWhatWasWritten(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(exposition)) }))
	defer server.Close()
	m := metrics{url: server.URL}
	written := gpuflgen.Summary{Rows: map[string]int64{gpuflgen.RowKernel: 42}, KernelNanos: 3_500_001}
	arrived := report{first: 1_000_000, last: 6_000_000}
	got, err := awaitUsage(t.Context(), m, written, arrived)
	require.NoError(t, err)
	assert.Equal(t, int64(42), got.launches)

	written.KernelNanos++
	_, err = awaitUsage(t.Context(), m, written, arrived)
	assert.EqualError(t, err, "the collector's metrics have 3.500001ms of kernel time, but 3.500002ms was written")
}

func TestAwaitUsageWaitsForTheLastWork(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		text := exposition
		if asked++; asked < 3 {
			text = strings.Replace(text, "} 0.005", "} 0.004999999", 1)
		}
		_, _ = w.Write([]byte(text))
	}))
	defer server.Close()
	written := gpuflgen.Summary{Rows: map[string]int64{gpuflgen.RowKernel: 42}, KernelNanos: 3_500_001}
	_, err := awaitUsage(t.Context(), metrics{url: server.URL}, written, report{first: 1_000_000, last: 6_000_000})
	require.NoError(t, err)
	assert.Equal(t, 3, asked)
}
