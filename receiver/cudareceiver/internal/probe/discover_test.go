// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package probe

import (
	"debug/elf"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/stubcuda"
)

// discovered scans a /proc once.
func discovered(t *testing.T, proc string) *scanned {
	t.Helper()
	f := finder{proc: proc, shares: newShares(nil)}
	l, err := f.all(t.Context())
	require.NoError(t, err)
	return l
}

func TestDiscover_EachFileOnce(t *testing.T) {
	l := stubcuda.Build(t)
	copied := filepath.Join(t.TempDir(), "a folder", "libcuda.so.580.1")
	require.NoError(t, os.MkdirAll(filepath.Dir(copied), 0o755))
	text, err := os.ReadFile(l.Library)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(copied, text, 0o755))
	linked := filepath.Join(t.TempDir(), "libcuda.so")
	require.NoError(t, os.Link(copied, linked))

	before := discovered(t, "/proc").found
	for _, path := range []string{l.Library, l.Library, copied, linked} {
		l.Start(t).Must("open %s", path)
	}
	found := discovered(t, "/proc").found
	var ours []candidate
	for _, c := range found {
		known := false
		for _, b := range before {
			known = known || b.file == c.file
		}
		if !known {
			ours = append(ours, c)
		}
	}
	require.Len(t, ours, 2, "one file is open twice, another under two names")
	for _, c := range ours {
		o, err := c.open("/proc")
		require.NoError(t, err)
		f, err := o.read()
		require.NoError(t, err)
		o.close()
		got, err := functions(f, c.size, map[string]int{"cuLaunchKernel": 1, "cuMemcpyHtoD_v2": 2, "cuNone": 3})
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.Len(t, got, 2)
		for _, fn := range got {
			assert.False(t, fn.slow, fn.name)
		}
	}
}

func TestDiscover_FakeProc(t *testing.T) {
	proc := filepath.Join(t.TempDir(), "proc")
	process := func(pid, maps string, files ...string) {
		dir := filepath.Join(proc, pid)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		for _, f := range files {
			path := filepath.Join(dir, "root", f)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, []byte(pid), 0o600))
			inode := strconv.FormatUint(fileAt(t, path).inode, 10)
			maps = strings.ReplaceAll(maps, " 42  "+strings.Repeat(" ", 22)+" "+f+"\n", " "+inode+" "+f+"\n")
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, "maps"), []byte(maps), 0o600))
	}
	line := "7f0000000000-7f0000001000 r-xp 00000000 08:01 42                         "
	process("10", line+"/usr/lib/libcuda.so.1\n"+line+"/usr/lib/libcuda.so.1\n"+line+"/usr/lib/libcudart.so.13\n7f0000002000-7f0000003000 rw-p 00000000 00:00 0 \n", "/usr/lib/libcuda.so.1", "/usr/lib/libcudart.so.13")
	process("11", line+"/in container/libcuda.so.550.54\n", "/in container/libcuda.so.550.54")
	process("12", line+"/gone/libcuda.so.1 (deleted)\n"+line+"/not there/libcuda.so.1\n")
	process("13", "garbage\n\x00\x01/libcuda.sox\n")
	process("self", line+"/usr/lib/libcuda.so.1\n", "/usr/lib/libcuda.so.1")
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "14"), 0o755)) // it has ended
	l := discovered(t, proc)
	found := l.found
	assert.Zero(t, l.denied)
	var paths []string
	for _, c := range found {
		paths = append(paths, c.path)
	}
	assert.ElementsMatch(t, []string{filepath.Join(proc, "10/root/usr/lib/libcuda.so.1"), filepath.Join(proc, "10/root/usr/lib/libcudart.so.13"), filepath.Join(proc, "11/root/in container/libcuda.so.550.54")}, paths)

	f := finder{proc: filepath.Join(proc, "none"), shares: newShares(nil)}
	_, err := f.all(t.Context())
	require.Error(t, err)
}

func TestLibrariesByName(t *testing.T) {
	for path, want := range map[string]library{
		"/usr/lib/libcuda.so": libcuda, "/a/libcuda.so.1": libcuda, "/libcuda.so.580.159.04": libcuda,
		"/cuda/lib64/libcudart.so.12": libcudart, "/torch/lib/libcudart-d0da41ae.so.11.0": libcudart,
		"/nvidia/nccl/lib/libnccl.so.2": libnccl, "/opt/libnccl.so.2.27.7": libnccl,
	} {
		got, ok := libraryOf([]byte(path))
		assert.True(t, ok, path)
		assert.Equal(t, want, got, path)
	}
	for _, path := range []string{
		"/libcuda.so.1 (deleted)", "/libcudadebugger.so.1", "/libcudart_static.a", "/libcudart-12", "/libnccl-net.so", "/libnccl.solid",
		"/torch/lib/libc10_cuda.so", "/libcuda.sox", "",
	} {
		assert.False(t, isLibrary([]byte(path)), path)
	}
}

func TestEntriesOfFunctions(t *testing.T) {
	for name, c := range map[string]struct {
		code []byte
		skip int
		slow bool
	}{
		"push rbp":            {[]byte{0x55, 0x48, 0x89, 0xe5, 0x90}, 0, false},
		"push r15":            {[]byte{0x41, 0x57, 0x41, 0x56, 0x55}, 0, false},
		"nop5":                {[]byte{0x0f, 0x1f, 0x44, 0x00, 0x00, 0x55}, 0, false},
		"endbr64, push rbp":   {[]byte{0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48}, 4, false},
		"endbr64, sub rsp":    {[]byte{0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 0x18}, 4, true},
		"mov eax, 1":          {[]byte{0xb8, 1, 0, 0, 0}, 0, true},
		"jmp":                 {[]byte{0xe9, 1, 2, 3, 4}, 0, false},
		"41 that is no push":  {[]byte{0x41, 0x89, 0xc0, 0, 0}, 0, true},
		"the end of the code": {[]byte{0x41}, 0, true},
	} {
		skip, slow := entry(elf.EM_X86_64, c.code)
		assert.Equal(t, c.skip, skip, name)
		assert.Equal(t, c.slow, slow, name)
	}
	skip, slow := entry(elf.EM_AARCH64, []byte{0xfd, 0x7b, 0xbf, 0xa9, 0xfd})
	assert.Zero(t, skip)
	assert.False(t, slow)
}

func TestFunctionsOfAMarkedLibraryAreAttachedBehindTheMark(t *testing.T) {
	l := stubcuda.Build(t)
	f, err := os.Open(l.Marked)
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	got, err := functions(f, info.Size(), map[string]int{"cuLaunchKernel": 1})
	require.NoError(t, err)
	require.Len(t, got, 1)
	var code [1]byte
	_, err = f.ReadAt(code[:], int64(got[0].offset))
	require.NoError(t, err)
	assert.Equal(t, byte(0x55), code[0], "push %rbp")
}
