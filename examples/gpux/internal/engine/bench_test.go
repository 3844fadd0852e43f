// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package engine

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	ort "github.com/yalue/onnxruntime_go"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/ortlib"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

// BenchmarkAdd measures the smallest model. Session is ONNX Runtime's own call with values that exist;
// the rest of Run is ours.
func BenchmarkAdd(b *testing.B) {
	found, err := ortlib.Find("")
	if err != nil {
		b.Skip(err)
	}
	require.NoError(b, Open(found.Path))
	path := filepath.Join(b.TempDir(), "add.onnx")
	require.NoError(b, os.WriteFile(path, onnx.Add(), 0o600))
	m, err := Load(path, Options{Threads: 1, Provider: "cpu", Force: true})
	require.NoError(b, err)
	defer func() { require.NoError(b, m.Close()) }()
	b.Run("Session", func(b *testing.B) {
		in, out := make([]ort.Value, 2), make([]ort.Value, 1)
		for _, list := range [][]ort.Value{in, out} {
			for i := range list {
				v, err := ort.NewTensor(ort.NewShape(2), []float32{1, 2})
				require.NoError(b, err)
				defer func() { require.NoError(b, v.Destroy()) }()
				list[i] = v
			}
		}
		b.ReportAllocs()
		for b.Loop() {
			if err := m.session.RunWithOptions(in, out, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	for name, ctx := range map[string]func() (context.Context, context.CancelFunc){
		"Run":              func() (context.Context, context.CancelFunc) { return context.Background(), func() {} },
		"RunWithCanceling": func() (context.Context, context.CancelFunc) { return context.WithCancel(context.Background()) },
	} {
		b.Run(name, func(b *testing.B) {
			values := Tensors{}
			for _, v := range m.Info.Inputs {
				t, err := tensor.New(tensor.Float32, []int64{2})
				require.NoError(b, err)
				values[v.Name] = t
			}
			ctx, cancel := ctx()
			defer cancel()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := m.Run(ctx, values); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
