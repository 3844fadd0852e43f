// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
)

// openLimit and closeLimit are such that package cupti gives up before package deep does. Closing
// takes up to five seconds more for the last samples, which SASS metrics do not have.
const (
	openLimit      = 9 * time.Second
	closeLimit     = 7 * time.Second
	sassCloseLimit = 12 * time.Second
)

// Collector is what opens windows: a *cupti.Collector by [FromCollector].
type Collector interface {
	OpenDeep(cupti.DeepConfig) (Opened, error)
	Pause() error
	Resume() error
	CubinImage(crc uint64) []byte
	HasContext() bool
}

// Opened is a window that is open: a *cupti.DeepWindow.
type Opened interface {
	Drain() error
	Close() (*cupti.DeepResult, error)
}

// FromCollector returns a collector as a Collector.
func FromCollector(c *cupti.Collector) Collector { return collector{c} }

type collector struct{ *cupti.Collector }

// OpenDeep returns no window as no Opened, which a nil *cupti.DeepWindow in the interface would not
// be.
func (c collector) OpenDeep(cfg cupti.DeepConfig) (Opened, error) {
	w, err := c.Collector.OpenDeep(cfg)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// Sink takes windows: a *recorder.Recorder. None of it waits.
type Sink interface {
	WindowOpened(w deep.Window, launches bool)
	WindowClosed(w deep.Window)
	AddWindow(*recorder.Window) bool
	AddListings(recorder.WindowTexts) bool
	CountMissingListings(functions uint64)
}

// Engines are the engines of one collector. They implement [deep.Engines]; Opened and Closed are
// the functions of a [deep.Config]. Start and Stop are called by the owner, once each.
type Engines struct {
	settings Settings
	from     Collector
	sink     Sink
	log      *slog.Logger
	worker   *worker

	// activity is held where activity is switched; paused says that it shall be off. late are
	// goroutines that turn it on as soon as that can be, and end with stopped.
	activity sync.Mutex
	paused   bool
	late     sync.WaitGroup
	stopped  chan struct{}
	once     sync.Once

	mu sync.Mutex
	// results are those of the window that is open; closed is the last that has been.
	results []*cupti.DeepResult
	window  uint64
	closed  uint64
	// asked is where the answer to whether there is a context comes; nil if nobody has been asked.
	asked chan bool
	// stuck says that an engine may be armed that CUPTI has not come back from.
	stuck bool
	// unresponsive is for saying once that CUPTI tells of nothing any more.
	unresponsive sync.Once
}

// New returns engines that have not begun. A nil logger drops what is logged.
func New(s Settings, from Collector, sink Sink, log *slog.Logger) *Engines {
	if s.MaxRows <= 0 {
		s.MaxRows = DefaultMaxRows
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Engines{settings: s, from: from, sink: sink, log: log, worker: newWorker(s, from, sink, log), stopped: make(chan struct{})}
}

// Start begins to take what windows yield.
func (e *Engines) Start() { e.worker.start() }

// Stop finishes what windows have yielded and returns within ctx, or a second past it. In the last
// half of its time there is no disassembly any more, and rows that still wait get no line. The
// controller has been stopped before.
func (e *Engines) Stop(ctx context.Context) error {
	e.once.Do(func() { close(e.stopped) })
	err := e.worker.stop(ctx)
	e.late.Wait()
	return err
}

// resumeEvery is how often it is tried to turn activity on where a window could not.
const resumeEvery = time.Second

// contextLimit is how long Ready waits for an answer.
const contextLimit = 100 * time.Millisecond

// Ready says whether the program has a context. While the driver makes the first one it may not
// answer for seconds: then there is none yet.
func (e *Engines) Ready() bool {
	e.mu.Lock()
	answer := e.asked
	if answer == nil {
		answer = make(chan bool, 1)
		e.asked = answer
		go func() { answer <- e.from.HasContext() }()
	}
	e.mu.Unlock()
	late := time.NewTimer(contextLimit)
	defer late.Stop()
	select {
	case has := <-answer:
		e.mu.Lock()
		e.asked = nil
		e.mu.Unlock()
		return has
	case <-late.C:
		return false
	}
}

// pause turns activity off.
func (e *Engines) pause() error {
	e.activity.Lock()
	defer e.activity.Unlock()
	e.paused = true
	return e.from.Pause()
}

// unpause turns activity on again, unless an engine may still be armed: both at once can lock the
// driver up. Where launches do not become idle in time, a goroutine tries until they do.
func (e *Engines) unpause() {
	e.mu.Lock()
	stuck := e.stuck
	e.mu.Unlock()
	if stuck {
		return
	}
	e.activity.Lock()
	e.paused = false
	e.activity.Unlock()
	again, err := e.resume()
	if err != nil {
		e.log.Warn("gpuflight: activity was not resumed after a deep window", "error", err, "retry", again)
	}
	if again {
		e.late.Go(e.resumeLate)
	}
}

// resume tries once. Where somebody has paused meanwhile, activity stays off.
func (e *Engines) resume() (again bool, err error) {
	e.activity.Lock()
	defer e.activity.Unlock()
	if e.paused {
		return false, nil
	}
	err = e.from.Resume()
	var refused *cupti.Error
	return errors.As(err, &refused) && refused.Status.Reason == cupti.ReasonNotQuiesced, err
}

// resumeLate goes on trying. It ends with the recording at the latest.
func (e *Engines) resumeLate() {
	for {
		select {
		case <-time.After(resumeEvery):
		case <-e.stopped:
			return
		}
		switch again, err := e.resume(); {
		case again:
		case err != nil:
			e.log.Warn("gpuflight: activity was not resumed after a deep window", "error", err)
			return
		default:
			return
		}
	}
}

// Arm opens a window of the collector. Activity is off in a window of SASS metrics.
func (e *Engines) Arm(engine deep.Engine, window uint64) (deep.Session, error) {
	cfg := cupti.DeepConfig{OpenLimit: openLimit, CloseLimit: closeLimit}
	switch engine {
	case deep.PC:
		cfg.Engine, cfg.PeriodLog2, cfg.Serialize, cfg.LeaseDir = cupti.EnginePCSampling, e.settings.PeriodLog2, e.settings.Serialize, e.settings.LeaseDir
	case deep.SASS:
		// A kernel is patched when it is launched: to patch all that a large program has loaded
		// takes minutes.
		cfg.Engine, cfg.Metrics = cupti.EngineSASS, e.settings.Metrics
		cfg.CloseLimit = sassCloseLimit
		if err := e.pause(); err != nil {
			e.unpause()
			return nil, e.status(err)
		}
	default:
		return nil, deep.NewError(deep.StatusBadRequest, fmt.Sprintf("there is no engine %q", engine))
	}
	opened, err := e.from.OpenDeep(cfg)
	if err != nil {
		err = e.status(err)
		if engine == deep.SASS {
			e.unpause()
		}
		return nil, err
	}
	return &session{e: e, opened: opened, window: window}, nil
}

// session is an armed engine.
type session struct {
	e      *Engines
	opened Opened
	window uint64
}

// Drain takes what the engine has.
func (s *session) Drain() error {
	err := s.opened.Drain()
	if errors.Is(err, cupti.ErrFull) {
		return deep.ErrFull
	}
	return s.e.status(err)
}

// Disarm closes the collector's window and keeps what it yielded until the deep window is closed.
func (s *session) Disarm() (deep.Collected, error) {
	result, err := s.opened.Close()
	if err != nil {
		return deep.Collected{}, s.e.status(err)
	}
	switch p := result.Problem; {
	case p == nil:
	case p.Reason == cupti.ReasonStuck:
		return deep.Collected{}, s.e.status(&cupti.Error{Status: *p})
	case p.Reason == cupti.ReasonNotQuiesced:
		// An engine is disarmed only while the program rests, so it stays armed.
		return deep.Collected{}, s.e.status(&cupti.Error{Status: cupti.Status{
			Reason: cupti.ReasonStuck, Detail: "launches of the program came to no rest as the window closed, so the engine stays armed: start the process anew to have windows",
		}})
	default:
		s.e.log.Warn("gpuflight: a deep window did not end as it should", "window", s.window, "detail", result.Problem.Detail)
	}
	c := collected(result)
	s.e.keep(s.window, result)
	if result.Engine == cupti.EngineSASS {
		s.e.unpause()
	}
	return c, nil
}

// keep keeps a result for Closed.
func (e *Engines) keep(window uint64, r *cupti.DeepResult) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if window <= e.closed {
		e.log.Warn("gpuflight: figures of a deep window came after its end and are dropped", "window", window, "rows", len(r.Rows))
		return
	}
	if window != e.window {
		e.window, e.results = window, nil
	}
	e.results = append(e.results, r)
}

// Opened is told of a window before anything is armed.
func (e *Engines) Opened(w deep.Window) {
	e.sink.WindowOpened(w, e.settings.Serialize)
}

// Closed hands a window to the goroutine that makes telemetry of it. It does not wait.
func (e *Engines) Closed(w deep.Window) {
	e.sink.WindowClosed(w)
	e.mu.Lock()
	e.closed = w.ID
	var results []*cupti.DeepResult
	if e.window == w.ID {
		results, e.results = e.results, nil
	}
	e.mu.Unlock()
	e.worker.take(job{window: w, results: results})
}

// collected counts what a result has.
func collected(r *cupti.DeepResult) deep.Collected {
	t := &r.Totals
	c := deep.Collected{Rows: uint64(len(r.Rows))}
	seen := make([]bool, len(r.Functions))
	for i := range r.Rows {
		if f := r.Rows[i].Function; int(f) < len(seen) && !seen[f] {
			seen[f] = true
			c.Functions++
		}
	}
	if r.Engine == cupti.EnginePCSampling {
		c.Samples = t.Samples
		c.Lost = t.DroppedSamples + t.NonUserSamples + t.LostValue + t.Broken
	} else {
		c.Lost = t.DroppedRecords + t.LostRows + t.Broken
		c.Samples = c.Rows + c.Lost
	}
	return c
}

// statuses are what package deep calls the reasons of package cupti. What is not here has failed.
var statuses = map[cupti.Reason]deep.Status{
	cupti.ReasonNoDriver:      deep.StatusUnsupported,
	cupti.ReasonNoDevice:      deep.StatusUnsupported,
	cupti.ReasonNoLibrary:     deep.StatusUnsupported,
	cupti.ReasonVersion:       deep.StatusUnsupported,
	cupti.ReasonUnsupported:   deep.StatusUnsupported,
	cupti.ReasonNotSupported:  deep.StatusUnsupported,
	cupti.ReasonDisabled:      deep.StatusUnsupported,
	cupti.ReasonOtherProfiler: deep.StatusAnotherProfiler,
	cupti.ReasonBusy:          deep.StatusAnotherProfiler,
	cupti.ReasonTaken:         deep.StatusAnotherProfiler,
	cupti.ReasonPermission:    deep.StatusNoPermission,
	cupti.ReasonNoContext:     deep.StatusNoContext,
	cupti.ReasonCapture:       deep.StatusCapturing,
	cupti.ReasonNotQuiesced:   deep.StatusNotQuiesced,
	cupti.ReasonOnce:          deep.StatusSASSUsed,
	cupti.ReasonWindowOpen:    deep.StatusBusy,
	cupti.ReasonExit:          deep.StatusAtExit,
	cupti.ReasonForked:        deep.StatusAtExit,
	cupti.ReasonStuck:         deep.StatusBroken,
	cupti.ReasonUnresponsive:  deep.StatusBroken,
	cupti.ReasonBadRequest:    deep.StatusBadRequest,
}

// status makes of an error of the collector one that package deep understands.
func (e *Engines) status(err error) error {
	var refused *cupti.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cupti.ErrNotRunning), errors.Is(err, cupti.ErrForked):
		return deep.NewError(deep.StatusAtExit, "")
	case !errors.As(err, &refused):
		return err
	}
	if refused.Status.Reason == cupti.ReasonStuck {
		e.mu.Lock()
		e.stuck = true
		e.mu.Unlock()
	}
	if refused.Status.Reason == cupti.ReasonUnresponsive {
		e.unresponsive.Do(func() { e.log.Error("gpuflight: recording has ended", "why", refused.Status.Detail) })
	}
	return refusal(refused.Status)
}

// refusal is what a status of package cupti is to package deep.
func refusal(why cupti.Status) *deep.Error {
	status, known := statuses[why.Reason]
	if !known || why.Detail == "" {
		return deep.NewError(cmp.Or(status, deep.StatusFailed), why.Detail)
	}
	// Package cupti knows more than the status's own sentence, and says what to do as well.
	return &deep.Error{Outcome: deep.Outcome{Status: status, Text: why.Detail}}
}
