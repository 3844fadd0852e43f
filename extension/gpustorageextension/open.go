// SPDX-License-Identifier: Apache-2.0

package gpustorageextension

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/clickstore"
	"github.com/gpuflight/gpuflight/internal/store/duckstore"
)

// opened is an open store of any kind.
type opened struct {
	store.Store
	// unfinished lists the sessions that are not sealed, and those that wait for their analysis if the store keeps
	// values. Their Counts may be unknown.
	unfinished func(context.Context) ([]store.SessionInfo, error)
	// usage is nil if the store does not know it.
	usage func() usage
}

// usage is the size of a store, the rows that wait for their segments, and the transactions so far.
type usage struct{ bytes, sessions, waiting, commits int64 }

// open opens the store of a kind that is set, for a backend.
func (b *BackendConfig) open(ctx context.Context, to *backend) (opened, error) {
	if b.DuckDB.HasValue() {
		return b.DuckDB.Get().open(ctx, to)
	}
	if b.ClickHouse.HasValue() {
		return b.ClickHouse.Get().open(ctx)
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
		Store:      s,
		unfinished: func(ctx context.Context) ([]store.SessionInfo, error) { return unfinished(ctx, s) },
		usage: func() usage {
			st := s.Stats()
			return usage{st.Bytes, st.Sessions, st.Waiting, st.Commits}
		},
	}, nil
}

// unfinished asks for all sessions of all projects.
func unfinished(ctx context.Context, s *duckstore.Store) ([]store.SessionInfo, error) {
	projects, err := s.Projects(ctx)
	if err != nil {
		return nil, fmt.Errorf("list projects: %w", err)
	}
	var list []store.SessionInfo
	for _, project := range projects {
		q := store.SessionQuery{Project: project, Limit: 1000}
		for {
			page, err := s.Sessions(ctx, q)
			if err != nil {
				return nil, err
			}
			for i := range page {
				value, err := s.KeptValue(ctx, project, page[i].ID, waiting)
				if err != nil {
					return nil, err
				}
				if !page[i].Sealed || value != nil {
					list = append(list, page[i])
				}
			}
			if len(page) < q.Limit {
				break
			}
			q.After = page[len(page)-1].ID
		}
	}
	return list, nil
}

func (c *ClickHouseConfig) open(ctx context.Context) (opened, error) {
	cfg := clickstore.Config{
		Endpoint: c.Endpoint, Username: c.Username, Password: string(c.Password), Database: c.Database,
		CreateSchema: c.CreateSchema, Timeout: c.Timeout,
	}
	if c.TLS.HasValue() {
		var err error
		if cfg.TLS, err = c.TLS.Get().LoadTLSConfig(ctx); err != nil {
			return opened{}, fmt.Errorf("tls: %w", err)
		}
	}
	s, err := clickstore.Open(ctx, cfg)
	if err != nil {
		return opened{}, err
	}
	return opened{Store: s, unfinished: s.Unsealed}, nil
}
