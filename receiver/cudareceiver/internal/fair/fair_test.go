// SPDX-License-Identifier: Apache-2.0

package fair

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// fill takes entries until Take fails and returns their number.
func fill(t *Table[int], user uint32, processes ...int) int {
	n := 0
	for took := true; took; {
		took = false
		for _, p := range processes {
			if t.Take(user, p) {
				took = true
				n++
			}
		}
	}
	return n
}

func TestTable_SingleProcess(t *testing.T) {
	table := New[int](30)
	assert.Equal(t, 10, fill(table, 1, 1))
	assert.Equal(t, 10, table.Len())
}

func TestTable_SingleUser(t *testing.T) {
	table := New[int](1000)
	processes := make([]int, 2000)
	for i := range processes {
		processes[i] = i
	}
	assert.Equal(t, 500, fill(table, 1, processes...))
}

func TestTable_NewUsers(t *testing.T) {
	const size = 12 << 10
	for users := range uint32(8) {
		table := New[int](size)
		for u := range users {
			processes := make([]int, size)
			for p := range processes {
				processes[p] = int(u)*size + p
			}
			fill(table, u, processes...)
		}
		free := size >> users
		assert.Equal(t, size-free, table.Len(), "%d users", users)
		assert.Equal(t, free/3, fill(table, 1000, -1), "the first process of another user, after %d users", users)
	}
}

func TestTable_NewProcessOfSameUser(t *testing.T) {
	table := New[int](9000)
	assert.Equal(t, 3000, fill(table, 1, 1))
	assert.Equal(t, 1000, fill(table, 1, 2))
}

func TestTable_Drop(t *testing.T) {
	table := New[int](30)
	fill(table, 1, 1)
	table.Drop(1, 1)
	assert.Zero(t, table.Len())
	assert.Empty(t, table.users)
	assert.Empty(t, table.processes)
	assert.Equal(t, 10, fill(table, 2, 2))
	table.Drop(3, 4)
	assert.Equal(t, 10, table.Len(), "a process without entries")
}

func TestTable_Empty(t *testing.T) {
	assert.False(t, New[int](0).Take(1, 1))
	assert.True(t, New[int](1).Take(1, 1))
}
