// SPDX-License-Identifier: Apache-2.0
//
// Launches of threads that are in no scope, such as PyTorch's backward pass. If one thread only is
// in a range, they are children of its innermost range, and marked. Otherwise they have no scope.

#include "core.h"
#include "gpufl_scope.h"

static uint32_t correlation;

static void launch(void) { gpufl_scope_launch(++correlation); }

static void *launch_elsewhere(void *unused) {
  (void)unused;
  launch();
  return NULL;
}

// scope says where a launch of another thread, or of this one, is; inferred what is noted of that.
static uint64_t scope(bool elsewhere, bool *inferred) {
  if (elsewhere) {
    pthread_t t;
    CHECK(pthread_create(&t, NULL, launch_elsewhere, NULL) == 0);
    CHECK(pthread_join(t, NULL) == 0);
  } else {
    launch();
  }
  uint64_t slot = gpufl_scope_table()[correlation & ((1u << GPUFL_SCOPE_TABLE_BITS) - 1)];
  *inferred = slot >> 52 & 1;
  return gpufl_scope_of(correlation);
}

static void expect(uint64_t here, uint64_t elsewhere) {
  bool inferred;
  CHECK(scope(false, &inferred) == here && !inferred);
  CHECK(scope(true, &inferred) == elsewhere && inferred == (elsewhere != 0));
}

// begin opens a range and returns its id.
static uint64_t begin(const char *name) {
  gpufl_scope_event e[4];
  gpufl_nvtx_push(NULL, name, 0, 0);
  int n = gpufl_scope_events(e, 4);
  CHECK(n > 0 && e[n - 1].what == GPUFL_SCOPE_BEGIN);
  return e[n - 1].id;
}

static pthread_barrier_t step;

static void *second(void *leave_open) {
  gpufl_nvtx_push(NULL, "another", 0, 0);
  pthread_barrier_wait(&step);
  pthread_barrier_wait(&step);
  if (leave_open == NULL) gpufl_nvtx_pop(NULL);
  return NULL;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  open_fakes(argv[1]);
  open_core(BASIC_KINDS);
  start_core();
  expect(0, 0);
  uint64_t outer = begin("outer");
  expect(outer, outer);
  uint64_t inner = begin("inner");
  expect(inner, inner);
  gpufl_nvtx_pop(NULL);
  expect(outer, outer);

  // A scope of the SDK is its thread's own.
  uint64_t sdk = gpufl_next_scope_id();
  CHECK(gpufl_push_scope(sdk) == GPUFL_OK);
  expect(sdk, 0);
  CHECK(gpufl_pop_scope(sdk) == GPUFL_OK);
  expect(outer, outer);

  // Two threads in ranges: whose it is cannot be told. Whether the other ends its range or just
  // ends.
  CHECK(pthread_barrier_init(&step, NULL, 2) == 0);
  for (int leave_open = 0; leave_open < 2; leave_open++) {
    pthread_t t;
    CHECK(pthread_create(&t, NULL, second, leave_open ? &step : NULL) == 0);
    pthread_barrier_wait(&step);
    expect(outer, 0);
    pthread_barrier_wait(&step);
    CHECK(pthread_join(t, NULL) == 0);
    inner = begin("inner again");
    expect(inner, inner);
    gpufl_nvtx_pop(NULL);
    expect(outer, outer);
  }
  gpufl_nvtx_pop(NULL);
  expect(0, 0);
  CHECK(gpufl_stop() == GPUFL_OK);
  take_all(0);
  CHECK(gpufl_close() == GPUFL_OK);
  return 0;
}
