// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// Logs returns the capture logs.
func (r *pages) Logs(_ context.Context, q store.LogQuery) (list []store.LogRow, err error) {
	if q.Event == semconv.EventCUDACapture {
		for _, a := range r.captures {
			list = append(list, store.LogRow{Log: store.Log{Event: q.Event, Attrs: a}})
		}
	}
	return list, nil
}

// Series returns two series of each metric of points.
func (r *pages) Series(_ context.Context, q store.SeriesQuery) (list []store.SeriesInfo, err error) {
	for i := range r.points[q.Metric] {
		list = append(list, store.SeriesInfo{Series: store.Series{Key: uint64(i), Metric: q.Metric}, LastNs: r.last})
	}
	r.metric = q.Metric
	return list, nil
}

// Points returns the point of a series of the metric that was listed last.
func (r *pages) Points(_ context.Context, q store.PointQuery) ([]store.PointRow, error) {
	return []store.PointRow{{Point: r.points[r.metric][q.Series]}}, nil
}

func captureCounts(values map[string]int64) (a store.Attrs) {
	for k, v := range values {
		a = append(a, store.Attr{Key: k, Value: store.Value{Kind: store.KindInt, Int: v}})
	}
	return sorted(a)
}

func sorted(a store.Attrs) store.Attrs {
	slices.SortFunc(a, func(x, y store.Attr) int { return strings.Compare(x.Key, y.Key) })
	return a
}

func double(key string, v float64) store.Attr {
	return store.Attr{Key: key, Value: store.Value{Kind: store.KindDouble, Double: v}}
}

// sparse is a busy program of which every n-th operation has a span.
func sparse(n int) *pages {
	r := train(100, func(p *program, _ int) { kernels(p, 10, 100*µs) }).reader()
	i := -1
	r.ops = slices.DeleteFunc(r.ops, func(store.OpRow) bool { i++; return i%n > 0 })
	return r
}

func TestRun_MissingWork(t *testing.T) {
	leftOut := func(emitted, leftOut int64) store.Attrs {
		return captureCounts(map[string]int64{semconv.CUDACaptureSpansEmitted: emitted, semconv.CUDACaptureSpansLeftOut: leftOut})
	}
	for name, c := range map[string]struct {
		captures []store.Attrs
		points   map[string][]store.Point
		share    float64
		text     string
	}{
		"nothing known": {},
		"nothing":       {captures: []store.Attrs{leftOut(1001, 0)}},
		"below limit":   {captures: []store.Attrs{leftOut(951, 50)}},
		"spans":         {captures: []store.Attrs{leftOut(101, 900)}, share: 900. / 1001, text: "About 89.9 % of the work is missing: 900 of 1001 operations have no span. A"},
		"unsampled":     {captures: []store.Attrs{captureCounts(map[string]int64{semconv.CUDACaptureSpansEmitted: 1, semconv.CUDACaptureSpansUnsampled: 1})}, share: 0.5, text: "1 of 2 operations have no span"},
		"records": {
			captures: []store.Attrs{captureCounts(map[string]int64{semconv.CUDACaptureRecordsCollected: 90, semconv.CUDACaptureRecordsDropped: 6, semconv.CUDACaptureRecordsRejected: 4})},
			share:    0.1, text: "About 10 % of the work is missing: 10 of 100 records were lost. A",
		},
		"slices": {
			captures: []store.Attrs{{double(semconv.CUDACaptureRecordedRatio, 0.2)}}, share: 0.8,
			text: "About 80 % of the work is missing: an overhead budget left 20 % of the time recorded. A",
		},
		"slices and spans": {
			captures: []store.Attrs{sorted(append(leftOut(50, 50), double(semconv.CUDACaptureRecordedRatio, 0.2)))}, share: 0.9,
			text: "About 90 % of the work is missing: an overhead budget left 20 % of the time recorded, 50 of 100 operations have no span. A",
		},
		"deep windows": {
			captures: []store.Attrs{{double(semconv.CUDACapturePausedTime, 0.05)}}, share: 0.05 / 0.1,
			text: "deep windows paused the recording for 50 ms",
		},
		"live": {
			points: map[string][]store.Point{semconv.MetricGpuflightSpansLeftOut: {{Int: store.Some(400)}, {Int: store.Some(500)}}}, share: 900. / 1001,
			text: "900 of 1001 operations have no span",
		},
		"live slices": {
			points: map[string][]store.Point{semconv.MetricGpuflightRecordedTime: {{StartNs: 1e9, TimeNs: 11e9, Double: 2, HasDouble: true}}}, share: 0.8,
			text: "an overhead budget left 20 % of the time recorded",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := sparse(10)
			r.captures, r.points, r.operations = c.captures, c.points, int64(101)
			if name == "deep windows" {
				r.first = r.last - 100*ms
			}
			got := run(t, r, 20_000, Options{})
			d := &got.Devices[0]
			if c.text == "" {
				assert.Nil(t, got.Missing)
				assert.Equal(t, BoundDependency, d.Bound, "as wrong as without the figures")
				require.NotEmpty(t, got.Findings)
				assert.Equal(t, "queued", got.Findings[0].Kind)
				return
			}
			require.NotNil(t, got.Missing)
			assert.InDelta(t, c.share, got.Missing.Share, 0.01)
			require.Len(t, got.Findings, 1)
			f := &got.Findings[0]
			assert.Equal(t, "missing_work", f.Kind)
			assert.Contains(t, f.Text, c.text)
			assert.Contains(t, f.Text, "A device can have worked in its idle time, so no cause, limit or slow step is named. Record a shorter time with all spans to find causes.")
			assert.Zero(t, f.GainNs)
			assert.Equal(t, BoundUnknown, d.Bound)
			assert.Positive(t, d.Active.IdleNs)
			for _, p := range []*Parts{&d.Parts, &d.Active, &got.Steps.Longest[0].Parts, &got.Steps.Typical.Parts} {
				assert.Equal(t, CauseSums{Unknown: p.IdleNs}, p.Idle)
			}
			for i := range d.Gaps {
				assert.Equal(t, Unknown, d.Gaps[i].Cause)
			}
			assert.Equal(t, BoundUnknown, got.Steps.Longest[0].Bound)
			assert.Empty(t, got.Steps.Outliers)
			assert.Zero(t, got.Steps.OutlierCount)
		})
	}
}

// TestRun_MissingWorkOfFile expects the same of rows in memory.
func TestRun_MissingWorkOfFile(t *testing.T) {
	var c Collection
	for i, o := range sparse(10).ops {
		b := &store.Batch{
			Lanes: []store.Lane{*o.LaneRef}, Shapes: []store.Shape{*o.ShapeRef}, Places: make([]store.Place, 1),
			Stacks: make([]store.Stack, 1), Origins: make([]store.Origin, 1), Ops: []store.Op{o.Op},
		}
		b.Shapes[0].Key, b.Ops[0].Shape, b.Ops[0].Span = uint64(o.Shape)+1, 0, store.SpanID(i+1)
		c.Add(b)
	}
	c.Add(&store.Batch{Logs: []store.Log{{TimeNs: 1000, Event: semconv.EventCUDACapture, Attrs: store.Attrs{double(semconv.CUDACaptureRecordedRatio, 0.1)}}}})
	got, err := Run(t.Context(), &c, Options{})
	require.NoError(t, err)
	assert.Equal(t, &Missing{0.9, "About 90 % of the work is missing: an overhead budget left 10 % of the time recorded."}, got.Missing)
	require.Len(t, got.Findings, 1)
	assert.Equal(t, "missing_work", got.Findings[0].Kind)
}
