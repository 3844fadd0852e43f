// SPDX-License-Identifier: Apache-2.0

//go:build !cgo || !unix

package duckstore

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

func TestOpen_NotBuilt(t *testing.T) {
	_, err := Open(t.Context(), Config{Directory: t.TempDir()})
	require.ErrorIs(t, err, store.ErrNotBuilt)
	require.EqualError(t, err, "open DuckDB store: "+store.ErrNotBuilt.Error()+": build with cgo on Linux or macOS")
}
