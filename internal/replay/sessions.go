// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
)

// groupName is what a group of logs is called in messages and in the journal.
func groupName(g gpuflog.FileGroup) string {
	if g.Base == "" {
		return g.Dir + "/"
	}
	return g.Dir + "/" + g.Base + ".*.log"
}

// logFile is one file of a channel.
type logFile struct {
	gpuflog.FileName
	object Object
}

func fileName(f logFile) gpuflog.FileName { return f.FileName }

// asLog takes an object's name apart; false if it is not of a log.
func asLog(o Object) (logFile, bool) {
	n, ok := gpuflog.ParseFileName(strings.ReplaceAll(o.Name, `\`, "/"))
	return logFile{n, o}, ok
}

const (
	// chunkBytes are decoded before what came of them is sent. It is part of what the positions in a
	// journal mean: another size makes other messages.
	chunkBytes = 1 << 20
	// afterEnd is how long after the end of all files they are said to be silent: nothing is waited
	// for any more.
	afterEnd = 24 * time.Hour
)

// logReader reads one group of logs and makes messages of it. The same files give the same messages,
// in the same order, each time.
type logReader struct {
	source  Source
	limits  limits
	now     int64 // Unix nanoseconds; the same each time
	skip    int
	message func(n int, m message) error
	reject  func(object string, offset int64, err *rejectError)
	// bytes is told of what was read, as it lies in the archive.
	bytes func(int)

	n    int
	told [gpuflog.NumReasons]uint64
}

func (r *logReader) read(ctx context.Context, files []logFile) error {
	group := groupName(files[0].Group)
	windows := gpuflog.Windowed(files, fileName)
	var streams [gpuflog.NumChannels]*lineStream
	for channel := range streams {
		streams[channel] = &lineStream{reader: r, files: gpuflog.Ordered(files, fileName, gpuflog.Channel(channel), windows)}
		defer streams[channel].close()
	}
	dec := gpuflog.NewDecoder(gpuflog.Options{KernelNameInPath: !windows})
	batch := gpuevent.NewBatch(gpuevent.Signals{Traces: true, Logs: true, Metrics: true})
	var ended [gpuflog.NumChannels]bool
	step := func(channel gpuflog.Channel) error {
		chunk, offset, err := streams[channel].next(ctx)
		if err != nil {
			return err
		}
		ended[channel] = chunk == nil
		dec.Feed(channel, chunk, offset, r.now, batch)
		dec.EndStep(gpuflog.Step{Now: r.now, AtEnd: ended}, batch)
		r.problems(cmp.Or(streams[channel].current.Name, group), dec)
		return r.take(batch)
	}
	for ended != [gpuflog.NumChannels]bool{true, true, true, true} {
		for _, channel := range []gpuflog.Channel{gpuflog.System, gpuflog.Sass} {
			if !ended[channel] {
				if err := step(channel); err != nil {
					return err
				}
			}
		}
		channel := dec.Want()
		if ended[channel] {
			channel = gpuflog.Device + gpuflog.Scope - channel
		}
		if !ended[channel] {
			if err := step(channel); err != nil {
				return err
			}
		}
	}
	// A silence after another: what waits for records that never came is released in turn.
	for i := range 4 {
		dec.EndStep(gpuflog.Step{Now: r.now + int64(i+1)*int64(afterEnd), AtEnd: ended, Quiet: afterEnd, Gone: true}, batch)
		if err := r.take(batch); err != nil {
			return err
		}
	}
	r.problems(group, dec)
	return nil
}

// notes are the reasons of the decoder for which nothing is left out but what its writer was ahead of
// us with.
var notes = [gpuflog.NumReasons]bool{
	gpuflog.UnknownType: true, gpuflog.UnknownID: true, gpuflog.InvalidUTF8: true, gpuflog.ValueOutOfRange: true,
}

// problems tells what the decoder rejected since the last call: the first ones with their words, the
// rest by reason.
func (r *logReader) problems(object string, dec *gpuflog.Decoder) {
	all := dec.Stats().Rejects
	if all == r.told {
		return
	}
	left := all
	for reason := range left {
		left[reason] -= r.told[reason]
	}
	r.told = all
	problems := dec.TakeProblems()
	if r.n < r.skip {
		return // told when these messages were sent
	}
	tell := func(reason gpuflog.Reason, offset int64, detail string) {
		why := ReasonLogLine
		if notes[reason] {
			why = ReasonLogNote
		}
		if detail != "" {
			detail = ": " + detail
		}
		r.reject(object, offset, rejectf(why, "%s%s", reason, detail))
	}
	for _, p := range problems {
		if left[p.Reason] > 0 {
			left[p.Reason]--
			tell(p.Reason, p.Offset, p.Detail)
		}
	}
	for reason, n := range left {
		for range n {
			tell(gpuflog.Reason(reason), 0, "")
		}
	}
}

// take passes on what came of a step.
func (r *logReader) take(b *gpuevent.Batch) error {
	if b.Spans()+b.LogRecords()+b.Points() == 0 {
		return nil
	}
	td, ld, md := b.Take()
	for _, m := range []message{
		{signal: otlp.Traces, traces: td}, {signal: otlp.Logs, logs: ld}, {signal: otlp.Metrics, metrics: md},
	} {
		if m.items() == 0 {
			continue
		}
		if r.n++; r.n <= r.skip {
			continue
		}
		if err := r.message(r.n, m); err != nil {
			return fmt.Errorf("%w: %w", errStop, err)
		}
	}
	return nil
}

// lineStream reads a channel's files, one after the other, in chunks of whole lines.
type lineStream struct {
	reader  *logReader
	files   []logFile
	current Object
	file    io.ReadCloser
	tagged  *tagger
	in      *bufio.Reader
	at      int64
}

func (l *lineStream) close() {
	if l.file != nil {
		_ = l.file.Close() // it was only read
		l.file = nil
	}
}

// next returns some lines and where they begin in their file, nil after the last. The chunks are the
// same however the bytes come.
func (l *lineStream) next(ctx context.Context) (chunk []byte, offset int64, err error) {
	for {
		if l.file == nil {
			if len(l.files) == 0 {
				return nil, 0, nil
			}
			next := l.files[0].object
			l.files = l.files[1:]
			if err := l.open(ctx, next); err != nil {
				return nil, 0, err
			}
			if l.file == nil {
				continue
			}
		}
		chunk, err = make([]byte, 0, chunkBytes), nil
		offset = l.at
		for len(chunk) < cap(chunk) && err == nil {
			var n int
			n, err = l.in.Read(chunk[len(chunk):cap(chunk)])
			chunk = chunk[:len(chunk)+n]
		}
		if err == nil && chunk[len(chunk)-1] != '\n' {
			chunk, err = l.restOfLine(chunk)
		}
		if err != nil {
			if l.tagged.err != nil {
				return nil, 0, l.tagged.err
			}
			cut := !errors.Is(err, io.EOF)
			if cut {
				var bad *rejectError
				errors.As(asReject(err), &bad)
				l.reader.reject(l.current.Name, l.at, bad)
			}
			// What a killed writer left of its last line is no record.
			if i := bytes.LastIndexByte(chunk, '\n'); !gpuflog.Whole(chunk[i+1:]) {
				if !cut && len(bytes.TrimSpace(chunk[i+1:])) > 0 {
					l.reader.reject(l.current.Name, l.at+int64(i)+1, rejectf(ReasonTruncated, "the last line has no end"))
				}
				chunk = chunk[:i+1]
			}
			l.close()
		}
		l.at += int64(len(chunk))
		if len(chunk) > 0 {
			return chunk, offset, nil
		}
	}
}

// restOfLine reads on to the end of the line in which a chunk ends. One that is too long is left out.
func (l *lineStream) restOfLine(chunk []byte) ([]byte, error) {
	begin := bytes.LastIndexByte(chunk, '\n') + 1
	tooLong := false
	for {
		part, err := l.in.ReadSlice('\n')
		if tooLong {
			l.at += int64(len(part))
		} else if len(chunk)-begin+len(part) > l.reader.limits.message {
			l.reader.reject(l.current.Name, l.at+int64(begin), rejectf(ReasonTooLarge, "a line of more than %d bytes", l.reader.limits.message))
			l.at += int64(len(chunk) - begin + len(part))
			chunk, tooLong = chunk[:begin], true
		} else {
			chunk = append(chunk, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return chunk, err
		}
	}
}

func (l *lineStream) open(ctx context.Context, o Object) error {
	f, err := l.reader.source.Open(ctx, o)
	if err != nil {
		return fmt.Errorf("%s: %w", o.Name, err)
	}
	l.current, l.at = o, 0
	l.tagged = &tagger{r: &counter{f, ctx, l.reader.bytes}}
	raw := bufio.NewReaderSize(l.tagged, 64<<10)
	var plain io.Reader = raw
	if magic, _ := raw.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(raw)
		if err != nil {
			_ = f.Close()
			if l.tagged.err != nil {
				return fmt.Errorf("%s: %w", o.Name, l.tagged.err)
			}
			var bad *rejectError
			errors.As(asReject(err), &bad)
			l.reader.reject(o.Name, 0, bad)
			return nil
		}
		plain = z
	}
	l.file, l.in = f, bufio.NewReaderSize(&limited{plain, l.reader.limits.object}, 64<<10)
	return nil
}

// counter tells of the bytes that are read, until a context ends.
type counter struct {
	r    io.Reader
	ctx  context.Context
	tell func(int)
}

func (c *counter) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.tell(n)
	return n, err
}
