// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkRun analyses 8 ranks with 2,000 steps: 272,000 operations, of which 32,000 are collectives.
func BenchmarkRun(b *testing.B) {
	c := newCluster(1, 8)
	c.detune()
	c.train(2000, delay{rank: 3, kind: "host", every: 4, ns: 5 * ms})
	inputs := c.inputs(nil)
	b.ReportAllocs()
	for b.Loop() {
		got, err := Run(b.Context(), inputs, Options{})
		require.NoError(b, err)
		require.Equal(b, 4000, got.Total)
		require.Equal(b, 3, got.Ranks[got.Findings[0].Rank].Rank)
	}
}
