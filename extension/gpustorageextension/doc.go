// SPDX-License-Identifier: Apache-2.0

// Package gpustorageextension is the extension gpu_storage. It opens stores of GPU telemetry under
// names, compacts finished sessions and deletes old ones. Other components find the stores with
// package internal/collector/backend. They write and read them and do not close them.
package gpustorageextension

//go:generate mdatagen metadata.yaml
