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

#include "gpufl_internal.h"

gpufl_cupti_calls gpufl_cupti;
atomic_bool gpufl_child;
atomic_bool gpufl_running;
_Atomic uint32_t gpufl_session;
_Atomic uint32_t gpufl_asked;

// ---- fork ----

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_cond_t ready_cond;

static void in_child(void) { atomic_store(&gpufl_child, true); }

static void first(void) {
  pthread_atfork(NULL, NULL, in_child);
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&ready_cond, &attributes);
  pthread_condattr_destroy(&attributes);
}

void gpufl_watch_fork(void) { pthread_once(&once, first); }

// ---- the library ----

#define SYMBOL_REQUIRED(field, symbol, parameters) {#symbol, offsetof(gpufl_cupti_calls, field), true},
#define SYMBOL_OPTIONAL(field, symbol, parameters) {#symbol, offsetof(gpufl_cupti_calls, field), false},
static const gpufl_symbol cupti_symbols[] = {GPUFL_CUPTI_REQUIRED(SYMBOL_REQUIRED) GPUFL_CUPTI_OPTIONAL(SYMBOL_OPTIONAL)};

static void *library;
static uint32_t version;

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
  if (library != NULL) {
    // dlopen answers with the same handle for the same library, whatever the path.
    int result = handle == library ? GPUFL_OK : GPUFL_BUSY;
    dlclose(handle);
    return result;
  }
  gpufl_cupti_calls calls;
  if (!gpufl_resolve(handle, &calls, cupti_symbols, sizeof cupti_symbols / sizeof *cupti_symbols, error)) {
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
  version = number;
  library = handle;
  return GPUFL_OK;
}

// used: CUPTI was asked for more than its version.
static bool used;

int gpufl_unload(void) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (used) return GPUFL_BUSY;
  if (library != NULL) dlclose(library);
  library = NULL;
  version = 0;
  return GPUFL_OK;
}

uint32_t gpufl_version(void) { return version; }

const char *gpufl_result_string(int result) {
  const char *text = NULL;
  if (gpufl_is_child() || library == NULL || gpufl_cupti.result_string(result, &text) != GPUFL_CUPTI_SUCCESS || text == NULL) {
    return "unknown result";
  }
  return text;
}

// ---- the pool ----

// A buffer has one owner at a time: the pool, then CUPTI, then the queue, then the consumer.
enum { IN_POOL, LENT, READY, TAKEN };

// pool.lock is held for a few instructions only, and never while CUPTI or the kernel is called: CUPTI
// calls back with locks of its own held, which it also takes when we call it.
static struct {
  pthread_mutex_t lock;
  gpufl_buffer *all[GPUFL_MAX_BUFFERS];
  uint32_t allocated; // in all
  uint32_t coming;    // being allocated
  uint32_t lent;
  uint32_t limit;
  size_t bytes;
  gpufl_buffer *unused;        // a stack: the one used last is still in the caches
  gpufl_buffer *head, *tail;   // the queue of completed ones
  uint32_t pending;
  bool opened, stopped, zero;
  bool own_clock;
  gpufl_stats stats;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

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

// forget takes b out of the list of all. The caller has the lock, and destroys b without it.
static void forget(gpufl_buffer *b) {
  for (uint32_t i = 0; i < pool.allocated; i++) {
    if (pool.all[i] == b) {
      pool.all[i] = pool.all[--pool.allocated];
      return;
    }
  }
}

// put gives b, which nobody owns, to the pool, or says that it must be destroyed. The caller has the
// lock.
static bool put(gpufl_buffer *b) {
  if (!pool.opened || b->size != pool.bytes || pool.allocated > pool.limit) {
    forget(b);
    return false;
  }
  b->state = IN_POOL;
  b->next = pool.unused;
  pool.unused = b;
  return true;
}

// on_request is CUPTI's question for an empty buffer. In the steady state it only moves a pointer.
static void on_request(uint8_t **data, size_t *size, size_t *max_records) {
  *data = NULL;
  *size = 0;
  *max_records = 0; // as many as fit
  if (gpufl_is_child()) return;
  pthread_mutex_lock(&pool.lock);
  gpufl_buffer *b = NULL;
  if (pool.opened) {
    b = pool.unused;
    if (b != NULL) {
      pool.unused = b->next;
    } else if (pool.allocated + pool.coming < pool.limit) {
      pool.coming++;
      size_t bytes = pool.bytes;
      pthread_mutex_unlock(&pool.lock);
      b = allocate(bytes, 0);
      pthread_mutex_lock(&pool.lock);
      pool.coming--;
      if (b != NULL) pool.all[pool.allocated++] = b;
    }
    if (b != NULL) {
      b->state = LENT;
      b->next = NULL;
      pool.lent++;
      pool.stats.requests++;
    } else {
      pool.stats.refused++;
    }
  }
  pthread_mutex_unlock(&pool.lock);
  if (b != NULL) {
    *data = b->data;
    *size = b->size;
  }
}

static atomic_bool attached;

// count_dropped asks CUPTI for what it could not keep since it was asked last.
static void count_dropped(void) {
  if (!atomic_load(&attached)) return;
  size_t n = 0;
  if (gpufl_cupti.num_dropped(NULL, 0, &n) != GPUFL_CUPTI_SUCCESS || n == 0) return;
  pthread_mutex_lock(&pool.lock);
  pool.stats.dropped += n;
  pthread_mutex_unlock(&pool.lock);
}

// on_complete is CUPTI giving a buffer back.
static void on_complete(void *context, uint32_t stream, uint8_t *data, size_t size, size_t valid) {
  (void)context;
  (void)stream;
  (void)size;
  if (gpufl_is_child() || data == NULL) return;
  gpufl_buffer *b = NULL;
  bool keep = true;
  pthread_mutex_lock(&pool.lock);
  for (uint32_t i = 0; i < pool.allocated; i++) {
    if (pool.all[i]->data == data && pool.all[i]->state == LENT) {
      b = pool.all[i];
      break;
    }
  }
  if (b == NULL) {
    // Lent by another profiler that registered its callbacks before ours.
    pool.stats.foreign++;
  } else {
    pool.stats.completed++;
    pool.lent--;
    b->valid = valid < b->size ? valid : b->size;
    b->next = NULL;
    if (pool.opened) {
      b->state = READY;
      if (pool.tail != NULL) {
        pool.tail->next = b;
      } else {
        pool.head = b;
      }
      pool.tail = b;
      pool.pending++;
    } else {
      keep = put(b);
    }
  }
  pthread_mutex_unlock(&pool.lock);
  if (!keep) {
    destroy(b);
  } else if (b != NULL) {
    pthread_cond_signal(&ready_cond);
  }
  count_dropped();
}

// spare allocates a buffer ahead of CUPTI's question, with its pages, so that the program's thread
// need not: it is called on the consumer's.
static void spare(void) {
  pthread_mutex_lock(&pool.lock);
  bool wanted = pool.opened && !pool.stopped && pool.lent > 0 && pool.unused == NULL && pool.allocated + pool.coming < pool.limit;
  size_t bytes = pool.bytes;
  if (wanted) pool.coming++;
  pthread_mutex_unlock(&pool.lock);
  if (!wanted) return;
  gpufl_buffer *b = allocate(bytes, MAP_POPULATE);
  bool keep = true;
  pthread_mutex_lock(&pool.lock);
  pool.coming--;
  if (b != NULL) {
    pool.all[pool.allocated++] = b;
    keep = put(b);
  }
  pthread_mutex_unlock(&pool.lock);
  if (!keep) destroy(b);
}

int gpufl_wait(int64_t nanoseconds) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  gpufl_watch_fork();
  spare();
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  if (nanoseconds < 0) nanoseconds = 0;
  until.tv_sec += nanoseconds / 1000000000;
  until.tv_nsec += nanoseconds % 1000000000;
  if (until.tv_nsec >= 1000000000) {
    until.tv_sec++;
    until.tv_nsec -= 1000000000;
  }
  int result = GPUFL_OK;
  pthread_mutex_lock(&pool.lock);
  while (pool.head == NULL) {
    if (!pool.opened || pool.stopped) {
      result = GPUFL_END;
      break;
    }
    if (pthread_cond_timedwait(&ready_cond, &pool.lock, &until) == ETIMEDOUT && pool.head == NULL) {
      result = !pool.opened || pool.stopped ? GPUFL_END : GPUFL_TIMEOUT;
      break;
    }
  }
  pthread_mutex_unlock(&pool.lock);
  return result;
}

// measure_anchor finds how far CUPTI's clock is behind ours, for a library that does not take ours:
// the pair of readings that lie closest together of several.
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

static _Atomic int64_t last_anchor;

static int64_t anchor(void) {
  if (pool.own_clock) return 0;
  // The clocks drift apart, so each buffer gets a new measurement.
  if (gpufl_cupti.get_timestamp != NULL && gpufl_enter()) {
    atomic_store(&last_anchor, measure_anchor());
    gpufl_leave();
  }
  return atomic_load(&last_anchor);
}

int gpufl_take(gpufl_buffer **out) {
  *out = NULL;
  if (gpufl_is_child()) return GPUFL_FORKED;
  for (;;) {
    pthread_mutex_lock(&pool.lock);
    gpufl_buffer *b = pool.head;
    int result = GPUFL_OK;
    if (b != NULL) {
      pool.head = b->next;
      if (pool.head == NULL) pool.tail = NULL;
      pool.pending--;
      b->next = NULL;
      b->state = TAKEN;
    } else {
      result = !pool.opened || pool.stopped ? GPUFL_END : GPUFL_TIMEOUT;
    }
    pthread_mutex_unlock(&pool.lock);
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
  // CUPTI was told that it gets zeroed buffers; else it zeroes them on the program's thread. All of
  // it, since nothing says that CUPTI wrote no more than what it calls valid.
  if (pool.zero) memset(b->data, 0, b->size);
  pthread_mutex_lock(&pool.lock);
  b->valid = 0;
  bool keep = put(b);
  pthread_mutex_unlock(&pool.lock);
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
    // Records follow each other; anything else would have us read elsewhere, or for ever.
    if (result != GPUFL_CUPTI_SUCCESS || record < b->data || end - record < 8 || (last != NULL && record <= last)) {
      if (got == 0) return GPUFL_BROKEN;
      break; // the next call comes to the same place
    }
    records[got++] = last = record;
  }
  *cursor = last;
  return got;
}

int gpufl_pending(void) {
  if (gpufl_is_child()) return 0;
  pthread_mutex_lock(&pool.lock);
  int n = (int)pool.pending;
  pthread_mutex_unlock(&pool.lock);
  return n;
}

void gpufl_get_stats(gpufl_stats *out) {
  memset(out, 0, sizeof *out);
  if (gpufl_is_child()) return;
  pthread_mutex_lock(&pool.lock);
  *out = pool.stats;
  out->allocated = pool.allocated;
  out->lent = pool.lent;
  pthread_mutex_unlock(&pool.lock);
  gpufl_scope_counts(&out->scopes_lost, &out->scopes_misplaced);
}

// ---- the application's threads inside CUPTI ----

static _Atomic uint32_t inside;

bool gpufl_enter(void) {
  atomic_fetch_add(&inside, 1);
  if (atomic_load(&attached)) return true;
  atomic_fetch_sub(&inside, 1);
  return false;
}

void gpufl_leave(void) { atomic_fetch_sub(&inside, 1); }

// nobody_inside waits for those who came before a flag fell; they do not wait for us.
static void nobody_inside(void) {
  while (atomic_load(&inside) != 0) {
    struct timespec pause = {0, 20000};
    nanosleep(&pause, NULL);
  }
}

// ---- life ----

int64_t gpufl_realtime(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// on_clock is the clock of all records.
static uint64_t on_clock(void) { return (uint64_t)gpufl_realtime(); }

// The activity kinds of CUPTI that make up each of ours. NVTX is ours alone, and so are scopes: CUPTI's
// records of EXTERNAL_CORRELATION come only with those of host calls (RUNTIME, DRIVER), which cost more
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

static gpufl_config settings;
static void *subscriber;
static bool activity_on[NUM_ACTIVITIES];

// launches is 0 while CUPTI does not tell of launches, 1 when it does, 2 if it cannot.
static atomic_int launches;

// What CUPTI calls a callback for a driver function is numbered by its version, so the functions are
// found by name. Runtime calls end in these too, with the same correlation id.
#define MAX_CALLBACKS 2048
static struct {
  bool known;
  uint16_t always[MAX_CALLBACKS], memory[MAX_CALLBACKS], sync[MAX_CALLBACKS];
  int num_always, num_memory, num_sync;
} callbacks;

static bool starts_with(const char *name, const char *const *prefixes) {
  for (; *prefixes != NULL; prefixes++) {
    if (strncmp(name, *prefixes, strlen(*prefixes)) == 0) return true;
  }
  return false;
}

static void find_callbacks(void) {
  static const char *const always[] = {"cuLaunch", "cuGraphLaunch", "cuMemcpy", "cuMemset", NULL};
  static const char *const memory[] = {"cuMemAlloc", "cuMemFree", "cuMemHostAlloc", "cuMemCreate", "cuMemRelease", "cuMemPoolCreate", "cuMemPoolDestroy", NULL};
  static const char *const sync[] = {"cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize", "cuStreamWaitEvent", NULL};
  if (callbacks.known) return;
  callbacks.known = true;
  int unknown = 0;
  // Numbers have few gaps; CUDA 13.5 has some 850.
  for (int id = 1; id < MAX_CALLBACKS && unknown < 64; id++) {
    const char *name = NULL;
    if (gpufl_cupti.callback_name(GPUFL_CUPTI_CB_DOMAIN_DRIVER_API, (uint32_t)id, &name) != GPUFL_CUPTI_SUCCESS || name == NULL) {
      unknown++;
      continue;
    }
    unknown = 0;
    if (starts_with(name, always)) callbacks.always[callbacks.num_always++] = (uint16_t)id;
    if (starts_with(name, memory)) callbacks.memory[callbacks.num_memory++] = (uint16_t)id;
    if (starts_with(name, sync)) callbacks.sync[callbacks.num_sync++] = (uint16_t)id;
  }
}

static int set_callbacks(uint32_t enable, const uint16_t *ids, int n) {
  int done = 0;
  for (int i = 0; i < n; i++) {
    if (gpufl_cupti.enable_callback(enable, subscriber, GPUFL_CUPTI_CB_DOMAIN_DRIVER_API, ids[i]) == GPUFL_CUPTI_SUCCESS) done++;
  }
  return done;
}

static int set_all_callbacks(uint32_t enable) {
  int done = set_callbacks(enable, callbacks.always, callbacks.num_always);
  if (settings.kinds & (1u << GPUFL_KIND_MEMORY)) set_callbacks(enable, callbacks.memory, callbacks.num_memory);
  if (settings.kinds & (1u << GPUFL_KIND_SYNC)) set_callbacks(enable, callbacks.sync, callbacks.num_sync);
  return done;
}

void gpufl_watch_launches(void) {
  if (atomic_load_explicit(&launches, memory_order_relaxed) != 0 || !gpufl_enter()) return;
  if (atomic_load(&gpufl_running) && (settings.kinds & (1u << GPUFL_KIND_EXTERNAL))) {
    // Threads that come here at the same time must not return before it is done: their next call may
    // be the first launch. The lock is this function's alone; none of CUPTI's callbacks takes it.
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one);
    if (atomic_load(&launches) == 0) atomic_store(&launches, set_all_callbacks(1) > 0 ? 1 : 2);
    pthread_mutex_unlock(&one);
  }
  gpufl_leave();
}

// finalizing is the question of gpufl_finalize to on_api; only the thread that asks answers it.
static atomic_bool finalizing;
static pthread_t finalizer;
static int finalize_result;

// on_api is called for the driver's functions that were asked for, at their begin and end, on the
// thread that calls them.
static void on_api(void *user, uint32_t domain, uint32_t cbid, const void *data) {
  (void)user;
  (void)domain;
  (void)cbid;
  const gpufl_callback_data *call = data;
  if (gpufl_is_child() || call == NULL) return;
  if (call->callbackSite == GPUFL_CUPTI_API_ENTER) {
    if (atomic_load_explicit(&launches, memory_order_relaxed) == 1) gpufl_scope_launch(call->correlationId);
    return;
  }
  if (call->callbackSite != GPUFL_CUPTI_API_EXIT || !atomic_load_explicit(&finalizing, memory_order_acquire) ||
      !pthread_equal(pthread_self(), finalizer)) {
    return;
  }
  atomic_store(&finalizing, false);
  gpufl_cupti.unsubscribe(subscriber);
  subscriber = NULL;
  finalize_result = gpufl_cupti.finalize();
}

static int subscribe(void) {
  if (subscriber != NULL) return GPUFL_OK;
  used = true;
  void *handle = NULL;
  int result = gpufl_cupti.subscribe(&handle, on_api, NULL);
  if (result == GPUFL_CUPTI_SUCCESS) subscriber = handle;
  return result;
}

int gpufl_probe(void) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (library == NULL) return GPUFL_NO_LIBRARY;
  if (pool.opened) return GPUFL_BUSY;
  int result = subscribe();
  if (result == GPUFL_OK) {
    gpufl_cupti.unsubscribe(subscriber);
    subscriber = NULL;
  }
  return result;
}

int gpufl_open(const gpufl_config *config) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (library == NULL) return GPUFL_NO_LIBRARY;
  if (pool.opened) return GPUFL_BUSY;
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  if (config->buffers == 0 || config->buffers > GPUFL_MAX_BUFFERS || config->buffer_bytes == 0 || config->buffer_bytes > SIZE_MAX / 2) {
    return GPUFL_BAD_VALUE;
  }
  gpufl_watch_fork();
  int result = subscribe();
  if (result != GPUFL_OK) return result;
  result = gpufl_scope_open();
  if (result != GPUFL_OK) {
    gpufl_cupti.unsubscribe(subscriber);
    subscriber = NULL;
    return result;
  }
  settings = *config;
  pthread_mutex_lock(&pool.lock);
  pool.bytes = (config->buffer_bytes + page - 1) / page * page;
  pool.limit = config->buffers;
  pool.opened = true;
  pool.stopped = false;
  pool.zero = false;
  memset(&pool.stats, 0, sizeof pool.stats);
  pthread_mutex_unlock(&pool.lock);
  return GPUFL_OK;
}

// set_byte sets an attribute of one byte; false where the library does not know it.
static bool set_byte(uint32_t attribute, uint8_t value) {
  size_t size = sizeof value;
  return gpufl_cupti.set_attribute != NULL && gpufl_cupti.set_attribute(attribute, &size, &value) == GPUFL_CUPTI_SUCCESS;
}

static void disable_all(void) {
  for (int i = 0; i < NUM_ACTIVITIES; i++) {
    if (activity_on[i]) gpufl_cupti.activity_disable(activities[i].activity);
    activity_on[i] = false;
  }
  if (atomic_exchange(&launches, 0) == 1) set_all_callbacks(0);
}

int gpufl_start(uint32_t *enabled, int *refusal) {
  *enabled = 0;
  *refusal = GPUFL_OK;
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (!pool.opened) return GPUFL_CLOSED;
  if (atomic_load(&gpufl_running)) return GPUFL_BUSY;
  int result = subscribe();
  if (result != GPUFL_OK) return result;

  // One buffer for all threads, where CUPTI would take one for each: a program with many threads would
  // hold the whole pool with buffers that are nearly empty.
  set_byte(GPUFL_CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER, 0);
  // Buffers that already were in use before are zero too: gpufl_release saw to it, or they are unmapped.
  bool zero = set_byte(GPUFL_CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, 1);
  bool own_clock = gpufl_cupti.register_clock != NULL && gpufl_cupti.register_clock(on_clock) == GPUFL_CUPTI_SUCCESS;
  pthread_mutex_lock(&pool.lock);
  pool.zero = zero;
  pool.own_clock = own_clock;
  pool.stopped = false;
  pthread_mutex_unlock(&pool.lock);

  atomic_store(&attached, true);
  result = gpufl_cupti.register_callbacks(on_request, on_complete);
  if (result != GPUFL_OK) goto failed;
  uint32_t refused = 0;
  for (int i = 0; i < NUM_ACTIVITIES; i++) {
    uint32_t bit = 1u << activities[i].kind;
    if ((settings.kinds & bit) == 0) continue;
    // With GRAPH_TRACE CUPTI has no records of a graph's nodes.
    if (activities[i].activity == GPUFL_CUPTI_ACTIVITY_KIND_GRAPH_TRACE && settings.graph_nodes) continue;
    int answer = gpufl_cupti.activity_enable(activities[i].activity);
    if (answer == GPUFL_CUPTI_SUCCESS) {
      activity_on[i] = true;
      *enabled |= bit;
    } else {
      refused |= bit;
      if (*refusal == GPUFL_OK) *refusal = answer;
    }
  }
  *enabled &= ~refused; // half a kind is none, but its half stays on: better than nothing
  if (*enabled == 0 && *refusal != GPUFL_OK) {
    result = *refusal;
    goto failed;
  }
  *enabled |= settings.kinds & (1u << GPUFL_KIND_NVTX);
  if (gpufl_cupti.enable_callback != NULL && gpufl_cupti.callback_name != NULL) {
    find_callbacks();
    // Tried with one: the others are left off until there is a scope.
    if (callbacks.num_always > 0 && set_callbacks(1, callbacks.always, 1) == 1 && set_callbacks(0, callbacks.always, 1) == 1) {
      *enabled |= settings.kinds & (1u << GPUFL_KIND_EXTERNAL);
    }
  }
  atomic_store(&gpufl_asked, settings.kinds);
  gpufl_scope_start();
  atomic_fetch_add(&gpufl_session, 1);
  atomic_store(&gpufl_running, true);
  // Scopes that were opened earlier count from now on.
  if (gpufl_scope_any()) gpufl_watch_launches();
  return GPUFL_OK;

failed:
  disable_all();
  pthread_mutex_lock(&pool.lock);
  pool.stopped = true;
  pthread_mutex_unlock(&pool.lock);
  pthread_cond_broadcast(&ready_cond);
  return result;
}

int gpufl_flush(int forced) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (!gpufl_enter()) return GPUFL_STOPPED;
  int result = GPUFL_STOPPED;
  if (atomic_load(&gpufl_running)) result = gpufl_cupti.flush_all(forced ? GPUFL_CUPTI_ACTIVITY_FLAG_FLUSH_FORCED : 0);
  gpufl_leave();
  return result;
}

int gpufl_stop(void) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (!pool.opened) return GPUFL_CLOSED;
  if (!atomic_exchange(&gpufl_running, false)) return GPUFL_STOPPED;
  nobody_inside();
  disable_all();
  int result = gpufl_cupti.flush_all(GPUFL_CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  count_dropped();
  pthread_mutex_lock(&pool.lock);
  pool.stopped = true;
  pthread_mutex_unlock(&pool.lock);
  pthread_cond_broadcast(&ready_cond);
  return result;
}

int gpufl_finalize(void) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (!pool.opened) return GPUFL_CLOSED;
  if (atomic_load(&gpufl_running)) return GPUFL_BUSY;
  if (!atomic_exchange(&attached, false)) return GPUFL_STOPPED;
  nobody_inside();
  int result = GPUFL_NOT_DETACHED;
  if (gpufl_cupti.finalize != NULL && gpufl_cupti.enable_callback != NULL && gpufl_driver_ready() && subscriber != NULL) {
    // cuptiFinalize is safe only where CUPTI knows that no call is half done: at the exit of one. Two
    // calls that do nothing; the second in case a driver does not report the first.
    static const uint32_t calls[] = {GPUFL_CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion, GPUFL_CUPTI_DRIVER_TRACE_CBID_cuDeviceGetCount};
    finalizer = pthread_self();
    for (int i = 0; i < 2 && result == GPUFL_NOT_DETACHED; i++) {
      if (gpufl_cupti.enable_callback(1, subscriber, GPUFL_CUPTI_CB_DOMAIN_DRIVER_API, calls[i]) != GPUFL_CUPTI_SUCCESS) continue;
      atomic_store(&finalizing, true);
      int ignored = 0;
      if (i == 0) {
        gpufl_driver.driver_version(&ignored);
      } else {
        gpufl_driver.device_count(&ignored);
      }
      if (atomic_exchange(&finalizing, false)) {
        gpufl_cupti.enable_callback(0, subscriber, GPUFL_CUPTI_CB_DOMAIN_DRIVER_API, calls[i]);
      } else {
        result = finalize_result;
      }
    }
  }
  if (result != GPUFL_OK) atomic_store(&attached, true);
  return result;
}

int gpufl_close(void) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (!pool.opened) return GPUFL_CLOSED;
  if (atomic_load(&gpufl_running)) return GPUFL_BUSY;
  atomic_store(&attached, false);
  nobody_inside();
  if (subscriber != NULL) {
    gpufl_cupti.unsubscribe(subscriber);
    subscriber = NULL;
  }
  gpufl_buffer *gone = NULL;
  pthread_mutex_lock(&pool.lock);
  pool.opened = false;
  for (uint32_t i = 0; i < pool.allocated;) {
    gpufl_buffer *b = pool.all[i];
    if (b->state != IN_POOL && b->state != READY) {
      i++;
      continue;
    }
    pool.all[i] = pool.all[--pool.allocated];
    b->next = gone;
    gone = b;
  }
  pool.unused = pool.head = pool.tail = NULL;
  pool.pending = 0;
  pthread_mutex_unlock(&pool.lock);
  pthread_cond_broadcast(&ready_cond);
  while (gone != NULL) {
    gpufl_buffer *next = gone->next;
    destroy(gone);
    gone = next;
  }
  return GPUFL_OK;
}
