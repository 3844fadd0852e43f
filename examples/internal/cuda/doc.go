// SPDX-License-Identifier: Apache-2.0

// Package cuda is what the examples need of CUDA's driver API: it opens libcuda.so.1 at run time, so
// that they build anywhere. It knows nothing of tracing: a program's own CUDA code does not change
// when it is traced.
//
// CUDA's current context belongs to the OS thread. Use [Context.Do], which holds the goroutine on its
// thread meanwhile; everything else here is called within it.
package cuda
