// SPDX-License-Identifier: Apache-2.0

package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
)

const head = "name: m\nmodel: {source: m.onnx}\n"

const ports = "inputs: {x: float32}\noutputs: {y: float32}\n"

func TestParse(t *testing.T) {
	t.Setenv("GPUX_TEST_PORT", "9090")
	t.Setenv("GPUX_TEST_EMPTY", "")
	t.Run("defaults", func(t *testing.T) {
		c, err := Parse([]byte(head + ports))
		require.NoError(t, err)
		assert.Equal(t, "1.0.0", c.Version)
		assert.Equal(t, Duration(30*time.Second), c.Runtime.Timeout)
		assert.Equal(t, Serving{Port: 8080, Host: "127.0.0.1", BatchSize: 1, Timeout: Duration(5 * time.Second), MaxWorkers: 4, Queue: 256}, c.Serving)
	})
	t.Run("lists and maps mean the same", func(t *testing.T) {
		a, err := Parse([]byte(head + "inputs:\n  x: {type: int64, shape: [-1, 3]}\n  z: bool\noutputs: {y: float32}\n"))
		require.NoError(t, err)
		b, err := Parse([]byte(head + "inputs:\n- {name: x, type: int64, shape: [-1, 3]}\n- {name: z, type: bool}\noutputs: [{name: y, type: float32}]\n"))
		require.NoError(t, err)
		assert.Equal(t, a, b)
	})
	t.Run("variables are replaced in values", func(t *testing.T) {
		c, err := Parse([]byte(head + ports + "description: ${GPUX_TEST_EMPTY:-none} and ${GPUX_TEST_NEW:-a default}\nserving:\n  host: ${GPUX_TEST_HOST:-::1}\nruntime: {gpu: {memory: 1.5GB}, timeout: 0.25}\n"))
		require.NoError(t, err)
		assert.Equal(t, "none and a default", c.Description)
		assert.Equal(t, "::1", c.Serving.Host)
		assert.Equal(t, Bytes(3<<29), c.Runtime.GPU.Memory)
		assert.Equal(t, Duration(250*time.Millisecond), c.Runtime.Timeout)
	})
	t.Run("preprocessing", func(t *testing.T) {
		c, err := Parse([]byte(head + ports + "preprocessing: {tokenizer: t.json, max_length: 8, normalize: imagenet, custom: {resize: [4, 5], crop: [3, 2]}}\n"))
		require.NoError(t, err)
		assert.Equal(t, []int{4, 5}, c.Preprocessing.Resize)
		assert.Equal(t, []float64{0.229, 0.224, 0.225}, c.Preprocessing.Custom.Std)
		assert.True(t, c.Preprocessing.Images())
		assert.Equal(t, "t.json", c.TokenizerPath())
	})
	t.Run("a variable in a number", func(t *testing.T) {
		c, err := Parse([]byte(head + ports + "serving:\n  port: ${GPUX_TEST_PORT}\n"))
		require.NoError(t, err)
		assert.Equal(t, 9090, c.Serving.Port)
	})
	for name, c := range map[string]struct{ text, err string }{
		"an unknown key":                 {head + ports + "serving:\n  prot: 80\n", "line 6: there is no key serving.prot; did you mean port?"},
		"an unknown key of an input":     {head + "inputs:\n- {name: x, tipe: float32}\noutputs: {y: float32}\n", "line 4: there is no key inputs.tipe; did you mean type?"},
		"a key without a near one":       {head + ports + "letterbox: true\n", "line 5: there is no key letterbox"},
		"a length without a tokenizer":   {head + ports + "preprocessing:\n  max_length: 8\n", "line 6: preprocessing.max_length needs preprocessing.tokenizer"},
		"a length below 1":               {head + ports + "preprocessing: {tokenizer: t, max_length: -1}\n", "preprocessing.max_length must be 1 to 1048576"},
		"one side":                       {head + ports + "preprocessing: {resize: [1]}\n", "line 5: preprocessing.resize must be a width and a height of 1 to 2048"},
		"a huge side":                    {head + ports + "preprocessing: {custom: {crop: [1, 2049]}}\n", "preprocessing.custom.crop must be a width"},
		"a crop of more than the image":  {head + ports + "preprocessing: {resize: [8, 8], custom: {crop: [9, 8]}}\n", "custom.crop is larger"},
		"two sizes":                      {head + ports + "preprocessing: {resize: [8, 8], custom: {resize: [9, 8]}}\n", "custom.resize is preprocessing.resize"},
		"another normalization":          {head + ports + "preprocessing: {normalize: bert}\n", `normalize is "bert" and must be imagenet or custom`},
		"a normalization without values": {head + ports + "preprocessing: {normalize: custom}\n", "needs custom.mean and custom.std"},
		"two normalizations":             {head + ports + "preprocessing: {normalize: imagenet, custom: {mean: [1]}}\n", "contradict"},
		"a deviation of 0":               {head + ports + "preprocessing: {custom: {mean: [0], std: [0]}}\n", "custom.std must be above 0"},
		"another key":                    {head + ports + "runtime:\n  batch_size: 2\n", "line 6: runtime.batch_size is not supported; use serving.batch_size"},
		"a key that is there twice":      {head + ports + "version: '1'\nversion: '2'\n", "line 6"},
		"no name":                        {"model: {source: m.onnx}\n" + ports, "line 1: name is missing"},
		"no source":                      {"name: m\nmodel: {}\n" + ports, "line 2: model.source is missing"},
		"no inputs":                      {head + "outputs: {y: float32}\n", "inputs is missing or empty"},
		"another format":                 {"name: m\nmodel: {source: m.pt, format: pytorch}\n" + ports, `the format "pytorch" is not supported; only onnx is`},
		"a wrong type":                   {head + "inputs: {x: float33}\noutputs: {y: float32}\n", `x of inputs: "float33" is no data type`},
		"an optional input":              {head + "inputs:\n- {name: x, type: float32, required: false}\noutputs: {y: float32}\n", "cannot be optional"},
		"a wrong size":                   {head + ports + "runtime: {gpu: {memory: 2 apples}}\n", `line 5: "2 apples" is no size`},
		"a wrong duration":               {head + ports + "serving: {timeout: -1}\n", `line 5: "-1" is no duration`},
		"a wrong port":                   {head + ports + "serving:\n  port: 70000\n", "line 6: serving.port must be 0 to 65535"},
		"text where a number must be":    {head + ports + "serving: {port: many}\n", "line 5: cannot unmarshal str `many` into int"},
		"a variable that is not set":     {head + ports + "description: ${GPUX_TEST_NEW}\n", "line 5: the environment variable GPUX_TEST_NEW is not set"},
		"no map":                         {"- a\n", "line 1: the file must be a map"},
		"an alias":                       {"name: &n m\nversion: *n\n", "aliases are not supported"},
		"no YAML":                        {"a: [\n", "line 1"},
		"an empty file":                  {"", "the file must be a map"},
		"a name with a slash":            {"name: a/b\nmodel: {source: m.onnx}\n" + ports, "must not have slashes or spaces"},
		"an input that is there twice":   {head + "inputs: [{name: x, type: bool}, {name: x, type: bool}]\noutputs: {y: float32}\n", "inputs has x twice"},
		"inputs that are neither":        {head + "inputs: 3\noutputs: {y: float32}\n", "it must be a list, or a map"},
		"too large a batch":              {head + ports + "serving: {batch_size: 100000}\n", "serving.batch_size must be 1 to 4096"},
		"max_length without a tokenizer": {head + "inputs:\n- {name: x, type: float32, max_length: 3}\noutputs: {y: float32}\n", "use preprocessing.max_length"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(c.text))
			require.ErrorContains(t, err, c.err)
		})
	}
}

func TestAgree(t *testing.T) {
	m, err := onnx.Parse(onnx.Add())
	require.NoError(t, err)
	for name, c := range map[string]struct{ ports, err string }{
		"agrees":               {"inputs: {A: float32, B: {type: float32, shape: [-1]}}\noutputs: {C: float32}\n", ""},
		"a name":               {"inputs: {A: float32, D: float32}\noutputs: {C: float32}\n", `the model has no input "D"; it has A, B`},
		"a type":               {"inputs: {A: int64, B: float32}\noutputs: {C: float32}\n", `the input "A" is declared as int64, and in the model it is float32`},
		"a shape":              {"inputs: {A: {type: float32, shape: [3]}, B: float32}\noutputs: {C: float32}\n", `the input "A" is declared with the shape [3], and in the model it is [2]`},
		"a missing input":      {"inputs: {A: float32}\noutputs: {C: float32}\n", `the input "B" of the model is not declared`},
		"an output's own name": {"inputs: {A: float32, B: float32}\noutputs: {E: float32}\n", `the model has no output "E"; it has C`},
	} {
		t.Run(name, func(t *testing.T) {
			c2, err := Parse([]byte(head + c.ports))
			require.NoError(t, err)
			if err = c2.Agree(m); c.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(head + ports)
	f.Add("inputs: [{name: ${A:-b}}]")
	f.Fuzz(func(_ *testing.T, text string) { _, _ = Parse([]byte(text)) }) // it must return
}
