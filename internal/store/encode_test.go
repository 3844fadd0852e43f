// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// decodeLimit bounds what decoding allocates: at most one Attr (104 bytes) or Value for each byte,
// and the text. Size classes of the allocator add up to an eighth.
var decodeLimit = alloctest.Limit{PerByte: 128, Constant: 4096}

func nested(depth int) Value {
	v := Value{Kind: KindInt, Int: 7}
	for range depth - 1 {
		v = Value{Kind: KindSlice, Slice: []Value{v}}
	}
	return v
}

func everyKind() Attrs {
	return Attrs{
		{"", Value{Kind: KindString}},
		{"bool", Value{Kind: KindBool, Int: 1}},
		{"bytes", Value{Kind: KindBytes, Str: "\x00\xff"}},
		{"double", Value{Kind: KindDouble, Double: math.Copysign(0, -1)}},
		{"empty", Value{}},
		{"int", Value{Kind: KindInt, Int: math.MinInt64}},
		{"list", Value{Kind: KindSlice, Slice: []Value{{Kind: KindInt, Int: math.MaxInt64}, {Kind: KindString, Str: "x"}, {}}}},
		{"map", Value{Kind: KindMap, Map: Attrs{{"a", Value{Kind: KindDouble, Double: math.Inf(1)}}, {"b", Value{Kind: KindMap}}}}},
		{"nolist", Value{Kind: KindSlice}},
		{"string", Value{Kind: KindString, Str: "\xffnot UTF-8"}},
	}
}

func TestAttrs_EncodeDecode(t *testing.T) {
	for _, want := range []Attrs{nil, everyKind(), {{"deep", nested(MaxDepth)}}} {
		got, err := DecodeAttrs(want.Append(nil))
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	v := Value{Kind: KindDouble, Double: math.Float64frombits(0x7ff8_0000_0000_1234)}
	got, err := DecodeValue(v.Append(nil))
	require.NoError(t, err)
	assert.Equal(t, math.Float64bits(v.Double), math.Float64bits(got.Double))
}

// TestAttrs_EncodingIsFixed fails if the stored format changes.
func TestAttrs_EncodingIsFixed(t *testing.T) {
	assert.Equal(t, "0a"+"000100"+"04626f6f6c0201"+"0562797465730502"+"00ff"+
		"06646f75626c6504"+"0000000000000080"+"05656d70747900"+"03696e7403ffffffffffffffffff01"+
		"046c6973740603"+"03feffffffffffffffff01"+"010178"+"00"+
		"036d61700702"+"016104000000000000f07f"+"01620700"+
		"066e6f6c6973740600"+"06737472696e6701"+"0aff6e6f74205554462d38",
		hex.EncodeToString(everyKind().Append(nil)))
}

func TestAttrs_DeeperThanMaxDepth(t *testing.T) {
	a := Attrs{{"deep", nested(MaxDepth + 1)}}
	got, err := DecodeAttrs(a.Append(nil))
	require.NoError(t, err)
	v := got[0].Value
	for range MaxDepth - 1 {
		require.Len(t, v.Slice, 1)
		v = v.Slice[0]
	}
	assert.Equal(t, Value{Kind: KindSlice, Slice: []Value{{}}}, v)
}

func TestAttrs_Get(t *testing.T) {
	for _, a := range everyKind() {
		v, ok := everyKind().Get(a.Key)
		assert.True(t, ok, a.Key)
		assert.Equal(t, a.Value, v)
	}
	_, ok := everyKind().Get("absent")
	assert.False(t, ok)
}

func TestDecode_Invalid(t *testing.T) {
	for name, tc := range map[string]struct {
		in, err string
	}{
		"empty":            {"", "unexpected end"},
		"trailing":         {"0000", "bytes after the end"},
		"truncated key":    {"010561", "length larger than the input"},
		"truncated double": {"01016104000000", "unexpected end"},
		"keys descending":  {"02016200016100", "keys not ascending"},
		"key twice":        {"02016100016100", "keys not ascending"},
		"kind":             {"01016108", "unknown kind"},
		"boolean":          {"0101610202", "boolean neither 0 nor 1"},
		"long varint":      {"8000", "varint too long"},
		"65-bit varint":    {"ffffffffffffffffff02", "varint too long"},
		"count":            {"ffffffff0f00", "count larger than the input"},
		"nested counts":    {"010161" + strings.Repeat("0604", 4), "count larger than the input"},
		"depth":            {"010161" + strings.Repeat("0601", MaxDepth) + "0300", "nested too deeply"},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := hex.DecodeString(tc.in)
			require.NoError(t, err)
			_, err = DecodeAttrs(b)
			assert.ErrorContains(t, err, tc.err)
		})
	}
}

func FuzzDecodeAttrs(f *testing.F) {
	f.Add(everyKind().Append(nil))
	f.Add(Attrs{{"deep", nested(MaxDepth)}}.Append(nil))
	f.Add([]byte("\x7f\x00\x06\x7f\x06\x7f"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var a Attrs
		var err error
		decodeLimit.Check(t, len(b), func() { a, err = DecodeAttrs(b) })
		if err == nil && !bytes.Equal(a.Append(nil), b) {
			t.Errorf("%x became %x", b, a.Append(nil))
		}
	})
}

func FuzzDecodeValue(f *testing.F) {
	f.Add(Value{Kind: KindMap, Map: everyKind()}.Append(nil))
	f.Add(bytes.Repeat([]byte{6, 100}, 100))
	f.Fuzz(func(t *testing.T, b []byte) {
		var v Value
		var err error
		decodeLimit.Check(t, len(b), func() { v, err = DecodeValue(b) })
		if err == nil && !bytes.Equal(v.Append(nil), b) {
			t.Errorf("%x became %x", b, v.Append(nil))
		}
	})
}
