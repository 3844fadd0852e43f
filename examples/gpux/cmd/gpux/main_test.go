// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/ortlib"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/orttest"
)

// gpux runs a command and returns its exit status and outputs.
func gpux(t *testing.T, in string, args ...string) (code int, out, stderr string) {
	t.Helper()
	t.Setenv("GPUFLIGHT_OUTPUT", filepath.Join(t.TempDir(), "out.otlp.jsonl"))
	t.Setenv("GPUFLIGHT_LOG_LEVEL", "off")
	var stdout, errors bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(in), &stdout, &errors)
	return code, stdout.String(), errors.String()
}

// model copies the example model to a new folder, and goes there.
func model(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"gpux.yml", "digits.onnx"} {
		data, err := os.ReadFile(filepath.Join(orttest.Digits(), name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	t.Chdir(dir)
	return dir
}

func image(t *testing.T) string {
	t.Helper()
	text, err := json.Marshal(map[string]any{"image": orttest.ReadExpected(t).Image[:1]})
	require.NoError(t, err)
	return string(text)
}

func TestBuild(t *testing.T) {
	orttest.Open(t)
	dir := model(t)
	code, out, stderr := gpux(t, "", "build", "--provider", "cpu")
	require.Equal(t, 0, code, stderr)
	assert.Contains(t, out, "image  float32  [batch × 1 × 8 × 8]")
	assert.Regexp(t, `Accepts +image, tensors\n`, out)
	assert.Contains(t, out, "Provider  cpu (the processor), ONNX Runtime")
	var info struct {
		Name    string
		Opsets  map[string]int
		Outputs []struct{ Labels []string }
	}
	text, err := os.ReadFile(filepath.Join(dir, ".gpux", "model_info.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &info))
	assert.Equal(t, "digits", info.Name)
	assert.Equal(t, map[string]int{"ai.onnx": 17}, info.Opsets)
	assert.Len(t, info.Outputs[0].Labels, 10)
	code, out, stderr = gpux(t, "", "inspect", filepath.Join(dir, ".gpux", "optimized.onnx"))
	require.Equal(t, 0, code, stderr)
	assert.NotContains(t, out, "Relu", "ONNX Runtime fuses convolutions with their activations")
}

func TestRun(t *testing.T) {
	orttest.Open(t)
	dir := model(t)
	request := image(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "request.json"), []byte(request), 0o600))
	t.Run("one, as text, file and standard input", func(t *testing.T) {
		for in, args := range map[string][]string{"": {"run", "digits", "-i", "@request.json"}, request: {"run", "digits", "-i", "-"}, " ": {"run", ".", "-i", request}} {
			code, out, stderr := gpux(t, in, args...)
			require.Equal(t, 0, code, stderr)
			var got struct{ Digit []int }
			require.NoError(t, json.Unmarshal([]byte(out), &got))
			assert.Equal(t, []int{2}, got.Digit)
		}
	})
	t.Run("a list gives a list, and goes to a file", func(t *testing.T) {
		code, out, stderr := gpux(t, "["+request+","+request+"]", "run", "digits", "-i", "-", "-o", "answer.json")
		require.Equal(t, 0, code, stderr)
		assert.Empty(t, out)
		text, err := os.ReadFile("answer.json")
		require.NoError(t, err)
		var got []struct{ Digit []int }
		require.NoError(t, json.Unmarshal(text, &got))
		assert.Len(t, got, 2)
	})
	t.Run("an image", func(t *testing.T) {
		code, out, stderr := gpux(t, "", "run", "digits", "-i", "@"+filepath.Join(orttest.Digits(), "two.png"))
		require.Equal(t, 0, code, stderr)
		assert.Regexp(t, `"digit": \[\s*2\s*\]`, out)
	})
	t.Run("texts", func(t *testing.T) {
		want := orttest.ReadExpectedTexts(t)
		request, err := json.Marshal(map[string]any{"text": want.Text})
		require.NoError(t, err)
		code, out, stderr := gpux(t, string(request), "run", orttest.Languages(), "-i", "-")
		require.Equal(t, 0, code, stderr)
		var got struct {
			Language    []string
			Probability [][]float32
		}
		require.NoError(t, json.Unmarshal([]byte(out), &got))
		assert.Equal(t, want.Language, got.Language)
		for i := range want.Text {
			require.InDeltaSlice(t, want.Probability[i], got.Probability[i], 1e-5, want.Text[i])
		}
	})
	t.Run("a benchmark", func(t *testing.T) {
		code, out, stderr := gpux(t, "", "run", "digits", "-i", "@request.json", "--benchmark", "--runs", "20", "--warmup", "2")
		require.Equal(t, 0, code, stderr)
		var got map[string]any
		require.NoError(t, json.Unmarshal([]byte(out), &got))
		for _, key := range []string{"mean_time_ms", "std_time_ms", "min_time_ms", "max_time_ms", "median_time_ms", "p95_time_ms", "p99_time_ms", "throughput_fps"} {
			assert.Contains(t, got, key)
		}
	})
	for name, c := range map[string]struct {
		args []string
		code int
		err  string
	}{
		"another name":        {[]string{"run", "digit", "-i", "{}"}, 1, "there is no model named digit: gpux.yml has digits"},
		"no input":            {[]string{"run", "digits"}, 2, "the inputs are missing: use --input"},
		"no model":            {[]string{"run"}, 2, "name one model"},
		"an unknown flag":     {[]string{"run", "digits", "--fast"}, 2, "unknown flag: --fast"},
		"no file":             {[]string{"run", "digits", "-i", "@none.json"}, 1, "none.json: no such file"},
		"a wrong input":       {[]string{"run", "digits", "-i", `{"image":[1]}`}, 1, "the shape [1] does not fit [?, 1, 8, 8]"},
		"a wrong entry":       {[]string{"run", "digits", "-i", `[{}]`}, 1, "entry 1: Missing required input: 'image'"},
		"an unknown provider": {[]string{"run", "digits", "-i", request, "-p", "quantum"}, 1, `there is no provider "quantum"`},
		"no runs":             {[]string{"run", "digits", "-i", request, "--runs", "0"}, 2, "--runs must be at least 1"},
		"text for images":     {[]string{"run", "digits", "-i", `{"text": "two"}`}, 1, "Missing required input: 'image'"},
		"no library":          {[]string{"run", "digits", "-i", request, "--ort-lib", "/none.so"}, 1, "--ort-lib"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := gpux(t, "", c.args...)
			assert.Equal(t, c.code, code)
			assert.Contains(t, stderr, c.err)
			assert.Equal(t, 1, strings.Count(stderr, "\n"), "an error is one line: %s", stderr)
		})
	}
}

// registryHome gives the test an empty registry, with the installed ONNX Runtime.
func registryHome(t *testing.T) {
	t.Helper()
	found, err := ortlib.Find("")
	require.NoError(t, err)
	t.Setenv("GPUX_ORT_LIB", found.Path)
	t.Setenv("GPUX_HOME", t.TempDir())
}

func TestRegistry(t *testing.T) {
	orttest.Open(t)
	registryHome(t)
	dir := model(t)
	t.Chdir(t.TempDir())
	for _, c := range []struct {
		args []string
		code int
		out  string // a regular expression
	}{
		{[]string{"list"}, 0, "^No models. `gpux pull` gets one.\n$"},
		{[]string{"list", "--json"}, 0, `^\[\]\n$`},
		{[]string{"pull", dir}, 0, "^Pulled digits@1.0.0, 8[.][0-9]+ kB.\nTry `gpux inspect digits` and `gpux serve digits`.\n$"},
		{[]string{"pull", dir}, 0, "^digits@1.0.0 is up to date.\n$"},
		{[]string{"list"}, 0, `^NAME +REVISION +SIZE +PULLED +SOURCE\ndigits +1\.0\.0 +8\.\d+ kB +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +` + regexp.QuoteMeta(dir) + `\n$`},
		{[]string{"run", "digits", "-i", image(t)}, 0, `"digit": \[\n?\s*2`},
		{[]string{"run", "digits@1.0.0", "-i", image(t)}, 0, `"digit"`},
		{[]string{"bench", "digits", "--runs", "3", "--rows", "4"}, 0, "3 runs on cpu"},
		{[]string{"rm", "digits"}, 0, "^Removed digits@1.0.0, 8[.][0-9]+ kB.\n$"},
		{[]string{"list"}, 0, "^No models"},
		{[]string{"run", "digits", "-i", "{}"}, 1, "^gpux: there is no model named digits: neither this folder nor the folders in it have a gpux.yml, and `gpux list` does not have it\n$"},
		{[]string{"run", "org/digits", "-i", "{}"}, 1, "^gpux: open org/digits: no such file or directory, and `gpux list` does not have it\n$"},
		{[]string{"rm", "digits"}, 1, "^gpux: no such model was pulled: digits\n$"},
		{[]string{"rm"}, 2, "name a model"},
		{[]string{"pull"}, 2, "name one model"},
		{[]string{"bench", "digits", "--runs", "0"}, 2, "--runs and --rows must be at least 1"},
	} {
		t.Run(strings.Join(c.args[:min(2, len(c.args))], " "), func(t *testing.T) {
			code, out, stderr := gpux(t, "", c.args...)
			assert.Equal(t, c.code, code, stderr)
			if code != 0 {
				out = stderr
			}
			assert.Regexp(t, c.out, out)
		})
	}
}

func TestServe(t *testing.T) {
	orttest.Open(t)
	model(t)
	t.Setenv("GPUFLIGHT_OUTPUT", filepath.Join(t.TempDir(), "out.otlp.jsonl"))
	t.Run("an address of other machines needs a key", func(t *testing.T) {
		code, _, stderr := gpux(t, "", "serve", "digits", "--host", "0.0.0.0")
		assert.Equal(t, 1, code)
		assert.Contains(t, stderr, "set GPUX_API_KEY to a secret")
	})
	t.Run("a model that is there twice", func(t *testing.T) {
		code, _, stderr := gpux(t, "", "serve", "digits", "./gpux.yml", "--port", "0")
		assert.Equal(t, 1, code)
		assert.Equal(t, "gpux: the version 1.0.0 of the model digits is there twice: set model.version in one gpux.yml\n", stderr)
	})
	t.Run("no model", func(t *testing.T) {
		code, _, stderr := gpux(t, "", "serve")
		assert.Equal(t, 2, code)
		assert.Equal(t, "gpux: name a model\n", stderr)
	})
	t.Run("until it is told to stop", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		out, in := io.Pipe()
		var stderr bytes.Buffer
		done := make(chan int, 1)
		go func() {
			done <- run(ctx, []string{"serve", "digits", orttest.Languages(), "--port", "0", "-p", "cpu"}, strings.NewReader(""), in, &stderr)
			in.Close()
		}()
		address := ""
		buffer, read := make([]byte, 4096), ""
		for address == "" {
			n, err := out.Read(buffer)
			require.NoError(t, err)
			read += string(buffer[:n])
			if m := regexp.MustCompile(`Serving at (http://127\.0\.0\.1:\d+)`).FindStringSubmatch(read); m != nil {
				address = m[1]
			}
		}
		go func() { _, _ = io.Copy(io.Discard, out) }()
		client := &http.Client{Timeout: 10 * time.Second}
		defer client.CloseIdleConnections()
		for body, want := range map[string]string{image(t): `"digit":[2]`, `{"text":"Wo ist der Bahnhof?"}`: `"language":["de"]`} {
			model := "digits"
			if strings.Contains(body, "text") {
				model = "languages"
			}
			resp, err := client.Post(address+"/predict?model="+model, "application/json", strings.NewReader(body))
			require.NoError(t, err)
			text, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Contains(t, string(text), want)
		}
		stop()
		assert.Equal(t, 0, <-done, stderr.String())
	})
}

func TestFallback(t *testing.T) {
	s := engine.Selection{Provider: engine.Provider{Name: "cpu"}, Rejected: []engine.Rejection{{Provider: "tensorrt", Reason: "no file"}, {Provider: "cuda", Reason: "no libcublas"}}}
	for name, c := range map[string]struct {
		backend string
		s       engine.Selection
		gpu     bool
		want    string
	}{
		"the preferred one works":          {"cpu", engine.Selection{Provider: engine.Provider{Name: "cpu"}}, true, ""},
		"the preferred one does not work":  {"tensorrt", s, false, "the provider tensorrt does not work: no file; cpu is used"},
		"no preference and no GPU":         {"auto", s, false, ""},
		"no preference, and a GPU is idle": {"auto", s, true, "this machine has an NVIDIA GPU, but the provider cuda does not work: no libcublas; cpu is used"},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, fallback(c.backend, c.s, c.gpu)) })
	}
}
