// SPDX-License-Identifier: Apache-2.0

package stubcuda

import (
	"debug/elf"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProgramCallsWhatItIsTold(t *testing.T) {
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
	p.End()
}

// The probes look at how a function begins.
func TestFunctionsBeginAsTheyShould(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("about instructions of amd64")
	}
	l := Build(t)
	for path, want := range map[string][]byte{l.Library: {0x55}, l.Marked: {0xf3, 0x0f, 0x1e, 0xfa, 0x55}} {
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
		assert.Greater(t, found, 40)
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
