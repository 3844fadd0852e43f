// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"context"

	"github.com/gpuflight/gpuflight/internal/store"
)

// scanReader is the source of a session in a store that scans rows and keeps parts.
type scanReader struct {
	reader
	store    store.Scanner
	noPlaces bool // of Ops
}

// withoutPlaces returns a source whose operations need no PlaceRef.
func withoutPlaces(src Source) Source {
	if s, ok := src.(*scanReader); ok {
		bare := *s
		bare.noPlaces = true
		return &bare
	}
	return src
}

// Ops reads parts in turn, so that the store sorts a bounded number of rows.
func (s *scanReader) Ops(ctx context.Context, from, to int64, visit func(*store.OpRow) error) error {
	list, err := planParts(ctx, s, from/partGrid*partGrid, (to+partGrid-1)/partGrid*partGrid)
	if err != nil {
		return err
	}
	for _, p := range list {
		q := s.query(max(p.from, from), min(p.to, to))
		q.Overlapping, q.Places = p.from <= from, !s.noPlaces
		if err := s.store.ScanOps(ctx, q, visit); err != nil {
			return err
		}
	}
	return nil
}

func (s *scanReader) query(from, to int64) store.ScanQuery {
	return store.ScanQuery{Project: s.project, Session: s.session, From: from, To: to, Overlapping: true}
}

func (s *scanReader) scan(ctx context.Context, from, to int64, places bool, visit func(*store.OpRow) error) error {
	q := s.query(from, to)
	q.Places = places
	return s.store.ScanOps(ctx, q, visit)
}

func (s *scanReader) Scopes(ctx context.Context, from, to int64, n int) (list []Scope, more bool, err error) {
	return s.scopes(ctx, from, to, nil, n)
}

func (s *scanReader) namedScopes(ctx context.Context, from, to int64, prefixes []string) ([]Scope, error) {
	list, _, err := s.scopes(ctx, from, to, prefixes, maxNamed)
	return list, err
}

func (s *scanReader) scopes(ctx context.Context, from, to int64, prefixes []string, n int) (list []Scope, more bool, err error) {
	q := s.query(from, to)
	q.Limit = n + 1
	err = s.store.ScanScopes(ctx, q, prefixes, func(x *store.Span) error {
		list = append(list, scopeOf(x))
		return nil
	})
	if more = len(list) > n; more {
		list = list[:n]
	}
	return list, more, err
}

func (s *scanReader) scopeSums(ctx context.Context, from, to int64, visit func(*store.ScopeSum) error) error {
	return s.store.ScopeSums(ctx, s.query(from, to), partShift, visit)
}

func (*scanReader) partSize() (ops, grid int64) { return partOps, partGrid }

func (s *scanReader) names(ctx context.Context) ([]string, error) {
	return s.store.Kept(ctx, s.project, s.session)
}

func (s *scanReader) value(ctx context.Context, name string) ([]byte, error) {
	return s.store.KeptValue(ctx, s.project, s.session, name)
}

func (s *scanReader) keep(ctx context.Context, name string, value []byte) error {
	return s.store.Keep(ctx, s.project, s.session, name, value)
}

func (s *scanReader) operations(ctx context.Context) (int64, error) {
	info, err := s.r.Session(ctx, s.project, s.session)
	return info.Counts["ops"], err
}

func (s *scanReader) counts(ctx context.Context, from, to int64, visit func(*store.OpCount) error) error {
	return s.store.OpCounts(ctx, s.query(from, to), partShift, visit)
}
