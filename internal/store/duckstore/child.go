// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpuflight/gpuflight/internal/store"
)

// childName is the name of the process that reads files which may be damaged or hostile. DuckDB is
// native code, and such a file can end the process that opens it.
const childName = "gpuflight-segment-reader"

// childTimeout is the longest time without a response of the child.
const childTimeout = 5 * time.Minute

// childMemory is DuckDB's memory_limit in the child.
const childMemory = 512 << 20

func init() {
	if len(os.Args) == 1 && os.Args[0] == childName {
		os.Exit(serve(os.Stdin, os.Stdout, os.Stderr))
	}
}

// request is what a child reads. It may open the files, and all in Directory if that is not empty.
type request struct {
	Directory string
	Files     []string
	Schemas   []string // of the versions that the parent knows
	Rows      bool     // all rows of the only file, in batches
	Verify    bool     // read everything
	SQL       *sqlRequest
}

// response is about one file. The child sends one with Segment or Err for each file, in their order.
type response struct {
	Segment *segmentInfo
	Batch   *store.Batch
	Err     string
	// Temporary says that Err says nothing about the file.
	Temporary bool
	// Newer says that the file has a newer schema version, Other that its tables are not those of its
	// version.
	Newer, Other bool
	// Old says that the file is to be migrated. There is no Segment.
	Old bool
	// SQL is the answer of a statement.
	SQL *store.SQLAnswer
}

// segmentInfo is what the store knows about a segment without its rows.
type segmentInfo struct {
	Meta            map[string]string
	Summary         summary
	Newest          [len(rowTables)]int64
	Partial, Merged mergeCounts
	GapBin          int64
	Traces          traceSet
}

// serve is the main function of the child. It ends when its parent does.
func serve(in io.Reader, out, log io.Writer) int {
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{})
	var r request
	if err := gob.NewDecoder(in).Decode(&r); err != nil {
		fmt.Fprintln(log, err)
		return 1
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(1)
	}()
	enc := gob.NewEncoder(out)
	if r.SQL != nil {
		if err := enc.Encode(serveSQL(&r)); err != nil {
			fmt.Fprintln(log, err)
			return 1
		}
		return 0
	}
	s, err := openReader(&r)
	if err != nil {
		fmt.Fprintln(log, err)
		return 1
	}
	for _, file := range r.Files {
		var answer response
		info, err := s.inspect(context.Background(), file, &r, func(b *store.Batch) error { return enc.Encode(response{Batch: b}) })
		if err != nil {
			text := strings.ToValidUTF8(strings.SplitN(err.Error(), "\n", 2)[0], "?")
			answer.Err, answer.Temporary = text[:min(len(text), 300)], temporary(err)
			answer.Newer, answer.Other = errors.Is(err, errNewer), errors.Is(err, errOther)
		} else {
			answer.Segment, answer.Old = info, info == nil
		}
		if err := enc.Encode(answer); err != nil {
			fmt.Fprintln(log, err)
			return 1
		}
	}
	return 0
}

// openReader returns a store that only attaches the files of a request, read-only.
func openReader(r *request) (*Store, error) {
	s := &Store{cfg: Config{MemoryLimit: childMemory, Threads: 1}, readOnly: true, attached: map[*segment]struct{}{}}
	s.cfg.defaults()
	s.released = sync.NewCond(&s.attach)
	var paths []string
	if r.Directory == "" {
		for _, file := range r.Files {
			for _, suffix := range segmentFiles {
				paths = append(paths, quote(file+suffix))
			}
		}
	}
	allowed := "allowed_paths=[" + strings.Join(paths, ",") + "]"
	if r.Directory != "" {
		allowed = "allowed_directories=[" + quote(r.Directory+"/") + "]"
	}
	var err error
	if s.db, err = openDuckDB(s.cfg, "temp_directory=''", allowed); err != nil {
		return nil, err
	}
	for i, schema := range r.Schemas {
		name := fmt.Sprint("v", i+1)
		if _, err := s.db.Exec("CREATE SCHEMA " + name + ";" + strings.ReplaceAll(schema, "{db}", name)); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// inspect reads a file, if it has the newest of the schemas. With Rows, it checks all of them, then sends
// them.
func (s *Store) inspect(ctx context.Context, file string, r *request, send func(*store.Batch) error) (*segmentInfo, error) {
	seg := &segment{file: file}
	if err := s.acquire(ctx, seg); err != nil {
		return nil, errors.Unwrap(err)
	}
	defer func() {
		s.release(seg)
		_ = s.detach(ctx, seg)
	}()
	meta, err := s.readMeta(ctx, seg)
	if err != nil {
		return nil, err
	}
	v, err := versionOf(meta, len(r.Schemas))
	if err != nil {
		return nil, err
	}
	if err = s.checkSchema(ctx, seg, v); err != nil || v < len(r.Schemas) {
		return nil, err
	}
	info := &segmentInfo{Meta: meta}
	if info.Summary, err = s.summarize(ctx, seg); err != nil {
		return nil, err
	}
	info.Newest, info.Partial, info.Merged, info.GapBin = seg.newest, seg.partial, seg.merged, seg.gapBin
	info.Traces = seg.traces
	if r.Verify {
		return info, s.verify(ctx, seg)
	}
	if !r.Rows {
		return info, nil
	}
	for _, pass := range []func(*store.Batch) error{
		func(*store.Batch) error { return send(&store.Batch{}) }, // that the parent sees progress
		send,
	} {
		if err := s.readRows(ctx, seg, meta, pass); err != nil {
			return nil, err
		}
	}
	return info, nil
}

// verify reads all values of an attached file.
func (s *Store) verify(ctx context.Context, seg *segment) error {
	for _, table := range slices.Concat(rowTables[:], dictTables[:], rollupTables[:], []string{pathTable}) {
		var n int64
		err := s.db.QueryRowContext(ctx, "SELECT count(hash(t)) FROM "+seg.alias+"."+table+" t").Scan(&n)
		if err != nil {
			return err
		}
	}
	return nil
}

// errChild is the error for a file that ended the child.
var errChild = errors.New("DuckDB cannot read it")

// readFiles starts children that read files, and calls each with the responses for file i. A file that
// ends a child gets a response with Err. It is temporary if the system killed the child.
func readFiles(ctx context.Context, r request, each func(i int, a *response) error) error {
	for _, v := range versions {
		r.Schemas = append(r.Schemas, v.schema)
	}
	for done := 0; done < len(r.Files); {
		part := r
		part.Files = r.Files[done:]
		n, err := readSome(ctx, part, func(i int, a *response) error { return each(done+i, a) })
		done += n
		var crash *crashError
		switch {
		case errors.As(err, &crash):
			a := &response{Err: fmt.Sprintf("%v: %s", errChild, crash.text), Temporary: crash.killed}
			if err = each(done, a); err != nil {
				return err
			}
			done++
		case err != nil:
			return err
		}
	}
	return nil
}

// crashError says that a child ended before its last response.
type crashError struct {
	text   string
	killed bool // by SIGKILL, as the kernel does if memory is short
}

func (e *crashError) Error() string { return e.text }

func readSome(ctx context.Context, r request, each func(i int, a *response) error) (done int, err error) {
	self := "/proc/self/exe"
	if runtime.GOOS != "linux" {
		if self, err = os.Executable(); err != nil {
			return 0, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, self)
	cmd.Args = []string{childName}
	cmd.Env = []string{"GOTRACEBACK=none"}
	log := &tail{}
	cmd.Stderr = log
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err = cmd.Start(); err != nil {
		return 0, fmt.Errorf("start the process that reads files: %w", err)
	}
	timedOut := time.AfterFunc(childTimeout, cancel)
	defer timedOut.Stop()
	err = gob.NewEncoder(in).Encode(r)
	dec := gob.NewDecoder(out)
	for err == nil && done < len(r.Files) {
		a := &response{}
		if dec.Decode(a) != nil {
			break
		}
		timedOut.Reset(childTimeout)
		if err = each(done, a); err == nil && a.Batch == nil {
			done++
		}
	}
	if err != nil {
		cancel()
	}
	_ = in.Close()
	waitErr := cmd.Wait()
	switch {
	case err != nil && !errors.Is(err, syscall.EPIPE):
		return done, err
	case done == len(r.Files):
		return done, nil
	case timedOut.Stop():
		if ctx.Err() != nil {
			return done, ctx.Err()
		}
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
			return done, &crashError{"its process was killed, probably for lack of memory", true}
		}
		return done, &crashError{text: log.reason(waitErr)}
	}
	return done, &crashError{text: "no progress for " + childTimeout.String()}
}

// tail keeps the first bytes that a child writes to its standard error.
type tail struct{ bytes.Buffer }

func (t *tail) Write(b []byte) (int, error) {
	if room := 4096 - t.Len(); room > 0 {
		_, _ = t.Buffer.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}

func (t *tail) reason(err error) string {
	if line, _, _ := strings.Cut(strings.TrimSpace(t.String()), "\n"); line != "" {
		return line
	}
	return fmt.Sprint(err)
}

// checkSchema compares the tables of an attached file with those of a version.
func (s *Store) checkSchema(ctx context.Context, seg *segment, v int) error {
	tables := func(db, schema string) (map[string]string, error) {
		out := map[string]string{}
		err := s.each(ctx, "SELECT table_name, schema_name, sql FROM duckdb_tables() WHERE database_name = ? AND (schema_name = ? OR ? = 'main')",
			[]any{db, schema, schema}, func(r *sql.Rows) error {
				var name, in, text string
				err := r.Scan(&name, &in, &text)
				if in != schema {
					name = in + "." + name
				}
				out[name] = strings.NewReplacer(db+".", "", schema+".", "").Replace(text)
				return err
			})
		return out, err
	}
	got, err := tables(seg.alias, "main")
	if err != nil {
		return err
	}
	want, err := tables("memory", fmt.Sprint("v", v))
	if err != nil {
		return err
	}
	for name, text := range want {
		if got[name] != text {
			return fmt.Errorf("table %s is not that of schema version %d: %w", name, v, errOther)
		}
		delete(got, name)
	}
	for name := range got {
		return fmt.Errorf("unknown table %q", name)
	}
	var others int
	err = s.db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM duckdb_views() WHERE database_name = $1 AND NOT internal) +
		(SELECT count(*) FROM duckdb_indexes() WHERE database_name = $1) + (SELECT count(*) FROM duckdb_sequences() WHERE database_name = $1) +
		(SELECT count(*) FROM duckdb_types() WHERE database_name = $1 AND NOT internal) +
		(SELECT count(*) FROM duckdb_functions() WHERE database_name = $1 AND NOT internal)`, seg.alias).Scan(&others)
	if err == nil && others > 0 {
		err = errors.New("the file has views, indexes, sequences, types or functions")
	}
	return err
}

// segmentFiles has what DuckDB appends to the name of a database for its other files. Their order is
// that in which they can be removed: a log without its file would be replayed into a new file.
var segmentFiles = [...]string{".wal.recovery", ".wal.checkpoint", ".wal", ""}

// absolute returns the absolute path of a regular file without symbolic links.
func absolute(file string) (string, error) {
	path, err := filepath.Abs(file)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return "", err
	}
	fi, err := os.Stat(path)
	if err == nil && !fi.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	return path, err
}
