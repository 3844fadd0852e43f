// SPDX-License-Identifier: Apache-2.0
//
// What a launch costs in each mode of the C core, and whether each is in one place:
//
//	gcc -std=c11 -O2 -D_GNU_SOURCE -Icupti -o modes test/gpu/budget/modes.c cupti/*.c -ldl -lpthread
//	./modes /usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13 100000 9
//
// Empty kernels are launched back to back by one thread, so many in each mode and round. A round goes through
// all modes, so that they meet the same machine:
//
//	before      CUPTI is not attached: in the first round it never was
//	subscribed  attached, with no records and no counts
//	trace       records, and counts
//	count       counts, after records
//	blind       neither, after records
//	stopped     records disabled, still attached
//	finalised   after cuptiFinalize
//
// It prints one line of JSON for each round: nanoseconds a launch by mode, microseconds of each change, and the launches
// that the records, the counts and both together missed. The status is 1 if anything fails.

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpufl_count.h"

#define CHECK(what)                                                        \
  do {                                                                     \
    if (!(what)) {                                                         \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);   \
      exit(1);                                                             \
    }                                                                      \
  } while (0)

static int (*cu_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*cu_synchronize)(void);
static void *function;
static int launches;
static atomic_ullong kernels; // records of them

static const char ptx[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry nothing() { ret; }\n";

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double launch(void) {
  double begin = now();
  for (int i = 0; i < launches; i++) CHECK(cu_launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) == 0);
  CHECK(cu_synchronize() == 0);
  return (now() - begin) / launches;
}

static void *take(void *unused) {
  (void)unused;
  for (;;) {
    if (gpufl_wait(100000000) == GPUFL_END) return NULL;
    gpufl_buffer *b;
    if (gpufl_take(&b) != GPUFL_OK) continue;
    void *cursor = NULL, *records[1000];
    int n;
    while ((n = gpufl_walk(b, &cursor, records, 1000)) > 0) {
      for (int i = 0; i < n; i++) {
        uint32_t kind;
        memcpy(&kind, records[i], sizeof kind);
        if (kind == GPUFL_CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) atomic_fetch_add(&kernels, 1);
      }
    }
    CHECK(n == 0);
    gpufl_release(b);
  }
}

static gpufl_count counted(void) {
  static gpufl_count rows[GPUFL_MAX_COUNTS];
  uint32_t n = gpufl_counts(rows, GPUFL_MAX_COUNTS);
  gpufl_count sum = {0};
  for (uint32_t i = 0; i < n; i++) {
    sum.traced += rows[i].traced;
    sum.counted += rows[i].counted;
    sum.doubtful += rows[i].doubtful;
  }
  return sum;
}

static double change(int mode) {
  double begin = now();
  CHECK(gpufl_count_mode(mode) == GPUFL_OK);
  return (now() - begin) / 1e3;
}

int main(int argc, char **argv) {
  CHECK(argc == 4);
  launches = atoi(argv[2]);
  int rounds = atoi(argv[3]);
  CHECK(launches > 0 && rounds > 0);
  char words[GPUFL_ERROR_SIZE];
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(cuda != NULL && gpufl_driver_load(words) == GPUFL_OK && gpufl_driver_init() == 0);
  if (gpufl_load(argv[1], 0, words) != GPUFL_OK) {
    fprintf(stderr, "%s: %s\n", argv[1], words);
    return 1;
  }
  int (*retain)(void **, int), (*set_current)(void *), (*load)(void **, const void *), (*get)(void **, void *, const char *);
  *(void **)&retain = dlsym(cuda, "cuDevicePrimaryCtxRetain");
  *(void **)&set_current = dlsym(cuda, "cuCtxSetCurrent");
  *(void **)&load = dlsym(cuda, "cuModuleLoadData");
  *(void **)&get = dlsym(cuda, "cuModuleGetFunction");
  *(void **)&cu_launch = dlsym(cuda, "cuLaunchKernel");
  *(void **)&cu_synchronize = dlsym(cuda, "cuCtxSynchronize");
  void *context, *module;
  CHECK(retain(&context, 0) == 0 && set_current(context) == 0);
  CHECK(load(&module, ptx) == 0 && get(&function, module, "nothing") == 0);
  launch(); // warm-up

  gpufl_config config = {
      .buffer_bytes = 8 << 20,
      .buffers = 64,
      .kinds = 1u << GPUFL_KIND_KERNEL | 1u << GPUFL_KIND_MEMCPY | 1u << GPUFL_KIND_MEMSET | 1u << GPUFL_KIND_GRAPH | 1u << GPUFL_KIND_EXTERNAL,
  };
  for (int round = 0; round < rounds; round++) {
    uint32_t enabled = 0;
    int refusal = 0;
    gpufl_stats stats;
    double before = launch();
    CHECK(gpufl_open(&config) == GPUFL_OK);
    double subscribed = launch();
    CHECK(gpufl_start(&enabled, &refusal) == GPUFL_OK && enabled != 0);
    pthread_t taker;
    CHECK(pthread_create(&taker, NULL, take, NULL) == 0);
    atomic_store(&kernels, 0);
    gpufl_count begin = counted();

    double begins = change(GPUFL_MODE_TRACE);
    double trace = launch();
    double off = change(GPUFL_MODE_COUNT);
    double count = launch();
    gpufl_count end = counted();
    double blinded = change(GPUFL_MODE_BLIND);
    double blind = launch();
    double on = change(GPUFL_MODE_TRACE);
    launch();
    double begin_stop = now();
    CHECK(gpufl_stop() == 0);
    double stop_us = (now() - begin_stop) / 1e3;
    pthread_join(taker, NULL);
    double stopped = launch();
    double begin_finalise = now();
    CHECK(gpufl_finalize() == GPUFL_OK);
    double finalise_us = (now() - begin_finalise) / 1e3;
    gpufl_get_stats(&stats);
    CHECK(gpufl_close() == GPUFL_OK);
    double finalised = launch();

    printf("{\"round\": %d, \"ns\": {\"before\": %.1f, \"subscribed\": %.1f, \"trace\": %.1f, \"count\": %.1f, \"blind\": %.1f, \"stopped\": %.1f, \"finalised\": %.1f}, "
           "\"us\": {\"begin\": %.1f, \"trace_to_count\": %.1f, \"count_to_blind\": %.1f, \"blind_to_trace\": %.1f, \"stop\": %.1f, \"finalise\": %.1f}, "
           "\"missed\": {\"records\": %lld, \"traced\": %lld, \"counted\": %lld}, \"doubtful\": %llu, \"dropped\": %llu}\n",
           round, before, subscribed, trace, count, blind, stopped, finalised, begins, off, blinded, on, stop_us, finalise_us,
           2 * (long long)launches - (long long)atomic_load(&kernels), (long long)launches - (long long)(end.traced - begin.traced),
           (long long)launches - (long long)(end.counted - begin.counted), (unsigned long long)(end.doubtful - begin.doubtful),
           (unsigned long long)stats.dropped);
    fflush(stdout);
  }
  return 0;
}
