// SPDX-License-Identifier: Apache-2.0
//
// Threads that sleep, run, end or get no processor, and what gpufl_threads_pass says of them; and whose they are. 77: this process
// may not stop a thread of its own.

#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#include "core.h"
#include "gpufl_deep_internal.h"

static atomic_bool over;
static _Atomic pid_t spinner;

static void *spin(void *unused) {
  atomic_store(&spinner, (pid_t)syscall(SYS_gettid));
  while (!atomic_load(&over)) continue;
  return unused;
}

static void *rest(void *unused) {
  while (!atomic_load(&over)) usleep(200000);
  return unused;
}

static void *end(void *unused) { return unused; }

static void *come_and_go(void *unused) {
  while (!atomic_load(&over)) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, end, NULL) == 0 && pthread_join(thread, NULL) == 0);
  }
  return unused;
}

static void *is_theirs(void *answer) {
  *(bool *)answer = gpufl_thread_is_cuptis();
  return NULL;
}

// begun says whether a thread that is made here is one of the library's whose code has a function.
static bool begun(void *function) {
  gpufl_threads_learn(function);
  CHECK(!gpufl_thread_is_cuptis()); // the first was not made
  pthread_t thread;
  bool is = false;
  CHECK(pthread_create(&thread, NULL, is_theirs, &is) == 0 && pthread_join(thread, NULL) == 0);
  return is;
}

static bool pass(int64_t ns) { return gpufl_threads_pass(gpufl_monotonic() + ns); }

int main(void) {
  const int64_t minute = (int64_t)60000000000;
  CHECK(!gpufl_thread_is_cuptis());
#ifdef __GLIBC__
  CHECK(begun((void *)begun));
#endif
  CHECK(!begun((void *)qsort)); // the C library's
  CHECK(pass(minute)); // alone
  pthread_t threads[3];
  CHECK(pthread_create(&threads[0], NULL, spin, NULL) == 0);
  CHECK(pthread_create(&threads[1], NULL, rest, NULL) == 0);
  CHECK(pthread_create(&threads[2], NULL, come_and_go, NULL) == 0);
  while (atomic_load(&spinner) == 0) usleep(1000);
  for (int i = 0; i < 5; i++) CHECK(pass(minute));

  // A child holds the thread that runs, as if it got no processor.
  int to_child[2], from_child[2];
  CHECK(pipe(to_child) == 0 && pipe(from_child) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    char c;
    if (read(to_child[0], &c, 1) != 1) _exit(1);
    char held = ptrace(PTRACE_SEIZE, atomic_load(&spinner), NULL, NULL) == 0 && ptrace(PTRACE_INTERRUPT, atomic_load(&spinner), NULL, NULL) == 0 &&
                waitpid(atomic_load(&spinner), NULL, __WALL) > 0;
    if (write(from_child[1], &held, 1) != 1 || read(to_child[0], &c, 1) != 1) _exit(1);
    _exit(0); // and lets it go
  }
  prctl(PR_SET_PTRACER, child, 0, 0, 0); // where that is not allowed anyway
  char held = 0;
  CHECK(write(to_child[1], "x", 1) == 1 && read(from_child[0], &held, 1) == 1);
  if (held) CHECK(!pass(100000000));
  CHECK(write(to_child[1], "x", 1) == 1);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(pass(minute));
  atomic_store(&over, true);
  for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  return held ? 0 : 77;
}
