// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

const testSession = "11111111-2222-4333-8444-555555555555"

const startNs = 1786060800000000000

func jobStart(session string) string {
	return fmt.Sprintf(`{"version":1,"type":"job_start","pid":4242,"app":"demo","session_id":"%s","log_path":"demo","ts_ns":%d,"hostname":"node-a","session_kind":"trace","profiling_engine":"nvidia.trace"}`, session, startNs)
}

func shutdownLine(session string) string {
	return fmt.Sprintf(`{"type":"shutdown","pid":4242,"app":"demo","session_id":"%s","ts_ns":%d}`, session, startNs+1_000_000_000)
}

// copies is a batch of n copies, which wait for the scope channel only.
func copies(session string, batch, n int) string {
	var rows []string
	for i := range n {
		rows = append(rows, fmt.Sprintf("[%d,7,40000,4096,1,%d]", i*1000, i))
	}
	return fmt.Sprintf(`{"version":1,"type":"memcpy_event_batch","session_id":"%s","batch_id":%d,"base_time_ns":%d,"columns":["dt_ns","stream_id","duration_ns","bytes","copy_kind","corr_id"],"rows":[%s]}`,
		session, batch, startNs+int64(batch)*1_000_000, strings.Join(rows, ","))
}

// hosts is a batch of one row of the host's load, which waits for nothing.
func hosts(session string, batch int) string {
	return fmt.Sprintf(`{"version":1,"type":"host_metric_batch","session_id":"%s","hostname":"node-a","ip_addr":"192.0.2.7","batch_id":%d,"base_time_ns":%d,"columns":["dt_ns","cpu_pct_x100","ram_used_mib","ram_total_mib"],"rows":[[0,3746,20480,65536]]}`,
		session, batch, startNs+int64(batch)*1_000_000)
}

func joined(lines ...string) string { return strings.Join(lines, "\n") + "\n" }

func stream(t *testing.T, session, lines string) message {
	t.Helper()
	m := message{path: "/api/v1/events/stream", body: zipped(t, lines), headers: map[string]string{
		"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip",
	}}
	if session != "" {
		m.headers["X-GpuFlight-Session-Id"] = session
	}
	return m
}

func TestWindow_InvalidLine(t *testing.T) {
	e := newExact()
	r, url := serve(t, e, nil, nil)
	lines := joined(jobStart(testSession), hosts(testSession, 1), `{"type":"host_metric_batch","session_id`, "",
		`{"type":"thing_of_the_future","session_id":"`+testSession+`","x":1}`,
		hosts("99999999-2222-4333-8444-555555555555", 2), `{"type":"shutdown","ts_ns":1}`, hosts(testSession, 3))
	m := stream(t, testSession, lines)
	m.headers["X-GpuFlight-Window-Id"] = "w1"
	for range 2 { // the agent may send it again: the answer stays, and nothing comes twice
		a := send(t, url, m)
		require.Equal(t, http.StatusOK, a.status, a.text)
		assert.EqualValues(t, 4, a.Accepted)
		assert.EqualValues(t, 3, a.Rejected)
		assert.True(t, a.WindowAcknowledged)
	}
	assert.Equal(t, 2, e.count("point ", "system.cpu.utilization"))
	assert.Empty(t, e.twice())
	assert.EqualValues(t, 1, r.sum("otelcol_receiver_gpuflog_rejects", "malformed"))
	assert.EqualValues(t, 1, r.sum("otelcol_receiver_gpuflog_rejects", "other_session"))
	assert.EqualValues(t, 1, r.sum("otelcol_receiver_gpuflog_rejects", "missing_field"))
	assert.EqualValues(t, 1, r.sum("otelcol_receiver_gpuflog_rejects", "unknown_type"))
	assert.EqualValues(t, 1, r.sum("otelcol_receiver_gpuflog_records", "unknown"))
	assert.EqualValues(t, 1, r.sum("otelcol_receiver_gpuflog_http_windows", "new"))
	assert.EqualValues(t, 1, r.sum("otelcol_receiver_gpuflog_http_windows", "repeated"))
	assert.EqualValues(t, 2, r.sum("otelcol_receiver_gpuflog_http_requests", "200"))
	assert.Equal(t, 3, r.logs.FilterMessageSnippet("line rejected").Len())
	r.stop()
}

func TestWindow_ErrorLines(t *testing.T) {
	r, url := serve(t, newExact(), nil, func(c *Config) { c.MaxLineBytes = 1 << 10 })
	defer r.stop()
	long := `{"type":"job_start","session_id":"` + testSession + `","x":"` + strings.Repeat("y", 3000) + `"}`
	a := send(t, url, stream(t, testSession, joined(jobStart(testSession), "nonsense", long, hosts(testSession, 1))))
	require.Equal(t, http.StatusOK, a.status, a.text)
	assert.EqualValues(t, 2, a.Accepted)
	require.Len(t, a.Errors, 2)
	assert.EqualValues(t, 2, a.Errors[0].Line)
	assert.Contains(t, a.Errors[0].Reason, "malformed")
	assert.EqualValues(t, 3, a.Errors[1].Line)
	assert.Equal(t, "line_too_long", a.Errors[1].Reason)
	assert.EqualValues(t, 1, r.sum("otelcol_receiver_gpuflog_rejects", "line_too_long"))
	assert.EqualValues(t, 1, r.sum("otelcol_receiver_gpuflog_rejects", "malformed"))
}

func TestRequests_Unreadable(t *testing.T) {
	r, url := serve(t, newExact(), nil, func(c *Config) {
		c.Protocols.HTTP.Get().MaxRequestBodySize = 1 << 20
		c.MaxLineBytes = 1 << 16
	})
	good := joined(jobStart(testSession), hosts(testSession, 1))
	change := func(m message, f func(*message)) message { f(&m); return m }
	line := func(body string) message { return message{path: "/api/v1/events/device", body: []byte(body)} }
	for name, c := range map[string]struct {
		m      message
		status int
		reason string
	}{
		"not gzip":            {change(stream(t, testSession, good), func(m *message) { m.body = []byte(good) }), 400, "not gzip"},
		"half a gzip":         {change(stream(t, testSession, good), func(m *message) { m.body = m.body[:len(m.body)-9] }), 400, "not complete gzip"},
		"unknown compression": {change(stream(t, testSession, good), func(m *message) { m.headers["Content-Encoding"] = "br" }), 415, "send gzip or none"},
		"no session":          {stream(t, "", joined(`{"type":"x"}`)), 400, "names no session"},
		"a giant session id":  {stream(t, strings.Repeat("s", 300), good), 400, "longer than 256"},
		"wrong checksum":      {change(stream(t, testSession, good), func(m *message) { m.headers["X-GpuFlight-Window-CRC32"] = "1" }), 400, "the body is damaged"},
		"no checksum":         {change(stream(t, testSession, good), func(m *message) { m.headers["X-GpuFlight-Window-CRC32"] = "-1" }), 400, "unsigned decimal"},
		"too large unpacked":  {stream(t, testSession, strings.Repeat("x", 2<<20)), 413, "unpacked"},
		"too large":           {change(stream(t, testSession, ""), func(m *message) { m.body = make([]byte, 2<<20) }), 413, "as sent"},
		"end of nothing":      {message{path: "/api/v1/events/session-complete"}, 400, "X-GpuFlight-Session-Id"},
		"line: not JSON":      {line("hello"), 400, "not a JSON object"},
		"line: no record":     {line(`{"data":"half a {"}`), 400, "must be one JSON object"},
		"line: no type":       {line(`{"data":"{\"session_id\":\"s\"}"}`), 400, "names no type"},
		"line: no session":    {line(`{"data":"{\"type\":\"init\"}"}`), 400, "names no session_id"},
		"line: two lines":     {line(`{"data":"{\"type\":\"init\"}\n{}"}`), 400, "more than one line"},
		"line: too long":      {line(`{"data":"{\"type\":\"init\",\"x\":\"` + strings.Repeat("y", 70000) + `\"}"}`), 413, "too long"},
		"unknown path":        {message{path: "/api/v1/elsewhere"}, 404, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := send(t, url, c.m)
			assert.Equal(t, c.status, a.status, a.text)
			assert.Contains(t, a.Error, c.reason)
			assert.Zero(t, a.Accepted)
			assert.False(t, a.WindowAcknowledged)
			assert.Empty(t, a.header.Get("Retry-After"), "trying again does not help")
		})
	}
	resp, err := http.Get(url + "/api/v1/events/stream")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)
	for status, n := range map[string]int{"400": 12, "413": 3, "415": 1} {
		assert.EqualValues(t, n, r.sum("otelcol_receiver_gpuflog_http_requests", status), status)
	}
	r.stop()
}

func TestWindow_WithoutSessionHeader(t *testing.T) {
	e := newExact()
	r, url := serve(t, e, nil, nil)
	a := send(t, url, stream(t, "", joined(jobStart(testSession), hosts(testSession, 1))))
	assert.Equal(t, http.StatusOK, a.status, a.text)
	m := stream(t, testSession, "")
	m.headers["Content-Encoding"], m.body = "identity", []byte(joined(hosts(testSession, 2)))
	assert.Equal(t, http.StatusOK, send(t, url, m).status)
	assert.Equal(t, http.StatusOK, send(t, url, stream(t, testSession, "")).status, "an empty window is a window")
	r.stop()
	assert.Equal(t, 2, e.count("point ", "system.cpu.utilization"))
}

func TestVersion(t *testing.T) {
	r, url := serve(t, newExact(), nil, nil)
	defer r.stop()
	resp, err := http.Get(url + "/api/v1/info/version")
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	b := make([]byte, 100)
	n, _ := resp.Body.Read(b)
	assert.JSONEq(t, `{"supported":["1"]}`, string(b[:n]))
}

func TestWindow_AcknowledgedAfterDelivery(t *testing.T) {
	e := newExact()
	e.say(func() error { return errors.New("full") })
	r, url := serve(t, e, nil, nil)
	m := stream(t, testSession, joined(jobStart(testSession), hosts(testSession, 1)))
	a := send(t, url, m)
	assert.Equal(t, http.StatusServiceUnavailable, a.status)
	assert.Equal(t, "2", a.header.Get("Retry-After"))
	assert.Contains(t, a.Error, "full")
	other := send(t, url, stream(t, testSession, joined(hosts(testSession, 2))))
	assert.Equal(t, http.StatusServiceUnavailable, other.status, "the session goes on in its order only")
	e.say(nil)
	a = send(t, url, m)
	assert.Equal(t, http.StatusOK, a.status, a.text)
	assert.EqualValues(t, 2, a.Accepted)
	assert.True(t, a.WindowAcknowledged)
	r.stop()
	assert.Equal(t, 1, e.count("point ", "system.cpu.utilization"))
	assert.Empty(t, e.twice(), "what was refused came once when it was accepted")
}

// TestWindow_RejectedInTheMiddle rejects from the second delivery on: the window is larger than one
// delivery.
func TestWindow_RejectedInTheMiddle(t *testing.T) {
	e := newExact()
	var calls atomic.Int64
	e.say(func() error {
		if calls.Add(1) > 1 {
			return errors.New("full")
		}
		return nil
	})
	r, url := serve(t, e, nil, nil)
	lines := []string{jobStart(testSession)}
	const rows = 10_000 // three deliveries
	for i := range rows {
		lines = append(lines, hosts(testSession, i+1))
	}
	m := stream(t, testSession, joined(lines...))
	require.Equal(t, http.StatusServiceUnavailable, send(t, url, m).status)
	e.say(nil)
	a := send(t, url, m)
	require.Equal(t, http.StatusOK, a.status, a.text)
	assert.EqualValues(t, rows+1, a.Accepted)
	assert.Equal(t, rows, e.count("point ", "system.cpu.utilization"))
	assert.Empty(t, e.twice())
	assert.EqualValues(t, 1, r.sum("otelcol_receiver_gpuflog_http_windows", "resumed"))
	assert.EqualValues(t, rows+1, r.sum("otelcol_receiver_gpuflog_lines", ""))
	r.stop()
}

func TestWindow_PermanentRejection(t *testing.T) {
	e := newExact()
	e.say(func() error { return consumererror.NewPermanent(errors.New("never")) })
	r, url := serve(t, e, nil, nil)
	m := stream(t, testSession, joined(jobStart(testSession), hosts(testSession, 1)))
	for range 2 {
		a := send(t, url, m)
		assert.Equal(t, http.StatusConflict, a.status, "the agent goes on and keeps its file")
		assert.Contains(t, a.Error, "2 of the window's lines")
		assert.False(t, a.WindowAcknowledged)
		assert.Empty(t, a.header.Get("Retry-After"))
	}
	assert.Positive(t, r.sum("otelcol_receiver_gpuflog_dropped", ""))
	r.stop()
}

// TestWindow_PartPermanentlyRejected rejects metrics permanently and spans temporarily.
func TestWindow_PartPermanentlyRejected(t *testing.T) {
	e := &split{exact: newExact()}
	e.full.Store(true)
	r, url := serve(t, e, nil, nil)
	lines := joined(jobStart(testSession), hosts(testSession, 1), shutdownLine(testSession))
	m := stream(t, testSession, lines)
	m.headers["X-GpuFlight-Window-Channel"] = "system"
	scope := stream(t, testSession, joined(fmt.Sprintf(`{"type":"nvtx_marker_event","pid":1,"app":"a","session_id":"%s","name":"n","domain":"","start_ns":%d,"end_ns":%d,"duration_ns":0,"marker_id":5}`,
		testSession, startNs, startNs), hosts(testSession, 2)))
	require.Equal(t, http.StatusServiceUnavailable, send(t, url, scope).status)
	e.full.Store(false)
	a := send(t, url, scope)
	assert.Equal(t, http.StatusConflict, a.status, a.text)
	assert.Equal(t, http.StatusConflict, send(t, url, m).status)
	r.stop()
}

// split rejects metrics permanently, and logs while it is full.
type split struct {
	*exact
	full atomic.Bool
}

func (s *split) ConsumeLogs(ctx context.Context, ld plog.Logs) error {
	if s.full.Load() {
		return errors.New("full")
	}
	return s.exact.ConsumeLogs(ctx, ld)
}

func (s *split) ConsumeMetrics(context.Context, pmetric.Metrics) error {
	return consumererror.NewPermanent(errors.New("never"))
}

func TestWindow_SlowPipeline(t *testing.T) {
	e := newExact()
	e.say(func() error { time.Sleep(50 * time.Millisecond); return nil })
	r, url := serve(t, e, nil, nil)
	var group sync.WaitGroup
	for i := range 3 * decodeSlots {
		m := stream(t, sessionID(i), joined(jobStart(sessionID(i)), hosts(sessionID(i), 1)))
		group.Go(func() {
			a, err := try(t.Context(), http.DefaultClient, url, m)
			assert.NoError(t, err)
			assert.Equal(t, http.StatusOK, a.status, a.text)
		})
	}
	group.Wait()
	r.stop()
}

func TestIntake_Overloaded(t *testing.T) {
	e := newExact()
	e.say(func() error { return errors.New("full") })
	r, url := serve(t, e, nil, nil)
	done := make(chan int, maxRefused)
	for i := range maxRefused {
		id := fmt.Sprintf("%08d-2222-4333-8444-555555555555", i)
		m := stream(t, id, joined(jobStart(id), hosts(id, 1)))
		go func() {
			a, err := try(context.Background(), http.DefaultClient, url, m)
			assert.NoError(t, err)
			done <- a.status
		}()
	}
	for range maxRefused {
		assert.Equal(t, http.StatusServiceUnavailable, <-done)
	}
	a := send(t, url, stream(t, testSession, joined(jobStart(testSession))))
	assert.Equal(t, http.StatusServiceUnavailable, a.status)
	assert.NotEmpty(t, a.header.Get("Retry-After"))
	assert.Contains(t, a.Error, "does not accept data", "answered immediately, without an attempt")
	e.say(nil)
	eventually(t, "what was decoded", func() bool { return e.count("point ", "system.cpu.utilization") == maxRefused })
	assert.Equal(t, http.StatusOK, send(t, url, stream(t, testSession, joined(jobStart(testSession)))).status)
	r.stop()
}

func TestRestart_KeepsData(t *testing.T) {
	mem := &memory{m: map[string][]byte{}}
	e := newExact()
	r, url := serve(t, e, mem, nil)
	device := stream(t, testSession, joined(jobStart(testSession), copies(testSession, 1, 5), shutdownLine(testSession)))
	a := send(t, url, device)
	require.Equal(t, http.StatusOK, a.status, a.text)
	require.Zero(t, e.count("span "), "the copies wait for the scope channel")
	r.stop()

	e2 := newExact()
	r, url = serve(t, e2, mem, nil)
	a = send(t, url, device)
	require.Equal(t, http.StatusOK, a.status, a.text)
	assert.EqualValues(t, 3, a.Accepted)
	scope := fmt.Sprintf(`{"version":1,"type":"dictionary_update","session_id":"%s","scope_name_dict":{"1":"epoch"}}
{"version":3,"type":"scope_event_batch","session_id":"%s","batch_id":1,"base_time_ns":%d,"columns":["dt_ns","scope_instance_id","name_id","event_type","depth"],"rows":[[0,1,1,0,0],[9000000,1,1,1,0]]}`, testSession, testSession, startNs)
	require.Equal(t, http.StatusOK, send(t, url, stream(t, testSession, joined(jobStart(testSession), scope, shutdownLine(testSession)))).status)
	assert.Equal(t, 5, e2.count("span ", `"cuda.operation":"memcpy"`, `"cuda.scope.name":"epoch"`))
	require.Equal(t, http.StatusOK, send(t, url, completed(testSession)).status)
	assert.Equal(t, 1, e2.count("span ", `"cuda.operation":"session"}`))
	for _, again := range []message{device, completed(testSession)} { // after the session's end
		assert.Equal(t, http.StatusOK, send(t, url, again).status)
	}
	assert.EqualValues(t, 1, r.sum("otelcol_receiver_gpuflog_http_windows", "new"))
	assert.EqualValues(t, 2, r.sum("otelcol_receiver_gpuflog_http_windows", "repeated"))
	r.stop()
	assert.Zero(t, e.count("span "))
	assert.Empty(t, e2.twice())
}

func TestStorage_Fails(t *testing.T) {
	mem := &memory{m: map[string][]byte{}, fail: errors.New("disk full")}
	r, url := serve(t, newExact(), mem, nil)
	m := stream(t, testSession, joined(jobStart(testSession), hosts(testSession, 1)))
	a := send(t, url, m)
	assert.Equal(t, http.StatusServiceUnavailable, a.status)
	assert.Contains(t, a.Error, "could not be stored")
	mem.mu.Lock()
	mem.fail = nil
	mem.mu.Unlock()
	assert.Equal(t, http.StatusOK, send(t, url, m).status)
	assert.Positive(t, r.sum("otelcol_receiver_gpuflog_checkpoint_errors", ""))
	r.stop()
}

func TestSessions_Bound(t *testing.T) {
	mem := &memory{m: map[string][]byte{}}
	e := newExact()
	r, url := serve(t, e, mem, func(c *Config) { c.Protocols.HTTP.Get().MaxSessions = 3 })
	id := func(i int) string { return strconv.Itoa(10000000+i) + "-2222-4333-8444-555555555555" }
	for i := range 10 {
		require.Equal(t, http.StatusOK, send(t, url, stream(t, id(i), joined(jobStart(id(i)), copies(id(i), 1, 2)))).status)
	}
	eventually(t, "the sessions that had to go", func() bool { return e.count("span ", `"cuda.operation":"memcpy"`) >= 14 })
	assert.EqualValues(t, 7, r.sum("otelcol_receiver_gpuflog_http_sessions_evicted", ""))
	a := send(t, url, stream(t, id(0), joined(jobStart(id(0)), copies(id(0), 1, 2))))
	assert.Equal(t, http.StatusOK, a.status)
	assert.EqualValues(t, 1, r.sum("otelcol_receiver_gpuflog_http_windows", "repeated"), "its windows are still known")
	r.stop()
	r, url = serve(t, e, mem, func(c *Config) { c.Protocols.HTTP.Get().MaxSessions = 3 })
	assert.Equal(t, http.StatusOK, send(t, url, stream(t, id(1), joined(jobStart(id(1)), copies(id(1), 1, 2)))).status)
	assert.EqualValues(t, 1, r.sum("otelcol_receiver_gpuflog_http_windows", "repeated"), "and after a restart")
	r.stop()
}

func TestBodies_Interrupted(t *testing.T) {
	e := newExact()
	r, url := serve(t, e, nil, nil)
	m := stream(t, testSession, joined(jobStart(testSession), hosts(testSession, 1)))
	raw := "POST /api/v1/events/stream HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nX-GpuFlight-Session-Id: " + testSession +
		"\r\nContent-Length: " + strconv.Itoa(len(m.body)) + "\r\n\r\n" + string(m.body[:len(m.body)/2])
	dial(t, url, raw)
	eventually(t, "the answer", func() bool { return r.sum("otelcol_receiver_gpuflog_http_requests", "400") == 1 })
	assert.Empty(t, e.all())
	assert.EqualValues(t, 2, send(t, url, m).Accepted)
	r.stop()
}

// dial sends bytes and closes the connection.
func dial(t *testing.T, url, raw string) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	_, err = conn.Write([]byte(raw))
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}
