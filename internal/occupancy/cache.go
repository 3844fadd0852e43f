// SPDX-License-Identifier: Apache-2.0

package occupancy

import "sync/atomic"

// Cache remembers results by launch. It never grows: 4096 places of one word, where a program has
// some hundred shapes of launches, and a launch that falls on a taken place takes it over. A word
// holds the launch and its result, so that it is read and written whole without a lock.
//
// The zero Cache is ready. What the word cannot hold is computed each time.
type Cache struct {
	words [1 << cacheBits]atomic.Uint64
}

const cacheBits = 12

// The layout of a word, from the top: the launch, then its result. An empty word is 0, which no
// launch is, for it has threads.
const (
	capabilityBits = 5
	threadsBits    = 11
	registersBits  = 9
	sharedBits     = 19
	carveoutBits   = 9 // in KiB; the sizes of hardware are whole ones
	blocksBits     = 6
	limiterBits    = 4
	resultBits     = blocksBits + limiterBits
)

// Compute is l.Compute(k), remembered.
func (c *Cache) Compute(l *Limits, k Launch) (Result, error) {
	if uint64(k.Threads) >= 1<<threadsBits || uint64(k.Registers) >= 1<<registersBits ||
		uint64(k.Shared) >= 1<<sharedBits || uint64(k.Carveout) >= kib<<carveoutBits ||
		k.Threads == 0 || k.Carveout%kib != 0 || k.Cluster > 1 {
		return l.Compute(k)
	}
	key := uint64(l.index)
	key = key<<threadsBits | uint64(k.Threads)
	key = key<<registersBits | uint64(k.Registers)
	key = key<<sharedBits | uint64(k.Shared)
	key = key<<carveoutBits | uint64(k.Carveout)/kib
	// Multiplying by the golden ratio spreads neighbouring keys over the upper bits.
	place := &c.words[key*0x9e3779b97f4a7c15>>(64-cacheBits)]
	if w := place.Load(); w>>resultBits == key {
		return l.result(k.Threads, int(w>>limiterBits&(1<<blocksBits-1)), Limiter(w&(1<<limiterBits-1))), nil
	}
	r, err := l.Compute(k)
	if err == nil {
		place.Store(key<<resultBits | uint64(r.Blocks)<<limiterBits | uint64(r.Limiter))
	}
	return r, err
}
