// SPDX-License-Identifier: Apache-2.0

// Package duckstore stores GPU telemetry in DuckDB files, one for each segment of a session. It
// implements [store.Store].
//
// A segment has the rows of one session in a range of time, with the dictionaries that the rows refer
// to. It depends on no other file, so a copy of it can be opened elsewhere. The catalogue holds a
// summary of each session. It is derived: a store without a catalogue reads the segments.
//
// If many sessions are written at once, their rows are made durable together in a journal. The store
// moves those of one session after the other to its segments, and before a reader opens them.
//
// DuckDB needs cgo. Without cgo, [Open] returns an error that wraps [store.ErrNotBuilt].
package duckstore

import (
	"runtime"
	"time"

	"github.com/gpuflight/gpuflight/internal/store"
)

// Config configures a store. Zero values select the defaults.
type Config struct {
	// Directory has all files. The store creates it with mode 0700.
	Directory string
	// MemoryLimit is DuckDB's memory_limit in bytes, 256 MiB by default. The process uses up to
	// three times as much.
	MemoryLimit int64
	// TempLimit is the largest size of temporary files in bytes, 4 GiB by default.
	TempLimit int64
	// Threads is the number of threads of DuckDB, [DefaultThreads] by default.
	Threads int
	// MaxAttached is the number of segments that stay open, by default one for each 20 MiB of the
	// memory limit. Running calls may keep more.
	MaxAttached int
	// SegmentOps and SegmentAge start a new segment of a session, by default after 32 M operations or
	// 24 h of its time.
	SegmentOps int64
	SegmentAge time.Duration
	// Settled is called when the store knows what became of rows that were Deferred in a [store.Result].
	// It may be nil.
	Settled func(store.Result)
	// Damaged is called for each file that the store sets aside, with its new name. It may be nil.
	Damaged func(file string, reason error)
}

// Stats counts the work of a store since it was opened.
type Stats struct {
	// Rows is rows written, Duplicates rows that were stored already, Replaced spans and points that
	// replaced an earlier version, Rejected rows that no store can hold.
	Rows, Duplicates, Replaced, Rejected int64
	// Commits is the number of transactions, CommitTime the time that they took.
	Commits    int64
	CommitTime time.Duration
	// Failures is the number of transactions that failed.
	Failures int64
	// Waiting is the number of rows that are durable but not yet in a segment, WaitingSessions that of
	// their sessions.
	Waiting, WaitingSessions int64
	// Bytes is the size of all segments and of the rows that wait.
	Bytes int64
	// Sessions and Segments are those stored, Attached the segments that are open.
	Sessions, Segments, Attached int64
	// Damaged is the number of files set aside, Deleted the number of sessions that retention deleted.
	Damaged, Deleted int64
}

// DefaultThreads is a quarter of the processors that the process may use, from 2 to 4. A query of 100 M kernels takes up
// to 0.4 s of processor time. The other processors are for the programs on the machine.
func DefaultThreads() int { return threads(runtime.GOMAXPROCS(0)) }

func threads(processors int) int { return min(max(processors/4, 2), 4) }

func (c *Config) defaults() {
	set := func(p *int64, v int64) {
		if *p <= 0 {
			*p = v
		}
	}
	set(&c.MemoryLimit, 256<<20)
	set(&c.TempLimit, 4<<30)
	set(&c.SegmentOps, 32_000_000)
	if c.Threads <= 0 {
		c.Threads = DefaultThreads()
	}
	if c.MaxAttached <= 0 {
		c.MaxAttached = int(max(c.MemoryLimit/(20<<20), 4))
	}
	if c.SegmentAge <= 0 {
		c.SegmentAge = 24 * time.Hour
	}
}
