// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"cmp"
	"slices"

	"github.com/gpuflight/gpuflight/internal/analysis"
)

const (
	// maxOffsetNs is the largest offset of two clocks that is searched. It is less for ranks with over
	// 60,000 collectives in two minutes, because maxVotes bounds the differences that are compared.
	maxOffsetNs = 60_000_000_000
	maxVotes    = 2_000_000
	// maxNear bounds the collectives that are compared with one of the other rank.
	maxNear = 1000
	// seedSize is the number of collectives whose times are compared with all of the other rank.
	seedSize = 128
	// seedNs bounds their duration, because the clocks drift.
	seedNs = 20_000_000_000
	// minSeed is the number of collectives below which times say nothing about which belong together.
	minSeed = 8
	// seedShare is the share of the seed that must agree on one offset.
	seedShare = 0.75
	// rivalShare is the share of the agreeing ones from which another offset is compared.
	rivalShare = 0.8
	// clearSpread is how many times the spread of the best offset makes another one worse for certain,
	// and equalSpread the times up to which they are equal.
	clearSpread   = 1.5
	equalSpread   = 1.1
	maxCandidates = 1000
	// maxDrift is the largest rate of two clocks against each other while collectives are matched.
	maxDrift = 200e-6
	// lostAfter is the number of collectives in a row without a partner after which the offset is
	// searched again: a clock was set, or one rank paused.
	lostAfter = 32
	// maxSeeds bounds how often.
	maxSeeds = 64
	// recentPairs is the number of matches whose median is the offset.
	recentPairs = 9
	// leaveNs is the least difference of the times at which two ranks leave that is tolerated, and
	// spreads the multiple of what is usual.
	leaveNs = 20_000
	spreads = 8
	// wideNs is the spread from which a match is uncertain.
	wideNs = 1_000_000
	// groupPairs is the number of pairs that are tested together, and minTogether the share of the groups
	// that must pass if two ranks take part in the same collectives.
	groupPairs  = 32
	minTogether = 0.75
)

// tolerances are how far the times at which two ranks leave one collective may be apart. The smallest
// that suffices counts.
var tolerances = [...]int64{20_000, 100_000, 500_000, 2_000_000, 10_000_000}

// match is which collectives of two ranks belong together.
type match struct {
	// partner has for each collective of the first rank the index of that of the second, or -1.
	partner []int
	pairs   int
	// uncertain says why the match is in doubt, "" if it is not.
	uncertain string
	// together is the share of the groups of pairs in which one offset of the clocks lets both ranks be
	// inside each collective at one time.
	together float64
}

// pair finds which collectives of two ranks belong together: the n-th with the n-th, where the times
// at which they leave say which is the n-th. Ranks leave a collective at nearly the same time. So the
// true offset of the clocks is the one on which most differences of the times agree. A rank that misses
// some collectives does not shift those that follow.
func pair(a, b []Collective) match {
	m := matcher{a: a, b: b, partner: make([]int, len(a)), slack: leaveNs}
	for i := range m.partner {
		m.partner[i] = -1
	}
	if min(len(a), len(b)) < minSeed {
		m.byNumber("too few collectives to compare their times")
	} else {
		m.run(span{0, len(a), 0, len(b)})
		if !slices.ContainsFunc(m.partner, func(j int) bool { return j >= 0 }) {
			m.byNumber("the times of the collectives do not agree")
		}
	}
	m.fill()
	return m.result()
}

// result drops pairs that do not overlap in time: they do not belong together. Then it tests in small
// groups of pairs whether one offset of the clocks lets all overlap.
func (m *matcher) result() match {
	out := match{partner: m.partner, uncertain: m.uncertain}
	var recent []int64
	groups, together := 0, 0
	var low, high, first int64
	n := 0
	end := func() {
		if n > 0 {
			groups++
			if low <= high {
				together++
			}
		}
		n = 0
	}
	for i, j := range m.partner {
		if j < 0 {
			continue
		}
		x, y := &m.a[i], &m.b[j]
		recent = append(recent, y.EndNs-x.EndNs)
		if len(recent) > recentPairs {
			recent = recent[1:]
		}
		offset := median(recent)
		gap := max(x.StartNs+offset-y.EndNs, y.StartNs-x.EndNs-offset)
		if x.Kind.synchronises() && gap > m.slack {
			m.partner[i] = -1
			continue
		}
		out.pairs++
		if !x.Kind.synchronises() {
			continue
		}
		if n == 0 {
			low, high, first = -unbounded, unbounded, y.EndNs
		}
		slack := 2*noiseNs + int64(maxDrift*float64(y.EndNs-first))
		low, high = max(low, y.StartNs-x.EndNs-slack), min(high, y.EndNs-x.StartNs+slack)
		if n++; n == groupPairs {
			end()
		}
	}
	end()
	if out.together = 1; groups > 0 {
		out.together = float64(together) / float64(groups)
	}
	return out
}

type matcher struct {
	a, b      []Collective
	partner   []int // of a
	uncertain string
	slack     int64 // tolerated difference of the times at which ranks leave
}

func median(list []int64) int64 {
	sorted := slices.Clone(list)
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}

// byNumber matches the n-th with the n-th if all names agree.
func (m *matcher) byNumber(why string) {
	m.uncertain = why
	if len(m.a) != len(m.b) {
		return
	}
	for i := range m.a {
		if m.a[i].Name != m.b[i].Name {
			return
		}
	}
	for i := range m.a {
		m.partner[i] = i
	}
	m.slack = unbounded
}

// span is a part of both sequences.
type span struct{ lowA, highA, lowB, highB int }

// run matches a part, in pieces between which the offset is lost.
func (m *matcher) run(all span) {
	todo := []span{all}
	for n := 0; len(todo) > 0 && n < maxSeeds; n++ {
		r := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if r.highA-r.lowA < minSeed || r.highB-r.lowB < minSeed {
			continue
		}
		s, ok := m.seed(r)
		if !ok {
			continue
		}
		if s.rival && m.uncertain == "" {
			m.uncertain = "the collectives repeat so regularly that several offsets of the clocks fit"
		}
		if s.spread > wideNs && m.uncertain == "" {
			m.uncertain = "the times at which the ranks leave differ by " + analysis.Duration(s.spread)
		}
		m.slack = max(m.slack, spreads*s.spread)
		first, endA, endB := m.forward(s, r)
		if first < 0 {
			continue
		}
		startA, startB := m.backward(s, span{r.lowA, first, r.lowB, s.at})
		todo = append(todo, span{r.lowA, startA, r.lowB, startB}, span{endA, r.highA, endB, r.highB})
	}
}

// seed is collectives of b that agree on an offset.
type seed struct {
	at        int  // index in b of the first one
	offset    line // time of b minus time of a
	tolerance int64
	spread    int64
	rival     bool
}

// seed finds the offset on which most of some collectives of b agree with those of a.
func (m *matcher) seed(r span) (best seed, ok bool) {
	n := min(seedSize, r.highB-r.lowB)
	for n > 2*minSeed && m.b[r.lowB+n-1].EndNs-m.b[r.lowB].EndNs > seedNs {
		n--
	}
	reach := int64(maxOffsetNs)
	middle := m.b[(r.lowB+r.highB)/2].EndNs
	within := func() int {
		low, _ := slices.BinarySearchFunc(m.a, middle-reach, byEnd)
		high, _ := slices.BinarySearchFunc(m.a, middle+reach, byEnd)
		return high - low
	}
	n = max(min(n, maxVotes/max(1, within())), min(n, 4*minSeed))
	for reach > 0 && within()*n > maxVotes {
		reach /= 2
	}
	free := r.highB - r.lowB - n
	bestShare := 0.0
	for _, at := range [...]int{free / 2, 0, free, free / 4, free * 3 / 4} {
		s, share := m.vote(r, r.lowB+at, r.lowB+at+n, reach)
		if share > bestShare {
			best, bestShare = s, share
		}
		if share >= 0.9 {
			break
		}
	}
	return best, bestShare >= seedShare
}

// vote is the difference of the times at which a collective of b and one of a end.
type vote struct {
	diff int64
	j    int // index in b
	i    int // index in a
}

func byEnd(c Collective, t int64) int { return cmp.Compare(c.EndNs, t) }

// vote compares b[from:to] with the part of a that ends at most reach before or after it.
func (m *matcher) vote(r span, from, to int, reach int64) (s seed, share float64) {
	var votes []vote
	a := m.a[r.lowA:r.highA]
	for j := from; j < to; j++ {
		x := &m.b[j]
		k, _ := slices.BinarySearchFunc(a, x.EndNs-reach, byEnd)
		for ; k < len(a) && a[k].EndNs <= x.EndNs+reach && len(votes) < 2*maxVotes; k++ {
			if a[k].Name == x.Name {
				votes = append(votes, vote{x.EndNs - a[k].EndNs, j, k + r.lowA})
			}
		}
	}
	slices.SortFunc(votes, func(x, y vote) int { return cmp.Or(cmp.Compare(x.diff, y.diff), cmp.Compare(x.j, y.j)) })
	counts := make([]int, len(votes))
	for n, tolerance := range tolerances {
		top, end := 0, 0
		for k := range votes { // counts has the votes from k within the tolerance
			for end < len(votes) && votes[end].diff-votes[k].diff <= tolerance {
				end++
			}
			counts[k] = end - k
			top = max(top, counts[k])
		}
		share = min(1, float64(top)/float64(to-from))
		if share >= seedShare || n == len(tolerances)-1 {
			return choose(votes, counts, top, seed{at: from, tolerance: tolerance}, func(j int) int64 { return m.b[j].EndNs }), share
		}
	}
	return s, 0
}

// choose returns the best of the offsets that have nearly the most votes: the one from which the
// differences deviate the least. If the steps of a program are as regular as the times at which ranks
// leave, several are as good. Of these, the one that matches equal numbers counts, then the smallest.
// Ends returns when a collective of b ends.
func choose(votes []vote, counts []int, top int, s seed, ends func(j int) int64) seed {
	type candidate struct {
		offset  line
		middle  int64
		spread  int64
		unequal bool
	}
	var list []candidate
	for k := 0; k < len(votes) && top > 0; {
		if float64(counts[k]) < rivalShare*float64(top) {
			k++
			continue
		}
		// The peak is the largest count within the tolerance from here.
		peak := k
		for k < len(votes) && votes[k].diff-votes[peak].diff <= 2*s.tolerance {
			k++
		}
		for n := peak; n < k; n++ {
			if counts[n] > counts[peak] {
				peak = n
			}
		}
		part := votes[peak : peak+counts[peak]]
		c := candidate{middle: part[len(part)/2].diff, unequal: part[len(part)/2].i != part[len(part)/2].j}
		points := make([]residual, len(part))
		for n, v := range part {
			points[n] = residual{ends(v.j), v.diff}
		}
		c.offset, c.spread = spread(points)
		if len(list) < maxCandidates {
			list = append(list, c)
		}
	}
	if len(list) == 0 {
		return s
	}
	least := slices.MinFunc(list, func(x, y candidate) int { return cmp.Compare(x.spread, y.spread) }).spread
	near := 0
	for _, c := range list {
		if float64(c.spread) <= clearSpread*float64(least) {
			near++
		}
	}
	s.rival = near > 1
	list = slices.DeleteFunc(list, func(c candidate) bool { return float64(c.spread) > equalSpread*float64(least) })
	best := slices.MinFunc(list, func(x, y candidate) int {
		number := func(unequal bool) int {
			if unequal {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(number(x.unequal), number(y.unequal)), cmp.Compare(max(x.middle, -x.middle), max(y.middle, -y.middle)))
	})
	s.offset, s.spread = best.offset, best.spread
	return s
}

// follower is the offset of two clocks as it changes from match to match: a line, and the median of the
// last deviations from it.
type follower struct {
	line      line
	rests     []int64
	lastNs    int64
	started   bool
	tolerance int64
}

func newFollower(s seed) *follower {
	return &follower{line: s.offset, tolerance: max(spreads*s.spread, leaveNs)}
}

func (f *follower) offset(t int64) int64 {
	if len(f.rests) == 0 {
		return f.line.value(t)
	}
	return f.line.value(t) + median(f.rests)
}

func (f *follower) add(t, offset int64) {
	f.rests = append(f.rests, offset-f.line.value(t))
	if len(f.rests) > recentPairs {
		f.rests = f.rests[1:]
	}
	f.lastNs, f.started = t, true
}

func (m *matcher) follow(f *follower, j, low, high int) (i int) {
	x := &m.b[j]
	tolerance := f.tolerance
	if f.started {
		tolerance += int64(maxDrift * float64(max(x.EndNs-f.lastNs, f.lastNs-x.EndNs)))
	}
	i = m.nearest(x.EndNs-f.offset(x.EndNs), tolerance, x.Name, low, high)
	if i < 0 {
		return i
	}
	m.partner[i] = j
	f.add(x.EndNs, x.EndNs-m.a[i].EndNs)
	return i
}

// forward matches from the seed on, until the end or until the offset is lost. It returns the index of
// a of the first match, -1 if there is none, and those after the last one.
func (m *matcher) forward(s seed, r span) (first, endA, endB int) {
	f := newFollower(s)
	first, endA, endB = -1, r.lowA, s.at
	lost := 0
	for j := s.at; j < r.highB && lost < lostAfter; j++ {
		i := m.follow(f, j, endA, r.highA)
		if i < 0 {
			lost++
			continue
		}
		if first < 0 {
			first = i
		}
		lost, endA, endB = 0, i+1, j+1
	}
	return first, endA, endB
}

// backward matches from before the seed to the begin, or until the offset is lost. It returns the
// indices of the last match, which is the earliest.
func (m *matcher) backward(s seed, r span) (startA, startB int) {
	f := newFollower(s)
	startA, startB = r.highA, r.highB
	lost := 0
	for j := r.highB - 1; j >= r.lowB && lost < lostAfter; j-- {
		i := m.follow(f, j, r.lowA, startA)
		if i < 0 {
			lost++
			continue
		}
		lost, startA, startB = 0, i, j
	}
	return startA, startB
}

// nearest returns the collective of a[low:high] with the name that leaves nearest to t, or -1.
func (m *matcher) nearest(t, tolerance int64, name string, low, high int) int {
	if low >= high {
		return -1
	}
	a := m.a[low:high]
	k, _ := slices.BinarySearchFunc(a, t-tolerance, byEnd)
	best, bestDistance := -1, tolerance+1
	for end := min(len(a), k+maxNear); k < end && a[k].EndNs <= t+tolerance; k++ {
		if d := max(a[k].EndNs-t, t-a[k].EndNs); a[k].Name == name && d < bestDistance {
			best, bestDistance = low+k, d
		}
	}
	return best
}

// fill matches by number between two matches that have equally many collectives of equal names between
// them, if those overlap in time. One rank can have left much later than the other.
func (m *matcher) fill() {
	last := -1
	for i, j := range m.partner {
		if j < 0 {
			continue
		}
		if last >= 0 && i-last > 1 && i-last == j-m.partner[last] {
			equal := true
			offset := m.b[m.partner[last]].EndNs - m.a[last].EndNs
			for k := 1; k < i-last; k++ {
				x, y := &m.a[last+k], &m.b[m.partner[last]+k]
				inside := common(x.StartNs+offset, x.EndNs+offset, y.StartNs, y.EndNs)
				equal = equal && x.Name == y.Name && 2*inside >= min(x.EndNs-x.StartNs, y.EndNs-y.StartNs)
			}
			for k := 1; equal && k < i-last; k++ {
				m.partner[last+k] = m.partner[last] + k
			}
		}
		last = i
	}
}
