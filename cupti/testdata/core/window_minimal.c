// SPDX-License-Identifier: Apache-2.0
//
// A CUPTI without one of the engines, or without both: argv[2] and argv[3] are what
// gpufl_deep_supported answers for each. All else works.

#include "core.h"
#include "gpufl_deep.h"

int main(int argc, char **argv) {
  CHECK(argc == 4);
  open_fakes(argv[1]);
  static const char *const metrics[] = {"smsp__sass_inst_executed"};
  gpufl_deep_config config = {.names = metrics, .max_rows = 10, .limit_ns = 1000000000};
  gpufl_config open = {.buffer_bytes = 1 << 18, .buffers = 16, .kinds = BASIC_KINDS, .deep = 1, .cubin_bytes = 1 << 20};
  CHECK(gpufl_open(&open) == GPUFL_OK);
  uint32_t enabled = 0;
  int refusal = 0;
  CHECK(gpufl_start(&enabled, &refusal) == GPUFL_OK);
  for (int engine = 0; engine < GPUFL_NUM_ENGINES; engine++) {
    int want = atoi(argv[2 + engine]);
    CHECK(gpufl_deep_supported(engine) == want);
    config.engine = (uint32_t)engine;
    config.num_names = engine == GPUFL_DEEP_SASS ? 1 : 0;
    config.with_activity = 1;
    int opened = gpufl_deep_open(&config);
    CHECK(opened == (want != GPUFL_OK ? want : GPUFL_NO_CONTEXT));
  }
  CHECK(gpufl_deep_supported(GPUFL_NUM_ENGINES) < 0);
  CHECK(fake_run(1, 100, "k") == 0);
  CHECK(gpufl_stop() == GPUFL_OK);
  CHECK(take_all(0) == 100);
  CHECK(gpufl_close() == GPUFL_OK);
  return 0;
}
