// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// Defaults of Config.
const (
	defaultMaxSpansPerSecond = 20_000
	defaultMaxSpansPerTrace  = 10_000
	defaultFlushInterval     = 200 * time.Millisecond
	defaultMetricInterval    = 10 * time.Second
	defaultMaxBacklog        = 16
)

const (
	// quietPeriod is how long a stopped source may deliver nothing before it counts as ended.
	quietPeriod = 500 * time.Millisecond
	// maxErrors is the number of consecutive errors of Take after which recording stops.
	maxErrors = 10
	// maxHeld bounds the buffers that wait for the host calls of their records. At the bound the
	// recorder flushes CUPTI. It is an eighth of the collector's default pool. A flush may deliver
	// four times as many.
	maxHeld = 4
	// backlogInterval is the interval at which the recorder checks a sink with a backlog.
	backlogInterval = 20 * time.Millisecond
	// grace is how long Stop waits for the goroutine after its deadline.
	grace = time.Second
)

// Recorder converts one collector's records into telemetry. Any goroutine may call Begin, End and
// SessionRef. Only the owner may call Start and Stop, and Start only once.
type Recorder struct {
	cfg  Config
	src  Source
	sink Sink
	log  *slog.Logger
	ref  gpuevent.Ref

	// broken means that an internal error stopped recording. hurried means that Stop has little time
	// left, so the recorder no longer waits for the sink. abandoned means that Stop no longer waits.
	// over means that new scopes are ignored.
	broken, hurried, abandoned, over atomic.Bool

	// timed means that scopes are timed, because a rule observes them.
	timed bool

	mu      sync.Mutex
	pending []scopeOp
	lost    uint64
	// windowEvents and results belong to deep windows. windowsLost counts dropped events.
	windowEvents []windowEvent
	results      []*Window
	resultRows   int
	windowsLost  uint64
	// texts are the listings of functions, of textBytes in total. textsMissing counts listings that
	// will not arrive.
	texts        []WindowTexts
	textBytes    int
	textsMissing uint64

	engine  *engine
	held    []Records
	started atomic.Bool
	stop    chan struct{}
	done    chan struct{}
	once    sync.Once
	summary Summary
	failure string
}

// New returns a recorder that has not started. It returns an error if the configuration is invalid.
func New(cfg Config, src Source, sink Sink) (*Recorder, error) {
	cfg, err := complete(cfg)
	if err != nil {
		return nil, err
	}
	e := newEngine(cfg, src, sink, time.Now())
	if cfg.OverheadBudget != 0 {
		if e.overhead, err = newOverheadLimiter(src, cfg.OverheadBudget, cfg.Logger); err != nil {
			return nil, err
		}
	}
	r := &Recorder{
		cfg: cfg, src: src, sink: sink, log: cfg.Logger, ref: e.scopes.session.first, engine: e, timed: e.figures != nil,
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	e.wait = func() {
		for r.waits() {
			time.Sleep(backlogInterval)
		}
	}
	return r, nil
}

// complete sets the defaults and validates the configuration.
func complete(cfg Config) (Config, error) {
	if cfg.InstanceID == "" {
		cfg.InstanceID = NewInstanceID()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.ServiceName == "" {
		cfg.ServiceName = defaultService(cfg.Resource)
	}
	if cfg.MaxSpansPerSecond == 0 {
		cfg.MaxSpansPerSecond = defaultMaxSpansPerSecond
	}
	if cfg.MaxSpansPerTrace == 0 {
		cfg.MaxSpansPerTrace = defaultMaxSpansPerTrace
	}
	if cfg.FlushInterval == 0 {
		cfg.FlushInterval = defaultFlushInterval
	}
	if cfg.MetricInterval == 0 {
		cfg.MetricInterval = defaultMetricInterval
	}
	if cfg.MaxBacklog <= 0 {
		cfg.MaxBacklog = defaultMaxBacklog
	}
	if cfg.Start.IsZero() {
		cfg.Start = time.Now()
	}
	if cfg.Asked == 0 {
		cfg.Asked = cupti.DefaultKinds
	}
	switch {
	case !IsUUID(cfg.InstanceID):
		return cfg, fmt.Errorf("recorder: instance id %q is not a UUID", cfg.InstanceID)
	case cfg.MaxSpansPerTrace < 2:
		return cfg, fmt.Errorf("recorder: %d spans per trace: a scope and its work need at least 2", cfg.MaxSpansPerTrace)
	case cfg.FlushInterval < 0 || cfg.MetricInterval < 0 || cfg.MinDuration < 0:
		return cfg, errors.New("recorder: negative duration")
	case cfg.HasParent && (cfg.Parent.Trace == gpuevent.TraceID{} || cfg.Parent.Span == gpuevent.SpanID{}):
		return cfg, errors.New("recorder: the parent has no trace or no span")
	}
	return cfg, nil
}

// SessionRef returns the session's span, the parent of work outside scopes. If its trace is not
// sampled (see Config.Parent), the span is never sent.
func (r *Recorder) SessionRef() gpuevent.Ref { return r.ref }

// Service returns service.name as it is in telemetry.
func (r *Recorder) Service() string { return r.cfg.ServiceName }

// Start starts the consumer's goroutine.
func (r *Recorder) Start() {
	if r.started.CompareAndSwap(false, true) {
		go r.run()
	}
}

// Begin starts a scope for the launches of the calling thread. The caller must have locked the
// goroutine to its thread. It returns 0 if recording is off or the scope was dropped.
func (r *Recorder) Begin(s Scope) uint64 {
	if r.broken.Load() || r.over.Load() {
		return 0
	}
	id := r.src.NextScopeID()
	at := r.clock()
	r.mu.Lock()
	if len(r.pending) >= maxPending {
		r.lost++
		r.mu.Unlock()
		return 0
	}
	// Append before the push: a buffer with a launch of this scope must find the scope.
	r.pending = append(r.pending, scopeOp{id: id, begin: true, at: at, scope: s})
	r.mu.Unlock()
	if err := r.src.PushScope(id); err != nil {
		r.end(id)
		return 0
	}
	return id
}

// End ends a scope on the thread that began it. It ignores the id 0. On another thread the scope
// ends too, but stays on the stack of the thread that began it; the source counts that.
func (r *Recorder) End(id uint64) {
	if id == 0 {
		return
	}
	_ = r.src.PopScope(id) // the source counts misplaced scopes
	r.end(id)
}

func (r *Recorder) end(id uint64) {
	if r.over.Load() {
		return
	}
	at := r.clock()
	r.mu.Lock()
	r.pending = append(r.pending, scopeOp{id: id, at: at})
	r.mu.Unlock()
}

// clock returns the time, or 0 if no rule needs it.
func (r *Recorder) clock() int64 {
	if !r.timed {
		return 0
	}
	return time.Now().UnixNano()
}

// Stop processes the remaining buffers and sends them with the last metrics, the session's span and
// the capture log. It returns the result of the session. The collector must have been stopped
// before. After ctx is done, buffers are returned unread and counted. A second call returns the
// same result.
func (r *Recorder) Stop(ctx context.Context) Summary {
	r.once.Do(func() {
		close(r.stop)
		r.Start() // a recorder that was never started also sends its data
		if end, ok := ctx.Deadline(); ok {
			// In the last quarter, records are processed for the metrics, although the sink may drop
			// their spans.
			hurry := time.AfterFunc(time.Until(end)*3/4, func() { r.hurried.Store(true) })
			defer hurry.Stop()
		}
		select {
		case <-r.done:
			return
		case <-ctx.Done():
		}
		r.abandoned.Store(true)
		late := time.NewTimer(grace)
		defer late.Stop()
		select {
		case <-r.done:
		case <-late.C:
		}
	})
	select {
	case <-r.done:
		return r.summary
	default:
		return r.emptySummary("the recorder did not stop before the deadline")
	}
}

// emptySummary is the summary of a session without further data.
func (r *Recorder) emptySummary(failure string) Summary {
	return Summary{
		PID: r.cfg.PID, Command: r.cfg.Command, Service: r.cfg.ServiceName, Instance: r.cfg.InstanceID,
		Trace: traceText(r.ref), Failure: failure,
	}
}

// run is the consumer's goroutine. No failure in it may end the program.
func (r *Recorder) run() {
	defer close(r.done)
	// Lock the thread, so that its processor time is only the recorder's.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r.engine.ownTime = threadTime()
	endLimiter := r.engine.overhead.start()
	if err := guarded(r.consume); err != nil {
		r.fail(err)
		r.drain()
	}
	endLimiter()
	r.over.Store(true)
	if err := guarded(r.finish); err != nil {
		r.fail(err)
		r.summary = r.emptySummary(r.failure)
	}
}

// guarded runs f and returns its panic as an error.
func guarded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("internal error: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// fail logs a fault and stops recording.
func (r *Recorder) fail(err error) {
	r.broken.Store(true)
	if r.failure == "" {
		r.failure = firstLine(err.Error())
		r.log.Error("recording stopped", "error", err)
	}
}

// consume processes buffers until the source ends.
func (r *Recorder) consume() error {
	e := r.engine
	next := e.now.Add(r.cfg.FlushInterval)
	var silent time.Time
	failed := 0
	stopping := false
	stop := r.stop
	for {
		select {
		case <-stop:
			stopping, stop = true, nil
			silent = time.Now()
		default:
		}
		if r.abandoned.Load() {
			r.drain()
			return nil
		}
		if r.waits() { // without a flush, so that CUPTI fills its buffers
			e.now = time.Now()
			r.learnScopes() // the program continues to open scopes
			e.tick()
			silent = e.now
			pause(stop, backlogInterval)
			continue
		}
		wait := max(0, time.Until(next))
		if stopping {
			wait = min(wait, 20*time.Millisecond)
		}
		b, err := r.src.Take(wait)
		e.now = time.Now()
		switch {
		case errors.Is(err, io.EOF) && stopping:
			r.process()
			return nil
		case errors.Is(err, io.EOF):
			// The collector was stopped first, or will be started again. Its end is final only
			// after Stop was called.
			r.process()
			pause(stop, r.cfg.FlushInterval)
		case err != nil:
			if failed++; failed >= maxErrors {
				return fmt.Errorf("take records: %w", err)
			}
			r.log.Warn("cannot take records", "error", err)
			pause(stop, r.cfg.FlushInterval)
		case b != nil:
			failed = 0
			silent = e.now
			r.receive(b)
		case stopping && e.now.Sub(silent) > quietPeriod:
			r.process()
			return nil
		}
		e.now = time.Now()
		if !e.now.Before(next) || len(r.held) >= maxHeld {
			r.round()
			e.now = time.Now()
			next = e.now.Add(r.cfg.FlushInterval)
		}
	}
}

// waits reports whether to leave the records with CUPTI, because the sink has a backlog.
func (r *Recorder) waits() bool {
	return r.sink.Backlog() && r.src.Pending()+len(r.held) < r.cfg.MaxBacklog && !r.hurried.Load() && !r.abandoned.Load()
}

// pause waits for d, or until the recorder stops.
func pause(stop <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-stop:
	case <-t.C:
	}
}

// receive takes ownership of a buffer. It processes it immediately unless it waits for host calls.
func (r *Recorder) receive(b Records) {
	r.held = append(r.held, b)
	if r.engine.calls != nil {
		r.engine.learnCalls(b)
		return
	}
	r.process()
}

// round flushes CUPTI, processes the waiting buffers, and runs the periodic work.
//
// CUPTI delivers a host call and the work that it started in different buffers, in any order. After
// a flush nearly all work has its call. Work whose call is missing has no launch time.
func (r *Recorder) round() {
	if err := r.src.Flush(); err != nil {
		r.log.Debug("cannot flush", "error", err)
	}
	for n := r.src.Pending(); n > 0 && len(r.held) < 4*maxHeld && !r.abandoned.Load(); n-- {
		b, err := r.src.Take(0)
		if err != nil || b == nil {
			break // consume handles the error
		}
		r.receive(b)
	}
	r.process()
	r.engine.sendResults()
	r.engine.send()
	r.engine.tick()
}

// learnScopes applies the pending scope events. It runs after Take, so that the scopes of all
// launches in the buffer exist.
func (r *Recorder) learnScopes() {
	e := r.engine
	// Read NVTX first: a range may be inside a scope. The scope of a range read here is already in
	// pending.
	e.events = r.src.ScopeEvents(e.events[:0])
	e.stacks.learn(r.src)
	r.mu.Lock()
	ops, events, results, texts := r.pending, r.windowEvents, r.results, r.texts
	r.pending, r.windowEvents, r.results, r.resultRows, r.texts, r.textBytes = nil, nil, nil, 0, nil, 0
	r.mu.Unlock()
	now := e.now.UnixNano()
	e.learnWindows(events)
	e.scopes.apply(ops, now)
	if len(e.events) > 0 {
		e.scopes.nvtx(e.events, now)
	}
	clear(e.events)
	e.results = append(e.results, results...)
	e.texts = append(e.texts, texts...)
}

// process processes all held buffers.
func (r *Recorder) process() {
	r.learnScopes()
	if len(r.held) == 0 {
		return
	}
	r.engine.process(r.held)
	clear(r.held)
	r.held = r.held[:0]
}

// drain returns buffers unread until the source ends, so that the program is not blocked.
func (r *Recorder) drain() {
	release := func(b Records) {
		_ = guarded(func() error {
			r.engine.unread += uint64(b.Len())
			return nil
		})
		_ = guarded(func() error {
			b.Release()
			return nil
		})
	}
	for _, b := range r.held {
		release(b)
	}
	r.held = nil
	stop := r.stop
	var silent time.Time
	for {
		var b Records
		err := guarded(func() (err error) {
			b, err = r.src.Take(20 * time.Millisecond)
			r.mu.Lock()
			r.pending = nil
			r.mu.Unlock()
			r.engine.events = r.src.ScopeEvents(r.engine.events[:0])
			return err
		})
		if b != nil {
			release(b)
			silent = time.Now()
		}
		select {
		case <-stop:
			stop = nil
			silent = time.Now()
		default:
		}
		switch {
		case stop != nil && b == nil && err != nil:
			pause(stop, r.cfg.FlushInterval)
		case stop != nil:
		case err != nil || r.abandoned.Load() && b == nil || b == nil && time.Since(silent) > quietPeriod:
			return
		}
	}
}
