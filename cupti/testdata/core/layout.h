/* SPDX-License-Identifier: Apache-2.0
 *
 * What TestLayoutMatchesNVIDIAsHeaders compares with NVIDIA's headers: each struct of
 * gpufl_deep_abi.h, its fields and the types of the functions' parameters.
 */
#ifndef LAYOUT_H
#define LAYOUT_H

#include "gpufl_deep_abi.h"

/* S(ours, NVIDIA's, last field): structs since 11.8. */
#define GPUFL_DEEP_STRUCTS(S)                                                                  \
  S(gpufl_pc_configuration, CUpti_PCSamplingConfigurationInfoParams, pPCSamplingConfigurationInfo) \
  S(gpufl_pc_context, CUpti_PCSamplingEnableParams, ctx)                                       \
  S(gpufl_pc_context, CUpti_PCSamplingDisableParams, ctx)                                      \
  S(gpufl_pc_context, CUpti_PCSamplingStartParams, ctx)                                        \
  S(gpufl_pc_context, CUpti_PCSamplingStopParams, ctx)                                         \
  S(gpufl_pc_get_data, CUpti_PCSamplingGetDataParams, pcSamplingData)                          \
  S(gpufl_pc_num_reasons, CUpti_PCSamplingGetNumStallReasonsParams, numStallReasons)           \
  S(gpufl_pc_reasons, CUpti_PCSamplingGetStallReasonsParams, stallReasons)                     \
  S(gpufl_cubin_crc, CUpti_GetCubinCrcParams, cubinCrc)

/* Structs since 12.4 whose size macro ends in _STRUCT_SIZE. */
#define GPUFL_DEEP_STRUCTS_12_4(S)                                                             \
  S(gpufl_profiler_life, CUpti_Profiler_Initialize_Params, pPriv)                              \
  S(gpufl_profiler_life, CUpti_Profiler_DeInitialize_Params, pPriv)                            \
  S(gpufl_chip_name, CUpti_Device_GetChipName_Params, pChipName)                               \
  S(gpufl_sass_properties, CUpti_SassMetrics_GetProperties_Params, metric)                     \
  S(gpufl_sass_set_config, CUpti_SassMetricsSetConfig_Params, deviceIndex)                     \
  S(gpufl_sass_enable, CUpti_SassMetricsEnable_Params, enableLazyPatching)                     \
  S(gpufl_sass_disable, CUpti_SassMetricsDisable_Params, numOfDroppedRecords)                  \
  S(gpufl_sass_data_properties, CUpti_SassMetricsGetDataProperties_Params, numOfInstances)     \
  S(gpufl_sass_value, CUpti_SassMetrics_InstanceValue, value)                                  \
  S(gpufl_sass_flush, CUpti_SassMetricsFlushData_Params, numOfInstances)

/* F(ours, NVIDIA's, field): fields since 11.8. */
#define GPUFL_DEEP_FIELDS(F)                                                   \
  F(gpufl_resource_data, CUpti_ResourceData, context)                          \
  F(gpufl_resource_data, CUpti_ResourceData, resourceHandle)                   \
  F(gpufl_resource_data, CUpti_ResourceData, resourceDescriptor)               \
  F(gpufl_module_data, CUpti_ModuleResourceData, moduleId)                     \
  F(gpufl_module_data, CUpti_ModuleResourceData, cubinSize)                    \
  F(gpufl_module_data, CUpti_ModuleResourceData, pCubin)                       \
  F(gpufl_pc_stall, CUpti_PCSamplingStallReason, pcSamplingStallReasonIndex)   \
  F(gpufl_pc_stall, CUpti_PCSamplingStallReason, samples)                      \
  F(gpufl_pc_record, CUpti_PCSamplingPCData, size)                             \
  F(gpufl_pc_record, CUpti_PCSamplingPCData, cubinCrc)                         \
  F(gpufl_pc_record, CUpti_PCSamplingPCData, pcOffset)                         \
  F(gpufl_pc_record, CUpti_PCSamplingPCData, functionIndex)                    \
  F(gpufl_pc_record, CUpti_PCSamplingPCData, functionName)                     \
  F(gpufl_pc_record, CUpti_PCSamplingPCData, stallReasonCount)                 \
  F(gpufl_pc_record, CUpti_PCSamplingPCData, stallReason)                      \
  F(gpufl_pc_data, CUpti_PCSamplingData, size)                                 \
  F(gpufl_pc_data, CUpti_PCSamplingData, collectNumPcs)                        \
  F(gpufl_pc_data, CUpti_PCSamplingData, totalSamples)                         \
  F(gpufl_pc_data, CUpti_PCSamplingData, droppedSamples)                       \
  F(gpufl_pc_data, CUpti_PCSamplingData, totalNumPcs)                          \
  F(gpufl_pc_data, CUpti_PCSamplingData, remainingNumPcs)                      \
  F(gpufl_pc_data, CUpti_PCSamplingData, rangeId)                              \
  F(gpufl_pc_data, CUpti_PCSamplingData, pPcData)                              \
  F(gpufl_pc_data, CUpti_PCSamplingData, nonUsrKernelsTotalSamples)            \
  F(gpufl_pc_attribute, CUpti_PCSamplingConfigurationInfo, attributeType)      \
  F(gpufl_pc_attribute, CUpti_PCSamplingConfigurationInfo, attributeStatus)    \
  F(gpufl_pc_attribute, CUpti_PCSamplingConfigurationInfo, attributeData)      \
  F(gpufl_pc_configuration, CUpti_PCSamplingConfigurationInfoParams, ctx)      \
  F(gpufl_pc_configuration, CUpti_PCSamplingConfigurationInfoParams, numAttributes) \
  F(gpufl_pc_configuration, CUpti_PCSamplingConfigurationInfoParams, pPCSamplingConfigurationInfo) \
  F(gpufl_pc_context, CUpti_PCSamplingEnableParams, ctx)                       \
  F(gpufl_pc_context, CUpti_PCSamplingDisableParams, ctx)                      \
  F(gpufl_pc_context, CUpti_PCSamplingStartParams, ctx)                        \
  F(gpufl_pc_context, CUpti_PCSamplingStopParams, ctx)                         \
  F(gpufl_pc_get_data, CUpti_PCSamplingGetDataParams, ctx)                     \
  F(gpufl_pc_get_data, CUpti_PCSamplingGetDataParams, pcSamplingData)          \
  F(gpufl_pc_num_reasons, CUpti_PCSamplingGetNumStallReasonsParams, ctx)       \
  F(gpufl_pc_num_reasons, CUpti_PCSamplingGetNumStallReasonsParams, numStallReasons) \
  F(gpufl_pc_reasons, CUpti_PCSamplingGetStallReasonsParams, ctx)              \
  F(gpufl_pc_reasons, CUpti_PCSamplingGetStallReasonsParams, numStallReasons)  \
  F(gpufl_pc_reasons, CUpti_PCSamplingGetStallReasonsParams, stallReasonIndex) \
  F(gpufl_pc_reasons, CUpti_PCSamplingGetStallReasonsParams, stallReasons)     \
  F(gpufl_cubin_crc, CUpti_GetCubinCrcParams, cubinSize)                       \
  F(gpufl_cubin_crc, CUpti_GetCubinCrcParams, cubin)                           \
  F(gpufl_cubin_crc, CUpti_GetCubinCrcParams, cubinCrc)

#define GPUFL_DEEP_FIELDS_12_4(F)                                              \
  F(gpufl_pc_record, CUpti_PCSamplingPCData, correlationId)                    \
  F(gpufl_pc_data, CUpti_PCSamplingData, hardwareBufferFull)                   \
  F(gpufl_profiler_available, CUpti_Profiler_GetCounterAvailability_Params, ctx) \
  F(gpufl_profiler_available, CUpti_Profiler_GetCounterAvailability_Params, \
    counterAvailabilityImageSize) \
  F(gpufl_profiler_available, CUpti_Profiler_GetCounterAvailability_Params, \
    pCounterAvailabilityImage) \
  F(gpufl_profiler_supported, CUpti_Profiler_DeviceSupported_Params, cuDevice) \
  F(gpufl_profiler_supported, CUpti_Profiler_DeviceSupported_Params, isSupported) \
  F(gpufl_profiler_supported, CUpti_Profiler_DeviceSupported_Params, architecture) \
  F(gpufl_profiler_supported, CUpti_Profiler_DeviceSupported_Params, sli)      \
  F(gpufl_profiler_supported, CUpti_Profiler_DeviceSupported_Params, vGpu)     \
  F(gpufl_profiler_supported, CUpti_Profiler_DeviceSupported_Params, confidentialCompute) \
  F(gpufl_profiler_supported, CUpti_Profiler_DeviceSupported_Params, cmp)      \
  F(gpufl_profiler_supported, CUpti_Profiler_DeviceSupported_Params, wsl)      \
  F(gpufl_profiler_supported, CUpti_Profiler_DeviceSupported_Params, api)      \
  F(gpufl_chip_name, CUpti_Device_GetChipName_Params, deviceIndex)             \
  F(gpufl_chip_name, CUpti_Device_GetChipName_Params, pChipName)               \
  F(gpufl_sass_metric, CUpti_SassMetrics_MetricDetails, metricId)              \
  F(gpufl_sass_metric, CUpti_SassMetrics_MetricDetails, pMetricName)           \
  F(gpufl_sass_metric, CUpti_SassMetrics_MetricDetails, pMetricDescription)    \
  F(gpufl_sass_properties, CUpti_SassMetrics_GetProperties_Params, pChipName)  \
  F(gpufl_sass_properties, CUpti_SassMetrics_GetProperties_Params, pMetricName) \
  F(gpufl_sass_properties, CUpti_SassMetrics_GetProperties_Params, metric)     \
  F(gpufl_sass_choice, CUpti_SassMetrics_Config, metricId)                     \
  F(gpufl_sass_choice, CUpti_SassMetrics_Config, outputGranularity)            \
  F(gpufl_sass_set_config, CUpti_SassMetricsSetConfig_Params, numOfMetricConfig) \
  F(gpufl_sass_set_config, CUpti_SassMetricsSetConfig_Params, pConfigs)        \
  F(gpufl_sass_set_config, CUpti_SassMetricsSetConfig_Params, deviceIndex)     \
  F(gpufl_sass_enable, CUpti_SassMetricsEnable_Params, ctx)                    \
  F(gpufl_sass_enable, CUpti_SassMetricsEnable_Params, enableLazyPatching)     \
  F(gpufl_sass_disable, CUpti_SassMetricsDisable_Params, ctx)                  \
  F(gpufl_sass_disable, CUpti_SassMetricsDisable_Params, numOfDroppedRecords)  \
  F(gpufl_sass_data_properties, CUpti_SassMetricsGetDataProperties_Params, ctx) \
  F(gpufl_sass_data_properties, CUpti_SassMetricsGetDataProperties_Params, \
    numOfPatchedInstructionRecords) \
  F(gpufl_sass_data_properties, CUpti_SassMetricsGetDataProperties_Params, numOfInstances) \
  F(gpufl_sass_value, CUpti_SassMetrics_InstanceValue, metricId)               \
  F(gpufl_sass_value, CUpti_SassMetrics_InstanceValue, value)                  \
  F(gpufl_sass_record, CUpti_SassMetrics_Data, structSize)                     \
  F(gpufl_sass_record, CUpti_SassMetrics_Data, cubinCrc)                       \
  F(gpufl_sass_record, CUpti_SassMetrics_Data, functionIndex)                  \
  F(gpufl_sass_record, CUpti_SassMetrics_Data, functionName)                   \
  F(gpufl_sass_record, CUpti_SassMetrics_Data, pcOffset)                       \
  F(gpufl_sass_record, CUpti_SassMetrics_Data, pInstanceValues)                \
  F(gpufl_sass_flush, CUpti_SassMetricsFlushData_Params, ctx)                  \
  F(gpufl_sass_flush, CUpti_SassMetricsFlushData_Params, numOfPatchedInstructionRecords) \
  F(gpufl_sass_flush, CUpti_SassMetricsFlushData_Params, numOfInstances)       \
  F(gpufl_sass_flush, CUpti_SassMetricsFlushData_Params, pMetricsData)

/* W(ours, NVIDIA's): elements of arrays, so their size must be equal. */
#define GPUFL_DEEP_ARRAYS(W)                                   \
  W(gpufl_pc_stall, CUpti_PCSamplingStallReason)               \
  W(gpufl_pc_attribute, CUpti_PCSamplingConfigurationInfo)
#define GPUFL_DEEP_ARRAYS_12_4(W)                              \
  W(gpufl_pc_record, CUpti_PCSamplingPCData)                   \
  W(gpufl_pc_data, CUpti_PCSamplingData)                       \
  W(gpufl_sass_choice, CUpti_SassMetrics_Config)               \
  W(gpufl_sass_value, CUpti_SassMetrics_InstanceValue)         \
  W(gpufl_sass_record, CUpti_SassMetrics_Data)

/* T(symbol, NVIDIA's type of its only parameter), for the functions above. */
#define GPUFL_DEEP_TYPES(T)                                                                    \
  T(cuptiGetCubinCrc, CUpti_GetCubinCrcParams)                                                 \
  T(cuptiPCSamplingEnable, CUpti_PCSamplingEnableParams)                                       \
  T(cuptiPCSamplingDisable, CUpti_PCSamplingDisableParams)                                     \
  T(cuptiPCSamplingStart, CUpti_PCSamplingStartParams)                                         \
  T(cuptiPCSamplingStop, CUpti_PCSamplingStopParams)                                           \
  T(cuptiPCSamplingGetData, CUpti_PCSamplingGetDataParams)                                     \
  T(cuptiPCSamplingSetConfigurationAttribute, CUpti_PCSamplingConfigurationInfoParams)         \
  T(cuptiPCSamplingGetNumStallReasons, CUpti_PCSamplingGetNumStallReasonsParams)               \
  T(cuptiPCSamplingGetStallReasons, CUpti_PCSamplingGetStallReasonsParams)

#define GPUFL_DEEP_TYPES_12_4(T)                                                               \
  T(cuptiProfilerInitialize, CUpti_Profiler_Initialize_Params)                                 \
  T(cuptiProfilerDeInitialize, CUpti_Profiler_DeInitialize_Params)                             \
  T(cuptiProfilerGetCounterAvailability, CUpti_Profiler_GetCounterAvailability_Params)         \
  T(cuptiProfilerDeviceSupported, CUpti_Profiler_DeviceSupported_Params)                       \
  T(cuptiDeviceGetChipName, CUpti_Device_GetChipName_Params)                                   \
  T(cuptiSassMetricsGetProperties, CUpti_SassMetrics_GetProperties_Params)                     \
  T(cuptiSassMetricsSetConfig, CUpti_SassMetricsSetConfig_Params)                              \
  T(cuptiSassMetricsEnable, CUpti_SassMetricsEnable_Params)                                    \
  T(cuptiSassMetricsDisable, CUpti_SassMetricsDisable_Params)                                  \
  T(cuptiSassMetricsGetDataProperties, CUpti_SassMetricsGetDataProperties_Params)              \
  T(cuptiSassMetricsFlushData, CUpti_SassMetricsFlushData_Params)

#endif
