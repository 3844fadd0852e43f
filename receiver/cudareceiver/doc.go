// SPDX-License-Identifier: Apache-2.0

// Package cudareceiver observes with eBPF how every process of the machine uses the CUDA driver,
// and sends metrics: launches by kernel, graphs, copies, memory, waits, errors. The processes are
// not changed, restarted or notified. On a signal or at a launch rate, the receiver also sends
// single calls as spans for some seconds.
//
// internal/probe attaches to the driver and reads the sums that the kernel keeps. internal/identity
// reads from /proc what identifies a process. This package decides when to read and which processes
// and kernels have series of their own, and converts the sums to pdata. If eBPF is unavailable, the
// receiver logs this once, keeps running and retries.
package cudareceiver

//go:generate mdatagen metadata.yaml
