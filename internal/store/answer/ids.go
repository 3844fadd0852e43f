// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"hash/fnv"
	"io"
	"strconv"
	"strings"
	"sync"
)

// IDs assigns 32-bit ids to keys. An id is a hash of its key, so it is the same in another process. Of
// two keys with equal hashes, the one that is asked for first has the hash. IDs is safe for
// concurrent use.
type IDs[K comparable] struct {
	hash func(K) uint32
	mu   sync.Mutex
	ids  map[K]uint32
	keys map[uint32]K
}

// NewIDs returns ids without keys. No key has id 0.
func NewIDs[K comparable](hash func(K) uint32) *IDs[K] {
	return &IDs[K]{hash: hash, ids: map[K]uint32{}, keys: map[uint32]K{}}
}

// ID returns the id of a key.
func (p *IDs[K]) ID(key K) uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id, ok := p.ids[key]; ok {
		return id
	}
	id := p.hash(key)
	for {
		if _, taken := p.keys[id]; id != 0 && !taken {
			break
		}
		id++
	}
	p.ids[key], p.keys[id] = id, key
	return id
}

// Key returns the key of an id, if one was assigned.
func (p *IDs[K]) Key(id uint32) (K, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k, ok := p.keys[id]
	return k, ok
}

// Paths assigns ids to paths of scopes. The root has 0. It is safe for concurrent use.
type Paths struct{ ids *IDs[string] }

// NewPaths returns ids without paths.
func NewPaths() *Paths {
	return &Paths{NewIDs(func(s string) uint32 {
		h := fnv.New32a()
		_, _ = io.WriteString(h, s)
		return h.Sum32()
	})}
}

// ID returns the id of a path.
func (p *Paths) ID(names []string) uint32 {
	if len(names) == 0 {
		return 0
	}
	var b strings.Builder
	for _, n := range names {
		b.WriteString(strconv.Itoa(len(n)) + ":" + n)
	}
	return p.ids.ID(b.String())
}
