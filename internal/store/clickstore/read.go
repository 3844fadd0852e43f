// SPDX-License-Identifier: Apache-2.0

package clickstore

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
)

// filter builds a condition.
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

func (f *filter) where() string { return " WHERE " + strings.Join(f.conditions, " AND ") }

func (v *view) filter() *filter {
	f := &filter{}
	f.add("Project = ? AND Session = ?", v.key.project, v.key.session)
	return f
}

// in adds a condition that a column has one of some keys.
func (f *filter) in(column string, keys []uint64) {
	if len(keys) == 0 {
		f.add("false")
		return
	}
	f.add(column+" IN ?", keys)
}

func traceSQL(t store.TraceID) string {
	return "toFixedString(unhex('" + hex.EncodeToString(t[:]) + "'), 16)"
}

// keysOf returns the keys of ids. All ids of a session are known after its dictionary was read once.
func (v *view) keysOf(ctx context.Context, dict int, ids *answer.IDs[uint64], list []uint32) ([]uint64, error) {
	var out []uint64
	loaded := false
	for _, id := range list {
		k, ok := ids.Key(id)
		if !ok && !loaded {
			loaded = true
			ids.ID(0)
			err := v.s.each(ctx, "SELECT DISTINCT Key FROM "+dictTables[dict]+" WHERE Project = ? AND Session = ? ORDER BY Key",
				[]any{v.key.project, v.key.session}, func(r driver.Rows) error {
					var k uint64
					err := r.Scan(&k)
					ids.ID(k)
					return err
				})
			if err != nil {
				return nil, err
			}
			k, ok = ids.Key(id)
		}
		if ok {
			out = append(out, k)
		}
	}
	return out, nil
}

// Sessions implements [store.Reader].
func (s *Store) Sessions(ctx context.Context, q store.SessionQuery) ([]store.SessionInfo, error) {
	n, err := answer.Limits(q.From, q.To, q.Limit, 100, 1000)
	if err == nil {
		err = s.check(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	states, err := s.states(ctx, "Project = ? AND Session != ''", q.Project)
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	var views []*view
	for k, st := range states {
		views = append(views, &view{state: st, s: s, key: k, sess: s.session(k)})
	}
	all, err := s.infos(ctx, q.Project, views)
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	slices.SortFunc(all, func(a, b store.SessionInfo) int {
		return cmp.Or(cmp.Compare(b.FirstNs, a.FirstNs), cmp.Compare(a.ID, b.ID))
	})
	if q.After != "" {
		i := slices.IndexFunc(all, func(x store.SessionInfo) bool { return x.ID == q.After })
		if i < 0 {
			return nil, fmt.Errorf("list sessions after %q: %w", q.After, store.ErrNotFound)
		}
		all = all[i+1:]
	}
	var out []store.SessionInfo
	for i := range all {
		if len(out) < n && answer.Selects(&q, &all[i]) {
			out = append(out, all[i])
		}
	}
	return out, nil
}

// Session implements [store.Reader].
func (s *Store) Session(ctx context.Context, project, id string) (store.SessionInfo, error) {
	v, err := s.open(ctx, project, id, false)
	if err != nil {
		return store.SessionInfo{}, err
	}
	return v.info(ctx)
}

// sum is the operations of one lane, shape, site and bucket.
type sum struct {
	operation                    store.Operation
	lane, shape                  uint64
	site                         answer.Site
	bucket                       uint16
	n, ns, longest, queue, bytes int64
	first, last                  int64
}

// bucketSQL is store.Bucket of the column d. A logarithm may be off by one beside a power of two.
const bucketSQL = `toUInt16(if(d < 16, d, e * 16 + bitAnd(bitShiftRight(d, e - 4), 15)))`

// sumsSQL sums operations. A site without a path is its parent and name.
func sumsSQL(where string) string {
	return `SELECT Operation, Lane, Shape, if(ScopePath = '', Parent, 0) AS P, if(ScopePath = '', toString(ScopeName), '') AS N, toString(ScopePath) AS SP,
	` + bucketSQL + ` AS B, toInt64(count()), sum(d), max(d), sum(ifNull(QueueNs, 0)), sum(ifNull(Bytes, 0)), min(StartNs), max(StartNs + d) FROM (
	SELECT *, greatest(DurationNs, 0) AS d, toInt64(floor(log2(greatest(d, 1)))) AS g,
	g + if(bitShiftRight(d, g + 1) > 0, 1, 0) - if(bitShiftRight(d, g) = 0, 1, 0) AS e FROM gpu_ops FINAL` + where + `) GROUP BY Operation, Lane, Shape, P, N, SP, B`
}

// sums reads the sums of an interval.
func (v *view) sums(ctx context.Context, from, to int64) ([]sum, error) {
	return cached(v, fmt.Sprint("sums ", from, " ", to), func() ([]sum, error) {
		var query string
		f := v.filter()
		if from == 0 && to == 0 && v.rollups() {
			f.add("Rollup = ?", v.seal.rollup)
			query = "SELECT Operation, Lane, Shape, Parent, ScopeName, ScopePath, Bucket, N, SumNs, MaxNs, QueueNs, Bytes, FirstNs, LastNs FROM gpu_stats FINAL" + f.where()
		} else {
			f.interval("StartNs", "", from, to, false)
			if v.dropped {
				f.add("false")
			}
			query = sumsSQL(f.where())
		}
		var out []sum
		err := v.s.each(ctx, query, f.args, func(r driver.Rows) error {
			var x sum
			err := r.Scan((*uint8)(&x.operation), &x.lane, &x.shape, (*uint64)(&x.site.Parent), &x.site.ScopeName, &x.site.ScopePath, &x.bucket,
				&x.n, &x.ns, &x.longest, &x.queue, &x.bytes, &x.first, &x.last)
			out = append(out, x)
			return err
		})
		return out, err
	})
}

// Lanes implements [store.Reader].
func (s *Store) Lanes(ctx context.Context, project, session string) ([]store.LaneInfo, error) {
	return read(ctx, s, project, session, "list lanes", func(v *view) ([]store.LaneInfo, error) { return v.laneInfos(ctx) })
}

func (v *view) laneInfos(ctx context.Context) ([]store.LaneInfo, error) {
	sums, err := v.sums(ctx, 0, 0)
	if err != nil {
		return nil, err
	}
	infos, wanted := map[uint64]*store.LaneInfo{}, keys{}
	for _, x := range sums {
		l := infos[x.lane]
		if l == nil {
			l = &store.LaneInfo{FirstNs: x.first, LastNs: x.last}
			infos[x.lane], wanted[x.lane] = l, struct{}{}
		}
		l.Count += x.n
		l.BusyNs += x.ns
		l.FirstNs, l.LastNs = min(l.FirstNs, x.first), max(l.LastNs, x.last)
	}
	entries, err := v.lanes(ctx, wanted)
	if err != nil {
		return nil, err
	}
	var out []store.LaneInfo
	for k, l := range infos {
		l.ID, l.Lane = v.sess.lanes.ID(k), *orEmpty(entries[k])
		out = append(out, *l)
	}
	slices.SortFunc(out, func(a, b store.LaneInfo) int { return answer.CompareLanes(&a.Lane, &b.Lane) })
	return out, nil
}
