// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clickhouse_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/clickstore"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/test/clickhouse/front"
)

// TestStore_Contract runs the contract suite of package storetest on ClickHouse's engine.
func TestStore_Contract(t *testing.T) {
	// An engine runs one statement at a time.
	var servers []*front.Server
	for range 2 {
		e, err := front.Start(process.Chdb.FindFetched(t, "no Python with pip here to fetch ClickHouse's engine with", "pip3"), t.TempDir())
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, e.Close()) })
		// The suite has many small queries, which one thread answers faster.
		_, err = e.Run(t.Context(), front.Statement{SQL: "SET max_threads = 1", Format: "TabSeparated"}, nil)
		require.NoError(t, err)
		s := &front.Server{Engine: e, User: user, Password: password}
		require.NoError(t, s.Listen(""))
		t.Cleanup(func() { assert.NoError(t, s.Close()) })
		servers = append(servers, s)
	}
	var numbers sync.Map // by store; the scenarios run at the same time
	var last atomic.Int64
	open := func(tb testing.TB, number int64) store.Store {
		s, err := clickstore.Open(context.Background(), clickstore.Config{
			Endpoint: servers[number%2].URL(), Username: user, Password: password, Database: fmt.Sprintf("gpu%d", number), CreateSchema: true,
			Timeout: 5 * time.Minute, // no test is about how fast
		})
		require.NoError(tb, err)
		tb.Cleanup(func() { assert.NoError(tb, s.Close(context.Background())) })
		numbers.Store(s, number)
		return s
	}
	storetest.Run(t, storetest.Setup{
		// A statement takes 10 to 20 ms in this engine, and Redelivered alone has thousands.
		Few: true, // a statement takes several milliseconds in this engine
		Open: func(tb testing.TB) store.Store {
			n := last.Add(1)
			_, err := servers[n%2].Engine.Run(context.Background(), front.Statement{SQL: fmt.Sprintf("CREATE DATABASE gpu%d", n), Format: "TabSeparated"}, nil)
			require.NoError(tb, err)
			return open(tb, n)
		},
		Reopen: func(tb testing.TB, s store.Store) store.Store {
			n, _ := numbers.Load(s)
			require.NoError(tb, s.Close(context.Background()))
			return open(tb, n.(int64))
		},
	})
}

// TestStore_Analysis analyses a training on ClickHouse's engine and in memory.
func TestStore_Analysis(t *testing.T) {
	d := startEmpty(t, "analysis")
	s, err := clickstore.Open(t.Context(), clickstore.Config{Endpoint: d.front.URL(), Username: user, Password: password, Database: d.name, CreateSchema: true})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close(context.Background())) })
	memory := storetest.NewMemory()
	b := storetest.NewTraining(1_000_000_000_000).Batch(50)
	for _, w := range []store.Writer{memory, s} {
		_, err := w.Write(t.Context(), []*store.Batch{b})
		require.NoError(t, err)
	}
	var answers [2]*analysis.Answer
	var updates [2]*analysis.Update
	for i, r := range []store.Reader{memory, s} {
		found, err := analysis.Run(t.Context(), analysis.FromReader(r, b.Project, b.Session), analysis.Options{})
		require.NoError(t, err)
		answers[i] = analysis.NewAnswer(found, found.FromNs)
		updates[i], err = analysis.KeepParts(t.Context(), r, b.Project, b.Session, true)
		require.NoError(t, err)
	}
	require.Len(t, answers[0].Devices, 1)
	assert.Positive(t, answers[0].Devices[0].Active.ComputeNs)
	assert.Equal(t, int64(50), answers[0].Steps.Count)
	assert.Equal(t, answers[0], answers[1])
	require.Len(t, updates[0].Devices, 1)
	assert.Equal(t, int64(50), updates[0].Devices[0].Steps)
	assert.Equal(t, updates[0].Devices, updates[1].Devices)
}
