// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
)

const (
	gpuflogName = "gpuflog"
	fileLogName = "file_log"
)

// The standard receiver counters, without the suffix that some versions add.
const (
	spansMetric  = "otelcol_receiver_accepted_spans"
	logsMetric   = "otelcol_receiver_accepted_log_records"
	pointsMetric = "otelcol_receiver_accepted_metric_points"
)

const (
	// pollInterval is how often the collector's counters are read: seldom enough to cost it
	// nothing.
	pollInterval = 250 * time.Millisecond
	// quiet is the time without a change of the counters after which a run is complete. Receivers
	// poll every 200 ms, so the exporter has all data by then.
	quiet = time.Second
	// runLimit ends a run that does not finish.
	runLimit = 10 * time.Minute
	// stopLimit is how long the collector may take to stop.
	stopLimit = 30 * time.Second
)

// receiver is one of the two things compared.
type receiver struct {
	name string
	// config gives the receiver's YAML for a folder of logs, indented under its name.
	config func(dir string) string
	// pipelines are its signals.
	pipelines []string
	// want is the minimum of each counter; with exact, more is an error too.
	want  counters
	exact bool
}

// gpuflog must turn every row into at least one span, log or point; it adds spans for sessions and
// the parts of long scopes.
func gpuflog(sum gpuflgen.Summary) receiver {
	rows := func(kinds ...string) (n float64) {
		for _, k := range kinds {
			n += float64(sum.Rows[k])
		}
		return n
	}
	return receiver{
		name: gpuflogName,
		config: func(dir string) string {
			return fmt.Sprintf("    include: [%q]\n    start_at: beginning\n", dir)
		},
		pipelines: []string{"traces", "logs", "metrics"},
		want: counters{
			spansMetric: rows(gpuflgen.RowKernel, gpuflgen.RowCopy, gpuflgen.RowSet, gpuflgen.RowSync,
				gpuflgen.RowAlloc, gpuflgen.RowFree, gpuflgen.RowScopeBegin),
			logsMetric:   rows(gpuflgen.RowPCSample, gpuflgen.RowSASSMetric),
			pointsMetric: rows(gpuflgen.RowDeviceMetric, gpuflgen.RowHostMetric),
		},
	}
}

// fileLog creates one log record per line. The first lines of the channels are identical, so only a
// long fingerprint distinguishes the files.
func fileLog(sum gpuflgen.Summary) receiver {
	return receiver{
		name: fileLogName,
		config: func(dir string) string {
			return fmt.Sprintf("    include: [%q]\n    start_at: beginning\n    fingerprint_size: 16KiB\n    max_log_size: 64MiB\n"+
				"    operators: [{type: json_parser}]\n", filepath.Join(dir, "**", "*.log"))
		},
		pipelines: []string{"logs"},
		want:      counters{logsMetric: float64(sum.Lines)},
		exact:     true,
	}
}

// child is a collector to run.
type child struct {
	binary, work string
	receiver     receiver
	// profile is a file for a processor profile, or empty.
	profile string
}

// measure runs the collector over logs and over the empty folder.
func measure(ctx context.Context, c child, logs, empty string) (result, error) {
	idle := c
	idle.receiver.want, idle.profile = nil, ""
	start, err := idle.run(ctx, empty)
	if err != nil {
		return result{}, fmt.Errorf("start-up: %w", err)
	}
	full, err := c.run(ctx, logs)
	if err != nil {
		return result{}, err
	}
	full.startup = start.cpu
	full.cpu -= start.cpu
	if full.cpu <= 0 {
		return result{}, errors.New("the run took no longer than the start-up: use more lines")
	}
	return full, nil
}

// config is the whole configuration of one run.
func (c child) config(dir string, telemetryPort, profilePort int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "receivers:\n  %s:\n%s", c.receiver.name, c.receiver.config(dir))
	b.WriteString("exporters:\n  nop:\n")
	if c.profile != "" {
		fmt.Fprintf(&b, "extensions:\n  pprof:\n    endpoint: 127.0.0.1:%d\n    save_to_file: %q\n", profilePort, c.profile)
	}
	b.WriteString("service:\n")
	if c.profile != "" {
		b.WriteString("  extensions: [pprof]\n")
	}
	b.WriteString("  pipelines:\n")
	for _, p := range c.receiver.pipelines {
		fmt.Fprintf(&b, "    %s: {receivers: [%s], exporters: [nop]}\n", p, c.receiver.name)
	}
	b.WriteString("  telemetry:\n    logs: {level: warn}\n    metrics:\n      level: normal\n")
	fmt.Fprintf(&b, "      readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: %d}}}}]\n", telemetryPort)
	return b.String()
}

// run starts the collector, waits until it has read everything, stops it and returns its cost.
func (c child) run(ctx context.Context, dir string) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	ports, err := freePorts(2)
	if err != nil {
		return result{}, err
	}
	if c.profile != "" {
		if err := os.MkdirAll(filepath.Dir(c.profile), 0o755); err != nil {
			return result{}, err
		}
	}
	file := filepath.Join(c.work, "config.yaml")
	if err := os.WriteFile(file, []byte(c.config(dir, ports[0], ports[1])), 0o600); err != nil {
		return result{}, err
	}
	cmd := exec.Command(c.binary, "--config", file)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	p, err := start(cmd)
	if err != nil {
		return result{}, err
	}
	got, err := c.watch(ctx, ports[0], p)
	if err != nil {
		p.kill()
		return result{}, fmt.Errorf("%w; the collector said:\n%s", err, tail(log.String()))
	}
	if err := p.stop(); err != nil {
		return result{}, fmt.Errorf("stop: %w; the collector said:\n%s", err, tail(log.String()))
	}
	state := cmd.ProcessState
	usage, ok := state.SysUsage().(*syscall.Rusage)
	if !ok {
		return result{}, errors.New("no resource usage of a child process on this system")
	}
	return result{cpu: state.UserTime() + state.SystemTime(), rss: usage.Maxrss << 10, got: got}, nil
}

// process is a started command; err may be read once done is closed.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

func start(cmd *exec.Cmd) (*process, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// kill ends the process if it still runs.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // the only error is that it has gone
	<-p.done
}

// stop asks the process to end and waits for it.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-time.After(stopLimit):
		p.kill()
		return fmt.Errorf("it had not stopped after %v", stopLimit)
	}
}

// watch polls the counters until they have reached what is wanted and stand still.
func (c child) watch(ctx context.Context, port int, p *process) (counters, error) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	var last counters
	var since time.Time
	for {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("after %v it had accepted %v of %v: %w", runLimit, last, c.receiver.want, ctx.Err())
		case <-p.done:
			if p.err != nil {
				return nil, fmt.Errorf("it ended by itself: %w", p.err)
			}
			return nil, errors.New("it ended by itself")
		case <-tick.C:
		}
		now, err := scrape(ctx, port)
		if err != nil {
			continue // not listening yet, or no longer: exited reports the latter
		}
		if last == nil || !now.equal(last) {
			last, since = now, time.Now()
			continue
		}
		if time.Since(since) < quiet || !now.reached(c.receiver.want) {
			continue
		}
		if c.receiver.exact && c.receiver.want != nil && !now.equal(c.receiver.want) {
			return nil, fmt.Errorf("it accepted %v, and %v were written", now, c.receiver.want)
		}
		return now, nil
	}
}

// counters are values by metric name.
type counters map[string]float64

func (c counters) equal(o counters) bool {
	for _, m := range []string{spansMetric, logsMetric, pointsMetric} {
		if c[m] != o[m] {
			return false
		}
	}
	return true
}

func (c counters) reached(want counters) bool {
	for m, v := range want {
		if c[m] < v {
			return false
		}
	}
	return true
}

func (c counters) String() string {
	return fmt.Sprintf("%.0f spans, %.0f logs, %.0f points", c[spansMetric], c[logsMetric], c[pointsMetric])
}

// scrape reads the collector's own metrics.
func scrape(ctx context.Context, port int) (counters, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", port), http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metrics: %s", resp.Status)
	}
	return parseCounters(resp.Body)
}

// parseCounters sums the receiver counters over their labels, from the Prometheus text format.
func parseCounters(r io.Reader) (counters, error) {
	c := counters{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		l := lines.Text()
		end := strings.IndexAny(l, "{ ")
		if end < 0 || l[0] == '#' {
			continue
		}
		name := strings.TrimSuffix(l[:end], "_total")
		if name != spansMetric && name != logsMetric && name != pointsMetric {
			continue
		}
		v, err := strconv.ParseFloat(l[strings.LastIndexByte(l, ' ')+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metric line %q: %w", l, err)
		}
		c[name] += v
	}
	return c, lines.Err()
}

// freePorts finds ports that nothing listens on; all are held until all are found.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// tail is the end of the collector's output.
func tail(s string) string {
	const most = 4000
	if len(s) > most {
		s = "…" + s[len(s)-most:]
	}
	return s
}
