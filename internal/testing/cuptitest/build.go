// SPDX-License-Identifier: Apache-2.0

package cuptitest

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/gpuflight/gpuflight/internal/testing/testcache"
)

//go:embed fake
var sources embed.FS

// compiled are the libraries, with the flags that each needs besides.
var compiled = []struct{ source, library string }{
	{"fakecuda.c", "libcuda.so.1"},
	{"fakecupti.c", "libcupti.so.13"},
}

// Build compiles the fakes and returns the folder that holds libcuda.so.1 and libcupti.so.13. The
// folder lies in the cache of this user's tests: other test processes share it, and the next run
// uses it again. The test is skipped where there is no C compiler.
func Build(t testing.TB) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the fake CUDA driver needs Linux")
	}
	if _, err := exec.LookPath(compiler()); err != nil {
		t.Skip("the fake CUDA driver needs a C compiler: ", err)
	}
	dir, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// compiler is the C compiler: CC, which is another one for tests under emulation.
func compiler() string { return cmp.Or(os.Getenv("CC"), "cc") }

func build() (string, error) {
	sum := sha256.New()
	files, err := fs.Glob(sources, "fake/*")
	if err != nil {
		return "", err
	}
	for _, name := range files {
		text, err := sources.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n", name, len(text))
		sum.Write(text)
	}
	fmt.Fprintln(sum, compiler())
	cache, err := testcache.Dir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "fake-"+hex.EncodeToString(sum.Sum(nil)[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	// Other processes may be doing the same: the first to rename its own folder wins.
	work, err := os.MkdirTemp(cache, "fake-build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	for _, name := range files {
		text, err := sources.ReadFile(name)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(work, filepath.Base(name)), text, 0o600); err != nil {
			return "", err
		}
	}
	for _, c := range compiled {
		// Not unloaded, since the fake driver keeps pointers into the fake CUPTI.
		cmd := exec.Command(compiler(), "-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-shared",
			"-Wl,-soname,"+c.library, "-Wl,-z,nodelete", "-o", c.library, c.source, "-ldl", "-lpthread")
		cmd.Dir = work
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("compile %s: %w\n%s", c.source, err, out)
		}
	}
	if err := os.Rename(work, dir); err != nil {
		if _, statErr := os.Stat(dir); statErr != nil {
			return "", err
		}
	}
	return dir, nil
}

// Environment returns what a child process needs to find the fakes instead of the real libraries,
// in the form of os.Environ.
func Environment(dir string) []string {
	return []string{
		"LD_LIBRARY_PATH=" + dir,
		"GPUFLIGHT_CUPTI=" + filepath.Join(dir, "libcupti.so.13"),
	}
}
