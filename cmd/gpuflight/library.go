// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	// libraryName is the library that the driver loads.
	libraryName = "libgpuflight.so"
	// recorderName is the library that libraryName loads from its own folder.
	recorderName = "libgpuflight-recorder.so"
)

// findLibrary returns the absolute path of the injection library: the named one, or the first
// installed one. Its recorder must be in the same folder.
func findLibrary(named string) (string, error) {
	if named != "" {
		path, err := filepath.Abs(named)
		if err != nil {
			return "", err
		}
		for _, file := range []string{path, filepath.Join(filepath.Dir(path), recorderName)} {
			info, err := os.Stat(file)
			if errors.Is(err, fs.ErrNotExist) && file != path {
				err = missing(file)
			}
			if err == nil && !info.Mode().IsRegular() {
				err = fmt.Errorf("%s is not a file", file)
			}
			if err != nil {
				return "", err
			}
		}
		return path, nil
	}
	places := []string{"/usr/local/lib/gpuflight", "/usr/lib/gpuflight", "/usr/local/lib", "/usr/lib"}
	if self, err := os.Executable(); err == nil {
		if resolved, err := filepath.EvalSymlinks(self); err == nil {
			self = resolved
		}
		dir := filepath.Dir(self)
		places = append([]string{dir, filepath.Join(dir, "..", "lib"), filepath.Join(dir, "..", "lib", "gpuflight")}, places...)
	}
	return libraryIn(places)
}

// libraryIn returns the library of the first folder that has both files. If a folder has only one
// of them, the error names the missing file.
func libraryIn(places []string) (string, error) {
	var half error
	for _, dir := range places {
		path, recorder := filepath.Join(dir, libraryName), filepath.Join(dir, recorderName)
		switch hasLibrary, hasRecorder := isFile(path), isFile(recorder); {
		case hasLibrary && hasRecorder:
			return path, nil
		case half != nil:
		case hasLibrary:
			half = missing(recorder)
		case hasRecorder:
			half = missing(path)
		}
	}
	if half != nil {
		return "", half
	}
	return "", fmt.Errorf("%s is not in %s: put it next to gpuflight, or name it with --library", libraryName, strings.Join(places, ", "))
}

func missing(path string) error {
	return fmt.Errorf("%s is missing: put %s and %s into one folder", path, libraryName, recorderName)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
