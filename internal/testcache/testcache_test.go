// SPDX-License-Identifier: Apache-2.0

package testcache

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDir(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", home)
	for range 2 {
		dir, err := Dir("a")
		require.NoError(t, err)
		assert.Equal(t, filepath.Join(home, "a"), dir)
		info, err := os.Stat(dir)
		require.NoError(t, err)
		assert.Equal(t, os.ModeDir|0o700, info.Mode())
	}
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	t.Setenv("TMPDIR", home)
	dir, err := Dir("a")
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(dir, filepath.Join(home, "a-")), dir)
}

// TestPrivate_Refused has what another user can prepare in a directory that all may write to.
func TestPrivate_Refused(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("directories have no mode there")
	}
	for name, c := range map[string]struct {
		prepare func(dir string) error
		want    string
	}{
		"link":     {func(dir string) error { return os.Symlink(t.TempDir(), dir) }, "not a directory"},
		"file":     {func(dir string) error { return os.WriteFile(dir, nil, 0o600) }, "not a directory"},
		"writable": {func(dir string) error { _ = os.Mkdir(dir, 0o700); return os.Chmod(dir, 0o777) }, "others may write"},
		"owner": {func(dir string) error {
			if os.Getuid() != 0 {
				t.Skip("needs root, to give a directory away")
			}
			_ = os.Mkdir(dir, 0o700)
			return os.Chown(dir, 65534, 65534)
		}, "owned by uid 65534"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cache")
			require.NoError(t, c.prepare(dir))
			_, err := private(dir)
			require.ErrorContains(t, err, c.want)
		})
	}
}
