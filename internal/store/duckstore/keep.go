// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
)

var _ store.Scanner = (*Store)(nil)

// keptSuffix is that of the files in which kept values are, beside the segments.
const keptSuffix = ".kept"

var keptName = regexp.MustCompile(`^[a-z0-9-]{1,100}$`)

// Keep implements [store.Scanner].
func (s *Store) Keep(ctx context.Context, project, id, name string, value []byte) error {
	file, err := s.keptFile(ctx, project, id, name)
	if err != nil {
		return err
	}
	if value == nil {
		if err = os.Remove(file); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	} else {
		err = writeValue(file, value)
	}
	if err == nil {
		return nil
	}
	if _, found := s.named(ctx, project, id); found != nil { // deleted meanwhile
		return errors.Join(found, s.removeKept(filepath.Dir(file)))
	}
	return fmt.Errorf("keep %s: %w", name, err)
}

func writeValue(file string, value []byte) error {
	f, err := os.CreateTemp(filepath.Dir(file), "*.new")
	if err != nil {
		return err
	}
	_, err = f.Write(value)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file) // a crash may lose or cut it: readers check the content
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// keptFile returns the file of a value.
func (s *Store) keptFile(ctx context.Context, project, id, name string) (string, error) {
	if !keptName.MatchString(name) {
		return "", fmt.Errorf("keep %q: %w", name, store.ErrInvalid)
	}
	sess, err := s.named(ctx, project, id)
	if err != nil {
		return "", err
	}
	return filepath.Join(sess.dir, name+keptSuffix), nil
}

// Kept implements [store.Scanner].
func (s *Store) Kept(ctx context.Context, project, id string) ([]string, error) {
	sess, err := s.named(ctx, project, id)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(sess.dir) // in order
	if err != nil {
		return nil, fmt.Errorf("list kept values: %w", err)
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), keptSuffix); ok && keptName.MatchString(name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// KeptValue implements [store.Scanner].
func (s *Store) KeptValue(ctx context.Context, project, id, name string) ([]byte, error) {
	file, err := s.keptFile(ctx, project, id, name)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return b, nil
}

// removeKept removes the kept values of a session without segments.
func (s *Store) removeKept(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), keptSuffix) {
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
