// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
)

// queueSQL is the queue time of a row of ops.
const queueSQL = "CASE WHEN queue_from_launch THEN launch_lead_ns - launch_dur_ns ELSE queue_ns END"

const opColumns = "start_ns, dur_ns, span, lane, shape, place, stack, origin, extra, launch_lead_ns, launch_dur_ns, " + queueSQL +
	", correlation, bytes, address, estimated"

func scanOp(r *sql.Rows, o *store.Op) error {
	err := r.Scan(&o.StartNs, &o.EndNs, &o.Span, &o.Lane, &o.Shape, &o.Place, &o.Stack, &o.Origin, &o.Extra,
		nullInt{&o.LaunchStartNs}, nullInt{&o.LaunchEndNs}, nullInt{&o.QueueNs}, nullInt{&o.Correlation},
		nullInt{&o.Bytes}, nullInt{&o.Address}, &o.Estimated)
	o.EndNs += o.StartNs
	base := o.StartNs
	if o.LaunchStartNs.OK {
		o.LaunchStartNs.V = o.StartNs - o.LaunchStartNs.V
		base = o.LaunchStartNs.V
	}
	if o.LaunchEndNs.OK {
		o.LaunchEndNs.V += base
	}
	return err
}

// Ops implements [store.Reader].
func (s *Store) Ops(ctx context.Context, q store.OpQuery) (store.OpPage, error) {
	n, err := answer.Limits(q.From, q.To, q.Limit, 1000, 20_000)
	if err == nil && q.Sort > store.ByQueue {
		err = fmt.Errorf("order %d: %w", q.Sort, store.ErrInvalid)
	}
	if err != nil {
		return store.OpPage{}, fmt.Errorf("read operations: %w", err)
	}
	v, err := s.open(ctx, q.Project, q.Session, true)
	if err != nil || v == nil {
		return store.OpPage{}, err
	}
	defer v.close()
	if q.MinNs < 0 || q.MaxNs < 0 || (q.Path != nil || q.Below) && q.Session == "" {
		return store.OpPage{}, fmt.Errorf("read operations: %w", store.ErrInvalid)
	}
	if v.dropped {
		return store.OpPage{}, nil
	}
	f, err := v.selectOps(ctx, &q)
	if err != nil {
		return store.OpPage{}, fmt.Errorf("read operations: %w", err)
	}
	value, order := "start_ns", "start_ns, span"
	switch q.Sort {
	case store.ByDuration:
		value = durationSQL
	case store.ByQueue:
		value = queueOrderSQL
	}
	if q.Sort != store.ByStart {
		order = value + " DESC, " + order
	}
	if a := q.After; a != nil {
		if q.Sort == store.ByStart {
			f.add("start_ns >= ? AND (start_ns > ? OR span > ?::UBIGINT)", a.StartNs, a.StartNs, u64(a.Span))
		} else {
			f.add("("+value+" < ? OR "+value+" = ? AND (start_ns > ? OR start_ns = ? AND span > ?::UBIGINT))",
				a.Value, a.Value, a.StartNs, a.StartNs, u64(a.Span))
		}
	}
	page := store.OpPage{Shapes: map[uint32]*store.Shape{}}
	read := func(rows string, f filter) error {
		page.Rows = page.Rows[:0]
		return v.each(ctx, "SELECT "+opColumns+" FROM "+rows+f.where()+" ORDER BY "+order+" LIMIT ?", append(f.args, n+1),
			func(r *sql.Rows) error {
				var o store.OpRow
				err := scanOp(r, &o.Op)
				page.Rows = append(page.Rows, o)
				return err
			})
	}
	readTop := func() (complete bool, err error) {
		t, err := v.topOps(ctx, &q, filter{slices.Clone(f.conditions), slices.Clone(f.args)}, value)
		if t == nil || err != nil {
			return false, err
		}
		if err = read(t.rows, t.filter); err != nil {
			return false, err
		}
		same, err := v.marked(ctx, t.marks)
		v.s.mu.RLock()
		same = same && (q.Path == nil || v.sess.epoch == v.epoch)
		v.s.mu.RUnlock()
		if !same {
			page.Rows = nil
		}
		return same && t.complete, err
	}
	var end int64
	var none bool
	large := q.Sort != store.ByStart && !v.few(q.From, q.To)
	if large {
		none, err = readTop()
	}
	if err == nil && len(page.Rows) <= n && !none {
		err = v.selectPath(ctx, &q, &f)
		switch {
		case err != nil:
		case large:
			none, err = v.skipLess(ctx, &q, &f, n)
		case q.Sort == store.ByStart:
			end, err = v.pageEnd(ctx, &q, n)
		}
	}
	if err != nil {
		return store.OpPage{}, fmt.Errorf("read operations: %w", err)
	}
	if end > 0 {
		near := f
		near.add("start_ns < ?", end)
		err = read("{ops}", near)
	}
	if err == nil && len(page.Rows) <= n && !none { // also if the cursor excludes rows that pageEnd counted
		err = read("{ops}", f)
	}
	if err == nil {
		if page.More = len(page.Rows) > n; page.More {
			page.Rows = page.Rows[:n]
		}
		page.Shapes, err = v.complete(ctx, page.Rows)
		if q.Session == "" {
			page.Shapes = nil
		}
	}
	if err != nil {
		return store.OpPage{}, fmt.Errorf("read operations: %w", err)
	}
	return page, nil
}

// selectOps returns the conditions of a query for operations, without the path and the cursor.
func (v *view) selectOps(ctx context.Context, q *store.OpQuery) (f filter, err error) {
	if q.Overlapping && q.From != 0 {
		// Rows that start earlier end before the interval. DuckDB skips row groups by this bound.
		earliest, err := v.earliest(ctx, q.From)
		if err != nil {
			return f, err
		}
		f.add("start_ns >= ?", earliest)
	}
	f.interval("start_ns", "start_ns + greatest(dur_ns, 0)", q.From, q.To, q.Overlapping)
	if len(q.Operations) > 0 {
		f.add("shape IN (SELECT id FROM {shapes} WHERE list_contains(?::BIGINT[], operation))", idList(q.Operations))
	}
	if len(q.Lanes) > 0 {
		f.add("list_contains(?::BIGINT[], lane)", idList(q.Lanes))
	}
	if len(q.Shapes) > 0 {
		f.add("list_contains(?::BIGINT[], shape)", idList(q.Shapes))
	}
	if q.Name != "" {
		f.add("shape IN (SELECT id FROM {shapes} WHERE name = ?)", q.Name)
	}
	if q.Parent != 0 {
		parents := []uint64{uint64(q.Parent)}
		if q.Below {
			tops := map[store.SpanID]bool{q.Parent: true}
			t, err := v.treeBelow(ctx, tops)
			if err != nil {
				return f, err
			}
			t.below(tops, func(span, _ store.SpanID) { parents = append(parents, uint64(span)) })
		}
		f.add("place IN (SELECT id FROM {places} WHERE parent IN (SELECT unnest(?::UBIGINT[])))", parents)
	}
	if q.Trace != (store.TraceID{}) {
		f.add("place IN (SELECT id FROM {places} WHERE trace = ?::BLOB)", bytes.Clone(q.Trace[:]))
	}
	if q.MinNs > 0 {
		f.add("greatest(dur_ns, 0) >= ?", q.MinNs)
	}
	if q.MaxNs > 0 {
		f.add("greatest(dur_ns, 0) <= ?", q.MaxNs)
	}
	if q.Stack != nil {
		switch {
		case !q.StackExact:
			f.add("stack IN (SELECT id FROM {stacks} WHERE text != '' AND (text = ? OR ends_with(text, ?)))", *q.Stack, "\n"+*q.Stack)
		case *q.Stack != "":
			f.add("stack IN (SELECT id FROM {stacks} WHERE text = ?)", *q.Stack)
		default:
			f.add("stack NOT IN (SELECT id FROM {stacks} WHERE text != '')")
		}
	}
	return f, nil
}

// selectPath adds the path of a query to a filter.
func (v *view) selectPath(ctx context.Context, q *store.OpQuery, f *filter) error {
	if q.Path != nil {
		inside, err := whileFresh(ctx, v, func() (string, error) { return v.insidePath(ctx, *q.Path, q.Direct, "{places}") }, func() (string, error) {
			places, err := v.placesOfPath(ctx, f, *q.Path, q.Direct)
			return "place IN (" + joinIDs(places) + ")", err
		})
		if err != nil {
			return err
		}
		f.add(inside)
	}
	return nil
}

// opStarts is how many operations start before each of some times: from, from + width, and so on.
type opStarts struct {
	from, width int64
	before      []int64
}

// startsOps is the number of operations for which opStarts has one time.
const startsOps = 4096

func (v *view) opStarts(ctx context.Context) (*opStarts, error) {
	return cached(v, "op starts", func() (*opStarts, int, error) {
		lanes, err := v.laneInfos(ctx)
		if err != nil {
			return nil, 0, err
		}
		var all int64
		for i := range lanes {
			all += lanes[i].Count
		}
		t, err := v.timeline(ctx, store.TimelineQuery{Bins: int(min(max(all/startsOps, 1), 4000))})
		if err != nil {
			return nil, 0, err
		}
		x := &opStarts{from: t.From, width: t.Width, before: []int64{0}}
		for i := range t.Bins {
			b := &t.Bins[i]
			for int(b.Index)+1 >= len(x.before) {
				x.before = append(x.before, 0)
			}
			x.before[b.Index+1] += b.Count
		}
		for i := range x.before[1:] {
			x.before[i+1] += x.before[i]
		}
		return x, len(x.before), nil
	})
}

// pageEnd returns a time before which a page of more than n operations from the cursor on ends, or 0 if it is
// unknown. With it, DuckDB does not read the rows after the page.
func (v *view) pageEnd(ctx context.Context, q *store.OpQuery, n int) (int64, error) {
	if v.sess.id == "" || len(q.Operations) > 0 || len(q.Lanes) > 0 || len(q.Shapes) > 0 || q.Name != "" || q.Parent != 0 ||
		q.Trace != (store.TraceID{}) || q.MinNs > 0 || q.MaxNs > 0 || q.Path != nil || q.Stack != nil {
		return 0, nil
	}
	x, err := v.opStarts(ctx)
	if err != nil || x.width == 0 {
		return 0, err
	}
	at := q.From
	if q.After != nil {
		at = max(at, q.After.StartNs)
	}
	first := 0
	if at > x.from {
		first = int(min((at-x.from+x.width-1)/x.width, int64(len(x.before)-1)))
	}
	i := sort.Search(len(x.before), func(i int) bool { return x.before[i]-x.before[first] > int64(n) })
	if end := x.from + int64(i)*x.width; i < len(x.before) && (q.To == 0 || end < q.To) {
		return end, nil
	}
	return 0, nil
}

// fewOps is about the number of operations of an interval up to which all are read for a page by value. To find a
// bound first takes twice the time, because a condition for a path is a join.
const fewOps = 1 << 21

// few reports whether an interval probably has few operations.
func (v *view) few(from, to int64) bool {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	i := &v.sess.info
	first, last := max(from, i.FirstNs), min(cmp.Or(to, i.LastNs), i.LastNs)
	share := float64(max(last-first, 0)) / float64(max(i.LastNs-i.FirstNs, 1))
	return share*float64(i.Counts["ops"]) <= float64(v.s.fewOps)
}

// sampleShare is the share of the interval of a page in which skipLess looks for a first bound.
const sampleShare = 32

// skipLess adds to a filter a value that all operations of a page of more than n by duration or queue time reach, if
// one is known. DuckDB then skips most operations. The bound comes from the statistics or, without them, from the
// first part of the interval. By duration it is then made exact, which takes less time than to read more operations.
// None says that no operation has the conditions.
func (v *view) skipLess(ctx context.Context, q *store.OpQuery, f *filter, n int) (none bool, err error) {
	value, conditions := "dur_ns", []string{"dur_ns >= ?"}
	var least int64
	known, err := v.durations(ctx, q, n)
	if err != nil || known != nil && known.count == 0 {
		return true, err
	}
	if known != nil {
		// DuckDB compares the place only of rows with such a duration.
		f.add("dur_ns <= ?", known.longest)
		if q.Sort == store.ByDuration {
			least = known.least
		} else if known.shortest > 0 {
			f.add("dur_ns >= ?", known.shortest)
		}
	}
	if q.Sort == store.ByQueue {
		value, conditions = queueSQL, []string{queueSQL + " >= ?"}
		// DuckDB skips rows by a column. The time from the launch to the start is at least a queue time that is
		// the time from the end of the launch.
		var others bool
		err = v.each(ctx, "SELECT EXISTS(FROM {ops} WHERE queue_ns IS NOT NULL) OR EXISTS(FROM {ops} WHERE launch_dur_ns < 0)", nil,
			func(r *sql.Rows) error { return r.Scan(&others) })
		if !others {
			conditions = append(conditions, "launch_lead_ns >= ?")
		}
	}
	// nth returns the value that more than n operations of a filter reach, 0 if there is none.
	nth := func(f filter) (x int64, err error) {
		var found int64
		err = v.each(ctx, "SELECT count(x), coalesce(min(x), 0) FROM (SELECT "+value+" AS x FROM {ops}"+f.where()+" ORDER BY x DESC NULLS LAST LIMIT ?)",
			append(slices.Clone(f.args), n+1), func(r *sql.Rows) error { return r.Scan(&found, &x) })
		if found <= int64(n) {
			x = 0
		}
		return x, err
	}
	if err == nil && least == 0 {
		from, to := v.extent()
		from, to = max(from, q.From), min(to, cmp.Or(q.To, to))
		part := filter{slices.Clone(f.conditions), slices.Clone(f.args)}
		part.add("start_ns < ?", from+max(to-from, 0)/sampleShare)
		least, err = nth(part)
	}
	if err != nil || least <= 0 {
		return false, err
	}
	if q.Sort == store.ByDuration {
		rough := filter{slices.Clone(f.conditions), slices.Clone(f.args)}
		rough.add("dur_ns >= ?", least)
		exact, err := nth(rough) // 0 if there are fewer
		f.add("dur_ns >= ?", max(exact, least))
		return false, err
	}
	for _, condition := range conditions {
		f.add(condition, least)
	}
	return false, nil
}

// extent returns the first start and the last end of the session.
func (v *view) extent() (from, to int64) {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	return v.sess.info.FirstNs, v.sess.info.LastNs
}

// durations is what the statistics say of the operations of a whole session that a page by value may have: their
// number, and bounds of their durations. At least n+1 operations after the cursor last least or longer; with fewer,
// all do.
type durations struct{ count, shortest, longest, least int64 }

// durations returns nil if the statistics do not have the conditions of a query.
func (v *view) durations(ctx context.Context, q *store.OpQuery, n int) (*durations, error) {
	if q.From != 0 || q.To != 0 || q.Parent != 0 || q.Trace != (store.TraceID{}) || len(q.Lanes) > 0 || q.MaxNs != 0 || q.Stack != nil || v.sess.id == "" ||
		q.Path != nil && v.stale {
		return nil, nil
	}
	parts, err := v.rollupParts(ctx, false, q.Path != nil)
	if err != nil {
		return nil, err
	}
	var paths map[where][]string
	if q.Path != nil {
		if paths, err = v.partPaths(ctx, parts); err != nil {
			return nil, err
		}
	}
	ids := idSet{}
	for i := range parts {
		ids.add(parts[i].shape)
	}
	shapes, err := v.shapes(ctx, ids)
	if err != nil {
		return nil, err
	}
	last := store.Bucket(store.MaxTimeNs)
	if q.Sort == store.ByDuration && q.After != nil {
		// Those of the same bucket may be before the cursor.
		last = store.Bucket(max(q.After.Value, 0))
	}
	d := &durations{longest: -1}
	counts := make([]int64, int(store.Bucket(store.MaxTimeNs))+1)
	for i := range parts {
		p := &parts[i]
		shape := orEmpty(shapes[p.shape])
		if (len(q.Operations) == 0 || slices.Contains(q.Operations, shape.Operation)) && (len(q.Shapes) == 0 || slices.Contains(q.Shapes, p.shape)) &&
			(q.Name == "" || q.Name == shape.Name) && (q.Path == nil || v.inside(paths[p.where()], *q.Path, q.Direct)) {
			counts[p.bucket] += p.n
			d.count += p.n
			d.longest = max(d.longest, p.max)
		}
	}
	found := int64(0)
	for b := len(counts) - 1; b >= 0; b-- {
		if counts[b] == 0 {
			continue
		}
		d.shortest, _ = store.BucketBounds(uint16(b))
		if q.Sort == store.ByDuration && (q.After == nil || b < int(last)) {
			if found <= int64(n) {
				d.least = d.shortest
			}
			found += counts[b]
		}
	}
	return d, nil
}

// inside reports whether a list of names is a path, or below it unless direct.
func (v *view) inside(names []string, path uint32, direct bool) bool {
	if direct {
		return v.pathID(names) == path
	}
	for n := range len(names) + 1 {
		if v.pathID(names[:n]) == path {
			return true
		}
	}
	return false
}

// insidePath returns a condition for the operations of a path, from the chains. It is SQL, and so are the places that
// it considers.
func (v *view) insidePath(ctx context.Context, path uint32, direct bool, places string) (string, error) {
	inside := func(names []string) bool { return v.inside(names, path, direct) }
	known, chains := []string{"4294967295"}, []string{"4294967295"} // no chain has this id
	err := v.each(ctx, "SELECT id, key FROM "+latestChains+" WHERE state = 0", nil, func(r *sql.Rows) error {
		var id uint32
		var key []byte
		err := r.Scan(&id, &key)
		text := strconv.FormatUint(uint64(id), 10)
		known = append(known, text)
		if inside(v.folds.Names(splitKey(string(key)))) {
			chains = append(chains, text)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	texts := map[bool][]string{} // names and paths of places, by whether they are paths
	none := scopePaths{nil, v.folds}
	err = v.each(ctx, "SELECT DISTINCT CASE WHEN scope_path = '' THEN scope_name ELSE scope_path END, scope_path != '' FROM "+places, nil, func(r *sql.Rows) error {
		var text string
		var isPath bool
		err := r.Scan(&text, &isPath)
		p := store.Place{ScopeName: text}
		if isPath {
			p = store.Place{ScopePath: text}
		}
		if inside(none.place(&p)) {
			texts[isPath] = append(texts[isPath], textSQL(text))
		}
		return err
	})
	if err != nil {
		return "", err
	}
	of := func(chains []string) string {
		return "SELECT span FROM {spans} WHERE span != 0 AND chain IN (" + strings.Join(chains, ", ") + ")"
	}
	in := func(column string, list []string) string {
		if len(list) == 0 {
			return "false"
		}
		return column + " IN (" + strings.Join(list, ", ") + ")"
	}
	// DuckDB compares entries of a dictionary of texts, not rows, if a scan has no other condition.
	condition := "place IN (SELECT id FROM " + places + " WHERE " + in("scope_path", texts[true]) + " UNION ALL SELECT id FROM " + places + " WHERE scope_path = '' AND parent IN (" + of(chains) + ")"
	if len(texts[false]) > 0 {
		condition += " UNION ALL SELECT id FROM " + places + " WHERE scope_path = '' AND " + in("scope_name", texts[false]) + " AND parent NOT IN (" + of(known) + ")"
	}
	condition += ")"
	if inside(nil) {
		condition = "(place = 0 OR " + condition + ")"
	}
	return condition, nil
}

// placesOfPath returns the ids of the places that the selected operations have and that are in a path. The
// list is not empty.
func (v *view) placesOfPath(ctx context.Context, f *filter, path uint32, direct bool) ([]uint32, error) {
	ids := idSet{}
	list := []uint32{math.MaxUint32}
	all := map[uint32]bool{}
	err := v.each(ctx, "SELECT DISTINCT place FROM {ops}"+f.where(), slices.Clone(f.args), func(r *sql.Rows) error {
		var id uint32
		err := r.Scan(&id)
		ids.add(id)
		all[id] = true
		return err
	})
	if err != nil {
		return nil, err
	}
	places, err := v.places(ctx, ids)
	if err != nil {
		return nil, err
	}
	t, err := v.pathsOf(ctx, places)
	if err != nil {
		return nil, err
	}
	for id := range all {
		if v.inside(t.place(orEmpty(places[id])), path, direct) {
			list = append(list, id)
		}
	}
	return list, nil
}

// Shapes implements [store.Reader].
func (s *Store) Shapes(ctx context.Context, project, session string, ids []uint32) (map[uint32]*store.Shape, error) {
	v, err := s.open(ctx, project, session, false)
	if err != nil {
		return nil, err
	}
	defer v.close()
	if len(ids) > 10_000 {
		return nil, fmt.Errorf("read %d shapes: %w", len(ids), store.ErrInvalid)
	}
	set := idSet{}
	for _, id := range ids {
		set.add(id)
	}
	shapes, err := v.shapes(ctx, set)
	if err != nil {
		return nil, fmt.Errorf("read shapes: %w", err)
	}
	return owned(shapes), nil
}

// earliest returns a time before which no operation starts that ends after at.
func (v *view) earliest(ctx context.Context, at int64) (int64, error) {
	first := at - shortNs
	err := v.each(ctx, "SELECT least(?, min(start_ns)) FROM {long_ops} WHERE start_ns < ? AND end_ns > ?", []any{first, at, at},
		func(r *sql.Rows) error { return r.Scan(&first) })
	return first, err
}

// complete adds the contents of dictionaries to operations.
func (v *view) complete(ctx context.Context, rows []store.OpRow) (map[uint32]*store.Shape, error) {
	var ids [6]idSet
	for i := range ids {
		ids[i] = idSet{}
	}
	var last [len(ids)]uint32 // of the row before, because most are the same
	for i := range rows {
		o := &rows[i].Op
		for j, id := range [...]uint32{o.Lane, o.Shape, o.Place, o.Stack, o.Origin, o.Extra} {
			if id != last[j] {
				ids[j].add(id)
				last[j] = id
			}
		}
	}
	lanes, err := v.lanes(ctx, ids[0])
	if err != nil {
		return nil, err
	}
	shapes, err := v.shapes(ctx, ids[1])
	if err != nil {
		return nil, err
	}
	places, err := v.places(ctx, ids[2])
	if err != nil {
		return nil, err
	}
	stacks, err := v.stacks(ctx, ids[3])
	if err != nil {
		return nil, err
	}
	origins, err := v.origins(ctx, ids[4])
	if err != nil {
		return nil, err
	}
	extras, err := v.extras(ctx, ids[5])
	if err != nil {
		return nil, err
	}
	lanes, shapes, origins = owned(lanes), owned(shapes), owned(origins)
	for i := range rows {
		r := &rows[i]
		r.LaneRef, r.ShapeRef, r.OriginRef = orEmpty(lanes[r.Lane]), orEmpty(shapes[r.Shape]), orEmpty(origins[r.Origin])
		r.PlaceRef = *orEmpty(places[r.Place])
		r.StackText = orEmpty(stacks[r.Stack]).Text
		r.Attrs = orEmpty(extras[r.Extra]).Attrs
		r.Place, r.Stack, r.Origin, r.Extra = 0, 0, 0, 0
	}
	return shapes, nil
}

// owned copies entries, so that a caller may change its answer.
func owned[T any](m map[uint32]*T) map[uint32]*T {
	out := make(map[uint32]*T, len(m))
	for id, e := range m {
		c := *e
		out[id] = &c
	}
	return out
}

func orEmpty[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
}

// Span implements [store.Reader].
func (s *Store) Span(ctx context.Context, project, session string, id store.SpanID, at int64) (*store.OpRow, *store.SpanRow, error) {
	v, err := s.open(ctx, project, session, true)
	if err != nil {
		return nil, nil, err
	}
	if v == nil || id == 0 {
		if v != nil {
			v.close()
		}
		return nil, nil, fmt.Errorf("span %016x: %w", uint64(id), store.ErrNotFound)
	}
	defer v.close()
	var f filter
	f.add("span = ?::UBIGINT", u64(id))
	if at != 0 {
		f.add("start_ns = ?", at)
	}
	var ops []store.OpRow
	parts := [][]*segment{v.segments}
	if at == 0 {
		// The ids have no order, so that DuckDB reads all of a segment. Operations of earlier segments start earlier.
		parts = slices.Collect(slices.Chunk(v.segments, 1))
	}
	for _, part := range parts {
		one := view{s: v.s, sess: v.sess, segments: part}
		err = one.each(ctx, "SELECT "+opColumns+" FROM {ops}"+f.where()+" ORDER BY start_ns LIMIT 1", f.args, func(r *sql.Rows) error {
			var o store.OpRow
			err := scanOp(r, &o.Op)
			ops = append(ops, o)
			return err
		})
		if err != nil || len(ops) > 0 {
			break
		}
	}
	if err == nil && len(ops) > 0 {
		_, err = v.complete(ctx, ops)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read span: %w", err)
	}
	if len(ops) > 0 {
		return &ops[0], nil, nil
	}
	spans, err := v.spans(ctx, &f, false, 1)
	if err != nil {
		return nil, nil, fmt.Errorf("read span: %w", err)
	}
	if len(spans) == 0 {
		return nil, nil, fmt.Errorf("span %016x: %w", uint64(id), store.ErrNotFound)
	}
	return nil, &spans[0], nil
}

// Spans implements [store.Reader].
func (s *Store) Spans(ctx context.Context, q store.SpanQuery) ([]store.SpanRow, error) {
	n, err := answer.Limits(q.From, q.To, q.Limit, 1000, 20_000)
	if err == nil && q.MinNs < 0 {
		err = fmt.Errorf("duration %d: %w", q.MinNs, store.ErrInvalid)
	}
	if err != nil {
		return nil, fmt.Errorf("read spans: %w", err)
	}
	v, err := s.open(ctx, q.Project, q.Session, true)
	if err != nil || v == nil {
		return nil, err
	}
	defer v.close()
	var f filter
	f.interval("start_ns", "greatest(start_ns, end_ns)", q.From, q.To, q.Overlapping)
	if q.Trace != (store.TraceID{}) {
		f.add("trace = ?::BLOB", bytes.Clone(q.Trace[:]))
	}
	if q.Parent != 0 {
		f.add("parent = ?::UBIGINT", u64(q.Parent))
	}
	if q.Name != "" {
		f.add("name = ?", q.Name)
	}
	if q.Operation != "" {
		f.add("operation = ?", q.Operation)
	}
	if q.MinNs > 0 {
		f.add("greatest(end_ns - start_ns, 0) >= ?", q.MinNs)
	}
	rows, err := v.spans(ctx, &f, q.Longest, n)
	if err != nil {
		return nil, fmt.Errorf("read spans: %w", err)
	}
	return rows, nil
}

func (v *view) spans(ctx context.Context, f *filter, longest bool, n int) ([]store.SpanRow, error) {
	return whileFresh(ctx, v, func() ([]store.SpanRow, error) { return v.readSpans(ctx, f, longest, n) }, func() ([]store.SpanRow, error) {
		out, err := v.readSpans(ctx, f, longest, n)
		if err != nil || v.sess.id == "" {
			return out, err
		}
		t, err := v.tree(ctx)
		if err != nil {
			return nil, err
		}
		for i := range out {
			p := &out[i]
			names, _ := t.path(&treeSpan{parent: p.Parent, name: v.folds.Name(p.Name), inside: insideTree(p.Operation)})
			p.Path = v.pathID(names)
		}
		return out, nil
	})
}

// readSpans reads spans with the paths of their chains.
func (v *view) readSpans(ctx context.Context, f *filter, longest bool, n int) ([]store.SpanRow, error) {
	order := "start_ns, span"
	if longest {
		order = "greatest(end_ns - start_ns, 0) DESC, " + order
	}
	var out []store.SpanRow
	ids := idSet{}
	err := v.each(ctx, `SELECT start_ns, end_ns, trace, span, parent, kind, status, status_message, name, trace_state, flags,
		operation, origin, attrs, events, links, dropped_attrs, dropped_events, dropped_links, key, state FROM (FROM {spans}`+f.where()+
		" ORDER BY "+order+" LIMIT ?) LEFT JOIN "+latestChains+" c ON c.id = chain ORDER BY "+order, append(slices.Clone(f.args), n), func(r *sql.Rows) error {
		var p store.SpanRow
		var key []byte
		var state sql.Null[uint8]
		err := r.Scan(&p.StartNs, &p.EndNs, traceID{(*[16]byte)(&p.Trace)}, &p.Span.Span, &p.Parent, &p.Kind, &p.Status,
			&p.StatusMessage, &p.Name, &p.TraceState, &p.Flags, &p.Operation, &p.Origin, attrsValue{&p.Attrs},
			&p.Events, &p.Links, &p.DroppedAttrs, &p.DroppedEvents, &p.DroppedLinks, &key, &state)
		if state.Valid && (state.V == chainInside || state.V == chainTwin) {
			p.Path = v.pathID(v.folds.Names(splitKey(string(key))))
		}
		ids.add(p.Origin)
		out = append(out, p)
		return err
	})
	if err != nil {
		return nil, err
	}
	origins, err := v.origins(ctx, ids)
	if err != nil {
		return nil, err
	}
	origins = owned(origins)
	for i := range out {
		out[i].OriginRef = orEmpty(origins[out[i].Origin])
		out[i].Origin = 0
	}
	return out, nil
}

// Samples implements [store.Reader].
func (s *Store) Samples(ctx context.Context, q store.SampleQuery) ([]store.SampleSum, error) {
	n, err := answer.Limits(q.From, q.To, q.Limit, 10_000, 100_000)
	if err == nil && q.ByPath && q.Session == "" {
		err = store.ErrInvalid
	}
	if err != nil {
		return nil, fmt.Errorf("read samples: %w", err)
	}
	v, err := s.open(ctx, q.Project, q.Session, true)
	if err != nil || v == nil {
		return nil, err
	}
	defer v.close()
	var f filter
	f.interval("time_ns", "time_ns", q.From, q.To, false)
	if v.dropped {
		f.add("false")
	}
	if q.Kind != 0 {
		f.add("kind = ?", int64(q.Kind))
	}
	if q.Function != "" {
		f.add("function = ?", q.Function)
	}
	line, pc, span := "NULL::BIGINT", "NULL::BIGINT", "0::UBIGINT"
	if q.ByLine {
		line = "line"
	}
	if q.ByPC {
		pc = "pc"
	}
	limit := int64(n)
	if q.ByPath {
		span, limit = "span", math.MaxInt64
	}
	var out []answer.SpanSamples
	// The sum wraps around at 2^64: a UHUGEINT holds 2^64 of the largest values.
	err = v.each(ctx, "SELECT kind, kernel, function, file, "+line+" AS l, "+pc+" AS p, what, "+span+", count(*), "+
		"(sum(value::HUGEINT) % 18446744073709551616::HUGEINT)::UBIGINT FROM {samples}"+f.where()+
		" GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY kind, kernel, function, file, l NULLS FIRST, p NULLS FIRST, what LIMIT ?",
		append(f.args, limit), func(r *sql.Rows) error {
			var x answer.SpanSamples
			err := r.Scan(&x.Kind, &x.Kernel, &x.Function, &x.File, nullInt{&x.Line}, nullInt{&x.PC}, &x.What, &x.Span, &x.Rows, &x.Value)
			out = append(out, x)
			return err
		})
	var t scopePaths
	if err == nil && q.ByPath {
		parents := map[store.SpanID]struct{}{}
		for i := range out {
			parents[out[i].Span] = struct{}{}
		}
		t, err = v.pathsOfSpans(ctx, parents)
	}
	if err != nil {
		return nil, fmt.Errorf("read samples: %w", err)
	}
	return answer.SamplesByPath(out, n, func(id store.SpanID) (uint32, []string) {
		names := t.place(&store.Place{Parent: id})
		return v.pathID(names), names
	}), nil
}

// Logs implements [store.Reader].
func (s *Store) Logs(ctx context.Context, q store.LogQuery) ([]store.LogRow, error) {
	n, err := answer.Limits(q.From, q.To, q.Limit, 1000, 10_000)
	if err != nil {
		return nil, fmt.Errorf("read logs: %w", err)
	}
	v, err := s.open(ctx, q.Project, q.Session, true)
	if err != nil || v == nil {
		return nil, err
	}
	defer v.close()
	var f filter
	f.interval("time_ns", "time_ns", q.From, q.To, false)
	if q.Event != "" {
		f.add("event = ?", q.Event)
	}
	if q.Trace != (store.TraceID{}) {
		f.add("trace = ?::BLOB", bytes.Clone(q.Trace[:]))
	}
	if a := q.After; a != nil {
		f.add("(time_ns > ? OR time_ns = ? AND uid > ?::BLOB)", a.TimeNs, a.TimeNs, bytes.Clone(a.UID[:]))
	}
	var out []store.LogRow
	ids := idSet{}
	err = v.each(ctx, `SELECT time_ns, observed_ns, uid, severity, severity_text, event, body, trace, span, flags, origin,
		attrs, dropped_attrs FROM {logs}`+f.where()+" ORDER BY time_ns, uid LIMIT ?", append(f.args, n),
		func(r *sql.Rows) error {
			var l store.LogRow
			var body []byte
			err := r.Scan(&l.TimeNs, &l.ObservedNs, traceID{(*[16]byte)(&l.UID)}, &l.Severity, &l.SeverityText, &l.Event,
				&body, traceID{(*[16]byte)(&l.Trace)}, &l.Span, &l.Flags, &l.Origin, attrsValue{&l.Attrs}, &l.DroppedAttrs)
			if err == nil {
				l.Body, err = store.DecodeValue(body)
			}
			ids.add(l.Origin)
			out = append(out, l)
			return err
		})
	if err != nil {
		return nil, fmt.Errorf("read logs: %w", err)
	}
	origins, err := v.origins(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read logs: %w", err)
	}
	for i := range out {
		out[i].OriginRef = orEmpty(origins[out[i].Origin])
		out[i].Origin = 0
	}
	return out, nil
}

// Trace implements [store.Reader]. It reads the sessions that may have the trace.
func (s *Store) Trace(ctx context.Context, project string, trace store.TraceID) ([]store.TraceRef, error) {
	if trace == (store.TraceID{}) {
		return nil, fmt.Errorf("find trace 0: %w", store.ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var out []store.TraceRef
	for _, k := range s.withTrace(project, trace) {
		id := k.session
		v, err := s.open(ctx, project, id, true)
		if errors.Is(err, store.ErrNotFound) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("find trace: %w", err)
		}
		if v == nil {
			continue
		}
		err = v.each(ctx, `SELECT min(a), max(b) FROM (
			SELECT start_ns AS a, start_ns + greatest(dur_ns, 0) AS b FROM {ops} WHERE place IN (SELECT id FROM {places} WHERE trace = $1::BLOB)
			UNION ALL SELECT start_ns, greatest(start_ns, end_ns) FROM {spans} WHERE trace = $1::BLOB
			UNION ALL SELECT time_ns, time_ns FROM {samples} WHERE trace = $1::BLOB
			UNION ALL SELECT time_ns, time_ns FROM {logs} WHERE trace = $1::BLOB)`, []any{bytes.Clone(trace[:])}, func(r *sql.Rows) error {
			var first, last sql.NullInt64
			err := r.Scan(&first, &last)
			if first.Valid {
				out = append(out, store.TraceRef{Session: id, FirstNs: first.Int64, LastNs: last.Int64})
			}
			return err
		})
		v.close()
		if err != nil {
			return nil, fmt.Errorf("find trace: %w", err)
		}
	}
	slices.SortFunc(out, func(a, b store.TraceRef) int {
		return cmp.Or(cmp.Compare(a.FirstNs, b.FirstNs), cmp.Compare(a.Session, b.Session))
	})
	return out, nil
}
