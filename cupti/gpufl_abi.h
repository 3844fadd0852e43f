/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of CUPTI and of the CUDA driver that the C core uses. We declare them ourselves, so the
 * build needs no CUDA. TestLayoutMatchesNVIDIAsHeaders compares every constant with NVIDIA's
 * headers of CUDA 11.8 to 13.5. The libraries of CUDA 11.8, 12.0, 12.4, 12.9, 13.0 and 13.5 all
 * have these functions.
 */
#ifndef GPUFL_ABI_H
#define GPUFL_ABI_H

#include <stddef.h>
#include <stdint.h>

/* X(name, value): NVIDIA's name; ours has the prefix GPUFL_. */
#define GPUFL_ABI_CONSTANTS(X)                        \
  X(CUPTI_SUCCESS, 0)                                 \
  X(CUPTI_ERROR_INVALID_PARAMETER, 1)                 \
  X(CUPTI_ERROR_MAX_LIMIT_REACHED, 12)                \
  X(CUPTI_ERROR_NOT_SUPPORTED, 27)                    \
  X(CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED, 33) \
  X(CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, 35)          \
  X(CUPTI_ERROR_OLD_PROFILER_API_INITIALIZED, 36)     \
  X(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, 39) \
  X(CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES, 40) \
  X(CUPTI_ACTIVITY_KIND_MEMCPY, 1)                    \
  X(CUPTI_ACTIVITY_KIND_MEMSET, 2)                    \
  X(CUPTI_ACTIVITY_KIND_DRIVER, 4)                    \
  X(CUPTI_ACTIVITY_KIND_RUNTIME, 5)                   \
  X(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, 10)        \
  X(CUPTI_ACTIVITY_KIND_OVERHEAD, 17)                 \
  X(CUPTI_ACTIVITY_KIND_MEMCPY2, 22)                  \
  X(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, 38)          \
  X(CUPTI_ACTIVITY_KIND_MEMORY2, 49)                  \
  X(CUPTI_ACTIVITY_KIND_GRAPH_TRACE, 51)              \
  X(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED, 1)              \
  X(CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, 5) \
  X(CUPTI_CB_DOMAIN_DRIVER_API, 1)                    \
  X(CUPTI_API_ENTER, 0)                               \
  X(CUPTI_API_EXIT, 1)                                \
  X(CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion, 2)    \
  X(CUPTI_DRIVER_TRACE_CBID_cuDeviceGetCount, 4)

/* Constants in the headers since CUDA 12.4. */
#define GPUFL_ABI_CONSTANTS_12_4(X) X(CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER, 9)

#define GPUFL_ABI_ENUM(name, value) GPUFL_##name = value,
enum { GPUFL_ABI_CONSTANTS(GPUFL_ABI_ENUM) GPUFL_ABI_CONSTANTS_12_4(GPUFL_ABI_ENUM) };
#undef GPUFL_ABI_ENUM

/* CUpti_CallbackData; unchanged since CUDA 4. */
typedef struct {
  uint32_t callbackSite; /* CUpti_ApiCallbackSite */
  const char *functionName;
  const void *functionParams;
  void *functionReturnValue;
  const char *symbolName;
  void *context;
  uint32_t contextUid;
  uint64_t *correlationData;
  uint32_t correlationId; /* also in the records of the call's work */
} gpufl_callback_data;

typedef void (*gpufl_request_fn)(uint8_t **buffer, size_t *size, size_t *max_records);
typedef void (*gpufl_complete_fn)(void *context, uint32_t stream, uint8_t *buffer, size_t size,
                                  size_t valid);
typedef void (*gpufl_callback_fn)(void *user, uint32_t domain, uint32_t cbid, const void *data);
typedef uint64_t (*gpufl_timestamp_fn)(void);

/* G(field, symbol, parameters): the required functions of libcupti. */
#define GPUFL_CUPTI_REQUIRED(G)                                                         \
  G(get_version, cuptiGetVersion, (uint32_t *))                                         \
  G(result_string, cuptiGetResultString, (int, const char **))                          \
  G(activity_enable, cuptiActivityEnable, (uint32_t))                                   \
  G(activity_disable, cuptiActivityDisable, (uint32_t))                                 \
  G(register_callbacks, cuptiActivityRegisterCallbacks, (gpufl_request_fn, gpufl_complete_fn)) \
  G(next_record, cuptiActivityGetNextRecord, (uint8_t *, size_t, void **))              \
  G(flush_all, cuptiActivityFlushAll, (uint32_t))                                       \
  G(num_dropped, cuptiActivityGetNumDroppedRecords, (void *, uint32_t, size_t *))       \
  G(subscribe, cuptiSubscribe, (void **, gpufl_callback_fn, void *))                    \
  G(unsubscribe, cuptiUnsubscribe, (void *))

/* The optional ones: our own clock, scopes and detaching need them. */
#define GPUFL_CUPTI_OPTIONAL(G)                                                         \
  G(register_clock, cuptiActivityRegisterTimestampCallback, (gpufl_timestamp_fn))       \
  G(get_timestamp, cuptiGetTimestamp, (uint64_t *))                                     \
  G(set_attribute, cuptiActivitySetAttribute, (uint32_t, size_t *, void *))             \
  G(enable_callback, cuptiEnableCallback, (uint32_t, void *, uint32_t, uint32_t))       \
  G(callback_name, cuptiGetCallbackName, (uint32_t, uint32_t, const char **))           \
  G(finalize, cuptiFinalize, (void))

/* The required functions of the CUDA driver. Symbols without suffix are in every driver. */
#define GPUFL_DRIVER_REQUIRED(G)                                  \
  G(init, cuInit, (unsigned))                                     \
  G(driver_version, cuDriverGetVersion, (int *))                  \
  G(device_count, cuDeviceGetCount, (int *))                      \
  G(device_get, cuDeviceGet, (int *, int))                        \
  G(device_name, cuDeviceGetName, (char *, int, int))             \
  G(device_attribute, cuDeviceGetAttribute, (int *, int, int))

/* With MIG, _v2 returns the UUID of the instance, the other one that of the board. */
#define GPUFL_DRIVER_OPTIONAL(G)                                  \
  G(device_uuid_v2, cuDeviceGetUuid_v2, (void *, int))            \
  G(device_uuid, cuDeviceGetUuid, (void *, int))

/* CUdevice_attribute and CUresult (cuda.h). */
enum {
  GPUFL_CU_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  GPUFL_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  GPUFL_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  GPUFL_CUDA_ERROR_NOT_INITIALIZED = 3,
  GPUFL_CUDA_ERROR_NO_DEVICE = 100,
};

#endif
