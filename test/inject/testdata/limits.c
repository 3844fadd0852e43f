// SPDX-License-Identifier: Apache-2.0
// Usage: limits RESOURCE VALUE LAUNCHES. Sets a limit, uses the (fake) driver as a CUDA program
// does, prints the driver's results and exits with 3. RESOURCE -1 sets no limit. With MEASURE in
// the environment it also prints its threads, descriptors and address space to stderr.
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int entries(const char *path) {
  DIR *d = opendir(path);
  int n = 0;
  if (d == NULL) return -1;
  for (struct dirent *e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
  closedir(d);
  return n;
}

static void measure(void) {
  char line[256];
  FILE *f = fopen("/proc/self/status", "r");
  fprintf(stderr, "threads %d\ndescriptors %d\n", entries("/proc/self/task"), entries("/proc/self/fd") - 1);
  while (f != NULL && fgets(line, sizeof line, f) != NULL)
    if (strncmp(line, "VmPeak", 6) == 0 || strncmp(line, "VmData", 6) == 0) fputs(line, stderr);
  if (f != NULL) fclose(f);
}

int main(int argc, char **argv) {
  if (argc != 4) return 4;
  int resource = atoi(argv[1]), launches = atoi(argv[3]);
  rlim_t value = strtoull(argv[2], NULL, 10);
  struct rlimit limit = {value, value};
  if (resource >= 0 && setrlimit(resource, &limit) != 0) return 4;
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (cuda == NULL) {
    puts("no driver");
    return 3;
  }
  int (*init)(unsigned), (*create)(void **, unsigned, int), (*load)(void **, const void *), (*sync)(void);
  int (*function)(void **, void *, const char *);
  int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
  *(void **)&init = dlsym(cuda, "cuInit");
  *(void **)&create = dlsym(cuda, "cuCtxCreate_v2");
  *(void **)&load = dlsym(cuda, "cuModuleLoadData");
  *(void **)&function = dlsym(cuda, "cuModuleGetFunction");
  *(void **)&launch = dlsym(cuda, "cuLaunchKernel");
  *(void **)&sync = dlsym(cuda, "cuCtxSynchronize");
  void *context = NULL, *module = NULL, *gemm = NULL;
  int result = init(0);
  result |= create(&context, 0, 0);
  result |= load(&module, "image");
  result |= function(&gemm, module, "gemm");
  for (int i = 0; i < launches; i++) result |= launch(gemm, 4, 1, 1, 128, 1, 1, 0, NULL, NULL, NULL);
  result |= sync();
  if (getenv("MEASURE") != NULL) {
    sleep(2);
    measure();
  }
  printf("%d launches, result %d\n", launches, result);
  return 3;
}
