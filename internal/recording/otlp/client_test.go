// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// spans returns n spans in two resources, numbered from first.
func spans(first, n int) ptrace.Traces {
	td := ptrace.NewTraces()
	for r := range 2 {
		rs := td.ResourceSpans().AppendEmpty()
		rs.Resource().Attributes().PutStr("service.name", fmt.Sprint("service ", r))
		ss := rs.ScopeSpans().AppendEmpty()
		ss.Scope().SetName("scope")
		for i := r; i < n; i += 2 {
			s := ss.Spans().AppendEmpty()
			id := first + i
			s.SetName(fmt.Sprint("kernel ", id))
			s.SetTraceID([16]byte{1, byte(id >> 16), byte(id >> 8), byte(id)})
			s.SetSpanID([8]byte{2, byte(id >> 16), byte(id >> 8), byte(id)})
		}
	}
	return td
}

func logRecords(n int) plog.Logs {
	ld := plog.NewLogs()
	sl := ld.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty()
	for i := range n {
		sl.LogRecords().AppendEmpty().Body().SetStr(fmt.Sprint("record ", i))
	}
	return ld
}

func points(n int) pmetric.Metrics {
	md := pmetric.NewMetrics()
	sm := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty()
	for i := range n {
		x := sm.Metrics().AppendEmpty()
		x.SetName(fmt.Sprint("metric.", i))
		x.SetEmptyGauge().DataPoints().AppendEmpty().SetIntValue(int64(i))
	}
	return md
}

func testSettings(t *testing.T, pairs ...string) Settings {
	t.Helper()
	s, err := FromEnv(env(pairs...))
	require.NoError(t, err)
	return s
}

func start(t *testing.T, s Settings, logger *slog.Logger) *Client {
	t.Helper()
	c, err := New(s, logger)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Shutdown(ctx)
	})
	return c
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func sink(t *testing.T, addr string) (*testsink.Store, *testsink.Server) {
	t.Helper()
	store := testsink.NewStore()
	server, err := testsink.Listen(store, addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	return store, server
}

func TestGRPC_EverySignal(t *testing.T) {
	store, server := sink(t, "")
	c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT", server.Endpoint(),
		"OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"), nil)
	require.NoError(t, c.Check(within(t, time.Minute)))
	for i := range 10 {
		c.Traces(spans(100*i, 100))
	}
	c.Logs(logRecords(7))
	c.Metrics(points(5))
	require.NoError(t, c.Shutdown(within(t, time.Minute)))
	stats := c.Stats()
	assert.Equal(t, uint64(1000), stats[Traces].Sent)
	assert.Equal(t, uint64(7), stats[Logs].Sent)
	assert.Equal(t, uint64(5), stats[Metrics].Sent)
	assert.Len(t, store.Spans(), 1000)
	for _, s := range store.Spans() {
		assert.Equal(t, 1, s.Count)
	}
	c.Traces(spans(0, 3))
	assert.Equal(t, map[string]uint64{ReasonShutdown: 3}, c.Stats()[Traces].Unsent, "after Shutdown it is counted")
}

// receiver is an OTLP/HTTP server with scripted answers.
type receiver struct {
	*httptest.Server
	mu      sync.Mutex
	answers []func(http.ResponseWriter) // used in order; then success
	spans   map[string]int
	sizes   []int
	headers []http.Header
}

func listenHTTP(t *testing.T) *receiver {
	r := &receiver{spans: map[string]int{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	if q.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(body))
		if err == nil {
			body, err = io.ReadAll(z)
		}
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.headers = append(r.headers, q.Header)
	if len(r.answers) > 0 {
		answer := r.answers[0]
		r.answers = r.answers[1:]
		if answer != nil {
			answer(w)
			return
		}
	}
	if q.URL.Path == "/v1/traces" {
		req := ptraceotlp.NewExportRequest()
		if req.UnmarshalProto(body) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		r.sizes = append(r.sizes, len(body))
		for _, rs := range req.Traces().ResourceSpans().All() {
			for _, ss := range rs.ScopeSpans().All() {
				for _, s := range ss.Spans().All() {
					v, _ := rs.Resource().Attributes().Get("service.name")
					r.spans[v.Str()+"/"+ss.Scope().Name()+"/"+s.Name()]++
				}
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func answerWith(code int, headers ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(code)
	}
}

func TestHTTP_HeadersAndGzip(t *testing.T) {
	r := listenHTTP(t)
	c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", r.URL, "OTEL_EXPORTER_OTLP_COMPRESSION", "gzip",
		"OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret"), nil)
	c.Traces(spans(0, 500))
	c.Logs(logRecords(3))
	c.Metrics(points(3))
	require.NoError(t, c.Shutdown(within(t, time.Minute)))
	assert.Len(t, r.spans, 500)
	for _, h := range r.headers {
		assert.Equal(t, "Bearer s3cret", h.Get("Authorization"))
	}
}

func TestClient_LargeBatches(t *testing.T) {
	r := listenHTTP(t)
	s := testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", r.URL)
	s.RequestBytes = 20_000
	c := start(t, s, nil)
	c.Traces(spans(0, 5001))
	c.Traces(spans(5001, 1))
	require.NoError(t, c.Shutdown(within(t, time.Minute)))
	assert.Len(t, r.spans, 5002)
	for name, n := range r.spans {
		assert.Equal(t, 1, n, name)
	}
	assert.Greater(t, len(r.sizes), 5)
	for _, n := range r.sizes {
		assert.LessOrEqual(t, n, s.RequestBytes)
	}
}

func TestSplit_AllItems(t *testing.T) {
	for _, n := range []int{1, 2, 3, 17, 1000} {
		for _, limit := range []int{1, 300, 5000, 1 << 20} {
			for _, p := range []payload{traces{spans(0, n)}, logs{logRecords(n)}, metrics{points(n)}} {
				sum := 0
				for _, piece := range split(p, limit) {
					k := piece.items()
					assert.Positive(t, k)
					assert.True(t, piece.size() <= limit || k == 1, "%T of %d items: a piece of %d items and %d bytes, limit %d", p, n, k, piece.size(), limit)
					sum += k
				}
				assert.Equal(t, n, sum, "%T limit %d", p, limit)
			}
		}
	}
}

func TestSplit_SingleMetric(t *testing.T) {
	const n = 1001
	for name, fill := range map[string]func(pmetric.Metric, int){
		"gauge": func(m pmetric.Metric, i int) {
			if i == 0 {
				m.SetEmptyGauge()
			}
			m.Gauge().DataPoints().AppendEmpty().SetTimestamp(pcommon.Timestamp(i))
		},
		"sum": func(m pmetric.Metric, i int) {
			if i == 0 {
				m.SetEmptySum().SetIsMonotonic(true)
				m.Sum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			}
			m.Sum().DataPoints().AppendEmpty().SetTimestamp(pcommon.Timestamp(i))
		},
		"histogram": func(m pmetric.Metric, i int) {
			if i == 0 {
				m.SetEmptyHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityDelta)
			}
			m.Histogram().DataPoints().AppendEmpty().SetTimestamp(pcommon.Timestamp(i))
		},
		"exponential histogram": func(m pmetric.Metric, i int) {
			if i == 0 {
				m.SetEmptyExponentialHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityDelta)
			}
			m.ExponentialHistogram().DataPoints().AppendEmpty().SetTimestamp(pcommon.Timestamp(i))
		},
		"summary": func(m pmetric.Metric, i int) {
			if i == 0 {
				m.SetEmptySummary()
			}
			m.Summary().DataPoints().AppendEmpty().SetTimestamp(pcommon.Timestamp(i))
		},
	} {
		t.Run(name, func(t *testing.T) {
			md := pmetric.NewMetrics()
			rm := md.ResourceMetrics().AppendEmpty()
			rm.Resource().Attributes().PutStr("service.name", "s")
			sm := rm.ScopeMetrics().AppendEmpty()
			sm.Scope().SetName("scope")
			m := sm.Metrics().AppendEmpty()
			m.SetName("metric")
			m.SetUnit("s")
			for i := range n {
				fill(m, i)
			}
			whole := pmetric.NewMetrics()
			md.CopyTo(whole)
			pieces := split(metrics{md}, 2000)
			assert.Greater(t, len(pieces), 2)
			// The pieces together equal the original.
			together := pmetric.NewMetrics()
			for i, p := range pieces {
				assert.LessOrEqual(t, p.size(), 2000)
				if i == 0 {
					p.(metrics).CopyTo(together)
					continue
				}
				to := together.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0)
				from := p.(metrics).ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0)
				assert.Equal(t, "metric", from.Name())
				switch from.Type() {
				case pmetric.MetricTypeGauge:
					from.Gauge().DataPoints().MoveAndAppendTo(to.Gauge().DataPoints())
				case pmetric.MetricTypeSum:
					assert.True(t, from.Sum().IsMonotonic())
					assert.Equal(t, pmetric.AggregationTemporalityCumulative, from.Sum().AggregationTemporality())
					from.Sum().DataPoints().MoveAndAppendTo(to.Sum().DataPoints())
				case pmetric.MetricTypeHistogram:
					assert.Equal(t, pmetric.AggregationTemporalityDelta, from.Histogram().AggregationTemporality())
					from.Histogram().DataPoints().MoveAndAppendTo(to.Histogram().DataPoints())
				case pmetric.MetricTypeExponentialHistogram:
					assert.Equal(t, pmetric.AggregationTemporalityDelta, from.ExponentialHistogram().AggregationTemporality())
					from.ExponentialHistogram().DataPoints().MoveAndAppendTo(to.ExponentialHistogram().DataPoints())
				case pmetric.MetricTypeSummary:
					from.Summary().DataPoints().MoveAndAppendTo(to.Summary().DataPoints())
				}
			}
			want, err := metrics{whole}.json()
			require.NoError(t, err)
			got, err := metrics{together}.json()
			require.NoError(t, err)
			assert.JSONEq(t, string(want), string(got))
		})
	}
}

func TestClient_RetryableStatus(t *testing.T) {
	r := listenHTTP(t)
	r.answers = []func(http.ResponseWriter){answerWith(503), answerWith(429, "Retry-After", "1"), answerWith(502)}
	c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", r.URL), nil)
	began := time.Now()
	c.Traces(spans(0, 10))
	require.NoError(t, c.Shutdown(within(t, time.Minute)))
	assert.Len(t, r.spans, 10)
	assert.GreaterOrEqual(t, time.Since(began), time.Second, "Retry-After is obeyed")
	assert.Contains(t, c.Stats()[Traces].LastError, "502")
}

func TestClient_PermanentStatus(t *testing.T) {
	r := listenHTTP(t)
	var log bytes.Buffer
	r.answers = []func(http.ResponseWriter){answerWith(401), answerWith(307, "Location", "http://127.0.0.1:1/")}
	c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", r.URL, "OTEL_EXPORTER_OTLP_HEADERS", "authorization=s3cret"),
		slog.New(slog.NewTextHandler(&log, nil)))
	for i := range 3 {
		c.Traces(spans(10*i, 10))
		want := uint64(10 * (i + 1))
		require.Eventually(t, func() bool { s := c.Stats()[Traces]; return s.Sent+s.UnsentTotal() == want }, time.Minute, time.Millisecond)
	}
	require.ErrorContains(t, c.Shutdown(within(t, time.Minute)), "20 spans were not sent")
	s := c.Stats()[Traces]
	assert.Equal(t, uint64(10), s.Sent)
	assert.Equal(t, map[string]uint64{ReasonRefused: 20}, s.Unsent)
	assert.Equal(t, 1, strings.Count(log.String(), "level=WARN"), "one warning for one change: %s", log.String())
	assert.Equal(t, 1, strings.Count(log.String(), "again"))
	assert.NotContains(t, log.String(), "s3cret")
}

func TestClient_PartialSuccess(t *testing.T) {
	r := listenHTTP(t)
	r.answers = []func(http.ResponseWriter){func(w http.ResponseWriter) {
		resp := ptraceotlp.NewExportResponse()
		resp.PartialSuccess().SetRejectedSpans(4)
		resp.PartialSuccess().SetErrorMessage("too old")
		b, _ := resp.MarshalProto()
		w.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = w.Write(b)
	}}
	c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", r.URL), nil)
	c.Traces(spans(0, 10))
	require.Error(t, c.Shutdown(within(t, time.Minute)))
	s := c.Stats()[Traces]
	assert.Equal(t, uint64(6), s.Sent)
	assert.Equal(t, map[string]uint64{ReasonRejected: 4}, s.Unsent)
	assert.Contains(t, s.LastError, "too old")
}

// nowhere returns an address on which no process listens.
func nowhere(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// listenAt starts a server of a protocol and returns a function that counts its spans.
func listenAt(t *testing.T, protocol Protocol, addr string) (count func() int) {
	t.Helper()
	if protocol == GRPC {
		store, _ := sink(t, addr)
		return func() int { return len(store.Spans()) }
	}
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	r := &receiver{spans: map[string]int{}}
	r.Server = &httptest.Server{Listener: l, Config: &http.Server{Handler: r}}
	r.Start()
	t.Cleanup(r.Close)
	return func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.spans)
	}
}

func TestClient_LateServer(t *testing.T) {
	for _, protocol := range []Protocol{GRPC, HTTP} {
		addr := nowhere(t)
		var log bytes.Buffer
		c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_PROTOCOL", string(protocol), "OTEL_EXPORTER_OTLP_ENDPOINT", addr),
			slog.New(slog.NewTextHandler(&log, nil)))
		require.Error(t, c.Check(within(t, time.Minute)))
		c.Traces(spans(0, 50))
		require.Eventually(t, func() bool { return c.Stats()[Traces].LastError != "" }, time.Minute, 10*time.Millisecond)
		count := listenAt(t, protocol, addr)
		require.Eventually(t, func() bool { return c.Stats()[Traces].Sent == 50 }, time.Minute, 10*time.Millisecond)
		assert.Equal(t, 50, count())
		require.NoError(t, c.Shutdown(within(t, time.Minute)))
		assert.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
		assert.Equal(t, 1, strings.Count(log.String(), "again"), log.String())
	}
}

func TestShutdown_FinalAttempt(t *testing.T) {
	for _, protocol := range []Protocol{GRPC, HTTP} {
		addr := nowhere(t)
		c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_PROTOCOL", string(protocol), "OTEL_EXPORTER_OTLP_ENDPOINT", addr), nil)
		c.Traces(spans(0, 50))
		require.Eventually(t, func() bool { return c.Stats()[Traces].LastError != "" }, time.Minute, time.Millisecond)
		count := listenAt(t, protocol, addr)
		require.NoError(t, c.Shutdown(within(t, time.Minute)), protocol)
		assert.Equal(t, 50, count())
	}
}

func TestShutdown_ConnectionRefused(t *testing.T) {
	for _, protocol := range []Protocol{GRPC, HTTP} {
		c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_PROTOCOL", string(protocol), "OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+nowhere(t)), nil)
		for i := range 5 {
			c.Traces(spans(10*i, 10))
		}
		ctx := within(t, time.Minute)
		require.ErrorContains(t, c.Shutdown(ctx), "50 spans were not sent")
		require.NoError(t, ctx.Err(), "%s: it does not wait as long as it may", protocol)
		assert.Equal(t, map[string]uint64{ReasonUnreachable: 50}, c.Stats()[Traces].Unsent, protocol)
	}
}

func TestShutdown_UntrustedServer(t *testing.T) {
	server := httptest.NewUnstartedServer(&receiver{spans: map[string]int{}})
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	for _, protocol := range []Protocol{GRPC, HTTP} {
		c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_PROTOCOL", string(protocol), "OTEL_EXPORTER_OTLP_ENDPOINT", server.URL), nil)
		c.Traces(spans(0, 10))
		// On a stalled machine the first handshake may time out instead.
		require.Eventually(t, func() bool { return strings.Contains(c.Stats()[Traces].LastError, "certificate") }, time.Minute, time.Millisecond)
		ctx := within(t, time.Minute)
		require.ErrorContains(t, c.Shutdown(ctx), "certificate")
		require.NoError(t, ctx.Err(), "%s: it does not wait as long as it may", protocol)
		assert.Equal(t, map[string]uint64{ReasonUnreachable: 10}, c.Stats()[Traces].Unsent, protocol)
	}
}

func TestShutdown_LateData(t *testing.T) {
	r := listenHTTP(t)
	for range 10 {
		r.answers = append(r.answers, answerWith(429, "Retry-After", "3600"))
	}
	c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", r.URL), nil)
	c.Traces(spans(0, 10))
	require.Eventually(t, func() bool { return c.Stats()[Traces].LastError != "" }, time.Minute, time.Millisecond)
	ctx := within(t, time.Minute)
	require.ErrorContains(t, c.Shutdown(ctx), "429")
	require.NoError(t, ctx.Err(), "it does not wait as long as it may")
	assert.Equal(t, map[string]uint64{ReasonUnreachable: 10}, c.Stats()[Traces].Unsent)
}

// scripted returns its errors in order and then accepts all requests. It records the time of each
// request.
type scripted struct {
	errs []error
	at   []time.Time
}

func (s *scripted) send(context.Context, payload) (int64, string, error) {
	s.at = append(s.at, time.Now())
	if len(s.errs) == 0 {
		return 0, "", nil
	}
	err := s.errs[0]
	s.errs = s.errs[1:]
	return 0, "", err
}

func (*scripted) reconnect(context.Context) {}
func (*scripted) close()                    {}

func TestClient_LongRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
		s.RetryFor = 300 * time.Millisecond
		c := start(t, s, nil)
		busy := &sendError{err: errors.New("503 Service Unavailable"), retry: true, after: time.Hour}
		server := &scripted{errs: []error{busy, busy}}
		c.queues[Traces].out = server
		began := time.Now()
		c.Traces(spans(0, 10))
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, map[string]uint64{ReasonUnreachable: 10}, c.Stats()[Traces].Unsent)
		assert.Equal(t, []time.Time{began, began.Add(s.RetryFor)}, server.at[:2], "tried once more at the end of its time")
		c.Traces(spans(10, 10))
		synctest.Wait()
		assert.EqualValues(t, 10, c.Stats()[Traces].Sent)
		assert.Len(t, server.at, 3)
		require.Error(t, c.Shutdown(t.Context()))
	})
}

func TestClient_ChangedDefaultTransport(t *testing.T) {
	r := listenHTTP(t)
	own := http.DefaultTransport
	t.Cleanup(func() { http.DefaultTransport = own })
	http.DefaultTransport = roundTripper(func(*http.Request) (*http.Response, error) { return nil, errors.New("the program's") })
	c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", r.URL), nil)
	c.Traces(spans(0, 10))
	require.NoError(t, c.Shutdown(within(t, time.Minute)))
	assert.Len(t, r.spans, 10)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestClient_WebPage(t *testing.T) {
	r := listenHTTP(t)
	r.answers = []func(http.ResponseWriter){answerWith(200, "Content-Type", "text/html; charset=utf-8")}
	c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", r.URL), nil)
	c.Traces(spans(0, 10))
	require.ErrorContains(t, c.Shutdown(within(t, time.Minute)), "web page")
	assert.Equal(t, map[string]uint64{ReasonRefused: 10}, c.Stats()[Traces].Unsent)
}

func TestClient_LogRate(t *testing.T) {
	r := listenHTTP(t)
	for range 20 {
		r.answers = append(r.answers, answerWith(400), nil)
	}
	var log bytes.Buffer
	c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", r.URL), slog.New(slog.NewTextHandler(&log, nil)))
	for i := range 40 {
		c.Traces(spans(10*i, 10))
		want := uint64(10 * (i + 1))
		require.Eventually(t, func() bool { s := c.Stats()[Traces]; return s.Sent+s.UnsentTotal() == want }, time.Minute, time.Millisecond)
	}
	require.ErrorContains(t, c.Shutdown(within(t, time.Minute)), "200 spans were not sent")
	assert.Equal(t, 2, strings.Count(log.String(), "\n"), log.String())
}

// answering is a gRPC service for spans that stores the headers of requests.
type answering struct {
	ptraceotlp.UnimplementedGRPCServer
	mu      sync.Mutex
	headers []metadata.MD
	answer  func() (ptraceotlp.ExportResponse, error)
}

func (a *answering) Export(ctx context.Context, _ ptraceotlp.ExportRequest) (ptraceotlp.ExportResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.headers = append(a.headers, md)
	return a.answer()
}

func TestGRPC_HeadersAndPartialSuccess(t *testing.T) {
	a := &answering{answer: func() (ptraceotlp.ExportResponse, error) {
		resp := ptraceotlp.NewExportResponse()
		resp.PartialSuccess().SetRejectedSpans(4)
		resp.PartialSuccess().SetErrorMessage("too old")
		return resp, nil
	}}
	server := grpc.NewServer()
	ptraceotlp.RegisterGRPCServer(server, a)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go server.Serve(l) //nolint:errcheck // ends with Stop
	t.Cleanup(server.Stop)
	c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String(),
		"OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20s3cret"), nil)
	c.Traces(spans(0, 10))
	require.ErrorContains(t, c.Shutdown(within(t, time.Minute)), "too old")
	assert.Equal(t, uint64(6), c.Stats()[Traces].Sent)
	assert.Equal(t, map[string]uint64{ReasonRejected: 4}, c.Stats()[Traces].Unsent)
	require.Len(t, a.headers, 1)
	assert.Equal(t, []string{"Bearer s3cret"}, a.headers[0].Get("authorization"))
	assert.Contains(t, a.headers[0].Get("user-agent")[0], userAgent)
}

func TestGRPC_StatusCodes(t *testing.T) {
	for mode, again := range map[testsink.Mode]bool{testsink.Unavailable: true, testsink.Exhausted: true, testsink.Invalid: false} {
		t.Run(mode.String(), func(t *testing.T) {
			store, server := sink(t, "")
			server.SetMode(mode)
			c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT", server.Endpoint()), nil)
			c.Traces(spans(0, 10))
			require.Eventually(t, func() bool { return c.Stats()[Traces].LastError != "" }, time.Minute, time.Millisecond)
			server.SetMode(testsink.Accept)
			err := c.Shutdown(within(t, time.Minute))
			if again {
				require.NoError(t, err)
				assert.Len(t, store.Spans(), 10)
				return
			}
			require.ErrorContains(t, err, "InvalidArgument")
			assert.Equal(t, map[string]uint64{ReasonRefused: 10}, c.Stats()[Traces].Unsent)
			assert.Empty(t, store.Spans())
		})
	}
}

func TestGRPCPort(t *testing.T) {
	for endpoint, want := range map[string]string{
		"http://host": "dns:///host:4317", "https://host": "dns:///host:443", "https://host:4317": "dns:///host:4317",
		"http://[::1]": "dns:///[::1]:4317", "https://host/path": "dns:///host:443",
	} {
		c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT", endpoint), nil)
		assert.Equal(t, want, c.queues[Traces].out.(*grpcTransport).conn.Target(), endpoint)
	}
}

func TestCheck_Timeout(t *testing.T) {
	_, server := sink(t, "")
	server.SetMode(testsink.Hang)
	c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT", server.Endpoint(), "OTEL_EXPORTER_OTLP_TIMEOUT", "100"), nil)
	ctx := within(t, time.Minute)
	err := c.Check(ctx)
	require.NoError(t, ctx.Err(), "the timeout is that of the settings")
	for _, signal := range []string{"traces", "logs", "metrics"} {
		assert.ErrorContains(t, err, signal+" to http://"+server.Endpoint())
	}
}

func TestShutdown_UnresponsiveServer(t *testing.T) {
	_, server := sink(t, "")
	server.SetMode(testsink.Hang)
	c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT", server.Endpoint()), nil)
	c.Traces(spans(0, 10))
	require.Eventually(t, func() bool { return server.Answers(testsink.Hang) > 0 }, time.Minute, time.Millisecond)
	c.Traces(spans(10, 20))
	require.Error(t, c.Shutdown(within(t, 200*time.Millisecond)))
	assert.Equal(t, map[string]uint64{ReasonShutdown: 30}, c.Stats()[Traces].Unsent)
}

func TestClient_FullQueue(t *testing.T) {
	_, server := sink(t, "")
	server.SetMode(testsink.Hang)
	s := testSettings(t, "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT", server.Endpoint())
	one := traces{spans(0, 100)}.size() + payloadBytes
	s.QueueBytes = 10*one + one/2
	var log bytes.Buffer
	c := start(t, s, slog.New(slog.NewTextHandler(&log, nil)))
	for i := range 100 {
		c.Traces(spans(100*i, 100))
	}
	l := c.queues[Traces]
	l.mu.Lock()
	assert.LessOrEqual(t, l.bytes, l.limit)
	l.mu.Unlock()
	full := c.Stats()[Traces].Unsent[ReasonQueueFull]
	assert.InDelta(t, 9000, float64(full), 100, "about ten of a hundred have room")
	c.Logs(logRecords(5)) // have a queue of their own
	server.SetMode(testsink.Accept)
	require.Error(t, c.Shutdown(within(t, time.Minute)))
	assert.Equal(t, 10_000-full, c.Stats()[Traces].Sent)
	assert.Equal(t, uint64(5), c.Stats()[Logs].Sent)
	assert.Equal(t, 1, strings.Count(log.String(), "newest telemetry is dropped"), log.String())
}

// TestClient_Backlog checks a Collector that answers slowly: several requests are in flight, and
// Backlog reports a queue that is half full, but not for an endpoint that accepts nothing.
func TestClient_Backlog(t *testing.T) {
	var inFlight, most atomic.Int64
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		n := inFlight.Add(1)
		defer inFlight.Add(-1)
		for {
			if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		<-release
	}))
	defer server.Close()
	s := testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	one := traces{spans(0, 100)}.size() + payloadBytes
	s.QueueBytes, s.RequestBytes = 10*one, one
	c := start(t, s, nil)
	for i := range 8 {
		c.Traces(spans(100*i, 100))
	}
	require.Eventually(t, func() bool { return inFlight.Load() == traceRequests }, time.Minute, time.Millisecond)
	assert.False(t, c.Backlog(), "nothing was accepted")
	release <- struct{}{}
	require.Eventually(t, c.Backlog, time.Minute, time.Millisecond, "7 of 10 wait")
	close(release)
	require.Eventually(t, func() bool { return !c.Backlog() }, time.Minute, time.Millisecond)
	require.NoError(t, c.Shutdown(within(t, time.Minute)))
	assert.Equal(t, uint64(800), c.Stats()[Traces].Sent)
	assert.Equal(t, int64(traceRequests), most.Load())
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	quiet := log.New(io.Discard, "", 0)
	server := httptest.NewUnstartedServer(&receiver{spans: map[string]int{}})
	server.Config.ErrorLog = quiet
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := filepath.Join(dir, "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))

	trusting := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", server.URL, "OTEL_EXPORTER_OTLP_CERTIFICATE", ca), nil)
	require.NoError(t, trusting.Check(within(t, time.Minute)))
	certificate, key := selfSigned(t)
	other := filepath.Join(dir, "other.pem")
	require.NoError(t, os.WriteFile(other, certificate, 0o600))
	doubting := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", server.URL, "OTEL_EXPORTER_OTLP_CERTIFICATE", other), nil)
	require.ErrorContains(t, doubting.Check(within(t, time.Minute)), "certificate")

	pairFile, keyFile := filepath.Join(dir, "client.pem"), filepath.Join(dir, "client-key.pem")
	require.NoError(t, os.WriteFile(pairFile, certificate, 0o600))
	require.NoError(t, os.WriteFile(keyFile, key, 0o600))
	mutual := httptest.NewUnstartedServer(&receiver{spans: map[string]int{}})
	clients := x509.NewCertPool()
	require.True(t, clients.AppendCertsFromPEM(certificate))
	mutual.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	mutual.Config.ErrorLog = quiet
	mutual.StartTLS()
	t.Cleanup(mutual.Close)
	known := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", mutual.URL, "OTEL_EXPORTER_OTLP_CERTIFICATE", ca,
		"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", pairFile, "OTEL_EXPORTER_OTLP_CLIENT_KEY", keyFile), nil)
	require.NoError(t, known.Check(within(t, time.Minute)))
	stranger := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", mutual.URL, "OTEL_EXPORTER_OTLP_CERTIFICATE", ca), nil)
	require.Error(t, stranger.Check(within(t, time.Minute)))

	_, err := New(testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", server.URL, "OTEL_EXPORTER_OTLP_CERTIFICATE", filepath.Join(dir, "none.pem")), nil)
	require.ErrorContains(t, err, "OTEL_EXPORTER_OTLP_CERTIFICATE")
}

// selfSigned returns a certificate and its key, as PEM.
func selfSigned(t *testing.T) (certificate, private []byte) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "other"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	assert.Equal(t, 7*time.Second, retryAfter("7", now))
	assert.Equal(t, 30*time.Second, retryAfter(now.Add(30*time.Second).Format(http.TimeFormat), now))
	assert.Zero(t, retryAfter(now.Add(-time.Hour).Format(http.TimeFormat), now))
	assert.Zero(t, retryAfter("soon", now))
	assert.Zero(t, retryAfter("", now))
}
