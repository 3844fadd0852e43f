// SPDX-License-Identifier: Apache-2.0

package distribution_test

import (
	"debug/buildinfo"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

var agent = process.Binary{Env: "GPUFLIGHT_AGENT", Path: "bin/otelcol-gpuflight-agent", Make: "make build"}

// TestAgent_NoStore checks that the agent is the Collector without the store.
func TestAgent_NoStore(t *testing.T) {
	duckdb := func(binary string) bool {
		info, err := buildinfo.ReadFile(binary)
		require.NoError(t, err)
		for _, m := range info.Deps {
			if strings.HasPrefix(m.Path, "github.com/duckdb/") {
				return true
			}
		}
		return false
	}
	assert.True(t, duckdb(collector.Find(t)))
	assert.False(t, duckdb(agent.Find(t)))
	run(t, t.TempDir(), agent.Find(t), "validate", "--config", filepath.Join(process.Root(t), "config", "agent.yaml"))
}

// TestAgent_Manifest compares both manifests and the generated code.
func TestAgent_Manifest(t *testing.T) {
	root := process.Root(t)
	text, err := os.ReadFile(filepath.Join(root, "builder-agent.yaml"))
	require.NoError(t, err)
	var own manifest
	require.NoError(t, yaml.Unmarshal(text, &own))
	_, full := readManifest(t)
	want := slices.DeleteFunc(full.entries(), func(e entry) bool {
		return strings.Contains(e.GoMod, "/gpustorage") || strings.Contains(e.GoMod, "/gpuquery")
	})
	assert.Equal(t, want, own.entries())

	out := t.TempDir()
	changed := filepath.Join(t.TempDir(), "manifest.yaml")
	line := "output_path: " + own.Dist.OutputPath
	require.Equal(t, 1, strings.Count(string(text), line))
	require.NoError(t, os.WriteFile(changed, []byte(strings.Replace(string(text), line, "output_path: "+out, 1)), 0o600))
	run(t, root, ocb.Find(t), "--config", changed, "--skip-compilation", "--skip-get-modules")
	assert.Equal(t, goFiles(t, out), goFiles(t, filepath.Join(root, own.Dist.OutputPath)), "run `make generate`")
}
