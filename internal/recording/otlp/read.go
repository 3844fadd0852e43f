// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/recording/profile"
)

const (
	// maxLine bounds a line, in bytes. It is many times the length that a client writes.
	maxLine = 64 << 20
	// maxErrors bounds the number of invalid lines with an error of their own.
	maxErrors = 20
)

// Handler receives the content of a file, line by line. Functions that are nil are not called.
type Handler struct {
	Traces  func(ptrace.Traces)
	Logs    func(plog.Logs)
	Metrics func(pmetric.Metrics)
	// Profiles receives one request at a time.
	Profiles func(profile.Profiles)
}

// ReadStats counts the lines of a file.
type ReadStats struct {
	// Lines is the number of lines read. Bad is the number of invalid lines among them. Errors has
	// the first of their errors, with line numbers.
	Lines, Bad int
	Errors     []error
	// Torn is set if the file ends in the middle of a line or compressed block, as after a kill of
	// its writer. The complete lines before it were read.
	Torn bool
}

// ReadFile reads a file that a Client or the Collector's file exporter wrote. Each line is one
// request of one signal. The file may be plain or compressed by gzip or zstd, which its first bytes
// show. Invalid lines are counted and skipped. The error is a read error.
func ReadFile(path string, h Handler) (ReadStats, error) {
	f, err := os.Open(path)
	if err != nil {
		return ReadStats{}, err
	}
	defer f.Close()
	stats, err := read(f, h)
	if err != nil {
		return stats, fmt.Errorf("%s: %w", path, err)
	}
	for i, e := range stats.Errors {
		stats.Errors[i] = fmt.Errorf("%s:%w", path, e)
	}
	return stats, nil
}

func read(r io.Reader, h Handler) (ReadStats, error) {
	var stats ReadStats
	in, err := decompress(bufio.NewReaderSize(r, 64<<10))
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		stats.Torn = true // the header of the compression is incomplete
		return stats, nil
	}
	if err != nil {
		return stats, err
	}
	if c, ok := in.(io.Closer); ok {
		defer c.Close()
	}
	lines := bufio.NewReaderSize(in, 1<<20)
	for {
		line, tooLong, err := readLine(lines)
		whole := err == nil
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return stats, fmt.Errorf("line %d: %w", stats.Lines+1, err)
		}
		if len(bytes.TrimSpace(line)) > 0 || tooLong {
			stats.Lines++
			var bad error
			if tooLong {
				bad = fmt.Errorf("longer than %d bytes", maxLine)
			} else {
				bad = handle(line, h)
			}
			switch {
			case bad != nil && !whole:
				stats.Torn = true
				stats.Lines--
			case bad != nil:
				stats.Bad++
				if len(stats.Errors) < maxErrors {
					stats.Errors = append(stats.Errors, fmt.Errorf("%d: %w", stats.Lines, bad))
				}
			}
		}
		if !whole {
			stats.Torn = stats.Torn || !errors.Is(err, io.EOF)
			return stats, nil
		}
	}
}

func decompress(r *bufio.Reader) (io.Reader, error) {
	magic, err := r.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return gzip.NewReader(r)
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return r, nil
}

// readLine returns a line without its end. It skips the rest of a line that is too long.
func readLine(r *bufio.Reader) (line []byte, tooLong bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if !tooLong {
			line = append(line, part...)
			if len(line) > maxLine+1 {
				line, tooLong = nil, true
			}
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimSuffix(line, []byte("\n")), tooLong, err
		}
	}
}

// handle decodes a line by its first key and passes the result to the handler.
func handle(line []byte, h Handler) error {
	switch {
	case hasKey(line, "resourceSpans"):
		return pass(line, (&ptrace.JSONUnmarshaler{}).UnmarshalTraces, h.Traces)
	case hasKey(line, "resourceLogs"):
		return pass(line, (&plog.JSONUnmarshaler{}).UnmarshalLogs, h.Logs)
	case hasKey(line, "resourceMetrics"):
		return pass(line, (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics, h.Metrics)
	case hasKey(line, "resourceProfiles"):
		return pass(line, profile.FromJSON, h.Profiles)
	}
	return errors.New("neither resourceSpans, resourceLogs, resourceMetrics nor resourceProfiles")
}

func pass[T any](line []byte, decode func([]byte) (T, error), to func(T)) error {
	data, err := safely(line, decode)
	if err == nil && to != nil {
		to(data)
	}
	return err
}

// safely recovers from a panic of the decoder, so that an invalid line affects only itself.
func safely[T any](line []byte, decode func([]byte) (T, error)) (data T, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("not OTLP: %v", r)
		}
	}()
	return decode(line)
}

// hasKey reports whether a JSON object starts with a key.
func hasKey(line []byte, key string) bool {
	line = bytes.TrimLeft(line, " \t\r")
	line, ok := bytes.CutPrefix(line, []byte("{"))
	return ok && bytes.HasPrefix(bytes.TrimLeft(line, " \t\r"), []byte(`"`+key+`"`))
}
