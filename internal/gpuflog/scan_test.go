// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

func TestIntegersAreExactOrRefused(t *testing.T) {
	for _, c := range []struct {
		in  string
		v   int64
		big bool
		ok  bool
	}{
		{"0", 0, false, true},
		{"-1", -1, false, true},
		{"1795197645537649828", 1795197645537649828, false, true},
		{"12345678", 12345678, false, true},
		{"1234567890123456", 1234567890123456, false, true},
		{"9223372036854775807", math.MaxInt64, false, true},
		{"9223372036854775808", math.MinInt64, true, true},
		{"18446744073709551615", -1, true, true},
		{"18446744073709551616", 0, false, false},
		{"99999999999999999999", 0, false, false},
		{"100000000000000000000", 0, false, false},
		{"-9223372036854775808", math.MinInt64, false, true},
		{"-9223372036854775809", 0, false, false},
		{"1.0", 0, false, false},
		{"1e3", 0, false, false},
		{"", 0, false, false},
		{"-", 0, false, false},
		{"x", 0, false, false},
		{`"1"`, 0, false, false},
	} {
		s := scanner{b: []byte(c.in)}
		v, big, ok := s.integer()
		if ok != c.ok || (ok && (v != c.v || big != c.big)) {
			t.Errorf("%q: got %d %v %v", c.in, v, big, ok)
		}
	}
}

func TestEightDigitsAgreesWithTheLibrary(t *testing.T) {
	for _, text := range []string{"00000000", "12345678", "99999999", "0000000x", "x0000000", "1234:678", "1234/678", "        "} {
		var v uint64
		for i := range 8 {
			v |= uint64(text[i]) << (8 * i)
		}
		got, ok := eightDigits(v)
		want, err := strconv.ParseUint(text, 10, 64)
		if ok != (err == nil) || (ok && got != want) {
			t.Errorf("%q: got %d %v, want %d %v", text, got, ok, want, err)
		}
	}
}

func TestStringsComeBackAsTheLibraryReadsThem(t *testing.T) {
	for _, in := range []string{
		`""`, `"a"`, `"a\"b"`, `"a\\"`, `"\\\\"`, `"\\\""`, `"\u0041\u00e9"`, `"\ud83d\ude00"`, `"\n\t\r\b\f\/"`,
		`"` + strings.Repeat("x", 5000) + `"`, `"unités µ"`,
	} {
		var want string
		if err := json.Unmarshal([]byte(in), &want); err != nil {
			t.Fatal(err)
		}
		s := scanner{b: []byte(in + `,"next"`)}
		got, ok := s.str()
		if !ok || string(got) != want || s.i != len(in) {
			t.Errorf("%s: got %q %v, stands at %d", in, got, ok, s.i)
		}
	}
	for _, in := range []string{`"open`, `"open\"`, `x`, ``} {
		s := scanner{b: []byte(in)}
		if got, ok := s.str(); ok {
			t.Errorf("%s: got %q", in, got)
		}
	}
}

func TestDimensions(t *testing.T) {
	for in, want := range map[string][3]int64{
		"(64,1,1)": {64, 1, 1}, "(2147483647,65535,65535)": {2147483647, 65535, 65535},
		"": {}, "(1,2)": {}, "(1,2,3,4)": {}, "(a,1,1)": {}, "1,2,3": {}, "(,1,1)": {}, "(1,1,)": {},
		"(9999999999999999999,1,1)": {},
	} {
		got, ok := dim3([]byte(in))
		if got != want || ok != (want != [3]int64{}) {
			t.Errorf("%q: got %v %v", in, got, ok)
		}
	}
}

// FuzzScanner checks that skipping a value agrees with the library on where sound JSON ends.
func FuzzScanner(f *testing.F) {
	for _, s := range []string{`{"a":[1,2,{"b":"c\"d"}],"e":null}`, `[]`, `"\u00e9"`, `-1.5e9`, `{"a"`, "\xff", `{"a":[[[]]]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var s scanner
		var ok bool
		// Skipping allocates nothing but the scanner; a text with escapes is copied once.
		alloctest.Limit{PerByte: 8, Constant: 16 << 10}.Check(t, len(b), func() {
			s = scanner{b: b}
			ok = s.skip()
			text := scanner{b: b}
			text.str()
		})
		if s.i > len(b) {
			t.Fatalf("stands at %d of %d", s.i, len(b))
		}
		if json.Valid(b) && depth(b) < maxDepth {
			if !ok || !s.done() {
				t.Fatalf("%q is JSON but was not skipped: %v at %d", b, ok, s.i)
			}
			var text string
			if json.Unmarshal(b, &text) == nil && b[0] == '"' && utf8.Valid(b) && !strings.Contains(string(b), `\u`) {
				s := scanner{b: b}
				if got, ok := s.str(); !ok || string(got) != text {
					t.Fatalf("%q: got %q, want %q", b, got, text)
				}
			}
		}
		n := scanner{b: b}
		if v, big, ok := n.integer(); ok {
			want := fmt.Sprint(v)
			if big {
				want = fmt.Sprint(uint64(v))
			}
			if got := strings.TrimLeft(strings.TrimLeft(string(b[:n.i]), " \t\r\n"), "0"); got != "" && got != want && !strings.HasPrefix(got, "-") {
				t.Fatalf("%q read as %s", b[:n.i], want)
			}
		}
	})
}

func depth(b []byte) (most int) {
	n := 0
	for _, c := range b {
		switch c {
		case '[', '{':
			n++
		case ']', '}':
			n--
		}
		most = max(most, n)
	}
	return most
}
