// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

func sessionID(i int) string { return fmt.Sprintf("%08d-2222-4333-8444-555555555555", i) }

func TestLine_Repeated(t *testing.T) {
	e := newExact()
	r, url := serve(t, e, nil, nil)
	require.Equal(t, http.StatusOK, send(t, url, enveloped(t, "system", jobStart(testSession))).status)

	refused := enveloped(t, "system", hosts(testSession, 1))
	e.say(func() error { return errors.New("full") })
	a := send(t, url, refused)
	assert.Equal(t, http.StatusServiceUnavailable, a.status)
	assert.NotEmpty(t, a.header.Get("Retry-After"))
	e.say(nil)
	assert.EqualValues(t, 1, send(t, url, enveloped(t, "system", hosts(testSession, 1))).Accepted, "the same line at another time")

	lost := enveloped(t, "system", hosts(testSession, 2)) // as if its answer had been lost
	for range 3 {
		assert.EqualValues(t, 1, send(t, url, lost).Accepted)
	}
	unknown := send(t, url, enveloped(t, "system", `{"type":"thing_of_the_future","session_id":"`+testSession+`"}`))
	assert.EqualValues(t, 1, unknown.Accepted, "upstream adds types without a version")
	bad := send(t, url, enveloped(t, "device", `{"type":"kernel_event","session_id":"`+testSession+`"}`))
	assert.Equal(t, http.StatusOK, bad.status, "a whole line without what it needs is not asked for again")
	assert.EqualValues(t, 0, bad.Accepted)
	assert.EqualValues(t, 1, bad.Rejected)
	assert.Contains(t, bad.Errors[0].Reason, "missing_field")
	assert.EqualValues(t, 5, r.sum("otelcol_receiver_gpuflog_lines", ""))
	r.stop()
	assert.Equal(t, 2, e.count("point ", "system.cpu.utilization"))
	for _, it := range e.twice() {
		t.Error(it)
	}
}

func TestLine_Stored(t *testing.T) {
	mem := &memory{m: map[string][]byte{}}
	r, url := serve(t, newExact(), mem, nil)
	require.Equal(t, http.StatusOK, send(t, url, enveloped(t, "device", jobStart(testSession))).status)
	stored := func() bool {
		b, err := mem.Get(t.Context(), intakeKey(testSession, "s"))
		return err == nil && len(b) > 0
	}
	eventually(t, "the first", stored)
	require.Equal(t, http.StatusOK, send(t, url, enveloped(t, "device", copies(testSession, 1, 4))).status)
	r.stop()
	e := newExact()
	r, url = serve(t, e, mem, nil)
	require.Equal(t, http.StatusOK, send(t, url, enveloped(t, "scope", shutdownLine(testSession))).status)
	eventually(t, "the copies", func() bool { return e.count("span ", `"cuda.operation":"memcpy"`, `"service.name":"demo"`) == 4 })
	r.stop()
}

func TestSessions_Concurrent(t *testing.T) {
	const sessions, windows = 40, 5
	e := newExact()
	calls := 0
	e.say(func() error { // every third delivery is refused for now
		if calls++; calls%3 == 0 {
			return errors.New("full")
		}
		return nil
	})
	r, url := serve(t, e, &memory{m: map[string][]byte{}}, nil)
	var group sync.WaitGroup
	for i := range sessions {
		id := sessionID(i)
		group.Go(func() {
			for w := range windows {
				lines := []string{hosts(id, w), copies(id, w, 3)}
				if w == 0 {
					lines = append([]string{jobStart(id)}, lines...)
				}
				if w == windows-1 {
					lines = append(lines, shutdownLine(id))
				}
				m := stream(t, id, joined(lines...))
				m.headers["X-GpuFlight-Window-Channel"] = "device"
				for until := time.Now().Add(2 * time.Minute); ; {
					a, err := try(t.Context(), http.DefaultClient, url, m)
					if !assert.NoError(t, err) || a.status == http.StatusOK {
						break
					}
					if a.status != http.StatusServiceUnavailable && a.status != http.StatusTooManyRequests || time.Now().After(until) {
						t.Errorf("answered %d: %s", a.status, a.text)
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
			}
			for a := (answer{}); a.status != http.StatusOK; {
				var err error
				a, err = try(t.Context(), http.DefaultClient, url, completed(id))
				if !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	group.Wait()
	r.stop()
	assert.Equal(t, sessions*windows, e.count("point ", "system.cpu.utilization"))
	assert.Equal(t, sessions*windows*3, e.count("span ", `"cuda.operation":"memcpy"`))
	assert.Equal(t, sessions, e.count("span ", `"cuda.operation":"session"}`))
	assert.Empty(t, e.twice())
}

func TestSessions_WaitingBound(t *testing.T) {
	const each = 10_000
	s := &tally{}
	r, url := serve(t, s, nil, nil)
	in := r.server().in
	in.mu.Lock()
	in.maxWaiting = 2*each + 6000
	in.mu.Unlock()
	for i := range 3 {
		lines := []string{jobStart(sessionID(i))}
		for w := range each / 1000 {
			lines = append(lines, copies(sessionID(i), w+1, 1000))
		}
		a := send(t, url, stream(t, sessionID(i), joined(lines...)))
		require.Equal(t, http.StatusOK, a.status, a.text)
		if i < 2 {
			assert.Equal(t, each, a.Waiting, "the answer says what waits in memory")
			assert.Zero(t, s.copies())
		}
	}
	assert.Equal(t, each, s.copies(), "the last one's did not fit, and were sent without their scopes")
	assert.EqualValues(t, each, r.sum("otelcol_receiver_gpuflog_held_overflow", ""))
	r.stop()
	assert.Equal(t, 3*each, s.copies(), "the rest is sent at the shutdown")
}

// tally counts copies and nothing else.
type tally struct {
	mu sync.Mutex
	n  int
}

func (*tally) ConsumeLogs(context.Context, plog.Logs) error          { return nil }
func (*tally) ConsumeMetrics(context.Context, pmetric.Metrics) error { return nil }
func (*tally) Capabilities() consumer.Capabilities                   { return consumer.Capabilities{} }

func (s *tally) ConsumeTraces(_ context.Context, td ptrace.Traces) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rs := range td.ResourceSpans().All() {
		for _, ss := range rs.ScopeSpans().All() {
			for _, sp := range ss.Spans().All() {
				if op, _ := sp.Attributes().Get("cuda.operation"); op.Str() == "memcpy" {
					s.n++
				}
			}
		}
	}
	return nil
}

func (s *tally) copies() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

func TestSessions_ChannelTimeout(t *testing.T) {
	e := newExact()
	r, url := serve(t, e, nil, func(c *Config) { c.Protocols.HTTP.Get().ChannelTimeout = time.Second })
	began := time.Now()
	require.Equal(t, http.StatusOK, send(t, url, stream(t, testSession, joined(jobStart(testSession), copies(testSession, 1, 4)))).status)
	eventually(t, "the copies", func() bool { return e.count("span ", `"cuda.operation":"memcpy"`) == 4 })
	assert.GreaterOrEqual(t, time.Since(began), time.Second, "they wait as long as they may")
	r.stop()
}

func TestReceiver_FilesAndHTTP(t *testing.T) {
	dir := recordings(t, "golden-c3-session")
	e := newExact()
	r, url := serve(t, e, &memory{m: map[string][]byte{}}, func(c *Config) { c.Include = []string{dir} })
	id := sessionID(7)
	require.Equal(t, http.StatusOK, send(t, url, stream(t, id, joined(jobStart(id), hosts(id, 1)))).status)
	eventually(t, "the file's session", func() bool {
		return e.count("span ", `"cuda.operation":"session"}`, "11111111222243338444555555555555") == 1
	})
	assert.Equal(t, 1, e.count("point ", "system.cpu.utilization", id))
	r.stop()
}

func TestStart_EndpointInUse(t *testing.T) {
	r, url := serve(t, newExact(), nil, nil)
	defer r.stop()
	f := NewFactory()
	cfg := f.CreateDefaultConfig().(*Config)
	cfg.Protocols.HTTP.GetOrInsertDefault().NetAddr.Endpoint = strings.TrimPrefix(url, "http://")
	second, err := newReceiver(cfg, r.settings)
	require.NoError(t, err)
	require.ErrorContains(t, second.Start(t.Context(), host{}), "address already in use")
}
