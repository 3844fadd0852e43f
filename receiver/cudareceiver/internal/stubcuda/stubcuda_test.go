// SPDX-License-Identifier: Apache-2.0

package stubcuda

import (
	"debug/elf"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProgram_DriverCommands(t *testing.T) {
	l := Build(t)
	p := l.Start(t, "STUB_FAIL=cuMemFree_v2=700,cuCtxSynchronize=719")
	p.Must("open %s", l.Library)
	p.Must("function 1 _Z6kernelv")
	p.Must("kernel 2 gemm")
	p.Must("threads 4")
	p.Must("launch 100 1 8 256")
	p.Must("launchex 100 2 8 256")
	p.Must("cooperative 3 1 8 256")
	p.Must("copy cuMemcpyHtoDAsync_v2 10 4096")
	p.Must("copy cuMemcpyPeerAsync 10 4096")
	p.Must("set cuMemsetD32Async 10 64")
	p.Must("threads 1")
	p.Must("alloc cuMemAllocAsync 5 1024")
	p.Must("free cuMemFreeAsync")
	p.Must("alloc cuMemAlloc_v2 1 1024")
	assert.Equal(t, 700, p.Do("free cuMemFree_v2"))
	p.Must("wait cuStreamSynchronize 2")
	assert.Equal(t, 719, p.Do("wait cuCtxSynchronize 1"))
	p.Must("capture 10 1")
	p.Must("graph 3")
	p.Must("fork launch 5 1 1 32")
	p.Must("kernels 100")
	p.Must("names 10")
	p.Must("events 10")
	p.Must("park 5 launch")
	p.Must("children 3 kernels 10")
	p.Must("execthread")
	p.Must("open %s", l.Library)
	p.Must("kernels 100")
	p.End()
}

func TestProgram_OtherLibraries(t *testing.T) {
	l := Build(t)
	for _, inner := range []string{"0", "1"} {
		p := l.Start(t, "STUB_DRIVER="+l.Library, "STUB_INNER="+inner, "STUB_FAIL=cuGraphLaunch=700,ncclSend=5")
		p.Must("open %s", l.Library)
		p.Must("load %s", l.Runtime)
		p.Must("load %s", l.NCCL)
		// The grid is 2 × 3 × 4, the block 32 × 1 × 1.
		p.Must("call 3 cudaLaunchKernel 1 0x300000002 4 0x100000020 1 0 0 7")
		assert.Equal(t, 9, p.Do("call 1 cudaLaunchKernel 1 0x100000001 1 0x100000800 1 0 0 7"))
		p.Must("call 1 cudaMalloc &0 100")
		p.Must("call 1 cudaFree @0")
		p.Must("call 1 cudaDeviceSynchronize")
		p.Must("put 1 7 @0 &0")
		assert.Equal(t, 700, p.Do("call 2 cudaGraphLaunch @1 7"))
		p.Must("call 1 ncclAllReduce 1 2 100 7 0 0 0")
		assert.Equal(t, 5, p.Do("call 1 ncclSend 1 100 7 0 0 0"))
		p.End()
	}
}

// The probes read the first instructions of a function.
func TestBuild_FirstInstructions(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("checks instructions of amd64")
	}
	l := Build(t)
	for path, want := range map[string][]byte{l.Library: {0x55}, l.Marked: {0xf3, 0x0f, 0x1e, 0xfa, 0x55}, l.Runtime: {0x55}, l.NCCL: {0x55}} {
		f, err := elf.Open(path)
		require.NoError(t, err)
		symbols, err := f.DynamicSymbols()
		require.NoError(t, err)
		text := f.Section(".text")
		code, err := text.Data()
		require.NoError(t, err)
		found := 0
		for _, s := range symbols {
			if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Section != elf.SectionIndex(sectionIndex(f, ".text")) {
				continue
			}
			found++
			assert.Equal(t, want, code[s.Value-text.Addr:][:len(want)], s.Name)
		}
		assert.Greater(t, found, 8)
		require.NoError(t, f.Close())
	}
}

func sectionIndex(f *elf.File, name string) int {
	for i, s := range f.Sections {
		if s.Name == name {
			return i
		}
	}
	return -1
}
