// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import "sync"

// maxCached bounds the entries of each dictionary, and the rows of all answers, that the cache of a
// session keeps.
const maxCached = 1 << 16

// cache keeps what readers of a session need again. Entries of dictionaries never change. Answers are
// those of one version of the session. The cache is empty while no segment is attached.
type cache struct {
	mu      sync.Mutex
	entries [len(dictTables)]map[uint32]any
	version uint64
	answers map[string]any
	rows    int
}

func newCache() *cache {
	c := &cache{}
	c.clear()
	return c
}

func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.entries {
		c.entries[i] = map[uint32]any{}
	}
	c.answers, c.rows = map[string]any{}, 0
}

// answer returns an answer, or nil.
func (c *cache) answer(version uint64, key string) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.version != version {
		return nil
	}
	return c.answers[key]
}

// keep stores an answer.
func (c *cache) keep(version uint64, key string, answer any, rows int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if version < c.version || rows > maxCached {
		return
	}
	if version > c.version || c.rows+rows > maxCached {
		c.version, c.answers, c.rows = version, map[string]any{}, 0
	}
	c.answers[key] = answer
	c.rows += rows
}

// cached returns what read returns, with its number of rows, and keeps it while the session does not
// change.
func cached[T any](v *view, key string, read func() (T, int, error)) (T, error) {
	if a, ok := v.sess.cache.answer(v.version, key).(T); ok {
		return a, nil
	}
	a, rows, err := read()
	if err != nil {
		return a, err
	}
	v.s.mu.RLock()
	same := v.sess.version == v.version
	v.s.mu.RUnlock()
	if same {
		v.sess.cache.keep(v.version, key, a, rows)
	}
	return a, nil
}
