// SPDX-License-Identifier: Apache-2.0

package gpuflog

// itemQueue is a first-in first-out queue of items.
type itemQueue struct {
	items []item
	first int
}

func (q *itemQueue) len() int    { return len(q.items) - q.first }
func (q *itemQueue) head() *item { return &q.items[q.first] }
func (q *itemQueue) push(i item) { q.items = append(q.items, i) }

func (q *itemQueue) pop() item {
	it := q.items[q.first]
	q.items[q.first] = item{}
	q.first++
	if q.first == len(q.items) || q.first >= 4096 {
		q.items = q.items[:copy(q.items, q.items[q.first:])]
		clear(q.items[len(q.items):cap(q.items)])
		q.first = 0
	}
	return it
}
