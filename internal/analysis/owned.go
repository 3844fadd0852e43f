// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gpuflight/gpuflight/internal/store"
)

// OwnedOp is an operation with the time of the device that belongs to it: see [ScopeTime].
type OwnedOp struct {
	Ref
	// Before is the name of the operation that ended last before the idle time, "" if there is none.
	Before string
	Parts
	// Launched says that the launch times are known, Late that the launch returned when the device had no work left.
	Launched, Late bool
	QueueNs        store.Int

	counted bool // it starts in the active interval
}

// Owned is what [ListOwned] finds.
type Owned struct {
	// FromNs and ToNs are the active interval of the device. Complete is false if the analysis stopped at its
	// deadline. The operations are then those until it stopped.
	FromNs, ToNs int64
	Complete     bool
	// ManyScopes says that the operations of a scope are unknown, because a part of the interval that is read at
	// once has more than 200,000 scopes. There are then no operations.
	ManyScopes bool
	// Count, Parts, Launches and Late are of all operations that are found: those that start in the active interval
	// or have time in it.
	Count int64
	Parts
	Launches, Late int64
	// List has the operations with the most time, the most first.
	List []*OwnedOp

	OwnedFilter
	limit   int
	period  int
	unknown bool               // work is missing, so every cause is unknown
	pairs   map[[2]string]bool // of Fusion
	owner   [numClasses]*OwnedOp
}

// OwnedFilter selects operations of a device, all by default.
type OwnedFilter struct {
	Device string
	// Scope is a path of [ScopeTime], with the scopes below. Outside are the operations outside all scopes.
	Scope   []string
	Outside bool
	// Fusion are the operations whose idle time by causes launch and latency is the gain of the finding "fusion",
	// with this time only.
	Fusion bool
}

// ListOwned returns operations with the time that belongs to them, at most limit of them. Their times sum to that
// of the scope, or to the gain of the finding. It reads all operations of the interval after an analysis.
func ListOwned(ctx context.Context, src Source, o Options, f OwnedFilter, limit int) (*Owned, error) {
	x := &Owned{Complete: true, OwnedFilter: f, limit: limit}
	o.second = x
	r, err := Run(ctx, src, o)
	if err != nil {
		return nil, err
	}
	x.Complete = x.Complete && r.Complete
	x.trim(limit)
	for _, op := range x.List {
		x.sum(op)
	}
	return x, nil
}

// begin gives an operation its time if it is selected.
func (x *Owned) begin(w *work) {
	path := w.scope.path
	inside := len(path) >= len(x.Scope) && slices.Equal(path[:len(x.Scope)], x.Scope)
	if inside && !x.Fusion && (!x.Outside || len(path) == 0) {
		w.own = &OwnedOp{Ref: w.ref, QueueNs: w.queueNs}
	}
}

// idle adds the idle time before an operation.
func (x *Owned) idle(d *device, w *work, idle *CauseSums) {
	if w.own != nil && !x.Fusion && d.period()[x.period] {
		w.own.Before = d.last.ref.Name
		w.own.addIdle(idle)
	}
}

// pair adds an operation after idle time, and the one before.
func (x *Owned) pair(w *work, before string, idle *CauseSums) {
	if x.Fusion && x.pairs[[2]string{before, w.ref.Name}] {
		w.own = &OwnedOp{Ref: w.ref, Before: before, QueueNs: w.queueNs}
		w.own.addIdle(&CauseSums{Launch: idle[Launch], Latency: idle[Latency]})
	}
}

// busy adds busy time to the operation that owns it.
func (x *Owned) busy(d *device, c class, ns int64) {
	if op := x.owner[c]; op != nil && d.period()[x.period] && !x.Fusion {
		op.Parts.busy(c, ns)
	}
}

// add adds an operation that the device has. It can get busy time later.
func (x *Owned) add(d *device, w *work, inside bool) {
	if w.own == nil {
		return
	}
	if x.Fusion || inside && d.period()[x.period] {
		w.own.Launched, w.own.Late, w.own.counted = w.launched, w.late, true
	}
	if x.List = append(x.List, w.own); len(x.List) >= 2*x.limit+int(numClasses) {
		x.trim(x.limit + int(numClasses)) // the owners can get more time
	}
}

// clear forgets what has been found.
func (x *Owned) clear() {
	x.List, x.Count, x.Parts, x.Launches, x.Late = nil, 0, Parts{}, 0, 0
}

// firstStep forgets the pairs before the first step.
func (x *Owned) firstStep() {
	if x.Fusion {
		x.clear()
	}
}

func (x *Owned) sum(op *OwnedOp) {
	x.Count++
	x.Parts = x.plus(&op.Parts)
	if op.Launched {
		x.Launches++
	}
	if op.Late {
		x.Late++
	}
}

// trim keeps the operations with the most time, and those that can get more.
func (x *Owned) trim(limit int) {
	owners := func(op *OwnedOp) int {
		if slices.Contains(x.owner[:], op) {
			return 1
		}
		return 0
	}
	slices.SortFunc(x.List, func(a, b *OwnedOp) int {
		return cmp.Or(cmp.Compare(owners(b), owners(a)), cmp.Compare(b.WallNs, a.WallNs), cmp.Compare(a.StartNs, b.StartNs), cmp.Compare(a.Span, b.Span))
	})
	x.List = slices.DeleteFunc(x.List, func(op *OwnedOp) bool { return !op.counted && op.WallNs == 0 && owners(op) == 0 })
	for _, op := range x.List[min(len(x.List), limit):] {
		x.sum(op)
	}
	x.List = x.List[:min(len(x.List), limit)]
}

// list sweeps over the interval of a result again.
func (x *Owned) list(ctx context.Context, src Source, a *analysis, r *Result, deadline time.Time) error {
	i := slices.IndexFunc(r.Devices, func(d Device) bool { return d.ID == x.Device })
	if i < 0 {
		return nil
	}
	d := &r.Devices[i]
	x.FromNs, x.ToNs, x.unknown, x.period = d.ActiveFromNs, d.ActiveToNs, r.Missing != nil, sinceKernel
	if a.devices[d.ID].list.found() {
		x.period = inSteps
	}
	x.pairs = map[[2]string]bool{}
	for _, p := range d.pairs[:min(len(d.pairs), fusedPairs)] {
		x.pairs[p.names] = true
	}
	again := a.again(r.ToNs)
	again.owned, again.grouping, again.profile = x, true, &profiler{}
	again.profile.begin(again)
	err := again.sweepAll(ctx, src, a.parts, deadline)
	if errors.Is(err, errDeadline) {
		x.Complete, err = false, nil
	}
	if err != nil {
		return err
	}
	again.finish(r.ToNs)
	x.owner = [numClasses]*OwnedOp{}
	if x.ManyScopes = again.profile.many && (x.Outside || len(x.Scope) > 0); x.ManyScopes {
		x.clear()
	}
	if x.unknown {
		for _, op := range x.List {
			op.Idle = CauseSums{Unknown: op.IdleNs}
		}
		x.Idle = CauseSums{Unknown: x.IdleNs}
	}
	return nil
}

// sweepAll sweeps part by part, because each has its own scopes if there are many.
func (a *analysis) sweepAll(ctx context.Context, src Source, parts []part, deadline time.Time) error {
	from := a.from
	for i := range parts {
		if to := min(parts[i].to, a.to); to > from && to < a.to {
			if err := a.sweep(ctx, src, from, to, deadline); err != nil {
				return err
			}
			from = to
		}
	}
	return a.sweep(ctx, src, from, a.to, deadline)
}
