// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <stdlib.h>
#include <string.h>

#include "gpufl_count.h"
#include "gpufl_deep_internal.h"

// ---- functions ----

// How a call says what it does. Offsets are those of its parameters.
typedef struct {
  uint8_t what;   // GPUFL_COUNT_…
  uint8_t counts; // 0: it is none of ours
  uint8_t size;   // where the number of bytes or elements is, 0: nowhere
  uint8_t rows;   // where the number of rows is, 0: there is one
  uint8_t unit;   // bytes of an element
} form;

enum { MAX_CBIDS = 2048 };
static form forms[MAX_CBIDS];

void gpufl_count_learn(uint32_t cbid, const char *function) {
  // The first that the name begins with.
  static const struct {
    const char *name;
    form form;
  } known[] = {
      {"cuLaunchHostFunc", {0, 0, 0, 0, 0}},
      {"cuLaunchCooperativeKernelMultiDevice", {GPUFL_COUNT_OTHER_KERNEL, 1, 0, 0, 0}},
      {"cuLaunch", {GPUFL_FIRST_KERNEL, 1, 0, 0, 0}},
      {"cuGraphLaunch", {GPUFL_COUNT_GRAPH, 1, 0, 0, 0}},
      {"cuMemcpyHtoDAsync_v2", {GPUFL_COUNT_HTOD, 1, 16, 0, 1}},
      {"cuMemcpyHtoD_v2", {GPUFL_COUNT_HTOD, 1, 16, 0, 1}},
      {"cuMemcpyDtoHAsync_v2", {GPUFL_COUNT_DTOH, 1, 16, 0, 1}},
      {"cuMemcpyDtoH_v2", {GPUFL_COUNT_DTOH, 1, 16, 0, 1}},
      {"cuMemcpyDtoDAsync_v2", {GPUFL_COUNT_DTOD, 1, 16, 0, 1}},
      {"cuMemcpyDtoD_v2", {GPUFL_COUNT_DTOD, 1, 16, 0, 1}},
      {"cuMemcpyPeer", {GPUFL_COUNT_OTHER_COPY, 1, 32, 0, 1}},
      {"cuMemcpyAsync", {GPUFL_COUNT_OTHER_COPY, 1, 16, 0, 1}},
      {"cuMemcpy_pt", {GPUFL_COUNT_OTHER_COPY, 1, 16, 0, 1}},
      {"cuMemcpy", {GPUFL_COUNT_OTHER_COPY, 1, 0, 0, 1}},
      {"cuMemsetD8_v2", {GPUFL_COUNT_SET, 1, 16, 0, 1}},
      {"cuMemsetD8Async", {GPUFL_COUNT_SET, 1, 16, 0, 1}},
      {"cuMemsetD16_v2", {GPUFL_COUNT_SET, 1, 16, 0, 2}},
      {"cuMemsetD16Async", {GPUFL_COUNT_SET, 1, 16, 0, 2}},
      {"cuMemsetD32_v2", {GPUFL_COUNT_SET, 1, 16, 0, 4}},
      {"cuMemsetD32Async", {GPUFL_COUNT_SET, 1, 16, 0, 4}},
      {"cuMemsetD2D8_v2", {GPUFL_COUNT_SET, 1, 24, 32, 1}},
      {"cuMemsetD2D8Async", {GPUFL_COUNT_SET, 1, 24, 32, 1}},
      {"cuMemsetD2D16_v2", {GPUFL_COUNT_SET, 1, 24, 32, 2}},
      {"cuMemsetD2D16Async", {GPUFL_COUNT_SET, 1, 24, 32, 2}},
      {"cuMemsetD2D32_v2", {GPUFL_COUNT_SET, 1, 24, 32, 4}},
      {"cuMemsetD2D32Async", {GPUFL_COUNT_SET, 1, 24, 32, 4}},
      {"cuMemset", {GPUFL_COUNT_SET, 1, 0, 0, 1}}, // of CUDA before 3.2: 32 bits, and no longer used
  };
  if (cbid >= MAX_CBIDS) return;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (strncmp(function, known[i].name, strlen(known[i].name)) != 0) continue;
    forms[cbid] = known[i].form;
    // The name alone is that of the function without suffix.
    if (strcmp(function, "cuMemcpy") == 0) forms[cbid].size = 16;
    return;
  }
}

static uint64_t bytes_of(const form *f, const void *parameters) {
  if (f->size == 0 || parameters == NULL) return 0;
  size_t n = 0, rows = 1;
  memcpy(&n, (const char *)parameters + f->size, sizeof n);
  if (f->rows != 0) memcpy(&rows, (const char *)parameters + f->rows, sizeof rows);
  return (uint64_t)n * f->unit * rows;
}

// ---- state ----

// What is switched one after the other, so that as few launches as can be are overlapped by it.
enum { KERNELS, GRAPHS, COPIES, SETS, GROUPS };

static int group_of(const form *f) {
  switch (f->what) {
    case GPUFL_COUNT_GRAPH:
      return GRAPHS;
    case GPUFL_COUNT_HTOD:
    case GPUFL_COUNT_DTOH:
    case GPUFL_COUNT_DTOD:
    case GPUFL_COUNT_OTHER_COPY:
      return COPIES;
    case GPUFL_COUNT_SET:
      return SETS;
    default:
      return KERNELS;
  }
}

// A group's state is the mode in its low two bits and above it the number of switches begun and ended: odd while
// its records are being switched. A launch that finds the same even state at its begin and at its end was not
// overlapped by a switch. CUPTI looks whether to make a record on the same thread, and nothing says that it does not do so a
// moment before it tells of the begin. So a thread's first launch since a switch is a doubtful one as well.
static _Atomic uint64_t states[GROUPS];
enum { MODE_BITS = 2 };
static atomic_bool on; // callbacks are to be counted
static _Atomic uint32_t captures_open;

static int mode_of(uint64_t s) { return (int)(s & ((1 << MODE_BITS) - 1)); }
static bool switching(uint64_t s) { return (s >> MODE_BITS & 1) != 0; }

static _Atomic uint64_t failed, captured, no_memory, no_room;

// ---- kernels ----

enum { NAME_SLOTS = 1 << 15, MAX_NAME_BYTES = 32 << 20 };

// counting.lock guards all that follows. It is held for a few instructions, never while CUPTI is called.
static struct {
  pthread_mutex_t lock;
  _Atomic(const char *) names[GPUFL_MAX_COUNTS]; // written once each
  uint32_t slots[NAME_SLOTS];                    // of names, 0: free
  uint32_t n;
  size_t bytes;
  struct thread_counts *threads;

  gpufl_doubt *doubts; // a ring
  uint32_t first_doubt, num_doubts;
  uint64_t unlisted;
} counting = {.lock = PTHREAD_MUTEX_INITIALIZER, .n = GPUFL_FIRST_KERNEL};
enum { MAX_DOUBTS = 1 << 16 };

// number_of finds or makes a kernel's number. The caller has the lock.
static uint32_t number_of(const char *text) {
  size_t length = strlen(text);
  uint64_t hash = 14695981039346656037u; // FNV-1a
  for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
  uint32_t at = (uint32_t)(hash >> 20) % NAME_SLOTS;
  for (; counting.slots[at] != 0; at = (at + 1) % NAME_SLOTS) {
    if (strcmp(counting.names[counting.slots[at]], text) == 0) return counting.slots[at];
  }
  if (counting.n >= GPUFL_MAX_COUNTS || counting.bytes + length >= MAX_NAME_BYTES) return GPUFL_COUNT_OTHER_KERNEL;
  char *copy = malloc(length + 1);
  if (copy == NULL) return GPUFL_COUNT_OTHER_KERNEL;
  memcpy(copy, text, length + 1);
  counting.bytes += length + 1;
  atomic_store_explicit(&counting.names[counting.n], copy, memory_order_release);
  counting.slots[at] = counting.n;
  return counting.n++;
}

const char *gpufl_count_name(uint32_t what) {
  if (gpufl_is_child() || what < GPUFL_FIRST_KERNEL || what >= GPUFL_MAX_COUNTS) return NULL;
  return atomic_load_explicit(&counting.names[what], memory_order_acquire);
}

// ---- threads ----

// Written by one thread, read by any.
typedef struct {
  _Atomic uint64_t traced, counted, doubtful, bytes;
} cell;

enum { CHUNK = 256, CHUNKS = GPUFL_MAX_COUNTS / CHUNK, CALLS = 4, MIN_KNOWN = 64, MAX_KNOWN = 1 << 14 };

// Which kernel a pointer of CUPTI's is the name of. Modules are unloaded, and others get their addresses: so the
// text is compared as well.
typedef struct {
  const char *symbol;
  uint32_t what;
} known_symbol;

typedef struct thread_counts {
  struct thread_counts *next, **link;
  _Atomic(cell *) chunks[CHUNKS];
  known_symbol *known;
  uint32_t num_known, max_known; // the latter a power of two
  // The calls that the thread is in: some functions of the driver call others.
  struct {
    uint64_t state;
    uint32_t correlation, attachment;
    bool used;
  } calls[CALLS];
  unsigned turn;
  uint64_t met[GROUPS]; // the switches of each group by the end of the thread's last launch
} thread_counts;

static __thread thread_counts *mine;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static thread_counts retired; // what threads that have ended counted

static cell *cell_of(thread_counts *t, uint32_t what) {
  _Atomic(cell *) *at = &t->chunks[what / CHUNK];
  cell *c = atomic_load_explicit(at, memory_order_acquire);
  if (c == NULL) {
    c = calloc(CHUNK, sizeof *c);
    if (c == NULL) return NULL;
    atomic_store_explicit(at, c, memory_order_release);
  }
  return &c[what % CHUNK];
}

static void add(_Atomic uint64_t *to, uint64_t n) {
  atomic_store_explicit(to, atomic_load_explicit(to, memory_order_relaxed) + n, memory_order_relaxed);
}

static void sum(gpufl_count *to, thread_counts *t, uint32_t what) {
  cell *c = atomic_load_explicit(&t->chunks[what / CHUNK], memory_order_acquire);
  if (c == NULL) return;
  c += what % CHUNK;
  to->traced += atomic_load_explicit(&c->traced, memory_order_relaxed);
  to->counted += atomic_load_explicit(&c->counted, memory_order_relaxed);
  to->doubtful += atomic_load_explicit(&c->doubtful, memory_order_relaxed);
  to->bytes += atomic_load_explicit(&c->bytes, memory_order_relaxed);
}

static void thread_ends(void *counts) {
  thread_counts *t = counts;
  mine = NULL;
  if (gpufl_is_child()) return;
  pthread_mutex_lock(&counting.lock);
  for (uint32_t what = 0; what < counting.n; what++) {
    gpufl_count n = {0};
    sum(&n, t, what);
    if (n.traced + n.counted + n.doubtful == 0) continue;
    cell *c = cell_of(&retired, what);
    if (c == NULL) {
      atomic_fetch_add(&no_memory, n.traced + n.counted + n.doubtful);
      continue;
    }
    add(&c->traced, n.traced);
    add(&c->counted, n.counted);
    add(&c->doubtful, n.doubtful);
    add(&c->bytes, n.bytes);
  }
  *t->link = t->next;
  if (t->next != NULL) t->next->link = t->link;
  pthread_mutex_unlock(&counting.lock);
  for (int i = 0; i < CHUNKS; i++) free(t->chunks[i]);
  free(t->known);
  free(t);
}

static bool have_key; // a process has so many
static void make_key(void) { have_key = pthread_key_create(&key, thread_ends) == 0; }

static thread_counts *own(void) {
  if (mine != NULL) return mine;
  pthread_once(&key_once, make_key);
  thread_counts *t = calloc(1, sizeof *t);
  if (t == NULL || !have_key || pthread_setspecific(key, t) != 0) {
    free(t);
    return NULL;
  }
  pthread_mutex_lock(&counting.lock);
  t->next = counting.threads;
  t->link = &counting.threads;
  if (t->next != NULL) t->next->link = &t->next;
  counting.threads = t;
  pthread_mutex_unlock(&counting.lock);
  return mine = t;
}

static uint32_t slot_of(const thread_counts *t, const char *symbol) {
  return (uint32_t)(((uint64_t)(uintptr_t)symbol * 0x9E3779B97F4A7C15u) >> 40) & (t->max_known - 1);
}

// remember makes room and puts a symbol there. Without memory it is looked up the next time as well.
static void remember(thread_counts *t, const char *symbol, uint32_t what) {
  if (4 * (t->num_known + 1) > 3 * t->max_known) {
    uint32_t size = t->max_known == 0 ? MIN_KNOWN : t->max_known < MAX_KNOWN ? 2 * t->max_known : MAX_KNOWN;
    known_symbol *old = t->known;
    uint32_t old_size = size > t->max_known ? t->max_known : 0; // a full one begins anew
    known_symbol *table = calloc(size, sizeof *table);
    if (table == NULL) return;
    t->known = table;
    t->max_known = size;
    t->num_known = 0;
    for (uint32_t i = 0; i < old_size; i++) {
      if (old[i].symbol != NULL) remember(t, old[i].symbol, old[i].what);
    }
    free(old);
  }
  uint32_t at = slot_of(t, symbol);
  while (t->known[at].symbol != NULL && t->known[at].symbol != symbol) at = (at + 1) & (t->max_known - 1);
  if (t->known[at].symbol == NULL) t->num_known++;
  t->known[at] = (known_symbol){symbol, what};
}

static uint32_t kernel_of(thread_counts *t, const char *symbol) {
  if (symbol == NULL) return GPUFL_COUNT_OTHER_KERNEL;
  if (t->max_known > 0) {
    for (uint32_t at = slot_of(t, symbol); t->known[at].symbol != NULL; at = (at + 1) & (t->max_known - 1)) {
      if (t->known[at].symbol != symbol) continue;
      const char *text = atomic_load_explicit(&counting.names[t->known[at].what], memory_order_acquire);
      if (strcmp(text, symbol) == 0) return t->known[at].what;
      break;
    }
  }
  pthread_mutex_lock(&counting.lock);
  uint32_t what = number_of(symbol);
  pthread_mutex_unlock(&counting.lock);
  if (what == GPUFL_COUNT_OTHER_KERNEL) {
    atomic_fetch_add(&no_room, 1);
  } else {
    remember(t, symbol, what);
  }
  return what;
}

static void doubt(uint32_t attachment, uint32_t correlation, uint32_t what) {
  pthread_mutex_lock(&counting.lock);
  if (counting.doubts == NULL) counting.doubts = calloc(MAX_DOUBTS, sizeof *counting.doubts);
  if (counting.doubts == NULL || counting.num_doubts == MAX_DOUBTS) {
    counting.unlisted++;
  } else {
    counting.doubts[(counting.first_doubt + counting.num_doubts++) % MAX_DOUBTS] = (gpufl_doubt){attachment, correlation, what};
  }
  pthread_mutex_unlock(&counting.lock);
}

// ---- callbacks ----

void gpufl_count_captures(uint32_t open) { atomic_store_explicit(&captures_open, open, memory_order_relaxed); }

void gpufl_count_enter(uint32_t cbid, const gpufl_callback_data *call) {
  if (!atomic_load_explicit(&on, memory_order_relaxed) || cbid >= MAX_CBIDS || !forms[cbid].counts) return;
  // Before anything that may take its time: what changes from here on makes the launch a doubtful one. CUPTI may be
  // left before it ends, and ids begin anew then.
  uint64_t state = atomic_load(&states[group_of(&forms[cbid])]);
  uint32_t attachment = gpufl_attachment();
  thread_counts *t = own();
  if (t == NULL) return;
  unsigned at = t->turn++ % CALLS;
  t->calls[at].state = state;
  t->calls[at].correlation = call->correlationId;
  t->calls[at].attachment = attachment;
  t->calls[at].used = true;
}

void gpufl_count_exit(uint32_t cbid, const gpufl_callback_data *call) {
  if (!atomic_load_explicit(&on, memory_order_relaxed) || cbid >= MAX_CBIDS || !forms[cbid].counts) return;
  thread_counts *t = mine;
  if (t == NULL) {
    // Either it began when nobody listened, or there is no memory.
    if ((t = own()) == NULL) atomic_fetch_add(&no_memory, 1);
    return;
  }
  const form *f = &forms[cbid];
  uint64_t now = atomic_load(&states[group_of(f)]);
  unsigned i = 1;
  while (i <= CALLS && !(t->calls[(t->turn - i) % CALLS].used && t->calls[(t->turn - i) % CALLS].correlation == call->correlationId)) i++;
  if (i > CALLS) return; // it began when nobody listened
  uint64_t then = t->calls[(t->turn - i) % CALLS].state;
  t->calls[(t->turn - i) % CALLS].used = false;
  if (call->functionReturnValue != NULL && *(const int *)call->functionReturnValue != 0) {
    atomic_fetch_add_explicit(&failed, 1, memory_order_relaxed);
    return;
  }
  uint32_t what = f->what == GPUFL_FIRST_KERNEL ? kernel_of(t, call->symbolName) : f->what;
  cell *c = cell_of(t, what);
  if (c == NULL) {
    atomic_fetch_add(&no_memory, 1);
    return;
  }
  if (atomic_load_explicit(&captures_open, memory_order_relaxed) > 0) atomic_fetch_add_explicit(&captured, 1, memory_order_relaxed);
  add(&c->bytes, bytes_of(f, call->functionParams));
  // A change between counting and being blind switches no records.
  uint64_t *met = &t->met[group_of(f)];
  bool same = then >> MODE_BITS == now >> MODE_BITS && !switching(now) && *met == now >> MODE_BITS;
  *met = now >> MODE_BITS;
  if (!same) {
    add(&c->doubtful, 1);
    doubt(t->calls[(t->turn - i) % CALLS].attachment, call->correlationId, what);
  } else if (mode_of(now) == GPUFL_MODE_TRACE) {
    add(&c->traced, 1);
  } else {
    add(&c->counted, 1);
  }
}

// ---- modes ----

// modes.lock orders switches. CUPTI is called with it held; none of its callbacks takes it.
static struct {
  pthread_mutex_t lock;
  bool begun;
  bool left; // by gpufl_count_detach, and not subscribed to since
  _Atomic uint32_t switches, beside, detached;
  _Atomic int64_t gap_ns;
} modes = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void set_state(int group, int mode, bool turn) {
  uint64_t s = atomic_load(&states[group]) >> MODE_BITS;
  atomic_store(&states[group], (s + (turn ? 1 : 0)) << MODE_BITS | (uint64_t)mode);
}

static const uint32_t group_kinds[GROUPS] = {
    [KERNELS] = 1u << GPUFL_KIND_KERNEL,
    [GRAPHS] = 1u << GPUFL_KIND_GRAPH,
    [COPIES] = 1u << GPUFL_KIND_MEMCPY | 1u << GPUFL_KIND_MEMCPY_P2P,
    [SETS] = 1u << GPUFL_KIND_MEMSET,
};

// kept are groups whose records stayed on, since there was no rest: with modes.lock.
static bool kept[GROUPS];

static int hold_group(int group, int before, int after, bool off) {
  // A graph's launch has records of its kernels, or one of its own: so its time begins with theirs.
  if (group != GRAPHS) set_state(group, before, true);
  int result = gpufl_hold(off, group_kinds[group]);
  set_state(group, after, true);
  return result;
}

// hold switches all records but those of what CUPTI itself costs, which only gpufl_settle switches off. Without rest GPUFL_COPIES stay on and
// are counted by their records.
static int hold(int before, int after, bool off, bool rest) {
  static const uint32_t others = 1u << GPUFL_KIND_MEMORY | 1u << GPUFL_KIND_SYNC | 1u << GPUFL_KIND_RUNTIME_API | 1u << GPUFL_KIND_DRIVER_API;
  int result = GPUFL_OK;
  set_state(GRAPHS, before, true);
  for (int group = 0; group < GROUPS; group++) {
    bool was_kept = kept[group];
    kept[group] = off && !rest && (group_kinds[group] & GPUFL_COPIES) != 0;
    if (kept[group] || was_kept) continue;
    int answer = hold_group(group, before, after, off);
    if (result == GPUFL_OK) result = answer;
  }
  int answer = gpufl_hold(off, off ? others : others | 1u << GPUFL_KIND_OVERHEAD);
  return result == GPUFL_OK ? answer : result;
}

// hold_kept switches what stayed on off after all.
static int hold_kept(int after) {
  int result = GPUFL_OK;
  for (int group = 0; group < GROUPS; group++) {
    if (!kept[group]) continue;
    kept[group] = false;
    int answer = hold_group(group, GPUFL_MODE_TRACE, after, true);
    if (result == GPUFL_OK) result = answer;
  }
  return result;
}

static int current = GPUFL_MODE_TRACE; // with modes.lock

// traced is for how long launches have been recorded, as they come through the gate. Its lock is held while nothing else is done.
static struct {
  pthread_mutex_t lock;
  int64_t since, ns; // 0: they are not
} traced = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void tracing(bool begins) {
  int64_t now = gpufl_monotonic();
  pthread_mutex_lock(&traced.lock);
  if (traced.since != 0) traced.ns += now - traced.since;
  traced.since = begins ? now : 0;
  pthread_mutex_unlock(&traced.lock);
}

static int64_t traced_ns(void) {
  pthread_mutex_lock(&traced.lock);
  int64_t ns = traced.ns + (traced.since != 0 ? gpufl_monotonic() - traced.since : 0);
  pthread_mutex_unlock(&traced.lock);
  return ns;
}

// come_back subscribes to CUPTI again, if it was left.
static int come_back(int mode) {
  if (mode == GPUFL_MODE_BLIND) return GPUFL_OK;
  int result = gpufl_attach(mode == GPUFL_MODE_TRACE);
  if (result != GPUFL_OK) return result;
  if (gpufl_watch_counting(1) == 0) return GPUFL_NO_SYMBOL;
  modes.left = false;
  return GPUFL_OK;
}

// switch_to has launches wait while records or callbacks are switched, if they can be had to.
static int switch_to(int mode) {
  if (mode != GPUFL_MODE_BLIND && gpufl_watch_counting(1) == 0) return GPUFL_NO_SYMBOL;
  int before = current;
  bool records = (mode == GPUFL_MODE_TRACE) != (before == GPUFL_MODE_TRACE);
  // A CUPTI that has made no records since it was left goes on telling: it was seen to go deaf, until it was left again, when it was
  // to tell no more beside launches (H200, CUDA 13.0), and it is left soon.
  bool untell = mode == GPUFL_MODE_BLIND && before != GPUFL_MODE_BLIND && !gpufl_bare();
  bool late = !records && (kept[COPIES] || kept[SETS]); // what stayed on can follow
  current = mode;
  if (!records && !untell && !late) return GPUFL_OK;
  int quiet = gpufl_quiet_begin(GPUFL_QUIET_NS);
  if (quiet < 0) {
    current = before;
    return quiet;
  }
  if (quiet == 0 && (records || untell)) atomic_fetch_add(&modes.beside, 1);
  if (before == GPUFL_MODE_TRACE) tracing(false);
  int result = GPUFL_OK;
  if (records) {
    result = hold(before, mode, mode != GPUFL_MODE_TRACE, quiet == 1);
    if (result != GPUFL_OK) {
      // Not half of it: what could be changed is changed back.
      current = mode == GPUFL_MODE_TRACE ? GPUFL_MODE_COUNT : GPUFL_MODE_TRACE;
      hold(mode, current, current != GPUFL_MODE_TRACE, quiet == 1);
    }
    atomic_fetch_add(&modes.switches, 1);
  } else if (late && quiet == 1) {
    result = hold_kept(mode);
  }
  if (untell && current == GPUFL_MODE_BLIND) gpufl_watch_counting(-1);
  if (current == GPUFL_MODE_TRACE) tracing(true);
  gpufl_quiet_end(quiet);
  return result;
}

int gpufl_count_mode(int mode) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (mode < GPUFL_MODE_TRACE || mode > GPUFL_MODE_BLIND) return GPUFL_BAD_VALUE;
  if (gpufl_deep_deaf()) return GPUFL_DEAF;
  gpufl_watch_fork();
  int result = GPUFL_STOPPED;
  pthread_mutex_lock(&modes.lock);
  if (modes.begun && (result = come_back(mode)) != GPUFL_OK) {
    pthread_mutex_unlock(&modes.lock);
    return result;
  }
  if (modes.left) {
    result = GPUFL_OK; // blind, and asked to be so
  } else if (gpufl_enter()) {
    if (atomic_load(&gpufl_running)) {
      if (!modes.begun) {
        modes.begun = true;
        current = GPUFL_MODE_TRACE;
        memset(kept, 0, sizeof kept);
        for (int group = 0; group < GROUPS; group++) set_state(group, GPUFL_MODE_TRACE, false);
        atomic_store(&on, true);
        tracing(true);
      }
      result = switch_to(mode);
    }
    gpufl_leave();
  }
  pthread_mutex_unlock(&modes.lock);
  return result;
}

int gpufl_count_now(void) {
  if (gpufl_is_child()) return GPUFL_MODE_TRACE;
  pthread_mutex_lock(&modes.lock);
  int mode = modes.begun || !atomic_load(&gpufl_running) ? current : GPUFL_MODE_TRACE;
  pthread_mutex_unlock(&modes.lock);
  return mode;
}

int gpufl_count_detach(int mode, int64_t *gap_ns) {
  *gap_ns = 0;
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (mode != GPUFL_MODE_COUNT && mode != GPUFL_MODE_BLIND) return GPUFL_BAD_VALUE;
  int result = GPUFL_STOPPED;
  pthread_mutex_lock(&modes.lock);
  if (modes.begun && current == GPUFL_MODE_TRACE) result = GPUFL_BUSY;
  if (modes.begun && current != GPUFL_MODE_TRACE) {
    int64_t begin = gpufl_monotonic();
    int before = current;
    bool was_left = modes.left;
    result = gpufl_detach();
    if (result == GPUFL_BUSY) {
      pthread_mutex_unlock(&modes.lock);
      return result;
    }
    if (result == GPUFL_OK) {
      if (!was_left) atomic_fetch_add(&modes.detached, 1);
      modes.left = true;
      current = mode;
    }
    // What was in flight finds another state when it is told of again.
    for (int i = 0; i < 2 * GROUPS; i++) set_state(i / 2, current, true);
    int back = come_back(current); // also where CUPTI was only half left
    if (back != GPUFL_OK) current = GPUFL_MODE_BLIND; // nothing is seen until it is asked for again
    if (result == GPUFL_OK) result = back;
    if (!was_left) *gap_ns = gpufl_monotonic() - begin;
    if (before != GPUFL_MODE_BLIND) atomic_fetch_add(&modes.gap_ns, *gap_ns);
  }
  pthread_mutex_unlock(&modes.lock);
  return result;
}

void gpufl_count_end(void) {
  pthread_mutex_lock(&modes.lock);
  if (modes.begun) {
    modes.begun = modes.left = false;
    atomic_store(&on, false);
    tracing(false);
    // What is in flight finds another state if counting begins again before its end.
    for (int i = 0; i < 2 * GROUPS; i++) set_state(i / 2, GPUFL_MODE_TRACE, true);
    gpufl_watch_counting(0);
  }
  pthread_mutex_unlock(&modes.lock);
}

// ---- reading ----

uint32_t gpufl_counts(gpufl_count *out, uint32_t n) {
  if (gpufl_is_child()) return 0;
  pthread_mutex_lock(&counting.lock);
  uint32_t all = counting.n;
  for (uint32_t what = 0; what < all && what < n; what++) {
    memset(&out[what], 0, sizeof out[what]);
    sum(&out[what], &retired, what);
    for (thread_counts *t = counting.threads; t != NULL; t = t->next) sum(&out[what], t, what);
  }
  pthread_mutex_unlock(&counting.lock);
  return all;
}

uint32_t gpufl_count_doubts(gpufl_doubt *out, uint32_t n) {
  if (gpufl_is_child()) return 0;
  uint32_t got = 0;
  pthread_mutex_lock(&counting.lock);
  while (got < n && counting.num_doubts > 0) {
    out[got++] = counting.doubts[counting.first_doubt];
    counting.first_doubt = (counting.first_doubt + 1) % MAX_DOUBTS;
    counting.num_doubts--;
  }
  pthread_mutex_unlock(&counting.lock);
  return got;
}

void gpufl_count_get_stats(gpufl_count_stats *out) {
  memset(out, 0, sizeof *out);
  if (gpufl_is_child()) return;
  out->failed = atomic_load(&failed);
  out->captured = atomic_load(&captured);
  out->no_memory = atomic_load(&no_memory);
  out->no_room = atomic_load(&no_room);
  out->switches = atomic_load(&modes.switches);
  out->beside = atomic_load(&modes.beside);
  out->detached = atomic_load(&modes.detached);
  out->gap_ns = atomic_load(&modes.gap_ns);
  out->traced_ns = traced_ns();
  pthread_mutex_lock(&counting.lock);
  out->unlisted = counting.unlisted;
  pthread_mutex_unlock(&counting.lock);
}
