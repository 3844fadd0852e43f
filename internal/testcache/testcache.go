// SPDX-License-Identifier: Apache-2.0

// Package testcache gives tests a directory for what they build or fetch and then execute. Only its
// user may write to it, so that nobody else on the machine can put a program there first.
package testcache

import (
	"fmt"
	"os"
	"path/filepath"
)

// Dir returns the directory of that name, and creates it. It lies in the user's cache directory, or in
// the directory for temporary files if the user has none. The error says whose it is if another user
// owns it or it is not a directory. Several processes may call it at once.
func Dir(name string) (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
		name = fmt.Sprintf("%s-%d", name, os.Getuid())
	}
	return private(filepath.Join(base, name))
}

func private(dir string) (string, error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return "", err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return "", err
	}
	info, err := os.Lstat(dir) // A link is not followed: another user could change where it leads.
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("cache %s: not a directory", dir)
	}
	if uid, ok := owner(info); ok && uid != os.Getuid() {
		return "", fmt.Errorf("cache %s: owned by uid %d, not by %d: remove it", dir, uid, os.Getuid())
	}
	if info.Mode().Perm()&0o022 != 0 {
		return "", fmt.Errorf("cache %s: others may write to it: remove it", dir)
	}
	return dir, nil
}
