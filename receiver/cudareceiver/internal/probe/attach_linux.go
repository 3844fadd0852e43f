// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package probe

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// attachment is a library that is attached to.
type attachment struct {
	library library
	path    string
	// file is kept open, so that the library can be attached to again when its path is gone.
	file      *os.File
	functions int
	// links are closed to detach; those of a libcudart are in its runtimeLibrary.
	links []link.Link
	// slow and failed are functions that would be single-stepped, and that could not be attached to.
	slow, failed uint64
	// missing is how many looks in a row found nobody who has it mapped.
	missing int
}

// close detaches.
func (a *attachment) close() error {
	err := closeAll(&a.links)
	if a.file != nil {
		err = errors.Join(err, a.file.Close())
		a.file = nil
	}
	return err
}

// detachAfter is after how many looks a library that nobody has mapped is let go: a probe holds the file, whose image may
// long be deleted.
const detachAfter = 20

// rescan attaches to libraries that are new, and detaches from those that are gone.
func (p *Probe) rescan() error {
	found, denied, err := discover(filepath.Join(p.options.Root, "proc"))
	if err != nil {
		return err
	}
	p.denied = denied
	err = p.attachNew(found)
	if p.mappings == nil {
		return err // a process that loads one again would be noticed too late
	}
	present := make(map[file]bool, len(found))
	for _, c := range found {
		present[c.file] = true
	}
	for id, a := range p.libraries {
		a.missing++
		if present[id] {
			a.missing = 0
		}
		if a.missing >= detachAfter {
			err = errors.Join(err, p.detach(id))
		}
	}
	return err
}

// detach lets a library go. What could not be attached to of it stays counted.
func (p *Probe) detach(id file) error {
	a := p.libraries[id]
	delete(p.libraries, id)
	p.slow += a.slow
	p.failed += a.failed
	err := a.close()
	if r := p.runtimes[id]; r != nil {
		delete(p.runtimes, id)
		err = errors.Join(err, r.close())
	}
	return err
}

// attachNew attaches to those of some libraries that are new.
func (p *Probe) attachNew(found []candidate) error {
	// The driver before the runtime, whose calls are held against it.
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.library, b.library) })
	var firstErr error
	for _, c := range found {
		firstErr = errors.Join(firstErr, p.admit(c))
	}
	// A file that is no library is one failure; what is not allowed fails for all of them.
	if errors.Is(firstErr, os.ErrPermission) {
		return firstErr
	}
	return nil
}

// admit attaches to a library if it is new and wanted.
func (p *Probe) admit(c candidate) error {
	if _, ok := p.libraries[c.file]; ok || p.only != nil && !p.only(c.path) || !p.wants(c.library) {
		return nil
	}
	f, err := os.Open(c.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the process that had it is gone; if others have it, the next look finds it
	}
	if err != nil {
		return err
	}
	a := &attachment{library: c.library, path: c.path, file: f}
	err = p.attach(c.file, a)
	p.libraries[c.file] = a
	if c.library == libcuda {
		p.checkAgain()
		if p.trace != nil {
			_ = p.trace.attach(a) // what fails is counted
		}
	}
	return err
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
func (p *Probe) programsOf() [programs]*ebpf.Program {
	o := p.objects
	return [programs]*ebpf.Program{
		progLaunch: o.Launch, progLaunchConfig: o.LaunchConfig, progGraphLaunch: o.GraphLaunch, progCopy: o.Copy,
		progBatch: o.CopyBatch, progSet: o.Set, progAlloc: o.Alloc, progFree: o.Release, progWait: o.Wait,
		progOther: o.Other, progForget: o.ForgetHandle, progRecord: o.EventRecord, progJoin: o.StreamJoin,
		progCollective: o.Collective, progGroup: o.CollectiveGroup, progRuntimeLaunch: o.RuntimeLaunch,
		progRuntimeLaunchConfig: o.RuntimeLaunchConfig, progRuntime: o.RuntimeCall,
	}
}

// attach puts the probes on one file.
func (p *Probe) attach(id file, a *attachment) error {
	index := functionsOf(a.library)
	found, err := functions(a.file, index)
	if err != nil {
		a.failed++
		return err
	}
	executable, err := a.executable()
	if err != nil {
		a.failed++
		return err
	}
	var check *runtimeLibrary
	returned := p.objects.Returned
	if a.library == libcudart {
		if check, err = p.newRuntime(a.path); err != nil {
			return err
		}
		p.runtimes[id] = check
		returned = p.objects.RuntimeReturned
	}
	type hook struct {
		program *ebpf.Program
		ret     bool
	}
	type target struct{ offsets, cookies []uint64 }
	targets := map[hook]*target{}
	programsOf := p.programsOf()
	attached := map[uint64]bool{}
	for _, fn := range found {
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
		hooks := []hook{{program: programsOf[d.program]}}
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
	return errs
}

// executable is the file as probes are attached to it: through the descriptor, since the path may be another file by
// now.
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
