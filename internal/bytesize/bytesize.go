// SPDX-License-Identifier: Apache-2.0

// Package bytesize reads and writes numbers of bytes as settings and messages have them: with a unit.
package bytesize

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

var units = []struct {
	suffix string
	size   uint64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// Parse reads a number of bytes with a binary or decimal unit, or with none: 64MiB, 1.5 GB, 17. It is at most 1<<62.
func Parse(text string) (int64, error) {
	n, err := humanize.ParseBytes(text)
	if err != nil || n > 1<<62 {
		return 0, fmt.Errorf("%q is not a number of bytes: write for example 64MiB", text)
	}
	return int64(n), nil
}

// Format writes a number of bytes for people, in the largest binary unit of which it is at least one: 1 GiB, 14.3 MiB, 17 B.
func Format(n uint64) string {
	for _, u := range units {
		if n >= u.size {
			return strings.TrimSuffix(strconv.FormatFloat(float64(n)/float64(u.size), 'f', 1, 64), ".0") + " " + u.suffix
		}
	}
	return strconv.FormatUint(n, 10) + " B"
}
