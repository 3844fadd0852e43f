/* SPDX-License-Identifier: Apache-2.0 */

/* Offsets in bytes of the fields that are read from argument structures, from cuda.h and
 * driver_types.h of CUDA 11.8 to 13.5. internal/probe/headers_test.go checks them. */

#ifndef GPUFLIGHT_LAYOUT_H
#define GPUFLIGHT_LAYOUT_H

enum {
	/* CUDA_MEMCPY2D; the height follows the width. */
	COPY_2D_SOURCE = 16,
	COPY_2D_DESTINATION = 72,
	COPY_2D_WIDTH = 112,
	/* CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER; height and depth follow the width. */
	COPY_3D_SOURCE = 32,
	COPY_3D_DESTINATION = 120,
	COPY_3D_WIDTH = 176,
	/* CUDA_MEMCPY3D_BATCH_OP, of CUDA 12.8 and later; height and depth follow the width. */
	OPERATION_WIDTH = 80,
	OPERATION_BYTES = 112,
	/* CUgraphNodeParams, of CUDA 12.2 and later; the graph is that of a child. */
	NODE_TYPE = 0,
	NODE_CHILD = 16,
};

/* CUmemorytype. */
enum { TYPE_HOST = 1, TYPE_DEVICE = 2, TYPE_ARRAY = 3 };
/* CUgraphNodeType. */
enum { NODE_KERNEL = 0, NODE_GRAPH = 4, NODE_CONDITIONAL = 13 };
/* cudaMemcpyKind. */
enum { RUNTIME_HTOH, RUNTIME_HTOD, RUNTIME_DTOH, RUNTIME_DTOD, RUNTIME_DEFAULT };
/* CUDA_ERROR_NOT_READY, of queries; CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD; ncclInProgress, of communicators that do
 * not block. */
enum { CODE_NOT_READY = 600, CODE_WRONG_THREAD = 908, CODE_IN_PROGRESS = 7 };

/* CUlaunchConfig and cudaLaunchConfig_t, as far as the stream. */
struct launch_config {
	unsigned grid[3], block[3], shared, hole;
	unsigned long long stream;
};

struct runtime_launch_config {
	unsigned grid[3], block[3];
	unsigned long long shared, stream;
};

#endif
