// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
)

const (
	// maxCells bounds the cells of a [Series]. With more repetitions, two cells become one.
	maxCells = 256
	// maxGroups bounds the kernels, the shapes and the scopes of a [Profile]. What exceeds it is in none.
	maxGroups = 2000
)

// Profile is what a comparison needs of a session, without single operations. It is of the device with
// the most kernel time. Its memory does not depend on the number of operations.
type Profile struct {
	Result *Result
	// Steps are the values of the steps, in order, none if the session has no steps.
	Steps []StepValues
	// Kernels are groups by name, Shapes by name, grid and block, Scopes by path. Their order has no
	// meaning.
	Kernels, Shapes, Scopes []*Group
	// ManyScopes says that the session has more than 200,000 scopes. Scopes is then empty.
	ManyScopes bool
	// KernelNs is the sum of all durations of kernels, with steps only of those in steps.
	KernelNs int64
}

// Group is the kernels with one name or shape, or the scopes with one path.
type Group struct {
	Name string
	// FullName, Grid and Block are of shapes.
	FullName    string
	Grid, Block []int64
	// Path is of scopes: the names from the outermost one, without numbers at their ends.
	Path []string
	// Count and SumNs are of the launches, or of the instances of a scope. With steps they are of
	// launches in steps only.
	Count, SumNs int64
	// Calls are the durations of consecutive launches, or of instances of a scope.
	Calls Series
	// Steps are launches per step; for scopes, kernels and copies in the scope and below.
	Steps Series
}

// Series is counts and durations of consecutive repetitions. Each of at most 256 cells has Size of them,
// the last one may have less.
type Series struct {
	Size  int
	Cells []Cell
}

// Cell is sums of some repetitions.
type Cell struct{ Count, Ns int64 }

// add adds to repetition i, from 0.
func (s *Series) add(i int, count, ns int64) {
	s.Size = max(s.Size, 1)
	for i/s.Size >= maxCells {
		*s = s.Coarser()
	}
	for len(s.Cells) <= i/s.Size {
		s.Cells = append(s.Cells, Cell{})
	}
	c := &s.Cells[i/s.Size]
	c.Count += count
	c.Ns += ns
}

// Coarser returns the series with cells of twice the size.
func (s *Series) Coarser() Series {
	c := Series{Size: 2 * s.Size, Cells: make([]Cell, (len(s.Cells)+1)/2)}
	for i, x := range s.Cells {
		c.Cells[i/2].Count += x.Count
		c.Cells[i/2].Ns += x.Ns
	}
	return c
}

// NewProfile reads all operations of a session, also those whose results a store keeps. A session without
// operations gives a profile without steps and groups.
func NewProfile(ctx context.Context, src Source, o Options) (*Profile, error) {
	o.profile = &profiler{devices: map[*device]*deviceProfile{}}
	result, err := Run(ctx, src, o)
	if err != nil {
		return nil, err
	}
	out := &Profile{Result: result}
	o.profile.finish(out)
	return out, nil
}

// profiler collects the groups of all devices, because the one with the most kernel time is known only
// at the end.
type profiler struct {
	a       *analysis // nil if the interval is empty
	devices map[*device]*deviceProfile
	scopes  []Scope
	more    bool // there are others
	paths   *pathTree
}

// begin is called when the scopes that decide which ones are steps are known. It reads the others.
func (p *profiler) begin(ctx context.Context, src Source, a *analysis) (err error) {
	p.a, p.scopes = a, a.scopes
	if a.more {
		if p.scopes, p.more, err = src.Scopes(ctx, a.from, a.to, maxScopes); err != nil {
			return err
		}
	}
	p.paths = newPathTree(p.scopes)
	return nil
}

func (p *profiler) finish(out *Profile) {
	if p.a == nil {
		return
	}
	if most := p.a.busiest(); most != nil {
		p.of(most).finish(out, most)
	}
	if out.ManyScopes = p.more; p.more {
		out.Scopes = nil // the paths of later operations are unknown
		return
	}
	p.scopeCalls(out, p.scopes)
}

type deviceProfile struct {
	groups    map[groupKey]*Group
	sizes     [3]int
	shapes    map[uint32][2]*Group
	scopes    map[int32][]*Group // by path, with those above it
	stepNs    int64
	outsideNs int64
}

// groupKey is a group of a kind: a name, a shape or a path.
type groupKey struct {
	kind int
	key  string
}

// Kinds of groups.
const (
	ofName = iota
	ofShape
	ofPath
)

func (p *profiler) of(d *device) *deviceProfile {
	x := p.devices[d]
	if x == nil {
		x = &deviceProfile{groups: map[groupKey]*Group{}, shapes: map[uint32][2]*Group{}, scopes: map[int32][]*Group{}}
		p.devices[d] = x
	}
	return x
}

// group returns a group, which it makes, or nil if there are too many.
func (x *deviceProfile) group(kind int, key string, create func() *Group) *Group {
	k := groupKey{kind, key}
	g := x.groups[k]
	if g == nil && x.sizes[kind] < maxGroups {
		x.sizes[kind]++
		g = create()
		x.groups[k] = g
	}
	return g
}

// add adds an operation of a device that has been added to its steps.
func (p *profiler) add(d *device, row *store.OpRow, w *work) {
	x := p.of(d)
	step := d.step()
	ns := w.end - w.start
	if row.ShapeRef.Operation == store.OpKernel {
		if step >= 0 {
			x.stepNs += ns
		} else {
			x.outsideNs += ns
		}
		pair, ok := x.shapes[row.Shape]
		if !ok {
			s := row.ShapeRef
			pair[0] = x.group(ofName, s.Name, func() *Group { return &Group{Name: s.Name} })
			full := cmp.Or(s.FullName, s.Name)
			pair[1] = x.group(ofShape, fmt.Sprint(full, "\x00", s.Grid, s.Block), func() *Group {
				return &Group{Name: s.Name, FullName: full, Grid: slices.Clone(s.Grid), Block: slices.Clone(s.Block)}
			})
			if len(x.shapes) < maxShapes {
				x.shapes[row.Shape] = pair
			}
		}
		for _, g := range pair {
			if g == nil {
				continue
			}
			g.Calls.add(int(g.Count), 1, ns)
			g.Count++
			g.SumNs += ns
			if step >= 0 {
				g.Steps.add(step, 1, ns)
			}
		}
	}
	path := p.paths.of(&row.PlaceRef)
	if path == 0 || step < 0 {
		return
	}
	groups, ok := x.scopes[path]
	if !ok {
		for i := path; i != 0; i = p.paths.all[i].parent {
			names := p.paths.names(i)
			if g := x.group(ofPath, strings.Join(names, "\x00"), func() *Group { return &Group{Name: names[len(names)-1], Path: names} }); g != nil {
				groups = append(groups, g)
			}
		}
		x.scopes[path] = groups
	}
	for _, g := range groups {
		g.Steps.add(step, 1, ns)
	}
}

// step returns the index of the open step, -1 if there is none or too many came before it.
func (d *device) step() int {
	if d.steps.open == nil || len(d.list.list) >= maxSteps {
		return -1
	}
	return len(d.list.list)
}

// finish moves the groups to the profile.
func (x *deviceProfile) finish(out *Profile, d *device) {
	steps := d.list.found()
	out.KernelNs = x.outsideNs + x.stepNs
	if steps {
		out.KernelNs = x.stepNs
		for i := range d.list.list {
			out.Steps = append(out.Steps, d.list.list[i].StepValues)
		}
	}
	for k, g := range x.groups {
		g.Steps.Size = max(g.Steps.Size, 1)
		switch {
		case !steps:
			g.Steps = Series{Size: 1}
		case k.kind != ofPath:
			g.Count, g.SumNs = 0, 0
			for _, c := range g.Steps.Cells {
				g.Count += c.Count
				g.SumNs += c.Ns
			}
			if g.Count == 0 { // before the first step, or after the last
				continue
			}
		}
		switch k.kind {
		case ofName:
			out.Kernels = append(out.Kernels, g)
		case ofShape:
			out.Shapes = append(out.Shapes, g)
		case ofPath:
			out.Scopes = append(out.Scopes, g)
		}
	}
}

// scopeCalls adds the durations of scopes. Scopes belong to no device.
func (p *profiler) scopeCalls(out *Profile, scopes []Scope) {
	groups := map[string]*Group{}
	for _, g := range out.Scopes {
		groups[strings.Join(g.Path, "\x00")] = g
	}
	byPath := map[int32]*Group{}
	for i := range scopes {
		s := &scopes[i]
		id := p.paths.spans[s.Span]
		g := byPath[id]
		if g == nil && id != 0 {
			names := p.paths.names(id)
			key := strings.Join(names, "\x00")
			if g = groups[key]; g == nil && len(groups) < maxGroups {
				g = &Group{Name: names[len(names)-1], Path: names, Steps: Series{Size: 1}}
				groups[key] = g
				out.Scopes = append(out.Scopes, g)
			}
			byPath[id] = g
		}
		if g == nil {
			continue
		}
		g.Calls.add(int(g.Count), 1, s.EndNs-s.StartNs)
		g.Count++
		g.SumNs += s.EndNs - s.StartNs
	}
}

// pathTree has the paths of scopes. Path 0 is outside of all.
type pathTree struct {
	all   []pathNode
	ids   map[pathNode]int32
	spans map[store.SpanID]int32
	texts map[string]int32 // of Place.ScopePath
}

type pathNode struct {
	parent int32
	name   string
}

const maxPaths = 100_000

func newPathTree(scopes []Scope) *pathTree {
	p := &pathTree{all: make([]pathNode, 1), ids: map[pathNode]int32{}, spans: map[store.SpanID]int32{}, texts: map[string]int32{}}
	byID := make(map[store.SpanID]*Scope, len(scopes))
	for i := range scopes {
		if _, ok := byID[scopes[i].Span]; !ok {
			byID[scopes[i].Span] = &scopes[i]
		}
	}
	var chain []*Scope
	for i := range scopes {
		chain = chain[:0]
		id := int32(0)
		for s := byID[scopes[i].Span]; s != nil && len(chain) < store.MaxScopeDepth; s = byID[s.Parent] {
			if known, ok := p.spans[s.Span]; ok {
				id = known
				break
			}
			chain = append(chain, s)
			if s.Parent == 0 {
				break
			}
		}
		for _, s := range slices.Backward(chain) {
			id = p.child(id, stem(s.Name))
			p.spans[s.Span] = id
		}
	}
	return p
}

// child returns the path below another one, or the other one if there are too many.
func (p *pathTree) child(parent int32, name string) int32 {
	k := pathNode{parent, name}
	id, ok := p.ids[k]
	if !ok {
		if len(p.all) >= maxPaths {
			return parent
		}
		id = int32(len(p.all))
		p.ids[k] = id
		p.all = append(p.all, k)
	}
	return id
}

// of returns the path of an operation by the rules of [store.Reader], without numbers at the ends of
// names.
func (p *pathTree) of(place *store.Place) int32 {
	if place.ScopePath != "" {
		id, ok := p.texts[place.ScopePath]
		if !ok {
			names := strings.Split(place.ScopePath, "|")
			for _, name := range names[:min(len(names), store.MaxScopeDepth)] {
				id = p.child(id, stem(name))
			}
			if len(p.texts) < maxPaths {
				p.texts[place.ScopePath] = id
			}
		}
		return id
	}
	if id, ok := p.spans[place.Parent]; ok && place.Parent != 0 {
		return id
	}
	if place.ScopeName != "" {
		return p.child(0, stem(place.ScopeName))
	}
	return 0
}

func (p *pathTree) names(id int32) (names []string) {
	for ; id != 0; id = p.all[id].parent {
		names = append(names, p.all[id].name)
	}
	slices.Reverse(names)
	return names
}
