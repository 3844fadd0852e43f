// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package probe

import (
	"bytes"
	"errors"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestBPF_ObjectsMatchSources compiles the programs and compares the bytes with those that are committed, where
// the pinned compiler is installed.
func TestBPF_ObjectsMatchSources(t *testing.T) {
	doc, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments)
	require.NoError(t, err)
	dir := t.TempDir()
	for _, group := range doc.Comments {
		for _, c := range group.List {
			line, ok := strings.CutPrefix(c.Text, "//go:generate ")
			if !ok {
				continue
			}
			words := strings.Fields(line)
			cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
			cmd.Env = append(os.Environ(), "GPUFLIGHT_BPF_OUTPUT="+dir)
			out, err := cmd.CombinedOutput()
			const noCompiler = 3
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == noCompiler {
				t.Skip(strings.TrimSpace(string(out)))
			}
			require.NoError(t, err, "%s\n%s", line, out)
		}
	}
	made, err := filepath.Glob(filepath.Join(dir, "*_bpfel.*"))
	require.NoError(t, err)
	committed, err := filepath.Glob("*_bpfel.*")
	require.NoError(t, err)
	require.NotEmpty(t, made)
	require.Len(t, committed, len(made))
	for _, path := range made {
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Base(path))
		require.NoError(t, err)
		assert.True(t, bytes.Equal(want, got), "%s is not current: run make generate", filepath.Base(path))
	}
}
