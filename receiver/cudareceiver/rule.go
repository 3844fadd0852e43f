// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"
)

// rule says when a window opens by itself. It remembers the last look and nothing else: while a rate stays where it
// opens windows, each look says so.
type rule struct {
	cfg  *TraceRuleConfig
	at   time.Time // of the last look, zero before the first
	last map[probe.ProcessID]uint64
}

// cause is why a window opened: a process, and how often it launched.
type cause struct {
	process probe.ProcessID
	rate    float64
}

// look compares what each process has launched until now with the last look. The processes that it returns meet the
// rule, the fastest first if it is about fast ones, else the slowest. Of a process that is new since the last look
// all launches were made since then.
func (r *rule) look(now time.Time, launches map[probe.ProcessID]uint64) []cause {
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
			continue // it launched nothing, which is not slow but idle
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

// forget makes the next look the first, after a time without looks.
func (r *rule) forget() { r.at, r.last = time.Time{}, nil }
