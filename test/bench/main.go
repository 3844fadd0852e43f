// SPDX-License-Identifier: Apache-2.0

// Command bench measures log lines per second of processor time. It compares our gpuflog receiver,
// which feeds traces, logs and metrics, with file_log and json_parser, which feed logs. Both run in
// the same collector binary, over the same files, into nop exporters, with GOMAXPROCS=1.
//
// A round is one run of each, so that other load affects both. Processor time is the child's user
// and system time, minus that of the same configuration on an empty folder. Only ratios and memory
// have limits. The exit status is 1 if one of them is exceeded.
//
//	go run ./test/bench            everything: some minutes and 5 GB of disk
//	go run ./test/bench --quick    a small size that checks counts and memory, not the ratios
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
)

// maxRSS is the bound on the resident memory of a collector that runs gpuflog.
const maxRSS = 256 << 20

// workload is one set of files and what is asked of gpuflog on it.
type workload struct {
	name, what string
	gen        gpuflgen.Config
	// ratio is the minimum quotient of lines per processor second, gpuflog to file_log. With 0,
	// file_log is skipped.
	ratio float64
	// rounds replaces the command line's number of rounds if set.
	rounds int
}

// workloads for n kernels in each of the compared ones and size bytes in the memory check.
func workloads(n, size int64) []workload {
	return []workload{
		{
			name: "a2", what: "A2 kernel lines of about 300 bytes", ratio: 5,
			gen: gpuflgen.Config{Layout: gpuflgen.A2, App: "bench", Kernels: n, LineBytes: 300, Samples: -1, RotateBytes: -1},
		},
		{
			name: "details", what: "C3 kernel_detail lines of about 2 KB with host stacks", ratio: 4,
			gen: gpuflgen.Config{Layout: gpuflgen.C3, App: "bench", Kernels: n, StackBytes: 1500, NoCompress: true},
		},
		{
			name: "memory", what: "C3 session in gzip windows, memory only", rounds: 1,
			gen: gpuflgen.Config{Layout: gpuflgen.C3, App: "bench", Bytes: size},
		},
	}
}

type options struct {
	collector, only, profile, dir string
	rounds                        int
	quick, baseline, keep         bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.StringVar(&o.collector, "collector", "bin/otelcol-gpuflight", "collector `binary` to measure; make build makes it")
	flag.StringVar(&o.only, "only", "", "workloads to run, comma-separated: a2, details, memory (default: all)")
	flag.StringVar(&o.profile, "profile", "", "write processor profiles of the runs into this `folder`; ratios are then not judged")
	flag.StringVar(&o.dir, "dir", "", "`folder` for the files (default: a temporary one)")
	flag.IntVar(&o.rounds, "rounds", 3, "runs of each receiver")
	flag.BoolVar(&o.quick, "quick", false, "small files, one round; ratios are not judged")
	flag.BoolVar(&o.baseline, "baseline", false, "run file_log only")
	flag.BoolVar(&o.keep, "keep", false, "leave the files there at the end")
	flag.Parse()
	failed, err := bench(ctx, o, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
	if failed || err != nil {
		stop()
		os.Exit(1)
	}
}

// bench runs the selected workloads; failed reports that a limit was exceeded.
func bench(ctx context.Context, o options, out io.Writer) (failed bool, err error) {
	if _, err := os.Stat(o.collector); err != nil {
		return false, fmt.Errorf("%w: build it with make build, or name another with --collector", err)
	}
	if o.rounds < 1 {
		return false, errors.New("--rounds must be at least 1")
	}
	list := workloads(1_000_000, 2<<30)
	if o.quick {
		list, o.rounds = workloads(50_000, 128<<20), 1
	}
	if o.only != "" {
		names := strings.Split(o.only, ",")
		for _, name := range names {
			if !slices.ContainsFunc(list, func(w workload) bool { return w.name == name }) {
				return false, fmt.Errorf("no workload %q: use a2, details or memory", name)
			}
		}
		list = slices.DeleteFunc(list, func(w workload) bool { return !slices.Contains(names, w.name) })
	}
	base, err := os.MkdirTemp(o.dir, "gpuflog-bench-")
	if err != nil {
		return false, err
	}
	if o.keep {
		fmt.Fprintln(out, "files are in", base)
	} else {
		defer func() { err = errors.Join(err, os.RemoveAll(base)) }()
	}
	for _, w := range list {
		if o.baseline && w.ratio == 0 {
			continue
		}
		missed, err := w.run(ctx, o, base, out)
		if err != nil {
			return failed, fmt.Errorf("workload %s: %w", w.name, err)
		}
		failed = failed || missed
	}
	return failed, nil
}

// run generates the workload's files, measures, prints, and removes the files again.
func (w workload) run(ctx context.Context, o options, base string, out io.Writer) (missed bool, err error) {
	w.gen.Dir = filepath.Join(base, w.name, "logs")
	w.gen.Seed = 1
	sum, err := gpuflgen.Run(ctx, w.gen)
	if err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if !o.keep {
		defer func() { err = errors.Join(err, os.RemoveAll(filepath.Join(base, w.name))) }()
	}
	empty := filepath.Join(base, w.name, "empty")
	if err := os.MkdirAll(empty, 0o755); err != nil {
		return false, err
	}
	if err := readAll(w.gen.Dir); err != nil {
		return false, err
	}
	fmt.Fprintf(out, "\n%s: %s: %d lines, %.0f MB, %.0f bytes a line\n", w.name, w.what, sum.Lines,
		float64(sum.Bytes)/1e6, float64(sum.Bytes)/float64(sum.Lines))

	receivers := []receiver{gpuflog(sum), fileLog(sum)}
	switch {
	case o.baseline:
		receivers = receivers[1:]
	case w.ratio == 0:
		receivers = receivers[:1]
	}
	rounds := o.rounds
	if w.rounds > 0 {
		rounds = w.rounds
	}
	results := make([][]result, len(receivers))
	for round := range rounds {
		for i, r := range receivers {
			c := child{binary: o.collector, work: filepath.Join(base, w.name), receiver: r}
			if o.profile != "" {
				c.profile = filepath.Join(o.profile, fmt.Sprintf("%s-%s-%d.pprof", w.name, r.name, round))
			}
			res, err := measure(ctx, c, w.gen.Dir, empty)
			if err != nil {
				return false, fmt.Errorf("%s: %w", r.name, err)
			}
			res.lines = sum.Lines
			results[i] = append(results[i], res)
		}
	}
	return w.report(o, out, receivers, results), nil
}

// report prints the runs and reports whether a limit was exceeded.
func (w workload) report(o options, out io.Writer, receivers []receiver, results [][]result) (missed bool) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "receiver\tround\tCPU s\tstart-up s\tlines/CPU s\tpeak RSS MiB\tspans\tlogs\tpoints\t")
	medians := make([]float64, len(receivers))
	var peak int64
	for i, r := range receivers {
		var speeds []float64
		for n, res := range results[i] {
			fmt.Fprintf(t, "%s\t%d\t%.2f\t%.2f\t%.0f\t%d\t%.0f\t%.0f\t%.0f\t\n", r.name, n+1, res.cpu.Seconds(),
				res.startup.Seconds(), res.speed(), res.rss>>20, res.got[spansMetric], res.got[logsMetric], res.got[pointsMetric])
			speeds = append(speeds, res.speed())
			if r.name == gpuflogName {
				peak = max(peak, res.rss)
			}
		}
		medians[i] = median(speeds)
	}
	_ = t.Flush() // to a terminal or pipe: nothing to do about it
	if len(receivers) == 2 {
		ratio := medians[0] / medians[1]
		verdict := fmt.Sprintf("at least %.0f wanted", w.ratio)
		if o.quick || o.profile != "" {
			verdict = "not judged"
		} else if !(ratio >= w.ratio) {
			verdict, missed = verdict+": MISSED", true
		}
		fmt.Fprintf(out, "ratio %.2f (%s)\n", ratio, verdict)
	}
	if !o.baseline {
		verdict := ""
		if peak >= maxRSS {
			verdict, missed = ": MISSED", true
		}
		fmt.Fprintf(out, "peak RSS of gpuflog %d MiB (less than %d wanted)%s\n", peak>>20, maxRSS>>20, verdict)
	}
	return missed
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	if n%2 == 1 {
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

// readAll reads every file once, so that no run pays for a cold page cache.
func readAll(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, f)
		return errors.Join(err, f.Close())
	})
}

// result is one run, start-up already taken off the processor time.
type result struct {
	cpu, startup time.Duration
	rss          int64
	lines        int64
	got          counters
}

// speed is in lines per second of processor time.
func (r result) speed() float64 { return float64(r.lines) / r.cpu.Seconds() }
