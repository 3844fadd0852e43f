// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gpufl_deep_internal.h"

// CUPTI's APIs for windows do not like company: reading samples while a module is unloaded reads
// freed names, and patching code while kernels are launched can lock up. So, for as long as one of
// our operations runs, the application's calls of the sets in question wait at a gate. It is no lock: a
// call that has waited long enough goes on, since what we do may depend on something that its thread
// holds. Only while CUPTI does what locks up with a launch, which takes a second where it has to allocate much, is
// long enough much longer.
//
// CUPTI's own threads call the driver too and are not meant: what we have CUPTI do may wait for them, and one of them may be in a call for as
// long as something else has the GPU's counters.
//
// Every launch passes here for as long as the process lives, so where the gate is open a thread writes only what is its own:
// it says that it is inside and then looks whether the gate is closed, and whoever closes it closes it first and
// then looks who is inside. One of the two sees the other.

__thread bool gpufl_operating;

enum { SETS = 3 };
#define LONGEST_CRITICAL_NS ((int64_t)20 * 1000000000)

// A thread of the application. It is never freed, but taken over by another once its own has ended: whoever closes the
// gate may be reading it. No two are in one line of a processor's cache.
typedef struct visitor {
  _Alignas(64) _Atomic uint32_t inside; // of the call that the thread is in: 1 + the index of its set, 0 for none
  _Atomic uint32_t life;    // of the gate as the call began
  _Atomic uint32_t what;    // the call, as the caller names it
  _Atomic uintptr_t frame;  // where on the thread's stack the call was told: what it leads to is told further down
  _Atomic uintptr_t base;   // all that the call does is further down on the stack than this; UINTPTR_MAX if that is not known
  _Atomic uint32_t number;  // CUPTI's of the call
  uint32_t ended, ended_what; // the call that was last taken to be over without its end being told; ended_what is 0 for none
  int32_t thread;           // its id
  bool taken;              // with gate.lock
  bool cuptis;             // the thread is
  gpufl_heap heap;         // the thread's own
  struct visitor *next;    // written once
} visitor;

static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  _Atomic uint32_t closed; // sets; written with the lock
  _Atomic uint32_t life;   // changes when those inside are forgotten
  bool critical;           // CUPTI does what must not meet a launch
  bool blind;              // a thread found no memory: who is inside is not known
  visitor *visitors;
  struct {
    visitor *who; // that quiet found
    int32_t thread;
    uint32_t what, number; // the call
    bool out;              // it was seen to be out of it
  } last;
  _Atomic bool nests; // a launch has led to another
  uint64_t waited, timeouts;
  _Atomic uint64_t untold; // ends
  uint64_t opened; // how often
  // Calls that wait since it was opened last, and those that it was opened for and that have not woken yet: if it is closed again before they do
  // they go first all the same, or a thread that gets no processor would wait again and again.
  uint32_t waiting, admitted;
  int64_t longest; // wait of a call since gpufl_gate_begin
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER};

static __thread visitor *mine;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool have_key; // a process has so many

// thread_ends is also for one that ends inside a call.
static void thread_ends(void *of) {
  visitor *v = of;
  mine = NULL;
  if (gpufl_is_child()) return;
  atomic_store(&v->inside, 0);
  v->ended_what = 0;
  gpufl_heap_forget(&v->heap);
  pthread_mutex_lock(&gate.lock);
  v->taken = false;
  pthread_mutex_unlock(&gate.lock);
}

static void first(void) {
  gpufl_cond_init(&gate.changed);
  have_key = pthread_key_create(&key, thread_ends) == 0;
}

static visitor *own(void) {
  if (mine != NULL) return mine;
  pthread_once(&once, first);
  pthread_mutex_lock(&gate.lock);
  visitor *v = gate.visitors;
  while (v != NULL && v->taken) v = v->next;
  if (v == NULL && (v = aligned_alloc(_Alignof(visitor), sizeof *v)) != NULL) {
    memset(v, 0, sizeof *v);
    v->next = gate.visitors;
    gate.visitors = v;
  }
  if (v == NULL || !have_key || pthread_setspecific(key, v) != 0) {
    gate.blind = true;
    v = NULL;
  } else {
    v->taken = true;
    v->thread = (int32_t)gpufl_thread();
    v->cuptis = gpufl_thread_is_cuptis();
  }
  pthread_mutex_unlock(&gate.lock);
  return mine = v;
}

// place is the index of a set.
static uint32_t place(uint32_t set) {
  uint32_t i = 0;
  while (i < SETS - 1 && (set & 1u << i) == 0) i++;
  return i;
}

uint32_t gpufl_gate_life(void) { return atomic_load(&gate.life); }

static bool holds_up(uint32_t set, uint32_t life) {
  return (atomic_load(&gate.closed) & 1u << set) != 0 && life == atomic_load(&gate.life);
}

// wait_outside has a call wait until the gate is open, or for long enough; it is inside then.
static void wait_outside(visitor *v, uint32_t set, uint32_t life) {
  atomic_store(&v->inside, 0);
  pthread_mutex_lock(&gate.lock);
  if (holds_up(set, life)) {
    gate.waited++;
    gate.waiting++;
    uint64_t opened = gate.opened;
    int64_t began = gpufl_monotonic();
    struct timespec until = gpufl_after(GPUFL_GATE_LIMIT_NS);
    while (gate.opened == opened && holds_up(set, life)) {
      if (pthread_cond_timedwait(&gate.changed, &gate.lock, &until) != ETIMEDOUT) continue;
      if (gate.critical && gpufl_monotonic() - began < LONGEST_CRITICAL_NS) {
        until = gpufl_after(100000000);
        continue;
      }
      if (gate.opened != opened || !holds_up(set, life)) break;
      gate.timeouts++;
      if (gpufl_deep_is_given_up()) atomic_store(&gate.closed, 0); // it hangs once more: nobody else shall wait for it
      break;
    }
    if (gate.opened == opened) {
      gate.waiting--;
    } else {
      gate.admitted--;
    }
    int64_t took = gpufl_monotonic() - began;
    if (took > gate.longest) gate.longest = took;
  }
  // With the lock: whoever closes the gate from here on sees it.
  atomic_store(&v->inside, 1 + set);
  pthread_mutex_unlock(&gate.lock);
}

// leads_to says whether the call that the thread is in led to one that is told now, at here. If not, the former is over, and its
// end was not told.
//
// What it led to is told further down on the stack, but so is many another call: the stack alone would keep a thread inside for
// good where the end of one is lost. A launch may lead to the load of a module. None was seen to lead to a launch, so one that comes
// is taken to be a call of its own, until the end of one that was taken to be over shows that there they do.
static bool leads_to(const visitor *v, uint32_t one, uintptr_t here) {
  if (here >= atomic_load_explicit(&v->frame, memory_order_relaxed)) return false;
  return one != GPUFL_SET_LAUNCH || atomic_load_explicit(&gate.nests, memory_order_relaxed);
}

// The parameters of a call are in the frame of the driver's function, if they are on the stack at all.
enum { FARTHEST_PARAMETERS = 256 << 10 };

void gpufl_gate_enter(uint32_t one, uint32_t life, uint32_t what, uint32_t number, const void *parameters) {
  if (gpufl_operating) return;
  visitor *v = own();
  if (v == NULL || v->cuptis) return;
  uintptr_t here = (uintptr_t)__builtin_frame_address(0);
  if (atomic_load_explicit(&v->inside, memory_order_relaxed) != 0 && atomic_load_explicit(&v->life, memory_order_relaxed) == atomic_load(&gate.life)) {
    if (leads_to(v, one, here)) return;
    atomic_fetch_add_explicit(&gate.untold, 1, memory_order_relaxed);
    v->ended = atomic_load_explicit(&v->number, memory_order_relaxed);
    v->ended_what = atomic_load_explicit(&v->what, memory_order_relaxed);
  }
  uintptr_t above = (uintptr_t)parameters - here;
  atomic_store_explicit(&v->base, above < FARTHEST_PARAMETERS ? here + above : UINTPTR_MAX, memory_order_relaxed);
  atomic_store_explicit(&v->frame, here, memory_order_relaxed);
  atomic_store_explicit(&v->what, what, memory_order_relaxed);
  atomic_store_explicit(&v->number, number, memory_order_relaxed);
  uint32_t set = place(one);
  atomic_store_explicit(&v->life, life, memory_order_relaxed);
  atomic_store(&v->inside, 1 + set);
  if (holds_up(set, life)) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before); // it would end with the lock
    wait_outside(v, set, life);
    pthread_setcancelstate(before, NULL);
  }
  if (one == GPUFL_SET_LAUNCH && v->heap.turn != atomic_load_explicit(&gpufl_heap_turn, memory_order_relaxed)) gpufl_heap_settle(&v->heap);
}

void gpufl_gate_exit(uint32_t what, uint32_t number) {
  visitor *v = mine;
  if (gpufl_operating || v == NULL) return;
  if (atomic_load_explicit(&v->inside, memory_order_relaxed) != 0 && number == atomic_load_explicit(&v->number, memory_order_relaxed) && what == atomic_load_explicit(&v->what, memory_order_relaxed)) {
    atomic_store_explicit(&v->inside, 0, memory_order_release);
    return;
  }
  // Another led to it, or it began before we listened, or this:
  if (v->ended_what == 0 || number != v->ended || what != v->ended_what) return;
  v->ended_what = 0;
  atomic_fetch_sub_explicit(&gate.untold, 1, memory_order_relaxed);
  atomic_store_explicit(&gate.nests, true, memory_order_relaxed);
}

// quiet says whether no call of the sets is inside. The caller has the lock.
static bool quiet(uint32_t sets) {
  if (gate.blind || gate.admitted > 0) return false;
  for (visitor *v = gate.visitors; v != NULL; v = v->next) {
    uint32_t inside = atomic_load(&v->inside);
    if (inside == 0 || (sets & 1u << (inside - 1)) == 0) continue;
    if (atomic_load(&v->life) != atomic_load(&gate.life)) continue;
    uint32_t number = atomic_load_explicit(&v->number, memory_order_relaxed);
    if (gate.last.who != v || gate.last.number != number) {
      gate.last.who = v;
      gate.last.thread = v->thread;
      gate.last.what = atomic_load_explicit(&v->what, memory_order_relaxed);
      gate.last.number = number;
      gate.last.out = false;
    }
    return false;
  }
  return true;
}

// look looks whether the thread that is waited for sleeps further up on its stack than its call. The caller has the lock, which is not held
// meanwhile.
static void look(void) {
  visitor *v = gate.last.who;
  if (v == NULL) return;
  uint32_t number = gate.last.number;
  int32_t thread = gate.last.thread;
  uintptr_t base = atomic_load(&v->base), stack = 0;
  pthread_mutex_unlock(&gate.lock);
  bool asleep = gpufl_thread_sleeps(thread, &stack);
  pthread_mutex_lock(&gate.lock);
  // If its end was told meanwhile, or it is in another call by now, that says nothing.
  if (asleep && stack > base && gate.last.number == number && atomic_load(&v->inside) != 0 && atomic_load(&v->number) == number) gate.last.out = true;
}

bool gpufl_gate_close(uint32_t sets, int64_t limit_ns) {
  pthread_once(&once, first);
  int64_t until = gpufl_monotonic() + limit_ns;
  pthread_mutex_lock(&gate.lock);
  atomic_store(&gate.closed, sets);
  bool rest; // and nobody has opened it meanwhile
  // Those who leave do not say so: it would cost every launch. Most leave within microseconds.
  for (int i = 0; !(rest = quiet(sets)) && atomic_load(&gate.closed) == sets && gpufl_monotonic() < until; i++) {
    if (i % 100 == 99 && !gate.last.out && !gate.blind) look();
    pthread_mutex_unlock(&gate.lock);
    if (i < 50) {
      sched_yield();
    } else {
      gpufl_nap(50000);
    }
    pthread_mutex_lock(&gate.lock);
  }
  rest = rest && atomic_load(&gate.closed) == sets;
  pthread_mutex_unlock(&gate.lock);
  return rest;
}

bool gpufl_gate_hold(void) {
  // One that comes to the gate seems to be inside for a moment.
  for (int i = 0; i < 20; i++) {
    pthread_mutex_lock(&gate.lock);
    uint32_t closed = atomic_load(&gate.closed);
    gate.critical = closed != 0 && quiet(closed);
    bool held = gate.critical;
    pthread_mutex_unlock(&gate.lock);
    if (held) return true;
    gpufl_nap(50000);
  }
  return false;
}

static void open_gate(bool anyway) {
  pthread_once(&once, first);
  pthread_mutex_lock(&gate.lock);
  if (anyway) gate.critical = false;
  if (!gate.critical) {
    atomic_store(&gate.closed, 0);
    gate.opened++;
    gate.admitted += gate.waiting;
    gate.waiting = 0;
  }
  pthread_cond_broadcast(&gate.changed);
  pthread_mutex_unlock(&gate.lock);
}

void gpufl_gate_open(void) { open_gate(true); }
void gpufl_gate_release(void) { open_gate(false); }

void gpufl_gate_forget(void) {
  pthread_once(&once, first);
  pthread_mutex_lock(&gate.lock);
  atomic_fetch_add(&gate.life, 1);
  pthread_cond_broadcast(&gate.changed);
  pthread_mutex_unlock(&gate.lock);
}

void gpufl_gate_inside(int32_t *thread, uint32_t *what, bool *out) {
  pthread_mutex_lock(&gate.lock);
  *thread = gate.last.thread;
  *what = gate.last.what;
  *out = gate.last.out;
  pthread_mutex_unlock(&gate.lock);
}

void gpufl_gate_begin(void) {
  pthread_mutex_lock(&gate.lock);
  gate.longest = 0;
  pthread_mutex_unlock(&gate.lock);
}

gpufl_gate_totals gpufl_gate_counts(void) {
  pthread_mutex_lock(&gate.lock);
  gpufl_gate_totals t = {gate.waited, gate.timeouts, atomic_load_explicit(&gate.untold, memory_order_relaxed), gate.longest};
  pthread_mutex_unlock(&gate.lock);
  return t;
}
