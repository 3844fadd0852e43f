// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <stdlib.h>
#include <string.h>

#include "gpufl_deep_internal.h"

// PC sampling: for each device one context, since CUPTI samples no more of a device at a time, and never another one again (claims.c).

enum {
  BATCH = 1024,       // places in the code that are asked for at once
  MAX_REASONS = 256,  // that a device may have; some 40 are known
};
#define LONGEST_COLLECT_NS ((int64_t)500000000)

typedef struct {
  gpufl_pc_data data;
  gpufl_pc_record *records;
  gpufl_pc_stall *stalls;
} batch;

typedef struct {
  void *handle;
  int32_t device;
  atomic_bool lost; // it goes away while an operation is under way: not to be touched any more
  bool started, refused; // by cuptiPCSamplingStart
  bool disabled;
  int disabling;         // what CUPTI answered to that
  bool useless;          // enabled, and then something else was refused: it waits for being disabled
  bool taken;            // something else has the counters
  size_t left;           // places in the code that CUPTI still had when it was asked last
  bool drained;          // and had been asked for all since it was stopped
  size_t num_reasons;
  uint32_t index[MAX_REASONS]; // of the device's reasons
  uint32_t name[MAX_REASONS];  // the window's index for each
  batch asked;  // what cuptiPCSamplingGetData fills
  batch rest;   // what cuptiPCSamplingDisable leaves
} sampled;

static sampled *all[GPUFL_MAX_CONTEXTS];
static int num_all;
static void *skipped[GPUFL_MAX_CONTEXTS];
static int num_skipped;

// list_lock guards all and num_all against threads that destroy contexts; entries stay until they are
// taken out of it.
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;

// ---- whose names they are ----

// CUPTI says that the caller frees a function's name, and that records may share it, those of activity
// included. Names that are shared must not be freed as long as anything is recorded, and names that are
// made for each record would add up if they were not. Which of the two a library does shows in one
// function: shared, it has as many names as its image was loaded times, and not one more. Until
// it is proven that they are copies they are kept; each window tries with the first function whose image is known.
enum { MAX_PROBE = 1024 };
static struct {
  bool copies; // proven for good
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
  // One more than the loads would do; loads that nobody told us of are allowed for, several times.
  if (probe.n > 2 * loads + 8) probe.copies = true;
}

static int by_address(const void *a, const void *b) {
  const char *x = *(char *const *)a, *y = *(char *const *)b;
  return x < y ? -1 : x > y;
}

// give_back frees the names of a batch once it is proven that they are ours.
static void give_back(batch *b, size_t n) {
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
  if (!probe.copies) gpufl_window_count(&gpufl_window_counts.names_kept, distinct);
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

// take turns what CUPTI filled into rows.
static void take(sampled *s, batch *b) {
  gpufl_deep_counts *c = &gpufl_window_counts;
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
  give_back(b, n);
}

// ask takes what CUPTI has of a context at the moment, until there is no more, no room for more (unless force), or no time;
// *left gets the places in the code that remain.
static int ask(sampled *s, bool force, int64_t until, size_t *left) {
  *left = 0;
  for (int idle = 0; idle < 3;) {
    clear_batch(&s->asked, s->num_reasons);
    gpufl_pc_get_data p = {.size = GPUFL_SIZE_TO(gpufl_pc_get_data, pcSamplingData), .ctx = s->handle, .pcSamplingData = &s->asked.data};
    int result = GPUFL_DEEP_CALL(pc_get_data, &p);
    bool full = result == GPUFL_CUPTI_ERROR_OUT_OF_MEMORY && s->asked.data.hardwareBufferFull;
    if (result != GPUFL_CUPTI_SUCCESS && !full) return result;
    if (full) gpufl_window_count(&gpufl_window_counts.hardware_full, 1);
    take(s, &s->asked);
    *left = s->asked.data.remainingNumPcs;
    if (*left == 0 || gpufl_monotonic() >= until) break;
    if (!force && gpufl_window_room() < BATCH * s->num_reasons) break;
    idle = s->asked.data.totalNumPcs == 0 ? idle + 1 : 0;
  }
  return GPUFL_OK;
}

// ---- arming ----

static int learn_reasons(sampled *s) {
  size_t n = 0;
  gpufl_pc_num_reasons count = {.size = GPUFL_SIZE_TO(gpufl_pc_num_reasons, numStallReasons), .ctx = s->handle, .numStallReasons = &n};
  int result = GPUFL_DEEP_CALL(pc_num_reasons, &count);
  if (result != GPUFL_CUPTI_SUCCESS) return result;
  // None is what CUPTI says when somebody else samples.
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
  const gpufl_deep_config *c = &gpufl_window_config;
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
  if (c->scratch_bytes != 0) {
    ATTRIBUTE(SCRATCH_BUFFER_SIZE, bytes, c->scratch_bytes);
  }
  if (c->hardware_bytes != 0) {
    ATTRIBUTE(HARDWARE_BUFFER_SIZE, bytes, c->hardware_bytes);
  }
  uint32_t chosen[MAX_REASONS];
  size_t num_chosen = 0;
  for (size_t i = 0; i < s->num_reasons && c->num_names > 0; i++) {
    if (s->name[i] >= c->num_names) continue;
    gpufl_window_known(s->name[i]);
    chosen[num_chosen++] = s->index[i];
  }
  if (c->num_names > 0) {
    if (num_chosen == 0) return GPUFL_BAD_VALUE;
    a[n].attributeType = GPUFL_CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_STALL_REASON;
    a[n].attributeData.reasons.stallReasonCount = num_chosen;
    a[n++].attributeData.reasons.pStallReasonIndex = chosen;
  }
#undef ATTRIBUTE
  gpufl_pc_configuration p = {.size = GPUFL_SIZE_TO(gpufl_pc_configuration, pPCSamplingConfigurationInfo), .ctx = s->handle, .numAttributes = n, .pPCSamplingConfigurationInfo = a};
  int result = GPUFL_DEEP_CALL(pc_configure, &p);
  for (size_t i = 0; i < n && result == GPUFL_CUPTI_SUCCESS; i++) result = a[i].attributeStatus;
  return result;
}

static gpufl_pc_context of(const sampled *s) {
  return (gpufl_pc_context){.size = GPUFL_SIZE_TO(gpufl_pc_context, ctx), .ctx = s->handle};
}

static void discard(sampled *s) {
  free_batch(&s->asked);
  free_batch(&s->rest);
  free(s);
}

// arm_inside has *out be NULL if nothing is to be disabled.
static int arm_inside(void *handle, int32_t device, sampled **out) {
  *out = NULL;
  sampled *s = calloc(1, sizeof *s);
  if (s == NULL) return GPUFL_NO_MEMORY;
  s->handle = handle;
  s->device = device;
  gpufl_pc_context p = of(s);
  int result = GPUFL_DEEP_CALL(pc_enable, &p);
  if (result != GPUFL_CUPTI_SUCCESS) {
    discard(s);
    return result;
  }
  *out = s;
  result = learn_reasons(s);
  if (result == GPUFL_OK && !(make_batch(&s->asked, s->num_reasons) && make_batch(&s->rest, s->num_reasons))) result = GPUFL_NO_MEMORY;
  if (result == GPUFL_OK) result = configure(s);
  s->useless = result != GPUFL_OK;
  return result;
}

static int arm(void *handle, int32_t device, sampled **out) {
  bool entered = gpufl_enter_context(handle);
  int result = arm_inside(handle, device, out);
  gpufl_leave_context(entered);
  return result;
}

// disable says as well what it has to be asked for: whether CUPTI still tells of anything. Where something else has the counters CUPTI 13.0
// refuses to start, and had taken down all it had in the way of the driver's calls in 19 processes of 29: it told of none any more and made
// no records. That it cannot disable what it enabled is the sign: of eight processes where it could not none was told of anything
// afterwards, in six where it could all were told of as ever (H200, driver 580.159.04, test/gpu/held.py). But it may have other reasons,
// so it is tried whether it tells.
static void disable(sampled *s) {
  bool entered = gpufl_enter_context(s->handle);
  gpufl_pc_context p = of(s);
  s->disabled = true;
  s->disabling = GPUFL_DEEP_CALL(pc_disable, &p);
  if (s->disabling != GPUFL_CUPTI_SUCCESS && !gpufl_hears()) gpufl_set_deaf();
  gpufl_leave_context(entered);
}

// counters_free asks whether something else has the counters of a context's device: CUPTI_ERROR_HARDWARE_BUSY if so, else GPUFL_OK, also if
// it cannot be asked. A start that is refused does not do for that, since it may leave CUPTI deaf (see disable) or crash it, and this does neither:
// what it refuses then is the list of counters, and not how long that would be. It takes 75 ms and the first time more, and is as start is:
// beside launches it locks up (H200, driver 580.159.04, CUPTI 13.0, test/gpu/held.py). CUPTI's profiler must not stay initialised: sampling would be
// refused.
static int counters_free(void *handle) {
  gpufl_profiler_life life = {.structSize = GPUFL_SIZE_TO(gpufl_profiler_life, pPriv)};
  gpufl_profiler_available p = {.structSize = GPUFL_SIZE_TO(gpufl_profiler_available, pCounterAvailabilityImage), .ctx = handle};
  if (gpufl_deep.profiler_available == NULL || gpufl_deep.profiler_begin == NULL || gpufl_deep.profiler_end == NULL) return GPUFL_OK;
  bool entered = gpufl_enter_context(handle);
  int result = GPUFL_DEEP_CALL(profiler_begin, &life);
  if (result == GPUFL_CUPTI_SUCCESS) {
    result = GPUFL_DEEP_CALL(profiler_available, &p);
    if (result == GPUFL_CUPTI_SUCCESS) p.pCounterAvailabilityImage = calloc(1, p.counterAvailabilityImageSize + 1);
    if (p.pCounterAvailabilityImage != NULL) result = GPUFL_DEEP_CALL(profiler_available, &p);
    free(p.pCounterAvailabilityImage);
    GPUFL_DEEP_CALL(profiler_end, &life);
  }
  gpufl_leave_context(entered);
  return result == GPUFL_CUPTI_ERROR_HARDWARE_BUSY ? result : GPUFL_OK;
}

// Start, stop and disarm are for when the application rests: CUPTI holds a lock of its own in them and waits for the
// context's, which a thread that launches holds as it waits for CUPTI's.
static int start(sampled *s) {
  int result = GPUFL_CUPTI_ERROR_HARDWARE_BUSY;
  if (!s->taken) {
    bool entered = gpufl_enter_context(s->handle);
    gpufl_pc_context p = of(s);
    bool first = gpufl_claim_mark(s->handle, s->device);
    result = GPUFL_DEEP_CALL(pc_start, &p);
    if (result != GPUFL_CUPTI_SUCCESS && first) gpufl_claim_unmark(s->handle);
    gpufl_leave_context(entered);
  }
  s->started = result == GPUFL_CUPTI_SUCCESS;
  s->refused = !s->started;
  if (s->started) return result;
  disable(s); // at once: the other contexts go on
  return result;
}

static int stop(sampled *s) {
  if (!s->started) return GPUFL_OK;
  s->started = false;
  bool entered = gpufl_enter_context(s->handle);
  gpufl_pc_context p = of(s);
  int result = GPUFL_DEEP_CALL(pc_stop, &p);
  gpufl_leave_context(entered);
  return result;
}

static int drain(sampled *s, int64_t until) {
  if (s->useless || s->disabled) return GPUFL_OK;
  bool entered = gpufl_enter_context(s->handle);
  int result = ask(s, true, until, &s->left);
  gpufl_leave_context(entered);
  return result;
}

// disarm takes the rest. The entry is gone after it.
static int disarm(sampled *s) {
  // What has no room in the rest is gone.
  if (s->left > BATCH) gpufl_window_count(&gpufl_window_counts.lost_rows, s->left - BATCH);
  if (!s->disabled) {
    if (s->rest.records != NULL) clear_batch(&s->rest, s->num_reasons);
    disable(s);
  }
  int result = s->disabling;
  if (result != GPUFL_CUPTI_SUCCESS) {
    // CUPTI still knows the buffers, if it was ever told of them: they are given up with the context. What was refused since something
    // else has the counters has none, and is answered with CUPTI_ERROR_UNKNOWN (CUPTI 13.0).
    gpufl_window_count(&gpufl_window_counts.lost_contexts, 1);
    if (s->rest.records == NULL) discard(s);
    return result;
  }
  if (!s->useless) take(s, &s->rest);
  discard(s);
  return result;
}

// gone says whether a context must not be touched: it ended while an operation was under way, or CUPTI is deaf.
static bool gone(sampled *s) {
  if (!atomic_load(&s->lost) && (gpufl_deep_deaf() || !gpufl_context_exists(s->handle))) {
    atomic_store(&s->lost, true);
    gpufl_window_count(&gpufl_window_counts.lost_contexts, 1);
  }
  return atomic_load(&s->lost);
}

// waits says whether a context is to be started.
static bool waits(const sampled *s) { return !s->started && !s->refused && !s->useless && !atomic_load(&s->lost); }

static bool watched(void *handle, int32_t device) {
  bool found = false;
  pthread_mutex_lock(&list_lock);
  for (int i = 0; i < num_all && !found; i++) found = all[i]->handle == handle || (all[i]->device == device && !atomic_load(&all[i]->lost));
  pthread_mutex_unlock(&list_lock);
  return found;
}

bool gpufl_pc_samples(void *handle) {
  bool found = false;
  pthread_mutex_lock(&list_lock);
  for (int i = 0; i < num_all && !found; i++) found = all[i]->handle == handle;
  pthread_mutex_unlock(&list_lock);
  return found;
}

static void skip(void *handle) {
  for (int i = 0; i < num_skipped; i++) {
    if (skipped[i] == handle) return;
  }
  if (num_skipped < GPUFL_MAX_CONTEXTS) skipped[num_skipped++] = handle;
  gpufl_window_count(&gpufl_window_counts.skipped_contexts, 1);
}

// arm_new arms a context of each device that has none yet; the answer is the first refusal.
static int arm_new(void) {
  gpufl_context list[GPUFL_MAX_CONTEXTS];
  uint64_t more = 0;
  int n = gpufl_contexts(list, &more);
  int refusal = GPUFL_OK;
  bool other = false;
  for (int i = 0; i < n; i++) {
    if (gpufl_pc_samples(list[i].handle)) continue;
    bool room = list[i].device >= 0 && num_all < GPUFL_MAX_CONTEXTS && !watched(list[i].handle, list[i].device);
    if (!room || gpufl_claim_other(list[i].handle, list[i].device)) {
      other = other || room;
      skip(list[i].handle);
      continue;
    }
    sampled *s = NULL;
    int result = gpufl_claim(list[i].device);
    if (!gpufl_context_lives(list[i].handle)) continue; // it did not wait for those before it any longer
    if (result == GPUFL_OK) result = arm(list[i].handle, list[i].device, &s);
    if (s != NULL) {
      pthread_mutex_lock(&list_lock);
      all[num_all++] = s;
      pthread_mutex_unlock(&list_lock);
    }
    if (result != GPUFL_OK) {
      skip(list[i].handle);
      if (refusal == GPUFL_OK) refusal = result;
      continue;
    }
    gpufl_window_count(&gpufl_window_counts.contexts, 1);
  }
  return refusal == GPUFL_OK && other ? GPUFL_TAKEN : refusal;
}

int gpufl_pc_open(void) {
  num_skipped = 0;
  probe.n = 0;
  int refusal = arm_new();
  for (int i = 0; i < num_all; i++) {
    if (!all[i]->useless) return GPUFL_OK;
  }
  if (num_all == 0) gpufl_claims_settle(false);
  return refusal != GPUFL_OK ? refusal : GPUFL_NO_CONTEXT;
}

bool gpufl_pc_armed(void) { return num_all > 0; }

bool gpufl_pc_waits(void) {
  for (int i = 0; i < num_all; i++) {
    if (waits(all[i])) return true;
  }
  return false;
}

int gpufl_pc_start(void) {
  int refusal = GPUFL_OK;
  bool any = false, samples = false;
  for (int i = 0; i < num_all; i++) samples = samples || all[i]->started;
  // Beside one that is sampled already nobody has seen what asking does.
  for (int i = 0; i < num_all && !samples; i++) {
    if (waits(all[i]) && !gone(all[i])) all[i]->taken = counters_free(all[i]->handle) != GPUFL_OK;
  }
  for (int i = 0; i < num_all; i++) {
    if (all[i]->refused || all[i]->useless || gone(all[i])) continue;
    int result = all[i]->started ? GPUFL_OK : start(all[i]);
    any = any || result == GPUFL_OK;
    if (refusal == GPUFL_OK) refusal = result;
  }
  if (gpufl_deep_deaf()) return GPUFL_DEAF;
  return any ? GPUFL_OK : refusal != GPUFL_OK ? refusal : GPUFL_NO_CONTEXT;
}

int gpufl_pc_collect(int *more) {
  if (gpufl_deep_deaf()) return GPUFL_DEAF;
  int result = GPUFL_OK;
  int64_t until = gpufl_monotonic() + LONGEST_COLLECT_NS;
  for (int i = 0; i < num_all; i++) {
    if (!all[i]->started || gone(all[i])) continue;
    size_t left = 0;
    bool entered = gpufl_enter_context(all[i]->handle);
    int asked = ask(all[i], false, until, &left);
    gpufl_leave_context(entered);
    if (left > 0) *more = 1;
    if (result == GPUFL_OK) result = asked;
  }
  if (num_all < GPUFL_MAX_CONTEXTS && gpufl_captures() == 0) arm_new();
  return result;
}

int gpufl_pc_stop(void) {
  int result = GPUFL_OK;
  for (int i = 0; i < num_all; i++) {
    if (gone(all[i])) continue;
    int answer = stop(all[i]);
    if (result == GPUFL_OK) result = answer;
  }
  return result;
}

int gpufl_pc_drain(int64_t until, bool *more) {
  int result = GPUFL_OK;
  *more = false;
  for (int i = 0; i < num_all && !*more; i++) {
    if (all[i]->drained || gone(all[i])) continue;
    int answer = drain(all[i], until);
    bool late = gpufl_monotonic() >= until;
    all[i]->drained = !late || all[i]->left == 0;
    *more = late;
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
    if (s == NULL) {
      gpufl_claims_settle(false);
      return result;
    }
    if (gone(s)) {
      free_batch(&s->asked); // CUPTI may still have the rest
      continue;
    }
    int answer = disarm(s);
    if (result == GPUFL_OK) result = answer;
  }
}

void gpufl_pc_context_ends(void *handle, bool at_rest) {
  at_rest = at_rest && !gpufl_deep_deaf();
  sampled *s = NULL;
  pthread_mutex_lock(&list_lock);
  for (int i = 0; i < num_all && s == NULL; i++) {
    if (all[i]->handle != handle) continue;
    s = all[i];
    if (at_rest) {
      all[i] = all[--num_all];
    } else {
      atomic_store(&s->lost, true);
    }
  }
  pthread_mutex_unlock(&list_lock);
  if (s == NULL) return;
  if (at_rest) {
    stop(s);
    drain(s, gpufl_monotonic() + LONGEST_COLLECT_NS);
    disarm(s);
  } else {
    gpufl_window_count(&gpufl_window_counts.lost_contexts, 1);
  }
}
