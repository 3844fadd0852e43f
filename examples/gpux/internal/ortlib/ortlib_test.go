// SPDX-License-Identifier: Apache-2.0

package ortlib

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInstall(t *testing.T) {
	home := t.TempDir()
	t.Setenv("GPUX_HOME", home)
	t.Setenv("GPUX_ORT_LIB", "")
	t.Run("a file with another digest is refused", func(t *testing.T) {
		file := filepath.Join(home, "x.whl")
		require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
		_, err := Install(t.Context(), false, file, &bytes.Buffer{})
		require.ErrorContains(t, err, "SHA-256")
	})
	t.Run("an unknown file in GPUX_ORT_LIB is an error", func(t *testing.T) {
		t.Setenv("GPUX_ORT_LIB", "/nowhere/lib.so")
		_, err := Find("")
		assert.ErrorContains(t, err, "GPUX_ORT_LIB")
	})
	t.Run("the preferred library is for GPUs, and the newest", func(t *testing.T) {
		for _, dir := range []string{"onnxruntime-1.26.0", "onnxruntime-1.27.0", "onnxruntime-gpu-1.27.0"} {
			path := filepath.Join(home, "lib", dir)
			require.NoError(t, os.MkdirAll(path, 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(path, "libonnxruntime.so.1"), nil, 0o600))
		}
		var got []string
		for _, f := range Installed()[:3] {
			got = append(got, filepath.Base(filepath.Dir(f.Path)))
		}
		assert.Equal(t, []string{"onnxruntime-gpu-1.27.0", "onnxruntime-1.27.0", "onnxruntime-1.26.0"}, got)
	})
}
