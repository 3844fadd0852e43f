/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract of the C core, but for windows (gpufl_deep.h): it opens CUPTI at run time, lends it buffers from a bounded
 * pool, queues completed ones for one consumer, keeps each thread's stack of scopes and listens to
 * NVTX. It decodes nothing, never calls into Go and keeps no pointer that Go owns.
 *
 * All state is static, since there is one CUPTI in a process. Every function returns at once with
 * GPUFL_FORKED in a process forked from one that used the core.
 */
#ifndef GPUFL_CUPTI_H
#define GPUFL_CUPTI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a function answers. Positive values are CUPTI's own results (CUptiResult). */
enum {
  GPUFL_OK = 0,
  GPUFL_TIMEOUT = -1,     /* nothing came within the time */
  GPUFL_END = -2,         /* stopped, and all is taken */
  GPUFL_BROKEN = -3,      /* the rest of a buffer makes no sense */
  GPUFL_FORKED = -4,      /* in a forked child */
  GPUFL_BUSY = -5,        /* opened already */
  GPUFL_CLOSED = -6,      /* not opened */
  GPUFL_STOPPED = -7,     /* not started */
  GPUFL_MISPLACED = -8,   /* the scope is not on top of this thread's stack */
  GPUFL_FULL = -9,        /* the thread's stack is full */
  GPUFL_NO_LIBRARY = -10, /* dlopen failed */
  GPUFL_NO_SYMBOL = -11,  /* a function that is needed is not in the library */
  GPUFL_NO_MEMORY = -12,
  GPUFL_NOT_DETACHED = -13, /* no callback came in which CUPTI could be finalized */
  GPUFL_BAD_VALUE = -14,
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

/* gpufl_load opens the CUPTI at path and looks its functions up. mapped_only takes it only if the
 * process has it already. A library that was used stays for ever, since CUPTI's threads may be
 * inside it: another one is answered with GPUFL_BUSY. error gets the words of the dynamic linker or
 * the name of the missing function. */
int gpufl_load(const char *path, int mapped_only, char error[GPUFL_ERROR_SIZE]);

/* gpufl_unload forgets a library that was loaded and turned out not to fit. GPUFL_BUSY if gpufl_open or
 * gpufl_probe has used it. */
int gpufl_unload(void);

/* gpufl_version is cuptiGetVersion's number, 0 before gpufl_load. */
uint32_t gpufl_version(void);

/* gpufl_result_string is CUPTI's text for a positive result; never NULL. */
const char *gpufl_result_string(int result);

/* gpufl_driver_load opens libcuda.so.1, which starts nothing. */
int gpufl_driver_load(char error[GPUFL_ERROR_SIZE]);

/* gpufl_driver_version is the CUDA version that the driver supports (13000), 0 if unknown. */
int gpufl_driver_version(void);

/* gpufl_driver_init calls cuInit and answers with the driver's own result (CUresult). */
int gpufl_driver_init(void);

typedef struct {
  int32_t ordinal;
  int32_t major, minor, sm_count; /* -1 where the driver does not say */
  char name[256];
  uint8_t uuid[16];
  uint8_t has_uuid;
  uint8_t mig; /* the UUID is that of a MIG instance */
} gpufl_device;

/* gpufl_devices fills at most n devices and returns how many the driver has; or the driver's error
 * negated: -3 is CUDA_ERROR_NOT_INITIALIZED (nobody has called cuInit), -100 CUDA_ERROR_NO_DEVICE.
 * It creates no context. */
int gpufl_devices(gpufl_device *out, int n);

/* ---- life ---- */

typedef struct {
  size_t buffer_bytes; /* rounded up to whole pages */
  uint32_t buffers;    /* the most that exist at a time, at most GPUFL_MAX_BUFFERS */
  uint32_t kinds;      /* bits 1 << GPUFL_KIND_… */
  uint32_t graph_nodes;
  uint32_t detach;      /* gpufl_suspend may be called */
  uint32_t deep;        /* windows may be asked for: see gpufl_deep.h */
  uint64_t cubin_bytes; /* the most that images of modules may take, with deep */
} gpufl_config;

#define GPUFL_MAX_BUFFERS 1024

/* gpufl_open sets the core up for the loaded library and becomes its subscriber, so that another
 * profiler is told that somebody is here, and we that another one is. */
int gpufl_open(const gpufl_config *config);

/* gpufl_probe asks whether gpufl_open would find CUPTI free; it changes nothing. */
int gpufl_probe(void);

/* gpufl_start registers clock and buffers and enables the kinds. *enabled gets those that work;
 * *refusal CUPTI's result for the first that did not. After gpufl_suspend it attaches to CUPTI again where
 * gpufl_finalize detached it, and the session continues; on an error it may be called again. */
int gpufl_start(uint32_t *enabled, int *refusal);

/* gpufl_suspend ends records while the session continues: scopes are kept, and gpufl_wait does not
 * answer GPUFL_END. It waits at most limit_ns for the records of work in flight. Then gpufl_finalize may detach CUPTI, once
 * all buffers have been read, or gpufl_start switches records on again. GPUFL_TIMEOUT: CUPTI still has
 * buffers. GPUFL_CAPTURE: a stream is being captured, nothing has changed. GPUFL_NOT_DETACHED: not with this gpufl_config. */
int gpufl_suspend(int64_t limit_ns);
bool gpufl_suspended(void); /* between gpufl_suspend and the next gpufl_start or gpufl_stop */

/* gpufl_flush asks CUPTI for all complete buffers. Any thread. */
int gpufl_flush(void);

/* gpufl_stop disables the kinds and takes back what is complete, for which it waits 0.3 s at most. That can still be taken. Where nobody
 * knows that no copy is under way, the kinds of copies and sets stay on without buffers until gpufl_finalize; gpufl_stats.lent are
 * the buffers that did not come back, for a record in them that is not complete. */
int gpufl_stop(void);

/* gpufl_finalize, after gpufl_stop or gpufl_suspend, detaches CUPTI from the driver: until then a process may stay
 * slower than before. Strings that records point to may be gone after it. */
int gpufl_finalize(void);

/* gpufl_attachment is how often CUPTI was finalized. Correlation ids begin again each time. */
uint32_t gpufl_attachment(void);

/* gpufl_close gives up the subscription and frees the buffers, except those that CUPTI or a
 * consumer still holds: these are freed when they come back, or serve the next gpufl_open. */
int gpufl_close(void);

/* ---- buffers ---- */

typedef struct gpufl_buffer {
  uint8_t *data;
  size_t size;  /* of data */
  size_t valid; /* bytes that CUPTI filled */
  /* Add anchor to each timestamp; 0 where CUPTI took our clock. */
  int64_t anchor;
  /* The rest is the pool's. */
  struct gpufl_buffer *next;
  int32_t state;
} gpufl_buffer;

/* gpufl_wait waits until a completed buffer is there: GPUFL_OK, GPUFL_TIMEOUT or GPUFL_END. */
int gpufl_wait(int64_t nanoseconds);

/* gpufl_take takes the oldest completed buffer; GPUFL_TIMEOUT if there is none, GPUFL_END if there
 * will be none. */
int gpufl_take(gpufl_buffer **out);

/* gpufl_release gives a taken buffer back to the pool. */
void gpufl_release(gpufl_buffer *buffer);

/* gpufl_walk fills records with up to n of the records that follow *cursor (NULL to begin) and moves
 * *cursor to the last. It returns their number, 0 at the end, GPUFL_BROKEN where the rest cannot be
 * read. Each pointer lies inside the buffer, with at least 8 bytes behind it. */
int gpufl_walk(const gpufl_buffer *buffer, void **cursor, void **records, int n);

/* gpufl_pending is the number of completed buffers that wait. */
int gpufl_pending(void);

typedef struct {
  uint64_t dropped;          /* records that CUPTI could not keep */
  uint64_t requests;         /* buffers lent */
  uint64_t refused;          /* requests that found no buffer */
  uint64_t unreturned;       /* buffers that CUPTI kept at the end of recording */
  uint64_t completed;        /* buffers that came back */
  uint64_t foreign;          /* buffers that came back and are not ours */
  uint64_t scopes_lost;      /* NVTX events and scopes without room */
  uint64_t scopes_misplaced; /* scopes ended elsewhere than on top of their thread's stack */
  uint32_t allocated;        /* buffers that exist now */
  uint32_t lent;             /* of these, held by CUPTI */
} gpufl_stats;

void gpufl_get_stats(gpufl_stats *out);

/* ---- scopes ---- */

/* gpufl_next_scope_id counts from 1. */
uint64_t gpufl_next_scope_id(void);

/* gpufl_push_scope makes id the scope of what the calling thread launches from now on. Before
 * gpufl_start and after gpufl_stop the scope is only remembered: GPUFL_OK all the same. An id has at
 * most 52 bits. */
int gpufl_push_scope(uint64_t id);

/* gpufl_pop_scope ends it. A scope that is deeper in the thread's stack is taken out of it, one that
 * is on another thread's stack is taken out when that thread comes next; both are GPUFL_MISPLACED. */
int gpufl_pop_scope(uint64_t id);

/* gpufl_scope_of is the scope in which the launch with this correlation id was made; 0 for none, or
 * when 1 << GPUFL_SCOPE_TABLE_BITS launches have come since. gpufl_scope_table is what it looks at, for
 * callers that read it themselves, NULL before the first gpufl_open: slot correlation &
 * (1 << GPUFL_SCOPE_TABLE_BITS) - 1, read as one atomic word, holds the scope in its low 52 bits, then a bit
 * that says that the launching thread was in none (it is the innermost NVTX range of the only thread that
 * was in any), and above that the rest of the correlation id. */
#define GPUFL_SCOPE_TABLE_BITS 21
uint64_t gpufl_scope_of(uint32_t correlation);
const uint64_t *gpufl_scope_table(void);

/* gpufl_thread is the calling thread's id as the kernel numbers it. */
uint32_t gpufl_thread(void);

enum { GPUFL_SCOPE_BEGIN, GPUFL_SCOPE_END, GPUFL_SCOPE_MARK };

/* One NVTX event. name and domain live for ever and equal strings have equal pointers; NULL for
 * none. */
typedef struct {
  uint64_t id, parent;
  int64_t time_ns;
  const char *name, *domain;
  uint32_t thread, color;
  uint8_t what, nested;
} gpufl_scope_event;

/* gpufl_scope_events takes up to n of the oldest events and returns their number. */
int gpufl_scope_events(gpufl_scope_event *out, int n);

#endif
