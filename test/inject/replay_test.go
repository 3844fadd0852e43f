// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inject

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/recording/cubin"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
)

// captured is the result of one window on a GPU, see internal/testing/cuptitest/testdata.
type captured struct {
	text            []byte
	figures         map[string]int64 // by kernel, offset and reason or metric
	rows            int64
	samples         int64 // all
	nonUser         int64
	told            int64 // in rows, each sample once
	names           []string
	functions       []string
	image           []byte
	imageFile, file string
}

// unpacked decompresses a file.
func unpacked(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	b, err := io.ReadAll(z)
	require.NoError(t, err)
	return b
}

// readCapture reads the window of a kernel of examples/slow.
func readCapture(t *testing.T, kernel string) *captured {
	t.Helper()
	folder := filepath.Join(process.Root(t), "internal", "testing", "cuptitest", "testdata", "h200")
	c := &captured{
		text: unpacked(t, filepath.Join(folder, kernel+".txt.gz")), image: unpacked(t, filepath.Join(folder, "slow.cubin.gz")), figures: map[string]int64{},
	}
	dir := t.TempDir()
	c.file, c.imageFile = filepath.Join(dir, "capture.txt"), filepath.Join(dir, "slow.cubin")
	require.NoError(t, os.WriteFile(c.file, c.text, 0o600))
	require.NoError(t, os.WriteFile(c.imageFile, c.image, 0o600))
	lines := bufio.NewScanner(bytes.NewReader(c.text))
	for lines.Scan() {
		kind, rest, _ := strings.Cut(lines.Text(), " ")
		_, name, _ := strings.Cut(rest, " ")
		switch kind {
		case "name":
			c.names = append(c.names, strings.TrimPrefix(name, "smsp__pcsamp_warps_issue_stalled_"))
		case "function":
			c.functions = append(c.functions, name)
		case "row":
			var device, crc, pc, function, what, correlation, value int64
			_, err := fmt.Sscan(rest, &device, &crc, &pc, &function, &what, &correlation, &value)
			require.NoError(t, err, rest)
			require.Equal(t, cubin.CUPTICRC(c.image), uint64(crc), "the row is about the image that is kept")
			c.figures[fmt.Sprint(c.functions[function], "+", pc, " ", c.names[what])] += value
			c.rows++
			if !strings.HasSuffix(c.names[what], "_not_issued") {
				c.told += value
			}
		case "totals":
			var dropped int64
			_, err := fmt.Sscan(rest, &c.samples, &dropped, &c.nonUser)
			require.NoError(t, err, rest)
			require.Zero(t, dropped)
		}
	}
	require.NoError(t, lines.Err())
	require.NotZero(t, c.rows)
	return c
}

// slowMarks returns the marked lines of examples/slow/kernels.cu by the name of the mark.
func slowMarks(t *testing.T) map[string][]int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(process.Root(t), "examples", "slow", "kernels.cu"))
	require.NoError(t, err)
	marks := map[string][]int64{}
	for i, line := range strings.Split(string(text), "\n") {
		if _, name, ok := strings.Cut(line, "// line: "); ok {
			marks[name] = append(marks[name], int64(i+1))
		}
	}
	for _, name := range []string{"chase", "worker", "compute", "divergent", "strided"} {
		require.NotEmpty(t, marks[name], name)
	}
	return marks
}

// reported is the deep-profiling part of `gpuflight report --json`.
type reported struct {
	Windows struct {
		List []struct {
			Status     string
			Samples    int64
			Rows       int64
			Lost       int64
			NonUser    int64 `json:"samples_non_user"`
			Other      int64 `json:"rows_other"`
			Unresolved int64 `json:"rows_unresolved"`
		}
	}
	Inside struct {
		Samples   int64
		Functions []reportedFunction `json:"by_function"`
	}
}

type reportedFunction struct {
	Name                          string
	Samples                       int64
	Reasons                       []reportedReason
	Lines, Divergent, Uncoalesced []reportedLine
	Warp                          int64 `json:"warp_instructions"`
	Thread                        int64 `json:"thread_instructions"`
	Lanes                         float64
	SectorsPerRequest             float64 `json:"sectors_per_request"`
	Metrics                       []struct {
		Name  string
		Value int64
	}
}

type reportedReason struct {
	Name      string
	Samples   int64
	NotIssued int64 `json:"not_issued"`
}

type reportedLine struct {
	File              string
	Line              int64
	PC                int64
	Samples           int64
	SASS              string
	Reasons           []reportedReason
	Warp              int64 `json:"warp_instructions"`
	Lanes             float64
	SectorsPerRequest float64 `json:"sectors_per_request"`
	Ideal             float64 `json:"ideal_sectors_per_request"`
}

// first returns the first reason that is not of an eligible warp.
func first(reasons []reportedReason) string {
	for _, r := range reasons {
		if r.Name != "selected" && r.Name != "not_selected" {
			return r.Name
		}
	}
	return ""
}

// replayed traces a program whose window returns the captured data, and reads the report.
func replayed(t *testing.T, c *captured, engine string, environ ...string) (*bench, *reported) {
	t.Helper()
	b := newBench(t)
	place := t.TempDir()
	require.NoError(t, os.Chmod(place, 0o700))
	// nvdisasm at exit has time only if this variable allows it.
	b.environ = append(b.environ, "FAKE_CUPTI_REPLAY="+c.file, "WORK_IMAGE="+c.imageFile, "XDG_RUNTIME_DIR="+place, "GPUFLIGHT_SHUTDOWN_TIMEOUT=10m")
	b.environ = append(b.environ, environ...)
	o := b.traced("window", "--deep-after", "100ms", "--deep-every", "1s", "--deep-for", "100ms", "--deep-engine", engine, "--deep-max", "1")
	require.Equal(t, 0, o.code, o.stderr)
	out := b.run(b.gpuflight, "report", "--json", b.file)
	require.Equal(t, 0, out.code, out.stderr)
	r := &reported{}
	require.NoError(t, json.Unmarshal([]byte(out.stdout), r))
	require.Len(t, r.Windows.List, 1)
	return b, r
}

// If only some of the rows may be sent, the report about the function is the same.
func TestH200Results_FewRows(t *testing.T) {
	none := cubin.DisassemblerEnv + "=" + filepath.Join(t.TempDir(), "none")
	t.Run("pc", func(t *testing.T) {
		c := readCapture(t, "compute")
		_, r := replayed(t, c, "pc", "GPUFLIGHT_DEEP_ROWS=200", none)
		assert.Equal(t, c.told, r.Inside.Samples)
		require.Len(t, r.Inside.Functions, 1, "nothing is in _other")
		f := &r.Inside.Functions[0]
		assert.Equal(t, int64(7_831_736), f.Samples)
		assert.Equal(t, reportedReason{"math_pipe_throttle", 2_922_507, 2_784_739}, f.Reasons[0])
		w := r.Windows.List[0]
		assert.LessOrEqual(t, w.Rows, int64(200))
		assert.Greater(t, w.Other, c.rows-200)
	})
	t.Run("sass", func(t *testing.T) {
		c := readCapture(t, "strided")
		_, r := replayed(t, c, "sass", "GPUFLIGHT_DEEP_ROWS=40", none)
		want := map[string]int64{}
		for key, v := range c.figures {
			_, metric, _ := strings.Cut(key, " ")
			want[metric] += v
		}
		require.Len(t, r.Inside.Functions, 1)
		f := &r.Inside.Functions[0]
		got := map[string]int64{}
		for _, m := range f.Metrics {
			got[m.Name] = m.Value
		}
		assert.Equal(t, want, got)
		assert.InDelta(t, 32, f.Lanes, 0)
		require.Len(t, f.Uncoalesced, 1)
		assert.Equal(t, slowMarks(t)["strided"][0], f.Uncoalesced[0].Line)
		assert.LessOrEqual(t, r.Windows.List[0].Rows, int64(40))
	})
}

// Results from an H200 pass through the fake's CUPTI functions, the library in a process, a file,
// and the report. The report must contain what examples/slow/README.md documents. The numbers equal
// those of the report on the GPU.
func TestH200Results(t *testing.T) {
	marks := slowMarks(t)
	nvdisasm := filepath.Join(process.Root(t), ".tools", "cuda-tools", "13.0", "bin", "nvdisasm")
	_, err := os.Stat(nvdisasm)
	text := err == nil
	for _, tc := range []struct {
		kernel, engine string
		check          func(*testing.T, *reportedFunction)
	}{
		{"chase", "pc", func(t *testing.T, f *reportedFunction) {
			assert.Equal(t, int64(7_541_501), f.Samples)
			require.NotEmpty(t, f.Reasons)
			assert.Equal(t, reportedReason{"long_scoreboard", 7_408_627, 7_384_302}, f.Reasons[0])
			require.NotEmpty(t, f.Lines)
			assert.Equal(t, [2]int64{marks["chase"][0], 7_526_890}, [2]int64{f.Lines[0].Line, f.Lines[0].Samples})
			assert.Equal(t, "long_scoreboard", first(f.Lines[0].Reasons))
		}},
		{"barrier", "pc", func(t *testing.T, f *reportedFunction) {
			assert.Equal(t, int64(7_802_375), f.Samples)
			require.NotEmpty(t, f.Reasons)
			assert.Equal(t, reportedReason{"barrier", 7_060_679, 5_802_555}, f.Reasons[0])
			require.NotEmpty(t, f.Lines)
			assert.Equal(t, [2]int64{32, 848}, [2]int64{f.Lines[0].Line, f.Lines[0].PC}, "the loop around the barrier")
			assert.Equal(t, marks["worker"][0], f.Lines[1].Line)
		}},
		{"compute", "pc", func(t *testing.T, f *reportedFunction) {
			assert.Equal(t, int64(7_831_736), f.Samples)
			assert.Equal(t, "math_pipe_throttle", first(f.Reasons))
			require.Greater(t, len(f.Lines), 2)
			assert.Equal(t, reportedReason{"math_pipe_throttle", 2_922_507, 2_784_739}, f.Reasons[0])
			for _, l := range f.Lines[:2] {
				assert.Contains(t, marks["compute"], l.Line)
				assert.Equal(t, "math_pipe_throttle", first(l.Reasons))
			}
			if text {
				assert.True(t, strings.HasPrefix(f.Lines[0].SASS, "DFMA R8, R8, UR6, R2"), f.Lines[0].SASS)
			}
		}},
		{"divergent", "sass", func(t *testing.T, f *reportedFunction) {
			require.NotEmpty(t, f.Divergent)
			assert.Equal(t, marks["divergent"][0], f.Divergent[0].Line)
			assert.Equal(t, [2]float64{1, 22_145_946_240}, [2]float64{f.Divergent[0].Lanes, float64(f.Divergent[0].Warp)})
			assert.InDelta(t, 1.00045862, f.Lanes, 1e-8)
		}},
		{"strided", "sass", func(t *testing.T, f *reportedFunction) {
			assert.Equal(t, [2]int64{3_634_633_728, 32 * 3_634_633_728}, [2]int64{f.Warp, f.Thread})
			require.Len(t, f.Uncoalesced, 1)
			l := f.Uncoalesced[0]
			assert.Equal(t, marks["strided"][0], l.Line)
			assert.Equal(t, [3]float64{32, 4, 32}, [3]float64{l.SectorsPerRequest, l.Ideal, l.Lanes})
			assert.Equal(t, int64(2_554_066_944), l.Warp)
			if text {
				assert.Equal(t, "LDG.E R5, desc[UR4][R4.64]", l.SASS)
			}
		}},
		{"coalesced", "sass", func(t *testing.T, f *reportedFunction) {
			assert.InDelta(t, 32, f.Lanes, 0)
			assert.InDelta(t, 4, f.SectorsPerRequest, 0)
			assert.Empty(t, f.Uncoalesced)
			assert.Empty(t, f.Divergent)
		}},
	} {
		t.Run(tc.kernel, func(t *testing.T) {
			c := readCapture(t, tc.kernel)
			if tc.engine == "pc" {
				require.Equal(t, c.samples, c.told+c.nonUser, "so it is on the GPU")
			}
			b, r := replayed(t, c, tc.engine, cubin.DisassemblerEnv+"="+nvdisasm)

			_, records, _ := b.recorded()
			figures := map[string]int64{}
			ptx := ""
			for _, r := range records {
				a := r.Attributes().AsRaw()
				if r.EventName() == semconv.EventCUDASASSListing && a[semconv.CUDAListingKind] == semconv.CUDAListingKindPTX {
					ptx += r.Body().Str()
				}
				key := fmt.Sprint(a[semconv.CUDAKernelName], "+", a[semconv.CUDAPCOffset], " ")
				switch r.EventName() {
				case semconv.EventCUDAPCSample:
					figures[key+a[semconv.CUDAStallReason].(string)] += a[semconv.CUDASampleCount].(int64)
				case semconv.EventCUDASASSMetric:
					if v := a[semconv.CUDAMetricValue].(int64); v != 0 {
						figures[key+a[semconv.CUDAMetricName].(string)] += v
					}
				default:
					continue
				}
				assert.Equal(t, "/build/gpu/examples/slow/kernels.cu", a[semconv.CodeFilePath], "%v", a)
			}
			for key, v := range c.figures {
				if v == 0 {
					delete(c.figures, key)
				}
			}
			assert.Equal(t, c.figures, figures)
			assert.Equal(t, text, strings.HasPrefix(ptx, ".visible .entry "+tc.kernel+"("), ptx)

			w := r.Windows.List[0]
			assert.Equal(t, "collected", w.Status)
			assert.Zero(t, w.Unresolved, "each row has its line")
			assert.Zero(t, w.Other)
			if tc.engine == "pc" {
				assert.Equal(t, [4]int64{c.samples, c.rows, c.nonUser, c.nonUser}, [4]int64{w.Samples, w.Rows, w.Lost, w.NonUser})
				assert.Equal(t, c.told, r.Inside.Samples, "each sample once")
			}
			require.Len(t, r.Inside.Functions, 1)
			f := &r.Inside.Functions[0]
			assert.Equal(t, tc.kernel, f.Name)
			tc.check(t, f)
		})
	}
}
