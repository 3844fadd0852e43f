/* SPDX-License-Identifier: Apache-2.0
 *
 * A driver library that does nothing but hand out handles and addresses. It is compiled with frame
 * pointers and without endbr64, so that functions begin as NVIDIA's do (push %rbp); with
 * -fcf-protection=branch they begin with endbr64.
 *
 * A result other than 0 is returned by the functions that STUB_FAIL names: a list of name=code,
 * separated by commas. With STUB_BLOCK cuCtxSynchronize does not return.
 */
#include "stub.h"

#include <unistd.h>

typedef int CUresult;
typedef void *handle;
typedef unsigned long long CUdeviceptr;

/* What cuLaunchKernelEx takes: CUlaunchConfig. */
typedef struct {
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  handle hStream;
  void *attrs;
  unsigned numAttrs;
} launch_config;

static uint64_t next(void) {
  static atomic_ullong last = 0x100000;
  return atomic_fetch_add(&last, 0x1000);
}

API CUresult cuInit(unsigned flags) { (void)flags; CALL(cuInit); return 0; }

#define LAUNCH(name)                                                                                                        \
  API CUresult name(handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, \
                    handle stream, void **params, void **extra) {                                                           \
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)params, (void)extra; \
    CALL(name);                                                                                                             \
    return 0;                                                                                                               \
  }
LAUNCH(cuLaunchKernel)
LAUNCH(cuLaunchKernel_ptsz)

#define COOPERATIVE(name)                                                                                                   \
  API CUresult name(handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, \
                    handle stream, void **params) {                                                                         \
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)params;          \
    CALL(name);                                                                                                             \
    return 0;                                                                                                               \
  }
COOPERATIVE(cuLaunchCooperativeKernel)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz)

#define LAUNCH_EX(name)                                                                     \
  API CUresult name(const launch_config *c, handle f, void **params, void **extra) {        \
    (void)c, (void)f, (void)params, (void)extra;                                            \
    CALL(name);                                                                             \
    return 0;                                                                               \
  }
LAUNCH_EX(cuLaunchKernelEx)
LAUNCH_EX(cuLaunchKernelEx_ptsz)

#define COPY(name, to, from)                       \
  API CUresult name(to dst, from src, size_t n) {  \
    (void)dst, (void)src, (void)n;                 \
    CALL(name);                                    \
    return 0;                                      \
  }
COPY(cuMemcpyHtoD_v2, CUdeviceptr, const void *)
COPY(cuMemcpyDtoH_v2, void *, CUdeviceptr)
COPY(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr)
COPY(cuMemcpy, CUdeviceptr, CUdeviceptr)

#define COPY_ASYNC(name, to, from)                            \
  API CUresult name(to dst, from src, size_t n, handle s) {   \
    (void)dst, (void)src, (void)n, (void)s;                   \
    CALL(name);                                               \
    return 0;                                                 \
  }
COPY_ASYNC(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *)
COPY_ASYNC(cuMemcpyHtoDAsync_v2_ptsz, CUdeviceptr, const void *)
COPY_ASYNC(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr)
COPY_ASYNC(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr)
COPY_ASYNC(cuMemcpyAsync, CUdeviceptr, CUdeviceptr)

API CUresult cuMemcpyPeer(CUdeviceptr d, handle dc, CUdeviceptr s, handle sc, size_t n) {
  (void)d, (void)dc, (void)s, (void)sc, (void)n;
  CALL(cuMemcpyPeer);
  return 0;
}
API CUresult cuMemcpyPeerAsync(CUdeviceptr d, handle dc, CUdeviceptr s, handle sc, size_t n, handle st) {
  (void)d, (void)dc, (void)s, (void)sc, (void)n, (void)st;
  CALL(cuMemcpyPeerAsync);
  return 0;
}

API CUresult cuMemsetD8_v2(CUdeviceptr d, unsigned char v, size_t n) { (void)d, (void)v, (void)n; CALL(cuMemsetD8_v2); return 0; }
API CUresult cuMemsetD16_v2(CUdeviceptr d, unsigned short v, size_t n) { (void)d, (void)v, (void)n; CALL(cuMemsetD16_v2); return 0; }
API CUresult cuMemsetD32_v2(CUdeviceptr d, unsigned v, size_t n) { (void)d, (void)v, (void)n; CALL(cuMemsetD32_v2); return 0; }
API CUresult cuMemsetD8Async(CUdeviceptr d, unsigned char v, size_t n, handle s) { (void)d, (void)v, (void)n, (void)s; CALL(cuMemsetD8Async); return 0; }
API CUresult cuMemsetD32Async(CUdeviceptr d, unsigned v, size_t n, handle s) { (void)d, (void)v, (void)n, (void)s; CALL(cuMemsetD32Async); return 0; }
API CUresult cuMemsetD2D8_v2(CUdeviceptr d, size_t pitch, unsigned char v, size_t w, size_t h) {
  (void)d, (void)pitch, (void)v, (void)w, (void)h;
  CALL(cuMemsetD2D8_v2);
  return 0;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n) { (void)n; CALL(cuMemAlloc_v2); *p = next(); return 0; }
API CUresult cuMemFree_v2(CUdeviceptr p) { (void)p; CALL(cuMemFree_v2); return 0; }
API CUresult cuMemAllocAsync(CUdeviceptr *p, size_t n, handle s) { (void)n, (void)s; CALL(cuMemAllocAsync); *p = next(); return 0; }
API CUresult cuMemFreeAsync(CUdeviceptr p, handle s) { (void)p, (void)s; CALL(cuMemFreeAsync); return 0; }
API CUresult cuMemAllocManaged(CUdeviceptr *p, size_t n, unsigned f) { (void)n, (void)f; CALL(cuMemAllocManaged); *p = next(); return 0; }
API CUresult cuMemHostAlloc(void **p, size_t n, unsigned f) { (void)n, (void)f; CALL(cuMemHostAlloc); *p = (void *)(uintptr_t)next(); return 0; }
API CUresult cuMemAllocHost_v2(void **p, size_t n) { (void)n; CALL(cuMemAllocHost_v2); *p = (void *)(uintptr_t)next(); return 0; }
API CUresult cuMemFreeHost(void *p) { (void)p; CALL(cuMemFreeHost); return 0; }

API CUresult cuStreamSynchronize(handle s) { (void)s; CALL(cuStreamSynchronize); return 0; }
API CUresult cuEventSynchronize(handle e) { (void)e; CALL(cuEventSynchronize); return 0; }
API CUresult cuCtxSynchronize(void) {
  CALL(cuCtxSynchronize);
  while (getenv("STUB_BLOCK") != NULL) pause();
  return 0;
}

API CUresult cuMemcpy2D_v2(const void *copy) { (void)copy; CALL(cuMemcpy2D_v2); return 0; }
API CUresult cuMemcpy3DAsync_v2(const void *copy, handle s) { (void)copy, (void)s; CALL(cuMemcpy3DAsync_v2); return 0; }
API CUresult cuMemcpyWithAttributesAsync(CUdeviceptr d, CUdeviceptr s, size_t n, void *a, handle st) {
  (void)d, (void)s, (void)n, (void)a, (void)st;
  CALL(cuMemcpyWithAttributesAsync);
  return 0;
}
API CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *d, CUdeviceptr *s, size_t *sizes, size_t n, void *a, size_t *i, size_t m, handle st) {
  (void)d, (void)s, (void)sizes, (void)n, (void)a, (void)i, (void)m, (void)st;
  CALL(cuMemcpyBatchAsync_v2);
  return 0;
}
API CUresult cuMemcpy3DBatchAsync_v2(size_t n, void *operations, unsigned long long f, handle st) {
  (void)n, (void)operations, (void)f, (void)st;
  CALL(cuMemcpy3DBatchAsync_v2);
  return 0;
}

API CUresult cuStreamBeginCapture_v2(handle s, int mode) { (void)s, (void)mode; CALL(cuStreamBeginCapture_v2); return 0; }
API CUresult cuStreamEndCapture(handle s, handle *graph) { (void)s; CALL(cuStreamEndCapture); *graph = (handle)(uintptr_t)next(); return 0; }
API CUresult cuGraphInstantiateWithFlags(handle *exec, handle graph, unsigned long long f) {
  (void)graph, (void)f;
  CALL(cuGraphInstantiateWithFlags);
  *exec = (handle)(uintptr_t)next();
  return 0;
}
#define HANDLE(p) (*(p) = (handle)(uintptr_t)next())

API CUresult cuStreamBeginCaptureToGraph(handle s, handle graph, const handle *d, const void *e, size_t n, int mode) {
  (void)s, (void)graph, (void)d, (void)e, (void)n, (void)mode;
  CALL(cuStreamBeginCaptureToGraph);
  return 0;
}
API CUresult cuGraphInstantiate(handle *exec, handle graph, handle *node, char *log, size_t n) {
  (void)graph, (void)node, (void)log, (void)n;
  CALL(cuGraphInstantiate);
  HANDLE(exec);
  return 0;
}
API CUresult cuGraphExecUpdate_v2(handle exec, handle graph, void *result) { (void)exec, (void)graph, (void)result; CALL(cuGraphExecUpdate_v2); return 0; }
API CUresult cuGraphCreate(handle *graph, unsigned f) { (void)f; CALL(cuGraphCreate); HANDLE(graph); return 0; }
API CUresult cuGraphClone(handle *clone, handle graph) { (void)graph; CALL(cuGraphClone); HANDLE(clone); return 0; }
API CUresult cuGraphDestroy(handle graph) { (void)graph; CALL(cuGraphDestroy); return 0; }
API CUresult cuGraphExecDestroy(handle exec) { (void)exec; CALL(cuGraphExecDestroy); return 0; }
API CUresult cuGraphAddKernelNode_v2(handle *node, handle graph, const handle *d, size_t n, const void *p) {
  (void)graph, (void)d, (void)n, (void)p;
  CALL(cuGraphAddKernelNode_v2);
  HANDLE(node);
  return 0;
}
API CUresult cuGraphAddChildGraphNode(handle *node, handle graph, const handle *d, size_t n, handle child) {
  (void)graph, (void)d, (void)n, (void)child;
  CALL(cuGraphAddChildGraphNode);
  HANDLE(node);
  return 0;
}
API CUresult cuGraphAddNode_v2(handle *node, handle graph, const handle *d, const void *e, size_t n, void *p) {
  (void)graph, (void)d, (void)e, (void)n, (void)p;
  CALL(cuGraphAddNode_v2);
  HANDLE(node);
  return 0;
}
API CUresult cuEventRecord(handle e, handle s) { (void)e, (void)s; CALL(cuEventRecord); return 0; }
API CUresult cuStreamWaitEvent(handle s, handle e, unsigned f) { (void)s, (void)e, (void)f; CALL(cuStreamWaitEvent); return 0; }
API CUresult cuEventDestroy_v2(handle e) { (void)e; CALL(cuEventDestroy_v2); return 0; }
API CUresult cuStreamDestroy_v2(handle s) { (void)s; CALL(cuStreamDestroy_v2); return 0; }
API CUresult cuKernelGetFunction(handle *f, handle k) { CALL(cuKernelGetFunction); *f = (char *)k + 8; return 0; }

API CUresult cuGraphLaunch(handle exec, handle s) { (void)exec, (void)s; CALL(cuGraphLaunch); return 0; }
API CUresult cuGraphLaunch_ptsz(handle exec, handle s) { (void)exec, (void)s; CALL(cuGraphLaunch_ptsz); return 0; }

API CUresult cuModuleLoadData(handle *m, const void *image) { (void)image; CALL(cuModuleLoadData); *m = (handle)(uintptr_t)next(); return 0; }
API CUresult cuModuleGetFunction(handle *f, handle m, const char *name) { (void)m, (void)name; CALL(cuModuleGetFunction); *f = (handle)(uintptr_t)next(); return 0; }
API CUresult cuLibraryLoadData(handle *l, const void *code, void *a, void *b, unsigned n, void *c, void *d, unsigned m) {
  (void)code, (void)a, (void)b, (void)n, (void)c, (void)d, (void)m;
  CALL(cuLibraryLoadData);
  *l = (handle)(uintptr_t)next();
  return 0;
}
API CUresult cuLibraryGetKernel(handle *k, handle l, const char *name) { (void)l, (void)name; CALL(cuLibraryGetKernel); *k = (handle)(uintptr_t)next(); return 0; }

/* What programs get that ask for addresses: those of the functions above, or with STUB_INNER=1 those of others that do
 * the same, as a driver might. */
#define INNER(name, parameters, ...)      \
  static CUresult inner_##name parameters \
  {                                       \
    CALL(name);                           \
    __VA_ARGS__;                          \
    return 0;                             \
  }
INNER(cuLaunchKernel, (void))
INNER(cuLaunchKernelEx, (void))
INNER(cuGraphLaunch, (void))
INNER(cuMemcpyHtoD_v2, (void))
INNER(cuMemcpyHtoDAsync_v2, (void))
INNER(cuMemsetD8Async, (void))
INNER(cuMemAlloc_v2, (CUdeviceptr *p), *p = next())
INNER(cuMemFree_v2, (void))
INNER(cuStreamSynchronize, (void))
INNER(cuCtxSynchronize, (void))
INNER(cuStreamBeginCapture_v2, (void))
INNER(cuStreamEndCapture, (handle s, handle *graph), (void)s, HANDLE(graph))
INNER(cuGraphInstantiateWithFlags, (handle *exec), HANDLE(exec))

#define ADDRESS(name) {#name, (void *)(uintptr_t)name, (void *)(uintptr_t)inner_##name}
static const struct { const char *name; void *outer, *inner; } addresses[] = {
  ADDRESS(cuLaunchKernel), ADDRESS(cuLaunchKernelEx), ADDRESS(cuGraphLaunch), ADDRESS(cuMemcpyHtoD_v2), ADDRESS(cuMemcpyHtoDAsync_v2),
  ADDRESS(cuMemsetD8Async), ADDRESS(cuMemAlloc_v2), ADDRESS(cuMemFree_v2), ADDRESS(cuStreamSynchronize), ADDRESS(cuCtxSynchronize),
  ADDRESS(cuStreamBeginCapture_v2), ADDRESS(cuStreamEndCapture), ADDRESS(cuGraphInstantiateWithFlags),
};

API CUresult cuGetProcAddress(const char *name, void **address, int version, uint64_t flags) {
  const char *inner = getenv("STUB_INNER");
  (void)version, (void)flags;
  for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
    if (strcmp(addresses[i].name, name) != 0) continue;
    *address = inner != NULL && strcmp(inner, "1") == 0 ? addresses[i].inner : addresses[i].outer;
    return 0;
  }
  return 500;
}
