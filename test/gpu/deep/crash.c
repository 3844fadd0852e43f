// SPDX-License-Identifier: Apache-2.0
//
// A library for LD_PRELOAD. A thread that crashes reports it on standard error and then waits for a
// quarter of an hour, so that where.stacks can read its stack. On x86-64 it also prints its
// location, its registers and the memory at those addresses.
//
//	test/gpu/build --programs bin
//	LD_PRELOAD=bin/crash.so PROGRAM

#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#include "say.h"

#ifdef __x86_64__
enum { WORDS = 12 };

// look prints the memory at an address, if it is mapped.
static void look(const char *name, uint64_t address) {
  uint64_t words[WORDS] = {0};
  struct iovec to = {words, sizeof words}, from = {(void *)address, sizeof words}; // NOLINT: it need not be one
  Dl_info file = {0};
  say("crash.so: %s %lx", name, (unsigned long)address);
  if (dladdr((void *)address, &file) != 0) say(" = %s+%lx", file.dli_fname, (unsigned long)(address - (uint64_t)file.dli_fbase));
  if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) == (ssize_t)sizeof words) {
    say(":");
    for (int i = 0; i < WORDS; i++) say(" %lx", (unsigned long)words[i]);
  }
  say("\n");
}

static void registers(const ucontext_t *context) {
  static const struct {
    const char *name;
    int index;
  } all[] = {{"rip", REG_RIP}, {"rax", REG_RAX}, {"rbx", REG_RBX}, {"rcx", REG_RCX}, {"rdx", REG_RDX}, {"rsi", REG_RSI}, {"rdi", REG_RDI}, {"rbp", REG_RBP},
             {"r8", REG_R8}, {"r9", REG_R9}, {"r10", REG_R10}, {"r11", REG_R11}, {"r12", REG_R12}, {"r13", REG_R13}, {"r14", REG_R14}, {"r15", REG_R15}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) look(all[i].name, (uint64_t)context->uc_mcontext.gregs[all[i].index]);
  // Where it returns to, if it keeps frames.
  uint64_t frame[2] = {(uint64_t)context->uc_mcontext.gregs[REG_RBP], 0};
  for (int i = 0; i < 16; i++) {
    uint64_t at = frame[0];
    struct iovec to = {frame, sizeof frame}, from = {(void *)at, sizeof frame}; // NOLINT: it need not be one
    if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != (ssize_t)sizeof frame || frame[0] <= at) return;
    look("returns to", frame[1]);
  }
}
#endif

static void crashed(int signal, siginfo_t *info, void *context) {
  say("crash.so: thread %d of process %d: signal %d at %p\n", (int)syscall(SYS_gettid), (int)getpid(), signal, info->si_addr);
#ifdef __x86_64__
  registers(context);
#else
  (void)context;
#endif
  say("crash.so: it waits\n");
  for (int i = 0; i < 900; i++) sleep(1);
  _exit(1);
}

__attribute__((constructor)) static void watch(void) {
  static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP};
  struct sigaction s = {.sa_sigaction = crashed, .sa_flags = SA_SIGINFO | SA_RESETHAND};
  sigemptyset(&s.sa_mask);
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaction(signals[i], &s, NULL);
}
