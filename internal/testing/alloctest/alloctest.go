// SPDX-License-Identifier: Apache-2.0

// Package alloctest bounds what a decoder may allocate for an input. A fuzz target or a test states a
// [Limit] in bytes per byte of input, so that a small hostile input that expands fails the test.
package alloctest

import (
	"runtime"
	"testing"
)

// attempts bounds how often Check calls the function. Other goroutines of the process count as well,
// and the first call may fill caches. With the race detector, a sync.Pool drops one of four values at
// random, so that a matched regular expression allocates its state again. The smallest result is
// closest to the function's own.
const attempts = 16

// Limit bounds the bytes that a function allocates: PerByte times the input's length plus Constant.
type Limit struct {
	PerByte  uint64 // bytes per byte of input
	Constant uint64 // bytes that do not depend on the input
}

// Check calls fn and reports an error if fn allocates more than the limit for an input of n bytes.
// Check counts all bytes that fn allocates, including those that it frees. The count is therefore
// an upper bound on the memory that fn holds. fn must be repeatable: if the result is above the
// limit, Check calls fn again and uses the smallest result. Check returns that result. Do not use
// Check in parallel tests.
func (l Limit) Check(tb testing.TB, n int, fn func()) uint64 {
	tb.Helper()
	limit := l.PerByte*uint64(n) + l.Constant
	least := ^uint64(0)
	for range attempts {
		least = min(least, measure(fn))
		if least <= limit {
			return least
		}
	}
	tb.Errorf("%d bytes allocated for %d bytes of input: the limit is %d", least, n, limit)
	return least
}

// measure returns the bytes that the process allocates while fn runs. ReadMemStats stops the world
// and flushes the caches of each processor. The counters of runtime/metrics do not include those
// caches.
func measure(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
