// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuflight/gpuflight/internal/version"
)

func command(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(context.Background(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestRun_ExitStatusAndMessages(t *testing.T) {
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
		{"no command", nil, 2, "", "gpuflight doctor [flags]"},
		{"unknown command", []string{"frob"}, 2, "", `no command "frob"`},
		{"help", []string{"help"}, 0, "gpuflight doctor [flags]", ""},
		{"version", []string{"version"}, 0, "gpuflight " + version.String(), ""},
		{"help of trace", []string{"trace", "--help"}, 0, "  --min-duration DURATION\n        create no spans for device work shorter than this duration\n        example: 5us\n", ""},
		{"help, then trace", []string{"help", "trace"}, 0, "  --min-duration DURATION\n        create no spans for device work shorter than this duration\n        example: 5us\n", ""},
		{"help of an unknown command", []string{"help", "frob"}, 2, "", `no command "frob"`},
		{"flags after the files", []string{"report", filepath.Join(dir, "x.jsonl"), "--top", "-1"}, 2, "", "use 0 or more"},
		{"help of report", []string{"report", "--help"}, 0, "  --top INT\n        rows of each table; 0 for all\n        default: 20\n", ""},
		{"help of doctor", []string{"doctor", "--help"}, 0, "  --json\n        print the findings as JSON\n", ""},
		{"trace without command", []string{"trace", "--quiet"}, 2, "", "no command: give it after --"},
		{"trace without library", []string{"trace", "--library", filepath.Join(dir, "libgpuflight.so"), "--", "true"}, 1, "", "libgpuflight.so: no such file"},
		{"trace with a folder as library", []string{"trace", "--library", dir, "--", "true"}, 1, "", "is not a file"},
		{"report of nothing", []string{"report"}, 2, "", "give one or more files or folders"},
		{"report of a missing file", []string{"report", filepath.Join(dir, "x.jsonl")}, 1, "", "no such file"},
		{"report of another file", []string{"report", blocked}, 1, "", "neither recorded OTLP"},
		{"report with less than no rows", []string{"report", "--top", "-1", dir}, 2, "", "use 0 or more"},
		{"doctor of something", []string{"doctor", "gpu0"}, 2, "", `"gpu0" is not a flag`},
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
