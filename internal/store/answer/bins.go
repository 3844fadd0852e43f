// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"cmp"
	"maps"
	"slices"
)

// TopOp is the longest operation of a bin. Shape is the key of its shape.
type TopOp struct {
	Ns, StartNs int64
	Shape       uint64
}

// before reports whether the operation comes first: it is longer, else earlier, else its shape has
// the smaller key.
func (t *TopOp) before(o *TopOp) bool {
	return cmp.Or(cmp.Compare(o.Ns, t.Ns), cmp.Compare(t.StartNs, o.StartNs), cmp.Compare(t.Shape, o.Shape)) < 0
}

// BinKey is a bin of a lane, which its key identifies.
type BinKey struct {
	Lane  uint64
	Index int64
}

// BinSum sums a bin.
type BinSum struct {
	N, BusyNs int64
	Top       TopOp
}

// Bins are the bins of a timeline: bin i begins at From + i*Width, and the last one ends at End.
type Bins struct {
	From, Width, End int64
	Sums             map[BinKey]*BinSum

	// whole has, by lane and bin, the change of the number of operations that cover bins entirely.
	whole map[uint64]map[int64]int64
}

// NewBins returns empty bins.
func NewBins(from, width, end int64) *Bins {
	return &Bins{From: from, Width: width, End: end, Sums: map[BinKey]*BinSum{}, whole: map[uint64]map[int64]int64{}}
}

func (b *Bins) sum(lane uint64, index int64) *BinSum {
	k := BinKey{lane, index}
	s := b.Sums[k]
	if s == nil {
		s = &BinSum{}
		b.Sums[k] = s
	}
	return s
}

// Add adds the sums of n operations that start in a bin and the longest of them. BusyNs is the busy
// time of all operations in the bin, without the time that Busy adds.
func (b *Bins) Add(lane uint64, index, n, busyNs int64, top TopOp) {
	s := b.sum(lane, index)
	if n > 0 && (s.N == 0 || top.before(&s.Top)) {
		s.Top = top
	}
	s.N += n
	s.BusyNs += busyNs
}

// Busy adds the time from start to end to the bins that it touches.
func (b *Bins) Busy(lane uint64, start, end int64) {
	start, end = max(start, b.From), min(end, b.End)
	if end <= start {
		return
	}
	first, last := (start-b.From)/b.Width, (end-1-b.From)/b.Width
	add := func(i int64) {
		begin := b.From + i*b.Width
		b.sum(lane, i).BusyNs += min(end, begin+b.Width) - max(start, begin)
	}
	add(first)
	if last > first {
		add(last)
	}
	if last > first+1 {
		if b.whole[lane] == nil {
			b.whole[lane] = map[int64]int64{}
		}
		b.whole[lane][first+1]++
		b.whole[lane][last]--
	}
}

// Finish completes the sums. Call it once, after all others.
func (b *Bins) Finish() {
	for lane, changes := range b.whole {
		cover := int64(0)
		indices := slices.Sorted(maps.Keys(changes))
		for n, i := range indices {
			if cover += changes[i]; cover == 0 {
				continue
			}
			for j := i; j < indices[n+1]; j++ {
				b.sum(lane, j).BusyNs += cover * b.Width
			}
		}
	}
}
