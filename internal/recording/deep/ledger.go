// SPDX-License-Identifier: Apache-2.0

package deep

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpuflight/gpuflight/internal/bytesize"
)

// KeptPerInstruction and KeptPerFunction are how many bytes of device memory CUPTI is taken to keep for each instruction that a window
// of SASS patched, and for each function that these are of. It keeps each copy of the code that it patched, of each window anew, until the
// process ends, and tells nobody how large they are. CUPTI 13.0 update 1 with driver 580.159.04 on an H200, a training with PyTorch that
// launched 52 kernels: 14.8 MiB a window over 180 windows that patched all of their 93,000 instructions, and 1.0 MiB over 20 that patched
// only the 3,300 that access global memory.
const (
	KeptPerInstruction = 170
	KeptPerFunction    = 10_000
)

// ledger remembers windows and says whether there may be another. It reads no clock.
type ledger struct {
	cfg     *Config
	started time.Time // zero before the start
	// recent are windows and attempts of the last hour: PerHour at most, and one that began before.
	recent []span
	// armed counts windows in which an engine ran.
	armed int
	// kept is the device memory that CUPTI is taken to keep of windows of SASS, in bytes, and most that of one of them.
	kept, most uint64
	// halfway is when kept reached half of what is allowed.
	halfway time.Time
	// last is the end of the window or attempt before, if any.
	last time.Time
}

type span struct{ start, end time.Time }

// check returns nil if a window that is asked for may begin now. The one before has ended.
func (l *ledger) check(now time.Time, r Request) *Error {
	if wait := l.cfg.Blackout - now.Sub(l.started); l.started.IsZero() || wait > 0 {
		if l.started.IsZero() {
			return NewError(StatusBlackout, "")
		}
		return NewError(StatusBlackout, "allowed in "+wait.Round(time.Millisecond).String())
	}
	if l.cfg.Max > 0 && l.armed >= l.cfg.Max {
		return NewError(StatusMaximum, fmt.Sprint(l.cfg.Max))
	}
	if r.Engine == SASS {
		if err := l.noMemory(now, r.Cause); err != nil {
			return err
		}
	}
	if wait := l.cfg.CoolDown - now.Sub(l.last); !l.last.IsZero() && wait > 0 {
		return NewError(StatusCoolDown, "allowed in "+wait.Round(time.Millisecond).String())
	}
	// The hour that ends with the window now asked for: any other has no more of it.
	end := now.Add(r.For)
	l.recent = slices.DeleteFunc(l.recent, func(s span) bool { return !s.end.After(now.Add(-time.Hour)) })
	count, used := 0, r.For
	for _, s := range l.recent {
		if s.start.After(now.Add(-time.Hour)) {
			count++
		}
		if from := end.Add(-time.Hour); s.end.After(from) {
			used += min(s.end.Sub(s.start), s.end.Sub(from))
		}
	}
	if count >= l.cfg.PerHour {
		return NewError(StatusPerHour, fmt.Sprint(l.cfg.PerHour))
	}
	if used > time.Duration(l.cfg.Share*float64(time.Hour)) {
		return NewError(StatusShare, fmt.Sprintf("%.3g%% of an hour", l.cfg.Share*100))
	}
	return nil
}

// add remembers a window or an attempt that has ended.
func (l *ledger) add(start, end time.Time, armed bool) {
	l.recent = append(l.recent, span{start, end})
	l.last = end
	if armed {
		l.armed++
	}
}

// keep notes what CUPTI keeps of a window.
func (l *ledger) keep(now time.Time, c *Collected) {
	bytes := c.Patched*KeptPerInstruction + c.PatchedFunctions*KeptPerFunction
	l.kept += bytes
	l.most = max(l.most, bytes)
	if l.halfway.IsZero() && l.cfg.Memory > 0 && l.kept >= uint64(l.cfg.Memory)/2 {
		l.halfway = now
	}
}

// spares says that what memory there is for windows of SASS is not for the schedule now. It has the first half as it likes, and then
// half of what is left each time that the process has become twice as old: so its windows become rare and do not end, and there is
// memory for a rule or a person that asks.
func (l *ledger) spares(now time.Time) bool {
	if l.halfway.IsZero() {
		return false
	}
	young, age := l.halfway.Sub(l.started), now.Sub(l.started)
	return float64(l.kept+l.most) > float64(l.cfg.Memory)*(1-young.Seconds()/age.Seconds()/2)
}

// full says that there is no memory for another window of SASS.
func (l *ledger) full() bool { return l.cfg.Memory > 0 && l.kept >= uint64(l.cfg.Memory) }

// noMemory returns nil if a window of SASS for a cause may leave memory now.
func (l *ledger) noMemory(now time.Time, cause Cause) *Error {
	switch {
	case l.full():
		return l.errFull()
	case cause == CauseSchedule && l.spares(now):
		return l.errSpared()
	}
	return nil
}

func (l *ledger) errFull() *Error   { return NewError(StatusMemory, l.share()) }
func (l *ledger) errSpared() *Error { return NewError(StatusSpared, l.share()) }

func (l *ledger) share() string {
	return fmt.Sprintf("some %s of %s", bytesize.Format(l.kept), bytesize.Format(uint64(l.cfg.Memory))) //nolint:gosec // Not below 0.
}
