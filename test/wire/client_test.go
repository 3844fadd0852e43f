// SPDX-License-Identifier: Apache-2.0

//go:build linux

package wire_test

import (
	"archive/zip"
	"context"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testcache"
	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// clientVersion is the release of GPU Flight's client that scripts/gpufl.txt pins.
const clientVersion = "1.2.1"

// client is the released client, unpacked, with stubs that let it load without a GPU.
type client struct {
	python, packages, libraries string
}

// interpreters are the supported Python versions of the client.
var interpreters = []string{"python3.12", "python3.13"}

// findPython returns a working interpreter; a shim may fail.
func findPython(t *testing.T) (path, tag string) {
	t.Helper()
	for _, name := range interpreters {
		candidates := []string{name}
		if home, err := os.UserHomeDir(); err == nil {
			more, err := filepath.Glob(filepath.Join(home, ".pyenv", "versions", "*", "bin", name))
			require.NoError(t, err)
			candidates = append(candidates, more...)
		}
		for _, c := range candidates {
			if exec.CommandContext(t.Context(), c, "-m", "pip", "--version").Run() == nil {
				return c, "cp" + strings.ReplaceAll(strings.TrimPrefix(name, "python"), ".", "")
			}
		}
	}
	process.Missing(t, "neither Python 3.12 nor 3.13 with pip is here, for which GPU Flight's client is released")
	return "", ""
}

// released fetches the client once into the user's cache folder.
func released(t *testing.T) client {
	t.Helper()
	python, tag := findPython(t)
	cache, err := testcache.Dir()
	require.NoError(t, err)
	folder := filepath.Join(cache, "gpufl-"+clientVersion+"-"+tag)
	c := client{python: python, packages: filepath.Join(folder, "packages"), libraries: filepath.Join(folder, "libraries")}
	if _, err := os.Stat(filepath.Join(folder, "complete")); err == nil {
		return c
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	wheels := t.TempDir()
	scripts := filepath.Join(process.Root(t), "scripts")
	fetch := exec.CommandContext(ctx, filepath.Join(scripts, "wheels"), wheels, filepath.Join(scripts, "gpufl.txt"))
	fetch.Env = append(os.Environ(), "PYTHON="+python)
	out, err := fetch.CombinedOutput()
	if fetch.ProcessState != nil && fetch.ProcessState.ExitCode() == 3 {
		process.Missing(t, fmt.Sprintf("GPU Flight's client cannot be fetched from PyPI: %v\n%s", err, out))
	}
	require.NoError(t, err, "%s", out)
	files, err := filepath.Glob(filepath.Join(wheels, "gpufl-*.whl"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	require.Contains(t, filepath.Base(files[0]), "gpufl-"+clientVersion+"-", "scripts/gpufl.txt has another version")
	unpack(t, files[0], c.packages)
	stubs(t, c)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "complete"), nil, 0o600))
	return c
}

func unpack(t *testing.T, wheel, dir string) {
	t.Helper()
	z, err := zip.OpenReader(wheel)
	require.NoError(t, err)
	defer func() { _ = z.Close() }()
	for _, f := range z.File {
		if strings.HasSuffix(f.Name, "/") {
			continue
		}
		require.True(t, filepath.IsLocal(f.Name), f.Name)
		to := filepath.Join(dir, f.Name)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o700))
		r, err := f.Open()
		require.NoError(t, err)
		b, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NoError(t, r.Close())
		require.NoError(t, os.WriteFile(to, b, 0o600))
	}
}

// stubs builds a libcuda and a libnvidia-ml of functions that fail. The client's module links both
// and uses neither for an upload.
func stubs(t *testing.T, c client) {
	t.Helper()
	modules, err := filepath.Glob(filepath.Join(c.packages, "gpufl", "_gpufl_client*.so"))
	require.NoError(t, err)
	require.Len(t, modules, 1)
	f, err := elf.Open(modules[0])
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	symbols, err := f.ImportedSymbols()
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(c.libraries, 0o700))
	for lib, pattern := range map[string]string{"libcuda.so.1": `^cu[A-Z]`, "libnvidia-ml.so.1": `^nvml`} {
		of := regexp.MustCompile(pattern)
		var source strings.Builder
		for _, s := range symbols {
			if of.MatchString(s.Name) && s.Library != "libcudart" && !strings.HasPrefix(s.Name, "cupti") {
				fmt.Fprintf(&source, "int %s(void) { return 999; }\n", s.Name)
			}
		}
		require.NotEmpty(t, source.String(), "%s: no function is missing: has the client changed?", lib)
		cmd := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-Wl,-soname,"+lib, "-o", filepath.Join(c.libraries, lib), "-x", "c", "-")
		cmd.Stdin = strings.NewReader(source.String())
		if out, err := cmd.CombinedOutput(); err != nil {
			process.Missing(t, fmt.Sprintf("gcc cannot build what stands for %s: %v\n%s", lib, err, out))
		}
	}
}

// upload is the program that runs the client. The last line of its output is the result.
const upload = `
import json, sys, gpufl
settings = json.loads(sys.argv[1])
r = gpufl.upload_logs(all_sessions=True, **settings)
print(json.dumps({"success": r.success, "events": r.events_uploaded, "bytes": r.bytes_uploaded, "files": r.files_processed,
    "skipped": r.files_skipped_by_cursor, "warnings": [str(w) for w in r.warnings]}))
`

// uploaded is the client's result of an upload.
type uploaded struct {
	Success                       bool
	Events, Bytes, Files, Skipped int
	Warnings                      []string
}

// upload uploads everything under a folder with the client.
func (c client) upload(t *testing.T, dir, address, key string, more map[string]any) uploaded {
	t.Helper()
	settings := map[string]any{"log_path": dir, "backend_url": "http://" + address, "api_key": key}
	for k, v := range more {
		settings[k] = v
	}
	arg, err := json.Marshal(settings)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.python, "-c", upload, string(arg))
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GPUFLIGHT_") }),
		"PYTHONPATH="+c.packages, "LD_LIBRARY_PATH="+c.libraries)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var u uploaded
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &u), string(out))
	t.Logf("%+v %s", u, stderr.String())
	return u
}

// lines counts the lines of all windows under a folder.
func lines(t *testing.T, dir string) (n int) {
	t.Helper()
	process.Lines(t, dir, func(string, []byte) { n++ })
	return n
}

func TestClient_Upload(t *testing.T) {
	c := released(t)
	names := []string{"c3-h200-minigpt", "c2-h200-engines"}
	dir := copied(t, names...)
	want := followed(t, dir)
	got := testsink.NewStore()
	state := t.TempDir()
	address, stop := listen(t, got, state)

	u := c.upload(t, dir, address, token, nil)
	assert.True(t, u.Success)
	assert.Empty(t, u.Warnings)
	assert.Equal(t, lines(t, dir), u.Events, "every event accepted")
	assert.Positive(t, u.Files)
	same(t, want, got)

	// A forced second upload must have no effect.
	before := got.Counts()
	u = c.upload(t, dir, address, token, map[string]any{"force": true})
	assert.True(t, u.Success)
	assert.Empty(t, u.Warnings)
	assert.Equal(t, lines(t, dir), u.Events)
	got.Settle(time.Second, 2*time.Second, func() bool { return false })
	assert.Equal(t, before, got.Counts())
	stop()

	// The same after a restart, from the stored state.
	again := testsink.NewStore()
	address, _ = listen(t, again, state)
	u = c.upload(t, dir, address, token, map[string]any{"force": true})
	assert.True(t, u.Success)
	assert.Empty(t, u.Warnings)
	assert.Equal(t, lines(t, dir), u.Events)
	assert.Zero(t, again.Counts())
}

func TestClient_WrongToken(t *testing.T) {
	c := released(t)
	dir := copied(t, "c3-h200-scopes")
	got := testsink.NewStore()
	address, _ := listen(t, got, t.TempDir())
	u := c.upload(t, dir, address, "gpfl-wrong", nil)
	assert.False(t, u.Success)
	assert.NotEmpty(t, u.Warnings)
	assert.Zero(t, u.Events)
	assert.Zero(t, got.Counts())
}
