// SPDX-License-Identifier: Apache-2.0

// Package nvmltest builds a fake NVML and sets its values, so that tests and benchmarks use dlopen
// without a GPU. The source of the fake, testdata/fakenvml.c, documents its keys. It requires a C
// compiler.
//
// A process can open one build of the fake only: its functions are bound permanently at their first
// call. All Controls of a process therefore control the same one, in turn.
package nvmltest

import (
	"crypto/sha256"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpuflight/gpuflight/internal/testing/testcache"
)

//go:embed testdata/fakenvml.c
var source []byte

// Env names the file that controls the fake.
const Env = "FAKENVML"

// Build compiles the fake, unless it exists, and returns its path. The error names what is missing.
var Build = sync.OnceValues(func() (string, error) {
	compiler, err := exec.LookPath("cc")
	if err != nil {
		return "", fmt.Errorf("no C compiler: %w", err)
	}
	dir, err := testcache.Dir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprintf("fakenvml-%x.so", sha256.Sum256(source)))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	work, err := os.MkdirTemp(dir, "build")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }()
	c, so := filepath.Join(work, "fakenvml.c"), filepath.Join(work, "fakenvml.so")
	if err := os.WriteFile(c, source, 0o600); err != nil {
		return "", err
	}
	cmd := exec.Command(compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", "-o", so, c)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile the stand-in: %w\n%s", err, out)
	}
	// Rename the complete file: other processes build the same one.
	return path, os.Rename(so, path)
})

// Control sets the values of the fake through a file. It is safe for concurrent use.
type Control struct {
	path string

	mu     sync.Mutex
	values map[string]string
}

// New returns the control of a file. Processes that load the fake have its path in [Env].
func New(path string) *Control { return &Control{path: path, values: map[string]string{}} }

// Set sets values by key; "" removes one. Subsequent calls see all of them or none.
func (c *Control) Set(values map[string]string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, v := range values {
		if v == "" {
			delete(c.values, k)
		} else {
			c.values[k] = v
		}
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(c.values)) {
		fmt.Fprintf(&b, "%s %s\n", k, c.values[k])
	}
	// The fake detects a new file by its inode and time.
	next := c.path + ".next"
	if err := os.WriteFile(next, []byte(b.String()), 0o600); err != nil {
		return err
	}
	return os.Rename(next, c.path)
}

// UUID is the UUID of a device of [H200].
func UUID(device int) string {
	return fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", device)
}

// Serial is the serial number of a device of [H200].
func Serial(device int) string { return fmt.Sprintf("16500%08d", device) }

// Driver is the version of the driver in tests that set one by the key "driver".
const Driver = "580.159.04"

// H200 returns the values of an idle H200 with device number i. It has only the calls that an H200
// supports.
func H200(i int) map[string]string {
	m := map[string]string{
		"uuid": UUID(i), "name": "NVIDIA H200", "serial": Serial(i), "minor": strconv.Itoa(i), "memory": "150754820096:644874240:1000000000",
		"utilization": "30:20", "samples.1": "auto:40", "samples.2": "auto:10", "encoder": "0", "decoder": "5",
		"energy": "1000000", "limit.enforced": "700000", "limit.default": "700000", "limit.min": "200000", "limit.max": "700000",
		"temperature": "35", "threshold.0": "95", "threshold.1": "92", "threshold.2": "95", "threshold.3": "87",
		"clock.0": "1980", "clock.1": "1980", "clock.2": "3201", "clock.3": "1545",
		"maxclock.0": "1980", "maxclock.1": "1980", "maxclock.2": "3201", "maxclock.3": "1545",
		"reasons": "0", "violation.0": "1000000000", "violation.1": "0", "violation.2": "0", "violation.3": "0", "violation.4": "0", "violation.5": "0",
		"fields": "1", "field.186": "i:120500", "field.185": "i:120000", "field.82": "i:40", "field.197": "l:1000", "field.198": "l:2000",
		"field.74": "l:2500000000", "field.76": "l:0", "field.251": "l:0", "field.252": "l:0", "field.253": "l:0",
		"ecc.0": "0", "ecc.1": "0", "replay": "0", "remapped": "0:0:0:0", "compute": "none", "graphics": "none", "mps": "none",
		"gpm": "1", "gpm.2": "96.7", "gpm.3": "14.3", "gpm.4": "1.5", "gpm.5": "93.8", "gpm.10": "16", "gpm.11": "0", "gpm.12": "2", "gpm.13": "0.5", "gpm.20": "1", "gpm.21": "2",
		"events": "8", "mig": "0",
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[fmt.Sprintf("%d.%s", i, k)] = v
	}
	return out
}
