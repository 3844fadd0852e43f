// SPDX-License-Identifier: Apache-2.0

package gpuflgen

import (
	"strconv"
	"unicode/utf8"
)

// line is a JSON object under construction, in the recorder's key order. Each method except open
// adds a comma first, so an object starts with its opening text.
type line []byte

// record starts a record with a version; flat starts one without.
func (l line) record(version int64, typ string) line {
	l = append(l[:0], `{"version":`...)
	l = strconv.AppendInt(l, version, 10)
	return l.str("type", typ)
}

func (l line) flat(typ string) line {
	l = append(l[:0], `{"type":`...)
	return appendString(l, typ)
}

func (l line) key(k string) line {
	l = append(l, ',', '"')
	l = append(l, k...)
	return append(l, '"', ':')
}

func (l line) str(k, v string) line {
	return appendString(l.key(k), v)
}

func (l line) int(k string, v int64) line {
	return strconv.AppendInt(l.key(k), v, 10)
}

func (l line) uint(k string, v uint64) line {
	return strconv.AppendUint(l.key(k), v, 10)
}

func (l line) bool(k string, v bool) line {
	return strconv.AppendBool(l.key(k), v)
}

// fixed writes a float with a fixed number of decimals; short writes up to six significant digits.
func (l line) fixed(k string, v float64, decimals int) line {
	return strconv.AppendFloat(l.key(k), v, 'f', decimals, 64)
}

func (l line) short(k string, v float64) line {
	return strconv.AppendFloat(l.key(k), v, 'g', 6, 64)
}

func (l line) raw(s string) line { return append(l, s...) }

// row appends one row of a batch.
func (l line) row(first bool, cells ...int64) line {
	if !first {
		l = append(l, ',')
	}
	l = append(l, '[')
	for i, c := range cells {
		if i > 0 {
			l = append(l, ',')
		}
		l = strconv.AppendInt(l, c, 10)
	}
	return append(l, ']')
}

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string with the recorder's escapes: quote, backslash, newline,
// return, tab, and \u00XX for other control bytes. It copies all other bytes unchanged.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

// clip truncates s to at most n bytes, as the recorder's fixed buffers do. Unlike the recorder it
// does not split a character, so lines are valid UTF-8.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func (l line) intValue(v int64) line { return strconv.AppendInt(l, v, 10) }

func (l line) fixedValue(v float64, decimals int) line {
	return strconv.AppendFloat(l, v, 'f', decimals, 64)
}

func (l line) stringValue(s string) line { return appendString(l, s) }
