// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"bytes"
	"debug/dwarf"
	"debug/elf"
	"io"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/elffile"
)

// The kernels of testdata/lines.cu.
const (
	inlinedKernel   = "_Z7inlinedILi32EEvPfPKf"
	outlinedName    = "$_Z7inlinedILi32EEvPfPKf$_Z8outlinedfi"
	remainderKernel = "_Z9remainderPxx"
	remainderInner  = "$__internal_0_$__cuda_sm20_rem_s64"
)

func TestFile_Functions(t *testing.T) {
	for _, name := range goldens {
		t.Run(name, func(t *testing.T) {
			image := golden(t, name)
			f, err := Open(image)
			require.NoError(t, err)
			assert.Equal(t, "sm_"+name[strings.LastIndexByte(name, '_')+1:], f.Architecture())

			var kernels, others []string
			for _, fn := range f.Functions() {
				if fn.Entry {
					kernels = append(kernels, fn.Name)
				} else {
					others = append(others, fn.Name)
				}
				assert.NotZero(t, fn.Size, fn.Name)
				assert.Zero(t, fn.Offset%InstructionBytes, fn.Name)
				assert.Zero(t, fn.Size%InstructionBytes, fn.Name)
				found, ok := f.Lookup(fn.Name)
				assert.True(t, ok)
				assert.Equal(t, fn, found)
			}
			slices.Sort(kernels)
			slices.Sort(others)
			assert.Equal(t, []string{inlinedKernel, remainderKernel, "plain"}, kernels)
			assert.Equal(t, []string{outlinedName, remainderInner}, others)
			_, ok := f.Lookup("outlined")
			assert.False(t, ok)

			// The standard library's ELF reader returns the same result. It rejects ABI version
			// 7, so the test changes it.
			if order.Uint32(image[20:]) != 1 {
				assert.Equal(t, "lines.cuda12.sm_90", name)
				order.PutUint32(image[20:], 1)
			}
			theirs, err := elf.NewFile(bytes.NewReader(image))
			require.NoError(t, err)
			syms, err := theirs.Symbols()
			require.NoError(t, err)
			n := 0
			for _, s := range syms {
				if elf.ST_TYPE(s.Info) != elf.STT_FUNC {
					continue
				}
				n++
				fn, ok := f.Lookup(s.Name)
				require.True(t, ok, s.Name)
				assert.Equal(t, int(s.Section), fn.Section)
				assert.Equal(t, s.Value, fn.Offset)
				assert.Equal(t, s.Size, fn.Size)
			}
			assert.Len(t, f.Functions(), n)
			f.Locate("plain", 0, nil)
			assert.Zero(t, f.Broken())
		})
	}
}

// linesOf returns the marked lines of testdata.
func linesOf(t testing.TB) (cu, cuh map[string][]int) {
	return marks(t, "testdata/lines.cu"), marks(t, "testdata/lines.cuh")
}

func TestFile_Lines(t *testing.T) {
	cu, cuh := linesOf(t)
	for _, name := range goldens {
		t.Run(name, func(t *testing.T) {
			f, err := Open(golden(t, name))
			require.NoError(t, err)
			kernel, _ := f.Lookup(inlinedKernel)
			inner, _ := f.Lookup(outlinedName)

			var loads, barriers, roots []int
			callers := map[int]int{} // lines of squared that called reciprocal
			var frames []Frame
			for pc := uint64(0); pc < kernel.Size; pc += InstructionBytes {
				var reason Reason
				frames, reason = f.Locate(inlinedKernel, pc, frames)
				require.Equal(t, Resolved, reason, "%#x", pc)
				last := frames[len(frames)-1]
				assert.Equal(t, "/tmp/kernels/lines.cu", last.File)
				if pc >= inner.Offset {
					assert.Equal(t, outlinedName, last.Function)
					// The same instruction, looked up by the name of its function.
					own, reason := f.Locate(outlinedName, pc-inner.Offset, nil)
					assert.Equal(t, Resolved, reason)
					assert.Equal(t, frames, own)
				} else {
					assert.Equal(t, inlinedKernel, last.Function)
				}
				switch opcode(f, kernel, pc) {
				case opcodeLDG:
					loads = append(loads, frames[0].Line)
				case opcodeBAR:
					barriers = append(barriers, frames[0].Line)
				case opcodeMUFU:
					roots = append(roots, frames[0].Line)
					require.Len(t, frames, 3)
					assert.Equal(t, Frame{"_Z10reciprocalf", "/tmp/kernels/lines.cuh", cuh["reciprocal"][0]}, frames[0])
					assert.Equal(t, "_Z7squaredf", frames[1].Function)
					assert.Equal(t, "/tmp/kernels/lines.cuh", frames[1].File)
					callers[frames[1].Line]++
					assert.Equal(t, cu["inlined"][0], frames[2].Line)
				}
			}
			// One load of in, and one of out, to which the result is added.
			assert.Contains(t, loads, cu["inlined"][0])
			assert.Equal(t, cu["barrier"], slices.Compact(barriers))
			assert.Len(t, roots, 2)
			assert.Equal(t, map[int]int{cuh["first"][0]: 1, cuh["second"][0]: 1}, callers)

			var within []int
			for pc := uint64(0); pc < inner.Size; pc += InstructionBytes {
				frames, _ = f.Locate(outlinedName, pc, frames)
				within = append(within, frames[0].Line)
			}
			assert.Contains(t, within, cu["outlined"][0])

			// The compiler's division routine has the line of the code that divides, or none.
			division, ok := f.Lookup(remainderInner)
			require.True(t, ok)
			frames, reason := f.Locate(remainderKernel, division.Offset, frames)
			assert.Equal(t, remainderInner, frames[0].Function)
			assert.Contains(t, []Reason{Resolved, NoLine}, reason)

			store := 0
			for pc := uint64(0); ; pc += InstructionBytes {
				frames, reason = f.Locate("plain", pc, frames)
				if reason == OutsideFunction {
					break
				}
				fn, _ := f.Lookup("plain")
				if opcode(f, fn, pc) == opcodeSTG {
					store = frames[0].Line
				}
			}
			assert.Equal(t, cu["plain"][0], store)
		})
	}
}

func TestFile_UnresolvedPlaces(t *testing.T) {
	f, err := Open(golden(t, "lines.sm_90"))
	require.NoError(t, err)
	_, reason := f.Locate("nothing", 0, nil)
	assert.Equal(t, NoFunction, reason)
	fn, _ := f.Lookup("plain")
	_, reason = f.Locate("plain", fn.Size, nil)
	assert.Equal(t, OutsideFunction, reason)
	_, reason = f.Locate("plain", 1<<63, nil)
	assert.Equal(t, OutsideFunction, reason)
	_, reason = f.Locate(remainderKernel, 1<<64-1, nil)
	assert.Equal(t, OutsideFunction, reason)
	_, reason = f.Locate(outlinedName, 1<<64-1, nil)
	assert.Equal(t, OutsideFunction, reason)
	// An offset inside an instruction resolves to that instruction.
	within, reason := f.Locate("plain", 7, nil)
	assert.Equal(t, Resolved, reason)
	begin, _ := f.Locate("plain", 0, nil)
	assert.Equal(t, begin, within)
}

// standardUnit prepares the line table for the standard library's reader, which skips NVIDIA's
// opcode. Each relocation puts its section's number into the upper half of the address.
func standardUnit(t testing.TB, f *File) (table []byte, unit *dwarf.Entry, data *dwarf.Data) {
	t.Helper()
	f.lines = f.indexLines()
	table = slices.Clone(f.lines.data)
	for _, r := range f.lines.relocs {
		value := uint64(r.section)<<32 + r.value
		if r.addend {
			value += order.Uint64(table[r.at:])
		}
		order.PutUint64(table[r.at:], value)
	}
	// -lineinfo writes no .debug_info, which the library requires. This is a unit that refers to
	// its lines only.
	abbrev := []byte{1, 0x11, 0, 0x10, 0x06, 0, 0, 0}
	info := []byte{12, 0, 0, 0, 2, 0, 0, 0, 0, 0, 8, 1, 0, 0, 0, 0}
	data, err := dwarf.New(abbrev, nil, nil, info, table, nil, nil, nil)
	require.NoError(t, err)
	unit, err = data.Reader().Next()
	require.NoError(t, err)
	return table, unit, data
}

// standardRows returns the rows that the standard library reads.
func standardRows(t testing.TB, f *File) []dwarf.LineEntry {
	t.Helper()
	_, unit, data := standardUnit(t, f)
	lines, err := data.LineReader(unit)
	require.NoError(t, err)
	var rows []dwarf.LineEntry
	for {
		var e dwarf.LineEntry
		if err := lines.Next(&e); err != nil {
			require.ErrorIs(t, err, io.EOF)
			return rows
		}
		rows = append(rows, e)
	}
}

func TestFile_StandardLibrary(t *testing.T) {
	for _, name := range goldens {
		f, err := Open(golden(t, name))
		require.NoError(t, err)
		// Of rows with one address, the last one counts. It applies up to the next address.
		type place struct {
			file string
			line int
		}
		theirs := map[uint64]place{}
		rows := standardRows(t, f)
		for i, e := range rows {
			if e.EndSequence {
				continue
			}
			for address := e.Address; address < rows[i+1].Address; address += InstructionBytes {
				theirs[address] = place{e.File.Name, e.Line}
			}
		}
		n := 0
		for _, fn := range f.Functions() {
			if !fn.Entry {
				continue
			}
			for pc := uint64(0); pc < fn.Size; pc += InstructionBytes {
				frames, reason := f.Locate(fn.Name, pc, nil)
				want, ok := theirs[uint64(fn.Section)<<32+fn.Offset+pc]
				require.Equal(t, ok, reason == Resolved)
				if ok {
					n++
					require.Equal(t, want.line, frames[0].Line, "%s %s %#x", name, fn.Name, pc)
					require.Equal(t, path.Clean(want.file), path.Clean(frames[0].File))
				}
			}
		}
		assert.Greater(t, n, 100, name)
	}
}

// sectionsEnd returns the end of the section headers. Segment headers follow, which are not read.
func sectionsEnd(image []byte) uint64 {
	return order.Uint64(image[40:]) + elffile.SectionBytes*uint64(order.Uint16(image[60:]))
}

func TestOpen_InvalidImages(t *testing.T) {
	good := golden(t, "lines.sm_90")
	changed := func(at int, b ...byte) []byte {
		image := slices.Clone(good)
		copy(image[at:], b)
		return image
	}
	for name, c := range map[string]struct {
		image  []byte
		offset int64
		says   string
	}{
		"nothing":                {nil, 0, "too short"},
		"half a header":          {good[:40], 40, "too short"},
		"no ELF file":            {changed(0, 'X'), 0, "no ELF file"},
		"32 bits":                {changed(4, 1), 4, "no 64-bit"},
		"big-endian":             {changed(5, 2), 5, "no little-endian"},
		"x86":                    {changed(18, 62, 0), 18, "machine 62"},
		"another ABI":            {changed(7, 3), 7, "unknown ABI 0x3"},
		"compute capability 6.0": {changed(48, 4, 60), 48, "6.0 is older"},
		"no sections":            {changed(40, 0, 0, 0, 0, 0, 0, 0, 0), 40, "no sections"},
		"sections far away":      {changed(40, 0, 0, 0, 0, 0, 0, 0, 0x80), 40, "outside the file"},
		"small section headers":  {changed(58, 63), 58, "63 bytes instead of 64"},
		"names in no section":    {changed(62, 200, 0), 62, "section 200"},
		"cut off in the headers": {good[:sectionsEnd(good)-1], int64(order.Uint64(good[40:])), "do not fit"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(c.image)
			var format *FormatError
			require.ErrorAs(t, err, &format)
			assert.Equal(t, c.offset, format.Offset)
			assert.ErrorContains(t, err, c.says)
		})
	}
}

func TestOpen_InvalidSymbols(t *testing.T) {
	b := newBuilder()
	text := b.code("kernel", make([]byte, 64))
	b.function("good", text, 0, 32)
	b.function("behind the end", text, 80, 16)
	b.function("too long", text, 48, 32)
	b.function("turns over", text, 16, 1<<64-16)
	b.function("no such section", 99, 0, 16)
	b.function("reserved section", int(elf.SHN_ABS), 0, 16)
	b.function("good", text, 32, 32)
	f, err := Open(b.image())
	require.NoError(t, err)
	assert.Len(t, f.Functions(), 2)
	assert.Equal(t, 4, f.Broken(), "all but the one without a section of its own")
	fn, ok := f.Lookup("good")
	assert.True(t, ok)
	assert.Equal(t, uint64(0), fn.Offset, "the first of two alike")
}

// If many functions start before an instruction and do not contain it, no function is returned.
func TestFile_OverlappingFunctions(t *testing.T) {
	b := newBuilder()
	text := b.code("kernel", make([]byte, 4096))
	b.function("kernel", text, 0, 4096)
	for range 1000 {
		b.function("empty", text, 16, 0)
	}
	f, err := Open(b.image())
	require.NoError(t, err)
	frames, reason := f.Locate("kernel", 32, nil)
	assert.Equal(t, NoLines, reason)
	assert.Equal(t, []Frame{{Function: "kernel"}}, frames)
}

func TestOpen_ManySections(t *testing.T) {
	b := newBuilder()
	for range 100 {
		b.section(section{name: ".nv.info", kind: elf.SHT_PROGBITS})
	}
	text := b.code("kernel", make([]byte, 32))
	symbol := b.function("kernel", int(elf.SHN_XINDEX), 0, 32)
	far := make([]byte, 4*(symbol+1))
	order.PutUint32(far[4*symbol:], uint32(text))
	// The table of symbols is the second-last section.
	b.section(section{name: ".symtab_shndx", kind: elf.SHT_SYMTAB_SHNDX, link: 1 << 31, data: far})
	f, err := Open(b.image())
	require.NoError(t, err)
	fn, ok := f.Lookup("kernel")
	require.True(t, ok)
	assert.Equal(t, text, fn.Section)
}

// Names may be long and overlap. The bytes read of them stay in proportion to the image.
func TestOpen_OverlappingNames(t *testing.T) {
	b := newBuilder()
	text := b.code("kernel", make([]byte, 32))
	b.function(strings.Repeat("x", maxNameBytes+1), text, 0, 16)
	f, err := Open(b.image())
	require.NoError(t, err)
	assert.Empty(t, f.Functions())
	assert.Equal(t, 1, f.Broken())

	b = newBuilder()
	text = b.code("kernel", make([]byte, 32))
	b.function(strings.Repeat("x", maxNameBytes-1), text, 0, 16)
	one := b.symbols[elffile.SymbolBytes:]
	for range 10_000 {
		b.symbols = append(b.symbols, one...)
	}
	f, err = Open(b.image())
	require.NoError(t, err)
	image := len(b.image())
	names := 0
	for _, fn := range f.Functions() {
		names += len(fn.Name)
	}
	assert.Less(t, names, 12*image)
	assert.Equal(t, 10_001, len(f.Functions())+f.Broken())
}

// Each prefix of a valid image is rejected with an error or read.
func TestOpen_TruncatedImages(t *testing.T) {
	good := golden(t, "lines.sm_80")
	for n := 0; n < int(sectionsEnd(good)); n += 7 {
		_, err := Open(good[:n])
		var format *FormatError
		require.ErrorAs(t, err, &format, "%d bytes", n)
		require.LessOrEqual(t, format.Offset, int64(len(good)))
	}
}
