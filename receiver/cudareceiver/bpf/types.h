/* SPDX-License-Identifier: Apache-2.0 */

/* Types that the programs share with their reader. bpf2go generates the Go types. */

#ifndef GPUFLIGHT_TYPES_H
#define GPUFLIGHT_TYPES_H

#include "bpf.h"
#include "layout.h"

/* The kind of a sum. */
enum sum_kind {
	SUM_LAUNCH = 1, /* Index 0, handle the kernel, low and high the buckets of grid and block, flag captured. */
	SUM_COPY,       /* Index the kind of copy, low the bucket of bytes, flag asynchronous. */
	SUM_COPY_TIME,  /* The same, low the bucket of ns; second has bytes. */
	SUM_SET,
	SUM_ALLOC,      /* Index the kind of memory; second has bytes in use, which wrap below 0. */
	SUM_FREE,       /* The same. */
	SUM_WAIT,       /* Index the function, low the bucket of ns. */
	SUM_ERROR,      /* Index the function, handle the code. */
	SUM_ENQUEUE,    /* Low the bucket of ns. */
	SUM_IDLE,       /* Low the bucket of ns. */
	SUM_GRAPH,      /* Flag 1 if its kernels are known; first has kernels. */
	SUM_MODULE,
	SUM_COLLECTIVE,      /* Index the function, low the bucket of bytes. */
	SUM_COLLECTIVE_TIME, /* Index the function, low the bucket of ns. */
	/* Not in the map of sums; the reader makes these of struct run. */
	SUM_OTHER, /* Launches without kernel, grid and block; flag captured. */
	SUM_LOST,  /* Index the loss. */
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

/* Reasons why something is not in the sums. The reader has the names in the same order. */
enum loss {
	LOST_SUMS,
	LOST_THREADS,
	LOST_RUNS,
	LOST_ALLOCATIONS,
	LOST_RECORDED,
	LOST_RING,
	LOST_CALLS,
	LOST_BATCH,
	LOST_DATATYPES,
	LOST_FOLDED, /* no loss of a call: a launch in a run's other, without its kernel, grid and block */
	LOSSES,
};

/* Maps whose entries are shared between users and their processes: see share.h. */
enum share_class {
	CLASS_RUNS,
	CLASS_SUMS,
	CLASS_THREADS,
	CLASS_ALLOCATIONS,
	CLASS_RECORDS,
	CLASS_NAMES, /* records in the ring that the reader has not read */
	CLASSES,
};

/* How many entries a user has added, less those that the programs have deleted. The reader counts in another map what it
 * has deleted: so each counter has one writer, or writers that are all atomic. */
struct share {
	__s64 used[CLASSES];
};

/* A run is a process from its first call to its end or to exec. */
struct run {
	__u64 start; /* When the process began, ns since boot; 0 if not known here. */
	__u64 seen;  /* When the first call came, ns since boot. */
	__u32 tgid;
	__u32 ended; /* 1 after exec: no thread of it is left. */
	__u64 captures; /* How many it has begun and not ended. */
	__u32 uid;      /* Of its user: see user_of. */
	__u32 user;     /* Its user's index in shares. */
	__u64 drain;    /* Of names: held[CLASS_NAMES] is since this drain. */
	__u64 reserved; /* How many of its sums are not of launches. */
	__u64 other[2]; /* Launches beyond its share of sums or threads: executed, captured. */
	__s64 held[CLASSES];
	__u64 lost[LOSSES];
};

/* What the kernel knows of a process at its first call, for the reader that comes after its end. Longer
 * names are truncated. */
enum { EXECUTABLE_BYTES = 64, CGROUP_BYTES = 512, SEGMENT_BYTES = 192 };

struct identity {
	__u8 executable[EXECUTABLE_BYTES]; /* The name of the file, without its folders. */
	/* The names of a control group of version 1 and of those around it, then the same of version 2. The innermost is
	 * first. Each ends with a zero byte. */
	__u8 cgroup[CGROUP_BYTES];
	__u16 cgroup_end[2]; /* where each of the two ends */
	__u16 cgroup_whole[2]; /* 1 if the outermost is among them */
};

/* The meaning of a function's calls, in the cookie of its probe. */
enum shape { SHAPE_BYTES, SHAPE_2D, SHAPE_3D, SHAPE_OPERATION };

union cookie {
	__u64 all;
	struct {
		__u16 function; /* index in the reader's table */
		__u8 kind;      /* of copy, memory, node, handle; bytes of an element for sets; see the table */
		__u8 flags;
		__u8 size;   /* the argument with the size, or the pointer to a struct */
		__u8 stream; /* the argument with the stream, or with NCCL's datatype; NO_ARGUMENT if none */
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
	CALL_UPDATE,
	CALL_GRAPH,
	CALL_CLONE,
	CALL_NODE,
	CALL_SAME,
	CALL_COLLECTIVE,
	CALL_GROUP,
	CALL_SET,
};

/* What a function adds to a graph: a kernel, the graph in its third argument, or what a structure says. */
enum node_kind { NODE_IS_KERNEL, NODE_IS_CHILD, NODE_IN_PARAMETERS };

/* The begin and the end of a group of collectives. */
enum group_kind { GROUP_START = 1, GROUP_END };

/* Where address a means something: device memory, host memory, handles of physical memory. */
enum memory_kind { MEMORY_DEVICE, MEMORY_PINNED, MEMORY_MANAGED, MEMORY_ASYNC, MEMORY_VIRTUAL };

/* Kind of copies between devices, as the reader has it. */
enum { COPY_PEER = 4 };

/* A call in flight. */
struct call {
	__u64 start;
	__u64 a, b, c, d;
	__u16 function;
	__u8 class;
	__u8 kind;
	__u8 flags;
	__u8 zero[3];
};

enum { CALLS = 4 };

/* The state of a thread. Only that thread writes it. */
struct thread {
	__u64 run;
	__u64 waited; /* when its last wait ended; 0 after a launch */
	/* The asynchronous copy that was its last call; start 0 if another call was, IN_RUNTIME in a call of the
	 * runtime that has not reached the driver. */
	__u64 copy_start, copy_bytes, copy_stream;
	__u32 launches;
	__u8 copy_kind;
	__u8 depth;
	__u8 groups; /* of collectives that are begun */
	__u8 zero;
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

/* What an address means: memory of the device or the host, a handle of the driver. A capture is no handle: it has a
 * number that is not used again. */
enum space {
	SPACE_DEVICE,
	SPACE_HOST,
	SPACE_HANDLE,
	SPACE_STREAM,
	SPACE_GRAPH,
	SPACE_EXECUTABLE,
	SPACE_CAPTURE,
	SPACE_EVENT,
	SPACE_FUNCTION,
};

/* Of a capture, a graph or its executable form: how many kernels are in it. Of a stream or an event: the capture that
 * it was last part of, which may have ended. Of a function: the kernel that it is of. */
struct recorded {
	__u64 value;
};

/* What the calls of one libcudart did: launches that reached the driver as we know it, and those that did not. */
struct runtime_check {
	__u64 reached, bypassed;
};

enum { CHECKS = 128 };

/* What the ring buffer carries: the name of a kernel, or that it has the same as another handle. */
enum { NAME_BYTES = 256 };

struct name {
	__u64 run;
	__u64 handle;
	__u64 same; /* 0 if text has the name */
	__u32 user; /* index in shares */
	__u32 zero;
	char text[NAME_BYTES];
};

#endif
