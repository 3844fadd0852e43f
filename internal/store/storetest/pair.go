// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

// pair is a store and a Memory with the same rows.
type pair struct {
	testing.TB
	*rand.Rand
	setup *Setup
	got   store.Store
	want  *Memory
	ids   map[sessionID]*mapping
}

// ask returns questions of a comparison: any one, the first and half of the others, or all. Over the
// comparisons of a scenario, each question is asked.
func ask[T any](p *pair, all []T) []T {
	switch p.setup.effort() {
	case 0:
		i := p.IntN(len(all))
		return all[i : i+1]
	case 2:
		return all
	}
	some := all[:1:1]
	for _, q := range all[1:] {
		if p.IntN(2) == 0 {
			some = append(some, q)
		}
	}
	return some
}

func newPair(tb testing.TB, setup *Setup) *pair {
	return &pair{
		TB: tb, Rand: rand.New(rand.NewPCG(3, 4)), setup: setup, got: setup.Open(tb), want: NewMemory(),
		ids: map[sessionID]*mapping{},
	}
}

// Compare fails unless a store gives the same answers as a Memory with the same rows. It asks few
// questions.
func Compare(tb testing.TB, got store.Store, want *Memory) {
	tb.Helper()
	p := newPair(tb, &Setup{Open: func(testing.TB) store.Store { return got }, Few: true})
	p.want = want
	p.compare()
}

// write writes to both stores and compares the counts.
func (p *pair) write(batches []*store.Batch) {
	p.Helper()
	want, err := p.want.Write(p.Context(), batches)
	require.NoError(p, err)
	sent := clone(batches)
	got, err := p.got.Write(p.Context(), sent)
	require.NoError(p, err, "Write")
	// The batches belong to the sender again.
	for _, b := range sent {
		for i := range b.Shapes {
			clear(b.Shapes[i].Grid)
			clear(b.Shapes[i].Attrs)
		}
		clear(b.Ops)
		clear(b.Spans)
		clear(b.Logs)
		clear(b.Points)
	}
	p.checkResult(got, want)
}

func (p *pair) checkResult(got, want store.Result) {
	p.Helper()
	rows := func(r store.Result) int64 { return r.Written + r.Duplicates + r.Replaced + r.Rejected + r.Deferred }
	require.Equal(p, rows(want), rows(got), "Write: sum of the counts in %+v", got)
	require.Equal(p, want.Rejected, got.Rejected, "Write: Rejected")
	if !p.setup.CountsDuplicates {
		return
	}
	require.Equal(p, want.Written, got.Written, "Write: Written")
}

// reopen closes the store and opens it again.
func (p *pair) reopen() {
	p.Helper()
	p.got = p.setup.Reopen(p, p.got)
}

// same fails if the answers differ.
func (p *pair) same(what string, query, got, want any, gotErr, wantErr error) {
	p.Helper()
	require.NoError(p, wantErr, "%s of Memory: %+v", what, query)
	require.NoError(p, gotErr, "%s: %+v", what, query)
	if d := difference(got, want); d != "" {
		p.Fatalf("%s: %+v: %s", what, query, d)
	}
}

// compare asks both stores everything.
func (p *pair) compare() {
	p.Helper()
	var ids []sessionID
	projects := map[string]bool{"absent": true}
	for id := range p.want.sessions {
		ids = append(ids, id)
		projects[id.project] = true
	}
	slices.SortFunc(ids, func(a, b sessionID) int {
		return slices.Compare([]string{a.project, a.session}, []string{b.project, b.session})
	})
	for project := range projects {
		p.compareSessions(project)
	}
	for _, id := range ids {
		p.compareSession(id)
	}
}

func plainInfo(s *store.SessionInfo) { s.Bytes, s.Sealed = 0, false }

func (p *pair) compareSessions(project string) {
	p.Helper()
	ctx := p.Context()
	queries := []store.SessionQuery{
		{}, {Limit: 1}, {Limit: 1000}, {Service: "Trainer"}, {Service: "trainer"}, {Host: "host-0"}, {Run: "run-1"},
		{Text: "TRAIN"}, {Text: "-0"}, {Text: "no such text"}, {Run: "run-0", Host: "host-1"},
	}
	all, err := p.want.Sessions(ctx, store.SessionQuery{Project: project})
	require.NoError(p, err)
	for _, s := range all {
		queries = append(queries, store.SessionQuery{After: s.ID}, store.SessionQuery{After: s.ID, Limit: 1},
			store.SessionQuery{From: s.LastNs}, store.SessionQuery{From: s.LastNs + 1},
			store.SessionQuery{To: s.FirstNs}, store.SessionQuery{To: s.FirstNs + 1})
	}
	if p.setup.effort() == 0 {
		p.Shuffle(len(queries), func(i, j int) { queries[i], queries[j] = queries[j], queries[i] })
		queries = first(queries, 4)
	}
	for _, q := range queries {
		if !valid(q.From, q.To) {
			continue
		}
		q.Project = project
		want, wantErr := p.want.Sessions(ctx, q)
		got, gotErr := p.got.Sessions(ctx, q)
		for _, list := range [][]store.SessionInfo{got, want} {
			for i := range list {
				plainInfo(&list[i])
			}
		}
		p.same("Sessions", q, got, want, gotErr, wantErr)
	}
}

// interval is the bounds of a query.
type interval struct{ from, to int64 }

// intervals returns intervals that begin and end at and beside rows.
func (p *pair) intervals(s *session) []interval {
	var times []int64
	s.each(func(first, last int64, _ *store.Origin, _ store.TraceID) { times = append(times, first, last) })
	slices.Sort(times)
	list := []interval{{}}
	for range p.setup.queries() {
		a, b := times[p.IntN(len(times))]+p.Int64N(3)-1, times[p.IntN(len(times))]+p.Int64N(3)-1
		i := interval{min(a, b), max(a, b) + 1}
		switch p.IntN(6) {
		case 0:
			i.from = 0
		case 1:
			i.to = 0
		}
		if valid(i.from, i.to) {
			list = append(list, i)
		}
	}
	return list
}

func (p *pair) compareSession(id sessionID) {
	p.Helper()
	s := p.want.sessions[id]
	ctx := p.Context()
	var m *mapping
	if id.session != "" {
		m = p.ids[id]
		if m == nil {
			m = &mapping{newIDs(), newIDs()}
			p.ids[id] = m
		}
		require.NoError(p, m.want.learn(ctx, p.want, id), "ids of Memory in %+v", id)
		require.NoError(p, m.got.learn(ctx, p.got, id), "ids in %+v", id)
		p.compareOverview(id, m)
	}
	if m != nil && !s.dropped {
		p.compareShapes(id, m)
	}
	if len(rowsIn(s)) == 0 {
		return
	}
	for _, i := range p.intervals(s) {
		if m != nil {
			p.compareTimeline(id, m, i)
			p.compareKernels(id, m, i)
			p.compareInstances(id, m, i)
			p.compareGaps(id, m, i)
			p.compareBusy(id, i)
			p.compareStacks(id, m, i)
		}
		p.compareOps(id, m, i)
		p.compareSpans(id, m, i)
		p.compareSamplesAndLogs(id, m, i)
		p.compareMetrics(id, i)
	}
	p.compareSingle(id, m)
}

// rowsIn returns the start of each row.
func rowsIn(s *session) (starts []int64) {
	s.each(func(first, _ int64, _ *store.Origin, _ store.TraceID) { starts = append(starts, first) })
	return starts
}

func (p *pair) compareOverview(id sessionID, m *mapping) {
	p.Helper()
	ctx := p.Context()
	wantInfo, wantErr := p.want.Session(ctx, id.project, id.session)
	gotInfo, gotErr := p.got.Session(ctx, id.project, id.session)
	plainInfo(&wantInfo)
	plainInfo(&gotInfo)
	p.same("Session", id, gotInfo, wantInfo, gotErr, wantErr)

	wantLanes, wantErr := p.want.Lanes(ctx, id.project, id.session)
	gotLanes, gotErr := p.got.Lanes(ctx, id.project, id.session)
	for i := range gotLanes {
		m.lane(&gotLanes[i].ID)
	}
	p.same("Lanes", id, gotLanes, wantLanes, gotErr, wantErr)

	wantScopes, wantErr := p.want.Scopes(ctx, id.project, id.session)
	gotScopes, gotErr := p.got.Scopes(ctx, id.project, id.session)
	for i := range gotScopes {
		m.path(&gotScopes[i].Path)
		m.path(&gotScopes[i].Parent)
	}
	p.same("Scopes", id, gotScopes, wantScopes, gotErr, wantErr)
}

// some returns up to n ids of a map, or none.
func some[K comparable](p *pair, all map[K]uint32, n int) (list []uint32) {
	if p.IntN(2) == 0 {
		return nil
	}
	for _, id := range all {
		list = append(list, id)
	}
	slices.Sort(list)
	p.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return first(list, n)
}

func (p *pair) compareTimeline(id sessionID, m *mapping, i interval) {
	p.Helper()
	// Lengths that are answered from rows and from each level.
	intervals := []interval{i}
	if i.from > 0 {
		for _, shift := range ask(p, []int{28, 20, 34, 40}) {
			if to := i.from + p.Int64N(1<<shift) + 1; valid(to) {
				intervals = append(intervals, interval{i.from, to})
			}
		}
	}
	for _, i := range intervals {
		for _, bins := range ask(p, []int{50 + p.IntN(900), 2 + p.IntN(40), 1}) {
			lanes := some(p, m.want.lanes, 2)
			q := store.TimelineQuery{Project: id.project, Session: id.session, From: i.from, To: i.to, Bins: bins, Lanes: lanes}
			want, wantErr := p.want.Timeline(p.Context(), q)
			q.Lanes, _ = m.query(lanes, nil)
			got, gotErr := p.got.Timeline(p.Context(), q)
			for i := range got.Bins {
				b := &got.Bins[i]
				m.lane(&b.Lane)
				if b.Count > 0 {
					m.shape(&b.TopShape)
				}
			}
			p.same("Timeline", q, got, want, gotErr, wantErr)
		}
	}
}

func (p *pair) compareOps(id sessionID, m *mapping, i interval) {
	p.Helper()
	s := p.want.sessions[id]
	sorts := []store.OpSort{store.ByStart, store.ByDuration, store.ByQueue}
	base := store.OpQuery{Project: id.project, Session: id.session, From: i.from, To: i.to, Overlapping: p.IntN(2) == 0}
	queries := []store.OpQuery{base}
	ops := s.sortedOps()
	if len(ops) > 0 {
		o := ops[p.IntN(len(ops))]
		q := base
		q.Name = o.ShapeRef.Name
		queries = append(queries, q)
		q = base
		q.Operations = []store.Operation{o.ShapeRef.Operation, store.OpCopy}
		queries = append(queries, q)
		q.Operations, q.Trace = nil, o.PlaceRef.Trace
		queries = append(queries, q)
		q.Trace, q.Parent = store.TraceID{}, o.PlaceRef.Parent
		queries = append(queries, q)
		if ids := s.tree().above(o); len(ids) > 0 && id.session != "" {
			q.Parent, q.Below = ids[p.IntN(len(ids))], true
			queries = append(queries, q)
		}
		q = base
		q.MinNs, q.MaxNs = duration(o)/2, duration(o)
		queries = append(queries, q)
	}
	if m != nil {
		if paths := some(p, m.want.paths, 1); len(paths) == 1 {
			q := base
			q.Path, q.Direct = &paths[0], p.IntN(2) == 0
			queries = append(queries, q)
		}
		q := base
		q.Lanes, q.Shapes = some(p, m.want.lanes, 3), some(p, m.want.shapes, 5)
		queries = append(queries, q)
	}
	for _, q := range ask(p, queries) {
		q.Sort = sorts[p.IntN(len(sorts))]
		q.Limit = []int{0, 1 + p.IntN(300), 20_000}[p.IntN(3)]
		if q.Limit < 50 && q.Limit > 0 {
			q.Limit += len(ops) / 10
		}
		lanes, shapes, path := q.Lanes, q.Shapes, q.Path
		for {
			q.Lanes, q.Shapes, q.Path = lanes, shapes, path
			want, wantErr := p.want.Ops(p.Context(), q)
			if m != nil {
				q.Lanes, q.Shapes = m.query(lanes, shapes)
				if path != nil {
					other := translate(m.want.paths, m.got.paths, *path)
					q.Path = &other
				}
			}
			got, gotErr := p.got.Ops(p.Context(), q)
			m.plainPage(&got)
			(*mapping).plainPage(m.identity(), &want)
			p.same("Ops", q, got, want, gotErr, wantErr)
			if !want.More {
				break
			}
			last := want.Rows[len(want.Rows)-1]
			q.After = &store.OpCursor{StartNs: last.StartNs, Span: last.Op.Span}
			switch {
			case q.Sort == store.ByDuration:
				q.After.Value = duration(&last)
			case q.Sort == store.ByQueue && last.QueueNs.OK:
				q.After.Value = last.QueueNs.V
			case q.Sort == store.ByQueue:
				q.After.Value = -1 << 63
			}
		}
	}
}

// identity returns a mapping for the answers of the Memory.
func (m *mapping) identity() *mapping {
	if m == nil {
		return nil
	}
	return &mapping{newIDs(), newIDs()}
}

func (p *pair) compareKernels(id sessionID, m *mapping, i interval) {
	p.Helper()
	s := p.want.sessions[id]
	for group := store.GroupName; group <= store.GroupLane; group++ {
		if s.dropped && (group == store.GroupLane || i != interval{}) {
			continue
		}
		for _, text := range ask(p, []string{"", "SOFT", "<float, 2>", "é"}) {
			q := store.KernelQuery{
				Project: id.project, Session: id.session, Group: group, From: i.from, To: i.to, Text: text,
				Limit: []int{0, 1, 3, 10_000}[p.IntN(4)], Buckets: p.IntN(2) == 0,
			}
			var path *uint32
			if paths := some(p, m.want.paths, 1); len(paths) == 1 {
				path = &paths[0]
			}
			q.Path = path
			want, wantErr := p.want.Kernels(p.Context(), q)
			if path != nil {
				other := translate(m.want.paths, m.got.paths, *path)
				q.Path = &other
			}
			got, gotErr := p.got.Kernels(p.Context(), q)
			for i := range got {
				switch group {
				case store.GroupShape:
					m.shape(&got[i].ID)
				case store.GroupPath:
					m.path(&got[i].ID)
				case store.GroupLane:
					m.lane(&got[i].ID)
				}
			}
			p.same("Kernels", q, got, want, gotErr, wantErr)
		}
	}
}

func (p *pair) compareShapes(id sessionID, m *mapping) {
	p.Helper()
	ids := some(p, m.want.shapes, 5)
	_, others := m.query(nil, ids)
	want, wantErr := p.want.Shapes(p.Context(), id.project, id.session, ids)
	found, gotErr := p.got.Shapes(p.Context(), id.project, id.session, others)
	got := map[uint32]*store.Shape{}
	for id, s := range found {
		m.shape(&id)
		got[id] = s
	}
	p.same("Shapes", ids, got, want, gotErr, wantErr)
}

func (p *pair) compareInstances(id sessionID, m *mapping, i interval) {
	p.Helper()
	if p.want.sessions[id].dropped {
		return
	}
	// In the order of the names: ids differ between runs.
	paths := []uint32{0}
	for _, key := range slices.Sorted(maps.Keys(m.want.paths)) {
		paths = append(paths, m.want.paths[key])
	}
	p.Shuffle(len(paths), func(i, j int) { paths[i], paths[j] = paths[j], paths[i] })
	for n, path := range first(paths, 2*p.setup.queries()) {
		for _, sort := range ask(p, []store.InstanceSort{store.InstancesByStart, store.InstancesByWall, store.InstancesByDevice, store.InstancesByQueue}) {
			q := store.InstanceQuery{
				Project: id.project, Session: id.session, Path: path, From: i.from, To: i.to, Sort: sort,
				Limit: []int{0, 3, 10_000}[p.IntN(3)], Name: []string{"", "", "step", "step 1/1001"}[p.IntN(4)],
			}
			if n == 0 {
				q.Limit, q.Name = 10_000, ""
			}
			want, wantErr := p.want.Instances(p.Context(), q)
			q.Path = translate(m.want.paths, m.got.paths, path)
			got, gotErr := p.got.Instances(p.Context(), q)
			p.same("Instances", q, got, want, gotErr, wantErr)
		}
	}
}

func (p *pair) compareGaps(id sessionID, m *mapping, i interval) {
	p.Helper()
	if p.want.sessions[id].dropped {
		return
	}
	for _, q := range ask(p, []store.GapQuery{{}, {Overlapping: true}, {Limit: 5}, {Device: "GPU-1"}, {MinNs: 20_000, Limit: 10_000}, {MinNs: 1, Overlapping: true, Limit: 3}}) {
		q.Project, q.Session, q.From, q.To = id.project, id.session, i.from, i.to
		want, wantErr := p.want.Gaps(p.Context(), q)
		got, gotErr := p.got.Gaps(p.Context(), q)
		for i := range got.Longest {
			m.shape(&got.Longest[i].AfterShape)
		}
		p.same("Gaps", q, got, want, gotErr, wantErr)
	}
}

func (p *pair) compareBusy(id sessionID, i interval) {
	p.Helper()
	s := p.want.sessions[id]
	if s.dropped {
		return
	}
	q := store.BusyQuery{Project: id.project, Session: id.session, Intervals: []store.Interval{{From: i.from, To: i.to}, {From: 0, To: store.MaxTimeNs}}}
	for range 2 * p.setup.queries() {
		for _, i := range p.intervals(s) {
			q.Intervals = append(q.Intervals, store.Interval{From: i.from, To: i.to})
		}
	}
	for _, p := range first(s.sortedSpans(), 200) {
		q.Intervals = append(q.Intervals, store.Interval{From: p.StartNs, To: p.EndNs})
	}
	for _, q.Device = range ask(p, []string{"", "GPU-1", "absent"}) {
		for _, q.Idle = range ask(p, []bool{false, true}) {
			want, wantErr := p.want.Busy(p.Context(), q)
			got, gotErr := p.got.Busy(p.Context(), q)
			p.same("Busy", q, got, want, gotErr, wantErr)
		}
	}
}

func (p *pair) compareSpans(id sessionID, m *mapping, i interval) {
	p.Helper()
	base := store.SpanQuery{Project: id.project, Session: id.session, From: i.from, To: i.to, Overlapping: p.IntN(2) == 0}
	queries := []store.SpanQuery{base, base, base, base, base}
	queries[1].Limit = 3
	if spans := p.want.sessions[id].sortedSpans(); len(spans) > 0 {
		s := spans[p.IntN(len(spans))]
		queries[2].Name = s.Name
		queries[3].Parent, queries[3].Operation = s.Parent, s.Operation
		queries[4].Trace, queries[4].Limit = s.Trace, 20_000
		queries[0].MinNs, queries[1].Longest = spanDuration(s), true
	}
	for _, q := range ask(p, queries) {
		want, wantErr := p.want.Spans(p.Context(), q)
		got, gotErr := p.got.Spans(p.Context(), q)
		for i := range got {
			m.plainSpan(&got[i])
		}
		for i := range want {
			m.identity().plainSpan(&want[i])
		}
		p.same("Spans", q, got, want, gotErr, wantErr)
	}
}

func (p *pair) compareStacks(id sessionID, m *mapping, i interval) {
	p.Helper()
	for _, limit := range ask(p, []int{0, 3, 100_000}) {
		q := store.StackQuery{Project: id.project, Session: id.session, From: i.from, To: i.to, Limit: limit}
		want, wantErr := p.want.Stacks(p.Context(), q)
		got, gotErr := p.got.Stacks(p.Context(), q)
		for i := range got {
			m.path(&got[i].Path)
		}
		p.same("Stacks", q, got, want, gotErr, wantErr)
	}
	// The operations of a stack, of the frames that called its function, and of none.
	ops := slices.DeleteFunc(slices.Clone(p.want.sessions[id].sortedOps()), func(o *store.OpRow) bool { return !strings.Contains(o.StackText, "\n") })
	none, stack, outer := "", "main", "main"
	if len(ops) > 0 {
		stack = ops[len(ops)/2].StackText
		_, outer, _ = strings.Cut(stack, "\n")
	}
	for _, q := range []store.OpQuery{
		{Stack: &stack, StackExact: true}, {Stack: &outer, Sort: store.ByDuration}, {Stack: &none, StackExact: true, Sort: store.ByDuration}, {Stack: &none},
	} {
		q.Project, q.Session, q.From, q.To, q.Limit = id.project, id.session, i.from, i.to, 100
		want, wantErr := p.want.Ops(p.Context(), q)
		got, gotErr := p.got.Ops(p.Context(), q)
		m.plainPage(&got)
		(*mapping).plainPage(m.identity(), &want)
		p.same("Ops of a stack", q, got, want, gotErr, wantErr)
	}
}

func (p *pair) compareSamplesAndLogs(id sessionID, m *mapping, i interval) {
	p.Helper()
	ctx := p.Context()
	for _, q := range ask(p, []store.SampleQuery{
		{}, {ByLine: true}, {ByPC: true}, {ByLine: true, ByPC: true, Limit: 4}, {Kind: store.SampleSASS}, {Function: "F", ByPC: true},
		{ByPath: true}, {ByPath: true, ByLine: true, Limit: 20},
	}) {
		q.Project, q.Session, q.From, q.To = id.project, id.session, i.from, i.to
		q.ByPath = q.ByPath && m != nil
		want, wantErr := p.want.Samples(ctx, q)
		got, gotErr := p.got.Samples(ctx, q)
		if m != nil {
			for i := range got {
				m.path(&got[i].Path)
			}
		}
		p.same("Samples", q, got, want, gotErr, wantErr)
	}
	queries := []store.LogQuery{{}, {Limit: 3}, {Event: "cuda.marker"}, {}}
	if logs := p.want.sessions[id].logs; len(logs) > 0 {
		first := slices.MinFunc(slices.Collect(maps.Keys(logs)), func(a, b store.UID) int { return bytes.Compare(a[:], b[:]) })
		queries[3].Trace = logs[first].Trace
		queries[0].After = &store.LogCursor{TimeNs: logs[first].TimeNs, UID: first}
	}
	for _, q := range ask(p, queries) {
		q.Project, q.Session, q.From, q.To = id.project, id.session, i.from, i.to
		want, wantErr := p.want.Logs(ctx, q)
		got, gotErr := p.got.Logs(ctx, q)
		for _, list := range [][]store.LogRow{got, want} {
			for i := range list {
				list[i].Origin = 0
			}
		}
		p.same("Logs", q, got, want, gotErr, wantErr)
	}
}

func (p *pair) compareMetrics(id sessionID, i interval) {
	p.Helper()
	ctx := p.Context()
	for _, q := range ask(p, []store.SeriesQuery{{}, {Limit: 2}, {Metric: "gpu.power"}, {Device: "GPU-1"}}) {
		q.Project, q.Session, q.From, q.To = id.project, id.session, i.from, i.to
		want, wantErr := p.want.Series(ctx, q)
		got, gotErr := p.got.Series(ctx, q)
		for _, list := range [][]store.SeriesInfo{got, want} {
			for i := range list {
				list[i].Origin = 0
			}
		}
		p.same("Series", q, got, want, gotErr, wantErr)
	}
	series := map[uint64]bool{}
	for k := range p.want.sessions[id].points {
		series[k.series] = true
	}
	for _, key := range slices.Sorted(maps.Keys(series)) {
		counts := []int{0, 4, 4 + p.IntN(40), 20_000}
		p.Shuffle(len(counts), func(i, j int) { counts[i], counts[j] = counts[j], counts[i] })
		for _, n := range ask(p, counts) {
			q := store.PointQuery{Project: id.project, Session: id.session, Series: key, From: i.from, To: i.to, Points: n}
			want, wantErr := p.want.Points(ctx, q)
			got, gotErr := p.got.Points(ctx, q)
			for i := range got {
				got[i].Series = 0
			}
			p.same("Points", q, got, want, gotErr, wantErr)
		}
	}
}

// compareSingle compares the answers for ids of spans and traces.
func (p *pair) compareSingle(id sessionID, m *mapping) {
	p.Helper()
	s := p.want.sessions[id]
	type span struct {
		id store.SpanID
		at int64
	}
	var spans []span
	traces := map[store.TraceID]bool{}
	for _, o := range s.sortedOps() {
		if !s.dropped {
			spans = append(spans, span{o.Op.Span, o.StartNs})
			traces[o.PlaceRef.Trace] = true
		}
	}
	for _, r := range s.sortedSpans() {
		spans = append(spans, span{r.Span.Span, r.StartNs})
		traces[r.Trace] = true
	}
	p.Shuffle(len(spans), func(i, j int) { spans[i], spans[j] = spans[j], spans[i] })
	spans = first(spans, 10*p.setup.queries())
	if p.setup.effort() == 0 {
		spans = first(spans, 4)
	}
	for i, r := range spans {
		if r.id == 0 {
			continue
		}
		if i%2 == 0 {
			r.at = 0
		}
		wantOp, wantSpan, wantErr := p.want.Span(p.Context(), id.project, id.session, r.id, r.at)
		gotOp, gotSpan, gotErr := p.got.Span(p.Context(), id.project, id.session, r.id, r.at)
		if gotOp != nil {
			m.plainOp(gotOp)
		}
		if gotSpan != nil {
			m.plainSpan(gotSpan)
		}
		if wantOp != nil {
			m.identity().plainOp(wantOp)
		}
		if wantSpan != nil {
			m.identity().plainSpan(wantSpan)
		}
		p.same("Span", r, gotOp, wantOp, gotErr, wantErr)
		p.same("Span", r, gotSpan, wantSpan, gotErr, wantErr)
	}
	if s.dropped {
		return
	}
	delete(traces, store.TraceID{})
	order := slices.SortedFunc(maps.Keys(traces), func(a, b store.TraceID) int { return bytes.Compare(a[:], b[:]) })
	p.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, trace := range first(order, 5*p.setup.queries()) {
		want, wantErr := p.want.Trace(p.Context(), id.project, trace)
		got, gotErr := p.got.Trace(p.Context(), id.project, trace)
		p.same("Trace", trace, got, want, gotErr, wantErr)
	}
}

// calls are all methods of Reader and Admin for one session.
func calls(s store.Store, project, id string) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"Session": func(ctx context.Context) error { _, err := s.Session(ctx, project, id); return err },
		"Lanes":   func(ctx context.Context) error { _, err := s.Lanes(ctx, project, id); return err },
		"Shapes":  func(ctx context.Context) error { _, err := s.Shapes(ctx, project, id, []uint32{1}); return err },
		"Scopes":  func(ctx context.Context) error { _, err := s.Scopes(ctx, project, id); return err },
		"Timeline": func(ctx context.Context) error {
			_, err := s.Timeline(ctx, store.TimelineQuery{Project: project, Session: id, Bins: 10})
			return err
		},
		"Ops": func(ctx context.Context) error {
			_, err := s.Ops(ctx, store.OpQuery{Project: project, Session: id})
			return err
		},
		"Kernels": func(ctx context.Context) error {
			_, err := s.Kernels(ctx, store.KernelQuery{Project: project, Session: id})
			return err
		},
		"Instances": func(ctx context.Context) error {
			_, err := s.Instances(ctx, store.InstanceQuery{Project: project, Session: id})
			return err
		},
		"Span": func(ctx context.Context) error { _, _, err := s.Span(ctx, project, id, 77, 0); return err },
		"Spans": func(ctx context.Context) error {
			_, err := s.Spans(ctx, store.SpanQuery{Project: project, Session: id})
			return err
		},
		"Gaps": func(ctx context.Context) error {
			_, err := s.Gaps(ctx, store.GapQuery{Project: project, Session: id})
			return err
		},
		"Busy": func(ctx context.Context) error {
			_, err := s.Busy(ctx, store.BusyQuery{Project: project, Session: id, Intervals: []store.Interval{{From: 1, To: 2}}})
			return err
		},
		"Stacks": func(ctx context.Context) error {
			_, err := s.Stacks(ctx, store.StackQuery{Project: project, Session: id})
			return err
		},
		"Samples": func(ctx context.Context) error {
			_, err := s.Samples(ctx, store.SampleQuery{Project: project, Session: id})
			return err
		},
		"Logs": func(ctx context.Context) error {
			_, err := s.Logs(ctx, store.LogQuery{Project: project, Session: id})
			return err
		},
		"Series": func(ctx context.Context) error {
			_, err := s.Series(ctx, store.SeriesQuery{Project: project, Session: id})
			return err
		},
		"Points": func(ctx context.Context) error {
			_, err := s.Points(ctx, store.PointQuery{Project: project, Session: id, Series: 5})
			return err
		},
		"Pin":    func(ctx context.Context) error { return s.Pin(ctx, project, id, true) },
		"Seal":   func(ctx context.Context) error { return s.Seal(ctx, project, id) },
		"Delete": func(ctx context.Context) error { return s.Delete(ctx, project, id) },
	}
}
