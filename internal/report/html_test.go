// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
)

func page(t *testing.T, path string) string {
	t.Helper()
	r := New()
	var c Causes
	_, err := ReadTelemetry(path, otlp.Handler{Traces: func(td ptrace.Traces) { r.Traces(td); c.Traces(td) }, Logs: func(ld plog.Logs) { r.Logs(ld); c.Logs(ld) }, Metrics: r.Metrics})
	require.NoError(t, err)
	list, _, err := c.Results(t.Context())
	require.NoError(t, err)
	totals, windows, inside := r.Totals(), r.Windows(), r.Inside(0, 0)
	totals.ScopeTree = c.Scopes()
	var out bytes.Buffer
	require.NoError(t, WriteHTML(&out, &totals, &windows, &inside, list, 20))
	return out.String()
}

// TestHTML_Recordings checks that pages are well-formed and refer to nothing outside.
func TestHTML_Recordings(t *testing.T) {
	for path, want := range map[string][]string{
		"../../examples/recordings/pytorch.otlp.jsonl.gz":           {"Device 0 (NVIDIA H200)", "15 steps, each a scope", "nvjet_sm90_tst_32x64_64x16_2x1_v_bz_NTN", "4,559", "What limits each scope"},
		"../../test/gpu/causes/recordings/slow_layer.otlp.jsonl.gz": {"limited by the device", "at most 10.80ms", "step 25", "9e04446d8ddcab7f"},
		"../../../shared/logs/c2-h200-engines":                      {"Inside kernels", "branchy"},
		"../../../shared/logs/golden-c3-session":                    {"gemm&lt;float&gt;", "Device 0 (NVIDIA Demo GPU)"},
	} {
		t.Run(path, func(t *testing.T) {
			if _, err := os.Stat(path); err != nil {
				t.Skip("no recording: ", err)
			}
			text := page(t, path)
			for _, w := range want {
				assert.Contains(t, text, w)
			}
			assert.NotRegexp(t, `(?i)(src|href|url)\s*[=(]|<script|@import|https?:`, text)
			d := xml.NewDecoder(strings.NewReader(text))
			d.Entity = xml.HTMLEntity
			var open int
			for {
				token, err := d.Token()
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err)
				switch token.(type) {
				case xml.StartElement:
					open++
				case xml.EndElement:
					open--
				}
			}
			assert.Zero(t, open)
		})
	}
}

func TestHTML_EscapesNames(t *testing.T) {
	const evil = `<script>alert(1)</script>" onload="x`
	r := New()
	r.Traces(traces(evil, work{operation: "kernel", name: evil, scope: evil, took: 5}, work{operation: "scope", name: evil, took: 5}))
	totals, windows, inside := r.Totals(), r.Windows(), r.Inside(0, 0)
	var out bytes.Buffer
	require.NoError(t, WriteHTML(&out, &totals, &windows, &inside, nil, 0))
	assert.NotContains(t, out.String(), "<script>")
	assert.NotContains(t, out.String(), `" onload`)
	assert.Contains(t, out.String(), "&lt;script&gt;")
}
