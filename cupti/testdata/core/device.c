// SPDX-License-Identifier: Apache-2.0
//
// The C core on a real GPU: counts, scopes, times, detaching. It needs gcc and a driver only:
//
//	gcc -std=c11 -O2 -D_GNU_SOURCE -Icupti -o device cupti/testdata/core/device.c cupti/*.c -ldl -lpthread
//	./device /usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13 [launches]
//
// It ends with 0 and "PASS" if all is right; what it prints before are measurements.

#include <time.h>

#include "core.h"

enum { THREADS = 4, ROUNDS = 20 };

static int launches = 50000; // of each thread; argv[2]

static int (*cu_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*cu_synchronize)(void);
static int (*cu_set_current)(void *);
static void *function, *context;

static const char ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry nothing() { ret; }\n";

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

typedef struct {
  int index;
  bool scoped;
  uint64_t scope;
} job;

static void launch(unsigned grid, int n) {
  for (int i = 0; i < n; i++) CHECK(cu_launch(function, grid, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) == 0);
}

static void *work(void *argument) {
  job *j = argument;
  CHECK(cu_set_current(context) == 0);
  if (j->scoped) {
    j->scope = gpufl_next_scope_id();
    CHECK(gpufl_push_scope(j->scope) == GPUFL_OK);
  }
  launch((unsigned)j->index + 1, launches);
  if (j->scoped) CHECK(gpufl_pop_scope(j->scope) == GPUFL_OK);
  return NULL;
}

// launch_all launches from all threads and returns nanoseconds a launch.
static double launch_all(job jobs[THREADS], bool scoped) {
  pthread_t threads[THREADS];
  int64_t begin = now();
  for (int i = 0; i < THREADS; i++) {
    jobs[i] = (job){i, scoped, 0};
    CHECK(pthread_create(&threads[i], NULL, work, &jobs[i]) == 0);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  CHECK(cu_synchronize() == 0);
  return (double)(now() - begin) / (THREADS * launches);
}

static double launch_one(void) {
  int64_t begin = now();
  launch(9, launches);
  CHECK(cu_synchronize() == 0);
  return (double)(now() - begin) / launches;
}

static struct {
  uint64_t kernels, others, wrong_scope, bad_time, dirty_tail, buffers;
  int64_t from;
  job *jobs;
} seen;

static void *take(void *unused) {
  (void)unused;
  for (;;) {
    int result = gpufl_wait(100000000);
    if (result == GPUFL_END) return NULL;
    gpufl_buffer *b;
    if (gpufl_take(&b) != GPUFL_OK) continue;
    seen.buffers++;
    void *cursor = NULL, *records[1000];
    int n;
    while ((n = gpufl_walk(b, &cursor, records, 1000)) > 0) {
      for (int i = 0; i < n; i++) {
        const uint8_t *r = records[i];
        uint32_t kind, grid, correlation;
        uint64_t start, end;
        memcpy(&kind, r, 4);
        if (kind != 10) {
          seen.others++;
          continue;
        }
        memcpy(&start, r + 16, 8);
        memcpy(&end, r + 24, 8);
        memcpy(&grid, r + 52, 4);
        memcpy(&correlation, r + 92, 4);
        seen.kernels++;
        if ((int64_t)start < seen.from || end < start || (int64_t)end > now() + 1000000) seen.bad_time++;
        uint64_t want = grid <= THREADS ? seen.jobs[grid - 1].scope : 0;
        if (gpufl_scope_of(correlation) != want) seen.wrong_scope++;
      }
    }
    CHECK(n == 0);
    for (size_t i = b->valid; i < b->size; i++) {
      if (b->data[i] != 0) {
        seen.dirty_tail++;
        break;
      }
    }
    gpufl_release(b);
  }
}

int main(int argc, char **argv) {
  CHECK(argc == 2 || argc == 3);
  if (argc == 3) launches = atoi(argv[2]);
  CHECK(launches > 0);
  char words[GPUFL_ERROR_SIZE];
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(cuda != NULL && gpufl_driver_load(words) == GPUFL_OK);
  CHECK(gpufl_load(argv[1], 0, words) == GPUFL_OK);
  int (*retain)(void **, int), (*load)(void **, const void *), (*get)(void **, void *, const char *);
  *(void **)&retain = dlsym(cuda, "cuDevicePrimaryCtxRetain");
  *(void **)&load = dlsym(cuda, "cuModuleLoadData");
  *(void **)&get = dlsym(cuda, "cuModuleGetFunction");
  *(void **)&cu_set_current = dlsym(cuda, "cuCtxSetCurrent");
  *(void **)&cu_launch = dlsym(cuda, "cuLaunchKernel");
  *(void **)&cu_synchronize = dlsym(cuda, "cuCtxSynchronize");
  gpufl_device device;
  printf("CUPTI %u, driver %d, devices before cuInit %d (-3: not initialised)\n", gpufl_version(), gpufl_driver_version(), gpufl_devices(&device, 1));
  CHECK(gpufl_driver_init() == 0);
  CHECK(gpufl_devices(&device, 1) >= 1 && device.has_uuid && device.sm_count > 0);
  printf("device %s, capability %d.%d, %d multiprocessors\n", device.name, device.major, device.minor, device.sm_count);
  void *module;
  CHECK(retain(&context, 0) == 0 && cu_set_current(context) == 0);
  CHECK(load(&module, ptx) == 0 && get(&function, module, "nothing") == 0);
  job jobs[THREADS];
  launch_one();
  printf("ns a launch: %.0f on one thread, %.0f on %d\n", launch_one(), launch_all(jobs, false), THREADS);

  int failures = 0;
  gpufl_config config = {.buffer_bytes = 8 << 20, .buffers = 32, .kinds = BASIC_KINDS | 1 << GPUFL_KIND_MEMCPY | 1 << GPUFL_KIND_MEMSET | 1 << GPUFL_KIND_OVERHEAD};
  for (int round = 0; round < ROUNDS; round++) {
    bool detach = round % 2 == 1;
    memset(&seen, 0, sizeof seen);
    memset(jobs, 0, sizeof jobs);
    seen.jobs = jobs;
    seen.from = now();
    CHECK(gpufl_open(&config) == GPUFL_OK);
    start_core();
    pthread_t taker;
    CHECK(pthread_create(&taker, NULL, take, NULL) == 0);
    double one = launch_one();
    double all = launch_all(jobs, true);
    double with_callbacks = launch_one(); // the callbacks are on now, and this thread has no scope
    CHECK(gpufl_flush() == GPUFL_OK);
    int stopped = gpufl_stop();
    pthread_join(taker, NULL);
    double after_stop = launch_one();
    int finalized = detach ? gpufl_finalize() : GPUFL_OK;
    double after_finalize = launch_one();
    gpufl_stats stats;
    gpufl_get_stats(&stats);
    CHECK(gpufl_close() == GPUFL_OK);
    uint64_t want = (THREADS + 2) * (uint64_t)launches;
    bool good = stopped == GPUFL_OK && finalized == GPUFL_OK && seen.kernels == want && stats.dropped == 0 && seen.wrong_scope == 0 && seen.bad_time == 0;
    failures += !good;
    printf("round %d: stop %d, finalize %s %d; kernels %llu of %llu, dropped %llu, wrong scope %llu, bad time %llu, other records %llu; "
           "buffers %llu (%u allocated, %llu refused, %u still lent), with something behind their end %llu; "
           "ns a launch: recording %.0f, with scopes on %d threads %.0f, with callbacks %.0f, stopped %.0f, %s %.0f%s\n",
           round, stopped, detach ? "yes" : "no", finalized, (unsigned long long)seen.kernels, (unsigned long long)want, (unsigned long long)stats.dropped,
           (unsigned long long)seen.wrong_scope, (unsigned long long)seen.bad_time, (unsigned long long)seen.others, (unsigned long long)seen.buffers, stats.allocated,
           (unsigned long long)stats.refused, stats.lent, (unsigned long long)seen.dirty_tail, one, THREADS, all, with_callbacks, after_stop,
           detach ? "detached" : "and later", after_finalize, good ? "" : " FAIL");
  }
  printf(failures == 0 ? "PASS\n" : "FAIL: %d rounds\n", failures);
  return failures != 0;
}
