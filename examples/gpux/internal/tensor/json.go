// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

// maxRank bounds the nesting of lists in JSON.
const maxRank = 32

// FromJSON returns the tensor that nested JSON lists describe. Lists of one level must have equal
// lengths. Want is the shape of the model, with -1 for unknown dimensions, or nil. A value without
// the first dimension is one row of it. A flat list takes the shape of want if this has at most one
// unknown dimension. Any other shape must fit want.
//
// Numbers become elements of type d, and an error says which byte of the text has no place in it.
// NaN and the infinities are the strings "NaN", "Infinity" and "-Infinity".
func FromJSON(d DType, raw []byte, want []int64) (*Tensor, error) {
	p := parser{in: raw, t: &Tensor{DType: d}}
	p.space()
	if err := p.value(0); err != nil {
		return nil, fmt.Errorf("at byte %d: %w", p.at, err)
	}
	if p.space(); p.at != len(p.in) {
		return nil, fmt.Errorf("at byte %d: something follows the value", p.at)
	}
	t := p.t
	t.Shape = p.shape
	if want == nil || fits(t.Shape, want) {
		return t, nil
	}
	if len(want) == len(t.Shape)+1 && (want[0] < 0 || want[0] == 1) && fits(t.Shape, want[1:]) {
		t.Shape = append([]int64{1}, t.Shape...)
		return t, nil
	}
	if len(t.Shape) <= 1 {
		if shape, ok := reshape(t.Len(), want); ok {
			t.Shape = shape
			return t, nil
		}
	}
	return nil, fmt.Errorf("the shape %v does not fit %s", t.Shape, ShapeText(want))
}

// fits says whether a shape has the dimensions of want, where -1 fits all.
func fits(shape, want []int64) bool {
	if len(shape) != len(want) {
		return false
	}
	for i, d := range want {
		if d >= 0 && d != shape[i] {
			return false
		}
	}
	return true
}

// reshape sets the unknown dimension of want, if there is one, so that it has n elements.
func reshape(n int, want []int64) ([]int64, bool) {
	shape, known, free := append([]int64{}, want...), int64(1), -1
	for i, d := range want {
		if d >= 0 {
			known *= d
			continue
		}
		if free >= 0 {
			return nil, false
		}
		free = i
	}
	if free >= 0 {
		if known == 0 || int64(n)%known != 0 {
			return nil, false
		}
		shape[free] = int64(n) / known
		return shape, true
	}
	return shape, known == int64(n)
}

// ShapeText writes a shape with ? for unknown dimensions.
func ShapeText(shape []int64) string {
	b := []byte{'['}
	for i, d := range shape {
		if i > 0 {
			b = append(b, ", "...)
		}
		if d < 0 {
			b = append(b, '?')
		} else {
			b = strconv.AppendInt(b, d, 10)
		}
	}
	return string(append(b, ']'))
}

// parser reads nested lists of JSON into a tensor without building values in between.
type parser struct {
	in    []byte
	at    int
	t     *Tensor
	shape []int64
	deep  bool // the depth of elements is known: that of shape
}

func (p *parser) space() {
	for p.at < len(p.in) {
		switch p.in[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

func (p *parser) value(depth int) error {
	if p.at >= len(p.in) {
		return errors.New("the value ends early")
	}
	if p.in[p.at] != '[' {
		if p.deep && depth != len(p.shape) {
			return errors.New("lists and values are mixed in one list")
		}
		p.deep = true
		return p.element()
	}
	if depth == maxRank {
		return fmt.Errorf("lists are nested more than %d deep", maxRank)
	}
	if p.deep && depth >= len(p.shape) {
		return errors.New("lists and values are mixed in one list")
	}
	known := depth < len(p.shape)
	if !known {
		p.shape = append(p.shape, 0)
	}
	p.at++
	n := int64(0)
	for p.space(); ; p.space() {
		if p.at >= len(p.in) {
			return errors.New("the list does not end")
		}
		if p.in[p.at] == ']' && n == 0 {
			p.deep = true
			break
		}
		if err := p.value(depth + 1); err != nil {
			return err
		}
		n++
		p.space()
		if p.at >= len(p.in) {
			return errors.New("the list does not end")
		}
		if p.in[p.at] == ']' {
			break
		}
		if p.in[p.at] != ',' {
			return fmt.Errorf("%q where a comma or ] must be", p.in[p.at])
		}
		p.at++
	}
	p.at++
	if !known {
		p.shape[depth] = n
	} else if p.shape[depth] != n {
		return fmt.Errorf("a list has %d elements where another of its level has %d", n, p.shape[depth])
	}
	return nil
}

// element reads one element.
func (p *parser) element() error {
	if p.t.Len() == MaxElements {
		return fmt.Errorf("there are more than %d elements", MaxElements)
	}
	start := p.at
	if p.in[p.at] == '"' {
		end := p.at + 1
		for end < len(p.in) && p.in[end] != '"' {
			if p.in[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(p.in) {
			return errors.New("the string does not end")
		}
		var s string
		if err := json.Unmarshal(p.in[start:end+1], &s); err != nil {
			return errors.New("the string is no valid JSON")
		}
		p.at = end + 1
		return p.text(s)
	}
	for p.at < len(p.in) && p.in[p.at] != ',' && p.in[p.at] != ']' && p.in[p.at] > ' ' {
		p.at++
	}
	token := string(p.in[start:p.at])
	if err := p.token(token); err != nil {
		p.at = start
		return err
	}
	return nil
}

// text adds a string, or one of the numbers that JSON has no form for.
func (p *parser) text(s string) error {
	d := p.t.DType
	if d == String {
		p.t.Strings = append(p.t.Strings, s)
		return nil
	}
	special, ok := map[string]float64{"NaN": math.NaN(), "Infinity": math.Inf(1), "-Infinity": math.Inf(-1)}[s]
	if !ok || !d.float() {
		return fmt.Errorf("a string is no %s", d)
	}
	p.t.Data = append(p.t.Data, make([]byte, d.Size())...)
	p.t.putFloat(p.t.Len()-1, special)
	return nil
}

func (d DType) float() bool {
	return d == Float32 || d == Float64 || d == Float16 || d == BFloat16
}

func (p *parser) token(token string) error {
	d := p.t.DType
	boolean := token == "true" || token == "false"
	if !boolean && !isNumber(token) {
		return fmt.Errorf("%.40q is no element of a tensor", token)
	}
	if d == String {
		return fmt.Errorf("%.40s is no string", token)
	}
	p.t.Data = append(p.t.Data, zero[:d.Size()]...)
	i := p.t.Len() - 1
	switch {
	case d == Bool:
		if token == "true" || token == "1" {
			p.t.Data[i] = 1
		} else if token != "false" && token != "0" {
			return fmt.Errorf("%.40s is no bool", token)
		}
		return nil
	case boolean:
		return fmt.Errorf("%s is no %s", token, d)
	case d == Float32: // one rounding, from decimal to float32
		v, err := strconv.ParseFloat(token, 32)
		if err != nil {
			return fmt.Errorf("%.40s is too large for float32", token)
		}
		p.t.putFloat(i, v)
		return nil
	case d.float():
		v, err := strconv.ParseFloat(token, 64)
		if err != nil {
			return fmt.Errorf("%.40s is too large for float64", token)
		}
		p.t.putFloat(i, v)
		return nil
	}
	negative := token[0] == '-'
	digits := token
	if negative {
		digits = token[1:]
	}
	magnitude, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		v, _ := strconv.ParseFloat(token, 64) // valid JSON; an overflow gives an infinity
		if v != math.Trunc(v) {
			return fmt.Errorf("%.40s has a fraction and is no %s", token, d)
		}
		if math.Abs(v) >= 1<<63 {
			return fmt.Errorf("%.40s is out of the range of %s", token, d)
		}
		magnitude = uint64(math.Abs(v))
	}
	return p.t.putInt(i, magnitude, negative)
}

var zero [8]byte

// isNumber says whether a token is a number of JSON. strconv accepts more than these.
func isNumber(token string) bool {
	i := 0
	digits := func() bool {
		start := i
		for i < len(token) && token[i] >= '0' && token[i] <= '9' {
			i++
		}
		return i > start
	}
	if i < len(token) && token[i] == '-' {
		i++
	}
	first := i
	if !digits() || token[first] == '0' && i > first+1 {
		return false
	}
	if i < len(token) && token[i] == '.' {
		if i++; !digits() {
			return false
		}
	}
	if i < len(token) && (token[i] == 'e' || token[i] == 'E') {
		if i++; i < len(token) && (token[i] == '+' || token[i] == '-') {
			i++
		}
		if !digits() {
			return false
		}
	}
	return i == len(token)
}

// MarshalJSON writes nested lists. Numbers that JSON has no form for become strings, as FromJSON
// reads them. A string that is not UTF-8 becomes {"b64": …}.
func (t *Tensor) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, 8*t.Len()+16)
	at := 0
	return t.append(b, 0, &at), nil
}

func (t *Tensor) append(b []byte, depth int, at *int) []byte {
	if depth == len(t.Shape) {
		b = t.appendElement(b, *at)
		*at++
		return b
	}
	b = append(b, '[')
	for i := range t.Shape[depth] {
		if i > 0 {
			b = append(b, ',')
		}
		b = t.append(b, depth+1, at)
	}
	return append(b, ']')
}

func (t *Tensor) appendElement(b []byte, i int) []byte {
	switch d := t.DType; {
	case d == String:
		if !utf8.ValidString(t.Strings[i]) {
			return fmt.Appendf(b, `{"b64":%q}`, base64.StdEncoding.EncodeToString([]byte(t.Strings[i])))
		}
		text, _ := json.Marshal(t.Strings[i]) // a string can always be encoded
		return append(b, text...)
	case d == Bool:
		return strconv.AppendBool(b, t.Data[i] != 0)
	case d.float():
		v := t.float(i)
		switch {
		case math.IsNaN(v):
			return append(b, `"NaN"`...)
		case math.IsInf(v, 1):
			return append(b, `"Infinity"`...)
		case math.IsInf(v, -1):
			return append(b, `"-Infinity"`...)
		}
		size := 32
		if d == Float64 {
			size = 64
		}
		return strconv.AppendFloat(b, v, 'g', -1, size)
	case d == Uint8 || d == Uint16 || d == Uint32 || d == Uint64:
		return strconv.AppendUint(b, t.uint(i), 10)
	default:
		shift := 64 - 8*d.Size()
		return strconv.AppendInt(b, int64(t.uint(i)<<shift)>>shift, 10)
	}
}

// uint returns the bytes of element i of an integer type, without its sign.
func (t *Tensor) uint(i int) (v uint64) {
	size := t.DType.Size()
	for k := size - 1; k >= 0; k-- {
		v = v<<8 | uint64(t.Data[i*size+k])
	}
	return v
}
