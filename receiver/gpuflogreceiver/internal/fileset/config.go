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

// Config says what to watch. Zero values mean the defaults that the fields name.
type Config struct {
	// Include holds folders, searched recursively, and glob patterns (** crosses folders). A pattern that matches a
	// folder takes all below it; one that matches a file takes the whole group of that file, because a group's rotated
	// files and other channels are needed to read it. The name of something that exists when the set is made is not taken
	// for a pattern. Relative ones are relative to the working directory.
	Include []string
	// Exclude holds glob patterns for files and folders to leave out. A pattern without a slash matches any base name.
	Exclude []string
	// MaxLineBytes bounds a line, newline excluded; longer ones are skipped and reported. Default 64 MiB.
	MaxLineBytes int
	// ChunkBytes is how much Next reads at a time; default 256 KiB, at most MaxLineBytes.
	ChunkBytes int
	// GzipGrace is how long a broken gzip file, or an unterminated closed one, must be unchanged to be taken as it is.
	// Default 3 s.
	GzipGrace time.Duration
	// MissingGrace is how long a missing file or window number is waited for. Default 2 s.
	MissingGrace time.Duration
	// RescanInterval is the longest time between two looks at every folder. Default 2 s; where inotify does not work,
	// and looking is quick, it is done four times as often.
	RescanInterval time.Duration
	// MaxOpenFiles bounds the files held open; the least recently read ones are closed. Default 128.
	MaxOpenFiles int
	// MaxGroups bounds the groups that are followed at the same time. Default 10000.
	MaxGroups int
	// MaxDepth bounds how deep below an included folder is searched. Default 16.
	MaxDepth int
	// DisableNotify leaves inotify alone, for file systems where it is known not to work.
	DisableNotify bool
	// Logger gets what concerns the set and not one file. Default: none.
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
	// A chunk holds whole lines, so with this no line in it can be longer than MaxLineBytes.
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

// root is one include entry: a folder to search from, and what counts below it.
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

// patternDepth is how deep folders can matter to a pattern; a matched folder is searched further down.
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

// excluder is a checked exclude pattern.
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
