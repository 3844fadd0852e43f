// SPDX-License-Identifier: Apache-2.0

package bytesize

import (
	"math"
	"testing"
)

func TestParse(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "17": 17, "1B": 1, "4KiB": 4096, "64MiB": 64 << 20, "2GiB": 2 << 30, "3 MB": 3e6, "5kB": 5000, "1TiB": 1 << 40, "1.5GiB": 3 << 29, "4kib": 4096, "4611686018427387904": 1 << 62,
	} {
		if n, err := Parse(in); err != nil || n != want {
			t.Errorf("%q is %d, %v; want %d", in, n, err, want)
		}
	}
	for _, in := range []string{"", "x", "-1", "-2KiB", "MiB", "9999999999999GiB", "-9999999999999GiB", "1 XB", "9223372036854775807"} {
		if n, err := Parse(in); err == nil {
			t.Errorf("%q is taken as %d", in, n)
		}
	}
}

func TestFormat(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 17: "17 B", 1023: "1023 B", 1024: "1 KiB", 15_000_000: "14.3 MiB", 1 << 30: "1 GiB", 1<<30 + 1<<29: "1.5 GiB", math.MaxUint64: "16777216 TiB",
	} {
		if got := Format(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}
