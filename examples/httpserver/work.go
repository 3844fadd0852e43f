// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"go.opentelemetry.io/otel/trace"

	"github.com/gpuflight/gpuflight/examples/internal/cuda"
	"github.com/gpuflight/gpuflight/sdk/gpufl"
)

const (
	elements    = 1024
	blockSize   = 256
	maxLaunches = 10_000
)

// worker is what the requests share: the device and the kernels.
type worker struct {
	gpu    *cuda.Context
	module *cuda.Module
	add    *cuda.Function
}

func newWorker() (*worker, error) {
	gpu, err := cuda.NewContext(0)
	if err != nil {
		return nil, err
	}
	w := &worker{gpu: gpu}
	err = gpu.Do(func() (err error) {
		if w.module, err = gpu.Load(cuda.Kernels); err != nil {
			return err
		}
		w.add, err = w.module.Function("vector_add")
		return err
	})
	if err != nil {
		return nil, errors.Join(err, gpu.Close())
	}
	return w, nil
}

func (w *worker) close() error {
	return errors.Join(w.gpu.Do(w.module.Close), w.gpu.Close())
}

// answer says what a request did.
type answer struct {
	TraceID string `json:"trace_id"`
	// Launched counts kernels, Copies copies.
	Launched int `json:"launched"`
	Copies   int `json:"copies"`
}

func handler(w *worker) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/work", func(to http.ResponseWriter, r *http.Request) {
		launches, err := strconv.Atoi(r.FormValue("launches"))
		if err != nil || launches < 1 || launches > maxLaunches {
			http.Error(to, fmt.Sprintf("launches must be a number from 1 to %d", maxLaunches), http.StatusBadRequest)
			return
		}
		a := answer{TraceID: trace.SpanContextFromContext(r.Context()).TraceID().String()}
		err = gpufl.Do(r.Context(), "work", func(context.Context) error {
			return w.gpu.Do(func() error { return w.work(launches, &a) })
		}, gpufl.Attr("launches", launches))
		if err != nil {
			http.Error(to, err.Error(), http.StatusInternalServerError)
			return
		}
		to.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(to).Encode(a) // a client that has gone is not told
	})
	return mux
}

// work runs in a stream of the request's own, so that requests do not wait for each other.
func (w *worker) work(launches int, a *answer) (err error) {
	stream, err := w.gpu.NewStream()
	if err != nil {
		return err
	}
	// Waits first: nothing may run any more in what is freed.
	defer func() { err = errors.Join(err, stream.Close()) }()
	x, err := w.gpu.Alloc(4 * elements)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Synchronize(), w.gpu.Free(x)) }()
	floats, host, err := cuda.NewHost(elements)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Synchronize()); host.Free() }()

	floats[0] = 1
	if err := stream.CopyToDevice(x, floats); err != nil {
		return err
	}
	a.Copies++
	for range launches {
		// x += x
		if err := stream.Launch(w.add, cuda.Size{elements / blockSize}, cuda.Size{blockSize}, 0, x, x, x, uint32(elements)); err != nil {
			return err
		}
		a.Launched++
	}
	if err := stream.CopyToHost(floats, x); err != nil {
		return err
	}
	a.Copies++
	return stream.Synchronize()
}
