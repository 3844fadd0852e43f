/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract of the C core. gpufl_deep.h adds deep-profiling windows. The core opens CUPTI at run
 * time and lends it buffers from a bounded pool. It queues completed buffers for one consumer. It
 * keeps a stack of scopes for each thread and receives NVTX events. It does not decode records,
 * never calls Go and keeps no pointer to Go memory.
 *
 * All state is static, since a process has one CUPTI.
 *
 * Callers and threads:
 *   - The owner calls gpufl_load to gpufl_close in the sections "libraries" and "recording", one
 *     call at a time. These functions take no lock against each other.
 *   - One consumer, on any thread, calls gpufl_wait, gpufl_take, gpufl_walk and gpufl_release.
 *   - Any thread may call every other function at any time.
 *
 * Errors: a function that returns a result returns GPUFL_FORKED immediately in a process that was
 * forked from one that used the core. Functions without a result then do nothing, and counts are 0.
 */
#ifndef GPUFL_CUPTI_H
#define GPUFL_CUPTI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Results. Positive values are CUPTI's own results (CUptiResult). */
enum {
  GPUFL_OK = 0,
  GPUFL_TIMEOUT = -1,       /* The deadline expired, or the queue is empty. */
  GPUFL_END = -2,           /* Recording has stopped and the queue is empty. */
  GPUFL_BROKEN = -3,        /* The rest of a buffer is invalid. */
  GPUFL_FORKED = -4,        /* In a forked child. */
  GPUFL_BUSY = -5,          /* Already open, or in use. */
  GPUFL_CLOSED = -6,        /* Not open. */
  GPUFL_STOPPED = -7,       /* Not started. */
  GPUFL_MISPLACED = -8,     /* The scope is not on top of this thread's stack. */
  GPUFL_FULL = -9,          /* The thread's stack of scopes is full. */
  GPUFL_NO_LIBRARY = -10,   /* dlopen failed, or no library is loaded. */
  GPUFL_NO_SYMBOL = -11,    /* The library lacks a required function. */
  GPUFL_NO_MEMORY = -12,
  GPUFL_NOT_DETACHED = -13, /* CUPTI could not be finalized. */
  GPUFL_BAD_VALUE = -14,    /* An argument is out of range. */
};

/* Kinds of records; the same numbers as Kind in types.go. */
enum {
  GPUFL_KIND_KERNEL,
  GPUFL_KIND_MEMCPY,
  GPUFL_KIND_MEMCPY_P2P,
  GPUFL_KIND_MEMSET,
  GPUFL_KIND_MEMORY,
  GPUFL_KIND_SYNC,
  GPUFL_KIND_GRAPH,
  GPUFL_KIND_NVTX,
  GPUFL_KIND_EXTERNAL,
  GPUFL_KIND_OVERHEAD,
  GPUFL_KIND_RUNTIME_API,
  GPUFL_KIND_DRIVER_API,
  GPUFL_NUM_KINDS
};

/* ---- libraries ---- */

#define GPUFL_ERROR_SIZE 512

/* gpufl_load opens the CUPTI library at path and resolves its functions. With mapped_only it
 * succeeds only if the process has the library already. It may be called again for the same
 * library.
 * Errors: GPUFL_NO_LIBRARY or GPUFL_NO_SYMBOL, where error has the text of the dynamic linker or
 * the name of the missing function; GPUFL_BUSY if another library is loaded; a result of CUPTI. */
int gpufl_load(const char *path, int mapped_only, char error[GPUFL_ERROR_SIZE]);

/* gpufl_unload closes a library that does not fit, so that gpufl_load can try another one.
 * Errors: GPUFL_BUSY once gpufl_open or gpufl_probe has used the library: CUPTI's threads may run
 * in it, so it stays until the process ends. */
int gpufl_unload(void);

/* gpufl_version returns the number of cuptiGetVersion; 0 before gpufl_load. */
uint32_t gpufl_version(void);

/* gpufl_result_string returns CUPTI's text for a positive result; "unknown result" if there is
 * none. It never returns NULL, and the text is never freed. */
const char *gpufl_result_string(int result);

/* gpufl_driver_load opens libcuda.so.1 and resolves its functions. It does not initialize CUDA. Any
 * thread may call it, also again.
 * Errors: GPUFL_NO_LIBRARY or GPUFL_NO_SYMBOL, with a text in error. */
int gpufl_driver_load(char error[GPUFL_ERROR_SIZE]);

/* gpufl_driver_version returns the CUDA version that the driver supports (13000 for 13.0); 0 if it
 * is unknown. */
int gpufl_driver_version(void);

/* gpufl_driver_init calls cuInit and returns the driver's own result (CUresult).
 * Errors: GPUFL_NO_LIBRARY before gpufl_driver_load. */
int gpufl_driver_init(void);

typedef struct {
  int32_t ordinal;
  int32_t major, minor, sm_count; /* -1 if the driver does not report it */
  char name[256];
  uint8_t uuid[16];
  uint8_t has_uuid;
  uint8_t mig; /* the UUID is that of a MIG instance */
} gpufl_device;

/* gpufl_devices fills at most n devices and returns how many the driver has. It creates no context.
 * It returns 0 without a driver.
 * Errors: the driver's result negated: -3 is CUDA_ERROR_NOT_INITIALIZED (nothing has called
 * cuInit), -100 is CUDA_ERROR_NO_DEVICE. */
int gpufl_devices(gpufl_device *out, int n);

/* ---- recording ---- */

typedef struct {
  size_t buffer_bytes; /* rounded up to whole pages */
  uint32_t buffers;    /* the most that exist at a time, at most GPUFL_MAX_BUFFERS */
  uint32_t kinds;      /* bits 1 << GPUFL_KIND_… */
  uint32_t graph_nodes;
  uint32_t detach;      /* gpufl_suspend may be called */
  uint32_t deep;        /* windows may be requested: see gpufl_deep.h */
  uint64_t cubin_bytes; /* the most that images of modules may take, with deep */
  uint32_t stacks;      /* sample the stacks of Python code: see gpufl_stack_events */
} gpufl_config;

#define GPUFL_MAX_BUFFERS 1024

/* gpufl_open configures the core for the loaded library and subscribes to CUPTI. CUPTI has one
 * subscriber, so another profiler gets an error now, or we do. *config is copied.
 * Errors: GPUFL_NO_LIBRARY; GPUFL_BUSY if it is open; GPUFL_BAD_VALUE; GPUFL_NO_MEMORY;
 * CUPTI's result of cuptiSubscribe. After an error nothing is open. */
int gpufl_open(const gpufl_config *config);

/* gpufl_probe subscribes to CUPTI and unsubscribes again, to show whether gpufl_open can subscribe.
 * Errors: GPUFL_NO_LIBRARY; GPUFL_BUSY after gpufl_open; CUPTI's result of cuptiSubscribe. */
int gpufl_probe(void);

/* gpufl_start registers the clock and the buffers and enables the kinds. *enabled receives the
 * kinds that work. *refusal receives CUPTI's result for the first kind that does not.
 * After gpufl_suspend it resumes the session, and attaches CUPTI again if gpufl_finalize detached
 * it. After an error it may be called again.
 * Errors: GPUFL_CLOSED; GPUFL_BUSY if it is started; GPUFL_UNRESPONSIVE; a result of CUPTI if no
 * kind works. */
int gpufl_start(uint32_t *enabled, int *refusal);

/* gpufl_suspend stops recording while the session continues: scopes are kept, and gpufl_wait does
 * not return GPUFL_END. It waits at most limit_ns for records of work in flight. Then gpufl_start
 * resumes. Once all buffers have been read, gpufl_finalize may detach CUPTI.
 * Errors: GPUFL_STOPPED; GPUFL_TIMEOUT if CUPTI still holds buffers; GPUFL_CAPTURE if a stream is
 * being captured, and GPUFL_NOT_DETACHED if the configuration does not allow it or CUPTI is
 * unresponsive. The last two change nothing. */
int gpufl_suspend(int64_t limit_ns);

/* gpufl_suspended returns true between gpufl_suspend and the next gpufl_start or gpufl_stop. Only
 * the owner may call it. */
bool gpufl_suspended(void);

/* gpufl_flush requests all complete buffers from CUPTI. Any thread may call it. It does nothing
 * while another thread flushes.
 * Errors: GPUFL_STOPPED; CUPTI's result. */
int gpufl_flush(void);

/* gpufl_stop disables the kinds and collects complete buffers for at most 0.3 s. The consumer can
 * still take them. If copies may be in flight, the kinds of copies and memsets stay enabled,
 * without buffers, until gpufl_finalize. gpufl_stats.lent then counts the buffers that CUPTI keeps,
 * each with an incomplete record.
 * Errors: GPUFL_CLOSED; GPUFL_STOPPED; CUPTI's result. It has stopped after the last of these. */
int gpufl_stop(void);

/* gpufl_finalize detaches CUPTI from the driver, after gpufl_stop or gpufl_suspend. Until then the
 * process may stay slower than before. Strings that records refer to may be invalid afterwards.
 * It returns GPUFL_OK if CUPTI is detached already.
 * Errors: GPUFL_CLOSED; GPUFL_BUSY while recording; GPUFL_STOPPED if CUPTI was not started;
 * GPUFL_NOT_DETACHED if a window needs CUPTI or no callback arrived; CUPTI's result. */
int gpufl_finalize(void);

/* gpufl_attachment returns how often CUPTI was finalized. Correlation ids restart each time. */
uint32_t gpufl_attachment(void);

/* gpufl_close ends the subscription and frees the buffers. Buffers that CUPTI or the consumer holds
 * are freed when they return, or serve the next gpufl_open.
 * Errors: GPUFL_CLOSED; GPUFL_BUSY before gpufl_stop. */
int gpufl_close(void);

/* ---- buffers ---- */

typedef struct gpufl_buffer {
  uint8_t *data;
  size_t size;  /* of data */
  size_t valid; /* bytes that CUPTI filled */
  /* Add anchor to each timestamp; 0 if CUPTI uses our clock. */
  int64_t anchor;
  /* The pool owns the other fields. */
  struct gpufl_buffer *next;
  int32_t state;
} gpufl_buffer;

/* gpufl_wait blocks until a completed buffer is queued, for at most the given time.
 * It returns GPUFL_OK, GPUFL_TIMEOUT or GPUFL_END. */
int gpufl_wait(int64_t nanoseconds);

/* gpufl_take removes the oldest completed buffer from the queue. The caller owns it until
 * gpufl_release. With an empty queue it returns GPUFL_TIMEOUT, or GPUFL_END after gpufl_stop. */
int gpufl_take(gpufl_buffer **out);

/* gpufl_release returns a taken buffer to the pool. NULL is ignored. */
void gpufl_release(gpufl_buffer *buffer);

/* gpufl_walk fills records with up to n of the records after *cursor and moves *cursor to the last
 * of them. *cursor starts as NULL. It returns their number, 0 at the end.
 * Each pointer lies inside the buffer, with at least 8 bytes behind it.
 * Errors: GPUFL_BROKEN if the next record is invalid. */
int gpufl_walk(const gpufl_buffer *buffer, void **cursor, void **records, int n);

/* gpufl_pending returns the number of completed buffers in the queue. */
int gpufl_pending(void);

typedef struct {
  uint64_t dropped;          /* Records that CUPTI could not keep. */
  uint64_t requests;         /* Buffers lent. */
  uint64_t refused;          /* Requests while no buffer was free. */
  uint64_t unreturned;       /* Buffers that CUPTI kept at the end of recording. */
  uint64_t completed;        /* Buffers that CUPTI returned. */
  uint64_t foreign;          /* Returned buffers that are not ours. */
  uint64_t scopes_lost;      /* NVTX events and names beyond the capacity. */
  uint64_t scopes_misplaced; /* Scopes ended elsewhere than on top of their thread's stack. */
  uint64_t stacks_lost;      /* Stacks and their events beyond the capacity. */
  int64_t stacks_ns;         /* Time that launches waited for samples, and samples held the GIL, since gpufl_start. */
  uint32_t allocated;        /* Buffers that exist now. */
  uint32_t lent;             /* Of these, held by CUPTI. */
} gpufl_stats;

/* gpufl_get_stats copies the counts. gpufl_open resets them, except those of scopes and stacks. */
void gpufl_get_stats(gpufl_stats *out);

/* ---- scopes ---- */

/* gpufl_next_scope_id returns a new id; the first is 1. */
uint64_t gpufl_next_scope_id(void);

/* gpufl_push_scope makes id the scope of what the calling thread launches next. An id has at most
 * 52 bits. Outside gpufl_start and gpufl_stop it only stores the scope and returns GPUFL_OK.
 * Errors: GPUFL_BAD_VALUE; GPUFL_FULL; GPUFL_NO_MEMORY. */
int gpufl_push_scope(uint64_t id);

/* gpufl_pop_scope ends the scope on the calling thread.
 * Errors: GPUFL_NO_MEMORY; GPUFL_MISPLACED if the scope is not on top of the thread's stack. It
 * then removes the scope from the middle of the stack. If the scope is on another thread's stack,
 * that thread removes it at its next launch, push or pop. */
int gpufl_pop_scope(uint64_t id);

#define GPUFL_SCOPE_TABLE_BITS 21

/* gpufl_scope_of returns the scope of the launch with this correlation id. It returns 0 if there is
 * none, or after 1 << GPUFL_SCOPE_TABLE_BITS further launches. */
uint64_t gpufl_scope_of(uint32_t correlation);

/* gpufl_scope_table returns the table behind gpufl_scope_of, for callers that read it themselves;
 * NULL before the first gpufl_open. It is never freed. The slot of a launch is
 * correlation & ((1 << GPUFL_SCOPE_TABLE_BITS) - 1). Read it as one atomic word:
 *   - the low 52 bits are the scope;
 *   - the next bit is 1 if the launching thread had no scope, and the scope is inferred: it is the
 *     innermost NVTX range of the only thread with open ranges;
 *   - the bits above are the rest of the correlation id. */
const uint64_t *gpufl_scope_table(void);

/* gpufl_thread returns the kernel's id of the calling thread. It also works in a forked child. */
uint32_t gpufl_thread(void);

enum { GPUFL_SCOPE_BEGIN, GPUFL_SCOPE_END, GPUFL_SCOPE_MARK, GPUFL_SCOPE_SPAN };

/* One event of NVTX, or of a scope of gpufl_context.h. name and domain are never freed, and equal
 * strings have equal pointers. NULL means none. */
typedef struct {
  uint64_t id, parent;
  int64_t time_ns;
  const char *name, *domain;
  uint64_t collective_bytes; /* what NCCL states for a range of a collective; 0 means none */
  uint32_t thread, color;
  uint8_t what, nested;
  uint8_t program;           /* 1: a scope of gpufl_context.h */
  uint8_t sampled;           /* GPUFL_SCOPE_SPAN: whether the application's span is */
  uint8_t trace[16], span[8]; /* GPUFL_SCOPE_SPAN: the application's span */
} gpufl_scope_event;

/* gpufl_scope_events removes up to n of the oldest events from the queue and returns their
 * number. */
int gpufl_scope_events(gpufl_scope_event *out, int n);

/* ---- stacks ---- */

/* The stack of one launch. text has one frame in each line, innermost first, as "function
 * (file:line)" in UTF-8. It is never freed, and equal stacks have equal pointers. */
typedef struct {
  const char *text;
  uint32_t correlation, attachment;
  /* 0: the stack of the launch itself. Otherwise no thread had launched anything since so many
   * samples, and most of them found the launching thread at text. */
  uint32_t samples;
} gpufl_stack_event;

/* gpufl_stack_events removes up to n of the oldest events from the queue and returns their number.
 * If a sample is in progress it waits for its end, for at most 2 ms. */
int gpufl_stack_events(gpufl_stack_event *out, int n);

/* gpufl_stacks_reason returns why stacks are not sampled although the configuration has them; NULL
 * if they are. */
const char *gpufl_stacks_reason(void);

#endif
