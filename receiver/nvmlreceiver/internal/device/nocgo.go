// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !cgo

package device

import (
	"errors"
	"time"

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
)

var errNoCgo = errors.New("this collector was built without cgo or not for Linux: NVML is a C library, build with CGO_ENABLED=1 to read it")

// Supported says whether this build can open NVML.
const Supported = false

// Open returns a driver that cannot be opened.
func Open(Options) gpu.Driver { return none{} }

type none struct{}

func (none) Open() error                 { return errNoCgo }
func (none) List() ([]gpu.Device, error) { return nil, errNoCgo }
func (none) Events(time.Duration) ([]gpu.XID, bool, error) {
	return nil, false, errNoCgo
}
func (none) Close() error { return nil }
