// SPDX-License-Identifier: Apache-2.0

//go:build linux

package hostile_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// scopeLines begin nested scopes that all have the same name.
func scopeLines(session string, depth, name int) []byte {
	b := fmt.Appendf(nil, `{"type":"job_start","version":1,"session_id":"%[1]s","pid":1,"app":"texts","ts_ns":%[2]d}
{"type":"dictionary_update","version":1,"session_id":"%[1]s","scope_name_dict":{"1":"%[3]s"}}
{"type":"scope_event_batch","version":1,"session_id":"%[1]s","batch_id":1,"base_time_ns":%[2]d,"columns":["dt_ns","scope_instance_id","name_id","event_type","depth"],"rows":[`,
		session, int64(baseTime), strings.Repeat("n", name))
	for i := range depth {
		b = fmt.Appendf(b, "[%d,%d,1,0,%d],", i, i+1, i)
	}
	return append(bytes.TrimSuffix(b, []byte(",")), "]}\n"...)
}

// TestHTTP_LongText sends sessions in which one long text stands on many items.
func TestHTTP_LongText(t *testing.T) {
	for _, tt := range []struct {
		name                 string
		depth, text, kernels int
	}{
		{"a scope around kernels", 1, 500_000, 20_000},
		{"nested scopes", 500, 15_000, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := start(t, "gpuflog-http.yaml")
			body := compressed(t, append(scopeLines("texts", tt.depth, tt.text), kernelLine("texts", tt.kernels)...))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			done := make(chan struct{})
			go func() {
				defer close(done)
				for ctx.Err() == nil && c.post(ctx, "texts", body) != http.StatusOK {
					time.Sleep(100 * time.Millisecond)
				}
			}()
			c.serveSmall(t, "a")
			<-done
			require.NoError(t, ctx.Err(), "the session is accepted within a minute")
			want := int64(tt.depth + tt.kernels)
			for until := time.Now().Add(30 * time.Second); c.backend.spans.Load() < want && time.Now().Before(until); {
				time.Sleep(50 * time.Millisecond)
			}
			spans, peak := c.backend.spans.Load(), c.peak(t)
			began := time.Now()
			t.Logf("%d bytes of gzip: %d of %d spans, peak %d MiB", len(body), spans, want, peak>>20)
			assert.GreaterOrEqual(t, spans, want)
			assert.Less(t, peak, int64(memoryLimit))
			c.process.Stop(15 * time.Second)
			t.Logf("stopped in %v", time.Since(began).Round(time.Millisecond))
		})
	}
}
