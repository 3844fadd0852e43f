// SPDX-License-Identifier: Apache-2.0

// Package fair divides tables between users and their processes by the rule that share.h has for the kernel's maps. No
// user can fill a table, and no process can fill its user's part of one.
package fair

// Table counts the entries of a table of a fixed size.
//
// A user may add an entry while it has fewer than are free. A process may add one while it has fewer than are free
// beyond what its user has. So each user can have half of what is free when it comes, and after n users that take all
// they can, 1/2^n of the table is free. A process of a new user can have a third of what is free.
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

// Take adds an entry of a process and reports true, or reports false where the process has its share. Where each entry
// is a process of its own, the user's share alone decides.
func (t *Table[P]) Take(user uint32, process P) bool {
	if t.processes[process] >= t.size-t.total-t.users[user] {
		return false
	}
	t.total++
	t.users[user]++
	t.processes[process]++
	return true
}

// Drop frees all entries of a process. The user must be the one that Take was given.
func (t *Table[P]) Drop(user uint32, process P) {
	n := t.processes[process]
	delete(t.processes, process)
	t.total -= n
	if t.users[user] -= n; t.users[user] <= 0 {
		delete(t.users, user)
	}
}

// Len returns how many entries are taken.
func (t *Table[P]) Len() int { return t.total }
