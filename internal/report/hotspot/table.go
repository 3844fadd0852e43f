// SPDX-License-Identifier: Apache-2.0

package hotspot

import (
	"math"
	"slices"
	"strings"
)

// Place is where in the code something was measured. What is unknown is left zero.
type Place struct {
	// Function is the name of the kernel or device function, as people read it; "" if unknown.
	Function string
	// PC is the offset of the instruction in its function, in bytes, if HasPC.
	PC    int64
	HasPC bool
	// File and Line are the source line, counted from 1; Line is 0 if unknown.
	File string
	Line int64
}

// Limits bound a [Table]. A zero field stands for its default.
type Limits struct {
	// Functions that are told apart, 10,000 by default. The rest is one function, [Other].
	Functions int
	// Places that are told apart, over all functions, 500,000 by default: some 200 bytes each. Every
	// further reason at a place counts as one. What is measured at others is in its function's totals only.
	Places int
	// Names of files, reasons and counters each, 10,000 by default.
	Names int
	// ListingBytes are kept of the texts of instructions, 64 MiB by default.
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

// Other is the name of the function, file or reason that stands for all that are not told apart.
const Other = "_other"

// LeftOut counts what is in the totals only, or nowhere, since a limit was reached.
type LeftOut struct {
	// Functions are samples and counters of functions that are not told apart.
	Functions uint64 `json:"functions,omitempty"`
	// Places are samples and counters that are in the totals of their function only. Names are samples
	// under [Other] instead of their reason's name, places under [Other] instead of their file's, and
	// counters that are in no sum of their function.
	Places uint64 `json:"places,omitempty"`
	Names  uint64 `json:"names,omitempty"`
	// Instructions are lines of listings for which there was no room, or that could not be read.
	Instructions uint64 `json:"instructions,omitempty"`
	// Saturated are sums that would not fit 64 bits: they stay at the largest number.
	Saturated uint64 `json:"saturated,omitempty"`
}

// Table adds up samples and counters, in any order and of any number of windows. Its methods are for one
// goroutine. Use [New].
type Table struct {
	limits    Limits
	functions names
	files     names
	reasons   names
	metrics   names
	byName    []*function // by number in functions
	places    map[placeKey]*place
	room      int // that is left of limits.Places
	sums      int // of counters in functions
	left      LeftOut
	listings  listings
}

// New returns an empty table.
func New(l Limits) *Table {
	l = l.orDefaults()
	return &Table{limits: l, room: l.Places, places: map[placeKey]*place{}}
}

// takeRoom returns false if there is no room for one more of what limits.Places bounds.
func (t *Table) takeRoom() bool {
	if t.room == 0 {
		return false
	}
	t.room--
	return true
}

// maxReasonNames bounds the stall reasons that are told apart: CUPTI has some twenty, and they are searched one by one.
const maxReasonNames = 256

// maxSums bounds the sums of counters over all functions: ten of each of them by default.
const maxSums = 100_000

// names numbers strings, from 0.
type names struct {
	numbers map[string]int
	all     []string
}

// number returns that of a name, false if there is no room for another.
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
	name = strings.Clone(name) // the caller's may be part of something large
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

// waits are the samples of one reason.
type waits struct {
	reason         int
	all, notIssued uint64
}

// function has what was measured in it, with and without a place.
type function struct {
	reasons []waits
	metrics map[int]uint64
	// rest are the counters of its instructions that are not told apart.
	rest counters
}

// The counters from which something is computed, see counterOf.
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

// counters are those of one instruction; a bit of has is set where there is a value.
type counters struct {
	value [numCounters]uint64
	has   uint16
}

// metricPrefix begins the names of all counters of CUPTI's SASS metrics.
const metricPrefix = "smsp__sass_"

// counterOf finds a counter by CUPTI's name, as libcupti 13.0 spells them. Chips that have no counter of
// all accesses to global memory have one of each kind of access; an instruction is of one kind, so that
// the sum is the same. -1 is none from which something is computed.
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

// Sample adds samples with one stall reason, in CUPTI's words with or without the prefix that all have. A
// reason with the suffix _not_issued counts again some of the samples of the reason without it.
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

// reasonIn returns the samples of a reason, which is added if need be.
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

// Counter adds what an instruction counted, by CUPTI's name of the counter.
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

// find returns the function, and the place in it, nil if it is not told apart.
func (t *Table) find(at Place) (*function, *place) {
	number, ok := t.functions.number(at.Function, t.limits.Functions)
	if !ok {
		t.left.Functions++
		number = t.functions.put(Other)
		at = Place{} // places of functions that are not told apart say nothing
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

// add adds, and stays at the largest number where the sum has no room.
func (t *Table) add(to *uint64, n uint64) {
	if *to > math.MaxUint64-n {
		t.left.Saturated++
		*to = math.MaxUint64
		return
	}
	*to += n
}
