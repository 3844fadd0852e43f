/* SPDX-License-Identifier: Apache-2.0 */

/* How the programs read what copies are of, from the structures and arrays that functions are given. */

#ifndef GPUFLIGHT_ARGUMENTS_H
#define GPUFLIGHT_ARGUMENTS_H

#include "types.h"

/* How many copies of one call are looked at; what is above is counted as lost. */
enum { BATCH = 256 };

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
		bpf_probe_read_user(&source, sizeof(source), (void *)(from + COPY_2D_SOURCE));
		bpf_probe_read_user(&destination, sizeof(destination), (void *)(from + COPY_2D_DESTINATION));
		bpf_probe_read_user(extent, 16, (void *)(from + COPY_2D_WIDTH));
	} else if (f.shape == SHAPE_3D) {
		bpf_probe_read_user(&source, sizeof(source), (void *)(from + COPY_3D_SOURCE));
		bpf_probe_read_user(&destination, sizeof(destination), (void *)(from + COPY_3D_DESTINATION));
		bpf_probe_read_user(extent, sizeof(extent), (void *)(from + COPY_3D_WIDTH));
	} else {
		bpf_probe_read_user(extent, sizeof(extent), (void *)(from + OPERATION_WIDTH));
	}
	if (!*kind && letter(source) && letter(destination))
		*kind = 16 + 4 * letter(source) + letter(destination);
	return extent[0] * extent[1] * extent[2];
}

/* bytes_of reads the size of a copy of a batch: one of an array of sizes, or in one of an array of operations. The
 * size is in elements where one side is an array of the device. */
INLINE __u64 bytes_of(__u8 shape, __u64 from, __u32 i, long *failed)
{
	__u64 extent[3] = {0, 1, 1};

	if (shape == SHAPE_OPERATION)
		*failed = bpf_probe_read_user(extent, sizeof(extent), (void *)(from + OPERATION_BYTES * (__u64)i + OPERATION_WIDTH));
	else
		*failed = bpf_probe_read_user(extent, sizeof(*extent), (void *)(from + 8 * (__u64)i));
	return extent[0] * extent[1] * extent[2];
}

#endif
