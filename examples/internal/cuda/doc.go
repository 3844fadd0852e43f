// SPDX-License-Identifier: Apache-2.0

// Package cuda has the part of CUDA's driver API that the examples need. It opens libcuda.so.1 at run
// time, so that the examples build anywhere. It does not depend on tracing: a program's CUDA code does
// not change when it is traced.
//
// CUDA's current context belongs to the OS thread. [Context.Do] locks the goroutine to its thread; call
// everything else in this package from within it.
package cuda
