// SPDX-License-Identifier: Apache-2.0

//go:build linux

package recordings_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestGolden compares the output for the small synthetic sessions with golden files. Together they
// hold every record type, so a review shows a change of any name, id or value.
func TestGolden(t *testing.T) {
	root := process.Recordings(t)
	for _, name := range []string{"golden-a2-flat", "golden-b-flat", "golden-c3-session"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(root, name)
			store := read(t, dir, nil, expected(recount(t, dir)))
			checkTree(t, store.Spans(), 10000) // a golden file must not contain errors
			got := text(t, store)
			file := filepath.Join("testdata", name+".jsonl")
			if *update {
				require.NoError(t, os.MkdirAll("testdata", 0o755))
				require.NoError(t, os.WriteFile(file, []byte(strings.Join(got, "\n")+"\n"), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err, "make it with go test ./test/recordings -run TestGolden -update")
			lines := strings.Split(strings.TrimSuffix(string(want), "\n"), "\n")
			for _, line := range difference(lines, got) {
				t.Error("missing: ", line)
			}
			for _, line := range difference(got, lines) {
				t.Error("not in the golden file: ", line)
			}
		})
	}
}

// difference returns the lines of a that b does not have.
func difference(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(line string) bool { return slices.Contains(b, line) })
}

// text writes each item as one line of JSON, ordered by kind, time and text.
func text(t *testing.T, store *testsink.Store) []string {
	t.Helper()
	var out []string
	add := func(v map[string]any) {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false) // kernel names are full of < and >
		require.NoError(t, enc.Encode(v))
		out = append(out, strings.TrimSuffix(b.String(), "\n"))
	}
	for _, sp := range store.Spans() {
		links := []string{}
		for _, l := range sp.Links {
			links = append(links, l.String())
		}
		add(map[string]any{
			"1 span": sp.SpanKey.String(), "2 parent": sp.Parent.String(), "3 name": sp.Name, "4 count": sp.Count,
			"5 time": [2]uint64{sp.StartNs, sp.EndNs}, "6 attributes": sp.Attrs, "7 resource": sp.Resource, "8 links": links,
		})
	}
	for _, l := range store.LogRecords() {
		add(map[string]any{
			"1 log": l.Event, "2 time": l.TimeNs, "3 body": l.Body, "4 count": l.Count,
			"5 span": l.SpanKey.String(), "6 attributes": l.Attrs,
		})
	}
	for _, p := range store.Points() {
		add(map[string]any{
			"1 point": p.Metric, "2 time": p.TimeNs, "3 value": p.Value, "4 count": p.Count,
			"5 unit": p.Unit, "6 type": p.Type, "7 attributes": p.Attrs,
		})
	}
	slices.Sort(out)
	return out
}
