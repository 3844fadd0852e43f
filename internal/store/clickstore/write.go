// SPDX-License-Identifier: Apache-2.0

package clickstore

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ClickHouse/clickhouse-go/v2"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
)

// col is a column of an insert: its name and a slice of its values.
type col struct {
	name   string
	values any
}

// values returns one value of each row.
func values[T, V any](name string, rows []T, f func(*T) V) col {
	out := make([]V, len(rows))
	for i := range rows {
		out[i] = f(&rows[i])
	}
	return col{name, out}
}

func known(i *store.Int) *int64 {
	if !i.OK {
		return nil
	}
	return &i.V
}

func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func encoded(a store.Attrs) string {
	if len(a) == 0 {
		return ""
	}
	return string(a.Append(nil))
}

// of is a row with its batch.
type of[T any] struct {
	b *store.Batch
	r *T
}

// entry returns an entry of a dictionary. Entry 0 is empty.
func entry[T any](entries []T, i uint32) *T {
	if i == 0 {
		return new(T)
	}
	return &entries[i]
}

// work is the rows of a call.
type work struct {
	ops     []of[store.Op]
	spans   []of[store.Span]
	samples []of[store.Sample]
	logs    []of[store.Log]
	points  []of[store.Point]
	marks   map[sessionKey]bool
	dicts   [5][]of[uint32] // entries by index, in the order of dictTables
	seen    [5]map[dictKey]bool
}

type dictKey struct {
	sessionKey
	key uint64
}

// Write implements [store.Writer]. All errors but those of the context wrap [store.ErrRetry], because
// no row that Write accepts can make the server fail.
func (s *Store) Write(ctx context.Context, batches []*store.Batch) (store.Result, error) {
	var total store.Result
	if err := s.check(ctx); err != nil {
		return total, fmt.Errorf("write: %w", err)
	}
	w := &work{marks: map[sessionKey]bool{}}
	for i := range w.seen {
		w.seen[i] = map[dictKey]bool{}
	}
	err := s.collect(ctx, batches, w, &total)
	if err == nil {
		err = s.insertAll(ctx, w)
	}
	if err != nil {
		if ctx.Err() != nil {
			return store.Result{}, fmt.Errorf("write: %w: %w", ctx.Err(), err)
		}
		return store.Result{}, fmt.Errorf("write: %w: %w", store.ErrRetry, err)
	}
	return total, nil
}

func accept[T any](b *store.Batch, rows []T, ok func(*T) bool, list *[]of[T], r *store.Result) (n int) {
	for i := range rows {
		if ok(&rows[i]) {
			*list = append(*list, of[T]{b, &rows[i]})
			n++
		}
	}
	r.Written += int64(n)
	r.Rejected += int64(len(rows) - n)
	return n
}

// dropped returns the sessions of batches whose operations and samples retention dropped.
func (s *Store) dropped(ctx context.Context, batches []*store.Batch) (map[sessionKey]bool, error) {
	byProject := map[string][]string{}
	for _, b := range batches {
		if k := keyOfBatch(b); len(b.Session) <= answer.MaxSession && len(b.Ops)+len(b.Samples) > 0 {
			byProject[k.project] = append(byProject[k.project], k.session)
		}
	}
	out := map[sessionKey]bool{}
	for project, sessions := range byProject {
		for part := range slices.Chunk(sessions, chunk) {
			states, err := s.states(ctx, "Project = ? AND Session IN ?", project, part)
			if err != nil {
				return nil, err
			}
			for k, st := range states {
				out[k] = st.dropped
			}
		}
	}
	return out, nil
}

func (s *Store) collect(ctx context.Context, batches []*store.Batch, w *work, r *store.Result) error {
	dropped, err := s.dropped(ctx, batches)
	if err != nil {
		return err
	}
	for _, b := range batches {
		if len(b.Session) > answer.MaxSession {
			r.Rejected += int64(b.Rows())
			continue
		}
		k := keyOfBatch(b)
		v := answer.Valid{B: b}
		n := accept(b, b.Ops, func(o *store.Op) bool { return !dropped[k] && v.Op(o) }, &w.ops, r) +
			accept(b, b.Spans, v.Span, &w.spans, r) +
			accept(b, b.Samples, func(o *store.Sample) bool { return !dropped[k] && v.Sample(o) }, &w.samples, r) +
			accept(b, b.Logs, v.Log, &w.logs, r) + accept(b, b.Points, v.Point, &w.points, r)
		if n > 0 {
			w.marks[k] = true
		}
	}
	for _, o := range w.ops {
		w.use(0, o.b, o.r.Origin)
		w.use(1, o.b, o.r.Lane)
		w.use(2, o.b, o.r.Shape)
		w.use(3, o.b, o.r.Stack)
	}
	for _, o := range w.spans {
		w.use(0, o.b, o.r.Origin)
	}
	for _, o := range w.samples {
		w.use(0, o.b, o.r.Origin)
	}
	for _, o := range w.logs {
		w.use(0, o.b, o.r.Origin)
	}
	for _, o := range w.points {
		w.use(4, o.b, o.r.Series)
		w.use(0, o.b, entry(o.b.Series, o.r.Series).Origin)
	}
	return nil
}

func keyOf(dict int, b *store.Batch, i uint32) uint64 {
	switch dict {
	case 0:
		return b.Origins[i].Key
	case 1:
		return b.Lanes[i].Key
	case 2:
		return b.Shapes[i].Key
	case 3:
		return b.Stacks[i].Key
	}
	return b.Series[i].Key
}

func keyOfBatch(b *store.Batch) sessionKey { return sessionKey{text(b.Project), text(b.Session)} }

func (w *work) use(dict int, b *store.Batch, i uint32) {
	if i == 0 {
		return
	}
	k := dictKey{keyOfBatch(b), keyOf(dict, b, i)}
	if !w.seen[dict][k] {
		w.seen[dict][k] = true
		w.dicts[dict] = append(w.dicts[dict], of[uint32]{b, &i})
	}
}

// insert sends the rows of a table as one block.
func (s *Store) insert(ctx context.Context, table string, cols ...col) error {
	names := make([]string, len(cols))
	var types []clickhouse.ColumnNameAndType
	for i, c := range cols {
		names[i] = c.name
		types = append(types, clickhouse.ColumnNameAndType{Name: c.name, Type: s.types[table][c.name]})
	}
	// HTTP has no header of the table. Rows of many days are in one block.
	ctx = clickhouse.Context(ctx, clickhouse.WithColumnNamesAndTypes(types),
		clickhouse.WithSettings(clickhouse.Settings{"max_partitions_per_insert_block": 0}))
	b, err := s.conn.PrepareBatch(ctx, "INSERT INTO "+table+" ("+strings.Join(names, ", ")+")")
	if err != nil {
		return fmt.Errorf("insert into %s: %w", table, err)
	}
	defer func() { _ = b.Close() }()
	for i, c := range cols {
		if err := b.Column(i).Append(c.values); err != nil {
			return fmt.Errorf("insert into %s.%s: %w", table, c.name, err)
		}
	}
	if err := b.Send(); err != nil {
		return fmt.Errorf("insert into %s: %w", table, err)
	}
	return nil
}

// session returns the columns of the session of each row.
func sessionCols[T any](rows []of[T]) []col {
	return []col{
		values("Project", rows, func(o *of[T]) string { return text(o.b.Project) }),
		values("Session", rows, func(o *of[T]) string { return text(o.b.Session) }),
	}
}

func insertRows[T any](ctx context.Context, s *Store, table string, rows []of[T], cols ...col) error {
	if len(rows) == 0 {
		return nil
	}
	return s.insert(ctx, table, append(sessionCols(rows), cols...)...)
}

func (s *Store) insertAll(ctx context.Context, w *work) error {
	if len(w.marks) == 0 {
		return nil
	}
	for _, f := range []func(context.Context, *work) error{
		s.insertDicts, s.insertOps, s.insertSpans, s.insertSamples, s.insertLogs, s.insertPoints,
	} {
		if err := f(ctx, w); err != nil {
			return err
		}
	}
	// The time of the mark is after the rows, so that a reader that saw the mark saw the rows.
	at, err := s.now(ctx)
	if err != nil {
		return err
	}
	var marks []mark
	for k := range w.marks {
		marks = append(marks, mark{key: k, kind: "data", at: at, version: at})
	}
	return s.insertMarks(ctx, marks)
}

func (s *Store) insertMarks(ctx context.Context, m []mark) error {
	return s.insert(ctx, "gpu_sessions",
		values("Project", m, func(m *mark) string { return m.key.project }), values("Session", m, func(m *mark) string { return m.key.session }),
		values("Kind", m, func(m *mark) string { return m.kind }), values("At", m, func(m *mark) uint64 { return m.at }),
		values("Version", m, func(m *mark) uint64 { return m.version }), values("Rollup", m, func(m *mark) uint64 { return m.rollup }),
		values("Flag", m, func(m *mark) bool { return m.flag }), values("Summary", m, func(m *mark) string { return m.summary }))
}

func (s *Store) insertDicts(ctx context.Context, w *work) error {
	origins, lanes, shapes, stacks, series := w.dicts[0], w.dicts[1], w.dicts[2], w.dicts[3], w.dicts[4]
	origin := func(o *of[uint32]) *store.Origin { return &o.b.Origins[*o.r] }
	lane := func(o *of[uint32]) *store.Lane { return &o.b.Lanes[*o.r] }
	shape := func(o *of[uint32]) *store.Shape { return &o.b.Shapes[*o.r] }
	stack := func(o *of[uint32]) *store.Stack { return &o.b.Stacks[*o.r] }
	serie := func(o *of[uint32]) *store.Series { return &o.b.Series[*o.r] }
	type e = of[uint32]
	if err := insertRows(ctx, s, "gpu_origins", origins,
		values("Key", origins, func(o *e) uint64 { return origin(o).Key }),
		values("Resource", origins, func(o *e) string { return encoded(origin(o).Resource) }),
		values("ResourceSchemaURL", origins, func(o *e) string { return text(origin(o).ResourceSchemaURL) }),
		values("ScopeName", origins, func(o *e) string { return text(origin(o).ScopeName) }),
		values("ScopeVersion", origins, func(o *e) string { return text(origin(o).ScopeVersion) }),
		values("ScopeAttributes", origins, func(o *e) string { return encoded(origin(o).ScopeAttrs) }),
		values("ScopeSchemaURL", origins, func(o *e) string { return text(origin(o).ScopeSchemaURL) })); err != nil {
		return err
	}
	if err := insertRows(ctx, s, "gpu_lanes", lanes,
		values("Key", lanes, func(o *e) uint64 { return lane(o).Key }),
		values("Device", lanes, func(o *e) string { return text(lane(o).Device) }),
		values("DeviceIndex", lanes, func(o *e) *int64 { return known(&lane(o).DeviceIndex) }),
		values("Context", lanes, func(o *e) *int64 { return known(&lane(o).Context) }),
		values("Stream", lanes, func(o *e) *int64 { return known(&lane(o).Stream) }),
		values("Class", lanes, func(o *e) uint8 { return uint8(lane(o).Class) })); err != nil {
		return err
	}
	if err := insertRows(ctx, s, "gpu_shapes", shapes,
		values("Key", shapes, func(o *e) uint64 { return shape(o).Key }),
		values("Operation", shapes, func(o *e) uint8 { return uint8(shape(o).Operation) }),
		values("Name", shapes, func(o *e) string { return text(shape(o).Name) }),
		values("FullName", shapes, func(o *e) string { return text(shape(o).FullName) }),
		values("Symbol", shapes, func(o *e) string { return text(shape(o).Symbol) }),
		values("Grid", shapes, func(o *e) []int64 { return shape(o).Grid }),
		values("Block", shapes, func(o *e) []int64 { return shape(o).Block }),
		values("Cluster", shapes, func(o *e) []int64 { return shape(o).Cluster }),
		values("Registers", shapes, func(o *e) *int64 { return known(&shape(o).Registers) }),
		values("SharedStatic", shapes, func(o *e) *int64 { return known(&shape(o).SharedStatic) }),
		values("SharedDynamic", shapes, func(o *e) *int64 { return known(&shape(o).SharedDynamic) }),
		values("SharedExecuted", shapes, func(o *e) *int64 { return known(&shape(o).SharedExecuted) }),
		values("LocalMemory", shapes, func(o *e) *int64 { return known(&shape(o).LocalMemory) }),
		values("Attributes", shapes, func(o *e) string { return encoded(shape(o).Attrs) })); err != nil {
		return err
	}
	if err := insertRows(ctx, s, "gpu_stacks", stacks,
		values("Key", stacks, func(o *e) uint64 { return stack(o).Key }),
		values("Text", stacks, func(o *e) string { return text(stack(o).Text) })); err != nil {
		return err
	}
	return insertRows(ctx, s, "gpu_series", series,
		values("Key", series, func(o *e) uint64 { return serie(o).Key }),
		values("Metric", series, func(o *e) string { return text(serie(o).Metric) }),
		values("Unit", series, func(o *e) string { return text(serie(o).Unit) }),
		values("Description", series, func(o *e) string { return text(serie(o).Description) }),
		values("Type", series, func(o *e) uint8 { return uint8(serie(o).Type) }),
		values("Temporality", series, func(o *e) uint8 { return serie(o).Temporality }),
		values("Monotonic", series, func(o *e) bool { return serie(o).Monotonic }),
		values("Attributes", series, func(o *e) string { return encoded(serie(o).Attrs) }),
		values("Origin", series, func(o *e) uint64 { return entry(o.b.Origins, serie(o).Origin).Key }))
}

func (s *Store) insertOps(ctx context.Context, w *work) error {
	type e = of[store.Op]
	rows := w.ops
	place := func(o *e) *store.Place { return entry(o.b.Places, o.r.Place) }
	return insertRows(ctx, s, "gpu_ops", rows,
		values("StartNs", rows, func(o *e) int64 { return o.r.StartNs }),
		values("Span", rows, func(o *e) uint64 { return uint64(o.r.Span) }),
		values("DurationNs", rows, func(o *e) int64 { return o.r.EndNs - o.r.StartNs }),
		values("Operation", rows, func(o *e) uint8 { return uint8(entry(o.b.Shapes, o.r.Shape).Operation) }),
		values("Lane", rows, func(o *e) uint64 { return entry(o.b.Lanes, o.r.Lane).Key }),
		values("Shape", rows, func(o *e) uint64 { return entry(o.b.Shapes, o.r.Shape).Key }),
		values("Stack", rows, func(o *e) uint64 { return entry(o.b.Stacks, o.r.Stack).Key }),
		values("Origin", rows, func(o *e) uint64 { return entry(o.b.Origins, o.r.Origin).Key }),
		values("Trace", rows, func(o *e) []byte { return place(o).Trace[:] }),
		values("Parent", rows, func(o *e) uint64 { return uint64(place(o).Parent) }),
		values("ScopeName", rows, func(o *e) string { return text(place(o).ScopeName) }),
		values("ScopePath", rows, func(o *e) string { return text(place(o).ScopePath) }),
		values("Inferred", rows, func(o *e) bool { return place(o).Inferred }),
		values("LaunchLeadNs", rows, func(o *e) *int64 {
			if !o.r.LaunchStartNs.OK {
				return nil
			}
			v := o.r.StartNs - o.r.LaunchStartNs.V // wraps around, and so does the reader
			return &v
		}),
		values("LaunchNs", rows, func(o *e) *int64 {
			if !o.r.LaunchEndNs.OK {
				return nil
			}
			v := o.r.LaunchEndNs.V - o.r.StartNs
			if o.r.LaunchStartNs.OK {
				v = o.r.LaunchEndNs.V - o.r.LaunchStartNs.V
			}
			return &v
		}),
		values("QueueNs", rows, func(o *e) *int64 { return known(&o.r.QueueNs) }),
		values("Correlation", rows, func(o *e) *int64 { return known(&o.r.Correlation) }),
		values("Bytes", rows, func(o *e) *int64 { return known(&o.r.Bytes) }),
		values("Address", rows, func(o *e) *int64 { return known(&o.r.Address) }),
		values("Estimated", rows, func(o *e) bool { return o.r.Estimated }),
		values("Attributes", rows, func(o *e) string { return encoded(entry(o.b.Extras, o.r.Extra).Attrs) }))
}

func (s *Store) insertSpans(ctx context.Context, w *work) error {
	type e = of[store.Span]
	rows := w.spans
	return insertRows(ctx, s, "gpu_spans", rows,
		values("StartNs", rows, func(o *e) int64 { return o.r.StartNs }),
		values("Span", rows, func(o *e) uint64 { return uint64(o.r.Span) }),
		values("EndNs", rows, func(o *e) uint64 { return uint64(o.r.EndNs) }),
		values("Trace", rows, func(o *e) []byte { return o.r.Trace[:] }),
		values("Parent", rows, func(o *e) uint64 { return uint64(o.r.Parent) }),
		values("Kind", rows, func(o *e) uint8 { return o.r.Kind }),
		values("Status", rows, func(o *e) uint8 { return o.r.Status }),
		values("StatusMessage", rows, func(o *e) string { return text(o.r.StatusMessage) }),
		values("Name", rows, func(o *e) string { return text(o.r.Name) }),
		values("TraceState", rows, func(o *e) string { return text(o.r.TraceState) }),
		values("Flags", rows, func(o *e) uint32 { return o.r.Flags }),
		values("Operation", rows, func(o *e) string { return text(o.r.Operation) }),
		values("Origin", rows, func(o *e) uint64 { return entry(o.b.Origins, o.r.Origin).Key }),
		values("Attributes", rows, func(o *e) string { return encoded(o.r.Attrs) }),
		values("Events", rows, func(o *e) string { return string(o.r.Events) }),
		values("Links", rows, func(o *e) string { return string(o.r.Links) }),
		values("DroppedAttrs", rows, func(o *e) uint32 { return o.r.DroppedAttrs }),
		values("DroppedEvents", rows, func(o *e) uint32 { return o.r.DroppedEvents }),
		values("DroppedLinks", rows, func(o *e) uint32 { return o.r.DroppedLinks }))
}

func (s *Store) insertSamples(ctx context.Context, w *work) error {
	type e = of[store.Sample]
	rows := w.samples
	return insertRows(ctx, s, "gpu_samples", rows,
		values("TimeNs", rows, func(o *e) int64 { return o.r.TimeNs }),
		values("UID", rows, func(o *e) []byte { return o.r.UID[:] }),
		values("Kind", rows, func(o *e) uint8 { return uint8(o.r.Kind) }),
		values("What", rows, func(o *e) string { return text(o.r.What) }),
		values("Value", rows, func(o *e) uint64 { return o.r.Value }),
		values("Kernel", rows, func(o *e) string { return text(o.r.Kernel) }),
		values("Function", rows, func(o *e) string { return text(o.r.Function) }),
		values("File", rows, func(o *e) string { return text(o.r.File) }),
		values("Line", rows, func(o *e) *int64 { return known(&o.r.Line) }),
		values("PC", rows, func(o *e) *int64 { return known(&o.r.PC) }),
		values("Trace", rows, func(o *e) []byte { return o.r.Trace[:] }),
		values("Span", rows, func(o *e) uint64 { return uint64(o.r.Span) }),
		values("Device", rows, func(o *e) string { return text(o.r.Device) }),
		values("DeviceIndex", rows, func(o *e) *int64 { return known(&o.r.DeviceIndex) }),
		values("Correlation", rows, func(o *e) *int64 { return known(&o.r.Correlation) }),
		values("Origin", rows, func(o *e) uint64 { return entry(o.b.Origins, o.r.Origin).Key }),
		values("Attributes", rows, func(o *e) string { return encoded(entry(o.b.Extras, o.r.Extra).Attrs) }))
}

func (s *Store) insertLogs(ctx context.Context, w *work) error {
	type e = of[store.Log]
	rows := w.logs
	return insertRows(ctx, s, "gpu_logs", rows,
		values("TimeNs", rows, func(o *e) int64 { return o.r.TimeNs }),
		values("UID", rows, func(o *e) []byte { return o.r.UID[:] }),
		values("ObservedNs", rows, func(o *e) int64 { return o.r.ObservedNs }),
		values("Severity", rows, func(o *e) uint8 { return o.r.Severity }),
		values("SeverityText", rows, func(o *e) string { return text(o.r.SeverityText) }),
		values("Event", rows, func(o *e) string { return text(o.r.Event) }),
		values("Body", rows, func(o *e) string { return string(o.r.Body.Append(nil)) }),
		values("Trace", rows, func(o *e) []byte { return o.r.Trace[:] }),
		values("Span", rows, func(o *e) uint64 { return uint64(o.r.Span) }),
		values("Flags", rows, func(o *e) uint32 { return o.r.Flags }),
		values("Origin", rows, func(o *e) uint64 { return entry(o.b.Origins, o.r.Origin).Key }),
		values("Attributes", rows, func(o *e) string { return encoded(o.r.Attrs) }),
		values("DroppedAttrs", rows, func(o *e) uint32 { return o.r.DroppedAttrs }))
}

func (s *Store) insertPoints(ctx context.Context, w *work) error {
	type e = of[store.Point]
	rows := w.points
	return insertRows(ctx, s, "gpu_points", rows,
		values("Series", rows, func(o *e) uint64 { return entry(o.b.Series, o.r.Series).Key }),
		values("TimeNs", rows, func(o *e) int64 { return o.r.TimeNs }),
		values("Version", rows, func(*e) uint64 { return s.next() }),
		values("StartNs", rows, func(o *e) int64 { return o.r.StartNs }),
		values("Flags", rows, func(o *e) uint32 { return o.r.Flags }),
		values("Int", rows, func(o *e) *int64 { return known(&o.r.Int) }),
		values("Double", rows, func(o *e) *float64 {
			if !o.r.HasDouble {
				return nil
			}
			return &o.r.Double
		}),
		values("Data", rows, func(o *e) string { return string(o.r.Data) }),
		values("Exemplars", rows, func(o *e) string { return string(o.r.Exemplars) }))
}
