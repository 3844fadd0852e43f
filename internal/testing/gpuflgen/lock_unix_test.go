// SPDX-License-Identifier: Apache-2.0

//go:build unix

package gpuflgen

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain lets the test binary query a lock as another process. A process does not see its own
// fcntl locks.
func TestMain(m *testing.M) {
	if path := os.Getenv("GPUFLGEN_TRY_LOCK"); path != "" {
		f, err := lockFile(path)
		if err != nil {
			os.Stdout.WriteString("held")
			os.Exit(0)
		}
		os.Stdout.WriteString("free")
		f.Close()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func lockState(t *testing.T, path string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "GPUFLGEN_TRY_LOCK="+path)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func TestLockFile_UntilClose(t *testing.T) {
	for _, crash := range []bool{false, true} {
		dir := t.TempDir()
		w, err := NewWriter(Config{Dir: dir, Layers: 1})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, w.Session(), ".gpufl-session.lock")
		if got := lockState(t, path); got != "held" {
			t.Errorf("while writing the lock is %s", got)
		}
		end := w.Close
		if crash {
			end = w.Crash
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if got := lockState(t, path); got != "free" {
			t.Errorf("afterwards (crash %v) the lock is %s", crash, got)
		}
		if st, err := os.Stat(path); err != nil || st.Size() != 0 || st.Mode().Perm() != 0o600 {
			t.Errorf("lock file: %v, %v", st, err)
		}
	}
}
