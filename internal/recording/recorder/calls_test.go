// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCalls_RandomOperations compares the table with a map.
func TestCalls_RandomOperations(t *testing.T) {
	c := newCalls()
	want := map[uint32]call{}
	random := rand.New(rand.NewPCG(1, 1))
	for i := range 300_000 {
		id := random.Uint32N(5000) - 2500 // around the wrap
		switch random.IntN(3) {
		case 0:
			c.put(id, call{start: int64(i)})
			want[id] = call{start: int64(i)}
		case 1:
			c.delete(id)
			delete(want, id)
		default:
			v, ok := c.get(id)
			w, wantOK := want[id]
			require.Equal(t, wantOK, ok)
			require.Equal(t, w, v)
		}
	}
	assert.Equal(t, len(want), c.used)
	assert.Zero(t, c.aged)
	assert.LessOrEqual(t, len(c.slots), 1<<13)
}

func TestCalls_EvictOldest(t *testing.T) {
	c := newCalls()
	for i := range uint32(maxCalls + 1000) {
		c.put(i, call{start: int64(i)})
	}
	assert.Equal(t, maxCalls, c.used)
	assert.Equal(t, uint64(1000), c.aged)
	assert.Len(t, c.slots, maxSlots)
	_, ok := c.get(999)
	assert.False(t, ok)
	v, ok := c.get(1000)
	assert.True(t, ok)
	assert.Equal(t, call{start: 1000}, v)
	// A repeated put makes the entry the newest.
	c.put(1000, call{start: 1})
	for i := range uint32(5000) {
		c.put(1<<30+i, call{})
	}
	v, ok = c.get(1000)
	assert.True(t, ok)
	assert.Equal(t, call{start: 1}, v)
	assert.LessOrEqual(t, c.tail-c.head, uint64(maxSlots))
}

func TestCalls_Age(t *testing.T) {
	c := newCalls()
	now := int64(0)
	c.age(now)
	c.put(1, call{})
	for now < int64(callAge) {
		c.age(now)
		_, ok := c.get(1)
		require.True(t, ok)
		now += ageStep
	}
	c.put(2, call{})
	c.age(now + ageStep)
	c.age(now + 2*ageStep)
	_, ok := c.get(1)
	assert.False(t, ok)
	_, ok = c.get(2)
	assert.True(t, ok)
	assert.LessOrEqual(t, len(c.marks), int(int64(callAge)/ageStep)+2)
}

// The numbers of the queue wrap at 2^32.
func TestCalls_QueueNumbersWrap(t *testing.T) {
	c := newCalls()
	c.head, c.tail = 1<<32-5, 1<<32-5
	for i := range uint32(3000) {
		c.put(i, call{start: int64(i)})
		at, _ := c.find(i)
		require.NotZero(t, c.slots[at].number)
	}
	for i := range uint32(3000) {
		v, ok := c.get(i)
		require.True(t, ok)
		require.Equal(t, call{start: int64(i)}, v)
	}
	assert.Equal(t, 3000, c.used)
}
