/* SPDX-License-Identifier: Apache-2.0
 *
 * The lower bound for every tracer built on CUPTI: kernels, copies and sets are recorded, counted and
 * discarded. The overhead of this library is that of CUPTI itself.
 *
 *   gcc -O2 -shared -fPIC -I$CUDA/include -o libfloor.so floor.c -L$CUDA/lib64 -lcupti -lpthread
 *   CUDA_INJECTION64_PATH=$PWD/libfloor.so FLOOR_REPORT=report.json ./launch 300000
 *
 * With FLOOR_FLUSH_MS=200 a thread flushes completed records every 200 ms, as a tracer does that does
 * not wait for full buffers.
 *
 * At exit it writes one line of JSON to the file FLOOR_REPORT: the numbers of records and kernels, the
 * records that CUPTI dropped, and the first CUPTI error.
 */
#include <cupti.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BUFFER_BYTES (8u << 20)

static atomic_ulong records, kernels, dropped;
static atomic_int failure; /* the first CUPTI error */

static void check(CUptiResult result) {
  int none = CUPTI_SUCCESS;
  if (result != CUPTI_SUCCESS)
    atomic_compare_exchange_strong(&failure, &none, (int)result);
}

static void CUPTIAPI lend(uint8_t **buffer, size_t *size, size_t *max_records) {
  *buffer = aligned_alloc(8, BUFFER_BYTES);
  *size = *buffer ? BUFFER_BYTES : 0;
  *max_records = 0; /* as many as fit */
}

static void CUPTIAPI count(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
  CUpti_Activity *record = NULL;
  unsigned long all = 0, of_kernels = 0;
  size_t lost = 0;
  (void)size;
  while (valid > 0 && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    all++;
    of_kernels += record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || record->kind == CUPTI_ACTIVITY_KIND_KERNEL;
  }
  atomic_fetch_add(&records, all);
  atomic_fetch_add(&kernels, of_kernels);
  if (cuptiActivityGetNumDroppedRecords(context, stream, &lost) == CUPTI_SUCCESS)
    atomic_fetch_add(&dropped, lost);
  free(buffer);
}

static atomic_bool over;

static void *flush(void *milliseconds) {
  while (!atomic_load(&over)) {
    usleep((useconds_t)(1000 * (uintptr_t)milliseconds));
    if (!atomic_load(&over))
      check(cuptiActivityFlushAll(0));
  }
  return NULL;
}

static void report(void) {
  const char *path = getenv("FLOOR_REPORT");
  FILE *file;
  atomic_store(&over, true);
  check(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
  file = path ? fopen(path, "w") : stderr;
  if (!file) {
    perror(path);
    return;
  }
  fprintf(file, "{\"records\": %lu, \"kernels\": %lu, \"dropped\": %lu, \"result\": %d}\n",
          atomic_load(&records), atomic_load(&kernels), atomic_load(&dropped), atomic_load(&failure));
  if (file != stderr)
    fclose(file);
}

/* The driver calls it inside cuInit. A forked child that uses CUDA of its own is not meant to be
 * measured here. */
__attribute__((visibility("default"))) int InitializeInjection(void);
int InitializeInjection(void) {
  check(cuptiActivityRegisterCallbacks(lend, count));
  check(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  check(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY));
  check(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET));
  atexit(report);
  const char *every = getenv("FLOOR_FLUSH_MS");
  pthread_t thread;
  if (every && atoi(every) > 0 && pthread_create(&thread, NULL, flush, (void *)(uintptr_t)atoi(every)) == 0)
    pthread_detach(thread);
  return 1;
}
