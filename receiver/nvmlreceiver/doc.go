// SPDX-License-Identifier: Apache-2.0

// Package nvmlreceiver reads NVIDIA devices through NVML, the library of the driver. It emits the
// values as metrics, and XID errors as logs when they occur.
//
// It has four internal packages. internal/gpu has the plain types of a reading, without NVML and
// OpenTelemetry. internal/device is the only one that calls NVML. It requires cgo and Linux; in
// other builds the receiver logs that and stays idle. internal/process identifies processes, and
// internal/xid explains error codes. This package schedules the readings, skips unresponsive
// devices, reopens lost ones, and converts readings to pdata.
package nvmlreceiver

//go:generate mdatagen metadata.yaml
