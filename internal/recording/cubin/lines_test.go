// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"bytes"
	"debug/elf"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// imageWithLines returns a kernel of 256 bytes with the line table. Addresses of its sequences are
// relocated in place.
func imageWithLines(table []byte, at ...uint64) []byte {
	b := newBuilder()
	text := b.code("kernel", make([]byte, 256))
	symbol := b.function("kernel", text, 0, 256)
	b.section(section{name: debugStringsName, kind: elf.SHT_PROGBITS, data: []byte("_Z3onev\x00_Z3twov\x00cut off")})
	var relocations []builtRelocation
	for _, at := range at {
		relocations = append(relocations, builtRelocation{at: at, symbol: symbol})
	}
	b.lines(table, relocations)
	return b.image()
}

// addresses returns the positions of the operands of setAddress in a table.
func addresses(table []byte) []uint64 {
	var at []uint64
	for i := 0; ; {
		n := bytes.Index(table[i:], []byte{0, 9, opSetAddress})
		if n < 0 {
			return at
		}
		at = append(at, uint64(i+n+3))
		i += n + 3
	}
}

// locate returns the lines of each instruction, innermost first.
func locate(t *testing.T, image []byte) (lines [][]int, f *File) {
	t.Helper()
	f, err := Open(image)
	require.NoError(t, err)
	for pc := uint64(0); pc < 256; pc += InstructionBytes {
		frames, reason := f.Locate("kernel", pc, nil)
		if reason != Resolved {
			lines = append(lines, nil)
			continue
		}
		var at []int
		for _, f := range frames {
			at = append(at, f.Line)
		}
		lines = append(lines, at)
	}
	return lines, f
}

func TestLineTable_Versions(t *testing.T) {
	for version := uint16(2); version <= 4; version++ {
		table := unitOf(version, join(
			setAddress(0), advanceLine(9), copyRow, // 10
			advancePC(32), advanceLine(5), copyRow, // 15
			[]byte{byte(10 + 14*3 + 5 + 3)},          // special: 3 bytes on and 3 lines on
			[]byte{opFixedAdvancePC, 29, 0}, copyRow, // to 64, line 18
			[]byte{opConstAddPC, opFixedAdvancePC, 15, 0}, // 17 bytes: (255-10)/14
			[]byte{6, 7, 5, 1},                            // flags and column: without effect
			advanceLine(2), copyRow,                       // 20 at 96
			advancePC(32), endSequence,
		))
		lines, f := locate(t, imageWithLines(table, addresses(table)...))
		assert.Zero(t, f.Broken())
		assert.Equal(t, [][]int{{10}, {10}, {15}, {18}, {18}, {18}, {20}, {20}, nil, nil, nil, nil, nil, nil, nil, nil}, lines, "version %d", version)
		frames, _ := f.Locate("kernel", 0, nil)
		assert.Equal(t, []Frame{{"kernel", "/src/k.cu", 10}}, frames)
		_, reason := f.Locate("kernel", 128, nil)
		assert.Equal(t, NoLine, reason)
	}
}

func TestLineTable_InlinedCalls(t *testing.T) {
	table := unitOf(2, join(
		setAddress(0), advanceLine(9), copyRow, // row 1: 10
		inlinedCall(1, 0), advanceLine(10), copyRow, // row 2: 20, inlined at row 1
		inlinedCall(2, 8), advanceLine(10), copyRow, // row 3: 30, inlined at row 2
		advancePC(16), inlinedCall(0, 0), advanceLine(0x80-19), copyRow, // row 4: 11, not inlined
		advancePC(16), inlinedCall(4, 99), copyRow, // row 5: a name that does not exist
		advancePC(16), inlinedCall(6, 0), copyRow, // row 6: inlined at itself
		advancePC(16), inlinedCall(4, 16), copyRow, // row 7: a name without end
		advancePC(16), endSequence,
		// Row numbers start at 1 in each sequence.
		setAddress(128), advanceLine(49), copyRow, inlinedCall(1, 8), advanceLine(10), copyRow,
		advancePC(16), endSequence,
	))
	at := addresses(table)
	b := newBuilder()
	text := b.code("kernel", make([]byte, 256))
	symbol := b.function("kernel", text, 0, 256)
	b.section(section{name: debugStringsName, kind: elf.SHT_PROGBITS, data: []byte("_Z3onev\x00_Z3twov\x00cut off")})
	b.lines(table, []builtRelocation{{at[0], symbol, 0}, {at[1], symbol, 128}})
	lines, f := locate(t, b.image())
	assert.Equal(t, [][]int{{30, 20, 10}, {11}, {11, 11}, {11}, {11, 11}, nil, nil, nil, {60, 50}}, lines[:9])
	frames, _ := f.Locate("kernel", 0, nil)
	assert.Equal(t, []Frame{{"_Z3twov", "/src/k.cu", 30}, {"_Z3onev", "/src/k.cu", 20}, {"kernel", "/src/k.cu", 10}}, frames)
	frames, _ = f.Locate("kernel", 32, nil)
	assert.Equal(t, []Frame{{"", "/src/k.cu", 11}, {"kernel", "/src/k.cu", 11}}, frames)
	frames, _ = f.Locate("kernel", 64, nil)
	assert.Equal(t, "cut off", frames[0].Function)
	assert.Equal(t, 1, f.Broken(), "the row that is inlined at itself")
}

// A chain with as many frames as rows is truncated.
func TestLineTable_InlinedCallBound(t *testing.T) {
	program := join(setAddress(0), copyRow)
	for row := byte(1); row < 120; row++ {
		program = join(program, inlinedCall(row, 0), advanceLine(1), copyRow)
	}
	table := unitOf(2, join(program, advancePC(16), endSequence))
	lines, f := locate(t, imageWithLines(table, addresses(table)...))
	assert.Zero(t, f.Broken())
	assert.Len(t, lines[0], maxInlined+1)
	assert.Equal(t, 120, lines[0][0])
}

func TestLineTable_EqualAddresses(t *testing.T) {
	table := unitOf(2, join(
		setAddress(0), copyRow, advanceLine(6), copyRow, advancePC(16), endSequence, // 7 replaces 1
		setAddress(0), advanceLine(29), copyRow, advancePC(32), advanceLine(0x80-30), copyRow, advancePC(16), endSequence,
	))
	at := addresses(table)
	b := newBuilder()
	text := b.code("kernel", make([]byte, 256))
	symbol := b.function("kernel", text, 0, 256)
	b.lines(table, []builtRelocation{{at[0], symbol, 0}, {at[1], symbol, 16}})
	lines, f := locate(t, b.image())
	assert.Equal(t, [][]int{{7}, {30}, {30}, nil, nil}, lines[:5])
	assert.Zero(t, f.Broken())
	_, reason := f.Locate("kernel", 48, nil)
	assert.Equal(t, NoLine, reason, "line 0 says that there is none")
}

// A linker may keep the offset in the table, with a relocation that adds to it (SHT_REL).
func TestLineTable_AddingRelocations(t *testing.T) {
	table := unitOf(2, join(setAddress(32), advanceLine(4), copyRow, advancePC(16), endSequence))
	b := newBuilder()
	text := b.code("kernel", make([]byte, 256))
	symbol := b.function("kernel", text, 16, 240)
	at := b.section(section{name: debugLineName, kind: elf.SHT_PROGBITS, data: table})
	data := order.AppendUint64(nil, addresses(table)[0])
	data = order.AppendUint64(data, uint64(symbol)<<32|relocationWord64)
	b.section(section{name: ".rel" + debugLineName, kind: elf.SHT_REL, info: uint32(at), link: 1 << 31, data: data})
	f, err := Open(b.image())
	require.NoError(t, err)
	frames, reason := f.Locate("kernel", 32, nil)
	assert.Equal(t, Resolved, reason)
	assert.Equal(t, 5, frames[0].Line)
	_, reason = f.Locate("kernel", 16, nil)
	assert.Equal(t, NoLine, reason)
}

func TestLineTable_Files(t *testing.T) {
	table := unitOf(2, join(
		[]byte{0, 9, opDefineFile}, []byte("b.cu\x00\x01\x00\x00"),
		[]byte{0, 12, opDefineFile}, []byte("/abs.cu\x00\x01\x00\x00"),
		[]byte{0, 9, opDefineFile}, []byte("c.cu\x00\x07\x00\x00"),
		setAddress(0), copyRow,
		advancePC(16), []byte{opSetFile, 2}, copyRow,
		advancePC(16), []byte{opSetFile, 3}, copyRow,
		advancePC(16), []byte{opSetFile, 4}, copyRow,
		advancePC(16), []byte{opSetFile, 5}, copyRow,
		advancePC(16), []byte{opSetFile, 0}, copyRow,
		advancePC(16), endSequence,
	))
	_, f := locate(t, imageWithLines(table, addresses(table)...))
	assert.Zero(t, f.Broken())
	var files []string
	for pc := uint64(0); pc < 96; pc += 16 {
		frames, _ := f.Locate("kernel", pc, nil)
		files = append(files, frames[0].File)
	}
	assert.Equal(t, []string{"/src/k.cu", "/src/b.cu", "/abs.cu", "c.cu", "", ""}, files)
}

func TestLineTable_Invalid(t *testing.T) {
	good := join(setAddress(0), advanceLine(4), copyRow, advancePC(16), endSequence)
	for name, c := range map[string]struct {
		table  []byte
		reason Reason
	}{
		"nothing":             {nil, NoLines},
		"no relocation":       {unitOf(2, []byte{0, 5, opSetAddress, 0, 0, 0, 0, opCopy, 0, 1, 1}), BadLines},
		"no address":          {unitOf(2, join(copyRow, endSequence)), BadLines},
		"no end":              {unitOf(2, join(setAddress(0), copyRow)), BadLines},
		"version 5":           {unitOf(5, good), BadLines},
		"version 1":           {unitOf(1, good), BadLines},
		"too long for itself": {append([]byte{0xff, 0xff, 0, 0}, unitOf(2, good)[4:]...), BadLines},
		"reserved length":     {append([]byte{0xf0, 0xff, 0xff, 0xff}, unitOf(2, good)[4:]...), BadLines},
		"three bytes":         {[]byte{1, 0, 0}, BadLines},
		"line below 0":        {unitOf(2, join(setAddress(0), advanceLine(0x80-2), copyRow, endSequence)), BadLines},
		"opcode of length 0":  {unitOf(2, join(setAddress(0), []byte{0, 0})), BadLines},
		"opcode too long":     {unitOf(2, join(setAddress(0), []byte{0, 100, opEndSequence})), BadLines},
		"opcode with more":    {unitOf(2, join(setAddress(0), []byte{0, 2, opEndSequence, 0})), BadLines},
		"address of 2 bytes":  {unitOf(2, []byte{0, 3, opSetAddress, 0, 0, opCopy, 0, 1, 1}), BadLines},
		"endless number":      {unitOf(2, join(setAddress(0), []byte{opAdvanceLine}, bytes.Repeat([]byte{0x80}, 20))), BadLines},
		"behind the function": {unitOf(2, join(setAddress(0), []byte{opFixedAdvancePC, 0, 2}, copyRow, endSequence)), BadLines},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Open(imageWithLines(c.table, addresses(c.table)...))
			require.NoError(t, err)
			frames, reason := f.Locate("kernel", 0, nil)
			assert.Equal(t, c.reason, reason)
			assert.Equal(t, []Frame{{Function: "kernel"}}, frames)
			assert.Equal(t, c.reason == BadLines, f.Broken() > 0)
		})
	}
}

// The data before an error and the units after an invalid one are valid.
func TestLineTable_PartlyInvalid(t *testing.T) {
	good := join(setAddress(0), advanceLine(4), copyRow, advancePC(16), endSequence)
	for name, table := range map[string][]byte{
		"before a unit": join(unitOf(5, good), unitOf(2, good)),
		"after a unit":  join(unitOf(2, good), unitOf(5, good)),
		"in a unit":     unitOf(2, join(good, setAddress(0), []byte{0, 0})),
	} {
		lines, f := locate(t, imageWithLines(table, addresses(table)...))
		assert.Equal(t, []int{5}, lines[0], name)
		assert.Equal(t, 1, f.Broken(), name)
	}
	// A sequence may leave its section. Its rows from there on are skipped.
	table := unitOf(2, join(setAddress(0), copyRow, advancePC(16), copyRow, setAddress(0), copyRow, advancePC(16), endSequence))
	b := newBuilder()
	one := b.function("kernel", b.code("kernel", make([]byte, 256)), 0, 256)
	two := b.function("other", b.code("other", make([]byte, 256)), 0, 256)
	at := addresses(table)
	b.lines(table, []builtRelocation{{at[0], one, 0}, {at[1], two, 0}})
	lines, f := locate(t, b.image())
	assert.Equal(t, []int{1}, lines[0])
	assert.Positive(t, f.Broken())
	_, reason := f.Locate("other", 0, nil)
	assert.Equal(t, NoLines, reason)
}

// DWARF numbers may have any number of bytes, and 64 bits.
func TestLineTable_LEB128(t *testing.T) {
	for _, c := range []struct {
		bytes    []byte
		unsigned uint64
		signed   int64
	}{
		{[]byte{0}, 0, 0},
		{[]byte{0x3f}, 63, 63},
		{[]byte{0x7f}, 127, -1},
		{[]byte{0x80, 0x01}, 128, 128},
		{[]byte{0x80, 0x7f}, 16256, -128},
		{[]byte{0x85, 0x80, 0x80, 0x00}, 5, 5},
	} {
		r := reader{data: c.bytes}
		assert.Equal(t, c.unsigned, r.uleb())
		assert.NoError(t, r.err)
		r = reader{data: c.bytes}
		assert.Equal(t, c.signed, r.sleb())
		assert.NoError(t, r.err)
	}
	r := reader{data: bytes.Repeat([]byte{0xff}, 9)}
	r.uleb()
	assert.ErrorIs(t, r.err, errTruncated)
	r = reader{data: append(bytes.Repeat([]byte{0xff}, 9), 1)}
	assert.Equal(t, ^uint64(0), r.uleb())
	assert.NoError(t, r.err)
	r = reader{data: append(bytes.Repeat([]byte{0xff}, 9), 2)}
	r.uleb()
	assert.ErrorIs(t, r.err, errNumber)
	r = reader{data: append(bytes.Repeat([]byte{0x80}, 9), 0x7f)}
	assert.Equal(t, int64(-1<<63), r.sleb())
	assert.NoError(t, r.err)
	r = reader{data: append(bytes.Repeat([]byte{0x80}, 10), 0)}
	r.sleb()
	assert.ErrorIs(t, r.err, errNumber)
}
