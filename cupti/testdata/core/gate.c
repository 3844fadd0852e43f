// SPDX-License-Identifier: Apache-2.0
//
// The gate beside threads that go through it all the time: while it is held nobody is inside, all the others go on
// after it, and those that ended inside, or whose end was not told, hold up nobody.

#include "core.h"
#include "gpufl_deep_internal.h"

enum { THREADS = 6, ROUNDS = 400 };

static atomic_bool over;
static atomic_int inside; // in a call of one of the first two sets
static atomic_ulong calls;

// CUPTI counts calls; those that one leads to may have its number.
static atomic_uint numbers;

static uint32_t enter(uint32_t set, uint32_t what, uint32_t number, const void *parameters) {
  gpufl_gate_enter(set, gpufl_gate_life(), what, number, parameters);
  return number;
}

static uint32_t next(void) { return atomic_fetch_add(&numbers, 1); }

// deeper does something further down on the stack.
static __attribute__((noinline)) void deeper(void (*what)(void)) {
  char room[512];
  __asm__ volatile("" : : "r"(room) : "memory");
  what();
  __asm__ volatile("" : : "r"(room) : "memory");
}

static __thread uint32_t outer; // the number of the call that the thread is in

static void lead_to(void) {
  enter(GPUFL_SET_CAPTURE, 8, outer, NULL);
  gpufl_gate_exit(8, outer);
}

static void lead_to_endless(void) { enter(GPUFL_SET_MODULE, 9, next(), NULL); }

static __attribute__((noinline)) void call(uint32_t set, bool nested) {
  outer = enter(set, 7, next(), NULL);
  uint32_t number = outer;
  if (nested) deeper(lead_to);
  if (set != GPUFL_SET_CAPTURE) atomic_fetch_add(&inside, 1);
  for (volatile int i = 0; i < 50; i++) continue;
  if (set != GPUFL_SET_CAPTURE) atomic_fetch_sub(&inside, 1);
  gpufl_gate_exit(7, number);
  atomic_fetch_add(&calls, 1);
}

static void *visit(void *number) {
  uintptr_t n = (uintptr_t)number;
  while (!atomic_load(&over)) {
    call(GPUFL_SET_LAUNCH, n % 2 == 0);
    if (n == 0) call(GPUFL_SET_MODULE, false);
    if (n == 1) call(GPUFL_SET_CAPTURE, false);
  }
  return NULL;
}

// One that ends inside, and others that take its place.
static void *end_inside(void *unused) {
  enter(GPUFL_SET_LAUNCH, 7, next(), NULL);
  return unused;
}

static void *end_at_once(void *unused) {
  while (!atomic_load(&over)) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, end_inside, NULL) == 0 && pthread_join(thread, NULL) == 0);
  }
  return unused;
}

static void *visit_once(void *unused) {
  call(GPUFL_SET_LAUNCH, false);
  return unused;
}

static void *stay(void *go_on) {
  char parameters[64];
  uint32_t number = enter(GPUFL_SET_LAUNCH, 7, next(), parameters);
  while (!atomic_load((atomic_bool *)go_on)) usleep(1000);
  gpufl_gate_exit(7, number);
  return NULL;
}

static void begin_only(void) {
  char parameters[64];
  __asm__ volatile("" : : "r"(parameters) : "memory");
  enter(GPUFL_SET_LAUNCH, 7, next(), parameters);
}

static void launch(void) { call(GPUFL_SET_LAUNCH, true); }
static void launch_deeper(void) { deeper(launch); }
static void load(void) { call(GPUFL_SET_MODULE, false); }
static void load_deeper(void) { deeper(load); }

// untold is in a call whose end is not told, and then in others, which are all further down on the stack.
static void *untold(void *go_on) {
  deeper(begin_only);
  while (!atomic_load((atomic_bool *)go_on)) usleep(1000);
  for (int i = 0; i < 3; i++) deeper(launch_deeper);
  while (atomic_load((atomic_bool *)go_on)) usleep(1000);
  return NULL;
}

// at_rest says whether nobody is inside.
static bool at_rest(void) {
  bool rest = gpufl_gate_close(GPUFL_SETS_ALL, 20000000);
  gpufl_gate_open();
  return rest;
}

static void launch_in_launch(void) {
  uint32_t number = enter(GPUFL_SET_LAUNCH, 5, next(), NULL);
  gpufl_gate_exit(5, number);
}

// nested is all that one thread can be told.
static void *nested(void *unused) {
  uint64_t before = gpufl_gate_counts().untold;
  // What a call led to has no end of its own: that of the call is enough.
  uint32_t number = enter(GPUFL_SET_LAUNCH, 7, next(), NULL);
  deeper(lead_to_endless);
  CHECK(!at_rest());
  gpufl_gate_exit(7, number);
  CHECK(at_rest() && gpufl_gate_counts().untold == before);
  // The end of one that nobody saw begin ends none.
  number = enter(GPUFL_SET_LAUNCH, 7, next(), NULL);
  gpufl_gate_exit(8, number);
  gpufl_gate_exit(7, number - 1);
  CHECK(!at_rest());
  gpufl_gate_exit(7, number);
  gpufl_gate_exit(7, number);
  CHECK(at_rest());
  // A load that comes as if a launch had led to it is not told from one that it led to, until the thread launches again.
  deeper(begin_only);
  deeper(load_deeper);
  CHECK(!at_rest() && gpufl_gate_counts().untold == before);
  deeper(launch_deeper);
  CHECK(at_rest() && gpufl_gate_counts().untold == before + 1);
  // A launch that leads to another is taken to be over once, and then no more.
  for (int i = 0; i < 3; i++) {
    number = enter(GPUFL_SET_LAUNCH, 7, next(), NULL);
    deeper(launch_in_launch);
    CHECK(at_rest() == (i == 0) && gpufl_gate_counts().untold == before + (i == 0 ? 2 : 1));
    gpufl_gate_exit(7, number);
    CHECK(at_rest() && gpufl_gate_counts().untold == before + 1);
  }
  return unused;
}

enum { PASSES = 20000000 };

static void *pass(void *ns) {
  int64_t began = gpufl_monotonic();
  for (int i = 0; i < PASSES; i++) {
    gpufl_gate_exit(7, enter(GPUFL_SET_LAUNCH, 7, (uint32_t)i, NULL));
  }
  *(double *)ns = (double)(gpufl_monotonic() - began) / PASSES;
  return NULL;
}

static void bench(void) {
  for (int n = 1; n <= 4; n *= 2) {
    pthread_t threads[4];
    double ns[4], sum = 0;
    for (int i = 0; i < n; i++) CHECK(pthread_create(&threads[i], NULL, pass, &ns[i]) == 0);
    for (int i = 0; i < n; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < n; i++) sum += ns[i] / n;
    printf("%d threads: %.1f ns a launch\n", n, sum);
  }
}

// somebody_stays waits until a thread that was just made is inside; then the gate is closed, and cannot be held. It does so for long enough that the thread is looked at.
static bool somebody_stays(void) {
  for (int i = 0; i < 10000; i++) {
    if (!gpufl_gate_close(GPUFL_SET_LAUNCH, 200000000)) return !gpufl_gate_hold();
    gpufl_gate_open();
    usleep(1000);
  }
  return false;
}

int main(int argc, char **argv) {
  (void)argv;
  if (argc > 1) {
    bench();
    return 0;
  }
  pthread_t threads[THREADS], ends;
  for (uintptr_t i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, visit, (void *)i) == 0);
  CHECK(pthread_create(&ends, NULL, end_at_once, NULL) == 0);
  int held = 0;
  for (int round = 0; round < ROUNDS; round++) {
    unsigned long before = atomic_load(&calls);
    // Threads that get no processor may be inside for long.
    CHECK(gpufl_gate_close(GPUFL_SET_LAUNCH | GPUFL_SET_MODULE, (int64_t)60000000000));
    bool holds = gpufl_gate_hold();
    held += holds;
    for (int i = 0; holds && i < 100; i++) {
      CHECK(atomic_load(&inside) == 0);
      if (i % 10 == 0) usleep(10);
    }
    gpufl_gate_open();
    while (atomic_load(&calls) == before) usleep(10);
  }
  // One that stays inside keeps the gate from being held, until its end is known not to be told.
  pthread_t stays;
  atomic_bool go_on = false;
  CHECK(pthread_create(&stays, NULL, stay, &go_on) == 0);
  CHECK(somebody_stays());
  int32_t thread = 0;
  uint32_t what = 0;
  bool out = true;
  gpufl_gate_inside(&thread, &what, &out);
  CHECK(thread > 0 && what == 7 && !out);
  gpufl_gate_forget();
  CHECK(gpufl_gate_close(GPUFL_SET_LAUNCH, (int64_t)60000000000));
  gpufl_gate_open();
  atomic_store(&go_on, true);
  CHECK(pthread_join(stays, NULL) == 0);
  atomic_store(&over, true);
  for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(pthread_join(ends, NULL) == 0);
  CHECK(held > ROUNDS / 2);
  gpufl_gate_totals t = gpufl_gate_counts();
  CHECK(t.waited > 0 && t.longest > 0 && t.untold == 0);
  // One whose end was not told keeps it from being held until its thread is in another call, and is counted.
  atomic_store(&go_on, false);
  CHECK(pthread_create(&stays, NULL, untold, &go_on) == 0);
  CHECK(somebody_stays());
  gpufl_gate_inside(&thread, &what, &out);
  for (int i = 0; i < 600 && !out; i++) { // it is looked at now and then
    CHECK(!gpufl_gate_close(GPUFL_SET_LAUNCH, 100000000));
    gpufl_gate_inside(&thread, &what, &out);
  }
  CHECK(gpufl_gate_counts().untold == 0 && thread > 0 && what == 7 && out);
  gpufl_gate_open();
  atomic_store(&go_on, true);
  CHECK(gpufl_gate_close(GPUFL_SET_LAUNCH, (int64_t)60000000000) && gpufl_gate_hold());
  gpufl_gate_open();
  CHECK(gpufl_gate_counts().untold == 1);
  atomic_store(&go_on, false);
  CHECK(pthread_join(stays, NULL) == 0);
  pthread_t tells;
  CHECK(pthread_create(&tells, NULL, nested, NULL) == 0 && pthread_join(tells, NULL) == 0);
  // With nobody left it is held at once, and who comes then waits.
  CHECK(gpufl_gate_close(GPUFL_SET_LAUNCH, 0) && gpufl_gate_hold());
  uint64_t before = gpufl_gate_counts().waited;
  pthread_t late;
  CHECK(pthread_create(&late, NULL, visit_once, NULL) == 0);
  for (int i = 0; i < 60000 && gpufl_gate_counts().waited == before; i++) usleep(1000);
  CHECK(gpufl_gate_counts().waited == before + 1);
  gpufl_gate_open();
  CHECK(pthread_join(late, NULL) == 0);
  return 0;
}
