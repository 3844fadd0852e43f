// SPDX-License-Identifier: Apache-2.0

package account

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
)

const (
	seenVersion = 1
	// fewSlots is the size of a table's first allocation.
	fewSlots = 64
	// maxProbe is how far from its place a saved key may lie. With a good hash and half of the
	// slots taken, less than a hundred is the most among millions.
	maxProbe = 1 << 12
)

// Seen is a bounded set of 64-bit keys: it knows at least the last limit distinct ones. Its memory
// grows with the keys, up to 32 bytes for each of the limit, 40 while it grows.
//
// It is two tables. Keys go into the younger one until limit are there; then it becomes the older
// one, and what was older is dropped. A key that is met again in the older one is put into the
// younger one too, so that "last" means last met.
type Seen struct {
	limit int
	// seed and factor are the secret of mix.
	seed, factor uint64
	cur, old     table
}

// NewSeen returns an empty set that remembers at least the last limit keys, at least one.
func NewSeen(limit int) *Seen { return newSeen(limit, rand.Uint64()) }

func newSeen(limit int, seed uint64) *Seen {
	// The upper bound is out of reach and keeps the arithmetic on sizes from overflowing.
	s := &Seen{limit: min(max(limit, 1), 1<<40)}
	s.setSeed(seed)
	return s
}

func (s *Seen) setSeed(seed uint64) {
	s.seed = seed
	// One step of splitmix64, made odd so that multiplying by it can be undone and no two keys
	// become one.
	x := seed + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	s.factor = (x ^ x>>31) | 1
}

// mix spreads keys over the table in a way that whoever chooses them cannot foresee. It maps
// different keys to different numbers, so the tables can hold these in their place.
func (s *Seen) mix(key uint64) uint64 {
	x := key ^ s.seed
	x = (x ^ x>>32) * s.factor
	x = (x ^ x>>29) * 0xd6e8feb86659fd93
	return x ^ x>>32
}

// Add puts key in and returns true if it was not there.
func (s *Seen) Add(key uint64) bool {
	m := s.mix(key)
	i, _, there := s.cur.find(m)
	if there {
		return false
	}
	_, _, known := s.old.find(m)
	s.put(i, m)
	return !known
}

// put adds a number that find did not find in the younger table, but for which it found slot i.
func (s *Seen) put(i int, m uint64) {
	if s.cur.n >= s.limit {
		s.turn()
		i = -1
	}
	if s.cur.full() {
		s.cur.resize(min(max(2*len(s.cur.slots), fewSlots), slotsFor(s.limit)))
		i = -1
	}
	if i < 0 {
		i, _, _ = s.cur.find(m)
	}
	s.cur.set(i, m)
}

// turn begins a new table, in the memory of the one that is dropped.
func (s *Seen) turn() {
	s.cur, s.old = s.old, s.cur
	clear(s.cur.slots)
	s.cur.n, s.cur.zero = 0, false
}

// table is a hash table with open addressing. The slot of a number is its upper bits, scaled to the
// size of the table. Sizes need not be powers of two. The numbers are nearly in ascending order, so
// the table grows by one pass over both tables, and the saved differences are small.
type table struct {
	slots []uint64
	n     int
	// zero says that 0 is in. An empty slot is 0.
	zero bool
}

// slotsFor is the size of a table for n numbers: half of the slots are taken then. With two thirds
// taken, looking for a number that is not there takes twice as many steps.
func slotsFor(n int) int { return 2*n + 2 }

func (t *table) full() bool { return slotsFor(t.n+1) > len(t.slots) }

// find returns the slot where m is or would go, and how far that is from its place.
func (t *table) find(m uint64) (i, probes int, there bool) {
	if m == 0 {
		return 0, 0, t.zero
	}
	if len(t.slots) == 0 {
		return 0, 0, false
	}
	place, _ := bits.Mul64(m, uint64(len(t.slots)))
	for i = int(place); ; probes++ {
		switch t.slots[i] {
		case m:
			return i, probes, true
		case 0:
			return i, probes, false
		}
		if i++; i == len(t.slots) {
			i = 0
		}
	}
}

func (t *table) set(i int, m uint64) {
	t.n++
	if m == 0 {
		t.zero = true
		return
	}
	t.slots[i] = m
}

func (t *table) resize(size int) {
	slots := t.slots
	t.slots = make([]uint64, size)
	for _, m := range slots {
		if m != 0 {
			i, _, _ := t.find(m)
			t.slots[i] = m
		}
	}
}

// AppendState appends the set to b: about seven bytes for each key of a large set, which is all
// that random numbers allow.
func (s *Seen) AppendState(b []byte) []byte {
	b = append(b, seenVersion)
	b = binary.LittleEndian.AppendUint64(b, s.seed)
	for _, t := range []*table{&s.old, &s.cur} {
		b = binary.AppendUvarint(b, uint64(t.n))
		if t.n == 0 {
			continue
		}
		// 0 is written as a number like the others; that it comes first keeps it apart.
		if t.zero {
			b = binary.AppendVarint(b, 0)
		}
		var prev uint64
		for _, m := range t.slots {
			if m != 0 {
				b = binary.AppendVarint(b, int64(m-prev))
				prev = m
			}
		}
	}
	return b
}

// LoadState replaces the set by what AppendState wrote at the front of b and returns the bytes
// behind it. The limit stays: of a saved set with more keys, the last are kept. On an error, which
// wraps [ErrState], the set is as it was.
func (s *Seen) LoadState(b []byte) (rest []byte, err error) {
	r := newReader(b)
	r.version(seenVersion)
	loaded := Seen{limit: s.limit}
	loaded.setSeed(r.Fixed())
	loaded.load(r)
	if loaded.cur.n > 0 {
		loaded.turn()
	}
	loaded.load(r)
	if err := r.err("seen keys"); err != nil {
		return nil, err
	}
	*s = loaded
	return r.Rest, nil
}

// load reads one table's numbers into the younger table.
func (s *Seen) load(r *reader) {
	n := r.Count(1)
	if want := slotsFor(min(n, s.limit)); n > 0 && want > len(s.cur.slots) {
		s.cur.resize(want)
	}
	var m uint64
	for range n {
		m += uint64(r.Int())
		if !r.OK() {
			return
		}
		i, probes, there := s.cur.find(m)
		if there || probes > maxProbe {
			r.Fail("keys that are double or not where they belong")
			return
		}
		s.put(i, m)
	}
}
