// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gpuflight/gpuflight/examples/internal/cuda"
	"github.com/gpuflight/gpuflight/sdk/gpufl"
)

const (
	blockSize = 256
	// dynamicShared is asked for with each vector_add, so that there is something to see in its span.
	dynamicShared = 512
	graphKernels  = 4
)

// work is what to do.
type work struct{ Elements, Launches, Threads, Graphs, Empty int }

func (w *work) valid() error {
	switch {
	case w.Elements < 512 || w.Elements%512 != 0 || w.Elements > 1<<28:
		// Two streams share a vector, in whole blocks.
		return fmt.Errorf("-n is %d: it must be a multiple of 512, up to %d", w.Elements, 1<<28)
	case w.Launches < 2:
		return fmt.Errorf("-launches is %d: each of the two streams needs one", w.Launches)
	case w.Threads < 1 || w.Threads > 64:
		return fmt.Errorf("-threads is %d: 1 to 64 are possible", w.Threads)
	case w.Graphs < 0 || w.Empty < 0:
		return errors.New("-graph and -empty count launches: they cannot be below 0")
	}
	return nil
}

// report is what was launched: what a recording of it must have.
type report struct {
	Device  string            `json:"device"`
	Kernels map[string]int    `json:"kernels"`
	Copies  map[string]amount `json:"copies"`
	// Graphs are launches of graphs, each of GraphKernels kernels that are not in Kernels.
	Graphs       int `json:"graphs"`
	GraphKernels int `json:"graph_kernels"`
	// Functions say what the driver says of each kernel.
	Functions     map[string]cuda.Resources `json:"functions"`
	DynamicShared int                       `json:"dynamic_shared_bytes"`
	Workers       []worker                  `json:"workers"`
	Verified      bool                      `json:"verified"`
	Seconds       float64                   `json:"seconds"`
	Recording     gpufl.Status              `json:"recording"`
}

type amount struct {
	Count int   `json:"count"`
	Bytes int64 `json:"bytes"`
}

// worker is one thread's part. All its work is in a scope of its own.
type worker struct {
	Scope string `json:"scope"`
	// Grid is that of its launches of vector_add; no two workers have the same.
	Grid  [3]uint32 `json:"grid"`
	Block [3]uint32 `json:"block"`
	// Launches are those of vector_add, by stream.
	Launches [2]int `json:"launches"`
	TraceID  string `json:"trace_id"`
	SpanID   string `json:"span_id"`
}

// do does the work. The report is good as far as it goes where there is an error.
func (w *work) do(ctx context.Context) (r report, err error) {
	r = report{Kernels: map[string]int{}, Copies: map[string]amount{}, Functions: map[string]cuda.Resources{}, DynamicShared: dynamicShared, GraphKernels: graphKernels}
	defer func() { r.Recording = gpufl.CurrentStatus() }()
	gpu, err := cuda.NewContext(0)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, gpu.Close()) }()
	r.Device = gpu.Name()

	var kernels kernels
	if err := gpufl.Do(ctx, "load", func(context.Context) error { return gpu.Do(func() error { return kernels.load(gpu) }) }); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, gpu.Do(kernels.module.Close)) }()
	for _, f := range []*cuda.Function{kernels.add, kernels.reverse, kernels.nothing} {
		if resources, ok := f.Resources(); ok {
			r.Functions[f.Name] = resources
		}
	}

	if w.Empty > 0 {
		if err := gpu.Do(func() error { return w.empty(ctx, gpu, &kernels) }); err != nil {
			return r, err
		}
		r.Kernels[kernels.nothing.Name] = w.Empty
	}

	r.Workers = make([]worker, w.Threads)
	failed := make([]error, w.Threads)
	var threads sync.WaitGroup
	for i := range r.Workers {
		threads.Go(func() { failed[i] = w.worker(ctx, gpu, &kernels, i, &r.Workers[i]) })
	}
	threads.Wait()
	for i := range r.Workers {
		r.count(w, &r.Workers[i])
	}
	err = errors.Join(failed...)
	r.Verified = err == nil
	return r, err
}

// count adds what a worker launched.
func (r *report) count(w *work, one *worker) {
	n := int64(w.Elements) * 4
	add := func(kind string, count int, size int64) {
		b := r.Copies[kind]
		r.Copies[kind] = amount{b.Count + count, b.Bytes + size}
	}
	add("HtoD", 4, 2*n)
	add("DtoH", 2, n)
	r.Kernels["vector_add"] += one.Launches[0] + one.Launches[1]
	r.Kernels["reverse_blocks"] += 2
	r.Graphs += w.Graphs
}

type kernels struct {
	module                *cuda.Module
	add, reverse, nothing *cuda.Function
}

func (k *kernels) load(gpu *cuda.Context) (err error) {
	if k.module, err = gpu.Load(cuda.Kernels); err != nil {
		return err
	}
	for name, f := range map[string]**cuda.Function{"vector_add": &k.add, "reverse_blocks": &k.reverse, "nothing": &k.nothing} {
		if *f, err = k.module.Function(name); err != nil {
			return err
		}
	}
	return nil
}

// empty launches the empty kernel, outside of every scope.
func (w *work) empty(ctx context.Context, gpu *cuda.Context, k *kernels) error {
	stream, err := gpu.NewStream()
	if err != nil {
		return err
	}
	for range w.Empty {
		if err == nil {
			err = stream.Launch(k.nothing, cuda.Size{}, cuda.Size{32}, 0)
		}
		if err == nil {
			err = ctx.Err()
		}
	}
	return errors.Join(err, stream.Synchronize(), stream.Close())
}

// errWrong says that the GPU calculated something else than we do.
var errWrong = errors.New("the result is wrong")

// worker adds two vectors, half in each of two streams, and checks the sum.
func (w *work) worker(ctx context.Context, gpu *cuda.Context, k *kernels, number int, one *worker) error {
	one.Scope = fmt.Sprintf("worker %d", number)
	half := w.Elements / 2
	// The extra blocks find nothing to do; they distinguish the workers' launches.
	one.Grid = [3]uint32{uint32(half/blockSize + number), 1, 1}
	one.Block = [3]uint32{blockSize, 1, 1}
	ctx, scope := gpufl.Scope(ctx, one.Scope, gpufl.Attr("elements", w.Elements))
	defer scope.End()
	sc := scope.Span().SpanContext()
	one.TraceID, one.SpanID = sc.TraceID().String(), sc.SpanID().String()
	err := gpu.Do(func() error {
		v, err := newVectors(gpu, w.Elements)
		if err == nil {
			err = gpufl.Do(ctx, "compute", func(ctx context.Context) error { return w.compute(ctx, v, k, one) })
		}
		if err == nil {
			err = gpufl.Do(ctx, "check", func(context.Context) error { return v.check() })
		}
		return errors.Join(err, v.free(gpu))
	})
	scope.RecordError(err)
	return err
}

func (w *work) compute(ctx context.Context, v *vectors, k *kernels, one *worker) error {
	half := w.Elements / 2
	for s, stream := range v.streams {
		from, to := s*half, (s+1)*half
		if err := errors.Join(stream.CopyToDevice(v.at(v.da, from), v.a[from:to]), stream.CopyToDevice(v.at(v.db, from), v.b[from:to])); err != nil {
			return err
		}
	}
	add := func(s int) error {
		from := s * half
		return v.streams[s].Launch(k.add, one.Grid, one.Block, dynamicShared, v.at(v.da, from), v.at(v.db, from), v.at(v.dc, from), uint32(half))
	}
	for i := range w.Launches {
		if err := add(i % 2); err != nil {
			return err
		}
		one.Launches[i%2]++
		if i%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := w.graphs(v, k, add); err != nil {
		return err
	}
	for s, stream := range v.streams {
		from, to := s*half, (s+1)*half
		grid := cuda.Size{uint32(half / blockSize)}
		if err := errors.Join(stream.Launch(k.reverse, grid, one.Block, 0, v.at(v.dc, from)), stream.CopyToHost(v.c[from:to], v.at(v.dc, from))); err != nil {
			return err
		}
	}
	return errors.Join(v.streams[0].Synchronize(), v.streams[1].Synchronize())
}

// graphs launches a graph that adds again and again.
func (w *work) graphs(v *vectors, k *kernels, add func(int) error) error {
	if w.Graphs == 0 {
		return nil
	}
	graph, err := v.streams[0].Record(func() error {
		for range graphKernels {
			if err := add(0); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("record a graph: %w", err)
	}
	for range w.Graphs {
		if err == nil {
			err = graph.Launch(v.streams[0])
		}
	}
	return errors.Join(err, v.streams[0].Synchronize(), graph.Close())
}

// vectors are a, b and their sum c, on the host and on the device.
type vectors struct {
	a, b, c    []float32
	da, db, dc cuda.DevicePtr
	streams    [2]*cuda.Stream
	host       []*cuda.Host
	device     []cuda.DevicePtr
}

// newVectors fills a and b. What it has got by then is to be freed where it fails.
func newVectors(gpu *cuda.Context, n int) (*vectors, error) {
	v := &vectors{}
	for _, p := range []*[]float32{&v.a, &v.b, &v.c} {
		floats, memory, err := cuda.NewHost(n)
		if err != nil {
			return v, err
		}
		*p = floats
		v.host = append(v.host, memory)
	}
	for _, p := range []*cuda.DevicePtr{&v.da, &v.db, &v.dc} {
		memory, err := gpu.Alloc(4 * n)
		if err != nil {
			return v, err
		}
		*p = memory
		v.device = append(v.device, memory)
	}
	for s := range v.streams {
		stream, err := gpu.NewStream()
		if err != nil {
			return v, err
		}
		v.streams[s] = stream
	}
	for i := range v.a {
		v.a[i], v.b[i] = float32(i%1000), float32(i%77)
	}
	return v, nil
}

// at is the address of an element.
func (v *vectors) at(p cuda.DevicePtr, i int) cuda.DevicePtr { return p + cuda.DevicePtr(4*i) }

// check compares with sums of our own. Small whole numbers add exactly.
func (v *vectors) check() error {
	for i := range v.c {
		block := i / blockSize * blockSize
		from := block + blockSize - 1 - i%blockSize // reverse_blocks
		if want := float32(from%1000) + float32(from%77); v.c[i] != want {
			return fmt.Errorf("%w: element %d is %v and not %v", errWrong, i, v.c[i], want)
		}
	}
	return nil
}

func (v *vectors) free(gpu *cuda.Context) error {
	var errs []error
	for _, s := range v.streams {
		if s != nil {
			errs = append(errs, s.Synchronize(), s.Close()) // nothing may run any more in what is freed next
		}
	}
	for _, p := range v.device {
		errs = append(errs, gpu.Free(p))
	}
	for _, h := range v.host {
		h.Free()
	}
	return errors.Join(errs...)
}
