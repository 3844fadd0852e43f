/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of CUDA's cupti.h that overhead/floor.c uses, for tests with the fake CUPTI. */
#ifndef CUPTI_H
#define CUPTI_H
#include <stddef.h>
#include <stdint.h>
typedef int CUptiResult;
typedef struct context *CUcontext;
typedef struct { int kind; } CUpti_Activity;
#define CUPTIAPI
#define CUPTI_SUCCESS 0
#define CUPTI_ACTIVITY_KIND_MEMCPY 1
#define CUPTI_ACTIVITY_KIND_MEMSET 2
#define CUPTI_ACTIVITY_KIND_KERNEL 3
#define CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL 10
#define CUPTI_ACTIVITY_FLAG_FLUSH_FORCED 1
CUptiResult cuptiActivityEnable(int kind);
CUptiResult cuptiActivityFlushAll(uint32_t flag);
CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **record);
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped);
CUptiResult cuptiActivityRegisterCallbacks(void (*requested)(uint8_t **, size_t *, size_t *),
                                           void (*completed)(CUcontext, uint32_t, uint8_t *, size_t, size_t));
#endif
