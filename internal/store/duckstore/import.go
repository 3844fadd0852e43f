// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/keys"
)

// importRows is the number of rows of a batch.
const importRows = 20_000

// Import implements [store.Admin]. A process of its own opens the file and checks all rows before it
// sends the first one. The rows are then written like others. So importing a session again changes
// nothing, and importing one that exists adds the rows that are missing. A new session is pinned, because
// retention would soon delete an old one. After an error such as a full disk, a part of the rows may be
// stored.
func (s *Store) Import(ctx context.Context, project, file string) (string, error) {
	session, err := s.importFile(ctx, project, file)
	if err != nil {
		return "", fmt.Errorf("import %s: %w", file, err)
	}
	return session, nil
}

func (s *Store) importFile(ctx context.Context, project, file string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	path, err := absolute(file)
	if err != nil {
		return "", err
	}
	session, seal, old := "", false, false
	pinned := true // a session that exists stays as it is
	var meta map[string]string
	read := func(_ int, a *response) error {
		switch {
		case a.Old:
			old = true
			return nil
		case a.Err != "":
			return errors.New(a.Err)
		case a.Segment != nil:
			meta = a.Segment.Meta
			return nil
		case a.Batch.Rows() == 0:
			return nil
		}
		if session == "" {
			session = a.Batch.Session
			if err := s.ready(ctx, sessionKey{project, session}); err != nil {
				return err
			}
			sess, err := s.lookup(project, session)
			if err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			if err == nil {
				s.mu.RLock()
				dropped, sealed := sess.dropped, sess.sealed
				s.mu.RUnlock()
				if dropped {
					return fmt.Errorf("session %q exists without its rows: delete it first", session)
				}
				seal = sealed
			} else {
				seal, pinned = true, false
			}
		}
		a.Batch.Project = project
		if series, origins := a.Batch.Series, len(a.Batch.Origins); !validSeries(series, origins) {
			return errors.New("a series refers to an absent origin")
		}
		keys.Set(a.Batch)
		r, err := s.Write(ctx, []*store.Batch{a.Batch})
		if err == nil && !pinned {
			pinned = true
			err = s.Pin(ctx, project, session, true)
		}
		if err == nil && r.Rejected > 0 {
			err = fmt.Errorf("session %q cannot hold %d rows", session, r.Rejected)
		}
		return err
	}
	err = readFiles(ctx, request{Files: []string{path}, Rows: true}, read)
	if err == nil && old {
		// The store changes a copy. DuckDB may only write below the directory of the store.
		var migrated string
		if migrated, err = s.scratch(".new"); err != nil {
			return "", err
		}
		defer func() { _ = removeFile(migrated) }()
		if err = copyNew(path, migrated); err == nil {
			err = s.migrate(ctx, migrated)
		}
		if err == nil {
			err = readFiles(ctx, request{Files: []string{migrated}, Rows: true}, read)
		}
	}
	if err != nil {
		return "", err
	}
	if session == "" {
		return "", errors.New("the file has no rows")
	}
	if seal && meta["sealed"] == "1" {
		err = s.Seal(ctx, project, session)
	}
	return session, err
}

func validSeries(list []store.Series, origins int) bool {
	for i := range list {
		if o := list[i].Origin; o != 0 && int(o) >= origins {
			return false
		}
	}
	return true
}

// readRows sends all rows of an attached segment in batches with the entries that they refer to.
func (s *Store) readRows(ctx context.Context, seg *segment, meta map[string]string, send func(*store.Batch) error) error {
	switch id := meta["session"]; {
	case id == "":
		return errors.New("the file has data without a session")
	case len(id) > maxSession:
		return fmt.Errorf("the id of the session has %d bytes, more than %d", len(id), maxSession)
	case meta["rows_dropped"] == "1":
		return errors.New("the file has sums only, because retention removed its rows")
	}
	r := &rowReader{
		v:       &view{s: s, sess: &session{id: meta["session"], cache: newCache()}, segments: []*segment{seg}},
		session: meta["session"], send: send,
	}
	for _, table := range []struct {
		query string
		scan  func(*sql.Rows) error
	}{
		{"SELECT " + opColumns + " FROM {ops}", r.op},
		{"SELECT " + importSpans + " FROM {spans}", r.span},
		{"SELECT " + importSamples + " FROM {samples}", r.sample},
		{"SELECT " + importLogs + " FROM {logs}", r.log},
		{"SELECT series, " + pointColumns + " FROM {points}", r.point},
	} {
		r.begin()
		err := r.v.each(ctx, table.query, nil, func(rows *sql.Rows) error {
			if err := table.scan(rows); err != nil {
				return err
			}
			if r.batch.Rows() < importRows {
				return nil
			}
			return r.flush(ctx)
		})
		if err == nil {
			err = r.flush(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

const (
	importSpans = `start_ns, end_ns, trace, span, parent, kind, status, status_message, name, trace_state, flags,
		operation, origin, attrs, events, links, dropped_attrs, dropped_events, dropped_links`
	importSamples = `time_ns, uid, kind, what, value, kernel, function, file, line, pc, trace, span, device, device_index,
		correlation, origin, extra`
	importLogs = `time_ns, observed_ns, uid, severity, severity_text, event, body, trace, span, flags, origin, attrs,
		dropped_attrs`
)

// rowReader makes batches of rows. Until flush, they refer to entries by the ids of the file.
type rowReader struct {
	v       *view
	session string
	send    func(*store.Batch) error
	batch   *store.Batch
}

func (r *rowReader) begin() { r.batch = &store.Batch{Session: r.session} }

func (r *rowReader) op(rows *sql.Rows) error {
	var o store.Op
	err := scanOp(rows, &o)
	r.batch.Ops = append(r.batch.Ops, o)
	return err
}

func (r *rowReader) span(rows *sql.Rows) error {
	var p store.Span
	err := rows.Scan(&p.StartNs, &p.EndNs, traceID{(*[16]byte)(&p.Trace)}, &p.Span, &p.Parent, &p.Kind, &p.Status,
		&p.StatusMessage, &p.Name, &p.TraceState, &p.Flags, &p.Operation, &p.Origin, attrsValue{&p.Attrs},
		&p.Events, &p.Links, &p.DroppedAttrs, &p.DroppedEvents, &p.DroppedLinks)
	r.batch.Spans = append(r.batch.Spans, p)
	return err
}

func (r *rowReader) sample(rows *sql.Rows) error {
	var p store.Sample
	err := rows.Scan(&p.TimeNs, traceID{(*[16]byte)(&p.UID)}, &p.Kind, &p.What, &p.Value, &p.Kernel, &p.Function, &p.File,
		nullInt{&p.Line}, nullInt{&p.PC}, traceID{(*[16]byte)(&p.Trace)}, &p.Span, &p.Device, nullInt{&p.DeviceIndex},
		nullInt{&p.Correlation}, &p.Origin, &p.Extra)
	r.batch.Samples = append(r.batch.Samples, p)
	return err
}

func (r *rowReader) log(rows *sql.Rows) error {
	var l store.Log
	var body []byte
	err := rows.Scan(&l.TimeNs, &l.ObservedNs, traceID{(*[16]byte)(&l.UID)}, &l.Severity, &l.SeverityText, &l.Event,
		&body, traceID{(*[16]byte)(&l.Trace)}, &l.Span, &l.Flags, &l.Origin, attrsValue{&l.Attrs}, &l.DroppedAttrs)
	if err == nil {
		l.Body, err = store.DecodeValue(body)
	}
	r.batch.Logs = append(r.batch.Logs, l)
	return err
}

func (r *rowReader) point(rows *sql.Rows) error {
	var p store.Point
	err := scanPoint(rows, &p, &p.Series)
	r.batch.Points = append(r.batch.Points, p)
	return err
}

// refs is the ids of a dictionary that a batch refers to, with their indices in the batch.
type refs struct {
	ids   idSet
	index map[uint32]uint32
	list  []uint32
}

func (r *refs) add(id uint32) {
	if _, ok := r.index[id]; ok || id == 0 {
		return
	}
	r.list = append(r.list, id)
	r.ids.add(id)
	r.index[id] = uint32(len(r.list))
}

// entriesOf returns entry 0 and the entries of refs in their order.
func entriesOf[T any](ctx context.Context, r *refs, dict int, read func(context.Context, idSet) (map[uint32]*T, error)) ([]T, error) {
	found, err := read(ctx, r.ids)
	if err != nil {
		return nil, err
	}
	out := make([]T, 1, 1+len(r.list))
	for _, id := range r.list {
		if found[id] == nil {
			return nil, fmt.Errorf("a row refers to an absent entry of %s", dictTables[dict])
		}
		out = append(out, *found[id])
	}
	return out, nil
}

// eachRef calls f for all references of rows.
func eachRef(b *store.Batch, f func(dict int, ref *uint32)) {
	for i := range b.Ops {
		o := &b.Ops[i]
		f(lanes, &o.Lane)
		f(shapes, &o.Shape)
		f(places, &o.Place)
		f(stacks, &o.Stack)
		f(origins, &o.Origin)
		f(extras, &o.Extra)
	}
	for i := range b.Spans {
		f(origins, &b.Spans[i].Origin)
	}
	for i := range b.Samples {
		f(origins, &b.Samples[i].Origin)
		f(extras, &b.Samples[i].Extra)
	}
	for i := range b.Logs {
		f(origins, &b.Logs[i].Origin)
	}
	for i := range b.Points {
		f(series, &b.Points[i].Series)
	}
}

// flush completes, checks and sends the batch.
func (r *rowReader) flush(ctx context.Context) (err error) {
	b := r.batch
	r.begin()
	if b.Rows() == 0 {
		return nil
	}
	var all [series + 1]refs
	for i := range all {
		all[i] = refs{ids: idSet{}, index: map[uint32]uint32{}}
	}
	eachRef(b, func(dict int, ref *uint32) { all[dict].add(*ref) })
	if b.Series, err = entriesOf(ctx, &all[series], series, r.v.seriesEntries); err != nil {
		return err
	}
	for i := range b.Series {
		all[origins].add(b.Series[i].Origin)
	}
	if b.Origins, err = entriesOf(ctx, &all[origins], origins, r.v.origins); err != nil {
		return err
	}
	if b.Extras, err = entriesOf(ctx, &all[extras], extras, r.v.extras); err != nil {
		return err
	}
	if b.Lanes, err = entriesOf(ctx, &all[lanes], lanes, r.v.lanes); err != nil {
		return err
	}
	if b.Shapes, err = entriesOf(ctx, &all[shapes], shapes, r.v.shapes); err != nil {
		return err
	}
	if b.Places, err = entriesOf(ctx, &all[places], places, r.v.places); err != nil {
		return err
	}
	if b.Stacks, err = entriesOf(ctx, &all[stacks], stacks, r.v.stacks); err != nil {
		return err
	}
	for i := range b.Series {
		b.Series[i].Origin = all[origins].index[b.Series[i].Origin]
	}
	// The store has entries also for the empty lane and the empty shape. In a batch they are entry 0.
	if i := slices.IndexFunc(b.Lanes[1:], func(l store.Lane) bool { l.Key = 0; return l == store.Lane{} }); i >= 0 {
		all[lanes].index[all[lanes].list[i]] = 0
	}
	empty, _ := keys.Shape(nil, &store.Shape{})
	if i := slices.IndexFunc(b.Shapes[1:], func(s store.Shape) bool { k, _ := keys.Shape(nil, &s); return k == empty }); i >= 0 {
		all[shapes].index[all[shapes].list[i]] = 0
	}
	eachRef(b, func(dict int, ref *uint32) { *ref = all[dict].index[*ref] })
	if _, rejected := validRows([]*store.Batch{b}); rejected > 0 {
		return fmt.Errorf("%d rows are outside the limits of the store", rejected)
	}
	return r.send(b)
}

func (v *view) seriesEntries(ctx context.Context, ids idSet) (map[uint32]*store.Series, error) {
	return entries(ctx, v, ids, "key, metric, unit, description, type, temporality, monotonic, attrs, origin", series,
		func(s *store.Series) []any {
			return []any{&s.Key, &s.Metric, &s.Unit, &s.Description, &s.Type, &s.Temporality, &s.Monotonic, attrsValue{&s.Attrs}, &s.Origin}
		})
}
