// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
)

// Table top_ops has copies of the first operations of a segment by duration and by queue time: those of all, and
// those of each group. A group is the operations of a chain, or of a path that the producer gave. Table top_groups
// has values that no other operation of a group exceeds. So a page of a whole session or of a path by one of these
// values reads few operations, and no places.
//
// Both tables have the operations that start before the mark, a property of the segment. A late operation is
// appended to top_ops. The others are read as they are.
const (
	// keptTop is the number of operations of a segment that are kept by each value, and keptGroup that of a group.
	// Pages of the UI have 500.
	keptTop   = 4096
	keptGroup = 600
	// topShare is the share of the operations of a segment that groups may keep, except in small segments. The groups
	// with the most operations keep theirs first.
	topShare = 16
	// topPart is the number of operations after which the writer moves the mark.
	topPart = 1 << 21
)

const (
	durationSQL = "greatest(dur_ns, 0)"
	// queueOrderSQL is the queue time by which operations are ordered, and the least integer for those without.
	queueOrderSQL = "coalesce(" + queueSQL + ", -9223372036854775808)"
)

// Kinds of rows of top_groups.
const (
	groupAll     = iota // all operations
	groupChain          // those of a chain
	groupPath           // those of a path of the producer; "" for those without a place
	groupUnknown        // those whose parent the session lacked
)

// topMark is the property topProperty of a segment. Each change of the tables that removes rows has another seq.
type topMark struct{ until, seq int64 }

const topProperty = "top"

func (m *topMark) String() string {
	if m == nil {
		return ""
	}
	return fmt.Sprintf("%d %d", m.until, m.seq)
}

// parseMark returns nil if a property is not a mark.
func parseMark(text string) *topMark {
	m := &topMark{}
	if _, err := fmt.Sscanf(text, "%d %d", &m.until, &m.seq); err != nil {
		return nil
	}
	return m
}

// extendTops moves the mark of a segment to its newest operations, or to its end. If a part of a large segment is
// left, the next write goes on.
func (s *Store) extendTops(ctx context.Context, sess *session, seg *segment, all bool) error {
	var mark topMark
	if m := seg.top.Load(); m != nil {
		mark = *m
	}
	if seg.dropped || sess.stale() || seg.ops < s.topPart || !all && seg.ops-seg.topOps < s.topPart {
		return nil
	}
	for last := false; !last; {
		to := seg.newest[0] + 1
		if !all {
			to -= s.gapLag
		}
		part := seg.gapPart(mark.until, 4*s.topPart)
		last = part >= to
		if last && to <= mark.until && seg.ops == seg.topOps {
			return nil
		}
		next := topMark{max(mark.until, min(part, to)), mark.seq + 1}
		if err := s.moveMark(ctx, sess, seg, mark, next); err != nil {
			return fmt.Errorf("keep the first operations: %w", err)
		}
		mark = next
		seg.top.Store(&next)
		if last {
			seg.topOps = seg.ops
		}
		if !all {
			return nil
		}
	}
	return nil
}

// moveMark selects the rows of top_ops and top_groups of a segment again, with the operations up to a new mark. The
// values of a group are NULL if it keeps all.
func (s *Store) moveMark(ctx context.Context, sess *session, seg *segment, from, to topMark) error {
	v, err := s.writerView(ctx, sess)
	if err != nil {
		return err
	}
	defer v.close()
	rows := fmt.Sprintf("(SELECT * EXCLUDE (grp) FROM {db}.top_ops UNION ALL FROM {db}.ops WHERE start_ns >= %d AND start_ns < %d)", from.until, to.until)
	sql := strings.NewReplacer("{rows}", rows, "{dur}", durationSQL, "{queue}", queueOrderSQL, "{latest}", latestChains,
		"{all}", strconv.Itoa(groupAll), "{chain}", strconv.Itoa(groupChain), "{path}", strconv.Itoa(groupPath), "{unknown}", strconv.Itoa(groupUnknown),
		"{top}", fmt.Sprint(s.keptTop+1), "{group}", fmt.Sprint(s.keptGroup+1), "{most}", fmt.Sprint(max(seg.ops/topShare, 16*s.keptTop)),
		"{property}", topProperty, "{mark}", to.String())
	tx, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for _, q := range strings.Split(moveMarkSQL, ";\n") {
		q = strings.ReplaceAll(sql.Replace(q), "{db}", seg.alias)
		if _, err := tx.ExecContext(ctx, v.tables(q)); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// A group that does not fit into the share keeps no operations as a group. The ids of rows that a transaction inserts
// are larger than those before it, which it deletes.
const moveMarkSQL = `
CREATE OR REPLACE TEMP TABLE top_places AS
WITH counted AS MATERIALIZED (SELECT place, count(*) AS n FROM {rows} GROUP BY 1),
used AS (
  SELECT c.place, c.n, coalesce(p.scope_path, '') AS scope_path, coalesce(p.parent, 0) AS parent
  FROM counted c LEFT JOIN (SELECT DISTINCT id, scope_path, CASE scope_path WHEN '' THEN parent ELSE 0 END AS parent
    FROM {db}.places WHERE id IN (SELECT place FROM counted)) p ON p.id = c.place),
parents AS (
  SELECT span AS parent, arg_min(chain, start_ns) AS id FROM {spans} WHERE span != 0 AND span IN (SELECT parent FROM used) GROUP BY 1),
placed AS (
  SELECT place, n, scope_path, coalesce(c.id, 0) AS chain,
    CASE WHEN c.id IS NOT NULL THEN {chain} WHEN place = 0 OR scope_path != '' THEN {path} ELSE {unknown} END AS kind
  FROM used LEFT JOIN parents USING (parent) LEFT JOIN {latest} c ON c.id = parents.id AND c.state = 0)
SELECT *, dense_rank() OVER (ORDER BY kind, chain, scope_path) AS id FROM placed;
CREATE OR REPLACE TEMP TABLE new_groups AS
WITH sized AS (SELECT id, kind, chain, scope_path, sum(n) AS n FROM temp.top_places GROUP BY ALL)
SELECT id, kind, chain, scope_path, kind != {unknown} AND n >= {group} AS limited,
  sum(CASE kind WHEN {unknown} THEN n ELSE least(n, 2 * {group}) END) OVER (ORDER BY kind = {unknown}, n DESC, id) <= {most} AS fits
FROM sized;
CREATE OR REPLACE TEMP TABLE top_limits AS
SELECT id, CASE WHEN any_value(fits) THEN (max({dur}, {group}) FILTER (fits AND limited))[{group}] ELSE max({dur}) END AS max_dur,
  CASE WHEN any_value(fits) THEN (max({queue}, {group}) FILTER (fits AND limited))[{group}] ELSE max({queue}) END AS max_queue
FROM {rows} r JOIN temp.top_places p ON p.place = r.place JOIN temp.new_groups USING (id) GROUP BY 1;
CREATE OR REPLACE TEMP TABLE top_all AS
SELECT coalesce(max({dur}, {top})[{top}], -1) AS max_dur, coalesce(max({queue}, {top})[{top}], -9223372036854775808) AS max_queue FROM {rows};
CREATE OR REPLACE TEMP TABLE top_last AS
SELECT (SELECT coalesce(max(rowid), -1) FROM {db}.top_ops) AS ops, (SELECT coalesce(max(rowid), -1) FROM {db}.top_groups) AS groups;
INSERT INTO {db}.top_ops
SELECT r.*, l.id FROM {rows} r JOIN temp.top_places p ON p.place = r.place JOIN temp.top_limits l ON l.id = p.id, temp.top_all a
WHERE l.max_dur IS NULL OR {dur} > least(l.max_dur, a.max_dur) OR {queue} > least(l.max_queue, a.max_queue);
INSERT INTO {db}.top_groups
SELECT max(id), kind, chain, scope_path, max(dur_ns), max(queue_ns) FROM (
  SELECT * REPLACE (NULL AS id) FROM {db}.top_groups UNION ALL
  SELECT id, kind, chain, scope_path, max_dur, max_queue FROM temp.new_groups JOIN temp.top_limits USING (id) UNION ALL
  SELECT -1, {all}, 0, '', max_dur, max_queue FROM temp.top_all)
GROUP BY 2, 3, 4;
DELETE FROM {db}.top_ops WHERE rowid <= (SELECT ops FROM temp.top_last);
DELETE FROM {db}.top_groups WHERE rowid <= (SELECT groups FROM temp.top_last);
DELETE FROM {db}.meta WHERE key = '{property}';
INSERT INTO {db}.meta VALUES ('{property}', '{mark}');
DROP TABLE temp.top_places;
DROP TABLE temp.new_groups;
DROP TABLE temp.top_limits;
DROP TABLE temp.top_all;
DROP TABLE temp.top_last`

// keepTop appends a late operation to top_ops. The values are those of its row of ops.
func (w *transaction) keepTop(o *store.Op, values []driver.Value) error {
	if m := w.seg.top.Load(); m == nil || o.StartNs >= m.until {
		return nil
	}
	return w.append("top_ops", append(slices.Clone(values), nil)...)
}

// tops says where the first operations of a page by value are: rows that meet a filter. If complete, these are all
// operations of the query, else those whose values exceed a bound. This holds as long as the segments have the marks.
type tops struct {
	rows     string
	filter   filter
	complete bool
	marks    map[*segment]*topMark
}

// topOps returns nil if the session has no such rows. The filter has all conditions of the query except its path.
func (v *view) topOps(ctx context.Context, q *store.OpQuery, f filter, value string) (*tops, error) {
	if q.Path != nil && v.stale {
		return nil, nil
	}
	t := &tops{complete: true, marks: map[*segment]*topMark{}}
	var small []*segment
	v.s.mu.RLock()
	for _, seg := range v.segments {
		switch m := seg.top.Load(); {
		case m != nil && m.until > 0:
			t.marks[seg] = m
		case seg.ops < 2*v.s.topPart:
			small = append(small, seg)
		default:
			t.complete = false
		}
	}
	v.s.mu.RUnlock()
	if !t.complete || len(t.marks) == 0 {
		return nil, nil
	}
	list, err := v.topGroups(ctx, t.marks, q.Path != nil)
	if err != nil {
		return nil, err
	}
	all, groups := int64(math.MinInt64), int64(math.MinInt64)
	inside, unknown := map[*segment][]string{}, map[*segment][]string{}
	for i := range list {
		g := &list[i]
		most := g.dur
		if q.Sort == store.ByQueue {
			most = g.queue
		}
		switch {
		case g.kind == groupAll:
			all = max(all, most.Int64)
			continue
		case !g.known:
			unknown[g.seg] = append(unknown[g.seg], g.id)
		case v.inside(v.folds.Names(g.names), *q.Path, q.Direct):
			inside[g.seg] = append(inside[g.seg], g.id)
		default:
			continue
		}
		if most.Valid {
			groups, t.complete = max(groups, most.Int64), false
		}
	}
	bound := min(all, groups)
	var parts, others []string // rows whose path is known, and others
	for seg, m := range t.marks {
		kept, rest := "SELECT * EXCLUDE (grp) FROM "+seg.alias+".top_ops", fmt.Sprintf("FROM %s.ops WHERE start_ns >= %d", seg.alias, m.until)
		if q.Path == nil {
			parts = append(parts, kept, rest)
			continue
		}
		parts = append(parts, kept+" WHERE grp IN ("+strings.Join(append(inside[seg], "-1"), ", ")+")")
		others = append(others, rest, kept+" WHERE grp IS NULL OR grp IN ("+strings.Join(append(unknown[seg], "-1"), ", ")+")")
	}
	for _, seg := range small {
		others = append(others, "FROM "+seg.alias+".ops")
	}
	if !t.complete {
		f.add(value+" > ?", bound)
	}
	t.filter = f
	if q.Path != nil {
		rows := "(" + strings.Join(others, " UNION ALL ") + ")"
		places, err := v.usedPlaces(ctx, rows, f)
		if err != nil {
			return nil, err
		}
		others = nil
		if places != "" {
			inside, err := v.insidePath(ctx, *q.Path, q.Direct, places)
			if err != nil {
				return nil, err
			}
			others = []string{"FROM " + rows + " WHERE " + inside}
		}
	}
	t.rows = "(" + strings.Join(append(parts, others...), " UNION ALL ") + ")"
	return t, nil
}

// maxUsed is the number of places up to which usedPlaces excludes others.
const maxUsed = 1 << 17

// usedPlaces returns SQL for places that include those of some operations, or "" if there are no such operations.
// Most of them are the newest places, and DuckDB skips the others by their ids. With a subquery in the place of the
// ids, it would join all places.
func (v *view) usedPlaces(ctx context.Context, rows string, f filter) (string, error) {
	var ids []uint32
	err := v.each(ctx, "SELECT DISTINCT place FROM "+rows+f.where()+" ORDER BY 1 LIMIT ?", append(slices.Clone(f.args), maxUsed), func(r *sql.Rows) error {
		var id uint32
		err := r.Scan(&id)
		ids = append(ids, id)
		return err
	})
	switch n := len(ids); {
	case err != nil || n == 0:
		return "", err
	case n == maxUsed:
		return "{places}", nil
	default:
		first := ids[n/64]
		return fmt.Sprintf("(FROM {places} WHERE id >= %d UNION ALL FROM {places} WHERE id < %d AND id IN (%s))", first, first, joinIDs(ids[:n/64+1])), nil
	}
}

// topGroup is a row of top_groups. Names is the path of its operations, if known.
type topGroup struct {
	seg        *segment
	id         string
	kind       uint8
	names      []string
	known      bool
	dur, queue sql.NullInt64
}

// topGroups returns the groups with their paths, or without these one group for all that are alike.
func (v *view) topGroups(ctx context.Context, marks map[*segment]*topMark, paths bool) ([]topGroup, error) {
	key := fmt.Sprint("top groups ", paths)
	for _, seg := range v.segments {
		key += "|" + marks[seg].String()
	}
	query := "SELECT -1, kind, '', NULL, false, max(dur_ns), max(queue_ns) FROM %s.top_groups GROUP BY kind"
	if paths {
		query = fmt.Sprintf("SELECT coalesce(g.id, -1), kind, scope_path, c.key, c.id IS NOT NULL, dur_ns, queue_ns FROM %%s.top_groups g "+
			"LEFT JOIN %s c ON c.id = CASE kind WHEN %d THEN g.chain END AND c.state = 0", latestChains, groupChain)
	}
	return cached(v, key, func() (list []topGroup, rows int, err error) {
		for seg := range marks {
			err = v.each(ctx, fmt.Sprintf(query, seg.alias), nil, func(r *sql.Rows) error {
				g := topGroup{seg: seg}
				var path string
				var key []byte
				err := r.Scan(&g.id, &g.kind, &path, &key, &g.known, &g.dur, &g.queue)
				if g.known {
					g.names = splitKey(string(key))
				} else if g.kind == groupPath && paths {
					g.names, g.known = scopePaths{}.place(&store.Place{ScopePath: path}), true
				}
				list = append(list, g)
				return err
			})
			if err != nil {
				return nil, 0, err
			}
		}
		return list, len(list), nil
	})
}

// marked reports whether the segments still have marks. No mark is used twice, so they had the same ones in between.
func (v *view) marked(ctx context.Context, marks map[*segment]*topMark) (same bool, err error) {
	var parts []string
	for seg, m := range marks {
		parts = append(parts, fmt.Sprintf("FROM %s.meta WHERE key = '%s' AND value = '%v'", seg.alias, topProperty, m))
	}
	err = v.each(ctx, "SELECT count(*) = ? FROM ("+strings.Join(parts, " UNION ALL ")+")", []any{len(marks)}, func(r *sql.Rows) error { return r.Scan(&same) })
	return same, err
}
