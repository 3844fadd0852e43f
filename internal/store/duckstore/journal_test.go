// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

// fill sets all fields of a value to other values than zero.
func fill(r *rand.Rand, v reflect.Value) {
	switch v.Interface().(type) {
	case store.Attrs:
		v.Set(reflect.ValueOf(store.Attrs{{Key: "a", Value: store.Value{Kind: store.KindInt, Int: r.Int64()}}}))
		return
	case store.Value:
		v.Set(reflect.ValueOf(store.Value{Kind: store.KindString, Str: fmt.Sprint(r.Int64())}))
		return
	case store.Int:
		v.Set(reflect.ValueOf(store.Some(r.Int64() - 1<<62)))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(r, v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 3, 3))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fill(r, v.Index(i))
		}
	case reflect.String:
		v.SetString(fmt.Sprint(r.Int64()))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(r.Float64() + 1)
	case reflect.Int64:
		v.SetInt(r.Int64()>>r.IntN(60) - 1<<40)
	default:
		v.SetUint(r.Uint64() | 1)
	}
}

func TestCodec_RoundTrip(t *testing.T) {
	var want store.Batch
	fill(rand.New(rand.NewPCG(1, 2)), reflect.ValueOf(&want).Elem())
	b := encodeBatch(nil, &want)
	got, err := decodeBatch(b)
	require.NoError(t, err)
	assert.Equal(t, &want, got, "also for a new field of a row")
	for n := range b {
		if _, err := decodeBatch(b[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes are a batch", n, len(b))
		}
	}
	for _, want := range storetest.Generate(3, storetest.Options{Sessions: 2, Ops: 200}) {
		got, err := decodeBatch(encodeBatch(nil, want))
		require.NoError(t, err)
		assert.Equal(t, encodeBatch(nil, want), encodeBatch(nil, got))
	}
}

func FuzzCodec(f *testing.F) {
	var b store.Batch
	fill(rand.New(rand.NewPCG(1, 2)), reflect.ValueOf(&b).Elem())
	f.Add(encodeBatch(nil, &b))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, in []byte) {
		b, err := decodeBatch(in)
		if err != nil {
			return
		}
		again, err := decodeBatch(encodeBatch(nil, b))
		require.NoError(t, err)
		require.Equal(t, encodeBatch(nil, b), encodeBatch(nil, again))
	})
}

func BenchmarkCodec(b *testing.B) {
	batch := storetest.NewTraining(0).Rows(1000)
	encoded := encodeBatch(nil, batch)
	perRow := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(batch.Rows()), "ns/row")
	}
	b.Run("Encode", func(b *testing.B) {
		for b.Loop() {
			encoded = encodeBatch(encoded[:0], batch)
		}
		perRow(b)
		b.ReportMetric(float64(len(encoded))/float64(batch.Rows()), "B/row")
	})
	b.Run("Decode", func(b *testing.B) {
		for b.Loop() {
			_, err := decodeBatch(encoded)
			require.NoError(b, err)
		}
		perRow(b)
	})
}

// openJournaled opens a store that writes all rows to its journal. They stay there until somebody reads
// them.
func openJournaled(t *testing.T, dir string) *Store {
	t.Helper()
	s := openStore(t, Config{Directory: dir})
	s.stop()
	s.settles.Wait()
	s.directSessions = 0
	return s
}

// crash closes the files of a store as the end of the process does.
func crash(t *testing.T, s *Store) {
	t.Helper()
	s.stop()
	s.settles.Wait()
	s.write.Lock()
	for _, f := range s.journal.files {
		require.NoError(t, f.Close())
	}
	s.journal = nil
	s.write.Unlock()
	require.NoError(t, s.Close(context.Background()))
}

func write(t *testing.T, s *Store, batches ...*store.Batch) store.Result {
	t.Helper()
	r, err := s.Write(context.Background(), batches)
	require.NoError(t, err)
	return r
}

func opsOf(t *testing.T, s *Store, session string) int64 {
	t.Helper()
	info, err := s.Session(context.Background(), "", session)
	require.NoError(t, err)
	return info.Counts["ops"]
}

func TestJournal_ManySessions(t *testing.T) {
	var settled store.Result
	s := openStore(t, Config{Directory: t.TempDir(), Settled: func(r store.Result) {
		settled.Written += r.Written
		settled.Duplicates += r.Duplicates
	}})
	var batches []*store.Batch
	for i := range directSessions + 1 {
		batches = append(batches, batch(fmt.Sprint(i), 1e18, 10))
	}
	r := write(t, s, batches[:directSessions]...)
	assert.Equal(t, store.Result{Written: 11 * directSessions, Bytes: r.Bytes}, r)
	assert.Positive(t, r.Bytes)
	r = write(t, s, batches...)
	assert.Equal(t, store.Result{Deferred: 11 * (directSessions + 1)}, r)
	for i := range batches {
		assert.EqualValues(t, 10, opsOf(t, s, fmt.Sprint(i)))
	}
	assert.Zero(t, s.Stats().Waiting)
	assert.Equal(t, store.Result{Written: 11, Duplicates: 11 * directSessions}, settled)
	big := batch("0", 2e18, directRows)
	r = write(t, s, big)
	assert.EqualValues(t, directRows+1, r.Written, "many rows go to the segment")
}

// TestJournal_Background moves rows without a reader.
func TestJournal_Background(t *testing.T) {
	s := openStore(t, Config{Directory: t.TempDir()})
	s.write.Lock()
	s.directSessions, s.settleInterval = 0, time.Millisecond
	s.write.Unlock()
	for i := range 20 {
		write(t, s, batch(fmt.Sprint(i), 1e18, 10), batch("", 1e18, 10))
	}
	require.Eventually(t, func() bool { return s.Stats().Waiting == 0 }, time.Minute, 10*time.Millisecond)
	st := s.Stats()
	assert.EqualValues(t, 20*11+11, st.Rows)
	assert.EqualValues(t, 21, st.Sessions)
	assert.Zero(t, st.Attached, "segments are closed again")
}

func TestJournal_Restart(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s := openJournaled(t, dir)
	write(t, s, batch("a", 1e18, 10), batch("gone", 1e18, 10))
	require.EqualValues(t, 10, opsOf(t, s, "a"))
	write(t, s, batch("a", 2e18, 10), batch("new", 1e18, 10))
	require.NoError(t, s.Delete(ctx, "", "gone"))
	assert.EqualValues(t, 22, s.Stats().Waiting)
	crash(t, s)

	s = openJournaled(t, dir)
	list, err := s.Sessions(ctx, store.SessionQuery{})
	require.NoError(t, err)
	assert.Len(t, list, 2)
	assert.EqualValues(t, 20, opsOf(t, s, "a"))
	assert.EqualValues(t, 10, opsOf(t, s, "new"))
	rollupsEqualRows(t, s, "a")
	_, err = s.Session(ctx, "", "gone")
	require.ErrorIs(t, err, store.ErrNotFound)
	write(t, s, batch("a", 3e18, 10))
	require.NoError(t, s.Close(ctx))
	files, err := os.ReadDir(filepath.Join(dir, journalFolder))
	require.NoError(t, err)
	assert.Empty(t, files, "Close moves the rows")
	s = openStore(t, Config{Directory: dir})
	assert.EqualValues(t, 30, opsOf(t, s, "a"))
}

// TestJournal_List lists sessions whose rows wait: their times are exact, and their counts are not.
func TestJournal_List(t *testing.T) {
	ctx := context.Background()
	s := openJournaled(t, t.TempDir())
	s.write.Lock()
	s.listedBacklog = 0
	s.write.Unlock()
	write(t, s, batch("a", 2e18, 10), batch("b", 2e18+1, 10))
	require.EqualValues(t, 10, opsOf(t, s, "a"))
	require.EqualValues(t, 10, opsOf(t, s, "b"))
	early, late := batch("a", 1e18, 10), batch("a", 3e18, 10)
	late.Ops[0].EndNs = -1
	late.Spans = []store.Span{{StartNs: 2e18, EndNs: 4e18, Operation: "session"}}
	write(t, s, early, late)
	list := func(q store.SessionQuery) (out []store.SessionInfo) {
		out, err := s.Sessions(ctx, q)
		require.NoError(t, err)
		for i := range out {
			out[i].Bytes = 0
		}
		return out
	}
	got := list(store.SessionQuery{})
	require.Len(t, got, 2)
	assert.Equal(t, "a", got[1].ID, "the earlier start is the last")
	assert.EqualValues(t, 10, got[1].Counts["ops"])
	assert.NotZero(t, s.Stats().Waiting)
	assert.Len(t, list(store.SessionQuery{From: 35e17}), 1)
	assert.Len(t, list(store.SessionQuery{To: 15e17}), 1)
	require.NoError(t, s.settleAll())
	for _, want := range list(store.SessionQuery{})[1:] {
		assert.Equal(t, int64(1e18), want.FirstNs)
		assert.Equal(t, int64(4e18), want.LastNs)
		assert.Equal(t, []any{want.FirstNs, want.LastNs, true}, []any{got[1].FirstNs, got[1].LastNs, got[1].Ended})
		assert.EqualValues(t, 29, want.Counts["ops"])
	}
}

// TestJournal_Torn ends the file at each byte of its last record.
func TestJournal_Torn(t *testing.T) {
	dir := t.TempDir()
	s := openJournaled(t, dir)
	write(t, s, batch("a", 1e18, 10))
	require.EqualValues(t, 10, opsOf(t, s, "a"))
	write(t, s, batch("a", 2e18, 10))
	name := s.journal.tail.Name()
	first := s.journal.tail.size
	write(t, s, batch("b", 2e18, 10))
	crash(t, s)
	whole, err := os.ReadFile(name)
	require.NoError(t, err)
	for _, size := range []int{0, 5, len(journalMagic), int(first), int(first) + 3, int(first) + recordHeader, len(whole) - 1, len(whole)} {
		require.NoError(t, os.WriteFile(name, whole[:size], 0o600))
		j, err := openJournal(dir, func(string, error) { t.Error("a torn record is no damage") })
		require.NoError(t, err)
		_, waiting := j.waiting()
		want := map[bool]int64{true: 11}[size >= int(first)] + map[bool]int64{true: 11}[size == len(whole)]
		assert.Equal(t, want, waiting, "%d of %d bytes", size, len(whole))
		require.NoError(t, j.close())
	}
	require.NoError(t, os.WriteFile(name, whole[:len(whole)-1], 0o600))
	s = openStore(t, Config{Directory: dir})
	assert.EqualValues(t, 20, opsOf(t, s, "a"))
	_, err = s.Session(context.Background(), "", "b")
	require.ErrorIs(t, err, store.ErrNotFound)
}

func TestJournal_Damaged(t *testing.T) {
	dir := t.TempDir()
	s := openJournaled(t, dir)
	write(t, s, batch("a", 1e18, 10))
	write(t, s, batch("a", 2e18, 10))
	name := s.journal.tail.Name()
	damaged := s.journal.backlog(sessionKey{"", "a"}).records[1].offset + recordHeader + 20
	crash(t, s)
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	b[damaged] ^= 1
	require.NoError(t, os.WriteFile(name, b, 0o600))
	var named []string
	s = openStore(t, Config{Directory: dir, Damaged: func(file string, _ error) { named = append(named, file) }})
	assert.Equal(t, []string{name + ".damaged"}, named)
	assert.FileExists(t, name+".damaged")
	assert.EqualValues(t, 1, s.Stats().Damaged)
	assert.EqualValues(t, 10, opsOf(t, s, "a"), "the record before")
}

// TestJournal_Limit moves rows in Write when the journal is full.
func TestJournal_Limit(t *testing.T) {
	s := openJournaled(t, t.TempDir())
	s.write.Lock()
	s.maxJournal, s.journal.fileSize = 20_000, 4000
	s.write.Unlock()
	for i := range int64(50) {
		write(t, s, batch(fmt.Sprint(i%5), 1e18+i*1e9, 100))
		assert.Less(t, s.journal.size.Load(), int64(45_000))
	}
	s.write.Lock()
	s.maxJournal = 1000
	s.write.Unlock()
	_, err := s.Write(context.Background(), []*store.Batch{batch("0", 9e18/4, 100)})
	require.ErrorIs(t, err, store.ErrRetry)
	assert.ErrorContains(t, err, "the journal has 0 MiB")
	assert.NotZero(t, s.Stats().Rows)
	for i := range 5 {
		assert.EqualValues(t, 1000, opsOf(t, s, fmt.Sprint(i)))
	}
}

// TestStore_Remembered writes more sessions than the writer remembers.
func TestStore_Remembered(t *testing.T) {
	s := openStore(t, Config{Directory: t.TempDir()})
	s.maxRemembered = 500
	for round, at := range []int64{1e18, 1e18, 2e18} {
		for i := range 10 {
			r := write(t, s, batch(fmt.Sprint(i), at, 100))
			total := int64(0)
			for w := range s.writers {
				total += w.remembered()
			}
			assert.LessOrEqual(t, total, int64(500))
			assert.Equal(t, round == 1, r.Duplicates == 101, "%+v", r)
		}
	}
	for i := range 10 {
		assert.EqualValues(t, 200, opsOf(t, s, fmt.Sprint(i)))
		rollupsEqualRows(t, s, fmt.Sprint(i))
		require.NoError(t, s.Seal(context.Background(), "", fmt.Sprint(i)))
		assert.Zero(t, s.session(sessionKey{"", fmt.Sprint(i)}).remembered())
	}
	r := write(t, s, batch("0", 1e18, 100))
	assert.EqualValues(t, 101, r.Duplicates)
}

// TestJournal_Tails bounds the kernels that wait for the rollup of gaps.
func TestJournal_Tails(t *testing.T) {
	s := openJournaled(t, t.TempDir())
	s.write.Lock()
	s.maxTails = 1000
	s.write.Unlock()
	for i := range 20 {
		for j := range int64(5) {
			write(t, s, batch(fmt.Sprint(i), 1e18+j*1e9, 100))
		}
	}
	require.NoError(t, s.settleAll())
	for i := range 20 {
		if n := len(s.session(sessionKey{"", fmt.Sprint(i)}).segments[0].gapTail.list); i > 1 {
			assert.Equal(t, 200, n, "those of the last second of session %d", i)
		}
		gaps, err := s.Gaps(context.Background(), store.GapQuery{Session: fmt.Sprint(i)})
		require.NoError(t, err)
		assert.NotZero(t, gaps.Count)
	}
}

func TestTraceSet(t *testing.T) {
	var s traceSet
	trace := func(i uint64) (t store.TraceID) {
		binary.BigEndian.PutUint64(t[:], 0x1234<<40|i>>20)
		binary.BigEndian.PutUint64(t[8:], i*0x9e3779b97f4a7c15)
		return t
	}
	s.add(store.TraceID{})
	assert.Empty(t, s.Filters)
	const n = 200_000
	for i := range uint64(n) {
		s.add(trace(i))
	}
	wrong := 0
	for i := range uint64(n) {
		require.True(t, s.has(trace(i)))
		if s.has(trace(n + i)) {
			wrong++
		}
	}
	assert.Less(t, wrong, n/20)
	for len(s.Filters) < maxTraceFilters {
		s.Filters = append(s.Filters, make([]uint64, 1))
	}
	s.Count = math.MaxUint32
	for i := uint64(n); !s.Full; i++ {
		s.add(trace(i))
	}
	assert.Empty(t, s.Filters)
	assert.True(t, s.has(trace(1<<40)))
}

// TestStore_Trace searches among 200 sessions. It opens the ones that have the trace.
func TestStore_Trace(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s := openJournaled(t, dir)
	n := 40
	if os.Getenv("GPUFLIGHT_SOAK") != "" {
		n = 200
	}
	for i := range n {
		b := batch(fmt.Sprint(i), 1e18+int64(i)*1e9, 3)
		b.Places[1].Trace = store.TraceID{7, byte(i), byte(i >> 8)}
		if i%(n/4) == 0 {
			b.Logs[0].Trace = store.TraceID{8}
		}
		write(t, s, b)
	}
	check := func(attached int64) {
		t.Helper()
		refs, err := s.Trace(ctx, "", store.TraceID{7, 33})
		require.NoError(t, err)
		require.Equal(t, []store.TraceRef{{Session: "33", FirstNs: 1e18 + 33e9, LastNs: 1e18 + 33e9 + 2500}}, refs)
		refs, err = s.Trace(ctx, "", store.TraceID{8})
		require.NoError(t, err)
		assert.Len(t, refs, 4)
		refs, err = s.Trace(ctx, "", store.TraceID{9})
		require.NoError(t, err)
		assert.Empty(t, refs)
		assert.LessOrEqual(t, s.Stats().Attached, attached)
	}
	check(5)
	assert.EqualValues(t, (n-5)*4, s.Stats().Waiting, "the rows of other sessions are not read")
	require.NoError(t, s.settleAll())
	check(6)
	require.NoError(t, s.Close(ctx))
	s = openStore(t, Config{Directory: dir})
	check(6)
	require.NoError(t, s.Close(ctx))
	require.NoError(t, os.Remove(filepath.Join(dir, catalogFile)))
	s = openStore(t, Config{Directory: dir})
	check(6)
}

// settleAll moves all rows from the journal.
func (s *Store) settleAll() error {
	s.write.Lock()
	defer s.write.Unlock()
	for {
		k, ok := s.oldest()
		if !ok {
			return nil
		}
		if err := s.settleClosed(context.Background(), k); err != nil {
			return err
		}
	}
}
