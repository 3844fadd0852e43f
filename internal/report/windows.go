// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"math"
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/semconv"
)

// maxWindows bounds the deep windows that a report keeps, some 500 bytes each; that there are more is said.
const maxWindows = 20_000

// Windows are the deep windows of recordings: what they brought, and what they could not bring.
type Windows struct {
	// Collected are windows in which an engine ran and was read, Empty the others.
	Collected, Empty int
	// Sum is of all windows. List has each, by start.
	Sum  WindowFigures
	List []Window
	// More says that there are others besides, for which a report has no room.
	More bool
	// WithoutListing are functions whose listing was not ready when recording ended.
	WithoutListing uint64
	// Missing are stall reasons and metrics that a device did not know.
	Missing []string
}

// Window is one deep window, as its span and its log record have it.
type Window struct {
	// ID counts from 1 in each process, PID is that process, 0 if it is not known.
	ID, PID int64
	// Engines are those that ran. Status is why there is nothing if it is not collected, and Message the
	// same in a sentence.
	Engines                              []string
	Cause, Why, Status, Message, Closing string
	Start                                time.Time
	Length                               time.Duration
	WindowFigures
}

// WindowFigures count what windows took. What a recording does not say is 0.
type WindowFigures struct {
	// Paused is how long nothing else was recorded.
	Paused time.Duration
	// Samples are what the hardware took, those without a record included; of SASS metrics alone, figures
	// that instructions counted. Lost are those of them that are in no record.
	Samples, Lost uint64
	// Dropped were lost by the hardware, NonUser are of code that CUPTI does not show: both are in Lost.
	// HardwareFull says how often the hardware's buffer was found full.
	Dropped, NonUser, HardwareFull uint64
	// Rows is the number of records. Other counts rows summed under another name, and RowsLost
	// rows that exceeded the limit.
	Rows, Other, RowsLost uint64
	// Unresolved rows have no source line, WithoutListing no instruction.
	Unresolved, WithoutListing uint64
	// SkippedContexts were not looked at, LostContexts ended too soon.
	SkippedContexts, LostContexts uint64
	// Held calls of the program had to wait, LongestHold at most; Released of them went on before the window was
	// done.
	Held, Released uint64
	LongestHold    time.Duration
}

func (f *WindowFigures) add(o *WindowFigures) {
	f.Paused += o.Paused
	f.LongestHold = max(f.LongestHold, o.LongestHold)
	for _, n := range []struct {
		to *uint64
		of uint64
	}{
		{&f.Samples, o.Samples},
		{&f.Lost, o.Lost},
		{&f.Dropped, o.Dropped},
		{&f.NonUser, o.NonUser},
		{&f.HardwareFull, o.HardwareFull},
		{&f.Rows, o.Rows},
		{&f.Other, o.Other},
		{&f.RowsLost, o.RowsLost},
		{&f.Unresolved, o.Unresolved},
		{&f.WithoutListing, o.WithoutListing},
		{&f.SkippedContexts, o.SkippedContexts},
		{&f.LostContexts, o.LostContexts},
		{&f.Held, o.Held},
		{&f.Released, o.Released},
	} {
		if *n.to += n.of; *n.to < n.of {
			*n.to = math.MaxUint64
		}
	}
}

// collected says that an engine ran and was read.
func (w *Window) collected() bool { return w.Status == string(deep.StatusCollected) }

// samplingEngine is PC sampling, as telemetry spells it.
var samplingEngine = cupti.EnginePCSampling.String()

// sampled says that PC sampling ran, and nothing else whose figures are in Samples.
func (w *Window) sampled() bool { return len(w.Engines) == 1 && w.Engines[0] == samplingEngine }

// windowKey names a window: its span and its log record have the same.
type windowKey struct {
	session string
	id      int64
}

// window takes a window's attributes, of its span or of its log record, whichever comes first.
func (r *Report) window(res pcommon.Resource, a pcommon.Map, start, end pcommon.Timestamp) {
	id := number(a, semconv.CUDADeepWindowID)
	if id == 0 {
		return // a recording of others, whose windows do not say what they lost
	}
	key := windowKey{text(res.Attributes(), semconv.ServiceInstanceID), id}
	if _, known := r.windows[key]; known {
		return
	}
	if len(r.windows) >= maxWindows {
		r.windowsMore = true
		return
	}
	n := func(key string) uint64 { return uint64(number(a, key)) }
	if v := n(semconv.CUDADeepWindowStartTimeUnixNano); v != 0 {
		start, end = pcommon.Timestamp(v), pcommon.Timestamp(n(semconv.CUDADeepWindowEndTimeUnixNano))
	}
	w := &Window{
		ID: id, PID: number(res.Attributes(), semconv.ProcessPID), Engines: texts(a, semconv.CUDADeepWindowEngines),
		Cause: text(a, semconv.CUDADeepWindowCause), Why: text(a, semconv.CUDADeepWindowWhy), Status: text(a, semconv.CUDADeepWindowStatus),
		Message: text(a, semconv.CUDADeepWindowMessage), Closing: text(a, semconv.CUDADeepWindowCloseReason),
		Start: start.AsTime(), Length: max(end.AsTime().Sub(start.AsTime()), 0),
		WindowFigures: WindowFigures{
			Paused:  duration(float(a, semconv.CUDADeepWindowPausedDuration)),
			Samples: n(semconv.CUDADeepWindowSamples), Lost: n(semconv.CUDADeepWindowLost),
			Dropped: n(semconv.CUDADeepWindowSamplesDropped), NonUser: n(semconv.CUDADeepWindowSamplesNonUser),
			HardwareFull: n(semconv.CUDADeepWindowHardwareFull),
			Rows:         n(semconv.CUDADeepWindowRows), Other: n(semconv.CUDADeepWindowRowsOther), RowsLost: n(semconv.CUDADeepWindowRowsLost),
			Unresolved: n(semconv.CUDADeepWindowRowsUnresolved), WithoutListing: n(semconv.CUDADeepWindowRowsWithoutSASS),
			SkippedContexts: n(semconv.CUDADeepWindowContextsSkipped), LostContexts: n(semconv.CUDADeepWindowContextsLost),
			Held: n(semconv.CUDADeepWindowCallsHeld), Released: n(semconv.CUDADeepWindowCallsReleased),
			LongestHold: duration(float(a, semconv.CUDADeepWindowLongestHold)),
		},
	}
	for _, name := range texts(a, semconv.CUDADeepWindowMissing) {
		if len(r.missing) < maxMissing {
			r.missing[name] = struct{}{}
		}
	}
	r.windows[key] = w
}

// maxMissing bounds the names of what devices did not know.
const maxMissing = 100

// texts returns the texts of a list.
func texts(m pcommon.Map, key string) (all []string) {
	v, ok := m.Get(key)
	if !ok || v.Type() != pcommon.ValueTypeSlice {
		return nil
	}
	for _, e := range v.Slice().All() {
		if e.Type() == pcommon.ValueTypeStr && len(all) < maxMissing {
			all = append(all, e.Str())
		}
	}
	return all
}

// float returns a number, 0 where it is absent.
func float(m pcommon.Map, key string) float64 {
	v, ok := m.Get(key)
	switch {
	case !ok:
	case v.Type() == pcommon.ValueTypeDouble:
		return v.Double()
	case v.Type() == pcommon.ValueTypeInt:
		return float64(v.Int())
	}
	return 0
}

// Windows returns the deep windows.
func (r *Report) Windows() Windows {
	out := Windows{More: r.windowsMore, WithoutListing: r.withoutListing}
	for _, w := range r.windows {
		out.List = append(out.List, *w)
		out.Sum.add(&w.WindowFigures)
		if w.collected() {
			out.Collected++
		} else {
			out.Empty++
		}
	}
	slices.SortFunc(out.List, func(a, b Window) int {
		return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.PID, b.PID), cmp.Compare(a.ID, b.ID))
	})
	for name := range r.missing {
		out.Missing = append(out.Missing, name)
	}
	slices.Sort(out.Missing)
	return out
}

// Nothing says that there was no window.
func (w *Windows) Nothing() bool { return len(w.List) == 0 }
