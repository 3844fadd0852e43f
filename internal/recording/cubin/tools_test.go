// SPDX-License-Identifier: Apache-2.0

//go:build linux

package cubin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// These tests compile kernels with NVIDIA's compiler. They compare our results with those of
// NVIDIA's disassembler and CUPTI. The tools come from PyPI (scripts/cuda-tools). No GPU is needed.

var update = flag.Bool("update", false, "write the images in testdata anew")

// architectures that kernels are compiled for.
var architectures = []string{"sm_80", "sm_90", "sm_100"}

// toolsLimit bounds a run of a tool on a busy machine.
const toolsLimit = 5 * time.Minute

// tools returns the folder of NVIDIA's tools. It fetches them if necessary.
func tools(t testing.TB) string {
	t.Helper()
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	folder := filepath.Join(root, ".tools", "cuda-tools")
	ctx, cancel := context.WithTimeout(t.Context(), 2*toolsLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(root, "scripts", "cuda-tools"), folder).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == 3:
		process.Missing(t, "no CUDA tools: "+string(out))
	case err != nil:
		t.Fatalf("scripts/cuda-tools: %v\n%s", err, out)
	}
	return filepath.Join(folder, "13.0")
}

// tool runs one of the tools and returns its output.
func tool(t testing.TB, name string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), toolsLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(tools(t), "bin", name), args...)
	var out, diagnostic bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diagnostic
	require.NoError(t, cmd.Run(), "%s %v\n%s", name, args, &diagnostic)
	return out.Bytes()
}

// kernelSources are compiled: our test of lines, and the examples of slow kernels.
func kernelSources(t testing.TB) map[string]string {
	t.Helper()
	found := map[string]string{"lines": "testdata/lines.cu"}
	if slow := "../../../examples/slow/kernels.cu"; exists(slow) {
		found["slow"] = slow
	}
	return found
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// compiled are the images of this test run, by source and architecture. Tests here do not run in parallel.
var compiled = map[string][]byte{}

// compile returns the image of a source for an architecture, with the line table of -lineinfo
// unless other flags are given.
func compile(t testing.TB, source, arch string, flags ...string) []byte {
	t.Helper()
	if flags == nil {
		flags = []string{"-lineinfo"}
	}
	key := fmt.Sprint(source, arch, flags)
	if image := compiled[key]; image != nil {
		return image
	}
	path, err := filepath.Abs(kernelSources(t)[source])
	require.NoError(t, err)
	out := filepath.Join(t.TempDir(), "k.cubin")
	tool(t, "nvcc", append(flags, "-cubin", "-arch="+arch, "-o", out, path)...)
	image, err := os.ReadFile(out)
	require.NoError(t, err)
	compiled[key] = image
	return image
}

// forEachImage runs a test on every source for every architecture.
func forEachImage(t *testing.T, test func(t *testing.T, source string, image []byte, f *File)) {
	for source := range kernelSources(t) {
		for _, arch := range architectures {
			t.Run(source+"/"+arch, func(t *testing.T) {
				image := compile(t, source, arch)
				f, err := Open(image)
				require.NoError(t, err)
				assert.Equal(t, arch, f.Architecture())
				test(t, source, image, f)
				assert.Zero(t, f.Broken())
			})
		}
	}
}

// theirLine is the place of an instruction as nvdisasm -gi prints it.
type theirLine struct {
	section string
	offset  uint64
	places  []string // file:line, innermost first; nil for none
	whole   bool     // all of places is known, not only the innermost
}

var (
	theirSection = regexp.MustCompile(`^\s*\.section\s+(\.text\.[^,]*),`)
	theirPlace   = regexp.MustCompile(`^\s*//## File "([^"]*)", line (\d+)`)
	theirInst    = regexp.MustCompile(`^\s*/\*([0-9a-f]{4,})\*/`)
)

// theirLines reads the line of every instruction from nvdisasm. nvdisasm prints a place only if its
// innermost line differs from that of the previous instruction.
func theirLines(t testing.TB, image []byte) []theirLine {
	t.Helper()
	path := filepath.Join(t.TempDir(), "k.cubin")
	require.NoError(t, os.WriteFile(path, image, 0o600))
	var all []theirLine
	section, places, printed := "", []string(nil), false
	for line := range strings.Lines(string(tool(t, "nvdisasm", "-gi", "-c", path))) {
		if m := theirSection.FindStringSubmatch(line); m != nil {
			section, places, printed = m[1], nil, false
		} else if m := theirPlace.FindStringSubmatch(line); m != nil {
			if !printed {
				places, printed = nil, true
			}
			places = append(places[:len(places):len(places)], m[1]+":"+m[2])
		} else if m := theirInst.FindStringSubmatch(line); m != nil {
			offset, err := strconv.ParseUint(m[1], 16, 64)
			require.NoError(t, err)
			all = append(all, theirLine{section, offset, places, printed || places == nil})
			printed = false
		}
	}
	return all
}

func TestLines_Nvdisasm(t *testing.T) {
	tools(t)
	check := func(t *testing.T, image []byte) {
		f, err := Open(image)
		require.NoError(t, err)
		theirs := theirLines(t, image)
		whole, code := 0, map[int]uint64{}
		for _, fn := range f.Functions() {
			code[fn.Section] = max(code[fn.Section], fn.Offset+fn.Size)
		}
		size := uint64(0)
		for _, n := range code {
			size += n
		}
		assert.Len(t, theirs, int(size)/InstructionBytes, "instructions")
		var frames []Frame
		for _, want := range theirs {
			kernel := strings.TrimPrefix(want.section, ".text.")
			var reason Reason
			frames, reason = f.Locate(kernel, want.offset, frames)
			if want.places == nil {
				require.Contains(t, []Reason{NoLine, NoLines}, reason, "%s %#x", kernel, want.offset)
				continue
			}
			require.Equal(t, Resolved, reason, "%s %#x", kernel, want.offset)
			var places []string
			for _, f := range frames {
				places = append(places, f.File+":"+strconv.Itoa(f.Line))
			}
			if want.whole {
				whole++
				require.Equal(t, want.places, places, "%s %#x", kernel, want.offset)
			} else {
				require.Equal(t, want.places[0], places[0], "%s %#x", kernel, want.offset)
			}
		}
		assert.Positive(t, whole)
		t.Logf("%d instructions, of %d the whole chain", len(theirs), whole)
	}
	forEachImage(t, func(t *testing.T, _ string, image []byte, _ *File) { check(t, image) })
	// Not optimised, so that nothing is inlined. For linking, so that functions have sections of
	// their own.
	t.Run("lines/sm_90 -G", func(t *testing.T) { check(t, compile(t, "lines", "sm_90", "-G")) })
	t.Run("lines/sm_90 -rdc", func(t *testing.T) { check(t, compile(t, "lines", "sm_90", "-rdc=true", "-lineinfo")) })
	// The other architectures use the same source and compiler.
	t.Run("lines.cuda12.sm_90", func(t *testing.T) { check(t, golden(t, "lines.cuda12.sm_90")) })
}

// theirJSON has the compared parts of the output of nvdisasm -json: a header, and functions.
type theirJSON struct {
	Name         string `json:"function-name"`
	Start        uint64 `json:"start"`
	Length       uint64 `json:"length"`
	Instructions []struct {
		Predicate string `json:"predicate"`
		Opcode    string `json:"opcode"`
		Operands  string `json:"operands"`
	} `json:"sass-instructions"`
}

// Our text comes from one output format of nvdisasm and is compared with the other.
func TestTexts_Nvdisasm(t *testing.T) {
	tools(t)
	// Text and JSON differ in spaces and commas, and in names of functions, which have the form
	// `(name) in the text.
	plain := strings.NewReplacer(" ", "", ",", "", "`(", "", ")", "")
	forEachImage(t, func(t *testing.T, source string, image []byte, f *File) {
		path := filepath.Join(t.TempDir(), "k.cubin")
		require.NoError(t, os.WriteFile(path, image, 0o600))
		var parts []json.RawMessage
		require.NoError(t, json.Unmarshal(tool(t, "nvdisasm", "-json", path), &parts))
		require.Len(t, parts, 2)
		var theirs []theirJSON
		require.NoError(t, json.Unmarshal(parts[1], &theirs))

		r := resolver(t, source, f.Architecture())
		kernels := 0
		for _, fn := range theirs {
			ours, ok := f.Lookup(fn.Name)
			require.True(t, ok, fn.Name)
			assert.True(t, ours.Entry)
			assert.Equal(t, fn.Start, ours.Offset)
			assert.Equal(t, fn.Length, ours.Size)
			kernels++
			for i, inst := range fn.Instructions {
				loc, _ := r.Resolve(7, fn.Name, uint64(i)*InstructionBytes)
				want := inst.Predicate + inst.Opcode + inst.Operands
				require.Equal(t, plain.Replace(want), plain.Replace(loc.SASS), "%s %#x", fn.Name, i*InstructionBytes)
			}
			assert.Equal(t, fn.Length, uint64(len(fn.Instructions))*InstructionBytes)
		}
		for _, fn := range f.Functions() {
			if fn.Entry {
				kernels--
			}
		}
		assert.Zero(t, kernels)
		stats := r.Stats()
		assert.Equal(t, uint64(1), stats.Runs)
		assert.Zero(t, stats.FailedRuns)
	})
}

// resolvers are those of this test run, by source and architecture.
var resolvers = map[string]*Resolver{}

// resolver returns a resolver with the disassembly of all kernels of a source.
func resolver(t *testing.T, source, arch string) *Resolver {
	t.Helper()
	if r := resolvers[source+arch]; r != nil {
		return r
	}
	image := compile(t, source, arch)
	f, err := Open(image)
	require.NoError(t, err)
	r := NewResolver(Settings{
		Image:        func(uint64) []byte { return image },
		Disassembler: &Disassembler{Path: filepath.Join(tools(t), "bin", "nvdisasm"), TimeLimit: toolsLimit},
	})
	var names []string
	for _, fn := range f.Functions() {
		names = append(names, fn.Name)
	}
	require.NoError(t, r.Disassemble(t.Context(), 7, names))
	resolvers[source+arch] = r
	return r
}

// instructionsAt returns the instructions of a kernel with a prefix, without their predicate, by
// line.
func instructionsAt(t *testing.T, r *Resolver, f *File, kernel, start string) map[int]int {
	t.Helper()
	fn, ok := f.Lookup(kernel)
	require.True(t, ok, kernel)
	found := map[int]int{}
	for pc := uint64(0); pc < fn.Size; pc += InstructionBytes {
		loc, reason := r.Resolve(7, kernel, pc)
		text := loc.SASS
		if strings.HasPrefix(text, "@") {
			_, text, _ = strings.Cut(text, " ")
		}
		if strings.HasPrefix(text, start) {
			require.Equal(t, Resolved, reason)
			found[loc.Line]++
		}
	}
	return found
}

// The instructions that make our slow kernels slow are on the marked lines.
func TestLines_SlowExamples(t *testing.T) {
	tools(t)
	const path = "../../../examples/slow/kernels.cu"
	if !exists(path) {
		t.Skip("no ", path)
	}
	mark := marks(t, path)
	for _, arch := range architectures {
		t.Run(arch, func(t *testing.T) {
			image := compile(t, "slow", arch)
			f, err := Open(image)
			require.NoError(t, err)
			r := resolver(t, "slow", arch)
			for _, c := range []struct{ kernel, instruction, line string }{
				{"chase", "LDG.E", "chase"},
				{"strided", "LDG.E", "strided"},
				{"coalesced", "LDG.E", "coalesced"},
				{"barrier", "BAR.SYNC", "barrier"},
				{"barrier", "FFMA", "worker"},
				{"compute", "DFMA", "compute"},
				{"divergent", "FFMA", "divergent"},
			} {
				lines := instructionsAt(t, r, f, c.kernel, c.instruction)
				assert.NotEmpty(t, lines, "%s %s", c.kernel, c.instruction)
				for line, n := range lines {
					assert.Contains(t, mark[c.line], line, "%d × %s in %s", n, c.instruction, c.kernel)
				}
			}
			// The branch of one lane of 32 tests the thread's number and skips the line it
			// guards.
			guard := false
			fn, _ := f.Lookup("divergent")
			for pc := uint64(0); pc < fn.Size; pc += InstructionBytes {
				loc, _ := r.Resolve(7, "divergent", pc)
				if strings.HasPrefix(loc.SASS, "@") && strings.Contains(loc.SASS, "BRA") && loc.Line < mark["divergent"][0] && loc.Line > 0 {
					guard = true
				}
			}
			assert.True(t, guard, "a conditional branch on the lines before the divergent one")
		})
	}
}

func TestListing_Kernel(t *testing.T) {
	tools(t)
	r := resolver(t, "lines", "sm_90")
	l, ok := r.Listing(7, inlinedKernel)
	require.True(t, ok)
	assert.Equal(t, "void inlined<32>(float*, float const*)", l.Function.Full)
	assert.Equal(t, "sm_90", l.Architecture)
	lines := strings.Split(l.Text, "\n")
	assert.Equal(t, "0000  LDC R1, c[0x0][0x28]", lines[0])
	assert.Equal(t, "0010  S2R R8, SR_TID.X", lines[1])
	assert.Regexp(t, `^0[0-9a-f]{3}  NOP  ×\d+$`, lines[len(lines)-2])
	assert.Empty(t, lines[len(lines)-1])
	for _, line := range lines {
		assert.NotContains(t, line, ".L_x_", "labels mean nothing")
	}
	// The target of a branch is the offset of an instruction.
	m := regexp.MustCompile(`(?m)BRA 0x([0-9a-f]+)$`).FindStringSubmatch(l.Text)
	require.NotNil(t, m)
	assert.Contains(t, l.Text, fmt.Sprintf("\n%04s  ", m[1]))
}

// The current compiler's output for testdata/lines.cu has the same functions as the stored image,
// and the same instructions on the marked lines.
func TestTestdata_CurrentCompiler(t *testing.T) {
	tools(t)
	if *update {
		updateImages(t)
	}
	// The lines of some instructions by kernel, without counts, which may change with the
	// compiler.
	behaviour := func(image []byte) map[string][]int {
		f, err := Open(image)
		require.NoError(t, err)
		found := map[string][]int{}
		for _, fn := range f.Functions() {
			found[fn.Name] = nil
			if !fn.Entry {
				continue
			}
			for pc := uint64(0); pc < fn.Size; pc += InstructionBytes {
				op := opcode(f, fn, pc)
				if !slices.Contains([]uint16{opcodeLDG, opcodeSTG, opcodeBAR, opcodeMUFU}, op) {
					continue
				}
				frames, reason := f.Locate(fn.Name, pc, nil)
				if reason != Resolved {
					continue
				}
				key := fmt.Sprintf("%s %#x", fn.Name, op)
				for _, frame := range frames {
					if !slices.Contains(found[key], frame.Line) {
						found[key] = append(found[key], frame.Line)
					}
				}
				slices.Sort(found[key])
			}
		}
		return found
	}
	for _, arch := range architectures {
		assert.Equal(t, behaviour(golden(t, "lines."+arch)), behaviour(compile(t, "lines", arch)), arch)
	}
}

// updateImages compiles the images of testdata in a folder whose name may be in them.
func updateImages(t *testing.T) {
	const folder = "/tmp/kernels"
	require.NoError(t, os.Mkdir(folder, 0o700))
	defer func() { assert.NoError(t, os.RemoveAll(folder)) }()
	for _, name := range []string{"lines.cu", "lines.cuh"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), text, 0o600))
	}
	for _, arch := range architectures {
		out, err := filepath.Abs("testdata/lines." + arch + ".cubin")
		require.NoError(t, err)
		tool(t, "nvcc", "-lineinfo", "-cubin", "-arch="+arch, "-o", out, folder+"/lines.cu")
	}
}

// cuptiProgram prints CUPTI's number of an image, and CUPTI's line for each instruction of kernels.
const cuptiProgram = `
#include <cupti.h>
#include <cupti_pcsampling.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
  void *lib = dlopen(argv[1], RTLD_NOW);
  if (!lib) { fprintf(stderr, "%s\n", dlerror()); return 3; }
  CUptiResult (*crc)(CUpti_GetCubinCrcParams *) = dlsym(lib, "cuptiGetCubinCrc");
  CUptiResult (*line)(CUpti_GetSassToSourceCorrelationParams *) = dlsym(lib, "cuptiGetSassToSourceCorrelation");
  if (!crc || !line) return 3;
  FILE *f = fopen(argv[2], "rb");
  char *image = malloc(1 << 24);
  size_t size = f ? fread(image, 1, 1 << 24, f) : 0;
  CUpti_GetCubinCrcParams c = {.size = CUpti_GetCubinCrcParamsSize, .cubinSize = size, .cubin = image};
  int e = crc(&c);
  printf("crc %d %llu\n", e, (unsigned long long)c.cubinCrc);
  for (int i = 3; i + 1 < argc; i += 2) {
    unsigned long long bytes = strtoull(argv[i + 1], 0, 10);
    for (unsigned long long pc = 0; pc < bytes; pc += 16) {
      CUpti_GetSassToSourceCorrelationParams p = {
        .size = CUpti_GetSassToSourceCorrelationParamsSize, .cubin = image, .functionName = argv[i],
        .cubinSize = size, .pcOffset = pc};
      e = line(&p);
      printf("%s %llu %d %u %s/%s\n", argv[i], pc, e, p.lineNumber, p.dirName ? p.dirName : "", p.fileName ? p.fileName : "");
      free(p.fileName);
      free(p.dirName);
    }
  }
  return 0;
}
`

// CUPTI's lines, which need no GPU, and its number of the image are the same as ours.
func TestCUPTI_Agreement(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		process.Missing(t, "no C compiler: "+err.Error())
	}
	folder, dir := tools(t), t.TempDir()
	source, program := filepath.Join(dir, "lines.c"), filepath.Join(dir, "lines")
	require.NoError(t, os.WriteFile(source, []byte(cuptiProgram), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), toolsLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, cc, "-Wall", "-I", filepath.Join(folder, "include"), "-o", program, source, "-ldl").CombinedOutput()
	require.NoError(t, err, "%s", out)

	forEachImage(t, func(t *testing.T, _ string, image []byte, f *File) {
		path := filepath.Join(t.TempDir(), "k.cubin")
		require.NoError(t, os.WriteFile(path, image, 0o600))
		args := []string{filepath.Join(folder, "lib", "libcupti.so.13"), path}
		for _, fn := range f.Functions() {
			if fn.Entry {
				args = append(args, fn.Name, strconv.FormatUint(fn.Size, 10))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), toolsLimit)
		defer cancel()
		out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		require.Equal(t, fmt.Sprintf("crc 0 %d", CUPTICRC(image)), lines[0])

		compared := 0
		for _, line := range lines[1:] {
			fields := strings.SplitN(line, " ", 5)
			require.Len(t, fields, 5, line)
			pc, err := strconv.ParseUint(fields[1], 10, 64)
			require.NoError(t, err)
			require.Equal(t, "0", fields[2], line)
			number, err := strconv.Atoi(fields[3])
			require.NoError(t, err)
			frames, reason := f.Locate(fields[0], pc, nil)
			if number == 0 {
				require.NotEqual(t, Resolved, reason, line)
				continue
			}
			require.Equal(t, Resolved, reason, line)
			require.Equal(t, number, frames[0].Line, line)
			require.Equal(t, fields[4], frames[0].File, line)
			compared++
		}
		assert.Greater(t, compared, 100)
		t.Logf("%d instructions", compared)
	})
}
