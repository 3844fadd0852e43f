/* SPDX-License-Identifier: Apache-2.0 */

/* What the programs of a trace and their reader share. bpf2go makes the Go types from these. */

#ifndef GPUFLIGHT_TRACE_H
#define GPUFLIGHT_TRACE_H

#include "types.h"

/* What of an event is known. */
enum { HAS_STREAM = 1, HAS_BYTES = 2, HAS_ADDRESS = 4 };

/* One call of the driver, from entry to return. Times are of CLOCK_MONOTONIC, in ns. */
struct event {
	__u64 start, end;
	__u64 run;     /* of the process: see struct run; 0 if it is not known */
	__u64 handle;  /* the kernel, or the executable graph */
	__u64 stream;  /* its handle */
	__u64 bytes;   /* copied, set or allocated */
	__u64 address; /* allocated or freed; until the return, where it will be */
	__u32 process, thread;
	__u32 grid[3], block[3], shared;
	__s32 code;     /* what the call returned */
	__u16 function; /* index in the reader's table */
	__u8 kind;      /* of copy or memory */
	__u8 has;
	__u32 uid; /* of the process's user */
};

/* A call that has not returned: its thread, where the caller's stack ends, its function. With these, calls within
 * calls are told apart, and so are functions of which one ends by a jump to the other. */
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

/* How many flights a user has, and how many events it has sent. */
struct trace_share {
	__s64 flights, events;
};

/* Why a call is no event; the reader has the names in the same order. */
enum trace_loss { TRACE_LOST_RING, TRACE_LOST_CALLS, TRACE_LOSSES };

#endif
