/* SPDX-License-Identifier: Apache-2.0
 *
 * The C part of a library that loads the Go runtime into another program: the time before the
 * runtime starts, the entry point of the driver, and forked children.
 *
 * Signals. The Go runtime is started by the library's .init_array entry. It installs handlers of
 * SIGSEGV, SIGBUS, SIGFPE, SIGPIPE and SIGURG and marks the program's other handlers SA_ONSTACK. A
 * crash of the program would then be reported by Go. So a constructor that runs before that entry
 * saves all dispositions. The first code that runs after it restores them.
 *
 * Without its handlers the runtime still works. It needs SIGSEGV only to turn faults into panics,
 * SIGPIPE only to survive writes to closed sockets, and SIGURG only to interrupt loops without
 * calls. Its threads inherit the mask of the thread that loads the library. The constructor blocks
 * all signals there except faults. So a SIGPIPE stays pending on the Go thread that caused it, and
 * the program's signals are not handled on the small stack of a goroutine.
 *
 * The runtime always unblocks four signals on its threads: SIGCHLD, SIGURG, SIGPROF and the first
 * real-time signal. The kernel prefers the main thread, but where that has one of them blocked, a
 * Go thread may get it. Handlers of these that exist by now keep SA_ONSTACK, so that they then run
 * on the runtime's signal stack.
 *
 * Limits. Go raises the number of files that a process may open, which the program's children would
 * inherit, and select() would not survive. That is put back as soon as Go's packages have begun.
 *
 * Forked children have no Go runtime, only its memory. A flag tells them before Go is entered. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "_cgo_export.h"

#define EXPORTED __attribute__((visibility("default")))

static struct sigaction gpufl_before[NSIG];
static bool gpufl_known[NSIG];
static sigset_t gpufl_mask;
static pthread_t gpufl_loader;
static bool gpufl_blocked;
static pthread_mutex_t gpufl_restoring = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool gpufl_restored;
static struct rlimit gpufl_files;
static bool gpufl_files_known;

static atomic_bool gpufl_forked;
static atomic_bool gpufl_entered;

static void gpufl_on_fork(void) { atomic_store_explicit(&gpufl_forked, true, memory_order_relaxed); }

/* The signals that a thread gets for what it does itself. Blocked, they would kill without a word.
 */
static const int gpufl_faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};

/* Before the Go runtime: .init_array entries with a priority go before those without. */
__attribute__((constructor(101))) static void gpufl_before_go(void) {
  sigset_t block;

  for (int sig = 1; sig < NSIG; sig++)
    gpufl_known[sig] = sigaction(sig, NULL, &gpufl_before[sig]) == 0;
  gpufl_files_known = getrlimit(RLIMIT_NOFILE, &gpufl_files) == 0;
  sigfillset(&block);
  for (size_t i = 0; i < sizeof gpufl_faults / sizeof *gpufl_faults; i++)
    sigdelset(&block, gpufl_faults[i]);
  gpufl_loader = pthread_self();
  gpufl_blocked = pthread_sigmask(SIG_BLOCK, &block, &gpufl_mask) == 0;
  /* Without the handler a child could not be told from its parent, and would hang in Go. */
  if (pthread_atfork(NULL, NULL, gpufl_on_fork) != 0) gpufl_on_fork();
}

static bool gpufl_same(const struct sigaction *a, const struct sigaction *b) {
  return a->sa_flags == b->sa_flags && a->sa_sigaction == b->sa_sigaction;
}

/* gpufl_ours says whether a handler is in this library. */
static bool gpufl_ours(const struct sigaction *a) {
  Dl_info handler, self;

  if (a->sa_handler == SIG_DFL || a->sa_handler == SIG_IGN) return false;
  return dladdr(*(void *const *)&a->sa_handler, &handler) != 0 && dladdr(&gpufl_before, &self) != 0 &&
         handler.dli_fbase == self.dli_fbase;
}

static bool gpufl_reaches_go(int sig) {
  /* The runtime's table has the kernel's numbers, of which the C library keeps 32 and 33. */
  return sig == SIGCHLD || sig == SIGURG || sig == SIGPROF || sig == 34;
}

/* gpufl_restore puts back what the program had, once. */
static void gpufl_restore(void) {
  if (atomic_load(&gpufl_restored)) return;
  pthread_mutex_lock(&gpufl_restoring);
  if (!atomic_load(&gpufl_restored)) {
    for (int sig = 1; sig < NSIG; sig++) {
      struct sigaction now, was = gpufl_before[sig];

      if (!gpufl_known[sig] || sigaction(sig, NULL, &now) != 0) continue;
      /* A handler that the program has set up meanwhile stays. */
      if (!gpufl_ours(&now) && now.sa_sigaction != was.sa_sigaction) continue;
      if (gpufl_reaches_go(sig) && was.sa_handler != SIG_DFL && was.sa_handler != SIG_IGN)
        was.sa_flags |= SA_ONSTACK;
      if (!gpufl_same(&now, &was)) sigaction(sig, &was, NULL);
    }
    if (gpufl_blocked && pthread_equal(pthread_self(), gpufl_loader))
      pthread_sigmask(SIG_SETMASK, &gpufl_mask, NULL);
    atomic_store(&gpufl_restored, true);
  }
  pthread_mutex_unlock(&gpufl_restoring);
}

/* After the Go runtime has taken its signals: the linker puts this behind the runtime's entry,
 * which is in the first object of the link. Should a linker order them otherwise, nothing has been
 * taken yet; then InitializeInjection, which the same thread calls next, does it. SIGURG tells: the
 * runtime always takes it. */
__attribute__((constructor)) static void gpufl_after_go(void) {
  struct sigaction now;

  if (sigaction(SIGURG, NULL, &now) == 0 && !gpufl_same(&now, &gpufl_before[SIGURG])) gpufl_restore();
}

/* gpufl_restore_limits is called by Go, on the thread that starts its packages. A limit that is not
 * one below the highest is none that Go has set: the program has, meanwhile. */
void gpufl_restore_limits(void) {
  struct rlimit now;

  if (!gpufl_files_known || getrlimit(RLIMIT_NOFILE, &now) != 0) return;
  if (now.rlim_cur == now.rlim_max - 1 && now.rlim_max == gpufl_files.rlim_max && now.rlim_cur != gpufl_files.rlim_cur)
    setrlimit(RLIMIT_NOFILE, &gpufl_files);
}

/* The recording ends here, which may take some seconds that the program has not counted on: a timer
 * that it has left running must not end it meanwhile. What timers send by then, with nobody to
 * handle it, is taken away. */
static void gpufl_at_exit(void) {
  static const int timers[] = {SIGALRM, SIGVTALRM, SIGPROF};
  const struct timespec now = {0, 0};
  sigset_t block, lethal, before;
  bool blocked;

  if (atomic_load(&gpufl_forked)) return;
  sigemptyset(&block);
  for (size_t i = 0; i < sizeof timers / sizeof *timers; i++) sigaddset(&block, timers[i]);
  blocked = pthread_sigmask(SIG_BLOCK, &block, &before) == 0;
  gpuflInjectStop();
  if (!blocked) return;
  sigemptyset(&lethal);
  for (size_t i = 0; i < sizeof timers / sizeof *timers; i++) {
    struct sigaction a;

    if (!sigismember(&before, timers[i]) && sigaction(timers[i], NULL, &a) == 0 && a.sa_handler == SIG_DFL)
      sigaddset(&lethal, timers[i]);
  }
  while (sigtimedwait(&lethal, NULL, &now) > 0) continue;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* InitializeInjection is called by the driver from within the first cuInit of the process. Its
 * result says whether the library wants to stay. */
EXPORTED int InitializeInjection(void) {
  if (atomic_load(&gpufl_forked)) return 1;
  gpufl_restore();
  if (atomic_exchange(&gpufl_entered, true)) return 1;
  /* Registered after CUPTI was opened, so that it runs before what CUPTI does at exit. */
  if (gpuflInjectStart() != 0) atexit(gpufl_at_exit);
  return 1;
}

/* gpufl_initialized says whether the driver has called: for tests of the built library. */
EXPORTED int gpufl_injected(void) { return atomic_load(&gpufl_entered) && !atomic_load(&gpufl_forked); }
