// SPDX-License-Identifier: Apache-2.0

// Package probe observes the CUDA driver of every process on the machine by eBPF: it finds each
// libcuda.so, attaches uprobes to it once for all processes, lets the kernel add the calls up in
// per-CPU maps, and reads the sums. Each libnccl.so is observed in the same way, and each libcudart.so
// until it is certain that its calls come to the driver's exported functions.
//
// It knows the driver's entry points and nothing of OpenTelemetry or containers. What it counts is
// what the host asked for; when and how long the device worked it cannot know.
//
//go:generate ../../../../scripts/bpf probe cuda ../../bpf/cuda.bpf.c sum_kind sum_key sum run address allocation loss call_class memory_kind shape space node_kind group_kind runtime_check name share_class share thread
//go:generate ../../../../scripts/bpf probe trace ../../bpf/trace.bpf.c event flight trace_loss tracee trace_share
package probe
