// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/recording/budget"
	"github.com/gpuflight/gpuflight/semconv"
)

// Detacher is a Source that can be detached from CUPTI while the session continues: a
// *cupti.Collector.
type Detacher interface {
	// Detach waits at most limit for work in flight. held is how long CUPTI was being finalized.
	Detach(limit time.Duration) (held time.Duration, err error)
	Attach() error
	Stats() cupti.Stats
}

const (
	// drainLimit bounds how long Detach waits for work in flight. The program continues meanwhile.
	drainLimit = time.Second
	// firstRetry and lastRetry bound the delay before Detach or Attach is retried.
	firstRetry, lastRetry = time.Second, time.Minute
	// spendInterval is the interval at which costs are added. It bounds the delay until the limiter
	// notices that a program becomes busy.
	spendInterval = 100 * time.Millisecond
)

// overheadLimiter keeps the cost of recording within a budget. It attaches the source to CUPTI and
// detaches it. It has a goroutine of its own, because the recorder's may be busy at the end of a
// slice.
type overheadLimiter struct {
	src  Detacher
	log  *slog.Logger
	ctl  *budget.Controller
	stop chan struct{}
	done chan struct{}
	// own is the processor time of the recorder's goroutine in nanoseconds; that goroutine updates it.
	own atomic.Int64

	mu       sync.Mutex
	status   budget.Status
	failures uint64
	failure  string // why the budget has no effect now

	// The following fields belong to the limiter's goroutine.
	last                time.Time // when costs were last added
	records             uint64
	cuptiSeen, ownSeen  time.Duration
	retryDelay          time.Duration
	nextDetach          time.Time
	neverDetaches, over bool
}

func newOverheadLimiter(src Source, share float64, log *slog.Logger) (*overheadLimiter, error) {
	d, ok := src.(Detacher)
	if !ok {
		return nil, errors.New("recorder: overhead budget: the source cannot be detached")
	}
	ctl, err := budget.NewController(share, 0)
	if err != nil {
		return nil, err
	}
	return &overheadLimiter{src: d, log: log, ctl: ctl, status: ctl.Status(), stop: make(chan struct{}), done: make(chan struct{})}, nil
}

// start starts the limiter, which may be nil. It returns a function that stops it.
func (o *overheadLimiter) start() (end func()) {
	if o == nil {
		return func() {}
	}
	o.last = time.Now()
	go o.run()
	return func() {
		close(o.stop)
		late := time.NewTimer(grace)
		defer late.Stop()
		select {
		case <-o.done:
		case <-late.C:
			o.log.Warn("CUPTI is unresponsive: the overhead of recording is no longer limited")
		}
	}
}

func (o *overheadLimiter) run() {
	defer close(o.done)
	err := guarded(func() error {
		for !o.over {
			o.slice()
		}
		return nil
	})
	if err != nil {
		o.fail(firstLine(err.Error()))
		o.log.Error("the overhead of recording is no longer limited", "error", err)
		_ = guarded(o.src.Attach)
	}
}

// slice records for one slice. If its cost requires a pause, it detaches CUPTI, waits, and attaches
// it again.
func (o *overheadLimiter) slice() {
	for begin := time.Now(); !o.over; {
		left := o.ctl.Slice() - time.Since(begin)
		if left <= 0 {
			break
		}
		o.wait(min(left, spendInterval), true)
	}
	pause := o.ctl.Pause()
	if o.over || pause == 0 || o.neverDetaches || time.Now().Before(o.nextDetach) || !o.detach() {
		return
	}
	o.wait(pause, false)
	for !o.over && !o.attach() {
		o.wait(o.retryDelay, false)
	}
}

// wait adds costs until d has passed or the recorder stops.
func (o *overheadLimiter) wait(d time.Duration, recording bool) {
	end := time.Now().Add(d)
	for !o.over {
		left := time.Until(end)
		if left <= 0 {
			return
		}
		timer := time.NewTimer(min(left, spendInterval))
		select {
		case <-timer.C:
		case <-o.stop:
			timer.Stop()
			o.over = true
		}
		o.spend(recording)
	}
}

// spend accounts for the time since the last call.
func (o *overheadLimiter) spend(recording bool) {
	now, stats, own := time.Now(), o.src.Stats(), time.Duration(o.own.Load())
	o.ctl.Spend(budget.Usage{
		Elapsed: now.Sub(o.last), Recording: recording,
		Records: stats.Records - o.records, CUPTI: stats.Overhead - o.cuptiSeen, Own: own - o.ownSeen,
	})
	o.last, o.records, o.cuptiSeen, o.ownSeen = now, stats.Records, stats.Overhead, own
	status := o.ctl.Status()
	o.mu.Lock()
	o.status = status
	o.mu.Unlock()
}

// detach detaches CUPTI and reports whether it succeeded.
func (o *overheadLimiter) detach() bool {
	begin := time.Now()
	held, err := o.src.Detach(drainLimit)
	took := time.Since(begin)
	o.spend(false)
	o.ctl.Detached(max(0, took-held), held)
	switch {
	case err == nil:
		o.succeed()
		return true
	case errors.Is(err, cupti.ErrNotRunning):
		o.over = true
	case errors.Is(err, cupti.ErrNotDetached):
		// A retry would fail again, and each attempt interrupts recording.
		o.neverDetaches = true
		o.fail("CUPTI cannot be detached, so everything is recorded")
		o.log.Warn("the overhead budget is exceeded: CUPTI cannot be detached, so everything is recorded", "error", err)
	default:
		o.fail(firstLine(err.Error()))
		o.nextDetach = time.Now().Add(o.retryDelay)
		o.log.Debug("cannot detach CUPTI: recording continues", "retry", o.retryDelay, "error", err)
		if !errors.Is(err, cupti.ErrInFlight) { // activity records may be disabled
			_ = o.attach()
		}
	}
	return false
}

// attach attaches CUPTI and reports whether it succeeded.
func (o *overheadLimiter) attach() bool {
	begin := time.Now()
	err := o.src.Attach()
	if err == nil {
		o.ctl.Attached(time.Since(begin))
		o.succeed()
	}
	o.spend(false)
	switch {
	case err == nil:
		return true
	case errors.Is(err, cupti.ErrNotRunning):
		o.over = true
		return false
	}
	if o.retryDelay == 0 {
		o.log.Warn("nothing is recorded: CUPTI cannot be attached again", "error", err)
	}
	o.fail("CUPTI cannot be attached: " + firstLine(err.Error()))
	return false
}

func (o *overheadLimiter) fail(why string) {
	o.retryDelay = min(max(firstRetry, 2*o.retryDelay), lastRetry)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failures++
	o.failure = why
}

func (o *overheadLimiter) succeed() {
	o.retryDelay = 0
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failure = ""
}

// OverheadSummary is the result of an overhead budget.
type OverheadSummary struct {
	// Budget is the allowed share of the program's time. Ratio is the highest measured share. Met
	// reports whether Ratio is within the budget.
	Budget float64 `json:"budget"`
	Ratio  float64 `json:"ratio"`
	Met    bool    `json:"met"`
	// RecordedSeconds is the total time of all Slices, in which work was recorded. RecordedRatio is
	// its share of the session.
	RecordedSeconds float64 `json:"recorded_seconds"`
	RecordedRatio   float64 `json:"recorded_ratio"`
	Slices          uint64  `json:"slices"`
	// Failures counts failed detaches and attaches. Failure describes the last attempt if it
	// failed.
	Failures uint64 `json:"failures,omitempty"`
	Failure  string `json:"failure,omitempty"`
}

// summary returns the result of the budget, or nil without one.
func (o *overheadLimiter) summary(share float64) *OverheadSummary {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	s := &o.status
	return &OverheadSummary{
		Budget: share, Ratio: s.Overhead, Met: s.Met,
		RecordedSeconds: s.Recorded.Seconds(), RecordedRatio: s.RecordedRatio(), Slices: s.Slices,
		Failures: o.failures, Failure: o.failure,
	}
}

// overhead writes the metrics of a budget.
func (w *metricWriter) overhead() {
	s := w.e.overhead.summary(w.e.cfg.OverheadBudget)
	if s == nil {
		return
	}
	w.gauge(semconv.MetricGpuflightOverheadBudget).SetDoubleValue(s.Budget)
	w.gauge(semconv.MetricGpuflightOverheadRatio).SetDoubleValue(s.Ratio)
	w.sum(semconv.MetricGpuflightRecordedTime).point(w.e.totals.start).SetDoubleValue(s.RecordedSeconds)
}
