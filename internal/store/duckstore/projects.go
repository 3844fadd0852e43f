// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"maps"
	"slices"
)

// Projects lists the projects that have data, in order.
func (s *Store) Projects(context.Context) ([]string, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, errClosed
	}
	projects := map[string]struct{}{}
	for k := range s.sessions {
		projects[k.project] = struct{}{}
	}
	return slices.Sorted(maps.Keys(projects)), nil
}
