// SPDX-License-Identifier: Apache-2.0
//
// A CUDA driver without a device. Memory is the host's, kernels do nothing, a function's handle is its
// name. What each call needs to be is told by cuda.h; what is not here is not needed by a test.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101 };

static atomic_bool initialised;
static fake_hooks hooks;
static atomic_bool hooked;

FAKE_API void fake_hook(const fake_hooks *h) {
  hooks = *h;
  atomic_store(&hooked, true);
}

static int setting(const char *name, int otherwise) {
  const char *value = getenv(name);
  return value != NULL && *value != 0 ? atoi(value) : otherwise;
}

static int devices(void) { return setting("FAKE_CUDA_DEVICES", 1); }

// FAKE_CUDA_LAZY=1 makes the driver insist on cuInit, as the real one does, and 2 not even believe in that.
// Without it tests need not call it.
static int ready(void) {
  int lazy = setting("FAKE_CUDA_LAZY", 0);
  return lazy == 0 || (lazy == 1 && atomic_load(&initialised));
}

#define ENTER(cbid, name) \
  uint32_t correlation = atomic_load(&hooked) ? hooks.enter(cbid, name) : 0; \
  (void)correlation
#define LEAVE(cbid, name) \
  if (atomic_load(&hooked)) hooks.leave(cbid, name, correlation)
#define TELL(what, ...) \
  if (atomic_load(&hooked)) hooks.what(correlation, __VA_ARGS__)

static void inject(void) {
  const char *path = getenv("CUDA_INJECTION64_PATH");
  if (path == NULL || *path == 0) return;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "fake libcuda: %s\n", dlerror());
    return;
  }
  int (*entry)(void);
  *(void **)&entry = dlsym(library, "InitializeInjection");
  if (entry != NULL) entry();
}

// The library is called in the middle of cuInit; who asks for devices then waits until it is over.
static pthread_rwlock_t initialising = PTHREAD_RWLOCK_INITIALIZER;

FAKE_API int cuInit(unsigned flags) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)flags;
  if (devices() == 0) return NO_DEVICE;
  pthread_rwlock_wrlock(&initialising);
  pthread_once(&once, inject);
  atomic_store(&initialised, true);
  pthread_rwlock_unlock(&initialising);
  return SUCCESS;
}

FAKE_API int cuDriverGetVersion(int *version) {
  ENTER(2, "cuDriverGetVersion");
  *version = setting("FAKE_CUDA_DRIVER", 13000);
  LEAVE(2, "cuDriverGetVersion");
  return SUCCESS;
}

FAKE_API int cuDeviceGetCount(int *count) {
  ENTER(4, "cuDeviceGetCount");
  pthread_rwlock_rdlock(&initialising);
  pthread_rwlock_unlock(&initialising);
  int result = ready() ? SUCCESS : NOT_INITIALIZED;
  if (result == SUCCESS && devices() == 0) result = NO_DEVICE;
  *count = result == SUCCESS ? devices() : 0;
  LEAVE(4, "cuDeviceGetCount");
  return result;
}

FAKE_API int cuDeviceGet(int *device, int ordinal) {
  if (!ready()) return NOT_INITIALIZED;
  if (ordinal < 0 || ordinal >= devices()) return INVALID_DEVICE;
  *device = ordinal;
  return SUCCESS;
}

FAKE_API int cuDeviceGetName(char *name, int size, int device) {
  snprintf(name, (size_t)size, "Fake GPU %d", device);
  return SUCCESS;
}

FAKE_API int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  switch (attribute) {
    case 16:
      *value = 132;
      return SUCCESS;
    case 75:
      *value = 9;
      return SUCCESS;
    case 76:
      *value = 0;
      return SUCCESS;
    default:
      return INVALID_VALUE;
  }
}

static int uuid(uint8_t out[16], int device) {
  for (int i = 0; i < 16; i++) out[i] = (uint8_t)(0x10 + i);
  out[15] = (uint8_t)device;
  return SUCCESS;
}
FAKE_API int cuDeviceGetUuid(uint8_t out[16], int device) { return uuid(out, device); }
FAKE_API int cuDeviceGetUuid_v2(uint8_t out[16], int device) {
  uuid(out, device);
  if (setting("FAKE_CUDA_MIG", 0)) out[0] = 0xAA;
  return SUCCESS;
}

FAKE_API int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  (void)device;
  *bytes = (size_t)1 << 34;
  return SUCCESS;
}

// ---- contexts, modules, streams ----

static char context;
FAKE_API int cuCtxCreate_v2(void **out, unsigned flags, int device) { (void)flags; (void)device; *out = &context; return ready() ? SUCCESS : NOT_INITIALIZED; }
FAKE_API int cuCtxDestroy_v2(void *c) { (void)c; return SUCCESS; }
FAKE_API int cuDevicePrimaryCtxRetain(void **out, int device) { (void)device; *out = &context; return ready() ? SUCCESS : NOT_INITIALIZED; }
FAKE_API int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return SUCCESS; }
FAKE_API int cuCtxSetCurrent(void *c) { (void)c; return SUCCESS; }
FAKE_API int cuCtxPushCurrent_v2(void *c) { (void)c; return SUCCESS; }
FAKE_API int cuCtxPopCurrent_v2(void **c) { *c = &context; return SUCCESS; }
FAKE_API int cuCtxGetCurrent(void **out) { *out = &context; return SUCCESS; }
FAKE_API int cuModuleLoadData(void **out, const void *image) { *out = &context; return image != NULL ? SUCCESS : INVALID_VALUE; }
FAKE_API int cuModuleLoadDataEx(void **out, const void *image, unsigned n, int *keys, void **values) {
  (void)n; (void)keys; (void)values;
  return cuModuleLoadData(out, image);
}
FAKE_API int cuModuleUnload(void *module) { (void)module; return SUCCESS; }

// A function's handle is a copy of its name. Names are few and stay.
FAKE_API int cuModuleGetFunction(void **out, void *module, const char *name) {
  (void)module;
  *out = strdup(name);
  return SUCCESS;
}

static atomic_uint streams = 12; // the numbers that CUPTI shows begin at some such value
static uint32_t stream_id(void *stream) { return stream == NULL ? 7 : (uint32_t)(uintptr_t)stream; }
FAKE_API int cuStreamCreate(void **out, unsigned flags) { (void)flags; *out = (void *)(uintptr_t)(atomic_fetch_add(&streams, 1) + 1); return SUCCESS; }
FAKE_API int cuStreamDestroy_v2(void *stream) { (void)stream; return SUCCESS; }
FAKE_API int cuStreamSynchronize(void *stream) {
  ENTER(126, "cuStreamSynchronize");
  TELL(wait, 3, stream_id(stream));
  LEAVE(126, "cuStreamSynchronize");
  return SUCCESS;
}
FAKE_API int cuCtxSynchronize(void) {
  ENTER(17, "cuCtxSynchronize");
  TELL(wait, 4, 0);
  LEAVE(17, "cuCtxSynchronize");
  return SUCCESS;
}

// ---- work ----

FAKE_API int fake_launch(const fake_kernel *kernel) {
  ENTER(307, "cuLaunchKernel");
  TELL(kernel, kernel);
  LEAVE(307, "cuLaunchKernel");
  return SUCCESS;
}

FAKE_API int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, void *stream, void **parameters, void **extra) {
  (void)parameters;
  (void)extra;
  if (function == NULL || gx == 0 || gy == 0 || gz == 0 || bx == 0 || by == 0 || bz == 0 || bx * by * bz > 1024) return INVALID_VALUE;
  fake_kernel kernel = {.name = function, .grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared = shared, .registers = 32, .stream = stream_id(stream)};
  return fake_launch(&kernel);
}

FAKE_API int cuMemAlloc_v2(uint64_t *out, size_t bytes) {
  ENTER(243, "cuMemAlloc_v2");
  void *memory = calloc(1, bytes);
  *out = (uint64_t)(uintptr_t)memory;
  TELL(memory, 0, *out, bytes);
  LEAVE(243, "cuMemAlloc_v2");
  return memory != NULL ? SUCCESS : 2;
}

FAKE_API int cuMemFree_v2(uint64_t memory) {
  ENTER(245, "cuMemFree_v2");
  free((void *)(uintptr_t)memory);
  TELL(memory, 1, memory, 0);
  LEAVE(245, "cuMemFree_v2");
  return SUCCESS;
}

#define COPY(symbol, cbid, kind, async, from, to, ...)                 \
  FAKE_API int symbol(to, from, size_t bytes __VA_ARGS__) {            \
    ENTER(cbid, #symbol);                                              \
    memcpy((void *)(uintptr_t)target, (const void *)(uintptr_t)source, bytes); \
    TELL(copy, kind, bytes, STREAM, async);                            \
    LEAVE(cbid, #symbol);                                              \
    return SUCCESS;                                                    \
  }
#define COMMA ,
#define STREAM stream_id(NULL)
COPY(cuMemcpyHtoD_v2, 276, 1, 0, const void *source, uint64_t target, )
COPY(cuMemcpyDtoH_v2, 278, 2, 0, uint64_t source, void *target, )
COPY(cuMemcpyDtoD_v2, 280, 8, 0, uint64_t source, uint64_t target, )
#undef STREAM
#define STREAM stream_id(stream)
COPY(cuMemcpyHtoDAsync_v2, 277, 1, 1, const void *source, uint64_t target, COMMA void *stream)
COPY(cuMemcpyDtoHAsync_v2, 279, 2, 1, uint64_t source, void *target, COMMA void *stream)
COPY(cuMemcpyDtoDAsync_v2, 281, 8, 1, uint64_t source, uint64_t target, COMMA void *stream)

FAKE_API int cuMemsetD8_v2(uint64_t target, unsigned char value, size_t bytes) {
  ENTER(249, "cuMemsetD8_v2");
  memset((void *)(uintptr_t)target, value, bytes);
  TELL(set, bytes, stream_id(NULL));
  LEAVE(249, "cuMemsetD8_v2");
  return SUCCESS;
}

// A graph's handle is the number of its kernels.
FAKE_API int cuGraphLaunch(void *graph, void *stream) {
  ENTER(514, "cuGraphLaunch");
  for (uint32_t i = 0; i < (uint32_t)(uintptr_t)graph; i++) {
    fake_kernel node = {.name = "graph_node", .grid = {1, 1, 1}, .block = {32, 1, 1}, .stream = stream_id(stream), .graph_node = i + 1, .graph = 1};
    TELL(kernel, &node);
  }
  TELL(graph, 1, stream_id(stream));
  LEAVE(514, "cuGraphLaunch");
  return SUCCESS;
}

typedef struct {
  const char *name;
  uint64_t launches;
} job;

static void *run(void *argument) {
  const job *j = argument;
  for (uint64_t i = 0; i < j->launches; i++) {
    fake_kernel kernel = {.name = j->name, .grid = {(uint32_t)(i % 1000) + 1, 2, 3}, .block = {128, 1, 1}, .shared = 1024, .registers = 24, .stream = 7};
    fake_launch(&kernel);
  }
  return NULL;
}

// fake_run launches from some threads of its own and waits for them.
FAKE_API int fake_run(int threads, uint64_t launches, const char *name) {
  job j = {name, launches};
  pthread_t *ids = calloc((size_t)threads, sizeof *ids);
  int started = 0;
  while (started < threads && pthread_create(&ids[started], NULL, run, &j) == 0) started++;
  for (int i = 0; i < started; i++) pthread_join(ids[i], NULL);
  free(ids);
  return started == threads ? 0 : -1;
}
