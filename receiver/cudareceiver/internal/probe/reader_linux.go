// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package probe

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/cilium/ebpf"

	"github.com/gpuflight/gpuflight/internal/procfs"
)

const (
	tick          = procfs.TickNanoseconds
	stateEnded    = uint32(1)
	maxKeptLines  = 4096 // of one process's earlier programs
	nameTextStart = 24
)

// reader turns the maps into Snapshots. Only one goroutine may use it at a time.
type reader struct {
	objects *cudaObjects
	cpus    int
	proc    string
	options Options

	names   map[uint64]map[uint64]kernelName // by run and handle
	starts  map[uint64]uint64                // by run
	kept    map[ProcessID]map[cudaSumKey]cudaSum
	ended   map[ProcessID]Process // not yet in a Snapshot
	seenEnd uint64
	evicted uint64
	dropped uint64 // processes that ended and found no room in ended
	// beforeFree, if not nil, is called when it is known which processes live, and before anything of the others is
	// forgotten.
	beforeFree func()
}

// kernelName is what is known of a handle: its name, or the handle that has the same.
type kernelName struct {
	text string
	same uint64
}

func newReader(objects *cudaObjects, cpus int, proc string, o Options) reader {
	return reader{
		objects: objects, cpus: cpus, proc: proc, options: o,
		names: map[uint64]map[uint64]kernelName{}, starts: map[uint64]uint64{},
		kept: map[ProcessID]map[cudaSumKey]cudaSum{}, ended: map[ProcessID]Process{},
	}
}

// name keeps what the ring says: struct name. A function that was given out for a kernel has the kernel's name,
// whenever that comes.
func (r *reader) name(raw []byte) {
	if len(raw) < nameTextStart {
		return
	}
	run, handle, same := binary.NativeEndian.Uint64(raw), binary.NativeEndian.Uint64(raw[8:]), binary.NativeEndian.Uint64(raw[16:])
	text, _, _ := bytes.Cut(raw[nameTextStart:], []byte{0})
	of := r.names[run]
	if of == nil {
		of = map[uint64]kernelName{}
		r.names[run] = of
	}
	if _, ok := of[handle]; !ok && len(of) >= r.options.MaxNames {
		r.evicted++
		return
	}
	of[handle] = kernelName{text: string(text), same: same}
}

// forEach reads a map in batches; values has one of each processor.
func forEach[K, V any](m *ebpf.Map, processors int, use func(K, []V)) error {
	for size := 1024; ; size *= 4 {
		var cursor ebpf.MapBatchCursor
		keys, values := make([]K, size), make([]V, size*processors)
		for first := true; ; first = false {
			n, err := m.BatchLookup(&cursor, keys, values, nil)
			last := errors.Is(err, ebpf.ErrKeyNotExist)
			if err != nil && !last {
				// A chain of the hash table that is longer than a batch: only at the begin can we start again.
				if errors.Is(err, syscall.ENOSPC) && first && size < 1<<20 {
					break
				}
				return err
			}
			for i := range n {
				use(keys[i], values[i*processors:(i+1)*processors])
			}
			if last {
				return nil
			}
		}
	}
}

// takeEnded reads the sums of processes that have ended, if any have since it was last called.
func (r *reader) takeEnded() error {
	var n uint64
	if err := r.objects.State.Lookup(stateEnded, &n); err != nil {
		return err
	}
	if n == r.seenEnd {
		return nil
	}
	if _, err := r.collect(); err != nil {
		return err
	}
	r.seenEnd = n
	return nil
}

func (r *reader) snapshot() (*Snapshot, error) {
	live, err := r.collect()
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Time: time.Now(), Processes: live}
	for _, p := range r.ended {
		s.Processes = append(s.Processes, p)
	}
	clear(r.ended)
	slices.SortFunc(s.Processes, func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.ID.PID, b.ID.PID), cmp.Compare(a.ID.Start, b.ID.Start))
	})
	s.Losses, err = r.losses()
	return s, err
}

func (r *reader) losses() (Losses, error) {
	var all [cudaLossLOSSES]uint64
	for i := range all {
		var each []uint64
		if err := r.objects.Lost.Lookup(uint32(i), &each); err != nil { //nolint:gosec // Eight.
			return Losses{}, err
		}
		for _, n := range each {
			all[i] += n
		}
	}
	return Losses{
		MapFull: map[string]uint64{
			"sums": all[cudaLossLOST_SUMS], "threads": all[cudaLossLOST_THREADS], "runs": all[cudaLossLOST_RUNS],
			"allocations": all[cudaLossLOST_ALLOCATIONS], "records": all[cudaLossLOST_RECORDED],
			"batch": all[cudaLossLOST_BATCH], "datatypes": all[cudaLossLOST_DATATYPES], "ended": r.dropped,
		},
		RingFull: all[cudaLossLOST_RING], InFlight: all[cudaLossLOST_CALLS], NamesEvicted: r.evicted,
	}, nil
}

// collect reads everything, returns the processes that live, and moves those that do not into ended.
func (r *reader) collect() ([]Process, error) {
	runs := map[uint64]cudaRun{}
	if err := forEach(r.objects.Runs, 1, func(k uint64, v []cudaRun) { runs[k] = v[0] }); err != nil {
		return nil, fmt.Errorf("read runs: %w", err)
	}
	// Who lives is asked before the sums are read: those of the others then change no more.
	type owner struct {
		runs []uint64
		live bool
	}
	owners := map[ProcessID]*owner{}
	for _, run := range slices.Sorted(maps.Keys(runs)) {
		id, live := r.identify(run, runs[run])
		o := get(owners, id, owner{})
		o.runs = append(o.runs, run)
		o.live = live
	}
	for id := range r.kept {
		if owners[id] == nil { // no call since it began another program
			start, alive := startOf(r.stat(uint32(id.PID))) //nolint:gosec // It was one.
			owners[id] = &owner{live: alive && start == id.Start}
		}
	}
	if r.beforeFree != nil {
		r.beforeFree()
	}
	lines := map[uint64][]line{}
	err := forEach(r.objects.Sums, r.cpus, func(k cudaSumKey, v []cudaSum) {
		l := line{key: k}
		for _, s := range v {
			l.sum.add(s)
		}
		if kind := cudaSumKind(k.Kind); runs[k.Run].Ended != 0 && (kind == cudaSumKindSUM_ALLOC || kind == cudaSumKindSUM_FREE) {
			l.sum.Second = 0 // what a program has allocated ends with it
		}
		lines[k.Run] = append(lines[k.Run], l)
	})
	if err != nil {
		return nil, fmt.Errorf("read sums: %w", err)
	}
	gone := map[uint64]bool{}
	var live []Process
	for id, o := range owners {
		var all []line
		for k, s := range r.kept[id] {
			all = append(all, line{k, s})
		}
		for _, run := range o.runs {
			all = append(all, lines[run]...)
		}
		p := process(id, all, r.options.LaunchSampling, r.nameOf)
		if o.live {
			live = append(live, p)
			for _, run := range o.runs {
				if runs[run].Ended != 0 {
					r.keep(id, lines[run])
					gone[run] = true
				}
			}
			continue
		}
		p.Ended = true
		if len(r.ended) < int(r.options.MaxProcesses) {
			r.ended[id] = p
		} else {
			r.dropped++
		}
		for k := range r.kept[id] {
			delete(r.names, k.Run)
		}
		delete(r.kept, id)
		for _, run := range o.runs {
			gone[run] = true
			delete(r.names, run)
		}
	}
	return live, r.free(gone, runs, lines)
}

func (r *reader) nameOf(run, handle uint64) string {
	n := r.names[run][handle]
	if n.same != 0 {
		n = r.names[run][n.same]
	}
	return n.text
}

// keep adds what a process did before exec to what it does after.
func (r *reader) keep(id ProcessID, lines []line) {
	m := r.kept[id]
	if m == nil {
		m = map[cudaSumKey]cudaSum{}
		r.kept[id] = m
	}
	for _, l := range lines {
		// A process that begins many programs: its kernels of long ago lose their names, not their number.
		if _, ok := m[l.key]; !ok && len(m) >= maxKeptLines {
			if l.key.Run = 0; cudaSumKind(l.key.Kind) == cudaSumKindSUM_LAUNCH {
				l.key.Handle = 0
			}
		}
		s := m[l.key]
		s.add(l.sum)
		m[l.key] = s
	}
}

// free deletes all that the maps have of runs.
func (r *reader) free(gone map[uint64]bool, runs map[uint64]cudaRun, lines map[uint64][]line) error {
	if len(gone) == 0 {
		return nil
	}
	var errs []error
	drop := func(m *ebpf.Map, key any) {
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	for _, m := range []*ebpf.Map{r.objects.Allocations, r.objects.Records} {
		var dead []cudaAddress
		note := func(k cudaAddress) {
			if gone[k.Run] {
				dead = append(dead, k)
			}
		}
		var err error
		if m == r.objects.Allocations {
			err = forEach(m, 1, func(k cudaAddress, _ []cudaAllocation) { note(k) })
		} else {
			err = forEach(m, 1, func(k cudaAddress, _ []uint64) { note(k) })
		}
		errs = append(errs, err)
		for _, k := range dead {
			drop(m, k)
		}
	}
	for run := range gone {
		for _, l := range lines[run] {
			drop(r.objects.Sums, l.key)
		}
		// Only where its first thread ended long before its last is the process still there.
		var current uint64
		tgid := runs[run].Tgid
		if r.objects.Processes.Lookup(tgid, &current) == nil && current == run {
			drop(r.objects.Processes, tgid)
		}
		drop(r.objects.Runs, run)
		delete(r.starts, run)
	}
	return errors.Join(errs...)
}

// identify says whose a run is and whether that process lives.
func (r *reader) identify(run uint64, v cudaRun) (ProcessID, bool) {
	start, alive := startOf(r.stat(v.Tgid))
	known, ok := r.starts[run]
	if !ok {
		switch {
		case v.Start != 0:
			known = v.Start / tick * tick
		case alive && start <= v.Seen:
			known = start
		default:
			known = v.Seen / tick * tick
		}
		r.starts[run] = known
	}
	return ProcessID{PID: int32(v.Tgid), Start: known}, alive && start == known //nolint:gosec // Below 2^22.
}

func (r *reader) stat(pid uint32) string {
	return filepath.Join(r.proc, strconv.FormatUint(uint64(pid), 10), "stat")
}

// startOf reads when a process began, in ns since boot, from its stat; false if it is gone, or dead with all of
// its threads and waiting for its parent to notice.
func startOf(stat string) (uint64, bool) {
	s, ok := procfs.ParseStat(procfs.ReadFile(stat))
	if !ok || s.State == 'X' || s.State == 'Z' && s.Threads <= 1 {
		return 0, false
	}
	return s.Start * tick, true
}
