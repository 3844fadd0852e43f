// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"go.opentelemetry.io/otel/attribute"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
	"github.com/gpuflight/gpuflight/sdk/gpufl"
)

// opened is the library that the process uses. ONNX Runtime has one environment for a process.
var opened struct {
	sync.Mutex
	library string
}

// Open loads the library of ONNX Runtime. A process can open one library only; opening it again does
// nothing.
func Open(library string) error {
	opened.Lock()
	defer opened.Unlock()
	if opened.library == library {
		return nil
	}
	if opened.library != "" {
		return fmt.Errorf("%s is open already, and a process can open one ONNX Runtime only", opened.library)
	}
	// Versions of ONNX Runtime from 1.29 send usage data unless this is set before they are loaded.
	if err := os.Setenv("ORT_DISABLE_TELEMETRY", "1"); err != nil {
		return err
	}
	ort.SetSharedLibraryPath(library)
	// Errors are returned, so that nothing else needs to be written.
	if err := ort.InitializeEnvironment(ort.WithLogLevelFatal()); err != nil {
		return fmt.Errorf("%s: %w", library, err)
	}
	opened.library = library
	return nil
}

// Version returns the version of the open library.
func Version() string { return ort.GetVersion() }

// Model is a model on a provider. Its methods are safe for concurrent use, except Close.
type Model struct {
	Info      *onnx.Model
	Selection Selection
	session   *ort.DynamicAdvancedSession
	// options are those of earlier runs.
	options chan *ort.RunOptions
	// undeclared says that outputs do not have the shapes that the model declares.
	undeclared atomic.Bool
}

// maxOptions is the most options that are kept.
const maxOptions = 64

// Load opens a model. The path is that of the .onnx file.
func Load(path string, o Options) (*Model, error) {
	info, err := onnx.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := supported(info); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	m := &Model{Info: info, options: make(chan *ort.RunOptions, maxOptions)}
	m.Selection, err = choose(o, func(s *ort.SessionOptions) (err error) {
		m.session, err = ort.NewDynamicAdvancedSession(path, Names(info.Inputs), Names(info.Outputs), s)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// Probe opens a small model on each provider, and returns the working ones and why the others do not
// work.
func Probe() (working []Provider, rejected []Rejection) {
	model := onnx.Add()
	for _, p := range Priority(runtime.GOOS, runtime.GOARCH) {
		s, err := choose(Options{Provider: p.Name, Force: true}, func(s *ort.SessionOptions) error {
			session, err := ort.NewDynamicAdvancedSessionWithONNXData(model, []string{"A", "B"}, []string{"C"}, s)
			if err == nil {
				err = session.Destroy()
			}
			return err
		})
		if err != nil {
			rejected = append(rejected, s.Rejected...)
		} else {
			working = append(working, p)
		}
	}
	return working, append(rejected, absent(runtime.GOOS, runtime.GOARCH)...)
}

// choose opens a session on the first provider that works.
func choose(o Options, open func(*ort.SessionOptions) error) (s Selection, err error) {
	providers, rejected, err := order(o.Provider, o.Force, runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return s, err
	}
	s.Rejected = rejected
	for _, p := range providers {
		began := time.Now()
		err = with(p, o, open)
		if err == nil {
			s.Provider, s.LoadTime = p, time.Since(began)
			return s, nil
		}
		s.Rejected = append(s.Rejected, Rejection{p.Name, reason(err)})
	}
	if len(providers) == 1 {
		return s, fmt.Errorf("the provider %s does not work: %s", providers[0].Name, reason(err))
	}
	return s, fmt.Errorf("no provider works; %s says: %s", providers[len(providers)-1].Name, reason(err))
}

// status is how ONNX Runtime begins the text of an error, after the place in its source.
var status = regexp.MustCompile(`^.*\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : `)

// reason takes the first line of an error of ONNX Runtime, without the place in its source.
func reason(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimSpace(status.ReplaceAllString(text, ""))
}

func with(p Provider, o Options, open func(*ort.SessionOptions) error) error {
	s, err := ort.NewSessionOptions()
	if err != nil {
		return err
	}
	defer func() { _ = s.Destroy() }() // always nil
	if err := s.SetExecutionMode(ort.ExecutionModeSequential); err != nil {
		return err // the launches of a run must come from the thread that runs it
	}
	if o.Threads > 0 {
		if err := s.SetIntraOpNumThreads(o.Threads); err != nil {
			return err
		}
	}
	if o.Optimized != "" {
		if err := s.SetOptimizedModelFilePath(o.Optimized); err != nil {
			return err
		}
	}
	if o.Profile != "" {
		if err := s.EnableProfiling(o.Profile); err != nil {
			return err
		}
	}
	if err := appendProvider(s, p, o); err != nil {
		return err
	}
	return open(s)
}

func appendProvider(s *ort.SessionOptions, p Provider, o Options) error {
	values := settings(p, o)
	switch p.Name {
	case cpu.Name:
		return nil
	case cuda.Name:
		options, err := ort.NewCUDAProviderOptions()
		if err != nil {
			return err
		}
		defer func() { _ = options.Destroy() }() // always nil
		if err := options.Update(values); err != nil {
			return err
		}
		return s.AppendExecutionProviderCUDA(options)
	case tensorrt.Name:
		options, err := ort.NewTensorRTProviderOptions()
		if err != nil {
			return err
		}
		defer func() { _ = options.Destroy() }() // always nil
		return s.AppendExecutionProviderTensorRT(options)
	case coreml.Name:
		return s.AppendExecutionProviderCoreMLV2(values)
	case directml.Name:
		return s.AppendExecutionProviderDirectML(0)
	case openvino.Name:
		return s.AppendExecutionProviderOpenVINO(values)
	default:
		return s.AppendExecutionProvider(strings.TrimSuffix(p.ORT, "ExecutionProvider"), values)
	}
}

// Close releases the model after its runs have returned.
func (m *Model) Close() error {
	for {
		select {
		case o := <-m.options:
			_ = o.Destroy() // always nil
			continue
		default:
		}
		return m.session.Destroy()
	}
}

// Run runs the model. Values must have exactly the model's inputs. If ctx ends, the run is
// terminated. The work of the run is in a scope session.run of the trace in ctx.
func (m *Model) Run(ctx context.Context, values Tensors) (result Tensors, err error) {
	if err := Check(m.Info.Inputs, values); err != nil {
		return nil, err
	}
	rows := int64(1)
	if first := values[m.Info.Inputs[0].Name]; len(first.Shape) > 0 {
		rows = first.Shape[0]
	}
	err = gpufl.Do(ctx, "session.run", func(context.Context) error {
		result, err = m.run(ctx, values)
		return err
	}, attribute.String("gpux.provider", m.Selection.Provider.Name), attribute.Int64("gpux.rows", rows))
	return result, err
}

func (m *Model) run(ctx context.Context, values Tensors) (Tensors, error) {
	// Outputs in memory that exists spare the binding a copy. ONNX Runtime refuses them if the model
	// declares other shapes than it returns.
	allocate := !m.undeclared.Load()
	out, err := m.runOnce(ctx, values, allocate)
	if err == nil || !allocate || errors.Is(err, ErrTimeout) || errors.Is(err, ErrInput) {
		return out, err
	}
	out, again := m.runOnce(ctx, values, false)
	if again == nil {
		m.undeclared.Store(true)
	}
	return out, again
}

func (m *Model) runOnce(ctx context.Context, values Tensors, allocate bool) (Tensors, error) {
	in, out := make([]ort.Value, len(m.Info.Inputs)), make([]ort.Value, len(m.Info.Outputs))
	defer func() {
		for _, values := range [][]ort.Value{in, out} {
			for _, v := range values {
				if v != nil {
					_ = v.Destroy() // always nil
				}
			}
		}
	}()
	var err error
	for i, v := range m.Info.Inputs {
		if in[i], err = toORT(values[v.Name]); err != nil {
			return nil, fmt.Errorf("%w: the input %q: %w", ErrInput, v.Name, err)
		}
	}
	// The binding cannot return scalars and half-precision tensors that ONNX Runtime allocates.
	sizes := symbols(m.Info.Inputs, values)
	results := make([]*tensor.Tensor, len(out))
	for i, v := range m.Info.Outputs {
		half := v.DType == tensor.Float16 || v.DType == tensor.BFloat16
		needed := half || v.Ranked && len(v.Dims) == 0
		if v.DType == tensor.String || !needed && !allocate {
			continue
		}
		shape, known := outputShape(v, sizes)
		if !known {
			continue // not needed, as supported has checked
		}
		if results[i], err = tensor.New(v.DType, shape); err != nil {
			return nil, fmt.Errorf("the output %q: %w", v.Name, err)
		}
		if out[i], err = toORT(results[i]); err != nil {
			return nil, fmt.Errorf("the output %q: %w", v.Name, err)
		}
	}
	if err := m.terminable(ctx, in, out); err != nil {
		return nil, err
	}
	named := make(Tensors, len(out))
	for i, v := range m.Info.Outputs {
		t := results[i]
		if t == nil || len(t.Shape) == 0 { // a scalar is a copy
			if t, err = fromORT(v.DType, out[i]); err != nil {
				return nil, fmt.Errorf("the output %q: %w", v.Name, err)
			}
		}
		named[v.Name] = t
	}
	return named, nil
}

// terminable runs the session and ends the run when ctx ends.
func (m *Model) terminable(ctx context.Context, in, out []ort.Value) (err error) {
	if ctx.Done() == nil {
		return runError(m.session.RunWithOptions(in, out, nil))
	}
	var options *ort.RunOptions
	select {
	case options = <-m.options:
	default:
		if options, err = ort.NewRunOptions(); err != nil {
			return err
		}
	}
	terminated := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = options.Terminate() // the run then ends by itself
		close(terminated)
	})
	err = m.session.RunWithOptions(in, out, options)
	keep := stop()
	if !keep {
		<-terminated
	} else {
		select {
		case m.options <- options:
		default:
			keep = false
		}
	}
	if !keep {
		_ = options.Destroy() // always nil
	}
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrTimeout, context.Cause(ctx))
	}
	return runError(err)
}

func runError(err error) error {
	if err != nil {
		return errors.New(reason(err))
	}
	return nil
}

// toORT makes a value that uses the memory of the tensor, unless it is a scalar or has strings.
func toORT(t *tensor.Tensor) (ort.Value, error) {
	if t.DType == tensor.String {
		if len(t.Shape) == 0 {
			return nil, errors.New("scalar strings are not supported")
		}
		v, err := ort.NewStringTensor(ort.NewShape(t.Shape...))
		if err != nil {
			return nil, err
		}
		if len(t.Strings) > 0 {
			err = v.SetContents(t.Strings)
		}
		return v, err
	}
	switch t.DType {
	case tensor.Float32:
		return number[float32](t)
	case tensor.Float64:
		return number[float64](t)
	case tensor.Int8:
		return number[int8](t)
	case tensor.Int16:
		return number[int16](t)
	case tensor.Int32:
		return number[int32](t)
	case tensor.Int64:
		return number[int64](t)
	case tensor.Uint8:
		return number[uint8](t)
	case tensor.Uint16:
		return number[uint16](t)
	case tensor.Uint32:
		return number[uint32](t)
	case tensor.Uint64:
		return number[uint64](t)
	case tensor.Bool:
		return number[bool](t)
	}
	return ort.NewCustomDataTensor(ort.NewShape(t.Shape...), t.Data, ort.TensorElementDataType(t.DType))
}

func number[T ort.TensorData](t *tensor.Tensor) (ort.Value, error) {
	var data []T
	if n := t.Len(); n > 0 {
		if uintptr(unsafe.Pointer(&t.Data[0]))%unsafe.Alignof(data[0]) != 0 {
			t.Data = append(make([]byte, 0, len(t.Data)+8), t.Data...)
		}
		data = unsafe.Slice((*T)(unsafe.Pointer(&t.Data[0])), n)
	}
	if len(t.Shape) == 0 {
		return ort.NewScalar(data[0])
	}
	return ort.NewTensor(ort.NewShape(t.Shape...), data)
}

// fromORT copies a value of ONNX Runtime.
func fromORT(d tensor.DType, v ort.Value) (*tensor.Tensor, error) {
	shape := append([]int64{}, v.GetShape()...)
	switch v := v.(type) {
	case *ort.StringTensor:
		t := &tensor.Tensor{DType: d, Shape: shape}
		n, err := tensor.Elements(shape)
		if err != nil || n == 0 {
			return t, err
		}
		if len(shape) == 0 { // GetContents fails on scalars
			s, err := v.GetElement(0)
			t.Strings = []string{s}
			return t, err
		}
		t.Strings, err = v.GetContents()
		return t, err
	case *ort.CustomDataTensor:
		return &tensor.Tensor{DType: d, Shape: shape, Data: v.GetData()}, nil
	}
	var data []byte
	switch v := v.(type) {
	case *ort.Tensor[float32]:
		data = raw(v.GetData())
	case *ort.Tensor[float64]:
		data = raw(v.GetData())
	case *ort.Tensor[int8]:
		data = raw(v.GetData())
	case *ort.Tensor[int16]:
		data = raw(v.GetData())
	case *ort.Tensor[int32]:
		data = raw(v.GetData())
	case *ort.Tensor[int64]:
		data = raw(v.GetData())
	case *ort.Tensor[uint8]:
		data = raw(v.GetData())
	case *ort.Tensor[uint16]:
		data = raw(v.GetData())
	case *ort.Tensor[uint32]:
		data = raw(v.GetData())
	case *ort.Tensor[uint64]:
		data = raw(v.GetData())
	case *ort.Tensor[bool]:
		data = raw(v.GetData())
	case *ort.Scalar[float32]:
		data = raw([]float32{v.GetData()})
	case *ort.Scalar[float64]:
		data = raw([]float64{v.GetData()})
	case *ort.Scalar[int8]:
		data = raw([]int8{v.GetData()})
	case *ort.Scalar[int16]:
		data = raw([]int16{v.GetData()})
	case *ort.Scalar[int32]:
		data = raw([]int32{v.GetData()})
	case *ort.Scalar[int64]:
		data = raw([]int64{v.GetData()})
	case *ort.Scalar[uint8]:
		data = raw([]uint8{v.GetData()})
	case *ort.Scalar[uint16]:
		data = raw([]uint16{v.GetData()})
	case *ort.Scalar[uint32]:
		data = raw([]uint32{v.GetData()})
	case *ort.Scalar[uint64]:
		data = raw([]uint64{v.GetData()})
	case *ort.Scalar[bool]:
		data = raw([]bool{v.GetData()})
	default:
		return nil, fmt.Errorf("ONNX Runtime returned a %T", v)
	}
	return &tensor.Tensor{DType: d, Shape: shape, Data: data}, nil
}

// raw returns the bytes of numbers, which no longer belong to ONNX Runtime: the binding keeps them in
// memory of Go.
func raw[T ort.TensorData](data []T) []byte {
	if len(data) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&data[0])), len(data)*int(unsafe.Sizeof(data[0])))
}
