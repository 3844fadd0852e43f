// SPDX-License-Identifier: Apache-2.0

package queryapi_test

import (
	"encoding/json"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

var cli = process.Binary{Env: "GPUFLIGHT_CLI", Path: "bin/gpuflight", Make: "make build"}

// inNoRecording are members that no recording has, with the reason.
var inNoRecording = map[string]string{
	".analyses[].critical_paths[].missing":            "all recordings are complete",
	".analyses[].devices[].host_by_line[].count":      noSamples,
	".analyses[].devices[].host_by_line[].name":       noSamples,
	".analyses[].devices[].host_by_line[].ns":         noSamples,
	".analyses[].devices[].small_kernels[].limiter":   noOccupancy,
	".analyses[].devices[].small_kernels[].occupancy": noOccupancy,
	".analyses[].devices[].small_kernels[].waves":     noOccupancy,
	".copies[].longest.shape":                         "of kernels",
	".kernels[].bytes":                                "of copies and sets",
	".scopes[].longest.shape":                         "of kernels",
	".sets.longest.shape":                             "of kernels",
	".sets.name":                                      "of kernels and copies",
	".sliced_sessions":                                "no recording has an overhead budget",
	".slowed_scopes":                                  noWindows,
	".windows":                                        noWindows,
}

const (
	noSamples   = "no recording has samples of the host"
	noOccupancy = "the occupancy processor of a Collector computes it"
	noWindows   = "no recording has deep windows"
)

// output returns the JSON that a command of gpuflight prints. It must have a schema of the description.
func output(t *testing.T, schema *openapi3.Schema, args ...string) (answer any) {
	out, err := exec.CommandContext(t.Context(), cli.Find(t), args...).Output()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out, &answer))
	require.NoError(t, schema.VisitJSON(answer, openapi3.VisitAsResponse(), openapi3.MultiErrors()))
	return answer
}

// TestReport_MatchesDescription compares the members of gpuflight report --json with the description in
// both directions.
func TestReport_MatchesDescription(t *testing.T) {
	schema := description(t).Components.Schemas["Report"].Value
	files := []string{"../../examples/recordings/cupy"}
	for _, pattern := range []string{"../../examples/recordings/*.gz", "../gpu/causes/recordings/*.gz"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		files = append(files, found...)
	}
	var reports []any
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			reports = append(reports, output(t, schema, "report", "--json", file))
		})
	}
	more, absent := differences("", schema, reports)
	assert.Empty(t, more)
	assert.ElementsMatch(t, absent, slices.Collect(maps.Keys(inNoRecording)))
}

func TestRanks_MatchDescription(t *testing.T) {
	files, err := filepath.Glob("../gpu/ranks/recordings/*.gz")
	require.NoError(t, err)
	schema := description(t).Components.Schemas["Ranks"].Value
	more, _ := differences("", schema, []any{output(t, schema, append([]string{"ranks", "--json"}, files...)...)})
	assert.Empty(t, more)
}

// differences returns the members of JSON values that their schema lacks, and those that no value has.
func differences(path string, s *openapi3.Schema, values []any) (more, absent []string) {
	visit := func(path string, s *openapi3.Schema, values []any) {
		m, a := differences(path, s, values)
		more, absent = append(more, m...), append(absent, a...)
	}
	if s.Items != nil {
		var items []any
		for _, v := range values {
			list, _ := v.([]any)
			items = append(items, list...)
		}
		visit(path+"[]", s.Items.Value, items)
		return more, absent
	}
	byName := map[string][]any{}
	for _, v := range values {
		object, _ := v.(map[string]any)
		for name, v := range object {
			byName[name] = append(byName[name], v)
		}
	}
	known, open := membersOf(s)
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		if known[name] == nil && !open {
			more = append(more, path+"."+name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if byName[name] == nil {
			absent = append(absent, path+"."+name)
		} else {
			visit(path+"."+name, known[name].Value, byName[name])
		}
	}
	return more, absent
}

// membersOf returns the members that a schema names, and whether it permits others.
func membersOf(s *openapi3.Schema) (known openapi3.Schemas, open bool) {
	known = maps.Clone(s.Properties)
	open = s.AdditionalProperties.Schema != nil || s.AdditionalProperties.Has != nil && *s.AdditionalProperties.Has
	open = open || s.Type == nil && s.AllOf == nil // any value
	for _, part := range s.AllOf {
		if known == nil {
			known = openapi3.Schemas{}
		}
		m, o := membersOf(part.Value)
		maps.Copy(known, m)
		open = open || o
	}
	return known, open
}
