/* SPDX-License-Identifier: Apache-2.0
 *
 * ONNX Runtime that also launches kernels. It passes all calls to the library REAL. In Run, it
 * launches one kernel for each row of the first input, on the thread of the caller, as the CUDA
 * provider does. The grid of the kernel is 1,000 times the first number of its row, so that a test
 * can tell to which request a kernel belongs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "onnxruntime_c_api.h"

typedef int (*launch_fn)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **parameters, void **extra);

static OrtApi api;
static OrtStatusPtr(ORT_API_CALL *real_create)(const OrtEnv *, const ORTCHAR_T *, const OrtSessionOptions *, OrtSession **);
static OrtStatusPtr(ORT_API_CALL *real_run)(OrtSession *, const OrtRunOptions *, const char *const *, const OrtValue *const *, size_t, const char *const *, size_t, OrtValue **);
static const OrtApiBase *real;
static launch_fn launch;

static void *need(void *library, const char *name) {
  void *found = library != NULL ? dlsym(library, name) : NULL;
  if (found == NULL) {
    fprintf(stderr, "launching: %s: %s\n", name, dlerror());
    abort();
  }
  return found;
}

static OrtStatusPtr ORT_API_CALL run(OrtSession *session, const OrtRunOptions *options, const char *const *input_names, const OrtValue *const *inputs,
                                     size_t input_count, const char *const *output_names, size_t output_count, OrtValue **outputs) {
  OrtTensorTypeAndShapeInfo *info = NULL;
  int64_t dims[8] = {0};
  size_t rank = 0, elements = 0;
  void *data = NULL;
  if (api.GetTensorTypeAndShape(inputs[0], &info) == NULL) {
    if (api.GetDimensionsCount(info, &rank) != NULL || rank > 8 || api.GetDimensions(info, dims, rank) != NULL ||
        api.GetTensorShapeElementCount(info, &elements) != NULL || api.GetTensorMutableData((OrtValue *)(uintptr_t)inputs[0], &data) != NULL)
      abort();
    api.ReleaseTensorTypeAndShapeInfo(info);
    for (int64_t row = 0; row < dims[0]; row++) {
      float first = ((const float *)data)[(size_t)row * (elements / (size_t)dims[0])];
      if (first == 0) continue; /* the warm-up */
      if (launch((void *)(uintptr_t) "row_kernel", (unsigned)(first * 1000 + 0.5f), 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) != 0) abort();
    }
  }
  usleep(1000); /* requests queue meanwhile, so that batches form */
  return real_run(session, options, input_names, inputs, input_count, output_names, output_count, outputs);
}

static OrtStatusPtr ORT_API_CALL create(const OrtEnv *env, const ORTCHAR_T *path, const OrtSessionOptions *options, OrtSession **session) {
  fputs("launching: a session opens\n", stderr); /* the test counts these lines */
  return real_create(env, path, options, session);
}

static const OrtApi *ORT_API_CALL get_api(uint32_t version) {
  const OrtApi *found = real->GetApi(version);
  if (found == NULL) return NULL;
  api = *found;
  real_run = api.Run;
  api.Run = run;
  real_create = api.CreateSession;
  api.CreateSession = create;
  return &api;
}

static const char *ORT_API_CALL get_version(void) { return real->GetVersionString(); }

__attribute__((visibility("default"))) const OrtApiBase *ORT_API_CALL OrtGetApiBase(void) {
  static const OrtApiBase base = {get_api, get_version};
  real = ((const OrtApiBase *(*)(void))(uintptr_t)need(dlopen(REAL, RTLD_NOW | RTLD_LOCAL), "OrtGetApiBase"))();
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  launch = (launch_fn)(uintptr_t)need(driver, "cuLaunchKernel");
  int (*init)(unsigned) = (int (*)(unsigned))(uintptr_t)need(driver, "cuInit");
  if (init(0) != 0) abort();
  return &base;
}
