// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"context"
	"os"
	"os/signal"
	"time"

	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receiverhelper"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/metadata"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"
)

// tracing is a trace that is on.
type tracing interface {
	// Take returns the calls that have returned since it was last called, and false once it has ended and all were
	// taken. It ends by itself.
	Take() ([]probe.Call, bool)
	Losses() probe.TraceLosses
	Stop() error
}

const (
	// takeInterval is how often the kernel's buffer is emptied. A process that is alone can have a third of it: of 4 MiB,
	// 370,000 calls a second.
	takeInterval = 33 * time.Millisecond
	// maxBatch bounds the spans that are given on at once.
	maxBatch = 4096
)

// What opened a window, in the receiver's telemetry.
const (
	triggerSignal = "signal"
	triggerRate   = "rate"
)

// tracer opens windows, one at a time, and sends the spans of their calls. Its run belongs to one goroutine.
type tracer struct {
	cfg       *Config
	log       *zap.Logger
	telemetry *metadata.TelemetryBuilder
	obs       *receiverhelper.ObsReport
	next      consumer.Traces
	who       *describer
	// signals gets one for each signal that asks for a window; there is room for one.
	signals chan os.Signal
	// now, and every, which ticks, are the time's; tests have their own.
	now   func() time.Time
	every func(time.Duration) (tick <-chan time.Time, stop func())

	windows int64
	// rested is when the rule may open the next window.
	rested time.Time
}

func newTracer(cfg *Config, set receiver.Settings, telemetry *metadata.TelemetryBuilder, next consumer.Traces) (*tracer, error) {
	obs, err := receiverhelper.NewObsReport(receiverhelper.ObsReportSettings{ReceiverID: set.ID, ReceiverCreateSettings: set})
	if err != nil {
		return nil, err
	}
	return &tracer{
		cfg: cfg, log: set.Logger, telemetry: telemetry, obs: obs, next: next, who: newDescriber(cfg),
		signals: make(chan os.Signal, 1), now: time.Now, every: ticker,
	}, nil
}

func ticker(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTicker(d)
	return t.C, t.Stop
}

// start listens to the signal, and stop no longer does.
func (t *tracer) start() {
	if t.cfg.Trace.OnSignal {
		listen(t.signals)
	}
}

func (t *tracer) stop() { signal.Stop(t.signals) }

// run opens windows on a source until ctx ends.
func (t *tracer) run(ctx context.Context, s source) {
	r := &rule{cfg: &t.cfg.Trace.When}
	var look <-chan time.Time
	if r.cfg.set() {
		tick, stop := t.every(r.cfg.Interval)
		defer stop()
		look = tick
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.signals:
			t.window(ctx, s, triggerSignal)
			r.forget()
		case <-look:
			if t.fires(s, r) {
				t.window(ctx, s, triggerRate)
				r.forget()
			}
		}
	}
}

// fires reports whether the rule opens a window now.
func (t *tracer) fires(s source, r *rule) bool {
	launches, err := s.Launches()
	if err != nil {
		r.forget() // what cannot be read is told by the collections
		return false
	}
	now := t.now()
	causes := r.look(now, launches)
	if now.Before(t.rested) {
		return false
	}
	for _, c := range causes {
		who, _ := t.who.reader.Process(c.process.PID, c.process.Start)
		if t.cfg.selects(&who) {
			t.log.Info("a process's rate of launches opens a trace", zap.Int32("pid", c.process.PID), zap.Float64("launches_per_second", c.rate))
			return true
		}
	}
	return false
}

// ignoreSignal drops a signal that has come, if one has.
func (t *tracer) ignoreSignal(why string) {
	select {
	case <-t.signals:
		t.log.Warn("a signal to trace is ignored", zap.String("reason", why))
	default:
	}
}

// window traces once, and returns when all spans are sent.
func (t *tracer) window(ctx context.Context, s source, trigger string) {
	w := newWindow(t.cfg, t.who, t.now().UnixNano(), t.windows+1)
	o := probe.TraceOptions{
		Duration: t.cfg.Trace.Duration, MaxCalls: t.cfg.Trace.MaxSpans, Select: w.selects, RingBytes: t.cfg.Trace.RingBytes,
	}
	tr, err := s.Trace(o)
	if err != nil {
		t.telemetry.ReceiverCudaTraceFailed.Add(ctx, 1)
		t.log.Warn("calls cannot be traced", zap.Error(err))
		return
	}
	t.windows++
	t.telemetry.ReceiverCudaTraceWindows.Add(ctx, 1, metric.WithAttributes(attribute.String("trigger", trigger)))
	t.log.Info("a trace begins", zap.String("trigger", trigger), zap.Duration("duration", o.Duration))
	tick, stop := t.every(takeInterval)
	defer stop()
	spans := 0
	for on := true; on; {
		select {
		case <-ctx.Done():
			if err := tr.Stop(); err != nil {
				t.log.Warn("detaching a trace", zap.Error(err))
			}
		case <-tick:
		}
		var calls []probe.Call
		calls, on = tr.Take()
		spans += t.send(ctx, w, calls)
	}
	end := t.now()
	t.rested = end.Add(t.cfg.Trace.Cooldown)
	td, roots := w.roots(end.UnixNano())
	t.consume(ctx, td, roots)
	t.ignoreSignal("a trace was on")
	losses := tr.Losses()
	lost := t.account(ctx, &losses, w.left())
	if pid, n := most(losses.Processes); n > 0 {
		t.log.Warn("calls are not traced: a process made more than its share", zap.Int32("pid", pid), zap.Uint64("calls", n),
			zap.Int("processes", len(losses.Processes)))
	}
	t.log.Info("a trace has ended", zap.Int("spans", spans), zap.Uint64("lost", lost))
}

// most returns the process that lost the most calls, and how many.
func most(lost map[int32]uint64) (pid int32, calls uint64) {
	for p, n := range lost {
		if n > calls || n == calls && p < pid {
			pid, calls = p, n
		}
	}
	return pid, calls
}

// send makes spans of calls and gives them on in batches; it returns how many there were.
func (t *tracer) send(ctx context.Context, w *window, calls []probe.Call) (spans int) {
	for len(calls) > 0 {
		n := min(len(calls), maxBatch)
		td, made := w.spans(calls[:n])
		t.consume(ctx, td, made)
		spans += made
		calls = calls[n:]
	}
	return spans
}

// consume gives spans on. What the pipeline refuses is counted as refused and not kept.
func (t *tracer) consume(ctx context.Context, td ptrace.Traces, n int) {
	if n == 0 {
		return
	}
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx) // the last spans of a window that a shutdown ended
	}
	op := t.obs.StartTracesOp(ctx)
	err := t.next.ConsumeTraces(op, td)
	t.obs.EndTracesOp(op, "ebpf", n, err)
	if err != nil {
		t.log.Debug("spans were refused", zap.Error(err))
	}
}

// account adds what a window lost to the receiver's telemetry, and returns the number of calls.
func (t *tracer) account(ctx context.Context, l *probe.TraceLosses, dropped int64) (lost uint64) {
	for reason, n := range map[string]uint64{
		"ring_full": l.RingFull, "in_flight_full": l.InFlightFull, "max_spans": l.Beyond, "unfinished": l.Unfinished,
		"max_processes": uint64(dropped),
	} {
		lost += n
		t.telemetry.ReceiverCudaTraceCallsLost.Add(ctx, int64(n), metric.WithAttributes(attribute.String("reason", reason)))
	}
	t.telemetry.ReceiverCudaTraceAttachFailed.Add(ctx, int64(l.AttachFailed))
	return lost
}
