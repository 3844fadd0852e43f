// SPDX-License-Identifier: Apache-2.0
//
// Output of crash.c on standard error. It allocates no memory and takes no lock.

#pragma once

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

static void say(const char *format, ...) {
  char line[512];
  va_list values;
  va_start(values, format);
  int n = vsnprintf(line, sizeof line, format, values);
  va_end(values);
  if (n > 0 && write(STDERR_FILENO, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1) < 0) _exit(1);
}
