// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
)

const (
	// maxWaiting is how many windows may wait for the goroutine, which needs a fraction of a second
	// for one, and maxWaitingRows how many rows they may have: some 25 MB. One window may have more
	// if there is no other.
	maxWaiting     = 1024
	maxWaitingRows = 400_000
	// maxDumped bounds the images that are kept for tests.
	maxDumped = 4096
	// offer is how often a window is offered to a recorder that has no room.
	offer = 50 * time.Millisecond
	// grace is what stop waits past its context.
	grace = time.Second
)

// job is a window that has closed.
type job struct {
	window  deep.Window
	results []*cupti.DeepResult
}

func (j *job) rows() (n int) {
	for _, r := range j.results {
		n += len(r.Rows)
	}
	return n
}

// worker makes telemetry of windows, sequentially: their figures on a goroutine of its own,
// which has the texts that belong to them printed on another.
type worker struct {
	settings Settings
	from     Collector
	sink     Sink
	log      *slog.Logger
	texts    *texts

	mu      sync.Mutex
	closed  bool
	started bool
	rows    int // of windows that wait or are being read
	jobs    chan job
	done    chan struct{}
	// hurry is closed when there shall be no more disassembly, and no image be read. Abandon is
	// when nobody waits any more.
	hurry, abandon chan struct{}

	// What follows belongs to the goroutine.
	places *places
	dumped map[uint64]struct{}
}

func newWorker(s Settings, from Collector, sink Sink, log *slog.Logger) *worker {
	w := &worker{
		settings: s, from: from, sink: sink, log: log,
		jobs: make(chan job, maxWaiting), done: make(chan struct{}), hurry: make(chan struct{}), abandon: make(chan struct{}),
		places: newPlaces(from.CubinImage), dumped: map[uint64]struct{}{},
	}
	w.texts = newTexts(from, sink, log, w.hurry, w.abandon)
	return w
}

func (w *worker) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started || w.closed {
		return
	}
	w.started = true
	go w.texts.run()
	go w.run()
}

// take hands over a window. Where there is no room its figures are lost, and it is told as such.
func (w *worker) take(j job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rows := j.rows()
	if w.started && !w.closed && (w.rows == 0 || w.rows+rows <= maxWaitingRows) {
		select {
		case w.jobs <- j:
			w.rows += rows
			return
		default:
		}
	}
	bare := windowWithoutResult(&j, "; its figures found no room and are lost")
	if !w.sink.AddWindow(bare) {
		w.log.Warn("gpuflight: a deep window cannot be told of", "window", j.window.ID)
	}
}

// windowWithoutResult is a window without its figures, which are counted as lost.
func windowWithoutResult(j *job, why string) *recorder.Window {
	out := &recorder.Window{Window: j.window}
	if out.Collected.Rows > 0 {
		out.Outcome.Text += why
		out.Collected.Lost = out.Collected.Samples
		out.Collected.Rows = 0
	}
	return out
}

// stop waits for what is waiting: half of the time also for texts, which are dropped then. What has
// been collected is sent in any case.
func (w *worker) stop(ctx context.Context) error {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.jobs)
		if !w.started {
			close(w.done)
			close(w.texts.done)
		}
	}
	w.mu.Unlock()
	half := make(<-chan time.Time)
	if end, ok := ctx.Deadline(); ok {
		t := time.NewTimer(time.Until(end) / 2)
		defer t.Stop()
		half = t.C
	}
	if w.ended(half, ctx.Done()) {
		return nil
	}
	close(w.hurry)
	if w.ended(nil, ctx.Done()) {
		return nil
	}
	close(w.abandon)
	late := time.NewTimer(grace)
	defer late.Stop()
	if w.ended(late.C, nil) {
		return nil
	}
	return errors.New("what a deep window yielded was not read in time")
}

// ended waits for both goroutines, and reports whether they have ended before either limit.
func (w *worker) ended(limit <-chan time.Time, stop <-chan struct{}) bool {
	for _, done := range []chan struct{}{w.done, w.texts.done} {
		select {
		case <-done:
		case <-limit:
			return false
		case <-stop:
			return false
		}
	}
	return true
}

// run is the goroutine. Nothing that goes wrong in it may end the program around it.
func (w *worker) run() {
	defer close(w.done)
	defer w.texts.close()
	for j := range w.jobs {
		out, wanted, err := w.guarded(&j)
		if err != nil {
			w.log.Error("gpuflight: the figures of a deep window are lost", "window", j.window.ID, "error", err)
			out = windowWithoutResult(&j, "; its figures could not be read and are lost")
		}
		w.hand(out)
		w.texts.ask(j.window.ID, j.window.End, wanted)
		w.mu.Lock()
		w.rows -= j.rows()
		w.mu.Unlock()
	}
}

// guarded makes telemetry of a window and returns a panic as an error.
func (w *worker) guarded(j *job) (out *recorder.Window, wanted []listingKey, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("internal error: %v\n%s", p, debug.Stack())
		}
	}()
	out, wanted = w.window(j)
	return out, wanted, nil
}

// hand offers a window until it is taken, or nobody waits any more.
func (w *worker) hand(out *recorder.Window) {
	t := time.NewTicker(offer)
	defer t.Stop()
	for !w.sink.AddWindow(out) {
		select {
		case <-t.C:
		case <-w.abandon:
			w.log.Warn("gpuflight: a deep window cannot be told of", "window", out.ID)
			return
		}
	}
}

// window makes telemetry of one window, and returns the functions whose text shall follow.
func (w *worker) window(j *job) (*recorder.Window, []listingKey) {
	out := &recorder.Window{Window: j.window}
	if len(j.results) == 0 {
		return out, nil
	}
	t := newTable(w.settings.MaxRows, w.settings.Profiles)
	for _, r := range j.results {
		w.dump(j.window.ID, r)
		t.add(r)
		if r.PeriodLog2 > 0 {
			out.Period = 1 << r.PeriodLog2
		}
		out.Dropped += r.Totals.DroppedSamples
		out.NonUser += r.Totals.NonUserSamples
		out.HardwareFull += r.Totals.HardwareFull
		out.LostRows += r.Totals.LostRows
		out.SkippedContexts += r.Totals.SkippedContexts
		out.LostContexts += r.Totals.LostContexts
		out.Held += r.Totals.BlockedCalls
		out.Released += r.Totals.BarrierTimeouts
		out.LongestHold = max(out.LongestHold, r.Totals.LongestBlock)
		out.Missing = append(out.Missing, r.Missing...)
		for _, remark := range diagnostics(r) {
			out.Outcome.Text += "; " + remark
		}
	}
	t.choose()
	found, late := w.places.find(t.rows, w.hurry)
	if late > 0 {
		out.Outcome.Text += fmt.Sprintf("; there was no time for the lines of %d rows", late)
	}
	t.write(out, found)
	wanted := w.texts.want(t.functions())
	out.WithoutListing = w.countWithoutListing(t)
	return out, wanted
}

// countWithoutListing counts the rows of functions whose text neither has been sent nor is in
// flight.
func (w *worker) countWithoutListing(t *table) (n uint64) {
	for i := range t.rows {
		if !w.texts.coming(listingKey{t.rows[i].CRC, t.rows[i].function()}) {
			n++
		}
	}
	return n
}

// diagnostics say what of a window is not whole, beside the samples and figures that are counted as
// lost.
func diagnostics(r *cupti.DeepResult) (all []string) {
	t := &r.Totals
	if r.Problem != nil {
		all = append(all, "it did not end as it should: "+r.Problem.Detail)
	}
	// One that waited at the gate may have been past CUPTI's patching.
	if r.Engine == cupti.EngineSASS && t.Patched == 0 && t.Launched > t.BlockedCalls {
		all = append(all, fmt.Sprintf("%d launches were made in it and CUPTI patched no kernel: they have no instruction that is counted, or ask again", t.Launched))
	}
	if t.NotIdle > 0 {
		all = append(all, "work that was, or may have been, under way as counting began or ended is not counted whole")
	}
	if t.SkippedContexts > 0 {
		all = append(all, fmt.Sprintf("%d CUDA contexts were not looked at", t.SkippedContexts))
	}
	if t.LostContexts > 0 {
		all = append(all, fmt.Sprintf("%d CUDA contexts ended before all they had was read", t.LostContexts))
	}
	return all
}
