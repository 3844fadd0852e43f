// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"maps"
	"slices"
)

// Bounds of what is kept of steps.
const (
	maxSteps        = 100_000
	maxListedSteps  = 100
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
	// Longest are the longest steps, Outliers those that [IsOutlier] describes, by wall.
	Longest  []Step
	Outliers []Outlier
	// More says that the interval has more than 100,000 steps. The first ones count.
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

	kernels map[string]int64
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
	// Kernel is the kernel whose time exceeds its mean of all steps the most, if Part is compute or
	// communication.
	Kernel         string
	KernelExcessNs int64
}

// stepper divides the work of a device into steps.
type stepper struct {
	bounds []Scope // steps made by scopes, by start
	marker string  // or the kernel that begins a step
	next   int
	last   int64 // end of the last scope

	open    *Step
	base    mark
	active  [2]mark // begin of the first and end of the last step
	list    []Step
	more    bool
	totals  map[string]int64 // of kernels in all steps, by name
	longest []int            // steps that keep their kernels
}

func (s *stepper) begin(d *device, w *work) {
	begins, name := false, ""
	if s.marker != "" {
		begins = w.class != classCopy && w.ref.Name == s.marker
		name = s.marker
	} else if len(s.bounds) > 0 {
		at := w.start
		if w.launched {
			at = w.launchStart
		}
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
		if len(s.list) < maxSteps {
			s.open = &Step{Name: name, StartNs: w.start, First: w.ref, kernels: map[string]int64{}}
			s.base = d.mark(w.start)
			if len(s.list) == 0 {
				s.active[0] = s.base
				d.firstStep()
			}
		} else {
			s.more = true
		}
	}
	if o := s.open; o != nil {
		o.Operations++
		if w.queueNs.OK {
			o.QueueNs += w.queueNs.V
		}
		if w.class != classCopy {
			o.KernelNs += w.end - w.start
			name := w.ref.Name
			if _, ok := o.kernels[name]; !ok && len(o.kernels) >= maxKernelNames {
				name = otherName
			}
			o.kernels[name] += w.end - w.start
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
	s.active[1] = end
	o.Parts = end.sums.minus(&s.base.sums)
	o.Bound = o.Parts.bound()
	o.Number = int64(len(s.list)) + 1
	if s.totals == nil {
		s.totals = map[string]int64{}
	}
	for name, ns := range o.kernels {
		if _, ok := s.totals[name]; !ok && len(s.totals) >= maxKernelNames {
			name = otherName
		}
		s.totals[name] += ns
	}
	s.list = append(s.list, *o)
	// Only the longest steps keep their kernels.
	s.longest = append(s.longest, len(s.list)-1)
	if len(s.longest) > candidateSteps {
		slices.SortStableFunc(s.longest, func(a, b int) int { return cmp.Compare(s.list[b].WallNs, s.list[a].WallNs) })
		s.list[s.longest[candidateSteps]].kernels = nil
		s.longest = s.longest[:candidateSteps]
	}
}

// found says whether there are enough steps.
func (s *stepper) found() bool { return len(s.list) >= minSteps }

// stepParts are the parts that can explain an outlier.
func stepParts(p *Parts) map[string]int64 {
	m := map[string]int64{"compute": p.ComputeNs, "communication": p.CommunicationNs, "copy": p.CopyNs}
	for c, ns := range p.Idle {
		m[Cause(c).String()] = ns
	}
	return m
}

func (s *stepper) result(rule, name, device string) Steps {
	out := Steps{Rule: rule, Name: name, Device: device, Count: int64(len(s.list)), Longest: []Step{}, Outliers: []Outlier{}, More: s.more}
	if !s.found() {
		out.Rule, out.Name, out.Count = "none", "", 0
		return out
	}
	for i := range s.list {
		out.WallNs += s.list[i].WallNs
	}
	values := make([]int64, len(s.list))
	quantiles := func(get func(*StepValues) *int64) (p50 int64) {
		for i := range s.list {
			values[i] = *get(&s.list[i].StepValues)
		}
		slices.Sort(values)
		p50 = quantile(values, 50)
		*get(&out.P50), *get(&out.P95), *get(&out.Max) = p50, quantile(values, 95), values[len(values)-1]
		return p50
	}
	for _, get := range []func(*StepValues) *int64{
		func(v *StepValues) *int64 { return &v.ComputeNs },
		func(v *StepValues) *int64 { return &v.CommunicationNs },
		func(v *StepValues) *int64 { return &v.CopyNs },
		func(v *StepValues) *int64 { return &v.IdleNs },
		func(v *StepValues) *int64 { return &v.Operations },
		func(v *StepValues) *int64 { return &v.KernelNs },
		func(v *StepValues) *int64 { return &v.QueueNs },
	} {
		quantiles(get)
	}
	for c := range numCauses {
		quantiles(func(v *StepValues) *int64 { return &v.Idle[c] })
	}
	median := quantiles(func(v *StepValues) *int64 { return &v.WallNs })
	for i := range s.list {
		values[i] = max(s.list[i].WallNs-median, median-s.list[i].WallNs)
	}
	slices.Sort(values)
	limit := median + max(outlierDistance*quantile(values, 50), int64(outlierShare*float64(median)))

	order := make([]int, len(s.list))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(s.list[b].WallNs, s.list[a].WallNs) })
	out.Typical = &s.list[order[len(order)/2]]
	for _, i := range order[:min(len(order), maxListedSteps)] {
		out.Longest = append(out.Longest, s.list[i])
		if s.list[i].WallNs > limit && len(out.Outliers) < maxOutliers {
			out.Outliers = append(out.Outliers, s.outlier(&s.list[i], &out.P50))
		}
	}
	return out
}

// outlier names what differs most from the median step.
func (s *stepper) outlier(o *Step, median *StepValues) Outlier {
	out := Outlier{Step: *o, ExcessNs: o.WallNs - median.WallNs}
	usual := stepParts(&median.Parts)
	parts := stepParts(&o.Parts)
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if excess := parts[name] - usual[name]; excess > out.PartExcessNs {
			out.Part, out.PartExcessNs = name, excess
		}
	}
	if out.Part == "compute" || out.Part == "communication" {
		for _, name := range slices.Sorted(maps.Keys(o.kernels)) {
			others := int64(max(len(s.list)-1, 1))
			if excess := o.kernels[name] - (s.totals[name]-o.kernels[name])/others; excess > out.KernelExcessNs {
				out.Kernel, out.KernelExcessNs = name, excess
			}
		}
	}
	return out
}

// quantile returns the smallest value that at least p % of the sorted values do not exceed.
func quantile(sorted []int64, p int) int64 {
	return sorted[max((len(sorted)*p+99)/100-1, 0)]
}
