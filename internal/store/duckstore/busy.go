// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
)

// Busy implements [store.Reader].
func (s *Store) Busy(ctx context.Context, q store.BusyQuery) ([]int64, error) {
	s.catchUp(ctx, q.Project, q.Session)
	return read(ctx, s, q.Project, q.Session, "read busy time", func(v *view) ([]int64, error) {
		bounds, err := answer.Bounds(&q)
		before := map[int64]int64{}
		if err == nil && len(bounds) > 0 {
			err = v.busyBefore(ctx, &q, bounds, before)
		}
		return answer.Busy(&q, before), err
	})
}

// busyState is what is known of a device before a time: its first kernel, the time without kernels since
// then, and the latest end.
type busyState struct{ first, idle, reach int64 }

// busyWalk answers for times while it gets the kernels in the order of their start. The state at the start of
// each bin of a time is known.
type busyWalk struct {
	times  []int64         // without an answer yet, ascending
	before map[int64]int64 // the answers
	tail   int64           // the first bin that gap_bins does not have
	starts map[int64]map[string]busyState
	ends   map[string]int64 // the latest end of each device; nil for busy time
	bin    int64
	states map[string]busyState // in bin, by device
}

func (w *busyWalk) binOf(t int64) int64 { return min(t>>gapLevel, w.tail) }

func (w *busyWalk) enter(bin int64) {
	if bin != w.bin {
		w.bin, w.states = bin, w.starts[bin]
	}
	if w.states == nil {
		w.states = map[string]busyState{}
	}
}

// pass answers for the times of earlier bins, and for those up to t in a bin.
func (w *busyWalk) pass(bin, t int64) {
	for ; len(w.times) > 0; w.times = w.times[1:] {
		at := w.times[0]
		n := w.binOf(at)
		if n > bin || n == bin && at > t {
			return
		}
		w.enter(n)
		for device, x := range w.states {
			if w.ends != nil {
				w.before[at] += x.idle + max(min(at, w.ends[device])-x.reach, 0)
			} else {
				w.before[at] += min(at, x.reach) - x.first - x.idle
			}
		}
	}
}

func (w *busyWalk) kernel(device string, start, ns int64) {
	bin := w.binOf(start)
	w.pass(bin, start)
	w.enter(bin)
	x, ok := w.states[device]
	if !ok {
		x = busyState{first: start, reach: start}
	}
	x.idle += max(start-x.reach, 0)
	x.reach = max(x.reach, start+ns)
	w.states[device] = x
}

// maxBusyBins is the number of bins of one query of busyBefore, which sorts their kernels. Few bins are a scan each,
// see rangesSQL.
const maxBusyBins = 512

// busyBefore finds how long a kernel ran on the devices before each of some times, which ascend, or how long
// their gaps are before these times. A device was busy from its first kernel to the latest end, except in the
// gaps between. The bins of gap_bins have these sums at their start. So it reads the kernels of the bins of
// the times, and those that gap_bins does not have yet, in the order of their start.
func (v *view) busyBefore(ctx context.Context, q *store.BusyQuery, times []int64, before map[int64]int64) error {
	conn, tx, end, err := v.s.beginTx(ctx)
	if err != nil {
		return err
	}
	defer end()
	rows := func(query string, scan func(*sql.Rows) error, args ...any) error {
		return eachRow(ctx, tx, v.tables(query), args, scan)
	}
	w := busyWalk{times: times, before: before, bin: -1}
	if err := rows("SELECT coalesce(max(bin), -1) + 1 FROM {gap_bins}", func(r *sql.Rows) error { return r.Scan(&w.tail) }); err != nil {
		return err
	}
	var bins []int64
	ends := map[int64]int64{} // the last time in each bin; no kernel after it is needed
	for _, t := range times {
		bins = append(bins, w.binOf(t))
		ends[w.binOf(t)] = t
	}
	bins = slices.Compact(bins)
	devices, err := v.busyDevices(rows, q.Device)
	if err != nil {
		return err
	}
	if w.starts, err = v.busyStarts(rows, q.Device, bins); err != nil {
		return err
	}
	if q.Idle {
		if w.ends, err = v.busyEnds(rows, w.tail); err != nil {
			return err
		}
	}
	// The state at the start of each bin is known, so the query reads a few bins at a time and sorts little.
	for part := range slices.Chunk(bins, maxBusyBins) {
		late, end := int64(math.MaxInt64), times[len(times)-1]
		if last := part[len(part)-1]; last == w.tail {
			late = w.tail << gapLevel
		} else {
			end = min(end, (last+1)<<gapLevel)
		}
		var ranges [][2]int64
		for _, b := range part {
			if b == w.tail {
				ranges = append(ranges, [2]int64{late, math.MaxInt64})
			} else {
				ranges = append(ranges, [2]int64{b << gapLevel, ends[b]})
			}
		}
		type kernel struct {
			lane      uint32
			start, ns int64
		}
		query := "SELECT lane, start_ns, greatest(dur_ns, 0) FROM " + v.rangesSQL(ranges) + " WHERE start_ns < $1 AND (start_ns >= $2 OR (start_ns >> $3) IN " +
			"(SELECT unnest($4::BIGINT[]))) AND shape IN (SELECT id FROM {shapes} WHERE operation = 1) ORDER BY start_ns"
		err = scanOn(ctx, v, conn, query, []any{end, late, gapLevel, part}, func(k *kernel, values []driver.Value) error {
			var ok1, ok2, ok3 bool
			k.lane, ok1 = values[0].(uint32)
			k.start, ok2 = values[1].(int64)
			if k.ns, ok3 = values[2].(int64); !ok1 || !ok2 || !ok3 {
				return fmt.Errorf("got %T, %T and %T", values[0], values[1], values[2])
			}
			return nil
		}, each(func(k *kernel) error {
			if device := devices[k.lane]; q.Device == "" || device == q.Device {
				w.kernel(device, k.start, k.ns)
			}
			return nil
		}))
		if err != nil {
			return err
		}
	}
	w.pass(math.MaxInt64, 0)
	return nil
}

type rowsFunc func(query string, scan func(*sql.Rows) error, args ...any) error

// busyDevices returns the devices of lanes.
func (v *view) busyDevices(rows rowsFunc, device string) (map[uint32]string, error) {
	out := map[uint32]string{}
	return out, rows("SELECT id, device FROM "+v.dict(lanes)+" WHERE ? IN ('', device)", func(r *sql.Rows) error {
		var id uint32
		var name string
		err := r.Scan(&id, &name)
		out[id] = name
		return err
	}, device)
}

// busyEnds returns the latest end of the kernels of each device. Tail is the first bin that gap_bins does not
// have.
func (v *view) busyEnds(rows rowsFunc, tail int64) (map[string]int64, error) {
	out := map[string]int64{}
	kernels := v.kernelsSQL(v.rangesSQL([][2]int64{{tail << gapLevel, math.MaxInt64}}))
	return out, rows("SELECT device, max(e) FROM (SELECT device, reach_ns AS e FROM {gap_bins} UNION ALL SELECT device, e FROM ("+kernels+")) GROUP BY 1", func(r *sql.Rows) error {
		var device string
		var end int64
		err := r.Scan(&device, &end)
		out[device] = end
		return err
	})
}

// nextSQL is SQL for the first of some ascending numbers that is larger than x, or the last one. It takes a third of
// the time of an ASOF JOIN.
func nextSQL(x string, numbers []int64) string {
	n := len(numbers)
	if n == 1 {
		return strconv.FormatInt(numbers[0], 10) + "::BIGINT"
	}
	return "CASE WHEN " + x + " < " + strconv.FormatInt(numbers[n/2-1], 10) + " THEN " + nextSQL(x, numbers[:n/2]) + " ELSE " + nextSQL(x, numbers[n/2:]) + " END"
}

// busyStarts returns the states of the devices at the starts of bins. Devices without a kernel before are
// absent.
func (v *view) busyStarts(rows rowsFunc, device string, bins []int64) (map[int64]map[string]busyState, error) {
	type key struct {
		device string
		bin    int64
	}
	first := map[string]int64{}
	var firstBins [][2]int64
	wanted := map[key]bool{}
	err := rows("SELECT device, min(bin) FROM {gap_bins} WHERE ? IN ('', device) GROUP BY 1", func(r *sql.Rows) error {
		var k key
		err := r.Scan(&k.device, &k.bin)
		wanted[k] = true
		firstBins = append(firstBins, [2]int64{k.bin << gapLevel, (k.bin + 1) << gapLevel})
		return err
	}, device)
	if err != nil || len(wanted) == 0 {
		return nil, err
	}
	err = rows("SELECT device, s >> ?, min(s) FROM ("+v.kernelsSQL(v.rangesSQL(firstBins))+") GROUP BY 1, 2", func(r *sql.Rows) error {
		var k key
		var s int64
		err := r.Scan(&k.device, &k.bin, &s)
		if wanted[k] {
			first[k.device] = s
		}
		return err
	}, gapLevel)
	if err != nil {
		return nil, err
	}
	// The database sums the bins between two wanted ones. The loop below accumulates these sums.
	sums := map[key]busyState{}
	from := int64(0)
	for part := range slices.Chunk(bins, maxBusyBins) {
		last := part[len(part)-1]
		err = rows("SELECT "+nextSQL("bin", part)+", device, "+lowBits("sum_ns")+", max(reach_ns) FROM {gap_bins} WHERE bin >= ? AND bin < ? AND ? IN ('', device) GROUP BY 1, 2", func(r *sql.Rows) error {
			var k key
			var x busyState
			err := r.Scan(&k.bin, &k.device, wrapped{&x.idle}, &x.reach)
			sums[k] = x
			return err
		}, from, last, device)
		if err != nil {
			return nil, err
		}
		from = last
	}
	out := map[int64]map[string]busyState{}
	all := map[string]busyState{}
	for _, bin := range bins {
		for k := range wanted {
			if x, ok := sums[key{k.device, bin}]; ok {
				before := all[k.device]
				all[k.device] = busyState{first[k.device], before.idle + x.idle, max(before.reach, x.reach)}
			}
		}
		out[bin] = maps.Clone(all)
	}
	return out, nil
}
