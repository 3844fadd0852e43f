//go:build ignore
/* SPDX-License-Identifier: Apache-2.0 */

/* Programs for the entry points of the CUDA driver. They add up in the kernel what is called, by
 * process; the reader looks at the sums every few seconds, and nothing is sent to it by call. */

#include "types.h"

/* The reader sets sizes: those here are its defaults. A map that is full costs what did not fit, and
 * that is counted in lost. */

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
	__uint(max_entries, 65536);
	__type(key, struct address);
	__type(value, struct allocation);
} allocations SEC(".maps");

/* Streams that are recorded, graphs, and graphs made executable: the space of struct address. */
struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 16384);
	__type(key, struct address);
	__type(value, struct recorded);
} records SEC(".maps");

/* Names of kernels as processes ask for them, some hundreds each. */
struct {
	__uint(type, MAP_RINGBUF);
	__uint(max_entries, 1 << 20);
} names SEC(".maps");

/* What did not fit, by enum loss. */
struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, LOSSES);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

/* state[0] numbers runs, state[1] counts runs that ended, state[2] is how many streams are recorded. */
enum { STATE_RUN, STATE_ENDED, STATE_RECORDING, STATES };
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, STATES);
	__type(key, __u32);
	__type(value, __u64);
} state SEC(".maps");

/* Where the kernel keeps a thread's leader and its time of start, 0 where it does not say; without them
 * the reader asks /proc. */
volatile const __u32 group_leader_offset = 0;
volatile const __u32 start_boottime_offset = 0;
/* Of how many launches one is timed; 0 for none. */
volatile const __u32 sample_every = 0;

enum { SPACE_DEVICE, SPACE_HOST, SPACE_HANDLE, SPACE_STREAM, SPACE_GRAPH, SPACE_EXECUTABLE };
enum { CODE_NOT_READY = 600 };

/* For bpf2go, which makes Go of types that a variable has. */
const enum call_class *_class __attribute__((unused));
const enum memory_kind *_memory __attribute__((unused));
const enum sum_kind *_kind __attribute__((unused));
const enum shape *_shape __attribute__((unused));
const enum loss *_loss __attribute__((unused));
const struct name *_name __attribute__((unused));

static const struct thread new_thread;
static const struct sum no_sum;

INLINE void lose(__u32 what, __u64 n)
{
	__u64 *v = bpf_map_lookup_elem(&lost, &what);

	if (v)
		__sync_fetch_and_add(v, n);
}

INLINE __u64 *state_of(__u32 what)
{
	return bpf_map_lookup_elem(&state, &what);
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

/* raise is a maximum for threads that take turns on a processor: the programs may be interrupted. */
INLINE void raise(__u64 *max, __u64 v)
{
	for (int i = 0; i < 4; i++) {
		__u64 old = *(volatile __u64 *)max;

		if (v <= old || __sync_val_compare_and_swap(max, old, v) == old)
			return;
	}
}

/* add has no lock and needs atomic instructions all the same, for the reason of raise. */
INLINE void add(const struct sum_key *key, __u64 first, __u64 second)
{
	struct sum *s = bpf_map_lookup_elem(&sums, key);

	if (!s) {
		bpf_map_update_elem(&sums, key, &no_sum, UPDATE_NOEXIST);
		s = bpf_map_lookup_elem(&sums, key);
		if (!s) {
			lose(LOST_SUMS, 1);
			return;
		}
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

/* start_of is when the current process began, or 0. */
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

/* run_of finds or begins the current process's run; 0 if there is no room. */
INLINE __u64 run_of(__u32 tgid)
{
	__u64 *found = bpf_map_lookup_elem(&processes, &tgid);
	struct run r = {};
	__u64 *last, run;

	if (found)
		return *found;
	last = state_of(STATE_RUN);
	if (!last)
		return 0;
	run = __sync_fetch_and_add(last, 1) + 1;
	r.tgid = tgid;
	r.seen = bpf_ktime_get_boot_ns();
	r.start = start_of();
	if (bpf_map_update_elem(&runs, &run, &r, UPDATE_NOEXIST)) {
		lose(LOST_RUNS, 1);
		return 0;
	}
	if (bpf_map_update_elem(&processes, &tgid, &run, UPDATE_NOEXIST)) {
		/* Another thread of the process was faster, or there is no room. */
		bpf_map_delete_elem(&runs, &run);
		found = bpf_map_lookup_elem(&processes, &tgid);
		if (found)
			return *found;
		lose(LOST_RUNS, 1);
		return 0;
	}
	return run;
}

/* current finds or makes what is known of this thread; NULL, counted, if there is no room. */
INLINE struct thread *current(void)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct thread *t = bpf_map_lookup_elem(&threads, &id);
	__u64 run;

	if (t)
		return t;
	run = run_of(id >> 32);
	if (!run)
		return 0;
	bpf_map_update_elem(&threads, &id, &new_thread, UPDATE_NOEXIST);
	t = bpf_map_lookup_elem(&threads, &id);
	if (!t) {
		lose(LOST_THREADS, 1);
		return 0;
	}
	t->run = run;
	return t;
}

/* enter notes a call whose return is waited for. */
INLINE void enter(struct thread *t, union cookie f, __u64 a, __u64 b, __u64 c)
{
	__u32 depth = t->depth;
	struct call *call;

	if (depth >= CALLS) {
		lose(LOST_CALLS, 1);
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

INLINE int recording(struct thread *t, __u64 stream)
{
	struct address at = {.run = t->run, .address = stream, .space = SPACE_STREAM};
	__u64 *streams = state_of(STATE_RECORDING);
	struct recorded *r;

	if (!streams || !*(volatile __u64 *)streams)
		return 0;
	r = bpf_map_lookup_elem(&records, &at);
	if (!r)
		return 0;
	__sync_fetch_and_add(&r->launches, 1);
	return 1;
}

INLINE void launched(struct thread *t, union cookie f, __u64 kernel, __u64 grid, __u64 block, __u64 stream)
{
	struct sum_key key = {.run = t->run, .handle = kernel, .kind = SUM_LAUNCH};

	key.low = bucket(grid);
	key.high = bucket(block);
	key.flag = recording(t, stream);
	add(&key, grid, block);
	t->copy_start = 0;
	if (t->waited) {
		struct sum_key idle = {.run = t->run, .kind = SUM_IDLE};
		__u64 ns = bpf_ktime_get_ns() - t->waited;

		t->waited = 0;
		idle.low = bucket(ns);
		add(&idle, ns, 0);
	}
	if (f.flags & FLAG_RETURNS) {
		t->launches++;
		enter(t, f, sample_every && t->launches % sample_every == 0, 0, 0);
	}
}

/* cuLaunchKernel and cuLaunchCooperativeKernel begin alike. */
SEC("uprobe")
int launch(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct thread *t = current();
	__u64 grid, block, stream;

	if (!t)
		return 0;
	grid = (__u64)(__u32)ARG1(ctx) * (__u32)ARG2(ctx) * (__u32)ARG3(ctx);
	block = (__u64)(__u32)ARG4(ctx) * (__u32)ARG5(ctx) * (__u32)argument(ctx, 6);
	stream = argument(ctx, 8);
	launched(t, f, ARG0(ctx), grid, block, stream);
	return 0;
}

SEC("uprobe")
int launch_config(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	/* CUlaunchConfig, as far as its stream. */
	struct {
		__u32 grid[3], block[3], shared, hole;
		__u64 stream;
	} config;
	struct thread *t = current();

	if (!t)
		return 0;
	if (bpf_probe_read_user(&config, sizeof(config), (void *)ARG0(ctx)))
		__builtin_memset(&config, 0, sizeof(config));
	launched(t, f, ARG1(ctx), (__u64)config.grid[0] * config.grid[1] * config.grid[2],
		 (__u64)config.block[0] * config.block[1] * config.block[2], config.stream);
	return 0;
}

/* cuGraphLaunch(executable, stream). */
SEC("uprobe")
int graph_launch(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct thread *t = current();
	struct address at = {.address = ARG0(ctx), .space = SPACE_EXECUTABLE};
	struct sum_key key = {.kind = SUM_GRAPH};
	struct recorded *r;

	if (!t)
		return 0;
	key.run = t->run;
	at.run = t->run;
	r = bpf_map_lookup_elem(&records, &at);
	key.flag = r != 0;
	add(&key, r ? r->launches : 0, 0);
	t->copy_start = 0;
	t->waited = 0;
	if (f.flags & FLAG_RETURNS)
		enter(t, f, 0, 0, 0);
	return 0;
}

enum { TYPE_HOST = 1, TYPE_DEVICE = 2, TYPE_ARRAY = 3 };

INLINE __u8 letter(__u32 type)
{
	return type == TYPE_HOST ? 1 : type == TYPE_DEVICE ? 2 : type == TYPE_ARRAY ? 3 : 0;
}

/* area reads a copy of rows or layers: its bytes, and its kind as 16 + 4 × source + destination, 0 if the
 * structure does not say. */
INLINE __u64 area(struct pt_regs *ctx, union cookie f, __u8 *kind)
{
	__u64 from = ARG0(ctx), extent[3] = {0, 0, 1};
	__u32 source = 0, destination = 0;

	if (f.shape == SHAPE_2D) {
		bpf_probe_read_user(&source, sizeof(source), (void *)(from + 16));
		bpf_probe_read_user(&destination, sizeof(destination), (void *)(from + 72));
		bpf_probe_read_user(extent, 16, (void *)(from + 112));
	} else {
		bpf_probe_read_user(&source, sizeof(source), (void *)(from + 32));
		bpf_probe_read_user(&destination, sizeof(destination), (void *)(from + 120));
		bpf_probe_read_user(extent, sizeof(extent), (void *)(from + 176));
	}
	if (!*kind && letter(source) && letter(destination))
		*kind = 16 + 4 * letter(source) + letter(destination);
	return extent[0] * extent[1] * extent[2];
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

/* How many copies of one call are looked at; what is above is counted as lost. */
enum { BATCH = 256 };

/* one_of_batch is global, so that the verifier looks at it once and not in every turn of the loop. */
__attribute__((noinline)) int one_of_batch(__u64 run, __u64 bytes)
{
	struct sum_key key = {.run = run, .kind = SUM_COPY, .flag = FLAG_ASYNC, .low = bucket(bytes)};

	add(&key, bytes, 0);
	return 0;
}

/* cuMemcpyBatchAsync(destinations, sources, sizes, count, …). */
SEC("uprobe")
int copy_batch(struct pt_regs *ctx)
{
	struct thread *t = current();
	__u64 sizes = ARG2(ctx), count = ARG3(ctx), bytes, run;
	__u32 i;

	if (!t)
		return 0;
	run = t->run;
	t->copy_start = 0;
	for (i = 0; i < BATCH; i++) {
		if (i >= count)
			return 0;
		if (bpf_probe_read_user(&bytes, sizeof(bytes), (void *)(sizes + 8 * (__u64)i)))
			break;
		one_of_batch(run, bytes);
	}
	if (count > i)
		lose(LOST_BATCH, count - i);
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
		bpf_map_delete_elem(&allocations, &at);
	}
	add(&key, was.bytes, -was.bytes);
}

INLINE void map(__u64 run, __u8 kind, __u64 address, __u64 bytes)
{
	struct address at = {.run = run, .address = address, .space = space_of(kind)};
	struct sum_key key = {.run = run, .kind = SUM_ALLOC, .index = kind};
	struct allocation a = {.bytes = bytes, .kind = kind};

	if (bpf_map_update_elem(&allocations, &at, &a, UPDATE_ANY)) {
		lose(LOST_ALLOCATIONS, 1);
		add(&key, bytes, 0);
		return;
	}
	add(&key, bytes, bytes);
}

/* Frees, of the address in the first argument. It is forgotten before the call: after it another thread
 * may have been given the same one. */
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

/* Waits; only that for a stream says for which. */
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

/* Calls of which three arguments matter at the return: captures, instantiations, names, modules. */
SEC("uprobe")
int other(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	struct thread *t = current();

	if (!t)
		return 0;
	t->copy_start = 0;
	enter(t, f, ARG0(ctx), ARG1(ctx), ARG2(ctx));
	return 0;
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

INLINE void began(struct thread *t, struct call *c)
{
	struct address at = {.run = t->run, .address = c->a, .space = SPACE_STREAM};
	struct recorded none = {};
	__u64 *streams = state_of(STATE_RECORDING);

	if (bpf_map_update_elem(&records, &at, &none, UPDATE_NOEXIST)) {
		lose(LOST_RECORDED, 1);
		return;
	}
	if (streams)
		__sync_fetch_and_add(streams, 1);
}

/* ended moves what a stream recorded to its graph: (stream, where the graph goes). */
INLINE void ended(struct thread *t, struct call *c, int failed)
{
	struct address at = {.run = t->run, .address = c->a, .space = SPACE_STREAM};
	struct recorded *r = bpf_map_lookup_elem(&records, &at), was;
	__u64 *streams = state_of(STATE_RECORDING), graph;

	if (!r)
		return;
	was = *r;
	if (!bpf_map_delete_elem(&records, &at) && streams)
		__sync_fetch_and_add(streams, -1ULL);
	if (failed || bpf_probe_read_user(&graph, sizeof(graph), (void *)c->b))
		return;
	at.address = graph;
	at.space = SPACE_GRAPH;
	if (bpf_map_update_elem(&records, &at, &was, UPDATE_ANY))
		lose(LOST_RECORDED, 1);
}

/* instantiated copies a graph's number to its executable form: (where that goes, graph, …). */
INLINE void instantiated(struct thread *t, struct call *c)
{
	struct address at = {.run = t->run, .address = c->b, .space = SPACE_GRAPH};
	struct recorded *r = bpf_map_lookup_elem(&records, &at), was;

	if (!r || bpf_probe_read_user(&at.address, sizeof(at.address), (void *)c->a))
		return;
	was = *r;
	at.space = SPACE_EXECUTABLE;
	if (bpf_map_update_elem(&records, &at, &was, UPDATE_ANY))
		lose(LOST_RECORDED, 1);
}

/* named tells the reader a kernel's name: (where the kernel goes, module, name). */
INLINE void named(struct thread *t, struct call *c)
{
	struct name *n = bpf_ringbuf_reserve(&names, sizeof(*n), 0);

	if (!n) {
		lose(LOST_RING, 1);
		return;
	}
	n->run = t->run;
	if (bpf_probe_read_user(&n->handle, sizeof(n->handle), (void *)c->a) ||
	    bpf_probe_read_user_str(n->text, sizeof(n->text), (void *)c->c) < 0) {
		bpf_ringbuf_discard(n, RING_NO_WAKEUP);
		return;
	}
	bpf_ringbuf_submit(n, RING_NO_WAKEUP);
}

INLINE void failed(struct thread *t, struct call *c, __s32 code)
{
	struct sum_key key = {.run = t->run, .kind = SUM_ERROR, .index = c->function, .handle = (__u32)code};

	if (code != CODE_NOT_READY)
		add(&key, 0, 0);
}

/* returned is the return of every function that has FLAG_RETURNS. */
SEC("uretprobe")
int returned(struct pt_regs *ctx)
{
	union cookie f = {.all = bpf_get_attach_cookie(ctx)};
	__u64 id = bpf_get_current_pid_tgid(), now;
	struct thread *t = bpf_map_lookup_elem(&threads, &id);
	__s32 code = RESULT(ctx);
	struct call c = {};
	__u32 depth;

	if (!t)
		return 0;
	now = bpf_ktime_get_ns();
	/* Calls above it on the stack were left without a return, by an exception. */
	for (int i = 0; i < CALLS; i++) {
		depth = t->depth;
		if (!depth)
			return 0; /* called before we looked, or one too many */
		depth = (depth - 1) & (CALLS - 1);
		c = t->calls[depth];
		t->depth = depth;
		if (c.function == f.function)
			break;
		lose(LOST_CALLS, 1);
		c.class = 0;
	}
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
			instantiated(t, &c);
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

/* forget drops the current thread, and counts calls that it did not come back from. */
INLINE void forget(__u64 id)
{
	struct thread *t = bpf_map_lookup_elem(&threads, &id);

	if (!t)
		return;
	if (t->depth)
		lose(LOST_CALLS, t->depth);
	bpf_map_delete_elem(&threads, &id);
}

INLINE void end(__u32 tgid, int replaced)
{
	__u64 *run = bpf_map_lookup_elem(&processes, &tgid), *count = state_of(STATE_ENDED);
	struct run *r;

	if (!run)
		return;
	r = bpf_map_lookup_elem(&runs, run);
	if (r && replaced)
		r->ended = 1;
	bpf_map_delete_elem(&processes, &tgid);
	if (count)
		__sync_fetch_and_add(count, 1);
}

/* A thread ends; the first of a process stands for it, as its id is free again only after the last. */
SEC("raw_tracepoint/sched_process_exit")
int exited(void *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();

	forget(id);
	if (id >> 32 == (__u32)id)
		end(id >> 32, 0);
	return 0;
}

/* A process begins another program: what it had on the device is gone. */
SEC("raw_tracepoint/sched_process_exec")
int replaced(void *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();

	forget(id);
	end(id >> 32, 1);
	return 0;
}

/* Some of the helpers are for programs under the kernel's licence only. */
char _license[] SEC("license") = "Dual MIT/GPL";
