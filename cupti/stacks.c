// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpufl_stacks.h"

// The interpreter is used through documented functions of its C API only, which the process has or
// not. All of them exist in Python 3.9 to 3.14. Objects are opaque.
//
// Why a thread: PyTorch releases the GIL around operators, so a launching thread does not have it,
// and taking it in a callback of the driver could deadlock. Py_AddPendingCall needs no GIL, but the
// interpreter runs the call after the next call expression, function entry or backward jump. After
// "a @ b" that is on a later line (measured with Python 3.10 to 3.13, docs/internals/stacks.md).

typedef struct object object; // PyObject

typedef object *(*method)(object *self, object *arguments);

// PyMethodDef, which is a part of the stable ABI.
typedef struct {
  const char *name;
  method function;
  int flags;
  const char *doc;
} method_def;
enum { METH_NOARGS_FLAG = 4 };

#define PYTHON(P)                                                                       \
  P(is_initialized, Py_IsInitialized, int, (void))                                      \
  P(version, Py_GetVersion, const char *, (void))                                       \
  P(ensure, PyGILState_Ensure, int, (void))                                             \
  P(release, PyGILState_Release, void, (int))                                           \
  P(save_thread, PyEval_SaveThread, void *, (void))                                     \
  P(restore_thread, PyEval_RestoreThread, void, (void *))                               \
  P(import, PyImport_ImportModule, object *, (const char *))                            \
  P(attribute, PyObject_GetAttrString, object *, (object *, const char *))              \
  P(call, PyObject_CallObject, object *, (object *, object *))                          \
  P(call_with, PyObject_CallFunctionObjArgs, object *, (object *, ...))                 \
  P(is_true, PyObject_IsTrue, int, (object *))                                          \
  P(clear, PyErr_Clear, void, (void))                                                   \
  P(decref, Py_DecRef, void, (object *))                                                \
  P(build_value, Py_BuildValue, object *, (const char *, ...))                          \
  P(function, PyCFunction_NewEx, object *, (method_def *, object *, object *))          \
  P(next, PyDict_Next, int, (object *, ptrdiff_t *, object **, object **))              \
  P(number, PyLong_AsUnsignedLong, unsigned long, (object *))                           \
  P(text, PyUnicode_AsUTF8AndSize, const char *, (object *, ptrdiff_t *))               \
  P(frame_back, PyFrame_GetBack, object *, (object *))                                  \
  P(frame_code, PyFrame_GetCode, object *, (object *))                                  \
  P(frame_line, PyFrame_GetLineNumber, int, (object *))

#define FIELD(field, symbol, result, parameters) result(*field) parameters;
static struct {
  PYTHON(FIELD)
} py;
#undef FIELD

// ---- state ----

enum {
  MAX_THREADS = 256,  // that launch, at a time
  MAX_TAKEN = 64,     // launches of one sample
  MAX_PAUSES = 16,    // different stacks of a thread in a pause
  MAX_EVENTS = 8192,
  MAX_FRAMES = 64,    // of a stack, innermost first
  MAX_TEXT = 16 << 10, // of a stack
  MAX_STACKS = 1 << 14,
  STACK_SLOTS = 1 << 15,
  SYMBOL_SLOTS = 1 << 14,
  SYMBOL_PROBES = 16,
  // After each request without an answer a thread skips twice as many of its next requests, 1,024 at
  // most: it may launch while it holds the GIL.
  MAX_MISSES = 10,
  THREAD_STACK = 1 << 20,
};
static const size_t max_all_text = (size_t)16 << 20;

// 100 samples in a second.
#define TICK_NS ((int64_t)10000000)
#define REQUEST_NS ((int64_t)1000000)
// What sampling may cost: BURST_NS and a share of the recording's time.
#define BURST_NS ((int64_t)50000000)
#define SHARE 200

typedef struct {
  uint64_t hash;
  size_t length;
  char text[];
} stack;

typedef struct {
  _Atomic uint64_t ident; // Python's id of the thread, which is that of pthreads. 0: unused
  int misses, skip;       // requests without an answer in a row, and those to skip
  atomic_bool paused;     // has pauses
  int num_pauses;
  struct {
    const stack *stack;
    uint32_t samples;
  } pauses[MAX_PAUSES];
} thread_slot;

// Launches read on, launched, wanted, holding, symbols and paused of their slot.
static struct {
  atomic_bool on;
  atomic_bool launched; // since the last tick
  atomic_bool wanted;   // the next launch makes a request
  atomic_bool holding;  // the frames are read and cannot change
  _Atomic(const char *) symbols[SYMBOL_SLOTS]; // of kernels that were launched

  pthread_once_t once;
  pthread_key_t key; // frees the slot of a thread at its end
  bool have_key;

  // Protects the fields below and the other fields of slots. A thread that waits for the GIL
  // never holds it, and no thread calls Python, CUDA or CUPTI while it does.
  pthread_mutex_t lock;
  pthread_cond_t wake; // for our thread
  pthread_cond_t held; // a sample began or ended, or our thread ended
  bool alive, stopping, requested, python_ended;
  uint64_t holds; // samples so far
  int64_t started, spent;
  const char *reason; // why there are no stacks, or NULL
  thread_slot slots[MAX_THREADS];
  int num_taken;
  struct {
    thread_slot *slot;
    uint32_t correlation;
  } taken[MAX_TAKEN];
  gpufl_stack_event *events; // a ring of MAX_EVENTS
  uint32_t first, used;
  uint64_t lost;

  // Only our thread uses the fields below.
  object *current_frames, *gc_enabled, *gc_disable, *gc_enable;
  bool qualified; // code objects have qualified names
  stack **stacks; // STACK_SLOTS
  uint32_t num_stacks;
  size_t all_text;
} core = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

static __thread thread_slot *tls_slot;

static void thread_ends(void *slot) {
  thread_slot *s = slot;
  tls_slot = NULL;
  if (gpufl_is_child()) return;
  pthread_mutex_lock(&core.lock);
  s->num_pauses = 0;
  atomic_store(&s->paused, false);
  // A launch of it may still be in taken: its slot must not be that of another thread yet.
  for (int i = 0; i < core.num_taken; i++) {
    if (core.taken[i].slot == s) core.taken[i].slot = NULL;
  }
  atomic_store(&s->ident, 0);
  pthread_mutex_unlock(&core.lock);
}

static void initialize(void) {
  core.have_key = pthread_key_create(&core.key, thread_ends) == 0;
  gpufl_cond_init(&core.wake);
  gpufl_cond_init(&core.held);
}

static thread_slot *get_slot(void) {
  if (tls_slot != NULL) return tls_slot;
  if (!core.have_key) return NULL;
  thread_slot *found = NULL;
  pthread_mutex_lock(&core.lock);
  for (int i = 0; i < MAX_THREADS && found == NULL; i++) {
    if (atomic_load(&core.slots[i].ident) == 0) found = &core.slots[i];
  }
  if (found != NULL) {
    found->misses = found->skip = 0;
    atomic_store(&found->ident, (uint64_t)pthread_self());
  }
  pthread_mutex_unlock(&core.lock);
  if (found == NULL) return NULL;
  if (pthread_setspecific(core.key, found) != 0) {
    atomic_store(&found->ident, 0);
    return NULL;
  }
  return tls_slot = found;
}

// first_launch returns true at the first launch of a kernel, which its name's address identifies. If
// the table is full it returns false.
static bool first_launch(const char *symbol) {
  uintptr_t at = ((uintptr_t)symbol >> 3) * 0x9e3779b97f4a7c15u >> 40;
  for (int i = 0; i < SYMBOL_PROBES; i++) {
    _Atomic(const char *) *slot = &core.symbols[(at + (uintptr_t)i) % SYMBOL_SLOTS];
    const char *other = atomic_load_explicit(slot, memory_order_relaxed);
    if (other == NULL && atomic_compare_exchange_strong(slot, &other, symbol)) return true;
    if (other == symbol) return false;
  }
  return false;
}

// ---- events; the caller holds the lock ----

static void add_event(uint32_t correlation, const stack *s, uint32_t samples) {
  if (core.events == NULL || core.used == MAX_EVENTS) {
    core.lost++;
    return;
  }
  core.events[(core.first + core.used++) % MAX_EVENTS] = (gpufl_stack_event){
      .text = s->text, .correlation = correlation, .attachment = gpufl_attachment(), .samples = samples};
}

static void add_pause(thread_slot *t, const stack *s) {
  for (int i = 0; i < t->num_pauses; i++) {
    if (t->pauses[i].stack == s) {
      t->pauses[i].samples++;
      return;
    }
  }
  if (t->num_pauses == MAX_PAUSES) return;
  t->pauses[t->num_pauses].stack = s;
  t->pauses[t->num_pauses++].samples = 1;
  atomic_store(&t->paused, true);
}

static void clear_pauses(thread_slot *t) {
  t->num_pauses = 0;
  atomic_store(&t->paused, false);
}

static void end_pause(thread_slot *t, uint32_t correlation) {
  int most = 0;
  for (int i = 1; i < t->num_pauses; i++) {
    if (t->pauses[i].samples > t->pauses[most].samples) most = i;
  }
  if (t->num_pauses > 0) add_event(correlation, t->pauses[most].stack, t->pauses[most].samples);
  clear_pauses(t);
}

// affordable returns whether there may be a sample. With GPUFL_STACKS_PHASE, which only
// test/gpu/stacks.py sets, there are samples in every other phase of the clock: so one process shows
// what they cost.
static bool affordable(int64_t now) {
#ifdef GPUFL_STACKS_PHASE
  if (now / GPUFL_STACKS_PHASE % 2 == 0) return false;
#endif
  return core.spent < BURST_NS + (now - core.started) / SHARE;
}

// ---- launches ----

static void take(thread_slot *t, uint32_t correlation) {
  if (core.num_taken == MAX_TAKEN) {
    core.lost++;
    return;
  }
  core.taken[core.num_taken].slot = t;
  core.taken[core.num_taken++].correlation = correlation;
}

static void untake(const thread_slot *t, uint32_t correlation) {
  for (int i = 0; i < core.num_taken; i++) {
    if (core.taken[i].slot != t || core.taken[i].correlation != correlation) continue;
    core.taken[i] = core.taken[--core.num_taken];
    return;
  }
}

// request asks for a sample and waits until the frames cannot change any more. The caller holds the
// lock.
static void request(thread_slot *t, uint32_t correlation, int64_t now) {
  uint64_t before = core.holds;
  take(t, correlation);
  core.requested = true;
  pthread_cond_signal(&core.wake);
  struct timespec until = gpufl_after(REQUEST_NS);
  int cancel;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); // a cancelled thread would keep the lock
  while (core.holds == before && core.alive && !core.stopping &&
         pthread_cond_timedwait(&core.held, &core.lock, &until) != ETIMEDOUT) {
  }
  pthread_setcancelstate(cancel, NULL);
  if (core.holds == before) {
    untake(t, correlation);
    if (t->misses < MAX_MISSES) t->misses++;
    t->skip = 1 << t->misses;
  } else {
    t->misses = 0;
  }
  core.spent += gpufl_monotonic() - now;
}

void gpufl_stacks_launch(uint32_t correlation, const char *symbol) {
  if (!atomic_load_explicit(&core.on, memory_order_relaxed)) return;
  if (!atomic_load_explicit(&core.launched, memory_order_relaxed)) {
    atomic_store_explicit(&core.launched, true, memory_order_relaxed);
  }
  bool first = symbol != NULL && first_launch(symbol);
  thread_slot *t = get_slot();
  if (t == NULL ||
      (!first && !atomic_load_explicit(&core.wanted, memory_order_relaxed) &&
       !atomic_load_explicit(&core.holding, memory_order_relaxed) &&
       !atomic_load_explicit(&t->paused, memory_order_relaxed))) {
    return;
  }
  pthread_mutex_lock(&core.lock);
  int64_t now = gpufl_monotonic();
  if (atomic_load(&t->paused)) end_pause(t, correlation);
  if (atomic_load(&core.holding)) {
    // This thread is outside the interpreter: the holder of the GIL is our thread.
    take(t, correlation);
  } else if ((first || atomic_load(&core.wanted)) && core.alive && !core.stopping) {
    if (t->skip > 0) {
      t->skip--;
    } else {
      atomic_store(&core.wanted, false);
      if (affordable(now)) request(t, correlation, now);
    }
  }
  pthread_mutex_unlock(&core.lock);
}

bool gpufl_stacks_on(void) { return atomic_load(&core.on); }

// ---- the text of a stack; our thread only, with the GIL ----

typedef struct {
  char text[MAX_TEXT];
  size_t length;
  bool full;
} writer;

// add_text appends an attribute of a code object, which is a string.
static void add_text(writer *w, object *code, const char *name) {
  const char *text = NULL;
  ptrdiff_t length = 0;
  object *value = py.attribute(code, name);
  if (value != NULL) text = py.text(value, &length);
  if (text == NULL) {
    py.clear(); // such as a name that is no UTF-8
    text = "?";
    length = 1;
  }
  if ((size_t)length > MAX_TEXT - w->length) {
    w->full = true;
    length = 0;
  }
  for (ptrdiff_t i = 0; i < length; i++) {
    w->text[w->length++] = (unsigned char)text[i] < ' ' ? '?' : text[i];
  }
  if (value != NULL) py.decref(value);
}

static void add_plain(writer *w, const char *text) {
  size_t length = strlen(text);
  if (length > MAX_TEXT - w->length) {
    w->full = true;
    return;
  }
  memcpy(w->text + w->length, text, length);
  w->length += length;
}

// describe writes the frames, innermost first, as "function (file:line)", each in a line. Frames
// beyond the capacity are left out.
static void describe(writer *w, object *frame) {
  w->length = 0;
  w->full = false;
  object *owned = NULL; // frame is borrowed, those further out are not
  for (int n = 0; frame != NULL && n < MAX_FRAMES; n++) {
    size_t before = w->length;
    object *code = py.frame_code(frame);
    char line[32];
    snprintf(line, sizeof line, ":%d)", py.frame_line(frame));
    if (n > 0) add_plain(w, "\n");
    add_text(w, code, core.qualified ? "co_qualname" : "co_name");
    add_plain(w, " (");
    add_text(w, code, "co_filename");
    add_plain(w, line);
    py.decref(code);
    if (w->full) {
      w->length = before;
      break;
    }
    object *back = py.frame_back(frame);
    if (owned != NULL) py.decref(owned);
    frame = owned = back;
  }
  if (owned != NULL) py.decref(owned);
}

// intern returns the one copy of the text, which is never freed, or NULL beyond the capacity.
static const stack *intern(const char *text, size_t length) {
  uint64_t hash = 14695981039346656037u; // FNV-1a
  for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
  if (core.stacks == NULL) core.stacks = calloc(STACK_SLOTS, sizeof *core.stacks);
  if (core.stacks == NULL) return NULL;
  size_t at = hash % STACK_SLOTS;
  for (stack *s; (s = core.stacks[at]) != NULL; at = (at + 1) % STACK_SLOTS) {
    if (s->hash == hash && s->length == length && memcmp(s->text, text, length) == 0) return s;
  }
  if (core.num_stacks == MAX_STACKS || core.all_text + length > max_all_text) return NULL;
  stack *s = malloc(sizeof *s + length + 1);
  if (s == NULL) return NULL;
  s->hash = hash;
  s->length = length;
  memcpy(s->text, text, length);
  s->text[length] = 0;
  core.stacks[at] = s;
  core.num_stacks++;
  core.all_text += length + 1;
  return s;
}

// ---- samples; our thread only ----

// call calls an object without arguments and returns whether the result is true.
static bool call(object *callable) {
  object *result = py.call(callable, NULL);
  if (result == NULL) {
    py.clear();
    return false;
  }
  int truth = py.is_true(result);
  py.decref(result);
  if (truth < 0) py.clear();
  return truth > 0;
}

// sample returns false if the interpreter has ended.
static bool sample(bool pause) {
  static writer w;
  static const stack *stacks[MAX_THREADS];
  int lost = 0;
  if (!py.is_initialized()) return false;
  int state = py.ensure();
  int64_t began = gpufl_monotonic();
  // A collection of garbage would run finalizers of the program on this thread. Nobody sees that it
  // is off: it is on again before the GIL is released.
  bool collects = call(core.gc_enabled);
  if (collects) call(core.gc_disable);
  object *frames = py.call(core.current_frames, NULL);
  // An audit hook in Python may have run until here. From now on nothing releases the GIL.
  pthread_mutex_lock(&core.lock);
  atomic_store(&core.holding, true);
  core.requested = false;
  core.holds++;
  pthread_cond_broadcast(&core.held);
  pthread_mutex_unlock(&core.lock);

  memset(stacks, 0, sizeof stacks);
  if (frames == NULL) py.clear();
  ptrdiff_t position = 0;
  object *key, *frame;
  while (frames != NULL && py.next(frames, &position, &key, &frame)) {
    uint64_t ident = py.number(key);
    for (int i = 0; i < MAX_THREADS; i++) {
      if (ident == 0 || atomic_load(&core.slots[i].ident) != ident) continue;
      describe(&w, frame);
      if (w.length > 0 && (stacks[i] = intern(w.text, w.length)) == NULL) lost++;
      break;
    }
  }

  pthread_mutex_lock(&core.lock);
  atomic_store(&core.holding, false);
  for (int i = 0; i < core.num_taken; i++) {
    if (core.taken[i].slot == NULL) continue; // its thread has ended
    const stack *s = stacks[core.taken[i].slot - core.slots];
    if (s != NULL) add_event(core.taken[i].correlation, s, 0);
  }
  core.num_taken = 0;
  for (int i = 0; pause && i < MAX_THREADS && !atomic_load(&core.launched); i++) {
    if (stacks[i] != NULL) add_pause(&core.slots[i], stacks[i]);
  }
  core.lost += (uint64_t)lost;
  pthread_cond_broadcast(&core.held);
  pthread_mutex_unlock(&core.lock);

  if (frames != NULL) py.decref(frames);
  if (collects) call(core.gc_enable);
  int64_t end = gpufl_monotonic();
  py.release(state);
  pthread_mutex_lock(&core.lock);
  core.spent += end - began;
  pthread_mutex_unlock(&core.lock);
  return true;
}

// python_ends is registered with Python's atexit. It ends our thread before the interpreter ends, so
// that the thread never uses an interpreter that ends or has ended.
static object *python_ends(object *self, object *arguments) {
  (void)self;
  (void)arguments;
  if (!gpufl_is_child()) {
    void *state = py.save_thread(); // the thread may need the GIL to end
    pthread_mutex_lock(&core.lock);
    core.stopping = core.python_ended = true;
    atomic_store(&core.on, false);
    pthread_cond_broadcast(&core.wake);
    pthread_cond_broadcast(&core.held);
    struct timespec until = gpufl_after((int64_t)5000000000);
    while (core.alive && pthread_cond_timedwait(&core.held, &core.lock, &until) != ETIMEDOUT) {
    }
    pthread_mutex_unlock(&core.lock);
    py.restore_thread(state);
  }
  return py.build_value(""); // None
}

static object *get(const char *module, const char *name) {
  object *m = py.import(module), *value = NULL;
  if (m != NULL) value = py.attribute(m, name);
  if (value == NULL) py.clear();
  if (m != NULL) py.decref(m);
  return value;
}

// prepare gets what samples need, once in a process. It returns why there can be no samples, or
// NULL.
static const char *prepare(void) {
  static method_def definition = {"gpuflight_ends", python_ends, METH_NOARGS_FLAG, NULL};
  if (core.current_frames != NULL) return NULL;
  const char *reason = "the interpreter lacks what reading stacks needs";
  if (!py.is_initialized()) return "the interpreter has ended";
  int state = py.ensure();
  // Without a GIL frames change while they are read.
  object *gil = get("sys", "_is_gil_enabled");
  if (gil != NULL && !call(gil)) {
    reason = "the interpreter runs without the GIL";
  } else {
    object *ends = py.function(&definition, NULL, NULL), *with = get("atexit", "register"), *result = NULL;
    core.gc_enabled = get("gc", "isenabled");
    core.gc_disable = get("gc", "disable");
    core.gc_enable = get("gc", "enable");
    object *frames = get("sys", "_current_frames");
    if (ends != NULL && with != NULL && core.gc_enabled != NULL && core.gc_disable != NULL &&
        core.gc_enable != NULL && frames != NULL) {
      result = py.call_with(with, ends, NULL);
    }
    if (result != NULL) {
      core.current_frames = frames;
      reason = NULL;
      py.decref(result);
    }
    py.clear();
    if (with != NULL) py.decref(with);
    if (ends != NULL) py.decref(ends); // atexit has its own reference
  }
  if (gil != NULL) py.decref(gil);
  py.release(state);
  return reason;
}

static void *run(void *unused) {
  (void)unused;
  const char *reason = prepare();
  pthread_mutex_lock(&core.lock);
  if (reason != NULL) {
    core.reason = reason;
    core.stopping = true;
  }
  int64_t next = gpufl_monotonic() + TICK_NS;
  while (!core.stopping) {
    int64_t now = gpufl_monotonic();
    bool pause = !core.requested;
    if (pause && now < next) {
      struct timespec until = gpufl_after(next - now);
      pthread_cond_timedwait(&core.wake, &core.lock, &until);
      continue;
    }
    next = now + TICK_NS;
    if (pause) {
      if (atomic_exchange(&core.launched, false) || !atomic_load(&core.on)) {
        for (int i = 0; i < MAX_THREADS; i++) clear_pauses(&core.slots[i]);
        atomic_store(&core.wanted, atomic_load(&core.on) && affordable(now));
        continue;
      }
      if (!affordable(now)) continue;
    }
    pthread_mutex_unlock(&core.lock);
    bool sampled = sample(pause);
    pthread_mutex_lock(&core.lock);
    if (!sampled) core.stopping = true;
  }
  atomic_store(&core.on, false);
  atomic_store(&core.wanted, false);
  core.requested = core.alive = false;
  core.num_taken = 0;
  pthread_cond_broadcast(&core.held);
  pthread_mutex_unlock(&core.lock);
  return NULL;
}

// ---- start and end ----

// resolve finds the interpreter in the process. It returns why there is none, or NULL.
static const char *resolve(void) {
#define RESOLVE(field, symbol, result, parameters)                         \
  if ((*(void **)&py.field = dlsym(RTLD_DEFAULT, #symbol)) == NULL) {      \
    return "the process has no Python of version 3.9 or later";            \
  }
  PYTHON(RESOLVE)
#undef RESOLVE
  if (!py.is_initialized()) return "Python is not initialized";
  unsigned major = 0, minor = 0;
  if (sscanf(py.version(), "%u.%u", &major, &minor) != 2 || major != 3 || minor < 9) {
    return "the process has no Python of version 3.9 or later";
  }
  core.qualified = minor >= 11;
  return NULL;
}

void gpufl_stacks_start(void) {
  gpufl_watch_fork();
  pthread_once(&core.once, initialize);
  pthread_mutex_lock(&core.lock);
  const char *reason = core.python_ended ? "the interpreter has ended" : core.alive ? "an earlier recording still ends" : NULL;
  if (reason == NULL) reason = resolve();
  if (reason == NULL && core.events == NULL &&
      (core.events = calloc(MAX_EVENTS, sizeof *core.events)) == NULL) {
    reason = "there is no memory";
  }
  if (reason == NULL) {
    core.stopping = core.requested = false;
    core.alive = true;
    core.spent = 0;
    core.started = gpufl_monotonic();
    atomic_store(&core.on, true);
    // The program's signals are not for this thread.
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, THREAD_STACK);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, &attributes, run, NULL) != 0) {
      reason = "the process can create no thread";
      core.alive = false;
      atomic_store(&core.on, false);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
  }
  core.reason = reason;
  pthread_mutex_unlock(&core.lock);
}

void gpufl_stacks_stop(void) {
  if (gpufl_is_child()) return;
  pthread_mutex_lock(&core.lock);
  if (core.alive) {
    atomic_store(&core.on, false);
    core.stopping = true;
    pthread_cond_broadcast(&core.wake);
    pthread_cond_broadcast(&core.held);
    struct timespec until = gpufl_after((int64_t)100000000);
    while (core.alive && pthread_cond_timedwait(&core.held, &core.lock, &until) != ETIMEDOUT) {
    }
  }
  pthread_mutex_unlock(&core.lock);
}

void gpufl_stacks_suspend(bool suspended) {
  pthread_mutex_lock(&core.lock);
  if (core.alive && !core.stopping) atomic_store(&core.on, !suspended);
  pthread_mutex_unlock(&core.lock);
}

int gpufl_stack_events(gpufl_stack_event *out, int n) {
  if (gpufl_is_child()) return 0;
  int got = 0;
  pthread_mutex_lock(&core.lock);
  // A record of a launch of this sample may have been read already.
  struct timespec until = gpufl_after((int64_t)2000000);
  while (core.alive && atomic_load(&core.holding) &&
         pthread_cond_timedwait(&core.held, &core.lock, &until) != ETIMEDOUT) {
  }
  while (got < n && core.used > 0) {
    out[got++] = core.events[core.first];
    core.first = (core.first + 1) % MAX_EVENTS;
    core.used--;
  }
  pthread_mutex_unlock(&core.lock);
  return got;
}

const char *gpufl_stacks_reason(void) {
  if (gpufl_is_child()) return NULL;
  pthread_mutex_lock(&core.lock);
  const char *reason = core.reason;
  pthread_mutex_unlock(&core.lock);
  return reason;
}

void gpufl_stacks_counts(uint64_t *lost, int64_t *spent_ns) {
  pthread_mutex_lock(&core.lock);
  *lost = core.lost;
  *spent_ns = core.spent;
  pthread_mutex_unlock(&core.lock);
}
