/* SPDX-License-Identifier: Apache-2.0
 *
 * Scopes of programs that cannot call the core directly, such as Python's. Such a program calls
 * libgpuflight.so (cupti/inject/loader), which forwards to the recorder once that records. Both
 * libraries include this file.
 *
 * A scope begins and ends once. Between, each thread that works in it pushes it before the work and
 * pops it after: a coroutine does so around each of its steps. A launch belongs to the scope on top
 * of its thread's stack.
 */
#ifndef GPUFL_CONTEXT_H
#define GPUFL_CONTEXT_H

#include <stdint.h>

/* The begin of a scope. */
typedef struct {
  uint64_t id;     /* 0: a new one */
  uint64_t parent; /* The scope around it; 0 is none. The innermost scope of the thread precedes if it began later. */
  int64_t time_ns; /* since 1970 */
  const char *name;
  /* The application's span, which it sends itself. Without one the recorder makes a span. */
  const uint8_t *trace; /* 16 bytes, or NULL */
  const uint8_t *span;  /* 8 bytes */
  int sampled;          /* of the application's span: whether its work has spans */
} gpufl_context_scope;

/* The recorder's functions for libgpuflight.so. Any thread may call them. In a forked child they do
 * nothing and return 0. */

/* gpufl_recorder_id returns a new id that is greater than after. Ids increase with time. */
uint64_t gpufl_recorder_id(uint64_t after);

/* gpufl_recorder_begin returns the id of the scope, or 0 if nothing is recorded or the event does
 * not fit, which is counted. */
uint64_t gpufl_recorder_begin(const gpufl_context_scope *scope);

/* gpufl_recorder_end ends a scope. The caller calls it once for each id. */
void gpufl_recorder_end(uint64_t id);

/* gpufl_recorder_push puts a scope on top of the calling thread's stack. With outermost it does so
 * only if the thread is in no scope that began later. It returns 1 if the scope was pushed. */
int gpufl_recorder_push(uint64_t id, int outermost);

/* gpufl_recorder_pop removes a scope from the calling thread's stack. It returns 1, or 0 if the
 * scope was not on top: see gpufl_pop_scope. */
int gpufl_recorder_pop(uint64_t id);

/* gpufl_recorder_top returns the innermost scope of the calling thread, 0 if there is none. */
uint64_t gpufl_recorder_top(void);

#endif
