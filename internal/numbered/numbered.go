// SPDX-License-Identifier: Apache-2.0

// Package numbered finds names of scopes that differ only in their numbers.
package numbered

import (
	"regexp"
	"strings"
)

// Max is the largest number of names with the same pattern that are kept apart. It is above the number
// of layers of large models. Names that count steps are not kept apart (see Counts).
const Max = 128

// counted is the end of a part of a pattern that counts steps.
var counted = regexp.MustCompile(`(?i)(?:step|iter|iteration|batch|epoch)[\s#_:./-]*\*`)

// Counts reports whether names with a pattern count steps, iterations, batches or epochs, so that their
// number has no limit.
func Counts(pattern string) bool { return counted.MatchString(pattern) }

// Pattern returns a name with "*" in the place of each number. A number is a run of digits, or a word of 4
// or more hexadecimal digits, such as "3fa8". Such a word has a digit and no other letters.
func Pattern(name string) string {
	if strings.IndexFunc(name, isDigit) < 0 {
		return name
	}
	var b strings.Builder
	for i := 0; i < len(name); {
		word := len(name) - i
		if n := strings.IndexFunc(name[i:], func(r rune) bool { return !isDigit(r) && !isLetter(r) }); n >= 0 {
			word = n
		}
		switch w := name[i : i+word]; {
		case word >= 4 && strings.IndexFunc(w, isDigit) >= 0 && strings.IndexFunc(w, func(r rune) bool { return !isHex(r) }) < 0:
			b.WriteByte('*')
		default:
			for j := range word {
				if !isDigit(rune(w[j])) {
					b.WriteByte(w[j])
				} else if j == 0 || !isDigit(rune(w[j-1])) {
					b.WriteByte('*')
				}
			}
		}
		for i += word; i < len(name) && !isDigit(rune(name[i])) && !isLetter(rune(name[i])); i++ {
			b.WriteByte(name[i])
		}
	}
	return b.String()
}

func isDigit(r rune) bool  { return r >= '0' && r <= '9' }
func isLetter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }
func isHex(r rune) bool    { return isDigit(r) || r >= 'a' && r <= 'f' || r >= 'A' && r <= 'F' }
