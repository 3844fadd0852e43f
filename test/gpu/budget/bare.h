// SPDX-License-Identifier: Apache-2.0
//
// Definitions for the programs in this folder that use CUPTI and the driver directly, without our
// core.

#ifndef BARE_H
#define BARE_H

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#include "check.h"
#include "gpufl_deep_abi.h"

#define BARE_FIELD(field, symbol, parameters) static int(*field) parameters;
GPUFL_CUPTI_REQUIRED(BARE_FIELD)
GPUFL_CUPTI_OPTIONAL(BARE_FIELD)
GPUFL_DEEP_SHARED(BARE_FIELD)
GPUFL_DEEP_PC(BARE_FIELD)
GPUFL_DEEP_SASS(BARE_FIELD)
GPUFL_DEEP_DRIVER(BARE_FIELD)
#define BARE_OTHERS(G)                                                       \
  G(enable_context, cuptiActivityEnableContext, (void *, uint32_t))          \
  G(disable_context, cuptiActivityDisableContext, (void *, uint32_t))         \
  G(sass_unset_config, cuptiSassMetricsUnsetConfig, (void *))
BARE_OTHERS(BARE_FIELD)
#define BARE_DRIVER(G)                                                       \
  G(cu_init, cuInit, (unsigned))                                             \
  G(cu_retain, cuDevicePrimaryCtxRetain, (void **, int))                     \
  G(cu_current, cuCtxSetCurrent, (void *))                                   \
  G(cu_which, cuCtxGetCurrent, (void **))                                    \
  G(cu_load, cuModuleLoadData, (void **, const void *))                      \
  G(cu_function, cuModuleGetFunction, (void **, void *, const char *))       \
  G(cu_stream, cuStreamCreate, (void **, unsigned))                          \
  G(cu_synchronize, cuCtxSynchronize, (void))                                \
  G(cu_launch, cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))
BARE_DRIVER(BARE_FIELD)

// load_bare opens both. CUPTI's file is given.
static void load_bare(const char *cupti) {
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *library = dlopen(cupti, RTLD_NOW);
  CHECK(cuda != NULL && library != NULL);
#define BARE_LOOK_UP(field, symbol, parameters) *(void **)&field = dlsym(from, #symbol);
  void *from = library;
  GPUFL_CUPTI_REQUIRED(BARE_LOOK_UP)
  GPUFL_CUPTI_OPTIONAL(BARE_LOOK_UP)
  GPUFL_DEEP_SHARED(BARE_LOOK_UP)
  GPUFL_DEEP_PC(BARE_LOOK_UP)
  GPUFL_DEEP_SASS(BARE_LOOK_UP)
  BARE_OTHERS(BARE_LOOK_UP)
  from = cuda;
  GPUFL_DEEP_DRIVER(BARE_LOOK_UP)
  BARE_DRIVER(BARE_LOOK_UP)
}

enum {
  KERNEL = 3, // CUPTI_ACTIVITY_KIND_KERNEL, which our core does not enable
  CONCURRENT_KERNEL = GPUFL_CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
  BUFFER = 8 << 20,
};

static inline bool is_kernel(uint32_t kind) { return kind == CONCURRENT_KERNEL || kind == KERNEL; }

static int zeroed_buffers;

static inline void on_request(uint8_t **buffer, size_t *size, size_t *most) {
  *size = BUFFER;
  *most = 0;
  *buffer = zeroed_buffers ? calloc(1, BUFFER) : malloc(BUFFER);
}

// on_record is the program's.
static void on_record(uint32_t kind, const char *record);

static inline void on_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
  (void)context, (void)stream, (void)size;
  void *record = NULL;
  while (valid > 0 && next_record(buffer, valid, &record) == 0) {
    uint32_t kind;
    memcpy(&kind, record, sizeof kind);
    on_record(kind, record);
  }
  free(buffer);
}

// set_byte sets an attribute of one byte.
static inline int set_byte(uint32_t attribute, uint8_t value) {
  size_t size = sizeof value;
  return set_attribute(attribute, &size, &value);
}

// tell_of enables or disables CUPTI's callbacks for driver functions by the prefix of their names.
static inline void tell_of(void *subscriber, uint32_t on, const char *begin) {
  for (uint32_t id = 1; id < 1200; id++) {
    const char *name = NULL;
    if (callback_name(1, id, &name) == 0 && name != NULL && strncmp(name, begin, strlen(begin)) == 0) enable_callback(on, subscriber, 1, id);
  }
}

static inline void tell_of_launches(void *subscriber, uint32_t on) { tell_of(subscriber, on, "cuLaunchKernel"); }

// EMPTY_KERNEL is the PTX text of an empty kernel.
#define EMPTY_KERNEL(name) ".visible .entry " name "() { ret; }\n"
// ADDING_KERNEL is the PTX text of a kernel whose threads each add one to their element. Percent signs
// are doubled for printf.
#define ADDING_KERNEL(name)                                                                                                                       \
  ".visible .entry " name "(.param .u64 p) { .reg .u64 %%a<4>; .reg .u32 %%b<3>; ld.param.u64 %%a0, [p]; cvta.to.global.u64 %%a1, %%a0; "         \
  "mov.u32 %%b0, %%tid.x; mul.wide.u32 %%a2, %%b0, 4; add.u64 %%a3, %%a1, %%a2; ld.global.u32 %%b1, [%%a3]; add.u32 %%b2, %%b1, 1; "               \
  "st.global.u32 [%%a3], %%b2; ret; }\n"
#define PTX ".version 7.0\n.target sm_75\n.address_size 64\n"

#endif
