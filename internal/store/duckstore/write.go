// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/duckdb/duckdb-go/v2"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// maxSession is the longest id of a session, in bytes.
const maxSession = 256

const dayNs = int64(24 * time.Hour)

// item is a row of a batch: its batch and its index there.
type item struct {
	batch *store.Batch
	row   int
}

// work is the rows for one segment, by table in the order of rowTables.
type work [len(rowTables)][]item

// begin starts a transaction of the writer, which the caller commits or rolls back. The end of ctx must
// not end the transaction: database/sql would then close the writer's connection, and no later
// transaction would succeed. Statements of the transaction end with ctx.
func (s *Store) begin(ctx context.Context) (*sql.Tx, error) {
	return s.writer.BeginTx(context.WithoutCancel(ctx), nil)
}

// commit calls run in a database transaction. It commits only if run returns no error.
func (w *transaction) commit(ctx context.Context, run func(*sql.Tx) error) error {
	tx, err := w.s.begin(ctx)
	if err != nil {
		return err
	}
	err = w.s.writer.Raw(func(c any) error { w.conn = c.(driver.Conn); return nil })
	if err == nil {
		err = run(tx)
	}
	err = errors.Join(err, w.closeAppenders(err != nil))
	if err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

// Write implements [store.Writer]. The rows of one session in one segment are one transaction. So a
// Batch whose rows are in several segments takes several: after a crash between them, some of its
// rows are stored, and the sender delivers it again. The same is true of a context that ends during
// the call.
func (s *Store) Write(ctx context.Context, batches []*store.Batch) (store.Result, error) {
	s.write.Lock()
	defer s.write.Unlock()
	var total store.Result
	if s.closed {
		return total, fmt.Errorf("write: %w", errClosed)
	}
	if err := ctx.Err(); err != nil {
		return total, fmt.Errorf("write: %w", err)
	}
	var order []sessionKey
	groups := map[sessionKey][]*store.Batch{}
	for _, b := range batches {
		if len(b.Session) > maxSession {
			total.Rejected += int64(b.Rows())
			continue
		}
		k := sessionKey{utf8(b.Project), utf8(b.Session)}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], b)
	}
	var err error
	if s.defers(groups) {
		if err = s.writeJournal(groups, &total); err != nil {
			s.failures.Add(1)
			return total, fmt.Errorf("write: %w", err)
		}
	}
	for _, k := range order {
		if groups[k] == nil {
			continue
		}
		if err = s.settle(ctx, k); err == nil {
			err = s.writeSession(ctx, k, groups[k], &total)
		}
		if err != nil {
			s.failures.Add(1)
			err = fmt.Errorf("write session %q: %w", k.session, err)
			break
		}
	}
	if time.Since(s.catalogSaved) > catalogInterval && s.saveCatalog() != nil {
		s.failures.Add(1) // it is derived, and Close tries again
	}
	s.count(&total)
	return total, err
}

// count adds a result to the counters.
func (s *Store) count(r *store.Result) {
	s.rows.Add(r.Written)
	s.duplicates.Add(r.Duplicates)
	s.replaced.Add(r.Replaced)
	s.rejected.Add(r.Rejected)
}

func (s *Store) writeSession(ctx context.Context, k sessionKey, batches []*store.Batch, total *store.Result) (err error) {
	valid, rejected := validRows(batches)
	total.Rejected += rejected
	if valid.empty() {
		return nil
	}
	s.mu.RLock()
	sess := s.sessions[k]
	s.mu.RUnlock()
	if sess == nil {
		sess = s.newSession(k)
	}
	if sess.dropped {
		total.Rejected += int64(len(valid[0]) + len(valid[2]))
		valid[0], valid[2] = nil, nil
		if valid.empty() {
			return nil
		}
	}
	if sess.dicts == nil {
		sess.chains = nil
		if sess.dicts, err = s.loadDictionaries(ctx, sess); err != nil {
			return err
		}
	}
	if sess.numbered == nil && sess.id != "" {
		if sess.numbered, err = s.loadNumbered(ctx, sess); err != nil {
			return err
		}
	}
	defer func() {
		if err != nil {
			// The dictionaries may have entries of the transaction that failed.
			sess.dicts, sess.lastKernels, sess.numbered = nil, nil, nil
			sess.paths.reload()
			err = s.failed(ctx, sess, err)
			if damaging(err) && ctx.Err() == nil {
				s.checkSession(ctx, sess, err)
				err = fmt.Errorf("%w: %w", store.ErrRetry, err)
			}
		}
	}()
	defer s.remember(sess)
	parts, err := s.route(ctx, sess, valid)
	if err != nil {
		return err
	}
	for _, seg := range sess.segments {
		if w := parts[seg]; w != nil {
			if err = s.writeSegment(ctx, sess, seg, w, total); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *work) empty() bool {
	return !slices.ContainsFunc(w[:], func(i []item) bool { return len(i) > 0 })
}

// validRows returns the rows that can be stored, and the number of others: times before 1970 or
// after 2116, and references to absent entries.
func validRows(batches []*store.Batch) (*work, int64) {
	var w work
	var rejected int64
	add := func(table int, b *store.Batch, n int, valid func(i int) bool) {
		for i := range n {
			if valid(i) {
				w[table] = append(w[table], item{b, i})
			} else {
				rejected++
			}
		}
	}
	inTime := func(t int64) bool { return t >= 0 && t <= store.MaxTimeNs }
	in := func(i uint32, n int) bool { return i == 0 || int(i) < n }
	for _, b := range batches {
		add(0, b, len(b.Ops), func(i int) bool {
			o := &b.Ops[i]
			return inTime(o.StartNs) && inTime(o.EndNs) && in(o.Lane, len(b.Lanes)) && in(o.Shape, len(b.Shapes)) &&
				in(o.Place, len(b.Places)) && in(o.Stack, len(b.Stacks)) && in(o.Origin, len(b.Origins)) &&
				in(o.Extra, len(b.Extras))
		})
		add(1, b, len(b.Spans), func(i int) bool {
			o := &b.Spans[i]
			return inTime(o.StartNs) && inTime(o.EndNs) && in(o.Origin, len(b.Origins))
		})
		add(2, b, len(b.Samples), func(i int) bool {
			o := &b.Samples[i]
			return inTime(o.TimeNs) && in(o.Origin, len(b.Origins)) && in(o.Extra, len(b.Extras))
		})
		add(3, b, len(b.Logs), func(i int) bool { return inTime(b.Logs[i].TimeNs) && in(b.Logs[i].Origin, len(b.Origins)) })
		add(4, b, len(b.Points), func(i int) bool {
			o := &b.Points[i]
			return inTime(o.TimeNs) && in(o.Series, len(b.Series)) && in(seriesOrigin(b, o.Series), len(b.Origins))
		})
	}
	return &w, rejected
}

// timeOf returns the time that selects the segment of a row.
func (i item) timeOf(table int) int64 {
	switch table {
	case 0:
		return i.batch.Ops[i.row].StartNs
	case 1:
		return i.batch.Spans[i.row].StartNs
	case 2:
		return i.batch.Samples[i.row].TimeNs
	case 3:
		return i.batch.Logs[i.row].TimeNs
	}
	return i.batch.Points[i.row].TimeNs
}

// endOf returns the end of a row.
func (i item) endOf(table int) int64 {
	at := i.timeOf(table)
	switch table {
	case 0:
		return max(at, i.batch.Ops[i.row].EndNs)
	case 1:
		return max(at, i.batch.Spans[i.row].EndNs)
	}
	return at
}

// route assigns rows to segments by their time, so that all copies of a row meet in one file. It
// creates segments.
func (s *Store) route(ctx context.Context, sess *session, rows *work) (map[*segment]*work, error) {
	if sess.id != "" {
		switch n := len(sess.segments); n {
		case 0:
			if err := s.addSegment(ctx, sess, 1, 0); err != nil {
				return nil, err
			}
			sess.lastKernels = map[string]gapKernel{}
		default:
			last := sess.segments[n-1]
			first, end := last.from, int64(-1)
			if n == 1 {
				first = sess.info.FirstNs
			}
			for _, t := range last.newest {
				end = max(end, t)
			}
			if end >= 0 && (last.ops >= s.cfg.SegmentOps || end-first >= int64(s.cfg.SegmentAge)) {
				err := s.merge(ctx, sess, last)
				if err == nil {
					err = s.addSegment(ctx, sess, last.n+1, end+1)
				}
				if err != nil {
					return nil, err
				}
			}
		}
	}
	parts := map[*segment]*work{}
	var last *segment
	var part *work
	for table := range rows {
		for _, i := range rows[table] {
			seg, err := s.segmentAt(ctx, sess, i.timeOf(table))
			if err != nil {
				return nil, err
			}
			if seg != last {
				if parts[seg] == nil {
					parts[seg] = &work{}
				}
				last, part = seg, parts[seg]
			}
			part[table] = append(part[table], i)
		}
	}
	return parts, nil
}

// segmentAt returns the segment of a time. Data without a session has one for each day.
func (s *Store) segmentAt(ctx context.Context, sess *session, t int64) (*segment, error) {
	for i := len(sess.segments) - 1; i >= 0; i-- {
		seg := sess.segments[i]
		if t >= seg.from && (sess.id != "" || t < seg.from+dayNs) {
			return seg, nil
		}
	}
	if sess.id != "" {
		// The first segment is lost: its file was damaged.
		return sess.segments[0], nil
	}
	if err := s.addSegment(ctx, sess, t/dayNs, t/dayNs*dayNs); err != nil {
		return nil, err
	}
	return s.segmentAt(ctx, sess, t)
}

func (s *Store) addSegment(ctx context.Context, sess *session, n, from int64) error {
	seg, err := s.createSegment(ctx, sess, n, from)
	if err != nil {
		return err
	}
	seg.known, seg.summary, seg.cache = newKnown(), newSummary(), sess.cache
	seg.gapBin, seg.gapTail.from = -1, 0
	for i := range seg.newest {
		seg.newest[i] = -1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sess.segments = append(slices.Clone(sess.segments), seg)
	slices.SortFunc(sess.segments, func(a, b *segment) int { return int(min(max(a.from-b.from, -1), 1)) })
	s.sessions[sessionKey{sess.project, sess.id}] = sess
	return nil
}

// transaction writes rows to one segment.
type transaction struct {
	s         *Store
	sess      *session
	seg       *segment
	conn      driver.Conn
	appenders map[string]*duckdb.Appender
	info      summary
	newest    [len(rowTables)]int64
	rollup    *rollup
	view      *view // see chains; or nil
	refs      batchIDs
	traces    map[store.TraceID]struct{}
	earliest  int64 // start of the earliest new kernel
	kernels   []gapKernel
	gaps      []*gapGroup // new rows of gap_bins
	// lastKernels is that of the session after the transaction, or nil.
	lastKernels map[string]gapKernel
	stale       bool // a replaced row may have decided the summary of the segment
	result      store.Result
}

func (w *transaction) append(table string, values ...driver.Value) error {
	a := w.appenders[table]
	if a == nil {
		var err error
		if a, err = duckdb.NewAppender(w.conn, w.seg.alias, "main", table); err != nil {
			return err
		}
		w.appenders[table] = a
	}
	return a.AppendRow(values...)
}

// closeAppenders flushes all appenders, or discards their rows.
func (w *transaction) closeAppenders(discard bool) error {
	var errs []error
	for _, a := range w.appenders {
		if discard {
			_ = a.Clear()
		}
		errs = append(errs, a.Close())
	}
	w.appenders = nil
	return errors.Join(errs...)
}

func (s *Store) writeSegment(ctx context.Context, sess *session, seg *segment, rows *work, total *store.Result) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.acquire(ctx, seg); err != nil {
		return err
	}
	defer s.release(seg)
	begin, size := time.Now(), sizeOf(seg.file)
	if err := s.mergeRollups(ctx, sess, seg, false); err != nil {
		return err
	}
	s.refreshChains(ctx, sess, false)
	if seg.ops-seg.gapOps >= s.gapTail && sess.id != "" {
		if err := s.extendGaps(ctx, sess, false); err != nil {
			return err
		}
	}
	w := &transaction{
		s: s, sess: sess, seg: seg, appenders: map[string]*duckdb.Appender{}, info: newSummary(),
		newest: seg.newest, rollup: newRollup(), traces: map[store.TraceID]struct{}{}, earliest: math.MaxInt64,
	}
	err := w.commit(ctx, func(tx *sql.Tx) error { return w.run(ctx, tx, rows) })
	if w.view != nil {
		w.view.close()
	}
	if err != nil {
		return err
	}
	s.commits.Add(1)
	s.commitNs.Add(int64(time.Since(begin)))
	total.Written += w.result.Written
	total.Duplicates += w.result.Duplicates
	total.Replaced += w.result.Replaced
	total.Bytes += max(sizeOf(seg.file)-size, 0)
	s.mu.Lock()
	defer s.mu.Unlock()
	seg.newest = w.newest
	seg.ops = w.info.Counts["ops"]
	for i, n := range w.rollup.rows() {
		seg.partial[i] += n
	}
	for k := range w.rollup.lod {
		if k.level == store.Levels[0] {
			seg.lodFrom = min(seg.lodFrom, k.bin<<k.level)
		}
	}
	w.keepGaps()
	for t := range w.traces {
		seg.traces.add(t)
	}
	seg.summary = w.info
	sess.summarize()
	sess.sealed = false
	sess.version++
	return nil
}

func (w *transaction) run(ctx context.Context, tx *sql.Tx, rows *work) error {
	if w.sess.sealed {
		if err := w.unseal(ctx, tx); err != nil {
			return err
		}
	}
	if err := w.writeStarts(ctx, tx, rows); err != nil {
		return err
	}
	if err := w.writeUIDs(ctx, tx, rows); err != nil {
		return err
	}
	if err := w.writePoints(ctx, tx, rows[4]); err != nil {
		return err
	}
	if err := w.writeRollup(ctx, tx); err != nil {
		return err
	}
	if err := w.lateGaps(ctx, tx); err != nil {
		return err
	}
	if err := w.extendGaps(); err != nil {
		return err
	}
	return w.writeSummary(ctx, tx)
}

// writeSummary appends the summary of the transaction, or computes that of the segment again. After
// it, w.info is that of the segment.
func (w *transaction) writeSummary(ctx context.Context, tx *sql.Tx) error {
	delta := w.info
	w.info = newSummary()
	w.info.add(&w.seg.summary)
	w.info.add(&delta)
	if w.stale && !w.sess.dropped {
		if err := w.flush(); err != nil {
			return err
		}
		if err := w.info.recount(ctx, tx, w.seg.alias); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM "+w.seg.alias+".summaries"); err != nil {
			return err
		}
		delta = w.info
	}
	return w.summary(&delta)
}

// summary appends a row to summaries.
func (w *transaction) summary(m *summary) error {
	counts := make([]int64, len(rowTables))
	for i, t := range rowTables {
		counts[i] = m.Counts[t]
	}
	var kinds, kindCounts []int64
	for k, n := range m.Operations {
		kinds, kindCounts = append(kinds, int64(k)), append(kindCounts, n)
	}
	return w.append("summaries", m.FirstNs, m.LastNs, counts, slices.Clone(w.newest[:]), kinds, kindCounts, m.KernelNs, m.Ended,
		m.ResourceNs, m.ResourceID)
}

// flush writes the rows of the appenders.
func (w *transaction) flush() error {
	for _, a := range w.appenders {
		if err := a.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func (w *transaction) unseal(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, "DELETE FROM "+w.seg.alias+".meta WHERE key = 'sealed'")
	return err
}

// rowKey identifies an operation or span by start and span, or a point by time and series.
type rowKey struct {
	at int64
	id uint64
}

// stored calls scan for the rows of a table in the interval of the batch, if there can be any.
func (w *transaction) stored(ctx context.Context, tx *sql.Tx, table, columns string, rows []item, t int,
	scan func(*sql.Rows) error) error {
	if len(rows) == 0 {
		return nil
	}
	lo, hi := int64(math.MaxInt64), int64(math.MinInt64)
	for _, i := range rows {
		lo, hi = min(lo, i.timeOf(t)), max(hi, i.timeOf(t))
	}
	newest := w.newest[t]
	w.newest[t] = max(newest, hi)
	if lo > newest {
		return nil
	}
	c := timeColumn(table)
	return eachRow(ctx, tx, "SELECT "+columns+" FROM "+w.seg.alias+"."+table+" WHERE "+c+" BETWEEN ? AND ?",
		[]any{lo, hi}, scan)
}

// remove deletes rows of a table by their row ids.
func (w *transaction) remove(ctx context.Context, tx *sql.Tx, table string, ids []int64) error {
	for part := range slices.Chunk(ids, 1000) {
		list := make([]byte, 0, len(part)*8)
		for i, id := range part {
			if i > 0 {
				list = append(list, ',')
			}
			list = strconv.AppendInt(list, id, 10)
		}
		_, err := tx.ExecContext(ctx, "DELETE FROM "+w.seg.alias+"."+table+" WHERE rowid IN ("+string(list)+")")
		if err != nil {
			return err
		}
	}
	return nil
}

// writeStarts writes operations and spans. A span with a later end replaces the stored one.
func (w *transaction) writeStarts(ctx context.Context, tx *sql.Tx, rows *work) error {
	ops := make(map[rowKey]int32, len(rows[0]))
	known := make([]bool, len(rows[0]))
	for n, i := range rows[0] {
		o := &i.batch.Ops[i.row]
		k := rowKey{o.StartNs, uint64(o.Span)}
		if _, known[n] = ops[k]; known[n] {
			w.result.Duplicates++
			continue
		}
		ops[k] = int32(n)
	}
	err := w.stored(ctx, tx, "ops", "start_ns, span", rows[0], 0, func(r *sql.Rows) error {
		var k rowKey
		if err := r.Scan(&k.at, &k.id); err != nil {
			return err
		}
		if n, ok := ops[k]; ok && !known[n] {
			w.result.Duplicates++
			known[n] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	for n, i := range rows[0] {
		if known[n] {
			continue
		}
		w.result.Written++
		o := &i.batch.Ops[i.row]
		if err := w.op(i.batch, o); err != nil {
			return err
		}
		if err := w.countOp(i.batch, o); err != nil {
			return err
		}
	}
	return w.writeSpans(ctx, tx, rows[1])
}

func (w *transaction) countOp(b *store.Batch, o *store.Op) error {
	operation := at(b.Shapes, o.Shape).Operation
	w.info.Counts["ops"]++
	w.info.Operations[operation]++
	if operation == store.OpKernel {
		w.info.KernelNs += max(o.EndNs-o.StartNs, 0)
		w.earliest = min(w.earliest, o.StartNs)
		shape, err := w.ref(shapes, b, o.Shape)
		if err != nil {
			return err
		}
		w.kernels = append(w.kernels, gapKernel{utf8(at(b.Lanes, o.Lane).Device), o.StartNs, max(o.StartNs, o.EndNs), o.Span, shape})
	}
	w.extend(b, o.Origin, o.StartNs, o.EndNs)
	return nil
}

// extend counts a row in the interval of the session and in its latest resource.
func (w *transaction) extend(b *store.Batch, origin uint32, start, end int64) {
	w.info.extend(start, max(start, end))
	if origin == 0 || start < w.info.ResourceNs || start < w.seg.summary.ResourceNs {
		return
	}
	// The row refers to the origin, so its id exists.
	id := w.sess.dicts[origins].ids[b.Origins[origin].Key]
	m := &w.info
	if m.ResourceNs < 0 && id == w.seg.summary.ResourceID {
		m = &w.seg.summary
	}
	attrs := m.Resource
	if id != m.ResourceID {
		attrs = cloneAttrs(b.Origins[origin].Resource)
	}
	w.info.resource(start, b.Origins[origin].Key, id, attrs)
}

func (w *transaction) writeSpans(ctx context.Context, tx *sql.Tx, rows []item) error {
	spans := make(map[rowKey]item, len(rows))
	for _, i := range rows {
		p := &i.batch.Spans[i.row]
		k := rowKey{p.StartNs, uint64(p.Span)}
		if old, ok := spans[k]; ok {
			if p.EndNs <= old.batch.Spans[old.row].EndNs {
				w.result.Duplicates++
				continue
			}
			w.result.Replaced++
		}
		spans[k] = i
	}
	var removed []int64
	replaced := map[rowKey]*oldSpan{}
	err := w.stored(ctx, tx, "spans", "start_ns, span, end_ns, rowid, origin, operation, parent, name, chain", rows, 1, func(r *sql.Rows) error {
		var k rowKey
		var id int64
		var origin uint32
		var operation string
		old := &oldSpan{}
		if err := r.Scan(&k.at, &k.id, &old.end, &id, &origin, &operation, &old.parent, &old.name, &old.chain); err != nil {
			return err
		}
		old.inside = insideTree(operation)
		i, ok := spans[k]
		switch {
		case !ok:
		case i.batch.Spans[i.row].EndNs > old.end:
			removed = append(removed, id)
			replaced[k] = old
			w.result.Replaced++
			w.stale = w.stale || origin != 0 && k.at >= w.seg.summary.ResourceNs ||
				operation == semconv.CUDAOperationSession && i.batch.Spans[i.row].Operation != operation
		default:
			w.result.Duplicates++
			delete(spans, k)
		}
		return nil
	})
	if err != nil {
		return err
	}
	var list []*spanRow
	for _, i := range rows {
		p := &i.batch.Spans[i.row]
		k := rowKey{p.StartNs, uint64(p.Span)}
		if spans[k] == i {
			list = append(list, &spanRow{item: i, old: replaced[k]})
			if insideTree(p.Operation) {
				if err := w.number(p.Name); err != nil {
					return err
				}
			}
		}
	}
	first, err := w.chainSpans(ctx, tx, list)
	if err == nil {
		err = w.sumScopes(ctx, tx, list, first)
	}
	if err == nil {
		err = w.remove(ctx, tx, "spans", removed) // after the chains of the removed spans are read
	}
	if err != nil {
		return err
	}
	for _, i := range list {
		p := i.span()
		if i.old == nil {
			w.result.Written++
			w.info.Counts["spans"]++
		}
		if err := w.span(i.batch, p, i.chain); err != nil {
			return err
		}
		w.info.Ended = w.info.Ended || p.Operation == semconv.CUDAOperationSession
		w.extend(i.batch, p.Origin, p.StartNs, p.EndNs)
	}
	return nil
}

func (i item) uid(table int) store.UID {
	if table == 2 {
		return i.batch.Samples[i.row].UID
	}
	return i.batch.Logs[i.row].UID
}

// writeUIDs writes samples and logs.
func (w *transaction) writeUIDs(ctx context.Context, tx *sql.Tx, rows *work) error {
	for table := 2; table <= 3; table++ {
		fresh := make(map[store.UID]item, len(rows[table]))
		for _, i := range rows[table] {
			if _, ok := fresh[i.uid(table)]; ok {
				w.result.Duplicates++
				continue
			}
			fresh[i.uid(table)] = i
		}
		err := w.stored(ctx, tx, rowTables[table], "uid", rows[table], table, func(r *sql.Rows) error {
			var b []byte
			if err := r.Scan(&b); err != nil {
				return err
			}
			if _, ok := fresh[store.UID(b)]; ok {
				w.result.Duplicates++
				delete(fresh, store.UID(b))
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, i := range rows[table] {
			if fresh[i.uid(table)] != i {
				continue
			}
			w.result.Written++
			w.info.Counts[rowTables[table]]++
			var origin uint32
			if table == 2 {
				origin, err = i.batch.Samples[i.row].Origin, w.sample(i.batch, &i.batch.Samples[i.row])
			} else {
				origin, err = i.batch.Logs[i.row].Origin, w.log(i.batch, &i.batch.Logs[i.row])
			}
			if err != nil {
				return err
			}
			w.extend(i.batch, origin, i.timeOf(table), i.timeOf(table))
		}
	}
	return nil
}

// writePoints writes points. The last one of a series and time wins.
func (w *transaction) writePoints(ctx context.Context, tx *sql.Tx, rows []item) error {
	points := make(map[rowKey]item, len(rows))
	keyOf := func(i item) (rowKey, *store.Point, error) {
		p := &i.batch.Points[i.row]
		id, err := w.ref(series, i.batch, p.Series)
		return rowKey{p.TimeNs, uint64(id)}, p, err
	}
	for _, i := range rows {
		k, p, err := keyOf(i)
		if err != nil {
			return err
		}
		if old, ok := points[k]; ok {
			if samePoint(p, &old.batch.Points[old.row]) {
				w.result.Duplicates++
				continue
			}
			w.result.Replaced++
		}
		points[k] = i
	}
	var removed []int64
	replaced := map[rowKey]bool{}
	err := w.stored(ctx, tx, "points", "series, rowid, "+pointColumns, rows, 4, func(r *sql.Rows) error {
		var k rowKey
		var id int64
		var old store.Point
		if err := scanPoint(r, &old, &k.id, &id); err != nil {
			return err
		}
		k.at = old.TimeNs
		i, ok := points[k]
		switch {
		case !ok:
		case samePoint(&i.batch.Points[i.row], &old):
			w.result.Duplicates++
			delete(points, k)
		default:
			removed = append(removed, id)
			replaced[k] = true
			w.result.Replaced++
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := w.remove(ctx, tx, "points", removed); err != nil {
		return err
	}
	for _, i := range rows {
		k, p, err := keyOf(i)
		if err != nil {
			return err
		}
		if points[k] != i {
			continue
		}
		if !replaced[k] {
			w.result.Written++
			w.info.Counts["points"]++
		}
		if err := w.point(i.batch, p); err != nil {
			return err
		}
		w.extend(i.batch, seriesOrigin(i.batch, p.Series), p.TimeNs, p.TimeNs)
	}
	return nil
}

func samePoint(a, b *store.Point) bool {
	return a.StartNs == b.StartNs && a.Flags == b.Flags && a.Int == b.Int && a.HasDouble == b.HasDouble &&
		math.Float64bits(a.Double) == math.Float64bits(b.Double) && string(a.Data) == string(b.Data) &&
		string(a.Exemplars) == string(b.Exemplars)
}

// seriesOrigin returns the origin of a series of a batch, 0 for an absent series.
func seriesOrigin(b *store.Batch, i uint32) uint32 {
	if int(i) >= len(b.Series) {
		return 0
	}
	return b.Series[i].Origin
}
