// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/elffile"
)

// goldens are the images in testdata.
var goldens = []string{"lines.sm_80", "lines.sm_90", "lines.sm_100", "lines.cuda12.sm_90"}

// golden returns an image of testdata.
func golden(t testing.TB, name string) []byte {
	t.Helper()
	image, err := os.ReadFile(filepath.Join("testdata", name+".cubin"))
	require.NoError(t, err)
	return image
}

// marks returns the numbers of the lines of a source that end in "// line: NAME", by name.
func marks(t testing.TB, path string) map[string][]int {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	found := map[string][]int{}
	for i, line := range strings.Split(string(text), "\n") {
		if _, name, ok := strings.Cut(line, "// line: "); ok {
			found[name] = append(found[name], i+1)
		}
	}
	require.NotEmpty(t, found, path)
	return found
}

// opcode returns the opcode of the instruction at pc of an image's function.
func opcode(f *File, fn Function, pc uint64) uint16 {
	return order.Uint16(f.sections[fn.Section].data[fn.Offset+pc:]) & 0xfff
}

// Opcodes that have been the same since compute capability 7.0.
const (
	opcodeLDG  = 0x981
	opcodeSTG  = 0x986
	opcodeBAR  = 0xb1d
	opcodeMUFU = 0x308
)

// builder writes images, including images that no compiler would write.
type builder struct {
	sections []section
	symbols  []byte
	names    []byte
	abi      byte
	flags    uint32
}

func newBuilder() *builder {
	return &builder{sections: make([]section, 1), symbols: make([]byte, elffile.SymbolBytes), names: make([]byte, 1), abi: osABI8, flags: 90 << 8}
}

// section adds a section and returns its index.
func (b *builder) section(s section) int {
	s.size = uint64(len(s.data))
	b.sections = append(b.sections, s)
	return len(b.sections) - 1
}

// code adds a section of code.
func (b *builder) code(name string, text []byte) int {
	return b.section(section{name: ".text." + name, kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, data: text})
}

// function adds a symbol and returns its index.
func (b *builder) function(name string, in int, value, size uint64) uint32 {
	s := make([]byte, elffile.SymbolBytes)
	order.PutUint32(s, uint32(len(b.names)))
	s[4], s[5] = byte(elf.STB_GLOBAL)<<4|byte(elf.STT_FUNC), stEntry
	order.PutUint16(s[6:], uint16(in))
	order.PutUint64(s[8:], value)
	order.PutUint64(s[16:], size)
	b.symbols = append(b.symbols, s...)
	b.names = append(append(b.names, name...), 0)
	return uint32(len(b.symbols)/elffile.SymbolBytes) - 1
}

// relocation is a relocation of the line table, for [builder.relocations].
type builtRelocation struct {
	at     uint64
	symbol uint32
	addend int64
}

// lines adds the line table with its relocations.
func (b *builder) lines(table []byte, relocations []builtRelocation) {
	at := b.section(section{name: debugLineName, kind: elf.SHT_PROGBITS, data: table})
	var data []byte
	for _, r := range relocations {
		data = order.AppendUint64(data, r.at)
		data = order.AppendUint64(data, uint64(r.symbol)<<32|relocationWord64)
		data = order.AppendUint64(data, uint64(r.addend))
	}
	b.section(section{name: ".rel.lines", kind: elf.SHT_RELA, info: uint32(at), link: 1 << 31, data: data}) //nolint:misspell // its name
}

// codeAlignment is the alignment of code sections that nvdisasm requires.
const codeAlignment = 128

// image returns the file with the added sections.
func (b *builder) image() []byte {
	all := append([]section(nil), b.sections...)
	all = append(all, section{name: ".strtab", kind: elf.SHT_STRTAB, data: b.names})
	all = append(all, section{name: ".symtab", kind: elf.SHT_SYMTAB, entsize: elffile.SymbolBytes, link: uint32(len(all) - 1), data: b.symbols})
	symtab := uint32(len(all) - 1)
	names := []byte{0}
	nameAt := make([]uint32, len(all)+1)
	all = append(all, section{name: ".shstrtab", kind: elf.SHT_STRTAB})
	for i := range all {
		nameAt[i] = uint32(len(names))
		names = append(append(names, all[i].name...), 0)
	}
	all[len(all)-1].data = names

	out := bytes.Repeat([]byte{0}, elffile.HeaderBytes)
	copy(out, elf.ELFMAG)
	out[elf.EI_CLASS], out[elf.EI_DATA], out[elf.EI_VERSION], out[elf.EI_OSABI], out[elf.EI_ABIVERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1, b.abi, 8
	order.PutUint16(out[16:], uint16(elf.ET_EXEC))
	order.PutUint16(out[18:], uint16(elf.EM_CUDA))
	order.PutUint32(out[20:], 1)
	order.PutUint32(out[48:], b.flags)
	order.PutUint16(out[52:], elffile.HeaderBytes)
	order.PutUint16(out[58:], elffile.SectionBytes)
	order.PutUint16(out[60:], uint16(len(all)))
	order.PutUint16(out[62:], uint16(len(all)-1))
	for i := range all {
		if all[i].flags&elf.SHF_EXECINSTR != 0 {
			out = append(out, make([]byte, -len(out)&(codeAlignment-1))...)
		}
		all[i].offset = uint64(len(out))
		out = append(out, all[i].data...)
	}
	for len(out)%8 != 0 {
		out = append(out, 0)
	}
	order.PutUint64(out[40:], uint64(len(out)))
	for i, s := range all {
		if s.link == 1<<31 {
			s.link = symtab
		}
		h := make([]byte, elffile.SectionBytes)
		if i > 0 {
			order.PutUint32(h, nameAt[i])
			order.PutUint32(h[4:], uint32(s.kind))
			order.PutUint64(h[8:], uint64(s.flags))
			order.PutUint64(h[24:], s.offset)
			order.PutUint64(h[32:], uint64(len(s.data)))
			order.PutUint32(h[40:], s.link)
			order.PutUint32(h[44:], s.info)
			order.PutUint64(h[48:], 1)
			if s.flags&elf.SHF_EXECINSTR != 0 {
				order.PutUint64(h[48:], codeAlignment)
			}
			order.PutUint64(h[56:], s.entsize)
		}
		out = append(out, h...)
	}
	return out
}

// unitOf returns a line table unit of that DWARF version with one file, /src/k.cu, and the program.
func unitOf(version uint16, program []byte) []byte { return unitIn("/src", version, program) }

// unitIn returns a unit with k.cu in that folder.
func unitIn(folder string, version uint16, program []byte) []byte {
	header := []byte{1} // bytes of the smallest instruction
	if version >= 4 {
		header = append(header, 1) // operations in an instruction
	}
	header = append(header, 1, 0xfb, 14, 10, 0, 1, 1, 1, 1, 0, 0, 0, 1)
	header = append(header, folder+"\x00\x00k.cu\x00\x01\x00\x00\x00"...)
	body := order.AppendUint16(nil, version)
	body = order.AppendUint32(body, uint32(len(header)))
	body = append(append(body, header...), program...)
	return append(order.AppendUint32(nil, uint32(len(body))), body...)
}

// Parts of line programs.
func setAddress(address uint64) []byte {
	return order.AppendUint64([]byte{0, 9, opSetAddress}, address)
}
func advanceLine(n byte) []byte { return []byte{opAdvanceLine, n & 0x7f} } // -64 to 63
func advancePC(n byte) []byte   { return []byte{opAdvancePC, n} }          // to 127
func inlinedCall(row, name byte) []byte {
	return []byte{0, 3, opInlinedCall, row, name}
}

var (
	copyRow     = []byte{opCopy}
	endSequence = []byte{0, 1, opEndSequence}
)

func join(parts ...[]byte) []byte {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// kernelOf returns an image of one kernel of 32 bytes.
func kernelOf(t testing.TB) *File {
	t.Helper()
	b := newBuilder()
	b.function("one", b.code("one", make([]byte, 32)), 0, 32)
	f, err := Open(b.image())
	require.NoError(t, err)
	return f
}

// bigImage returns an image of n kernels. Each is a copy of a kernel of the golden image, with its
// lines.
func bigImage(t testing.TB, n int) []byte {
	t.Helper()
	f, err := Open(golden(t, "lines.sm_90"))
	require.NoError(t, err)
	fn, ok := f.Lookup("_Z7inlinedILi32EEvPfPKf")
	require.True(t, ok)
	_, reason := f.Locate(fn.Name, 0, nil)
	require.Equal(t, Resolved, reason)
	require.Len(t, f.lines.units, 1)
	require.Len(t, f.lines.sequences(fn.Section), 1)
	seq := f.lines.sequences(fn.Section)[0]
	m := newMachine(f.lines.data, seq.unit, seq.at)
	for !m.end {
		require.True(t, m.next())
	}
	program := f.lines.data[seq.at:m.r.at]
	require.Equal(t, []byte{0, 9, opSetAddress}, program[:3])

	b := newBuilder()
	// The header of the unit is unchanged except for its length.
	table := append([]byte(nil), f.lines.data[:seq.unit.start]...)
	relocations := make([]builtRelocation, n)
	for i := range n {
		name := "kernel" + strconv.Itoa(i)
		text := b.code(name, f.sections[fn.Section].data)
		relocations[i] = builtRelocation{at: uint64(len(table)) + 3, symbol: b.function(name, text, 0, fn.Size)}
		table = append(table, program...)
	}
	order.PutUint32(table, uint32(len(table)-4))
	b.section(section{name: debugStringsName, kind: elf.SHT_PROGBITS, data: f.lines.strings})
	b.lines(table, relocations)
	return b.image()
}
