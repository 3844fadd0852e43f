/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the C core share for windows. Each file uses those above it only:
 *
 *   modules.c     images of modules, contexts, captures: what the callbacks report
 *   barrier.c     blocks the application's calls while CUPTI rearranges things
 *   lease.c       which process samples a GPU, and which of its contexts
 *   results.c     rows, names and counts of a window
 *   pcsampling.c  one engine
 *   sass.c        the other
 *   deep.c        the window: who may do what, and when
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

/* Entries of this name table are bounded: stall reasons and metrics. */
enum { GPUFL_MAX_NAMES = 512 };

enum { GPUFL_WINDOW_CLOSED, GPUFL_WINDOW_OPEN, GPUFL_WINDOW_ENDED };

/* The state of windows. */
typedef struct {
  /* Entries are NULL where the library lacks them. */
  gpufl_deep_calls calls;
  gpufl_deep_driver_calls driver;

  /* operation is held by whoever operates a window: its owner, or a thread that destroys a context. */
  pthread_mutex_t operation;
  int capture_mode; /* of the thread that operates, before */
  bool quiesced;    /* no call is in flight, and CUPTI has no records to work at */
  gpufl_deep_config config; /* of the window; its names are the first of gpufl_deep_name */
  char lease_dir[4096];
  gpufl_deep_counts counts; /* see gpufl_window_count */

  atomic_int state; /* GPUFL_WINDOW_... */
  atomic_bool given_up, exiting;
  atomic_bool patches; /* kernels are patched */
  atomic_bool used;    /* a window was opened in this process, or is about to be */
  _Atomic(const char *) current_call, last_failed_call, busy_reason;
} gpufl_deep_state;

extern gpufl_deep_state gpufl_deep; /* deep.c */

/* GPUFL_DEEP_CALL calls a function of CUPTI, and notes it in case it never returns or fails. */
#define GPUFL_DEEP_CALL(field, p) (gpufl_deep_calling(#field), gpufl_deep_returned(#field, gpufl_deep.calls.field(p)))
void gpufl_deep_calling(const char *function);
int gpufl_deep_returned(const char *function, int result);

/* gpufl_deep_load resolves the functions of a library that gpufl_load has opened. */
void gpufl_deep_load(void *library);
void gpufl_deep_load_driver(void *library);

/* gpufl_deep_armed: a window is open, or was given up. */
bool gpufl_deep_armed(void);
/* gpufl_deep_patches: kernels are patched as they are launched, in a window that was not given up. */
bool gpufl_deep_patches(void);
bool gpufl_deep_is_given_up(void);

/* ---- callbacks (cupti.c) ---- */

/* Sets of the driver's functions that the barrier can block: launches and copies, loading and unloading of modules, and captures. */
enum { GPUFL_SET_LAUNCH = 1, GPUFL_SET_MODULE = 2, GPUFL_SET_CAPTURE = 4, GPUFL_SETS_ALWAYS = GPUFL_SET_MODULE | GPUFL_SET_CAPTURE, GPUFL_SETS_ALL = GPUFL_SETS_ALWAYS | GPUFL_SET_LAUNCH };

/* Once a window was open in the process, kinds of activity and callbacks must not be switched while launches are in flight: that
 * deadlocks, or some threads lose their records (CUPTI 13.0, H200). gpufl_quiesce_begin blocks launches until gpufl_quiesce_end: 1 if it does,
 * 0 if there is no need, GPUFL_NOT_QUIESCED if the application stayed busy for limit_ns and nothing must be switched. gpufl_quiesce_end takes
 * that answer. */
int gpufl_quiesce_begin(int64_t limit_ns);
void gpufl_quiesce_end(int quiet);
/* gpufl_window_comes says that from now on the above holds, as if a window had been open. */
void gpufl_window_comes(void);
#define GPUFL_QUIESCE_CALLS_NS ((int64_t)5 * 1000000000)

/* Between gpufl_flush_lock and gpufl_flush_end nobody else flushes, and gpufl_flush_begin does: a thread of CUPTI's that works at records
 * locks up with what rearranges things. gpufl_flush_lock waits for who flushes until a time of gpufl_monotonic; false if that was not enough. */
bool gpufl_flush_lock(int64_t until);
void gpufl_flush_begin(void);
void gpufl_flush_end(void);

/* gpufl_deep_watch_exit has windows end at exit. It is called as gpufl_open listens: whoever registers for the exit after that, as
 * the injection library does, is called before, and can still close a window in order. */
void gpufl_deep_watch_exit(void);

/* gpufl_resource_callbacks_on: contexts, modules and captures have been told of since gpufl_open. */
bool gpufl_resource_callbacks_on(void);

/* gpufl_callbacks_alive says whether CUPTI tells of a call of the driver, by one that loads a module that is not there; false as well if it cannot be
 * tried. For an operation, at rest. */
bool gpufl_callbacks_alive(void);

/* gpufl_mark_unresponsive is where CUPTI was seen to have taken down what it had in the way of the driver's calls: it tells of nothing and records nothing
 * any more, until the process ends. From then on nothing is switched, since that may crash it; what it has is taken as ever. */
void gpufl_mark_unresponsive(void);

/* gpufl_activity: some kind of activity is on. */
bool gpufl_activity(void);

/* gpufl_operating: the calling thread operates a window, and its calls are ours. */
extern __thread bool gpufl_operating;

/* ---- barrier.c, which describes the protocol ---- */

/* GPUFL_BARRIER_LIMIT_NS is the longest that a call blocks. What it blocks for takes up to a second where CUPTI allocates much; a call
 * that continued during that would deadlock. */
#define GPUFL_BARRIER_LIMIT_NS ((int64_t)10 * 1000000000)

/* on_api reports the begin and end of calls. The epoch is read before the caller checks whether windows are possible: a call of another
 * epoch is not counted, since its end may not be reported. what is CUPTI's number of the function, number that of the call. */
uint32_t gpufl_barrier_epoch(void);
void gpufl_barrier_enter(uint32_t set, uint32_t epoch, uint32_t what, uint32_t number);
void gpufl_barrier_exit(uint32_t set, uint32_t number);

/* gpufl_barrier_close blocks new calls of the sets and waits until those in flight have ended. False if they have not in time; the
 * barrier is open then. */
bool gpufl_barrier_close(uint32_t sets, int64_t limit_ns);
/* gpufl_barrier_hold: nobody else opens it until gpufl_barrier_open; false if it is not quiet any more. */
bool gpufl_barrier_hold(void);
void gpufl_barrier_open(void);
void gpufl_barrier_open_if_not_held(void);
/* gpufl_barrier_next_epoch is for the end of the subscription: the ends of calls in flight will not be reported. */
void gpufl_barrier_next_epoch(void);
/* gpufl_barrier_busy: the thread and function that gpufl_barrier_close waited for last. */
void gpufl_barrier_busy(int32_t *thread, uint32_t *call);

typedef struct {
  uint64_t blocked, timeouts; /* calls, and those that continued at the limit */
  int64_t longest_ns;
} gpufl_barrier_counts;
gpufl_barrier_counts gpufl_barrier_take_counts(bool reset);

/* ---- modules.c ---- */

/* gpufl_resources_open makes room for images, gpufl_resources_close forgets all. */
void gpufl_resources_open(uint64_t max_bytes);
void gpufl_resources_close(void);
/* gpufl_resources_lose is when nothing is told any more: images stay, but what becomes of modules, contexts
 * and captures is not known. */
void gpufl_resources_lose(void);
void gpufl_on_resource(uint32_t cbid, const void *data);
void gpufl_on_capture(bool begins, const gpufl_callback_data *call);
uint32_t gpufl_captures(void);
/* gpufl_captures_known: captures have been told for so long that none can be under way of which only the end is told. */
bool gpufl_captures_known(void);

enum { GPUFL_MAX_CONTEXTS = 64 };
typedef struct {
  void *handle;
  int32_t device;   /* -1: not known */
  bool seen;        /* its creation was told, and so were its captures */
  bool ending;      /* and so is its end */
} gpufl_context;

/* gpufl_known_contexts is how many contexts have been told of; it asks nobody. */
int gpufl_known_contexts(void);

/* gpufl_contexts copies the contexts that exist; *more gets how many had no room. */
int gpufl_contexts(gpufl_context out[GPUFL_MAX_CONTEXTS], uint64_t *more);
bool gpufl_context_exists(void *handle);
/* gpufl_context_lives: and has not begun to end. */
bool gpufl_context_lives(void *handle);

/* gpufl_module_loads is how often an image with this CRC was loaded; 0 if it is not known. */
uint32_t gpufl_module_loads(uint64_t crc);

/* ---- results.c ---- */

int gpufl_window_begin(const gpufl_deep_config *config);
void gpufl_window_end(void);
uint32_t gpufl_window_function(const char *name);
/* gpufl_window_name is the index of a stall reason or metric; UINT32_MAX if the table is full. */
uint32_t gpufl_window_name(const char *name);
void gpufl_window_row(const gpufl_deep_row *row);
uint32_t gpufl_window_free_rows(void);
void gpufl_window_known(uint32_t index); /* a device knows this name of the configuration */
/* gpufl_window_count adds to one of gpufl_deep.counts. */
void gpufl_window_count(uint64_t *which, uint64_t n);

/* ---- deep.c ---- */

/* gpufl_deep_context_ends is called by modules.c before a context is destroyed. */
void gpufl_deep_context_ends(void *handle);

/* gpufl_window_quiesce closes the barrier and waits until no call is in flight, with idle also until the contexts have finished what was
 * launched. False, with the barrier open, if that takes longer than limit_ns or GPUFL_QUIESCE_NS: calls must not block longer for a program
 * that stays busy. */
#define GPUFL_QUIESCE_NS ((int64_t)1000000000)
bool gpufl_window_quiesce(bool idle, int64_t limit_ns);

void gpufl_nap(int64_t ns);

/* gpufl_enter_context makes a context the calling thread's, gpufl_leave_context undoes that. */
bool gpufl_enter_context(void *handle);
void gpufl_leave_context(bool entered);

/* ---- lease.c ---- */

/* gpufl_lease takes the lease of a GPU for this process and this context: GPUFL_TAKEN if another process or context has it. *first says
 * that the context was not sampled before. gpufl_lease_cancel returns the lease of a context that was not sampled after all. */
int gpufl_lease(void *handle, int32_t device, bool *first);
void gpufl_lease_cancel(void *handle, int32_t device);
void gpufl_lease_context_ends(void *handle);

/* ---- the engines ---- */

/* All of these except gpufl_pc_collect and gpufl_pc_samples need the application quiesced. gpufl_pc_open samples one context of each GPU; the
 * answer is the first failure, if nothing is sampled. gpufl_pc_close stops, reads what is left and disarms. */
int gpufl_pc_open(void);
int gpufl_pc_collect(int *more);
int gpufl_pc_close(void);
bool gpufl_pc_samples(void *handle);
/* quiesced: the caller has the operation, and no call is in flight; else the context is only given up. */
void gpufl_pc_context_ends(void *handle, bool quiesced);

/* gpufl_sass_used: CUPTI was configured once, and cannot be again. */
bool gpufl_sass_used(void);
int gpufl_sass_open(void);
int gpufl_sass_close(void);
void gpufl_sass_context_ends(void *handle);
const char *gpufl_sass_obstacle(void);

#endif
