/* SPDX-License-Identifier: Apache-2.0 */

/* What the programs need of the kernel: integer types, helpers by their numbers, and the registers of
 * the two architectures at a probe. All of it is interface that the kernel keeps stable, so that the
 * objects run without its headers and without its type information. */

#ifndef GPUFLIGHT_BPF_H
#define GPUFLIGHT_BPF_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef int __s32;
typedef long long __s64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static __attribute__((always_inline))
/* For what is not on the way of most calls, so that it is in each object once. */
#define NOINLINE static __attribute__((noinline))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name

enum map_type {
	MAP_HASH = 1,
	MAP_ARRAY = 2,
	MAP_PERCPU_HASH = 5,
	MAP_PERCPU_ARRAY = 6,
	MAP_LRU_HASH = 9,
	MAP_RINGBUF = 27,
};

/* Of bpf_map_update_elem. */
enum { UPDATE_ANY = 0, UPDATE_NOEXIST = 1, UPDATE_EXIST = 2 };
/* Of bpf_ringbuf_submit: the reader looks by a clock and is not woken. */
enum { RING_NO_WAKEUP = 1 };

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static __u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static __u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static __u64 (*bpf_get_current_uid_gid)(void) = (void *)15;
static __u64 (*bpf_get_current_task)(void) = (void *)35;
static long (*bpf_probe_read_user)(void *dst, __u32 size, const void *src) = (void *)112;
static long (*bpf_probe_read_kernel)(void *dst, __u32 size, const void *src) = (void *)113;
static long (*bpf_probe_read_user_str)(void *dst, __u32 size, const void *src) = (void *)114;
static long (*bpf_probe_read_kernel_str)(void *dst, __u32 size, const void *src) = (void *)115;
static __u64 (*bpf_ktime_get_boot_ns)(void) = (void *)125;
static void *(*bpf_ringbuf_reserve)(void *ring, __u64 size, __u64 flags) = (void *)131;
static void (*bpf_ringbuf_submit)(void *data, __u64 flags) = (void *)132;
static void (*bpf_ringbuf_discard)(void *data, __u64 flags) = (void *)133;
static __u64 (*bpf_get_attach_cookie)(void *ctx) = (void *)174;

#if defined(__TARGET_ARCH_x86)

struct pt_regs {
	unsigned long r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi;
	unsigned long orig_rax, rip, cs, eflags, rsp, ss;
};

#define ARG0(c) ((c)->rdi)
#define ARG1(c) ((c)->rsi)
#define ARG2(c) ((c)->rdx)
#define ARG3(c) ((c)->rcx)
#define ARG4(c) ((c)->r8)
#define ARG5(c) ((c)->r9)
#define RESULT(c) ((c)->rax)
/* Arguments in registers; the next one lies behind the return address. */
#define REGISTER_ARGS 6
#define STACK_ARGS(c) ((c)->rsp + 8)
/* Where the caller's stack ends, the same before a function's first instruction and after its last. */
#define STACK_BEFORE(c) ((c)->rsp + 8)
#define STACK_AFTER(c) ((c)->rsp)

#elif defined(__TARGET_ARCH_arm64)

struct pt_regs {
	__u64 regs[31], sp, pc, pstate;
};

#define ARG0(c) ((c)->regs[0])
#define ARG1(c) ((c)->regs[1])
#define ARG2(c) ((c)->regs[2])
#define ARG3(c) ((c)->regs[3])
#define ARG4(c) ((c)->regs[4])
#define ARG5(c) ((c)->regs[5])
#define ARG6(c) ((c)->regs[6])
#define ARG7(c) ((c)->regs[7])
#define RESULT(c) ((c)->regs[0])
#define REGISTER_ARGS 8
#define STACK_ARGS(c) ((c)->sp)
#define STACK_BEFORE(c) ((c)->sp)
#define STACK_AFTER(c) ((c)->sp)

#else
#error "unknown architecture"
#endif

/* The compiler must not join loads into one with a computed address, which the verifier refuses of
 * registers. */
#define LOAD(v, from) \
	do {          \
		(v) = (from); \
		asm volatile("" : "+r"(v)); \
	} while (0)

/* argument reads argument i of the function that the probe stands before; 0 if its stack cannot be
 * read, which the function itself could then not do either. */
INLINE __u64 argument(struct pt_regs *ctx, __u32 i)
{
	__u64 v = 0;

	if (i == 0)
		LOAD(v, ARG0(ctx));
	else if (i == 1)
		LOAD(v, ARG1(ctx));
	else if (i == 2)
		LOAD(v, ARG2(ctx));
	else if (i == 3)
		LOAD(v, ARG3(ctx));
	else if (i == 4)
		LOAD(v, ARG4(ctx));
	else if (i == 5)
		LOAD(v, ARG5(ctx));
#if REGISTER_ARGS > 6
	else if (i == 6)
		LOAD(v, ARG6(ctx));
	else if (i == 7)
		LOAD(v, ARG7(ctx));
#endif
	else if (bpf_probe_read_user(&v, sizeof(v), (void *)(STACK_ARGS(ctx) + 8 * (__u64)(i - REGISTER_ARGS))))
		v = 0;
	return v;
}

#endif
