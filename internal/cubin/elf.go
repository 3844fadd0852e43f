// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"strings"
)

// The standard library's reader of ELF files is not made for hostile input, says its documentation. It copies
// what it reads, where an image may be large, and refuses the version in files of NVIDIA's ABI 7 (0x81 instead
// of 1). So the few tables that matter are read here, in place.

// Sizes of the structures of a 64-bit ELF file.
const (
	headerBytes             = 64
	sectionBytes            = 64
	symbolBytes             = 24
	relocationBytes         = 16
	explicitRelocationBytes = 24
)

// maxNameBytes bounds a name: ten times what large templates need.
const maxNameBytes = 1 << 15

// Values of EI_OSABI that NVIDIA's tools write, and the bit of st_other that marks a kernel.
const (
	osABI7  = 0x33 // architecture in bits 0 to 7 of the flags
	osABI8  = 0x41 // in bits 8 to 15
	stEntry = 0x10
)

var order = binary.LittleEndian

// FormatError says what is wrong with an image, and where.
type FormatError struct {
	// Offset in bytes from the start of the image.
	Offset int64
	// What is wrong.
	What string
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("cubin: offset %#x: %s", e.Offset, e.What)
}

func formatError(offset uint64, format string, args ...any) error {
	return &FormatError{int64(offset), fmt.Sprintf(format, args...)}
}

// section is a header of a section. Its bytes are known to lie within the image.
type section struct {
	name    string
	kind    elf.SectionType
	flags   elf.SectionFlag
	offset  uint64
	size    uint64
	link    uint32
	info    uint32
	entsize uint64
	data    []byte // nil for sections without bytes in the file
}

// sections reads the header of the file and those of its sections, and returns the number of the architecture
// with them.
func sections(image []byte) ([]section, uint32, error) {
	if len(image) < headerBytes {
		return nil, 0, formatError(uint64(len(image)), "%d bytes are too short for an ELF header", len(image))
	}
	switch {
	case !bytes.HasPrefix(image, []byte(elf.ELFMAG)):
		return nil, 0, formatError(0, "no ELF file")
	case elf.Class(image[elf.EI_CLASS]) != elf.ELFCLASS64:
		return nil, 0, formatError(elf.EI_CLASS, "no 64-bit ELF file")
	case elf.Data(image[elf.EI_DATA]) != elf.ELFDATA2LSB:
		return nil, 0, formatError(elf.EI_DATA, "no little-endian ELF file")
	case elf.Machine(order.Uint16(image[18:])) != elf.EM_CUDA:
		return nil, 0, formatError(18, "made for machine %d, not for CUDA (%d)", order.Uint16(image[18:]), elf.EM_CUDA)
	}
	var sm uint32
	flags := order.Uint32(image[48:])
	switch abi := image[elf.EI_OSABI]; abi {
	case osABI7:
		sm = flags & 0xff
	case osABI8:
		sm = flags >> 8 & 0xff
	default:
		return nil, 0, formatError(elf.EI_OSABI, "unknown ABI %#x", abi)
	}

	size := uint64(len(image))
	at, entry := order.Uint64(image[40:]), uint64(order.Uint16(image[58:]))
	count, names := uint64(order.Uint16(image[60:])), uint64(order.Uint16(image[62:]))
	if at == 0 {
		return nil, 0, formatError(40, "no sections")
	}
	if entry != sectionBytes {
		return nil, 0, formatError(58, "section headers of %d bytes instead of %d", entry, sectionBytes)
	}
	if at > size || size-at < sectionBytes {
		return nil, 0, formatError(40, "section headers at %#x lie outside the image of %d bytes", at, size)
	}
	// Numbers too large for the header are in the first section.
	if count == 0 {
		count = order.Uint64(image[at+32:])
	}
	if names == uint64(elf.SHN_XINDEX) {
		names = uint64(order.Uint32(image[at+40:]))
	}
	if count > (size-at)/sectionBytes {
		return nil, 0, formatError(at, "%d section headers do not fit in the image of %d bytes", count, size)
	}
	if names >= count {
		return nil, 0, formatError(62, "section %d has the names, of %d sections", names, count)
	}

	found := make([]section, count)
	nameAt := make([]uint32, count)
	for i := range found {
		h := image[at+uint64(i)*sectionBytes:]
		s := &found[i]
		nameAt[i] = order.Uint32(h)
		s.kind, s.flags = elf.SectionType(order.Uint32(h[4:])), elf.SectionFlag(order.Uint64(h[8:]))
		s.offset, s.size = order.Uint64(h[24:]), order.Uint64(h[32:])
		s.link, s.info, s.entsize = order.Uint32(h[40:]), order.Uint32(h[44:]), order.Uint64(h[56:])
		if s.kind == elf.SHT_NULL || s.kind == elf.SHT_NOBITS {
			continue
		}
		if s.offset > size || s.size > size-s.offset {
			return nil, 0, formatError(at+uint64(i)*sectionBytes, "section %d, %d bytes at %#x, lies outside the image of %d bytes", i, s.size, s.offset, size)
		}
		s.data = image[s.offset : s.offset+s.size : s.offset+s.size]
	}
	table := newNames(found[names].data, len(found))
	for i := range found {
		name, ok := table.at(uint64(nameAt[i]))
		if !ok {
			return nil, 0, formatError(at+uint64(i)*sectionBytes, "section %d has no valid name", i)
		}
		found[i].name = name
	}
	return found, sm, nil
}

// names is a table of zero-terminated strings.
type names struct {
	table string
	// left is how many bytes may still be looked at. Names may overlap; without a bound a file that gives
	// all its symbols one long name would take time by the square of its size.
	left int
}

// newNames copies the table once: names are parts of that copy.
func newNames(table []byte, users int) *names {
	return &names{string(table), 2*len(table) + 256*users}
}

// at returns the string at that offset; ok is false if there is none, or it is too long.
func (n *names) at(offset uint64) (string, bool) {
	if offset >= uint64(len(n.table)) {
		return "", offset == 0 // a file without names
	}
	s := n.table[offset:]
	s = s[:min(len(s), maxNameBytes, max(n.left, 0))]
	end := strings.IndexByte(s, 0)
	if end < 0 {
		n.left -= len(s)
		return "", false
	}
	n.left -= end + 1
	return s[:end], true
}

// symbols is a table of symbols.
type symbols struct {
	data []byte
	// far are the sections of symbols whose sections have too large a number for the table itself; nil
	// where there are none.
	far []byte
}

// symbol is what is needed of a symbol.
type symbol struct {
	name    uint32 // offset in the table of strings
	kind    elf.SymType
	bind    elf.SymBind
	entry   bool
	section uint32 // 0 if it is in none
	value   uint64
	size    uint64
}

func (s symbols) count() uint32 { return uint32(min(len(s.data)/symbolBytes, 1<<32-1)) }

// at decodes the symbol of that index, which must be below the count.
func (s symbols) at(index uint32) symbol {
	b := s.data[uint64(index)*symbolBytes:]
	sym := symbol{
		name: order.Uint32(b), kind: elf.ST_TYPE(b[4]), bind: elf.ST_BIND(b[4]), entry: b[5]&stEntry != 0,
		section: uint32(order.Uint16(b[6:])), value: order.Uint64(b[8:]), size: order.Uint64(b[16:]),
	}
	switch at := 4 * uint64(index); {
	case elf.SectionIndex(sym.section) < elf.SHN_LORESERVE:
	case elf.SectionIndex(sym.section) == elf.SHN_XINDEX && at+4 <= uint64(len(s.far)):
		sym.section = order.Uint32(s.far[at:])
	default:
		sym.section = 0 // absolute, common, or of a meaning of NVIDIA's own
	}
	return sym
}

// symbolsIn returns the table of symbols in that section.
func symbolsIn(all []section, at int) symbols {
	s := symbols{data: all[at].data}
	for i := range all {
		if all[i].kind == elf.SHT_SYMTAB_SHNDX && all[i].link == uint32(at) {
			s.far = all[i].data
		}
	}
	return s
}
