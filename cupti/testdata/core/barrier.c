// SPDX-License-Identifier: Apache-2.0
//
// The barrier and threads that pass through it all the time. While it is closed no call is in
// flight, and all threads continue afterwards. Calls whose end is not reported block nobody
// permanently.

#include "core.h"
#include "gpufl_deep_internal.h"

enum { THREADS = 6, ROUNDS = 400 };
#define LONG_NS ((int64_t)60000000000)

static atomic_bool over;
static atomic_int inside; // calls of the sets that are closed
static atomic_ulong calls;
static atomic_uint numbers; // CUPTI counts calls

static uint32_t enter(uint32_t set) {
  uint32_t number = 1 + atomic_fetch_add(&numbers, 1);
  gpufl_barrier_enter(set, gpufl_barrier_epoch(), 7, number);
  return number;
}

static void call(uint32_t set, bool nested) {
  uint32_t number = enter(set);
  atomic_fetch_add(&inside, 1);
  if (nested) gpufl_barrier_exit(GPUFL_SET_MODULE, enter(GPUFL_SET_MODULE)); // a launch loads a module, and must not block in it
  for (volatile int i = 0; i < 50; i++) continue;
  atomic_fetch_sub(&inside, 1);
  gpufl_barrier_exit(set, number);
  atomic_fetch_add(&calls, 1);
}

static void *pass(void *of) {
  uintptr_t n = (uintptr_t)of;
  while (!atomic_load(&over)) {
    call(GPUFL_SET_LAUNCH, n % 2 == 0);
    if (n == 0) call(GPUFL_SET_MODULE, false);
    if (n == 1) call(GPUFL_SET_CAPTURE, false);
  }
  return NULL;
}

static void *end_inside(void *unused) {
  enter(GPUFL_SET_LAUNCH);
  return unused;
}

static void *end_inside_again(void *unused) {
  while (!atomic_load(&over)) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, end_inside, NULL) == 0 && pthread_join(thread, NULL) == 0);
  }
  return unused;
}

static void *launch_once(void *unused) {
  call(GPUFL_SET_LAUNCH, false);
  return unused;
}

static bool quiet(uint32_t sets) {
  bool closed = gpufl_barrier_close(sets, 20000000);
  gpufl_barrier_open();
  return closed;
}

// alone is what one thread can do.
static void alone(void) {
  uint32_t number = enter(GPUFL_SET_LAUNCH);
  CHECK(!quiet(GPUFL_SETS_ALL) && quiet(GPUFL_SETS_ALWAYS));
  int32_t thread = 0;
  uint32_t what = 0;
  gpufl_barrier_busy(&thread, &what);
  CHECK(thread == (int32_t)gpufl_thread() && what == 7);
  gpufl_barrier_exit(GPUFL_SET_LAUNCH, number + 1); // the end of a call whose begin was not reported
  CHECK(!quiet(GPUFL_SETS_ALL));
  gpufl_barrier_exit(GPUFL_SET_LAUNCH, number);
  CHECK(quiet(GPUFL_SETS_ALL));
  // A missing end is replaced by the next call, and forgotten with the subscription.
  enter(GPUFL_SET_LAUNCH);
  call(GPUFL_SET_LAUNCH, false);
  CHECK(quiet(GPUFL_SETS_ALL));
  uint32_t before = gpufl_barrier_epoch();
  enter(GPUFL_SET_MODULE);
  CHECK(!quiet(GPUFL_SETS_ALL));
  gpufl_barrier_next_epoch();
  CHECK(quiet(GPUFL_SETS_ALL));
  gpufl_barrier_enter(GPUFL_SET_LAUNCH, before, 7, 1); // it began before, and its end is not reported
  CHECK(quiet(GPUFL_SETS_ALL));
  // Our own calls pass.
  CHECK(gpufl_barrier_close(GPUFL_SETS_ALL, 0));
  gpufl_operating = true;
  call(GPUFL_SET_LAUNCH, true);
  gpufl_operating = false;
  gpufl_barrier_open();
}

enum { PASSES = 20000000 };

static void *measure(void *ns) {
  int64_t began = gpufl_monotonic();
  for (int i = 0; i < PASSES; i++) {
    gpufl_barrier_enter(GPUFL_SET_LAUNCH, gpufl_barrier_epoch(), 7, (uint32_t)i);
    gpufl_barrier_exit(GPUFL_SET_LAUNCH, (uint32_t)i);
  }
  *(double *)ns = (double)(gpufl_monotonic() - began) / PASSES;
  return NULL;
}

int main(int argc, char **argv) {
  (void)argv;
  if (argc > 1) {
    double ns;
    measure(&ns);
    printf("%.1f ns a launch\n", ns);
    return 0;
  }
  pthread_t threads[THREADS], ends, late;
  for (uintptr_t i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, pass, (void *)i) == 0);
  CHECK(pthread_create(&ends, NULL, end_inside_again, NULL) == 0);
  for (int round = 0; round < ROUNDS; round++) {
    unsigned long before = atomic_load(&calls);
    CHECK(gpufl_barrier_close(GPUFL_SETS_ALL, LONG_NS));
    for (int i = 0; i < 100; i++) {
      CHECK(atomic_load(&inside) == 0);
      if (i % 10 == 0) usleep(10);
    }
    gpufl_barrier_open();
    while (atomic_load(&calls) == before) usleep(10);
  }
  atomic_store(&over, true);
  for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(pthread_join(ends, NULL) == 0);
  gpufl_barrier_counts c = gpufl_barrier_take_counts(true);
  CHECK(c.blocked > 0 && c.longest_ns > 0 && c.timeouts == 0);
  alone();
  // Threads block until the limit, and later calls do not block.
  CHECK(gpufl_barrier_close(GPUFL_SET_LAUNCH, 0));
  int64_t began = gpufl_monotonic();
  for (int i = 0; i < 10; i++) CHECK(pthread_create(&late, NULL, launch_once, NULL) == 0 && pthread_join(late, NULL) == 0);
  c = gpufl_barrier_take_counts(false);
  CHECK(c.blocked == 10 && c.timeouts == 10 && gpufl_monotonic() - began >= GPUFL_BARRIER_LIMIT_NS && gpufl_monotonic() - began < 6 * GPUFL_BARRIER_LIMIT_NS);
  gpufl_barrier_open();
  return 0;
}
