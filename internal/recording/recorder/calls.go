// SPDX-License-Identifier: Apache-2.0

package recorder

import "time"

const (
	// maxCalls bounds the remembered calls: 24 MiB of slots and 8 MiB of ages. The driver queues
	// about a thousand launches per stream. So the evicted calls are those that started no work, or
	// whose work has no span.
	maxCalls = 3 << 18
	// maxSlots is a power of two. maxCalls is three quarters of it.
	maxSlots = 1 << 20
	minSlots = 1 << 10
	// callAge is far below the time in which 2^32 calls wrap (three hours at 400,000 launches a
	// second). It is far above the time that a launch waits for its device.
	callAge = 10 * time.Minute
	// ageStep is the resolution of ages.
	ageStep = int64(10 * time.Second)
)

// call is the time of the host call that requested work.
type call struct{ start, end int64 }

// calls holds the newest host calls by correlation id. They give the launch times. It uses open
// addressing with linear probing, and a queue in order of arrival for ageing. Adding an entry
// allocates only when the table grows.
type calls struct {
	slots []slot
	used  int
	shift uint
	// queue is a ring of the added entries, in order. Entries that were deleted or replaced since
	// then are recognized by their number. head and tail count all entries so far.
	queue      []queued
	head, tail uint64
	// marks are positions in the queue, one for each ageStep.
	marks []mark
	aged  uint64
}

type slot struct {
	id uint32
	// number is the entry's number in the queue, modulo 2^32, plus one; 0 means a free slot. The
	// queue is far shorter than 2^32, so its numbers are unique.
	number uint32
	value  call
}

type queued struct{ id, number uint32 }

type mark struct {
	at   int64
	tail uint64
}

func newCalls() *calls {
	c := &calls{queue: make([]queued, minSlots)}
	c.resize(minSlots)
	return c
}

func (c *calls) resize(n int) {
	old := c.slots
	c.slots = make([]slot, n)
	c.shift = 32
	for 1<<(32-c.shift) < n {
		c.shift--
	}
	for i := range old {
		if old[i].number != 0 {
			at, _ := c.find(old[i].id)
			c.slots[at] = old[i]
		}
	}
}

// home spreads consecutive ids over the slots (Knuth's multiplicative hashing).
func (c *calls) home(id uint32) uint32 { return id * 0x9e3779b1 >> c.shift }

// find returns the slot of an id. Without an entry it returns the free slot for it, and false.
func (c *calls) find(id uint32) (at uint32, ok bool) {
	mask := uint32(len(c.slots) - 1)
	for at = c.home(id); ; at = (at + 1) & mask {
		if s := &c.slots[at]; s.number == 0 || s.id == id {
			return at, s.number != 0
		}
	}
}

// get returns the value of an id.
func (c *calls) get(id uint32) (v call, ok bool) {
	at, ok := c.find(id)
	if ok {
		v = c.slots[at].value
	}
	return v, ok
}

// put sets the value of an id and makes it the newest. It replaces an existing entry: either it is
// the same call, or the ids wrapped.
func (c *calls) put(id uint32, v call) {
	c.delete(id)
	for c.used >= maxCalls || c.tail-c.head >= maxCalls {
		c.dropHead()
	}
	if c.used >= len(c.slots)/4*3 && len(c.slots) < maxSlots {
		c.resize(2 * len(c.slots))
	}
	number := c.enqueue(id)
	at, _ := c.find(id) // after enqueue, which may move entries
	c.slots[at] = slot{id: id, number: number, value: v}
	c.used++
}

// enqueue appends an id to the queue, which must have a free entry, and returns its number.
func (c *calls) enqueue(id uint32) uint32 {
	for c.head < c.tail && !c.alive(c.queue[c.head&uint64(len(c.queue)-1)]) {
		c.head++
	}
	if n := uint64(len(c.queue)); c.tail-c.head+2 > n {
		grown := make([]queued, 2*n)
		for i := c.head; i < c.tail; i++ {
			grown[i&(2*n-1)] = c.queue[i&(n-1)]
		}
		c.queue = grown
	}
	if uint32(c.tail)+1 == 0 { // 0 marks a free slot: skip this number with an unused entry
		c.queue[c.tail&uint64(len(c.queue)-1)] = queued{}
		c.tail++
	}
	number := uint32(c.tail) + 1
	c.queue[c.tail&uint64(len(c.queue)-1)] = queued{id, number}
	c.tail++
	return number
}

func (c *calls) alive(q queued) bool {
	if q.number == 0 {
		return false
	}
	at, ok := c.find(q.id)
	return ok && c.slots[at].number == q.number
}

// dropHead removes the oldest entry of the queue, and counts it if it was still in use.
func (c *calls) dropHead() {
	q := c.queue[c.head&uint64(len(c.queue)-1)]
	c.head++
	if c.alive(q) {
		c.delete(q.id)
		c.aged++
	}
}

func (c *calls) delete(id uint32) {
	at, ok := c.find(id)
	if !ok {
		return
	}
	c.used--
	// Move back the entries that probing placed after this slot, so that searches still find them.
	mask := uint32(len(c.slots) - 1)
	for next := (at + 1) & mask; c.slots[next].number != 0; next = (next + 1) & mask {
		if home := c.home(c.slots[next].id); (next-home)&mask >= (next-at)&mask {
			c.slots[at] = c.slots[next]
			at = next
		}
	}
	c.slots[at] = slot{}
}

// age removes entries older than callAge. now is the current time.
func (c *calls) age(now int64) {
	for len(c.marks) > 0 && c.marks[0].at <= now-int64(callAge) {
		for c.head < c.marks[0].tail && c.head < c.tail {
			c.dropHead()
		}
		c.marks = append(c.marks[:0], c.marks[1:]...)
	}
	if n := len(c.marks); n == 0 || now-c.marks[n-1].at >= ageStep {
		c.marks = append(c.marks, mark{now, c.tail})
	}
}
