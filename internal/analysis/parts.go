// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/internal/store"
)

// A long session is analysed in parts. The store keeps what a part gave: the carries before and after it,
// its tallies, and a key of the rows that it came from. The groups of a [Profile], which only comparisons
// need, are a value of their own. A later analysis takes the kept result if it arrives at the part with the
// same carries and the key is that of the present rows. Otherwise it sweeps over the rows again. So a kept
// result never changes an answer, whichever rows arrive late.
//
// Analyses of a whole session keep parts. Those of other intervals begin without a carry. They use kept
// parts from where they have the same carries, which is soon after their begin.

const (
	// partOps is the number of operations from which an interval is a part. A sweep over it takes 0.2 s.
	partOps = 1 << 18
	// partGrid is the unit of the bounds of parts, that of a level of the store.
	partGrid  = int64(1) << partShift
	partShift = 28
	// partVersion changes with the format of parts and with the rules of the analysis.
	partVersion = 10
)

// keeper is a source that keeps parts.
type keeper interface {
	Source
	// scan is Ops for an interval of about one part. Without places, rows have no PlaceRef.
	scan(ctx context.Context, from, to int64, places bool, visit func(*store.OpRow) error) error
	// partSize returns the number of operations of a part and the unit of its bounds, in ns.
	partSize() (ops, grid int64)
	// names returns the names of all kept values in order, and value one of them.
	names(ctx context.Context) ([]string, error)
	value(ctx context.Context, name string) ([]byte, error)
	// keep keeps a value, or forgets it if it is nil.
	keep(ctx context.Context, name string, value []byte) error
	// scopeSums calls visit with sums of the scopes that overlap an interval in units of the grid, by time.
	scopeSums(ctx context.Context, from, to int64, visit func(*store.ScopeSum) error) error
	// operations returns the number of operations of the session.
	operations(ctx context.Context) (int64, error)
	// counts calls visit with the number of operations that start in each unit of the grid, without empty ones,
	// by time. The bounds are on the grid.
	counts(ctx context.Context, from, to int64, visit func(*store.OpCount) error) error
}

// scanned is a source that scans. All intervals must be of about one part.
type scanned struct {
	keeper
	places bool
	ahead  *ahead // the scan of the interval, if it has begun
}

func (s scanned) Ops(ctx context.Context, from, to int64, visit func(*store.OpRow) error) error {
	if s.ahead != nil {
		s.ahead.visit <- visit
		return s.ahead.wait()
	}
	return s.scan(ctx, from, to, s.places, visit)
}

// scanned returns the source of the operations of part i, with places if groups need them.
func (a *analysis) scanned(k keeper, i int) scanned { return scanned{k, a.grouping, a.ahead[i]} }

// ahead is a scan that begins before its rows are needed. It holds a block of rows until it gets their visitor.
type ahead struct {
	visit chan func(*store.OpRow) error
	wait  func() error
}

func scanAhead(ctx context.Context, k keeper, from, to int64, places bool) *ahead {
	x := &ahead{visit: make(chan func(*store.OpRow) error, 1)}
	var visit func(*store.OpRow) error
	x.wait = start(func() error {
		return k.scan(ctx, from, to, places, func(row *store.OpRow) error {
			if visit == nil {
				select {
				case visit = <-x.visit:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return visit(row)
		})
	})
	return x
}

// start calls a function in a goroutine. The result waits for its end and returns its error.
func start(f func() error) (wait func() error) {
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = f()
	}()
	return func() error {
		<-done
		return err
	}
}

// plan finds the parts, and begins to scan those that the interval cuts, at most two.
func (a *analysis) plan(ctx context.Context, k keeper, first int64, o Options) (err error) {
	if a.parts, err = a.partsOf(ctx, k, a.from, a.to); err != nil {
		return err
	}
	if a.update == nil {
		a.ahead = map[int]*ahead{}
		for i, p := range a.parts {
			if p.from < a.from && a.from != first || p.to > a.to {
				a.ahead[i] = scanAhead(ctx, k, max(p.from, a.from), min(p.to, a.to), o.profile != nil)
			}
		}
	}
	a.scopeSums, err = sumScopes(ctx, k, a.parts)
	if err == nil && a.update == nil {
		a.kept = make(chan *keptPart, 8)
		go a.readAhead(ctx, k, first)
	}
	return err
}

// part is an interval of a session, on the grid.
type part struct {
	from, to int64
	ops      int64 // that start in it, when it was kept
	name     string
	counted  bool // an update has counted its time
}

func (p *part) named() string {
	return fmt.Sprintf("part-%016x-%016x-%x", uint64(p.from), uint64(p.to), uint64(p.ops))
}

func parsePart(name string) (p part, ok bool) {
	var from, to, ops uint64
	n, err := fmt.Sscanf(name, "part-%16x-%16x-%x", &from, &to, &ops)
	p = part{from: int64(from), to: int64(to), ops: int64(ops), name: name}
	return p, err == nil && n == 3 && p.named() == name && p.from >= 0 && p.to > p.from && p.to <= store.MaxTimeNs
}

// planParts divides an interval into parts with at least partOps operations each, and a rest. The bounds
// of the interval are on the grid.
func planParts(ctx context.Context, k keeper, from, to int64) (list []part, err error) {
	size, grid := k.partSize()
	open := part{from: from}
	err = k.counts(ctx, from, to, func(x *store.OpCount) error {
		if open.ops += x.Ops; open.ops >= size {
			open.to = x.FromNs + grid
			list = append(list, open)
			open = part{from: open.to}
		}
		return nil
	})
	if open.from < to {
		open.to = to
		list = append(list, open)
	}
	return list, err
}

// partsOf returns the parts that cover an interval: kept ones, and new ones between them. The first may begin
// before the interval. Their numbers of operations are the present ones. It forgets kept ones that overlap
// others.
func (a *analysis) partsOf(ctx context.Context, k keeper, from, to int64) (list []part, err error) {
	_, grid := k.partSize()
	from, to = from/grid*grid, (to+grid-1)/grid*grid
	names, err := k.names(ctx)
	if err != nil {
		return nil, err
	}
	var at int64 // the end of the last part
	plan := func(to int64) error {
		if at = max(at, from); at >= to {
			return nil
		}
		fresh, err := planParts(ctx, k, at, to)
		list = append(list, fresh...)
		return err
	}
	for _, name := range names {
		p, ok := parsePart(name)
		switch {
		case !ok || p.from >= to:
			continue
		case p.from < at || p.from%grid != 0 || p.to%grid != 0:
			// It overlaps another one, or another build kept it.
			if p.from < from {
				continue
			}
			if err := errors.Join(a.keep(ctx, k, name, nil), a.keep(ctx, k, p.groupsName(), nil)); err != nil {
				return nil, err
			}
			continue
		case p.to > from:
			// It may begin before the interval. With another first bound, the sums of scopes in the key of the next
			// part would differ.
			if err := plan(p.from); err != nil {
				return nil, err
			}
			list = append(list, p)
		}
		at = p.to
	}
	err = plan(to)
	if err == nil {
		err = a.countParts(ctx, k, list)
	}
	return list, err
}

// markersName is the kept value with the markers, after the begin of the session and the number of operations
// that they are of.
const markersName = "markers"

// keptMarkers is findMarkers for a source that keeps them.
func (a *analysis) keptMarkers(ctx context.Context, k keeper, first, last int64, deadline time.Time) (map[string]string, error) {
	list, err := a.partsOf(ctx, k, first, last)
	if err != nil {
		return nil, err
	}
	var ops int64
	i := slices.IndexFunc(list, func(p part) bool { ops += p.ops; return ops > maxPatternOps })
	if i >= 0 {
		list = list[:i+1]
		b, err := k.value(ctx, markersName)
		if err != nil {
			return nil, err
		}
		if c := openKept(b); c != nil {
			var from, of int64
			var markers map[string]string
			c.ints(&from, &of)
			entries(c, &markers, func(id, marker *string) { c.text(id); c.text(marker) })
			if c.in.OK() && from == first && of == ops {
				return markers, nil
			}
		}
	}
	p := patterns{a: a, deadline: deadline}
	for _, x := range list {
		if err = k.scan(ctx, max(x.from, first), min(x.to, last), false, func(row *store.OpRow) error {
			if row.StartNs < x.from {
				return nil // of the part before
			}
			return p.visit(row)
		}); err != nil {
			break
		}
	}
	markers, failed := p.markers(err)
	if failed == nil && errors.Is(err, errEnough) {
		c := newKept()
		c.ints(&first, &ops)
		entries(c, &markers, func(id, marker *string) { c.text(id); c.text(marker) })
		failed = a.keep(ctx, k, markersName, c.closed())
	}
	return markers, failed
}

// keep keeps a value, or forgets it. If that fails, for example because a disk is full, an analysis is right
// without it, and only an update fails.
func (a *analysis) keep(ctx context.Context, k keeper, name string, value []byte) error {
	if err := k.keep(ctx, name, value); err != nil && a.update != nil {
		return err
	}
	return nil
}

// newKept returns the codec of a value to keep. It begins with the version and ends with a checksum.
func newKept() *codec {
	c := &codec{}
	version := uint64(partVersion)
	c.uint(&version)
	return c
}

func (c *codec) closed() []byte {
	return binary.LittleEndian.AppendUint32(c.out, crc32.ChecksumIEEE(c.out))
}

// countedPart returns a kept part that an update has counted, for one that it has not. The mark follows the
// version.
func countedPart(b []byte) []byte {
	c := newKept()
	counted := true
	c.bools(&counted)
	c.out = append(c.out, partBody(b)...)
	return c.closed()
}

// partBody returns a kept part without the version, the mark and the checksum.
func partBody(b []byte) []byte { return b[len(newKept().out)+1 : len(b)-4] }

// openKept returns the codec of a kept value, nil if it is absent, damaged or of another version.
func openKept(b []byte) *codec {
	n := len(b) - 4
	if n < 0 || crc32.ChecksumIEEE(b[:n]) != binary.LittleEndian.Uint32(b[n:]) {
		return nil
	}
	c := reading(b[:n])
	var version uint64
	if c.uint(&version); version != partVersion {
		return nil
	}
	return c
}

// sweepParts sweeps over the interval of the analysis, and uses and keeps parts.
func (a *analysis) sweepParts(ctx context.Context, k keeper, first int64, o Options) error {
	size, _ := k.partSize()
	if err := a.planned(); err != nil {
		return err
	}
	a.tail = a.sweepTail(ctx, k, first, o)
	for i := range a.parts {
		p := &a.parts[i]
		begin := max(p.from, a.from)
		key := a.partKey(p)
		if a.usable(p, first) {
			used, err := a.use(ctx, k, p, key, o.profile != nil)
			if err != nil {
				return err
			}
			if used {
				a.reached = p.to
				continue
			}
		}
		if a.from != first || p.to > a.to || p.ops < size {
			sweep := func() error { return a.sweep(ctx, a.scanned(k, i), begin, min(p.to, a.to), o.Deadline) }
			tailed := a.tail != nil && i == len(a.parts)-1
			var err error
			switch {
			case tailed && bytes.Equal(a.tail.before, a.carries()):
				err = a.join(a.tail)
			case tailed: // in no update
				a.tail.stop()
				err = sweep()
			case a.update == nil || a.update.last:
				err = sweep()
			case i == len(a.parts)-1:
				return nil
			default: // it is part of the rest
				err = a.aside(true, sweep)
			}
			if err != nil {
				return err
			}
			continue
		}
		if err := a.sweepPart(ctx, k, p, i, key, begin, o); err != nil {
			return err
		}
	}
	return nil
}

// tail is a sweep over the last part, which the end of the interval cuts, beside those over the parts before. It begins
// with the carries after the kept part before it.
type tail struct {
	*analysis
	ahead  *ahead
	before []byte // carries
	wait   func() error
	stop   func()
}

// sweepTail begins the tail. It returns nil without such a part, and if groups are needed: their cells would differ.
func (a *analysis) sweepTail(ctx context.Context, k keeper, first int64, o Options) *tail {
	i := len(a.parts) - 1
	if a.ahead[i] == nil || i == 0 || !a.usable(&a.parts[i-1], first) || a.profile != nil && !a.profile.times {
		return nil
	}
	kept, t := readPart(ctx, k, a.parts[i-1].name), a.again(a.to)
	if kept.c == nil || !kept.c.in.OK() || !t.setCarries(kept.after) {
		return nil
	}
	t.shapes = map[uint32]*shapeInfo{}
	if a.grouping {
		p := *a.profile
		p.a, p.paths = t, p.paths.clone()
		t.profile, t.grouping = &p, true
	}
	ctx, stop := context.WithCancel(ctx)
	x := &tail{analysis: t, ahead: a.ahead[i], before: t.carries(), stop: stop}
	src := a.scanned(k, i)
	delete(a.ahead, i)
	x.wait = start(func() error { return t.sweep(ctx, src, a.parts[i].from, a.to, o.Deadline) })
	return x
}

// join adds the tail, whose carries before are those of the analysis.
func (a *analysis) join(t *tail) error {
	err := t.wait()
	a.reached = t.reached
	a.counts.add(&t.counts)
	for _, x := range t.order {
		d := a.devices[x.id]
		if d == nil {
			d = a.newDevice(x.id, x.model, x.index)
		}
		d.carry = x.carry
		d.steps.base = d.steps.base.shift(&mark{sums: d.sums, pageable: d.pageable})
		d.merge(&x.tally)
	}
	if a.grouping {
		a.profile.many = a.profile.many || t.profile.many
	}
	return err
}

// countParts sets the present numbers of operations of kept parts. If the session has as many operations
// as the parts and what follows, no part has changed.
func (a *analysis) countParts(ctx context.Context, k keeper, list []part) error {
	if !slices.ContainsFunc(list, func(p part) bool { return p.name != "" }) {
		return nil
	}
	var sum int64
	for i := range list {
		sum += list[i].ops
	}
	all, err := k.operations(ctx)
	if err != nil {
		return err
	}
	if sum == all {
		return nil
	}
	for i := range list {
		list[i].ops = 0
	}
	i := 0
	return k.counts(ctx, list[0].from, list[len(list)-1].to, func(x *store.OpCount) error {
		for x.FromNs >= list[i].to {
			i++
		}
		list[i].ops += x.Ops
		return nil
	})
}

// partKey returns the key of what a part depends on besides its operations and the carries: the rule of
// steps, and the scopes that its gaps and steps can need.
func (a *analysis) partKey(p *part) string {
	from := p.from // of the scopes
	for _, d := range a.order {
		from = min(from, d.now)
		if s := &d.steps; s.next < len(s.bounds) {
			from = min(from, s.bounds[s.next].StartNs)
		}
	}
	var last int64 // the end of the last step, if none begins later
	if n := len(a.steps); n > 0 && a.steps[n-1].StartNs < p.to {
		last = a.steps[n-1].EndNs
	}
	rule := a.rule
	for _, id := range slices.Sorted(maps.Keys(a.markers)) {
		rule += "\x00" + id + "\x00" + a.markers[id]
	}
	return fmt.Sprintf("%d %x %d %s", p.ops, a.scopeSums.of(from, p.to), last, rule)
}

// scopeSums has, for each bound of parts in order, the exclusive or of the hashes of the scopes that start,
// and that end, before it.
type scopeSums []store.ScopeSum

// sumScopes returns the sums for parts that follow one another.
func sumScopes(ctx context.Context, k keeper, list []part) (sums scopeSums, err error) {
	at := store.ScopeSum{FromNs: list[0].from}
	next := func() { // adds the sums before a bound
		sums = append(sums, at)
		if n := len(sums); n <= len(list) {
			at.FromNs = list[n-1].to
		}
	}
	err = k.scopeSums(ctx, list[0].from, list[len(list)-1].to, func(x *store.ScopeSum) error {
		for len(sums) <= len(list) && at.FromNs <= x.FromNs {
			next()
		}
		at.Starts ^= x.Starts
		at.Ends ^= x.Ends
		return nil
	})
	for len(sums) <= len(list) {
		next()
	}
	return sums, err
}

// of returns the sum of the scopes that start before a bound and end at or after the last bound up to from.
func (s scopeSums) of(from, bound int64) uint64 {
	before := func(t int64) *store.ScopeSum {
		i, ok := slices.BinarySearchFunc(s, t, func(x store.ScopeSum, t int64) int { return cmp.Compare(x.FromNs, t) })
		if !ok {
			i = max(i-1, 0)
		}
		return &s[i]
	}
	return before(bound).Starts ^ before(from).Ends
}

// keptPart is a kept part that is read up to its tallies.
type keptPart struct {
	value         []byte
	c             *codec // nil if there is none
	counted       bool
	key           string
	before, after []byte
	from          int64
	counts        counts
	all           map[string]*tally // by device, nil if they are not read yet
	err           error             // of the store
}

func readPart(ctx context.Context, k keeper, name string) *keptPart {
	x := &keptPart{}
	x.value, x.err = k.value(ctx, name)
	x.c = openKept(x.value)
	if x.c != nil {
		x.c.bools(&x.counted)
		x.c.text(&x.key)
		x.c.sized(&x.before)
		x.c.sized(&x.after)
		x.c.ints(&x.from, &x.counts.operations, &x.counts.known, &x.counts.unknown, &x.counts.lastEnd)
	}
	return x
}

// tallies reads the tallies. It returns nil if they are damaged.
func (x *keptPart) tallies() map[string]*tally {
	if c := x.c; x.all == nil && c != nil && c.in.OK() {
		all := map[string]*tally{}
		var devices uint64
		c.uint(&devices)
		for range min(devices, uint64(len(x.value))) {
			var id string
			t := &tally{}
			c.text(&id)
			c.tally(t)
			all[id] = t
		}
		if c.in.OK() && len(c.in.Rest) == 0 {
			x.all = all
		}
	}
	return x.all
}

// readAhead reads the kept parts of the interval in order, a few of them before they are needed.
func (a *analysis) readAhead(ctx context.Context, k keeper, first int64) {
	defer close(a.kept)
	for i := range a.parts {
		if p := &a.parts[i]; a.usable(p, first) {
			x := readPart(ctx, k, p.name)
			x.tallies()
			select {
			case a.kept <- x:
			case <-ctx.Done():
				return
			}
		}
	}
}

// usable says whether a part is kept and whole in the interval.
func (a *analysis) usable(p *part, first int64) bool {
	return (p.from >= a.from || a.from == first) && p.to <= a.to && p.name != ""
}

// use adds a kept part and returns true, or false if it is not of these rows or has no groups that are needed.
func (a *analysis) use(ctx context.Context, k keeper, p *part, key string, grouping bool) (bool, error) {
	var x *keptPart
	if a.kept != nil {
		x = <-a.kept
	}
	if x == nil {
		x = readPart(ctx, k, p.name)
	}
	if p.counted = x.c == nil; x.err != nil || p.counted {
		return false, x.err
	}
	p.counted = x.counted
	if !x.c.in.OK() || x.key != key || !bytes.Equal(x.before, a.carries()) {
		return false, nil
	}
	if x.counts.lastEnd > a.to {
		return false, nil // the interval cuts an operation
	}
	if a.update != nil && p.counted {
		return a.setCarries(x.after), nil
	}
	tallies := x.tallies()
	if tallies == nil {
		return false, nil
	}
	for id := range tallies {
		if a.update == nil && a.devices[id] == nil && x.from != a.from {
			return false, nil // its idle time begins with the interval
		}
	}
	if grouping {
		if ok, err := a.useGroups(ctx, k, p, x.value, tallies); err != nil || !ok {
			return false, err
		}
	}
	if !a.setCarries(x.after) {
		return false, nil
	}
	if a.update != nil { // an analysis kept it
		for id, t := range tallies {
			a.update.addTally(id, t)
		}
		return true, k.keep(ctx, p.name, countedPart(x.value))
	}
	a.counts.add(&x.counts)
	for _, d := range a.order {
		if t := tallies[d.id]; t != nil {
			d.merge(t)
		}
		d.steps.base = d.steps.base.shift(&mark{sums: d.sums, pageable: d.pageable}) // relative to the end of the part
	}
	return true, nil
}

func (n *counts) add(o *counts) {
	n.operations += o.operations
	n.known += o.known
	n.unknown += o.unknown
	n.lastEnd = max(n.lastEnd, o.lastEnd)
}

// sweepPart sweeps over part i of a session and keeps the result.
func (a *analysis) sweepPart(ctx context.Context, k keeper, p *part, i int, key string, begin int64, o Options) error {
	before := a.carries()
	if a.profile == nil {
		a.profile = &profiler{}
		a.profile.begin(a)
	}
	times := a.profile.times
	a.profile.earliest, a.profile.times, a.grouping = p.from, false, true // groups are kept too
	defer func() { a.profile.times, a.grouping = times, o.profile != nil }()
	return a.aside(p.counted, func() error {
		if err := a.sweep(ctx, a.scanned(k, i), begin, p.to, o.Deadline); err != nil {
			return err
		}
		c := newKept()
		devices := uint64(len(a.order))
		counted := p.counted || a.update != nil
		c.bools(&counted)
		c.text(&key)
		after := a.carries()
		c.sized(&before)
		c.sized(&after)
		c.ints(&a.from, &a.operations, &a.known, &a.unknown, &a.lastEnd)
		c.uint(&devices)
		for _, d := range a.order {
			c.text(&d.id)
			t := d.tally
			c.tally(&t)
		}
		kept := part{from: p.from, to: p.to, ops: p.ops}
		if name := kept.named(); p.name != "" && p.name != name {
			if err := a.keep(ctx, k, p.name, nil); err != nil {
				return err
			}
		}
		b := c.closed()
		if err := a.keep(ctx, k, p.groupsName(), a.keptGroups(p, i, b)); err != nil {
			return err
		}
		return a.keep(ctx, k, kept.named(), b)
	})
}

// groupsName is the name of the kept groups of a part.
func (p *part) groupsName() string { return fmt.Sprintf("groups-%016x", uint64(p.from)) }

// keptGroups bounds the groups of all devices after the sweep over part i, and returns what to keep of them.
func (a *analysis) keptGroups(p *part, i int, part []byte) []byte {
	c := newKept()
	of := uint64(crc32.ChecksumIEEE(partBody(part)))
	scopes := a.scopeSums.of(a.profile.earliest, p.to)
	c.uint(&of)
	c.bools(&a.profile.more)
	c.ints(&a.profile.earliest)
	c.uint(&scopes)
	all := map[string]*groups{}
	for _, d := range a.order {
		if d.groups != nil {
			d.groups.bound(d.list.found(), cellsOf(i))
			all[d.id] = d.groups
		}
	}
	c.allGroups(&all)
	return c.closed()
}

// useGroups adds the kept groups of a part to its tallies. It returns false if there are none, or if a scope of
// the launches has arrived later.
func (a *analysis) useGroups(ctx context.Context, k keeper, p *part, part []byte, tallies map[string]*tally) (bool, error) {
	b, err := k.value(ctx, p.groupsName())
	c := openKept(b)
	if err != nil || c == nil {
		return false, err
	}
	var of, scopes uint64
	var more bool
	var earliest int64
	c.uint(&of)
	c.bools(&more)
	c.ints(&earliest)
	c.uint(&scopes)
	if of != uint64(crc32.ChecksumIEEE(partBody(part))) || scopes != a.scopeSums.of(earliest, p.to) {
		return false, nil
	}
	var all map[string]*groups
	if c.allGroups(&all); !c.in.OK() || len(c.in.Rest) > 0 {
		return false, nil
	}
	a.profile.many = a.profile.many || more
	for id, g := range all {
		if t := tallies[id]; t != nil {
			if t.groups = g; a.profile.times {
				clear(g.all[:])
			}
		}
	}
	return true, nil
}

// aside runs a sweep whose tallies begin at 0, and adds them afterwards: to the update unless they are
// counted, or to the analysis.
func (a *analysis) aside(counted bool, sweep func() error) error {
	total, sum := map[*device]tally{}, a.counts
	for _, d := range a.order {
		d.steps.base = d.relativeBase()
		total[d], d.tally = d.tally, tally{}
	}
	a.counts = counts{}
	err := sweep()
	a.counts.add(&sum)
	for _, d := range a.order {
		t := d.tally
		if d.tally = total[d]; a.update != nil {
			if err == nil && !counted {
				a.update.addTally(d.id, &t)
			}
			d.steps.base = d.relativeTo(&t)
			continue
		}
		d.steps.base = d.steps.base.shift(&mark{sums: d.sums, pageable: d.pageable})
		d.merge(&t)
	}
	return err
}

// relativeBase returns the begin of the open step with sums that begin now.
func (d *device) relativeBase() mark { return d.relativeTo(&d.tally) }

func (d *device) relativeTo(t *tally) mark {
	zero := Parts{}
	return d.steps.base.shift(&mark{sums: zero.minus(&t.sums), pageable: -t.pageable})
}

// carries returns the carries of all devices.
func (a *analysis) carries() []byte {
	c := &codec{}
	devices := slices.SortedFunc(slices.Values(a.order), func(x, y *device) int { return strings.Compare(x.id, y.id) })
	elements(c, &devices, func(p **device) {
		d := *p
		id, model, index := d.id, d.model, d.index
		c.text(&id)
		c.text(&model)
		c.maybe(&index)
		x := d.carry
		x.steps.base = d.relativeBase()
		x.normalize()
		c.carry(&x)
	})
	contexts := map[int64]string{}
	for context, d := range a.contexts {
		contexts[context] = d.id
	}
	entries(c, &contexts, func(context *int64, id *string) { c.ints(context); c.text(id) })
	return c.out
}

// setCarries sets the carries of all devices. Their marks are relative.
func (a *analysis) setCarries(b []byte) bool {
	c := reading(b)
	type carried struct {
		id, model string
		index     store.Int
		carry     carry
	}
	var devices []carried
	elements(c, &devices, func(x *carried) {
		c.text(&x.id)
		c.text(&x.model)
		c.maybe(&x.index)
		x.carry.steps = a.stepperOf(x.id)
		c.carry(&x.carry)
	})
	var contexts map[int64]string
	entries(c, &contexts, func(context *int64, id *string) { c.ints(context); c.text(id) })
	if !c.in.OK() {
		return false
	}
	for i := range devices {
		x := &devices[i]
		d := a.devices[x.id]
		if d == nil {
			d = a.newDevice(x.id, x.model, x.index)
		}
		d.carry = x.carry
	}
	for context, id := range contexts {
		if d := a.devices[id]; d != nil {
			a.contexts[context] = d
		}
	}
	return true
}

// normalize removes what has no effect on later operations, so that equal carries are often equal bytes.
func (d *carry) normalize() {
	busy := max(d.ends[0], d.ends[1], d.ends[2])
	for c, end := range d.ends {
		if end <= d.now && end < busy {
			d.ends[c], d.endRefs[c] = 0, Ref{}
		}
		if end <= d.now {
			d.endRefs[c] = Ref{}
		}
	}
	if d.ends[classCopy] <= d.now {
		d.page = false
	}
}
