// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/report"
)

const viewUsage = `gpuflight view opens recordings in the web UI. It starts the Collector with a temporary store, loads
the files and prints the address of the UI. It runs until ctrl-C and then deletes the store. It reads
OTLP as JSON lines, as gpuflight trace --output and the Collector's file exporter write it (plain,
.gz or .zst), GPU Flight logs, and exported sessions (.duckdb). Of a folder it reads all recordings
and logs.

Usage:
  gpuflight view [flags] FILE|FOLDER...

Examples:
  gpuflight view run.otlp.jsonl
  gpuflight view --listen 127.0.0.1:9000 logs

Flags:
`

const (
	collectorName = "otelcol-gpuflight"
	viewAddress   = "127.0.0.1:8686"
	// collectorStarts and collectorStops bound how long the Collector may take. Each takes a second
	// or two on an idle machine.
	collectorStarts = 60 * time.Second
	collectorStops  = 15 * time.Second
	// viewSenders is the number of concurrent requests. The store writes them in one commit.
	viewSenders = 8
	// maxViewRequest is the longest line of a recording in bytes of OTLP.
	maxViewRequest = 256 << 20
)

func runView(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("view", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	listen := fs.String("listen", viewAddress, "address of the UI")
	args, err := parse(fs, args, viewUsage, stdout)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		return &usageError{errors.New("no file: give one or more files or folders")}
	}
	for _, path := range args {
		if _, err := os.Stat(path); err != nil {
			return err
		}
	}
	if l, err := net.Listen("tcp", *listen); err != nil {
		return fmt.Errorf("cannot listen on %s: %w: choose another address with --listen", *listen, err)
	} else if err := l.Close(); err != nil {
		return err
	}
	return withViewer(ctx, *listen, func(v *viewer) error { return v.show(ctx, args, stdout, stderr) })
}

// withViewer starts a Collector with a temporary store, calls f and stops it.
func withViewer(ctx context.Context, listen string, f func(*viewer) error) error {
	path, err := findCollector()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gpuflight-view-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) // best effort: the folder is temporary
	v, err := startViewer(ctx, path, dir, listen)
	if err != nil {
		return err
	}
	err = f(v)
	if ctx.Err() != nil {
		err = nil // ctrl-C is the way to end it
	}
	return errors.Join(err, v.stop())
}

// findCollector returns the Collector beside this program, or the one on PATH.
func findCollector() (string, error) {
	if self, err := os.Executable(); err == nil {
		if resolved, err := filepath.EvalSymlinks(self); err == nil {
			self = resolved
		}
		if path := filepath.Join(filepath.Dir(self), collectorName); isFile(path) {
			return path, nil
		}
	}
	path, err := exec.LookPath(collectorName)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside gpuflight nor on PATH: install it, or run make build in a checkout", collectorName)
	}
	return path, nil
}

// viewer is a running Collector with a temporary store.
type viewer struct {
	cmd *exec.Cmd
	// done is closed when the Collector has ended; err is set before.
	done chan struct{}
	err  error
	log  string
	api  queryAPI
	// receiver is the address of OTLP over HTTP.
	receiver string
}

// viewConfig returns the Collector's configuration as JSON, which is valid YAML.
func viewConfig(dir, listen, receiver string) ([]byte, error) {
	type object = map[string]any
	pipeline := func(processors ...string) object {
		return object{"receivers": []string{"otlp"}, "processors": processors, "exporters": []string{"gpu_storage"}}
	}
	text, err := json.MarshalIndent(object{
		"receivers":  object{"otlp": object{"protocols": object{"http": object{"endpoint": receiver, "max_request_body_size": maxViewRequest}}}},
		"processors": object{"occupancy": object{}},
		"exporters":  object{"gpu_storage": object{}},
		"extensions": object{
			"gpu_storage": object{"backends": object{"default": object{"duckdb": object{"directory": filepath.Join(dir, "store")}}}},
			"gpu_query":   object{"endpoint": listen},
		},
		"service": object{
			"extensions": []string{"gpu_storage", "gpu_query"},
			"pipelines":  object{"traces": pipeline("occupancy"), "logs": pipeline(), "metrics": pipeline()},
			"telemetry":  object{"metrics": object{"level": "none"}, "logs": object{"level": "warn"}},
		},
	}, "", "  ")
	// The Collector replaces variables after a $.
	return bytes.ReplaceAll(text, []byte("$"), []byte("$$")), err
}

// startViewer starts the Collector and waits until the UI answers.
func startViewer(ctx context.Context, path, dir, listen string) (*viewer, error) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	receiver := free.Addr().String()
	if err := free.Close(); err != nil {
		return nil, err
	}
	text, err := viewConfig(dir, listen, receiver)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, text, 0o600); err != nil {
		return nil, err
	}
	v := &viewer{
		done: make(chan struct{}), log: filepath.Join(dir, "log"),
		api: queryAPI{"http://" + listen}, receiver: "http://" + receiver,
	}
	out, err := os.Create(v.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	v.cmd = exec.Command(path, "--config", config)
	v.cmd.Stdout, v.cmd.Stderr = out, out
	v.cmd.SysProcAttr = endWithParent()
	if err := v.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	go func() {
		v.err = v.cmd.Wait()
		close(v.done)
	}()
	if err := v.ready(ctx); err != nil {
		return nil, errors.Join(err, v.stop())
	}
	return v, nil
}

// ready waits until the query API answers.
func (v *viewer) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, collectorStarts)
	defer cancel()
	for {
		if err := v.api.do(ctx, http.MethodGet, "/health", nil, nil); err == nil {
			return nil
		}
		select {
		case <-v.done:
			return v.ended()
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready after %v: %s", collectorName, collectorStarts, v.tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// loadAll loads files and folders, and returns the sessions that they contain.
func (v *viewer) loadAll(ctx context.Context, paths []string, stderr io.Writer) ([]storedSession, error) {
	for _, path := range paths {
		problems, err := v.load(ctx, path)
		for i, p := range problems {
			if i == maxProblems {
				fmt.Fprintf(stderr, "gpuflight: and %d more\n", len(problems)-i)
				break
			}
			fmt.Fprintf(stderr, "gpuflight: %s\n", p)
		}
		if err != nil {
			return nil, err
		}
	}
	sessions, err := v.api.sessions(ctx, "")
	if err == nil && len(sessions) == 0 {
		err = errors.New("the files contain no session")
	}
	return sessions, err
}

// show loads the files and waits until ctx or the Collector ends.
func (v *viewer) show(ctx context.Context, paths []string, stdout, stderr io.Writer) error {
	sessions, err := v.loadAll(ctx, paths, stderr)
	if err != nil {
		return err
	}
	kernels := int64(0)
	for i := range sessions {
		kernels += sessions[i].Operations["kernel"]
	}
	fmt.Fprintf(stdout, "%s with %s. Open the UI, or press ctrl-C to end it:\n\n  %s\n\n",
		plural(uint64(len(sessions)), "session", "sessions"), plural(uint64(kernels), "kernel", "kernels"), v.api.address)
	select {
	case <-ctx.Done():
		return nil
	case <-v.done:
		return v.ended()
	}
}

// load sends a file or folder to the Collector, which answers after it is stored.
func (v *viewer) load(ctx context.Context, path string) (problems []string, err error) {
	if filepath.Ext(path) == ".duckdb" {
		_, err = importSession(ctx, v.api, path)
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slots := make(chan struct{}, viewSenders)
	send := func(signal string, body []byte, err error) {
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			cancel(err)
			return
		}
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			if err := v.post(ctx, signal, body); err != nil {
				cancel(err)
			}
		}()
	}
	problems, err = report.ReadTelemetry(path, otlp.Handler{
		Traces: func(td ptrace.Traces) {
			body, err := ptraceotlp.NewExportRequestFromTraces(td).MarshalProto()
			send("traces", body, err)
		},
		Logs: func(ld plog.Logs) {
			body, err := plogotlp.NewExportRequestFromLogs(ld).MarshalProto()
			send("logs", body, err)
		},
		Metrics: func(md pmetric.Metrics) {
			body, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
			send("metrics", body, err)
		},
	})
	for range viewSenders {
		slots <- struct{}{} // all requests have ended
	}
	return problems, errors.Join(err, context.Cause(ctx))
}

func (v *viewer) post(ctx context.Context, signal string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, v.receiver+"/v1/"+signal, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the Collector rejected %s: %s: %s", signal, resp.Status, v.tail())
	}
	return nil
}

// hasEnded reports whether the Collector has ended.
func (v *viewer) hasEnded() bool {
	select {
	case <-v.done:
		return true
	default:
		return false
	}
}

// ended describes an end of the Collector that was not requested.
func (v *viewer) ended() error {
	return fmt.Errorf("%s ended (%v): %s", collectorName, v.cmd.ProcessState, v.tail())
}

// stop ends the Collector.
func (v *viewer) stop() error {
	if v.hasEnded() {
		return nil
	}
	if err := v.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-v.done:
		return nil
	case <-time.After(collectorStops):
	}
	err := v.cmd.Process.Kill()
	<-v.done
	return errors.Join(fmt.Errorf("%s did not stop within %v and was killed", collectorName, collectorStops), err)
}

// tail returns the last lines of the Collector's log.
func (v *viewer) tail() string {
	text, err := os.ReadFile(v.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}
