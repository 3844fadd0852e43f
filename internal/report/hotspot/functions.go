// SPDX-License-Identifier: Apache-2.0

package hotspot

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// WarpLanes is the number of lanes of a warp on all NVIDIA GPUs so far.
const WarpLanes = 32

// Totals are the sums over all functions.
type Totals struct {
	// Samples includes the samples of functions above the limit.
	Samples uint64 `json:"samples"`
	// Functions and Places are the numbers of separate entries.
	Functions int     `json:"functions"`
	Places    int     `json:"places"`
	LeftOut   LeftOut `json:"left_out"`
}

// Function has the measurements of one function.
type Function struct {
	// Name is the readable name. "" means unknown, and [Other] means all functions above the
	// limit.
	Name string `json:"name"`
	// Samples is the number of samples. Share is their part of the samples of all functions, 0–1.
	Samples uint64  `json:"samples"`
	Share   float64 `json:"share"`
	// Reasons are the states of the sampled warps, by number of samples. They add up to Samples.
	Reasons []Reason `json:"reasons,omitempty"`
	// Counts has all instructions of the function, but only the requests whose place is known.
	Counts
	// Metrics are the sums of all counters, by name, including those without a formula.
	Metrics []Metric `json:"metrics,omitempty"`
	// Lines are the source lines with the most samples. Divergent are those with the most idle
	// lanes. Uncoalesced are those with the most wasted sectors. Both omit lines without a fault.
	//
	// Without a known source line, an instruction is a line of its own. In Divergent, consecutive
	// instructions with equal counts and lanes are one line, since all instructions of a branch
	// have them.
	Lines       []Line `json:"lines,omitempty"`
	Divergent   []Line `json:"divergent,omitempty"`
	Uncoalesced []Line `json:"uncoalesced,omitempty"`
	// MoreLines, MoreDivergent and MoreUncoalesced are the numbers of omitted lines.
	MoreLines       int `json:"more_lines,omitempty"`
	MoreDivergent   int `json:"more_divergent,omitempty"`
	MoreUncoalesced int `json:"more_uncoalesced,omitempty"`
}

// Line has the measurements of one source line of a function, or of one instruction.
type Line struct {
	// File and Line are the source line; Line is 0 if it is not known.
	File string `json:"file,omitempty"`
	Line int64  `json:"line,omitempty"`
	// Samples is the number of samples. Share is their part of the function's, 0–1.
	Samples uint64  `json:"samples"`
	Share   float64 `json:"share"`
	// Reasons are as those of the function.
	Reasons []Reason `json:"reasons,omitempty"`
	Counts
	// PC is the offset in bytes of the line's worst instruction, by the criterion of the list. It
	// is nil if it is unknown. SASS is the text of that instruction, or "". Instructions is the
	// number of measured instructions of the line.
	PC           *int64 `json:"pc,omitempty"`
	SASS         string `json:"sass,omitempty"`
	Instructions int    `json:"instructions"`
}

// Reason has the samples of one stall reason.
type Reason struct {
	// Name is CUPTI's, without prefix and suffix.
	Name string `json:"name"`
	// Samples is the number of samples. Share is their part of the function's or line's, 0–1.
	Samples uint64  `json:"samples"`
	Share   float64 `json:"share"`
	// NotIssued is the number of samples in whose cycle the scheduler issued nothing: no other
	// warp hid the wait.
	NotIssued uint64 `json:"not_issued"`
}

// Metric is the sum of one counter.
type Metric struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// Counts are sums of counters. A pair has only instructions for which both counters exist: a
// missing count is unknown, not 0.
type Counts struct {
	// Executed warp instructions and thread instructions.
	Executed        uint64 `json:"warp_instructions,omitempty"`
	ExecutedThreads uint64 `json:"thread_instructions,omitempty"`
	// On is the number of threads whose predicate was true, in OnOf warp instructions.
	On   uint64 `json:"thread_instructions_on,omitempty"`
	OnOf uint64 `json:"warp_instructions_with_on,omitempty"`
	// Accessed sectors of global memory, 32 bytes each, and the minimum for the same bytes.
	Sectors      uint64 `json:"sectors,omitempty"`
	SectorsIdeal uint64 `json:"sectors_ideal,omitempty"`
	// Requests is the number of executions of instructions with counted sectors, RequestSectors
	// the sum of their sectors. IdealRequests and RequestIdeal are the same for instructions with
	// a counted ideal.
	Requests       uint64 `json:"requests,omitempty"`
	RequestSectors uint64 `json:"request_sectors,omitempty"`
	IdealRequests  uint64 `json:"ideal_requests,omitempty"`
	RequestIdeal   uint64 `json:"request_ideal,omitempty"`
}

func ratio(a, b uint64) (float64, bool) {
	if b == 0 {
		return 0, false
	}
	return float64(a) / float64(b), true
}

// Lanes is the mean number of active lanes of a warp, 0–32: thread instructions / warp instructions.
//
// Nsight Compute calls it Avg. Active Threads Per Warp, smsp__thread_inst_executed_per_inst_executed, and
// per instruction smsp__sass_thread_inst_executed / smsp__sass_inst_executed. A lane whose predicate is
// false is active. False if it was not counted, or cannot be: see [Counts.Contradictory].
func (c *Counts) Lanes() (float64, bool) {
	if c.Contradictory() {
		return 0, false
	}
	return ratio(c.ExecutedThreads, c.Executed)
}

// Contradictory reports whether there are more thread instructions than lanes. Some rows of the
// recording are then missing, and quotients would mislead.
func (c *Counts) Contradictory() bool {
	above := func(threads, warps uint64) bool {
		high, room := bits.Mul64(WarpLanes, warps)
		return high == 0 && threads > room
	}
	return above(c.ExecutedThreads, c.Executed) || above(c.On, c.OnOf)
}

// LanesOn is the mean number of lanes that took part, 0–32: as [Counts.Lanes], without those whose
// predicate was false. Nsight Compute calls it Avg. Not Predicated Off Threads Per Warp,
// smsp__sass_thread_inst_executed_pred_on / smsp__sass_inst_executed. Where not all instructions were counted it is of those that access
// global memory: smsp__sass_thread_inst_executed_op_global_pred_on / smsp__sass_inst_executed_op_global.
func (c *Counts) LanesOn() (float64, bool) {
	if c.Contradictory() {
		return 0, false
	}
	return ratio(c.On, c.OnOf)
}

// KnownLanes returns [Counts.Lanes], or [Counts.LanesOn] if only accesses to global memory were
// counted, and the number of warp instructions it covers.
func (c *Counts) KnownLanes() (lanes float64, of uint64, ok bool) {
	if c.Executed > 0 {
		lanes, ok = c.Lanes()
		return lanes, c.Executed, ok
	}
	lanes, ok = c.LanesOn()
	return lanes, c.OnOf, ok
}

// IdleLanes returns the number of unused lanes: 32 × warp instructions − thread instructions. If
// these were not counted, it returns the lanes with a false predicate, see [Counts.LanesOn].
func (c *Counts) IdleLanes() uint64 {
	warps, threads := c.Executed, c.ExecutedThreads
	if warps == 0 {
		warps, threads = c.OnOf, c.On
	}
	high, room := bits.Mul64(WarpLanes, warps)
	if high != 0 {
		room = math.MaxUint64
	}
	return room - min(room, threads)
}

// SectorsPerRequest returns the mean number of sectors, 32 bytes each, of a warp's access to global
// memory. The formula is smsp__sass_sectors_mem_global / smsp__sass_inst_executed, over the
// instructions that access it. smsp__sass_inst_executed_op_global has the same value for those. 32
// lanes that read adjacent 4-byte words need 4 sectors. Lanes far apart need 32.
func (c *Counts) SectorsPerRequest() (float64, bool) { return ratio(c.RequestSectors, c.Requests) }

// IdealPerRequest returns the minimum number of sectors for the same bytes:
// smsp__sass_sectors_mem_global_ideal / smsp__sass_inst_executed.
func (c *Counts) IdealPerRequest() (float64, bool) { return ratio(c.RequestIdeal, c.IdealRequests) }

// TimesIdeal returns the ratio of sectors to the ideal; 1 is the optimum. Nsight Compute shows it
// as L2 Theoretical Sectors Global (memory_l2_theoretical_sectors_global) over its ideal.
func (c *Counts) TimesIdeal() (float64, bool) { return ratio(c.Sectors, c.SectorsIdeal) }

// Excess returns the sectors above the ideal, L2 Theoretical Sectors Global Excessive of Nsight
// Compute.
func (c *Counts) Excess() uint64 { return c.Sectors - min(c.Sectors, c.SectorsIdeal) }

// Options limit the result of [Table.Functions].
type Options struct {
	// Functions bounds the functions, Lines the lines of each kind per function. 0 means no limit.
	Functions, Lines int
}

// Totals returns the sums.
func (t *Table) Totals() Totals {
	left := t.left
	all := Totals{Functions: len(t.functions.all), Places: len(t.places)}
	for _, f := range t.byName {
		all.Samples = saturating(all.Samples, samplesOf(f.reasons))
	}
	all.LeftOut = left
	return all
}

// Functions returns the functions by samples, then by executed instructions, then by name. [Other]
// is the last. More is the number of omitted functions.
func (t *Table) Functions(o Options) (first []Function, more int) {
	all := t.Totals().Samples
	places := make([][]placed, len(t.byName))
	for key, p := range t.places {
		places[key.function] = append(places[key.function], placed{key, p})
	}
	type ranked struct {
		number            int
		samples, executed uint64
	}
	ranks := make([]ranked, 0, len(t.byName))
	for i, f := range t.byName {
		r := ranked{number: i, samples: samplesOf(f.reasons)}
		for _, name := range []string{"inst_executed", "inst_executed_op_global"} {
			if n, ok := t.metrics.numbers[metricPrefix+name]; ok && r.executed == 0 {
				r.executed = f.metrics[n]
			}
		}
		ranks = append(ranks, r)
	}
	name := func(r ranked) string { return t.functions.all[r.number] }
	slices.SortFunc(ranks, func(a, b ranked) int {
		return cmp.Or(last(name(a) == Other, name(b) == Other), cmp.Compare(b.samples, a.samples),
			cmp.Compare(b.executed, a.executed), cmp.Compare(name(a), name(b)))
	})
	if o.Functions > 0 && len(ranks) > o.Functions {
		more = len(ranks) - o.Functions
		ranks = ranks[:o.Functions]
	}
	for _, r := range ranks {
		first = append(first, t.function(r.number, places[r.number], all, o.Lines))
	}
	return first, more
}

// last orders what is last behind what is not.
func last(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// placed is a place with its key.
type placed struct {
	key placeKey
	*place
}

func (t *Table) function(number int, places []placed, all uint64, lines int) Function {
	f := t.byName[number]
	out := Function{Name: t.functions.all[number], Samples: samplesOf(f.reasons)}
	out.Share, _ = ratio(out.Samples, all)
	out.Reasons = t.reasonsOf(f.reasons)
	for n, value := range f.metrics {
		out.Metrics = append(out.Metrics, Metric{t.metrics.all[n], value})
	}
	slices.SortFunc(out.Metrics, func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })

	// In the order of the source, so that equals stay in that order.
	slices.SortFunc(places, func(a, b placed) int { return t.compare(a.key, b.key) })
	for i := range places {
		out.addInstruction(&places[i].counters)
	}
	if out.Name != Other { // of different functions with one metric each there is no quotient
		out.addRest(&f.rest)
	}
	grouped := groups(places, sameLine)
	out.Lines, out.MoreLines = t.worst(&out, grouped, lines, func(g *group) uint64 { return g.samples },
		func(p *placed) uint64 { return samplesOf(p.reasons) })
	out.Divergent, out.MoreDivergent = t.worst(&out, groups(places, sameBranch), lines, func(g *group) uint64 { return g.counts.IdleLanes() },
		func(p *placed) uint64 { return p.counts().IdleLanes() })
	out.Uncoalesced, out.MoreUncoalesced = t.worst(&out, grouped, lines, func(g *group) uint64 { return g.counts.Excess() },
		func(p *placed) uint64 { return p.counts().Excess() })
	return out
}

// compare orders places by file, line and offset, those whose line is not known last.
func (t *Table) compare(a, b placeKey) int {
	file := func(k placeKey) string {
		if k.line == 0 {
			return ""
		}
		return t.files.all[k.file]
	}
	return cmp.Or(last(a.line == 0, b.line == 0), cmp.Compare(file(a), file(b)), cmp.Compare(a.line, b.line),
		last(!a.hasPC, !b.hasPC), cmp.Compare(a.pc, b.pc))
}

// group has the places of one line.
type group struct {
	key     placeKey
	places  []placed
	samples uint64
	counts  Counts
}

// groups joins adjacent places that same considers equal.
func groups(places []placed, same func(a, b *placed) bool) []group {
	var all []group
	for i := range places {
		p := &places[i]
		if i == 0 || !same(&places[i-1], p) {
			all = append(all, group{key: p.key})
		}
		g := &all[len(all)-1]
		g.places = append(g.places, *p)
		g.samples = saturating(g.samples, samplesOf(p.reasons))
		g.counts.addInstruction(&p.counters)
	}
	return all
}

// sameLine reports whether two places have the same source line.
func sameLine(a, b *placed) bool {
	return a.key.line > 0 && a.key.line == b.key.line && a.key.file == b.key.file
}

// sameBranch reports whether two places have the same source line. If no line is known, it reports
// whether b follows a and has equal counts of warps and threads.
func sameBranch(a, b *placed) bool {
	if a.key.line > 0 || b.key.line > 0 {
		return sameLine(a, b)
	}
	const both = 1<<instructions | 1<<threadInstructions
	return b.key.pc == a.key.pc+instructionBytes && a.counters.has&b.counters.has&both == both &&
		a.counters.value[instructions] == b.counters.value[instructions] &&
		a.counters.value[threadInstructions] == b.counters.value[threadInstructions]
}

// worst returns the lines with the largest values, and the number of omitted lines with a positive
// value. Equal lines stay in the order of the source.
func (t *Table) worst(f *Function, groups []group, lines int, of func(*group) uint64, ofPlace func(*placed) uint64) ([]Line, int) {
	var some []*group
	for i := range groups {
		if of(&groups[i]) > 0 {
			some = append(some, &groups[i])
		}
	}
	slices.SortStableFunc(some, func(a, b *group) int { return cmp.Compare(of(b), of(a)) })
	more := 0
	if lines > 0 && len(some) > lines {
		more = len(some) - lines
		some = some[:lines]
	}
	var out []Line
	for _, g := range some {
		l := Line{Line: g.key.line, Samples: g.samples, Counts: g.counts}
		if g.key.line > 0 {
			l.File = t.files.all[g.key.file]
		}
		l.Share, _ = ratio(g.samples, f.Samples)
		var sums []waits
		worst, most := -1, uint64(0)
		for i := range g.places {
			p := &g.places[i]
			for _, w := range p.reasons {
				sum := reasonIn(&sums, w.reason)
				sum.all, sum.notIssued = saturating(sum.all, w.all), saturating(sum.notIssued, w.notIssued)
			}
			if !p.key.hasPC {
				continue
			}
			l.Instructions++
			if n := ofPlace(p); worst < 0 || n > most {
				worst, most = i, n
			}
		}
		l.Reasons = t.reasonsOf(sums)
		if worst >= 0 {
			pc := g.places[worst].key.pc
			l.PC, l.SASS = &pc, t.sass(f.Name, pc)
		}
		out = append(out, l)
	}
	return out, more
}

func (p *placed) counts() *Counts {
	var c Counts
	c.addInstruction(&p.counters)
	return &c
}

// addRest adds the counts of instructions above the limit. Their requests are unknown.
func (c *Counts) addRest(p *counters) {
	var rest Counts
	rest.addInstruction(p)
	c.Executed = saturating(c.Executed, rest.Executed)
	c.ExecutedThreads = saturating(c.ExecutedThreads, rest.ExecutedThreads)
	c.On, c.OnOf = saturating(c.On, rest.On), saturating(c.OnOf, rest.OnOf)
	c.Sectors, c.SectorsIdeal = saturating(c.Sectors, rest.Sectors), saturating(c.SectorsIdeal, rest.SectorsIdeal)
}

// addInstruction adds the counts of one instruction, in pairs.
func (c *Counts) addInstruction(p *counters) {
	get := func(of ...int) (uint64, bool) {
		for _, i := range of {
			if p.has&(1<<i) != 0 {
				return p.value[i], true
			}
		}
		return 0, false
	}
	executed, hasExecuted := get(instructions)
	if threads, ok := get(threadInstructions); ok && hasExecuted {
		c.Executed = saturating(c.Executed, executed)
		c.ExecutedThreads = saturating(c.ExecutedThreads, threads)
	}
	on, hasOn := get(threadInstructionsOn)
	if !hasExecuted { // but perhaps those that access global memory
		executed, hasExecuted = get(globalInstructions)
		on, hasOn = get(globalThreadsOn)
	}
	if hasOn && hasExecuted {
		c.OnOf = saturating(c.OnOf, executed)
		c.On = saturating(c.On, on)
	}
	moved, hasMoved := get(sectors, sectorsOfOps)
	enough, hasEnough := get(sectorsIdeal, sectorsIdealOfOps)
	if hasMoved && hasEnough {
		c.Sectors = saturating(c.Sectors, moved)
		c.SectorsIdeal = saturating(c.SectorsIdeal, enough)
	}
	// An instruction without sectors made no request: all its lanes were off.
	if hasExecuted && moved > 0 {
		c.Requests = saturating(c.Requests, executed)
		c.RequestSectors = saturating(c.RequestSectors, moved)
		if hasEnough {
			c.IdealRequests = saturating(c.IdealRequests, executed)
			c.RequestIdeal = saturating(c.RequestIdeal, enough)
		}
	}
}

// samples returns the samples of a reason. A source may report only the subset, so the result is at
// least that.
func (w *waits) samples() uint64 { return max(w.all, w.notIssued) }

func samplesOf(all []waits) uint64 {
	sum := uint64(0)
	for i := range all {
		sum = saturating(sum, all[i].samples())
	}
	return sum
}

// reasonsOf returns the reasons by samples, then name. The rest is the last.
func (t *Table) reasonsOf(all []waits) []Reason {
	sum := samplesOf(all)
	var out []Reason
	for i := range all {
		r := Reason{Name: t.reasons.all[all[i].reason], Samples: all[i].samples(), NotIssued: all[i].notIssued}
		r.Share, _ = ratio(r.Samples, sum)
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Reason) int {
		return cmp.Or(last(a.Name == Other, b.Name == Other), cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func saturating(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
