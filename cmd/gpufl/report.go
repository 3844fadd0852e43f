// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/gpuflight/gpuflight/internal/report"
)

const reportUsage = `gpufl report adds up what recordings hold and prints it as tables: kernels by time, copies, scopes, and
what is missing. It reads files of OTLP as JSON lines, as gpufl trace --output and the Collector's file
exporter write them (plain, .gz or .zst), and the logs of GPU Flight; of a folder, everything in it.

Usage:
  gpufl report [flags] FILE|FOLDER...

Examples:
  gpufl report run.otlp.jsonl
  gpufl report --top 50 logs

Flags:
`

// maxProblems is how many problems of the files are printed one by one.
const maxProblems = 10

func runReport(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("report", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	top := fs.Int("top", 20, "rows of each table; 0 for all")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			printUsage(stdout, reportUsage, fs)
			return err
		}
		return &usageError{err}
	}
	if fs.NArg() == 0 {
		return &usageError{errors.New("no file: give one or more files or folders")}
	}
	if *top < 0 {
		return &usageError{fmt.Errorf("--top %d: use 0 or more", *top)}
	}
	r := report.New()
	var problems []string
	for _, path := range fs.Args() {
		if err := ctx.Err(); err != nil {
			return err
		}
		found, err := r.Read(path)
		problems = append(problems, found...)
		if err != nil {
			return err
		}
	}
	for i, p := range problems {
		if i == maxProblems {
			fmt.Fprintf(stderr, "gpufl report: and %d more\n", len(problems)-i)
			break
		}
		fmt.Fprintf(stderr, "gpufl report: %s\n", p)
	}
	totals := r.Totals()
	if totals.Empty() && len(totals.Scopes) == 0 {
		return errors.New("no work of a GPU is in what was read")
	}
	return totals.Write(stdout, *top)
}

// printUsage prints a sub-command's help, and its flags as users write them.
func printUsage(out io.Writer, text string, fs *flag.FlagSet) {
	fmt.Fprint(out, text)
	fs.SetOutput(out)
	fs.PrintDefaults()
	fs.SetOutput(io.Discard)
}
