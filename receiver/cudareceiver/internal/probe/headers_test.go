// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	testprocess "github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// releases are those of scripts/cuda-headers.
var releases = []string{"11.8", "12.0", "12.4", "12.9", "13.0", "13.5"}

// parameter is a parameter of a function: its type without const, and its name.
type parameter struct{ kind, name string }

// headers returns the folder of NVIDIA's headers. It downloads them if necessary.
func headers(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: reads the headers of six releases")
	}
	if _, err := exec.LookPath("cc"); err != nil {
		testprocess.Missing(t, "no C compiler: "+err.Error())
	}
	root := testprocess.Root(t)
	folder := filepath.Join(root, ".tools", "cuda-headers")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(root, "scripts", "cuda-headers"), folder).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == 3:
		testprocess.Missing(t, "no CUDA headers: "+string(out))
	case err != nil:
		t.Fatalf("scripts/cuda-headers: %v\n%s", err, out)
	}
	return folder
}

var (
	parameters = regexp.MustCompile(`(?s)typedef struct (\w+)_params_st \{(.*?)\n\} `)
	onePar     = regexp.MustCompile(`^(?:const )?(?:enum |struct )?(.*?)\s*(\**)\s*(\w+)$`)
	version    = regexp.MustCompile(`_v\d{4,5}$`)
)

// signatures reads the parameters of all functions of the driver and the runtime from CUPTI's
// headers, by the exported names.
func signatures(t *testing.T, include string) map[string][]parameter {
	t.Helper()
	all := map[string][]parameter{}
	for _, api := range []string{"cuda", "cuda_runtime_api"} {
		text, err := os.ReadFile(filepath.Join(include, "generated_"+api+"_meta.h"))
		require.NoError(t, err)
		for _, m := range parameters.FindAllStringSubmatch(string(text), -1) {
			name := m[1]
			if api != "cuda" {
				name = version.ReplaceAllString(name, "") // when the runtime first had it
			}
			var of []parameter
			for line := range strings.SplitSeq(m[2], "\n") {
				line = strings.TrimSuffix(strings.TrimSpace(line), ";")
				if line == "" {
					continue
				}
				p := onePar.FindStringSubmatch(line)
				require.NotNil(t, p, "%s: %q", name, line)
				of = append(of, parameter{p[1] + p[2], p[3]})
			}
			all[name] = of
		}
	}
	require.Greater(t, len(all), 700)
	// CUPTI's headers omit functions without parameters.
	for _, name := range []string{"cuCtxSynchronize", "cudaDeviceSynchronize"} {
		all[name] = nil
	}
	return all
}

// expected returns the arguments that the programs read: a pattern for "type name" by position.
func expected(f apiFunction) map[int]string {
	const count = `^(size_t|unsigned int) (N|count|ByteCount|bytesize|Bytesize|size|bytes|sizeBytes)$`
	const stream = `^(CUstream|cudaStream_t) (hStream|stream|__hStream)$`
	e := map[int]string{}
	switch f.program {
	case progLaunch:
		e[0] = `^CUfunction f$`
		for i, name := range []string{"gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "sharedMemBytes"} {
			e[1+i] = "^unsigned int " + name + "$"
		}
		e[8] = stream
	case progLaunchConfig:
		e[0], e[1] = `^CUlaunchConfig\* config$`, `^CUfunction f$`
	case progGraphLaunch:
		e[0], e[1] = `^CUgraphExec hGraph(Exec)?$`, stream
	case progCopy:
		switch f.shape {
		case cudaShapeSHAPE_BYTES:
			e[int(f.size)] = count
		case cudaShapeSHAPE_2D:
			e[0] = `^CUDA_MEMCPY2D\* pCopy$`
		case cudaShapeSHAPE_3D:
			e[0] = `^CUDA_MEMCPY3D(_PEER)?\* pCopy$`
		case cudaShapeSHAPE_OPERATION:
			e[0] = `^CUDA_MEMCPY3D_BATCH_OP\* op$`
		}
		if f.flags&flagAsync != 0 {
			e[int(f.stream)] = stream
		}
	case progBatch:
		e[2], e[3] = `^size_t\* sizes$`, `^size_t count$`
		if f.shape == cudaShapeSHAPE_OPERATION {
			e = map[int]string{0: `^size_t numOps$`, 1: `^CUDA_MEMCPY3D_BATCH_OP\* opList$`}
		}
	case progSet:
		value := map[uint8]string{1: "^unsigned char uc$", 2: "^unsigned short us$", 4: "^unsigned int ui$"}[f.kind]
		e[1], e[2] = value, count
		if f.shape == cudaShapeSHAPE_2D {
			e = map[int]string{1: `^size_t dstPitch$`, 2: value, 3: `^size_t Width$`, 4: `^size_t Height$`}
		}
	case progAlloc:
		e[0], e[1] = `^(CUdeviceptr|void\*|CUmemGenericAllocationHandle)\* (dptr|pp|handle)$`, count
		if f.flags&flagPitch != 0 {
			e[1], e[3] = `^size_t\* pPitch$`, `^size_t Height$`
		}
		if f.flags&flagGiven != 0 {
			e[0] = `^void\* p$`
		}
	case progFree:
		e[0] = `^(CUdeviceptr|CUmemGenericAllocationHandle|void\*) (dptr|handle|p)$`
	case progWait:
		if f.stream != noArgument {
			e[int(f.stream)] = stream
		}
	case progRecord:
		e[0], e[1] = `^CUevent hEvent$`, stream
	case progJoin:
		e[0], e[1] = stream, `^CUevent hEvent$`
	case progForget:
		e[0] = map[cudaSpace]string{
			cudaSpaceSPACE_GRAPH: `^CUgraph hGraph$`, cudaSpaceSPACE_EXECUTABLE: `^CUgraphExec hGraphExec$`,
			cudaSpaceSPACE_EVENT: `^CUevent hEvent$`, cudaSpaceSPACE_STREAM: stream,
		}[cudaSpace(f.kind)]
	case progOther, progRuntime:
		return expectedOther(f, count, stream)
	case progRuntimeLaunch:
		e[0], e[1], e[2], e[5] = `^void\* func$`, `^dim3 gridDim$`, `^dim3 blockDim$`, stream
	case progRuntimeLaunchConfig:
		e[0], e[1] = `^cudaLaunchConfig_t\* config$`, `^void\* func$`
	}
	return e
}

func expectedOther(f apiFunction, count, stream string) map[int]string {
	e := map[int]string{}
	switch f.class {
	case cudaCallClassCALL_OTHER: // cudaGraphLaunch
		e[0], e[1] = `^cudaGraphExec_t graphExec$`, stream
	case cudaCallClassCALL_CAPTURE_BEGIN:
		e[0] = stream
		if f.flags&flagGiven != 0 {
			e[1] = `^CUgraph hGraph$`
		}
	case cudaCallClassCALL_CAPTURE_END:
		e[0], e[1] = stream, `^(CUgraph|cudaGraph_t)\* (phGraph|pGraph)$`
	case cudaCallClassCALL_INSTANTIATE:
		e[0], e[1] = `^(CUgraphExec|cudaGraphExec_t)\* (phGraphExec|pGraphExec)$`, `^(CUgraph|cudaGraph_t) (hGraph|graph)$`
	case cudaCallClassCALL_UPDATE:
		e[0], e[1] = `^CUgraphExec hGraphExec$`, `^CUgraph hGraph$`
	case cudaCallClassCALL_GRAPH:
		e[0] = `^CUgraph\* phGraph$`
	case cudaCallClassCALL_CLONE:
		e[0], e[1] = `^CUgraph\* phGraphClone$`, `^CUgraph originalGraph$`
	case cudaCallClassCALL_NODE:
		e[0], e[1] = `^CUgraphNode\* phGraphNode$`, `^CUgraph hGraph$`
		e[int(f.size)] = map[cudaNodeKind]string{
			cudaNodeKindNODE_IS_KERNEL: `^CUDA_KERNEL_NODE_PARAMS\w*\* nodeParams$`, cudaNodeKindNODE_IS_CHILD: `^CUgraph childGraph$`,
			cudaNodeKindNODE_IN_PARAMETERS: `^CUgraphNodeParams\* nodeParams$`,
		}[cudaNodeKind(f.kind)]
	case cudaCallClassCALL_NAME:
		e[0], e[2] = `^(CUfunction|CUkernel)\* (hfunc|pKernel)$`, `^char\* name$`
	case cudaCallClassCALL_SAME:
		e[0], e[1] = `^CUfunction\* pFunc$`, `^CUkernel kernel$`
	case cudaCallClassCALL_COPY:
		e[int(f.size)] = count
		if f.shape == cudaShapeSHAPE_2D {
			e[int(f.size)], e[int(f.size)+1] = `^size_t width$`, `^size_t height$`
		}
		if f.kind != noArgument {
			e[int(f.kind)] = `^cudaMemcpyKind kind$`
		}
		if f.flags&flagAsync != 0 {
			e[int(f.stream)] = stream
		}
	case cudaCallClassCALL_SET:
		e[int(f.size)] = count
		if f.shape == cudaShapeSHAPE_2D {
			e[int(f.size)], e[int(f.size)+1] = `^size_t width$`, `^size_t height$`
		}
	case cudaCallClassCALL_ALLOC:
		e[0], e[1] = `^void\*\* (devPtr|ptr|pHost)$`, count
		if f.flags&flagPitch != 0 {
			e[1], e[3] = `^size_t\* pitch$`, `^size_t height$`
		}
		if f.flags&flagGiven != 0 {
			e[0] = `^void\* ptr$`
		}
	case cudaCallClassCALL_FREE:
		e[0] = `^void\* (devPtr|ptr|hptr)$`
	case cudaCallClassCALL_WAIT:
		if f.stream != noArgument {
			e[int(f.stream)] = stream
		}
	}
	return e
}

func TestTable_MatchesHeaders(t *testing.T) {
	folder := headers(t)
	seen := map[string]string{}
	for _, release := range releases {
		signatures := signatures(t, filepath.Join(folder, release))
		for _, f := range apiFunctions {
			of, ok := signatures[f.name]
			if !ok || f.library == libnccl {
				continue
			}
			seen[f.name] = release
			e := expected(f)
			if f.class != cudaCallClassCALL_MODULE && f.class != cudaCallClassCALL_WAIT {
				assert.NotEmpty(t, e, "nothing is read of %s", f.name) // so that no check is forgotten here
			}
			for at, want := range e {
				if assert.Less(t, at, len(of), "%s of %s has no argument %d", f.name, release, at) {
					assert.Regexp(t, want, of[at].kind+" "+of[at].name, "argument %d of %s, %s", at, f.name, release)
				}
			}
		}
	}
	for _, f := range apiFunctions {
		if f.library != libnccl {
			assert.Contains(t, seen, f.name, "in no release")
		}
	}
	assert.Equal(t, "13.5", seen["cuLaunchKernel"])
}

// leftOut are functions of the driver that are similar to functions of the table but not in it, as
// patterns with the reason.
var leftOut = map[string]string{
	`^cuMem(cpy([HDA]to[HDA]|2D|2DUnaligned|3D)(Async)?|setD(2D)?(8|16|32)|Alloc(Pitch|Host)?|Free)$`: "32-bit sizes; replaced by _v2 in CUDA 3.2",
	`^cuMemHostRegister$`:                    "replaced by _v2 in CUDA 6.5",
	`^cuLaunch(Grid|GridAsync)?$`:            "deprecated since CUDA 4; the driver's own names for launches of before",
	`^cuLaunchCooperativeKernelMultiDevice$`: "gone in CUDA 13, and never of use with one process per device",
	`^cuLaunchHostFunc.*`:                    "no kernel",
	`^cuGraphAdd(Memcpy|Memset|Host|Empty|EventRecord|EventWait|ExternalSemaphores\w+|MemAlloc|MemFree|BatchMemOp)Node$`: "no kernel",
	`^cuGraphAddDependencies.*`:                                                 "no node",
	`^cuStream(Begin|End)CaptureToCig.*`:                                        "its launches are given to a graphics program, which runs them once",
	`^cuStreamDestroy$|^cuEventDestroy$`:                                        "replaced by _v2 in CUDA 4",
	`^cuMem(ImportFrom|ExportTo)ShareableHandle$|^cuMemRetainAllocationHandle$`: "memory that another call has allocated",
	`^cuModuleGetFunctionCount$`:                                                "no name",
	`^cuLibraryGetKernelCount$`:                                                 "no name",
}

// A new function of a release must be in the table, or omitted for a reason.
func TestTable_CompleteForDriver(t *testing.T) {
	folder := headers(t)
	families := regexp.MustCompile(`^cu(Launch|Memcpy|Memset|MemAlloc|MemFree|MemHost(Alloc|Register|Unregister)|MemCreate|MemRelease|MemImport|MemRetain|` +
		`GraphLaunch|GraphInstantiate|GraphExec(Update|Destroy)|Graph(Create|Clone|Destroy$|Add)|Stream(Begin|EndCapture|Synchronize|WaitEvent|Destroy)|` +
		`Event(Record|Synchronize|Destroy)|Ctx\w*Synchronize|Module(Load|GetFunction)|Library(Load|GetKernel)|KernelGetFunction)`)
	table := functionsOf(libcuda)
	used := map[string]bool{}
	for _, release := range releases {
		for name := range signatures(t, filepath.Join(folder, release)) {
			if _, ok := table[name]; ok || !families.MatchString(name) {
				continue
			}
			reason := ""
			for pattern := range leftOut {
				if regexp.MustCompile(pattern).MatchString(name) {
					reason = leftOut[pattern]
					used[pattern] = true
				}
			}
			assert.NotEmpty(t, reason, "%s of %s is not in the table", name, release)
		}
	}
	for pattern := range leftOut {
		assert.True(t, used[pattern], "%s is of no use", pattern)
	}
}

// offsets compares bpf/layout.h with NVIDIA's headers. since is the first release with the field.
var offsets = []struct{ ours, theirs, since string }{
	{"COPY_2D_SOURCE", "offsetof(CUDA_MEMCPY2D, srcMemoryType)", "11.8"},
	{"COPY_2D_DESTINATION", "offsetof(CUDA_MEMCPY2D, dstMemoryType)", "11.8"},
	{"COPY_2D_WIDTH", "offsetof(CUDA_MEMCPY2D, WidthInBytes)", "11.8"},
	{"COPY_2D_WIDTH + 8", "offsetof(CUDA_MEMCPY2D, Height)", "11.8"},
	{"COPY_3D_SOURCE", "offsetof(CUDA_MEMCPY3D, srcMemoryType)", "11.8"},
	{"COPY_3D_DESTINATION", "offsetof(CUDA_MEMCPY3D, dstMemoryType)", "11.8"},
	{"COPY_3D_WIDTH", "offsetof(CUDA_MEMCPY3D, WidthInBytes)", "11.8"},
	{"COPY_3D_WIDTH + 8", "offsetof(CUDA_MEMCPY3D, Height)", "11.8"},
	{"COPY_3D_WIDTH + 16", "offsetof(CUDA_MEMCPY3D, Depth)", "11.8"},
	{"COPY_3D_SOURCE", "offsetof(CUDA_MEMCPY3D_PEER, srcMemoryType)", "11.8"},
	{"COPY_3D_DESTINATION", "offsetof(CUDA_MEMCPY3D_PEER, dstMemoryType)", "11.8"},
	{"COPY_3D_WIDTH", "offsetof(CUDA_MEMCPY3D_PEER, WidthInBytes)", "11.8"},
	{"OPERATION_WIDTH", "offsetof(CUDA_MEMCPY3D_BATCH_OP, extent.width)", "12.9"},
	{"OPERATION_WIDTH + 8", "offsetof(CUDA_MEMCPY3D_BATCH_OP, extent.height)", "12.9"},
	{"OPERATION_WIDTH + 16", "offsetof(CUDA_MEMCPY3D_BATCH_OP, extent.depth)", "12.9"},
	{"OPERATION_BYTES", "sizeof(CUDA_MEMCPY3D_BATCH_OP)", "12.9"},
	{"NODE_TYPE", "offsetof(CUgraphNodeParams, type)", "12.4"},
	{"NODE_CHILD", "offsetof(CUgraphNodeParams, graph.graph)", "12.4"},
	{"TYPE_HOST", "CU_MEMORYTYPE_HOST", "11.8"},
	{"TYPE_DEVICE", "CU_MEMORYTYPE_DEVICE", "11.8"},
	{"TYPE_ARRAY", "CU_MEMORYTYPE_ARRAY", "11.8"},
	{"NODE_KERNEL", "CU_GRAPH_NODE_TYPE_KERNEL", "11.8"},
	{"NODE_GRAPH", "CU_GRAPH_NODE_TYPE_GRAPH", "11.8"},
	{"NODE_CONDITIONAL", "CU_GRAPH_NODE_TYPE_CONDITIONAL", "12.4"},
	{"RUNTIME_HTOH", "cudaMemcpyHostToHost", "11.8"},
	{"RUNTIME_HTOD", "cudaMemcpyHostToDevice", "11.8"},
	{"RUNTIME_DTOH", "cudaMemcpyDeviceToHost", "11.8"},
	{"RUNTIME_DTOD", "cudaMemcpyDeviceToDevice", "11.8"},
	{"RUNTIME_DEFAULT", "cudaMemcpyDefault", "11.8"},
	{"CODE_NOT_READY", "CUDA_ERROR_NOT_READY", "11.8"},
	{"CODE_NOT_READY", "cudaErrorNotReady", "11.8"},
	{"CODE_WRONG_THREAD", "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "11.8"},
	{"offsetof(struct launch_config, grid)", "offsetof(CUlaunchConfig, gridDimX)", "11.8"},
	{"offsetof(struct launch_config, block)", "offsetof(CUlaunchConfig, blockDimX)", "11.8"},
	{"offsetof(struct launch_config, stream)", "offsetof(CUlaunchConfig, hStream)", "11.8"},
	{"offsetof(struct runtime_launch_config, grid)", "offsetof(cudaLaunchConfig_t, gridDim)", "11.8"},
	{"offsetof(struct runtime_launch_config, block)", "offsetof(cudaLaunchConfig_t, blockDim)", "11.8"},
	{"offsetof(struct runtime_launch_config, shared)", "offsetof(cudaLaunchConfig_t, dynamicSmemBytes)", "11.8"},
	{"offsetof(struct runtime_launch_config, stream)", "offsetof(cudaLaunchConfig_t, stream)", "11.8"},
	{"sizeof(unsigned[3])", "sizeof(dim3)", "11.8"},
}

func TestLayoutMatchesNVIDIAsHeaders(t *testing.T) {
	folder := headers(t)
	for at, release := range releases {
		var c strings.Builder
		c.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include <cuda.h>\n#include <driver_types.h>\n#include <layout.h>\nint main(void) {\n")
		checks := 0
		for _, o := range offsets {
			if slices.Index(releases, o.since) <= at {
				fmt.Fprintf(&c, "if ((%s) != (%s)) printf(\"%%s is %%lld, not %%lld\\n\", %q, (long long)(%s), (long long)(%s));\n",
					o.ours, o.theirs, o.theirs, o.theirs, o.ours)
				checks++
			}
		}
		c.WriteString("return 0;\n}\n")
		require.Greater(t, checks, 30)
		assert.Empty(t, compiled(t, filepath.Join(folder, release), c.String()), release)
	}
}

// compiled compiles and runs a program and returns its output.
func compiled(t *testing.T, include, text string) string {
	t.Helper()
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "layout.c"), filepath.Join(dir, "layout")
	require.NoError(t, os.WriteFile(source, []byte(text), 0o600))
	// The runtime's headers want this one of the compiler's; what it defines are attributes that do not matter.
	require.NoError(t, os.Mkdir(filepath.Join(dir, "crt"), 0o700))
	var defines strings.Builder
	for _, macro := range []string{
		"__host__", "__device__", "__device_builtin__", "CUDARTAPI", "CUDARTAPI_CDECL", "__cudart_builtin__", "__inline__",
		"__device_builtin_surface_type__", "__device_builtin_texture_type__", "__builtin_align__(x)", "__align__(x)",
	} {
		defines.WriteString("#define " + macro + "\n")
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "crt", "host_defines.h"), []byte(defines.String()), 0o600))
	cmd := exec.CommandContext(t.Context(), "cc", "-std=gnu11", "-w", "-I", dir, "-isystem", include, "-I", "../../bpf", "-o", binary, source)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.CommandContext(t.Context(), binary).Output()
	require.NoError(t, err)
	return string(out)
}
