// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

// Object is one file of an archive.
type Object struct {
	// Name is its full name: s3://bucket/key, or an absolute path.
	Name string
	// SizeBytes is its size as it lies there.
	SizeBytes int64
	// Version tells it from another one that had or will have its name.
	Version string
	// Named says that the user named it, so that it is read whatever its name is.
	Named bool

	// key is its name in a bucket.
	key string
}

// Source is a place with objects.
type Source interface {
	// Objects calls f with each object, in the order of their names, until f returns an error, which
	// it returns.
	Objects(ctx context.Context, f func(Object) error) error
	// Open opens an object for reading, as it lies there.
	Open(ctx context.Context, o Object) (io.ReadCloser, error)
}

// NewSource returns the source of what a user names: s3://BUCKET[/PREFIX], a folder with all in it, or
// a file.
func NewSource(ctx context.Context, name string) (Source, error) {
	if rest, ok := strings.CutPrefix(name, "s3://"); ok {
		return newS3(ctx, rest)
	}
	if strings.Contains(name, "://") {
		return nil, fmt.Errorf("%s: only s3:// and files can be read", name)
	}
	abs, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	// A link to a folder stands for the folder, which the walk would not enter.
	root, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(root)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is neither a file nor a folder", name)
	}
	return &files{root: root, single: !info.IsDir()}, nil
}

// files is a folder or a single file.
type files struct {
	root   string
	single bool
}

func (s *files) Objects(ctx context.Context, f func(Object) error) error {
	if s.single {
		info, err := os.Stat(s.root)
		if err != nil {
			return err
		}
		o := object(s.root, info, true)
		if log, ok := asLog(o); ok {
			return s.siblings(ctx, log.Group, f)
		}
		return f(o)
	}
	return filepath.WalkDir(s.root, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it went between listing and asking, as rotated files do
		}
		if err != nil {
			return err
		}
		return f(object(path, info, false))
	})
}

// siblings calls f with the files of the group of logs that a file is of: one alone tells little.
func (s *files) siblings(ctx context.Context, g gpuflog.FileGroup, f func(Object) error) error {
	entries, err := os.ReadDir(filepath.Dir(s.root))
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(filepath.Dir(s.root), e.Name())
		if other, ok := asLog(Object{Name: path}); !ok || other.Group != g || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err == nil {
			err = errors.Join(f(object(path, info, true)), ctx.Err())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func object(path string, info fs.FileInfo, named bool) Object {
	return Object{
		Name: path, SizeBytes: info.Size(), Named: named,
		Version: fmt.Sprintf("%d-%d", info.Size(), info.ModTime().UnixNano()),
	}
}

func (s *files) Open(_ context.Context, o Object) (io.ReadCloser, error) { return os.Open(o.Name) }
