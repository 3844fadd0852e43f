/* SPDX-License-Identifier: Apache-2.0 */

/* How maps are shared. No user can fill a map, and no process can fill its user's part of one:
 *
 *   a user may add an entry while it has fewer than are free;
 *   a process may add one while it has fewer than are free beyond what its user has.
 *
 * So each user can have half of what is free when it comes, and after n users that take all they can, 1/2^n of the map
 * is free. A process of a new user can have a third of what is free.
 * The check and the insertion are not one step: as many entries as there are processors may come on top. */

#ifndef GPUFLIGHT_SHARE_H
#define GPUFLIGHT_SHARE_H

#include "bpf.h"

/* Users share by their ids, modulo a prime: ids in containers are often multiples of 65,536 apart. Index 0 stands for
 * all users together. */
enum { USERS = 4093, SHARES = USERS + 1, ALL_USERS = 0 };

INLINE __u32 share_of(__u32 uid)
{
	return 1 + uid % USERS;
}

/* Where the kernel keeps a task's credentials and their user namespace, and its PID namespace; of these the parent, the
 * depth, and the owner or the number. The first of each group is 0 where the kernel does not say. */
volatile const __u32 cred_offset = 0;
volatile const __u32 cred_namespace_offset = 0;
volatile const __u32 user_parent_offset = 0;
volatile const __u32 user_level_offset = 0;
volatile const __u32 user_owner_offset = 0;
volatile const __u32 nsproxy_offset = 0;
volatile const __u32 nsproxy_namespace_offset = 0;
volatile const __u32 pid_parent_offset = 0;
volatile const __u32 pid_level_offset = 0;
volatile const __u32 pid_number_offset = 0;

/* Namespaces are nested 32 deep at most. */
enum { NAMESPACES = 33 };

/* outermost is the namespace around this one that lies directly in the machine's own; 0 if this is the machine's. */
INLINE __u64 outermost(__u64 namespace, __u32 parent, __u32 level)
{
	__u32 depth = 0;

	for (int i = 0; i < NAMESPACES; i++) {
		if (bpf_probe_read_kernel(&depth, sizeof(depth), (void *)(namespace + level)) || depth <= 1)
			break;
		bpf_probe_read_kernel(&namespace, sizeof(namespace), (void *)(namespace + parent));
	}
	return depth == 1 ? namespace : 0;
}

/* namespace_of is a namespace of the current task, which is at an offset in a structure at an offset. */
INLINE __u64 namespace_of(__u32 structure, __u32 member)
{
	__u64 at = 0;

	bpf_probe_read_kernel(&at, sizeof(at), (void *)(bpf_get_current_task() + structure));
	bpf_probe_read_kernel(&at, sizeof(at), (void *)(at + member));
	return at;
}

/* user_of returns the owner of the current process:
 *
 *   In a user namespace that a user other than root has made: that user, who can have many ids there,
 *   as /etc/subuid allows.
 *   In another container: the container, by the number of its PID namespace. Containers of different
 *   owners often have the same user ids.
 *   Otherwise the user id. */
INLINE __u32 user_of(void)
{
	__u32 id = 0;
	__u64 namespace;

	if (cred_offset) {
		namespace = outermost(namespace_of(cred_offset, cred_namespace_offset), user_parent_offset, user_level_offset);
		if (namespace && !bpf_probe_read_kernel(&id, sizeof(id), (void *)(namespace + user_owner_offset)) && id)
			return id;
	}
	if (nsproxy_offset) {
		namespace = outermost(namespace_of(nsproxy_offset, nsproxy_namespace_offset), pid_parent_offset, pid_level_offset);
		if (namespace && !bpf_probe_read_kernel(&id, sizeof(id), (void *)(namespace + pid_number_offset)) && id)
			return id;
	}
	return bpf_get_current_uid_gid();
}

#endif
