// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"context"
	"slices"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// Scope is a named region of the host program.
type Scope struct {
	StartNs, EndNs int64
	Span, Parent   store.SpanID
	Name           string
	// CollectiveBytes is cuda.collective.size, 0 if it is unknown.
	CollectiveBytes int64
	// Instance is cuda.scope.instance.id, 0 if it is unknown. A store that scans has it for ranges of NCCL only.
	Instance int64

	part bool // a further part of a scope that is listed already
}

// Source has the data of one session.
type Source interface {
	// Extent returns the earliest start and the latest end of all rows.
	Extent(ctx context.Context) (first, last int64, err error)
	// Ops calls visit for each operation that overlaps the interval, by start, then by span. The row
	// is valid until visit returns. An error of visit ends the call, which returns it.
	Ops(ctx context.Context, from, to int64, visit func(*store.OpRow) error) error
	// Scopes returns at most n scopes that overlap the interval, by start. More says that there are
	// others.
	Scopes(ctx context.Context, from, to int64, n int) (list []Scope, more bool, err error)
}

// FromReader returns the source of a session in a store.
func FromReader(r store.Reader, project, session string) Source {
	s := reader{r: r, project: project, session: session, page: pageRows}
	if scanner, ok := r.(store.Scanner); ok {
		return &scanReader{reader: s, store: scanner}
	}
	return &s
}

const pageRows = 20_000

type reader struct {
	r                store.Reader
	project, session string
	page             int
}

func (s *reader) Extent(ctx context.Context) (first, last int64, err error) {
	info, err := s.r.Session(ctx, s.project, s.session)
	return info.FirstNs, info.LastNs, err
}

func (s *reader) Ops(ctx context.Context, from, to int64, visit func(*store.OpRow) error) error {
	q := store.OpQuery{Project: s.project, Session: s.session, From: from, To: to, Overlapping: true, Limit: s.page}
	for {
		page, err := s.r.Ops(ctx, q)
		if err != nil {
			return err
		}
		for i := range page.Rows {
			if err := visit(&page.Rows[i]); err != nil {
				return err
			}
		}
		if !page.More || len(page.Rows) == 0 {
			return nil
		}
		last := &page.Rows[len(page.Rows)-1]
		q.After = &store.OpCursor{StartNs: last.StartNs, Span: last.Span}
	}
}

func (s *reader) Scopes(ctx context.Context, from, to int64, n int) (list []Scope, more bool, err error) {
	q := store.SpanQuery{
		Project: s.project, Session: s.session, Operation: semconv.CUDAOperationScope,
		From: from, To: to, Overlapping: true, Limit: s.page,
	}
	type key struct {
		start int64
		span  store.SpanID
	}
	seen := map[key]bool{}
	for {
		page, err := s.r.Spans(ctx, q)
		if err != nil {
			return nil, false, err
		}
		fresh := 0
		for i := range page {
			x := &page[i]
			if k := (key{x.StartNs, x.Span.Span}); !seen[k] {
				seen[k] = true
				fresh++
				list = append(list, scopeOf(&x.Span))
			}
		}
		if len(list) > n {
			return list[:n], true, nil
		}
		if len(page) < s.page {
			return list, false, nil
		}
		if fresh == 0 { // more scopes than a page start in one nanosecond
			return list, true, nil
		}
		q.From, q.Overlapping = page[len(page)-1].StartNs, false
	}
}

func scopeOf(s *store.Span) Scope {
	part := attr(s.Attrs, semconv.CUDAScopePart).Int > 0
	return Scope{
		StartNs: s.StartNs, EndNs: max(s.StartNs, s.EndNs), Span: s.Span, Parent: s.Parent, Name: s.Name,
		CollectiveBytes: max(0, attr(s.Attrs, semconv.CUDACollectiveSize).Int), Instance: attr(s.Attrs, semconv.CUDAScopeInstanceID).Int, part: part,
	}
}

// attr returns a value by its key.
func attr(a store.Attrs, key string) (v store.Value) {
	i, ok := slices.BinarySearchFunc(a, key, func(a store.Attr, k string) int {
		switch {
		case a.Key < k:
			return -1
		case a.Key > k:
			return 1
		}
		return 0
	})
	if ok {
		return a[i].Value
	}
	return v
}
