// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/elffile"
	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// libraryImage makes a library whose symbols are functions of the given names, each of one push.
func libraryImage(names ...string) []byte {
	le := binary.LittleEndian
	const segmentBytes = 56
	const sectionAt, codeAt = elffile.HeaderBytes + segmentBytes, elffile.HeaderBytes + segmentBytes + 3*elffile.SectionBytes
	const tableAt = codeAt + 16
	strings := []byte{0}
	at := map[string]uint32{}
	var table bytes.Buffer
	table.Write(make([]byte, elffile.SymbolBytes)) // the first symbol is none
	for _, name := range names {
		if _, ok := at[name]; !ok {
			at[name] = uint32(len(strings))
			strings = append(append(strings, name...), 0)
		}
		s := make([]byte, elffile.SymbolBytes)
		le.PutUint32(s, at[name])
		s[4] = byte(elf.STT_FUNC)
		le.PutUint16(s[6:], 1)
		le.PutUint64(s[8:], codeAt)
		table.Write(s)
	}
	b := make([]byte, tableAt)
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint16(b[16:], uint16(elf.ET_DYN))
	le.PutUint16(b[18:], uint16(elf.EM_X86_64))
	le.PutUint64(b[32:], elffile.HeaderBytes)
	le.PutUint64(b[40:], sectionAt)
	le.PutUint16(b[54:], segmentBytes)
	le.PutUint16(b[56:], 1)
	le.PutUint16(b[58:], elffile.SectionBytes)
	le.PutUint16(b[60:], 3)
	segment := b[elffile.HeaderBytes:]
	le.PutUint32(segment, uint32(elf.PT_LOAD))
	le.PutUint32(segment[4:], uint32(elf.PF_X))
	le.PutUint64(segment[32:], tableAt)
	for i, s := range []struct {
		kind       elf.SectionType
		at, size   int
		link, each uint32
	}{
		{},
		{elf.SHT_DYNSYM, tableAt, table.Len(), 2, elffile.SymbolBytes},
		{elf.SHT_STRTAB, tableAt + table.Len(), len(strings), 0, 0},
	} {
		h := b[sectionAt+i*elffile.SectionBytes:]
		le.PutUint32(h[4:], uint32(s.kind))
		le.PutUint64(h[24:], uint64(s.at))
		le.PutUint64(h[32:], uint64(s.size))
		le.PutUint32(h[40:], s.link)
		le.PutUint64(h[56:], uint64(s.each))
	}
	copy(b[codeAt:], "\x55\x48\x89\xe5\x90")
	return slices.Concat(b, table.Bytes(), strings)
}

func functionsIn(image []byte, wanted ...string) ([]function, error) {
	index := map[string]int{}
	for i, name := range wanted {
		index[name] = i
	}
	return functions(bytes.NewReader(image), int64(len(image)), index)
}

func TestFunctions_Found(t *testing.T) {
	image := libraryImage("cuInit", "cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchKernel", "cu")
	found, err := functionsIn(image, "cuLaunchKernel", "cuMemFree")
	require.NoError(t, err)
	const at = elffile.HeaderBytes + 56 + 3*elffile.SectionBytes
	assert.Equal(t, []function{{name: "cuLaunchKernel", offset: at}, {name: "cuLaunchKernel", offset: at}}, found)
}

// A file that exceeds a bound is an error that says so.
func TestFunctions_Limits(t *testing.T) {
	many := func(n int, name string) []string {
		names := make([]string, n)
		for i := range names {
			names[i] = name
		}
		return names
	}
	for name, c := range map[string]struct {
		image []byte
		ok    bool
	}{
		"as many symbols as may be": {libraryImage(many(maxSymbols-1, "x")...), true}, // the first one is none
		"one symbol more":           {libraryImage(many(maxSymbols, "x")...), false},
		"versions of a function":    {libraryImage(many(maxVersions, "cuInit")...), true},
		"too many versions":         {libraryImage(many(maxVersions+1, "cuInit")...), false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := functionsIn(c.image, "cuInit")
			if c.ok {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, elffile.ErrLimit)
			}
		})
	}
	sections := libraryImage("cuInit")
	at := (len(sections) + 63) / 64 * 64
	image := append(bytes.Clone(sections), make([]byte, at-len(sections)+(maxSections+1)*elffile.SectionBytes)...)
	binary.LittleEndian.PutUint64(image[40:], uint64(at))
	binary.LittleEndian.PutUint16(image[60:], maxSections+1)
	_, err := functionsIn(image, "cuInit")
	require.ErrorIs(t, err, elffile.ErrLimit)
	binary.LittleEndian.PutUint16(image[60:], maxSections)
	_, err = functionsIn(image, "cuInit")
	require.NoError(t, err)

	bounded := &boundedReader{file: strings.NewReader("0123456789"), left: 10}
	_, err = bounded.ReadAt(make([]byte, 10), 0)
	require.NoError(t, err)
	_, err = bounded.ReadAt(make([]byte, 1), 0)
	require.ErrorIs(t, err, elffile.ErrLimit)
}

// A function in the ELF header has no offset that a probe can have: 0 would mean "unknown".
func TestFunctions_InTheHeader(t *testing.T) {
	image := libraryImage("cuInit")
	const symbol = elffile.HeaderBytes + 56 + 3*elffile.SectionBytes + 16 + elffile.SymbolBytes
	binary.LittleEndian.PutUint64(image[symbol+8:], 1)
	_, err := functionsIn(image, "cuInit")
	require.ErrorContains(t, err, "is in no executable segment")
}

// 40,000 symbols of one name of 40 KB: 1 MB that made debug/elf allocate 1.6 GB.
func TestFunctions_Allocations(t *testing.T) {
	names := make([]string, 4_000)
	for i := range names {
		names[i] = strings.Repeat("a", 40_000)
	}
	image := libraryImage(names...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := functionsIn(image, "cuInit")
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	allocated := after.TotalAlloc - before.TotalAlloc
	t.Logf("%d bytes allocated for a file of %d", allocated, len(image))
	assert.Less(t, allocated, uint64(256<<10))
}

// FuzzFunctions reads files of any content, and allocates no more than a fixed amount and what it returns.
func FuzzFunctions(f *testing.F) {
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Add([]byte("no library"))
	f.Add(libraryImage("cuLaunchKernel", "cuInit"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var found []function
		var err error
		alloctest.Limit{PerByte: 1, Constant: 256 << 10}.Check(t, len(b), func() {
			found, err = functionsIn(b, "cuLaunchKernel", "cuInit")
		})
		if err != nil && len(found) > 0 {
			t.Fatal("functions of what is no library")
		}
		for _, fn := range found {
			if fn.offset < minOffset || fn.offset >= uint64(len(b)) {
				t.Fatalf("%s at %#x of %d bytes", fn.name, fn.offset, len(b))
			}
		}
	})
}
