// SPDX-License-Identifier: Apache-2.0

// Six kernels that are slow for one known reason each, or fast for comparison. What a profiler must say
// of them follows from the code; it is derived above each. A line that matters ends in a comment
// "line: NAME", by which tests and the README find it.
//
// They include nothing, so that they compile alone: nvcc -lineinfo -cubin -arch=sm_90 kernels.cu

// The lanes of a warp. A line's mean of active lanes is thread instructions / warp instructions.
#define WARP 32

// Each load gives the address of the next, so a warp has one load under way and nothing else to do: for
// hundreds of cycles it waits for memory. Stall reason long_scoreboard, nearly all of it on the line.
//
// next[i] is (i + jump) mod n: the result is (first + steps * jump) mod n.
extern "C" __global__ void chase(const unsigned *next, unsigned *out, int steps) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned t = i;
  for (int s = 0; s < steps; s++) {
    i = next[i]; // line: chase
  }
  out[t] = i;
}

// The first warp of a block works, the others wait for it at the barrier. In a block of 1024 threads those
// are 31 warps of 32, for nearly all of the time: stall reason barrier, in about 31/32 = 97 % of the samples.
//
// The dependent multiply-adds take four cycles each or more, the barrier some tens: 256 of them make the
// cost of the barrier itself small. With a = b = 1 the result is steps * 256 in the first warp, else 0.
extern "C" __global__ void barrier(float *out, float a, float b, int steps) {
  float x = 0;
  for (int s = 0; s < steps; s++) {
    if (threadIdx.x < WARP) {
#pragma unroll 32
      for (int i = 0; i < 256; i++) {
        x = fmaf(x, a, b); // line: worker
      }
    }
    __syncthreads(); // line: barrier
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

// Four independent chains of double-precision multiply-adds in each thread, and many warps: there is always
// one to issue, and the pipe takes no more. Double precision, since its pipe is the narrower one: on compute
// capability 9.0 it takes a warp every second cycle (64 results a cycle and SM, CUDA C++ Programming Guide,
// "Arithmetic Instructions"), while the scheduler could issue in each. So of the warps that wait nearly all
// wait for the pipe, stall reason math_pipe_throttle, and the rest is ready (not_selected) or issues.
//
// With a = b = 1 the result is 4 * steps + 6: chain k begins at k.
extern "C" __global__ void compute(double *out, double a, double b, int steps) {
  double x0 = 0, x1 = 1, x2 = 2, x3 = 3;
#pragma unroll 16
  for (int s = 0; s < steps; s++) {
    x0 = fma(x0, a, b); // line: compute
    x1 = fma(x1, a, b); // line: compute
    x2 = fma(x2, a, b); // line: compute
    x3 = fma(x3, a, b); // line: compute
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = x0 + x1 + x2 + x3;
}

// One lane of each warp takes the branch, and the other 31 wait until it is back. Each instruction of the
// line is executed by 1 lane of 32: its mean of active lanes is 1.0, its efficiency 1/32 = 3.1 %.
//
// The number of steps is known only at run time: a short branch of known length would become instructions
// under a predicate, which all lanes execute as the counters see it. With a = b = 1 the result is steps in
// the first lane and 0 in the others.
extern "C" __global__ void divergent(float *out, float a, float b, int steps) {
  float x = 0;
  if (threadIdx.x % WARP == 0) {
#pragma unroll 32
    for (int s = 0; s < steps; s++) {
      x = fmaf(x, a, b); // line: divergent
    }
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

// Neighbouring lanes read words that are STRIDE words, 32 bytes, apart: each has a sector (32 bytes) of its
// own. 32 sectors a request, where the 32 * 4 = 128 bytes that are wanted fit in 4: 8 times the ideal.
//
// n is a multiple of the number of threads, so all lanes are active. The array is full of ones: the
// result is n / threads.
#define STRIDE 8
extern "C" __global__ void strided(const float *in, float *out, int n) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  float sum = 0;
  for (int i = t; i < n; i += threads) {
    sum += in[(size_t)i * STRIDE]; // line: strided
  }
  out[t] = sum;
}

// The same with neighbouring words: 32 * 4 = 128 bytes in 4 sectors a request, which is the ideal.
extern "C" __global__ void coalesced(const float *in, float *out, int n) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  float sum = 0;
  for (int i = t; i < n; i += threads) {
    sum += in[i]; // line: coalesced
  }
  out[t] = sum;
}
