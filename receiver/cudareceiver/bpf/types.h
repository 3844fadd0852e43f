/* SPDX-License-Identifier: Apache-2.0 */

/* What the programs and their reader share. bpf2go makes the Go types from these. */

#ifndef GPUFLIGHT_TYPES_H
#define GPUFLIGHT_TYPES_H

#include "bpf.h"

/* What a sum is of. */
enum sum_kind {
	SUM_LAUNCH = 1, /* index 0, handle the kernel, low and high the buckets of grid and block, flag captured */
	SUM_COPY,       /* index the kind of copy, low the bucket of bytes, flag asynchronous */
	SUM_COPY_TIME,  /* the same, low the bucket of ns; second has bytes */
	SUM_SET,
	SUM_ALLOC,      /* index the kind of memory; second has bytes in use, which wrap below 0 */
	SUM_FREE,       /* the same */
	SUM_WAIT,       /* index the function, low the bucket of ns */
	SUM_ERROR,      /* index the function, handle the code */
	SUM_ENQUEUE,    /* low the bucket of ns */
	SUM_IDLE,       /* low the bucket of ns */
	SUM_GRAPH,      /* flag 1 if its kernels are known; first has kernels */
	SUM_MODULE,
};

struct sum_key {
	__u64 run; /* which run of which process: see struct run */
	__u64 handle;
	__u16 index;
	__u8 kind;
	__u8 low;
	__u8 high;
	__u8 flag;
	__u16 zero;
};

/* One line of a sum; its histogram is the lines that differ in low and high only. */
struct sum {
	__u64 calls;
	__u64 first, first_max;
	__u64 second, second_max;
};

/* A run is a process from its first call to its end or to exec. */
struct run {
	__u64 start; /* when the process began, ns since boot; 0 if not known here */
	__u64 seen;  /* when the first call came, ns since boot */
	__u32 tgid;
	__u32 ended; /* 1 after exec: no thread of it is left */
};

/* What a function's calls mean, in the cookie of its probe. */
enum shape { SHAPE_BYTES, SHAPE_2D, SHAPE_3D };

union cookie {
	__u64 all;
	struct {
		__u16 function; /* index in the reader's table */
		__u8 kind;      /* of copy, memory; bytes of an element for sets */
		__u8 flags;
		__u8 size;   /* the argument with the size, or the pointer to a struct */
		__u8 stream; /* the argument with the stream; NO_ARGUMENT if none */
		__u8 shape;
		__u8 class; /* enum call_class, for the return */
	};
};

enum { NO_ARGUMENT = 255 };
enum { FLAG_ASYNC = 1, FLAG_RETURNS = 2, FLAG_PITCH = 4, FLAG_GIVEN = 8 };

enum call_class {
	CALL_OTHER = 1,
	CALL_LAUNCH,
	CALL_COPY,
	CALL_ALLOC,
	CALL_FREE,
	CALL_WAIT,
	CALL_CAPTURE_BEGIN,
	CALL_CAPTURE_END,
	CALL_INSTANTIATE,
	CALL_NAME,
	CALL_MODULE,
};

/* Where address a means something: device memory, host memory, handles of physical memory. */
enum memory_kind { MEMORY_DEVICE, MEMORY_PINNED, MEMORY_MANAGED, MEMORY_ASYNC, MEMORY_VIRTUAL };

/* A call that has not returned. */
struct call {
	__u64 start;
	__u64 a, b, c;
	__u16 function;
	__u8 class;
	__u8 kind;
	__u8 flags;
	__u8 zero[3];
};

enum { CALLS = 4 };

/* What is known of a thread; only it writes here. */
struct thread {
	__u64 run;
	__u64 waited; /* when its last wait ended; 0 after a launch */
	/* The asynchronous copy that was its last call; start 0 if another call was. */
	__u64 copy_start, copy_bytes, copy_stream;
	__u32 launches;
	__u8 copy_kind;
	__u8 depth;
	__u8 zero[2];
	struct call calls[CALLS];
};

struct address {
	__u64 run;
	__u64 address;
	__u64 space;
};

struct allocation {
	__u64 bytes;
	__u64 kind;
};

/* A stream that is recorded, or a graph or its executable form: launches in it. */
struct recorded {
	__u64 launches;
};

/* Why something is not in the sums; the reader has the names in the same order. */
enum loss {
	LOST_SUMS,
	LOST_THREADS,
	LOST_RUNS,
	LOST_ALLOCATIONS,
	LOST_RECORDED,
	LOST_RING,
	LOST_CALLS,
	LOST_BATCH,
	LOSSES,
};

/* What the ring buffer carries: the name of a kernel. */
enum { NAME_BYTES = 256 };

struct name {
	__u64 run;
	__u64 handle;
	char text[NAME_BYTES];
};

#endif
