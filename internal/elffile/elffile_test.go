// SPDX-License-Identifier: Apache-2.0

package elffile

import (
	"bytes"
	"debug/elf"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// header makes the header of a file with its tables of sections and segments at the given places.
func header(sectionAt, sections, names, segmentAt, segments uint64) []byte {
	h := make([]byte, HeaderBytes)
	copy(h, "\x7fELF\x02\x01\x01")
	order.PutUint16(h[16:], uint16(elf.ET_DYN))
	order.PutUint16(h[18:], uint16(elf.EM_X86_64))
	order.PutUint64(h[32:], segmentAt)
	order.PutUint64(h[40:], sectionAt)
	order.PutUint16(h[54:], segmentBytes)
	order.PutUint16(h[56:], uint16(segments))
	order.PutUint16(h[58:], SectionBytes)
	order.PutUint16(h[60:], uint16(sections))
	order.PutUint16(h[62:], uint16(names))
	return h
}

// sectionHeader makes the header of one section.
func sectionHeader(kind elf.SectionType, offset, size uint64, link uint32, entry uint64) []byte {
	h := make([]byte, SectionBytes)
	order.PutUint32(h[4:], uint32(kind))
	order.PutUint64(h[24:], offset)
	order.PutUint64(h[32:], size)
	order.PutUint32(h[40:], link)
	order.PutUint64(h[56:], entry)
	return h
}

// library makes a file with symbols.
func library(symbols int) []byte {
	tableAt := uint64(HeaderBytes + 3*SectionBytes)
	size := uint64(symbols) * SymbolBytes
	namesAt := tableAt + size
	file := header(HeaderBytes, 3, 0, 0, 0)
	file = append(file, make([]byte, SectionBytes)...)
	file = append(file, sectionHeader(elf.SHT_DYNSYM, tableAt, size, 2, SymbolBytes)...)
	file = append(file, sectionHeader(elf.SHT_STRTAB, namesAt, 6, 0, 0)...)
	for i := range symbols {
		s := make([]byte, SymbolBytes)
		order.PutUint32(s, 1)
		s[4] = byte(elf.STT_FUNC)
		order.PutUint64(s[8:], uint64(i))
		file = append(file, s...)
	}
	return append(file, "\x00name\x00"...)
}

func open(t *testing.T, image []byte) *File {
	t.Helper()
	f, err := Open(bytes.NewReader(image), int64(len(image)))
	require.NoError(t, err)
	return f
}

// The compiler's own files are read as debug/elf reads them.
func TestOpen_OwnExecutable(t *testing.T) {
	path, err := os.Executable()
	require.NoError(t, err)
	r, err := os.Open(path)
	require.NoError(t, err)
	defer r.Close()
	info, err := r.Stat()
	require.NoError(t, err)
	f, err := Open(r, info.Size())
	require.NoError(t, err)
	want, err := elf.NewFile(r)
	require.NoError(t, err)
	assert.Equal(t, want.Machine, f.Machine)
	assert.Equal(t, want.Type, f.Type)
	require.Len(t, want.Sections, f.Sections)
	seen := 0
	require.NoError(t, f.EachSection(func(i int, s *Section) bool {
		seen++
		assert.Equal(t, want.Sections[i].Type, s.Kind)
		assert.Equal(t, want.Sections[i].Offset, s.Offset)
		assert.Equal(t, want.Sections[i].FileSize, s.Size)
		assert.Equal(t, want.Sections[i].Link, s.Link)
		return true
	}))
	assert.Equal(t, f.Sections, seen)
	executables, err := f.Executables()
	require.NoError(t, err)
	var segments []Executable
	for _, p := range want.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 {
			segments = append(segments, Executable{p.Vaddr, p.Off, p.Filesz})
		}
	}
	assert.Equal(t, segments, executables)
	symbols, err := want.DynamicSymbols()
	if err != nil {
		t.Skip("the test is linked statically: ", err)
	}
	table, names, ok, err := f.Symbols(elf.SHT_DYNSYM)
	require.NoError(t, err)
	require.True(t, ok)
	n := 0
	require.NoError(t, f.EachSymbol(&table, 1<<20, func(i uint64, s Symbol) (bool, error) {
		if i == 0 {
			return true, nil
		}
		name, err := f.NameAt(&names, s.Name, make([]byte, 256))
		require.NoError(t, err)
		assert.Equal(t, symbols[i-1].Name, string(name))
		assert.Equal(t, symbols[i-1].Value, s.Value)
		assert.Equal(t, symbols[i-1].Section, s.Section)
		n++
		return true, nil
	}))
	assert.Len(t, symbols, n)
}

func TestEachSymbol_Limit(t *testing.T) {
	f := open(t, library(5000)) // more than one piece
	table, names, ok, err := f.Symbols(elf.SHT_DYNSYM)
	require.NoError(t, err)
	require.True(t, ok)
	next := uint64(0)
	require.NoError(t, f.EachSymbol(&table, 5000, func(i uint64, s Symbol) (bool, error) {
		assert.Equal(t, next, i)
		assert.Equal(t, i, s.Value)
		next++
		return true, nil
	}))
	assert.EqualValues(t, 5000, next)
	require.ErrorIs(t, f.EachSymbol(&table, 4999, func(uint64, Symbol) (bool, error) {
		t.Error("a symbol is read")
		return false, nil
	}), ErrLimit)
	name, err := f.NameAt(&names, 1, make([]byte, 5))
	require.NoError(t, err)
	assert.Equal(t, "name", string(name))
	name, err = f.NameAt(&names, 1, make([]byte, 4))
	require.NoError(t, err)
	assert.Nil(t, name, "longer than the buffer")
	_, err = f.NameAt(&names, 6, make([]byte, 5))
	require.Error(t, err)
}

func TestOpen_Malformed(t *testing.T) {
	good := library(2)
	change := func(at int, b ...byte) []byte {
		c := bytes.Clone(good)
		copy(c[at:], b)
		return c
	}
	const first = HeaderBytes + SectionBytes // the header of the table of symbols
	for name, c := range map[string]struct {
		image []byte
		says  string
	}{
		"empty":                        {nil, "too short"},
		"another file":                 {change(0, 'X'), "no ELF file"},
		"32 bits":                      {change(4, 1), "no 64-bit"},
		"big-endian":                   {change(5, 2), "no little-endian"},
		"sections outside":             {change(40, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), "outside the file"},
		"sections of another size":     {change(58, 63), "63 bytes instead of 64"},
		"too many sections":            {change(60, 0xff, 0xff), "do not fit"},
		"too many sections, large":     {append(change(60, 0, 0)[:HeaderBytes], bytes.Repeat([]byte{0xff}, 200)...), "do not fit"},
		"names of sections in none":    {change(62, 9), "section 9 has the names"},
		"symbols outside":              {change(first+24, 0xff, 0xff, 0xff), "lies outside"},
		"symbols that wrap":            {change(first+32, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), "lies outside"},
		"a part of a symbol":           {change(first+32, 47), "a table of 47 bytes"},
		"symbols of another size":      {change(first+56, 16), "symbols of 16 bytes"},
		"names of symbols in none":     {change(first+40, 77), "section 77 of 3"},
		"names of symbols in no bytes": {change(first+40, 0), "has no bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Open(bytes.NewReader(c.image), int64(len(c.image)))
			if err == nil {
				_, _, _, err = f.Symbols(elf.SHT_DYNSYM)
			}
			var format *FormatError
			require.ErrorAs(t, err, &format)
			assert.ErrorContains(t, err, c.says)
		})
	}
}

func TestExecutables_Bounds(t *testing.T) {
	segment := make([]byte, segmentBytes)
	order.PutUint32(segment, uint32(elf.PT_LOAD))
	order.PutUint32(segment[4:], uint32(elf.PF_X))
	order.PutUint64(segment[16:], 0x1000)
	order.PutUint64(segment[32:], HeaderBytes)
	f := open(t, append(header(0, 0, 0, HeaderBytes, 1), segment...))
	all, err := f.Executables()
	require.NoError(t, err)
	require.Equal(t, []Executable{{Address: 0x1000, Offset: 0, Bytes: HeaderBytes}}, all)
	offset, ok := all[0].At(0x103f)
	assert.True(t, ok)
	assert.EqualValues(t, 0x3f, offset)
	for _, address := range []uint64{0, 0xfff, 0x1040, 1 << 63} {
		_, ok := all[0].At(address)
		assert.False(t, ok, "%#x", address)
	}
	order.PutUint64(segment[32:], HeaderBytes+segmentBytes+1)
	_, err = open(t, append(header(0, 0, 0, HeaderBytes, 1), segment...)).Executables()
	require.ErrorContains(t, err, "lies outside")
	_, err = open(t, append(header(0, 0, 0, HeaderBytes, 2), segment...)).Executables()
	require.ErrorContains(t, err, "do not fit")
	_, err = open(t, append(header(0, 0, 0, HeaderBytes, maxSegments+1), make([]byte, 1<<20)...)).Executables()
	require.ErrorIs(t, err, ErrLimit)
}

// A file that becomes shorter while it is read is an error.
func TestOpen_Truncated(t *testing.T) {
	image := library(3)
	_, err := Open(bytes.NewReader(image[:10]), int64(len(image)))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

// maxAllocated is what reading any file may allocate, in bytes: two pieces, and the segments.
const maxAllocated = 2*chunkBytes + 32<<10

// FuzzRead reads everything in a file. Whatever it says, it is read within its bounds and with a bounded allocation.
func FuzzRead(f *testing.F) {
	f.Add(library(3))
	f.Add(header(HeaderBytes, 0xffff, 0, 0, 0))
	// The file that claims 100 million symbols.
	huge := library(1)
	order.PutUint64(huge[HeaderBytes+SectionBytes+32:], 24*100_000_000)
	f.Add(huge)
	f.Fuzz(func(t *testing.T, image []byte) {
		alloctest.Limit{PerByte: 4, Constant: maxAllocated}.Check(t, len(image), func() { read(image) })
	})
}

func read(image []byte) {
	file, err := Open(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		return
	}
	_, _ = file.Executables()
	for _, kind := range []elf.SectionType{elf.SHT_DYNSYM, elf.SHT_SYMTAB} {
		table, names, ok, err := file.Symbols(kind)
		if err != nil || !ok {
			continue
		}
		name := make([]byte, 64)
		_ = file.EachSymbol(&table, 1000, func(_ uint64, s Symbol) (bool, error) {
			_, err := file.NameAt(&names, s.Name, name)
			return true, err
		})
	}
}
