// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/rangetable"
)

// unicode8 has the characters of Unicode 8.0, whose categories the package tokenizers uses for
// control characters, punctuation and accents. It uses a newer version for letters and numbers.
var unicode8 = rangetable.Assigned("8.0.0")

func control(r rune) bool {
	if r < 0x80 {
		return r < 0x20 || r == 0x7f
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co) && unicode.Is(unicode8, r)
}

func punctuation(r rune) bool {
	if r < 0x80 {
		return r > ' ' && r < 0x7f && !(r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z')
	}
	// The category of these two changed after Unicode 8.0.
	return unicode.IsPunct(r) && unicode.Is(unicode8, r) || r == 0x166D || r == 0x111C9
}

func accent(r rune) bool {
	if r < 0x300 || !unicode.Is(unicode.Mn, r) {
		return r == 0x1734
	}
	// The category of these changed after Unicode 8.0, as did that of 0x1734.
	return unicode.Is(unicode8, r) && r != 0x1885 && r != 0x1886 && r != 0xA9BD && r != 0x111C9
}

// ideograph is the ranges that the package tokenizers takes for Chinese characters. The gap from
// 0x2B820 on is its own.
func ideograph(r rune) bool {
	return r >= 0x3400 && (r <= 0x4DBF || r >= 0x4E00 && r <= 0x9FFF || r >= 0xF900 && r <= 0xFAFF ||
		r >= 0x20000 && r <= 0x2A6DF || r >= 0x2A700 && r <= 0x2B81F || r >= 0x2B920 && r <= 0x2CEAF || r >= 0x2F800 && r <= 0x2FA1F)
}

// clean removes control characters and makes all white space a space.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n' || r == '\r':
			return ' '
		case r == utf8.RuneError || control(r):
			return -1
		case unicode.IsSpace(r):
			return ' '
		}
		return r
	}, s)
}

func spaceIdeographs(s string) string {
	if strings.IndexFunc(s, ideograph) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if ideograph(r) {
			b.WriteByte(' ')
			b.WriteRune(r)
			b.WriteByte(' ')
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func stripAccents(s string) string {
	return strings.Map(func(r rune) rune {
		if accent(r) {
			return -1
		}
		return r
	}, s)
}

// lower maps characters one by one: a sigma at the end of a word is as any other.
func lower(s string) string {
	if strings.Contains(s, "İ") { // the one whose lower case has two characters
		s = strings.ReplaceAll(s, "İ", "i\u0307")
	}
	return strings.Map(unicode.ToLower, s)
}

// bertWords splits at white space, and makes each punctuation character a word.
func bertWords(s string, word func(string)) {
	start := 0
	for i, r := range s {
		space, punct := unicode.IsSpace(r), punctuation(r)
		if !space && !punct {
			continue
		}
		if start < i {
			word(s[start:i])
		}
		start = i + utf8.RuneLen(r)
		if punct {
			word(s[i:start])
		}
	}
	if start < len(s) {
		word(s[start:])
	}
}

// Classes of characters in the pattern of GPT-2.
const (
	spaceClass = iota
	letterClass
	numberClass
	otherClass
)

func class(s string) (class, size int) {
	r, size := utf8.DecodeRuneInString(s)
	switch {
	case unicode.IsLetter(r):
		return letterClass, size
	case unicode.IsNumber(r):
		return numberClass, size
	case unicode.IsSpace(r):
		return spaceClass, size
	}
	return otherClass, size
}

// byteWords splits as the pattern of GPT-2 does
// (https://github.com/openai/gpt-2/blob/master/src/encoder.py):
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func byteWords(s string, word func(string)) {
	for len(s) > 0 {
		n := contraction(s)
		if n == 0 {
			n = byteWord(s)
		}
		word(s[:n])
		s = s[n:]
	}
}

func contraction(s string) int {
	if s[0] != '\'' {
		return 0
	}
	for _, c := range [...]string{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"} {
		if strings.HasPrefix(s, c) {
			return len(c)
		}
	}
	return 0
}

// byteWord returns the length of the first word of s.
func byteWord(s string) int {
	start := 0
	if s[0] == ' ' && len(s) > 1 {
		start = 1
	}
	kind, size := class(s[start:])
	if kind == spaceClass {
		kind, size = class(s)
		start = 0
	}
	end, last := start+size, start
	for end < len(s) {
		k, n := class(s[end:])
		if k != kind {
			break
		}
		last = end
		end += n
	}
	if kind == spaceClass && end < len(s) && last > 0 {
		return last // the last white space belongs to what follows, or is a word
	}
	return end
}
