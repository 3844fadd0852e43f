// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/duckdb/duckdb-go/v2"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// A rebuild computes the chains of a session again, and the sums by chains. It holds no span in memory: DuckDB
// joins temporary tables, which it writes to its temporary files if they exceed its memory limit.
//
//	names     names of spans, with the number of what paths have for them
//	parts     pathKey of each of these numbers
//	twins     ids of several spans, with the earliest start
//	parents   first spans with their ids that have spans below
//	above     parents whose chain is known, with it
//	olds      stored chains
//	limbs     chains. base is the chain above or 0, and top is the anchor if that is 0
//	step      spans whose chains are found now
//	walls     sums of spans, for span_sums
//	own       what spans of a segment launched
//	sums      what was launched below spans
//	homes     chain or site of each place of a segment
//
// A crash leaves the session stale, because each transaction before the last one keeps the property staleChains.
type rebuild struct {
	*Store
	sess *session
	v    *view
	next int64 // id of the next chain
	seq  int64
}

// rebuildPart is the number of spans of a transaction that changes their chains, and that of names that are read at
// once: results of queries are in memory.
const rebuildPart = 1 << 20

// Spans of {spans} as a rebuild needs them.
const rebuildSpans = "(SELECT s.start_ns, s.span, s.parent, n.id AS name, s.operation NOT IN ('" + semconv.CUDAOperationSession + "', '" +
	semconv.CUDAOperationDeepWindow + "') AS inside, coalesce(s.start_ns > t.start_ns, false) AS twin, greatest(s.end_ns - s.start_ns, 0) AS d " +
	"FROM {spans} s JOIN temp.names n USING (name) LEFT JOIN temp.twins t USING (span))"

// firstSpans is the first spans with their ids, after their chains are changed.
const firstSpans = "(SELECT s.span, s.start_ns, s.parent, s.chain, l.state FROM {spans} s JOIN temp.limbs l ON l.id = s.chain " +
	"LEFT JOIN temp.twins t USING (span) WHERE s.span != 0 AND s.start_ns = coalesce(t.start_ns, s.start_ns))"

// Columns of a sum of operations, and their sums.
var (
	rebuildSums    = "kernels, kernel_ns, queue_ns, copies, copy_ns, first_ns, last_ns"
	rebuildSumming = "sum(kernels)::BIGINT AS kernels, " + signed("kernel_ns") + " AS kernel_ns, " + signed("queue_ns") + " AS queue_ns, " +
		"sum(copies)::BIGINT AS copies, " + signed("copy_ns") + " AS copy_ns, min(first_ns) AS first_ns, max(last_ns) AS last_ns"
)

// rebuildChains computes the chains of a session from all its spans. docs/internals/measurements.md says how long that
// takes.
func (s *Store) rebuildChains(ctx context.Context, sess *session) error {
	v, err := s.writerView(ctx, sess)
	if err != nil {
		return err
	}
	defer v.close()
	if err := v.loadPaths(ctx); err != nil {
		return err
	}
	v.folds = sess.paths.folded()
	sess.chains = nil
	s.mu.Lock()
	sess.rebuilt = sess.info.Counts["spans"]
	s.mu.Unlock()
	r := &rebuild{Store: s, sess: sess, v: v}
	defer r.drop(context.WithoutCancel(ctx))
	if err := r.findAbove(ctx); err != nil {
		return err
	}
	for i := range sess.segments {
		if err := r.placeSpans(ctx, i); err != nil {
			return err
		}
	}
	for i := range sess.segments {
		if err := r.writeSums(ctx, i); err != nil {
			return err
		}
	}
	for _, seg := range sess.segments {
		if sess.lost() {
			break
		}
		if _, err := r.exec(ctx, "DELETE FROM "+seg.alias+".meta WHERE key = '"+staleChains+"'"); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seg := range sess.segments {
		seg.stale = seg.stale && sess.lost()
	}
	sess.rebuiltLost = sess.lost()
	sess.epoch++
	sess.version++
	return nil
}

// exec runs a statement, in which {table} is the rows of the session, and returns the number of rows that it changed.
func (r *rebuild) exec(ctx context.Context, query string) (int64, error) {
	res, err := r.writer.ExecContext(ctx, r.v.tables(query))
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (r *rebuild) execAll(ctx context.Context, queries ...string) error {
	for _, q := range queries {
		if _, err := r.exec(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// drop removes the temporary tables.
func (r *rebuild) drop(ctx context.Context) {
	for _, t := range []string{"names", "parts", "twins", "parents", "above", "limbs", "step", "own", "sums", "homes", "olds", "walls"} {
		_, _ = r.exec(ctx, "DROP TABLE IF EXISTS temp."+t)
	}
}

// findAbove finds the chains of all spans that have spans below, level by level.
func (r *rebuild) findAbove(ctx context.Context) error {
	err := r.v.each(ctx, "SELECT coalesce(max(id), 0) + 1, coalesce(max(seq), 0) + 1 FROM {chains}", nil,
		func(rows *sql.Rows) error { return rows.Scan(&r.next, &r.seq) })
	if err == nil {
		err = r.foldNames(ctx)
	}
	if err == nil {
		err = r.execAll(ctx,
			"CREATE OR REPLACE TEMP TABLE twins AS SELECT span, min(start_ns) AS start_ns FROM {spans} WHERE span != 0 GROUP BY 1 HAVING count(*) > 1",
			"CREATE OR REPLACE TEMP TABLE parents AS SELECT * EXCLUDE (twin, d) FROM "+rebuildSpans+" WHERE NOT twin AND span != 0 AND span IN (SELECT DISTINCT parent FROM {spans})",
			"CREATE OR REPLACE TEMP TABLE above (span UBIGINT, start_ns BIGINT, parent UBIGINT, chain UINTEGER, depth UTINYINT, state UTINYINT)",
			// Equal chains keep their ids, so that few spans change.
			"CREATE OR REPLACE TEMP TABLE olds AS SELECT min(id) AS id, anchor, key, state FROM "+latestChains+" GROUP BY 2, 3, 4",
			"CREATE OR REPLACE TEMP TABLE limbs (id UINTEGER, base UINTEGER, top UBIGINT, name UINTEGER, state UTINYINT, anchor UBIGINT, key BLOB, depth UTINYINT)",
			"CREATE OR REPLACE TEMP TABLE walls (segment BIGINT, chain UINTEGER, bucket USMALLINT, n BIGINT, wall_ns BIGINT)",
			"CREATE OR REPLACE TEMP TABLE step AS SELECT unnest([1, 2])::UTINYINT AS state, 0::UINTEGER AS base, 0::UBIGINT AS top, 0::UINTEGER AS name")
	}
	if err == nil {
		err = r.addLimbs(ctx)
	}
	if err == nil {
		_, err = r.exec(ctx, "INSERT INTO temp.above SELECT s.span, s.start_ns, s.parent, l.id, 0, 2 FROM temp.parents s JOIN temp.limbs l ON l.state = 2 WHERE NOT s.inside")
	}
	where := "(p.state = 2 OR s.parent = 0 OR s.parent NOT IN (SELECT span FROM temp.parents))"
	for depth, n := 1, int64(1); err == nil && n > 0 && depth <= store.MaxScopeDepth; depth++ {
		if err = r.step(ctx, "(SELECT *, false AS twin, 0 AS d FROM temp.parents WHERE inside)", where); err == nil {
			n, err = r.exec(ctx, "INSERT INTO temp.above SELECT s.span, s.start_ns, s.parent, s.chain, l.depth, s.state FROM ("+stepChains+") s JOIN temp.limbs l ON l.id = s.chain")
		}
		where = fmt.Sprint("p.state = 0 AND p.depth = ", depth)
	}
	if err == nil {
		_, err = r.exec(ctx, "INSERT INTO temp.above SELECT s.span, s.start_ns, s.parent, l.id, 0, 1 FROM temp.parents s ANTI JOIN temp.above a ON a.span = s.span "+
			"JOIN temp.limbs l ON l.state = 1")
	}
	return err
}

// foldNames finds the parts of paths of all names.
func (r *rebuild) foldNames(ctx context.Context) error {
	err := r.execAll(ctx, "CREATE OR REPLACE TEMP TABLE parts AS SELECT DISTINCT name FROM {spans}",
		"CREATE OR REPLACE TEMP TABLE step (name VARCHAR, part BLOB)")
	for from, n := int64(0), int64(1); err == nil && n > 0; from += r.rebuildPart {
		n = 0
		err = r.inTransaction(ctx, r.sess, &segment{alias: "temp"}, func(w *transaction, tx *sql.Tx) error {
			return eachRow(ctx, tx, "SELECT name FROM temp.parts WHERE rowid >= ? AND rowid < ?", []any{from, from + r.rebuildPart}, func(rows *sql.Rows) error {
				var name string
				if err := rows.Scan(&name); err != nil {
					return err
				}
				n++
				return w.append("step", name, []byte(pathKey([]string{r.v.folds.Name(name)})))
			})
		})
	}
	if err != nil {
		return err
	}
	return r.execAll(ctx,
		"CREATE OR REPLACE TEMP TABLE parts AS SELECT row_number() OVER ()::UINTEGER AS id, part FROM (SELECT DISTINCT part FROM temp.step)",
		"CREATE OR REPLACE TEMP TABLE names AS SELECT name, id FROM temp.step JOIN temp.parts USING (part)")
}

// step fills table step with some spans whose parents have chains, and adds their chains to limbs.
func (r *rebuild) step(ctx context.Context, spans, where string) error {
	_, err := r.exec(ctx, "CREATE OR REPLACE TEMP TABLE step AS SELECT * EXCLUDE (name, depth, up, top), "+
		"CASE WHEN state IN (0, 3) THEN coalesce(up, 0) ELSE 0 END AS base, CASE WHEN state IN (0, 3) THEN top ELSE 0 END AS top, CASE WHEN state IN (0, 3) THEN name ELSE 0 END AS name FROM ("+
		"SELECT s.span, s.start_ns, s.parent, s.d, s.name, p.depth, CASE WHEN p.state = 0 THEN p.chain END AS up, CASE WHEN p.span IS NULL THEN s.parent ELSE 0 END AS top, "+
		fmt.Sprintf("(CASE WHEN NOT s.inside THEN 2 WHEN p.state = 1 OR p.depth >= %d THEN 1 WHEN s.twin THEN 3 ELSE 0 END)::UTINYINT AS state ", store.MaxScopeDepth)+
		"FROM "+spans+" s LEFT JOIN temp.above p ON p.span = s.parent WHERE "+where+")")
	if err == nil {
		err = r.addLimbs(ctx)
	}
	return err
}

// stepChains is the rows of step with their chains.
const stepChains = "SELECT x.*, l.id AS chain FROM temp.step x JOIN temp.limbs l ON l.base = x.base AND l.top = x.top AND l.name = x.name AND l.state = x.state"

// addLimbs adds the chains of table step that limbs lacks.
func (r *rebuild) addLimbs(ctx context.Context) error {
	n, err := r.exec(ctx, "INSERT INTO temp.limbs SELECT coalesce(o.id, "+strconv.FormatInt(r.next-1, 10)+" + row_number() OVER ())::UINTEGER, x.base, x.top, x.name, x.state, x.anchor, x.key, x.depth FROM ("+
		"SELECT d.*, coalesce(l.anchor, d.top) AS anchor, coalesce(l.key, ''::BLOB) || coalesce(n.part, ''::BLOB) AS key, "+
		"(CASE WHEN d.state IN (0, 3) THEN coalesce(l.depth, 0) + 1 ELSE 0 END)::UTINYINT AS depth FROM ("+
		"SELECT DISTINCT base, top, name, state FROM temp.step) d LEFT JOIN temp.limbs l ON l.id = d.base LEFT JOIN temp.parts n ON n.id = d.name "+
		"ANTI JOIN temp.limbs k ON k.base = d.base AND k.top = d.top AND k.name = d.name AND k.state = d.state"+
		") x LEFT JOIN temp.olds o ON o.anchor = x.anchor AND o.key = x.key AND o.state = x.state")
	r.next += n
	return err
}

// placeSpans changes the chains of the spans of a segment, and sums the spans up.
func (r *rebuild) placeSpans(ctx context.Context, i int) error {
	seg := r.sess.segments[i]
	one := &view{s: r.Store, segments: []*segment{seg}}
	var ends []int64
	rows := int64(0)
	err := r.each(ctx, "SELECT start_ns >> 30, count(*) FROM {db}.spans GROUP BY 1 ORDER BY 1", nil, func(q *sql.Rows) error {
		var bin, n int64
		err := q.Scan(&bin, &n)
		if rows+n > r.rebuildPart && rows > 0 {
			ends, rows = append(ends, bin<<30), 0
		}
		rows += n
		return err
	}, seg.alias)
	from := int64(0)
	for _, to := range append(ends, store.MaxTimeNs+1) {
		part := fmt.Sprintf("s.start_ns >= %d AND s.start_ns < %d", from, to)
		if err == nil {
			err = r.step(ctx, one.tables(rebuildSpans), part)
		}
		if err == nil {
			_, err = r.exec(ctx, fmt.Sprintf("INSERT INTO temp.walls SELECT %d, chain, "+bucketSQL+", count(*), "+signed("d")+" FROM ("+stepChains+") GROUP BY 2, 3", i))
		}
		if err == nil {
			_, err = r.exec(ctx, "UPDATE "+seg.alias+".spans AS s SET chain = r.chain FROM ("+stepChains+") r WHERE r.start_ns = s.start_ns AND r.span = s.span AND r.chain != s.chain AND "+part)
		}
		from = to
	}
	return err
}

// writeSums replaces the sums of a segment.
func (r *rebuild) writeSums(ctx context.Context, i int) error {
	seg := r.sess.segments[i]
	one := &view{s: r.Store, sess: r.sess, segments: []*segment{seg}}
	var mark *topMark // the groups of top_ops are not those of the new chains
	if m := seg.top.Load(); m != nil {
		mark = &topMark{seq: m.seq + 1}
	}
	err := r.inTransaction(ctx, r.sess, seg, func(w *transaction, tx *sql.Tx) error {
		chains := "DELETE FROM {db}.chains"
		if r.sess.dropped {
			// The sums of operations stay in the chains that they have.
			chains += " WHERE id NOT IN (SELECT chain FROM {stats})"
		}
		queries := []string{
			chains, "DELETE FROM {db}.span_sums",
			fmt.Sprintf("INSERT INTO {db}.span_sums SELECT chain, bucket, sum(n)::BIGINT, "+signed("wall_ns")+" FROM temp.walls WHERE segment = %d GROUP BY 1, 2", i),
		}
		if mark != nil {
			queries = append(queries, "DELETE FROM {db}.top_ops", "DELETE FROM {db}.top_groups",
				fmt.Sprintf("UPDATE {db}.meta SET value = '%v' WHERE key = '%s'", mark, topProperty))
		}
		if i == 0 {
			queries = append(queries, fmt.Sprintf("INSERT INTO {db}.chains SELECT id, %d, anchor, key, depth, state FROM temp.limbs", r.seq))
		}
		for _, q := range queries {
			if _, err := tx.ExecContext(ctx, r.v.tables(strings.ReplaceAll(q, "{db}", seg.alias))); err != nil {
				return err
			}
		}
		if err := r.writeScopeSums(ctx, tx, seg, one); err != nil || r.sess.dropped {
			return err
		}
		return r.writeStats(ctx, w, tx, one)
	})
	if err == nil && mark != nil {
		seg.top.Store(mark)
		seg.topOps = 0
	}
	for i, m := range mergeTables {
		if err == nil && m.table != "lod" && m.table != "lane_sums" {
			seg.merged[i] = 0
			err = r.each(ctx, "SELECT count(*) FROM "+seg.alias+"."+m.table, nil, func(q *sql.Rows) error { return q.Scan(&seg.partial[i]) })
		}
	}
	return err
}

// writeScopeSums derives the rows of scope_sums of a segment from its spans and from its rows that are own.
func (r *rebuild) writeScopeSums(ctx context.Context, tx *sql.Tx, seg *segment, one *view) error {
	run := func(query string) (int64, error) {
		res, err := tx.ExecContext(ctx, query)
		if err != nil {
			return 0, err
		}
		return res.RowsAffected()
	}
	const insert = "INSERT INTO {scope_sums} SELECT "
	for _, q := range []string{
		"CREATE OR REPLACE TEMP TABLE own AS SELECT coalesce(f.chain, 0) AS chain, coalesce(f.start_ns, 0) AS start_ns, span, f.parent, f.state, " + rebuildSums +
			" FROM " + seg.alias + ".scope_sums LEFT JOIN " + r.v.tables(firstSpans) + " f USING (span) WHERE own AND kernels + copies != 0",
		"DELETE FROM {scope_sums}",
		insert + "s.chain, s.start_ns, s.span, true, greatest(s.end_ns - s.start_ns, 0), 0, 0, 0, 0, 0, NULL, NULL FROM {spans} s JOIN temp.limbs l ON l.id = s.chain WHERE l.state IN (0, 3)",
		insert + "chain, start_ns, span, true, 0, " + rebuildSums + " FROM temp.own",
	} {
		if _, err := run(one.tables(q)); err != nil {
			return err
		}
	}
	from := "temp.own p"
	for n := int64(1); n > 0; {
		_, err := run("CREATE OR REPLACE TEMP TABLE sums AS SELECT p.parent AS span, " + rebuildSumming + " FROM " + from + " WHERE p.state = 0 AND p.parent != 0 GROUP BY 1")
		if err != nil {
			return err
		}
		if n, err = run(one.tables(insert + "coalesce(p.chain, 0), coalesce(p.start_ns, 0), span, false, 0, " + rebuildSums +
			" FROM temp.sums LEFT JOIN temp.above p USING (span) WHERE p.span IS NULL OR p.state = 0")); err != nil {
			return err
		}
		from = "temp.sums JOIN temp.above p USING (span)"
	}
	return nil
}

// writeStats sums up the operations of a segment again, if sums are in chains.
func (r *rebuild) writeStats(ctx context.Context, w *transaction, tx *sql.Tx, one *view) (err error) {
	rows := func(query string, scan func(*sql.Rows) error) error {
		return eachRow(ctx, tx, one.tables(query), nil, scan)
	}
	chained := false
	err = rows("SELECT count(*) > 0 FROM {stats} WHERE chain != 0", func(q *sql.Rows) error { return q.Scan(&chained) })
	if err != nil || !chained {
		return err
	}
	if w.sess.dicts == nil {
		if w.sess.dicts, err = r.loadDictionaries(ctx, w.sess); err != nil {
			return err
		}
		defer func() { w.sess.dicts = nil }()
	}
	if _, err = tx.ExecContext(ctx, "CREATE OR REPLACE TEMP TABLE homes AS SELECT p.id AS place, 0::UINTEGER AS site, f.chain FROM "+one.tables("{places}")+" p JOIN "+
		r.v.tables(firstSpans)+" f ON f.span = p.parent WHERE p.scope_path = '' AND f.state = 0"); err != nil {
		return err
	}
	homes, err := duckdb.NewAppender(w.conn, "temp", "main", "homes")
	if err != nil {
		return err
	}
	err = rows("SELECT id, parent, scope_name, scope_path FROM {places} WHERE id NOT IN (SELECT place FROM temp.homes)", func(q *sql.Rows) error {
		var id uint32
		var p store.Place
		if err := q.Scan(&id, &p.Parent, &p.ScopeName, &p.ScopePath); err != nil {
			return err
		}
		site, err := w.siteID(siteOf(&p))
		if err != nil {
			return err
		}
		return homes.AppendRow(id, site, uint32(0))
	})
	if e := homes.Close(); err == nil {
		err = e
	}
	const from = " FROM (SELECT *, greatest(dur_ns, 0) AS d FROM {ops}) o LEFT JOIN temp.homes p ON p.place = o.place"
	for _, q := range []string{
		"DELETE FROM {stats}", "DELETE FROM {stack_sums}",
		"INSERT INTO {stats} SELECT coalesce(site, 0), shape, lane, " + bucketSQL + ", count(*), " + signed("d") + ", max(d), " + signed(queueSQL) + ", " + signed("bytes") +
			", coalesce(chain, 0)" + from + " GROUP BY 1, 2, 3, 4, 10",
		"INSERT INTO {stack_sums} SELECT coalesce(site, 0), coalesce(chain, 0), stack, shape, count(*), " + signed("d") + from +
			" WHERE stack != 0 AND shape IN (SELECT id FROM {shapes} WHERE operation = 1) GROUP BY 1, 2, 3, 4",
	} {
		if err == nil {
			_, err = tx.ExecContext(ctx, one.tables(q))
		}
	}
	return err
}
