// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package growth_test appends to two sessions for a minute, in pieces of a few bytes to a few KB
// that may end within a line. It compares the arrival of each span at the backend with the time at
// which its last byte was written. A span must arrive after that, within a second, and once.
package growth_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

const (
	// duration is how long the writers append.
	duration = time.Minute
	// stepEvery is the interval of training steps in each session.
	stepEvery = 200 * time.Millisecond
	// latest is the maximum delay of a span after its last byte.
	latest = time.Second
)

// written records when the last required byte of a span was written.
type written struct {
	// before and after are the times around the write of that byte.
	before, after time.Time
	// missing counts the required lines that are not written yet.
	missing int
}

// journal holds an entry for each span by session, operation and number.
type journal map[string]*written

func key(session, op string, number any) string { return fmt.Sprintf("%s %s %v", session, op, number) }

// line records a completed line.
func (j journal) line(text []byte, before, after time.Time) error {
	var r struct {
		Type    string          `json:"type"`
		Session string          `json:"session_id"`
		Corr    json.Number     `json:"corr_id"`
		Base    int64           `json:"base_time_ns"`
		TS      int64           `json:"ts_ns"`
		Scope   string          `json:"user_scope"`
		Columns []string        `json:"columns"`
		Rows    [][]json.Number `json:"rows"`
		Name    string          `json:"name"`
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("line %.200q: %w", text, err)
	}
	done := func(op string, number any, needs int) {
		k := key(r.Session, op, number)
		w := j[k]
		if w == nil {
			w = &written{missing: needs}
			j[k] = w
		}
		w.missing--
		w.before, w.after = before, after
	}
	each := func(f func(cell func(string) string)) {
		for _, row := range r.Rows {
			f(func(name string) string {
				for i, c := range r.Columns {
					if c == name {
						return row[i].String()
					}
				}
				return ""
			})
		}
	}
	switch r.Type {
	case "kernel_event":
		done("kernel", r.Corr, 1)
	case "memcpy_event":
		done("memcpy", r.Corr, 1)
	case "memset_event":
		done("memset", r.Corr, 1)
	case "scope_end":
		done("scope end", r.TS, 1)
	case "kernel_event_batch":
		each(func(cell func(string) string) {
			needs := 1
			if cell("has_details") == "1" {
				needs = 2
			}
			done("kernel", cell("corr_id"), needs)
		})
	case "kernel_detail":
		done("kernel", r.Corr, 2)
	case "memcpy_event_batch":
		each(func(cell func(string) string) { done("memcpy", cell("corr_id"), 1) })
	case "synchronization_event_batch":
		each(func(cell func(string) string) { done("synchronize", cell("corr_id"), 1) })
	case "memory_alloc_event_batch":
		each(func(cell func(string) string) {
			op := "malloc"
			if cell("memory_op") == "2" {
				op = "free"
			}
			done(op, cell("corr_id"), 1)
		})
	case "scope_event_batch":
		each(func(cell func(string) string) {
			if cell("event_type") == "1" {
				done("scope", cell("scope_instance_id"), 1)
			}
		})
	}
	return nil
}

// spanKey returns the journal's key of a span. ok is false for spans without a line of their own.
func spanKey(sp testsink.Span) (string, bool) {
	op, _ := sp.Attrs["cuda.operation"].(string)
	if _, repeated := sp.Attrs["cuda.scope.part"]; repeated || op == "session" {
		return "", false
	}
	if op != "scope" {
		return key(sp.Session, op, sp.Attrs["cuda.correlation.id"]), true
	}
	if id, ok := sp.Attrs["cuda.scope.instance.id"]; ok {
		return key(sp.Session, op, id), true
	}
	return key(sp.Session, "scope end", sp.EndNs), true
}

func TestGrowth_TwoSessions(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a minute")
	}
	process.Collector.Find(t)
	root := t.TempDir()
	store := testsink.NewStore("cuda.operation", "cuda.correlation.id", "cuda.scope.part", "cuda.scope.instance.id")
	server, err := testsink.Listen(store, "")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Close()) })
	// The receiver's default poll_interval, because the second is a promise to users.
	p := process.CollectorConfig{
		Include: []string{root}, Endpoint: server.Endpoint(), Receiver: map[string]any{"poll_interval": "200ms"},
	}.Start(t)
	p.WaitOutput(process.Ready, 30*time.Second)

	paused := watchPauses(t)
	growers := []*grower{newGrower(t, gpuflgen.A2, root, 1), newGrower(t, gpuflgen.C3, root, 2)}
	done := make(chan journal)
	for _, g := range growers {
		go func() {
			g.grow(duration)
			done <- g.journal
		}()
	}
	all := journal{}
	for range growers {
		for k, w := range <-done {
			all[k] = w
		}
	}
	for _, g := range growers {
		require.NoError(t, g.err)
	}
	require.Greater(t, len(all), 5000, "a minute's work")

	store.Settle(2*time.Second, 30*time.Second, func() bool { return store.Distinct().Spans >= len(all) })
	p.Stop(20 * time.Second)

	seen := map[string]bool{}
	var slowest time.Duration
	problems := 0
	report := func(format string, args ...any) {
		if problems++; problems <= 20 {
			t.Errorf(format, args...)
		}
	}
	for _, sp := range store.Spans() {
		if sp.Count != 1 {
			report("%s %s came %d times", sp.Name, sp.SpanKey, sp.Count)
		}
		k, ok := spanKey(sp)
		if !ok {
			continue
		}
		w := all[k]
		switch {
		case w == nil:
			report("span %q was never written", k)
		case seen[k]:
			report("two spans for %q", k)
		case w.missing != 0:
			report("the test itself is wrong: %q lacks %d lines", k, w.missing)
		case sp.First.Before(w.before):
			report("%q came %v before its last byte was written", k, w.before.Sub(sp.First))
		default:
			late := sp.First.Sub(w.after) - paused.within(w.after, sp.First)
			slowest = max(slowest, late)
			if late > latest {
				report("%q came %v after its last byte", k, late)
			}
		}
		seen[k] = true
	}
	for k := range all {
		if !seen[k] {
			report("%q never came", k)
		}
	}
	if problems > 0 {
		t.Errorf("%d problems in all", problems)
	}
	t.Logf("%d spans, the slowest %v after its last byte", len(seen), slowest)

	for _, g := range growers {
		g.checkRows(t, all)
	}
}

// pauses are times in which the machine did not run this process. They do not count as a delay of
// the receiver.
type pauses struct {
	mu   sync.Mutex
	from []time.Time
	to   []time.Time
}

// watchPauses records pauses of more than a tenth of latest until the end of the test.
func watchPauses(t *testing.T) *pauses {
	p := &pauses{}
	stop := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		const beat = 5 * time.Millisecond
		tick := time.NewTicker(beat)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			now := time.Now()
			if now.Sub(last) > latest/10 {
				p.mu.Lock()
				p.from, p.to = append(p.from, last.Add(beat)), append(p.to, now)
				p.mu.Unlock()
			}
			last = now
		}
	})
	t.Cleanup(func() { close(stop); done.Wait() })
	return p
}

// within returns how much of the time between two moments was paused.
func (p *pauses) within(from, to time.Time) (sum time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.from {
		begin, end := p.from[i], p.to[i]
		if begin.Before(from) {
			begin = from
		}
		if end.After(to) {
			end = to
		}
		sum += max(0, end.Sub(begin))
	}
	return sum
}

// checkRows checks that the journal contains everything that the generator wrote.
func (g *grower) checkRows(t *testing.T, all journal) {
	t.Helper()
	sum := g.writer.Summary()
	count := map[string]int64{}
	for k := range all {
		if session, rest, _ := bytes.Cut([]byte(k), []byte(" ")); string(session) == g.writer.Session() {
			op, _, _ := bytes.Cut(rest, []byte(" "))
			count[string(op)]++
		}
	}
	for op, row := range map[string]string{
		"kernel": gpuflgen.RowKernel, "memcpy": gpuflgen.RowCopy, "memset": gpuflgen.RowSet,
		"synchronize": gpuflgen.RowSync, "malloc": gpuflgen.RowAlloc, "free": gpuflgen.RowFree,
		"scope": gpuflgen.RowScopeEnd,
	} {
		assert.Equal(t, sum.Rows[row], count[op], "%s rows of the %s session", row, sum.Layout)
	}
}
