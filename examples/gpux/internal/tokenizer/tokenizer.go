// SPDX-License-Identifier: Apache-2.0

// Package tokenizer turns text into token ids as a tokenizer.json of Hugging Face describes it: with
// WordPiece as BERT does, or with byte-level BPE as GPT-2 and RoBERTa do. The ids are those of the
// Python package tokenizers, version 0.23.3. Parts of a file that are not supported are an error that
// names the key. Characters newer than the Unicode version of Go may give other ids.
//
// A Tokenizer is not changed by its methods, which are safe for concurrent use.
package tokenizer

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Tokenizer encodes text. Parse makes one.
type Tokenizer struct {
	// MaxLength is the largest number of tokens of an encoding, with the special ones; 0 means no limit.
	// It is that of the file, and may be set before the first call of Encode.
	MaxLength int
	// Padding is how encodings of a batch get one length.
	Padding Padding

	added      matcher // added tokens that are searched before the text is normalized
	normalized matcher // and after that
	normalize  func(string) string
	split      func(text string, word func(string))
	model      model
	template   []part
	truncate   bool // on the left
}

// Padding is the tokens that are added to shorter encodings.
type Padding struct {
	// Known says whether the file names a padding token, or has one with a usual name.
	Known bool
	// ID and Type of the token.
	ID, Type int64
	// Left puts the padding before the text.
	Left bool
	// Length is the length of all encodings; 0 means that of the longest.
	Length int
	// Multiple is what the length must be a multiple of, at least 1.
	Multiple int
}

// part is a special token of each encoding, or the place of the text.
type part struct {
	text bool
	id   int64
	kind int64 // the token type
}

// model turns a word into tokens, which it appends.
type model interface {
	tokenize(ids []int64, word string) []int64
}

// Encoding is a text as tokens. IDs and Types have one length.
type Encoding struct {
	IDs, Types []int64
}

// Encode returns the tokens of a text with the special tokens around them. A text that is longer than
// MaxLength loses its end, or its start if the file says so. An error says that the text is not UTF-8.
func (t *Tokenizer) Encode(text string) (e Encoding, err error) {
	if err := valid(text); err != nil {
		return e, err
	}
	room := -1
	if t.MaxLength > 0 {
		room = max(0, t.MaxLength-(len(t.template)-1))
	}
	ids := t.tokens(text, room)
	if room >= 0 && len(ids) > room {
		if t.truncate {
			ids = ids[len(ids)-room:]
		} else {
			ids = ids[:room]
		}
	}
	e.IDs, e.Types = make([]int64, 0, len(ids)+len(t.template)-1), make([]int64, 0, len(ids)+len(t.template)-1)
	for _, p := range t.template {
		if !p.text {
			e.IDs, e.Types = append(e.IDs, p.id), append(e.Types, p.kind)
			continue
		}
		e.IDs = append(e.IDs, ids...)
		for range ids {
			e.Types = append(e.Types, p.kind)
		}
	}
	return e, nil
}

// tokens returns the tokens of the text. It stops early if it has more than room of them, unless room
// is negative or the end is what is kept.
func (t *Tokenizer) tokens(text string, room int) (ids []int64) {
	full := func() bool { return room >= 0 && !t.truncate && len(ids) >= room }
	word := func(w string) {
		if !full() {
			ids = t.model.tokenize(ids, w)
		}
	}
	token := func(id int64) { ids = append(ids, id) }
	t.added.split(text, token, func(segment string) {
		if full() {
			return
		}
		t.normalized.split(t.normalize(segment), token, func(piece string) { t.split(piece, word) })
	})
	return ids
}

// valid says where a text is not UTF-8.
func valid(text string) error {
	if utf8.ValidString(text) {
		return nil
	}
	at := 0
	for at < len(text) {
		r, size := utf8.DecodeRuneInString(text[at:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		at += size
	}
	return fmt.Errorf("the text is not UTF-8 at byte %d", at)
}

// addedToken is an entry of added_tokens.
type addedToken struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// matcher finds added tokens in a text by their first byte, the longest one first.
type matcher [256][]addedToken

func (m *matcher) add(t addedToken) {
	if t.Content == "" {
		return
	}
	list := m[t.Content[0]]
	at := len(list)
	for at > 0 && len(list[at-1].Content) < len(t.Content) {
		at--
	}
	list = append(list, t)
	copy(list[at+1:], list[at:])
	list[at] = t
	m[t.Content[0]] = list
}

// split calls token for each added token and segment for the text between them.
func (m *matcher) split(s string, token func(int64), segment func(string)) {
	start := 0
	for i := 0; i < len(s); {
		found := -1
		for k := range m[s[i]] {
			if strings.HasPrefix(s[i:], m[s[i]][k].Content) {
				found = k
				break
			}
		}
		if found < 0 {
			i++
			continue
		}
		t := m[s[i]][found]
		from, to := i, i+len(t.Content)
		next := to // white space that a token takes can still be in the next token
		if t.LStrip {
			from = start + len(strings.TrimRightFunc(s[start:i], unicode.IsSpace))
		}
		if t.RStrip {
			to = len(s) - len(strings.TrimLeftFunc(s[to:], unicode.IsSpace))
		}
		if start < from {
			segment(s[start:from])
		}
		token(t.ID)
		start, i = to, next
	}
	if start < len(s) {
		segment(s[start:])
	}
}
