// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/rangetable"
)

// read returns the content of a file of testdata.
func read(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".json.gz"))
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	data, err := io.ReadAll(z)
	require.NoError(t, err)
	return data
}

// golden is what golden.py wrote.
type golden struct {
	Strings    []string             `json:"strings"`
	IDs        map[string][][]int64 `json:"ids"`
	Characters [][2]any             `json:"characters"`
}

func readGolden(t testing.TB) (g golden) {
	t.Helper()
	require.NoError(t, json.Unmarshal(read(t, "golden"), &g))
	require.Len(t, g.Strings, 1000)
	return g
}

// The ids are those of the package tokenizers.
func TestEncode_Golden(t *testing.T) {
	g := readGolden(t)
	require.Len(t, g.IDs, 5)
	for name, want := range g.IDs {
		t.Run(name, func(t *testing.T) {
			tokenizer, err := Parse(read(t, name))
			require.NoError(t, err)
			for i, s := range g.Strings {
				e, err := tokenizer.Encode(s)
				require.NoError(t, err)
				assert.Equal(t, want[i], e.IDs, "%q", s)
				assert.Len(t, e.Types, len(e.IDs))
			}
		})
	}
}

// Each character that Unicode 13 assigns is in the class that the package tokenizers puts it in.
func TestCharacters_Golden(t *testing.T) {
	assigned := rangetable.Assigned("13.0.0")
	at, checked := rune(0), 0
	for _, run := range readGolden(t).Characters {
		last, want := rune(run[0].(float64)), run[1].(string)
		for ; at <= last; at++ {
			if unicode.Is(assigned, at) && !unicode.Is(unicode.Cs, at) {
				checked++
				require.Equal(t, want, classes(at), "%U", at)
			}
		}
	}
	assert.Greater(t, checked, 280_000)
}

// classes is the class of a character as golden.py writes it.
func classes(r rune) string {
	s, b := string(r), []byte("====o")
	switch clean(s) {
	case "":
		b[0] = 'r'
	case " ":
		if r != ' ' {
			b[0] = 's'
		}
	}
	if ideograph(r) {
		b[1] = 'c'
	}
	if accent(r) {
		b[2] = 'r'
	}
	words := 0
	bertWords("a"+s+"a", func(string) { words++ })
	b[3] = "=sp"[words-1]
	kind, _ := class(s)
	b[4] = "slno"[kind]
	return string(b)
}

func TestEncode(t *testing.T) {
	uncased, err := Parse(read(t, "uncased"))
	require.NoError(t, err)
	gpt2, err := Parse(read(t, "gpt2"))
	require.NoError(t, err)
	t.Run("a long text loses its end", func(t *testing.T) {
		require.Equal(t, 256, uncased.MaxLength)
		e, err := uncased.Encode(strings.Repeat("a ", 1000))
		require.NoError(t, err)
		require.Len(t, e.IDs, 256)
		assert.Equal(t, []int64{2, 3}, []int64{e.IDs[0], e.IDs[255]}, "the special tokens stay")
	})
	t.Run("or its start", func(t *testing.T) {
		text := strings.Replace(string(read(t, "uncased")), `"direction": "Right", "max_length": 256`, `"direction": "Left", "max_length": 4`, 1)
		left, err := Parse([]byte(text))
		require.NoError(t, err)
		all, err := uncased.Encode("a b c d")
		require.NoError(t, err)
		e, err := left.Encode("a b c d")
		require.NoError(t, err)
		assert.Equal(t, []int64{2, all.IDs[3], all.IDs[4], 3}, e.IDs)
	})
	t.Run("a limit below the special tokens", func(t *testing.T) {
		small := *uncased
		small.MaxLength = 1
		e, err := small.Encode("a")
		require.NoError(t, err)
		assert.Equal(t, []int64{2, 3}, e.IDs)
	})
	t.Run("the padding of the file, and a token with a usual name", func(t *testing.T) {
		assert.Equal(t, Padding{Known: true, Multiple: 1}, uncased.Padding)
		roberta, err := Parse(read(t, "roberta"))
		require.NoError(t, err)
		assert.Equal(t, Padding{Known: true, ID: 1, Multiple: 1}, roberta.Padding)
		assert.Equal(t, Padding{Multiple: 1}, gpt2.Padding)
	})
	for text, at := range map[string]string{"abc\xff": "3", "\xe2\x82": "0", "é\xed\xa0\x80": "2", "\xf4\x90\x80\x80": "0"} {
		_, err := uncased.Encode(text)
		assert.EqualError(t, err, "the text is not UTF-8 at byte "+at)
	}
	t.Run("a word of a million bytes takes no quadratic time", func(t *testing.T) {
		e, err := gpt2.Encode(strings.Repeat("ab", 500_000))
		require.NoError(t, err)
		assert.Greater(t, len(e.IDs), 1000)
	})
}

func TestParse_Unsupported(t *testing.T) {
	uncased, gpt2, roberta := string(read(t, "uncased")), string(read(t, "gpt2")), string(read(t, "roberta"))
	for name, c := range map[string]struct{ text, old, new, err string }{
		"no JSON":                   {"{", "", "", "no valid tokenizer.json"},
		"an empty file":             {"", "", "", "no valid tokenizer.json"},
		"two objects":               {"{}{}", "", "", "something follows the JSON object"},
		"no model":                  {"{}", "", "", `model.type "" is not supported`},
		"another model":             {uncased, `"type": "WordPiece", "unk`, `"type": "Unigram", "unk`, `model.type "Unigram" is not supported; only WordPiece, BPE is`},
		"a new key":                 {uncased, `"version": "1.0"`, `"version": "1.0", "extra": 1`, `the key "extra" is not supported`},
		"a new key of a part":       {uncased, `"clean_text": true`, `"clean_text": true, "more": 1`, `normalizer: the key "more" is not supported`},
		"another normalizer":        {uncased, `"BertNormalizer"`, `"Precompiled"`, `normalizer.type "Precompiled" is not supported`},
		"one within a sequence":     {string(read(t, "sequence")), `"NFC"`, `"Nmt"`, `normalizer.normalizers[0].type "Nmt" is not supported`},
		"another pre-tokenizer":     {uncased, `"BertPreTokenizer"`, `"Metaspace"`, `pre_tokenizer.type "Metaspace" is not supported; only BertPreTokenizer with the model WordPiece is`},
		"one of the other model":    {gpt2, `"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true`, `"type": "BertPreTokenizer"`, "only ByteLevel with the model BPE is"},
		"no pattern":                {gpt2, `"use_regex": true`, `"use_regex": false`, "pre_tokenizer.use_regex false is not supported"},
		"another post-processor":    {uncased, `"TemplateProcessing"`, `"Other"`, `post_processor.type "Other" is not supported`},
		"a template without text":   {uncased, `{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}], "pair"`, `{"SpecialToken": {"id": "[SEP]", "type_id": 0}}], "pair"`, "single has the text 0 times"},
		"a template of two texts":   {uncased, `{"Sequence": {"id": "A", "type_id": 0}}`, `{"Sequence": {"id": "B", "type_id": 0}}`, "post_processor.single[1] is neither"},
		"an unknown special token":  {uncased, `{"SpecialToken": {"id": "[CLS]", "type_id": 0}}`, `{"SpecialToken": {"id": "[X]", "type_id": 0}}`, `post_processor.special_tokens has no "[X]"`},
		"dropout":                   {gpt2, `"dropout": null`, `"dropout": 0.1`, "model.dropout is not supported"},
		"byte fallback":             {gpt2, `"byte_fallback": false`, `"byte_fallback": true`, "model.byte_fallback is not supported"},
		"ignored merges":            {gpt2, `"ignore_merges": false`, `"ignore_merges": true`, "model.ignore_merges is not supported"},
		"a suffix":                  {gpt2, `"end_of_word_suffix": null`, `"end_of_word_suffix": "</w>"`, "model.end_of_word_suffix is not supported"},
		"a token that is missing":   {gpt2, `"merges": [`, `"merges": [["q", "zzz"],`, `model.merges[0]: the token "zzz" is not in model.vocab`},
		"a merge of three":          {gpt2, `"merges": [`, `"merges": ["a b c",`, "model.merges[0]: it has 3 tokens"},
		"no unknown token":          {uncased, `"unk_token": "[UNK]"`, `"unk_token": "?!"`, `model.unk_token "?!" is not in model.vocab`},
		"a negative id":             {uncased, `"[UNK]": 1`, `"[UNK]": -1`, "out of range"},
		"whole words":               {roberta, `"single_word": false`, `"single_word": true`, "added_tokens[0].single_word is not supported"},
		"two ids of a token":        {roberta, `"id": 0, "content": "<s>"`, `"id": 7, "content": "<s>"`, "added_tokens[0].id is 7, and in model.vocab it is 0"},
		"another padding":           {uncased, `"strategy": "BatchLongest"`, `"strategy": "None"`, `padding.strategy "None" is not supported`},
		"another direction":         {uncased, `"direction": "Right", "max_length"`, `"direction": "Up", "max_length"`, "truncation.direction is \"Up\""},
		"truncation to nothing":     {uncased, `"max_length": 256`, `"max_length": 0`, "truncation.max_length must be at least 1"},
		"special tokens twice over": {uncased, `"post_processor": {`, `"post_processor": {"type": "Sequence", "processors": [{"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}, {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}]}, "decoder": {`, "post_processor.processors[1] adds special tokens for a second time"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, c.text, c.old)
			_, err := Parse([]byte(strings.Replace(c.text, c.old, c.new, 1)))
			require.ErrorContains(t, err, c.err)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
	t.Run("no file", func(t *testing.T) {
		_, err := ReadFile(filepath.Join(t.TempDir(), "tokenizer.json"))
		require.ErrorIs(t, err, os.ErrNotExist)
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"model":{"type":"WordPiece","unk_token":"a","continuing_subword_prefix":"##","max_input_chars_per_word":9,"vocab":{"a":0,"##b":1}},"pre_tokenizer":{"type":"BertPreTokenizer"},"normalizer":{"type":"BertNormalizer","clean_text":true},"added_tokens":[{"id":2,"content":"<m>","lstrip":true,"rstrip":true,"normalized":true}],"post_processor":{"type":"BertProcessing","sep":["a",0],"cls":["a",0]}}`), "ab <m> ")
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"pre_tokenizer":{"type":"ByteLevel"}}`), "aa")
	f.Fuzz(func(t *testing.T, file []byte, text string) {
		tokenizer, err := Parse(file)
		if err != nil {
			return
		}
		e, err := tokenizer.Encode(text)
		assert.Equal(t, utf8.ValidString(text), err == nil)
		assert.Len(t, e.Types, len(e.IDs))
	})
}

// The words of a byte-level pre-tokenizer are the text, and those of BERT are the text without white
// space.
func FuzzWords(f *testing.F) {
	f.Add("I'm  a\u00a0test \n")
	f.Fuzz(func(t *testing.T, text string) {
		if text = strings.ToValidUTF8(text, ""); text == "" {
			return
		}
		all := ""
		byteWords(text, func(w string) { require.NotEmpty(t, w); all += w })
		assert.Equal(t, text, all)
		all = ""
		bertWords(text, func(w string) { require.NotEmpty(t, w); all += w })
		assert.Equal(t, strings.Join(strings.FieldsFunc(text, unicode.IsSpace), ""), all)
	})
}

// BenchmarkEncode encodes the 1,000 strings of the golden data in each iteration.
func BenchmarkEncode(b *testing.B) {
	g := readGolden(b)
	for _, name := range []string{"uncased", "gpt2"} {
		b.Run(name, func(b *testing.B) {
			tokenizer, err := Parse(read(b, name))
			require.NoError(b, err)
			size := int64(0)
			for _, s := range g.Strings {
				size += int64(len(s))
			}
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				for i, s := range g.Strings {
					if e, err := tokenizer.Encode(s); err != nil || len(e.IDs) != len(g.IDs[name][i]) {
						b.Fatal(i, err)
					}
				}
			}
		})
	}
}
