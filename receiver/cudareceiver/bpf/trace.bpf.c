//go:build ignore
/* SPDX-License-Identifier: Apache-2.0 */

/* Programs that send an event for each call of the CUDA driver during a trace. They use the same
 * functions as those of cuda.bpf.c, and are attached only during a trace. */

#include "arguments.h"
#include "bpf.h"
#include "share.h"
#include "trace.h"
#include "types.h"

/* The reader sets sizes: those here are its defaults. */

/* Calls in flight. Entries at the end of the trace did not return before it. */
struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 12288);
	__type(key, struct flight);
	__type(value, struct event);
} flights SEC(".maps");

/* Calls that have returned. The reader polls it. */
struct {
	__uint(type, MAP_RINGBUF);
	__uint(max_entries, 4 << 20);
} events SEC(".maps");

/* The map of that name in cuda.bpf.c: the reader puts it in the place of this one. It is looked at and not
 * written. */
struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u64);
} processes SEC(".maps");

/* Calls that are no events, by enum trace_loss. */
struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, TRACE_LOSSES);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

/* Processes that have called. One for which there is no room has its user's share and none of its own. */
struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct tracee);
} tracees SEC(".maps");

/* What users have, by share_of their id: see share.h. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, SHARES);
	__type(key, __u32);
	__type(value, struct trace_share);
} shares SEC(".maps");

/* How many events the reader has taken, and in flights[0] how often it has taken all. Only it writes here. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, SHARES);
	__type(key, __u32);
	__type(value, struct trace_share);
} taken SEC(".maps");

/* How many flights and events there is room for. */
volatile const __u32 max_flights = 0;
volatile const __u32 max_events = 0;

/* For bpf2go, which makes Go of types that a variable has. */
const struct event *_event __attribute__((unused));
const struct flight *_flight __attribute__((unused));
const struct tracee *_tracee __attribute__((unused));
const struct trace_share *_trace_share __attribute__((unused));
const enum trace_loss *_loss __attribute__((unused));

/* users are what the current process's share is taken from: its user, all users, and what the reader has taken. */
struct users {
	struct trace_share *own, *all, *own_taken, *all_taken;
};

INLINE int users_of(__u32 uid, struct users *u)
{
	__u32 user = share_of(uid), all = ALL_USERS;

	u->own = bpf_map_lookup_elem(&shares, &user);
	u->all = bpf_map_lookup_elem(&shares, &all);
	u->own_taken = bpf_map_lookup_elem(&taken, &user);
	u->all_taken = bpf_map_lookup_elem(&taken, &all);
	return u->own && u->all && u->own_taken && u->all_taken;
}

INLINE void lose(struct tracee *t, __u32 what)
{
	__u64 *v = bpf_map_lookup_elem(&lost, &what);

	if (v)
		__sync_fetch_and_add(v, 1);
	if (t)
		__sync_fetch_and_add(&t->lost[what], 1);
}

/* tracee_of finds or creates the state of the current process. NULL if the map is full. */
INLINE struct tracee *tracee_of(__u32 tgid)
{
	struct tracee *t = bpf_map_lookup_elem(&tracees, &tgid), first = {};

	if (t)
		return t;
	first.uid = user_of();
	bpf_map_update_elem(&tracees, &tgid, &first, UPDATE_NOEXIST);
	return bpf_map_lookup_elem(&tracees, &tgid);
}

/* add_flight stores a call until its return, if the process has capacity. It takes the time late,
 * so that little of the program's own time is included. */
INLINE void add_flight(struct flight *at, struct event *e)
{
	struct tracee *t = tracee_of(e->process);
	struct users u;
	__s64 room;

	e->uid = t ? t->uid : user_of();
	if (!users_of(e->uid, &u))
		return; /* an array has all its keys */
	room = (__s64)max_flights - u.all->flights - u.own->flights;
	e->start = bpf_ktime_get_ns();
	if ((t ? t->flights : 0) < room && !bpf_map_update_elem(&flights, at, e, UPDATE_NOEXIST)) {
		__sync_fetch_and_add(&u.all->flights, 1);
		__sync_fetch_and_add(&u.own->flights, 1);
		if (t)
			__sync_fetch_and_add(&t->flights, 1);
		return;
	}
	/* Also where an earlier call of the same place was left by an exception: this one takes its entry. */
	bpf_map_update_elem(&flights, at, e, UPDATE_EXIST);
	lose(t, TRACE_LOST_CALLS);
}

/* drop_flight deletes a call that has returned. */
INLINE void drop_flight(struct flight *at, struct users *u, struct tracee *t)
{
	if (bpf_map_delete_elem(&flights, at))
		return;
	__sync_fetch_and_add(&u->all->flights, -1);
	__sync_fetch_and_add(&u->own->flights, -1);
	if (t)
		__sync_fetch_and_add(&t->flights, -1);
}

/* add_event reserves an event in the ring, if the process has capacity. */
INLINE struct event *add_event(struct users *u, struct tracee *t)
{
	__s64 own = u->own->events - u->own_taken->events, all = u->all->events - u->all_taken->events;
	struct event *sent = 0;

	if (t && t->drain != (__u64)u->all_taken->flights) {
		t->drain = u->all_taken->flights;
		t->events = 0;
	}
	if ((t ? t->events : 0) < (__s64)max_events - all - own)
		sent = bpf_ringbuf_reserve(&events, sizeof(*sent), 0);
	if (!sent) {
		lose(t, TRACE_LOST_RING);
		return 0;
	}
	__sync_fetch_and_add(&u->all->events, 1);
	__sync_fetch_and_add(&u->own->events, 1);
	if (t)
		__sync_fetch_and_add(&t->events, 1);
	return sent;
}

/* begin notes a call. */
INLINE int begin(struct pt_regs *ctx, union cookie f, struct event *e)
{
	struct flight at = {.thread = bpf_get_current_pid_tgid(), .stack = STACK_BEFORE(ctx), .function = f.function};

	e->process = at.thread >> 32;
	e->thread = at.thread;
	e->function = f.function;
	if (f.stream != NO_ARGUMENT) {
		e->stream = argument(ctx, f.stream);
		e->has |= HAS_STREAM;
	}
	add_flight(&at, e);
	return 0;
}

/* The common begin of cuLaunchKernel and cuLaunchCooperativeKernel. */
SEC("uprobe")
int launch(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct event e = {};

	e.handle = ARG0(ctx);
	e.grid[0] = ARG1(ctx);
	e.grid[1] = ARG2(ctx);
	e.grid[2] = ARG3(ctx);
	e.block[0] = ARG4(ctx);
	e.block[1] = ARG5(ctx);
	e.block[2] = argument(ctx, 6);
	e.shared = argument(ctx, 7);
	return begin(ctx, f, &e);
}

SEC("uprobe")
int launch_config(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct launch_config config;
	struct event e = {};

	e.handle = ARG1(ctx);
	if (!bpf_probe_read_user(&config, sizeof(config), (void *)ARG0(ctx))) {
		for (int i = 0; i < 3; i++) {
			e.grid[i] = config.grid[i];
			e.block[i] = config.block[i];
		}
		e.shared = config.shared;
		e.stream = config.stream;
		e.has = HAS_STREAM;
	}
	return begin(ctx, f, &e);
}

/* cuGraphLaunch(executable, stream). */
SEC("uprobe")
int graph_launch(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct event e = {.handle = ARG0(ctx)};

	return begin(ctx, f, &e);
}

SEC("uprobe")
int copy(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct event e = {.has = HAS_BYTES};

	e.bytes = f.shape == SHAPE_BYTES ? argument(ctx, f.size) : area(ctx, f, &f.kind);
	e.kind = f.kind;
	return begin(ctx, f, &e);
}

/* cuMemcpyBatchAsync(destinations, sources, sizes, count, …), cuMemcpy3DBatchAsync(count, operations, …): the bytes
 * of all copies, not known where they are more than are looked at. */
SEC("uprobe")
int copy_batch(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	__u64 from = ARG2(ctx), count = ARG3(ctx), bytes = 0;
	struct event e = {};
	long failed = 0;
	__u32 i;

	if (f.shape == SHAPE_OPERATION) {
		from = ARG1(ctx);
		count = ARG0(ctx);
	}
	for (i = 0; i < BATCH; i++) {
		if (i >= count)
			break;
		bytes += bytes_of(f.shape, from, i, &failed);
		if (failed)
			break;
	}
	if (i >= count) {
		e.bytes = bytes;
		e.has = HAS_BYTES;
	}
	return begin(ctx, f, &e);
}

/* Sets: (destination, value, n) or (destination, pitch, value, width, height). */
SEC("uprobe")
int set(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct event e = {.has = HAS_BYTES};

	e.bytes = f.kind * (f.shape == SHAPE_2D ? ARG3(ctx) * ARG4(ctx) : ARG2(ctx));
	return begin(ctx, f, &e);
}

/* Allocations: (where the address goes, bytes, …), with FLAG_PITCH (…, where the pitch goes, width, height,
 * …), whose bytes are known at the return; FLAG_GIVEN: (address, bytes, …). */
SEC("uprobe")
int alloc(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct event e = {.has = HAS_BYTES};

	e.address = ARG0(ctx);
	e.bytes = ARG1(ctx);
	e.kind = f.kind;
	if (f.flags & FLAG_PITCH) {
		e.handle = ARG1(ctx);
		e.bytes = ARG3(ctx);
	}
	return begin(ctx, f, &e);
}

SEC("uprobe")
int release(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct event e = {.has = HAS_ADDRESS, .address = ARG0(ctx)};

	return begin(ctx, f, &e);
}

SEC("uprobe")
int wait(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct event e = {};

	return begin(ctx, f, &e);
}

/* allocated completes the event of an allocation. */
INLINE void allocated(union cookie f, struct event *e)
{
	__u64 pitch, address;

	if (f.flags & FLAG_PITCH) {
		if (bpf_probe_read_user(&pitch, sizeof(pitch), (void *)e->handle))
			e->has &= ~HAS_BYTES;
		else
			e->bytes *= pitch;
		e->handle = 0;
	}
	if (f.flags & FLAG_GIVEN) {
		e->has |= HAS_ADDRESS;
	} else if (!bpf_probe_read_user(&address, sizeof(address), (void *)e->address)) {
		e->address = address;
		e->has |= HAS_ADDRESS;
	}
}

/* returned sends the event. A call that began before the trace is not in flights, and nothing is made up of it. */
SEC("uretprobe")
int returned(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	__u64 now = bpf_ktime_get_ns(), *run;
	struct flight at = {.thread = bpf_get_current_pid_tgid(), .stack = STACK_AFTER(ctx), .function = f.function};
	struct event *e = bpf_map_lookup_elem(&flights, &at), *sent;
	__s32 code = RESULT(ctx);
	struct tracee *t;
	struct users u;

	if (!e || !users_of(e->uid, &u))
		return 0;
	t = bpf_map_lookup_elem(&tracees, &e->process);
	sent = add_event(&u, t);
	if (sent)
		*sent = *e;
	drop_flight(&at, &u, t);
	if (!sent)
		return 0;
	sent->end = now;
	sent->code = code;
	run = bpf_map_lookup_elem(&processes, &sent->process);
	if (run)
		sent->run = *run;
	if (f.class == CALL_ALLOC && !code)
		allocated(f, sent);
	bpf_ringbuf_submit(sent, RING_NO_WAKEUP);
	return 0;
}

/* Some helpers require a GPL-compatible license. */
char _license[] SEC("license") = "Dual MIT/GPL";
