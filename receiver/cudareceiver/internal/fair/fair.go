// SPDX-License-Identifier: Apache-2.0

// Package fair divides the capacity of a table between users and their processes. It applies the
// same rule as share.h does to the kernel's maps: no user can fill a table, and no process can fill
// its user's share.
package fair

// Table counts the entries of a table of fixed capacity.
//
// A user may add an entry while the user has fewer entries than are free. A process may add one
// while it has fewer entries than are free beyond the entries of its user. So a new user can get
// half of the free entries. After n users that each add as many entries as possible, 1/2^n of the
// table is free. A single process of a new user can get a third of the free entries.
//
// A Table is not safe for concurrent use.
type Table[P comparable] struct {
	size, total int
	users       map[uint32]int
	processes   map[P]int
}

// New returns a Table of size entries, all free.
func New[P comparable](size int) *Table[P] {
	return &Table[P]{size: size, users: map[uint32]int{}, processes: map[P]int{}}
}

// Take adds an entry of a process and returns true, or returns false if the process has used its
// share. If each entry is a process of its own, only the user's share decides.
func (t *Table[P]) Take(user uint32, process P) bool {
	if t.processes[process] >= t.size-t.total-t.users[user] {
		return false
	}
	t.total++
	t.users[user]++
	t.processes[process]++
	return true
}

// Drop frees all entries of a process. The user must be the one that was passed to Take.
func (t *Table[P]) Drop(user uint32, process P) {
	n := t.processes[process]
	delete(t.processes, process)
	t.total -= n
	if t.users[user] -= n; t.users[user] <= 0 {
		delete(t.users, user)
	}
}

// Len returns the number of used entries.
func (t *Table[P]) Len() int { return t.total }
