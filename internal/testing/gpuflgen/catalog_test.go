// SPDX-License-Identifier: Apache-2.0

package gpuflgen

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCatalogue_AllLaunches(t *testing.T) {
	used := map[string]bool{"nccl_allreduce": true}
	for _, ops := range [][]string{embedOps, forwardOps, headOps, headGradOps, backwardOps, embedGrad, optimizeOps, validateOps} {
		for _, op := range ops {
			used[op] = true
		}
	}
	names := map[string]bool{}
	for _, k := range catalogue {
		if !used[k.short] {
			t.Errorf("%s is never launched", k.short)
		}
		delete(used, k.short)
		if names[k.name] || k.name == "" {
			t.Errorf("%s: the name %q is empty or taken", k.short, k.name)
		}
		names[k.name] = true
	}
	for op := range used {
		t.Errorf("%s is launched and not in the catalogue", op)
	}
	if len(catalogue) < 50 {
		t.Errorf("%d kernels", len(catalogue))
	}
	for _, s := range sources {
		if len(s.sass) != len(s.line) || s.symbol() == s.kernel || s.symbol() == "" {
			t.Errorf("%s: %d instructions, %d lines, symbol %q", s.kernel, len(s.sass), len(s.line), s.symbol())
		}
		for _, n := range s.line {
			if n < 1 || int(n) > len(s.lines) {
				t.Errorf("%s points to line %d of %d", s.kernel, n, len(s.lines))
			}
		}
	}
}

// GPU Flight's recorder reported the expected values on an H200 for launches of these shapes.
func TestShape_OccupancyOfDevice(t *testing.T) {
	for _, tc := range []struct {
		kernel    kernelSpec
		occupancy float64
		limiter   string
		blocks    int64
	}{
		{kernelSpec{block: [3]int64{384, 1, 1}, regs: 168, dynShared: 213204}, 0.1875, "registers", 1},
		{kernelSpec{block: [3]int64{256, 1, 1}, regs: 56}, 0.5, "registers", 4},
		{kernelSpec{block: [3]int64{1, 1, 1}, regs: 16}, 0.5, "blocks", 32},
		{kernelSpec{block: [3]int64{192, 1, 1}, regs: 32}, 0.9375, "warps", 10},
		{kernelSpec{block: [3]int64{128, 1, 1}, regs: 18}, 1, "warps", 16},
	} {
		s := tc.kernel.shape()
		if s.occupancy != tc.occupancy || s.limiter != tc.limiter || s.activeBlocks != tc.blocks {
			t.Errorf("%+v: %v by %s with %d blocks; want %v by %s with %d", tc.kernel, s.occupancy, s.limiter, s.activeBlocks,
				tc.occupancy, tc.limiter, tc.blocks)
		}
	}
}

func FuzzAppendString(f *testing.F) {
	for _, s := range []string{"", "a|b", "q\" b\\ t\t n\n r\r", "\x00\x01\x1f\x7f", "Größe 大", "{lambda()#1}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		s = strings.ToValidUTF8(s, "?")
		var got string
		if err := json.Unmarshal(appendString(nil, s), &got); err != nil || got != s {
			t.Errorf("%q came back as %q: %v", s, got, err)
		}
		if c := clip(s, 7); len(c) > 7 || !strings.HasPrefix(s, c) || strings.ToValidUTF8(c, "?") != c {
			t.Errorf("%q clipped to %q", s, c)
		}
	})
}

// TestRecords_ShapesOfRecordings compares key order, column order and value kinds with recorded
// logs.
func TestRecords_ShapesOfRecordings(t *testing.T) {
	recordings := filepath.Join("..", "testdata", "logs")
	// An older client recorded source text and listings in the same form.
	for layout, folders := range map[Layout][]string{
		A2: {"a2-h200", "golden-a2-flat"},
		C3: {"c3-h200-minigpt", "c3-h200-scopes", "golden-c3-session", "c2-h200-engines"},
	} {
		known := map[string][]string{}
		for _, folder := range folders {
			collectShapes(t, filepath.Join(recordings, folder), layout, known)
		}
		dir, _ := run(t, Config{Layout: layout, Layers: 2, StepsPerEpoch: 3})
		ours := map[string][]string{}
		collectShapes(t, dir, layout, ours)
		if len(ours) < 9 {
			t.Errorf("%s: only the types %v", layout, ours)
		}
		for typ, shapes := range ours {
			if len(known[typ]) == 0 && typ != "source_file_content" {
				t.Errorf("%s: no recording has a %s", layout, typ)
				continue
			}
			for _, s := range shapes {
				if len(known[typ]) > 0 && !slices.Contains(known[typ], s) {
					t.Errorf("%s: no recording has\n%s\nthey have\n%s", layout, s, strings.Join(known[typ], "\n"))
				}
			}
		}
	}
}

// collectShapes adds the distinct shapes of all records under dir, by type.
func collectShapes(t *testing.T, dir string, layout Layout, shapes map[string][]string) {
	t.Helper()
	for _, w := range readWindows(t, dir, layout) {
		for l := range strings.Lines(string(w.data)) {
			var r record
			if err := json.Unmarshal([]byte(l), &r); err != nil {
				t.Fatalf("%s: %v", w.path, err)
			}
			// Dictionaries and device lists vary with their content.
			if r.Type == "dictionary_update" {
				continue
			}
			if s := shape(t, l); !slices.Contains(shapes[r.Type], s) {
				shapes[r.Type] = append(shapes[r.Type], s)
			}
		}
	}
}

// shape returns a record's keys in order with the kind of each value: string, number or bool. For a
// batch it adds the columns, and for a list of objects the keys of the first object.
func shape(t *testing.T, l string) string {
	dec := json.NewDecoder(strings.NewReader(l))
	dec.UseNumber()
	var b strings.Builder
	var value func(key string)
	next := func() json.Token {
		tok, err := dec.Token()
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	value = func(key string) {
		switch tok := next().(type) {
		case json.Delim:
			b.WriteString(tok.String())
			first := true
			for dec.More() {
				switch {
				case tok == '{':
					k := next().(string)
					b.WriteString(k + ":")
					value(k)
				case first:
					value(key)
				case key == "columns":
					b.WriteString("," + next().(string))
				default:
					var skipped json.RawMessage
					if err := dec.Decode(&skipped); err != nil {
						t.Fatal(err)
					}
				}
				first = false
			}
			b.WriteString(next().(json.Delim).String())
		case string:
			if key == "columns" {
				b.WriteString(tok)
			}
			b.WriteString("s ")
		case json.Number:
			b.WriteString("n ")
		case bool:
			b.WriteString("b ")
		}
	}
	value("")
	return b.String()
}
