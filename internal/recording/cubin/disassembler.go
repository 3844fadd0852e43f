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

// maxArguments bounds the functions that are named to nvdisasm. Above it, nvdisasm disassembles the
// whole image.
const maxArguments = 4096

// Disassembler runs nvdisasm. It is safe for concurrent use. Its limits may be set before the first
// run. 0 means the default.
type Disassembler struct {
	// Path is the path of the program.
	Path string
	// TimeLimit bounds a run.
	TimeLimit time.Duration
	// MemoryLimit bounds the address space of the program, in bytes. It takes effect just after
	// the start of the program.
	MemoryLimit int64
	// TextLimit bounds the listings of one run, in bytes.
	TextLimit int64
}

// NotFoundError is the error if no usable nvdisasm exists.
type NotFoundError struct {
	// Tried lists the paths, with the reason why each was rejected.
	Tried []string
}

func (e *NotFoundError) Error() string {
	return "no nvdisasm, so instructions have no text (set " + DisassemblerEnv + " to its path): " + strings.Join(e.Tried, "; ")
}

// FindDisassembler searches nvdisasm at the given path or, if that is "", at the path in
// GPUFLIGHT_NVDISASM. If both are empty, it searches the folders of PATH, $CUDA_HOME/bin,
// $CUDA_PATH/bin and /usr/local/cuda/bin. Last, it searches near the CUDA libraries that this
// process has mapped, where NVIDIA's packages on PyPI and Triton's install it. The error is a
// *[NotFoundError]. Report it to the user once.
//
// The process may run as root with a PATH of any user. A program that was not named explicitly is
// therefore accepted only if nobody but root and this user can have installed it. It and all
// folders above it must belong to one of them, and must not be writable by everybody. A folder
// above it may be writable by everybody if the sticky bit is set, as for /tmp. Links are resolved
// first. Group members with write permission are trusted, since pip and conda install that way.
// Relative folders in PATH are skipped.
func FindDisassembler(path string) (*Disassembler, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		maps = nil // does not exist on this system
	}
	s := search{getenv: os.Getenv, maps: string(maps), check: trusted}
	return s.find(path)
}

// search searches nvdisasm. Its fields describe the system, so that tests can replace it.
type search struct {
	getenv func(string) string
	maps   string                       // content of /proc/self/maps
	check  func(string) (string, error) // is owned by trusted users
}

const program = "nvdisasm"

func (s search) find(path string) (*Disassembler, error) {
	source := "given"
	if path == "" {
		path, source = s.getenv(DisassemblerEnv), DisassemblerEnv
	}
	if path != "" {
		// The path was named explicitly. It only has to be executable.
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

// folders returns the folders to search, in order of preference.
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
		// The toolkit has targets/x86_64-linux/lib and lib64. The packages of CUDA 13 have
		// nvidia/cu13/lib.
		lib := filepath.Dir(path)
		add(filepath.Join(lib, "..", "bin"))
		add(filepath.Join(lib, "..", "..", "..", "bin"))
		// The packages of CUDA 12 have nvidia/cuda_runtime/lib. Triton's folder is next to the
		// folder nvidia.
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

// executable returns nil if path is a program or a link to one.
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

// disassemble returns the listings of the sections of the functions, by section name.
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
	// Print code only, without the analysis of branch targets, which may fail according to
	// nvdisasm.
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
			// Sections are whole instructions. nvdisasm prints all of them, including the
			// padding at the end.
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
