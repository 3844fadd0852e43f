// SPDX-License-Identifier: Apache-2.0

//go:build !cgo || !unix

package duckstore

import (
	"context"
	"fmt"

	"github.com/gpuflight/gpuflight/internal/store"
)

// Store is not available in this build.
type Store struct{ store.Store }

// Open returns an error that wraps [store.ErrNotBuilt].
func Open(context.Context, Config) (*Store, error) {
	return nil, fmt.Errorf("open DuckDB store: %w: build with cgo on Linux or macOS", store.ErrNotBuilt)
}

// Projects returns nothing.
func (*Store) Projects(context.Context) ([]string, error) { return nil, nil }

// Stats returns nothing.
func (*Store) Stats() Stats { return Stats{} }
