// SPDX-License-Identifier: Apache-2.0

package alloctest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// recorder keeps the errors that Check reports.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

var sink []byte

func TestLimit(t *testing.T) {
	limit := Limit{PerByte: 10, Constant: 1 << 16}
	for _, tt := range []struct {
		name      string
		allocated []int // by the first, second, … call
		calls     int
		fails     bool
	}{
		{"nothing", []int{0, 0, 0}, 1, false},
		{"below", []int{1 << 16, 0, 0}, 1, false},
		{"above", slices.Repeat([]int{1 << 20}, attempts), attempts, true},
		{"above at first", []int{1 << 20, 0, 0}, 2, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var r recorder
			calls := 0
			got := limit.Check(&r, 1000, func() {
				sink = make([]byte, tt.allocated[calls])
				calls++
			})
			assert.Equal(t, tt.calls, calls)
			assert.Equal(t, tt.fails, len(r.errors) == 1, "%v", r.errors)
			assert.Equal(t, tt.fails, got > 10*1000+1<<16, "%d", got)
			if tt.fails {
				assert.GreaterOrEqual(t, got, uint64(1<<20))
				assert.Contains(t, r.errors[0], "for 1000 bytes of input: the limit is 75536")
			}
		})
	}
}

func TestLimit_SmallAllocations(t *testing.T) {
	var r recorder
	got := Limit{}.Check(&r, 0, func() {
		for range 1000 {
			sink = make([]byte, 64)
		}
	})
	assert.Len(t, r.errors, 1)
	assert.GreaterOrEqual(t, got, uint64(64*1000))
}
