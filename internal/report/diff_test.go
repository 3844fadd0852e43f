// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/analysis/compare"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
)

func profileOf(t *testing.T, path string) *analysis.Profile {
	t.Helper()
	var c Causes
	_, err := ReadTelemetry(path, otlp.Handler{Traces: c.Traces, Logs: func(plog.Logs) {}, Metrics: func(pmetric.Metrics) {}})
	require.NoError(t, err)
	p, sessions, err := c.Profile(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 1, sessions)
	return p
}

func TestDiff_Golden(t *testing.T) {
	const dir = "../../test/gpu/causes/recordings/"
	diff := func(a, b string, limit float64) *Diff {
		t.Helper()
		return &Diff{A: a, B: b, Limit: limit, Comparison: compare.Sessions(profileOf(t, dir+a+".otlp.jsonl.gz"), profileOf(t, dir+b+".otlp.jsonl.gz"))}
	}
	for name, d := range map[string]*Diff{
		"diff-slower.txt": diff("item", "data_loader", 0.05),
		"diff-same.txt":   diff("balanced", "slow_layer", -1),
		"diff-mean.txt":   diff("../../ranks/recordings/gloo-host-1", "../../ranks/recordings/gloo-kernels-1", 0.05),
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, d.Write(&out, 80))
			golden(t, name, out.Bytes())
			for line := range strings.Lines(out.String()) {
				assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), 80, line)
			}
		})
	}
	var out bytes.Buffer
	require.NoError(t, diff("item", "data_loader", 0.05).WriteJSON(&out))
	golden(t, "diff-slower.json", out.Bytes())
	assert.NotContains(t, out.String(), "null")
}

func TestDiff_Uncertain(t *testing.T) {
	step := &compare.Change{Name: "step", Status: compare.Untested}
	var out bytes.Buffer
	d := &Diff{A: "a", B: "b", Limit: 0.05, Comparison: &compare.Comparison{Verdict: compare.Untested, Step: step}}
	require.NoError(t, d.Write(&out, 80))
	assert.Contains(t, out.String(), "No test found anything slower by more than 5 %. The step is untested.\n")
}

func TestDiff_NoSteps(t *testing.T) {
	const path = "../../examples/recordings/vectoradd.otlp.jsonl.gz"
	var out bytes.Buffer
	d := &Diff{A: "a", B: "b", Limit: 0, Comparison: compare.Sessions(profileOf(t, path), profileOf(t, path))}
	require.NoError(t, d.Write(&out, 80))
	assert.Contains(t, out.String(), "No kernel is slower or faster.")
	assert.Contains(t, out.String(), "EFFECT is the change of the time of all calls.")
	assert.Contains(t, out.String(), "Nothing is slower by more than 0 %.")
}
