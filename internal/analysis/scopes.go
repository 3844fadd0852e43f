// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
)

// maxScopes bounds the scopes that an analysis considers, the first ones of its interval.
const maxScopes = 200_000

// scopeCursor finds the innermost scope at times that do not decrease.
type scopeCursor struct {
	list   []Scope // by start
	next   int
	active []Scope
}

// innermost returns the name of the scope at a time, "" if there is none.
func (c *scopeCursor) innermost(t int64) string {
	s, _ := c.at(t)
	return s.Name
}

// at returns the scope at a time that started last, of several the one that ends first.
func (c *scopeCursor) at(t int64) (s Scope, ok bool) {
	for c.next < len(c.list) && c.list[c.next].StartNs <= t {
		c.active = append(c.active, c.list[c.next])
		c.next++
	}
	c.active = slices.DeleteFunc(c.active, func(s Scope) bool { return s.EndNs <= t })
	if len(c.active) == 0 {
		return s, false
	}
	return slices.MaxFunc(c.active, func(a, b Scope) int {
		return cmp.Or(cmp.Compare(a.StartNs, b.StartNs), cmp.Compare(b.EndNs, a.EndNs))
	}), true
}

// counter is a name with a number at its end: "step 12", "ProfilerStep#3".
var counter = regexp.MustCompile(`^(.*?)[\s#_:.-]*(\d+)$`)

// stepWord is a part of a name that suggests a step.
var stepWord = regexp.MustCompile(`(?i)step|iter|batch`)

// stem returns a name without a number at its end.
func stem(name string) string {
	if m := counter.FindStringSubmatch(name); m != nil && m[1] != "" {
		return m[1]
	}
	return name
}

const (
	// minSteps is the smallest number of steps that are reported.
	minSteps = 3
	// minCoverage is the smallest share of the time from the first scope to the last that scopes must
	// cover if their name does not suggest a step.
	minCoverage = 0.2
)

// stepScopes returns the scopes that are steps, by start, and their name; none if there are not
// enough. Scopes form groups by the path of their names. A number at the end of a name does not count.
// A group needs minSteps scopes that do not overlap. Groups whose name suggests a step come first. The
// scopes of other groups must cover minCoverage. The group that covers the most time wins.
// It is replaced by the group with the same parent and number of scopes that starts first, because
// each of these begins a step equally well.
func stepScopes(scopes []Scope) (steps []Scope, name string) {
	type group struct {
		parent, name string
		scopes       []Scope
		covered      int64
		overlaps     bool
	}
	groups := map[string]*group{}
	byID := make(map[store.SpanID]*Scope, len(scopes))
	for i := range scopes {
		if _, ok := byID[scopes[i].Span]; !ok {
			byID[scopes[i].Span] = &scopes[i]
		}
	}
	parentPath := func(s *Scope) string {
		var names []string
		for p := byID[s.Parent]; p != nil && s.Parent != 0 && len(names) < store.MaxScopeDepth; p = byID[p.Parent] {
			names = append(names, stem(p.Name))
			if p.Parent == 0 {
				break
			}
		}
		return strings.Join(names, "\x00")
	}
	for i := range scopes {
		s := &scopes[i]
		parent, name := parentPath(s), stem(s.Name)
		key := parent + "\x01" + name
		g := groups[key]
		if g == nil {
			g = &group{parent: parent, name: name}
			groups[key] = g
		}
		if n := len(g.scopes); n > 0 && s.StartNs < g.scopes[n-1].EndNs {
			g.overlaps = true
		}
		g.scopes = append(g.scopes, *s)
		g.covered += s.EndNs - s.StartNs
	}
	var best *group
	rank := func(g *group) int {
		if stepWord.MatchString(g.name) {
			return 1
		}
		return 0
	}
	first := func(g *group) int64 { return g.scopes[0].StartNs }
	var all, regular []*group
	for _, g := range groups {
		if g.overlaps || len(g.scopes) < minSteps {
			continue
		}
		regular = append(regular, g)
		extent := g.scopes[len(g.scopes)-1].EndNs - first(g)
		if rank(g) == 0 && float64(g.covered) < minCoverage*float64(extent) {
			continue
		}
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *group) int {
		return cmp.Or(cmp.Compare(rank(b), rank(a)), cmp.Compare(b.covered, a.covered), cmp.Compare(first(a), first(b)), cmp.Compare(a.name, b.name))
	})
	if len(all) == 0 {
		return nil, ""
	}
	best = all[0]
	for _, g := range regular {
		if rank(best) == 0 && g.parent == best.parent && len(g.scopes) == len(best.scopes) && first(g) < first(best) {
			best = g
		}
	}
	return best.scopes, best.name
}
