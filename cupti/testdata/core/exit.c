// SPDX-License-Identifier: Apache-2.0
//
// Ends in the middle of everything, in the way that argv[2] says. The fake CUPTI flushes when the
// process ends, as the real one does; its callbacks may then find any state.

#include "core.h"

static void *launch(void *unused) {
  (void)unused;
  for (;;) fake_run(2, 1000, "k");
  return NULL;
}

static void stop_at_exit(void) {
  if (gpufl_stop() == GPUFL_OK) {
    take_all(0);
    gpufl_finalize();
  }
  gpufl_close();
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  const char *how = argv[2];
  alarm(20);
  if (strcmp(how, "atexit-before") == 0) atexit(stop_at_exit); // runs after all handlers that libraries register
  open_fakes(argv[1]);
  if (strcmp(how, "atexit-after") == 0) atexit(stop_at_exit);
  open_core(BASIC_KINDS);
  start_core();
  if (strcmp(how, "closed") == 0) {
    CHECK(fake_run(1, 100, "k") == 0);
    CHECK(gpufl_stop() == GPUFL_OK);
    CHECK(gpufl_close() == GPUFL_OK); // and not finalized: callbacks may come
    CHECK(fake_run(1, 100, "k") == 0);
    return 0;
  }
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, launch, NULL);
  usleep(20000);
  if (strcmp(how, "_exit") == 0) _exit(0);
  if (strcmp(how, "quick_exit") == 0) quick_exit(0);
  exit(0);
}
