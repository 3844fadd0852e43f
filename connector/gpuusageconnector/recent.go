// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

// recent is a bounded map that forgets the oldest entries: two generations, of which the younger is
// written to and takes the place of the older when it is full. It remembers at least the last limit
// keys.
type recent[V any] struct {
	limit    int
	cur, old map[uint64]V
}

func newRecent[V any](limit int) *recent[V] {
	return &recent[V]{limit: limit, cur: map[uint64]V{}, old: map[uint64]V{}}
}

func (r *recent[V]) get(key uint64) (V, bool) {
	if v, ok := r.cur[key]; ok {
		return v, true
	}
	v, ok := r.old[key]
	return v, ok
}

func (r *recent[V]) put(key uint64, v V) {
	if _, ok := r.cur[key]; !ok && len(r.cur) >= r.limit {
		r.old, r.cur = r.cur, make(map[uint64]V, len(r.cur)/4)
	}
	r.cur[key] = v
}

// shared makes equal strings one string, for a bounded number of them: the same name comes with every
// batch, and each time in memory of its own.
type shared map[string]string

const maxShared = 4096

func (s shared) of(name string) string {
	if v, ok := s[name]; ok {
		return v
	}
	if len(s) >= maxShared {
		clear(s)
	}
	s[name] = name
	return name
}
