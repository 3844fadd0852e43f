/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract of the C core for deep-profiling windows and for the images of modules. The general
 * rules of gpufl_cupti.h hold here as well. A window arms one of two engines: PC sampling or SASS
 * metrics. One window is open at a time.
 *
 * Callers and threads: the owner of a window calls the functions from gpufl_deep_open to
 * gpufl_deep_end, one at a time. Any thread may call the other functions, except where a comment
 * says otherwise. CUPTI may take any time in gpufl_deep_open, gpufl_deep_collect and
 * gpufl_deep_close. An owner with a deadline calls them on a separate thread. If they do not return
 * in time, it calls gpufl_deep_give_up.
 *
 * An operation blocks calls of the application for at most GPUFL_BARRIER_LIMIT_NS, also if CUPTI
 * never returns.
 */
#ifndef GPUFL_DEEP_H
#define GPUFL_DEEP_H

#include "gpufl_cupti.h"

/* The engines; the same numbers as Engine in deep.go. */
enum { GPUFL_DEEP_PC, GPUFL_DEEP_SASS, GPUFL_NUM_ENGINES };

/* Results in addition to those of gpufl_cupti.h. */
enum {
  GPUFL_UNSUPPORTED = -20,  /* The library lacks the functions, or is older than CUDA 12.4. */
  GPUFL_NO_CONTEXT = -21,   /* There is no context that a window could observe. */
  GPUFL_CAPTURE = -22,      /* A stream is being captured. */
  GPUFL_ACTIVITY = -23,     /* Kinds of activity are enabled. */
  GPUFL_NOT_DEEP = -24,     /* gpufl_config.deep was not set. */
  GPUFL_EXITING = -25,      /* The process is exiting. */
  GPUFL_GIVEN_UP = -26,     /* The owner gave an operation up: gpufl_deep_give_up. */
  GPUFL_NOT_QUIESCED = -27, /* Calls of the application were still in flight at the deadline. */
  GPUFL_DEVICE = -28,       /* The setup of the device rules it out: gpufl_deep_obstacle. */
  GPUFL_ONCE = -29,         /* The process has had its window of SASS metrics. */
  GPUFL_TAKEN = -30,        /* Another process or context samples this GPU: gpufl_deep_holder. */
  GPUFL_UNRESPONSIVE = -31, /* CUPTI delivers no callbacks any more and must not be called. */
};

/* gpufl_deep_supported returns GPUFL_OK if the loaded library has the functions of the engine.
 * Errors: GPUFL_UNSUPPORTED; GPUFL_NO_LIBRARY; GPUFL_BAD_VALUE for an unknown engine. */
int gpufl_deep_supported(int engine);

/* gpufl_deep_contexts returns the number of contexts that a window could observe. It queries the
 * driver, which may block for seconds while another thread creates a context. */
int gpufl_deep_contexts(void);

/* gpufl_deep_obstacle returns the property of a device that ruled out the last window:
 * "architecture", "sli", "vGPU", "confidential computing", "mining processor" or "WSL". It returns
 * "" if there was none. */
const char *gpufl_deep_obstacle(void);

/* gpufl_deep_holder returns the process that held the GPU when GPUFL_TAKEN was last returned; 0 if
 * it belongs to another PID namespace. */
int32_t gpufl_deep_holder(void);

/* gpufl_deep_unresponsive returns 1 once CUPTI delivers no callbacks in this process any more.
 * Nothing is recorded then. */
int gpufl_deep_unresponsive(void);

/* gpufl_deep_busy_reason returns what was busy when GPUFL_NOT_QUIESCED was last returned. With
 * *thread != 0 it is the driver function that this thread was in; otherwise it is a reason. */
const char *gpufl_deep_busy_reason(int32_t *thread);

typedef struct {
  uint32_t engine;
  uint32_t period; /* Of PC sampling: 2^period cycles. 0 is CUPTI's default. */
  uint8_t serialize, with_activity;
  size_t hardware_bytes;    /* Of PC sampling; 0 is CUPTI's default. */
  const char *const *names; /* The metrics; required with SASS metrics, else empty. */
  uint32_t num_names;
  uint32_t max_rows;     /* Capacity of the queue of rows. */
  const char *lease_dir; /* The user's runtime folder, for leases; or NULL. */
  int64_t limit_ns;      /* Deadline for the application to quiesce. */
} gpufl_deep_config;

/* gpufl_deep_open arms the engine on the contexts that exist. *config is copied. After an error
 * nothing stays armed.
 * Errors: those above, GPUFL_BUSY, GPUFL_CLOSED, GPUFL_NO_MEMORY, or a result of CUPTI. */
int gpufl_deep_open(const gpufl_deep_config *config);

/* One value. function is an index for gpufl_deep_function, what one for gpufl_deep_name. */
typedef struct {
  uint64_t crc, pc, value;
  int32_t device;
  uint32_t function, what, correlation;
} gpufl_deep_row;

/* gpufl_deep_collect reads the samples of all contexts into the queue of rows, and arms contexts
 * that were created since. *more becomes 1 if the queue or the time was not sufficient: read and
 * call again. With SASS metrics it does nothing, since gpufl_deep_close reads them once.
 * Errors: as gpufl_deep_open. */
int gpufl_deep_collect(int *more);

/* gpufl_deep_read removes up to n rows from the queue and returns their number. */
int gpufl_deep_read(gpufl_deep_row *rows, int n);

/* gpufl_deep_close reads the remaining data and disarms the engine. Rows, names and counts stay
 * until gpufl_deep_end. It waits at most limit_ns for the application to quiesce.
 * Errors: CUPTI's first error, and everything possible is disarmed all the same.
 * GPUFL_NOT_QUIESCED leaves the window open and armed, since disarming concurrently with launches
 * can deadlock. Call it again then. GPUFL_EXITING means the same while the process exits.
 * GPUFL_STOPPED means that no window is open. */
int gpufl_deep_close(int64_t limit_ns);

/* gpufl_deep_end frees the rows, names and counts after gpufl_deep_close. */
int gpufl_deep_end(void);

/* gpufl_deep_give_up declares that nobody waits for the current operation any more. From then on
 * the functions of windows return GPUFL_GIVEN_UP. It opens the barrier, unless CUPTI executes a
 * function that deadlocks with a launch. */
int gpufl_deep_give_up(void);

/* gpufl_deep_stuck returns 1 after gpufl_deep_give_up. */
int gpufl_deep_stuck(void);

/* gpufl_sass_forget is for tests: it permits one more window of SASS metrics. */
int gpufl_sass_forget(void);

/* gpufl_deep_call returns the function of CUPTI that a window has called and that has not returned;
 * "" if there is none. */
const char *gpufl_deep_call(void);

/* gpufl_deep_last_failed_call returns the function of CUPTI that last returned an error. */
const char *gpufl_deep_last_failed_call(void);

/* gpufl_deep_traces, if it is not NULL, is called after each of these calls, for measurements. */
extern void (*gpufl_deep_traces)(const char *function, int result, int64_t ns);

/* gpufl_deep_function and gpufl_deep_name return the names of a window; NULL beyond the last one.
 * The texts are valid until gpufl_deep_end. */
const char *gpufl_deep_function(uint32_t index);
const char *gpufl_deep_name(uint32_t index);

/* gpufl_deep_missing returns 1 if no device knows the name of that index in the configuration. */
int gpufl_deep_missing(uint32_t index);

typedef struct {
  uint64_t samples, dropped_samples, non_user_samples, hardware_full;
  uint64_t dropped_records;
  uint64_t patched;  /* instructions that SASS metrics had patched at the close */
  uint64_t launched; /* calls of kernel launches that ended while kernels were patched */
  uint64_t lost_rows, lost_value, lost_names, broken;
  uint64_t contexts, skipped_contexts, lost_contexts;
  uint64_t deferred, not_idle, blocked_calls, barrier_timeouts, names_kept;
  int64_t longest_block_ns; /* the longest block of a call of the application */
} gpufl_deep_counts;

/* gpufl_deep_get_counts copies the counts since gpufl_deep_open. */
void gpufl_deep_get_counts(gpufl_deep_counts *out);

/* ---- pausing activity ---- */

/* gpufl_pause disables the enabled kinds and requests the complete buffers. Launches before
 * gpufl_resume are not recorded. A second call does nothing. The owner of the session calls it.
 * Errors: GPUFL_STOPPED; GPUFL_UNRESPONSIVE; GPUFL_CAPTURE; GPUFL_NOT_QUIESCED; CUPTI's first
 * error, after which some kinds may be disabled. */
int gpufl_pause(void);

/* gpufl_resume enables the kinds again. *lost receives those that CUPTI rejected. The owner of the
 * session calls it.
 * Errors: GPUFL_STOPPED; GPUFL_ACTIVITY while kernels are patched; GPUFL_NOT_QUIESCED; CUPTI's
 * first error. */
int gpufl_resume(uint32_t *lost);

/* ---- images of modules ---- */

typedef struct {
  uint32_t id;
  uint8_t loaded, has_crc;
  uint64_t crc, size;
} gpufl_cubin;

/* gpufl_cubins fills at most n images, oldest first, and returns how many exist. It computes
 * missing CRCs with CUPTI. Error: GPUFL_FORKED. */
int gpufl_cubins(gpufl_cubin *out, int n);

/* gpufl_cubin_copy copies the image with that id. It returns 0 if the image was evicted or size is
 * not its size. */
int gpufl_cubin_copy(uint32_t id, void *to, uint64_t size);

typedef struct {
  uint64_t images, bytes, refused, refused_bytes, evicted;
} gpufl_cubin_stats;

/* gpufl_get_cubin_stats copies the counts since gpufl_open. */
void gpufl_get_cubin_stats(gpufl_cubin_stats *out);

#endif
