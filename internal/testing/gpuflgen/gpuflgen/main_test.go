// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
)

func command(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(context.Background(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestMain_ExitStatus(t *testing.T) {
	dir := t.TempDir()
	blocked := filepath.Join(dir, "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string
	}{
		{"help of gen", []string{"--help"}, 0, "-rotate-bytes bytes", ""},
		{"no folder", nil, 2, "", "add --out FOLDER"},
		{"folder without flag", []string{dir}, 2, "", "the output folder goes after --out"},
		{"unknown flag", []string{"--frob"}, 2, "", "See gpuflgen --help"},
		{"bad layout", []string{"--out", dir, "--layout", "b"}, 2, "", `use "a2" or "c3"`},
		{"bad size", []string{"--out", dir, "--bytes", "2 gig"}, 2, "", "is not a number of bytes: write for example 64MiB"},
		{"bad start", []string{"--out", dir, "--start", "noon"}, 2, "", "use now, a duration such as -10m"},
		{"no steps", []string{"--out", dir, "--steps", "0"}, 2, "", "--steps 0: use more than 0"},
		{"folder is a file", []string{"--out", blocked}, 1, "", "gpuflgen: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := command(tc.args...)
			if code != tc.code || !strings.Contains(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("status %d, stdout %q, stderr %q", code, stdout, stderr)
			}
			if (tc.stderr == "") != (stderr == "") {
				t.Errorf("stderr %q", stderr)
			}
		})
	}
}

func TestMain_SummaryOfFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "summary.json")
	code, stdout, stderr := command("--out", filepath.Join(dir, "logs"), "--layout", "a2", "--app", "demo",
		"--kernels", "200", "--rotate-bytes", "0", "--summary", file)
	if code != 0 || stderr != "" {
		t.Fatalf("status %d: %s", code, stderr)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var sum gpuflgen.Summary
	if err := json.Unmarshal(data, &sum); err != nil {
		t.Fatal(err)
	}
	var lines, size int64
	for _, ch := range []string{"device", "scope", "system"} {
		data, err := os.ReadFile(filepath.Join(dir, "logs", "demo."+ch+".log"))
		if err != nil {
			t.Fatal(err)
		}
		lines += int64(bytes.Count(data, []byte("\n")))
		size += int64(len(data))
	}
	if sum.Lines != lines || sum.Bytes != size || sum.Rows[gpuflgen.RowKernel] != 200 || !sum.Sessions[0].Clean {
		t.Errorf("%d lines of %d bytes on disk, the summary says %+v", lines, size, sum)
	}
	if !strings.Contains(stdout, "200 kernels") || !strings.Contains(stdout, sum.Sessions[0].ID) {
		t.Errorf("it says %q", stdout)
	}

	code, stdout, _ = command("--out", filepath.Join(dir, "c3"), "--steps", "1", "--epochs", "1", "--summary", "-")
	if err := json.Unmarshal([]byte(stdout), &sum); code != 0 || err != nil || sum.Layout != gpuflgen.C3 || sum.Rows[gpuflgen.RowPCSample] != 4 {
		t.Errorf("status %d, %v: %s", code, err, stdout)
	}

	code, stdout, _ = command("--out", filepath.Join(dir, "minimal"), "--steps", "1", "--epochs", "1", "--samples", "0", "--stack-bytes", "0", "--summary", "-")
	minimal := gpuflgen.Summary{}
	if err := json.Unmarshal([]byte(stdout), &minimal); code != 0 || err != nil || minimal.Rows[gpuflgen.RowPCSample] != 0 || minimal.Bytes*2 > sum.Bytes {
		t.Errorf("status %d, %v: %s", code, err, stdout)
	}
}

func TestMain_Interrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir := t.TempDir()
	go func() {
		defer cancel()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if lines, _ := filepath.Glob(filepath.Join(dir, "*", ".tmp", "device.log")); len(lines) > 0 {
				return
			}
		}
	}()
	var out, errs bytes.Buffer
	code := run(ctx, []string{"--out", dir, "--live", "--epochs", "100000", "--layers", "1", "--summary", "-"}, &out, &errs)
	var sum gpuflgen.Summary
	if err := json.Unmarshal(out.Bytes(), &sum); err != nil {
		t.Fatal(err)
	}
	if code != 0 || !sum.Sessions[0].Clean || !strings.Contains(errs.String(), "interrupted") {
		t.Errorf("status %d, clean %v, %q", code, sum.Sessions[0].Clean, errs.String())
	}
}

func TestParseStart(t *testing.T) {
	now := time.Unix(1_790_000_000, 5)
	for in, want := range map[string]time.Time{
		"": {}, "now": now, "-10m": now.Add(-10 * time.Minute), "1786060800000000001": time.Unix(0, 1786060800000000001),
		"2026-08-07T00:00:00Z": time.Unix(1786060800, 0),
	} {
		got, err := parseStart(in, now)
		if err != nil || !got.Equal(want) {
			t.Errorf("%q is %v, %v; want %v", in, got, err, want)
		}
	}
}
