// SPDX-License-Identifier: Apache-2.0
//
// Records as other programs here do, and with -DDEFECT_... has one defect, which the sanitizer must
// report. Without, it has none.

#include <limits.h>

#include "core.h"

static int shared; // of two threads without a lock

static void *launch(void *unused) {
  CHECK(fake_run(2, 100, "_Z6kernelv") == 0);
#ifdef DEFECT_RACE
  for (int i = 0; i < 1000; i++) shared++;
#endif
  return unused;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  open_fakes(argv[1]);
  open_core(BASIC_KINDS);
  start_core();
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, launch, NULL) == 0);
  for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(gpufl_stop() == GPUFL_OK);
  gpufl_buffer *b;
  CHECK(gpufl_wait(0) == GPUFL_OK && gpufl_take(&b) == GPUFL_OK);
  volatile size_t at = b->valid;
  CHECK(at > 0);
#ifdef DEFECT_OVERFLOW
  uint8_t *volatile copy = malloc(at);
  CHECK(copy != NULL);
  memcpy(copy, b->data, at);
  shared = copy[at];
  free(copy);
#endif
#ifdef DEFECT_RELEASED
  gpufl_release(b);
  take_all(0);
  CHECK(gpufl_close() == GPUFL_OK);
  shared = b->data[0]; // the core's own buffer, after the core freed it
#endif
#ifdef DEFECT_UNDEFINED
  shared = INT_MAX;
  shared += argc;
#endif
#ifdef DEFECT_LEAK
  void *volatile lost = malloc(77);
  CHECK(lost != NULL);
  lost = NULL;
#endif
#ifndef DEFECT_RELEASED
  gpufl_release(b);
  take_all(0);
  CHECK(gpufl_close() == GPUFL_OK);
#endif
  return shared == 12345;
}
