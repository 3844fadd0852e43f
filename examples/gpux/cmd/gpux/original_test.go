// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/orttest"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

// write puts a gpux.yml and a model into a new folder and goes there.
func write(t *testing.T, yml, model string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	data, err := os.ReadFile(model)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "m.onnx"), data, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "gpux.yml"), []byte(yml), 0o600))
	t.Chdir(dir)
	return dir
}

// TestOriginal has the defects of the Python implementation, by number. Those that have a test elsewhere:
//
//	 4  Core ML gets the option coreml_flags      TestSettings in internal/engine
//	 6  the model is loaded twice                 TestServe_KernelsOfRequests
//	 8  /health hangs behind a slow /predict      TestLimits in internal/server
//	 9  batch_size and serving.timeout do nothing TestBatches and TestLimits in internal/server
//	10  pull                                      TestPull_HuggingFace in internal/registry
func TestOriginal(t *testing.T) {
	orttest.Open(t)
	t.Run("1 JSON numbers and strings have the types of the model", func(t *testing.T) {
		dir := model(t)
		code, out, stderr := gpux(t, "", "run", dir, "-i", `{"image": [`+strings.Repeat("0, ", 63)+`1]}`)
		require.Equal(t, 0, code, stderr)
		assert.Contains(t, out, `"logits"`)
		text := orttest.Model(t, orttest.Node("Identity", []string{"text"}, []string{"same"}), nil, orttest.Value("text", tensor.String, "n"), orttest.Value("same", tensor.String, "n"))
		write(t, "name: same\nmodel: {source: m.onnx}\ninputs: {text: string}\noutputs: {same: string}\n", text)
		code, out, stderr = gpux(t, "", "run", "same", "-i", `{"text": "hello"}`)
		require.Equal(t, 0, code, stderr)
		assert.JSONEq(t, `{"same": ["hello"]}`, out)
	})
	t.Run("2 and 3 providers have real names, and work only if a session opens", func(t *testing.T) {
		model(t)
		code, out, stderr := gpux(t, "", "inspect", "--json")
		require.Equal(t, 0, code, stderr)
		var machine struct {
			Available []struct{ Name string }             `json:"available_providers"`
			Rejected  []struct{ Provider, Reason string } `json:"rejected_providers"`
		}
		require.NoError(t, json.Unmarshal([]byte(out), &machine))
		assert.Equal(t, 7, len(machine.Available)+len(machine.Rejected))
		for _, r := range machine.Rejected {
			assert.NotEmpty(t, r.Reason, r.Provider)
		}
		code, _, stderr = gpux(t, "", "run", "digits", "-i", image(t), "-p", "ROCMExecutionProvider")
		assert.Equal(t, 1, code)
		assert.Contains(t, stderr, "the provider migraphx does not work: MIGraphX execution provider is not supported in this build")
		yml, err := os.ReadFile("gpux.yml")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile("gpux.yml", append(yml, "runtime: {gpu: {backend: rocm}}\n"...), 0o600))
		code, out, stderr = gpux(t, "", "run", "digits", "-i", image(t))
		assert.Equal(t, 0, code)
		assert.Contains(t, out, `"digit"`)
		assert.Contains(t, stderr, "gpux: the provider rocm does not work: MIGraphX execution provider is not supported in this build")
	})
	t.Run("5 metadata is that of the model and of gpux.yml", func(t *testing.T) {
		dir := model(t)
		for name, more := range map[string][]byte{"digits.onnx": orttest.Metadata("author", "model"), "gpux.yml": []byte("metadata: {license: MIT}\n")} {
			data, err := os.ReadFile(name)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(name, append(data, more...), 0o600))
		}
		code, out, stderr := gpux(t, "", "inspect", dir, "--json")
		require.Equal(t, 0, code, stderr)
		var info struct{ Metadata map[string]string }
		require.NoError(t, json.Unmarshal([]byte(out), &info))
		assert.Equal(t, map[string]string{"author": "model", "license": "MIT"}, info.Metadata)
	})
	t.Run("7 several workers", func(t *testing.T) {
		dir := model(t)
		yml, err := os.ReadFile("gpux.yml")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile("gpux.yml", append(yml, "  max_workers: 3\n"...), 0o600)) // under serving
		s := startServer(t, dir)
		resp, err := http.Post(s.address+"/predict", "application/json", bytes.NewReader([]byte(image(t))))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, 200, resp.StatusCode)
		assert.Equal(t, 0, s.stop(), s.output.String())
	})
	t.Run("9 runtime.timeout ends a run", func(t *testing.T) {
		write(t, "name: endless\nmodel: {source: m.onnx}\ninputs: {x: float32}\noutputs: {y: float32}\nruntime: {timeout: 50ms}\n", orttest.Endless(t))
		code, _, stderr := gpux(t, "", "run", "endless", "-i", `{"x": [1]}`)
		assert.Equal(t, 1, code)
		assert.Contains(t, stderr, "the run did not end within runtime.timeout (50ms)")
	})
	t.Run("11 a name is a name, and a path a path", func(t *testing.T) {
		dir := model(t)
		code, _, stderr := gpux(t, "", "run", "bert", "-i", "{}")
		assert.Equal(t, 1, code)
		assert.Contains(t, stderr, "there is no model named bert: gpux.yml has digits")
		parent := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(parent, "models"), 0o700))
		require.NoError(t, os.Rename(dir, filepath.Join(parent, "models", "bert")))
		t.Chdir(parent)
		code, _, stderr = gpux(t, "", "run", "models/bert", "-i", image(t))
		assert.Equal(t, 0, code, stderr)
	})
	t.Run("12 a file can have a list of inputs", func(t *testing.T) {
		model(t)
		require.NoError(t, os.WriteFile("batch.json", []byte("["+image(t)+","+image(t)+"]"), 0o600))
		code, out, stderr := gpux(t, "", "run", "digits", "-i", "@batch.json")
		require.Equal(t, 0, code, stderr)
		var list []any
		require.NoError(t, json.Unmarshal([]byte(out), &list))
		assert.Len(t, list, 2)
	})
	t.Run("13 Python is not needed", func(t *testing.T) {
		cmd := exec.Command(os.Args[0], "run", model(t), "-i", image(t))
		cmd.Env = append(os.Environ(), asGPUX+"=1", "PATH=", "OTEL_SDK_DISABLED=true")
		out, err := cmd.Output()
		require.NoError(t, err)
		assert.Contains(t, string(out), `"digit"`)
	})
}
