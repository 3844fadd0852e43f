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
	// maxNotes bounds what callers leave of windows for the next round, maxYields and maxYieldRows what
	// windows yielded: some 20 MB. One window may have more rows if there is no other.
	maxNotes     = 128
	maxYields    = 32
	maxYieldRows = 40_000
	// maxLaunches bounds the spans of kernels that are remembered for a window that tells launches apart.
	maxLaunches = 1 << 16
	// sendText is how many bytes of listings go to the sink at a time, maxText how many wait for the next round. There
	// may be more at once if no others wait.
	sendText = 1 << 20
	maxText  = 8 << 20
	// maxRefs bounds the windows whose span is remembered for texts that come later.
	maxRefs = 1024
	// recentWindows is how many windows a summary names.
	recentWindows = 20
)

// Rules are what windows are opened by: a *deep.Controller. The recorder's goroutine alone calls them.
type Rules interface {
	// Figures is nil if no rule looks at any.
	Figures() *rule.Figures
	Tick(now time.Time)
}

// Window is a deep window with what it yielded.
type Window struct {
	deep.Window
	// Samples and Counters become log records. Their Ref is filled in: the kernel's span where the launch is
	// known, else the window's.
	Samples  []gpuevent.PCSample
	Counters []gpuevent.SASSMetric
	// Profile has the same figures for Config.Profiles, nil if there is none.
	Profile *deepprofile.Window
	// Period is the cycles of a multiprocessor between two samples, 0 where none were taken.
	Period uint64
	// Dropped and NonUser are samples without a record, HardwareFull says how often the hardware's buffer was
	// full. Other rows are summed, Unresolved have no line.
	Dropped, NonUser, HardwareFull, Other, Unresolved uint64
	// Textless are rows of functions whose text neither has been sent nor is on its way, LostRows had no room in the
	// window itself.
	Textless, LostRows uint64
	// SkippedContexts were not looked at, LostContexts ended too soon.
	SkippedContexts, LostContexts uint64
	// Held are calls of the program that had to wait for the window, LongestHold at most; Released of them went on
	// before it was done.
	Held, Released uint64
	LongestHold    time.Duration
	// Missing are stall reasons or metrics that the device does not know.
	Missing []string
}

// WindowTexts are texts of functions, which come when they are ready: after the figures of the window that first had
// them, and for later windows too.
type WindowTexts struct {
	// Window is the id of that window, and End when it ended.
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

// WindowListing is the text of one function. The record's Ref and time are filled in.
type WindowListing struct {
	Record *gpuevent.Record
	Text   string
}

// WindowCounts are what a summary says of deep windows.
type WindowCounts struct {
	// Opened counts windows in which an engine ran, Attempts the others. ByStatus has both.
	Opened   uint64            `json:"opened"`
	Attempts uint64            `json:"attempts"`
	ByStatus map[string]uint64 `json:"by_status,omitempty"`
	// PausedSeconds is how long activity was off: what was launched then is nowhere else.
	PausedSeconds float64 `json:"paused_seconds"`
	// Unsent counts windows whose figures found no room, or came too late.
	Unsent uint64 `json:"unsent,omitempty"`
	// Texts are functions whose text was sent, TextsMissing those that were to have one and have none: nvdisasm
	// failed, or was not done when the session ended.
	Texts        uint64 `json:"texts,omitempty"`
	TextsMissing uint64 `json:"texts_missing,omitempty"`
	// Recent are the last 20, the latest at the end.
	Recent []WindowRow `json:"recent,omitempty"`
}

// WindowRow is one window.
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

// launch is a kernel's span, and the scope that it was launched in.
type launch struct {
	ref gpuevent.Ref
	in  *scope
}

// windowNote is what callers leave for the consumer.
type windowNote struct {
	opened, closed *deep.Window
	launches       bool
}

// windows are what is known of deep windows. It belongs to the consumer.
type windows struct {
	// awaited are closed windows of which the figures have not come.
	awaited []deep.Window
	// launches are the spans of kernels by correlation, nil but while a window tells launches apart.
	launches map[uint32]launch
	// telling counts such windows of which the figures have not come.
	telling int
	// refs are the spans of the last windows, by id.
	refs   map[uint64]gpuevent.Ref
	counts WindowCounts
	paused time.Duration
}

// WindowOpened says that a window is about to open, before anything is armed or paused. launches says
// that its figures name the launch they belong to. It does not wait.
func (r *Recorder) WindowOpened(w deep.Window, launches bool) {
	r.engine.stretches.begin(&w)
	r.note(windowNote{opened: &w, launches: launches})
}

// WindowClosed says that everything is restored. What the window yielded comes by AddWindow, or it never
// does. It does not wait.
func (r *Recorder) WindowClosed(w deep.Window) {
	r.engine.stretches.end(&w)
	r.note(windowNote{closed: &w})
}

// Distorted says whether deep windows were open for a hundredth or more of the time from start until now, so that
// what took this time would have taken less without. It does not wait, and asks for start only where there were windows.
func (r *Recorder) Distorted(start func() time.Time) bool {
	return len(r.engine.stretches.list()) > 0 && r.engine.stretches.distorts(start().UnixNano(), time.Now().UnixNano())
}

func (r *Recorder) note(n windowNote) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over.Load() || len(r.notes) >= maxNotes {
		// Somebody opens windows by the dozen while the consumer stands still; of what stays unnoted
		// there is AddWindow's count.
		r.windowsLost++
		return
	}
	r.notes = append(r.notes, n)
}

// AddWindow hands over a window that has closed, with what it yielded. It does not wait, and reports false if
// there is no room: there is again after the next flush. A window that is never added has a span at the end that
// says that its figures are lost. Once recording is over, windows are taken and dropped.
func (r *Recorder) AddWindow(w *Window) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over.Load() {
		return true
	}
	rows := len(w.Samples) + len(w.Counters)
	if len(r.yields) >= maxYields || len(r.yields) > 0 && r.yieldRows+rows > maxYieldRows {
		return false
	}
	r.yields = append(r.yields, w)
	r.yieldRows += rows
	return true
}

// AddListings hands over texts of functions. It does not wait, and reports false if there is no room: there is again
// after the next flush. Once recording is over, texts are taken and dropped.
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

// CountMissingListings counts functions whose text will not come although it was to. It does not wait.
func (r *Recorder) CountMissingListings(functions uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.textsMissing += functions
}

// learnWindows takes the notes. It comes with the scopes: before the records of their time.
func (e *engine) learnWindows(notes []windowNote) {
	for i := range notes {
		n := &notes[i]
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
		w.telling++
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
	if len(w.awaited) < maxNotes {
		w.awaited = append(w.awaited, *d)
	} else {
		w.counts.Unsent++
	}
}

// launched remembers a kernel's span for windows that tell launches apart.
func (w *windows) launched(h *cupti.Head, ref gpuevent.Ref, in *scope) {
	if w.launches != nil && h.Correlation != 0 && len(w.launches) < maxLaunches {
		w.launches[h.Correlation] = launch{ref, in}
	}
}

// sendYields sends what windows yielded.
func (e *engine) sendYields() {
	for _, w := range e.yields {
		for i := range e.windows.awaited {
			if e.windows.awaited[i].ID == w.ID {
				e.windows.awaited = append(e.windows.awaited[:i], e.windows.awaited[i+1:]...)
				break
			}
		}
		e.window(w)
	}
	clear(e.yields)
	e.yields = e.yields[:0]
	for i := range e.texts {
		e.sendTexts(&e.texts[i])
	}
	clear(e.texts)
	e.texts = e.texts[:0]
}

// sendTexts sends texts under the span of the window that first had the functions.
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

// windowRef is the span of a window.
func (e *engine) windowRef(id uint64) gpuevent.Ref {
	around := e.place(e.scopes.session)
	return gpuevent.Ref{Trace: around.Trace, Span: e.key.Span(gpuevent.KindDeepWindow, id, 0), Parent: around.Span}
}

// unyielded sends the windows whose figures have not come, at the end.
func (e *engine) unyielded() {
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

// window makes telemetry of a window: its span and the same as a log, and records of its figures.
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
		if e.windows.telling--; e.windows.telling <= 0 {
			e.windows.launches, e.windows.telling = nil, 0
		}
	}
}

// remember keeps the span of a window for texts that come later.
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

// refOf returns the span of the launch that a figure belongs to, that of the window if it is not known.
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
		n(semconv.CUDADeepWindowRowsWithoutSASS, w.Textless),
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

// engineName is an engine as telemetry spells it, the same as in recordings of others.
func engineName(e deep.Engine) string {
	if e == deep.SASS {
		return cupti.EngineSASS.String()
	}
	return cupti.EnginePCSampling.String()
}

// windowSentence says in one sentence what came of a window.
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

// summary returns the counts, nil if there was no window.
func (w *windows) summary() *WindowCounts {
	if w.counts.Opened+w.counts.Attempts+w.counts.Unsent == 0 {
		return nil
	}
	c := w.counts
	c.PausedSeconds = w.paused.Seconds()
	return &c
}
