// SPDX-License-Identifier: Apache-2.0
//
// What windows leave of a thread's heap: free pieces between others are taken after a window and given back before the next, by each
// thread that launches.

#include <malloc.h>

#include "core.h"
#include "gpufl_deep.h"
#include "gpufl_deep_internal.h"

static int (*launch)(const char *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

enum { PIECES = 20000, SIZE = 56 };

// scatter leaves PIECES / 2 free pieces of the calling thread's arena, no two of them side by side.
static void scatter(void **all) {
  for (int i = 0; i < PIECES; i++) CHECK((all[i] = malloc(SIZE)) != NULL);
  for (int i = 0; i < PIECES; i += 2) free(all[(size_t)i * 7919 % PIECES]);
  malloc_trim(0); // what was freed last becomes one with its neighbours
}

// pages is how many pages the next hundred pieces are in.
static int pages(void) {
  char *next[100];
  int n = 0;
  for (int i = 0; i < 100; i++) {
    CHECK((next[i] = malloc(SIZE)) != NULL);
    bool known = false;
    for (int k = 0; k < i; k++) known = known || (uintptr_t)next[k] / 4096 == (uintptr_t)next[i] / 4096;
    if (!known) n++;
  }
  for (int i = 100; i > 0; i--) free(next[i - 1]);
  return n;
}
enum { FAR = 60, NEAR = 12 }; // what was scattered is in 312 pages; a hundred one after the other are in 2

static void *check_thread(void *unused) {
  (void)unused;
  static _Thread_local void *all[PIECES];
  gpufl_heap heap = {0};
  scatter(all);
  CHECK(pages() >= FAR);

  gpufl_heap_settle(&heap); // no window yet
  CHECK(heap.num_pieces == 0);
  CHECK(pages() >= FAR);

  atomic_store(&gpufl_heap_turn, 2); // one was open meanwhile
  size_t before = gpufl_heap_held();
  gpufl_heap_settle(&heap);
  CHECK(heap.num_pieces >= PIECES / 2 && heap.num_pieces < PIECES);
  CHECK(heap.bytes >= PIECES / 2 * 64 && heap.bytes < PIECES * 64);
  CHECK(gpufl_heap_held() == before + heap.bytes);
  CHECK(pages() <= NEAR);
  size_t pieces = heap.num_pieces;
  gpufl_heap_settle(&heap); // the same turn
  CHECK(heap.num_pieces == pieces);

  atomic_store(&gpufl_heap_turn, 3);
  gpufl_heap_settle(&heap);
  CHECK(heap.num_pieces == 0 && heap.bytes == 0 && gpufl_heap_held() == before);
  CHECK(pages() >= FAR);

  // The thread missed a window: it has what it has, and takes what has become free.
  atomic_store(&gpufl_heap_turn, 4);
  gpufl_heap_settle(&heap);
  pieces = heap.num_pieces;
  for (int i = 1; i < PIECES; i += 4) free(all[(size_t)i * 7919 % PIECES]);
  malloc_trim(0);
  CHECK(pages() > NEAR);
  atomic_store(&gpufl_heap_turn, 6);
  gpufl_heap_settle(&heap);
  CHECK(heap.num_pieces >= pieces + PIECES / 5);
  gpufl_heap_forget(&heap);
  CHECK(heap.num_pieces == 0 && gpufl_heap_held() == before);
  for (int i = 3; i < PIECES; i += 4) free(all[(size_t)i * 7919 % PIECES]);
  atomic_store(&gpufl_heap_turn, 0);
  return NULL;
}

// No more is held than may be, however much there is.
static void *check_bound(void *unused) {
  (void)unused;
  enum { MOST_PIECES = 1 << 18, MOST_BYTES = 32 << 20 };
  static const struct {
    int number;
    size_t size;
  } cases[] = {{600000, 56}, {80000, 1000}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    int number = cases[c].number;
    void **all = malloc((size_t)number * sizeof *all);
    CHECK(all != NULL);
    for (int i = 0; i < number; i++) CHECK((all[i] = malloc(cases[c].size)) != NULL);
    for (int i = 0; i < number; i += 2) free(all[i]);
    malloc_trim(0);
    gpufl_heap heap = {0};
    atomic_store(&gpufl_heap_turn, 2);
    gpufl_heap_settle(&heap);
    CHECK(heap.bytes <= MOST_BYTES + 4096 && heap.num_pieces <= MOST_PIECES + 128);
    CHECK(heap.bytes >= MOST_BYTES || heap.num_pieces >= MOST_PIECES);
    gpufl_heap_forget(&heap);
    CHECK(gpufl_heap_held() == 0);
    for (int i = 1; i < number; i += 2) free(all[i]);
    free(all);
  }
  atomic_store(&gpufl_heap_turn, 0);
  return NULL;
}

// A thread launches after a window and in the next, and ends after that.
static void *check_launches(void *unused) {
  (void)unused;
  static _Thread_local void *all[PIECES];
  static const char *const metrics[] = {"smsp__sass_inst_executed"};
  const gpufl_deep_config config = {.engine = GPUFL_DEEP_SASS, .names = metrics, .num_names = 1, .max_rows = 1000, .limit_ns = (int64_t)5e9};
  scatter(all);
  for (int windows = 0; windows < 3; windows++) {
    CHECK(gpufl_deep_open(&config) == GPUFL_OK);
    CHECK(launch("k", 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) == 0);
    CHECK(gpufl_heap_held() == 0 && pages() >= FAR);
    CHECK(gpufl_deep_close((int64_t)5e9) == GPUFL_OK && gpufl_deep_end() == GPUFL_OK);
    CHECK(gpufl_heap_held() == 0);
    CHECK(launch("k", 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) == 0);
    CHECK(gpufl_heap_held() >= PIECES / 2 * 64 && pages() <= NEAR);
  }
  // What becomes free in between is taken when some time has passed.
  size_t before = gpufl_heap_held();
  for (int i = 1; i < PIECES; i += 4) free(all[(size_t)i * 7919 % PIECES]);
  malloc_trim(0);
  CHECK(launch("k", 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) == 0);
  CHECK(gpufl_heap_held() == before && pages() > NEAR);
  for (int i = 0; i < 100 && gpufl_heap_held() == before; i++) {
    usleep(50000);
    CHECK(gpufl_flush() == GPUFL_OK);
    CHECK(launch("k", 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) == 0);
  }
  CHECK(gpufl_heap_held() >= before + PIECES / 5 * 64 && pages() <= NEAR);
  // One that is refused changes nothing for long.
  gpufl_deep_config none = config;
  static const char *const unheard[] = {"unheard_of"};
  none.names = unheard;
  CHECK(gpufl_deep_open(&none) != GPUFL_OK);
  CHECK(launch("k", 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) == 0);
  CHECK(gpufl_heap_held() >= PIECES / 2 * 64 && pages() <= NEAR);
  for (int i = 3; i < PIECES; i += 4) free(all[(size_t)i * 7919 % PIECES]);
  return NULL;
}

static void *(*volatile by_address)(size_t);

int main(int argc, char **argv) {
  by_address = malloc;
  if (argc == 3) { // with an allocator that is not glibc's
    gpufl_heap heap = {0};
    atomic_store(&gpufl_heap_turn, 2);
    gpufl_heap_settle(&heap);
    CHECK(by_address(1) != NULL && heap.turn == 2 && heap.num_pieces == 0 && gpufl_heap_held() == 0);
    return 0;
  }
  CHECK(argc == 2);
  void *(*const all[])(void *) = {check_thread, check_bound, check_launches};
  check_thread(NULL); // in the main arena
  open_fakes(argv[1]);
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
  int (*create)(void **, unsigned, int);
  *(void **)&create = dlsym(cuda, "cuCtxCreate_v2");
  *(void **)&launch = dlsym(cuda, "cuLaunchKernel");
  gpufl_config open = {.buffer_bytes = 1 << 18, .buffers = 16, .kinds = BASIC_KINDS, .deep = 1, .cubin_bytes = 1 << 20};
  CHECK(gpufl_open(&open) == GPUFL_OK && create(&context, 0, 0) == 0);
  start_core();
  CHECK(gpufl_pause() == GPUFL_OK);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, all[i], NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(gpufl_heap_held() == 0);
  }
  CHECK(gpufl_stop() == GPUFL_OK);
  take_all(0);
  CHECK(gpufl_close() == GPUFL_OK);
  return 0;
}
