// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <stdlib.h>

#include "gpufl_deep_internal.h"

// In a window of SASS metrics CUPTI patches a kernel in the thread that launches it, and allocates there for each instruction.
// Most of that it frees later, some it keeps for good, and what it keeps lies between what it frees.
// So the thread's arena of malloc is left with thousands of free pieces of a few dozen bytes, no two of them side by side, and glibc
// hands pieces of a size out in the order in which they were freed: all that the program allocates from then on is spread over
// them and is in no cache. Each step of a training of PyTorch was 4.5 and 5.2 % longer after 200 windows, and 0.7 % once these pieces were
// taken (H200, CUPTI 13.0: docs/gpu-runs.md).
//
// They are put out of the way by asking for them: after a window a thread that launches takes the small pieces of its arena that are
// free until it gets some that lie one after the other, which come from a larger one. It does so again later, since what the program
// itself had allocated between them becomes free when it is replaced. It gives all back as the next window opens, so that CUPTI has them
// and takes no more of the program's memory than ever.

enum {
  SMALLEST = 32,
  LARGEST = 1024,
  TOGETHER = 4096, // bytes of pieces one after the other: memory that is free as a whole
  // H200, a training with 52 kernels: 23 MiB after 200 windows.
  MOST_PIECES = 1 << 18,
  MOST_BYTES = 32 << 20,
  MOST_OF_ALL = 64 << 20,
};

static atomic_size_t held; // bytes, by all threads
_Atomic uint32_t gpufl_heap_turn;

// When the pieces are to be taken once more, of gpufl_monotonic, and how long after that again.
#define FIRST_AGAIN_NS ((int64_t)1000000000)
#define LAST_AGAIN_NS ((int64_t)64 * 1000000000)
static _Atomic int64_t again, after;

void gpufl_heap_window(bool open) {
  uint32_t turn = atomic_load(&gpufl_heap_turn);
  if ((turn % 2 != 0) == open) return;
  atomic_store(&again, gpufl_monotonic() + FIRST_AGAIN_NS);
  atomic_store(&after, FIRST_AGAIN_NS);
  while (!atomic_compare_exchange_weak(&gpufl_heap_turn, &turn, turn + 1)) continue; // gpufl_heap_later adds two
}

void gpufl_heap_later(void) {
  uint32_t turn = atomic_load_explicit(&gpufl_heap_turn, memory_order_relaxed);
  if (turn == 0 || turn % 2 != 0) return;
  int64_t next = atomic_load(&after);
  if (next > LAST_AGAIN_NS || gpufl_monotonic() < atomic_load(&again)) return;
  atomic_store(&after, 2 * next);
  atomic_store(&again, gpufl_monotonic() + 2 * next);
  atomic_compare_exchange_strong(&gpufl_heap_turn, &turn, turn + 2); // unless a window opens
}

size_t gpufl_heap_held(void) { return atomic_load(&held); }

// size_before returns what lies before an allocation. This read is outside the allocation on purpose, so the sanitizers must not
// check it: https://gcc.gnu.org/onlinedocs/gcc/Common-Function-Attributes.html, no_sanitize. The layout is that of glibc's
// malloc.c, "malloc_chunk details".
__attribute__((noinline, no_sanitize("address"), no_sanitize("thread"))) static size_t size_before(const size_t *volatile at) {
  return at[-1] & ~(size_t)7;
}

// applies: malloc is glibc's, and not one that is put in its place and orders pieces otherwise. Which function it is cannot be asked: a
// program that is not position independent has an address of its own for it. So it is told by the size that glibc writes before
// each piece, with three bits that mean something else.
static bool applies(void) {
  static atomic_int known;
  int is = atomic_load(&known);
  if (is == 0) {
    int like_glibc = 0;
    for (size_t size = SMALLEST; size <= LARGEST && is == 0; size += 144) {
      void *p = malloc(size - sizeof(size_t));
      if (p == NULL) continue;
      // What is before the begin of a page may not be there. One in 256 of glibc's pieces is at one.
      if ((uintptr_t)p % 4096 != 0) {
        size_t before = size_before(p);
        if (before == size || before == size + 16) like_glibc++; // what would be too small to be a piece is left to it
        else is = -1;
      }
      free(p);
    }
    if (is == 0) is = like_glibc >= 4 ? 1 : -1;
    atomic_store(&known, is);
  }
  return is == 1;
}

static void give_back(gpufl_heap *h) {
  while (h->pieces != NULL) {
    void *next = *(void **)h->pieces;
    free(h->pieces);
    h->pieces = next;
  }
  atomic_fetch_sub(&held, h->bytes);
  h->bytes = 0;
  h->num_pieces = 0;
}

// take_size takes pieces that are a multiple of 16 bytes with the 8 that malloc has for itself.
static void take_size(gpufl_heap *h, size_t size) {
  char *run[TOGETHER / SMALLEST];
  size_t length = 0, most = (size_t)TOGETHER / size;
  while (length < most && h->num_pieces < MOST_PIECES && h->bytes < MOST_BYTES && atomic_load(&held) < MOST_OF_ALL) {
    char *p = malloc(size - sizeof(size_t));
    if (p == NULL) break;
    if (length > 0 && p != run[length - 1] + size) {
      for (size_t i = 0; i < length; i++) {
        *(void **)run[i] = h->pieces;
        h->pieces = run[i];
      }
      h->num_pieces += length;
      h->bytes += length * size;
      atomic_fetch_add(&held, length * size);
      length = 0;
    }
    run[length++] = p;
  }
  // The last is freed first: then they become one again.
  while (length > 0) free(run[--length]);
}

void gpufl_heap_settle(gpufl_heap *h) {
  uint32_t turn = atomic_load(&gpufl_heap_turn);
  if (h->turn == turn) return;
  h->turn = turn;
  if (turn % 2 != 0) {
    give_back(h);
  } else if (applies()) {
    // The largest first, or they would be cut up.
    for (size_t size = LARGEST; size >= SMALLEST; size -= 16) take_size(h, size);
  }
}

void gpufl_heap_forget(gpufl_heap *h) {
  give_back(h);
  h->turn = 0;
}
