// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
	"github.com/gpuflight/gpuflight/semconv"
)

// scanBlock is the number of rows that a scan completes together.
const scanBlock = 1 << 14

// scan reads the rows of a query without database/sql, whose conversions take three times as long as the
// query. Fill sets a row of a block from the values of a row and must not panic. Done takes each full block, in another goroutine,
// while scan fills the next one.
func scan[T any](ctx context.Context, v *view, query string, args []any, fill func(*T, []driver.Value) error, done func([]T) error) error {
	conn, _, end, err := v.s.beginTx(ctx)
	if err != nil {
		return err
	}
	defer end()
	return scanOn(ctx, v, conn, query, args, fill, done)
}

// scanOn is scan on a connection that has a transaction. If fill panicked, database/sql would close the connection,
// which waits for the end of the transaction. A panic of done ends the process.
func scanOn[T any](ctx context.Context, v *view, conn *sql.Conn, query string, args []any, fill func(*T, []driver.Value) error, done func([]T) error) error {
	named := make([]driver.NamedValue, len(args))
	for i, a := range args {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: a}
	}
	err := conn.Raw(func(c any) (err error) {
		rows, err := c.(driver.QueryerContext).QueryContext(ctx, v.tables(query), named)
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		full, free := make(chan []T, 2), make(chan []T, 2) // of the two blocks
		free <- nil
		free <- nil
		taken := make(chan error, 1)
		go func() {
			var err error
			for block := range full {
				if err = errors.Join(ctx.Err(), done(block)); err != nil {
					break
				}
				free <- block[:0]
			}
			close(free)
			taken <- err
		}()
		err = fillBlocks(rows, fill, full, free)
		close(full)
		if failed := <-taken; failed != nil {
			return failed
		}
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
		return nil
	})
	v.s.suspect(v.sess, err)
	return err
}

// fillBlocks sends the rows of a result in blocks, the last of which may be empty. It ends early if free is closed.
func fillBlocks[T any](rows driver.Rows, fill func(*T, []driver.Value) error, full chan<- []T, free <-chan []T) error {
	values := make([]driver.Value, len(rows.Columns()))
	for block := range free {
		if block == nil {
			block = make([]T, 0, scanBlock)
		}
		for len(block) < scanBlock {
			err := rows.Next(values)
			if errors.Is(err, io.EOF) {
				full <- block
				return nil
			}
			if err != nil {
				return err
			}
			block = append(block, *new(T))
			if err := fill(&block[len(block)-1], values); err != nil {
				return err
			}
		}
		full <- block
	}
	return nil
}

// each returns a function that calls visit for each row of a block.
func each[T any](visit func(*T) error) func([]T) error {
	return func(rows []T) error {
		for i := range rows {
			if err := visit(&rows[i]); err != nil {
				return err
			}
		}
		return nil
	}
}

// ScanOps implements [store.Scanner].
func (s *Store) ScanOps(ctx context.Context, q store.ScanQuery, visit func(*store.OpRow) error) error {
	v, f, err := s.openScan(ctx, q)
	if err != nil || v == nil {
		return err
	}
	defer v.close()
	if v.dropped {
		return nil
	}
	if q.Overlapping && q.From != 0 {
		earliest, err := v.earliest(ctx, q.From)
		if err != nil {
			return fmt.Errorf("scan operations: %w", err)
		}
		f.add("start_ns >= ?", earliest)
	}
	f.interval("start_ns", "start_ns + greatest(dur_ns, 0)", q.From, q.To, q.Overlapping)
	query := "SELECT start_ns, dur_ns, span, lane::UBIGINT << 32 | shape, stack::UBIGINT << 32 | origin, launch_lead_ns, launch_dur_ns, " +
		queueSQL + ", "
	few, err := v.fewExtras(ctx)
	if err != nil {
		return fmt.Errorf("scan operations: %w", err)
	}
	if few {
		query += "extra"
	} else {
		query += "0::UINTEGER"
	}
	if q.Places {
		query += ", place"
	} else {
		query += ", 0::UINTEGER"
	}
	query += " FROM {ops}" + f.where() + " ORDER BY start_ns, span"
	var ahead sync.WaitGroup
	defer ahead.Wait() // before the view is closed
	var failed error
	if q.Places {
		ahead.Go(func() { failed = v.placesAhead(ctx, f) })
	}
	err = scan(ctx, v, query, f.args, fillOp, func(rows []store.OpRow) error {
		if ahead.Wait(); failed != nil {
			return failed
		}
		if _, err := v.complete(ctx, rows); err != nil {
			return err
		}
		return each(visit)(rows)
	})
	if err != nil {
		return fmt.Errorf("scan operations: %w", err)
	}
	return nil
}

// placesAhead reads the places of a scan into the cache, unless they are too many. One query for each block of rows
// takes longer than the rows.
func (v *view) placesAhead(ctx context.Context, f *filter) error {
	ids := idSet{}
	const most = maxCached / 2
	err := v.each(ctx, "SELECT DISTINCT place FROM {ops}"+f.where()+" LIMIT "+strconv.Itoa(most+1), f.args, func(r *sql.Rows) error {
		var id uint32
		err := r.Scan(&id)
		ids.add(id)
		return err
	})
	if err == nil && len(ids) <= most {
		_, err = v.places(ctx, ids)
	}
	return err
}

// maxScanExtras is the largest number of different attributes that a scan reads. More are those of logs
// whose rows have a number of their own, which an analysis does not need.
const maxScanExtras = 4096

func (v *view) fewExtras(ctx context.Context) (few bool, err error) {
	err = v.each(ctx, "SELECT count(*) <= $1 FROM {"+dictTables[extras]+"}", []any{maxScanExtras}, func(r *sql.Rows) error { return r.Scan(&few) })
	return few, err
}

// fillOp sets what a scan of operations reads.
func fillOp(o *store.OpRow, values []driver.Value) error {
	start, ok1 := values[0].(int64)
	dur, ok2 := values[1].(int64)
	span, ok3 := values[2].(uint64)
	laneShape, ok4 := values[3].(uint64)
	stackOrigin, ok5 := values[4].(uint64)
	extra, ok6 := values[8].(uint32)
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !ok6 {
		return fmt.Errorf("got %T, %T, %T, %T, %T and %T", values[0], values[1], values[2], values[3], values[4], values[8])
	}
	o.Extra = extra
	o.Place, _ = values[9].(uint32)
	o.StartNs, o.EndNs, o.Span = start, start+dur, store.SpanID(span)
	o.Lane, o.Shape = uint32(laneShape>>32), uint32(laneShape)
	o.Stack, o.Origin = uint32(stackOrigin>>32), uint32(stackOrigin)
	base := start
	if lead, ok := values[5].(int64); ok {
		base = start - lead
		o.LaunchStartNs = store.Some(base)
	}
	if d, ok := values[6].(int64); ok {
		o.LaunchEndNs = store.Some(base + d)
	}
	if queue, ok := values[7].(int64); ok {
		o.QueueNs = store.Some(queue)
	}
	return nil
}

// scopesOf selects the scopes of a scan from the table that it returns. Those that start before the interval
// have a selection of their own, because DuckDB skips no blocks of rows for a condition with OR.
func (f *filter) scopesOf(q *store.ScanQuery) (table string) {
	f.add("operation = ?", semconv.CUDAOperationScope)
	if !q.Overlapping || q.From == 0 {
		f.interval("start_ns", "", q.From, q.To, false)
		return "{spans}"
	}
	f.args = append([]any{q.From, q.From, q.From}, f.args...)
	f.interval("start_ns", "", 0, q.To, false)
	return "(SELECT * FROM {spans} WHERE start_ns >= ? UNION ALL SELECT * FROM {spans} WHERE start_ns < ? AND end_ns > ?)"
}

// ScanScopes implements [store.Scanner].
func (s *Store) ScanScopes(ctx context.Context, q store.ScanQuery, prefixes []string, visit func(*store.Span) error) error {
	v, f, err := s.openScan(ctx, q)
	if err != nil || v == nil {
		return err
	}
	defer v.close()
	table := f.scopesOf(&q)
	if len(prefixes) > 0 {
		f.add("len(list_filter(?::VARCHAR[], lambda p: starts_with(name, p))) > 0", prefixes)
	}
	fill := func(p *store.Span, values []driver.Value) error {
		start, ok1 := values[0].(int64)
		end, ok2 := values[1].(int64)
		span, ok3 := values[2].(uint64)
		parent, ok4 := values[3].(uint64)
		name, ok5 := values[4].(string)
		if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 {
			return fmt.Errorf("got %T, %T, %T, %T and %T", values[0], values[1], values[2], values[3], values[4])
		}
		*p = store.Span{StartNs: start, EndNs: end, Span: store.SpanID(span), Parent: store.SpanID(parent), Name: name}
		if values[5] != nil {
			return attrsValue{&p.Attrs}.Scan(values[5])
		}
		return nil
	}
	order := " ORDER BY start_ns, span"
	if q.Limit > 0 {
		// The first rows in the order of the files bound those by start. Rows arrive nearly by start, so there
		// are few others to sort.
		var last sql.NullInt64
		err := v.each(ctx, "SELECT max(start_ns) FROM (SELECT start_ns FROM "+table+f.where()+" LIMIT ?)", append(slices.Clone(f.args), q.Limit),
			func(r *sql.Rows) error { return r.Scan(&last) })
		if err != nil {
			return fmt.Errorf("scan scopes: %w", err)
		}
		if !last.Valid {
			return nil
		}
		f.add("start_ns <= ?", last.Int64)
		order += " LIMIT " + strconv.Itoa(q.Limit)
	}
	query := "SELECT start_ns, end_ns, span, parent, name, CASE WHEN starts_with(name, 'nccl') THEN attrs END FROM " + table + f.where() + order
	if err := scan(ctx, v, query, f.args, fill, each(visit)); err != nil {
		return fmt.Errorf("scan scopes: %w", err)
	}
	return nil
}

// ScopeSums implements [store.Scanner].
func (s *Store) ScopeSums(ctx context.Context, q store.ScanQuery, shift uint8, visit func(*store.ScopeSum) error) error {
	v, f, err := s.openScan(ctx, q)
	if err != nil || v == nil {
		return err
	}
	defer v.close()
	table := f.scopesOf(&q)
	bin := " >> " + strconv.Itoa(int(shift))
	query := "WITH h AS MATERIALIZED (SELECT start_ns" + bin + " AS s, greatest(start_ns, end_ns)" + bin + " AS e, bit_xor(hash(start_ns, end_ns, span, parent, name)) AS h FROM " +
		table + f.where() + " GROUP BY 1, 2) SELECT bin, bit_xor(x), bit_xor(y) FROM (SELECT s AS bin, h AS x, 0::UBIGINT AS y FROM h UNION ALL SELECT e, 0::UBIGINT, h FROM h) GROUP BY 1 ORDER BY 1"
	err = scan(ctx, v, query, f.args, func(x *store.ScopeSum, values []driver.Value) error {
		bin, ok1 := values[0].(int64)
		starts, ok2 := values[1].(uint64)
		ends, ok3 := values[2].(uint64)
		if !ok1 || !ok2 || !ok3 {
			return fmt.Errorf("got %T, %T and %T", values[0], values[1], values[2])
		}
		*x = store.ScopeSum{FromNs: bin << shift, Starts: starts, Ends: ends}
		return nil
	}, each(visit))
	if err != nil {
		return fmt.Errorf("sum scopes: %w", err)
	}
	return nil
}

// OpCounts implements [store.Scanner].
func (s *Store) OpCounts(ctx context.Context, q store.ScanQuery, shift uint8, visit func(*store.OpCount) error) error {
	v, f, err := s.openScan(ctx, q)
	if err != nil || v == nil {
		return err
	}
	defer v.close()
	f.add("level = " + strconv.Itoa(int(shift)))
	f.interval("bin", "", q.From>>shift, q.To>>shift, false)
	query := "SELECT bin, sum(n)::BIGINT AS n FROM {lod}" + f.where() + " GROUP BY 1 HAVING n > 0 ORDER BY 1"
	err = scan(ctx, v, query, f.args, func(x *store.OpCount, values []driver.Value) error {
		bin, ok1 := values[0].(int64)
		n, ok2 := values[1].(int64)
		if !ok1 || !ok2 {
			return fmt.Errorf("got %T and %T", values[0], values[1])
		}
		*x = store.OpCount{FromNs: bin << shift, Ops: n}
		return nil
	}, each(visit))
	if err != nil {
		return fmt.Errorf("count operations: %w", err)
	}
	return nil
}

// openScan opens the session of a scan. The view is nil if there is no data without a session.
func (s *Store) openScan(ctx context.Context, q store.ScanQuery) (*view, *filter, error) {
	if _, err := answer.Limits(q.From, q.To, 0, 1, 1); err != nil {
		return nil, nil, fmt.Errorf("scan: %w", err)
	}
	v, err := s.open(ctx, q.Project, q.Session, true)
	return v, &filter{}, err
}
