// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package engine

import (
	"context"
	"errors"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
)

var errCgo = errors.New("this build cannot run models: build it with CGO_ENABLED=1 and a C compiler")

// Open fails without cgo.
func Open(string) error { return errCgo }

// Version is empty without cgo.
func Version() string { return "" }

// Model cannot be made without cgo.
type Model struct {
	Info      *onnx.Model
	Selection Selection
}

// Load fails without cgo.
func Load(string, Options) (*Model, error) { return nil, errCgo }

// Probe finds nothing without cgo.
func Probe() ([]Provider, []Rejection) { return nil, nil }

// Close does nothing.
func (*Model) Close() error { return nil }

// Run fails without cgo.
func (*Model) Run(context.Context, Tensors) (Tensors, error) { return nil, errCgo }
