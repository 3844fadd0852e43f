// SPDX-License-Identifier: Apache-2.0

// Command inject is libgpuflight-recorder.so, built with -buildmode=c-shared. The CUDA driver loads
// libgpuflight.so (folder loader, C only) into any program in which CUDA_INJECTION64_PATH names it.
// That library loads this one if enough threads, descriptors and address space are free. This one
// records what the program's GPUs do. The environment is its whole configuration.
//
// The program must not notice. So a thread of the program enters Go twice only: when the driver
// calls InitializeInjection and at exit. Signals behave as without a Go runtime (see inject.c).
// Forked children never enter Go. Nothing is written to stdout, and stderr gets only what
// GPUFLIGHT_LOG_LEVEL allows. The environment is read and never changed. Whatever goes wrong here,
// including a panic, ends the recording and not the program.
package main
