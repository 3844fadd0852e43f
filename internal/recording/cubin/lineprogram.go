// SPDX-License-Identifier: Apache-2.0

package cubin

import "errors"

// The line table is a program for a small machine (DWARF 4, section 6.2). The standard library
// implements that machine, but it skips NVIDIA's opcode for inlining. It also requires .debug_info,
// which -lineinfo does not write.
//
// NVIDIA's opcode is extended opcode 0x90 with two LEB128 operands. The first is the number, from
//  1, of an earlier row of the sequence: the inlined call. The second is the offset in .debug_str
//  of the name of the inlined function. Both apply to the following rows, until the next such
//  opcode. Row 0 means that the rows are not inlined. Found by comparison with the lines that
//  nvdisasm -gi prints.

// Standard and extended opcodes (DWARF 4, sections 7.21 and 6.2.5).
const (
	opExtended       = 0
	opCopy           = 1
	opAdvancePC      = 2
	opAdvanceLine    = 3
	opSetFile        = 4
	opConstAddPC     = 8
	opFixedAdvancePC = 9

	opEndSequence = 1
	opSetAddress  = 2
	opDefineFile  = 3
	opInlinedCall = 0x90
)

// maxFilesOfUnit bounds the files and the directories of a unit.
const maxFilesOfUnit = 1 << 16

// These are the errors of a line program. The table adds the position.
var (
	errTruncated = errors.New("ends within an item")
	errNumber    = errors.New("number of more than 64 bits")
	errFiles     = errors.New("too many files")
	errHeader    = errors.New("invalid header")
	errVersion   = errors.New("unknown version of DWARF")
	errOpcode    = errors.New("opcode of the wrong length")
	errAddress   = errors.New("address size is not 4 or 8 bytes")
	errLine      = errors.New("line number outside 0 to 2^31-1")
)

// reader reads numbers and strings from bytes. After the first error it returns zeroes.
type reader struct {
	data []byte
	at   int
	err  error
}

func (r *reader) left() int { return len(r.data) - r.at }

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.at = len(r.data)
}

func (r *reader) bytes(n uint64) []byte {
	if n > uint64(r.left()) {
		r.fail(errTruncated)
		return nil
	}
	b := r.data[r.at : r.at+int(n)]
	r.at += int(n)
	return b
}

func (r *reader) u8() byte {
	if r.at >= len(r.data) {
		r.fail(errTruncated)
		return 0
	}
	r.at++
	return r.data[r.at-1]
}

func (r *reader) u16() uint16 {
	if b := r.bytes(2); b != nil {
		return order.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.bytes(4); b != nil {
		return order.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.bytes(8); b != nil {
		return order.Uint64(b)
	}
	return 0
}

func (r *reader) uleb() uint64 {
	if r.at < len(r.data) && r.data[r.at] < 0x80 { // the usual case
		r.at++
		return uint64(r.data[r.at-1])
	}
	var v uint64
	for shift := 0; ; shift += 7 {
		b := r.u8()
		if r.err != nil {
			return 0
		}
		if shift >= 63 && b > 1 {
			r.fail(errNumber)
			return 0
		}
		v |= uint64(b&0x7f) << shift
		if b&0x80 == 0 {
			return v
		}
	}
}

func (r *reader) sleb() int64 {
	var v int64
	for shift := 0; ; shift += 7 {
		b := r.u8()
		if r.err != nil {
			return 0
		}
		if shift >= 63 && b != 0 && b != 0x7f {
			r.fail(errNumber)
			return 0
		}
		v |= int64(b&0x7f) << shift
		if b&0x80 == 0 {
			if b&0x40 != 0 && shift+7 < 64 {
				v |= -1 << (shift + 7)
			}
			return v
		}
	}
}

// str returns the string up to the next zero, as a slice of the data.
func (r *reader) str() []byte {
	b := r.data[r.at:]
	for i, c := range b[:min(len(b), maxNameBytes)] {
		if c == 0 {
			r.at += i + 1
			return b[:i]
		}
	}
	r.fail(errTruncated)
	return nil
}

// unit is the header of one line program, and the files it names.
type unit struct {
	start, end int // of the program, in the section
	minInst    uint64
	lineBase   int64
	lineRange  byte
	opBase     byte
	lengths    []byte // of standard opcodes, from 1
	dirs       [][]byte
	files      []lineFile
}

// lineFile is a file of a unit.
type lineFile struct {
	name []byte
	dir  uint64 // from 1; 0 for that of the compilation, which the table does not have
	path string // "" until it is first needed
}

// readUnit reads the header of the unit at r and moves r behind the unit. On an error, the unit is
// nil if the start of the next unit is unknown.
func readUnit(r *reader) (*unit, error) {
	u := &unit{}
	length, offset64 := uint64(r.u32()), false
	if length == 0xffffffff {
		length, offset64 = r.u64(), true
	} else if length >= 0xfffffff0 {
		return nil, errHeader
	}
	body := r.bytes(length)
	if r.err != nil {
		return nil, r.err
	}
	u.end = r.at
	h := &reader{data: r.data[:r.at], at: r.at - len(body)}
	version := h.u16()
	if h.err == nil && (version < 2 || version > 4) {
		return u, errVersion
	}
	var headerLength uint64
	if offset64 {
		headerLength = h.u64()
	} else {
		headerLength = uint64(h.u32())
	}
	if h.err != nil || headerLength > uint64(h.left()) {
		return u, errHeader
	}
	u.start = h.at + int(headerLength)
	h.data = h.data[:u.start]
	u.minInst = uint64(h.u8())
	if version >= 4 && h.u8() != 1 {
		// Several operations per instruction: no GPU since Kepler has that.
		return u, errHeader
	}
	h.u8() // whether rows begin statements: all rows count
	u.lineBase, u.lineRange, u.opBase = int64(int8(h.u8())), h.u8(), h.u8()
	if h.err != nil || u.lineRange == 0 || u.opBase == 0 {
		return u, errHeader
	}
	u.lengths = h.bytes(uint64(u.opBase) - 1)
	for {
		dir := h.str()
		if h.err != nil {
			return u, h.err
		}
		if len(dir) == 0 {
			break
		}
		if len(u.dirs) == maxFilesOfUnit {
			return u, errFiles
		}
		u.dirs = append(u.dirs, dir)
	}
	for {
		name := h.str()
		if h.err != nil {
			return u, h.err
		}
		if len(name) == 0 {
			break
		}
		if err := u.addFile(name, h); err != nil {
			return u, err
		}
	}
	return u, nil
}

// addFile adds a file whose directory, time and length are next in r.
func (u *unit) addFile(name []byte, r *reader) error {
	dir := r.uleb()
	r.uleb()
	r.uleb()
	if r.err != nil {
		return r.err
	}
	if len(u.files) == maxFilesOfUnit {
		return errFiles
	}
	u.files = append(u.files, lineFile{name: name, dir: dir})
	return nil
}

// maxPathBytes is the longest path on Linux.
const maxPathBytes = 4096

// path returns the path of a file, including the directory if the table has one.
func (u *unit) path(f *lineFile) string {
	path := string(f.name[:min(len(f.name), maxPathBytes)])
	if f.dir == 0 || f.dir > uint64(len(u.dirs)) || isAbsolute(path) {
		return path
	}
	if dir := u.dirs[f.dir-1]; len(dir)+len(path) < maxPathBytes {
		return string(dir) + "/" + path
	}
	return path
}

// isAbsolute also accepts Windows paths: images may be compiled on another system.
func isAbsolute(path string) bool {
	return path != "" && (path[0] == '/' || path[0] == '\\' || (len(path) > 1 && path[1] == ':'))
}

// machine is the state of a line program. Its rows are numbered from 1 within each sequence.
type machine struct {
	u *unit
	// index is set while the program runs for the first time, to find sequences and files. It then
	// reports only the rows that end a sequence, and adds files to the unit.
	index    bool
	r        reader
	row      uint32 // number of the last row in its sequence
	address  uint64
	addrAt   int  // position of the last set address in the section; 0 before the first of a sequence
	addrWide bool // it has 8 bytes, not 4
	file     uint64
	line     int64
	context  uint64 // of NVIDIA's opcode
	name     uint64
	end      bool // the row ends its sequence
}

// newMachine returns a machine at the position of the section where a sequence of u starts.
func newMachine(section []byte, u *unit, at int) *machine {
	m := &machine{u: u, r: reader{data: section[:u.end], at: at}}
	m.reset()
	return m
}

func (m *machine) reset() {
	m.row, m.address, m.addrAt, m.file, m.line, m.context, m.name, m.end = 0, 0, 0, 1, 1, 0, 0, false
}

// next runs the program up to its next row. It returns false at the end of the program or if the
// program is invalid. In the latter case r.err is set.
func (m *machine) next() bool {
	if m.end {
		m.reset()
	}
	r, u := &m.r, m.u
	for r.err == nil && r.left() > 0 {
		op := r.u8()
		if op >= u.opBase {
			op -= u.opBase
			m.address += u.minInst * uint64(op/u.lineRange)
			m.line += u.lineBase + int64(op%u.lineRange)
			if m.index {
				continue
			}
			return m.emit()
		}
		switch op {
		case opExtended:
			n := r.uleb()
			from := r.at
			if r.err == nil && (n == 0 || n > uint64(r.left())) {
				r.fail(errTruncated)
			}
			if r.err != nil {
				return false
			}
			to := from + int(n)
			switch r.u8() {
			case opEndSequence:
				m.end = true
			case opSetAddress:
				if !m.index || m.addrAt == 0 {
					m.addrAt = r.at
				}
				switch n {
				case 9:
					m.address, m.addrWide = r.u64(), true
				case 5:
					m.address, m.addrWide = uint64(r.u32()), false
				default:
					r.fail(errAddress)
				}
			case opDefineFile:
				name := r.str()
				if r.err != nil {
					return false
				}
				if !m.index {
					r.at = to // the unit already has it
					break
				}
				if err := m.u.addFile(name, r); err != nil {
					r.fail(err)
				}
			case opInlinedCall:
				m.context, m.name = r.uleb(), r.uleb()
			default:
				r.at = to
			}
			if r.err == nil && r.at != to {
				r.fail(errOpcode)
			}
			if r.err != nil {
				return false
			}
			if m.end {
				return m.emit()
			}
		case opCopy:
			if m.index {
				continue
			}
			return m.emit()
		case opAdvancePC:
			m.address += u.minInst * r.uleb()
		case opAdvanceLine:
			m.line += r.sleb()
		case opSetFile:
			m.file = r.uleb()
		case opConstAddPC:
			m.address += u.minInst * uint64((255-u.opBase)/u.lineRange)
		case opFixedAdvancePC:
			m.address += uint64(r.u16())
		default:
			// Columns, flags and opcodes of later versions have LEB128 operands.
			for range u.lengths[op-1] {
				r.uleb()
			}
		}
	}
	return false
}

// emit creates a row from the state.
func (m *machine) emit() bool {
	m.row++
	if m.line < 0 || m.line > 1<<31-1 {
		if !m.end {
			m.r.fail(errLine)
			return false
		}
		m.line = 0
	}
	return true
}
