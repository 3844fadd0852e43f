// SPDX-License-Identifier: Apache-2.0

package version

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestResolve(t *testing.T) {
	main := func(path, version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Path: path, Version: version}, Settings: settings}
	}
	user := func(sdk *debug.Module) *debug.BuildInfo {
		return &debug.BuildInfo{
			Main: debug.Module{Path: "example.com/training", Version: "v3.0.0"},
			Deps: []*debug.Module{{Path: "github.com/gpuflight/other", Version: "v9.0.0"}, sdk},
		}
	}
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d"}
	modified := debug.BuildSetting{Key: "vcs.modified", Value: "true"}
	for _, tt := range []struct {
		name   string
		linked string
		info   *debug.BuildInfo
		want   string
	}{
		{"linker", "0.2.0", main(module, "v0.1.0"), "0.2.0"},
		{"no build information", "", nil, "dev"},
		{"go install", "", main(module+"/cmd/gpuflight", "v0.2.0"), "0.2.0"},
		{"go install of a commit", "", main(module+"/cmd/gpuflight", "v0.2.1-0.20261124020400-6bd00ce4d1c2"), "0.2.1-0.20261124020400-6bd00ce4d1c2"},
		{"checkout without stamp", "", main(module, "(devel)"), "dev"},
		{"checkout with stamp", "", main(module, "(devel)", revision), "dev+1a2b3c4d5e6f"},
		{"changed checkout", "", main(module, "v0.2.1-0.20261124020400-6bd00ce4d1c2+dirty", revision, modified), "dev+1a2b3c4d5e6f-dirty"},
		{"short revision", "", main(module, "", debug.BuildSetting{Key: "vcs.revision", Value: "1a2b"}), "dev+1a2b"},
		{"program that imports the SDK", "", user(&debug.Module{Path: module, Version: "v0.2.0"}), "0.2.0"},
		{"replaced by a release", "", user(&debug.Module{Path: module, Version: "v0.2.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v0.2.1"}}), "0.2.1"},
		{"replaced by a folder", "", user(&debug.Module{Path: module, Version: "v0.2.0", Replace: &debug.Module{Path: "../gpuflight"}}), "dev"},
		{"module with a similar path", "", main(module+"x", "v7.0.0"), "dev"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			assert.Equal(t, tt.want, resolve(tt.linked, tt.info))
		})
	}
}

// The linker ignores an -X that names no variable, so a rename here would go unnoticed.
func TestFilesThatSetTheVersion(t *testing.T) {
	flag := "-X " + module + "/internal/version.linked="
	for _, name := range []string{"Makefile", "Dockerfile", ".goreleaser.yaml"} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("..", "..", name))
			require.NoError(t, err)
			assert.Positive(t, strings.Count(string(text), flag), "%s sets no %s", name, flag)
		})
	}
	t.Run("linked", func(t *testing.T) {
		source := filepath.Join(t.TempDir(), "main.go")
		require.NoError(t, os.WriteFile(source, []byte("package main\n\nimport \""+module+"/internal/version\"\n\nfunc main() { print(version.String()) }\n"), 0o600))
		// A file outside the module cannot import an internal package; -overlay places it inside.
		place, err := filepath.Abs(filepath.Join("testdata", "main.go"))
		require.NoError(t, err)
		overlay := filepath.Join(t.TempDir(), "overlay.json")
		require.NoError(t, os.WriteFile(overlay, []byte(`{"Replace": {"`+place+`": "`+source+`"}}`), 0o600))
		run := exec.CommandContext(t.Context(), "go", "run", "-overlay", overlay, "-ldflags", flag+"1.2.3", "./testdata")
		out, err := run.CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Equal(t, "1.2.3", strings.TrimSpace(string(out)))
	})
}
