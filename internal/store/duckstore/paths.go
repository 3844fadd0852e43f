// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"hash/fnv"
	"io"
	"maps"
	"strconv"
	"strings"
	"sync"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// paths assigns ids to lists of names. An id is a hash. Of two lists with equal hashes, the one that is
// asked for first has it, and the other one gets the next free id. So that ids stay the same, they are
// stored with the session before an answer has them.
type paths struct {
	mu      sync.Mutex
	loaded  bool
	ids     map[string]uint32
	keys    map[uint32]string
	unsaved []uint32
	folds   store.Folds // does not change, but is replaced
}

func newPaths() *paths { return &paths{ids: map[string]uint32{}, keys: map[uint32]string{}} }

// pathKey encodes a list of names.
func pathKey(names []string) string {
	var b strings.Builder
	for _, n := range names {
		b.WriteString(strconv.Itoa(len(n)) + ":" + n)
	}
	return b.String()
}

func (p *paths) id(names []string, hash func(string) uint32) uint32 {
	if len(names) == 0 {
		return 0
	}
	key := pathKey(names)
	p.mu.Lock()
	defer p.mu.Unlock()
	if id, ok := p.ids[key]; ok {
		return id
	}
	id := hash(key)
	for id == 0 || p.keys[id] != "" {
		id++
	}
	p.ids[key], p.keys[id] = id, key
	p.unsaved = append(p.unsaved, id)
	return id
}

// last returns the last name of a path that has an id.
func (p *paths) last(id uint32) (name string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := splitKey(p.keys[id])
	if len(names) == 0 {
		return "", false
	}
	return names[len(names)-1], true
}

// key returns the pathKey of a path that has an id.
func (p *paths) key(id uint32) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keys[id]
}

// splitKey returns the names of a pathKey.
func splitKey(key string) (names []string) {
	for key != "" {
		length, rest, _ := strings.Cut(key, ":")
		n, err := strconv.Atoi(length)
		if err != nil || n < 0 || n > len(rest) {
			return nil
		}
		names, key = append(names, rest[:n]), rest[n:]
	}
	return names
}

func hash32(s string) uint32 {
	h := fnv.New32a()
	_, _ = io.WriteString(h, s)
	return h.Sum32()
}

// pathID returns the id of a list of names, 0 for the root. The view stores it when it is closed.
func (v *view) pathID(names []string) uint32 { return v.sess.paths.id(names, hash32) }

// loadPaths reads the ids that are stored with a session. The segments are attached.
func (v *view) loadPaths(ctx context.Context) error {
	p := v.sess.paths
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loaded || v.sess.id == "" {
		return nil
	}
	folds := store.Folds{}
	for _, seg := range v.segments {
		err := v.s.each(ctx, "SELECT pattern FROM {db}.folds", nil, func(r *sql.Rows) error {
			var pattern string
			err := r.Scan(&pattern)
			folds[pattern] = struct{}{}
			return err
		}, seg.alias)
		if err != nil {
			v.s.suspect(v.sess, err)
			return err
		}
		err = v.s.each(ctx, "SELECT id, key FROM {db}.paths", nil, func(r *sql.Rows) error {
			var id uint32
			var key []byte
			if err := r.Scan(&id, &key); err != nil {
				return err
			}
			p.ids[string(key)], p.keys[id] = id, string(key)
			return nil
		}, seg.alias)
		if err != nil {
			v.s.suspect(v.sess, err)
			return err
		}
	}
	if v.coarse {
		n, err := v.readNumbered(ctx, folds)
		if err != nil {
			return err
		}
		folds = n.Folds()
	}
	p.loaded, p.folds = true, folds
	return nil
}

// folded returns the patterns that fold.
func (p *paths) folded() store.Folds {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.folds
}

// fold adds a pattern.
func (p *paths) fold(pattern string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	folds := maps.Clone(p.folds)
	if folds == nil {
		folds = store.Folds{}
	}
	folds[pattern] = struct{}{}
	p.folds = folds
}

// reload makes the next view read what is stored again.
func (p *paths) reload() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loaded = false
}

// loadNumbered reads the names of scopes of a session.
func (s *Store) loadNumbered(ctx context.Context, sess *session) (*store.Numbered, error) {
	v, err := s.writerView(ctx, sess)
	if err != nil {
		return nil, err
	}
	defer v.close()
	if len(v.segments) == 0 {
		return store.NewNumbered(nil), nil
	}
	if err := v.loadPaths(ctx); err != nil {
		return nil, err
	}
	return v.readNumbered(ctx, sess.paths.folded())
}

func (v *view) readNumbered(ctx context.Context, folds store.Folds) (*store.Numbered, error) {
	n := store.NewNumbered(folds)
	err := v.each(ctx, "SELECT DISTINCT name, false FROM {spans} WHERE operation NOT IN (?, ?) UNION ALL "+
		"SELECT DISTINCT CASE WHEN scope_path = '' THEN scope_name ELSE scope_path END, scope_path != '' FROM {places}",
		[]any{semconv.CUDAOperationSession, semconv.CUDAOperationDeepWindow}, func(r *sql.Rows) error {
			var name string
			var path bool
			err := r.Scan(&name, &path)
			names := []string{name}
			if path {
				names = strings.Split(name, "|")
			}
			for _, name := range names {
				n.Add(name)
			}
			return err
		})
	return n, err
}

// savePaths stores new ids in the last segment. If that fails, the next view does it: within the
// process the ids stay the same anyway. DuckDB runs the transaction next to that of the writer.
func (v *view) savePaths(ctx context.Context) {
	p := v.sess.paths
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.unsaved) == 0 || len(v.segments) == 0 || v.sess.id == "" {
		return
	}
	var ids []int64
	var keys [][]byte
	for _, id := range p.unsaved {
		ids, keys = append(ids, int64(id)), append(keys, []byte(p.keys[id]))
	}
	_, tx, end, err := v.s.beginTx(ctx)
	if err != nil {
		return
	}
	defer end()
	insert, err := tx.PrepareContext(ctx, "INSERT INTO "+v.segments[len(v.segments)-1].alias+".paths VALUES (?, ?)")
	if err != nil {
		return
	}
	defer func() { _ = insert.Close() }()
	for i := range ids {
		if _, err = insert.ExecContext(ctx, ids[i], keys[i]); err != nil {
			return
		}
	}
	if tx.Commit() == nil {
		p.unsaved = nil
	}
}

// forget makes the next view store all ids again, after a segment was replaced.
func (p *paths) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unsaved = p.unsaved[:0]
	for id := range p.keys {
		p.unsaved = append(p.unsaved, id)
	}
}
