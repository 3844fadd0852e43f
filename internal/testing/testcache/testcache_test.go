// SPDX-License-Identifier: Apache-2.0

//go:build unix

package testcache

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDir_Private(t *testing.T) {
	for name, variables := range map[string][3]string{
		"cache folder": {"XDG_CACHE_HOME", "HOME", "TMPDIR"},
		"no home":      {"TMPDIR", "HOME", "XDG_CACHE_HOME"},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			t.Setenv(variables[0], base)
			t.Setenv(variables[1], "")
			t.Setenv(variables[2], "")
			for range 2 {
				dir, err := Dir()
				require.NoError(t, err)
				assert.Equal(t, base, filepath.Dir(dir))
				info, err := os.Lstat(dir)
				require.NoError(t, err)
				assert.Equal(t, os.ModeDir|0o700, info.Mode())
			}
		})
	}
}

func TestDir_OtherOwner(t *testing.T) {
	base := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", base)
	dir := filepath.Join(base, "gpuflight-test")
	for name, c := range map[string]struct {
		prepare func() error
		want    string
	}{
		"world-writable": {func() error { return os.Mkdir(dir, 0o700) }, "mode -rwxrwxrwx lets other users write"},
		"link":           {func() error { return os.Symlink(t.TempDir(), dir) }, "it is not a folder"},
		"other owner":    {func() error { return os.Mkdir(dir, 0o700) }, "it belongs to user 65534"},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, c.prepare())
			t.Cleanup(func() { assert.NoError(t, os.Remove(dir)) })
			switch name {
			case "world-writable":
				require.NoError(t, os.Chmod(dir, 0o777))
			case "other owner":
				if err := os.Chown(dir, 65534, -1); err != nil {
					t.Skip("only root can give a folder away: ", err)
				}
			}
			_, err := Dir()
			require.ErrorContains(t, err, c.want)
		})
	}
}
