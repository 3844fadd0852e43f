// SPDX-License-Identifier: Apache-2.0

// Command gpuflgen writes the logs of a simulated training session in GPU Flight's format.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpuflight/gpuflight/internal/bytesize"
	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
)

const usage = `gpuflgen writes the logs of an invented training session, as GPU Flight would have written them.
The same flags give the same lines. At the end it prints what it wrote; --summary keeps that as JSON.

Usage:
  gpuflgen [flags]

Examples:
  gpuflgen --out logs                             a small session in the current layout
  gpuflgen --out logs --layout a2 --epochs 5      the first published layout
  gpuflgen --out logs --live --steps 100          write as it happens, from now on
  gpuflgen --out logs --bytes 2GiB --seed 7       a large one
  gpuflgen --out logs --layout a2 --kernels 1000000 --line-bytes 300 --samples 0
  gpuflgen --out logs --kernels 1000000 --stack-bytes 1500 --compress=false

Flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run returns the exit status: 0 success, 1 failure, 2 invalid flags.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, summaryFile, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "gpuflgen: %v\nSee gpuflgen --help.\n", err)
		return 2
	}
	if err := generate(ctx, cfg, summaryFile, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "gpuflgen: %v\n", err)
		return 1
	}
	return 0
}

func generate(ctx context.Context, cfg gpuflgen.Config, summaryFile string, stdout, stderr io.Writer) error {
	began := time.Now()
	sum, err := gpuflgen.Run(ctx, cfg)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		fmt.Fprintln(stderr, "gpuflgen: interrupted; the session is closed and complete up to here")
	}
	if summaryFile == "-" {
		return writeSummary(stdout, sum)
	}
	if summaryFile != "" {
		f, err := os.Create(summaryFile)
		if err != nil {
			return err
		}
		if err := errors.Join(writeSummary(f, sum), f.Close()); err != nil {
			return err
		}
	}
	printSummary(stdout, cfg, sum, time.Since(began))
	return nil
}

// parse converts the flags into a configuration. It prints help to out.
func parse(args []string, out io.Writer) (cfg gpuflgen.Config, summaryFile string, err error) {
	fs := flag.NewFlagSet("gpuflgen", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	var layout, start string
	var details, compress bool
	var size, rotate byteCount

	fs.StringVar(&cfg.Dir, "out", "", "`folder` for the logs; made if missing (required)")
	fs.StringVar(&layout, "layout", "c3", "c3: session folders, as written today; a2: flat files, as first published")
	fs.StringVar(&cfg.App, "app", "minigpt", "application `name`")
	fs.Uint64Var(&cfg.Seed, "seed", 0, "which session; the same seed and flags give the same lines")
	fs.IntVar(&cfg.Sessions, "sessions", 1, "sessions, one after the other")
	fs.StringVar(&start, "start", "", "first `moment`: now, -10m (ten minutes ago), RFC 3339 or Unix ns (default: depends on the seed only)")

	fs.IntVar(&cfg.Epochs, "epochs", 2, "epochs; without meaning where kernels, lines or bytes bound the session")
	fs.IntVar(&cfg.StepsPerEpoch, "steps", 10, "training steps in an epoch")
	fs.IntVar(&cfg.Layers, "layers", 8, "layers of the model; a step has about 35 kernels a layer")
	fs.Int64Var(&cfg.Kernels, "kernels", 0, "stop after exactly `n` kernels")
	fs.Int64Var(&cfg.Lines, "lines", 0, "stop once there are `n` lines in all files together")
	fs.Var(&size, "bytes", "stop once there are that many `bytes` before compression (512MiB, 2GiB)")
	fs.DurationVar(&cfg.StepInterval, "step-interval", 40*time.Millisecond, "least session time between the starts of two steps")

	fs.IntVar(&cfg.StackBytes, "stack-bytes", 0, "length of the host stacks, in `bytes`; 0 for none (default: 1300 in c3, 160 in a2)")
	fs.IntVar(&cfg.DistinctStacks, "stacks", 200, "number of different host stacks")
	fs.IntVar(&cfg.LineBytes, "line-bytes", 0, "a2: length of a kernel line; under 700 it has short names and only the keys that place it in time and scope")
	fs.BoolVar(&details, "details", true, "write launch parameters")
	fs.IntVar(&cfg.Samples, "samples", 4, "PC samples, and SASS counters, per step; 0 for none")
	fs.IntVar(&cfg.Devices, "devices", 1, "GPUs in the device metrics; kernels run on the first")

	fs.Var(&rotate, "rotate-bytes", "rotate a file at that size in `bytes`; 0 for never (default 64MiB)")
	fs.DurationVar(&cfg.RotateAfter, "rotate-after", 0, "c3: also rotate a file of that age in session time (default: never)")
	fs.BoolVar(&compress, "compress", true, "gzip rotated files")

	fs.BoolVar(&cfg.Live, "live", false, "write each record when it happens, from now on")
	fs.Float64Var(&cfg.Speed, "speed", 1, "with --live: faster or slower than the clock")
	fs.DurationVar(&cfg.FlushInterval, "flush-interval", 250*time.Millisecond, "with --live: how long a record may stay in memory")
	fs.BoolVar(&cfg.Pieces, "pieces", false, "write in pieces of random length, partial lines included")
	fs.BoolVar(&cfg.Crash, "crash", false, "end like a killed program: half a line, no shutdown, in c3 .tmp left behind")
	fs.StringVar(&summaryFile, "summary", "", "write what was written as JSON to `file`; - for standard output")

	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(out, usage)
			fs.SetOutput(out)
			fs.PrintDefaults()
			return cfg, "", err
		}
		return cfg, "", err
	}
	if fs.NArg() > 0 {
		return cfg, "", fmt.Errorf("%q is not a flag: the output folder goes after --out", fs.Arg(0))
	}
	if cfg.Dir == "" {
		return cfg, "", errors.New("no output folder: add --out FOLDER")
	}
	cfg.Layout = gpuflgen.Layout(strings.ToLower(layout))
	cfg.Bytes, cfg.RotateBytes = int64(size), int64(rotate)
	cfg.NoDetails, cfg.NoCompress = !details, !compress
	if err := readZeros(fs, &cfg); err != nil {
		return cfg, "", err
	}
	if cfg.Start, err = parseStart(start, time.Now()); err != nil {
		return cfg, "", err
	}
	if err := cfg.Validate(); err != nil {
		return cfg, "", err
	}
	return cfg, summaryFile, nil
}

// readZeros converts an explicit zero to its plain meaning, because the library reads zero as the
// default.
func readZeros(fs *flag.FlagSet, cfg *gpuflgen.Config) (err error) {
	fs.Visit(func(f *flag.Flag) {
		if v := f.Value.String(); v != "0" && v != "0s" {
			return
		}
		switch f.Name {
		case "samples":
			cfg.Samples = -1
		case "stack-bytes":
			cfg.StackBytes = -1
		case "rotate-bytes":
			cfg.RotateBytes = -1
		case "sessions", "epochs", "steps", "layers", "devices", "stacks", "step-interval", "speed", "flush-interval":
			err = errors.Join(err, fmt.Errorf("--%s 0: use more than 0", f.Name))
		}
	})
	return err
}

// parseStart parses the start time. An empty string is the zero time; the seed then determines the
// start.
func parseStart(s string, now time.Time) (time.Time, error) {
	switch s {
	case "":
		return time.Time{}, nil
	case "now":
		return now, nil
	}
	if d, err := time.ParseDuration(s); err == nil {
		return now.Add(d), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return time.Unix(0, n), nil
	}
	return time.Time{}, fmt.Errorf("start %q: use now, a duration such as -10m, a time such as 2026-08-07T12:00:00Z, or Unix nanoseconds", s)
}

// byteCount is a flag value: a number of bytes, with an optional binary or decimal unit.
type byteCount int64

func (b *byteCount) String() string { return strconv.FormatInt(int64(*b), 10) }

func (b *byteCount) Set(s string) error {
	n, err := bytesize.Parse(s)
	if err == nil {
		*b = byteCount(n)
	}
	return err
}

func writeSummary(out io.Writer, sum gpuflgen.Summary) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(sum)
}

func printSummary(out io.Writer, cfg gpuflgen.Config, sum gpuflgen.Summary, took time.Duration) {
	for _, s := range sum.Sessions {
		state := "complete"
		if !s.Clean {
			state = "without shutdown"
		}
		fmt.Fprintf(out, "session %s: %v from %s, %s\n", s.ID, time.Duration(s.EndUnixNano-s.StartUnixNano).Round(time.Millisecond),
			time.Unix(0, s.StartUnixNano).UTC().Format(time.RFC3339), state)
	}
	fmt.Fprintf(out, "%s: %d lines, %.1f MB, %d kernels (%v), %d copies, %d scopes, %d samples, in %v\n", cfg.Dir,
		sum.Lines, float64(sum.Bytes)/1e6, sum.Rows[gpuflgen.RowKernel], time.Duration(sum.KernelNanos).Round(time.Microsecond),
		sum.Rows[gpuflgen.RowCopy], sum.Rows[gpuflgen.RowScopeBegin],
		sum.Rows[gpuflgen.RowPCSample]+sum.Rows[gpuflgen.RowSASSMetric], took.Round(time.Millisecond))
}
