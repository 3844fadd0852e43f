// SPDX-License-Identifier: Apache-2.0

#include "driver.h"

#include <dlfcn.h>

// The driver's functions, by the names that its library exports. Those above the line are needed, those
// below are not in every driver.
#define REQUIRED(X)                                                                                    \
  X(cuInit, (unsigned))                                                                                \
  X(cuDeviceGet, (int *, int))                                                                         \
  X(cuDeviceGetName, (char *, int, int))                                                               \
  X(cuDevicePrimaryCtxRetain, (handle *, int))                                                         \
  X(cuDevicePrimaryCtxRelease_v2, (int))                                                               \
  X(cuCtxSetCurrent, (handle))                                                                         \
  X(cuCtxSynchronize, (void))                                                                          \
  X(cuModuleLoadData, (handle *, const void *))                                                        \
  X(cuModuleUnload, (handle))                                                                          \
  X(cuModuleGetFunction, (handle *, handle, const char *))                                             \
  X(cuStreamCreate, (handle *, unsigned))                                                              \
  X(cuStreamSynchronize, (handle))                                                                     \
  X(cuStreamDestroy_v2, (handle))                                                                      \
  X(cuLaunchKernel, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **)) \
  X(cuMemAlloc_v2, (uint64_t *, size_t))                                                               \
  X(cuMemFree_v2, (uint64_t))                                                                          \
  X(cuMemcpyHtoDAsync_v2, (uint64_t, const void *, size_t, handle))                                    \
  X(cuMemcpyDtoHAsync_v2, (void *, uint64_t, size_t, handle))
#define OPTIONAL(X)                                                                                    \
  X(cuFuncGetAttribute, (int *, int, handle))                                                          \
  X(cuStreamBeginCapture_v2, (handle, int))                                                            \
  X(cuStreamEndCapture, (handle, handle *))                                                            \
  X(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long))                               \
  X(cuGraphLaunch, (handle, handle))                                                                   \
  X(cuGraphDestroy, (handle))                                                                          \
  X(cuGraphExecDestroy, (handle))

#define DECLARE(name, arguments) static int(*name) arguments;
REQUIRED(DECLARE)
OPTIONAL(DECLARE)

int driver_open(char **why) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) {
    *why = dlerror();
    return -1;
  }
#define LOOK_UP(name, arguments) *(void **)&name = dlsym(library, #name);
  REQUIRED(LOOK_UP)
  OPTIONAL(LOOK_UP)
#define NEED(name, arguments)                  \
  if (name == NULL) {                          \
    *why = "libcuda.so.1 has no " #name;       \
    return -1;                                 \
  }
  REQUIRED(NEED)
  return 0;
}

int driver_init(void) { return cuInit(0); }

int device_get(int *device, int ordinal) { return cuDeviceGet(device, ordinal); }
int device_name(char *name, int size, int device) { return cuDeviceGetName(name, size, device); }
int context_retain(handle *context, int device) { return cuDevicePrimaryCtxRetain(context, device); }
int context_release(int device) { return cuDevicePrimaryCtxRelease_v2(device); }
int context_use(handle context) { return cuCtxSetCurrent(context); }
int context_wait(void) { return cuCtxSynchronize(); }

int module_load(handle *module, const char *ptx) { return cuModuleLoadData(module, ptx); }
int module_unload(handle module) { return cuModuleUnload(module); }
int module_function(handle *function, handle module, const char *name) { return cuModuleGetFunction(function, module, name); }
int function_attribute(int *value, int attribute, handle function) {
  return cuFuncGetAttribute == NULL ? NOT_SUPPORTED : cuFuncGetAttribute(value, attribute, function);
}

int stream_create(handle *stream) {
  enum { NON_BLOCKING = 1 };
  return cuStreamCreate(stream, NON_BLOCKING);
}
int stream_wait(handle stream) { return cuStreamSynchronize(stream); }
int stream_destroy(handle stream) { return cuStreamDestroy_v2(stream); }

int launch_kernel(launch *l) {
  void *arguments[MAX_ARGUMENTS];
  for (int i = 0; i < MAX_ARGUMENTS; i++) arguments[i] = &l->arguments[i];
  return cuLaunchKernel(l->function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->shared, l->stream, arguments, NULL);
}

int memory_alloc(uint64_t *memory, size_t bytes) { return cuMemAlloc_v2(memory, bytes); }
int memory_free(uint64_t memory) { return cuMemFree_v2(memory); }
int copy_to_device(uint64_t to, const void *from, size_t bytes, handle stream) { return cuMemcpyHtoDAsync_v2(to, from, bytes, stream); }
int copy_to_host(void *to, uint64_t from, size_t bytes, handle stream) { return cuMemcpyDtoHAsync_v2(to, from, bytes, stream); }

int capture_begin(handle stream) {
  enum { THIS_THREAD_ONLY = 1 };
  if (cuStreamBeginCapture_v2 == NULL || cuStreamEndCapture == NULL || cuGraphInstantiateWithFlags == NULL || cuGraphLaunch == NULL ||
      cuGraphDestroy == NULL || cuGraphExecDestroy == NULL) {
    return NOT_SUPPORTED;
  }
  return cuStreamBeginCapture_v2(stream, THIS_THREAD_ONLY);
}

int capture_end(handle stream, handle *executable) {
  handle graph = NULL;
  int result = cuStreamEndCapture(stream, &graph);
  if (result != 0) return result;
  result = cuGraphInstantiateWithFlags(executable, graph, 0);
  cuGraphDestroy(graph);
  return result;
}

int graph_launch(handle executable, handle stream) { return cuGraphLaunch(executable, stream); }
int graph_destroy(handle executable) { return cuGraphExecDestroy(executable); }
