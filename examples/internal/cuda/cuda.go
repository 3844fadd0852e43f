// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	_ "embed"
	"errors"
	"fmt"
)

// Kernels is the source of the examples' kernels.
//
//go:embed kernels.ptx
var Kernels string

// ErrUnavailable says that nothing can be run here: there is no driver, or it has no device.
var ErrUnavailable = errors.New("no CUDA device")

// Error is a call that the driver refused.
type Error struct {
	Call   string
	Result int // a CUresult
}

func (e *Error) Error() string {
	if why, ok := results[e.Result]; ok {
		return fmt.Sprintf("%s: %s", e.Call, why)
	}
	return fmt.Sprintf("%s: CUresult %d", e.Call, e.Result)
}

// results are the refusals that a user can do something about.
var results = map[int]string{
	1:   "invalid value",
	2:   "out of device memory",
	3:   "the driver is not initialised",
	100: "no CUDA device",
	201: "no current context",
	218: "the kernels' PTX does not compile for this GPU",
	222: "the driver is too old for the kernels' PTX",
	700: "a kernel used memory that is not its own",
	801: "not supported by this driver",
	803: "the driver's versions do not fit each other",
}

// Size is a number of blocks or threads in three dimensions; zero elements count as 1.
type Size [3]uint32

func (s Size) full() Size {
	for i := range s {
		s[i] = max(s[i], 1)
	}
	return s
}

// Resources are what a kernel needs, as the driver compiled it.
type Resources struct {
	RegistersPerThread int `json:"registers_per_thread"`
	SharedBytes        int `json:"shared_bytes"`
	LocalBytes         int `json:"local_bytes"`
}
