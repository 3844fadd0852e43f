// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package probe

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf/link"
)

// enoughLaunches is how many launches in a row have to come from a libcudart to the driver's exported functions
// before it is detached from. A program makes more in its first second of work.
const enoughLaunches = 16

// maxRuntimes is how many libcudart are looked at at once: CHECKS in types.h.
const maxRuntimes = 128

// runtimeLibrary is one libcudart, and whether its calls come to the driver by the driver's exported functions. It
// asks the driver for addresses, and drivers so far have handed out those; one that does not would make all that
// comes through libcudart invisible.
type runtimeLibrary struct {
	path   string
	number uint8
	state  RuntimeState
	// entries are closed a while before returns, so that calls which have begun can end.
	entries, returns []link.Link
	// reached and bypassed are its launches as they were last read, row how many reached since one did not.
	reached, bypassed, row uint64
}

func (r *runtimeLibrary) attached() bool { return len(r.entries)+len(r.returns) > 0 }

func closeAll(links *[]link.Link) error {
	var errs []error
	for _, l := range *links {
		errs = append(errs, l.Close())
	}
	*links = nil
	return errors.Join(errs...)
}

func (r *runtimeLibrary) close() error {
	return errors.Join(closeAll(&r.entries), closeAll(&r.returns))
}

// newRuntime gives a libcudart a number that no other has now. It is in p.reserved until it is in p.runtimes. p.mu is
// held.
func (p *Probe) newRuntime(path string) (*runtimeLibrary, error) {
	var used [maxRuntimes]bool
	for _, r := range p.runtimes {
		if r.attached() {
			used[r.number] = true
		}
	}
	for r := range p.reserved {
		used[r.number] = true
	}
	number := slices.Index(used[:], false)
	if number < 0 {
		p.failed++
		return nil, fmt.Errorf("%d other libcudart are looked at", maxRuntimes)
	}
	key := uint32(number)
	if err := p.objects.Checks.Put(key, cudaRuntimeCheck{}); err != nil {
		return nil, err
	}
	r := &runtimeLibrary{path: path, number: uint8(number), state: RuntimeChecking}
	p.reserved[r] = struct{}{}
	return r, nil
}

// endRuntimes detaches from the returns of each libcudart whose entries are gone, some time after these.
func (p *Probe) endRuntimes() {
	for _, r := range p.runtimes {
		if len(r.entries) == 0 {
			_ = closeAll(&r.returns) // the links of probes that are gone
		}
	}
}

// checkRuntimes decides about each libcudart by what its launches have done since it last did. It is asked often,
// because calls cost twice as much until it has decided.
func (p *Probe) checkRuntimes() {
	for _, r := range p.runtimes {
		if len(r.entries) == 0 {
			continue
		}
		var now cudaRuntimeCheck
		if p.objects.Checks.Lookup(uint32(r.number), &now) != nil {
			continue // an array has all its keys
		}
		if now.Bypassed != r.bypassed {
			r.row = 0
			if r.state != RuntimeBypasses {
				p.say("launches of %s do not come by the driver's exported functions: what they do is counted from libcudart, without names of kernels", r.path)
			}
			r.state = RuntimeBypasses
		} else {
			r.row += now.Reached - r.reached
		}
		r.reached, r.bypassed = now.Reached, now.Bypassed
		if r.row < enoughLaunches {
			continue
		}
		if r.state == RuntimeBypasses {
			p.say("launches of %s come by the driver's exported functions again", r.path)
		}
		r.state = RuntimePassed
		if p.options.Source == SourceAuto {
			_ = closeAll(&r.entries)
		}
	}
}

// checkAgain is for a driver that was not there before: what was found out is about others, and libraries that were
// detached from are looked at once more, where a process still has them.
func (p *Probe) checkAgain() {
	for id, r := range p.runtimes {
		if a := p.libraries[id]; a != nil && len(r.entries) == 0 {
			a.slow, a.failed = 0, 0 // they are counted again
			_ = p.detach(id)
			p.again = true
		}
	}
}

// runtimeChecks tells what is known of each libcudart, by path.
func (p *Probe) runtimeChecks() []RuntimeCheck {
	var all []RuntimeCheck
	for _, r := range p.runtimes {
		all = append(all, RuntimeCheck{
			Library: r.path, State: r.state, Attached: r.attached(), Reached: r.reached, Bypassed: r.bypassed,
		})
	}
	slices.SortFunc(all, func(a, b RuntimeCheck) int { return cmp.Compare(a.Library, b.Library) })
	return all
}

func (p *Probe) say(format string, args ...any) {
	if p.options.Log != nil {
		p.options.Log(fmt.Sprintf(format, args...))
	}
}
