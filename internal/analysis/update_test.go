// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// TestKeepParts_NoKeeper expects the update of a whole session from a store that keeps no parts.
func TestKeepParts_NoKeeper(t *testing.T) {
	r := train(20, func(p *program, _ int) { kernels(p, 10, 100*µs) }).reader()
	u, err := KeepParts(t.Context(), r, "", "s", false)
	require.NoError(t, err)
	assert.Empty(t, u.Devices)
	u, err = KeepParts(t.Context(), r, "", "s", true)
	require.NoError(t, err)
	want := run(t, r, 1000, Options{})
	require.Len(t, u.Devices, 1)
	assert.Equal(t, want.Devices[0].Parts, u.Devices[0].Parts)
	assert.Equal(t, int64(20), u.Devices[0].Steps)
	assert.Equal(t, want.Steps.WallNs, u.Devices[0].StepNs)
	assert.False(t, u.Missing)

	r.captures = []store.Attrs{{double(semconv.CUDACaptureRecordedRatio, 0.5)}}
	u, err = KeepParts(t.Context(), r, "", "s", true)
	require.NoError(t, err)
	assert.True(t, u.Missing)
}
