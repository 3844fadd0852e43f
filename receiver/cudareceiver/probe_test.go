// SPDX-License-Identifier: Apache-2.0

//go:build linux

package cudareceiver

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/stubcuda"
)

// counted returns the resource of a process, and its points by metric and attributes: values of
// sums, counts of histograms.
func counted(md pmetric.Metrics, pid int) (resource pcommon.Map, out map[string]int64) {
	for _, rm := range md.ResourceMetrics().All() {
		if v, ok := rm.Resource().Attributes().Get("process.pid"); !ok || v.Int() != int64(pid) {
			continue
		}
		out = map[string]int64{}
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			key := func(a pcommon.Map) string {
				var parts []string
				for k, v := range a.All() {
					parts = append(parts, k[strings.LastIndexByte(k, '.')+1:]+"="+v.AsString())
				}
				return strings.Join(append([]string{strings.TrimPrefix(m.Name(), "gpu.cuda.")}, parts...), " ")
			}
			if m.Type() == pmetric.MetricTypeSum {
				for _, p := range m.Sum().DataPoints().All() {
					out[key(p.Attributes())] = p.IntValue()
				}
				continue
			}
			for _, p := range m.Histogram().DataPoints().All() {
				out[key(p.Attributes())] = int64(p.Count())
			}
		}
		return rm.Resource().Attributes(), out
	}
	return pcommon.NewMap(), nil
}

// TestAgainstTheKernel observes a program that calls a stub driver, by eBPF.
func TestAgainstTheKernel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("eBPF needs root here")
	}
	r := newRig(t)
	r.cfg.RootPath = "/"
	libraries := stubcuda.Build(t)
	program := libraries.Start(t, "OTEL_SERVICE_NAME=stub", "OTEL_RESOURCE_ATTRIBUTES=team=gpu")
	program.Must("open %s", libraries.Library)
	trial := openProbe(r.cfg, zap.NewNop())
	err := trial.Start(t.Context())
	require.NoError(t, trial.Close())
	if errors.Is(err, os.ErrPermission) || errors.Is(err, ebpf.ErrNotSupported) {
		t.Skip("no eBPF here: ", err)
	}
	require.NoError(t, err)

	r.open = openProbe
	r.start(t)
	eventually(t, "attached", r.attached)
	program.Must("function 1 _Z6kernelv")
	program.Must("threads 4")
	program.Must("launch 1000 1 8 256")
	program.Must("copy cuMemcpyHtoDAsync_v2 10 4096")
	program.Must("threads 1")
	program.Must("alloc cuMemAlloc_v2 2 1024")
	program.Must("wait cuStreamSynchronize 3")
	program.Must("load %s", libraries.NCCL)
	require.Eventually(t, func() bool {
		program.Must("call 1 ncclAllReduce 1 2 100 7 0 0 0")
		md, err := r.scrape(t.Context())
		require.NoError(t, err)
		_, got := counted(md, program.PID())
		return got["collective.size name=ncclAllReduce"] > 0
	}, time.Minute, 100*time.Millisecond, "NCCL is attached to when it is loaded")
	program.Must("call 2 ncclGroupStart")
	program.Must("call 6 ncclSend 1 1000 2 0 0 0")
	program.Must("call 2 ncclGroupEnd")

	md, err := r.scrape(t.Context())
	require.NoError(t, err)
	resource, got := counted(md, program.PID())
	attributes := resource.AsRaw()
	assert.Equal(t, "stub", attributes["service.name"])
	assert.Equal(t, "gpu", attributes["team"])
	assert.Equal(t, "calls", attributes["process.executable.name"])
	want := map[string]int64{
		"kernel.launch.calls name=kernel()":           4000,
		"kernel.grid.size name=kernel()":              4000,
		"kernel.block.size name=kernel()":             4000,
		"memory.copies kind=HtoD async=true":          40,
		"memory.allocations kind=device":              2048,
		"memory.allocation.calls kind=device":         2,
		"memory.in_use kind=device":                   2048,
		"sync.wait.duration name=cuStreamSynchronize": 3,
		"collective.size name=ncclSend":               6,
		"api.duration name=ncclSend":                  0,
		"api.duration name=ncclGroupEnd":              1,
	}
	for key, n := range want {
		assert.Equal(t, n, got[key], key)
	}

	program.Must("launch 5 1 8 256")
	program.End()
	// The probe notices the end of a process within about a second. In between, its sums may be
	// read again.
	var last map[string]int64
	require.Eventually(t, func() bool {
		md, err := r.scrape(t.Context())
		require.NoError(t, err)
		_, now := counted(md, program.PID())
		if now != nil {
			last = now
		}
		return now == nil
	}, time.Minute, 50*time.Millisecond, "its series end")
	assert.Equal(t, int64(4005), last["kernel.launch.calls name=kernel()"], "the last values were sent")
	require.NoError(t, r.Shutdown(context.Background()))
	opened, _ := r.machine.counts()
	assert.Zero(t, opened)
}
