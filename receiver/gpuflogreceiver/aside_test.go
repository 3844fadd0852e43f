// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
)

// selective rejects the data of some applications and accepts the rest.
type selective struct {
	*sink
	mu       sync.Mutex
	refused  map[string]bool
	attempts atomic.Int64 // refusals
	apps     map[string]int
}

func newSelective(refused ...string) *selective {
	s := &selective{sink: newSink(), refused: map[string]bool{}, apps: map[string]int{}}
	for _, app := range refused {
		s.refused[app] = true
	}
	return s
}

func (s *selective) check(resource pcommon.Resource, sessions int) error {
	app, _ := resource.Attributes().Get("service.name")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused[app.Str()] {
		s.attempts.Add(1)
		return errors.New("not now")
	}
	s.apps[app.Str()] += sessions
	return nil
}

func (s *selective) accept() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.refused)
}

// sessionSpans is the number of session spans of a generated session with these settings.
const sessionSpans = 2

// ended returns the number of applications whose session spans have all arrived.
func (s *selective) ended() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, spans := range s.apps {
		if spans >= sessionSpans { // more if they are delivered again
			n++
		}
	}
	return n
}

func (s *selective) ConsumeTraces(ctx context.Context, td ptrace.Traces) error {
	sessions := 0
	for _, ss := range td.ResourceSpans().At(0).ScopeSpans().All() {
		for _, sp := range ss.Spans().All() {
			if op, _ := sp.Attributes().Get("cuda.operation"); op.Str() == "session" {
				sessions++
			}
		}
	}
	if err := s.check(td.ResourceSpans().At(0).Resource(), sessions); err != nil {
		return err
	}
	return s.sink.ConsumeTraces(ctx, td)
}

func (s *selective) ConsumeLogs(ctx context.Context, ld plog.Logs) error {
	if err := s.check(ld.ResourceLogs().At(0).Resource(), 0); err != nil {
		return err
	}
	return s.sink.ConsumeLogs(ctx, ld)
}

func (s *selective) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	if err := s.check(md.ResourceMetrics().At(0).Resource(), 0); err != nil {
		return err
	}
	return s.sink.ConsumeMetrics(ctx, md)
}

// sessionsOf writes the logs of n applications, app-0 and so on, and returns their kernels.
func sessionsOf(t *testing.T, dir string, n int) (kernels int) {
	t.Helper()
	for i := range n {
		kernels = kernelsOf(generate(t, filepath.Join(dir, fmt.Sprint(i)), gpuflgen.Config{
			App: fmt.Sprint("app-", i), Seed: uint64(i + 1), Epochs: 1, StepsPerEpoch: 2,
		}))
	}
	return kernels
}

func names(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("app-", i))
	}
	return names
}

func TestReader_RefusedSessions(t *testing.T) {
	const sessions = 12
	for _, refused := range []int{1, maxAside} {
		for _, restart := range []string{"no", "stop", "kill"} {
			t.Run(fmt.Sprintf("%d refused, %s restart", refused, restart), func(t *testing.T) {
				if refused == 1 && restart != "kill" && os.Getenv("GPUFLIGHT_SOAK") == "" {
					t.Skip("a long test: set GPUFLIGHT_SOAK=1")
				}
				dir := t.TempDir()
				sessionsOf(t, dir, sessions)
				s, m := newSelective(names(refused)...), &memory{m: map[string][]byte{}}
				change := func(c *Config) { c.Include = []string{dir} }
				r := startWith(t, s, m, change)
				eventually(t, "the other sessions", func() bool { return s.ended() == sessions-refused })
				assert.Positive(t, s.attempts.Load())
				var early []string // spans delivered before the restart
				if restart != "no" {
					if restart == "kill" {
						m = m.clone() // what a killed process leaves: nothing of the shutdown
					}
					r.stop()
					early = s.distinct()
					r = startWith(t, s, m, change)
					before := s.attempts.Load()
					eventually(t, "another attempt", func() bool { return s.attempts.Load() > before })
				}
				s.accept()
				eventually(t, "all sessions", func() bool { return s.ended() == sessions })
				r.stop()

				whole := newSink()
				r = start(t, whole, nil, change)
				eventually(t, "the same without refusals", func() bool { return whole.count("session") == sessions*sessionSpans })
				r.stop()
				assert.Equal(t, whole.distinct(), s.distinct())
				for span, n := range s.spans {
					if _, found := slices.BinarySearch(early, span); found && restart == "kill" {
						require.LessOrEqual(t, n, 2, span) // delivered after the state was stored: comes again
						continue
					}
					require.Equal(t, 1, n, span)
				}
			})
		}
	}
}

// TestReader_MoreRefusedThanSetAside checks that above maxAside the reader waits for one delivery,
// and continues when the pipeline accepts it.
func TestReader_MoreRefusedThanSetAside(t *testing.T) {
	const sessions = maxAside + 4
	dir := t.TempDir()
	sessionsOf(t, dir, sessions)
	s := newSelective(names(maxAside + 2)...)
	r := startWith(t, s, nil, func(c *Config) { c.Include = []string{dir} })
	refused := func() int { return r.logs.FilterMessageSnippet("data not accepted").Len() }
	eventually(t, "refusals", func() bool { return refused() == maxAside+1 })
	time.Sleep(300 * time.Millisecond) // several polls
	assert.Equal(t, maxAside+1, refused(), "no other session was read")
	s.accept()
	eventually(t, "all sessions", func() bool { return s.ended() == sessions })
	r.stop()
	for span, n := range s.spans {
		require.Equal(t, 1, n, span)
	}
}

// TestReader_StopWhileSetAside checks that the shutdown does not wait for a pipeline.
func TestReader_StopWhileSetAside(t *testing.T) {
	dir := t.TempDir()
	sessionsOf(t, dir, 3)
	s := newSelective(names(3)...)
	r := startWith(t, s, &memory{m: map[string][]byte{}}, func(c *Config) { c.Include = []string{dir} })
	eventually(t, "refusals of all", func() bool { return r.logs.FilterMessageSnippet("data not accepted").Len() == 3 })
	began := time.Now()
	r.stop()
	assert.Less(t, time.Since(began), 10*time.Second)
	assert.Zero(t, s.ended())
	assert.NotContains(t, fmt.Sprint(s.distinct()), "kernel")
}
