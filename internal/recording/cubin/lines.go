// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"bytes"
	"cmp"
	"debug/elf"
	"slices"
)

// Bounds of a line table. Real code stays far below, including libraries with thousands of kernels.
const (
	maxUnits         = 1 << 16
	maxSequences     = 1 << 20
	maxRowsOfSection = 1 << 22
	maxInlined       = 64       // depth of a chain of inlined calls
	maxTextBytes     = 16 << 20 // of stored names and paths

	debugLineName    = ".debug_line"
	debugStringsName = ".debug_str"
	relocationWord32 = 1 // R_CUDA_32
	relocationWord64 = 2 // R_CUDA_64
)

// Frame is a place in the source.
type Frame struct {
	// Function is the symbol of the function, mangled where the source language does that.
	Function string
	// File is the path as the compiler wrote it, absolute for nvcc. Line counts from 1.
	File string
	Line int
}

// Reason says why a place was not resolved.
type Reason uint8

// Reasons of unresolved places.
const (
	Resolved        Reason = iota
	NoImage                // no image with that CRC is known
	BadImage               // the image cannot be read
	TooLarge               // the image exceeds the memory limit of all images.
	NoFunction             // the image has no function of that name
	OutsideFunction        // the offset is not in the function.
	NoLines                // the function has no line table: compiled without -lineinfo and -G
	BadLines               // its line table is invalid
	NoLine                 // the table has no line for that instruction
	NumReasons
)

// ReasonNames are the values of the reasons in telemetry.
var ReasonNames = [NumReasons]string{
	"resolved", "no_image", "bad_image", "image_too_large", "no_function", "outside_function", "no_lines", "bad_lines", "no_line",
}

func (r Reason) String() string {
	if r < NumReasons {
		return ReasonNames[r]
	}
	return "unknown"
}

// Locate returns the source of the instruction at pc, in bytes from the start of the function. It
// appends the frames to frames[:0], innermost first. Each frame but the last was inlined into the
// next. The last frame is the function itself, or the device function inside its section that has
// the instruction. If the line is unknown, the last frame is the only one and has only its
// function. The Reason is Resolved if the line is known.
func (f *File) Locate(function string, pc uint64, frames []Frame) ([]Frame, Reason) {
	frames = frames[:0]
	fn, ok := f.Lookup(function)
	if !ok {
		return frames, NoFunction
	}
	if pc >= fn.Size {
		return frames, OutsideFunction
	}
	offset := fn.Offset + pc
	own := Frame{Function: fn.Name}
	if inner, ok := f.at(fn.Section, offset); ok {
		own.Function = inner.Name
	}
	lines, reason := f.sectionLines(fn.Section)
	if reason != Resolved {
		return append(frames, own), reason
	}
	return lines.appendFrames(frames, offset, own)
}

// lineTable is .debug_line with its relocations.
type lineTable struct {
	data     []byte
	strings  []byte // .debug_str
	relocs   []relocation
	units    []*unit
	seqs     []sequence         // by section
	names    map[uint32]string  // of strings that were looked up
	sections map[int]*codeLines // those that were read
	broken   int
	unplaced bool  // an invalid part may have had any function
	bytes    int64 // approximate memory of all this
	texts    int64 // part of it for names and paths
}

// relocation states that an address in the line table is an offset of a section.
type relocation struct {
	at      uint64 // offset in the line table
	section uint32
	value   uint64
	addend  bool // add the value to the number in place
}

// sequence is a part of a line program about one section.
type sequence struct {
	section int
	unit    *unit
	at      int
}

// codeLines has the rows about one section of code.
type codeLines struct {
	table *lineTable
	rows  []lineRow // in the program's order
	order []uint32  // indexes of the rows that count, by address
	bad   bool
}

// lineRow is a row of the line table.
type lineRow struct {
	address uint32
	line    uint32
	file    uint32
	caller  uint32 // index in rows, plus 1, of the row that this one was inlined at; 0 for none.
	name    uint32 // offset of the inlined function's name in the strings
	end     bool   // ends the range of the row before it
	unit    *unit
}

// sectionLines returns the rows of a code section. It returns none if the reason is not Resolved.
func (f *File) sectionLines(section int) (*codeLines, Reason) {
	if f.lines == nil {
		f.lines = f.indexLines()
	}
	t := f.lines
	lines := t.sections[section]
	if lines == nil {
		lines = t.readSection(section, f.sections[section].size)
		t.sections[section] = lines
	}
	switch {
	case len(lines.order) > 0:
		return lines, Resolved
	case lines.bad || (t.unplaced && len(t.sequences(section)) == 0):
		return nil, BadLines
	default:
		return nil, NoLines
	}
}

// indexLines reads the line table once and stores the positions of each section's rows.
func (f *File) indexLines() *lineTable {
	t := &lineTable{sections: map[int]*codeLines{}, names: map[uint32]string{}}
	at := -1
	for i := range f.sections {
		switch s := &f.sections[i]; s.name {
		case debugLineName:
			if at < 0 {
				at = i
			}
		case debugStringsName:
			if t.strings == nil {
				t.strings = s.data
			}
		}
	}
	if at < 0 {
		return t
	}
	if f.sections[at].flags&elf.SHF_COMPRESSED != 0 {
		// No tool of NVIDIA writes that.
		t.broken, t.unplaced = 1, true
		return t
	}
	t.data = f.sections[at].data
	t.relocs = f.relocations(at, t)
	t.bytes += bytesOfRelocation * int64(len(t.relocs))
	r := &reader{data: t.data}
	for r.left() > 0 {
		if len(t.units) == maxUnits {
			t.broken, t.unplaced = t.broken+1, true
			break
		}
		u, err := readUnit(r)
		if err != nil {
			t.broken, t.unplaced = t.broken+1, true
			if u == nil {
				break
			}
			continue
		}
		t.units = append(t.units, u)
		t.indexUnit(u)
		t.bytes += bytesOfFile * int64(1+len(u.files)+len(u.dirs))
	}
	slices.SortStableFunc(t.seqs, func(a, b sequence) int { return cmp.Compare(a.section, b.section) })
	return t
}

// sequences returns the sequences of one section, in the order of the table.
func (t *lineTable) sequences(section int) []sequence {
	find := func(section int) int {
		i, _ := slices.BinarySearchFunc(t.seqs, section, func(s sequence, section int) int { return cmp.Compare(s.section, section) })
		return i
	}
	return t.seqs[find(section):find(section+1)]
}

// indexUnit stores the sequences of one unit.
func (t *lineTable) indexUnit(u *unit) {
	m := newMachine(t.data, u, u.start)
	m.index = true
	seq := sequence{unit: u, at: u.start}
	for m.next() {
		placed := false
		if m.addrAt != 0 {
			seq.section, _, placed = t.place(m)
		}
		switch {
		case !placed:
			t.broken, t.unplaced = t.broken+1, true
		case len(t.seqs) == maxSequences:
			t.broken, t.unplaced = t.broken+1, true
			return
		default:
			t.seqs = append(t.seqs, seq)
			t.bytes += bytesOfSequence
		}
		seq = sequence{unit: u, at: m.r.at}
	}
	if m.r.err != nil || m.r.at != seq.at {
		// The data before the error is valid.
		t.broken, t.unplaced = t.broken+1, true
	}
}

// place returns the section of the last set address, and the difference between the offset in that
// section and the machine's address.
func (t *lineTable) place(m *machine) (section int, shift uint64, ok bool) {
	i, found := slices.BinarySearchFunc(t.relocs, uint64(m.addrAt), func(r relocation, at uint64) int { return cmp.Compare(r.at, at) })
	if !found {
		// Sections have no address, so a number without a relocation is meaningless.
		return 0, 0, false
	}
	r := t.relocs[i]
	if r.addend {
		return int(r.section), r.value, true
	}
	// The relocation's value replaces the number in place.
	b := t.data[m.addrAt:]
	in := uint64(order.Uint32(b))
	if m.addrWide {
		in = order.Uint64(b)
	}
	return int(r.section), r.value - in, true
}

// relocations returns the relocations of the line table (section at), by offset.
func (f *File) relocations(at int, t *lineTable) []relocation {
	var all []relocation
	left := len(f.image) / relocationBytes // tables may overlap, to cost time and memory
	for i := range f.sections {
		s := &f.sections[i]
		// The value is in the relocation, or the relocation is added to the number in place.
		explicit := s.kind == elf.SHT_RELA //nolint:misspell // its name
		if (!explicit && s.kind != elf.SHT_REL) || s.info != uint32(at) {
			continue
		}
		size := uint64(relocationBytes)
		if explicit {
			size = explicitRelocationBytes
		}
		if s.link != uint32(f.symtab) {
			t.broken, t.unplaced = t.broken+1, true
			continue
		}
		for b := s.data; uint64(len(b)) >= size; b = b[size:] {
			if left--; left < 0 {
				t.broken, t.unplaced = t.broken+1, true
				break
			}
			info := order.Uint64(b[8:])
			kind, index := uint32(info), uint32(info>>32)
			if (kind != relocationWord64 && kind != relocationWord32) || index >= f.symbols.count() {
				t.broken, t.unplaced = t.broken+1, true
				continue
			}
			sym := f.symbols.at(index)
			if !f.isCode(sym.section) {
				// The relocation belongs to a function that the linker removed.
				continue
			}
			r := relocation{at: order.Uint64(b), section: sym.section, value: sym.value, addend: !explicit}
			if explicit {
				r.value += order.Uint64(b[16:])
			}
			all = append(all, r)
		}
	}
	slices.SortStableFunc(all, func(a, b relocation) int { return cmp.Compare(a.at, b.at) })
	return all
}

// readSection reads the rows about one section of the given size in bytes.
func (t *lineTable) readSection(section int, size uint64) *codeLines {
	lines := &codeLines{table: t}
	for _, seq := range t.sequences(section) {
		if !t.readSequence(lines, seq, section, size) {
			lines.bad = true
			t.broken++
		}
	}
	lines.sort()
	t.bytes += bytesOfRow * int64(1+len(lines.rows))
	return lines
}

// readSequence adds the rows of one sequence and reports whether it is valid. It skips invalid
// rows. It skips all following rows if a relocated address is not in this section.
func (t *lineTable) readSequence(lines *codeLines, seq sequence, section int, size uint64) bool {
	m := newMachine(t.data, seq.unit, seq.at)
	first, ok := uint32(len(lines.rows)), true
	addrAt, shift := 0, uint64(0)
	for !m.end && m.next() {
		if len(lines.rows) == maxRowsOfSection {
			return false
		}
		if m.addrAt != addrAt {
			addrAt = m.addrAt
			in, by, placed := t.place(m)
			if !placed || in != section {
				return false
			}
			shift = by
		}
		row := lineRow{line: uint32(m.line), unit: seq.unit}
		address := m.address + shift
		if addrAt == 0 || address > size || address > 1<<32-1 {
			// It keeps its position, for rows that refer to it as caller.
			ok, row.end, address = false, true, min(size, 1<<32-1)
		}
		row.address = uint32(address)
		row.end = row.end || m.end
		if m.file < maxFilesOfUnit {
			row.file = uint32(m.file)
		}
		if m.context != 0 {
			if m.context < uint64(m.row) {
				row.caller = first + uint32(m.context)
				row.name = uint32(min(m.name, 1<<32-1))
			} else {
				ok = false
			}
		}
		lines.rows = append(lines.rows, row)
	}
	return ok && m.end
}

// sort orders the rows that count. Of several with one address, the last counts.
func (l *codeLines) sort() {
	l.order = make([]uint32, len(l.rows))
	for i := range l.order {
		l.order[i] = uint32(i)
	}
	slices.SortStableFunc(l.order, func(a, b uint32) int {
		ra, rb := &l.rows[a], &l.rows[b]
		if c := cmp.Compare(ra.address, rb.address); c != 0 {
			return c
		}
		// Where one sequence ends and the next starts, the start counts.
		if ra.end != rb.end {
			if ra.end {
				return -1
			}
			return 1
		}
		return 0
	})
	kept := l.order[:0]
	for i, at := range l.order {
		if i+1 < len(l.order) && l.rows[l.order[i+1]].address == l.rows[at].address {
			continue
		}
		kept = append(kept, at)
	}
	l.order = kept
}

// appendFrames appends the frames of the instruction at an offset of the section.
func (l *codeLines) appendFrames(frames []Frame, offset uint64, own Frame) ([]Frame, Reason) {
	i, exact := slices.BinarySearchFunc(l.order, offset, func(at uint32, offset uint64) int {
		return cmp.Compare(uint64(l.rows[at].address), offset)
	})
	if !exact {
		i--
	}
	// In DWARF, line 0 means that there is no line.
	if i < 0 || l.rows[l.order[i]].end || l.rows[l.order[i]].line == 0 {
		if l.bad {
			return append(frames, own), BadLines
		}
		return append(frames, own), NoLine
	}
	row := &l.rows[l.order[i]]
	for row.caller != 0 && len(frames) < maxInlined {
		frames = append(frames, Frame{l.table.name(row.name), l.table.path(row.unit, row.file), int(row.line)})
		row = &l.rows[row.caller-1]
	}
	own.File, own.Line = l.table.path(row.unit, row.file), int(row.line)
	return append(frames, own), Resolved
}

// name returns a string of .debug_str, or "" if there is none.
func (t *lineTable) name(at uint32) string {
	if name, ok := t.names[at]; ok {
		return name
	}
	if uint64(at) >= uint64(len(t.strings)) {
		return ""
	}
	b := t.strings[at:]
	b, _, _ = bytes.Cut(b[:min(len(b), maxNameBytes)], []byte{0})
	name := string(b)
	if t.keep(name) {
		t.names[at] = name
	}
	return name
}

// path returns the path of a file of a unit.
func (t *lineTable) path(u *unit, file uint32) string {
	if file == 0 || uint64(file) > uint64(len(u.files)) {
		return ""
	}
	f := &u.files[file-1]
	if f.path != "" {
		return f.path
	}
	path := u.path(f)
	if t.keep(path) {
		f.path = path
	}
	return path
}

// keep reports whether the limit permits another text, and counts the text.
func (t *lineTable) keep(text string) bool {
	n := int64(len(text)) + bytesOfRow
	if t.texts += n; t.texts > maxTextBytes {
		t.texts -= n
		return false
	}
	t.bytes += n
	return true
}
