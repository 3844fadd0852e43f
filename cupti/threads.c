// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <dirent.h>
#include <errno.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpufl_deep_internal.h"

// ---- whose they are ----

// A thread is CUPTI's if the function that it began with is in CUPTI's code. glibc keeps that function in what pthread_self points to;
// where is learned from a thread that is made for it, in the first WORDS of it, which are fewer than it has.
enum { WORDS = 2048 / sizeof(uintptr_t) };
static atomic_size_t place; // 0: not known
static _Atomic uintptr_t code, code_end;

static void *look(void *unused) {
#ifdef __GLIBC__
  const uintptr_t *self = (const uintptr_t *)pthread_self();
  for (size_t i = 1; i < WORDS; i++) {
    if (self[i] != (uintptr_t)look) continue;
    atomic_store(&place, i);
    break;
  }
#endif
  return unused;
}

static int find_code(struct dl_phdr_info *object, size_t size, void *function) {
  (void)size;
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr) *p = &object->dlpi_phdr[i];
    uintptr_t begin = object->dlpi_addr + p->p_vaddr, end = begin + p->p_memsz;
    if (p->p_type != PT_LOAD || (p->p_flags & PF_X) == 0 || (uintptr_t)function < begin || (uintptr_t)function >= end) continue;
    atomic_store(&code, begin);
    atomic_store(&code_end, end);
    return 1;
  }
  return 0;
}

void gpufl_threads_learn(void *function) {
  dl_iterate_phdr(find_code, function);
  if (atomic_load(&place) != 0) return;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); // none is for that thread
  pthread_t thread;
  if (pthread_create(&thread, NULL, look, NULL) == 0) pthread_join(thread, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

bool gpufl_thread_is_cuptis(void) {
  size_t at = atomic_load(&place);
  if (at == 0) return false;
  uintptr_t began_with = ((const uintptr_t *)pthread_self())[at];
  return began_with >= atomic_load(&code) && began_with < atomic_load(&code_end);
}

bool gpufl_thread_sleeps(int32_t id, uintptr_t *stack) {
  char path[64], line[256];
  snprintf(path, sizeof path, "/proc/self/task/%d/syscall", (int)id);
  FILE *f = fopen(path, "re");
  if (f == NULL) return false;
  size_t n = fread(line, 1, sizeof line - 1, f);
  fclose(f);
  line[n] = 0;
  // "running", or what it sleeps in and with what, and last its stack pointer and where it goes on (proc(5)).
  char *at = strrchr(line, ' ');
  if (at == NULL) return false;
  *at = 0;
  at = strrchr(line, ' ');
  if (at == NULL) return false;
  *stack = (uintptr_t)strtoull(at, NULL, 16);
  return *stack != 0;
}

// ---- calls that nobody saw begin ----

// Callbacks are told of calls that begin once they are asked for. Those that had begun before are not known, and nothing says
// how long ago their threads looked. So they are awaited by the time that threads have run: whoever has run for
// a while, or sleeps, is out of such a call. By the clock alone a thread that gets no processor would be forgotten.

#define RUN_NS ((int64_t)1000000)
// A thread that sleeps may do so in a call, on a lock, so all are looked at again after a while.
enum { ROUNDS = 2 };

typedef struct {
  pid_t id;
  int64_t ran;
} thread;

// ran is how long a thread of this process has run, in ns; -1 if there is none any more.
static int64_t ran(pid_t id) {
  struct timespec t;
  clockid_t clock = (clockid_t)(~(unsigned)id << 3 | 6); // as the kernel numbers the clocks of threads, in its posix-timers.h
  if (clock_gettime(clock, &t) != 0) return -1;
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// runs says whether a thread has a processor or waits for one, or is stopped; false as well if it has ended.
static bool runs(pid_t id) {
  char path[64], line[256];
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)id);
  FILE *f = fopen(path, "re");
  if (f == NULL) return errno != ENOENT && errno != ESRCH; // that there is no descriptor left says nothing of the thread
  size_t n = fread(line, 1, sizeof line - 1, f);
  fclose(f);
  line[n] = 0;
  const char *state = strrchr(line, ')'); // the name before it may hold anything
  return state != NULL && strlen(state) > 2 && strchr("RTt", state[2]) != NULL;
}

// list has the threads but the calling one that run; NULL if the process may not know of them, and *short_of that it only lacks what that takes.
static thread *list(size_t *n, bool *short_of) {
  *n = 0;
  DIR *tasks = opendir("/proc/self/task");
  *short_of = tasks == NULL && (errno == EMFILE || errno == ENFILE || errno == ENOMEM);
  if (tasks == NULL) return NULL;
  size_t room = 64;
  thread *all = malloc(room * sizeof *all);
  pid_t self = (pid_t)gpufl_thread();
  struct dirent *e;
  while (all != NULL && (e = readdir(tasks)) != NULL) {
    pid_t id = (pid_t)atoi(e->d_name);
    if (id <= 0 || id == self) continue;
    if (*n == room) {
      thread *more = realloc(all, 2 * room * sizeof *all);
      if (more == NULL) {
        free(all);
        all = NULL;
        break;
      }
      all = more;
      room *= 2;
    }
    int64_t so_far = ran(id);
    if (so_far >= 0 && runs(id)) all[(*n)++] = (thread){id, so_far};
  }
  closedir(tasks);
  return all;
}

bool gpufl_threads_pass(int64_t until) {
  for (int round = 0; round < ROUNDS; round++) {
    size_t n = 0;
    bool short_of = false;
    thread *all = list(&n, &short_of);
    gpufl_nap(RUN_NS);
    while (short_of && gpufl_monotonic() < until) {
      gpufl_nap(20 * RUN_NS);
      all = list(&n, &short_of);
    }
    if (short_of) return false;
    if (all == NULL) {
      gpufl_nap(20 * RUN_NS); // no better than a guess
      continue;
    }
    for (;;) {
      size_t left = 0;
      for (size_t i = 0; i < n; i++) {
        int64_t by_now = ran(all[i].id);
        if (by_now >= 0 && by_now - all[i].ran < RUN_NS && runs(all[i].id)) all[left++] = all[i];
      }
      n = left;
      if (n == 0 || gpufl_monotonic() >= until) break;
      gpufl_nap(500000);
    }
    free(all);
    if (n > 0) return false;
  }
  return true;
}
