// SPDX-License-Identifier: Apache-2.0
//
// A window that has more rows than there is room for at a time: they come in portions, and none is
// lost. Read too late they are, and counted.

#include "core.h"
#include "gpufl_deep.h"

enum { KERNELS = 2000, ROWS = 4 * KERNELS, SAMPLES = 10 * KERNELS };

static gpufl_deep_config config = {.limit_ns = (int64_t)5e9};

static void open_window(uint32_t max_rows) {
  char name[32];
  config.max_rows = max_rows;
  CHECK(gpufl_deep_open(&config) == GPUFL_OK);
  for (int i = 0; i < KERNELS; i++) {
    snprintf(name, sizeof name, "k%d", i);
    CHECK(fake_run(1, 1, name) == 0);
  }
}

static uint64_t sum;
static int read_rows(void) {
  gpufl_deep_row rows[100];
  int all = 0, n;
  while ((n = gpufl_deep_read(rows, 100)) > 0) {
    for (int i = 0; i < n; i++) sum += rows[i].value;
    all += n;
  }
  return all;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  open_fakes(argv[1]);
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
  int (*create)(void **, unsigned, int);
  *(void **)&create = dlsym(cuda, "cuCtxCreate_v2");
  gpufl_config open = {.buffer_bytes = 1 << 18, .buffers = 16, .kinds = BASIC_KINDS, .deep = 1, .cubin_bytes = 1 << 20};
  CHECK(gpufl_open(&open) == GPUFL_OK);
  CHECK(create(&context, 0, 0) == 0);

  // Room for one portion (1024 places with at most 6 reasons each) and a little more.
  open_window(1024 * 6 + 100);
  int more = 1, rows = 0, portions = 0;
  while (more) {
    CHECK(gpufl_deep_collect(&more) == GPUFL_OK);
    rows += read_rows();
    portions++;
  }
  CHECK(gpufl_deep_close((int64_t)5e9) == GPUFL_OK);
  CHECK(read_rows() == 0 && rows == ROWS && sum == SAMPLES && portions > 1);
  gpufl_deep_counts counts;
  gpufl_deep_get_counts(&counts);
  CHECK(counts.lost_rows == 0 && counts.lost_names == 0 && counts.samples == SAMPLES);
  CHECK(gpufl_deep_function(KERNELS) != NULL && gpufl_deep_function(KERNELS + 1) == NULL);
  CHECK(gpufl_deep_end() == GPUFL_OK && gpufl_deep_function(0) == NULL);

  open_window(100);
  sum = 0;
  CHECK(gpufl_deep_close((int64_t)5e9) == GPUFL_OK);
  CHECK(read_rows() == 100);
  gpufl_deep_get_counts(&counts);
  CHECK(counts.lost_rows == ROWS - 100 && sum + counts.lost_value == SAMPLES);
  CHECK(gpufl_deep_end() == GPUFL_OK);
  CHECK(gpufl_close() == GPUFL_OK);
  return 0;
}
