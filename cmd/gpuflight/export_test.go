// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExport_Usage(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"no session", []string{"--format", "chrome"}, "give one session, file or folder"},
		{"no format", []string{"a"}, `--format "": choose perfetto, chrome, parquet, pprof, otlp-profiles or session`},
		{"unknown format", []string{"--format", "json", "a"}, `--format "json": choose perfetto, chrome, parquet, pprof, otlp-profiles or session`},
		{"table", []string{"--format", "chrome", "--table", "spans", "a"}, "--table is for the format parquet"},
		{"interval", []string{"--format", "chrome", "--from", "2s", "--to", "1s", "a"}, "--to must be above --from, and neither negative"},
		{"interval of a session", []string{"--format", "session", "--to", "1s", "a"}, "the format session has no interval"},
		{"address", []string{"--format", "chrome", "--url", "localhost", "a"}, `--url "localhost": write for example http://127.0.0.1:8686`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stderr bytes.Buffer
			assert.Equal(t, 2, run(t.Context(), append([]string{"export"}, tt.args...), &bytes.Buffer{}, &stderr))
			assert.Contains(t, stderr.String(), "gpuflight export: "+tt.want+" (see gpuflight export --help)\n")
		})
	}
}

// exportServer answers as the query API does. It ends the answer early for the format pprof.
func exportServer(t *testing.T) string {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/sessions", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"sessions":[{"id":"abcdef123456","start":"1"}]}`))
	})
	mux.HandleFunc("GET /api/v1/sessions/abcdef123456/export", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(r.URL.RawQuery))
		if r.URL.Query().Get("format") == "pprof" {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

func TestExport_Files(t *testing.T) {
	address := exportServer(t)
	t.Chdir(t.TempDir())
	export := func(args ...string) (string, error) {
		var out bytes.Buffer
		err := runExport(context.Background(), append([]string{"--url", address}, args...), &out, &out)
		return out.String(), err
	}
	out, err := export("--format", "parquet", "--table", "spans", "--from", "1ms", "abc")
	require.NoError(t, err)
	assert.Equal(t, "exported abcdef123456 to abcdef12-spans.parquet, 39 B\n", out)
	text, err := os.ReadFile("abcdef12-spans.parquet")
	require.NoError(t, err)
	assert.Equal(t, "format=parquet&from=1000000&table=spans", string(text))

	_, err = export("--format", "parquet", "--table", "spans", "abc")
	require.ErrorIs(t, err, os.ErrExist)
	_, err = export("--format", "pprof", "-o", "part", "abc")
	require.Error(t, err)
	assert.NoFileExists(t, "part", "an incomplete file is removed")
	_, err = export("--format", "chrome", "-o", "x", "zzz")
	require.EqualError(t, err, `no session has an id that begins with "zzz"`)
	_, err = export("--format", "chrome", filepath.Join("absent", "x.otlp.jsonl"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
