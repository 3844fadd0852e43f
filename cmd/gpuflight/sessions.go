// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/gpuflight/gpuflight/internal/report"
)

const sessionsUsage = `gpuflight sessions works with the sessions in the store of a Collector. Instead of an id, the beginning
of an id is enough. Pinned sessions and baselines are never deleted by the store itself. If the Collector requires a key, set
GPUFLIGHT_KEY.

Usage:
  gpuflight sessions [flags] list [TEXT]         list sessions, of which the id, application, host or run contains TEXT
  gpuflight sessions [flags] show ID             print what is stored of a session, and its longest kernels
  gpuflight sessions [flags] pin|unpin ID...
  gpuflight sessions [flags] baselines           list the names of sessions that others are compared with
  gpuflight sessions [flags] baseline NAME ID    give a session a name, which another session loses
  gpuflight sessions [flags] delete-baseline NAME
  gpuflight sessions [flags] delete ID...
  gpuflight sessions [flags] export ID FILE      write a session to a new file
  gpuflight sessions [flags] import FILE...      add sessions from exported files

Examples:
  gpuflight sessions list train
  gpuflight sessions export 1262bb67 slow-step.duckdb

Flags:
`

func runSessions(ctx context.Context, args []string, stdout io.Writer) error {
	fs := flag.NewFlagSet("sessions", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	address := fs.String("url", defaultURL, "address of the Collector's query API")
	args, err := parse(fs, args, sessionsUsage, stdout)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		args = []string{""}
	}
	if err := checkURL(*address); err != nil {
		return err
	}
	api := queryAPI{*address}
	action, rest := args[0], args[1:]
	each := func(method, path, done string) error {
		for _, id := range rest {
			s, err := api.find(ctx, id)
			if err != nil {
				return err
			}
			if err := api.do(ctx, method, "/sessions/"+url.PathEscape(s.ID)+path, nil, nil); err != nil {
				return err
			}
			fmt.Fprintf(stdout, "%s %s\n", done, s.ID)
		}
		return nil
	}
	count := len(rest)
	switch {
	case action == "list" && count <= 1:
		return listSessions(ctx, api, append(rest, "")[0], stdout)
	case action == "show" && count == 1:
		return showSession(ctx, api, rest[0], stdout)
	case action == "pin" && count > 0:
		return each(http.MethodPut, "/pin", "pinned")
	case action == "unpin" && count > 0:
		return each(http.MethodDelete, "/pin", "unpinned")
	case action == "delete" && count > 0:
		return each(http.MethodDelete, "", "deleted")
	case action == "baselines" && count == 0:
		return listBaselines(ctx, api, stdout)
	case action == "baseline" && count == 2:
		found, err := api.find(ctx, rest[1])
		if err != nil {
			return err
		}
		query := url.Values{"session": {found.ID}}
		if err := api.do(ctx, http.MethodPut, "/baselines/"+url.PathEscape(rest[0])+"?"+query.Encode(), nil, nil); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%s is now %s\n", rest[0], found.ID)
		return nil
	case action == "delete-baseline" && count == 1:
		if err := api.do(ctx, http.MethodDelete, "/baselines/"+url.PathEscape(rest[0]), nil, nil); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "deleted the name %s\n", rest[0])
		return nil
	case action == "export" && count == 2:
		found, err := api.find(ctx, rest[0])
		if err != nil {
			return err
		}
		return api.export(ctx, &found, nil, rest[1], stdout)
	case action == "import" && count > 0:
		for _, path := range rest {
			id, err := importSession(ctx, api, path)
			if err != nil {
				return err
			}
			fmt.Fprintf(stdout, "imported %s\n", id)
		}
		return nil
	}
	return &usageError{errors.New("use list, show, pin, unpin, baselines, baseline, delete-baseline, delete, export or import with the arguments that --help shows")}
}

func listSessions(ctx context.Context, api queryAPI, text string, stdout io.Writer) error {
	list, err := api.sessions(ctx, text)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		fmt.Fprintln(stdout, "no sessions")
		return nil
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tAPPLICATION\tHOST\tSTARTED\tDURATION\tKERNELS\tKERNEL TIME\tSIZE\tSTATE")
	for _, s := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%v\t%s\t%v\t%s\t%s\n", s.ID, report.Shorten(s.Service), report.Shorten(s.Host),
			time.Unix(0, s.Start).Format(time.DateTime), time.Duration(s.DurationNs).Round(time.Millisecond),
			report.Count(uint64(s.Operations["kernel"])), time.Duration(s.KernelNs).Round(time.Microsecond),
			humanize.IBytes(uint64(s.Bytes)), s.state())
	}
	return w.Flush()
}

// shownKernels is the number of kernels that showSession prints.
const shownKernels = 10

func showSession(ctx context.Context, api queryAPI, id string, stdout io.Writer) error {
	s, err := api.find(ctx, id)
	if err != nil {
		return err
	}
	var kernels struct {
		Groups []struct {
			Name  string        `json:"name"`
			Count uint64        `json:"count"`
			Sum   time.Duration `json:"sum_ns"`
			P50   time.Duration `json:"p50_ns"`
			P99   time.Duration `json:"p99_ns"`
			Max   time.Duration `json:"max_ns"`
		} `json:"groups"`
		Total struct {
			Groups uint64 `json:"groups"`
		} `json:"total"`
	}
	path := "/sessions/" + url.PathEscape(s.ID)
	if err := api.do(ctx, http.MethodGet, fmt.Sprintf("%s/kernels?limit=%d", path, shownKernels), nil, &kernels); err != nil {
		return err
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fact := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s:\t%s\n", name, value)
		}
	}
	fact("session", s.ID)
	fact("application", report.Shorten(s.Service))
	fact("host", report.Shorten(s.Host))
	if s.PID != 0 {
		fact("process", strconv.FormatInt(s.PID, 10))
	}
	fact("run", report.Shorten(s.Run))
	rank := s.Rank
	if s.RankSize != "" {
		rank += " of " + s.RankSize
	}
	fact("rank", report.Shorten(rank))
	fact("started", time.Unix(0, s.Start).Format(time.DateTime))
	fact("duration", report.Time(time.Duration(s.DurationNs)))
	for _, kind := range slices.Sorted(maps.Keys(s.Operations)) {
		fact(kind, report.Count(uint64(s.Operations[kind])))
	}
	fact("kernel time", report.Time(time.Duration(s.KernelNs)))
	fact("size", humanize.IBytes(uint64(s.Bytes)))
	fact("state", s.state())
	fact("page", strings.TrimSuffix(api.address, "/")+path)
	if len(kernels.Groups) > 0 {
		fmt.Fprintln(w, "\nTOTAL\tLAUNCHES\tP50\tP99\tMAX\tKERNEL")
	}
	for _, k := range kernels.Groups {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", report.Time(k.Sum), report.Count(k.Count), report.Time(k.P50), report.Time(k.P99),
			report.Time(k.Max), report.Shorten(k.Name))
	}
	if n := uint64(len(kernels.Groups)); kernels.Total.Groups > n {
		fmt.Fprintf(w, "(%s more kernels)\n", report.Count(kernels.Total.Groups-n))
	}
	return w.Flush()
}

func listBaselines(ctx context.Context, api queryAPI, stdout io.Writer) error {
	list, err := api.baselines(ctx)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		fmt.Fprintln(stdout, "no baselines")
		return nil
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSESSION")
	for _, b := range list {
		fmt.Fprintf(w, "%s\t%s\n", b.Name, b.Session)
	}
	return w.Flush()
}

func importSession(ctx context.Context, api queryAPI, path string) (id string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	if id, err = api.add(ctx, file); err != nil {
		return "", fmt.Errorf("import %s: %w", path, err)
	}
	return id, nil
}
