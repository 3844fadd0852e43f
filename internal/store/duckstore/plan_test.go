// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"math"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

// hookContext calls a function when its error is asked for the nth time. The driver asks between the steps of a
// statement.
type hookContext struct {
	context.Context

	mu   sync.Mutex
	left int
	hook func()
}

func (c *hookContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left--; c.left == 0 {
		c.hook()
	}
	return c.Context.Err()
}

// TestStore_WriteBetween writes rows between any two steps of the statements of a reader. The answer is that before or
// after the write.
func TestStore_WriteBetween(t *testing.T) {
	s := openStore(t, Config{Directory: t.TempDir()})
	s.write.Lock()
	s.directSessions = math.MaxInt
	s.write.Unlock()
	write := func(session string, n int64) {
		b := batch(session, 1e18+n*1e13, 3)
		b.Lanes[1].Key, b.Lanes[1].Stream = uint64(n), store.Some(n)
		_, err := s.Write(t.Context(), []*store.Batch{b})
		require.NoError(t, err)
	}
	for name, read := range map[string]func(ctx context.Context, session string) ([]int64, error){
		"ScanOps": func(ctx context.Context, session string) (out []int64, err error) {
			err = s.ScanOps(ctx, store.ScanQuery{Session: session}, func(o *store.OpRow) error {
				out = append(out, o.StartNs)
				return nil
			})
			return out, err
		},
		"Lanes": func(ctx context.Context, session string) (out []int64, err error) {
			lanes, err := s.Lanes(ctx, "", session)
			for _, l := range lanes {
				out = append(out, l.Stream.V, l.Count)
			}
			return out, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for n := 1; ; n++ {
				session := name + strconv.Itoa(n)
				write(session, 0)
				before, err := read(t.Context(), session)
				require.NoError(t, err)
				s.session(sessionKey{"", session}).cache.clear()
				ctx := &hookContext{Context: t.Context(), left: n, hook: func() { write(session, 1) }}
				got, err := read(ctx, session)
				require.NoError(t, err)
				ctx.mu.Lock()
				ended := ctx.left > 0
				ctx.left = 0
				ctx.mu.Unlock()
				if ended {
					require.Greater(t, n, 10)
					break
				}
				after, err := read(t.Context(), session)
				require.NoError(t, err)
				require.NotEqual(t, before, after)
				require.Contains(t, [][]int64{before, after}, got, "write at step %d", n)
			}
		})
	}
}

// TestStore_ReadBesideAppend reads the first operation while others that are earlier are appended to a new row group
// of DuckDB.
func TestStore_ReadBesideAppend(t *testing.T) {
	const rowGroup = 122_880
	s := openStore(t, Config{Directory: t.TempDir()})
	reads := 0
	for i := range int64(4) {
		written := make(chan error, 1)
		write := func() {
			_, err := s.Write(t.Context(), []*store.Batch{batch("s", 1e18-i*1e12, rowGroup)})
			written <- err
		}
		if i == 0 {
			write()
		} else {
			go write()
		}
		for writing := true; writing; reads++ {
			page, err := s.Ops(t.Context(), store.OpQuery{Session: "s", Limit: 1})
			require.NoError(t, err)
			require.Len(t, page.Rows, 1, "read %d", reads)
			select {
			case err := <-written:
				require.NoError(t, err)
				writing = false
			default:
			}
		}
	}
	require.Greater(t, reads, 10)
}
