// SPDX-License-Identifier: Apache-2.0

// Package gpu has the plain types of one reading of a device: the contract between the package that
// calls NVML and the receiver that creates telemetry. It depends on neither, nor on OpenTelemetry.
// Its values are not safe for concurrent use.
package gpu

import (
	"errors"
	"time"

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/process"
)

// Metric says what a point measures.
type Metric uint8

// The metrics. The words behind each are its unit, what Int or Float holds, and what Label and
// Detail say.
const (
	Utilization                 Metric = iota // 1, Float; Label: task
	MemoryUsage                               // By, Int
	MemoryLimit                               // By, Int
	MemoryReserved                            // By, Int
	MemoryUtilization                         // 1, Float.
	MemoryControllerUtilization               // 1, Float
	MemoryBandwidthUtilization                // 1, Float
	IO                                        // By, Int, counter; Label: direction
	InterconnectIO                            // By, Int, counter; Label: type, Detail: direction.
	Speed                                     // Hz, Int; Label: clock domain.
	SpeedLimit                                // Hz, Int; Label: clock domain, Detail: limit type
	ThrottleActive                            // 1, Int; Label: reason
	ThrottleDuration                          // s, Float, counter; Label: reason.
	SMUtilization                             // 1, Float
	SMOccupancy                               // 1, Float
	PipeUtilization                           // 1, Float; Label: pipe.
	Energy                                    // J, Float, counter
	Power                                     // W, Float
	PowerLimit                                // W, Float; Label: limit type
	Temperature                               // Cel, Float; Label: sensor, "" for the device's own.
	TemperatureLimit                          // Cel, Float; Label: limit type, Detail: sensor or ""
	FanSpeed                                  // 1, Float; Label: sensor, "" where there is one fan
	Errors                                    // {error}, Int, counter; Label: error type
)

// Point is one value of a device at the reading's time.
type Point struct {
	Metric        Metric
	Int           int64
	Float         float64
	Label, Detail string
	// Since is when a counter began to count; zero for everything else.
	Since time.Time
}

// Identity names a device.
type Identity struct {
	// ID is the UUID with its prefix: GPU- or MIG-.
	ID   string
	Name string
	// Parent is the ID of the GPU that a MIG device is a part of, else "".
	Parent string
	// Index is NVML's number of the device (of its parent for a MIG device). It may change when
	// devices come and go.
	Index int
	// Serial is the serial number of the board, for a MIG device that of its GPU; "" if unknown.
	Serial string
	// Driver is the version of the driver; "" if unknown.
	Driver string
	// Instance is NVML's number of a MIG device's GPU instance, or -1.
	Instance int
	// Aliases are the ids that device plugins of Kubernetes may use instead of ID.
	Aliases []string
}

// Process is a process that uses a device.
type Process struct {
	process.Info
	// MemoryBytes is valid if HasMemory, Utilization (0–1) if HasUtilization.
	MemoryBytes    int64
	Utilization    float64
	HasMemory      bool
	HasUtilization bool
}

// CallError is an NVML call that failed.
type CallError struct{ Call, Code string }

// Unsupported is an NVML call that the device does not offer, or that the process may not make, and
// what NVML said.
type Unsupported struct {
	Call, Code string
	Forbidden  bool
}

// GroupTime is how long a group of calls took.
type GroupTime struct {
	Group    string
	Duration time.Duration
}

// Reading is what one device said.
type Reading struct {
	Time      time.Time
	Points    []Point
	Processes []Process
	// ProcessesDropped are processes beyond the bound.
	ProcessesDropped int
	// Degraded says that the device works, but slower than it could or with damaged memory.
	Degraded bool
	// Lost is why nothing could be read; nil for a device that answers.
	Lost error
	// Errors are calls that failed, at most [MaxErrors]; Unsupported those found missing in this
	// reading, each told once in a device's life.
	Errors      []CallError
	Unsupported []Unsupported
	Groups      []GroupTime
}

// MaxErrors bounds the errors of one reading.
const MaxErrors = 256

// XID is an XID error of a device.
type XID struct {
	Device Identity
	// Instance is the GPU instance (of a MIG device) that caused the error, or -1.
	Instance int
	Code     uint64
	Time     time.Time
}

// Device is one GPU or MIG device. Its methods may block as long as the driver does. They are not
// safe for concurrent use.
type Device interface {
	Identity() Identity
	// Read runs all groups that are due.
	Read() Reading
	// ReadSamples collects the driver's buffered samples before they are overwritten.
	ReadSamples()
}

// Driver is NVML. Its methods may block. Call Open, List and Close from one goroutine. Readings of
// devices and Events may run concurrently with them.
type Driver interface {
	// Open loads and initialises the library.
	Open() error
	// List finds the devices. A known device keeps its value.
	List() ([]Device, error)
	// Events waits up to timeout for XID errors. It returns those that arrived, and whether more
	// can arrive. It must not be called concurrently.
	Events(timeout time.Duration) (xids []XID, supported bool, err error)
	// Close releases the library, or returns ErrBusy while a call is in flight.
	Close() error
}

// ErrBusy means that a call of the driver is in flight.
var ErrBusy = errors.New("a call of the driver has not returned")

// ErrRestart marks errors that require to close and reopen the library.
var ErrRestart = errors.New("the driver must be reopened")
