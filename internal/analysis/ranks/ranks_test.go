// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/store"
)

const (
	µs = int64(1000)
	ms = 1000 * µs
)

// memory is a source of rows.
type memory struct {
	ops    []store.OpRow
	scopes []analysis.Scope
}

func (m *memory) Extent(context.Context) (first, last int64, err error) {
	first = math.MaxInt64
	for i := range m.ops {
		first, last = min(first, m.ops[i].StartNs), max(last, m.ops[i].EndNs)
	}
	for i := range m.scopes {
		first, last = min(first, m.scopes[i].StartNs), max(last, m.scopes[i].EndNs)
	}
	return min(first, last), last, nil
}

func (m *memory) Ops(_ context.Context, from, to int64, visit func(*store.OpRow) error) error {
	for i := range m.ops {
		if o := &m.ops[i]; o.StartNs < to && (o.StartNs >= from || o.EndNs > from) {
			if err := visit(o); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *memory) Scopes(_ context.Context, from, to int64, _ int) (list []analysis.Scope, more bool, err error) {
	for _, s := range m.scopes {
		if s.StartNs < to && (s.StartNs >= from || s.EndNs > from) {
			list = append(list, s)
		}
	}
	return list, false, nil
}

// delay is what makes one rank late in some steps.
type delay struct {
	rank  int
	kind  string // host, slower_kernels, more_kernels
	every int    // steps
	ns    int64
}

// cluster is ranks that train together in true time. Each has a clock of its own.
type cluster struct {
	rng    *rand.Rand
	n      int
	offset []int64
	rate   []float64
	wobble []float64 // ns of a slow change of the offset
	ops    [][]store.OpRow
	shapes map[string]*store.Shape
	ids    map[string]uint32
	span   store.SpanID
	truth  map[store.SpanID]int // number of the collective by span
	last   []int                // by collective
	late   []int64
	ready  []int64 // by rank: host and device are free
}

const trueBase = int64(1_700_000_000_000_000_000)

func newCluster(seed uint64, n int) *cluster {
	c := &cluster{
		rng: rand.New(rand.NewPCG(seed, 35)), n: n, ops: make([][]store.OpRow, n), shapes: map[string]*store.Shape{}, ids: map[string]uint32{},
		truth: map[store.SpanID]int{}, ready: make([]int64, n), offset: make([]int64, n), rate: make([]float64, n), wobble: make([]float64, n),
	}
	for r := range n {
		c.ready[r] = trueBase
	}
	return c
}

// detune gives each clock an offset of 1 ms to 10 s, a rate up to 100e-6, and a slow change.
func (c *cluster) detune() {
	for r := range c.n {
		c.offset[r] = int64(math.Pow(10, 6+4*c.rng.Float64())) * (1 - 2*c.rng.Int64N(2))
		c.rate[r] = (2*c.rng.Float64() - 1) * 100e-6
		c.wobble[r] = c.rng.Float64() * 10e3
	}
}

// local returns the time of a rank's clock. The slow change has a period of 20 s, so its rate is at
// most 2π × 10 µs ÷ 20 s = 3e-6.
func (c *cluster) local(r int, t int64) int64 {
	d := float64(t - trueBase)
	return t + c.offset[r] + int64(c.rate[r]*d) + int64(c.wobble[r]*math.Sin(d/20e9*2*math.Pi))
}

var lane = &store.Lane{Device: "GPU-1", DeviceIndex: store.Some(0), Context: store.Some(1), Stream: store.Some(7)}
var commLane = &store.Lane{Device: "GPU-1", DeviceIndex: store.Some(0), Context: store.Some(1), Stream: store.Some(20)}

// op adds an operation in true time.
func (c *cluster) op(r int, l *store.Lane, name string, launch, start, end int64) store.SpanID {
	c.span++
	if c.shapes[name] == nil {
		c.ids[name] = uint32(len(c.ids))
		c.shapes[name] = &store.Shape{Operation: store.OpKernel, Name: name}
	}
	row := store.OpRow{
		Op:      store.Op{StartNs: c.local(r, start), EndNs: c.local(r, end), Span: c.span, Shape: c.ids[name]},
		LaneRef: l, ShapeRef: c.shapes[name], OriginRef: &store.Origin{},
	}
	row.LaunchStartNs, row.LaunchEndNs = store.Some(c.local(r, launch)), store.Some(c.local(r, launch+4*µs))
	row.QueueNs = store.Some(start - launch - 4*µs)
	c.ops[r] = append(c.ops[r], row)
	return c.span
}

func (c *cluster) jitter(ns int64) int64 { return ns + int64((c.rng.Float64()-0.5)*0.1*float64(ns)) }

// compute runs kernels on a rank.
func (c *cluster) compute(r, kernels int, ns int64, name string) {
	for range kernels {
		launch := c.ready[r]
		start := launch + 6*µs
		end := start + c.jitter(ns)
		c.op(r, lane, name, launch, start, end)
		c.ready[r] = end
	}
}

// reduce is a collective of some ranks: all leave after the last one has entered.
func (c *cluster) reduce(name string, members []int, transfer int64) {
	enter := map[int]int64{}
	last, second := members[0], int64(0)
	for _, r := range members {
		enter[r] = c.ready[r] + 6*µs
		if enter[r] > enter[last] {
			last = r
		}
	}
	for _, r := range members {
		if r != last {
			second = max(second, enter[r])
		}
	}
	number := len(c.last)
	c.last, c.late = append(c.last, last), append(c.late, enter[last]-second)
	for _, r := range members {
		leave := enter[last] + transfer + c.rng.Int64N(8*µs)
		c.truth[c.op(r, commLane, name, c.ready[r], enter[r], leave)] = number
		c.ready[r] = leave
	}
}

func (c *cluster) all() []int {
	list := make([]int, c.n)
	for i := range list {
		list[i] = i
	}
	return list
}

const allReduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"

// train runs steps of a forward and backward pass with two buckets of gradients.
func (c *cluster) train(steps int, d delay) {
	for step := range steps {
		for r := range c.n {
			c.compute(r, 10, 100*µs, "gemm")
			if d.ns > 0 && r == d.rank && step%d.every == d.every-1 {
				switch d.kind {
				case "host":
					c.ready[r] += d.ns
				case causeSlower:
					c.compute(r, 1, d.ns, "gemm")
					c.ops[r] = slices.Delete(c.ops[r], len(c.ops[r])-2, len(c.ops[r])-1) // one kernel is slow
				case causeMore:
					c.compute(r, int(d.ns/(100*µs)), 94*µs, "gemm")
				}
			}
		}
		c.reduce(allReduce, c.all(), 80*µs)
		for r := range c.n {
			c.compute(r, 5, 60*µs, "adam")
		}
		c.reduce(allReduce, c.all(), 120*µs)
	}
}

// inputs returns the sessions, of which rank r has lost operations for which drop is true.
func (c *cluster) inputs(drop func(r, i int, row *store.OpRow) bool) (list []Input) {
	for r := range c.n {
		m := &memory{}
		slices.SortStableFunc(c.ops[r], func(a, b store.OpRow) int { return cmp.Compare(a.StartNs, b.StartNs) })
		for i := range c.ops[r] {
			if drop == nil || !drop(r, i, &c.ops[r][i]) {
				m.ops = append(m.ops, c.ops[r][i])
			}
		}
		list = append(list, Input{Session: fmt.Sprintf("session-%d", r), Host: fmt.Sprintf("host-%d", r), Rank: r, Size: c.n, Source: m})
	}
	return list
}

// check compares a result with the truth, and returns the number of collectives and of proven ones.
func (c *cluster) check(t *testing.T, got *Result) (total, proven int) {
	t.Helper()
	for _, r := range got.Ranks {
		if !assert.NotNil(t, r.Offset) {
			continue
		}
		middle := got.Base + got.WallNs/2
		// The true time of the middle: that of the reference's clock.
		trueTime := middle - (c.local(0, middle) - middle)
		want := c.local(r.Rank, trueTime) - c.local(0, trueTime)
		if assert.NotNil(t, r.Offset.MinNs, "rank %d", r.Rank) {
			assert.LessOrEqual(t, *r.Offset.MinNs-3*µs, want, "rank %d", r.Rank)
			assert.GreaterOrEqual(t, *r.Offset.MaxNs+3*µs, want, "rank %d", r.Rank)
			assert.LessOrEqual(t, *r.Offset.MinNs, r.Offset.Ns)
			assert.GreaterOrEqual(t, *r.Offset.MaxNs, r.Offset.Ns)
		}
	}
	for i := range got.Collectives {
		x := &got.Collectives[i]
		number := c.truth[store.SpanID(x.Parts[0].Span)]
		for _, p := range x.Parts {
			require.Equal(t, number, c.truth[store.SpanID(p.Span)], "collective %d: parts of different collectives", i)
		}
		if x.Late == nil {
			continue
		}
		total++
		require.NotNil(t, x.Late.MinNs)
		if *x.Late.MinNs > 0 {
			proven++
			assert.Equal(t, c.last[number], x.Late.Rank, "collective %d is certain", i)
		}
		if c.last[number] == x.Late.Rank {
			assert.LessOrEqual(t, *x.Late.MinNs, c.late[number]+µs, "collective %d", i)
			assert.GreaterOrEqual(t, *x.Late.MaxNs, c.late[number]-µs, "collective %d", i)
		} else {
			assert.LessOrEqual(t, *x.Late.MinNs, int64(0))
		}
	}
	return total, proven
}

func analyse(t *testing.T, inputs []Input) *Result {
	t.Helper()
	got, err := Run(t.Context(), inputs, Options{Limit: 100_000})
	require.NoError(t, err)
	return got
}

// TestRun_Simulations injects delays and offsets of clocks, and finds both within the stated error.
func TestRun_Simulations(t *testing.T) {
	seeds := 12
	if os.Getenv("GPUFLIGHT_SOAK") != "" {
		seeds = 200
	}
	kinds := []string{"host", causeSlower, causeMore}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			c := newCluster(uint64(seed), 2+seed%5)
			c.detune()
			d := delay{rank: c.rng.IntN(c.n), kind: kinds[seed%3], every: 1 + c.rng.IntN(4), ns: 2*ms + c.rng.Int64N(30*ms)}
			c.train(60, d)
			late := c.rng.IntN(c.n) // starts 20 collectives late
			got := analyse(t, c.inputs(func(r, i int, row *store.OpRow) bool {
				return r == late && i < 20*17/2 || c.rng.IntN(50) == 0 && row.LaneRef == commLane
			}))
			total, _ := c.check(t, got)
			assert.Greater(t, total, 40)
			require.NotEmpty(t, got.Findings)
			assert.Equal(t, d.rank, got.Ranks[got.Findings[0].Rank].Rank)
			r := &got.Ranks[d.rank]
			require.NotNil(t, r.Cause)
			assert.Equal(t, d.kind, r.Cause.Kind)
			assert.InEpsilon(t, r.Cause.LateNs, r.Cause.ExcessNs, 0.25)
			// The total of the collectives that were compared.
			var want, least, most int64
			for i := range got.Collectives {
				if l := got.Collectives[i].Late; l != nil && l.Rank == d.rank {
					want += c.late[c.truth[store.SpanID(got.Collectives[i].Parts[0].Span)]]
					least += *l.MinNs
					most += *l.MaxNs
				}
			}
			assert.LessOrEqual(t, least, want)
			assert.GreaterOrEqual(t, most, want)
			assert.InEpsilon(t, want, r.LateNs, 0.05)
			for _, p := range got.Problems {
				assert.NotContains(t, p, "contradict")
			}
		})
	}
}

func TestResult_JSON(t *testing.T) {
	c := newCluster(3, 2)
	c.train(12, delay{rank: 1, kind: "host", every: 1, ns: 5 * ms})
	got := analyse(t, c.inputs(nil))
	text, err := json.Marshal(got)
	require.NoError(t, err)
	var again Result
	require.NoError(t, json.Unmarshal(text, &again))
	assert.Equal(t, got, &again)
}
