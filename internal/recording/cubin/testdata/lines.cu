// SPDX-License-Identifier: Apache-2.0

// Kernels whose lines are not all their own: functions inlined into functions of another file, a template, a
// function that is called, and one that the compiler brings along (a division of 64-bit numbers). A line
// that a test looks for ends in a comment "line: NAME".
#include "lines.cuh"

// Not inlined: it gets a symbol of its own in the section of the kernel that calls it.
__device__ __noinline__ float outlined(float x, int n) {
  for (int i = 0; i < n; i++) {
    x = x * 1.0001f + 2.0f; // line: outlined
  }
  return x;
}

template <int STRIDE> __global__ void inlined(float *out, const float *in) {
  __shared__ float shared[256];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = squared(in[i * STRIDE]); // line: inlined
  shared[threadIdx.x] = out[i];
  __syncthreads(); // line: barrier
  out[i] += outlined(shared[255 - threadIdx.x], i);
}
template __global__ void inlined<32>(float *, const float *);

__global__ void remainder(long long *a, long long n) {
  a[threadIdx.x] %= n; // line: remainder
}

extern "C" __global__ void plain(float *out, float x) {
  out[threadIdx.x] = x; // line: plain
}
