// SPDX-License-Identifier: Apache-2.0

// Package nvmlreceiver reads NVIDIA devices through NVML, the library that comes with the driver, and
// sends what they say as metrics, and XID errors as logs while they happen.
//
// Four rooms share the work. internal/gpu holds the plain types of a reading and knows neither NVML
// nor OpenTelemetry. internal/device is the only one that calls NVML: it needs cgo and Linux, and a
// build without them has a receiver that says so and stays idle. internal/process tells who a process
// is, internal/xid what an error code means. This package decides when to read, gives up on a device
// that hangs, comes back to one that was lost, and turns readings into pdata.
package nvmlreceiver

//go:generate mdatagen metadata.yaml
