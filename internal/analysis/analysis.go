// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
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
	// NoSteps skips the search for steps, which reads more than a short interval, and for missing work.
	NoSteps bool
	// Steps is the most steps in Steps.Longest. 0 means 100.
	Steps int

	profile *profiler // adds up groups if it is not nil
	second  second    // sweeps again after the result if it is not nil
}

// second lists what a result is made of. It is a second sweep.
type second interface {
	list(ctx context.Context, src Source, a *analysis, r *Result, deadline time.Time) error
}

// maxShapes bounds the shapes whose properties are kept between operations.
const maxShapes = 100_000

var errDeadline = errors.New("deadline")

// Run analyses a session. It returns errors of the source and those of ctx. A session without
// operations gives a result without devices.
func Run(ctx context.Context, src Source, o Options) (*Result, error) {
	return runWith(ctx, src, o, nil)
}

// runWith analyses a session, or updates its kept parts. The result is then not complete.
func runWith(ctx context.Context, src Source, o Options, update *Update) (*Result, error) {
	first, last, err := src.Extent(ctx)
	if err != nil {
		return nil, err
	}
	a := &analysis{update: update, from: max(first, o.From), to: last, devices: map[string]*device{}, contexts: map[int64]*device{}, shapes: map[uint32]*shapeInfo{}}
	a.startup = a.from == first
	k, keeps := src.(keeper)
	if o.To > 0 {
		a.to = min(a.to, o.To)
	}
	if a.to <= a.from {
		return &Result{FromNs: a.from, ToNs: a.from, Complete: true, Devices: []Device{}, Steps: (&stepList{}).result("none", "", "", 0), Findings: []Finding{}}, nil
	}
	if keeps {
		var stop func()
		ctx, stop = context.WithCancel(ctx)
		a.planned = start(func() error { return a.plan(ctx, k, first, o) })
		defer func() {
			stop()
			_ = a.planned()
			for _, x := range a.ahead {
				_ = x.wait()
			}
			if a.tail != nil {
				_, _ = a.tail.wait(), a.tail.ahead.wait()
			}
			if a.kept != nil {
				for range a.kept { // until readAhead has ended
				}
			}
		}()
	}
	if a.scopes, a.more, err = src.Scopes(ctx, a.from, a.to, ruleScopes); err != nil {
		return nil, err
	}
	if a.profile = o.profile; a.profile != nil {
		a.grouping = true
		a.profile.begin(a)
	}
	rule := "scopes"
	if !o.NoSteps {
		a.steps, a.rule = stepScopes(a.scopes)
	}
	name, _, _ := strings.Cut(a.rule, pathSeparator)
	if a.more && len(a.steps) > 0 {
		if a.steps, err = allSteps(ctx, src, a.from, a.to, a.rule); err != nil {
			return nil, err
		}
	}
	if len(a.steps) == 0 && !o.NoSteps {
		rule = "kernels"
		if keeps {
			if err = a.planned(); err != nil { // it changes kept values too
				return nil, err
			}
		}
		if a.markers, err = a.findMarkers(ctx, src, first, last, o.Deadline); err != nil {
			return nil, err
		}
	}
	a.rule = rule + pathSeparator + a.rule
	if a.requests = !o.NoSteps && isRequests(a.scopes); a.requests {
		a.rule += pathSeparator + "requests"
	}
	if keeps {
		err = a.sweepParts(ctx, k, first, o)
	} else {
		err = a.sweep(ctx, src, a.from, a.to, o.Deadline)
	}
	if err != nil && !errors.Is(err, errDeadline) {
		return nil, err
	}
	result := a.finish(a.reached)
	if update != nil && update.last {
		for _, d := range a.order {
			update.rest = append(update.rest, d.tally.time(d.id))
		}
	}
	result.Complete = err == nil
	a.addSteps(result, rule, name, cmp.Or(o.Steps, defaultSteps))
	result.Findings = findings(result)
	if o.NoSteps {
		return result, nil
	}
	if err = result.addMissing(ctx, src); err == nil && o.second != nil {
		err = o.second.list(ctx, src, a, result, o.Deadline)
	}
	return result, err
}

// sweep adds the operations that start in an interval, at the begin of the analysis also those that
// reach into it.
func (a *analysis) sweep(ctx context.Context, src Source, from, to int64, deadline time.Time) error {
	if err := a.nameScopes(ctx, src, from, to); err != nil {
		return err
	}
	n := 0
	err := src.Ops(ctx, from, to, func(row *store.OpRow) error {
		if from > a.from && row.StartNs < from {
			return nil
		}
		if n++; n%4096 == 0 && expired(deadline) {
			a.reached = max(row.StartNs, a.from)
			return errDeadline
		}
		if a.grouping {
			if err := a.profile.reach(ctx, src, row); err != nil {
				return err
			}
		}
		a.visit(row)
		return nil
	})
	if err == nil {
		a.reached = to
	}
	return err
}

// nameScopes gives the devices the scopes of a sweep, if there are too many for all of the interval.
func (a *analysis) nameScopes(ctx context.Context, src Source, begin, to int64) (err error) {
	if !a.more {
		return nil
	}
	from := begin
	var more bool
	for _, d := range a.order {
		from = min(from, d.now)
	}
	if a.scopes, more, err = src.Scopes(ctx, from, to, maxScopes); err != nil {
		return err
	}
	if a.grouping {
		list := a.scopes
		if more && from < begin { // a device has been idle for long
			if list, more, err = src.Scopes(ctx, begin, to, maxScopes); err != nil {
				return err
			}
		}
		a.profile.setScopes(list, begin, more)
	}
	for _, d := range a.order {
		d.scopes = scopeCursor{list: a.scopes}
	}
	return nil
}

func expired(deadline time.Time) bool { return !deadline.IsZero() && time.Now().After(deadline) }

// analysis is one run.
type analysis struct {
	from, to int64
	startup  bool
	requests bool // see isRequests
	scopes   []Scope
	steps    []Scope
	markers  map[string]string // by device

	devices  map[string]*device
	order    []*device
	contexts map[int64]*device // CUPTI's ids of contexts are unique in a process
	shapes   map[uint32]*shapeInfo

	counts
	rule    string // how steps were found, as text
	reached int64  // the end of what has been added

	update   *Update   // nil for an analysis
	profile  *profiler // nil if it was not needed yet
	grouping bool      // operations are added to groups
	more     bool      // scopes has only the first scopes of the interval

	gaps  *Gaps  // nil except in a sweep that lists gaps
	owned *Owned // nil except in a sweep that lists operations

	planned   func() error   // waits for the following values
	parts     []part         // that cover the interval
	scopeSums scopeSums      // for the keys of parts
	ahead     map[int]*ahead // of parts that the interval cuts
	kept      chan *keptPart // the usable ones in order, nil in an update

	tail *tail // nil if there is none
}

// counts is what an analysis counts of all devices.
type counts struct {
	operations, known, unknown int64
	lastEnd                    int64 // the latest end of an operation
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

// findMarkers finds the kernels that begin steps from the first operations of the session, until the
// deadline. So all intervals of a session have the same steps.
func (a *analysis) findMarkers(ctx context.Context, src Source, first, last int64, deadline time.Time) (map[string]string, error) {
	if k, ok := src.(keeper); ok {
		return a.keptMarkers(ctx, k, first, last, deadline)
	}
	p := patterns{a: a, deadline: deadline}
	return p.markers(src.Ops(ctx, first, last, p.visit))
}

// maxPatternOps is the number of operations in which steps are found without scopes.
const maxPatternOps = 1 << 20

var errEnough = errors.New("enough operations")

// patterns has the pattern of each device.
type patterns struct {
	a        *analysis
	deadline time.Time
	n        int
	all      map[string]*pattern
}

func (p *patterns) visit(row *store.OpRow) error {
	if p.n == maxPatternOps {
		return errEnough
	}
	if p.n++; p.n%4096 == 0 && expired(p.deadline) {
		return errDeadline
	}
	if row.ShapeRef.Operation != store.OpKernel {
		return nil
	}
	x := p.all[row.LaneRef.Device]
	if x == nil {
		x = &pattern{}
		if p.all == nil {
			p.all = map[string]*pattern{}
		}
		p.all[row.LaneRef.Device] = x
	}
	info := p.a.infoOf(row)
	x.kernel(info.name, info.hash)
	return nil
}

func (p *patterns) markers(err error) (map[string]string, error) {
	if err != nil && !errors.Is(err, errDeadline) && !errors.Is(err, errEnough) {
		return nil, err
	}
	markers := map[string]string{}
	for id, x := range p.all {
		markers[id] = x.best()
	}
	return markers, nil
}

func (a *analysis) visit(row *store.OpRow) {
	a.operations++
	start := max(row.StartNs, a.from)
	end := min(max(row.StartNs, row.EndNs), a.to)
	a.lastEnd = max(a.lastEnd, row.EndNs)
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
		ref: Ref{row.Span, row.StartNs, info.name}, kernel: op == store.OpKernel, lane: row.Lane, name: info.hash, shape: info.shape, stack: row.StackText, queueNs: row.QueueNs,
		delayStack: text(row.Attrs, semconv.CUDALaunchDelayStacktrace),
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
	if a.grouping {
		w.scope = a.profile.scopeOf(d, row)
	}
	if d.owned != nil {
		d.owned.begin(&w)
	}
	d.add(&w)
	if d.owned != nil {
		d.owned.add(d, &w, row.StartNs >= a.from)
	}
	if a.grouping && row.StartNs >= a.from {
		a.profile.add(d, row, &w)
	}
	if op == store.OpKernel {
		if row.QueueNs.OK && row.StartNs >= a.from {
			d.queue.add(row.QueueNs.V)
		}
		d.addSmall(row, &w)
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
		d = a.newDevice(l.Device, model, l.DeviceIndex)
	}
	return d
}

func (a *analysis) newDevice(id, model string, index store.Int) *device {
	d := &device{id: id, model: model, index: index, from: a.from, requests: a.requests, carry: carry{now: a.from, startup: a.startup, steps: a.stepperOf(id)}}
	d.scopes.list = a.scopes
	if a.gaps != nil && a.gaps.device == id {
		d.all = a.gaps
	}
	if a.owned != nil && a.owned.Device == id {
		d.owned = a.owned
	}
	a.devices[id] = d
	a.order = append(a.order, d)
	return d
}

// stepperOf returns the stepper of a device before its first operation.
func (a *analysis) stepperOf(id string) stepper {
	s := stepper{marker: a.markers[id]}
	if len(a.steps) > 0 {
		s.bounds, s.last = a.steps, a.steps[len(a.steps)-1].EndNs
	}
	return s
}

func (a *analysis) finish(to int64) *Result {
	r := &Result{FromNs: a.from, ToNs: to, Operations: a.operations, LaunchesKnown: a.known, LaunchesUnknown: a.unknown, Devices: []Device{}}
	for _, d := range a.order {
		out := d.finish(to)
		out.Small, out.smallSums = d.smallKernels()
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
		if most == nil || d.kernelNs > most.kernelNs || d.kernelNs == most.kernelNs && d.id < most.id {
			most = d
		}
	}
	return most
}

// addSteps adds the steps of the device with the most kernel time, and lists the longest.
func (a *analysis) addSteps(r *Result, rule, name string, listed int) {
	most := a.busiest()
	if most == nil {
		most = &device{}
	}
	if rule == "kernels" {
		name = most.steps.marker
	}
	repeated := most.list.repeated(max(0, most.launchRate().FloorNs))
	r.Steps = most.list.result(rule, name, most.id, listed)
	r.Steps.repeated = repeated
}
