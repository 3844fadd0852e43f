// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Bounds of what is kept of steps.
const (
	maxSteps        = 200_000
	defaultSteps    = 100 // listed without Options.Steps
	maxOutliers     = 20
	maxKernelNames  = 2000
	candidateSteps  = 32
	outlierDistance = 5   // in median absolute deviations
	outlierShare    = 0.2 // of the median
)

// Steps are the steps of the device with the most kernel time.
type Steps struct {
	// Rule is how they were found: "scopes", "kernels" or "none".
	Rule string
	// Name is the name of the scope, or of the kernel with which each step begins.
	Name   string
	Device string
	Count  int64
	// WallNs is the sum of the wall times of all steps.
	WallNs int64
	// P50, P95 and Max are quantiles of each value on its own. So their parts do not sum to the wall.
	P50 StepValues
	P95 StepValues
	Max StepValues
	// Typical is the step with the median wall, nil without steps.
	Typical *Step
	// Longest are the longest steps, at most Options.Steps, and Outliers the longest outliers, at most 20.
	Longest  []Step
	Outliers []Outlier
	// OutlierCount is the number of all outliers.
	OutlierCount int64
	// lateCount and lateNs are the number and the excess of all outliers except the first step, which
	// includes the start.
	lateCount, lateNs int64
	repeated          repeated
	// More says that the interval has more than 200,000 steps. The first ones count.
	More bool
}

// StepValues is the parts and the counts of a step.
type StepValues struct {
	Parts
	// Operations is the number of operations that started, KernelNs the sum of durations of kernels,
	// QueueNs of the known queue times.
	Operations int64 `json:"operations"`
	KernelNs   int64 `json:"kernel_ns"`
	QueueNs    int64 `json:"queue_ns"`
}

// Step lasts on the device from the start of its first operation to that of the first one of the next
// step. An operation belongs to the step in which it was launched, or in which it started if the
// launch is unknown.
type Step struct {
	// Number counts from 1.
	Number  int64
	Name    string
	StartNs int64
	// First is its first operation.
	First Ref
	StepValues
	Bound Bound

	// GraphNs is the idle time that one CUDA graph of all equal steps saves in this step, 0 if there are too few of
	// them. The sum of all steps is the gain of the finding "cuda_graph", which needs 5 % of their time.
	GraphNs int64

	kernels nameTimes
	// shapes is equal for steps with the same operations in any order: the sum of the hashes of their shapes.
	shapes uint64
}

// nameTimes is nanoseconds by name, in the order of names. Of more than maxKernelNames names, the rest is
// otherName. A list is read several times as fast as a map.
type nameTimes []nameTime

type nameTime struct {
	name string
	ns   int64
}

func (t nameTimes) find(name string) (i int, ok bool) {
	return slices.BinarySearchFunc(t, name, func(x nameTime, name string) int { return strings.Compare(x.name, name) })
}

// add adds time, and returns the index of what it was added to.
func (t *nameTimes) add(name string, ns int64) (i int) {
	i, ok := t.find(name)
	if !ok && len(*t) >= maxKernelNames {
		i, ok = t.find(otherName)
		name = otherName
	}
	if !ok {
		*t = slices.Insert(*t, i, nameTime{name: name})
	}
	(*t)[i].ns += ns
	return i
}

// addNear is add with the index that it found for the name last time, which can be that of another name now.
func (t *nameTimes) addNear(last *uint16, name string, ns int64) {
	if i := int(*last); i < len(*t) && (*t)[i].name == name {
		(*t)[i].ns += ns
		return
	}
	*last = uint16(t.add(name, ns)) // below maxKernelNames + 1
}

// of returns the time of a name.
func (t nameTimes) of(name string) int64 {
	if i, ok := t.find(name); ok {
		return t[i].ns
	}
	return 0
}

// Outlier is a step whose wall is above the median by more than 5 median absolute deviations and by
// more than 20 %.
type Outlier struct {
	Step
	// ExcessNs is the wall minus the median wall.
	ExcessNs int64
	// Part is what exceeds its median the most: "compute", "communication", "copy" or a cause of idle
	// time. PartExcessNs is by how much.
	Part         string
	PartExcessNs int64
	// Kernel is the kernel whose time exceeds its mean of the other steps the most, if Part is compute or
	// communication. Of the outliers, the longest 32 do not count in the mean.
	Kernel         string
	KernelExcessNs int64
}

// stepper divides the work of a device into steps.
type stepper struct {
	bounds []Scope // steps made by scopes, by start
	marker string  // or the kernel that begins a step
	next   int
	last   int64 // end of the last scope

	begun bool // a step has begun
	open  *Step
	base  mark
	near  [256]uint16 // by the lowest bits of the hash of a name: see addNear
}

// divides says whether the work can have steps.
func (s *stepper) divides() bool { return s.marker != "" || len(s.bounds) > 0 }

// changes says whether an operation begins a step, or ends the last one.
func (s *stepper) changes(w *work) bool {
	if s.marker != "" {
		return w.class != classCopy && w.ref.Name == s.marker
	}
	at := w.requested()
	return s.next < len(s.bounds) && s.bounds[s.next].StartNs <= at || s.open != nil && s.next == len(s.bounds) && at >= s.last
}

// requested returns the time that decides to which step an operation belongs.
func (w *work) requested() int64 {
	if w.launched {
		return w.launchStart
	}
	return w.start
}

// stepList is the steps that have ended, in an interval.
type stepList struct {
	first   bool    // the first step of all begins in the interval
	active  [2]mark // begin of the first and end of the last step
	list    []Step
	more    bool
	totals  nameTimes // of kernels in all steps
	longest []int     // steps that keep their kernels
}

func (s *stepper) begin(d *device, w *work) {
	begins, name := false, ""
	if s.marker != "" {
		begins, name = s.changes(w), s.marker
	} else if len(s.bounds) > 0 {
		at := w.requested()
		for s.next < len(s.bounds) && s.bounds[s.next].StartNs <= at {
			name, begins = s.bounds[s.next].Name, true
			s.next++
		}
		if !begins && s.open != nil && s.next == len(s.bounds) && at >= s.last {
			s.end(d)
		}
	}
	if begins {
		s.end(d)
		s.open = &Step{Name: name, StartNs: w.start, First: w.ref}
		s.base = d.mark(w.start)
		if !s.begun {
			s.begun = true
			d.list.first, d.list.active[0] = true, s.base
			d.firstStep()
			if d.owned != nil {
				d.owned.firstStep()
			}
		}
	}
	if o := s.open; o != nil {
		o.Operations++
		o.shapes += w.shape
		if w.queueNs.OK {
			o.QueueNs += w.queueNs.V
		}
		if w.class != classCopy {
			o.KernelNs += w.end - w.start
			o.kernels.addNear(&s.near[uint8(w.name)], w.ref.Name, w.end-w.start)
		}
	}
}

// end closes the open step at the current time. A step of the last scope ends with the device's work
// if nothing else follows.
func (s *stepper) end(d *device) {
	o := s.open
	if o == nil {
		return
	}
	s.open = nil
	end := d.mark(d.now)
	// The last step ends with the work of the device.
	if tail := end.sums.Idle[NothingQueued] - s.base.sums.Idle[NothingQueued]; tail > 0 {
		end.ns -= tail
		end.sums.WallNs -= tail
		end.sums.IdleNs -= tail
		end.sums.Idle[NothingQueued] -= tail
	}
	o.Parts = end.sums.minus(&s.base.sums)
	o.Bound = o.Parts.bound()
	s.base = mark{}
	d.list.active[1] = end
	d.list.add(o)
}

// add adds a step after the others.
func (l *stepList) add(o *Step) {
	if len(l.list) >= maxSteps {
		l.more = true
		return
	}
	for _, x := range o.kernels {
		l.totals.add(x.name, x.ns)
	}
	o.Number = int64(len(l.list)) + 1
	l.list = append(l.list, *o)
	l.candidate(len(l.list) - 1)
}

// candidate keeps the kernels of a step if it is one of the longest.
func (l *stepList) candidate(i int) {
	l.longest = append(l.longest, i)
	if len(l.longest) > candidateSteps {
		slices.SortStableFunc(l.longest, func(a, b int) int { return cmp.Compare(l.list[b].WallNs, l.list[a].WallNs) })
		l.list[l.longest[candidateSteps]].kernels = nil
		l.longest = l.longest[:candidateSteps]
	}
}

// found says whether there are enough steps.
func (l *stepList) found() bool { return len(l.list) >= minSteps }

// stepParts are the parts that can explain an outlier.
func stepParts(p *Parts) map[string]int64 {
	m := map[string]int64{"compute": p.ComputeNs, "communication": p.CommunicationNs, "copy": p.CopyNs}
	for c, ns := range p.Idle {
		m[Cause(c).String()] = ns
	}
	return m
}

func (l *stepList) result(rule, name, device string, listed int) Steps {
	out := Steps{Rule: rule, Name: name, Device: device, Count: int64(len(l.list)), Longest: []Step{}, Outliers: []Outlier{}, More: l.more}
	if !l.found() {
		out.Rule, out.Name, out.Count = "none", "", 0
		return out
	}
	for i := range l.list {
		out.WallNs += l.list[i].WallNs
	}
	values := make([]int64, len(l.list))
	quantiles := func(values []int64, get func(*StepValues) *int64) (p50 int64) {
		for i := range l.list {
			values[i] = *get(&l.list[i].StepValues)
		}
		slices.Sort(values)
		p50 = quantile(values, 50)
		*get(&out.P50), *get(&out.P95), *get(&out.Max) = p50, quantile(values, 95), values[len(values)-1]
		return p50
	}
	idle := start(func() error {
		values := make([]int64, len(l.list))
		for c := range numCauses {
			quantiles(values, func(v *StepValues) *int64 { return &v.Idle[c] })
		}
		return nil
	})
	for _, get := range []func(*StepValues) *int64{
		func(v *StepValues) *int64 { return &v.ComputeNs },
		func(v *StepValues) *int64 { return &v.CommunicationNs },
		func(v *StepValues) *int64 { return &v.CopyNs },
		func(v *StepValues) *int64 { return &v.IdleNs },
		func(v *StepValues) *int64 { return &v.Operations },
		func(v *StepValues) *int64 { return &v.KernelNs },
		func(v *StepValues) *int64 { return &v.QueueNs },
	} {
		quantiles(values, get)
	}
	median := quantiles(values, func(v *StepValues) *int64 { return &v.WallNs })
	_ = idle()
	for i := range l.list {
		values[i] = max(l.list[i].WallNs-median, median-l.list[i].WallNs)
	}
	slices.Sort(values)
	limit := median + max(outlierDistance*quantile(values, 50), int64(outlierShare*float64(median)))

	order := make([]int, len(l.list))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(cmp.Compare(l.list[b].WallNs, l.list[a].WallNs), cmp.Compare(a, b)) })
	out.Typical = &l.list[order[len(order)/2]]
	for _, i := range order[:min(len(order), listed)] {
		out.Longest = append(out.Longest, l.list[i])
	}
	var late nameTimes // kernels of outliers
	n := 0             // of these outliers
	for _, i := range order {
		o := &l.list[i]
		if o.WallNs <= limit {
			break
		}
		out.OutlierCount++
		if n == candidateSteps {
			continue // its kernels are not kept
		}
		n++
		for _, x := range o.kernels {
			late.add(x.name, x.ns)
		}
	}
	for _, i := range order[:out.OutlierCount] {
		o := &l.list[i]
		if o.Number != 1 {
			out.lateCount++
			out.lateNs += o.WallNs - median
		}
		if len(out.Outliers) < maxOutliers {
			out.Outliers = append(out.Outliers, l.outlier(o, &out.P50, late, n))
		}
	}
	return out
}

// outlier names what differs most from the median step. It also names the kernel that differs most from its mean over
// all steps but the n longest outliers, which have the kernels late.
func (l *stepList) outlier(o *Step, median *StepValues, late nameTimes, n int) Outlier {
	out := Outlier{Step: *o, ExcessNs: o.WallNs - median.WallNs}
	usual := stepParts(&median.Parts)
	parts := stepParts(&o.Parts)
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if excess := parts[name] - usual[name]; excess > out.PartExcessNs {
			out.Part, out.PartExcessNs = name, excess
		}
	}
	if out.Part == "compute" || out.Part == "communication" {
		for _, x := range o.kernels {
			usual := (l.totals.of(x.name) - late.of(x.name)) / int64(max(len(l.list)-n, 1))
			if excess := x.ns - usual; excess > out.KernelExcessNs {
				out.Kernel, out.KernelExcessNs = x.name, excess
			}
		}
	}
	return out
}

// quantile returns the smallest value that at least p % of the sorted values do not exceed.
func quantile(sorted []int64, p int) int64 {
	return sorted[max((len(sorted)*p+99)/100-1, 0)]
}
