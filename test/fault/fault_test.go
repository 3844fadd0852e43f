// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package fault_test shows that no telemetry is lost or duplicated. The distribution's binary reads
// logs while writers append and rotate. It is killed repeatedly with SIGKILL, or the backend
// rejects, hangs and loses answers. Afterwards the backend must hold exactly the items of one
// undisturbed run over the complete logs, and exactly as many as the writers report.
package fault_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// kills is the number of kills; the writers continue until the last one.
const kills = 50

// keys are the attributes that the checks need.
var keys = []string{"cuda.operation", "cuda.scope.part", "cuda.memcpy.size"}

// writers append both layouts with partial lines and rotation, for the given number of steps.
type writers struct {
	dirs []string
	done chan struct{}

	mu        sync.Mutex
	summaries []gpuflgen.Summary
	err       error
}

// startWriters starts one writer per layout. Each session ends with its shutdown record before the
// next begins, so sessions start and end during the faults.
func startWriters(t *testing.T, sessions, steps int) *writers {
	t.Helper()
	root := t.TempDir()
	w := &writers{done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	// About two files per second. A2 keeps one hundred, which must suffice for the test.
	rotate := map[gpuflgen.Layout]int64{gpuflgen.A2: 1 << 20, gpuflgen.C3: 512 << 10}
	for i, layout := range []gpuflgen.Layout{gpuflgen.A2, gpuflgen.C3} {
		dir := filepath.Join(root, string(layout))
		w.dirs = append(w.dirs, dir)
		wg.Go(func() {
			summary, err := gpuflgen.Run(ctx, gpuflgen.Config{
				Dir: dir, Layout: layout, App: "fault-" + string(layout), Seed: uint64(i + 1),
				Sessions: sessions, Epochs: 2, StepsPerEpoch: steps / 2, Layers: 1,
				StepInterval: 40 * time.Millisecond, StackBytes: 200, DistinctStacks: 20,
				RotateBytes: rotate[layout],
				Live:        true, Pieces: true, FlushInterval: 50 * time.Millisecond,
			})
			w.mu.Lock()
			defer w.mu.Unlock()
			w.summaries = append(w.summaries, summary)
			if err != nil && w.err == nil {
				w.err = err
			}
		})
	}
	go func() {
		wg.Wait()
		close(w.done)
	}()
	t.Cleanup(func() {
		cancel()
		<-w.done
	})
	return w
}

func (w *writers) writing() bool {
	select {
	case <-w.done:
		return false
	default:
		return true
	}
}

// finish waits for the writers and returns what they wrote.
func (w *writers) finish(t *testing.T) []gpuflgen.Summary {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(2 * time.Minute):
		t.Fatal("the writers did not finish")
	}
	require.NoError(t, w.err)
	for _, s := range w.summaries {
		for channel, total := range s.Channels {
			assert.Less(t, total.Rotations, int64(100), "channel %s of %s lost files to A2's own limit", channel, s.Layout)
		}
		assert.Positive(t, s.Channels["device"].Rotations, "the test is about rotation")
	}
	return w.summaries
}

// rows sums a kind of row over all summaries.
func rows(summaries []gpuflgen.Summary, kinds ...string) (n int64) {
	for _, s := range summaries {
		for _, k := range kinds {
			n += s.Rows[k]
		}
	}
	return n
}

// kernels counts the distinct kernel spans.
func kernels(store *testsink.Store) (n int64) {
	for _, sp := range store.Spans() {
		if sp.Attrs["cuda.operation"] == "kernel" {
			n++
		}
	}
	return n
}

// drain lets a process continue until all kernels, and as many items as whole has, have arrived and
// no more data arrives. Then it stops the process. whole may be nil. Without it, a delivery that
// waits for its next retry can resemble the end.
func drain(t *testing.T, p *process.Process, store *testsink.Store, summaries []gpuflgen.Summary, whole *testsink.Store) {
	t.Helper()
	want := rows(summaries, gpuflgen.RowKernel)
	var least testsink.Counts
	if whole != nil {
		least = whole.Distinct()
	}
	settled := store.Settle(2*time.Second, 90*time.Second, func() bool {
		have := store.Distinct()
		return kernels(store) >= want && have.Spans >= least.Spans && have.Logs >= least.Logs && have.Points >= least.Points
	})
	assert.True(t, settled, "%d of %d kernels and %+v of %+v after the writers' end", kernels(store), want, store.Distinct(), least)
	p.Stop(20 * time.Second)
}

// undisturbed reads the complete logs once, without checkpoints.
func undisturbed(t *testing.T, w *writers, summaries []gpuflgen.Summary) *testsink.Store {
	t.Helper()
	store, server := process.Sink(t, keys...)
	// On a busy machine a short timeout would repeat requests.
	p := process.CollectorConfig{Include: w.dirs, Endpoint: server.Endpoint(), Timeout: "30s"}.Start(t)
	drain(t, p, store, summaries, nil)
	for _, sp := range store.Spans() {
		require.Equal(t, 1, sp.Count, "%s came %d times in an undisturbed run", sp.Name, sp.Count)
	}
	checkTotals(t, store, summaries)
	// Two samples may be equal, so this counts arrivals instead of distinct records.
	samples := map[string]int64{}
	for _, l := range store.LogRecords() {
		samples[l.Event] += int64(l.Count)
	}
	assert.Equal(t, rows(summaries, gpuflgen.RowPCSample), samples["cuda.pc_sample"], "PC samples")
	assert.Equal(t, rows(summaries, gpuflgen.RowSASSMetric), samples["cuda.sass_metric"], "SASS metrics")
	return store
}

// checkTotals compares numbers and sums with the writers' summaries.
func checkTotals(t *testing.T, store *testsink.Store, summaries []gpuflgen.Summary) {
	t.Helper()
	want, have := map[string]int64{}, map[string]int64{}
	for op, kind := range map[string][]string{
		"kernel": {gpuflgen.RowKernel}, "memcpy": {gpuflgen.RowCopy}, "memset": {gpuflgen.RowSet},
		"synchronize": {gpuflgen.RowSync}, "malloc": {gpuflgen.RowAlloc}, "free": {gpuflgen.RowFree},
		"scope": {gpuflgen.RowScopeBegin},
	} {
		if n := rows(summaries, kind...); n > 0 {
			want[op] = n
		}
	}
	for _, s := range summaries {
		want["kernel ns"] += s.KernelNanos
		want["copied bytes"] += s.CopyBytes
	}
	for _, sp := range store.Spans() {
		op, _ := sp.Attrs["cuda.operation"].(string)
		if _, repeated := sp.Attrs["cuda.scope.part"]; repeated || op == "session" {
			continue
		}
		have[op]++
		if op == "kernel" {
			have["kernel ns"] += int64(sp.EndNs - sp.StartNs)
		}
		if n, ok := sp.Attrs["cuda.memcpy.size"].(int64); ok {
			have["copied bytes"] += n
		}
	}
	assert.Equal(t, want, have, "distinct spans by operation, and sums, against what was written")
}

// same compares two stores by identity and content; got may have repeated items.
func same(t *testing.T, want, got *testsink.Store) {
	t.Helper()
	wantSpans, gotSpans := map[testsink.SpanKey]testsink.Span{}, map[testsink.SpanKey]testsink.Span{}
	for _, sp := range want.Spans() {
		wantSpans[sp.SpanKey] = sp
	}
	for _, sp := range got.Spans() {
		gotSpans[sp.SpanKey] = sp
	}
	diff := differences{t: t}
	for key, w := range wantSpans {
		g, ok := gotSpans[key]
		switch {
		case !ok:
			diff.add("lost: %s", describe(w))
		case g.Digest != w.Digest:
			diff.add("differs: %s is %s", describe(w), describe(g))
		case g.Conflicts > 0:
			diff.add("%d of %d repetitions differ: %s, the last is %s", g.Conflicts, g.Count-1, describe(g), describe(*g.Other))
		}
	}
	for key, g := range gotSpans {
		if _, ok := wantSpans[key]; !ok {
			diff.add("invented: %s", describe(g))
		}
	}
	wantLogs, gotLogs := map[testsink.Digest]string{}, map[testsink.Digest]string{}
	for _, l := range want.LogRecords() {
		wantLogs[l.Digest] = fmt.Sprintf("log %s of %s at %d: %.80s", l.Event, l.Session, l.TimeNs, l.Body)
	}
	for _, l := range got.LogRecords() {
		gotLogs[l.Digest] = fmt.Sprintf("log %s of %s at %d: %.80s", l.Event, l.Session, l.TimeNs, l.Body)
	}
	diff.sets(wantLogs, gotLogs)
	wantPoints, gotPoints := map[testsink.Digest]string{}, map[testsink.Digest]string{}
	for _, p := range want.Points() {
		wantPoints[p.Digest] = fmt.Sprintf("point %s of %s at %d: %v", p.Metric, p.Session, p.TimeNs, p.Value)
	}
	for _, p := range got.Points() {
		gotPoints[p.Digest] = fmt.Sprintf("point %s of %s at %d: %v", p.Metric, p.Session, p.TimeNs, p.Value)
	}
	diff.sets(wantPoints, gotPoints)
	diff.report()
}

func describe(sp testsink.Span) string {
	return fmt.Sprintf("%v %q of %s %s, %s under %s, %d to %d, part %v",
		sp.Attrs["cuda.operation"], sp.Name, sp.App, sp.Session, sp.SpanKey, sp.Parent, sp.StartNs, sp.EndNs,
		sp.Attrs["cuda.scope.part"])
}

// differences reports the first few and the number of all differences.
type differences struct {
	t *testing.T
	n int
}

func (d *differences) add(format string, args ...any) {
	if d.n++; d.n <= 20 {
		d.t.Errorf(format, args...)
	}
}

func (d *differences) sets(want, got map[testsink.Digest]string) {
	for k, w := range want {
		if _, ok := got[k]; !ok {
			d.add("lost: %s", w)
		}
	}
	for k, g := range got {
		if _, ok := want[k]; !ok {
			d.add("invented: %s", g)
		}
	}
}

func (d *differences) report() {
	if d.n > 0 {
		d.t.Errorf("%d differences in all", d.n)
	}
}

func TestKilledRepeatedly(t *testing.T) {
	if testing.Short() {
		t.Skip("takes about a minute")
	}
	process.Collector.Find(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed of the moments of death: %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	w := startWriters(t, 3, 200)
	store, server := process.Sink(t, keys...)
	collector := process.CollectorConfig{
		Include: w.dirs, Endpoint: server.Endpoint(), Storage: filepath.Join(t.TempDir(), "storage"),
	}
	path, config := process.Collector.Find(t), collector.Write(t)
	died, productive := 0, 0
	for died < kills || w.writing() {
		before := store.Counts()
		p := process.Start(t, path, "--config", config)
		// Half of the kills happen during start-up, which takes some 300 ms. The other half happen
		// while data is in flight.
		if died%2 == 0 {
			time.Sleep(time.Duration(50+random.IntN(550)) * time.Millisecond)
		} else {
			for end := time.Now().Add(3 * time.Second); store.Counts() == before && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Duration(random.IntN(150_000)) * time.Microsecond)
		}
		p.Kill()
		for _, line := range strings.Split(p.Output(), "\n") {
			if strings.Contains(line, "data of an interrupted delivery is gone") {
				t.Errorf("run %d: %s", died, line)
			}
		}
		died++
		if store.Counts() != before {
			productive++
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	summaries := w.finish(t)
	atDeath := store.Distinct()
	assert.GreaterOrEqual(t, productive, kills/4, "most deaths must come in the middle of the work")
	whole := undisturbed(t, w, summaries)
	drain(t, process.Start(t, path, "--config", config), store, summaries, whole)
	t.Logf("%d kills, %d of them after data had come; %+v had come before the last run; now %+v distinct of %+v arrivals",
		died, productive, atDeath, store.Distinct(), store.Counts())
	checkTotals(t, store, summaries)
	same(t, whole, store)
}

func TestBackend_ErrorsAndHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("takes about half a minute")
	}
	process.Collector.Find(t)
	w := startWriters(t, 2, 200)
	store, server := process.Sink(t, keys...)
	p := process.CollectorConfig{
		Include: w.dirs, Endpoint: server.Endpoint(), Storage: filepath.Join(t.TempDir(), "storage"),
	}.Start(t)
	p.WaitOutput(process.Ready, 30*time.Second)
	faults := []testsink.Mode{testsink.Unavailable, testsink.Hang, testsink.Exhausted, testsink.Swallow}
	for i := 0; w.writing(); i++ {
		server.SetMode(faults[i%len(faults)])
		time.Sleep(1300 * time.Millisecond) // longer than the exporter's timeout
		server.SetMode(testsink.Accept)
		time.Sleep(700 * time.Millisecond)
	}
	summaries := w.finish(t)
	for _, m := range faults {
		assert.Positive(t, server.Answers(m), "requests in mode %s", m)
	}
	whole := undisturbed(t, w, summaries)
	drain(t, p, store, summaries, whole)
	t.Logf("%+v distinct of %+v arrivals", store.Distinct(), store.Counts())
	checkTotals(t, store, summaries)
	same(t, whole, store)
}

// TestBackend_PermanentErrors shows that a permanent error does not block later data.
func TestBackend_PermanentErrors(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some ten seconds")
	}
	process.Collector.Find(t)
	w := startWriters(t, 1, 150)
	store, server := process.Sink(t, keys...)
	// Spans only: on a busy machine the three rejected requests could all be of other signals.
	p := process.CollectorConfig{Include: w.dirs, Endpoint: server.Endpoint(), Signals: []string{"traces"}}.Start(t)
	p.WaitOutput(process.Ready, 30*time.Second)
	process.Eventually(t, time.Minute, "some kernels arrive", func() bool { return kernels(store) > 0 })
	server.SetMode(testsink.Invalid)
	process.Eventually(t, time.Minute, "three requests are refused for good", func() bool {
		return server.Answers(testsink.Invalid) >= 3
	})
	server.SetMode(testsink.Accept)
	before := kernels(store)
	summaries := w.finish(t)
	store.Settle(2*time.Second, 30*time.Second, nil)
	p.Stop(20 * time.Second)

	assert.Greater(t, kernels(store), before, "kernels after the refusal")
	whole := undisturbed(t, w, summaries)
	known := map[testsink.SpanKey]testsink.Digest{}
	for _, sp := range whole.Spans() {
		known[sp.SpanKey] = sp.Digest
	}
	for _, sp := range store.Spans() {
		require.Equal(t, known[sp.SpanKey], sp.Digest, "invented: %s", describe(sp))
	}
	assert.Less(t, store.Distinct().Spans, whole.Distinct().Spans, "what was refused for good is not sent again")
}
