// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
)

// Why something was not sent again.
const (
	ReasonMalformed  = "malformed"  // no OTLP, or damaged
	ReasonProfiles   = "profiles"   // OTLP profiles as JSON, a signal in development that is not sent again
	ReasonNoSignal   = "no_signal"  // protobuf of which nothing says whether it is traces, logs or metrics
	ReasonTooLarge   = "too_large"  // longer than the limit
	ReasonTruncated  = "truncated"  // ends in the middle, as if its writer had been killed
	ReasonUnreadable = "unreadable" // could not be read from where it lies; a resumed replay tries it again
	ReasonRefused    = "refused"    // the endpoint does not want it
	ReasonChanged    = "changed"    // is another object than the one that was begun; it is sent from its start
	ReasonLogLine    = "log_line"   // a line of a GPU Flight log, or a part of one, that makes no sense
	ReasonLogNote    = "log_note"   // of such a line everything was sent that this version knows
)

const (
	// DefaultMaxMessage is the longest message in bytes, decompressed: eight times what the batch
	// processor's default of 8192 spans takes as JSON.
	DefaultMaxMessage = 64 << 20
	// DefaultMaxObject is the longest object in bytes, decompressed: what nobody archives in one file,
	// and a gzip bomb of 4 MiB.
	DefaultMaxObject = 4 << 30
)

// limits bound what one object may be, in bytes after decompression.
type limits struct {
	message int
	object  int64
}

// message is one request's worth of one signal.
type message struct {
	signal  otlp.Signal
	traces  ptrace.Traces
	logs    plog.Logs
	metrics pmetric.Metrics
	// bytes is how long it was in the archive, decompressed.
	bytes int
}

func (m *message) items() int {
	switch m.signal {
	case otlp.Traces:
		return m.traces.SpanCount()
	case otlp.Logs:
		return m.logs.LogRecordCount()
	}
	return m.metrics.DataPointCount()
}

// merge moves all of another message of the same signal into this one.
func (m *message) merge(o message) {
	m.bytes += o.bytes
	switch m.signal {
	case otlp.Traces:
		o.traces.ResourceSpans().MoveAndAppendTo(m.traces.ResourceSpans())
	case otlp.Logs:
		o.logs.ResourceLogs().MoveAndAppendTo(m.logs.ResourceLogs())
	default:
		o.metrics.ResourceMetrics().MoveAndAppendTo(m.metrics.ResourceMetrics())
	}
}

// rejectError is why a message, or the rest of an object, is left out.
type rejectError struct {
	reason string
	err    error
}

func (e *rejectError) Error() string { return e.reason + ": " + e.err.Error() }
func (e *rejectError) Unwrap() error { return e.err }

func rejectf(reason, format string, args ...any) *rejectError {
	return &rejectError{reason, fmt.Errorf(format, args...)}
}

// reader takes an object apart into messages.
type reader struct {
	name   string
	limits limits
	// skip messages are stepped over without being decoded.
	skip int
	// message gets each message, and its number in the object from 1. Its error ends the reading.
	message func(n int, m message) error
	// reject gets what is left out: where it begins in the decompressed object, and why. n is the
	// number of the message, 0 if it is the rest of the object.
	reject func(n int, offset int64, err *rejectError)

	n      int
	badRun int // bad or empty messages since the last other one
	tagged *tagger
}

// maxBadRun is how many messages in a row may be bad until the rest of an object is given up: it is not
// what it seems to be, and each costs time.
const maxBadRun = 10_000

// errHopeless ends an object.
var errHopeless = rejectf(ReasonMalformed, "the rest is left out: %d bad or empty messages in a row", maxBadRun)

// read reads an object to its end. The error is one of reading in itself, or of message: what is
// wrong with the content is told to reject.
//
// What the content is, its first bytes say: compression by its magic number, '{' a line of JSON, a
// zero byte the length in four bytes that the file exporter puts before each message, and 0x0a the
// only field of OTLP's messages in protobuf, which the awss3 exporter writes one of per object.
func (r *reader) read(in io.Reader) error {
	r.tagged = &tagger{r: in}
	err := r.content(r.tagged)
	var bad *rejectError
	switch {
	case errors.Is(err, errStop):
		return err
	case r.tagged.err != nil:
		return r.tagged.err
	case errors.As(err, &bad):
		r.reject(0, 0, bad)
		return nil
	}
	return err
}

// errStop marks errors of the message function.
var errStop = errors.New("stopped")

// tagger keeps the error of the storage, so that it is not taken for one of the content.
type tagger struct {
	r   io.Reader
	err error
}

func (t *tagger) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		t.err = err
	}
	return n, err
}

func (r *reader) content(raw io.Reader) error {
	in, err := decompress(bufio.NewReaderSize(raw, 64<<10))
	if err != nil {
		return asReject(err)
	}
	if c, ok := in.(io.Closer); ok {
		defer c.Close()
	}
	b := &offsetReader{r: bufio.NewReaderSize(&limited{in, r.limits.object}, 256<<10)}
	first, err := b.r.Peek(1)
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil // a file into which nothing came
		}
		return asReject(err)
	}
	switch kind := kindOf(r.name); {
	case first[0] < '\n' && first[0] != '\t':
		return r.frames(b)
	case first[0] == '\n' && kind != jsonLines:
		return r.whole(b)
	default:
		return r.lines(b)
	}
}

// asReject sorts an error of reading or decompressing.
func asReject(err error) error {
	var bad *rejectError
	switch {
	case errors.As(err, &bad):
		return bad
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return rejectf(ReasonTruncated, "ends in the middle of a compressed block or message")
	case errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrWindowSizeExceeded):
		return rejectf(ReasonTooLarge, "zstd asks for a window of more than %d bytes", maxWindow)
	}
	return &rejectError{ReasonMalformed, err}
}

// maxWindow bounds the memory that zstd may ask for, in bytes: as its own tool does without --long.
const maxWindow = 128 << 20

// decompress undoes compression, which is known by its first bytes.
func decompress(r *bufio.Reader) (io.Reader, error) {
	magic, err := r.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return gzip.NewReader(r)
	case bytes.Equal(magic, zstdMagic):
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return r, nil
}

var zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

// limited reads up to a number of bytes, and then fails where more comes.
type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		var one [1]byte
		n, err := l.r.Read(one[:])
		if n > 0 {
			return 0, rejectf(ReasonTooLarge, "more than the limit of an object after decompression")
		}
		return 0, err
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}

// offsetReader knows where it is.
type offsetReader struct {
	r  *bufio.Reader
	at int64
}

// line returns the next line without its end. The rest of one that is too long is skipped.
func (o *offsetReader) line(limit int) (line []byte, tooLong bool, err error) {
	for {
		part, err := o.r.ReadSlice('\n')
		o.at += int64(len(part))
		if !tooLong {
			if len(line)+len(part) > limit+1 {
				line, tooLong = nil, true
			} else {
				line = append(line, part...)
			}
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimSuffix(line, []byte("\n")), tooLong, err
		}
	}
}

// lines reads a message a line.
func (r *reader) lines(in *offsetReader) error {
	for {
		from := in.at
		line, tooLong, err := in.line(r.limits.message)
		whole := err == nil
		if err != nil && !errors.Is(err, io.EOF) {
			// What was cut off in the middle is no line; those before it were whole.
			bad := asReject(err)
			return r.rest(from, bad)
		}
		if r.badRun >= maxBadRun {
			return r.rest(from, errHopeless)
		}
		if tooLong {
			r.bad(from, rejectf(ReasonTooLarge, "a line of %d bytes", in.at-from))
		} else if line = bytes.TrimSpace(line); len(line) > 0 {
			if err := r.one(line, from, !whole); err != nil {
				return err
			}
		}
		if !whole {
			return nil
		}
	}
}

// frames reads messages with their length in four bytes before each.
func (r *reader) frames(in *offsetReader) error {
	for {
		from := in.at
		if r.badRun >= maxBadRun {
			return r.rest(from, errHopeless)
		}
		var head [4]byte
		if _, err := io.ReadFull(in.r, head[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return r.rest(from, asReject(err))
		}
		in.at += 4
		length := int64(binary.BigEndian.Uint32(head[:]))
		if length > int64(r.limits.message) {
			// A length that is damaged leads nowhere, and one that is not, as far as the next message.
			n, err := io.CopyN(io.Discard, in.r, length)
			in.at += n
			r.bad(from, rejectf(ReasonTooLarge, "a message of %d bytes", length))
			if err != nil {
				return r.rest(from, asReject(err))
			}
			continue
		}
		if r.n < r.skip {
			n, err := io.CopyN(io.Discard, in.r, length)
			in.at += n
			if err != nil {
				return r.rest(from, asReject(err))
			}
			r.n++
			continue
		}
		// As it comes, so that a length alone asks for no memory.
		var frame bytes.Buffer
		n, err := io.CopyN(&frame, in.r, length)
		in.at += n
		if err != nil {
			return r.rest(from, asReject(err))
		}
		if err := r.one(frame.Bytes(), from, false); err != nil {
			return err
		}
	}
}

// whole reads an object that is one message.
func (r *reader) whole(in *offsetReader) error {
	data, err := io.ReadAll(io.LimitReader(in.r, int64(r.limits.message)+1))
	if err != nil {
		return r.rest(0, asReject(err))
	}
	if len(data) > r.limits.message {
		r.bad(0, rejectf(ReasonTooLarge, "a message of more than %d bytes", r.limits.message))
		return nil
	}
	return r.one(data, 0, false)
}

// rest rejects what cannot be reached any more, unless that is for the storage to answer for.
func (r *reader) rest(offset int64, err error) error {
	var bad *rejectError
	if r.tagged.err != nil || !errors.As(err, &bad) {
		return err
	}
	r.reject(0, offset, bad)
	return nil
}

// bad counts a message that is left out.
func (r *reader) bad(offset int64, err *rejectError) {
	r.badRun++
	if r.n++; r.n > r.skip {
		r.reject(r.n, offset, err)
	}
}

// one passes a message on. cut says that it is a last line without its end.
func (r *reader) one(data []byte, offset int64, cut bool) error {
	if r.n < r.skip {
		r.n++
		r.badRun = 0
		return nil
	}
	m, bad := decode(data, r.name, r.limits.message)
	if bad != nil {
		if cut && bad.reason == ReasonMalformed {
			bad = rejectf(ReasonTruncated, "the last line has no end")
		}
		r.bad(offset, bad)
		return nil
	}
	r.n++
	if r.badRun++; m.items() > 0 {
		r.badRun = 0
	}
	if err := r.message(r.n, m); err != nil {
		return fmt.Errorf("%w: %w", errStop, err)
	}
	return nil
}

// decode reads one message: JSON or protobuf, as it is or compressed by zstd, as the file exporter
// does with each by itself.
func decode(data []byte, name string, limit int) (message, *rejectError) {
	if bytes.HasPrefix(data, zstdMagic) {
		plain, err := expand(data, limit)
		if err != nil {
			var bad *rejectError
			errors.As(asReject(err), &bad)
			return message{}, bad
		}
		data = plain
	}
	if len(data) == 0 {
		return message{signal: otlp.Traces, traces: ptrace.NewTraces()}, nil // a message of nothing
	}
	if trimmed := bytes.TrimSpace(data); len(trimmed) > 0 && trimmed[0] == '{' && (data[0] != '\n' || kindOf(name) == jsonLines) {
		return decodeJSON(trimmed)
	}
	if data[0] != '\n' {
		return message{}, rejectf(ReasonMalformed, "neither JSON nor protobuf: starts with %.16q", data)
	}
	return decodeProto(data, name)
}

func expand(data []byte, limit int) ([]byte, error) {
	d, err := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	plain, err := io.ReadAll(io.LimitReader(d, int64(limit)+1))
	if err != nil {
		return nil, err
	}
	if len(plain) > limit {
		return nil, rejectf(ReasonTooLarge, "a message of more than %d bytes after decompression", limit)
	}
	return plain, nil
}

// decodeJSON tells the signal by the first key, which the marshalers of the Collector write first.
func decodeJSON(data []byte) (message, *rejectError) {
	if len(bytes.TrimSpace(data[1:])) == 1 && data[len(data)-1] == '}' {
		return message{signal: otlp.Traces, traces: ptrace.NewTraces()}, nil
	}
	// The decoders stop at the end of the first object and take no notice of what follows.
	if n := endOfObject(data); n < 0 {
		return message{}, rejectf(ReasonMalformed, "JSON that does not end")
	} else if n < len(data) {
		return message{}, rejectf(ReasonMalformed, "more than one JSON object in a line")
	}
	switch firstKey(data) {
	case "resourceSpans":
		return decodeWith(otlp.Traces, data, (&ptrace.JSONUnmarshaler{}).UnmarshalTraces, setTraces)
	case "resourceLogs":
		return decodeWith(otlp.Logs, data, (&plog.JSONUnmarshaler{}).UnmarshalLogs, setLogs)
	case "resourceMetrics":
		return decodeWith(otlp.Metrics, data, (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics, setMetrics)
	case "resourceProfiles":
		return message{}, rejectf(ReasonProfiles, "profiles are not sent again")
	}
	return message{}, rejectf(ReasonMalformed, "the first key is not resourceSpans, resourceLogs or resourceMetrics")
}

// decodeProto tells the signal by what the first item is made of, and where there is none, by the
// object's name.
func decodeProto(data []byte, name string) (message, *rejectError) {
	signal, ok := signalOf(data)
	if !ok {
		if signal, ok = signalNamed(name); !ok {
			return message{}, rejectf(ReasonNoSignal, "neither the content nor the name says whether it is traces, logs or metrics")
		}
	}
	switch signal {
	case otlp.Traces:
		return decodeWith(signal, data, (&ptrace.ProtoUnmarshaler{}).UnmarshalTraces, setTraces)
	case otlp.Logs:
		return decodeWith(signal, data, (&plog.ProtoUnmarshaler{}).UnmarshalLogs, setLogs)
	}
	return decodeWith(signal, data, (&pmetric.ProtoUnmarshaler{}).UnmarshalMetrics, setMetrics)
}

func setTraces(m *message, td ptrace.Traces)    { m.traces = td }
func setLogs(m *message, ld plog.Logs)          { m.logs = ld }
func setMetrics(m *message, md pmetric.Metrics) { m.metrics = md }

// decodeWith decodes. The decoders are not ours, and a bad message must cost nothing but itself.
func decodeWith[T any](signal otlp.Signal, data []byte, unmarshal func([]byte) (T, error), set func(*message, T)) (m message, bad *rejectError) {
	defer func() {
		if p := recover(); p != nil {
			bad = rejectf(ReasonMalformed, "%v", p)
		}
	}()
	v, err := unmarshal(data)
	if err != nil {
		return message{}, rejectf(ReasonMalformed, "%.300s", err.Error())
	}
	m = message{signal: signal, bytes: len(data)}
	set(&m, v)
	return m, nil
}

// endOfObject returns where the JSON object that data starts with ends, -1 if it does not.
func endOfObject(data []byte) int {
	depth := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		}
	}
	return -1
}

// firstKey returns the first key of a JSON object, "" if there is none.
func firstKey(data []byte) string {
	rest := bytes.TrimLeft(data[1:], " \t\r\n")
	if len(rest) == 0 || rest[0] != '"' {
		return ""
	}
	key, _, ok := bytes.Cut(rest[1:], []byte{'"'})
	if !ok {
		return ""
	}
	return string(key[:min(len(key), 64)])
}

// kind is what a name says of the content.
type kind uint8

const (
	unknownKind kind = iota
	jsonLines
	protobuf
)

// kindOf reads the ending of a name, as the exporters give it.
func kindOf(name string) kind {
	switch path.Ext(strings.TrimSuffix(strings.TrimSuffix(name, ".gz"), ".zst")) {
	case ".json", ".jsonl", ".ndjson":
		return jsonLines
	case ".binpb", ".pb", ".proto":
		return protobuf
	}
	return unknownKind
}

// signalNamed reads the signal out of a name as the awss3 exporter makes it: prefix, signal,
// underline, unique key, ending.
func signalNamed(name string) (otlp.Signal, bool) {
	base := strings.TrimSuffix(strings.TrimSuffix(path.Base(name), ".gz"), ".zst")
	base = strings.TrimSuffix(base, path.Ext(base))
	if i := strings.LastIndexByte(base, '_'); i >= 0 {
		base = base[:i]
	}
	for signal := otlp.Traces; signal <= otlp.Metrics; signal++ {
		if strings.HasSuffix(base, signal.String()) {
			return signal, true
		}
	}
	return 0, false
}
