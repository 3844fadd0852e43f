// SPDX-License-Identifier: Apache-2.0
//
// A library for LD_PRELOAD: a thread that crashes says so on standard error, and then waits for a quarter of an hour with its stack as it is, for
// where.stacks to read.
//
//	test/gpu/build --programs bin
//	LD_PRELOAD=bin/crash.so PROGRAM

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static void crashed(int signal, siginfo_t *info, void *context) {
  (void)context;
  char line[128];
  int n = snprintf(line, sizeof line, "crash.so: thread %d of process %d: signal %d at %p\n", (int)syscall(SYS_gettid), (int)getpid(), signal, info->si_addr);
  if (n > 0 && write(STDERR_FILENO, line, (size_t)n) < 0) _exit(1);
  for (int i = 0; i < 900; i++) sleep(1);
  _exit(1);
}

__attribute__((constructor)) static void watch(void) {
  static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP};
  struct sigaction s = {.sa_sigaction = crashed, .sa_flags = SA_SIGINFO | SA_RESETHAND};
  sigemptyset(&s.sa_mask);
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaction(signals[i], &s, NULL);
}
