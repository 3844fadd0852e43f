/* SPDX-License-Identifier: Apache-2.0
 *
 * For the programs here, which use the C core without Go. argv[1] is the folder with the fakes.
 */
#ifndef CORE_H
#define CORE_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpufl_cupti.h"

#define CHECK(condition)                                                \
  do {                                                                  \
    if (!(condition)) {                                                 \
      fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #condition); \
      _exit(99);                                                        \
    }                                                                   \
  } while (0)

__attribute__((unused)) static int (*fake_run)(int threads, uint64_t launches, const char *name);
__attribute__((unused)) static int64_t (*fake_control)(const char *what, int64_t value);

__attribute__((unused)) static void open_fakes(const char *dir) {
  char path[4096], words[GPUFL_ERROR_SIZE];
  snprintf(path, sizeof path, "%s/libcuda.so.1", dir);
  void *cuda = dlopen(path, RTLD_NOW);
  CHECK(cuda != NULL);
  CHECK(gpufl_driver_load(words) == GPUFL_OK);
  snprintf(path, sizeof path, "%s/libcupti.so.13", dir);
  CHECK(gpufl_load(path, 0, words) == GPUFL_OK);
  void *cupti = dlopen(path, RTLD_NOW);
  *(void **)&fake_run = dlsym(cuda, "fake_run");
  *(void **)&fake_control = dlsym(cupti, "fake_control");
  CHECK(fake_run != NULL && fake_control != NULL);
}

__attribute__((unused)) static void open_core(uint32_t kinds) {
  gpufl_config config = {.buffer_bytes = 1 << 18, .buffers = 16, .kinds = kinds};
  CHECK(gpufl_open(&config) == GPUFL_OK);
}

__attribute__((unused)) static void start_core(void) {
  uint32_t enabled = 0;
  int refusal = 0;
  CHECK(gpufl_start(&enabled, &refusal) == GPUFL_OK && refusal == 0);
}

enum { BASIC_KINDS = 1 << GPUFL_KIND_KERNEL | 1 << GPUFL_KIND_NVTX | 1 << GPUFL_KIND_EXTERNAL };

/* take_all takes until the end or, with wait 0, until there is nothing; it returns the records. */
__attribute__((unused)) static uint64_t take_all(int64_t wait) {
  uint64_t records = 0;
  for (;;) {
    int result = gpufl_wait(wait);
    if (result == GPUFL_END || (result == GPUFL_TIMEOUT && wait == 0)) return records;
    gpufl_buffer *b;
    if (gpufl_take(&b) != GPUFL_OK) continue;
    void *cursor = NULL, *pointers[100];
    int n;
    while ((n = gpufl_walk(b, &cursor, pointers, 100)) > 0) records += (uint64_t)n;
    CHECK(n == 0);
    gpufl_release(b);
  }
}

#endif
