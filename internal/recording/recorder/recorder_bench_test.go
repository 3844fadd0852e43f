// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// nowhere is a sink that discards everything.
type nowhere struct{}

func (nowhere) Backlog() bool           { return false }
func (nowhere) Traces(ptrace.Traces)    {}
func (nowhere) Logs(plog.Logs)          {}
func (nowhere) Metrics(pmetric.Metrics) {}

// benchRecords is a buffer as CUPTI fills it: about 38,000 kernels. If scoped is set, each has the
// scope of its call.
func benchRecords(first uint32, scoped bool, scopes []uint64) *records {
	const perBuffer = 38_000
	names := make([]*gpuevent.KernelName, 40)
	for i := range names {
		names[i] = nameOf(fmt.Sprint("bench_kernel_", i))
	}
	b := &records{}
	for i := range uint32(perBuffer) {
		h := cupti.Head{
			Kind: cupti.KindKernel, Name: names[i*7%40], Correlation: first + i,
			Start: base + int64(i)*2500, End: base + int64(i)*2500 + int64(i%97)*31,
		}
		if scoped {
			h.Scope = scopes[int(i/100)%len(scopes)]
		}
		b.heads = append(b.heads, h)
	}
	return b
}

// BenchmarkProcess measures the cost of one kernel. 400,000 kernels/s on one core leave 2,500 ns
// for each; a quarter of a core is 625 ns. limit is the number of spans for 38,000 kernels: 1,900
// at 400,000 kernels/s and 20,000 spans/s.
func BenchmarkProcess(b *testing.B) {
	for _, c := range []struct {
		name   string
		limit  int
		scoped bool
	}{
		{"aggregated", 0, false},
		{"aggregated and scoped", 0, true},
		{"limited", 1900, false},
		{"limited and scoped", 1900, true},
		{"every kernel a span", 1 << 30, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			src := &source{devices: oneDevice}
			r, err := New(Config{InstanceID: testInstance, MaxSpansPerSecond: 1 << 30}, src, nowhere{})
			require.NoError(b, err)
			e := r.engine
			var ids []uint64
			for i := range 20 {
				ids = append(ids, r.Begin(Scope{Ref: refOf(1, byte(i+1)), Sampled: true, Name: fmt.Sprint("scope", i)}))
			}
			r.learnScopes()
			buffer := benchRecords(1, c.scoped, ids)
			kernels := 0
			b.ReportAllocs()
			for b.Loop() {
				before := e.totals.kernels
				e.portion([]Records{buffer}, c.limit)
				kernels += int(e.totals.kernels - before)
				e.batch.Take()
			}
			require.Equal(b, b.N*38_000, kernels)
			require.Equal(b, e.totals.kernels, e.spans.Emitted+e.spans.LeftOut)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(kernels), "ns/kernel")
		})
	}
}

func BenchmarkChoose(b *testing.B) {
	all := make([]candidate, 200_000)
	for i := range all {
		all[i] = candidate{ns: int64(i*7919%100_003) * 10, group: uint32(i * 31 % 60)}
	}
	var c chooser
	for b.Loop() {
		for i := range all {
			all[i].chosen = false
		}
		if n := c.choose(all, groups, 4000); n != 4000 {
			b.Fatal(n)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(all)), "ns/candidate")
}

// BenchmarkScope measures the cost of a scope for its thread, without CUPTI's part.
func BenchmarkScope(b *testing.B) {
	f := newFixture(b, Config{}).start()
	s := Scope{Ref: refOf(1, 1), Sampled: true, Name: "step"}
	b.ReportAllocs()
	for b.Loop() {
		f.r.End(f.r.Begin(s))
	}
	b.StopTimer()
	f.stop()
}

func BenchmarkMetrics(b *testing.B) {
	src := &source{devices: oneDevice}
	r, err := New(Config{InstanceID: testInstance}, src, nowhere{})
	require.NoError(b, err)
	var heads []cupti.Head
	for i := range 4000 {
		heads = append(heads, kernel(fmt.Sprint("k", i%400), 0, 0, int64(i*100)))
	}
	r.engine.portion([]Records{&records{heads: heads}}, 0)
	b.ReportAllocs()
	for b.Loop() {
		r.engine.sendMetrics()
	}
}
