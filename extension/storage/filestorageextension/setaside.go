// SPDX-License-Identifier: Apache-2.0

package filestorageextension

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"
)

const (
	// keptAside is how many damaged files of one component are kept. A damaged disk must not fill itself
	// with copies.
	keptAside = 3
	// asideStamp sorts by time and holds no character that a file system refuses.
	asideStamp  = "20060102T150405.000000000Z"
	asideSuffix = ".damaged"
	// maxNameBytes is the longest name of a file on common file systems.
	maxNameBytes = 255
)

// setAside renames a damaged file, so that its component starts without its state, and removes the
// oldest files that it has set aside beyond keptAside.
func (s *fileStorage) setAside(path string, reason error) error {
	dir, base := filepath.Split(path)
	base = base[:min(len(base), maxNameBytes-len(".")-len(asideStamp)-len(asideSuffix))]
	var aside string
	for at := now().UTC(); ; at = at.Add(time.Nanosecond) {
		aside = dir + base + "." + at.Format(asideStamp) + asideSuffix
		if _, err := os.Lstat(aside); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return err
		}
	}
	if err := os.Rename(path, aside); err != nil {
		return fmt.Errorf("set damaged state aside: %w", err)
	}
	s.telemetry.ExtensionFileStorageSetAside.Add(context.Background(), 1)
	s.logger.Warn("state is damaged and was set aside: the component starts without it",
		zap.String("path", path), zap.String("set_aside", aside), zap.Error(reason))
	if err := syncDir(s.cfg.Directory); err != nil {
		return err
	}
	s.removeOld(dir, base)
	return nil
}

// removeOld removes the oldest of the files that were set aside for one name.
func (s *fileStorage) removeOld(dir, base string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		s.logger.Warn("list files that were set aside", zap.Error(err))
		return
	}
	var names []string
	for _, e := range entries {
		rest, ok := cutAround(e.Name(), base+".", asideSuffix)
		if _, err := time.Parse(asideStamp, rest); ok && err == nil {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	for _, name := range names[:max(0, len(names)-keptAside)] {
		path := filepath.Join(dir, name)
		err := os.Remove(path)
		s.logger.Warn("removed the oldest state that was set aside", zap.String("path", path), zap.Error(err))
	}
}

func cutAround(s, prefix, suffix string) (string, bool) {
	if len(s) < len(prefix)+len(suffix) || s[:len(prefix)] != prefix || s[len(s)-len(suffix):] != suffix {
		return "", false
	}
	return s[len(prefix) : len(s)-len(suffix)], true
}
