// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMutations_TextExists fails as soon as a change removes a text that a mutation breaks.
func TestMutations_TextExists(t *testing.T) {
	for _, m := range mutations {
		text, err := os.ReadFile(filepath.Join("..", "..", m.file))
		if assert.NoError(t, err, m) {
			assert.True(t, strings.Contains(string(text), m.old), "%s: no %q", m, m.old) //nolint:testifylint // Not the whole file.
		}
		if ext := filepath.Ext(m.file); ext == ".c" || ext == ".h" {
			assert.Contains(t, builds, m.file)
		}
		name := strings.Trim(strings.Split(m.run, "/")[0], "^$")
		if !strings.HasPrefix(name, "Test") {
			continue
		}
		files, err := filepath.Glob(filepath.Join("..", "..", m.pkg, "*_test.go"))
		require.NoError(t, err)
		found := false
		for _, path := range files {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			found = found || strings.Contains(string(text), "func "+name+"(")
		}
		assert.True(t, found, "%s has no %s", m.pkg, name)
	}
}

// TestCheck_Build mutates a file that a command compiles. The binary is a link, which the command must
// replace.
func TestCheck_Build(t *testing.T) {
	from := t.TempDir()
	require.NoError(t, exec.CommandContext(t.Context(), "git", "-C", from, "init", "-q").Run())
	require.NoError(t, os.Mkdir(filepath.Join(from, "bin"), 0o700))
	for name, text := range map[string]string{
		"go.mod":     "module example.com/m\n\ngo 1.26\n",
		".gitignore": "/bin\n",
		"source":     "one\n",
		"bin/out":    "one\n",
		"m_test.go":  "package m\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nfunc TestOut(t *testing.T) {\n\tif b, err := os.ReadFile(\"bin/out\"); err != nil || string(b) != \"one\\n\" {\n\t\tt.Fatal(string(b), err)\n\t}\n}\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(from, name), []byte(text), 0o600))
	}
	tree, err := copyTree(t.Context(), from)
	require.NoError(t, err)
	defer tree.remove()
	m := mutation{file: "source", old: "one", replacement: "two", pkg: ".", run: "^TestOut$"}
	tree.builds = map[string]string{"source": "rm bin/out; cp source bin/out"}
	require.NoError(t, tree.check(t.Context(), m))
	for path, want := range map[string]string{filepath.Join(from, "bin", "out"): "one\n", filepath.Join(tree.root, "bin", "out"): "one\n"} {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, want, string(text), path)
	}
	tree.builds["source"] = "echo cannot >&2; exit 1"
	require.ErrorContains(t, tree.check(t.Context(), m), "build source: exit status 1\ncannot")
	tree.builds = nil
	require.EqualError(t, tree.check(t.Context(), m), "the test passes with the mutation")
}

// TestCheck runs mutations of a small module.
func TestCheck(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":    "module example.com/m\n\ngo 1.26\n",
		"m.go":      "package m\n\nfunc Sum(a, b int) int { return a + b }\n\nfunc Other() int { return 1 }\n",
		"m_test.go": "package m\n\nimport \"testing\"\n\nfunc TestSum(t *testing.T) {\n\tif Sum(1, 2) != 3 {\n\t\tt.Fatal()\n\t}\n}\n\nfunc TestSkipped(t *testing.T) { t.Skip() }\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	for _, tt := range []struct {
		name, old, replacement, run, want string
	}{
		{"detected", "a + b", "a - b", "^TestSum$", ""},
		{"not detected", "return 1", "return 2", "^TestSum$", "the test passes with the mutation"},
		{"not compiled", "a + b", "a +* b", "^TestSum$", "the test does not run with the mutation"},
		{"no text", "a * b", "a - b", "^TestSum$", "does not contain"},
		{"no test", "a + b", "a - b", "^TestNone$", "the test does not run here"},
		{"skipped", "a + b", "a - b", "^TestSkipped$", "the test does not run here"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree := &tree{root: root, intact: map[string]error{}}
			err := tree.check(t.Context(), mutation{file: "m.go", old: tt.old, replacement: tt.replacement, pkg: ".", run: tt.run})
			if tt.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.want)
			}
			text, err := os.ReadFile(filepath.Join(root, "m.go"))
			require.NoError(t, err)
			assert.Contains(t, string(text), "a + b")
		})
	}
}
