// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"cmp"
	"debug/elf"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuflight/gpuflight/internal/elffile"
)

// InstructionBytes is the size of an instruction since compute capability 7.0.
const InstructionBytes = 16

// minSM is the oldest architecture whose instructions have that size.
const minSM = 70

// maxInner bounds the functions that are tested for an instruction, from the nearest start
// downwards.
const maxInner = 64

// Function is a kernel or a device function of an image.
type Function struct {
	// Name is the symbol, mangled where the source language does that.
	Name string
	// Entry says that it is a kernel.
	Entry bool
	// Section is the index of the code section, Offset the start of the function in it, and Size
	// its length, both in bytes. The size of a kernel includes the device functions behind it in
	// its section.
	Section int
	Offset  uint64
	Size    uint64

	symbol uint32
	local  bool
}

// File is one image. It is not safe for concurrent use: tables are read when they are first needed.
// It refers to the image, which must not change.
type File struct {
	image     []byte
	sections  []section
	sm        uint32
	symtab    int // section of the table of symbols
	symbols   symbols
	functions []Function // by section, then by offset, longer ones first
	byName    map[string]int
	broken    int

	lines *lineTable // nil until it is needed
}

// Approximate memory of the tables, per item.
const (
	bytesOfSection    = 128
	bytesOfFunction   = 192 // including its name and map entry
	bytesOfRelocation = 32
	bytesOfSequence   = 32
	bytesOfFile       = 160
	bytesOfRow        = 40
)

// bytes returns the approximate memory of the image and its tables.
func (f *File) bytes() int64 {
	n := int64(len(f.image)) + bytesOfSection*int64(len(f.sections)) + bytesOfFunction*int64(len(f.functions))
	if f.lines != nil {
		n += f.lines.bytes
	}
	return n
}

// Open reads the headers and symbols of an image. The error is a *[FormatError]. File keeps the
// image without copying it.
func Open(image []byte) (*File, error) {
	all, sm, err := sections(image)
	if err != nil {
		return nil, err
	}
	if sm < minSM {
		return nil, formatError(48, "compute capability %d.%d is older than 7.0", sm/10, sm%10)
	}
	f := &File{image: image, sections: all, sm: sm}
	if err := f.readSymbols(); err != nil {
		return nil, err
	}
	return f, nil
}

// Architecture returns the architecture of the code, such as sm_90. The header does not have the
// letter of architecture-specific code (sm_90a).
func (f *File) Architecture() string { return "sm_" + strconv.FormatUint(uint64(f.sm), 10) }

// Functions returns all functions by section and offset. The caller must not change them.
func (f *File) Functions() []Function { return f.functions }

// Broken returns the number of skipped invalid function symbols. After the line table was read, it
// includes the skipped parts of the line table.
func (f *File) Broken() int {
	n := f.broken
	if f.lines != nil {
		n += f.lines.broken
	}
	return n
}

// Lookup returns the function of a name. ok is false if there is none. Of several with the same
// name, it prefers kernels to device functions and global functions to local ones.
func (f *File) Lookup(name string) (fn Function, ok bool) {
	i, ok := f.byName[name]
	if !ok {
		return Function{}, false
	}
	return f.functions[i], true
}

// at returns the innermost function at an offset of a section. ok is false if there is none.
func (f *File) at(section int, offset uint64) (fn *Function, ok bool) {
	i, _ := slices.BinarySearchFunc(f.functions, Function{Section: section, Offset: offset}, func(a, b Function) int {
		if c := cmp.Compare(a.Section, b.Section); c != 0 {
			return c
		}
		if a.Offset <= b.Offset {
			return -1 // search the end of those that start at or before the offset
		}
		return 1
	})
	for n := 0; n < maxInner && i > 0; n++ {
		i--
		fn = &f.functions[i]
		if fn.Section != section {
			break
		}
		if offset-fn.Offset < fn.Size {
			return fn, true
		}
	}
	return nil, false
}

func (f *File) readSymbols() error {
	i := slices.IndexFunc(f.sections, func(s section) bool { return s.kind == elf.SHT_SYMTAB })
	if i < 0 {
		return formatError(0, "no table of symbols")
	}
	tab := &f.sections[i]
	if tab.entsize != elffile.SymbolBytes || tab.size%elffile.SymbolBytes != 0 {
		return formatError(tab.offset, "a table of %d bytes with symbols of %d bytes", tab.size, tab.entsize)
	}
	if uint64(tab.link) >= uint64(len(f.sections)) {
		return formatError(tab.offset, "the names of symbols are in section %d of %d", tab.link, len(f.sections))
	}
	f.symtab, f.symbols = i, symbolsIn(f.sections, i)
	all := f.symbols
	table := newNames(f.sections[tab.link].data, int(all.count()))
	for i := range all.count() {
		s := all.at(i)
		if s.kind != elf.STT_FUNC || s.section == 0 {
			continue
		}
		name, ok := table.at(uint64(s.name))
		if !ok || name == "" || !f.isCode(s.section) {
			f.broken++
			continue
		}
		code := f.sections[s.section].size
		if s.value > code || s.size > code-s.value {
			f.broken++
			continue
		}
		f.functions = append(f.functions, Function{
			Name: name, Entry: s.entry, Section: int(s.section), Offset: s.value, Size: s.size,
			symbol: i, local: s.bind == elf.STB_LOCAL,
		})
	}
	slices.SortStableFunc(f.functions, func(a, b Function) int {
		return cmp.Or(cmp.Compare(a.Section, b.Section), cmp.Compare(a.Offset, b.Offset), cmp.Compare(b.Size, a.Size))
	})
	f.byName = make(map[string]int, len(f.functions))
	for i := range f.functions {
		had, twice := f.byName[f.functions[i].Name]
		if !twice || f.functions[i].rank() > f.functions[had].rank() {
			f.byName[f.functions[i].Name] = i
		}
	}
	return nil
}

// rank orders functions of the same name.
func (f *Function) rank() int {
	switch {
	case f.Entry:
		return 2
	case !f.local:
		return 1
	default:
		return 0
	}
}

// isCode reports whether a section has instructions.
func (f *File) isCode(i uint32) bool {
	if uint64(i) >= uint64(len(f.sections)) {
		return false
	}
	s := &f.sections[i]
	return s.kind == elf.SHT_PROGBITS && s.flags&elf.SHF_EXECINSTR != 0 && strings.HasPrefix(s.name, ".text")
}
