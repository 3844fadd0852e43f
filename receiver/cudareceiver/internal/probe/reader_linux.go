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
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/gpuflight/gpuflight/internal/procfs"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/fair"
)

const (
	tick          = procfs.TickNanoseconds
	stateEnded    = uint32(1)
	stateDrain    = uint32(4)
	maxKeptLines  = 4096 // of one process's earlier programs
	nameTextStart = int(unsafe.Offsetof(cudaName{}.Text))

	// The sizes of tables that users share. A kept line takes about 130 bytes, a name up to 350, a
	// launch of an ended process 1,100.
	allKeptLines     = 65536
	allNamesFactor   = 16 // of MaxNames
	allEndedLaunches = 16384
	// allUsers is the index of all users together in the kernel's map of shares.
	allUsers = uint32(0)
)

// lossNames are the names of the kernel's losses in Losses and Process.
var lossNames = [cudaLossLOSSES]string{
	cudaLossLOST_SUMS: "sums", cudaLossLOST_THREADS: "threads", cudaLossLOST_RUNS: "runs", cudaLossLOST_ALLOCATIONS: "allocations",
	cudaLossLOST_RECORDED: "records", cudaLossLOST_RING: "names", cudaLossLOST_CALLS: "returns", cudaLossLOST_BATCH: "batch",
	cudaLossLOST_DATATYPES: "datatypes",
}

// reader converts the maps to Snapshots. Only one goroutine may use it at a time.
type reader struct {
	objects *cudaObjects
	cpus    int
	proc    string
	options Options

	names  map[uint64]*runNames // by run
	starts map[uint64]uint64    // by run
	// identities are those of runs, read once.
	identities map[uint64]Identity
	kept       map[ProcessID]*keptSums
	ended      map[ProcessID]Process // not yet in a Snapshot
	// The shares of the tables above, by user and process.
	nameShares                 *fair.Table[uint64]
	keptShares                 *fair.Table[ProcessID]
	endedShares, endedLaunches *fair.Table[ProcessID]
	// freed counts the entries that the reader has deleted from the kernel's maps, by the index of
	// the user there. The kernel does not know of those in unreported.
	freed      map[uint32]*cudaShare
	unreported map[uint32]bool

	seenEnd uint64
	evicted uint64
	dropped uint64 // ended processes dropped because ended was full
	// beforeFree, if not nil, is called after the running processes were determined, and before the
	// state of the others is deleted.
	beforeFree func()
}

// kernelName is the name of a handle, or another handle with the same name.
type kernelName struct {
	text string
	same uint64
}

// runNames are the names that a run has requested, by handle.
type runNames struct {
	user  uint32
	names map[uint64]kernelName
}

// keptSums are the sums of the earlier programs of a process.
type keptSums struct {
	user     uint32
	identity Identity
	lines    map[cudaSumKey]cudaSum
}

func newReader(objects *cudaObjects, cpus int, proc string, o Options) reader {
	r := reader{
		objects: objects, cpus: cpus, proc: proc, options: o,
		names: map[uint64]*runNames{}, starts: map[uint64]uint64{}, identities: map[uint64]Identity{}, kept: map[ProcessID]*keptSums{},
		nameShares: fair.New[uint64](allNamesFactor * o.MaxNames), keptShares: fair.New[ProcessID](allKeptLines),
		freed: map[uint32]*cudaShare{}, unreported: map[uint32]bool{},
	}
	r.clearEnded()
	return r
}

func (r *reader) clearEnded() {
	r.ended = map[ProcessID]Process{}
	r.endedShares = fair.New[ProcessID](int(r.options.MaxProcesses))
	r.endedLaunches = fair.New[ProcessID](allEndedLaunches)
}

// name stores a record of the ring: struct name. A function of a kernel has the kernel's name, even
// if that arrives later.
func (r *reader) name(raw []byte) {
	if len(raw) < nameTextStart {
		return
	}
	run, handle, same := binary.NativeEndian.Uint64(raw), binary.NativeEndian.Uint64(raw[8:]), binary.NativeEndian.Uint64(raw[16:])
	user := binary.NativeEndian.Uint32(raw[24:])
	text, _, _ := bytes.Cut(raw[nameTextStart:], []byte{0})
	r.release(user, cudaShareClassCLASS_NAMES)
	of := r.names[run]
	if of == nil {
		of = &runNames{user: user, names: map[uint64]kernelName{}}
		r.names[run] = of
	}
	if _, ok := of.names[handle]; !ok && (len(of.names) >= r.options.MaxNames || !r.nameShares.Take(user, run)) {
		r.evicted++
		return
	}
	of.names[handle] = kernelName{text: string(text), same: same}
}

func (r *reader) forgetNames(run uint64) {
	if of := r.names[run]; of != nil {
		r.nameShares.Drop(of.user, run)
		delete(r.names, run)
	}
}

// release counts a deleted entry of one of the kernel's maps. reportFreed reports it to the kernel.
func (r *reader) release(user uint32, class cudaShareClass) {
	for _, u := range [...]uint32{user, allUsers} {
		get(r.freed, u, cudaShare{}).Used[class]++
		r.unreported[u] = true
	}
}

// reportFreed writes the counts of deleted entries to the kernel.
func (r *reader) reportFreed() error {
	for user := range r.unreported {
		if err := r.objects.Freed.Put(user, r.freed[user]); err != nil {
			return fmt.Errorf("write freed: %w", err)
		}
		delete(r.unreported, user)
	}
	return nil
}

// forEach reads a map in batches. values has one value of each processor.
func forEach[K, V any](m *ebpf.Map, processors int, use func(K, []V)) error {
	for size := 1024; ; size *= 4 {
		var cursor ebpf.MapBatchCursor
		keys, values := make([]K, size), make([]V, size*processors)
		for first := true; ; first = false {
			n, err := m.BatchLookup(&cursor, keys, values, nil)
			last := errors.Is(err, ebpf.ErrKeyNotExist)
			if err != nil && !last {
				// A chain of the hash table is longer than a batch. Only at the beginning can the
				// read restart.
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

// takeEnded reads the sums of processes that ended after the last call, if there are any.
func (r *reader) takeEnded() error {
	var n uint64
	if err := r.objects.State.Lookup(stateEnded, &n); err != nil {
		return err
	}
	if n == r.seenEnd {
		return nil
	}
	if _, err := r.collect(false); err != nil {
		return err
	}
	r.seenEnd = n
	return nil
}

func (r *reader) snapshot() (*Snapshot, error) {
	live, err := r.collect(true)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Time: time.Now(), Processes: live}
	for _, p := range r.ended {
		s.Processes = append(s.Processes, p)
	}
	r.clearEnded()
	slices.SortFunc(s.Processes, func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.ID.PID, b.ID.PID), cmp.Compare(a.ID.Start, b.ID.Start))
	})
	s.Losses, err = r.losses()
	return s, err
}

func (r *reader) losses() (Losses, error) {
	l := Losses{MapFull: map[string]uint64{"ended": r.dropped}, NamesEvicted: r.evicted, Users: map[uint32]uint64{}}
	for i, name := range lossNames {
		var each []uint64
		if err := r.objects.Lost.Lookup(uint32(i), &each); err != nil {
			return Losses{}, err
		}
		var all uint64
		for _, n := range each {
			all += n
		}
		switch i {
		case int(cudaLossLOST_RING):
			l.RingFull = all
		case int(cudaLossLOST_CALLS):
			l.InFlight = all
		case int(cudaLossLOST_FOLDED):
			l.Folded = all
		default:
			l.MapFull[name] = all
		}
	}
	err := forEach(r.objects.Refused, 1, func(uid uint32, calls []uint64) { l.Users[uid] = calls[0] })
	return l, err
}

// collect reads everything and moves ended processes into ended. It returns the running ones if
// wanted.
func (r *reader) collect(wanted bool) ([]Process, error) {
	runs := map[uint64]cudaRun{}
	if err := forEach(r.objects.Runs, 1, func(k uint64, v []cudaRun) { runs[k] = v[0] }); err != nil {
		return nil, fmt.Errorf("read runs: %w", err)
	}
	// Determine the running processes before the sums are read: the sums of the others no longer
	// change.
	type owner struct {
		runs     []uint64
		user     uint32
		live     bool
		identity Identity
	}
	owners := map[ProcessID]*owner{}
	for _, run := range slices.Sorted(maps.Keys(runs)) {
		id, live := r.identify(run, runs[run])
		o := get(owners, id, owner{})
		o.runs = append(o.runs, run)
		o.user, o.live, o.identity = runs[run].Uid, live, r.identity(run)
	}
	for id := range r.kept {
		if owners[id] == nil { // no call since it began another program
			start, alive := startOf(r.stat(uint32(id.PID)))
			owners[id] = &owner{user: r.kept[id].user, live: alive && start == id.Start, identity: r.kept[id].identity}
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
	for run := range runs {
		lines[run] = append(lines[run], linesOf(runs[run])...)
	}
	gone := map[uint64]bool{}
	var live []Process
	for id, o := range owners {
		if o.live && !wanted {
			for _, run := range o.runs {
				if runs[run].Ended != 0 {
					r.keep(id, o.user, o.identity, lines[run])
					gone[run] = true
				}
			}
			continue
		}
		var all []line
		if kept := r.kept[id]; kept != nil {
			for k, s := range kept.lines {
				all = append(all, line{k, s})
			}
		}
		for _, run := range o.runs {
			all = append(all, lines[run]...)
		}
		p := process(id, all, r.options.LaunchSampling, r.nameOf)
		p.User, p.Identity = o.user, o.identity
		if o.live {
			live = append(live, p)
			for _, run := range o.runs {
				if runs[run].Ended != 0 {
					r.keep(id, o.user, o.identity, lines[run])
					gone[run] = true
				}
			}
			continue
		}
		p.Ended = true
		r.end(p)
		if kept := r.kept[id]; kept != nil {
			for k := range kept.lines {
				r.forgetNames(k.Run)
			}
			r.keptShares.Drop(kept.user, id)
			delete(r.kept, id)
		}
		for _, run := range o.runs {
			gone[run] = true
			r.forgetNames(run)
		}
	}
	return live, r.free(gone, runs, lines)
}

// linesOf returns the lines that a run has counted itself: launches beyond its share, and losses.
func linesOf(run cudaRun) []line {
	var all []line
	for captured, n := range run.Other {
		if n > 0 {
			all = append(all, line{cudaSumKey{Kind: uint8(cudaSumKindSUM_OTHER), Flag: uint8(captured)}, cudaSum{Calls: n}})
		}
	}
	for loss, n := range run.Lost {
		if n > 0 {
			all = append(all, line{lostKey(cudaLoss(loss)), cudaSum{Calls: n}})
		}
	}
	return all
}

func lostKey(loss cudaLoss) cudaSumKey {
	return cudaSumKey{Kind: uint8(cudaSumKindSUM_LOST), Index: uint16(loss)}
}

// end keeps an ended process for the next Snapshot. Beyond its share, its launches become one
// without kernel, grid and block. Beyond its user's share, the process is dropped.
func (r *reader) end(p Process) {
	if !r.endedShares.Take(p.User, p.ID) {
		r.dropped++
		return
	}
	var own, other []Launch
	for i := range p.Launches {
		l := &p.Launches[i]
		if !l.Other && r.endedLaunches.Take(p.User, p.ID) {
			own = append(own, *l)
			continue
		}
		at := slices.IndexFunc(other, func(o Launch) bool { return o.Captured == l.Captured })
		if at < 0 {
			at = len(other)
			other = append(other, Launch{Other: true, Captured: l.Captured})
		}
		other[at].add(l)
	}
	p.Launches = append(own, other...)
	r.ended[p.ID] = p
}

func (r *reader) nameOf(run, handle uint64) string {
	of := r.names[run]
	if of == nil {
		return ""
	}
	n := of.names[handle]
	if n.same != 0 {
		n = of.names[n.same]
	}
	return n.text
}

// keep adds the sums before exec to those after it. Beyond the share of lines, launches keep only
// their number, and other calls are dropped.
func (r *reader) keep(id ProcessID, user uint32, identity Identity, lines []line) {
	kept := get(r.kept, id, keptSums{user: user})
	kept.identity = identity
	if kept.lines == nil {
		kept.lines = map[cudaSumKey]cudaSum{}
	}
	for _, l := range lines {
		kind := cudaSumKind(l.key.Kind)
		_, known := kept.lines[l.key]
		switch {
		case known, kind == cudaSumKindSUM_OTHER, kind == cudaSumKindSUM_LOST:
		case len(kept.lines) < maxKeptLines && r.keptShares.Take(kept.user, id):
		case kind == cudaSumKindSUM_LAUNCH:
			l = line{cudaSumKey{Kind: uint8(cudaSumKindSUM_OTHER), Flag: l.key.Flag}, cudaSum{Calls: l.sum.Calls}}
		default:
			l = line{lostKey(cudaLossLOST_SUMS), cudaSum{Calls: l.sum.Calls}}
		}
		s := kept.lines[l.key]
		s.add(l.sum)
		kept.lines[l.key] = s
	}
}

// free deletes all map entries of runs.
func (r *reader) free(gone map[uint64]bool, runs map[uint64]cudaRun, lines map[uint64][]line) error {
	if len(gone) == 0 {
		return nil
	}
	var errs []error
	// drop reports whether the entry existed. The programs count their own deletions.
	drop := func(m *ebpf.Map, key any) bool {
		err := m.Delete(key)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
		return err == nil
	}
	dropAll := func(m *ebpf.Map, class cudaShareClass, dead map[any]uint64) {
		for k, run := range dead {
			if drop(m, k) {
				r.release(runs[run].User, class)
			}
		}
	}
	dead := map[any]uint64{}
	note := func(key any, run uint64) {
		if gone[run] {
			dead[key] = run
		}
	}
	errs = append(errs, forEach(r.objects.Allocations, 1, func(k cudaAddress, _ []cudaAllocation) { note(k, k.Run) }))
	dropAll(r.objects.Allocations, cudaShareClassCLASS_ALLOCATIONS, dead)
	clear(dead)
	errs = append(errs, forEach(r.objects.Records, 1, func(k cudaAddress, _ []uint64) { note(k, k.Run) }))
	dropAll(r.objects.Records, cudaShareClassCLASS_RECORDS, dead)
	clear(dead)
	// A thread that starts another program gets the id of its process's first thread and loses its
	// own.
	errs = append(errs, forEach(r.objects.Threads, 1, func(k uint64, v []cudaThread) { note(k, v[0].Run) }))
	dropAll(r.objects.Threads, cudaShareClassCLASS_THREADS, dead)
	for run := range gone {
		for _, l := range lines[run] {
			if l.key.Run == run && drop(r.objects.Sums, l.key) {
				r.release(runs[run].User, cudaShareClassCLASS_SUMS)
			}
		}
		// The process still exists only if its first thread ended long before its last.
		var current uint64
		tgid := runs[run].Tgid
		if r.objects.Processes.Lookup(tgid, &current) == nil && current == run {
			drop(r.objects.Processes, tgid)
		}
		drop(r.objects.Identities, run)
		if drop(r.objects.Runs, run) {
			r.release(runs[run].User, cudaShareClassCLASS_RUNS)
		}
		delete(r.starts, run)
		delete(r.identities, run)
	}
	return errors.Join(append(errs, r.reportFreed())...)
}

// identify returns the process of a run, and whether it lives.
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
	return ProcessID{PID: int32(v.Tgid), Start: known}, alive && start == known
}

// identity returns the identity of a run's process, or the zero value if it is unknown.
func (r *reader) identity(run uint64) Identity {
	found, ok := r.identities[run]
	if ok {
		return found
	}
	var v cudaIdentity
	if r.objects.Identities.Lookup(run, &v) == nil {
		found = identityOf(&v)
	}
	r.identities[run] = found
	return found
}

// identityOf converts a C structure. A user chooses the names.
func identityOf(v *cudaIdentity) Identity {
	text := func(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }
	name, _, _ := bytes.Cut(v.Executable[:], []byte{0})
	var lines strings.Builder
	begin := 0
	for i, hierarchy := range [...]string{"1:v1:", "0::"} {
		end := max(begin, min(int(v.CgroupEnd[i]), len(v.Cgroup)))
		groups := strings.Split(text(v.Cgroup[begin:end]), "\x00")
		groups = groups[:len(groups)-1] // each ends with a zero byte
		slices.Reverse(groups)
		begin = end
		path := strings.Join(groups, "/")
		if v.CgroupWhole[i] != 0 {
			path = "/" + path
		}
		if path != "" {
			fmt.Fprintf(&lines, "%s%s\n", hierarchy, path)
		}
	}
	return Identity{Executable: text(name), Cgroup: lines.String()}
}

func (r *reader) stat(pid uint32) string {
	return filepath.Join(r.proc, strconv.FormatUint(uint64(pid), 10), "stat")
}

// startOf reads the start time of a process from its stat, in ns since boot. It returns false if
// the process is gone or a zombie without threads.
func startOf(stat string) (uint64, bool) {
	s, ok := procfs.ParseStat(procfs.ReadFile(stat))
	if !ok || s.State == 'X' || s.State == 'Z' && s.Threads <= 1 {
		return 0, false
	}
	return s.Start * tick, true
}
