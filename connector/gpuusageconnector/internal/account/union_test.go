// SPDX-License-Identifier: Apache-2.0

package account

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// plainUnion is a simple Union: a sorted slice that is built from scratch each time.
type plainUnion struct {
	limit   int
	join    int64
	all     []interval
	total   int64
	horizon int64
}

func (u *plainUnion) Add(start, end int64) (added, lost int64) {
	if start < u.horizon {
		lost = min(end, u.horizon) - start
		start = u.horizon
	}
	if end <= start {
		return 0, lost
	}
	before := measure(u.all)
	u.all = merge(append(u.all, interval{start, end}), u.join)
	added = measure(u.all) - before
	u.total += added
	for len(u.all) > u.limit {
		u.horizon = u.all[0].end
		u.all = u.all[1:]
	}
	return added, lost
}

// merge returns the union of intervals, joined over silences, in order.
func merge(all []interval, join int64) []interval {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b interval) int { return cmp.Compare(a.start, b.start) })
	var out []interval
	for _, iv := range all {
		if iv.start == iv.end {
			continue
		}
		if n := len(out); n > 0 && iv.start-out[n-1].end <= join {
			out[n-1].end = max(out[n-1].end, iv.end)
		} else {
			out = append(out, iv)
		}
	}
	return out
}

func measure(all []interval) int64 {
	var n int64
	for _, iv := range all {
		n += iv.end - iv.start
	}
	return n
}

// intervals returns what a union remembers, having checked how it is kept.
func (u *Union) intervals(t testing.TB) []interval {
	var all []interval
	for _, c := range u.chunks {
		require.NotEmpty(t, c)
		require.LessOrEqual(t, len(c), chunkMax)
		all = append(all, c...)
	}
	require.Len(t, all, u.n)
	for i, iv := range all {
		require.Less(t, iv.start, iv.end)
		if i > 0 {
			require.Greater(t, iv.start-all[i-1].end, u.join)
		} else {
			require.GreaterOrEqual(t, iv.start, u.horizon)
		}
	}
	return all
}

func TestUnionAgreesWithPlainUnion(t *testing.T) {
	for _, tt := range []struct {
		limit        int
		reach, long  int64
		join         int64
		ordered      bool
		big, restart int
	}{
		{limit: 1 << 30, reach: 100, long: 5},
		{limit: 1 << 30, reach: 100_000, long: 10},
		{limit: 1 << 30, reach: 1 << 50, long: 1 << 20},
		{limit: 1 << 30, reach: 100_000, long: 10, big: 500, restart: 700},
		{limit: 1, reach: 1000, long: 10},
		{limit: 7, reach: 100_000, long: 10, restart: 100},
		{limit: 600, reach: 1_000_000, long: 10, restart: 900},
		{limit: 1200, reach: 1_000_000, long: 100, big: 100},
		{limit: 1200, reach: 1_000_000, long: 100, big: 400, join: 50, restart: 500},
		{limit: 100, reach: 100_000, long: 10, ordered: true},
		{limit: 3000, reach: 100_000, long: 10, ordered: true, join: 3},
	} {
		t.Run(fmt.Sprintf("%+v", tt), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, uint64(tt.reach)))
			u := &Union{limit: tt.limit, join: tt.join}
			plain := plainUnion{limit: tt.limit, join: tt.join}
			var at int64
			for i := range 4000 {
				start := r.Int64N(tt.reach)
				if tt.ordered {
					at += r.Int64N(3 * tt.long)
					start = max(0, at-r.Int64N(tt.long))
				}
				end := start + r.Int64N(tt.long)
				if tt.big > 0 && i%tt.big == tt.big-1 {
					end = start + r.Int64N(tt.reach/10)
				}
				added, lost := u.Add(start, end)
				wantAdded, wantLost := plain.Add(start, end)
				if added != wantAdded || lost != wantLost || u.Total() != plain.total || u.Len() != len(plain.all) {
					t.Fatalf("interval %d [%d, %d): added %d, lost %d, total %d, length %d; want %d, %d, %d, %d",
						i, start, end, added, lost, u.Total(), u.Len(), wantAdded, wantLost, plain.total, len(plain.all))
				}
				if tt.restart > 0 && i%tt.restart == 0 {
					again := &Union{limit: tt.limit, join: tt.join}
					rest, err := again.LoadState(append(u.AppendState(nil), "rest"...))
					require.NoError(t, err)
					require.Equal(t, "rest", string(rest))
					u = again
				}
			}
			require.Equal(t, plain.all, u.intervals(t))
			require.Equal(t, plain.horizon, u.horizon)
		})
	}
}

func TestUnionTotalDoesNotDependOnOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	all := make([]interval, 100_000)
	for i := range all {
		start := r.Int64N(1 << 40)
		all[i] = interval{start, start + r.Int64N(1<<24)}
	}
	want := merge(all, 0)
	for range 3 {
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		u := NewUnion(1 << 20)
		for _, iv := range all {
			_, lost := u.Add(iv.start, iv.end)
			require.Zero(t, lost)
		}
		require.Equal(t, measure(want), u.Total())
		require.Equal(t, want, u.intervals(t))
	}
}

func TestUnionCountsTimeOnce(t *testing.T) {
	u := NewUnion(2)
	check := func(start, end, added, lost, total int64, n int) {
		t.Helper()
		a, l := u.Add(start, end)
		require.Equal(t, []int64{added, lost, total}, []int64{a, l, u.Total()})
		require.Equal(t, n, u.Len())
	}
	check(10, 20, 10, 0, 10, 1)
	check(15, 25, 5, 0, 15, 1)   // overlaps
	check(12, 18, 0, 0, 15, 1)   // inside
	check(25, 30, 5, 0, 20, 1)   // touches
	check(40, 40, 0, 0, 20, 1)   // empty
	check(50, 40, 0, 0, 20, 1)   // turned around
	check(-5, -1, 0, 0, 20, 1)   // before 1970
	check(40, 50, 10, 0, 30, 2)  // apart
	check(28, 42, 10, 0, 40, 1)  // fills the silence
	check(60, 70, 10, 0, 50, 2)  //
	check(80, 90, 10, 0, 60, 2)  // a third: [10, 50) is forgotten
	check(0, 10, 0, 10, 60, 2)   // who knows
	check(45, 62, 10, 5, 70, 2)  // of which [50, 60) is new
	check(0, 100, 20, 50, 90, 1) // [70, 80) and [90, 100)
	check(math.MaxInt64-5, math.MaxInt64, 5, 0, 95, 2)
}

func TestUnionOfSparseChunksStaysSmall(t *testing.T) {
	// A chunk full of intervals becomes one interval, again and again.
	u := NewUnion(1 << 20)
	var at int64
	for range 1000 {
		from := at
		for range chunkMax {
			u.Add(at, at+1)
			at += 2
		}
		u.Add(from, at-2)
		at += 10
	}
	require.Equal(t, 1000, u.Len())
	require.Len(t, u.intervals(t), 1000)
	require.Less(t, len(u.chunks), 20)
}

func TestUnionForgetsTheOldestUnderALowerLimit(t *testing.T) {
	u := NewUnion(1000)
	for i := range int64(1000) {
		u.Add(10*i, 10*i+4)
	}
	small := NewUnion(10)
	_, err := small.LoadState(u.AppendState(nil))
	require.NoError(t, err)
	require.Equal(t, 10, small.Len())
	require.Equal(t, int64(4000), small.Total())
	added, lost := small.Add(0, 10_000)
	require.Equal(t, int64(9894), lost) // the 990th ends at 9894
	require.Equal(t, int64(106-40), added)
}

func FuzzUnionState(f *testing.F) {
	u := NewUnion(3)
	f.Add(u.AppendState(nil))
	for i := range int64(5) {
		u.Add(100*i, 100*i+7)
		f.Add(u.AppendState(nil))
	}
	f.Add([]byte{1, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, b []byte) {
		u := NewUnion(3)
		u.Add(5, 9)
		before := u.AppendState(nil)
		alloctest.Limit{PerByte: 1 << 8, Constant: 1 << 18}.Check(t, len(b), func() { _, _ = NewUnion(3).LoadState(b) })
		rest, err := u.LoadState(b)
		if err != nil {
			require.ErrorIs(t, err, ErrState)
			require.Equal(t, before, u.AppendState(nil))
			return
		}
		require.LessOrEqual(t, len(rest), len(b))
		u.intervals(t)
		again := NewUnion(3)
		_, err = again.LoadState(u.AppendState(nil))
		require.NoError(t, err)
		require.Equal(t, u.intervals(t), again.intervals(t))
		u.Add(0, math.MaxInt64)
		require.Equal(t, 1, u.Len())
		require.GreaterOrEqual(t, u.Total(), math.MaxInt64-u.horizon)
	})
}

func BenchmarkUnionAdd(b *testing.B) {
	const limit, step = 200_000, 1000
	for _, bm := range []struct {
		name   string
		behind int64 // how far behind the time an interval may come
	}{{"in order", 1}, {"among 200k intervals at random", limit * step}} {
		b.Run(bm.name, func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			late := make([]int64, 1<<20)
			for i := range late {
				late[i] = r.Int64N(bm.behind)
			}
			u := NewUnion(limit)
			at := bm.behind
			add := func(i int) {
				at += step
				start := at - late[i%len(late)]
				u.Add(start, start+300)
			}
			for i := range 3 * limit {
				add(i)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				add(i)
				i++
			}
			b.ReportMetric(float64(u.Len()), "intervals")
		})
	}
}
