// SPDX-License-Identifier: Apache-2.0

package hotspot

import (
	"math"
	"slices"
	"strings"
)

// Place is a place in the code. Unknown fields are zero.
type Place struct {
	// Function is the readable name of the kernel or device function, or "" if unknown.
	Function string
	// PC is the offset of the instruction in its function, in bytes, if HasPC.
	PC    int64
	HasPC bool
	// File and Line are the source line, counted from 1; Line is 0 if unknown.
	File string
	Line int64
}

// Limits bound a [Table]. A zero field means its default.
type Limits struct {
	// Functions bounds the separate functions, 10,000 by default. The rest is one function,
	// [Other].
	Functions int
	// Places bounds the separate places over all functions, 500,000 by default, of about 200 bytes
	// each. Each further reason at a place counts as one. Measurements at other places are in
	// their function's totals only.
	Places int
	// Names of files, reasons and counters each, 10,000 by default.
	Names int
	// ListingBytes bounds the stored SASS text, 64 MiB by default.
	ListingBytes int
}

func (l Limits) orDefaults() Limits {
	for _, f := range []struct {
		field *int
		value int
	}{{&l.Functions, 10_000}, {&l.Places, 500_000}, {&l.Names, 10_000}, {&l.ListingBytes, 64 << 20}} {
		if *f.field <= 0 {
			*f.field = f.value
		}
	}
	return l
}

// Other is the name of the function, file or reason that contains all entries above a limit.
const Other = "_other"

// LeftOut counts measurements that exceeded a limit. They are in the totals only, or nowhere.
type LeftOut struct {
	// Functions counts samples and counters of functions above the limit.
	Functions uint64 `json:"functions,omitempty"`
	// Places counts samples and counters that are in the totals of their function only. Names
	// counts samples under [Other] instead of their reason, places under [Other] instead of their
	// file, and counters that are in no sum of their function.
	Places uint64 `json:"places,omitempty"`
	Names  uint64 `json:"names,omitempty"`
	// Instructions counts lines of listings that were invalid or exceeded the limit.
	Instructions uint64 `json:"instructions,omitempty"`
	// Saturated counts sums above 64 bits. They stay at the largest number.
	Saturated uint64 `json:"saturated,omitempty"`
}

// Table sums up samples and counters of any number of windows, in any order. It is not safe for
// concurrent use. Create it with [New].
type Table struct {
	limits    Limits
	functions names
	files     names
	reasons   names
	metrics   names
	byName    []*function // by number in functions
	places    map[placeKey]*place
	room      int // unused part of limits.Places
	sums      int // of counters in functions
	left      LeftOut
	listings  listings
}

// New returns an empty table.
func New(l Limits) *Table {
	l = l.orDefaults()
	return &Table{limits: l, room: l.Places, places: map[placeKey]*place{}}
}

// takeRoom returns false if limits.Places is reached, and counts one place otherwise.
func (t *Table) takeRoom() bool {
	if t.room == 0 {
		return false
	}
	t.room--
	return true
}

// maxReasonNames bounds the separate stall reasons. CUPTI has about twenty, and the search is
// linear.
const maxReasonNames = 256

// maxSums bounds the sums of counters over all functions: ten of each of them by default.
const maxSums = 100_000

// names assigns numbers to strings, from 0.
type names struct {
	numbers map[string]int
	all     []string
}

// number returns the number of a name. It returns false if the limit is reached.
func (n *names) number(name string, limit int) (int, bool) {
	if i, ok := n.numbers[name]; ok {
		return i, true
	}
	if len(n.all) >= limit {
		return 0, false
	}
	return n.put(name), true
}

func (n *names) put(name string) int {
	if i, ok := n.numbers[name]; ok {
		return i
	}
	if n.numbers == nil {
		n.numbers = map[string]int{}
	}
	name = strings.Clone(name) // the caller's string may be part of a large one
	i := len(n.all)
	n.numbers[name] = i
	n.all = append(n.all, name)
	return i
}

type placeKey struct {
	function, file int
	line, pc       int64
	hasPC          bool
}

type place struct {
	reasons  []waits
	counters counters
}

// waits has the samples of one reason.
type waits struct {
	reason         int
	all, notIssued uint64
}

// function has the measurements of a function, with and without a place.
type function struct {
	reasons []waits
	metrics map[int]uint64
	// rest has the counters of instructions above the limit.
	rest counters
}

// Only the counters with a formula, see counterOf.
const (
	instructions = iota
	threadInstructions
	threadInstructionsOn
	sectors
	sectorsIdeal
	sectorsOfOps
	sectorsIdealOfOps
	globalInstructions
	globalThreadsOn
	numCounters
)

// counters has the counters of one instruction. A bit of has is set for each known value.
type counters struct {
	value [numCounters]uint64
	has   uint16
}

// metricPrefix begins the names of all counters of CUPTI's SASS metrics.
const metricPrefix = "smsp__sass_"

// counterOf finds a counter by CUPTI's name, as libcupti 13.0 spells it. It returns -1 if no
// formula uses the counter. Chips without a counter of all accesses to global memory have one per
// kind of access. An instruction has one kind, so the sum is the same.
func counterOf(metric string) int {
	name, ok := strings.CutPrefix(metric, metricPrefix)
	if !ok {
		return -1
	}
	switch name {
	case "inst_executed":
		return instructions
	case "thread_inst_executed":
		return threadInstructions
	case "thread_inst_executed_pred_on":
		return threadInstructionsOn
	case "inst_executed_op_global":
		return globalInstructions
	case "thread_inst_executed_op_global_pred_on":
		return globalThreadsOn
	case "sectors_mem_global":
		return sectors
	case "sectors_mem_global_ideal":
		return sectorsIdeal
	case "sectors_mem_global_op_ld_ideal", "sectors_mem_global_op_st_ideal":
		return sectorsIdealOfOps
	case "l1tex_t_sectors_pipe_lsu_mem_global_op_ld", "l1tex_t_sectors_pipe_lsu_mem_global_op_st",
		"l1tex_t_sectors_pipe_lsu_mem_global_op_atom", "l1tex_t_sectors_pipe_lsu_mem_global_op_red":
		return sectorsOfOps
	}
	return -1
}

// Sample adds samples with one stall reason. The reason is CUPTI's name with or without the common
// prefix. A reason with the suffix _not_issued repeats some samples of the reason without it.
func (t *Table) Sample(at Place, reason string, count uint64) {
	if count == 0 {
		return
	}
	reason = strings.TrimPrefix(reason, reasonPrefix)
	name, notIssued := strings.CutSuffix(reason, notIssuedSuffix)
	number, ok := t.reasons.number(name, min(t.limits.Names, maxReasonNames))
	if !ok {
		t.left.Names++
		number = t.reasons.put(Other)
	}
	f, p := t.find(at)
	t.wait(reasonIn(&f.reasons, number), notIssued, count)
	if p == nil {
		return
	}
	if len(p.reasons) > 0 && !slices.ContainsFunc(p.reasons, func(w waits) bool { return w.reason == number }) && !t.takeRoom() {
		t.left.Places++
		return
	}
	t.wait(reasonIn(&p.reasons, number), notIssued, count)
}

// reasonIn returns the samples of a reason. It adds the reason if necessary.
func reasonIn(all *[]waits, reason int) *waits {
	for i := range *all {
		if (*all)[i].reason == reason {
			return &(*all)[i]
		}
	}
	*all = append(*all, waits{reason: reason})
	return &(*all)[len(*all)-1]
}

func (t *Table) wait(w *waits, notIssued bool, count uint64) {
	if notIssued {
		t.add(&w.notIssued, count)
	} else {
		t.add(&w.all, count)
	}
}

// Counter adds a counter of an instruction, by CUPTI's name of the counter.
func (t *Table) Counter(at Place, metric string, value uint64) {
	f, p := t.find(at)
	number, ok := t.metrics.number(metric, t.limits.Names)
	sum := uint64(0)
	if ok {
		if sum, ok = f.metrics[number]; !ok && t.sums < maxSums {
			t.sums++
			ok = true
		}
	}
	if ok {
		if f.metrics == nil {
			f.metrics = map[int]uint64{}
		}
		t.add(&sum, value)
		f.metrics[number] = sum
	} else {
		t.left.Names++
	}
	c := counterOf(metric)
	if c < 0 {
		return
	}
	into := &f.rest
	if p != nil {
		into = &p.counters
	}
	t.add(&into.value[c], value)
	into.has |= 1 << c
}

// find returns the function and the place in it. The place is nil if it exceeds the limit.
func (t *Table) find(at Place) (*function, *place) {
	number, ok := t.functions.number(at.Function, t.limits.Functions)
	if !ok {
		t.left.Functions++
		number = t.functions.put(Other)
		at = Place{} // places of [Other] have no meaning
	}
	for len(t.byName) < len(t.functions.all) {
		t.byName = append(t.byName, &function{})
	}
	f := t.byName[number]
	if at.Line <= 0 && !at.HasPC {
		return f, nil
	}
	key := placeKey{function: number, file: -1}
	if at.Line > 0 {
		key.line = at.Line
		if key.file, ok = t.files.number(at.File, t.limits.Names); !ok {
			t.left.Names++
			key.file = t.files.put(Other)
		}
	}
	if at.HasPC {
		key.pc, key.hasPC = at.PC, true
	}
	p, ok := t.places[key]
	if !ok {
		if !t.takeRoom() {
			t.left.Places++
			return f, nil
		}
		p = &place{}
		t.places[key] = p
	}
	return f, p
}

// add adds and saturates.
func (t *Table) add(to *uint64, n uint64) {
	if *to > math.MaxUint64-n {
		t.left.Saturated++
		*to = math.MaxUint64
		return
	}
	*to += n
}
