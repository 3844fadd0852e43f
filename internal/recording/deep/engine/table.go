// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/cubin"
	"github.com/gpuflight/gpuflight/internal/recording/deepprofile"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
)

const (
	// otherName is the function of rows that are summed without theirs.
	otherName = "_other"
	// sumsShare is the part of a window's rows, 1 of so many, that may be sums of functions: of
	// their rows that have no record of their own.
	sumsShare = 4
)

// row is one figure of a window.
type row struct {
	result *cupti.DeepResult
	*cupti.DeepRow
	weight float64 // what it counts when rows are chosen
}

func (r *row) function() string { return name(r.result.Functions, r.Function) }
func (r *row) what() string     { return name(r.result.Names, r.What) }

func name(names []string, i uint32) string {
	if int(i) < len(names) {
		return names[i]
	}
	return otherName
}

// otherKey is what rows that are summed are distinguished by.
type otherKey struct {
	engine   cupti.Engine
	device   int32
	what     string
	function listingKey // otherName of image 0 where functions are not distinguished
}

func (r *row) sumKey() otherKey {
	return otherKey{r.result.Engine, r.Device, r.what(), listingKey{r.CRC, r.function()}}
}

// table are the rows of a window, of which the largest have a record of their own.
type table struct {
	most int
	rows []row
	// last is each engine's last result, whose end is the time of its records.
	other  map[otherKey]uint64
	last   map[cupti.Engine]*cupti.DeepResult
	summed uint64
	// profiles says that the rows are wanted as a profile too; parts are its parts then, one a
	// result.
	profiles bool
	parts    map[*cupti.DeepResult]*deepprofile.Part
}

func newTable(most int, profiles bool) *table {
	return &table{
		most: most, other: map[otherKey]uint64{}, last: map[cupti.Engine]*cupti.DeepResult{},
		profiles: profiles, parts: map[*cupti.DeepResult]*deepprofile.Part{},
	}
}

func (t *table) add(r *cupti.DeepResult) {
	t.last[r.Engine] = r
	for i := range r.Rows {
		t.rows = append(t.rows, row{result: r, DeepRow: &r.Rows[i]})
	}
}

// instruction is what has a row for each metric.
type instruction struct {
	device      int32
	correlation uint32
	placeKey
}

// weigh gives rows their weights, which are shares: samples and counts cannot be compared. That of
// samples is the share of all samples. The metrics of an instruction are used together (threads per
// warp, sectors per request). So all rows of an instruction have one weight: the largest of their
// shares of a metric's sum. The function returns the share of a sum.
func (t *table) weigh() (share func(cupti.Engine, string, uint64) float64) {
	type sumKey struct {
		engine cupti.Engine
		metric string
	}
	of := func(engine cupti.Engine, what string) sumKey {
		if engine == cupti.EngineSASS {
			return sumKey{engine, what}
		}
		return sumKey{engine: engine}
	}
	total := map[sumKey]float64{}
	for i := range t.rows {
		r := &t.rows[i]
		total[of(r.result.Engine, r.what())] += float64(r.Value)
	}
	share = func(engine cupti.Engine, what string, value uint64) float64 {
		return float64(value) / max(1, total[of(engine, what)])
	}
	largest := map[instruction]float64{}
	for i := range t.rows {
		r := &t.rows[i]
		r.weight = share(r.result.Engine, r.what(), r.Value)
		if r.result.Engine == cupti.EngineSASS {
			largest[r.instruction()] = max(largest[r.instruction()], r.weight)
		}
	}
	for i := range t.rows {
		if r := &t.rows[i]; r.result.Engine == cupti.EngineSASS {
			r.weight = largest[r.instruction()]
		}
	}
	return share
}

func (r *row) instruction() instruction {
	return instruction{r.Device, r.Correlation, placeKey{listingKey{r.CRC, r.function()}, r.PC}}
}

// choose sorts the largest to the front and sums the rest by function, so that what is said of
// functions is whole. Where those are too many, the smallest sums are added up in otherName. Each
// engine has the same share of the rows.
func (t *table) choose() {
	share := t.weigh()
	// Stable, so that the rows of an instruction stay together.
	slices.SortStableFunc(t.rows, func(a, b row) int { return cmp.Compare(b.weight, a.weight) })
	if len(t.rows) <= t.most {
		return
	}
	// The sums take no more room than they need.
	room := t.most / sumsShare
	keys := map[otherKey]struct{}{}
	for i := t.most - room; i < len(t.rows) && len(keys) < room; i++ {
		keys[t.rows[i].sumKey()] = struct{}{}
	}
	kept := t.most - len(keys)
	for kept > 0 && t.rows[kept].result.Engine == cupti.EngineSASS && t.rows[kept-1].instruction() == t.rows[kept].instruction() {
		kept--
	}
	rest := t.rows[kept:]
	t.rows = t.rows[:kept:kept]
	for _, g := range groups(rest, share) {
		if fits := len(g.sums) <= room; fits {
			room -= len(g.sums)
			if g.single {
				// It takes the same room with its place.
				for _, i := range g.rows {
					t.rows = append(t.rows, rest[i])
				}
				continue
			}
		} else {
			g.key.function = listingKey{function: otherName}
		}
		t.summed += uint64(len(g.rows))
		for what, value := range g.sums {
			key := g.key
			key.what = what
			t.other[key] = saturated(t.other[key], value)
		}
	}
}

// group is what is summed together: the rows of a function with one stall reason, or with all
// metrics, of which none says much without the others.
type group struct {
	key    otherKey // without what for metrics
	weight float64
	sums   map[string]uint64
	rows   []int
	single bool // all are of one instruction
}

// groups are those of some rows, the largest first.
func groups(rows []row, share func(cupti.Engine, string, uint64) float64) []*group {
	found := map[otherKey]*group{}
	var all []*group
	for i := range rows {
		r := &rows[i]
		key := r.sumKey()
		if key.engine == cupti.EngineSASS {
			key.what = ""
		}
		g := found[key]
		if g == nil {
			g = &group{key: key, sums: map[string]uint64{}, single: true}
			found[key] = g
			all = append(all, g)
		}
		g.sums[r.what()] = saturated(g.sums[r.what()], r.Value)
		g.rows = append(g.rows, i)
		g.single = g.single && rows[g.rows[0]].instruction() == r.instruction()
	}
	for _, g := range all {
		for what, value := range g.sums {
			g.weight = max(g.weight, share(g.key.engine, what, value))
		}
	}
	slices.SortFunc(all, func(a, b *group) int { return cmp.Or(cmp.Compare(b.weight, a.weight), a.key.compare(b.key)) })
	return all
}

func (k otherKey) compare(other otherKey) int {
	return cmp.Or(cmp.Compare(k.engine, other.engine), cmp.Compare(k.device, other.device), cmp.Compare(k.function.crc, other.function.crc),
		cmp.Compare(k.function.function, other.function.function), cmp.Compare(k.what, other.what))
}

func saturated(a, b uint64) uint64 {
	if s := a + b; s >= a {
		return s
	}
	return math.MaxUint64
}

// functions returns the functions of the rows that are sent, those with the largest first.
func (t *table) functions() []listingKey {
	seen := map[listingKey]bool{}
	var list []listingKey
	for i := range t.rows {
		r := &t.rows[i]
		key := listingKey{r.CRC, r.function()}
		if !seen[key] && key.function != otherName {
			seen[key] = true
			list = append(list, key)
		}
	}
	return list
}

// write makes records of the rows at their places, and their profile if it is wanted.
func (t *table) write(out *recorder.Window, found []place) {
	if t.profiles {
		out.Profile = &deepprofile.Window{}
	}
	for i := range t.rows {
		r := &t.rows[i]
		at := &found[i].at
		if !found[i].resolved {
			out.Unresolved++
		}
		line, correlation := gpuevent.Int{}, gpuevent.Int{}
		if at.Line > 0 {
			line = gpuevent.Some(int64(at.Line))
		}
		if r.Correlation != 0 {
			correlation = gpuevent.Some(int64(r.Correlation))
		}
		pc := gpuevent.Some(int64(min(r.PC, math.MaxInt64)))
		if r.function() == otherName {
			// Rows of functions for whose names there was no room: the offset says nothing.
			pc = gpuevent.Int{}
		}
		t.record(out, r.result.Engine, r.Device, r.what(), r.Value, at.Function, pc, at.File, line, correlation)
		t.figure(out, r.result, deepprofile.Figure{
			What: r.what(), Value: r.Value, At: *at, PC: pc, CRC: r.CRC, Device: ordinal(r.Device), Correlation: correlation,
		})
	}
	keys := make([]otherKey, 0, len(t.other))
	for key := range t.other {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, otherKey.compare)
	names := map[string]*gpuevent.KernelName{}
	for _, key := range keys {
		function := names[key.function.function]
		if function == nil {
			function = gpuevent.NewKernelName(key.function.function)
			names[key.function.function] = function
		}
		t.record(out, key.engine, key.device, key.what, t.other[key], function, gpuevent.Int{}, "", gpuevent.Int{}, gpuevent.Int{})
		t.figure(out, t.last[key.engine], deepprofile.Figure{
			What: key.what, Value: t.other[key], At: cubin.Location{Function: function}, CRC: key.function.crc, Device: ordinal(key.device),
		})
	}
	out.Other = t.summed
}

// figure adds a figure to the window's profile, if that is wanted.
func (t *table) figure(out *recorder.Window, r *cupti.DeepResult, f deepprofile.Figure) {
	if out.Profile == nil {
		return
	}
	part := t.parts[r]
	if part == nil {
		part = &deepprofile.Part{Engine: r.Engine, Start: r.Start, End: r.End, PeriodLog2: r.PeriodLog2}
		t.parts[r] = part
		out.Profile.Parts = append(out.Profile.Parts, part)
	}
	part.Figures = append(part.Figures, f)
}

// ordinal is a device's number, unknown if it is below 0.
func ordinal(device int32) gpuevent.Int {
	if device < 0 {
		return gpuevent.Int{}
	}
	return gpuevent.Some(int64(device))
}

func (t *table) record(out *recorder.Window, engine cupti.Engine, device int32, what string, value uint64, function *gpuevent.KernelName, pc gpuevent.Int, file string, line, correlation gpuevent.Int) {
	on := ordinal(device)
	if engine == cupti.EngineSASS {
		out.Counters = append(out.Counters, gpuevent.SASSMetric{
			TimeNs: t.last[engine].End.UnixNano(), Function: function, PCOffset: pc, Metric: what, Value: value,
			File: file, Line: line, Device: on, Correlation: correlation,
		})
		return
	}
	out.Samples = append(out.Samples, gpuevent.PCSample{
		TimeNs: t.last[engine].End.UnixNano(), Function: function, PCOffset: pc, Reason: what, Count: int64(min(value, math.MaxInt64)),
		File: file, Line: line, Device: on, Correlation: correlation,
	})
}
