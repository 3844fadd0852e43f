// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gpufl_deep_internal.h"

// The barrier blocks some driver calls of the application while CUPTI changes its state for a
// window.
//
// Reasons (measured on an H200, CUPTI 13.0):
//   - cuptiPCSamplingStart, Stop and Disable deadlock with a thread in cuLaunchKernel. So do SASS
//     patching and flushing.
//   - cuptiPCSamplingGetData reads freed names while a module is unloaded.
//
// Protocol:
//   1. A thread that begins a call stores the call in its slot and then reads `closed`. If the
//      set of the call is closed, it clears the slot and blocks. It stores the call again when it
//      resumes.
//   2. A thread that ends a call clears the slot. If CUPTI does not report the end, the thread's
//      next call of that class replaces the call in the slot.
//   3. The window's thread stores `closed` and then reads all slots until no call of the closed
//      sets is in flight. Both sides store before they read, so one of them always sees the other.
//   4. The window's thread holds the barrier for work that must not run next to a call. Nobody else
//      can open it then. It can hold the barrier only while no call is in flight.
//   5. The window's thread opens the barrier. It counts the blocked threads as admitted, so the
//      next close waits until they have resumed.
//   6. A closed barrier blocks threads for GPUFL_BARRIER_LIMIT_NS. Afterwards all of them continue
//      and are counted, and later calls do not block. So a window whose call into CUPTI never
//      returns costs the application the limit once.
//      The window's thread stops waiting for calls in flight at its own, much earlier deadline.
//   7. Calls of a thread that operates a window never block: gpufl_operating.
//
// The open barrier costs a launch two stores and one load in a cache line of the thread's own.

__thread bool gpufl_operating;

enum { LAUNCH, OTHER, CLASSES };

// A slot belongs to one thread. It is never freed, since the window's thread may read it. After the
// thread has ended, another one reuses it.
typedef struct slot {
  _Alignas(64) _Atomic uint64_t call[CLASSES]; // In flight: the epoch, then CUPTI's number of it.
  _Atomic uint32_t what;                       // The function of the last call.
  int32_t thread;
  bool used; // Protected by barrier.lock.
  struct slot *next;
} slot;

static struct {
  pthread_mutex_t lock;
  pthread_cond_t opened_cond;
  _Atomic uint32_t closed; // Sets; written with the lock held.
  _Atomic uint32_t epoch;  // Calls of earlier epochs are not in flight.
  slot *slots;
  bool held;
  bool untracked; // A thread has no slot, so its calls are unknown.
  int64_t blocks_until; // monotonic; of the last close
  uint64_t opened, waiting, admitted;
  int32_t busy_thread; // What gpufl_barrier_close last waited for.
  uint32_t busy_call;
  gpufl_barrier_counts counts;

  // The key releases the slot of a thread at its end.
  pthread_once_t once;
  pthread_key_t key;
  bool have_key; // False if the process has no free key.
} barrier = {.lock = PTHREAD_MUTEX_INITIALIZER, .epoch = 1, .once = PTHREAD_ONCE_INIT};

static __thread slot *tls_slot;

static void thread_ends(void *of) {
  slot *s = of;
  tls_slot = NULL;
  if (gpufl_is_child()) return;
  for (int i = 0; i < CLASSES; i++) atomic_store(&s->call[i], 0);
  pthread_mutex_lock(&barrier.lock);
  s->used = false;
  pthread_mutex_unlock(&barrier.lock);
}

static void initialize(void) {
  gpufl_cond_init(&barrier.opened_cond);
  barrier.have_key = pthread_key_create(&barrier.key, thread_ends) == 0;
}

static slot *get_thread_slot(void) {
  if (tls_slot != NULL) return tls_slot;
  pthread_once(&barrier.once, initialize);
  pthread_mutex_lock(&barrier.lock);
  slot *s = barrier.slots;
  while (s != NULL && s->used) s = s->next;
  if (s == NULL && (s = aligned_alloc(_Alignof(slot), sizeof *s)) != NULL) {
    memset(s, 0, sizeof *s);
    s->next = barrier.slots;
    barrier.slots = s;
  }
  if (s == NULL || !barrier.have_key || pthread_setspecific(barrier.key, s) != 0) {
    barrier.untracked = true;
    s = NULL;
  } else {
    s->used = true;
    s->thread = (int32_t)gpufl_thread();
  }
  pthread_mutex_unlock(&barrier.lock);
  return tls_slot = s;
}

static int class_of(uint32_t set) { return set == GPUFL_SET_LAUNCH ? LAUNCH : OTHER; }

static bool in_flight(slot *s, int class) {
  return atomic_load(&s->call[class]) >> 32 == atomic_load(&barrier.epoch);
}

uint32_t gpufl_barrier_epoch(void) { return atomic_load(&barrier.epoch); }

static bool is_closed(uint32_t set, uint32_t epoch) {
  return (atomic_load(&barrier.closed) & set) != 0 && epoch == atomic_load(&barrier.epoch);
}

// block waits until the barrier opens or the limit expires. Afterwards the call is in flight.
static void block(slot *s, uint32_t set, uint64_t call) {
  atomic_store(&s->call[class_of(set)], 0);
  pthread_mutex_lock(&barrier.lock);
  if (is_closed(set, (uint32_t)(call >> 32))) {
    int64_t began = gpufl_monotonic();
    struct timespec until = gpufl_after(barrier.blocks_until - began);
    uint64_t opened = barrier.opened;
    barrier.counts.blocked++;
    barrier.waiting++;
    while (barrier.opened == opened &&
           pthread_cond_timedwait(&barrier.opened_cond, &barrier.lock, &until) != ETIMEDOUT) {
      continue;
    }
    if (barrier.opened != opened) {
      barrier.admitted--;
    } else {
      barrier.waiting--;
      barrier.counts.timeouts++;
    }
    int64_t took = gpufl_monotonic() - began;
    if (took > barrier.counts.longest_ns) barrier.counts.longest_ns = took;
  }
  // With the lock held, so the next close sees the call.
  atomic_store(&s->call[class_of(set)], call);
  pthread_mutex_unlock(&barrier.lock);
}

void gpufl_barrier_enter(uint32_t set, uint32_t epoch, uint32_t what, uint32_t number) {
  if (gpufl_operating) return;
  slot *s = get_thread_slot();
  if (s == NULL) return;
  int class = class_of(set);
  // A launch may load a module. That nested call must not block.
  bool nested = in_flight(s, class == LAUNCH ? OTHER : LAUNCH);
  uint64_t call = (uint64_t)epoch << 32 | number;
  atomic_store_explicit(&s->what, what, memory_order_relaxed);
  atomic_store(&s->call[class], call);
  if (nested || !is_closed(set, epoch)) return;
  int before;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before); // a cancelled thread would keep the lock
  block(s, set, call);
  pthread_setcancelstate(before, NULL);
}

void gpufl_barrier_exit(uint32_t set, uint32_t number) {
  slot *s = tls_slot;
  if (gpufl_operating || s == NULL) return;
  _Atomic uint64_t *call = &s->call[class_of(set)];
  if ((uint32_t)atomic_load_explicit(call, memory_order_relaxed) == number) {
    atomic_store_explicit(call, 0, memory_order_release);
  }
}

// no_calls_in_flight checks all slots. The caller holds the lock.
static bool no_calls_in_flight(uint32_t sets) {
  if (barrier.untracked || barrier.admitted > 0) return false;
  for (slot *s = barrier.slots; s != NULL; s = s->next) {
    for (int class = 0; class < CLASSES; class++) {
      if ((class == LAUNCH && (sets & GPUFL_SET_LAUNCH) == 0) || !in_flight(s, class)) continue;
      barrier.busy_thread = s->thread;
      barrier.busy_call = atomic_load_explicit(&s->what, memory_order_relaxed);
      return false;
    }
  }
  return true;
}

bool gpufl_barrier_close(uint32_t sets, int64_t limit_ns) {
  pthread_once(&barrier.once, initialize);
  int64_t until = gpufl_monotonic() + limit_ns;
  pthread_mutex_lock(&barrier.lock);
  barrier.blocks_until = gpufl_monotonic() + GPUFL_BARRIER_LIMIT_NS;
  atomic_store(&barrier.closed, sets);
  bool quiet;
  // Threads do not signal the end of a call, since that would cost each launch. Most calls take
  // microseconds.
  for (int i = 0; !(quiet = no_calls_in_flight(sets)) && atomic_load(&barrier.closed) == sets &&
                  gpufl_monotonic() < until;
       i++) {
    pthread_mutex_unlock(&barrier.lock);
    if (i < 50) {
      sched_yield();
    } else {
      gpufl_nap(50000);
    }
    pthread_mutex_lock(&barrier.lock);
  }
  quiet = quiet && atomic_load(&barrier.closed) == sets; // false if the exit handler opened it
  pthread_mutex_unlock(&barrier.lock);
  if (!quiet) gpufl_barrier_open();
  return quiet;
}

bool gpufl_barrier_hold(void) {
  // A call that begins is in its slot for a moment before it blocks.
  for (int i = 0; i < 20; i++) {
    pthread_mutex_lock(&barrier.lock);
    uint32_t closed = atomic_load(&barrier.closed);
    bool held = barrier.held = closed != 0 && no_calls_in_flight(closed);
    pthread_mutex_unlock(&barrier.lock);
    if (held) return true;
    gpufl_nap(50000);
  }
  return false;
}

static void open_barrier(bool held) {
  pthread_once(&barrier.once, initialize);
  pthread_mutex_lock(&barrier.lock);
  if (held || !barrier.held) {
    barrier.held = false;
    atomic_store(&barrier.closed, 0);
    barrier.opened++;
    barrier.admitted += barrier.waiting;
    barrier.waiting = 0;
    pthread_cond_broadcast(&barrier.opened_cond);
  }
  pthread_mutex_unlock(&barrier.lock);
}

void gpufl_barrier_open(void) { open_barrier(true); }
void gpufl_barrier_open_if_not_held(void) { open_barrier(false); }

void gpufl_barrier_next_epoch(void) {
  atomic_fetch_add(&barrier.epoch, 1);
  gpufl_barrier_open();
}

void gpufl_barrier_busy(int32_t *thread, uint32_t *call) {
  pthread_mutex_lock(&barrier.lock);
  *thread = barrier.busy_thread;
  *call = barrier.busy_call;
  pthread_mutex_unlock(&barrier.lock);
}

gpufl_barrier_counts gpufl_barrier_take_counts(bool reset) {
  pthread_mutex_lock(&barrier.lock);
  gpufl_barrier_counts counts = barrier.counts;
  if (reset) memset(&barrier.counts, 0, sizeof barrier.counts);
  pthread_mutex_unlock(&barrier.lock);
  return counts;
}
