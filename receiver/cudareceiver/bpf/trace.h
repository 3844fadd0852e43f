/* SPDX-License-Identifier: Apache-2.0 */

/* Types that the programs of a trace share with their reader. bpf2go generates the Go types. */

#ifndef GPUFLIGHT_TRACE_H
#define GPUFLIGHT_TRACE_H

#include "types.h"

/* The known fields of an event. */
enum { HAS_STREAM = 1, HAS_BYTES = 2, HAS_ADDRESS = 4 };

/* One call of the driver, from entry to return. Times are of CLOCK_MONOTONIC, in ns. */
struct event {
	__u64 start, end;
	__u64 run;     /* Of the process: see struct run; 0 if it is not known. */
	__u64 handle;  /* The kernel, or the executable graph. */
	__u64 stream;  /* Its handle. */
	__u64 bytes;   /* Copied, set or allocated. */
	__u64 address; /* Allocated or freed; until the return, where it will be. */
	__u32 process, thread;
	__u32 grid[3], block[3], shared;
	__s32 code;     /* What the call returned. */
	__u16 function; /* Index in the reader's table. */
	__u8 kind;      /* Of copy or memory. */
	__u8 has;
	__u32 uid; /* Of the process's user. */
};

/* A call in flight: its thread, the end of the caller's stack, its function. These distinguish
 * nested calls, and functions of which one ends by a jump to the other. */
struct flight {
	__u64 thread;
	__u64 stack;
	__u64 function;
};

/* A process that calls while the trace is on. */
struct tracee {
	__s64 flights; /* how many of its calls have not returned */
	__s64 events;  /* how many it has sent in this drain */
	__u64 drain;
	__u64 lost[2]; /* by enum trace_loss */
	__u32 uid;     /* of its user */
	__u32 zero;
};

/* The number of flights and sent events of a user. */
struct trace_share {
	__s64 flights, events;
};

/* Reasons why a call has no event. The reader has the names in the same order. */
enum trace_loss { TRACE_LOST_RING, TRACE_LOST_CALLS, TRACE_LOSSES };

#endif
