// SPDX-License-Identifier: Apache-2.0

package ingest

import "sync/atomic"

// Budget bounds the bytes that all bodies hold together.
type Budget struct {
	total int64
	left  atomic.Int64
}

// NewBudget returns a budget of so many bytes.
func NewBudget(bytes int64) *Budget {
	b := &Budget{total: bytes}
	b.left.Store(bytes)
	return b
}

// take reserves n bytes, or none and returns false.
func (b *Budget) take(n int64) bool {
	if b.left.Add(-n) >= 0 {
		return true
	}
	b.left.Add(n)
	return false
}

// reserve takes n bytes more for a body that holds have. The error is a *Refusal.
func (b *Budget) reserve(n, have int64) error {
	if b.take(n) {
		return nil
	}
	if n+have > b.total {
		return tooLarge("in memory", b.total)
	}
	return Busy("too many bytes of requests are in memory: try again later")
}

func (b *Budget) give(n int64) { b.left.Add(n) }
