// SPDX-License-Identifier: Apache-2.0
//
// All paths of the core at the same time, for the thread sanitizer. They are launches in scopes,
// records delivered and taken, flushes and statistics. Contexts and modules are created and
// destroyed. There are windows of both engines, and the mode changes. Two sessions.

#include "core.h"
#include "gpufl_deep.h"

static int (*create_context)(void **, unsigned, int), (*destroy_context)(void *);
static uint32_t (*load_module)(const void *, size_t);
static int (*unload_module)(uint32_t);
static atomic_bool over;
static atomic_ulong taken, launched, windows_closed, flushes, modules;

static void *launch(void *unused) {
  while (!atomic_load(&over)) {
    uint64_t scope = gpufl_next_scope_id();
    CHECK(gpufl_push_scope(scope) == GPUFL_OK);
    CHECK(fake_run(2, 50, "_Z6kernelv") == 0);
    CHECK(gpufl_pop_scope(scope) == GPUFL_OK);
    atomic_fetch_add(&launched, 100);
  }
  return unused;
}

static void *come_and_go(void *unused) {
  while (!atomic_load(&over)) {
    void *context = NULL;
    CHECK(create_context(&context, 0, 0) == 0);
    unload_module(load_module("an image", 8));
    CHECK(destroy_context(context) == 0);
    atomic_fetch_add(&modules, 1);
  }
  return unused;
}

static void *flush(void *unused) {
  gpufl_scope_event events[64];
  gpufl_cubin cubins[16];
  while (!atomic_load(&over)) {
    gpufl_stats stats;
    gpufl_deep_counts counts;
    CHECK(gpufl_flush() == GPUFL_OK);
    gpufl_get_stats(&stats);
    gpufl_deep_get_counts(&counts);
    while (gpufl_scope_events(events, 64) > 0) continue;
    gpufl_cubins(cubins, 16);
    atomic_fetch_add(&flushes, 1);
    usleep(500);
  }
  return unused;
}

static void *take(void *unused) {
  atomic_fetch_add(&taken, take_all(10000000));
  return unused;
}

static void *windows(void *unused) {
  static const char *const metrics[] = {"smsp__sass_inst_executed"};
  gpufl_deep_row rows[100];
  for (int i = 0; !atomic_load(&over); i++) {
    gpufl_sass_forget();
    fake_control("forget_sass", 1);
    gpufl_deep_config config = {.max_rows = 1 << 14, .limit_ns = (int64_t)5e9, .with_activity = 1};
    if (i % 2 == 1) {
      config.engine = GPUFL_DEEP_SASS;
      config.names = metrics;
      config.num_names = 1;
    }
    int result = gpufl_deep_open(&config), more = 0;
    if (result == GPUFL_NOT_QUIESCED) continue; // the machine is slow
    CHECK(result == GPUFL_OK);
    for (int k = 0; k < 5; k++) {
      CHECK(gpufl_deep_collect(&more) == GPUFL_OK);
      while (gpufl_deep_read(rows, 100) > 0) continue;
      usleep(1000);
    }
    result = gpufl_deep_close((int64_t)20e9);
    CHECK(result == GPUFL_OK);
    while (gpufl_deep_read(rows, 100) > 0) continue;
    CHECK(gpufl_deep_end() == GPUFL_OK);
    atomic_fetch_add(&windows_closed, 1);
  }
  return unused;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  alarm(300);
  open_fakes(argv[1]);
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
  *(void **)&create_context = dlsym(cuda, "cuCtxCreate_v2");
  *(void **)&destroy_context = dlsym(cuda, "cuCtxDestroy_v2");
  *(void **)&load_module = dlsym(cuda, "fake_module_load");
  *(void **)&unload_module = dlsym(cuda, "fake_module_unload");
  CHECK(create_context != NULL && destroy_context != NULL && load_module != NULL && unload_module != NULL);
  fake_control("own_thread", 1);
  for (int session = 0; session < 2; session++) {
    gpufl_config config = {.buffer_bytes = 1 << 16, .buffers = 16, .kinds = BASIC_KINDS, .deep = 1, .cubin_bytes = 1 << 20};
    CHECK(gpufl_open(&config) == GPUFL_OK);
    CHECK(create_context(&context, 0, 0) == 0);
    start_core();
    atomic_store(&over, false);
    atomic_store(&windows_closed, 0);
    void *(*const all[])(void *) = {take, launch, launch, come_and_go, flush, windows};
    enum { THREADS = sizeof all / sizeof *all };
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, all[i], NULL) == 0);
    while (atomic_load(&windows_closed) < 4) usleep(1000);
    atomic_store(&over, true);
    for (int i = 1; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(gpufl_stop() == GPUFL_OK);
    CHECK(pthread_join(threads[0], NULL) == 0);
    CHECK(destroy_context(context) == 0);
    CHECK(gpufl_close() == GPUFL_OK);
  }
  printf("%lu launches, %lu records taken, %lu flushes, %lu modules\n", launched, taken, flushes, modules);
  CHECK(launched > 0 && taken > 0 && flushes > 0 && modules > 0);
  return 0;
}
