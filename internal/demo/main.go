// SPDX-License-Identifier: Apache-2.0

// Command demo shows the whole way of the data on one machine: it starts Jaeger and the
// collector on loopback, lets the collector replay recordings of real GPU work and gpuflgen
// write a training session into a folder that the collector watches, waits until Jaeger has every
// kernel of both and the collector's usage metrics account for the session, and prints their results.
// It is what `make demo` runs.
//
// It knows the three programs by their command lines only, so it shows what a user would
// get by starting them by hand. Everything it makes lies in one temporary folder, which it
// removes unless something went wrong.
package main

import (
	"cmp"
	"context"
	_ "embed" // for jaeger.yaml
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
	"github.com/gpuflight/gpuflight/semconv"
)

//go:embed jaeger.yaml
var jaegerConfig []byte

const (
	// startTimeout bounds the start of one program, and stopTimeout its end. Both take well
	// under a second on an idle machine.
	startTimeout = 30 * time.Second
	stopTimeout  = 10 * time.Second
	// arriveTimeout bounds the wait for the session in Jaeger.
	arriveTimeout = 60 * time.Second
	// topKernels is how many kernels the report lists.
	topKernels = 5
)

// settings is what flags and environment say.
type settings struct {
	collector, config string
	jaeger            string
	recordings        string

	uiPort, otlpPort, healthPort, metricsPort int

	layout string
	epochs int
	seed   uint64

	// exit makes the demo stop by itself after the report.
	exit bool
}

func main() {
	// A child dies with the thread that started it (see start), so all of them are started
	// from here and this thread lives as long as the process.
	runtime.LockOSThread()

	s, err := readSettings()
	if err != nil {
		fail(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "demo:", err)
	os.Exit(1)
}

func readSettings() (settings, error) {
	var s settings
	jaeger := os.Getenv("JAEGER")
	if jaeger == "" {
		jaeger = ".tools/jaeger"
	}
	flag.StringVar(&s.collector, "collector", "bin/otelcol-gpuflight", "the collector's binary")
	flag.StringVar(&s.config, "config", "config/demo.yaml", "the collector's configuration")
	flag.StringVar(&s.jaeger, "jaeger", jaeger, "Jaeger's binary, version 2; the environment's JAEGER is the default")
	flag.StringVar(&s.recordings, "recordings", "examples/recordings", "the folder of the recordings that are replayed")
	flag.StringVar(&s.layout, "layout", string(gpuflgen.C3), "layout of the generated session: a2 or c3")
	flag.IntVar(&s.epochs, "epochs", 2, "epochs of the generated training")
	flag.Uint64Var(&s.seed, "seed", 1, "seed of the generated session")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), "usage: demo [flags]\n\n"+
			"Environment: JAEGER_UI_PORT (16686), JAEGER_OTLP_PORT (4317), COLLECTOR_HEALTH_PORT (13133) and\n"+
			"COLLECTOR_PROMETHEUS_PORT (9464) are the ports in use; DEMO_EXIT=1 stops everything after the report instead of at ctrl-C.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}

	var errs []error
	port := func(name string, preset int) int {
		text, ok := os.LookupEnv(name)
		if !ok || text == "" {
			return preset
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 65535 {
			errs = append(errs, fmt.Errorf("%s=%q is not a port: use 1 to 65535", name, text))
		}
		return n
	}
	s.uiPort = port("JAEGER_UI_PORT", 16686)
	s.otlpPort = port("JAEGER_OTLP_PORT", 4317)
	s.healthPort = port("COLLECTOR_HEALTH_PORT", 13133)
	s.metricsPort = port("COLLECTOR_PROMETHEUS_PORT", 9464)
	switch exit := os.Getenv("DEMO_EXIT"); exit {
	case "", "0":
	case "1":
		s.exit = true
	default:
		errs = append(errs, fmt.Errorf("DEMO_EXIT=%q: use 1 to stop after the report, 0 to wait for ctrl-C", exit))
	}
	return s, errors.Join(errs...)
}

// run does the whole demo. The children are stopped when it returns, in the order in which
// nothing is lost: the collector before Jaeger.
func run(ctx context.Context, s settings) (err error) {
	if err := portsFree(s); err != nil {
		return err
	}
	recorded, err := readRecordings(s.recordings)
	if err != nil {
		return err
	}
	recordings, err := filepath.Abs(s.recordings)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gpuflight-demo-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w\nlogs of the programs are kept in %s", err, dir)
			return
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	logs := filepath.Join(dir, "logs")
	if err := os.Mkdir(logs, 0o755); err != nil {
		return err
	}
	jaegerPath := filepath.Join(dir, "jaeger.yaml")
	if err := os.WriteFile(jaegerPath, jaegerConfig, 0o600); err != nil {
		return err
	}

	fmt.Printf("starting Jaeger on 127.0.0.1:%d\n", s.uiPort)
	jaeger, err := start(s.jaeger, []string{"--config", jaegerPath}, filepath.Join(dir, "jaeger.log"),
		"JAEGER_UI_PORT="+strconv.Itoa(s.uiPort), "JAEGER_OTLP_PORT="+strconv.Itoa(s.otlpPort))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, jaeger.stop()) }()
	api := client{base: fmt.Sprintf("http://127.0.0.1:%d", s.uiPort)}
	if err := jaeger.ready(ctx, api.base+"/api/v3/services"); err != nil {
		return quietly(ctx, err)
	}

	fmt.Println("starting otelcol-gpuflight with", s.config)
	collector, err := start(s.collector, []string{"--config", s.config}, filepath.Join(dir, "collector.log"),
		"GPUFLIGHT_LOGS="+logs, "GPUFLIGHT_RECORDINGS="+recordings, "GPUFLIGHT_STATE="+filepath.Join(dir, "state"),
		fmt.Sprintf("GPUFLIGHT_OTLP_ENDPOINT=127.0.0.1:%d", s.otlpPort),
		fmt.Sprintf("GPUFLIGHT_HEALTH_ENDPOINT=127.0.0.1:%d", s.healthPort),
		"GPUFLIGHT_PROMETHEUS_PORT="+strconv.Itoa(s.metricsPort))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, collector.stop()) }()
	if err := collector.ready(ctx, fmt.Sprintf("http://127.0.0.1:%d/", s.healthPort)); err != nil {
		return quietly(ctx, err)
	}

	written, err := generate(ctx, s, logs)
	if err != nil {
		return quietly(ctx, err)
	}
	fmt.Printf("wrote a session of %d log lines with %d kernels; waiting for it and for the recordings' %d in Jaeger\n",
		written.Lines, written.Rows[gpuflgen.RowKernel], recorded.kernels)

	replayed, err := awaitWork(ctx, api, recorded, jaeger, collector)
	if err != nil {
		return quietly(ctx, err)
	}
	generated := work{services: []string{written.App}, kernels: written.Rows[gpuflgen.RowKernel], nanos: written.KernelNanos}
	arrived, err := awaitWork(ctx, api, generated, jaeger, collector)
	if err != nil {
		return quietly(ctx, err)
	}
	scraped := metrics{url: fmt.Sprintf("http://127.0.0.1:%d/metrics", s.metricsPort)}
	used, err := awaitUsage(ctx, scraped, written, arrived, jaeger, collector)
	if err != nil {
		return quietly(ctx, err)
	}
	fmt.Println("\nrecorded on", strings.Join(recorded.devices, ", "))
	replayed.print(os.Stdout, topKernels)
	fmt.Println("\ngenerated")
	arrived.print(os.Stdout, topKernels)
	fmt.Println()
	used.print(os.Stdout)
	fmt.Println()
	printAddress(ctx, os.Stdout, api, arrived.services)
	fmt.Println("usage", scraped.url)
	if s.exit {
		return nil
	}

	fmt.Println("ctrl-C stops Jaeger and the collector.")
	select {
	case <-ctx.Done():
		return nil
	case <-jaeger.done:
		return jaeger.died()
	case <-collector.done:
		return collector.died()
	}
}

// quietly drops an error that only says that the user pressed ctrl-C.
func quietly(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// portsFree looks before anything is started, because a program that cannot have its port
// says so somewhere in the middle of its log.
func portsFree(s settings) error {
	for _, p := range []struct {
		number        int
		use, variable string
	}{
		{s.uiPort, "Jaeger's page and API", "JAEGER_UI_PORT"},
		{s.otlpPort, "Jaeger's OTLP receiver", "JAEGER_OTLP_PORT"},
		{s.healthPort, "the collector's health check", "COLLECTOR_HEALTH_PORT"},
		{s.metricsPort, "the collector's Prometheus exporter", "COLLECTOR_PROMETHEUS_PORT"},
	} {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.number)))
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("port %d, for %s, is in use: stop what listens there, or choose another with %s",
				p.number, p.use, p.variable)
		}
		if err != nil {
			return fmt.Errorf("port %d, for %s: %w", p.number, p.use, err)
		}
		if err := l.Close(); err != nil {
			return err
		}
	}
	return nil
}

// generate writes the session as it happens. So the collector has to follow files that grow, and Jaeger's search,
// which starts with the last hour, has the session on its first page.
func generate(ctx context.Context, s settings, dir string) (gpuflgen.Summary, error) {
	written, err := gpuflgen.Run(ctx, gpuflgen.Config{
		Layout: gpuflgen.Layout(s.layout), Dir: dir, Live: true, Seed: s.seed, Epochs: s.epochs,
	})
	if err := cmp.Or(err, ctx.Err()); err != nil {
		return written, fmt.Errorf("generating a session: %w", err)
	}
	return written, nil
}

// awaitWork asks Jaeger until it has as many kernels as are expected. The error says how
// many did arrive, because "too few" and "none" have different causes.
func awaitWork(ctx context.Context, api client, want work, children ...*child) (report, error) {
	ctx, cancel := context.WithTimeout(ctx, arriveTimeout)
	defer cancel()
	var last report
	for {
		arrived, err := api.read(ctx, want.services)
		switch {
		case err == nil && arrived.kernels == want.kernels:
			if arrived.kernelTime != time.Duration(want.nanos) {
				return arrived, fmt.Errorf("jaeger has %v of kernel time of %v, but %v was written",
					arrived.kernelTime, want.services, time.Duration(want.nanos))
			}
			return arrived, nil
		case err == nil:
			last = arrived
		case ctx.Err() == nil:
			return last, err
		}
		if err := alive(children); err != nil {
			return last, err
		}
		select {
		case <-ctx.Done():
			return last, fmt.Errorf("after %v Jaeger has %d of %d kernels of %v\n%s",
				arriveTimeout, last.kernels, want.kernels, want.services, children[len(children)-1].tail())
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// awaitUsage scrapes until the connector has divided the device's time up to the last work that
// Jaeger has, and checks its sums against what was written.
func awaitUsage(ctx context.Context, m metrics, written gpuflgen.Summary, arrived report, children ...*child) (usage, error) {
	ctx, cancel := context.WithTimeout(ctx, arriveTimeout)
	defer cancel()
	session := time.Duration(arrived.last - arrived.first)
	var last usage
	for {
		now, err := m.read(ctx)
		switch {
		case err == nil && now.launches == written.Rows[gpuflgen.RowKernel] && now.observed >= session:
			if got, want := now.of(semconv.CUDAOperationKernel), time.Duration(written.KernelNanos); got != want {
				return now, fmt.Errorf("the collector's metrics have %v of kernel time, but %v was written", got, want)
			}
			return now, nil
		case err == nil:
			last = now
		case ctx.Err() == nil:
			return last, err
		}
		if err := alive(children); err != nil {
			return last, err
		}
		select {
		case <-ctx.Done():
			return last, fmt.Errorf("after %v the collector's metrics have %d of %d kernels and %v of %v\n%s", arriveTimeout,
				last.launches, written.Rows[gpuflgen.RowKernel], last.observed, session, children[len(children)-1].tail())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// alive reports a child that has ended.
func alive(children []*child) error {
	for _, c := range children {
		select {
		case <-c.done:
			return c.died()
		default:
		}
	}
	return nil
}

// httpClient never waits for ever: a Jaeger that accepts connections and does not answer is
// an error like any other.
var httpClient = &http.Client{Timeout: 30 * time.Second}
