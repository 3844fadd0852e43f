// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/gpuflight/gpuflight/internal/store"
)

// Indices of the dictionaries, in the order of dictTables.
const (
	origins = iota
	extras
	lanes
	shapes
	places
	stacks
	series
	sites
)

// maxEntries bounds the entries of one dictionary that the writer remembers. Beyond, it forgets them
// and gives the same content another id. Only lanes, shapes and series are compared by id, and they
// are far fewer.
const maxEntries = 1 << 20

// maxPlaces is maxEntries for the dictionaries that grow with the scopes of a session.
const maxPlaces = 1 << 17

func maxEntriesOf(dict int) int {
	switch dict {
	case lanes, shapes, series:
		return maxEntries
	}
	return maxPlaces
}

// dictionaries maps the keys of a session's dictionaries to ids, which are valid in all its segments.
type dictionaries [len(dictTables)]struct {
	ids  map[uint64]uint32
	next uint32
}

// loadDictionaries reads the ids of a session.
func (s *Store) loadDictionaries(ctx context.Context, sess *session) (*dictionaries, error) {
	d := &dictionaries{}
	for i := range d {
		d[i].ids, d[i].next = map[uint64]uint32{}, 1
	}
	for _, seg := range sess.segments {
		if err := s.acquire(ctx, seg); err != nil {
			return nil, err
		}
		err := s.loadSegmentDictionaries(ctx, seg, d)
		s.release(seg)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", seg.file, err)
		}
	}
	return d, nil
}

func (s *Store) loadSegmentDictionaries(ctx context.Context, seg *segment, d *dictionaries) error {
	known := newKnown()
	for i, table := range dictTables {
		err := s.each(ctx, "SELECT id, key FROM "+seg.alias+"."+table, nil, func(r *sql.Rows) error {
			var id uint32
			var key uint64
			if err := r.Scan(&id, &key); err != nil {
				return err
			}
			if len(d[i].ids) < maxEntriesOf(i) {
				d[i].ids[key] = id
				known[i][id] = struct{}{}
			}
			d[i].next = max(d[i].next, id+1)
			return nil
		})
		if err != nil {
			return err
		}
	}
	seg.known = known
	return nil
}

func newKnown() *[len(dictTables)]map[uint32]struct{} {
	var k [len(dictTables)]map[uint32]struct{}
	for i := range k {
		k[i] = map[uint32]struct{}{}
	}
	return &k
}

// id returns the id of an entry of a batch. If the segment lacks the entry, it calls add.
func (d *dictionaries) id(seg *segment, dict int, key uint64, add func(id uint32) error) (uint32, error) {
	t := &d[dict]
	id, ok := t.ids[key]
	if !ok {
		if len(t.ids) >= maxEntriesOf(dict) {
			t.ids = map[uint64]uint32{}
			clear(seg.known[dict])
		}
		id = t.next
		t.next++
		t.ids[key] = id
	}
	if _, ok := seg.known[dict][id]; ok {
		return id, nil
	}
	seg.known[dict][id] = struct{}{}
	return id, add(id)
}

func intOf(v store.Int) any {
	if !v.OK {
		return nil
	}
	return v.V
}
