/* SPDX-License-Identifier: Apache-2.0
 *
 * A libcudart that comes to the driver as NVIDIA's does: it asks the driver that is loaded (STUB_DRIVER is its path)
 * for addresses, once, and calls these.
 */
#include "stub.h"

#include <dlfcn.h>

typedef int cudaError_t;
typedef void *handle;
typedef struct { unsigned x, y, z; } dim3;
typedef struct {
  dim3 grid, block;
  size_t shared;
  handle stream;
  void *attributes;
  unsigned num_attributes;
} cudaLaunchConfig_t;

/* Where a kernel is launched that the runtime does not know. */
enum { INVALID_CONFIGURATION = 9, NOT_INITIALIZED = 3 };

static void *address(const char *name) {
  const char *path = getenv("STUB_DRIVER");
  void *driver = path == NULL ? NULL : dlopen(path, RTLD_NOW | RTLD_NOLOAD), *found = NULL;
  int (*get)(const char *, void **, int, uint64_t);
  if (driver == NULL || (*(void **)&get = dlsym(driver, "cuGetProcAddress")) == NULL) return NULL;
  return get(name, &found, 13000, 0) == 0 ? found : NULL;
}

/* DRIVER(name, parameters, arguments) calls a function of the driver and returns its result. */
#define DRIVER(name, parameters, ...)                      \
  static int(*_Atomic function_) parameters;               \
  int(*f_) parameters = function_;                         \
  if (f_ == NULL) {                                        \
    *(void **)&f_ = address(#name);                        \
    if (f_ == NULL) return NOT_INITIALIZED;                \
    function_ = f_;                                        \
  }                                                        \
  return f_(__VA_ARGS__)

typedef unsigned long long CUdeviceptr;
#define LAUNCH (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **)

API cudaError_t cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **args, size_t shared, handle s) {
  if (b.x > 1024) return INVALID_CONFIGURATION; /* without asking the driver */
  DRIVER(cuLaunchKernel, LAUNCH, (void *)f, g.x, g.y, g.z, b.x, b.y, b.z, (unsigned)shared, s, args, NULL);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **args) {
  DRIVER(cuLaunchKernelEx, (const void *, void *, void **, void **), c, (void *)f, args, NULL);
}
API cudaError_t cudaGraphLaunch(handle exec, handle s) { DRIVER(cuGraphLaunch, (handle, handle), exec, s); }
API cudaError_t cudaMemcpy(void *d, const void *s, size_t n, int kind) {
  (void)kind;
  DRIVER(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t), (CUdeviceptr)(uintptr_t)d, s, n);
}
API cudaError_t cudaMemcpyAsync(void *d, const void *s, size_t n, int kind, handle st) {
  (void)kind;
  DRIVER(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, handle), (CUdeviceptr)(uintptr_t)d, s, n, st);
}
API cudaError_t cudaMemset(void *d, int v, size_t n) {
  DRIVER(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, handle), (CUdeviceptr)(uintptr_t)d, (unsigned char)v, n, NULL);
}
API cudaError_t cudaMalloc(void **p, size_t n) { DRIVER(cuMemAlloc_v2, (CUdeviceptr *, size_t), (CUdeviceptr *)(void *)p, n); }
API cudaError_t cudaFree(void *p) { DRIVER(cuMemFree_v2, (CUdeviceptr), (CUdeviceptr)(uintptr_t)p); }
API cudaError_t cudaStreamSynchronize(handle s) { DRIVER(cuStreamSynchronize, (handle), s); }
API cudaError_t cudaDeviceSynchronize(void) { DRIVER(cuCtxSynchronize, (void)); }
API cudaError_t cudaStreamBeginCapture(handle s, int mode) { DRIVER(cuStreamBeginCapture_v2, (handle, int), s, mode); }
API cudaError_t cudaStreamEndCapture(handle s, handle *g) { DRIVER(cuStreamEndCapture, (handle, handle *), s, g); }
API cudaError_t cudaGraphInstantiate(handle *e, handle g, unsigned long long f) {
  DRIVER(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long), e, g, f);
}
