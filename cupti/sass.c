// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <stdlib.h>
#include <string.h>

#include "gpufl_deep_internal.h"

// SASS metrics: instructions are patched so that they count. CUPTI's profiler is initialised for
// the window only, since PC sampling does not work while it is. Counts are read once, at the end,
// since reading them deadlocks with launches.
//
// A process has one window: CUPTI keeps patched code in device memory until the process exits, and
// a second configuration fails with CUPTI_ERROR_OUT_OF_MEMORY (CUPTI 13.0).

enum {
  MAX_METRICS = 64,
  MAX_DEVICES = 64,
  MAX_RECORDS = 1 << 19, // patched instructions that are read at once: a training has some 100,000
};
static const size_t max_values = (size_t)16 << 20; // 256 MiB

typedef struct {
  int32_t device;
  uint32_t num_metrics;
  uint64_t id[MAX_METRICS];
  uint32_t name[MAX_METRICS]; // the window's index of it
} counted_device;

typedef struct {
  void *handle;
  const counted_device *device;
  atomic_bool lost;
} counted;

static counted_device devices[MAX_DEVICES];
static int num_devices;
static counted contexts[GPUFL_MAX_CONTEXTS];
static int num_contexts;
static bool profiler, configured;
static _Atomic(const char *) obstacle;

bool gpufl_sass_used(void) { return configured; }

int gpufl_sass_forget(void) {
  configured = false;
  return GPUFL_OK;
}

const char *gpufl_sass_obstacle(void) {
  const char *text = atomic_load(&obstacle);
  return text != NULL ? text : "";
}

// supported says whether the device's setup allows it. Where the library does not answer, it is
// tried.
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

// lookup_metric is GPUFL_CUPTI_ERROR_INVALID_PARAMETER if the device has no metric of that name.
static int lookup_metric(const char *chip, const char *name, uint64_t *id) {
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

// configure is called with a context of the device current: CUPTI refuses without one.
static int configure(counted_device *d) {
  if (!supported(d->device)) return GPUFL_DEVICE;
  const char *chip = NULL;
  int result = chip_of(d->device, &chip);
  if (result != GPUFL_CUPTI_SUCCESS) return result;
  gpufl_sass_choice choices[MAX_METRICS];
  memset(choices, 0, sizeof choices);
  int refusal = GPUFL_BAD_VALUE;
  for (uint32_t i = 0; i < gpufl_deep.config.num_names; i++) {
    uint32_t m = d->num_metrics;
    result = lookup_metric(chip, gpufl_deep_name(i), &d->id[m]);
    if (result == GPUFL_CUPTI_SUCCESS) {
      choices[m] = (gpufl_sass_choice){.metricId = d->id[m], .outputGranularity = GPUFL_CUPTI_SASS_METRICS_OUTPUT_GRANULARITY_GPU};
      d->name[m] = i;
      gpufl_window_known(i);
      d->num_metrics++;
    } else if (result != GPUFL_CUPTI_ERROR_INVALID_PARAMETER) {
      refusal = result;
    }
  }
  if (d->num_metrics == 0) return refusal;
  gpufl_sass_set_config p = {.structSize = GPUFL_SIZE_TO(gpufl_sass_set_config, deviceIndex), .numOfMetricConfig = d->num_metrics, .pConfigs = choices, .deviceIndex = (uint32_t)d->device};
  result = GPUFL_DEEP_CALL(sass_set_config, &p);
  configured = configured || result == GPUFL_CUPTI_SUCCESS;
  return result;
}

// device_of configures the device of a context, which is current. NULL and *refusal if that fails.
static const counted_device *device_of(int32_t device, int *refusal) {
  for (int i = 0; i < num_devices; i++) {
    if (devices[i].device == device) return &devices[i];
  }
  if (device < 0 || num_devices == MAX_DEVICES) return NULL;
  counted_device *d = &devices[num_devices];
  memset(d, 0, sizeof *d);
  d->device = device;
  int result = configure(d);
  if (result != GPUFL_CUPTI_SUCCESS) {
    *refusal = result;
    return NULL;
  }
  num_devices++;
  return d;
}

// enable patches each kernel at its launch. CUPTI can also patch all kernels eagerly, but that took
// 1,924 MiB of device memory and worked once (H200, CUPTI 13.0).
static int enable(void *handle) {
  gpufl_sass_enable p = {.structSize = GPUFL_SIZE_TO(gpufl_sass_enable, enableLazyPatching), .ctx = handle, .enableLazyPatching = 1};
  return GPUFL_DEEP_CALL(sass_enable, &p);
}

// ---- what was counted ----

static int by_address(const void *a, const void *b) {
  const char *x = *(const char *const *)a, *y = *(const char *const *)b;
  return x < y ? -1 : x > y;
}

static void decode_counts(const counted_device *d, gpufl_sass_record *records, size_t n, size_t values) {
  const char **names = malloc(n * sizeof *names);
  size_t num_names = 0;
  for (size_t i = 0; i < n; i++) {
    gpufl_sass_record *r = &records[i];
    if (r->functionName == NULL) {
      gpufl_window_count(&gpufl_deep.counts.broken, 1);
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
        gpufl_window_count(&gpufl_deep.counts.broken, 1);
      }
    }
    uint32_t function = 0;
    bool named = false;
    for (uint32_t m = 0; m < d->num_metrics; m++) {
      if (sums[m] == 0) continue; // never executed
      if (!named) function = gpufl_window_function(r->functionName);
      named = true;
      gpufl_deep_row row = {.crc = r->cubinCrc, .pc = r->pcOffset, .value = sums[m], .device = d->device, .function = function, .what = d->name[m]};
      gpufl_window_row(&row);
    }
  }
  // The caller frees each name once, however many records share it.
  if (num_names > 0) qsort(names, num_names, sizeof *names, by_address);
  for (size_t i = 0; i < num_names; i++) {
    if (i == 0 || names[i] != names[i - 1]) free((void *)names[i]);
  }
  free(names);
}

// flush reads counts once. cuptiSassMetricsDisable counts what remains.
static int flush(const counted *c) {
  const counted_device *d = c->device;
  gpufl_sass_data_properties p = {.structSize = GPUFL_SIZE_TO(gpufl_sass_data_properties, numOfInstances), .ctx = c->handle};
  int result = GPUFL_DEEP_CALL(sass_data_properties, &p);
  if (result != GPUFL_CUPTI_SUCCESS) return result;
  size_t n = p.numOfPatchedInstructionRecords, instances = p.numOfInstances;
  gpufl_window_count(&gpufl_deep.counts.patched, n);
  if (n == 0 || instances == 0) return GPUFL_OK;
  // The header leaves open whether the instances are those of one metric or of all: both fit.
  if (instances > max_values / d->num_metrics) return GPUFL_CUPTI_ERROR_NOT_SUPPORTED;
  size_t values = instances * d->num_metrics;
  if (n > MAX_RECORDS) n = MAX_RECORDS;
  if (n > max_values / values) n = max_values / values;
  gpufl_sass_record *records = calloc(n, sizeof *records);
  gpufl_sass_value *all = malloc(n * values * sizeof *all);
  result = GPUFL_NO_MEMORY;
  if (records != NULL && all != NULL) {
    for (size_t i = 0; i < n * values; i++) all[i] = (gpufl_sass_value){.metricId = UINT64_MAX};
    for (size_t i = 0; i < n; i++) {
      records[i].structSize = sizeof *records;
      records[i].pInstanceValues = &all[i * values];
    }
    gpufl_sass_flush f = {.structSize = GPUFL_SIZE_TO(gpufl_sass_flush, numOfInstances), .ctx = c->handle,
                          .numOfPatchedInstructionRecords = n, .numOfInstances = instances, .pMetricsData = records};
    result = GPUFL_DEEP_CALL(sass_flush, &f);
    if (result == GPUFL_CUPTI_SUCCESS) decode_counts(d, records, n, values);
  }
  free(records);
  free(all);
  return result;
}

static int disable(const counted *c) {
  gpufl_sass_disable p = {.structSize = GPUFL_SIZE_TO(gpufl_sass_disable, numOfDroppedRecords), .ctx = c->handle};
  int result = GPUFL_DEEP_CALL(sass_disable, &p);
  if (result == GPUFL_CUPTI_SUCCESS) gpufl_window_count(&gpufl_deep.counts.dropped_records, p.numOfDroppedRecords);
  return result;
}

// sass_disable_all undoes gpufl_sass_open; the answer is the first failure.
static int sass_disable_all(bool collect) {
  int result = GPUFL_OK;
  for (int i = 0; i < num_contexts; i++) {
    if (!gpufl_context_exists(contexts[i].handle)) gpufl_sass_context_ends(contexts[i].handle);
    if (atomic_load(&contexts[i].lost)) continue;
    bool entered = gpufl_enter_context(contexts[i].handle);
    int answer = collect ? flush(&contexts[i]) : GPUFL_OK;
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
  if (gpufl_deep.config.num_names > MAX_METRICS) return GPUFL_BAD_VALUE;
  atomic_store(&obstacle, "");
  gpufl_context list[GPUFL_MAX_CONTEXTS];
  uint64_t more = 0;
  int n = gpufl_contexts(list, &more);
  gpufl_window_count(&gpufl_deep.counts.skipped_contexts, more);
  if (n == 0) return GPUFL_NO_CONTEXT;
  gpufl_profiler_life p = {.structSize = GPUFL_SIZE_TO(gpufl_profiler_life, pPriv)};
  int result = GPUFL_DEEP_CALL(profiler_begin, &p);
  if (result != GPUFL_CUPTI_SUCCESS) return result;
  profiler = true;
  num_devices = 0;
  int refusal = GPUFL_NO_CONTEXT;
  for (int i = 0; i < n; i++) {
    if (!gpufl_context_lives(list[i].handle)) continue; // it was destroyed meanwhile
    bool entered = gpufl_enter_context(list[i].handle);
    const counted_device *d = device_of(list[i].device, &refusal);
    result = d != NULL ? enable(list[i].handle) : refusal;
    gpufl_leave_context(entered);
    if (result == GPUFL_CUPTI_SUCCESS) {
      counted *c = &contexts[num_contexts++];
      c->handle = list[i].handle;
      c->device = d;
      atomic_store(&c->lost, false);
      gpufl_window_count(&gpufl_deep.counts.contexts, 1);
    } else {
      refusal = result;
      gpufl_window_count(&gpufl_deep.counts.skipped_contexts, 1);
    }
  }
  if (num_contexts > 0) return GPUFL_OK;
  sass_disable_all(false);
  return refusal;
}

int gpufl_sass_close(void) { return sass_disable_all(true); }

// Launches continue meanwhile, and reading counts deadlocks with them: what this context has
// counted is lost with it.
void gpufl_sass_context_ends(void *handle) {
  for (int i = 0; i < num_contexts; i++) {
    if (contexts[i].handle != handle || atomic_exchange(&contexts[i].lost, true)) continue;
    gpufl_window_count(&gpufl_deep.counts.lost_contexts, 1);
    return;
  }
}
