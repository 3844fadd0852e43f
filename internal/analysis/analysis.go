// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// Options are what to analyse. The zero value is the whole session without a deadline.
type Options struct {
	// From and To bound the interval in Unix nanoseconds. 0 means the begin or the end of the session.
	From, To int64
	// Deadline ends the analysis early: the result is then of the operations read until then.
	Deadline time.Time
}

// maxShapes bounds the shapes whose properties are kept between operations.
const maxShapes = 100_000

var errDeadline = errors.New("deadline")

// Run analyses a session. It returns errors of the source and those of ctx. A session without
// operations gives a result without devices.
func Run(ctx context.Context, src Source, o Options) (*Result, error) {
	_, result, err := analyse(ctx, src, o, nil)
	return result, err
}

// analyse analyses a session, with a profiler if it is not nil. The analysis is nil if the interval is empty.
func analyse(ctx context.Context, src Source, o Options, profile *profiler) (*analysis, *Result, error) {
	first, last, err := src.Extent(ctx)
	if err != nil {
		return nil, nil, err
	}
	a := &analysis{from: max(first, o.From), to: last, devices: map[string]*device{}, contexts: map[int64]*device{}, shapes: map[uint32]*shapeInfo{}}
	a.startup = a.from == first
	if o.To > 0 {
		a.to = min(a.to, o.To)
	}
	if a.to <= a.from {
		return nil, &Result{FromNs: a.from, ToNs: a.from, Complete: true, Devices: []Device{}, Steps: (&stepper{}).result("none", "", ""), Findings: []Finding{}}, nil
	}
	if a.scopes, _, err = src.Scopes(ctx, a.from, a.to, maxScopes); err != nil {
		return nil, nil, err
	}
	if profile != nil {
		a.profile, profile.paths = profile, newScopePaths(a.scopes)
	}
	rule := "scopes"
	var name string
	a.steps, name = stepScopes(a.scopes)
	if len(a.steps) == 0 {
		rule = "kernels"
		half := o.Deadline
		if !half.IsZero() {
			half = time.Now().Add(time.Until(half) / 2) // the rest is for the second pass
		}
		if a.markers, err = a.findMarkers(ctx, src, half); err != nil {
			return nil, nil, err
		}
	}
	n := 0
	reached := a.to
	err = src.Ops(ctx, a.from, a.to, func(row *store.OpRow) error {
		if n++; n%4096 == 0 && expired(o.Deadline) {
			reached = max(row.StartNs, a.from)
			return errDeadline
		}
		a.visit(row)
		return nil
	})
	if err != nil && !errors.Is(err, errDeadline) {
		return nil, nil, err
	}
	result := a.finish(reached)
	result.Complete = err == nil
	a.addSteps(result, rule, name)
	result.Findings = findings(result)
	return a, result, nil
}

func expired(deadline time.Time) bool { return !deadline.IsZero() && time.Now().After(deadline) }

// analysis is one run.
type analysis struct {
	from, to int64
	startup  bool
	scopes   []Scope
	steps    []Scope
	markers  map[string]string // by device
	profile  *profiler         // nil without one

	devices  map[string]*device
	order    []*device
	contexts map[int64]*device // CUPTI's ids of contexts are unique in a process
	shapes   map[uint32]*shapeInfo
	small    smallKernels

	operations, known, unknown int64
}

func onDevice(op store.Operation) bool {
	return op == store.OpKernel || op == store.OpCopy || op == store.OpSet || op == store.OpGraph
}

func (a *analysis) infoOf(row *store.OpRow) *shapeInfo {
	info := a.shapes[row.Shape]
	if info == nil {
		i := infoOf(row.ShapeRef)
		info = &i
		if len(a.shapes) < maxShapes {
			a.shapes[row.Shape] = info
		}
	}
	return info
}

// findMarkers reads the session once, until the deadline, to find the kernels that begin steps.
func (a *analysis) findMarkers(ctx context.Context, src Source, deadline time.Time) (map[string]string, error) {
	patterns := map[string]*pattern{}
	n := 0
	err := src.Ops(ctx, a.from, a.to, func(row *store.OpRow) error {
		if n++; n%4096 == 0 && expired(deadline) {
			return errDeadline
		}
		if row.ShapeRef.Operation != store.OpKernel {
			return nil
		}
		p := patterns[row.LaneRef.Device]
		if p == nil {
			p = &pattern{}
			patterns[row.LaneRef.Device] = p
		}
		info := a.infoOf(row)
		p.kernel(info.name, info.hash)
		return nil
	})
	if err != nil && !errors.Is(err, errDeadline) {
		return nil, err
	}
	markers := map[string]string{}
	for id, p := range patterns {
		markers[id] = p.best()
	}
	return markers, nil
}

func (a *analysis) visit(row *store.OpRow) {
	a.operations++
	start := max(row.StartNs, a.from)
	end := min(max(row.StartNs, row.EndNs), a.to)
	op := row.ShapeRef.Operation
	if !onDevice(op) {
		a.host(row, op)
		return
	}
	d := a.device(row)
	if row.LaneRef.Context.OK && a.contexts[row.LaneRef.Context.V] == nil {
		a.contexts[row.LaneRef.Context.V] = d
	}
	info := a.infoOf(row)
	w := work{
		start: start, end: max(start, end), class: info.class, fromHost: info.fromHost, toHost: info.toHost, pageable: info.pageable,
		ref: Ref{row.Span, row.StartNs, info.name}, stack: row.StackText, queueNs: row.QueueNs,
	}
	if launchKnown(row) {
		w.launched = true
		w.launchStart, w.launchEnd = row.LaunchStartNs.V, max(row.LaunchStartNs.V, row.LaunchEndNs.V)
		a.known++
	} else {
		a.unknown++
	}
	if row.StartNs < a.from { // it only occupies the device
		w.launched, w.queueNs = false, store.Int{}
	}
	d.add(&w)
	if a.profile != nil && row.StartNs >= a.from {
		a.profile.add(d, row, &w)
	}
	if op == store.OpKernel {
		if row.QueueNs.OK && row.StartNs >= a.from {
			d.queue.add(row.QueueNs.V)
		}
		a.small.add(d, row, &w)
	}
}

// launchKnown says whether the launch times are known and possible.
func launchKnown(row *store.OpRow) bool {
	possible := func(t store.Int) bool { return t.OK && t.V >= 0 && t.V <= store.MaxTimeNs }
	return possible(row.LaunchStartNs) && possible(row.LaunchEndNs)
}

// host adds a call of the host to the device of its context, or to all devices if this is unknown.
func (a *analysis) host(row *store.OpRow, op store.Operation) {
	c := call{start: row.StartNs, end: max(row.StartNs, row.EndNs), cause: Sync, name: row.ShapeRef.Name}
	if op != store.OpSync {
		c.cause = Allocator
		if !launchKnown(row) {
			return // only its moment is known
		}
		c.start, c.end = row.LaunchStartNs.V, row.LaunchEndNs.V
	} else if c.name == streamWait {
		return // a wait of a stream, not of the host
	}
	d := a.contexts[row.LaneRef.Context.V]
	if !row.LaneRef.Context.OK || d == nil {
		d = a.devices[row.LaneRef.Device]
	}
	if d != nil {
		d.addCall(c)
		return
	}
	for _, d := range a.order {
		d.addCall(c)
	}
}

// streamWait is the name of waits of streams.
const streamWait = "cudaStreamWaitEvent"

func (a *analysis) device(row *store.OpRow) *device {
	l := row.LaneRef
	d := a.devices[l.Device]
	if d == nil {
		model := cmp.Or(text(row.ShapeRef.Attrs, semconv.HWName), text(row.OriginRef.Resource, semconv.HWName))
		d = &device{id: l.Device, model: model, index: l.DeviceIndex, from: a.from, now: a.from, startup: a.startup}
		d.scopes.list = a.scopes
		if len(a.steps) > 0 {
			d.steps.bounds, d.steps.last = a.steps, a.steps[len(a.steps)-1].EndNs
		}
		d.steps.marker = a.markers[l.Device]
		a.devices[l.Device] = d
		a.order = append(a.order, d)
	}
	return d
}

func (a *analysis) finish(to int64) *Result {
	r := &Result{FromNs: a.from, ToNs: to, Operations: a.operations, LaunchesKnown: a.known, LaunchesUnknown: a.unknown, Devices: []Device{}}
	for _, d := range a.order {
		out := d.finish(to)
		out.small = a.small.of(d)
		r.Devices = append(r.Devices, out)
	}
	slices.SortStableFunc(r.Devices, func(x, y Device) int {
		return cmp.Or(cmp.Compare(x.Index, y.Index), cmp.Compare(x.ID, y.ID))
	})
	return r
}

// busiest returns the device with the most kernel time, nil without devices.
func (a *analysis) busiest() (most *device) {
	for _, d := range a.order {
		if most == nil || d.kernelNs > most.kernelNs {
			most = d
		}
	}
	return most
}

// addSteps adds the steps of the device with the most kernel time.
func (a *analysis) addSteps(r *Result, rule, name string) {
	most := a.busiest()
	if most == nil {
		most = &device{}
	}
	if rule == "kernels" {
		name = most.steps.marker
	}
	r.Steps = most.steps.result(rule, name, most.id)
}

// smallKernels sums kernels whose grid does not fill the device.
type smallKernels struct{ all map[smallKey]*smallKernel }

type smallKey struct {
	device *device
	shape  uint32
}

type smallKernel struct {
	name  string
	fill  float64 // 0 to 1
	count int64
	ns    int64
	ref   Ref // the longest
	refNs int64
}

// gridFill returns the share of the resident blocks of a device that the grid can fill, the last wave
// included: cuda.occupancy.grid_fill. Without this attribute it is the share of the multiprocessors
// that have a block, if there are fewer blocks than multiprocessors. Ok is false if neither is known.
func gridFill(s *store.Shape, resource store.Attrs) (fill float64, ok bool) {
	if v := attr(s.Attrs, semconv.CUDAOccupancyGridFill); v.Kind == store.KindDouble {
		return v.Double, v.Double >= 0 && v.Double <= 1
	}
	sms := attr(s.Attrs, semconv.CUDADeviceSMCount)
	if sms.Kind != store.KindInt {
		sms = attr(resource, semconv.CUDADeviceSMCount)
	}
	if sms.Kind != store.KindInt || sms.Int <= 0 || len(s.Grid) == 0 {
		return 0, false
	}
	blocks := int64(1)
	for _, n := range s.Grid {
		if n <= 0 || n > 1<<31 || blocks > 1<<31 {
			return 0, false
		}
		blocks *= n
	}
	return min(float64(blocks)/float64(sms.Int), 1), true
}

func (k *smallKernels) add(d *device, row *store.OpRow, w *work) {
	key := smallKey{d, row.Shape}
	x, ok := k.all[key]
	if !ok {
		if k.all == nil {
			k.all = map[smallKey]*smallKernel{}
		}
		if len(k.all) >= maxShapes {
			return
		}
		if fill, known := gridFill(row.ShapeRef, row.OriginRef.Resource); known && fill < smallFill {
			x = &smallKernel{name: w.ref.Name, fill: fill}
		}
		k.all[key] = x // nil for those that are large enough
	}
	if x == nil {
		return
	}
	x.count++
	x.ns += w.end - w.start
	if ns := w.end - w.start; ns > x.refNs {
		x.ref, x.refNs = w.ref, ns
	}
}

// of returns the small kernels of a device, the longest sum first.
func (k *smallKernels) of(d *device) []smallKernel {
	var list []smallKernel
	for key, x := range k.all {
		if key.device == d && x != nil {
			list = append(list, *x)
		}
	}
	slices.SortFunc(list, func(a, b smallKernel) int {
		return cmp.Or(cmp.Compare(b.ns, a.ns), cmp.Compare(a.ref.StartNs, b.ref.StartNs), cmp.Compare(a.ref.Span, b.ref.Span))
	})
	return list
}
