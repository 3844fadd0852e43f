/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the C core share for deep-profiling windows:
 *
 *   modules.c     records images of modules, contexts and captures from callbacks.
 *   barrier.c     blocks calls of the application while CUPTI changes its state.
 *   lease.c       decides which process samples a GPU, and which of its contexts.
 *   results.c     holds the rows, names and counts of a window.
 *   pcsampling.c  is the engine for PC sampling.
 *   sass.c        is the engine for SASS metrics.
 *   deep.c        opens and closes the window.
 *
 * "The window's thread" below is the thread that holds gpufl_deep.operation.
 */
#ifndef GPUFL_DEEP_INTERNAL_H
#define GPUFL_DEEP_INTERNAL_H

#include "gpufl_deep.h"
#include "gpufl_deep_abi.h"
#include "gpufl_internal.h"

#define GPUFL_FIELD(field, symbol, parameters) int (*field) parameters;
typedef struct {
  GPUFL_DEEP_SHARED(GPUFL_FIELD)
  GPUFL_DEEP_PC(GPUFL_FIELD)
  GPUFL_DEEP_SASS(GPUFL_FIELD)
} gpufl_deep_calls;
typedef struct {
  GPUFL_DEEP_DRIVER(GPUFL_FIELD)
} gpufl_deep_driver_calls;
#undef GPUFL_FIELD

/* The capacity of the table of stall reasons and metrics. */
enum { GPUFL_MAX_NAMES = 512 };

enum { GPUFL_WINDOW_CLOSED, GPUFL_WINDOW_OPEN, GPUFL_WINDOW_ENDED };

/* The state of windows. */
typedef struct {
  /* Written by gpufl_load and gpufl_driver_load. Pointers of missing functions are NULL. */
  gpufl_deep_calls calls;
  gpufl_deep_driver_calls driver;

  /* A thread that operates a window holds operation: the owner, or one that destroys a context. It
   * protects the fields up to counts. */
  pthread_mutex_t operation;
  int capture_mode;         /* the earlier mode of the thread that operates */
  bool quiesced;            /* no call is in flight, and CUPTI processes no records */
  gpufl_deep_config config; /* of the window; its names are the first of gpufl_deep_name */
  char lease_dir[4096];
  gpufl_deep_counts counts; /* see gpufl_window_count */

  atomic_int state; /* GPUFL_WINDOW_... */
  atomic_bool given_up, exiting;
  atomic_bool patches; /* kernels are patched */
  atomic_bool used;    /* the process has opened a window, or is about to */
  _Atomic(const char *) current_call, last_failed_call, busy_reason;
} gpufl_deep_state;

extern gpufl_deep_state gpufl_deep; /* deep.c */

/* GPUFL_DEEP_CALL calls a function of CUPTI. It records the name for gpufl_deep_call, and for
 * gpufl_deep_last_failed_call after an error. */
#define GPUFL_DEEP_CALL(field, p) \
  (gpufl_deep_calling(#field), gpufl_deep_returned(#field, gpufl_deep.calls.field(p)))
void gpufl_deep_calling(const char *function);
int gpufl_deep_returned(const char *function, int result);

/* gpufl_deep_load and gpufl_deep_load_driver resolve the functions for windows. gpufl_load and
 * gpufl_driver_load call them. */
void gpufl_deep_load(void *library);
void gpufl_deep_load_driver(void *library);

/* gpufl_deep_armed returns true if a window is open or was given up. */
bool gpufl_deep_armed(void);

/* gpufl_deep_patches returns true while launched kernels are patched, in a window that was not
 * given up. It is on the launch path. */
bool gpufl_deep_patches(void);
bool gpufl_deep_is_given_up(void);

/* ---- callbacks (cupti.c) ---- */

/* Sets of driver functions that the barrier can block. */
enum {
  GPUFL_SET_LAUNCH = 1, /* launches, copies and memsets */
  GPUFL_SET_MODULE = 2, /* loading and unloading of modules */
  GPUFL_SET_CAPTURE = 4,
  GPUFL_SETS_ALWAYS = GPUFL_SET_MODULE | GPUFL_SET_CAPTURE,
  GPUFL_SETS_ALL = GPUFL_SETS_ALWAYS | GPUFL_SET_LAUNCH
};

/* Once the process has opened a window, kinds of activity and callbacks must not be switched while
 * launches are in flight. Otherwise CUPTI deadlocks, or threads lose their records (CUPTI 13.0,
 * H200).
 *
 * gpufl_quiesce_begin blocks launches until gpufl_quiesce_end, which takes its result. It returns 1
 * if it blocks them, and 0 if that is not needed. It returns GPUFL_NOT_QUIESCED if calls were still
 * in flight after limit_ns: then nothing may be switched. The owner of the session calls both. */
int gpufl_quiesce_begin(int64_t limit_ns);
void gpufl_quiesce_end(int quiet);
#define GPUFL_QUIESCE_CALLS_NS ((int64_t)5 * 1000000000)

/* gpufl_window_comes makes this rule apply from now on, as if a window had been open. */
void gpufl_window_comes(void);

/* gpufl_flush_lock excludes flushes of other threads until gpufl_flush_end, since they deadlock
 * with changes of CUPTI's state. It waits for a flush in progress until the given time of
 * gpufl_monotonic and returns false if that was not sufficient. gpufl_flush_begin flushes twice
 * under the lock. */
bool gpufl_flush_lock(int64_t until);
void gpufl_flush_begin(void);
void gpufl_flush_end(void);

/* gpufl_deep_watch_exit registers the exit handler that ends windows. gpufl_open calls it. Handlers
 * registered later run earlier, so the injection library can still close a window in order. */
void gpufl_deep_watch_exit(void);

/* gpufl_resource_callbacks_on returns true if contexts, modules and captures have been reported
 * since gpufl_open. */
bool gpufl_resource_callbacks_on(void);

/* gpufl_callbacks_alive makes a driver call that fails: it loads a module that does not exist. It
 * returns true if CUPTI reported the call, and false also if the driver lacks the function. Only
 * the window's thread may call it, with the application quiesced. */
bool gpufl_callbacks_alive(void);

/* gpufl_mark_unresponsive records that CUPTI has removed its hooks from the driver's calls. It then
 * delivers no callbacks and no records until the process ends. From now on nothing is switched,
 * since that may crash CUPTI. Completed buffers are still read. */
void gpufl_mark_unresponsive(void);

/* gpufl_activity returns true if a kind of activity is enabled. */
bool gpufl_activity(void);

/* gpufl_operating is true while the calling thread operates a window. Its calls are ours then. */
extern __thread bool gpufl_operating;

/* ---- barrier.c, which describes the protocol ---- */

/* GPUFL_BARRIER_LIMIT_NS is the longest time that a closed barrier blocks calls. CUPTI takes up to a second where
 * it allocates much memory. A call that continued during that time would deadlock. */
#define GPUFL_BARRIER_LIMIT_NS ((int64_t)10 * 1000000000)

/* gpufl_barrier_epoch returns the current epoch. A caller reads it before it checks whether windows
 * are possible. A call of an earlier epoch does not count, since its end may not be reported. */
uint32_t gpufl_barrier_epoch(void);

/* gpufl_barrier_enter and gpufl_barrier_exit report the begin and the end of a call on the calling
 * thread. gpufl_barrier_enter blocks while the barrier is closed for the set. what is CUPTI's
 * number of the function, number that of the call. Both are on the launch path. */
void gpufl_barrier_enter(uint32_t set, uint32_t epoch, uint32_t what, uint32_t number);
void gpufl_barrier_exit(uint32_t set, uint32_t number);

/* gpufl_barrier_close blocks new calls of the sets and waits until none is in flight. After
 * limit_ns it opens the barrier again and returns false. */
bool gpufl_barrier_close(uint32_t sets, int64_t limit_ns);

/* gpufl_barrier_hold prevents gpufl_barrier_open_if_not_held from opening the barrier. It returns
 * false if calls are in flight again. */
bool gpufl_barrier_hold(void);
void gpufl_barrier_open(void);
void gpufl_barrier_open_if_not_held(void);

/* gpufl_barrier_next_epoch is for the end of the subscription, which loses the ends of calls in
 * flight. It opens the barrier. */
void gpufl_barrier_next_epoch(void);

/* gpufl_barrier_busy returns the thread and function that gpufl_barrier_close last waited for. */
void gpufl_barrier_busy(int32_t *thread, uint32_t *call);

typedef struct {
  uint64_t blocked, timeouts; /* blocked calls, and those of them that reached the limit */
  int64_t longest_ns;
} gpufl_barrier_counts;

/* gpufl_barrier_take_counts returns the counts, and resets them with reset. */
gpufl_barrier_counts gpufl_barrier_take_counts(bool reset);

/* ---- modules.c ---- */

/* gpufl_resources_open starts recording images, up to max_bytes. gpufl_resources_close drops all
 * state. gpufl_resources_lose keeps the images and drops the rest: without callbacks the state of
 * modules, contexts and captures is unknown. The owner of the session calls them. */
void gpufl_resources_open(uint64_t max_bytes);
void gpufl_resources_close(void);
void gpufl_resources_lose(void);

/* gpufl_on_resource and gpufl_on_capture process callbacks of CUPTI, on the application's thread.
 * They ignore callbacks without data. */
void gpufl_on_resource(uint32_t cbid, const void *data);
void gpufl_on_capture(bool begins, const gpufl_callback_data *call);

/* gpufl_captures returns the number of streams that are being captured. */
uint32_t gpufl_captures(void);

/* gpufl_captures_known returns true if captures have been reported for so long that an unreported
 * one cannot be in progress. */
bool gpufl_captures_known(void);

enum { GPUFL_MAX_CONTEXTS = 64 };
typedef struct {
  void *handle;
  int32_t device; /* -1: unknown */
  bool seen;      /* its creation was reported, and so are its captures */
  bool ending;    /* its destruction has begun */
} gpufl_context;

/* gpufl_known_contexts returns the number of reported contexts. It does not query CUPTI. */
int gpufl_known_contexts(void);

/* gpufl_contexts copies the contexts that exist and returns their number. It queries the driver for
 * primary contexts and CUPTI for devices. *more receives the number beyond the capacity. */
int gpufl_contexts(gpufl_context out[GPUFL_MAX_CONTEXTS], uint64_t *more);

/* gpufl_context_exists returns true until the destruction has been processed; gpufl_context_lives
 * only until it begins. */
bool gpufl_context_exists(void *handle);
bool gpufl_context_lives(void *handle);

/* gpufl_module_loads returns how often an image with this CRC was loaded; 0 if it is unknown. */
uint32_t gpufl_module_loads(uint64_t crc);

/* ---- results.c ---- */

/* gpufl_window_begin allocates the results of a window, gpufl_window_end frees them. The window's
 * thread calls both. Error: GPUFL_NO_MEMORY. */
int gpufl_window_begin(const gpufl_deep_config *config);
void gpufl_window_end(void);

/* gpufl_window_function and gpufl_window_name return the index of a function, and of a stall reason
 * or metric. They return UINT32_MAX if the table is full. */
uint32_t gpufl_window_function(const char *name);
uint32_t gpufl_window_name(const char *name);

/* gpufl_window_row queues a row. A row beyond the capacity is counted as lost. */
void gpufl_window_row(const gpufl_deep_row *row);
uint32_t gpufl_window_free_rows(void);

/* gpufl_window_known records that a device knows this name of the configuration. */
void gpufl_window_known(uint32_t index);

/* gpufl_window_count adds n to one of gpufl_deep.counts under the lock of the results. */
void gpufl_window_count(uint64_t *which, uint64_t n);

/* ---- deep.c ---- */

/* gpufl_deep_context_ends is called by modules.c before a context is destroyed. It waits for the
 * window to release the context. */
void gpufl_deep_context_ends(void *handle);

/* gpufl_window_quiesce closes the barrier and waits until no call is in flight. With idle it also
 * waits until the contexts have finished the launched work. After limit_ns, or GPUFL_QUIESCE_NS, it
 * opens the barrier and returns false: calls must not block longer for a busy program. */
#define GPUFL_QUIESCE_NS ((int64_t)1000000000)
bool gpufl_window_quiesce(bool idle, int64_t limit_ns);

/* gpufl_nap sleeps. */
void gpufl_nap(int64_t ns);

/* gpufl_enter_context makes a context current on the calling thread. gpufl_leave_context restores
 * the earlier one and takes the result of the former. */
bool gpufl_enter_context(void *handle);
void gpufl_leave_context(bool entered);

/* ---- lease.c ---- */

/* gpufl_lease takes the lease of a GPU for this process and this context. *first becomes true if
 * the context was not sampled before. gpufl_lease_cancel returns the lease of a context that was
 * not sampled after all. gpufl_lease_context_ends forgets a context; the process keeps the lease.
 * Errors: GPUFL_TAKEN if another process or context has the lease; GPUFL_NO_MEMORY. */
int gpufl_lease(void *handle, int32_t device, bool *first);
void gpufl_lease_cancel(void *handle, int32_t device);
void gpufl_lease_context_ends(void *handle);

/* ---- the engines ---- */

/* The window's thread calls these functions. All except gpufl_pc_collect and gpufl_pc_samples need
 * the application quiesced. Errors are those of gpufl_deep_open.
 *
 * gpufl_pc_open samples one context of each GPU. It returns the first error if no context is
 * sampled. gpufl_pc_close stops, reads the remaining samples and disarms. */
int gpufl_pc_open(void);
int gpufl_pc_collect(int *more);
int gpufl_pc_close(void);

/* gpufl_pc_samples returns true if the context is sampled. Any thread may call it. */
bool gpufl_pc_samples(void *handle);

/* gpufl_pc_context_ends releases a context. Without quiesced it only drops its state, since calls
 * may be in flight. */
void gpufl_pc_context_ends(void *handle, bool quiesced);

/* gpufl_sass_used returns true once the engine has configured CUPTI, which works once in a
 * process. */
bool gpufl_sass_used(void);
int gpufl_sass_open(void);
int gpufl_sass_close(void);
void gpufl_sass_context_ends(void *handle);
const char *gpufl_sass_obstacle(void);

#endif
