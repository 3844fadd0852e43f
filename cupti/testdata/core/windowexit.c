// SPDX-License-Identifier: Apache-2.0
//
// Ends, or forks, in the middle of a window: argv[2] says how, argv[3] which engine. Meanwhile
// threads launch, load modules and come and go with contexts.

#include "core.h"
#include "gpufl_deep.h"

static int (*create_context)(void **, unsigned, int), (*destroy_context)(void *);
static uint32_t (*load_module)(const void *, size_t);
static int (*unload_module)(uint32_t);
static atomic_bool over;

static void *launch(void *unused) {
  (void)unused;
  while (!atomic_load(&over)) fake_run(2, 200, "k");
  return NULL;
}

static void *come_and_go(void *unused) {
  (void)unused;
  while (!atomic_load(&over)) {
    void *c = NULL;
    CHECK(create_context(&c, 0, 0) == 0);
    unload_module(load_module("an image", 8));
    CHECK(destroy_context(c) == 0);
  }
  return NULL;
}

static gpufl_deep_config config = {.max_rows = 1 << 16, .limit_ns = (int64_t)5e9};

static void *windows(void *unused) {
  (void)unused;
  gpufl_deep_row rows[100];
  int more = 0;
  while (!atomic_load(&over)) {
    gpufl_sass_forget();
    fake_control("forget_sass", 1);
    int result = gpufl_deep_open(&config);
    if (result == GPUFL_EXITING) return NULL;
    CHECK(result == GPUFL_OK);
    for (int i = 0; i < 20; i++) {
      result = gpufl_deep_collect(&more);
      CHECK(result == GPUFL_OK || result == GPUFL_EXITING);
      while (gpufl_deep_read(rows, 100) > 0) {
      }
      usleep(200);
    }
    if (gpufl_deep_close((int64_t)1e9) == GPUFL_EXITING) return NULL;
    gpufl_deep_end();
  }
  return NULL;
}

static void child(void) {
  alarm(60); // a hang is a failure
  gpufl_deep_row row;
  gpufl_deep_counts counts;
  gpufl_cubin cubin;
  gpufl_cubin_stats stats;
  uint32_t lost = 0;
  int more = 0;
  CHECK(gpufl_deep_supported(GPUFL_DEEP_PC) == GPUFL_FORKED);
  CHECK(gpufl_deep_open(&config) == GPUFL_FORKED);
  CHECK(gpufl_deep_collect(&more) == GPUFL_FORKED);
  CHECK(gpufl_deep_read(&row, 1) == 0);
  CHECK(gpufl_deep_close(1000000000) == GPUFL_FORKED);
  CHECK(gpufl_deep_end() == GPUFL_FORKED);
  CHECK(gpufl_deep_give_up() == GPUFL_FORKED);
  CHECK(gpufl_deep_function(0) == NULL && gpufl_deep_name(0) == NULL && !gpufl_deep_missing(0));
  gpufl_deep_get_counts(&counts);
  CHECK(counts.samples == 0);
  CHECK(gpufl_pause() == GPUFL_FORKED && gpufl_resume(&lost) == GPUFL_FORKED);
  CHECK(gpufl_cubins(&cubin, 1) == GPUFL_FORKED && !gpufl_cubin_copy(1, &cubin, 1));
  gpufl_get_cubin_stats(&stats);
  CHECK(stats.images == 0);
}

int main(int argc, char **argv) {
  CHECK(argc == 4);
  const char *how = argv[2];
  alarm(200);
  open_fakes(argv[1]);
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(cuda != NULL);
  *(void **)&create_context = dlsym(cuda, "cuCtxCreate_v2");
  *(void **)&destroy_context = dlsym(cuda, "cuCtxDestroy_v2");
  *(void **)&load_module = dlsym(cuda, "fake_module_load");
  *(void **)&unload_module = dlsym(cuda, "fake_module_unload");
  gpufl_config open = {.buffer_bytes = 1 << 18, .buffers = 16, .kinds = BASIC_KINDS, .deep = 1, .cubin_bytes = 1 << 20};
  CHECK(gpufl_open(&open) == GPUFL_OK);
  start_core();
  static const char *const metrics[] = {"smsp__sass_inst_executed"};
  if (strcmp(argv[3], "sass") == 0) {
    config.engine = GPUFL_DEEP_SASS;
    config.names = metrics;
    config.num_names = 1;
    config.with_activity = 1;
  }
  void *context = NULL;
  CHECK(create_context(&context, 0, 0) == 0);
  pthread_t threads[4];
  pthread_create(&threads[0], NULL, launch, NULL);
  pthread_create(&threads[1], NULL, come_and_go, NULL);
  pthread_create(&threads[2], NULL, windows, NULL);
  usleep(20000);
  if (strcmp(how, "fork") == 0) {
    for (int i = 0; i < 30; i++) {
      pid_t pid = fork();
      CHECK(pid >= 0);
      if (pid == 0) {
        child();
        exit(7);
      }
      int status = 0;
      CHECK(waitpid(pid, &status, 0) == pid);
      CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    atomic_store(&over, true);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    gpufl_sass_forget();
    fake_control("forget_sass", 1);
    CHECK(gpufl_deep_open(&config) == GPUFL_OK && gpufl_deep_close(1000000000) == GPUFL_OK && gpufl_deep_end() == GPUFL_OK);
    CHECK(destroy_context(context) == 0);
    CHECK(gpufl_stop() == GPUFL_OK && gpufl_close() == GPUFL_OK);
    CHECK(fake_control("armed", 0) == 0);
    return 0;
  }
  if (strcmp(how, "_exit") == 0) _exit(0);
  if (strcmp(how, "quick_exit") == 0) quick_exit(0);
  exit(0);
}
