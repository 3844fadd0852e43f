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

// enoughLaunches is the number of consecutive launches from a libcudart that must reach the
// driver's exported functions before it is detached. A program makes more in its first second of
// work.
const enoughLaunches = 16

// maxRuntimes bounds the libcudart libraries that are checked at a time: CHECKS in types.h.
const maxRuntimes = 128

// runtimeLibrary is one libcudart, with the check whether its calls use the driver's exported
// functions. It requests addresses from the driver, and drivers so far return those functions. With
// another driver, calls through libcudart would not be counted.
type runtimeLibrary struct {
	path   string
	number uint8
	state  RuntimeState
	// entries are closed some time before returns, so that calls in flight can end.
	entries, returns []link.Link
	// reached and bypassed are the last read counts of launches. row counts the reached ones since
	// the last bypassed one.
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

// newRuntime assigns a unique number to a libcudart. It stays in p.reserved until it is in
// p.runtimes. The caller holds p.mu.
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
		return nil, fmt.Errorf("%d other libcudart libraries are being checked", maxRuntimes)
	}
	key := uint32(number)
	if err := p.objects.Checks.Put(key, cudaRuntimeCheck{}); err != nil {
		return nil, err
	}
	r := &runtimeLibrary{path: path, number: uint8(number), state: RuntimeChecking}
	p.reserved[r] = struct{}{}
	return r, nil
}

// endRuntimes detaches the returns of each libcudart some time after its entries.
func (p *Probe) endRuntimes() {
	for _, r := range p.runtimes {
		if len(r.entries) == 0 {
			_ = closeAll(&r.returns) // the links of probes that are gone
		}
	}
}

// checkRuntimes decides about each libcudart by its new launches. It is called often, because calls
// cost twice as much until it has decided.
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
				p.say("launches of %s bypass the driver's exported functions: they are counted at libcudart, without kernel names", r.path)
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
			p.say("launches of %s use the driver's exported functions again", r.path)
		}
		r.state = RuntimePassed
		if p.options.Source == SourceAuto {
			_ = closeAll(&r.entries)
		}
	}
}

// checkAgain handles a new driver. Earlier results concern other drivers. Detached libraries are
// checked again if a process still maps them.
func (p *Probe) checkAgain() {
	for id, r := range p.runtimes {
		if a := p.libraries[id]; a != nil && len(r.entries) == 0 {
			a.slow, a.failed = 0, 0 // they are counted again
			_ = p.detach(id)
			p.again = true
		}
	}
}

// runtimeChecks returns the state of each libcudart, by path.
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
