// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/analysis/compare"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/report"
)

const diffUsage = `gpuflight diff says what changed from A to B: the time of a step with the causes, kernels and scopes,
each with a statistical test. A and B are both recordings (OTLP as JSON lines or GPU Flight logs, also
folders), or both sessions in the store of a Collector: an id, its beginning, or the name of a baseline.
Of a recording with several sessions it compares the one with the most kernel time.

The exit status is 1 if a step, kernel or scope is significantly slower by more than --fail-over, 2 if
the comparison failed, otherwise 0.

Usage:
  gpuflight diff [flags] A B

Examples:
  gpuflight diff before.otlp.jsonl after.otlp.jsonl
  gpuflight diff --fail-over 5% main 1262bb67
  gpuflight sessions baseline main 8c01f2aa

Flags:
`

// diffCommand returns the exit status: see diffUsage.
func diffCommand(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	slower, err := runDiff(ctx, args, stdout, stderr)
	switch code := status("diff", err, stderr); {
	case code != 0:
		return 2
	case slower:
		return 1
	}
	return 0
}

func runDiff(ctx context.Context, args []string, stdout, stderr io.Writer) (slower bool, err error) {
	fs := flag.NewFlagSet("diff", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	failOver := fs.String("fail-over", "", "largest accepted slowdown, such as `5%`")
	asJSON := fs.Bool("json", false, "print one object of JSON instead of tables")
	address := fs.String("url", defaultURL, "address of the Collector's query API")
	args, err = parse(fs, args, diffUsage, stdout)
	if err != nil {
		return false, err
	}
	if len(args) != 2 {
		return false, &usageError{errors.New("give two recordings or two sessions")}
	}
	d := report.Diff{A: args[0], B: args[1], Limit: -1}
	if *failOver != "" {
		if d.Limit, err = parseShare(*failOver); err != nil {
			return false, &usageError{fmt.Errorf("--fail-over %q: %w", *failOver, err)}
		}
	}
	if err := checkURL(*address); err != nil {
		return false, err
	}
	fileA, fileB := isRecording(args[0]), isRecording(args[1])
	switch {
	case fileA && fileB:
		d.Comparison, err = compareFiles(ctx, args, stderr)
	case fileA != fileB:
		return false, &usageError{errors.New("give two recordings or two sessions: send the recording to the Collector, or export the session")}
	default:
		var answer compare.Answer
		answer, err = compareStored(ctx, *address, args)
		d.Comparison = answer.Comparison
		if *asJSON { // a table has the names that the user gave
			d.A, d.B = answer.SessionA, answer.SessionB
		}
	}
	if err != nil {
		return false, err
	}
	if *asJSON {
		err = d.WriteJSON(stdout)
	} else {
		err = d.Write(stdout, terminalWidth(stdout))
	}
	return d.Limit >= 0 && len(d.Regressions(d.Limit)) > 0, err
}

// isRecording says whether an argument is a recording. What looks like a path is one even if it does not exist.
func isRecording(arg string) bool {
	_, err := os.Stat(arg)
	return err == nil || strings.ContainsAny(arg, `/\`) || strings.Contains(arg, ".json")
}

// parseShare reads a share such as 5% or 0.05.
func parseShare(text string) (float64, error) {
	number, percent := strings.CutSuffix(text, "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if percent {
		v /= 100
	}
	if err != nil || math.IsNaN(v) || v < 0 || v > 100 {
		return 0, errors.New("write for example 5%")
	}
	return v, nil
}

func compareFiles(ctx context.Context, paths []string, stderr io.Writer) (*compare.Comparison, error) {
	var sides [2]*analysis.Profile
	for i, path := range paths {
		var causes report.Causes
		handler := otlp.Handler{Traces: causes.Traces, Logs: causes.Logs, Metrics: func(pmetric.Metrics) {}}
		problems, err := report.ReadTelemetry(path, handler)
		for k, p := range problems {
			if k == maxProblems {
				fmt.Fprintf(stderr, "gpuflight diff: and %d more\n", len(problems)-k)
				break
			}
			fmt.Fprintf(stderr, "gpuflight diff: %s\n", p)
		}
		if err != nil {
			return nil, err
		}
		profile, sessions, err := causes.Profile(ctx)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", path, err)
		case profile == nil:
			return nil, fmt.Errorf("%s: it contains no kernels", path)
		case sessions > 1:
			fmt.Fprintf(stderr, "gpuflight diff: %s: compares 1 of %d sessions, the one with the most kernel time\n", path, sessions)
		}
		sides[i] = profile
	}
	return compare.Sessions(sides[0], sides[1]), nil
}

// compareStored compares two sessions of a store. A name of a baseline comes before the beginning of an id.
func compareStored(ctx context.Context, address string, names []string) (c compare.Answer, err error) {
	api := queryAPI{address}
	baselines, err := api.baselines(ctx)
	if err != nil {
		return c, err
	}
	query := url.Values{}
	for i, name := range names {
		id := ""
		for _, b := range baselines {
			if b.Name == name {
				id = b.Session
			}
		}
		if id == "" {
			found, err := api.find(ctx, name)
			if err != nil {
				return c, fmt.Errorf("%q is no file and no baseline: %w", name, err)
			}
			id = found.ID
		}
		query.Set([]string{"a", "b"}[i], id)
	}
	return c, api.do(ctx, http.MethodGet, "/compare?"+query.Encode(), nil, &c)
}
