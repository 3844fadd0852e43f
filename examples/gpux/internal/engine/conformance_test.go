// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package engine_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/orttest"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

// conformance is where Debian's libonnx-testdata has ONNX's own models with inputs and outputs.
const conformance = "/usr/share/libonnx-testdata/data"

// wantPassed is the number of models of libonnx-testdata 1.12.0 that must pass. It may only rise.
const wantPassed = 959

// differs are models for which ONNX Runtime itself computes other results than the test data has.
var differs = map[string]string{
	"test_cast_FLOAT_to_BFLOAT16":                        "it rounds to the nearest number, and the test data was cut off",
	"test_cast_FLOAT_to_STRING":                          "it writes 8 digits where fewer identify the number",
	"test_castlike_FLOAT_to_STRING":                      "it writes 8 digits where fewer identify the number",
	"test_castlike_FLOAT_to_STRING_expanded":             "it writes 8 digits where fewer identify the number",
	"test_dft":                                           "rounding: 0 is 1e-4 of the largest value",
	"test_dft_axis":                                      "rounding: 0 is 1e-5 of the largest value",
	"test_dft_inverse":                                   "rounding: 0 is 1e-5 of the largest value",
	"test_stft":                                          "rounding: 0 is 1e-6 of the largest value",
	"test_stft_with_window":                              "rounding: 0 is 1e-6 of the largest value",
	"test_maxunpool_export_with_output_shape":            "it reads the indices by the output's shape",
	"test_resize_downsample_scales_cubic_align_corners":  "later versions of ONNX changed the operator",
	"test_resize_downsample_scales_linear_align_corners": "later versions of ONNX changed the operator",
}

func TestConformance(t *testing.T) {
	models, err := filepath.Glob(filepath.Join(conformance, "*", "*", "model.onnx"))
	require.NoError(t, err)
	if len(models) == 0 {
		t.Skip("Debian's package libonnx-testdata is not installed")
	}
	orttest.Open(t)
	passed, failed := 0, map[string][]string{}
	for _, path := range models {
		name := filepath.Base(filepath.Dir(path))
		if err := conform(t, path); err != nil {
			if why, ok := differs[name]; ok && class(err) == different {
				err = fmt.Errorf("ONNX Runtime differs: %s", why)
			}
			failed[class(err)] = append(failed[class(err)], name)
			t.Logf("%s: %v", name, err)
			continue
		}
		passed++
	}
	t.Logf("%d of %d models passed", passed, len(models))
	for _, why := range slices.Sorted(maps.Keys(failed)) {
		t.Logf("%4d %s, such as %s", len(failed[why]), why, failed[why][0])
	}
	assert.GreaterOrEqual(t, passed, wantPassed)
	assert.Empty(t, failed[different], "wrong results are worse than errors")
}

const different = "a different result"

// class is why a model does not pass, without its details.
func class(err error) string {
	text := err.Error()
	for _, c := range [][2]string{
		{"only tensors are supported", "values that are no tensors"},
		{"no inputs", "no inputs"},
		{"is not supported", "a type that is not supported"},
		{"cannot be derived", "a half-precision output of unknown shape"},
		{"no provider works", "ONNX Runtime cannot load it"},
		{different, different},
		{"ONNX Runtime differs", "ONNX Runtime differs from the test data"},
		{"random", "random results"},
	} {
		if strings.Contains(text, c[0]) {
			return c[1]
		}
	}
	return "an error of the run"
}

// conform runs a model and compares its outputs.
func conform(t *testing.T, path string) error {
	m, err := engine.Load(path, engine.Options{Threads: 1})
	if err != nil {
		return err
	}
	defer func() { require.NoError(t, m.Close()) }()
	for _, o := range []string{"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"} {
		if m.Info.Operators[o] > 0 {
			return errors.New("random results")
		}
	}
	if m.Info.Operators["Dropout"] > 0 && strings.Contains(path, "training") && !strings.Contains(path, "zero_ratio") {
		return errors.New("random results")
	}
	values := engine.Tensors{}
	for i, in := range m.Info.Inputs {
		x, err := readTensor(filepath.Join(filepath.Dir(path), "test_data_set_0", fmt.Sprintf("input_%d.pb", i)))
		if err != nil {
			return err
		}
		if in.DType == tensor.BFloat16 && x.DType == tensor.Uint16 {
			x.DType = in.DType // the data was made before the format had the type
		}
		values[in.Name] = x
	}
	out, err := m.Run(t.Context(), values)
	if err != nil {
		return err
	}
	for i, o := range m.Info.Outputs {
		want, err := readTensor(filepath.Join(filepath.Dir(path), "test_data_set_0", fmt.Sprintf("output_%d.pb", i)))
		if err != nil {
			return err
		}
		if o.DType == tensor.BFloat16 && want.DType == tensor.Uint16 {
			want.DType = o.DType
		}
		if err := same(want, out[o.Name]); err != nil {
			return fmt.Errorf("%s: %s: %w", different, o.Name, err)
		}
	}
	return nil
}

// same compares as ONNX's backend tests do: floating-point numbers within 1e-7 + 1e-3 of them.
func same(want, got *tensor.Tensor) error {
	if want.DType != got.DType || !slices.Equal(want.Shape, got.Shape) {
		return fmt.Errorf("want %s %v, got %s %v", want.DType, want.Shape, got.DType, got.Shape)
	}
	if !slices.Equal(want.Strings, got.Strings) {
		return fmt.Errorf("want %q, got %q", want.Strings, got.Strings)
	}
	number := func(x *tensor.Tensor, i int) float64 {
		switch x.DType {
		case tensor.Float32:
			return float64(math.Float32frombits(binary.LittleEndian.Uint32(x.Data[4*i:])))
		case tensor.Float64:
			return math.Float64frombits(binary.LittleEndian.Uint64(x.Data[8*i:]))
		case tensor.Float16:
			return float64(half(binary.LittleEndian.Uint16(x.Data[2*i:])))
		default: // compared exactly, in parts of a byte
			return float64(x.Data[i])
		}
	}
	n := len(want.Data)
	switch want.DType {
	case tensor.Float32, tensor.Float64, tensor.Float16:
		n = want.Len()
	}
	for i := range n {
		a, b := number(want, i), number(got, i)
		tolerance := 1e-7 + 1e-3*math.Abs(a)
		if want.DType == tensor.Float16 {
			tolerance = 1e-3 + 1e-2*math.Abs(a)
		}
		if math.IsNaN(a) != math.IsNaN(b) || !math.IsNaN(a) && a != b && math.Abs(a-b) > tolerance {
			return fmt.Errorf("element %d: want %v, got %v", i, a, b)
		}
	}
	return nil
}

// half is another way from half to single precision than the product's.
func half(h uint16) float32 {
	sign, exponent, fraction := float64(1), int(h>>10&31), float64(h&1023)
	if h>>15 == 1 {
		sign = -1
	}
	switch exponent {
	case 0:
		return float32(sign * math.Ldexp(fraction, -24))
	case 31:
		if fraction != 0 {
			return float32(math.NaN())
		}
		return float32(math.Inf(int(sign)))
	}
	return float32(sign * math.Ldexp(1024+fraction, exponent-25))
}

// readTensor reads a TensorProto: dims 1, data_type 2, float_data 4, int32_data 5, string_data 6,
// int64_data 7, raw_data 9, double_data 10, uint64_data 11.
func readTensor(path string) (*tensor.Tensor, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	x := &tensor.Tensor{Shape: []int64{}}
	var wide []uint64 // of the typed fields, which are never mixed
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		data = data[n:]
		var v uint64
		var b []byte
		switch kind {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(data)
		case protowire.Fixed32Type:
			var w uint32
			w, n = protowire.ConsumeFixed32(data)
			v = uint64(w)
		case protowire.Fixed64Type:
			v, n = protowire.ConsumeFixed64(data)
		default:
			b, n = protowire.ConsumeBytes(data)
		}
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		data = data[n:]
		list := []uint64{v}
		if kind == protowire.BytesType {
			list = packed(number, b)
		}
		switch number {
		case 1:
			for _, v := range list {
				x.Shape = append(x.Shape, int64(v))
			}
		case 2:
			x.DType = tensor.DType(v)
		case 4, 5, 7, 10, 11:
			wide = append(wide, list...)
		case 6:
			x.Strings = append(x.Strings, string(b))
		case 9:
			x.Data = b
		}
	}
	if !x.DType.Known() {
		return nil, fmt.Errorf("%s is not supported", x.DType)
	}
	for _, v := range wide {
		var bytes [8]byte
		binary.LittleEndian.PutUint64(bytes[:], v)
		x.Data = append(x.Data, bytes[:x.DType.Size()]...)
	}
	if n, err := tensor.Elements(x.Shape); err != nil || n != x.Len() {
		return nil, fmt.Errorf("%s is no tensor: it is not supported", path)
	}
	return x, nil
}

// packed splits a packed field of a TensorProto.
func packed(number protowire.Number, b []byte) (list []uint64) {
	for len(b) > 0 {
		n, v := -1, uint64(0)
		switch number {
		case 4:
			var w uint32
			w, n = protowire.ConsumeFixed32(b)
			v = uint64(w)
		case 10:
			v, n = protowire.ConsumeFixed64(b)
		case 1, 5, 7, 11:
			v, n = protowire.ConsumeVarint(b)
		}
		if n < 0 {
			return list
		}
		list, b = append(list, v), b[n:]
	}
	return list
}
