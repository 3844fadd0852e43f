// SPDX-License-Identifier: Apache-2.0

package gpuflgen

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// small is a session of one step of a one-layer model. Its golden file is short enough to read.
func small(layout Layout) Config {
	return Config{Layout: layout, App: "tiny", Seed: 1, Epochs: 1, StepsPerEpoch: 1, Layers: 1, Kernels: 14, Samples: 1, StackBytes: 60, DistinctStacks: 3}
}

func run(t *testing.T, cfg Config) (string, Summary) {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	sum, err := Run(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return cfg.Dir, sum
}

// window is one file of a channel.
type window struct {
	path, session, channel string
	// n is the index of a rotated file; 0 is the live file.
	n    int
	data []byte
}

// readWindows reads and decompresses every log file under dir, ordered by channel and age, oldest
// first.
func readWindows(t *testing.T, dir string, layout Layout) []window {
	t.Helper()
	var ws []window
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, gz := strings.CutSuffix(filepath.Base(path), ".gz")
		name, isLog := strings.CutSuffix(name, ".log")
		if !isLog {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if gz {
			r, err := gzip.NewReader(bytes.NewReader(data))
			if err != nil {
				return err
			}
			if data, err = io.ReadAll(r); err != nil {
				return err
			}
		}
		parts := strings.Split(name, ".")
		w := window{path: path, data: data}
		if layout == A2 {
			parts = parts[1:]
		} else {
			rel, _ := filepath.Rel(dir, path)
			w.session = strings.Split(rel, string(filepath.Separator))[0]
		}
		w.channel = parts[0]
		if len(parts) > 1 {
			if w.n, err = strconv.Atoi(parts[1]); err != nil {
				return err
			}
		}
		ws = append(ws, w)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(ws, func(a, b window) int {
		if c := strings.Compare(a.session+a.channel, b.session+b.channel); c != 0 {
			return c
		}
		if layout == A2 {
			return b.n - a.n // 1 is the newest; the live file is 0
		}
		// The live file of a crashed session is the newest.
		order := func(w window) int {
			if w.n == 0 {
				return math.MaxInt
			}
			return w.n
		}
		return order(a) - order(b)
	})
	return ws
}

// streams joins each channel's files in order.
func streams(t *testing.T, dir string, layout Layout) map[string]string {
	m := map[string]string{}
	for _, w := range readWindows(t, dir, layout) {
		m[w.session+"/"+w.channel] += string(w.data)
	}
	return m
}

func TestRun_GoldenSmallSession(t *testing.T) {
	for _, layout := range []Layout{A2, C3} {
		t.Run(string(layout), func(t *testing.T) {
			dir, sum := run(t, small(layout))
			var b strings.Builder
			for _, w := range readWindows(t, dir, layout) {
				rel, err := filepath.Rel(dir, w.path)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&b, "== %s\n%s", rel, w.data)
			}
			js, err := json.MarshalIndent(sum, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "== summary\n%s\n", js)
			golden := filepath.Join("testdata", string(layout)+".golden")
			if *update {
				if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got := b.String(); got != string(want) {
				gl, wl := strings.Split(got, "\n"), strings.Split(string(want), "\n")
				for i := range min(len(gl), len(wl)) {
					if gl[i] != wl[i] {
						t.Fatalf("line %d differs from %s (rewrite with -update):\n got %s\nwant %s", i+1, golden, gl[i], wl[i])
					}
				}
				t.Fatalf("%d lines, want %d", len(gl), len(wl))
			}
		})
	}
}

// record holds the fields of all record types that recount reads.
type record struct {
	Type         string
	SessionID    string `json:"session_id"`
	Name         string
	BatchID      int64 `json:"batch_id"`
	Base         int64 `json:"base_time_ns"`
	Columns      []string
	Rows         [][]json.Number
	Start        int64 `json:"start_ns"`
	End          int64 `json:"end_ns"`
	APIExit      int64 `json:"api_exit_ns"`
	Bytes        int64
	UserScope    string            `json:"user_scope"`
	SampleKind   string            `json:"sample_kind"`
	CorrID       int64             `json:"corr_id"`
	Devices      []map[string]any  `json:"devices"`
	KernelDict   map[string]string `json:"kernel_dict"`
	ScopeDict    map[string]string `json:"scope_name_dict"`
	FunctionDict map[string]string `json:"function_dict"`
	MetricDict   map[string]string `json:"metric_dict"`
	FileDict     map[string]string `json:"source_file_dict"`
	StackTrace   string            `json:"stack_trace"`
}

func (r record) cell(row int, column string) int64 {
	i := slices.Index(r.Columns, column)
	v, err := strconv.ParseInt(string(r.Rows[row][i]), 10, 64)
	if err != nil {
		panic(err) // columns of the test data fit into 64 unsigned bits
	}
	return v
}

// recount computes a summary from the files alone. It also checks what readers rely on: valid JSON,
// dictionary ids defined in their channel before their use, and rows as long as their columns.
// Batches must not exceed the limit, and details must follow their rows.
func recount(t *testing.T, dir string, cfg Config) Summary {
	t.Helper()
	sum := newSummary(cfg)
	details := map[string]map[int64]string{} // scope path by correlation id
	type use struct {
		session string
		corr    int64
	}
	var kernels []use
	launched := map[string]bool{}
	dicts := map[string]string{}
	define := func(ch, session, kind string, d map[string]string) {
		for id, v := range d {
			key := ch + session + kind + id
			if old, ok := dicts[key]; ok && old != v {
				t.Errorf("%s %s of %s was %q and is %q", kind, id, session, old, v)
			}
			dicts[key] = v
		}
	}
	lookup := func(ch, session, kind string, id int64) string {
		v, ok := dicts[ch+session+kind+strconv.FormatInt(id, 10)]
		if !ok {
			t.Fatalf("channel %s uses %s id %d before it is defined", ch, kind, id)
		}
		return v
	}
	for _, w := range readWindows(t, dir, cfg.Layout) {
		ch := w.channel
		lines := strings.SplitAfter(string(w.data), "\n")
		total := sum.Channels[ch]
		for _, l := range lines {
			if !strings.HasSuffix(l, "\n") {
				if l != "" && !cfg.Crash {
					t.Errorf("%s ends without newline", w.path)
				}
				continue
			}
			var r record
			if err := json.Unmarshal([]byte(l), &r); err != nil {
				t.Fatalf("%s: %v: %s", w.path, err, l)
			}
			total.Lines++
			total.Bytes += int64(len(l))
			sum.Lines++
			sum.Bytes += int64(len(l))
			sum.Records[r.Type]++
			for i := range r.Rows {
				if len(r.Rows[i]) != len(r.Columns) {
					t.Fatalf("row of %d cells for %d columns: %s", len(r.Rows[i]), len(r.Columns), l)
				}
			}
			switch r.Type {
			case "init", "job_start":
				if !slices.ContainsFunc(sum.Sessions, func(s Session) bool { return s.ID == r.SessionID }) {
					sum.Sessions = append(sum.Sessions, Session{ID: r.SessionID})
				}
			case "dictionary_update":
				define(ch, r.SessionID, "kernel", r.KernelDict)
				define(ch, r.SessionID, "scope", r.ScopeDict)
				define(ch, r.SessionID, "function", r.FunctionDict)
				define(ch, r.SessionID, "metric", r.MetricDict)
				define(ch, r.SessionID, "file", r.FileDict)
			case "kernel_event":
				if r.APIExit != 0 && r.Start <= r.APIExit {
					t.Errorf("kernel starts at %d, before its launch ended at %d", r.Start, r.APIExit)
				}
				sum.Rows[RowKernel]++
				sum.KernelNanos += r.End - r.Start
				k := sum.Kernels[r.Name]
				sum.Kernels[r.Name] = KernelTotal{k.Count + 1, k.Nanos + r.End - r.Start}
				if cut := strings.TrimSuffix(r.UserScope, "|"+r.Name); cut != r.UserScope {
					sum.KernelsByScope[cut]++
				} else { // the name was truncated at 255 bytes
					i := strings.LastIndex(r.UserScope, "|")
					sum.KernelsByScope[r.UserScope[:i]]++
				}
			case "memcpy_event":
				sum.Rows[RowCopy]++
				sum.CopyBytes += r.Bytes
				sum.CopyNanos += r.End - r.Start
			case "memset_event":
				sum.Rows[RowSet]++
				sum.SetBytes += r.Bytes
			case "scope_begin":
				sum.Rows[RowScopeBegin]++
			case "scope_end":
				sum.Rows[RowScopeEnd]++
			case "profile_sample":
				if r.SampleKind == "pc_sampling" {
					sum.Rows[RowPCSample]++
				} else {
					sum.Rows[RowSASSMetric]++
				}
			case "system_sample":
				sum.Rows[RowDeviceMetric] += int64(len(r.Devices))
			case "kernel_event_batch":
				if len(r.Rows) > 2048 {
					t.Errorf("batch of %d kernels", len(r.Rows))
				}
				for i := range r.Rows {
					d := r.cell(i, "duration_ns")
					name := lookup(ch, r.SessionID, "kernel", r.cell(i, "kernel_id"))
					sum.Rows[RowKernel]++
					sum.KernelNanos += d
					k := sum.Kernels[name]
					sum.Kernels[name] = KernelTotal{k.Count + 1, k.Nanos + d}
					kernels = append(kernels, use{r.SessionID, r.cell(i, "corr_id")})
					launched[r.SessionID+strconv.FormatInt(r.cell(i, "corr_id"), 10)] = true
				}
			case "kernel_detail":
				sum.Rows[RowKernelDetail]++
				if details[r.SessionID] == nil {
					details[r.SessionID] = map[int64]string{}
				}
				details[r.SessionID][r.CorrID] = r.UserScope
				if !launched[r.SessionID+strconv.FormatInt(r.CorrID, 10)] {
					t.Errorf("kernel_detail %d comes before its row", r.CorrID)
				}
			case "memcpy_event_batch":
				for i := range r.Rows {
					sum.Rows[RowCopy]++
					sum.CopyBytes += r.cell(i, "bytes")
					sum.CopyNanos += r.cell(i, "duration_ns")
				}
			case "scope_event_batch":
				for i := range r.Rows {
					lookup(ch, r.SessionID, "scope", r.cell(i, "name_id"))
					if r.cell(i, "event_type") == 0 {
						sum.Rows[RowScopeBegin]++
					} else {
						sum.Rows[RowScopeEnd]++
					}
				}
			case "synchronization_event_batch":
				for i := range r.Rows {
					lookup(ch, r.SessionID, "function", r.cell(i, "function_id"))
					sum.Rows[RowSync]++
				}
			case "memory_alloc_event_batch":
				for i := range r.Rows {
					if r.cell(i, "memory_op") == 1 {
						sum.Rows[RowAlloc]++
						sum.AllocBytes += r.cell(i, "bytes")
					} else {
						sum.Rows[RowFree]++
					}
				}
			case "profile_sample_batch":
				for i := range r.Rows {
					lookup(ch, r.SessionID, "metric", r.cell(i, "metric_id"))
					lookup(ch, r.SessionID, "function", r.cell(i, "function_id"))
					lookup(ch, r.SessionID, "file", r.cell(i, "source_file_id"))
					switch kind := r.cell(i, "sample_kind"); {
					case kind == 0:
						sum.Rows[RowPCSample]++
					case kind == 1:
						sum.Rows[RowSASSMetric]++
					case ch == "sass":
						sum.Rows[RowISAMap]++
					}
				}
			case "device_metric_batch":
				sum.Rows[RowDeviceMetric] += int64(len(r.Rows))
			case "host_metric_batch":
				sum.Rows[RowHostMetric] += int64(len(r.Rows))
			}
		}
		sum.Channels[ch] = total
	}
	for _, u := range kernels {
		if path, ok := details[u.session][u.corr]; ok {
			sum.KernelsByScope[path]++
		}
	}
	return sum
}

func TestSummary_IndependentRecount(t *testing.T) {
	for name, cfg := range map[string]Config{
		"a2":               {Layout: A2},
		"a2 rotated":       {Layout: A2, RotateBytes: 200_000, Devices: 2},
		"a2 three in one":  {Layout: A2, Sessions: 3, StepsPerEpoch: 2, Layers: 1},
		"a2 no details":    {Layout: A2, NoDetails: true, Layers: 2},
		"a2 compact":       {Layout: A2, LineBytes: 300, Kernels: 5000},
		"a2 crash":         {Layout: A2, Crash: true, Layers: 2},
		"c3":               {Layout: C3},
		"c3 rotated":       {Layout: C3, RotateBytes: 150_000},
		"c3 plain":         {Layout: C3, RotateBytes: 300_000, NoCompress: true},
		"c3 by time":       {Layout: C3, RotateAfter: 300 * time.Millisecond},
		"c3 two":           {Layout: C3, Sessions: 2, StepsPerEpoch: 3},
		"c3 no stacks":     {Layout: C3, StackBytes: -1, Samples: -1},
		"c3 crash":         {Layout: C3, Crash: true},
		"c3 pieces":        {Layout: C3, Pieces: true, RotateBytes: 100_000, Layers: 2},
		"c3 kernels":       {Layout: C3, Kernels: 4321},
		"c3 large batches": {Layout: C3, StepInterval: time.Millisecond, Layers: 40, StepsPerEpoch: 2, Epochs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.Seed = 42
			setDefault(&cfg.Layers, 2)
			setDefault(&cfg.StepsPerEpoch, 5)
			dir, sum := run(t, cfg)
			full, err := cfg.withDefaultsIn(dir)
			if err != nil {
				t.Fatal(err)
			}
			got := recount(t, dir, full)
			// The files do not contain these values.
			want := sum
			want.Sessions, got.Sessions = ids(sum.Sessions), ids(got.Sessions)
			for ch, c := range want.Channels {
				c.Rotations = 0
				want.Channels[ch] = c
			}
			if !reflect.DeepEqual(got, want) {
				g, _ := json.MarshalIndent(got, "", " ")
				w, _ := json.MarshalIndent(want, "", " ")
				t.Errorf("recounted %s\n\nsummary says %s", g, w)
			}
			if sum.Rows[RowKernel] == 0 || sum.KernelNanos == 0 || sum.CopyBytes == 0 {
				t.Errorf("nothing in it: %+v", sum.Rows)
			}
		})
	}
}

// withDefaultsIn is withDefaults for a folder that is chosen later.
func (c Config) withDefaultsIn(dir string) (Config, error) {
	c.Dir = dir
	return c.withDefaults()
}

// ids returns only the ids, in an order that does not depend on file names.
func ids(s []Session) []Session {
	var out []Session
	for _, v := range s {
		out = append(out, Session{ID: v.ID})
	}
	slices.SortFunc(out, func(a, b Session) int { return strings.Compare(a.ID, b.ID) })
	return out
}

func TestRun_SameSeed(t *testing.T) {
	for _, layout := range []Layout{A2, C3} {
		cfg := Config{Layout: layout, Seed: 7, StepsPerEpoch: 2, Layers: 2}
		first, sum1 := run(t, cfg)
		second, sum2 := run(t, cfg)
		if !reflect.DeepEqual(sum1, sum2) {
			t.Errorf("%s: summaries differ", layout)
		}
		a, b := readFiles(t, first), readFiles(t, second)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s: files differ", layout)
		}
		cfg.Seed = 8
		third, sum3 := run(t, cfg)
		if reflect.DeepEqual(a, readFiles(t, third)) || sum3.Sessions[0].ID == sum1.Sessions[0].ID {
			t.Errorf("%s: another seed gives the same session", layout)
		}
	}
}

// readFiles returns the content of every file by relative path, including sidecars and locks.
func readFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		m[rel] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestRotate_SameStream(t *testing.T) {
	for _, layout := range []Layout{A2, C3} {
		cfg := Config{Layout: layout, Seed: 3, StepsPerEpoch: 4, Layers: 3, RotateBytes: -1}
		dir, _ := run(t, cfg)
		whole := streams(t, dir, layout)
		for name, change := range map[string]func(*Config){
			"gzip":   func(c *Config) { c.RotateBytes = 50_000 },
			"plain":  func(c *Config) { c.RotateBytes = 50_000; c.NoCompress = true },
			"pieces": func(c *Config) { c.RotateBytes = 20_000; c.Pieces = true },
			"tiny":   func(c *Config) { c.RotateBytes = 30_000; c.NoCompress = true },
		} {
			t.Run(string(layout)+" "+name, func(t *testing.T) {
				cfg := cfg
				change(&cfg)
				dir, sum := run(t, cfg)
				if got := streams(t, dir, layout); !reflect.DeepEqual(got, whole) {
					t.Error("the joined windows are not the unrotated stream")
				}
				if sum.Channels["device"].Rotations < 5 {
					t.Errorf("device rotated %d times", sum.Channels["device"].Rotations)
				}
				for _, w := range readWindows(t, dir, layout) {
					if int64(len(w.data)) > cfg.RotateBytes && bytes.Count(w.data, []byte("\n")) > 1 {
						t.Errorf("%s has %d bytes", w.path, len(w.data))
					}
					if !bytes.HasSuffix(w.data, []byte("\n")) {
						t.Errorf("%s cuts a line in two", w.path)
					}
				}
			})
		}
	}
}

func TestRotate_A2FileLimit(t *testing.T) {
	dir, sum := run(t, Config{Layout: A2, RotateBytes: 2000, NoCompress: true, Kernels: 250, StackBytes: -1})
	if n := sum.Channels["device"].Rotations; n <= maxRotatedFiles {
		t.Fatalf("only %d rotations", n)
	}
	highest, files := 0, 0
	for _, w := range readWindows(t, dir, A2) {
		if w.channel == "device" {
			highest, files = max(highest, w.n), files+1
		}
	}
	if highest != maxRotatedFiles || files != maxRotatedFiles+1 {
		t.Errorf("%d device files up to number %d", files, highest)
	}
}

func TestPublish_C3Sidecars(t *testing.T) {
	dir, sum := run(t, Config{Layout: C3, RotateBytes: 100_000, StepsPerEpoch: 3, Layers: 3})
	session := filepath.Join(dir, sum.Sessions[0].ID)
	if _, err := os.Stat(filepath.Join(session, ".tmp")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf(".tmp after a clean close: %v", err)
	}
	windows := readWindows(t, dir, C3)
	if len(windows) < 8 {
		t.Fatalf("%d windows", len(windows))
	}
	previous := map[string]int{}
	for _, w := range windows {
		data, err := os.ReadFile(filepath.Join(session, fmt.Sprintf(".gpufl-window.%s.%d.json", w.channel, w.n)))
		if err != nil {
			t.Fatal(err)
		}
		var meta sidecar
		if err := json.Unmarshal(data, &meta); err != nil {
			t.Fatal(err)
		}
		size, sum32, err := checksum(w.path)
		if err != nil {
			t.Fatal(err)
		}
		if meta.PayloadBytes != size || meta.PayloadCRC32 != sum32 || meta.PayloadFile != filepath.Base(w.path) ||
			meta.Channel != w.channel || meta.WindowSequence != w.n || meta.SessionID != sum.Sessions[0].ID ||
			meta.Type != "transport_window" || meta.SchemaVersion != 1 || meta.ClosedMonoMS < meta.OpenedMonoMS {
			t.Errorf("%s does not fit its sidecar %+v", w.path, meta)
		}
		if w.n != previous[w.channel]+1 {
			t.Errorf("%s follows window %d", w.path, previous[w.channel])
		}
		previous[w.channel] = w.n
	}
}

// TestPublish_SidecarBeforePayload reads the folder during publication.
func TestPublish_SidecarBeforePayload(t *testing.T) {
	dir := t.TempDir()
	done := make(chan error, 1)
	go func() {
		_, err := Run(context.Background(), Config{Dir: dir, RotateBytes: 40_000, StepsPerEpoch: 10, Layers: 1})
		done <- err
	}()
	seen := 0
	for running := true; running; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			running = false
		default:
		}
		payloads, err := filepath.Glob(filepath.Join(dir, "*", "*.log.gz"))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range payloads[max(0, len(payloads)-20):] {
			name := strings.TrimSuffix(filepath.Base(p), ".log.gz")
			if _, err := os.Stat(filepath.Join(filepath.Dir(p), ".gpufl-window."+name+".json")); err != nil {
				t.Fatalf("payload without sidecar: %v", err)
			}
			seen++
		}
	}
	if seen == 0 {
		t.Error("saw no window")
	}
}

func TestCrash_TruncatedLastLine(t *testing.T) {
	for _, layout := range []Layout{A2, C3} {
		t.Run(string(layout), func(t *testing.T) {
			dir, sum := run(t, Config{Layout: layout, Crash: true, Layers: 2, StepsPerEpoch: 4, RotateBytes: 200_000})
			if sum.Sessions[0].Clean || sum.Records["shutdown"] != 0 {
				t.Errorf("a crashed session says clean %v with %d shutdowns", sum.Sessions[0].Clean, sum.Records["shutdown"])
			}
			torn, rotated := 0, 0
			for _, w := range readWindows(t, dir, layout) {
				last := w.data[bytes.LastIndexByte(w.data, '\n')+1:]
				switch {
				case w.n > 0:
					rotated++
				case json.Valid(last):
					t.Errorf("%s ends in the whole line %q", w.path, last)
				default:
					torn++
				}
			}
			channels := 3
			if layout == C3 {
				channels = 4
				if _, err := os.Stat(filepath.Join(dir, sum.Sessions[0].ID, ".tmp", "device.log")); err != nil {
					t.Error(err)
				}
			}
			if torn != channels || rotated == 0 {
				t.Errorf("%d torn live files and %d rotated ones", torn, rotated)
			}
		})
	}
}

func TestPieces_PartialLinesUntilClose(t *testing.T) {
	dir := t.TempDir()
	w, err := NewWriter(Config{Dir: dir, Layout: A2, App: "torn", Pieces: true, Layers: 1})
	if err != nil {
		t.Fatal(err)
	}
	partial := 0
	for more := true; more; {
		if more, err = w.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, "torn.device.log"))
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 0 && data[len(data)-1] != '\n' {
			partial++
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if partial < 5 {
		t.Errorf("%d of 20 flushes left a partial line", partial)
	}
	whole, _ := run(t, Config{Layout: A2, App: "torn", Layers: 1})
	// A2 buffers no rows, so a Flush between steps must not change its lines.
	if !reflect.DeepEqual(streams(t, dir, A2), streams(t, whole, A2)) {
		t.Error("the torn session has other lines")
	}
}

func TestWriter_SingleSteps(t *testing.T) {
	dir := t.TempDir()
	w, err := NewWriter(Config{Dir: dir, Layers: 1, StepsPerEpoch: 3})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := w.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := w.Rotate(); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.Summary().Channels["device"].Rotations; got != 3 {
		t.Errorf("%d rotations after three calls", got)
	}
	published := filepath.Join(dir, w.Session(), "device.3.log.gz")
	if _, err := os.Stat(published); err != nil {
		t.Error(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), w.Crash(), w.Flush(), w.Rotate()); err != nil {
		t.Errorf("calls after Close: %v", err)
	}
	if more, err := w.Step(context.Background()); more || err != nil {
		t.Errorf("a step after Close: %v, %v", more, err)
	}
	sum := w.Summary()
	sum.Kernels["x"] = KernelTotal{1, 1}
	if _, ok := w.Summary().Kernels["x"]; ok {
		t.Error("summaries share their maps")
	}
}

func TestRun_Limits(t *testing.T) {
	for _, layout := range []Layout{A2, C3} {
		_, sum := run(t, Config{Layout: layout, Kernels: 1234, Layers: 2})
		if got := sum.Rows[RowKernel]; got != 1234 {
			t.Errorf("%s: %d kernels, want 1234", layout, got)
		}
		_, sum = run(t, Config{Layout: layout, Lines: 5000, Layers: 2})
		if sum.Lines < 5000 || sum.Lines > 5000+3*rowLimit {
			t.Errorf("%s: %d lines, want 5000 and little more", layout, sum.Lines)
		}
		_, sum = run(t, Config{Layout: layout, Bytes: 4 << 20})
		if sum.Bytes < 4<<20 || sum.Bytes > 11<<20 {
			t.Errorf("%s: %d bytes, want 4 MiB and little more", layout, sum.Bytes)
		}
	}
}

func TestWriter_ConstantMemory(t *testing.T) {
	before := heap()
	w, err := NewWriter(Config{Dir: t.TempDir(), Bytes: 64 << 20, NoCompress: true})
	if err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		if more, err = w.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if grown := heap() - before; grown > 8<<20 {
		t.Errorf("heap grew by %d bytes", grown)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestConfig_LineLengths(t *testing.T) {
	mean := func(dir string, layout Layout, typ string) (mean float64, longest int) {
		n, total := 0, 0
		for _, w := range readWindows(t, dir, layout) {
			for l := range bytes.Lines(w.data) {
				if bytes.Contains(l, []byte(`"type":"`+typ+`"`)) {
					n, total, longest = n+1, total+len(l), max(longest, len(l))
				}
			}
		}
		return float64(total) / float64(n), longest
	}
	for _, tc := range []struct {
		cfg     Config
		typ     string
		lo, hi  float64
		longest int
	}{
		{cfg: Config{Layout: A2, App: "bench", LineBytes: 300, Kernels: 3000}, typ: "kernel_event", lo: 295, hi: 330, longest: 345},
		{cfg: Config{Layout: A2, App: "bench", LineBytes: 400, Kernels: 3000}, typ: "kernel_event", lo: 400, hi: 400, longest: 400},
		{cfg: Config{Layout: A2, LineBytes: 1800, Kernels: 3000}, typ: "kernel_event", lo: 1800, hi: 1800, longest: 1800},
		{cfg: Config{StackBytes: 1500, Kernels: 3000}, typ: "kernel_detail", lo: 2000, hi: 2200, longest: 2250},
		{cfg: Config{Kernels: 3000}, typ: "kernel_detail", lo: 1800, hi: 2000, longest: 2050},
		{cfg: Config{StackBytes: -1, Kernels: 3000}, typ: "kernel_detail", lo: 550, hi: 680, longest: 700},
	} {
		dir, _ := run(t, tc.cfg)
		got, longest := mean(dir, tc.cfg.Layout, tc.typ)
		if got < tc.lo || got > tc.hi || longest > tc.longest {
			t.Errorf("%+v: mean %.1f, longest %d; want %.0f to %.0f, at most %d", tc.cfg, got, longest, tc.lo, tc.hi, tc.longest)
		}
	}
}

func TestConfig_DistinctStacks(t *testing.T) {
	dir, _ := run(t, Config{Kernels: 3000, DistinctStacks: 150})
	stacks := map[string]bool{}
	for _, w := range readWindows(t, dir, C3) {
		for l := range bytes.Lines(w.data) {
			if bytes.HasPrefix(l, []byte(`{"version":1,"type":"kernel_detail"`)) {
				var r record
				if err := json.Unmarshal(l, &r); err != nil {
					t.Fatal(err)
				}
				stacks[r.StackTrace] = true
			}
		}
	}
	if len(stacks) != 150 {
		t.Errorf("%d distinct stacks of 150", len(stacks))
	}
}

func TestLive_NoEarlyRecords(t *testing.T) {
	for _, layout := range []Layout{A2, C3} {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			began := time.Now() // before the session begins
			w, err := NewWriter(Config{Dir: dir, Layout: layout, App: "live", Live: true, Layers: 1, Epochs: 1, StepsPerEpoch: 8, FlushInterval: 20 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			for more := true; more; {
				if more, err = w.Step(context.Background()); err != nil {
					t.Fatal(err)
				}
				if ahead := time.Until(w.Now()); ahead > 2*time.Millisecond {
					t.Errorf("the session's clock is %v ahead", ahead)
				}
				if layout != A2 {
					continue
				}
				data, err := os.ReadFile(filepath.Join(dir, "live.device.log"))
				if err != nil {
					t.Fatal(err)
				}
				now := time.Now().UnixNano()
				for l := range bytes.Lines(data) {
					var r record
					if err := json.Unmarshal(l, &r); err == nil && r.End > now+2e6 {
						t.Fatalf("on disk %d ns before it ended: %s", r.End-now, l)
					}
				}
			}
			if took := time.Since(began); took < 250*time.Millisecond {
				t.Errorf("8 steps of 40 ms took %v", took)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestLive_Cancelled(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // during the first session, which would take days
		defer cancel()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if files, _ := filepath.Glob(filepath.Join(dir, "*", ".tmp", "device.log")); len(files) > 0 {
				return
			}
		}
	}()
	sum, err := Run(ctx, Config{Dir: dir, Live: true, Layers: 1, Epochs: 1_000_000, Sessions: 3})
	if err != nil {
		t.Fatal(err)
	}
	if len(sum.Sessions) != 1 || !sum.Sessions[0].Clean || sum.Records["shutdown"] != 4 {
		t.Errorf("sessions %+v, %d shutdowns", sum.Sessions, sum.Records["shutdown"])
	}
}

func TestWriter_IncreasingCorrelationIDs(t *testing.T) {
	dir, _ := run(t, Config{Layout: A2, Layers: 2})
	last := int64(0)
	for _, w := range readWindows(t, dir, A2) {
		if w.channel != "device" {
			continue
		}
		for l := range bytes.Lines(w.data) {
			var r record
			if err := json.Unmarshal(l, &r); err != nil {
				t.Fatal(err)
			}
			if r.CorrID == 0 {
				continue
			}
			if r.CorrID <= last {
				t.Fatalf("correlation id %d after %d", r.CorrID, last)
			}
			last = r.CorrID
		}
	}
	if last == 0 {
		t.Error("no correlation ids")
	}
}

func TestConfig_Invalid(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg  Config
		want string
	}{
		"no folder":       {Config{}, "no output folder"},
		"layout":          {Config{Dir: "x", Layout: "b"}, `use "a2" or "c3"`},
		"app":             {Config{Dir: "x", App: "a/b"}, "leave out slashes"},
		"negative":        {Config{Dir: "x", Kernels: -1}, "kernels is -1: use 0"},
		"line bytes c3":   {Config{Dir: "x", LineBytes: 300}, "set the stack length"},
		"rotate after a2": {Config{Dir: "x", Layout: A2, RotateAfter: time.Second}, "leave rotate after unset"},
		"speed":           {Config{Dir: "x", Speed: -1}, "speed is -1"},
		"nan":             {Config{Dir: "x", Speed: math.NaN()}, "speed is NaN"},
	} {
		err := tc.cfg.Validate()
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		if _, err := NewWriter(tc.cfg); err == nil {
			t.Errorf("%s: the writer takes it", name)
		}
	}
	dir := t.TempDir()
	cfg := Config{Dir: dir, Kernels: 1}
	if _, err := Run(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), "another seed") {
		t.Errorf("the same session folder again: %v", err)
	}
}

func TestWriter_WriteError(t *testing.T) {
	dir := t.TempDir()
	w, err := NewWriter(Config{Dir: dir, RotateBytes: 30_000, Layers: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, w.Session())); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if _, err = w.Step(context.Background()); err != nil {
			break
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("steps without a folder: %v", err)
	}
	if err := w.Close(); err == nil {
		t.Error("Close forgets the error")
	}
}
