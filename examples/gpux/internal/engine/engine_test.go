// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/orttest"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

func load(t testing.TB, path string, o engine.Options) *engine.Model {
	t.Helper()
	orttest.Open(t)
	m, err := engine.Load(path, o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	return m
}

func floats(t testing.TB, value any) *tensor.Tensor {
	t.Helper()
	text, err := json.Marshal(value)
	require.NoError(t, err)
	x, err := tensor.FromJSON(tensor.Float32, text, nil)
	require.NoError(t, err)
	return x
}

// decode reads a tensor as its JSON.
func decode[T any](t testing.TB, x *tensor.Tensor) (v T) {
	t.Helper()
	text, err := json.Marshal(x)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &v))
	return v
}

func TestDigits(t *testing.T) {
	m := load(t, filepath.Join(orttest.Digits(), "digits.onnx"), engine.Options{})
	want := orttest.ReadExpected(t)
	t.Run("outputs equal those of the framework", func(t *testing.T) {
		out, err := m.Run(t.Context(), engine.Tensors{"image": floats(t, want.Image)})
		require.NoError(t, err)
		right := 0
		for i, row := range decode[[][]float32](t, out["logits"]) {
			require.InDeltaSlice(t, want.Logits[i], row, 1e-5)
		}
		for i, digit := range decode[[]int64](t, out["digit"]) {
			if digit == want.Digit[i] {
				right++
			}
		}
		assert.GreaterOrEqual(t, right, 19)
	})
	t.Run("runs at the same time do not mix", func(t *testing.T) {
		var all sync.WaitGroup
		for i := range want.Image {
			all.Go(func() {
				for range 50 {
					out, err := m.Run(t.Context(), engine.Tensors{"image": floats(t, want.Image[i:i+1])})
					if !assert.NoError(t, err) {
						return
					}
					assert.InDeltaSlice(t, want.Logits[i], decode[[][]float32](t, out["logits"])[0], 1e-5)
				}
			})
		}
		all.Wait()
	})
	t.Run("the input is checked", func(t *testing.T) {
		for text, values := range map[string]engine.Tensors{
			`the input "image" is missing`: {},
			`the input "image" has the shape [1 8 8], and the model needs [batch, 1, 8, 8]`: {"image": floats(t, want.Image[0])},
			`the model has no input "other"; its inputs are image`:                          {"image": floats(t, want.Image), "other": floats(t, 1)},
			`the input "image" is int64, and the model needs float32`:                       {"image": {DType: tensor.Int64, Shape: []int64{0}}},
		} {
			_, err := m.Run(t.Context(), values)
			require.ErrorIs(t, err, engine.ErrInput)
			require.ErrorContains(t, err, text)
		}
	})
}

// The models of the binding have types and shapes that the digits do not have.
func TestTypes(t *testing.T) {
	dir := bindingModels(t)
	t.Run("each type that the model has", func(t *testing.T) {
		m := load(t, filepath.Join(dir, "example_multitype.onnx"), engine.Options{})
		values := engine.Tensors{}
		for _, in := range m.Info.Inputs {
			x, err := tensor.New(in.DType, in.Shape())
			require.NoError(t, err)
			values[in.Name] = x
		}
		out, err := m.Run(t.Context(), values)
		require.NoError(t, err)
		for _, o := range m.Info.Outputs {
			assert.Equal(t, o.DType, out[o.Name].DType)
			assert.Equal(t, o.Shape(), out[o.Name].Shape)
		}
	})
	t.Run("half precision", func(t *testing.T) {
		m := load(t, filepath.Join(dir, "example_float16.onnx"), engine.Options{})
		in := m.Info.Inputs[0]
		x, err := tensor.New(in.DType, in.Shape())
		require.NoError(t, err)
		out, err := m.Run(t.Context(), engine.Tensors{in.Name: x})
		require.NoError(t, err)
		assert.NotEmpty(t, out[m.Info.Outputs[0].Name].Data)
	})
	t.Run("an output without elements", func(t *testing.T) {
		m := load(t, filepath.Join(dir, "example_0_dim_output.onnx"), engine.Options{})
		values := engine.Tensors{}
		for _, in := range m.Info.Inputs {
			shape := in.Shape()
			for i := range shape {
				shape[i] = max(shape[i], 1)
			}
			x, err := tensor.New(in.DType, shape)
			require.NoError(t, err)
			values[in.Name] = x
		}
		_, err := m.Run(t.Context(), values)
		require.NoError(t, err)
	})
}

func bindingModels(t *testing.T) string {
	dirs, err := filepath.Glob(filepath.Join(moduleCache(t), "github.com", "yalue", "onnxruntime_go@v*", "test_data"))
	require.NoError(t, err)
	if len(dirs) == 0 {
		t.Skip("the module cache has no source of the binding")
	}
	return dirs[len(dirs)-1]
}

func moduleCache(t *testing.T) string {
	if dir := os.Getenv("GOMODCACHE"); dir != "" {
		return dir
	}
	if dir := os.Getenv("GOPATH"); dir != "" {
		return filepath.Join(dir, "pkg", "mod")
	}
	home, err := os.UserHomeDir()
	require.NoError(t, err)
	return filepath.Join(home, "go", "pkg", "mod")
}

// endless is a model that never ends: y is x, after 2^62 iterations of a loop.
func endless(t *testing.T) string {
	t.Helper()
	bytesField := func(to []byte, number protowire.Number, b []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), b)
	}
	varint := func(to []byte, number protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(to, number, protowire.VarintType), v)
	}
	value := func(name string, d tensor.DType, dims ...uint64) []byte {
		shape := []byte{}
		for _, n := range dims {
			shape = bytesField(shape, 1, varint(nil, 1, n))
		}
		typed := bytesField(varint(nil, 1, uint64(d)), 2, shape)
		return bytesField(bytesField(nil, 1, []byte(name)), 2, bytesField(nil, 1, typed))
	}
	node := func(operator string, inputs, outputs []string) (n []byte) {
		for _, name := range inputs {
			n = bytesField(n, 1, []byte(name))
		}
		for _, name := range outputs {
			n = bytesField(n, 2, []byte(name))
		}
		return bytesField(n, 4, []byte(operator))
	}
	body := bytesField(nil, 1, node("Identity", []string{"go_on"}, []string{"go_on_out"}))
	body = bytesField(body, 1, node("Sin", []string{"state"}, []string{"state_out"}))
	body = bytesField(body, 2, []byte("body"))
	body = bytesField(body, 11, value("i", tensor.Int64))
	body = bytesField(body, 11, value("go_on", tensor.Bool))
	body = bytesField(body, 11, value("state", tensor.Float32, 1))
	body = bytesField(body, 12, value("go_on_out", tensor.Bool))
	body = bytesField(body, 12, value("state_out", tensor.Float32, 1))
	// An attribute has its name in field 1, a graph in 6, and its type, 5 for a graph, in 20.
	attribute := varint(bytesField(bytesField(nil, 1, []byte("body")), 6, body), 20, 5)
	loop := bytesField(node("Loop", []string{"n", "", "x"}, []string{"y"}), 5, attribute)
	// A tensor has its type in field 2, numbers of int64 in 7, and its name in 8.
	n := bytesField(varint(varint(nil, 2, uint64(tensor.Int64)), 7, 1<<62), 8, []byte("n"))
	graph := bytesField(bytesField(nil, 1, loop), 2, []byte("endless"))
	graph = bytesField(graph, 5, n)
	graph = bytesField(graph, 11, value("x", tensor.Float32, 1))
	graph = bytesField(graph, 12, value("y", tensor.Float32, 1))
	path := filepath.Join(t.TempDir(), "endless.onnx")
	require.NoError(t, os.WriteFile(path, bytesField(bytesField(varint(nil, 1, 8), 7, graph), 8, varint(nil, 2, 13)), 0o600))
	return path
}

func TestTimeout(t *testing.T) {
	m := load(t, endless(t), engine.Options{Threads: 1})
	values := engine.Tensors{"x": floats(t, []float32{1})}
	t.Run("a deadline ends a run", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		_, err := m.Run(ctx, values)
		require.ErrorIs(t, err, engine.ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("a client that goes away ends a run", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Millisecond, cancel)
		_, err := m.Run(ctx, values)
		require.ErrorIs(t, err, engine.ErrTimeout)
		require.ErrorIs(t, err, context.Canceled)
	})
	t.Run("a run does not begin after the deadline", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := m.Run(ctx, values)
		require.ErrorIs(t, err, engine.ErrTimeout)
	})
	t.Run("one run that ends does not end another", func(t *testing.T) {
		digits := load(t, filepath.Join(orttest.Digits(), "digits.onnx"), engine.Options{})
		image := engine.Tensors{"image": floats(t, orttest.ReadExpected(t).Image[:1])}
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := m.Run(ctx, values)
			cancel()
			require.ErrorIs(t, err, engine.ErrTimeout)
			_, err = digits.Run(t.Context(), image)
			require.NoError(t, err)
		}
	})
}

func TestLoad(t *testing.T) {
	t.Run("a provider that does not work gives way, with the reason", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("the providers are those of Linux")
		}
		if _, err := os.Stat("/dev/nvidia0"); err == nil {
			t.Skip("CUDA may work here")
		}
		m := load(t, filepath.Join(orttest.Digits(), "digits.onnx"), engine.Options{Provider: "cuda"})
		assert.Equal(t, "cpu", m.Selection.Provider.Name)
		require.NotEmpty(t, m.Selection.Rejected)
		assert.Equal(t, "cuda", m.Selection.Rejected[0].Provider)
		assert.NotEmpty(t, m.Selection.Rejected[0].Reason)
	})
	t.Run("a forced provider does not give way", func(t *testing.T) {
		orttest.Open(t)
		_, err := engine.Load(filepath.Join(orttest.Digits(), "digits.onnx"), engine.Options{Provider: "migraphx", Force: true})
		require.ErrorContains(t, err, "the provider migraphx does not work")
	})
	t.Run("an unknown provider", func(t *testing.T) {
		orttest.Open(t)
		_, err := engine.Load(filepath.Join(orttest.Digits(), "digits.onnx"), engine.Options{Provider: "quantum"})
		require.ErrorContains(t, err, `there is no provider "quantum" on this platform; the providers are`)
	})
	t.Run("a file that is cut off", func(t *testing.T) {
		orttest.Open(t)
		data, err := os.ReadFile(filepath.Join(orttest.Digits(), "digits.onnx"))
		require.NoError(t, err)
		path := filepath.Join(t.TempDir(), "cut.onnx")
		require.NoError(t, os.WriteFile(path, data[:len(data)/2], 0o600))
		_, err = engine.Load(path, engine.Options{})
		require.ErrorContains(t, err, "this is no ONNX model")
	})
	t.Run("a file that is cut off anywhere", func(t *testing.T) {
		orttest.Open(t)
		data, err := os.ReadFile(filepath.Join(orttest.Digits(), "digits.onnx"))
		require.NoError(t, err)
		path := filepath.Join(t.TempDir(), "cut.onnx")
		for n := 0; n < len(data); n += 97 {
			require.NoError(t, os.WriteFile(path, data[:n], 0o600))
			_, err = engine.Load(path, engine.Options{Provider: "cpu", Force: true})
			require.ErrorContains(t, err, "this is no ONNX model", "%d bytes", n)
		}
	})
	t.Run("providers are probed with a small model", func(t *testing.T) {
		orttest.Open(t)
		working, rejected := engine.Probe()
		require.NotEmpty(t, working)
		assert.Equal(t, "cpu", working[len(working)-1].Name)
		assert.Len(t, engine.Priority(runtime.GOOS, runtime.GOARCH), len(working)+len(rejected))
	})
	t.Run("the small model is valid", func(t *testing.T) {
		m, err := onnx.Parse(onnx.Add())
		require.NoError(t, err)
		assert.Equal(t, map[string]int{"Add": 1}, m.Operators)
		path := filepath.Join(t.TempDir(), "add.onnx")
		require.NoError(t, os.WriteFile(path, onnx.Add(), 0o600))
		out, err := load(t, path, engine.Options{}).Run(t.Context(), engine.Tensors{"A": floats(t, []float32{1, 2}), "B": floats(t, []float32{3, 4})})
		require.NoError(t, err)
		assert.Equal(t, []float32{4, 6}, decode[[]float32](t, out["C"]))
	})
}

func BenchmarkAdd(b *testing.B) {
	path := filepath.Join(b.TempDir(), "add.onnx")
	require.NoError(b, os.WriteFile(path, onnx.Add(), 0o600))
	m := load(b, path, engine.Options{Threads: 1})
	values := engine.Tensors{"A": floats(b, []float32{1, 2}), "B": floats(b, []float32{3, 4})}
	for b.Loop() {
		if _, err := m.Run(b.Context(), values); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(onnx.Add())
	f.Add(bytes.Repeat([]byte{0x3a, 0}, 3))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = onnx.Parse(data) }) // it must return
}
