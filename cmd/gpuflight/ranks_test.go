// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/analysis/ranks"
	"github.com/gpuflight/gpuflight/internal/testing/trainsim"
	"github.com/gpuflight/gpuflight/semconv"
)

// training writes a file for each rank of a training.
func training(t *testing.T, run string) (files []string) {
	sim := trainsim.Training{Run: run, Start: 1_700_000_000_000_000_000, Ranks: 3, Steps: 30, Slow: 1, DelayNs: 20_000_000, OffsetNs: -1_300_000_000}
	for r, td := range sim.Traces() {
		line, err := (&ptrace.JSONMarshaler{}).MarshalTraces(td)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), string(rune('0'+r))+".otlp.jsonl")
		if err := os.WriteFile(path, append(line, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, path)
	}
	return files
}

func TestRanks_Files(t *testing.T) {
	files := training(t, "run-1")
	code, stdout, stderr := command(append([]string{"ranks"}, files...)...)
	if code != 0 || stderr != "" {
		t.Fatalf("status %d: %s", code, stderr)
	}
	for _, want := range []string{
		"3 ranks, 30 collectives of several ranks", "rank 2    rank 0  -2600.0", "1. Rank 1 came last in 1", "Cause in the 8 largest delays: more idle time by the cause host code",
		"ncclDevKernel_AllReduce_Sum_f32_RING_LL",
	} {
		if !strings.Contains(strings.ReplaceAll(stdout, "\n   ", " "), want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	code, stdout, _ = command(append([]string{"ranks", "--json", "--top", "5"}, files...)...)
	var got ranks.Result
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 {
		t.Fatal(code, err)
	}
	if len(got.Collectives) != 5 || got.Total != 30 || len(got.Findings) != 1 || got.Ranks[got.Findings[0].Rank].Rank != 1 {
		t.Errorf("got %+v", got)
	}
	if late := got.Ranks[1].LateNs; late < 195_000_000 || late > 205_000_000 {
		t.Errorf("rank 1 is late by %d ns of 200 ms", late)
	}
}

// TestMissingWork compares ranks and sessions of which a budget recorded a tenth of the time.
func TestMissingWork(t *testing.T) {
	files := training(t, "run-1")
	text, err := os.ReadFile(files[1])
	if err != nil {
		t.Fatal(err)
	}
	td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(text)
	if err != nil {
		t.Fatal(err)
	}
	logs := plog.NewLogs()
	to := logs.ResourceLogs().AppendEmpty()
	td.ResourceSpans().At(0).Resource().CopyTo(to.Resource())
	record := to.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
	record.SetEventName(semconv.EventCUDACapture)
	record.SetTimestamp(td.ResourceSpans().At(0).ScopeSpans().At(0).Spans().At(0).StartTimestamp())
	record.Attributes().PutDouble(semconv.CUDACaptureRecordedRatio, 0.1)
	line, err := (&plog.JSONMarshaler{}).MarshalLogs(logs)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files[1], append(text, line...), 0o600); err != nil {
		t.Fatal(err)
	}
	const missing = "About 90 % of the work is missing: an overhead budget left 10 % of the time recorded."
	for _, c := range []struct {
		args []string
		want string
	}{
		{append([]string{"ranks"}, files...), missing + " The times of its communication are too small"},
		{append([]string{"ranks"}, files...), "The ranks are not compared, because collectives can be missing."},
		{[]string{"diff", files[0], files[1]}, "Note: B: " + missing + " Only the times of its recorded kernels are compared."},
		{[]string{"diff", files[0], files[1]}, "EFFECT is the change of the time of the recorded calls of B."},
	} {
		code, stdout, stderr := command(c.args...)
		if stdout = strings.ReplaceAll(stdout, "\n", " "); code != 0 || !strings.Contains(stdout, c.want) || strings.Contains(stdout, "came last") || strings.Contains(stdout, "→") {
			t.Errorf("%v: status %d, no %q in %s%s", c.args, code, c.want, stdout, stderr)
		}
	}
}

func TestRanks_Errors(t *testing.T) {
	one, other := training(t, "run-1"), training(t, "run-2")
	for name, x := range map[string]struct {
		args []string
		code int
		text string
	}{
		"two runs":    {append(one, other[0]), 1, `the files have sessions of 2 runs: use --run with one of "run-1", "run-2"`},
		"unknown run": {[]string{"--run", "x", one[0]}, 1, `the files have no session of run "x": they have "run-1"`},
		"nothing":     {nil, 2, "nothing to compare"},
		"mixed":       {[]string{one[0], "0123"}, 2, "some arguments are files"},
		"top":         {[]string{"--top", "0", one[0]}, 2, "use 1 to 10000"},
		"url":         {[]string{"--url", "x", "--run", "y"}, 2, "--url"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := command(append([]string{"ranks"}, x.args...)...)
			if code != x.code || !strings.Contains(stderr, x.text) {
				t.Errorf("status %d: %s", code, stderr)
			}
		})
	}
}

func TestRanks_Store(t *testing.T) {
	var asked string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.RequestURI()
		_, _ = w.Write([]byte(`{"base":"5","ranks":[{"rank":0,"session":"s","base":"7"}],"problems":["One rank only."]}`))
	}))
	defer s.Close()
	code, stdout, stderr := command("ranks", "--url", s.URL, "--run", "a b")
	if code != 0 || asked != "/api/v1/ranks?limit=10&run=a+b" || !strings.Contains(stdout, "One rank only.") {
		t.Errorf("status %d, request %s: %s%s", code, asked, stdout, stderr)
	}
}
