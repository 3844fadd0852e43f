// SPDX-License-Identifier: Apache-2.0
//
// The calls of CUDA's driver API that the examples make. All return a CUresult, and
// NOT_SUPPORTED where the driver does not have the call.

#ifndef EXAMPLES_DRIVER_H
#define EXAMPLES_DRIVER_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef void *handle;

enum { MAX_ARGUMENTS = 8, NOT_SUPPORTED = 801 };

// CUfunction_attribute.
enum { ATTRIBUTE_SHARED = 1, ATTRIBUTE_LOCAL = 3, ATTRIBUTE_REGISTERS = 4 };

typedef struct {
  handle function, stream;
  unsigned grid[3], block[3], shared;
  uint64_t arguments[MAX_ARGUMENTS];
} launch;

// driver_open opens libcuda.so.1. It returns 0, or -1 and why it could not.
int driver_open(char **why);
int driver_init(void);

int device_get(int *device, int ordinal);
int device_name(char *name, int size, int device);
int context_retain(handle *context, int device);
int context_release(int device);
int context_use(handle context);
int context_wait(void);

int module_load(handle *module, const char *ptx);
int module_unload(handle module);
int module_function(handle *function, handle module, const char *name);
int function_attribute(int *value, int attribute, handle function);

int stream_create(handle *stream);
int stream_wait(handle stream);
int stream_destroy(handle stream);
int launch_kernel(launch *l);

int memory_alloc(uint64_t *memory, size_t bytes);
int memory_free(uint64_t memory);
int copy_to_device(uint64_t to, const void *from, size_t bytes, handle stream);
int copy_to_host(void *to, uint64_t from, size_t bytes, handle stream);

int capture_begin(handle stream);
int capture_end(handle stream, handle *executable);
int graph_launch(handle executable, handle stream);
int graph_destroy(handle executable);

#endif
