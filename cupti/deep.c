// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpufl_deep_internal.h"

// ---- functions of the libraries ----

gpufl_deep_calls gpufl_deep;
gpufl_deep_driver_calls gpufl_deep_driver;

static _Atomic(const char *) under_way = "", refuser = "";
void (*gpufl_deep_traces)(const char *function, int result, int64_t ns);

const char *gpufl_deep_call(void) { return atomic_load(&under_way); }
const char *gpufl_deep_refuser(void) { return atomic_load(&refuser); }

static __thread int64_t began;

void gpufl_deep_calling(const char *function) {
  atomic_store(&under_way, function);
  began = gpufl_monotonic();
}

int gpufl_deep_returned(const char *function, int result) {
  atomic_store(&under_way, "");
  if (result != GPUFL_CUPTI_SUCCESS) atomic_store(&refuser, function);
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
  gpufl_resolve(library, &gpufl_deep, symbols, sizeof symbols / sizeof *symbols, ignored);
}

void gpufl_deep_load_driver(void *library) {
  char ignored[GPUFL_ERROR_SIZE];
  gpufl_resolve(library, &gpufl_deep_driver, driver_symbols, sizeof driver_symbols / sizeof *driver_symbols, ignored);
}

int gpufl_deep_supported(int engine) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (gpufl_version() == 0) return GPUFL_NO_LIBRARY;
  if (gpufl_version() < GPUFL_DEEP_VERSION || gpufl_cupti.enable_callback == NULL || gpufl_cupti.callback_name == NULL) return GPUFL_UNSUPPORTED;
  bool all = gpufl_deep.context_device != NULL;
#define HAS(field, symbol, parameters) all = all && gpufl_deep.field != NULL;
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
  return gpufl_deep_driver.push_context != NULL && gpufl_deep_driver.pop_context != NULL && gpufl_deep_driver.push_context(handle) == 0;
}

void gpufl_leave_context(bool entered) {
  void *ignored = NULL;
  if (entered) gpufl_deep_driver.pop_context(&ignored);
}

void gpufl_nap(int64_t ns) {
  struct timespec t = {ns / 1000000000, ns % 1000000000};
  nanosleep(&t, NULL);
}

static void nap(void) { gpufl_nap(200000); }

// ---- what a window yields ----

gpufl_deep_config gpufl_window_config;
gpufl_deep_counts gpufl_window_counts;

enum {
  MAX_NAMES = 512,
  MAX_FUNCTIONS = 1 << 16,
  FUNCTION_SLOTS = 1 << 17,
  MAX_FUNCTION_NAME = 64 << 10,
  MAX_FUNCTION_BYTES = 16 << 20,
  FIRST_ROWS = 1 << 12,
};

// window.lock is held for short whiles only, and never while CUPTI is called.
static struct {
  pthread_mutex_t lock;
  gpufl_deep_row *rows; // a ring
  uint32_t room, first, used, limit;
  char *names[MAX_NAMES];
  bool known[MAX_NAMES];
  uint32_t num_names, configured;
  char **functions;
  uint32_t *slots; // by hash: index in functions, 0 for none
  uint32_t num_functions;
  size_t function_bytes;
} window = {.lock = PTHREAD_MUTEX_INITIALIZER};

void gpufl_window_count(uint64_t *which, uint64_t n) {
  if (n == 0) return;
  pthread_mutex_lock(&window.lock);
  *which += n;
  pthread_mutex_unlock(&window.lock);
}

// release frees all that a window yields. The caller has the lock.
static void release(void) {
  for (uint32_t i = 0; i < window.num_names; i++) free(window.names[i]);
  for (uint32_t i = 1; i < window.num_functions; i++) free(window.functions[i]);
  free(window.functions);
  free(window.slots);
  free(window.rows);
  window.rows = NULL;
  window.functions = NULL;
  window.slots = NULL;
  window.room = window.first = window.used = window.num_names = window.configured = window.num_functions = 0;
  window.function_bytes = 0;
}

static char other[] = "_other";

static int prepare(const gpufl_deep_config *config) {
  int result = GPUFL_OK;
  pthread_mutex_lock(&window.lock);
  release();
  memset(&gpufl_window_counts, 0, sizeof gpufl_window_counts);
  memset(window.known, 0, sizeof window.known);
  gpufl_window_config = *config;
  gpufl_window_config.names = NULL; // the caller's, who may take them away
  window.limit = config->max_rows;
  window.functions = calloc(MAX_FUNCTIONS, sizeof *window.functions);
  window.slots = calloc(FUNCTION_SLOTS, sizeof *window.slots);
  if (window.functions == NULL || window.slots == NULL) result = GPUFL_NO_MEMORY;
  if (result == GPUFL_OK) window.functions[window.num_functions++] = other;
  for (uint32_t i = 0; i < config->num_names && result == GPUFL_OK; i++) {
    window.names[i] = strdup(config->names[i]);
    if (window.names[i] == NULL) result = GPUFL_NO_MEMORY;
    else window.num_names++;
  }
  window.configured = window.num_names;
  if (result != GPUFL_OK) release();
  pthread_mutex_unlock(&window.lock);
  return result;
}

uint32_t gpufl_window_name(const char *name) {
  uint32_t index = UINT32_MAX;
  pthread_mutex_lock(&window.lock);
  for (uint32_t i = 0; i < window.num_names && index == UINT32_MAX; i++) {
    if (strcmp(window.names[i], name) == 0) index = i;
  }
  if (index == UINT32_MAX && window.num_names < MAX_NAMES) {
    char *copy = strdup(name);
    if (copy != NULL) {
      index = window.num_names++;
      window.names[index] = copy;
    }
  }
  pthread_mutex_unlock(&window.lock);
  return index;
}

void gpufl_window_known(uint32_t index) {
  pthread_mutex_lock(&window.lock);
  if (index < window.configured) window.known[index] = true;
  pthread_mutex_unlock(&window.lock);
}

uint32_t gpufl_window_function(const char *name) {
  if (name == NULL) name = "";
  size_t length = strnlen(name, MAX_FUNCTION_NAME);
  uint32_t hash = 2166136261u; // FNV-1a
  for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)name[i]) * 16777619u;
  uint32_t index = 0;
  pthread_mutex_lock(&window.lock);
  if (window.slots != NULL && length < MAX_FUNCTION_NAME) {
    uint32_t at = hash % FUNCTION_SLOTS;
    while ((index = window.slots[at]) != 0 && strcmp(window.functions[index], name) != 0) at = (at + 1) % FUNCTION_SLOTS;
    if (index == 0 && window.num_functions < MAX_FUNCTIONS && window.function_bytes + length < MAX_FUNCTION_BYTES) {
      char *copy = strdup(name);
      if (copy != NULL) {
        index = window.num_functions++;
        window.functions[index] = copy;
        window.slots[at] = index;
        window.function_bytes += length + 1;
      }
    }
  }
  if (index == 0) gpufl_window_counts.lost_names++;
  pthread_mutex_unlock(&window.lock);
  return index;
}

// more_room doubles the ring; false if it is as large as it may be.
static bool more_room(void) {
  if (window.room >= window.limit) return false;
  uint32_t room = window.room == 0 ? FIRST_ROWS : window.room * 2;
  if (room > window.limit) room = window.limit;
  gpufl_deep_row *rows = malloc(room * sizeof *rows);
  if (rows == NULL) return false;
  for (uint32_t i = 0; i < window.used; i++) rows[i] = window.rows[(window.first + i) % window.room];
  free(window.rows);
  window.rows = rows;
  window.room = room;
  window.first = 0;
  return true;
}

void gpufl_window_row(const gpufl_deep_row *row) {
  pthread_mutex_lock(&window.lock);
  if (window.used == window.room && !more_room()) {
    gpufl_window_counts.lost_rows++;
    gpufl_window_counts.lost_value += row->value;
  } else {
    window.rows[(window.first + window.used++) % window.room] = *row;
  }
  pthread_mutex_unlock(&window.lock);
}

uint32_t gpufl_window_room(void) {
  pthread_mutex_lock(&window.lock);
  uint32_t room = window.limit - window.used;
  pthread_mutex_unlock(&window.lock);
  return room;
}

int gpufl_deep_read(gpufl_deep_row *rows, int n) {
  if (gpufl_is_child()) return 0;
  int got = 0;
  pthread_mutex_lock(&window.lock);
  while (got < n && window.used > 0) {
    rows[got++] = window.rows[window.first];
    window.first = (window.first + 1) % window.room;
    window.used--;
  }
  pthread_mutex_unlock(&window.lock);
  return got;
}

const char *gpufl_deep_function(uint32_t index) {
  if (gpufl_is_child()) return NULL;
  pthread_mutex_lock(&window.lock);
  const char *text = index < window.num_functions ? window.functions[index] : NULL;
  pthread_mutex_unlock(&window.lock);
  return text;
}

const char *gpufl_deep_name(uint32_t index) {
  if (gpufl_is_child()) return NULL;
  pthread_mutex_lock(&window.lock);
  const char *text = index < window.num_names ? window.names[index] : NULL;
  pthread_mutex_unlock(&window.lock);
  return text;
}

int gpufl_deep_missing(uint32_t index) {
  if (gpufl_is_child()) return 0;
  pthread_mutex_lock(&window.lock);
  int missing = index < window.configured && !window.known[index];
  pthread_mutex_unlock(&window.lock);
  return missing;
}

static gpufl_gate_totals before; // the window

void gpufl_deep_get_counts(gpufl_deep_counts *out) {
  memset(out, 0, sizeof *out);
  if (gpufl_is_child()) return;
  gpufl_gate_totals now = gpufl_gate_counts();
  pthread_mutex_lock(&window.lock);
  *out = gpufl_window_counts;
  out->gated = now.waited - before.waited;
  out->gate_timeouts = now.timeouts - before.timeouts;
  out->untold = now.untold > before.untold ? now.untold - before.untold : 0; // one may prove to have been told after all
  out->longest_hold_ns = now.longest;
  pthread_mutex_unlock(&window.lock);
}

// ---- one operation at a time ----

enum { CLOSED, OPEN, ENDED };
static atomic_int state;
static atomic_bool given_up, exiting;

bool gpufl_deep_is_given_up(void) { return atomic_load(&given_up); }
bool gpufl_deep_armed(void) { return atomic_load(&state) == OPEN || atomic_load(&given_up); }
static atomic_bool patches;
bool gpufl_deep_patches(void) { return atomic_load(&patches) && !atomic_load(&given_up); }

// operation is held by whoever has CUPTI do something for a window: its owner, or a thread that
// destroys a context.
static pthread_mutex_t operation = PTHREAD_MUTEX_INITIALIZER;

// REST_NS is less than GPUFL_GATE_LIMIT_NS: what is done at rest begins before anybody who waits at the gate goes on.
#define REST_NS ((int64_t)1200000000)

static void let_go(void);
static int previous_mode;

// operate and operated frame what is done with the operation's lock. What CUPTI does meanwhile on this thread may be what CUDA forbids
// others while a stream is captured; in this mode of the thread it does not end the capture.
static void operate(void) {
  gpufl_operating = true;
  previous_mode = GPUFL_CU_STREAM_CAPTURE_MODE_RELAXED;
  if (gpufl_deep_driver.capture_mode != NULL && gpufl_deep_driver.capture_mode(&previous_mode) != 0) previous_mode = -1;
}

static void operated(void) {
  if (gpufl_deep_driver.capture_mode != NULL && previous_mode >= 0) gpufl_deep_driver.capture_mode(&previous_mode);
  gpufl_operating = false;
  pthread_mutex_unlock(&operation);
}

// begin and finish frame an operation.
static int begin(void) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (atomic_load(&given_up)) return GPUFL_GIVEN_UP;
  if (atomic_load(&exiting)) return GPUFL_EXITING;
  pthread_mutex_lock(&operation);
  if (atomic_load(&given_up)) {
    pthread_mutex_unlock(&operation);
    return GPUFL_GIVEN_UP;
  }
  operate();
  return GPUFL_OK;
}

static void finish(void) {
  if (atomic_load(&given_up) && atomic_load(&state) == OPEN) {
    // It came back after all, and nobody waits for it: what it armed is disarmed, if that can be done safely.
    bool pc = gpufl_window_config.engine == GPUFL_DEEP_PC;
    if (gpufl_window_rest(false, REST_NS)) {
      if (pc) {
        gpufl_pc_stop();
        gpufl_pc_close();
      } else {
        gpufl_sass_close();
      }
    }
    atomic_store(&patches, false);
    gpufl_heap_window(false);
    let_go();
    atomic_store(&state, ENDED);
  }
  operated();
}

int gpufl_deep_give_up(void) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  atomic_store(&given_up, true);
  gpufl_gate_release();
  return GPUFL_OK;
}

int gpufl_deep_stuck(void) { return atomic_load(&given_up); }

// at_exit is called before CUPTI's own handlers, which are older. After them nothing is there to be
// disarmed.
static void at_exit(void) {
  if (gpufl_is_child()) return;
  atomic_store(&exiting, true);
  gpufl_gate_release();
}

static pthread_once_t exit_once = PTHREAD_ONCE_INIT;
static void watch_exit(void) { atexit(at_exit); }
void gpufl_deep_watch_exit(void) { pthread_once(&exit_once, watch_exit); }

// begin_before waits for the operation under way until a time; false if it did not end.
static bool begin_before(int64_t ns) {
  int64_t until = gpufl_monotonic() + ns;
  while (pthread_mutex_trylock(&operation) != 0) {
    if (gpufl_monotonic() >= until) return false;
    nap();
  }
  return true;
}

// end_window takes a context that ends out of the open window, if there is one.
static void end_window(void *handle) {
  // Also while none is open: one may be about to be.
  if (atomic_load(&given_up) || atomic_load(&exiting) || gpufl_operating) return;
  bool in_time = begin_before(GPUFL_GATE_LIMIT_NS);
  if (in_time && atomic_load(&state) != OPEN) {
    pthread_mutex_unlock(&operation);
    return;
  }
  // Both: without the operation's lock it is not sure whose window it is.
  if (in_time) {
    operate();
    if (gpufl_pc_samples(handle)) {
      bool rest = gpufl_window_rest(false, 200000000);
      gpufl_pc_context_ends(handle, rest);
      let_go();
    }
  } else {
    gpufl_pc_context_ends(handle, false);
  }
  gpufl_sass_context_ends(handle);
  if (in_time) operated();
}

void gpufl_deep_context_ends(void *handle) {
  int before;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before); // it would end with the locks
  end_window(handle);
  pthread_setcancelstate(before, NULL);
  gpufl_claim_unmark(handle);
}

// ---- rest ----

bool gpufl_window_idle(int64_t limit_ns) {
  const gpufl_deep_driver_calls *d = &gpufl_deep_driver;
  if (d->event_create == NULL || d->event_destroy == NULL || d->event_query == NULL || d->record_context == NULL) {
    // A driver before CUDA 12.5. A launch that waits for room in a queue may be under way for longer than this.
    gpufl_window_count(&gpufl_window_counts.not_idle, 1);
    gpufl_nap(100000000);
    return true;
  }
  gpufl_context list[GPUFL_MAX_CONTEXTS];
  uint64_t more = 0;
  int n = gpufl_contexts(list, &more);
  bool idle = more == 0;
  int64_t until = gpufl_monotonic() + limit_ns;
  for (int i = 0; i < n; i++) {
    // The event ends a capture of its context. None can begin, and those of this context were told, unless it is older than
    // our listening and so is the capture.
    if ((!list[i].seen && !gpufl_captures_known()) || gpufl_captures() > 0 || !gpufl_enter_context(list[i].handle)) {
      idle = false;
      continue;
    }
    void *event = NULL;
    if (d->event_create(&event, GPUFL_CU_EVENT_DISABLE_TIMING) == 0) {
      int result = d->record_context(list[i].handle, event);
      while (result == 0 && (result = d->event_query(event)) == GPUFL_CUDA_ERROR_NOT_READY && gpufl_monotonic() < until) {
        result = 0;
        nap();
      }
      if (result != 0) idle = false;
      d->event_destroy(event);
    } else {
      idle = false;
    }
    gpufl_leave_context(true);
  }
  return idle;
}

int gpufl_deep_contexts(void) {
  if (gpufl_is_child() || atomic_load(&exiting)) return 0;
  int n = gpufl_known_contexts();
  if (n > 0) return n;
  // One from before we listened. What the driver is asked is not the application's, and spoils no capture.
  gpufl_context list[GPUFL_MAX_CONTEXTS];
  uint64_t more = 0;
  bool before = gpufl_operating;
  int mode = GPUFL_CU_STREAM_CAPTURE_MODE_RELAXED;
  bool relaxed = gpufl_deep_driver.capture_mode != NULL && gpufl_deep_driver.capture_mode(&mode) == 0;
  gpufl_operating = true;
  n = gpufl_contexts(list, &more);
  gpufl_operating = before;
  if (relaxed) gpufl_deep_driver.capture_mode(&mode);
  return n;
}

// ---- the window ----

// settled: at rest, and CUPTI has no records to work at. With operation.
static bool settled;

static void let_go(void) {
  if (settled) gpufl_flush_end();
  settled = false;
  gpufl_gate_open();
}

static _Atomic(const char *) restless = "";
static const char in_call[] = "a call";

const char *gpufl_deep_restless(int32_t *thread, int *out, uint64_t *untold) {
  const char *why = atomic_load(&restless), *name = NULL;
  uint32_t what = 0;
  bool is_out = false;
  gpufl_gate_inside(thread, &what, &is_out);
  *out = is_out;
  *untold = gpufl_gate_counts().untold;
  if (why != in_call) {
    *thread = 0;
  } else if (gpufl_cupti.callback_name != NULL && gpufl_cupti.callback_name(GPUFL_CUPTI_CB_DOMAIN_DRIVER_API, what, &name) == GPUFL_CUPTI_SUCCESS && name != NULL) {
    return name; // CUPTI's for good
  }
  return why;
}

// at_gate has the application's calls wait; false, and the gate is open, if some did not end in time.
static bool at_gate(uint32_t sets, int64_t limit_ns) {
  if (gpufl_gate_close(sets, limit_ns)) return true;
  atomic_store(&restless, in_call);
  let_go();
  return false;
}

bool gpufl_window_rest(bool idle, int64_t limit_ns) {
  int64_t until = gpufl_monotonic() + (limit_ns < REST_NS ? limit_ns : REST_NS);
  if (!at_gate(GPUFL_SETS_ALL, until - gpufl_monotonic())) return false;
  const char *why = in_call;
  if (idle && !gpufl_window_idle(until - gpufl_monotonic())) {
    why = "the GPU did not come to the end of what was launched, or a context could not be asked";
  } else if (!gpufl_flush_lock(until)) {
    why = "CUPTI is handing over records";
  } else if (gpufl_gate_hold()) {
    gpufl_flush_begin();
    settled = true;
    return true;
  } else {
    gpufl_flush_end();
  }
  atomic_store(&restless, why);
  let_go();
  return false;
}

// all_known: none of the launches that had begun before they were watched is under way. With operation.
static bool all_known;

// over says that it is no use to try once more; else it has the application go on for a moment.
static bool over(int64_t until) {
  if (gpufl_monotonic() >= until || atomic_load(&exiting) || atomic_load(&given_up)) return true;
  nap();
  return false;
}

// rest_until tries until a time, and at_gate_until does for calls alone.
static bool rest_until(bool idle, int64_t until) {
  do {
    if (!gpufl_window_rest(idle, until - gpufl_monotonic())) continue;
    all_known = all_known || idle;
    return true;
  } while (!over(until));
  return false;
}

static bool at_gate_until(int64_t until) {
  do {
    int64_t left = until - gpufl_monotonic();
    if (at_gate(GPUFL_SETS_ALL, left < REST_NS ? left : REST_NS)) return true;
  } while (!over(until));
  return false;
}

static bool modules_at_rest(int64_t until) {
  while (!gpufl_gate_close(GPUFL_SETS_ALWAYS, 200000000)) {
    let_go();
    if (over(until)) return false;
  }
  return true;
}

// used: a window was opened once in this process, or is about to be.
static atomic_bool used;

// passed: nor is one of those, unless its thread slept in it. With operation.
static bool passed;

// know_launches awaits those that had begun before they were watched, but for those that sleep as they wait for the device: after
// the next rest with idle contexts none of these is left. more: some are watched only now.
static bool know_launches(bool more, int64_t until) {
  if (more) all_known = passed = false;
  if (!passed) passed = gpufl_threads_pass(until);
  if (!passed) atomic_store(&restless, "a thread that may have been in a launch got no processor");
  return passed;
}

static bool watch_launches(int64_t until) { return know_launches(gpufl_watch(GPUFL_SETS_ALL), until); }

int gpufl_quiet_begin(int64_t limit_ns) {
  if (atomic_load(&given_up) || atomic_load(&exiting) || gpufl_deep_deaf()) return 0;
  bool must = gpufl_listens() && atomic_load(&used);
  if (!must || begin() != GPUFL_OK) return 0;
  int64_t until = gpufl_monotonic() + limit_ns;
  if (watch_launches(until) && rest_until(!all_known, until)) return 1;
  finish();
  return GPUFL_RESTLESS;
}

void gpufl_window_comes(void) { atomic_store(&used, true); }

void gpufl_quiet_end(int quiet) {
  if (quiet != 1) return;
  let_go();
  finish();
}

static bool sound(const gpufl_deep_config *c) {
  if (c->engine >= GPUFL_NUM_ENGINES || c->max_rows == 0 || c->num_names > MAX_NAMES) return false;
  if (c->engine == GPUFL_DEEP_SASS) return c->num_names > 0;
  return c->period == 0 || (c->period >= 5 && c->period <= 31);
}

// open_pc arms and starts. The gate is closed for modules and captures.
static int open_pc(int64_t until) {
  // Nothing is armed beside an application that does not come to rest, since it could not be disarmed.
  let_go();
  if (gpufl_pc_armed()) {
    if (!rest_until(false, until)) return GPUFL_RESTLESS;
    gpufl_pc_close(); // of a window that could not
  } else if (!at_gate_until(until)) {
    return GPUFL_RESTLESS;
  }
  let_go();
  // Launches go on while contexts are armed, which can take a second.
  if (!at_gate(GPUFL_SETS_ALWAYS, until - gpufl_monotonic())) return GPUFL_RESTLESS;
  int result = gpufl_captures() > 0 ? GPUFL_CAPTURE : gpufl_pc_open();
  let_go();
  if (result == GPUFL_OK) {
    result = !rest_until(true, until) ? GPUFL_RESTLESS : gpufl_captures() > 0 ? GPUFL_CAPTURE : gpufl_pc_start();
    if (result == GPUFL_OK) return result;
  }
  // If it comes to no rest any more, what is armed stays so, and samples nothing. Who waits for this gives up a second after its limit.
  if (gpufl_pc_armed() && (settled || rest_until(false, gpufl_monotonic() + 300000000))) gpufl_pc_close();
  return result;
}

int gpufl_deep_open(const gpufl_deep_config *config) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (!sound(config)) return GPUFL_BAD_VALUE;
  int result = gpufl_deep_supported((int)config->engine);
  if (result != GPUFL_OK) return result;
  if (!gpufl_listens()) return GPUFL_NOT_DEEP;
  if (gpufl_deep_deaf()) return GPUFL_DEAF;
  gpufl_deep_watch_exit();
  result = begin();
  if (result != GPUFL_OK) return result;
  if (atomic_load(&state) != CLOSED) {
    finish();
    return GPUFL_BUSY;
  }
  if (config->engine == GPUFL_DEEP_SASS && !config->with_activity && gpufl_activity()) {
    result = GPUFL_ACTIVITY;
  } else if (gpufl_captures() > 0) {
    result = GPUFL_CAPTURE;
  } else {
    result = prepare(config);
  }
  if (result != GPUFL_OK) {
    finish();
    return result;
  }
  before = gpufl_gate_counts();
  gpufl_gate_begin();
  int64_t until = gpufl_monotonic() + config->limit_ns;
  atomic_store(&used, true);
  gpufl_heap_window(true);
  if (!watch_launches(until)) {
    result = GPUFL_RESTLESS;
  } else if (!at_gate(GPUFL_SETS_ALWAYS, until - gpufl_monotonic())) {
    result = GPUFL_RESTLESS;
  } else if (gpufl_captures() > 0) {
    result = GPUFL_CAPTURE;
  } else if (config->engine == GPUFL_DEEP_PC) {
    result = open_pc(until);
  } else {
    // Patches take hold of kernels only when none is under way.
    result = GPUFL_RESTLESS;
    if (rest_until(true, until)) {
      if (gpufl_pc_armed()) gpufl_pc_close(); // of a window that could not
      atomic_store(&patches, true);
      result = gpufl_sass_open();
    }
  }
  if (result != GPUFL_OK && gpufl_deep_deaf()) result = GPUFL_DEAF;
  if (result == GPUFL_OK) {
    atomic_store(&state, OPEN);
  } else {
    atomic_store(&patches, false);
    gpufl_heap_window(false);
  }
  let_go();
  if (result != GPUFL_OK) {
    pthread_mutex_lock(&window.lock);
    release();
    pthread_mutex_unlock(&window.lock);
  }
  finish();
  return result;
}

int gpufl_deep_collect(int *more) {
  *more = 0;
  int result = begin();
  if (result != GPUFL_OK) return result;
  if (atomic_load(&state) != OPEN) {
    result = GPUFL_STOPPED;
  } else if (gpufl_window_config.engine == GPUFL_DEEP_PC) {
    // A module that takes its time is no reason to keep the others waiting: the samples stay where they
    // are until the next time.
    if (gpufl_gate_close(GPUFL_SETS_ALWAYS, 50000000)) {
      result = gpufl_pc_collect(more);
    } else {
      gpufl_window_count(&gpufl_window_counts.deferred, 1);
    }
    let_go();
    // Contexts that are new wait for the next time if there is no rest.
    if (gpufl_pc_waits() && gpufl_window_rest(true, 200000000)) {
      if (gpufl_captures() == 0) gpufl_pc_start();
      let_go();
    }
  }
  finish();
  return result;
}

int gpufl_deep_close(int64_t limit_ns) {
  int result = begin();
  if (result != GPUFL_OK) return result;
  if (atomic_load(&state) != OPEN) {
    finish();
    return GPUFL_STOPPED;
  }
  // Disarming may be what ends a capture, so captures come first, as long as they may take.
  int64_t until = gpufl_monotonic() + limit_ns;
  while (gpufl_captures() > 0 && gpufl_monotonic() < until && !atomic_load(&exiting)) nap();
  bool pc = gpufl_window_config.engine == GPUFL_DEEP_PC;
  // None has to be awaited but those under way, if the contexts do not become idle soon; reading counts waits for the
  // device.
  int64_t soon = gpufl_monotonic() + limit_ns / 4;
  if (!rest_until(true, soon < until ? soon : until) && !rest_until(false, until)) {
    finish();
    return atomic_load(&exiting) ? GPUFL_EXITING : GPUFL_RESTLESS;
  }
  if (pc) {
    result = gpufl_pc_stop();
    let_go();
    // Beside a module that is unloaded names are read that are freed, so it is done in pieces: a call does not wait longer than
    // GPUFL_GATE_LIMIT_NS for any. One that goes on for so long costs what was not read yet.
    int answer = GPUFL_OK;
    bool more = true;
    for (int64_t end = gpufl_monotonic() + limit_ns; more && gpufl_monotonic() < end;) {
      if (!modules_at_rest(gpufl_monotonic() + limit_ns / 2)) {
        gpufl_window_count(&gpufl_window_counts.deferred, 1);
        break;
      }
      int piece = gpufl_pc_drain(gpufl_monotonic() + GPUFL_GATE_LIMIT_NS / 2, &more);
      if (answer == GPUFL_OK) answer = piece;
      let_go();
    }
    if (result == GPUFL_OK) result = answer;
    // Disabling beside launches locks up as stopping does. Nothing is sampled any more, so there is time.
    if (!rest_until(false, INT64_MAX)) { // nobody waits for it any more, or the process ends
      finish();
      return atomic_load(&exiting) ? GPUFL_EXITING : GPUFL_GIVEN_UP;
    }
    answer = gpufl_pc_close();
    if (result == GPUFL_OK) result = answer;
  } else {
    result = gpufl_sass_close();
  }
  if (gpufl_deep_deaf()) result = GPUFL_DEAF;
  atomic_store(&state, ENDED);
  atomic_store(&patches, false);
  gpufl_heap_window(false);
  let_go();
  finish();
  return result;
}

int gpufl_deep_end(void) {
  int result = begin();
  if (result != GPUFL_OK) return result;
  if (atomic_load(&state) == ENDED) {
    pthread_mutex_lock(&window.lock);
    release();
    pthread_mutex_unlock(&window.lock);
    atomic_store(&state, CLOSED);
  }
  finish();
  return GPUFL_OK;
}
