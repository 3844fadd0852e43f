// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/deep/engine"
)

// undocumented holds the variables that users do not set, with the reason.
var undocumented = map[string]string{
	"GPUFLIGHT_SUMMARY_DIR": "gpuflight trace sets it for the recording processes",
	"GPUFLIGHT_DEEP_DUMP":   "it records data for tests without a GPU",
}

func TestSettings_AreDocumented(t *testing.T) {
	var docs strings.Builder
	for _, page := range []string{"sdk.md", "trace.md", "deep-profiling.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
		require.NoError(t, err)
		docs.Write(text)
	}
	seen := map[string]bool{}
	for _, s := range slices.Concat(table, new(engine.Settings).Table()) {
		assert.False(t, seen[s.Variable], "%s has two rows", s.Variable)
		seen[s.Variable] = true
		if s.Flag != "" {
			// The table of flags names two flags in one cell: `--include`, `--exclude GLOBS`.
			assert.Regexp(t, "`--"+s.Flag+"[ `]", docs.String())
			assert.NotEmpty(t, s.Help, s.Flag)
		}
		name := "`" + s.Variable + "`"
		if short, found := strings.CutPrefix(s.Variable, deep.Variable); found && !strings.Contains(docs.String(), name) {
			name = "`" + short + "`"
		}
		if undocumented[s.Variable] == "" {
			assert.Contains(t, docs.String(), name)
		}
	}
	for v := range undocumented {
		assert.True(t, seen[v], "%s is not a variable", v)
	}
}

// TestFlags_InvalidValues gives each flag an invalid value. The error must name the flag if the
// flag was given, and the variable otherwise.
func TestFlags_InvalidValues(t *testing.T) {
	library := emptyLibrary(t)
	// Any text is valid for these.
	text := []string{"GPUFLIGHT_OUTPUT", "GPUFLIGHT_INCLUDE", "GPUFLIGHT_EXCLUDE", "OTEL_SERVICE_NAME"}
	checked := 0
	for _, s := range table {
		if s.Flag == "" || slices.Contains(text, s.Variable) {
			continue
		}
		t.Run(s.Flag, func(t *testing.T) {
			checked++
			const invalid = "ftp://\x01"
			for given, name := range map[string][]string{
				"--" + s.Flag: {"--" + s.Flag + "=" + invalid}, s.Variable: nil,
			} {
				cfg, err := parseTrace(slices.Concat([]string{"--library", library}, name, []string{"--", "true"}), &bytes.Buffer{})
				require.NoError(t, err)
				var environ []string
				if name == nil {
					environ = []string{s.Variable + "=" + invalid}
				}
				_, err = prepare(cfg, environ)
				require.ErrorAs(t, err, new(*usageError))
				assert.Regexp(t, "^"+given+"( is |: )", err.Error())
				assert.NotContains(t, err.Error(), "\n", "one sentence")
			}
		})
	}
	assert.Equal(t, 20, checked)
}
