// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// DisassemblerEnv names the environment variable with the path of nvdisasm.
const DisassemblerEnv = "GPUFLIGHT_NVDISASM"

// Default limits of a run of nvdisasm.
const (
	DefaultTimeLimit   = 30 * time.Second
	DefaultMemoryLimit = 4 << 30
	DefaultTextLimit   = 64 << 20
)

// maxArguments is how many functions are named to nvdisasm. Above, it disassembles the whole image.
const maxArguments = 4096

// Disassembler runs nvdisasm. It is safe for concurrent use. Its limits may be set before the first run; 0
// stands for the default.
type Disassembler struct {
	// Path of the program.
	Path string
	// TimeLimit bounds a run.
	TimeLimit time.Duration
	// MemoryLimit bounds the address space of the program, in bytes; it is set right after it was started.
	MemoryLimit int64
	// TextLimit bounds the texts kept of one run, in bytes.
	TextLimit int64
}

// NotFoundError says why there is no disassembler.
type NotFoundError struct {
	// Tried are the places, with what was wrong there.
	Tried []string
}

func (e *NotFoundError) Error() string {
	return "no nvdisasm, so instructions have no text (set " + DisassemblerEnv + " to its path): " + strings.Join(e.Tried, "; ")
}

// FindDisassembler looks for nvdisasm at the path given, or if that is "" at that in GPUFLIGHT_NVDISASM; if that is
// unset in the folders of PATH, in $CUDA_HOME/bin and $CUDA_PATH/bin, in /usr/local/cuda/bin, and beside the
// CUDA libraries that this process has mapped, where NVIDIA's packages on PyPI and Triton's put it. The error is
// a *[NotFoundError]; one that tells the user once is enough.
//
// This process may be one of root's with a PATH of anybody's, so a program that was not named outright is
// taken only if nobody but root and this user can have put it there: it and all folders above it belong
// to one of them, and not everybody may write to them. A folder where everybody may write but delete
// only what is theirs, such as /tmp, is good as a folder above. Links are followed first. Members of a group
// with the right to write are trusted, as pip and conda set that up. Folders of PATH that are not absolute
// are passed over.
func FindDisassembler(path string) (*Disassembler, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		maps = nil // not on this system
	}
	s := search{getenv: os.Getenv, maps: string(maps), check: trusted}
	return s.find(path)
}

// search looks for nvdisasm. Its fields are the system, so that tests can be another one.
type search struct {
	getenv func(string) string
	maps   string                       // text of /proc/self/maps
	check  func(string) (string, error) // trusted
}

const program = "nvdisasm"

func (s search) find(path string) (*Disassembler, error) {
	source := "given"
	if path == "" {
		path, source = s.getenv(DisassemblerEnv), DisassemblerEnv
	}
	if path != "" {
		// Somebody has decided. Only that it is a program is checked.
		abs, err := filepath.Abs(path)
		if err == nil {
			err = executable(abs)
		}
		if err != nil {
			return nil, &NotFoundError{[]string{fmt.Sprintf("%s (%s): %v", path, source, err)}}
		}
		return &Disassembler{Path: abs}, nil
	}
	e := &NotFoundError{}
	for _, dir := range s.folders() {
		candidate := filepath.Join(dir, program)
		found, err := s.check(candidate)
		if err == nil {
			return &Disassembler{Path: found}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			e.Tried = append(e.Tried, fmt.Sprintf("%s: %v", candidate, err))
		}
	}
	e.Tried = append(e.Tried, "not in PATH, CUDA_HOME, /usr/local/cuda or beside the CUDA libraries of this process")
	return nil, e
}

// folders returns where to look, best first.
func (s search) folders() []string {
	var dirs []string
	add := func(dir string) {
		if filepath.IsAbs(dir) {
			if dir = filepath.Clean(dir); !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	for _, dir := range filepath.SplitList(s.getenv("PATH")) {
		add(dir)
	}
	for _, key := range []string{"CUDA_HOME", "CUDA_PATH"} {
		if home := s.getenv(key); home != "" {
			add(filepath.Join(home, "bin"))
		}
	}
	add("/usr/local/cuda/bin")
	for line := range strings.Lines(s.maps) {
		at := strings.IndexByte(line, '/')
		if at < 0 {
			continue
		}
		path := strings.TrimSuffix(line[at:], "\n")
		name := filepath.Base(path)
		if !strings.HasPrefix(name, "libcudart.so") && !strings.HasPrefix(name, "libcupti.so") && !strings.HasPrefix(name, "libnvrtc.so") {
			continue
		}
		// A toolkit: targets/x86_64-linux/lib, and lib64; the packages of CUDA 13: nvidia/cu13/lib.
		lib := filepath.Dir(path)
		add(filepath.Join(lib, "..", "bin"))
		add(filepath.Join(lib, "..", "..", "..", "bin"))
		// The packages of CUDA 12: nvidia/cuda_runtime/lib. Triton's is beside the folder nvidia.
		for dir := lib; len(dir) > 1; dir = filepath.Dir(dir) {
			if filepath.Base(dir) == "nvidia" {
				add(filepath.Join(dir, "cuda_nvdisasm", "bin"))
				add(filepath.Join(dir, "cuda_nvcc", "bin"))
				add(filepath.Join(dir, "..", "triton", "backends", "nvidia", "bin"))
				break
			}
		}
	}
	return dirs
}

// executable returns nil if path is a program, by links if need be.
func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("not a file")
	case info.Mode()&0o111 == 0:
		return errors.New("not executable")
	}
	return nil
}

// disassemble returns the texts of the sections of those functions, by the name of their section.
func (d *Disassembler) disassemble(ctx context.Context, f *File, functions []Function) (map[string]*sassText, error) {
	want := map[string]uint64{} // name of section: its size
	symbols := make([]string, 0, len(functions))
	for _, fn := range functions {
		s := &f.sections[fn.Section]
		if _, twice := want[s.name]; !twice {
			want[s.name] = s.size
			symbols = append(symbols, strconv.FormatUint(uint64(fn.symbol), 10))
		}
	}
	// Only code, and without the analysis of where branches may go, which nvdisasm says may fail.
	args := []string{"-c", "-ndf"}
	if len(symbols) <= maxArguments {
		args = append(args, "-fun", strings.Join(symbols, ","))
	}
	limit := d.TextLimit
	if limit <= 0 {
		limit = DefaultTextLimit
	}
	found := map[string]*sassText{}
	read := func(out io.Reader) error {
		return parseSASS(out, limit, func(section string, text *sassText) error {
			if _, twice := found[section]; twice {
				return nil
			}
			// Sections are whole instructions; nvdisasm prints them all, also the filling at the end.
			if size, wanted := want[section]; wanted {
				if n := uint64(len(text.ends)) * InstructionBytes; n != size {
					return fmt.Errorf("%w: %d of %d bytes of %s", errIncomplete, n, size, section)
				}
				found[section] = text
			}
			return nil
		})
	}
	if err := d.run(ctx, args, f.image, read); err != nil {
		return nil, err
	}
	if len(found) < len(want) {
		return nil, fmt.Errorf("nvdisasm, %s: %w: %d of %d sections", d.Path, errIncomplete, len(found), len(want))
	}
	return found, nil
}
