// SPDX-License-Identifier: Apache-2.0

// Package glob matches the names of kernels, scopes and devices against patterns of settings. Those of package path
// and of file names do not fit: such names have brackets and slashes of their own.
package glob

// Match says whether a text matches a pattern: * stands for any text, ? for any one byte, everything else for itself.
// It goes back to the last star only, which is enough, and keeps the time below the product of the lengths. It may be
// called by any goroutine.
func Match(pattern, text string) bool {
	p, t := 0, 0
	star, from := -1, 0
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, from = p, t
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == text[t]):
			p, t = p+1, t+1
		case star >= 0: // the last star takes one byte more
			from++
			p, t = star+1, from
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}
