// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
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
