// SPDX-License-Identifier: Apache-2.0

// Package tmpfs gives tests a small file system in memory.
package tmpfs

import (
	"os/exec"
	"testing"
)

// Mount mounts a file system of a size, such as 8m, on a folder of the test. It skips the test if the user may not
// mount.
func Mount(tb testing.TB, size string) (dir string) {
	tb.Helper()
	dir = tb.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "mode=0700,size="+size, "tmpfs", dir).CombinedOutput(); err != nil {
		tb.Skipf("mount a small file system: %v: %s", err, out)
	}
	tb.Cleanup(func() { run(tb, "umount", "-l", dir) })
	return dir
}

// Resize changes the size of a file system.
func Resize(tb testing.TB, dir, size string) {
	tb.Helper()
	run(tb, "mount", "-o", "remount,size="+size, dir)
}

func run(tb testing.TB, name string, args ...string) {
	tb.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		tb.Errorf("%s %q: %v: %s", name, args, err, out)
	}
}
