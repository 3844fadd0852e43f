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
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

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

const traceUsage = `gpuflight trace runs a command and records what it and its children do on the GPU: kernels, copies, NVTX
ranges, each process as a session of one trace. The command's input, output, signals and exit code are
its own; at the end a short table goes to stderr.

Telemetry goes by OTLP to where the OTEL_EXPORTER_OTLP_... variables say, http://localhost:4318 if they
say nothing, or into a file with --output. TRACEPARENT makes the command part of a trace. Flags win over
variables.

Usage:
  gpuflight trace [flags] -- COMMAND [ARGUMENT...]

Examples:
  gpuflight trace -- python3 train.py
  gpuflight trace --output run.otlp.jsonl -- python3 train.py && gpuflight report run.otlp.jsonl
  gpuflight trace --endpoint http://collector:4317 --protocol grpc --service trainer -- torchrun --nproc-per-node 4 train.py
  gpuflight trace --kinds +sync,+memory --include 'gemm*' -- ./simulation
  gpuflight trace --output run.otlp.jsonl --deep-after 30s --deep-for 2s -- python3 train.py

Flags:
`

const (
	injectionVariable = "CUDA_INJECTION64_PATH"
	nvtxVariable      = "NVTX_INJECTION64_PATH"
	// patience is what gpuflight waits for at most after the command's end: for other processes of it that
	// end, and to send its own span. Of a collector that the command could not reach it expects less.
	patience      = 5 * time.Second
	lessPatience  = time.Second
	childPatience = "4s"
	// summaryRows is the length of the tables at the end.
	summaryRows = 10
)

// Exit codes of shells for commands that do not run.
const (
	exitNotRunnable = 126
	exitNotFound    = 127
)

// traceConfig is what the flags of gpuflight trace say.
type traceConfig struct {
	command []string
	// values holds the values that flags set, by variable.
	values      map[string]string
	library     string
	nvtx, quiet bool
	force       bool
}

// table holds the settings of the recording processes. A flag sets its variable in them.
var table = slices.Concat(new(otlp.Settings).Table(), new(recorder.Settings).Table(), new(deep.Config).Table())

// parseTrace reads the flags; help goes to out.
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
	fs.StringVar(&cfg.library, "library", "", "`path` of libgpuflight.so (default: beside gpuflight, ../lib, /usr/local/lib/gpuflight, /usr/lib/gpuflight)")
	fs.BoolVar(&cfg.nvtx, "nvtx", true, "record NVTX ranges as scopes")
	fs.BoolVar(&cfg.quiet, "quiet", false, "print nothing at the end but what was not sent")
	fs.BoolVar(&cfg.force, "force", false, "replace another profiler's "+injectionVariable)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			printUsage(out, traceUsage, fs)
			return cfg, err
		}
		return cfg, &usageError{err}
	}
	if cfg.command = fs.Args(); len(cfg.command) == 0 {
		return cfg, &usageError{errors.New("no command: give it after --")}
	}
	return cfg, nil
}

// runTrace runs the command and returns how it ended. Errors are of gpuflight itself, before the command
// ran.
func runTrace(args []string, stdout, stderr io.Writer) (ending, error) {
	cfg, err := parseTrace(args, stdout)
	if err != nil {
		return ending{}, err
	}
	if !traceSupported {
		return ending{}, errors.New("tracing works on Linux only")
	}
	t, err := prepare(cfg, os.Environ())
	if err != nil {
		return ending{}, err
	}
	defer os.RemoveAll(t.dir) // of no use any more, and in the folder for such files
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
	return end, nil
}

// tracing is one command that is traced.
type tracing struct {
	cfg      traceConfig
	env      environment
	settings recorder.Settings
	sending  otlp.Settings
	deep     deep.Config
	// dir is where processes leave their summaries.
	dir string
	// ref is the command's own span.
	ref     gpuevent.Ref
	sampled bool
	pid     int

	began, ended time.Time
	end          ending
}

// prepare makes the command's environment, and checks what can be before it runs.
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
				return nil, fmt.Errorf("%s is set to %s: this runs under gpuflight trace already; --force traces it anew", name, v)
			}
			return nil, fmt.Errorf("%s is set to %s: another profiler wants to be there, and there can be only one; --force replaces it", name, v)
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
		// What an earlier run has written is not of this one. Processes append.
		if err := emptyFile(file); err != nil {
			return nil, err
		}
	}
	if t.dir, err = os.MkdirTemp("", "gpuflight-"); err != nil {
		return nil, err
	}
	t.env.set("GPUFLIGHT_SUMMARY_DIR", t.dir)
	return t, nil
}

// emptyFile creates a recording, or empties the one that is there. Recordings contain the names of
// programs and their arguments, so only the user may read them, whatever mode the file had before.
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

// wrong returns err with the flags that were given instead of their variables.
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

// applyFlags sets the variables that flags stand for, and what the recording processes shall do
// differently because gpuflight is there to speak for them.
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
				return &usageError{errors.New("--output has no file")}
			}
		}
		t.env.set(name, v)
	}
	if file := t.env.get(otlp.OutputVariable); file != "" {
		// The command may change its folder.
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
		{"GPUFLIGHT_LOG_LEVEL", "off"}, // stderr is the command's
		{"GPUFLIGHT_SHUTDOWN_TIMEOUT", childPatience},
	} {
		if t.env.get(v.name) == "" {
			t.env.set(v.name, v.value)
		}
	}
	return nil
}

// finish collects what the processes leave, sends the command's own span and tells of all.
func (t *tracing) finish(stderr io.Writer) {
	deadline := t.ended.Add(patience)
	sessions, readError := t.sessions(deadline)
	deliveries := t.send(deadline, sessions)
	for i := range sessions {
		deliveries = append(deliveries, sessions[i].Delivery...)
	}
	out := &teller{out: stderr}
	if readError != nil {
		out.tell("a summary cannot be read: %v", readError)
	}
	for _, line := range unsent(deliveries) {
		out.tell("%s", line)
	}
	if t.cfg.quiet {
		return
	}
	r := report.New()
	for i := range sessions {
		r.Session(sessions[i])
	}
	totals := r.Totals()
	out.tell("%s %v after %v, %s", filepath.Base(t.cfg.command[0]), t.end, t.ended.Sub(t.began).Round(time.Millisecond), processes(&totals))
	for _, line := range sent(deliveries) {
		out.tell("%s, trace %s", line, hex.EncodeToString(t.ref.Trace[:]))
	}
	for _, n := range totals.Nothing {
		out.tell("%s recorded nothing: %s", plural(uint64(n.Processes), "process", "processes"), cmp.Or(n.Detail, string(n.Reason)))
	}
	t.tellWindows(out, sessions)
	t.reportOverhead(out, sessions)
	switch {
	case !totals.Empty():
		fmt.Fprintln(stderr)
		_ = totals.Write(stderr, summaryRows) // whoever has closed stderr does not want it
	case len(sessions) == 0:
		out.tell("nothing was recorded: no process of the command used the GPU, or the driver could not load %s; `gpuflight doctor` says whether recording works here", libraryName)
	case len(totals.Nothing) == 0 && totals.Unended < totals.Sessions:
		out.tell("no work of a GPU was recorded; `gpuflight doctor` says whether recording works here")
	}
}

// tellNoWindow says why there was no deep window although one was asked for.
func (t *tracing) tellNoWindow(out *teller) {
	took := t.ended.Sub(t.began)
	switch first := cmp.Or(t.deep.After, t.deep.Every); {
	case first > 0 && first >= took:
		out.tell("no deep window opened: the first was to open %v after the start, and the command took %v", first, took.Round(time.Millisecond))
	case first > 0:
		out.tell("no deep window opened at the time that was set: no process used the GPU then, or a limit was in the way")
	}
	for _, r := range t.deep.When {
		out.tell("no deep window opened for the rule %q: it was not met, or a limit was in the way; `gpuflight deep PID --status` says how far a rule is while a process runs", r.Text)
	}
	if t.deep.Signal != "" {
		out.tell("no deep window opened for SIG%s: none came while a process used the GPU, the program handles it itself, or a limit was in the way", t.deep.Signal)
	}
}

// reportOverhead reports budgets that were not kept, and why.
func (t *tracing) reportOverhead(out *teller, sessions []recorder.Summary) {
	for i := range sessions {
		o := sessions[i].Overhead
		if o == nil {
			continue
		}
		if !o.Met {
			out.tell("process %d did not keep the overhead budget of %.3g %%: recording cost up to %.2g %% of its time", sessions[i].PID, 100*o.Budget, 100*o.Ratio)
		}
		if o.Failure != "" {
			out.tell("process %d: %s", sessions[i].PID, o.Failure)
		}
	}
}

// told is how many windows are named at the end.
const told = 5

// tellWindows says what deep windows there were, and where what they found is.
func (t *tracing) tellWindows(out *teller, sessions []recorder.Summary) {
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
			if named++; named > told {
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
			out.tell("%s", line)
		}
	}
	if all := opened + attempts; all > told {
		out.tell("%s in all, %d of them without a result", plural(all, "deep window", "deep windows"), attempts)
	}
	if unsent > 0 {
		out.tell("the figures of %s found no room or were not ready in time", plural(unsent, "deep window", "deep windows"))
	}
	if paused > 0 {
		out.tell("nothing else was recorded for %.3g s of deep windows", paused)
	}
	if opened+attempts == 0 && len(sessions) > 0 {
		t.tellNoWindow(out)
	}
	switch {
	case opened == 0:
	case t.sending.File != "":
		out.tell("`gpuflight report %s` shows what they found", t.sending.File)
	default:
		out.tell("what they found is in the logs cuda.pc_sample and cuda.sass_metric; with --output, `gpuflight report` shows it")
	}
}

// sessions waits, until the deadline, for processes that still run, and returns all summaries.
func (t *tracing) sessions(deadline time.Time) ([]recorder.Summary, error) {
	for {
		sessions, err := report.ReadSessions(t.dir)
		running := slices.ContainsFunc(sessions, func(s recorder.Summary) bool { return s.EndNs == 0 && alive(s.PID) })
		if !running || time.Now().After(deadline) {
			return withoutRivals(sessions), err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// withoutRivals leaves out what the library says of processes in which the SDK recorded: there it could
// not, and need not.
func withoutRivals(sessions []recorder.Summary) []recorder.Summary {
	recorded := map[int]bool{}
	for i := range sessions {
		if sessions[i].Reason == cupti.ReasonNone {
			recorded[sessions[i].PID] = true
		}
	}
	return slices.DeleteFunc(sessions, func(s recorder.Summary) bool { return s.Reason != cupti.ReasonNone && recorded[s.PID] })
}

// send sends the command's own span, and returns what became of it.
func (t *tracing) send(deadline time.Time, sessions []recorder.Summary) []recorder.Delivery {
	if !t.sampled || (t.sending.File == "" && t.sending.Signals[otlp.Traces].Off) {
		return nil
	}
	failed := func(err error) []recorder.Delivery {
		return []recorder.Delivery{{Signal: otlp.Traces.String(), To: t.sending.Signals[otlp.Traces].String(), Unsent: map[string]uint64{otlp.ReasonFault: 1}, Error: err.Error()}}
	}
	client, err := otlp.New(t.sending, nil)
	if err != nil {
		return failed(err)
	}
	client.Traces(t.span())
	if slices.ContainsFunc(sessions, func(s recorder.Summary) bool { return len(unsent(s.Delivery)) > 0 }) {
		if d := time.Now().Add(lessPatience); d.Before(deadline) {
			deadline = d
		}
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	_ = client.Shutdown(ctx) // what was not sent is in the counts
	s := client.Stats()[otlp.Traces]
	return []recorder.Delivery{{Signal: otlp.Traces.String(), To: s.Endpoint, Sent: s.Sent, Unsent: s.Unsent, Error: s.LastError}}
}

// span is the command's own.
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

// teller prints lines that say who speaks.
type teller struct{ out io.Writer }

func (t *teller) tell(format string, args ...any) {
	fmt.Fprintf(t.out, "gpuflight: "+format+"\n", args...)
}

func processes(t *report.Totals) string {
	s := plural(uint64(t.Sessions), "process", "processes") + " recorded"
	if t.Unended > 0 {
		s += fmt.Sprintf(", %d of them ended without a summary (killed, or still running): what they had sent is there", t.Unended)
	}
	return s
}

func plural(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return report.Count(n) + " " + many
}

// signals are all there are, in the order in which they are told of.
var signals = []otlp.Signal{otlp.Traces, otlp.Logs, otlp.Metrics, otlp.Profiles}

// items are what the signals consist of.
var items = map[string][2]string{
	otlp.Traces.String():   {"span", "spans"},
	otlp.Logs.String():     {"log record", "log records"},
	otlp.Metrics.String():  {"metric point", "metric points"},
	otlp.Profiles.String(): {"profile", "profiles"},
}

// place is where telemetry goes, without what tells the signals apart: one collector, one line.
func place(d *recorder.Delivery) string {
	for _, signal := range signals {
		if signal.String() == d.Signal {
			return strings.Replace(d.To, "/"+signal.Path(), "", 1)
		}
	}
	return d.To
}

// sent says what arrived where, one line a place.
func sent(deliveries []recorder.Delivery) []string {
	return byPlace(deliveries, func(d *recorder.Delivery) uint64 { return d.Sent }, func(where, what string, _ []recorder.Delivery) string {
		return what + " went to " + where
	})
}

// unsent says what was lost on the way, one line a place.
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

// environment is a process's, in order, each variable once.
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

// setForAll sets a variable of OTLP, and unsets those for one signal, which would win.
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
