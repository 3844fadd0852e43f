// SPDX-License-Identifier: Apache-2.0
//
// CUPTI is detached and attached again while threads launch, open scopes and flush. Each record
// that was made is read, and recording continues after the last cycle.

#include "../../../internal/testing/cuptitest/fake/fake.h"
#include "core.h"

enum { THREADS = 4, CYCLES = 60 };

static atomic_bool over;

// fake_launch launches on the calling thread.
static int (*fake_launch)(const fake_kernel *kernel);
static const fake_kernel kernel = {.name = "kernel", .grid = {1, 1, 1}, .block = {1, 1, 1}};

static void *launch(void *unused) {
  while (!atomic_load(&over)) {
    uint64_t id = gpufl_next_scope_id();
    CHECK(gpufl_push_scope(id) == GPUFL_OK);
    for (int i = 0; i < 20; i++) CHECK(fake_launch(&kernel) == 0);
    CHECK(gpufl_pop_scope(id) == GPUFL_OK);
  }
  return unused;
}

static void *flush(void *unused) {
  while (!atomic_load(&over)) {
    CHECK(gpufl_flush() == GPUFL_OK);
    usleep(500);
  }
  return unused;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  alarm(240);
  open_fakes(argv[1]);
  *(void **)&fake_launch = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_launch");
  CHECK(fake_launch != NULL);
  fake_control("own_thread", 1);
  gpufl_config config = {.buffer_bytes = 1 << 20, .buffers = 64, .kinds = BASIC_KINDS, .detach = 1};
  CHECK(gpufl_open(&config) == GPUFL_OK);
  CHECK(gpufl_suspend(0) == GPUFL_STOPPED);
  start_core();
  pthread_t threads[THREADS + 1];
  for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, launch, NULL) == 0);
  CHECK(pthread_create(&threads[THREADS], NULL, flush, NULL) == 0);
  uint64_t records = 0;
  uint32_t attachment = gpufl_attachment();
  for (int i = 0; i < CYCLES; i++) {
    usleep(1000);
    CHECK(gpufl_suspend((int64_t)20e9) == GPUFL_OK && gpufl_suspended());
    CHECK(gpufl_suspend(0) == GPUFL_OK); // changes nothing
    records += take_all(0);
    CHECK(gpufl_finalize() == GPUFL_OK && gpufl_finalize() == GPUFL_OK);
    CHECK(gpufl_attachment() == attachment + (uint32_t)i + 1);
    CHECK(fake_control("subscribed", 0) == 0 && take_all(0) == 0);
    start_core();
    CHECK(!gpufl_suspended());
  }
  atomic_store(&over, true);
  for (int i = 0; i <= THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(fake_run(1, 50, "kernel") == 0);
  CHECK(gpufl_stop() == GPUFL_OK);
  uint64_t last = take_all((int64_t)1e9);
  gpufl_stats stats;
  gpufl_get_stats(&stats);
  CHECK(records > 0 && last >= 50 && stats.dropped == 0 && stats.unreturned == 0 && stats.lent == 0);
  CHECK(gpufl_finalize() == GPUFL_OK && gpufl_close() == GPUFL_OK);
  printf("%llu records in %d slices\n", (unsigned long long)(records + last), CYCLES + 1);
  return 0;
}
