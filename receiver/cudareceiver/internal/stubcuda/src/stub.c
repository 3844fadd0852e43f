/* SPDX-License-Identifier: Apache-2.0
 *
 * A driver library that does nothing but hand out handles and addresses. It is compiled with frame
 * pointers and without endbr64, so that functions begin as NVIDIA's do (push %rbp); with
 * -fcf-protection=branch they begin with endbr64.
 *
 * A result other than 0 is returned by the functions that STUB_FAIL names: a list of name=code,
 * separated by commas.
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default"), noinline))

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

static int failure(const char *name) {
  static const char *list;
  if (list == NULL) {
    list = getenv("STUB_FAIL");
    if (list == NULL) list = "";
  }
  if (*list == 0) return 0;
  const char *at = strstr(list, name);
  size_t n = strlen(name);
  if (at == NULL || (at != list && at[-1] != ',') || at[n] != '=') return 0;
  return atoi(at + n + 1);
}

/* Something that the compiler cannot leave out. */
static atomic_ulong calls;
#define CALL(name)                                              \
  do {                                                          \
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed); \
    int code_ = failure(#name);                                 \
    if (code_ != 0) return code_;                               \
  } while (0)

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
API CUresult cuCtxSynchronize(void) { CALL(cuCtxSynchronize); return 0; }

API CUresult cuStreamBeginCapture_v2(handle s, int mode) { (void)s, (void)mode; CALL(cuStreamBeginCapture_v2); return 0; }
API CUresult cuStreamEndCapture(handle s, handle *graph) { (void)s; CALL(cuStreamEndCapture); *graph = (handle)(uintptr_t)next(); return 0; }
API CUresult cuGraphInstantiateWithFlags(handle *exec, handle graph, unsigned long long f) {
  (void)graph, (void)f;
  CALL(cuGraphInstantiateWithFlags);
  *exec = (handle)(uintptr_t)next();
  return 0;
}
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
