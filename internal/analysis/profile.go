// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"context"
	"encoding/binary"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
)

const (
	// maxCells bounds the cells of a [Series]. With more repetitions, two cells become one.
	maxCells = 256
	// maxGroups bounds the kernels, the shapes and the scopes of a [Profile]. What exceeds it is in none.
	maxGroups = 2000
	// partCells bounds the cells that are kept of a part for one device, at about 5 bytes each.
	partCells = 1 << 16
	// leastCells is the least bound of the cells of one series of a part. That of part i is 4 * maxCells / (i+1).
	// If a series is spread evenly over as many parts, its cells are at least four times as large. A series that
	// only late parts have keeps enough cells for a test.
	leastCells = 32
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
	// Device is the device that the groups and times are of, "" without operations.
	Device string
	// Times are the times of scopes in the active interval of the device, each before those below it, the longest
	// first. It is nil if a part of the interval that is read at once has more than 200,000 scopes.
	Times []ScopeTime
	// ManyScopes says that the interval has more than 200,000 scopes. Scopes is then empty.
	ManyScopes bool
	// More says that there are 2000 or more kernels, shapes or scopes. Those that come later are in no group.
	More bool
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
	// Longest is the longest launch or instance, of equal ones the first. With steps, launches outside of them do not
	// count. It is nil if there is none.
	Longest *Ref
	// Calls are the durations of consecutive launches, empty with steps, or of instances of a scope.
	Calls Series
	// Steps are launches per step; for scopes, kernels and copies in the scope and below.
	Steps Series

	longestNs int64
}

// longest keeps the longest of the launches or instances that it gets in order.
func (g *Group) longest(r Ref, ns int64) {
	if g.Longest == nil {
		g.Longest = &Ref{}
	} else if ns <= g.longestNs {
		return
	}
	*g.Longest, g.longestNs = r, ns
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

// merge adds a series of n repetitions, the first of which is repetition at. A cell that overlaps two cells is
// divided between them by its repetitions. Cells of one repetition give what add gives.
func (s *Series) merge(o *Series, at, n int) {
	s.Size = max(s.Size, 1)
	for s.Size < o.Size {
		*s = s.Coarser()
	}
	for i, c := range o.Cells {
		from, to := at+i*o.Size, at+min((i+1)*o.Size, n)
		if c == (Cell{}) || from >= to {
			continue
		}
		for (to-1)/s.Size >= maxCells {
			*s = s.Coarser()
		}
		if bound := (to - 1) / s.Size * s.Size; bound > from {
			share := func(v int64) int64 { return int64(float64(v) * float64(bound-from) / float64(to-from)) }
			before := Cell{share(c.Count), share(c.Ns)}
			s.add(from, before.Count, before.Ns)
			c.Count -= before.Count
			c.Ns -= before.Ns
		}
		s.add(to-1, c.Count, c.Ns)
	}
}

// NewProfile reads a session. Where a store keeps parts of it, it reads these instead of the operations. The sums
// are then the same, and a series can have fewer, larger cells. Cells of more than one repetition can also differ by
// a part of one. A session without operations gives a profile without steps and groups.
func NewProfile(ctx context.Context, src Source, o Options) (*Profile, error) {
	return newProfile(ctx, src, o, false)
}

// NewTimes is NewProfile without Kernels, Shapes and Scopes, so it does not read all scopes of the interval. ManyScopes is
// of Times.
func NewTimes(ctx context.Context, src Source, o Options) (*Profile, error) {
	return newProfile(ctx, src, o, true)
}

func newProfile(ctx context.Context, src Source, o Options, times bool) (*Profile, error) {
	o.profile = &profiler{times: times}
	result, err := Run(ctx, src, o)
	if err != nil {
		return nil, err
	}
	out := &Profile{Result: result}
	if err := o.profile.finish(ctx, src, out); err != nil {
		return nil, err
	}
	return out, nil
}

// profiler adds operations to the groups of all devices, because the one with the most kernel time is known only
// at the end.
type profiler struct {
	a     *analysis // nil if the interval is empty
	paths *pathTree
	// begun is the begin of the sweep. The tree has the scopes that end after known, which is not later.
	begun, known int64
	more         bool  // the sweep had too many scopes
	many         bool  // a sweep of the interval had too many
	earliest     int64 // start of a launch, since the begin of the part
	// times says that only the times of scopes are needed, and no groups.
	times bool
}

// begin is called when the scopes that decide which ones are steps are known. If there are others, each sweep sets its
// own.
func (p *profiler) begin(a *analysis) {
	p.a, p.paths = a, newPathTree()
	if !a.more {
		p.setScopes(a.scopes, a.from, false)
	}
}

// setScopes replaces the scopes by those from a time on, all or the first ones.
func (p *profiler) setScopes(scopes []Scope, from int64, more bool) {
	clear(p.paths.spans)
	p.paths.add(scopes)
	p.begun, p.known = from, from
	p.more, p.many = more, p.many || more
}

// reach reads earlier scopes if that of an operation is unknown: it can have ended between the launch and the begin
// of the sweep.
func (p *profiler) reach(ctx context.Context, src Source, row *store.OpRow) error {
	at := row.StartNs
	if launchKnown(row) {
		at = row.LaunchStartNs.V
	}
	if at >= p.known || !onDevice(row.ShapeRef.Operation) || p.paths.has(&row.PlaceRef) {
		return nil
	}
	at = max(min(at, 2*p.known-p.begun), 0) // few reads, however many launches are earlier
	scopes, more, err := src.Scopes(ctx, at, p.known, maxScopes)
	p.paths.add(scopes)
	p.known, p.more, p.many = at, p.more || more, p.many || more
	return err
}

func (p *profiler) finish(ctx context.Context, src Source, out *Profile) (err error) {
	if p.a == nil {
		return nil
	}
	if most := p.a.busiest(); most != nil && most.groups != nil {
		most.groups.finish(out, most)
		out.Device = most.id
		if out.Result.Missing != nil {
			missingTimes(out.Times)
		}
	}
	if out.ManyScopes = p.many; p.many {
		out.Times = nil
	}
	scopes := p.a.scopes
	if p.a.more && !p.times && !p.many {
		if scopes, out.ManyScopes, err = src.Scopes(ctx, p.a.from, p.a.to, maxScopes); err != nil {
			return err
		}
		p.setScopes(scopes, p.a.from, out.ManyScopes)
	}
	if p.times {
		out.Kernels, out.Shapes, out.Scopes, out.More = nil, nil, nil, false
		return nil
	}
	if out.ManyScopes {
		out.Scopes = nil
		return nil
	}
	p.scopeCalls(out, scopes)
	return nil
}

// groups are those of a device in an interval.
type groups struct {
	all    [numKinds]map[string]*Group
	shapes map[uint32][2]*Group // by name and by shape
	scopes map[int32][]*Group   // by path, with those above it
	times  scopeTimes
}

func newGroups() *groups {
	return &groups{shapes: map[uint32][2]*Group{}, scopes: map[int32][]*Group{}}
}

// Kinds of groups.
const (
	ofName = iota
	ofShape
	ofPath
	numKinds
)

func (g *Group) key(kind int) string {
	switch kind {
	case ofName:
		return g.Name
	case ofShape:
		key := append([]byte(g.FullName), 0)
		for _, list := range [][]int64{g.Grid, g.Block} {
			key = append(key, byte(len(list)))
			for _, n := range list {
				key = binary.AppendVarint(key, n)
			}
		}
		return string(key)
	}
	return strings.Join(g.Path, "\x00")
}

// group returns the group with the name and key of another one, which it makes, or nil if there are too many.
func (x *groups) group(kind int, key string, like *Group) *Group {
	g := x.all[kind][key]
	if g == nil && len(x.all[kind]) < maxGroups {
		if x.all[kind] == nil {
			x.all[kind] = map[string]*Group{}
		}
		g = &Group{Name: like.Name, FullName: like.FullName, Grid: slices.Clone(like.Grid), Block: slices.Clone(like.Block), Path: like.Path}
		x.all[kind][key] = g
	}
	return g
}

// sorted returns the groups of a kind by key.
func (x *groups) sorted(kind int) iter.Seq2[string, *Group] {
	return func(yield func(string, *Group) bool) {
		for _, key := range slices.Sorted(maps.Keys(x.all[kind])) {
			if !yield(key, x.all[kind][key]) {
				return
			}
		}
	}
}

// add adds an operation of a device that has been added to its steps.
func (p *profiler) add(d *device, row *store.OpRow, w *work) {
	if w.launched {
		p.earliest = min(p.earliest, w.launchStart)
	}
	x := d.groups
	w.scope.count(d, w)
	if p.times {
		return
	}
	step := d.step()
	ns := w.end - w.start
	if s := row.ShapeRef; s.Operation == store.OpKernel {
		pair, ok := x.shapes[row.Shape]
		if !ok {
			like := &Group{Name: s.Name, FullName: cmp.Or(s.FullName, s.Name), Grid: s.Grid, Block: s.Block}
			pair[0] = x.group(ofName, s.Name, &Group{Name: s.Name})
			pair[1] = x.group(ofShape, like.key(ofShape), like)
			if len(x.shapes) < maxShapes {
				x.shapes[row.Shape] = pair
			}
		}
		for _, g := range pair {
			if g == nil {
				continue
			}
			if !d.list.found() {
				g.Calls.add(int(g.Count), 1, ns)
			}
			g.Count++
			g.SumNs += ns
			if step >= 0 {
				g.Steps.add(step, 1, ns)
			}
			if step >= 0 || !d.steps.divides() {
				g.longest(w.ref, ns)
			}
		}
	}
	if p.more || step < 0 {
		return
	}
	path := p.paths.of(&row.PlaceRef)
	if path == 0 {
		return
	}
	list, ok := x.scopes[path]
	if !ok {
		for i := path; i != 0; i = p.paths.all[i].parent {
			names := p.paths.names(i)
			like := &Group{Name: names[len(names)-1], Path: names}
			if g := x.group(ofPath, like.key(ofPath), like); g != nil {
				list = append(list, g)
			}
		}
		x.scopes[path] = list
	}
	for _, g := range list {
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

// cellsOf returns the most cells of a series that are kept of part i of a session.
func cellsOf(i int) int { return max(leastCells, 4*maxCells/(i+1)) }

// bound makes the cells of a part larger until each series has at most a number of them, and all series partCells.
// Without the calls if there are steps, with which they are not needed.
func (x *groups) bound(steps bool, most int) {
	for cells, size := partCells+1, 1; cells > partCells; size *= 2 {
		cells = 0
		for kind := range x.all {
			for _, g := range x.all[kind] {
				if steps {
					g.Calls = Series{}
				}
				for _, s := range []*Series{&g.Calls, &g.Steps} {
					for s.Size < size && len(s.Cells) > 0 || len(s.Cells) > most {
						*s = s.Coarser()
					}
					cells += len(s.Cells)
				}
			}
		}
	}
}

// merge adds the groups of the interval that follows, which has a number of steps. Its first one is step at.
func (x *groups) merge(o *groups, at, steps int) {
	for kind := range o.all {
		for key, g := range o.sorted(kind) {
			to := x.group(kind, key, g)
			if to == nil {
				continue
			}
			to.Calls.merge(&g.Calls, int(to.Count), int(g.Count))
			to.Steps.merge(&g.Steps, at, min(steps, maxSteps-at))
			to.Count += g.Count
			to.SumNs += g.SumNs
			if g.Longest != nil {
				to.longest(*g.Longest, g.longestNs)
			}
		}
	}
	x.times.merge(&o.times)
}

// finish moves the groups to the profile.
func (x *groups) finish(out *Profile, d *device) {
	steps := d.list.found()
	out.KernelNs = d.kernelNs
	period := sinceKernel
	if steps {
		period = inSteps
		out.KernelNs = 0
		for i := range d.list.list {
			out.Steps = append(out.Steps, d.list.list[i].StepValues)
			out.KernelNs += d.list.list[i].KernelNs
		}
	}
	out.Times = x.times.result(period)
	for kind, to := range []*[]*Group{&out.Kernels, &out.Shapes, &out.Scopes} {
		out.More = out.More || len(x.all[kind]) >= maxGroups
		for _, g := range x.sorted(kind) {
			g.Steps.Size = max(g.Steps.Size, 1)
			switch {
			case !steps:
				g.Steps = Series{Size: 1}
			case kind != ofPath:
				g.Calls = Series{}
				g.Count, g.SumNs = 0, 0
				for _, c := range g.Steps.Cells {
					g.Count += c.Count
					g.SumNs += c.Ns
				}
				if g.Count == 0 { // before the first step, or after the last
					continue
				}
			}
			*to = append(*to, g)
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
		g.longest(Ref{s.Span, s.StartNs, s.Name}, s.EndNs-s.StartNs)
	}
	out.More = out.More || len(groups) >= maxGroups
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

func newPathTree() *pathTree {
	return &pathTree{all: make([]pathNode, 1), ids: map[pathNode]int32{}, spans: map[store.SpanID]int32{}, texts: map[string]int32{}}
}

func (p *pathTree) clone() *pathTree {
	return &pathTree{slices.Clone(p.all), maps.Clone(p.ids), maps.Clone(p.spans), maps.Clone(p.texts)}
}

// add adds scopes with those around them.
func (p *pathTree) add(scopes []Scope) {
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
}

// has says whether the tree has the path of an operation.
func (p *pathTree) has(place *store.Place) bool {
	_, ok := p.spans[place.Parent]
	return ok || place.ScopePath != "" || place.Parent == 0
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
