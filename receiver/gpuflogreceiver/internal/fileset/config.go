// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"go.uber.org/zap"
)

// Config selects the watched files. Zero values mean the documented defaults.
type Config struct {
	// Include holds folders, searched recursively, and glob patterns (** crosses folders). A
	// pattern that matches a folder includes everything below it. A pattern that matches a file
	// includes the complete group of that file, because its rotated files and other channels are
	// needed to read it. The name of something that exists when the set is made is not a pattern.
	// Relative names are relative to the working directory.
	Include []string
	// Exclude holds glob patterns of skipped files and folders. A pattern without a slash matches
	// any base name.
	Exclude []string
	// MaxLineBytes bounds a line without its newline. Longer lines are skipped and reported.
	// Default 64 MiB.
	MaxLineBytes int
	// ChunkBytes is how much Next reads at a time. Default 256 KiB, at most MaxLineBytes.
	ChunkBytes int
	// GzipGrace is how long a broken gzip file, or a closed file without a last newline, must be
	// unchanged until it is read as it is. Default 3 s.
	GzipGrace time.Duration
	// MissingGrace is how long the reader waits for a missing log file or number. Default 2 s.
	MissingGrace time.Duration
	// RescanInterval bounds the time between two scans of every folder. Default 2 s. Without
	// inotify, fast scans run four times as often.
	RescanInterval time.Duration
	// MaxOpenFiles bounds the open files. The least recently read file is closed. Default 128.
	MaxOpenFiles int
	// MaxGroups bounds the groups that are followed at the same time. Default 10000.
	MaxGroups int
	// MaxDepth bounds the depth of the search below an included folder. Default 16.
	MaxDepth int
	// DisableNotify disables inotify, for file systems where it does not work.
	DisableNotify bool
	// Logger receives messages about the set, not about single files. Default: none.
	Logger *zap.Logger
}

func (c *Config) setDefaults() error {
	def := func(v *int, d int) error {
		if *v < 0 {
			return errors.New("negative limit")
		}
		if *v == 0 {
			*v = d
		}
		return nil
	}
	err := errors.Join(
		def(&c.MaxLineBytes, 64<<20),
		def(&c.ChunkBytes, 256<<10),
		def(&c.MaxOpenFiles, 128),
		def(&c.MaxGroups, 10_000),
		def(&c.MaxDepth, 16),
	)
	if err != nil {
		return err
	}
	// A chunk holds complete lines, so no line in it can be longer than MaxLineBytes.
	c.ChunkBytes = min(c.ChunkBytes, c.MaxLineBytes)
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&c.GzipGrace, 3 * time.Second}, {&c.MissingGrace, 2 * time.Second}, {&c.RescanInterval, 2 * time.Second}} {
		if *d.v < 0 {
			return errors.New("negative duration")
		}
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return nil
}

// root is one include entry: a folder to search, and what counts below it.
type root struct {
	dir      string
	pattern  string // empty: everything below dir
	maxDepth int
}

func newRoot(include string, maxDepth int) (root, error) {
	abs, err := absPath(include)
	if err != nil {
		return root{}, err
	}
	if _, err := os.Lstat(abs); err == nil || !strings.ContainsAny(include, `*?[{`) {
		return root{dir: abs, maxDepth: maxDepth}, nil
	}
	if !doublestar.ValidatePattern(abs) {
		return root{}, fmt.Errorf("pattern %q: %w", include, doublestar.ErrBadPattern)
	}
	dir, rest := doublestar.SplitPattern(abs)
	return root{dir: filepath.Clean(dir), pattern: abs, maxDepth: patternDepth(rest, maxDepth)}, nil
}

// patternDepth returns the depth down to which folders can match a pattern. Matched folders are
// searched deeper.
func patternDepth(rest string, maxDepth int) int {
	if strings.Contains(rest, "**") || strings.Contains(rest, "{") {
		return maxDepth
	}
	return min(maxDepth, strings.Count(rest, "/")+1)
}

func absPath(p string) (string, error) {
	if p == "" {
		return "", errors.New("empty path")
	}
	abs, err := filepath.Abs(p)
	if err != nil {
		return "", fmt.Errorf("path %q: %w", p, err)
	}
	return abs, nil
}

// excluder is a validated exclude pattern.
type excluder struct {
	pattern  string
	baseOnly bool
}

func newExcluder(p string) (excluder, error) {
	if !doublestar.ValidatePattern(p) {
		return excluder{}, fmt.Errorf("pattern %q: %w", p, doublestar.ErrBadPattern)
	}
	if p != "" && !strings.Contains(p, "/") {
		return excluder{pattern: p, baseOnly: true}, nil
	}
	abs, err := absPath(p)
	return excluder{pattern: abs}, err
}

func (e excluder) match(path string) bool {
	if e.baseOnly {
		path = filepath.Base(path)
	}
	return doublestar.MatchUnvalidated(e.pattern, path)
}
