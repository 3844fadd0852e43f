// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
)

func TestReport_StallReasons(t *testing.T) {
	dir := t.TempDir()
	made, err := gpuflgen.Run(t.Context(), gpuflgen.Config{Dir: dir, StepsPerEpoch: 5, Epochs: 2})
	if err != nil {
		t.Fatal(err)
	}

	code, stdout, stderr := command("report", "--functions", "0", "--lines", "0", "--json", dir)
	if code != 0 || stderr != "" {
		t.Fatalf("status %d: %s", code, stderr)
	}
	var got struct {
		Kernels []struct{ Count uint64 }
		Inside  struct {
			Samples    uint64
			ByFunction []struct {
				Name    string
				Samples uint64
				Reasons []struct{ Samples uint64 }
				Lines   []struct{ Samples uint64 }
			} `json:"by_function"`
		}
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	kernels := uint64(0)
	for _, k := range got.Kernels {
		kernels += k.Count
	}
	if kernels != uint64(made.Rows[gpuflgen.RowKernel]) {
		t.Errorf("%d kernels of %d", kernels, made.Rows[gpuflgen.RowKernel])
	}
	all := uint64(0)
	for _, f := range got.Inside.ByFunction {
		reasons, lines := uint64(0), uint64(0)
		for _, r := range f.Reasons {
			reasons += r.Samples
		}
		for _, l := range f.Lines {
			lines += l.Samples
		}
		if f.Name == "" || reasons != f.Samples || lines != f.Samples {
			t.Errorf("%q has %d samples, %d by reason and %d by line", f.Name, f.Samples, reasons, lines)
		}
		all += f.Samples
	}
	if all == 0 || all != got.Inside.Samples {
		t.Errorf("the functions have %d samples of %d", all, got.Inside.Samples)
	}

	code, stdout, stderr = command("report", "--functions", "1", "--lines", "1", dir)
	if code != 0 || stderr != "" || !strings.Contains(stdout, "Inside kernels: ") || !strings.Contains(stdout, "more)") {
		t.Errorf("status %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	for _, flag := range []string{"--functions", "--lines"} {
		code, _, stderr = command("report", flag, "-1", filepath.Join(dir, "none"))
		if code != 2 || !strings.Contains(stderr, flag+" -1: use 0 or more") {
			t.Errorf("%s: status %d, stderr %q", flag, code, stderr)
		}
	}
}
