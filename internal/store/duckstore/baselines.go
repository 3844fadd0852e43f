// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpuflight/gpuflight/internal/store"
)

// baselinesFile has the baselines of all projects as a list in JSON.
const baselinesFile = "baselines.json"

type baselineEntry struct {
	Project string `json:"project"`
	Name    string `json:"name"`
	Session string `json:"session"`
}

// loadBaselines reads the file. A damaged one is set aside.
func (s *Store) loadBaselines() error {
	name := filepath.Join(s.dir, baselinesFile)
	b, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &s.baselines); err != nil {
		s.baselines = nil
		return s.setAside(name, unused(name, ".damaged"), err)
	}
	return nil
}

// saveBaselines writes the file, then uses the list. The caller holds Store.write.
func (s *Store) saveBaselines(list []baselineEntry) error {
	b, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	name := filepath.Join(s.dir, baselinesFile)
	f, err := os.OpenFile(name+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(name+".new", name)
	}
	if err == nil {
		err = syncDirectory(s.dir)
	}
	if err != nil {
		_ = os.Remove(name + ".new")
		return err
	}
	s.mu.Lock()
	s.baselines = list
	s.mu.Unlock()
	return nil
}

// SetBaseline implements [store.Admin].
func (s *Store) SetBaseline(ctx context.Context, project, name, id string) error {
	if err := store.CheckBaseline(name); err != nil {
		return fmt.Errorf("baseline: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("baseline: %w", err)
	}
	s.write.Lock()
	defer s.write.Unlock()
	if id != "" {
		// All its rows may be in the journal.
		if err := s.settle(ctx, sessionKey{project, id}); err != nil {
			return fmt.Errorf("baseline: %w", err)
		}
		if _, err := s.named(ctx, project, id); err != nil {
			return fmt.Errorf("baseline: %w", err)
		}
	}
	rest := slices.DeleteFunc(slices.Clone(s.baselines), func(b baselineEntry) bool { return b.Project == project && b.Name == name })
	switch {
	case id != "":
		rest = append(rest, baselineEntry{project, name, id})
	case len(rest) == len(s.baselines):
		return fmt.Errorf("baseline %q: %w", name, store.ErrNotFound)
	}
	if err := s.saveBaselines(rest); err != nil {
		return fmt.Errorf("baseline %q: %w", name, err)
	}
	return nil
}

// Baselines implements [store.Reader].
func (s *Store) Baselines(ctx context.Context, project string) (list []store.Baseline, err error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("baselines: %w", err)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, b := range s.baselines {
		if b.Project == project {
			list = append(list, store.Baseline{Name: b.Name, Session: b.Session})
		}
	}
	slices.SortFunc(list, func(a, b store.Baseline) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// isBaseline says whether retention keeps a session because of its names. The caller holds Store.mu.
func (s *Store) isBaseline(k sessionKey) bool {
	return slices.ContainsFunc(s.baselines, func(b baselineEntry) bool { return b.Project == k.project && b.Session == k.session })
}

// removeBaselines removes the names of a session. The caller holds Store.write.
func (s *Store) removeBaselines(k sessionKey) error {
	rest := slices.DeleteFunc(slices.Clone(s.baselines), func(b baselineEntry) bool { return b.Project == k.project && b.Session == k.session })
	if len(rest) == len(s.baselines) {
		return nil
	}
	return s.saveBaselines(rest)
}
