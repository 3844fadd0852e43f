// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner parses one line of JSON. It is made for the lines of GPU Flight: few levels of nesting, short
// keys, mostly integers. In the values that it skips it accepts any valid JSON. After an error the
// scanner is unusable, and the whole line is rejected.
type scanner struct {
	b []byte
	i int
}

// maxDepth bounds the nesting of skipped values; the format's own depth is 3.
const maxDepth = 64

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return
		}
	}
}

// peek returns the next byte that is not white space, 0 at the end.
func (s *scanner) peek() byte {
	s.space()
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

// enter consumes the opening byte of an object or array.
func (s *scanner) enter(open byte) bool {
	if s.i < len(s.b) && s.b[s.i] == open { // no white space, as upstream writes it
		s.i++
		return true
	}
	if s.peek() != open {
		return false
	}
	s.i++
	return true
}

// more steps to the next member. first is true before the first one. It reports whether there is a
// member (and consumes the comma before it) or the closing byte (and consumes that).
func (s *scanner) more(first bool, closing byte) (member, ok bool) {
	c := byte(0)
	if s.i < len(s.b) {
		c = s.b[s.i]
	}
	if c != ',' && c != closing && c != '"' {
		c = s.peek()
	}
	switch {
	case c == closing:
		s.i++
		return false, true
	case first:
		return true, c != 0
	case c == ',':
		s.i++
		return true, true
	}
	return false, false
}

// key consumes a key and its colon. The key aliases the line; keys with escapes come out as they
// are written, which no known key is.
func (s *scanner) key() (k []byte, ok bool) {
	b := s.b
	i := s.i
	if i >= len(b) || b[i] != '"' {
		if s.peek() != '"' {
			return nil, false
		}
		i = s.i
	}
	i++
	start := i
	for i < len(b) && b[i] != '"' && b[i] != '\\' { // keys are short: no call pays
		i++
	}
	if i < len(b) && b[i] == '\\' {
		i = s.stringEnd(start)
	}
	if i < 0 || i >= len(b) {
		return nil, false
	}
	if i+1 < len(b) && b[i+1] == ':' {
		s.i = i + 2
		return b[start:i], true
	}
	if s.i = i + 1; s.peek() != ':' {
		return nil, false
	}
	s.i++
	return b[start:i], true
}

// stringEnd returns the index of the quote that closes the string whose content begins at from,
// or -1.
func (s *scanner) stringEnd(from int) int {
	for i := from; ; {
		n := bytes.IndexByte(s.b[i:], '"')
		if n < 0 {
			return -1
		}
		end := i + n
		back := end
		for back > from && s.b[back-1] == '\\' {
			back--
		}
		if (end-back)%2 == 0 {
			return end
		}
		i = end + 1
	}
}

// str consumes a string and returns its content, which aliases the line unless it had escapes.
// The content is not checked to be UTF-8; see text.
func (s *scanner) str() (content []byte, ok bool) {
	if s.i >= len(s.b) || s.b[s.i] != '"' {
		if s.peek() != '"' {
			return nil, false
		}
	}
	start := s.i + 1
	n := bytes.IndexByte(s.b[start:], '"')
	if n < 0 {
		return nil, false
	}
	raw := s.b[start : start+n]
	if bytes.IndexByte(raw, '\\') < 0 {
		s.i = start + n + 1
		return raw, true
	}
	end := s.stringEnd(start)
	if end < 0 {
		return nil, false
	}
	s.i = end + 1
	return unescape(s.b[start:end]), true
}

// unescape resolves JSON's escapes into a new slice. A malformed escape is kept as it stands: the
// writer cuts strings at fixed sizes before it escapes them, so there are none in sound logs.
func unescape(raw []byte) []byte {
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c != '\\' || i+1 == len(raw) {
			out = append(out, c)
			continue
		}
		i++
		switch raw[i] {
		case 'n':
			out = append(out, '\n')
		case 't':
			out = append(out, '\t')
		case 'r':
			out = append(out, '\r')
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case '"', '\\', '/':
			out = append(out, raw[i])
		case 'u':
			r, n := unicodeEscape(raw[i+1:])
			if n == 0 {
				out = append(out, '\\', 'u')
				continue
			}
			i += n
			out = utf8.AppendRune(out, r)
		default:
			out = append(out, '\\', raw[i])
		}
	}
	return out
}

// unicodeEscape reads the four digits after \u, and the second half of a surrogate pair where one
// follows. n is the number of bytes used, 0 if there are no four hex digits.
func unicodeEscape(b []byte) (r rune, n int) {
	hex4 := func(b []byte) (rune, bool) {
		if len(b) < 4 {
			return 0, false
		}
		v, err := strconv.ParseUint(string(b[:4]), 16, 16)
		return rune(v), err == nil
	}
	r, ok := hex4(b)
	if !ok {
		return 0, 0
	}
	if utf16.IsSurrogate(r) && len(b) >= 10 && b[4] == '\\' && b[5] == 'u' {
		if low, ok := hex4(b[6:]); ok {
			if full := utf16.DecodeRune(r, low); full != utf8.RuneError {
				return full, 10
			}
		}
	}
	return r, 4
}

// text returns b as a string of valid UTF-8; wrong bytes become U+FFFD. Upstream cuts names at
// fixed sizes, in the middle of a character if need be.
func text(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return string(bytes.ToValidUTF8(b, []byte("\uFFFD")))
}

// integer consumes an integer of up to 64 bits. Numbers above 2^63-1 come back as their two's
// complement with big set, so that the unsigned value is uint64(v). Fractions, exponents and
// larger numbers are not accepted.
func (s *scanner) integer() (v int64, big, ok bool) {
	i := s.i
	if i < len(s.b) && s.b[i] <= ' ' {
		s.space()
		i = s.i
	}
	neg := i < len(s.b) && s.b[i] == '-'
	if neg {
		i++
	}
	start := i
	var u uint64
	for len(s.b)-i >= 8 { // times have 19 digits
		v, ok := eightDigits(binary.LittleEndian.Uint64(s.b[i:]))
		if !ok || i-start >= 16 {
			break
		}
		u = u*1e8 + v
		i += 8
	}
	for i < len(s.b) {
		d := s.b[i] - '0'
		if d > 9 {
			break
		}
		if i-start >= 19 { // 19 digits always fit into 64 bits, the 20th may not
			if i-start > 19 || u > (math.MaxUint64-uint64(d))/10 {
				return 0, false, false
			}
		}
		u = u*10 + uint64(d)
		i++
	}
	if i == start {
		return 0, false, false
	}
	if i < len(s.b) && (s.b[i] == '.' || s.b[i] == 'e' || s.b[i] == 'E') {
		return 0, false, false
	}
	s.i = i
	if neg {
		if u > 1<<63 {
			return 0, false, false
		}
		return -int64(u), false, true
	}
	return int64(u), u > math.MaxInt64, true
}

// eightDigits converts eight ASCII digits, the first in the lowest byte; false if one is no digit.
// Pairs, then fours, then all eight are joined by one multiplication each.
func eightDigits(v uint64) (uint64, bool) {
	if (v&0xf0f0f0f0f0f0f0f0)|(((v+0x0606060606060606)&0xf0f0f0f0f0f0f0f0)>>4) != 0x3333333333333333 {
		return 0, false
	}
	v &= 0x0f0f0f0f0f0f0f0f
	v = (v*10 + v>>8) & 0x00ff00ff00ff00ff
	v = (v*100 + v>>16) & 0x0000ffff0000ffff
	v = (v*10000 + v>>32) & 0x00000000ffffffff
	return v, true
}

// number consumes any JSON number as a float, for the few values that are fractions.
// nan and inf, which the writer's stream formatting can produce, come back as NaN.
func (s *scanner) number() (f float64, ok bool) {
	s.space()
	start := s.i
	for s.i < len(s.b) {
		switch c := s.b[s.i]; {
		case c >= '0' && c <= '9', c == '-', c == '+', c == '.', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
			s.i++
		default:
			goto end
		}
	}
end:
	if s.i == start {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(s.b[start:s.i]), 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return math.NaN(), err == nil
	}
	return f, true
}

// boolean consumes true or false.
func (s *scanner) boolean() (v, ok bool) {
	s.space()
	switch {
	case bytes.HasPrefix(s.b[s.i:], []byte("true")):
		s.i += 4
		return true, true
	case bytes.HasPrefix(s.b[s.i:], []byte("false")):
		s.i += 5
		return false, true
	}
	return false, false
}

// null consumes null if it comes next.
func (s *scanner) null() bool {
	s.space()
	if bytes.HasPrefix(s.b[s.i:], []byte("null")) {
		s.i += 4
		return true
	}
	return false
}

// skip consumes any value.
func (s *scanner) skip() bool { return s.skipDepth(maxDepth) }

func (s *scanner) skipDepth(depth int) bool {
	if depth == 0 {
		return false
	}
	switch c := s.peek(); c {
	case 0:
		return false
	case '"':
		end := s.stringEnd(s.i + 1)
		if end < 0 {
			return false
		}
		s.i = end + 1
		return true
	case '{', '[':
		s.i++
		for first := true; ; first = false {
			member, ok := s.more(first, c+2) // '{'+2 == '}', '['+2 == ']'
			if !ok {
				return false
			}
			if !member {
				return true
			}
			if c == '{' {
				if _, ok := s.key(); !ok {
					return false
				}
			}
			if !s.skipDepth(depth - 1) {
				return false
			}
		}
	default:
		start := s.i
		for s.i < len(s.b) {
			switch s.b[s.i] {
			case ',', '}', ']', ' ', '\t', '\r', '\n':
				return s.i > start
			case '"', '{', '[', ':':
				return false
			}
			s.i++
		}
		return s.i > start
	}
}

// raw consumes any value and returns its bytes.
func (s *scanner) raw() ([]byte, bool) {
	s.space()
	start := s.i
	if !s.skip() {
		return nil, false
	}
	return s.b[start:s.i], true
}

// done reports that only white space is left.
func (s *scanner) done() bool { return s.peek() == 0 && s.i >= len(s.b) }

// dim3 reads "(x,y,z)" as upstream writes grids and blocks; ok is false for anything else,
// including the empty string that means unknown.
func dim3(b []byte) (d [3]int64, ok bool) {
	if len(b) < 7 || b[0] != '(' || b[len(b)-1] != ')' {
		return d, false
	}
	b = b[1 : len(b)-1]
	n := 0
	digits := 0
	for _, c := range b {
		if c == ',' {
			if n++; n > 2 || digits == 0 {
				return [3]int64{}, false
			}
			digits = 0
			continue
		}
		v := c - '0'
		if digits++; v > 9 || digits > 18 {
			return [3]int64{}, false
		}
		d[n] = d[n]*10 + int64(v)
	}
	return d, n == 2 && digits > 0
}

// decimal reads the decimal integer that upstream writes as a string ("device_id":"0").
func decimal(b []byte) (int64, bool) {
	if len(b) == 1 && b[0]-'0' <= 9 {
		return int64(b[0] - '0'), true
	}
	s := scanner{b: b}
	v, big, ok := s.integer()
	return v, ok && !big && s.i == len(b)
}

// hexadecimal reads "0x1a0".
func hexadecimal(b []byte) (int64, bool) {
	if len(b) < 3 || b[0] != '0' || (b[1] != 'x' && b[1] != 'X') {
		return 0, false
	}
	v, err := strconv.ParseUint(string(b[2:]), 16, 63)
	return int64(v), err == nil
}
