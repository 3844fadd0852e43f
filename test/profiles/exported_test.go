// SPDX-License-Identifier: Apache-2.0

//go:build linux

package profiles

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	otlpprofile "github.com/gpuflight/gpuflight/internal/recording/profile"
	"github.com/gpuflight/gpuflight/internal/recording/profile/profiletest"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

var cli = process.Binary{Env: "GPUFLIGHT_CLI", Path: "bin/gpuflight", Make: "make build"}

// values are the launches and nanoseconds of kernels.
type values [2]int64

// recordedKernels reads the sum of all kernels from GPU Flight's own log, and the sums by host stack,
// innermost frame first.
func recordedKernels(t *testing.T, dir string) (sum values, byStack map[string]values) {
	durations, stacks := map[int64]int64{}, map[int64]string{}
	process.Lines(t, dir, func(_ string, line []byte) {
		var r struct {
			Type    string
			CorrID  int64  `json:"corr_id"`
			Stack   string `json:"stack_trace"`
			Columns []string
			Rows    [][]int64
		}
		switch text := string(line); {
		case strings.Contains(text, `"type":"kernel_detail"`):
			require.NoError(t, json.Unmarshal(line, &r))
			var frames []string
			for f := range strings.SplitSeq(r.Stack, "|") {
				if f = strings.TrimSpace(f); f != "" {
					frames = append([]string{f}, frames...)
				}
			}
			stacks[r.CorrID] = strings.Join(frames, "\n")
		case strings.Contains(text, `"type":"kernel_event_batch"`):
			require.NoError(t, json.Unmarshal(line, &r))
			require.Equal(t, []string{"duration_ns", "corr_id"}, r.Columns[3:5])
			for _, row := range r.Rows {
				durations[row[4]] = row[3]
			}
		}
	})
	byStack = map[string]values{}
	for id, ns := range durations {
		require.NotEmpty(t, stacks[id])
		v := byStack[stacks[id]]
		byStack[stacks[id]] = values{v[0] + 1, v[1] + ns}
		sum = values{sum[0] + 1, sum[1] + ns}
	}
	return sum, byStack
}

// The export of a recording with host stacks has the same samples as OpenTelemetry profiles and as a
// profile of pprof. Their sums are those of the log. A Collector reads the file, and passes it on to
// its own OTLP receiver and from there to a server.
func TestCollector_ExportedStacks(t *testing.T) {
	dir := filepath.Join(process.Recordings(t), "c3-h200-minigpt")
	sum, byStack := recordedKernels(t, dir)
	require.EqualValues(t, 2180, sum[0])
	require.Greater(t, len(byStack), 50)

	bin, err := filepath.Abs(filepath.Dir(process.Collector.Find(t)))
	require.NoError(t, err)
	export := func(format string) string {
		file := filepath.Join(t.TempDir(), "exported")
		c := exec.CommandContext(t.Context(), cli.Find(t), "export", "--format", format, "-o", file, dir)
		c.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return file
	}

	f, err := os.Open(export("pprof"))
	require.NoError(t, err)
	p, err := profile.Parse(f)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	want := map[string]values{}
	for _, x := range p.Sample {
		var frames []string
		for _, l := range x.Location {
			frames = append(frames, l.Line[0].Function.Name)
		}
		key := strings.Join(frames, "\n")
		v := want[key]
		want[key] = values{v[0] + x.Value[0], v[1] + x.Value[1]}
	}

	file := export("otlp-profiles")
	var requests []otlpprofile.Profiles
	stats, err := otlp.ReadFile(file, otlp.Handler{Profiles: func(p otlpprofile.Profiles) { requests = append(requests, p) }})
	require.NoError(t, err)
	require.Zero(t, stats.Bad)
	got, total, stacks, linked := map[string]values{}, values{}, map[string]values{}, 0
	for _, s := range profiletest.Samples(t, requests...) {
		assert.Equal(t, "minigpt", s.Resource["service.name"])
		i := 0
		if s.Type != "launches/count" {
			require.Equal(t, "kernel_time/nanoseconds", s.Type)
			i = 1
		}
		if s.Span != [8]byte{} {
			require.NotZero(t, s.Trace)
			linked++
		}
		// Frames of scopes have the file "scope". The first frame is the kernel.
		var frames, host []string
		for n, frame := range s.Stack {
			name, isScope := strings.CutSuffix(frame, " scope:0")
			frames = append(frames, name)
			if n > 0 && !isScope {
				host = append(host, name)
			}
		}
		for into, key := range map[*map[string]values]string{&got: strings.Join(frames, "\n"), &stacks: strings.Join(host, "\n")} {
			v := (*into)[key]
			v[i] += s.Value
			(*into)[key] = v
		}
		total[i] += s.Value
	}
	assert.Equal(t, want, got)
	assert.Equal(t, sum, total)
	assert.Equal(t, byStack, stacks)
	assert.Positive(t, linked)

	sink := &httpSink{}
	server := httptest.NewServer(sink)
	t.Cleanup(server.Close)
	grpc, http := process.FreePort(t), process.FreePort(t)
	collector := start(t,
		map[string]any{"otlp": otlpReceiver(grpc, http), "otlp_json_file": map[string]any{"include": []string{file}, "start_at": "beginning"}},
		map[string]any{
			"otlp_grpc": noQueue(map[string]any{"endpoint": grpc, "tls": map[string]any{"insecure": true}}),
			"otlp_http": noQueue(map[string]any{"endpoint": server.URL}),
		},
		map[string]any{
			"profiles/file": map[string]any{"receivers": []string{"otlp_json_file"}, "exporters": []string{"otlp_grpc"}},
			"profiles/otlp": map[string]any{"receivers": []string{"otlp"}, "exporters": []string{"otlp_http"}},
		}, gate)
	process.Eventually(t, limit, "all profiles", func() bool { return count(sink.taken()) >= count(requests) })
	collector.Stop(limit)
	assert.Equal(t, digest(t, requests...), digest(t, sink.taken()...))
	assert.Empty(t, sink.bad)
}
