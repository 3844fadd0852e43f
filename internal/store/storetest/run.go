// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/numbered"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// Setup says how to test a store.
type Setup struct {
	// Open returns an empty store. It closes the store at the end of the test.
	Open func(tb testing.TB) store.Store
	// Reopen closes a store and opens one with the same data. Nil skips these tests.
	Reopen func(tb testing.TB, s store.Store) store.Store
	// CountsDuplicates is false for stores that count duplicates as written.
	CountsDuplicates bool
	// Only has the names of the scenarios to run. Empty runs all.
	Only []string
	// Few asks fewer questions in each comparison, for stores whose queries are slow.
	Few bool
}

// soak reports whether to test with more data.
func soak() bool { return os.Getenv("GPUFLIGHT_SOAK") == "1" }

// effort is how many questions a comparison asks: 0 is few, 2 is all.
func (s *Setup) effort() int {
	n := 1
	if soak() {
		n++
	}
	if s.Few {
		n--
	}
	return n
}

// queries is the number of random intervals of each comparison.
func (s *Setup) queries() int { return []int{1, 2, 8}[s.effort()] }

func options(seed uint64) Options {
	o := Options{Projects: 1 + int(seed%2), Sessions: 2, Ops: 160}
	if soak() {
		o.Sessions, o.Ops = 3, 1500
	}
	return o
}

// scenario is one test of a store.
type scenario struct {
	name string
	run  func(p *pair)
}

// Run tests a store, with several scenarios in parallel. GPUFLIGHT_SOAK=1 tests with more data and
// asks more questions.
func Run(t *testing.T, setup Setup) {
	for _, s := range scenarios {
		if len(setup.Only) > 0 && !slices.Contains(setup.Only, s.name) {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.run(newPair(t, &setup))
		})
	}
}

var scenarios = []scenario{
	{"Empty", (*pair).empty},
	{"Redelivered", (*pair).redelivered},
	{"Disorder", (*pair).disorder},
	{"LateParents", (*pair).lateParents},
	{"Numbered", (*pair).numbered},
	{"Sealed", (*pair).sealed},
	{"Reopened", (*pair).reopened},
	{"Hostile", (*pair).hostile},
	{"Rejected", (*pair).rejected},
	{"Points", (*pair).points},
	{"Projects", (*pair).projects},
	{"Delete", (*pair).deleted},
	{"Retain", (*pair).retain},
	{"Baselines", (*pair).baselines},
	{"RawMaxAge", (*pair).rawMaxAge},
	{"NotFound", (*pair).notFound},
	{"Invalid", (*pair).invalid},
	{"Canceled", (*pair).canceled},
	{"Concurrent", (*pair).concurrent},
}

func (p *pair) empty() {
	p.write(nil)
	p.write([]*store.Batch{{Session: "no-rows"}})
	p.compareSessions("")
	for name, call := range calls(p.got, "", "no-rows") {
		require.ErrorIs(p, call(p.Context()), store.ErrNotFound, name)
	}
}

// redelivered writes whole sessions, then the same rows in other batches, then in one call.
func (p *pair) redelivered() {
	batches := Generate(1, options(1))
	p.write(batches)
	p.compare()
	for _, call := range Deliver(batches, 1) {
		p.write(call)
	}
	p.write(append(slices.Clone(batches), batches...))
	p.compare()
}

func (p *pair) disorder() {
	seeds := 2
	if soak() {
		seeds = 5
	}
	for seed := range uint64(seeds) {
		if seed > 0 {
			p.fresh()
		}
		batches := Generate(100+seed, options(seed))
		calls := Deliver(batches, seed)
		for i, call := range calls {
			p.write(call)
			if i == len(calls)/3 || i == len(calls)*2/3 {
				p.compare()
			}
		}
		p.compare()
		// The order of arrival makes no difference to the Memory either.
		ordered := NewMemory()
		_, err := ordered.Write(p.Context(), batches)
		require.NoError(p, err)
		for id, s := range ordered.sessions {
			require.Empty(p, difference(p.want.sessions[id].info(id), s.info(id)), "Memory, %+v", id)
		}
	}
}

// fresh continues with empty stores.
func (p *pair) fresh() {
	p.got, p.want, p.ids = p.setup.Open(p), NewMemory(), map[sessionID]*mapping{}
}

// lateParents writes spans after their operations, each after the spans below it.
func (p *pair) lateParents() {
	batches := Generate(2, options(2))
	rows := rowsOf(batches)
	stage := func(r row) string {
		if r.table != 1 {
			return ""
		}
		s := &r.batch.Spans[r.index]
		return fmt.Sprintf("%v-%019d", s.Operation == semconv.CUDAOperationSession, s.EndNs)
	}
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(stage(a), stage(b)) })
	first := slices.IndexFunc(rows, func(r row) bool { return r.table == 1 })
	p.write(group(rows[:first]))
	p.compare()
	for part := range slices.Chunk(rows[first:], (len(rows)-first)/3+1) {
		p.write(group(part))
		p.compare()
	}
}

// numbered writes spans and places with numbers in their names, before and after these fold.
func (p *pair) numbered() {
	b := &store.Batch{
		Session: "numbered", Origins: []store.Origin{{}, {Key: 1, ScopeName: "x"}}, Extras: []store.Extra{{}}, Series: []store.Series{{}},
		Lanes: []store.Lane{{}, {Key: 1, Device: "GPU-0"}}, Shapes: []store.Shape{{}, {Key: 1, Operation: store.OpKernel, Name: "k"}},
		Stacks: []store.Stack{{}, {Key: 1, Text: "main\nrun"}}, Places: []store.Place{{}},
	}
	at := int64(1e18)
	var calls [][]*store.Batch
	for i := range numbered.Max + 2 {
		at += 1000
		part := *b
		id := store.SpanID(1000 + i)
		part.Places = append(slices.Clone(part.Places),
			store.Place{Key: uint64(3*i + 1), Parent: id, ScopeName: fmt.Sprintf("block.%d", i)},
			store.Place{Key: uint64(3*i + 2), ScopePath: fmt.Sprintf("model|layer %d|x", i)},
			store.Place{Key: uint64(3*i + 3), Parent: 1, ScopeName: fmt.Sprintf("epoch_%d", i/100)})
		for j := range uint32(3) {
			part.Ops = append(part.Ops, store.Op{StartNs: at + int64(j), EndNs: at + 100*int64(j+1), Span: store.SpanID(1e6) + store.SpanID(3*i) + store.SpanID(j),
				Lane: 1, Shape: 1, Place: j + 1, Origin: 1, Stack: uint32(i+int(j)) % 2})
		}
		span := func(id, parent store.SpanID, name string) store.Span {
			return store.Span{StartNs: at, EndNs: at + 500, Span: id, Parent: parent, Name: name, Operation: semconv.CUDAOperationScope, Origin: 1}
		}
		// Children come before their parents.
		part.Spans = []store.Span{span(id+1e5, id, "inner")}
		later := *b
		later.Spans = []store.Span{span(id, 1, fmt.Sprintf("block.%d", i))}
		if i == 100 {
			later.Spans = append(later.Spans, span(1, 0, "model"))
		}
		calls = append(calls, []*store.Batch{&part}, []*store.Batch{&later})
	}
	names := func() (out []string) {
		nodes, err := p.got.Scopes(p.Context(), "", "numbered")
		require.NoError(p, err)
		for _, n := range nodes {
			out = append(out, n.Name)
		}
		return out
	}
	for i, call := range calls {
		p.write(call)
		if i == 2*numbered.Max-1 {
			p.compare()
			require.Contains(p, names(), "block.7")
		}
	}
	p.compare()
	require.ElementsMatch(p, []string{"", "model", "block.*", "inner", "layer *", "x"}, names())
	p.sealAll()
	p.compare()
	if p.setup.Reopen != nil {
		p.reopen()
		p.compare()
	}
}

// sealed seals sessions at several moments. It changes no answer.
func (p *pair) sealed() {
	batches := Generate(3, options(3))
	calls := Deliver(batches, 3)
	half := len(calls) / 2
	for _, call := range calls[:half] {
		p.write(call)
	}
	p.compare()
	p.sealAll()
	p.sealAll()
	p.compare()
	for _, call := range calls[half:] {
		p.write(call)
	}
	for id, s := range p.want.sessions {
		if id.session != "" && !s.sealed {
			info, err := p.got.Session(p.Context(), id.project, id.session)
			require.NoError(p, err)
			require.False(p, info.Sealed, "Sealed after new rows")
		}
	}
	p.compare()
	p.sealAll()
	p.compare()
	p.write(batches)
	p.compare()
}

func (p *pair) sealAll() {
	for id := range p.want.sessions {
		if id.session == "" {
			continue
		}
		require.NoError(p, p.want.Seal(p.Context(), id.project, id.session))
		require.NoError(p, p.got.Seal(p.Context(), id.project, id.session), "Seal")
		info, err := p.got.Session(p.Context(), id.project, id.session)
		require.NoError(p, err)
		require.True(p, info.Sealed, "Sealed after Seal")
	}
}

// reopened opens the store again between writes.
func (p *pair) reopened() {
	if p.setup.Reopen == nil {
		p.Skip("the store cannot be opened again")
	}
	calls := Deliver(Generate(4, options(4)), 4)
	for i, call := range calls {
		p.write(call)
		switch i {
		case len(calls) / 4:
			p.reopen()
		case len(calls) / 2:
			p.compare()
			p.reopen()
			p.compare()
			p.sealAll()
			p.reopen()
		}
	}
	p.reopen()
	p.compare()
}

func (p *pair) hostile() {
	o := options(5)
	o.Hostile, o.Ops = true, 40
	batches := Generate(5, o)
	for i, call := range Deliver(batches, 5) {
		p.write(call)
		if i == 3 {
			p.compare()
		}
	}
	p.compare()
	p.sealAll()
	p.compare()
	if p.setup.Reopen != nil {
		p.reopen()
		p.compare()
	}
}

// rejected writes rows that no store holds.
func (p *pair) rejected() {
	long := strings.Repeat("s", maxSession)
	op := store.Op{StartNs: 5, EndNs: 6, Span: 1}
	p.write([]*store.Batch{
		{Session: long, Ops: []store.Op{op}},
		{Session: long + "s", Ops: []store.Op{op}},
		{Session: "all", Ops: []store.Op{{StartNs: -1}, {StartNs: 1, Shape: 1}}, Points: []store.Point{{Series: 3}}},
		{Session: "origin", Series: []store.Series{{}, {Key: 1, Origin: 9}}, Points: []store.Point{{Series: 1}}},
	})
	require.Len(p, p.want.sessions, 1)
	p.compare()
	p.compareSessions("")
}

// points writes versions of points and a series that M4 reduces.
func (p *pair) points() {
	origins := []store.Origin{{}, {Key: 9, ScopeName: "o"}}
	batch := func(points ...store.Point) []*store.Batch {
		return []*store.Batch{{
			Session: "p", Origins: origins, Series: []store.Series{{}, {Key: math.MaxUint64, Metric: "m", Type: store.Gauge, Origin: 1}},
			Points: points,
		}}
	}
	r := rand.New(rand.NewPCG(8, 8))
	var points []store.Point
	for i := range 3000 {
		pt := store.Point{Series: 1, TimeNs: 1000 + int64(i)*7, Double: float64(r.IntN(20)), HasDouble: true}
		if i%50 == 0 {
			pt.Double = math.NaN()
		}
		if i >= 500 && i < 700 {
			pt.Double = math.NaN()
		}
		points = append(points, pt)
	}
	p.write(batch(points...))
	p.compare()
	for range 3 {
		var part []store.Point
		for range 200 {
			pt := points[r.IntN(len(points))]
			switch r.IntN(4) {
			case 0:
				pt.Double, pt.HasDouble, pt.Int = 0, false, store.Some(int64(r.IntN(20)))
			case 1:
				pt.Double, pt.HasDouble, pt.Data = 0, false, []byte{1, 2, 3}
			case 2:
				pt.Double = float64(r.IntN(40)) - 10
			}
			part = append(part, pt)
		}
		p.write(batch(part...))
		p.compare()
	}
	// One call with several batches: the last one wins.
	one, two := points[0], points[0]
	one.Flags, two.Flags = 1, 2
	p.write(append(batch(two), batch(one)...))
	p.compare()
}

// projects writes the same session ids in several projects and deletes those of one.
func (p *pair) projects() {
	o := options(6)
	o.Projects, o.Ops = 3, 60
	for _, call := range Deliver(Generate(6, o), 6) {
		p.write(call)
	}
	p.compare()
	for id := range p.want.sessions {
		if id.project == "project-1" && id.session != "" {
			p.remove(id)
		}
	}
	p.compare()
	p.compareSessions("project-1")
}

func (p *pair) remove(id sessionID) {
	require.NoError(p, p.want.Delete(p.Context(), id.project, id.session))
	require.NoError(p, p.got.Delete(p.Context(), id.project, id.session), "Delete")
	delete(p.ids, id)
}

// deleted writes sessions again after their deletion.
func (p *pair) deleted() {
	o := options(7)
	o.Ops = 100
	batches := Generate(7, o)
	p.write(batches)
	id := sessionID{"", "session-00"}
	require.NoError(p, p.got.Pin(p.Context(), id.project, id.session, true))
	p.remove(id)
	p.compare()
	for name, call := range calls(p.got, id.project, id.session) {
		require.ErrorIs(p, call(p.Context()), store.ErrNotFound, name)
	}
	p.write(batches)
	p.compare()
}

func (p *pair) compareBaselines(projects ...string) {
	p.Helper()
	for _, project := range projects {
		want, wantErr := p.want.Baselines(p.Context(), project)
		got, gotErr := p.got.Baselines(p.Context(), project)
		p.same("Baselines", project, got, want, gotErr, wantErr)
	}
}

// baselines gives sessions names.
func (p *pair) baselines() {
	ctx := p.Context()
	p.write(Generate(12, Options{Projects: 2, Sessions: 2, Ops: 20}))
	p.compareBaselines("", "project-1", "absent")
	set := func(project, name, session string) {
		p.Helper()
		require.NoError(p, p.want.SetBaseline(ctx, project, name, session))
		require.NoError(p, p.got.SetBaseline(ctx, project, name, session))
		p.compareBaselines("", "project-1")
	}
	set("", "main", "session-00")
	set("", "release 1.2 ü", "session-00")
	set("project-1", "main", "session-01")
	set("", "main", "session-01")
	if p.setup.Reopen != nil {
		p.reopen()
		p.compareBaselines("", "project-1")
	}
	set("", "main", "")
	set("", "other", "session-01")
	for _, s := range []store.Store{p.want, p.got} {
		for _, name := range []string{"", "a/b", "a\nb", "\xff", strings.Repeat("x", 101)} {
			require.ErrorIs(p, s.SetBaseline(ctx, "", name, "session-00"), store.ErrInvalid, "%q", name)
		}
		require.ErrorIs(p, s.SetBaseline(ctx, "", "main", "absent"), store.ErrNotFound)
		require.ErrorIs(p, s.SetBaseline(ctx, "project-1", "release 1.2 ü", ""), store.ErrNotFound)
		require.ErrorIs(p, s.SetBaseline(ctx, "", "main", ""), store.ErrNotFound)
	}
	p.remove(sessionID{"", "session-00"})
	p.compareBaselines("", "project-1")
	p.write(Generate(12, Options{Projects: 2, Sessions: 2, Ops: 20}))
	p.compareBaselines("", "project-1")
}

func (p *pair) retainBoth(l store.Retention) []store.Deleted {
	p.Helper()
	want, wantErr := p.want.Retain(p.Context(), l)
	got, gotErr := p.got.Retain(p.Context(), l)
	for i := range got {
		got[i].Bytes = 0
	}
	p.same("Retain", l, got, want, gotErr, wantErr)
	for _, d := range want {
		if d.Reason != "raw_max_age" {
			delete(p.ids, sessionID{d.Project, d.Session})
		}
	}
	return want
}

func (p *pair) retain() {
	ctx := p.Context()
	o := Options{Projects: 2, Sessions: 4, Ops: 40}
	batches := Generate(8, o)
	p.write(batches)
	pin := func(session string, pinned bool) {
		require.NoError(p, p.want.Pin(ctx, "", session, pinned))
		require.NoError(p, p.got.Pin(ctx, "", session, pinned), "Pin")
	}
	// Live sessions stay; the days without a session go.
	age := time.Since(time.Unix(0, epoch))
	require.Empty(p, p.retainBoth(store.Retention{}))
	require.Empty(p, p.retainBoth(store.Retention{MaxAge: age + 24*time.Hour}))
	require.NotEmpty(p, p.retainBoth(store.Retention{MaxAge: age - 30*time.Hour}))
	p.compare()
	p.sealAll()
	pin("session-00", true)
	pin("session-01", true)
	pin("session-01", false)
	baseline := func(name, session string) {
		require.NoError(p, p.want.SetBaseline(ctx, "", name, session))
		require.NoError(p, p.got.SetBaseline(ctx, "", name, session), "SetBaseline")
		p.compareBaselines("", "absent")
	}
	baseline("main", "session-00")
	baseline("main", "session-01")
	baseline("old", "session-01")
	baseline("main", "session-00")
	baseline("old", "")
	// Sessions start each hour.
	require.NotEmpty(p, p.retainBoth(store.Retention{MaxAge: age - 150*time.Minute}))
	p.compare()
	if p.setup.Reopen != nil {
		p.reopen()
		p.compare()
	}
	require.NotEmpty(p, p.retainBoth(store.Retention{MaxSize: 1}))
	require.NotNil(p, p.want.sessions[sessionID{"", "session-00"}], "pinned")
	p.compareBaselines("")
	pin("session-00", false)
	require.Empty(p, p.retainBoth(store.Retention{MaxSize: 1}), "a baseline")
	p.compare()
}

func (p *pair) rawMaxAge() {
	batches := Generate(9, options(9))
	p.write(batches)
	p.sealAll()
	require.NotEmpty(p, p.retainBoth(store.Retention{RawMaxAge: time.Since(time.Unix(0, epoch)) - 24*time.Hour}))
	for id := range p.want.sessions {
		if id.session == "" {
			continue
		}
		m := p.ids[id]
		if m == nil {
			m = &mapping{newIDs(), newIDs()}
		}
		require.NoError(p, m.want.learn(p.Context(), p.want, id))
		require.NoError(p, m.got.learn(p.Context(), p.got, id))
		p.compareOverview(id, m)
		for _, group := range []store.Group{store.GroupName, store.GroupPath} {
			q := store.KernelQuery{Project: id.project, Session: id.session, Group: group, Limit: 10_000}
			want, wantErr := p.want.Kernels(p.Context(), q)
			got, gotErr := p.got.Kernels(p.Context(), q)
			for i := range got {
				if group == store.GroupPath {
					m.path(&got[i].ID)
				}
			}
			p.same("Kernels", q, got, want, gotErr, wantErr)
		}
		q := store.OpQuery{Project: id.project, Session: id.session}
		page, err := p.got.Ops(p.Context(), q)
		require.NoError(p, err)
		require.Empty(p, page.Rows)
		samples, err := p.got.Samples(p.Context(), store.SampleQuery{Project: id.project, Session: id.session})
		require.NoError(p, err)
		require.Empty(p, samples)
	}
	p.write(batches)
}

func (p *pair) notFound() {
	p.write(Generate(10, Options{Sessions: 1, Ops: 30}))
	for _, id := range []sessionID{{"", "absent"}, {"absent", "session-00"}} {
		for name, call := range calls(p.got, id.project, id.session) {
			require.ErrorIs(p, call(p.Context()), store.ErrNotFound, "%s of %+v", name, id)
		}
	}
	for _, name := range []string{"Session", "Lanes", "Shapes", "Scopes", "Timeline", "Kernels", "Instances", "Stacks", "Gaps", "Busy", "Pin", "Seal", "Delete"} {
		require.ErrorIs(p, calls(p.got, "", "")[name](p.Context()), store.ErrNotFound, "%s of no session", name)
	}
	for _, name := range []string{"Span", "Points"} {
		require.ErrorIs(p, calls(p.got, "", "session-00")[name](p.Context()), store.ErrNotFound, name)
		require.ErrorIs(p, calls(p.got, "", "")[name](p.Context()), store.ErrNotFound, name)
	}
	for _, name := range []string{"Ops", "Spans", "Samples", "Logs", "Series"} {
		require.NoError(p, calls(p.got, "absent", "")[name](p.Context()), "%s of no session", name)
	}
	o := p.want.sessions[sessionID{"", "session-00"}].sortedOps()[0]
	_, _, err := p.got.Span(p.Context(), "", "session-00", o.Op.Span, o.StartNs+1)
	require.ErrorIs(p, err, store.ErrNotFound, "Span at another time")
	_, _, err = p.got.Span(p.Context(), "", "session-00", 0, 0)
	require.ErrorIs(p, err, store.ErrNotFound, "Span 0")
	_, err = p.got.Sessions(p.Context(), store.SessionQuery{After: "absent"})
	require.ErrorIs(p, err, store.ErrNotFound, "Sessions after an unknown one")
	refs, err := p.got.Trace(p.Context(), "", store.TraceID{1})
	require.NoError(p, err)
	require.Empty(p, refs)
	p.compare()
}

func (p *pair) invalid() {
	p.write(Generate(11, Options{Sessions: 1, Ops: 30}))
	const id = "session-00"
	ctx := p.Context()
	// Each call takes an interval and a limit; most is the largest limit, 0 for none.
	calls := []struct {
		name string
		most int
		call func(from, to int64, limit int) error
	}{
		{"Sessions", 1000, func(from, to int64, limit int) error {
			_, err := p.got.Sessions(ctx, store.SessionQuery{From: from, To: to, Limit: limit})
			return err
		}},
		{"Timeline", 0, func(from, to int64, _ int) error {
			_, err := p.got.Timeline(ctx, store.TimelineQuery{Session: id, From: from, To: to, Bins: 5})
			return err
		}},
		{"Ops", 20_000, func(from, to int64, limit int) error {
			_, err := p.got.Ops(ctx, store.OpQuery{Session: id, From: from, To: to, Limit: limit})
			return err
		}},
		{"Kernels", 10_000, func(from, to int64, limit int) error {
			_, err := p.got.Kernels(ctx, store.KernelQuery{Session: id, From: from, To: to, Limit: limit})
			return err
		}},
		{"Instances", 10_000, func(from, to int64, limit int) error {
			_, err := p.got.Instances(ctx, store.InstanceQuery{Session: id, From: from, To: to, Limit: limit})
			return err
		}},
		{"Stacks", 100_000, func(from, to int64, limit int) error {
			_, err := p.got.Stacks(ctx, store.StackQuery{Session: id, From: from, To: to, Limit: limit})
			return err
		}},
		{"Spans", 20_000, func(from, to int64, limit int) error {
			_, err := p.got.Spans(ctx, store.SpanQuery{Session: id, From: from, To: to, Limit: limit})
			return err
		}},
		{"Gaps", 10_000, func(from, to int64, limit int) error {
			_, err := p.got.Gaps(ctx, store.GapQuery{Session: id, From: from, To: to, Limit: limit})
			return err
		}},
		{"Samples", 100_000, func(from, to int64, limit int) error {
			_, err := p.got.Samples(ctx, store.SampleQuery{Session: id, From: from, To: to, Limit: limit})
			return err
		}},
		{"Logs", 10_000, func(from, to int64, limit int) error {
			_, err := p.got.Logs(ctx, store.LogQuery{Session: id, From: from, To: to, Limit: limit})
			return err
		}},
		{"Series", 10_000, func(from, to int64, limit int) error {
			_, err := p.got.Series(ctx, store.SeriesQuery{Session: id, From: from, To: to, Limit: limit})
			return err
		}},
	}
	for _, c := range calls {
		require.NoError(p, c.call(1, store.MaxTimeNs, c.most), "%s at the limits", c.name)
		for _, i := range []interval{{-1, 5}, {5, -1}, {5, 5}, {6, 5}, {1, store.MaxTimeNs + 1}, {store.MaxTimeNs + 1, 0}, {math.MinInt64, math.MaxInt64}} {
			require.ErrorIs(p, c.call(i.from, i.to, 0), store.ErrInvalid, "%s: %+v", c.name, i)
		}
		if c.most > 0 {
			require.ErrorIs(p, c.call(0, 0, c.most+1), store.ErrInvalid, "%s: limit", c.name)
			require.ErrorIs(p, c.call(0, 0, -1), store.ErrInvalid, "%s: limit -1", c.name)
		}
	}
	for _, bins := range []int{-1, 0, 4001} {
		_, err := p.got.Timeline(ctx, store.TimelineQuery{Session: id, Bins: bins})
		require.ErrorIs(p, err, store.ErrInvalid, "%d bins", bins)
	}
	_, err := p.got.Timeline(ctx, store.TimelineQuery{Session: id, Bins: 4000})
	require.NoError(p, err)
	for key := range p.want.sessions[sessionID{"", id}].points {
		for _, n := range []int{-1, 1, 3, 20_001} {
			_, err := p.got.Points(ctx, store.PointQuery{Session: id, Series: key.series, Points: n})
			require.ErrorIs(p, err, store.ErrInvalid, "%d points", n)
		}
	}
	_, err = p.got.Trace(ctx, "", store.TraceID{})
	require.ErrorIs(p, err, store.ErrInvalid, "zero trace")
	for _, intervals := range [][]store.Interval{{{From: -1, To: 5}}, {{From: 5, To: -1}}, {{From: 1, To: store.MaxTimeNs + 1}}, make([]store.Interval, store.MaxIntervals+1)} {
		_, err = p.got.Busy(ctx, store.BusyQuery{Session: id, Intervals: intervals})
		require.ErrorIs(p, err, store.ErrInvalid, "%d intervals from %d", len(intervals), intervals[0].From)
	}
	busy, err := p.got.Busy(ctx, store.BusyQuery{Session: id, Intervals: []store.Interval{{From: 5, To: 5}, {From: 6, To: 5}}})
	require.NoError(p, err)
	require.Equal(p, []int64{0, 0}, busy)
	_, err = p.got.Kernels(ctx, store.KernelQuery{Session: id, Group: 200})
	require.ErrorIs(p, err, store.ErrInvalid, "group 200")
}

func (p *pair) canceled() {
	batches := Generate(12, Options{Sessions: 2, Ops: 60})
	p.write(batches[:1])
	ctx, cancel := context.WithCancel(p.Context())
	cancel()
	_, err := p.got.Write(ctx, batches[1:])
	require.ErrorIs(p, err, context.Canceled, "Write")
	for name, call := range calls(p.got, "", "session-00") {
		require.ErrorIs(p, call(ctx), context.Canceled, name)
	}
	_, err = p.got.Sessions(ctx, store.SessionQuery{})
	require.ErrorIs(p, err, context.Canceled, "Sessions")
	_, err = p.got.Trace(ctx, "", store.TraceID{1})
	require.ErrorIs(p, err, context.Canceled, "Trace")
	_, err = p.got.Retain(ctx, store.Retention{MaxSize: 1})
	require.ErrorIs(p, err, context.Canceled, "Retain")
	p.compare()
	p.compareSessions("")
	p.write(batches)
	p.compare()
}

// concurrent writes and reads from several goroutines. Counts never decrease meanwhile.
func (p *pair) concurrent() {
	batches := Generate(13, options(13))
	_, err := p.want.Write(p.Context(), batches)
	require.NoError(p, err)
	ctx, stop := context.WithCancel(p.Context())
	var writers, readers sync.WaitGroup
	errs := make(chan error, 10)
	for w := range uint64(3) {
		writers.Go(func() {
			for _, call := range Deliver(batches, w) {
				if _, err := p.got.Write(p.Context(), clone(call)); err != nil {
					errs <- fmt.Errorf("write: %w", err)
					return
				}
			}
		})
	}
	for range 2 {
		readers.Go(func() {
			last := map[string]int64{}
			for ctx.Err() == nil {
				if err := readAll(ctx, p.got, last); err != nil && ctx.Err() == nil {
					errs <- err
					return
				}
			}
		})
	}
	readers.Go(func() {
		for ctx.Err() == nil {
			err := p.got.Seal(ctx, "", "session-00")
			if err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrNotFound) {
				errs <- fmt.Errorf("seal: %w", err)
				return
			}
		}
	})
	writers.Wait()
	stop()
	readers.Wait()
	close(errs)
	for err := range errs {
		assert.NoError(p, err)
	}
	p.compare()
}

// readAll reads all sessions once. last has the number of operations of the previous time.
func readAll(ctx context.Context, s store.Store, last map[string]int64) error {
	sessions, err := s.Sessions(ctx, store.SessionQuery{})
	if err != nil {
		return err
	}
	for _, info := range sessions {
		for name, call := range calls(s, info.Project, info.ID) {
			if name == "Pin" || name == "Seal" || name == "Delete" {
				continue
			}
			if err := call(ctx); err != nil && !errors.Is(err, store.ErrNotFound) {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		page, err := s.Ops(ctx, store.OpQuery{Project: info.Project, Session: info.ID, Limit: 20_000})
		if err != nil {
			return err
		}
		if n := int64(len(page.Rows)); n < info.Counts["ops"] || n < last[info.ID] {
			again, err := s.Ops(ctx, store.OpQuery{Project: info.Project, Session: info.ID, Limit: 20_000})
			if err != nil {
				return err
			}
			return fmt.Errorf("operations of %s: got %d, had %d; then got %d", info.ID, n, max(info.Counts["ops"], last[info.ID]), len(again.Rows))
		}
		last[info.ID] = int64(len(page.Rows))
	}
	return nil
}
