// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// State is what is recorded of the device's work.
type State uint8

// The states, from the dearest to the cheapest.
const (
	Trace  State = iota // every launch has a record, and is counted
	Count               // launches are counted by name, and have no records
	Blind               // nothing is seen
	states = 3
)

// String returns the state as telemetry spells it.
func (s State) String() string {
	switch s {
	case Trace:
		return "trace"
	case Count:
		return "count"
	case Blind:
		return "blind"
	default:
		return "unknown"
	}
}

// Parse reads a budget: a percentage ("2%", "0.5 %") or a share ("0.02"). It is above 0 and at most 1.
func Parse(text string) (float64, error) {
	number, percent := strings.CutSuffix(strings.TrimSpace(text), "%")
	b, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if percent {
		b /= 100
	}
	if err != nil || math.IsNaN(b) || b <= 0 || b > 1 {
		return 0, fmt.Errorf("%q is no overhead budget; it must be a share of the time above 0 and at most 1, such as 2%% or 0.02", text)
	}
	return b, nil
}

// Costs are seconds that a launch takes longer, each beside the state before it.
type Costs struct {
	// Count is that of counting a launch where no record was made since CUPTI was attached; Residual what stays in
	// all states once one was, until CUPTI is left; Trace what a record costs on top of both.
	Count, Trace, Residual float64
}

// Config says what a [Controller] may do. The zero value but for Budget works.
type Config struct {
	// Budget is the share of the program's time that may be lost, above 0 and at most 1.
	Budget float64
	// MinSlice and MaxSlice bound how long a slice is traced at a time: 50 ms and 1 s.
	MinSlice, MaxSlice time.Duration
	// CanLeave says that a Step may ask for CUPTI to be left.
	CanLeave bool
	// Prior holds what a launch is taken to cost before it was measured. Count and Residual are never measured, since without
	// counting nobody knows how many launches there were: they are taken to be in the same proportion to what a record
	// costs as here. Zero values are what an H200 took with CUDA 13.0 for launches one after the other; if all are zero, costs are
	// taken to be up to 3.3 times as much where launches are further apart, as in a training there.
	Prior Costs
	// Processors is how many share the work of our own threads: 1 counts all their time as lost. Default 1.
	Processors int
	// Seed makes a Controller's choices repeatable; 0 takes a random one.
	Seed uint64
}

// Interval is what the step that has ended measured.
type Interval struct {
	// Launches were counted in it from the moment the state was reached, if Known: not in Blind.
	Launches uint64
	Known    bool
	// Presumed is how many of them nobody counted: what there was in slices before says that there were as many.
	Presumed uint64
	// CUPTI is what its overhead records of this time add up to, Own the processor time of our own
	// threads. Waited is how long it took until the change to the step's state could begin, Switch how
	// long the change itself took: the program may have stood still. Negative values are taken as 0.
	CUPTI, Own, Waited, Switch time.Duration
	// Failed says that the state was not reached, and Actual which one went on instead.
	Failed bool
	Actual State
	// Stayed says that CUPTI could not be left though the step asked for it, NeverLeaves that it never can be.
	Stayed, NeverLeaves bool
}

// Step is what is to be done next.
type Step struct {
	State State
	// For is how long, if nothing intervenes; Controller.Next is asked then.
	For time.Duration
	// Finalise asks for CUPTI to be left before State, which is Blind or Count, begins.
	Finalise bool
	// Records says that what was launched in this stratum is to be told from records alone, since CUPTI is left for the rest of
	// it. Slices last as long as For then, however long it takes until they begin.
	Records bool
	// Joins says that the first records since CUPTI was left are made in it: see Status.Join.
	Joins bool
	// Stratum numbers the stratum that the step is in, from 1.
	Stratum uint64
	// TraceShare is the chance that any moment of this stratum had to be traced, before it was known which are. CountShare is
	// that to be counted, given which are traced: 1 where all of it is.
	TraceShare, CountShare float64
	// Speed is how much faster launches are taken to come where they are not counted than where they are.
	Speed float64

	// leave says that CUPTI is to be left in the step, if it is not.
	leave bool
}

// Status is what a Controller did and found.
type Status struct {
	Budget float64
	// Elapsed is the time since Begin, In that spent in each state by its number.
	Elapsed time.Duration
	In      [states]time.Duration
	// Overhead is the share of the time that was lost, estimated, since Begin; Window that of the last
	// minute; Floor what the cheapest state that is allowed costs now.
	Overhead, Window, Floor float64
	// Met says whether both are within the budget, Excess by how much they are not.
	Met    bool
	Excess float64
	// Costs of a launch as used now, and how many comparisons they are from.
	Costs       Costs
	Comparisons int
	// Join is what the first launches with records take longer, all together, each time after CUPTI was left, in seconds, and Joins how
	// often that was measured.
	Join  float64
	Joins int
	// Switches counts changes of state, Finalised those that left CUPTI, Failures those that failed, Stayed how often
	// CUPTI could not be left.
	Switches, Finalised, Failures, Stayed uint64
}

// Duty is the share of the time that was traced; 1 before any passed.
func (s *Status) Duty() float64 {
	if s.Elapsed <= 0 {
		return 1
	}
	return float64(s.In[Trace]) / float64(s.Elapsed)
}
