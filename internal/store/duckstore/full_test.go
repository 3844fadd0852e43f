// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"os/signal"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

// TestStore_FileTooLarge limits the size of files while it writes, which fails as on a full disk. The
// sender delivers the same data again later.
func TestStore_FileTooLarge(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s := openStore(t, Config{Directory: dir})
	g := storetest.NewTraining(0)
	_, err := s.Write(ctx, []*store.Batch{g.Batch(1)})
	require.NoError(t, err)
	before, err := s.Session(ctx, "", "training")
	require.NoError(t, err)

	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit))
	small := limit
	small.Cur = 2 << 20
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &small))
	restore := func() { require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit)) }
	defer restore()
	big := g.Batch(60)
	_, err = s.Write(ctx, []*store.Batch{big})
	require.ErrorIs(t, err, store.ErrRetry)
	during, err := s.Session(ctx, "", "training")
	require.NoError(t, err)
	assert.Equal(t, before.Counts, during.Counts, "nothing was stored")

	restore()
	r, err := s.Write(ctx, []*store.Batch{big})
	require.NoError(t, err)
	assert.EqualValues(t, big.Rows(), r.Written)
	rollupsEqualRows(t, s, "training")
	require.NoError(t, s.Close(ctx))
	s = openStore(t, Config{Directory: dir})
	assert.Zero(t, s.Stats().Damaged)
	after, err := s.Session(ctx, "", "training")
	require.NoError(t, err)
	assert.EqualValues(t, 61_000, after.Counts["ops"])
	rollupsEqualRows(t, s, "training")
}
