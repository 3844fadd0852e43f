// SPDX-License-Identifier: Apache-2.0

package cupti

import "sync/atomic"

// scopeTable says in which scope the launch with a correlation id was made. It is the C core's
// (gpufl_scope_table), written by the threads that launch; the zero value is empty.
//
// A slot holds the scope's id in its low 53 bits and, above it, the bits of the correlation id that
// do not choose the slot. So one load is all it takes, and a slot that a later launch took over is
// seen as such.
type scopeTable struct {
	slots []uint64 // 1 << scopeTableBits of them, or none
}

const (
	scopeTableBits = 21 // as GPUFL_SCOPE_TABLE_BITS
	scopeIDBits    = 64 - (32 - scopeTableBits)
)

// of returns the scope, 0 for none.
func (t scopeTable) of(correlation uint32) uint64 {
	if len(t.slots) != 1<<scopeTableBits {
		return 0
	}
	slot := atomic.LoadUint64(&t.slots[correlation&(1<<scopeTableBits-1)])
	if uint32(slot>>scopeIDBits) != correlation>>scopeTableBits {
		return 0
	}
	return slot & (1<<scopeIDBits - 1)
}
