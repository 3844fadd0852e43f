// SPDX-License-Identifier: Apache-2.0

package window

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/cubin"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recorder"
)

const (
	// otherName is the function of rows that are summed.
	otherName = "_other"
	// maxDisassembled is how many functions of one window are disassembled, those with the most rows
	// first; maxListed how many of a session are listed, and listingBytes the most text of one window.
	maxDisassembled = 64
	maxListed       = 4096
	listingBytes    = 4 << 20
)

// row is one figure of a window.
type row struct {
	result *cupti.DeepResult
	*cupti.DeepRow
}

func (r *row) function() string { return name(r.result.Functions, r.Function) }
func (r *row) what() string     { return name(r.result.Names, r.What) }

func name(names []string, i uint32) string {
	if int(i) < len(names) {
		return names[i]
	}
	return otherName
}

// otherKey is what rows that are summed are told apart by.
type otherKey struct {
	engine cupti.Engine
	device int32
	what   string
}

// table are the rows of a window, of which the largest have a record of their own.
type table struct {
	most int
	rows []row
	// ends are the times of the records, by result.
	other  map[otherKey]uint64
	ends   map[cupti.Engine]int64
	summed uint64
}

func newTable(most int) *table {
	return &table{most: most, other: map[otherKey]uint64{}, ends: map[cupti.Engine]int64{}}
}

func (t *table) add(r *cupti.DeepResult) {
	t.ends[r.Engine] = r.End.UnixNano()
	for i := range r.Rows {
		t.rows = append(t.rows, row{r, &r.Rows[i]})
	}
}

// choose sorts the largest to the front and sums the rest. Each engine has the same share of the rows: samples
// and counts cannot be compared.
func (t *table) choose() {
	total := map[cupti.Engine]uint64{}
	for i := range t.rows {
		total[t.rows[i].result.Engine] += t.rows[i].Value
	}
	share := func(r *row) float64 {
		return float64(r.Value) / float64(max(1, total[r.result.Engine]))
	}
	slices.SortStableFunc(t.rows, func(a, b row) int { return cmp.Compare(share(&b), share(&a)) })
	if len(t.rows) <= t.most {
		return
	}
	for i := range t.rows[t.most:] {
		r := &t.rows[t.most+i]
		key := otherKey{r.result.Engine, r.Device, r.what()}
		t.other[key] = saturated(t.other[key], r.Value)
		t.summed++
	}
	t.rows = t.rows[:t.most]
}

func saturated(a, b uint64) uint64 {
	if s := a + b; s >= a {
		return s
	}
	return math.MaxUint64
}

// listingKey is a function of an image.
type listingKey struct {
	crc      uint64
	function string
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

// write makes records of the rows.
func (t *table) write(out *recorder.Window, resolver *cubin.Resolver) {
	for i := range t.rows {
		r := &t.rows[i]
		at, reason := resolver.Resolve(r.CRC, r.function(), r.PC)
		if reason != cubin.Resolved {
			out.Unresolved++
		}
		line, correlation := gpuevent.Int{}, gpuevent.Int{}
		if at.Line > 0 {
			line = gpuevent.Some(int64(at.Line))
		}
		if r.Correlation != 0 {
			correlation = gpuevent.Some(int64(r.Correlation))
		}
		pc := gpuevent.Some(int64(min(r.PC, math.MaxInt64))) //nolint:gosec // Bounded.
		if r.function() == otherName {
			// Rows of functions for whose names there was no room: the offset says nothing.
			pc = gpuevent.Int{}
		}
		t.record(out, r.result.Engine, r.Device, r.what(), r.Value, at.Function, pc, at.File, line, correlation)
	}
	other := gpuevent.NewKernelName(otherName)
	keys := make([]otherKey, 0, len(t.other))
	for key := range t.other {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b otherKey) int {
		return cmp.Or(cmp.Compare(a.engine, b.engine), cmp.Compare(a.device, b.device), cmp.Compare(a.what, b.what))
	})
	for _, key := range keys {
		t.record(out, key.engine, key.device, key.what, t.other[key], other, gpuevent.Int{}, "", gpuevent.Int{}, gpuevent.Int{})
	}
	out.Other = t.summed
}

func (t *table) record(out *recorder.Window, engine cupti.Engine, device int32, what string, value uint64, function *gpuevent.KernelName, pc gpuevent.Int, file string, line, correlation gpuevent.Int) {
	on := gpuevent.Int{}
	if device >= 0 {
		on = gpuevent.Some(int64(device))
	}
	if engine == cupti.EngineSASS {
		out.Counters = append(out.Counters, gpuevent.SASSMetric{
			TimeNs: t.ends[engine], Function: function, PCOffset: pc, Metric: what, Value: value,
			File: file, Line: line, Device: on, Correlation: correlation,
		})
		return
	}
	out.Samples = append(out.Samples, gpuevent.PCSample{
		TimeNs: t.ends[engine], Function: function, PCOffset: pc, Reason: what, Count: int64(min(value, math.MaxInt64)), //nolint:gosec // Bounded.
		File: file, Line: line, Device: on, Correlation: correlation,
	})
}

// disassemble has nvdisasm print the functions, image by image.
func (w *worker) disassemble(ctx context.Context, functions []listingKey) {
	if !w.text {
		return
	}
	var images []uint64
	byImage := map[uint64][]string{}
	for _, f := range functions[:min(len(functions), maxDisassembled)] {
		if byImage[f.crc] == nil {
			images = append(images, f.crc)
		}
		byImage[f.crc] = append(byImage[f.crc], f.function)
	}
	for _, crc := range images {
		if ctx.Err() != nil {
			return
		}
		if err := w.resolver.Disassemble(ctx, crc, byImage[crc]); err != nil {
			w.log.Info("gpufl: instructions have no text", "error", err)
		}
	}
}

// listings adds the text of functions that have not been listed yet in this session. What finds no room in
// this window comes with a later one.
func (w *worker) listings(out *recorder.Window, functions []listingKey) {
	size := 0
	for _, f := range functions {
		if _, listed := w.listed[f]; listed || len(w.listed) >= maxListed {
			continue
		}
		l, ok := w.resolver.Listing(f.crc, f.function)
		if !ok {
			continue
		}
		if size += len(l.Text); size > listingBytes {
			return
		}
		w.listed[f] = struct{}{}
		out.Listings = append(out.Listings, recorder.WindowListing{Record: l.Record(gpuevent.Ref{}, 0), Text: l.Text})
	}
}
