// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command store measures the embedded store: spans per second from OTLP bytes to rows, bytes for each
// kernel, and memory. It asks the questions of the UI while 40,000 rows/s arrive and after sealing. It
// asks the same of other schemas in the same run.
//
// The data is a generated training (package storetest) in one session, or with -recording the kernels of
// recordings, repeated with new ids and times. GPUFLIGHT_BENCH_KERNELS sets the number of kernels;
// 100,000,000 takes about half an hour. No answer of the store comes from its cache: each commit empties
// it, and after sealing each round opens the store again.
//
// With -directory, the store stays, and -phases selects what to do with it: decode, load (up to the number
// of kernels), live, sealed and analysis. So each part may be a process of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/duckstore"
	"github.com/gpuflight/gpuflight/internal/store/rows"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

const (
	session    = "training"
	batchSteps = 20
	batchRows  = batchSteps * storetest.TrainingStep
	// liveRows arrive in each interval of livePeriod: 40,000 rows/s.
	liveRows   = 20_000
	livePeriod = 500 * time.Millisecond
	rounds     = 20
	// steps is the question that reads the kernels of 10,000 steps. It takes seconds.
	steps      = "10,000 steps, busy time"
	stepRounds = 2
	// decodedSpans is the number of spans that are read from OTLP bytes.
	decodedSpans = 500_000
)

func main() {
	kernels := int64(2_000_000)
	if n, err := strconv.ParseInt(os.Getenv("GPUFLIGHT_BENCH_KERNELS"), 10, 64); err == nil {
		kernels = n
	}
	flag.Int64Var(&kernels, "kernels", kernels, "kernels of the session")
	peers := flag.Int64("peers", 200_000, "kernels for the comparison with other schemas; 0 skips it")
	launcher := flag.String("chdb", ".tools/chdb/chdb", "the launcher that scripts/chdb makes")
	directory := flag.String("directory", "", "the folder of the stores, which stay; empty means a temporary one")
	phases := flag.String("phases", strings.Join(allPhases, ","), "what to measure")
	var recordings []string
	flag.Func("recording", "repeat this recording, OTLP in lines of JSON, compressed by gzip; several follow one another", func(file string) error {
		recordings = append(recordings, file)
		return nil
	})
	profile := flag.String("profile", "", "write a CPU profile to this file")
	flag.Parse()
	if *profile != "" {
		f, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "store:", err)
			os.Exit(1)
		}
		defer pprof.StopCPUProfile()
	}
	if err := run(strings.Split(*phases, ","), recordings, kernels, *peers, *launcher, *directory); err != nil {
		fmt.Fprintln(os.Stderr, "store:", err)
		os.Exit(1)
	}
}

var allPhases = []string{"decode", "load", "live", "sealed", "analysis"}

func run(phases, recordings []string, kernels, peers int64, launcher, work string) (err error) {
	for _, p := range phases {
		if !slices.Contains(allPhases, p) {
			return fmt.Errorf("unknown phase %q: choose from %s", p, strings.Join(allPhases, ", "))
		}
	}
	if work == "" {
		if work, err = os.MkdirTemp("", "gpuflight-store-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	}
	dir := filepath.Join(work, "decode")
	if slices.Contains(phases, "decode") {
		if err := errors.Join(decode(dir), os.RemoveAll(dir)); err != nil {
			return err
		}
	}
	if err := ours(filepath.Join(work, "store"), phases, recordings, kernels); err != nil {
		return err
	}
	if peers == 0 {
		return nil
	}
	return comparePeers(work, launcher, peers)
}

// decode measures the way from OTLP bytes to committed rows.
func decode(dir string) (err error) {
	ctx := context.Background()
	s, err := duckstore.Open(ctx, duckstore.Config{Directory: dir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	g := storetest.NewTraining(0)
	var d rows.Decoder
	var cpu, unmarshal, toRows, wall time.Duration
	var spans, bytes int64
	for spans < decodedSpans {
		td, err := spansOf(g.Batch(batchSteps))
		if err != nil {
			return err
		}
		otlp, err := (&ptrace.ProtoMarshaler{}).MarshalTraces(td)
		if err != nil {
			return err
		}
		begin, start := processorTime(), time.Now()
		if td, err = (&ptrace.ProtoUnmarshaler{}).UnmarshalTraces(otlp); err != nil {
			return err
		}
		unmarshal += processorTime() - begin
		batches := d.Traces("", td)
		toRows += processorTime() - begin
		r, err := s.Write(ctx, batches)
		if err != nil {
			return err
		}
		cpu += processorTime() - begin
		wall += time.Since(start)
		spans += r.Written
		bytes += int64(len(otlp))
		if n := int64(td.SpanCount()); r.Written != n {
			return fmt.Errorf("wrote %d of %d spans", r.Written, n)
		}
	}
	n := float64(spans)
	fmt.Printf("OTLP bytes to rows: %d spans of %.0f bytes\n\n| | |\n|---|--:|\n", spans, float64(bytes)/n)
	fmt.Printf("| spans/s per core | %.0f |\n| spans/s, wall | %.0f |\n", n/cpu.Seconds(), n/wall.Seconds())
	fmt.Printf("| ns of a core for a span: unmarshal, rows, store | %.0f, %.0f, %.0f |\n\n", float64(unmarshal)/n, float64(toRows-unmarshal)/n,
		float64(cpu-toRows)/n)
	return nil
}

// ours measures the store with a number of kernels.
func ours(dir string, phases, recordings []string, kernels int64) (err error) {
	ctx := context.Background()
	config := duckstore.Config{Directory: dir}
	// with opens the store and calls run.
	with := func(run func(store.Store) error) error {
		s, err := duckstore.Open(ctx, config)
		if err != nil {
			return err
		}
		return errors.Join(run(s), s.Close(ctx))
	}
	if slices.Contains(phases, "load") || slices.Contains(phases, "live") {
		err := with(func(s store.Store) error {
			info, err := s.Session(ctx, "", session)
			if err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			g, err := newSource(recordings, info.LastNs)
			if err == nil && slices.Contains(phases, "load") {
				err = load(ctx, s, g, info.Operations[store.OpKernel], kernels)
			}
			if err == nil && slices.Contains(phases, "live") {
				err = live(ctx, s, g)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if slices.Contains(phases, "analysis") {
		defer func() { err = errors.Join(err, analyse(ctx, with)) }()
	}
	if !slices.Contains(phases, "sealed") {
		return nil
	}
	err = with(func(s store.Store) error {
		begin, cpu := time.Now(), processorTime()
		err := s.Seal(ctx, "", session)
		fmt.Printf("Sealing: %.1f s, %.1f s of processors\n\n", time.Since(begin).Seconds(), (processorTime() - cpu).Seconds())
		return err
	})
	t := newTimes()
	t.repeated = len(recordings) > 0
	var last store.Op
	for i := 0; i < rounds && err == nil; i++ {
		err = with(func(s store.Store) error {
			if _, err := s.Lanes(ctx, "", session); err != nil { // opens the files
				return err
			}
			if i == 0 {
				if last, err = lastOp(ctx, s); err != nil {
					return err
				}
			}
			return t.round(ctx, s, last)
		})
	}
	if err != nil {
		return err
	}
	return with(func(s store.Store) error { // its size after the files were closed
		info, err := s.Session(ctx, "", session)
		n := info.Operations[store.OpKernel]
		fmt.Printf("Sealed: %d kernels, %.1f bytes a kernel, peak RSS %.0f MB\n\n", n, float64(info.Bytes)/float64(n), peakMemory())
		t.print()
		return err
	})
}

// lastOp returns an operation of the last second.
func lastOp(ctx context.Context, s store.Store) (last store.Op, err error) {
	info, err := s.Session(ctx, "", session)
	if err != nil {
		return last, err
	}
	page, err := s.Ops(ctx, store.OpQuery{Session: session, From: info.LastNs - 1e9, To: info.LastNs})
	if err = check(len(page.Rows) > 0, err); err == nil {
		last = page.Rows[0].Op
	}
	return last, err
}

// load writes kernels without OTLP until the session has a number of them.
func load(ctx context.Context, s store.Store, g source, n, kernels int64) error {
	var written int64
	var cpu, wall time.Duration
	for shown := n; n < kernels; {
		batches := g.next(batchRows)
		start, begin := time.Now(), processorTime()
		r, err := s.Write(ctx, batches)
		if err != nil {
			return err
		}
		cpu += processorTime() - begin
		wall += time.Since(start)
		written += r.Written
		for _, b := range batches {
			for i := range b.Ops {
				if b.Shapes[b.Ops[i].Shape].Operation == store.OpKernel {
					n++
				}
			}
		}
		if n-shown >= 5_000_000 {
			shown = n
			fmt.Fprintf(os.Stderr, "%d kernels, %.0f rows/s, peak RSS %.0f MB, of Go %.0f MB\n", n, float64(written)/wall.Seconds(), peakMemory(), heap())
		}
	}
	fmt.Printf("Load: %d kernels, %.0f rows/s, %.0f rows/s per core, peak RSS %.0f MB\n\n", n, float64(written)/wall.Seconds(),
		float64(written)/cpu.Seconds(), peakMemory())
	return nil
}

// live asks while rows arrive.
func live(ctx context.Context, s store.Store, g source) error {
	last, err := lastOp(ctx, s)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	type result struct {
		rows int64
		err  error
	}
	writing := make(chan result, 1)
	begin := time.Now()
	go func() {
		var r result
		ticker := time.NewTicker(livePeriod)
		defer ticker.Stop()
		for r.err == nil {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				writing <- r
				return
			}
			var written store.Result
			written, r.err = s.Write(context.WithoutCancel(ctx), g.next(liveRows))
			r.rows += written.Written
		}
		writing <- r
	}()
	t := newTimes()
	_, t.repeated = g.(*repeated)
	for i := 0; i < rounds && err == nil; i++ {
		err = t.round(ctx, s, last)
	}
	stop()
	r := <-writing
	if err = errors.Join(err, r.err); err != nil {
		return err
	}
	fmt.Printf("Live: %.0f rows/s arrived, peak RSS %.0f MB\n\n", float64(r.rows)/time.Since(begin).Seconds(), peakMemory())
	t.print()
	return nil
}

// times is the durations of each question.
type times struct {
	names []string
	took  map[string][]time.Duration
	// repeated says that the rows are those of recordings.
	repeated bool
}

func newTimes() *times { return &times{took: map[string][]time.Duration{}} }

func (t *times) add(name string, took time.Duration) {
	if t.took[name] == nil {
		t.names = append(t.names, name)
	}
	t.took[name] = append(t.took[name], took)
}

// count returns whether n is the number that the generator makes. That of recordings is not known: it is not 0.
func (t *times) count(n, want int) bool { return n == want || t.repeated && n > 0 }

func (t *times) print() {
	fmt.Println("| ms | p50 | p95 |\n|---|--:|--:|")
	for _, name := range t.names {
		p50, p95 := t.percentiles(name)
		fmt.Printf("| %s | %s | %s |\n", name, p50, p95)
	}
	fmt.Println()
}

func (t *times) percentiles(name string) (p50, p95 string) {
	list := slices.Sorted(slices.Values(t.took[name]))
	ms := func(p int) string {
		v := float64(list[(len(list)*p+99)/100-1].Microseconds()) / 1000
		return strconv.FormatFloat(v, 'f', max(0, 1-int(math.Log10(max(v, 1)))), 64)
	}
	return ms(50), ms(95)
}

// round asks all questions once.
func (t *times) round(ctx context.Context, s store.Store, last store.Op) error {
	info, err := s.Session(ctx, "", session)
	if err != nil {
		return err
	}
	length := info.LastNs - info.FirstNs
	nodes := []store.ScopeNode{}
	// An interval of the session, elsewhere in each round.
	window := func(part int64) (from, to int64) {
		from = info.FirstNs + (length-length/part)/rounds*int64(len(t.took["session list"])%rounds)
		return from, from + length/part
	}
	timeline := func(part int64) func() error {
		return func() error {
			q := store.TimelineQuery{Session: session, Bins: 2000}
			if part > 0 {
				q.From, q.To = window(part)
			}
			a, err := s.Timeline(ctx, q)
			return check(len(a.Bins) > 0, err)
		}
	}
	for _, q := range []struct {
		name string
		ask  func() error
	}{
		{"session list", func() error {
			list, err := s.Sessions(ctx, store.SessionQuery{})
			return check(len(list) == 1, err)
		}},
		{"timeline, 100 %", timeline(0)},
		{"timeline, 10 %", timeline(10)},
		{"timeline, 1 %", timeline(100)},
		{"timeline, 0.1 %", timeline(1000)},
		{"rows of 100 ms", func() error {
			from, _ := window(1000)
			page, err := s.Ops(ctx, store.OpQuery{Session: session, From: from, To: from + 1e8, Overlapping: true})
			later := slices.ContainsFunc(page.Rows, func(o store.OpRow) bool { return o.StartNs >= from+1e8 })
			return check(!later && (t.repeated || len(page.Rows) > 0), err)
		}},
		{"kernels by name, p50, p99", func() error {
			list, err := s.Kernels(ctx, store.KernelQuery{Session: session})
			return check(t.count(len(list), 50) && list[0].P99Ns > 0, err)
		}},
		{"kernels by path", func() error {
			list, err := s.Kernels(ctx, store.KernelQuery{Session: session, Group: store.GroupPath})
			return check(t.count(len(list), 40), err)
		}},
		{"scope tree", func() (err error) {
			nodes, err = s.Scopes(ctx, "", session)
			return check(len(nodes) > 40 || t.repeated && len(nodes) > 1, err)
		}},
		{"slowest instances of a scope", func() error {
			list, err := s.Instances(ctx, store.InstanceQuery{Session: session, Path: pathOf(nodes, "layer7", "step *"), Sort: store.InstancesByDevice})
			return check(len(list) == 100 && list[0].KernelNs > 0, err)
		}},
		{steps, func() error {
			list, err := store.Steps(ctx, s, store.InstanceQuery{Session: session, Path: pathOf(nodes, "step", "step *"), Limit: 10_000})
			return check(len(list) > 0 && list[0].BusyNs > 0 && t.count(int(list[0].Kernels), storetest.TrainingStep), err)
		}},
		{"span by id and time", func() error {
			op, _, err := s.Span(ctx, "", session, last.Span, last.StartNs)
			return check(op != nil, err)
		}},
		{"gaps, 100 %", func() error {
			gaps, err := s.Gaps(ctx, store.GapQuery{Session: session})
			return check(len(gaps.Longest) == 100, err)
		}},
		{"gaps, 10 %", func() error {
			from, to := window(10)
			gaps, err := s.Gaps(ctx, store.GapQuery{Session: session, From: from, To: to})
			return check(len(gaps.Longest) == 100, err)
		}},
	} {
		if q.name == steps && len(t.took[steps]) == stepRounds {
			continue
		}
		begin := time.Now()
		err := q.ask()
		t.add(q.name, time.Since(begin))
		if err != nil {
			return fmt.Errorf("%s: %w", q.name, err)
		}
	}
	return nil
}

// pathOf returns the path of the scopes with one of the names, that of the generator or that of recordings, or 0.
func pathOf(nodes []store.ScopeNode, names ...string) uint32 {
	for i := range nodes {
		if slices.Contains(names, nodes[i].Name) && nodes[i].Instances > 0 {
			return nodes[i].Path
		}
	}
	return 0
}

func check(ok bool, err error) error {
	if err == nil && !ok {
		return errors.New("unexpected answer")
	}
	return err
}

func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heap returns what the Go runtime has from the system, in MB.
func heap() float64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.Sys-m.HeapReleased) / 1e6
}

// peakMemory returns the largest resident size of the process, in MB.
func peakMemory() float64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return math.NaN()
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	kb, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n, err := strconv.ParseFloat(kb, 64)
	if err != nil {
		return math.NaN()
	}
	return n * 1024 / 1e6
}
