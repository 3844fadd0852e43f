/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the C core share. Unless a comment says otherwise, any thread may call these
 * functions, and they do not check for a forked child: the exported functions do that first.
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

/* One function of a library: the offset of its pointer in the table. */
typedef struct {
  const char *name;
  size_t offset;
  bool required;
} gpufl_symbol;

/* gpufl_resolve fills a table of functions from the library. Pointers of missing optional functions
 * are NULL. It returns false, with the name in error, if a required function is missing. */
bool gpufl_resolve(void *library, void *table, const gpufl_symbol *symbols, size_t n,
                   char error[GPUFL_ERROR_SIZE]);

/* The functions of CUPTI (cupti.c). They are complete once gpufl_load has returned GPUFL_OK. */
extern gpufl_cupti_calls gpufl_cupti;

/* The functions of the driver (driver.c). They are complete once gpufl_driver_ready
 * returns true. */
extern gpufl_driver_calls gpufl_driver;
bool gpufl_driver_ready(void);

/* The state that several files read (cupti.c). It has no lock: every field is atomic. */
typedef struct {
  atomic_bool child;                /* see gpufl_is_child */
  atomic_bool running;              /* between gpufl_start and gpufl_stop */
  _Atomic uint32_t session;         /* changes with each gpufl_start of a session */
  _Atomic uint32_t requested_kinds; /* bits 1 << GPUFL_KIND_… */
} gpufl_shared_state;
extern gpufl_shared_state gpufl_state;

/* gpufl_is_child returns true in a process forked from one that used the core. Threads that do not
 * exist here may hold locks, and the state of CUPTI and CUDA is the parent's. So a child must not
 * touch anything. */
static inline bool gpufl_is_child(void) {
  return atomic_load_explicit(&gpufl_state.child, memory_order_relaxed);
}

/* gpufl_watch_fork registers the handler that sets gpufl_state.child. Every function that creates
 * state calls it first. It is idempotent. */
void gpufl_watch_fork(void);

/* gpufl_call_begin returns true if an application thread may call CUPTI now. gpufl_call_end must
 * follow then. gpufl_finalize waits for these calls, so CUPTI is not detached during one. */
bool gpufl_call_begin(void);
void gpufl_call_end(void);

/* gpufl_watch_launches enables the callbacks for launches if scopes are recorded. After the first
 * call it costs one load. */
void gpufl_watch_launches(void);

int64_t gpufl_realtime(void);  /* ns since 1970 */
int64_t gpufl_monotonic(void); /* ns */

/* gpufl_hash returns the 32-bit FNV-1a hash of length bytes. Chosen input can
 * cause collisions. */
static inline uint32_t gpufl_hash(const char *text, size_t length) {
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 16777619u;
  return hash;
}

/* gpufl_cond_init initializes a condition variable that uses the monotonic clock. gpufl_after
 * returns the time on that clock after ns; negative values count as 0. */
void gpufl_cond_init(pthread_cond_t *cond);
struct timespec gpufl_after(int64_t ns);

/* ---- scope.c ---- */

/* gpufl_scope_open allocates the table of launches and the queue of events, once in a process. The
 * owner calls it. Error: GPUFL_NO_MEMORY. */
int gpufl_scope_open(void);

/* gpufl_scope_start drops the open ranges of an earlier session. Queued events stay. The owner
 * calls it after gpufl_scope_open. */
void gpufl_scope_start(void);

/* gpufl_scope_forget clears the table of launches, because correlation ids restart. No callback for
 * a launch may run concurrently. */
void gpufl_scope_forget(void);

/* gpufl_scope_counts returns counts since the process started. */
void gpufl_scope_counts(uint64_t *lost, uint64_t *misplaced);

/* gpufl_scope_any returns true if any thread has a scope open. */
bool gpufl_scope_any(void);

/* gpufl_scope_launch records the scope of the calling thread for the launch. It is on the launch
 * path: it takes a lock only after a scope was misplaced. */
void gpufl_scope_launch(uint32_t correlation);

#endif
