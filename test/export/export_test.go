// SPDX-License-Identifier: Apache-2.0

// Package export_test exports sessions with the shipped binaries, reads the files with the tools of
// their formats, and compares the sums with those of the store.
package export_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/duckdb/duckdb-go/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/recording/profile"
	"github.com/gpuflight/gpuflight/internal/recording/profile/profiletest"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

var (
	collector = process.Binary{Env: "GPUFLIGHT_COLLECTOR", Path: "bin/otelcol-gpuflight", Make: "make build"}
	cli       = process.Binary{Env: "GPUFLIGHT_CLI", Path: "bin/gpuflight", Make: "make build"}
	perfetto  = process.Binary{Env: "GPUFLIGHT_PERFETTO", Path: ".tools/perfetto/perfetto", Make: "make .tools/perfetto/perfetto"}
)

// total is a number of operations and their nanoseconds.
type total [2]int64

// session is what the store answers about a session.
type session struct {
	ID         string
	Service    string
	Operations map[string]int64
	Counts     map[string]int64
	KernelNs   int64 `json:"kernel_ns"`
	kernels    map[string]total
	spans      int64
}

// runs is a Collector with all recordings.
type runs struct {
	address  string
	cli      string
	sessions []session
}

// start opens the recordings as users do.
func start(t *testing.T) *runs {
	bin := t.TempDir()
	for name, b := range map[string]process.Binary{"otelcol-gpuflight": collector, "gpuflight": cli} {
		text, err := os.ReadFile(b.Find(t)) // gpuflight looks beside its own file
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), text, 0o700))
	}
	r := &runs{address: "http://" + process.FreePort(t), cli: filepath.Join(bin, "gpuflight")}
	view := process.Start(t, r.cli, "view", "--listen", strings.TrimPrefix(r.address, "http://"), filepath.Join(process.Root(t), "examples", "recordings"))
	view.WaitOutput("Open the UI", 2*time.Minute)
	var list struct{ Sessions []session }
	r.get(t, "/sessions", &list)
	require.Len(t, list.Sessions, 4)
	for _, s := range list.Sessions {
		if s.Operations["kernel"] == 0 { // cupy has samples of kernels, no kernels
			continue
		}
		var answer struct {
			Groups []struct {
				Name  string
				Count int64
				SumNs int64 `json:"sum_ns"`
			}
		}
		r.get(t, "/sessions/"+s.ID+"/kernels?group=name&limit=1000", &answer)
		s.kernels = map[string]total{}
		for _, k := range answer.Groups {
			s.kernels[k.Name] = total{k.Count, k.SumNs}
		}
		require.NotEmpty(t, s.kernels)
		s.spans = s.Counts["spans"]
		r.sessions = append(r.sessions, s)
	}
	require.Len(t, r.sessions, 3)
	return r
}

func (r *runs) get(t *testing.T, path string, answer any) {
	t.Helper()
	resp, err := http.Get(r.address + "/api/v1" + path)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	require.Equal(t, http.StatusOK, resp.StatusCode, path)
	require.NoError(t, json.NewDecoder(resp.Body).Decode(answer))
}

// export writes a session with the command line tool and returns the file.
func (r *runs) export(t *testing.T, s *session, flags ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "exported")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	args := append([]string{"export", "--url", r.address, "-o", file}, flags...)
	out, err := exec.CommandContext(ctx, r.cli, append(args, s.ID[:8])...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "exported "+s.ID+" to "+file)
	return file
}

func TestExport_Formats(t *testing.T) {
	r := start(t)
	for i := range r.sessions {
		s := &r.sessions[i]
		t.Run(s.Service, func(t *testing.T) {
			t.Run("perfetto", func(t *testing.T) { r.perfetto(t, s) })
			t.Run("chrome", func(t *testing.T) { r.chrome(t, s) })
			t.Run("pprof", func(t *testing.T) { r.pprof(t, s) })
			t.Run("otlp-profiles", func(t *testing.T) { r.profiles(t, s) })
			t.Run("parquet", func(t *testing.T) { r.parquet(t, s) })
			t.Run("session", func(t *testing.T) { r.session(t, s) })
		})
	}
}

func (r *runs) perfetto(t *testing.T, s *session) {
	python := perfetto.FindFetched(t, "no Python with pip here to fetch Perfetto's classes with", "pip3")
	out, err := exec.Command(python, "read_perfetto.py", r.export(t, s, "--format", "perfetto")).Output()
	var failed *exec.ExitError
	if ok := err != nil; ok {
		if e, is := err.(*exec.ExitError); is { //nolint:errorlint // Output returns it as it is
			failed = e
		}
		require.NoError(t, err, "%s", failed.Stderr)
	}
	var got struct {
		Process          string
		Devices          []string
		Stages, Kernels  map[string]total
		Slices, Counters map[string]int64
		Launches         map[string]int64
		Unparented       int
	}
	require.NoError(t, json.Unmarshal(out, &got))
	assert.Equal(t, s.Service, got.Process)
	assert.Equal(t, []string{"NVIDIA H200 #0"}, got.Devices)
	assert.Equal(t, s.kernels, got.Kernels)
	assert.Equal(t, total{s.Operations["kernel"], s.KernelNs}, got.Stages["Kernel"])
	for operation, stage := range map[string]string{"memcpy": "Memory copy", "memset": "Memory set", "graph": "Graph launch"} {
		assert.Equal(t, s.Operations[operation], got.Stages[stage][0], stage)
	}
	kernels := s.Operations["kernel"]
	assert.Equal(t, map[string]int64{"grid": kernels, "block": kernels, "registers": kernels}, got.Launches)
	slices := int64(0)
	for _, n := range got.Slices {
		slices += n
	}
	assert.Equal(t, s.spans, slices)
	assert.NotEmpty(t, got.Counters)
	assert.Zero(t, got.Unparented)
}

func (r *runs) chrome(t *testing.T, s *session) {
	text, err := os.ReadFile(r.export(t, s, "--format", "chrome"))
	require.NoError(t, err)
	var trace struct {
		TraceEvents []struct {
			Ph, Name, Cat string
			Dur           json.Number
			Args          map[string]any
		}
	}
	require.NoError(t, json.Unmarshal(text, &trace))
	kernels := map[string]total{}
	copies := int64(0)
	for _, e := range trace.TraceEvents {
		switch e.Cat {
		case "kernel":
			ns, err := strconv.ParseInt(strings.ReplaceAll(e.Dur.String(), ".", ""), 10, 64)
			require.NoError(t, err)
			k := kernels[e.Name]
			kernels[e.Name] = total{k[0] + 1, k[1] + ns}
			require.NotNil(t, e.Args["grid"])
		case "gpu_memcpy":
			copies++
		}
	}
	assert.Equal(t, s.kernels, kernels)
	assert.Equal(t, s.Operations["memcpy"], copies)
}

// topLine is a row of go tool pprof -top: flat, its share, the running sum, cum, its share, name.
var topLine = regexp.MustCompile(`(?m)^ +(\d+)(?:ns)? +\S+% +\S+% +(\d+)(?:ns)? +\S+%  (.+)$`)

func (r *runs) pprof(t *testing.T, s *session) {
	file := r.export(t, s, "--format", "pprof")
	got := map[string]total{}
	for i, value := range []string{"launches", "kernel_time"} {
		out, err := exec.Command("go", "tool", "pprof", "-top", "-nodecount=0", "-nodefraction=0", "-edgefraction=0", "-unit=ns", "-sample_index="+value, file).Output()
		require.NoError(t, err)
		for _, m := range topLine.FindAllStringSubmatch(string(out), -1) {
			n, err := strconv.ParseInt(m[1], 10, 64)
			require.NoError(t, err)
			if n > 0 {
				k := got[m[3]]
				k[i] = n
				got[m[3]] = k
			}
		}
	}
	assert.Equal(t, s.kernels, got)
}

// profiles expects the sums of pprof.
func (r *runs) profiles(t *testing.T, s *session) {
	var requests []profile.Profiles
	stats, err := otlp.ReadFile(r.export(t, s, "--format", "otlp-profiles"), otlp.Handler{Profiles: func(p profile.Profiles) { requests = append(requests, p) }})
	require.NoError(t, err)
	require.Zero(t, stats.Bad)
	values := []string{"launches/count", "kernel_time/nanoseconds"}
	got := map[string]total{}
	for _, x := range profiletest.Samples(t, requests...) {
		assert.Equal(t, s.Service, x.Resource["service.name"])
		i := slices.Index(values, x.Type)
		require.NotEqual(t, -1, i, x.Type)
		k := got[x.Stack[0]]
		k[i] += x.Value
		got[x.Stack[0]] = k
	}
	assert.Equal(t, s.kernels, got)
}

func (r *runs) parquet(t *testing.T, s *session) {
	db, err := sql.Open("duckdb", "")
	require.NoError(t, err)
	defer func() { assert.NoError(t, db.Close()) }()
	count := func(table, query string, into ...any) {
		file := r.export(t, s, "--format", "parquet", "--table", table)
		require.NoError(t, db.QueryRow(fmt.Sprintf(query, "read_parquet('"+file+"')")).Scan(into...))
	}
	var kernels, ns, streams, named int64
	count("operations", `SELECT count(*), sum(duration_ns)::BIGINT, count(stream), count(*) FILTER (name != '') FROM %s WHERE operation = 'kernel'`, &kernels, &ns, &streams, &named)
	assert.Equal(t, total{s.Operations["kernel"], s.KernelNs}, total{kernels, ns})
	assert.Equal(t, kernels, streams)
	assert.Equal(t, kernels, named)
	var spans int64
	count("spans", `SELECT count(DISTINCT span_id) FROM %s`, &spans)
	assert.Equal(t, s.spans, spans)
}

func (r *runs) session(t *testing.T, s *session) {
	file := r.export(t, s, "--format", "session")
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Positive(t, info.Size())
}

func TestExport_FromFile(t *testing.T) {
	bin := t.TempDir()
	require.NoError(t, os.Symlink(collector.Find(t), filepath.Join(bin, "otelcol-gpuflight")))
	recordings := filepath.Join(process.Root(t), "examples", "recordings")
	run := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c := exec.CommandContext(ctx, cli.Find(t), append([]string{"export"}, args...)...)
		c.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
		c.Dir = t.TempDir()
		out, err := c.CombinedOutput()
		return string(out), err
	}
	file := filepath.Join(t.TempDir(), "x.json")
	out, err := run("--format", "chrome", "-o", file, filepath.Join(recordings, "vectoradd.otlp.jsonl.gz"))
	require.NoError(t, err, out)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, 204, strings.Count(string(text), `"cat":"kernel"`))

	out, err = run("--format", "chrome", "-o", file+"2", recordings)
	require.Error(t, err)
	assert.Contains(t, out, "4 sessions match: choose one with --session: ")
	out, err = run("--format", "chrome", "-o", file, filepath.Join(recordings, "vectoradd.otlp.jsonl.gz"))
	require.Error(t, err)
	assert.Contains(t, out, "file exists")
	out, err = run("--format", "chrome", "absent.otlp.jsonl")
	require.Error(t, err)
	assert.Contains(t, out, "no such file")
}
