// SPDX-License-Identifier: Apache-2.0

// Package probe observes the CUDA driver of every process on the machine with eBPF. It finds each
// libcuda.so, attaches uprobes once for all processes, sums the calls in per-CPU maps of the kernel
// and reads the sums. It observes each libnccl.so in the same way. It observes each libcudart.so
// until it is certain that its calls reach the exported functions of the driver.
//
// The package knows the entry points of the driver. It does not depend on OpenTelemetry or
// containers. It counts what the host requested; it cannot observe when and how long the device
// worked.
package probe

//go:generate ../../../../scripts/bpf probe cuda ../../bpf/cuda.bpf.c sum_kind sum_key sum run address allocation loss call_class memory_kind shape space node_kind group_kind runtime_check name share_class share identity thread
//go:generate ../../../../scripts/bpf probe trace ../../bpf/trace.bpf.c event flight trace_loss tracee trace_share
