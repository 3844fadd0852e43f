// SPDX-License-Identifier: Apache-2.0

package gpustorageextension

import (
	"context"
	"errors"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/duckstore"
)

// opened is an open store of any kind.
type opened struct {
	store.Store
	// projects lists the projects that have sessions.
	projects func(context.Context) ([]string, error)
	// usage returns the bytes of the store and the number of its sessions. It is nil if the store
	// does not know them.
	usage func() (bytes, sessions int64)
}

// open opens the store of a kind that is set, for a backend.
func (b *BackendConfig) open(ctx context.Context, to *backend) (opened, error) {
	if b.DuckDB.HasValue() {
		return b.DuckDB.Get().open(ctx, to)
	}
	return opened{}, errors.New("no kind of store is set")
}

func (c *DuckDBConfig) open(ctx context.Context, to *backend) (opened, error) {
	s, err := duckstore.Open(ctx, duckstore.Config{
		Directory: c.Directory, MemoryLimit: int64(c.MemoryLimit), Threads: c.Threads,
		Damaged: to.damaged, Settled: to.count,
	})
	if err != nil {
		return opened{}, err
	}
	return opened{
		Store:    s,
		projects: s.Projects,
		usage: func() (int64, int64) {
			st := s.Stats()
			return st.Bytes, st.Sessions
		},
	}, nil
}
