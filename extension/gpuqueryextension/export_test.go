// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

// tables is a store with tables.
type tables struct {
	store.Backend
	parquet func(context.Context, store.TableQuery) (string, error)
	sql     func(context.Context, store.SQLQuery) (store.SQLAnswer, error)
}

func (t *tables) WriteParquet(ctx context.Context, q store.TableQuery, file string) error {
	text, err := t.parquet(ctx, q)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o600)
}

func (t *tables) SQL(ctx context.Context, q store.SQLQuery) (store.SQLAnswer, error) {
	return t.sql(ctx, q)
}

func TestExport_Formats(t *testing.T) {
	s, id := generated(t)
	target := "/api/v1/sessions/" + id + "/export?format="
	t.Run("chrome", func(t *testing.T) {
		info, err := s.store.Session(t.Context(), "", id)
		require.NoError(t, err)
		lanes, err := s.store.Lanes(t.Context(), "", id)
		require.NoError(t, err)
		middle := (lanes[0].FirstNs+lanes[0].LastNs)/2 - info.FirstNs
		for _, query := range []string{"", fmt.Sprintf("&from=%d", middle)} {
			w := call(s, http.MethodGet, target+"chrome"+query)
			require.Equal(t, http.StatusOK, w.Code, w.Body)
			assert.Equal(t, "application/json", w.Header().Get("Content-Type"))
			assert.Equal(t, "attachment; filename*=UTF-8''"+id+".trace.json", w.Header().Get("Content-Disposition"))
			var trace struct{ TraceEvents []struct{ Cat string } }
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &trace))
			kernels := 0
			for _, e := range trace.TraceEvents {
				if e.Cat == "kernel" {
					kernels++
				}
			}
			if query == "" {
				assert.Equal(t, 4859, kernels)
			} else {
				assert.Positive(t, kernels)
				assert.Less(t, kernels, 4859)
			}
		}
	})
	t.Run("gzip", func(t *testing.T) {
		plain := call(s, http.MethodGet, target+"perfetto")
		require.Equal(t, http.StatusOK, plain.Code)
		packed := call(s, http.MethodGet, target+"perfetto", "Accept-Encoding", "gzip")
		assert.Equal(t, "gzip", packed.Header().Get("Content-Encoding"))
		z, err := gzip.NewReader(packed.Body)
		require.NoError(t, err)
		text, err := io.ReadAll(z)
		require.NoError(t, err)
		assert.True(t, bytes.Equal(plain.Body.Bytes(), text))
	})
	t.Run("pprof", func(t *testing.T) {
		w := call(s, http.MethodGet, target+"pprof")
		require.Equal(t, http.StatusOK, w.Code)
		p, err := profile.Parse(w.Body)
		require.NoError(t, err)
		launches := int64(0)
		for _, x := range p.Sample {
			launches += x.Value[0]
		}
		assert.EqualValues(t, 4859, launches)
	})
	t.Run("parquet", func(t *testing.T) {
		w := call(s, http.MethodGet, target+"parquet")
		assert.Equal(t, http.StatusNotImplemented, w.Code)
		assert.JSONEq(t, `{"error":"the store does not support this"}`, w.Body.String())
		var got store.TableQuery
		x := newServer(&tables{Backend: s.store, parquet: func(_ context.Context, q store.TableQuery) (string, error) {
			got = q
			return "PAR1", nil
		}}, options{logger: zap.NewNop()})
		w = call(x, http.MethodGet, target+"parquet&table=spans&from=5&to=7&base=100")
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		assert.Equal(t, "PAR1", w.Body.String())
		assert.Equal(t, "4", w.Header().Get("Content-Length"))
		assert.Equal(t, "attachment; filename*=UTF-8''"+id+"-spans.parquet", w.Header().Get("Content-Disposition"))
		assert.Equal(t, store.TableQuery{Session: id, Table: "spans", From: 105, To: 107}, got)
	})
	t.Run("head", func(t *testing.T) {
		w := call(s, http.MethodHead, target+"chrome")
		assert.Equal(t, http.StatusOK, w.Code)
		assert.Equal(t, "application/json", w.Header().Get("Content-Type"))
		assert.Zero(t, w.Body.Len())
	})
	assert.Empty(t, s.exporting)
}

func TestExport_BadRequests(t *testing.T) {
	s, id := generated(t)
	for _, tt := range []struct {
		target string
		code   int
		want   string
	}{
		{id + "/export?format=json", 400, "parameter format: must be one of session, perfetto, chrome, parquet, pprof, otlp-profiles"},
		{id + "/export?format=parquet&table=meta", 400, "parameter table: must be one of operations, spans, samples, logs, points"},
		{id + "/export?format=chrome&table=spans", 400, `parameter "table": does not exist for this path`},
		{id + "/export?format=chrome&from=2&to=1", 400, "parameter to: must be above from"},
		{id + "/export?format=chrome&from=x", 400, "parameter from: must be an integer of nanoseconds from the base"},
		{id + "/export?from=5", 400, "parameter from: the format session has no interval"},
		{"absent/export?format=chrome", 404, `session "absent"`},
	} {
		w := call(s, http.MethodGet, "/api/v1/sessions/"+tt.target)
		assert.Equal(t, tt.code, w.Code, tt.target)
		assert.Contains(t, errorOf(t, w), tt.want, tt.target)
	}
	assert.Empty(t, s.exporting)
}

func errorOf(t *testing.T, w *httptest.ResponseRecorder) string {
	var answer struct{ Error string }
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer), w.Body)
	return answer.Error
}

// failing is a store whose second page of operations fails or waits.
type failing struct {
	store.Backend
	wait chan struct{}
}

func (f failing) Ops(ctx context.Context, q store.OpQuery) (store.OpPage, error) {
	if q.After == nil {
		q.Limit = 1000
		page, err := f.Backend.Ops(ctx, q)
		page.More = true
		return page, err
	}
	if f.wait == nil {
		return store.OpPage{}, errors.New("the disk is broken")
	}
	f.wait <- struct{}{}
	<-ctx.Done()
	f.wait <- struct{}{}
	return store.OpPage{}, ctx.Err()
}

func TestExport_ErrorAfterFirstByte(t *testing.T) {
	s, id := generated(t)
	server := httptest.NewServer(newServer(failing{Backend: s.store}, options{logger: zap.NewNop()}))
	defer server.Close()
	res, err := http.Get(server.URL + "/api/v1/sessions/" + id + "/export?format=chrome")
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	require.Equal(t, http.StatusOK, res.StatusCode)
	_, err = io.ReadAll(res.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF, "the client sees that the file is incomplete")
}

func TestExport_TooMany(t *testing.T) {
	s, id := generated(t)
	f := failing{s.store, make(chan struct{})}
	x := newServer(f, options{logger: zap.NewNop()})
	server := httptest.NewServer(x)
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range maxExports {
		go func() {
			r, _ := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/api/v1/sessions/"+id+"/export?format=perfetto", http.NoBody)
			if res, err := http.DefaultClient.Do(r); err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
		}()
	}
	for range maxExports {
		<-f.wait
	}
	w := call(x, http.MethodGet, "/api/v1/sessions/"+id+"/export?format=chrome")
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.Equal(t, "5", w.Header().Get("Retry-After"))
	cancel() // It reaches the store.
	for range maxExports {
		<-f.wait
	}
	require.Eventually(t, func() bool { return len(x.exporting) == 0 }, time.Minute, time.Millisecond)
}

func TestExport_SlowClient(t *testing.T) {
	w := &stalled{header: http.Header{}}
	out := &exportWriter{w: w, rc: http.NewResponseController(w), set: func() {}}
	_, err := out.Write(make([]byte, 200<<10))
	require.NoError(t, err)
	assert.Equal(t, 4, w.deadlines, "each 64 KiB have a deadline of their own")
}

type stalled struct {
	header    http.Header
	deadlines int
}

func (s *stalled) Header() http.Header         { return s.header }
func (s *stalled) Write(b []byte) (int, error) { return len(b), nil }
func (s *stalled) WriteHeader(int)             {}
func (s *stalled) SetWriteDeadline(at time.Time) error {
	if d := time.Until(at); d > 0 && d <= exportProgress {
		s.deadlines++
	}
	return nil
}

func postSQL(s http.Handler, kind, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, sqlPath, strings.NewReader(body))
	r.Host = "localhost"
	r.Header.Set("Content-Type", kind)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func TestSQL_Requests(t *testing.T) {
	var got store.SQLQuery
	b := &tables{Backend: storetest.NewMemory(), sql: func(_ context.Context, q store.SQLQuery) (store.SQLAnswer, error) {
		got = q
		switch q.Statement {
		case "wrong":
			return store.SQLAnswer{}, fmt.Errorf("Parser Error: syntax error: %w", store.ErrInvalid)
		case "absent":
			return store.SQLAnswer{}, fmt.Errorf("session %q: %w", q.Session, store.ErrNotFound)
		case "slow":
			return store.SQLAnswer{}, context.DeadlineExceeded
		}
		return store.SQLAnswer{Columns: []store.SQLColumn{{Name: "a", Type: "BIGINT"}}, Rows: [][]byte{[]byte("[9007199254740993]")}, Truncated: true}, nil
	}}
	s := newServer(b, options{allowSQL: true, logger: zap.NewNop()})
	const valid = `{"session":"a","statement":"SELECT 1"}`
	w := postSQL(s, "application/json; charset=utf-8", valid)
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	assert.JSONEq(t, `{"columns":[{"name":"a","type":"BIGINT"}],"rows":[[9007199254740993]],"truncated":true}`, w.Body.String())
	assert.Contains(t, w.Body.String(), "9007199254740993", "JSONEq compares numbers as float64")
	assert.Equal(t, store.SQLQuery{Session: "a", Statement: "SELECT 1", Rows: maxSQLRows, Bytes: maxSQLBytes}, got)
	for _, tt := range []struct {
		name, kind, body string
		code             int
		want             string
	}{
		{"content type", "text/plain", valid, 415, "the body must be JSON"},
		{"no JSON", "application/json", "SELECT 1", 400, "the body must be a JSON object"},
		{"other fields", "application/json", `{"session":"a","statement":"x","file":"y"}`, 400, "the body must be a JSON object"},
		{"two objects", "application/json", valid + valid, 400, "the body must be a JSON object"},
		{"no session", "application/json", `{"statement":"x"}`, 400, "the body must be a JSON object"},
		{"large", "application/json", `{"session":"a","statement":"` + strings.Repeat("x", maxBody) + `"}`, 413, "larger than"},
		{"statement", "application/json", `{"session":"a","statement":"wrong"}`, 400, "Parser Error: syntax error"},
		{"session", "application/json", `{"session":"a","statement":"absent"}`, 404, `session "a"`},
		{"slow", "application/json", `{"session":"a","statement":"slow"}`, 503, "did not finish within 30 s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := postSQL(s, tt.kind, tt.body)
			assert.Equal(t, tt.code, w.Code)
			assert.Contains(t, errorOf(t, w), tt.want)
			assert.NotContains(t, errorOf(t, w), "invalid query")
		})
	}
	t.Run("off", func(t *testing.T) {
		w := postSQL(newServer(b, options{logger: zap.NewNop()}), "application/json", valid)
		assert.Equal(t, http.StatusForbidden, w.Code)
		assert.Equal(t, "SQL is off: set sql: true in the configuration of gpu_query", errorOf(t, w))
		assert.False(t, createDefaultConfig().(*Config).SQL)
	})
	t.Run("unsupported", func(t *testing.T) {
		w := postSQL(newServer(storetest.NewMemory(), options{allowSQL: true, logger: zap.NewNop()}), "application/json", valid)
		assert.Equal(t, http.StatusNotImplemented, w.Code)
	})
	t.Run("get", func(t *testing.T) {
		assert.Equal(t, http.StatusMethodNotAllowed, call(s, http.MethodGet, sqlPath).Code)
	})
	t.Run("other origin", func(t *testing.T) {
		r := httptest.NewRequest(http.MethodPost, sqlPath, strings.NewReader(valid))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Origin", "https://evil.example")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		assert.Equal(t, http.StatusForbidden, w.Code)
	})
	t.Run("too many", func(t *testing.T) {
		for range maxStatements {
			s.querying <- struct{}{}
		}
		assert.Equal(t, http.StatusTooManyRequests, postSQL(s, "application/json", valid).Code)
		for range maxStatements {
			<-s.querying
		}
	})
}

func TestDemo_LoadsRecordings(t *testing.T) {
	assert.Less(t, len(demo), 500_000)
	m := storetest.NewMemory()
	s := newServer(m, options{logger: zap.NewNop()})
	for range 2 { // the second time changes nothing
		w := call(s, http.MethodPost, demoPath)
		require.Equal(t, http.StatusCreated, w.Code, w.Body)
		var answer struct{ Session string }
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
		list, err := m.Sessions(t.Context(), store.SessionQuery{})
		require.NoError(t, err)
		require.Len(t, list, 3)
		for i := range list {
			name := list[i].Service
			other := storetest.NewMemory()
			require.Equal(t, list[i].ID, loadRecording(t, other, name))
			want, err := other.Session(t.Context(), "", list[i].ID)
			require.NoError(t, err)
			assert.Equal(t, want.Operations, list[i].Operations, name)
			assert.Equal(t, want.Counts, list[i].Counts, name)
			assert.Equal(t, want.KernelNs, list[i].KernelNs, name)
			if list[i].ID == answer.Session {
				assert.Equal(t, "pytorch", name)
			}
		}
	}
}
