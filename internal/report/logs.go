// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
)

// Read adds the telemetry of a file or folder, as [ReadTelemetry] reads it.
func (r *Report) Read(path string) (problems []string, err error) {
	return ReadTelemetry(path, otlp.Handler{Traces: r.Traces, Logs: r.Logs, Metrics: r.Metrics})
}

// ReadTelemetry reads a file, or all files of a folder: recorded OTLP (*.jsonl, *.json, also .gz and
// .zst) and GPU Flight's logs. With a log of GPU Flight it reads the others of the same session. It
// passes the content to h, whose functions must all be set. It returns one sentence for each invalid
// part. The error is a read error.
func ReadTelemetry(path string, h otlp.Handler) (problems []string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	logs := map[gpuflog.FileGroup][]gpuflog.FileName{}
	found := 0
	one := func(path string) error {
		if f, ok := asLog(path); ok {
			logs[f.Group] = append(logs[f.Group], f)
			found++
			return nil
		}
		if !isOTLP(path) {
			return nil
		}
		found++
		stats, err := otlp.ReadFile(path, h)
		for _, e := range stats.Errors {
			problems = append(problems, e.Error())
		}
		if more := stats.Bad - len(stats.Errors); more > 0 {
			problems = append(problems, fmt.Sprintf("%s: %d more bad lines", path, more))
		}
		if stats.Torn {
			problems = append(problems, path+": ends in the middle of a line, as if its writer had been killed")
		}
		return err
	}
	switch {
	case info.IsDir():
		err = filepath.WalkDir(path, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			return one(path)
		})
	default:
		f, ok := asLog(path)
		if !ok {
			found++
			err = one(path)
			if !isOTLP(path) {
				err = fmt.Errorf("%s: neither recorded OTLP (*.jsonl, *.json, .gz, .zst) nor a log of GPU Flight's", path)
			}
			break
		}
		found++
		var names []string
		names, err = filepath.Glob(filepath.Join(globQuote(filepath.Dir(f.Path)), "*.log*"))
		for _, name := range names {
			if other, ok := asLog(name); ok && other.Group == f.Group {
				logs[f.Group] = append(logs[f.Group], other)
			}
		}
	}
	if err != nil {
		return problems, err
	}
	if found == 0 {
		return problems, fmt.Errorf("%s: neither recorded OTLP (*.jsonl, *.json, .gz, .zst) nor logs of GPU Flight's in it", path)
	}
	for _, g := range sortedGroups(logs) {
		more, err := readLogs(g, logs[g], h)
		problems = append(problems, more...)
		if err != nil {
			return problems, err
		}
	}
	return problems, nil
}

// globQuote writes a path so that Glob takes it as it is.
func globQuote(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

func isOTLP(path string) bool {
	name := filepath.Base(path)
	name = strings.TrimSuffix(strings.TrimSuffix(name, ".gz"), ".zst")
	return strings.HasSuffix(name, ".jsonl") || strings.HasSuffix(name, ".json") && !strings.HasPrefix(name, ".")
}

// asLog takes a path apart; false if it is not of a log.
func asLog(path string) (gpuflog.FileName, bool) {
	return gpuflog.ParseFileName(filepath.ToSlash(filepath.Clean(path)))
}

func itself(f gpuflog.FileName) gpuflog.FileName { return f }

func sortedGroups(m map[gpuflog.FileGroup][]gpuflog.FileName) []gpuflog.FileGroup {
	groups := make([]gpuflog.FileGroup, 0, len(m))
	for g := range m {
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b gpuflog.FileGroup) int {
		return cmp.Or(cmp.Compare(a.Dir, b.Dir), cmp.Compare(a.Base, b.Base))
	})
	return groups
}

const (
	// chunkBytes are decoded before what came of them is added up.
	chunkBytes = 1 << 20
	// maxLine is the longest line that is read.
	maxLine = 64 << 20
	// afterEnd is how long after the end of all files they are said to be silent: nothing is waited
	// for any more.
	afterEnd = 24 * time.Hour
)

// readLogs reads the whole sessions of one group of files.
func readLogs(g gpuflog.FileGroup, files []gpuflog.FileName, h otlp.Handler) (problems []string, err error) {
	windows := gpuflog.Windowed(files, itself)
	var streams [gpuflog.NumChannels]*lines
	for channel := range streams {
		streams[channel] = &lines{files: gpuflog.Ordered(files, itself, gpuflog.Channel(channel), windows)}
		defer streams[channel].close()
	}
	dec := gpuflog.NewDecoder(gpuflog.Options{KernelNameInPath: !windows})
	batch := gpuevent.NewBatch(gpuevent.Signals{Traces: true, Logs: true, Metrics: true})
	now := time.Now().UnixNano()
	var ended [gpuflog.NumChannels]bool
	step := func(channel gpuflog.Channel) error {
		chunk, err := streams[channel].next()
		if err != nil {
			return err
		}
		ended[channel] = chunk == nil
		dec.Feed(channel, chunk, 0, now, batch)
		dec.EndStep(gpuflog.Step{Now: now, AtEnd: ended}, batch)
		take(batch, h)
		return nil
	}
	for ended != [gpuflog.NumChannels]bool{true, true, true, true} {
		for _, channel := range []gpuflog.Channel{gpuflog.System, gpuflog.Sass} {
			if !ended[channel] {
				if err := step(channel); err != nil {
					return problems, err
				}
			}
		}
		channel := dec.Want()
		if ended[channel] {
			channel = gpuflog.Device + gpuflog.Scope - channel
		}
		if !ended[channel] {
			if err := step(channel); err != nil {
				return problems, err
			}
		}
	}
	// A minute of silence after another: what waits for records that never came is released in turn.
	for i := range 4 {
		dec.EndStep(gpuflog.Step{Now: now + int64(i+1)*int64(afterEnd), AtEnd: ended, Quiet: afterEnd, Gone: true}, batch)
		take(batch, h)
	}
	for _, s := range streams {
		problems = append(problems, s.problems...)
	}
	for _, p := range dec.TakeProblems() {
		problems = append(problems, fmt.Sprintf("%s: %s: %s", filepath.Join(g.Dir, g.Base), p.Reason, p.Detail))
	}
	return problems, nil
}

func take(b *gpuevent.Batch, h otlp.Handler) {
	if b.Empty() {
		return
	}
	td, ld, md := b.Take()
	h.Traces(td)
	h.Logs(ld)
	h.Metrics(md)
}

// lines reads files sequentially, in chunks of whole lines.
type lines struct {
	files    []gpuflog.FileName
	file     *os.File
	in       *bufio.Reader
	problems []string
}

func (l *lines) close() {
	if l.file != nil {
		_ = l.file.Close() // it was only read
		l.file = nil
	}
}

// next returns some lines, nil after the last.
func (l *lines) next() ([]byte, error) {
	for {
		if l.file == nil {
			if len(l.files) == 0 {
				return nil, nil
			}
			if err := l.open(l.files[0].Path); err != nil {
				return nil, err
			}
			l.files = l.files[1:]
		}
		chunk := make([]byte, 0, chunkBytes)
		var err error
		// Not io.ReadFull, whose error does not distinguish the end of a file from a truncated file.
		for len(chunk) < cap(chunk) && err == nil {
			var n int
			n, err = l.in.Read(chunk[len(chunk):cap(chunk)])
			chunk = chunk[:len(chunk)+n]
		}
		if err == nil && chunk[len(chunk)-1] != '\n' {
			err = bufio.ErrBufferFull
			for errors.Is(err, bufio.ErrBufferFull) {
				if len(chunk) > maxLine {
					return nil, fmt.Errorf("%s: a line is longer than %d bytes", l.file.Name(), maxLine)
				}
				var rest []byte
				rest, err = l.in.ReadSlice('\n')
				chunk = append(chunk, rest...)
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				l.problems = append(l.problems, fmt.Sprintf("%s: the rest cannot be read: %v", l.file.Name(), err))
			}
			// What a killed writer left of its last line is no record.
			if i := bytes.LastIndexByte(chunk, '\n'); !gpuflog.Whole(chunk[i+1:]) {
				chunk = chunk[:i+1]
			}
			l.close()
		}
		if len(chunk) > 0 {
			return chunk, nil
		}
	}
}

func (l *lines) open(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	l.file, l.in = f, bufio.NewReaderSize(f, 64<<10)
	if !strings.HasSuffix(path, ".gz") {
		return nil
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		l.close()
		return fmt.Errorf("%s: %w", path, err)
	}
	l.in = bufio.NewReaderSize(z, 64<<10)
	return nil
}
