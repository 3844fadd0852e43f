// SPDX-License-Identifier: Apache-2.0

// Package bytesize reads and writes numbers of bytes as settings and messages have them: with a unit.
package bytesize

import (
	"fmt"
	"strconv"
	"strings"
)

var units = []struct {
	suffix string
	size   int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1},
}

// Parse reads a whole number of bytes with a binary or decimal unit, or with none: 64MiB, 3 MB, 17. It may be below 0.
func Parse(text string) (int64, error) {
	for _, u := range units {
		digits, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if most := (1 << 62) / u.size; err != nil || n > most || n < -most {
			break
		}
		return n * u.size, nil
	}
	return 0, fmt.Errorf("%q is no size: use a whole number with B, KiB, MiB, GiB, kB, MB or GB", text)
}

// Format writes a number of bytes for people, in the largest binary unit of which it is at least one: 1 GiB, 14.3 MiB, 17 B.
func Format(n uint64) string {
	for _, u := range units[:4] {
		if size := uint64(u.size); n >= size { //nolint:gosec // Above 0.
			return strings.TrimSuffix(strconv.FormatFloat(float64(n)/float64(size), 'f', 1, 64), ".0") + " " + u.suffix
		}
	}
	return strconv.FormatUint(n, 10) + " B"
}
