// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
)

func (s *server) shapes(ctx context.Context, r *request) (any, error) {
	if _, ok := r.values["ids"]; !ok {
		r.fail("ids", "is required")
	}
	ids := r.ids("ids")
	if err := r.check(); err != nil {
		return nil, err
	}
	found, err := s.store.Shapes(ctx, r.project, r.session, ids)
	if err != nil {
		return nil, err
	}
	return map[string]any{"shapes": shapeList(found)}, nil
}

func shapeList(found map[uint32]*store.Shape) []*shapeAnswer {
	list := []*shapeAnswer{}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		list = append(list, shape(id, found[id]))
	}
	return list
}

type bucket struct {
	FromNs int64 `json:"from_ns"`
	ToNs   int64 `json:"to_ns"`
	Count  int64 `json:"count"`
}

type kernelGroup struct {
	ID      *uint32      `json:"id,omitempty"`
	Name    string       `json:"name,omitempty"`
	Shape   *shapeAnswer `json:"shape,omitempty"`
	Names   []string     `json:"names,omitempty"`
	Lane    *laneAnswer  `json:"lane,omitempty"`
	Count   int64        `json:"count"`
	SumNs   int64        `json:"sum_ns"`
	MaxNs   int64        `json:"max_ns"`
	QueueNs int64        `json:"queue_ns"`
	P50Ns   int64        `json:"p50_ns"`
	P99Ns   int64        `json:"p99_ns"`
	Buckets []bucket     `json:"buckets,omitempty"`
}

type kernelTotal struct {
	Groups  int64 `json:"groups"`
	Count   int64 `json:"count"`
	SumNs   int64 `json:"sum_ns"`
	QueueNs int64 `json:"queue_ns"`
}

func (s *server) kernels(ctx context.Context, r *request) (any, error) {
	const most = 10_000
	q := store.KernelQuery{Project: r.project, Session: r.session, Limit: most}
	q.Group = store.Group(r.choice("group", "name", "shape", "path", "lane"))
	q.From, q.To = r.interval()
	q.Text = r.text("q", 1000)
	q.Path = r.optionalID("path")
	q.Buckets = r.boolean("buckets")
	name, byName := r.text("name", 10_000), len(r.values["name"]) > 0
	id := r.optionalID("id")
	if byName && q.Group != store.GroupName && q.Group != store.GroupShape {
		r.fail("name", "needs the group name or shape")
	}
	if id != nil && q.Group == store.GroupName {
		r.fail("id", "needs the group shape, path or lane")
	}
	limit := int(r.integer("limit", 50, 1, most))
	if err := r.check(); err != nil {
		return nil, err
	}
	stats, err := s.store.Kernels(ctx, q)
	if err != nil {
		return nil, err
	}
	truncated := len(stats) == most
	stats = slices.DeleteFunc(stats, func(k store.KernelStat) bool { return byName && k.Name != name || id != nil && k.ID != *id })
	answer := struct {
		Base      string         `json:"base"`
		Total     kernelTotal    `json:"total"`
		Groups    []*kernelGroup `json:"groups"`
		Truncated bool           `json:"truncated,omitempty"`
	}{Base: r.baseText(), Groups: []*kernelGroup{}, Truncated: truncated}
	for i := range stats {
		k := &stats[i]
		answer.Total.Groups++
		answer.Total.Count += k.Count
		answer.Total.SumNs += k.SumNs
		answer.Total.QueueNs += k.QueueNs
		if i >= limit {
			continue
		}
		g := &kernelGroup{Name: k.Name, Count: k.Count, SumNs: k.SumNs, MaxNs: k.MaxNs, QueueNs: k.QueueNs, P50Ns: percentile(k.P50Ns, k.Count, k.SumNs, k.MaxNs), P99Ns: percentile(k.P99Ns, k.Count, k.SumNs, k.MaxNs)}
		if q.Group != store.GroupName {
			g.ID = &k.ID
		}
		for _, b := range k.Buckets {
			lo, hi := store.BucketBounds(b.Bucket)
			g.Buckets = append(g.Buckets, bucket{lo, hi, b.Count})
		}
		answer.Groups = append(answer.Groups, g)
	}
	return answer, s.describe(ctx, r, q.Group, answer.Groups)
}

// describe adds what the ids of groups stand for.
func (s *server) describe(ctx context.Context, r *request, by store.Group, groups []*kernelGroup) error {
	switch by {
	case store.GroupShape:
		ids := make([]uint32, len(groups))
		for i, g := range groups {
			ids[i] = *g.ID
		}
		found, err := s.store.Shapes(ctx, r.project, r.session, ids)
		if err != nil {
			return err
		}
		for _, g := range groups {
			if sh := found[*g.ID]; sh != nil {
				g.Shape = shape(*g.ID, sh)
			}
		}
	case store.GroupPath:
		nodes, err := s.store.Scopes(ctx, r.project, r.session)
		if err != nil {
			return err
		}
		names := pathNames(nodes)
		for _, g := range groups {
			g.Names = names[*g.ID]
		}
	case store.GroupLane:
		lanes, err := s.store.Lanes(ctx, r.project, r.session)
		if err != nil {
			return err
		}
		for _, g := range groups {
			if i := slices.IndexFunc(lanes, func(l store.LaneInfo) bool { return l.ID == *g.ID }); i >= 0 {
				g.Lane = r.lane(&lanes[i])
			}
		}
	}
	return nil
}

var operationKinds = func() map[string]store.Operation {
	kinds := map[string]store.Operation{}
	for op, name := range operationNames {
		if name != "" {
			kinds[name] = store.Operation(op)
		}
	}
	return kinds
}()

// maxStack is the largest size of a host stack in a request, in bytes.
const maxStack = 32 << 10

func (s *server) operations(ctx context.Context, r *request) (any, error) {
	q := store.OpQuery{Project: r.project, Session: r.session, Overlapping: r.boolean("overlapping")}
	q.From, q.To = r.interval()
	for _, name := range r.list("operation", len(operationKinds)) {
		op := operationKinds[name]
		if op == 0 {
			r.fail("operation", "must be a list of kernel, memcpy, memset, synchronize, graph, malloc, free")
		}
		q.Operations = append(q.Operations, op)
	}
	q.Lanes, q.Shapes = r.ids("lane"), r.ids("shape")
	q.Name, q.Parent, q.Trace = r.text("name", 10_000), r.spanID("parent"), r.traceID("trace")
	q.Path, q.Direct, q.Below = r.optionalID("path"), r.boolean("direct"), r.boolean("below")
	if len(r.values["stack"]) > 0 {
		frames := strings.Split(r.text("stack", maxStack), "\n")
		slices.Reverse(frames)
		stack := strings.Join(frames, "\n")
		q.Stack = &stack
	}
	q.StackExact = r.boolean("stack_exact")
	q.MinNs = r.integer("min_ns", 0, 0, math.MaxInt64)
	longest := r.integer("max_ns", math.MaxInt64, 0, math.MaxInt64)
	if longest < math.MaxInt64 {
		q.MaxNs = max(longest, 1) // The store means no limit by 0.
	}
	q.Sort = store.OpSort(r.choice("sort", "start", "duration", "queue"))
	q.Limit = int(r.integer("limit", 1000, 1, 20_000))
	q.After = r.opCursor()
	if err := r.check(); err != nil {
		return nil, err
	}
	page, err := s.store.Ops(ctx, q)
	if err != nil {
		return nil, err
	}
	answer := struct {
		Base       string             `json:"base"`
		Operations []*operationAnswer `json:"operations"`
		Shapes     []*shapeAnswer     `json:"shapes"`
		Next       string             `json:"next,omitempty"`
	}{r.baseText(), []*operationAnswer{}, shapeList(page.Shapes), ""}
	for i := range page.Rows {
		o := &page.Rows[i]
		if longest == 0 && o.EndNs > o.StartNs {
			continue
		}
		answer.Operations = append(answer.Operations, r.operation(o))
	}
	if page.More {
		answer.Next = nextOp(q.Sort, &page.Rows[len(page.Rows)-1])
	}
	return answer, nil
}

func nextOp(sort store.OpSort, o *store.OpRow) string {
	value := int64(0)
	switch {
	case sort == store.ByDuration:
		value = max(o.EndNs-o.StartNs, 0)
	case sort == store.ByQueue && o.QueueNs.OK:
		value = o.QueueNs.V
	case sort == store.ByQueue:
		value = math.MinInt64
	}
	return fmt.Sprintf("%d.%d.%s", value, o.StartNs, spanText(o.Op.Span))
}

func (r *request) opCursor() *store.OpCursor {
	v, ok := r.raw("cursor")
	if !ok {
		return nil
	}
	parts := strings.Split(v, ".")
	if len(parts) == 3 {
		value, err1 := strconv.ParseInt(parts[0], 10, 64)
		start, err2 := strconv.ParseInt(parts[1], 10, 64)
		span, err3 := strconv.ParseUint(parts[2], 16, 64)
		if err1 == nil && err2 == nil && err3 == nil {
			return &store.OpCursor{Value: value, StartNs: start, Span: store.SpanID(span)}
		}
	}
	r.fail("cursor", "must be the next of an earlier page")
	return nil
}

type gapEnd struct {
	Span  string  `json:"span"`
	Start int64   `json:"start"`
	Shape *uint32 `json:"shape,omitempty"`
}

type gapAnswer struct {
	Device     string `json:"device"`
	Start      int64  `json:"start"`
	DurationNs int64  `json:"duration_ns"`
	Before     gapEnd `json:"before"`
	After      gapEnd `json:"after"`
}

func (s *server) gaps(ctx context.Context, r *request) (any, error) {
	q := store.GapQuery{Project: r.project, Session: r.session, Device: r.text("device", 1000), Overlapping: r.boolean("overlapping")}
	q.From, q.To = r.interval()
	q.MinNs = r.integer("min_ns", 0, 0, math.MaxInt64)
	q.Limit = int(r.integer("limit", 100, 1, 10_000))
	if err := r.check(); err != nil {
		return nil, err
	}
	found, err := s.store.Gaps(ctx, q)
	if err != nil {
		return nil, err
	}
	answer := struct {
		Base   string      `json:"base"`
		Count  int64       `json:"count"`
		SumNs  int64       `json:"sum_ns"`
		Gaps   []gapAnswer `json:"gaps"`
		Shapes []shapeName `json:"shapes"`
	}{Base: r.baseText(), Count: found.Count, SumNs: found.SumNs, Gaps: []gapAnswer{}}
	used := map[uint32]bool{}
	for i := range found.Longest {
		g := &found.Longest[i]
		used[g.AfterShape] = true
		answer.Gaps = append(answer.Gaps, gapAnswer{g.Device, g.StartNs - r.base, g.EndNs - g.StartNs,
			gapEnd{spanText(g.Before), g.BeforeStart - r.base, nil}, gapEnd{spanText(g.After), g.AfterStart - r.base, &g.AfterShape}})
	}
	answer.Shapes, err = s.shapeNames(ctx, r, used)
	return answer, err
}

var errNoPath = &status{http.StatusNotFound, "the session has no such path"}

// percentile corrects a percentile of the store, which is the middle of a bucket. One duration is
// exact, and no percentile is above the largest duration.
func percentile(middle, count, sum, largest int64) int64 {
	if count == 1 {
		return sum
	}
	return min(middle, largest)
}
