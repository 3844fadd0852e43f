// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
)

const (
	// smallFill is the grid fill below which a kernel is too small for the device.
	smallFill = 0.5
	// minGain is the share of the active time that a finding must be able to save at most.
	minGain = 0.05
	// minStepGain is the same for slow steps, of the wall of all steps.
	minStepGain = 0.01
	// minActiveNs is the shortest active time for which there is advice.
	minActiveNs = 1_000_000
	// maxEvidence bounds the examples of a finding.
	maxEvidence = 5
)

// Finding is an advice. Kind is stable; it is a cause, or "pageable_copy", "exposed_copy",
// "communication", "small_kernels", "slow_steps", "cuda_graph", "fusion", "no_launch_times", "missing_work".
type Finding struct {
	Kind   string
	Device string
	// Text is what was found and what to do.
	Text string
	// GainNs is the most that the change can save. FloorNs is Of minus GainNs: the active time of the
	// device can not become shorter than that by this change alone. Formula is how GainNs was computed.
	GainNs  int64
	OfNs    int64
	FloorNs int64
	Share   float64
	Formula string
	// Evidence are operations that end such a gap, or that the finding is about, the longest first.
	Evidence []Ref
}

// advice is what to do about a cause.
var advice = [numCauses]struct{ found, change string }{
	Sync:       {"the host waited for the device and launched the next work only then", "Remove the wait, or wait for results of an earlier step: .item(), .cpu(), print of a tensor and torch.cuda.synchronize() wait."},
	Allocator:  {"the host allocated or released device memory", "Keep memory between steps: call empty_cache() less often, allocate once, use a caching or stream-ordered allocator."},
	CopyCall:   {"the host was in calls that copy from its memory", "Copy from pinned memory without blocking, in another stream: pin_memory=True and non_blocking=True."},
	SlowLaunch: {"single launch calls took over 1 ms, as when a module is loaded", "Warm up before the measured part, or set CUDA_MODULE_LOADING=EAGER."},
	Launch:     {"the host launched kernels slower than the device ran them", "Launch fewer and larger kernels: CUDA graphs, torch.compile, fused operators, larger batches."},
	Host:       {"the host ran other code before it launched the next work", "Move that code to other threads or processes, or prepare the next step during this one."},
	Queued:     {"work had been launched but waited for other work or an event", "Check dependencies between streams and devices."},
	Latency:    {"each start of a kernel cost a few µs", "Launch fewer and larger kernels, or use CUDA graphs."},
}

const seeRanks = "see the view Ranks, or gpuflight ranks."

// hostCollective is a scope around a call that returns after the collective. Names are those of PyTorch.
var hostCollective = regexp.MustCompile(`^(?:gloo|mpi|ucc):(\w+)$`)

// HostCollective returns the operation of a scope of a collective on the host, such as all_reduce of
// gloo:all_reduce. It is "" for other scopes. Scopes of NCCL end when the kernel has been launched, and are none.
func HostCollective(scope string) string {
	if m := hostCollective.FindStringSubmatch(scope); m != nil {
		return m[1]
	}
	return ""
}

// findings returns the advice of all devices, the largest gain first.
func findings(r *Result) []Finding {
	list := []Finding{}
	for i := range r.Devices {
		list = append(list, deviceFindings(&r.Devices[i])...)
	}
	list = append(list, stepFindings(&r.Steps)...)
	byGain := func(a, b Finding) int { return cmp.Compare(b.Share, a.Share) }
	slices.SortStableFunc(list, byGain)
	// Candidates are ways to remove causes, so they follow these.
	candidates := graphFinding(&r.Steps)
	for i := range r.Devices {
		candidates = append(candidates, fusionFinding(&r.Devices[i])...)
	}
	slices.SortStableFunc(candidates, byGain)
	list = append(list, candidates...)
	if r.LaunchesUnknown > 0 {
		for i := range r.Devices {
			d := &r.Devices[i]
			if ns := d.Active.Idle[Unknown]; d.Active.WallNs > 0 && float64(ns) >= minGain*float64(d.Active.WallNs) {
				list = append(list, Finding{
					Kind: "no_launch_times", Device: d.ID, OfNs: d.Active.WallNs, FloorNs: d.Active.WallNs, Evidence: []Ref{}, Formula: "0",
					Text: fmt.Sprintf("The causes of %s of idle time%s are unknown, because launch times are not recorded. Record with --kinds causes.",
						Duration(ns), inScope(d, ns)+atLine(d, ns)),
				})
			}
		}
	}
	return list
}

func deviceFindings(d *Device) []Finding {
	var list []Finding
	active := d.Active.WallNs
	add := func(kind, formula, found, change string, gain int64, evidence []Ref) {
		if active < minActiveNs || float64(gain) < minGain*float64(active) {
			return
		}
		share := float64(gain) / float64(active)
		list = append(list, Finding{
			Kind: kind, Device: d.ID, GainNs: gain, OfNs: active, FloorNs: active - gain, Share: share, Formula: formula, Evidence: evidence,
			Text: fmt.Sprintf("For %s (%.0f %% of the active time), %s. %s", Duration(gain), 100*share, found, change),
		})
	}
	for c := range numCauses {
		if advice[c].found == "" {
			continue
		}
		found, change := advice[c].found, advice[c].change
		switch {
		case c == Host:
			found += inScope(d, d.Active.Idle[c]) + atLine(d, d.Active.Idle[c])
			if len(d.HostScopes) > 0 && HostCollective(d.HostScopes[0].Name) != "" && 2*d.HostScopes[0].Ns >= d.Active.Idle[c] {
				change = "The host was in collectives, which can include waits for ranks that come late: " + seeRanks + " Overlap the rest with compute."
			}
		case c == Sync && len(d.SyncCalls) > 0 && d.SyncCalls[0].Name != "":
			found += fmt.Sprintf(" (%s of it after %s)", Duration(d.SyncCalls[0].Ns), d.SyncCalls[0].Name)
		}
		add(c.String(), "idle time by this cause", found, change, d.Active.Idle[c], d.evidence(c))
	}
	pageable := d.PageableCopyNs
	add("pageable_copy", "time with copies of pageable memory and no kernels",
		"the device only copied from or to pageable memory of the host", "Use pinned memory, copy in another stream and during kernels.", pageable, refs(d.copies))
	add("exposed_copy", "time with copies or sets and no kernels, except of pageable memory",
		"the device only copied", "Copy in another stream during kernels of the step before.", d.Active.CopyNs-pageable, refs(d.copies))
	add("communication", "time with communication and no other kernels",
		"the device only communicated",
		"This can include waits for ranks that come late: "+seeRanks+" Overlap the rest with compute: smaller buckets, another stream, less data.", d.Active.CommunicationNs, refs(d.comms))
	small, lost := &d.smallSums, d.smallSums.lostNs
	var evidence []Ref
	for i := range d.Small[:min(len(d.Small), maxEvidence)] {
		evidence = append(evidence, d.Small[i].Longest)
	}
	if d.KernelNs > 0 { // kernels may overlap
		gain := min(lost, int64(float64(d.Active.ComputeNs)*float64(lost)/float64(d.KernelNs)))
		add("small_kernels", "sum of duration × (1 − grid fill) over kernels with a grid fill below 50 %, scaled to the compute time",
			fmt.Sprintf("kernels had too few blocks to fill half of the device (calls: %d, together %s)", small.count, Duration(small.ns)),
			"Use larger batches, fuse them, or run independent ones in several streams.", gain, evidence)
	}
	return list
}

// graphFinding returns the advice to replace the launches of steps by a CUDA graph.
func graphFinding(s *Steps) []Finding {
	x := &s.repeated
	if s.WallNs < minActiveNs || x.operations < 2 || float64(x.idleNs) < minGain*float64(s.WallNs) {
		return nil
	}
	text := fmt.Sprintf("%d of %d steps after the first have the same %d operations. For %s, the device waited for their launches. Capture them in a CUDA graph, which is one launch.",
		x.steps, x.of, x.operations, Duration(x.idleNs))
	if x.blockedNs > 0 {
		text += " A graph cannot contain the waits, allocations and pageable copies of these steps: capture what is between them."
	}
	return []Finding{{
		Kind: "cuda_graph", Device: s.Device, Text: text, GainNs: x.idleNs, OfNs: s.WallNs, FloorNs: s.WallNs - x.idleNs, Share: float64(x.idleNs) / float64(s.WallNs),
		Formula: "sum of idle time by launch, latency and slow launch − one launch, over the equal steps", Evidence: x.refs,
	}}
}

// fusedPairs is the number of pairs that an advice names.
const fusedPairs = 3

// fusionFinding returns the advice to fuse kernels.
func fusionFinding(d *Device) []Finding {
	list := d.pairs[:min(len(d.pairs), fusedPairs)]
	f := Finding{Kind: "fusion", Device: d.ID, OfNs: d.Active.WallNs, Formula: "sum of idle time by launch and latency between these kernels", Evidence: []Ref{}}
	var names []string
	for i := range list {
		p := &list[i]
		f.GainNs += p.idleNs
		f.Evidence = append(f.Evidence, p.ref)
		names = append(names, fmt.Sprintf("%s → %s (%d times, %s)", p.names[0], p.names[1], p.count, Duration(p.idleNs)))
	}
	if f.OfNs < minActiveNs || float64(f.GainNs) < minGain*float64(f.OfNs) {
		return nil
	}
	f.FloorNs, f.Share = f.OfNs-f.GainNs, float64(f.GainNs)/float64(f.OfNs)
	f.Text = fmt.Sprintf("For %s, the device waited between kernels that follow each other in a stream and are shorter than the time between two launches: %s. Fuse them.",
		Duration(f.GainNs), strings.Join(names, ", "))
	return []Finding{f}
}

// inScope says in which scope most of the host's code ran.
func inScope(d *Device, most int64) string {
	if len(d.HostScopes) == 0 || d.HostScopes[0].Name == "" {
		return ""
	}
	return fmt.Sprintf(" (%s of it in scope %q)", Duration(min(d.HostScopes[0].Ns, most)), d.HostScopes[0].Name)
}

// atLine says at which line most of the host's code ran.
func atLine(d *Device, most int64) string {
	if len(d.HostLines) == 0 {
		return ""
	}
	return fmt.Sprintf(" (%s of it in %s)", Duration(min(d.HostLines[0].Ns, most)), d.HostLines[0].Name)
}

// evidence returns the operations that end the gaps with the largest parts of a cause.
func (d *Device) evidence(c Cause) []Ref {
	gaps := slices.DeleteFunc(slices.Clone(d.Gaps), func(g Gap) bool { return g.StartNs < d.ActiveFromNs })
	slices.SortStableFunc(gaps, func(a, b Gap) int { return cmp.Compare(b.Idle[c], a.Idle[c]) })
	list := []Ref{}
	for i := range gaps {
		if g := &gaps[i]; g.Idle[c] > 0 && g.After != nil && len(list) < maxEvidence {
			list = append(list, *g.After)
		}
	}
	return list
}

func refs(r Ref) []Ref {
	if r == (Ref{}) {
		return []Ref{}
	}
	return []Ref{r}
}

// stepFindings returns the advice about slow steps.
func stepFindings(s *Steps) []Finding {
	gain, total := s.lateNs, s.WallNs
	if s.lateCount == 0 || total < minActiveNs || float64(gain) < minStepGain*float64(total) {
		return nil
	}
	list := []Ref{}
	for i := range s.Outliers {
		if s.Outliers[i].Number != 1 && len(list) < maxEvidence {
			list = append(list, s.Outliers[i].First)
		}
	}
	o := &s.Outliers[0]
	if o.Number == 1 {
		o = &s.Outliers[1]
	}
	kernel := ""
	if o.Kernel != "" {
		kernel = " (kernel " + o.Kernel + ")"
	}
	return []Finding{{
		Kind: "slow_steps", Device: s.Device, GainNs: gain, OfNs: total, FloorNs: total - gain, Evidence: list,
		Share: float64(gain) / float64(max(total, 1)), Formula: "sum of wall − median wall over the outliers except the first step",
		Text: fmt.Sprintf("Of %d steps after the first, %d took much longer than the median of %s. Number %d (%s) took %s: its %s is %s above the median%s.",
			s.Count-1, s.lateCount, Duration(s.P50.WallNs), o.Number, o.Name, Duration(o.WallNs), PartText(o.Part), Duration(o.PartExcessNs), kernel),
	}}
}

// Duration formats nanoseconds with three digits, from seconds on with two after the point.
func Duration[T int64 | float64](ns T) string {
	v := float64(ns)
	switch d := math.Abs(v); { // 999.5 rounds to 1000, which %.3g prints as 1e+03
	case d >= 999.5e6:
		return fmt.Sprintf("%.2f s", v/1e9)
	case d >= 999.5e3:
		return fmt.Sprintf("%.3g ms", v/1e6)
	case d >= 999.5:
		return fmt.Sprintf("%.3g µs", v/1e3)
	}
	return fmt.Sprintf("%.0f ns", v)
}
