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
)

const (
	// quiet is how long a source that was stopped may be silent before it is taken as at its end.
	quiet = 500 * time.Millisecond
	// maxErrors is the number of errors of Take in a row after which recording stops.
	maxErrors = 10
	// maxHeld is how many buffers may wait for the host calls of their records before CUPTI is asked
	// for them, an eighth of the collector's default pool; what it has then may be four times that.
	maxHeld = 4
	// grace is what Stop waits past its bound for the goroutine to notice.
	grace = time.Second
)

// Recorder turns one collector's records into telemetry. Begin, End and SessionRef may be called by
// any goroutine; Start and Stop by its owner, Start once.
type Recorder struct {
	cfg Config
	src Source
	log *slog.Logger
	ref gpuevent.Ref

	// broken says that recording has stopped by a fault, abandoned that Stop waits no longer, over that
	// nobody learns of scopes any more.
	broken, abandoned, over atomic.Bool

	// timed says that scopes are timed, since a rule looks at them.
	timed bool

	mu      sync.Mutex
	pending []scopeOp
	lost    uint64
	// notes and yields are of deep windows; windowsLost are notes that found no room.
	notes       []windowNote
	yields      []*Window
	yieldRows   int
	windowsLost uint64
	// texts are those of functions, of textBytes; textsMissing will not come.
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

// New returns a recorder that has not begun. It errs if a value of the configuration makes no sense.
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
	return &Recorder{
		cfg: cfg, src: src, log: cfg.Logger, ref: e.scopes.session.first, engine: e, timed: e.figures != nil,
		stop: make(chan struct{}), done: make(chan struct{}),
	}, nil
}

// complete fills in the defaults.
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
	if cfg.Start.IsZero() {
		cfg.Start = time.Now()
	}
	if cfg.Asked == 0 {
		cfg.Asked = cupti.DefaultKinds
	}
	switch {
	case !IsUUID(cfg.InstanceID):
		return cfg, fmt.Errorf("recorder: instance id %q is no UUID", cfg.InstanceID)
	case cfg.MaxSpansPerTrace < 2:
		return cfg, fmt.Errorf("recorder: %d spans per trace; there must be room for a scope and its work, so at least 2", cfg.MaxSpansPerTrace)
	case cfg.FlushInterval < 0 || cfg.MetricInterval < 0 || cfg.MinDuration < 0:
		return cfg, errors.New("recorder: a duration is below 0")
	case cfg.HasParent && (cfg.Parent.Trace == gpuevent.TraceID{} || cfg.Parent.Span == gpuevent.SpanID{}):
		return cfg, errors.New("recorder: the parent has no trace or no span")
	}
	return cfg, nil
}

// SessionRef returns the session's span: the parent of work outside every scope. If its trace is not
// sampled (see Config.Parent), it is never sent.
func (r *Recorder) SessionRef() gpuevent.Ref { return r.ref }

// Service is service.name as telemetry has it.
func (r *Recorder) Service() string { return r.cfg.ServiceName }

// Start begins to take buffers.
func (r *Recorder) Start() {
	if r.started.CompareAndSwap(false, true) {
		go r.run()
	}
}

// Begin makes a scope of what the calling thread launches from now on; the caller has the goroutine
// locked to its thread. It returns 0 if nothing is recorded, or the scope found no room.
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
	// Before the push: when a buffer with a launch in this scope is taken, the scope is known.
	r.pending = append(r.pending, scopeOp{id: id, begin: true, at: at, scope: s})
	r.mu.Unlock()
	if err := r.src.PushScope(id); err != nil {
		r.end(id)
		return 0
	}
	return id
}

// End ends a scope on the thread that began it. An id of 0 is none. On another thread the scope ends
// as well, but stays on the stack of the thread that began it; the source counts that.
func (r *Recorder) End(id uint64) {
	if id == 0 {
		return
	}
	_ = r.src.PopScope(id) // misplaced scopes are counted by the source
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

// clock is the time, 0 where nobody wants it.
func (r *Recorder) clock() int64 {
	if !r.timed {
		return 0
	}
	return time.Now().UnixNano()
}

// Stop takes what is left, sends it with the last metrics, the session's span and the capture log, and
// returns what came of the session. The collector has been stopped before. Past ctx, what is not yet
// read is given back unread, and counted. A second call returns the same.
func (r *Recorder) Stop(ctx context.Context) Summary {
	r.once.Do(func() {
		close(r.stop)
		r.Start() // so that a recorder that was never started sends what it has, by the same way
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
		return r.bare("the recorder did not stop in time")
	}
}

// bare is the summary of a session of which nothing else is known.
func (r *Recorder) bare(failure string) Summary {
	return Summary{
		PID: r.cfg.PID, Command: r.cfg.Command, Service: r.cfg.ServiceName, Instance: r.cfg.InstanceID,
		Trace: traceText(r.ref), Failure: failure,
	}
}

// run is the consumer's goroutine. Nothing that goes wrong in it may end the program around it.
func (r *Recorder) run() {
	defer close(r.done)
	// Locked to its thread, so that the thread's processor time is ours.
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
		r.summary = r.bare(r.failure)
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

// fail notes a fault: nothing is recorded from now on.
func (r *Recorder) fail(err error) {
	r.broken.Store(true)
	if r.failure == "" {
		r.failure = firstLine(err.Error())
		r.log.Error("recording stopped", "error", err)
	}
}

// consume takes buffers until the source is at its end.
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
			// The collector was stopped before us, or is to be started again: its end is ours only
			// when Stop is called.
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
		case stopping && e.now.Sub(silent) > quiet:
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

// pause waits, but not past a stop.
func pause(stop <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-stop:
	case <-t.C:
	}
}

// receive takes over a buffer and processes it, at once but where it waits for host calls.
func (r *Recorder) receive(b Records) {
	r.held = append(r.held, b)
	if r.engine.calls != nil {
		r.engine.learnCalls(b)
		return
	}
	r.process()
}

// round asks for what is complete, processes what waited for it, and does what else is due.
//
// CUPTI delivers a host call and the work that it started in different buffers, in any order. By the
// end of a flush both are there for nearly all work that is; what was delivered without its call has
// no launch time.
func (r *Recorder) round() {
	if err := r.src.Flush(); err != nil {
		r.log.Debug("cannot flush", "error", err)
	}
	for n := r.src.Pending(); n > 0 && len(r.held) < 4*maxHeld && !r.abandoned.Load(); n-- {
		b, err := r.src.Take(0)
		if err != nil || b == nil {
			break // consume sees it again
		}
		r.receive(b)
	}
	r.process()
	r.engine.sendYields()
	r.engine.send()
	r.engine.tick()
}

// learnScopes reads what became known of scopes. It comes after Take, so that the scopes of all
// launches in the buffer have begun by then.
func (r *Recorder) learnScopes() {
	e := r.engine
	// NVTX first: a range may be in a scope, and one that was seen now is in one that was left in
	// pending before.
	e.events = r.src.ScopeEvents(e.events[:0])
	r.mu.Lock()
	ops, notes, yields, texts := r.pending, r.notes, r.yields, r.texts
	r.pending, r.notes, r.yields, r.yieldRows, r.texts, r.textBytes = nil, nil, nil, 0, nil, 0
	r.mu.Unlock()
	now := e.now.UnixNano()
	e.learnWindows(notes)
	e.scopes.apply(ops, now)
	if len(e.events) > 0 {
		e.scopes.nvtx(e.events, now)
	}
	clear(e.events)
	e.yields = append(e.yields, yields...)
	e.texts = append(e.texts, texts...)
}

// process processes all buffers that are held.
func (r *Recorder) process() {
	r.learnScopes()
	if len(r.held) == 0 {
		return
	}
	r.engine.process(r.held)
	clear(r.held)
	r.held = r.held[:0]
}

// drain gives buffers back unread until the source is at its end, so that the program around is not
// held up.
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
		case err != nil || r.abandoned.Load() && b == nil || b == nil && time.Since(silent) > quiet:
			return
		}
	}
}
