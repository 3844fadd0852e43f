// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPercentile(t *testing.T) {
	for _, tt := range []struct {
		name                                string
		middle, count, sum, largest, wanted int64
	}{
		{"one duration", 4_430, 1, 4_510, 4_510, 4_510},
		{"middle below the largest", 4_430, 2, 9_000, 4_510, 4_430},
		{"middle above the largest", 4_560, 2, 9_000, 4_510, 4_510},
		{"none", 0, 0, 0, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			assert.Equal(t, tt.wanted, percentile(tt.middle, tt.count, tt.sum, tt.largest))
		})
	}
}
