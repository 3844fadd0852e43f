// SPDX-License-Identifier: Apache-2.0

package analysis_test

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/analysis/compare"
)

// TestNewProfile_Comparison compares sessions whose parts are kept. Cells of several steps lie across the bounds
// of the profile's cells there. It must find as little between equal programs, and as much of a slower kernel, as
// profiles of all operations do.
func TestNewProfile_Comparison(t *testing.T) {
	profile := func(s analysis.Source) *analysis.Profile {
		p, err := analysis.NewProfile(t.Context(), s, analysis.Options{})
		require.NoError(t, err)
		require.Len(t, p.Steps, 3000)
		return p
	}
	comparisons := uint64(10)
	if os.Getenv("GPUFLIGHT_SOAK") != "" {
		comparisons = 200
	}
	alarms, cells := map[bool]uint64{}, 0
	for seed := range comparisons {
		rowsA, partsA := analysis.NoisySteps(2*seed, 0)
		rowsB, partsB := analysis.NoisySteps(2*seed+1, 0)
		_, slower := analysis.NoisySteps(2*seed+1, 0.05)
		for _, kept := range []bool{false, true} {
			a, b := profile(rowsA), profile(rowsB)
			if kept {
				profile(partsA) // keeps parts
				direct := a
				a, b = profile(partsA), profile(partsB)
				for i := range a.Kernels {
					x, y := a.Kernels[i].Steps, direct.Kernels[i].Steps
					require.Equal(t, y.Size, x.Size)
					if !slices.Equal(x.Cells, y.Cells) {
						cells++
					}
				}
			}
			c := compare.Sessions(a, b)
			if c.Verdict != compare.Same || slices.ContainsFunc(c.Kernels, func(x *compare.Change) bool { return x.Status != compare.Same }) {
				alarms[kept]++
			}
			if kept {
				c = compare.Sessions(a, profile(slower))
				require.Equal(t, compare.Slower, c.Kernels[0].Status)
				require.Equal(t, "gemm", c.Kernels[0].Name)
				assert.InDelta(t, 0.05, c.Kernels[0].Duration.Relative, 0.02)
			}
		}
	}
	assert.Positive(t, cells, "some cells of parts lie across bounds")
	assert.LessOrEqual(t, alarms[true], comparisons/10)
	assert.LessOrEqual(t, alarms[false], comparisons/10)
	t.Log("false alarms with and without kept parts:", alarms[true], alarms[false])
}
