// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"container/heap"
	"unicode/utf8"
)

// wordPiece takes the longest piece of the vocabulary again and again. A word with a rest that has no
// piece is unknown as a whole.
type wordPiece struct {
	first, next map[string]int64 // pieces that begin a word, and others, without their prefix
	unknown     int64
	max         int // characters of a word; longer ones are unknown
	longest     int // bytes of a piece
}

func (m *wordPiece) tokenize(ids []int64, word string) []int64 {
	before := len(ids)
	if len(word) > m.max && utf8.RuneCountInString(word) > m.max {
		return append(ids, m.unknown)
	}
	pieces := m.first
	for len(word) > 0 {
		end := min(len(word), m.longest)
		for ; end > 0; end-- {
			if end < len(word) && !utf8.RuneStart(word[end]) {
				continue
			}
			if id, ok := pieces[word[:end]]; ok {
				ids = append(ids, id)
				break
			}
		}
		if end == 0 {
			return append(ids[:before], m.unknown)
		}
		word, pieces = word[end:], m.next
	}
	return ids
}

// bpe merges neighbours, the pair with the lowest rank first, and the leftmost of these.
type bpe struct {
	bytes   [256]int64 // the token of each byte; -1 if there is none
	unknown int64      // the token of other bytes; -1 drops them
	merges  map[[2]int64]merge
}

// merge is the place of a pair in the order of merges, and the token that it becomes.
type merge struct {
	rank int
	id   int64
}

// symbol is a token of a word and its neighbours, -1 at the ends. A merged one has the id gone.
type symbol struct {
	id         int64
	prev, next int
}

const gone = -2

// candidate is a pair that may be merged: the symbol at and the next one.
type candidate struct {
	merge
	at int
}

type queue []candidate

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].rank < q[j].rank || q[i].rank == q[j].rank && q[i].at < q[j].at
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(candidate)) }
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

func (m *bpe) tokenize(ids []int64, word string) []int64 {
	symbols := make([]symbol, 0, len(word))
	for i := range len(word) {
		id := m.bytes[word[i]]
		if id < 0 {
			id = m.unknown
		}
		if id >= 0 {
			symbols = append(symbols, symbol{id, len(symbols) - 1, len(symbols) + 1})
		}
	}
	if len(symbols) == 0 {
		return ids
	}
	symbols[len(symbols)-1].next = -1
	var q queue
	add := func(at int) {
		if at < 0 || symbols[at].next < 0 {
			return
		}
		if g, ok := m.merges[[2]int64{symbols[at].id, symbols[symbols[at].next].id}]; ok {
			heap.Push(&q, candidate{g, at})
		}
	}
	for i := range symbols {
		add(i)
	}
	for len(q) > 0 {
		c := heap.Pop(&q).(candidate)
		s := &symbols[c.at]
		if s.id == gone || s.next < 0 {
			continue
		}
		next := &symbols[s.next]
		if m.merges[[2]int64{s.id, next.id}] != c.merge { // one of the two was merged meanwhile
			continue
		}
		s.id, s.next, next.id = c.id, next.next, gone
		if s.next >= 0 {
			symbols[s.next].prev = c.at
		}
		add(s.prev)
		add(c.at)
	}
	for i := 0; i >= 0; i = symbols[i].next {
		ids = append(ids, symbols[i].id)
	}
	return ids
}

// alphabet maps the characters of a byte-level vocabulary to bytes: those that can be printed stand for
// themselves, and the others have the characters from U+0100 on, in their order.
var alphabet = func() map[rune]byte {
	m, next := map[rune]byte{}, rune(0x100)
	for b := range 256 {
		r := rune(b)
		if !(r >= '!' && r <= '~' || r >= '¡' && r <= '¬' || r >= '®') {
			r = next
			next++
		}
		m[r] = byte(b)
	}
	return m
}()

// toBytes returns the bytes that a token of a byte-level vocabulary stands for.
func toBytes(token string) (string, bool) {
	b := make([]byte, 0, len(token))
	for _, r := range token {
		c, ok := alphabet[r]
		if !ok {
			return "", false
		}
		b = append(b, c)
	}
	return string(b), true
}
