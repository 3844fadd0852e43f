// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

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
	mappings  *mappings // nil where the kernel does not give them
	libraries map[file]Library
	failures  map[file]uint64 // functions of each file that could not be attached to
	slow      uint64
	reader    reader
	stop      context.CancelFunc
	done      sync.WaitGroup
}

type file struct{ device, inode uint64 }

var errNotStarted = errors.New("the probe is not started")

// New makes a Probe; it does nothing before Start.
func New(o Options) *Probe {
	return &Probe{options: o.withDefaults(), libraries: map[file]Library{}, failures: map[file]uint64{}}
}

// Start loads the programs, attaches them to the driver libraries that are mapped now, and goes on looking
// for others. It fails with one sentence that says what is missing. ctx bounds nothing beyond Start itself.
func (p *Probe) Start(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
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
	if err := p.rescan(); err != nil {
		return errors.Join(explain(err), p.release())
	}
	loop, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.done.Go(func() { p.run(loop) })
	return nil
}

// explain says what a user can do about an error of the kernel.
func explain(err error) error {
	switch {
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
	if uint64(sums.MaxEntries)*uint64(sums.ValueSize)*uint64(cpus) > 64<<20 { //nolint:gosec // Some thousands at most.
		sums.Flags |= noPreallocation
	}
	variables := map[string]uint32{"sample_every": o.LaunchSampling}
	if leader, start, err := taskOffsets(); err == nil && !p.plain {
		variables["group_leader_offset"], variables["start_boottime_offset"] = leader, start
	}
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

// taskOffsets asks the kernel's type information where a process has its time of start. Without it, the
// time is read from /proc, which is too late for processes that live for less than a second.
func taskOffsets() (leader, start uint32, err error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return 0, 0, err
	}
	var task *btf.Struct
	if err := kernel.TypeByName("task_struct", &task); err != nil {
		return 0, 0, err
	}
	for _, m := range task.Members {
		switch m.Name {
		case "group_leader":
			leader = m.Offset.Bytes()
		case "start_boottime":
			start = m.Offset.Bytes()
		}
	}
	return leader, start, nil
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

func (p *Probe) run(ctx context.Context) {
	drain := time.NewTicker(drainInterval)
	defer drain.Stop()
	mapped := time.NewTicker(mappedInterval)
	defer mapped.Stop()
	rescan := time.NewTicker(p.options.RescanInterval)
	defer rescan.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-drain.C:
			p.mu.Lock()
			p.takeNames()
			// What fails here fails at the next Snapshot too, and is told there.
			_ = p.reader.takeEnded()
			p.mu.Unlock()
		case <-mapped.C:
			p.mu.Lock()
			p.attachMapped()
			p.mu.Unlock()
		case <-rescan.C:
			p.mu.Lock()
			_ = p.rescan() // /proc was there at Start
			p.mu.Unlock()
		}
	}
}

// rescan attaches to libraries that are new.
func (p *Probe) rescan() error {
	found, _, err := discover(filepath.Join(p.options.Root, "proc"))
	if err != nil {
		return err
	}
	return p.attachNew(found)
}

// attachNew attaches to those libraries that it has not attached to.
func (p *Probe) attachNew(found []candidate) error {
	var firstErr error
	for _, c := range found {
		id := file{c.device, c.inode}
		if _, ok := p.libraries[id]; ok || p.only != nil && !p.only(c.path) {
			continue
		}
		l := Library{Path: c.path, Device: c.device, Inode: c.inode}
		var err error
		l.Functions, err = p.attach(c)
		if errors.Is(err, os.ErrNotExist) {
			continue // the process that had it is gone; if others have it, the next look finds it
		}
		firstErr = errors.Join(firstErr, err)
		p.libraries[id] = l
	}
	// A file that is no library is one failure; what is not allowed fails for all of them.
	if errors.Is(firstErr, os.ErrPermission) {
		return firstErr
	}
	return nil
}

// attach puts the probes on one file and returns on how many functions.
func (p *Probe) attach(c candidate) (int, error) {
	f, err := os.Open(c.path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	id := file{c.device, c.inode}
	index := make(map[string]int, len(driverFunctions))
	wanted := make(map[string]bool, len(driverFunctions))
	for i, d := range driverFunctions {
		index[d.name], wanted[d.name] = i, true
	}
	found, err := functions(f, wanted)
	if err != nil {
		p.failures[id]++
		return 0, err
	}
	// Through the descriptor: the path may be another file by now.
	executable, err := link.OpenExecutable(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		p.failures[id]++
		return 0, err
	}
	type hook struct {
		program *ebpf.Program
		ret     bool
	}
	type target struct{ offsets, cookies []uint64 }
	targets := map[hook]*target{}
	programsOf := [programs]*ebpf.Program{
		progLaunch: p.objects.Launch, progLaunchConfig: p.objects.LaunchConfig, progGraphLaunch: p.objects.GraphLaunch,
		progCopy: p.objects.Copy, progBatch: p.objects.CopyBatch, progSet: p.objects.Set, progAlloc: p.objects.Alloc,
		progFree: p.objects.Release, progWait: p.objects.Wait, progOther: p.objects.Other,
	}
	attached := map[uint64]bool{}
	for _, fn := range found {
		if fn.slow {
			p.slow++
			continue
		}
		if attached[fn.offset] {
			continue // another name of the same code
		}
		attached[fn.offset] = true
		i := index[fn.name]
		d := driverFunctions[i]
		if d.class == cudaCallClassCALL_LAUNCH && p.options.LaunchSampling > 0 {
			d.flags |= flagReturns
		}
		hooks := []hook{{program: programsOf[d.program]}}
		if d.flags&flagReturns != 0 {
			hooks = append(hooks, hook{program: p.objects.Returned, ret: true})
		}
		for _, h := range hooks {
			t := get(targets, h, target{})
			t.offsets = append(t.offsets, fn.offset)
			t.cookies = append(t.cookies, d.cookie(i))
		}
	}
	// Returns first: a return without its call is passed over, a call without its return is kept.
	var errs error
	for _, ret := range []bool{true, false} {
		for h, t := range targets {
			if h.ret != ret {
				continue
			}
			links, err := p.attachAll(executable, h.program, ret, t.offsets, t.cookies)
			p.links = append(p.links, links...)
			errs = errors.Join(errs, err)
			p.failures[id] += uint64(len(unwrap(err)))
		}
	}
	return len(attached), errs
}

// attachAll attaches one program to many functions: by one link where the kernel can, else by one for each. The
// error joins those of functions that failed.
func (p *Probe) attachAll(e *link.Executable, program *ebpf.Program, ret bool, offsets, cookies []uint64) ([]link.Link, error) {
	if p.multi {
		attach := e.UprobeMulti
		if ret {
			attach = e.UretprobeMulti
		}
		l, err := attach(nil, program, &link.UprobeMultiOptions{Addresses: offsets, Cookies: cookies})
		if err == nil {
			return []link.Link{l}, nil
		}
		// The programs are loaded for this kind of link and no other: all have failed.
		errs := make([]error, len(offsets))
		for i := range errs {
			errs[i] = err
		}
		return nil, errors.Join(errs...)
	}
	attach := e.Uprobe
	if ret {
		attach = e.Uretprobe
	}
	var links []link.Link
	var errs []error
	for i, offset := range offsets {
		l, err := attach("", program, &link.UprobeOptions{Address: offset, Cookie: cookies[i]})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		links = append(links, l)
	}
	return links, errors.Join(errs...)
}

func unwrap(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return nil
}

// takeNames empties the ring.
func (p *Probe) takeNames() {
	var record ringbuf.Record
	p.names.SetDeadline(time.Unix(1, 0)) // past: what is there is read, and nothing waited for
	for p.names.ReadInto(&record) == nil {
		p.reader.name(record.RawSample)
	}
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
	for _, n := range p.failures {
		s.Losses.AttachFailed += n
	}
	s.Losses.Slow = p.slow
	return s, nil
}

// Libraries returns the libraries that are attached to, in no order.
func (p *Probe) Libraries() []Library {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Library, 0, len(p.libraries))
	for _, l := range p.libraries {
		all = append(all, l)
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
	for _, l := range p.links {
		errs = append(errs, l.Close())
	}
	p.links = nil
	if p.mappings != nil {
		errs = append(errs, p.mappings.close())
		p.mappings = nil
	}
	if p.names != nil {
		errs = append(errs, p.names.Close())
		p.names = nil
	}
	if p.objects != nil {
		errs = append(errs, p.objects.Close())
		p.objects = nil
	}
	return errors.Join(errs...)
}
