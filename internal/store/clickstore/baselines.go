// SPDX-License-Identifier: Apache-2.0

package clickstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
)

// baselineKind begins the Kind of marks whose rest is the name of a baseline.
const baselineKind = "baseline:"

// baselines returns the latest set mark of each baseline of a project, by name.
func (s *Store) baselines(ctx context.Context, project string) (map[string]mark, error) {
	states, err := s.states(ctx, "Project = ?", project)
	latest := map[string]mark{}
	for _, st := range states {
		for name, m := range st.baselines {
			if old, ok := latest[name]; !ok || m.version > old.version || m.version == old.version && m.key.session > old.key.session {
				latest[name] = m
			}
		}
	}
	return latest, err
}

// SetBaseline implements [store.Admin].
func (s *Store) SetBaseline(ctx context.Context, project, name, id string) error {
	if err := store.CheckBaseline(name); err != nil {
		return fmt.Errorf("baseline: %w", err)
	}
	if id != "" {
		if _, err := s.open(ctx, project, id, false); err != nil {
			return fmt.Errorf("baseline: %w", err)
		}
	} else if err := s.check(ctx); err != nil {
		return fmt.Errorf("baseline: %w", err)
	}
	states, err := s.states(ctx, "Project = ?", project)
	if err != nil {
		return fmt.Errorf("baseline %q: %w", name, err)
	}
	at, err := s.now(ctx)
	if err != nil {
		return fmt.Errorf("baseline %q: %w", name, err)
	}
	var marks []mark
	set := func(session string, flag bool) {
		marks = append(marks, mark{key: sessionKey{project, session}, kind: baselineKind + name, at: at, version: at, flag: flag})
	}
	for k, st := range states {
		if _, ok := st.baselines[name]; ok && k.session != id {
			set(k.session, false)
		}
	}
	if id != "" {
		set(id, true)
	} else if len(marks) == 0 {
		return fmt.Errorf("baseline %q: %w", name, store.ErrNotFound)
	}
	if err := s.insertMarks(ctx, marks); err != nil {
		return fmt.Errorf("baseline %q: %w", name, err)
	}
	return nil
}

// Baselines implements [store.Reader].
func (s *Store) Baselines(ctx context.Context, project string) (list []store.Baseline, err error) {
	if err := s.check(ctx); err != nil {
		return nil, fmt.Errorf("baselines: %w", err)
	}
	latest, err := s.baselines(ctx, project)
	if err != nil {
		return nil, fmt.Errorf("baselines: %w", err)
	}
	for name, m := range latest {
		list = append(list, store.Baseline{Name: name, Session: m.key.session})
	}
	slices.SortFunc(list, func(a, b store.Baseline) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// baseline notes the mark of a baseline.
func (s *state) baseline(m mark) {
	name, ok := strings.CutPrefix(m.kind, baselineKind)
	if !ok || !m.flag {
		return
	}
	if s.baselines == nil {
		s.baselines = map[string]mark{}
	}
	s.baselines[name] = m
}
