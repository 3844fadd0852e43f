// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/rows"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

// loadRecording writes a recording of examples/recordings to a store and returns its session.
func loadRecording(t testing.TB, w store.Writer, name string) string {
	f, err := os.Open("../../examples/recordings/" + name + ".otlp.jsonl.gz")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 64<<20)
	var d rows.Decoder
	session := ""
	write := func(batches []*store.Batch) {
		_, err := w.Write(context.Background(), batches)
		require.NoError(t, err)
		for _, b := range batches {
			if b.Session != "" {
				session = b.Session
			}
		}
	}
	for lines.Scan() {
		line := lines.Bytes()
		switch {
		case bytes.Contains(line[:30], []byte("resourceSpans")):
			td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)
			require.NoError(t, err)
			write(d.Traces("", td))
		case bytes.Contains(line[:30], []byte("resourceLogs")):
			ld, err := (&plog.JSONUnmarshaler{}).UnmarshalLogs(line)
			require.NoError(t, err)
			write(d.Logs("", ld))
		default:
			md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(line)
			require.NoError(t, err)
			write(d.Metrics("", md))
		}
	}
	require.NoError(t, lines.Err())
	return session
}

// generated is a server with random sessions and the PyTorch recording, whose session it returns.
func generated(t testing.TB) (*server, string) {
	m := storetest.NewMemory()
	_, err := m.Write(context.Background(), storetest.Generate(1, storetest.Options{Projects: 1, Sessions: 2, Ops: 300}))
	require.NoError(t, err)
	session := loadRecording(t, m, "pytorch")
	return newServer(m, options{loopback: true, version: "test", logger: zap.NewNop()}), session
}

func call(s http.Handler, method, target string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, http.NoBody)
	r.Host = "localhost:8686"
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
			continue
		}
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func get[T any](t testing.TB, s http.Handler, target string) (answer T) {
	w := call(s, http.MethodGet, target)
	require.Equal(t, http.StatusOK, w.Code, "%s: %s", target, w.Body)
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	return answer
}

// UnmarshalJSON skips attributes, which tests compare as JSON.
func (a *attributes) UnmarshalJSON([]byte) error { return nil }
