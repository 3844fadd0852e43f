// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/semconv"
)

// summaryKernels is the number of kernels in a summary.
const summaryKernels = 20

// Unavailable sends the session's span and a capture log with the reason why nothing is recorded.
// It serves programs without a collector of records. It returns the summary.
func Unavailable(cfg Config, status cupti.Status, sink Sink) (Summary, error) {
	cfg, err := complete(cfg)
	if err != nil {
		return Summary{}, err
	}
	e := newEngine(cfg, unavailable{status: status}, sink, time.Now())
	return e.finish(""), nil
}

// unavailable is a source without records.
type unavailable struct {
	Source
	status cupti.Status
}

func (u unavailable) Status() cupti.Status       { return u.status }
func (u unavailable) Stats() cupti.Stats         { return cupti.Stats{} }
func (u unavailable) Devices() []gpuevent.Device { return nil }
func (u unavailable) NoStacks() string           { return "" }

// finish sends the last telemetry of the session.
func (r *Recorder) finish() error {
	e := r.engine
	e.now = time.Now()
	r.mu.Lock()
	e.scopes.lost += r.lost
	events := r.windowEvents
	e.results = append(e.results, r.results...)
	e.texts = append(e.texts, r.texts...)
	e.windows.counts.Unsent += r.windowsLost
	e.windows.counts.TextsMissing += r.textsMissing
	r.windowEvents, r.results, r.texts = nil, nil, nil
	r.mu.Unlock()
	e.learnWindows(events)
	if r.broken.Load() {
		// The batch may hold an incomplete event.
		e.batch = gpuevent.NewBatch(gpuevent.Signals{Traces: true, Logs: true})
	}
	r.summary = e.finish(r.failure)
	return nil
}

// finish sends open ranges, the last metrics, the session's span and the capture log.
func (e *engine) finish(failure string) Summary {
	e.learnDevices()
	end := max(e.lastSeen, e.now.UnixNano())
	var open []*scope
	for _, c := range e.scopes.byID {
		if !c.ended && c.kind == gpuevent.KindNVTX {
			open = append(open, c)
		}
	}
	slices.SortFunc(open, func(a, b *scope) int { return cmp.Compare(a.id, b.id) })
	for _, c := range open {
		e.scopes.finish(c, true)
	}
	e.sendResults()
	e.sendPendingWindows()
	e.closeSessionPart()
	if s := e.scopes.session; s.sampled {
		e.spans.Scopes++
		e.batch.SessionSpan(e.session, &gpuevent.SessionSpan{Ref: s.first, StartNs: s.start, EndNs: end})
	}
	summary := e.summary(failure, end)
	e.captureLog(&summary)
	e.sendMetrics()
	e.send()
	return summary
}

// summary returns the result of the session.
func (e *engine) summary(failure string, end int64) Summary {
	stats, status := e.src.Stats(), e.src.Status()
	s := Summary{
		PID: e.cfg.PID, Command: e.cfg.Command, Service: e.cfg.ServiceName, Instance: e.cfg.InstanceID,
		Trace: traceText(e.scopes.session.first), StartNs: e.totals.start, EndNs: end,
		Reason: status.Reason, Detail: status.Detail, Failure: failure,
		Library: status.Library, Version: status.Version,
		KernelCount: e.totals.kernels,
		Spans:       e.spans,
		Records: RecordCounts{
			Collected: stats.Records, Dropped: stats.Dropped, Unknown: stats.Unknown,
			Unread:     e.unread,
			Unreturned: stats.Unreturned,
			ScopesLost: stats.ScopesLost + e.scopes.lost, ScopesUnknown: e.unknown, StacksLost: stats.StacksLost,
		},
		OverheadSeconds: stats.Overhead.Seconds(), OwnSeconds: e.ownTime().Seconds(),
	}
	s.Spans.ScopesLeftOut = e.scopes.leftOut
	s.Windows = e.windows.summary()
	s.StacksSeconds, s.NoStacks = stats.StacksTime.Seconds(), e.src.NoStacks()
	s.Overhead = e.overhead.summary(e.cfg.OverheadBudget)
	for i, n := range stats.Rejected {
		if n > 0 {
			if s.Records.RejectedBy == nil {
				s.Records.RejectedBy = map[string]uint64{}
			}
			s.Records.RejectedBy[cupti.RejectNames[i]] = n
			s.Records.Rejected += n
		}
	}
	for i := range e.session.Devices {
		d := &e.session.Devices[i]
		s.Devices = append(s.Devices, strings.TrimSpace(d.Name+" "+d.UUID))
	}
	e.totals.summarize(&s)
	return s
}

// summarize fills in the tables of a summary.
func (t *totals) summarize(s *Summary) {
	var rows []KernelRow
	var other KernelRow
	for i := range t.names.all {
		if n := &t.names.all[i]; n.count > 0 {
			row := KernelRow{Name: n.name.Full, Count: n.count, Seconds: float64(n.ns) / 1e9, MaxSeconds: float64(n.maxNs) / 1e9}
			if i == otherIndex {
				other = row
			} else {
				rows = append(rows, row)
			}
		}
	}
	slices.SortStableFunc(rows, func(a, b KernelRow) int { return cmp.Compare(b.Seconds, a.Seconds) })
	if len(rows) > summaryKernels {
		for _, r := range rows[summaryKernels:] {
			other.Count += r.Count
			other.Seconds += r.Seconds
			other.MaxSeconds = max(other.MaxSeconds, r.MaxSeconds)
		}
		rows = rows[:summaryKernels]
	}
	s.Kernels = rows
	if other.Count > 0 {
		other.Name = otherName
		s.KernelsOther = &other
	}
	for kind, name := range t.kinds {
		row := CopyRow{Kind: name}
		for _, c := range t.copies {
			if c.kind == kind {
				row.Count += c.bytes.Count()
				row.Bytes += c.bytes.Sum()
				row.Seconds += float64(c.ns) / 1e9
			}
		}
		s.Copies = append(s.Copies, row)
	}
	slices.SortStableFunc(s.Copies, func(a, b CopyRow) int { return cmp.Compare(b.Bytes, a.Bytes) })
	for i := range t.sets {
		s.Sets.Count += t.sets[i]
		s.Sets.Bytes += t.setBytes[i]
		s.Sets.Seconds += float64(t.setNs[i]) / 1e9
	}
	for _, w := range t.workList {
		s.Graphs += w.count[opGraph]
	}
}

// Values of cuda.capture.status.
const (
	statusCollected = "collected"
	statusPartial   = "partial"
	statusSkipped   = "skipped"
)

// captureLog adds the log that ends a session.
func (e *engine) captureLog(s *Summary) {
	status := e.src.Status()
	have, missing := e.cfg.Asked&^status.Missing, e.cfg.Asked&status.Missing
	r := gpuevent.Record{
		Ref: e.scopes.session.first, TimeNs: s.EndNs, Event: semconv.EventCUDACapture, Body: s.sentence(),
	}
	outcome := statusCollected
	if s.lossy() || len(captureKinds(missing)) > 0 {
		outcome, r.Severity = statusPartial, gpuevent.SeverityWarn
	}
	if s.Windows != nil && s.Windows.PausedSeconds > 0 && outcome == statusCollected {
		outcome = statusPartial // as requested
	}
	if s.Reason != cupti.ReasonNone {
		outcome, r.Severity = statusSkipped, gpuevent.SeverityWarn
		have, missing = 0, e.cfg.Asked
	}
	message := s.Detail
	if s.Failure != "" {
		message, r.Severity = s.Failure, gpuevent.SeverityError
	}
	var rejected []string
	for i, name := range cupti.RejectNames {
		if n := s.Records.RejectedBy[name]; n > 0 {
			rejected = append(rejected, cupti.RejectNames[i]+"="+strconv.FormatUint(n, 10))
		}
	}
	count := func(key string, n uint64) gpuevent.Attr { return gpuevent.I(key, int64(n)) }
	r.Attrs = []gpuevent.Attr{
		gpuevent.Str(semconv.CUDACaptureStatus, outcome),
		gpuevent.Str(semconv.CUDACaptureReason, string(s.Reason)),
		gpuevent.Str(semconv.CUDACaptureMessage, message),
		gpuevent.Strs(semconv.CUDACaptureKindsCollected, captureKinds(have)),
		gpuevent.Strs(semconv.CUDACaptureKindsUnavailable, captureKinds(missing)),
		count(semconv.CUDACaptureRecordsCollected, s.Records.Collected),
		count(semconv.CUDACaptureRecordsDropped, s.Records.Dropped+s.Records.Unread),
		count(semconv.CUDACaptureRecordsRejected, s.Records.Rejected),
		gpuevent.Strs(semconv.CUDACaptureRecordsRejectedByReason, rejected),
		count(semconv.CUDACaptureKernels, s.KernelCount),
		count(semconv.CUDACaptureSpansEmitted, s.Spans.Emitted),
		count(semconv.CUDACaptureSpansLeftOut, s.Spans.LeftOut),
		count(semconv.CUDACaptureSpansUnsampled, s.Spans.Unsampled),
		gpuevent.F(semconv.CUDACaptureOverheadTime, s.OverheadSeconds),
		gpuevent.Str(semconv.CUDACaptureLibraryPath, s.Library),
	}
	if w := s.Windows; w != nil {
		r.Attrs = append(r.Attrs, count(semconv.CUDACaptureDeepWindows, w.Opened), count(semconv.CUDACaptureFunctionsWithoutSASS, w.TextsMissing), gpuevent.F(semconv.CUDACapturePausedTime, w.PausedSeconds))
	}
	if o := s.Overhead; o != nil {
		r.Attrs = append(r.Attrs, gpuevent.F(semconv.CUDACaptureOverheadBudget, o.Budget), gpuevent.F(semconv.CUDACaptureOverheadRatio, o.Ratio),
			gpuevent.F(semconv.CUDACaptureRecordedTime, o.RecordedSeconds), gpuevent.F(semconv.CUDACaptureRecordedRatio, o.RecordedRatio))
	}
	if s.Version > 0 {
		r.Attrs = append(r.Attrs, gpuevent.I(semconv.CUDACaptureLibraryVersion, int64(s.Version)))
	}
	r.UID = e.uid()
	e.batch.Record(e.session, &r)
}

// captureKinds returns the words for kinds. It includes a word for missing external correlation
// records, which users cannot request.
func captureKinds(set cupti.Kinds) []string {
	words := KindNames(set)
	if set.Has(cupti.KindExternal) {
		words = append(words, "scope")
	}
	return words
}

// lossy reports whether anything was lost. Spans omitted by a limit do not count, because metrics
// include them.
func (s *Summary) lossy() bool {
	r := &s.Records
	return s.Failure != "" || r.Dropped+r.Rejected+r.Unread+r.Unreturned+r.ScopesLost+r.ScopesUnknown+r.StacksLost > 0
}

// sentence describes the result of the session in one sentence.
func (s *Summary) sentence() string {
	if s.Reason != cupti.ReasonNone {
		if s.Detail == "" {
			return "Nothing was recorded: " + string(s.Reason) + "."
		}
		return "Nothing was recorded: " + strings.TrimSuffix(s.Detail, ".") + "."
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d kernels, %d spans of device work", s.KernelCount, s.Spans.Emitted)
	for _, part := range []struct {
		n    uint64
		text string
	}{
		{s.Spans.LeftOut, "%d omitted by limit or filter"},
		{s.Spans.Unsampled, "%d not sampled"},
		{s.Records.Dropped, "%d records dropped by CUPTI"},
		{s.Records.Rejected, "%d records rejected"},
		{s.Records.Unread, "%d records not read"},
		{s.Records.Unreturned, "%d buffers kept by CUPTI with unfinished records"},
		{s.Records.ScopesUnknown, "%d records with an unknown scope"},
		{s.Records.ScopesLost, "%d scopes lost"},
		{s.Records.StacksLost, "%d host stacks lost"},
	} {
		if part.n > 0 {
			fmt.Fprintf(&b, ", "+part.text, part.n)
		}
	}
	if w := s.Windows; w != nil {
		if w.Opened > 0 {
			fmt.Fprintf(&b, ", %d deep windows", w.Opened)
		}
		if w.Attempts > 0 {
			fmt.Fprintf(&b, ", %d deep windows without a result", w.Attempts)
		}
		if w.Unsent > 0 {
			fmt.Fprintf(&b, ", the results of %d deep windows lost", w.Unsent)
		}
		if w.TextsMissing > 0 {
			fmt.Fprintf(&b, ", %d functions without a listing", w.TextsMissing)
		}
		if w.PausedSeconds > 0 {
			fmt.Fprintf(&b, ", nothing recorded for %.3g s of them", w.PausedSeconds)
		}
	}
	if o := s.Overhead; o != nil {
		fmt.Fprintf(&b, ", recorded in %.3g %% of the time at a cost of at most %.2g %% of it (budget %.3g %%)",
			100*o.RecordedRatio, 100*o.Ratio, 100*o.Budget)
		if !o.Met {
			b.WriteString(": the budget was exceeded")
		}
		if o.Failure != "" {
			b.WriteString("; " + o.Failure)
		}
	}
	if s.StacksSeconds > 0 {
		fmt.Fprintf(&b, ", %.2g s spent on host stacks", s.StacksSeconds)
	}
	if s.NoStacks != "" {
		b.WriteString("; no host stacks: " + s.NoStacks)
	}
	if s.Failure != "" {
		b.WriteString("; recording stopped: " + s.Failure)
	}
	b.WriteByte('.')
	return b.String()
}

func traceText(r gpuevent.Ref) string { return hex.EncodeToString(r.Trace[:]) }

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// uid returns the id of the session's next log record.
func (e *engine) uid() gpuevent.UID {
	e.logs++
	return e.key.UID(e.logs, 0)
}
