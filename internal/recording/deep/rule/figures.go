// SPDX-License-Identifier: Apache-2.0

package rule

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/internal/glob"
)

const (
	// MaxRules bounds the rules of a process: each is looked at for every new name, and at every
	// tick.
	MaxRules = 16
	// maxGap is the time between two ticks after which nothing is known of what was between.
	maxGap = 5 * time.Second
	// margin is how far on the other side of the value, as a part of it, a figure arms its rule
	// again.
	margin = 0.1
)

// Figures keeps the figures that rules look at, and nothing else. It belongs to one goroutine, and
// so do the Series that it returns.
type Figures struct {
	rules  []*watch
	ticked bool
	last   time.Time
}

// watch is a rule, its figure, and how far it is.
type watch struct {
	Rule
	tally    tally
	baseline baseline
	// value is the figure at the last tick, if known; threshold what it is compared with, if
	// compared.
	value, threshold float64
	known, compared  bool
	// disarmed says that the rule has fired and has not been armed again.
	disarmed bool
	// since is when the comparison began to hold, or, if disarmed, the figure began to be on the
	// other side; zero if it does not, or is not.
	since time.Time
}

// New returns figures for rules made by Parse. It errs if there are more than MaxRules.
func New(rules []Rule) (*Figures, error) {
	if len(rules) > MaxRules {
		return nil, fmt.Errorf("there are %d rules; %d are the most", len(rules), MaxRules)
	}
	f := &Figures{}
	for _, r := range rules {
		f.rules = append(f.rules, &watch{Rule: r, tally: newTally(&r)})
	}
	return f, nil
}

// Series takes the durations of what has one name.
type Series struct{ into []*tally }

// Observe counts one that took so many nanoseconds. A nil Series counts nothing.
func (s *Series) Observe(ns int64) {
	if s == nil {
		return
	}
	for _, t := range s.into {
		t.observe(ns)
	}
}

// Kernel returns where to count kernels of a name, nil if no rule looks at them. full may be "".
// Keep what it returns beside the name: the call compares globs.
func (f *Figures) Kernel(short, full string) *Series {
	return f.series(Kernel, short, full)
}

// Scope returns where to count scopes of a name when they end, nil if no rule looks at them.
func (f *Figures) Scope(name string) *Series { return f.series(Scope, name, "") }

func (f *Figures) series(source Source, name, other string) *Series {
	var s Series
	for _, w := range f.rules {
		if w.Source == source && (glob.Match(w.Name, name) || other != "" && glob.Match(w.Name, other)) {
			s.into = append(s.into, &w.tally)
		}
	}
	if s.into == nil {
		return nil
	}
	return &s
}

// Firing says that a rule is met, and by what.
type Firing struct {
	Rule *Rule
	// Value is the figure and Threshold what it was compared with, in 1/s or seconds.
	Value, Threshold float64
	// Held is how long the comparison has held.
	Held time.Duration
}

// String says so in one line: "kernel.rate < 100/s for 2s: 12.5/s".
func (f *Firing) String() string {
	s := f.Rule.Text + ": " + f.Rule.format(f.Value)
	if f.Rule.Baseline {
		s += ", baseline " + f.Rule.format(f.Threshold/f.Rule.Value)
	}
	return s
}

// Metric is what the rule looks at, as it is written: "kernel.rate", "scope(train_step).p95".
func (r *Rule) Metric() string {
	before, _, _ := strings.Cut(r.Text, string(r.Op))
	return strings.TrimSpace(before)
}

// format writes a figure of the rule's kind.
func (r *Rule) format(v float64) string {
	if r.Quantile > 0 {
		d := time.Duration(v * 1e9)
		switch {
		case d >= time.Second:
			return d.Round(time.Millisecond).String()
		case d >= time.Millisecond:
			return d.Round(time.Microsecond).String()
		}
		return d.String()
	}
	return strconv.FormatFloat(v, 'g', 4, 64) + "/s"
}

// Tick brings all figures up to date and offers each rule that is met to fire, which says whether
// it takes the offer. What was counted since the tick before belongs to that time. disturbed says
// that some of it was not as usual, such as in a deep window. Then none of it is used, and the
// recent values of rules are discarded. Times must carry a monotonic reading, or the clock must not
// be set.
func (f *Figures) Tick(now time.Time, disturbed bool, fire func(*Firing) bool) {
	gap := now.Sub(f.last)
	if !f.ticked || disturbed || gap > maxGap || gap < 0 {
		f.forget(now)
	} else {
		for _, w := range f.rules {
			w.tick(now, fire)
		}
	}
	f.ticked, f.last = true, now
}

func (f *Figures) forget(now time.Time) {
	for _, w := range f.rules {
		w.tally.forget(now)
		w.known, w.compared, w.since = false, false, time.Time{}
	}
}

func (w *watch) tick(now time.Time, fire func(*Firing) bool) {
	w.value, w.known = w.tally.value(now)
	w.threshold, w.compared = w.Value, true
	if w.Baseline {
		b, ok := w.baseline.value()
		w.threshold *= b
		w.compared = ok
	}
	holds := w.known && w.compared && w.holds()
	if !w.held(now, holds) {
		if w.known && !holds && !w.disarmed {
			w.baseline.look(now, w.value)
		}
		return
	}
	if w.disarmed {
		w.disarmed, w.since = false, time.Time{}
		return
	}
	if fire(&Firing{Rule: &w.Rule, Value: w.value, Threshold: w.threshold, Held: now.Sub(w.since)}) {
		w.disarmed, w.since = true, time.Time{}
	}
}

// held says whether what the rule waits for has been so for long enough: the comparison, or, after
// it has fired, the other side of it.
func (w *watch) held(now time.Time, holds bool) bool {
	so := holds
	if w.disarmed {
		so = w.known && w.compared && w.clear()
	}
	if !so {
		w.since = time.Time{}
		return false
	}
	if w.since.IsZero() {
		w.since = now
	}
	return now.Sub(w.since) >= w.For
}

func (w *watch) holds() bool {
	switch w.Op {
	case Less:
		return w.value < w.threshold
	case LessEqual:
		return w.value <= w.threshold
	case Greater:
		return w.value > w.threshold
	default:
		return w.value >= w.threshold
	}
}

// clear says whether the figure is on the other side of the threshold by the margin.
func (w *watch) clear() bool {
	if w.holds() {
		return false
	}
	if w.Op == Greater || w.Op == GreaterEqual {
		return w.value <= w.threshold-w.threshold*margin
	}
	return w.value >= w.threshold+w.threshold*margin
}

// State is how far a rule is, for people.
type State struct {
	Rule string `json:"rule"`
	// Value is the figure and Threshold what it is compared with, "unknown" where not known.
	Value     string `json:"value"`
	Threshold string `json:"threshold"`
	// Met says that the comparison holds, or held when the rule fired.
	Met bool `json:"met"`
	// Fired says that the rule has fired and is not armed again.
	Fired bool `json:"fired"`
}

// States returns the state of each rule at the last tick.
func (f *Figures) States() []State {
	states := make([]State, 0, len(f.rules))
	for _, w := range f.rules {
		s := State{Rule: w.Text, Value: "unknown", Threshold: "unknown", Fired: w.disarmed}
		if w.known {
			s.Value = w.format(w.value)
		}
		if w.compared {
			s.Threshold = w.format(w.threshold)
		}
		s.Met = w.known && w.compared && w.holds()
		states = append(states, s)
	}
	return states
}
