// SPDX-License-Identifier: Apache-2.0

package store

import "strings"

// ContainsFold reports whether s contains part, if the letters A to Z equal a to z. Other letters
// are compared as they are, so that SQL engines agree.
func ContainsFold(s, part string) bool {
	return strings.Contains(strings.Map(lower, s), strings.Map(lower, part))
}

func lower(r rune) rune {
	if 'A' <= r && r <= 'Z' {
		return r + 'a' - 'A'
	}
	return r
}
