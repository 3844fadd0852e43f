// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !(amd64 || arm64)

package probe

import (
	"context"
	"errors"
)

// Probe cannot be started on this system.
type Probe struct{}

// New makes a Probe.
func New(Options) *Probe { return &Probe{} }

var errSystem = errors.New("the CUDA driver can be observed on Linux only, on amd64 or arm64")

// Start says that this system has no probes.
func (*Probe) Start(context.Context) error { return errSystem }

// Snapshot says that this system has no probes.
func (*Probe) Snapshot() (*Snapshot, error) { return nil, errSystem }

// Libraries returns none.
func (*Probe) Libraries() []Library { return nil }

// Launches says that this system has no probes.
func (*Probe) Launches() (map[ProcessID]uint64, error) { return nil, errSystem }

// Trace says that this system has no probes.
func (*Probe) Trace(TraceOptions) (*Trace, error) { return nil, errSystem }

// Trace is never made on this system.
type Trace struct{}

// Take returns none.
func (*Trace) Take() ([]Call, bool) { return nil, false }

// Losses returns none.
func (*Trace) Losses() TraceLosses { return TraceLosses{} }

// Stop does nothing.
func (*Trace) Stop() error { return nil }

// Close does nothing.
func (*Probe) Close() error { return nil }
