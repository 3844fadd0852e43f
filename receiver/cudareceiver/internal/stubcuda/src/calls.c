/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls the driver library by commands, one on each line of standard input. It answers each with "ok"
 * or with the error:
 *
 *     open PATH                        dlopen the driver; before it nothing else works
 *     load PATH                        dlopen another library, whose functions are found as well
 *     threads N                        run the following calls on N threads at once, each all of them
 *     function SLOT NAME               cuModuleGetFunction; SLOT 0 to 63 keeps the handle
 *     kernel SLOT NAME                 cuLibraryGetKernel
 *     launch COUNT SLOT GRID BLOCK     cuLaunchKernel, stream 7
 *     launchex COUNT SLOT GRID BLOCK   cuLaunchKernelEx
 *     cooperative COUNT SLOT GRID BLOCK
 *     copy FUNCTION COUNT BYTES        e.g. copy cuMemcpyHtoDAsync_v2 10 4096; stream 7
 *     set FUNCTION COUNT ELEMENTS
 *     alloc FUNCTION COUNT BYTES       keeps the addresses, up to 4096 of them
 *     free FUNCTION                    frees all that were kept
 *     wait FUNCTION COUNT
 *     capture COUNT SLOT               COUNT launches on stream 7 between begin and end, then instantiate
 *     graph COUNT                      launch the instantiated graph
 *     call COUNT FUNCTION ARGUMENT...  up to 12 arguments: a number, or &N for the address of cell N, or @N for what is
 *                                      in it; COUNT times on this thread
 *     put N NUMBER...                  writes numbers of 64 bits to cell N and those after it
 *     fork COMMAND...                  run one command in a child and wait for it
 *     user UID                         setresuid
 *     namespace [MAP]                  unshare a user namespace and write its map of user ids, or let another process do that
 *     container                        unshare the PID namespace of children
 * Attacks on an observer's tables; "kernels 20000" is by one process, "children 100 kernels 500" by many:
 *
 *     kernels COUNT                    COUNT launches, each of another kernel
 *     names COUNT                      cuModuleGetFunction, COUNT times
 *     events COUNT                     cuEventRecord of COUNT events, in a capture that goes on
 *     park COUNT VERB                  COUNT threads that stay: after a launch (VERB launch), or in cuCtxSynchronize (VERB
 *                                      wait), which with STUB_BLOCK in the environment does not return
 *     children COUNT COMMAND...        COUNT children, each of which runs the command and stays until this process ends
 *     execthread                       exec, from another thread than the first, after a launch
 *     sleep MS                         does nothing
 *     leave CODE                       _exit
 *     exec [PATH]                      begin again as another program, this one without PATH, which answers
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned long long address;
enum { SLOTS = 64, KEPT = 4096, MAX_THREADS = 64 };

static void *library, *others[4];
static int num_others;
static void *slots[SLOTS];
static int threads = 1;
static address kept[KEPT];
static int num_kept;
static void *graph, *executable;
static void *const stream = (void *)7;

typedef struct {
  unsigned grid[3], block[3], shared;
  void *stream, *attributes;
  unsigned num_attributes;
} launch_config;

typedef struct {
  char verb[32], function[256];
  long count, a, b, c;
} command;

/* What functions are given to write to, and structures that are made by hand. */
enum { CELLS = 256, ARGUMENTS = 12 };
static unsigned long long cells[CELLS];

static void *find(const char *name) {
  void *f = library == NULL ? NULL : dlsym(library, name);
  for (int i = 0; f == NULL && i < num_others; i++) f = dlsym(others[i], name);
  if (f == NULL) fprintf(stderr, "calls: no %s\n", name);
  return f;
}

static bool is(const command *c, const char *verb) { return strcmp(c->verb, verb) == 0; }

/* repeat runs the part of a command that each thread does; it returns the first result that is not 0, or
 * -1 where a function is missing. */
static int repeat(const command *c) {
  void *f = find(c->function);
  int result = 0;
  if (f == NULL) return -1;
  for (long i = 0; i < c->count; i++) {
    int r = 0;
    if (is(c, "launch") || is(c, "capture")) {
      r = ((int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))f)(
          slots[c->a], (unsigned)c->b, 1, 1, (unsigned)c->c, 1, 1, 0, stream, NULL, NULL);
    } else if (is(c, "cooperative")) {
      r = ((int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **))f)(
          slots[c->a], (unsigned)c->b, 1, 1, (unsigned)c->c, 1, 1, 0, stream, NULL);
    } else if (is(c, "launchex")) {
      launch_config config = {.grid = {(unsigned)c->b, 1, 1}, .block = {(unsigned)c->c, 1, 1}, .stream = stream};
      r = ((int (*)(const launch_config *, void *, void **, void **))f)(&config, slots[c->a], NULL, NULL);
    } else if (is(c, "copy")) {
      if (strncmp(c->function, "cuMemcpyPeer", 12) == 0) {
        r = ((int (*)(address, void *, address, void *, size_t, void *))f)(0x2000, NULL, 0x1000, NULL, (size_t)c->a, stream);
      } else {
        r = ((int (*)(address, address, size_t, void *))f)(0x2000, 0x1000, (size_t)c->a, stream);
      }
    } else if (is(c, "set")) {
      r = ((int (*)(address, unsigned, size_t, void *))f)(0x1000, 1, (size_t)c->a, stream);
    } else if (is(c, "wait")) {
      r = ((int (*)(void *))f)(stream);
    } else if (is(c, "graph")) {
      r = ((int (*)(void *, void *))f)(executable, stream);
    }
    if (result == 0) result = r;
  }
  return result;
}

static void *on_thread(void *c) { return (void *)(intptr_t)repeat(c); }

static int on_threads(command *c) {
  pthread_t t[MAX_THREADS];
  int result = 0;
  if (threads == 1) return repeat(c);
  for (int i = 0; i < threads; i++) {
    if (pthread_create(&t[i], NULL, on_thread, c) != 0) return -2;
  }
  for (int i = 0; i < threads; i++) {
    void *r;
    pthread_join(t[i], &r);
    if (result == 0) result = (int)(intptr_t)r;
  }
  return result;
}

/* with sets a command's function and numbers. */
static int with(command *c, const char *function, long a, long b, long block) {
  snprintf(c->function, sizeof c->function, "%s", function);
  c->a = a, c->b = b, c->c = block;
  return on_threads(c);
}

static int run(const char *line);

static int resolve(const char *function, long slot, const char *name) {
  int (*f)(void **, void *, const char *);
  if (slot < 0 || slot >= SLOTS || (*(void **)&f = find(function)) == NULL) return -1;
  return f(&slots[slot], (void *)1, name);
}

static int allocate(const char *function, long count, long bytes) {
  int (*f)(address *, size_t, void *);
  if ((*(void **)&f = find(function)) == NULL) return -1;
  for (long i = 0; i < count; i++) {
    address p = 0;
    int r = f(&p, (size_t)bytes, NULL);
    if (r != 0) return r;
    if (num_kept < KEPT) kept[num_kept++] = p;
  }
  return 0;
}

static int release(const char *function) {
  int (*f)(address, void *);
  if ((*(void **)&f = find(function)) == NULL) return -1;
  while (num_kept > 0) {
    int r = f(kept[--num_kept], NULL);
    if (r != 0) return r;
  }
  return 0;
}

static int capture(command *c, long slot) {
  int (*begin)(void *, int), (*end)(void *, void **), (*instantiate)(void **, void *, unsigned long long);
  *(void **)&begin = find("cuStreamBeginCapture_v2");
  *(void **)&end = find("cuStreamEndCapture");
  *(void **)&instantiate = find("cuGraphInstantiateWithFlags");
  if (begin == NULL || end == NULL || instantiate == NULL) return -1;
  int r = begin(stream, 0);
  if (r == 0) {
    snprintf(c->function, sizeof c->function, "cuLaunchKernel");
    c->a = slot, c->b = 1, c->c = 32;
    r = repeat(c);
  }
  if (r == 0) r = end(stream, &graph);
  if (r == 0) r = instantiate(&executable, graph, 0);
  return r;
}

/* number reads an argument: 12, 0x12, &3, @3. */
static bool number(const char *text, unsigned long long *v) {
  char *end;
  bool cell = *text == '&' || *text == '@';
  unsigned long long n = strtoull(cell ? text + 1 : text, &end, 0);
  if (*end != 0 || end == text || (cell && n >= CELLS)) return false;
  *v = *text == '&' ? (unsigned long long)(uintptr_t)&cells[n] : *text == '@' ? cells[n] : n;
  return true;
}

/* call passes every argument as 64 bits, which is how integers and pointers are passed. */
static int call(char *text) {
  typedef unsigned long long u;
  u a[ARGUMENTS + 1] = {0};
  char *rest, *count = strtok_r(text, " ", &rest), *name = strtok_r(NULL, " ", &rest), *t;
  int n = 0, result = 0;
  int (*f)(u, u, u, u, u, u, u, u, u, u, u, u);
  if (name == NULL || (*(void **)&f = find(name)) == NULL) return -1;
  while ((t = strtok_r(NULL, " ", &rest)) != NULL) {
    if (n == ARGUMENTS || !number(t, &a[n++])) return -1;
  }
  for (long i = atol(count); i > 0; i--) {
    int r = f(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
    if (result == 0) result = r;
  }
  return result;
}

static int put(char *text) {
  char *rest, *t = strtok_r(text, " ", &rest);
  long at = t == NULL ? CELLS : atol(t);
  for (; (t = strtok_r(NULL, " ", &rest)) != NULL; at++) {
    unsigned long long v;
    if (at < 0 || at >= CELLS || !number(t, &v)) return -1;
    cells[at] = v;
  }
  return 0;
}

static int in_child(const char *line) {
  fflush(NULL);
  pid_t child = fork();
  if (child < 0) return -2;
  if (child == 0) _exit(run(line) == 0 ? 0 : 1);
  int status;
  if (waitpid(child, &status, 0) != child) return -2;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -3;
}

static int new_namespace(const char *ids) {
  if (unshare(CLONE_NEWUSER) != 0) return -1;
  if (*ids == 0) return 0;
  prctl(PR_SET_DUMPABLE, 1); /* or the file is not this user's */
  FILE *f = fopen("/proc/self/uid_map", "w");
  if (f == NULL) return -1;
  fputs(ids + 1, f);
  return fclose(f) == 0 ? 0 : -1;
}

static int launch_one(void *kernel) {
  int (*f)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
  if ((*(void **)&f = find("cuLaunchKernel")) == NULL) return -1;
  return f(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
}

static int kernels(long count) {
  int result = 0;
  for (long i = 0; i < count && result == 0; i++) result = launch_one((void *)(uintptr_t)(0x10000000 + 16 * i));
  return result;
}

static int names(long count) {
  char name[64];
  int result = 0;
  for (long i = 0; i < count && result == 0; i++) {
    snprintf(name, sizeof name, "kernel_%ld", i);
    result = resolve("cuModuleGetFunction", SLOTS - 1, name);
  }
  return result;
}

static int events(long count) {
  int (*begin)(void *, int), (*record)(void *, void *);
  *(void **)&begin = find("cuStreamBeginCapture_v2");
  *(void **)&record = find("cuEventRecord");
  if (begin == NULL || record == NULL) return -1;
  int result = begin(stream, 0);
  for (long i = 0; i < count && result == 0; i++) result = record((void *)(uintptr_t)(0x20000000 + 16 * i), stream);
  return result;
}

static atomic_long parked;

static void *stay(void *waits) {
  int (*wait_)(void);
  *(void **)&wait_ = find("cuCtxSynchronize");
  if (waits == NULL) launch_one(slots[0]);
  parked++;
  if (waits != NULL && wait_ != NULL) wait_();
  while (true) pause();
  return NULL;
}

static int park(long count, const char *verb) {
  void *waits = strcmp(verb, "wait") == 0 ? &parked : NULL;
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 64 << 10);
  for (long i = 0; i < count; i++) {
    pthread_t t;
    if (pthread_create(&t, &small, stay, waits) != 0) return -2;
  }
  while (atomic_load(&parked) < count) usleep(1000);
  return 0;
}

/* children have run their command when this returns. */
static int children(long count, const char *line) {
  int done[2];
  if (pipe(done) != 0) return -2;
  fflush(NULL);
  for (long i = 0; i < count; i++) {
    pid_t child = fork();
    if (child < 0) return -2;
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      char ok = run(line) == 0;
      if (write(done[1], &ok, 1) != 1) _exit(1);
      for (;;) pause();
    }
    char ok = 0;
    if (read(done[0], &ok, 1) != 1 || !ok) return -3;
  }
  close(done[0]);
  close(done[1]);
  return 0;
}

static void *replace(void *unused) {
  launch_one(slots[0]);
  execl("/proc/self/exe", "calls", "again", (char *)NULL);
  return unused;
}

static int run(const char *line) {
  command c = {0};
  char text[256];
  long a, b, block;
  if (sscanf(line, "open %255[^\n]", text) == 1) {
    library = dlopen(text, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fprintf(stderr, "calls: %s\n", dlerror());
    return library == NULL ? -1 : 0;
  }
  if (sscanf(line, "load %255[^\n]", text) == 1) {
    if (num_others == (int)(sizeof others / sizeof *others)) return -1;
    others[num_others] = dlopen(text, RTLD_NOW | RTLD_LOCAL);
    if (others[num_others] == NULL) fprintf(stderr, "calls: %s\n", dlerror());
    return others[num_others++] == NULL ? -1 : 0;
  }
  if (sscanf(line, "call %255[^\n]", text) == 1) return call(text);
  if (sscanf(line, "put %255[^\n]", text) == 1) return put(text);
  if (sscanf(line, "threads %ld", &a) == 1) {
    if (a < 1 || a > MAX_THREADS) return -1;
    threads = (int)a;
    return 0;
  }
  unsigned long ms;
  if (sscanf(line, "sleep %lu", &ms) == 1) return usleep(ms * 1000);
  if (strcmp(line, "container") == 0) return unshare(CLONE_NEWPID) == 0 ? 0 : -1;
  if (strncmp(line, "namespace", 9) == 0) return new_namespace(line + 9);
  if (sscanf(line, "user %ld", &a) == 1) return setresuid((uid_t)a, (uid_t)a, (uid_t)a) == 0 ? 0 : -1;
  if (sscanf(line, "kernels %ld", &a) == 1) return kernels(a);
  if (sscanf(line, "names %ld", &a) == 1) return names(a);
  if (sscanf(line, "events %ld", &a) == 1) return events(a);
  if (sscanf(line, "park %ld %15s", &a, text) == 2) return park(a, text);
  if (sscanf(line, "children %ld %255[^\n]", &a, text) == 2) return children(a, text);
  if (strcmp(line, "execthread") == 0) {
    pthread_t t;
    if (pthread_create(&t, NULL, replace, NULL) != 0) return -2;
    for (;;) pause();
  }
  if (strncmp(line, "fork ", 5) == 0) return in_child(line + 5);
  if (sscanf(line, "leave %ld", &a) == 1) _exit((int)a);
  if (sscanf(line, "exec %255[^\n]", text) == 1) return execl(text, text, "again", (char *)NULL);
  if (strcmp(line, "exec") == 0) return execl("/proc/self/exe", "calls", "again", (char *)NULL);
  if (sscanf(line, "function %ld %255s", &a, text) == 2) return resolve("cuModuleGetFunction", a, text);
  if (sscanf(line, "kernel %ld %255s", &a, text) == 2) return resolve("cuLibraryGetKernel", a, text);
  if (sscanf(line, "alloc %255s %ld %ld", text, &a, &b) == 3) return allocate(text, a, b);
  if (sscanf(line, "free %255s", text) == 1) return release(text);
  if (sscanf(line, "%31s", c.verb) != 1) return -1;
  if ((is(&c, "launch") || is(&c, "launchex") || is(&c, "cooperative")) &&
      sscanf(line, "%*s %ld %ld %ld %ld", &c.count, &a, &b, &block) == 4 && a >= 0 && a < SLOTS) {
    return with(&c, is(&c, "launch") ? "cuLaunchKernel" : is(&c, "launchex") ? "cuLaunchKernelEx" : "cuLaunchCooperativeKernel", a, b, block);
  }
  if ((is(&c, "copy") || is(&c, "set")) && sscanf(line, "%*s %255s %ld %ld", text, &c.count, &a) == 3) return with(&c, text, a, 0, 0);
  if (is(&c, "wait") && sscanf(line, "%*s %255s %ld", text, &c.count) == 2) return with(&c, text, 0, 0, 0);
  if (is(&c, "capture") && sscanf(line, "%*s %ld %ld", &c.count, &a) == 2 && a >= 0 && a < SLOTS) return capture(&c, a);
  if (is(&c, "graph") && sscanf(line, "%*s %ld", &c.count) == 1) return with(&c, "cuGraphLaunch", 0, 0, 0);
  return -1;
}

int main(int argc, char **argv) {
  char line[512];
  (void)argv;
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc > 1) puts("ok"); /* to exec */
  while (fgets(line, sizeof line, stdin) != NULL) {
    line[strcspn(line, "\n")] = 0;
    int result = run(line);
    if (result == 0) {
      puts("ok");
    } else {
      printf("%d\n", result);
    }
  }
  return 0;
}
