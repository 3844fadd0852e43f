// SPDX-License-Identifier: Apache-2.0

// Package engine runs ONNX models with ONNX Runtime, on the first execution provider that works. It
// needs cgo. Without it, Open returns an error.
package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

// Errors of Run. All other errors are failures of ONNX Runtime.
var (
	// ErrInput says that the inputs do not fit the model.
	ErrInput = errors.New("invalid input")
	// ErrTimeout says that the run was terminated because its context ended.
	ErrTimeout = errors.New("the run was terminated")
)

// Options of a model.
type Options struct {
	// Provider is the short name of a provider. If it does not work, the next one of the platform is
	// used, unless Force is set. Empty means the order of the platform.
	Provider string
	Force    bool
	// GPUMemory bounds the arena of the provider on the device, in bytes; 0 means no bound. It does not
	// bound what cuDNN allocates.
	GPUMemory int64
	// Threads is the number of threads of one operator; 0 leaves it to ONNX Runtime.
	Threads int
	// Optimized is a file to write the optimised model to; it fits this machine and provider only.
	Optimized string
	// Profile is the prefix of a file to write ONNX Runtime's own profile to, when the model is closed.
	Profile string
}

// Rejection says why a provider was not used.
type Rejection struct {
	Provider string `json:"provider"`
	Reason   string `json:"reason"`
}

// Selection is the provider in use.
type Selection struct {
	Provider Provider
	Rejected []Rejection
	// LoadTime is how long the session took to open.
	LoadTime time.Duration
}

// Tensors is the inputs or outputs of a run by name.
type Tensors map[string]*tensor.Tensor

// Check says whether values fit the inputs of a model, in one sentence that names the input. The
// error wraps ErrInput.
func Check(inputs []onnx.Value, values Tensors) error {
	var known map[string]int64
	for _, in := range inputs {
		t, ok := values[in.Name]
		if !ok {
			return fmt.Errorf("%w: the input %q is missing", ErrInput, in.Name)
		}
		if t.DType != in.DType {
			return fmt.Errorf("%w: the input %q is %s, and the model needs %s", ErrInput, in.Name, t.DType, in.DType)
		}
		if !in.Ranked {
			continue
		}
		fits := len(t.Shape) == len(in.Dims)
		for i := 0; fits && i < len(in.Dims); i++ {
			d := in.Dims[i]
			if d.Size >= 0 {
				fits = d.Size == t.Shape[i]
			} else if d.Name != "" {
				if size, ok := known[d.Name]; ok && size != t.Shape[i] {
					return fmt.Errorf("%w: the dimension %s of the input %q is %d, and elsewhere it is %d", ErrInput, d.Name, in.Name, t.Shape[i], size)
				}
				if known == nil {
					known = map[string]int64{}
				}
				known[d.Name] = t.Shape[i]
			}
		}
		if !fits {
			return fmt.Errorf("%w: the input %q has the shape %v, and the model needs %s", ErrInput, in.Name, t.Shape, in.Text())
		}
	}
	if len(values) > len(inputs) {
		for name := range values {
			if !slices.Contains(Names(inputs), name) {
				return fmt.Errorf("%w: the model has no input %q; its inputs are %s", ErrInput, name, strings.Join(Names(inputs), ", "))
			}
		}
	}
	return nil
}

// Zeros returns inputs with zeros, or with empty strings. A first dimension that the model leaves open
// gets the size rows, and others the size 1.
func Zeros(inputs []onnx.Value, rows int64) (Tensors, error) {
	values := Tensors{}
	for _, in := range inputs {
		shape := in.Shape()
		for i, size := range shape {
			if size < 0 && i == 0 {
				shape[i] = rows
			} else if size < 0 {
				shape[i] = 1
			}
		}
		t, err := tensor.New(in.DType, shape)
		if err != nil {
			return nil, err
		}
		values[in.Name] = t
	}
	return values, nil
}

// Names returns the names of inputs or outputs.
func Names(values []onnx.Value) []string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = v.Name
	}
	return list
}

// supported says why the model cannot be run here, in one sentence.
func supported(m *onnx.Model) error {
	if len(m.Inputs) == 0 {
		return errors.New("the model has no inputs")
	}
	for _, list := range [][]onnx.Value{m.Inputs, m.Outputs} {
		for _, v := range list {
			switch {
			case v.Kind != "tensor":
				return fmt.Errorf("%q is a value of the kind %q; only tensors are supported", v.Name, v.Kind)
			case !v.DType.Known():
				return fmt.Errorf("%q has elements of %s, which is not supported", v.Name, v.DType)
			}
		}
	}
	for _, v := range m.Outputs {
		half := v.DType == tensor.Float16 || v.DType == tensor.BFloat16
		if _, known := outputShape(v, symbols(m.Inputs, nil)); half && !known {
			return fmt.Errorf("the shape %s of the output %q cannot be derived from the inputs, which %s needs", v.Text(), v.Name, v.DType)
		}
	}
	return nil
}

// symbols returns the sizes of the named dimensions. Without values, each has the size 1.
func symbols(inputs []onnx.Value, values Tensors) map[string]int64 {
	sizes := map[string]int64{}
	for _, in := range inputs {
		for i, d := range in.Dims {
			if d.Size >= 0 || d.Name == "" {
				continue
			}
			sizes[d.Name] = 1
			if t, ok := values[in.Name]; ok && i < len(t.Shape) {
				sizes[d.Name] = t.Shape[i]
			}
		}
	}
	return sizes
}

// outputShape returns the shape of an output if the model and the inputs determine it.
func outputShape(v onnx.Value, sizes map[string]int64) ([]int64, bool) {
	if !v.Ranked {
		return nil, false
	}
	shape := make([]int64, len(v.Dims))
	for i, d := range v.Dims {
		size, ok := d.Size, d.Size >= 0
		if !ok && d.Name != "" {
			size, ok = sizes[d.Name]
		}
		if !ok {
			return nil, false
		}
		shape[i] = size
	}
	return shape, true
}
