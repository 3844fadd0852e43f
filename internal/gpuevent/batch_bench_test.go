// SPDX-License-Identifier: Apache-2.0

package gpuevent

import (
	"testing"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/semconv"
)

// takeEvery is how many events a batch holds in the benchmarks: as many as a receiver sends at once.
const takeEvery = 4096

// kernelOf is a kernel as a current log gives it: sixteen attributes, two of them arrays.
func kernelOf() *Kernel {
	return &Kernel{
		Span: Span{
			Ref: ref(1), StartNs: t0, EndNs: t0 + 5000, Stream: Some(7), Correlation: Some(1),
			Stack: "at::_ops::add::call\ntorch::autograd\nPyEval_EvalFrameDefault\nmain",
		},
		Name: NewKernelName("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIiEESt5arrayIPcLm1EEEEviT0_T1_"),
		Grid: [3]int64{64, 1, 1}, Block: [3]int64{256, 1, 1},
		RegistersPerThread: Some(40), SharedStatic: Some(16384), SharedDynamic: Some(0), SharedExecuted: Some(33792),
		ReportedOccupancy: SomeFloat(0.75), ReportedLimiter: "registers",
	}
}

func BenchmarkKernel(b *testing.B) {
	batch, s, k := NewBatch(everySignal), oneDevice(), kernelOf()
	batch.Kernel(s, k)
	traces, _, _ := batch.Take()
	if n := traces.ResourceSpans().At(0).ScopeSpans().At(0).Spans().At(0).Attributes().Len(); n != 16 {
		b.Fatalf("%d attributes, want 16", n)
	}
	n := int64(0)
	run(b, batch, func() {
		n++
		k.Correlation = Some(n)
		k.StartNs, k.EndNs = t0+n, t0+n+5000
		batch.Kernel(s, k)
	})
}

// BenchmarkKernelOfOldLogs adds the times of the launch, as the article's format has them.
func BenchmarkKernelOfOldLogs(b *testing.B) {
	batch, s, k := NewBatch(everySignal), oneDevice(), kernelOf()
	n := int64(0)
	run(b, batch, func() {
		n++
		k.Correlation = Some(n)
		k.LaunchStartNs, k.LaunchEndNs = Some(t0+n-2000), Some(t0+n-1000)
		k.StartNs, k.EndNs = t0+n, t0+n+5000
		batch.Kernel(s, k)
	})
}

func BenchmarkCopy(b *testing.B) {
	batch, s := NewBatch(everySignal), oneDevice()
	c := &Copy{Span: Span{Ref: ref(1), StartNs: t0, EndNs: t0 + 5000, Stream: Some(7), Correlation: Some(1)}, Kind: "HtoD", Bytes: Some(4096)}
	run(b, batch, func() { batch.Copy(s, c) })
}

func BenchmarkPCSample(b *testing.B) {
	batch, s := NewBatch(everySignal), oneDevice()
	p := &PCSample{
		Ref: ref(1), UID: KeyOf("s").UID(1, 0), TimeNs: t0, Function: NewKernelName("_ZN2ns3addIfEEvPfi"), PCOffset: Some(416),
		Reason: "smsp__pcsamp_warps_issue_stalled_long_scoreboard", Count: 12, File: "/src/train.cu", Line: Some(42), Device: Some(0),
	}
	run(b, batch, func() { batch.PCSample(s, p) })
}

func BenchmarkDeviceSample(b *testing.B) {
	batch, s := NewBatch(everySignal), oneDevice()
	d := &DeviceSample{
		TimeNs: t0, Utilization: SomeFloat(0.93), MemoryControllerUtilization: SomeFloat(0.46),
		MemoryUsed: Some(10 << 30), MemoryTotal: Some(40 << 30), Temperature: SomeFloat(64), Power: SomeFloat(343), ClockSM: Some(1_980_000_000),
	}
	run(b, batch, func() { batch.DeviceSample(s, d) })
}

func BenchmarkKernelsOfTwoSessionsInTurn(b *testing.B) {
	batch, sessions, k := NewBatch(everySignal), []*Session{oneDevice(), twoDevices()}, kernelOf()
	n := 0
	run(b, batch, func() {
		n++
		batch.Kernel(sessions[n&1], k)
	})
}

func run(b *testing.B, batch *Batch, add func()) {
	b.Helper()
	b.ReportAllocs()
	items := 0
	taken := 0
	for b.Loop() {
		add()
		items++
		if items%takeEvery == 0 {
			taken += batch.Spans() + batch.LogRecords() + batch.Points()
			batch.Take()
		}
	}
	if taken += batch.Spans() + batch.LogRecords() + batch.Points(); taken < items {
		b.Fatalf("%d events gave %d items", items, taken)
	}
}

// BenchmarkWaysOfWritingAttributes compares the ways that pdata's interface leaves to fill a map
// with the attributes of a kernel; it is why attrs is as it is. Copying a map whose values are set,
// too, is the bound: it is only right for what never changes.
func BenchmarkWaysOfWritingAttributes(b *testing.B) {
	shape, full := pcommon.NewMap(), pcommon.NewMap()
	fill(full)
	a := newAttrs(spanKeys[:])
	for key := range full.All() {
		shape.PutEmpty(key)
	}
	for _, way := range []struct {
		name  string
		write func(pcommon.Map)
	}{
		{"put", fill},
		{"attrs", func(m pcommon.Map) {
			set(a)
			a.write(m)
		}},
		{"copy keys only", func(m pcommon.Map) { shape.CopyTo(m) }},
		{"copy keys and values", func(m pcommon.Map) { full.CopyTo(m) }},
	} {
		b.Run(way.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m := pcommon.NewMap()
				way.write(m)
				if m.Len() != 16 {
					b.Fatalf("%d attributes", m.Len())
				}
			}
		})
	}
}

func set(a *attrs) {
	k := kernelOfBench
	a.str(spanOperation, semconv.CUDAOperationKernel)
	a.str(spanKernelName, k.Name.Full)
	a.str(spanKernelSymbol, k.Name.Symbol)
	a.triple(spanGrid, &k.Grid)
	a.triple(spanBlock, &k.Block)
	for i, slot := range []int{spanRegisters, spanSharedStatic, spanSharedDynamic, spanSharedExecuted, spanLocal, spanStream, spanCorrelation, spanDevice} {
		a.int(slot, int64(1000+i))
	}
	a.double(spanOccupancy, 0.75)
	a.str(spanLimiter, k.ReportedLimiter)
	a.str(spanStack, k.Stack)
}

func fill(m pcommon.Map) {
	k := kernelOfBench
	m.EnsureCapacity(16)
	m.PutStr(semconv.CUDAOperation, semconv.CUDAOperationKernel)
	m.PutStr(semconv.CUDAKernelName, k.Name.Full)
	m.PutStr(semconv.CUDAKernelSymbol, k.Name.Symbol)
	for _, key := range []string{semconv.CUDAKernelGrid, semconv.CUDAKernelBlock} {
		list := m.PutEmptySlice(key)
		list.EnsureCapacity(3)
		for _, d := range k.Grid {
			list.AppendEmpty().SetInt(d)
		}
	}
	for i, slot := range []int{spanRegisters, spanSharedStatic, spanSharedDynamic, spanSharedExecuted, spanLocal, spanStream, spanCorrelation, spanDevice} {
		m.PutInt(spanKeys[slot], int64(1000+i))
	}
	m.PutDouble(semconv.CUDAOccupancyReported, 0.75)
	m.PutStr(semconv.CUDAOccupancyReportedLimiter, k.ReportedLimiter)
	m.PutStr(semconv.CodeStacktrace, k.Stack)
}

var kernelOfBench = kernelOf()
