// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

const exportUsage = `gpuflight export writes a session in the format of another tool. A session is one in the store of a
Collector, given by its id or the beginning of it, or a recording: a file or folder that gpuflight view
opens. For a recording, the command starts the Collector beside gpuflight or on PATH for a moment.

Formats:
  perfetto       a trace for https://ui.perfetto.dev
  chrome         JSON for Chrome's trace viewer and tools for PyTorch's traces
  parquet        a table: operations, spans, samples, logs or points
  pprof          a profile for go tool pprof: host stack, scopes, kernel
  otlp-profiles  the same as OpenTelemetry profiles, for a Collector's otlp_json_file receiver
  session        a file that gpuflight view opens and gpuflight sessions import adds

Usage:
  gpuflight export --format FORMAT [flags] SESSION|FILE|FOLDER

Examples:
  gpuflight export --format perfetto -o step.pftrace 1262bb67
  gpuflight export --format pprof -o run.pb.gz run.otlp.jsonl && go tool pprof -top run.pb.gz
  gpuflight export --format chrome --from 1.5s --to 2s -o part.json 1262bb67

Flags:
`

// suffixes are the names of files by format.
var suffixes = map[string]string{"perfetto": ".pftrace", "chrome": ".trace.json", "parquet": ".parquet", "pprof": ".pb.gz", "otlp-profiles": ".profiles.jsonl", "session": ".duckdb"}

func runExport(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("export", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	address := fs.String("url", "http://127.0.0.1:8686", "address of the Collector's query API")
	format := fs.String("format", "", "perfetto, chrome, parquet, pprof, otlp-profiles or session")
	output := fs.String("o", "", "new `file` (default: the beginning of the session's id with a suffix)")
	table := fs.String("table", "", "table of the format parquet (default: operations)")
	choose := fs.String("session", "", "id of the session, or its beginning, if a recording has several")
	from := fs.Duration("from", 0, "start of the interval, from the start of the session")
	to := fs.Duration("to", 0, "end of the interval, from the start of the session (default: its end)")
	args, err := parse(fs, args, exportUsage, stdout)
	if err != nil {
		return err
	}
	query := url.Values{"format": {*format}}
	suffix, known := suffixes[*format]
	switch u, err := url.Parse(*address); {
	case len(args) != 1:
		return &usageError{errors.New("give one session, file or folder")}
	case !known:
		return &usageError{fmt.Errorf("--format %q: choose perfetto, chrome, parquet, pprof, otlp-profiles or session", *format)}
	case *table != "" && *format != "parquet":
		return &usageError{errors.New("--table is for the format parquet")}
	case *from < 0 || *to < 0 || *to != 0 && *to <= *from:
		return &usageError{errors.New("--to must be above --from, and neither negative")}
	case (*from != 0 || *to != 0) && *format == "session":
		return &usageError{errors.New("the format session has no interval")}
	case err != nil || u.Host == "":
		return &usageError{fmt.Errorf("--url %q: write for example http://127.0.0.1:8686", *address)}
	}
	for name, d := range map[string]time.Duration{"from": *from, "to": *to} {
		if d != 0 {
			query.Set(name, strconv.FormatInt(int64(d), 10))
		}
	}
	if *table != "" {
		query.Set("table", *table)
		suffix = "-" + *table + suffix
	}
	write := func(api queryAPI, s *storedSession) error {
		name := cmp.Or(*output, fmt.Sprintf("%.8s", filepath.Base(s.ID))+suffix)
		return api.export(ctx, s, query, name, stdout)
	}
	source := args[0]
	if _, err := os.Stat(source); err != nil {
		if strings.ContainsAny(source, `/\`) || strings.Contains(source, ".jsonl") {
			return err
		}
		api := queryAPI{*address}
		s, err := api.find(ctx, source)
		if err != nil {
			return err
		}
		return write(api, &s)
	}
	listen, err := freeAddress()
	if err != nil {
		return err
	}
	return withViewer(ctx, listen, func(v *viewer) error {
		list, err := v.loadAll(ctx, []string{source}, stderr)
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(s storedSession) bool { return !strings.HasPrefix(s.ID, *choose) })
		if len(list) != 1 {
			var ids []string
			for i := range list {
				ids = append(ids, list[i].ID)
			}
			return fmt.Errorf("%d sessions match: choose one with --session: %s", len(list), strings.Join(ids, ", "))
		}
		return write(v.api, &list[0])
	})
}

// freeAddress returns an address of this machine on which nothing listens.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// export writes a session to a new file. It removes the file after a failure.
func (a queryAPI) export(ctx context.Context, s *storedSession, query url.Values, path string, stdout io.Writer) error {
	in, err := a.open(ctx, http.MethodGet, "/sessions/"+url.PathEscape(s.ID)+"/export?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return errors.Join(fmt.Errorf("export %s: %w", s.ID, err), os.Remove(path))
	}
	fmt.Fprintf(stdout, "exported %s to %s, %s\n", s.ID, path, humanize.IBytes(uint64(n)))
	return nil
}
