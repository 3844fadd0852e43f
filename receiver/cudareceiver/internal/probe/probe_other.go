// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !(amd64 || arm64)

package probe

import (
	"context"
	"errors"
)

// Probe is not supported on this system.
type Probe struct{}

// New returns a Probe whose methods fail.
func New(Options) *Probe { return &Probe{} }

var errSystem = errors.New("the CUDA driver can be observed only on Linux on amd64 or arm64")

// Start always fails on this system.
func (*Probe) Start(context.Context) error { return errSystem }

// Snapshot always fails on this system.
func (*Probe) Snapshot() (*Snapshot, error) { return nil, errSystem }

// Libraries returns nil.
func (*Probe) Libraries() []Library { return nil }

// Launches always fails on this system.
func (*Probe) Launches() (map[ProcessID]uint64, error) { return nil, errSystem }

// Trace always fails on this system.
func (*Probe) Trace(TraceOptions) (*Trace, error) { return nil, errSystem }

// Trace is never created on this system.
type Trace struct{}

// Take returns no calls.
func (*Trace) Take() ([]Call, bool) { return nil, false }

// Losses returns the zero value.
func (*Trace) Losses() TraceLosses { return TraceLosses{} }

// Stop does nothing.
func (*Trace) Stop() error { return nil }

// Close does nothing.
func (*Probe) Close() error { return nil }
