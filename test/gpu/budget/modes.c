// SPDX-License-Identifier: Apache-2.0
//
// What a launch costs in each mode of the C core, and whether each is in one place:
//
//	test/gpu/build --programs bin
//	bin/modes /usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13 100000 9
//	bin/modes /usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13 0 500 4
//
// The first launches empty kernels back to back by one thread, so many in each mode and round. A round goes through
// all modes, so that they meet the same machine:
//
//	before      CUPTI is not attached: in the first round it never was
//	subscribed  attached, with no records and no counts
//	trace       records, and counts
//	count       counts, after records
//	blind       neither, after records
//	detached    CUPTI left after that, while recording goes on
//	recount     counts, subscribed to anew
//	retrace     records again after that
//	recounted   counts, after these
//	stopped     records disabled, still attached
//	finalised   after cuptiFinalize
//
// It prints one line of JSON for each round: nanoseconds a launch by mode, microseconds of each change, and the launches
// that the records, the counts and both together missed, each of several times; how many buffers CUPTI held back from a
// flush that was not forced; and the correlation ids before and after it was left.
//
// The second has so many threads (4) launch all the time while CUPTI is left and taken up again (500 times), and
// prints how many launches nobody saw and for how long nobody looked. A launch that is in two places, or more records that
// no count knows of than launches that can have begun before counting did, are failures. The status is 1 if anything fails.

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "gpufl_count.h"
#include "gpufl_internal.h"

static int (*cu_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*cu_synchronize)(void);
static void *function;
static int launches;
static atomic_ullong kernels; // records of them
static atomic_uint first, last; // correlation ids of records, 0 for none

static atomic_int taking;

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
    atomic_fetch_add(&taking, 1); // before it is out of the queue
    if (gpufl_take(&b) != GPUFL_OK) {
      atomic_fetch_sub(&taking, 1);
      continue;
    }
    void *cursor = NULL, *records[1000];
    int n;
    while ((n = gpufl_walk(b, &cursor, records, 1000)) > 0) {
      for (int i = 0; i < n; i++) {
        uint32_t kind;
        memcpy(&kind, records[i], sizeof kind);
        if (kind != GPUFL_CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
        uint32_t correlation;
        memcpy(&correlation, (const char *)records[i] + 92, sizeof correlation);
        unsigned none = 0;
        atomic_compare_exchange_strong(&first, &none, correlation);
        atomic_store(&last, correlation);
        atomic_fetch_add(&kernels, 1);
      }
    }
    CHECK(n == 0);
    gpufl_release(b);
    atomic_fetch_sub(&taking, 1);
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

static uint32_t held_back; // buffers, by a flush

// settle_by_force is for a program that copies nothing: CUPTI may crash beside a copy.
static int settle_by_force(void) {
  int result = gpufl_cupti.flush_all(GPUFL_CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  return result == GPUFL_CUPTI_SUCCESS ? gpufl_settle() : result;
}

// detach leaves CUPTI once all records are there and read, and answers with the microseconds of leaving alone.
static double detach(int mode) {
  int settled = gpufl_settle();
  CHECK(settled == GPUFL_OK || settled == GPUFL_TIMEOUT);
  gpufl_stats stats;
  gpufl_get_stats(&stats);
  held_back = stats.lent;
  for (int i = 0; i < 100 && settled == GPUFL_TIMEOUT; i++) {
    usleep(1000);
    settled = gpufl_settle();
  }
  if (settled == GPUFL_TIMEOUT) settled = settle_by_force();
  CHECK(settled == GPUFL_OK);
  while (gpufl_pending() > 0 || atomic_load(&taking) > 0) usleep(100);
  double begin = now();
  int64_t gap = 0;
  CHECK(gpufl_count_detach(mode, &gap) == GPUFL_OK);
  return (now() - begin) / 1e3;
}

// ---- leaving while others launch ----

static atomic_bool over;
static atomic_ullong launched;
static void *context;
static int (*set_current)(void *);

static void *storm(void *unused) {
  (void)unused;
  CHECK(set_current(context) == 0);
  for (unsigned long long i = 1; !atomic_load(&over); i++) {
    CHECK(cu_launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) == 0);
    atomic_fetch_add(&launched, 1);
    if (i % 1000 == 0) CHECK(cu_synchronize() == 0);
  }
  CHECK(cu_synchronize() == 0);
  return NULL;
}

static int leave_often(const gpufl_config *config, int cycles, int threads) {
  uint32_t enabled = 0;
  int refusal = 0;
  CHECK(gpufl_open(config) == GPUFL_OK && gpufl_start(&enabled, &refusal) == GPUFL_OK);
  pthread_t taker, all[64];
  CHECK(threads <= 64 && pthread_create(&taker, NULL, take, NULL) == 0);
  change(GPUFL_MODE_TRACE);
  for (int i = 0; i < threads; i++) CHECK(pthread_create(&all[i], NULL, storm, NULL) == 0);
  double begin = now(), blind = 0, leaving = 0, worst = 0, coming = 0;
  int forced = 0;
  for (int i = 0; i < cycles; i++) {
    usleep(5000);
    change(GPUFL_MODE_COUNT);
    int settled = GPUFL_TIMEOUT;
    for (int k = 0; k < 100 && (settled = gpufl_settle()) == GPUFL_TIMEOUT; k++) usleep(1000);
    if (settled == GPUFL_TIMEOUT) {
      forced++;
      settled = settle_by_force();
    }
    CHECK(settled == GPUFL_OK);
    while (gpufl_pending() > 0 || atomic_load(&taking) > 0) usleep(100);
    double from = now();
    int64_t gap = 0;
    bool away = i % 2 == 1;
    CHECK(gpufl_count_detach(away ? GPUFL_MODE_BLIND : GPUFL_MODE_COUNT, &gap) == GPUFL_OK);
    double took = now() - from;
    leaving += took;
    if (took > worst) worst = took;
    usleep(5000);
    double back = now();
    change(GPUFL_MODE_TRACE);
    coming += now() - back;
    if (away) blind += now() - from;
    if (i % 50 == 0) fprintf(stderr, "%d of %d\n", i, cycles);
  }
  double seconds = (now() - begin) / 1e9;
  atomic_store(&over, true);
  for (int i = 0; i < threads; i++) CHECK(pthread_join(all[i], NULL) == 0);
  gpufl_count n = counted();
  CHECK(gpufl_stop() == 0);
  pthread_join(taker, NULL);
  gpufl_count_stats c;
  gpufl_count_get_stats(&c);
  gpufl_stats stats;
  gpufl_get_stats(&stats);
  CHECK(gpufl_close() == GPUFL_OK);
  unsigned long long seen = n.traced + n.counted + n.doubtful, all_launched = atomic_load(&launched), records = atomic_load(&kernels);
  printf("{\"cycles\": %d, \"seconds\": %.1f, \"launched\": %llu, \"seen\": %llu, \"traced\": %llu, \"counted\": %llu, \"doubtful\": %llu, \"records\": %llu, "
         "\"blind_s\": %.3f, \"gap_s\": %.3f, \"unseen_by_time\": %.0f, \"us\": {\"leave\": %.1f, \"worst\": %.1f, \"come\": %.1f}, \"forced\": %d, \"dropped\": %llu, \"refused\": %llu}\n",
         cycles, seconds, all_launched, seen, (unsigned long long)n.traced, (unsigned long long)n.counted, (unsigned long long)n.doubtful, records,
         blind / 1e9, (double)c.gap_ns / 1e9, (double)all_launched / seconds * (blind / 1e9 + (double)c.gap_ns / 1e9), leaving / cycles / 1e3, worst / 1e3, coming / cycles / 1e3, forced,
         (unsigned long long)stats.dropped, (unsigned long long)stats.refused);
  // Records that were forced out are of kernels that may have had no end yet.
  CHECK(seen <= all_launched && records + stats.dropped >= n.traced && records <= n.traced + n.doubtful + (unsigned long long)cycles * (unsigned long long)threads);
  return 0;
}

int main(int argc, char **argv) {
  CHECK(argc == 4 || argc == 5);
  launches = atoi(argv[2]);
  int rounds = atoi(argv[3]);
  CHECK((launches > 0 || argc == 5) && rounds > 0);
  char words[GPUFL_ERROR_SIZE];
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(cuda != NULL && gpufl_driver_load(words) == GPUFL_OK && gpufl_driver_init() == 0);
  if (gpufl_load(argv[1], 0, words) != GPUFL_OK) {
    fprintf(stderr, "%s: %s\n", argv[1], words);
    return 1;
  }
  int (*retain)(void **, int), (*load)(void **, const void *), (*get)(void **, void *, const char *);
  *(void **)&retain = dlsym(cuda, "cuDevicePrimaryCtxRetain");
  *(void **)&set_current = dlsym(cuda, "cuCtxSetCurrent");
  *(void **)&load = dlsym(cuda, "cuModuleLoadData");
  *(void **)&get = dlsym(cuda, "cuModuleGetFunction");
  *(void **)&cu_launch = dlsym(cuda, "cuLaunchKernel");
  *(void **)&cu_synchronize = dlsym(cuda, "cuCtxSynchronize");
  void *module;
  CHECK(retain(&context, 0) == 0 && set_current(context) == 0);
  CHECK(load(&module, ptx) == 0 && get(&function, module, "nothing") == 0);
  bool often = argc == 5;
  if (!often) launch(); // warm-up

  gpufl_config config = {
      .buffer_bytes = 8 << 20,
      .buffers = 64,
      .kinds = 1u << GPUFL_KIND_KERNEL | 1u << GPUFL_KIND_MEMCPY | 1u << GPUFL_KIND_MEMSET | 1u << GPUFL_KIND_GRAPH | 1u << GPUFL_KIND_EXTERNAL,
  };
  if (often) return leave_often(&config, rounds, atoi(argv[4]));
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
    atomic_store(&first, 0);
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
    change(GPUFL_MODE_COUNT);
    double leave = detach(GPUFL_MODE_BLIND);
    uint32_t held = held_back, old = atomic_load(&last);
    double left = launch();
    double come = change(GPUFL_MODE_COUNT);
    gpufl_count before_recount = counted();
    double recount = launch();
    gpufl_count after_recount = counted();
    uint64_t before_records = atomic_load(&kernels);
    atomic_store(&first, 0);
    double again = change(GPUFL_MODE_TRACE);
    double retrace = launch();
    change(GPUFL_MODE_COUNT);
    double recounted = launch();
    double swap = detach(GPUFL_MODE_COUNT);
    uint32_t began = atomic_load(&first);
    uint64_t retraced = atomic_load(&kernels) - before_records;
    gpufl_count before_swap = counted();
    launch();
    gpufl_count after_swap = counted();
    change(GPUFL_MODE_TRACE);
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

    printf("{\"round\": %d, \"ns\": {\"before\": %.1f, \"subscribed\": %.1f, \"trace\": %.1f, \"count\": %.1f, \"blind\": %.1f, \"detached\": %.1f, \"recount\": %.1f, "
           "\"retrace\": %.1f, \"recounted\": %.1f, \"stopped\": %.1f, \"finalised\": %.1f}, ",
           round, before, subscribed, trace, count, blind, left, recount, retrace, recounted, stopped, finalised);
    printf("\"us\": {\"begin\": %.1f, \"trace_to_count\": %.1f, \"count_to_blind\": %.1f, \"blind_to_trace\": %.1f, \"count_to_detached\": %.1f, \"detached_to_recount\": %.1f, "
           "\"recount_to_trace\": %.1f, \"count_to_recount\": %.1f, \"stop\": %.1f, \"finalise\": %.1f}, ",
           begins, off, blinded, on, leave, come, again, swap, stop_us, finalise_us);
    printf("\"missed\": {\"records\": %lld, \"traced\": %lld, \"counted\": %lld, \"recounted\": %lld, \"retraced\": %lld, \"swapped\": %lld}, \"doubtful\": %llu, \"dropped\": %llu, "
           "\"held_back\": %u, \"correlation\": [%u, %u]}\n",
           4 * (long long)launches - (long long)atomic_load(&kernels), (long long)launches - (long long)(end.traced - begin.traced),
           (long long)launches - (long long)(end.counted - begin.counted), (long long)launches - (long long)(after_recount.counted - before_recount.counted),
           (long long)launches - (long long)retraced, (long long)launches - (long long)(after_swap.counted - before_swap.counted),
           (unsigned long long)(end.doubtful - begin.doubtful), (unsigned long long)stats.dropped, held, old, began);
    fflush(stdout);
  }
  return 0;
}
