/* SPDX-License-Identifier: Apache-2.0
 *
 * A fake CUDA driver and a fake CUPTI, for tests where there is no GPU. They are two libraries, as
 * the real ones are: fakecupti finds fakecuda by its soname and hooks itself into its calls. */
#ifndef FAKE_H
#define FAKE_H

#include <stddef.h>
#include <stdint.h>

#define FAKE_API __attribute__((visibility("default")))

typedef struct {
  const char *name; /* mangled */
  uint32_t grid[3], block[3];
  uint32_t shared, registers, stream, device;
  uint64_t graph_node;
  uint32_t graph;
  uint64_t duration_ns; /* 0: one microsecond */
} fake_kernel;

/* What fakecuda tells of its calls. enter answers with the correlation id. */
typedef struct {
  uint32_t (*enter)(uint32_t cbid, const char *name);
  void (*leave)(uint32_t cbid, const char *name, uint32_t correlation);
  void (*kernel)(uint32_t correlation, const fake_kernel *kernel);
  void (*copy)(uint32_t correlation, int kind, uint64_t bytes, uint32_t stream, int async);
  void (*set)(uint32_t correlation, uint64_t bytes, uint32_t stream);
  void (*memory)(uint32_t correlation, int release, uint64_t address, uint64_t bytes);
  void (*wait)(uint32_t correlation, int type, uint32_t stream);
  void (*graph)(uint32_t correlation, uint32_t graph, uint32_t stream);
  /* leave for a call whose parameters and result matter to a callback. */
  void (*leave_with)(uint32_t cbid, const char *name, uint32_t correlation, const void *parameters, int *result);
  void (*context)(int destroyed, void *context, int device);
  void (*module)(int unloaded, void *context, uint32_t id, const void *image, size_t size);
  void (*stream_destroyed)(void *stream);
} fake_hooks;

/* What fakecuda tells fakecupti when that asks. */
typedef struct {
  /* unsafe says that the calling thread does something that ends every capture in the process,
   * unless the thread has relaxed that. */
  void (*unsafe)(void);
  /* has_context says that a context is current on the calling thread. */
  int (*has_context)(void);
} fake_services;

#endif
