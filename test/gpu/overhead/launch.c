/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches empty kernels back to back through the driver API and says what a launch costs the
 * thread that makes it. The device is faster than the launches, so this is the worst case for a
 * tracer: all it does per kernel is on the path.
 *
 *   gcc -O2 -I$CUDA/include -o launch launch.c -L$CUDA/lib64/stubs -lcuda
 *   ./launch 300000
 *   ./launch 300000 45000    at most so many launches a second
 *
 * It prints one line of JSON: the launches timed, those of the warm-up before them, wall
 * nanoseconds per launch, and what the last wait for the device took. The status is 1 if anything
 * of CUDA fails.
 */
#include <cuda.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define WARM_UP 2000

/* The oldest target that CUDA 13 knows; the driver compiles it for the device. */
static const char ptx[] = ".version 7.0\n"
                          ".target sm_75\n"
                          ".address_size 64\n"
                          ".visible .entry empty_kernel()\n"
                          "{\n"
                          "  ret;\n"
                          "}\n";

static void must(CUresult result, const char *what) {
  const char *name = NULL;
  if (result == CUDA_SUCCESS)
    return;
  cuGetErrorName(result, &name);
  fprintf(stderr, "%s: %s (%d)\n", what, name ? name : "unknown", (int)result);
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* With a rate above 0 it waits, busily, for the time of each launch. */
static void launch(CUfunction kernel, long times, long rate) {
  double begin = now();
  for (long i = 0; i < times; i++) {
    while (rate > 0 && now() < begin + (double)i * 1e9 / (double)rate)
      ;
    must(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
  }
}

/* A whole number above 0, or 0 for anything else. */
static long number(const char *text) {
  char *end = NULL;
  errno = 0;
  long n = strtol(text, &end, 10);
  return errno || *end || n < 0 ? 0 : n;
}

int main(int argc, char **argv) {
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction kernel;
  long times, rate;
  double begin, issued, done;

  times = argc > 1 ? number(argv[1]) : 0;
  rate = argc > 2 ? number(argv[2]) : 0;
  if (argc > 3 || times == 0 || (argc == 3 && rate == 0)) {
    fprintf(stderr, "usage: %s LAUNCHES [LAUNCHES-PER-SECOND]\n", argv[0]);
    return 2;
  }
  must(cuInit(0), "cuInit");
  must(cuDeviceGet(&device, 0), "cuDeviceGet");
  must(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  must(cuModuleLoadData(&module, ptx), "cuModuleLoadData");
  must(cuModuleGetFunction(&kernel, module, "empty_kernel"), "cuModuleGetFunction");

  launch(kernel, WARM_UP, rate);
  must(cuCtxSynchronize(), "cuCtxSynchronize");
  begin = now();
  launch(kernel, times, rate);
  issued = now();
  must(cuCtxSynchronize(), "cuCtxSynchronize");
  done = now();
  printf("{\"launches\": %ld, \"warm_up\": %d, \"ns_per_launch\": %.2f, \"wait_ns\": %.0f}\n",
         times, WARM_UP, (done - begin) / (double)times, done - issued);
  return 0;
}
