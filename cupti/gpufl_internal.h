/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the C core share among themselves.
 */
#ifndef GPUFL_INTERNAL_H
#define GPUFL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "gpufl_abi.h"
#include "gpufl_cupti.h"

#define GPUFL_FIELD(field, symbol, parameters) int (*field) parameters;
typedef struct {
  GPUFL_CUPTI_REQUIRED(GPUFL_FIELD)
  GPUFL_CUPTI_OPTIONAL(GPUFL_FIELD)
} gpufl_cupti_calls;
typedef struct {
  GPUFL_DRIVER_REQUIRED(GPUFL_FIELD)
  GPUFL_DRIVER_OPTIONAL(GPUFL_FIELD)
} gpufl_driver_calls;
#undef GPUFL_FIELD

/* One function of a library: where its address goes and whether it must be there. */
typedef struct {
  const char *name;
  size_t offset;
  bool required;
} gpufl_symbol;

/* gpufl_resolve fills a table of functions from the library; false if a required one is missing,
 * whose name error then has. */
bool gpufl_resolve(void *library, void *table, const gpufl_symbol *symbols, size_t n,
                   char error[GPUFL_ERROR_SIZE]);

/* In cupti.c. The table is complete once gpufl_load has answered GPUFL_OK. */
extern gpufl_cupti_calls gpufl_cupti;

/* In driver.c. gpufl_driver_ready says whether the table is there. */
extern gpufl_driver_calls gpufl_driver;
bool gpufl_driver_ready(void);

/* gpufl_is_child: this process was forked from one that used the core. Locks may be held for ever
 * here by threads that do not exist, CUPTI's and CUDA's state is the parent's: nothing may be
 * touched. */
extern atomic_bool gpufl_child;
static inline bool gpufl_is_child(void) { return atomic_load_explicit(&gpufl_child, memory_order_relaxed); }

/* gpufl_watch_fork makes sure that a child knows it is one. Every way into the core that leaves
 * anything behind goes through it. */
void gpufl_watch_fork(void);

/* gpufl_call_begin says whether CUPTI may be called by an application's thread now; if so gpufl_call_end
 * must follow. gpufl_finalize waits until nobody is inside, so that CUPTI does not vanish under a
 * call. */
bool gpufl_call_begin(void);
void gpufl_call_end(void);

/* The state that scopes depend on. */
extern atomic_bool gpufl_running;         /* between gpufl_start and gpufl_stop */
extern _Atomic uint32_t gpufl_session;    /* changes with each gpufl_start */
extern _Atomic uint32_t gpufl_requested_kinds;      /* kinds */

/* gpufl_watch_launches has CUPTI tell of each launch, once it is wanted. It is cheap when it was done
 * before. */
void gpufl_watch_launches(void);

int64_t gpufl_realtime(void);
int64_t gpufl_monotonic(void); /* ns */

/* gpufl_hash returns the 32-bit FNV-1a hash of length bytes. It is not safe against chosen input. */
static inline uint32_t gpufl_hash(const char *text, size_t length) {
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 16777619u;
  return hash;
}

/* gpufl_cond_init makes a condition that waits by the monotonic clock, on which gpufl_after is the time in so many ns. */
void gpufl_cond_init(pthread_cond_t *cond);
struct timespec gpufl_after(int64_t ns);

/* In scope.c. */
int gpufl_scope_open(void);               /* makes room for events */
void gpufl_scope_start(void);
void gpufl_scope_forget(void);            /* which launch belongs to which scope: correlation ids begin anew */
void gpufl_scope_counts(uint64_t *lost, uint64_t *misplaced);
bool gpufl_scope_any(void);               /* whether any thread has a scope open */
void gpufl_scope_launch(uint32_t correlation); /* the calling thread launches */

#endif
