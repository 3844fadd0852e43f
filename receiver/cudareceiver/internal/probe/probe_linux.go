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

// Probe observes all processes from Start to Close. Its methods may be called at any time and by
// several goroutines.
type Probe struct {
	options Options
	// plain disables features of newer kernels: one link for many probes, type information. For
	// tests.
	plain bool
	// only selects libraries by their path, nil for all. For tests, because others may run on the
	// machine.
	only func(path string) bool

	mu        sync.Mutex
	objects   *cudaObjects
	multi     bool
	links     []link.Link
	names     *ringbuf.Reader
	libraries map[file]*attachment
	runtimes  map[file]*runtimeLibrary
	// reserved are libcudart libraries that are being attached. rejected are files that are not
	// attached.
	reserved map[*runtimeLibrary]struct{}
	rejected map[revision]struct{}
	// again requests a full scan.
	again  bool
	denied int // of the last scan
	// slow and failed are the counts of released libraries.
	slow, failed uint64
	reader       reader
	drains       uint64            // of names
	offsets      map[string]uint32 // of the kernel's types
	trace        *Trace            // nil without a trace
	stop         context.CancelFunc
	done         sync.WaitGroup

	// looking is held by the one goroutine that searches libraries. Collections and Close do not
	// need it.
	looking  sync.Mutex
	finder   finder
	mappings *mappings // nil if the kernel does not support them
	// working counts attempts to attach, including abandoned ones. They use the programs.
	working sync.WaitGroup
}

var errNotStarted = errors.New("the probe is not started")

// New returns a Probe. It is inactive before Start.
func New(o Options) *Probe {
	o = o.withDefaults()
	return &Probe{
		options: o, libraries: map[file]*attachment{}, runtimes: map[file]*runtimeLibrary{},
		reserved: map[*runtimeLibrary]struct{}{}, rejected: map[revision]struct{}{},
		finder: finder{proc: filepath.Join(o.Root, "proc"), shares: newShares(o.Skipped)},
	}
}

// Start loads the programs, attaches them to the mapped driver libraries, and starts to search for
// others. Its error is one sentence with the missing requirement. ctx applies only to Start itself.
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
	p.done.Go(func() { p.search(loop) })
	return nil
}

// prepare does the part of Start before the first scan.
func (p *Probe) prepare() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.objects != nil {
		return errors.New("the probe is already started")
	}
	if err := p.load(); err != nil {
		return explain(err)
	}
	if err := p.watchProcesses(); err != nil {
		return errors.Join(explain(err), p.release())
	}
	// Before the first scan, so that either of the two finds a library that is loaded meanwhile.
	var err error
	if p.plain {
		err = errors.ErrUnsupported
	} else {
		p.mappings, err = watchMappings()
	}
	if err != nil {
		p.options.Log(fmt.Sprintf("the kernel does not report loaded files (%v): a new driver library is found within %v", err, p.options.RescanInterval))
	}
	return nil
}

// explain adds what a user can do about an error of the kernel.
func explain(err error) error {
	var refused *ebpf.VerifierError
	switch {
	case errors.As(err, &refused):
		// The cause is not a missing permission, although the kernel's error suggests it.
		return fmt.Errorf("the kernel rejects the programs, which is a bug of this receiver: %v", err) //nolint:errorlint // As said.
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("eBPF is not allowed here: run with CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE, or as root: %w", err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("the probes require Linux 5.15 or later: %w", err)
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
		"sums": o.MaxSums, "processes": o.MaxProcesses, "runs": o.MaxProcesses, "identities": o.MaxProcesses, "threads": o.MaxThreads,
		"allocations": o.MaxAllocations, "names": o.RingBytes,
	} {
		spec.Maps[name].MaxEntries = n
	}
	// Preallocate all of it, so that a burst of processes does not exceed the kernel's allocator.
	// Do not preallocate on machines with so many processors that this needs more than 64 MiB.
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

// kernelOffsets reads offsets of kernel structures from the kernel's type information, by the names
// of the programs' variables. Without the start time, it is read from /proc, which is too late for
// processes that live for less than a second. Without namespaces, ids distinguish users.
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
		return memberOffset(of.Members, member)
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
		if _, ok := found["controller_offset"]; ok {
			found["controller_offset"] += controllerIndex(kernel) * 8 // of an array of pointers
		}
		if len(found) == len(group) { // all of a group, or none is used
			maps.Copy(out, found)
		}
	}
	return out
}

// memberOffset returns the offset of a member in bytes. The member may be in a structure without a
// name, and newer kernels put two underscores before some names.
func memberOffset(members []btf.Member, name string) (uint32, bool) {
	for _, m := range members {
		if m.Name == name || m.Name == "__"+name {
			return m.Offset.Bytes(), true
		}
		if m.Name != "" {
			continue
		}
		var inner []btf.Member
		switch of := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			inner = of.Members
		case *btf.Union:
			inner = of.Members
		}
		if offset, ok := memberOffset(inner, name); ok {
			return m.Offset.Bytes() + offset, true
		}
	}
	return 0, false
}

// controllerIndex returns the index of a controller of control groups that container runtimes use.
func controllerIndex(kernel *btf.Spec) uint32 {
	var ids *btf.Enum
	if kernel.TypeByName("cgroup_subsys_id", &ids) == nil {
		for _, name := range []string{"memory_cgrp_id", "pids_cgrp_id", "cpu_cgrp_id"} {
			for _, v := range ids.Values {
				if v.Name == name {
					return uint32(v.Value)
				}
			}
		}
	}
	return 0
}

// kernelMembers are the programs' variables, in groups, with the structures and members that define
// each offset: of the last member in the first structure.
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
	{
		"memory_offset":     {{"task_struct", "mm"}},
		"executable_offset": {{"mm_struct", "exe_file"}},
		"entry_offset":      {{"file", "f_path"}, {"path", "dentry"}},
		"entry_name_offset": {{"dentry", "d_name"}, {"qstr", "name"}},
	},
	{
		"groups_offset":           {{"task_struct", "cgroups"}},
		"group_offset":            {{"css_set", "dfl_cgrp"}},
		"controller_offset":       {{"css_set", "subsys"}}, // and controllerIndex
		"controller_group_offset": {{"cgroup_subsys_state", "cgroup"}},
		"hierarchy_offset":        {{"cgroup", "root"}},
		"node_offset":             {{"cgroup", "kn"}},
		"node_parent_offset":      {{"kernfs_node", "parent"}},
		"node_name_offset":        {{"kernfs_node", "name"}},
	},
}

// watchProcesses must precede the first probe: the end of a thread releases its state.
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

// run does the work that needs no files of users, so that no user can delay it.
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
			// An error here repeats at the next Snapshot, which returns it.
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

// search searches for libraries until ctx ends.
func (p *Probe) search(ctx context.Context) {
	mapped := time.NewTicker(mappedInterval)
	defer mapped.Stop()
	rescan := time.NewTicker(p.options.RescanInterval)
	defer rescan.Stop()
	var next time.Time // earliest next scan after missed events
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
			_ = p.rescan(ctx) // /proc existed at Start
			next = time.Now().Add(max(minRescan, rescanPause*time.Since(began)))
			missed = false
		}
		p.looking.Unlock()
	}
}

// takeAgain reports whether a full scan was requested, and clears the request.
func (p *Probe) takeAgain() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	again := p.again
	p.again = false
	return again
}

// ringHeader is the size in bytes of the kernel's header of each ring record.
const ringHeader = 8

// takeNames reads all records of the ring, and reports to the kernel that it is empty.
func (p *Probe) takeNames() {
	var record ringbuf.Record
	p.names.SetDeadline(time.Unix(1, 0)) // in the past: read without waiting
	taken := false
	for p.names.ReadInto(&record) == nil {
		p.reader.name(record.RawSample)
		taken = true
	}
	if !taken {
		return
	}
	// After an error, processes have less capacity in the ring. Names dropped there are counted.
	_ = p.reader.reportFreed()
	p.drains++
	_ = p.objects.State.Put(stateDrain, p.drains)
}

// Snapshot reads the sums. A process that has ended is only in the next Snapshot of any caller.
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

// Libraries returns the attached libraries, in no order.
func (p *Probe) Libraries() []Library {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Library, 0, len(p.libraries))
	for id, a := range p.libraries {
		all = append(all, Library{Path: a.path, Device: id.device, Inode: id.inode, Functions: a.functions})
	}
	return all
}

// Close detaches from everything and frees it. It may be called before Start, and twice.
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

// maxDetaching bounds the libraries that are detached concurrently. After each link, the kernel
// waits about 30 ms for running programs.
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

// closeObjects frees the programs and maps. It waits while an abandoned attempt to attach uses
// them.
func (p *Probe) closeObjects() error {
	objects := p.objects
	if p.finder.dog.Pending() == 0 {
		p.working.Wait()
		return objects.Close()
	}
	go func() {
		p.working.Wait()
		_ = objects.Close() // nobody waits for the error
	}()
	return nil
}
