// SPDX-License-Identifier: Apache-2.0

// Package trainsim makes the telemetry of a distributed training in which one rank is slow and each
// rank has a clock of its own, as the recorder would send it.
package trainsim

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/semconv"
)

// Training is what to simulate. All times are nanoseconds.
type Training struct {
	Run   string
	Start int64 // Unix time
	Ranks int
	Steps int
	// Slow is the rank whose host is busy for DelayNs in every third step.
	Slow    int
	DelayNs int64
	// OffsetNs is by how much the clock of rank r is ahead: r times this.
	OffsetNs int64
}

const µs = 1000

// Session returns the id of the session of a rank.
func (t *Training) Session(rank int) string {
	return fmt.Sprintf("%08x-0000-4000-8000-%012x", 0x35000000+rank, rank)
}

// Traces returns the spans of each rank. In each step a rank runs five kernels, and takes part in an
// all-reduce that the fourth one overlaps. Equal values give equal spans.
func (t *Training) Traces() []ptrace.Traces {
	rng := rand.New(rand.NewPCG(1, 2))
	all := make([]ptrace.Traces, t.Ranks)
	spans := make([]ptrace.SpanSlice, t.Ranks)
	ready := make([]int64, t.Ranks)
	for r := range all {
		all[r] = ptrace.NewTraces()
		rs := all[r].ResourceSpans().AppendEmpty()
		a := rs.Resource().Attributes()
		a.PutStr(semconv.ServiceName, "train")
		a.PutStr(semconv.ServiceInstanceID, t.Session(r))
		a.PutStr(semconv.HostName, fmt.Sprintf("node-%d", r))
		a.PutStr(semconv.HostID, fmt.Sprintf("%032x", r+1))
		a.PutStr(semconv.CUDARunID, t.Run)
		a.PutInt(semconv.CUDARunRank, int64(r))
		a.PutInt(semconv.CUDARunSize, int64(t.Ranks))
		spans[r] = rs.ScopeSpans().AppendEmpty().Spans()
		ready[r] = t.Start
	}
	kernel := func(r int, name string, stream, launch, start, end int64) {
		s := spans[r].AppendEmpty()
		offset := int64(r) * t.OffsetNs
		var trace pcommon.TraceID
		binary.BigEndian.PutUint64(trace[8:], uint64(r+1))
		var id pcommon.SpanID
		binary.BigEndian.PutUint64(id[:], uint64(r+1)<<32|uint64(spans[r].Len()))
		s.SetTraceID(trace)
		s.SetSpanID(id)
		s.SetName(name)
		s.SetKind(ptrace.SpanKindInternal)
		s.SetStartTimestamp(pcommon.Timestamp(start + offset))
		s.SetEndTimestamp(pcommon.Timestamp(end + offset))
		a := s.Attributes()
		a.PutStr(semconv.CUDAOperation, semconv.CUDAOperationKernel)
		a.PutStr(semconv.CUDAKernelName, name)
		a.PutStr(semconv.HWID, fmt.Sprintf("GPU-%d", r))
		a.PutInt(semconv.CUDADeviceIndex, 0)
		a.PutInt(semconv.CUDAContextID, 1)
		a.PutInt(semconv.CUDAStreamID, stream)
		a.PutInt(semconv.CUDALaunchStartTimeUnixNano, launch+offset)
		a.PutInt(semconv.CUDALaunchEndTimeUnixNano, launch+4*µs+offset)
		a.PutDouble(semconv.CUDAQueueDuration, float64(start-launch-4*µs)/1e9)
	}
	for step := range t.Steps {
		enter, last := make([]int64, t.Ranks), int64(0)
		for r := range all {
			if r == t.Slow && step%3 == 2 {
				ready[r] += t.DelayNs
			}
			for range 3 {
				end := ready[r] + 6*µs + 190*µs + rng.Int64N(40*µs)
				kernel(r, "gemm", 7, ready[r], ready[r]+6*µs, end)
				ready[r] = end
			}
			enter[r] = ready[r] + 8*µs
			last = max(last, enter[r])
		}
		for r := range all {
			leave := last + 150*µs + rng.Int64N(8*µs)
			kernel(r, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, ready[r], enter[r], leave)
			kernel(r, "gemm", 7, ready[r]+4*µs, enter[r]+10*µs, enter[r]+90*µs)
			kernel(r, "adam", 7, ready[r]+8*µs, leave+6*µs, leave+60*µs)
			ready[r] = leave + 60*µs
		}
	}
	return all
}
