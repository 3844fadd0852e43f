// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inject

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/recording/profile"
	"github.com/gpuflight/gpuflight/internal/recording/profile/profiletest"
	"github.com/gpuflight/gpuflight/semconv"
)

// oneWindow are flags for one window of PC samples.
var oneWindow = []string{"--deep-after", "100ms", "--deep-every", "1s", "--deep-for", "100ms", "--deep-max", "1", "--profiles"}

// With the flag, windows of an unmodified program are sent as profiles too.
func TestProfiles_Windows(t *testing.T) {
	b, _ := windowBench(t, "GPUFLIGHT_SHUTDOWN_TIMEOUT=10m")
	o := b.traced("window", oneWindow...)
	require.Equal(t, 0, o.code, o.stderr)
	windows, figures, _, _ := b.windowed()
	require.Len(t, windows, 1)

	var requests []profile.Profiles
	_, err := otlp.ReadFile(b.file, otlp.Handler{Profiles: func(p profile.Profiles) { requests = append(requests, p) }})
	require.NoError(t, err)
	all := profiletest.Samples(t, requests...)
	require.Len(t, all, 1)
	s := all[0]
	assert.Equal(t, "gpu_samples/count", s.Type)
	assert.Equal(t, int64(waiting), s.Value)
	assert.Equal(t, "long_scoreboard", s.Attributes[semconv.CUDAStallReason])
	assert.Equal(t, windows[0][semconv.CUDADeepWindowID], s.Of[semconv.CUDADeepWindowID])
	require.Len(t, s.Stack, 1)
	assert.True(t, strings.HasPrefix(s.Stack[0], "plain "), s.Stack[0])
	require.Len(t, figures, 1)
	for _, v := range figures {
		assert.Equal(t, s.Value, v, "as in the logs")
	}
	assert.Contains(t, o.stderr, "1 profile")
}

// A collector without support for profiles receives the other signals, and gpuflight reports it in
// one line.
func TestProfiles_UnsupportedByCollector(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if strings.HasPrefix(q.URL.Path, "/v1development/") {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	b, _ := windowBench(t, "GPUFLIGHT_SHUTDOWN_TIMEOUT=10m")
	b.output = []string{"--endpoint", server.URL}
	o := b.traced("window", oneWindow...)
	require.Equal(t, 0, o.code, o.stderr)
	var lines []string
	for line := range strings.SplitSeq(o.stderr, "\n") {
		if strings.Contains(line, "profile") {
			lines = append(lines, line)
		}
	}
	assert.Equal(t, []string{"gpuflight: 1 profile could not be sent to " + server.URL + " (http/protobuf) (unsupported): 404 Not Found"}, lines)
	assert.Regexp(t, `\d+ spans, \d+ log records, \d+ metric points went to `+regexp.QuoteMeta(server.URL), o.stderr)
}
