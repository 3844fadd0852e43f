// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"hash/fnv"
	"math"
	"slices"

	"github.com/gpuflight/gpuflight/internal/store"
)

// maxTraceFilters bounds a traceSet to 3.5 MB, for 2.8 M traces.
const maxTraceFilters = 7

// traceSet has the traces of a segment, so that a search opens few files. It consists of Bloom filters.
// Each has room for four times the traces of the one before. Of the traces that it lacks, it reports a
// few percent. When it is full, it reports every trace.
type traceSet struct {
	Filters [][]uint64
	Count   uint32 // traces in the last filter
	Full    bool
}

// A trace sets hashesOfTrace of the bitsOfTrace bits that a filter has for it.
const (
	bitsOfTrace   = 10
	hashesOfTrace = 6
	firstTraces   = 512
)

// hashTrace returns the first bit of a trace and the distance between its bits.
func hashTrace(t store.TraceID) (first, distance uint64) {
	h := fnv.New64a()
	_, _ = h.Write(t[:])
	sum := h.Sum64()
	return sum >> 32, sum&math.MaxUint32 | 1
}

func (s *traceSet) has(t store.TraceID) bool {
	if s.Full {
		return true
	}
	a, b := hashTrace(t)
	for _, f := range s.Filters {
		found := true
		for i := range uint64(hashesOfTrace) {
			bit := (a + i*b) % uint64(len(f)*64)
			found = found && f[bit/64]>>(bit%64)&1 == 1
		}
		if found {
			return true
		}
	}
	return false
}

func (s *traceSet) add(t store.TraceID) {
	if t == (store.TraceID{}) || s.has(t) {
		return
	}
	room := uint32(firstTraces)
	for range len(s.Filters) - 1 {
		room *= 4
	}
	if len(s.Filters) == 0 || s.Count >= room {
		if len(s.Filters) == maxTraceFilters {
			s.Filters, s.Full = nil, true
			return
		}
		if len(s.Filters) > 0 {
			room *= 4
		}
		s.Filters, s.Count = append(s.Filters, make([]uint64, room*bitsOfTrace/64)), 0
	}
	f := s.Filters[len(s.Filters)-1]
	a, b := hashTrace(t)
	for i := range uint64(hashesOfTrace) {
		bit := (a + i*b) % uint64(len(f)*64)
		f[bit/64] |= 1 << (bit % 64)
	}
	s.Count++
}

// findTraces reads the traces of a segment.
func (s *Store) findTraces(ctx context.Context, seg *segment) error {
	for _, table := range []string{"places", "spans", "samples", "logs"} {
		err := s.each(ctx, "SELECT DISTINCT trace FROM {db}."+table, nil, func(r *sql.Rows) error {
			var t store.TraceID
			err := r.Scan(traceID{(*[16]byte)(&t)})
			seg.traces.add(t)
			return err
		}, seg.alias)
		if err != nil {
			return err
		}
	}
	return nil
}

// withTrace returns the sessions of a project that may have a trace. The data without a session is one.
func (s *Store) withTrace(project string, trace store.TraceID) []sessionKey {
	keys := s.journal.withTrace(project, trace)
	s.mu.RLock()
	defer s.mu.RUnlock()
	for k, sess := range s.sessions {
		if k.project == project && !slices.Contains(keys, k) &&
			slices.ContainsFunc(sess.segments, func(seg *segment) bool { return seg.traces.has(trace) }) {
			keys = append(keys, k)
		}
	}
	return keys
}

func (s *traceSet) addBatch(b *store.Batch) {
	for i := range b.Places {
		s.add(b.Places[i].Trace)
	}
	for i := range b.Spans {
		s.add(b.Spans[i].Trace)
	}
	for i := range b.Samples {
		s.add(b.Samples[i].Trace)
	}
	for i := range b.Logs {
		s.add(b.Logs[i].Trace)
	}
}
