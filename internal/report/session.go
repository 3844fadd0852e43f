// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/recording/recorder"
)

// maxSession is the largest file that is read as a session, in bytes: a hundred times what is written.
const maxSession = 4 << 20

// ReadSessions reads the summaries that recording processes left in a folder, the first to begin first.
// One without an end (EndNs is 0) is of a process that still runs, or was killed. The error tells of files that
// could not be read; the sessions of the others are there all the same.
func ReadSessions(dir string) ([]recorder.Summary, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var sessions []recorder.Summary
	var errs []error
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") || !e.Type().IsRegular() {
			continue
		}
		s, err := readSession(filepath.Join(dir, e.Name()))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		sessions = append(sessions, s)
	}
	slices.SortStableFunc(sessions, func(a, b recorder.Summary) int { return cmp.Compare(a.StartNs, b.StartNs) })
	return sessions, errors.Join(errs...)
}

func readSession(path string) (s recorder.Summary, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return s, err
	}
	if info.Size() > maxSession {
		return s, fmt.Errorf("%s: %d bytes are no session", path, info.Size())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}
