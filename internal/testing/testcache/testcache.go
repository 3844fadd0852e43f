// SPDX-License-Identifier: Apache-2.0

// Package testcache gives tests a folder for programs and libraries that they compile or fetch once and
// load again in later runs. Only the user who runs the tests can write to it.
package testcache

import (
	"fmt"
	"os"
	"path/filepath"
)

// Dir returns the folder. It creates the folder with mode 0700 if it is missing. The folder is in
// the user's cache folder, or in the temporary folder if the user has none. Dir fails if the folder
// is a link, belongs to another user, or is writable by others, because its content will be
// executed. Dir is safe for concurrent use.
func Dir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return prepare(filepath.Join(os.TempDir(), fmt.Sprintf("gpuflight-test-%d", os.Getuid())))
	}
	return prepare(filepath.Join(base, "gpuflight-test"))
}

func prepare(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if err := check(info); err != nil {
		return "", fmt.Errorf("use %s for tests: %w: remove it", dir, err)
	}
	return dir, nil
}
