// SPDX-License-Identifier: Apache-2.0

package traceexport

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

// chromeEvent has all fields that the export may use. Its times are exact.
type chromeEvent struct {
	Ph, Name, Cat string
	Pid, Tid      int64
	Ts, Dur       json.Number
	ID            int64
	S, Bp         string
	Args          map[string]any
}

type chromeTrace struct {
	SchemaVersion       int
	DisplayTimeUnit     string
	BaseTimeNanoseconds int64
	Session             string
	DeviceProperties    []struct {
		ID         int
		Name, Uuid string
	}
	TraceEvents []chromeEvent
}

func exportChrome(t *testing.T, r store.Reader, q Query) *chromeTrace {
	var out bytes.Buffer
	require.NoError(t, Chrome(t.Context(), r, q, &out))
	d := json.NewDecoder(&out)
	d.DisallowUnknownFields()
	var trace chromeTrace
	require.NoError(t, d.Decode(&trace))
	return &trace
}

// nanoseconds converts microseconds with three decimals.
func nanoseconds(t *testing.T, n json.Number) int64 {
	us, fraction, ok := strings.Cut(n.String(), ".")
	require.True(t, ok && len(fraction) == 3, n)
	v, err := json.Number(us + fraction).Int64()
	require.NoError(t, err)
	return v
}

func TestChrome_EqualsStore(t *testing.T) {
	each(t, func(t *testing.T, r store.Reader, s *store.SessionInfo) {
		byOperation, kernels := wanted(t, r, s)
		trace := exportChrome(t, r, Query{Project: s.Project, Session: s.ID})
		assert.Equal(t, s.ID, trace.Session)
		assert.Equal(t, s.FirstNs, trace.BaseTimeNanoseconds)
		got, gotKernels := map[store.Operation]*total{}, sums{}
		operations := map[string]store.Operation{}
		for k, category := range opCategories {
			operations[category] = k
		}
		type thread struct{ pid, tid int64 }
		named := map[thread]bool{}
		type part struct{ start, end int64 }
		threads := map[thread][]part{}
		flows := map[int64]int{}
		spans, counters := 0, 0
		for i := range trace.TraceEvents {
			e := &trace.TraceEvents[i]
			require.NotZero(t, e.Pid)
			at := thread{e.Pid, e.Tid}
			if e.Ph == "M" {
				if e.Name == "thread_name" {
					named[at] = true
				}
				continue
			}
			start := nanoseconds(t, e.Ts)
			switch e.Ph {
			case "X":
				require.True(t, named[at], "the thread has a name before its first event")
				dur := nanoseconds(t, e.Dur)
				require.GreaterOrEqual(t, dur, int64(0))
				threads[at] = append(threads[at], part{start, start + dur})
				if k, ok := operations[e.Cat]; ok {
					if got[k] == nil {
						got[k] = &total{}
					}
					got[k].Count++
					got[k].Ns += dur
					if k == store.OpKernel {
						gotKernels.add(e.Name, dur)
					}
					require.Equal(t, e.Pid >= gpuPID, e.Args["device"] != nil)
				} else if e.Cat != "cuda_runtime" && e.Cat != "other" {
					spans++
				}
			case "s", "f":
				flows[e.ID]++
			case "C":
				counters++
			case "i":
				require.Equal(t, "t", e.S)
			default:
				require.Failf(t, "unknown phase", "%q", e.Ph)
			}
		}
		for k, n := range got {
			assert.Equal(t, byOperation[k], n, "operation %d", k)
		}
		assert.Equal(t, kernels, gotKernels)
		assert.Len(t, spansOf(t, r, s), spans)
		for id, n := range flows {
			assert.Equal(t, 2, n, "flow %d", id)
		}
		for at, parts := range threads {
			assertNested(t, at, parts, func(p part) (int64, int64) { return p.start, p.end })
		}
		points := 0
		list, err := r.Series(t.Context(), store.SeriesQuery{Project: s.Project, Session: s.ID, Limit: 10_000})
		require.NoError(t, err)
		for i := range list {
			if list[i].Type == store.Gauge || list[i].Type == store.Sum {
				rows, err := r.Points(t.Context(), store.PointQuery{Project: s.Project, Session: s.ID, Series: list[i].Key, Points: 20_000})
				require.NoError(t, err)
				for _, p := range rows {
					if p.Int.OK || p.HasDouble && !math.IsNaN(p.Double) && !math.IsInf(p.Double, 0) {
						points++
					}
				}
			}
		}
		assert.GreaterOrEqual(t, counters, points)
	})
}

// assertNested asserts that slices of a track are within each other or follow each other.
func assertNested[T any](t *testing.T, track any, slices_ []T, of func(T) (start, end int64)) {
	slices.SortStableFunc(slices_, func(a, b T) int {
		a0, a1 := of(a)
		b0, b1 := of(b)
		return cmp.Or(cmp.Compare(a0, b0), cmp.Compare(b1, a1))
	})
	var open []int64
	for _, s := range slices_ {
		start, end := of(s)
		for len(open) > 0 && open[len(open)-1] <= start {
			open = open[:len(open)-1]
		}
		require.False(t, len(open) > 0 && end > open[len(open)-1], "track %v: a slice from %d to %d overlaps another that ends at %v", track, start, end, open)
		open = append(open, end)
	}
}
