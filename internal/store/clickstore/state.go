// SPDX-License-Identifier: Apache-2.0

package clickstore

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
)

// mark is a row of gpu_sessions.
type mark struct {
	key         sessionKey
	kind        string
	at, version uint64
	rollup      uint64
	flag        bool // seal: the rows were dropped; pin: pinned
	summary     string
}

// state is what the marks of a session say.
type state struct {
	exists, sealed, pinned, dropped bool
	written, seal                   mark
	baselines                       map[string]mark // by name; nil for none
}

// rollups reports whether the sums of the seal are those of the rows.
func (s *state) rollups() bool { return s.sealed || s.dropped }

// part sums rows of one table, operation and origin.
type part struct {
	Table           string
	Operation       uint8
	Origin          uint64
	N, First        int64
	LastStart, Last int64
	SumNs           int64
	Ended           bool
}

// session is what this process keeps of a session.
type session struct {
	lanes, shapes *answer.IDs[uint64]
	paths         *answer.Paths

	mu      sync.Mutex
	entries [5]map[uint64]any
	version [2]uint64 // of answers: the times of the last write and seal
	answers map[string]any
}

// maxEntries bounds the entries of each dictionary that a session keeps.
const maxEntries = 1 << 16

func fold(key uint64) uint32 { return uint32(key) ^ uint32(key>>32) }

func (s *Store) session(k sessionKey) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.sessions[k]
	if x == nil {
		if len(s.sessions) >= maxSessions {
			clear(s.sessions)
		}
		x = &session{lanes: answer.NewIDs(fold), shapes: answer.NewIDs(fold), paths: answer.NewPaths(), answers: map[string]any{}}
		for i := range x.entries {
			x.entries[i] = map[uint64]any{}
		}
		s.sessions[k] = x
	}
	return x
}

// states returns the states that match a condition.
func (s *Store) states(ctx context.Context, condition string, args ...any) (map[sessionKey]*state, error) {
	out := map[sessionKey]*state{}
	err := s.each(ctx, "SELECT Project, Session, Kind, At, Version, Rollup, Flag, Summary FROM gpu_sessions FINAL WHERE "+condition, args,
		func(r driver.Rows) error {
			var m mark
			if err := r.Scan(&m.key.project, &m.key.session, &m.kind, &m.at, &m.version, &m.rollup, &m.flag, &m.summary); err != nil {
				return err
			}
			st := out[m.key]
			if st == nil {
				st = &state{}
				out[m.key] = st
			}
			switch m.kind {
			case "data":
				st.exists, st.written = true, m
			case "seal":
				st.seal, st.dropped = m, m.flag
			case "pin":
				st.pinned = m.flag
			default:
				st.baseline(m)
			}
			return nil
		})
	for k, st := range out {
		if !st.exists {
			delete(out, k)
		}
		st.sealed = st.seal.at > st.written.at
	}
	return out, err
}

// Unsealed lists the sessions that are not sealed.
func (s *Store) Unsealed(ctx context.Context) (list []store.SessionInfo, err error) {
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	states, err := s.states(ctx, "Session != ''")
	for k, st := range states {
		if !st.sealed {
			list = append(list, store.SessionInfo{Project: k.project, ID: k.session, Pinned: st.pinned, RowsDropped: st.dropped})
		}
	}
	return list, err
}

func (s *Store) state(ctx context.Context, k sessionKey) (*state, error) {
	all, err := s.states(ctx, "Project = ? AND Session = ?", k.project, k.session)
	if err != nil || all[k] != nil {
		return all[k], err
	}
	return &state{}, nil
}

// view reads one session.
type view struct {
	*state
	s    *Store
	key  sessionKey
	sess *session
}

// open returns a view. If empty, the data without a session may be read, also if there is none.
func (s *Store) open(ctx context.Context, project, id string, empty bool) (*view, error) {
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	k := sessionKey{project, id}
	if id == "" && !empty {
		return nil, fmt.Errorf("session %q: %w", id, store.ErrNotFound)
	}
	st, err := s.state(ctx, k)
	if err != nil {
		return nil, err
	}
	if !st.exists && id != "" {
		return nil, fmt.Errorf("session %q: %w", id, store.ErrNotFound)
	}
	return &view{state: st, s: s, key: k, sess: s.session(k)}, nil
}

// read returns what a function reads from a session. Errors of the function begin with what.
func read[T any](ctx context.Context, s *Store, project, session, what string, from func(*view) (T, error)) (T, error) {
	v, err := s.open(ctx, project, session, false)
	if err != nil {
		return *new(T), err
	}
	answer, err := from(v)
	if err != nil {
		return *new(T), fmt.Errorf("%s: %w", what, err)
	}
	return answer, nil
}

// cached returns what read returns and keeps it while the session does not change.
func cached[T any](v *view, key string, read func() (T, error)) (T, error) {
	version := [2]uint64{v.written.at, v.seal.version}
	c := v.sess
	c.mu.Lock()
	if c.version == version {
		if a, ok := c.answers[key].(T); ok {
			c.mu.Unlock()
			return a, nil
		}
	}
	c.mu.Unlock()
	a, err := read()
	if err != nil {
		return a, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if version != c.version || len(c.answers) > 32 {
		c.version, c.answers = version, map[string]any{}
	}
	c.answers[key] = a
	return a, nil
}

const partsSQL = `SELECT Session, 'ops', Operation, Origin, toInt64(count()), min(StartNs), max(StartNs),
	max(StartNs + greatest(DurationNs, 0)), sum(greatest(DurationNs, 0)), false FROM gpu_ops FINAL WHERE %[1]s GROUP BY Session, Operation, Origin
UNION ALL SELECT Session, 'spans', 0, Origin, toInt64(count()), min(StartNs), max(StartNs), max(greatest(StartNs, toInt64(EndNs))),
	toInt64(0), toBool(max(Operation = 'session')) FROM gpu_spans FINAL WHERE %[1]s GROUP BY Session, Origin
UNION ALL SELECT Session, 'samples', 0, Origin, toInt64(count()), min(TimeNs), max(TimeNs), max(TimeNs), toInt64(0), false FROM gpu_samples FINAL
	WHERE %[1]s GROUP BY Session, Origin
UNION ALL SELECT Session, 'logs', 0, Origin, toInt64(count()), min(TimeNs), max(TimeNs), max(TimeNs), toInt64(0), false FROM gpu_logs FINAL
	WHERE %[1]s GROUP BY Session, Origin
UNION ALL SELECT S, 'points', 0, Origin, n, a, z, z, toInt64(0), false FROM (SELECT Session AS S, Series, toInt64(count()) AS n, min(TimeNs) AS a, max(TimeNs) AS z
	FROM gpu_points FINAL WHERE %[1]s GROUP BY Session, Series) AS p LEFT ANY JOIN (SELECT Session AS T, Key, Origin FROM gpu_series WHERE %[1]s) AS k
	ON k.T = p.S AND k.Key = p.Series`

// readParts sums the rows of sessions.
func (s *Store) readParts(ctx context.Context, project string, sessions []string) (map[string][]part, error) {
	var args []any
	for range 6 {
		args = append(args, project, sessions)
	}
	out := map[string][]part{}
	err := s.each(ctx, fmt.Sprintf(partsSQL, "Project = ? AND Session IN ?"), args, func(r driver.Rows) error {
		var session string
		var p part
		err := r.Scan(&session, &p.Table, &p.Operation, &p.Origin, &p.N, &p.First, &p.LastStart, &p.Last, &p.SumNs, &p.Ended)
		out[session] = append(out[session], p)
		return err
	})
	return out, err
}

// parts sums the rows of the session. It calls read if the sums are not known.
func (v *view) parts(read func() ([]part, error)) ([]part, error) {
	return cached(v, "parts", func() ([]part, error) {
		var sealed []part
		if v.seal.summary != "" {
			if err := json.Unmarshal([]byte(v.seal.summary), &sealed); err != nil {
				return nil, fmt.Errorf("summary of session %q: %w", v.key.session, err)
			}
		}
		if v.sealed {
			return sealed, nil
		}
		rows, err := read()
		if err != nil || !v.dropped {
			return rows, err
		}
		var out []part
		gone := func(p part) bool { return p.Table == "ops" || p.Table == "samples" }
		for _, p := range sealed {
			if gone(p) {
				out = append(out, p)
			}
		}
		return append(out, slices.DeleteFunc(rows, gone)...), nil
	})
}

// ownParts sums the rows of the session alone.
func (v *view) ownParts(ctx context.Context) ([]part, error) {
	return v.parts(func() ([]part, error) {
		all, err := v.s.readParts(ctx, v.key.project, []string{v.key.session})
		return all[v.key.session], err
	})
}

// infos describes sessions of one project.
func (s *Store) infos(ctx context.Context, project string, views []*view) ([]store.SessionInfo, error) {
	var out []store.SessionInfo
	for views := range slices.Chunk(views, chunk) {
		var unsealed []string
		for _, v := range views {
			if !v.sealed {
				unsealed = append(unsealed, v.key.session)
			}
		}
		var sums map[string][]part
		read := func() (err error) {
			if sums == nil {
				sums, err = s.readParts(ctx, project, unsealed)
			}
			return err
		}
		origins := keys{}
		for _, v := range views {
			parts, err := v.parts(func() ([]part, error) {
				err := read()
				return sums[v.key.session], err
			})
			if err != nil {
				return nil, err
			}
			if key := latestOrigin(parts); key != 0 && !v.hasOrigin(key) {
				origins[key] = struct{}{}
			}
		}
		if err := s.readOrigins(ctx, project, views, origins); err != nil {
			return nil, err
		}
		for _, v := range views {
			i, err := v.info(ctx)
			if err != nil {
				return nil, err
			}
			out = append(out, i)
		}
	}
	return out, nil
}

// latestOrigin returns the origin of the latest row, of several the one with the smallest key.
func latestOrigin(parts []part) (key uint64) {
	latest := int64(-1)
	for _, p := range parts {
		if p.Origin != 0 && (p.LastStart > latest || p.LastStart == latest && p.Origin < key) {
			latest, key = p.LastStart, p.Origin
		}
	}
	return key
}

// info describes the session.
func (v *view) info(ctx context.Context) (store.SessionInfo, error) {
	i := store.SessionInfo{
		Project: v.key.project, ID: v.key.session, Sealed: v.sealed, Pinned: v.pinned, RowsDropped: v.dropped,
		Counts:     map[string]int64{"ops": 0, "spans": 0, "samples": 0, "logs": 0, "points": 0},
		Operations: map[store.Operation]int64{}, FirstNs: math.MaxInt64, LastNs: math.MinInt64,
	}
	parts, err := v.ownParts(ctx)
	if err != nil {
		return i, err
	}
	key := latestOrigin(parts)
	for _, p := range parts {
		i.Counts[p.Table] += p.N
		i.FirstNs, i.LastNs = min(i.FirstNs, p.First), max(i.LastNs, p.Last)
		if p.Table == "ops" {
			i.Operations[store.Operation(p.Operation)] += p.N
			if store.Operation(p.Operation) == store.OpKernel {
				i.KernelNs += p.SumNs
			}
		}
		i.Ended = i.Ended || p.Ended
	}
	if i.FirstNs > i.LastNs {
		i.FirstNs, i.LastNs = 0, 0
	}
	if key != 0 {
		origins, err := v.origins(ctx, map[uint64]struct{}{key: {}})
		if err != nil {
			return i, err
		}
		answer.SetResource(&i, orEmpty(origins[key]).Resource)
	}
	return i, nil
}
