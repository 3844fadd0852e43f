// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <stdlib.h>
#include <string.h>

#include "gpufl_deep_internal.h"

// SASS metrics: instructions are patched so that they count. CUPTI's profiler is initialised for the
// window only, since PC sampling does not work beside it. What was counted is taken once, at the end: to take it while
// kernels are launched is said to lock launches up.

enum {
  MAX_METRICS = 64,
  MAX_DEVICES = 64,
  MAX_RECORDS = 1 << 19, // patched instructions that are taken at once
  MAX_ROUNDS = 64,
};
static const size_t max_values = (size_t)16 << 20;

typedef struct {
  int32_t device;
  bool configured;
  uint32_t num_metrics;
  uint64_t id[MAX_METRICS];
  uint32_t name[MAX_METRICS];
} counted_device;

typedef struct {
  void *handle;
  int32_t device;
  atomic_bool lost;
} counted;

static counted_device devices[MAX_DEVICES];
static int num_devices;
static counted contexts[GPUFL_MAX_CONTEXTS];
static int num_contexts;
static bool profiler;
static _Atomic(const char *) obstacle;

const char *gpufl_sass_obstacle(void) {
  const char *text = atomic_load(&obstacle);
  return text != NULL ? text : "";
}

static counted_device *find_device(int32_t device) {
  for (int i = 0; i < num_devices; i++) {
    if (devices[i].device == device) return &devices[i];
  }
  return NULL;
}

// supported asks whether the device's setup allows it. A library that does not answer lets us try.
static bool supported(int32_t device) {
  gpufl_profiler_supported p = {.structSize = GPUFL_SIZE_TO(gpufl_profiler_supported, api), .cuDevice = device, .api = GPUFL_CUPTI_PROFILER_SASS_METRICS};
  if (gpufl_deep.profiler_supported(&p) != GPUFL_CUPTI_SUCCESS) return true;
  const struct {
    int level;
    const char *name;
  } all[] = {{p.architecture, "architecture"}, {p.sli, "sli"}, {p.vGpu, "vGPU"}, {p.confidentialCompute, "confidential computing"},
             {p.cmp, "mining processor"}, {p.wsl, "WSL"}};
  if (p.isSupported != GPUFL_CUPTI_PROFILER_CONFIGURATION_UNSUPPORTED && p.isSupported != GPUFL_CUPTI_PROFILER_CONFIGURATION_DISABLED) return true;
  const char *why = "";
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (all[i].level == GPUFL_CUPTI_PROFILER_CONFIGURATION_UNSUPPORTED || all[i].level == GPUFL_CUPTI_PROFILER_CONFIGURATION_DISABLED) {
      why = all[i].name;
      break;
    }
  }
  atomic_store(&obstacle, why);
  return false;
}

static int configure(counted_device *d) {
  if (!supported(d->device)) return GPUFL_DEVICE;
  gpufl_chip_name chip = {.structSize = GPUFL_SIZE_TO(gpufl_chip_name, pChipName), .deviceIndex = (size_t)d->device};
  int result = gpufl_deep.chip_name(&chip);
  if (result != GPUFL_CUPTI_SUCCESS) return result;
  gpufl_sass_choice choices[MAX_METRICS];
  memset(choices, 0, sizeof choices);
  int refusal = GPUFL_BAD_VALUE;
  for (uint32_t i = 0; i < gpufl_window_config.num_names && d->num_metrics < MAX_METRICS; i++) {
    gpufl_sass_properties p = {.structSize = GPUFL_SIZE_TO(gpufl_sass_properties, metric), .pChipName = chip.pChipName, .pMetricName = gpufl_deep_name(i)};
    result = gpufl_deep.sass_properties(&p);
    if (result != GPUFL_CUPTI_SUCCESS) {
      // A name that it does not know is an invalid parameter to it; anything else is a reason.
      if (result != GPUFL_CUPTI_ERROR_INVALID_PARAMETER) refusal = result;
      continue;
    }
    gpufl_window_known(i);
    choices[d->num_metrics] = (gpufl_sass_choice){.metricId = p.metric.metricId, .outputGranularity = GPUFL_CUPTI_SASS_METRICS_OUTPUT_GRANULARITY_GPU};
    d->id[d->num_metrics] = p.metric.metricId;
    d->name[d->num_metrics++] = i;
  }
  if (d->num_metrics == 0) return refusal;
  gpufl_sass_set_config p = {.structSize = GPUFL_SIZE_TO(gpufl_sass_set_config, deviceIndex), .numOfMetricConfig = d->num_metrics, .pConfigs = choices, .deviceIndex = (uint32_t)d->device};
  result = gpufl_deep.sass_set_config(&p);
  d->configured = result == GPUFL_CUPTI_SUCCESS;
  return result;
}

static int enable(counted *c) {
  bool entered = gpufl_enter_context(c->handle);
  gpufl_sass_enable p = {.structSize = GPUFL_SIZE_TO(gpufl_sass_enable, enableLazyPatching), .ctx = c->handle, .enableLazyPatching = gpufl_window_config.lazy_patching};
  int result = gpufl_deep.sass_enable(&p);
  gpufl_leave_context(entered);
  return result;
}

// ---- what was counted ----

static int by_address(const void *a, const void *b) {
  const char *x = *(const char *const *)a, *y = *(const char *const *)b;
  return x < y ? -1 : x > y;
}

static void take(const counted *c, const counted_device *d, gpufl_sass_record *records, size_t n, size_t values) {
  const char **names = malloc(n * sizeof *names);
  size_t num_names = 0;
  for (size_t i = 0; i < n; i++) {
    gpufl_sass_record *r = &records[i];
    if (r->functionName == NULL) {
      gpufl_window_count(&gpufl_window_counts.broken, 1);
      continue;
    }
    if (names != NULL) names[num_names++] = r->functionName;
    // Each metric is summed over its instances; what was not written has kept its mark.
    uint64_t sums[MAX_METRICS] = {0};
    for (size_t k = 0; k < values; k++) {
      const gpufl_sass_value *v = &r->pInstanceValues[k];
      if (v->metricId == UINT64_MAX) continue;
      uint32_t m = 0;
      while (m < d->num_metrics && d->id[m] != v->metricId) m++;
      if (m < d->num_metrics) {
        sums[m] += v->value;
      } else {
        gpufl_window_count(&gpufl_window_counts.broken, 1);
      }
    }
    uint32_t function = 0;
    bool named = false;
    for (uint32_t m = 0; m < d->num_metrics; m++) {
      if (sums[m] == 0) continue; // never executed
      if (!named) function = gpufl_window_function(r->functionName);
      named = true;
      gpufl_deep_row row = {.crc = r->cubinCrc, .pc = r->pcOffset, .value = sums[m], .device = c->device, .function = function, .what = d->name[m]};
      gpufl_window_row(&row);
    }
  }
  // The names are ours now, each once however many records have it.
  if (num_names > 0) qsort(names, num_names, sizeof *names, by_address);
  for (size_t i = 0; i < num_names; i++) {
    if (i == 0 || names[i] != names[i - 1]) free((void *)names[i]);
  }
  free(names);
}

static int flush(const counted *c, const counted_device *d) {
  for (int round = 0; round < MAX_ROUNDS; round++) {
    gpufl_sass_data_properties p = {.structSize = GPUFL_SIZE_TO(gpufl_sass_data_properties, numOfInstances), .ctx = c->handle};
    int result = gpufl_deep.sass_data_properties(&p);
    if (result != GPUFL_CUPTI_SUCCESS) return result;
    size_t n = p.numOfPatchedInstructionRecords, instances = p.numOfInstances;
    if (n == 0 || instances == 0) return GPUFL_OK;
    // The header leaves open whether the instances are those of one metric or of all: there is room
    // for both.
    if (instances > max_values / d->num_metrics) return GPUFL_CUPTI_ERROR_NOT_SUPPORTED;
    size_t values = instances * d->num_metrics;
    if (n > MAX_RECORDS) n = MAX_RECORDS;
    if (n > max_values / values) n = max_values / values;
    gpufl_sass_record *records = calloc(n, sizeof *records);
    gpufl_sass_value *all = malloc(n * values * sizeof *all);
    if (records == NULL || all == NULL) {
      free(records);
      free(all);
      return GPUFL_NO_MEMORY;
    }
    for (size_t i = 0; i < n * values; i++) all[i] = (gpufl_sass_value){.metricId = UINT64_MAX};
    for (size_t i = 0; i < n; i++) {
      records[i].structSize = sizeof *records;
      records[i].pInstanceValues = &all[i * values];
    }
    gpufl_sass_flush f = {.structSize = GPUFL_SIZE_TO(gpufl_sass_flush, numOfInstances), .ctx = c->handle,
                          .numOfPatchedInstructionRecords = n, .numOfInstances = instances, .pMetricsData = records};
    result = gpufl_deep.sass_flush(&f);
    if (result == GPUFL_CUPTI_SUCCESS) take(c, d, records, n, values);
    free(records);
    free(all);
    if (result != GPUFL_CUPTI_SUCCESS) return result;
    if (n == p.numOfPatchedInstructionRecords) return GPUFL_OK;
  }
  return GPUFL_OK; // cuptiSassMetricsDisable counts the rest
}

static int disable(const counted *c) {
  gpufl_sass_disable p = {.structSize = GPUFL_SIZE_TO(gpufl_sass_disable, numOfDroppedRecords), .ctx = c->handle};
  int result = gpufl_deep.sass_disable(&p);
  if (result == GPUFL_CUPTI_SUCCESS) gpufl_window_count(&gpufl_window_counts.dropped_records, p.numOfDroppedRecords);
  return result;
}

// undo takes everything back that gpufl_sass_open did; the answer is the first refusal.
static int undo(bool collect) {
  int result = GPUFL_OK;
  for (int i = 0; i < num_contexts; i++) {
    if (!gpufl_context_exists(contexts[i].handle)) gpufl_sass_context_ends(contexts[i].handle);
    if (atomic_load(&contexts[i].lost)) continue;
    const counted_device *d = find_device(contexts[i].device);
    bool entered = gpufl_enter_context(contexts[i].handle);
    int answer = collect && d != NULL ? flush(&contexts[i], d) : GPUFL_OK;
    if (result == GPUFL_OK) result = answer;
    answer = disable(&contexts[i]);
    gpufl_leave_context(entered);
    if (result == GPUFL_OK) result = answer;
  }
  num_contexts = 0;
  for (int i = 0; i < num_devices; i++) {
    if (!devices[i].configured) continue;
    gpufl_sass_unset_config p = {.structSize = GPUFL_SIZE_TO(gpufl_sass_unset_config, deviceIndex), .deviceIndex = (uint32_t)devices[i].device};
    int answer = gpufl_deep.sass_unset_config(&p);
    if (result == GPUFL_OK) result = answer;
  }
  num_devices = 0;
  if (profiler) {
    gpufl_profiler_life p = {.structSize = GPUFL_SIZE_TO(gpufl_profiler_life, pPriv)};
    int answer = gpufl_deep.profiler_end(&p);
    if (result == GPUFL_OK) result = answer;
    profiler = false;
  }
  return result;
}

int gpufl_sass_open(void) {
  if (gpufl_window_config.num_names > MAX_METRICS) return GPUFL_BAD_VALUE;
  atomic_store(&obstacle, "");
  gpufl_context list[GPUFL_MAX_CONTEXTS];
  uint64_t more = 0;
  int n = gpufl_contexts(list, &more);
  gpufl_window_count(&gpufl_window_counts.skipped_contexts, more);
  if (n == 0) return GPUFL_NO_CONTEXT;
  gpufl_profiler_life p = {.structSize = GPUFL_SIZE_TO(gpufl_profiler_life, pPriv)};
  int result = gpufl_deep.profiler_begin(&p);
  if (result != GPUFL_CUPTI_SUCCESS) return result;
  profiler = true;
  int refusal = GPUFL_NO_CONTEXT;
  for (int i = 0; i < n; i++) {
    counted_device *d = list[i].device < 0 ? NULL : find_device(list[i].device);
    if (d == NULL && list[i].device >= 0 && num_devices < MAX_DEVICES) {
      d = &devices[num_devices++];
      memset(d, 0, sizeof *d);
      d->device = list[i].device;
      result = configure(d);
      if (result != GPUFL_OK) refusal = result;
    }
    counted *c = &contexts[num_contexts];
    c->handle = list[i].handle;
    c->device = list[i].device;
    atomic_store(&c->lost, false);
    if (d != NULL && d->configured) {
      result = enable(c);
      if (result == GPUFL_CUPTI_SUCCESS) {
        num_contexts++;
        gpufl_window_count(&gpufl_window_counts.contexts, 1);
        continue;
      }
      refusal = result;
    }
    gpufl_window_count(&gpufl_window_counts.skipped_contexts, 1);
  }
  if (num_contexts > 0) return GPUFL_OK;
  undo(false);
  return refusal;
}

int gpufl_sass_close(void) { return undo(true); }

// Launches go on meanwhile, and to take counts beside them is what locks up: what this context has counted goes
// with it, and CUPTI's part with the context.
void gpufl_sass_context_ends(void *handle) {
  for (int i = 0; i < num_contexts; i++) {
    if (contexts[i].handle != handle || atomic_exchange(&contexts[i].lost, true)) continue;
    gpufl_window_count(&gpufl_window_counts.lost_contexts, 1);
    return;
  }
}
