// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gpufl_context.h"
#include "gpufl_scope.h"

// ---- state ----

enum { SCOPE_ID_BITS = 64 - (32 - GPUFL_SCOPE_TABLE_BITS) - 1 };
#define SLOTS ((size_t)1 << GPUFL_SCOPE_TABLE_BITS)
#define MAX_SCOPE_ID (((uint64_t)1 << SCOPE_ID_BITS) - 1)
// INFERRED is set if the launching thread had no scope; see inferred_range.
#define INFERRED ((uint64_t)1 << SCOPE_ID_BITS)
#define TAG_SHIFT (SCOPE_ID_BITS + 1)

enum { MAX_STRAYS = 64 };

// Names are never freed, so events can point to them. Their number and length are bounded. A name
// beyond the capacity becomes other_name.
enum { NAME_SLOTS = 1 << 16, MAX_NAMES = 40000, MAX_NAME_BYTES = 1024, MAX_ALL_NAMES = 8 << 20 };

typedef struct {
  uint32_t hash, length;
  char text[];
} name;

static const char other_name[] = "_other";

enum { EVENTS = 1 << 16, RANGE_SLOTS = 1 << 15, MAX_RANGES = 1 << 14 };

// The state of this file. Launches read table, ranging_threads, last_range and strays.count. No
// thread calls CUPTI while it holds one of the locks, and none holds two of them.
static struct {
  // The scopes of launches by correlation id; see gpufl_scope_table. It is mapped once and never
  // freed. It reserves 16 MiB of address space, and only written pages use memory. All buffers hold
  // fewer than two million launches, so a slot is read before it is reused.
  _Atomic(_Atomic uint64_t *) table;

  _Atomic uint64_t last_id;
  atomic_int open_scopes;                   // Open scopes with an id, on all threads.
  _Atomic uint64_t num_lost, num_misplaced; // See gpufl_scope_counts.

  // Libraries launch on their own threads for a thread of the program: PyTorch does so for a
  // backward pass. If exactly one thread of the process has open NVTX ranges, launches of threads
  // without a scope belong to its innermost range and are marked as inferred. Scopes of
  // gpufl_push_scope are never inferred: a server has many threads, and work outside of requests.
  atomic_int ranging_threads;
  _Atomic uint64_t last_range; // The innermost range of the thread that last changed its own.

  // The key frees the stack of a thread at its end.
  pthread_once_t key_once;
  pthread_key_t key;
  bool have_key; // False if the process has no free key.

  // Scopes that ended on another thread than the one whose stack has them. That thread removes them
  // at its next launch, push or pop. Their number is bounded: an id that is on no stack stays until
  // a newer one overwrites it.
  struct {
    pthread_mutex_t lock; // Protects ids and next.
    uint64_t ids[MAX_STRAYS];
    unsigned next;
    _Atomic uint64_t count; // How many were added.
  } strays;

  struct {
    pthread_mutex_t lock; // Protects this struct.
    name **slots;
    uint32_t count;
    size_t bytes;
  } names;

  // The queue reserves room for the end of each range whose begin it accepted. So a range is
  // recorded completely or dropped completely.
  struct {
    pthread_mutex_t lock; // Protects this struct.
    gpufl_scope_event *queue;
    uint32_t first, used, reserved;
    // The ids of the open ranges of nvtxRangeStart: a hash table.
    uint64_t *ranges;
    uint32_t num_ranges;
  } events;
} core = {
    .key_once = PTHREAD_ONCE_INIT,
    .strays = {.lock = PTHREAD_MUTEX_INITIALIZER},
    .names = {.lock = PTHREAD_MUTEX_INITIALIZER},
    .events = {.lock = PTHREAD_MUTEX_INITIALIZER},
};

// ---- the scope of each launch ----

bool gpufl_scope_any(void) { return atomic_load(&core.open_scopes) > 0; }

// ---- the threads' stacks ----

enum { MAX_DEPTH = 256 };

typedef struct {
  uint64_t id;        // 0: nothing is recorded for it
  const char *domain; // NVTX only
  uint32_t session;   // NVTX only: the session that recorded the begin
  bool nvtx;
} entry;

typedef struct {
  int depth;
  int over; // NVTX ranges beyond the capacity of the stack
  uint64_t strays_seen;
  bool ranging; // the innermost scope is an NVTX range with an id: counted in ranging_threads
  entry stack[MAX_DEPTH];
} thread_scopes;

static __thread thread_scopes *tls_scopes;
static __thread uint64_t top; // the thread's innermost scope with an id
static __thread uint32_t thread_id;

static uint64_t inferred_range(void) {
  if (atomic_load_explicit(&core.ranging_threads, memory_order_relaxed) != 1) return 0;
  return atomic_load_explicit(&core.last_range, memory_order_relaxed);
}

// publish_range publishes the thread's innermost NVTX range after a change; 0 is none.
static void publish_range(thread_scopes *s, uint64_t range) {
  if (range == 0) {
    if (!s->ranging) return;
    s->ranging = false;
    // The range of the remaining threads is unknown until one of them changes its own.
    atomic_store(&core.last_range, 0);
    atomic_fetch_sub(&core.ranging_threads, 1);
    return;
  }
  if (!s->ranging) {
    s->ranging = true;
    atomic_fetch_add(&core.ranging_threads, 1);
  }
  atomic_store(&core.last_range, range);
}

static void thread_ends(void *scopes) {
  thread_scopes *s = scopes;
  for (int i = 0; i < s->depth; i++) {
    if (s->stack[i].id != 0) atomic_fetch_sub(&core.open_scopes, 1);
  }
  publish_range(s, 0);
  tls_scopes = NULL;
  top = 0;
  free(s);
}

static void make_key(void) { core.have_key = pthread_key_create(&core.key, thread_ends) == 0; }

static thread_scopes *get_thread_scopes(void) {
  if (tls_scopes != NULL) return tls_scopes;
  gpufl_watch_fork();
  pthread_once(&core.key_once, make_key);
  thread_scopes *s = calloc(1, sizeof *s);
  if (s == NULL || !core.have_key || pthread_setspecific(core.key, s) != 0) {
    free(s);
    return NULL;
  }
  tls_scopes = s;
  return s;
}

uint32_t gpufl_thread(void) {
  // The only thread of a child has another id than the thread that forked it.
  if (gpufl_is_child()) return (uint32_t)syscall(SYS_gettid);
  if (thread_id == 0) thread_id = (uint32_t)syscall(SYS_gettid);
  return thread_id;
}

static void find_top(thread_scopes *s) {
  for (int i = s->depth - 1; i >= 0; i--) {
    if (s->stack[i].id != 0) {
      top = s->stack[i].id;
      publish_range(s, s->stack[i].nvtx ? top : 0);
      return;
    }
  }
  top = 0;
  publish_range(s, 0);
}

static void push(thread_scopes *s, entry e) {
  s->stack[s->depth++] = e;
  if (e.id != 0) {
    top = e.id;
    publish_range(s, e.nvtx ? top : 0);
    atomic_fetch_add(&core.open_scopes, 1);
  }
}

static void take_out(thread_scopes *s, int i) {
  if (s->stack[i].id != 0) atomic_fetch_sub(&core.open_scopes, 1);
  memmove(&s->stack[i], &s->stack[i + 1], (size_t)(s->depth - i - 1) * sizeof *s->stack);
  s->depth--;
  find_top(s);
}

static void add_stray(uint64_t id) {
  pthread_mutex_lock(&core.strays.lock);
  core.strays.ids[core.strays.next++ % MAX_STRAYS] = id;
  pthread_mutex_unlock(&core.strays.lock);
  atomic_fetch_add(&core.strays.count, 1);
}

static void remove_misplaced(thread_scopes *s) {
  uint64_t count = atomic_load(&core.strays.count);
  if (s->strays_seen == count) return;
  pthread_mutex_lock(&core.strays.lock);
  for (int i = 0; i < MAX_STRAYS; i++) {
    if (core.strays.ids[i] == 0) continue;
    for (int k = 0; k < s->depth; k++) {
      if (s->stack[k].id == core.strays.ids[i] && !s->stack[k].nvtx) {
        take_out(s, k);
        core.strays.ids[i] = 0;
        break;
      }
    }
  }
  pthread_mutex_unlock(&core.strays.lock);
  s->strays_seen = count;
}

uint64_t gpufl_next_scope_id(void) { return atomic_fetch_add(&core.last_id, 1) + 1; }

int gpufl_push_scope(uint64_t id) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (id == 0 || id > MAX_SCOPE_ID) return GPUFL_BAD_VALUE;
  thread_scopes *s = get_thread_scopes();
  if (s == NULL) return GPUFL_NO_MEMORY;
  remove_misplaced(s);
  if (s->depth == MAX_DEPTH) return GPUFL_FULL;
  push(s, (entry){.id = id});
  gpufl_watch_launches();
  return GPUFL_OK;
}

int gpufl_pop_scope(uint64_t id) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  thread_scopes *s = get_thread_scopes();
  if (s == NULL) return GPUFL_NO_MEMORY;
  remove_misplaced(s);
  for (int i = s->depth - 1; i >= 0; i--) {
    if (s->stack[i].id != id || s->stack[i].nvtx) continue;
    bool on_top = i == s->depth - 1;
    take_out(s, i);
    if (on_top) return GPUFL_OK;
    atomic_fetch_add(&core.num_misplaced, 1);
    return GPUFL_MISPLACED;
  }
  atomic_fetch_add(&core.num_misplaced, 1);
  if (id != 0) add_stray(id);
  return GPUFL_MISPLACED;
}

void gpufl_scope_launch(uint32_t correlation) {
  _Atomic uint64_t *t = atomic_load_explicit(&core.table, memory_order_acquire);
  if (t == NULL) return;
  if (tls_scopes != NULL) remove_misplaced(tls_scopes);
  _Atomic uint64_t *slot = &t[correlation & (SLOTS - 1)];
  uint64_t scope = top;
  if (scope == 0 && (scope = inferred_range()) != 0) scope |= INFERRED;
  if (scope != 0) {
    atomic_store_explicit(slot,
                          (uint64_t)(correlation >> GPUFL_SCOPE_TABLE_BITS) << TAG_SHIFT | scope,
                          memory_order_release);
  } else if (atomic_load_explicit(slot, memory_order_relaxed) != 0) {
    // Correlation ids wrap: an earlier launch with this id may have had a scope.
    atomic_store_explicit(slot, 0, memory_order_relaxed);
  }
}

uint64_t gpufl_scope_of(uint32_t correlation) {
  _Atomic uint64_t *t = atomic_load_explicit(&core.table, memory_order_acquire);
  if (gpufl_is_child() || t == NULL) return 0;
  uint64_t slot = atomic_load_explicit(&t[correlation & (SLOTS - 1)], memory_order_acquire);
  return slot >> TAG_SHIFT == correlation >> GPUFL_SCOPE_TABLE_BITS ? slot & MAX_SCOPE_ID : 0;
}

void gpufl_scope_forget(void) {
  void *t = atomic_load(&core.table);
  // The kernel replaces the pages with zero pages.
  if (t != NULL) madvise(t, SLOTS * sizeof(uint64_t), MADV_DONTNEED);
}

const uint64_t *gpufl_scope_table(void) { return (const uint64_t *)atomic_load(&core.table); }

// ---- names ----

const char *gpufl_intern(const char *text) {
  if (text == NULL || gpufl_is_child()) return NULL;
  size_t length = strnlen(text, MAX_NAME_BYTES);
  if (length == MAX_NAME_BYTES) {
    // Do not truncate inside a UTF-8 sequence.
    while (length > MAX_NAME_BYTES - 4 && ((unsigned char)text[length] & 0xC0) == 0x80) length--;
  }
  uint32_t hash = gpufl_hash(text, length);
  const char *result = other_name;
  gpufl_watch_fork();
  pthread_mutex_lock(&core.names.lock);
  if (core.names.slots == NULL) core.names.slots = calloc(NAME_SLOTS, sizeof *core.names.slots);
  if (core.names.slots != NULL) {
    uint32_t at = hash % NAME_SLOTS;
    name *n;
    while ((n = core.names.slots[at]) != NULL &&
           !(n->hash == hash && n->length == length && memcmp(n->text, text, length) == 0)) {
      at = (at + 1) % NAME_SLOTS;
    }
    if (n == NULL && core.names.count < MAX_NAMES && core.names.bytes + length < MAX_ALL_NAMES &&
        (n = malloc(sizeof *n + length + 1)) != NULL) {
      n->hash = hash;
      n->length = (uint32_t)length;
      memcpy(n->text, text, length);
      n->text[length] = 0;
      core.names.slots[at] = n;
      core.names.count++;
      core.names.bytes += length + 1;
    }
    if (n != NULL) result = n->text;
  }
  pthread_mutex_unlock(&core.names.lock);
  if (result == other_name) atomic_fetch_add(&core.num_lost, 1);
  return result;
}

// ---- events ----

int gpufl_scope_open(void) {
  if (atomic_load(&core.table) == NULL) {
    void *memory = mmap(NULL, SLOTS * sizeof(uint64_t), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return GPUFL_NO_MEMORY;
    atomic_store(&core.table, memory);
  }
  pthread_mutex_lock(&core.events.lock);
  if (core.events.queue == NULL) core.events.queue = calloc(EVENTS, sizeof *core.events.queue);
  if (core.events.ranges == NULL) {
    core.events.ranges = calloc(RANGE_SLOTS, sizeof *core.events.ranges);
  }
  bool ok = core.events.queue != NULL && core.events.ranges != NULL;
  pthread_mutex_unlock(&core.events.lock);
  return ok ? GPUFL_OK : GPUFL_NO_MEMORY;
}

void gpufl_scope_start(void) {
  pthread_mutex_lock(&core.events.lock);
  core.events.reserved = 0;
  core.events.num_ranges = 0;
  memset(core.events.ranges, 0, RANGE_SLOTS * sizeof *core.events.ranges);
  pthread_mutex_unlock(&core.events.lock);
}

void gpufl_scope_counts(uint64_t *lost_out, uint64_t *misplaced_out) {
  *lost_out = atomic_load(&core.num_lost);
  *misplaced_out = atomic_load(&core.num_misplaced);
}

// listening returns true while NVTX is recorded.
static bool listening(void) {
  return atomic_load_explicit(&gpufl_state.running, memory_order_relaxed) &&
         (atomic_load_explicit(&gpufl_state.requested_kinds, memory_order_relaxed) &
          (1u << GPUFL_KIND_NVTX)) != 0;
}

static void append(gpufl_scope_event e) {
  core.events.queue[(core.events.first + core.events.used) % EVENTS] = e;
  core.events.used++;
}

// add_begin queues the begin of a range and reserves room for its end. It returns false, and counts
// a lost event, if the queue is full.
static bool add_begin(gpufl_scope_event e, bool range) {
  pthread_mutex_lock(&core.events.lock);
  bool room = core.events.used + core.events.reserved + 2 <= EVENTS &&
              (!range || core.events.num_ranges < MAX_RANGES);
  if (room) {
    append(e);
    core.events.reserved++;
    if (range) {
      uint32_t at = (uint32_t)e.id % RANGE_SLOTS;
      while (core.events.ranges[at] != 0) at = (at + 1) % RANGE_SLOTS;
      core.events.ranges[at] = e.id;
      core.events.num_ranges++;
    }
  }
  pthread_mutex_unlock(&core.events.lock);
  if (!room) atomic_fetch_add(&core.num_lost, 1);
  return room;
}

static void add_mark(gpufl_scope_event e) {
  pthread_mutex_lock(&core.events.lock);
  bool room = core.events.used + core.events.reserved + 1 <= EVENTS;
  if (room) append(e);
  pthread_mutex_unlock(&core.events.lock);
  if (!room) atomic_fetch_add(&core.num_lost, 1);
}

static void add_end(gpufl_scope_event e, uint32_t session) {
  pthread_mutex_lock(&core.events.lock);
  // A new session may have started since the caller checked. Its reservations are for other ranges.
  if (session == atomic_load(&gpufl_state.session) && core.events.reserved > 0) {
    core.events.reserved--;
    append(e);
  }
  pthread_mutex_unlock(&core.events.lock);
}

// take_range removes the id from the table of open ranges. It returns false if the range has ended
// already, or began while NVTX was not recorded. The caller holds events.lock.
static bool take_range(uint64_t id) {
  uint32_t at = (uint32_t)id % RANGE_SLOTS;
  while (core.events.ranges[at] != id) {
    if (core.events.ranges[at] == 0) return false;
    at = (at + 1) % RANGE_SLOTS;
  }
  // Close the gap: move back the entries that a search would no longer find.
  uint32_t gap = at;
  for (;;) {
    at = (at + 1) % RANGE_SLOTS;
    uint64_t other = core.events.ranges[at];
    if (other == 0) break;
    uint32_t home = (uint32_t)other % RANGE_SLOTS;
    if ((at - home) % RANGE_SLOTS >= (at - gap) % RANGE_SLOTS) {
      core.events.ranges[gap] = other;
      gap = at;
    }
  }
  core.events.ranges[gap] = 0;
  core.events.num_ranges--;
  return true;
}

static gpufl_scope_event event(uint8_t what, uint64_t id) {
  return (gpufl_scope_event){
      .what = what, .id = id, .parent = top, .time_ns = gpufl_realtime(), .thread = gpufl_thread()};
}

int gpufl_nvtx_push(const char *domain, const char *text, uint32_t color, uint64_t collective_bytes) {
  if (gpufl_is_child()) return 0;
  bool heard = listening();
  // While NVTX is not recorded, the stack only keeps the depth.
  thread_scopes *s = get_thread_scopes();
  if (s == NULL) return 0;
  remove_misplaced(s);
  int depth = 0;
  for (int i = 0; i < s->depth; i++) depth += s->stack[i].nvtx && s->stack[i].domain == domain;
  if (s->depth == MAX_DEPTH) {
    s->over++;
    if (heard) atomic_fetch_add(&core.num_lost, 1);
    return depth;
  }
  entry e = {.nvtx = true, .domain = domain};
  if (heard) {
    e.session = atomic_load(&gpufl_state.session);
    gpufl_scope_event begin = event(GPUFL_SCOPE_BEGIN, gpufl_next_scope_id());
    begin.name = gpufl_intern(text);
    begin.domain = domain;
    begin.color = color;
    begin.collective_bytes = collective_bytes;
    begin.nested = 1;
    if (add_begin(begin, false)) e.id = begin.id;
  }
  push(s, e);
  if (e.id != 0) gpufl_watch_launches();
  return depth;
}

int gpufl_nvtx_pop(const char *domain) {
  if (gpufl_is_child()) return -1;
  thread_scopes *s = tls_scopes;
  if (s == NULL) return -1;
  remove_misplaced(s);
  if (s->over > 0) {
    s->over--;
    return MAX_DEPTH;
  }
  int depth = -1, found = -1;
  for (int i = 0; i < s->depth; i++) {
    if (!s->stack[i].nvtx || s->stack[i].domain != domain) continue;
    depth++;
    found = i;
  }
  if (found < 0) return -1;
  entry e = s->stack[found];
  take_out(s, found);
  if (e.id != 0 && listening()) {
    gpufl_scope_event end = event(GPUFL_SCOPE_END, e.id);
    end.nested = 1;
    add_end(end, e.session);
  }
  return depth;
}

uint64_t gpufl_nvtx_start(const char *domain, const char *text, uint32_t color) {
  if (gpufl_is_child()) return 0;
  uint64_t id = gpufl_next_scope_id();
  if (!listening()) return id;
  gpufl_scope_event begin = event(GPUFL_SCOPE_BEGIN, id);
  begin.name = gpufl_intern(text);
  begin.domain = domain;
  begin.color = color;
  add_begin(begin, true);
  return id;
}

void gpufl_nvtx_end(uint64_t id) {
  if (gpufl_is_child() || id == 0 || !listening()) return;
  gpufl_scope_event end = event(GPUFL_SCOPE_END, id);
  pthread_mutex_lock(&core.events.lock);
  if (take_range(id)) {
    core.events.reserved--;
    append(end);
  }
  pthread_mutex_unlock(&core.events.lock);
}

void gpufl_nvtx_mark(const char *domain, const char *text, uint32_t color) {
  if (gpufl_is_child() || !listening()) return;
  gpufl_scope_event mark = event(GPUFL_SCOPE_MARK, gpufl_next_scope_id());
  mark.name = gpufl_intern(text);
  mark.domain = domain;
  mark.color = color;
  add_mark(mark);
}

// ---- scopes of gpufl_context.h ----

#define EXPORTED __attribute__((visibility("default"), used))

EXPORTED uint64_t gpufl_recorder_id(uint64_t after) {
  if (gpufl_is_child()) return 0;
  uint64_t last = atomic_load(&core.last_id);
  while (last < after && !atomic_compare_exchange_weak(&core.last_id, &last, after)) continue;
  return gpufl_next_scope_id();
}

EXPORTED uint64_t gpufl_recorder_begin(const gpufl_context_scope *scope) {
  if (gpufl_is_child() || !atomic_load_explicit(&gpufl_state.running, memory_order_relaxed)) {
    return 0;
  }
  gpufl_scope_event begin = {
      .what = scope->trace != NULL ? GPUFL_SCOPE_SPAN : GPUFL_SCOPE_BEGIN,
      .id = scope->id != 0 ? scope->id : gpufl_next_scope_id(),
      .parent = scope->parent > top ? scope->parent : top,
      .time_ns = scope->time_ns,
      .name = gpufl_intern(scope->name),
      .thread = gpufl_thread(),
      .nested = 1,
      .program = 1,
  };
  if (scope->trace != NULL) {
    memcpy(begin.trace, scope->trace, sizeof begin.trace);
    memcpy(begin.span, scope->span, sizeof begin.span);
    begin.sampled = scope->sampled != 0;
  }
  return add_begin(begin, false) ? begin.id : 0;
}

EXPORTED void gpufl_recorder_end(uint64_t id) {
  if (gpufl_is_child() || id == 0) return;
  gpufl_scope_event end = {
      .what = GPUFL_SCOPE_END, .id = id, .time_ns = gpufl_realtime(), .thread = gpufl_thread(), .nested = 1};
  add_end(end, atomic_load(&gpufl_state.session));
}

EXPORTED int gpufl_recorder_push(uint64_t id, int outermost) {
  if (outermost && top > id) return 0;
  return gpufl_push_scope(id) == GPUFL_OK;
}

EXPORTED int gpufl_recorder_pop(uint64_t id) { return gpufl_pop_scope(id) == GPUFL_OK; }

EXPORTED uint64_t gpufl_recorder_top(void) { return gpufl_is_child() ? 0 : top; }

int gpufl_scope_events(gpufl_scope_event *out, int n) {
  if (gpufl_is_child()) return 0;
  int got = 0;
  pthread_mutex_lock(&core.events.lock);
  while (got < n && core.events.used > 0) {
    out[got++] = core.events.queue[core.events.first];
    core.events.first = (core.events.first + 1) % EVENTS;
    core.events.used--;
  }
  pthread_mutex_unlock(&core.events.lock);
  return got;
}
