// SPDX-License-Identifier: Apache-2.0
//
// A library for LD_PRELOAD: does CUPTI, or do we, write where it is not allowed? What libcupti, libnvperf and libgpuflight allocate lies in a place of its own
// and is followed by bytes that nobody may write; what is freed of it is kept for a while, in which nobody may. Where one was written it is said which
// piece that was, who had asked for it and freed it, and what is there now, and the process is ended by SIGABRT. All else has malloc. GUARD=NAME,NAME
// means other libraries, or the program, by how the names of their files begin.
//
//	test/gpu/build --programs bin
//	LD_PRELOAD=bin/guard.so PROGRAM          # with bin/crash.so before it the stack can be read as well

#include <dlfcn.h>
#include <execinfo.h>
#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "say.h"

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);
extern void *__libc_realloc(void *, size_t);

enum { FRAMES = 12, BEHIND = 64, KEPT = 1 << 16, LARGEST_KEPT = 16 << 10, SMALLEST = 9, CLASSES = 36 };
#define PLACE ((size_t)64 << 30)
#define GUARD 0xA5
#define FREED 0xDB
#define LIVE_MARK 0x6c697665706965ul
#define FREED_MARK 0x66726565706965ul

// What stands before a piece.
typedef struct {
  void *whole; // the block, of 1 << class bytes
  size_t size;
  uint64_t class;
  void *by[FRAMES], *freed_by[FRAMES];
  uint64_t mark;
} head;
_Static_assert(sizeof(head) % 16 == 0, "a piece is aligned like malloc's");

static head *kept[KEPT];
static unsigned next_kept;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *place, *next_block;
static void *blocks[CLASSES]; // free, by class; each begins with the next
// As the loader finds it at the start: else the first use after a library was loaded could ask for memory, which is what is counted here.
static __thread __attribute__((tls_model("initial-exec"))) bool inside;

// The code of the libraries that are meant.
enum { MOST_MEANT = 16 };
static struct {
  uintptr_t begin, end;
} meant[MOST_MEANT];
static int num_meant;

// is_named: the file's name begins with one of those in GUARD.
static bool is_named(const char *file) {
  const char *names = getenv("GUARD");
  if (names == NULL) names = "libcupti,libnvperf,libgpuflight";
  while (file != NULL && *names != 0) {
    size_t length = strcspn(names, ",");
    if (length > 0 && strncmp(file + 1, names, length) == 0) return true;
    names += length + (names[length] == ',');
  }
  return false;
}

static void learn(void) {
  inside = true;
  FILE *f = fopen("/proc/self/maps", "r");
  char line[512];
  int n = 0;
  while (f != NULL && n < MOST_MEANT && fgets(line, sizeof line, f) != NULL) {
    unsigned long begin, end;
    char may[8];
    if (sscanf(line, "%lx-%lx %7s", &begin, &end, may) != 3 || may[2] != 'x') continue;
    if (!is_named(strrchr(line, '/'))) continue;
    meant[n].begin = begin, meant[n++].end = end;
  }
  if (f != NULL) fclose(f);
  __atomic_store_n(&num_meant, n, __ATOMIC_RELEASE);
  inside = false;
}

static bool is_meant(void *caller) {
  if (inside) return false;
  for (int i = 0, n = __atomic_load_n(&num_meant, __ATOMIC_ACQUIRE); i < n; i++) {
    if ((uintptr_t)caller >= meant[i].begin && (uintptr_t)caller < meant[i].end) return true;
  }
  return false;
}

// ours: at lies in the place of pieces that are guarded.
static bool ours(const void *at) { return place != NULL && (const char *)at >= place && (const char *)at < place + PLACE; }

static void callers(void **frames) {
  memset(frames, 0, FRAMES * sizeof *frames);
  inside = true;
  backtrace(frames, FRAMES);
  inside = false;
}

static void say_frames(const char *what, void *const *frames) {
  say("guard.so: %s", what);
  for (int i = 0; i < FRAMES && frames[i] != NULL; i++) {
    Dl_info file = {0};
    const char *name = dladdr(frames[i], &file) != 0 && file.dli_fname != NULL ? strrchr(file.dli_fname, '/') : NULL;
    say(" %s+%lx", name != NULL ? name + 1 : "?", (unsigned long)((uintptr_t)frames[i] - (uintptr_t)file.dli_fbase));
  }
  say("\n");
}

static void say_bytes(const char *what, const unsigned char *at, size_t n) {
  say("guard.so: %s", what);
  for (size_t i = 0; i < n; i++) say(i % 8 == 0 ? " %02x" : "%02x", at[i]);
  say("\n");
}

__attribute__((noreturn)) static void tell(const head *h, const char *what, size_t at, void *now) {
  inside = true;
  unsigned char *piece = (unsigned char *)(h + 1);
  say("guard.so: %s of a piece of %zu bytes at %p, from byte %zu on\n", what, h->size, (void *)piece, at);
  say_frames("asked for by", h->by);
  say_frames("freed by", h->freed_by);
  void *frames[FRAMES] = {now};
  backtrace(frames, FRAMES);
  say_frames("seen by", frames);
  say_bytes("there is", piece + at - at % 8, 64);
  say_bytes("it begins with", piece, h->size < 64 ? h->size : 64);
  abort();
}

static bool is(const unsigned char *at, size_t n, unsigned char what, size_t *where) {
  for (size_t i = 0; i < n; i++) {
    if (at[i] == what) continue;
    *where = i;
    return false;
  }
  return true;
}

// written_after returns what was written of a piece that was freed, and where; NULL if nothing was.
static const char *written_after(const head *h, size_t *where) {
  const unsigned char *piece = (const unsigned char *)(h + 1);
  if (!is(piece, h->size, FREED, where)) return "a write after the free";
  if (is(piece + h->size, BEHIND, GUARD, where)) return NULL;
  *where += h->size;
  return "a write behind the end, after the free";
}

// block has 1 << class bytes, and is aligned to as many, or to a page.
static char *block(unsigned class) {
  pthread_mutex_lock(&lock);
  char *b = blocks[class];
  if (b != NULL) {
    blocks[class] = *(void **)b;
  } else {
    size_t size = (size_t)1 << class, to = size < 4096 ? size : 4096;
    b = (char *)(((uintptr_t)next_block + to - 1) / to * to);
    if (size > (size_t)(place + PLACE - b)) b = NULL;
    else next_block = b + size;
  }
  pthread_mutex_unlock(&lock);
  return b;
}

static void release(head *h) {
  void **b = h->whole;
  uint64_t class = h->class;
  h->mark = 0;
  pthread_mutex_lock(&lock);
  *b = blocks[class];
  blocks[class] = b;
  pthread_mutex_unlock(&lock);
}

static void *guarded(size_t to, size_t size) {
  if (to < 16) to = 16;
  size_t before = (sizeof(head) + to - 1) / to * to;
  if (to > 4096 || size > PLACE / 4) return NULL;
  unsigned class = SMALLEST;
  while ((size_t)1 << class < before + size + BEHIND) class++;
  char *whole = block(class);
  if (whole == NULL) return NULL;
  head *h = (head *)(whole + before) - 1;
  h->whole = whole;
  h->size = size;
  h->class = class;
  callers(h->by);
  memset(h->freed_by, 0, sizeof h->freed_by);
  h->mark = LIVE_MARK;
  memset(whole + before + size, GUARD, BEHIND);
  return whole + before;
}

static void let_go(void *at, void *by) {
  head *h = (head *)at - 1;
  size_t where = 0;
  if (h->mark == FREED_MARK) tell(h, "a second free", 0, by);
  if (h->mark != LIVE_MARK) tell(h, "what stands before it was written, or it is none: a free", 0, by);
  if (!is((unsigned char *)at + h->size, BEHIND, GUARD, &where)) tell(h, "a write behind the end", h->size + where, by);
  callers(h->freed_by);
  h->mark = FREED_MARK;
  if (h->size > LARGEST_KEPT) {
    release(h);
    return;
  }
  memset(at, FREED, h->size);
  pthread_mutex_lock(&lock);
  head *oldest = kept[next_kept];
  kept[next_kept] = h;
  next_kept = (next_kept + 1) % KEPT;
  pthread_mutex_unlock(&lock);
  if (oldest == NULL) return;
  const char *what = written_after(oldest, &where);
  if (what != NULL) tell(oldest, what, where, by);
  release(oldest);
}

// look has all that was freed looked at.
static void look(void) {
  size_t where = 0;
  for (unsigned i = 0; i < KEPT; i++) {
    pthread_mutex_lock(&lock);
    head *h = kept[i];
    const char *what = h != NULL && h->mark == FREED_MARK ? written_after(h, &where) : NULL;
    pthread_mutex_unlock(&lock);
    if (what != NULL) tell(h, what, where, NULL);
  }
}

void *malloc(size_t size) {
  if (is_meant(__builtin_return_address(0))) return guarded(16, size);
  return __libc_malloc(size);
}
void *calloc(size_t n, size_t size) {
  if (!is_meant(__builtin_return_address(0))) return __libc_calloc(n, size);
  if (size != 0 && n > SIZE_MAX / size) return NULL;
  void *at = guarded(16, n * size);
  if (at != NULL) memset(at, 0, n * size);
  return at;
}
void *memalign(size_t to, size_t size) {
  if (is_meant(__builtin_return_address(0))) return guarded(to, size);
  return __libc_memalign(to, size);
}
void *aligned_alloc(size_t to, size_t size) {
  if (is_meant(__builtin_return_address(0))) return guarded(to, size);
  return __libc_memalign(to, size);
}
int posix_memalign(void **at, size_t to, size_t size) {
  void *piece = is_meant(__builtin_return_address(0)) ? guarded(to, size) : __libc_memalign(to, size);
  if (piece == NULL) return 12; // ENOMEM
  *at = piece;
  return 0;
}
// The names of functions are made by strdup, which would ask malloc for libc.
char *strndup(const char *text, size_t most) {
  size_t length = strnlen(text, most);
  char *at = is_meant(__builtin_return_address(0)) ? guarded(16, length + 1) : __libc_malloc(length + 1);
  if (at == NULL) return NULL;
  memcpy(at, text, length);
  at[length] = 0;
  return at;
}
char *strdup(const char *text) {
  size_t size = strlen(text) + 1;
  char *at = is_meant(__builtin_return_address(0)) ? guarded(16, size) : __libc_malloc(size);
  return at != NULL ? memcpy(at, text, size) : NULL;
}
void free(void *at) {
  if (ours(at)) let_go(at, __builtin_return_address(0));
  else __libc_free(at);
}
void *realloc(void *at, size_t size) {
  bool piece_of_ours = ours(at), by_meant = at == NULL && is_meant(__builtin_return_address(0));
  if (!piece_of_ours && !by_meant) return __libc_realloc(at, size);
  if (piece_of_ours && size == 0) {
    let_go(at, __builtin_return_address(0));
    return NULL;
  }
  void *piece = guarded(16, size);
  if (piece == NULL || at == NULL) return piece;
  size_t before = ((head *)at - 1)->size;
  memcpy(piece, at, before < size ? before : size);
  let_go(at, __builtin_return_address(0));
  return piece;
}
size_t malloc_usable_size(void *at) {
  static size_t (*of_libc)(void *);
  if (ours(at)) return ((head *)at - 1)->size;
  if (of_libc == NULL) *(void **)&of_libc = dlsym(RTLD_NEXT, "malloc_usable_size");
  return of_libc(at);
}

static void *watch_all(void *unused) {
  for (unsigned turn = 0; place != NULL; turn++) {
    usleep(100000);
    learn(); // libraries come
    if (turn % 10 == 0) look();
  }
  return unused;
}

__attribute__((constructor)) static void watch(void) {
  void *frames[2];
  inside = true;
  backtrace(frames, 2); // it loads a library the first time
  inside = false;
  next_block = mmap(NULL, PLACE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (next_block == MAP_FAILED) abort();
  place = next_block;
  learn();
  pthread_t thread;
  if (pthread_create(&thread, NULL, watch_all, NULL) == 0) pthread_detach(thread);
}
