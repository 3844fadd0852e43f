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
	"github.com/gpuflight/gpuflight/internal/store/answer"
)

// view reads the segments of one session. They stay attached until close.
type view struct {
	s        *Store
	sess     *session
	segments []*segment
	version  uint64 // of the session
	dropped  bool   // its rows were dropped
	stale    bool   // its chains are stale
	epoch    uint64 // of its chains
	coarse   bool   // see coarse
	folds    store.Folds
}

// open attaches the segments of a session.
//
// If empty, the data without a session may be read. The view is nil if there are none.
func (s *Store) open(ctx context.Context, project, id string, empty bool) (*view, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.ready(ctx, sessionKey{project, id}); err != nil {
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
	v := &view{s: s, sess: sess, version: sess.version, dropped: sess.dropped, stale: sess.stale(), epoch: sess.epoch}
	for _, seg := range sess.segments {
		if err := s.acquire(ctx, seg); err != nil {
			v.close()
			s.suspect(sess, err)
			return nil, err
		}
		v.segments = append(v.segments, seg)
		v.coarse = v.coarse || seg.coarse
	}
	if err := v.loadPaths(ctx); err != nil {
		v.close()
		return nil, err
	}
	v.folds = v.sess.paths.folded()
	return v, nil
}

// read returns what a function reads from a session. Errors of the function begin with what.
func read[T any](ctx context.Context, s *Store, project, session, what string, from func(*view) (T, error)) (T, error) {
	v, err := s.open(ctx, project, session, false)
	if err != nil {
		return *new(T), err
	}
	defer v.close()
	answer, err := from(v)
	if err != nil {
		return *new(T), fmt.Errorf("%s: %w", what, err)
	}
	return answer, nil
}

func (v *view) close() {
	v.savePaths(context.Background())
	for _, seg := range v.segments {
		v.s.release(seg)
	}
}

// each runs a query over all segments. It replaces {table} by the rows of that table.
func (v *view) each(ctx context.Context, query string, args []any, scan func(*sql.Rows) error) error {
	query = v.tables(query)
	var err error
	if len(args) > 0 {
		err = v.s.each(ctx, query, args, scan)
	} else {
		err = v.s.withTx(ctx, func(tx *sql.Tx) error { return eachRow(ctx, tx, query, nil, scan) })
	}
	v.s.suspect(v.sess, err)
	return err
}

// dict is the entries of a dictionary. Several segments may have the same entry.
func (v *view) dict(dict int) string {
	table := "{" + dictTables[dict] + "}"
	if len(v.segments) > 1 {
		return "(SELECT DISTINCT ON (id) * FROM " + table + ")"
	}
	return table
}

func joinIDs(ids []uint32) string {
	list := make([]string, len(ids))
	for i, id := range ids {
		list[i] = strconv.FormatUint(uint64(id), 10)
	}
	return strings.Join(list, ",")
}

func (v *view) tables(query string) string {
	for _, tables := range [][]string{rowTables[:], dictTables[:], rollupTables[:]} {
		for _, t := range tables {
			if !strings.Contains(query, "{"+t+"}") {
				continue
			}
			rows := v.segments[0].alias + "." + t
			if len(v.segments) > 1 {
				parts := make([]string, 0, len(v.segments))
				for _, seg := range v.segments {
					parts = append(parts, "SELECT * FROM "+seg.alias+"."+t)
				}
				rows = "(" + strings.Join(parts, " UNION ALL ") + ")"
			}
			query = strings.ReplaceAll(query, "{"+t+"}", rows)
		}
	}
	return query
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

// Sessions implements [store.Reader].
func (s *Store) Sessions(ctx context.Context, q store.SessionQuery) ([]store.SessionInfo, error) {
	n, err := answer.Limits(q.From, q.To, q.Limit, 100, 1000)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	if waiting := s.journal.keys(); len(waiting) <= s.listedBacklog {
		for _, k := range waiting {
			if err := s.ready(ctx, k); err != nil {
				return nil, fmt.Errorf("list sessions: %w", err)
			}
		}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	// With the times of the rows in the journal, a session that is written is live, and starts once.
	type listed struct {
		*session
		first, last int64
		ended       bool
	}
	var list []listed
	for k, sess := range s.sessions {
		if k.project != q.Project || k.session == "" || sess.info.FirstNs > sess.info.LastNs {
			continue
		}
		first, last, ended := s.journal.times(k)
		first, last, ended = min(first, sess.info.FirstNs), max(last, sess.info.LastNs), ended || sess.info.Ended
		if q.From != 0 && last < q.From || q.To != 0 && first >= q.To {
			continue
		}
		list = append(list, listed{sess, first, last, ended})
	}
	slices.SortFunc(list, func(a, b listed) int {
		return cmp.Or(cmp.Compare(b.first, a.first), cmp.Compare(a.id, b.id))
	})
	if q.After != "" {
		i := slices.IndexFunc(list, func(x listed) bool { return x.id == q.After })
		if i < 0 {
			return nil, fmt.Errorf("list sessions after %q: %w", q.After, store.ErrNotFound)
		}
		list = list[i+1:]
	}
	var out []store.SessionInfo
	for _, l := range list {
		i := s.describe(l.session)
		i.FirstNs, i.LastNs, i.Ended = l.first, l.last, l.ended
		has := func(s string) bool { return store.ContainsFold(s, q.Text) }
		if q.Service != "" && q.Service != i.Service || q.Host != "" && q.Host != i.Host || q.Run != "" && q.Run != i.Run ||
			!has(i.ID) && !has(i.Service) && !has(i.Host) && !has(i.Run) {
			continue
		}
		i.Bytes = l.bytes()
		if out = append(out, i); len(out) == n {
			break
		}
	}
	return out, nil
}

// Session implements [store.Reader].
func (s *Store) Session(ctx context.Context, project, id string) (store.SessionInfo, error) {
	if err := s.ready(ctx, sessionKey{project, id}); err != nil {
		return store.SessionInfo{}, err
	}
	sess, err := s.named(ctx, project, id)
	if err != nil {
		return store.SessionInfo{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	i := s.describe(sess)
	i.Bytes = sess.bytes()
	return i, nil
}

// Lanes implements [store.Reader].
func (s *Store) Lanes(ctx context.Context, project, session string) ([]store.LaneInfo, error) {
	return read(ctx, s, project, session, "list lanes", func(v *view) ([]store.LaneInfo, error) {
		out, err := v.laneInfos(ctx)
		return slices.Clone(out), err
	})
}

func (v *view) laneInfos(ctx context.Context) ([]store.LaneInfo, error) {
	return cached(v, "lanes", func() ([]store.LaneInfo, int, error) {
		var out []store.LaneInfo
		ids := idSet{}
		err := v.each(ctx, "SELECT lane, sum(n)::BIGINT, "+lowBits("busy_ns")+", min(first_ns), max(last_ns) FROM {lane_sums} GROUP BY 1",
			nil, func(r *sql.Rows) error {
				var l store.LaneInfo
				err := r.Scan(&l.ID, &l.Count, wrapped{&l.BusyNs}, &l.FirstNs, &l.LastNs)
				ids.add(l.ID)
				out = append(out, l)
				return err
			})
		if err != nil {
			return nil, 0, err
		}
		entries, err := v.lanes(ctx, ids)
		if err != nil {
			return nil, 0, err
		}
		for i := range out {
			out[i].Lane = *orEmpty(entries[out[i].ID])
		}
		slices.SortFunc(out, func(a, b store.LaneInfo) int { return answer.CompareLanes(&a.Lane, &b.Lane) })
		return out, len(out), nil
	})
}
