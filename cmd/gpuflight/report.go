// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/dustin/go-humanize"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/report"
)

const reportUsage = `gpuflight report says why a program was slow: busy and idle time of each device with causes, steps
with outliers, and advice. It also prints tables: kernels by time, copies, scopes and missing data.
For recordings with deep profiling it also prints the windows with their losses, the stall reasons of
each function and the worst source lines. It reads OTLP as JSON lines, as gpuflight trace --output
and the Collector's file exporter write it (plain, .gz or .zst), and GPU Flight logs. Of a folder it
reads all files.

Usage:
  gpuflight report [flags] FILE|FOLDER...

Examples:
  gpuflight report run.otlp.jsonl
  gpuflight report --top 50 logs
  gpuflight report --functions 1 --lines 20 run.otlp.jsonl
  gpuflight report --json run.otlp.jsonl
  gpuflight report --html report.html run.otlp.jsonl

Flags:
`

// maxProblems bounds the problems of the files that are printed.
const maxProblems = 10

func runReport(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("report", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	top := fs.Int("top", 20, "rows of each table; 0 for all")
	functions := fs.Int("functions", 10, "functions with deep-profiling results; 0 for all")
	lines := fs.Int("lines", 5, "worst source lines of each function and kind; 0 for all")
	asJSON := fs.Bool("json", false, "print one object of JSON instead of tables")
	page := fs.String("html", "", "write a page of HTML to this `file`, which needs no other file")
	args, err := parse(fs, args, reportUsage, stdout)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		return &usageError{errors.New("no file: give one or more files or folders")}
	}
	for name, n := range map[string]int{"top": *top, "functions": *functions, "lines": *lines} {
		if n < 0 {
			return &usageError{fmt.Errorf("--%s %d: use 0 or more", name, n)}
		}
	}
	if *asJSON && *page != "" {
		return &usageError{errors.New("--json and --html exclude each other")}
	}
	r := report.New()
	var causes report.Causes
	handler := otlp.Handler{
		Traces:  func(td ptrace.Traces) { r.Traces(td); causes.Traces(td) },
		Logs:    func(ld plog.Logs) { r.Logs(ld); causes.Logs(ld) },
		Metrics: r.Metrics,
	}
	var problems []string
	for _, path := range args {
		if err := ctx.Err(); err != nil {
			return err
		}
		found, err := report.ReadTelemetry(path, handler)
		problems = append(problems, found...)
		if err != nil {
			return err
		}
	}
	analyses, problem, err := causes.Results(ctx)
	if err != nil {
		return err
	}
	if problem != "" {
		problems = append(problems, problem)
	}
	for i, p := range problems {
		if i == maxProblems {
			fmt.Fprintf(stderr, "gpuflight report: and %d more\n", len(problems)-i)
			break
		}
		fmt.Fprintf(stderr, "gpuflight report: %s\n", p)
	}
	totals, windows, inside := r.Totals(), r.Windows(), r.Inside(*functions, *lines)
	if totals.Empty() && len(totals.Scopes) == 0 && windows.Nothing() && inside.Empty() {
		return errors.New("the files contain no GPU work")
	}
	if totals.Lost.LeftOut+totals.Lost.Unsampled == 0 {
		totals.ScopeTree = causes.Scopes()
	}
	if *asJSON {
		return report.WriteJSON(stdout, &totals, &windows, &inside, analyses, *top)
	}
	if *page != "" {
		return writePage(*page, stdout, func(out io.Writer) error {
			return report.WriteHTML(out, &totals, &windows, &inside, analyses, *top)
		})
	}
	width := terminalWidth(stdout)
	if err := report.WriteCauses(stdout, analyses, width); err != nil {
		return err
	}
	if err := totals.Write(stdout, *top, width); err != nil {
		return err
	}
	if !(windows.Nothing() && inside.Empty()) && (totals.Graphs > 0 || totals.Estimated > 0 || totals.Slowed > 0 || totals.Sliced > 0 || totals.Lost != (report.Lost{})) {
		fmt.Fprintln(stdout) // separates sentences from a heading
	}
	folded := folded(stdout)
	if err := windows.Write(folded, *top); err != nil {
		return err
	}
	return inside.Write(folded)
}

// writePage writes a file that only the user can read, as recordings are.
func writePage(path string, stdout io.Writer, write func(io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "wrote %s, %s\n", path, humanize.IBytes(uint64(b.Len())))
	return nil
}
