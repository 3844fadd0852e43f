// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package probe

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestCPUList(t *testing.T) {
	for text, want := range map[string][]int{"0": {0}, "0-3": {0, 1, 2, 3}, "0-1,5,7-8": {0, 1, 5, 7, 8}} {
		got, err := cpuList(text)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	for _, text := range []string{"", "a", "3-1", "0-", "0,,1", "-1"} {
		_, err := cpuList(text)
		assert.Error(t, err, text)
	}
}

// ring makes a ring as the kernel fills it, starting at a given position.
func ring(from uint64, records ...[]byte) *mappings {
	r := mappingRing{page: &unix.PerfEventMmapPage{Data_tail: from, Data_head: from}, data: make([]byte, 512)}
	for _, record := range records {
		for _, b := range record {
			r.data[r.page.Data_head%512] = b
			r.page.Data_head++
		}
	}
	return &mappings{rings: []mappingRing{r}}
}

func record(kind uint32, pid uint32, path string) []byte {
	b := make([]byte, mmap2Path, 256)
	binary.NativeEndian.PutUint32(b, kind)
	binary.NativeEndian.PutUint32(b[mmap2PID:], pid)
	b = append(b, path...)
	for b = append(b, 0); len(b)%8 != 0; b = append(b, 0) {
	}
	binary.NativeEndian.PutUint16(b[6:], uint16(len(b)))
	return b
}

func TestMappings_RingWrap(t *testing.T) {
	const driver = "/usr/lib/libcuda.so.580.1"
	for from := uint64(1 << 40); from < 1<<40+512; from += 8 {
		m := ring(from, record(unix.PERF_RECORD_MMAP2, 7, driver), record(unix.PERF_RECORD_MMAP2, 8, "/usr/lib/libc.so.6"),
			record(unix.PERF_RECORD_MMAP2, ^uint32(0), driver), record(unix.PERF_RECORD_MMAP2, 9, driver))
		var pids []uint32
		assert.True(t, m.read(isLibrary, func(pid uint32) { pids = append(pids, pid) }))
		assert.Equal(t, []uint32{7, 9}, pids)
		assert.Equal(t, m.rings[0].page.Data_head, m.rings[0].page.Data_tail)
	}
}

func TestMappings_LostEvents(t *testing.T) {
	none := func(uint32) { t.Error("no process") }
	assert.False(t, ring(8, record(unix.PERF_RECORD_LOST, 7, "")).read(isLibrary, none))
	assert.True(t, ring(8, record(12345, 7, "/libcuda.so.1")).read(isLibrary, none))
	empty := make([]byte, 64)
	m := ring(8, empty) // a size of 0 must not block the reader
	assert.False(t, m.read(isLibrary, none))
	assert.Equal(t, m.rings[0].page.Data_head, m.rings[0].page.Data_tail)
	long := record(unix.PERF_RECORD_MMAP2, 7, "/libcuda.so.1")
	binary.NativeEndian.PutUint16(long[6:], 60000)
	assert.False(t, ring(8, long).read(isLibrary, none))
}
