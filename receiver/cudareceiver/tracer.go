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

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/identity"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/metadata"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"
)

// tracing is an active trace.
type tracing interface {
	// Take returns the calls that have returned since the last Take. It returns false once the
	// trace has ended and all calls were taken. The trace ends by itself.
	Take() ([]probe.Call, bool)
	Losses() probe.TraceLosses
	Stop() error
}

const (
	// takeInterval is the time between two reads of the kernel's buffer. A process that runs alone
	// can use a third of the buffer: with 4 MiB, 370,000 calls per second.
	takeInterval = 33 * time.Millisecond
	// maxBatch bounds the spans of one batch.
	maxBatch = 4096
)

// Triggers of a window, in the receiver's telemetry.
const (
	triggerSignal = "signal"
	triggerRate   = "rate"
)

// tracer opens windows, one at a time, and sends the spans of their calls. Only one goroutine may
// call run.
type tracer struct {
	cfg       *Config
	log       *zap.Logger
	telemetry *metadata.TelemetryBuilder
	obs       *receiverhelper.ObsReport
	next      consumer.Traces
	who       *describer
	// signals receives each signal that requests a window. Its capacity is 1.
	signals chan os.Signal
	// now and every, which ticks, are the clock. Tests replace them.
	now   func() time.Time
	every func(time.Duration) (tick <-chan time.Time, stop func())

	windows int64
	// rested is the earliest time at which the rule may open the next window.
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

// start subscribes to the signal; stop unsubscribes.
func (t *tracer) start() {
	if t.cfg.Trace.OnSignal {
		listen(t.signals)
	}
}

func (t *tracer) stop() { signal.Stop(t.signals) }

// run opens windows on a source until ctx ends.
func (t *tracer) run(ctx context.Context, s source) {
	r := &rule{cfg: &t.cfg.Trace.When}
	var checks <-chan time.Time
	if r.cfg.set() {
		tick, stop := t.every(r.cfg.Interval)
		defer stop()
		checks = tick
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.signals:
			t.window(ctx, s, triggerSignal)
			r.forget()
		case <-checks:
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
		r.forget() // the collections report read errors
		return false
	}
	now := t.now()
	causes := r.check(now, launches)
	if now.Before(t.rested) {
		return false
	}
	for _, c := range causes {
		who, _ := t.who.reader.Process(c.process.PID, c.process.Start, identity.Known{})
		if t.cfg.selects(&who) {
			t.log.Info("launch rate of a process starts a trace", zap.Int32("pid", c.process.PID), zap.Float64("launches_per_second", c.rate))
			return true
		}
	}
	return false
}

// ignoreSignal drops a pending signal.
func (t *tracer) ignoreSignal(why string) {
	select {
	case <-t.signals:
		t.log.Warn("signal to trace ignored", zap.String("reason", why))
	default:
	}
}

// window traces once, and returns after all spans are sent.
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
	t.log.Info("trace started", zap.String("trigger", trigger), zap.Duration("duration", o.Duration))
	tick, stop := t.every(takeInterval)
	defer stop()
	spans := 0
	for on := true; on; {
		select {
		case <-ctx.Done():
			if err := tr.Stop(); err != nil {
				t.log.Warn("detach a trace", zap.Error(err))
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
	t.log.Info("trace ended", zap.Int("spans", spans), zap.Uint64("lost", lost))
}

// most returns the process that lost the most calls, and their number.
func most(lost map[int32]uint64) (pid int32, calls uint64) {
	for p, n := range lost {
		if n > calls || n == calls && p < pid {
			pid, calls = p, n
		}
	}
	return pid, calls
}

// send converts calls to spans and sends them in batches. It returns the number of spans.
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

// consume sends spans to the pipeline. Rejected spans are counted and dropped.
func (t *tracer) consume(ctx context.Context, td ptrace.Traces, n int) {
	if n == 0 {
		return
	}
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx) // a shutdown that ends a window must not cancel its last spans
	}
	op := t.obs.StartTracesOp(ctx)
	err := t.next.ConsumeTraces(op, td)
	t.obs.EndTracesOp(op, "ebpf", n, err)
	if err != nil {
		t.log.Debug("spans rejected by the pipeline", zap.Error(err))
	}
}

// account adds the losses of a window to the receiver's telemetry, and returns the number of lost
// calls.
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
