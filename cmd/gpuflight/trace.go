// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/cmd/gpuflight/internal/checks"
	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/deep/engine"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
	"github.com/gpuflight/gpuflight/internal/recording/settings"
	"github.com/gpuflight/gpuflight/internal/report"
	"github.com/gpuflight/gpuflight/internal/version"
	"github.com/gpuflight/gpuflight/semconv"
)

const traceUsage = `gpuflight trace runs a command and records what it and its children do on the GPU: kernels,
copies and NVTX ranges. Each process is a session with a span of its own in the trace of the
command. Each top-level scope, for example a training step, has a trace of its own that is linked to
the session's span. A scope inside a request's span stays a child of that span. The command keeps
its input, output, signals and exit code. At the end a short table goes to stderr.

Telemetry goes by OTLP to the collector that the OTEL_EXPORTER_OTLP_... variables name. The default
is http://localhost:4318. With --output it goes into a file. TRACEPARENT makes the command part of a
trace. Flags have precedence over variables.

Usage:
  gpuflight trace [flags] -- COMMAND [ARGUMENT...]

Examples:
  gpuflight trace -- python3 train.py
  gpuflight trace --output run.otlp.jsonl -- python3 train.py && gpuflight report run.otlp.jsonl
  gpuflight trace --endpoint http://collector:4317 --protocol grpc --service trainer -- torchrun --nproc-per-node 4 train.py
  gpuflight trace --view -- python3 train.py
  gpuflight trace --kinds +sync,+memory --include 'gemm*' -- ./simulation
  gpuflight trace --output run.otlp.jsonl --deep-after 30s --deep-for 2s -- python3 train.py

Flags:
`

const (
	injectionVariable = "CUDA_INJECTION64_PATH"
	nvtxVariable      = "NVTX_INJECTION64_PATH"
	// endTimeout bounds how long gpuflight waits after the end of the command. In this time other
	// processes of the command end, and gpuflight sends its own span. unreachableTimeout replaces
	// it if the command could not reach the collector.
	endTimeout         = 5 * time.Second
	unreachableTimeout = time.Second
	childTimeout       = "4s"
	// warnTimeout bounds the attempt to reach the collector before the command runs.
	warnTimeout = time.Second
	// drainTimeout bounds how long a process sends at its end while the collector accepts data.
	drainTimeout = "60s"
	// summaryRows is the number of rows of each table at the end.
	summaryRows = 10
)

// Exit codes of shells for commands that cannot be run.
const (
	exitNotRunnable = 126
	exitNotFound    = 127
)

// traceConfig holds the flags of gpuflight trace.
type traceConfig struct {
	command []string
	// values maps variables to the values of their flags.
	values      map[string]string
	library     string
	nvtx, quiet bool
	force, view bool
}

// table holds the settings of the recording processes. A flag sets its variable in them.
var table = slices.Concat(new(otlp.Settings).Table(), new(recorder.Settings).Table(), new(deep.Config).Table())

// parseTrace parses the flags. It writes help to out.
func parseTrace(args []string, out io.Writer) (cfg traceConfig, err error) {
	fs := flag.NewFlagSet("trace", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	cfg.values = map[string]string{}
	for _, s := range table {
		set := func(v string) error {
			if strings.HasPrefix(s.Variable, deep.Variable+"_") {
				if v == "" {
					return errors.New("it is empty")
				}
				cfg.values[deep.Variable] = "true"
			}
			if had := cfg.values[s.Variable]; had != "" && s.Variable == deep.WhenVariable {
				v = had + ";" + v // each flag adds a rule
			}
			cfg.values[s.Variable] = v
			return nil
		}
		switch {
		case s.Switch:
			fs.BoolFunc(s.Flag, s.Help, set)
		case s.Flag != "":
			fs.Func(s.Flag, s.Help, set)
		}
	}
	fs.StringVar(&cfg.library, "library", "", "`path` of libgpuflight.so (default: next to gpuflight, ../lib, /usr/local/lib/gpuflight, /usr/lib/gpuflight)")
	fs.BoolVar(&cfg.nvtx, "nvtx", true, "record NVTX ranges as scopes")
	fs.BoolVar(&cfg.quiet, "quiet", false, "at the end, print only what was not sent")
	fs.BoolVar(&cfg.view, "view", false, "at the end, open the recording in the web UI until ctrl-C, as gpuflight view does")
	fs.BoolVar(&cfg.force, "force", false, "replace the recording in --output, and another profiler's "+injectionVariable)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			printUsage(out, traceUsage, fs)
			return cfg, err
		}
		return cfg, &usageError{flagError(err)}
	}
	if cfg.command = fs.Args(); len(cfg.command) == 0 {
		return cfg, &usageError{errors.New("no command: give it after --")}
	}
	if _, sends := cfg.values[otlp.EndpointVariable]; sends && cfg.view {
		return cfg, &usageError{errors.New("--view shows a recording in a file: leave out --endpoint, and open the UI of that Collector")}
	}
	return cfg, nil
}

// runTrace runs the command and returns how it ended. An error means that gpuflight failed before
// the command ran.
func runTrace(args []string, stdout, stderr io.Writer) (ending, error) {
	cfg, err := parseTrace(args, stdout)
	if err != nil {
		return ending{}, err
	}
	if !traceSupported {
		return ending{}, errors.New("tracing is supported on Linux only")
	}
	if cfg.view {
		if _, err := findCollector(); err != nil { // before the command runs
			return ending{}, fmt.Errorf("--view: %w", err)
		}
		if _, given := cfg.values[otlp.OutputVariable]; !given {
			dir, err := os.MkdirTemp("", "gpuflight-recording-")
			if err != nil {
				return ending{}, err
			}
			defer os.RemoveAll(dir) // best effort: the folder is temporary
			cfg.values[otlp.OutputVariable] = filepath.Join(dir, "recording.otlp.jsonl")
		}
	}
	t, err := prepare(cfg, os.Environ())
	if err != nil {
		return ending{}, err
	}
	defer os.RemoveAll(t.dir) // best effort: the folder is temporary
	t.warn(stderr)
	cmd := exec.Command(cfg.command[0], cfg.command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = t.env.list()
	began := time.Now()
	end, err := runCommand(cmd, t.deep.Signal, func(pid int) { t.pid = pid })
	if err != nil {
		code := exitNotRunnable
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			code = exitNotFound
		}
		fmt.Fprintf(stderr, "gpuflight trace: %v\n", err)
		return ending{code: code}, nil
	}
	t.began, t.ended, t.end = began, time.Now(), end
	t.finish(stderr)
	if cfg.view {
		if err := t.openView(stdout, stderr); err != nil {
			fmt.Fprintf(stderr, "gpuflight trace: --view: %v\n", err)
		}
	}
	return end, nil
}

// warn reports in one line each what will prevent a complete recording. The command runs anyway.
func (t *tracing) warn(stderr io.Writer) {
	if t.cfg.quiet {
		return
	}
	findings := []checks.Finding{checks.Settings(&t.settings, &t.sending)}
	if findings[0].OK {
		findings = append(findings, checks.Driver(&t.settings))
		switch {
		case t.outputErr != nil:
			findings = append(findings, checks.Finding{Detail: fmt.Sprintf("nothing can be recorded: %v", t.outputErr)})
		case t.sending.File != "":
			findings = append(findings, checks.Output(&t.sending))
		default:
			findings = append(findings, checks.Endpoint(context.Background(), &t.sending, warnTimeout))
		}
	}
	out := &printer{out: stderr}
	for i := range findings {
		if f := &findings[i]; !f.OK {
			out.printf("warning: %s", f.Sentence())
		}
	}
}

// openView shows the recording in the UI until a signal arrives.
func (t *tracing) openView(stdout, stderr io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listen := viewAddress
	if l, err := net.Listen("tcp", listen); err == nil {
		_ = l.Close()
	} else if listen, err = freeAddress(); err != nil {
		return err
	}
	return withViewer(ctx, listen, func(v *viewer) error { return v.show(ctx, []string{t.sending.File}, stdout, stderr) })
}

// tracing is one traced command.
type tracing struct {
	cfg      traceConfig
	env      environment
	settings recorder.Settings
	sending  otlp.Settings
	deep     deep.Config
	// outputErr is set if the file for the recording cannot be written.
	outputErr error
	// dir is where processes write their summaries.
	dir string
	// ref identifies the command's own span.
	ref     gpuevent.Ref
	sampled bool
	pid     int

	began, ended time.Time
	end          ending
}

// prepare creates the environment of the command and checks the settings before it runs.
func prepare(cfg traceConfig, environ []string) (*tracing, error) {
	t := &tracing{cfg: cfg, env: newEnvironment(environ), sampled: true}
	library, err := findLibrary(cfg.library)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{injectionVariable, nvtxVariable} {
		if name == nvtxVariable && !cfg.nvtx {
			continue
		}
		if v := t.env.get(name); v != "" && !cfg.force {
			if filepath.Base(v) == libraryName {
				return nil, fmt.Errorf("%s is set to %s: gpuflight trace is already running; --force traces again", name, v)
			}
			return nil, fmt.Errorf("%s is set to %s: the driver loads only one profiler; --force replaces it", name, v)
		}
		t.env.set(name, library)
	}
	if err := t.applyFlags(); err != nil {
		return nil, err
	}
	var errs [4]error
	t.settings, errs[0] = recorder.SettingsFromEnv(t.env.get)
	t.sending, errs[1] = otlp.FromEnv(t.env.get)
	t.deep, errs[2] = deep.ConfigFromEnv(t.env.get)
	_, errs[3] = engine.SettingsFromEnv(t.env.get)
	if err := cmp.Or(errors.Join(errs[:]...), t.settings.CheckWindows(t.deep.Enabled)); err != nil {
		return nil, t.wrong(err)
	}
	t.ref = gpuevent.Ref{Trace: t.settings.Parent.Trace, Parent: t.settings.Parent.Span}
	if t.settings.HasParent {
		t.sampled = t.settings.ParentSampled
	} else {
		_, _ = rand.Read(t.ref.Trace[:]) // never fails, by its contract
	}
	_, _ = rand.Read(t.ref.Span[:])
	t.env.set("TRACEPARENT", recorder.Traceparent(t.ref, t.sampled))
	if file := t.sending.File; file != "" {
		// Remove the data of an earlier run, because processes append.
		if err := checkOutput(file, cfg.force); err != nil {
			return nil, err
		}
		t.outputErr = emptyFile(file)
	}
	if t.dir, err = os.MkdirTemp("", "gpuflight-"); err != nil {
		return nil, err
	}
	t.env.set("GPUFLIGHT_SUMMARY_DIR", t.dir)
	return t, nil
}

// checkOutput rejects a file that has other data than a recording, and one that has a recording unless
// force is set. Devices and pipes are accepted.
func checkOutput(path string, force bool) error {
	f, err := os.Open(path)
	if err != nil {
		return nil // it does not exist, or emptyFile reports the error
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return nil
	}
	head := make([]byte, 64)
	n, _ := io.ReadFull(f, head)
	if !recordingStart.Match(head[:n]) {
		return fmt.Errorf("%s exists and is not a recording: choose another file", path)
	}
	if !force {
		return fmt.Errorf("%s has a recording: choose another file, or replace it with --force", path)
	}
	return nil
}

// recordingStart matches the start of an OTLP message in JSON.
var recordingStart = regexp.MustCompile(`^\{"resource(Spans|Logs|Metrics|Profiles)":`)

// emptyFile creates or truncates a recording. Recordings contain the names of programs and their
// arguments, so only the user may read them, whatever mode the file had before.
func emptyFile(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		err = f.Chmod(0o600)
	}
	return errors.Join(err, f.Close())
}

// wrong returns err as a usage error. It replaces the names of variables by the given flags.
func (t *tracing) wrong(err error) error {
	return &usageError{settings.Named(err, func(variable string) string {
		for _, s := range table {
			if _, given := t.cfg.values[variable]; given && s.Variable == variable && s.Flag != "" {
				return "--" + s.Flag
			}
		}
		return variable
	})}
}

// applyFlags sets the variables of the flags. It also sets the log level and the shutdown timeout
// of the recording processes, because gpuflight reports for them.
func (t *tracing) applyFlags() error {
	for name, v := range t.cfg.values {
		switch name {
		case otlp.EndpointVariable, otlp.ProtocolVariable:
			t.env.setForAll(name, v)
			if _, both := t.cfg.values[otlp.OutputVariable]; name == otlp.EndpointVariable && !both {
				t.env.unset(otlp.OutputVariable)
			}
			continue
		case otlp.OutputVariable:
			if v == "" {
				return &usageError{errors.New("--output requires a file")}
			}
		}
		t.env.set(name, v)
	}
	if file := t.env.get(otlp.OutputVariable); file != "" {
		// The command may change its working directory.
		abs, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		t.env.set(otlp.OutputVariable, abs)
	}
	if !t.cfg.nvtx && t.env.get("GPUFLIGHT_KINDS") == "" {
		t.env.set("GPUFLIGHT_KINDS", "-nvtx")
	}
	for _, v := range []struct{ name, value string }{
		{"GPUFLIGHT_LOG_LEVEL", "off"},                         // stderr belongs to the command
		{"GPUFLIGHT_MAX_SPANS_PER_SECOND", recorder.Unlimited}, // the user wants to see all work
		{"GPUFLIGHT_DRAIN_TIMEOUT", drainTimeout},
		{"GPUFLIGHT_SHUTDOWN_TIMEOUT", childTimeout},
	} {
		if t.env.get(v.name) == "" {
			t.env.set(v.name, v.value)
		}
	}
	return nil
}

// finish reads the summaries of the processes, sends the command's own span and prints the report.
func (t *tracing) finish(stderr io.Writer) {
	deadline := t.ended.Add(endTimeout)
	sessions, readError := t.sessions(deadline)
	deliveries := t.send(deadline, sessions)
	for i := range sessions {
		deliveries = append(deliveries, sessions[i].Delivery...)
	}
	out := &printer{out: stderr}
	if readError != nil {
		out.printf("a summary cannot be read: %v", readError)
	}
	for _, line := range unsent(deliveries) {
		out.printf("%s", line)
	}
	if t.cfg.quiet {
		return
	}
	r := report.New()
	for i := range sessions {
		r.Session(sessions[i])
	}
	totals := r.Totals()
	out.printf("%s %v after %v, %s", filepath.Base(t.cfg.command[0]), t.end, t.ended.Sub(t.began).Round(time.Millisecond), processes(&totals))
	for _, line := range sent(deliveries) {
		out.printf("%s, trace %s", line, hex.EncodeToString(t.ref.Trace[:]))
	}
	for _, n := range totals.Nothing {
		out.printf("%s recorded nothing: %s", plural(uint64(n.Processes), "process", "processes"), cmp.Or(n.Detail, string(n.Reason)))
	}
	t.printWindows(out, sessions)
	t.reportOverhead(out, sessions)
	switch {
	case !totals.Empty():
		fmt.Fprintln(stderr)
		_ = totals.Write(stderr, summaryRows, terminalWidth(stderr)) // stderr may be closed
	case len(sessions) == 0:
		out.printf("nothing was recorded: no process of the command used the GPU, or the driver could not load %s; `gpuflight doctor` checks whether recording works here", libraryName)
	case len(totals.Nothing) == 0 && totals.Unended < totals.Sessions:
		out.printf("no GPU work was recorded; `gpuflight doctor` checks whether recording works here")
	}
}

// printNoWindow prints why no requested deep window opened.
func (t *tracing) printNoWindow(out *printer) {
	took := t.ended.Sub(t.began)
	switch first := cmp.Or(t.deep.After, t.deep.Every); {
	case first > 0 && first >= took:
		out.printf("no deep window opened: the first was to open %v after the start, and the command took %v", first, took.Round(time.Millisecond))
	case first > 0:
		out.printf("no deep window opened at the configured time: no process used the GPU then, or a limit prevented it")
	}
	for _, r := range t.deep.When {
		out.printf("no deep window opened for the rule %q: it was not met, or a limit prevented it; `gpuflight deep PID --status` shows the state of a rule while a process runs", r.Text)
	}
	if t.deep.Signal != "" {
		out.printf("no deep window opened for SIG%s: none arrived while a process used the GPU, the program handles it itself, or a limit prevented it", t.deep.Signal)
	}
}

// reportOverhead prints which budgets were exceeded, and why.
func (t *tracing) reportOverhead(out *printer, sessions []recorder.Summary) {
	for i := range sessions {
		o := sessions[i].Overhead
		if o == nil {
			continue
		}
		if !o.Met {
			out.printf("process %d did not keep the overhead budget of %.3g %%: recording cost up to %.2g %% of its time", sessions[i].PID, 100*o.Budget, 100*o.Ratio)
		}
		if o.Failure != "" {
			out.printf("process %d: %s", sessions[i].PID, o.Failure)
		}
	}
}

// maxWindows bounds the windows that are listed at the end.
const maxWindows = 5

// printWindows prints the deep windows and where to find their results.
func (t *tracing) printWindows(out *printer, sessions []recorder.Summary) {
	var opened, attempts, unsent, named uint64
	paused := 0.
	for i := range sessions {
		pid, w := sessions[i].PID, sessions[i].Windows
		if w == nil {
			continue
		}
		opened += w.Opened
		attempts += w.Attempts
		unsent += w.Unsent
		paused += w.PausedSeconds
		for _, row := range w.Recent {
			if named++; named > maxWindows {
				continue
			}
			line := fmt.Sprintf("deep window %d of process %d (%s, by %s): ", row.ID, pid, row.Engine, row.Cause)
			if row.Status == string(deep.StatusCollected) {
				line += fmt.Sprintf("%s %s in %s", report.Count(row.Samples), deep.Engine(row.Engine).Takes(), plural(row.Functions, "function", "functions"))
				if row.Lost > 0 {
					line += fmt.Sprintf(", %s lost", report.Count(row.Lost))
				}
			} else {
				line += row.Text
			}
			out.printf("%s", line)
		}
	}
	if all := opened + attempts; all > maxWindows {
		out.printf("%s in all, %d of them without a result", plural(all, "deep window", "deep windows"), attempts)
	}
	if unsent > 0 {
		out.printf("the results of %s exceeded the buffer or the deadline", plural(unsent, "deep window", "deep windows"))
	}
	if paused > 0 {
		out.printf("nothing else was recorded for %.3g s of deep windows", paused)
	}
	if opened+attempts == 0 && len(sessions) > 0 {
		t.printNoWindow(out)
	}
	switch {
	case opened == 0:
	case t.sending.File != "":
		out.printf("`gpuflight report %s` shows their results", t.sending.File)
	default:
		out.printf("their results are in the logs cuda.pc_sample and cuda.sass_metric; with --output, `gpuflight report` shows them")
	}
}

// sessions waits until the deadline for processes that still run, and returns all summaries.
func (t *tracing) sessions(deadline time.Time) ([]recorder.Summary, error) {
	for {
		sessions, err := report.ReadSessions(t.dir)
		running := slices.ContainsFunc(sessions, func(s recorder.Summary) bool { return s.EndNs == 0 && alive(s.PID) })
		if !running || time.Now().After(deadline) {
			return dropDuplicateRecorders(sessions), err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// dropDuplicateRecorders removes the library's summaries of processes in which the SDK recorded.
// The library cannot record there.
func dropDuplicateRecorders(sessions []recorder.Summary) []recorder.Summary {
	recorded := map[int]bool{}
	for i := range sessions {
		if sessions[i].Reason == cupti.ReasonNone {
			recorded[sessions[i].PID] = true
		}
	}
	return slices.DeleteFunc(sessions, func(s recorder.Summary) bool { return s.Reason != cupti.ReasonNone && recorded[s.PID] })
}

// send sends the command's own span and returns the result.
func (t *tracing) send(deadline time.Time, sessions []recorder.Summary) []recorder.Delivery {
	if !t.sampled || (t.sending.File == "" && t.sending.Signals[otlp.Traces].Off) {
		return nil
	}
	if t.outputErr != nil && !t.cfg.quiet {
		return nil // the warning before the command said so
	}
	failed := func(err error) []recorder.Delivery {
		return []recorder.Delivery{{Signal: otlp.Traces.String(), To: cmp.Or(t.sending.File, t.sending.Signals[otlp.Traces].String()), Unsent: map[string]uint64{otlp.ReasonFault: 1}, Error: err.Error()}}
	}
	client, err := otlp.New(t.sending, nil)
	if err != nil {
		return failed(err)
	}
	client.Traces(t.span())
	if slices.ContainsFunc(sessions, func(s recorder.Summary) bool { return len(unsent(s.Delivery)) > 0 }) {
		if d := time.Now().Add(unreachableTimeout); d.Before(deadline) {
			deadline = d
		}
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	_ = client.Shutdown(ctx) // client.Stats counts what was not sent
	s := client.Stats()[otlp.Traces]
	return []recorder.Delivery{{Signal: otlp.Traces.String(), To: s.Endpoint, Sent: s.Sent, Unsent: s.Unsent, Error: s.LastError}}
}

// span returns the command's own span.
func (t *tracing) span() ptrace.Traces {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	rs.SetSchemaUrl(semconv.SchemaURL)
	name := filepath.Base(t.cfg.command[0])
	resource := rs.Resource().Attributes()
	for _, a := range t.settings.Resource {
		resource.PutStr(a.Key, a.Str)
	}
	resource.PutStr(semconv.ServiceName, cmp.Or(t.settings.ServiceName, semconv.UnknownService+":"+name))
	resource.PutInt(semconv.ProcessPID, int64(t.pid))
	if _, said := resource.Get(semconv.HostName); !said {
		if host, err := os.Hostname(); err == nil {
			resource.PutStr(semconv.HostName, host)
		}
	}
	ss := rs.ScopeSpans().AppendEmpty()
	ss.SetSchemaUrl(semconv.SchemaURL)
	ss.Scope().SetName(semconv.ScopeName)
	ss.Scope().SetVersion(version.String())
	span := ss.Spans().AppendEmpty()
	span.SetName(name)
	span.SetTraceID(pcommon.TraceID(t.ref.Trace))
	span.SetSpanID(pcommon.SpanID(t.ref.Span))
	span.SetParentSpanID(pcommon.SpanID(t.ref.Parent))
	span.SetKind(ptrace.SpanKindInternal)
	span.SetStartTimestamp(pcommon.NewTimestampFromTime(t.began))
	span.SetEndTimestamp(pcommon.NewTimestampFromTime(t.ended))
	attributes := span.Attributes()
	attributes.PutStr(semconv.CUDAOperation, semconv.CUDAOperationSession)
	args := attributes.PutEmptySlice(semconv.ProcessCommandArgs)
	for _, a := range t.cfg.command {
		args.AppendEmpty().SetStr(strings.ToValidUTF8(a, "\uFFFD"))
	}
	if t.end.signal != 0 {
		attributes.PutInt(semconv.ProcessExitSignal, int64(t.end.signal))
	} else {
		attributes.PutInt(semconv.ProcessExitCode, int64(t.end.code))
	}
	if t.end.code != 0 {
		span.Status().SetCode(ptrace.StatusCodeError)
		span.Status().SetMessage(name + " " + t.end.String())
	}
	return td
}

// printer prints lines with the prefix "gpuflight: ".
type printer struct{ out io.Writer }

func (t *printer) printf(format string, args ...any) {
	fmt.Fprintf(t.out, "gpuflight: "+format+"\n", args...)
}

func processes(t *report.Totals) string {
	s := plural(uint64(t.Sessions), "process", "processes") + " recorded"
	if t.Unended > 0 {
		s += fmt.Sprintf(", %d of them ended without a summary (killed, or still running): what they sent before was recorded", t.Unended)
	}
	return s
}

func plural(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return report.Count(n) + " " + many
}

// signals are all signals, in the order of the report.
var signals = []otlp.Signal{otlp.Traces, otlp.Logs, otlp.Metrics, otlp.Profiles}

// items names the items of each signal, in singular and plural.
var items = map[string][2]string{
	otlp.Traces.String():   {"span", "spans"},
	otlp.Logs.String():     {"log record", "log records"},
	otlp.Metrics.String():  {"metric point", "metric points"},
	otlp.Profiles.String(): {"profile", "profiles"},
}

// place returns the destination of a delivery without the path of its signal. All signals of one
// collector then share a line.
func place(d *recorder.Delivery) string {
	for _, signal := range signals {
		if signal.String() == d.Signal {
			return strings.Replace(d.To, "/"+signal.Path(), "", 1)
		}
	}
	return d.To
}

// sent returns a line for each destination about what arrived there.
func sent(deliveries []recorder.Delivery) []string {
	return byPlace(deliveries, func(d *recorder.Delivery) uint64 { return d.Sent }, func(where, what string, _ []recorder.Delivery) string {
		return what + " went to " + where
	})
}

// unsent returns a line for each destination about what was not delivered.
func unsent(deliveries []recorder.Delivery) []string {
	return byPlace(deliveries, func(d *recorder.Delivery) (n uint64) {
		for _, v := range d.Unsent {
			n += v
		}
		return n
	}, func(where, what string, of []recorder.Delivery) string {
		reasons := map[string]bool{}
		detail := ""
		for i := range of {
			for reason, n := range of[i].Unsent {
				if n > 0 {
					reasons[reason] = true
				}
			}
			detail = cmp.Or(of[i].Error, detail)
		}
		var words []string
		for reason := range reasons {
			words = append(words, reason)
		}
		slices.Sort(words)
		line := what + " could not be sent to " + where + " (" + strings.Join(words, ", ") + ")"
		if detail != "" {
			line += ": " + detail
		}
		return line
	})
}

func byPlace(deliveries []recorder.Delivery, count func(*recorder.Delivery) uint64, line func(where, what string, of []recorder.Delivery) string) []string {
	var places []string
	of := map[string][]recorder.Delivery{}
	for i := range deliveries {
		d := &deliveries[i]
		if count(d) == 0 {
			continue
		}
		p := place(d)
		if of[p] == nil {
			places = append(places, p)
		}
		of[p] = append(of[p], *d)
	}
	var lines []string
	for _, p := range places {
		counts := map[string]uint64{}
		for i := range of[p] {
			counts[of[p][i].Signal] += count(&of[p][i])
		}
		var words []string
		for _, signal := range signals {
			if n := counts[signal.String()]; n > 0 {
				words = append(words, plural(n, items[signal.String()][0], items[signal.String()][1]))
			}
		}
		lines = append(lines, line(p, strings.Join(words, ", "), of[p]))
	}
	return lines
}

// environment is the environment of a process, in order, with each variable once.
type environment struct {
	names  []string
	values map[string]string
}

func newEnvironment(environ []string) environment {
	e := environment{values: map[string]string{}}
	for _, v := range environ {
		if name, value, ok := strings.Cut(v, "="); ok && name != "" {
			e.set(name, value)
		}
	}
	return e
}

func (e *environment) get(name string) string { return e.values[name] }

func (e *environment) set(name, value string) {
	if _, ok := e.values[name]; !ok {
		e.names = append(e.names, name)
	}
	e.values[name] = value
}

// setForAll sets an OTLP variable and removes the variables of single signals, which have
// precedence.
func (e *environment) setForAll(name, value string) {
	for _, signal := range signals {
		e.unset(strings.Replace(name, "OTLP_", "OTLP_"+strings.ToUpper(signal.String())+"_", 1))
	}
	e.set(name, value)
}

func (e *environment) unset(name string) {
	if _, ok := e.values[name]; ok {
		delete(e.values, name)
		e.names = slices.DeleteFunc(e.names, func(n string) bool { return n == name })
	}
}

func (e *environment) list() []string {
	list := make([]string, 0, len(e.names))
	for _, name := range e.names {
		list = append(list, name+"="+e.values[name])
	}
	return list
}
