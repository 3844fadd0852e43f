// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "gpufl_deep_internal.h"
#include "gpufl_stacks.h"

gpufl_cupti_calls gpufl_cupti;

// ---- state ----

// The activity kinds of CUPTI for each of our kinds. NVTX events and scopes do not come from CUPTI.
// CUPTI's EXTERNAL_CORRELATION records need those of host calls (RUNTIME, DRIVER), which cost more
// than a callback (H200, CUDA 13.0).
static const struct {
  uint32_t kind;
  uint32_t activity;
} activities[] = {
    {GPUFL_KIND_KERNEL, GPUFL_CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL},
    {GPUFL_KIND_MEMCPY, GPUFL_CUPTI_ACTIVITY_KIND_MEMCPY},
    {GPUFL_KIND_MEMCPY_P2P, GPUFL_CUPTI_ACTIVITY_KIND_MEMCPY2},
    {GPUFL_KIND_MEMSET, GPUFL_CUPTI_ACTIVITY_KIND_MEMSET},
    {GPUFL_KIND_MEMORY, GPUFL_CUPTI_ACTIVITY_KIND_MEMORY2},
    {GPUFL_KIND_SYNC, GPUFL_CUPTI_ACTIVITY_KIND_SYNCHRONIZATION},
    {GPUFL_KIND_GRAPH, GPUFL_CUPTI_ACTIVITY_KIND_GRAPH_TRACE},
    {GPUFL_KIND_OVERHEAD, GPUFL_CUPTI_ACTIVITY_KIND_OVERHEAD},
    {GPUFL_KIND_RUNTIME_API, GPUFL_CUPTI_ACTIVITY_KIND_RUNTIME},
    {GPUFL_KIND_DRIVER_API, GPUFL_CUPTI_ACTIVITY_KIND_DRIVER},
};
enum { NUM_ACTIVITIES = sizeof activities / sizeof *activities };

// CUPTI numbers the callbacks of driver functions by its version, so we find the functions by name.
// Runtime calls end in driver calls with the same correlation id. Each function is in some of the
// sets that windows observe (GPUFL_SET_…) and in one of the sets that scopes need.
enum {
  MAX_CALLBACKS = 2048,
  SET_SCOPE = 1 << 8,
  SET_SCOPE_MEMORY = 1 << 9,
  SET_SCOPE_SYNC = 1 << 10,
  SET_CAPTURE_BEGINS = 1 << 11,
  SET_CAPTURE_ENDS = 1 << 12,
  SET_KERNEL = 1 << 13
};

// A buffer has one owner at a time: the pool, then CUPTI, then the queue, then the consumer.
enum { IN_POOL, LENT, READY, TAKEN };

gpufl_shared_state gpufl_state;

// The state of this file. "Owner" fields belong to the owner of the session and need no lock.
// Launches read resource_callbacks_on, blocking, launches, finalizing and callbacks.sets.
static struct {
  // Owner: the library. used is set once a function of CUPTI other than cuptiGetVersion was called,
  // so threads of CUPTI may exist.
  void *library;
  uint32_t version;
  bool used;

  // Owner: the session.
  gpufl_config settings;
  void *subscriber;            // NULL without a subscription. on_api clears it when it finalizes.
  bool suspended;              // The session has no records until the next gpufl_start.
  bool pausing;                // Between gpufl_pause and gpufl_resume.
  bool paused[NUM_ACTIVITIES]; // Disabled until gpufl_resume.
  bool left[NUM_ACTIVITIES];   // Stayed enabled at the end of recording, without buffers.
  bool scopes_work;            // CUPTI can report launches.

  // Any thread: CUPTI. activity_on is written by the owner only.
  atomic_bool activity_on[NUM_ACTIVITIES];
  atomic_bool attached;         // Our callbacks are registered, and CUPTI may be called.
  _Atomic uint32_t inside;      // Application threads between gpufl_call_begin and gpufl_call_end.
  _Atomic uint32_t attachments; // How often CUPTI was finalized.
  _Atomic int64_t last_anchor;  // See measure_anchor.

  // CUPTI delivers no callbacks any more. Nothing is switched then, since CUPTI has freed a part of
  // its state. Switching records crashed one process of seven (H200, driver 580.159.04, CUDA 13.0,
  // test/gpu/held.py).
  atomic_bool unresponsive;

  // Callbacks for launches: 0 while they are off, 1 when they are on, 2 if CUPTI rejects them.
  atomic_int launches;
  pthread_mutex_t watching; // orders the threads that turn them on in gpufl_watch_launches

  // Callbacks report launches to the barrier, so records are switched while no launch is in flight.
  // A thread with a launch in flight can lose its records until CUPTI is detached (CUPTI 13.0,
  // H200).
  atomic_bool blocking;

  // The subscription reports contexts, modules, captures and launches. Windows need them.
  atomic_bool resource_callbacks_on;

  // finalizing makes on_api finalize CUPTI, on the thread finalizer only.
  atomic_bool finalizing;
  pthread_t finalizer;
  int finalize_result;

  // The holder of dropping queries dropped records for a returned buffer, or ends lending. A thread
  // that flushes holds flushing, and so does a window to exclude flushes.
  pthread_mutex_t dropping, flushing;

  pthread_once_t once; // of initialize
  pthread_cond_t ready_cond; // a buffer was queued, or recording stopped; with pool.lock

  struct {
    // Protects this struct. No thread calls CUPTI or the kernel while it holds the lock. CUPTI
    // holds locks of its own in its callbacks, and takes them again when we call it: that would
    // deadlock.
    pthread_mutex_t lock;
    gpufl_buffer *all[GPUFL_MAX_BUFFERS];
    uint32_t allocated; // In all.
    uint32_t coming;    // Being allocated.
    uint32_t lent;
    uint32_t limit;
    size_t bytes;
    gpufl_buffer *unused;      // A stack: the last one used is still in the caches.
    gpufl_buffer *head, *tail; // The queue of completed ones.
    uint32_t pending;
    bool opened, stopped, zero;
    atomic_bool lends; // Lend buffers: from the start of recording to its end.
    bool stale;        // Returned buffers belong to an earlier session.
    bool own_clock;
    gpufl_stats stats;
  } pool;

  struct {
    // Written once, before the callbacks are enabled.
    bool known;
    int first_launch; // 0 if there is none
    uint16_t sets[MAX_CALLBACKS];

    // Protects the fields below, and orders the threads that enable callbacks. No callback of CUPTI
    // takes it.
    pthread_mutex_t lock;
    bool enabled[MAX_CALLBACKS];
    bool scopes;
  } callbacks;
} core = {
    .watching = PTHREAD_MUTEX_INITIALIZER,
    .dropping = PTHREAD_MUTEX_INITIALIZER,
    .flushing = PTHREAD_MUTEX_INITIALIZER,
    .once = PTHREAD_ONCE_INIT,
    .pool = {.lock = PTHREAD_MUTEX_INITIALIZER},
    .callbacks = {.lock = PTHREAD_MUTEX_INITIALIZER},
};

// ---- time ----

void gpufl_cond_init(pthread_cond_t *cond) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(cond, &attributes);
  pthread_condattr_destroy(&attributes);
}

struct timespec gpufl_after(int64_t ns) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  if (ns < 0) ns = 0;
  t.tv_sec += ns / 1000000000;
  t.tv_nsec += ns % 1000000000;
  if (t.tv_nsec >= 1000000000) {
    t.tv_sec++;
    t.tv_nsec -= 1000000000;
  }
  return t;
}

// ---- fork ----

static void in_child(void) { atomic_store(&gpufl_state.child, true); }

static void initialize(void) {
  pthread_atfork(NULL, NULL, in_child);
  gpufl_cond_init(&core.ready_cond);
}

void gpufl_watch_fork(void) { pthread_once(&core.once, initialize); }

// ---- the library ----

#define SYMBOL_REQUIRED(field, symbol, parameters) \
  {#symbol, offsetof(gpufl_cupti_calls, field), true},
#define SYMBOL_OPTIONAL(field, symbol, parameters) \
  {#symbol, offsetof(gpufl_cupti_calls, field), false},
static const gpufl_symbol cupti_symbols[] = {GPUFL_CUPTI_REQUIRED(SYMBOL_REQUIRED)
                                                 GPUFL_CUPTI_OPTIONAL(SYMBOL_OPTIONAL)};

int gpufl_load(const char *path, int mapped_only, char error[GPUFL_ERROR_SIZE]) {
  error[0] = 0;
  if (gpufl_is_child()) return GPUFL_FORKED;
  gpufl_watch_fork();
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | (mapped_only ? RTLD_NOLOAD : 0));
  if (handle == NULL) {
    const char *words = dlerror();
    snprintf(error, GPUFL_ERROR_SIZE, "%s", words ? words : "it is not loaded");
    return GPUFL_NO_LIBRARY;
  }
  if (core.library != NULL) {
    // dlopen returns the same handle for the same library, whatever the path.
    int result = handle == core.library ? GPUFL_OK : GPUFL_BUSY;
    dlclose(handle);
    return result;
  }
  gpufl_cupti_calls calls;
  if (!gpufl_resolve(handle, &calls, cupti_symbols, sizeof cupti_symbols / sizeof *cupti_symbols,
                     error)) {
    dlclose(handle);
    return GPUFL_NO_SYMBOL;
  }
  uint32_t number = 0;
  int result = calls.get_version(&number);
  if (result != GPUFL_CUPTI_SUCCESS) {
    dlclose(handle);
    return result;
  }
  gpufl_cupti = calls;
  gpufl_deep_load(handle);
  core.version = number;
  core.library = handle;
  return GPUFL_OK;
}

int gpufl_unload(void) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (core.used) return GPUFL_BUSY;
  if (core.library != NULL) dlclose(core.library);
  core.library = NULL;
  core.version = 0;
  return GPUFL_OK;
}

uint32_t gpufl_version(void) { return core.version; }

const char *gpufl_result_string(int result) {
  const char *text = NULL;
  if (gpufl_is_child() || core.library == NULL ||
      gpufl_cupti.result_string(result, &text) != GPUFL_CUPTI_SUCCESS || text == NULL) {
    return "unknown result";
  }
  return text;
}

// ---- the pool ----

static gpufl_buffer *allocate(size_t bytes, int flags) {
  gpufl_buffer *b = calloc(1, sizeof *b);
  if (b == NULL) return NULL;
  b->data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (b->data == MAP_FAILED) {
    free(b);
    return NULL;
  }
  b->size = bytes;
  return b;
}

static void destroy(gpufl_buffer *b) {
  munmap(b->data, b->size);
  free(b);
}

// forget removes b from the list of all buffers. The caller holds the lock, and destroys b without
// it.
static void forget(gpufl_buffer *b) {
  for (uint32_t i = 0; i < core.pool.allocated; i++) {
    if (core.pool.all[i] == b) {
      core.pool.all[i] = core.pool.all[--core.pool.allocated];
      return;
    }
  }
}

// put returns b, which nobody owns, to the pool. It returns false if the caller must destroy b. The
// caller holds the lock.
static bool put(gpufl_buffer *b) {
  if (!core.pool.opened || b->size != core.pool.bytes || core.pool.allocated > core.pool.limit) {
    forget(b);
    return false;
  }
  b->state = IN_POOL;
  b->next = core.pool.unused;
  core.pool.unused = b;
  return true;
}

// on_request lends CUPTI an empty buffer, on any thread. Usually it only moves a pointer.
static void on_request(uint8_t **data, size_t *size, size_t *max_records) {
  *data = NULL;
  *size = 0;
  *max_records = 0; // as many as fit
  if (gpufl_is_child()) return;
  pthread_mutex_lock(&core.pool.lock);
  gpufl_buffer *b = NULL;
  if (atomic_load(&core.pool.lends)) {
    b = core.pool.unused;
    if (b != NULL) {
      core.pool.unused = b->next;
    } else if (core.pool.allocated + core.pool.coming < core.pool.limit) {
      core.pool.coming++;
      size_t bytes = core.pool.bytes;
      pthread_mutex_unlock(&core.pool.lock);
      b = allocate(bytes, 0);
      pthread_mutex_lock(&core.pool.lock);
      core.pool.coming--;
      if (b != NULL) core.pool.all[core.pool.allocated++] = b;
    }
    if (b != NULL) {
      b->state = LENT;
      b->next = NULL;
      core.pool.lent++;
      core.pool.stats.requests++;
    } else {
      core.pool.stats.refused++;
    }
  }
  pthread_mutex_unlock(&core.pool.lock);
  if (b != NULL) {
    *data = b->data;
    *size = b->size;
  }
}

// count_dropped adds the records that CUPTI has dropped since the last call.
static void count_dropped(void) {
  if (!atomic_load(&core.attached)) return;
  size_t n = 0;
  if (gpufl_cupti.num_dropped(NULL, 0, &n) != GPUFL_CUPTI_SUCCESS || n == 0) return;
  pthread_mutex_lock(&core.pool.lock);
  core.pool.stats.dropped += n;
  pthread_mutex_unlock(&core.pool.lock);
}

// on_complete receives a buffer from CUPTI, on any thread.
static void on_complete(void *context, uint32_t stream, uint8_t *data, size_t size, size_t valid) {
  (void)context;
  (void)stream;
  (void)size;
  if (gpufl_is_child() || data == NULL) return;
  gpufl_buffer *b = NULL;
  bool keep = true;
  pthread_mutex_lock(&core.pool.lock);
  for (uint32_t i = 0; i < core.pool.allocated; i++) {
    if (core.pool.all[i]->data == data && core.pool.all[i]->state == LENT) {
      b = core.pool.all[i];
      break;
    }
  }
  if (b == NULL) {
    // Another profiler lent it, which registered its callbacks before ours.
    core.pool.stats.foreign++;
  } else {
    core.pool.stats.completed++;
    core.pool.lent--;
    b->valid = core.pool.stale ? 0 : valid < b->size ? valid : b->size;
    b->next = NULL;
    if (core.pool.opened) {
      b->state = READY;
      if (core.pool.tail != NULL) {
        core.pool.tail->next = b;
      } else {
        core.pool.head = b;
      }
      core.pool.tail = b;
      core.pool.pending++;
    } else {
      keep = put(b);
    }
  }
  pthread_mutex_unlock(&core.pool.lock);
  if (!keep) {
    destroy(b);
  } else if (b != NULL) {
    pthread_cond_signal(&core.ready_cond);
  }
  // Records that CUPTI drops after lending has ended do not count. CUPTI may hold a lock here that
  // the holder of dropping needs, so this thread does not wait.
  if (pthread_mutex_trylock(&core.dropping) != 0) return;
  if (atomic_load(&core.pool.lends)) count_dropped();
  pthread_mutex_unlock(&core.dropping);
}

// preallocate_buffer allocates the next buffer with its pages, on the consumer's thread, so that an
// application thread does not have to.
static void preallocate_buffer(void) {
  pthread_mutex_lock(&core.pool.lock);
  bool wanted = core.pool.opened && !core.pool.stopped && core.pool.lent > 0 &&
                core.pool.unused == NULL &&
                core.pool.allocated + core.pool.coming < core.pool.limit;
  size_t bytes = core.pool.bytes;
  if (wanted) core.pool.coming++;
  pthread_mutex_unlock(&core.pool.lock);
  if (!wanted) return;
  gpufl_buffer *b = allocate(bytes, MAP_POPULATE);
  bool keep = true;
  pthread_mutex_lock(&core.pool.lock);
  core.pool.coming--;
  if (b != NULL) {
    core.pool.all[core.pool.allocated++] = b;
    keep = put(b);
  }
  pthread_mutex_unlock(&core.pool.lock);
  if (!keep) destroy(b);
}

int gpufl_wait(int64_t nanoseconds) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  gpufl_watch_fork();
  preallocate_buffer();
  struct timespec until = gpufl_after(nanoseconds);
  int result = GPUFL_OK;
  pthread_mutex_lock(&core.pool.lock);
  while (core.pool.head == NULL) {
    if (!core.pool.opened || core.pool.stopped) {
      result = GPUFL_END;
      break;
    }
    if (pthread_cond_timedwait(&core.ready_cond, &core.pool.lock, &until) == ETIMEDOUT &&
        core.pool.head == NULL) {
      result = !core.pool.opened || core.pool.stopped ? GPUFL_END : GPUFL_TIMEOUT;
      break;
    }
  }
  pthread_mutex_unlock(&core.pool.lock);
  return result;
}

// measure_anchor returns the offset from CUPTI's clock to ours, for a library that cannot use our
// clock. It reads both several times and uses the readings that are closest together.
static int64_t measure_anchor(void) {
  int64_t best = 0, least = INT64_MAX;
  for (int i = 0; i < 5; i++) {
    uint64_t theirs = 0;
    int64_t before = gpufl_realtime();
    if (gpufl_cupti.get_timestamp(&theirs) != GPUFL_CUPTI_SUCCESS) break;
    int64_t after = gpufl_realtime();
    if (after - before >= 0 && after - before < least) {
      least = after - before;
      best = before + (after - before) / 2 - (int64_t)theirs;
    }
  }
  return best;
}

static int64_t anchor(void) {
  if (core.pool.own_clock) return 0;
  // The clocks drift, so each buffer has its own measurement.
  if (gpufl_cupti.get_timestamp != NULL && gpufl_call_begin()) {
    atomic_store(&core.last_anchor, measure_anchor());
    gpufl_call_end();
  }
  return atomic_load(&core.last_anchor);
}

int gpufl_take(gpufl_buffer **out) {
  *out = NULL;
  if (gpufl_is_child()) return GPUFL_FORKED;
  for (;;) {
    pthread_mutex_lock(&core.pool.lock);
    gpufl_buffer *b = core.pool.head;
    int result = GPUFL_OK;
    if (b != NULL) {
      core.pool.head = b->next;
      if (core.pool.head == NULL) core.pool.tail = NULL;
      core.pool.pending--;
      b->next = NULL;
      b->state = TAKEN;
    } else {
      result = !core.pool.opened || core.pool.stopped ? GPUFL_END : GPUFL_TIMEOUT;
    }
    pthread_mutex_unlock(&core.pool.lock);
    if (b == NULL) return result;
    if (b->valid > 0) {
      b->anchor = anchor();
      *out = b;
      return GPUFL_OK;
    }
    gpufl_release(b);
  }
}

void gpufl_release(gpufl_buffer *b) {
  if (gpufl_is_child() || b == NULL) return;
  // CUPTI zeroes buffers on an application thread unless we declare that ours are zero. CUPTI does
  // not document that it writes only the valid bytes, so clear all of them.
  if (core.pool.zero) memset(b->data, 0, b->size);
  pthread_mutex_lock(&core.pool.lock);
  b->valid = 0;
  bool keep = put(b);
  pthread_mutex_unlock(&core.pool.lock);
  if (!keep) destroy(b);
}

int gpufl_walk(const gpufl_buffer *b, void **cursor, void **records, int n) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  int got = 0;
  uint8_t *end = b->data + b->valid;
  uint8_t *last = *cursor;
  while (got < n) {
    void *next = last;
    int result = gpufl_cupti.next_record(b->data, b->valid, &next);
    if (result == GPUFL_CUPTI_ERROR_MAX_LIMIT_REACHED) break;
    uint8_t *record = next;
    // Records are in ascending order. Anything else could lead outside the buffer, or loop forever.
    if (result != GPUFL_CUPTI_SUCCESS || record < b->data || end - record < 8 ||
        (last != NULL && record <= last)) {
      if (got == 0) return GPUFL_BROKEN;
      break; // the next call reports the same record
    }
    records[got++] = last = record;
  }
  *cursor = last;
  return got;
}

int gpufl_pending(void) {
  if (gpufl_is_child()) return 0;
  pthread_mutex_lock(&core.pool.lock);
  int n = (int)core.pool.pending;
  pthread_mutex_unlock(&core.pool.lock);
  return n;
}

void gpufl_get_stats(gpufl_stats *out) {
  memset(out, 0, sizeof *out);
  if (gpufl_is_child()) return;
  pthread_mutex_lock(&core.pool.lock);
  *out = core.pool.stats;
  out->allocated = core.pool.allocated;
  out->lent = core.pool.lent;
  pthread_mutex_unlock(&core.pool.lock);
  gpufl_scope_counts(&out->scopes_lost, &out->scopes_misplaced);
  gpufl_stacks_counts(&out->stacks_lost, &out->stacks_ns);
}

// ---- calls of application threads into CUPTI ----

bool gpufl_call_begin(void) {
  atomic_fetch_add(&core.inside, 1);
  if (atomic_load(&core.attached)) return true;
  atomic_fetch_sub(&core.inside, 1);
  return false;
}

void gpufl_call_end(void) { atomic_fetch_sub(&core.inside, 1); }

// nobody_inside waits until the calls end that began before attached became false. Those threads
// never wait for this one.
static void nobody_inside(void) {
  while (atomic_load(&core.inside) != 0) {
    struct timespec pause = {0, 20000};
    nanosleep(&pause, NULL);
  }
}

// ---- recording ----

int64_t gpufl_realtime(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// on_clock returns the time of all records, in nanoseconds since 1970.
static uint64_t on_clock(void) { return (uint64_t)gpufl_realtime(); }

// The kinds of copies and memsets. They are not disabled while such calls may be in flight: a
// thread of CUPTI then reads memory that the calling thread has freed. 7 of 12 processes crashed
// within 45 s (H200, CUPTI 13.0, test/gpu/deep/copies.c). Enabling them is safe.
enum { COPIES = 1u << GPUFL_KIND_MEMCPY | 1u << GPUFL_KIND_MEMCPY_P2P | 1u << GPUFL_KIND_MEMSET };

int gpufl_deep_unresponsive(void) { return atomic_load(&core.unresponsive); }

static int switch_kind(uint32_t activity, bool on) {
  if (gpufl_deep_unresponsive()) return GPUFL_UNRESPONSIVE;
  return on ? gpufl_cupti.activity_enable(activity) : gpufl_cupti.activity_disable(activity);
}

static bool starts_with(const char *name, const char *const *prefixes) {
  for (; *prefixes != NULL; prefixes++) {
    if (strncmp(name, *prefixes, strlen(*prefixes)) == 0) return true;
  }
  return false;
}

static void find_callbacks(void) {
  static const char *const kernel[] = {"cuLaunch", "cuGraphLaunch", NULL};
  static const char *const copy[] = {"cuMemcpy", "cuMemset", NULL};
  static const char *const memory[] = {
      "cuMemAlloc",   "cuMemFree",       "cuMemHostAlloc",   "cuMemCreate",
      "cuMemRelease", "cuMemPoolCreate", "cuMemPoolDestroy", NULL};
  static const char *const sync[] = {"cuEventSynchronize", "cuStreamSynchronize",
                                     "cuCtxSynchronize", "cuStreamWaitEvent", NULL};
  static const char *const module[] = {"cuModuleLoad", "cuModuleUnload", "cuLibraryLoad",
                                       "cuLibraryUnload", NULL};
  static const char *const capture_begins[] = {"cuStreamBeginCapture", NULL};
  static const char *const capture_ends[] = {"cuStreamEndCapture", NULL};
  if (core.callbacks.known) return;
  core.callbacks.known = true;
  int unknown = 0;
  // The numbers have few gaps. CUDA 13.5 has about 850 functions.
  for (int id = 1; id < MAX_CALLBACKS && unknown < 64; id++) {
    const char *name = NULL;
    if (gpufl_cupti.callback_name(GPUFL_CUPTI_CB_DOMAIN_DRIVER_API, (uint32_t)id, &name) !=
            GPUFL_CUPTI_SUCCESS ||
        name == NULL) {
      unknown++;
      continue;
    }
    unknown = 0;
    uint16_t sets = 0;
    if (starts_with(name, kernel)) sets = SET_KERNEL | SET_SCOPE | GPUFL_SET_LAUNCH;
    if (starts_with(name, copy)) sets = SET_SCOPE | GPUFL_SET_LAUNCH;
    if (starts_with(name, memory)) sets |= SET_SCOPE_MEMORY;
    if (starts_with(name, sync)) sets |= SET_SCOPE_SYNC;
    if (starts_with(name, module)) sets |= GPUFL_SET_MODULE;
    // The parameters of a capture for graphics are unknown here.
    bool known = strstr(name, "ToCig") == NULL;
    if (known && starts_with(name, capture_begins)) sets |= GPUFL_SET_CAPTURE | SET_CAPTURE_BEGINS;
    if (known && starts_with(name, capture_ends)) sets |= SET_CAPTURE_ENDS;
    core.callbacks.sets[id] = sets;
    if ((sets & SET_SCOPE) != 0 && core.callbacks.first_launch == 0) {
      core.callbacks.first_launch = id;
    }
  }
}

// update_callbacks enables the callbacks that are needed now and disables the others. It returns
// how many functions that launch are enabled. The caller holds callbacks.lock.
static int update_callbacks(void) {
  if (gpufl_deep_unresponsive()) return 0;
  // If windows are possible, these are on from the start: callbacks that are switched while
  // launches are in flight may be lost for some threads.
  uint32_t want = atomic_load(&core.resource_callbacks_on) ? GPUFL_SETS_ALL | SET_CAPTURE_ENDS : 0;
  if (core.settings.detach) want |= GPUFL_SET_CAPTURE | SET_CAPTURE_ENDS;
  if (atomic_load(&core.blocking)) want |= GPUFL_SET_LAUNCH;
  if (core.callbacks.scopes) {
    want |= SET_SCOPE;
    if (core.settings.kinds & (1u << GPUFL_KIND_MEMORY)) want |= SET_SCOPE_MEMORY;
    if (core.settings.kinds & (1u << GPUFL_KIND_SYNC)) want |= SET_SCOPE_SYNC;
  }
  int launch_callbacks = 0;
  for (int id = 1; id < MAX_CALLBACKS; id++) {
    bool enable = (core.callbacks.sets[id] & want) != 0;
    if (enable != core.callbacks.enabled[id] && core.subscriber != NULL &&
        gpufl_cupti.enable_callback(enable, core.subscriber, GPUFL_CUPTI_CB_DOMAIN_DRIVER_API,
                                    (uint32_t)id) == GPUFL_CUPTI_SUCCESS) {
      core.callbacks.enabled[id] = enable;
    }
    if (core.callbacks.enabled[id] && (core.callbacks.sets[id] & SET_SCOPE) != 0) {
      launch_callbacks++;
    }
  }
  return launch_callbacks;
}

static int want_scopes(bool want) {
  pthread_mutex_lock(&core.callbacks.lock);
  core.callbacks.scopes = want;
  int told = update_callbacks();
  pthread_mutex_unlock(&core.callbacks.lock);
  return told;
}

static __thread bool heard; // a callback arrived while the thread operated a window

bool gpufl_callbacks_alive(void) {
  if (gpufl_deep.driver.module_load == NULL) return false;
  void *module = NULL;
  heard = false;
  gpufl_deep.driver.module_load(&module, "/nonexistent/gpuflight");
  return heard;
}

void gpufl_mark_unresponsive(void) {
  atomic_store(&core.unresponsive, true);
  gpufl_barrier_next_epoch();
}

// reset_callbacks clears the state of callbacks after the subscription has ended.
static void reset_callbacks(void) {
  gpufl_barrier_next_epoch();
  pthread_mutex_lock(&core.callbacks.lock);
  memset(core.callbacks.enabled, 0, sizeof core.callbacks.enabled);
  core.callbacks.scopes = false;
  atomic_store(&core.blocking, false);
  pthread_mutex_unlock(&core.callbacks.lock);
}

void gpufl_watch_launches(void) {
  if (atomic_load_explicit(&core.launches, memory_order_relaxed) != 0 || !gpufl_call_begin()) {
    return;
  }
  if (atomic_load(&gpufl_state.running) && (core.settings.kinds & (1u << GPUFL_KIND_EXTERNAL))) {
    // A concurrent caller must not return before callbacks are enabled: its next call may be the
    // first launch. Only this function takes the lock, and no callback of CUPTI does.
    pthread_mutex_lock(&core.watching);
    if (atomic_load(&core.launches) == 0) {
      atomic_store(&core.launches, want_scopes(true) > 0 ? 1 : 2);
    }
    pthread_mutex_unlock(&core.watching);
  }
  gpufl_call_end();
}

bool gpufl_resource_callbacks_on(void) { return atomic_load(&core.resource_callbacks_on); }

static const uint32_t resources[] = {
    GPUFL_CUPTI_CBID_RESOURCE_CONTEXT_CREATED,
    GPUFL_CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING,
    GPUFL_CUPTI_CBID_RESOURCE_STREAM_DESTROY_STARTING,
    GPUFL_CUPTI_CBID_RESOURCE_MODULE_LOADED,
    GPUFL_CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING,
    GPUFL_CUPTI_CBID_RESOURCE_MODULE_PROFILED,
};

// enable_resource_callbacks enables the callbacks that windows need. It may be called again after
// CUPTI was finalized.
static void enable_resource_callbacks(void) {
  if (!core.settings.deep || atomic_load(&core.resource_callbacks_on) || core.subscriber == NULL ||
      gpufl_cupti.enable_callback == NULL || gpufl_cupti.callback_name == NULL) {
    return;
  }
  gpufl_resources_open(core.settings.cubin_bytes);
  find_callbacks();
  gpufl_barrier_next_epoch(); // calls of an earlier subscription do not count
  atomic_store(&core.resource_callbacks_on, true);
  bool all = true;
  for (size_t i = 0; i < sizeof resources / sizeof *resources; i++) {
    all = gpufl_cupti.enable_callback(1, core.subscriber, GPUFL_CUPTI_CB_DOMAIN_RESOURCE,
                                      resources[i]) == GPUFL_CUPTI_SUCCESS &&
          all;
  }
  pthread_mutex_lock(&core.callbacks.lock);
  update_callbacks();
  pthread_mutex_unlock(&core.callbacks.lock);
  gpufl_deep_watch_exit();
  if (!all) atomic_store(&core.resource_callbacks_on, false);
}

// on_api receives all callbacks, on the thread that makes the call: at the begin and the end of the
// enabled driver functions and, for windows, for contexts and modules. It is on the launch path.
static void on_api(void *user, uint32_t domain, uint32_t cbid, const void *data) {
  (void)user;
  if (gpufl_is_child() || data == NULL) return;
  if (gpufl_operating) heard = true;
  if (domain == GPUFL_CUPTI_CB_DOMAIN_RESOURCE) {
    if (atomic_load(&core.resource_callbacks_on)) gpufl_on_resource(cbid, data);
    return;
  }
  const gpufl_callback_data *call = data;
  uint32_t sets = cbid < MAX_CALLBACKS ? core.callbacks.sets[cbid] : 0;
  uint32_t gateable = sets & (GPUFL_SET_LAUNCH | GPUFL_SET_MODULE | GPUFL_SET_CAPTURE);
  if (call->callbackSite == GPUFL_CUPTI_API_ENTER) {
    if (gateable != 0) {
      uint32_t epoch = gpufl_barrier_epoch(); // before it is read whether windows are possible
      if (atomic_load(&core.resource_callbacks_on) || atomic_load(&core.blocking)) {
        gpufl_barrier_enter(gateable, epoch, cbid, call->correlationId);
      }
    }
    if (atomic_load_explicit(&core.launches, memory_order_relaxed) == 1 &&
        (sets & (SET_SCOPE | SET_SCOPE_MEMORY | SET_SCOPE_SYNC)) != 0) {
      gpufl_scope_launch(call->correlationId);
      if ((sets & SET_SCOPE) != 0) gpufl_stacks_launch(call->correlationId, call->symbolName);
    }
    return;
  }
  if (call->callbackSite != GPUFL_CUPTI_API_EXIT) return;
  if ((sets & (SET_CAPTURE_BEGINS | SET_CAPTURE_ENDS)) != 0) {
    gpufl_on_capture((sets & SET_CAPTURE_BEGINS) != 0, call);
  }
  if ((sets & SET_KERNEL) != 0 && gpufl_deep_patches()) {
    gpufl_window_count(&gpufl_deep.counts.launched, 1);
  }
  if (gateable != 0) gpufl_barrier_exit(gateable, call->correlationId);
  if (!atomic_load_explicit(&core.finalizing, memory_order_acquire) ||
      !pthread_equal(pthread_self(), core.finalizer)) {
    return;
  }
  atomic_store(&core.finalizing, false);
  gpufl_cupti.unsubscribe(core.subscriber);
  core.subscriber = NULL;
  core.finalize_result = gpufl_cupti.finalize();
}

static int subscribe(void) {
  if (core.subscriber != NULL) return GPUFL_OK;
  core.used = true;
  void *handle = NULL;
  int result = gpufl_cupti.subscribe(&handle, on_api, NULL);
  if (result == GPUFL_CUPTI_SUCCESS) core.subscriber = handle;
  return result;
}

int gpufl_probe(void) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (core.library == NULL) return GPUFL_NO_LIBRARY;
  if (core.pool.opened) return GPUFL_BUSY;
  int result = subscribe();
  if (result == GPUFL_OK) {
    gpufl_cupti.unsubscribe(core.subscriber);
    core.subscriber = NULL;
  }
  return result;
}

int gpufl_open(const gpufl_config *config) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (core.library == NULL) return GPUFL_NO_LIBRARY;
  if (core.pool.opened) return GPUFL_BUSY;
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  if (config->buffers == 0 || config->buffers > GPUFL_MAX_BUFFERS || config->buffer_bytes == 0 ||
      config->buffer_bytes > SIZE_MAX / 2) {
    return GPUFL_BAD_VALUE;
  }
  gpufl_watch_fork();
  int result = subscribe();
  if (result != GPUFL_OK) return result;
  result = gpufl_scope_open();
  if (result != GPUFL_OK) {
    gpufl_cupti.unsubscribe(core.subscriber);
    core.subscriber = NULL;
    return result;
  }
  core.settings = *config;
  enable_resource_callbacks();
  pthread_mutex_lock(&core.pool.lock);
  core.pool.bytes = (config->buffer_bytes + page - 1) / page * page;
  core.pool.limit = config->buffers;
  core.pool.opened = true;
  core.pool.stopped = core.pool.stale = false;
  atomic_store(&core.pool.lends, false);
  core.pool.zero = false;
  memset(&core.pool.stats, 0, sizeof core.pool.stats);
  pthread_mutex_unlock(&core.pool.lock);
  return GPUFL_OK;
}

// set_byte sets an attribute of one byte. It returns false if the library does not know it.
static bool set_byte(uint32_t attribute, uint8_t value) {
  size_t size = sizeof value;
  return gpufl_cupti.set_attribute != NULL &&
         gpufl_cupti.set_attribute(attribute, &size, &value) == GPUFL_CUPTI_SUCCESS;
}

// flush_all requests the complete records. It does nothing while kernels are patched, unless the
// window permits activity. All kernel records were flushed before the window, the others can wait,
// and CUPTI must not run next to launches that it patches.
static int flush_all(uint32_t flag) {
  return gpufl_deep_patches() && !gpufl_deep.config.with_activity ? GPUFL_OK
                                                                  : gpufl_cupti.flush_all(flag);
}

static uint32_t held_by_cupti(void) {
  pthread_mutex_lock(&core.pool.lock);
  uint32_t lent = core.pool.lent;
  pthread_mutex_unlock(&core.pool.lock);
  return lent;
}

// take_back flushes until CUPTI holds no buffer, or the time is over.
static int take_back(int64_t limit_ns) {
  int64_t until = gpufl_monotonic() + limit_ns;
  for (;;) {
    int result = flush_all(0);
    if (result != GPUFL_OK || held_by_cupti() == 0 || gpufl_monotonic() >= until) return result;
    gpufl_nap(5000000);
  }
}
// LAST_NS is for incomplete records at the end of recording, RECLAIM_NS for those at the next
// start.
#define LAST_NS ((int64_t)300000000)
#define RECLAIM_NS ((int64_t)100000000)

// disable_all disables callbacks before kinds. When CUPTI stops recording kernels it removes its
// hooks from launches. Threads that launch at that moment, or wait in a callback, get no callbacks
// any more. While it still records kernels, waiting threads keep their callbacks (H200, CUDA 13.0).
// With rest no copy is in flight, and all kinds can be disabled.
static void disable_all(bool rest) {
  if (atomic_exchange(&core.launches, 0) == 1) want_scopes(false);
  for (int i = 0; i < NUM_ACTIVITIES; i++) {
    if (!core.activity_on[i]) continue;
    core.left[i] = !rest && (COPIES & 1u << activities[i].kind) != 0;
    if (!core.left[i]) switch_kind(activities[i].activity, false);
    core.activity_on[i] = false;
  }
}

// disable_left disables kinds that the next session does not want. CUPTI has no buffer, so it has
// no record of a copy in flight.
static void disable_left(void) {
  for (int i = 0; i < NUM_ACTIVITIES; i++) {
    if (core.left[i] && (core.settings.kinds & 1u << activities[i].kind) == 0) {
      switch_kind(activities[i].activity, false);
    }
    core.left[i] = false;
  }
}

// prepare registers our buffers and our clock with CUPTI, again after each time CUPTI was
// finalized.
static int prepare(void) {
  // With one buffer for each thread, a program with many threads would use the whole pool for
  // nearly empty buffers. So all threads share one buffer.
  set_byte(GPUFL_CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER, 0);
  // Buffers that were in use before are zero too: gpufl_release cleared or unmapped them.
  bool zero = set_byte(GPUFL_CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, 1);
  bool own_clock = gpufl_cupti.register_clock != NULL &&
                   gpufl_cupti.register_clock(on_clock) == GPUFL_CUPTI_SUCCESS;
  pthread_mutex_lock(&core.pool.lock);
  core.pool.zero = zero;
  core.pool.own_clock = own_clock;
  core.pool.stopped = false;
  pthread_mutex_unlock(&core.pool.lock);
  int result = gpufl_cupti.register_callbacks(on_request, on_complete);
  if (result == GPUFL_CUPTI_SUCCESS) atomic_store(&core.attached, true); // a flush before fails
  return result;
}

// begin_lending first takes back the buffers that CUPTI kept at the end of the session before.
// Their content is dropped: gpufl_stats.unreturned counts these buffers already.
static void begin_lending(void) {
  pthread_mutex_lock(&core.pool.lock);
  core.pool.stale = true;
  pthread_mutex_unlock(&core.pool.lock);
  if (held_by_cupti() > 0) take_back(RECLAIM_NS);
  disable_left();
  pthread_mutex_lock(&core.pool.lock);
  core.pool.stale = false;
  atomic_store(&core.pool.lends, true);
  pthread_mutex_unlock(&core.pool.lock);
  size_t between = 0; // dropped between sessions; queried last, so that it does not count here
  gpufl_cupti.num_dropped(NULL, 0, &between);
}

// enable_kinds enables the kinds of the settings. It returns CUPTI's first error if no kind works.
static int enable_kinds(uint32_t *enabled, int *refusal) {
  uint32_t refused = 0;
  for (int i = 0; i < NUM_ACTIVITIES; i++) {
    uint32_t bit = 1u << activities[i].kind;
    if ((core.settings.kinds & bit) == 0) continue;
    // With GRAPH_TRACE CUPTI has no records of the nodes of a graph.
    if (activities[i].activity == GPUFL_CUPTI_ACTIVITY_KIND_GRAPH_TRACE &&
        core.settings.graph_nodes) {
      continue;
    }
    int answer = switch_kind(activities[i].activity, true);
    if (answer == GPUFL_CUPTI_SUCCESS) {
      core.activity_on[i] = true;
      *enabled |= bit;
    } else {
      refused |= bit;
      if (*refusal == GPUFL_OK) *refusal = answer;
    }
  }
  *enabled &= ~refused; // a kind of which a half is rejected counts as rejected
  if (*enabled == 0 && *refusal != GPUFL_OK) return *refusal;
  *enabled |= core.settings.kinds & (1u << GPUFL_KIND_NVTX);
  return GPUFL_OK;
}

// learn_callbacks finds the functions for scopes and captures and returns whether scopes work. It
// runs once in a session: with a new CUPTI, threads that launched while callbacks were switched off
// got no callbacks any more (H200, CUDA 13.0).
static bool learn_callbacks(void) {
  if (gpufl_cupti.enable_callback == NULL || gpufl_cupti.callback_name == NULL) return false;
  find_callbacks();
  uint32_t id = (uint32_t)core.callbacks.first_launch;
  if (id == 0) return false;
  // One function is enough for the probe. The others stay off until there is a scope.
  return gpufl_cupti.enable_callback(1, core.subscriber, GPUFL_CUPTI_CB_DOMAIN_DRIVER_API, id) ==
             GPUFL_CUPTI_SUCCESS &&
         gpufl_cupti.enable_callback(0, core.subscriber, GPUFL_CUPTI_CB_DOMAIN_DRIVER_API, id) ==
             GPUFL_CUPTI_SUCCESS;
}

// BLOCK_NAP_NS covers a launch that began before callbacks were enabled. A launch takes
// microseconds, and a millisecond if the driver loads code. BLOCK_LIMIT_NS bounds the delay of the
// application.
#define BLOCK_NAP_NS ((int64_t)2000000)
#define BLOCK_LIMIT_NS ((int64_t)100000000)

// block_launches blocks launches until gpufl_barrier_open. It returns false, with the barrier open,
// if a launch did not end in time.
static bool block_launches(void) {
  if (!core.callbacks.known) return false;
  pthread_mutex_lock(&core.callbacks.lock);
  atomic_store(&core.blocking, true);
  update_callbacks();
  pthread_mutex_unlock(&core.callbacks.lock);
  gpufl_nap(BLOCK_NAP_NS); // launches that began before callbacks were enabled end
  return gpufl_barrier_close(GPUFL_SET_LAUNCH, BLOCK_LIMIT_NS);
}

int gpufl_start(uint32_t *enabled, int *refusal) {
  *enabled = 0;
  *refusal = GPUFL_OK;
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (!core.pool.opened) return GPUFL_CLOSED;
  bool resumes = atomic_load(&gpufl_state.running); // the session continues
  if (resumes && !core.suspended) return GPUFL_BUSY;
  if (gpufl_deep_unresponsive()) return GPUFL_UNRESPONSIVE;
  int result = subscribe();
  if (result != GPUFL_OK) return result;
  enable_resource_callbacks();
  memset(core.paused, 0, sizeof core.paused);
  core.pausing = false;

  if (resumes && atomic_load(&core.attached)) {
    // CUPTI was not finalized: it still has our buffers and callbacks.
    memset(core.left, 0, sizeof core.left);
    atomic_store(&core.pool.lends, true);
  } else {
    result = prepare();
    if (result != GPUFL_OK) goto failed;
    begin_lending();
  }
  if (!resumes) core.scopes_work = learn_callbacks();
  if (core.settings.detach && core.callbacks.known) want_scopes(false); // and captures
  // Before the first record, so that every recorded launch has its scope.
  if (resumes) gpufl_stacks_suspend(false);
  if (resumes && (gpufl_scope_any() || gpufl_stacks_on())) gpufl_watch_launches();
  bool blocked = resumes && block_launches();
  result = enable_kinds(enabled, refusal);
  if (blocked) gpufl_barrier_open();
  if (result != GPUFL_OK) goto failed;
  if (core.scopes_work) *enabled |= core.settings.kinds & (1u << GPUFL_KIND_EXTERNAL);
  core.suspended = false;
  if (resumes) return GPUFL_OK;
  atomic_store(&gpufl_state.requested_kinds, core.settings.kinds);
  gpufl_scope_start();
  atomic_fetch_add(&gpufl_state.session, 1);
  atomic_store(&gpufl_state.running, true);
  if (core.settings.stacks && core.scopes_work) gpufl_stacks_start();
  // Scopes that were opened earlier apply from now on.
  if (gpufl_scope_any() || gpufl_stacks_on()) gpufl_watch_launches();
  return GPUFL_OK;

failed:
  disable_all(false);
  atomic_store(&core.pool.lends, false);
  if (resumes) {
    atomic_store(&core.attached, false); // so that the next gpufl_start prepares CUPTI again
    return result;
  }
  pthread_mutex_lock(&core.pool.lock);
  core.pool.stopped = true;
  pthread_mutex_unlock(&core.pool.lock);
  pthread_cond_broadcast(&core.ready_cond);
  return result;
}

bool gpufl_activity(void) {
  for (int i = 0; i < NUM_ACTIVITIES; i++) {
    if (core.activity_on[i]) return true;
  }
  return false;
}

int gpufl_pause(void) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (!atomic_load(&gpufl_state.running)) return GPUFL_STOPPED;
  if (gpufl_deep_unresponsive()) return GPUFL_UNRESPONSIVE;
  // A window would be rejected, and captured work does not run.
  if (gpufl_captures() > 0) return GPUFL_CAPTURE;
  gpufl_window_comes();
  int quiet = gpufl_quiesce_begin(GPUFL_QUIESCE_CALLS_NS);
  if (quiet < 0) return quiet;
  int result = GPUFL_OK;
  for (int i = 0; i < NUM_ACTIVITIES; i++) {
    if (!core.activity_on[i]) continue;
    int answer = switch_kind(activities[i].activity, false);
    if (answer == GPUFL_CUPTI_SUCCESS) {
      core.activity_on[i] = false;
      core.paused[i] = true;
    } else if (result == GPUFL_OK) {
      result = answer;
    }
  }
  core.pausing = true;
  gpufl_quiesce_end(quiet);
  int flushed = flush_all(0);
  return result == GPUFL_OK ? flushed : result;
}

int gpufl_resume(uint32_t *lost) {
  *lost = 0;
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (!atomic_load(&gpufl_state.running)) return GPUFL_STOPPED;
  if (!core.pausing) return GPUFL_OK;
  if (gpufl_deep_patches() && !gpufl_deep.config.with_activity) return GPUFL_ACTIVITY;
  int quiet = gpufl_quiesce_begin(GPUFL_QUIESCE_CALLS_NS);
  if (quiet < 0) return quiet;
  int result = GPUFL_OK;
  core.pausing = false;
  for (int i = 0; i < NUM_ACTIVITIES; i++) {
    if (!core.paused[i]) continue;
    core.paused[i] = false;
    int answer = switch_kind(activities[i].activity, true);
    if (answer == GPUFL_CUPTI_SUCCESS) {
      core.activity_on[i] = true;
    } else {
      *lost |= 1u << activities[i].kind;
      if (result == GPUFL_OK) result = answer;
    }
  }
  gpufl_quiesce_end(quiet);
  return result;
}

static int flush(void) {
  // A detached CUPTI holds no records.
  if (!gpufl_call_begin()) return atomic_load(&gpufl_state.running) ? GPUFL_OK : GPUFL_STOPPED;
  int result = GPUFL_STOPPED;
  if (atomic_load(&gpufl_state.running)) {
    result = flush_all(0);
  }
  gpufl_call_end();
  return result;
}

bool gpufl_flush_lock(int64_t until) {
  while (pthread_mutex_trylock(&core.flushing) != 0) {
    if (gpufl_monotonic() >= until) return false;
    gpufl_nap(200000);
  }
  return true;
}

void gpufl_flush_begin(void) {
  if (!atomic_load(&gpufl_state.running) || !atomic_load(&core.attached)) return;
  // A thread of CUPTI processes the flushed records, and CUPTI does not report when it has
  // finished. The second flush waits for the first.
  for (int i = 0; i < 2; i++) {
    flush_all(0);
    gpufl_nap(20000000);
  }
}

void gpufl_flush_end(void) { pthread_mutex_unlock(&core.flushing); }

int gpufl_flush(void) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  // A window has just flushed, and new records can wait until it ends.
  if (pthread_mutex_trylock(&core.flushing) != 0) return GPUFL_OK;
  int result = flush();
  pthread_mutex_unlock(&core.flushing);
  return result;
}

static void end_lending(void) {
  count_dropped();
  pthread_mutex_lock(&core.dropping);
  atomic_store(&core.pool.lends, false);
  pthread_mutex_unlock(&core.dropping);
}

int gpufl_suspend(int64_t limit_ns) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (!atomic_load(&gpufl_state.running)) return GPUFL_STOPPED;
  if (core.suspended) return GPUFL_OK;
  if (!core.settings.detach || core.settings.deep || gpufl_deep_unresponsive()) {
    return GPUFL_NOT_DETACHED;
  }
  if (gpufl_captures() > 0) return GPUFL_CAPTURE;
  core.suspended = true;
  gpufl_stacks_suspend(true);
  bool blocked = block_launches();
  disable_all(false); // a copy may be in flight on the device
  if (blocked) gpufl_barrier_open();
  end_lending();
  int result = take_back(limit_ns);
  return result == GPUFL_OK && held_by_cupti() > 0 ? GPUFL_TIMEOUT : result;
}

int gpufl_stop(void) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (!core.pool.opened) return GPUFL_CLOSED;
  if (!atomic_exchange(&gpufl_state.running, false)) return GPUFL_STOPPED;
  gpufl_stacks_stop();
  nobody_inside();
  int result = GPUFL_OK;
  if (!core.suspended) {
    int quiet = gpufl_quiesce_begin(GPUFL_QUIESCE_CALLS_NS);
    if (quiet >= 0) disable_all(quiet == 1); // else they stay on, and the program goes on
    end_lending();
    if (atomic_load(&core.attached)) {
      result = quiet == 1 ? flush_all(GPUFL_CUPTI_ACTIVITY_FLAG_FLUSH_FORCED) : take_back(LAST_NS);
    }
    gpufl_quiesce_end(quiet);
  }
  core.suspended = false;
  pthread_mutex_lock(&core.pool.lock);
  core.pool.stats.unreturned += core.pool.lent;
  core.pool.stopped = true;
  pthread_mutex_unlock(&core.pool.lock);
  pthread_cond_broadcast(&core.ready_cond);
  return result;
}

// leave detaches CUPTI. The caller has cleared attached and called nobody_inside.
static int leave(void) {
  int result = GPUFL_NOT_DETACHED;
  if (gpufl_cupti.finalize != NULL && gpufl_cupti.enable_callback != NULL && gpufl_driver_ready() &&
      core.subscriber != NULL) {
    // cuptiFinalize is safe only at the exit of a driver call, where no call is incomplete. These
    // two calls do nothing. The second one is for drivers that do not report the first.
    static const uint32_t calls[] = {GPUFL_CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion,
                                     GPUFL_CUPTI_DRIVER_TRACE_CBID_cuDeviceGetCount};
    core.finalizer = pthread_self();
    for (int i = 0; i < 2 && result == GPUFL_NOT_DETACHED; i++) {
      if (gpufl_cupti.enable_callback(1, core.subscriber, GPUFL_CUPTI_CB_DOMAIN_DRIVER_API,
                                      calls[i]) != GPUFL_CUPTI_SUCCESS) {
        continue;
      }
      atomic_store(&core.finalizing, true);
      int ignored = 0;
      if (i == 0) {
        gpufl_driver.driver_version(&ignored);
      } else {
        gpufl_driver.device_count(&ignored);
      }
      if (atomic_exchange(&core.finalizing, false)) {
        gpufl_cupti.enable_callback(0, core.subscriber, GPUFL_CUPTI_CB_DOMAIN_DRIVER_API, calls[i]);
      } else {
        result = core.finalize_result;
      }
    }
  }
  if (core.subscriber == NULL) {
    atomic_store(&core.resource_callbacks_on, false);
    reset_callbacks();
    gpufl_resources_lose();
  }
  if (result == GPUFL_OK) {
    memset(core.left, 0, sizeof core.left);
    // Correlation ids restart (H200, CUDA 13.0), and all records with old ones have been read.
    gpufl_scope_forget();
    atomic_fetch_add(&core.attachments, 1);
  }
  return result;
}

int gpufl_finalize(void) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (!core.pool.opened) return GPUFL_CLOSED;
  if (atomic_load(&gpufl_state.running) && !core.suspended) return GPUFL_BUSY;
  if (gpufl_deep_armed()) return GPUFL_NOT_DETACHED; // the window needs CUPTI
  if (core.subscriber == NULL) return GPUFL_OK;           // detached already
  if (!atomic_exchange(&core.attached, false)) return GPUFL_STOPPED;
  nobody_inside();
  int result = leave();
  if (result != GPUFL_OK) atomic_store(&core.attached, true);
  return result;
}

bool gpufl_suspended(void) { return core.suspended; }

uint32_t gpufl_attachment(void) { return atomic_load(&core.attachments); }

int gpufl_close(void) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (!core.pool.opened) return GPUFL_CLOSED;
  if (atomic_load(&gpufl_state.running)) return GPUFL_BUSY;
  atomic_store(&core.attached, false);
  nobody_inside();
  atomic_store(&core.resource_callbacks_on, false);
  // After a window was given up, CUPTI may still be in that call: do not call it.
  if (core.subscriber != NULL && !gpufl_deep_is_given_up()) {
    gpufl_cupti.unsubscribe(core.subscriber);
    core.subscriber = NULL;
    reset_callbacks();
  }
  gpufl_resources_close();
  gpufl_buffer *gone = NULL;
  pthread_mutex_lock(&core.pool.lock);
  core.pool.opened = false;
  for (uint32_t i = 0; i < core.pool.allocated;) {
    gpufl_buffer *b = core.pool.all[i];
    if (b->state != IN_POOL && b->state != READY) {
      i++;
      continue;
    }
    core.pool.all[i] = core.pool.all[--core.pool.allocated];
    b->next = gone;
    gone = b;
  }
  core.pool.unused = core.pool.head = core.pool.tail = NULL;
  core.pool.pending = 0;
  pthread_mutex_unlock(&core.pool.lock);
  pthread_cond_broadcast(&core.ready_cond);
  while (gone != NULL) {
    gpufl_buffer *next = gone->next;
    destroy(gone);
    gone = next;
  }
  return GPUFL_OK;
}
