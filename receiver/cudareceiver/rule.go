// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"
)

// rule decides when launch rates open a window. It keeps only the counts of the last check, so it
// returns the same causes again as long as the rates match.
type rule struct {
	cfg  *TraceRuleConfig
	at   time.Time // of the last check, zero before the first
	last map[probe.ProcessID]uint64
}

// cause is why a window opened: a process and its launch rate.
type cause struct {
	process probe.ProcessID
	rate    float64
}

// check compares the launches of each process with the last check. It returns the processes that
// match the rule, ordered by rate: the fastest first if the rule is about high rates, else the
// slowest. All launches of a process that is new since the last check count as made since then.
func (r *rule) check(now time.Time, launches map[probe.ProcessID]uint64) []cause {
	at, last := r.at, r.last
	r.at, r.last = now, launches
	seconds := now.Sub(at).Seconds()
	if at.IsZero() || seconds <= 0 {
		return nil
	}
	var fast, slow []cause
	for id, n := range launches {
		before := last[id]
		if n <= before {
			continue // a process without launches is idle, not slow
		}
		c := cause{id, float64(n-before) / seconds}
		if r.cfg.Above > 0 && c.rate > r.cfg.Above {
			fast = append(fast, c)
		}
		if r.cfg.Below > 0 && c.rate < r.cfg.Below {
			slow = append(slow, c)
		}
	}
	byRate := func(a, b cause) int {
		return cmp.Or(cmp.Compare(a.rate, b.rate), cmp.Compare(a.process.PID, b.process.PID))
	}
	slices.SortFunc(slow, byRate)
	slices.SortFunc(fast, func(a, b cause) int { return byRate(b, a) })
	return append(fast, slow...)
}

// forget discards the last check, after a time without checks.
func (r *rule) forget() { r.at, r.last = time.Time{}, nil }
