/* SPDX-License-Identifier: Apache-2.0
 *
 * Scopes of programs that have tasks instead of threads, such as Python's. Such a program calls
 * libgpuflight.so (cupti/inject/loader), which forwards to the recorder once it records. Both
 * libraries include this file.
 *
 * A program begins a scope, stores its id in a context variable and ends it. Each launch reads the
 * variable from the context of its thread. So a scope follows its task through coroutines and
 * thread pools, and the launch neither enters Python nor takes the interpreter lock.
 */
#ifndef GPUFL_CONTEXT_H
#define GPUFL_CONTEXT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- scopes ---- */

/* The begin of a scope. */
typedef struct {
  uint64_t id;     /* 0: a new one */
  uint64_t parent; /* the scope around it; 0 is none */
  int64_t time_ns; /* since 1970 */
  const char *name;
  /* The application's span, which it sends itself. Without one the recorder makes a span. */
  const uint8_t *trace; /* 16 bytes, or NULL */
  const uint8_t *span;  /* 8 bytes */
  int sampled;          /* of the application's span: whether its work has spans */
} gpufl_context_scope;

/* The recorder's functions for libgpuflight.so. Any thread may call them. In a forked child they do
 * nothing and return 0. */

/* gpufl_recorder_id returns a new id that is greater than after. */
uint64_t gpufl_recorder_id(uint64_t after);

/* gpufl_recorder_begin returns the id of the scope, or 0 if nothing is recorded or the event does
 * not fit, which is counted. */
uint64_t gpufl_recorder_begin(const gpufl_context_scope *scope);

/* gpufl_recorder_end ends a scope. The caller calls it once for each id. */
void gpufl_recorder_end(uint64_t id);

/* ---- Python ---- */

/* Where CPython keeps a context variable. A thread state points to the context of the thread. The
 * context points to an immutable hash tree (HAMT) of variables and values (Python/hamt.c). The
 * Python package measures the offsets in the running interpreter. Before it passes them, it checks
 * that reads give right values. All offsets are in bytes. */
typedef struct {
  void *(*thread_state)(void); /* PyGILState_GetThisThreadState, which needs no lock */
  const void *variable;
  const void *context_type, *tree_type, *bitmap_type, *array_type, *bytes_type;
  uint32_t hash;            /* of the variable, as the tree uses it */
  uint32_t type;            /* of the pointer to the type, in each object */
  uint32_t thread_context;  /* in the thread state */
  uint32_t context_tree;    /* in the context */
  uint32_t tree_root;       /* in the tree */
  uint32_t bitmap_length;   /* of the number of pointers, in a bitmap node */
  uint32_t bitmap_bits, bitmap_items;
  uint32_t array_items;
  uint32_t bytes_data;
} gpufl_python;

/* gpufl_recorder_python makes launches read scopes from Python's contexts. NULL ends that, which an
 * interpreter must do before it ends. *python is copied. It returns 0, or -1 without memory. */
int gpufl_recorder_python(const gpufl_python *python);

static inline const void *gpufl_python_pointer(const void *object, size_t offset) {
  const void *p;
  memcpy(&p, (const char *)object + offset, sizeof p);
  return p;
}

/* gpufl_python_scope returns the value of the variable in the context of the calling thread: 8
 * bytes of a bytes object. It returns 0 if the thread has no Python, no context or no value.
 *
 * Only the thread itself changes its context, and holds a reference to it. The tree and its nodes
 * do not change. So reading needs no lock. */
static inline uint64_t gpufl_python_scope(const gpufl_python *p) {
  /* A tree of 32-bit hashes has 7 levels of 5 bits. */
  enum { BITS = 5, LEVELS = 7 };
  const void *at = p->thread_state();
  if (at == NULL || (at = gpufl_python_pointer(at, p->thread_context)) == NULL ||
      gpufl_python_pointer(at, p->type) != p->context_type ||
      (at = gpufl_python_pointer(at, p->context_tree)) == NULL ||
      gpufl_python_pointer(at, p->type) != p->tree_type) {
    return 0;
  }
  at = gpufl_python_pointer(at, p->tree_root);
  for (uint32_t level = 0; at != NULL && level < LEVELS; level++) {
    const void *type = gpufl_python_pointer(at, p->type);
    uint32_t branch = p->hash >> level * BITS & 31;
    if (type == p->array_type) {
      at = gpufl_python_pointer(at, p->array_items + branch * sizeof(void *));
      continue;
    }
    /* The third type of node is for equal hashes. Its variables have no scopes. */
    if (type != p->bitmap_type) return 0;
    uint32_t bits;
    ptrdiff_t length;
    memcpy(&bits, (const char *)at + p->bitmap_bits, sizeof bits);
    memcpy(&length, (const char *)at + p->bitmap_length, sizeof length);
    size_t index = 2 * (size_t)__builtin_popcount(bits & ((1u << branch) - 1));
    if ((bits >> branch & 1) == 0 || (ptrdiff_t)index + 2 > length) return 0;
    const void *key = gpufl_python_pointer(at, p->bitmap_items + index * sizeof(void *));
    at = gpufl_python_pointer(at, p->bitmap_items + (index + 1) * sizeof(void *));
    if (key == NULL) continue; /* a node of the next level */
    if (key != p->variable || at == NULL || gpufl_python_pointer(at, p->type) != p->bytes_type) {
      return 0;
    }
    uint64_t scope;
    memcpy(&scope, (const char *)at + p->bytes_data, sizeof scope);
    return scope;
  }
  return 0;
}

#endif
