// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// Input is the session of one rank.
type Input struct {
	Session, Service, Host, HostID, Run string
	// Rank and Size are cuda.run.rank and cuda.run.size, -1 if unknown.
	Rank, Size int
	Source     analysis.Source
}

// FromSession returns the input of a session in a store.
func FromSession(r store.Reader, info *store.SessionInfo) Input {
	return Input{
		Session: info.ID, Service: info.Service, Host: info.Host, HostID: text(info.Resource, semconv.HostID), Run: info.Run,
		Rank: number(info.Rank), Size: number(info.RankSize), Source: analysis.FromReader(r, info.Project, info.ID),
	}
}

// Latest returns the first session of each rank, and those without a rank. The list has the sessions of one run, the
// newest first: a run with the id of an earlier one takes its place, also with another number of ranks.
func Latest(list []store.SessionInfo) (latest []store.SessionInfo) {
	seen := map[string]bool{}
	for i := range list {
		if r := list[i].Rank; r != "" {
			if seen[r] || list[i].RankSize != list[0].RankSize {
				continue
			}
			seen[r] = true
		}
		latest = append(latest, list[i])
	}
	return latest
}

// number reads a rank or a number of ranks, -1 if it is unknown.
func number(text string) int {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		return -1
	}
	return int(n)
}

// text returns a string by its key, "" if there is none.
func text(a store.Attrs, key string) string {
	v, _ := a.Get(key)
	return v.Str
}

const (
	// maxCollectives bounds the collectives of all sessions. Of each, the first ones are kept.
	maxCollectives = 1_000_000
	maxScopes      = 200_000
	// hostLane is the sequence of scopes. Streams have numbers from 0, and unknownLane is none.
	hostLane    = -1
	unknownLane = -2
)

var errStop = errors.New("stop")

// recorded is what one session says of its collectives.
type recorded struct {
	Input
	baseNs, lastNs int64
	// lanes has the sequences of collectives by stream, each by end.
	lanes map[int64][]Collective
	count int
	// device and model are hw.id and hw.name of the device.
	device, model string
	// devices is the number of devices with collectives.
	devices int
	// toNs is where reading stopped, if complete is false.
	complete bool
	toNs     int64
	// moreScopes says that it has more than maxScopes scopes.
	moreScopes bool
	missing    *analysis.Missing // nil below 5 %
	// totalNs is the union of the kernels of collectives, overlappedNs the part during other kernels.
	totalNs, overlappedNs int64
}

// collect reads a session until the deadline, and at most some collectives of its devices.
func collect(ctx context.Context, in Input, most int, deadline time.Time) (*recorded, error) {
	first, last, err := in.Source.Extent(ctx)
	if err != nil {
		return nil, err
	}
	r := &recorded{Input: in, baseNs: first, lastNs: last, lanes: map[int64][]Collective{}, complete: true}
	r.toNs = min(last+1, store.MaxTimeNs)
	if first >= r.toNs {
		return r, nil
	}
	if r.missing, err = analysis.MissingWork(ctx, in.Source); err != nil {
		return nil, err
	}
	scopes, more, err := in.Source.Scopes(ctx, first, r.toNs, maxScopes)
	if err != nil {
		return nil, err
	}
	r.moreScopes = more
	for i := range scopes {
		s := &scopes[i]
		if kind, ok := ScopeKind(s.Name); ok && s.EndNs > s.StartNs {
			r.lanes[hostLane] = append(r.lanes[hostLane], Collective{Kind: kind, Name: s.Name, StartNs: s.StartNs, EndNs: s.EndNs, Span: s.Span})
			r.count++
		}
	}
	devices := map[string]*device{}
	sizes := newSizes(scopes)
	n := 0
	err = in.Source.Ops(ctx, first, r.toNs, func(row *store.OpRow) error {
		if n++; n%4096 == 0 && expired(deadline) || r.count >= most {
			r.complete, r.toNs = false, row.StartNs
			return errStop
		}
		if op := row.ShapeRef.Operation; op != store.OpKernel && op != store.OpGraph {
			return nil
		}
		c := Collective{Name: row.ShapeRef.Name, StartNs: row.StartNs, EndNs: max(row.StartNs, row.EndNs), Span: row.Span}
		kind, ok := KernelKind(c.Name)
		dev := devices[row.LaneRef.Device]
		if dev == nil {
			dev = &device{
				lanes: map[int64][]Collective{},
				model: cmp.Or(text(row.ShapeRef.Attrs, semconv.HWName), text(row.OriginRef.Resource, semconv.HWName)),
			}
			devices[row.LaneRef.Device] = dev
		}
		if !ok {
			dev.compute(c.StartNs, c.EndNs)
			return nil
		}
		// NCCL's own range around the launch can state it. An all-to-all is a kernel that sends and receives.
		if kind == Other || kind == SendRecv && strings.HasPrefix(row.PlaceRef.ScopeName, "nccl") && kindOf(row.PlaceRef.ScopeName) == AllToAll {
			kind = kindOf(row.PlaceRef.ScopeName)
		}
		c.Kind, c.scope = kind, row.PlaceRef.Parent
		sizes.kernels[c.scope]++
		lane := int64(unknownLane)
		if row.LaneRef.Stream.OK && row.LaneRef.Stream.V >= 0 {
			lane = row.LaneRef.Stream.V
		}
		dev.collective(c.StartNs, c.EndNs, lane, len(dev.lanes[lane]))
		dev.lanes[lane] = append(dev.lanes[lane], c)
		r.count++
		return nil
	})
	if err != nil && !errors.Is(err, errStop) {
		return nil, err
	}
	r.use(devices)
	sizes.resolve(scopes)
	for _, list := range r.lanes {
		for i := range list {
			list[i].Bytes = sizes.of(&list[i])
		}
		slices.SortStableFunc(list, func(a, b Collective) int { return cmp.Or(cmp.Compare(a.EndNs, b.EndNs), cmp.Compare(a.Span, b.Span)) })
	}
	return r, nil
}

// use takes the device with the most collectives, because a rank of NCCL has one device.
func (r *recorded) use(devices map[string]*device) {
	var most *device
	for _, id := range slices.Sorted(maps.Keys(devices)) {
		d := devices[id]
		if len(d.active)+len(d.done) == 0 {
			continue
		}
		r.devices++
		if most == nil || len(d.active)+len(d.done) > len(most.active)+len(most.done) {
			most = d
			r.device, r.model = id, d.model
		}
	}
	if most == nil {
		return
	}
	for _, p := range append(most.done, most.active...) {
		most.lanes[p.lane][p.index].OverlappedNs = p.overlapped
	}
	r.totalNs, r.overlappedNs = most.totalNs, most.overlappedNs
	maps.Copy(r.lanes, most.lanes)
}

// device sweeps over the kernels of one device by start, and sums the time in which collectives and
// other kernels run at once. Other kernels have run in disjoint parts up to computeEnd, collectives
// up to commEnd.
type device struct {
	lanes                 map[int64][]Collective
	model                 string
	active                []part
	done                  []part
	computeEnd, commEnd   int64
	totalNs, overlappedNs int64
	// pieces are the parts of the union of collectives that can still overlap.
	pieces []interval
}

type part struct {
	start, end int64
	lane       int64
	index      int
	overlapped int64
}

type interval struct{ start, end int64 }

func common(a, b, c, d int64) int64 { return max(0, min(b, d)-max(a, c)) }

// drop moves parts that end by t out of the active ones.
func (o *device) drop(t int64) {
	keep := o.active[:0]
	for _, p := range o.active {
		if p.end <= t {
			o.done = append(o.done, p)
		} else {
			keep = append(keep, p)
		}
	}
	o.active = keep
	o.pieces = slices.DeleteFunc(o.pieces, func(p interval) bool { return p.end <= t })
}

func (o *device) compute(start, end int64) {
	o.drop(start)
	from := max(start, o.computeEnd)
	if end <= from {
		return
	}
	for i := range o.active {
		o.active[i].overlapped += common(o.active[i].start, o.active[i].end, from, end)
	}
	for _, p := range o.pieces {
		o.overlappedNs += common(p.start, p.end, from, end)
	}
	o.computeEnd = end
}

func (o *device) collective(start, end, lane int64, index int) {
	o.drop(start)
	o.active = append(o.active, part{start, end, lane, index, common(start, end, start, o.computeEnd)})
	if from := max(start, o.commEnd); end > from {
		o.totalNs += end - from
		o.overlappedNs += common(from, end, from, o.computeEnd)
		o.pieces = append(o.pieces, interval{from, end})
		o.commEnd = end
	}
}
