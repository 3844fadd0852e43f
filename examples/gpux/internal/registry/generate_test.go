// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/orttest"
)

// A model for texts that comes with its tokenizer takes texts at once.
func TestGenerate_Tokenizer(t *testing.T) {
	for name, c := range map[string]struct{ model, tokenizer, want string }{
		"languages": {orttest.Languages() + "/languages.onnx", orttest.Languages() + "/tokenizer.json", "tokenizer.json"},
		"an image":  {orttest.Digits() + "/digits.onnx", orttest.Languages() + "/tokenizer.json", ""},
		"no such":   {orttest.Languages() + "/languages.onnx", orttest.Digits() + "/expected.json", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for to, from := range map[string]string{"model.onnx": c.model, "tokenizer.json": c.tokenizer} {
				data, err := os.ReadFile(from)
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(dir, to), data, 0o600))
			}
			root, err := os.OpenRoot(dir)
			require.NoError(t, err)
			defer root.Close()
			text, err := generate(root, "model.onnx", Entry{Name: "m", Revision: "main", Source: "x"}, t.Logf)
			require.NoError(t, err)
			parsed, err := config.Parse(text)
			require.NoError(t, err)
			assert.Equal(t, c.want, parsed.Preprocessing.Tokenizer)
		})
	}
}
