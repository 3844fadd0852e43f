// SPDX-License-Identifier: Apache-2.0

package export_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// TestSQL_Demo loads the demo into the shipped Collector and queries it.
func TestSQL_Demo(t *testing.T) {
	address := process.FreePort(t)
	config := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
extensions:
  gpu_storage: {backends: {default: {duckdb: {directory: %q}}}}
  gpu_query: {endpoint: %q, sql: true}
receivers: {otlp: {protocols: {http: {endpoint: %q}}}}
exporters: {gpu_storage: {}}
service:
  extensions: [gpu_storage, gpu_query]
  pipelines: {traces: {receivers: [otlp], exporters: [gpu_storage]}}
  telemetry: {metrics: {level: none}}
`, filepath.Join(t.TempDir(), "store"), address, process.FreePort(t)), 0o600))
	process.Start(t, collector.Find(t), "--config", config).WaitOutput(process.Ready, time.Minute)

	post := func(path string, body any, status int, answer any) {
		t.Helper()
		text, err := json.Marshal(body)
		require.NoError(t, err)
		resp, err := http.Post("http://"+address+"/api/v1"+path, "application/json", bytes.NewReader(text))
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		all, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, status, resp.StatusCode, "%s", all)
		require.NoError(t, json.Unmarshal(all, answer))
	}
	var demo struct{ Session string }
	post("/demo", nil, http.StatusCreated, &demo)
	var rows struct {
		Rows      [][]any
		Truncated bool
	}
	statement := func(text string) map[string]string {
		return map[string]string{"session": demo.Session, "statement": text}
	}
	post("/sql", statement("SELECT operation, count(*) FROM operations GROUP BY ALL ORDER BY 2 DESC"), http.StatusOK, &rows)
	assert.Equal(t, [][]any{{"kernel", 4859.}, {"memset", 529.}, {"memcpy", 265.}}, rows.Rows)
	// The kernels of the scopes, through the span that launched them.
	post("/sql", statement("SELECT s.name, count(*) FROM operations o JOIN spans s ON o.parent_id = s.span_id WHERE s.name = 'backward' GROUP BY ALL"), http.StatusOK, &rows)
	require.Len(t, rows.Rows, 1)
	assert.Positive(t, rows.Rows[0][1])
	var failed struct{ Error string }
	post("/sql", statement("SELECT * FROM read_csv('/etc/passwd')"), http.StatusBadRequest, &failed)
	assert.Contains(t, failed.Error, "file system operations are disabled")
	post("/sql", statement("SELECT * FROM range(1000000)"), http.StatusOK, &rows)
	assert.Len(t, rows.Rows, 10_000)
	assert.True(t, rows.Truncated)
}
