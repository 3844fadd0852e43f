// SPDX-License-Identifier: Apache-2.0
//
// Windows of SASS metrics as CUPTI has them, without our core.

#ifndef COUNTS_H
#define COUNTS_H

#include <stdatomic.h>
#include <stdlib.h>

#include "bare.h"

enum { METRICS = 4 };
static void *context; // the program's, or NULL for the calling thread's
static unsigned long counted; // instructions that CUPTI says it patched
static const char *const metrics[METRICS] = {
    "smsp__sass_inst_executed", "smsp__sass_thread_inst_executed", "smsp__sass_sectors_mem_global", "smsp__sass_sectors_mem_global_ideal"};
static bool configured;
static atomic_bool patching; // counting was begun and not ended

static void *here(void) {
  void *now = context;
  if (now == NULL) cu_which(&now);
  return now;
}

static int begin_counts(void) {
  gpufl_profiler_life life = {.structSize = GPUFL_SIZE_TO(gpufl_profiler_life, pPriv)};
  int result = profiler_begin(&life);
  atomic_store(&patching, true);
  if (result == 0 && !configured) {
    gpufl_chip_name chip = {.structSize = GPUFL_SIZE_TO(gpufl_chip_name, pChipName)};
    result = chip_name(&chip);
    gpufl_sass_choice choices[METRICS] = {0};
    for (int i = 0; i < METRICS && result == 0; i++) {
      gpufl_sass_properties p = {.structSize = GPUFL_SIZE_TO(gpufl_sass_properties, metric), .pChipName = chip.pChipName, .pMetricName = metrics[i]};
      result = sass_properties(&p);
      choices[i].metricId = p.metric.metricId;
    }
    gpufl_sass_set_config config = {.structSize = GPUFL_SIZE_TO(gpufl_sass_set_config, deviceIndex), .numOfMetricConfig = METRICS, .pConfigs = choices};
    if (result == 0) result = sass_set_config(&config);
    configured = result == 0;
  }
  gpufl_sass_enable enable = {.structSize = GPUFL_SIZE_TO(gpufl_sass_enable, enableLazyPatching), .ctx = here(), .enableLazyPatching = 1};
  return result != 0 ? result : sass_enable(&enable);
}

static int by_address(const void *a, const void *b) {
  const char *x = *(const char *const *)a, *y = *(const char *const *)b;
  return x < y ? -1 : x > y;
}

// read_counts takes what was counted and forgets it.
static int read_counts(void) {
  gpufl_sass_data_properties p = {.structSize = GPUFL_SIZE_TO(gpufl_sass_data_properties, numOfInstances), .ctx = here()};
  int result = sass_data_properties(&p);
  size_t n = p.numOfPatchedInstructionRecords, values = p.numOfInstances * METRICS;
  if (result != 0 || n == 0 || values == 0) return result;
  counted += n;
  gpufl_sass_record *all = calloc(n, sizeof *all);
  gpufl_sass_value *figures = calloc(n * values, sizeof *figures);
  const char **names = calloc(n, sizeof *names);
  CHECK(all != NULL && figures != NULL && names != NULL);
  for (size_t i = 0; i < n; i++) all[i] = (gpufl_sass_record){.structSize = sizeof *all, .pInstanceValues = &figures[i * values]};
  gpufl_sass_flush flush = {.structSize = GPUFL_SIZE_TO(gpufl_sass_flush, numOfInstances), .ctx = here(),
                            .numOfPatchedInstructionRecords = n, .numOfInstances = p.numOfInstances, .pMetricsData = all};
  result = sass_flush(&flush);
  // Each name is the reader's to free, once, however many records have it.
  for (size_t i = 0; i < n; i++) names[i] = all[i].functionName;
  qsort(names, n, sizeof *names, by_address);
  for (size_t i = 0; i < n; i++) {
    if (i == 0 || names[i] != names[i - 1]) free((void *)names[i]);
  }
  free(names);
  free(figures);
  free(all);
  return result;
}

// leave_counts ends counting, with what was counted unread.
static int leave_counts(void) {
  gpufl_sass_disable disable = {.structSize = GPUFL_SIZE_TO(gpufl_sass_disable, numOfDroppedRecords), .ctx = here()};
  int result = sass_disable(&disable);
  gpufl_profiler_life life = {.structSize = GPUFL_SIZE_TO(gpufl_profiler_life, pPriv)};
  int answer = profiler_end(&life);
  atomic_store(&patching, false);
  return result != 0 ? result : answer;
}

static int end_counts(void) {
  int result = read_counts(), answer = leave_counts();
  return result != 0 ? result : answer;
}

#endif
