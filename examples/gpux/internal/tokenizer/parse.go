// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// maxFile bounds a tokenizer.json. That of Gemma, one of the largest, has 34 MB.
const maxFile = 128 << 20

// maxID bounds token ids.
const maxID = 1<<31 - 1

// ReadFile reads a tokenizer.json.
func ReadFile(path string) (*Tokenizer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: the file is larger than %d MiB", path, maxFile>>20)
	}
	t, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// Parse reads the text of a tokenizer.json.
func Parse(data []byte) (*Tokenizer, error) {
	var file struct {
		Version       string          `json:"version"`
		Truncation    json.RawMessage `json:"truncation"`
		Padding       json.RawMessage `json:"padding"`
		AddedTokens   []addedToken    `json:"added_tokens"`
		Normalizer    json.RawMessage `json:"normalizer"`
		PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
		PostProcessor json.RawMessage `json:"post_processor"`
		Decoder       json.RawMessage `json:"decoder"` // for the way back
		Model         json.RawMessage `json:"model"`
	}
	if err := strict("", data, &file); err != nil {
		return nil, err
	}
	t := &Tokenizer{}
	vocabulary, err := t.readModel(file.Model)
	if err != nil {
		return nil, err
	}
	if t.normalize, err = normalizer("normalizer", file.Normalizer); err != nil {
		return nil, err
	}
	if err := t.readPreTokenizer(file.PreTokenizer); err != nil {
		return nil, err
	}
	for i, a := range file.AddedTokens {
		path := fmt.Sprintf("added_tokens[%d]", i)
		id, known := vocabulary[a.Content]
		switch {
		case a.SingleWord:
			return nil, fmt.Errorf("%s.single_word is not supported", path)
		case a.ID < 0 || a.ID > maxID:
			return nil, fmt.Errorf("%s.id is %d, which is out of range", path, a.ID)
		case known && id != a.ID:
			return nil, fmt.Errorf("%s.id is %d, and in model.vocab it is %d", path, a.ID, id)
		}
		vocabulary[a.Content] = a.ID
		if a.Normalized {
			a.Content = t.normalize(a.Content)
			t.normalized.add(a)
		} else {
			t.added.add(a)
		}
	}
	if err := t.readTemplate(file.PostProcessor); err != nil {
		return nil, err
	}
	if err := t.readTruncation(file.Truncation); err != nil {
		return nil, err
	}
	return t, t.readPadding(file.Padding, vocabulary)
}

// strict decodes JSON without unknown keys. The errors name the key below path.
func strict(path string, data json.RawMessage, into any) error {
	if path != "" {
		path += ": "
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		if _, more := d.Token(); more != io.EOF {
			err = fmt.Errorf("something follows the JSON object")
		}
	}
	if err == nil {
		return nil
	}
	if key, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return fmt.Errorf("%sthe key %s is not supported", path, key)
	}
	return fmt.Errorf("%sno valid tokenizer.json: %s", path, strings.TrimPrefix(err.Error(), "json: "))
}

// kind returns the type of an object, or "" for null.
func kind(path string, data json.RawMessage) (string, error) {
	if null(data) {
		return "", nil
	}
	var object struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(data, &object); err != nil {
		return "", fmt.Errorf("%s: no valid tokenizer.json: %w", path, err)
	}
	if object.Type == "" {
		return "", fmt.Errorf("%s.type is missing", path)
	}
	return object.Type, nil
}

func null(data json.RawMessage) bool { return len(data) == 0 || string(data) == "null" }

func unsupported(path, kind string, supported ...string) error {
	return fmt.Errorf("%s.type %q is not supported; only %s is", path, kind, strings.Join(supported, ", "))
}

func (t *Tokenizer) readModel(data json.RawMessage) (map[string]int64, error) {
	kind, err := kind("model", data)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "WordPiece":
		return t.readWordPiece(data)
	case "BPE":
		return t.readBPE(data)
	}
	return nil, unsupported("model", kind, "WordPiece", "BPE")
}

func (t *Tokenizer) readWordPiece(data json.RawMessage) (map[string]int64, error) {
	var file struct {
		Type     string           `json:"type"`
		Unknown  string           `json:"unk_token"`
		Prefix   string           `json:"continuing_subword_prefix"`
		MaxChars int              `json:"max_input_chars_per_word"`
		Vocab    map[string]int64 `json:"vocab"`
	}
	if err := strict("model", data, &file); err != nil {
		return nil, err
	}
	unknown, known := file.Vocab[file.Unknown]
	if !known {
		return nil, fmt.Errorf("model.unk_token %q is not in model.vocab", file.Unknown)
	}
	m := &wordPiece{first: map[string]int64{}, next: map[string]int64{}, unknown: unknown, max: file.MaxChars}
	if file.Prefix == "" {
		return nil, fmt.Errorf("model.continuing_subword_prefix is empty, which is not supported")
	}
	for token, id := range file.Vocab {
		if err := inRange(token, id); err != nil {
			return nil, err
		}
		// A piece with the prefix can begin a word that is written with it.
		m.first[token] = id
		m.longest = max(m.longest, len(token))
		if rest, ok := strings.CutPrefix(token, file.Prefix); ok {
			m.next[rest] = id
		}
	}
	t.model = m
	return file.Vocab, nil
}

func inRange(token string, id int64) error {
	if id < 0 || id > maxID {
		return fmt.Errorf("model.vocab has the id %d for %q, which is out of range", id, token)
	}
	return nil
}

func (t *Tokenizer) readBPE(data json.RawMessage) (map[string]int64, error) {
	var file struct {
		Type         string            `json:"type"`
		Dropout      float64           `json:"dropout"`
		Unknown      *string           `json:"unk_token"`
		Prefix       string            `json:"continuing_subword_prefix"`
		Suffix       string            `json:"end_of_word_suffix"`
		FuseUnknown  bool              `json:"fuse_unk"`
		ByteFallback bool              `json:"byte_fallback"`
		IgnoreMerges bool              `json:"ignore_merges"`
		Vocab        map[string]int64  `json:"vocab"`
		Merges       []json.RawMessage `json:"merges"`
	}
	if err := strict("model", data, &file); err != nil {
		return nil, err
	}
	for key, used := range map[string]bool{
		"dropout": file.Dropout != 0, "continuing_subword_prefix": file.Prefix != "", "end_of_word_suffix": file.Suffix != "",
		"fuse_unk": file.FuseUnknown && file.Unknown != nil, "byte_fallback": file.ByteFallback, "ignore_merges": file.IgnoreMerges,
	} {
		if used {
			return nil, fmt.Errorf("model.%s is not supported", key)
		}
	}
	m := &bpe{unknown: -1, merges: make(map[[2]int64]merge, len(file.Merges))}
	if file.Unknown != nil {
		unknown, known := file.Vocab[*file.Unknown]
		if !known {
			return nil, fmt.Errorf("model.unk_token %q is not in model.vocab", *file.Unknown)
		}
		m.unknown = unknown
	}
	for b := range m.bytes {
		m.bytes[b] = -1
	}
	for token, id := range file.Vocab {
		if err := inRange(token, id); err != nil {
			return nil, err
		}
		if b, ok := toBytes(token); ok && len(b) == 1 {
			m.bytes[b[0]] = id
		}
	}
	for rank, raw := range file.Merges {
		pair, err := readMerge(raw)
		if err != nil {
			return nil, fmt.Errorf("model.merges[%d]: %w", rank, err)
		}
		ids := [3]int64{}
		for i, token := range []string{pair[0], pair[1], pair[0] + pair[1]} {
			id, ok := file.Vocab[token]
			if !ok {
				return nil, fmt.Errorf("model.merges[%d]: the token %q is not in model.vocab", rank, token)
			}
			ids[i] = id
		}
		m.merges[[2]int64{ids[0], ids[1]}] = merge{rank, ids[2]}
	}
	t.model = m
	return file.Vocab, nil
}

// readMerge reads ["a", "b"], or the older "a b".
func readMerge(raw json.RawMessage) (pair []string, err error) {
	text := ""
	if bytes.HasPrefix(raw, []byte(`"`)) {
		err = json.Unmarshal(raw, &text)
		pair = strings.Split(text, " ")
	} else {
		err = json.Unmarshal(raw, &pair)
	}
	if err != nil {
		return nil, fmt.Errorf("it is no pair of tokens")
	}
	if len(pair) != 2 {
		return nil, fmt.Errorf("it has %d tokens and must have 2", len(pair))
	}
	return pair, nil
}

// normalizer returns the function that the file describes.
func normalizer(path string, data json.RawMessage) (func(string) string, error) {
	name, err := kind(path, data)
	if err != nil {
		return nil, err
	}
	var plain struct {
		Type string `json:"type"`
	}
	switch name {
	case "":
		return func(s string) string { return s }, nil
	case "Lowercase":
		return lower, strict(path, data, &plain)
	case "NFC":
		return norm.NFC.String, strict(path, data, &plain)
	case "BertNormalizer":
		return bertNormalizer(path, data)
	case "Sequence":
		var file struct {
			Type  string            `json:"type"`
			Items []json.RawMessage `json:"normalizers"`
		}
		if err := strict(path, data, &file); err != nil {
			return nil, err
		}
		var steps []func(string) string
		for i, item := range file.Items {
			step, err := normalizer(fmt.Sprintf("%s.normalizers[%d]", path, i), item)
			if err != nil {
				return nil, err
			}
			steps = append(steps, step)
		}
		return chain(steps), nil
	}
	return nil, unsupported(path, name, "BertNormalizer", "Lowercase", "NFC", "Sequence")
}

func chain(steps []func(string) string) func(string) string {
	return func(s string) string {
		for _, step := range steps {
			s = step(s)
		}
		return s
	}
}

func bertNormalizer(path string, data json.RawMessage) (func(string) string, error) {
	var file struct {
		Type         string `json:"type"`
		CleanText    bool   `json:"clean_text"`
		Chinese      bool   `json:"handle_chinese_chars"`
		StripAccents *bool  `json:"strip_accents"` // null means that of lowercase
		Lowercase    bool   `json:"lowercase"`
	}
	if err := strict(path, data, &file); err != nil {
		return nil, err
	}
	var steps []func(string) string
	if file.CleanText {
		steps = append(steps, clean)
	}
	if file.Chinese {
		steps = append(steps, spaceIdeographs)
	}
	if strip := file.StripAccents; strip != nil && *strip || strip == nil && file.Lowercase {
		steps = append(steps, norm.NFD.String, stripAccents)
	}
	if file.Lowercase {
		steps = append(steps, lower)
	}
	return chain(steps), nil
}

func (t *Tokenizer) readPreTokenizer(data json.RawMessage) error {
	name, err := kind("pre_tokenizer", data)
	if err != nil {
		return err
	}
	_, isBPE := t.model.(*bpe)
	switch {
	case name == "BertPreTokenizer" && !isBPE:
		var file struct {
			Type string `json:"type"`
		}
		t.split = bertWords
		return strict("pre_tokenizer", data, &file)
	case name == "ByteLevel" && isBPE:
		file := struct {
			Type        string `json:"type"`
			PrefixSpace bool   `json:"add_prefix_space"`
			TrimOffsets bool   `json:"trim_offsets"` // has no effect on ids
			UseRegex    bool   `json:"use_regex"`
		}{UseRegex: true}
		if err := strict("pre_tokenizer", data, &file); err != nil {
			return err
		}
		if !file.UseRegex {
			return fmt.Errorf("pre_tokenizer.use_regex false is not supported")
		}
		t.split = func(s string, word func(string)) {
			if file.PrefixSpace && !strings.HasPrefix(s, " ") {
				s = " " + s
			}
			byteWords(s, word)
		}
		return nil
	case isBPE:
		return unsupported("pre_tokenizer", name, "ByteLevel with the model BPE")
	}
	return unsupported("pre_tokenizer", name, "BertPreTokenizer with the model WordPiece")
}

// special is a token and its id, as BertProcessing and RobertaProcessing write it.
type special struct {
	token string
	id    int64
}

func (s *special) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&s.token, &s.id})
}

// readTemplate reads the post-processor.
func (t *Tokenizer) readTemplate(data json.RawMessage) error {
	t.template = []part{{text: true}}
	return t.readProcessor("post_processor", data)
}

func (t *Tokenizer) readProcessor(path string, data json.RawMessage) error {
	name, err := kind(path, data)
	if err != nil {
		return err
	}
	if name != "" && name != "ByteLevel" && name != "Sequence" && len(t.template) > 1 {
		return fmt.Errorf("%s adds special tokens for a second time, which is not supported", path)
	}
	switch name {
	case "", "ByteLevel": // which has no effect on ids
		return nil
	case "Sequence":
		var file struct {
			Type  string            `json:"type"`
			Items []json.RawMessage `json:"processors"`
		}
		if err := strict(path, data, &file); err != nil {
			return err
		}
		for i, item := range file.Items {
			if err := t.readProcessor(fmt.Sprintf("%s.processors[%d]", path, i), item); err != nil {
				return err
			}
		}
		return nil
	case "BertProcessing", "RobertaProcessing":
		var file struct {
			Type        string  `json:"type"`
			Sep         special `json:"sep"`
			Cls         special `json:"cls"`
			TrimOffsets bool    `json:"trim_offsets"`     // these two have no effect on ids
			PrefixSpace bool    `json:"add_prefix_space"` //
		}
		if err := strict(path, data, &file); err != nil {
			return err
		}
		t.template = []part{{id: file.Cls.id}, {text: true}, {id: file.Sep.id}}
		return nil
	case "TemplateProcessing":
		return t.readTemplateProcessing(path, data)
	}
	return unsupported(path, name, "BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing")
}

func (t *Tokenizer) readTemplateProcessing(path string, data json.RawMessage) error {
	type piece struct {
		ID   string `json:"id"`
		Type int64  `json:"type_id"`
	}
	var file struct {
		Type   string `json:"type"`
		Single []struct {
			Special  *piece `json:"SpecialToken"`
			Sequence *piece `json:"Sequence"`
		} `json:"single"`
		Pair    json.RawMessage `json:"pair"` // one text is encoded at a time
		Special map[string]struct {
			ID     string   `json:"id"`
			IDs    []int64  `json:"ids"`
			Tokens []string `json:"tokens"`
		} `json:"special_tokens"`
	}
	if err := strict(path, data, &file); err != nil {
		return err
	}
	texts := 0
	t.template = nil
	for i, item := range file.Single {
		switch {
		case item.Special != nil:
			tokens, ok := file.Special[item.Special.ID]
			if !ok {
				return fmt.Errorf("%s.special_tokens has no %q", path, item.Special.ID)
			}
			for _, id := range tokens.IDs {
				t.template = append(t.template, part{id: id, kind: item.Special.Type})
			}
		case item.Sequence != nil && item.Sequence.ID == "A":
			texts++
			t.template = append(t.template, part{text: true, kind: item.Sequence.Type})
		default:
			return fmt.Errorf("%s.single[%d] is neither a SpecialToken nor the Sequence A", path, i)
		}
	}
	if texts != 1 {
		return fmt.Errorf("%s.single has the text %d times and must have it once", path, texts)
	}
	return nil
}

func (t *Tokenizer) readTruncation(data json.RawMessage) error {
	if null(data) {
		return nil
	}
	var file struct {
		Direction string `json:"direction"`
		MaxLength int    `json:"max_length"`
		Strategy  string `json:"strategy"` // concerns pairs
		Stride    int    `json:"stride"`   // concerns what is cut off
	}
	if err := strict("truncation", data, &file); err != nil {
		return err
	}
	if file.MaxLength < 1 {
		return fmt.Errorf("truncation.max_length must be at least 1")
	}
	left, err := direction("truncation", file.Direction)
	t.MaxLength, t.truncate = file.MaxLength, left
	return err
}

func direction(path, text string) (left bool, err error) {
	if text != "Left" && text != "Right" && text != "" {
		err = fmt.Errorf("%s.direction is %q and must be Left or Right", path, text)
	}
	return text == "Left", err
}

// readPadding reads the padding, or takes a token with a usual name.
func (t *Tokenizer) readPadding(data json.RawMessage, vocabulary map[string]int64) error {
	t.Padding.Multiple = 1
	if null(data) {
		for _, name := range []string{"[PAD]", "<pad>", "<|padding|>"} {
			if id, ok := vocabulary[name]; ok {
				t.Padding.Known, t.Padding.ID = true, id
				break
			}
		}
		return nil
	}
	var file struct {
		Strategy  json.RawMessage `json:"strategy"`
		Direction string          `json:"direction"`
		Multiple  *int            `json:"pad_to_multiple_of"`
		ID        int64           `json:"pad_id"`
		Type      int64           `json:"pad_type_id"`
		Token     string          `json:"pad_token"`
	}
	if err := strict("padding", data, &file); err != nil {
		return err
	}
	var fixed struct {
		Fixed int
	}
	if name := ""; json.Unmarshal(file.Strategy, &name) != nil || name != "BatchLongest" {
		if err := json.Unmarshal(file.Strategy, &fixed); err != nil || fixed.Fixed < 1 {
			return fmt.Errorf("padding.strategy %s is not supported; only BatchLongest and Fixed are", file.Strategy)
		}
	}
	left, err := direction("padding", file.Direction)
	if err != nil {
		return err
	}
	if file.Multiple != nil {
		if t.Padding.Multiple = *file.Multiple; t.Padding.Multiple < 1 || t.Padding.Multiple > 1<<16 {
			return fmt.Errorf("padding.pad_to_multiple_of must be 1 to 65536")
		}
	}
	t.Padding.Known, t.Padding.ID, t.Padding.Type, t.Padding.Left, t.Padding.Length = true, file.ID, file.Type, left, fixed.Fixed
	return nil
}
