// SPDX-License-Identifier: Apache-2.0

package gpufl

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/recording/profile"
	"github.com/gpuflight/gpuflight/internal/recording/profile/profiletest"
	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
	"github.com/gpuflight/gpuflight/semconv"
)

// Windows come as profiles beside the logs, with the same sums, and lead to the window's span.
func TestDeepWindowsAsProfiles(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	w, stop := recordWindows(t, "GPUFLIGHT_PROFILES", "1", "GPUFLIGHT_DEEP_PERIOD", "12")
	for _, engine := range []Engine{EnginePC, EngineSASS} {
		got, err := DeepWindow(t.Context(), 20*time.Millisecond, WithEngine(engine), WithReason("manual"))
		require.NoError(t, err)
		require.True(t, got.Collected(), "%+v", got)
	}
	out := stop()
	require.Len(t, out.spans, 2)

	var requests []profile.Profiles
	stats, err := otlp.ReadFile(w.path, otlp.Handler{Profiles: func(p profile.Profiles) { requests = append(requests, p) }})
	require.NoError(t, err)
	require.Zero(t, stats.Bad)
	sums := map[string]int64{}
	for _, s := range profiletest.Samples(t, requests...) {
		of := out.spans[1]
		name := s.Type
		if s.Type == "gpu_samples/count" {
			of, name = out.spans[0], s.Attributes[semconv.CUDAStallReason].(string)
			assert.Equal(t, int64(4096), s.Every)
			assert.Equal(t, "sm_clock/cycles", s.Period)
		} else {
			assert.Zero(t, s.Every)
		}
		sums[name] += s.Value
		assert.Equal(t, [8]byte(of.SpanID()), s.Span)
		assert.Equal(t, [16]byte(of.TraceID()), s.Trace)
		assert.Equal(t, "svc", s.Resource[semconv.ServiceName])
		assert.Equal(t, "manual", s.Of[semconv.CUDADeepWindowWhy])
		assert.Contains(t, s.Stack[len(s.Stack)-1], "plain")
	}
	assert.Equal(t, map[string]int64{"long_scoreboard": waiting, "wait": atOnce, "smsp__sass_inst_executed/count": executed}, sums)
}

func TestWithProfiles(t *testing.T) {
	for name, tc := range map[string]struct {
		pairs   []string
		options []Option
		want    bool
	}{
		"not by themselves":      {nil, []Option{WithDeepWindows()}, false},
		"by the option":          {nil, []Option{WithDeepWindows(), WithProfiles()}, true},
		"by the environment":     {[]string{"GPUFLIGHT_PROFILES", "1"}, []Option{WithDeepWindows()}, true},
		"not without windows":    {nil, []Option{WithProfiles()}, false},
		"not where they are off": {[]string{"OTEL_PROFILES_EXPORTER", "none"}, []Option{WithDeepWindows(), WithProfiles()}, false},
	} {
		t.Run(name, func(t *testing.T) {
			setenv(t, append([]string{"GPUFLIGHT_OUTPUT", filepath.Join(t.TempDir(), "out.otlp.jsonl"), "XDG_RUNTIME_DIR", ""}, tc.pairs...)...)
			require.Zero(t, cuptitest.Libraries(t).Init())
			shutdown, err := Init(t.Context(), tc.options...)
			require.NoError(t, err)
			assert.Equal(t, tc.want, current.Load().capture.Config().Profiles != nil)
			require.NoError(t, shutdown(context.Background()))
		})
	}
	setenv(t, "GPUFLIGHT_PROFILES", "maybe")
	_, err := Init(t.Context())
	require.ErrorContains(t, err, "GPUFLIGHT_PROFILES")
}
