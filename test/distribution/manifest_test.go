// SPDX-License-Identifier: Apache-2.0

package distribution_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

var (
	collector = process.Collector
	ocb       = process.Binary{Env: "GPUFLIGHT_OCB", Path: ".tools/ocb", Make: "make .tools/ocb"}
)

const rootModule = "github.com/gpuflight/gpuflight"

// manifest is the tested part of ocb's manifest.
type manifest struct {
	Dist struct {
		Name       string `yaml:"name"`
		OutputPath string `yaml:"output_path"`
	} `yaml:"dist"`
	Extensions []entry  `yaml:"extensions"`
	Receivers  []entry  `yaml:"receivers"`
	Processors []entry  `yaml:"processors"`
	Exporters  []entry  `yaml:"exporters"`
	Connectors []entry  `yaml:"connectors"`
	Providers  []entry  `yaml:"providers"`
	Replaces   []string `yaml:"replaces"`
}

type entry struct {
	GoMod  string `yaml:"gomod"`
	Import string `yaml:"import"`
	Path   string `yaml:"path"`
}

func (m *manifest) entries() []entry {
	var all []entry
	for _, kind := range [][]entry{m.Extensions, m.Receivers, m.Processors, m.Exporters, m.Connectors, m.Providers} {
		all = append(all, kind...)
	}
	return all
}

// manifests are the distributions: the Collector, the agent without the store, and the Collector of
// the image.
var manifests = []string{"builder-config.yaml", "builder-agent.yaml", "builder-k8s.yaml"}

func readManifest(t *testing.T, name string) (string, *manifest) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(process.Root(t), name))
	require.NoError(t, err)
	var m manifest
	require.NoError(t, yaml.Unmarshal(text, &m))
	return string(text), &m
}

// TestManifest_GeneratedCollector runs ocb on the manifests with another output folder and compares
// all files.
func TestManifest_GeneratedCollector(t *testing.T) {
	tool := ocb.Find(t)
	for _, name := range manifests {
		t.Run(name, func(t *testing.T) { compareGenerated(t, tool, name) })
	}
}

func compareGenerated(t *testing.T, tool, name string) {
	t.Helper()
	text, m := readManifest(t, name)
	out := t.TempDir()
	line := "output_path: " + m.Dist.OutputPath
	require.Equal(t, 1, strings.Count(text, line))
	changed := filepath.Join(t.TempDir(), "manifest.yaml")
	require.NoError(t, os.WriteFile(changed, []byte(strings.Replace(text, line, "output_path: "+out, 1)), 0o600))

	run(t, process.Root(t), tool, "--config", changed, "--skip-compilation", "--skip-get-modules")

	generated := goFiles(t, out)
	require.Contains(t, generated, "main.go")
	require.Contains(t, generated, "components.go")
	assert.Equal(t, generated, goFiles(t, filepath.Join(process.Root(t), m.Dist.OutputPath)),
		"the committed collector is not what the manifest says: run `make generate`")
}

// TestManifest_GoModVersions compares the two lists of versions: ocb uses the manifest, go build
// the distribution module.
func TestManifest_GoModVersions(t *testing.T) {
	for _, name := range manifests {
		t.Run(name, func(t *testing.T) { compareVersions(t, name) })
	}
}

func compareVersions(t *testing.T, name string) {
	t.Helper()
	_, m := readManifest(t, name)
	wanted := map[string]string{}
	replaced := m.Replaces
	for _, e := range m.entries() {
		path, version, ok := strings.Cut(e.GoMod, " ")
		require.True(t, ok, "%q has no version", e.GoMod)
		wanted[path] = version
		if e.Path != "" {
			assert.Equal(t, rootModule+strings.TrimPrefix(e.Path, "."), path)
			replaced = append(replaced, path+" => ../../"+strings.TrimPrefix(e.Path, "./"))
		}
	}
	require.NotEmpty(t, wanted)

	var mod struct {
		Require []struct {
			Path, Version string
			Indirect      bool
		}
		Replace []struct {
			Old, New struct{ Path, Version string }
		}
	}
	require.NoError(t, json.Unmarshal(run(t, filepath.Join(process.Root(t), m.Dist.OutputPath), "go", "mod", "edit", "-json"), &mod))
	var replaces []string
	for _, r := range mod.Replace {
		replaces = append(replaces, strings.TrimSpace(r.Old.Path+" "+r.Old.Version)+" => "+strings.TrimSpace(r.New.Path+" "+r.New.Version))
	}
	assert.ElementsMatch(t, replaced, replaces)

	selected := map[string]string{}
	for _, r := range mod.Require {
		if _, ok := wanted[r.Path]; ok {
			selected[r.Path] = r.Version
		}
	}
	assert.Equal(t, wanted, selected)
}

// TestReadme_ManifestBuilds builds the collector of the manifest in the README, as users do who add
// our components to their own.
func TestReadme_ManifestBuilds(t *testing.T) {
	tool := ocb.Find(t)
	root := process.Root(t)
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```yaml\n(dist:.*?)```").FindSubmatch(readme)
	require.NotNil(t, block, "no manifest in README.md")
	text := string(block[1])
	var m manifest
	require.NoError(t, yaml.Unmarshal([]byte(text), &m))

	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "manifest.yaml"), []byte(text), 0o600))
	withProxy(t, dir, tool, "--config", "manifest.yaml", "--skip-compilation")
	out := filepath.Join(dir, m.Dist.OutputPath)
	binary := filepath.Join(out, m.Dist.Name)
	withProxy(t, out, "go", "build", "-buildvcs=false", "-ldflags", "-s -w", "-o", binary, ".")

	var has struct {
		Receivers, Exporters []struct{ Name string }
	}
	require.NoError(t, yaml.Unmarshal(run(t, dir, binary, "components"), &has))
	require.Len(t, has.Receivers, 1)
	assert.Equal(t, "gpuflog", has.Receivers[0].Name)
	require.Len(t, has.Exporters, 1)
	assert.Equal(t, "otlp_grpc", has.Exporters[0].Name)
	run(t, dir, binary, "validate", "--config", filepath.Join(root, "test", "distribution", "testdata", "readme.yaml"))
}

// TestComponents checks the names that users write in configurations.
func TestComponents(t *testing.T) {
	type named []struct{ Name string }
	var has struct {
		Receivers, Processors, Exporters, Connectors, Extensions named
	}
	require.NoError(t, yaml.Unmarshal(run(t, process.Root(t), collector.Find(t), "components"), &has))
	names := func(list named) []string {
		var out []string
		for _, c := range list {
			out = append(out, c.Name)
		}
		return out
	}
	assert.ElementsMatch(t, names(has.Receivers), []string{
		"cuda", "gpuflog", "nvml", "otlp", "file_log", "otlp_json_file", "host_metrics", "kafka",
	})
	assert.ElementsMatch(t, names(has.Processors), []string{
		"occupancy", "batch", "memory_limiter", "filter", "transform", "tail_sampling", "interval", "resource", "groupbyattrs",
	})
	assert.ElementsMatch(t, names(has.Exporters), []string{
		"otlp_grpc", "otlp_http", "debug", "nop", "file", "kafka", "prometheus", "prometheus_remote_write", "awss3", "clickhouse", "gpu_storage",
	})
	assert.ElementsMatch(t, names(has.Connectors), []string{"gpu_usage", "forward", "span_metrics"})
	assert.ElementsMatch(t, names(has.Extensions), []string{
		"gpuflog_encoding", "api_key_auth", "gpu_storage", "gpu_query", "zpages", "file_storage", "health_check", "pprof", "bearertokenauth", "basicauth",
	})
}

// run runs a program and returns its standard output. If the program fails, the test fails with all
// of its output.
func run(t *testing.T, dir, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s\n%s%s", cmd, out, &stderr)
	return out
}

// goFiles returns the contents of a folder's Go files by name.
func goFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	files := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		files[filepath.Base(path)] = string(text)
	}
	return files
}
