// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <errno.h>
#include <time.h>

#include "gpufl_deep_internal.h"

// CUPTI's APIs for windows do not like company: reading samples while a module is unloaded reads
// freed names, and patching code while kernels are launched can lock up. So, for as long as one of
// our operations runs, the application's calls of the sets in question wait at a gate. It is no lock: a
// call that has waited long enough goes on, since what we do may depend on something that its thread
// holds. Only while CUPTI does what locks up with a launch, which takes a second where it has to allocate much, is
// long enough much longer.

__thread bool gpufl_operating;

// A call is counted as inside from the callback at its begin to that at its end. Those of a set that is watched no
// more are forgotten, since their ends will not be told; and those that had begun before their set was
// watched are not known.
enum { SETS = 3 };
#define LONGEST_CALL_NS ((int64_t)120 * 1000000000)
#define LONGEST_CRITICAL_NS ((int64_t)20 * 1000000000)
static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  uint32_t closed; // sets
  bool critical;   // CUPTI does what must not meet a launch
  uint32_t inside[SETS];
  _Atomic uint32_t life[SETS]; // changes when those inside are forgotten
  int64_t last[SETS];  // when a call last began
  uint64_t waited, timeouts;
  int64_t longest; // wait of a call since gpufl_gate_begin
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER};

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void first(void) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&gate.changed, &attributes);
  pthread_condattr_destroy(&attributes);
}

// The call that this thread is in, and how many it has led to: some functions of the driver call others.
static __thread struct {
  uint32_t depth, set, life;
} mine;

static struct timespec after(int64_t ns) {
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

// place is the index of a set.
static uint32_t place(uint32_t set) {
  uint32_t i = 0;
  while (i < SETS - 1 && (set & 1u << i) == 0) i++;
  return i;
}

uint32_t gpufl_gate_life(uint32_t set) { return atomic_load(&gate.life[place(set)]); }

void gpufl_gate_enter(uint32_t one, uint32_t life) {
  if (gpufl_operating) return;
  pthread_once(&once, first);
  uint32_t set = place(one);
  pthread_mutex_lock(&gate.lock);
  if (mine.depth > 0 && mine.life == gate.life[mine.set]) {
    mine.depth++;
  } else {
    if ((gate.closed & 1u << set) != 0 && life == gate.life[set]) {
      gate.waited++;
      int64_t began = gpufl_monotonic();
      struct timespec until = after(GPUFL_GATE_LIMIT_NS);
      while ((gate.closed & 1u << set) != 0 && life == gate.life[set]) {
        if (pthread_cond_timedwait(&gate.changed, &gate.lock, &until) == ETIMEDOUT) {
          if (gate.critical && gpufl_monotonic() - began < LONGEST_CRITICAL_NS) {
            until = after(100000000);
            continue;
          }
          if ((gate.closed & 1u << set) != 0) gate.timeouts++;
          if (gpufl_deep_is_given_up()) gate.closed = 0; // it hangs once more: nobody else shall wait for it
          break;
        }
      }
      int64_t took = gpufl_monotonic() - began;
      if (took > gate.longest) gate.longest = took;
    }
    mine.depth = 0;
    if (life == gate.life[set]) {
      mine.depth = 1;
      mine.set = set;
      mine.life = life;
      gate.inside[set]++;
      gate.last[set] = gpufl_monotonic();
    }
  }
  pthread_mutex_unlock(&gate.lock);
}

void gpufl_gate_exit(void) {
  if (gpufl_operating || mine.depth == 0) return; // it began before we listened
  pthread_mutex_lock(&gate.lock);
  if (mine.life != gate.life[mine.set]) {
    mine.depth = 0;
  } else if (--mine.depth == 0 && --gate.inside[mine.set] == 0) {
    pthread_cond_broadcast(&gate.changed);
  }
  pthread_mutex_unlock(&gate.lock);
}

// forget is called with the lock held.
static void forget(uint32_t set) {
  pthread_once(&once, first);
  gate.life[set]++;
  gate.inside[set] = 0;
  pthread_cond_broadcast(&gate.changed);
}

// quiet says whether no call of the sets is inside. The caller has the lock.
static bool quiet(uint32_t sets) {
  for (uint32_t i = 0; i < SETS; i++) {
    if ((sets & 1u << i) != 0 && gate.inside[i] > 0) return false;
  }
  return true;
}

bool gpufl_gate_close(uint32_t sets, int64_t limit_ns) {
  pthread_once(&once, first);
  struct timespec until = after(limit_ns);
  pthread_mutex_lock(&gate.lock);
  gate.closed = sets;
  while (!quiet(sets)) {
    if (pthread_cond_timedwait(&gate.changed, &gate.lock, &until) == ETIMEDOUT) break;
  }
  bool rest = quiet(sets);
  // A thread that was ended inside a call never leaves it.
  for (uint32_t i = 0; i < SETS && !rest; i++) {
    if (gate.inside[i] > 0 && gpufl_monotonic() - gate.last[i] > LONGEST_CALL_NS) forget(i);
  }
  pthread_mutex_unlock(&gate.lock);
  return rest;
}

bool gpufl_gate_hold(void) {
  pthread_mutex_lock(&gate.lock);
  gate.critical = quiet(gate.closed);
  bool held = gate.critical;
  pthread_mutex_unlock(&gate.lock);
  return held;
}

static void open_gate(bool anyway) {
  pthread_once(&once, first);
  pthread_mutex_lock(&gate.lock);
  if (anyway) gate.critical = false;
  if (!gate.critical) gate.closed = 0;
  pthread_cond_broadcast(&gate.changed);
  pthread_mutex_unlock(&gate.lock);
}

void gpufl_gate_open(void) { open_gate(true); }
void gpufl_gate_release(void) { open_gate(false); }

void gpufl_gate_forget(uint32_t sets) {
  pthread_mutex_lock(&gate.lock);
  for (uint32_t i = 0; i < SETS; i++) {
    if ((sets & 1u << i) != 0) forget(i);
  }
  pthread_mutex_unlock(&gate.lock);
}

void gpufl_gate_begin(void) {
  pthread_mutex_lock(&gate.lock);
  gate.longest = 0;
  pthread_mutex_unlock(&gate.lock);
}

void gpufl_gate_counts(uint64_t *waited, uint64_t *timeouts, int64_t *longest) {
  pthread_mutex_lock(&gate.lock);
  *longest = gate.longest;
  *waited = gate.waited;
  *timeouts = gate.timeouts;
  pthread_mutex_unlock(&gate.lock);
}
