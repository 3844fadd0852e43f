// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/watchdog"
)

// attachment is an attached library.
type attachment struct {
	library library
	path    string
	tenant  tenant
	// file of a driver stays open: traces attach to it later, when its path may be gone. found are
	// its functions.
	file      *os.File
	found     []function
	functions int
	// links are closed to detach. Those of a libcudart are in its runtimeLibrary.
	links []link.Link
	check *runtimeLibrary
	// slow counts functions that would be single-stepped, failed those that could not be attached.
	slow, failed uint64
	// missing counts the consecutive scans in which no process had mapped it.
	missing int
}

// close detaches.
func (a *attachment) close() error {
	err := closeAll(&a.links)
	if a.check != nil {
		err = errors.Join(err, a.check.close())
	}
	return errors.Join(err, a.closeFile())
}

func (a *attachment) closeFile() error {
	if a.file == nil {
		return nil
	}
	err := a.file.Close()
	a.file = nil
	return err
}

// descriptors returns the number of file descriptors in use.
func (a *attachment) descriptors() int {
	n := len(a.links)
	if a.file != nil {
		n++
	}
	if a.check != nil {
		n += len(a.check.entries) + len(a.check.returns)
	}
	return n
}

const (
	// detachAfter is the number of scans after which an unmapped library is released. A probe keeps
	// the file open, which may be deleted.
	detachAfter = 20
	// attachLimit bounds the time to open, read and attach to one library. It takes 20 to 100 ms.
	attachLimit = 10 * time.Second
)

// rescan attaches to new libraries and detaches from those that are gone.
func (p *Probe) rescan(ctx context.Context) error {
	l, err := p.finder.all(ctx)
	if err != nil {
		return err
	}
	err = p.attachNew(ctx, l.found)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.denied = l.denied
	if p.mappings == nil || p.objects == nil || l.incomplete {
		return err // without mappings, a process that loads one again would be noticed too late
	}
	present := make(map[file]bool, len(l.found))
	for i := range l.found {
		present[l.found[i].file] = true
	}
	for id, a := range p.libraries {
		switch {
		case present[id]:
			a.missing = 0
		case !l.partial[a.tenant]:
			a.missing++
		}
		if a.missing >= detachAfter {
			err = errors.Join(err, p.detach(id))
		}
	}
	return err
}

// detach releases a library. Its failed functions stay counted. The caller holds p.mu.
func (p *Probe) detach(id file) error {
	a := p.libraries[id]
	delete(p.libraries, id)
	p.slow += a.slow
	p.failed += a.failed
	delete(p.runtimes, id)
	return a.close()
}

// attachNew attaches to the new libraries among found.
func (p *Probe) attachNew(ctx context.Context, found []candidate) error {
	// The driver comes before the runtime, whose calls are compared with the driver's.
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.library, b.library) })
	var firstErr error
	for i := range found {
		firstErr = errors.Join(firstErr, p.admit(ctx, &found[i]))
	}
	// A file that is not a library is one failure. A missing permission fails for all of them.
	if errors.Is(firstErr, os.ErrPermission) {
		return firstErr
	}
	return nil
}

// admitted is the result for a candidate.
type admitted struct {
	attachment *attachment
	// reason is "" if the library is attached.
	reason string
	err    error
	bytes  int64
}

// admit attaches to a library if it is new and selected, and within its user's share. It releases
// the lock while it reads the file and while the kernel attaches.
func (p *Probe) admit(ctx context.Context, c *candidate) error {
	a, objects := p.reserve(c)
	if a == nil {
		return nil
	}
	began := time.Now()
	got, err := watchdog.Run(ctx, &p.finder.dog, func() tenant { return c.tenant }, attachLimit,
		func() admitted {
			p.working.Add(1)
			defer p.working.Done()
			return p.try(c, a, objects)
		},
		func(late admitted) {
			_ = late.attachment.close() // nobody waits for the error
			p.cancel(a)
		})
	if ctx.Err() != nil && err != nil {
		return ctx.Err()
	}
	if errors.Is(err, watchdog.ErrBusy) {
		p.cancel(a)
	}
	p.finder.shares.spend(c.tenant, time.Since(began), got.bytes)
	switch {
	case err != nil:
		p.reject(c, 0)
		p.finder.shares.skip(1, Skip{Reason: SkipUnresponsive, UID: c.tenant.uid, Path: c.path, Err: err})
		return nil //nolint:nilerr // One file that cannot be read is counted; the others are tried.
	case got.reason != "":
		p.cancel(a)
		if got.reason != SkipChanged {
			p.reject(c, a.failed)
		}
		p.finder.shares.skip(1, Skip{Reason: got.reason, UID: c.tenant.uid, Path: c.path, Err: got.err})
		return a.close()
	}
	return errors.Join(got.err, p.commit(c.file, a))
}

// reserve returns an empty attachment, or nil if the candidate must not be attached.
func (p *Probe) reserve(c *candidate) (*attachment, *cudaObjects) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.libraries[c.file]; ok || p.objects == nil || p.only != nil && !p.only(c.path) || !p.wants(c.library) {
		return nil, nil
	}
	if _, ok := p.rejected[c.revision()]; ok {
		return nil, nil
	}
	a := &attachment{library: c.library, path: c.path, tenant: c.tenant}
	user, total := 0, 0
	for _, other := range p.libraries {
		n := other.descriptors()
		total += n
		if other.tenant == c.tenant {
			user += n
		}
	}
	scale := 1
	if !p.multi {
		scale = singleProbes
	}
	skip := Skip{UID: c.tenant.uid, Path: c.path}
	switch {
	case user >= userDescriptors*scale:
		skip.Reason = SkipUserAttached
	case total >= totalDescriptors*scale:
		skip.Reason = SkipTotalAttached
	case c.library == libcudart:
		var err error
		if a.check, err = p.newRuntime(c.path); err != nil {
			skip.Reason, skip.Err = SkipTotalAttached, err
		}
	}
	if skip.Reason != "" {
		p.finder.shares.skip(1, skip)
		return nil, nil
	}
	return a, p.objects
}

// cancel undoes reserve.
func (p *Probe) cancel(a *attachment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.check != nil {
		delete(p.reserved, a.check)
	}
}

// reject records a file that is not attached, and the number of its failed functions.
func (p *Probe) reject(c *candidate, failed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed += failed
	if len(p.rejected) >= maxRejected {
		clear(p.rejected) // they are read again, within their users' shares
	}
	p.rejected[c.revision()] = struct{}{}
}

// commit stores an attachment.
func (p *Probe) commit(id file, a *attachment) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.check != nil {
		delete(p.reserved, a.check)
	}
	if p.objects == nil {
		return a.close()
	}
	p.libraries[id] = a
	if a.check != nil {
		p.runtimes[id] = a.check
	}
	if a.library != libcuda {
		return a.closeFile()
	}
	p.checkAgain()
	if p.trace != nil {
		_ = p.trace.attach(a) // what fails is counted
	}
	return nil
}

// try opens a candidate's file, reads it and attaches to it. It may never return. It uses only
// fields of p that do not change.
func (p *Probe) try(c *candidate, a *attachment, objects *cudaObjects) (got admitted) {
	got.attachment = a
	fail := func(reason string, err error) admitted {
		got.reason, got.err = reason, err
		return got
	}
	o, err := c.open(p.finder.proc)
	if err != nil {
		return fail(SkipChanged, err)
	}
	defer o.close()
	if o.id != c.file {
		return fail(SkipChanged, errChanged)
	}
	if a.file, err = o.read(); err != nil {
		return fail(SkipUnreadable, err)
	}
	if !o.trusted(p.finder.proc, c.pid, a.file) {
		return fail(SkipUntrusted, errUntrusted)
	}
	counted := &boundedReader{file: a.file, left: maxFileReads}
	a.found, err = functions(counted, int64(o.stat.Size), functionsOf(a.library))
	got.bytes = maxFileReads - counted.left
	if err != nil {
		a.failed++
		return fail(SkipMalformed, err)
	}
	if len(a.found) == 0 {
		return fail(SkipMalformed, errNoFunctions)
	}
	got.err = p.attach(a, objects)
	return got
}

// wants reports whether the options select a library.
func (p *Probe) wants(l library) bool {
	switch l {
	case libcudart:
		return p.options.Source != SourceDriver
	case libnccl:
		return !p.options.WithoutNCCL
	}
	return true
}

// programsOf returns the programs in the order of the table.
func programsOf(o *cudaObjects) [programs]*ebpf.Program {
	return [programs]*ebpf.Program{
		progLaunch: o.Launch, progLaunchConfig: o.LaunchConfig, progGraphLaunch: o.GraphLaunch, progCopy: o.Copy,
		progBatch: o.CopyBatch, progSet: o.Set, progAlloc: o.Alloc, progFree: o.Release, progWait: o.Wait,
		progOther: o.Other, progForget: o.ForgetHandle, progRecord: o.EventRecord, progJoin: o.StreamJoin,
		progCollective: o.Collective, progGroup: o.CollectiveGroup, progRuntimeLaunch: o.RuntimeLaunch,
		progRuntimeLaunchConfig: o.RuntimeLaunchConfig, progRuntime: o.RuntimeCall,
	}
}

// attach attaches the probes to one file. It counts failed functions; the error joins the reasons.
func (p *Probe) attach(a *attachment, o *cudaObjects) error {
	index := functionsOf(a.library)
	executable, err := a.executable()
	if err != nil {
		a.failed++
		return err
	}
	check, returned := a.check, o.Returned
	if check != nil {
		returned = o.RuntimeReturned
	}
	type hook struct {
		program *ebpf.Program
		ret     bool
	}
	type target struct{ offsets, cookies []uint64 }
	targets := map[hook]*target{}
	programOf := programsOf(o)
	attached := map[uint64]bool{}
	for _, fn := range a.found {
		if fn.slow {
			a.slow++
			continue
		}
		if attached[fn.offset] {
			continue // another name of the same code
		}
		attached[fn.offset] = true
		i := index[fn.name]
		d := apiFunctions[i]
		if d.class == cudaCallClassCALL_LAUNCH {
			switch {
			case check != nil:
				d.kind = check.number
			case p.options.LaunchSampling > 0:
				d.flags |= flagReturns
			}
		}
		hooks := []hook{{program: programOf[d.program]}}
		if d.flags&flagReturns != 0 {
			hooks = append(hooks, hook{program: returned, ret: true})
		}
		for _, h := range hooks {
			t := get(targets, h, target{})
			t.offsets = append(t.offsets, fn.offset)
			t.cookies = append(t.cookies, d.cookie(i))
		}
	}
	// Attach the returns first: a return without its call is ignored, a call without its return is
	// kept.
	var errs error
	for _, ret := range []bool{true, false} {
		for h, t := range targets {
			if h.ret != ret {
				continue
			}
			links, err := p.attachAll(executable, h.program, ret, t.offsets, t.cookies)
			switch {
			case check == nil:
				a.links = append(a.links, links...)
			case ret:
				check.returns = append(check.returns, links...)
			default:
				check.entries = append(check.entries, links...)
			}
			errs = errors.Join(errs, err)
			a.failed += uint64(len(unwrap(err)))
		}
	}
	a.functions = len(attached)
	if a.library != libcuda {
		a.found = nil
	}
	return errs
}

// executable returns the file for attaching probes. It uses the descriptor, because the path may be
// another file now. The package link does not read the file, because all offsets are given and none
// is 0.
func (a *attachment) executable() (*link.Executable, error) {
	return link.OpenExecutable(fmt.Sprintf("/proc/self/fd/%d", a.file.Fd()))
}

// attachAll attaches one program to many functions: with one link if the kernel supports it,
// otherwise with one for each. The error joins those of the failed functions.
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
		// The programs are loaded for this kind of link only: all have failed.
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
