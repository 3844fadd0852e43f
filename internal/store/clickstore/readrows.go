// SPDX-License-Identifier: Apache-2.0

package clickstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
	"github.com/gpuflight/gpuflight/semconv"
)

// opRow is an operation with the keys of its entries.
type opRow struct {
	store.OpRow
	lane, shape, stack, origin uint64
}

func (v *view) ops(ctx context.Context, f *filter, order string, limit int) ([]store.OpRow, map[uint32]*store.Shape, error) {
	var rows []opRow
	lanes, shapes, stacks, origins := keys{}, keys{}, keys{}, keys{}
	err := v.s.each(ctx, `SELECT StartNs, DurationNs, Span, Lane, Shape, Stack, Origin, Trace, Parent, ScopeName, ScopePath, Inferred, LaunchLeadNs, LaunchNs,
		QueueNs, Correlation, Bytes, Address, Estimated, Attributes FROM gpu_ops FINAL`+f.where()+fmt.Sprintf(" ORDER BY %s LIMIT %d", order, limit), f.args,
		func(r driver.Rows) error {
			var o opRow
			var a string
			var lead, launch store.Int
			p := &o.PlaceRef
			err := r.Scan(&o.StartNs, &o.EndNs, (*uint64)(&o.Op.Span), &o.lane, &o.shape, &o.stack, &o.origin, (*[16]byte)(&p.Trace), (*uint64)(&p.Parent),
				&p.ScopeName, &p.ScopePath, &p.Inferred, nullInt{&lead}, nullInt{&launch}, nullInt{&o.QueueNs}, nullInt{&o.Correlation}, nullInt{&o.Bytes},
				nullInt{&o.Address}, &o.Estimated, &a)
			if err != nil {
				return err
			}
			o.EndNs += o.StartNs
			base := o.StartNs
			if lead.OK {
				o.LaunchStartNs = store.Some(o.StartNs - lead.V)
				base = o.LaunchStartNs.V
			}
			if launch.OK {
				o.LaunchEndNs = store.Some(base + launch.V)
			}
			lanes[o.lane], shapes[o.shape], stacks[o.stack], origins[o.origin] = struct{}{}, struct{}{}, struct{}{}, struct{}{}
			o.Attrs, err = attrs(a)
			rows = append(rows, o)
			return err
		})
	if err != nil {
		return nil, nil, err
	}
	laneOf, err := v.lanes(ctx, lanes)
	if err != nil {
		return nil, nil, err
	}
	shapeOf, err := v.shapes(ctx, shapes)
	if err != nil {
		return nil, nil, err
	}
	stackOf, err := v.stacks(ctx, stacks)
	if err != nil {
		return nil, nil, err
	}
	originOf, err := v.origins(ctx, origins)
	if err != nil {
		return nil, nil, err
	}
	laneOf, shapeOf, originOf = owned(laneOf), owned(shapeOf), owned(originOf)
	byID := map[uint32]*store.Shape{}
	out := make([]store.OpRow, len(rows))
	for i := range rows {
		o := &rows[i]
		o.Lane, o.Shape = v.sess.lanes.ID(o.lane), v.sess.shapes.ID(o.shape)
		o.LaneRef, o.ShapeRef, o.OriginRef = orEmpty(laneOf[o.lane]), orEmpty(shapeOf[o.shape]), orEmpty(originOf[o.origin])
		o.StackText = orEmpty(stackOf[o.stack]).Text
		byID[o.Shape] = o.ShapeRef
		out[i] = o.OpRow
	}
	return out, byID, nil
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
	if q.MinNs < 0 || q.MaxNs < 0 || (q.Path != nil || q.Below) && q.Session == "" {
		return store.OpPage{}, fmt.Errorf("read operations: %w", store.ErrInvalid)
	}
	v, err := s.open(ctx, q.Project, q.Session, true)
	if err != nil || v.dropped || !v.exists {
		return store.OpPage{}, err
	}
	page, err := v.page(ctx, q, n)
	if err != nil {
		return store.OpPage{}, fmt.Errorf("read operations: %w", err)
	}
	return page, nil
}

func (v *view) page(ctx context.Context, q store.OpQuery, n int) (store.OpPage, error) {
	var page store.OpPage
	f := v.filter()
	f.interval("StartNs", "StartNs + greatest(DurationNs, 0)", q.From, q.To, q.Overlapping)
	if len(q.Operations) > 0 {
		var list []uint64
		for _, o := range q.Operations {
			list = append(list, uint64(o))
		}
		f.in("Operation", list)
	}
	for _, x := range []struct {
		column string
		dict   int
		ids    *answer.IDs[uint64]
		list   []uint32
	}{{"Lane", 1, v.sess.lanes, q.Lanes}, {"Shape", 2, v.sess.shapes, q.Shapes}} {
		if len(x.list) > 0 {
			list, err := v.keysOf(ctx, x.dict, x.ids, x.list)
			if err != nil {
				return page, err
			}
			f.in(x.column, list)
		}
	}
	if q.Name != "" {
		f.add("Shape IN (SELECT Key FROM gpu_shapes WHERE Project = ? AND Session = ? AND Name = ?)", v.key.project, v.key.session, q.Name)
	}
	if q.Parent != 0 {
		parents := []uint64{uint64(q.Parent)}
		if q.Below {
			tree, err := v.tree(ctx)
			if err != nil {
				return page, err
			}
			tree.Below(map[store.SpanID]bool{q.Parent: true}, func(span, _ store.SpanID) { parents = append(parents, uint64(span)) })
		}
		f.in("Parent", parents)
	}
	if q.Trace != (store.TraceID{}) {
		f.add("Trace = " + traceSQL(q.Trace))
	}
	if q.MinNs > 0 {
		f.add("greatest(DurationNs, 0) >= ?", q.MinNs)
	}
	if q.MaxNs > 0 {
		f.add("greatest(DurationNs, 0) <= ?", q.MaxNs)
	}
	if q.Stack != nil {
		const texts = "(SELECT Key FROM gpu_stacks WHERE Project = ? AND Session = ? AND "
		switch {
		case !q.StackExact:
			f.add("Stack IN "+texts+"Text != '' AND (Text = ? OR endsWith(Text, ?)))", v.key.project, v.key.session, *q.Stack, "\n"+*q.Stack)
		case *q.Stack != "":
			f.add("Stack IN "+texts+"Text = ?)", v.key.project, v.key.session, *q.Stack)
		default:
			f.add("Stack NOT IN "+texts+"Text != '')", v.key.project, v.key.session)
		}
	}
	if q.Path != nil {
		if err := v.inPath(ctx, f, *q.Path, q.Direct); err != nil {
			return page, err
		}
	}
	value, order := "StartNs", "StartNs, Span"
	switch q.Sort {
	case store.ByDuration:
		value = "greatest(DurationNs, 0)"
	case store.ByQueue:
		value = "ifNull(QueueNs, toInt64('-9223372036854775808'))"
	}
	if q.Sort != store.ByStart {
		order = value + " DESC, " + order
	}
	if a := q.After; a != nil {
		if q.Sort == store.ByStart {
			f.add("(StartNs > ? OR StartNs = ? AND Span > ?)", a.StartNs, a.StartNs, uint64(a.Span))
		} else {
			after := fmt.Sprintf("toInt64('%d')", a.Value)
			f.add("("+value+" < "+after+" OR "+value+" = "+after+" AND (StartNs > ? OR StartNs = ? AND Span > ?))", a.StartNs, a.StartNs, uint64(a.Span))
		}
	}
	rows, _, err := v.ops(ctx, f, order, n+1)
	if err != nil {
		return page, err
	}
	page.More = len(rows) > n
	page.Rows = rows[:min(n, len(rows))]
	if v.key.session != "" {
		page.Shapes = map[uint32]*store.Shape{}
		for i := range page.Rows {
			page.Shapes[page.Rows[i].Shape] = page.Rows[i].ShapeRef
		}
	}
	return page, nil
}

// Span implements [store.Reader].
func (s *Store) Span(ctx context.Context, project, session string, id store.SpanID, at int64) (*store.OpRow, *store.SpanRow, error) {
	v, err := s.open(ctx, project, session, true)
	if err != nil {
		return nil, nil, err
	}
	notFound := fmt.Errorf("span %016x: %w", uint64(id), store.ErrNotFound)
	if id == 0 {
		return nil, nil, notFound
	}
	f := v.filter()
	f.add("Span = ?", uint64(id))
	if at != 0 {
		f.add("StartNs = ?", at)
	}
	if !v.dropped {
		ops, _, err := v.ops(ctx, f, "StartNs", 1)
		if err != nil {
			return nil, nil, fmt.Errorf("read span: %w", err)
		}
		if len(ops) > 0 {
			return &ops[0], nil, nil
		}
	}
	spans, err := v.spans(ctx, f, false, 1)
	if err != nil {
		return nil, nil, fmt.Errorf("read span: %w", err)
	}
	if len(spans) == 0 {
		return nil, nil, notFound
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
	if err != nil {
		return nil, err
	}
	f := v.filter()
	f.interval("StartNs", "toInt64(EndNs)", q.From, q.To, q.Overlapping)
	if q.Trace != (store.TraceID{}) {
		f.add("Trace = " + traceSQL(q.Trace))
	}
	if q.Parent != 0 {
		f.add("Parent = ?", uint64(q.Parent))
	}
	if q.Name != "" {
		f.add("Name = ?", q.Name)
	}
	if q.Operation != "" {
		f.add("Operation = ?", q.Operation)
	}
	if q.MinNs > 0 {
		f.add("toInt64(EndNs) - StartNs >= ?", q.MinNs)
	}
	rows, err := v.spans(ctx, f, q.Longest, n)
	if err != nil {
		return nil, fmt.Errorf("read spans: %w", err)
	}
	return rows, nil
}

func bytesOf(s string) []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
}

// inPath selects the operations of a path, and with those below it unless direct. It reads the sites
// of the operations that the filter selects.
func (v *view) inPath(ctx context.Context, f *filter, path uint32, direct bool) error {
	tree, err := v.tree(ctx)
	if err != nil {
		return err
	}
	const site = "cityHash64(Parent, ScopeName, ScopePath)"
	var list []uint64
	err = v.s.each(ctx, "SELECT DISTINCT "+site+", Parent, ScopeName, ScopePath FROM gpu_ops FINAL"+f.where(), f.args, func(r driver.Rows) error {
		var hash uint64
		var s answer.Site
		if err := r.Scan(&hash, (*uint64)(&s.Parent), &s.ScopeName, &s.ScopePath); err != nil {
			return err
		}
		names := tree.Path(s)
		if v.sess.paths.ID(names) == path || !direct && v.below(names, path) {
			list = append(list, hash)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(list) == 0 {
		f.add("false")
		return nil
	}
	f.in(site, list)
	return nil
}

// Shapes implements [store.Reader].
func (s *Store) Shapes(ctx context.Context, project, session string, ids []uint32) (map[uint32]*store.Shape, error) {
	v, err := s.open(ctx, project, session, false)
	if err != nil {
		return nil, err
	}
	if len(ids) > 10_000 {
		return nil, fmt.Errorf("read %d shapes: %w", len(ids), store.ErrInvalid)
	}
	out := map[uint32]*store.Shape{}
	list, err := v.keysOf(ctx, 2, v.sess.shapes, ids)
	if err != nil {
		return nil, fmt.Errorf("read shapes: %w", err)
	}
	wanted := keys{}
	for _, k := range list {
		wanted[k] = struct{}{}
	}
	found, err := v.shapes(ctx, wanted)
	if err != nil {
		return nil, fmt.Errorf("read shapes: %w", err)
	}
	for k, sh := range owned(found) {
		out[v.sess.shapes.ID(k)] = sh
	}
	if _, ok := wanted[0]; ok { // operations without a shape
		out[v.sess.shapes.ID(0)] = &store.Shape{}
	}
	return out, nil
}

func (v *view) spans(ctx context.Context, f *filter, longest bool, n int) ([]store.SpanRow, error) {
	order := "StartNs, Span"
	if longest {
		order = "greatest(toInt64(EndNs) - StartNs, 0) DESC, " + order
	}
	var out []store.SpanRow
	var originKeys []uint64
	wanted := keys{}
	err := v.s.each(ctx, `SELECT StartNs, toInt64(EndNs), Trace, Span, Parent, Kind, Status, StatusMessage, Name, TraceState, Flags, Operation, Origin, Attributes, Events,
		Links, DroppedAttrs, DroppedEvents, DroppedLinks FROM gpu_spans FINAL`+f.where()+fmt.Sprintf(" ORDER BY %s LIMIT %d", order, n), f.args,
		func(r driver.Rows) error {
			var p store.SpanRow
			var origin uint64
			var a, events, links string
			err := r.Scan(&p.StartNs, &p.EndNs, (*[16]byte)(&p.Trace), (*uint64)(&p.Span.Span), (*uint64)(&p.Parent), &p.Kind, &p.Status, &p.StatusMessage, &p.Name,
				&p.TraceState, &p.Flags, &p.Operation, &origin, &a, &events, &links, &p.DroppedAttrs, &p.DroppedEvents, &p.DroppedLinks)
			if err != nil {
				return err
			}
			p.Events, p.Links = bytesOf(events), bytesOf(links)
			p.Attrs, err = attrs(a)
			wanted[origin] = struct{}{}
			out, originKeys = append(out, p), append(originKeys, origin)
			return err
		})
	if err != nil {
		return nil, err
	}
	origins, err := v.origins(ctx, wanted)
	if err != nil {
		return nil, err
	}
	origins = owned(origins)
	tree, err := v.tree(ctx)
	if err != nil {
		return nil, err
	}
	for i := range out {
		out[i].OriginRef = orEmpty(origins[originKeys[i]])
		out[i].Path = v.sess.paths.ID(tree.Span(out[i].StartNs, out[i].Span.Span))
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
	if err != nil || v.dropped {
		return nil, err
	}
	f := v.filter()
	f.interval("TimeNs", "", q.From, q.To, false)
	if q.Kind != 0 {
		f.add("Kind = ?", int64(q.Kind))
	}
	if q.Function != "" {
		f.add("Function = ?", q.Function)
	}
	line, pc := "CAST(NULL, 'Nullable(Int64)')", "CAST(NULL, 'Nullable(Int64)')"
	if q.ByLine {
		line = "Line"
	}
	if q.ByPC {
		pc = "PC"
	}
	span, limit := "toUInt64(0)", fmt.Sprintf(" LIMIT %d", n)
	if q.ByPath {
		span, limit = "Span", ""
	}
	var out []answer.SpanSamples
	err = v.s.each(ctx, "SELECT Kind, Kernel, Function, File, "+line+" AS l, "+pc+" AS p, What, "+span+" AS span, toInt64(count()), sum(Value) FROM gpu_samples FINAL"+f.where()+
		" GROUP BY Kind, Kernel, Function, File, l, p, What, span ORDER BY Kind, Kernel, Function, File, l NULLS FIRST, p NULLS FIRST, What"+limit, f.args,
		func(r driver.Rows) error {
			var x answer.SpanSamples
			err := r.Scan((*uint8)(&x.Kind), &x.Kernel, &x.Function, &x.File, nullInt{&x.Line}, nullInt{&x.PC}, &x.What, (*uint64)(&x.Span), &x.Rows, &x.Value)
			out = append(out, x)
			return err
		})
	tree := &answer.Tree{}
	if err == nil && q.ByPath {
		tree, err = v.tree(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("read samples: %w", err)
	}
	return answer.SamplesByPath(out, n, func(id store.SpanID) (uint32, []string) {
		names := tree.Path(answer.Site{Parent: id})
		return v.sess.paths.ID(names), names
	}), nil
}

// Logs implements [store.Reader].
func (s *Store) Logs(ctx context.Context, q store.LogQuery) ([]store.LogRow, error) {
	n, err := answer.Limits(q.From, q.To, q.Limit, 1000, 10_000)
	if err != nil {
		return nil, fmt.Errorf("read logs: %w", err)
	}
	v, err := s.open(ctx, q.Project, q.Session, true)
	if err != nil {
		return nil, err
	}
	f := v.filter()
	f.interval("TimeNs", "", q.From, q.To, false)
	if q.Event != "" {
		f.add("Event = ?", q.Event)
	}
	if q.Trace != (store.TraceID{}) {
		f.add("Trace = " + traceSQL(q.Trace))
	}
	if a := q.After; a != nil {
		f.add("(TimeNs > ? OR TimeNs = ? AND UID > "+traceSQL(store.TraceID(a.UID))+")", a.TimeNs, a.TimeNs)
	}
	var out []store.LogRow
	var originKeys []uint64
	wanted := keys{}
	err = v.s.each(ctx, `SELECT TimeNs, ObservedNs, UID, Severity, SeverityText, Event, Body, Trace, Span, Flags, Origin, Attributes, DroppedAttrs
		FROM gpu_logs FINAL`+f.where()+fmt.Sprintf(" ORDER BY TimeNs, UID LIMIT %d", n), f.args, func(r driver.Rows) error {
		var l store.LogRow
		var body, a string
		var origin uint64
		err := r.Scan(&l.TimeNs, &l.ObservedNs, (*[16]byte)(&l.UID), &l.Severity, &l.SeverityText, &l.Event, &body, (*[16]byte)(&l.Trace), (*uint64)(&l.Span),
			&l.Flags, &origin, &a, &l.DroppedAttrs)
		if err == nil {
			l.Body, err = store.DecodeValue([]byte(body))
		}
		if err == nil {
			l.Attrs, err = attrs(a)
		}
		wanted[origin] = struct{}{}
		out, originKeys = append(out, l), append(originKeys, origin)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read logs: %w", err)
	}
	origins, err := v.origins(ctx, wanted)
	if err != nil {
		return nil, fmt.Errorf("read logs: %w", err)
	}
	origins = owned(origins)
	for i := range out {
		out[i].OriginRef = orEmpty(origins[originKeys[i]])
	}
	return out, nil
}

// Series implements [store.Reader].
func (s *Store) Series(ctx context.Context, q store.SeriesQuery) ([]store.SeriesInfo, error) {
	n, err := answer.Limits(q.From, q.To, q.Limit, 1000, 10_000)
	if err != nil {
		return nil, fmt.Errorf("read series: %w", err)
	}
	v, err := s.open(ctx, q.Project, q.Session, true)
	if err != nil {
		return nil, err
	}
	out, err := v.seriesInfos(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("read series: %w", err)
	}
	return out[:min(n, len(out))], nil
}

func (v *view) seriesInfos(ctx context.Context, q store.SeriesQuery) ([]store.SeriesInfo, error) {
	f := v.filter()
	f.interval("TimeNs", "", q.From, q.To, false)
	var all []store.SeriesInfo
	wanted := keys{}
	err := v.s.each(ctx, "SELECT Series, toInt64(count()), min(TimeNs), max(TimeNs) FROM gpu_points FINAL"+f.where()+" GROUP BY Series", f.args, func(r driver.Rows) error {
		var i store.SeriesInfo
		err := r.Scan(&i.Key, &i.Count, &i.FirstNs, &i.LastNs)
		wanted[i.Key] = struct{}{}
		all = append(all, i)
		return err
	})
	if err != nil {
		return nil, err
	}
	entries, err := v.series(ctx, wanted)
	if err != nil {
		return nil, err
	}
	originKeys := keys{}
	for _, e := range entries {
		originKeys[e.origin] = struct{}{}
	}
	origins, err := v.origins(ctx, originKeys)
	if err != nil {
		return nil, err
	}
	origins = owned(origins)
	var out []store.SeriesInfo
	for _, i := range all {
		e := orEmpty(entries[i.Key])
		key := i.Key
		i.Series, i.OriginRef = e.Series, orEmpty(origins[e.origin])
		i.Key = key
		hw, _ := i.Attrs.Get(semconv.HWID)
		if (q.Metric == "" || i.Metric == q.Metric) && (q.Device == "" || hw.Kind == store.KindString && hw.Str == q.Device) {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b store.SeriesInfo) int {
		return cmp.Or(cmp.Compare(a.Metric, b.Metric), cmp.Compare(a.Key, b.Key))
	})
	return out, nil
}

// Points implements [store.Reader].
func (s *Store) Points(ctx context.Context, q store.PointQuery) ([]store.PointRow, error) {
	n, err := answer.Limits(q.From, q.To, q.Points, 2000, 20_000)
	if err == nil && n < 4 {
		err = fmt.Errorf("%d points: %w", n, store.ErrInvalid)
	}
	if err != nil {
		return nil, fmt.Errorf("read points: %w", err)
	}
	v, err := s.open(ctx, q.Project, q.Session, true)
	if err != nil {
		return nil, err
	}
	rows, err := v.points(ctx, q, n)
	if err != nil {
		return nil, fmt.Errorf("read points: %w", err)
	}
	return rows, nil
}

func (v *view) eachPoint(ctx context.Context, f *filter, tail string, use func(store.PointRow)) error {
	return v.s.each(ctx, "SELECT TimeNs, StartNs, Flags, Int, Double, Data, Exemplars FROM gpu_points FINAL"+f.where()+" ORDER BY TimeNs"+tail, f.args,
		func(r driver.Rows) error {
			var p store.PointRow
			var double *float64
			var data, exemplars string
			err := r.Scan(&p.TimeNs, &p.StartNs, &p.Flags, nullInt{&p.Int}, &double, &data, &exemplars)
			if double != nil {
				p.Double, p.HasDouble = *double, true
			}
			p.Data, p.Exemplars = bytesOf(data), bytesOf(exemplars)
			use(p)
			return err
		})
}

func (v *view) points(ctx context.Context, q store.PointQuery, n int) ([]store.PointRow, error) {
	series := v.filter()
	series.add("Series = ?", q.Series)
	f := &filter{slices.Clone(series.conditions), slices.Clone(series.args)}
	f.interval("TimeNs", "", q.From, q.To, false)
	var rows []store.PointRow
	err := v.eachPoint(ctx, f, fmt.Sprintf(" LIMIT %d", n+1), func(p store.PointRow) { rows = append(rows, p) })
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		found := false
		err := v.s.each(ctx, "SELECT 1 FROM gpu_points"+series.where()+" LIMIT 1", series.args, func(driver.Rows) error { found = true; return nil })
		if err == nil && !found {
			err = fmt.Errorf("series %016x: %w", q.Series, store.ErrNotFound)
		}
		return nil, err
	}
	if len(rows) <= n {
		return rows, nil
	}
	from, to := q.From, q.To
	if from == 0 {
		from = rows[0].TimeNs
	}
	if to == 0 {
		err = v.s.each(ctx, "SELECT max(TimeNs) + 1 FROM gpu_points"+f.where(), f.args, func(r driver.Rows) error { return r.Scan(&to) })
		if err != nil {
			return nil, err
		}
	}
	parts := int64(n / 4)
	m := answer.M4{FromNs: from, WidthNs: max((to-from+parts-1)/parts, 1)}
	err = v.eachPoint(ctx, f, "", m.Add)
	m.Flush()
	return m.Out, err
}

// Trace implements [store.Reader].
func (s *Store) Trace(ctx context.Context, project string, trace store.TraceID) ([]store.TraceRef, error) {
	if trace == (store.TraceID{}) {
		return nil, fmt.Errorf("find trace 0: %w", store.ErrInvalid)
	}
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	t := traceSQL(trace)
	var query string
	var args []any
	// Only spans have versions, whose traces may differ. The inner query uses the index, and FINAL then
	// reads those sessions only.
	for _, x := range []struct{ table, start, end string }{
		{"gpu_ops", "StartNs", "StartNs + greatest(DurationNs, 0)"}, {"gpu_samples", "TimeNs", "TimeNs"}, {"gpu_logs", "TimeNs", "TimeNs"},
	} {
		query += fmt.Sprintf("SELECT toString(Session) AS S, %s AS a, %s AS z FROM %s WHERE Project = ? AND Trace = %s UNION ALL ", x.start, x.end, x.table, t)
		args = append(args, project)
	}
	query += fmt.Sprintf("SELECT toString(Session), StartNs, greatest(StartNs, toInt64(EndNs)) FROM gpu_spans FINAL "+
		"WHERE Project = ? AND Session IN (SELECT Session FROM gpu_spans WHERE Project = ? AND Trace = %[1]s) AND Trace = %[1]s", t)
	args = append(args, project, project)
	var out []store.TraceRef
	err := s.each(ctx, "SELECT S, min(a), max(z) FROM ("+query+") GROUP BY S", args, func(r driver.Rows) error {
		var ref store.TraceRef
		err := r.Scan(&ref.Session, &ref.FirstNs, &ref.LastNs)
		out = append(out, ref)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find trace: %w", err)
	}
	slices.SortFunc(out, func(a, b store.TraceRef) int {
		return cmp.Or(cmp.Compare(a.FirstNs, b.FirstNs), cmp.Compare(a.Session, b.Session))
	})
	return out, nil
}
