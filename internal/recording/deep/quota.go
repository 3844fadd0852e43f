// SPDX-License-Identifier: Apache-2.0

package deep

import (
	"fmt"
	"slices"
	"time"
)

// quota remembers windows and says whether there may be another. It reads no clock.
type quota struct {
	cfg     *Config
	started time.Time // zero before the start
	// recent are windows and attempts of the last hour: PerHour at most, and one that began before.
	recent []span
	// armed counts windows in which an engine ran.
	armed int
	// sass says that the process has had its window of SASS.
	sass bool
	// last is the end of the window or attempt before, if any.
	last time.Time
}

type span struct{ start, end time.Time }

// check returns nil if a window that is asked for may begin now. The one before has ended.
func (q *quota) check(now time.Time, r Request) *Error {
	if wait := q.cfg.Blackout - now.Sub(q.started); q.started.IsZero() || wait > 0 {
		if q.started.IsZero() {
			return NewError(StatusBlackout, "")
		}
		return NewError(StatusBlackout, "allowed in "+wait.Round(time.Millisecond).String())
	}
	if q.cfg.Max > 0 && q.armed >= q.cfg.Max {
		return NewError(StatusMaximum, fmt.Sprint(q.cfg.Max))
	}
	if r.Engine == SASS && q.sass {
		return NewError(StatusSASSUsed, "")
	}
	if wait := q.cfg.CoolDown - now.Sub(q.last); !q.last.IsZero() && wait > 0 {
		return NewError(StatusCoolDown, "allowed in "+wait.Round(time.Millisecond).String())
	}
	// The hour that ends with the window now asked for: any other has no more of it.
	end := now.Add(r.For)
	q.recent = slices.DeleteFunc(q.recent, func(s span) bool { return !s.end.After(now.Add(-time.Hour)) })
	count, used := 0, r.For
	for _, s := range q.recent {
		if s.start.After(now.Add(-time.Hour)) {
			count++
		}
		if from := end.Add(-time.Hour); s.end.After(from) {
			used += min(s.end.Sub(s.start), s.end.Sub(from))
		}
	}
	if count >= q.cfg.PerHour {
		return NewError(StatusPerHour, fmt.Sprint(q.cfg.PerHour))
	}
	if used > time.Duration(q.cfg.Share*float64(time.Hour)) {
		return NewError(StatusShare, fmt.Sprintf("%.3g%% of an hour", q.cfg.Share*100))
	}
	return nil
}

// add remembers a window or an attempt that has ended.
func (q *quota) add(start, end time.Time, parts []Part) {
	q.recent = append(q.recent, span{start, end})
	q.last = end
	armed := false
	for i := range parts {
		armed = armed || parts[i].Armed
		q.sass = q.sass || parts[i].Armed && parts[i].Engine == SASS
	}
	if armed {
		q.armed++
	}
}
