// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"fmt"
	"math"
	"time"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/deep/rule"
	"github.com/gpuflight/gpuflight/internal/recording/deepprofile"
	"github.com/gpuflight/gpuflight/semconv"
)

const (
	// maxWindowEvents bounds the events of windows between two rounds. maxResults and maxResultRows
	// bound the results of windows: about 20 MB. A single window may have more rows.
	maxWindowEvents = 128
	maxResults      = 32
	maxResultRows   = 40_000
	// maxLaunches bounds the kernel spans that are kept for a window that attributes samples to
	// launches.
	maxLaunches = 1 << 16
	// sendText is the size in bytes of listings in a request to the sink. maxText bounds the
	// listings that wait for the next round. A single listing may be larger.
	sendText = 1 << 20
	maxText  = 8 << 20
	// maxRefs bounds the windows whose span is kept for listings that arrive later.
	maxRefs = 1024
	// recentWindows is the number of windows in a summary.
	recentWindows = 20
)

// Rules open windows: a *deep.Controller. Only the recorder's goroutine calls them.
type Rules interface {
	// Figures returns the inputs of the rules, or nil if no rule needs any.
	Figures() *rule.Figures
	Tick(now time.Time)
}

// Window is a deep window with its result.
type Window struct {
	deep.Window
	// Samples and Counters become log records. Their Ref is filled in: the kernel's span if the
	// launch is known, otherwise the window's.
	Samples  []gpuevent.PCSample
	Counters []gpuevent.SASSMetric
	// Profile has the same values for Config.Profiles. It may be nil.
	Profile *deepprofile.Window
	// Period is the number of cycles of a multiprocessor between two samples, or 0 without samples.
	Period uint64
	// Dropped and NonUser count samples without a record. HardwareFull counts overflows of the
	// hardware buffer. Other counts summed rows, Unresolved counts rows without a line.
	Dropped, NonUser, HardwareFull, Other, Unresolved uint64
	// WithoutListing counts rows of functions without a listing, neither sent nor pending. LostRows
	// counts rows dropped at the bound of the window.
	WithoutListing, LostRows uint64
	// SkippedContexts counts contexts that were not profiled, LostContexts those that ended too
	// early.
	SkippedContexts, LostContexts uint64
	// Held counts calls of the program that the window blocked, at most for LongestHold. Released
	// counts those that continued before the window was ready.
	Held, Released uint64
	LongestHold    time.Duration
	// Missing are stall reasons or metrics that the device does not support.
	Missing []string
}

// WindowTexts are listings of functions. They arrive later than the result of the window that first
// had the functions, and also serve later windows.
type WindowTexts struct {
	// Window is the id of that window, End its end.
	Window   uint64
	End      time.Time
	Listings []WindowListing
}

func (t *WindowTexts) bytes() (n int) {
	for i := range t.Listings {
		n += len(t.Listings[i].Text)
	}
	return n
}

// WindowListing is the listing of one function. The record's Ref and time are filled in.
type WindowListing struct {
	Record *gpuevent.Record
	Text   string
}

// WindowCounts is the part of a summary about deep windows.
type WindowCounts struct {
	// Opened counts windows in which an engine ran, Attempts the others. ByStatus counts both.
	Opened   uint64            `json:"opened"`
	Attempts uint64            `json:"attempts"`
	ByStatus map[string]uint64 `json:"by_status,omitempty"`
	// PausedSeconds is how long activity records were off. Kernels launched in this time are not
	// recorded.
	PausedSeconds float64 `json:"paused_seconds"`
	// Unsent counts windows whose result was dropped at a bound or came too late.
	Unsent uint64 `json:"unsent,omitempty"`
	// Texts counts functions whose listing was sent. TextsMissing counts those whose listing is
	// missing: nvdisasm failed or did not end before the session.
	Texts        uint64 `json:"texts,omitempty"`
	TextsMissing uint64 `json:"texts_missing,omitempty"`
	// Recent are the last 20 windows, oldest first.
	Recent []WindowRow `json:"recent,omitempty"`
}

type WindowRow struct {
	ID     uint64 `json:"id"`
	Engine string `json:"engine"`
	Cause  string `json:"cause"`
	Why    string `json:"why,omitempty"`
	Status string `json:"status"`
	Text   string `json:"text"`
	Closed string `json:"closed,omitempty"`
	// StartNs is Unix nanoseconds.
	StartNs int64   `json:"start_unix_nano"`
	Seconds float64 `json:"seconds"`
	deep.Collected
}

// launch is a kernel's span and the scope of its launch.
type launch struct {
	ref gpuevent.Ref
	in  *scope
}

// windowEvent is a pending event for the consumer.
type windowEvent struct {
	opened, closed *deep.Window
	launches       bool
}

// windows is the state of deep windows. It belongs to the consumer.
type windows struct {
	// awaited are closed windows without a result so far.
	awaited []deep.Window
	// launches are the kernel spans by correlation id. It is nil unless a window attributes samples
	// to launches.
	launches map[uint32]launch
	// attributing counts such windows without a result so far.
	attributing int
	// refs are the spans of the last windows, by id.
	refs   map[uint64]gpuevent.Ref
	counts WindowCounts
	paused time.Duration
}

// WindowOpened reports that a window is about to open, before anything is armed or paused. launches
// means that its result names the launch of each row. It does not block.
func (r *Recorder) WindowOpened(w deep.Window, launches bool) {
	r.engine.distorted.begin(&w)
	r.addWindowEvent(windowEvent{opened: &w, launches: launches})
}

// WindowClosed reports that a window has closed and normal recording was restored. AddWindow may
// pass its result later. It does not block.
func (r *Recorder) WindowClosed(w deep.Window) {
	r.engine.distorted.end(&w)
	r.addWindowEvent(windowEvent{closed: &w})
}

// Distorted reports whether deep windows covered a hundredth or more of the time from start until
// now, so that they slowed the work. It does not block. It calls start only if there were windows.
func (r *Recorder) Distorted(start func() time.Time) bool {
	return len(r.engine.distorted.list()) > 0 && r.engine.distorted.distorts(start().UnixNano(), time.Now().UnixNano())
}

func (r *Recorder) addWindowEvent(n windowEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over.Load() || len(r.windowEvents) >= maxWindowEvents {
		// The consumer is blocked and many windows were opened. The summary counts the dropped
		// event.
		r.windowsLost++
		return
	}
	r.windowEvents = append(r.windowEvents, n)
}

// AddWindow passes the result of a closed window. It does not block. It returns false if the buffer
// is full; the next flush empties it. A window without a result gets a span at the end that reports
// the loss. After the end of recording, AddWindow drops the result and returns true.
func (r *Recorder) AddWindow(w *Window) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over.Load() {
		return true
	}
	rows := len(w.Samples) + len(w.Counters)
	if len(r.results) >= maxResults || len(r.results) > 0 && r.resultRows+rows > maxResultRows {
		return false
	}
	r.results = append(r.results, w)
	r.resultRows += rows
	return true
}

// AddListings passes listings of functions. It does not block. It returns false if the buffer is
// full; the next flush empties it. After the end of recording, it drops the listings and returns
// true.
func (r *Recorder) AddListings(t WindowTexts) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over.Load() {
		return true
	}
	size := t.bytes()
	if len(r.texts) > 0 && r.textBytes+size > maxText {
		return false
	}
	r.texts = append(r.texts, t)
	r.textBytes += size
	return true
}

// CountMissingListings counts functions whose listing will not arrive. It does not block.
func (r *Recorder) CountMissingListings(functions uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.textsMissing += functions
}

// learnWindows applies the pending events. It runs with the scopes: before the records of their
// time.
func (e *engine) learnWindows(events []windowEvent) {
	for i := range events {
		n := &events[i]
		switch {
		case n.opened != nil:
			e.windows.begin(n.launches)
		case n.closed != nil:
			e.windows.end(n.closed)
		}
	}
}

func (w *windows) begin(launches bool) {
	if launches {
		w.attributing++
		if w.launches == nil {
			w.launches = map[uint32]launch{}
		}
	}
}

func (w *windows) end(d *deep.Window) {
	armed := false
	for i := range d.Parts {
		p := &d.Parts[i]
		if p.Paused {
			w.paused += p.End.Sub(p.Start)
		}
		armed = armed || p.Armed
	}
	if armed {
		w.counts.Opened++
	} else {
		w.counts.Attempts++
	}
	if w.counts.ByStatus == nil {
		w.counts.ByStatus = map[string]uint64{}
	}
	w.counts.ByStatus[string(d.Outcome.Status)]++
	if len(w.counts.Recent) == recentWindows {
		w.counts.Recent = append(w.counts.Recent[:0], w.counts.Recent[1:]...)
	}
	w.counts.Recent = append(w.counts.Recent, WindowRow{
		ID: d.ID, Engine: string(d.Engine), Cause: string(d.Cause), Why: d.Why, Status: string(d.Outcome.Status), Text: d.Outcome.Text,
		Closed: string(d.Closed), StartNs: d.Start.UnixNano(), Seconds: d.End.Sub(d.Start).Seconds(), Collected: d.Collected,
	})
	if len(w.awaited) < maxWindowEvents {
		w.awaited = append(w.awaited, *d)
	} else {
		w.counts.Unsent++
	}
}

// launched stores a kernel's span for windows that attribute samples to launches.
func (w *windows) launched(h *cupti.Head, ref gpuevent.Ref, in *scope) {
	if w.launches != nil && h.Correlation != 0 && len(w.launches) < maxLaunches {
		w.launches[h.Correlation] = launch{ref, in}
	}
}

// sendResults sends the results of windows.
func (e *engine) sendResults() {
	for _, w := range e.results {
		for i := range e.windows.awaited {
			if e.windows.awaited[i].ID == w.ID {
				e.windows.awaited = append(e.windows.awaited[:i], e.windows.awaited[i+1:]...)
				break
			}
		}
		e.window(w)
	}
	clear(e.results)
	e.results = e.results[:0]
	for i := range e.texts {
		e.sendTexts(&e.texts[i])
	}
	clear(e.texts)
	e.texts = e.texts[:0]
}

// sendTexts sends listings in the span of the window that first had the functions.
func (e *engine) sendTexts(t *WindowTexts) {
	ref, known := e.windows.refs[t.Window]
	if !known {
		ref = e.windowRef(t.Window)
	}
	size := 0
	for i := range t.Listings {
		l := &t.Listings[i]
		l.Record.Ref, l.Record.UID, l.Record.TimeNs = ref, e.uid(), t.End.UnixNano()
		e.batch.Text(e.session, l.Record, l.Text)
		if size += len(l.Text); size >= sendText {
			e.send()
			size = 0
		}
	}
	e.windows.counts.Texts += uint64(len(t.Listings))
}

// windowRef returns the span of a window.
func (e *engine) windowRef(id uint64) gpuevent.Ref {
	around := e.place(e.scopes.session)
	return gpuevent.Ref{Trace: around.Trace, Span: e.key.Span(gpuevent.KindDeepWindow, id, 0), Parent: around.Span}
}

// sendPendingWindows sends the windows without a result, at the end.
func (e *engine) sendPendingWindows() {
	for i := range e.windows.awaited {
		d := e.windows.awaited[i]
		if d.Collected.Rows > 0 {
			e.windows.counts.Unsent++
			d.Outcome.Text += "; its figures were not ready in time and are lost"
			d.Collected.Lost = d.Collected.Samples
			d.Collected.Rows = 0
		}
		e.window(&Window{Window: d})
	}
	e.windows.awaited = nil
}

// window makes the telemetry of a window: a span, a log with the same content, and records of its
// result.
func (e *engine) window(w *Window) {
	session := e.scopes.session
	e.room(session)
	ref := e.windowRef(w.ID)
	e.windows.remember(w.ID, ref)
	start, end := w.Start.UnixNano(), w.End.UnixNano()
	if t := session.trace; t != nil && session.sampled {
		t.spans++
		t.touch(start, end)
	}
	attributes := windowAttrs(w)
	failure := ""
	severity := gpuevent.SeverityInfo
	if w.Outcome.Status != deep.StatusCollected {
		failure, severity = w.Outcome.Text, gpuevent.SeverityWarn
	}
	if session.sampled {
		e.batch.DeepWindow(e.session, &gpuevent.DeepWindow{Ref: ref, StartNs: start, EndNs: end, Failure: failure, Attrs: attributes})
	}
	e.batch.Record(e.session, &gpuevent.Record{
		Ref: ref, UID: e.uid(), TimeNs: end, Event: semconv.EventCUDADeepWindow, Severity: severity,
		Body: windowSentence(&w.Window),
		Attrs: append(attributes, gpuevent.I(semconv.CUDADeepWindowStartTimeUnixNano, start),
			gpuevent.I(semconv.CUDADeepWindowEndTimeUnixNano, end)),
	})
	for i := range w.Samples {
		s := &w.Samples[i]
		s.Ref, s.UID = e.windows.refOf(s.Correlation, ref), e.uid()
		e.batch.PCSample(e.session, s)
		e.sendIfFull()
	}
	for i := range w.Counters {
		c := &w.Counters[i]
		c.Ref, c.UID = e.windows.refOf(c.Correlation, ref), e.uid()
		e.batch.SASSMetric(e.session, c)
		e.sendIfFull()
	}
	e.profiles(w, ref)
	if e.windows.launches != nil {
		if e.windows.attributing--; e.windows.attributing <= 0 {
			e.windows.launches, e.windows.attributing = nil, 0
		}
	}
}

// remember keeps the span of a window for listings that arrive later.
func (w *windows) remember(id uint64, ref gpuevent.Ref) {
	if w.refs == nil {
		w.refs = map[uint64]gpuevent.Ref{}
	}
	w.refs[id] = ref
	if len(w.refs) > maxRefs {
		oldest := id
		for other := range w.refs {
			oldest = min(oldest, other)
		}
		delete(w.refs, oldest)
	}
}

// refOf returns the span of the launch of a row, or that of the window if the launch is unknown.
func (w *windows) refOf(correlation gpuevent.Int, window gpuevent.Ref) gpuevent.Ref {
	if correlation.OK && w.launches != nil {
		if l, ok := w.launches[uint32(correlation.V)]; ok {
			return l.ref
		}
	}
	return window
}

func windowAttrs(w *Window) []gpuevent.Attr {
	var engines []string
	paused := time.Duration(0)
	for i := range w.Parts {
		p := &w.Parts[i]
		if p.Armed {
			engines = append(engines, engineName(p.Engine))
		}
		if p.Paused {
			paused += p.End.Sub(p.Start)
		}
	}
	var some []gpuevent.Attr // that not all windows have
	if f := w.Firing; f != nil {
		some = []gpuevent.Attr{
			gpuevent.Str(semconv.CUDADeepWindowRuleExpression, f.Rule.Text),
			gpuevent.Str(semconv.CUDADeepWindowRuleMetric, f.Rule.Metric()),
			gpuevent.Str(semconv.CUDADeepWindowRuleOperator, string(f.Rule.Op)),
			gpuevent.F(semconv.CUDADeepWindowRuleThreshold, f.Threshold),
			gpuevent.F(semconv.CUDADeepWindowRuleObserved, f.Value),
			gpuevent.F(semconv.CUDADeepWindowRuleSustained, f.Rule.For.Seconds()),
		}
	}
	n := func(key string, v uint64) gpuevent.Attr { return gpuevent.I(key, int64(min(v, math.MaxInt64))) }
	if w.Period > 0 {
		some = append(some, n(semconv.CUDADeepWindowSamplingPeriod, w.Period))
	}
	return append(some,
		n(semconv.CUDADeepWindowID, w.ID),
		gpuevent.Strs(semconv.CUDADeepWindowEngines, engines),
		gpuevent.Str(semconv.CUDADeepWindowCause, string(w.Cause)),
		gpuevent.Str(semconv.CUDADeepWindowWhy, w.Why),
		gpuevent.Str(semconv.CUDADeepWindowStatus, string(w.Outcome.Status)),
		gpuevent.Str(semconv.CUDADeepWindowMessage, w.Outcome.Text),
		gpuevent.Str(semconv.CUDADeepWindowCloseReason, string(w.Closed)),
		gpuevent.F(semconv.CUDADeepWindowRequestedDuration, w.For.Seconds()),
		gpuevent.F(semconv.CUDADeepWindowPausedDuration, paused.Seconds()),
		n(semconv.CUDADeepWindowRows, uint64(len(w.Samples)+len(w.Counters))),
		n(semconv.CUDADeepWindowRowsOther, w.Other),
		n(semconv.CUDADeepWindowRowsUnresolved, w.Unresolved),
		n(semconv.CUDADeepWindowRowsWithoutSASS, w.WithoutListing),
		n(semconv.CUDADeepWindowRowsLost, w.LostRows),
		n(semconv.CUDADeepWindowContextsSkipped, w.SkippedContexts),
		n(semconv.CUDADeepWindowContextsLost, w.LostContexts),
		n(semconv.CUDADeepWindowCallsHeld, w.Held),
		gpuevent.F(semconv.CUDADeepWindowLongestHold, w.LongestHold.Seconds()),
		n(semconv.CUDADeepWindowCallsReleased, w.Released),
		n(semconv.CUDADeepWindowFunctions, w.Collected.Functions),
		n(semconv.CUDADeepWindowSamples, w.Collected.Samples),
		n(semconv.CUDADeepWindowSamplesDropped, w.Dropped),
		n(semconv.CUDADeepWindowSamplesNonUser, w.NonUser),
		n(semconv.CUDADeepWindowHardwareFull, w.HardwareFull),
		n(semconv.CUDADeepWindowLost, w.Collected.Lost),
		gpuevent.Strs(semconv.CUDADeepWindowMissing, w.Missing),
	)
}

// engineName returns the name of an engine in telemetry. GPU Flight logs use the same names.
func engineName(e deep.Engine) string {
	if e == deep.SASS {
		return cupti.EngineSASS.String()
	}
	return cupti.EnginePCSampling.String()
}

// windowSentence describes the result of a window in one sentence.
func windowSentence(w *deep.Window) string {
	if w.Outcome.Status != deep.StatusCollected {
		return fmt.Sprintf("Deep window %d (%s, by %s): %s.", w.ID, w.Engine, w.Cause, w.Outcome.Text)
	}
	functions := "functions"
	if w.Collected.Functions == 1 {
		functions = "function"
	}
	s := fmt.Sprintf("Deep window %d (%s, by %s) of %v: %d %s in %d %s", w.ID, w.Engine, w.Cause,
		w.End.Sub(w.Start).Round(time.Millisecond), w.Collected.Samples, w.Engine.Takes(), w.Collected.Functions, functions)
	if w.Collected.Lost > 0 {
		s += fmt.Sprintf(", %d lost", w.Collected.Lost)
	}
	return s + "."
}

// summary returns the counts, or nil if there was no window.
func (w *windows) summary() *WindowCounts {
	if w.counts.Opened+w.counts.Attempts+w.counts.Unsent == 0 {
		return nil
	}
	c := w.counts
	c.PausedSeconds = w.paused.Seconds()
	return &c
}
