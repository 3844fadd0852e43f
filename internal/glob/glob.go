// SPDX-License-Identifier: Apache-2.0

// Package glob is the one dialect of patterns in all settings, that of doublestar: * stands for any text, ? for any one
// character, [a-z] for one of a class, {a,b} for one of several texts, and \ takes the meaning from the next character.
//
// All functions may be called by any goroutine.
package glob

import (
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// Valid reports whether a pattern is well formed.
func Valid(pattern string) bool { return doublestar.ValidatePattern(pattern) }

// Match reports whether the name of a kernel, a scope, a device or a program matches a pattern. A slash has no meaning
// in names, so * stands for any text with slashes too. A pattern that is not well formed matches only itself.
func Match(pattern, name string) bool {
	ok, err := doublestar.Match(withoutSlash(pattern), withoutSlash(name))
	return ok || err != nil && pattern == name
}

// MatchPath reports whether a path matches a pattern. * and ? stop at slashes, and ** stands for any number of folders.
// A pattern that is not well formed matches nothing.
func MatchPath(pattern, path string) bool {
	ok, err := doublestar.Match(pattern, path)
	return ok && err == nil
}

// withoutSlash replaces the separator of doublestar with a character that no name has.
func withoutSlash(s string) string { return strings.ReplaceAll(s, "/", "\x00") }
