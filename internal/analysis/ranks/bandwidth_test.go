// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// link is ranks of one host whose collectives have known sizes and times.
type link struct {
	ranks []*memory
	model string
	now   int64
	span  store.SpanID
	// instance is the number of the last range.
	instance int64
}

func newLink(n int, model string) *link {
	l := &link{model: model, now: trueBase}
	for range n {
		l.ranks = append(l.ranks, &memory{})
	}
	return l
}

// scope adds a range of NCCL on each rank, and returns its span.
func (l *link) scope(name string, parent store.SpanID, bytes int64) store.SpanID {
	l.span++
	l.instance++
	l.now += 10 * µs
	for _, m := range l.ranks {
		m.scopes = append(m.scopes, analysis.Scope{StartNs: l.now, EndNs: l.now + 5*µs, Span: l.span, Parent: parent, Name: name, CollectiveBytes: bytes, Instance: l.instance})
	}
	return l.span
}

// kernel adds a kernel that rank i enters 20 µs after rank i-1. The last one is inside for a time.
func (l *link) kernel(name, scopeName string, scope store.SpanID, ns int64) {
	l.now += ms + int64(len(l.ranks[0].ops)%7)*130*µs
	for i, m := range l.ranks {
		l.span++
		last := l.now + int64(len(l.ranks)-1)*20*µs
		row := store.OpRow{
			Op:        store.Op{StartNs: l.now + int64(i)*20*µs, EndNs: last + ns, Span: l.span},
			LaneRef:   &store.Lane{Device: fmt.Sprint("GPU-", i), Context: store.Some(1), Stream: store.Some(7)},
			ShapeRef:  &store.Shape{Operation: store.OpKernel, Name: name, Attrs: store.Attrs{{Key: semconv.HWName, Value: store.Value{Kind: store.KindString, Str: l.model}}}},
			OriginRef: &store.Origin{}, PlaceRef: store.Place{Parent: scope, ScopeName: scopeName},
		}
		m.ops = append(m.ops, row)
	}
	l.now += ns + 20*µs*int64(len(l.ranks))
}

func (l *link) collective(kernel, name string, bytes, ns int64) {
	l.kernel(kernel, name, l.scope(name, 0, bytes), ns)
}

func (l *link) inputs() (list []Input) {
	for i, m := range l.ranks {
		list = append(list, Input{Session: fmt.Sprint("session-", i), Host: "host", HostID: "1", Rank: i, Size: len(l.ranks), Source: m})
	}
	return list
}

const (
	gather  = "ncclDevKernel_AllGather_RING_LL"
	scatter = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"
)

// TestRun_Bandwidth has collectives of 1 MB, or 1 MB of each of 4 ranks, in 100 µs.
func TestRun_Bandwidth(t *testing.T) {
	for _, test := range []struct {
		kernel, scope  string
		kind           Kind
		bytes          int64
		algorithm, bus float64
	}{
		{allReduce, "ncclAllReduce", AllReduce, 1e6, 10e9, 15e9},
		{gather, "ncclAllGather", AllGather, 4e6, 40e9, 30e9},
		{scatter, "ncclReduceScatter", ReduceScatter, 4e6, 40e9, 30e9},
		{"ncclDevKernel_Broadcast_RING_LL", "ncclBroadcast", Broadcast, 1e6, 10e9, 10e9},
		{"ncclDevKernel_Reduce_Sum_f32_RING_LL", "ncclReduce", Reduce, 1e6, 10e9, 10e9},
		{"ncclDevKernel_SendRecv", "ncclAlltoAll", AllToAll, 4e6, 40e9, 30e9},
	} {
		t.Run(test.kind.String(), func(t *testing.T) {
			l := newLink(4, "NVIDIA H200")
			for range 10 { // align the clocks
				l.collective(allReduce, "ncclAllReduce", 0, 50*µs)
			}
			for range 10 {
				l.collective(test.kernel, test.scope, 1e6, 100*µs)
			}
			got := analyse(t, l.inputs())
			require.Equal(t, 20, got.Total)
			require.Len(t, got.Groups, 1)
			assert.Equal(t, []Bandwidth{{Kind: test.kind, Collectives: 10, Bytes: 10 * test.bytes, Median: test.bus, Best: test.bus}}, got.Groups[0].Bandwidths)
			assert.InDelta(t, 450e9, got.Groups[0].Peak, 0)
			assert.Empty(t, got.Groups[0].Findings)
			x := got.Collectives[19]
			assert.Equal(t, test.bytes, x.Bytes)
			assert.InDelta(t, test.algorithm, x.Algorithm, 1)
			assert.InDelta(t, test.bus, x.Bus, 1)
			assert.Zero(t, got.Collectives[0].Bytes)
		})
	}
}

// TestRun_BandwidthOfGroups has collectives between ncclGroupStart and ncclGroupEnd, which launches them.
func TestRun_BandwidthOfGroups(t *testing.T) {
	for _, test := range []struct {
		name string
		add  func(l *link)
		want int64
	}{
		{"one kernel", func(l *link) {
			l.scope("ncclGroupStart", 1, 0)
			l.scope("ncclAllReduce", 1, 1000)
			l.scope("ncclAllReduce", 1, 2000)
			l.kernel(allReduce, "ncclGroupEnd", l.scope("ncclGroupEnd", 1, 0), 100*µs)
		}, 3000},
		{"nested", func(l *link) {
			l.scope("ncclGroupStart", 1, 0)
			l.scope("ncclGroupStart", 1, 0)
			l.scope("ncclAllReduce", 1, 1000)
			l.scope("ncclGroupEnd", 1, 0)
			l.scope("ncclAllReduce", 1, 2000)
			l.kernel(allReduce, "ncclGroupEnd", l.scope("ncclGroupEnd", 1, 0), 100*µs)
		}, 3000},
		{"in another range", func(l *link) {
			l.scope("ncclGroupStart", 1, 0)
			l.scope("ncclAllReduce", 1, 1000)
			l.scope("ncclAllReduce", 2, 2000)
			l.kernel(allReduce, "ncclGroupEnd", l.scope("ncclGroupEnd", 1, 0), 100*µs)
		}, 1000},
		{"one that is launched by itself, on another thread", func(l *link) {
			l.scope("ncclGroupStart", 1, 0)
			l.scope("ncclAllReduce", 1, 1000)
			l.collective(gather, "ncclAllGather", 7, 100*µs)
			l.kernel(allReduce, "ncclGroupEnd", l.scope("ncclGroupEnd", 1, 0), 100*µs)
		}, 1000},
		{"a range is missing", func(l *link) {
			l.scope("ncclGroupStart", 1, 0)
			l.scope("ncclAllReduce", 1, 1000)
			l.instance++
			l.kernel(allReduce, "ncclGroupEnd", l.scope("ncclGroupEnd", 1, 0), 100*µs)
		}, 0},
		{"two kinds", func(l *link) {
			l.scope("ncclGroupStart", 1, 0)
			l.scope("ncclAllReduce", 1, 1000)
			l.scope("ncclAllGather", 1, 2000)
			l.kernel(allReduce, "ncclGroupEnd", l.scope("ncclGroupEnd", 1, 0), 100*µs)
		}, 0},
		{"two kernels", func(l *link) {
			l.scope("ncclGroupStart", 1, 0)
			l.scope("ncclAllReduce", 1, 1000)
			end := l.scope("ncclGroupEnd", 1, 0)
			l.kernel(allReduce, "ncclGroupEnd", end, 100*µs)
			l.kernel(allReduce, "ncclGroupEnd", end, 100*µs)
		}, 0},
		{"two threads", func(l *link) {
			l.scope("ncclGroupStart", 1, 0)
			l.scope("ncclAllReduce", 1, 1000)
			l.scope("ncclGroupStart", 1, 0)
			l.scope("ncclAllReduce", 1, 2000)
			l.kernel(allReduce, "ncclGroupEnd", l.scope("ncclGroupEnd", 1, 0), 100*µs)
			l.kernel(allReduce, "ncclGroupEnd", l.scope("ncclGroupEnd", 1, 0), 100*µs)
		}, 0},
		{"another kind than its kernel", func(l *link) {
			l.kernel(gather, "ncclAllReduce", l.scope("ncclAllReduce", 1, 1000), 100*µs)
		}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLink(2, "")
			l.span = 10
			for range 10 {
				test.add(l)
			}
			got := analyse(t, l.inputs())
			var sizes []int64
			for _, x := range got.Collectives {
				if x.Kind == AllReduce && x.Bytes > 0 {
					sizes = append(sizes, x.Bytes)
				}
			}
			var want []int64
			for range 10 {
				if test.want > 0 {
					want = append(want, test.want)
				}
			}
			assert.Equal(t, want, sizes)
		})
	}
}

func TestRun_BandwidthFindings(t *testing.T) {
	const large = 256 << 20 // at 450 GB/s and 4 ranks: 895 µs
	run := func(t *testing.T, l *link, change func(list []Input)) Group {
		t.Helper()
		list := l.inputs()
		if change != nil {
			change(list)
		}
		got := analyse(t, list)
		require.Len(t, got.Groups, 1)
		return got.Groups[0]
	}
	of := func(ranks int, model string, bytes, ns int64) *link {
		l := newLink(ranks, model)
		for range 10 {
			l.collective(allReduce, "ncclAllReduce", 4096, 20*µs)
			l.collective(allReduce, "ncclAllReduce", bytes, ns)
		}
		return l
	}
	at := func(model string, bytes, ns int64) *link { return of(4, model, bytes, ns) }
	t.Run("slow", func(t *testing.T) {
		g := run(t, at("NVIDIA H200", large, 2*ms), nil)
		require.Len(t, g.Bandwidths, 1)
		assert.Equal(t, 20, g.Bandwidths[0].Collectives)
		assert.Equal(t, int64(10*(large+4096)), g.Bandwidths[0].Bytes)
		assert.InDelta(t, 201.3e9, g.Bandwidths[0].Median, 0.1e9)
		assert.Equal(t, []string{"The median bus bandwidth of 10 large collectives (all_reduce) is 201 GB/s: 45 % of the link's 450 GB/s. At the peak they would take 11.1 ms less."}, g.Findings)
	})
	t.Run("fast", func(t *testing.T) {
		assert.Empty(t, run(t, at("NVIDIA H200", large, ms), nil).Findings)
	})
	t.Run("small", func(t *testing.T) {
		assert.Empty(t, run(t, at("NVIDIA H200", 64<<20, 2*ms), nil).Findings)
	})
	for name, test := range map[string]struct {
		model  string
		change func(list []Input)
	}{
		"PCIe":         {"NVIDIA H100 PCIe", nil},
		"MIG":          {"NVIDIA H100 80GB HBM3 MIG 3g.40gb", nil},
		"two hosts":    {"NVIDIA H200", func(list []Input) { list[1].Host = "other" }},
		"two machines": {"NVIDIA H200", func(list []Input) { list[1].HostID = "other" }},
		"no host":      {"NVIDIA H200", func(list []Input) { list[0].Host, list[1].Host = "", "" }},
		"one device": {"NVIDIA H200", func(list []Input) {
			for i := range list[1].Source.(*memory).ops {
				list[1].Source.(*memory).ops[i].LaneRef.Device = "GPU-0"
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := run(t, at(test.model, large, 2*ms), test.change)
			assert.Zero(t, g.Peak)
			assert.Empty(t, g.Findings)
			assert.Len(t, g.Bandwidths, 1)
		})
	}
	for _, test := range []struct {
		ranks, beside int
		peak          float64
	}{{2, 0, 0}, {3, 1, 0}, {2, 3, 450e9}, {4, 0, 450e9}} {
		t.Run(fmt.Sprintf("%d of %d ranks on a host", test.ranks, test.ranks+test.beside), func(t *testing.T) {
			list := of(test.ranks, "NVIDIA H200", large, 2*ms).inputs()
			for i := range test.beside {
				list = append(list, Input{Session: fmt.Sprint("beside-", i), Host: "host", HostID: "1", Rank: test.ranks + i, Size: -1, Source: &memory{}})
			}
			got := analyse(t, list)
			require.Len(t, got.Groups, 1)
			assert.InDelta(t, test.peak, got.Groups[0].Peak, 0)
		})
	}
	t.Run("a rank is missing", func(t *testing.T) {
		g := run(t, at("NVIDIA H200", large, 2*ms), func(list []Input) { list[0].Size = 5 })
		assert.Empty(t, g.Bandwidths)
		assert.Empty(t, g.Findings)
	})
}
