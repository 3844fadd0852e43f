// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// tinySteps is steps of twenty kernels of 1 µs, which the host launches every 20 µs.
func tinySteps(n int, step func(p *program, i int)) *pages {
	return train(n, func(p *program, i int) {
		for k := range 20 {
			p.host += 15 * µs
			p.launch(fmt.Sprintf("op%d", k%4), µs)
		}
		step(p, i)
	}).reader()
}

func findingOf(r *Result, kind string) *Finding {
	for i := range r.Findings {
		if r.Findings[i].Kind == kind {
			return &r.Findings[i]
		}
	}
	return nil
}

func TestRun_LaunchRate(t *testing.T) {
	r := tinySteps(20, func(p *program, i int) {
		if i == 3 { // the host loads a module
			begin := p.host
			p.launch("loaded", µs)
			row := &p.ops[len(p.ops)-1]
			p.host = begin + 5*ms
			row.LaunchEndNs = store.Some(p.host)
		}
	})
	result := run(t, r, 20_000, Options{})
	rate := result.Devices[0].Launches
	assert.EqualValues(t, 400, rate.Calls, "without the slow call")
	assert.InEpsilon(t, 5*µs, rate.CallP50Ns, 0.032)
	assert.InEpsilon(t, 5*µs, rate.FloorNs, 0.032)
	assert.InEpsilon(t, 20*µs, rate.IntervalP50Ns, 0.032)
	a := NewAnswer(result, 0)
	require.NotNil(t, a.Devices[0].Launches)
	assert.Equal(t, rate, *a.Devices[0].Launches)

	for i := range r.ops {
		r.ops[i].LaunchStartNs, r.ops[i].LaunchEndNs = store.Int{}, store.Int{}
	}
	result = run(t, r, 20_000, Options{})
	assert.Equal(t, LaunchRate{0, -1, -1, -1}, result.Devices[0].Launches)
	assert.Nil(t, NewAnswer(result, 0).Devices[0].Launches)
	assert.Nil(t, findingOf(result, "cuda_graph"))
	assert.Nil(t, findingOf(result, "fusion"))
}

func TestRun_CUDAGraph(t *testing.T) {
	same := func(*program, int) {}
	for name, c := range map[string]struct {
		steps int
		step  func(p *program, i int)
		found string // a part of the text, "" if there is none
	}{
		"equal steps": {20, same, "19 of 19 steps after the first have the same 20 operations."},
		"one in ten steps has one more": {21, func(p *program, i int) {
			if i%10 == 5 {
				p.launch("evaluate", µs)
			}
		}, "18 of 20 steps"},
		"one in five steps has one more": {21, func(p *program, i int) {
			if i%5 == 2 {
				p.launch("evaluate", µs)
			}
		}, ""},
		"another name with the same count": {20, func(p *program, i int) { p.launch(fmt.Sprint("kernel", i), µs) }, ""},
		"too few steps":                    {5, same, ""},
		"waits inside": {20, func(p *program, _ int) {
			p.sync()
			p.launch("loss", µs)
		}, "capture what is between them"},
	} {
		t.Run(name, func(t *testing.T) {
			r := tinySteps(c.steps, c.step)
			result := run(t, r, 20_000, Options{})
			require.Equal(t, "launch", result.Findings[0].Kind, "the cause comes first")
			f := findingOf(result, "cuda_graph")
			if c.found == "" {
				assert.Nil(t, f)
				return
			}
			require.NotNil(t, f)
			assert.Contains(t, f.Text, c.found)
			assert.Equal(t, c.found == "capture what is between them", strings.Contains(f.Text, "cannot contain"))
			var idle int64
			for i := range result.Steps.Longest {
				if s := &result.Steps.Longest[i]; s.Number > 1 && s.Operations == result.Steps.P50.Operations {
					idle += max(0, s.Idle[Launch]+s.Idle[Latency]+s.Idle[SlowLaunch]-result.Devices[0].Launches.FloorNs)
				}
			}
			assert.Equal(t, idle, f.GainNs)
			assert.NotEmpty(t, f.Evidence)
		})
	}
	t.Run("work is missing", func(t *testing.T) {
		r := tinySteps(20, same)
		r.captures = []store.Attrs{captureCounts(map[string]int64{semconv.CUDACaptureRecordsDropped: 400})}
		result := run(t, r, 20_000, Options{})
		require.NotNil(t, result.Missing)
		assert.Len(t, result.Findings, 1)
	})
	t.Run("the device limits", func(t *testing.T) {
		result := run(t, train(20, func(p *program, _ int) { kernels(p, 10, 100*µs) }).reader(), 20_000, Options{})
		assert.Empty(t, result.Findings)
	})
}

func TestRun_Fusion(t *testing.T) {
	r := tinySteps(20, func(p *program, _ int) {
		p.host += 15 * µs
		p.launch("long", 900*µs) // longer than the interval of launches
		p.host += 800 * µs
	})
	result := run(t, r, 20_000, Options{})
	f := findingOf(result, "fusion")
	require.NotNil(t, f)
	// Op0 to op3 run in turn, five times in each of 20 steps. After the first step, the first time is during the
	// long kernel of the step before. Op3 → op0 is less frequent.
	assert.Contains(t, f.Text, "op0 → op1 (81 times, ")
	assert.Contains(t, f.Text, "op1 → op2 (81 times, ")
	assert.Contains(t, f.Text, "op2 → op3 (81 times, ")
	assert.NotContains(t, f.Text, "long")
	assert.InEpsilon(t, 3*81*19*µs, f.GainNs, 0.05, "19 µs between two kernels")
	assert.Len(t, f.Evidence, 3)

	for i := range r.ops { // each kernel in another stream than the one before
		r.ops[i].Lane = uint32(i % 2)
	}
	assert.Nil(t, findingOf(run(t, r, 20_000, Options{}), "fusion"))
}

// TestRun_FusionInSteps has pairs of kernels of two steps, which cannot be fused.
func TestRun_FusionInSteps(t *testing.T) {
	r := train(20, func(p *program, _ int) {
		for _, name := range []string{"first", "op", "last"} {
			p.host += 15 * µs
			p.launch(name, µs)
		}
	}).reader()
	for _, rule := range []string{"scopes", "kernels", "none"} {
		t.Run(rule, func(t *testing.T) {
			o := Options{NoSteps: rule == "none"}
			if rule == "kernels" {
				r.spans = nil
			}
			result := run(t, r, 20_000, o)
			require.Equal(t, rule, result.Steps.Rule)
			counts := map[string]int64{}
			for _, p := range result.Devices[0].pairs {
				counts[p.names[0]+" "+p.names[1]] = p.count
			}
			want := map[string]int64{"first op": 20, "op last": 20}
			if rule == "none" {
				want["last first"] = 19
			}
			assert.Equal(t, want, counts)
		})
	}
}

func TestTally_PairBounds(t *testing.T) {
	var tally tally
	for i := range maxPairs + 10 {
		if p := tally.pair(uint64(i), "a", "b"); p != nil {
			p.add(&pair{count: 1, idleNs: 1})
		}
	}
	assert.Len(t, tally.pairs, maxPairs)
}

func TestHistogram(t *testing.T) {
	var h, o histogram
	assert.EqualValues(t, -1, h.quantile(50))
	for i := range int64(100) {
		h.add(i)
		o.add(1000 * i)
	}
	assert.EqualValues(t, 9, h.quantile(10))
	assert.InEpsilon(t, 49, h.quantile(50), 0.032)
	h.merge(o)
	assert.EqualValues(t, 200, h.count())
	assert.InEpsilon(t, 98, h.quantile(50), 0.04)
}

// TestRun_SmallKernels checks what is said of kernels that do not fill the device.
func TestRun_SmallKernels(t *testing.T) {
	p := newProgram()
	number := func(key string, v float64) store.Attr {
		return store.Attr{Key: key, Value: store.Value{Kind: store.KindDouble, Double: v}}
	}
	limiter := store.Attr{Key: semconv.CUDAOccupancyLimiter, Value: store.Value{Kind: store.KindSlice, Slice: []store.Value{
		{Kind: store.KindString, Str: "registers"}, {Kind: store.KindString, Str: "warps"},
	}}}
	for range 10 {
		p.work(store.OpKernel, "small", 100*µs, number(semconv.CUDAOccupancyGridFill, 0.25), limiter,
			number(semconv.CUDAOccupancyTheoretical, 0.5), number(semconv.CUDAOccupancyWaves, 0.25))
		p.work(store.OpKernel, "tiny", 50*µs, store.Attr{Key: semconv.CUDADeviceSMCount, Value: store.Value{Kind: store.KindInt, Int: 100}})
		p.work(store.OpKernel, "large", 300*µs, number(semconv.CUDAOccupancyGridFill, 0.9))
	}
	for key, s := range p.shapes {
		s.Attrs = sorted(s.Attrs)
		if strings.HasSuffix(key, "tiny") {
			s.Grid, s.Block = []int64{2, 1, 1}, []int64{32, 1, 1}
		}
	}
	r := run(t, p.reader(), 20_000, Options{})
	list := r.Devices[0].Small
	require.Len(t, list, 2)
	assert.Equal(t, "small", list[0].Name)
	assert.Equal(t, 750*µs, list[0].LostNs)
	assert.Equal(t, []any{0.25, 0.25, 0.5, "registers, warps"}, []any{list[0].Fill, list[0].Waves, list[0].Occupancy, list[0].Limiter})
	assert.Equal(t, "tiny", list[1].Name)
	assert.Equal(t, 490*µs, list[1].LostNs)
	assert.Equal(t, []int64{2, 1, 1}, list[1].Grid)
	assert.Equal(t, []any{0.02, -1.0, -1.0, ""}, []any{list[1].Fill, list[1].Waves, list[1].Occupancy, list[1].Limiter})
	f := findingOf(r, "small_kernels")
	require.NotNil(t, f)
	assert.Equal(t, 1240*µs, f.GainNs)
	a := NewAnswer(r, 0).Devices[0].Small
	assert.InDelta(t, 0.25, *a[0].Waves, 0)
	assert.Nil(t, a[1].Waves)
	assert.Nil(t, a[1].Occupancy)
}
