// SPDX-License-Identifier: Apache-2.0

package store

import (
	"maps"

	"github.com/gpuflight/gpuflight/internal/numbered"
)

// maxNumberedNames and maxNumberedBytes bound the names that a Numbered remembers.
const (
	maxNumberedNames = 1 << 18
	maxNumberedBytes = 16 << 20
)

// Folds is the set of patterns whose names have one path together.
type Folds map[string]struct{}

// Has reports whether a pattern folds.
func (f Folds) Has(pattern string) bool {
	_, ok := f[pattern]
	return ok
}

// Name returns the name in a path of a scope with a name.
func (f Folds) Name(name string) string {
	if len(f) == 0 {
		return name
	}
	p := numbered.Pattern(name)
	if _, ok := f[p]; ok {
		return p
	}
	return name
}

// Names returns the names in a path of scopes with some names. It may return its argument.
func (f Folds) Names(names []string) []string {
	for i, n := range names {
		if p := f.Name(n); p != n {
			names = append([]string(nil), names...)
			for j := i; j < len(names); j++ {
				names[j] = f.Name(names[j])
			}
			break
		}
	}
	return names
}

// Numbered finds the patterns that have more names than their limit. It is not safe for concurrent use.
type Numbered struct {
	folds Folds
	names map[string]map[string]struct{} // by pattern, of those that are not folded
	size  int                            // of names
	bytes int                            // of names and of their patterns
}

// NewNumbered returns a Numbered in which some patterns are folded.
func NewNumbered(folds Folds) *Numbered {
	n := &Numbered{folds: Folds{}, names: map[string]map[string]struct{}{}}
	maps.Copy(n.folds, folds)
	return n
}

// Add adds a name. It returns the pattern of the name if this folds now, else "".
func (n *Numbered) Add(name string) (folded string) {
	p := numbered.Pattern(name)
	if _, ok := n.folds[p]; ok || p == name || n.size >= maxNumberedNames || n.bytes >= maxNumberedBytes {
		return ""
	}
	if n.names[p] == nil {
		n.names[p] = map[string]struct{}{}
	}
	if _, ok := n.names[p][name]; ok {
		return ""
	}
	n.names[p][name] = struct{}{}
	n.size++
	n.bytes += len(name) + len(p)
	if most := limit(p); len(n.names[p]) <= most {
		return ""
	}
	for other := range n.names[p] {
		n.size--
		n.bytes -= len(other) + len(p)
	}
	delete(n.names, p)
	n.folds[p] = struct{}{}
	return p
}

// Folds returns the folded patterns. They change with the next Add.
func (n *Numbered) Folds() Folds { return n.folds }

func limit(pattern string) int {
	if numbered.Counts(pattern) {
		return 1
	}
	return numbered.Max
}
