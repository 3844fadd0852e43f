// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

func zipped(t testing.TB, parts ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, p := range parts { // a member each, as a window that was put together has them
		z := gzip.NewWriter(&b)
		_, err := z.Write([]byte(p))
		require.NoError(t, err)
		require.NoError(t, z.Close())
	}
	return b.Bytes()
}

var limits = Limits{Bytes: 1 << 20, LineBytes: 1 << 10}

func take(t testing.TB, body []byte, encoding string, l Limits, budget *Budget) (*Body, error) {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
	r.Header.Set("Content-Encoding", encoding)
	return Read(r, l, budget)
}

// rest returns the remaining lines; lines above the limit are nil.
func rest(t testing.TB, l *Lines) (list [][]byte, places []Place) {
	t.Helper()
	for {
		line, err := l.Next()
		switch {
		case errors.Is(err, io.EOF):
			return list, places
		case errors.Is(err, ErrLineTooLong):
			line = nil
		default:
			require.NoError(t, err)
			line = append([]byte{}, line...)
		}
		list = append(list, line)
		places = append(places, l.Place())
	}
}

func TestLines_Content(t *testing.T) {
	long := strings.Repeat("x", 3<<10)
	exact := strings.Repeat("y", 1<<10)
	text := "one\n\ntwo\r\n" + long + "\n" + exact + "\nlast"
	want := [][]byte{[]byte("one"), {}, []byte("two"), nil, []byte(exact), []byte("last")}
	for name, body := range map[string]struct {
		b        []byte
		encoding string
	}{
		"plain": {[]byte(text), ""}, "gzip": {zipped(t, text), "gzip"}, "members": {zipped(t, text[:7], text[7:2000], text[2000:]), "GZIP"},
	} {
		t.Run(name, func(t *testing.T) {
			budget := NewBudget(1 << 20)
			b, err := take(t, body.b, body.encoding, limits, budget)
			require.NoError(t, err)
			c, err := b.Check()
			require.NoError(t, err)
			assert.EqualValues(t, len(text), c.Bytes)
			l, err := b.Lines(Place{})
			require.NoError(t, err)
			got, places := rest(t, l)
			assert.Equal(t, want, got)
			assert.Equal(t, Place{Line: 6, Offset: int64(len(text))}, places[5])
			for i, p := range places { // from each place on, the rest comes
				l, err := b.Lines(p)
				require.NoError(t, err)
				more, _ := rest(t, l)
				assert.Len(t, more, len(want)-i-1, "after line %d", i+1)
			}
			b.Close()
			assert.EqualValues(t, 1<<20, budget.Left(), "the budget has everything back")
		})
	}
}

func TestContent_Sum(t *testing.T) {
	budget := NewBudget(1 << 20)
	sum := func(body []byte, encoding string) Sum {
		b, err := take(t, body, encoding, limits, budget)
		require.NoError(t, err)
		defer b.Close()
		c, err := b.Check()
		require.NoError(t, err)
		return c.Sum
	}
	one := sum([]byte("a\nb\n"), "identity")
	assert.Equal(t, one, sum(zipped(t, "a\nb\n"), "gzip"))
	assert.Equal(t, one, sum(zipped(t, "a\n", "b\n"), "gzip"))
	assert.NotEqual(t, one, sum(zipped(t, "a\nb"), "gzip"))
}

func TestContent_Channel(t *testing.T) {
	header := `{"version":1,"type":"job_start","session_id":"s1","x":"` + strings.Repeat("z", 5000) + `"}` + "\n"
	for text, want := range map[string]Content{
		header + `{"type":"kernel_event_batch","session_id":"s1"}`:                                           {Channel: gpuflog.Device, Known: true, Session: "s1"},
		header + `{"type":"new","session_id":"s1"}` + "\n":                                                   {Session: "s1"},
		"\n\nnonsense\n" + `{"type":"scope_begin"}`:                                                          {Channel: gpuflog.Scope, Known: true},
		header + `{"type":"profile_sample_batch","session_id":"s1"}` + "\n" + `{"type":"cubin_disassembly"}`: {Channel: gpuflog.Sass, Known: true, Session: "s1"},
		header + `{"type":"profile_sample_batch"}` + "\n" + `{"type":"shutdown"}`:                            {Channel: gpuflog.Scope, Known: true, Session: "s1"},
		"": {},
	} {
		b, err := take(t, []byte(text), "", limits, NewBudget(1<<20))
		require.NoError(t, err)
		c, err := b.Check()
		require.NoError(t, err)
		want.Bytes, want.Sum = c.Bytes, c.Sum
		for line := range strings.SplitSeq(text, "\n") {
			want.Longest = max(want.Longest, len(line))
		}
		assert.Equal(t, want, c)
		b.Close()
	}
}

func TestHeader_BehindOtherLines(t *testing.T) {
	start := `{"version":1,"type":"job_start","session_id":"s1"}`
	for text, want := range map[string]int64{
		start + "\n": 1, `{"type":"sass_config"}` + "\n" + start + "\n": 2, `{"type":"sass_config"}`: 0,
		strings.Repeat("{}\n", headerWithin) + start: 0,
	} {
		b, err := take(t, zipped(t, text), "gzip", limits, NewBudget(1<<20))
		require.NoError(t, err)
		line, n := b.Header()
		assert.Equal(t, want, n)
		if n > 0 {
			assert.Equal(t, start, string(line))
		}
		b.Close()
	}
}

func TestBudget_SharedByBodies(t *testing.T) {
	budget := NewBudget(1 << 20)
	first, err := take(t, make([]byte, 900<<10), "", limits, budget)
	require.NoError(t, err)
	_, err = take(t, make([]byte, 900<<10), "", limits, budget)
	var refusal *Refusal
	require.ErrorAs(t, err, &refusal)
	assert.Equal(t, http.StatusTooManyRequests, refusal.Status)
	assert.Positive(t, refusal.RetryAfter)
	first.Close()
	first.Close() // twice is once
	assert.EqualValues(t, 1<<20, budget.Left())
	_, err = take(t, make([]byte, 2<<20), "", Limits{Bytes: 4 << 20, LineBytes: 1}, budget)
	require.ErrorAs(t, err, &refusal)
	assert.Equal(t, http.StatusRequestEntityTooLarge, refusal.Status, "it would never fit")
	assert.EqualValues(t, 1<<20, budget.Left())
}

func TestLine_Envelope(t *testing.T) {
	const line = `{"type":"shutdown","session_id":"s1"}`
	for _, c := range []struct {
		name, body, eventType, key string
		channel                    gpuflog.Channel
	}{
		{"as the agent sends it", `{"agentSendingTime":1,"data":"{\"type\":\"shutdown\",\"session_id\":\"s1\"}\n","type":"shutdown","hostname":"h"}`, "shutdown", "device", gpuflog.Device},
		{"not encoded twice", `{"data":{"type":"shutdown","session_id":"s1"}}`, "shutdown", "", gpuflog.Sass},
		{"without an envelope", line, "shutdown", "sass", gpuflog.Sass},
		{"with the channel as the article says", line, "scope", "", gpuflog.Scope},
		{"with an unknown key", line, "device", "elsewhere", gpuflog.Device},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, encoding := range []string{"", "gzip"} {
				body := []byte(c.body)
				if encoding == "gzip" {
					body = zipped(t, c.body)
				}
				b, err := take(t, body, encoding, limits, NewBudget(1<<20))
				require.NoError(t, err)
				_, err = b.Check()
				require.NoError(t, err)
				r, err := b.Line(c.eventType, c.key)
				require.NoError(t, err)
				assert.Equal(t, Record{Line: []byte(line), Session: "s1", Type: "shutdown", Channel: c.channel}, r)
				b.Close()
			}
		})
	}
}

func TestRefusal_RetryAfter(t *testing.T) {
	w := httptest.NewRecorder()
	Unavailable("the disk is full").Write(w)
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Equal(t, "2", w.Header().Get("Retry-After"))
	assert.JSONEq(t, `{"accepted":0,"rejected":0,"errors":[],"window_acknowledged":false,"error":"the disk is full"}`, w.Body.String())
}

// bodyLimit bounds the allocations of FuzzBody. The constant covers the gzip readers, which are
// opened up to five times. The rest covers the copies of the content, including those of the test.
var bodyLimit = alloctest.Limit{PerByte: 64, Constant: 1 << 20}

// FuzzBody checks arbitrary bodies: every error is a refusal, each line is returned once, and the
// budget is released. The allocated memory is bounded by the size of the content.
func FuzzBody(f *testing.F) {
	for _, s := range []string{"", "one\ntwo\r\n", "{\"type\":\"init\"}\n", `{"data":"{\"type\":\"init\",\"session_id\":\"s\"}"}`, strings.Repeat("x", 2000) + "\ny", "\x1f\x8b"} {
		f.Add([]byte(s), false)
		f.Add(zipped(f, s), true)
		f.Add(zipped(f, s, s), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, compressed bool) {
		size := checkBody(t, data, compressed)
		bodyLimit.Check(t, size, func() { checkBody(t, data, compressed) })
	})
}

// checkBody reads data as a body and returns the larger of its sizes before and after decompression.
func checkBody(t *testing.T, data []byte, compressed bool) (size int) {
	t.Helper()
	l := Limits{Bytes: 64 << 10, LineBytes: 512}
	budget := NewBudget(1 << 20)
	encoding := ""
	if compressed {
		encoding = "gzip"
	}
	size = len(data)
	b, err := take(t, data, encoding, l, budget)
	refused := func(err error) bool {
		var r *Refusal
		if err != nil && (!errors.As(err, &r) || r.Status < 400 || r.Status > 499 || r.Reason == "") {
			t.Fatalf("not a refusal: %v", err)
		}
		return err != nil
	}
	if refused(err) {
		if budget.Left() != 1<<20 {
			t.Fatal("a refused body holds a part of the budget")
		}
		return size
	}
	c, err := b.Check()
	if !refused(err) {
		size = max(size, int(c.Bytes))
		if c.Bytes > l.Bytes {
			t.Fatalf("%d bytes are above the limit", c.Bytes)
		}
		lines, err := b.Lines(Place{})
		if err != nil {
			t.Fatal(err)
		}
		got, places := rest(t, lines)
		at := Place{}
		for i, p := range places {
			if p.Line != at.Line+1 || p.Offset <= at.Offset || (got[i] != nil && int64(len(got[i])) > p.Offset-at.Offset) {
				t.Fatalf("line %d ends at %+v, behind %+v", i+1, p, at)
			}
			at = p
		}
		if at.Offset != c.Bytes {
			t.Fatalf("the lines end at %d of %d bytes", at.Offset, c.Bytes)
		}
		if !compressed && !slices.ContainsFunc(got, func(l []byte) bool { return l == nil }) {
			var want []string
			for line := range strings.Lines(string(data)) {
				want = append(want, strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r"))
			}
			if !slices.EqualFunc(got, want, func(g []byte, w string) bool { return string(g) == w }) {
				t.Fatalf("lines %q of %q", got, data)
			}
		}
		if r, err := b.Line("device", ""); !refused(err) && (r.Type == "" || r.Session == "" || bytes.IndexByte(r.Line, '\n') >= 0) {
			t.Fatalf("a line without what it needs: %+v", r)
		}
		b.Header()
	}
	b.Close()
	if budget.Left() != 1<<20 {
		t.Fatal("a closed body holds a part of the budget")
	}
	return size
}
