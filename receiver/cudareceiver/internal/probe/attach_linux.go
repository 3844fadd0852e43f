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

// attachment is a library that is attached to.
type attachment struct {
	library library
	path    string
	tenant  tenant
	// file stays open for a driver, which traces attach to later, when its path may be gone. found are its functions.
	file      *os.File
	found     []function
	functions int
	// links are closed to detach; those of a libcudart are in its runtimeLibrary.
	links []link.Link
	check *runtimeLibrary
	// slow and failed are functions that would be single-stepped, and that could not be attached to.
	slow, failed uint64
	// missing is how many looks in a row found nobody who has it mapped.
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

// descriptors returns how many it holds.
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
	// detachAfter is after how many looks a library that nobody has mapped is let go: a probe holds the file, whose
	// image may long be deleted.
	detachAfter = 20
	// attachLimit is how long opening, reading and attaching to one library may take. It takes 20 to 100 ms.
	attachLimit = 10 * time.Second
)

// rescan attaches to libraries that are new, and detaches from those that are gone.
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

// detach lets a library go. What could not be attached to of it stays counted. p.mu is held.
func (p *Probe) detach(id file) error {
	a := p.libraries[id]
	delete(p.libraries, id)
	p.slow += a.slow
	p.failed += a.failed
	delete(p.runtimes, id)
	return a.close()
}

// attachNew attaches to those of some libraries that are new.
func (p *Probe) attachNew(ctx context.Context, found []candidate) error {
	// The driver before the runtime, whose calls are held against it.
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.library, b.library) })
	var firstErr error
	for i := range found {
		firstErr = errors.Join(firstErr, p.admit(ctx, &found[i]))
	}
	// A file that is no library is one failure; what is not allowed fails for all of them.
	if errors.Is(firstErr, os.ErrPermission) {
		return firstErr
	}
	return nil
}

// admitted is what became of a candidate.
type admitted struct {
	attachment *attachment
	// reason is "" for one that is attached to.
	reason string
	err    error
	bytes  int64
}

// admit attaches to a library if it is new and wanted, and within its user's share. The lock is not held while the
// file is read and while the kernel attaches.
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
			_ = late.attachment.close() // nobody is left to tell
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

// reserve returns an attachment to be filled, nil if the candidate is not attached to.
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

// cancel gives back what reserve took.
func (p *Probe) cancel(a *attachment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.check != nil {
		delete(p.reserved, a.check)
	}
}

// reject remembers a file that is not attached to, and how many of its functions could not be.
func (p *Probe) reject(c *candidate, failed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed += failed
	if len(p.rejected) >= maxRejected {
		clear(p.rejected) // they are read again, within their users' shares
	}
	p.rejected[c.revision()] = struct{}{}
}

// commit keeps an attachment.
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

// try opens a candidate's file, reads it and attaches to it. It may never return, and uses of p only what does not
// change.
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

// wants reports whether a library is attached to by these options.
func (p *Probe) wants(l library) bool {
	switch l {
	case libcudart:
		return p.options.Source != SourceDriver
	case libnccl:
		return !p.options.WithoutNCCL
	}
	return true
}

// programsOf are the programs by what the table says.
func programsOf(o *cudaObjects) [programs]*ebpf.Program {
	return [programs]*ebpf.Program{
		progLaunch: o.Launch, progLaunchConfig: o.LaunchConfig, progGraphLaunch: o.GraphLaunch, progCopy: o.Copy,
		progBatch: o.CopyBatch, progSet: o.Set, progAlloc: o.Alloc, progFree: o.Release, progWait: o.Wait,
		progOther: o.Other, progForget: o.ForgetHandle, progRecord: o.EventRecord, progJoin: o.StreamJoin,
		progCollective: o.Collective, progGroup: o.CollectiveGroup, progRuntimeLaunch: o.RuntimeLaunch,
		progRuntimeLaunchConfig: o.RuntimeLaunchConfig, progRuntime: o.RuntimeCall,
	}
}

// attach puts the probes on one file. What could not be attached to is counted; the error joins the reasons.
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
	// Returns first: a return without its call is passed over, a call without its return is kept.
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

// executable is the file as probes are attached to it: through the descriptor, since the path may be another file by
// now. The package link does not read the file, because all offsets are given and none is 0.
func (a *attachment) executable() (*link.Executable, error) {
	return link.OpenExecutable(fmt.Sprintf("/proc/self/fd/%d", a.file.Fd()))
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
