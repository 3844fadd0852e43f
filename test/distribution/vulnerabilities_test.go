// SPDX-License-Identifier: Apache-2.0

package distribution_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

var govulncheck = process.Binary{Env: "GPUFLIGHT_GOVULNCHECK", Path: ".tools/govulncheck", Make: "make .tools/govulncheck"}

// advisory is a synthetic vulnerability of a function that govulncheck itself calls.
const advisory = `{"schema_version": "1.3.1", "id": "GO-2000-0001", "modified": "2000-01-01T00:00:00Z",
	"published": "2000-01-01T00:00:00Z", "summary": "invented", "details": "invented",
	"database_specific": {"url": "none"}, "affected": [{"package": {"name": "golang.org/x/vuln", "ecosystem": "Go"},
	"ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}]}],
	"ecosystem_specific": {"imports": [{"path": "golang.org/x/vuln/scan", "symbols": ["Command"]}]}}]}`

// TestGovulncheck_Databases runs scripts/govulncheck on the module of govulncheck with databases of
// its own.
func TestGovulncheck_Databases(t *testing.T) {
	program := govulncheck.Find(t)
	database := func(modules, vulnerabilities string) string {
		dir := t.TempDir()
		for name, text := range map[string]string{
			"index/db.json": `{"modified": "2000-01-01T00:00:00Z"}`, "index/modules.json": modules,
			"index/vulns.json": vulnerabilities, "ID/GO-2000-0001.json": advisory,
		} {
			require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		return "file://" + dir
	}
	const entry = `{"id": "GO-2000-0001", "modified": "2000-01-01T00:00:00Z"}`
	nobody := "http://" + process.FreePort(t)
	for name, c := range map[string]struct {
		variable string
		status   int
		output   string
	}{
		"no vulnerability": {"GOVULNDB=" + database(`[]`, `[]`), 0, "No vulnerabilities found."},
		"a vulnerability that is called": {
			"GOVULNDB=" + database(`[{"path": "golang.org/x/vuln", "vulns": [`+entry+`]}]`, `[`+entry+`]`), 3, "GO-2000-0001",
		},
		"out of reach": {"HTTPS_PROXY=" + nobody, 0, "govulncheck: skipped, because its database is out of reach: "},
		// Who names a database wants an answer from it.
		"named and out of reach": {"GOVULNDB=" + nobody, 1, "vulndb"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), filepath.Join("scripts", "govulncheck"), program, filepath.Join("internal", "tools", "vuln"))
			cmd.Dir = process.Root(t)
			cmd.Env = append(os.Environ(), "GOVULNDB=", "NO_PROXY=", c.variable)
			out, err := cmd.CombinedOutput()
			require.NotNil(t, cmd.ProcessState, "%v", err)
			assert.Equal(t, c.status, cmd.ProcessState.ExitCode(), "%s", out)
			assert.Contains(t, string(out), c.output)
		})
	}
}
