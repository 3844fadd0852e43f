// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

// bloom is a growing set of ids that may also report an id that it does not have: one of about 30,000,
// with 3 to 6 bytes for each id. The zero value is empty.
type bloom struct {
	parts [][]uint64
	room  int // ids that the last part still takes
}

const (
	bloomBits   = 24 // of an id
	bloomHashes = 8
)

func mix(x uint64) uint64 {
	x ^= x >> 31
	x *= 0x9e3779b97f4a7c15
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return x ^ x>>32
}

func (b *bloom) add(id uint64) {
	if b.room == 0 {
		b.room = 1 << min(10+len(b.parts), 20)
		b.parts = append(b.parts, make([]uint64, b.room*bloomBits/64))
	}
	b.room--
	part := b.parts[len(b.parts)-1]
	n := uint64(len(part)) * 64
	h, step := mix(id), mix(^id)|1
	for range bloomHashes {
		part[h%n/64] |= 1 << (h % n % 64)
		h += step
	}
}

// size returns the memory in units of 64 bytes.
func (b *bloom) size() (n int64) {
	for _, part := range b.parts {
		n += int64(len(part)) / 8
	}
	return n
}

func (b *bloom) has(id uint64) bool {
	first, step := mix(id), mix(^id)|1
	for _, part := range b.parts {
		n := uint64(len(part)) * 64
		h, found := first, true
		for i := 0; i < bloomHashes && found; i++ {
			found = part[h%n/64]&(1<<(h%n%64)) != 0
			h += step
		}
		if found {
			return true
		}
	}
	return false
}
