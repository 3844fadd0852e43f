/* SPDX-License-Identifier: Apache-2.0
 *
 * What nvtx.c uses of scope.c. Names and domains are UTF-8. A domain is a pointer from
 * gpufl_intern; NULL is the default domain. Any thread may call these functions. They never block
 * on CUPTI. In a forked child they do nothing and return 0, NULL or, from gpufl_nvtx_pop, -1.
 */
#ifndef GPUFL_SCOPE_H
#define GPUFL_SCOPE_H

#include "gpufl_internal.h"

/* gpufl_intern returns a copy of the text that is never freed; equal texts have equal pointers. It
 * returns NULL for NULL. It truncates long texts. When the table is full it returns "_other" and
 * counts the name as lost. It also works before gpufl_open. */
const char *gpufl_intern(const char *text);

/* gpufl_nvtx_push and gpufl_nvtx_pop return what nvtxRangePush and nvtxRangePop return: the depth
 * of the range in its domain, from 0. gpufl_nvtx_pop returns -1 if the thread has no such range. An
 * event beyond the capacity is counted as lost. collective_bytes is the size of a collective; 0 means
 * none. */
int gpufl_nvtx_push(const char *domain, const char *text, uint32_t color, uint64_t collective_bytes);
int gpufl_nvtx_pop(const char *domain);

/* gpufl_nvtx_start returns the id of a range that any thread may end with gpufl_nvtx_end. Unknown
 * ids are ignored. */
uint64_t gpufl_nvtx_start(const char *domain, const char *text, uint32_t color);
void gpufl_nvtx_end(uint64_t id);

/* gpufl_nvtx_mark queues one event without an end. */
void gpufl_nvtx_mark(const char *domain, const char *text, uint32_t color);

#endif
