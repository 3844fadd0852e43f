// SPDX-License-Identifier: Apache-2.0

// Command inject is libgpufl.so: built with -buildmode=c-shared, it is a library that the CUDA driver
// loads into any program in which CUDA_INJECTION64_PATH names it, and that records from there what
// the program's GPUs do. The environment is its whole configuration.
//
// The program must not notice. So a thread of the program enters Go twice only, when the driver calls
// InitializeInjection and at exit; signals behave as if there were no Go runtime (inject.c says how);
// forked children never enter Go; nothing is written to stdout, and to stderr only what
// GPUFL_LOG_LEVEL allows; the environment is read, never changed. Whatever goes wrong here, including
// a panic, ends the recording and not the program.
package main
