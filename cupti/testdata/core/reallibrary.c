// SPDX-License-Identifier: Apache-2.0
//
// NVIDIA's own libcupti, argv[1], has all functions that windows need. It does so without a driver.

#include "core.h"
#include "gpufl_deep.h"

int main(int argc, char **argv) {
  CHECK(argc == 2);
  char words[GPUFL_ERROR_SIZE];
  CHECK(gpufl_deep_supported(GPUFL_DEEP_PC) == GPUFL_NO_LIBRARY);
  CHECK(gpufl_load(argv[1], 0, words) == GPUFL_OK);
  CHECK(gpufl_version() == 130001);
  CHECK(gpufl_deep_supported(GPUFL_DEEP_PC) == GPUFL_OK);
  CHECK(gpufl_deep_supported(GPUFL_DEEP_SASS) == GPUFL_OK);
  return 0;
}
