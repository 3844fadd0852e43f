/* SPDX-License-Identifier: Apache-2.0
 *
 * Stacks of Python code that launches work (stacks.c). A thread of ours takes the interpreter's lock
 * (the GIL) and reads the frames of threads that have launched. While it holds the GIL, no other
 * thread can change its frames: a thread outside the interpreter stays in the call that it is in. So
 * the stack of a launch that happens meanwhile is exact.
 */
#ifndef GPUFL_STACKS_H
#define GPUFL_STACKS_H

#include "gpufl_internal.h"

/* gpufl_stacks_start starts the thread. In a process without Python, and after a failure, it does
 * nothing but set the reason. The owner calls it when recording starts. */
void gpufl_stacks_start(void);

/* gpufl_stacks_stop ends the thread. It waits for 100 ms at most: longer only if the caller holds the
 * GIL, and then the thread ends as soon as it can. The owner calls it. */
void gpufl_stacks_stop(void);

/* gpufl_stacks_suspend ends and resumes samples, for the time in which launches are not reported. The
 * owner calls it. */
void gpufl_stacks_suspend(bool suspended);

/* gpufl_stacks_on returns true while launches are observed. */
bool gpufl_stacks_on(void);

/* gpufl_stacks_launch is called at the begin of each launch, on its thread. symbol is the kernel's
 * name, or NULL. It usually costs a few loads. If a sample of a launch is due it waits until the
 * thread of ours has the GIL, for at most 1 ms. All such waits and the time in which we hold the GIL
 * are at most 0.5 % of the recording's time, and 50 ms. */
void gpufl_stacks_launch(uint32_t correlation, const char *symbol);

/* gpufl_stacks_counts returns stacks_lost and stacks_ns of gpufl_stats. */
void gpufl_stacks_counts(uint64_t *lost, int64_t *spent_ns);

#endif
