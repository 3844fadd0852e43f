// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package control

import (
	"context"
	"log/slog"

	"github.com/gpuflight/gpuflight/internal/recording/deep"
)

// Folder returns ErrNotSupported.
func (Place) Folder() (string, error) { return "", ErrNotSupported }

// Server is of Linux only: elsewhere there is none.
type Server struct{}

// Listen returns ErrNotSupported.
func Listen(Place, Process, *deep.Controller, *slog.Logger) (*Server, error) {
	return nil, ErrNotSupported
}

// Path returns "".
func (*Server) Path() string { return "" }

// Close does nothing.
func (*Server) Close() {}

// Client asks processes; here there is none to be asked.
type Client struct{ Place Place }

// Listed is a process that listens.
type Listed struct {
	PID, UID int
	Process  Process
	Report   deep.Report
	Err      error
}

// Open returns ErrNotSupported.
func (*Client) Open(context.Context, int, Request, func(deep.Window)) (deep.Window, error) {
	return deep.Window{}, ErrNotSupported
}

// Close returns ErrNotSupported.
func (*Client) Close(context.Context, int) (bool, error) { return false, ErrNotSupported }

// Status returns ErrNotSupported.
func (*Client) Status(context.Context, int) (Process, deep.Report, error) {
	return Process{}, deep.Report{}, ErrNotSupported
}

// List returns nothing.
func (*Client) List(context.Context) []Listed { return nil }
