// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFromJSON(t *testing.T) {
	for _, c := range []struct {
		name  string
		d     DType
		text  string
		want  []int64
		shape []int64
		json  string // what comes back; "" means text
		err   string
	}{
		{name: "float32 takes integers", d: Float32, text: `[[1,2.5],[3,-4e2]]`, shape: []int64{2, 2}, json: `[[1,2.5],[3,-400]]`},
		{name: "a scalar", d: Float64, text: ` 3.25 `, shape: nil, json: `3.25`},
		{name: "a row gets the first dimension", d: Int64, text: `[1,2]`, want: []int64{-1, 2}, shape: []int64{1, 2}, json: `[[1,2]]`},
		{name: "a flat list takes a known shape", d: Float32, text: `[1,2,3,4]`, want: []int64{1, 2, 2}, shape: []int64{1, 2, 2}, json: `[[[1,2],[3,4]]]`},
		{name: "a sequence of unknown length is one row", d: Int64, text: `[7,8,9]`, want: []int64{-1, -1}, shape: []int64{1, 3}, json: `[[7,8,9]]`},
		{name: "strings", d: String, text: `["a","b\nc","é"]`, shape: []int64{3}, json: `["a","b\nc","é"]`},
		{name: "bools", d: Bool, text: `[true,0,1,false]`, shape: []int64{4}, json: `[true,false,true,false]`},
		{name: "not a number", d: Float32, text: `["NaN","Infinity","-Infinity"]`, shape: []int64{3}},
		{name: "an empty list", d: Float32, text: `[]`, shape: []int64{0}},
		{name: "empty rows", d: Float32, text: `[[],[]]`, shape: []int64{2, 0}},
		{name: "the largest uint64", d: Uint64, text: `[18446744073709551615]`, shape: []int64{1}},
		{name: "the smallest int64", d: Int64, text: `[-9223372036854775808]`, shape: []int64{1}},
		{name: "an integer with an exponent", d: Int32, text: `[1e3]`, shape: []int64{1}, json: `[1000]`},
		{name: "half precision", d: Float16, text: `[0.1,65504,6e-8]`, shape: []int64{3}, json: `[0.099975586,65504,5.9604645e-08]`},

		{name: "a fraction is no integer", d: Int32, text: `[1,2.5]`, err: "at byte 3: 2.5 has a fraction and is no int32"},
		{name: "out of range", d: Int8, text: `[128]`, err: "128 is out of the range of int8"},
		{name: "negative", d: Uint8, text: `[-1]`, err: "-1 is out of the range of uint8"},
		{name: "too large for float32", d: Float32, text: `[1e39]`, err: "too large for float32"},
		{name: "ragged", d: Float32, text: `[[1,2],[3]]`, err: "a list has 1 elements where another of its level has 2"},
		{name: "mixed", d: Float32, text: `[1,[2]]`, err: "lists and values are mixed"},
		{name: "mixed the other way", d: Float32, text: `[[1],2]`, err: "lists and values are mixed"},
		{name: "a number for a string", d: String, text: `[1]`, err: "1 is no string"},
		{name: "a string for a number", d: Float32, text: `["1"]`, err: "a string is no float32"},
		{name: "null", d: Float32, text: `[null]`, err: `"null" is no element`},
		{name: "cut off", d: Float32, text: `[1,`, err: "the list does not end"},
		{name: "something follows", d: Float32, text: `[1] 2`, err: "something follows"},
		{name: "a wrong shape", d: Float32, text: `[[1,2],[3,4]]`, want: []int64{-1, 3}, err: "the shape [2 2] does not fit [?, 3]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := FromJSON(c.d, []byte(c.text), c.want)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.shape, got.Shape)
			text, err := got.MarshalJSON()
			require.NoError(t, err)
			want := c.json
			if want == "" {
				want = c.text
			}
			assert.Equal(t, want, string(text))
		})
	}
}

func TestFloat16(t *testing.T) {
	t.Run("each finite number comes back", func(t *testing.T) {
		for i := range 1 << 16 {
			h := uint16(i)
			f := fromFloat16(h)
			if f != f {
				assert.True(t, math.IsNaN(float64(fromFloat16(toFloat16(f)))))
				continue
			}
			require.Equal(t, h, toFloat16(f), "%#x", h)
		}
	})
	t.Run("rounding is to the nearest", func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		for range 200_000 {
			f := float32((r.Float64()*2 - 1) * math.Pow(2, float64(r.IntN(42)-26)))
			h := toFloat16(f)
			distance := math.Abs(float64(fromFloat16(h) - f))
			if h&0x7c00 == 0x7c00 {
				require.GreaterOrEqual(t, math.Abs(float64(f)), 65520.0)
				continue
			}
			for _, other := range []uint16{h - 1, h + 1} {
				if o := float64(fromFloat16(other)); h&0x7fff != 0 && !math.IsNaN(o) && !math.IsInf(o, 0) {
					require.LessOrEqual(t, distance, math.Abs(o-float64(f)))
				}
			}
		}
	})
}

// Random tensors come back from JSON and from the binary form, and rows join again.
func TestForms(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range types {
		d := DType(i)
		if !d.Known() {
			continue
		}
		t.Run(d.String(), func(t *testing.T) {
			for range 50 {
				shape := make([]int64, 1+r.IntN(3))
				for i := range shape {
					shape[i] = int64(1 + r.IntN(4))
				}
				x, err := New(d, shape)
				require.NoError(t, err)
				for i := range x.Strings {
					x.Strings[i] = string(rune('a'+r.IntN(26))) + "\"\\é"
				}
				for i := range x.Len() {
					switch {
					case d == Bool:
						x.Data[i] = byte(r.IntN(2))
					case d.float():
						x.putFloat(i, float64(r.IntN(2000)-1000)/8)
					case d != String:
						size := d.Size()
						for k := range size {
							x.Data[i*size+k] = byte(r.Uint32())
						}
					}
				}
				text, err := json.Marshal(x)
				require.NoError(t, err)
				y, err := FromJSON(d, text, nil)
				require.NoError(t, err)
				require.Equal(t, x, y)
				y, err = FromBinary(d, shape, x.AppendBinary(nil))
				require.NoError(t, err)
				require.Equal(t, x, y)
				cut := r.Int64N(shape[0] + 1)
				y, err = Concat([]*Tensor{x.Rows(0, cut), x.Rows(cut, shape[0])})
				require.NoError(t, err)
				require.Equal(t, x, y)
			}
		})
	}
}

func FuzzFromJSON(f *testing.F) {
	f.Add(int32(Float32), `[[1,2.5],[3,-4e2]]`)
	f.Add(int32(String), `["a","\u00e9"]`)
	f.Add(int32(Int8), `[[[]]]`)
	f.Fuzz(func(t *testing.T, d int32, text string) {
		if !DType(d).Known() {
			return
		}
		x, err := FromJSON(DType(d), []byte(text), nil)
		if err != nil {
			return
		}
		n, err := Elements(x.Shape)
		require.NoError(t, err)
		require.Equal(t, n, x.Len())
		again, err := json.Marshal(x)
		require.NoError(t, err)
		_, err = FromJSON(DType(d), again, nil)
		require.NoError(t, err)
	})
}

func FuzzFromBinary(f *testing.F) {
	f.Add(int32(String), int64(1), []byte{1, 0, 0, 0, 'a'})
	f.Add(int32(Float32), int64(1), []byte{0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, d int32, n int64, data []byte) {
		if !DType(d).Known() {
			return
		}
		x, err := FromBinary(DType(d), []int64{n}, data)
		if err == nil {
			require.Equal(t, data, append([]byte{}, x.AppendBinary(nil)...))
		}
	})
}

func BenchmarkFromJSON(b *testing.B) {
	values := make([]float32, 3*224*224)
	for i := range values {
		values[i] = float32(i%256) / 255
	}
	text, err := json.Marshal(values)
	require.NoError(b, err)
	b.SetBytes(int64(len(text)))
	b.Run("ours", func(b *testing.B) {
		for b.Loop() {
			if _, err := FromJSON(Float32, text, []int64{-1, 3, 224, 224}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("encoding/json into []float32", func(b *testing.B) {
		for b.Loop() {
			var v []float32
			if err := json.Unmarshal(text, &v); err != nil {
				b.Fatal(err)
			}
		}
	})
}
