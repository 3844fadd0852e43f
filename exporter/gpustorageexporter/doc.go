// SPDX-License-Identifier: Apache-2.0

// Package gpustorageexporter is the exporter gpu_storage. It writes traces, logs and metrics to a
// store of the extension gpu_storage. A delivery is acknowledged after the transaction with its rows
// is committed. Deliveries that arrive at the same time share a commit.
package gpustorageexporter

//go:generate mdatagen metadata.yaml
