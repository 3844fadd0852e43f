// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/deep/rule"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
)

func TestPrepare_DeepWindowFlags(t *testing.T) {
	_, changes := prepared(t, nil, "--deep-after", "30s", "--deep-for", "2s", "--deep-when", "kernel.rate < 100/s", "--deep-when", "scope(step).p95 > 5ms", "--deep-engine", "both")
	for name, want := range map[string]string{
		"GPUFLIGHT_DEEP": "true", "GPUFLIGHT_DEEP_AFTER": "30s", "GPUFLIGHT_DEEP_FOR": "2s", "GPUFLIGHT_DEEP_ENGINE": "both",
		"GPUFLIGHT_DEEP_WHEN": "kernel.rate < 100/s;scope(step).p95 > 5ms",
	} {
		assert.Equal(t, want, changes[name])
	}
	_, changes = prepared(t, []string{"GPUFLIGHT_DEEP=0"}, "--deep-for", "3s")
	assert.Equal(t, "true", changes["GPUFLIGHT_DEEP"], "a flag wins")
	_, err := parseTrace([]string{"--deep-when", "", "--", "true"}, &bytes.Buffer{})
	require.ErrorAs(t, err, new(*usageError))
	for _, tc := range []struct{ flag, variable, words string }{
		{"", "GPUFLIGHT_DEEP_AFTER=soon", `GPUFLIGHT_DEEP_AFTER is "soon"; `},
		{"", "GPUFLIGHT_DEEP_PERIOD=1", "GPUFLIGHT_DEEP_PERIOD"},
		{"--deep-after=30", "GPUFLIGHT_DEEP_EVERY=often", "--deep-after is \"30\"; "},
		{"--deep-after=30", "GPUFLIGHT_DEEP_EVERY=often", "GPUFLIGHT_DEEP_EVERY is \"often\"; "},
		{"--max-spans=many", "", "--max-spans"},
	} {
		library := emptyLibrary(t)
		args := []string{"--library", library, "--", "true"}
		if tc.flag != "" {
			args = append([]string{tc.flag}, args...)
		}
		cfg, err := parseTrace(args, &bytes.Buffer{})
		require.NoError(t, err)
		_, err = prepare(cfg, []string{tc.variable})
		require.ErrorContains(t, err, tc.words, "users read of what they wrote")
		assert.ErrorAs(t, err, new(*usageError))
	}
	_, err = parseDeep([]string{"--for", "2", "17"}, &bytes.Buffer{})
	assert.EqualError(t, err, `invalid value "2" for --for: write a duration with its unit, such as 500ms or 2s`)
}

func TestPrintNoWindow_Reasons(t *testing.T) {
	rules := []rule.Rule{{Text: "kernel.rate < 1/s"}, {Text: "scope(step).p95 > 5ms"}}
	began := time.Now()
	for _, tc := range []struct {
		cfg  deep.Config
		want string
	}{
		{deep.Config{}, ""},
		{deep.Config{After: 30 * time.Second}, "no deep window opened: the first was to open 30s after the start, and the command took 1.2s\n"},
		{deep.Config{After: time.Second}, "no deep window opened at the configured time: "},
		{deep.Config{Every: 5 * time.Minute}, "no deep window opened: the first was to open 5m0s after the start, and the command took 1.2s\n"},
		{deep.Config{When: rules}, "no deep window opened for the rule \"kernel.rate < 1/s\": it was not met, "},
		{deep.Config{When: rules}, "no deep window opened for the rule \"scope(step).p95 > 5ms\": it was not met, "},
		{deep.Config{Signal: "USR2"}, "no deep window opened for SIGUSR2: none arrived "},
	} {
		var out bytes.Buffer
		tr := &tracing{deep: tc.cfg, began: began, ended: began.Add(1200 * time.Millisecond)}
		tr.printWindows(&printer{&out}, []recorder.Summary{{PID: 7}})
		assert.Contains(t, out.String(), tc.want)
		out.Reset()
		tr.printWindows(&printer{&out}, nil)
		tr.printWindows(&printer{&out}, []recorder.Summary{{PID: 7, Windows: &recorder.WindowCounts{Attempts: 1}}})
		assert.NotContains(t, out.String(), "no deep window opened")
	}
}

func TestReportOverhead(t *testing.T) {
	var out bytes.Buffer
	new(tracing).reportOverhead(&printer{&out}, []recorder.Summary{
		{PID: 7},
		{PID: 8, Overhead: &recorder.OverheadSummary{Budget: 0.02, Ratio: 0.019, Met: true}},
		{PID: 9, Overhead: &recorder.OverheadSummary{Budget: 0.02, Ratio: 0.66}},
		{PID: 10, Overhead: &recorder.OverheadSummary{Budget: 0.02, Ratio: 0.01, Met: true, Failure: "CUPTI cannot be attached: in use"}},
	})
	assert.Equal(t, "gpuflight: process 9 did not keep the overhead budget of 2 %: recording cost up to 66 % of its time\n"+
		"gpuflight: process 10: CUPTI cannot be attached: in use\n", out.String())
}

func TestPrepare_BudgetAndDeepProfiling(t *testing.T) {
	library := emptyLibrary(t)
	for _, test := range []struct {
		name    string
		environ []string
		flags   []string
		want    string
	}{
		{"flags", nil, []string{"--overhead-budget", "2%", "--deep-after", "30s"}, "--overhead-budget and deep profiling (GPUFLIGHT_DEEP) exclude each other: remove one of them"},
		{"flag and variable", []string{"GPUFLIGHT_DEEP=1"}, []string{"--overhead-budget", "2%"}, "--overhead-budget and deep profiling (GPUFLIGHT_DEEP) exclude each other: remove one of them"},
		{"variables", []string{"GPUFLIGHT_DEEP=1", "GPUFLIGHT_OVERHEAD_BUDGET=0.02"}, nil, "GPUFLIGHT_OVERHEAD_BUDGET and deep profiling (GPUFLIGHT_DEEP) exclude each other: remove one of them"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg, err := parseTrace(slices.Concat([]string{"--library", library}, test.flags, []string{"--", "true"}), &bytes.Buffer{})
			require.NoError(t, err)
			_, err = prepare(cfg, test.environ)
			var usage *usageError
			require.ErrorAs(t, err, &usage)
			assert.EqualError(t, err, test.want)
		})
	}
}

// The signal that requests windows must not terminate a command before the library is loaded.
func TestRunCommand_WindowSignalIgnored(t *testing.T) {
	for asks, want := range map[string]ending{"": {code: 140, signal: syscall.SIGUSR2}, "USR1": {code: 140, signal: syscall.SIGUSR2}, "USR2": {}} {
		end, err := runCommand(exec.Command("/bin/sh", "-c", "kill -USR2 $$; exit 0"), asks, func(int) {})
		require.NoError(t, err)
		assert.Equal(t, want, end, asks)
	}
}

func TestPrintWindows_Results(t *testing.T) {
	collected := recorder.WindowRow{ID: 1, Engine: "pc", Cause: "schedule", Status: "collected", Collected: deep.Collected{Samples: 12345, Functions: 2, Lost: 5}}
	counted := recorder.WindowRow{ID: 3, Engine: "sass", Cause: "rule", Status: "collected", Collected: deep.Collected{Samples: 7, Functions: 1}}
	refused := recorder.WindowRow{ID: 2, Engine: "sass", Cause: "socket", Status: "no_permission", Text: "this process may not read the GPU's counters"}
	var out bytes.Buffer
	tr := &tracing{}
	tr.printWindows(&printer{&out}, []recorder.Summary{
		{PID: 7},
		{PID: 8, Windows: &recorder.WindowCounts{Opened: 1, Attempts: 1, PausedSeconds: 1.5, Unsent: 1, Recent: []recorder.WindowRow{collected, refused, counted}}},
	})
	assert.Equal(t, `gpuflight: deep window 1 of process 8 (pc, by schedule): 12,345 samples in 2 functions, 5 lost
gpuflight: deep window 2 of process 8 (sass, by socket): this process may not read the GPU's counters
gpuflight: deep window 3 of process 8 (sass, by rule): 7 counters in 1 function
gpuflight: the results of 1 deep window exceeded the buffer or the deadline
gpuflight: nothing else was recorded for 1.5 s of deep windows
gpuflight: their results are in the logs cuda.pc_sample and cuda.sass_metric; with --output, `+"`gpuflight report`"+` shows them
`, out.String())

	out.Reset()
	tr.sending.File = "/tmp/run.otlp.jsonl"
	many := recorder.WindowCounts{Opened: 9, Attempts: 3}
	for range 9 {
		many.Recent = append(many.Recent, collected)
	}
	tr.printWindows(&printer{&out}, []recorder.Summary{{PID: 8, Windows: &many}})
	assert.Equal(t, 7, bytes.Count(out.Bytes(), []byte("\n")))
	assert.Contains(t, out.String(), "gpuflight: 12 deep windows in all, 3 of them without a result\n")
	assert.Contains(t, out.String(), "gpuflight: `gpuflight report /tmp/run.otlp.jsonl` shows their results\n")

	out.Reset()
	tr.printWindows(&printer{&out}, []recorder.Summary{{PID: 7}})
	assert.Empty(t, out.String())
}
