// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"bufio"
	"compress/gzip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/rows"
)

func TestKinds(t *testing.T) {
	for name, want := range map[string]Kind{
		"ncclDevKernel_AllReduce_Sum_f32_RING_LL":      AllReduce,
		"ncclKernel_AllReduce_RING_LL_Sum_float":       AllReduce,
		"ncclAllReduceRingLLKernel_sum_f32":            AllReduce,
		"ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL": ReduceScatter,
		"ncclDevKernel_AllGather_RING_LL":              AllGather,
		"ncclDevKernel_Reduce_Sum_f32_RING_LL":         Reduce,
		"ncclDevKernel_Broadcast_RING_LL":              Broadcast,
		"ncclDevKernel_SendRecv":                       SendRecv,
		"ncclDevKernel_Generic_4":                      Other,
	} {
		kind, ok := KernelKind(name)
		assert.True(t, ok, name)
		assert.Equal(t, want, kind, name)
	}
	_, ok := KernelKind("reduce_kernel")
	assert.False(t, ok)
	for name, want := range map[string]Kind{"gloo:all_reduce": AllReduce, "gloo:barrier": Barrier, "mpi:_allgather_base": AllGather} {
		kind, ok := ScopeKind(name)
		assert.True(t, ok, name)
		assert.Equal(t, want, kind, name)
	}
	for _, name := range []string{"nccl:all_reduce", "all_reduce", "gloo:wait", "step 3"} {
		_, ok := ScopeKind(name)
		assert.False(t, ok, name)
	}
}

// TestRun_Groups has two pairs of ranks that communicate within each layer, and all ranks once a step.
// No name or stream states which ranks belong together.
func TestRun_Groups(t *testing.T) {
	c := newCluster(1, 4)
	c.detune()
	for range 40 {
		for range 6 {
			for _, pair := range [][]int{{0, 1}, {2, 3}} {
				for _, r := range pair {
					c.compute(r, 3, 200*µs, "gemm")
				}
				c.reduce("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", pair, 30*µs)
			}
		}
		lane := commLane
		commLane = &store.Lane{Device: "GPU-1", Context: store.Some(1), Stream: store.Some(30)}
		c.reduce(allReduce, c.all(), 80*µs)
		commLane = lane
	}
	got := analyse(t, c.inputs(nil))
	var groups [][]int
	for _, g := range got.Groups {
		groups = append(groups, g.Ranks)
		assert.Empty(t, g.Uncertain)
		assert.Equal(t, g.Collectives, g.Complete)
	}
	assert.ElementsMatch(t, [][]int{{0, 1}, {2, 3}, {0, 1, 2, 3}}, groups)
	assert.Empty(t, got.Problems)
	total, _ := c.check(t, got)
	assert.Equal(t, 40*13, total)
}

// TestRun_ClockSet sets a clock by 2 s in the middle of a run. The result says so, and is right after it.
func TestRun_ClockSet(t *testing.T) {
	c := newCluster(2, 3)
	c.train(60, delay{rank: 1, kind: "host", every: 2, ns: 5 * ms})
	c.offset[2] += 2_000_000_000
	c.train(60, delay{rank: 1, kind: "host", every: 2, ns: 5 * ms})
	got := analyse(t, c.inputs(nil))
	require.Len(t, got.Problems, 1)
	assert.Contains(t, got.Problems[0], "the collectives contradict each other")
	assert.Contains(t, got.Problems[0], "2.00 s")
	for i := range got.Collectives {
		x := &got.Collectives[i]
		for _, p := range x.Parts {
			require.Equal(t, c.truth[store.SpanID(x.Parts[0].Span)], c.truth[store.SpanID(p.Span)])
		}
	}
	assert.Equal(t, 240, got.Total)
}

// TestRun_Regular has ranks whose steps all take equally long, one of which starts late. Nothing says
// which collectives belong together, and the result says so.
func TestRun_Regular(t *testing.T) {
	c := newCluster(2, 2)
	for range 40 {
		for r := range 2 {
			c.ready[r] += 10 * ms
		}
		c.reduce(allReduce, c.all(), 50*µs)
	}
	got := analyse(t, c.inputs(func(r, i int, _ *store.OpRow) bool { return r == 1 && i < 5 }))
	require.Len(t, got.Groups, 1)
	assert.Contains(t, got.Groups[0].Uncertain, "regularly")
}

// TestRun_SameHost has a rank that is always late by the same time. Offsets of clocks could explain
// that, but not on one host.
func TestRun_SameHost(t *testing.T) {
	c := newCluster(5, 3)
	c.train(40, delay{rank: 2, kind: "host", every: 1, ns: 10 * ms})
	inputs := c.inputs(nil)
	got := analyse(t, inputs)
	assert.Less(t, got.Ranks[2].Proven, got.Ranks[2].Last)
	for i := range inputs {
		inputs[i].Host, inputs[i].HostID = "node-1", "0123"
	}
	got = analyse(t, inputs)
	assert.Empty(t, got.Problems)
	assert.GreaterOrEqual(t, got.Ranks[2].Proven, 40)
	assert.Greater(t, got.Ranks[2].LateAtLeastNs, 39*(10*ms-2*sameHostNs))
	assert.Contains(t, got.Findings[0].Text, "host code")

	c = newCluster(5, 3)
	c.detune()
	c.train(40, delay{})
	inputs = c.inputs(nil)
	for i := range inputs {
		inputs[i].Host, inputs[i].HostID = "copied", "0123"
	}
	got = analyse(t, inputs)
	require.Len(t, got.Problems, 1)
	assert.Contains(t, got.Problems[0], "Ranks that state the same host")
	c.check(t, got)
}

// TestRun_Scopes has collectives of the host.
func TestRun_Scopes(t *testing.T) {
	c := newCluster(8, 2)
	c.detune()
	c.train(30, delay{rank: 1, kind: "host", every: 3, ns: 8 * ms})
	inputs := c.inputs(nil)
	for i := range inputs {
		m := inputs[i].Source.(*memory)
		for k := range m.ops {
			if o := &m.ops[k]; o.LaneRef == commLane {
				m.scopes = append(m.scopes, analysis.Scope{StartNs: o.StartNs, EndNs: o.EndNs, Span: o.Span, Name: "gloo:all_reduce"})
			}
		}
		m.ops = slices.DeleteFunc(m.ops, func(o store.OpRow) bool { return o.LaneRef == commLane })
	}
	got := analyse(t, inputs)
	total, _ := c.check(t, got)
	assert.Equal(t, 60, total)
	assert.Nil(t, got.Groups[0].Stream)
	require.NotEmpty(t, got.Findings)
	assert.Equal(t, 1, got.Findings[0].Rank)
	assert.Zero(t, got.Ranks[0].CommunicationNs)
	assert.Equal(t, AllReduce, got.Collectives[0].Kind)
}

// TestRun_EqualTimes has ranks whose collectives all end at one time, as no device does.
func TestRun_EqualTimes(t *testing.T) {
	c := newCluster(3, 2)
	for range 8000 {
		for r := range 2 {
			c.op(r, commLane, allReduce, trueBase, trueBase, trueBase+ms)
		}
	}
	got := analyse(t, c.inputs(nil))
	assert.Len(t, got.Groups, 1)
	assert.Positive(t, got.Total)
}

func TestRun_Incomplete(t *testing.T) {
	c := newCluster(8, 3)
	c.train(30, delay{})
	inputs := c.inputs(func(r, _ int, row *store.OpRow) bool { return r == 1 && row.LaneRef == commLane })
	inputs[0].Size, inputs[2].Rank = 8, -1
	inputs[2].Source = &memory{}
	got := analyse(t, inputs)
	assert.Empty(t, got.Collectives)
	assert.Empty(t, got.Findings)
	text := strings.Join(got.Problems, "\n")
	for _, want := range []string{"does not state its rank", "Session session-1 has no collectives", "The run has 8 ranks, and 3 are given", "match those of no other rank"} {
		assert.Contains(t, text, want)
	}
	got = analyse(t, nil)
	assert.Empty(t, got.Ranks)
	_, err := Run(t.Context(), make([]Input, MaxRanks+1), Options{})
	assert.ErrorContains(t, err, "257 sessions")
}

// TestOverlap compares the sums of a sweep with those of each nanosecond.
func TestOverlap(t *testing.T) {
	c := newCluster(4, 1)
	for range 200 {
		d := &device{lanes: map[int64][]Collective{}}
		const length = 60
		var compute, comm [length]bool
		type kernel struct {
			start, end int64
			comm       bool
		}
		var list []kernel
		for range 8 {
			start := c.rng.Int64N(length - 1)
			list = append(list, kernel{start, start + 1 + c.rng.Int64N(length-start-1+1) - 0, c.rng.IntN(2) == 0})
		}
		slices.SortFunc(list, func(a, b kernel) int { return int(a.start - b.start) })
		n := 0
		for i := range list {
			k := &list[i]
			k.end = min(k.end, length)
			for t := k.start; t < k.end; t++ {
				if k.comm {
					comm[t] = true
				} else {
					compute[t] = true
				}
			}
			if k.comm {
				d.collective(k.start, k.end, 0, n)
				n++
			} else {
				d.compute(k.start, k.end)
			}
		}
		var total, overlapped int64
		for i := range length {
			if comm[i] {
				total++
				if compute[i] {
					overlapped++
				}
			}
		}
		assert.Equal(t, total, d.totalNs)
		assert.Equal(t, overlapped, d.overlappedNs)
		for _, p := range append(d.done, d.active...) {
			want := int64(0)
			for i := p.start; i < p.end; i++ {
				if compute[i] {
					want++
				}
			}
			assert.Equal(t, want, p.overlapped)
		}
	}
}

// recording returns the operations of the recorded training of PyTorch, by start.
func recording(t *testing.T) (ops []store.OpRow, scopes []analysis.Scope) {
	f, err := os.Open("../../../examples/recordings/pytorch.otlp.jsonl.gz")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 64<<20)
	var d rows.Decoder
	var c analysis.Collection
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), `{"resourceSpans"`) {
			continue
		}
		td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(lines.Bytes())
		require.NoError(t, err)
		for _, b := range d.Traces("", td) {
			c.Add(b)
		}
	}
	require.NoError(t, lines.Err())
	first, last, err := c.Extent(t.Context())
	require.NoError(t, err)
	require.NoError(t, c.Ops(t.Context(), first, last+1, func(row *store.OpRow) error {
		ops = append(ops, *row)
		return nil
	}))
	scopes, _, err = c.Scopes(t.Context(), first, last+1, 100_000)
	require.NoError(t, err)
	return ops, scopes
}

// TestRun_Recording replays a recorded training as four ranks, with an all-reduce after each step. One
// rank is late in some steps, and the clocks differ.
func TestRun_Recording(t *testing.T) {
	ops, scopes := recording(t)
	var ends []int64
	for _, s := range scopes {
		if strings.HasPrefix(s.Name, "step") {
			ends = append(ends, s.EndNs)
		}
	}
	slices.Sort(ends)
	require.Len(t, ends, 15)
	c := newCluster(11, 4)
	c.detune()
	const slow, extra = 2, 7 * ms
	comm := commLane
	commLane = &store.Lane{Device: ops[0].LaneRef.Device, Context: ops[0].LaneRef.Context, Stream: store.Some(20)}
	defer func() { commLane = comm }()
	at := 0
	for step, end := range ends {
		from := at
		for at < len(ops) && ops[at].StartNs < end {
			at++
		}
		for r := range c.n {
			shift := c.ready[r] - ops[from].StartNs + c.rng.Int64N(50*µs)
			for _, o := range ops[from:at] {
				o.StartNs, o.EndNs = c.local(r, o.StartNs+shift), c.local(r, o.EndNs+shift)
				for _, t := range []*store.Int{&o.LaunchStartNs, &o.LaunchEndNs} {
					t.V = c.local(r, t.V+shift)
				}
				c.ops[r] = append(c.ops[r], o)
			}
			c.ready[r] = ops[at-1].EndNs + shift
			if r == slow && step%3 == 2 {
				c.ready[r] += extra
			}
		}
		c.reduce(allReduce, c.all(), 150*µs)
	}
	got := analyse(t, c.inputs(nil))
	total, proven := c.check(t, got)
	assert.Equal(t, 15, total)
	assert.GreaterOrEqual(t, proven, 5)
	require.NotEmpty(t, got.Findings)
	assert.Equal(t, slow, got.Findings[0].Rank)
	assert.InEpsilon(t, 5*extra, got.Ranks[slow].LateNs, 0.05)
	assert.Equal(t, "host", got.Ranks[slow].Cause.Kind)
}

func TestDescribe(t *testing.T) {
	for collectives, want := range map[int]string{
		1: "Cause in the largest delay: copies took longer. This is 3 ms of the 4 ms by which it was late in it.",
		2: "Cause in the 2 largest delays: copies took longer. This is 3 ms of the 4 ms by which it was late in them.",
	} {
		t.Run(strconv.Itoa(collectives), func(t *testing.T) {
			c := Cause{Kind: causeCopy, ExcessNs: 3 * ms, LateNs: 4 * ms, Collectives: collectives}
			(&run{}).describe(&c, 0, nil, nil, false, 0)
			assert.Equal(t, want, c.Text)
		})
	}
}

// TestRun_NoTimeForCauses has a deadline that ends before the search for causes begins.
func TestRun_NoTimeForCauses(t *testing.T) {
	c := newCluster(3, 3)
	c.train(20, delay{rank: 1, kind: "host", every: 1, ns: 3_000_000})
	inputs := c.inputs(nil)
	require.NotNil(t, analyse(t, inputs).Ranks[1].Cause)
	got, err := Run(t.Context(), inputs, Options{Deadline: time.Now().Add(-time.Hour)})
	require.NoError(t, err)
	assert.Positive(t, got.Ranks[1].LateNs)
	assert.Nil(t, got.Ranks[1].Cause)
	assert.Contains(t, strings.Join(got.Problems, "\n"), "no time to look for the causes")
}
