// SPDX-License-Identifier: Apache-2.0

#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

// CHECK ends the program unless something is so.
#define CHECK(what)                                                      \
  do {                                                                   \
    if (!(what)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
      exit(1);                                                           \
    }                                                                    \
  } while (0)

#endif
