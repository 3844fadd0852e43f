// SPDX-License-Identifier: Apache-2.0

package preprocess

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/jpeg"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

// words is a tokenizer.json with the words a, b and c, and what follows.
func words(more string) string {
	return `{"model":{"type":"WordPiece","unk_token":"?","continuing_subword_prefix":"##","max_input_chars_per_word":9,"vocab":{"?":0,"a":11,"b":12,"c":13,"[PAD]":9}},"pre_tokenizer":{"type":"BertPreTokenizer"}` + more + `}`
}

func textConfig(t *testing.T, file string) *config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
	return &config.Config{Path: "gpux.yml", Preprocessing: config.Preprocessing{Tokenizer: path}}
}

// texts runs texts through a preprocessor and returns the numbers of an input.
func texts(p *Preprocessor, name string, list ...string) ([]int64, []int64, error) {
	values := engine.Tensors{TextInput: {DType: tensor.String, Shape: []int64{int64(len(list))}, Strings: list}}
	if err := p.Apply(context.Background(), values); err != nil {
		return nil, nil, err
	}
	t := values[name]
	var numbers []int64
	for i := 0; i < len(t.Data); i += t.DType.Size() {
		if t.DType == tensor.Int32 {
			numbers = append(numbers, int64(int32(binary.LittleEndian.Uint32(t.Data[i:]))))
		} else {
			numbers = append(numbers, int64(binary.LittleEndian.Uint64(t.Data[i:])))
		}
	}
	return t.Shape, numbers, nil
}

func TestTexts(t *testing.T) {
	three := &onnx.Model{Inputs: []onnx.Value{value("input_ids", tensor.Int64, -1, -1), value("attention_mask", tensor.Int32, -1, -1), value("token_type_ids", tensor.Int64, -1, -1)}}
	template := `,"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"?","type_id":1}},{"Sequence":{"id":"A","type_id":2}}],"special_tokens":{"?":{"id":"?","ids":[0],"tokens":["?"]}}}`
	padding := `,"padding":{"strategy":"BatchLongest","direction":"Right","pad_id":7,"pad_type_id":8,"pad_token":"p"}`
	for name, c := range map[string]struct {
		file  string
		model *onnx.Model
		input string
		shape []int64
		want  []int64
	}{
		"ids":                   {words(""), three, "input_ids", []int64{2, 3}, []int64{11, 9, 9, 11, 12, 13}},
		"mask":                  {words(""), three, "attention_mask", []int64{2, 3}, []int64{1, 0, 0, 1, 1, 1}},
		"types":                 {words(template + padding), three, "token_type_ids", []int64{2, 4}, []int64{1, 2, 8, 8, 1, 2, 2, 2}},
		"padding of the file":   {words(padding), three, "input_ids", []int64{2, 3}, []int64{11, 7, 7, 11, 12, 13}},
		"padding on the left":   {words(strings.Replace(padding, "Right", "Left", 1)), three, "input_ids", []int64{2, 3}, []int64{7, 7, 11, 11, 12, 13}},
		"a multiple":            {words(strings.Replace(padding, `"pad_id"`, `"pad_to_multiple_of":2,"pad_id"`, 1)), three, "attention_mask", []int64{2, 4}, []int64{1, 0, 0, 0, 1, 1, 1, 0}},
		"a fixed length":        {words(strings.Replace(padding, `"BatchLongest"`, `{"Fixed":5}`, 1)), three, "attention_mask", []int64{2, 5}, []int64{1, 0, 0, 0, 0, 1, 1, 1, 0, 0}},
		"a length of the model": {words(""), &onnx.Model{Inputs: []onnx.Value{value("input_ids", tensor.Int64, -1, 2)}}, "input_ids", []int64{2, 2}, []int64{11, 9, 11, 12}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := New(textConfig(t, c.file), c.model)
			require.NoError(t, err)
			shape, got, err := texts(p, c.input, "a", "a b c")
			require.NoError(t, err)
			assert.Equal(t, c.shape, shape)
			assert.Equal(t, c.want, got)
		})
	}
	t.Run("the name of a tokenizer instead of its file", func(t *testing.T) {
		_, err := New(&config.Config{Path: "gpux.yml", Preprocessing: config.Preprocessing{Tokenizer: "bert-base-uncased"}}, three)
		require.EqualError(t, err, "gpux.yml: preprocessing.tokenizer: open bert-base-uncased: no such file or directory: name the tokenizer.json of the model")
	})
	t.Run("the limit of gpux.yml", func(t *testing.T) {
		c := textConfig(t, words(""))
		c.Preprocessing.MaxLength = 2
		p, err := New(c, three)
		require.NoError(t, err)
		_, got, err := texts(p, "input_ids", "a b c")
		require.NoError(t, err)
		assert.Equal(t, []int64{11, 12}, got)
	})
	unpadded := strings.Replace(words(""), `,"[PAD]":9`, "", 1)
	t.Run("no padding token", func(t *testing.T) {
		p, err := New(textConfig(t, unpadded), three)
		require.NoError(t, err)
		_, _, err = texts(p, "input_ids", "a", "b")
		require.NoError(t, err)
		_, _, err = texts(p, "input_ids", "a", "a b")
		require.ErrorContains(t, err, "the tokenizer has no padding token: send one at a time")
	})
	t.Run("more than the limit of a request", func(t *testing.T) {
		p, err := New(textConfig(t, words("")), &onnx.Model{Inputs: []onnx.Value{value("input_ids", tensor.Int64, -1, 1<<16)}})
		require.NoError(t, err)
		_, _, err = texts(p, "input_ids", make([]string, 513)...)
		require.ErrorContains(t, err, "513 rows of 65536 elements are more than 33554432")
	})
	t.Run("a request that has ended", func(t *testing.T) {
		p, err := New(textConfig(t, words("")), three)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err = p.Apply(ctx, engine.Tensors{TextInput: {DType: tensor.String, Shape: []int64{1}, Strings: []string{"a"}}})
		require.ErrorIs(t, err, context.Canceled)
	})
	for name, c := range map[string]struct {
		file  string
		model *onnx.Model
		err   string
	}{
		"no tokenizer":            {"{", three, "gpux.yml: preprocessing.tokenizer: "},
		"no input_ids":            {words(""), &onnx.Model{Inputs: []onnx.Value{value("x", tensor.Int64, 1)}}, `the model has no input "input_ids"; its inputs are x`},
		"an input named text":     {words(""), &onnx.Model{Inputs: []onnx.Value{value("text", tensor.String, 1)}}, `the model has an input "text" of its own`},
		"ids of another type":     {words(""), &onnx.Model{Inputs: []onnx.Value{value("input_ids", tensor.Float32, 1, 1)}}, "is float32 and must be int64 or int32"},
		"ids of another rank":     {words(""), &onnx.Model{Inputs: []onnx.Value{value("input_ids", tensor.Int64, 1)}}, "has the shape [1] and must have two dimensions"},
		"a length and no padding": {unpadded, &onnx.Model{Inputs: []onnx.Value{value("input_ids", tensor.Int64, 1, 4)}}, "the model needs 4 tokens, and the file has no padding token"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(textConfig(t, c.file), c.model)
			require.ErrorContains(t, err, c.err)
		})
	}
}

func imageConfig(p config.Preprocessing) *config.Config {
	return &config.Config{Path: "gpux.yml", Preprocessing: p}
}

func TestImage_Inputs(t *testing.T) {
	resize := config.Preprocessing{Resize: []int{2, 2}}
	for name, c := range map[string]struct {
		p     config.Preprocessing
		model *onnx.Model
		err   string
	}{
		"no image":          {resize, imageModel(tensor.Float32, -1, 4, 8, 8), "no input has the shape of an image"},
		"two images":        {resize, &onnx.Model{Inputs: []onnx.Value{value("a", tensor.Float32, 1, 3, 8, 8), value("b", tensor.Float32, 1, 8, 8, 3)}}, `the inputs "a" and "b" can both be an image`},
		"another type":      {resize, imageModel(tensor.Int64, -1, 3, 8, 8), "is int64 and must be float32 or uint8"},
		"bytes with a mean": {config.Preprocessing{Custom: config.Custom{Mean: []float64{1}}}, imageModel(tensor.Uint8, -1, 3, 8, 8), "is uint8, which has no mean and std"},
		"too many means":    {config.Preprocessing{Custom: config.Custom{Mean: []float64{1, 2, 3}}}, imageModel(tensor.Float32, -1, 1, 8, 8), "mean has 3 values, and the image has 1 channels"},
		"no deviations":     {config.Preprocessing{Custom: config.Custom{Std: []float64{}}}, imageModel(tensor.Float32, -1, 3, 8, 8), "std has 0 values"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(imageConfig(c.p), c.model)
			require.ErrorContains(t, err, c.err)
		})
	}
}

func pngOf(t testing.TB, m image.Image) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, png.Encode(&b, m))
	return b.String()
}

func jpegOf(t testing.TB, m image.Image) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, jpeg.Encode(&b, m, nil))
	return b.String()
}

func TestImage(t *testing.T) {
	gray := image.NewGray(image.Rect(0, 0, 3, 1))
	copy(gray.Pix, []byte{0, 100, 255})
	file := pngOf(t, gray)
	apply := func(p config.Preprocessing, model *onnx.Model, files ...string) (*tensor.Tensor, error) {
		prepared, err := New(imageConfig(p), model)
		require.NoError(t, err)
		values := engine.Tensors{"image": {DType: tensor.String, Shape: []int64{int64(len(files))}, Strings: files}}
		err = prepared.Apply(t.Context(), values)
		return values["image"], err
	}
	t.Run("bytes", func(t *testing.T) {
		got, err := apply(config.Preprocessing{Custom: config.Custom{Crop: []int{2, 1}}}, imageModel(tensor.Uint8, -1, -1, -1, 3), file, base64.StdEncoding.EncodeToString([]byte(file)))
		require.NoError(t, err)
		assert.Equal(t, []int64{2, 1, 2, 3}, got.Shape)
		assert.Equal(t, []byte{0, 0, 0, 100, 100, 100, 0, 0, 0, 100, 100, 100}, got.Data)
	})
	t.Run("16 bits", func(t *testing.T) {
		deep := image.NewNRGBA64(image.Rect(0, 0, 1, 1))
		copy(deep.Pix, []byte{1, 255, 2, 0, 3, 0, 0, 1})
		got, err := apply(config.Preprocessing{Custom: config.Custom{Crop: []int{1, 1}}}, imageModel(tensor.Uint8, -1, 3, -1, -1), pngOf(t, deep))
		require.NoError(t, err)
		assert.Equal(t, []byte{1, 2, 3}, got.Data)
	})
	uint8s := imageModel(tensor.Uint8, -1, 1, -1, -1)
	for name, c := range map[string]struct {
		p     config.Preprocessing
		files []string
		err   string
	}{
		"an image that is too small": {config.Preprocessing{Custom: config.Custom{Crop: []int{4, 1}}}, []string{file}, "image 1: it has 3 x 1 pixels, and 4 x 1 are cut from it"},
		"images that differ":         {config.Preprocessing{Custom: config.Custom{Std: nil, Crop: nil, Mean: nil}, Normalize: "custom"}, []string{file, pngOf(t, image.NewGray(image.Rect(0, 0, 2, 1)))}, "the images differ in size, and preprocessing.resize is not set"},
		"no file":                    {config.Preprocessing{Resize: []int{1, 1}}, []string{"aGVsbG8="}, "it is no PNG or JPEG file, nor one in base64"},
		"a file that is damaged":     {config.Preprocessing{Resize: []int{1, 1}}, []string{strings.Replace(file, "IDAT", "IDAT\x00", 1)}, "image 1: zlib: invalid header"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := apply(c.p, uint8s, c.files...)
			require.ErrorContains(t, err, c.err)
		})
	}
	// Only the header says how large these are. Nothing is allocated for them.
	for size, what := range map[[2]uint32]string{{5001, 5000}: "5001 x 5000", {16385, 1}: "16385 x 1", {1 << 30, 1 << 30}: ""} {
		huge := []byte(file)
		binary.BigEndian.PutUint32(huge[16:], size[0])
		binary.BigEndian.PutUint32(huge[20:], size[1])
		binary.BigEndian.PutUint32(huge[29:], crc32.ChecksumIEEE(huge[12:29]))
		_, err := apply(config.Preprocessing{Resize: []int{1, 1}}, uint8s, string(huge))
		require.ErrorContains(t, err, what)
	}
}

func FuzzImage(f *testing.F) {
	for _, c := range readImages(f) {
		data, err := base64.StdEncoding.DecodeString(c.File)
		require.NoError(f, err)
		f.Add(data[:min(len(data), 2000)])
	}
	f.Add([]byte(pngOf(f, image.NewGray(image.Rect(0, 0, 3, 1)))))
	p, err := newPicture(imageConfig(config.Preprocessing{Resize: []int{3, 2}}), imageModel(tensor.Uint8, -1, 3, 2, 3))
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, data []byte) {
		if out, err := p.tensor(t.Context(), []string{string(data)}); err == nil {
			assert.Len(t, out.Data, 18)
		}
	})
}

// BenchmarkImage scales a JPEG of 1,024 x 768 pixels as models of ImageNet need it.
func BenchmarkImage(b *testing.B) {
	m := image.NewYCbCr(image.Rect(0, 0, 1024, 768), image.YCbCrSubsampleRatio420)
	for i := range m.Y {
		m.Y[i] = uint8(i * 7 / 1024)
	}
	file := jpegOf(b, m)
	p, err := newPicture(imageConfig(config.Preprocessing{Resize: []int{256, 256}, Custom: config.Custom{Crop: []int{224, 224}, Mean: []float64{.5}, Std: []float64{.5}}}), imageModel(tensor.Float32, -1, 3, 224, 224))
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.tensor(b.Context(), []string{file}); err != nil {
			b.Fatal(err)
		}
	}
}
