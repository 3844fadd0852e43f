// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
)

// ScopeTime is the time of a device that belongs to the operations of scopes with one path. An operation owns
// the idle time before its start, and the time from its start until it ends or an operation of its class that
// ends later has started. So the times of the scopes without scopes above them, and of what runs outside all
// scopes, sum to the active interval of the device without cause nothing_queued.
type ScopeTime struct {
	// Path is the names from the outermost scope, without numbers at their ends. It is empty for operations
	// outside all scopes.
	Path []string
	// Parts is with the scopes below, SelfNs the part of its wall without them.
	Parts
	SelfNs int64
	Bound  Bound
	// Operations is the number of operations that started, Launches of those with known launch times. Late is
	// the number of launches that returned when the device had no work left.
	Operations, Launches, Late int64
	// QueueP50Ns is the median of the known times from the launch to the start, the middle of a bucket of the
	// store; -1 if none is known.
	QueueP50Ns int64
}

// periods are the times that scopes have sums of: in steps, and from the first kernel on. The first is that of
// the active interval if there are steps.
const (
	inSteps = iota
	sinceKernel
	numPeriods
)

// scopeTime is the time and the operations of one path, without those below.
type scopeTime struct {
	path []string
	sums [numPeriods]ownTime
}

type ownTime struct {
	Parts
	operations, launches, late int64
	queue                      histogram
}

// scopeTimes are the times of the scopes of a device in an interval.
type scopeTimes struct {
	all    map[string]*scopeTime // by path
	byPath map[int32]*scopeTime
	// owner is the scope that owns the time of each class, nil for that of the interval before. Such time is
	// in carried.
	owner   [numClasses]*scopeTime
	carried [numPeriods][numClasses]int64
}

// of returns the time of a path, that of all others if there are too many.
func (x *scopeTimes) of(path []string) *scopeTime {
	key := strings.Join(path, "\x00")
	t := x.all[key]
	if t == nil && len(x.all) >= maxGroups {
		path, key = []string{otherName}, otherName
		t = x.all[key]
	}
	if t == nil {
		t = &scopeTime{path: path}
		if x.all == nil {
			x.all = map[string]*scopeTime{}
		}
		x.all[key] = t
	}
	return t
}

// scopeOf returns the time of the scope of an operation.
func (p *profiler) scopeOf(d *device, row *store.OpRow) *scopeTime {
	if d.groups == nil {
		d.groups = newGroups()
	}
	x := &d.groups.times
	path := p.paths.of(&row.PlaceRef)
	t := x.byPath[path]
	if t == nil {
		t = x.of(p.paths.names(path))
		if x.byPath == nil {
			x.byPath = map[int32]*scopeTime{}
		}
		x.byPath[path] = t
	}
	return t
}

// period says in which periods the present time of a device is.
func (d *device) period() [numPeriods]bool {
	return [...]bool{inSteps: d.steps.open != nil, sinceKernel: d.started}
}

// own adds busy time of a class to the scope that owns it.
func (d *device) own(c class, ns int64) {
	if d.groups == nil {
		return
	}
	if d.owned != nil {
		d.owned.busy(d, c, ns)
	}
	x := &d.groups.times
	for i, in := range d.period() {
		switch {
		case !in:
		case x.owner[c] == nil:
			x.carried[i][c] += ns
		default:
			x.owner[c].sums[i].busy(c, ns)
		}
	}
}

func (p *Parts) busy(c class, ns int64) {
	p.WallNs += ns
	switch c {
	case classCompute:
		p.ComputeNs += ns
	case classCommunication:
		p.CommunicationNs += ns
	default:
		p.CopyNs += ns
	}
}

// ownIdle adds idle time to the scope of the operation that ends it.
func (d *device) ownIdle(t *scopeTime, idle *CauseSums) {
	for i, in := range d.period() {
		if !in {
			continue
		}
		t.sums[i].addIdle(idle)
	}
}

// addIdle adds idle time, except that in which nothing was to do.
func (p *Parts) addIdle(idle *CauseSums) {
	for c, ns := range idle {
		if Cause(c) != NothingQueued {
			p.Idle[c] += ns
			p.IdleNs += ns
			p.WallNs += ns
		}
	}
}

// count adds an operation that has started.
func (t *scopeTime) count(d *device, w *work) {
	for i, in := range d.period() {
		if !in {
			continue
		}
		x := &t.sums[i]
		x.operations++
		if w.launched {
			x.launches++
		}
		if w.late {
			x.late++
		}
		if w.queueNs.OK {
			x.queue.add(w.queueNs.V)
		}
	}
}

func (t *scopeTime) add(o *scopeTime) {
	for i := range t.sums {
		x, y := &t.sums[i], &o.sums[i]
		x.Parts = x.plus(&y.Parts)
		x.operations += y.operations
		x.launches += y.launches
		x.late += y.late
		x.queue.merge(y.queue)
	}
}

// merge adds the times of the interval that follows.
func (x *scopeTimes) merge(o *scopeTimes) {
	for i := range o.carried {
		for c, ns := range o.carried[i] {
			if x.owner[c] == nil {
				x.carried[i][c] += ns
			} else {
				x.owner[c].sums[i].busy(class(c), ns)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(o.all)) {
		x.of(o.all[key].path).add(o.all[key])
	}
	for c, t := range o.owner {
		if t != nil {
			x.owner[c] = x.of(t.path)
		}
	}
}

// result returns the scopes, each before those below it, the ones with the most time first.
func (x *scopeTimes) result(period int) []ScopeTime {
	type node struct {
		scopeTime
		self  int64
		below []*node
	}
	top := &node{}
	nodes := map[string]*node{}
	var find func(path []string) *node
	find = func(path []string) *node {
		key := strings.Join(path, "\x00")
		n := nodes[key]
		if n == nil {
			n = &node{scopeTime: scopeTime{path: path}}
			nodes[key] = n
			above := top
			if len(path) > 1 {
				above = find(path[:len(path)-1])
			}
			above.below = append(above.below, n)
		}
		return n
	}
	for _, key := range slices.Sorted(maps.Keys(x.all)) {
		n := find(x.all[key].path)
		n.add(x.all[key])
		n.self = n.sums[period].WallNs
	}
	for c, ns := range x.carried[period] { // of operations before the interval
		if ns > 0 {
			n := find(nil)
			n.sums[period].busy(class(c), ns)
			n.self += ns
		}
	}
	list := []ScopeTime{}
	var total func(n *node)
	total = func(n *node) {
		for _, b := range n.below {
			total(b)
			n.add(&b.scopeTime)
		}
		slices.SortStableFunc(n.below, func(a, b *node) int {
			return cmp.Compare(b.sums[period].WallNs, a.sums[period].WallNs)
		})
	}
	total(top)
	var add func(n *node)
	add = func(n *node) {
		s := &n.sums[period]
		if s.operations == 0 && s.WallNs == 0 {
			return
		}
		list = append(list, ScopeTime{
			Path: n.path, Parts: s.Parts, SelfNs: n.self, Bound: s.bound(),
			Operations: s.operations, Launches: s.launches, Late: s.late, QueueP50Ns: s.queue.quantile(50),
		})
		for _, b := range n.below {
			add(b)
		}
	}
	for _, n := range top.below {
		add(n)
	}
	return list
}

// missingTimes removes the causes of idle time, which are not known if work is missing.
func missingTimes(list []ScopeTime) {
	for i := range list {
		x := &list[i]
		x.Idle = CauseSums{Unknown: x.IdleNs}
		x.Bound = BoundUnknown
	}
}

func (c *codec) scopeTimes(x *scopeTimes) {
	var list []*scopeTime
	if !c.reads() {
		for _, key := range slices.Sorted(maps.Keys(x.all)) {
			list = append(list, x.all[key])
		}
	}
	elements(c, &list, func(p **scopeTime) {
		if c.reads() {
			*p = &scopeTime{}
		}
		t := *p
		elements(c, &t.path, c.text)
		for i := range t.sums {
			s := &t.sums[i]
			c.parts(&s.Parts)
			c.ints(&s.operations, &s.launches, &s.late)
			c.histogram(&s.queue)
		}
		if c.reads() {
			x.of(t.path).add(t)
		}
	})
	for i := range x.carried {
		for j := range x.carried[i] {
			c.ints(&x.carried[i][j])
		}
	}
	for i := range x.owner {
		owned := x.owner[i] != nil
		c.bools(&owned)
		if !owned {
			continue
		}
		var path []string
		if !c.reads() {
			path = x.owner[i].path
		}
		elements(c, &path, c.text)
		if c.reads() {
			x.owner[i] = x.of(path)
		}
	}
}
