// SPDX-License-Identifier: Apache-2.0
//
// Forks while threads launch, while buffers are delivered and taken. Each child calls everything
// and ends by exit, with all its exit handlers; the parent records on and loses nothing.

#include "core.h"

static atomic_bool done;
static atomic_ulong taken;

static void *launch(void *unused) {
  (void)unused;
  CHECK(fake_run(4, 20000, "_Z6kernelv") == 0);
  return NULL;
}

static void *take(void *unused) {
  (void)unused;
  atomic_fetch_add(&taken, take_all(10000000));
  return NULL;
}

static void *flush(void *unused) {
  (void)unused;
  while (!atomic_load(&done)) {
    gpufl_flush();
    uint64_t id = gpufl_next_scope_id();
    CHECK(gpufl_push_scope(id) == GPUFL_OK && gpufl_pop_scope(id) == GPUFL_OK);
    usleep(100);
  }
  return NULL;
}

static void child(void) {
  alarm(60); // a hang is a failure
  char words[GPUFL_ERROR_SIZE];
  uint32_t enabled;
  int refusal;
  gpufl_buffer *b;
  gpufl_stats stats;
  gpufl_device device;
  gpufl_scope_event event;
  gpufl_config config = {.buffer_bytes = 1 << 18, .buffers = 16, .kinds = 1};
  CHECK(gpufl_load("libcupti.so.13", 0, words) == GPUFL_FORKED);
  CHECK(gpufl_driver_load(words) == GPUFL_FORKED);
  CHECK(gpufl_open(&config) == GPUFL_FORKED);
  CHECK(gpufl_probe() == GPUFL_FORKED);
  CHECK(gpufl_start(&enabled, &refusal) == GPUFL_FORKED);
  CHECK(gpufl_flush() == GPUFL_FORKED);
  CHECK(gpufl_wait(1000000000) == GPUFL_FORKED);
  CHECK(gpufl_take(&b) == GPUFL_FORKED && b == NULL);
  CHECK(gpufl_pending() == 0);
  CHECK(gpufl_push_scope(1) == GPUFL_FORKED);
  CHECK(gpufl_pop_scope(1) == GPUFL_FORKED);
  CHECK(gpufl_scope_events(&event, 1) == 0);
  CHECK(gpufl_devices(&device, 1) == 0);
  CHECK(gpufl_thread() == (uint32_t)getpid());
  gpufl_get_stats(&stats);
  CHECK(stats.requests == 0);
  CHECK(gpufl_stop() == GPUFL_FORKED);
  CHECK(gpufl_finalize() == GPUFL_FORKED);
  CHECK(gpufl_close() == GPUFL_FORKED);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  open_fakes(argv[1]);
  open_core(BASIC_KINDS);
  fake_control("own_thread", 1);
  start_core();
  pthread_t launcher, taker, flusher;
  pthread_create(&launcher, NULL, launch, NULL);
  pthread_create(&taker, NULL, take, NULL);
  pthread_create(&flusher, NULL, flush, NULL);
  for (int i = 0; i < 50; i++) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
      child();
      exit(7);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 7) {
      fprintf(stderr, "child %d: status %#x\n", i, status);
      return 1;
    }
    usleep(1000);
  }
  pthread_join(launcher, NULL);
  atomic_store(&done, true);
  pthread_join(flusher, NULL);
  CHECK(gpufl_stop() == GPUFL_OK);
  pthread_join(taker, NULL);
  gpufl_stats stats;
  gpufl_get_stats(&stats);
  uint64_t all = atomic_load(&taken) + stats.dropped;
  if (all != 80000) {
    fprintf(stderr, "%llu records and drops, want 80000\n", (unsigned long long)all);
    return 1;
  }
  CHECK(gpufl_finalize() == GPUFL_OK);
  CHECK(gpufl_close() == GPUFL_OK);
  return 0;
}
