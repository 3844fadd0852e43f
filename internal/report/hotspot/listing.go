// SPDX-License-Identifier: Apache-2.0

package hotspot

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// instructionBytes is the size of an instruction of every GPU since compute capability 7.0.
const instructionBytes = 16

// maxFold bounds the instructions that one line of a listing represents.
const maxFold = 1 << 16

// maxInstruction bounds the stored text of one instruction, in bytes.
const maxInstruction = 512

// listings are the SASS texts by function.
type listings struct {
	functions names
	texts     []listing // by number in functions
	bytes     int
}

// listing has the instructions of one function by offset. It is sorted on the first query.
type listing struct {
	at     map[int64]instruction
	sorted []int64
}

// instruction is the text at an offset, and the number of equal consecutive instructions.
type instruction struct {
	text  string
	count int64
	// clash is set if two listings differ here: they are builds of one function, and the measured
	// one is unknown.
	clash bool
}

// Listing adds the disassembly of a function or a part of it. A line has an offset in hexadecimal
// digits, two spaces and the instruction. "  ×n" at its end means n equal consecutive instructions.
// The cuda.sass_listing logs have this format. Invalid lines are skipped and counted.
func (t *Table) Listing(function, text string) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" {
			continue
		}
		pc, in, ok := readInstruction(line)
		if !ok || !t.instruction(function, pc, in) {
			t.left.Instructions++
		}
	}
}

// readInstruction reads a line of a listing.
func readInstruction(line string) (pc int64, in instruction, ok bool) {
	digits, text, found := strings.Cut(line, "  ")
	pc, err := strconv.ParseInt(digits, 16, 64)
	if !found || err != nil || pc < 0 {
		return 0, instruction{}, false
	}
	in.count = 1
	if i := strings.LastIndex(text, "  ×"); i >= 0 {
		if n, err := strconv.ParseInt(text[i+len("  ×"):], 10, 64); err == nil && n > 0 && n <= maxFold {
			in.count, text = n, text[:i]
		}
	}
	in.text = strings.TrimSpace(text)
	return pc, in, in.text != "" && len(in.text) <= maxInstruction
}

// instruction adds the text of an instruction. It returns false if the limit is reached.
func (t *Table) instruction(function string, pc int64, in instruction) bool {
	if function == "" {
		return false
	}
	l := &t.listings
	number, ok := l.functions.number(function, t.limits.Functions)
	if !ok {
		return false
	}
	for len(l.texts) < len(l.functions.all) {
		l.texts = append(l.texts, listing{at: map[int64]instruction{}})
	}
	at := l.texts[number].at
	have, ok := at[pc]
	if !ok {
		// A map entry has about 64 bytes in addition to its text.
		if l.bytes += len(in.text) + 64; l.bytes > t.limits.ListingBytes {
			l.bytes -= len(in.text) + 64
			return false
		}
		in.text = strings.Clone(in.text)
		at[pc] = in
		return true
	}
	if have.text != in.text || have.count != in.count {
		have.clash = true
		at[pc] = have
	}
	return true
}

// sass returns the text of an instruction, or "" if it is unknown.
func (t *Table) sass(function string, pc int64) string {
	number, ok := t.listings.functions.numbers[function]
	if !ok {
		return ""
	}
	l := &t.listings.texts[number]
	if len(l.sorted) != len(l.at) { // offsets are added but never removed
		l.sorted = slices.Sorted(maps.Keys(l.at))
	}
	// The last line at or before pc may represent several instructions.
	i, found := slices.BinarySearch(l.sorted, pc)
	if !found {
		i--
	}
	if i < 0 {
		return ""
	}
	begin := l.sorted[i]
	in := l.at[begin]
	if in.clash || pc-begin >= in.count*instructionBytes || (pc-begin)%instructionBytes != 0 {
		return ""
	}
	return in.text
}
