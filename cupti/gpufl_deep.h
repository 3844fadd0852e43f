/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract of the C core for windows in which one of two engines looks inside kernels, and for
 * the images of modules. As in gpufl_cupti.h nothing here calls into Go, all state is static, and a
 * forked child is answered with GPUFL_FORKED.
 *
 * One window is open at a time. gpufl_deep_open, gpufl_deep_read, gpufl_deep_close and gpufl_deep_end
 * are called by its owner, one at a time; the others by any thread. What CUPTI does in them has no bound: an
 * owner that cannot wait calls them on a thread that it can give up, and says so with
 * gpufl_deep_give_up.
 *
 * Application threads never block longer than GPUFL_BARRIER_LIMIT_NS at a time.
 */
#ifndef GPUFL_DEEP_H
#define GPUFL_DEEP_H

#include "gpufl_cupti.h"

/* The engines; the same numbers as Engine in deep.go. */
enum { GPUFL_DEEP_PC, GPUFL_DEEP_SASS, GPUFL_NUM_ENGINES };

/* Further answers, besides those of gpufl_cupti.h. */
enum {
  GPUFL_UNSUPPORTED = -20, /* the library has no such functions, or is older than CUDA 12.4 */
  GPUFL_NO_CONTEXT = -21,  /* no context that could be watched */
  GPUFL_CAPTURE = -22,     /* a stream is being captured */
  GPUFL_ACTIVITY = -23,    /* kinds of activity are on */
  GPUFL_NOT_DEEP = -24,    /* gpufl_open was not asked for it */
  GPUFL_EXITING = -25,     /* the process ends */
  GPUFL_GIVEN_UP = -26,    /* an operation never came back */
  GPUFL_NOT_QUIESCED = -27, /* calls of the application were still in flight at the limit */
  GPUFL_ONCE = -29,        /* the process has had its window of SASS metrics */
  GPUFL_TAKEN = -30,       /* another process or context samples this GPU: gpufl_deep_holder */
  GPUFL_UNRESPONSIVE = -31,        /* CUPTI tells of nothing any more, and must be asked for nothing */
  GPUFL_DEVICE = -28,      /* the device is set up so that it cannot: gpufl_deep_obstacle */
};

/* gpufl_deep_supported: whether the loaded library has the engine at all. */
int gpufl_deep_supported(int engine);

/* gpufl_deep_contexts: how many contexts there are that a window could look into. It asks the driver, which may
 * be busy for seconds with a context that is being made. */
int gpufl_deep_contexts(void);

/* gpufl_deep_obstacle names what in a device's setup ruled the last window out: "architecture", "sli",
 * "vGPU", "confidential computing", "mining processor", "WSL"; "" if nothing did. */
const char *gpufl_deep_obstacle(void);

/* gpufl_deep_holder is the process that was in the way when GPUFL_TAKEN was last the answer; 0 if it is of another namespace. */
int32_t gpufl_deep_holder(void);

/* gpufl_deep_unresponsive: 1 once CUPTI tells of nothing in this process any more, and so nothing is recorded. */
int gpufl_deep_unresponsive(void);

/* gpufl_deep_busy_reason says what was busy when GPUFL_NOT_QUIESCED was last the answer: a function of the driver, where *thread is the
 * thread in it, or a reason, where *thread is 0. */
const char *gpufl_deep_busy_reason(int32_t *thread);

typedef struct {
  uint32_t engine;
  uint32_t period; /* of PC sampling: 2^period cycles; 0: CUPTI's own */
  uint8_t serialize, lazy_patching, with_activity;
  size_t scratch_bytes, hardware_bytes; /* 0: CUPTI's own */
  const char *const *names;             /* stall reasons or metrics */
  uint32_t num_names;                   /* 0 for all stall reasons; metrics must be given */
  uint32_t max_rows;                    /* the most that wait to be read */
  const char *lease_dir;                /* the user's runtime folder, for leases of GPUs; NULL for none */
  int64_t limit_ns;                     /* how long the application may take to quiesce */
} gpufl_deep_config;

/* gpufl_deep_open arms the engine on the contexts that there are. Nothing stays armed if it fails. */
int gpufl_deep_open(const gpufl_deep_config *config);

/* One figure. function is for gpufl_deep_function, what for gpufl_deep_name. */
typedef struct {
  uint64_t crc, pc, value;
  int32_t device;
  uint32_t function, what, correlation;
} gpufl_deep_row;

/* gpufl_deep_collect takes what PC sampling has, of all contexts, and arms those that are new. *more says that
 * there is more, for which there may have been no room or no time: read, and call again.
 * For SASS metrics it does nothing: what they counted is taken once, by gpufl_deep_close. */
int gpufl_deep_collect(int *more);

/* gpufl_deep_read takes up to n of the rows that wait, and returns their number. */
int gpufl_deep_read(gpufl_deep_row *rows, int n);

/* gpufl_deep_close takes the rest and disarms. Rows, names and counts stay until gpufl_deep_end. The answer is
 * the first refusal of CUPTI's; disarmed is all the same what can be. After GPUFL_NOT_QUIESCED the window is still open and armed:
 * the application's calls came to no rest in limit_ns, and disarming beside them could lock them up. Try again. */
int gpufl_deep_close(int64_t limit_ns);

/* gpufl_deep_end forgets the window after gpufl_deep_close. */
int gpufl_deep_end(void);

/* gpufl_deep_give_up says that the operation under way will not be waited for: everything here answers
 * GPUFL_GIVEN_UP from now on, and nobody waits at the gate any more, unless CUPTI is at what would lock up
 * with a launch. */
int gpufl_deep_give_up(void);

/* gpufl_sass_forget is for tests: the next window of SASS metrics is as the first of a process. */
int gpufl_sass_forget(void);

/* gpufl_deep_stuck: whether that was said. */
int gpufl_deep_stuck(void);

/* gpufl_deep_call is the function of CUPTI's that has been called for a window and has not returned; "" if there is none. */
const char *gpufl_deep_call(void);

/* gpufl_deep_last_failed_call is the one that last refused something. */
const char *gpufl_deep_last_failed_call(void);

/* gpufl_deep_traces, if it is not NULL, is told of each of these calls: for measurements. */
extern void (*gpufl_deep_traces)(const char *function, int result, int64_t ns);

/* The texts of a window: NULL beyond the last. They stay until gpufl_deep_end. */
const char *gpufl_deep_function(uint32_t index);
const char *gpufl_deep_name(uint32_t index);

/* gpufl_deep_missing says whether the name of that index in the configuration is known to no device. */
int gpufl_deep_missing(uint32_t index);

typedef struct {
  uint64_t samples, dropped_samples, non_user_samples, hardware_full;
  uint64_t dropped_records;
  uint64_t patched; /* instructions that SASS metrics had patched when the window closed */
  uint64_t launched; /* calls that launch kernels which ended while kernels were patched */
  uint64_t lost_rows, lost_value, lost_names, broken;
  uint64_t contexts, skipped_contexts, lost_contexts;
  uint64_t deferred, not_idle, blocked_calls, barrier_timeouts, names_kept;
  int64_t longest_block_ns; /* that a call of the application blocked */
} gpufl_deep_counts;

/* gpufl_deep_get_counts: since gpufl_deep_open. */
void gpufl_deep_get_counts(gpufl_deep_counts *out);

/* ---- activity meanwhile ---- */

/* gpufl_pause disables the kinds that are on and asks for the complete buffers. What is launched until
 * gpufl_resume is recorded nowhere. GPUFL_STOPPED if nothing runs; pausing twice does nothing. */
int gpufl_pause(void);

/* gpufl_resume enables them again; *lost gets the kinds that could not be. GPUFL_ACTIVITY while kernels are patched. */
int gpufl_resume(uint32_t *lost);

/* ---- images of modules ---- */

typedef struct {
  uint32_t id;
  uint8_t loaded, has_crc;
  uint64_t crc, size;
} gpufl_cubin;

/* gpufl_cubins fills at most n, oldest first, and returns how many there are. It computes the CRCs
 * that are not known yet. */
int gpufl_cubins(gpufl_cubin *out, int n);

/* gpufl_cubin_copy copies size bytes of the image with that id; false if it is gone. */
int gpufl_cubin_copy(uint32_t id, void *to, uint64_t size);

typedef struct {
  uint64_t images, bytes, refused, refused_bytes, evicted;
} gpufl_cubin_stats;

void gpufl_get_cubin_stats(gpufl_cubin_stats *out);

#endif
