// SPDX-License-Identifier: Apache-2.0

// Package elffile reads 64-bit little-endian ELF files that may be hostile: the files that other users map, and the
// images that programs load.
//
// The documentation of debug/elf excludes hostile input. It also loads whole tables: a file of 1 MB made it allocate
// 1.6 GB. This package checks each bound before it reads, and reads in pieces of at most 48 KiB. It allocates a fixed
// amount, whatever the file says.
//
// Everything may be called by several goroutines if the reader of the file may.
package elffile

import (
	"debug/elf" // its constants only
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Sizes of the structures of a 64-bit ELF file, in bytes.
const (
	HeaderBytes  = 64
	SectionBytes = 64
	segmentBytes = 56
	SymbolBytes  = 24
)

const (
	// chunkBytes is the size of a piece that is read at once.
	chunkBytes = 48 << 10
	// maxSegments bounds the program headers that Executables reads. Linkers write about ten.
	maxSegments = 128
)

var order = binary.LittleEndian

// ErrLimit is the error of a file that is larger than a bound that the caller gave.
var ErrLimit = errors.New("more than the limit")

// FormatError says what is wrong with a file, and where.
type FormatError struct {
	// Offset in bytes from the start of the file.
	Offset int64
	// What is wrong.
	What string
}

func (e *FormatError) Error() string { return fmt.Sprintf("offset %#x: %s", e.Offset, e.What) }

func formatError(offset uint64, format string, args ...any) error {
	return &FormatError{int64(offset), fmt.Sprintf(format, args...)}
}

// File is the header of an ELF file, and where its tables are. The table of sections lies within the file.
type File struct {
	// Type, Machine, ABI and Flags are of the header.
	Type    elf.Type
	Machine elf.Machine
	ABI     byte
	Flags   uint32
	// Sections is the number of sections, Names the index of the one that has their names.
	Sections, Names int

	r                              io.ReaderAt
	size                           uint64
	sectionAt, segmentAt, segments uint64
	segmentBytes                   uint16
}

// Section is the header of a section. Its bytes lie within the file, except for SHT_NOBITS.
type Section struct {
	Name                    uint32 // offset in the section that has the names
	Kind                    elf.SectionType
	Flags                   elf.SectionFlag
	Offset, Size, EntrySize uint64
	Link, Info              uint32
}

// HasBytes reports whether the section has bytes in the file.
func (s *Section) HasBytes() bool { return s.Kind != elf.SHT_NULL && s.Kind != elf.SHT_NOBITS }

// Symbol is an entry of a table of symbols.
type Symbol struct {
	Name        uint32 // offset in the section of names
	Info, Other byte
	Section     elf.SectionIndex
	Value, Size uint64
}

// Open reads the header of a file of size bytes. The error is a *[FormatError] or the reader's.
func Open(r io.ReaderAt, size int64) (*File, error) {
	if size < HeaderBytes {
		return nil, formatError(uint64(max(size, 0)), "%d bytes are too short for an ELF header", size)
	}
	f := &File{r: r, size: uint64(size)}
	var h [HeaderBytes]byte
	if err := f.read(h[:], 0); err != nil {
		return nil, err
	}
	switch {
	case string(h[:len(elf.ELFMAG)]) != elf.ELFMAG:
		return nil, formatError(0, "no ELF file")
	case elf.Class(h[elf.EI_CLASS]) != elf.ELFCLASS64:
		return nil, formatError(elf.EI_CLASS, "no 64-bit ELF file")
	case elf.Data(h[elf.EI_DATA]) != elf.ELFDATA2LSB:
		return nil, formatError(elf.EI_DATA, "no little-endian ELF file")
	}
	f.Type, f.Machine = elf.Type(order.Uint16(h[16:])), elf.Machine(order.Uint16(h[18:]))
	f.ABI, f.Flags = h[elf.EI_OSABI], order.Uint32(h[48:])
	f.segmentAt, f.segmentBytes, f.segments = order.Uint64(h[32:]), order.Uint16(h[54:]), uint64(order.Uint16(h[56:]))
	return f, f.sections(&h)
}

// sections finds the section headers.
func (f *File) sections(h *[HeaderBytes]byte) error {
	at, entry := order.Uint64(h[40:]), order.Uint16(h[58:])
	count, names := uint64(order.Uint16(h[60:])), uint64(order.Uint16(h[62:]))
	if at == 0 {
		return nil
	}
	if entry != SectionBytes {
		return formatError(58, "section headers of %d bytes instead of %d", entry, SectionBytes)
	}
	if at > f.size || f.size-at < SectionBytes {
		return formatError(40, "section headers at %#x lie outside the file of %d bytes", at, f.size)
	}
	// Numbers too large for the header are in the first section.
	if count == 0 || names == uint64(elf.SHN_XINDEX) {
		var first [SectionBytes]byte
		if err := f.read(first[:], at); err != nil {
			return err
		}
		if count == 0 {
			count = order.Uint64(first[32:])
		}
		if names == uint64(elf.SHN_XINDEX) {
			names = uint64(order.Uint32(first[40:]))
		}
	}
	if count > (f.size-at)/SectionBytes {
		return formatError(at, "%d section headers do not fit in the file of %d bytes", count, f.size)
	}
	if names >= count {
		return formatError(62, "section %d has the names, of %d sections", names, count)
	}
	f.sectionAt, f.Sections, f.Names = at, int(count), int(names)
	return nil
}

// SectionHeaderAt returns where in the file the header of a section is.
func (f *File) SectionHeaderAt(index int) uint64 {
	return f.sectionAt + uint64(index)*SectionBytes
}

// Section reads one section header; index must be below Sections.
func (f *File) Section(index int) (Section, error) {
	var h [SectionBytes]byte
	if err := f.read(h[:], f.SectionHeaderAt(index)); err != nil {
		return Section{}, err
	}
	return f.section(index, h[:])
}

func (f *File) section(index int, h []byte) (Section, error) {
	s := Section{
		Name: order.Uint32(h), Kind: elf.SectionType(order.Uint32(h[4:])), Flags: elf.SectionFlag(order.Uint64(h[8:])),
		Offset: order.Uint64(h[24:]), Size: order.Uint64(h[32:]), EntrySize: order.Uint64(h[56:]),
		Link: order.Uint32(h[40:]), Info: order.Uint32(h[44:]),
	}
	if s.HasBytes() && (s.Offset > f.size || s.Size > f.size-s.Offset) {
		return s, formatError(f.SectionHeaderAt(index),
			"section %d, %d bytes at %#x, lies outside the file of %d bytes", index, s.Size, s.Offset, f.size)
	}
	return s, nil
}

// EachSection calls use with each section header, from the first on, until use returns false.
func (f *File) EachSection(use func(index int, s *Section) bool) error {
	return f.each(f.sectionAt, uint64(f.Sections), SectionBytes, func(i uint64, h []byte) (bool, error) {
		s, err := f.section(int(i), h)
		if err != nil {
			return false, err
		}
		return use(int(i), &s), nil
	})
}

// Symbols returns the first section of a kind, SHT_DYNSYM or SHT_SYMTAB, and the section that has its names; false if
// the file has none.
func (f *File) Symbols(kind elf.SectionType) (table, names Section, ok bool, err error) {
	err = f.EachSection(func(_ int, s *Section) bool {
		if s.Kind == kind {
			table, ok = *s, true
		}
		return !ok
	})
	if err != nil || !ok {
		return table, names, false, err
	}
	if table.EntrySize != SymbolBytes || table.Size%SymbolBytes != 0 {
		return table, names, false, formatError(table.Offset, "a table of %d bytes with symbols of %d bytes", table.Size, table.EntrySize)
	}
	if uint64(table.Link) >= uint64(f.Sections) {
		return table, names, false, formatError(table.Offset, "the names of symbols are in section %d of %d", table.Link, f.Sections)
	}
	if names, err = f.Section(int(table.Link)); err == nil && !names.HasBytes() {
		err = formatError(table.Offset, "the names of symbols are in section %d, which has no bytes", table.Link)
	}
	return table, names, err == nil, err
}

// EachSymbol calls use with each symbol of a table until use returns false. A table with more than limit symbols is an
// [ErrLimit], before any is read.
func (f *File) EachSymbol(table *Section, limit uint64, use func(index uint64, s Symbol) (bool, error)) error {
	n := table.Size / SymbolBytes
	if n > limit {
		return fmt.Errorf("%d symbols: %w of %d", n, ErrLimit, limit)
	}
	return f.each(table.Offset, n, SymbolBytes, func(i uint64, b []byte) (bool, error) { return use(i, DecodeSymbol(b)) })
}

// DecodeSymbol decodes the first SymbolBytes bytes.
func DecodeSymbol(b []byte) Symbol {
	return Symbol{
		Name: order.Uint32(b), Info: b[4], Other: b[5], Section: elf.SectionIndex(order.Uint16(b[6:])),
		Value: order.Uint64(b[8:]), Size: order.Uint64(b[16:]),
	}
}

// NameAt reads a zero-terminated name of a section into b and returns it, without the zero. It returns nil for a name
// that is longer than b, or does not end within the section.
func (f *File) NameAt(names *Section, offset uint32, b []byte) ([]byte, error) {
	if uint64(offset) >= names.Size {
		return nil, formatError(names.Offset, "a name at %#x of %d bytes", offset, names.Size)
	}
	b = b[:min(uint64(len(b)), names.Size-uint64(offset))]
	if err := f.read(b, names.Offset+uint64(offset)); err != nil {
		return nil, err
	}
	for i, c := range b {
		if c == 0 {
			return b[:i], nil
		}
	}
	return nil, nil
}

// Executable is a part of the file that is mapped to be run.
type Executable struct {
	Address, Offset, Bytes uint64
}

// At returns the place in the file of an address, false if it is in another part.
func (e Executable) At(address uint64) (offset uint64, ok bool) {
	if address < e.Address || address-e.Address >= e.Bytes {
		return 0, false
	}
	return e.Offset + (address - e.Address), true
}

// Executables returns the executable segments. They lie within the file.
func (f *File) Executables() ([]Executable, error) {
	at, count := f.segmentAt, f.segments
	switch {
	case at == 0 || count == 0:
		return nil, nil
	case f.segmentBytes != segmentBytes:
		return nil, formatError(54, "program headers of %d bytes instead of %d", f.segmentBytes, segmentBytes)
	case count > maxSegments:
		return nil, fmt.Errorf("%d program headers: %w of %d", count, ErrLimit, maxSegments)
	case at > f.size || count > (f.size-at)/segmentBytes:
		return nil, formatError(32, "%d program headers at %#x do not fit in the file of %d bytes", count, at, f.size)
	}
	var found []Executable
	err := f.each(at, count, segmentBytes, func(i uint64, h []byte) (bool, error) {
		if elf.ProgType(order.Uint32(h)) != elf.PT_LOAD || elf.ProgFlag(order.Uint32(h[4:]))&elf.PF_X == 0 {
			return true, nil
		}
		e := Executable{Offset: order.Uint64(h[8:]), Address: order.Uint64(h[16:]), Bytes: order.Uint64(h[32:])}
		if e.Offset > f.size || e.Bytes > f.size-e.Offset {
			return false, formatError(at+i*segmentBytes, "segment %d, %d bytes at %#x, lies outside the file of %d bytes", i, e.Bytes, e.Offset, f.size)
		}
		found = append(found, e)
		return true, nil
	})
	return found, err
}

// each reads a table by pieces. Its bytes must be known to lie within the file.
func (f *File) each(at, count, entry uint64, use func(i uint64, b []byte) (bool, error)) error {
	if count == 0 {
		return nil
	}
	buf := make([]byte, min(count*entry, chunkBytes))
	for i := uint64(0); i < count; {
		n := min(count-i, uint64(len(buf))/entry)
		if err := f.read(buf[:n*entry], at+i*entry); err != nil {
			return err
		}
		for k := range n {
			more, err := use(i+k, buf[k*entry:(k+1)*entry])
			if !more || err != nil {
				return err
			}
		}
		i += n
	}
	return nil
}

// read fills b. A file that was truncated meanwhile is an error.
func (f *File) read(b []byte, at uint64) error {
	n, err := f.r.ReadAt(b, int64(at))
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read at %#x: %w", at, err)
}
