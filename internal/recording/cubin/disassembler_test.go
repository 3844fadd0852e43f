// SPDX-License-Identifier: Apache-2.0

//go:build linux

package cubin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// script writes a shell script that replaces nvdisasm.
func script(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), program)
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700))
	return path
}

const (
	oneInstruction  = `printf '.section .text.one,"ax"\n/*0000*/ NOP ;\n'; `
	twoInstructions = oneInstruction + `printf '/*0010*/ EXIT ;\n'; `
)

func TestDisassembler_Results(t *testing.T) {
	f := kernelOf(t)
	for name, c := range map[string]struct {
		script string
		says   string
	}{
		"well":                       {twoInstructions, ""},
		"well, with other sections":  {twoInstructions + `printf '.section .text.other,"ax"\n/*0000*/ NOP ;\n'`, ""},
		"a section twice":            {twoInstructions + twoInstructions, ""},
		"fails":                      {twoInstructions + "echo 'nvdisasm fatal: no idea' >&2; exit 1", "exit status 1: nvdisasm fatal: no idea"},
		"fails without a word":       {"exit 3", "exit status 3"},
		"is killed":                  {"kill -9 $$", "signal: killed"},
		"prints nothing":             {"exit 0", "incomplete disassembly: 0 of 1 sections"},
		"prints too little":          {oneInstruction, "16 of 32 bytes of .text.one"},
		"prints too much of it":      {twoInstructions + `printf '/*0020*/ NOP ;\n'`, "48 of 32 bytes of .text.one"},
		"prints nonsense and fails":  {`echo broken >&2; printf '.section .text.one,\n/*0010*/\n'; exit 1`, "broken"},
		"never stops, with nonsense": {`while :; do echo "/*9999*/ .section .text.one,"; echo ".section .text.one,"; echo "/*0010*/"; done`, "incomplete"},
		"prints without end":         {`echo ".section .text.one,"; i=0; while :; do printf '/*%04x*/ NOP ;\n' $i; i=$((i+16)); done`, "more text than allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Disassembler{Path: script(t, c.script), TimeLimit: toolsLimit, TextLimit: 4000}
			texts, err := d.disassemble(t.Context(), f, f.Functions())
			if c.says == "" {
				require.NoError(t, err)
				assert.Equal(t, "NOP", texts[".text.one"].at(0))
				assert.Equal(t, "EXIT", texts[".text.one"].at(16))
				return
			}
			require.ErrorContains(t, err, c.says)
			assert.ErrorContains(t, err, d.Path)
			assert.Empty(t, texts)
		})
	}
}

func TestDisassembler_Timeout(t *testing.T) {
	f := kernelOf(t)
	d := &Disassembler{Path: script(t, twoInstructions+"while :; do :; done"), TimeLimit: 50 * time.Millisecond}
	_, err := d.disassemble(t.Context(), f, f.Functions())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "not done in time")

	// A child process that keeps running holds the output.
	d.Path = script(t, "sleep 20 & exit 0")
	_, err = d.disassemble(t.Context(), f, f.Functions())
	require.Error(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d = &Disassembler{Path: script(t, twoInstructions+"while :; do :; done")}
	_, err = d.disassemble(ctx, f, f.Functions())
	assert.ErrorIs(t, err, context.Canceled)
}

// The program gets the image and its limits, but not this process's environment.
func TestDisassembler_Environment(t *testing.T) {
	t.Setenv("CUDA_INJECTION64_PATH", "/some/library.so")
	t.Setenv("LD_PRELOAD_OF_SOMEBODY", "x")
	f := kernelOf(t)
	dir := t.TempDir()
	seen := filepath.Join(dir, "seen")
	// Limits are set just after the start of the program, so it waits for the last of them.
	d := &Disassembler{MemoryLimit: 3 << 30, TimeLimit: toolsLimit, Path: script(t, fmt.Sprintf(`
for a in "$@"; do last=$a; done
while [ "$(ulimit -v)" != 3145728 ] || [ "$(ulimit -c)" != 0 ] || [ "$(ulimit -f)" != 0 ] || [ "$(ulimit -t)" != 301 ]; do :; done
cmp -s "$last" %s || exit 4
env=$(/usr/bin/env | grep -E 'CUDA|SOMEBODY')
[ -z "$env" ] || exit 5
[ "$PWD" = / ] || exit 6
echo "$1 $2 $3 $4" | grep -qx -- '-c -ndf -fun 1' || exit 7
`, seen)+twoInstructions)}
	require.NoError(t, os.WriteFile(seen, f.image, 0o600))
	_, err := d.disassemble(t.Context(), f, f.Functions())
	require.NoError(t, err)
}

func TestFindDisassembler_Order(t *testing.T) {
	dir := t.TempDir()
	put := func(parts ...string) string {
		path := filepath.Join(append([]string{dir}, parts...)...)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700))
		return path
	}
	in := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
	// All candidates exist. Each is removed after it was found.
	env := map[string]string{
		DisassemblerEnv: put("env", "disassembler"),
		"PATH":          "relative:" + in("empty") + "::" + in("path"),
		"CUDA_HOME":     in("home"),
		"CUDA_PATH":     in("cudapath"),
	}
	order := []string{
		env[DisassemblerEnv], put("path", program), put("home", "bin", program), put("cudapath", "bin", program),
		put("site", "nvidia", "cu13", "bin", program), put("site", "nvidia", "cuda_nvdisasm", "bin", program),
		put("site", "nvidia", "cuda_nvcc", "bin", program), put("site", "triton", "backends", "nvidia", "bin", program),
		put("toolkit", "bin", program),
	}
	s := search{
		getenv: func(key string) string { return env[key] },
		maps: "7f00-7f01 r-xp 0 0:1 1 " + in("other", "lib", "libother.so") + "\n" +
			"7f00-7f01 r-xp 0 0:1 1\n" +
			"7f01-7f02 r-xp 0 0:1 2                  " + in("site", "nvidia", "cu13", "lib", "libcupti.so.13") + "\n" +
			"7f02-7f03 r-xp 0 0:1 3 " + in("toolkit", "targets", "x86_64-linux", "lib", "libcudart.so.12.4.127") + "\n",
		check: func(path string) (string, error) {
			if !strings.HasPrefix(path, dir) {
				return "", os.ErrNotExist // of this machine, which may have one
			}
			return trusted(path)
		},
	}
	for i, want := range order {
		d, err := s.find("")
		require.NoError(t, err)
		assert.Equal(t, want, d.Path)
		require.NoError(t, os.Remove(want))
		if i == 0 {
			// A missing program that was named explicitly is not replaced by another.
			_, err = s.find("")
			assert.ErrorContains(t, err, DisassemblerEnv)
			assert.ErrorContains(t, err, want)
			delete(env, DisassemblerEnv)
		}
	}
	_, err := s.find("")
	var none *NotFoundError
	require.ErrorAs(t, err, &none)
	assert.Len(t, none.Tried, 1)
	assert.ErrorContains(t, err, "not in PATH")

	d, err := s.find(put("given", "any"))
	require.NoError(t, err)
	assert.Equal(t, in("given", "any"), d.Path)
	_, err = s.find(in("given"))
	assert.ErrorContains(t, err, "not a file")
	require.NoError(t, os.Chmod(in("given", "any"), 0o600))
	_, err = s.find(in("given", "any"))
	assert.ErrorContains(t, err, "not executable")
}

// A program that anybody may have installed runs only if it was named explicitly.
func TestFindDisassembler_UntrustedProgram(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "open", program)
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700))
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(path, link))
	env := map[string]string{"PATH": filepath.Dir(path)}
	find := func() (*Disassembler, error) {
		return search{getenv: func(key string) string { return env[key] }, check: func(p string) (string, error) {
			if p != path {
				return "", os.ErrNotExist
			}
			return trusted(p)
		}}.find("")
	}
	_, err := find()
	require.NoError(t, err)
	target, err := trusted(link)
	require.NoError(t, err)
	assert.Equal(t, path, target)

	require.NoError(t, os.Chmod(filepath.Dir(path), 0o777))
	_, err = find()
	require.ErrorContains(t, err, filepath.Dir(path)+" is writable by everybody")
	_, err = trusted(link)
	require.ErrorContains(t, err, filepath.Dir(path)+" is writable by everybody")
	// A folder with the permissions of /tmp.
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o777|os.ModeSticky))
	_, err = find()
	require.NoError(t, err)
	require.NoError(t, os.Chmod(path, 0o702))
	_, err = find()
	require.ErrorContains(t, err, path+" is writable by everybody")
	env[DisassemblerEnv] = path
	_, err = find()
	require.NoError(t, err)
	delete(env, DisassemblerEnv)
	require.NoError(t, os.Chmod(path, 0o700))

	if err := os.Chown(path, 4711, -1); err != nil {
		if errors.Is(err, os.ErrPermission) {
			t.Skip("only root can give files away")
		}
		t.Fatal(err)
	}
	_, err = find()
	require.ErrorContains(t, err, "belongs to user 4711")
}

// The empty system is a valid one.
func TestFindDisassembler_ThisSystem(t *testing.T) {
	t.Setenv(DisassemblerEnv, "")
	d, err := FindDisassembler("")
	if err == nil {
		assert.NoError(t, executable(d.Path))
		return
	}
	var none *NotFoundError
	require.ErrorAs(t, err, &none)
	assert.NotEmpty(t, none.Tried)
}
