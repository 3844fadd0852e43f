// SPDX-License-Identifier: Apache-2.0

// Package mcp_test calls the tools of `gpuflight mcp` with the client of the protocol's SDK, on recordings
// and on a running Collector.
package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/internal/testing/trainsim"
	"github.com/gpuflight/gpuflight/semconv"
)

var (
	collector = process.Binary{Env: "GPUFLIGHT_COLLECTOR", Path: "bin/otelcol-gpuflight", Make: "make build"}
	cli       = process.Binary{Env: "GPUFLIGHT_CLI", Path: "bin/gpuflight", Make: "make build"}
)

// maxAnswer is the documented size of an answer.
const maxAnswer = 64 << 10

type client struct {
	*mcp.ClientSession
	t   *testing.T
	cmd *exec.Cmd
}

// connect starts gpuflight mcp with arguments.
func connect(t *testing.T, args ...string) *client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.Command(cli.Find(t), append([]string{"mcp"}, args...)...)
	cmd.Stderr = t.Output()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return &client{s, t, cmd}
}

// call returns the text of an answer, and whether it is an error.
func (c *client) call(tool string, args map[string]any) (text string, failed bool) {
	c.t.Helper()
	r, err := c.CallTool(c.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	require.NoError(c.t, err)
	require.Len(c.t, r.Content, 1)
	text = r.Content[0].(*mcp.TextContent).Text
	assert.LessOrEqual(c.t, len(text), maxAnswer)
	return text, r.IsError
}

func (c *client) get(tool string, args map[string]any, answer any) {
	c.t.Helper()
	text, failed := c.call(tool, args)
	require.False(c.t, failed, text)
	require.NoError(c.t, json.Unmarshal([]byte(text), answer), text)
}

type ref struct {
	Span  string
	Start int64
	Name  string
}

// cited checks that the tool span finds a span that an answer cites.
func (c *client) cited(session string, r ref) {
	c.t.Helper()
	require.Len(c.t, r.Span, 16)
	var answer struct{ Operation, Span *ref }
	c.get("span", map[string]any{"session": session, "span": r.Span, "start": r.Start}, &answer)
	found := answer.Operation
	if found == nil {
		found = answer.Span
	}
	require.NotNil(c.t, found)
	assert.Equal(c.t, r.Span, found.Span)
	assert.Equal(c.t, r.Start, found.Start)
}

type sessions struct {
	Sessions []struct {
		ID, Service string
		Operations  map[string]int64
	}
	Left map[string]int `json:"left_out"`
}

// setUp makes the Collector available to gpuflight, which looks beside its own file and on PATH.
func setUp(t *testing.T) (recording string) {
	bin := t.TempDir()
	require.NoError(t, os.Symlink(collector.Find(t), filepath.Join(bin, "otelcol-gpuflight")))
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	return filepath.Join(process.Root(t), "test", "gpu", "causes", "recordings", "item.otlp.jsonl.gz")
}

func TestMCP_Recording(t *testing.T) {
	recording := setUp(t)
	c := connect(t, "--url", "http://"+process.FreePort(t))

	tools, err := c.ListTools(t.Context(), nil)
	require.NoError(t, err)
	var names []string
	for _, tool := range tools.Tools {
		names = append(names, tool.Name)
		assert.NotEmpty(t, tool.Description, tool.Name)
		assert.True(t, tool.Annotations.ReadOnlyHint, tool.Name)
	}
	for _, name := range []string{"list_sessions", "open_recording", "report", "steps", "idle_gaps", "critical_path", "kernels", "scopes", "span"} {
		assert.Contains(t, names, name)
	}

	text, failed := c.call("list_sessions", nil)
	assert.True(t, failed)
	assert.Contains(t, text, "no Collector answers at")
	text, failed = c.call("open_recording", map[string]any{"path": recording + ".absent"})
	assert.True(t, failed)
	assert.Contains(t, text, "no such file")

	var opened sessions
	c.get("open_recording", map[string]any{"path": recording}, &opened)
	require.Len(t, opened.Sessions, 1)
	assert.Equal(t, "item", opened.Sessions[0].Service)
	checkTools(t, c, opened.Sessions[0].ID)
}

// TestMCP_Concurrent calls a tool while a recording loads, here from a pipe without a writer.
func TestMCP_Concurrent(t *testing.T) {
	recording := setUp(t)
	c := connect(t, "--url", "http://"+process.FreePort(t), recording)
	pipe := filepath.Join(t.TempDir(), "pipe.otlp.jsonl")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	var loading sync.WaitGroup
	loading.Go(func() {
		r, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "open_recording", Arguments: map[string]any{"path": pipe}})
		if assert.NoError(t, err) {
			assert.False(t, r.IsError, r.Content)
		}
	})
	writer, err := os.OpenFile(pipe, os.O_WRONLY, 0) // returns when gpuflight reads
	require.NoError(t, err)
	var list sessions
	c.get("list_sessions", nil, &list)
	assert.Len(t, list.Sessions, 1)
	require.NoError(t, writer.Close())
	loading.Wait()
}

// TestMCP_CollectorEnds kills the Collector that has the recordings.
func TestMCP_CollectorEnds(t *testing.T) {
	recording := setUp(t)
	c := connect(t, "--url", "http://"+process.FreePort(t), recording)
	var before, after sessions
	c.get("list_sessions", nil, &before)
	require.Len(t, before.Sessions, 1)
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", c.cmd.Process.Pid))
	require.NoError(t, err)
	var children []string
	for _, list := range lists {
		text, err := os.ReadFile(list)
		require.NoError(t, err)
		children = append(children, strings.Fields(string(text))...)
	}
	require.Len(t, children, 1)
	pid, err := strconv.Atoi(children[0])
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.Eventually(t, func() bool { // gpuflight does not know of the end at once
		_, failed := c.call("list_sessions", nil)
		return !failed
	}, time.Minute, 10*time.Millisecond)
	c.get("list_sessions", nil, &after)
	assert.Equal(t, before, after)
}

func TestMCP_Collector(t *testing.T) {
	recording := setUp(t)
	address := process.FreePort(t)
	view := process.Start(t, cli.Find(t), "view", "--listen", address, recording)
	view.WaitOutput("Open the UI", 2*time.Minute)
	c := connect(t, "--url", "http://"+address)
	var list sessions
	c.get("list_sessions", map[string]any{"text": "ITEM"}, &list)
	require.Len(t, list.Sessions, 1)
	checkTools(t, c, list.Sessions[0].ID)
}

// TestMCP_Ranks reads two ranks of which rank 1 slept for 15 ms in every third step: test/gpu/ranks.py.
func TestMCP_Ranks(t *testing.T) {
	setUp(t)
	folder := filepath.Join(process.Root(t), "test", "gpu", "ranks", "recordings")
	c := connect(t, "--url", "http://"+process.FreePort(t), filepath.Join(folder, "nccl-host-0.otlp.jsonl.gz"), filepath.Join(folder, "nccl-host-1.otlp.jsonl.gz"))
	var list struct {
		Sessions []struct{ ID, Run string }
	}
	c.get("list_sessions", nil, &list)
	require.Len(t, list.Sessions, 2)
	require.NotEmpty(t, list.Sessions[0].Run)
	assert.Equal(t, list.Sessions[0].Run, list.Sessions[1].Run)
	var answer struct {
		Ranks []struct {
			Session string
			LateNs  int64 `json:"late_ns"`
			Cause   *struct {
				Kind     string
				Evidence []ref
			}
		}
		Total int            `json:"collectives_total"`
		Left  map[string]int `json:"left_out"`
	}
	c.get("ranks", map[string]any{"run": list.Sessions[0].Run, "limit": 3}, &answer)
	require.Len(t, answer.Ranks, 2)
	assert.Equal(t, 743, answer.Total)
	assert.Equal(t, 740, answer.Left["collectives"])
	assert.Less(t, answer.Ranks[0].LateNs, time.Millisecond.Nanoseconds())
	assert.InDelta(t, 417*time.Millisecond.Nanoseconds(), answer.Ranks[1].LateNs, float64(time.Millisecond), "TestRanks_NCCL explains it")
	cause := answer.Ranks[1].Cause
	require.NotNil(t, cause)
	assert.Equal(t, "host", cause.Kind)
	require.NotEmpty(t, cause.Evidence)
	var span struct{ Operation ref }
	c.get("span", map[string]any{"session": answer.Ranks[1].Session, "span": cause.Evidence[0].Span}, &span)
	assert.Equal(t, cause.Evidence[0].Span, span.Operation.Span)
}

// recordingOf writes the telemetry of a session as a recording.
func recordingOf(t *testing.T, td ptrace.Traces, ld plog.Logs) string {
	t.Helper()
	traces, err := (&ptrace.JSONMarshaler{}).MarshalTraces(td)
	require.NoError(t, err)
	text := append(traces, '\n')
	if ld.LogRecordCount() > 0 {
		logs, err := (&plog.JSONMarshaler{}).MarshalLogs(ld)
		require.NoError(t, err)
		text = append(text, append(logs, '\n')...)
	}
	path := filepath.Join(t.TempDir(), "run.otlp.jsonl")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

// TestMCP_LargeReport reads a session of 16 devices that each run 30 small kernels with long names.
func TestMCP_LargeReport(t *testing.T) {
	setUp(t)
	sim := trainsim.Training{Run: "large", Start: 1_700_000_000_000_000_000, Ranks: 16, Steps: 10}
	td := ptrace.NewTraces()
	for i, rank := range sim.Traces() {
		rank.ResourceSpans().At(0).Resource().Attributes().PutStr(semconv.ServiceInstanceID, sim.Session(0))
		for n, s := range rank.ResourceSpans().At(0).ScopeSpans().At(0).Spans().All() {
			name := fmt.Sprintf("kernel_%d_%s", n%30, strings.Repeat("<float>", 60))
			s.SetName(name)
			a := s.Attributes()
			a.PutStr(semconv.CUDAKernelName, name)
			a.PutDouble(semconv.CUDAOccupancyGridFill, 0.25)
			grid := a.PutEmptySlice(semconv.CUDAKernelGrid)
			for _, n := range []int64{4, 1, 1} {
				grid.AppendEmpty().SetInt(n)
			}
		}
		if i == 0 {
			rank.CopyTo(td)
			continue
		}
		rank.ResourceSpans().At(0).ScopeSpans().MoveAndAppendTo(td.ResourceSpans().At(0).ScopeSpans())
	}
	c := connect(t, "--url", "http://"+process.FreePort(t), recordingOf(t, td, plog.NewLogs()))
	for _, limit := range []int{1, 50} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			var report struct {
				Analysis struct {
					Devices []struct {
						Launches *struct{ Calls int64 }
						Small    []struct {
							Name string
							Grid []int64
						} `json:"small_kernels"`
					}
				}
				Left map[string]int `json:"left_out"`
			}
			c.get("report", map[string]any{"session": sim.Session(0), "limit": limit}, &report)
			require.Len(t, report.Analysis.Devices, 16)
			small := report.Left["small_kernels"]
			for _, d := range report.Analysis.Devices {
				require.NotNil(t, d.Launches)
				assert.Equal(t, int64(60), d.Launches.Calls)
				require.NotEmpty(t, d.Small)
				assert.Len(t, []rune(d.Small[0].Name), 300)
				assert.Equal(t, []int64{4, 1, 1}, d.Small[0].Grid)
				small += len(d.Small)
			}
			assert.Equal(t, 16*30, small, "an analysis has 20 of each device, and says that there are 30")
			assert.Positive(t, report.Left["gaps"])
		})
	}
}

// TestMCP_CompareMissingWork compares a session with one of which a fifth of the time was recorded.
func TestMCP_CompareMissingWork(t *testing.T) {
	setUp(t)
	args := []string{"--url", "http://" + process.FreePort(t)}
	for _, id := range []string{"whole", "part"} {
		sim := trainsim.Training{Run: id, Start: 1_700_000_000_000_000_000, Ranks: 1, Steps: 24}
		td, ld := sim.Traces()[0], plog.NewLogs()
		resource := td.ResourceSpans().At(0).Resource()
		resource.Attributes().PutStr(semconv.ServiceInstanceID, id)
		if id == "part" {
			rl := ld.ResourceLogs().AppendEmpty()
			resource.CopyTo(rl.Resource())
			r := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
			r.SetTimestamp(pcommon.Timestamp(sim.Start))
			r.SetEventName(semconv.EventCUDACapture)
			r.Attributes().PutDouble(semconv.CUDACaptureRecordedRatio, 0.2)
		}
		args = append(args, recordingOf(t, td, ld))
	}
	c := connect(t, args...)
	type missing struct {
		Share float64
		Text  string
	}
	want := &missing{0.8, "About 80 % of the work is missing: an overhead budget left 20 % of the time recorded."}
	var comparison struct {
		A, B     struct{ Missing *missing }
		Step     any
		Parts    []any
		Warnings []string
		Kernels  []struct {
			Name               string
			Duration, Launches any
		}
	}
	c.get("compare", map[string]any{"a": "whole", "b": "part"}, &comparison)
	assert.Nil(t, comparison.A.Missing)
	assert.Equal(t, want, comparison.B.Missing)
	assert.Equal(t, []string{"B: " + want.Text + " Only the times of its recorded kernels are compared."}, comparison.Warnings)
	assert.Nil(t, comparison.Step)
	assert.Empty(t, comparison.Parts)
	require.Len(t, comparison.Kernels, 3)
	for _, k := range comparison.Kernels {
		assert.NotNil(t, k.Duration, k.Name)
		assert.Nil(t, k.Launches, k.Name)
	}

	var step struct {
		Steps struct {
			Device  string
			Typical struct {
				Start  int64
				WallNs int64 `json:"wall_ns"`
			}
		}
	}
	c.get("steps", map[string]any{"session": "part"}, &step)
	typical := step.Steps.Typical
	var path struct {
		Missing *missing
		Parts   []struct{ Assumed bool }
	}
	c.get("critical_path", map[string]any{"session": "part", "from": typical.Start, "to": typical.Start + typical.WallNs, "device": step.Steps.Device}, &path)
	assert.Equal(t, want, path.Missing)
	require.NotEmpty(t, path.Parts)
	for _, p := range path.Parts {
		assert.True(t, p.Assumed)
	}
}

// scope returns a scope of a session.
func scope(c *client, session string) ref {
	var scopes struct{ Scopes []struct{ Longest ref } }
	c.get("scopes", map[string]any{"session": session, "limit": 1}, &scopes)
	require.Len(c.t, scopes.Scopes, 1)
	return scopes.Scopes[0].Longest
}

// checkTools checks the answers about the recording item, whose cause is known.
func checkTools(t *testing.T, c *client, session string) {
	id := session[:8]
	var report struct {
		Session  string
		Analysis struct {
			Operations int64
			Devices    []struct {
				Bound string
				Gaps  []any
			}
			Steps    struct{ Count int64 }
			Findings []struct {
				Kind     string
				Evidence []ref
			}
		}
		Kernels struct {
			Groups []struct {
				Name    string
				Count   int64
				SumNs   int64 `json:"sum_ns"`
				Longest ref
			}
		}
		Left map[string]int `json:"left_out"`
	}
	c.get("report", map[string]any{"session": id, "limit": 2}, &report)
	assert.Equal(t, session, report.Session)
	assert.Equal(t, int64(1297), report.Analysis.Operations)
	assert.Equal(t, int64(50), report.Analysis.Steps.Count)
	require.Len(t, report.Analysis.Devices, 1)
	assert.Equal(t, "host", report.Analysis.Devices[0].Bound)
	assert.LessOrEqual(t, len(report.Analysis.Devices[0].Gaps), 3)
	require.NotEmpty(t, report.Analysis.Findings)
	assert.Equal(t, "sync", report.Analysis.Findings[0].Kind)
	require.NotEmpty(t, report.Analysis.Findings[0].Evidence)
	c.cited(session, report.Analysis.Findings[0].Evidence[0])
	require.Len(t, report.Kernels.Groups, 2)
	assert.Equal(t, 48, report.Left["longest"])
	assert.Equal(t, int64(440), report.Kernels.Groups[0].Count)
	c.cited(session, report.Kernels.Groups[0].Longest)

	var shapes struct {
		Groups []struct {
			Shape   struct{ Grid []int64 }
			Longest ref
		}
		Left map[string]int `json:"left_out"`
	}
	c.get("kernels", map[string]any{"session": id, "group": "shape", "text": "NVJET"}, &shapes)
	require.Len(t, shapes.Groups, 1)
	assert.Equal(t, []int64{2, 66, 1}, shapes.Groups[0].Shape.Grid)
	c.cited(session, shapes.Groups[0].Longest)
	assert.Empty(t, shapes.Left)
	c.get("kernels", map[string]any{"session": id, "limit": 1}, &shapes)
	assert.Equal(t, map[string]int{"groups": 3}, shapes.Left)

	var steps struct {
		Steps struct{ Longest []struct{ First ref } }
		Left  map[string]int `json:"left_out"`
	}
	c.get("steps", map[string]any{"session": id, "limit": 4}, &steps)
	require.Len(t, steps.Steps.Longest, 4)
	assert.Positive(t, steps.Left["longest"])
	c.cited(session, steps.Steps.Longest[0].First)

	var step struct {
		Steps struct {
			Device  string
			Typical struct {
				Start  int64
				WallNs int64 `json:"wall_ns"`
			}
		}
	}
	c.get("steps", map[string]any{"session": id}, &step)
	for _, args := range []map[string]any{
		{"session": id, "from": step.Steps.Typical.Start, "to": step.Steps.Typical.Start + step.Steps.Typical.WallNs, "device": step.Steps.Device, "limit": 5},
		{"session": id, "span": scope(c, id).Span, "limit": 5},
	} {
		var path struct {
			From, To int64
			Kinds    []struct{ Ns int64 }
			Parts    []struct{ Spans []ref }
			Left     map[string]int `json:"left_out"`
		}
		c.get("critical_path", args, &path)
		for _, k := range path.Kinds {
			path.From += k.Ns
		}
		assert.Equal(t, path.To, path.From)
		require.Len(t, path.Parts, 5)
		assert.Positive(t, path.Left["parts"])
		c.cited(session, path.Parts[0].Spans[0])
	}

	var idle struct {
		Devices []struct {
			Gaps []struct {
				Idle  map[string]int64 `json:"idle_by_cause_ns"`
				After ref
			}
		}
	}
	c.get("idle_gaps", map[string]any{"session": id, "cause": "sync", "limit": 5}, &idle)
	require.Len(t, idle.Devices, 1)
	require.Len(t, idle.Devices[0].Gaps, 5)
	assert.True(t, slices.IsSortedFunc(idle.Devices[0].Gaps, func(a, b struct {
		Idle  map[string]int64 `json:"idle_by_cause_ns"`
		After ref
	}) int {
		return int(b.Idle["sync"] - a.Idle["sync"])
	}))
	c.cited(session, idle.Devices[0].Gaps[0].After)

	var scopes struct {
		Scopes []struct {
			Names   []string
			Total   struct{ Kernels int64 }
			Longest ref
		}
	}
	c.get("scopes", map[string]any{"session": id, "limit": 3}, &scopes)
	require.Len(t, scopes.Scopes, 1)
	assert.Equal(t, int64(450), scopes.Scopes[0].Total.Kernels)
	assert.Equal(t, []string{"step *"}, scopes.Scopes[0].Names)
	c.cited(session, scopes.Scopes[0].Longest)

	var comparison struct {
		A       string `json:"session_a"`
		B       string `json:"session_b"`
		Verdict string
		Step    struct{ A, B struct{ Longest string } }
		Kernels []struct{ A, B struct{ Longest string } }
		Left    map[string]int `json:"left_out"`
	}
	c.get("compare", map[string]any{"a": id, "b": session, "limit": 1}, &comparison)
	assert.Equal(t, []string{session, session}, []string{comparison.A, comparison.B})
	assert.NotEmpty(t, comparison.Verdict)
	require.Len(t, comparison.Kernels, 1)
	assert.Equal(t, map[string]int{"kernels": 1, "parts": 6}, comparison.Left)
	for _, row := range append(comparison.Kernels, comparison.Step) {
		assert.Equal(t, row.A, row.B)
		var answer struct{ Operation ref }
		c.get("span", map[string]any{"session": session, "span": row.A.Longest}, &answer)
		assert.Equal(t, row.A.Longest, answer.Operation.Span)
	}

	for tool, args := range map[string]map[string]any{
		"ranks":     {"run": "absent"},
		"compare":   {"a": id, "b": "absent"},
		"report":    {"session": "absent"},
		"span":      {"session": id, "span": "12"},
		"idle_gaps": {"session": id, "cause": "weather"},
		"kernels":   {"session": id, "group": "lane"},
		"steps":     {"session": ""},
	} {
		text, failed := c.call(tool, args)
		assert.True(t, failed, "%s: %s", tool, text)
	}
}
