// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package probe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
)

// Probe observes all processes from Start to Close. Its methods may be called at any time and by several
// goroutines.
type Probe struct {
	options Options
	// plain does without what only newer kernels have: one link for many probes, type information. For tests.
	plain bool
	// only selects libraries by their path, nil for all. For tests: others on the machine run theirs.
	only func(path string) bool

	mu        sync.Mutex
	objects   *cudaObjects
	multi     bool
	links     []link.Link
	names     *ringbuf.Reader
	libraries map[file]*attachment
	runtimes  map[file]*runtimeLibrary
	// reserved are libcudart that are being attached to, rejected are files that are not attached to.
	reserved map[*runtimeLibrary]struct{}
	rejected map[revision]struct{}
	// again asks for a look through all processes.
	again  bool
	denied int // of the last look
	// slow and failed are those of libraries that were let go.
	slow, failed uint64
	reader       reader
	drains       uint64            // of names
	offsets      map[string]uint32 // of the kernel's types
	trace        *Trace            // nil while none is on
	stop         context.CancelFunc
	done         sync.WaitGroup

	// looking is held by the one goroutine that looks for libraries. Collections and Close do not need it.
	looking  sync.Mutex
	finder   finder
	mappings *mappings // nil where the kernel does not give them
	// working are attempts to attach, abandoned ones among them. They use the programs.
	working sync.WaitGroup
}

var errNotStarted = errors.New("the probe is not started")

// New makes a Probe; it does nothing before Start.
func New(o Options) *Probe {
	o = o.withDefaults()
	return &Probe{
		options: o, libraries: map[file]*attachment{}, runtimes: map[file]*runtimeLibrary{},
		reserved: map[*runtimeLibrary]struct{}{}, rejected: map[revision]struct{}{},
		finder: finder{proc: filepath.Join(o.Root, "proc"), shares: newShares(o.Skipped)},
	}
}

// Start loads the programs, attaches them to the driver libraries that are mapped now, and goes on looking
// for others. It fails with one sentence that says what is missing. ctx bounds nothing beyond Start itself.
func (p *Probe) Start(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.looking.Lock()
	defer p.looking.Unlock()
	if err := p.prepare(); err != nil {
		return err
	}
	if err := p.rescan(ctx); err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		return errors.Join(explain(err), p.release())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	loop, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.done.Go(func() { p.run(loop) })
	p.done.Go(func() { p.look(loop) })
	return nil
}

// prepare does what Start does before the first look.
func (p *Probe) prepare() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.objects != nil {
		return errors.New("the probe is started already")
	}
	if err := p.load(); err != nil {
		return explain(err)
	}
	if err := p.watchProcesses(); err != nil {
		return errors.Join(explain(err), p.release())
	}
	// Before the first look, so that what is loaded meanwhile is seen by one of the two.
	var err error
	if p.plain {
		err = errors.ErrUnsupported
	} else {
		p.mappings, err = watchMappings()
	}
	if err != nil {
		p.options.Log(fmt.Sprintf("the kernel does not tell which files are loaded (%v): a driver library that is new is found within %v", err, p.options.RescanInterval))
	}
	return nil
}

// explain says what a user can do about an error of the kernel.
func explain(err error) error {
	var refused *ebpf.VerifierError
	switch {
	case errors.As(err, &refused):
		// Not a matter of rights, though the kernel's error is that of a right that is missing.
		return fmt.Errorf("this kernel does not take our programs, which is our fault: %v", err) //nolint:errorlint // As said.
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("eBPF is not allowed here: run with CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE, or as root: %w", err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("this kernel lacks what the probes need, which Linux 5.15 has: %w", err)
	}
	return err
}

func (p *Probe) load() error {
	spec, err := loadCuda()
	if err != nil {
		return err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	o := p.options
	for name, n := range map[string]uint32{
		"sums": o.MaxSums, "processes": o.MaxProcesses, "runs": o.MaxProcesses, "threads": o.MaxThreads,
		"allocations": o.MaxAllocations, "names": o.RingBytes,
	} {
		spec.Maps[name].MaxEntries = n
	}
	// All of it at once, so that a burst of processes does not outrun the kernel's allocator; but not on machines
	// with so many processors that this would be more than 64 MiB.
	const noPreallocation = 1
	sums := spec.Maps["sums"]
	if uint64(sums.MaxEntries)*uint64(sums.ValueSize)*uint64(cpus) > 64<<20 {
		sums.Flags |= noPreallocation
	}
	nameBytes := uint32(unsafe.Sizeof(cudaName{})) + ringHeader
	capacity := [cudaShareClassCLASSES]uint32{
		cudaShareClassCLASS_RUNS: o.MaxProcesses, cudaShareClassCLASS_SUMS: o.MaxSums, cudaShareClassCLASS_THREADS: o.MaxThreads,
		cudaShareClassCLASS_ALLOCATIONS: o.MaxAllocations, cudaShareClassCLASS_RECORDS: spec.Maps["records"].MaxEntries,
		cudaShareClassCLASS_NAMES: o.RingBytes / nameBytes,
	}
	if err := spec.Variables["capacity"].Set(capacity); err != nil {
		return err
	}
	variables := map[string]uint32{"sample_every": o.LaunchSampling}
	if !p.plain {
		p.offsets = kernelOffsets()
	}
	maps.Copy(variables, p.offsets)
	for name, v := range variables {
		if err := spec.Variables[name].Set(v); err != nil {
			return err
		}
	}
	p.multi = features.HaveBPFLinkUprobeMulti() == nil && !p.plain
	if p.multi {
		for _, s := range spec.Programs {
			if s.Type == ebpf.Kprobe {
				s.AttachType = ebpf.AttachTraceUprobeMulti
			}
		}
	}
	objects := &cudaObjects{}
	if err := spec.LoadAndAssign(objects, nil); err != nil {
		return err
	}
	names, err := ringbuf.NewReader(objects.Names)
	if err != nil {
		return errors.Join(err, objects.Close())
	}
	p.objects, p.names = objects, names
	p.reader = newReader(objects, cpus, filepath.Join(o.Root, "proc"), o)
	return nil
}

// kernelOffsets asks the kernel's type information where it keeps what the programs read of it, by the names of their
// variables. Without the time of start, that is read from /proc, which is too late for processes that live for less than
// a second; without namespaces, users are told apart by their ids.
func kernelOffsets() map[string]uint32 {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return nil
	}
	at := func(name, member string) (uint32, bool) {
		var of *btf.Struct
		if kernel.TypeByName(name, &of) != nil {
			return 0, false
		}
		for _, m := range of.Members {
			if m.Name == member {
				return m.Offset.Bytes(), true
			}
		}
		return 0, false
	}
	out := map[string]uint32{}
	for _, group := range kernelMembers {
		found := map[string]uint32{}
		for variable, path := range group {
			for _, step := range path {
				offset, ok := at(step[0], step[1])
				if !ok {
					clear(found)
					break
				}
				found[variable] += offset
			}
			if len(found) == 0 {
				break
			}
		}
		if len(found) == len(group) { // all of a group, or none is used
			maps.Copy(out, found)
		}
	}
	return out
}

// kernelMembers are the programs' variables, in groups, and of what structures and members each is the offset: of the
// last in the first.
var kernelMembers = []map[string][][2]string{
	{
		"group_leader_offset":   {{"task_struct", "group_leader"}},
		"start_boottime_offset": {{"task_struct", "start_boottime"}},
	},
	{
		"cred_offset":           {{"task_struct", "cred"}},
		"cred_namespace_offset": {{"cred", "user_ns"}},
		"user_parent_offset":    {{"user_namespace", "parent"}},
		"user_level_offset":     {{"user_namespace", "level"}},
		"user_owner_offset":     {{"user_namespace", "owner"}},
	},
	{
		"nsproxy_offset":           {{"task_struct", "nsproxy"}},
		"nsproxy_namespace_offset": {{"nsproxy", "pid_ns_for_children"}},
		"pid_parent_offset":        {{"pid_namespace", "parent"}},
		"pid_level_offset":         {{"pid_namespace", "level"}},
		"pid_number_offset":        {{"pid_namespace", "ns"}, {"ns_common", "inum"}},
	},
}

// watchProcesses must come before the first probe: a thread's end frees what is kept of it.
func (p *Probe) watchProcesses() error {
	for name, program := range map[string]*ebpf.Program{"sched_process_exit": p.objects.Exited, "sched_process_exec": p.objects.Replaced} {
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: name, Program: program})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		p.links = append(p.links, l)
	}
	return nil
}

// run does what needs no other user's files, so that nobody can delay it.
func (p *Probe) run(ctx context.Context) {
	drain := time.NewTicker(drainInterval)
	defer drain.Stop()
	check := time.NewTicker(mappedInterval)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-drain.C:
			p.mu.Lock()
			p.takeNames()
			// What fails here fails at the next Snapshot too, and is told there.
			_ = p.reader.takeEnded()
			p.endRuntimes()
			p.mu.Unlock()
		case <-check.C:
			p.mu.Lock()
			p.takeNames()
			p.checkRuntimes()
			p.mu.Unlock()
		}
	}
}

// look looks for libraries until ctx ends.
func (p *Probe) look(ctx context.Context) {
	mapped := time.NewTicker(mappedInterval)
	defer mapped.Stop()
	rescan := time.NewTicker(p.options.RescanInterval)
	defer rescan.Stop()
	var next time.Time // when events that were missed may cause the next look
	missed := false
	for {
		all := false
		select {
		case <-ctx.Done():
			return
		case <-mapped.C:
		case <-rescan.C:
			all = true
		}
		p.looking.Lock()
		missed = !p.attachMapped(ctx) || missed
		if missed && time.Now().After(next) || p.takeAgain() {
			all = true
		}
		if all {
			began := time.Now()
			_ = p.rescan(ctx) // /proc was there at Start
			next = time.Now().Add(max(minRescan, rescanPause*time.Since(began)))
			missed = false
		}
		p.looking.Unlock()
	}
}

// takeAgain reports whether a look through all processes was asked for.
func (p *Probe) takeAgain() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	again := p.again
	p.again = false
	return again
}

// ringHeader is what the kernel adds to each record of a ring, in bytes.
const ringHeader = 8

// takeNames empties the ring, and tells the kernel that it is empty.
func (p *Probe) takeNames() {
	var record ringbuf.Record
	p.names.SetDeadline(time.Unix(1, 0)) // past: what is there is read, and nothing waited for
	taken := false
	for p.names.ReadInto(&record) == nil {
		p.reader.name(record.RawSample)
		taken = true
	}
	if !taken {
		return
	}
	// What fails leaves processes with less room in the ring, in which names are then lost, and counted.
	_ = p.reader.tellFreed()
	p.drains++
	_ = p.objects.State.Put(stateDrain, p.drains)
}

// Snapshot reads the sums. A process that has ended is in the next Snapshot only, whoever calls it.
func (p *Probe) Snapshot() (*Snapshot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.objects == nil {
		return nil, errNotStarted
	}
	p.takeNames()
	s, err := p.reader.snapshot()
	if err != nil {
		return nil, err
	}
	s.Losses.AttachFailed, s.Losses.Slow = p.failed, p.slow
	for _, a := range p.libraries {
		s.Losses.AttachFailed += a.failed
		s.Losses.Slow += a.slow
	}
	s.Losses.Denied = p.denied
	s.Losses.Skipped = p.finder.shares.counts()
	s.Runtimes = p.runtimeChecks()
	return s, nil
}

// Libraries returns the libraries that are attached to, in no order.
func (p *Probe) Libraries() []Library {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Library, 0, len(p.libraries))
	for id, a := range p.libraries {
		all = append(all, Library{Path: a.path, Device: id.device, Inode: id.inode, Functions: a.functions})
	}
	return all
}

// Close detaches from everything and frees it; it may be called before Start, and twice.
func (p *Probe) Close() error {
	p.mu.Lock()
	stop := p.stop
	p.stop = nil
	p.mu.Unlock()
	if stop != nil {
		stop()
	}
	p.done.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.release()
}

func (p *Probe) release() error {
	var errs []error
	if p.trace != nil {
		errs = append(errs, p.trace.end())
	}
	for _, l := range p.links {
		errs = append(errs, l.Close())
	}
	p.links = nil
	errs = append(errs, p.detachAll())
	if p.mappings != nil {
		errs = append(errs, p.mappings.close())
		p.mappings = nil
	}
	if p.names != nil {
		errs = append(errs, p.names.Close())
		p.names = nil
	}
	if p.objects != nil {
		errs = append(errs, p.closeObjects())
		p.objects = nil
	}
	return errors.Join(errs...)
}

// maxDetaching is how many libraries are detached from at a time. The kernel waits for running programs after each
// link, for some 30 ms.
const maxDetaching = 32

// detachAll detaches from all libraries.
func (p *Probe) detachAll() error {
	errs := make(chan error, len(p.libraries))
	slots := make(chan struct{}, maxDetaching)
	var done sync.WaitGroup
	for _, a := range p.libraries {
		done.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs <- a.close()
		})
	}
	done.Wait()
	close(errs)
	clear(p.libraries)
	clear(p.runtimes)
	var all error
	for err := range errs {
		all = errors.Join(all, err)
	}
	return all
}

// closeObjects frees the programs and maps, at once unless an abandoned attempt to attach uses them.
func (p *Probe) closeObjects() error {
	objects := p.objects
	if p.finder.dog.Pending() == 0 {
		p.working.Wait()
		return objects.Close()
	}
	go func() {
		p.working.Wait()
		_ = objects.Close() // nobody is left to tell
	}()
	return nil
}
