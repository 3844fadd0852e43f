// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"context"
	"encoding/binary"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/extension/xextension/storage"

	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// liveHeap returns the bytes that are in use and not garbage.
func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // what pools held is gone after the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// What the connector holds does not depend on how many spans have come, once its bounds are reached.
func TestMemoryIsBounded(t *testing.T) {
	cfg := testConfig(priced, func(c *Config) {
		c.Limits.RememberedSpans, c.Limits.RememberedParents, c.Limits.RememberedTraces = 20_000, 2_000, 2_000
		c.Limits.PendingSpans, c.Limits.IntervalsPerDevice = 10_000, 5_000
	})
	st := newMemoryStorage()
	r := newRig(t, cfg, st)
	td := benchTraces()
	round := int64(0)
	feed := func(rounds int) {
		for range rounds {
			renew(td, round)
			round++
			r.clock.advance(benchSpans * 12 * time.Microsecond)
			r.send(td)
			if round%8 == 0 {
				r.flush()
				// The log has a bound of its own, see below. Here it would hide what else grows.
				require.NoError(t, r.c.log.write(t.Context(), r.c.log.snapshot(r.c.state)))
			}
		}
		r.sink.Reset()
	}
	feed(16)
	before := liveHeap()
	feed(64)
	grown := liveHeap() - before
	// The ids alone of half a million spans would be 4 MiB.
	t.Logf("%d KiB more", grown>>10)
	assert.Less(t, grown, int64(2<<20), "bytes after %d more spans", 64*benchSpans)
	assert.LessOrEqual(t, r.c.state.pending(), cfg.Limits.PendingSpans)
	kernels := round * (benchSpans - benchSpans/64 - benchSpans/16)
	assert.InDelta(t, float64(kernels), launches(t, r), 0)
	r.shutdown()
	runtime.KeepAlive(td)
}

// largeState is a state of more than a MiB when it is stored.
func largeState(cfg *Config, first uint64) *state {
	s := newState(cfg)
	for i := range uint64(cfg.Limits.RememberedSpans) {
		s.seen.Add(first + i)
	}
	return s
}

// The storage's file, which is mapped into memory, stays a small multiple of what it holds.
func TestTheFileOfALargeStateIsBounded(t *testing.T) {
	f := filestorage.NewFactory()
	fc := f.CreateDefaultConfig().(*filestorage.Config)
	fc.Directory = filepath.Join(t.TempDir(), "s")
	fc.CreateDirectory = true
	ext, err := f.Create(t.Context(), extensiontest.NewNopSettings(f.Type()), fc)
	require.NoError(t, err)
	require.NoError(t, ext.Start(t.Context(), componenttest.NewNopHost()))
	client, err := ext.(storage.Extension).GetClient(t.Context(), component.KindConnector, component.MustNewID("gpu_usage"), "")
	require.NoError(t, err)
	files, err := os.ReadDir(fc.Directory)
	require.NoError(t, err)
	require.Len(t, files, 1)

	cfg := testConfig(func(c *Config) { c.Limits.RememberedSpans = 300_000 })
	l := newRecordLog(client)
	l.begin(1)
	var held int
	for round := range 30 {
		// A state grows and shrinks a little, and so do batches.
		s := largeState(cfg, uint64(round)*1_000_000)
		l.bytes = 0
		for i := 0; l.bytes < 4<<20; i++ {
			require.NoError(t, l.append(t.Context(), make([]byte, 60_000+(i*7919+round*104_729)%60_000), testEpoch))
		}
		logged := l.bytes
		snap := l.snapshot(s)
		require.NoError(t, l.write(t.Context(), snap))
		held = max(held, logged+2*len(snap.state)) // the last one, until the next is there
	}
	info, err := os.Stat(filepath.Join(fc.Directory, files[0].Name()))
	require.NoError(t, err)
	t.Logf("%d MiB for %d", info.Size()>>20, held>>20)
	assert.Less(t, info.Size(), 3*int64(held))
	require.NoError(t, client.Close(t.Context()))
	require.NoError(t, ext.Shutdown(t.Context()))
}

func pieceKeys(st *memoryStorage) (keys []string) {
	for k := range st.kv {
		if strings.HasPrefix(k, "piece/") {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// A snapshot in pieces is what a whole one is; the one before leaves nothing behind.
func TestALargeStateOutlivesARestart(t *testing.T) {
	cfg := testConfig(func(c *Config) { c.Limits.RememberedSpans = 50_000 })
	st := newMemoryStorage()
	r := newRig(t, cfg, st)
	assert.Empty(t, pieceKeys(st), "a small one is whole")
	r.send(traces(kernelAt(0, "k", 0)))
	for _, clean := range []bool{true, false, true} {
		for i := range uint64(cfg.Limits.RememberedSpans / 2) {
			r.c.state.seen.Add(1<<40 + i)
		}
		require.NoError(t, r.c.log.write(t.Context(), r.c.log.snapshot(r.c.state)))
		assert.Len(t, pieceKeys(st), r.c.log.pieces.count)
		assert.Greater(t, r.c.log.pieces.count, 1)
		for _, k := range pieceKeys(st) {
			assert.LessOrEqual(t, len(st.kv[k]), pieceBytes)
		}
		r = restart(t, r, cfg, st, clean)
		assert.Len(t, pieceKeys(st), r.c.log.pieces.count)
		r.send(traces(kernelAt(0, "k", 0))) // known
		assert.False(t, r.c.state.seen.Add(1<<40), "known")
		assert.InDelta(t, 1, launches(t, r), 0)
	}
	r.kill()

	// Other settings give it up, and the small one that follows takes the place of all pieces.
	explicit := testConfig(func(c *Config) { c.Histograms.Kind = kindExplicit })
	r = newRig(t, explicit, st)
	assert.Empty(t, pieceKeys(st))
	assert.Zero(t, launches(t, r))
	r.shutdown()
}

// As it was stored before there were pieces.
func TestALargeSnapshotInOneValueIsRead(t *testing.T) {
	cfg, st := testConfig(func(c *Config) { c.Limits.RememberedSpans = 50_000 }), newMemoryStorage()
	l := newRecordLog(st)
	l.begin(7)
	require.NoError(t, st.Set(t.Context(), snapshotKey, l.snapshot(largeState(cfg, 1)).state))
	l = newRecordLog(st)
	s, err := l.load(t.Context(), cfg)
	require.NoError(t, err)
	assert.False(t, s.seen.Add(1))
	require.NoError(t, l.write(t.Context(), l.snapshot(s)))
	assert.Len(t, st.kv[snapshotKey], len(l.pieces.append(nil)), "in its place is where the pieces are")
	s, err = newRecordLog(st).load(t.Context(), cfg)
	require.NoError(t, err)
	assert.False(t, s.seen.Add(2))
}

func TestDamagedPiecesBeginAnew(t *testing.T) {
	cfg := testConfig(func(c *Config) { c.Limits.RememberedSpans = 50_000 })
	whole := newMemoryStorage()
	l := newRecordLog(whole)
	l.begin(7)
	require.NoError(t, l.write(t.Context(), l.snapshot(largeState(cfg, 1))))
	keys := pieceKeys(whole)
	require.Greater(t, len(keys), 3)
	require.NoError(t, l.append(t.Context(), appendFlushRecord(nil, false), testEpoch))

	for name, damage := range map[string]func(map[string][]byte){
		"first":   func(kv map[string][]byte) { kv[keys[0]][100] ^= 1 },
		"last":    func(kv map[string][]byte) { kv[keys[len(keys)-1]][1] ^= 1 },
		"missing": func(kv map[string][]byte) { delete(kv, keys[2]) },
		"none": func(kv map[string][]byte) {
			maps.DeleteFunc(kv, func(k string, _ []byte) bool { return k != snapshotKey })
		},
		"where": func(kv map[string][]byte) { kv[snapshotKey][1] ^= 1 },
	} {
		t.Run(name, func(t *testing.T) {
			st := newMemoryStorage()
			for k, v := range whole.kv {
				st.kv[k] = slices.Clone(v)
			}
			damage(st.kv)
			l := newRecordLog(st)
			s, err := l.load(t.Context(), cfg)
			require.ErrorIs(t, err, errDamaged)
			assert.Nil(t, s)
			l.begin(8)
			require.NoError(t, l.write(t.Context(), l.snapshot(largeState(cfg, 2))))
			s, err = newRecordLog(st).load(t.Context(), cfg)
			require.NoError(t, err)
			assert.False(t, s.seen.Add(2))
		})
	}
}

// writes is a storage that does one operation of a batch after the other, and none after the last allowed.
type writes struct {
	*memoryStorage
	allowed int
}

func (w *writes) Batch(ctx context.Context, ops ...*storage.Operation) error {
	for _, op := range ops {
		if op.Type != storage.Get {
			if w.allowed == 0 {
				return errFull
			}
			w.allowed--
		}
		if err := w.memoryStorage.Batch(ctx, op); err != nil {
			return err
		}
	}
	return nil
}

// Also of a storage that stops in the middle of a batch, a snapshot can be read: the old one or the new.
func TestASnapshotIsWholeAtEachMoment(t *testing.T) {
	cfg := testConfig(func(c *Config) { c.Limits.RememberedSpans = 20_000 })
	a, b := largeState(cfg, 1), largeState(cfg, 1<<40)
	var old, replaced int
	for allowed := range 100 {
		st := &writes{memoryStorage: newMemoryStorage(), allowed: 1000}
		l := newRecordLog(st)
		l.begin(7)
		require.NoError(t, l.write(t.Context(), l.snapshot(a)))
		st.allowed = allowed
		err := l.write(t.Context(), l.snapshot(b))
		got, loadErr := newRecordLog(st).load(t.Context(), cfg)
		require.NoError(t, loadErr)
		if !got.seen.Add(1) {
			old++
		} else {
			replaced++
			require.False(t, got.seen.Add(1<<40))
		}
		if err == nil {
			break
		}
	}
	assert.Positive(t, old)
	assert.Positive(t, replaced)
}

func FuzzPieces(f *testing.F) {
	f.Add(pieces{number: 3, count: 500}.append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, binary.LittleEndian.AppendUint64(slices.Clone(b), xxhash.Sum64(b))} {
			alloctest.Limit{Constant: 1 << 12}.Check(t, len(b), func() { loadPieces(b) })
			if p, ok := loadPieces(b); ok {
				again, ok := loadPieces(p.append(nil))
				if !ok || again != p || p.count <= 0 {
					t.Fatalf("%+v became %+v", p, again)
				}
			}
		}
	})
}
