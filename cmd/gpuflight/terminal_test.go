// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"flag"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"github.com/gpuflight/gpuflight/cmd/gpuflight/internal/checks"
)

func TestWrap(t *testing.T) {
	for name, tc := range map[string]struct {
		line, indent string
		width        int
		want         string
	}{
		"fits":              {"one two", "  ", 7, "one two"},
		"no limit":          {"one two", "  ", 0, "one two"},
		"breaks":            {"one two three", "  ", 8, "one two\n  three"},
		"keeps the indent":  {"    one two", "    ", 8, "    one\n    two"},
		"a long word":       {"a verylongword b", "  ", 6, "a\n  verylongword\n  b"},
		"counts characters": {"ä ö ü ß", "", 3, "ä ö\nü ß"},
		"words with spaces": {"ok    driver       no such driver", "      ", 28, "ok    driver       no such\n      driver"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, wrap(tc.line, tc.width, tc.indent))
		})
	}
}

func TestTerminalWidth(t *testing.T) {
	for columns, want := range map[string]int{"": 0, "120": 120, "7": minWidth, "wide": 0, "-1": 0} {
		t.Setenv("COLUMNS", columns)
		assert.Equal(t, want, terminalWidth(&bytes.Buffer{}), columns)
	}
}

// TestHelp_Columns checks the help of each command at several widths.
func TestHelp_Columns(t *testing.T) {
	for _, columns := range []string{"40", "80", "200"} {
		t.Setenv("COLUMNS", columns)
		width := terminalWidth(&bytes.Buffer{})
		for _, command := range []string{"trace", "view", "sessions", "export", "key", "report", "deep", "doctor"} {
			var stdout, stderr bytes.Buffer
			assert.Zero(t, run(t.Context(), []string{command, "--help"}, &stdout, &stderr))
			assert.Empty(t, stderr.String())
			for line := range strings.Lines(stdout.String()) {
				line = strings.TrimSuffix(line, "\n")
				// Commands and tables stay as they are, and words are not broken.
				if n := utf8.RuneCountInString(line); n > width && strings.HasPrefix(line, flagIndent) && len(strings.Fields(line)) > 1 {
					t.Errorf("%s, %s columns: %q", command, columns, line)
				}
				assert.NotContains(t, line, "(default")
				assert.NotContains(t, line, "(example")
			}
		}
	}
}

func TestPrintUsage_DefaultsAndExamples(t *testing.T) {
	fs := flag.NewFlagSet("x", flag.ContinueOnError)
	fs.Int("rows", 20, "rows of a table")
	fs.String("for", "", "a `duration` of work (default: 2s) (example: 500ms)")
	fs.Bool("quiet", false, "print less")
	var out bytes.Buffer
	printUsage(&out, "x prints\nrows.\n\nUsage:\n  x [flags]\n\nFlags:\n", fs)
	assert.Equal(t, "x prints rows.\n\nUsage:\n  x [flags]\n\nFlags:\n"+
		"  --for DURATION\n        a duration of work\n        default: 2s\n        example: 500ms\n"+
		"  --quiet\n        print less\n"+
		"  --rows INT\n        rows of a table\n        default: 20\n", out.String())
}

func TestPrintFindings(t *testing.T) {
	t.Setenv("COLUMNS", "60")
	var out bytes.Buffer
	assert.NoError(t, printFindings(&out, []checks.Finding{
		{Check: "driver", OK: true, Detail: "CUDA 13.0"},
		{Check: "collector", Detail: "nothing listens at localhost:4318", Fix: "run otelcol-gpuflight --config config/local.yaml"},
		{Check: "bpf", Optional: true, Detail: "not allowed"},
		{Check: "cupti", Skipped: true, Detail: "requires a working driver"},
	}, false))
	assert.Equal(t, `ok    driver       CUDA 13.0
WRONG collector    nothing listens at localhost:4318
                   fix: run otelcol-gpuflight --config
                        config/local.yaml
note  bpf          not allowed
?     cupti        requires a working driver
`, out.String())
}

func TestFolded(t *testing.T) {
	var out bytes.Buffer
	t.Setenv("COLUMNS", "40")
	w := folded(&out)
	long := "  " + strings.Repeat("ä", 30) + " " + strings.Repeat("b", 20)
	for _, part := range []string{"short\n", long[:10], long[10:] + "\n", strings.Repeat("c", 41) + "\n", "rest"} {
		n, err := w.Write([]byte(part))
		assert.NoError(t, err)
		assert.Equal(t, len(part), n)
	}
	assert.Equal(t, "short\n  "+strings.Repeat("ä", 30)+"\n    "+strings.Repeat("b", 20)+"\n"+strings.Repeat("c", 41)+"\n", out.String())
	t.Setenv("COLUMNS", "")
	assert.Same(t, &out, folded(&out))
}
