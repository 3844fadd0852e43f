// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/semconv"
)

func causesOfPath(t *testing.T, path string) []SessionCauses {
	t.Helper()
	var c Causes
	_, err := ReadTelemetry(path, otlp.Handler{Traces: c.Traces, Logs: c.Logs, Metrics: func(pmetric.Metrics) {}})
	require.NoError(t, err)
	list, problem, err := c.Results(t.Context())
	require.NoError(t, err)
	require.Empty(t, problem)
	for i := range list {
		for j := range list[i].Devices {
			d := &list[i].Devices[j]
			for _, p := range []*analysis.Parts{&d.Parts, &d.Active} {
				assert.Equal(t, p.WallNs, p.ComputeNs+p.CommunicationNs+p.CopyNs+p.IdleNs)
				assert.Equal(t, p.IdleNs, p.Idle.Sum())
			}
			assert.Equal(t, list[i].ToNs-list[i].FromNs, d.WallNs)
		}
		for j := range list[i].Steps.Longest {
			p := &list[i].Steps.Longest[j].Parts
			assert.Equal(t, p.WallNs, p.ComputeNs+p.CommunicationNs+p.CopyNs+p.IdleNs)
			assert.Equal(t, p.IdleNs, p.Idle.Sum())
		}
		assert.Equal(t, list[i].Steps.Count > 0 && list[i].Missing == nil, len(list[i].Paths) > 0)
		for _, p := range list[i].Paths {
			at := p.Step.StartNs
			for j := range p.Parts {
				assert.Equal(t, at, p.Parts[j].StartNs)
				at = p.Parts[j].EndNs
			}
			assert.Equal(t, p.Step.StartNs+p.Step.WallNs, at)
			var sum int64
			for _, ns := range p.Sums {
				sum += ns
			}
			assert.Equal(t, p.Step.WallNs, sum)
		}
	}
	return list
}

// TestCauses_Recordings checks the sums on all recordings.
func TestCauses_Recordings(t *testing.T) {
	var paths []string
	for _, pattern := range []string{
		"../../examples/recordings/*.gz", "../../examples/recordings/cupy", "../../test/gpu/*/recordings/*.gz", filepath.Join(recordings(t), "*-*"),
	} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		paths = append(paths, found...)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			list := causesOfPath(t, path)
			var out bytes.Buffer
			require.NoError(t, WriteCauses(&out, list, 80))
			t.Log(out.String())
			for i := range list {
				_, err := json.Marshal(analysis.NewAnswer(list[i].Result, list[i].FromNs))
				require.NoError(t, err)
				for _, f := range list[i].Findings {
					assert.Equal(t, f.GainNs > 0, len(f.Evidence) > 0, "%s: each gain cites spans", f.Kind)
				}
			}
		})
	}
}

func TestCauses_ExampleTraining(t *testing.T) {
	const path = "../../examples/recordings/pytorch.otlp.jsonl.gz"
	list := causesOfPath(t, path)
	require.Len(t, list, 1)
	s := &list[0]
	assert.Equal(t, "pytorch", s.Service)
	assert.Equal(t, int64(4859+529+265), s.Operations)
	assert.Equal(t, "step", s.Steps.Name)
	assert.Equal(t, analysis.BoundUnknown, s.Devices[0].Bound)
	require.NotEmpty(t, s.Findings)
	assert.Equal(t, "no_launch_times", s.Findings[len(s.Findings)-1].Kind)

	var out bytes.Buffer
	require.NoError(t, WriteCauses(&out, list, 80))
	assert.Contains(t, out.String(), "Device 0 (NVIDIA H200): limit unknown\n  active ")
	assert.Contains(t, out.String(), `15 steps, each a scope "step"`)
	assert.Contains(t, out.String(), "--kinds causes")
	for line := range strings.Lines(out.String()) {
		assert.LessOrEqual(t, len([]rune(line)), 81, line)
	}
}

// TestWriteJSON_Analyses fixes the names and values of analyses in --json. Of long lists it has the first elements.
func TestWriteJSON_Analyses(t *testing.T) {
	list := causesOfPath(t, "../../test/gpu/causes/recordings/slow_layer.otlp.jsonl.gz")
	require.Len(t, list, 1)
	s := &list[0]
	s.Steps.Longest = s.Steps.Longest[:1]
	d := &s.Devices[0]
	d.Gaps = d.Gaps[:2]
	require.Len(t, s.Paths, 2)
	for _, p := range s.Paths {
		p.Parts = p.Parts[:3]
	}
	var out bytes.Buffer
	require.NoError(t, WriteJSON(&out, &Totals{}, &Windows{}, &Inside{}, list, 0))
	golden(t, "analyses.json", out.Bytes())
}

// TestCauses_KnownCauses reads recordings of test/gpu/causes/program.py.
func TestCauses_KnownCauses(t *testing.T) {
	const dir = "../../test/gpu/causes/recordings"
	// The largest kind on the critical path of the typical step.
	path := map[string]string{
		"data_loader": "host", "item": "compute", "pageable": "copy", "no_overlap": "compute", "tiny": "launch", "allocator": "allocator", "slow_layer": "compute",
	}
	// The most that the first finding saves in 50 steps, 25 of tiny, in nanoseconds. docs/internals/measurements.md
	// compares such gains with those of fixes.
	gains := map[string]int64{
		"data_loader": 251_236_391, "item": 48_652_157, "pageable": 726_182_913, "no_overlap": 64_154_844, "tiny": 32_685_016, "allocator": 174_468_716, "slow_layer": 10_802_798,
	}
	for name, first := range map[string][]string{
		"balanced": nil, "data_loader": {"host"}, "item": {"sync"}, "pageable": {"pageable_copy", "copy_call"},
		"no_overlap": {"exposed_copy"}, "tiny": {"launch"}, "allocator": {"allocator"}, "slow_layer": {"slow_steps"},
	} {
		t.Run(name, func(t *testing.T) {
			list := causesOfPath(t, filepath.Join(dir, name+".otlp.jsonl.gz"))
			require.Len(t, list, 1)
			if first == nil {
				assert.Empty(t, list[0].Findings)
				assert.Equal(t, analysis.BoundDevice, list[0].Devices[0].Bound)
				return
			}
			require.NotEmpty(t, list[0].Findings)
			assert.Contains(t, first, list[0].Findings[0].Kind)
			assert.NotEmpty(t, list[0].Findings[0].Evidence)
			assert.Equal(t, gains[name], list[0].Findings[0].GainNs)
			assert.Equal(t, "step", list[0].Steps.Name)
			assert.Equal(t, path[name], analysis.NewAnswerPath(list[0].Paths[0].CriticalPath, 0, 0).Kinds[0].Kind.String())
			if name == "slow_layer" {
				require.NotEmpty(t, list[0].Steps.Outliers)
				assert.Len(t, list[0].Steps.Outliers, 1)
				assert.Equal(t, "step 25", list[0].Steps.Outliers[0].Name)
				assert.Equal(t, "compute", list[0].Steps.Outliers[0].Part)
			}
		})
	}
}

// TestCauses_BlockingCopy reads a rank with kernels of 162 ms in every third step. A copy to the host follows them, whose
// call lasts as long. Only in the first step, calls are slow because they load modules.
func TestCauses_BlockingCopy(t *testing.T) {
	var c Causes
	_, err := ReadTelemetry("../../test/gpu/ranks/recordings/gloo-kernels-1.otlp.jsonl.gz", otlp.Handler{Traces: c.Traces, Logs: c.Logs, Metrics: func(pmetric.Metrics) {}})
	require.NoError(t, err)
	list, _, err := c.Results(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	steps := map[string]*analysis.Step{}
	for i := range list[0].Steps.Longest {
		steps[list[0].Steps.Longest[i].Name] = &list[0].Steps.Longest[i]
	}
	for name, slow := range map[string]int64{"step 0": 23_563_000, "step 5": 0, "step 8": 0} {
		t.Run(name, func(t *testing.T) {
			step := steps[name]
			require.NotNil(t, step)
			path, err := analysis.StepPath(t.Context(), &c.order[0].rows, step.StartNs, step.StartNs+step.WallNs, list[0].Steps.Device)
			require.NoError(t, err)
			assert.InDelta(t, slow, path.Sums[analysis.SlowLaunch], 1000)
			if slow == 0 {
				assert.InDelta(t, 162.41e6, path.Sums[analysis.PathCompute], 0.02e6)
				assert.Equal(t, analysis.PathCompute, analysis.NewAnswerPath(path, 0, 0).Kinds[0].Kind)
			}
		})
	}
}

// TestCauses_LaunchBound reads a program whose steps launch 150 kernels of 1 µs.
func TestCauses_LaunchBound(t *testing.T) {
	list := causesOfPath(t, "../../test/gpu/causes/recordings/tiny.otlp.jsonl.gz")
	require.Len(t, list, 1)
	var kinds []string
	for i := range list[0].Findings {
		kinds = append(kinds, list[0].Findings[i].Kind)
	}
	assert.Equal(t, []string{"launch", "latency", "slow_steps", "small_kernels", "fusion", "cuda_graph"}, kinds)
	graph := &list[0].Findings[5]
	assert.Contains(t, graph.Text, "24 of 24 steps after the first have the same 150 operations.")
	assert.Equal(t, int64(37_849_397), graph.GainNs)
	var out bytes.Buffer
	require.NoError(t, WriteCauses(&out, list, 0))
	assert.Contains(t, out.String(), "launches: one every 10.49µs (median); a call takes 5.76µs, and 4.22µs at the 10th percentile\n")
}

func TestCauses_Scopes(t *testing.T) {
	list := causesOfPath(t, "../../examples/recordings/pytorch.otlp.jsonl.gz")
	require.Len(t, list, 1)
	var out bytes.Buffer
	require.NoError(t, WriteCauses(&out, list, 0))
	assert.Contains(t, out.String(), `
  DEVICE TIME   IDLE  LATE LAUNCHES  QUEUE P50    LIMIT  SCOPE
        1.11s  97.8%              -          -  unknown  step
     622.19ms  98.9%              -          -  unknown    forward
     435.71ms  96.5%              -          -  unknown    backward
      52.70ms  95.7%              -          -  unknown    optimizer
`)
}

// TestCauses_WaitingRank has a rank that waits for another one in collectives of the host.
func TestCauses_WaitingRank(t *testing.T) {
	list := causesOfPath(t, "../../test/gpu/ranks/recordings/gloo-kernels-0.otlp.jsonl.gz")
	require.Len(t, list, 1)
	var out bytes.Buffer
	require.NoError(t, WriteCauses(&out, list, 0))
	text := strings.Join(strings.Fields(out.String()), " ")
	assert.Contains(t, text, `(4.14 s of it in scope "gloo:all_reduce"). The host was in collectives, which can include waits for ranks that come late: `+
		"see the view Ranks, or gpuflight ranks. Overlap the rest with compute.")
	assert.NotContains(t, text, "Move that code to other threads")
}

// TestCauses_MissingWork cuts the recording of a busy training to 6 of every 30 ms, as an overhead budget does.
func TestCauses_MissingWork(t *testing.T) {
	const path = "../../test/gpu/causes/recordings/balanced.otlp.jsonl.gz"
	if _, err := os.Stat(path); err != nil {
		t.Skip("no recording: ", err)
	}
	for _, told := range []bool{false, true} {
		var c Causes
		_, err := ReadTelemetry(path, otlp.Handler{
			Traces: func(td ptrace.Traces) {
				for _, rs := range td.ResourceSpans().All() {
					for _, ss := range rs.ScopeSpans().All() {
						ss.Spans().RemoveIf(func(s ptrace.Span) bool {
							op := text(s.Attributes(), semconv.CUDAOperation)
							return op != semconv.CUDAOperationScope && op != semconv.CUDAOperationSession && s.StartTimestamp()%30e6 >= 6e6
						})
					}
				}
				c.Traces(td)
			},
			Logs: func(ld plog.Logs) {
				for _, rl := range ld.ResourceLogs().All() {
					for _, sl := range rl.ScopeLogs().All() {
						for _, r := range sl.LogRecords().All() {
							if told && r.EventName() == semconv.EventCUDACapture {
								r.Attributes().PutDouble(semconv.CUDACaptureRecordedRatio, 0.2)
							}
						}
					}
				}
				c.Logs(ld)
			},
			Metrics: func(pmetric.Metrics) {},
		})
		require.NoError(t, err)
		list, _, err := c.Results(t.Context())
		require.NoError(t, err)
		require.Len(t, list, 1)
		var out bytes.Buffer
		require.NoError(t, WriteCauses(&out, list, 0))
		if !told {
			assert.Equal(t, analysis.BoundDependency, list[0].Devices[0].Bound, "wrong: the device was busy")
			assert.Contains(t, out.String(), "work had been launched but waited for other work")
			continue
		}
		assert.Contains(t, out.String(), "Device 0 (NVIDIA H100 80GB HBM3): limit unknown\n")
		assert.Contains(t, out.String(), "1. About 80 % of the work is missing: an overhead budget left 20 % of the time recorded. ")
		assert.NotContains(t, out.String(), "queued")
		assert.NotContains(t, out.String(), "CRITICAL PATH")
		assert.NotContains(t, out.String(), "2. ")
		d := &list[0].Devices[0]
		assert.Equal(t, d.Active.IdleNs, d.Active.Idle[analysis.Unknown])
		var page bytes.Buffer
		require.NoError(t, WriteHTML(&page, &Totals{}, &Windows{}, &Inside{}, list, 0))
		assert.Contains(t, page.String(), "About 80 % of the work is missing")
		assert.NotContains(t, page.String(), "idle, queued")
	}
}
