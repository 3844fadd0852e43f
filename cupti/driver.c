// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "gpufl_deep_internal.h"

gpufl_driver_calls gpufl_driver;

// The state of this file. The lock orders the threads that load the driver; gpufl_driver is
// complete once loaded is true.
static struct {
  pthread_mutex_t lock;
  atomic_bool loaded;
} core = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define SYMBOL_REQUIRED(field, symbol, parameters) \
  {#symbol, offsetof(gpufl_driver_calls, field), true},
#define SYMBOL_OPTIONAL(field, symbol, parameters) \
  {#symbol, offsetof(gpufl_driver_calls, field), false},
static const gpufl_symbol driver_symbols[] = {GPUFL_DRIVER_REQUIRED(SYMBOL_REQUIRED)
                                                  GPUFL_DRIVER_OPTIONAL(SYMBOL_OPTIONAL)};

bool gpufl_resolve(void *library, void *table, const gpufl_symbol *symbols, size_t n,
                   char error[GPUFL_ERROR_SIZE]) {
  for (size_t i = 0; i < n; i++) {
    void *address = dlsym(library, symbols[i].name);
    if (address == NULL && symbols[i].required) {
      snprintf(error, GPUFL_ERROR_SIZE, "%s is missing", symbols[i].name);
      return false;
    }
    memcpy((char *)table + symbols[i].offset, &address, sizeof address);
  }
  return true;
}

bool gpufl_driver_ready(void) { return atomic_load(&core.loaded); }

int gpufl_driver_load(char error[GPUFL_ERROR_SIZE]) {
  error[0] = 0;
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (gpufl_driver_ready()) return GPUFL_OK;
  gpufl_watch_fork();
  int result = GPUFL_OK;
  pthread_mutex_lock(&core.lock);
  if (!gpufl_driver_ready()) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
      const char *words = dlerror();
      snprintf(error, GPUFL_ERROR_SIZE, "%s", words ? words : "dlopen");
      result = GPUFL_NO_LIBRARY;
    } else if (!gpufl_resolve(library, &gpufl_driver, driver_symbols,
                              sizeof driver_symbols / sizeof *driver_symbols, error)) {
      dlclose(library);
      result = GPUFL_NO_SYMBOL;
    } else {
      gpufl_deep_load_driver(library);
      atomic_store(&core.loaded, true);
    }
  }
  pthread_mutex_unlock(&core.lock);
  return result;
}

int gpufl_driver_version(void) {
  int version = 0;
  if (gpufl_is_child() || !gpufl_driver_ready() || gpufl_driver.driver_version(&version) != 0) {
    return 0;
  }
  return version;
}

int gpufl_driver_init(void) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (!gpufl_driver_ready()) return GPUFL_NO_LIBRARY;
  return gpufl_driver.init(0);
}

static int32_t attribute(int device, int which) {
  int value = 0;
  return gpufl_driver.device_attribute(&value, which, device) == 0 ? value : -1;
}

int gpufl_devices(gpufl_device *out, int n) {
  if (gpufl_is_child() || !gpufl_driver_ready()) return 0;
  int count = 0;
  int result = gpufl_driver.device_count(&count);
  if (result != 0) return -result;
  for (int i = 0; i < count && i < n; i++) {
    gpufl_device *d = &out[i];
    memset(d, 0, sizeof *d);
    d->ordinal = i;
    d->major = d->minor = d->sm_count = -1;
    int device = 0;
    if (gpufl_driver.device_get(&device, i) != 0) continue;
    if (gpufl_driver.device_name(d->name, sizeof d->name, device) != 0) d->name[0] = 0;
    d->name[sizeof d->name - 1] = 0;
    d->major = attribute(device, GPUFL_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    d->minor = attribute(device, GPUFL_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    d->sm_count = attribute(device, GPUFL_CU_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    uint8_t board[16];
    bool has_board =
        gpufl_driver.device_uuid != NULL && gpufl_driver.device_uuid(board, device) == 0;
    if (gpufl_driver.device_uuid_v2 != NULL && gpufl_driver.device_uuid_v2(d->uuid, device) == 0) {
      d->has_uuid = 1;
      d->mig = has_board && memcmp(board, d->uuid, sizeof board) != 0;
    } else if (has_board) {
      memcpy(d->uuid, board, sizeof board);
      d->has_uuid = 1;
    }
  }
  return count;
}
