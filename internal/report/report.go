// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
	"github.com/gpuflight/gpuflight/internal/report/hotspot"
)

// Report sums up recordings. It is not safe for concurrent use. Create it with [New].
type Report struct {
	sessions map[string]*session
	order    []*session
	// The measurements inside kernels of all sessions: a function has the same code in each.
	inside *hotspot.Table
	unread uint64
	// Deep-profiling windows by session and number, whether some exceeded the limit, and names
	// that devices did not know.
	windows        map[windowKey]*Window
	windowsMore    bool
	withoutListing uint64
	missing        map[string]struct{}
}

// New returns an empty report.
func New() *Report {
	return &Report{
		sessions: map[string]*session{}, inside: hotspot.New(hotspot.Limits{}),
		windows: map[windowKey]*Window{}, missing: map[string]struct{}{},
	}
}

// maxNames bounds the separate names of one kind in a session. The rest is other.
const maxNames = 100_000

// other is the name of the rest, as in telemetry.
const other = "_other"

// session is one recording process.
type session struct {
	spans sums
	// What metrics say.
	kernels newest[string, Row]
	copies  newest[string, Row]
	sets    newest[string, Row]
	times   newest[timeKey, float64]
	graphs  newest[string, uint64]
	// sliced says that records were made in a part of the time only.
	sliced  bool
	capture Lost
	// summary is the whole of it where there is one.
	summary *recorder.Summary
}

// timeKey says of what a sum of device seconds is.
type timeKey struct{ scope, operation, device string }

// sums are what spans say.
type sums struct {
	kernels, copies, scopes map[string]*Row
	sets                    Row
	graphs                  uint64
	// estimated is device work whose times nobody measured.
	estimated uint64
	// slowed is scopes that deep windows made longer.
	slowed uint64
	// device is the time of device work by scope.
	device map[string]time.Duration
}

// Row is the sum of all kernels, copies, … of one name.
type Row struct {
	Name  string
	Count uint64
	// Total is the time of all together, Max the longest. Timed of them have a time that is known.
	Total, Max time.Duration
	Timed      uint64
	// Bytes is the size of copies and sets, TimedBytes that of those with a time.
	Bytes, TimedBytes uint64
	// Device is the device time of work in a scope, without nested scopes.
	Device time.Duration
	// Longest is the longest one of those with a span.
	Longest Launch
}

// Launch is one operation or scope. The zero value is none.
type Launch struct {
	Span    pcommon.SpanID
	StartNs uint64
	took    time.Duration
	// Shape is the grid and the block of a kernel, "" if unknown.
	Shape string
}

func (r *Row) add(o *Row) {
	r.Count += o.Count
	r.Total += o.Total
	r.Max = max(r.Max, o.Max)
	r.Timed += o.Timed
	r.Bytes += o.Bytes
	r.TimedBytes += o.TimedBytes
	r.Device += o.Device
	if !o.Longest.Span.IsEmpty() && (r.Longest.Span.IsEmpty() || o.Longest.took > r.Longest.took) {
		r.Longest = o.Longest
	}
}

// Mean is the mean of those with a time, 0 if there are none.
func (r *Row) Mean() time.Duration {
	if r.Timed == 0 {
		return 0
	}
	return time.Duration(float64(r.Total) / float64(r.Timed))
}

// GBPerSecond is the rate of copies or sets with a time, 0 if there are none.
func (r *Row) GBPerSecond() float64 {
	if r.Total <= 0 {
		return 0
	}
	return float64(r.TimedBytes) / r.Total.Seconds() / 1e9
}

// Lost counts what was not recorded, or has no span.
type Lost struct {
	// Dropped records had no free buffer. Rejected records were invalid.
	Dropped, Rejected uint64
	// LeftOut and Unsampled have no span, and are in the metrics.
	LeftOut, Unsampled uint64
}

func (l *Lost) add(o Lost) {
	l.Dropped += o.Dropped
	l.Rejected += o.Rejected
	l.LeftOut += o.LeftOut
	l.Unsampled += o.Unsampled
}

// Nothing says why a process recorded nothing.
type Nothing struct {
	Reason cupti.Reason
	Detail string
	// Processes is the number of those with this reason.
	Processes int
}

// Totals are the sums of all sessions. Rows are sorted, the most time first.
type Totals struct {
	// Sessions is their number, Unended that of processes that recorded and left without a summary.
	Sessions, Unended       int
	Kernels, Copies, Scopes []Row
	// ScopeTree is the scopes with what was launched in them and in scopes below. It is nil unless set.
	ScopeTree []analysis.ScopeSum
	Sets      Row
	Graphs    uint64
	// Estimated is how much device work has times that are not measured, such as in a deep window.
	Estimated uint64
	// Slowed is how many scopes took longer than they would have since a deep window was open.
	Slowed uint64
	// Sliced is how many sessions were recorded in time slices, because of an overhead budget.
	Sliced  uint64
	Lost    Lost
	Nothing []Nothing
}

// Empty says that no device work was recorded at all.
func (t *Totals) Empty() bool {
	return len(t.Kernels) == 0 && len(t.Copies) == 0 && t.Sets.Count == 0 && t.Graphs == 0
}

// newest keeps the values of the latest moment, out of cumulative sums that come again and again: a
// series that is no longer sent has been added to another.
type newest[K comparable, V any] struct {
	at     uint64
	values map[K]V
}

// put sets or adds to the value at the key, at a moment in Unix nanoseconds.
func (n *newest[K, V]) put(at uint64, key K, change func(*V)) {
	if at < n.at {
		return
	}
	if at > n.at || n.values == nil {
		n.at, n.values = at, map[K]V{}
	}
	v, ok := n.values[key]
	if !ok && len(n.values) >= maxNames {
		return
	}
	change(&v)
	n.values[key] = v
}

func (s *sums) row(m *map[string]*Row, name string) *Row {
	if *m == nil {
		*m = map[string]*Row{}
	}
	r, ok := (*m)[name]
	if !ok {
		if len(*m) >= maxNames {
			name = other
			if r, ok = (*m)[name]; ok {
				return r
			}
		}
		r = &Row{Name: name}
		(*m)[name] = r
	}
	return r
}

// of returns the session of an identifier, made if need be.
func (r *Report) of(id string) *session {
	s, ok := r.sessions[id]
	if !ok {
		s = &session{}
		r.sessions[id] = s
		r.order = append(r.order, s)
	}
	return s
}

// Session adds what a process tells of itself. It replaces what spans and metrics say of it.
func (r *Report) Session(s recorder.Summary) { r.of(s.Instance).summary = &s }

// Totals adds all up.
func (r *Report) Totals() Totals {
	var t Totals
	kernels, copies, scopes := map[string]*Row{}, map[string]*Row{}, map[string]*Row{}
	nothing := map[cupti.Reason]*Nothing{}
	for _, s := range r.order {
		t.Sessions++
		if s.summary != nil {
			addSummary(s.summary, &t, kernels, copies, nothing)
			continue
		}
		s.addTo(&t, kernels, copies, scopes)
	}
	t.Kernels, t.Copies, t.Scopes = sorted(kernels), sorted(copies), sorted(scopes)
	for _, reason := range slices.Sorted(maps.Keys(nothing)) {
		t.Nothing = append(t.Nothing, *nothing[reason])
	}
	return t
}

func addRow(m map[string]*Row, row *Row) {
	have, ok := m[row.Name]
	if !ok {
		have = &Row{Name: row.Name}
		m[row.Name] = have
	}
	have.add(row)
}

// sorted returns the rows by time, then count, then name. The rest comes last.
func sorted(m map[string]*Row) []Row {
	rows := make([]Row, 0, len(m))
	for _, row := range m {
		rows = append(rows, *row)
	}
	slices.SortFunc(rows, func(a, b Row) int {
		if (a.Name == other) != (b.Name == other) {
			if a.Name == other {
				return 1
			}
			return -1
		}
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name))
	})
	return rows
}

// addTo adds a session of which there are spans and metrics. Metrics are exact; spans know the times of
// copies.
func (s *session) addTo(t *Totals, kernels, copies, scopes map[string]*Row) {
	t.Lost.add(s.capture)
	if s.metricsAreWhole() {
		for _, row := range s.kernels.values {
			if spans := s.spans.kernels[row.Name]; spans != nil {
				row.Longest = spans.Longest
			}
			addRow(kernels, &row)
		}
	} else {
		for _, row := range s.spans.kernels {
			addRow(kernels, row)
		}
	}
	for _, row := range s.spans.copies {
		if exact, ok := s.byKind(row.Name); ok && exact.Count >= row.Count {
			row = &Row{Name: row.Name, Count: exact.Count, Bytes: exact.Bytes, Total: row.Total, Max: row.Max, Timed: row.Timed, TimedBytes: row.TimedBytes, Longest: row.Longest}
		}
		addRow(copies, row)
	}
	seen := s.spans.copies
	for _, row := range s.copies.values {
		if _, ok := seen[row.Name]; !ok {
			addRow(copies, &row)
		}
	}
	sets := s.spans.sets
	for _, row := range s.sets.values {
		sets.Bytes = max(sets.Bytes, row.Bytes)
	}
	t.Sets.add(&sets)
	graphs := uint64(0)
	for _, n := range s.graphs.values {
		graphs += n
	}
	t.Graphs += max(graphs, s.spans.graphs)
	t.Estimated += s.spans.estimated
	t.Slowed += s.spans.slowed
	if s.sliced {
		t.Sliced++
	}

	device := s.spans.device
	if len(s.times.values) > 0 {
		device = map[string]time.Duration{}
		for key, seconds := range s.times.values {
			device[key.scope] += duration(seconds)
		}
	}
	for name, d := range device {
		if name != "" {
			addRow(scopes, &Row{Name: name, Device: d})
		}
	}
	for _, row := range s.spans.scopes {
		addRow(scopes, row)
	}
}

// metricsAreWhole says whether metrics know of at least as many kernels as spans do: the last metrics
// of a process that was killed are older than its last spans.
func (s *session) metricsAreWhole() bool {
	var metrics, spans uint64
	for _, row := range s.kernels.values {
		metrics += row.Count
	}
	for _, row := range s.spans.kernels {
		spans += row.Count
	}
	return metrics >= spans
}

// byKind returns what metrics say of a kind of copy, over all devices.
func (s *session) byKind(kind string) (sum Row, ok bool) {
	for _, row := range s.copies.values {
		if row.Name == kind {
			sum.add(&row)
			ok = true
		}
	}
	return sum, ok
}

// addSummary adds a session by its summary.
func addSummary(s *recorder.Summary, t *Totals, kernels, copies map[string]*Row, nothing map[cupti.Reason]*Nothing) {
	if s.Reason != cupti.ReasonNone {
		n, ok := nothing[s.Reason]
		if !ok {
			n = &Nothing{Reason: s.Reason, Detail: s.Detail}
			nothing[s.Reason] = n
		}
		n.Processes++
	} else if s.EndNs == 0 {
		t.Unended++
	}
	rows := s.Kernels
	if s.KernelsOther != nil {
		rows = append(slices.Clip(rows), *s.KernelsOther)
	}
	for _, k := range rows {
		addRow(kernels, &Row{Name: k.Name, Count: k.Count, Timed: k.Count, Total: duration(k.Seconds), Max: duration(k.MaxSeconds)})
	}
	for _, c := range s.Copies {
		row := Row{Name: c.Kind, Count: c.Count, Timed: c.Count, Total: duration(c.Seconds), Bytes: c.Bytes, TimedBytes: c.Bytes}
		addRow(copies, &row)
	}
	t.Sets.add(&Row{Count: s.Sets.Count, Timed: s.Sets.Count, Total: duration(s.Sets.Seconds), Bytes: s.Sets.Bytes, TimedBytes: s.Sets.Bytes})
	t.Graphs += s.Graphs
	if s.Overhead != nil && s.Overhead.Slices > 1 {
		t.Sliced++
	}
	t.Lost.add(Lost{
		Dropped: s.Records.Dropped + s.Records.Unread, Rejected: s.Records.Rejected,
		LeftOut: s.Spans.LeftOut, Unsampled: s.Spans.Unsampled,
	})
}

// duration reads seconds. What no duration can hold becomes the longest.
func duration(seconds float64) time.Duration {
	const longest = time.Duration(1<<63 - 1)
	switch ns := seconds * 1e9; {
	case !(ns > 0): // NaN as well
		return 0
	case ns >= float64(longest):
		return longest
	default:
		return time.Duration(ns + 0.5)
	}
}
