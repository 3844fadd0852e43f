// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpuflight/gpuflight/internal/store"
)

// PathKind is what a part of a critical path is. The first kinds are the causes, by the same numbers.
type PathKind uint8

// Kinds of parts that are no cause.
const (
	PathCompute PathKind = PathKind(numCauses) + iota
	PathCommunication
	PathCopy
	// PathRemote is time of a call to another service that no span of this service covers.
	PathRemote

	numPathKinds
)

// String returns the name of the kind in JSON.
func (k PathKind) String() string {
	switch k {
	case PathCompute:
		return "compute"
	case PathCommunication:
		return "communication"
	case PathCopy:
		return "copy"
	case PathRemote:
		return "remote"
	}
	return Cause(k).String()
}

// Text returns the kind as a phrase.
func (k PathKind) Text() string {
	switch k {
	case PathCompute:
		return "compute: a kernel ran"
	case PathCommunication:
		return "communication: a kernel of NCCL ran"
	case PathCopy:
		return "copy: a copy or a set ran"
	case PathRemote:
		return "remote: a call to another service, outside its spans"
	}
	return Cause(k).Text()
}

// MarshalText returns the name.
func (k PathKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads the name.
func (k *PathKind) UnmarshalText(text []byte) error {
	for i := range numPathKinds {
		if i.String() == string(text) {
			*k = i
			return nil
		}
	}
	return fmt.Errorf("kind %q is unknown", text)
}

// PathPart is a part of a critical path, [StartNs, EndNs).
type PathPart struct {
	StartNs, EndNs int64
	Kind           PathKind
	// Name is the kernel or copy, the call of the host, or the scope or span around the host's code; ""
	// outside all scopes.
	Name string
	// Spans are the operation itself. For a launch, latency or queue it is the operation that was launched.
	// For a wait it is the wait and the operation that ended it, for code of the host its scope or span.
	Spans []Ref
	// Session is that of the part, Device and Stream are of operations.
	Session, Device string
	Stream          store.Int
	// Assumed says that no record proves the order: launch times or waits of the host are missing.
	Assumed bool
}

// CriticalPath is the chain of parts that determined how long a step or a request took. Its parts are a
// partition of [FromNs, ToNs), in the order of time.
type CriticalPath struct {
	FromNs, ToNs int64
	Parts        []PathPart
	// Sums is nanoseconds by kind. They sum to ToNs - FromNs.
	Sums [numPathKinds]int64
	// Missing is what is missing of the session with the largest share, nil if of none. Parts of such a session
	// are assumed, and those without work of a device have the kind unknown.
	Missing *Missing
}

// maxPathOps bounds the operations that a path considers, about 200 bytes each.
const maxPathOps = 200_000

// ErrPathTooLong says that an interval has more operations than a path considers.
var ErrPathTooLong = errors.New("the interval has more than 200,000 operations: choose a shorter one")

// AnyDevice is a device that an operation cannot have.
const AnyDevice = "\x00"

// StepPath returns the critical path of a step of a device: why [from, to) was not shorter. The device
// is Lane.Device. AnyDevice is the one on which an operation starts at to, or else ended last.
// docs/internals/critical-path.md has the rules.
func StepPath(ctx context.Context, src Source, from, to int64, device string) (*CriticalPath, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w := &walker{from: from}
	var scopes []Scope
	var missing *Missing
	read := func() (err error) {
		if scopes, _, err = src.Scopes(ctx, from, to, maxScopes); err == nil {
			missing, err = MissingWork(ctx, src)
		}
		return err
	}
	if _, ok := src.(keeper); ok { // a store, which answers at the same time
		read = start(read)
	}
	// The operation that begins the next step starts at to.
	err := w.read(ctx, withoutPlaces(src), from, to+1)
	if err == nil {
		w.prepare()
		w.step(to, device)
	} else {
		stop()
	}
	if failed := read(); cmp.Or(err, failed) != nil {
		return nil, cmp.Or(err, failed)
	}
	slices.Reverse(w.parts)
	cursor := scopeCursor{list: scopes}
	for i := range w.parts {
		p := &w.parts[i]
		if len(p.Spans) == 0 {
			if s, ok := cursor.at(p.StartNs + (p.EndNs-p.StartNs)/2); ok {
				p.Spans = []Ref{{s.Span, s.StartNs, s.Name}}
				p.Name = cmp.Or(p.Name, s.Name)
			}
		}
	}
	if missing != nil {
		assume(w.parts)
	}
	c := newPath(from, to, w.parts)
	c.Missing = missing
	return c, nil
}

// assume marks parts of a session that lacks work. A device can have worked at the time of the other parts.
func assume(parts []PathPart) {
	for i := range parts {
		p := &parts[i]
		p.Assumed = true
		if p.Kind < PathCompute {
			p.Kind = PathKind(Unknown)
		}
	}
}

func newPath(from, to int64, parts []PathPart) *CriticalPath {
	c := &CriticalPath{FromNs: from, ToNs: to, Parts: parts}
	for i := range parts {
		c.Sums[parts[i].Kind] += parts[i].EndNs - parts[i].StartNs
	}
	return c
}

// pathOp is an operation of a device.
type pathOp struct {
	start, end             int64
	launched               bool
	launchStart, launchEnd int64
	kind                   PathKind
	fromHost, toHost       bool
	pageable               bool
	ref                    Ref
	device                 string
	stream                 store.Int
}

// pathCall is a call of the host. Op is the operation that it launched, -1 for others.
type pathCall struct {
	start, end int64
	cause      Cause
	name       string
	ref        Ref
	op         int
}

// walker goes back from the end of an interval to its begin.
type walker struct {
	session string
	from    int64
	ops     []pathOp // by start
	byEnd   []int    // indices of operations that last, by end
	calls   []pathCall
	// unknown are starts of operations without launch times, and ends of such copies, whose calls may return
	// then. They are sorted.
	unknown []int64
	parts   []PathPart // the last one first
}

// read adds the operations and calls that overlap an interval.
func (w *walker) read(ctx context.Context, src Source, from, to int64) error {
	shapes := map[*store.Shape]shapeInfo{}
	return src.Ops(ctx, from, to, func(row *store.OpRow) error {
		if len(w.ops)+len(w.calls) >= maxPathOps {
			return ErrPathTooLong
		}
		info, ok := shapes[row.ShapeRef]
		if !ok {
			info = infoOf(row.ShapeRef)
			if len(shapes) < maxShapes {
				shapes[row.ShapeRef] = info
			}
		}
		w.add(row, &info)
		return nil
	})
}

func (w *walker) add(row *store.OpRow, info *shapeInfo) {
	ref := Ref{row.Span, row.StartNs, info.name}
	op := row.ShapeRef.Operation
	known := launchKnown(row)
	if !onDevice(op) {
		c := pathCall{start: row.StartNs, end: row.EndNs, cause: Sync, name: info.name, ref: ref, op: -1}
		switch {
		case op == store.OpSync && info.name == streamWait:
			return // a wait of a stream, not of the host
		case op != store.OpSync && !known:
			return
		case op != store.OpSync:
			c.cause, c.start, c.end = Allocator, row.LaunchStartNs.V, row.LaunchEndNs.V
		}
		if c.end > c.start {
			w.calls = append(w.calls, c)
		}
		return
	}
	o := pathOp{
		start: row.StartNs, end: max(row.StartNs, row.EndNs), kind: PathCompute + PathKind(info.class), fromHost: info.fromHost, toHost: info.toHost,
		pageable: info.pageable, ref: ref, device: row.LaneRef.Device, stream: row.LaneRef.Stream,
	}
	if known {
		o.launched, o.launchStart, o.launchEnd = true, row.LaunchStartNs.V, max(row.LaunchStartNs.V, row.LaunchEndNs.V)
	}
	w.ops = append(w.ops, o)
}

// prepare sorts what has been added.
func (w *walker) prepare() {
	w.byEnd, w.calls = make([]int, 0, len(w.ops)), slices.Grow(w.calls, len(w.ops))
	w.parts = make([]PathPart, 0, min(2*len(w.ops), 1<<14)) // often a launch, or the time before it, and the operation
	for i := range w.ops {
		o := &w.ops[i]
		if o.end > o.start {
			w.byEnd = append(w.byEnd, i)
		}
		if !o.launched {
			w.unknown = append(w.unknown, o.start)
			if o.kind == PathCopy {
				w.unknown = append(w.unknown, o.end)
			}
		}
		if !o.launched || o.launchEnd <= o.launchStart {
			continue
		}
		c := pathCall{start: o.launchStart, end: o.launchEnd, cause: Launch, ref: o.ref, name: o.ref.Name, op: i}
		switch {
		case o.kind == PathCopy && o.launchEnd >= o.end: // the call returned after the copy
			c.cause = CopyCall
			if o.toHost {
				c.cause = Sync
			}
		case o.kind == PathCopy && o.fromHost && o.pageable:
			c.cause = CopyCall
		case o.launchEnd-o.launchStart > SlowLaunchNs:
			c.cause = SlowLaunch
		}
		w.calls = append(w.calls, c)
	}
	slices.SortStableFunc(w.byEnd, func(a, b int) int {
		return cmp.Or(cmp.Compare(w.ops[a].end, w.ops[b].end), cmp.Compare(w.ops[a].start, w.ops[b].start))
	})
	slices.Sort(w.unknown)
	slices.SortStableFunc(w.calls, func(a, b pathCall) int {
		return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.start, b.start))
	})
}

// put adds the part [a, b), if it is not before the interval.
func (w *walker) put(a, b int64, p PathPart) {
	a = max(a, w.from)
	if a < b {
		p.StartNs, p.EndNs, p.Session = a, b, w.session
		w.parts = append(w.parts, p)
	}
}

func (o *pathOp) part(kind PathKind) PathPart {
	return PathPart{Kind: kind, Name: o.ref.Name, Spans: []Ref{o.ref}, Device: o.device, Stream: o.stream}
}

// blocks says that an operation is a copy of memory of the host whose call waited for the work before the copy.
func (o *pathOp) blocks() bool {
	return (o.fromHost || o.toHost) && o.launchEnd > o.start && (o.pageable || o.launchEnd >= o.end)
}

// ended returns the last operation that started before t and ended by t, nil if there is none. It
// prefers those of the device, and of the stream, of an operation if their end is close enough.
func (w *walker) ended(t int64, of *pathOp) *pathOp {
	n, _ := slices.BinarySearchFunc(w.byEnd, t+1, func(i int, t int64) int { return cmp.Compare(w.ops[i].end, t) })
	const considered = 64
	var last, device, stream *pathOp
	for i := n - 1; i >= 0 && i >= n-considered; i-- {
		o := &w.ops[w.byEnd[i]]
		if o.start >= t || o.end <= w.from {
			continue
		}
		if last == nil {
			last = o
		}
		if of == nil || o.end < t-LatencyNs {
			break
		}
		if device == nil && o.device == of.device {
			device = o
		}
		if o.device == of.device && o.stream == of.stream {
			stream = o
			break
		}
	}
	return cmp.Or(stream, device, last)
}

// step goes back from the end of a step of a device.
func (w *walker) step(to int64, device string) {
	var next, running *pathOp
	if device == AnyDevice {
		device = ""
		if o := w.ended(to, nil); o != nil {
			device = o.device
		}
		for i := range w.ops {
			if w.ops[i].start == to {
				device = w.ops[i].device
				break
			}
		}
	}
	for i := range w.ops {
		switch o := &w.ops[i]; {
		case o.device != device:
		case o.start == to && next == nil:
			next = o
		case o.start < to && o.end > to && running == nil:
			running = o
		}
	}
	switch {
	case next != nil:
		w.device(next, to)
	case running != nil:
		w.run(running, to)
	default:
		if o := w.ended(to, &pathOp{device: device}); o != nil {
			w.put(o.end, to, PathPart{Kind: PathKind(NothingQueued), Device: device})
			w.run(o, o.end)
			return
		}
		w.put(w.from, to, PathPart{Kind: PathKind(NothingQueued), Device: device})
	}
}

// run adds an operation up to t, and goes on before it.
func (w *walker) run(o *pathOp, t int64) {
	for o != nil && t > w.from {
		w.put(o.start, t, o.part(o.kind))
		o, t = w.before(o, min(t, o.start))
	}
}

// device goes on before an operation that starts at t.
func (w *walker) device(o *pathOp, t int64) { w.run(w.before(o, t)) }

// before adds what an operation that starts at t waited for, and returns the operation that ended before
// it, with its end. It returns nil after it has gone on at the host.
func (w *walker) before(o *pathOp, t int64) (*pathOp, int64) {
	if t <= w.from {
		return nil, t
	}
	p := w.ended(t, o)
	end := w.from
	if p != nil {
		end = p.end
	}
	if !o.launched {
		gap := o.part(PathKind(Unknown))
		gap.Assumed = true
		w.put(end, t, gap)
		return p, end
	}
	launchEnd := min(o.launchEnd, t)
	if p != nil && end >= launchEnd {
		w.wait(o, end, t)
		return p, end
	}
	if p != nil && p.device == o.device && end > o.launchStart && o.blocks() {
		if o.fromHost { // the call copied to pinned memory first
			w.put(end, t, o.part(PathKind(CopyCall)))
		} else {
			w.wait(o, end, t)
		}
		return p, end
	}
	w.wait(o, max(launchEnd, w.from), t)
	if launchEnd <= w.from {
		return nil, t
	}
	launchStart := min(o.launchStart, launchEnd)
	kind := PathKind(Launch)
	switch {
	case o.kind == PathCopy && o.fromHost && o.pageable:
		kind = PathKind(CopyCall)
	case launchEnd-launchStart > SlowLaunchNs:
		kind = PathKind(SlowLaunch)
	}
	w.put(launchStart, launchEnd, o.part(kind))
	return w.host(launchStart, true)
}

// wait adds the time between what an operation waited for and its start.
func (w *walker) wait(o *pathOp, a, t int64) {
	latency := max(a, t-LatencyNs)
	w.put(latency, t, o.part(PathKind(Latency)))
	w.put(a, latency, o.part(PathKind(Queued)))
}

// host goes back from a time of the host. It returns an operation that the host waited for, with its
// end, or nil at the begin of the interval. Launching says that the host launches next.
func (w *walker) host(t int64, launching bool) (*pathOp, int64) {
	if len(w.calls) == 0 { // nothing is known of the host: it waited for what ended last
		if o := w.ended(t, nil); o != nil {
			w.put(o.end, t, PathPart{Kind: PathKind(Host), Assumed: true})
			return o, o.end
		}
		w.put(w.from, t, PathPart{Kind: PathKind(Host)})
		return nil, t
	}
	n, _ := slices.BinarySearchFunc(w.calls, t+1, func(c pathCall, t int64) int { return cmp.Compare(c.end, t) })
	for t > w.from {
		n--
		for n >= 0 && w.calls[n].start >= t {
			n--
		}
		if n < 0 {
			break
		}
		c := &w.calls[n]
		end := min(c.end, t)
		w.other(end, t, launching)
		if end <= w.from {
			return nil, end
		}
		part := PathPart{Kind: PathKind(c.cause), Name: c.name, Spans: []Ref{c.ref}}
		if c.cause == Sync || c.cause == CopyCall {
			o := w.ended(end, nil)
			if c.op >= 0 && w.ops[c.op].end > w.ops[c.op].start && w.ops[c.op].start < end { // it may end after the call
				o = &w.ops[c.op]
			}
			if o != nil && o.end > c.start {
				done := min(o.end, end)
				part.Spans = append(part.Spans, o.ref)
				w.put(done, end, part)
				return o, done
			}
		}
		w.put(c.start, end, part)
		t, launching = c.start, true
	}
	w.other(w.from, t, false)
	return nil, t
}

// other adds the time of the host from the end of a known call to t, at which it launches or not. If it
// launched at unknown times in between, nothing is known of the host up to the last of them.
func (w *walker) other(end, t int64, launching bool) {
	near := func(call int64) bool { return launching && t-call <= LaunchGapNs }
	known, kind := end, PathKind(Host)
	if near(end) {
		kind = PathKind(Launch)
	} else if n, _ := slices.BinarySearch(w.unknown, t); n > 0 && w.unknown[n-1] > end {
		if known = w.unknown[n-1]; near(known) { // launch or host
			known = t
		}
	}
	w.put(known, t, PathPart{Kind: kind})
	w.put(end, known, PathPart{Kind: PathKind(Unknown), Assumed: true})
}
