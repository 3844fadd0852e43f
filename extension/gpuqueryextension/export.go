// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/traceexport"
)

const (
	// maxExports is the number of exports that read the store at a time.
	maxExports = 2
	// maxExportTime bounds an export, exportProgress the time to send 64 KiB of it.
	maxExportTime  = time.Hour
	exportProgress = 30 * time.Second
)

// exportFormat is a format of an export. Exactly one of write and file is set.
type exportFormat struct {
	name, contentType, suffix string
	// write streams the export. If compress is set, clients that accept gzip get it.
	write    func(context.Context, store.Reader, traceexport.Query, io.Writer) error
	compress bool
	// file writes the export to a new file.
	file func(context.Context, *server, *exportRequest, string) error
}

type exportRequest struct {
	*request
	traceexport.Query
	table string
}

var exportFormats = [...]exportFormat{
	{name: "session", contentType: "application/octet-stream", suffix: ".duckdb", file: exportSession},
	{name: "perfetto", contentType: "application/octet-stream", suffix: ".pftrace", write: traceexport.Perfetto, compress: true},
	{name: "chrome", contentType: "application/json", suffix: ".trace.json", write: traceexport.Chrome, compress: true},
	{name: "parquet", contentType: "application/vnd.apache.parquet", suffix: ".parquet", file: exportParquet},
	{name: "pprof", contentType: "application/octet-stream", suffix: ".pb.gz", write: traceexport.Profile},
	{name: "otlp-profiles", contentType: "application/x-ndjson", suffix: ".profiles.jsonl", write: traceexport.OTLPProfiles, compress: true},
}

func exportSession(ctx context.Context, s *server, r *exportRequest, file string) error {
	if r.From != 0 || r.To != 0 {
		return &status{http.StatusBadRequest, "parameter from: the format session has no interval"}
	}
	return s.store.Export(ctx, r.project, r.request.session, file)
}

func exportParquet(ctx context.Context, s *server, r *exportRequest, file string) error {
	t, ok := s.store.(store.Tables)
	if !ok {
		return errors.ErrUnsupported
	}
	return t.WriteParquet(ctx, store.TableQuery{Project: r.project, Session: r.request.session, Table: r.table, From: r.From, To: r.To}, file)
}

// export answers with a session in one of the formats. Errors before the first byte are answers like
// others. A later one closes the connection, so that no client takes a part for the whole.
func (s *server) export(w http.ResponseWriter, hr *http.Request) {
	ctx, cancel := context.WithTimeout(hr.Context(), maxExportTime)
	defer cancel()
	r, format, err := s.exportRequest(ctx, hr)
	if err != nil {
		s.fail(ctx, w, err)
		return
	}
	h := w.Header()
	set := func() {
		h.Set("Content-Type", format.contentType)
		suffix := format.suffix
		if format.name == "parquet" {
			suffix = "-" + r.table + suffix
		}
		h.Set("Content-Disposition", "attachment; filename*=UTF-8''"+url.PathEscape(fileName(r.request.session))+suffix)
	}
	if hr.Method == http.MethodHead {
		set()
		return
	}
	select {
	case s.exporting <- struct{}{}:
	default:
		h.Set("Retry-After", "5")
		writeError(w, http.StatusTooManyRequests, "too many exports are in progress")
		return
	}
	release := func() { <-s.exporting }
	out := &exportWriter{w: w, rc: http.NewResponseController(w), set: set}
	if format.file != nil {
		s.sendFile(ctx, out, r, format, release)
		return
	}
	defer release()
	if format.compress {
		h.Add("Vary", "Accept-Encoding")
		if acceptsGzip(hr) {
			out.set = func() {
				set()
				h.Set("Content-Encoding", "gzip")
			}
			z, _ := gzip.NewWriterLevel(out, gzip.BestSpeed)
			err = format.write(ctx, s.store, r.Query, z)
			if err == nil {
				err = z.Close()
			}
			s.finish(ctx, out, err)
			return
		}
	}
	s.finish(ctx, out, format.write(ctx, s.store, r.Query, out))
}

// sendFile writes a temporary file and sends it. It calls release when it has finished reading the
// store.
func (s *server) sendFile(ctx context.Context, out *exportWriter, r *exportRequest, format *exportFormat, release func()) {
	dir, err := os.MkdirTemp("", "gpuflight-export-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
	}
	file := filepath.Join(dir, "export")
	if err == nil {
		err = format.file(ctx, s, r, file)
	}
	release()
	var f *os.File
	if err == nil {
		f, err = os.Open(file)
	}
	if err != nil {
		s.finish(ctx, out, err)
		return
	}
	defer func() { _ = f.Close() }()
	if fi, err := f.Stat(); err == nil {
		out.w.Header().Set("Content-Length", strconv.FormatInt(fi.Size(), 10))
	}
	_, err = io.CopyBuffer(out, f, make([]byte, 64<<10))
	s.finish(ctx, out, err)
}

func (s *server) exportRequest(ctx context.Context, hr *http.Request) (*exportRequest, *exportFormat, error) {
	req, err := newRequest(hr)
	if err != nil {
		return nil, nil, err
	}
	r := &exportRequest{request: req}
	names := make([]string, len(exportFormats))
	for i := range exportFormats {
		names[i] = exportFormats[i].name
	}
	format := &exportFormats[r.choice("format", names...)]
	if format.name == "parquet" {
		r.table = store.TableNames[r.choice("table", store.TableNames[:]...)]
	}
	base, given := r.absolute("base")
	if r.info, err = s.store.Session(ctx, r.project, r.request.session); err != nil {
		return nil, nil, err
	}
	if r.base = r.info.FirstNs; given {
		r.base = base
	}
	r.Query = traceexport.Query{Project: r.project, Session: r.request.session}
	r.From, r.To = r.interval()
	return r, format, r.check()
}

// finish ends an export.
func (s *server) finish(ctx context.Context, out *exportWriter, err error) {
	switch {
	case err == nil:
	case out.started:
		panic(http.ErrAbortHandler)
	default:
		out.w.Header().Del("Content-Length")
		s.fail(ctx, out.w, err)
	}
}

// exportWriter sets the headers at the first byte, and a deadline for each write.
type exportWriter struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	set     func()
	started bool
}

func (e *exportWriter) Write(b []byte) (int, error) {
	if !e.started {
		e.started = true
		e.set()
	}
	total := 0
	for len(b) > 0 {
		_ = e.rc.SetWriteDeadline(time.Now().Add(exportProgress)) // recorders of tests have none
		n, err := e.w.Write(b[:min(len(b), 64<<10)])
		total += n
		if err != nil {
			return total, err
		}
		b = b[n:]
	}
	return total, nil
}
