// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package device

import (
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// call is a function of NVML that devices may lack.
type call uint8

const (
	callMemory call = iota
	callMemoryV1
	callUtilization
	callSamples
	callEncoder
	callDecoder
	callEnergy
	callPower
	callEnforcedLimit
	callLimits
	callDefaultLimit
	callTemperature
	callTemperatureV
	callThreshold
	callNumFans
	callFan
	callFanV1
	callClock
	callMaxClock
	callReasons
	callReasonsV1
	callViolation
	callFields
	callECC
	callReplay
	callRemapped
	callRetired
	callRetiredPending
	callCompute
	callGraphics
	callMPS
	callProcessUtilization
	callGPMSupport
	callGPMAlloc
	callGPMSample
	callGPMMigSample
	callGPMMetrics
	callGPMFree
	callDriverVersion
	callSerial
	callMinor
	callMigMode
	callMaxMig
	callMigHandle
	callGpuInstance
	callEventCreate
	callEventRegister
	callEventTypes
	callEventWait
	callEventFree
	numCalls
)

// symbols are the exported functions behind each call; any of them will do, because go-nvml takes
// the newest that there is.
var symbols = [numCalls][]string{
	callMemory:             {"nvmlDeviceGetMemoryInfo_v2"},
	callMemoryV1:           {"nvmlDeviceGetMemoryInfo"},
	callUtilization:        {"nvmlDeviceGetUtilizationRates"},
	callSamples:            {"nvmlDeviceGetSamples"},
	callEncoder:            {"nvmlDeviceGetEncoderUtilization"},
	callDecoder:            {"nvmlDeviceGetDecoderUtilization"},
	callEnergy:             {"nvmlDeviceGetTotalEnergyConsumption"},
	callPower:              {"nvmlDeviceGetPowerUsage"},
	callEnforcedLimit:      {"nvmlDeviceGetEnforcedPowerLimit"},
	callLimits:             {"nvmlDeviceGetPowerManagementLimitConstraints"},
	callDefaultLimit:       {"nvmlDeviceGetPowerManagementDefaultLimit"},
	callTemperature:        {"nvmlDeviceGetTemperature"},
	callTemperatureV:       {"nvmlDeviceGetTemperatureV"},
	callThreshold:          {"nvmlDeviceGetTemperatureThreshold"},
	callNumFans:            {"nvmlDeviceGetNumFans"},
	callFan:                {"nvmlDeviceGetFanSpeed_v2"},
	callFanV1:              {"nvmlDeviceGetFanSpeed"},
	callClock:              {"nvmlDeviceGetClockInfo"},
	callMaxClock:           {"nvmlDeviceGetMaxClockInfo"},
	callReasons:            {"nvmlDeviceGetCurrentClocksEventReasons"},
	callReasonsV1:          {"nvmlDeviceGetCurrentClocksThrottleReasons"},
	callViolation:          {"nvmlDeviceGetViolationStatus"},
	callFields:             {"nvmlDeviceGetFieldValues"},
	callECC:                {"nvmlDeviceGetTotalEccErrors"},
	callReplay:             {"nvmlDeviceGetPcieReplayCounter"},
	callRemapped:           {"nvmlDeviceGetRemappedRows"},
	callRetired:            {"nvmlDeviceGetRetiredPages"},
	callRetiredPending:     {"nvmlDeviceGetRetiredPagesPendingStatus"},
	callCompute:            {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses"},
	callGraphics:           {"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2", "nvmlDeviceGetGraphicsRunningProcesses"},
	callMPS:                {"nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2", "nvmlDeviceGetMPSComputeRunningProcesses"},
	callProcessUtilization: {"nvmlDeviceGetProcessUtilization"},
	callGPMSupport:         {"nvmlGpmQueryDeviceSupport"},
	callGPMAlloc:           {"nvmlGpmSampleAlloc"},
	callGPMSample:          {"nvmlGpmSampleGet"},
	callGPMMigSample:       {"nvmlGpmMigSampleGet"},
	callGPMMetrics:         {"nvmlGpmMetricsGet"},
	callGPMFree:            {"nvmlGpmSampleFree"},
	callDriverVersion:      {"nvmlSystemGetDriverVersion"},
	callSerial:             {"nvmlDeviceGetSerial"},
	callMinor:              {"nvmlDeviceGetMinorNumber"},
	callMigMode:            {"nvmlDeviceGetMigMode"},
	callMaxMig:             {"nvmlDeviceGetMaxMigDeviceCount"},
	callMigHandle:          {"nvmlDeviceGetMigDeviceHandleByIndex"},
	callGpuInstance:        {"nvmlDeviceGetGpuInstanceId"},
	callEventCreate:        {"nvmlEventSetCreate"},
	callEventRegister:      {"nvmlDeviceRegisterEvents"},
	callEventTypes:         {"nvmlDeviceGetSupportedEventTypes"},
	callEventWait:          {"nvmlEventSetWait_v2", "nvmlEventSetWait"},
	callEventFree:          {"nvmlEventSetFree"},
}

// required are the functions without which nothing can be read.
var required = []string{"nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName"}

// String returns the function's name without its prefix and version.
func (c call) String() string {
	name := symbols[c][0][len("nvml"):]
	if n := len(name); n > 3 && name[n-3:n-1] == "_v" {
		name = name[:n-3]
	}
	return name
}

// variants bounds the separate kinds of one call (clocks, thresholds, fans …).
const variants = 16

// capability is the known support of a call on one device.
type capability uint8

const (
	untried capability = iota
	works
	absent
)

// code returns the name of a return code. go-nvml's own text uses a variable that changes when the
// library is opened, possibly during a call in another goroutine.
func code(ret nvml.Return) string {
	switch ret {
	case nvml.SUCCESS:
		return "success"
	case nvml.ERROR_UNINITIALIZED:
		return "uninitialized"
	case nvml.ERROR_INVALID_ARGUMENT:
		return "invalid argument"
	case nvml.ERROR_NOT_SUPPORTED:
		return "not supported"
	case nvml.ERROR_NO_PERMISSION:
		return "no permission"
	case nvml.ERROR_ALREADY_INITIALIZED:
		return "already initialized"
	case nvml.ERROR_NOT_FOUND:
		return "not found"
	case nvml.ERROR_INSUFFICIENT_SIZE:
		return "insufficient size"
	case nvml.ERROR_INSUFFICIENT_POWER:
		return "insufficient power"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "driver not loaded"
	case nvml.ERROR_TIMEOUT:
		return "timeout"
	case nvml.ERROR_IRQ_ISSUE:
		return "irq issue"
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return "library not found"
	case nvml.ERROR_FUNCTION_NOT_FOUND:
		return "function not found"
	case nvml.ERROR_CORRUPTED_INFOROM:
		return "corrupted inforom"
	case nvml.ERROR_GPU_IS_LOST:
		return "gpu is lost"
	case nvml.ERROR_RESET_REQUIRED:
		return "reset required"
	case nvml.ERROR_OPERATING_SYSTEM:
		return "operating system"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "library and driver versions differ"
	case nvml.ERROR_IN_USE:
		return "in use"
	case nvml.ERROR_MEMORY:
		return "memory"
	case nvml.ERROR_NO_DATA:
		return "no data"
	case nvml.ERROR_INSUFFICIENT_RESOURCES:
		return "insufficient resources"
	case nvml.ERROR_ARGUMENT_VERSION_MISMATCH:
		return "argument version mismatch"
	case nvml.ERROR_DEPRECATED:
		return "deprecated"
	case nvml.ERROR_NOT_READY:
		return "not ready"
	case nvml.ERROR_GPU_NOT_FOUND:
		return "gpu not found"
	case nvml.ERROR_UNKNOWN:
		return "unknown"
	default:
		return "code " + strconv.Itoa(int(ret))
	}
}

// lacks reports whether a code means that the device or the library lacks the call, or that the
// caller lacks the permission. NVML answers "invalid argument" for kinds that the device does not
// have.
func lacks(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_NO_PERMISSION,
		nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED:
		return true
	default:
		return false
	}
}

// gone reports whether a code means that the device or the driver no longer exists.
func gone(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED, nvml.ERROR_GPU_NOT_FOUND,
		nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return true
	default:
		return false
	}
}
