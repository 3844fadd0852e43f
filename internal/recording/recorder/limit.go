// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"cmp"
	"slices"
	"time"
)

// maxRounds is three times the number of rounds that a million candidates need on average.
const maxRounds = 64

// bucket is a token bucket with a capacity of one second.
type bucket struct {
	rate, tokens float64
	at           time.Time
}

func newBucket(rate int, now time.Time) bucket {
	r := float64(max(rate, 0))
	return bucket{rate: r, tokens: r, at: now}
}

// available returns the number of tokens at a time.
func (b *bucket) available(now time.Time) int {
	if d := now.Sub(b.at); d > 0 {
		b.tokens = min(b.rate, b.tokens+b.rate*d.Seconds())
		b.at = now
	}
	return int(b.tokens)
}

func (b *bucket) take(n int) { b.tokens -= float64(n) }

// candidate is one operation that may have a span.
type candidate struct {
	ns    int64
	scope *scope
	// index is the index of the record in its buffer. group is its kernel name or operation: groups
	// share the spans fairly.
	index, group uint32
	buffer       uint16
	op           operation
	device       uint8
	chosen       bool
}

// chooser selects the candidates that have a span when the limit is exceeded. It reuses its memory.
type chooser struct {
	order   []uint32
	counts  []uint32 // by group
	quota   []uint32 // by group
	seen    []uint32 // by group
	touched []uint32
}

// choose marks at most budget candidates and returns their number. Half of them are the longest.
// The rest is shared among groups by max-min fairness, and evenly over the order within a group.
// The same candidates give the same selection.
func (c *chooser) choose(all []candidate, groups, budget int) int {
	budget = max(budget, 0)
	if len(all) <= budget {
		for i := range all {
			all[i].chosen = true
		}
		return len(all)
	}
	longest := budget / 2
	if longest > 0 {
		c.order = c.order[:0]
		for i := range all {
			c.order = append(c.order, uint32(i))
		}
		selectLongest(all, c.order, longest, maxRounds)
		for _, i := range c.order[:longest] {
			all[i].chosen = true
		}
	}
	rest := budget - longest
	if rest == 0 {
		return longest
	}
	c.counts, c.quota, c.seen = atLeast(c.counts, groups), atLeast(c.quota, groups), atLeast(c.seen, groups)
	c.touched = c.touched[:0]
	for i := range all {
		if a := &all[i]; !a.chosen {
			if c.counts[a.group] == 0 {
				c.touched = append(c.touched, a.group)
			}
			c.counts[a.group]++
		}
	}
	// Serve the smallest groups first: each gets all its candidates, or an equal share of the rest.
	slices.SortFunc(c.touched, func(a, b uint32) int {
		return cmp.Or(cmp.Compare(c.counts[a], c.counts[b]), cmp.Compare(a, b))
	})
	left := rest
	for i, g := range c.touched {
		c.quota[g] = min(c.counts[g], uint32(left/(len(c.touched)-i)))
		left -= int(c.quota[g])
	}
	for i := range all {
		a := &all[i]
		if a.chosen {
			continue
		}
		// Select the k-th of n candidates if k·quota/n increases there.
		g := a.group
		k, n, q := uint64(c.seen[g]), uint64(c.counts[g]), uint64(c.quota[g])
		c.seen[g]++
		a.chosen = (k+1)*q/n > k*q/n
	}
	for _, g := range c.touched {
		c.counts[g], c.quota[g], c.seen[g] = 0, 0, 0
	}
	return budget - left
}

func atLeast(s []uint32, n int) []uint32 {
	if len(s) < n {
		return append(s, make([]uint32, n-len(s))...)
	}
	return s
}

// selectLongest moves the n longest to the front of order. It uses quickselect with the median of
// three. Positions break ties, so that no two candidates are equal. After rounds iterations it
// sorts the rest, which bounds the worst case.
func selectLongest(all []candidate, order []uint32, n, limit int) {
	before := func(a, b uint32) bool {
		if all[a].ns != all[b].ns {
			return all[a].ns > all[b].ns
		}
		return a < b
	}
	lo, hi := 0, len(order)-1
	for rounds := 0; lo < hi; rounds++ {
		if rounds == limit {
			slices.SortFunc(order[lo:hi+1], func(a, b uint32) int {
				return cmp.Or(cmp.Compare(all[b].ns, all[a].ns), cmp.Compare(a, b))
			})
			return
		}
		mid := lo + (hi-lo)/2
		if before(order[mid], order[lo]) {
			order[mid], order[lo] = order[lo], order[mid]
		}
		if before(order[hi], order[lo]) {
			order[hi], order[lo] = order[lo], order[hi]
		}
		if before(order[hi], order[mid]) {
			order[hi], order[mid] = order[mid], order[hi]
		}
		pivot := order[mid]
		i, j := lo, hi
		for i <= j {
			for before(order[i], pivot) {
				i++
			}
			for before(pivot, order[j]) {
				j--
			}
			if i <= j {
				order[i], order[j] = order[j], order[i]
				i, j = i+1, j-1
			}
		}
		switch {
		case n-1 <= j:
			hi = j
		case n-1 >= i:
			lo = i
		default:
			return
		}
	}
}
