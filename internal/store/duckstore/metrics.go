// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
	"github.com/gpuflight/gpuflight/semconv"
)

const pointColumns = "time_ns, start_ns, flags, int_value, double_value, double_bits, data, exemplars"

// scanPoint scans other columns, then pointColumns.
func scanPoint(r *sql.Rows, p *store.Point, other ...any) error {
	var double sql.NullFloat64
	var bits *uint64
	err := r.Scan(append(other, &p.TimeNs, &p.StartNs, &p.Flags, nullInt{&p.Int}, &double, &bits, &p.Data, &p.Exemplars)...)
	p.Double, p.HasDouble = double.Float64, double.Valid
	if bits != nil {
		p.Double = math.Float64frombits(*bits)
	}
	return err
}

// Series implements [store.Reader].
func (s *Store) Series(ctx context.Context, q store.SeriesQuery) ([]store.SeriesInfo, error) {
	n, err := answer.Limits(q.From, q.To, q.Limit, 1000, 10_000)
	if err != nil {
		return nil, fmt.Errorf("read series: %w", err)
	}
	v, err := s.open(ctx, q.Project, q.Session, true)
	if err != nil || v == nil {
		return nil, err
	}
	defer v.close()
	var f filter
	f.interval("time_ns", "time_ns", q.From, q.To, false)
	args := f.args
	metric := ""
	if q.Metric != "" {
		metric = " WHERE metric = ?"
		args = append(args, q.Metric)
	}
	var out []store.SeriesInfo
	ids := idSet{}
	err = v.each(ctx, `SELECT coalesce(key, 0), coalesce(metric, ''), coalesce(unit, ''), coalesce(description, ''), coalesce(type, 0),
		coalesce(temporality, 0), coalesce(monotonic, false), attrs, coalesce(origin, 0), n, a, z FROM (SELECT series, count(*) AS n,
		min(time_ns) AS a, max(time_ns) AS z FROM {points}`+f.where()+` GROUP BY 1) LEFT JOIN
		`+v.dict(series)+` ON id = series`+metric+" ORDER BY 2, 1", args, func(r *sql.Rows) error {
		var i store.SeriesInfo
		err := r.Scan(&i.Key, &i.Metric, &i.Unit, &i.Description, &i.Type, &i.Temporality, &i.Monotonic,
			attrsValue{&i.Attrs}, &i.Origin, &i.Count, &i.FirstNs, &i.LastNs)
		hw, _ := i.Attrs.Get(semconv.HWID)
		if len(out) < n && (q.Device == "" || hw.Kind == store.KindString && hw.Str == q.Device) {
			ids.add(i.Origin)
			out = append(out, i)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read series: %w", err)
	}
	origins, err := v.origins(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read series: %w", err)
	}
	for i := range out {
		out[i].OriginRef = orEmpty(origins[out[i].Origin])
		out[i].Origin = 0
	}
	return out, nil
}

// seriesIDs returns the ids of a series. Without any, the session has no point of it.
func (v *view) seriesIDs(ctx context.Context, key uint64) ([]uint32, error) {
	all, err := cached(v, "series", func() (map[uint64][]uint32, int, error) {
		out := map[uint64][]uint32{}
		err := v.each(ctx, "SELECT DISTINCT key, id FROM {series} UNION ALL SELECT 0::UBIGINT, 0::UINTEGER WHERE EXISTS (FROM {points} WHERE series = 0)",
			nil, func(r *sql.Rows) error {
				var key uint64
				var id uint32
				err := r.Scan(&key, &id)
				out[key] = append(out[key], id)
				return err
			})
		return out, len(out), err
	})
	return all[key], err
}

// Points implements [store.Reader]. It reads the points in order of time and keeps four for each
// part.
func (s *Store) Points(ctx context.Context, q store.PointQuery) ([]store.PointRow, error) {
	n, err := answer.Limits(q.From, q.To, q.Points, 2000, 20_000)
	if err == nil && n < 4 {
		err = fmt.Errorf("%d points: %w", n, store.ErrInvalid)
	}
	if err != nil {
		return nil, fmt.Errorf("read points: %w", err)
	}
	v, err := s.open(ctx, q.Project, q.Session, true)
	if err != nil {
		return nil, err
	}
	notFound := fmt.Errorf("series %016x: %w", q.Series, store.ErrNotFound)
	if v == nil {
		return nil, notFound
	}
	defer v.close()
	ids, err := v.seriesIDs(ctx, q.Series)
	if err == nil && len(ids) == 0 {
		return nil, notFound
	}
	var rows []store.PointRow
	if err == nil {
		rows, err = v.points(ctx, q, ids, n)
	}
	if err != nil {
		return nil, fmt.Errorf("read points: %w", err)
	}
	return rows, nil
}

func (v *view) points(ctx context.Context, q store.PointQuery, ids []uint32, n int) ([]store.PointRow, error) {
	var f filter
	f.add("series IN (" + joinIDs(ids) + ")")
	f.interval("time_ns", "time_ns", q.From, q.To, false)
	const columns = "SELECT " + pointColumns + " FROM {points}"
	var rows []store.PointRow
	err := v.each(ctx, columns+f.where()+" ORDER BY time_ns LIMIT ?", append(slices.Clone(f.args), n+1), func(r *sql.Rows) error {
		var p store.PointRow
		err := scanPoint(r, &p.Point)
		rows = append(rows, p)
		return err
	})
	if err != nil || len(rows) <= n {
		return rows, err
	}
	from, to := q.From, q.To
	if from == 0 {
		from = rows[0].TimeNs
	}
	if to == 0 {
		err = v.each(ctx, "SELECT max(time_ns) + 1 FROM {points}"+f.where(), f.args, func(r *sql.Rows) error { return r.Scan(&to) })
		if err != nil {
			return nil, err
		}
	}
	parts := int64(n / 4)
	m := answer.M4{FromNs: from, WidthNs: max((to-from+parts-1)/parts, 1)}
	err = v.each(ctx, columns+f.where()+" ORDER BY time_ns", f.args, func(r *sql.Rows) error {
		var p store.PointRow
		err := scanPoint(r, &p.Point)
		m.Add(p)
		return err
	})
	m.Flush()
	return m.Out, err
}
