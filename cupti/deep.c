// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpufl_deep_internal.h"

gpufl_deep_state gpufl_deep = {.operation = PTHREAD_MUTEX_INITIALIZER, .current_call = "", .last_failed_call = "", .busy_reason = ""};

// ---- functions of the libraries ----

void (*gpufl_deep_traces)(const char *function, int result, int64_t ns);

const char *gpufl_deep_call(void) { return atomic_load(&gpufl_deep.current_call); }
const char *gpufl_deep_last_failed_call(void) { return atomic_load(&gpufl_deep.last_failed_call); }

static __thread int64_t began;

void gpufl_deep_calling(const char *function) {
  atomic_store(&gpufl_deep.current_call, function);
  began = gpufl_monotonic();
}

int gpufl_deep_returned(const char *function, int result) {
  atomic_store(&gpufl_deep.current_call, "");
  if (result != GPUFL_CUPTI_SUCCESS) atomic_store(&gpufl_deep.last_failed_call, function);
  if (gpufl_deep_traces != NULL) gpufl_deep_traces(function, result, gpufl_monotonic() - began);
  return result;
}

#define SYMBOL(field, symbol, parameters) {#symbol, offsetof(gpufl_deep_calls, field), false},
static const gpufl_symbol symbols[] = {GPUFL_DEEP_SHARED(SYMBOL) GPUFL_DEEP_PC(SYMBOL) GPUFL_DEEP_SASS(SYMBOL)};
#undef SYMBOL
#define SYMBOL(field, symbol, parameters) {#symbol, offsetof(gpufl_deep_driver_calls, field), false},
static const gpufl_symbol driver_symbols[] = {GPUFL_DEEP_DRIVER(SYMBOL)};
#undef SYMBOL

void gpufl_deep_load(void *library) {
  char ignored[GPUFL_ERROR_SIZE];
  gpufl_resolve(library, &gpufl_deep.calls, symbols, sizeof symbols / sizeof *symbols, ignored);
}

void gpufl_deep_load_driver(void *library) {
  char ignored[GPUFL_ERROR_SIZE];
  gpufl_resolve(library, &gpufl_deep.driver, driver_symbols, sizeof driver_symbols / sizeof *driver_symbols, ignored);
}

int gpufl_deep_supported(int engine) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (gpufl_version() == 0) return GPUFL_NO_LIBRARY;
  if (gpufl_version() < GPUFL_DEEP_VERSION || gpufl_cupti.enable_callback == NULL || gpufl_cupti.callback_name == NULL) return GPUFL_UNSUPPORTED;
  bool all = gpufl_deep.calls.context_device != NULL;
#define HAS(field, symbol, parameters) all = all && gpufl_deep.calls.field != NULL;
  switch (engine) {
    case GPUFL_DEEP_PC:
      GPUFL_DEEP_PC(HAS)
      break;
    case GPUFL_DEEP_SASS:
      GPUFL_DEEP_SASS(HAS)
      break;
    default:
      return GPUFL_BAD_VALUE;
  }
#undef HAS
  return all ? GPUFL_OK : GPUFL_UNSUPPORTED;
}

const char *gpufl_deep_obstacle(void) { return gpufl_sass_obstacle(); }

int64_t gpufl_monotonic(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

bool gpufl_enter_context(void *handle) {
  return gpufl_deep.driver.push_context != NULL && gpufl_deep.driver.pop_context != NULL && gpufl_deep.driver.push_context(handle) == 0;
}

void gpufl_leave_context(bool entered) {
  void *ignored = NULL;
  if (entered) gpufl_deep.driver.pop_context(&ignored);
}

void gpufl_nap(int64_t ns) {
  struct timespec t = {ns / 1000000000, ns % 1000000000};
  nanosleep(&t, NULL);
}

static void nap(void) { gpufl_nap(200000); }

// ---- one operation at a time ----

bool gpufl_deep_is_given_up(void) { return atomic_load(&gpufl_deep.given_up); }
bool gpufl_deep_armed(void) { return atomic_load(&gpufl_deep.state) == GPUFL_WINDOW_OPEN || gpufl_deep_is_given_up(); }
bool gpufl_deep_patches(void) { return atomic_load(&gpufl_deep.patches) && !gpufl_deep_is_given_up(); }

// operate and operated enclose what is done with the operation's lock. CUDA forbids some calls
// while a stream is captured, also on other threads; in the relaxed mode they do not end the
// capture.
static void operate(void) {
  gpufl_operating = true;
  gpufl_deep.capture_mode = GPUFL_CU_STREAM_CAPTURE_MODE_RELAXED;
  if (gpufl_deep.driver.capture_mode != NULL && gpufl_deep.driver.capture_mode(&gpufl_deep.capture_mode) != 0) gpufl_deep.capture_mode = -1;
}

static void operated(void) {
  if (gpufl_deep.driver.capture_mode != NULL && gpufl_deep.capture_mode >= 0) gpufl_deep.driver.capture_mode(&gpufl_deep.capture_mode);
  gpufl_operating = false;
  pthread_mutex_unlock(&gpufl_deep.operation);
}

static void release_barrier(void) {
  if (gpufl_deep.quiesced) gpufl_flush_end();
  gpufl_deep.quiesced = false;
  gpufl_barrier_open();
}

// begin and finish enclose an operation.
static int begin(void) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (gpufl_deep_is_given_up()) return GPUFL_GIVEN_UP;
  if (atomic_load(&gpufl_deep.exiting)) return GPUFL_EXITING;
  pthread_mutex_lock(&gpufl_deep.operation);
  if (gpufl_deep_is_given_up()) {
    pthread_mutex_unlock(&gpufl_deep.operation);
    return GPUFL_GIVEN_UP;
  }
  operate();
  return GPUFL_OK;
}

static int close_engine(void) { return gpufl_deep.config.engine == GPUFL_DEEP_PC ? gpufl_pc_close() : gpufl_sass_close(); }

static void finish(void) {
  if (gpufl_deep_is_given_up() && atomic_load(&gpufl_deep.state) == GPUFL_WINDOW_OPEN) {
    // The call returned late and nobody waits for it: what it armed is disarmed, if that is safe.
    if (gpufl_window_quiesce(false, GPUFL_QUIESCE_NS)) close_engine();
    atomic_store(&gpufl_deep.patches, false);
    release_barrier();
    atomic_store(&gpufl_deep.state, GPUFL_WINDOW_ENDED);
  }
  operated();
}

int gpufl_deep_give_up(void) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  atomic_store(&gpufl_deep.given_up, true);
  gpufl_barrier_open_if_not_held(); // else a thread that continued would deadlock; it blocks until its limit
  return GPUFL_OK;
}

int gpufl_deep_stuck(void) { return gpufl_deep_is_given_up(); }

// at_exit runs before CUPTI's own exit handlers, which were registered earlier. After them nothing
// may be disarmed.
static void at_exit(void) {
  if (gpufl_is_child()) return;
  atomic_store(&gpufl_deep.exiting, true);
  gpufl_barrier_open_if_not_held();
}

static pthread_once_t exit_once = PTHREAD_ONCE_INIT;
static void watch_exit(void) { atexit(at_exit); }
void gpufl_deep_watch_exit(void) { pthread_once(&exit_once, watch_exit); }

// end_window removes a context that is about to be destroyed from the open window, if there is one.
static void end_window(void *handle) {
  if (gpufl_deep_is_given_up() || atomic_load(&gpufl_deep.exiting) || gpufl_operating) return;
  int64_t until = gpufl_monotonic() + GPUFL_QUIESCE_NS;
  bool locked = false;
  while (!(locked = pthread_mutex_trylock(&gpufl_deep.operation) == 0) && gpufl_monotonic() < until) nap();
  if (!locked) { // an operation that takes long: it must not touch the context any more
    gpufl_pc_context_ends(handle, false);
    gpufl_sass_context_ends(handle);
    return;
  }
  if (atomic_load(&gpufl_deep.state) != GPUFL_WINDOW_OPEN) {
    pthread_mutex_unlock(&gpufl_deep.operation);
    return;
  }
  operate();
  if (gpufl_pc_samples(handle)) {
    gpufl_pc_context_ends(handle, gpufl_window_quiesce(false, GPUFL_QUIESCE_NS));
    release_barrier();
  }
  gpufl_sass_context_ends(handle);
  operated();
}

void gpufl_deep_context_ends(void *handle) {
  int before;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before); // a cancelled thread would keep the locks
  end_window(handle);
  pthread_setcancelstate(before, NULL);
  gpufl_lease_context_ends(handle);
}

// ---- quiescing ----

// contexts_idle waits until the contexts have finished what was launched; false if they have not in
// time, or if that cannot be known.
static bool contexts_idle(int64_t until) {
  const gpufl_deep_driver_calls *d = &gpufl_deep.driver;
  if (d->event_create == NULL || d->event_destroy == NULL || d->event_query == NULL || d->record_context == NULL) {
    gpufl_window_count(&gpufl_deep.counts.not_idle, 1); // a driver before CUDA 12.5
    return true;
  }
  gpufl_context list[GPUFL_MAX_CONTEXTS];
  uint64_t more = 0;
  int n = gpufl_contexts(list, &more);
  bool idle = more == 0;
  for (int i = 0; i < n; i++) {
    // The event would end a capture of its context. None can begin now, and those of this context
    // are known, unless it and its capture are older than the subscription.
    if ((!list[i].seen && !gpufl_captures_known()) || gpufl_captures() > 0 || !gpufl_enter_context(list[i].handle)) {
      idle = false;
      continue;
    }
    void *event = NULL;
    int result = d->event_create(&event, GPUFL_CU_EVENT_DISABLE_TIMING);
    if (result == 0) {
      result = d->record_context(list[i].handle, event);
      while (result == 0 && (result = d->event_query(event)) == GPUFL_CUDA_ERROR_NOT_READY && gpufl_monotonic() < until) {
        result = 0;
        nap();
      }
      d->event_destroy(event);
    }
    idle = idle && result == 0;
    gpufl_leave_context(true);
  }
  return idle;
}

int gpufl_deep_contexts(void) {
  if (gpufl_is_child() || atomic_load(&gpufl_deep.exiting)) return 0;
  int n = gpufl_known_contexts();
  if (n > 0) return n;
  // One from before the subscription. These driver calls must not end a capture either.
  gpufl_context list[GPUFL_MAX_CONTEXTS];
  uint64_t more = 0;
  bool before = gpufl_operating;
  int mode = GPUFL_CU_STREAM_CAPTURE_MODE_RELAXED;
  bool relaxed = gpufl_deep.driver.capture_mode != NULL && gpufl_deep.driver.capture_mode(&mode) == 0;
  gpufl_operating = true;
  n = gpufl_contexts(list, &more);
  gpufl_operating = before;
  if (relaxed) gpufl_deep.driver.capture_mode(&mode);
  return n;
}

static const char in_call[] = "a call";

const char *gpufl_deep_busy_reason(int32_t *thread) {
  const char *reason = atomic_load(&gpufl_deep.busy_reason), *name = NULL;
  uint32_t call = 0;
  gpufl_barrier_busy(thread, &call);
  if (reason != in_call) {
    *thread = 0;
  } else if (gpufl_cupti.callback_name != NULL && gpufl_cupti.callback_name(GPUFL_CUPTI_CB_DOMAIN_DRIVER_API, call, &name) == GPUFL_CUPTI_SUCCESS && name != NULL) {
    return name; // CUPTI never frees it
  }
  return reason;
}

bool gpufl_window_quiesce(bool idle, int64_t limit_ns) {
  int64_t until = gpufl_monotonic() + (limit_ns < GPUFL_QUIESCE_NS ? limit_ns : GPUFL_QUIESCE_NS);
  if (!gpufl_barrier_close(GPUFL_SETS_ALL, until - gpufl_monotonic())) {
    atomic_store(&gpufl_deep.busy_reason, in_call);
    return false;
  }
  if (idle && !contexts_idle(until)) {
    atomic_store(&gpufl_deep.busy_reason, "the GPU did not finish what was launched, or a context could not be queried");
  } else if (!gpufl_flush_lock(until)) {
    atomic_store(&gpufl_deep.busy_reason, "CUPTI is handing over records");
  } else if (!gpufl_barrier_hold()) {
    gpufl_flush_end();
  } else {
    gpufl_flush_begin();
    gpufl_deep.quiesced = true;
    return true;
  }
  release_barrier();
  return false;
}

// quiesce_until retries until a time. The application continues in between.
static bool quiesce_until(bool idle, int64_t until) {
  while (!gpufl_window_quiesce(idle, until - gpufl_monotonic())) {
    if (gpufl_monotonic() >= until || atomic_load(&gpufl_deep.exiting) || gpufl_deep_is_given_up()) return false;
    nap();
  }
  return true;
}

int gpufl_quiesce_begin(int64_t limit_ns) {
  if (atomic_load(&gpufl_deep.exiting) || gpufl_deep_unresponsive() || !gpufl_resource_callbacks_on() || !atomic_load(&gpufl_deep.used) || begin() != GPUFL_OK) return 0;
  if (quiesce_until(false, gpufl_monotonic() + limit_ns)) return 1;
  finish();
  return GPUFL_NOT_QUIESCED;
}

void gpufl_window_comes(void) { atomic_store(&gpufl_deep.used, true); }

void gpufl_quiesce_end(int quiet) {
  if (quiet != 1) return;
  release_barrier();
  finish();
}

// ---- the window ----

static bool valid(const gpufl_deep_config *c) {
  if (c->engine >= GPUFL_NUM_ENGINES || c->max_rows == 0 || c->num_names > GPUFL_MAX_NAMES) return false;
  if (c->engine == GPUFL_DEEP_SASS) return c->num_names > 0;
  return c->num_names == 0 && (c->period == 0 || (c->period >= 5 && c->period <= 31));
}

// open_window arms the engine. The caller has the operation.
static int open_window(const gpufl_deep_config *config) {
  if (atomic_load(&gpufl_deep.state) != GPUFL_WINDOW_CLOSED) return GPUFL_BUSY;
  bool sass = config->engine == GPUFL_DEEP_SASS;
  if (sass && gpufl_sass_used()) return GPUFL_ONCE;
  if (sass && !config->with_activity && gpufl_activity()) return GPUFL_ACTIVITY;
  if (gpufl_captures() > 0) return GPUFL_CAPTURE;
  int result = gpufl_window_begin(config);
  if (result != GPUFL_OK) return result;
  gpufl_barrier_take_counts(true);
  gpufl_window_comes();
  if (!quiesce_until(true, gpufl_monotonic() + config->limit_ns)) {
    result = GPUFL_NOT_QUIESCED;
  } else if (gpufl_captures() > 0) {
    result = GPUFL_CAPTURE;
  } else {
    atomic_store(&gpufl_deep.patches, sass);
    result = sass ? gpufl_sass_open() : gpufl_pc_open();
  }
  if (result != GPUFL_OK) {
    atomic_store(&gpufl_deep.patches, false);
    gpufl_window_end();
    if (gpufl_deep_unresponsive()) result = GPUFL_UNRESPONSIVE;
  } else {
    atomic_store(&gpufl_deep.state, GPUFL_WINDOW_OPEN);
  }
  release_barrier();
  return result;
}

int gpufl_deep_open(const gpufl_deep_config *config) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (!valid(config)) return GPUFL_BAD_VALUE;
  int result = gpufl_deep_supported((int)config->engine);
  if (result != GPUFL_OK) return result;
  if (gpufl_deep_unresponsive()) return GPUFL_UNRESPONSIVE;
  if (!gpufl_resource_callbacks_on()) return GPUFL_NOT_DEEP;
  gpufl_deep_watch_exit();
  result = begin();
  if (result != GPUFL_OK) return result;
  result = open_window(config);
  finish();
  return result;
}

int gpufl_deep_collect(int *more) {
  *more = 0;
  int result = begin();
  if (result != GPUFL_OK) return result;
  if (atomic_load(&gpufl_deep.state) != GPUFL_WINDOW_OPEN) {
    result = GPUFL_STOPPED;
  } else if (gpufl_deep.config.engine == GPUFL_DEEP_PC) {
    // A module load that takes long is no reason to block others: the samples stay where they are
    // until the next call.
    if (gpufl_barrier_close(GPUFL_SETS_ALWAYS, 50000000)) {
      result = gpufl_pc_collect(more);
    } else {
      gpufl_window_count(&gpufl_deep.counts.deferred, 1);
    }
    gpufl_barrier_open();
  }
  finish();
  return result;
}

int gpufl_deep_close(int64_t limit_ns) {
  int result = begin();
  if (result != GPUFL_OK) return result;
  if (atomic_load(&gpufl_deep.state) != GPUFL_WINDOW_OPEN) {
    finish();
    return GPUFL_STOPPED;
  }
  // Disarming may end a capture, so captures may finish first.
  int64_t until = gpufl_monotonic() + limit_ns, soon = gpufl_monotonic() + limit_ns / 4;
  while (gpufl_captures() > 0 && gpufl_monotonic() < until && !atomic_load(&gpufl_deep.exiting)) nap();
  // Idle contexts make the counts whole. A GPU that stays busy is no reason to leave the engine
  // armed.
  if (!quiesce_until(true, soon) && !quiesce_until(false, until)) {
    finish();
    return atomic_load(&gpufl_deep.exiting) ? GPUFL_EXITING : GPUFL_NOT_QUIESCED;
  }
  result = close_engine();
  if (gpufl_deep_unresponsive()) result = GPUFL_UNRESPONSIVE;
  atomic_store(&gpufl_deep.state, GPUFL_WINDOW_ENDED);
  atomic_store(&gpufl_deep.patches, false);
  release_barrier();
  finish();
  return result;
}

int gpufl_deep_end(void) {
  int result = begin();
  if (result != GPUFL_OK) return result;
  if (atomic_load(&gpufl_deep.state) == GPUFL_WINDOW_ENDED) {
    gpufl_window_end();
    atomic_store(&gpufl_deep.state, GPUFL_WINDOW_CLOSED);
  }
  finish();
  return GPUFL_OK;
}
