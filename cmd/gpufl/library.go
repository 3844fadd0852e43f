// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const libraryName = "libgpuflight.so"

// findLibrary returns the absolute path of the injection library: the one that is named, or else the
// first of the places where it is installed.
func findLibrary(named string) (string, error) {
	if named != "" {
		path, err := filepath.Abs(named)
		if err != nil {
			return "", err
		}
		info, err := os.Stat(path)
		if err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a file", path)
		}
		return path, err
	}
	places := []string{"/usr/local/lib/gpufl", "/usr/lib/gpufl", "/usr/local/lib", "/usr/lib"}
	if self, err := os.Executable(); err == nil {
		if resolved, err := filepath.EvalSymlinks(self); err == nil {
			self = resolved
		}
		dir := filepath.Dir(self)
		places = append([]string{dir, filepath.Join(dir, "..", "lib"), filepath.Join(dir, "..", "lib", "gpufl")}, places...)
	}
	for _, dir := range places {
		path := filepath.Join(dir, libraryName)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not in %s: put it beside gpufl, or name it with --library", libraryName, strings.Join(places, ", "))
}
