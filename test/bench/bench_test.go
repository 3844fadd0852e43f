// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
)

func TestParseCounters_SumOverLabels(t *testing.T) {
	got, err := parseCounters(strings.NewReader(`# HELP otelcol_receiver_accepted_spans Number of spans
# TYPE otelcol_receiver_accepted_spans counter
otelcol_receiver_accepted_spans{receiver="gpuflog",transport=""} 12
otelcol_receiver_accepted_spans{receiver="other name",transport=""} 1.5e+06
otelcol_receiver_accepted_log_records_total{receiver="file_log"} 7
otelcol_receiver_accepted_spans_of_another_kind 99
otelcol_process_uptime 3.2

`))
	if err != nil {
		t.Fatal(err)
	}
	want := counters{spansMetric: 1_500_012, logsMetric: 7}
	if !got.equal(want) || len(got) != 2 {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := parseCounters(strings.NewReader(spansMetric + "{} many\n")); err == nil {
		t.Error("a value that is no number is taken")
	}
}

func TestCounters_Reached(t *testing.T) {
	c := counters{spansMetric: 10, logsMetric: 5}
	for _, tc := range []struct {
		want counters
		ok   bool
	}{
		{nil, true},
		{counters{spansMetric: 10}, true},
		{counters{spansMetric: 11}, false},
		{counters{spansMetric: 1, pointsMetric: 1}, false},
	} {
		if got := c.reached(tc.want); got != tc.ok {
			t.Errorf("%v reached %v: %v", c, tc.want, got)
		}
	}
}

func TestReport_RatioAndMemory(t *testing.T) {
	runs := func(cpu ...time.Duration) (rs []result) {
		for _, c := range cpu {
			rs = append(rs, result{cpu: c, lines: 1000, rss: 100 << 20})
		}
		return rs
	}
	receivers := []receiver{{name: gpuflogName}, {name: fileLogName}}
	w := workload{name: "x", ratio: 5}
	for _, tc := range []struct {
		name   string
		ours   []result
		opts   options
		missed bool
		says   string
	}{
		{"fast enough", runs(2*time.Second, 9*time.Second, time.Second), options{}, false, "ratio 5.00 (at least 5 wanted)"},
		{"too slow", runs(3*time.Second, 3*time.Second, 3*time.Second), options{}, true, "ratio 3.33 (at least 5 wanted: MISSED)"},
		{"quick", runs(3*time.Second, 3*time.Second, 3*time.Second), options{quick: true}, false, "not judged"},
		{"too large", []result{{cpu: time.Second, lines: 1000, rss: maxRSS}}, options{}, true, "peak RSS of gpuflog 256 MiB (less than 256 wanted): MISSED"},
	} {
		var out bytes.Buffer
		missed := w.report(tc.opts, &out, receivers, [][]result{tc.ours, runs(10*time.Second, 10*time.Second, 10*time.Second)})
		if missed != tc.missed || !strings.Contains(out.String(), tc.says) {
			t.Errorf("%s: missed %v\n%s", tc.name, missed, out.String())
		}
	}
}

func TestMedian(t *testing.T) {
	if got := median([]float64{9, 1, 5}); got != 5 {
		t.Errorf("odd: %g", got)
	}
	if got := median([]float64{4, 1, 2, 9}); got != 3 {
		t.Errorf("even: %g", got)
	}
}

func TestMain_InvalidFlags(t *testing.T) {
	for _, tc := range []struct {
		opts options
		want string
	}{
		{options{collector: filepath.Join(t.TempDir(), "none"), rounds: 1}, "make build"},
		{options{collector: os.Args[0], rounds: 0}, "--rounds"},
		{options{collector: os.Args[0], rounds: 1, only: "a2,b7"}, `no workload "b7"`},
	} {
		_, err := bench(context.Background(), tc.opts, new(bytes.Buffer))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v", tc.opts, err)
		}
	}
}

func TestRun_CollectorExits(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "collector")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho no such receiver >&2\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	c := child{binary: script, work: dir, receiver: fileLog(gpuflgen.Summary{})}
	_, err := c.run(context.Background(), dir)
	if err == nil || !strings.Contains(err.Error(), "no such receiver") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("error %v", err)
	}
}

// TestBench_SmallRun runs the whole benchmark with a receiver that every collector has.
func TestBench_SmallRun(t *testing.T) {
	collector := os.Getenv("GPUFLIGHT_COLLECTOR")
	if collector == "" {
		collector = filepath.Join("..", "..", "bin", "otelcol-gpuflight")
	}
	if _, err := os.Stat(collector); errors.Is(err, fs.ErrNotExist) && os.Getenv("GPUFLIGHT_REQUIRE") == "" {
		t.Skip("no collector at " + collector + ": make build makes it")
	}
	w := workload{name: "small", what: "a small session", ratio: 1, gen: gpuflgen.Config{Layout: gpuflgen.A2, LineBytes: 300, Kernels: 20_000}}
	var out bytes.Buffer
	base := t.TempDir()
	missed, err := w.run(context.Background(), options{collector: collector, rounds: 1, baseline: true}, base, &out)
	if err != nil || missed {
		t.Fatalf("missed %v, %v\n%s", missed, err, out.String())
	}
	if !strings.Contains(out.String(), fileLogName) {
		t.Errorf("it says\n%s", out.String())
	}
	if _, err := os.Stat(filepath.Join(base, "small")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("files are left: %v", err)
	}
}
