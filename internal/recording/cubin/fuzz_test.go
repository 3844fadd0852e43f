// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpuflight/gpuflight/internal/elffile"
	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// FuzzFile checks arbitrary bytes. Open rejects them with a position or reads them. Each
// instruction of each function has a place or a reason. The memory of the tables stays in
// proportion to the input.
func FuzzOpen(f *testing.F) {
	for _, name := range goldens {
		f.Add(golden(f, name))
	}
	f.Add(kernelOf(f).image)
	table := unitOf(2, join(setAddress(0), advanceLine(9), copyRow, inlinedCall(1, 0), copyRow, advancePC(16), endSequence))
	f.Add(imageWithLines(table, addresses(table)...))
	table = unitOf(4, join(setAddress(0), copyRow, []byte{0, 9, opDefineFile}, []byte("b.cu\x00\x01\x00\x00"), advancePC(16), endSequence))
	f.Add(imageWithLines(table, addresses(table)...))
	f.Fuzz(func(t *testing.T, image []byte) {
		alloctest.Limit{PerByte: 1 << 9, Constant: 1 << 18}.Check(t, len(image), func() {
			if file, err := Open(image); err == nil {
				for _, fn := range file.Functions() {
					file.Locate(fn.Name, 0, nil)
				}
			}
		})
		CUPTICRC(image)
		file, err := Open(image)
		var format *FormatError
		if err != nil {
			if !errors.As(err, &format) || format.Offset < 0 || format.Offset > int64(max(len(image), elffile.HeaderBytes)) {
				t.Fatalf("%v", err)
			}
			return
		}
		assert.Regexp(t, `^sm_\d+$`, file.Architecture())
		var frames []Frame
		places := 0
		for _, fn := range file.Functions() {
			if fn.Offset+fn.Size < fn.Offset || fn.Offset+fn.Size > uint64(len(image)) {
				t.Fatalf("%+v", fn)
			}
			found, ok := file.Lookup(fn.Name)
			assert.True(t, ok)
			if text, ok := file.PTX(fn.Name); ok {
				assert.Contains(t, text, readable(fn.Name))
			}
			for pc := uint64(0); pc < found.Size && places < 4096; pc += InstructionBytes {
				places++
				var reason Reason
				frames, reason = file.Locate(fn.Name, pc, frames)
				assert.NotEmpty(t, frames)
				assert.LessOrEqual(t, len(frames), maxInlined+1)
				switch reason {
				case Resolved:
					for i := range frames {
						assert.True(t, i > 0 || frames[i].Line > 0)
					}
				case NoLines, BadLines, NoLine:
				default:
					t.Fatalf("%s %#x: %v", fn.Name, pc, reason)
				}
			}
			_, reason := file.Locate(fn.Name, found.Size, nil)
			assert.Equal(t, OutsideFunction, reason)
		}
		// The smallest entry is a file name of four bytes.
		assert.LessOrEqual(t, file.bytes(), int64(64*len(image)+1<<16))
	})
}
