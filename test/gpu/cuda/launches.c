/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches empty kernels through the driver API, so that one process can be measured while probes
 * are attached and detached. It reads one command per line from standard input:
 *
 *   burst N        N launches as fast as the thread can make them
 *   paced N RATE   N launches at RATE a second
 *
 *   gcc -O2 -I$CUDA/include -o launches launches.c -L$CUDA/lib64/stubs -lcuda
 *
 * It answers each command with a line of JSON. After every 500 launches it waits for the device,
 * outside the measured time. The queue is therefore never full, and only the host's work is
 * measured. The exit status is 1 if a CUDA call fails.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The device's queue holds about 1000 launches. */
#define CHUNK 500

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

static void launch(CUfunction kernel, long times) {
  for (long i = 0; i < times; i++)
    must(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
}

static void burst(CUfunction kernel, long times) {
  double spent = 0;
  for (long done = 0; done < times; done += CHUNK) {
    long n = times - done < CHUNK ? times - done : CHUNK;
    double begin = now();
    launch(kernel, n);
    spent += now() - begin;
    must(cuCtxSynchronize(), "cuCtxSynchronize");
  }
  printf("{\"launches\": %ld, \"ns_per_launch\": %.2f}\n", times, spent / (double)times);
}

/* Launches when a launch is due and spins until then: sleeping would come in lumps. */
static void paced(CUfunction kernel, long times, double rate) {
  double begin = now(), period = 1e9 / rate;
  for (long i = 0; i < times; i++) {
    while (now() < begin + period * (double)i) {
    }
    launch(kernel, 1);
  }
  must(cuCtxSynchronize(), "cuCtxSynchronize");
  double end = now();
  printf("{\"launches\": %ld, \"rate\": %.1f, \"seconds\": %.6f}\n", times, (double)times / (end - begin) * 1e9,
         (end - begin) / 1e9);
}

int main(void) {
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction kernel;
  char line[128];
  long times;
  double rate;

  must(cuInit(0), "cuInit");
  must(cuDeviceGet(&device, 0), "cuDeviceGet");
  must(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  must(cuModuleLoadData(&module, ptx), "cuModuleLoadData");
  must(cuModuleGetFunction(&kernel, module, "empty_kernel"), "cuModuleGetFunction");
  setvbuf(stdout, NULL, _IOLBF, 0);
  launch(kernel, 1000);
  must(cuCtxSynchronize(), "cuCtxSynchronize");
  printf("{\"ready\": true}\n");
  while (fgets(line, sizeof line, stdin) != NULL) {
    if (sscanf(line, "burst %ld", &times) == 1 && times > 0)
      burst(kernel, times);
    else if (sscanf(line, "paced %ld %lf", &times, &rate) == 2 && times > 0 && rate > 0)
      paced(kernel, times, rate);
    else {
      fprintf(stderr, "not a command: %s", line);
      return 2;
    }
  }
  return 0;
}
