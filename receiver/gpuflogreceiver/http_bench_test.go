// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/metadata"
)

// BenchmarkWindow measures the device window of a recorded session, once per session, from the
// request to the pipelines.
func BenchmarkWindow(b *testing.B) {
	path := filepath.Join("..", "..", "internal", "testing", "testdata", "logs", "c3-h200-minigpt", "5f00675e-d50e-4aca-812b-e16abe300c04", "device.1.log.gz")
	window, err := os.ReadFile(path)
	require.NoError(b, err)
	text := []byte(unzipped(b, window))
	cfg := createDefaultConfig().(*Config)
	cfg.Protocols.HTTP.GetOrInsertDefault().NetAddr.Endpoint = "localhost:0"
	r, err := newReceiver(cfg, receivertest.NewNopSettings(metadata.Type))
	require.NoError(b, err)
	r.out.traces, r.out.logs, r.out.metrics = consumertest.NewNop(), consumertest.NewNop(), consumertest.NewNop()
	require.NoError(b, r.Start(context.Background(), componenttest.NewNopHost()))
	b.Cleanup(func() { require.NoError(b, r.Shutdown(context.Background())) })
	b.SetBytes(int64(len(text)))
	i := 0
	for b.Loop() {
		b.StopTimer()
		id := sessionID(i)
		i++
		body := zipped(b, string(bytes.ReplaceAll(text, []byte("5f00675e-d50e-4aca-812b-e16abe300c04"), []byte(id))))
		req := httptest.NewRequest(http.MethodPost, "/api/v1/events/stream", bytes.NewReader(body))
		req.Header.Set("Content-Encoding", "gzip")
		req.Header.Set(headerSession, id)
		w := httptest.NewRecorder()
		b.StartTimer()
		r.http.server.Handler.ServeHTTP(w, req)
		require.Equal(b, http.StatusOK, w.Code, w.Body.String())
	}
	b.ReportMetric(float64(bytes.Count(text, []byte("\n")))*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}
