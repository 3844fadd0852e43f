// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"cmp"
	"debug/elf" // only for its constants
	"fmt"
	"io"

	"github.com/gpuflight/gpuflight/internal/elffile"
)

// function is an exported function of a library.
type function struct {
	name string
	// offset is where to attach, in bytes from the start of the file: the first instruction of the
	// function, or the one after endbr64.
	offset uint64
	// slow means that the kernel must single-step the instruction there. A call then costs about 10
	// µs instead of 0.5 µs (measured on kernel 6.18, AMD EPYC, in a virtual machine).
	slow bool
}

// Bounds for reading a library, which any user may have made. NVIDIA's driver exports about 700
// functions.
const (
	maxSections = 4096
	maxSymbols  = 100_000
	// maxFileReads bounds the bytes that are read of one file: 100,000 symbols, their names and the
	// code of functions.
	maxFileReads = 16 << 20
	// minOffset is the size of the ELF header. It contains no function, and the library that
	// attaches probes takes an offset of 0 as "unknown".
	minOffset = elffile.HeaderBytes
)

// functions returns those of the wanted functions that a library of size bytes exports. A function
// with several names at one address is returned under each name. Each version of a name is returned
// separately. functions reads at most maxFileReads bytes. It allocates in proportion to its result.
func functions(file io.ReaderAt, size int64, wanted map[string]int) ([]function, error) {
	file = &boundedReader{file: file, left: maxFileReads}
	f, err := elffile.Open(file, size)
	if err != nil {
		return nil, fmt.Errorf("read the library: %w", err)
	}
	if f.Sections > maxSections {
		return nil, fmt.Errorf("read the library: %d sections: %w of %d", f.Sections, elffile.ErrLimit, maxSections)
	}
	executables, err := f.Executables()
	if err != nil {
		return nil, fmt.Errorf("read the segments: %w", err)
	}
	table, names, ok, err := f.Symbols(elf.SHT_DYNSYM)
	if err != nil {
		return nil, fmt.Errorf("read the symbols: %w", err)
	}
	if !ok {
		return nil, nil
	}
	longest := 0
	for name := range wanted {
		longest = max(longest, len(name))
	}
	buf := make([]byte, longest+1)
	var found []function
	err = f.EachSymbol(&table, maxSymbols, func(i uint64, s elffile.Symbol) (bool, error) {
		// The first symbol is a placeholder.
		if i == 0 || elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Section == elf.SHN_UNDEF || s.Value == 0 {
			return true, nil
		}
		name, err := f.NameAt(&names, s.Name, buf)
		if err != nil {
			return false, err
		}
		if _, ok := wanted[string(name)]; !ok {
			return true, nil
		}
		// A file can give one name to many symbols. Real libraries have a few versions of each
		// name.
		if len(found) >= maxVersions*len(wanted) {
			return false, fmt.Errorf("more than %d versions of each function: %w", maxVersions, elffile.ErrLimit)
		}
		offset, ok := fileOffset(executables, s.Value)
		if !ok {
			return false, fmt.Errorf("%s at %#x is in no executable segment", name, s.Value)
		}
		var code [16]byte
		n, err := file.ReadAt(code[:min(int64(len(code)), size-int64(offset))], int64(offset))
		if n < 5 {
			return false, fmt.Errorf("read the code of %s: %w", name, cmp.Or(err, io.ErrUnexpectedEOF))
		}
		skip, slow := entry(f.Machine, code[:n])
		found = append(found, function{name: string(name), offset: offset + uint64(skip), slow: slow})
		return true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the symbols: %w", err)
	}
	return found, nil
}

// maxVersions bounds the symbols of one name.
const maxVersions = 4

// boundedReader returns [elffile.ErrLimit] after maxFileReads bytes.
type boundedReader struct {
	file io.ReaderAt
	left int64
}

func (r *boundedReader) ReadAt(b []byte, at int64) (int, error) {
	if int64(len(b)) > r.left {
		return 0, fmt.Errorf("%d bytes read: %w", maxFileReads, elffile.ErrLimit)
	}
	r.left -= int64(len(b))
	return r.file.ReadAt(b, at)
}

// fileOffset converts an address to an offset in the file, as uprobes require.
func fileOffset(executables []elffile.Executable, address uint64) (uint64, bool) {
	for _, e := range executables {
		if offset, ok := e.At(address); ok && offset >= minOffset {
			return offset, true
		}
	}
	return 0, false
}

var (
	endbr64 = []byte{0xf3, 0x0f, 0x1e, 0xfa}
	nop5    = []byte{0x0f, 0x1f, 0x44, 0x00, 0x00}
)

// entry returns the offset of the probe in a function, and whether a probe is slow there. On x86
// the kernel emulates pushes, nops and some jumps, and single-steps other first instructions
// (arch/x86/kernel/uprobes.c, Linux 6.18). On other machines nothing was measured, and no function
// counts as slow.
func entry(machine elf.Machine, code []byte) (skip int, slow bool) {
	if machine != elf.EM_X86_64 {
		return 0, false
	}
	if bytes.HasPrefix(code, endbr64) {
		skip = len(endbr64)
		code = code[skip:]
	}
	return skip, !emulated(code)
}

func emulated(code []byte) bool {
	switch {
	case bytes.HasPrefix(code, nop5), len(code) > 0 && code[0] == 0x90: // nop
		return true
	case len(code) > 0 && code[0] >= 0x50 && code[0] <= 0x57: // push rax … rdi
		return true
	case len(code) > 1 && code[0] == 0x41 && code[1] >= 0x50 && code[1] <= 0x57: // push r8 … r15
		return true
	case len(code) > 0 && (code[0] == 0xe9 || code[0] == 0xeb || code[0] == 0xe8): // jmp, call
		return true
	}
	return false
}
