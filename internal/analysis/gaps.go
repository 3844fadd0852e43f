// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"
)

// Gaps is what [ListGaps] finds.
type Gaps struct {
	// FromNs and ToNs are the active interval of the device. Complete is false if the analysis stopped at its
	// deadline. The gaps are then those until it stopped.
	FromNs, ToNs int64
	Complete     bool
	// Count and SumNs are of all gaps with a part of the cause in the active interval. SumNs is the sum of these
	// parts, which is Active.Idle of the device.
	Count, SumNs int64
	// List has the gaps with the largest parts, the largest first.
	List []Gap

	device  string
	cause   *Cause // nil: all causes
	limit   int
	unknown bool // work is missing, so every cause is unknown
}

// part returns the part of a gap that counts.
func (x *Gaps) part(g *Gap) int64 {
	if x.cause == nil {
		return g.EndNs - g.StartNs
	}
	return g.Idle[*x.cause]
}

func (x *Gaps) add(d *device, g Gap, w *work) {
	if g.StartNs < x.FromNs || g.EndNs > x.ToNs {
		return
	}
	if x.unknown {
		g.missing()
	}
	ns := x.part(&g)
	if ns == 0 {
		return
	}
	x.Count++
	x.SumNs += ns
	g.name(d, w)
	if x.List = append(x.List, g); len(x.List) >= 2*x.limit {
		x.trim()
	}
}

func (x *Gaps) trim() {
	slices.SortFunc(x.List, func(a, b Gap) int {
		return cmp.Or(cmp.Compare(x.part(&b), x.part(&a)), cmp.Compare(a.StartNs, b.StartNs))
	})
	x.List = x.List[:min(len(x.List), x.limit)]
}

// ListGaps returns the gaps of which the idle time of a device by cause consists, at most limit of them. Without
// a cause, it returns those of all causes. It reads all operations of the interval, also those of parts that the
// store keeps, after an analysis that finds the active interval. An unknown device has no gaps.
func ListGaps(ctx context.Context, src Source, o Options, device string, cause *Cause, limit int) (*Gaps, error) {
	x := &Gaps{Complete: true, device: device, cause: cause, limit: limit}
	o.second = x
	r, err := Run(ctx, src, o)
	if err != nil {
		return nil, err
	}
	x.Complete = x.Complete && r.Complete
	x.trim()
	return x, nil
}

// list sweeps over the interval of a result again.
func (x *Gaps) list(ctx context.Context, src Source, a *analysis, r *Result, deadline time.Time) error {
	i := slices.IndexFunc(r.Devices, func(d Device) bool { return d.ID == x.device })
	if i < 0 {
		return nil
	}
	d := &r.Devices[i]
	x.FromNs, x.ToNs, x.unknown = d.ActiveFromNs, d.ActiveToNs, r.Missing != nil
	again := a.again(r.ToNs)
	again.gaps = x
	err := again.sweep(ctx, withoutPlaces(src), a.from, r.ToNs, deadline)
	if errors.Is(err, errDeadline) {
		x.Complete, err = false, nil
	}
	return err
}

// again returns an analysis for another sweep in the interval, until an end.
func (a *analysis) again(to int64) *analysis {
	return &analysis{
		from: a.from, to: to, startup: a.startup, requests: a.requests, scopes: a.scopes, more: a.more, steps: a.steps, markers: a.markers,
		devices: map[string]*device{}, contexts: map[int64]*device{}, shapes: a.shapes,
	}
}
