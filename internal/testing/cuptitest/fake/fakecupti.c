// SPDX-License-Identifier: Apache-2.0
//
// A CUPTI that records what fakecuda does. Records are laid out as CUPTI 13.0's, with lengths of
// the version that it plays. It calls back with its own lock held, as the real one does, and after
// cuptiFinalize its names are gone.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "fake.h"

enum { SUCCESS = 0, INVALID_PARAMETER = 1, MAX_LIMIT_REACHED = 12, NOT_INITIALIZED = 15, INVALID_KIND = 21, NOT_SUPPORTED = 27, MULTIPLE_SUBSCRIBERS = 39 };
enum { MEMCPY = 1, MEMSET = 2, DRIVER = 4, RUNTIME = 5, CONCURRENT_KERNEL = 10, OVERHEAD = 17, MEMCPY2 = 22, SYNCHRONIZATION = 38, EXTERNAL = 39, MEMORY2 = 49, MEMORY_POOL = 50, GRAPH_TRACE = 51 };
enum { KINDS = 64, CALLBACKS = 1024 };

typedef void (*request_fn)(uint8_t **buffer, size_t *size, size_t *max);
typedef void (*complete_fn)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);
typedef void (*callback_fn)(void *user, uint32_t domain, uint32_t cbid, const void *data);
typedef uint64_t (*clock_fn)(void);

typedef struct {
  uint32_t site;
  const char *function;
  const void *parameters;
  void *result;
  const char *symbol;
  void *context;
  uint32_t context_uid;
  uint64_t *data;
  uint32_t correlation;
} callback_data;

typedef struct delivery {
  struct delivery *next;
  uint8_t *buffer;
  size_t size, valid;
} delivery;

enum { NAME_BYTES = 1 << 20 };

static pthread_mutex_t lock; // recursive: callbacks call back
static struct {
  bool enabled[KINDS];
  int refuse[KINDS];
  request_fn request;
  complete_fn complete;
  clock_fn clock;
  callback_fn subscriber;
  void *user;
  bool callbacks[CALLBACKS], resources[64];
  uint8_t *buffer;
  size_t size, used;
  uint64_t dropped, drop;
  char *names;
  size_t names_used;
  bool zeroed;
  int64_t version, kernel_bytes, refuse_subscribe, refuse_clock, finalized, not_zero, overhead_ns, silent, switched_concurrently, copied_concurrently, incomplete, launches_lost, missing_ends, switched_unresponsive;
} s;
static atomic_uint correlation;

// The thread that delivers, where a test wants callbacks from elsewhere than the calling thread.
static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  delivery *first, *last;
  bool wanted, running, busy;
  pthread_t thread;
} worker = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static uint64_t now(void) {
  if (s.clock != NULL) return s.clock();
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t); // visibly not the time of day
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static size_t length(uint32_t kind) {
  switch (kind) {
    case CONCURRENT_KERNEL: return (size_t)s.kernel_bytes;
    case MEMCPY: case MEMCPY2: return 96;
    case MEMSET: return 88;
    case MEMORY2: return 128;
    case MEMORY_POOL: return 72;
    case SYNCHRONIZATION: case GRAPH_TRACE: case OVERHEAD: return 56;
    case DRIVER: case RUNTIME: return 40;
    case EXTERNAL: return 24;
    default: return 0;
  }
}

// name keeps a copy, which lives until cuptiFinalize.
static const char *name(const char *text) {
  size_t n = strlen(text) + 1;
  if (s.names == NULL) {
    s.names = mmap(NULL, NAME_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    s.names_used = 0;
  }
  for (size_t at = 0; at < s.names_used; at += strlen(s.names + at) + 1) {
    if (strcmp(s.names + at, text) == 0) return s.names + at;
  }
  if (s.names_used + n > NAME_BYTES) return NULL;
  char *copy = memcpy(s.names + s.names_used, text, n);
  s.names_used += n;
  return copy;
}

static void *deliver(void *unused) {
  (void)unused;
  pthread_mutex_lock(&worker.lock);
  while (worker.running || worker.first != NULL) {
    delivery *d = worker.first;
    if (d == NULL) {
      pthread_cond_wait(&worker.changed, &worker.lock);
      continue;
    }
    worker.first = d->next;
    if (worker.first == NULL) worker.last = NULL;
    worker.busy = true;
    pthread_mutex_unlock(&worker.lock);
    s.complete(NULL, 0, d->buffer, d->size, d->valid);
    free(d);
    pthread_mutex_lock(&worker.lock);
    worker.busy = false;
    pthread_cond_broadcast(&worker.changed);
  }
  pthread_mutex_unlock(&worker.lock);
  return NULL;
}

static void complete(uint8_t *buffer, size_t size, size_t valid) {
  if (!worker.wanted) {
    s.complete(NULL, 0, buffer, size, valid);
    return;
  }
  delivery *d = calloc(1, sizeof *d);
  *d = (delivery){NULL, buffer, size, valid};
  pthread_mutex_lock(&worker.lock);
  if (!worker.running) {
    worker.running = true;
    pthread_create(&worker.thread, NULL, deliver, NULL);
  }
  if (worker.last != NULL) worker.last->next = d; else worker.first = d;
  worker.last = d;
  pthread_cond_broadcast(&worker.changed);
  pthread_mutex_unlock(&worker.lock);
}

static void wait_for_worker(bool end) {
  pthread_mutex_lock(&worker.lock);
  while (worker.first != NULL || worker.busy) pthread_cond_wait(&worker.changed, &worker.lock);
  bool join = end && worker.running;
  if (join) worker.running = false;
  pthread_cond_broadcast(&worker.changed);
  pthread_mutex_unlock(&worker.lock);
  if (join) pthread_join(worker.thread, NULL);
}

// The real one takes down all it has in the way of calls where another process has the counters as
// sampling is to start, and crashes some time after.
static bool unresponsive;

// reserve makes room for a record; NULL if it is lost. The caller has the lock.
static uint8_t *reserve(uint32_t kind) {
  size_t n = length(kind);
  if (!s.enabled[kind] || s.request == NULL || unresponsive) return NULL;
  if (s.drop > 0) {
    s.drop--;
    s.dropped++;
    return NULL;
  }
  if (s.buffer != NULL && s.used + n > s.size) {
    uint8_t *full = s.buffer;
    s.buffer = NULL;
    complete(full, s.size, s.used);
  }
  if (s.buffer == NULL) {
    size_t max = 0;
    s.size = s.used = 0;
    s.request(&s.buffer, &s.size, &max);
    if (s.buffer == NULL || s.size < n) {
      s.buffer = NULL;
      s.dropped++;
      return NULL;
    }
    if (!s.zeroed) {
      memset(s.buffer, 0, s.size);
    } else {
      // The promise was zeroed buffers.
      for (size_t i = 0; i < s.size; i += 8) {
        if (*(uint64_t *)(s.buffer + i) != 0) {
          s.not_zero++;
          break;
        }
      }
    }
  }
  uint8_t *record = s.buffer + s.used;
  memset(record, 0, n);
  s.used += n;
  memcpy(record, &kind, 4);
  return record;
}

// How often CUPTI was left, and how often when the thread's call began: what began before leaves no
// record after it.
static uint32_t lives;
static __thread uint32_t life;

static uint8_t *reserve_for_call(uint32_t kind) { return life == lives ? reserve(kind) : NULL; }

#define PUT(offset, type, value) do { type v_ = (type)(value); memcpy(r + (offset), &v_, sizeof v_); } while (0)

static void deep_kernel(uint32_t c, const fake_kernel *k);

static void on_kernel(uint32_t c, const fake_kernel *k) {
  pthread_mutex_lock(&lock);
  deep_kernel(c, k);
  bool in_graph = k->graph_node != 0;
  uint8_t *r = in_graph && s.enabled[GRAPH_TRACE] ? NULL : reserve_for_call(CONCURRENT_KERNEL);
  if (r != NULL) {
    uint64_t start = now();
    PUT(6, uint16_t, k->registers);
    PUT(16, uint64_t, start);
    PUT(24, uint64_t, start + (k->duration_ns != 0 ? k->duration_ns : 1000));
    PUT(40, uint32_t, k->device);
    PUT(44, uint32_t, 1);
    PUT(48, uint32_t, k->stream);
    for (int i = 0; i < 3; i++) {
      PUT(52 + 4 * i, uint32_t, k->grid[i]);
      PUT(64 + 4 * i, uint32_t, k->block[i]);
    }
    PUT(76, uint32_t, 0);
    PUT(80, uint32_t, k->shared);
    PUT(92, uint32_t, c);
    PUT(104, const char *, name(k->name));
    PUT(140, uint32_t, k->shared + 1024);
    PUT(144, uint64_t, k->graph_node);
    PUT(156, uint32_t, k->graph);
  }
  pthread_mutex_unlock(&lock);
}

static void on_copy(uint32_t c, int kind, uint64_t bytes, uint32_t stream, int async) {
  pthread_mutex_lock(&lock);
  uint8_t *r = reserve_for_call(MEMCPY);
  if (r != NULL) {
    uint64_t start = now();
    PUT(4, uint8_t, kind);
    PUT(5, uint8_t, kind == 1 ? 1 : 3); // pageable or device
    PUT(6, uint8_t, kind == 2 ? 1 : 3);
    PUT(7, uint8_t, async);
    PUT(8, uint64_t, bytes);
    PUT(16, uint64_t, start);
    PUT(24, uint64_t, start + 1000 + bytes / 10);
    PUT(36, uint32_t, 1);
    PUT(40, uint32_t, stream);
    PUT(44, uint32_t, c);
  }
  pthread_mutex_unlock(&lock);
}

static void on_set(uint32_t c, uint64_t bytes, uint32_t stream) {
  pthread_mutex_lock(&lock);
  uint8_t *r = reserve_for_call(MEMSET);
  if (r != NULL) {
    uint64_t start = now();
    PUT(8, uint64_t, bytes);
    PUT(16, uint64_t, start);
    PUT(24, uint64_t, start + 500);
    PUT(36, uint32_t, 1);
    PUT(40, uint32_t, stream);
    PUT(44, uint32_t, c);
  }
  pthread_mutex_unlock(&lock);
}

static void on_memory(uint32_t c, int release, uint64_t address, uint64_t bytes) {
  pthread_mutex_lock(&lock);
  uint8_t *r = reserve_for_call(MEMORY2);
  if (r != NULL) {
    PUT(4, uint32_t, release ? 2 : 1);
    PUT(8, uint32_t, 3);
    PUT(12, uint32_t, c);
    PUT(16, uint64_t, address);
    PUT(24, uint64_t, bytes);
    PUT(32, uint64_t, now());
    PUT(56, uint32_t, 1);
  }
  pthread_mutex_unlock(&lock);
}

static void on_wait(uint32_t c, int type, uint32_t stream) {
  pthread_mutex_lock(&lock);
  uint8_t *r = reserve_for_call(SYNCHRONIZATION);
  if (r != NULL) {
    uint64_t start = now();
    PUT(4, uint32_t, type);
    PUT(8, uint64_t, start);
    PUT(16, uint64_t, start + 200);
    PUT(24, uint32_t, c);
    PUT(28, uint32_t, 1);
    PUT(32, uint32_t, stream != 0 ? stream : 0xFFFFFFFFu);
    PUT(36, uint32_t, 0xFFFFFFFFu);
  }
  pthread_mutex_unlock(&lock);
}

static void on_graph(uint32_t c, uint32_t graph, uint32_t stream) {
  pthread_mutex_lock(&lock);
  uint8_t *r = reserve_for_call(GRAPH_TRACE);
  if (r != NULL) {
    uint64_t start = now();
    PUT(4, uint32_t, c);
    PUT(8, uint64_t, start);
    PUT(16, uint64_t, start + 5000);
    PUT(28, uint32_t, graph);
    PUT(32, uint32_t, 1);
    PUT(36, uint32_t, stream);
  }
  pthread_mutex_unlock(&lock);
}

static const char *(*symbol)(void); // of the kernel that the calling thread launches

static atomic_int subscriptions;

// After a detach, and until it makes records again, the real CUPTI is unresponsive to launches if
// their callbacks are switched off. That ends with the next detach (H200, CUDA 13.0).
static bool detached, launches_unresponsive;
static bool is_launch(uint32_t cbid) { return cbid == 307 || cbid == 514; }

// How many callbacks about calls are in progress, and on this thread. cuptiFinalize has no more begin
// and waits for those of other threads: a call that was told in one subscription must not find
// another in the middle of that.
static atomic_int callbacks_inside;
static __thread int own_callbacks;
static atomic_bool leaving;

// tell_with answers with the number of the subscription that was told, -1 for none. A call that
// begins gets its number of the same subscription: numbers begin again with cuptiFinalize.
static int tell_with(uint32_t site, uint32_t cbid, const char *function, uint32_t *number, const void *parameters, int *result) {
  pthread_mutex_lock(&lock);
  if (site == 0) {
    *number = atomic_fetch_add(&correlation, 1) + 1;
    life = lives;
  }
  uint32_t c = *number;
  callback_fn f = cbid < CALLBACKS && s.callbacks[cbid] && !s.silent && !atomic_load(&leaving) && !unresponsive && !(launches_unresponsive && is_launch(cbid)) ? s.subscriber : NULL;
  if (f != NULL && site == 1 && is_launch(cbid) && s.missing_ends > 0) {
    s.missing_ends--;
    f = NULL;
  }
  void *user = s.user;
  if (f != NULL) atomic_fetch_add(&callbacks_inside, 1);
  int told = f != NULL ? atomic_load(&subscriptions) : -1;
  pthread_mutex_unlock(&lock);
  uint64_t data = 0;
  callback_data d = {.site = site, .function = function, .parameters = parameters, .result = result, .symbol = symbol != NULL ? symbol() : NULL, .data = &data, .correlation = c};
  if (f != NULL) {
    own_callbacks++;
    f(user, 1, cbid, &d);
    own_callbacks--;
    atomic_fetch_sub(&callbacks_inside, 1);
  }
  return told;
}

static int tell(uint32_t site, uint32_t cbid, const char *function, uint32_t *number) { return tell_with(site, cbid, function, number, NULL, NULL); }

static void tell_resource(uint32_t cbid, void *context, void *handle, void *descriptor) {
  pthread_mutex_lock(&lock);
  callback_fn f = s.resources[cbid] && !s.silent && !unresponsive ? s.subscriber : NULL;
  void *user = s.user;
  pthread_mutex_unlock(&lock);
  struct { void *context, *handle, *descriptor; } d = {context, handle, descriptor};
  if (f != NULL) f(user, 3, cbid, &d);
}

// How many threads are in a launch, and in a call about modules, beyond the callback at its begin.
// A launch that was not reported cannot be waited for, and is not counted. A launch whose end will
// not be reported, since the subscriber has gone, is not counted either.
static atomic_int launching, loading;
static atomic_llong launch_ns, hold;
static __thread int counted;

static atomic_int *inside(uint32_t cbid) { return cbid == 307 || cbid == 514 ? &launching : cbid >= 18 && cbid <= 22 ? &loading : NULL; }

// How many threads are in a copy or a set, whoever was told of it.
static atomic_int copying;
static atomic_llong copy_hold;
static __thread bool copies;

static void copy_begins(uint32_t cbid) {
  if (cbid != 249 && (cbid < 276 || cbid > 281)) return;
  copies = true;
  atomic_fetch_add(&copying, 1);
  while (atomic_load(&copy_hold) != 0) nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static void copy_ends(void) {
  if (copies) atomic_fetch_sub(&copying, 1);
  copies = false;
}

// copies_beside counts what has the real one crash: CUPTI 13.0's own thread then reads what the
// copying one has freed. The caller has the lock.
static void copies_beside(void) {
  if (atomic_load(&copying) > 0) s.copied_concurrently++;
}

static bool is_copy(uint32_t kind) { return kind == MEMCPY || kind == MEMSET || kind == MEMCPY2; }

static uint32_t on_enter(uint32_t cbid, const char *function) {
  uint32_t c = 0;
  atomic_int *in = inside(cbid);
  int told = tell(0, cbid, function, &c);
  copy_begins(cbid);
  if (in != NULL) {
    pthread_mutex_lock(&lock);
    counted = told == atomic_load(&subscriptions) ? told : -1;
    if (counted >= 0) atomic_fetch_add(in, 1);
    pthread_mutex_unlock(&lock);
    struct timespec pause = {0, (long)atomic_load(&launch_ns)};
    if (pause.tv_nsec > 0) nanosleep(&pause, NULL);
    while (atomic_load(&hold) != 0) {
      pause.tv_nsec = 1000000;
      nanosleep(&pause, NULL);
    }
  }
  return c;
}

static void leaves(uint32_t cbid, uint32_t c) {
  copy_ends();
  atomic_int *in = inside(cbid);
  pthread_mutex_lock(&lock);
  if (in != NULL && counted >= 0 && counted == atomic_load(&subscriptions)) atomic_fetch_sub(in, 1);
  uint8_t *r = reserve_for_call(DRIVER);
  if (r != NULL) {
    uint64_t end = now();
    PUT(4, uint32_t, cbid);
    PUT(8, uint64_t, end - 2000);
    PUT(16, uint64_t, end);
    PUT(32, uint32_t, c);
  }
  pthread_mutex_unlock(&lock);
}

static void on_leave(uint32_t cbid, const char *function, uint32_t c) {
  leaves(cbid, c);
  tell(1, cbid, function, &c);
}

static void on_leave_with(uint32_t cbid, const char *function, uint32_t c, const void *parameters, int *result) {
  leaves(cbid, c);
  tell_with(1, cbid, function, &c, parameters, result);
}

// The caller has the lock.
static void subscriber_gone(void) {
  atomic_fetch_add(&subscriptions, 1);
  atomic_store(&launching, 0);
  atomic_store(&loading, 0);
}

#include "fakedeep.h"

static void make_lock(void) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&lock, &attributes);
}

// A child has the lock in its state at the fork, but not the thread that held it. What that thread
// did with a buffer stays incomplete.
static void in_child(void) {
  if (pthread_mutex_trylock(&lock) != 0) s.buffer = NULL;
  make_lock();
}

FAKE_API int64_t fake_control(const char *what, int64_t value);

__attribute__((constructor)) static void begin(void) {
  make_lock();
  pthread_atfork(NULL, NULL, in_child);
  const char *version = getenv("FAKE_CUPTI_VERSION");
  s.version = version != NULL ? atoll(version) : 130001;
  s.kernel_bytes = s.version >= 130000 ? 216 : s.version > 18 ? 208 : 200;
  const char *refuse = getenv("FAKE_CUPTI_REFUSE");
  if (refuse != NULL) s.refuse_subscribe = atoll(refuse);
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  void (*hook)(const fake_hooks *) = NULL;
  if (cuda != NULL) *(void **)&hook = dlsym(cuda, "fake_hook");
  if (cuda != NULL) *(void **)&symbol = dlsym(cuda, "fake_symbol");
  static const fake_hooks hooks = {on_enter, on_leave, on_kernel, on_copy, on_set, on_memory, on_wait, on_graph,
                                   on_leave_with, on_context, on_module, on_stream_destroyed};
  if (hook != NULL) hook(&hooks);
  deep_begin(cuda);
  for (const char *next = getenv("FAKE_CUPTI_CONTROL"); next != NULL && *next != 0;) {
    char name[32];
    long long value;
    int length;
    if (sscanf(next, "%31[^=]=%lld%n", name, &value, &length) != 2 || fake_control(name, value) < 0) abort();
    next += length + (next[length] == ',');
  }
}

// ---- CUPTI ----

FAKE_API int cuptiGetVersion(uint32_t *version) { *version = (uint32_t)s.version; return SUCCESS; }

FAKE_API int cuptiGetResultString(int result, const char **text) {
  switch (result) {
    case 8: *text = "CUPTI_ERROR_OUT_OF_MEMORY"; return SUCCESS;
    case 7: *text = "CUPTI_ERROR_INVALID_OPERATION"; return SUCCESS;
    case NOT_SUPPORTED: *text = "CUPTI_ERROR_NOT_SUPPORTED"; return SUCCESS;
    case 35: *text = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"; return SUCCESS;
    case MULTIPLE_SUBSCRIBERS: *text = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"; return SUCCESS;
    case 999: *text = "CUPTI_ERROR_UNKNOWN"; return SUCCESS;
    default: return INVALID_PARAMETER;
  }
}

FAKE_API int cuptiActivityEnable(uint32_t kind) {
  if (kind >= KINDS || length(kind) == 0) return INVALID_KIND;
  pthread_mutex_lock(&lock);
  int result = s.refuse[kind];
  if (unresponsive) s.switched_unresponsive++;
  if (atomic_load(&launching) > 0) s.switched_concurrently++;
  if (result == SUCCESS) {
    s.enabled[kind] = true;
    detached = false;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

FAKE_API int cuptiActivityDisable(uint32_t kind) {
  if (kind >= KINDS) return INVALID_KIND;
  pthread_mutex_lock(&lock);
  if (unresponsive) s.switched_unresponsive++;
  if (atomic_load(&launching) > 0) s.switched_concurrently++;
  if (is_copy(kind) && s.enabled[kind]) copies_beside();
  s.enabled[kind] = false;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

FAKE_API int cuptiActivityRegisterCallbacks(request_fn request, complete_fn completed) {
  if (request == NULL || completed == NULL) return INVALID_PARAMETER;
  pthread_mutex_lock(&lock);
  s.request = request;
  s.complete = completed;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

FAKE_API int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record) {
  if (buffer == NULL) return INVALID_PARAMETER;
  size_t at = 0;
  if (*record != NULL) {
    uint32_t kind;
    memcpy(&kind, *record, 4);
    at = (size_t)(*record - buffer) + length(kind);
  }
  if (at >= valid) return MAX_LIMIT_REACHED;
  uint32_t kind = 0;
  if (valid - at >= 4) memcpy(&kind, buffer + at, 4);
  size_t n = kind < KINDS ? length(kind) : 0;
  if (n == 0 || at + n > valid) return INVALID_KIND;
  *record = buffer + at;
  return SUCCESS;
}

FAKE_API int cuptiActivityFlushAll(uint32_t flag) {
  pthread_mutex_lock(&lock);
  if ((flag & 1) != 0 && (s.enabled[MEMCPY] || s.enabled[MEMSET] || s.enabled[MEMCPY2])) copies_beside();
  if (s.request == NULL) {
    pthread_mutex_unlock(&lock);
    return NOT_INITIALIZED;
  }
  deep_flushes();
  if (s.overhead_ns > 0) {
    uint8_t *r = reserve(OVERHEAD);
    if (r != NULL) {
      uint64_t end = now();
      PUT(4, uint32_t, 1 << 16);
      PUT(24, uint64_t, end - (uint64_t)s.overhead_ns);
      PUT(32, uint64_t, end);
    }
  }
  uint8_t *buffer = s.incomplete != 0 && (flag & 1) == 0 ? NULL : s.buffer;
  if (buffer != NULL) {
    s.buffer = NULL;
    complete(buffer, s.size, s.used);
  }
  pthread_mutex_unlock(&lock);
  wait_for_worker(false);
  return SUCCESS;
}

FAKE_API int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) {
  (void)context;
  (void)stream;
  pthread_mutex_lock(&lock);
  *dropped = s.dropped;
  s.dropped = 0;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

FAKE_API int cuptiSubscribe(void **subscriber, callback_fn callback, void *user) {
  pthread_mutex_lock(&lock);
  int result = s.refuse_subscribe != 0 ? (int)s.refuse_subscribe : s.subscriber != NULL ? MULTIPLE_SUBSCRIBERS : SUCCESS;
  if (result == SUCCESS) {
    s.subscriber = callback;
    s.user = user;
    *subscriber = &s;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

FAKE_API int cuptiUnsubscribe(void *subscriber) {
  if (subscriber != &s) return INVALID_PARAMETER;
  pthread_mutex_lock(&lock);
  s.subscriber = NULL;
  memset(s.callbacks, 0, sizeof s.callbacks);
  memset(s.resources, 0, sizeof s.resources);
  subscriber_gone();
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

FAKE_API int cuptiEnableCallback(uint32_t enable, void *subscriber, uint32_t domain, uint32_t cbid) {
  if (subscriber != &s || s.subscriber == NULL || !((domain == 1 && cbid < CALLBACKS) || (domain == 3 && cbid > 0 && cbid < 26))) return INVALID_PARAMETER;
  pthread_mutex_lock(&lock);
  if (domain == 1 && is_launch(cbid) && !enable && s.callbacks[cbid]) {
    if (detached) launches_unresponsive = true;
    if (atomic_load(&launching) > 0) {
      s.switched_concurrently++;
      // Where no kernels are recorded the real one then tells threads no more that launch
      // meanwhile, or wait in a callback.
      if (!s.enabled[CONCURRENT_KERNEL]) s.launches_lost++;
    }
  }
  if (domain == 3) s.resources[cbid] = enable != 0; else s.callbacks[cbid] = enable != 0;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

FAKE_API int cuptiGetCallbackName(uint32_t domain, uint32_t cbid, const char **text) {
  static const struct { uint32_t id; const char *name; } functions[] = {
      {2, "cuDriverGetVersion"}, {4, "cuDeviceGetCount"}, {17, "cuCtxSynchronize"}, {18, "cuModuleLoad"}, {19, "cuModuleLoadData"}, {22, "cuModuleUnload"},
      {497, "cuStreamEndCapture"}, {539, "cuStreamBeginCapture_v2"}, {126, "cuStreamSynchronize"}, {243, "cuMemAlloc_v2"},
      {245, "cuMemFree_v2"}, {249, "cuMemsetD8_v2"}, {276, "cuMemcpyHtoD_v2"}, {277, "cuMemcpyHtoDAsync_v2"}, {278, "cuMemcpyDtoH_v2"},
      {279, "cuMemcpyDtoHAsync_v2"}, {280, "cuMemcpyDtoD_v2"}, {281, "cuMemcpyDtoDAsync_v2"}, {307, "cuLaunchKernel"}, {514, "cuGraphLaunch"}};
  if (domain != 1 || cbid == 0 || cbid >= 600) return INVALID_PARAMETER;
  *text = "cuSomethingElse"; // the real table has hardly a gap
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    if (functions[i].id == cbid) *text = functions[i].name;
  }
  return SUCCESS;
}

FAKE_API int cuptiActivityRegisterTimestampCallback(clock_fn clock) {
  if (clock == NULL) return INVALID_PARAMETER;
  if (s.refuse_clock) return NOT_SUPPORTED;
  pthread_mutex_lock(&lock);
  s.clock = clock;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

FAKE_API int cuptiGetTimestamp(uint64_t *timestamp) { *timestamp = now(); return SUCCESS; }

FAKE_API int cuptiActivitySetAttribute(uint32_t attribute, size_t *size, void *value) {
  if (*size != 1) return INVALID_PARAMETER;
  if (attribute == 5) s.zeroed = *(uint8_t *)value != 0;
  return attribute == 5 || attribute == 9 ? SUCCESS : INVALID_PARAMETER;
}

FAKE_API int cuptiFinalize(void) {
  wait_for_worker(true);
  pthread_mutex_lock(&lock);
  atomic_store(&leaving, true);
  pthread_mutex_unlock(&lock);
  while (atomic_load(&callbacks_inside) > own_callbacks) {
    struct timespec pause = {0, 50000};
    nanosleep(&pause, NULL);
  }
  pthread_mutex_lock(&lock);
  atomic_store(&leaving, false);
  memset(s.enabled, 0, sizeof s.enabled);
  s.request = NULL;
  s.complete = NULL;
  s.clock = NULL;
  s.subscriber = NULL;
  s.zeroed = false;
  s.buffer = NULL;
  memset(s.callbacks, 0, sizeof s.callbacks);
  memset(s.resources, 0, sizeof s.resources);
  subscriber_gone();
  if (s.names != NULL) munmap(s.names, NAME_BYTES);
  s.names = NULL;
  lives++;
  finalize_deep();
  atomic_store(&correlation, 0); // as the real one does
  detached = true;
  launches_unresponsive = unresponsive = false;
  s.finalized++;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

// What is left is delivered when the process ends, as the real one does it; in a forked child too.
__attribute__((destructor)) static void end(void) {
  if (pthread_mutex_trylock(&lock) != 0) return; // a thread that is gone may hold it
  uint8_t *buffer = s.buffer;
  s.buffer = NULL;
  if (buffer != NULL && s.complete != NULL) s.complete(NULL, 0, buffer, s.size, s.used);
  pthread_mutex_unlock(&lock);
}

// A call of a thread of CUPTI's own lasts for as long as own_call is 1.
static atomic_llong own_call, own_called;

static void *call_driver(void *unused) {
  uint32_t number = 0;
  tell(0, 307, "cuLaunchKernel", &number);
  atomic_store(&own_called, 1);
  while (atomic_load(&own_call) != 0) {
    struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
  }
  tell(1, 307, "cuLaunchKernel", &number);
  atomic_store(&own_called, 0);
  return unused;
}

// ---- control, for tests ----

// fake_control sets one of the values below and returns what it was. Values that only count can be
// set too.
FAKE_API int64_t fake_control(const char *what, int64_t value) {
  pthread_mutex_lock(&lock);
  int64_t old = -1;
  struct { const char *name; int64_t *at; } all[] = {
      {"version", &s.version},           {"kernel_bytes", &s.kernel_bytes}, {"refuse_subscribe", &s.refuse_subscribe},
      {"refuse_clock", &s.refuse_clock}, {"finalized", &s.finalized},       {"not_zero", &s.not_zero},
      {"overhead_ns", &s.overhead_ns},   {"silent", &s.silent},               {"switched_concurrently", &s.switched_concurrently}, {"copied_concurrently", &s.copied_concurrently},
      {"incomplete", &s.incomplete},     {"launches_lost", &s.launches_lost},
      {"missing_ends", &s.missing_ends},   {"switched_unresponsive", &s.switched_unresponsive}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (strcmp(what, all[i].name) != 0) continue;
    old = *all[i].at;
    *all[i].at = value;
  }
  if (strcmp(what, "drop") == 0) {
    old = (int64_t)s.drop;
    s.drop = (uint64_t)value;
  } else if (strcmp(what, "refuse_kind") == 0 && value >> 16 < KINDS) {
    old = s.refuse[value >> 16]; // kind << 16 | result
    s.refuse[value >> 16] = (int)(value & 0xFFFF);
  } else if (strcmp(what, "correlation") == 0) {
    old = atomic_exchange(&correlation, (uint32_t)value);
  } else if (strcmp(what, "own_thread") == 0) {
    old = worker.wanted;
    worker.wanted = value != 0;
  } else if (strcmp(what, "enabled") == 0) {
    old = 0;
    for (int i = 0; i < KINDS - 1; i++) old |= (int64_t)s.enabled[i] << i;
  } else if (strcmp(what, "callbacks") == 0) {
    old = 0;
    for (int i = 0; i < CALLBACKS; i++) old += s.callbacks[i];
  } else if (strcmp(what, "subscribed") == 0) {
    old = s.subscriber != NULL;
  } else if (strcmp(what, "resources") == 0) {
    old = 0;
    for (int i = 0; i < 64; i++) old += s.resources[i];
  } else if (strcmp(what, "launch_ns") == 0) {
    old = atomic_exchange(&launch_ns, value);
  } else if (strcmp(what, "own_call") == 0) {
    old = atomic_exchange(&own_call, value);
    pthread_t thread;
    if (old == 0 && value != 0 && pthread_create(&thread, NULL, call_driver, NULL) == 0) pthread_detach(thread);
  } else if (strcmp(what, "own_called") == 0) {
    old = atomic_load(&own_called);
  } else if (strcmp(what, "hold") == 0) {
    old = atomic_exchange(&hold, value);
  } else if (strcmp(what, "copy_hold") == 0) {
    old = atomic_exchange(&copy_hold, value);
  } else if (strcmp(what, "copying") == 0) {
    old = atomic_load(&copying);
  } else if (strcmp(what, "held") == 0) {
    old = atomic_load(&launching) + atomic_load(&loading);
  } else if (old == -1) {
    old = deep_control(what, value);
  }
  pthread_mutex_unlock(&lock);
  return old;
}

// fake_deliver hands bytes over as one completed buffer, whatever they are; -1 if none was lent or
// they do not fit.
FAKE_API int fake_deliver(const void *bytes, size_t n) {
  pthread_mutex_lock(&lock);
  int result = -1;
  if (s.request != NULL) {
    uint8_t *buffer = NULL;
    size_t size = 0, max = 0;
    s.request(&buffer, &size, &max);
    if (buffer != NULL) {
      size_t fit = n < size ? n : size;
      memcpy(buffer, bytes, fit);
      complete(buffer, size, fit);
      result = fit == n ? 0 : -1;
    }
  }
  pthread_mutex_unlock(&lock);
  return result;
}
