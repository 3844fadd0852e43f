// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/analysis"
)

// TestStudentTail compares with tables of the distribution.
func TestStudentTail(t *testing.T) {
	for _, c := range []struct{ t, nu, p float64 }{
		{12.706, 1, 0.05}, {4.303, 2, 0.05}, {31.599, 2, 0.001}, {12.924, 3, 0.001}, {2.776, 4, 0.05}, {2.228, 10, 0.05}, {3.850, 20, 0.001}, {1.96, 1e7, 0.05}, {0, 5, 1},
	} {
		assert.InEpsilon(t, c.p, studentTail(c.t, c.nu), 0.002, "%+v", c)
		if c.p < 1 {
			assert.InEpsilon(t, c.t, studentQuantile(c.p, c.nu), 0.001, "%+v", c)
		}
	}
	assert.Zero(t, studentTail(math.Inf(1), 5))
}

// TestTest_Welch compares with a computation by hand: means 21 and 23, variances 10/3 and 1.
func TestTest_Welch(t *testing.T) {
	// The ranks alternate, so that the ratio of von Neumann is above 2.
	x := test([]float64{20, 23, 19, 22}, []float64{22, 24, 22, 24})
	require.NotNil(t, x)
	assert.Equal(t, []float64{21, 23, 2}, []float64{x.A, x.B, x.Shift})
	assert.InDelta(t, 2.0/21, x.Relative, 1e-9)
	// t = 2 / sqrt((10/3)/4 + (4/3)/4) = 1.8516, nu = (7/6)² / ((5/6)²/3 + (1/3)²/3) = 5.0690
	assert.InDelta(t, studentTail(2/math.Sqrt(7.0/6), 5.068965517), x.P, 1e-9)
	assert.InDelta(t, 0.1225, x.P, 0.0005)
	assert.Less(t, x.Low, 0.0)
	assert.Greater(t, x.High, 4.0)
}

func TestTest_Limits(t *testing.T) {
	assert.Nil(t, test([]float64{1, 2}, []float64{1, 2, 3}))
	equal := test([]float64{8, 8, 8}, []float64{8, 8, 8})
	assert.InDelta(t, 1, equal.P, 0)
	other := test([]float64{8, 8, 8}, []float64{9, 9, 9})
	assert.Zero(t, other.P)
	assert.InDelta(t, 1, other.Low, 0)
	zero := test([]float64{0, 0, 0}, []float64{9, 9, 9})
	assert.Zero(t, zero.Relative)
	b, err := json.Marshal(zero)
	require.NoError(t, err, "%s", b)
}

func TestNeumann(t *testing.T) {
	assert.InDelta(t, 2, neumann([]float64{5, 5, 5}), 0)
	// Ranks 1 to 5: four differences of 1 over 4+1+0+1+4.
	assert.InDelta(t, 0.4, neumann([]float64{1, 2, 3, 4, 5}), 1e-12)
	assert.Greater(t, neumann([]float64{1, 5, 2, 4, 3}), 2.0)
	assert.Equal(t, []float64{1.5, 3, 1.5}, ranksOf([]float64{7, 9, 7}))
}

func TestHolm(t *testing.T) {
	tests := []*Test{{P: 0.04}, {P: 0.01}, {P: 0.03}, {P: 0.005}}
	holm(tests, 1)
	for i, want := range []float64{0.06, 0.03, 0.06, 0.02} {
		assert.InDelta(t, want, tests[i].Adjusted, 1e-12)
		assert.Equal(t, want <= 0.05, tests[i].Significant)
	}
	half := []*Test{{P: 0.03}}
	holm(half, 0.5)
	assert.False(t, half[0].Significant)
}

func TestBlocks_EqualLength(t *testing.T) {
	ramp := func(n int) values { return values{n, func(i int) (float64, bool) { return float64(i), true }} }
	for _, c := range []struct{ a, b, wantA, wantB int }{
		{0, 50, 0, 20}, {5, 5, 2, 2}, {6, 6, 3, 3}, {50, 50, 7, 7}, {50, 10_000, 7, 20}, {1000, 1000, 20, 20}, {100_000, 100_000, 20, 20},
	} {
		x, y := blocks(ramp(c.a), ramp(c.b), false)
		assert.Equal(t, []int{c.wantA, c.wantB}, []int{len(x), len(y)}, "%+v", c)
	}
	x, _ := blocks(ramp(1000), ramp(1000), false)
	assert.InDelta(t, 24.5, x[0], 0)
	assert.InDelta(t, 974.5, x[19], 0)
	none, _ := blocks(values{9, func(int) (float64, bool) { return 0, false }}, ramp(9), false)
	assert.Empty(t, none)
}

// group has count launches per step of a duration.
func group(name string, steps int, count, ns int64) *analysis.Group {
	g := &analysis.Group{Name: name, Steps: analysis.Series{Size: 1}, Calls: analysis.Series{Size: 1}}
	for range steps {
		g.Steps.Cells = append(g.Steps.Cells, analysis.Cell{Count: count, Ns: count * ns})
		for range count {
			g.Calls.Cells = append(g.Calls.Cells, analysis.Cell{Count: 1, Ns: ns})
		}
		g.Count += count
		g.SumNs += count * ns
	}
	return g
}

// synthetic has steps with compute time of its kernels and idle time by one cause, with noise of 0.1 %.
func synthetic(seed uint64, steps int, idle int64, kernels ...*analysis.Group) *analysis.Profile {
	rng := rand.New(rand.NewPCG(seed, 3))
	p := &analysis.Profile{Result: &analysis.Result{Complete: true, Steps: analysis.Steps{Rule: "scopes", Name: "step"}}}
	p.Kernels = kernels
	for _, k := range kernels {
		s := *k
		s.FullName, s.Grid, s.Block = k.Name+"<float>", []int64{64, 1, 1}, []int64{128, 1, 1}
		p.Shapes = append(p.Shapes, &s)
		p.KernelNs += k.SumNs
	}
	noisy := func(ns int64) int64 { return ns + int64(float64(ns)*0.001*rng.NormFloat64()) }
	for i := range steps {
		var v analysis.StepValues
		for _, k := range kernels {
			v.ComputeNs += k.Steps.Cells[i].Ns
		}
		v.ComputeNs = noisy(v.ComputeNs)
		v.IdleNs = noisy(idle)
		v.Idle[analysis.Sync] = v.IdleNs
		v.WallNs = v.ComputeNs + v.IdleNs
		p.Steps = append(p.Steps, v)
	}
	return p
}

func statuses(list []*Change) map[string]Status {
	m := map[string]Status{}
	for _, x := range list {
		m[x.Name] = x.Status
	}
	return m
}

func TestSessions_Steps(t *testing.T) {
	const n = 50
	a := synthetic(1, n, 500_000, group("gemm", n, 8, 100_000), group("norm", n, 4, 50_000), group("old", n, 1, 30_000), group("tiny", n, 1, 100))
	b := synthetic(2, n, 900_000, group("gemm", n, 8, 105_000), group("norm", n, 6, 50_000), group("new", n, 1, 20_000), group("tiny", n, 1, 200))
	c := Sessions(a, b)
	assert.Equal(t, Slower, c.Verdict)
	assert.Equal(t, "B is slower: a step takes 2.06 ms instead of 1.53 ms (+34.7 %), because of idle time (synchronisation) +400 µs and compute +130 µs.", c.Text)
	assert.Equal(t, map[string]Status{"gemm": Slower, "norm": More, "old": Gone, "new": New, "tiny": Untested}, statuses(c.Kernels))
	assert.Equal(t, map[string]Status{"sync": Slower, "compute": Slower}, statuses(c.Parts))
	assert.Equal(t, "norm", c.Kernels[0].Name, "the largest effect comes first")
	assert.Equal(t, int64(100_000), c.Kernels[0].EffectNs)
	assert.Equal(t, []int64{64, 1, 1}, c.Kernels[0].Grid, "the only shape of a kernel is its own")
	assert.Empty(t, c.Shapes)
	assert.Empty(t, c.Warnings)
	var names []string
	for _, x := range c.Regressions(0.04) {
		names = append(names, x.Name)
	}
	assert.Equal(t, []string{"step", "gemm"}, names)
	assert.Len(t, c.Regressions(0.06), 1)
	assert.Empty(t, c.Regressions(0.5))

	back := Sessions(b, a)
	assert.Equal(t, Faster, back.Verdict)
	assert.Contains(t, back.Text, "B is faster: a step takes 1.53 ms instead of 2.06 ms (-25.7 %)")
	assert.Equal(t, map[string]Status{"gemm": Faster, "norm": Fewer, "old": New, "new": Gone, "tiny": Untested}, statuses(back.Kernels))
}

func TestSessions_Shapes(t *testing.T) {
	const n = 30
	a, b := synthetic(1, n, 1000, group("gemm", n, 8, 100_000)), synthetic(2, n, 1000, group("gemm", n, 8, 100_000))
	b.Shapes[0].Grid = []int64{128, 1, 1}
	c := Sessions(a, b)
	assert.Equal(t, map[string]Status{"gemm": Same}, statuses(c.Kernels))
	require.Len(t, c.Shapes, 2)
	assert.ElementsMatch(t, []Status{New, Gone}, []Status{c.Shapes[0].Status, c.Shapes[1].Status})
	assert.Equal(t, Same, c.Verdict)
	assert.Contains(t, c.Text, "No significant difference: a step takes")
}

func TestSessions_FewSteps(t *testing.T) {
	two := func(n int) *Comparison {
		return Sessions(synthetic(1, n, 500_000, group("gemm", n, 8, 100_000)), synthetic(2, n, 900_000, group("gemm", n, 8, 100_000)))
	}
	c := two(5)
	assert.Equal(t, Untested, c.Verdict)
	assert.Equal(t, []string{"There are too few steps (5 and 5) for a test. It needs 6 of each."}, c.Warnings)
	assert.Equal(t, "There are too few steps to say whether B is slower.", c.Text)
	c = two(6)
	assert.Equal(t, Slower, c.Verdict)
	assert.Equal(t, []string{"There are few steps (6 and 6), so only large differences are found. Compare at least 30."}, c.Warnings)
}

func TestSessions_NoSteps(t *testing.T) {
	session := func(ns int64) *analysis.Profile {
		p := synthetic(1, 40, 0, group("gemm", 40, 8, ns))
		p.Steps, p.Result.Steps = nil, analysis.Steps{Rule: "none"}
		p.Result.Complete = ns == 100_000
		return p
	}
	c := Sessions(session(100_000), session(110_000))
	assert.Nil(t, c.Step)
	assert.Equal(t, Slower, c.Verdict)
	assert.Equal(t, "Of 1 kernels, 1 is slower in B.", c.Text)
	assert.Equal(t, int64(40*8*10_000), c.Kernels[0].EffectNs)
	assert.Equal(t, []string{
		"No steps were found in A, so only kernels and scopes are compared. Mark steps with scopes.",
		"No steps were found in B, so only kernels and scopes are compared. Mark steps with scopes.", "B was not read to its end.",
	}, c.Warnings)
	c = Sessions(session(100_000), &analysis.Profile{Result: &analysis.Result{}})
	assert.Equal(t, Untested, c.Verdict)
	assert.Equal(t, map[string]Status{"gemm": Gone}, statuses(c.Kernels))
	empty := Sessions(&analysis.Profile{Result: &analysis.Result{}}, &analysis.Profile{Result: &analysis.Result{}})
	assert.Equal(t, "Nothing could be compared.", empty.Text)
	b, err := json.Marshal(empty)
	require.NoError(t, err)
	assert.NotContains(t, string(b), "null")
}

// TestSessions_ManyKernels has more kernels than a list has rows and a profile has groups.
func TestSessions_ManyKernels(t *testing.T) {
	var kernels []*analysis.Group
	for i := range maxListed + 7 {
		kernels = append(kernels, group(fmt.Sprint("kernel ", i), 40, 1, 1000))
	}
	a, b := synthetic(1, 40, 0, kernels...), synthetic(2, 40, 0, kernels...)
	b.More = true
	c := Sessions(a, b)
	assert.Len(t, c.Kernels, maxListed)
	assert.Equal(t, []string{
		"A session has 2,000 kernels, shapes or scopes, which is the limit. Further ones are not compared.",
		"The 7 rows with the smallest effects of a list are not shown.",
	}, c.Warnings)
}

// TestSessions_LongSessions compares a long session with a short one.
func TestSessions_LongSessions(t *testing.T) {
	long, short := 5000, 40
	a, b := synthetic(1, long, 500_000, group("gemm", long, 3, 100_000)), synthetic(2, short, 500_000, group("gemm", short, 3, 100_000))
	for _, list := range [][]*analysis.Group{a.Kernels, a.Shapes} {
		for len(list[0].Steps.Cells) > 256 {
			list[0].Steps = list[0].Steps.Coarser()
		}
	}
	c := Sessions(a, b)
	assert.Equal(t, Same, c.Verdict, c.Text)
	assert.Equal(t, map[string]Status{"gemm": Same}, statuses(c.Kernels))
	k := c.Kernels[0]
	assert.InDelta(t, 3, k.Launches.A, 1e-9)
	assert.InDelta(t, 3, k.Launches.B, 1e-9)
	assert.Equal(t, []int{20, 6}, []int{c.Step.Duration.BlocksA, c.Step.Duration.BlocksB})
}

// stepsOf is a session with steps of these times, each of one kernel.
func stepsOf(ns []float64) *analysis.Profile {
	g := group("gemm", 0, 0, 0)
	for _, v := range ns {
		c := analysis.Cell{Count: 1, Ns: int64(v)}
		g.Steps.Cells, g.Calls.Cells = append(g.Steps.Cells, c), append(g.Calls.Cells, c)
		g.Count++
		g.SumNs += c.Ns
	}
	return synthetic(1, len(ns), 0, g)
}

// TestSessions_HeavyTails compares sessions whose steps have one distribution, with rare, many or extremely long
// ones. At most 5 % of the comparisons may find anything, also if only one session has a single long step.
func TestSessions_HeavyTails(t *testing.T) {
	const n, pairs = 60, 200
	for name, factor := range map[string]func(i int, rng *rand.Rand) float64{
		"each third":          func(i int, _ *rand.Rand) float64 { return 1 + 5*float64(i%3/2) },
		"a random third":      func(_ int, rng *rand.Rand) float64 { return 1 + 5*float64(rng.IntN(3)/2) },
		"a random tenth":      func(_ int, rng *rand.Rand) float64 { return 1 + 50*float64(rng.IntN(10)/9) },
		"infinite variance":   func(_ int, rng *rand.Rand) float64 { return math.Pow(1-rng.Float64(), -1/1.5) },
		"infinite mean":       func(_ int, rng *rand.Rand) float64 { return math.Pow(1-rng.Float64(), -1/0.9) },
		"lognormal":           func(_ int, rng *rand.Rand) float64 { return math.Exp(1.5 * rng.NormFloat64()) },
		"one in one of both":  func(int, *rand.Rand) float64 { return 1 },
		"four in one of both": func(int, *rand.Rand) float64 { return 1 },
	} {
		t.Run(name, func(t *testing.T) {
			alarms := 0
			for seed := range uint64(pairs) {
				rng := rand.New(rand.NewPCG(seed, 4))
				side := func() (ns []float64) {
					for i := range n {
						ns = append(ns, 1e6*factor(i, rng)*(1+0.02*rng.NormFloat64()))
					}
					return ns
				}
				a, b := side(), side()
				switch name {
				case "one in one of both":
					b[rng.IntN(n)] *= 100
				case "four in one of both": // next to each other
					begin := rng.IntN(n - 4)
					for i := range 4 {
						b[begin+i] *= 100
					}
				}
				c := Sessions(stepsOf(a), stepsOf(b))
				if c.Verdict != Same && c.Verdict != Untested || c.Step.Mean != nil || c.Kernels[0].Status == Slower || c.Kernels[0].Status == Faster {
					alarms++
				}
				if name == "one in one of both" {
					assert.Equal(t, Untested, c.Verdict, c.Text)
				}
			}
			t.Logf("%d of %d", alarms, pairs)
			assert.LessOrEqual(t, float64(alarms), Level*pairs)
		})
	}
}

// TestSessions_LongSteps makes a third of the steps of B longer, which the median does not show.
func TestSessions_LongSteps(t *testing.T) {
	for name, long := range map[string]func(i int, rng *rand.Rand) bool{
		"each third":     func(i int, _ *rand.Rand) bool { return i%3 == 2 },
		"a random third": func(_ int, rng *rand.Rand) bool { return rng.IntN(3) == 0 },
	} {
		t.Run(name, func(t *testing.T) {
			const n, pairs = 60, 50
			found := 0
			for seed := range uint64(pairs) {
				rng := rand.New(rand.NewPCG(seed, 5))
				var a, b []float64
				for i := range n {
					a, b = append(a, 1e6*(1+0.02*rng.NormFloat64())), append(b, 1e6*(1+0.02*rng.NormFloat64()))
					if long(i, rng) {
						b[i] *= 6
					}
				}
				c := Sessions(stepsOf(a), stepsOf(b))
				assert.Contains(t, []Status{Slower, Untested}, c.Verdict, c.Text)
				if c.Verdict == Slower {
					found++
					assert.Contains(t, []Status{Slower, Untested}, c.Kernels[0].Status)
					assert.Equal(t, c.Step, c.Regressions(0.05)[0])
				}
				back := Sessions(stepsOf(b), stepsOf(a))
				assert.Contains(t, []Status{Faster, Untested}, back.Verdict, back.Text)
			}
			t.Logf("%d of %d", found, pairs)
			assert.GreaterOrEqual(t, float64(found), 0.9*pairs)
		})
	}
}

// TestSessions_Outlier has one long step, and too few steps for equal numbers.
func TestSessions_Outlier(t *testing.T) {
	a, b := make([]float64, 60), make([]float64, 50)
	for i := range a {
		a[i] = 1e6 + 1e3*float64(i*7%11)
	}
	copy(b, a)
	b[20] = 51e6
	c := Sessions(stepsOf(a), stepsOf(b))
	assert.Equal(t, Untested, c.Verdict)
	assert.Equal(t, "It is uncertain whether B differs: the mean step takes 2 ms instead of 1 ms (+99.4 %), but the median step 1.01 ms instead of 1.01 ms (+0.0 %). The times of steps vary too much for a test.", c.Text)
	require.Len(t, c.Warnings, 2)
	assert.Equal(t, "0 of 60 steps of A and 1 of 50 of B take more than twice the median step.", c.Warnings[0])
	assert.Equal(t, "The means of 2 rows differ by 20 % or more, but vary too much for a test. The first is compute.", c.Warnings[1])
	assert.Empty(t, c.Regressions(0.05))
}

func BenchmarkSessions(b *testing.B) {
	const n = 1000
	side := func(seed uint64) *analysis.Profile {
		var kernels []*analysis.Group
		for i := range 200 {
			kernels = append(kernels, group(fmt.Sprint("kernel", i), n, 1, 1000+int64(i)))
		}
		return synthetic(seed, n, 500, kernels...)
	}
	x, y := side(1), side(2)
	for b.Loop() {
		Sessions(x, y)
	}
}

// TestSessions_MissingWork compares a session with one of which a budget left out work.
func TestSessions_MissingWork(t *testing.T) {
	const n = 50
	a := synthetic(1, n, 500_000, group("gemm", n, 8, 100_000), group("norm", n, 4, 50_000), group("old", n, 1, 30_000))
	b := synthetic(2, n, 900_000, group("gemm", n, 2, 105_000), group("norm", n, 1, 50_000), group("new", n, 1, 20_000))
	b.Result.Missing = &analysis.Missing{Share: 0.75, Text: "About 75 % of the work is missing: an overhead budget left 25 % of the time recorded."}
	c := Sessions(a, b)
	assert.Nil(t, c.A.Missing)
	assert.Equal(t, b.Result.Missing, c.B.Missing)
	assert.Equal(t, []string{"B: About 75 % of the work is missing: an overhead budget left 25 % of the time recorded. Only the times of its recorded kernels are compared."}, c.Warnings)
	assert.Nil(t, c.Step)
	assert.Empty(t, c.Parts)
	assert.Empty(t, c.Scopes)
	// A is complete, so the kernel that it lacks is new.
	assert.Equal(t, map[string]Status{"gemm": Slower, "norm": Same, "old": Untested, "new": New}, statuses(c.Kernels))
	assert.Equal(t, Slower, c.Verdict)
	assert.Equal(t, "Of 4 kernels, 1 is slower in B.", c.Text)
	for _, x := range c.Kernels {
		assert.Nil(t, x.Launches)
		switch x.Name {
		case "gemm":
			assert.InDelta(t, 0.05, x.Duration.Relative, 1e-9)
			assert.Equal(t, int64(5000*2*n), x.EffectNs)
		case "old":
			assert.Zero(t, x.EffectNs)
		}
	}
	c = Sessions(b, a)
	assert.Equal(t, map[string]Status{"gemm": Faster, "norm": Same, "old": Untested, "new": Gone}, statuses(c.Kernels))
}
