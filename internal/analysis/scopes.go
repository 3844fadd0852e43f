// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
)

const (
	// ruleScopes bounds the scopes that decide which ones are steps, the first ones of the interval.
	ruleScopes = 50_000
	// maxScopes bounds the scopes that name the host's code in one sweep.
	maxScopes = 200_000
)

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

// before returns the time of [from, to) in which no scope was open, 0 if none is open at the launch, which is
// not earlier than to. The launch is then not part of a request.
func (c *scopeCursor) before(from, to, launch int64) (ns int64) {
	c.at(from)
	covered, launched := from, false // by scopes that started earlier
	add := func(s *Scope) {
		if gap := min(s.StartNs, to) - covered; gap > 0 {
			ns += gap
		}
		covered = max(covered, s.EndNs)
		launched = launched || s.EndNs > launch
	}
	for i := range c.active {
		add(&c.active[i])
	}
	for i := c.next; i < len(c.list) && c.list[i].StartNs <= launch; i++ {
		add(&c.list[i])
	}
	if !launched {
		return 0
	}
	return ns + max(0, to-covered)
}

// isRequests says whether scopes are the requests of a service: none is a step of a loop by its name. The
// host then waits for requests outside of scopes.
func isRequests(scopes []Scope) bool {
	return len(scopes) > 0 && !slices.ContainsFunc(scopes, func(s Scope) bool { return stepWord.MatchString(s.Name) })
}

// stepWord is a part of a name that suggests a step.
var stepWord = regexp.MustCompile(`(?i)step|iter|batch`)

// stem returns a name without a number at its end: "step" of "step 12", "ProfilerStep" of
// "ProfilerStep#3".
func stem(name string) string {
	short := strings.TrimRight(name, "0123456789")
	if len(short) == len(name) {
		return name
	}
	if short = strings.TrimRight(short, " \t\r\n\f#_:.-"); short == "" {
		return name
	}
	return short
}

const (
	// minSteps is the smallest number of steps that are reported.
	minSteps = 3
	// minCoverage is the smallest share of the time from the first scope to the last that scopes must
	// cover if their name does not suggest a step.
	minCoverage = 0.2
)

// scopePaths returns the paths of scopes: the stems of their names, the innermost first.
func scopePaths(scopes []Scope) []string {
	byID := make(map[store.SpanID]int, len(scopes))
	for i := range scopes {
		if _, ok := byID[scopes[i].Span]; !ok {
			byID[scopes[i].Span] = i
		}
	}
	paths := make([]string, len(scopes))
	for i := range scopes {
		names := []string{stem(scopes[i].Name)}
		for p := scopes[i].Parent; p != 0 && len(names) <= store.MaxScopeDepth; {
			j, ok := byID[p]
			if !ok {
				break
			}
			names = append(names, stem(scopes[j].Name))
			p = scopes[j].Parent
		}
		paths[i] = strings.Join(names, pathSeparator)
	}
	return paths
}

const pathSeparator = "\x00"

// stepScopes returns the scopes that are steps, by start, and their path; none if there are not
// enough. Scopes form groups by the path of their names. A number at the end of a name does not count.
// A group needs minSteps scopes that do not overlap. Groups whose name suggests a step come first. The
// scopes of other groups must cover minCoverage. The group that covers the most time wins.
// It is replaced by the group with the same parent and number of scopes that starts first, because
// each of these begins a step equally well.
func stepScopes(scopes []Scope) (steps []Scope, path string) {
	type group struct {
		path, parent, name string
		scopes             []Scope
		covered            int64
		overlaps           bool
	}
	groups := map[string]*group{}
	for i, path := range scopePaths(scopes) {
		s := &scopes[i]
		g := groups[path]
		if g == nil {
			name, parent, _ := strings.Cut(path, pathSeparator)
			g = &group{path: path, parent: parent, name: name}
			groups[path] = g
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
	return best.scopes, best.path
}

// allSteps returns the scopes of a path in the interval, all of them or those of the first maxScopes.
func allSteps(ctx context.Context, src Source, from, to int64, path string) (steps []Scope, err error) {
	var scopes []Scope
	if named, ok := src.(namedScopes); ok {
		scopes, err = named.namedScopes(ctx, from, to, strings.Split(path, pathSeparator))
	} else {
		scopes, _, err = src.Scopes(ctx, from, to, maxScopes)
	}
	if err != nil {
		return nil, err
	}
	for i, p := range scopePaths(scopes) {
		if p == path {
			steps = append(steps, scopes[i])
		}
	}
	return steps, nil
}

// namedScopes is a source that finds scopes by their names.
type namedScopes interface {
	// namedScopes returns the scopes that overlap an interval and whose name begins with one of the
	// prefixes, by start. They are at most maxNamed.
	namedScopes(ctx context.Context, from, to int64, prefixes []string) ([]Scope, error)
}

// maxNamed bounds the steps of a session with those around them.
const maxNamed = 2 * maxSteps
