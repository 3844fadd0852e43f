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

/* Users share by their ids, modulo a prime: ids of containers are often multiples of 65,536 apart. Index 0 stands for
 * all users together. */
enum { USERS = 4093, SHARES = USERS + 1, ALL_USERS = 0 };

INLINE __u32 share_of(__u32 uid)
{
	return 1 + uid % USERS;
}

/* Where the kernel keeps a task's credentials, their user namespace, and of that its parent, depth and owner; 0 where it
 * does not say. */
volatile const __u32 cred_offset = 0;
volatile const __u32 cred_namespace_offset = 0;
volatile const __u32 namespace_parent_offset = 0;
volatile const __u32 namespace_level_offset = 0;
volatile const __u32 namespace_owner_offset = 0;

/* Namespaces of users are nested 32 deep at most. */
enum { NAMESPACES = 33 };

/* user_of is the id of the current process's user. In a user namespace that a user other than root has made, it is that
 * user's: there, one user can have as many ids as /etc/subuid gives it. */
INLINE __u32 user_of(void)
{
	__u32 uid = bpf_get_current_uid_gid(), owner = 0;
	__u64 task = bpf_get_current_task(), cred = 0, namespace = 0;
	__s32 level = 0;

	if (!cred_offset)
		return uid;
	bpf_probe_read_kernel(&cred, sizeof(cred), (void *)(task + cred_offset));
	bpf_probe_read_kernel(&namespace, sizeof(namespace), (void *)(cred + cred_namespace_offset));
	for (int i = 0; i < NAMESPACES; i++) {
		if (bpf_probe_read_kernel(&level, sizeof(level), (void *)(namespace + namespace_level_offset)) || level <= 1)
			break;
		bpf_probe_read_kernel(&namespace, sizeof(namespace), (void *)(namespace + namespace_parent_offset));
	}
	if (level != 1 || bpf_probe_read_kernel(&owner, sizeof(owner), (void *)(namespace + namespace_owner_offset)))
		return uid;
	return owner ? owner : uid;
}

#endif
