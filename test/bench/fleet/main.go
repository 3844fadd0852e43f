// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command fleet measures the data flow of kernel spans through config/kafka.yaml, a Kafka broker
// and config/gateway.yaml with forward.yaml to a backend that only counts. It reports spans per
// second of processor time of agent and gateway, bytes per span between agent and broker, and the
// lag of the gateway.
//
// The agent reads a generated session as fast as possible. All processes share the machine, so
// spans per second of wall time are a lower bound. Processor time is counted for each process, from
// its readiness until the backend has everything. Bytes are those of the topic's log in the broker:
// the compressed record batches that the agent sent.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // the exporter compresses

	"github.com/gpuflight/gpuflight/internal/procfs"
	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
	"github.com/gpuflight/gpuflight/test/fleet/broker"
)

const (
	// runLimit ends a run that does not finish.
	runLimit = 10 * time.Minute
	// stallLimit ends a run in which nothing arrives any more.
	stallLimit = 30 * time.Second
	// pollInterval is how often counters are read.
	pollInterval = 250 * time.Millisecond
)

func main() {
	kernels := flag.Int64("kernels", 300_000, "kernels of the generated session")
	collector := flag.String("collector", "bin/otelcol-gpuflight", "the collector")
	kafka := flag.String("kafka", ".tools/kafka/kafka", "the launcher that scripts/kafka makes")
	flag.Parse()
	if err := bench(*kernels, *collector, *kafka); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

// variant is one row of the table.
type variant struct {
	compression string
	// batchBytes bounds a batch, and so a record, before compression.
	batchBytes int
}

var variants = []variant{
	{"none", 900_000}, {"gzip", 900_000}, {"zstd", 900_000},
	{"none", 100_000}, {"gzip", 100_000}, {"zstd", 100_000},
}

// result is what one run took.
type result struct {
	spans          int64
	took           time.Duration
	agent, gateway time.Duration
	bytes          int64
	// behind is the maximum lag of the gateway in spans. catchUp is the time it needs after the
	// agent's last request.
	behind  int64
	catchUp time.Duration
}

func bench(kernels int64, collector, kafka string) (err error) {
	for _, path := range []*string{&collector, &kafka} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
		if _, err = exec.LookPath(*path); err != nil {
			return fmt.Errorf("%w (make build .tools/kafka/kafka)", err)
		}
	}
	work, err := os.MkdirTemp("", "gpuflight-fleet-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	logs := filepath.Join(work, "logs")
	if _, err := gpuflgen.Run(context.Background(), gpuflgen.Config{Dir: logs, Kernels: kernels, StackBytes: 200, Samples: -1}); err != nil {
		return err
	}
	fmt.Println("| compression | batch, bytes | spans | spans/s | agent, spans per CPU s | gateway, spans per CPU s | bytes/span | spans behind, most | catches up in |")
	fmt.Println("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
	for i, v := range variants {
		r, err := run(filepath.Join(work, strconv.Itoa(i)), logs, collector, kafka, v, kernels)
		if err != nil {
			return fmt.Errorf("%s, %d bytes: %w", v.compression, v.batchBytes, err)
		}
		perSecond := func(d time.Duration) float64 { return float64(r.spans) / d.Seconds() / 1000 }
		fmt.Printf("| %s | %d | %d | %.1f k | %.1f k | %.1f k | %.0f | %d | %.1f s |\n", v.compression, v.batchBytes, r.spans,
			perSecond(r.took), perSecond(r.agent), perSecond(r.gateway), float64(r.bytes)/float64(r.spans), r.behind, r.catchUp.Seconds())
	}
	return nil
}

// run makes one row. All that it starts ends with it.
func run(work, logs, collector, kafka string, v variant, kernels int64) (r result, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), runLimit)
	defer cancel()
	if err := os.MkdirAll(work, 0o755); err != nil {
		return r, err
	}
	ports, err := freePorts(8)
	if err != nil {
		return r, err
	}
	b := broker.Broker{Launcher: kafka, Dir: filepath.Join(work, "broker"), Address: ports[0], Controller: ports[1]}
	if err := b.Format(ctx); err != nil {
		return r, err
	}
	running, err := start(ctx, nil, kafka, b.Arguments()...)
	if err != nil {
		return r, err
	}
	defer running.end()
	if err := b.Wait(ctx); err != nil {
		return r, err
	}
	count, endpoint, stop, err := backend()
	if err != nil {
		return r, err
	}
	defer stop()

	overlay := filepath.Join(work, "agent.yaml")
	text, err := json.Marshal(map[string]any{
		"exporters": map[string]any{"kafka/files": map[string]any{
			"producer":      map[string]any{"compression": v.compression},
			"sending_queue": map[string]any{"batch": map[string]any{"max_size": v.batchBytes}},
		}},
		"service": map[string]any{"pipelines": map[string]any{
			"traces": map[string]any{"receivers": []string{"otlp"}}, "logs": map[string]any{"receivers": []string{"otlp"}},
			"metrics": map[string]any{"receivers": []string{"otlp"}},
		}},
	})
	if err != nil {
		return r, err
	}
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		return r, err
	}
	environment := func(name string, listen, http, health, metrics string) []string {
		_, port, _ := net.SplitHostPort(metrics)
		return []string{
			"GPUFLIGHT_KAFKA=" + b.Address, "GPUFLIGHT_STATE=" + filepath.Join(work, name), "GPUFLIGHT_LOGS=" + logs,
			"GPUFLIGHT_LISTEN=" + listen, "GPUFLIGHT_LISTEN_HTTP=" + http, "GPUFLIGHT_HEALTH=" + health,
			"GPUFLIGHT_METRICS_PORT=" + port, "GPUFLIGHT_OTLP_ENDPOINT=" + endpoint, "GPUFLIGHT_OTLP_INSECURE=true",
		}
	}
	gateway, err := start(ctx, environment("gateway", ports[2], ports[3], ports[4], ports[5]), collector, "--config", "config/gateway.yaml", "--config", "config/forward.yaml")
	if err != nil {
		return r, err
	}
	defer gateway.end()
	if err := ready(ctx, ports[4]); err != nil {
		return r, err
	}
	more, err := freePorts(4)
	if err != nil {
		return r, err
	}
	agent, err := start(ctx, environment("agent", more[0], more[1], more[2], more[3]), collector, "--config", "config/kafka.yaml", "--config", overlay)
	if err != nil {
		return r, err
	}
	defer agent.end()
	if err := ready(ctx, more[2]); err != nil {
		return r, err
	}

	begin, agentBegin, gatewayBegin := time.Now(), agent.cpu(), gateway.cpu()
	var sent, got int64
	lastSent, lastGot := begin, begin
	for quiet := begin; time.Since(quiet) < 3*time.Second; time.Sleep(pollInterval) {
		if ctx.Err() != nil {
			return r, fmt.Errorf("%d of at least %d spans after %v: %w", got, kernels, runLimit, ctx.Err())
		}
		now := time.Now()
		if now.Sub(lastGot) > stallLimit {
			return r, fmt.Errorf("%d of at least %d spans, and nothing more for %v", got, kernels, stallLimit)
		}
		if n := count.Load(); n > got || n < kernels {
			if n > got {
				lastGot = now
			}
			got, quiet = n, now
		}
		n, err := total(ctx, more[3], "otelcol_exporter_sent_spans")
		if err != nil {
			return r, err
		}
		if n > sent {
			sent, lastSent = n, now
		}
		r.behind = max(r.behind, sent-got)
		r.agent, r.gateway = agent.cpu()-agentBegin, gateway.cpu()-gatewayBegin
	}
	if got < sent {
		return r, fmt.Errorf("the backend has %d of %d spans", got, sent)
	}
	r.spans, r.took, r.catchUp = sent, lastGot.Sub(begin), max(0, lastGot.Sub(lastSent))
	r.bytes, err = segments(filepath.Join(b.Dir, "data"))
	return r, err
}

// segments adds up the broker's log files of the spans' topic.
func segments(dir string) (n int64, err error) {
	return n, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasPrefix(filepath.Base(filepath.Dir(path)), "otlp_spans-") || filepath.Ext(path) != ".log" {
			return err
		}
		// Segment files are not preallocated, so their length is that of the data.
		info, err := e.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
}

// program is a running process.
type program struct{ cmd *exec.Cmd }

// start runs a program and discards its output.
func start(ctx context.Context, env []string, path string, args ...string) (*program, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return &program{cmd}, cmd.Start()
}

// cpu is the processor time that the process has taken so far.
func (p *program) cpu() time.Duration {
	s, _ := procfs.ParseStat(procfs.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid)))
	return s.Processor
}

func (p *program) end() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// backend counts spans and throws everything away.
func backend() (spans *atomic.Int64, endpoint string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", nil, err
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(16 << 20))
	spans = &atomic.Int64{}
	ptraceotlp.RegisterGRPCServer(s, &traces{spans: spans})
	plogotlp.RegisterGRPCServer(s, &logs{})
	pmetricotlp.RegisterGRPCServer(s, &metrics{})
	go func() { _ = s.Serve(l) }()
	return spans, l.Addr().String(), s.Stop, nil
}

type traces struct {
	ptraceotlp.UnimplementedGRPCServer
	spans *atomic.Int64
}

func (s *traces) Export(_ context.Context, r ptraceotlp.ExportRequest) (ptraceotlp.ExportResponse, error) {
	s.spans.Add(int64(r.Traces().SpanCount()))
	return ptraceotlp.NewExportResponse(), nil
}

type logs struct {
	plogotlp.UnimplementedGRPCServer
}

func (*logs) Export(context.Context, plogotlp.ExportRequest) (plogotlp.ExportResponse, error) {
	return plogotlp.NewExportResponse(), nil
}

type metrics struct {
	pmetricotlp.UnimplementedGRPCServer
}

func (*metrics) Export(context.Context, pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	return pmetricotlp.NewExportResponse(), nil
}

// ready waits until a collector's health check answers.
func ready(ctx context.Context, address string) error {
	for {
		if _, err := get(ctx, "http://"+address+"/"); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the collector does not start: %w", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// total adds up all series of one of a collector's metrics.
func total(ctx context.Context, address, name string) (sum int64, err error) {
	text, err := get(ctx, "http://"+address+"/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, name) {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
		if err != nil {
			return 0, fmt.Errorf("metric line %q: %w", line, err)
		}
		sum += int64(v)
	}
	return sum, nil
}

func get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return string(body), err
}

// freePorts finds loopback addresses that nothing listens on; all are held until all are found.
func freePorts(n int) (out []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		out = append(out, l.Addr().String())
	}
	return out, nil
}
