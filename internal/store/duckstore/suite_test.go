// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

func TestStore_Contract(t *testing.T) { runSuite(t, false) }

// TestStore_ContractJournal writes all rows to the journal first. With GPUFLIGHT_SOAK it runs all scenarios,
// which takes minutes.
func TestStore_ContractJournal(t *testing.T) {
	if os.Getenv("GPUFLIGHT_SOAK") != "" {
		runSuite(t, true)
		return
	}
	runSuite(t, true, "Redelivered", "Reopened", "Delete", "Retain", "Canceled", "Concurrent")
}

// runSuite runs some scenarios of the contract suite, or all.
func runSuite(t *testing.T, journal bool, scenarios ...string) {
	var stores atomic.Int64
	open := func(tb testing.TB, dir string) store.Store {
		// One thread answers the many small queries of the suite faster.
		s, err := Open(context.Background(), Config{Directory: dir, Threads: 1})
		require.NoError(tb, err)
		// The sessions of the suite are small. Some stores treat them as large ones.
		if journal {
			s.write.Lock()
			s.directSessions, s.listedBacklog = 0, 1000
			s.write.Unlock()
		}
		s.write.Lock()
		s.keptTop, s.keptGroup, s.topPart = 20, 8, 100
		switch stores.Add(1) % 4 {
		case 0, 1:
			s.gapTail, s.gapLag, s.gapPart, s.maxChained, s.maxTails, s.maxPartial, s.fewOps, s.manyPlaces = 20, 1e6, 30, 30, 20, 100, 10, 10
		case 2:
			s.maxRemembered = 100
			s.gapTail, s.denseTail = 20, 30
		}
		s.write.Unlock()
		tb.Cleanup(func() { assert.NoError(tb, s.Close(context.Background())) })
		return s
	}
	storetest.Run(t, storetest.Setup{
		Open: func(tb testing.TB) store.Store { return open(tb, tb.TempDir()) },
		Reopen: func(tb testing.TB, s store.Store) store.Store {
			require.NoError(tb, s.Close(context.Background()))
			return open(tb, s.(*Store).dir)
		},
		CountsDuplicates: !journal,
		Few:              journal,
		Only:             scenarios,
	})
}
