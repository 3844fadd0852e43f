// SPDX-License-Identifier: Apache-2.0

package gpuevent

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
	"github.com/gpuflight/gpuflight/semconv"
)

func TestSplitText(t *testing.T) {
	for _, tt := range []struct {
		text  string
		limit int
		want  []string
	}{
		{"", 8, nil},
		{"short", 8, []string{"short"}},
		{"a\nb\nc\n", 4, []string{"a\nb\n", "c\n"}},
		{"a\nb\nc", 4, []string{"a\nb\n", "c"}},
		{"\n\n\n\n\n", 4, []string{"\n\n\n\n", "\n"}},
		{"12345678901\nx", 5, []string{"12345", "67890", "1\nx"}},
		{"ééééé", 5, []string{"éé", "éé", "é"}},
		{"𝔸𝔸", 1, []string{"𝔸", "𝔸"}},
		{"\x80\x80\x80\x80\x80\x80", 4, []string{"\x80\x80\x80\x80", "\x80\x80"}},
	} {
		assert.Equal(t, tt.want, SplitText(tt.text, tt.limit), "%q", tt.text)
	}
}

func FuzzSplitText(f *testing.F) {
	f.Add("a\nb\n", 4)
	f.Add("é", 1)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		// A string for each byte, in a slice that grows.
		alloctest.Limit{PerByte: 1 << 7, Constant: 1 << 12}.Check(t, len(text), func() { SplitText(text, limit) })
		pieces := SplitText(text, limit)
		if strings.Join(pieces, "") != text {
			t.Fatal("the pieces are not the text")
		}
		for _, p := range pieces {
			if p == "" || len(p) > max(limit, utf8.UTFMax) {
				t.Fatalf("a piece of %d bytes with limit %d", len(p), limit)
			}
			if utf8.ValidString(text) && !utf8.ValidString(p) {
				t.Fatalf("%q is cut within a character", p)
			}
		}
	})
}

func TestLongTextsComeInPieces(t *testing.T) {
	line := strings.Repeat("x", 99) + "\n"
	text := strings.Repeat(line, 2000)
	b := NewBatch(everySignal)
	b.Text(oneDevice(), &Record{
		Ref: ref(1), UID: KeyOf("s").UID(1, 0), TimeNs: t0, Event: semconv.EventCUDASASSListing, Body: "not used",
		Attrs: []Attr{Str(semconv.CUDAListingKind, semconv.CUDAListingKindSASS)},
	}, text)
	require.Equal(t, 4, b.LogRecords())
	_, logs, _ := b.Take()
	var got strings.Builder
	next := int64(1)
	uids := map[string]bool{}
	for i, lr := range logs.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().All() {
		assert.LessOrEqual(t, len(lr.Body().Str()), MaxTextBytes)
		assert.Equal(t, map[string]any{
			"cuda.listing.kind": "sass", "cuda.text.chunk.index": int64(i), "cuda.text.chunk.count": int64(4), "cuda.text.chunk.first_line": next,
			"log.record.uid": KeyOf("s").UID(1, 0).piece(uint64(i) + 1).String(),
		}, lr.Attributes().AsRaw())
		next += int64(strings.Count(lr.Body().Str(), "\n"))
		got.WriteString(lr.Body().Str())
		uid, _ := lr.Attributes().Get(semconv.LogRecordUID)
		uids[uid.Str()] = true
	}
	assert.Len(t, uids, 4)
	assert.Equal(t, text, got.String())
}

func TestGraphNodeType(t *testing.T) {
	for n, want := range map[int64]string{0: "kernel", 2: "memset", 13: "conditional", 14: "14", -1: "-1"} {
		assert.Equal(t, want, GraphNodeType(n))
	}
}
