//go:build ignore
/* SPDX-License-Identifier: Apache-2.0 */

/* Programs for the entry points of the CUDA driver. They sum up the calls of each process in the
 * kernel. The reader reads the sums every few seconds; calls send no event. */

#include "arguments.h"
#include "identity.h"
#include "share.h"
#include "types.h"

/* The reader sets sizes: those here are its defaults. Maps are shared as share.h says. What a process adds beyond its
 * share is not kept; it is counted in lost, and for that process in its run. */

/* The sums, 40 bytes for each processor. */
struct {
	__uint(type, MAP_PERCPU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct sum_key);
	__type(value, struct sum);
} sums SEC(".maps");

/* The current run of a process, by its id. */
struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u64);
} processes SEC(".maps");

/* All runs that the reader has not freed. */
struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct run);
} runs SEC(".maps");

/* Threads that called, by process and thread id; gone when they end. */
struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 32768);
	__type(key, __u64);
	__type(value, struct thread);
} threads SEC(".maps");

/* Memory that is allocated. */
struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 131072);
	__type(key, struct address);
	__type(value, struct allocation);
} allocations SEC(".maps");

/* What is recorded, graphs, and handles that have to do with them: see struct recorded. */
struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 65536);
	__type(key, struct address);
	__type(value, struct recorded);
} records SEC(".maps");

/* Names of kernels as processes ask for them, some hundreds each. */
struct {
	__uint(type, MAP_RINGBUF);
	__uint(max_entries, 1 << 20);
} names SEC(".maps");

/* Counts dropped entries, by enum loss. */
struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, LOSSES);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

/* How many entries of each map users have added and the programs have not deleted, by share_of a user: see share.h. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, SHARES);
	__type(key, __u32);
	__type(value, struct share);
} shares SEC(".maps");

/* How many of these entries the reader has deleted. Only it writes here. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, SHARES);
	__type(key, __u32);
	__type(value, struct share);
} freed SEC(".maps");

/* Calls of processes without a run because their user has reached its share, by user_of. */
struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} refused SEC(".maps");

/* The calls of each libcudart, by the number that the reader assigns to it. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, CHECKS);
	__type(key, __u32);
	__type(value, struct runtime_check);
} checks SEC(".maps");

/* state[0] numbers runs, state[1] counts runs that ended, state[2] is how many captures go on, state[3] numbers
 * captures, state[4] numbers the times that the reader has emptied the ring. */
enum { STATE_RUN, STATE_ENDED, STATE_RECORDING, STATE_CAPTURE, STATE_DRAIN, STATES };
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, STATES);
	__type(key, __u32);
	__type(value, __u64);
} state SEC(".maps");

/* Offsets of a thread's leader and its start time in kernel structures, 0 if unknown. Without them
 * the reader uses /proc. */
volatile const __u32 group_leader_offset = 0;
volatile const __u32 start_boottime_offset = 0;
/* One of sample_every launches is timed; 0 for none. */
volatile const __u32 sample_every = 0;
/* The capacity of the maps, by enum share_class. */
volatile const __u32 capacity[CLASSES] = {};
/* A process may have as many sums of other calls even if kernels have used up its share. */
enum { RESERVE = 256 };

/* A graph whose kernels are not all known; added to its value. */
#define UNKNOWN (1ULL << 63)
/* In a thread's copy_start: the runtime was called, but no driver function that clears it. Every
 * program that counts a driver call clears it anyway, so the check costs these nothing. */
enum { IN_RUNTIME = 1 };

/* For bpf2go, which generates Go types for the types of variables. */
const enum call_class *_class __attribute__((unused));
const enum memory_kind *_memory __attribute__((unused));
const enum sum_kind *_kind __attribute__((unused));
const enum shape *_shape __attribute__((unused));
const enum loss *_loss __attribute__((unused));
const enum space *_space __attribute__((unused));
const enum node_kind *_node __attribute__((unused));
const enum group_kind *_group __attribute__((unused));
const struct runtime_check *_check __attribute__((unused));
const struct name *_name __attribute__((unused));
const enum share_class *_share_class __attribute__((unused));
const struct share *_share __attribute__((unused));
const struct identity *_identity __attribute__((unused));

static const struct thread new_thread;
static const struct sum no_sum;

INLINE void lose(__u32 what, __u64 n)
{
	__u64 *v = bpf_map_lookup_elem(&lost, &what);

	if (v)
		__sync_fetch_and_add(v, n);
}

/* lose_of counts a loss for a run. */
INLINE void lose_of(struct run *r, __u32 what, __u64 n)
{
	lose(what, n);
	__sync_fetch_and_add(&r->lost[what], n);
}

INLINE __u64 *state_of(__u32 what)
{
	return bpf_map_lookup_elem(&state, &what);
}

INLINE __s64 used(__u32 user, __u32 class)
{
	struct share *added = bpf_map_lookup_elem(&shares, &user), *deleted = bpf_map_lookup_elem(&freed, &user);

	if (!added || !deleted)
		return 0; /* an array has all its keys */
	return *(volatile __s64 *)&added->used[class] - *(volatile __s64 *)&deleted->used[class];
}

/* room returns the free entries of a map beyond those that the user has: see share.h. */
INLINE __s64 room(__u32 user, __u32 class)
{
	return (__s64)capacity[class] - used(ALL_USERS, class) - used(user, class);
}

/* fits reports whether a process may add an entry. */
INLINE int fits(struct run *r, __u32 class)
{
	return r->held[class] < room(r->user, class);
}

/* hold counts added entries, or with -1 deleted ones. */
INLINE void hold(struct run *r, __u32 class, __s64 n)
{
	__u32 all = ALL_USERS, user = r->user;
	struct share *s = bpf_map_lookup_elem(&shares, &all);

	if (s)
		__sync_fetch_and_add(&s->used[class], n);
	s = bpf_map_lookup_elem(&shares, &user);
	if (s)
		__sync_fetch_and_add(&s->used[class], n);
	__sync_fetch_and_add(&r->held[class], n);
}

/* bucket is i for (2^(i-1), 2^i], 0 for 0 and 1, without a branch that would double the verifier's
 * work. */
INLINE __u8 bucket(__u64 v)
{
	__u64 r, s;

	if (v <= 1)
		return 0;
	v--;
	r = (__u64)(v > 0xffffffff) << 5;
	v >>= r;
	s = (__u64)(v > 0xffff) << 4;
	v >>= s;
	r |= s;
	s = (__u64)(v > 0xff) << 3;
	v >>= s;
	r |= s;
	s = (__u64)(v > 0xf) << 2;
	v >>= s;
	r |= s;
	s = (__u64)(v > 0x3) << 1;
	v >>= s;
	r |= s;
	r |= v >> 1;
	return r >= 63 ? 63 : r + 1;
}

/* raise updates a maximum. It is atomic, because programs may be interrupted. */
INLINE void raise(__u64 *max, __u64 v)
{
	for (int i = 0; i < 4; i++) {
		__u64 old = *(volatile __u64 *)max;

		if (v <= old || __sync_val_compare_and_swap(max, old, v) == old)
			return;
	}
}

/* new_sum adds a line of sums. It returns NULL if the process has reached its share. A launch is
 * then counted in the run's other, so that the total stays exact. Any other call is lost. */
NOINLINE struct sum *new_sum(const struct sum_key *key)
{
	struct run *r = bpf_map_lookup_elem(&runs, &key->run);
	struct sum *s = 0;
	__s64 left;
	int launch = key->kind == SUM_LAUNCH;

	if (!r) {
		lose(LOST_SUMS, 1);
		return 0;
	}
	left = room(r->user, CLASS_SUMS);
	if (left > r->held[CLASS_SUMS] || (left > 0 && !launch && r->reserved < RESERVE)) {
		if (!bpf_map_update_elem(&sums, key, &no_sum, UPDATE_NOEXIST)) {
			hold(r, CLASS_SUMS, 1);
			if (!launch)
				__sync_fetch_and_add(&r->reserved, 1);
		}
		s = bpf_map_lookup_elem(&sums, key);
	}
	if (s)
		return s;
	if (launch) {
		lose(LOST_FOLDED, 1);
		__sync_fetch_and_add(&r->other[key->flag & 1], 1);
	} else {
		lose_of(r, LOST_SUMS, 1);
	}
	return 0;
}

/* add has no lock but needs atomic instructions, for the same reason as raise. */
INLINE void add(const struct sum_key *key, __u64 first, __u64 second)
{
	struct sum *s = bpf_map_lookup_elem(&sums, key);

	if (!s) {
		s = new_sum(key);
		if (!s)
			return;
	}
	__sync_fetch_and_add(&s->calls, 1);
	if (first) {
		__sync_fetch_and_add(&s->first, first);
		raise(&s->first_max, first);
	}
	if (second) {
		__sync_fetch_and_add(&s->second, second);
		raise(&s->second_max, second);
	}
}

/* start_of returns the start time of the current process, or 0. */
INLINE __u64 start_of(void)
{
	__u64 task = bpf_get_current_task();
	__u64 leader = 0, start = 0;

	if (!group_leader_offset || !start_boottime_offset)
		return 0;
	if (bpf_probe_read_kernel(&leader, sizeof(leader), (void *)(task + group_leader_offset)))
		return 0;
	if (bpf_probe_read_kernel(&start, sizeof(start), (void *)(leader + start_boottime_offset)))
		return 0;
	return start;
}

/* refuse counts a call of a process without a run, for its user. */
INLINE void refuse(__u32 uid)
{
	__u64 none = 0, *calls;

	lose(LOST_RUNS, 1);
	bpf_map_update_elem(&refused, &uid, &none, UPDATE_NOEXIST);
	calls = bpf_map_lookup_elem(&refused, &uid);
	if (calls)
		__sync_fetch_and_add(calls, 1);
}

/* run_of finds or creates the current process's run. It returns 0 and counts if the map is full. */
INLINE __u64 run_of(__u32 tgid)
{
	__u64 *found = bpf_map_lookup_elem(&processes, &tgid);
	struct run r = {}, *made;
	__u64 *last, run;

	if (found)
		return *found;
	last = state_of(STATE_RUN);
	if (!last)
		return 0;
	r.uid = user_of();
	r.user = share_of(r.uid);
	if (room(r.user, CLASS_RUNS) <= 0) {
		refuse(r.uid);
		return 0;
	}
	run = __sync_fetch_and_add(last, 1) + 1;
	r.tgid = tgid;
	r.seen = bpf_ktime_get_boot_ns();
	r.start = start_of();
	identify(run); /* before the reader can see the run */
	if (bpf_map_update_elem(&runs, &run, &r, UPDATE_NOEXIST)) {
		bpf_map_delete_elem(&identities, &run);
		refuse(r.uid);
		return 0;
	}
	if (bpf_map_update_elem(&processes, &tgid, &run, UPDATE_NOEXIST)) {
		/* Another thread of the process was faster, or the map is full. */
		bpf_map_delete_elem(&runs, &run);
		bpf_map_delete_elem(&identities, &run);
		found = bpf_map_lookup_elem(&processes, &tgid);
		if (found)
			return *found;
		refuse(r.uid);
		return 0;
	}
	made = bpf_map_lookup_elem(&runs, &run);
	if (made)
		hold(made, CLASS_RUNS, 1);
	return run;
}

/* begin_thread creates this thread's state. It returns NULL if the map is full. A launch is then
 * counted in the run's other, as executed, and any other call as lost. */
NOINLINE struct thread *begin_thread(__u64 id, int launch)
{
	__u64 run = run_of(id >> 32);
	struct run *r = bpf_map_lookup_elem(&runs, &run);
	struct thread *t;

	if (!r) {
		if (run)
			lose(LOST_RUNS, 1); /* the reader has just freed it */
		return 0;
	}
	if (fits(r, CLASS_THREADS) && !bpf_map_update_elem(&threads, &id, &new_thread, UPDATE_NOEXIST)) {
		hold(r, CLASS_THREADS, 1);
		t = bpf_map_lookup_elem(&threads, &id);
		if (t) {
			t->run = run;
			return t;
		}
	}
	if (launch) {
		lose(LOST_FOLDED, 1);
		__sync_fetch_and_add(&r->other[0], 1);
	} else {
		lose_of(r, LOST_THREADS, 1);
	}
	return 0;
}

/* current finds or creates this thread's state. It returns NULL and counts if the map is full. */
INLINE struct thread *current_for(int launch)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct thread *t = bpf_map_lookup_elem(&threads, &id);

	return t ? t : begin_thread(id, launch);
}

INLINE struct thread *current(void)
{
	return current_for(0);
}

/* lose_in counts a loss of a thread's process. */
NOINLINE int lose_in(__u64 run, __u32 what, __u64 n)
{
	struct run *r = bpf_map_lookup_elem(&runs, &run);

	lose(what, n);
	if (r && what < LOSSES)
		__sync_fetch_and_add(&r->lost[what], n);
	return 0;
}

INLINE void lose_calls(struct thread *t, __u64 n)
{
	lose_in(t->run, LOST_CALLS, n);
}

/* enter stores a call until its return. */
INLINE void enter(struct thread *t, union cookie f, __u64 a, __u64 b, __u64 c)
{
	__u32 depth = t->depth;
	struct call *call;

	if (depth >= CALLS) {
		lose_calls(t, 1);
		return;
	}
	call = &t->calls[depth & (CALLS - 1)];
	call->a = a;
	call->b = b;
	call->c = c;
	call->function = f.function;
	call->class = f.class;
	call->kind = f.kind;
	call->flags = f.flags;
	t->depth = depth + 1;
	call->start = bpf_ktime_get_ns();
}

INLINE int any_recording(void)
{
	__u64 *captures = state_of(STATE_RECORDING);

	return captures && *(volatile __u64 *)captures;
}

/* capture_of returns the current capture of a stream or an event, or NULL. */
INLINE struct recorded *capture_of(struct thread *t, __u64 space, __u64 address, __u64 *number)
{
	struct address at = {.run = t->run, .address = address, .space = space};
	struct recorded *r = bpf_map_lookup_elem(&records, &at);

	if (!r)
		return 0;
	*number = r->value;
	at.address = r->value;
	at.space = SPACE_CAPTURE;
	return bpf_map_lookup_elem(&records, &at);
}

/* gain adds kernels to a capture or a graph. UNKNOWN stays set once it is added. */
INLINE void gain(struct recorded *r, __u64 kernels)
{
	if (kernels & UNKNOWN)
		__sync_fetch_and_or(&r->value, UNKNOWN);
	else
		__sync_fetch_and_add(&r->value, kernels);
}

/* recording adds kernels to a stream's capture. It returns 0 without one. Only if any_recording. */
INLINE int recording(struct thread *t, __u64 stream, __u64 kernels)
{
	struct recorded *r;
	__u64 number;

	r = capture_of(t, SPACE_STREAM, stream, &number);
	if (!r)
		return 0;
	gain(r, kernels);
	return 1;
}

INLINE void launched(struct thread *t, __u64 kernel, __u64 grid, __u64 block, __u8 captured)
{
	struct sum_key key = {.run = t->run, .handle = kernel, .kind = SUM_LAUNCH, .flag = captured};

	key.low = bucket(grid);
	key.high = bucket(block);
	add(&key, grid, block);
	t->copy_start = 0; /* which also tells runtime_returned that the driver was reached */
	if (t->waited) {
		struct sum_key idle = {.run = t->run, .kind = SUM_IDLE};
		__u64 ns = bpf_ktime_get_ns() - t->waited;

		t->waited = 0;
		idle.low = bucket(ns);
		add(&idle, ns, 0);
	}
}

/* sampled stores a launch until its return, if launches are timed. */
INLINE void sampled(struct thread *t, struct pt_regs *ctx)
{
	union cookie f;

	if (!sample_every)
		return;
	f.all = bpf_get_attach_cookie(ctx);
	t->launches++;
	enter(t, f, t->launches % sample_every == 0, 0, 0);
}

/* The common begin of cuLaunchKernel and cuLaunchCooperativeKernel. */
SEC("uprobe")
int launch(struct pt_regs *ctx)
{
	struct thread *t = current_for(1);
	__u64 grid, block;
	__u8 captured;

	if (!t)
		return 0;
	grid = (__u64)(__u32)ARG1(ctx) * (__u32)ARG2(ctx) * (__u32)ARG3(ctx);
	block = (__u64)(__u32)ARG4(ctx) * (__u32)ARG5(ctx) * (__u32)argument(ctx, 6);
	captured = any_recording() && recording(t, argument(ctx, 8), 1);
	launched(t, ARG0(ctx), grid, block, captured);
	sampled(t, ctx);
	return 0;
}

SEC("uprobe")
int launch_config(struct pt_regs *ctx)
{
	struct launch_config config;
	struct thread *t = current_for(1);
	__u8 captured;

	if (!t)
		return 0;
	if (bpf_probe_read_user(&config, sizeof(config), (void *)ARG0(ctx)))
		__builtin_memset(&config, 0, sizeof(config));
	captured = any_recording() && recording(t, config.stream, 1);
	launched(t, ARG1(ctx), (__u64)config.grid[0] * config.grid[1] * config.grid[2],
		 (__u64)config.block[0] * config.block[1] * config.block[2], captured);
	sampled(t, ctx);
	return 0;
}

/* started counts the launch of a graph, or adds its kernels to the stream's capture. There it is
 * the child of another graph. */
INLINE void started(struct thread *t, struct recorded *r, __u64 stream)
{
	struct sum_key key = {.run = t->run, .kind = SUM_GRAPH};
	__u64 kernels = r ? r->value : UNKNOWN;

	t->copy_start = 0;
	t->waited = 0;
	if (any_recording() && recording(t, stream, kernels))
		return;
	key.flag = !(kernels & UNKNOWN);
	add(&key, key.flag ? kernels : 0, 0);
}

/* cuGraphLaunch(executable, stream). */
SEC("uprobe")
int graph_launch(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct thread *t = current();
	struct address at = {.address = ARG0(ctx), .space = SPACE_EXECUTABLE};
	struct recorded *r;

	if (!t)
		return 0;
	at.run = t->run;
	r = bpf_map_lookup_elem(&records, &at);
	started(t, r, ARG1(ctx));
	if (f.flags & FLAG_RETURNS)
		enter(t, f, 0, 0, 0);
	return 0;
}

SEC("uprobe")
int copy(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct thread *t = current();
	struct sum_key key = {.kind = SUM_COPY};
	__u64 bytes;

	if (!t)
		return 0;
	bytes = f.shape == SHAPE_BYTES ? argument(ctx, f.size) : area(ctx, f, &f.kind);
	key.run = t->run;
	key.index = f.kind;
	key.flag = f.flags & FLAG_ASYNC;
	key.low = bucket(bytes);
	add(&key, bytes, 0);
	t->copy_start = 0;
	if (f.flags & FLAG_ASYNC) {
		t->copy_stream = argument(ctx, f.stream);
		t->copy_bytes = bytes;
		t->copy_kind = f.kind;
		t->copy_start = bpf_ktime_get_ns();
	}
	if (f.flags & FLAG_RETURNS)
		enter(t, f, bytes, 0, 0);
	return 0;
}

/* one_of_batch is global, so that the verifier checks it once and not in every loop iteration. */
__attribute__((noinline)) int one_of_batch(__u64 run, __u64 bytes)
{
	struct sum_key key = {.run = run, .kind = SUM_COPY, .flag = FLAG_ASYNC, .low = bucket(bytes)};

	add(&key, bytes, 0);
	return 0;
}

/* cuMemcpyBatchAsync(destinations, sources, sizes, count, …), cuMemcpy3DBatchAsync(count, operations, …). */
SEC("uprobe")
int copy_batch(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct thread *t = current();
	__u64 from = ARG2(ctx), count = ARG3(ctx), bytes, run;
	long failed = 0;
	__u32 i;

	if (!t)
		return 0;
	run = t->run;
	t->copy_start = 0;
	if (f.shape == SHAPE_OPERATION) {
		from = ARG1(ctx);
		count = ARG0(ctx);
	}
	for (i = 0; i < BATCH; i++) {
		if (i >= count)
			return 0;
		bytes = bytes_of(f.shape, from, i, &failed);
		if (failed)
			break;
		one_of_batch(run, bytes);
	}
	if (count > i)
		lose_in(run, LOST_BATCH, count - i);
	return 0;
}

/* Sets: (destination, value, n) or (destination, pitch, value, width, height). */
SEC("uprobe")
int set(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct thread *t = current();
	struct sum_key key = {.kind = SUM_SET};
	__u64 n;

	if (!t)
		return 0;
	n = f.shape == SHAPE_2D ? ARG3(ctx) * ARG4(ctx) : ARG2(ctx);
	key.run = t->run;
	add(&key, n * f.kind, 0);
	t->copy_start = 0;
	if (f.flags & FLAG_RETURNS)
		enter(t, f, 0, 0, 0);
	return 0;
}

INLINE __u64 space_of(__u8 kind)
{
	return kind == MEMORY_PINNED ? SPACE_HOST : kind == MEMORY_VIRTUAL ? SPACE_HANDLE : SPACE_DEVICE;
}

/* Allocations: (where the address goes, bytes, …), with FLAG_PITCH (…, where the pitch goes, width, height,
 * …); FLAG_GIVEN: (address, bytes, …). */
SEC("uprobe")
int alloc(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct thread *t = current();

	if (!t)
		return 0;
	t->copy_start = 0;
	if (f.flags & FLAG_PITCH)
		enter(t, f, ARG0(ctx), ARG3(ctx), ARG1(ctx));
	else
		enter(t, f, ARG0(ctx), ARG1(ctx), 0);
	return 0;
}

/* drop_allocation deletes an allocation. It returns 0 if it existed. */
NOINLINE int drop_allocation(__u64 run, __u64 space, __u64 address)
{
	struct address at = {.run = run, .address = address, .space = space};
	struct run *r = bpf_map_lookup_elem(&runs, &run);

	if (bpf_map_delete_elem(&allocations, &at))
		return -1;
	if (r)
		hold(r, CLASS_ALLOCATIONS, -1);
	return 0;
}

INLINE void unmap(__u64 run, __u8 kind, __u64 address)
{
	struct address at = {.run = run, .address = address, .space = space_of(kind)};
	struct sum_key key = {.run = run, .kind = SUM_FREE, .index = kind};
	struct allocation *found = bpf_map_lookup_elem(&allocations, &at), was = {};

	if (!address)
		return; /* freeing nothing is allowed, and nothing */
	if (found) {
		was = *found;
		key.index = was.kind;
		drop_allocation(run, at.space, address);
	}
	add(&key, was.bytes, -was.bytes);
}

/* keep_allocation stores an allocation. It returns 0, or counts that the map is full. */
NOINLINE int keep_allocation(__u64 run, __u8 kind, __u64 address, __u64 bytes)
{
	struct address at = {.run = run, .address = address, .space = space_of(kind)};
	struct allocation a = {.bytes = bytes, .kind = kind};
	struct run *r = bpf_map_lookup_elem(&runs, &run);

	if (!bpf_map_update_elem(&allocations, &at, &a, UPDATE_EXIST))
		return 0; /* its release was not seen */
	if (!r) {
		lose(LOST_ALLOCATIONS, 1);
		return -1;
	}
	if (!fits(r, CLASS_ALLOCATIONS) || bpf_map_update_elem(&allocations, &at, &a, UPDATE_NOEXIST)) {
		lose_of(r, LOST_ALLOCATIONS, 1);
		return -1;
	}
	hold(r, CLASS_ALLOCATIONS, 1);
	return 0;
}

INLINE void map(__u64 run, __u8 kind, __u64 address, __u64 bytes)
{
	struct sum_key key = {.run = run, .kind = SUM_ALLOC, .index = kind};

	add(&key, bytes, keep_allocation(run, kind, address, bytes) ? 0 : bytes);
}

/* Frees, of the address in the first argument. The entry is deleted before the call: after it
 * another thread may have got the same address. */
SEC("uprobe")
int release(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct thread *t = current();

	if (!t)
		return 0;
	t->copy_start = 0;
	unmap(t->run, f.kind, ARG0(ctx));
	if (f.flags & FLAG_RETURNS)
		enter(t, f, ARG0(ctx), 0, 0);
	return 0;
}

/* Waits. Only the wait for a stream names the stream. */
SEC("uprobe")
int wait(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct thread *t = current();
	int merges;

	if (!t)
		return 0;
	merges = f.stream != NO_ARGUMENT && t->copy_start && t->copy_stream == ARG0(ctx);
	if (!merges)
		t->copy_start = 0;
	enter(t, f, merges, 0, 0);
	return 0;
}

/* Calls with three arguments that are needed at the return: captures, graphs, names, modules. They
 * do not launch. The runtime may make some of them before a launch. */
SEC("uprobe")
int other(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct thread *t = current();

	if (!t)
		return 0;
	if (t->copy_start != IN_RUNTIME)
		t->copy_start = 0;
	enter(t, f, ARG0(ctx), ARG1(ctx), argument(ctx, f.size));
	return 0;
}

/* keep_record stores a handle's value and returns 0, or counts that the map is full. */
NOINLINE int keep_record(__u64 run, __u64 space, __u64 address, __u64 value)
{
	struct address at = {.run = run, .address = address, .space = space};
	struct recorded value_of = {.value = value};
	struct run *r;

	if (!bpf_map_update_elem(&records, &at, &value_of, UPDATE_EXIST))
		return 0;
	r = bpf_map_lookup_elem(&runs, &run);
	if (!r) {
		lose(LOST_RECORDED, 1);
		return -1;
	}
	if (!fits(r, CLASS_RECORDS) || bpf_map_update_elem(&records, &at, &value_of, UPDATE_NOEXIST)) {
		lose_of(r, LOST_RECORDED, 1);
		return -1;
	}
	hold(r, CLASS_RECORDS, 1);
	return 0;
}

/* drop_record deletes a handle. It returns 0 if it existed. */
NOINLINE int drop_record(__u64 run, __u64 space, __u64 address)
{
	struct address at = {.run = run, .address = address, .space = space};
	struct run *r;

	if (bpf_map_delete_elem(&records, &at))
		return -1;
	r = bpf_map_lookup_elem(&runs, &run);
	if (r)
		hold(r, CLASS_RECORDS, -1);
	return 0;
}

/* Destruction of graphs, events and streams: delete the handle before it can be reused. */
SEC("uprobe")
int forget_handle(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct thread *t = current();

	if (t)
		drop_record(t->run, f.kind, ARG0(ctx));
	return 0;
}

/* cuEventRecord(event, stream): on a captured stream, the event is a point in that capture. */
SEC("uprobe")
int event_record(struct pt_regs *ctx)
{
	__u64 event = ARG0(ctx), number;
	struct thread *t;

	if (!any_recording())
		return 0;
	t = current();
	if (!t)
		return 0;
	if (capture_of(t, SPACE_STREAM, ARG1(ctx), &number))
		keep_record(t->run, SPACE_EVENT, event, number);
	else
		drop_record(t->run, SPACE_EVENT, event);
	return 0;
}

/* cuStreamWaitEvent(stream, event): a stream that waits for such an event joins the capture. */
SEC("uprobe")
int stream_join(struct pt_regs *ctx)
{
	struct thread *t;
	__u64 number;

	if (!any_recording())
		return 0;
	t = current();
	if (t && capture_of(t, SPACE_EVENT, ARG1(ctx), &number))
		keep_record(t->run, SPACE_STREAM, ARG0(ctx), number);
	return 0;
}

/* datatype_bytes returns the size of an ncclDataType_t, or 0. In nccl.h of NCCL 2.16 to 2.31 the
 * types up to bfloat16 are the same. From 2.24 on, two types of 8 bits follow. */
INLINE __u64 datatype_bytes(__u32 type)
{
	/* A digit each: int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16, float8 twice. */
	return type < 12 ? 0x112842884411ULL >> (4 * type) & 0xf : 0;
}

/* Collectives of NCCL. Between ncclGroupStart and ncclGroupEnd they are only recorded. The group's
 * end does the work, so the duration is that of the end. */
SEC("uprobe")
int collective(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct thread *t = current();
	struct sum_key key = {.kind = SUM_COLLECTIVE};
	__u64 size, bytes;

	if (!t)
		return 0;
	size = datatype_bytes(argument(ctx, f.stream));
	if (!size)
		lose_in(t->run, LOST_DATATYPES, 1);
	bytes = argument(ctx, f.size) * size;
	key.run = t->run;
	key.index = f.function;
	key.low = bucket(bytes);
	add(&key, bytes, 0);
	enter(t, f, t->groups, 0, 0);
	return 0;
}

/* ncclGroupStart and ncclGroupEnd; groups may be nested, and the outermost counts. */
SEC("uprobe")
int collective_group(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct thread *t = current();

	if (!t)
		return 0;
	if (f.kind == GROUP_START && t->groups < 255)
		t->groups++;
	if (f.kind == GROUP_END && t->groups)
		t->groups--;
	enter(t, f, f.kind == GROUP_START || t->groups, 0, 0);
	return 0;
}

/* collected handles a collective or a group: (whether its duration is meaningless). */
INLINE void collected(struct thread *t, struct call *c, __s32 code, __u64 now)
{
	struct sum_key key = {.run = t->run, .kind = SUM_COLLECTIVE_TIME, .index = c->function};
	__u64 ns = now - c->start;

	if (c->class == CALL_GROUP && c->kind == GROUP_START && code && t->groups)
		t->groups--; /* it has not begun */
	if (c->a || (code && code != CODE_IN_PROGRESS))
		return;
	key.low = bucket(ns);
	add(&key, ns, 0);
}

INLINE void waited(struct thread *t, struct call *c, __u64 now)
{
	struct sum_key key = {.run = t->run, .kind = SUM_WAIT, .index = c->function};
	__u64 ns = now - c->start;

	key.low = bucket(ns);
	add(&key, ns, 0);
	t->waited = now;
	if (c->a && t->copy_start) {
		struct sum_key time = {.run = t->run, .kind = SUM_COPY_TIME, .index = t->copy_kind, .flag = FLAG_ASYNC};

		ns = now - t->copy_start;
		time.low = bucket(ns);
		add(&time, ns, t->copy_bytes);
	}
	t->copy_start = 0;
}

INLINE void copied(struct thread *t, struct call *c, __u64 now)
{
	struct sum_key key = {.run = t->run, .kind = SUM_COPY_TIME, .index = c->kind};
	__u64 ns = now - c->start;

	key.low = bucket(ns);
	add(&key, ns, c->a);
}

INLINE void allocated(struct thread *t, struct call *c)
{
	__u64 address = c->a, bytes = c->b, pitch;

	if (!(c->flags & FLAG_GIVEN) && bpf_probe_read_user(&address, sizeof(address), (void *)c->a))
		return;
	if (c->flags & FLAG_PITCH) {
		if (bpf_probe_read_user(&pitch, sizeof(pitch), (void *)c->c))
			return;
		bytes *= pitch;
	}
	map(t->run, c->kind, address, bytes);
}

/* drop_capture ends a capture. The first thread of its process may already have ended: then the
 * captures of the process are no longer counted. */
INLINE void drop_capture(__u64 run, __u64 number)
{
	struct run *r = bpf_map_lookup_elem(&runs, &run);
	__u64 *captures = state_of(STATE_RECORDING);

	if (drop_record(run, SPACE_CAPTURE, number) || !r || !captures || !r->captures)
		return;
	__sync_fetch_and_add(&r->captures, -1ULL);
	__sync_fetch_and_add(captures, -1ULL);
}

/* began: (stream, …), with FLAG_GIVEN (stream, graph, …): starts with the graph's kernels. */
INLINE void began(struct thread *t, struct call *c)
{
	struct address at = {.run = t->run, .address = c->a, .space = SPACE_STREAM};
	struct recorded *r = bpf_map_lookup_elem(&records, &at);
	__u64 first = 0, *captures = state_of(STATE_RECORDING), *last = state_of(STATE_CAPTURE), number;
	struct run *run = bpf_map_lookup_elem(&runs, &t->run);

	if (!captures || !last || !run)
		return;
	if (r)
		drop_capture(t->run, r->value); /* it can only have ended without our seeing */
	if (c->flags & FLAG_GIVEN) {
		at.address = c->b;
		at.space = SPACE_GRAPH;
		r = bpf_map_lookup_elem(&records, &at);
		first = r ? r->value : UNKNOWN;
	}
	number = __sync_fetch_and_add(last, 1) + 1;
	if (keep_record(t->run, SPACE_CAPTURE, number, first))
		return;
	__sync_fetch_and_add(&run->captures, 1);
	__sync_fetch_and_add(captures, 1);
	keep_record(t->run, SPACE_STREAM, c->a, number);
}

/* ended moves a stream's captured kernels to its graph: (stream, where the graph goes). */
INLINE void ended(struct thread *t, struct call *c, __s32 code)
{
	struct recorded *r;
	__u64 number, kernels, graph;

	if (code == CODE_WRONG_THREAD)
		return; /* it goes on */
	r = capture_of(t, SPACE_STREAM, c->a, &number);
	if (!r)
		return;
	kernels = r->value;
	drop_record(t->run, SPACE_STREAM, c->a);
	drop_capture(t->run, number);
	if (!code && !bpf_probe_read_user(&graph, sizeof(graph), (void *)c->b))
		keep_record(t->run, SPACE_GRAPH, graph, kernels);
}

/* copied_record copies the value of a handle to another, or deletes it if there is none. */
INLINE void copied_record(struct thread *t, __u64 to_space, __u64 to, __u64 from)
{
	struct address at = {.run = t->run, .address = from, .space = SPACE_GRAPH};
	struct recorded *r = bpf_map_lookup_elem(&records, &at);

	if (r)
		keep_record(t->run, to_space, to, r->value);
	else
		drop_record(t->run, to_space, to);
}

/* made handles a graph or its executable form: (where the handle goes, graph, …). */
INLINE void made(struct thread *t, struct call *c, __u64 space)
{
	__u64 handle;

	if (bpf_probe_read_user(&handle, sizeof(handle), (void *)c->a))
		return;
	if (c->class == CALL_GRAPH)
		keep_record(t->run, space, handle, 0);
	else
		copied_record(t, space, handle, c->b);
}

/* added handles a node: (where it goes, graph, its content). The number of executions of a
 * conditional node's body is unknown. */
INLINE void added(struct thread *t, struct call *c)
{
	struct address at = {.run = t->run, .address = c->b, .space = SPACE_GRAPH};
	struct recorded *r = bpf_map_lookup_elem(&records, &at), *of;
	__u32 type = c->kind == NODE_IS_KERNEL ? NODE_KERNEL : NODE_GRAPH;
	__u64 kernels = 1;

	if (!r)
		return;
	at.address = c->c;
	if (c->kind == NODE_IN_PARAMETERS) {
		bpf_probe_read_user(&type, sizeof(type), (void *)(c->c + NODE_TYPE));
		bpf_probe_read_user(&at.address, sizeof(at.address), (void *)(c->c + NODE_CHILD));
	}
	if (type == NODE_CONDITIONAL) {
		kernels = UNKNOWN;
	} else if (type == NODE_GRAPH) {
		of = bpf_map_lookup_elem(&records, &at);
		kernels = of ? of->value : UNKNOWN;
	} else if (type != NODE_KERNEL) {
		return;
	}
	gain(r, kernels);
}

/* reserve_name reserves a ring record for a kernel's name. It returns NULL and counts if the
 * process's share of the ring is full. The reader reads the ring at short intervals. */
INLINE struct name *reserve_name(struct run *r)
{
	__u64 *drain = state_of(STATE_DRAIN);
	struct name *n = 0;

	if (drain && r->drain != *drain) {
		r->drain = *drain;
		r->held[CLASS_NAMES] = 0;
	}
	if (fits(r, CLASS_NAMES))
		n = bpf_ringbuf_reserve(&names, sizeof(*n), 0);
	if (!n)
		lose_of(r, LOST_RING, 1);
	return n;
}

/* named sends a kernel's name to the reader: (where the kernel goes, module, name). */
INLINE void named(struct thread *t, struct call *c)
{
	struct run *r = bpf_map_lookup_elem(&runs, &t->run);
	struct name *n;

	if (!r)
		return; /* its process has ended */
	n = reserve_name(r);
	if (!n)
		return;
	n->run = t->run;
	n->same = 0;
	n->user = r->user;
	if (bpf_probe_read_user(&n->handle, sizeof(n->handle), (void *)c->a) ||
	    bpf_probe_read_user_str(n->text, sizeof(n->text), (void *)c->c) < 0) {
		bpf_ringbuf_discard(n, RING_NO_WAKEUP);
		lose_of(r, LOST_RING, 1);
		return;
	}
	hold(r, CLASS_NAMES, 1);
	bpf_ringbuf_submit(n, RING_NO_WAKEUP);
}

/* same reports to the reader that two handles have one kernel: (where the function goes, kernel).
 * Programs may request that at every launch; it is sent once. */
INLINE void same(struct thread *t, struct call *c)
{
	struct address at = {.run = t->run, .space = SPACE_FUNCTION};
	struct run *run = bpf_map_lookup_elem(&runs, &t->run);
	struct recorded *r;
	struct name *n;

	if (!run)
		return; /* its process has ended */
	if (bpf_probe_read_user(&at.address, sizeof(at.address), (void *)c->a)) {
		lose_of(run, LOST_RING, 1);
		return;
	}
	r = bpf_map_lookup_elem(&records, &at);
	if (r && r->value == c->b)
		return;
	n = reserve_name(run);
	if (!n)
		return;
	if (keep_record(t->run, SPACE_FUNCTION, at.address, c->b)) {
		bpf_ringbuf_discard(n, RING_NO_WAKEUP);
		return;
	}
	n->run = t->run;
	n->handle = at.address;
	n->same = c->b;
	n->user = run->user;
	n->text[0] = 0;
	hold(run, CLASS_NAMES, 1);
	bpf_ringbuf_submit(n, RING_NO_WAKEUP);
}

INLINE void failed(struct thread *t, struct call *c, __s32 code)
{
	struct sum_key key = {.run = t->run, .kind = SUM_ERROR, .index = c->function, .handle = (__u32)code};

	int collective = c->class == CALL_COLLECTIVE || c->class == CALL_GROUP;

	if (code != (collective ? CODE_IN_PROGRESS : CODE_NOT_READY))
		add(&key, 0, 0);
}

/* leave removes a call from the stack. Its class is 0 if it is absent: begun before the attach, or
 * too deep. Calls above it ended without a return, by an exception. */
INLINE void leave(struct thread *t, union cookie f, struct call *c)
{
	for (int i = 0; i < CALLS; i++) {
		__u32 depth = t->depth;

		c->class = 0;
		if (!depth)
			return;
		depth = (depth - 1) & (CALLS - 1);
		*c = t->calls[depth];
		t->depth = depth;
		if (c->function == f.function)
			return;
		lose_calls(t, 1);
	}
	c->class = 0;
}

/* returned handles the return of every function of the driver and of NCCL with FLAG_RETURNS. */
SEC("uretprobe")
int returned(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	__u64 id = bpf_get_current_pid_tgid(), now;
	struct thread *t = bpf_map_lookup_elem(&threads, &id);
	__s32 code = RESULT(ctx);
	struct call c = {};

	if (!t)
		return 0;
	now = bpf_ktime_get_ns();
	leave(t, f, &c);
	if (code && c.class)
		failed(t, &c, code);
	switch (c.class) {
	case CALL_LAUNCH:
		if (c.a) {
			struct sum_key key = {.run = t->run, .kind = SUM_ENQUEUE};

			key.low = bucket(now - c.start);
			add(&key, now - c.start, 0);
		}
		break;
	case CALL_COPY:
		if (!code && !(c.flags & FLAG_ASYNC))
			copied(t, &c, now);
		break;
	case CALL_ALLOC:
		if (!code)
			allocated(t, &c);
		break;
	case CALL_WAIT:
		waited(t, &c, now);
		break;
	case CALL_CAPTURE_BEGIN:
		if (!code)
			began(t, &c);
		break;
	case CALL_CAPTURE_END:
		ended(t, &c, code);
		break;
	case CALL_INSTANTIATE:
		if (!code)
			made(t, &c, SPACE_EXECUTABLE);
		break;
	case CALL_GRAPH:
	case CALL_CLONE:
		if (!code)
			made(t, &c, SPACE_GRAPH);
		break;
	case CALL_UPDATE:
		if (!code)
			copied_record(t, SPACE_EXECUTABLE, c.a, c.b);
		break;
	case CALL_NODE:
		if (!code)
			added(t, &c);
		break;
	case CALL_SAME:
		if (!code)
			same(t, &c);
		break;
	case CALL_COLLECTIVE:
	case CALL_GROUP:
		collected(t, &c, code, now);
		break;
	case CALL_NAME:
		if (!code)
			named(t, &c);
		break;
	case CALL_MODULE:
		if (!code) {
			struct sum_key key = {.run = t->run, .kind = SUM_MODULE};

			add(&key, 0, 0);
		}
		break;
	}
	return 0;
}

/* Functions of libcudart. They get driver addresses at run time. If these are not exported
 * functions, no program here observes the calls. So the entry marks each call, and programs of
 * driver functions clear the mark. A call with a mark at its return is counted here. */

/* in_runtime begins a call; a, b, c and d are its counted values. The wait for a copy already has a
 * mark: the copy's start, in d. The driver's wait clears it at its end. */
INLINE void in_runtime(struct thread *t, union cookie f, __u64 a, __u64 b, __u64 c, __u64 d)
{
	__u32 depth = t->depth;

	if (f.class != CALL_WAIT || !d) {
		t->copy_start = IN_RUNTIME;
		t->copy_stream = ~0ULL; /* that no wait is for */
	}
	if (depth < CALLS) {
		/* Otherwise the compiler drops the mask as redundant, and the verifier rejects the code. */
		asm volatile("" : "+r"(depth));
		t->calls[depth & (CALLS - 1)].d = d;
	}
	enter(t, f, a, b, c);
}

/* cudaLaunchKernel and cudaLaunchCooperativeKernel: (function of the host, grid, block, arguments, shared, stream), of
 * which grid and block take two registers each. */
SEC("uprobe")
int runtime_launch(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct thread *t = current();
	__u64 grid, block;

	if (!t)
		return 0;
	grid = (ARG1(ctx) & 0xffffffff) * (ARG1(ctx) >> 32) * (ARG2(ctx) & 0xffffffff);
	block = (ARG3(ctx) & 0xffffffff) * (ARG3(ctx) >> 32) * (ARG4(ctx) & 0xffffffff);
	in_runtime(t, f, ARG0(ctx), grid, block, argument(ctx, f.stream));
	return 0;
}

/* cudaLaunchKernelExC(configuration, function of the host, …). */
SEC("uprobe")
int runtime_launch_config(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct runtime_launch_config config;
	struct thread *t = current();

	if (!t)
		return 0;
	if (bpf_probe_read_user(&config, sizeof(config), (void *)ARG0(ctx)))
		__builtin_memset(&config, 0, sizeof(config));
	in_runtime(t, f, ARG1(ctx), (__u64)config.grid[0] * config.grid[1] * config.grid[2],
		   (__u64)config.block[0] * config.block[1] * config.block[2], config.stream);
	return 0;
}

/* copy_kind converts cudaMemcpyKind to the kinds of copies in the reader. */
INLINE __u8 copy_kind(__u32 kind)
{
	return kind == RUNTIME_HTOH ? 16 + 4 * TYPE_HOST + TYPE_HOST : kind < RUNTIME_DEFAULT ? kind : 0;
}

SEC("uprobe")
int runtime_call(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	__u64 a = ARG0(ctx), b = ARG1(ctx), c = ARG2(ctx), d = 0;
	struct thread *t = current();

	if (!t)
		return 0;
	switch (f.class) {
	case CALL_COPY:
	case CALL_SET:
		a = argument(ctx, f.size);
		if (f.shape == SHAPE_2D)
			a *= argument(ctx, f.size + 1);
		if (f.class == CALL_SET)
			break;
		f.kind = f.kind == NO_ARGUMENT ? COPY_PEER : copy_kind(argument(ctx, f.kind));
		if (f.flags & FLAG_ASYNC)
			b = argument(ctx, f.stream);
		break;
	case CALL_ALLOC:
		if (f.flags & FLAG_PITCH) {
			b = ARG3(ctx);
			c = ARG1(ctx);
		}
		break;
	case CALL_WAIT:
		d = f.stream != NO_ARGUMENT && t->copy_start > IN_RUNTIME && t->copy_stream == ARG0(ctx) ? t->copy_start : 0;
		break;
	}
	in_runtime(t, f, a, b, c, d);
	return 0;
}

/* runtime_launched counts a launch at its return. */
INLINE void runtime_launched(struct thread *t, struct call *c, __u64 now)
{
	if (t->waited) {
		struct sum_key idle = {.run = t->run, .kind = SUM_IDLE};
		__u64 ns = c->start - t->waited;

		t->waited = 0;
		idle.low = bucket(ns);
		add(&idle, ns, 0);
	}
	launched(t, c->a, c->b, c->c, any_recording() && recording(t, c->d, 1));
	if (sample_every && ++t->launches % sample_every == 0) {
		struct sum_key key = {.run = t->run, .kind = SUM_ENQUEUE};

		key.low = bucket(now - c->start);
		add(&key, now - c->start, 0);
	}
}

INLINE void runtime_copied(struct thread *t, struct call *c, __u64 now)
{
	struct sum_key key = {.run = t->run, .kind = SUM_COPY, .index = c->kind};

	key.flag = c->flags & FLAG_ASYNC;
	key.low = bucket(c->a);
	add(&key, c->a, 0);
	if (key.flag) {
		t->copy_stream = c->b;
		t->copy_bytes = c->a;
		t->copy_kind = c->kind;
		t->copy_start = c->start;
	} else {
		copied(t, c, now);
	}
}

/* runtime_returned counts calls that the driver's functions have not counted: see above. */
SEC("uretprobe")
int runtime_returned(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	__u64 id = bpf_get_current_pid_tgid(), now;
	struct thread *t = bpf_map_lookup_elem(&threads, &id);
	struct address at = {.space = SPACE_EXECUTABLE};
	struct sum_key key = {};
	struct runtime_check *check;
	__s32 code = RESULT(ctx);
	struct call c = {};
	int reached;

	if (!t)
		return 0;
	now = bpf_ktime_get_ns();
	leave(t, f, &c);
	reached = t->copy_start != (c.class == CALL_WAIT && c.d ? c.d : IN_RUNTIME);
	if (!reached)
		t->copy_start = 0;
	if (!c.class)
		return 0;
	if (c.class == CALL_LAUNCH && !code) {
		__u32 number = c.kind;

		check = bpf_map_lookup_elem(&checks, &number);
		if (check)
			__sync_fetch_and_add(reached ? &check->reached : &check->bypassed, 1);
	}
	if (reached)
		return 0;
	if (code) {
		failed(t, &c, code);
		if (c.class != CALL_CAPTURE_END && c.class != CALL_WAIT)
			return 0;
	}
	key.run = t->run;
	switch (c.class) {
	case CALL_LAUNCH:
		runtime_launched(t, &c, now);
		break;
	case CALL_OTHER: /* cudaGraphLaunch */
		at.run = t->run;
		at.address = c.a;
		started(t, bpf_map_lookup_elem(&records, &at), c.b);
		break;
	case CALL_COPY:
		runtime_copied(t, &c, now);
		break;
	case CALL_SET:
		key.kind = SUM_SET;
		add(&key, c.a, 0);
		break;
	case CALL_ALLOC:
		allocated(t, &c);
		break;
	case CALL_FREE:
		unmap(t->run, c.kind, c.a);
		break;
	case CALL_WAIT:
		t->copy_start = c.d;
		c.a = c.d != 0;
		waited(t, &c, now);
		break;
	case CALL_CAPTURE_BEGIN:
		began(t, &c);
		break;
	case CALL_CAPTURE_END:
		ended(t, &c, code);
		break;
	case CALL_INSTANTIATE:
		made(t, &c, SPACE_EXECUTABLE);
		break;
	}
	return 0;
}

/* forget deletes the current thread, and counts its calls without a return. */
INLINE void forget(__u64 id)
{
	struct thread *t = bpf_map_lookup_elem(&threads, &id);
	struct run *r;

	if (!t)
		return;
	r = bpf_map_lookup_elem(&runs, &t->run);
	if (t->depth)
		lose_calls(t, t->depth);
	if (!bpf_map_delete_elem(&threads, &id) && r)
		hold(r, CLASS_THREADS, -1);
}

INLINE void end(__u32 tgid, int replaced)
{
	__u64 *run = bpf_map_lookup_elem(&processes, &tgid), *count = state_of(STATE_ENDED), *captures = state_of(STATE_RECORDING);
	struct run *r;

	if (!run)
		return;
	r = bpf_map_lookup_elem(&runs, run);
	if (r && replaced)
		r->ended = 1;
	if (r && r->captures && captures) {
		__sync_fetch_and_add(captures, -r->captures);
		r->captures = 0;
	}
	bpf_map_delete_elem(&processes, &tgid);
	if (count)
		__sync_fetch_and_add(count, 1);
}

/* A thread ends. The first one represents its process: its id is reused last. */
SEC("raw_tracepoint/sched_process_exit")
int exited(void *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();

	forget(id);
	if (id >> 32 == (__u32)id)
		end(id >> 32, 0);
	return 0;
}

/* A process starts another program: its state on the device is gone. */
SEC("raw_tracepoint/sched_process_exec")
int replaced(void *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();

	forget(id);
	end(id >> 32, 1);
	return 0;
}

/* Some helpers require a GPL-compatible license. */
char _license[] SEC("license") = "Dual MIT/GPL";
