/* SPDX-License-Identifier: Apache-2.0
 *
 * What nvtx.c asks of scope.c. Domains and texts are UTF-8; a domain is a pointer of gpufl_intern, NULL
 * for the default one.
 */
#ifndef GPUFL_SCOPE_H
#define GPUFL_SCOPE_H

#include "gpufl_internal.h"

/* gpufl_intern returns a pointer to the text that is good for ever, the same for equal texts; NULL
 * for NULL. It also works before gpufl_open. */
const char *gpufl_intern(const char *text);

/* What nvtxRangePush and nvtxRangePop answer: the range's depth in its domain, from 0; negative if there
 * is none. */
int gpufl_nvtx_push(const char *domain, const char *text, uint32_t color);
int gpufl_nvtx_pop(const char *domain);

uint64_t gpufl_nvtx_start(const char *domain, const char *text, uint32_t color);
void gpufl_nvtx_end(uint64_t id);
void gpufl_nvtx_mark(const char *domain, const char *text, uint32_t color);

#endif
