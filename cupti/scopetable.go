// SPDX-License-Identifier: Apache-2.0

package cupti

import "sync/atomic"

// scopeTable says in which scope the launch with a correlation id was made. It is the C core's
// (gpufl_scope_table), written by the threads that launch; the zero value is empty.
//
// A slot holds the scope's id in its low 52 bits. The next bit says whether the scope is inferred.
// The bits above are those of the correlation id that do not choose the slot. So one load is
// enough, and a slot that a later launch has overwritten is recognized.
type scopeTable struct {
	slots []uint64 // 1 << scopeTableBits of them, or none
}

const (
	scopeTableBits = 21 // as GPUFL_SCOPE_TABLE_BITS
	scopeIDBits    = 64 - (32 - scopeTableBits) - 1
)

// of returns the scope, 0 for none. inferred says that the launching thread was in none itself.
func (t scopeTable) of(correlation uint32) (scope uint64, inferred bool) {
	if len(t.slots) != 1<<scopeTableBits {
		return 0, false
	}
	slot := atomic.LoadUint64(&t.slots[correlation&(1<<scopeTableBits-1)])
	if uint32(slot>>(scopeIDBits+1)) != correlation>>scopeTableBits {
		return 0, false
	}
	return slot & (1<<scopeIDBits - 1), slot>>scopeIDBits&1 != 0
}
