// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package probe

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/fair"
)

// eventBytes is what an event takes in the ring, with the ring's own eight bytes.
const eventBytes = uint32(unsafe.Sizeof(traceEvent{})) + 8

// maxOwners bounds what is remembered of processes during a trace.
const maxOwners = 16384

// callsFactor is by how much all calls may be more than those of one process that is alone.
const callsFactor = 3

// maxPending bounds the calls that are not taken yet, as a number of full rings.
const maxPending = 4

// Bits of an event's has, as in trace.h.
const (
	hasStream  = 1
	hasBytes   = 2
	hasAddress = 4
)

// Trace hands out single calls for a while, with their times. Its programs are attached beside those of the sums,
// which are not changed by it. Its methods may be called by several goroutines, also after it has ended.
type Trace struct {
	probe   *Probe
	options TraceOptions
	timer   *time.Timer
	stop    sync.Mutex // held while it is being detached

	// The probe's mutex is for all of these.
	objects          *traceObjects // nil when it has ended
	stopping         bool          // nothing is attached to any more
	ring             *ringbuf.Reader
	entries, returns []link.Link
	clock            clock
	owners           map[runOf]owner
	raw              []traceEvent
	calls            []Call
	shares           *fair.Table[ProcessID]      // of calls, with those that were taken
	taken            map[uint32]*traceTraceShare // what the reader has read of the ring, by the user's index
	beyond           map[int32]uint64            // by process id, up to maxOwners of them
	losses           TraceLosses
}

// runOf is whose an event is; the run is 0 where the kernel had no room for one.
type runOf struct {
	run uint64
	pid uint32
}

type owner struct {
	id       ProcessID
	selected bool
}

// Trace begins to trace the processes that use a driver library, until the options' time is over or [Trace.Stop].
// There can be one at a time.
func (p *Probe) Trace(o TraceOptions) (*Trace, error) {
	if o.Duration <= 0 {
		return nil, fmt.Errorf("a trace of %v", o.Duration)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.objects == nil {
		return nil, errNotStarted
	}
	if p.trace != nil {
		return nil, errors.New("a trace is on already")
	}
	t := &Trace{
		probe: p, options: o.withDefaults(), owners: map[runOf]owner{}, clock: newClock(),
		shares: fair.New[ProcessID](callsFactor * o.MaxCalls), taken: map[uint32]*traceTraceShare{}, beyond: map[int32]uint64{},
	}
	if err := t.load(); err != nil {
		return nil, explain(err)
	}
	if err := t.attachKnown(); err != nil {
		return nil, errors.Join(explain(err), t.end())
	}
	p.trace, p.reader.beforeFree = t, t.drain
	t.timer = time.AfterFunc(o.Duration, func() { _ = t.Stop() }) // what could fail is freed by the kernel with the program
	return t, nil
}

func (t *Trace) load() error {
	spec, err := loadTrace()
	if err != nil {
		return err
	}
	for name, n := range map[string]uint32{
		"flights": t.options.MaxInFlight, "events": t.options.RingBytes, "processes": t.probe.options.MaxProcesses,
	} {
		spec.Maps[name].MaxEntries = n
	}
	variables := map[string]uint32{"max_flights": t.options.MaxInFlight, "max_events": t.options.RingBytes / eventBytes}
	for name, offset := range t.probe.offsets {
		if spec.Variables[name] != nil { // it does not read them all
			variables[name] = offset
		}
	}
	for name, n := range variables {
		if err := spec.Variables[name].Set(n); err != nil {
			return err
		}
	}
	if t.probe.multi {
		for _, s := range spec.Programs {
			s.AttachType = ebpf.AttachTraceUprobeMulti
		}
	}
	objects := &traceObjects{}
	shared := &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{"processes": t.probe.objects.Processes}}
	if err := spec.LoadAndAssign(objects, shared); err != nil {
		return err
	}
	t.objects = objects
	t.ring, err = ringbuf.NewReader(objects.Events)
	if err != nil {
		return errors.Join(err, t.end())
	}
	return nil
}

// attachKnown attaches to the driver libraries that the probe is attached to.
func (t *Trace) attachKnown() error {
	var errs error
	for _, a := range t.probe.libraries {
		if a.library == libcuda {
			errs = errors.Join(errs, t.attach(a))
		}
	}
	if errors.Is(errs, os.ErrPermission) {
		return errs
	}
	return nil // the other failures are counted
}

// attach puts the trace's probes on one library. Functions that would be slow are passed over; the probe has counted
// them.
func (t *Trace) attach(a *attachment) error {
	if t.stopping {
		return nil
	}
	index := functionsOf(libcuda)
	executable, err := a.executable()
	if err != nil {
		t.losses.AttachFailed++
		return err
	}
	o := t.objects
	programsOf := [programs]*ebpf.Program{
		progLaunch: o.Launch, progLaunchConfig: o.LaunchConfig, progGraphLaunch: o.GraphLaunch, progCopy: o.Copy,
		progBatch: o.CopyBatch, progSet: o.Set, progAlloc: o.Alloc, progFree: o.Release, progWait: o.Wait,
	}
	type target struct{ offsets, cookies []uint64 }
	entries, returns := map[*ebpf.Program]*target{}, &target{}
	seen := map[uint64]bool{}
	for _, fn := range a.found {
		i := index[fn.name]
		d := apiFunctions[i]
		_, stream, ok := traceFunction(d)
		if !ok || fn.slow || seen[fn.offset] {
			continue
		}
		seen[fn.offset] = true
		d.stream = stream
		for _, to := range []*target{get(entries, programsOf[d.program], target{}), returns} {
			to.offsets = append(to.offsets, fn.offset)
			to.cookies = append(to.cookies, d.cookie(i))
		}
	}
	if len(returns.offsets) == 0 {
		return nil
	}
	// Returns first: a return without its call is passed over, a call without its return is kept.
	links, errs := t.probe.attachAll(executable, o.Returned, true, returns.offsets, returns.cookies)
	t.returns = append(t.returns, links...)
	for program, to := range entries {
		links, err := t.probe.attachAll(executable, program, false, to.offsets, to.cookies)
		t.entries = append(t.entries, links...)
		errs = errors.Join(errs, err)
	}
	t.losses.AttachFailed += uint64(len(unwrap(errs)))
	return errs
}

// Take returns the calls that have returned since it was last called, those of a thread in the order in which they
// did. It reports false once the trace has ended and all were taken. More often than RingBytes are filled it needs
// to be called, or calls are lost, and counted.
func (t *Trace) Take() ([]Call, bool) {
	t.probe.mu.Lock()
	defer t.probe.mu.Unlock()
	t.drain()
	calls := t.calls
	t.calls = nil
	return calls, t.objects != nil
}

// Losses returns what is not among the calls up to now.
func (t *Trace) Losses() TraceLosses {
	t.probe.mu.Lock()
	defer t.probe.mu.Unlock()
	t.readLosses()
	return t.losses
}

// Stop detaches the trace, if its time was not over before. What had come until then can still be taken. Before
// Linux 6.6 it takes some seconds, in which calls are still traced, and may be taken by others.
func (t *Trace) Stop() error {
	t.stop.Lock()
	defer t.stop.Unlock()
	t.probe.mu.Lock()
	t.stopping = true
	entries, returns := t.entries, t.returns
	t.entries, t.returns = nil, nil
	t.probe.mu.Unlock()
	// The kernel takes its time for each link; nobody waits for the probe meanwhile.
	err := errors.Join(closeAll(&entries), closeAll(&returns))
	t.probe.mu.Lock()
	defer t.probe.mu.Unlock()
	return errors.Join(err, t.end())
}

// end frees what is left after Stop, or all. It may be called at any time, and twice.
func (t *Trace) end() error {
	if t.objects == nil {
		return nil
	}
	if t.timer != nil {
		t.timer.Stop()
	}
	errs := []error{closeAll(&t.entries), closeAll(&t.returns)}
	if t.ring != nil {
		t.read()
		t.readLosses()
		errs = append(errs, forEach(t.objects.Flights, 1, func(traceFlight, []traceEvent) { t.losses.Unfinished++ }), t.ring.Close())
	}
	errs = append(errs, t.objects.Close())
	t.objects = nil
	if t.probe.trace == t {
		t.probe.trace, t.probe.reader.beforeFree = nil, nil
	}
	return errors.Join(errs...)
}

// readLosses reads the kernel's counters.
func (t *Trace) readLosses() {
	if t.objects == nil {
		return
	}
	for i, to := range [traceTraceLossTRACE_LOSSES]*uint64{
		traceTraceLossTRACE_LOST_RING: &t.losses.RingFull, traceTraceLossTRACE_LOST_CALLS: &t.losses.InFlightFull,
	} {
		var each []uint64
		if t.objects.Lost.Lookup(uint32(i), &each) != nil {
			continue
		}
		*to = 0
		for _, n := range each {
			*to += n
		}
	}
	t.losses.Processes = nil
	for pid, calls := range t.beyond {
		t.losses.of(pid, calls)
	}
	// What cannot be read is in the sums above, which are read in the same way.
	_ = forEach(t.objects.Tracees, 1, func(pid uint32, v []traceTracee) {
		t.losses.of(int32(pid), v[0].Lost[traceTraceLossTRACE_LOST_RING]+v[0].Lost[traceTraceLossTRACE_LOST_CALLS])
	})
}

// tellTaken tells the kernel what was read of the ring.
func (t *Trace) tellTaken() {
	users := t.objects.Shares.MaxEntries() - 1
	all := get(t.taken, allUsers, traceTraceShare{})
	read := map[uint32]bool{allUsers: true}
	for i := range t.raw {
		user := 1 + t.raw[i].Uid%users
		all.Events++
		get(t.taken, user, traceTraceShare{}).Events++
		read[user] = true
	}
	all.Flights++ // counts drains
	for user := range read {
		// What fails leaves users with less room in the ring, in which calls are then lost, and counted.
		_ = t.objects.Taken.Put(user, t.taken[user])
	}
}

// drain makes calls of the events in the ring. The reader calls it before it forgets processes that have ended, so
// that the last calls of these have their names. While nobody takes calls it stops, and the ring fills up.
func (t *Trace) drain() {
	if len(t.calls) < maxPending*int(t.options.RingBytes/eventBytes) {
		t.read()
	}
}

func (t *Trace) read() {
	if t.objects == nil {
		return
	}
	t.raw = t.raw[:0]
	var record ringbuf.Record
	t.ring.SetDeadline(time.Unix(1, 0)) // in the past: read without waiting
	// No more than the ring holds, so that this ends, however fast others write.
	for n := t.options.RingBytes / eventBytes; n > 0 && t.ring.ReadInto(&record) == nil; n-- {
		if len(record.RawSample) < int(unsafe.Sizeof(traceEvent{})) {
			continue
		}
		t.raw = append(t.raw, traceEvent{})
		e := &t.raw[len(t.raw)-1]
		// Both sides' layout is that of trace.h; the bytes are copied, so alignment does not matter.
		copy(unsafe.Slice((*byte)(unsafe.Pointer(e)), unsafe.Sizeof(*e)), record.RawSample)
	}
	if len(t.raw) == 0 {
		return
	}
	t.tellTaken()
	t.probe.takeNames() // after the events: a kernel has its name before it is launched
	t.clock.measure()
	for i := range t.raw {
		e := &t.raw[i]
		from := t.owner(e)
		switch {
		case !from.selected:
		case !t.shares.Take(e.Uid, from.id):
			t.losses.Beyond++
			if _, ok := t.beyond[from.id.PID]; ok || len(t.beyond) < maxOwners {
				t.beyond[from.id.PID]++
			}
		default:
			t.calls = append(t.calls, t.call(e, from.id))
		}
	}
}

func (t *Trace) owner(e *traceEvent) owner {
	key := runOf{e.Run, e.Process}
	found, ok := t.owners[key]
	if ok {
		return found
	}
	found = owner{id: ProcessID{PID: int32(e.Process)}, selected: true}
	var run cudaRun
	var identity Identity
	if e.Run != 0 && t.probe.objects.Runs.Lookup(e.Run, &run) == nil {
		found.id, _ = t.probe.reader.identify(e.Run, run)
		identity = t.probe.reader.identity(e.Run)
	}
	if t.options.Select != nil {
		found.selected = t.options.Select(found.id, e.Uid, identity)
	}
	if len(t.owners) >= maxOwners {
		clear(t.owners)
	}
	t.owners[key] = found
	return found
}

func (t *Trace) call(e *traceEvent, id ProcessID) Call {
	c := Call{
		Process: id, User: e.Uid, Thread: int32(e.Thread), Function: functionName(e.Function),
		Start: t.clock.wall(e.Start), End: t.clock.wall(e.End), Code: e.Code, Handle: e.Handle,
		Stream: e.Stream, Bytes: e.Bytes, Address: e.Address,
		HasStream: e.Has&hasStream != 0, HasBytes: e.Has&hasBytes != 0, HasAddress: e.Has&hasAddress != 0,
	}
	if int(e.Function) >= len(apiFunctions) {
		return c
	}
	f := apiFunctions[e.Function]
	c.Kind, _, _ = traceFunction(f)
	switch c.Kind {
	case CallLaunch:
		c.Kernel = t.probe.reader.nameOf(e.Run, e.Handle)
		c.Grid, c.Block, c.SharedBytes = e.Grid, e.Block, e.Shared
	case CallCopy:
		c.CopyKind, c.Async = copyKinds[uint16(e.Kind)], f.flags&flagAsync != 0
	case CallAlloc:
		if int(e.Kind) < len(memoryKinds) {
			c.MemoryKind = memoryKinds[e.Kind]
		}
	}
	return c
}

// Launches returns how many kernels and graphs each process has launched that lives: what Snapshot has, without the
// processes that have ended, which stay for the next Snapshot.
func (p *Probe) Launches() (map[ProcessID]uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.objects == nil {
		return nil, errNotStarted
	}
	live, err := p.reader.collect(true)
	if err != nil {
		return nil, err
	}
	all := make(map[ProcessID]uint64, len(live))
	for i := range live {
		n := live[i].Graphs
		for _, l := range live[i].Launches {
			n += l.Calls
		}
		all[live[i].ID] = n
	}
	return all, nil
}
