// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <stdlib.h>
#include <string.h>

#include "gpufl_deep_internal.h"

// PC sampling samples one context of each device: CUPTI supports no more at a time, and lease.c
// says why no other later.
//
// A window enables, starts, stops and disables sampling. Enabling it when a context is created
// would not save the barrier, since starting and stopping also deadlock with launches. It would
// also reserve device memory and counters in processes that never open a window.

enum {
  BATCH = 1024,       // places in the code that are read at once: some 70 KiB with their stall reasons
  MAX_REASONS = 256,  // that a device may have; about 40 are known
};
// Reading is bounded, since modules, and at the end also launches, are blocked meanwhile. A second
// reads some 100,000 places.
#define READ_NS ((int64_t)1000000000)

typedef struct {
  gpufl_pc_data data;
  gpufl_pc_record *records;
  gpufl_pc_stall *stalls;
} batch;

typedef struct {
  void *handle;
  int32_t device;
  atomic_bool lost; // it was destroyed during an operation, and must not be touched any more
  size_t num_reasons;
  uint32_t index[MAX_REASONS]; // of the device's reasons
  uint32_t name[MAX_REASONS];  // the window's index for each
  batch read;  // what cuptiPCSamplingGetData fills
  batch rest;  // what cuptiPCSamplingDisable leaves
} sampled;

static sampled *all[GPUFL_MAX_CONTEXTS];
static int num_all;

// list_lock guards all and num_all against threads that destroy contexts.
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;

// ---- who owns names ----

// CUPTI documents that the caller frees a function's name, and that records may share it, activity
// records included. Shared names must not be freed, and names that are copied for each record must
// be. One function shows which it is: a shared one has at most as many names as its image was
// loaded. Names are kept until they are known to be copies.
enum { MAX_PROBE = 1024 };
static struct {
  bool copies; // known
  void *context;
  uint64_t crc;
  uint32_t function;
  uint32_t n;
  char *seen[MAX_PROBE];
} probe;

static void watch_name(void *context, const gpufl_pc_record *r) {
  if (probe.copies) return;
  if (probe.n > 0 && (probe.context != context || probe.crc != r->cubinCrc || probe.function != r->functionIndex)) return;
  for (uint32_t i = 0; i < probe.n; i++) {
    if (probe.seen[i] == r->functionName) return;
  }
  uint32_t loads = gpufl_module_loads(r->cubinCrc);
  if (loads == 0 || probe.n == MAX_PROBE) return;
  probe.context = context;
  probe.crc = r->cubinCrc;
  probe.function = r->functionIndex;
  probe.seen[probe.n++] = r->functionName;
  // Loads that were not reported are allowed for.
  if (probe.n > 2 * loads + 8) probe.copies = true;
}

static int by_address(const void *a, const void *b) {
  const char *x = *(char *const *)a, *y = *(char *const *)b;
  return x < y ? -1 : x > y;
}

// free_names frees the names of a batch once they are known to be copies.
static void free_names(batch *b, size_t n) {
  static char *names[BATCH];
  size_t count = 0;
  for (size_t i = 0; i < n; i++) {
    if (b->records[i].functionName != NULL) names[count++] = b->records[i].functionName;
    b->records[i].functionName = NULL;
  }
  if (count == 0) return;
  qsort(names, count, sizeof *names, by_address);
  uint64_t distinct = 0;
  for (size_t i = 0; i < count; i++) {
    if (i > 0 && names[i] == names[i - 1]) continue;
    distinct++;
    if (probe.copies) free(names[i]);
  }
  if (!probe.copies) gpufl_window_count(&gpufl_deep.counts.names_kept, distinct);
}

// ---- buffers ----

static void free_batch(batch *b) {
  free(b->records);
  free(b->stalls);
  memset(b, 0, sizeof *b);
}

static bool make_batch(batch *b, size_t reasons) {
  memset(b, 0, sizeof *b);
  b->records = calloc(BATCH, sizeof *b->records);
  b->stalls = calloc(BATCH * reasons, sizeof *b->stalls);
  if (b->records == NULL || b->stalls == NULL) {
    free_batch(b);
    return false;
  }
  b->data.size = sizeof b->data;
  b->data.collectNumPcs = BATCH;
  b->data.pPcData = b->records;
  for (size_t i = 0; i < BATCH; i++) {
    b->records[i].size = sizeof *b->records;
    b->records[i].stallReason = &b->stalls[i * reasons];
  }
  return true;
}

static void clear_batch(batch *b, size_t reasons) {
  b->data.collectNumPcs = BATCH;
  b->data.pPcData = b->records;
  b->data.totalSamples = b->data.droppedSamples = b->data.nonUsrKernelsTotalSamples = 0;
  b->data.totalNumPcs = b->data.remainingNumPcs = 0;
  b->data.hardwareBufferFull = 0;
  for (size_t i = 0; i < BATCH; i++) {
    b->records[i].size = sizeof *b->records;
    b->records[i].stallReason = &b->stalls[i * reasons];
    b->records[i].stallReasonCount = 0;
    b->records[i].functionName = NULL;
    b->records[i].correlationId = 0;
  }
}

static uint32_t name_of(const sampled *s, uint32_t index) {
  if (index < s->num_reasons && s->index[index] == index) return s->name[index]; // as it always is
  for (size_t i = 0; i < s->num_reasons; i++) {
    if (s->index[i] == index) return s->name[i];
  }
  return UINT32_MAX;
}

// decode_samples makes rows of what CUPTI filled.
static void decode_samples(sampled *s, batch *b) {
  gpufl_deep_counts *c = &gpufl_deep.counts;
  gpufl_window_count(&c->samples, b->data.totalSamples);
  gpufl_window_count(&c->dropped_samples, b->data.droppedSamples);
  gpufl_window_count(&c->non_user_samples, b->data.nonUsrKernelsTotalSamples);
  size_t n = b->data.totalNumPcs;
  if (n > BATCH) {
    gpufl_window_count(&c->broken, n - BATCH);
    n = BATCH;
  }
  const char *last_name = NULL;
  uint32_t function = 0;
  for (size_t i = 0; i < n; i++) {
    gpufl_pc_record *r = &b->records[i];
    if (r->stallReason != &b->stalls[i * s->num_reasons] || r->stallReasonCount > s->num_reasons || r->functionName == NULL) {
      gpufl_window_count(&c->broken, 1);
      continue;
    }
    watch_name(s->handle, r);
    if (r->functionName != last_name) {
      last_name = r->functionName;
      function = gpufl_window_function(last_name);
    }
    for (size_t k = 0; k < r->stallReasonCount; k++) {
      const gpufl_pc_stall *stall = &r->stallReason[k];
      if (stall->samples == 0) continue;
      uint32_t what = name_of(s, stall->pcSamplingStallReasonIndex);
      if (what == UINT32_MAX) {
        gpufl_window_count(&c->broken, 1);
        continue;
      }
      gpufl_deep_row row = {.crc = r->cubinCrc, .pc = r->pcOffset, .value = stall->samples, .device = s->device,
                            .function = function, .what = what, .correlation = r->correlationId};
      gpufl_window_row(&row);
    }
  }
  free_names(b, n);
}

// read_samples reads what CUPTI has of a context until nothing is left, the time is over or, unless
// force, no rows are free. *left gets the number of places that remain.
static int read_samples(sampled *s, bool force, int64_t until, size_t *left) {
  *left = 0;
  bool entered = gpufl_enter_context(s->handle);
  int result = GPUFL_OK;
  for (int empty = 0; empty < 3;) {
    clear_batch(&s->read, s->num_reasons);
    gpufl_pc_get_data p = {.size = GPUFL_SIZE_TO(gpufl_pc_get_data, pcSamplingData), .ctx = s->handle, .pcSamplingData = &s->read.data};
    result = GPUFL_DEEP_CALL(pc_get_data, &p);
    bool full = result == GPUFL_CUPTI_ERROR_OUT_OF_MEMORY && s->read.data.hardwareBufferFull;
    if (result != GPUFL_CUPTI_SUCCESS && !full) break;
    result = GPUFL_OK;
    if (full) gpufl_window_count(&gpufl_deep.counts.hardware_full, 1);
    decode_samples(s, &s->read);
    *left = s->read.data.remainingNumPcs;
    if (*left == 0 || gpufl_monotonic() >= until) break;
    if (!force && gpufl_window_free_rows() < BATCH * s->num_reasons) break;
    empty = s->read.data.totalNumPcs == 0 ? empty + 1 : 0;
  }
  gpufl_leave_context(entered);
  return result;
}

// ---- arming ----

static int learn_reasons(sampled *s) {
  size_t n = 0;
  gpufl_pc_num_reasons count = {.size = GPUFL_SIZE_TO(gpufl_pc_num_reasons, numStallReasons), .ctx = s->handle, .numStallReasons = &n};
  int result = GPUFL_DEEP_CALL(pc_num_reasons, &count);
  if (result != GPUFL_CUPTI_SUCCESS) return result;
  // CUPTI answers with none when somebody else samples.
  if (n == 0) return GPUFL_CUPTI_ERROR_HARDWARE_BUSY;
  if (n > MAX_REASONS) return GPUFL_CUPTI_ERROR_NOT_SUPPORTED;
  char *texts = calloc(n, GPUFL_CUPTI_STALL_REASON_STRING_SIZE);
  char **names = calloc(n, sizeof *names);
  if (texts == NULL || names == NULL) {
    free(texts);
    free(names);
    return GPUFL_NO_MEMORY;
  }
  for (size_t i = 0; i < n; i++) names[i] = texts + i * GPUFL_CUPTI_STALL_REASON_STRING_SIZE;
  gpufl_pc_reasons list = {.size = GPUFL_SIZE_TO(gpufl_pc_reasons, stallReasons), .ctx = s->handle, .numStallReasons = n, .stallReasonIndex = s->index, .stallReasons = names};
  result = GPUFL_DEEP_CALL(pc_reasons, &list);
  for (size_t i = 0; i < n && result == GPUFL_CUPTI_SUCCESS; i++) {
    texts[(i + 1) * GPUFL_CUPTI_STALL_REASON_STRING_SIZE - 1] = 0;
    s->name[i] = gpufl_window_name(texts + i * GPUFL_CUPTI_STALL_REASON_STRING_SIZE);
  }
  s->num_reasons = result == GPUFL_CUPTI_SUCCESS ? n : 0;
  free(texts);
  free(names);
  return result;
}

static int configure(sampled *s) {
  gpufl_pc_attribute a[8];
  size_t n = 0;
  memset(a, 0, sizeof a);
  const gpufl_deep_config *c = &gpufl_deep.config;
#define ATTRIBUTE(type, field, value)                                                 \
  a[n].attributeType = GPUFL_CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_##type;        \
  a[n++].attributeData.field = value
  ATTRIBUTE(COLLECTION_MODE, number, c->serialize ? GPUFL_CUPTI_PC_SAMPLING_COLLECTION_MODE_KERNEL_SERIALIZED : GPUFL_CUPTI_PC_SAMPLING_COLLECTION_MODE_CONTINUOUS);
  ATTRIBUTE(ENABLE_START_STOP_CONTROL, number, 1);
  ATTRIBUTE(OUTPUT_DATA_FORMAT, number, GPUFL_CUPTI_PC_SAMPLING_OUTPUT_DATA_FORMAT_PARSED);
  ATTRIBUTE(SAMPLING_DATA_BUFFER, buffer, &s->rest.data);
  if (c->period != 0) {
    ATTRIBUTE(SAMPLING_PERIOD, number, c->period);
  }
  if (c->hardware_bytes != 0) {
    ATTRIBUTE(HARDWARE_BUFFER_SIZE, bytes, c->hardware_bytes);
  }
#undef ATTRIBUTE
  gpufl_pc_configuration p = {.size = GPUFL_SIZE_TO(gpufl_pc_configuration, pPCSamplingConfigurationInfo), .ctx = s->handle, .numAttributes = n, .pPCSamplingConfigurationInfo = a};
  int result = GPUFL_DEEP_CALL(pc_configure, &p);
  for (size_t i = 0; i < n && result == GPUFL_CUPTI_SUCCESS; i++) result = a[i].attributeStatus;
  return result;
}

static gpufl_pc_context context_params(const sampled *s) {
  return (gpufl_pc_context){.size = GPUFL_SIZE_TO(gpufl_pc_context, ctx), .ctx = s->handle};
}

static void discard(sampled *s) {
  free_batch(&s->read);
  free_batch(&s->rest);
  free(s);
}

// disable also detects that CUPTI has become unresponsive. Where something else has the counters
// CUPTI 13.0 refuses to start and may remove all its hooks: it then reports and records nothing
// more in this process. The sign is that it cannot disable what it enabled (H200, driver
// 580.159.04). That may have other reasons, so a call is tried.
static int disable(const sampled *s) {
  gpufl_pc_context p = context_params(s);
  int result = GPUFL_DEEP_CALL(pc_disable, &p);
  if (result != GPUFL_CUPTI_SUCCESS && !gpufl_callbacks_alive()) gpufl_mark_unresponsive();
  return result;
}

// counters_free queries whether something else has the counters of a context's device:
// CUPTI_ERROR_HARDWARE_BUSY if so. A query that fails otherwise is no answer, and the start is
// tried. A start that is refused may crash CUPTI or leave it unresponsive; the query does not
// (H200, CUPTI 13.0). CUPTI's profiler must not stay initialised, or sampling is refused.
static int counters_free(void *handle) {
  gpufl_profiler_life life = {.structSize = GPUFL_SIZE_TO(gpufl_profiler_life, pPriv)};
  gpufl_profiler_available p = {.structSize = GPUFL_SIZE_TO(gpufl_profiler_available, pCounterAvailabilityImage), .ctx = handle};
  const gpufl_deep_calls *c = &gpufl_deep.calls;
  if (c->profiler_available == NULL || c->profiler_begin == NULL || c->profiler_end == NULL) return GPUFL_OK;
  bool entered = gpufl_enter_context(handle);
  int result = GPUFL_DEEP_CALL(profiler_begin, &life);
  if (result == GPUFL_CUPTI_SUCCESS) {
    result = GPUFL_DEEP_CALL(profiler_available, &p);
    if (result == GPUFL_CUPTI_SUCCESS) p.pCounterAvailabilityImage = calloc(1, p.counterAvailabilityImageSize + 1);
    if (p.pCounterAvailabilityImage != NULL) result = GPUFL_DEEP_CALL(profiler_available, &p); // the image is what is refused
    free(p.pCounterAvailabilityImage);
    GPUFL_DEEP_CALL(profiler_end, &life);
  }
  gpufl_leave_context(entered);
  return result == GPUFL_CUPTI_ERROR_HARDWARE_BUSY ? result : GPUFL_OK;
}

// start_enabled configures and starts what is enabled.
static int start_enabled(sampled *s) {
  int result = learn_reasons(s);
  if (result == GPUFL_OK && !(make_batch(&s->read, s->num_reasons) && make_batch(&s->rest, s->num_reasons))) result = GPUFL_NO_MEMORY;
  if (result == GPUFL_OK) result = configure(s);
  gpufl_pc_context p = context_params(s);
  return result == GPUFL_OK ? GPUFL_DEEP_CALL(pc_start, &p) : result;
}

// start samples a context. With an error nothing is enabled; *out is NULL then.
static int start(void *handle, int32_t device, sampled **out) {
  *out = NULL;
  sampled *s = calloc(1, sizeof *s);
  if (s == NULL) return GPUFL_NO_MEMORY;
  s->handle = handle;
  s->device = device;
  bool entered = gpufl_enter_context(handle);
  gpufl_pc_context p = context_params(s);
  int result = GPUFL_DEEP_CALL(pc_enable, &p);
  bool enabled = result == GPUFL_OK;
  if (enabled) result = start_enabled(s);
  bool known = enabled && result != GPUFL_OK && disable(s) != GPUFL_CUPTI_SUCCESS && s->rest.records != NULL; // CUPTI still has the buffers
  gpufl_leave_context(entered);
  if (result == GPUFL_OK) {
    *out = s;
  } else if (!known) {
    discard(s);
  }
  return result;
}

// finish_sampling stops, reads what is left and disables. The entry is freed.
static int finish_sampling(sampled *s) {
  size_t left = 0;
  bool entered = gpufl_enter_context(s->handle);
  gpufl_pc_context p = context_params(s);
  int result = GPUFL_DEEP_CALL(pc_stop, &p);
  int answer = read_samples(s, true, gpufl_monotonic() + READ_NS, &left);
  if (result == GPUFL_OK) result = answer;
  if (left > BATCH) gpufl_window_count(&gpufl_deep.counts.lost_rows, left - BATCH); // what does not fit the rest
  clear_batch(&s->rest, s->num_reasons);
  // Reading may have taken so long that the window was given up and calls continued at their limit.
  if (gpufl_deep_is_given_up() && !gpufl_barrier_close(GPUFL_SETS_ALL, GPUFL_QUIESCE_NS)) {
    gpufl_leave_context(entered);
    return GPUFL_GIVEN_UP;
  }
  answer = disable(s);
  gpufl_leave_context(entered);
  if (answer != GPUFL_CUPTI_SUCCESS) {
    gpufl_window_count(&gpufl_deep.counts.lost_contexts, 1); // with the buffers, which CUPTI still knows
    return answer;
  }
  decode_samples(s, &s->rest);
  discard(s);
  return result;
}

// context_lost says whether a context must not be touched: it was destroyed during an operation, or
// CUPTI is unresponsive.
static bool context_lost(sampled *s) {
  if (!atomic_load(&s->lost) && (gpufl_deep_unresponsive() || !gpufl_context_exists(s->handle))) {
    atomic_store(&s->lost, true);
    gpufl_window_count(&gpufl_deep.counts.lost_contexts, 1);
  }
  return atomic_load(&s->lost);
}

bool gpufl_pc_samples(void *handle) {
  bool found = false;
  pthread_mutex_lock(&list_lock);
  for (int i = 0; i < num_all && !found; i++) found = all[i]->handle == handle;
  pthread_mutex_unlock(&list_lock);
  return found;
}

// choose leases one context of each device and queries its counters; the others get a device of -1.
// All of that comes before the first start, since a query beside a context that is sampled was
// never tried. The answer is the first failure.
static int choose(gpufl_context *list, int n, bool first[GPUFL_MAX_CONTEXTS]) {
  int refusal = GPUFL_OK;
  for (int i = 0; i < n; i++) {
    int32_t device = list[i].device;
    int result = device < 0 || !gpufl_context_lives(list[i].handle) ? GPUFL_NO_CONTEXT : GPUFL_OK;
    for (int k = 0; k < i && result == GPUFL_OK; k++) result = list[k].device == device ? GPUFL_NO_CONTEXT : GPUFL_OK;
    if (result == GPUFL_OK && (result = gpufl_lease(list[i].handle, device, &first[i])) == GPUFL_OK) {
      result = counters_free(list[i].handle);
      if (result != GPUFL_OK && first[i]) gpufl_lease_cancel(list[i].handle, device);
    }
    if (result == GPUFL_OK) continue;
    list[i].device = -1;
    gpufl_window_count(&gpufl_deep.counts.skipped_contexts, 1);
    if (refusal == GPUFL_OK) refusal = result;
  }
  return refusal;
}

int gpufl_pc_open(void) {
  gpufl_context list[GPUFL_MAX_CONTEXTS];
  bool first[GPUFL_MAX_CONTEXTS] = {false};
  uint64_t more = 0;
  probe.n = 0;
  int n = gpufl_contexts(list, &more);
  gpufl_window_count(&gpufl_deep.counts.skipped_contexts, more);
  int refusal = choose(list, n, first);
  for (int i = 0; i < n && !gpufl_deep_unresponsive(); i++) {
    if (list[i].device < 0) continue;
    sampled *s = NULL;
    int result = start(list[i].handle, list[i].device, &s);
    if (result != GPUFL_OK) {
      if (first[i]) gpufl_lease_cancel(list[i].handle, list[i].device);
      gpufl_window_count(&gpufl_deep.counts.skipped_contexts, 1);
      if (refusal == GPUFL_OK) refusal = result;
      continue;
    }
    pthread_mutex_lock(&list_lock);
    all[num_all++] = s;
    pthread_mutex_unlock(&list_lock);
    gpufl_window_count(&gpufl_deep.counts.contexts, 1);
  }
  if (gpufl_deep_unresponsive()) {
    gpufl_pc_close();
    return GPUFL_UNRESPONSIVE;
  }
  return num_all > 0 ? GPUFL_OK : refusal != GPUFL_OK ? refusal : GPUFL_NO_CONTEXT;
}

int gpufl_pc_collect(int *more) {
  if (gpufl_deep_unresponsive()) return GPUFL_UNRESPONSIVE;
  int result = GPUFL_OK;
  int64_t until = gpufl_monotonic() + READ_NS;
  for (int i = 0; i < num_all; i++) {
    if (context_lost(all[i])) continue;
    size_t left = 0;
    int answer = read_samples(all[i], false, until, &left);
    if (left > 0) *more = 1;
    if (result == GPUFL_OK) result = answer;
  }
  return result;
}

int gpufl_pc_close(void) {
  int result = GPUFL_OK;
  for (;;) {
    pthread_mutex_lock(&list_lock);
    sampled *s = num_all > 0 ? all[--num_all] : NULL;
    pthread_mutex_unlock(&list_lock);
    if (s == NULL) return result;
    if (context_lost(s)) {
      free_batch(&s->read); // CUPTI may still have the rest
      continue;
    }
    int answer = finish_sampling(s);
    if (result == GPUFL_OK) result = answer;
  }
}

void gpufl_pc_context_ends(void *handle, bool quiesced) {
  quiesced = quiesced && !gpufl_deep_unresponsive();
  sampled *s = NULL;
  pthread_mutex_lock(&list_lock);
  for (int i = 0; i < num_all && s == NULL; i++) {
    if (all[i]->handle != handle) continue;
    s = all[i];
    if (quiesced) {
      all[i] = all[--num_all];
    } else {
      atomic_store(&s->lost, true);
    }
  }
  pthread_mutex_unlock(&list_lock);
  if (s == NULL) return;
  if (quiesced) {
    finish_sampling(s);
  } else {
    gpufl_window_count(&gpufl_deep.counts.lost_contexts, 1);
  }
}
