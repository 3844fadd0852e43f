// SPDX-License-Identifier: Apache-2.0

package cupti

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// layoutRelease is a row of the table in layout.go: the newest struct of each kind, by its bytes.
type layoutRelease struct {
	cuda    string
	version int
	structs map[string]int // CUpti_Activity…: bytes
}

var layoutReleases = []layoutRelease{
	{"11.8", 18, map[string]int{
		"Kernel8": kernelBytes, "Memcpy5": memcpyBytes, "MemcpyPtoP4": peerBytes, "Memset4": memsetBytes,
		"Memory3": memoryBytes, "Synchronization": syncBytes, "GraphTrace": graphBytes,
		"Overhead": overheadBytes, "ExternalCorrelation": externalBytes, "API": apiBytes,
	}},
	{"12.0", 18, map[string]int{
		"Kernel9": 208, "Memcpy5": 88, "MemcpyPtoP4": 96, "Memset4": 88, "Memory3": 120, "Synchronization": 40,
		"GraphTrace": 48, "Overhead": 40, "ExternalCorrelation": 24, "API": 40,
	}},
	{"12.4", 22, map[string]int{
		"Kernel9": 208, "Memcpy5": 88, "MemcpyPtoP4": 96, "Memset4": 88, "Memory3": 120, "Synchronization": 40,
		"GraphTrace2": 56, "Overhead3": 56, "ExternalCorrelation": 24, "API": 40,
	}},
	{"12.9", 28, map[string]int{
		"Kernel9": 208, "Memcpy6": 96, "MemcpyPtoP4": 96, "Memset4": 88, "Memory4": 128, "Synchronization2": 56,
		"GraphTrace2": 56, "Overhead3": 56, "ExternalCorrelation": 24, "API": 40,
	}},
	{"13.0", 130001, map[string]int{
		"Kernel10": 216, "Memcpy6": 96, "MemcpyPtoP4": 96, "Memset4": 88, "Memory4": 128, "Synchronization2": 56,
		"GraphTrace2": 56, "Overhead3": 56, "ExternalCorrelation": 24, "API": 40,
	}},
	{"13.5", 130500, map[string]int{
		"Kernel13": 248, "Memcpy7": 112, "MemcpyPtoP4": 96, "Memset5": 104, "Memory4": 128, "Synchronization2": 56,
		"GraphTrace2": 56, "Overhead3": 56, "ExternalCorrelation": 24, "API": 40,
	}},
}

// layoutFields are all the fields that are read: family of structs, field, offset, bytes.
var layoutFields = []struct {
	family, field string
	offset, bytes int
}{
	{"Kernel", "kind", 0, 4},
	{"Kernel", "registersPerThread", kernelRegisters, 2},
	{"Kernel", "start", kernelStart, 8},
	{"Kernel", "end", kernelEnd, 8},
	{"Kernel", "deviceId", kernelDevice, 4},
	{"Kernel", "contextId", kernelContext, 4},
	{"Kernel", "streamId", kernelStream, 4},
	{"Kernel", "gridX", kernelGridX, 4},
	{"Kernel", "gridY", kernelGridY, 4},
	{"Kernel", "gridZ", kernelGridZ, 4},
	{"Kernel", "blockX", kernelBlockX, 4},
	{"Kernel", "blockY", kernelBlockY, 4},
	{"Kernel", "blockZ", kernelBlockZ, 4},
	{"Kernel", "staticSharedMemory", kernelSharedStatic, 4},
	{"Kernel", "dynamicSharedMemory", kernelSharedDynamic, 4},
	{"Kernel", "localMemoryPerThread", kernelLocal, 4},
	{"Kernel", "correlationId", kernelCorrelation, 4},
	{"Kernel", "name", kernelName, 8},
	{"Kernel", "sharedMemoryExecuted", kernelSharedUsed, 4},
	{"Kernel", "graphNodeId", kernelGraphNode, 8},
	{"Kernel", "graphId", kernelGraph, 4},
	{"Kernel", "clusterX", kernelClusterX, 4},
	{"Kernel", "clusterY", kernelClusterY, 4},
	{"Kernel", "clusterZ", kernelClusterZ, 4},

	{"Memcpy", "kind", 0, 4},
	{"Memcpy", "copyKind", copyKind, 1},
	{"Memcpy", "srcKind", copySource, 1},
	{"Memcpy", "dstKind", copyDestination, 1},
	{"Memcpy", "flags", copyFlags, 1},
	{"Memcpy", "bytes", copyBytes, 8},
	{"Memcpy", "start", copyStart, 8},
	{"Memcpy", "end", copyEnd, 8},
	{"Memcpy", "deviceId", copyDevice, 4},
	{"Memcpy", "contextId", copyContext, 4},
	{"Memcpy", "streamId", copyStream, 4},
	{"Memcpy", "correlationId", copyCorrelation, 4},
	{"Memcpy", "graphNodeId", copyGraphNode, 8},

	{"MemcpyPtoP", "kind", 0, 4},
	{"MemcpyPtoP", "copyKind", copyKind, 1},
	{"MemcpyPtoP", "srcKind", copySource, 1},
	{"MemcpyPtoP", "dstKind", copyDestination, 1},
	{"MemcpyPtoP", "flags", copyFlags, 1},
	{"MemcpyPtoP", "bytes", copyBytes, 8},
	{"MemcpyPtoP", "start", copyStart, 8},
	{"MemcpyPtoP", "end", copyEnd, 8},
	{"MemcpyPtoP", "deviceId", copyDevice, 4},
	{"MemcpyPtoP", "contextId", copyContext, 4},
	{"MemcpyPtoP", "streamId", copyStream, 4},
	{"MemcpyPtoP", "correlationId", peerCorrelation, 4},
	{"MemcpyPtoP", "graphNodeId", peerGraphNode, 8},

	{"Memset", "kind", 0, 4},
	{"Memset", "bytes", setBytes, 8},
	{"Memset", "start", setStart, 8},
	{"Memset", "end", setEnd, 8},
	{"Memset", "deviceId", setDevice, 4},
	{"Memset", "contextId", setContext, 4},
	{"Memset", "streamId", setStream, 4},
	{"Memset", "correlationId", setCorrelation, 4},
	{"Memset", "graphNodeId", setGraphNode, 8},

	{"Memory", "kind", 0, 4},
	{"Memory", "memoryOperationType", memoryOperation, 4},
	{"Memory", "memoryKind", memoryKind, 4},
	{"Memory", "correlationId", memoryCorrelation, 4},
	{"Memory", "address", memoryAddress, 8},
	{"Memory", "bytes", memorySize, 8},
	{"Memory", "timestamp", memoryTime, 8},
	{"Memory", "deviceId", memoryDevice, 4},
	{"Memory", "contextId", memoryContext, 4},
	{"Memory", "streamId", memoryStream, 4},

	{"Synchronization", "kind", 0, 4},
	{"Synchronization", "type", syncType, 4},
	{"Synchronization", "start", syncStart, 8},
	{"Synchronization", "end", syncEnd, 8},
	{"Synchronization", "correlationId", syncCorrelation, 4},
	{"Synchronization", "contextId", syncContext, 4},
	{"Synchronization", "streamId", syncStream, 4},
	{"Synchronization", "cudaEventId", syncEvent, 4},

	{"GraphTrace", "kind", 0, 4},
	{"GraphTrace", "correlationId", graphCorrelation, 4},
	{"GraphTrace", "start", graphStart, 8},
	{"GraphTrace", "end", graphEnd, 8},
	{"GraphTrace", "deviceId", graphDevice, 4},
	{"GraphTrace", "graphId", graphID, 4},
	{"GraphTrace", "contextId", graphContext, 4},
	{"GraphTrace", "streamId", graphStream, 4},

	{"ExternalCorrelation", "kind", 0, 4},
	{"ExternalCorrelation", "externalId", externalID, 8},
	{"ExternalCorrelation", "correlationId", externalCorrelation, 4},

	{"Overhead", "kind", 0, 4},
	{"Overhead", "overheadKind", overheadKind, 4},
	{"Overhead", "start", overheadStart, 8},
	{"Overhead", "end", overheadEnd, 8},

	{"API", "kind", 0, 4},
	{"API", "cbid", apiFunction, 4},
	{"API", "start", apiStart, 8},
	{"API", "end", apiEnd, 8},
	{"API", "correlationId", apiCorrelation, 4},
}

// layoutValues are the values of enumerations and macros that are used, by their names. since is
// the index in layoutReleases of the first release that has them.
var layoutValues = []struct {
	name  string
	value int64
	since int
}{
	{"CUPTI_ACTIVITY_KIND_MEMCPY", activityMemcpy, 0},
	{"CUPTI_ACTIVITY_KIND_MEMSET", activityMemset, 0},
	{"CUPTI_ACTIVITY_KIND_KERNEL", activityKernel, 0},
	{"CUPTI_ACTIVITY_KIND_DRIVER", activityDriver, 0},
	{"CUPTI_ACTIVITY_KIND_RUNTIME", activityRuntime, 0},
	{"CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL", activityConcurrentKernel, 0},
	{"CUPTI_ACTIVITY_KIND_OVERHEAD", activityOverhead, 0},
	{"CUPTI_ACTIVITY_KIND_MEMCPY2", activityMemcpy2, 0},
	{"CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", activitySynchronization, 0},
	{"CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION", activityExternal, 0},
	{"CUPTI_ACTIVITY_KIND_MEMORY2", activityMemory2, 0},
	{"CUPTI_ACTIVITY_KIND_GRAPH_TRACE", activityGraphTrace, 0},
	{"CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC", flagAsync, 0},
	{"CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION", memoryAllocated, 0},
	{"CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE", memoryReleased, 0},
	{"(uint32_t)CUPTI_SYNCHRONIZATION_INVALID_VALUE", noID, 0},
	{"CUPTI_CORRELATION_ID_UNKNOWN", 0, 0},
	{"CUPTI_TIMESTAMP_UNKNOWN", 0, 0},
	{"CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH", overheadFlush, 0},
	{"CUPTI_ACTIVITY_OVERHEAD_CUPTI_INSTRUMENTATION", overheadInstrumentation, 0},
	{"CUPTI_ACTIVITY_OVERHEAD_CUPTI_RESOURCE", overheadResource, 0},
	{"CUPTI_ACTIVITY_OVERHEAD_ACTIVITY_BUFFER_REQUEST", overheadRequest, 4},
	{"CUPTI_ACTIVITY_OVERHEAD_UVM_ACTIVITY_INIT", overheadUVM, 5},
	{"CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE", int64(gpuevent.SyncEvent), 0},
	{"CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT", int64(gpuevent.SyncStreamWaitEvent), 0},
	{"CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE", int64(gpuevent.SyncStream), 0},
	{"CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE", int64(gpuevent.SyncContext), 0},
}

// The names that gpuevent has for CUPTI's numbers, and their names in the headers.
var (
	copyKindValues = map[string]string{
		"HTOD": "HtoD", "DTOH": "DtoH", "HTOA": "HtoA", "ATOH": "AtoH", "ATOA": "AtoA", "ATOD": "AtoD",
		"DTOA": "DtoA", "DTOD": "DtoD", "HTOH": "HtoH", "PTOP": "PtoP",
	}
	memoryKindValues = map[string]string{
		"PAGEABLE": "pageable", "PINNED": "pinned", "DEVICE": "device", "ARRAY": "array", "MANAGED": "managed",
		"DEVICE_STATIC": "device_static", "MANAGED_STATIC": "managed_static",
	}
)

// TestLayoutMatchesNVIDIAsHeaders compiles everything that layout.go, apinames.go and gpufl_abi.h
// say about CUPTI against the headers of six releases.
func TestLayoutMatchesNVIDIAsHeaders(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: compiles six C programs")
	}
	headers := cudaHeaders(t)
	for i, release := range layoutReleases {
		t.Run(release.cuda, func(t *testing.T) {
			t.Parallel()
			include := filepath.Join(headers, release.cuda)
			for name := range release.structs {
				family := strings.TrimRight(name, "0123456789")
				if newest := newestStruct(t, include, family); newest != name {
					t.Errorf("the newest struct is CUpti_Activity%s, the table says %s", newest, name)
				}
			}
			for _, line := range runC(t, include, layoutProgram(t, include, i)) {
				t.Error(line)
			}
		})
	}
}

// cudaHeaders returns where the headers are, after fetching them if need be.
func cudaHeaders(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		process.Missing(t, "no C compiler: "+err.Error())
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(root, ".tools", "cuda-headers")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(root, "scripts", "cuda-headers"), folder).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == 3:
		process.Missing(t, "no CUDA headers: "+string(out))
	case err != nil:
		t.Fatalf("scripts/cuda-headers: %v\n%s", err, out)
	}
	return folder
}

// newestStruct returns the struct of a family that is not among the deprecated ones, or, in headers
// that have these in the same file, has the highest number.
func newestStruct(t *testing.T, include, family string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(include, "cupti_activity.h"))
	if err != nil {
		t.Fatal(err)
	}
	newest, name := -1, ""
	for _, m := range regexp.MustCompile(`(?m)^\} CUpti_Activity(`+family+`(\d*));`).FindAllSubmatch(text, -1) {
		n := 0
		if len(m[2]) > 0 {
			if n, err = strconv.Atoi(string(m[2])); err != nil {
				t.Fatal(err)
			}
		}
		if family == "Memory" && n == 0 {
			continue // of another kind of record, MEMORY
		}
		if n > newest {
			newest, name = n, string(m[1])
		}
	}
	return name
}

// layoutProgram returns a C program that prints each difference. It checks every struct that this
// release or one before wrote, since the headers keep those.
func layoutProgram(t *testing.T, include string, release int) string {
	t.Helper()
	var c strings.Builder
	c.WriteString(`#include <stddef.h>
#include <stdio.h>
#include <cuda.h>
#include <cupti.h>
#include <cupti_pcsampling.h>
#include <cupti_profiler_target.h>
#include <cupti_target.h>
#if __has_include(<cupti_sass_metrics.h>)
#include <cupti_sass_metrics.h>
#endif
#include "testdata/core/layout.h"

static int checks;

static void check(const char *what, long long got, long long want) {
	checks++;
	if (got != want) printf("%s is %lld in the headers, not %lld\n", what, got, want);
}

#define CHECK_ABI(name, value) check(#name, (long long)name, value);
#define CHECK_DRIVER(name, ours) check(#name, name, ours);
#define CHECK_CALLBACK(field) check("CUpti_CallbackData." #field, offsetof(CUpti_CallbackData, field), offsetof(gpufl_callback_data, field));
#define CHECK_FIELD(ours, theirs, field) \
	check(#theirs "." #field, offsetof(theirs, field), offsetof(ours, field)); \
	check("size of " #theirs "." #field, sizeof(((theirs *)0)->field), sizeof(((ours *)0)->field));
#define CHECK_SIZE(ours, theirs, last) check(#theirs "Size", theirs##Size, GPUFL_SIZE_TO(ours, last));
#define CHECK_STRUCT_SIZE(ours, theirs, last) check(#theirs "_STRUCT_SIZE", theirs##_STRUCT_SIZE, GPUFL_SIZE_TO(ours, last));
#define CHECK_WHOLE(ours, theirs) check("sizeof " #theirs, sizeof(theirs), sizeof(ours));
#define CHECK_TYPE(symbol, theirs) \
	check("parameters of " #symbol, __builtin_types_compatible_p(__typeof__(&symbol), CUptiResult (*)(theirs *)), 1);
// A function that the headers do not have would not compile.
#define CHECK_FUNCTION(field, symbol, parameters) check(#symbol, sizeof(&symbol), sizeof(void *));

int main(void) {
GPUFL_ABI_CONSTANTS(CHECK_ABI)
CHECK_DRIVER(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, GPUFL_CU_ATTRIBUTE_MULTIPROCESSOR_COUNT)
CHECK_DRIVER(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, GPUFL_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
CHECK_DRIVER(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, GPUFL_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
CHECK_DRIVER(CUDA_ERROR_NOT_INITIALIZED, GPUFL_CUDA_ERROR_NOT_INITIALIZED)
CHECK_DRIVER(CUDA_ERROR_NO_DEVICE, GPUFL_CUDA_ERROR_NO_DEVICE)
CHECK_CALLBACK(callbackSite)
CHECK_CALLBACK(functionName)
CHECK_CALLBACK(contextUid)
CHECK_CALLBACK(correlationId)
GPUFL_CUPTI_REQUIRED(CHECK_FUNCTION)
GPUFL_DRIVER_REQUIRED(CHECK_FUNCTION)
`)
	c.WriteString(`
GPUFL_DEEP_CONSTANTS(CHECK_ABI)
GPUFL_DEEP_FIELDS(CHECK_FIELD)
GPUFL_DEEP_STRUCTS(CHECK_SIZE)
GPUFL_DEEP_ARRAYS(CHECK_WHOLE)
GPUFL_DEEP_SHARED(CHECK_FUNCTION)
GPUFL_DEEP_PC(CHECK_FUNCTION)
GPUFL_DEEP_TYPES(CHECK_TYPE)
check("parameters of cuptiGetDeviceId", __builtin_types_compatible_p(__typeof__(&cuptiGetDeviceId), CUptiResult (*)(CUcontext, uint32_t *)), 1);
check("an attribute's union", sizeof(((gpufl_pc_attribute *)0)->attributeData), sizeof(((CUpti_PCSamplingConfigurationInfo *)0)->attributeData));
CHECK_DRIVER(CUDA_ERROR_NOT_READY, GPUFL_CUDA_ERROR_NOT_READY)
CHECK_DRIVER(CU_EVENT_DISABLE_TIMING, GPUFL_CU_EVENT_DISABLE_TIMING)
CHECK_DRIVER(CU_STREAM_CAPTURE_MODE_RELAXED, GPUFL_CU_STREAM_CAPTURE_MODE_RELAXED)
`)
	if layoutReleases[release].version >= 22 {
		c.WriteString(`
GPUFL_ABI_CONSTANTS_12_4(CHECK_ABI)
GPUFL_DEEP_CONSTANTS_12_4(CHECK_ABI)
GPUFL_DEEP_FIELDS_12_4(CHECK_FIELD)
GPUFL_DEEP_STRUCTS_12_4(CHECK_STRUCT_SIZE)
GPUFL_DEEP_ARRAYS_12_4(CHECK_WHOLE)
GPUFL_DEEP_SASS(CHECK_FUNCTION)
GPUFL_DEEP_TYPES_12_4(CHECK_TYPE)
`)
	}
	if layoutReleases[release].version >= 28 {
		c.WriteString("GPUFL_DEEP_CONSTANTS_12_9(CHECK_ABI)\n")
	}
	check := func(what, expression string, want int64) {
		fmt.Fprintf(&c, "check(%q, (long long)(%s), %dLL);\n", what, expression, want)
	}
	done := map[string]bool{}
	for _, r := range layoutReleases[:release+1] {
		for name, size := range r.structs {
			if done[name] {
				continue
			}
			done[name] = true
			check("sizeof "+name, "sizeof(CUpti_Activity"+name+")", int64(size))
			for _, f := range layoutFields {
				if f.family == strings.TrimRight(name, "0123456789") {
					check("offset of "+name+"."+f.field, "offsetof(CUpti_Activity"+name+", "+f.field+")", int64(f.offset))
					check("size of "+name+"."+f.field, "sizeof(((CUpti_Activity"+name+" *)0)->"+f.field+")", int64(f.bytes))
				}
			}
		}
	}
	check("CUPTI_API_VERSION", "CUPTI_API_VERSION", int64(layoutReleases[release].version))
	for _, v := range layoutValues {
		if v.since <= release {
			check(v.name, v.name, v.value)
		}
	}
	for i := int64(1); gpuevent.CopyKind(i) != ""; i++ {
		for name, ours := range copyKindValues {
			if ours == gpuevent.CopyKind(i) {
				check("copy kind "+ours, "CUPTI_ACTIVITY_MEMCPY_KIND_"+name, i)
			}
		}
	}
	for i := int64(1); gpuevent.MemoryKind(i) != ""; i++ {
		for name, ours := range memoryKindValues {
			if ours == gpuevent.MemoryKind(i) {
				check("memory kind "+ours, "CUPTI_ACTIVITY_MEMORY_KIND_"+name, i)
			}
		}
	}
	apiChecks(t, &c, include, "runtime", runtimeFunctions[:])
	apiChecks(t, &c, include, "driver", driverFunctions[:])
	c.WriteString("if (checks < 300) printf(\"only %d checks\\n\", checks);\nreturn 0;\n}\n")
	return c.String()
}

// apiChecks checks the numbers of host calls: all below the number at which the release's
// enumeration ends must be in it.
func apiChecks(t *testing.T, c *strings.Builder, include, api string, functions []apiFunctionID) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(include, "cupti_"+api+"_cbid.h"))
	if err != nil {
		t.Fatal(err)
	}
	prefix := "CUPTI_" + strings.ToUpper(api) + "_TRACE_CBID_"
	m := regexp.MustCompile(prefix + `SIZE\s*=\s*(\d+)`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("no %sSIZE", prefix)
	}
	end, err := strconv.ParseUint(string(m[1]), 10, 32)
	if err != nil || end > apiNumbers {
		t.Fatalf("%sSIZE is %s, %v", prefix, m[1], err)
	}
	for _, f := range functions {
		if uint64(f.number) < end {
			fmt.Fprintf(c, "check(%q, %s%s, %d);\n", f.symbol, prefix, f.symbol, f.number)
		}
	}
}

// runC compiles and runs a program and returns the lines that it prints.
func runC(t *testing.T, include, program string) []string {
	t.Helper()
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "layout.c"), filepath.Join(dir, "layout")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	// The runtime's headers want this one of the compiler's; what it defines are attributes of
	// functions and types of which none matters here.
	if err := os.Mkdir(filepath.Join(dir, "crt"), 0o700); err != nil {
		t.Fatal(err)
	}
	var stub strings.Builder
	for _, macro := range []string{
		"__host__", "__device__", "__device_builtin__", "CUDARTAPI", "CUDARTAPI_CDECL", "__no_return__", "__noinline__",
		"__forceinline__", "__inline__", "__cudart_builtin__", "__device_builtin_surface_type__",
		"__device_builtin_texture_type__", "__specialization_static", "__builtin_align__(x)", "__align__(x)",
	} {
		stub.WriteString("#define " + macro + "\n")
	}
	if err := os.WriteFile(filepath.Join(dir, "crt", "host_defines.h"), []byte(stub.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	compile := exec.CommandContext(t.Context(), "cc", "-std=gnu11", "-w", "-I", dir, "-isystem", include, "-I", ".", "-o", binary, source)
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	out = bytes.TrimSpace(out)
	if len(out) == 0 {
		return nil
	}
	return strings.Split(string(out), "\n")
}
