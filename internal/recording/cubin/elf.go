// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/gpuflight/gpuflight/internal/elffile"
)

// Package elffile checks the headers. The image is in memory, so tables are used in place.

// Sizes of relocations in a 64-bit ELF file, in bytes.
const (
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

// FormatError describes an invalid image.
type FormatError struct {
	// Offset is the position of the error in bytes from the start of the image.
	Offset int64
	// What describes the error.
	What string
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("cubin: offset %#x: %s", e.Offset, e.What)
}

func formatError(offset uint64, format string, args ...any) error {
	return &FormatError{int64(offset), fmt.Sprintf(format, args...)}
}

// cubinError converts an error of package elffile.
func cubinError(err error) error {
	var format *elffile.FormatError
	if errors.As(err, &format) {
		return &FormatError{Offset: format.Offset, What: format.What}
	}
	return formatError(0, "%v", err)
}

// section is a header of a section. Its bytes lie within the image.
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

// sections reads the header of the file and those of its sections. It also returns the number of
// the architecture.
func sections(image []byte) ([]section, uint32, error) {
	file, err := elffile.Open(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		return nil, 0, cubinError(err)
	}
	if file.Machine != elf.EM_CUDA {
		return nil, 0, formatError(18, "made for machine %d, not for CUDA (%d)", file.Machine, elf.EM_CUDA)
	}
	var sm uint32
	switch file.ABI {
	case osABI7:
		sm = file.Flags & 0xff
	case osABI8:
		sm = file.Flags >> 8 & 0xff
	default:
		return nil, 0, formatError(elf.EI_OSABI, "unknown ABI %#x", file.ABI)
	}
	if file.Sections == 0 {
		return nil, 0, formatError(40, "no sections")
	}
	found := make([]section, file.Sections)
	nameAt := make([]uint32, file.Sections)
	err = file.EachSection(func(i int, s *elffile.Section) bool {
		nameAt[i] = s.Name
		found[i] = section{kind: s.Kind, flags: s.Flags, offset: s.Offset, size: s.Size, link: s.Link, info: s.Info, entsize: s.EntrySize}
		if s.HasBytes() {
			found[i].data = image[s.Offset : s.Offset+s.Size : s.Offset+s.Size]
		}
		return true
	})
	if err != nil {
		return nil, 0, cubinError(err)
	}
	table := newNames(found[file.Names].data, len(found))
	for i := range found {
		name, ok := table.at(uint64(nameAt[i]))
		if !ok {
			return nil, 0, formatError(file.SectionHeaderAt(i), "section %d has no valid name", i)
		}
		found[i].name = name
	}
	return found, sm, nil
}

// names is a table of zero-terminated strings.
type names struct {
	table string
	// left is the number of bytes that may still be read. Names may overlap: without this bound, a
	// file with one long name for all symbols would need quadratic time.
	left int
}

// newNames copies the table once. Names are substrings of that copy.
func newNames(table []byte, users int) *names {
	return &names{string(table), 2*len(table) + 256*users}
}

// at returns the string at an offset. ok is false if there is none, or it is too long.
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
	// far has the sections of symbols whose section number does not fit into the table. It is nil
	// if there are none.
	far []byte
}

// symbol has the used fields of a symbol.
type symbol struct {
	name    uint32 // offset in the table of strings
	kind    elf.SymType
	bind    elf.SymBind
	entry   bool
	section uint32 // 0 if it has none
	value   uint64
	size    uint64
}

func (s symbols) count() uint32 { return uint32(min(len(s.data)/elffile.SymbolBytes, 1<<32-1)) }

// at decodes the symbol of an index, which must be below the count.
func (s symbols) at(index uint32) symbol {
	read := elffile.DecodeSymbol(s.data[uint64(index)*elffile.SymbolBytes:])
	sym := symbol{
		name: read.Name, kind: elf.ST_TYPE(read.Info), bind: elf.ST_BIND(read.Info), entry: read.Other&stEntry != 0,
		section: uint32(read.Section), value: read.Value, size: read.Size,
	}
	switch at := 4 * uint64(index); {
	case elf.SectionIndex(sym.section) < elf.SHN_LORESERVE:
	case elf.SectionIndex(sym.section) == elf.SHN_XINDEX && at+4 <= uint64(len(s.far)):
		sym.section = order.Uint32(s.far[at:])
	default:
		sym.section = 0 // absolute, common, or with a meaning specific to NVIDIA
	}
	return sym
}

// symbolsIn returns the table of symbols in a section.
func symbolsIn(all []section, at int) symbols {
	s := symbols{data: all[at].data}
	for i := range all {
		if all[i].kind == elf.SHT_SYMTAB_SHNDX && all[i].link == uint32(at) {
			s.far = all[i].data
		}
	}
	return s
}
