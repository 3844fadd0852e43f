// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/gpuflight/gpuflight/internal/analysis/ranks"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/report"
)

const ranksUsage = `gpuflight ranks says which rank of a distributed run the others waited for, by how much and why. It
aligns the clocks of the ranks by their collectives and states the error. It reads files as gpuflight
report does, or sessions in the store of a Collector. There, the beginning of an id is enough. If the
Collector requires a key, set GPUFLIGHT_KEY.

Usage:
  gpuflight ranks [flags] FILE|FOLDER...
  gpuflight ranks [flags] SESSION SESSION...
  gpuflight ranks [flags] --run ID

Examples:
  gpuflight ranks rank0.otlp.jsonl rank1.otlp.jsonl
  gpuflight ranks --run 4711.0
  gpuflight ranks --json --run 4711.0

Flags:
`

func runRanks(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("ranks", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	run := fs.String("run", "", "cuda.run.id of the sessions; required if files have several runs")
	address := fs.String("url", "http://127.0.0.1:8686", "address of the Collector's query API")
	top := fs.Int("top", 10, "collectives with the largest delays; at most 10000")
	asJSON := fs.Bool("json", false, "print one object of JSON instead of tables")
	args, err := parse(fs, args, ranksUsage, stdout)
	switch {
	case err != nil:
		return err
	case len(args) == 0 && *run == "":
		return &usageError{errors.New("nothing to compare: give files, sessions or --run")}
	case *top < 1 || *top > 10_000:
		return &usageError{fmt.Errorf("--top %d: use 1 to 10000", *top)}
	}
	if u, err := url.Parse(*address); err != nil || u.Host == "" {
		return &usageError{fmt.Errorf("--url %q: write for example http://127.0.0.1:8686", *address)}
	}
	files := 0
	for _, a := range args {
		if _, err := os.Stat(a); err == nil {
			files++
		}
	}
	var result *ranks.Result
	switch {
	case files == 0:
		result, err = storedRanks(ctx, queryAPI{*address}, args, *run, *top)
	case files == len(args):
		result, err = ranksOfFiles(ctx, args, *run, *top, stderr)
	default:
		return &usageError{errors.New("some arguments are files and others are not: give files only, or sessions only")}
	}
	if err != nil {
		return err
	}
	if *asJSON {
		return report.WriteRanksJSON(stdout, result)
	}
	return report.WriteRanks(stdout, result, *top, terminalWidth(stdout))
}

func ranksOfFiles(ctx context.Context, files []string, run string, top int, stderr io.Writer) (*ranks.Result, error) {
	var causes report.Causes
	for _, path := range files {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		problems, err := report.ReadTelemetry(path, otlp.Handler{Traces: causes.Traces, Logs: causes.Logs})
		for i, p := range problems {
			if i == maxProblems {
				fmt.Fprintf(stderr, "gpuflight ranks: and %d more\n", len(problems)-i)
				break
			}
			fmt.Fprintf(stderr, "gpuflight ranks: %s\n", p)
		}
		if err != nil {
			return nil, err
		}
	}
	return causes.Ranks(ctx, run, top)
}

func storedRanks(ctx context.Context, api queryAPI, sessions []string, run string, top int) (*ranks.Result, error) {
	query := url.Values{"limit": {strconv.Itoa(top)}}
	if run != "" {
		query.Set("run", run)
	}
	var ids []string
	for _, s := range sessions {
		found, err := api.find(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("%q is no file, and in the store %w", s, err)
		}
		ids = append(ids, found.ID)
	}
	if len(ids) > 0 {
		query.Set("sessions", strings.Join(ids, ","))
	}
	var result ranks.Result
	return &result, api.do(ctx, http.MethodGet, "/ranks?"+query.Encode(), nil, &result)
}
