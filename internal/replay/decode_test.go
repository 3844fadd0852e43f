// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// found is what a reader made of an object.
type found struct {
	items   []int
	rejects []Problem
}

func readObject(t testing.TB, name string, data []byte, lim limits, skip int) found {
	t.Helper()
	var f found
	r := &reader{
		name: name, limits: lim, skip: skip,
		message: func(_ int, m message) error {
			f.items = append(f.items, m.items())
			return nil
		},
		reject: func(_ int, offset int64, err *rejectError) {
			f.rejects = append(f.rejects, Problem{Offset: offset, Reason: err.reason, Detail: err.err.Error()})
		},
	}
	require.NoError(t, r.read(bytes.NewReader(data)))
	return f
}

var usual = limits{DefaultMaxMessage, DefaultMaxObject}

func jsonLine(t testing.TB, first, n int) []byte {
	t.Helper()
	line, err := (&ptrace.JSONMarshaler{}).MarshalTraces(spans(first, n))
	require.NoError(t, err)
	return append(line, '\n')
}

func protoBytes(t testing.TB, first, n int) []byte {
	t.Helper()
	data, err := (&ptrace.ProtoMarshaler{}).MarshalTraces(spans(first, n))
	require.NoError(t, err)
	return data
}

func frame(data []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...)
}

func gzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(data)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Bytes()
}

func zstded(t testing.TB, data []byte) []byte {
	t.Helper()
	e, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	defer e.Close()
	return e.EncodeAll(data, nil)
}

func TestReaderNamesWhatIsBadAndGoesOn(t *testing.T) {
	line := jsonLine(t, 0, 2)
	long := strings.Repeat("x", 5000)
	small := limits{message: 4000, object: 1 << 20}
	proto := protoBytes(t, 0, 3)
	for _, c := range []struct {
		about, name string
		data        []byte
		limits      limits
		items       []int
		rejects     []Problem
	}{
		{"nothing", "x.json", nil, usual, nil, nil},
		{"blank lines", "x.json", []byte("\n \n" + string(line) + "\n"), usual, []int{2}, nil},
		{"empty objects", "x.json", []byte("{}\n{ }\n"), usual, []int{0, 0}, nil},
		{"a bad line between good ones", "x.json", []byte(string(line) + "nonsense\n" + string(line)), usual, []int{2, 2},
			[]Problem{{Offset: int64(len(line)), Reason: ReasonMalformed, Detail: `neither JSON nor protobuf: starts with "nonsense"`}}},
		{"profiles between good lines", "x.json", []byte(string(line) + `{"resourceProfiles":[],"dictionary":{}}` + "\n" + string(line)), usual, []int{2, 2},
			[]Problem{{Offset: int64(len(line)), Reason: ReasonProfiles, Detail: "profiles are not sent again"}}},
		{"another telemetry", "x.json", []byte(`{"resourceEntities":[]}` + "\n"), usual, nil,
			[]Problem{{Reason: ReasonMalformed, Detail: "the first key is not resourceSpans, resourceLogs or resourceMetrics"}}},
		{"two objects in a line", "x.json", []byte(strings.TrimSpace(string(line)) + string(line)), usual, nil,
			[]Problem{{Reason: ReasonMalformed, Detail: "more than one JSON object in a line"}}},
		{"a last line without its end is whole", "x.json", line[:len(line)-1], usual, []int{2}, nil},
		{"a last line that was cut off", "x.json", append(bytes.Clone(line), line[:50]...), usual, []int{2},
			[]Problem{{Offset: int64(len(line)), Reason: ReasonTruncated, Detail: "the last line has no end"}}},
		{"a line that is too long", "x.json", []byte(long + "\n" + string(line)), small, []int{2},
			[]Problem{{Reason: ReasonTooLarge, Detail: "a line of 5001 bytes"}}},
		{"a gzip that was cut off", "x.json.gz", gzipped(t, bytes.Repeat(line, 3))[:60], usual, nil,
			[]Problem{{Reason: ReasonTruncated, Detail: "ends in the middle of a compressed block or message"}}},
		{"not a gzip", "x.json.gz", []byte{0x1f, 0x8b, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}, usual, nil,
			[]Problem{{Reason: ReasonMalformed, Detail: "gzip: invalid header"}}},
		{"a gzip of several members", "x.json.gz", append(gzipped(t, line), gzipped(t, line)...), usual, []int{2, 2}, nil},
		{"an object that is too large", "x.json", bytes.Repeat(line, 30), limits{message: 4000, object: int64(10*len(line) + 5)},
			[]int{2, 2, 2, 2, 2, 2, 2, 2, 2, 2},
			[]Problem{{Offset: int64(10 * len(line)), Reason: ReasonTooLarge, Detail: "more than the limit of an object after decompression"}}},
		{"an object that just fits", "x.json", bytes.Repeat(line, 10), limits{message: 4000, object: int64(10 * len(line))},
			[]int{2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, nil},
		{"protobuf", "x.binpb", proto, usual, []int{3}, nil},
		{"protobuf that is too large", "x.binpb", proto, limits{message: 20, object: 1000}, nil,
			[]Problem{{Reason: ReasonTooLarge, Detail: "a message of more than 20 bytes"}}},
		{"protobuf of which nothing says the signal", "x.binpb", []byte{0x0a, 0}, usual, nil,
			[]Problem{{Reason: ReasonNoSignal, Detail: "neither the content nor the name says whether it is traces, logs or metrics"}}},
		{"protobuf of which the name says it", "logs_1.binpb", []byte{0x0a, 0}, usual, []int{0}, nil},
		{"messages with their length", "x", append(append(frame(proto), frame(line)...), frame(zstded(t, proto))...), usual, []int{3, 2, 3}, nil},
		{"one of them bad", "x", append(append(frame(proto), frame([]byte("nonsense"))...), frame(proto)...), usual, []int{3, 3},
			[]Problem{{Offset: int64(4 + len(proto)), Reason: ReasonMalformed, Detail: `neither JSON nor protobuf: starts with "nonsense"`}}},
		{"one of them too large when decompressed", "x", append(frame(zstded(t, make([]byte, 5000))), frame(proto)...), small, []int{3},
			[]Problem{{Reason: ReasonTooLarge, Detail: "a message of more than 4000 bytes after decompression"}}},
		{"a length that is too large", "x", append(append([]byte{0, 0, 0x20, 0}, make([]byte, 0x2000)...), frame(proto)...), small, []int{3},
			[]Problem{{Reason: ReasonTooLarge, Detail: "a message of 8192 bytes"}}},
		{"the last one cut off", "x", append(frame(proto), frame(proto)[:20]...), usual, []int{3},
			[]Problem{{Offset: int64(4 + len(proto)), Reason: ReasonTruncated, Detail: "ends in the middle of a compressed block or message"}}},
		{"nothing but zeros", "x", make([]byte, 8*maxBadRun), usual, make([]int, maxBadRun),
			[]Problem{{Offset: 4 * maxBadRun, Reason: ReasonMalformed, Detail: "the rest is left out: 10000 bad or empty messages in a row"}}},
		{"the last length cut off", "x", append(frame(proto), 0, 0), usual, []int{3},
			[]Problem{{Offset: int64(4 + len(proto)), Reason: ReasonTruncated, Detail: "ends in the middle of a compressed block or message"}}},
	} {
		f := readObject(t, c.name, c.data, c.limits, 0)
		assert.Equal(t, c.items, f.items, c.about)
		assert.Equal(t, c.rejects, f.rejects, c.about)
	}
}

func TestReaderSkipsWhatWasSent(t *testing.T) {
	proto := protoBytes(t, 0, 3)
	data := append(append(append(frame(proto), frame([]byte("nonsense"))...), frame(protoBytes(t, 0, 4))...), frame(protoBytes(t, 0, 5))...)
	assert.Equal(t, []int{4, 5}, readObject(t, "x", data, usual, 2).items)
	assert.Empty(t, readObject(t, "x", data, usual, 2).rejects)
	assert.Equal(t, []int{5}, readObject(t, "x", data, usual, 3).items)
	lines := append(append(jsonLine(t, 0, 2), "nonsense\n"...), jsonLine(t, 0, 3)...)
	f := readObject(t, "x", lines, usual, 1)
	assert.Equal(t, []int{3}, f.items)
	assert.Len(t, f.rejects, 1)
	assert.Equal(t, found{items: []int{3}}, readObject(t, "x", lines, usual, 2))
	assert.Equal(t, found{}, readObject(t, "x", lines, usual, 3))
}

// zeros is a long line that takes no memory.
type zeros struct{ left int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), z.left)
	for i := range p[:n] {
		p[i] = 'x'
	}
	z.left -= n
	return int(n), nil
}

func TestReaderEndsABombAtItsLimit(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := io.Copy(z, &zeros{512 << 20})
	require.NoError(t, err)
	require.NoError(t, z.Close())
	require.Less(t, b.Len(), 4<<20)
	f := readObject(t, "x.json.gz", b.Bytes(), limits{message: 1 << 20, object: 64 << 20}, 0)
	assert.Empty(t, f.items)
	require.Len(t, f.rejects, 1)
	assert.Equal(t, ReasonTooLarge, f.rejects[0].Reason)
}

func TestReaderTellsTheStorageFromTheContent(t *testing.T) {
	broken := errors.New("connection reset")
	r := &reader{
		name: "x.json.gz", limits: usual, message: func(int, message) error { return nil },
		reject: func(int, int64, *rejectError) {},
	}
	data := gzipped(t, jsonLine(t, 0, 20))
	err := r.read(io.MultiReader(bytes.NewReader(data[:len(data)/2]), failing{broken}))
	require.ErrorIs(t, err, broken)

	stop := errors.New("enough")
	r.message = func(int, message) error { return stop }
	require.ErrorIs(t, r.read(bytes.NewReader(data)), stop)
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// FuzzReader checks that every message is either passed on or rejected, once, whatever the bytes are; and
// that skipping gives the rest of the same.
func FuzzReader(f *testing.F) {
	line := jsonLine(f, 0, 2)
	proto := protoBytes(f, 0, 2)
	f.Add("x.json", line, 0)
	f.Add("x.json", append(append([]byte("nonsense\n"), line...), line[:40]...), 1)
	f.Add("traces_1.binpb", proto, 0)
	f.Add("x", append(frame(proto), frame(zstded(f, line))...), 1)
	f.Add("x.json.gz", gzipped(f, bytes.Repeat(line, 4)), 2)
	f.Add("x.json.zst", zstded(f, bytes.Repeat(line, 4)), 2)
	f.Add("x", []byte{0, 0, 0, 0, 0, 0, 0, 1, '{'}, 0)
	f.Fuzz(func(t *testing.T, name string, data []byte, skip int) {
		skip = min(max(skip, 0), 100)
		type seen struct {
			n, items int
			reason   string
		}
		read := func(skip int) (all []seen) {
			last := skip
			r := &reader{name: name, limits: limits{message: 1 << 14, object: 1 << 14}, skip: skip}
			r.message = func(n int, m message) error {
				if n != last+1 {
					t.Fatalf("message %d after %d", n, last)
				}
				last = n
				all = append(all, seen{n, m.items(), ""})
				return nil
			}
			r.reject = func(n int, offset int64, err *rejectError) {
				if offset < 0 {
					t.Fatalf("offset %d", offset)
				}
				if n != 0 {
					if n != last+1 {
						t.Fatalf("reject %d after %d", n, last)
					}
					last = n
				}
				all = append(all, seen{n, 0, err.reason})
			}
			if err := r.read(bytes.NewReader(data)); err != nil {
				t.Fatal(err)
			}
			return all
		}
		// An object of 16 KiB decompressed is the most that is decoded. Each frame of zstd has a decoder.
		alloctest.Limit{PerByte: 1 << 13, Constant: 1 << 25}.Check(t, len(data), func() { read(0) })
		all, rest := read(0), read(skip)
		var want []seen
		for _, s := range all {
			if s.n == 0 || s.n > skip {
				want = append(want, s)
			}
		}
		if len(want) != len(rest) {
			t.Fatalf("%d of %v are left after %d: %v", len(rest), all, skip, rest)
		}
		for i := range want {
			if want[i] != rest[i] {
				t.Fatalf("%v is %v when %d are skipped", want[i], rest[i], skip)
			}
		}
	})
}
