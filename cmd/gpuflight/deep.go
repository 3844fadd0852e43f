// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/deep/control"
	"github.com/gpuflight/gpuflight/internal/report"
)

const deepUsage = `gpuflight deep requests a deep window of a running process: for a short time, an engine of the GPU
profiles the inside of kernels. It waits until the window has closed and prints the result. The
process sends the collected data with its telemetry. ctrl-C ends the wait; the window ends by itself.

A process accepts requests if it is recorded (gpuflight trace, libgpuflight.so or the SDK) with
GPUFLIGHT_DEEP=1 or one of the --deep-... flags. It accepts them from its own user and from root.

The exit code is 0 if something was collected, 3 if the window was refused or nothing could be
collected, and 1 if something failed or the process does not exist.

Usage:
  gpuflight deep [flags] PID
  gpuflight deep --list

Examples:
  gpuflight deep 4711
  gpuflight deep 4711 --for 2s --engine sass
  gpuflight deep 4711 --status

Flags:
`

// exitRefused is the exit code if a process refused the request.
const exitRefused = 3

// deepConfig holds the flags of gpuflight deep.
type deepConfig struct {
	pid                         int
	request                     control.Request
	list, status, close, asJSON bool
}

// parseDeep parses the flags, which may precede or follow the process id. It writes help to out.
func parseDeep(args []string, out io.Writer) (cfg deepConfig, err error) {
	fs := flag.NewFlagSet("deep", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	var length time.Duration
	fs.Func("for", "`duration` of the window (default: the setting of the process, or 2s)", func(s string) (err error) {
		if length, err = time.ParseDuration(s); err != nil {
			return errors.New("write a duration with its unit, such as 500ms or 2s")
		}
		return nil
	})
	engine := fs.String("engine", "", "pc (samples of program counters), sass (instruction counts), or both, half the time each (default: the setting of the process, or pc)")
	fs.BoolVar(&cfg.list, "list", false, "list the processes that accept requests")
	fs.BoolVar(&cfg.status, "status", false, "print the past and planned windows of a process, and the state of its rules")
	fs.BoolVar(&cfg.close, "close", false, "end the window that is open")
	fs.BoolVar(&cfg.asJSON, "json", false, "print JSON")
	wrong := func(format string, args ...any) (deepConfig, error) {
		return cfg, &usageError{fmt.Errorf(format, args...)}
	}
	rest, err := parse(fs, args, deepUsage, out)
	if err != nil {
		return cfg, err
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	actions := 0
	for _, b := range []bool{cfg.list, cfg.status, cfg.close} {
		if b {
			actions++
		}
	}
	switch {
	case actions > 1:
		return wrong("--list, --status and --close exclude each other: give one")
	case actions > 0 && (given["for"] || given["engine"]):
		return wrong("--for and --engine are for a new window")
	case cfg.list && len(rest) > 0:
		return wrong("--list takes no process")
	case cfg.list:
		return cfg, nil
	case len(rest) != 1:
		return wrong("give the id of one process; gpuflight deep --list shows those that accept requests")
	}
	if cfg.pid, err = strconv.Atoi(rest[0]); err != nil || cfg.pid <= 0 {
		return wrong("%q is not a process id", rest[0])
	}
	if _, err := deep.ParseEngine(*engine); err != nil {
		return wrong("--engine: %w", err)
	}
	cfg.request.Engine = *engine
	if given["for"] {
		if length < deep.MinFor || length > deep.MaxFor {
			return wrong("--for %v: a window is %v to %v long", length, deep.MinFor, deep.MaxFor)
		}
		cfg.request.For = length.String()
	}
	return cfg, nil
}

// deepCommand runs gpuflight deep and returns the exit status.
func deepCommand(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parseDeep(args, stdout)
	if err != nil {
		return status("deep", err, stderr)
	}
	return runDeep(ctx, &control.Client{Place: control.PlaceFromEnv(os.Getenv)}, cfg, stdout, stderr)
}

func runDeep(ctx context.Context, client *control.Client, cfg deepConfig, stdout, stderr io.Writer) int {
	var err error
	switch {
	case cfg.list:
		return status("deep", listDeep(client.List(ctx), cfg.asJSON, stdout, stderr), stderr)
	case cfg.status:
		err = statusDeep(ctx, client, cfg, stdout)
	case cfg.close:
		var found bool
		if found, err = client.Close(ctx, cfg.pid); err == nil && !found {
			fmt.Fprintf(stderr, "gpuflight deep: no window is open in process %d\n", cfg.pid)
			return exitRefused
		}
	default:
		return openDeep(ctx, client, cfg, stdout, stderr)
	}
	if err != nil {
		err = fmt.Errorf("process %d: %w", cfg.pid, err)
	}
	return status("deep", err, stderr)
}

// openDeep requests a window, waits until it closes and prints its result.
func openDeep(ctx context.Context, client *control.Client, cfg deepConfig, stdout, stderr io.Writer) int {
	opened := false
	w, err := client.Open(ctx, cfg.pid, cfg.request, func(w deep.Window) {
		opened = true
		fmt.Fprintf(stderr, "gpuflight: window %d of process %d is open: %s for %v\n", w.ID, cfg.pid, printable(string(w.Engine)), w.For)
	})
	var refused *deep.Error
	switch {
	case errors.As(err, &refused):
		fmt.Fprintf(stderr, "gpuflight deep: process %d refuses: %s\n", cfg.pid, printable(refused.Outcome.Text))
		if cfg.asJSON {
			if err := printJSON(stdout, map[string]deep.Outcome{"outcome": refused.Outcome}); err != nil {
				return status("deep", err, stderr)
			}
		}
		return exitRefused
	case err != nil && opened && ctx.Err() != nil:
		fmt.Fprintf(stderr, "gpuflight deep: interrupted; the window of process %d ends by itself\n", cfg.pid)
		return 1
	case err != nil:
		return status("deep", fmt.Errorf("process %d: %w", cfg.pid, err), stderr)
	}
	if cfg.asJSON {
		if err := printJSON(stdout, w); err != nil {
			return status("deep", err, stderr)
		}
	} else {
		describeWindow(stdout, &w)
	}
	switch w.Outcome.Status {
	case deep.StatusCollected:
		return 0
	case deep.StatusFailed, deep.StatusBroken:
		return 1
	}
	return exitRefused
}

// describeWindow prints a closed window: one line for the window and one for each engine.
func describeWindow(out io.Writer, w *deep.Window) {
	if w.Closed == "" {
		fmt.Fprintf(out, "window %d did not open: %s\n", w.ID, printable(w.Outcome.Text))
		return
	}
	fmt.Fprintf(out, "window %d: %s; it closed after %v (%s)\n", w.ID, printable(w.Outcome.Text), w.End.Sub(w.Start).Round(time.Millisecond), printable(string(w.Closed)))
	for i := range w.Parts {
		p := &w.Parts[i]
		if p.Outcome.Status != deep.StatusCollected {
			continue // the line above has the reason
		}
		line := fmt.Sprintf("  %s: %s %s in %s from %s", printable(string(p.Engine)), report.Count(p.Collected.Samples), p.Engine.Takes(), plural(p.Collected.Rows, "row", "rows"), plural(p.Collected.Functions, "function", "functions"))
		if p.Collected.Lost > 0 {
			line += fmt.Sprintf(", %s lost", report.Count(p.Collected.Lost))
		}
		if p.Paused {
			line += fmt.Sprintf("; kernels were not recorded for %v", p.End.Sub(p.Start).Round(time.Millisecond))
		}
		fmt.Fprintln(out, line)
	}
}

func statusDeep(ctx context.Context, client *control.Client, cfg deepConfig, out io.Writer) error {
	process, r, err := client.Status(ctx, cfg.pid)
	if err != nil {
		return err
	}
	if cfg.asJSON {
		return printJSON(out, struct {
			Process control.Process `json:"process"`
			Report  deep.Report     `json:"report"`
		}{process, r})
	}
	fmt.Fprintf(out, "process %d, %s %s\n", cfg.pid, orNone(process.Service), printable(process.Command))
	fmt.Fprintf(out, "%s, %s without data\n", plural(r.Windows, "window", "windows"), plural(r.Attempts, "attempt", "attempts"))
	if r.Open != nil {
		fmt.Fprintf(out, "open since %s: %s for %v, by %s\n", r.Open.Start.Local().Format(time.TimeOnly), printable(string(r.Open.Engine)), r.Open.For, printable(string(r.Open.Cause)))
	}
	switch {
	case r.Waits:
		fmt.Fprintln(out, "the schedule starts when the program uses the GPU")
	case !r.Next.IsZero():
		fmt.Fprintf(out, "next scheduled window: %s\n", r.Next.Local().Format(time.DateTime))
	}
	for _, reason := range slices.Sorted(maps.Keys(r.Refused)) {
		fmt.Fprintf(out, "refused because of %s: %s\n", printable(string(reason)), report.Count(r.Refused[reason]))
	}
	if r.Joined > 0 || r.Skipped > 0 {
		fmt.Fprintf(out, "joined a window: %s, skipped by the schedule: %s\n", report.Count(r.Joined), report.Count(r.Skipped))
	}
	if r.Broken != "" {
		fmt.Fprintf(out, "no window opens any more: %s\n", printable(r.Broken))
	}
	for _, s := range r.Rules {
		state := "waits"
		switch {
		case s.Fired:
			state = "has fired, waits until its condition clears"
		case s.Met:
			state = "holds"
		}
		fmt.Fprintf(out, "rule %s: %s (now %s, compared with %s)\n", printable(s.Rule), state, printable(s.Value), printable(s.Threshold))
	}
	if len(r.Recent) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WINDOW\tSTART\tENGINE\tBY\tCLOSED\tROWS\tSTATUS\tWHY")
	for i := range r.Recent {
		w := &r.Recent[i]
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", w.ID, w.Start.Local().Format(time.TimeOnly), printable(string(w.Engine)), printable(string(w.Cause)),
			orNone(string(w.Closed)), report.Count(w.Collected.Rows), printable(string(w.Outcome.Status)), printable(w.Why))
	}
	return t.Flush()
}

// listing is the JSON form of one process of the list.
type listing struct {
	PID     int             `json:"pid"`
	UID     int             `json:"uid"`
	Process control.Process `json:"process"`
	Windows uint64          `json:"windows"`
	Open    *deep.Window    `json:"open,omitempty"`
	Error   string          `json:"error,omitempty"`
}

func listDeep(list []control.Listed, asJSON bool, stdout, stderr io.Writer) error {
	if asJSON {
		all := []listing{}
		for i := range list {
			l := &list[i]
			item := listing{PID: l.PID, UID: l.UID, Process: l.Process, Windows: l.Report.Windows, Open: l.Report.Open}
			if l.Err != nil {
				item.Error = l.Err.Error()
			}
			all = append(all, item)
		}
		return printJSON(stdout, all)
	}
	if len(list) == 0 {
		fmt.Fprintln(stderr, "gpuflight deep: no process accepts requests; a process recorded with GPUFLIGHT_DEEP=1 does")
		return nil
	}
	t := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PID\tUSER\tWINDOWS\tOPEN\tSERVICE\tCOMMAND")
	for i := range list {
		l := &list[i]
		if l.Err != nil {
			fmt.Fprintf(t, "%d\t%d\t-\t-\t%s\t-\n", l.PID, l.UID, printable(l.Err.Error()))
			continue
		}
		open := "-"
		if l.Report.Open != nil {
			open = printable(string(l.Report.Open.Engine))
		}
		fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%s\t%s\n", l.PID, l.UID, report.Count(l.Report.Windows), open, orNone(l.Process.Service), orNone(l.Process.Command))
	}
	return t.Flush()
}

func printJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printable replaces control characters: the texts come from another process.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

func orNone(s string) string {
	if s == "" {
		return "-"
	}
	return printable(s)
}
