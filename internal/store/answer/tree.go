// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// ScopeSpan is what a [Tree] needs of a span.
type ScopeSpan struct {
	StartNs, EndNs  int64
	ID, Parent      store.SpanID
	Trace           store.TraceID
	Name, Operation string

	names  []string
	inTree bool
}

// Duration returns the duration in nanoseconds.
func (p *ScopeSpan) Duration() int64 { return max(p.EndNs-p.StartNs, 0) }

// Names returns the path of a span, and false if it is not in the tree.
func (p *ScopeSpan) Names() ([]string, bool) { return p.names, p.inTree }

// Tree is the tree of scopes of a session (see [store.Reader]). It does not change, so it is safe for
// concurrent use.
type Tree struct {
	// Spans are sorted by start and id.
	Spans []ScopeSpan
	byID  map[store.SpanID]*ScopeSpan
	folds store.Folds
}

// NewTree returns the tree of all spans of a session, which are sorted by start and id. It keeps the
// slice. Sites are those of all operations of the session.
func NewTree(spans []ScopeSpan, sites []Site) *Tree {
	t := &Tree{Spans: spans, byID: make(map[store.SpanID]*ScopeSpan, len(spans))}
	names := store.NewNumbered(nil)
	for _, s := range sites {
		if s.ScopePath == "" {
			names.Add(s.ScopeName)
			continue
		}
		for _, n := range strings.Split(s.ScopePath, "|") {
			names.Add(n)
		}
	}
	for i := range spans {
		if inside(&spans[i]) {
			names.Add(spans[i].Name)
		}
	}
	t.folds = names.Folds()
	for i := range spans {
		if p := &spans[i]; t.byID[p.ID] == nil {
			t.byID[p.ID] = p
		}
	}
	for i := range spans {
		t.resolve(&spans[i])
	}
	return t
}

func inside(p *ScopeSpan) bool {
	return p.Operation != semconv.CUDAOperationSession && p.Operation != semconv.CUDAOperationDeepWindow
}

func (t *Tree) resolve(p *ScopeSpan) {
	var names []string
	for q := p; q != nil && inside(q); q = t.byID[q.Parent] {
		if len(names) == store.MaxScopeDepth {
			return
		}
		names = append(names, t.folds.Name(q.Name))
		if q.Parent == 0 {
			break
		}
	}
	slices.Reverse(names)
	p.names, p.inTree = names, len(names) > 0
}

// Below calls f for each id of a span in the tree and each of ids in its chain.
func (t *Tree) Below(ids map[store.SpanID]bool, f func(span, top store.SpanID)) {
	for id, p := range t.byID {
		q := p
		for n := range p.names {
			if n > 0 {
				q = t.byID[q.Parent]
			}
			if id != 0 && p.inTree && ids[q.ID] {
				f(id, q.ID)
			}
		}
	}
}

// AddSums adds the sums of operations to those of an instance.
func AddSums(i, s *store.Instance) {
	if s.Kernels+s.Copies == 0 {
		return
	}
	if i.Kernels+i.Copies == 0 {
		i.FirstNs = s.FirstNs
	}
	i.Kernels += s.Kernels
	i.KernelNs += s.KernelNs
	i.QueueNs += s.QueueNs
	i.Copies += s.Copies
	i.CopyNs += s.CopyNs
	i.FirstNs, i.LastNs = min(i.FirstNs, s.FirstNs), max(i.LastNs, s.LastNs)
}

// Span returns the path of a span, nil if it is not in the tree.
func (t *Tree) Span(start int64, id store.SpanID) []string {
	i, ok := slices.BinarySearchFunc(t.Spans, ScopeSpan{StartNs: start, ID: id}, func(p, k ScopeSpan) int {
		return cmp.Or(cmp.Compare(p.StartNs, k.StartNs), cmp.Compare(p.ID, k.ID))
	})
	if !ok {
		return nil
	}
	return t.Spans[i].names
}

// Site is what a [store.Place] has for the tree.
type Site struct {
	Parent               store.SpanID
	ScopeName, ScopePath string
}

// Path returns the path of an operation.
func (t *Tree) Path(s Site) []string {
	if s.ScopePath != "" {
		names := strings.Split(s.ScopePath, "|")
		return t.folds.Names(names[:min(len(names), store.MaxScopeDepth)])
	}
	if p := t.byID[s.Parent]; p != nil && s.Parent != 0 && p.inTree {
		return p.names
	}
	if s.ScopeName != "" {
		return []string{t.folds.Name(s.ScopeName)}
	}
	return nil
}
