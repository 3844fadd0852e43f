/* SPDX-License-Identifier: Apache-2.0
 *
 * Counting launches, copies and sets in the driver's callbacks, by kernel name, and switching records of
 * them off and on meanwhile. No lock is taken for a launch whose kernel its thread has launched before.
 *
 * Every launch that CUPTI tells of is in exactly one of three: traced (records were made from before its
 * begin until after its end), counted (none were), or doubtful (a switch came between). Doubtful ones
 * are listed by correlation id: those that turn out to have a record were traced.
 */
#ifndef GPUFL_COUNT_H
#define GPUFL_COUNT_H

#include "gpufl_internal.h"

/* The same numbers as Mode in count.go. */
enum { GPUFL_MODE_TRACE, GPUFL_MODE_COUNT, GPUFL_MODE_BLIND };

/* What is counted: the operations, and from GPUFL_FIRST_KERNEL on kernels in the order in which they were first
 * seen. The same numbers as Operation in count.go. */
enum {
  GPUFL_COUNT_OTHER_KERNEL, /* without a name, without room, or several in one call */
  GPUFL_COUNT_GRAPH,
  GPUFL_COUNT_HTOD,
  GPUFL_COUNT_DTOH,
  GPUFL_COUNT_DTOD,
  GPUFL_COUNT_OTHER_COPY, /* of arrays, of several dimensions, between devices or anywhere */
  GPUFL_COUNT_SET,
  GPUFL_FIRST_KERNEL,
  GPUFL_MAX_COUNTS = 8192
};

/* gpufl_count_mode begins to count, if that has not begun in this session, and switches. GPUFL_BAD_VALUE: no such
 * mode; GPUFL_NO_SYMBOL: CUPTI does not tell of launches; GPUFL_STOPPED. Otherwise CUPTI's result; the mode is
 * then GPUFL_MODE_COUNT if records could not be switched on. */
int gpufl_count_mode(int mode);

/* gpufl_count_now is the mode, GPUFL_MODE_TRACE where nothing is counted; after gpufl_stop the last one. */
int gpufl_count_now(void);

/* gpufl_count_detach leaves CUPTI and goes on in GPUFL_MODE_COUNT or GPUFL_MODE_BLIND: once records were made CUPTI's hooks
 * make each launch slower, whatever is recorded, until it is finalized. GPUFL_MODE_COUNT subscribes anew, for
 * launches alone; gpufl_count_mode brings back what it needs. In
 * GPUFL_MODE_BLIND such a subscription goes on counting: only CUPTI that was left costs nothing. Recording must be in one of these modes already, gpufl_settle
 * must have answered GPUFL_OK, and all buffers must have been taken and read, since names in them are CUPTI's:
 * otherwise GPUFL_BUSY, and also beside windows, a capture or gpufl_pause. What is launched meanwhile, for some
 * milliseconds, is not seen: *gap_ns is how long, and 0 where CUPTI was left already. */
int gpufl_count_detach(int mode, int64_t *gap_ns);

/* gpufl_count_end is for gpufl_stop, before it disables anything: what is in flight now is not counted. */
void gpufl_count_end(void);

/* What on_api tells. learn is told once of each function that launches, copies or sets. */
void gpufl_count_learn(uint32_t cbid, const char *function);
void gpufl_count_enter(uint32_t cbid, const gpufl_callback_data *call);
void gpufl_count_exit(uint32_t cbid, const gpufl_callback_data *call);
void gpufl_count_captures(uint32_t open);

typedef struct {
  uint64_t traced, counted, doubtful;
  uint64_t bytes; /* of all three, where the call says it in a number */
} gpufl_count;

/* gpufl_counts fills at most n rows, by what is counted, and returns how many there are. They never fall, and
 * outlive a session. */
uint32_t gpufl_counts(gpufl_count *out, uint32_t n);

/* gpufl_count_name is the mangled name of a kernel that gpufl_counts has shown; it lives for ever. */
const char *gpufl_count_name(uint32_t what);

typedef struct {
  uint32_t attachment, correlation, what;
} gpufl_doubt;

/* gpufl_count_doubts takes up to n of the oldest doubtful ones and returns their number. */
uint32_t gpufl_count_doubts(gpufl_doubt *out, uint32_t n);

typedef struct {
  uint64_t failed;    /* calls that the driver refused: not counted */
  uint64_t captured;  /* calls made while a stream was being captured: counted, and perhaps never run */
  uint64_t unlisted;  /* doubtful ones for which the list had no room */
  uint64_t no_memory; /* calls that found no memory for their thread's counts: not counted */
  uint64_t no_room;   /* launches counted as GPUFL_COUNT_OTHER_KERNEL for want of room for their names */
  uint32_t switches;  /* of records */
  uint32_t beside;    /* those of records or of callbacks that launches did not wait for */
  uint32_t detached;  /* how often CUPTI was left */
  int64_t gap_ns;     /* how long in all nothing was seen because CUPTI was left or subscribed to, besides GPUFL_MODE_BLIND */
  int64_t traced_ns;  /* how long in all GPUFL_MODE_TRACE held while launches did not wait for a switch, until now */
} gpufl_count_stats;
void gpufl_count_get_stats(gpufl_count_stats *out);

/* ---- in cupti.c ---- */

/* gpufl_watch_counting: 1 has CUPTI tell of launches and captures, 0 no longer, -1 not even for scopes, but
 * for captures. It returns how many functions it tells of. */
int gpufl_watch_counting(int want);

/* Records of copies and sets are not switched off beside such calls, nor is CUPTI asked by force for those that are not complete: its own
 * thread then reads what the calling one has freed (H200, CUPTI 13.0, test/gpu/deep/copies.c: 7 of 12 processes crashed in 45 s, after
 * some thousands of switches; 2 of 3 with flushes). Switched on they may be, and those of kernels may be switched off; no such process crashed. */
enum { GPUFL_COPIES = 1u << GPUFL_KIND_MEMCPY | 1u << GPUFL_KIND_MEMCPY_P2P | 1u << GPUFL_KIND_MEMSET };

/* gpufl_hold switches those of the kinds off that are on, or those on again that it has switched off. It answers with the first failure; GPUFL_BUSY while gpufl_pause has something off. */
int gpufl_hold(bool hold, uint32_t kinds);

/* gpufl_settle has CUPTI hand over what it holds, once records are off. GPUFL_OK: it holds no buffer any more. GPUFL_TIMEOUT: some still
 * waits for what was launched. GPUFL_BUSY: records are on, or gpufl_pause has something off. */
int gpufl_settle(void);

/* gpufl_detach finalizes CUPTI while recording goes on: pool, counts and names stay. gpufl_attach subscribes to it again,
 * and with records has it ready for gpufl_hold. They are for count.c, and called one at a time. */
int gpufl_detach(void);
int gpufl_attach(bool records);

/* gpufl_bare: CUPTI tells of launches, and has made no records since it was left. */
bool gpufl_bare(void);

/* gpufl_attachment is how often CUPTI was finalized: with each time its correlation ids begin anew. */
uint32_t gpufl_attachment(void);

#endif
