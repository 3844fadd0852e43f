// SPDX-License-Identifier: Apache-2.0
//
// A CUPTI that has only what is required: no clock of ours, no callbacks, no finalize.

#include <time.h>

#include "core.h"

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  open_fakes(argv[1]);
  open_core(BASIC_KINDS);
  uint32_t enabled = 0;
  int refusal = 0;
  CHECK(gpufl_start(&enabled, &refusal) == GPUFL_OK && refusal == 0);
  CHECK(enabled == (1 << GPUFL_KIND_KERNEL | 1 << GPUFL_KIND_NVTX)); // no EXTERNAL
  CHECK(gpufl_push_scope(1) == GPUFL_OK);
  int64_t before = now();
  CHECK(fake_run(1, 10, "k") == 0);
  CHECK(gpufl_pop_scope(1) == GPUFL_OK);
  CHECK(gpufl_flush() == GPUFL_OK);
  gpufl_buffer *b;
  CHECK(gpufl_take(&b) == GPUFL_OK);
  void *cursor = NULL, *records[20];
  CHECK(gpufl_walk(b, &cursor, records, 20) == 10);
  uint64_t start;
  memcpy(&start, (char *)records[0] + 16, 8);
  int64_t at = (int64_t)start + b->anchor;
  CHECK(b->anchor != 0 && at > before - 5000000 && at < now() + 5000000);
  CHECK(gpufl_scope_of(1) == 0);
  gpufl_release(b);
  CHECK(gpufl_stop() == GPUFL_OK);
  CHECK(gpufl_finalize() == GPUFL_NOT_DETACHED);
  CHECK(gpufl_wait(0) == GPUFL_END);
  CHECK(gpufl_close() == GPUFL_OK);
  CHECK(gpufl_close() == GPUFL_CLOSED && gpufl_flush() == GPUFL_STOPPED);
  return 0;
}
