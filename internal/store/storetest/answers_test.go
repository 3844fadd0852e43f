// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

// kernel is an operation of the sessions below, in microseconds.
type kernel struct {
	start, end int64
	span       store.SpanID
	lane       uint32
	place      uint32
}

const us = 1000

// written returns a Memory with one session. Lanes 1 and 2 are of device "a", lane 3 of "b".
func written(t *testing.T, kernels []kernel, spans []store.Span, places ...store.Place) *Memory {
	m := NewMemory()
	b := &store.Batch{
		Session: "s", Shapes: []store.Shape{{}, {Key: 1, Operation: store.OpKernel, Name: "k", FullName: "void K<1>()"}},
		Lanes:  []store.Lane{{}, {Key: 1, Device: "a"}, {Key: 2, Device: "a", Stream: store.Some(1)}, {Key: 3, Device: "b"}},
		Places: append([]store.Place{{}}, places...), Spans: spans,
	}
	for i := range b.Places {
		b.Places[i].Key = uint64(i)
	}
	for _, k := range kernels {
		b.Ops = append(b.Ops, store.Op{StartNs: k.start * us, EndNs: k.end * us, Span: k.span, Lane: k.lane, Shape: 1, Place: k.place})
	}
	r, err := m.Write(t.Context(), []*store.Batch{b})
	require.NoError(t, err)
	require.EqualValues(t, b.Rows(), r.Written)
	return m
}

func TestMemory_Gaps(t *testing.T) {
	m := written(t, []kernel{
		{start: 0, end: 100, span: 1, lane: 1},
		{start: 10, end: 50, span: 2, lane: 2},   // within the first
		{start: 90, end: 100, span: 3, lane: 2},  // ends with the first
		{start: 100, end: 110, span: 4, lane: 2}, // no gap before it
		{start: 115, end: 120, span: 5, lane: 1}, // 5 µs
		{start: 150, end: 140, span: 7, lane: 1}, // 30 µs; ends before it starts
		{start: 150, end: 160, span: 6, lane: 2}, // the first of the two at 150
		{start: 200, end: 201, span: 8, lane: 1}, // 40 µs
		{start: 0, end: 1, span: 9, lane: 3}, {start: 300, end: 301, span: 10, lane: 3},
	}, nil)
	got, err := m.Gaps(t.Context(), store.GapQuery{Session: "s", Device: "a"})
	require.NoError(t, err)
	assert.Equal(t, store.Gaps{Count: 3, SumNs: 75 * us, Longest: []store.Gap{
		{Device: "a", StartNs: 160 * us, EndNs: 200 * us, BeforeStart: 150 * us, AfterStart: 200 * us, Before: 6, After: 8, AfterShape: 1},
		{Device: "a", StartNs: 120 * us, EndNs: 150 * us, BeforeStart: 115 * us, AfterStart: 150 * us, Before: 5, After: 6, AfterShape: 1},
	}}, got)
	got, err = m.Gaps(t.Context(), store.GapQuery{Session: "s", From: 115 * us, To: 160 * us, MinNs: 31 * us})
	require.NoError(t, err)
	assert.Equal(t, store.Gaps{Count: 1, SumNs: 30 * us}, got)
	got, err = m.Gaps(t.Context(), store.GapQuery{Session: "s", Limit: 1})
	require.NoError(t, err)
	assert.EqualValues(t, 4, got.Count)
	assert.Equal(t, "b", got.Longest[0].Device)
}

func TestMemory_Busy(t *testing.T) {
	m := written(t, []kernel{
		{start: 10, end: 100, span: 1, lane: 1},
		{start: 20, end: 50, span: 2, lane: 2},
		{start: 130, end: 140, span: 3, lane: 2},
		{start: 40, end: 50, span: 4, lane: 3}, {start: 300, end: 301, span: 5, lane: 3}, // of another device
	}, nil)
	for _, x := range []struct {
		name       string
		from, to   int64
		device     string
		busy, idle int64
	}{
		{"all", 0, 1000, "a", 100, 30},
		{"both devices", 0, 1000, "", 111, 280},
		{"before the first kernel", 0, 15, "a", 5, 0},
		{"inside a kernel", 30, 60, "a", 30, 0},
		{"part of a gap", 90, 120, "a", 10, 20},
		{"inside a gap", 110, 120, "a", 0, 10},
		{"after the last kernel", 135, 500, "a", 5, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			q := store.BusyQuery{Session: "s", Device: x.device, Intervals: []store.Interval{{From: x.from * us, To: x.to * us}}}
			busy, err := m.Busy(t.Context(), q)
			require.NoError(t, err)
			q.Idle = true
			idle, err := m.Busy(t.Context(), q)
			require.NoError(t, err)
			assert.Equal(t, [][]int64{{x.busy * us}, {x.idle * us}}, [][]int64{busy, idle})
		})
	}
}

func TestMemory_Scopes(t *testing.T) {
	spans := []store.Span{
		{StartNs: 1, EndNs: 900, Span: 1, Name: "session", Operation: "session"},
		{StartNs: 2, EndNs: 800, Span: 2, Parent: 1, Name: "train", Operation: "scope"},
		{StartNs: 3, EndNs: 13, Span: 3, Parent: 2, Name: "step", Operation: "scope"},
		{StartNs: 20, EndNs: 34, Span: 4, Parent: 2, Name: "step", Operation: "scope"},
		{StartNs: 40, EndNs: 39, Span: 5, Parent: 77, Name: "step", Operation: "scope"},
		{StartNs: 50, EndNs: 60, Span: 6, Parent: 6, Name: "cycle"},
	}
	m := written(t, []kernel{
		{start: 0, end: 1, span: 11, place: 1}, {start: 2, end: 4, span: 12, place: 2}, {start: 5, end: 9, span: 13, place: 3},
		{start: 10, end: 18, span: 14, place: 4}, {start: 20, end: 36, span: 15}, {start: 40, end: 72, span: 16, place: 5},
	}, spans,
		store.Place{Parent: 3}, store.Place{Parent: 88, ScopePath: "train|step"}, store.Place{Parent: 88, ScopeName: "late"},
		store.Place{Parent: 6}, store.Place{Parent: 3, ScopePath: "train|other"})
	got, err := m.Scopes(t.Context(), "", "s")
	require.NoError(t, err)
	type node struct {
		parent            string
		instances, wallNs int64
		kernels, kernelNs int64
	}
	names := map[uint32]string{}
	tree := map[string]node{}
	var order []string
	for _, n := range got {
		names[n.Path] = names[n.Parent] + "/" + n.Name
		order = append(order, names[n.Path])
		tree[names[n.Path]] = node{names[n.Parent], n.Instances, n.WallNs, n.Kernels, n.KernelNs / us}
	}
	assert.Equal(t, []string{"/", "//late", "//step", "//train", "//train/other", "//train/step"}, order)
	assert.Equal(t, node{"/", 0, 0, 2, 8 + 16}, tree["/"])
	assert.Equal(t, node{"/", 0, 0, 1, 4}, tree["//late"])
	assert.Equal(t, node{"/", 1, 0, 0, 0}, tree["//step"])
	assert.Equal(t, node{"/", 1, 798, 0, 0}, tree["//train"])
	assert.Equal(t, node{"//train", 0, 0, 1, 32}, tree["//train/other"])
	assert.Equal(t, node{"//train", 2, 24, 2, 1 + 2}, tree["//train/step"])

	step := got[len(got)-1]
	assert.EqualValues(t, 10, step.P50Ns)
	assert.EqualValues(t, 14, step.P99Ns)
	instances, err := m.Instances(t.Context(), store.InstanceQuery{Session: "s", Path: step.Path, Sort: store.InstancesByWall})
	require.NoError(t, err)
	assert.Equal(t, []store.Instance{
		{StartNs: 20, EndNs: 34, Span: 4, Parent: 2, Name: "step"},
		{StartNs: 3, EndNs: 13, Span: 3, Parent: 2, Name: "step", Kernels: 2, KernelNs: 33 * us, FirstNs: 0, LastNs: 72 * us},
	}, instances)
	below, err := m.Kernels(t.Context(), store.KernelQuery{Session: "s", Path: &got[3].Path, Text: "k<1"})
	require.NoError(t, err)
	mid := store.BucketMiddle(store.Bucket(2 * us))
	assert.Equal(t, []store.KernelStat{
		{Name: "k", Count: 3, SumNs: 35 * us, MaxNs: 32 * us, P50Ns: mid, P99Ns: store.BucketMiddle(store.Bucket(32 * us))},
	}, below)
}

func TestMemory_Timeline(t *testing.T) {
	m := written(t, []kernel{
		{start: 0, end: 25, span: 1, lane: 1}, {start: 12, end: 14, span: 2, lane: 1}, {start: 16, end: 18, span: 3, lane: 1},
		{start: 39, end: 5, span: 4, lane: 1}, {start: 15, end: 16, span: 5, lane: 3},
	}, nil)
	got, err := m.Timeline(t.Context(), store.TimelineQuery{Session: "s", From: 5 * us, To: 45 * us, Bins: 4})
	require.NoError(t, err)
	lane := func(key uint64) uint32 { return m.sessions[sessionID{"", "s"}].lanes[key] }
	assert.Equal(t, store.Timeline{From: 5 * us, Width: 10 * us, Bins: []store.Bin{
		{Lane: lane(1), Index: 0, Count: 1, BusyNs: 12 * us, TopNs: 2 * us, TopShape: 1, TopStart: 12 * us},
		{Lane: lane(1), Index: 1, Count: 1, BusyNs: 12 * us, TopNs: 2 * us, TopShape: 1, TopStart: 16 * us},
		{Lane: lane(1), Index: 3, Count: 1, TopShape: 1, TopStart: 39 * us},
		{Lane: lane(3), Index: 1, Count: 1, BusyNs: 1 * us, TopNs: 1 * us, TopShape: 1, TopStart: 15 * us},
	}}, got)
	got, err = m.Timeline(t.Context(), store.TimelineQuery{Session: "s", From: 50 * us, Bins: 4})
	require.NoError(t, err)
	assert.Equal(t, store.Timeline{}, got)
}

func TestMemory_TimelineTies(t *testing.T) {
	b := &store.Batch{Session: "s", Shapes: []store.Shape{{}, {Key: 5}, {Key: 3}, {Key: 4}}}
	for i, o := range []store.Op{{StartNs: 20, EndNs: 30, Shape: 1}, {StartNs: 10, EndNs: 20, Shape: 1}, {StartNs: 10, EndNs: 20, Shape: 2},
		{StartNs: 10, EndNs: 20, Shape: 3}, {StartNs: 5, EndNs: 14, Shape: 3}} {
		o.Span = store.SpanID(i + 1)
		b.Ops = append(b.Ops, o)
	}
	m := NewMemory()
	_, err := m.Write(t.Context(), []*store.Batch{b})
	require.NoError(t, err)
	got, err := m.Timeline(t.Context(), store.TimelineQuery{Session: "s", Bins: 1})
	require.NoError(t, err)
	require.Len(t, got.Bins, 1)
	assert.Equal(t, store.Bin{
		Lane: got.Bins[0].Lane, Count: 5, BusyNs: 49, TopNs: 10, TopStart: 10, TopShape: m.sessions[sessionID{"", "s"}].shapes[3],
	}, got.Bins[0])
}

func TestMemory_PointsM4(t *testing.T) {
	values := []float64{5, 1, 9, 1, 9, 4, math.NaN(), math.NaN(), 3, math.NaN()}
	b := &store.Batch{Session: "s", Series: []store.Series{{}, {Key: 1}}}
	for i, v := range values {
		b.Points = append(b.Points, store.Point{Series: 1, TimeNs: int64(10 + i), Double: v, HasDouble: true})
	}
	m := NewMemory()
	_, err := m.Write(t.Context(), []*store.Batch{b})
	require.NoError(t, err)
	for _, c := range []struct {
		from, to int64
		points   int
		want     []int64
	}{
		{0, 0, 4, []int64{10, 11, 12, 19}},
		{0, 0, 8, []int64{10, 11, 12, 14, 15, 18, 19}},
		{0, 0, 10, []int64{10, 11, 12, 13, 14, 15, 16, 17, 18, 19}},
		{16, 100, 4, []int64{16, 17, 18, 19}},
		{12, 18, 5, []int64{12, 13, 17}},
	} {
		rows, err := m.Points(t.Context(), store.PointQuery{Session: "s", Series: 1, From: c.from, To: c.to, Points: c.points})
		require.NoError(t, err)
		var got []int64
		for _, r := range rows {
			got = append(got, r.TimeNs)
		}
		assert.Equal(t, c.want, got, "%+v", c)
	}
}

func TestDeliver_AllRows(t *testing.T) {
	batches := Generate(1, Options{Sessions: 2, Ops: 50, Hostile: true})
	assert.Empty(t, difference(batches, Generate(1, Options{Sessions: 2, Ops: 50, Hostile: true})), "same seed")
	assert.NotEmpty(t, difference(batches, Generate(2, Options{Sessions: 2, Ops: 50, Hostile: true})), "other seed")
	sent := 0
	want, got := NewMemory(), NewMemory()
	_, err := want.Write(t.Context(), batches)
	require.NoError(t, err)
	for _, call := range Deliver(batches, 1) {
		for _, b := range call {
			sent += b.Rows()
		}
		_, err := got.Write(t.Context(), call)
		require.NoError(t, err)
	}
	assert.Greater(t, sent, len(rowsOf(batches)), "duplicates")
	for id, s := range want.sessions {
		assert.Empty(t, difference(got.sessions[id].info(id), s.info(id)))
		assert.NotEmpty(t, s.spans)
	}
}
