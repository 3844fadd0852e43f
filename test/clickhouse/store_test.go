// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clickhouse_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/clickstore"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/test/clickhouse/front"
)

// TestStore_Contract runs the contract suite of package storetest on ClickHouse's engine.
func TestStore_Contract(t *testing.T) {
	e, err := front.Start(process.Chdb.FindFetched(t, "no Python with pip here to fetch ClickHouse's engine with", "pip3"), t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, e.Close()) })
	// The suite has many small queries, which one thread answers faster.
	_, err = e.Run(t.Context(), front.Statement{SQL: "SET max_threads = 1", Format: "TabSeparated"}, nil)
	require.NoError(t, err)
	server := &front.Server{Engine: e, User: user, Password: password}
	require.NoError(t, server.Listen(""))
	t.Cleanup(func() { assert.NoError(t, server.Close()) })
	var databases sync.Map // by store; the scenarios run at the same time
	var number atomic.Int64
	open := func(tb testing.TB, name string) store.Store {
		s, err := clickstore.Open(context.Background(), clickstore.Config{
			Endpoint: server.URL(), Username: user, Password: password, Database: name, CreateSchema: true,
		})
		require.NoError(tb, err)
		tb.Cleanup(func() { assert.NoError(tb, s.Close(context.Background())) })
		databases.Store(s, name)
		return s
	}
	storetest.Run(t, storetest.Setup{
		// A statement takes 10 to 20 ms in this engine, and Redelivered alone has thousands.
		Only: []string{"Empty", "Rejected", "Invalid", "NotFound", "RawMaxAge"},
		Open: func(tb testing.TB) store.Store {
			name := fmt.Sprintf("gpu%d", number.Add(1))
			_, err := e.Run(context.Background(), front.Statement{SQL: "CREATE DATABASE " + name, Format: "TabSeparated"}, nil)
			require.NoError(tb, err)
			return open(tb, name)
		},
		Reopen: func(tb testing.TB, s store.Store) store.Store {
			name, _ := databases.Load(s)
			require.NoError(tb, s.Close(context.Background()))
			return open(tb, name.(string))
		},
	})
}
