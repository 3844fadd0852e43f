// SPDX-License-Identifier: Apache-2.0

package clickstore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/gpuflight/gpuflight/internal/store"
)

const dayNs = int64(24 * time.Hour)

// Pin implements [store.Admin].
func (s *Store) Pin(ctx context.Context, project, id string, pinned bool) error {
	v, err := s.open(ctx, project, id, false)
	if err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	at, err := s.now(ctx)
	if err == nil {
		err = s.insertMarks(ctx, []mark{{key: v.key, kind: "pin", at: at, version: at, flag: pinned}})
	}
	if err != nil {
		return fmt.Errorf("pin session %q: %w", id, err)
	}
	return nil
}

// Seal implements [store.Admin]. Rows that arrive while it runs open the session again.
func (s *Store) Seal(ctx context.Context, project, id string) error {
	v, err := s.open(ctx, project, id, false)
	if err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	if v.sealed {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, longTimeout)
	defer cancel()
	if err := v.sealRows(ctx); err != nil {
		return fmt.Errorf("seal session %q: %w", id, err)
	}
	return nil
}

func (v *view) sealRows(ctx context.Context) error {
	at, err := v.s.now(ctx) // before the rows are read
	if err != nil {
		return err
	}
	parts, err := v.ownParts(ctx)
	if err != nil {
		return err
	}
	summary, err := json.Marshal(parts)
	if err != nil {
		return err
	}
	m := mark{key: v.key, kind: "seal", at: at, version: at, rollup: v.seal.rollup, flag: v.dropped, summary: string(summary)}
	if !v.dropped {
		m.rollup = at
		if err := v.rollup(ctx, at); err != nil {
			return err
		}
	}
	if err := v.s.insertMarks(ctx, []mark{m}); err != nil {
		return err
	}
	if v.seal.rollup == 0 || v.seal.rollup == m.rollup {
		return nil
	}
	for _, t := range rollupTables {
		err := v.s.conn.Exec(ctx, "DELETE FROM "+t+" WHERE Project = ? AND Session = ? AND Rollup < ?", v.key.project, v.key.session, m.rollup)
		if err != nil {
			return err
		}
	}
	return nil
}

// rollup computes the rollups of a seal from the rows.
func (v *view) rollup(ctx context.Context, id uint64) error {
	f := v.filter()
	names := fmt.Sprintf("toUInt64(%d), *", id)
	exec := func(query string, args ...any) error { return v.s.conn.Exec(ctx, query, args...) }
	args := append([]any{v.key.project, v.key.session}, f.args...)
	if err := exec("INSERT INTO gpu_stats SELECT ?, ?, "+names+" FROM ("+sumsSQL(f.where())+")", args...); err != nil {
		return err
	}
	for _, level := range store.Levels {
		bins := binsSQL(0, 1<<level, f.where())
		if err := exec(fmt.Sprintf("INSERT INTO gpu_lod (Project, Session, Rollup, Level, Lane, Bin, N, BusyNs, TopNs, TopStartNs, TopShape) SELECT ?, ?, toUInt64(%d), %d, * FROM (%s)",
			id, level, bins), args...); err != nil {
			return err
		}
	}
	return exec(fmt.Sprintf("INSERT INTO gpu_long SELECT ?, ?, toUInt64(%d), StartNs, Span, DurationNs, Lane FROM gpu_ops FINAL%s AND DurationNs >= %d",
		id, f.where(), longNs), args...)
}

// Delete implements [store.Admin].
func (s *Store) Delete(ctx context.Context, project, id string) error {
	v, err := s.open(ctx, project, id, false)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, longTimeout)
		defer cancel()
		err = s.remove(ctx, v.key)
	}
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// remove deletes a session, its marks last.
func (s *Store) remove(ctx context.Context, k sessionKey) error {
	for _, t := range allTables() {
		if err := s.conn.Exec(ctx, "DELETE FROM "+t+" WHERE Project = ? AND Session = ?", k.project, k.session); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, k)
	return nil
}

// unit is what retention deletes: a session, or a day of data without one.
type unit struct {
	view       *view
	first, end int64 // of a day
	last       int64
	rows       int64
}

func (s *Store) units(ctx context.Context) ([]unit, error) {
	states, err := s.states(ctx, "true")
	if err != nil {
		return nil, err
	}
	var units []unit
	ended := map[string][]*view{} // by project
	for k, st := range states {
		v := &view{state: st, s: s, key: k, sess: s.session(k)}
		if k.session == "" {
			days, err := v.days(ctx)
			if err != nil {
				return nil, err
			}
			units = append(units, days...)
		} else if st.sealed && !st.pinned && len(st.baselines) == 0 {
			ended[k.project] = append(ended[k.project], v)
		}
	}
	for project, views := range ended {
		infos, err := s.infos(ctx, project, views)
		if err != nil {
			return nil, err
		}
		for i := range infos {
			u := unit{view: views[i], last: infos[i].LastNs}
			for _, n := range infos[i].Counts {
				u.rows += n
			}
			units = append(units, u)
		}
	}
	slices.SortFunc(units, func(a, b unit) int {
		return cmp.Or(cmp.Compare(a.last, b.last), cmp.Compare(a.view.key.project, b.view.key.project), cmp.Compare(a.view.key.session, b.view.key.session))
	})
	return units, nil
}

func timeColumn(table string) string {
	if table == "gpu_ops" || table == "gpu_spans" {
		return "StartNs"
	}
	return "TimeNs"
}

func (v *view) days(ctx context.Context) ([]unit, error) {
	var parts []string
	f := v.filter()
	var args []any
	for _, t := range rowTables {
		parts = append(parts, fmt.Sprintf("SELECT intDiv(%s, %d) AS day, count() AS n FROM %s%s GROUP BY day", timeColumn(t), dayNs, t, f.where()))
		args = append(args, f.args...)
	}
	var out []unit
	err := v.s.each(ctx, "SELECT day, toInt64(sum(n)) FROM ("+strings.Join(parts, " UNION ALL ")+") GROUP BY day", args, func(r driver.Rows) error {
		u := unit{view: v}
		var day int64
		err := r.Scan(&day, &u.rows)
		u.first, u.end, u.last = day*dayNs, (day+1)*dayNs, (day+1)*dayNs-1
		out = append(out, u)
		return err
	})
	return out, err
}

func (s *Store) removeUnit(ctx context.Context, u unit) error {
	if u.view.key.session != "" {
		return s.remove(ctx, u.view.key)
	}
	for _, t := range rowTables {
		c := timeColumn(t)
		if err := s.conn.Exec(ctx, "DELETE FROM "+t+" WHERE Project = ? AND Session = '' AND "+c+" >= ? AND "+c+" < ?", u.view.key.project, u.first, u.end); err != nil {
			return err
		}
	}
	return s.touch(ctx, u.view.key)
}

// touch writes a new time of the last write, which ends cached answers.
func (s *Store) touch(ctx context.Context, k sessionKey) error {
	at, err := s.now(ctx)
	if err != nil {
		return err
	}
	return s.insertMarks(ctx, []mark{{key: k, kind: "data", at: at, version: at}})
}

// dropRows removes operations and samples. Readers stop to read them first.
func (s *Store) dropRows(ctx context.Context, u unit) error {
	version, err := s.now(ctx)
	if err != nil {
		return err
	}
	m := u.view.seal
	m.flag, m.version = true, version
	if err := s.insertMarks(ctx, []mark{m}); err != nil {
		return err
	}
	for _, t := range []string{"gpu_ops", "gpu_samples"} {
		if err := s.conn.Exec(ctx, "DELETE FROM "+t+" WHERE Project = ? AND Session = ?", m.key.project, m.key.session); err != nil {
			return err
		}
	}
	return nil
}

// size returns the bytes of all tables and of one row. It leaves out rows that are deleted but not
// merged yet.
func (s *Store) size(ctx context.Context) (total int64, row float64, err error) {
	var rows int64
	for _, t := range rowTables {
		var bytes, physical, n int64
		err := s.each(ctx, "SELECT toInt64(sum(bytes_on_disk)), toInt64(sum(rows)) FROM system.parts WHERE active AND database = currentDatabase() AND table = ?", []any{t},
			func(r driver.Rows) error { return r.Scan(&bytes, &physical) })
		if err == nil && physical > 0 {
			err = s.each(ctx, "SELECT toInt64(count()) FROM "+t, nil, func(r driver.Rows) error { return r.Scan(&n) })
		}
		if err != nil {
			return 0, 0, err
		}
		if physical > 0 {
			total += int64(float64(bytes) * float64(n) / float64(physical))
			rows += n
		}
	}
	if rows > 0 {
		row = float64(total) / float64(rows)
	}
	return total, row, nil
}

// Retain implements [store.Admin]. It ignores MinFree, because the disk belongs to the server. Sizes are
// estimates: ClickHouse frees the space of deleted rows when it merges parts. A session that it cannot delete
// does not keep it from deleting others.
func (s *Store) Retain(ctx context.Context, l store.Retention) ([]store.Deleted, error) {
	if err := s.check(ctx); err != nil {
		return nil, fmt.Errorf("retain: %w", err)
	}
	if l.MaxAge == 0 && l.MaxSize == 0 && l.RawMaxAge == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, longTimeout)
	defer cancel()
	var deleted []store.Deleted
	var failed error // the first
	total, row, err := s.size(ctx)
	if err != nil {
		return nil, fmt.Errorf("retain: %w", err)
	}
	now := time.Now().UnixNano()
	for _, rule := range []struct {
		reason   string
		enabled  bool
		exceeded func(u unit) bool
		apply    func(context.Context, unit) error
	}{
		{"max_age", l.MaxAge > 0, func(u unit) bool { return u.last < now-int64(l.MaxAge) }, s.removeUnit},
		{"max_size", l.MaxSize > 0, func(unit) bool { return total > l.MaxSize }, s.removeUnit},
		{"raw_max_age", l.RawMaxAge > 0, func(u unit) bool {
			return u.last < now-int64(l.RawMaxAge) && u.view.key.session != "" && !u.view.dropped
		}, s.dropRows},
	} {
		if !rule.enabled {
			continue
		}
		units, err := s.units(ctx)
		if err != nil {
			return deleted, fmt.Errorf("retain: %w", err)
		}
		for _, u := range units {
			if !rule.exceeded(u) {
				continue
			}
			if err := rule.apply(ctx, u); err != nil {
				failed = cmp.Or(failed, fmt.Errorf("retain: session %q of project %q: %w", u.view.key.session, u.view.key.project, err))
				if ctx.Err() != nil {
					return deleted, failed
				}
				continue
			}
			bytes := int64(float64(u.rows) * row)
			total -= bytes
			deleted = append(deleted, store.Deleted{Project: u.view.key.project, Session: u.view.key.session, Reason: rule.reason, Bytes: bytes})
		}
	}
	return deleted, failed
}
