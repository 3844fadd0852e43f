// SPDX-License-Identifier: Apache-2.0
//
// An allocator in place of glibc's, with the size of a piece elsewhere. It hands out each byte once.

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

enum { ROOM = 256 << 20, HEAD = 32 };
static _Alignas(64) char room[ROOM];
static atomic_size_t used;

void *malloc(size_t size) {
  size_t whole = (HEAD + size + 15) / 16 * 16, at = atomic_fetch_add(&used, whole);
  if (size > ROOM || at + whole > ROOM) {
    errno = ENOMEM;
    return NULL;
  }
  memcpy(room + at, &size, sizeof size);
  return room + at + HEAD;
}

void free(void *p) { (void)p; }

void *calloc(size_t n, size_t size) { // what is handed out was never written
  return size != 0 && n > SIZE_MAX / size ? NULL : malloc(n * size);
}

void *realloc(void *p, size_t size) {
  void *other = malloc(size);
  size_t before = 0;
  if (p == NULL || other == NULL) return other;
  memcpy(&before, (char *)p - HEAD, sizeof before);
  return memcpy(other, p, before < size ? before : size);
}
