// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package probe

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkDiscover scans the machine's /proc once.
func BenchmarkDiscover(b *testing.B) {
	for b.Loop() {
		f := finder{proc: "/proc", shares: newShares(nil)}
		_, err := f.all(b.Context())
		require.NoError(b, err)
	}
}
