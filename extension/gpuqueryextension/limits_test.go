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
	f.Fuzz(func(t *testing.T, target string) {
		r, err := http.NewRequest(http.MethodGet, "http://localhost/api/v1"+target, http.NoBody)
		if err != nil || !strings.HasPrefix(r.URL.Path, "/api/v1") {
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
