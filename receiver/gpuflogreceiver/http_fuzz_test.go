// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/ingest"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/metadata"
)

// requestLimit bounds the allocations of a request. The constant covers its session and the
// sessions that are closed for it. The rest covers the body and the data that it expands to.
var requestLimit = alloctest.Limit{PerByte: 1 << 10, Constant: 4 << 20}

// FuzzRequest sends arbitrary bodies to arbitrary paths of the server. Every request is answered. A
// successful response counts each line as accepted or rejected. The budget is released afterwards.
// The allocated memory is bounded by the size of the body.
func FuzzRequest(f *testing.F) {
	lines := joined(jobStart(testSession), copies(testSession, 1, 3), hosts(testSession, 1), shutdownLine(testSession))
	for _, path := range []string{"stream", "session-complete", "device", "kernel_event", "x/y"} {
		f.Add(path, testSession, "scope", "", []byte(lines))
		f.Add(path, testSession, "", "12", []byte(`{"data":`+string(mustJSON(hosts(testSession, 2)))+`}`))
		f.Add(path, "", "device", "", []byte("{\n\n}\r\n"))
	}
	factory := NewFactory()
	cfg := factory.CreateDefaultConfig().(*Config)
	h := cfg.Protocols.HTTP.GetOrInsertDefault()
	h.NetAddr.Endpoint, h.MaxSessions, h.MaxRequestBodySize, h.MaxBufferedBytes = "localhost:0", 4, 64<<10, 1<<20
	cfg.MaxLineBytes = 4 << 10
	r, err := newReceiver(cfg, receivertest.NewNopSettings(metadata.Type))
	require.NoError(f, err)
	r.out.traces, r.out.logs, r.out.metrics = consumertest.NewNop(), consumertest.NewNop(), consumertest.NewNop()
	require.NoError(f, r.Start(context.Background(), componenttest.NewNopHost()))
	f.Cleanup(func() { require.NoError(f, r.Shutdown(context.Background())) })
	f.Fuzz(func(t *testing.T, path, session, key, crc string, body []byte) {
		var w *httptest.ResponseRecorder
		// A request that is sent again repeats lines. That costs no more than the first time.
		requestLimit.Check(t, len(body), func() {
			req := httptest.NewRequest(http.MethodPost, "/api/v1/events/", bytes.NewReader(body))
			req.URL.Path += path
			req.Header[http.CanonicalHeaderKey(headerSession)] = []string{session} // any bytes, unchecked
			req.Header[http.CanonicalHeaderKey(headerKey)] = []string{key}
			req.Header[http.CanonicalHeaderKey(headerChannel)] = []string{key}
			if crc != "" {
				req.Header[http.CanonicalHeaderKey(headerCRC)] = []string{crc}
			}
			w = httptest.NewRecorder()
			r.http.server.Handler.ServeHTTP(w, req)
		})
		switch w.Code {
		case http.StatusOK:
			var reply ingest.Reply
			if err := json.Unmarshal(w.Body.Bytes(), &reply); err != nil {
				t.Fatalf("%s: %v", w.Body, err)
			}
			if path == "stream" {
				want := int64(0)
				for line := range bytes.SplitSeq(body, []byte("\n")) {
					if len(bytes.TrimSuffix(line, []byte("\r"))) > 0 {
						want++
					}
				}
				if reply.Accepted+reply.Rejected != want {
					t.Fatalf("%d lines accepted and %d rejected of %d", reply.Accepted, reply.Rejected, want)
				}
			}
		case http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusMovedPermanently,
			http.StatusTemporaryRedirect, http.StatusTooManyRequests, http.StatusMethodNotAllowed:
		default:
			t.Fatalf("answered %d: %s", w.Code, w.Body)
		}
		if n := r.http.requests.Left(); n != int64(h.MaxRequests) {
			t.Fatalf("%d requests are left", n)
		}
	})
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
