// SPDX-License-Identifier: Apache-2.0

// Package gpuusageconnector turns spans of GPU work into cumulative metrics: how busy each device is,
// which service and scope used how many device seconds, how long kernels, queues and gaps are, and
// what it all cost.
//
// What is exported is a function of two kinds of records alone: batches of parsed spans (batch.go)
// and flushes (a moment of the wall clock). The state (state.go and its neighbours) applies them one
// after another; with a storage each record is written before it is applied (log.go), so that the
// state after a crash is the state before it. The exact arithmetic of intervals, duplicates and
// shares is in internal/account, the histograms are in internal/histogram; neither knows the
// Collector. Parsing and the building of metrics are the only places that know pdata (parse.go,
// emit.go).
package gpuusageconnector

//go:generate mdatagen metadata.yaml
