// SPDX-License-Identifier: Apache-2.0

package deep

import (
	"fmt"
	"slices"
	"time"
)

// ledger remembers windows and says whether there may be another. It reads no clock.
type ledger struct {
	cfg     *Config
	started time.Time // zero before the start
	// recent are windows and attempts of the last hour: PerHour at most, and one that began before.
	recent []span
	// armed counts windows in which an engine ran.
	armed int
	// last is the end of the window or attempt before, if any.
	last time.Time
}

type span struct{ start, end time.Time }

// check returns nil if a window of a length may begin now. The one before has ended.
func (l *ledger) check(now time.Time, length time.Duration) *Error {
	if wait := l.cfg.Blackout - now.Sub(l.started); l.started.IsZero() || wait > 0 {
		if l.started.IsZero() {
			return NewError(StatusBlackout, "")
		}
		return NewError(StatusBlackout, "allowed in "+wait.Round(time.Millisecond).String())
	}
	if l.cfg.Max > 0 && l.armed >= l.cfg.Max {
		return NewError(StatusMaximum, fmt.Sprint(l.cfg.Max))
	}
	if wait := l.cfg.CoolDown - now.Sub(l.last); !l.last.IsZero() && wait > 0 {
		return NewError(StatusCoolDown, "allowed in "+wait.Round(time.Millisecond).String())
	}
	// The hour that ends with the window now asked for: any other has no more of it.
	end := now.Add(length)
	l.recent = slices.DeleteFunc(l.recent, func(s span) bool { return !s.end.After(now.Add(-time.Hour)) })
	count, used := 0, length
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
