// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
)

// ScopeSum is the scopes of one path of names, with the work that was launched in them and in scopes
// below. A number at the end of a name does not count: "step 12" is "step".
type ScopeSum struct {
	// Path is the names, outermost first.
	Path []string
	// Count is the number of scopes, WallNs the sum of their durations, MaxNs the longest one, which is
	// Longest.
	Count, WallNs, MaxNs int64
	Longest              Ref
	// Kernels is the number of kernels and graphs. DeviceNs is the sum of the durations of kernels,
	// graphs, copies and sets, SelfNs the part that was launched in no scope below.
	Kernels          int64
	DeviceNs, SelfNs int64
}

// maxScopePaths bounds the paths of ScopeSums. Work of further ones counts for the scope above.
const maxScopePaths = 10_000

// ScopeSums returns the scopes of the collections, which are of different sessions: each scope, then
// those below it, the most device time first.
func ScopeSums(all []*Collection) []ScopeSum {
	t := scopeTree{nodes: map[string]*scopeNode{}}
	for _, c := range all {
		c.sort()
		t.add(c)
	}
	for _, n := range t.top {
		n.total()
	}
	return list(t.top, nil)
}

type scopeNode struct {
	ScopeSum
	below []*scopeNode
}

type scopeTree struct {
	nodes map[string]*scopeNode
	top   []*scopeNode
}

// node returns the node of a path of names with stems, nil for the empty path.
func (t *scopeTree) node(path []string) *scopeNode {
	if len(path) == 0 {
		return nil
	}
	key := strings.Join(path, "\x00")
	n := t.nodes[key]
	if n == nil {
		above := t.node(path[:len(path)-1])
		if len(t.nodes) >= maxScopePaths {
			return above
		}
		n = &scopeNode{ScopeSum: ScopeSum{Path: slices.Clone(path)}}
		t.nodes[key] = n
		if above == nil {
			t.top = append(t.top, n)
		} else {
			above.below = append(above.below, n)
		}
	}
	return n
}

func (t *scopeTree) add(c *Collection) {
	byID := make(map[store.SpanID]*Scope, len(c.scopes))
	for i := range c.scopes {
		if s := &c.scopes[i]; byID[s.Span] == nil {
			byID[s.Span] = s
		}
	}
	chain := func(s *Scope) (path []string) {
		for ; s != nil && len(path) < store.MaxScopeDepth; s = byID[s.Parent] {
			path = append(path, stem(s.Name))
			if s.Parent == 0 {
				break
			}
		}
		slices.Reverse(path)
		return path
	}
	for i := range c.scopes {
		s := &c.scopes[i]
		if s.part {
			continue // the same scope again
		}
		n := t.node(chain(s))
		if n == nil {
			continue
		}
		ns := s.EndNs - s.StartNs
		n.Count++
		n.WallNs += ns
		if n.Count == 1 || ns > n.MaxNs {
			n.MaxNs, n.Longest = ns, Ref{s.Span, s.StartNs, s.Name}
		}
	}
	places := make([]*scopeNode, len(c.places.all)) // the node of each place
	for i := range c.places.all {
		p := &c.places.all[i]
		switch s := byID[p.Parent]; {
		case p.ScopePath != "":
			names := strings.Split(p.ScopePath, "|")
			names = names[:min(len(names), store.MaxScopeDepth)]
			for j := range names {
				names[j] = stem(names[j])
			}
			places[i] = t.node(names)
		case s != nil && p.Parent != 0:
			places[i] = t.node(chain(s))
		case p.ScopeName != "":
			places[i] = t.node([]string{stem(p.ScopeName)})
		}
	}
	for i := range c.ops {
		o := &c.ops[i]
		op := c.shapes.at(o.Shape).Operation
		if !onDevice(op) || int(o.Place) >= len(places) || places[o.Place] == nil {
			continue
		}
		n := places[o.Place]
		n.SelfNs += max(o.EndNs-o.StartNs, 0)
		if op == store.OpKernel || op == store.OpGraph {
			n.Kernels++
		}
	}
}

// list appends nodes and those below them to a list.
func list(nodes []*scopeNode, to []ScopeSum) []ScopeSum {
	slices.SortStableFunc(nodes, func(a, b *scopeNode) int {
		return cmp.Or(cmp.Compare(b.DeviceNs, a.DeviceNs), cmp.Compare(b.WallNs, a.WallNs))
	})
	for _, n := range nodes {
		to = append(to, n.ScopeSum)
		to = list(n.below, to)
	}
	return to
}

// total adds the sums of the nodes below. It must be called once for each node.
func (n *scopeNode) total() {
	n.DeviceNs = n.SelfNs
	for _, b := range n.below {
		b.total()
		n.DeviceNs += b.DeviceNs
		n.Kernels += b.Kernels
	}
}
