// SPDX-License-Identifier: Apache-2.0
// A program that knows the CUDA driver only: it launches a kernel 100 times.
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

static void *cuda;

#define CALL(name, ...)                                                       \
  do {                                                                        \
    int (*f)() = (int (*)())dlsym(cuda, #name);                               \
    int result = f == NULL ? -1 : f(__VA_ARGS__);                             \
    if (result != 0) {                                                        \
      fprintf(stderr, #name ": %d\n", result);                                \
      return 1;                                                               \
    }                                                                         \
  } while (0)

int main(void) {
  void *context, *module, *function;
  cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (cuda == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  CALL(cuInit, 0);
  CALL(cuCtxCreate_v2, &context, 0, 0);
  CALL(cuModuleLoadData, &module, "image");
  CALL(cuModuleGetFunction, &function, module, "gemm");
  for (int i = 0; i < 100; i++) {
    CALL(cuLaunchKernel, function, 4, 1, 1, 128, 1, 1, 0, NULL, NULL, NULL);
  }
  CALL(cuCtxSynchronize);
  puts("done");
  return 0;
}
