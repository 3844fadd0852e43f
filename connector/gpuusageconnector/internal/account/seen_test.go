// SPDX-License-Identifier: Apache-2.0

package account

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// longestProbe is how far the worst number of a table lies from its place.
func (t *table) longestProbe() int {
	worst := 0
	for _, m := range t.slots {
		if m != 0 {
			_, probes, _ := t.find(m)
			worst = max(worst, probes)
		}
	}
	return worst
}

func TestSeenKnowsAtLeastTheLastKeys(t *testing.T) {
	for _, limit := range []int{1, 2, 10, 1000} {
		t.Run(fmt.Sprint("limit ", limit), func(t *testing.T) {
			r := rand.New(rand.NewPCG(3, uint64(limit)))
			s := newSeen(limit, 42)
			met := map[uint64]int{} // key to when it was met last
			order := []uint64{}     // keys in order of being met
			for i := range 20_000 {
				key := r.Uint64N(uint64(4*limit) + 2) // 0 is among them
				fresh := s.Add(key)
				last, ever := met[key]
				if !ever {
					require.True(t, fresh, "key %d was never there", key)
				} else {
					between := map[uint64]bool{}
					for _, k := range order[last+1:] {
						between[k] = true
						if len(between) >= limit {
							break
						}
					}
					if len(between) < limit {
						require.False(t, fresh, "key %d was met %d distinct keys ago", key, len(between))
					}
				}
				met[key] = i
				order = append(order, key)
				require.LessOrEqual(t, s.cur.n, limit)
				require.LessOrEqual(t, s.old.n, limit)

				if i%997 == 0 {
					again := NewSeen(limit)
					rest, err := again.LoadState(append(s.AppendState(nil), 7))
					require.NoError(t, err)
					require.Equal(t, []byte{7}, rest)
					s = again
				}
			}
		})
	}
}

func TestSeenMeetsNoKeyTwiceBelowTheLimit(t *testing.T) {
	s := NewSeen(100_000)
	for round := range 2 {
		for i := range uint64(100_000) {
			require.Equal(t, round == 0, s.Add(i<<40))
		}
	}
}

func TestSeenHoldsEveryNumber(t *testing.T) {
	// mix maps the seed, and nothing else, to the number that marks an empty slot.
	s := newSeen(4, 42)
	require.Zero(t, s.mix(42))
	for _, key := range []uint64{42, 0, ^uint64(0)} {
		require.True(t, s.Add(key))
		require.False(t, s.Add(key))
	}
	again := NewSeen(4)
	_, err := again.LoadState(s.AppendState(nil))
	require.NoError(t, err)
	for _, key := range []uint64{42, 0, ^uint64(0)} {
		require.False(t, again.Add(key))
	}
	require.True(t, again.Add(1))
	require.True(t, again.Add(2)) // the fifth: 42 is in the older table now
	require.False(t, again.Add(42))
}

func TestSeenStaysWithinItsMemory(t *testing.T) {
	const limit = 100_001
	s := NewSeen(limit)
	for i := range uint64(10 * limit) {
		s.Add(i)
		if n := 8 * (len(s.cur.slots) + len(s.old.slots)); n > 33*limit {
			t.Fatalf("%d bytes for a limit of %d", n, limit)
		}
	}
	require.Less(t, 8*len(NewSeen(limit).cur.slots), 1000)
}

func TestSeenSpreadsKeysThatSomebodyChose(t *testing.T) {
	const limit = 100_000
	for name, key := range map[string]func(i uint64) uint64{
		"ascending":         func(i uint64) uint64 { return i },
		"upper bits":        func(i uint64) uint64 { return i << 47 },
		"the same low half": func(i uint64) uint64 { return i<<32 | 0xdeadbeef },
		"one multiplier's":  func(i uint64) uint64 { return i * 0x9e3779b97f4a7c15 },
	} {
		s := NewSeen(limit)
		for i := range uint64(limit) {
			require.True(t, s.Add(key(i)))
		}
		require.Less(t, s.cur.longestProbe(), 150, name)
	}
}

func TestSeenKeepsTheLastUnderALowerLimit(t *testing.T) {
	s := NewSeen(1000)
	for i := range uint64(3000) {
		s.Add(i)
	}
	small := NewSeen(10)
	_, err := small.LoadState(s.AppendState(nil))
	require.NoError(t, err)
	require.LessOrEqual(t, small.cur.n+small.old.n, 20)
	require.LessOrEqual(t, len(small.cur.slots)+len(small.old.slots), 2*slotsFor(10))
	require.True(t, small.Add(3000))
	require.False(t, small.Add(3000))
}

func FuzzSeenState(f *testing.F) {
	s := newSeen(5, 1)
	f.Add(s.AppendState(nil))
	for i := range uint64(9) {
		s.Add(i)
		f.Add(s.AppendState(nil))
	}
	s.Add(1)
	f.Add(s.AppendState(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newSeen(5, 9)
		s.Add(77)
		before := s.AppendState(nil)
		alloctest.Limit{PerByte: 1 << 8, Constant: 1 << 18}.Check(t, len(b), func() { _, _ = NewSeen(5).LoadState(b) })
		rest, err := s.LoadState(b)
		if err != nil {
			require.ErrorIs(t, err, ErrState)
			require.Equal(t, before, s.AppendState(nil))
			return
		}
		require.LessOrEqual(t, len(rest), len(b))
		require.LessOrEqual(t, s.cur.n, 5)
		require.LessOrEqual(t, s.old.n, 5)
		again := NewSeen(5)
		_, err = again.LoadState(s.AppendState(nil))
		require.NoError(t, err)
		s.Add(77)
		require.False(t, s.Add(77))
	})
}

func BenchmarkSeenAdd(b *testing.B) {
	b.ReportAllocs()
	s := NewSeen(1_000_000)
	r := rand.NewPCG(1, 1)
	for b.Loop() {
		s.Add(r.Uint64())
	}
}
