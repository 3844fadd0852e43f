// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
)

// view reads the segments of one session. They stay attached until close.
type view struct {
	s        *Store
	sess     *session
	segments []*segment
}

// open attaches the segments of a session.
//
// If empty, the data without a session may be read. The view is nil if there are none.
func (s *Store) open(ctx context.Context, project, id string, empty bool) (*view, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, errClosed
	}
	sess := s.sessions[sessionKey{project, id}]
	if sess == nil && id == "" && empty {
		return nil, nil
	}
	if sess == nil || id == "" && !empty {
		return nil, fmt.Errorf("session %q: %w", id, store.ErrNotFound)
	}
	v := &view{s: s, sess: sess}
	for _, seg := range sess.segments {
		if err := s.acquire(ctx, seg); err != nil {
			v.close()
			return nil, err
		}
		v.segments = append(v.segments, seg)
	}
	return v, nil
}

func (v *view) close() {
	for _, seg := range v.segments {
		v.s.release(seg)
	}
}

// each runs a query over all segments. It replaces {table} by the rows of that table.
func (v *view) each(ctx context.Context, query string, args []any, scan func(*sql.Rows) error) error {
	for _, tables := range [][]string{rowTables[:], dictTables[:]} {
		for _, t := range tables {
			if !strings.Contains(query, "{"+t+"}") {
				continue
			}
			parts := make([]string, 0, len(v.segments))
			for _, seg := range v.segments {
				parts = append(parts, "SELECT * FROM "+seg.alias+"."+t)
			}
			query = strings.ReplaceAll(query, "{"+t+"}", "("+strings.Join(parts, " UNION ALL ")+")")
		}
	}
	return v.s.each(ctx, query, args, scan)
}

// filter builds a condition. Parameters are bound.
type filter struct {
	conditions []string
	args       []any
}

func (f *filter) add(condition string, args ...any) {
	f.conditions = append(f.conditions, condition)
	f.args = append(f.args, args...)
}

func (f *filter) interval(start, end string, from, to int64, overlapping bool) {
	if from != 0 {
		if overlapping {
			f.add("("+start+" >= ? OR "+end+" > ?)", from, from)
		} else {
			f.add(start+" >= ?", from)
		}
	}
	if to != 0 {
		f.add(start+" < ?", to)
	}
}

func (f *filter) where() string {
	if len(f.conditions) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(f.conditions, " AND ")
}

// u64 binds a number that may exceed int64: database/sql rejects such a uint64.
func u64[T ~uint64](v T) string { return strconv.FormatUint(uint64(v), 10) }

func idList[T ~uint8 | ~uint32](ids []T) []int64 {
	out := make([]int64, len(ids))
	for i, v := range ids {
		out[i] = int64(v)
	}
	return out
}

// limits checks the interval and the limit of a query and returns the limit.
func limits(from, to int64, n, def, most int) (int, error) {
	switch {
	case from < 0 || to < 0 || from > store.MaxTimeNs || to > store.MaxTimeNs || to != 0 && to <= from:
		return 0, fmt.Errorf("interval [%d, %d): %w", from, to, store.ErrInvalid)
	case n < 0 || n > most:
		return 0, fmt.Errorf("limit %d: %w: at most %d", n, store.ErrInvalid, most)
	case n == 0:
		return def, nil
	}
	return n, nil
}

// Sessions implements [store.Reader].
func (s *Store) Sessions(ctx context.Context, q store.SessionQuery) ([]store.SessionInfo, error) {
	n, err := limits(q.From, q.To, q.Limit, 100, 1000)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	var list []*session
	for k, sess := range s.sessions {
		if k.project != q.Project || k.session == "" || sess.info.FirstNs > sess.info.LastNs {
			continue
		}
		if q.From != 0 && sess.info.LastNs < q.From || q.To != 0 && sess.info.FirstNs >= q.To {
			continue
		}
		list = append(list, sess)
	}
	slices.SortFunc(list, func(a, b *session) int {
		return cmp.Or(cmp.Compare(b.info.FirstNs, a.info.FirstNs), cmp.Compare(a.id, b.id))
	})
	if q.After != "" {
		i := slices.IndexFunc(list, func(x *session) bool { return x.id == q.After })
		if i < 0 {
			return nil, fmt.Errorf("list sessions after %q: %w", q.After, store.ErrNotFound)
		}
		list = list[i+1:]
	}
	var out []store.SessionInfo
	for _, sess := range list {
		i := sess.describe()
		has := func(s string) bool { return store.ContainsFold(s, q.Text) }
		if q.Service != "" && q.Service != i.Service || q.Host != "" && q.Host != i.Host || q.Run != "" && q.Run != i.Run ||
			!has(i.ID) && !has(i.Service) && !has(i.Host) && !has(i.Run) {
			continue
		}
		if out = append(out, i); len(out) == n {
			break
		}
	}
	return out, nil
}

// Session implements [store.Reader].
func (s *Store) Session(ctx context.Context, project, id string) (store.SessionInfo, error) {
	sess, err := s.named(ctx, project, id)
	if err != nil {
		return store.SessionInfo{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return sess.describe(), nil
}

// Lanes implements [store.Reader].
func (s *Store) Lanes(ctx context.Context, project, session string) ([]store.LaneInfo, error) {
	v, err := s.open(ctx, project, session, false)
	if err != nil {
		return nil, err
	}
	defer v.close()
	var out []store.LaneInfo
	err = v.each(ctx, `SELECT lane, count(*), WRAP(greatest(dur_ns, 0)), min(start_ns), max(start_ns + greatest(dur_ns, 0)) FROM {ops}
		GROUP BY 1`, nil, func(r *sql.Rows) error {
		var l store.LaneInfo
		err := r.Scan(&l.ID, &l.Count, &l.BusyNs, &l.FirstNs, &l.LastNs)
		out = append(out, l)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list lanes: %w", err)
	}
	ids := map[uint32]struct{}{}
	for _, l := range out {
		ids[l.ID] = struct{}{}
	}
	entries, err := v.lanes(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("list lanes: %w", err)
	}
	for i := range out {
		if l := entries[out[i].ID]; l != nil {
			out[i].Lane = *l
		}
	}
	slices.SortFunc(out, func(a, b store.LaneInfo) int {
		return compareLanes(&a.Lane, &b.Lane)
	})
	return out, nil
}

func compareLanes(a, b *store.Lane) int {
	return cmp.Or(cmp.Compare(a.Device, b.Device), compareInt(a.DeviceIndex, b.DeviceIndex),
		compareInt(a.Context, b.Context), compareInt(a.Stream, b.Stream), cmp.Compare(a.Class, b.Class),
		cmp.Compare(a.Key, b.Key))
}

// compareInt orders unknown before known integers.
func compareInt(a, b store.Int) int {
	if a.OK != b.OK {
		if b.OK {
			return -1
		}
		return 1
	}
	return cmp.Compare(a.V, b.V)
}

// Timeline implements [store.Reader].
func (s *Store) Timeline(ctx context.Context, q store.TimelineQuery) (store.Timeline, error) {
	_, err := limits(q.From, q.To, 0, 0, 0)
	if err == nil && (q.Bins < 1 || q.Bins > 4000) {
		err = fmt.Errorf("%d bins: %w", q.Bins, store.ErrInvalid)
	}
	if err != nil {
		return store.Timeline{}, fmt.Errorf("read timeline: %w", err)
	}
	v, err := s.open(ctx, q.Project, q.Session, false)
	if err != nil {
		return store.Timeline{}, err
	}
	defer v.close()
	t, err := v.timeline(ctx, q)
	if err != nil {
		return store.Timeline{}, fmt.Errorf("read timeline: %w", err)
	}
	return t, nil
}

// timelineSQL computes bins from rows: $1 is the start, $2 the width and $3 the number of bins, $4
// their end.
const timelineSQL = `WITH o AS (SELECT lane, shape, start_ns AS s, greatest(dur_ns, 0) AS d, start_ns + greatest(dur_ns, 0) AS e
		FROM {ops} WHERE start_ns < $4 AND (start_ns >= $1 OR start_ns + greatest(dur_ns, 0) > $1)LANES),
	parts AS (SELECT o.*, coalesce(k.key, 0) AS key, unnest(generate_series(greatest(s - $1, 0) // $2,
		least(greatest(e - 1, s) - $1, $4 - $1 - 1) // $2)) AS b
		FROM o LEFT JOIN (SELECT DISTINCT ON (id) id, key FROM {shapes}) k ON k.id = shape),
	sums AS (SELECT lane, b, count(*) FILTER (s >= $1 + b * $2) AS n,
		WRAP(part) AS busy,
		arg_min({'d': d, 'shape': shape, 's': s}, {'d': -d, 's': s, 'k': key}) FILTER (s >= $1 + b * $2) AS top
		FROM (SELECT *, greatest(least(e, $1 + (b + 1) * $2) - greatest(s, $1 + b * $2), 0) AS part FROM parts WHERE b < $3)
		GROUP BY 1, 2)
	SELECT lane, b, n, busy, coalesce(top.d, 0), coalesce(top.shape, 0), coalesce(top.s, 0) FROM sums
	WHERE n > 0 OR busy > 0 ORDER BY 1, 2`

func (v *view) timeline(ctx context.Context, q store.TimelineQuery) (store.Timeline, error) {
	from, to := q.From, q.To
	var ops, first, last int64
	if from == 0 || to == 0 {
		err := v.each(ctx, "SELECT count(*), coalesce(min(start_ns), 0), coalesce(max(start_ns + greatest(dur_ns, 0)), 0) FROM {ops}", nil,
			func(r *sql.Rows) error { return r.Scan(&ops, &first, &last) })
		if err != nil {
			return store.Timeline{}, err
		}
	} else {
		err := v.each(ctx, "SELECT count(*) FROM {ops}", nil, func(r *sql.Rows) error { return r.Scan(&ops) })
		if err != nil {
			return store.Timeline{}, err
		}
	}
	if from == 0 {
		from = first
	}
	if to == 0 {
		to = last + 1
	}
	if ops == 0 || to <= from {
		return store.Timeline{}, nil
	}
	_, from, width := store.PlanTimeline(from, to, q.Bins)
	bins := (to - from + width - 1) / width
	args := []any{from, width, bins, from + bins*width}
	lanes := ""
	if len(q.Lanes) > 0 {
		lanes = " AND list_contains($5::BIGINT[], lane)"
		args = append(args, idList(q.Lanes))
	}
	t := store.Timeline{From: from, Width: width}
	ids := idSet{}
	err := v.each(ctx, strings.ReplaceAll(timelineSQL, "LANES", lanes), args, func(r *sql.Rows) error {
		var b store.Bin
		err := r.Scan(&b.Lane, &b.Index, &b.Count, &b.BusyNs, &b.TopNs, &b.TopShape, &b.TopStart)
		ids.add(b.Lane)
		t.Bins = append(t.Bins, b)
		return err
	})
	if err != nil {
		return store.Timeline{}, err
	}
	entries, err := v.lanes(ctx, ids)
	if err != nil {
		return store.Timeline{}, err
	}
	slices.SortStableFunc(t.Bins, func(a, b store.Bin) int {
		return compareLanes(orEmpty(entries[a.Lane]), orEmpty(entries[b.Lane]))
	})
	return t, nil
}
