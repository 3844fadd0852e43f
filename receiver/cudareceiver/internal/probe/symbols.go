// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
)

// function is an exported function of a library.
type function struct {
	name string
	// offset is where to attach to, in bytes from the begin of the file: the function's first instruction, or
	// the one behind endbr64.
	offset uint64
	// slow says that the kernel would have to single-step the instruction there, which costs some 10 µs a
	// call instead of 0.5 (measured on kernel 6.18, AMD EPYC, in a virtual machine).
	slow bool
}

// maxSymbols bounds what is read of a file: NVIDIA's driver exports some 700 functions.
const maxSymbols = 100_000

// functions returns those of the wanted functions that a library exports. Functions that it has under
// several names at one address are there under each.
func functions(file io.ReaderAt, wanted map[string]int) ([]function, error) {
	f, err := elf.NewFile(file)
	if err != nil {
		return nil, fmt.Errorf("not a library: %w", err)
	}
	symbols, err := f.DynamicSymbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return nil, fmt.Errorf("its symbols: %w", err)
	}
	if len(symbols) > maxSymbols {
		return nil, fmt.Errorf("%d symbols are more than a library has", len(symbols))
	}
	var found []function
	for _, s := range symbols {
		if _, ok := wanted[s.Name]; !ok || elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Section == elf.SHN_UNDEF || s.Value == 0 {
			continue
		}
		offset, ok := fileOffset(f, s.Value)
		if !ok {
			return nil, fmt.Errorf("%s at %#x is in no executable segment", s.Name, s.Value)
		}
		var code [16]byte
		n, err := file.ReadAt(code[:], int64(offset)) //nolint:gosec // Within a segment, which is within the file.
		if n < 5 {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		skip, slow := entry(f.Machine, code[:n])
		found = append(found, function{name: s.Name, offset: offset + uint64(skip), slow: slow})
	}
	return found, nil
}

// fileOffset turns an address into where it is in the file, which is what uprobes go by.
func fileOffset(f *elf.File, address uint64) (uint64, bool) {
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && address >= p.Vaddr && address-p.Vaddr < p.Filesz {
			return p.Off + (address - p.Vaddr), true
		}
	}
	return 0, false
}

var (
	endbr64 = []byte{0xf3, 0x0f, 0x1e, 0xfa}
	nop5    = []byte{0x0f, 0x1f, 0x44, 0x00, 0x00}
)

// entry says how many bytes into a function the probe goes, and whether it is slow there. On x86 the
// kernel emulates pushes, nops and some jumps; what else a function begins with it single-steps
// (arch/x86/kernel/uprobes.c, Linux 6.18). Of other machines nothing was measured: all is taken there.
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
