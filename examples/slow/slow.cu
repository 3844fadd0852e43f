// SPDX-License-Identifier: Apache-2.0

// Runs one of the kernels of kernels.cu again and again for a while, and checks its results:
//
//   nvcc -O3 -lineinfo -arch=native -o slow slow.cu kernels.cu
//   ./slow KERNEL [SECONDS [STEPS]]
//
// KERNEL is chase, barrier, compute, divergent, strided or coalesced; SECONDS 10 if not given; STEPS how
// much work a launch is. It prints one line of JSON. The status is 0 if all
// results were right, 1 if not or if anything of CUDA failed, 2 if it was called in another way.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern "C" __global__ void chase(const unsigned *next, unsigned *out, int steps);
extern "C" __global__ void barrier(float *out, float a, float b, int steps);
extern "C" __global__ void compute(double *out, double a, double b, int steps);
extern "C" __global__ void divergent(float *out, float a, float b, int steps);
extern "C" __global__ void strided(const float *in, float *out, int n);
extern "C" __global__ void coalesced(const float *in, float *out, int n);

static void must(cudaError_t result, const char *what) {
  if (result == cudaSuccess)
    return;
  fprintf(stderr, "slow: %s: %s\n", what, cudaGetErrorString(result));
  exit(1);
}

static double now() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// A power of two of words, 256 MiB: more than the second-level cache of any GPU so far.
static const unsigned chain_words = 1u << 26;
// The golden section of the chain, odd: each load lies far from all before it, and all words are visited.
static const unsigned chain_jump = 41474909u;
// The words between two lanes of strided, as in kernels.cu.
static const int stride = 8;

__global__ void fill_chain(unsigned *next, unsigned n, unsigned jump) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    next[i] = (i + jump) % n;
}

__global__ void fill_ones(float *p, size_t n) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
    p[i] = 1;
}

// What is run: its grid is blocks * threads, out has a word or a double for each of them.
struct work {
  const char *name;
  int blocks, threads, steps;
  void *in = NULL, *out = NULL;
};

static void launch(const work &w) {
  if (!strcmp(w.name, "chase"))
    chase<<<w.blocks, w.threads>>>((const unsigned *)w.in, (unsigned *)w.out, w.steps);
  else if (!strcmp(w.name, "barrier"))
    barrier<<<w.blocks, w.threads>>>((float *)w.out, 1, 1, w.steps);
  else if (!strcmp(w.name, "compute"))
    compute<<<w.blocks, w.threads>>>((double *)w.out, 1, 1, w.steps);
  else if (!strcmp(w.name, "divergent"))
    divergent<<<w.blocks, w.threads>>>((float *)w.out, 1, 1, w.steps);
  else if (!strcmp(w.name, "strided"))
    strided<<<w.blocks, w.threads>>>((const float *)w.in, (float *)w.out, w.steps * w.blocks * w.threads);
  else
    coalesced<<<w.blocks, w.threads>>>((const float *)w.in, (float *)w.out, w.steps * w.blocks * w.threads);
  must(cudaGetLastError(), w.name);
}

// Counts the results that are not what kernels.cu says.
static size_t wrong_results(const work &w) {
  size_t n = (size_t)w.blocks * w.threads, wrong = 0;
  double *host = (double *)malloc(n * sizeof(double));
  if (!host) {
    fprintf(stderr, "slow: no memory for the results\n");
    exit(1);
  }
  bool wide = !strcmp(w.name, "compute");
  must(cudaMemcpy(host, w.out, n * (wide ? sizeof(double) : sizeof(float)), cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (size_t t = 0; t < n; t++) {
    unsigned lane = (unsigned)(t % w.threads);
    float narrow = ((const float *)host)[t];
    if (!strcmp(w.name, "chase"))
      wrong += ((const unsigned *)host)[t] != (unsigned)(t + (unsigned long long)w.steps * chain_jump) % chain_words;
    else if (!strcmp(w.name, "barrier"))
      wrong += narrow != (lane < 32 ? 256.0f * (float)w.steps : 0);
    else if (wide)
      wrong += host[t] != 4.0 * w.steps + 6;
    else if (!strcmp(w.name, "divergent"))
      wrong += narrow != (lane % 32 == 0 ? (float)w.steps : 0);
    else
      wrong += narrow != (float)w.steps;
  }
  free(host);
  return wrong;
}

int main(int argc, char **argv) {
  // By their instructions a millisecond or a few of an H200 each. Sums of ones are exact in a float up to 2^24.
  work all[] = {
      {"chase", 0, 128, 4096},        {"barrier", 0, 1024, 2048}, {"compute", 0, 512, 32768},
      {"divergent", 0, 256, 1 << 20}, {"strided", 0, 256, 128},   {"coalesced", 0, 256, 1024},
  };
  work *w = NULL;
  for (size_t i = 0; argc >= 2 && i < sizeof all / sizeof *all; i++)
    if (!strcmp(argv[1], all[i].name))
      w = &all[i];
  double seconds = argc > 2 ? atof(argv[2]) : 10;
  if (w && argc > 3)
    w->steps = atoi(argv[3]);
  if (!w || argc > 4 || !(seconds > 0) || w->steps < 1 || w->steps > 1 << 20) {
    fprintf(stderr, "usage: slow chase|barrier|compute|divergent|strided|coalesced [SECONDS [STEPS]]\n"
                    "STEPS is at most 2^20\n");
    return 2;
  }
  if (!strcmp(w->name, "barrier") && w->steps > 1 << 16) {
    fprintf(stderr, "slow: barrier takes at most 2^16 steps: its sums would no longer be exact\n");
    return 2;
  }
  cudaDeviceProp device;
  must(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  // Two blocks an SM, so that all run at once.
  w->blocks = 2 * device.multiProcessorCount;
  size_t n = (size_t)w->blocks * w->threads, words = 0;
  must(cudaMalloc(&w->out, n * sizeof(double)), "cudaMalloc");
  if (!strcmp(w->name, "chase")) {
    words = chain_words;
    must(cudaMalloc(&w->in, words * sizeof(unsigned)), "cudaMalloc");
    fill_chain<<<1024, 256>>>((unsigned *)w->in, chain_words, chain_jump);
  } else if (!strcmp(w->name, "strided") || !strcmp(w->name, "coalesced")) {
    if (n * w->steps > 1u << 30) { // the kernels count in int
      fprintf(stderr, "slow: %s takes at most %zu steps on this device\n", w->name, ((size_t)1 << 30) / n);
      return 2;
    }
    words = n * w->steps * (!strcmp(w->name, "strided") ? stride : 1);
    must(cudaMalloc(&w->in, words * sizeof(float)), "cudaMalloc");
    fill_ones<<<1024, 256>>>((float *)w->in, words);
  }
  must(cudaDeviceSynchronize(), "filling the memory");

  long launches = 0;
  size_t wrong = 0;
  double begin = now();
  while (now() - begin < seconds) {
    must(cudaMemset(w->out, 0xff, n * sizeof(double)), "cudaMemset");
    launch(*w);
    // One at a time, so that it ends when it shall, and a window never waits for a long queue.
    must(cudaDeviceSynchronize(), w->name);
    launches++;
  }
  seconds = now() - begin;
  // The last launch is the one whose results are still there.
  wrong = wrong_results(*w);
  printf("{\"kernel\": \"%s\", \"launches\": %ld, \"seconds\": %.3f, \"blocks\": %d, \"threads\": %d, \"steps\": %d, "
         "\"right\": %s, \"wrong\": %zu}\n",
         w->name, launches, seconds, w->blocks, w->threads, w->steps, wrong ? "false" : "true", wrong);
  return wrong ? 1 : 0;
}
