// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

// killDirectory is the store of the process that TestStore_Killed starts and kills.
const killDirectory = "GPUFLIGHT_TEST_KILL_DIRECTORY"

// deliver writes a training run from its start, in batches of another size for each seed, and seals
// it now and then. With some seeds it writes to the journal first. Rollups are merged often. Each write
// has another batch too, if a is not nil. Between them it writes all kinds of rows in mixedCalls.
func deliver(ctx context.Context, s *Store, seed uint64, a *acknowledged) error {
	g, r := storetest.NewTraining(0), rand.New(rand.NewPCG(seed, 1))
	s.write.Lock()
	s.maxPartial, s.directSessions, s.settleInterval = 5000, r.IntN(2)*directSessions, time.Duration(r.IntN(100))*time.Millisecond
	s.write.Unlock()
	mixed := mixedCalls()
	for steps := 60; steps > 0 || len(mixed) > 0; {
		if len(mixed) > 0 {
			if _, err := s.Write(ctx, mixed[0]); err != nil {
				return err
			}
			mixed = mixed[1:]
		}
		if steps == 0 {
			continue
		}
		n := min(1+r.IntN(5), steps)
		steps -= n
		batches := []*store.Batch{g.Batch(n)}
		if a != nil {
			batches = append(batches, batch("acknowledged", 1e18+a.rows*1000, ackedRows))
		}
		if _, err := s.Write(ctx, batches); err != nil {
			return err
		}
		if a != nil {
			if err := a.add(); err != nil {
				return err
			}
		}
		if r.IntN(4) == 0 {
			if err := s.Seal(ctx, "", "training"); err != nil {
				return err
			}
		}
	}
	return nil
}

// mixedCalls returns random data of all kinds, with equal rows in an equal order in each call. So the last
// version of a point is the same after each complete delivery.
func mixedCalls() [][]*store.Batch {
	return storetest.Deliver(storetest.Generate(11, storetest.Options{Sessions: 1, Ops: 300}), 5)
}

// ackedRows is the number of rows of each batch of the session "acknowledged".
const ackedRows = 20

// acknowledged is a file with the number of rows of this session whose write has returned.
type acknowledged struct {
	*os.File
	rows int64
}

// openAcknowledged opens the file, and reports the rows that the store lacks as an error.
func openAcknowledged(ctx context.Context, s *Store, name string) (*acknowledged, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	a := &acknowledged{File: f}
	if err := binary.Read(f, binary.LittleEndian, &a.rows); errors.Is(err, io.EOF) {
		return a, nil
	} else if err != nil {
		return nil, err
	}
	info, err := s.Session(ctx, "", "acknowledged")
	if n := info.Counts["ops"]; err == nil && n < a.rows {
		err = fmt.Errorf("%d of %d acknowledged rows are stored", n, a.rows)
	}
	return a, err
}

func (a *acknowledged) add() error {
	a.rows += ackedRows
	_, err := a.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(a.rows)), 0)
	return err
}

// TestStore_Killed kills a process at random moments while it writes, merges rollups and seals. Each process
// checks that the store has all rows whose write returned in those before. At the end, the test delivers
// the data again from the start, and compares all rollups with the rows.
func TestStore_Killed(t *testing.T) {
	ctx := context.Background()
	cfg := Config{SegmentOps: 25_000}
	if cfg.Directory = os.Getenv(killDirectory); cfg.Directory != "" {
		s, err := Open(ctx, cfg)
		var a *acknowledged
		if err == nil {
			a, err = openAcknowledged(ctx, s, cfg.Directory+".acknowledged")
		}
		for seed := uint64(time.Now().UnixNano()); err == nil; seed++ {
			err = deliver(ctx, s, seed, a)
		}
		t.Fatal(err)
	}
	if testing.Short() {
		t.Skip("starts processes")
	}
	kills := 5
	if os.Getenv("GPUFLIGHT_SOAK") == "1" {
		kills = 50
	}
	cfg.Directory = filepath.Join(t.TempDir(), "store")
	for i := range kills {
		cmd := exec.Command(os.Args[0], "-test.run=^TestStore_Killed$")
		cmd.Env = append(os.Environ(), killDirectory+"="+cfg.Directory)
		var output bytes.Buffer
		cmd.Stdout, cmd.Stderr = &output, &output
		require.NoError(t, cmd.Start())
		// The first one is slow to start on a busy machine, and must have written.
		require.Eventually(t, func() bool {
			fi, err := os.Stat(cfg.Directory + ".acknowledged")
			return i > 0 || err == nil && fi.Size() > 0
		}, 2*time.Minute, time.Millisecond)
		time.Sleep(300*time.Millisecond + rand.N(2*time.Second))
		require.NoError(t, cmd.Process.Kill())
		require.EqualError(t, cmd.Wait(), "signal: killed", output.String())
	}
	acked, err := os.ReadFile(cfg.Directory + ".acknowledged")
	require.NoError(t, err)
	t.Logf("%d rows were acknowledged", binary.LittleEndian.Uint64(acked))
	// A disk may also lose the end of a log, which has rows that were acknowledged.
	logs, err := filepath.Glob(filepath.Join(cfg.Directory, "*", "sessions", "*", "*.duckdb.wal"))
	require.NoError(t, err)
	for _, log := range logs {
		fi, err := os.Stat(log)
		require.NoError(t, err)
		require.NoError(t, os.Truncate(log, rand.N(fi.Size()+1)))
	}
	s := openStore(t, cfg)
	t.Logf("%d logs were truncated, %d files set aside", len(logs), s.Stats().Damaged)
	assert.LessOrEqual(t, s.Stats().Damaged, int64(len(logs)))
	// If the store had one segment, the end of its log can be all of it.
	if info, err := s.Session(ctx, "", "training"); !errors.Is(err, store.ErrNotFound) {
		require.NoError(t, err)
		t.Logf("%d operations in %d segments before the last delivery", info.Counts["ops"], s.Stats().Segments)
	}
	require.NoError(t, deliver(ctx, s, 7, nil))

	want := openStore(t, Config{Directory: t.TempDir()})
	g := storetest.NewTraining(0)
	for range 60 {
		_, err := want.Write(ctx, []*store.Batch{g.Batch(1)})
		require.NoError(t, err)
	}
	for _, call := range mixedCalls() {
		_, err := want.Write(ctx, call)
		require.NoError(t, err)
	}
	sameAnswers(t, s, want)
	rollupsEqualRows(t, s, "training")
	const session = "session-00"
	sameRows(t, want, "", s, "", session)
	info, err := s.Session(ctx, "", session)
	require.NoError(t, err)
	for _, table := range rowTables {
		assert.Positive(t, info.Counts[table], table)
	}
	for _, session := range []string{session, "training"} {
		stacks, err := s.Stacks(ctx, store.StackQuery{Session: session})
		require.NoError(t, err)
		wantStacks, err := want.Stacks(ctx, store.StackQuery{Session: session})
		require.NoError(t, err)
		assert.Equal(t, wantStacks, stacks, session)
	}
}

// sameAnswers compares what two stores with the same rows answer. Ids of lanes and shapes may differ.
func sameAnswers(t *testing.T, got, want *Store) {
	ctx := context.Background()
	ask := func(s *Store) (answers []any) {
		add := func(a any, err error) {
			require.NoError(t, err)
			answers = append(answers, a)
		}
		info, err := s.Session(ctx, "", "training")
		info.Bytes, info.Sealed = 0, false
		add(info, err)
		for _, group := range []store.Group{store.GroupName, store.GroupPath} {
			add(s.Kernels(ctx, store.KernelQuery{Session: "training", Group: group, Limit: 10_000}))
		}
		add(s.Scopes(ctx, "", "training"))
		timeline, err := s.Timeline(ctx, store.TimelineQuery{Session: "training", Bins: 100})
		for i := range timeline.Bins {
			timeline.Bins[i].Lane, timeline.Bins[i].TopShape = 0, 0
		}
		add(timeline, err)
		gaps, err := s.Gaps(ctx, store.GapQuery{Session: "training", Limit: 100})
		for i := range gaps.Longest {
			gaps.Longest[i].AfterShape = 0
		}
		add(gaps, err)
		return answers
	}
	a, b := ask(got), ask(want)
	for i := range b {
		assert.Equal(t, b[i], a[i], "answer %d", i)
	}
}

// rollupsEqualRows computes each rollup again from the rows.
func rollupsEqualRows(t *testing.T, s *Store, session string) {
	ctx := context.Background()
	v, err := s.open(ctx, "", session, false)
	require.NoError(t, err)
	defer v.close()
	for name, queries := range map[string][2]string{
		"stats": {
			"SELECT shape, lane, bucket, sum(n), sum(sum_ns), max(max_ns), sum(queue_ns) FROM {stats} GROUP BY ALL ORDER BY ALL",
			"SELECT shape, lane, " + bucketSQL + ", count(*), sum(d), max(d), coalesce(sum(" + queueSQL + "), 0) FROM (SELECT *, greatest(dur_ns, 0) AS d FROM {ops}) GROUP BY ALL ORDER BY ALL",
		},
		"lanes": {
			"SELECT lane, sum(n), sum(busy_ns), min(first_ns), max(last_ns) FROM {lane_sums} GROUP BY ALL ORDER BY ALL",
			"SELECT lane, count(*), sum(greatest(dur_ns, 0)), min(start_ns), max(start_ns + greatest(dur_ns, 0)) FROM {ops} GROUP BY ALL ORDER BY ALL",
		},
		"lod": {
			"SELECT lane, level, bin, sum(n), max(top_ns) FROM {lod} WHERE n > 0 GROUP BY ALL ORDER BY ALL",
			"SELECT lane, level, start_ns >> level, count(*), max(greatest(dur_ns, 0)) FROM {ops}, (SELECT unnest([22, 24, 28, 32]) AS level) GROUP BY ALL ORDER BY ALL",
		},
		"busy": {
			"SELECT lane, level, sum(busy_ns) FROM {lod} GROUP BY ALL ORDER BY ALL",
			"SELECT lane, level, sum(greatest(dur_ns, 0)) FROM {ops}, (SELECT unnest([22, 24, 28, 32]) AS level) GROUP BY ALL ORDER BY ALL",
		},
		"scopes": {
			"SELECT span, sum(kernels), sum(kernel_ns), min(first_ns), max(last_ns) FROM {scope_sums} WHERE own GROUP BY ALL HAVING sum(kernels) > 0 ORDER BY ALL",
			"SELECT parent, count(*), sum(dur_ns), min(start_ns), max(start_ns + dur_ns) FROM {ops} JOIN " + v.dict(places) + " p ON p.id = place GROUP BY ALL ORDER BY ALL",
		},
	} {
		assert.Equal(t, table(t, v, queries[1]), table(t, v, queries[0]), name)
	}
	if !v.stale {
		compareChains(t, s, sessionKey{"", session}, session)
	}
}

// table returns the rows of a query as text.
func table(t *testing.T, v *view, query string) (out []string) {
	rows, err := v.s.db.Query(v.tables(query))
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	columns, err := rows.Columns()
	require.NoError(t, err)
	for rows.Next() {
		values := make([]any, len(columns))
		pointers := make([]any, len(columns))
		for i := range values {
			pointers[i] = &values[i]
		}
		require.NoError(t, rows.Scan(pointers...))
		out = append(out, fmt.Sprint(values...))
	}
	require.NoError(t, rows.Err())
	require.NotEmpty(t, out)
	return out
}

// TestOpen_LostChains loses half of the log of a segment. The segments after it then have sums of spans and
// chains that the store no longer has. The same data arrives again.
func TestOpen_LostChains(t *testing.T) {
	ctx := context.Background()
	cfg := Config{Directory: t.TempDir(), SegmentOps: 10_000}
	s, want := openStore(t, cfg), openStore(t, Config{Directory: t.TempDir()})
	writeTraining(t, 60, s, want)
	for n := range 3 {
		t.Run(fmt.Sprint("segment ", n+1), func(t *testing.T) {
			torn := cfg
			torn.Directory = filepath.Join(t.TempDir(), "torn")
			require.NoError(t, os.CopyFS(torn.Directory, os.DirFS(cfg.Directory)))
			log := filepath.Join(torn.Directory, "_", "sessions", "training", fmt.Sprint(n+1, ".duckdb.wal"))
			fi, err := os.Stat(log)
			require.NoError(t, err)
			require.NoError(t, os.Truncate(log, fi.Size()/2))
			s := openStore(t, torn)
			require.NoError(t, deliver(ctx, s, 7, nil))
			sameAnswers(t, s, want)
			rollupsEqualRows(t, s, "training")
		})
	}
}
