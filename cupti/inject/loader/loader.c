/* SPDX-License-Identifier: Apache-2.0
 *
 * libgpuflight.so: the library that CUDA_INJECTION64_PATH names. It contains no Go. The Go runtime
 * ends the process where it cannot create a thread, open a descriptor or reserve memory, and it
 * starts as soon as its library is loaded. So this library first acquires what the recorder needs,
 * releases it, and only then loads libgpuflight-recorder.so from its own folder. Otherwise it
 * writes one line and the program runs as without it. A program that exhausts its limits later is
 * not protected. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../../gpufl_context.h"

#define EXPORTED __attribute__((visibility("default")))

/* What recording needs, measured without this check in a C host that launches kernels on 2 CPUs. It
 * recorded all kinds of records to a file, and deep windows were allowed. It needed 6 threads
 * besides the host's, 6 free descriptors, 1.7 GiB of address space and 192 MiB of data memory.
 * Below that, the Go runtime ended the host. test/inject runs such a host at each limit. */
enum {
  /* Four times the 6 measured: the Go runtime adds threads while others are in system calls, and
   * starts with more where there are more CPUs. */
  NEED_THREADS = 24,
  /* The recorder holds 6 and a few connections. The rest is the program's: what CUDA opens after
   * this call. On an H200 (driver 580) a program that launches kernels needs 37 itself, and failed
   * with 8 fewer than both need together. */
  NEED_FILES = 64,
  STACK = 256 << 10,
};
/* Between 0.9 and 1.7 GiB recording failed at some limits and worked at others. Each of
 * NEED_THREADS threads may reserve a stack of 8 MiB and an arena of malloc of 64 MiB, together 1.7
 * GiB more. The rest is margin. A CUDA driver itself reserves more. */
static const size_t need_space = (size_t)4096 << 20;
/* The part of it that is writable, which RLIMIT_DATA bounds: 2.7 times the 192 MiB measured. */
static const size_t need_data = (size_t)512 << 20;

/* Writes one line to stderr with one system call and without memory from the heap. A path in it may
 * contain line breaks, which become question marks. */
__attribute__((format(printf, 1, 2))) static void gpufl_say(const char *format, ...) {
  char line[512];
  va_list args;
  int n;

  va_start(args, format);
  n = vsnprintf(line, sizeof line - 1, format, args);
  va_end(args);
  if (n < 0) return;
  if ((size_t)n > sizeof line - 2) n = sizeof line - 2;
  for (int i = 0; i < n; i++)
    if ((unsigned char)line[i] < ' ' || line[i] == 127) line[i] = '?';
  line[n++] = '\n';
  if (write(STDERR_FILENO, line, (size_t)n) < 0) return;
}

struct probe {
  pthread_mutex_t hold;
  pthread_t threads[NEED_THREADS];
  atomic_int ids[NEED_THREADS];
  atomic_int next;
};

static void *gpufl_wait(void *arg) {
  struct probe *p = arg;

  atomic_store(&p->ids[atomic_fetch_add(&p->next, 1)], (int)syscall(SYS_gettid));
  pthread_mutex_lock(&p->hold);
  pthread_mutex_unlock(&p->hold);
  return NULL;
}

/* Creates the threads, ends them, and waits until the kernel counts them no longer. Returns how
 * many there were at once. */
static int gpufl_threads(void) {
  static struct probe p = {.hold = PTHREAD_MUTEX_INITIALIZER};
  pthread_attr_t attributes;
  sigset_t all, before;
  int n = 0;

  if (pthread_attr_init(&attributes) != 0) return 0;
  pthread_attr_setstacksize(&attributes, STACK);
  sigfillset(&all);
  if (pthread_sigmask(SIG_BLOCK, &all, &before) != 0) return 0;
  pthread_mutex_lock(&p.hold);
  while (n < NEED_THREADS && pthread_create(&p.threads[n], &attributes, gpufl_wait, &p) == 0) n++;
  pthread_mutex_unlock(&p.hold);
  for (int i = 0; i < n; i++) pthread_join(p.threads[i], NULL);
  /* A joined thread counts for a moment longer. */
  for (int i = 0; i < n; i++)
    for (int tries = 0; tries < 10000 && syscall(SYS_tgkill, getpid(), atomic_load(&p.ids[i]), 0) == 0; tries++)
      sched_yield();
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return n;
}

static int gpufl_files(void) {
  int files[NEED_FILES], n = 0;

  while (n < NEED_FILES && (files[n] = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0) n++;
  for (int i = 0; i < n; i++) close(files[i]);
  return n;
}

static bool gpufl_space(size_t size, int protection) {
  void *space = mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

  if (space == MAP_FAILED) return false;
  munmap(space, size);
  return true;
}

/* Writes what is short, or returns true. */
static bool gpufl_room(void) {
  int n;

  if ((n = gpufl_files()) < NEED_FILES)
    gpufl_say("gpuflight: nothing is recorded: the process can open %d more files and recording needs %d: raise ulimit -n", n,
              NEED_FILES);
  else if (!gpufl_space(need_space, PROT_NONE))
    gpufl_say("gpuflight: nothing is recorded: recording needs %zu MiB of free address space: raise ulimit -v", need_space >> 20);
  else if (!gpufl_space(need_data, PROT_READ | PROT_WRITE))
    gpufl_say("gpuflight: nothing is recorded: recording needs %zu MiB of free data memory: raise ulimit -d", need_data >> 20);
  else if ((n = gpufl_threads()) < NEED_THREADS)
    gpufl_say("gpuflight: nothing is recorded: the process can create %d more threads and recording needs %d: "
              "raise ulimit -u or the cgroup's pids.max", n, NEED_THREADS);
  else
    return true;
  return false;
}

static pthread_once_t gpufl_once = PTHREAD_ONCE_INIT;
static _Atomic(void *) gpufl_recorder;

/* Loads the recorder, or says why not. */
static void gpufl_load(void) {
  static const char name[] = "libgpuflight-recorder.so";
  char path[4096];
  const char *slash;
  Dl_info self;

  if (!gpufl_room()) return;
  if (dladdr(&gpufl_once, &self) == 0 || (slash = strrchr(self.dli_fname, '/')) == NULL ||
      (size_t)(slash - self.dli_fname) + sizeof name + 1 > sizeof path) {
    gpufl_say("gpuflight: nothing is recorded: the folder of libgpuflight.so is unknown");
    return;
  }
  snprintf(path, sizeof path, "%.*s/%s", (int)(slash - self.dli_fname), self.dli_fname, name);
  gpufl_recorder = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (gpufl_recorder == NULL) gpufl_say("gpuflight: nothing is recorded: cannot load the recorder: %s", dlerror());
}

/* Returns a function of the recorder, or NULL where the recorder is not loaded. */
static void *gpufl_function(const char *name) {
  pthread_once(&gpufl_once, gpufl_load);
  return gpufl_recorder != NULL ? dlsym(gpufl_recorder, name) : NULL;
}

/* Scopes of gpufl_context.h. A program may begin scopes before its first cuInit loads the recorder:
 * often that call is inside of one. These are kept here and passed on when recording starts. A
 * scope that ends earlier had no work on a GPU. */
enum { MAX_EARLY = 4096, MAX_EARLY_DEPTH = 64 };

struct early {
  struct early *next; /* the scope that began before */
  gpufl_context_scope scope;
  uint8_t trace[16], span[8];
  char name[];
};

static struct {
  pthread_mutex_t lock; /* Protects newest, last_id and count. */
  struct early *newest;
  uint64_t last_id; /* the greatest that was given here */
  unsigned count;

  atomic_bool started; /* The driver has called. The functions are those of the recorder, or NULL. */
  uint64_t (*begin)(const gpufl_context_scope *);
  void (*end)(uint64_t);
  int (*push)(uint64_t, int), (*pop)(uint64_t);
  uint64_t (*top)(void);
} gpufl_scopes = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The scopes that this thread has pushed before recording. It pushes them again at its next call. */
static __thread struct {
  uint64_t ids[MAX_EARLY_DEPTH];
  int depth;
} gpufl_pushed;

static void gpufl_lock(void) { pthread_mutex_lock(&gpufl_scopes.lock); }
static void gpufl_unlock(void) { pthread_mutex_unlock(&gpufl_scopes.lock); }

/* A thread that does not exist in a forked child must not hold the lock there. */
__attribute__((constructor)) static void gpufl_watch_forks(void) {
  pthread_atfork(gpufl_lock, gpufl_unlock, gpufl_unlock);
}

static bool gpufl_is_started(void) {
  if (!atomic_load_explicit(&gpufl_scopes.started, memory_order_acquire)) return false;
  for (int i = 0; i < gpufl_pushed.depth; i++)
    if (gpufl_scopes.push != NULL) gpufl_scopes.push(gpufl_pushed.ids[i], 0);
  gpufl_pushed.depth = 0;
  return true;
}

/* Passes on the scopes that are open, the outermost first. The caller holds the lock. */
static void gpufl_pass_on(struct early *e) {
  if (e == NULL) return;
  gpufl_pass_on(e->next);
  if (gpufl_scopes.begin != NULL) gpufl_scopes.begin(&e->scope);
  free(e);
}

/* Recording has started, or there is none. */
static void gpufl_start_scopes(void) {
  uint64_t (*id)(uint64_t);

  gpufl_lock();
  if (!atomic_load(&gpufl_scopes.started)) {
    *(void **)&id = gpufl_function("gpufl_recorder_id");
    *(void **)&gpufl_scopes.begin = gpufl_function("gpufl_recorder_begin");
    *(void **)&gpufl_scopes.end = gpufl_function("gpufl_recorder_end");
    *(void **)&gpufl_scopes.push = gpufl_function("gpufl_recorder_push");
    *(void **)&gpufl_scopes.pop = gpufl_function("gpufl_recorder_pop");
    *(void **)&gpufl_scopes.top = gpufl_function("gpufl_recorder_top");
    if (id != NULL) id(gpufl_scopes.last_id); /* the recorder's next ids are greater */
    gpufl_pass_on(gpufl_scopes.newest);
    gpufl_scopes.newest = NULL;
    gpufl_scopes.count = 0;
    atomic_store(&gpufl_scopes.started, true);
  }
  gpufl_unlock();
  gpufl_is_started();
}

static uint64_t gpufl_begin_early(const gpufl_context_scope *scope) {
  uint64_t (*id)(uint64_t) = NULL, result = 0;
  size_t length = strlen(scope->name) + 1;

  gpufl_lock();
  if (atomic_load(&gpufl_scopes.started)) {
    gpufl_unlock();
    return gpufl_scopes.begin != NULL ? gpufl_scopes.begin(scope) : 0;
  }
  struct early *e = gpufl_scopes.count < MAX_EARLY ? malloc(sizeof *e + length) : NULL;
  if (e != NULL) {
    /* NVTX may have loaded the recorder already. */
    if (gpufl_recorder != NULL) *(void **)&id = dlsym(gpufl_recorder, "gpufl_recorder_id");
    result = id != NULL ? id(gpufl_scopes.last_id) : gpufl_scopes.last_id + 1;
    gpufl_scopes.last_id = result;
    e->scope = *scope;
    e->scope.id = result;
    if (gpufl_pushed.depth > 0 && gpufl_pushed.ids[gpufl_pushed.depth - 1] > scope->parent)
      e->scope.parent = gpufl_pushed.ids[gpufl_pushed.depth - 1];
    e->scope.name = memcpy(e->name, scope->name, length);
    if (scope->trace != NULL) {
      e->scope.trace = memcpy(e->trace, scope->trace, sizeof e->trace);
      e->scope.span = memcpy(e->span, scope->span, sizeof e->span);
    }
    e->next = gpufl_scopes.newest;
    gpufl_scopes.newest = e;
    gpufl_scopes.count++;
  }
  gpufl_unlock();
  return result;
}

static void gpufl_end_early(uint64_t id) {
  gpufl_lock();
  if (atomic_load(&gpufl_scopes.started)) {
    gpufl_unlock();
    if (gpufl_scopes.end != NULL) gpufl_scopes.end(id);
    return;
  }
  for (struct early **at = &gpufl_scopes.newest; *at != NULL; at = &(*at)->next) {
    struct early *e = *at;

    if (e->scope.id != id) continue;
    *at = e->next;
    gpufl_scopes.count--;
    free(e);
    break;
  }
  gpufl_unlock();
}

/* The functions for programs. Any thread may call them. They ignore the id 0.
 *
 * gpufl_context_begin begins a scope with a name, in UTF-8. With trace (16 bytes) and span (8) it is a
 * span of the application; else the recorder makes a span. It returns the scope's id, or 0 if nothing
 * is recorded. For the other arguments and functions see gpufl_context.h. */
EXPORTED uint64_t gpufl_context_begin(const char *name, uint64_t parent, const uint8_t *trace,
                                      const uint8_t *span, int sampled) {
  struct timespec now;

  clock_gettime(CLOCK_REALTIME, &now);
  gpufl_context_scope scope = {.parent = parent, .time_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec,
                               .name = name, .trace = trace, .span = span, .sampled = sampled};
  if (!gpufl_is_started()) return gpufl_begin_early(&scope);
  return gpufl_scopes.begin != NULL ? gpufl_scopes.begin(&scope) : 0;
}

EXPORTED void gpufl_context_end(uint64_t id) {
  if (id == 0) return;
  if (!gpufl_is_started())
    gpufl_end_early(id);
  else if (gpufl_scopes.end != NULL)
    gpufl_scopes.end(id);
}

EXPORTED uint64_t gpufl_context_top(void) {
  if (gpufl_is_started()) return gpufl_scopes.top != NULL ? gpufl_scopes.top() : 0;
  return gpufl_pushed.depth > 0 ? gpufl_pushed.ids[gpufl_pushed.depth - 1] : 0;
}

EXPORTED int gpufl_context_push(uint64_t id, int outermost) {
  if (id == 0) return 0;
  if (gpufl_is_started()) return gpufl_scopes.push != NULL ? gpufl_scopes.push(id, outermost) : 0;
  if (gpufl_pushed.depth == MAX_EARLY_DEPTH || (outermost && gpufl_context_top() > id)) return 0;
  gpufl_pushed.ids[gpufl_pushed.depth++] = id;
  return 1;
}

EXPORTED int gpufl_context_pop(uint64_t id) {
  if (id == 0) return 0;
  if (gpufl_is_started()) return gpufl_scopes.pop != NULL ? gpufl_scopes.pop(id) : 0;
  for (int i = gpufl_pushed.depth - 1; i >= 0; i--) {
    if (gpufl_pushed.ids[i] != id) continue;
    bool on_top = i == --gpufl_pushed.depth;
    memmove(&gpufl_pushed.ids[i], &gpufl_pushed.ids[i + 1], (size_t)(gpufl_pushed.depth - i) * sizeof id);
    return on_top;
  }
  return 0;
}

/* InitializeInjection is called by the driver from within the first cuInit of the process. */
EXPORTED int InitializeInjection(void) {
  const int saved = errno;
  int (*start)(void);

  *(void **)&start = gpufl_function("InitializeInjection");
  if (start != NULL) start();
  gpufl_start_scopes();
  errno = saved;
  return 1;
}

/* InitializeInjectionNvtx2 is called by NVTX, once for each library of the program that contains
 * NVTX. 0 makes NVTX go on without an injection. It can come before the driver's call. */
EXPORTED int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t id)) {
  const int saved = errno;
  int (*start)(const void *(*)(uint32_t)), result;

  *(void **)&start = gpufl_function("InitializeInjectionNvtx2");
  result = start != NULL ? start(export_table) : 0;
  errno = saved;
  return result;
}

/* InitializeInjectionNvtxExtension is called by NVTX for each extension that a library of the program
 * uses. */
EXPORTED int InitializeInjectionNvtxExtension(void *extension) {
  const int saved = errno;
  int (*start)(void *), result;

  *(void **)&start = gpufl_function("InitializeInjectionNvtxExtension");
  result = start != NULL ? start(extension) : 0;
  errno = saved;
  return result;
}

/* gpufl_injected says whether the recorder has started in this process: for tests of the built
 * library. */
EXPORTED int gpufl_injected(void) {
  int (*injected)(void);

  if (gpufl_recorder == NULL) return 0;
  *(void **)&injected = dlsym(gpufl_recorder, "gpufl_injected");
  return injected != NULL && injected();
}
