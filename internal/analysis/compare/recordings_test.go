// SPDX-License-Identifier: Apache-2.0

package compare_test

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/analysis/compare"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/report"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/rows"
)

// stepRecordings returns the recordings with at least 20 steps.
func stepRecordings(t *testing.T) (paths []string) {
	t.Helper()
	paths, err := filepath.Glob("../../../test/gpu/causes/recordings/*.gz")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	const log = "../../../../shared/logs/c2-h200-engines"
	if _, err := os.Stat(log); err == nil {
		paths = append(paths, log)
	} else {
		t.Log("without the recording of ../shared/logs, which is absent")
	}
	return paths
}

func profileOf(t *testing.T, path string) *analysis.Profile {
	t.Helper()
	var c report.Causes
	_, err := report.ReadTelemetry(path, otlp.Handler{Traces: c.Traces, Logs: func(plog.Logs) {}, Metrics: func(pmetric.Metrics) {}})
	require.NoError(t, err)
	p, _, err := c.Profile(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(p.Steps), 20, path)
	return p
}

// resample returns n steps of a recording, in runs of consecutive ones that begin anywhere after the first
// step. So steps depend on each other as in the recording, up to the length of a run.
func resample(p *analysis.Profile, rng *rand.Rand, n, run int) *analysis.Profile {
	var order []int
	for len(order) < n {
		begin := 1 + rng.IntN(len(p.Steps)-run)
		for i := range run {
			order = append(order, begin+i)
		}
	}
	order = order[:n]
	pick := func(s analysis.Series) (out analysis.Series) {
		out.Size = 1
		for _, i := range order {
			c := analysis.Cell{}
			if i < len(s.Cells) {
				c = s.Cells[i]
			}
			out.Cells = append(out.Cells, c)
		}
		return out
	}
	groups := func(list []*analysis.Group, scopes bool) (all []*analysis.Group) {
		for _, g := range list {
			x := *g
			x.Count, x.SumNs, x.Steps = 0, 0, pick(g.Steps)
			of := x.Steps
			if scopes {
				if len(g.Calls.Cells) < len(p.Steps) {
					continue // not one in each step
				}
				x.Calls = pick(g.Calls)
				of = x.Calls
			}
			for _, c := range of.Cells {
				x.Count += c.Count
				x.SumNs += c.Ns
			}
			if x.Count > 0 {
				all = append(all, &x)
			}
		}
		return all
	}
	out := &analysis.Profile{Result: p.Result, Kernels: groups(p.Kernels, false), Shapes: groups(p.Shapes, false), Scopes: groups(p.Scopes, true)}
	for _, i := range order {
		out.Steps = append(out.Steps, p.Steps[i])
	}
	for _, g := range out.Kernels {
		out.KernelNs += g.SumNs
	}
	return out
}

// significant returns the rows with a significant test.
func significant(c *compare.Comparison) (names []string) {
	rows := [][]*compare.Change{c.Parts, c.Kernels, c.Shapes, c.Scopes}
	if c.Step != nil {
		rows = append(rows, []*compare.Change{c.Step})
	}
	for _, list := range rows {
		for _, x := range list {
			for _, t := range []*compare.Test{x.Duration, x.Launches, x.Device, x.Mean} {
				if t != nil && t.Significant {
					names = append(names, x.Name)
				}
			}
		}
	}
	return names
}

// TestSessions_NothingChanged compares two samples of the same steps. At most 5 % of the comparisons may
// find anything. By default there are 200 of all recordings, for soak tests 200 of each.
func TestSessions_NothingChanged(t *testing.T) {
	paths := stepRecordings(t)
	each := (200 + len(paths) - 1) / len(paths)
	soak := os.Getenv("GPUFLIGHT_SOAK") == "1"
	if soak {
		each = 200
	}
	alarms, n := 0, 0
	for _, path := range paths {
		p := profileOf(t, path)
		here := 0
		for seed := range uint64(each) {
			rng := rand.New(rand.NewPCG(seed, 1))
			run, size := []int{1, 2, 4, 8}[seed%4], []int{50, 50, 100}[seed%3]
			c := compare.Sessions(resample(p, rng, size, run), resample(p, rng, size, run))
			require.NotNil(t, c.Step.Duration)
			if found := significant(c); len(found) > 0 {
				here++
				t.Logf("%s, seed %d, runs of %d: %v", filepath.Base(path), seed, run, found)
			}
			n++
		}
		t.Logf("%s: %d of %d", filepath.Base(path), here, each)
		if soak {
			assert.LessOrEqual(t, float64(here), compare.Level*float64(each), path)
		}
		alarms += here
	}
	t.Logf("%d of %d comparisons found a difference", alarms, n)
	assert.LessOrEqual(t, float64(alarms), compare.Level*float64(n))
}

// slowed is a source whose kernels with a name take longer. What comes later moves.
type slowed struct {
	analysis.Collection
	kernel string
	share  float64
}

// delays returns the times at which kernels end, and the delay from there.
func (s *slowed) delay(ctx context.Context) (at func(ns int64) int64, err error) {
	type point struct{ ns, sum int64 }
	var points []point
	first, last, err := s.Collection.Extent(ctx)
	if err != nil {
		return nil, err
	}
	sum := int64(0)
	err = s.Collection.Ops(ctx, first, last, func(row *store.OpRow) error {
		if row.ShapeRef.Name == s.kernel {
			sum += int64(s.share * float64(row.EndNs-row.StartNs))
			points = append(points, point{row.EndNs, sum})
		}
		return nil
	})
	return func(ns int64) int64 {
		low, high := 0, len(points)
		for low < high {
			if m := (low + high) / 2; points[m].ns <= ns {
				low = m + 1
			} else {
				high = m
			}
		}
		if low == 0 {
			return 0
		}
		return points[low-1].sum
	}, err
}

func (s *slowed) Extent(ctx context.Context) (first, last int64, err error) {
	at, err := s.delay(ctx)
	if err != nil {
		return 0, 0, err
	}
	first, last, err = s.Collection.Extent(ctx)
	return first, last + at(last), err
}

func (s *slowed) Ops(ctx context.Context, _, _ int64, visit func(*store.OpRow) error) error {
	at, err := s.delay(ctx)
	if err != nil {
		return err
	}
	first, last, err := s.Collection.Extent(ctx)
	if err != nil {
		return err
	}
	return s.Collection.Ops(ctx, first, last, func(row *store.OpRow) error {
		row.StartNs += at(row.StartNs)
		row.EndNs += at(row.EndNs)
		row.LaunchStartNs.V += at(row.LaunchStartNs.V)
		row.LaunchEndNs.V += at(row.LaunchEndNs.V)
		return visit(row)
	})
}

func (s *slowed) Scopes(ctx context.Context, _, _ int64, n int) ([]analysis.Scope, bool, error) {
	at, err := s.delay(ctx)
	if err != nil {
		return nil, false, err
	}
	first, last, err := s.Collection.Extent(ctx)
	if err != nil {
		return nil, false, err
	}
	list, more, err := s.Collection.Scopes(ctx, first, last, n)
	for i := range list {
		list[i].StartNs += at(list[i].StartNs)
		list[i].EndNs += at(list[i].EndNs)
	}
	return list, more, err
}

func read(t *testing.T, path string, share float64) *analysis.Profile {
	t.Helper()
	s := &slowed{share: share}
	var d rows.Decoder
	kernelNs := map[string]int64{}
	_, err := report.ReadTelemetry(path, otlp.Handler{Logs: func(plog.Logs) {}, Metrics: func(pmetric.Metrics) {}, Traces: func(td ptrace.Traces) {
		for _, b := range d.Traces("", td) {
			s.Add(b)
			for i := range b.Ops {
				if x := b.Shapes[b.Ops[i].Shape]; x.Operation == store.OpKernel {
					kernelNs[x.Name] += b.Ops[i].EndNs - b.Ops[i].StartNs
				}
			}
		}
	}})
	require.NoError(t, err)
	for name, ns := range kernelNs {
		if ns > kernelNs[s.kernel] {
			s.kernel = name
		}
	}
	p, err := analysis.NewProfile(t.Context(), s, analysis.Options{})
	require.NoError(t, err)
	return p
}

// TestSessions_SlowerKernel makes the kernel with the most time 5 % slower, and compares samples of the
// steps. The clock of the other recordings changes by 15 % within the session, which hides 5 %.
func TestSessions_SlowerKernel(t *testing.T) {
	for _, path := range stepRecordings(t) {
		name, _, _ := strings.Cut(filepath.Base(path), ".")
		switch name {
		case "data_loader", "item", "no_overlap", "pageable":
		default:
			continue
		}
		t.Run(name, func(t *testing.T) {
			a, b := read(t, path, 0), read(t, path, 0.05)
			const n = 10
			found := 0
			for seed := range uint64(n) {
				rng := rand.New(rand.NewPCG(seed, 2))
				c := compare.Sessions(resample(a, rng, 50, 4), resample(b, rng, 50, 4))
				require.NotEmpty(t, c.Kernels)
				k := c.Kernels[0]
				if k.Status != compare.Slower {
					t.Logf("seed %d: %+v %+v", seed, k, k.Duration)
					continue
				}
				found++
				assert.InDelta(t, 0.05, k.Duration.Relative, 0.01)
				assert.Contains(t, c.Regressions(0.03), k)
				assert.NotContains(t, c.Regressions(0.08), k)
			}
			assert.Equal(t, n, found)
			c := compare.Sessions(b, a)
			assert.Equal(t, compare.Faster, c.Kernels[0].Status)
		})
	}
}

// TestSessions_LongThirdSteps compares rank 1 of two runs. In B 20 of 60 steps have more kernels.
func TestSessions_LongThirdSteps(t *testing.T) {
	const dir = "../../../test/gpu/ranks/recordings/"
	a, b := profileOf(t, dir+"gloo-host-1.otlp.jsonl.gz"), profileOf(t, dir+"gloo-kernels-1.otlp.jsonl.gz")
	status := func(list []*compare.Change, name string) compare.Status {
		for _, x := range list {
			if x.Name == name {
				return x.Status
			}
		}
		return ""
	}
	c := compare.Sessions(a, b)
	assert.Equal(t, compare.Slower, c.Verdict)
	assert.Contains(t, c.Text, "B is slower: all 60 steps together take 5.12 s instead of 2.12 s (+141.8 %), but the median step 28.6 ms instead of 28.5 ms (+0.6 %), because of compute")
	assert.Contains(t, c.Warnings, "1 of 60 steps of A and 21 of 60 of B take more than twice the median step.")
	assert.Equal(t, []compare.Status{compare.Slower, compare.Slower, compare.Slower}, []compare.Status{status(c.Parts, "compute"), status(c.Kernels, "vectorized_elementwise_kernel"), status(c.Scopes, "step")})
	assert.InDelta(t, 1.418, c.Step.Mean.Relative, 0.02)
	assert.Equal(t, c.Step, c.Regressions(0.05)[0])

	back := compare.Sessions(b, a)
	assert.Equal(t, compare.Faster, back.Verdict)
	assert.Equal(t, []compare.Status{compare.Faster, compare.Faster, compare.Faster}, []compare.Status{status(back.Parts, "compute"), status(back.Kernels, "vectorized_elementwise_kernel"), status(back.Scopes, "step")})
	assert.Empty(t, back.Regressions(0.05))
}

func TestSessions_SameRecording(t *testing.T) {
	for _, path := range stepRecordings(t)[:1] {
		c := compare.Sessions(profileOf(t, path), profileOf(t, path))
		assert.Equal(t, compare.Same, c.Verdict, c.Text)
		assert.Empty(t, significant(c))
		assert.Empty(t, c.Regressions(0))
	}
}
