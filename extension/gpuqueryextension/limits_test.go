// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configauth"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

// blocked is a store whose list of sessions ends with the context of the call.
type blocked struct {
	store.Backend
	started chan struct{}
}

func (b blocked) Sessions(ctx context.Context, _ store.SessionQuery) ([]store.SessionInfo, error) {
	b.started <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestServer_TooManyRequests(t *testing.T) {
	b := blocked{storetest.NewMemory(), make(chan struct{}, 2*(maxConcurrent+maxQueued))}
	s := newServer(b, options{logger: zap.NewNop()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, maxConcurrent+maxQueued)
	for range maxConcurrent + maxQueued {
		go func() {
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/sessions", http.NoBody))
			done <- w.Code
		}()
	}
	for range maxConcurrent {
		<-b.started
	}
	require.Eventually(t, func() bool { return s.queued.Load() == maxQueued }, time.Minute, time.Millisecond)
	w := call(s, http.MethodGet, "/api/v1/sessions")
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.Equal(t, "1", w.Header().Get("Retry-After"))
	assert.Empty(t, b.started, "queued requests do not reach the store")
	cancel() // It reaches the store, or the calls would not end.
	for range maxConcurrent + maxQueued {
		<-done
	}
	assert.Empty(t, s.running)
	assert.Zero(t, s.queued.Load())
}

// turns lets some reads pass. The next one calls reached and waits for the end of its context.
type turns struct {
	store.Backend
	left    atomic.Int64
	reached context.CancelFunc
	bounded atomic.Bool
}

func read[Q, A any](ctx context.Context, b *turns, f func(context.Context, Q) (A, error), q Q) (answer A, err error) {
	if b.left.Add(-1) >= 0 {
		return f(ctx, q)
	}
	_, bounded := ctx.Deadline()
	b.bounded.Store(bounded)
	b.reached()
	<-ctx.Done()
	return answer, ctx.Err()
}

// of makes a read of a session one with a single parameter.
func of[A any](f func(context.Context, string, string) (A, error), project string) func(context.Context, string) (A, error) {
	return func(ctx context.Context, session string) (A, error) { return f(ctx, project, session) }
}

func (b *turns) Sessions(ctx context.Context, q store.SessionQuery) ([]store.SessionInfo, error) {
	return read(ctx, b, b.Backend.Sessions, q)
}

func (b *turns) Session(ctx context.Context, project, session string) (store.SessionInfo, error) {
	return read(ctx, b, of(b.Backend.Session, project), session)
}

func (b *turns) Lanes(ctx context.Context, project, session string) ([]store.LaneInfo, error) {
	return read(ctx, b, of(b.Backend.Lanes, project), session)
}

func (b *turns) Scopes(ctx context.Context, project, session string) ([]store.ScopeNode, error) {
	return read(ctx, b, of(b.Backend.Scopes, project), session)
}

func (b *turns) Shapes(ctx context.Context, project, session string, ids []uint32) (map[uint32]*store.Shape, error) {
	return read(ctx, b, func(ctx context.Context, ids []uint32) (map[uint32]*store.Shape, error) {
		return b.Backend.Shapes(ctx, project, session, ids)
	}, ids)
}

func (b *turns) Span(ctx context.Context, project, session string, id store.SpanID, at int64) (op *store.OpRow, span *store.SpanRow, err error) {
	op, err = read(ctx, b, func(ctx context.Context, id store.SpanID) (op *store.OpRow, err error) {
		op, span, err = b.Backend.Span(ctx, project, session, id, at)
		return op, err
	}, id)
	return op, span, err
}

func (b *turns) Trace(ctx context.Context, project string, trace store.TraceID) ([]store.TraceRef, error) {
	return read(ctx, b, func(ctx context.Context, trace store.TraceID) ([]store.TraceRef, error) {
		return b.Backend.Trace(ctx, project, trace)
	}, trace)
}

func (b *turns) Timeline(ctx context.Context, q store.TimelineQuery) (store.Timeline, error) {
	return read(ctx, b, b.Backend.Timeline, q)
}

func (b *turns) Ops(ctx context.Context, q store.OpQuery) (store.OpPage, error) {
	return read(ctx, b, b.Backend.Ops, q)
}

func (b *turns) Kernels(ctx context.Context, q store.KernelQuery) ([]store.KernelStat, error) {
	return read(ctx, b, b.Backend.Kernels, q)
}

func (b *turns) Instances(ctx context.Context, q store.InstanceQuery) ([]store.Instance, error) {
	return read(ctx, b, b.Backend.Instances, q)
}

func (b *turns) Spans(ctx context.Context, q store.SpanQuery) ([]store.SpanRow, error) {
	return read(ctx, b, b.Backend.Spans, q)
}

func (b *turns) Gaps(ctx context.Context, q store.GapQuery) (store.Gaps, error) {
	return read(ctx, b, b.Backend.Gaps, q)
}

func (b *turns) Busy(ctx context.Context, q store.BusyQuery) ([]int64, error) {
	return read(ctx, b, b.Backend.Busy, q)
}

func (b *turns) Samples(ctx context.Context, q store.SampleQuery) ([]store.SampleSum, error) {
	return read(ctx, b, b.Backend.Samples, q)
}

func (b *turns) Stacks(ctx context.Context, q store.StackQuery) ([]store.StackSum, error) {
	return read(ctx, b, b.Backend.Stacks, q)
}

func (b *turns) Logs(ctx context.Context, q store.LogQuery) ([]store.LogRow, error) {
	return read(ctx, b, b.Backend.Logs, q)
}

func (b *turns) Series(ctx context.Context, q store.SeriesQuery) ([]store.SeriesInfo, error) {
	return read(ctx, b, b.Backend.Series, q)
}

func (b *turns) Points(ctx context.Context, q store.PointQuery) ([]store.PointRow, error) {
	return read(ctx, b, b.Backend.Points, q)
}

func (b *turns) Baselines(ctx context.Context, project string) ([]store.Baseline, error) {
	return read(ctx, b, b.Backend.Baselines, project)
}

// TestServer_EveryRouteEnds cancels each request at each of its reads.
func TestServer_EveryRouteEnds(t *testing.T) {
	m := storetest.NewMemory()
	id := loadRecording(t, m, "vectoradd")
	whole := newServer(m, options{logger: zap.NewNop()})
	first := func(list string) map[string]any {
		page := get[map[string]any](t, whole, "/api/v1/sessions/"+id+"/"+list)
		for _, rows := range page {
			if rows, ok := rows.([]any); ok && len(rows) > 0 {
				return rows[0].(map[string]any)
			}
		}
		require.Fail(t, "no rows", list)
		return nil
	}
	span, series := first("spans"), first("series")
	values := strings.NewReplacer("{session}", id, "{span}", span["span"].(string), "{trace}", span["trace"].(string), "{path}", "1",
		"{service}", "vectoradd", "{key}", series["key"].(string))
	query := map[string]string{
		"/api/v1/sessions/{session}/shapes": "?ids=1", "/api/v1/sessions/{session}/analysis/critical": "?span=" + span["span"].(string),
		"/api/v1/ranks": "?sessions=" + id, "/api/v1/compare": "?a=" + id + "&b=" + id,
		"/api/v3/operations": "?service=vectoradd", "/api/v3/traces": "?query.service_name=vectoradd&query.start_time_min=2026-01-01T00:00:00Z&query.start_time_max=2027-01-01T00:00:00Z",
		"/api/v3/trace-summaries": "?query.service_name=vectoradd&query.start_time_min=2026-01-01T00:00:00Z&query.start_time_max=2027-01-01T00:00:00Z",
		"/api/traces":             "?service=vectoradd",
	}
	paths := []string{"/api/v3/services", "/api/v3/operations", "/api/v3/traces", "/api/v3/traces/{trace}", "/api/v3/trace-summaries",
		"/api/services", "/api/services/{service}/operations", "/api/traces", "/api/traces/{trace}"}
	for _, route := range patterns(t) {
		if route[0] == http.MethodGet && route[1] != loginPath && !strings.HasSuffix(route[1], "/export") { // TestExport has exports
			paths = append(paths, route[1])
		}
	}
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			for n := 0; ; n++ {
				ctx, cancel := context.WithCancel(t.Context())
				b := &turns{Backend: m, reached: cancel}
				b.left.Store(int64(n))
				s := newServer(b, options{logger: zap.NewNop()})
				w := httptest.NewRecorder()
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, values.Replace(path)+query[path], http.NoBody)
				r.Host = "localhost"
				s.ServeHTTP(w, r)
				ended := ctx.Err() != nil
				cancel()
				if !ended {
					if !strings.HasSuffix(path, "/texts/{key}") { // the recording has none
						assert.Equal(t, http.StatusOK, w.Code, w.Body)
					}
					assert.Positive(t, n, "the route reads from the store")
					return
				}
				assert.True(t, b.bounded.Load(), "read %d has a deadline", n)
				assert.Zero(t, w.Body.Len(), "read %d: %.200s", n, w.Body)
				assert.Empty(t, s.running)
			}
		})
	}
}

// broken is a store whose list of sessions fails. It reports the deadlines of the calls.
type broken struct {
	store.Backend
	err       error
	deadlines chan time.Time
}

func (f broken) Sessions(ctx context.Context, _ store.SessionQuery) ([]store.SessionInfo, error) {
	deadline, _ := ctx.Deadline()
	f.deadlines <- deadline
	return nil, f.err
}

func TestServer_QueryTime(t *testing.T) {
	f := broken{storetest.NewMemory(), context.DeadlineExceeded, make(chan time.Time, 1)}
	begin := time.Now()
	w := call(newServer(f, options{loopback: true, logger: zap.NewNop()}), http.MethodGet, "/api/v1/sessions")
	deadline := <-f.deadlines
	assert.WithinRange(t, deadline, begin.Add(maxQueryTime), time.Now().Add(maxQueryTime))
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.JSONEq(t, `{"error":"the query did not finish within 30 s"}`, w.Body.String())
}

func TestServer_StoreRetry(t *testing.T) {
	f := broken{storetest.NewMemory(), fmt.Errorf("%w: the disk is full", store.ErrRetry), make(chan time.Time, 1)}
	w := call(newServer(f, options{loopback: true, logger: zap.NewNop()}), http.MethodGet, "/api/v1/sessions")
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Equal(t, "1", w.Header().Get("Retry-After"))
	assert.JSONEq(t, `{"error":"temporarily unavailable: the disk is full"}`, w.Body.String())
}

func TestServer_LargeBody(t *testing.T) {
	s, id := generated(t)
	r := httptest.NewRequest(http.MethodPut, "/api/v1/sessions/"+id+"/pin", strings.NewReader(strings.Repeat("x", maxBody+1)))
	r.Host = "localhost"
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	assert.Equal(t, http.StatusRequestEntityTooLarge, w.Code)
}

// authenticator accepts one token and says which project it belongs to.
type authenticator struct{ component.Component }

type identity struct{ project string }

func (i identity) GetAttribute(name string) any {
	if name == "project" {
		return i.project
	}
	return nil
}

func (identity) GetAttributeNames() []string { return []string{"project"} }

func (authenticator) Authenticate(ctx context.Context, headers map[string][]string) (context.Context, error) {
	if h := headers["Authorization"]; len(h) != 1 || h[0] != "Bearer right" {
		return ctx, errors.New("wrong token")
	}
	return client.NewContext(ctx, client.Info{Auth: identity{"project-1"}}), nil
}

func TestServer_Authentication(t *testing.T) {
	m := storetest.NewMemory()
	_, err := m.Write(t.Context(), []*store.Batch{
		{Session: "a", Spans: []store.Span{{StartNs: 1, EndNs: 2, Span: 1}}},
		{Session: "b", Project: "project-1", Spans: []store.Span{{StartNs: 1, EndNs: 2, Span: 1}}},
	})
	require.NoError(t, err)
	s := newServer(m, options{auth: authenticator{}, logger: zap.NewNop()})
	assert.Equal(t, http.StatusUnauthorized, call(s, http.MethodGet, "/api/v1/sessions").Code)
	assert.Equal(t, http.StatusUnauthorized, call(s, http.MethodDelete, "/api/v1/sessions/b", "Authorization", "Bearer wrong").Code)
	assert.Equal(t, http.StatusOK, call(s, http.MethodGet, "/").Code, "the UI loads without a key")
	w := call(s, http.MethodGet, "/api/v1/sessions", "Authorization", "Bearer right")
	require.Equal(t, http.StatusOK, w.Code)
	assert.Contains(t, w.Body.String(), `"id":"b"`)
	assert.NotContains(t, w.Body.String(), `"id":"a"`)
	assert.Equal(t, http.StatusNotFound, call(s, http.MethodGet, "/api/v1/sessions/a", "Authorization", "Bearer right").Code)
}

func TestConfig_Endpoint(t *testing.T) {
	for _, tt := range []struct {
		endpoint string
		auth     bool
		want     string
	}{
		{endpoint: "127.0.0.1:8686"}, {endpoint: "localhost:0"}, {endpoint: "[::1]:1"},
		{endpoint: "0.0.0.0:8686", want: "endpoint 0.0.0.0:8686 is reachable from other machines: set auth, or use 127.0.0.1"},
		{endpoint: ":8686", want: "endpoint :8686 is reachable from other machines: set auth, or use 127.0.0.1"},
		{endpoint: "example.com:8686", want: "endpoint example.com:8686 is reachable from other machines: set auth, or use 127.0.0.1"},
		{endpoint: "0.0.0.0:8686", auth: true},
		{endpoint: "8686", want: "endpoint: address 8686: missing port in address"},
	} {
		t.Run(tt.endpoint, func(t *testing.T) {
			cfg := &Config{Endpoint: tt.endpoint}
			if tt.auth {
				cfg.Auth = configoptional.Some(configauth.Config{AuthenticatorID: component.MustNewID("x")})
			}
			if tt.want == "" {
				require.NoError(t, cfg.Validate())
				return
			}
			require.EqualError(t, cfg.Validate(), tt.want)
		})
	}
}

type extensions map[component.ID]component.Component

func (e extensions) GetExtensions() map[component.ID]component.Component { return e }

func TestExtension_WithoutStore(t *testing.T) {
	f := NewFactory()
	ext, err := f.Create(t.Context(), extensiontest.NewNopSettings(f.Type()), f.CreateDefaultConfig())
	require.NoError(t, err)
	require.EqualError(t, ext.Start(t.Context(), extensions{}), "no store is configured: add gpu_storage to extensions and to service::extensions")
	require.NoError(t, ext.Shutdown(t.Context()))
}

// opener is an extension with one store.
type opener struct {
	component.Component
	backend store.Backend
}

func (o opener) Backend(string) (store.Backend, error) { return o.backend, nil }

func TestExtension_ShutdownEndsQueries(t *testing.T) {
	b := blocked{storetest.NewMemory(), make(chan struct{}, 1)}
	f := NewFactory()
	cfg := f.CreateDefaultConfig().(*Config)
	cfg.Endpoint = "127.0.0.1:0"
	ext, err := f.Create(t.Context(), extensiontest.NewNopSettings(f.Type()), cfg)
	require.NoError(t, err)
	require.NoError(t, ext.Start(t.Context(), extensions{component.MustNewID("gpu_storage"): opener{backend: b}}))
	conn, err := net.Dial("tcp", ext.(*gpuQuery).address)
	require.NoError(t, err)
	_, err = conn.Write([]byte("GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
	require.NoError(t, err)
	<-b.started
	require.NoError(t, ext.Shutdown(t.Context()))
	_, _ = io.Copy(io.Discard, conn)
	require.NoError(t, conn.Close())
}

func FuzzParameters(f *testing.F) {
	s, id := generated(f)
	p := "/sessions/" + id
	for _, target := range []string{p + "/timeline?bins=1&lanes=1,2", p + "/operations?sort=queue&cursor=1.2.3", p + "/spans/0000000000000001?at=-5", p + "/logs?cursor=1.00"} {
		f.Add(target)
	}
	for _, view := range []string{"", "/shapes?ids=1", "/kernels?group=path&path=1", "/gaps?from=1&to=2", "/functions", "/samples?by=line,pc", "/series?source=system", "/texts/a", "/export?format=chrome&from=1&to=2", "/export?format=perfetto&base=5", "/export?format=parquet&table=logs", "/export?format=pprof&to=9"} {
		f.Add(p + view)
	}
	for _, jaeger := range []string{"/v3/traces?query.service_name=a&query.num_traces=1", "/v3/traces/01", "/v3/operations?service=a", "/v3/trace-summaries", "/traces?service=a&tags={}", "/services/a/operations"} {
		f.Add(".." + jaeger)
	}
	f.Fuzz(func(t *testing.T, target string) {
		base := "http://localhost/api/v1"
		if rest, ok := strings.CutPrefix(target, ".."); ok { // the routes of Jaeger
			base, target = "http://localhost/api", rest
		}
		r, err := http.NewRequest(http.MethodGet, base+target, http.NoBody)
		if err != nil || !strings.HasPrefix(r.URL.Path, "/api/") {
			return
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code >= 500 && w.Code != http.StatusNotImplemented { // the store in memory writes no Parquet
			t.Errorf("%q: %d %s", target, w.Code, w.Body)
		}
	})
}

// FuzzBodies sends bodies to the paths that decode them.
func FuzzBodies(f *testing.F) {
	s := newServer(storetest.NewMemory(), options{auth: authenticator{}, loopback: true, allowSQL: true, logger: zap.NewNop()})
	for _, body := range []string{`{"session":"a","statement":"SELECT 1"}`, `{"key":"gpfl_x"}`, `{"key":"right"}`, `{} {}`, `{"key":`, `[]`, "\xff"} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for _, path := range []string{"/api/v1/login", "/api/v1/sql"} {
			r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
			r.Host = "localhost"
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Authorization", "Bearer right")
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			if w.Code >= 500 && w.Code != http.StatusNotImplemented { // the store in memory has no SQL
				t.Errorf("%s %q: %d %s", path, body, w.Code, w.Body)
			}
		}
	})
}
