// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

const (
	maxSession = 256 // bytes
	dayNs      = int64(24 * time.Hour)
	// rowBytes is what a row counts for the limit on the size.
	rowBytes = 100
)

// Memory is a store in memory, for tests. It supports all of [store.Store] except Export and
// Import, and it has no limit on the free space.
type Memory struct {
	mu        sync.Mutex
	sessions  map[sessionID]*session
	baselines map[sessionID]string // sessions by project and name
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{sessions: map[sessionID]*session{}, baselines: map[sessionID]string{}}
}

type sessionID struct{ project, session string }

// rowID identifies an operation or a span.
type rowID struct {
	start int64
	span  store.SpanID
}

type pointID struct {
	series uint64
	time   int64
}

// session has the rows of a session with their content in place of indices.
type session struct {
	ops     map[rowID]*store.OpRow
	spans   map[rowID]*store.SpanRow
	samples map[store.UID]*sample
	logs    map[store.UID]*store.LogRow
	points  map[pointID]*point

	// Ids of lanes and shapes by Key, and of paths.
	lanes, shapes map[uint64]uint32
	paths         map[child]uint32

	sealed, pinned, dropped bool

	// derived is what follows from ops and spans, nil until it is needed.
	derived struct {
		ops   []*store.OpRow
		spans []*store.SpanRow
		tree  *tree
	}
}

// change forgets what has been derived from the rows before they change.
func (s *session) change() {
	s.derived.ops, s.derived.spans, s.derived.tree = nil, nil, nil
}

type sample struct {
	store.Sample
	origin *store.Origin
}

// child is a path: its parent and its last name.
type child struct {
	parent uint32
	name   string
}

type point struct {
	store.Point
	series *store.Series
	origin *store.Origin
}

func newSession() *session {
	return &session{
		ops: map[rowID]*store.OpRow{}, spans: map[rowID]*store.SpanRow{},
		samples: map[store.UID]*sample{}, logs: map[store.UID]*store.LogRow{}, points: map[pointID]*point{},
		lanes: map[uint64]uint32{}, shapes: map[uint64]uint32{}, paths: map[child]uint32{},
	}
}

// Close implements [store.Store].
func (m *Memory) Close(context.Context) error { return nil }

// Write implements [store.Writer].
func (m *Memory) Write(ctx context.Context, batches []*store.Batch) (store.Result, error) {
	var r store.Result
	if err := ctx.Err(); err != nil {
		return r, fmt.Errorf("write: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range batches {
		if len(b.Session) > maxSession {
			r.Rejected += int64(b.Rows())
			continue
		}
		id := sessionID{b.Project, b.Session}
		s := m.sessions[id]
		if s == nil {
			s = newSession()
		}
		before := r
		s.write(clone(b), &r)
		if r.Written > before.Written || r.Replaced > before.Replaced {
			m.sessions[id] = s
			s.sealed = false
		}
	}
	return r, nil
}

func valid(times ...int64) bool {
	return !slices.ContainsFunc(times, func(t int64) bool { return t < 0 || t > store.MaxTimeNs })
}

// entry returns an entry of a dictionary. Entry 0 is empty.
func entry[T any](entries []T, i uint32) (*T, bool) {
	switch {
	case i == 0:
		return new(T), true
	case int(i) < len(entries):
		return &entries[i], true
	}
	return nil, false
}

// write adds the rows of a batch that belongs to s.
func (s *session) write(b *store.Batch, r *store.Result) {
	s.change()
	count := func(ok, stored bool) bool {
		switch {
		case !ok:
			r.Rejected++
		case stored:
			r.Duplicates++
		default:
			r.Written++
		}
		return ok && !stored
	}
	for _, o := range b.Ops {
		lane, ok1 := entry(b.Lanes, o.Lane)
		shape, ok2 := entry(b.Shapes, o.Shape)
		place, ok3 := entry(b.Places, o.Place)
		stack, ok4 := entry(b.Stacks, o.Stack)
		origin, ok5 := entry(b.Origins, o.Origin)
		extra, ok6 := entry(b.Extras, o.Extra)
		ok := ok1 && ok2 && ok3 && ok4 && ok5 && ok6 && valid(o.StartNs, o.EndNs) && !s.dropped
		id := rowID{o.StartNs, o.Span}
		if count(ok, s.ops[id] != nil) {
			o.Lane, o.Shape = assign(s.lanes, lane.Key), assign(s.shapes, shape.Key)
			s.ops[id] = &store.OpRow{
				Op: o, LaneRef: lane, ShapeRef: shape, OriginRef: origin, PlaceRef: *place,
				StackText: stack.Text, Attrs: extra.Attrs,
			}
		}
	}
	for _, p := range b.Spans {
		origin, ok := entry(b.Origins, p.Origin)
		id := rowID{p.StartNs, p.Span}
		old := s.spans[id]
		ok = ok && valid(p.StartNs, p.EndNs)
		if ok && old != nil && p.EndNs > old.EndNs {
			r.Replaced++
			s.spans[id] = &store.SpanRow{Span: p, OriginRef: origin}
		} else if count(ok, old != nil) {
			s.spans[id] = &store.SpanRow{Span: p, OriginRef: origin}
		}
	}
	for _, p := range b.Samples {
		origin, ok := entry(b.Origins, p.Origin)
		_, ok2 := entry(b.Extras, p.Extra)
		if count(ok && ok2 && valid(p.TimeNs) && !s.dropped, s.samples[p.UID] != nil) {
			s.samples[p.UID] = &sample{p, origin}
		}
	}
	for _, l := range b.Logs {
		origin, ok := entry(b.Origins, l.Origin)
		if count(ok && valid(l.TimeNs), s.logs[l.UID] != nil) {
			s.logs[l.UID] = &store.LogRow{Log: l, OriginRef: origin}
		}
	}
	for _, p := range b.Points {
		s.writePoint(b, p, r)
	}
}

func (s *session) writePoint(b *store.Batch, p store.Point, r *store.Result) {
	series, ok := entry(b.Series, p.Series)
	if !ok || !valid(p.TimeNs) {
		r.Rejected++
		return
	}
	origin, ok := entry(b.Origins, series.Origin)
	if !ok {
		r.Rejected++
		return
	}
	id := pointID{series.Key, p.TimeNs}
	old := s.points[id]
	p.Series = 0
	switch {
	case old == nil:
		r.Written++
	case difference(old.Point, p) == "":
		r.Duplicates++
		return
	default:
		r.Replaced++
	}
	s.points[id] = &point{p, series, origin}
}

// assign returns the id of a key, from 1.
func assign[K comparable](ids map[K]uint32, key K) uint32 {
	id, ok := ids[key]
	if !ok {
		id = uint32(len(ids) + 1)
		ids[key] = id
	}
	return id
}

// find returns a session. The session "" always exists if allowed.
func (m *Memory) find(ctx context.Context, project, id string, empty bool) (*session, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	s := m.sessions[sessionID{project, id}]
	if id == "" {
		switch {
		case !empty:
			s = nil
		case s == nil:
			return newSession(), nil
		}
	}
	if s == nil {
		return nil, fmt.Errorf("session %q: %w", id, store.ErrNotFound)
	}
	return s, nil
}

// end returns the end that answers use.
func end(start, end int64) int64 { return max(start, end) }

// info describes the session.
func (s *session) info(id sessionID) store.SessionInfo {
	in := store.SessionInfo{
		Project: id.project, ID: id.session, FirstNs: math.MaxInt64, LastNs: math.MinInt64,
		Counts: map[string]int64{
			"ops": int64(len(s.ops)), "spans": int64(len(s.spans)), "samples": int64(len(s.samples)),
			"logs": int64(len(s.logs)), "points": int64(len(s.points)),
		},
		Operations: map[store.Operation]int64{}, Sealed: s.sealed, Pinned: s.pinned, RowsDropped: s.dropped,
	}
	latest, key := int64(-1), uint64(0)
	s.each(func(first, last int64, o *store.Origin, _ store.TraceID) {
		in.FirstNs, in.LastNs = min(in.FirstNs, first), max(in.LastNs, last)
		if o.Key != 0 && (first > latest || first == latest && o.Key < key) {
			latest, key, in.Resource = first, o.Key, o.Resource
		}
	})
	for _, o := range s.ops {
		in.Operations[o.ShapeRef.Operation]++
		if o.ShapeRef.Operation == store.OpKernel {
			in.KernelNs += duration(o)
		}
	}
	for _, p := range s.spans {
		in.Ended = in.Ended || p.Operation == semconv.CUDAOperationSession
	}
	in.Service, in.Host = text(in.Resource, semconv.ServiceName), text(in.Resource, semconv.HostName)
	in.Run, in.Rank = text(in.Resource, semconv.CUDARunID), text(in.Resource, semconv.CUDARunRank)
	in.RankSize = text(in.Resource, semconv.CUDARunSize)
	if v, _ := in.Resource.Get(semconv.ProcessPID); v.Kind == store.KindInt {
		in.PID = store.Some(v.Int)
	}
	return in
}

// each calls f for each row.
func (s *session) each(f func(first, last int64, o *store.Origin, trace store.TraceID)) {
	for _, o := range s.ops {
		f(o.StartNs, end(o.StartNs, o.EndNs), o.OriginRef, o.PlaceRef.Trace)
	}
	for _, p := range s.spans {
		f(p.StartNs, end(p.StartNs, p.EndNs), p.OriginRef, p.Trace)
	}
	for _, p := range s.samples {
		f(p.TimeNs, p.TimeNs, p.origin, p.Trace)
	}
	for _, l := range s.logs {
		f(l.TimeNs, l.TimeNs, l.OriginRef, l.Trace)
	}
	for _, p := range s.points {
		f(p.TimeNs, p.TimeNs, p.origin, store.TraceID{})
	}
}

func text(a store.Attrs, key string) string {
	v, _ := a.Get(key)
	switch v.Kind {
	case store.KindString:
		return v.Str
	case store.KindInt:
		return strconv.FormatInt(v.Int, 10)
	}
	return ""
}

// Pin implements [store.Admin].
func (m *Memory) Pin(ctx context.Context, project, id string, pinned bool) error {
	return m.change(ctx, project, id, func(s *session) { s.pinned = pinned })
}

// Seal implements [store.Admin].
func (m *Memory) Seal(ctx context.Context, project, id string) error {
	return m.change(ctx, project, id, func(s *session) { s.sealed = true })
}

// Delete implements [store.Admin].
func (m *Memory) Delete(ctx context.Context, project, id string) error {
	return m.change(ctx, project, id, func(*session) {
		delete(m.sessions, sessionID{project, id})
		maps.DeleteFunc(m.baselines, func(name sessionID, session string) bool { return name.project == project && session == id })
	})
}

// SetBaseline implements [store.Admin].
func (m *Memory) SetBaseline(ctx context.Context, project, name, id string) error {
	if err := store.CheckBaseline(name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("baseline: %w", err)
	}
	if id != "" {
		if _, err := m.find(ctx, project, id, false); err != nil {
			return err
		}
		m.baselines[sessionID{project, name}] = id
		return nil
	}
	if _, ok := m.baselines[sessionID{project, name}]; !ok {
		return fmt.Errorf("baseline %q: %w", name, store.ErrNotFound)
	}
	delete(m.baselines, sessionID{project, name})
	return nil
}

// Baselines implements [store.Reader].
func (m *Memory) Baselines(ctx context.Context, project string) (list []store.Baseline, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("baselines: %w", err)
	}
	for name, id := range m.baselines {
		if name.project == project {
			list = append(list, store.Baseline{Name: name.session, Session: id})
		}
	}
	slices.SortFunc(list, func(a, b store.Baseline) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

func (m *Memory) isBaseline(id sessionID) bool {
	for name, session := range m.baselines {
		if name.project == id.project && session == id.session {
			return true
		}
	}
	return false
}

func (m *Memory) change(ctx context.Context, project, id string, f func(*session)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.find(ctx, project, id, false)
	if err == nil {
		f(s)
	}
	return err
}

// Export implements [store.Admin]. It is not supported.
func (m *Memory) Export(context.Context, string, string, string) error { return errors.ErrUnsupported }

// Import implements [store.Admin]. It is not supported.
func (m *Memory) Import(context.Context, string, string) (string, error) {
	return "", errors.ErrUnsupported
}

// unit is what retention deletes: a session, or a day without one.
type unit struct {
	sessionID
	day, last int64
	dropped   bool
}

// Retain implements [store.Admin].
func (m *Memory) Retain(ctx context.Context, l store.Retention) ([]store.Deleted, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("retain: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now().UnixNano()
	var deleted []store.Deleted
	remove := func(u unit, reason string) {
		deleted = append(deleted, store.Deleted{Project: u.project, Session: u.session, Reason: reason})
		m.remove(u)
	}
	for _, u := range m.units() {
		if l.MaxAge > 0 && u.last < now-int64(l.MaxAge) {
			remove(u, "max_age")
		}
	}
	for _, u := range m.units() {
		if l.MaxSize > 0 && m.size() > l.MaxSize {
			remove(u, "max_size")
		}
	}
	for _, u := range m.units() {
		if l.RawMaxAge > 0 && u.last < now-int64(l.RawMaxAge) && u.session != "" && !u.dropped {
			deleted = append(deleted, store.Deleted{Project: u.project, Session: u.session, Reason: "raw_max_age"})
			m.sessions[u.sessionID].dropped = true
		}
	}
	return deleted, nil
}

// units returns what retention may delete, the oldest first.
func (m *Memory) units() []unit {
	var units []unit
	for id, s := range m.sessions {
		if id.session != "" {
			if s.sealed && !s.pinned && !m.isBaseline(id) {
				units = append(units, unit{sessionID: id, last: s.info(id).LastNs, dropped: s.dropped})
			}
			continue
		}
		days := map[int64]bool{}
		s.each(func(first, _ int64, _ *store.Origin, _ store.TraceID) { days[first/dayNs] = true })
		for day := range days {
			units = append(units, unit{sessionID: id, day: day, last: day*dayNs + dayNs - 1})
		}
	}
	slices.SortFunc(units, func(a, b unit) int {
		return cmp.Or(cmp.Compare(a.last, b.last), cmp.Compare(a.project, b.project), cmp.Compare(a.session, b.session))
	})
	return units
}

func (m *Memory) remove(u unit) {
	if u.session != "" {
		delete(m.sessions, u.sessionID)
		return
	}
	s := m.sessions[u.sessionID]
	s.change()
	maps.DeleteFunc(s.ops, func(_ rowID, r *store.OpRow) bool { return r.StartNs/dayNs == u.day })
	maps.DeleteFunc(s.spans, func(_ rowID, r *store.SpanRow) bool { return r.StartNs/dayNs == u.day })
	maps.DeleteFunc(s.samples, func(_ store.UID, r *sample) bool { return r.TimeNs/dayNs == u.day })
	maps.DeleteFunc(s.logs, func(_ store.UID, r *store.LogRow) bool { return r.TimeNs/dayNs == u.day })
	maps.DeleteFunc(s.points, func(_ pointID, r *point) bool { return r.TimeNs/dayNs == u.day })
}

func (m *Memory) size() (n int64) {
	for _, s := range m.sessions {
		n += int64(len(s.ops)+len(s.spans)+len(s.samples)+len(s.logs)+len(s.points)) * rowBytes
	}
	return n
}

// Sessions implements [store.Reader].
func (m *Memory) Sessions(ctx context.Context, q store.SessionQuery) ([]store.SessionInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	limit, err := limits(q.From, q.To, q.Limit, 100, 1000)
	if err != nil {
		return nil, err
	}
	var all []store.SessionInfo
	for id, s := range m.sessions {
		if id.project == q.Project && id.session != "" {
			all = append(all, s.info(id))
		}
	}
	slices.SortFunc(all, func(a, b store.SessionInfo) int {
		return cmp.Or(cmp.Compare(b.FirstNs, a.FirstNs), cmp.Compare(a.ID, b.ID))
	})
	if q.After != "" {
		i := slices.IndexFunc(all, func(s store.SessionInfo) bool { return s.ID == q.After })
		if i < 0 {
			return nil, fmt.Errorf("session %q: %w", q.After, store.ErrNotFound)
		}
		all = all[i+1:]
	}
	all = slices.DeleteFunc(all, func(s store.SessionInfo) bool {
		match := (q.Service == "" || s.Service == q.Service) && (q.Host == "" || s.Host == q.Host) &&
			(q.Run == "" || s.Run == q.Run) && (q.To == 0 || s.FirstNs < q.To) && s.LastNs >= q.From &&
			slices.ContainsFunc([]string{s.ID, s.Service, s.Host, s.Run}, func(v string) bool {
				return store.ContainsFold(v, q.Text)
			})
		return !match
	})
	return clone(first(all, limit)), nil
}

// Session implements [store.Reader].
func (m *Memory) Session(ctx context.Context, project, id string) (store.SessionInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.find(ctx, project, id, false)
	if err != nil {
		return store.SessionInfo{}, err
	}
	return clone(s.info(sessionID{project, id})), nil
}

// Trace implements [store.Reader].
func (m *Memory) Trace(ctx context.Context, project string, trace store.TraceID) ([]store.TraceRef, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	if trace == (store.TraceID{}) {
		return nil, fmt.Errorf("zero trace: %w", store.ErrInvalid)
	}
	var refs []store.TraceRef
	for id, s := range m.sessions {
		if id.project != project {
			continue
		}
		ref, found := store.TraceRef{Session: id.session, FirstNs: math.MaxInt64}, false
		s.each(func(first, last int64, _ *store.Origin, t store.TraceID) {
			if t == trace {
				found = true
				ref.FirstNs, ref.LastNs = min(ref.FirstNs, first), max(ref.LastNs, last)
			}
		})
		if found {
			refs = append(refs, ref)
		}
	}
	slices.SortFunc(refs, func(a, b store.TraceRef) int {
		return cmp.Or(cmp.Compare(a.FirstNs, b.FirstNs), cmp.Compare(a.Session, b.Session))
	})
	return refs, nil
}

// limits checks what all queries have in common and returns the limit to use.
func limits(from, to int64, limit, normal, most int) (int, error) {
	if !valid(from, to) || to != 0 && to <= from {
		return 0, fmt.Errorf("interval [%d, %d): %w", from, to, store.ErrInvalid)
	}
	if limit < 0 || limit > most {
		return 0, fmt.Errorf("limit %d: %w", limit, store.ErrInvalid)
	}
	return cmp.Or(limit, normal), nil
}

func first[T any](s []T, n int) []T { return s[:min(len(s), n)] }

// clone returns a deep copy, so that no caller shares memory with the store.
func clone[T any](v T) T {
	var dst T
	deepCopy(reflect.ValueOf(&dst).Elem(), reflect.ValueOf(&v).Elem())
	return dst
}

func deepCopy(dst, src reflect.Value) {
	switch src.Kind() {
	case reflect.String:
		dst.SetString(strings.Clone(src.String()))
	case reflect.Pointer:
		if !src.IsNil() {
			dst.Set(reflect.New(src.Type().Elem()))
			deepCopy(dst.Elem(), src.Elem())
		}
	case reflect.Slice:
		if src.IsNil() {
			return
		}
		if b, ok := src.Interface().([]byte); ok {
			dst.SetBytes(bytes.Clone(b))
			return
		}
		dst.Set(reflect.MakeSlice(src.Type(), src.Len(), src.Len()))
		for i := range src.Len() {
			deepCopy(dst.Index(i), src.Index(i))
		}
	case reflect.Struct:
		for i := range src.NumField() {
			deepCopy(dst.Field(i), src.Field(i))
		}
	case reflect.Map:
		dst.Set(reflect.MakeMap(src.Type()))
		for k, v := range src.Seq2() {
			c := reflect.New(v.Type()).Elem()
			deepCopy(c, v)
			dst.SetMapIndex(k, c)
		}
	default:
		dst.Set(src)
	}
}
