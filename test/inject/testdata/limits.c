// SPDX-License-Identifier: Apache-2.0
// Sets a limit, loads a library as the driver does, and exits with 3: limits LIBRARY|- RESOURCE VALUE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
int main(int argc, char **argv) {
  rlim_t value = strtoull(argv[3], NULL, 10);
  struct rlimit limit = {value, value};
  void *library;
  int (*start)(void);
  if (argc != 4 || setrlimit(atoi(argv[2]), &limit) != 0) return 4;
  if (argv[1][0] != '-' && (library = dlopen(argv[1], RTLD_NOW)) != NULL) {
    *(void **)&start = dlsym(library, "InitializeInjection");
    if (start != NULL) start();
  }
  puts("done");
  return 3;
}
