// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// scope is one instance of a scope: one begin and, once it has come, its end.
type scope struct {
	// num identifies the instance within its session: the recorder's scope_instance_id, or in A2,
	// which has none, a hash of path and begin. All its span ids derive from it.
	num uint64
	// seq is its place in the order of begins.
	seq          uint64
	path         *path
	parent, root *scope
	depth        int64
	start, end   int64
	open         bool
	tag          string
	instance     gpuevent.Int
	repeat, warm gpuevent.Int
	original     gpuevent.Int
	// homePart is the part of the trace that holds the scope's own span.
	homePart uint64
	trace    gpuevent.TraceID
	span     gpuevent.SpanID
	above    gpuevent.SpanID
	// family is the trace family of a top-level scope.
	family *family
}

func (x *scope) contains(t int64) bool { return x.start <= t && (x.open || t <= x.end) }

// path is a chain of scope names, outermost first: "epoch|step".
type path struct {
	full     string
	name     string
	parent   *path
	children int
	// insts are the known instances in the order of their begins.
	insts []*scope
	// launched says that kernels name this path, barren that an instance of it was passed by without
	// a kernel and none has named it yet.
	launched, barren bool
}

// scopeTable holds the scope instances of one session that device work may still belong to.
type scopeTable struct {
	paths map[string]*path
	// all holds the known instances in the order of their begins, open those without an end.
	all, open []*scope
	byNum     map[uint64]*scope
	nextSeq   uint64
	// sweepAt is the length of all at which retired instances are next looked for.
	sweepAt int
}

// globalPath is what upstream writes for work outside every scope.
const globalPath = "global"

func newScopeTable() scopeTable {
	return scopeTable{paths: map[string]*path{}, byNum: map[uint64]*scope{}, nextSeq: 1, sweepAt: 256}
}

// maxPath bounds the text of a path, in bytes: each of nested scopes holds its own, so long paths grow
// with the square of the depth. maxLevels bounds the depth of scopes, and the paths that
// one line of A2 makes.
const (
	maxPath   = 2 << 10
	maxLevels = 64
)

// pathKey is the key of a path: its text, or a hash of a text above maxPath.
func pathKey(full string) string {
	if len(full) <= maxPath {
		return full
	}
	return hashedPath(xxhash.Sum64String(full))
}

func hashedPath(hash uint64) string { return "#" + strconv.FormatUint(hash, 16) }

// child returns the path of name under parent (nil for the top), made if need be.
func (t *scopeTable) child(parent *path, name string) *path {
	if parent == nil {
		return t.pathOf(pathKey(name), nil, name)
	}
	if len(parent.full)+1+len(name) <= maxPath {
		return t.pathOf(parent.full+"|"+name, parent, name)
	}
	var h xxhash.Digest
	h.Reset()
	for _, part := range [...]string{parent.full, "|", name} {
		_, _ = h.WriteString(part)
	}
	return t.pathOf(hashedPath(h.Sum64()), parent, name)
}

func (t *scopeTable) pathOf(full string, parent *path, name string) *path {
	if p := t.paths[full]; p != nil {
		return p
	}
	p := &path{full: full, name: name, parent: parent}
	if parent != nil {
		parent.children++
	}
	t.paths[full] = p
	return p
}

// a2Path returns the path for a full name as A2 writes it.
func (t *scopeTable) a2Path(full string, name string) *path {
	if len(full) > maxPath {
		return t.pathOf(pathKey(full), nil, name)
	}
	return t.a2Level(full, name, maxLevels)
}

// a2Level makes a path and at most so many above it.
func (t *scopeTable) a2Level(full, name string, above int) *path {
	if p := t.paths[full]; p != nil {
		return p
	}
	var parent *path
	if cut := len(full) - len(name) - 1; above > 0 && cut > 0 && full[cut] == '|' {
		up := full[:cut]
		leaf := up[strings.LastIndexByte(up, '|')+1:]
		parent = t.a2Level(up, leaf, above-1)
	}
	return t.pathOf(full, parent, name)
}

// add enters a new instance. The parent is the youngest open one a level up.
func (t *scopeTable) add(x *scope) {
	x.seq = t.nextSeq
	t.nextSeq++
	x.open = true
	t.all = append(t.all, x)
	t.open = append(t.open, x)
	t.byNum[x.num] = x
	x.path.insts = append(x.path.insts, x)
}

// parentAt returns the youngest open instance at the given depth, nil if there is none.
func (t *scopeTable) parentAt(depth int64) *scope {
	for i := len(t.open) - 1; i >= 0; i-- {
		if t.open[i].depth == depth {
			return t.open[i]
		}
	}
	return nil
}

// close ends an instance.
func (t *scopeTable) close(x *scope, end int64) {
	x.open = false
	x.end = max(end, x.start)
	if i := slices.Index(t.open, x); i >= 0 {
		t.open = slices.Delete(t.open, i, i+1)
	}
}

// forget removes an instance from every index; instances that are its children keep their ids.
func (t *scopeTable) forget(x *scope) {
	delete(t.byNum, x.num)
	if x.open {
		if i := slices.Index(t.open, x); i >= 0 {
			t.open = slices.Delete(t.open, i, i+1)
		}
	}
	p := x.path
	if i := slices.Index(p.insts, x); i >= 0 {
		p.insts = slices.Delete(p.insts, i, i+1)
	}
	for p != nil && len(p.insts) == 0 && p.children == 0 {
		delete(t.paths, p.full)
		if p = p.parent; p != nil {
			p.children--
		}
	}
}

// sweep forgets the instances for which retired holds, and the oldest ended ones beyond limit, and
// hands each to done. It returns how many were dropped for the limit's sake.
func (t *scopeTable) sweep(limit int, retired func(*scope) bool, done func(*scope)) (dropped int) {
	over := len(t.all) - limit
	keep := t.all[:0]
	for _, x := range t.all {
		gone := retired(x)
		if !gone && over > 0 && !x.open {
			gone = true
			dropped++
		}
		if gone {
			over--
			t.forget(x)
			done(x)
			continue
		}
		keep = append(keep, x)
	}
	clear(t.all[len(keep):])
	t.all = keep
	t.sweepAt = min(2*len(keep)+256, limit+limit/4)
	return dropped
}

// containing returns the deepest instance that was open at t: the youngest begun before t, or the
// nearest of its ancestors that was still open. Instances of other threads that overlap it are
// looked for among the 64 begun before it.
func (t *scopeTable) containing(at int64) *scope {
	i := sort.Search(len(t.all), func(i int) bool { return t.all[i].start > at }) - 1
	for n := 0; i >= 0 && n < 64; i, n = i-1, n+1 {
		for x := t.all[i]; x != nil; x = x.parent {
			if x.contains(at) {
				return x
			}
		}
	}
	// A long-lived scope far back: only open ones and roots can be meant.
	for j := len(t.open) - 1; j >= 0; j-- {
		if t.open[j].contains(at) {
			return t.open[j]
		}
	}
	return nil
}

// launchedAt returns the instance of p in which a host call at time t was made.
func launchedAt(p *path, t int64) *scope {
	i := sort.Search(len(p.insts), func(i int) bool { return p.insts[i].start > t }) - 1
	if i < 0 {
		return nil
	}
	// Overlapping instances of one path come from several threads: prefer one that holds t.
	for j := i; j >= 0 && j > i-8; j-- {
		if p.insts[j].contains(t) {
			return p.insts[j]
		}
	}
	return p.insts[i]
}

// clockSlack is the longest time by which a device time may precede the host time of its cause. Device
// clocks are mapped to the wall clock once per session, and drift (format document, section 1.1).
const clockSlack = int64(5e6)

// queuedGap separates queued kernels from others. A queued kernel waited in its stream and starts right
// after its predecessor. Another kernel found the device idle and was launched just before its start.
// On an H200, a queued kernel starts about 2 µs after the end of its predecessor.
const queuedGap = int64(5e3)

// order finds the launching instance of kernels whose launch time is not recorded (batch formats). Only
// the path and the start on the device are known. A queued kernel starts long after its launch, when
// other instances of the same path have begun. The order of launches decides:
//
//   - A kernel that found the device idle was launched just before. It belongs to the latest instance
//     that began before its start.
//   - A queued kernel with another path than its predecessor was launched in the next instance of its
//     path, in the order of begins.
//   - A queued kernel with the same path stays in its predecessor's instance if other scopes that
//     launch kernels began in between. A scope does not count if kernels before and after it were seen
//     and it launched none.
//   - In a plain loop over one scope nothing distinguishes the iterations. The kernel then belongs to
//     the latest instance of that loop that began before its start.
type order struct {
	last    *scope
	lastEnd int64
}

func (o *order) pick(t *scopeTable, p *path, start, end int64) *scope {
	i := sort.Search(len(p.insts), func(i int) bool { return p.insts[i].start > start }) - 1
	if i < 0 {
		if len(p.insts) > 0 && p.insts[0].start-start <= clockSlack {
			return o.took(t, p, p.insts[0], end)
		}
		return nil
	}
	youngest := p.insts[i]
	queued := o.lastEnd != 0 && start-o.lastEnd < queuedGap
	if !queued || o.last == nil || youngest.seq <= o.last.seq {
		return o.took(t, p, youngest, end)
	}
	next := sort.Search(len(p.insts), func(i int) bool { return p.insts[i].seq > o.last.seq })
	if p != o.last.path {
		if p.insts[next].seq <= youngest.seq {
			return o.took(t, p, p.insts[next], end)
		}
		return o.took(t, p, youngest, end)
	}
	pick := o.last
	for ; next <= i; next++ {
		if t.launchesBetween(pick.seq, p.insts[next].seq) {
			break
		}
		pick = p.insts[next]
	}
	return o.took(t, p, pick, end)
}

func (o *order) took(t *scopeTable, p *path, x *scope, end int64) *scope {
	p.launched = true
	if o.last != nil && o.last != x {
		t.between(o.last.seq, x.seq, func(y *scope) bool {
			y.path.barren = !y.path.launched
			return true
		})
	}
	o.last = x
	o.lastEnd = max(o.lastEnd, end)
	return x
}

// launchesBetween reports whether an instance of a path that may launch began between two begins.
func (t *scopeTable) launchesBetween(after, before uint64) (found bool) {
	t.between(after, before, func(y *scope) bool {
		found = y.path.launched || !y.path.barren
		return !found
	})
	return found
}

// between hands the instances that began between two begins to each until it returns false, at
// most 64.
func (t *scopeTable) between(after, before uint64, each func(*scope) bool) {
	i := sort.Search(len(t.all), func(i int) bool { return t.all[i].seq > after })
	for n := 0; i < len(t.all) && t.all[i].seq < before && n < 64; i, n = i+1, n+1 {
		if !each(t.all[i]) {
			return
		}
	}
}
