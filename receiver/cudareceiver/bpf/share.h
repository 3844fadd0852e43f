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

/* user_of is the id of the current process's user. */
INLINE __u32 user_of(void)
{
	return bpf_get_current_uid_gid();
}

#endif
