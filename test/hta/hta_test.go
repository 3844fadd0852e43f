// SPDX-License-Identifier: Apache-2.0

// Package hta_test compares the analysis with Holistic Trace Analysis, on the same sessions.
package hta_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/analysis/ranks"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/rows"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
	"github.com/gpuflight/gpuflight/internal/traceexport"
)

// session is a stored session with one device, and the interval from its first operation to its last.
type session struct {
	name     string
	store    *storetest.Memory
	id       string
	from, to int64
	rank     *ranks.Rank // among the ranks of a run, if it is one
}

// recorded reads a recording, which has one session with work of a device.
func recorded(t *testing.T, path string) session {
	t.Helper()
	s := session{name: filepath.Base(path), store: storetest.NewMemory()}
	var d rows.Decoder
	_, err := otlp.ReadFile(path, otlp.Handler{
		Traces: func(td ptrace.Traces) {
			_, err := s.store.Write(t.Context(), d.Traces("", td))
			require.NoError(t, err)
		},
		Logs: func(plog.Logs) {}, Metrics: func(pmetric.Metrics) {},
	})
	require.NoError(t, err)
	return s.find(t)
}

func (s session) find(t *testing.T) session {
	t.Helper()
	list, err := s.store.Sessions(t.Context(), store.SessionQuery{})
	require.NoError(t, err)
	for _, info := range list {
		page, err := s.store.Ops(t.Context(), store.OpQuery{
			Session: info.ID, Operations: []store.Operation{store.OpKernel, store.OpCopy, store.OpSet, store.OpGraph}, Limit: 20_000,
		})
		require.NoError(t, err)
		require.False(t, page.More)
		for i := range page.Rows {
			o := &page.Rows[i]
			if s.id == "" {
				s.id, s.from = info.ID, o.StartNs
			}
			require.Equal(t, info.ID, s.id, "one session with work of a device")
			s.to = max(s.to, o.EndNs)
		}
	}
	return s
}

// overlapping has all-reduces in a stream, the half of which run during computation in another.
func overlapping(t *testing.T) session {
	t.Helper()
	b := &store.Batch{
		Session: "overlap", Places: []store.Place{{}}, Stacks: []store.Stack{{}}, Extras: []store.Extra{{}}, Origins: []store.Origin{{}},
		Lanes:  []store.Lane{{}, {Key: 1, Device: "GPU-1", DeviceIndex: store.Some(0), Stream: store.Some(7)}, {Key: 2, Device: "GPU-1", DeviceIndex: store.Some(0), Stream: store.Some(20)}},
		Shapes: []store.Shape{{}, {Key: 1, Operation: store.OpKernel, Name: "gemm"}, {Key: 2, Operation: store.OpKernel, Name: "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}},
	}
	for i := range int64(500) {
		at := int64(1e18) + i*100_000
		add := func(lane uint32, start, ns int64) {
			b.Ops = append(b.Ops, store.Op{StartNs: at + start, EndNs: at + start + ns, Span: store.SpanID(len(b.Ops) + 1), Lane: lane, Shape: lane})
		}
		add(1, 0, 40_123)
		add(2, 30_001, 20_777+i%7)
		add(1, 60_000, 15_000+i*3)
	}
	s := session{name: "overlap", store: storetest.NewMemory()}
	_, err := s.store.Write(t.Context(), []*store.Batch{b})
	require.NoError(t, err)
	return s.find(t)
}

// waits says whether the host waited for a stream, and whether a stream had to wait for an event.
func waits(t *testing.T, s session) (host, stream bool) {
	t.Helper()
	page, err := s.store.Ops(t.Context(), store.OpQuery{Session: s.id, Operations: []store.Operation{store.OpSync}, Limit: 20_000})
	require.NoError(t, err)
	for i := range page.Rows {
		if o := &page.Rows[i]; o.LaneRef.Stream.OK && o.EndNs > o.StartNs {
			isStream := o.ShapeRef.Name == "cudaStreamWaitEvent"
			host, stream = host || !isStream, stream || isStream
		}
	}
	return host, stream
}

// export writes a Chrome trace of a session, on request without waits, and returns its path.
func export(t *testing.T, s session, dir string, waits bool) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, traceexport.Chrome(t.Context(), s.store, traceexport.Query{Session: s.id}, &b))
	if !waits {
		var trace map[string]any
		d := json.NewDecoder(&b)
		d.UseNumber() // times keep all their digits
		require.NoError(t, d.Decode(&trace))
		trace["traceEvents"] = slices.DeleteFunc(trace["traceEvents"].([]any), func(e any) bool { return e.(map[string]any)["cat"] == "cuda_sync" })
		text, err := json.Marshal(trace)
		require.NoError(t, err)
		b = *bytes.NewBuffer(text)
	}
	path := filepath.Join(dir, fmt.Sprintf("%s-%t.json", s.name, waits))
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
	return path
}

// theirs returns what HTA says of traces, of ranks that share an argument together.
func theirs(t *testing.T, python string, args []string) (list [][5]*float64) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), python, append([]string{"breakdown.py"}, args...)...)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	require.NoError(t, err, "%s", problems.String())
	require.NoError(t, json.Unmarshal(out, &list), "%s", out)
	return list
}

// TestHTA compares idle time, compute time and overlap. docs/internals/hta.md explains what is not compared.
func TestHTA(t *testing.T) {
	python := os.Getenv("GPUFLIGHT_HTA")
	if python == "" {
		t.Skip("GPUFLIGHT_HTA does not name a Python with the packages of requirements.txt")
	}
	sessions := []session{overlapping(t)}
	for _, pattern := range []string{"../gpu/causes/recordings/*.gz", "../../examples/recordings/pytorch.otlp.jsonl.gz"} {
		paths, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, path := range paths {
			sessions = append(sessions, recorded(t, path))
		}
	}
	paths, err := filepath.Glob("../gpu/ranks/recordings/*-0.otlp.jsonl.gz")
	require.NoError(t, err)
	require.Len(t, paths, 3)
	for _, path := range paths {
		var run []ranks.Input
		members := []session{recorded(t, path), recorded(t, strings.Replace(path, "-0.", "-1.", 1))}
		for _, s := range members {
			info, err := s.store.Session(t.Context(), "", s.id)
			require.NoError(t, err)
			run = append(run, ranks.FromSession(s.store, &info))
		}
		together, err := ranks.Run(t.Context(), run, ranks.Options{})
		require.NoError(t, err)
		require.Len(t, together.Ranks, len(members))
		for i := range members {
			members[i].rank = &together.Ranks[i]
		}
		sessions = append(sessions, members...)
	}

	dir := t.TempDir()
	var args [2][]string
	for _, s := range sessions {
		for j := range args {
			path := export(t, s, dir, j == 0)
			if s.rank != nil && s.rank.Rank > 0 {
				args[j][len(args[j])-1] += "," + path
			} else {
				args[j] = append(args[j], path)
			}
		}
	}
	whole, bare := theirs(t, python, args[0]), theirs(t, python, args[1])
	require.Len(t, whole, len(sessions))
	require.Len(t, bare, len(sessions))
	for i, s := range sessions {
		t.Run(s.name, func(t *testing.T) {
			r, err := analysis.Run(t.Context(), analysis.FromReader(s.store, "", s.id), analysis.Options{From: s.from, To: s.to})
			require.NoError(t, err)
			require.Len(t, r.Devices, 1)
			d := &r.Devices[0]
			ours := []int64{d.IdleNs, d.ComputeNs, d.CommunicationNs + d.CopyNs, d.WallNs}
			line := s.name
			hostWaits, streamWaits := waits(t, s)
			for j, name := range []string{"idle", "compute", "other", "total"} {
				line += fmt.Sprintf(" | %.3f %.3f", float64(ours[j])/1000, *whole[i][j])
				// Their µs since the start of the session are floating point numbers.
				delta := 0.001*float64(1+r.Operations)/1000 + 0.01
				assert.InDelta(t, float64(ours[j])/1000, *bare[i][j], delta, "%s without waits", name)
				if streamWaits || hostWaits && name != "compute" {
					continue // their device works during waits, and waits of streams are compute time
				}
				assert.InDelta(t, float64(ours[j])/1000, *whole[i][j], delta, name)
			}
			if d.CommunicationTotalNs > 0 {
				overlap := 100 * float64(d.CommunicationTotalNs-d.CommunicationNs) / float64(d.CommunicationTotalNs)
				require.NotNil(t, bare[i][4])
				line += fmt.Sprintf(" | %.2f %% %.2f %%", overlap, *whole[i][4])
				assert.InDelta(t, math.Round(overlap*100)/100, *bare[i][4], 0.011)
				if !streamWaits {
					assert.InDelta(t, math.Round(overlap*100)/100, *whole[i][4], 0.011)
				}
			}
			if s.rank != nil {
				assert.Equal(t, []int64{d.CommunicationTotalNs, d.CommunicationNs}, []int64{s.rank.CommunicationNs, s.rank.ExposedNs})
			}
			t.Log(line)
		})
	}
}
