/* SPDX-License-Identifier: Apache-2.0 */

/* Who a process is, from the kernel's structures. /proc has the same as long as the process lives. */

#ifndef GPUFLIGHT_IDENTITY_H
#define GPUFLIGHT_IDENTITY_H

#include "bpf.h"
#include "types.h"

/* One for each entry of runs, of the same number. */
struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct identity);
} identities SEC(".maps");

/* Where the kernel keeps a task's memory, whose executable file, its entry in a folder, and the name in it. */
volatile const __u32 memory_offset = 0;
volatile const __u32 executable_offset = 0;
volatile const __u32 entry_offset = 0;
volatile const __u32 entry_name_offset = 0;
/* And a task's control groups: the one of version 2, the state of a controller, whose group, a group's hierarchy and
 * node, and a node's parent and name. The first of each list is 0 where the kernel does not say. */
volatile const __u32 groups_offset = 0;
volatile const __u32 group_offset = 0;
volatile const __u32 controller_offset = 0;
volatile const __u32 controller_group_offset = 0;
volatile const __u32 hierarchy_offset = 0;
volatile const __u32 node_offset = 0;
volatile const __u32 node_parent_offset = 0;
volatile const __u32 node_name_offset = 0;

static const struct identity no_identity;

/* pointer_at reads the pointer at an offset of a kernel structure; 0 if that cannot be read. */
INLINE __u64 pointer_at(__u64 structure, __u32 offset)
{
	__u64 v = 0;

	bpf_probe_read_kernel(&v, sizeof(v), (void *)(structure + offset));
	return v;
}

/* Control groups deeper than this are not whole. */
enum { GROUPS = 16 };

/* add_group adds the names of a control group of version i + 1, by its node, after those that are used. */
INLINE __u32 add_group(struct identity *to, __u32 i, __u64 node, __u32 used)
{
	__u64 parent;
	long n;

	for (int depth = 0; depth < GROUPS; depth++) {
		parent = pointer_at(node, node_parent_offset);
		if (!parent) {
			to->cgroup_whole[i] = 1;
			break;
		}
		asm volatile("" : "+r"(used)); /* so that the verifier sees the check */
		if (used > CGROUP_BYTES - SEGMENT_BYTES)
			break;
		n = bpf_probe_read_kernel_str(to->cgroup + used, SEGMENT_BYTES, (void *)pointer_at(node, node_name_offset));
		if (n <= 0 || n > SEGMENT_BYTES)
			break;
		used += n;
		node = parent;
	}
	to->cgroup_end[i] = used;
	return used;
}

/* identify adds the identity of the current process. */
NOINLINE int identify(__u64 run)
{
	struct identity *to;
	__u64 task = bpf_get_current_task(), at, group, old;
	__u32 used = 0;

	if (bpf_map_update_elem(&identities, &run, &no_identity, UPDATE_NOEXIST))
		return 0;
	to = bpf_map_lookup_elem(&identities, &run);
	if (!to)
		return 0;
	if (memory_offset) {
		at = pointer_at(pointer_at(task, memory_offset), executable_offset);
		at = pointer_at(pointer_at(at, entry_offset), entry_name_offset);
		bpf_probe_read_kernel_str(to->executable, sizeof(to->executable), (void *)at);
	}
	if (!groups_offset)
		return 0;
	at = pointer_at(task, groups_offset);
	group = pointer_at(at, group_offset);
	old = pointer_at(pointer_at(at, controller_offset), controller_group_offset);
	/* A controller that version 2 has is in the same hierarchy, perhaps further out. */
	if (old && pointer_at(old, hierarchy_offset) != pointer_at(group, hierarchy_offset))
		used = add_group(to, 0, pointer_at(old, node_offset), used);
	add_group(to, 1, pointer_at(group, node_offset), used);
	return 0;
}

#endif
