// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpuflight/gpuflight/internal/analysis"
)

const (
	// maxRateChange is by how much the rate of two clocks against each other may differ from its mean
	// over the interval. The mean itself is measured. Quartz changes by less than 5e-6 with its
	// temperature; NTP corrects small offsets at such rates.
	maxRateChange = 50e-6
	// maxRate bounds the mean rate.
	maxRate = 1e-3
	// noiseNs is the error of one time of a device.
	noiseNs = 1000
	// sameHostNs is the largest offset of two sessions on one host, which have the same clock. Each
	// relates the clock of its device to that of the host with an error. The collectives can refute it.
	sameHostNs = 200_000
	// knotWork bounds the number of steps of the shortest paths of all knots.
	knotWork = 200_000_000
	maxKnots = 4000
	// knotReach is the number of knots on each side whose bounds a knot uses.
	knotReach = 64

	unbounded = int64(1) << 61
)

// meeting is a collective that synchronises: no rank leaves before the last one has entered.
type meeting struct{ parts []visit }

// visit is when one rank was inside, by its clock.
type visit struct {
	rank       int
	start, end int64
}

// line is an offset that changes at a constant rate.
type line struct {
	at, offset int64
	rate       float64
}

// value returns the offset at a time of the clock itself, ofRoot at a time of the root.
func (l *line) value(t int64) int64  { return l.offset + int64(l.rate*float64(t-l.at)) }
func (l *line) ofRoot(t int64) int64 { return l.value(t + l.value(t)) }

// clocks has the offset of each clock to that of its root: the rank with the lowest number that
// collectives connect it with. The offset is a line plus a small rest. The rests are known at knots.
type clocks struct {
	n        int
	root     []int
	lines    []line
	knots    []knot
	problems []string
}

// knot is a time at which the rests are computed.
type knot struct {
	t int64
	// bound[p*n+q] is the largest possible difference of the rests of p and q.
	bound []int64
	rest  []int64
	// feasible is false if the bounds contradict each other. They are then not valid.
	feasible bool
	// p and q are then ranks whose bounds contradict each other the most, by wrongNs.
	p, q    int
	wrongNs int64
}

// residual is the difference of the times at which a rank and its parent in the tree left.
type residual struct{ t, ns int64 }

// align computes the offsets of n clocks. Hosts are equal for ranks on one host, "" if unknown.
func align(n int, meetings []meeting, hosts []string, name func(int) string) *clocks {
	c := &clocks{n: n, root: make([]int, n), lines: make([]line, n)}
	residuals, parents, order := c.fit(meetings)
	type timed struct {
		t     int64
		parts []visit
	}
	list := make([]timed, 0, len(meetings))
	for i := range meetings {
		x := timed{parts: make([]visit, len(meetings[i].parts))}
		for k, v := range meetings[i].parts {
			l := &c.lines[v.rank]
			x.parts[k] = visit{v.rank, v.start - l.value(v.start), v.end - l.value(v.end)}
			x.t = max(x.t, x.parts[k].end)
		}
		list = append(list, x)
	}
	if len(list) == 0 {
		return c
	}
	slices.SortStableFunc(list, func(a, b timed) int { return cmp.Compare(a.t, b.t) })
	count := min(len(list), max(16, min(maxKnots, knotWork/(n*n*n))))
	direct := make([][]int64, count) // the bounds of the collectives of a knot
	c.knots = make([]knot, count)
	for k := range c.knots {
		part := list[k*len(list)/count : (k+1)*len(list)/count]
		c.knots[k].t = part[len(part)/2].t
		direct[k] = filled(n*n, unbounded)
		for i := range part {
			x := &part[i]
			var longest int64
			for _, v := range x.parts {
				longest = max(longest, v.end-v.start)
			}
			slack := 2*noiseNs + change(x.t-c.knots[k].t) + change(longest)
			for _, p := range x.parts {
				for _, q := range x.parts {
					if p.rank != q.rank {
						b := &direct[k][p.rank*n+q.rank]
						*b = min(*b, p.end-q.start+slack)
					}
				}
			}
		}
	}
	c.solve(direct, hosts)
	if wrong := c.infeasible(); wrong > 0 && hosts != nil {
		c.solve(direct, nil)
		if c.infeasible() < wrong {
			c.problems = append(c.problems, "Ranks that state the same host do not have the same clock. It is not assumed.")
		} else {
			c.solve(direct, hosts)
		}
	}
	c.report(name)
	for k := range c.knots {
		c.estimate(&c.knots[k], residuals, parents, order)
	}
	return c
}

func filled(n int, v int64) []int64 {
	list := make([]int64, n)
	for i := range list {
		list[i] = v
	}
	return list
}

func change(ns int64) int64 { return int64(maxRateChange * float64(max(ns, -ns))) }

// fit finds the line of each clock from the times at which ranks leave. The parents form a tree of the
// ranks that share the most collectives. The order has parents before their children.
func (c *clocks) fit(meetings []meeting) (residuals [][]residual, parents, order []int) {
	shared := make([]int, c.n*c.n)
	for i := range meetings {
		for _, p := range meetings[i].parts {
			for _, q := range meetings[i].parts {
				shared[p.rank*c.n+q.rank]++
			}
		}
	}
	residuals, parents = make([][]residual, c.n), make([]int, c.n)
	done := make([]bool, c.n)
	for len(order) < c.n {
		child, parent := -1, -1
		for p := range c.n {
			for q := range c.n {
				if done[p] && !done[q] && shared[p*c.n+q] > 0 && (child < 0 || shared[p*c.n+q] > shared[parent*c.n+child]) {
					parent, child = p, q
				}
			}
		}
		if child < 0 {
			child = slices.Index(done, false)
			c.root[child], parents[child] = child, -1
		} else {
			c.root[child], parents[child] = c.root[parent], parent
			residuals[child] = c.fitOne(meetings, parent, child)
		}
		done[child] = true
		order = append(order, child)
	}
	return residuals, parents, order
}

func (c *clocks) fitOne(meetings []meeting, parent, child int) []residual {
	var list []residual
	for i := range meetings {
		var p, q *visit
		for k := range meetings[i].parts {
			switch v := &meetings[i].parts[k]; v.rank {
			case parent:
				p = v
			case child:
				q = v
			}
		}
		if p != nil && q != nil {
			list = append(list, residual{q.end, q.end - (p.end - c.lines[parent].value(p.end))})
		}
	}
	slices.SortFunc(list, func(a, b residual) int { return cmp.Or(cmp.Compare(a.t, b.t), cmp.Compare(a.ns, b.ns)) })
	l := lineOf(list)
	for i := range list {
		list[i].ns -= l.value(list[i].t)
		list[i].t -= l.value(list[i].t) // on the root's clock
	}
	c.lines[child] = l
	return list
}

// lineOf returns the line through points by time. The rate is the median of those of pairs that are an
// eighth apart: a clock that was set changes few of them.
func lineOf(list []residual) line {
	l := line{at: list[0].t}
	if apart := max(1, len(list)/8); len(list) >= minSeed {
		var rates []float64
		for i := 0; i+apart < len(list); i++ {
			if dt := list[i+apart].t - list[i].t; dt > 0 {
				rates = append(rates, float64(list[i+apart].ns-list[i].ns)/float64(dt))
			}
		}
		if len(rates) > 0 {
			slices.Sort(rates)
			l.rate = min(max(rates[len(rates)/2], -maxRate), maxRate)
		}
	}
	rests := make([]int64, len(list))
	for i := range list {
		rests[i] = list[i].ns - l.value(list[i].t)
	}
	l.offset = median(rests)
	return l
}

// spread returns the line of points, and how far they deviate from it: the distance that four in five do
// not exceed.
func spread(list []residual) (line, int64) {
	slices.SortFunc(list, func(a, b residual) int { return cmp.Or(cmp.Compare(a.t, b.t), cmp.Compare(a.ns, b.ns)) })
	l := lineOf(list)
	distances := make([]int64, len(list))
	for i, r := range list {
		d := r.ns - l.value(r.t)
		distances[i] = max(d, -d)
	}
	slices.Sort(distances)
	return l, distances[len(distances)*4/5]
}

// solve computes the bounds of all knots: those of the collectives near it, and of paths over other
// ranks (Floyd and Warshall).
func (c *clocks) solve(direct [][]int64, hosts []string) {
	n := c.n
	for k := range c.knots {
		x := &c.knots[k]
		x.wrongNs = 0
		x.bound = slices.Clone(direct[k])
		for j := max(0, k-knotReach); j <= min(len(c.knots)-1, k+knotReach); j++ {
			slack := change(c.knots[j].t - x.t)
			for i, b := range direct[j] {
				x.bound[i] = min(x.bound[i], b+slack)
			}
		}
		for p := range n {
			for q := range n {
				if p != q && hosts != nil && hosts[p] != "" && hosts[p] == hosts[q] && c.root[p] == c.root[q] {
					x.bound[p*n+q] = min(x.bound[p*n+q], sameHostNs-c.lines[p].ofRoot(x.t)+c.lines[q].ofRoot(x.t))
				}
			}
			x.bound[p*n+p] = 0
		}
		x.shortest(n)
	}
}

// shortest replaces each bound by that of the shortest path. It stops at a contradiction: a path from a
// rank to itself that is negative.
func (x *knot) shortest(n int) {
	x.feasible = true
	for p := range n {
		for q := range p {
			if sum := x.bound[p*n+q] + x.bound[q*n+p]; sum < -x.wrongNs {
				x.feasible, x.p, x.q, x.wrongNs = false, q, p, -sum
			}
		}
	}
	for via := 0; via < n && x.feasible; via++ {
		for p := range n {
			first := x.bound[p*n+via]
			if first >= unbounded {
				continue
			}
			for q := range n {
				x.bound[p*n+q] = min(x.bound[p*n+q], first+x.bound[via*n+q])
			}
		}
		for p := range n {
			if wrong := -x.bound[p*n+p]; wrong > x.wrongNs {
				x.feasible, x.p, x.q, x.wrongNs = false, p, via, wrong
			}
		}
	}
}

func (c *clocks) infeasible() (n int) {
	for k := range c.knots {
		if !c.knots[k].feasible {
			n++
		}
	}
	return n
}

// estimate sets the rests of a knot: the times at which ranks leave, moved into the bounds.
func (c *clocks) estimate(x *knot, residuals [][]residual, parents, order []int) {
	n := c.n
	x.rest = make([]int64, n)
	for at, p := range order {
		if parents[p] < 0 {
			continue
		}
		list := residuals[p]
		i, _ := slices.BinarySearchFunc(list, x.t, func(r residual, t int64) int { return cmp.Compare(r.t, t) })
		low := max(0, min(i-recentPairs/2, len(list)-recentPairs))
		var near []int64
		for _, r := range list[low:min(len(list), low+recentPairs)] {
			near = append(near, r.ns)
		}
		x.rest[p] = x.rest[parents[p]] + median(near)
		if !x.feasible {
			continue
		}
		// The bounds are closed under paths, so values in turn can always be moved into them.
		low64, high64 := -unbounded, unbounded
		for _, q := range order[:at] {
			if c.root[q] == c.root[p] {
				low64 = max(low64, x.rest[q]-x.bound[q*n+p])
				high64 = min(high64, x.rest[q]+x.bound[p*n+q])
			}
		}
		x.rest[p] = min(max(x.rest[p], low64), high64)
	}
}

// near returns the knot that is nearest to t.
func (c *clocks) near(t int64) *knot {
	if len(c.knots) == 0 {
		return nil
	}
	i, _ := slices.BinarySearchFunc(c.knots, t, func(k knot, t int64) int { return cmp.Compare(k.t, t) })
	if i == len(c.knots) || i > 0 && t-c.knots[i-1].t < c.knots[i].t-t {
		i--
	}
	return &c.knots[i]
}

// aligned returns a time of a rank on the clock of its root.
func (c *clocks) aligned(p int, t int64) int64 {
	t -= c.lines[p].value(t)
	i, _ := slices.BinarySearchFunc(c.knots, t, func(k knot, t int64) int { return cmp.Compare(k.t, t) })
	switch {
	case len(c.knots) == 0:
		return t
	case i == 0:
		return t - c.knots[0].rest[p]
	case i == len(c.knots):
		return t - c.knots[i-1].rest[p]
	}
	a, b := &c.knots[i-1], &c.knots[i]
	part := float64(t-a.t) / float64(b.t-a.t)
	return t - a.rest[p] - int64(part*float64(b.rest[p]-a.rest[p]))
}

// between returns the bounds of how much later the time s of rank p is than the time t of rank q. Ok is
// false if nothing bounds it.
func (c *clocks) between(p int, s int64, q int, t int64) (low, high int64, ok bool) {
	s -= c.lines[p].value(s)
	t -= c.lines[q].value(t)
	k := c.near(s)
	if p == q || k == nil || !k.feasible || c.root[p] != c.root[q] {
		return 0, 0, false
	}
	slack := change(s-k.t) + change(t-s) + 2*noiseNs
	above, below := k.bound[p*c.n+q], k.bound[q*c.n+p] // rest p − rest q, and the reverse
	if above >= unbounded/2 || below >= unbounded/2 {
		return 0, 0, false
	}
	return s - t - above - slack, s - t + below + slack, true
}

// offset returns the offset of a clock at a time of its root, and its bounds.
func (c *clocks) offset(p int, t int64) (ns, low, high int64, bounded bool) {
	root := c.root[p]
	k := c.near(t)
	if k == nil || root == p {
		return 0, 0, 0, root == p
	}
	at, slack := c.lines[p].ofRoot(t), change(t-k.t)
	ns = at + k.rest[p]
	if !k.feasible || k.bound[p*c.n+root] >= unbounded/2 || k.bound[root*c.n+p] >= unbounded/2 {
		return ns, 0, 0, false
	}
	return ns, at - k.bound[root*c.n+p] - slack, at + k.bound[p*c.n+root] + slack, true
}

// report describes the knots whose bounds contradict each other.
func (c *clocks) report(name func(int) string) {
	var worst *knot
	for k := range c.knots {
		if x := &c.knots[k]; !x.feasible && (worst == nil || x.wrongNs > worst.wrongNs) {
			worst = x
		}
	}
	if worst == nil {
		return
	}
	c.problems = append(c.problems, fmt.Sprintf("In %d of %d parts of the run the collectives contradict each other, so offsets have no bounds there. "+
		"The largest contradiction is %s, between %s and %s. Either a clock was set, or collectives were matched that do not belong together.",
		c.infeasible(), len(c.knots), analysis.Duration(worst.wrongNs), name(worst.p), name(worst.q)))
}
