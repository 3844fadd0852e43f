// SPDX-License-Identifier: Apache-2.0

package distribution_test

import (
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

const version = "v0.2.0"

// published are the modules that users require. The others contain the distribution, tests and
// examples.
var published = []string{
	".", "cmd/gpuflight", "internal/collector",
	"receiver/cudareceiver", "receiver/gpuflogreceiver", "receiver/nvmlreceiver",
	"processor/occupancyprocessor", "connector/gpuusageconnector",
	"extension/encoding/gpuflogencodingextension", "extension/storage/filestorageextension",
	"extension/apikeyauthextension", "extension/gpustorageextension", "extension/gpuqueryextension",
	"exporter/gpustorageexporter", "internal/store/clickstore", "internal/store/duckstore",
}

// moduleProxy writes the working tree's modules in the form of a GOPROXY and returns the variables
// that select it. The module cache is new, because it would keep older files under the same
// version.
var moduleProxy = sync.OnceValues(func() ([]string, error) {
	dir, err := os.MkdirTemp("", "gpuflight-modules-")
	if err != nil {
		return nil, err
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return nil, err
	}
	list := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	out, err := list.Output()
	if err != nil {
		return nil, err
	}
	tree := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	nested := map[string]bool{}
	for _, path := range tree {
		if filepath.Base(path) == "go.mod" {
			nested[filepath.Dir(path)] = true
		}
	}
	// owner is the folder of the module that a file belongs to.
	owner := func(path string) string {
		dir := filepath.Dir(path)
		for dir != "." && !nested[dir] {
			dir = filepath.Dir(dir)
		}
		return dir
	}
	for _, folder := range published {
		m := module.Version{Path: strings.TrimSuffix(rootModule+"/"+folder, "/."), Version: version}
		var files []zip.File
		for _, path := range tree {
			if _, err := os.Lstat(filepath.Join(root, path)); err == nil && owner(path) == folder {
				name := path
				if folder != "." {
					name = strings.TrimPrefix(path, folder+"/")
				}
				files = append(files, treeFile{name, filepath.Join(root, path)})
			}
		}
		at := filepath.Join(dir, "proxy", m.Path, "@v")
		if err := os.MkdirAll(at, 0o700); err != nil {
			return nil, err
		}
		var archive bytes.Buffer
		if err := zip.Create(&archive, m, files); err != nil {
			return nil, err
		}
		mod, err := os.ReadFile(filepath.Join(root, folder, "go.mod"))
		if err != nil {
			return nil, err
		}
		for name, data := range map[string][]byte{
			"list": []byte(version + "\n"), version + ".info": []byte(`{"Version":"` + version + `"}`),
			version + ".mod": mod, version + ".zip": archive.Bytes(),
		} {
			if err := os.WriteFile(filepath.Join(at, name), data, 0o600); err != nil {
				return nil, err
			}
		}
	}
	out, err = exec.Command("go", "env", "-json", "GOPROXY", "GOMODCACHE").Output()
	if err != nil {
		return nil, err
	}
	var env struct{ GOPROXY, GOMODCACHE string }
	if err := json.Unmarshal(out, &env); err != nil {
		return nil, err
	}
	proxies := "file://" + filepath.Join(dir, "proxy") + ",file://" + filepath.Join(env.GOMODCACHE, "cache", "download") + "," + env.GOPROXY
	return append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod -modcacherw", "GOPROXY="+proxies, "GONOSUMDB="+rootModule+","+rootModule+"/*",
		"GOMODCACHE="+filepath.Join(dir, "cache"), "MODULES_DIR="+dir), nil
})

func TestMain(m *testing.M) {
	// Configurations that forward data have no default destination.
	if err := os.Setenv("GPUFLIGHT_OTLP_ENDPOINT", "backend.example:4317"); err != nil {
		panic(err)
	}
	code := m.Run()
	if env, err := moduleProxy(); err == nil {
		for _, v := range env {
			if dir, ok := strings.CutPrefix(v, "MODULES_DIR="); ok {
				_ = os.RemoveAll(dir)
			}
		}
	}
	os.Exit(code)
}

// treeFile is a file of the working tree for a module's archive.
type treeFile struct{ name, path string }

func (f treeFile) Path() string                 { return f.name }
func (f treeFile) Lstat() (fs.FileInfo, error)  { return os.Lstat(f.path) }
func (f treeFile) Open() (io.ReadCloser, error) { return os.Open(f.path) }

// withProxy runs a program in dir with the modules of the working tree and returns what it printed.
func withProxy(t *testing.T, dir string, program string, args ...string) string {
	t.Helper()
	env, err := moduleProxy()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir, cmd.Env = dir, append(env, "GOBIN="+dir)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s %s\n%s%s", program, strings.Join(args, " "), out, stderr.String())
	return string(out)
}

// TestModules_Install installs the command by version, as users do.
func TestModules_Install(t *testing.T) {
	dir := t.TempDir()
	withProxy(t, dir, "go", "install", rootModule+"/cmd/gpuflight@"+version)
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "gpuflight"), "version").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "gpuflight ")
}

// TestModules_Consumer checks the dependencies of a program that imports the SDK.
func TestModules_Consumer(t *testing.T) {
	consumer := func(t *testing.T, requirements ...string) string {
		dir := t.TempDir()
		mod := "module example.com/consumer\n\ngo 1.26.0\n\nrequire (\n\t" + strings.Join(append(requirements, rootModule+" "+version), "\n\t") + "\n)\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(mod), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(`package main

import (
	"context"

	"`+rootModule+`/sdk/gpufl"
)

func main() {
	shutdown, _ := gpufl.Init(context.Background())
	_ = shutdown(context.Background())
}
`), 0o600))
		withProxy(t, dir, "go", "build", "-o", os.DevNull, ".")
		return withProxy(t, dir, "go", "list", "-m", "all")
	}
	t.Run("nothing heavy", func(t *testing.T) {
		modules := consumer(t)
		assert.Contains(t, modules, rootModule+" "+version)
		for _, heavy := range []string{"aws", "kafka", "franz-go", "clickhouse", "ClickHouse", "k8s.io/", "collector-contrib"} {
			assert.NotContains(t, modules, heavy)
		}
	})
	t.Run("old versions stay", func(t *testing.T) {
		// The distribution uses newer versions.
		old := []string{"github.com/twmb/franz-go v1.18.0", "github.com/aws/aws-sdk-go-v2 v1.36.0", "github.com/ClickHouse/ch-go v0.61.0"}
		modules := consumer(t, old...)
		for _, m := range old {
			assert.Contains(t, modules, m+"\n")
		}
	})
}

// TestModules_NoReplace checks for replace directives, which go install rejects.
func TestModules_NoReplace(t *testing.T) {
	for _, folder := range []string{".", "cmd/gpuflight"} {
		text, err := os.ReadFile(filepath.Join(process.Root(t), folder, "go.mod"))
		require.NoError(t, err)
		assert.NotContains(t, string(text), "\nreplace ", folder)
	}
}

// TestModules_Manifest builds with ocb from one gomod line per component.
func TestModules_Manifest(t *testing.T) {
	_, m := readManifest(t, "builder-config.yaml")
	dir := t.TempDir()
	var text strings.Builder
	text.WriteString("dist:\n  name: own\n  output_path: ./own\n")
	section := func(name string, entries []entry) {
		first := true
		for _, e := range entries {
			if !strings.HasPrefix(e.GoMod, rootModule+"/") {
				continue
			}
			if first {
				text.WriteString(name + ":\n")
				first = false
			}
			text.WriteString("  - gomod: " + e.GoMod + "\n")
		}
	}
	section("extensions", m.Extensions)
	section("receivers", m.Receivers)
	section("processors", m.Processors)
	section("connectors", m.Connectors)
	section("exporters", m.Exporters)
	require.Equal(t, 11, strings.Count(text.String(), "gomod"))
	text.WriteString("providers:\n")
	for _, e := range m.Providers {
		text.WriteString("  - gomod: " + e.GoMod + "\n")
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "manifest.yaml"), []byte(text.String()), 0o600))
	withProxy(t, dir, ocb.Find(t), "--config", "manifest.yaml", "--skip-compilation")
	used := withProxy(t, filepath.Join(dir, "own"), "go", "list", "-m", "all")
	for _, e := range m.entries() {
		if strings.HasPrefix(e.GoMod, rootModule+"/") {
			assert.Contains(t, used, e.GoMod+"\n")
		}
	}
	assert.NotContains(t, used, "=>")
}
