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

// A model may return other shapes than it declares.
func TestRun_AnotherShape(t *testing.T) {
	concat := orttest.Node("Concat", []string{"x", "x"}, []string{"y"}, orttest.Integer("axis", 0))
	path := orttest.Model(t, concat, nil, orttest.Value("x", tensor.Float32, "n"), orttest.Value("y", tensor.Float32, "n"))
	m := load(t, path, engine.Options{})
	for range 3 {
		out, err := m.Run(t.Context(), engine.Tensors{"x": floats(t, []float32{1, 2})})
		require.NoError(t, err)
		assert.Equal(t, []float32{1, 2, 1, 2}, decode[[]float32](t, out["y"]))
	}
}

func TestTimeout(t *testing.T) {
	m := load(t, orttest.Endless(t), engine.Options{Threads: 1})
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
		require.ErrorContains(t, err, `there is no provider "quantum"; the providers of `)
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
		assert.Equal(t, 7, len(working)+len(rejected), "each provider works or has a reason")
		for _, r := range rejected {
			assert.NotEmpty(t, r.Reason, r.Provider)
		}
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

func FuzzParse(f *testing.F) {
	f.Add(onnx.Add())
	f.Add(bytes.Repeat([]byte{0x3a, 0}, 3))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = onnx.Parse(data) }) // it must return
}
