// SPDX-License-Identifier: Apache-2.0

// Package gpuusageconnector turns spans of GPU work into cumulative metrics: device utilization, device
// seconds by service and scope, durations of kernels, queues and gaps, and cost.
//
// The metrics depend on two kinds of records only: batches of parsed spans (batch.go), and flushes (a
// time of the wall clock). The state (state.go and the files next to it) applies them in turn. With a
// storage, each record is written before it is applied (log.go), so a crash does not change the state.
//
// internal/account has the exact arithmetic of intervals, duplicates and shares, and
// internal/histogram has the histograms. Neither depends on the Collector. Only parse.go and emit.go
// use pdata.
package gpuusageconnector

//go:generate mdatagen metadata.yaml
