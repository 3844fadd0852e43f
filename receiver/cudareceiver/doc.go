// SPDX-License-Identifier: Apache-2.0

// Package cudareceiver observes what every process of the machine asks of the CUDA driver, by eBPF,
// and sends it as metrics: launches by kernel, graphs, copies, memory, waits, errors. No process is
// changed, restarted or told anything. For some seconds, on a signal or a rate, it sends single calls
// as spans too.
//
// Two rooms share the work. internal/probe attaches to the driver and reads the sums that the kernel
// keeps; internal/identity tells from /proc who a process is. This package decides when to read,
// which processes and kernels have series of their own, and turns sums into pdata. Where eBPF is not
// to be had it says so once, stays up, and tries again.
package cudareceiver

//go:generate mdatagen metadata.yaml
