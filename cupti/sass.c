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

// A device is configured once in the life of a process: after cuptiSassMetricsUnsetConfig CUPTI 13.0 answers the next
// configuration with CUPTI_ERROR_OUT_OF_MEMORY. Windows enable and disable what is configured.
typedef struct {
  int32_t device;
  uint32_t num_metrics;
  uint64_t id[MAX_METRICS];
  uint32_t name[MAX_METRICS]; // the window's index of it, UINT32_MAX if it did not ask
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
  if (GPUFL_DEEP_CALL(profiler_supported, &p) != GPUFL_CUPTI_SUCCESS) return true;
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

// know asks CUPTI for a metric: GPUFL_CUPTI_ERROR_INVALID_PARAMETER if the device has none of that name.
static int know(const char *chip, const char *name, uint64_t *id) {
  gpufl_sass_properties p = {.structSize = GPUFL_SIZE_TO(gpufl_sass_properties, metric), .pChipName = chip, .pMetricName = name};
  int result = GPUFL_DEEP_CALL(sass_properties, &p);
  if (result == GPUFL_CUPTI_SUCCESS) *id = p.metric.metricId;
  return result;
}

static int chip_of(int32_t device, const char **chip) {
  gpufl_chip_name p = {.structSize = GPUFL_SIZE_TO(gpufl_chip_name, pChipName), .deviceIndex = (size_t)device};
  int result = GPUFL_DEEP_CALL(chip_name, &p);
  *chip = p.pChipName;
  return result;
}

// ask says which of the window's names are which of the metrics that the device is configured for.
static int ask(counted_device *d) {
  if (!supported(d->device)) return GPUFL_DEVICE;
  const char *chip = NULL;
  int result = chip_of(d->device, &chip);
  if (result != GPUFL_CUPTI_SUCCESS) return result;
  int answer = GPUFL_BAD_VALUE;
  for (uint32_t m = 0; m < d->num_metrics; m++) d->name[m] = UINT32_MAX;
  for (uint32_t i = 0; i < gpufl_window_config.num_names; i++) {
    const char *name = gpufl_deep_name(i);
    uint64_t id = 0;
    result = know(chip, name, &id);
    if (result == GPUFL_CUPTI_ERROR_INVALID_PARAMETER) continue;
    if (result != GPUFL_CUPTI_SUCCESS) return result;
    uint32_t m = 0;
    while (m < d->num_metrics && d->id[m] != id) m++;
    if (m == d->num_metrics) return GPUFL_FIXED;
    d->name[m] = i;
    gpufl_window_known(i);
    answer = GPUFL_OK;
  }
  return answer;
}

// configure is called with a context of the device current: CUPTI refuses without one.
static int configure(counted_device *d) {
  if (!supported(d->device)) return GPUFL_DEVICE;
  const char *chip = NULL;
  int result = chip_of(d->device, &chip);
  if (result != GPUFL_CUPTI_SUCCESS) return result;
  gpufl_sass_choice choices[MAX_METRICS];
  memset(choices, 0, sizeof choices);
  int refusal = GPUFL_BAD_VALUE;
  for (uint32_t i = 0; i < gpufl_window_config.num_names && d->num_metrics < MAX_METRICS; i++) {
    result = know(chip, gpufl_deep_name(i), &d->id[d->num_metrics]);
    if (result == GPUFL_CUPTI_SUCCESS) {
      choices[d->num_metrics] = (gpufl_sass_choice){.metricId = d->id[d->num_metrics], .outputGranularity = GPUFL_CUPTI_SASS_METRICS_OUTPUT_GRANULARITY_GPU};
      d->num_metrics++;
    } else if (result != GPUFL_CUPTI_ERROR_INVALID_PARAMETER) {
      refusal = result;
    }
  }
  if (d->num_metrics == 0) return refusal;
  gpufl_sass_set_config p = {.structSize = GPUFL_SIZE_TO(gpufl_sass_set_config, deviceIndex), .numOfMetricConfig = d->num_metrics, .pConfigs = choices, .deviceIndex = (uint32_t)d->device};
  return GPUFL_DEEP_CALL(sass_set_config, &p);
}

static int enable(counted *c) {
  bool entered = gpufl_enter_context(c->handle);
  gpufl_sass_enable p = {.structSize = GPUFL_SIZE_TO(gpufl_sass_enable, enableLazyPatching), .ctx = c->handle, .enableLazyPatching = gpufl_window_config.lazy_patching};
  int result = GPUFL_DEEP_CALL(sass_enable, &p);
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
      if (sums[m] == 0 || d->name[m] == UINT32_MAX) continue; // never executed, or not asked for
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
    int result = GPUFL_DEEP_CALL(sass_data_properties, &p);
    if (result != GPUFL_CUPTI_SUCCESS) return result;
    size_t n = p.numOfPatchedInstructionRecords, instances = p.numOfInstances;
    // Later rounds are asked for the rest.
    if (round == 0) gpufl_window_count(&gpufl_window_counts.patched, n);
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
    result = GPUFL_DEEP_CALL(sass_flush, &f);
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
  int result = GPUFL_DEEP_CALL(sass_disable, &p);
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
  if (profiler) {
    gpufl_profiler_life p = {.structSize = GPUFL_SIZE_TO(gpufl_profiler_life, pPriv)};
    int answer = GPUFL_DEEP_CALL(profiler_end, &p);
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
  int result = GPUFL_DEEP_CALL(profiler_begin, &p);
  if (result != GPUFL_CUPTI_SUCCESS) return result;
  profiler = true;
  int refusal = GPUFL_NO_CONTEXT;
  for (int i = 0; i < n; i++) {
    if (!gpufl_context_lives(list[i].handle)) continue; // it did not wait for those before it any longer
    counted_device *d = list[i].device < 0 ? NULL : find_device(list[i].device);
    if (d == NULL && list[i].device >= 0 && num_devices < MAX_DEVICES) {
      d = &devices[num_devices];
      memset(d, 0, sizeof *d);
      d->device = list[i].device;
      bool entered = gpufl_enter_context(list[i].handle);
      result = configure(d);
      gpufl_leave_context(entered);
      if (result == GPUFL_CUPTI_SUCCESS) {
        num_devices++;
      } else {
        d = NULL;
        refusal = result;
      }
    }
    if (d != NULL && (result = ask(d)) != GPUFL_OK) {
      refusal = result;
      d = NULL;
    }
    counted *c = &contexts[num_contexts];
    c->handle = list[i].handle;
    c->device = list[i].device;
    atomic_store(&c->lost, false);
    if (d != NULL) {
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

void gpufl_sass_forget(void) { num_devices = 0; }


// Launches go on meanwhile, and to take counts beside them is what locks up: what this context has counted goes
// with it, and CUPTI's part with the context.
void gpufl_sass_context_ends(void *handle) {
  for (int i = 0; i < num_contexts; i++) {
    if (contexts[i].handle != handle || atomic_exchange(&contexts[i].lost, true)) continue;
    gpufl_window_count(&gpufl_window_counts.lost_contexts, 1);
    return;
  }
}
