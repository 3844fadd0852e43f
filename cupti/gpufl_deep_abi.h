/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of CUPTI for PC sampling, SASS metrics and modules. We declare them ourselves, as in
 * gpufl_abi.h. Fields have NVIDIA's names, since TestLayoutMatchesNVIDIAsHeaders compares each with
 * the headers of CUDA 11.8 to 13.5: testdata/core/layout.h lists them.
 *
 * Windows need CUDA 12.4 or later: earlier versions have no SASS metrics and shorter records of PC
 * sampling.
 */
#ifndef GPUFL_DEEP_ABI_H
#define GPUFL_DEEP_ABI_H

#include "gpufl_abi.h"

/* The first result of cuptiGetVersion with the structs below: CUDA 12.4. */
#define GPUFL_DEEP_VERSION 22

#define GPUFL_DEEP_CONSTANTS(X)                                              \
  X(CUPTI_ERROR_INVALID_OPERATION, 7)                                        \
  X(CUPTI_ERROR_OUT_OF_MEMORY, 8)                                            \
  X(CUPTI_ERROR_NOT_COMPATIBLE, 14)                                          \
  X(CUPTI_ERROR_HARDWARE_BUSY, 26)                                           \
  X(CUPTI_CB_DOMAIN_RESOURCE, 3)                                             \
  X(CUPTI_CBID_RESOURCE_CONTEXT_CREATED, 1)                                  \
  X(CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING, 2)                         \
  X(CUPTI_CBID_RESOURCE_STREAM_DESTROY_STARTING, 4)                          \
  X(CUPTI_CBID_RESOURCE_MODULE_LOADED, 6)                                    \
  X(CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING, 7)                           \
  X(CUPTI_CBID_RESOURCE_MODULE_PROFILED, 8)                                  \
  X(CUPTI_STALL_REASON_STRING_SIZE, 128)                                     \
  X(CUPTI_PC_SAMPLING_COLLECTION_MODE_CONTINUOUS, 1)                         \
  X(CUPTI_PC_SAMPLING_COLLECTION_MODE_KERNEL_SERIALIZED, 2)                  \
  X(CUPTI_PC_SAMPLING_OUTPUT_DATA_FORMAT_PARSED, 1)                          \
  X(CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_PERIOD, 1)            \
  X(CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_HARDWARE_BUFFER_SIZE, 4)       \
  X(CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_COLLECTION_MODE, 5)            \
  X(CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_ENABLE_START_STOP_CONTROL, 6)  \
  X(CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_OUTPUT_DATA_FORMAT, 7)         \
  X(CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_DATA_BUFFER, 8)       \
  X(CUPTI_PROFILER_CONFIGURATION_UNSUPPORTED, 1)                             \
  X(CUPTI_PROFILER_CONFIGURATION_DISABLED, 2)

/* Constants in the headers since CUDA 12.4. */
#define GPUFL_DEEP_CONSTANTS_12_4(X)                 \
  X(CUPTI_PROFILER_SASS_METRICS, 2)                  \
  X(CUPTI_SASS_METRICS_OUTPUT_GRANULARITY_GPU, 0)

/* Results in the headers since CUDA 12.9 at the latest. Older libraries may return them. */
#define GPUFL_DEEP_CONSTANTS_12_9(X)                          \
  X(CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED, 41)     \
  X(CUPTI_ERROR_CMP_DEVICE_NOT_SUPPORTED, 42)                 \
  X(CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED, 43)                 \
  X(CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED, 44)                 \
  X(CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED, 45)

#define GPUFL_ABI_ENUM(name, value) GPUFL_##name = value,
enum {
  GPUFL_DEEP_CONSTANTS(GPUFL_ABI_ENUM) GPUFL_DEEP_CONSTANTS_12_4(GPUFL_ABI_ENUM)
  GPUFL_DEEP_CONSTANTS_12_9(GPUFL_ABI_ENUM)
};
#undef GPUFL_ABI_ENUM

/* CUpti_ResourceData and CUpti_ModuleResourceData. */
typedef struct {
  void *context;
  void *resourceHandle; /* a union: the stream, or unused */
  void *resourceDescriptor;
} gpufl_resource_data;

typedef struct {
  uint32_t moduleId;
  size_t cubinSize;
  const char *pCubin;
} gpufl_module_data;

/* CUpti_PCSampling… */
typedef struct {
  uint32_t pcSamplingStallReasonIndex;
  uint32_t samples;
} gpufl_pc_stall;

typedef struct {
  size_t size;
  uint64_t cubinCrc;
  uint64_t pcOffset;
  uint32_t functionIndex;
  uint32_t pad;
  char *functionName;
  size_t stallReasonCount;
  gpufl_pc_stall *stallReason;
  uint32_t correlationId;
} gpufl_pc_record;

typedef struct {
  size_t size;
  size_t collectNumPcs;
  uint64_t totalSamples;
  uint64_t droppedSamples;
  size_t totalNumPcs;
  size_t remainingNumPcs;
  uint64_t rangeId;
  gpufl_pc_record *pPcData;
  uint64_t nonUsrKernelsTotalSamples;
  uint8_t hardwareBufferFull;
} gpufl_pc_data;

typedef struct {
  uint32_t attributeType;
  int attributeStatus;
  union {
    uint64_t data[3];
    uint32_t number;     /* period, mode, control, format */
    size_t bytes;        /* of buffers */
    void *buffer;
  } attributeData;
} gpufl_pc_attribute;

typedef struct {
  size_t size;
  void *pPriv;
  void *ctx;
  size_t numAttributes;
  gpufl_pc_attribute *pPCSamplingConfigurationInfo;
} gpufl_pc_configuration;

/* Parameters of cuptiPCSamplingEnable, Disable, Start and Stop. */
typedef struct {
  size_t size;
  void *pPriv;
  void *ctx;
} gpufl_pc_context;

typedef struct {
  size_t size;
  void *pPriv;
  void *ctx;
  void *pcSamplingData;
} gpufl_pc_get_data;

typedef struct {
  size_t size;
  void *pPriv;
  void *ctx;
  size_t *numStallReasons;
} gpufl_pc_num_reasons;

typedef struct {
  size_t size;
  void *pPriv;
  void *ctx;
  size_t numStallReasons;
  uint32_t *stallReasonIndex;
  char **stallReasons;
} gpufl_pc_reasons;

typedef struct {
  size_t size;
  size_t cubinSize;
  const void *cubin;
  uint64_t cubinCrc;
} gpufl_cubin_crc;

/* CUpti_Profiler_Initialize_Params and …DeInitialize_Params. */
typedef struct {
  size_t structSize;
  void *pPriv;
} gpufl_profiler_life;

/* CUpti_Profiler_GetCounterAvailability_Params; 12.9 adds a field. */
typedef struct {
  size_t structSize;
  void *pPriv;
  void *ctx;
  size_t counterAvailabilityImageSize;
  uint8_t *pCounterAvailabilityImage;
} gpufl_profiler_available;

typedef struct {
  size_t structSize;
  void *pPriv;
  int cuDevice;
  int isSupported;
  int architecture;
  int sli;
  int vGpu;
  int confidentialCompute;
  int cmp;
  int wsl;
  int api;
} gpufl_profiler_supported;

typedef struct {
  size_t structSize;
  void *pPriv;
  size_t deviceIndex;
  const char *pChipName;
} gpufl_chip_name;

/* CUpti_SassMetrics… */
typedef struct {
  uint64_t metricId;
  const char *pMetricName;
  const char *pMetricDescription;
} gpufl_sass_metric;

typedef struct {
  size_t structSize;
  void *pPriv;
  const char *pChipName;
  const char *pMetricName;
  gpufl_sass_metric metric;
} gpufl_sass_properties;

typedef struct {
  uint64_t metricId;
  uint8_t outputGranularity;
} gpufl_sass_choice;

typedef struct {
  size_t structSize;
  void *pPriv;
  size_t numOfMetricConfig;
  gpufl_sass_choice *pConfigs;
  uint32_t deviceIndex;
} gpufl_sass_set_config;

typedef struct {
  size_t structSize;
  void *pPriv;
  void *ctx;
  uint8_t enableLazyPatching;
} gpufl_sass_enable;

typedef struct {
  size_t structSize;
  void *pPriv;
  void *ctx;
  size_t numOfDroppedRecords;
} gpufl_sass_disable;

typedef struct {
  size_t structSize;
  void *pPriv;
  void *ctx;
  size_t numOfPatchedInstructionRecords;
  size_t numOfInstances;
} gpufl_sass_data_properties;

typedef struct {
  uint64_t metricId;
  uint64_t value;
} gpufl_sass_value;

typedef struct {
  size_t structSize;
  void *pPriv;
  uint32_t cubinCrc;
  uint32_t functionIndex;
  const char *functionName;
  uint32_t pcOffset;
  gpufl_sass_value *pInstanceValues;
} gpufl_sass_record;

typedef struct {
  size_t structSize;
  void *pPriv;
  void *ctx;
  size_t numOfPatchedInstructionRecords;
  size_t numOfInstances;
  gpufl_sass_record *pMetricsData;
} gpufl_sass_flush;

/* The size that CUPTI requires in the first field of a struct: up to the end of field last. */
#define GPUFL_SIZE_TO(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))

/* G(field, symbol, parameters), as in gpufl_abi.h; all optional. */
#define GPUFL_DEEP_SHARED(G)                                            \
  G(context_device, cuptiGetDeviceId, (void *, uint32_t *))             \
  G(cubin_crc, cuptiGetCubinCrc, (gpufl_cubin_crc *))                   \
  G(profiler_available, cuptiProfilerGetCounterAvailability, (gpufl_profiler_available *))

#define GPUFL_DEEP_PC(G)                                                             \
  G(pc_enable, cuptiPCSamplingEnable, (gpufl_pc_context *))                          \
  G(pc_disable, cuptiPCSamplingDisable, (gpufl_pc_context *))                        \
  G(pc_start, cuptiPCSamplingStart, (gpufl_pc_context *))                            \
  G(pc_stop, cuptiPCSamplingStop, (gpufl_pc_context *))                              \
  G(pc_get_data, cuptiPCSamplingGetData, (gpufl_pc_get_data *))                      \
  G(pc_configure, cuptiPCSamplingSetConfigurationAttribute, (gpufl_pc_configuration *)) \
  G(pc_num_reasons, cuptiPCSamplingGetNumStallReasons, (gpufl_pc_num_reasons *))     \
  G(pc_reasons, cuptiPCSamplingGetStallReasons, (gpufl_pc_reasons *))

#define GPUFL_DEEP_SASS(G)                                                             \
  G(profiler_begin, cuptiProfilerInitialize, (gpufl_profiler_life *))                  \
  G(profiler_end, cuptiProfilerDeInitialize, (gpufl_profiler_life *))                  \
  G(profiler_supported, cuptiProfilerDeviceSupported, (gpufl_profiler_supported *))    \
  G(chip_name, cuptiDeviceGetChipName, (gpufl_chip_name *))                            \
  G(sass_properties, cuptiSassMetricsGetProperties, (gpufl_sass_properties *))         \
  G(sass_set_config, cuptiSassMetricsSetConfig, (gpufl_sass_set_config *))             \
  G(sass_enable, cuptiSassMetricsEnable, (gpufl_sass_enable *))                        \
  G(sass_disable, cuptiSassMetricsDisable, (gpufl_sass_disable *))                     \
  G(sass_data_properties, cuptiSassMetricsGetDataProperties, (gpufl_sass_data_properties *)) \
  G(sass_flush, cuptiSassMetricsFlushData, (gpufl_sass_flush *))

/* Functions of the driver: to find contexts that are older than the subscription, and to wait for a
 * context without a call that would invalidate a capture. */
#define GPUFL_DEEP_DRIVER(G)                                                    \
  G(primary_state, cuDevicePrimaryCtxGetState, (int, unsigned *, int *))        \
  G(primary_retain, cuDevicePrimaryCtxRetain, (void **, int))                   \
  G(primary_release, cuDevicePrimaryCtxRelease_v2, (int))                       \
  G(push_context, cuCtxPushCurrent_v2, (void *))                                \
  G(pop_context, cuCtxPopCurrent_v2, (void **))                                 \
  G(capture_mode, cuThreadExchangeStreamCaptureMode, (int *))                   \
  G(module_load, cuModuleLoad, (void **, const char *))                         \
  G(event_create, cuEventCreate, (void **, unsigned))                           \
  G(event_destroy, cuEventDestroy_v2, (void *))                                 \
  G(event_query, cuEventQuery, (void *))                                        \
  G(record_context, cuCtxRecordEvent, (void *, void *))

/* cuda.h. */
enum {
  GPUFL_CUDA_ERROR_NOT_READY = 600,
  GPUFL_CU_EVENT_DISABLE_TIMING = 2,
  GPUFL_CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

#endif
