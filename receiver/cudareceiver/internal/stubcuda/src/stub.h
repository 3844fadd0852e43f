/* SPDX-License-Identifier: Apache-2.0 */

/* What the stub libraries share: functions that are exported, and fail when they are told. */

#ifndef STUB_H
#define STUB_H

#define _GNU_SOURCE
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default"), noinline))

__attribute__((unused)) static int failure(const char *name) {
  static const char *list;
  if (list == NULL) {
    list = getenv("STUB_FAIL");
    if (list == NULL) list = "";
  }
  if (*list == 0) return 0;
  const char *at = strstr(list, name);
  size_t n = strlen(name);
  if (at == NULL || (at != list && at[-1] != ',') || at[n] != '=') return 0;
  return atoi(at + n + 1);
}

/* Something that the compiler cannot leave out. */
__attribute__((unused)) static atomic_ulong calls;
#define CALL(name)                                              \
  do {                                                          \
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed); \
    int code_ = failure(#name);                                 \
    if (code_ != 0) return code_;                               \
  } while (0)

#endif
