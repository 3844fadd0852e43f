// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestDuration(t *testing.T) {
	for want, ns := range map[string]float64{
		"0 ns": 0, "999 ns": 999.4, "1 µs": 999.5, "1.23 µs": 1234, "999 µs": 999_499, "-999 µs": -999_499,
		"1 ms": 999_500, "12.3 ms": 12_345_678, "999 ms": 999_499_999, "1.00 s": 999_500_000,
		"-1.00 s": -999_999_999, "1000.00 s": 1e12,
	} {
		t.Run(want, func(t *testing.T) { assert.Equal(t, want, Duration(ns)) })
	}
	assert.Equal(t, "1.00 s", Duration(int64(999_999_999)))
}
