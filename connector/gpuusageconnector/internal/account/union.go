// SPDX-License-Identifier: Apache-2.0

package account

import (
	"encoding/binary"
	"slices"
	"sort"
)

// chunkMax is how many intervals lie in one piece of memory. An interval put in between moves half
// of them, 4 KiB; a hundred thousand intervals make two to four hundred pieces to search among.
const chunkMax = 512

const unionVersion = 1

type interval struct{ start, end int64 }

// Union measures the union of intervals that come in any order. Its memory is at most about 32
// bytes for each interval of its limit.
type Union struct {
	limit int
	// join is the longest silence that counts as covered: none in a plain union. Intervals that
	// touch are one in any case.
	join int64
	// chunks hold the intervals in ascending order, apart from each other; no chunk is empty.
	chunks [][]interval
	n      int
	total  int64
	// horizon is the end of the last interval that was forgotten.
	horizon int64
}

// NewUnion returns an empty union that remembers at most limit disjoint intervals, at least one.
func NewUnion(limit int) *Union { return &Union{limit: max(limit, 1)} }

// Add adds [start, end) and returns the nanoseconds that were not covered before. When there are
// more disjoint intervals than the limit, the oldest is forgotten, though not its measure; whether
// time before its end was covered can no longer be said. What lies there of a later interval adds
// nothing and is returned as lost. An interval that ends before or where it begins adds nothing,
// and no time before 1970 does.
func (u *Union) Add(start, end int64) (added, lost int64) {
	start = max(start, 0)
	if end <= start {
		return 0, 0
	}
	if start < u.horizon {
		if end <= u.horizon {
			return 0, end - start
		}
		lost, start = u.horizon-start, u.horizon
	}
	added = u.add(start, end)
	u.total += added
	return added, lost
}

// Total returns the measure of all that was added, in nanoseconds, that of forgotten intervals
// included.
func (u *Union) Total() int64 { return u.total }

// Len returns how many disjoint intervals are remembered.
func (u *Union) Len() int { return u.n }

func (u *Union) add(start, end int64) int64 {
	// Time moves on: nearly every interval follows the last one, or overlaps its end.
	last := u.last()
	if last == nil || start > plus(last.end, u.join) {
		u.append(interval{start, end})
		u.forget()
		return end - start
	}
	if start >= last.start {
		if end <= last.end {
			return 0
		}
		added := end - last.end
		last.end = end
		return added
	}

	// Of those that end where the new one can be joined or later, the first. The last interval is
	// one of them.
	ci, ii := u.search(start, u.join)
	at := &u.chunks[ci][ii]
	reach := plus(end, u.join)
	if at.start > reach {
		u.insert(ci, ii, interval{start, end})
		u.forget()
		return end - start
	}
	merged := interval{min(start, at.start), max(end, at.end)}
	covered := at.end - at.start
	more := 0
	for cj, ij := ci, ii+1; ; ij++ {
		if ij == len(u.chunks[cj]) {
			cj, ij = cj+1, 0
			if cj == len(u.chunks) {
				break
			}
		}
		next := u.chunks[cj][ij]
		if next.start > reach {
			break
		}
		merged.end = max(merged.end, next.end)
		covered += next.end - next.start
		more++
	}
	*at = merged
	u.remove(ci, ii+1, more)
	return merged.end - merged.start - covered
}

func (u *Union) last() *interval {
	if len(u.chunks) == 0 {
		return nil
	}
	c := u.chunks[len(u.chunks)-1]
	return &c[len(c)-1]
}

// search finds the first interval whose end plus slack is at or after t. There must be one.
func (u *Union) search(t, slack int64) (ci, ii int) {
	ci = sort.Search(len(u.chunks)-1, func(i int) bool {
		c := u.chunks[i]
		return plus(c[len(c)-1].end, slack) >= t
	})
	c := u.chunks[ci]
	ii = sort.Search(len(c)-1, func(i int) bool { return plus(c[i].end, slack) >= t })
	return ci, ii
}

// coveredAfter returns the first covered interval that ends after t; ok is false if there is none.
// Time before the horizon counts as covered.
func (u *Union) coveredAfter(t int64) (iv interval, ok bool) {
	if t < u.horizon {
		return interval{0, u.horizon}, true
	}
	last := u.last()
	if last == nil || t >= last.end {
		return interval{}, false
	}
	ci, ii := u.search(t+1, 0)
	return u.chunks[ci][ii], true
}

func (u *Union) append(iv interval) {
	u.n++
	k := len(u.chunks) - 1
	if k < 0 || len(u.chunks[k]) >= chunkMax {
		var c []interval
		if k >= 0 {
			// The first chunk grows; those after it will be filled.
			c = make([]interval, 0, chunkMax)
		}
		u.chunks = append(u.chunks, append(c, iv))
		return
	}
	u.chunks[k] = append(u.chunks[k], iv)
}

func (u *Union) insert(ci, ii int, iv interval) {
	u.n++
	c := u.chunks[ci]
	if len(c) >= chunkMax {
		const half = chunkMax / 2
		right := make([]interval, len(c)-half, chunkMax)
		copy(right, c[half:])
		u.chunks[ci] = c[:half]
		u.chunks = slices.Insert(u.chunks, ci+1, right)
		if ii > half {
			ci, ii = ci+1, ii-half
		}
	}
	u.chunks[ci] = slices.Insert(u.chunks[ci], ii, iv)
}

// remove takes out count intervals from the place on.
func (u *Union) remove(ci, ii, count int) {
	if count == 0 {
		return
	}
	u.n -= count
	first, from, to := ci, 0, 0
	for cj := ci; count > 0; cj, ii = cj+1, 0 {
		c := u.chunks[cj]
		k := min(count, len(c)-ii)
		count -= k
		if k < len(c) {
			u.chunks[cj] = slices.Delete(c, ii, ii+k)
			continue
		}
		if from == to {
			from, to = cj, cj
		}
		to++
	}
	u.chunks = slices.Delete(u.chunks, from, to)
	// Chunks that were thinned out are put together, or one interval each could hold 8 KiB.
	for i := first + 1; i >= first-1; i-- {
		if i < 0 || i+1 >= len(u.chunks) || len(u.chunks[i])+len(u.chunks[i+1]) > chunkMax/2 {
			continue
		}
		u.chunks[i] = append(u.chunks[i], u.chunks[i+1]...)
		u.chunks = slices.Delete(u.chunks, i+1, i+2)
	}
}

func (u *Union) forget() {
	for u.n > u.limit {
		c := u.chunks[0]
		u.horizon = c[0].end
		u.n--
		if len(c) == 1 {
			u.chunks = slices.Delete(u.chunks, 0, 1)
		} else {
			u.chunks[0] = c[1:]
		}
	}
}

// AppendState appends the union to b, about six bytes for each interval of a busy device.
func (u *Union) AppendState(b []byte) []byte {
	b = append(b, unionVersion)
	b = binary.AppendUvarint(b, uint64(u.total))
	b = binary.AppendUvarint(b, uint64(u.horizon))
	b = binary.AppendUvarint(b, uint64(u.n))
	prev := u.horizon
	for _, c := range u.chunks {
		for _, iv := range c {
			b = binary.AppendUvarint(b, uint64(iv.start-prev))
			b = binary.AppendUvarint(b, uint64(iv.end-iv.start))
			prev = iv.end
		}
	}
	return b
}

// LoadState replaces the union by what AppendState wrote at the front of b and returns the bytes
// behind it. The limit stays: if the saved union has more intervals, the oldest are forgotten. On
// an error, which wraps [ErrState], the union is as it was.
func (u *Union) LoadState(b []byte) (rest []byte, err error) {
	r := newReader(b)
	r.version(unionVersion)
	loaded := Union{limit: u.limit, join: u.join, total: r.natural(), horizon: r.natural()}
	var measure int64
	prev := loaded.horizon
	for range r.Count(2) {
		gap, length := r.natural(), r.natural()
		start := plus(prev, gap)
		end := plus(start, length)
		if start-prev != gap || end-start != length || length == 0 || gap == 0 && loaded.n > 0 {
			r.Fail("intervals that overlap, touch or leave the range of time")
		}
		if !r.OK() {
			break
		}
		// Under a longer join than it was saved with, silences stay what they were judged to be.
		loaded.append(interval{start, end})
		measure += length
		prev = end
	}
	if r.OK() && (measure > loaded.total || loaded.total-measure > loaded.horizon) {
		r.Fail("a total that is not that of its intervals")
	}
	if err := r.err("union"); err != nil {
		return nil, err
	}
	loaded.forget()
	*u = loaded
	return r.Rest, nil
}
