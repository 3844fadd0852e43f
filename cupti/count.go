// SPDX-License-Identifier: Apache-2.0

package cupti

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// Mode says what becomes of launches, copies and sets. See [Collector.SetMode].
type Mode uint8

// The modes. Values are shared with the C core (GPUFL_MODE_…).
const (
	ModeTrace Mode = iota // they have records, and are counted
	ModeCount             // they are only counted
	ModeBlind             // they are not seen
)

// Errors of SetMode.
var (
	// ErrCannotCount says that this CUPTI does not tell of launches.
	ErrCannotCount = errors.New("cupti: this library does not tell of launches")
	// ErrPaused says that Pause holds and Resume must come first.
	ErrPaused = errors.New("cupti: recording is paused")
)

// Errors of Detach, which leave all as it was.
var (
	// ErrUnderWay says that what was launched has not ended in time: its records would be lost. It may be tried again.
	ErrUnderWay = errors.New("cupti: work whose records would be lost is under way")
	// ErrBusy says that records are on, Pause holds, or a stream is being captured.
	ErrBusy = errors.New("cupti: CUPTI cannot be left now: records are on, recording is paused, or a stream is being captured")
	// ErrCannotDetach says that windows were asked for, which need to know contexts, modules and captures from
	// the beginning, or that this library or driver cannot do it.
	ErrCannotDetach = errors.New("cupti: CUPTI cannot be left while recording goes on")
)

// CountedOperation is what a [LaunchCount] is of.
type CountedOperation uint8

// What is counted. Values are shared with the C core (GPUFL_COUNT_…), where every kernel name has a
// number of its own from CountKernel on.
const (
	CountOtherKernel CountedOperation = iota // launches without a name, without room for it, or of several kernels at once
	CountGraph                               // launches of graphs
	CountHtoD                                // linear copies from the host to the device, and so on
	CountDtoH
	CountDtoD
	CountOtherCopy // copies of arrays, of several dimensions, between devices, or of which the call does not say where
	CountSet
	CountKernel
)

// LaunchCount is how often something was launched since Open, as far as it was counted: from the first
// SetMode until Stop. Each launch is in one of Traced, Counted and Doubtful.
type LaunchCount struct {
	Operation CountedOperation
	// Name is the kernel's, nil but for CountKernel.
	Name *gpuevent.KernelName
	// Traced were launched while there were records, Counted while there were none. Doubtful were in flight
	// when that changed: some have a record. See Doubts.
	Traced, Counted, Doubtful uint64
	// Bytes is the size of copies and sets, of those calls that say it in a number: not of two and three
	// dimensions but for sets, and not of arrays.
	Bytes uint64
}

// Launches is all of them.
func (l *LaunchCount) Launches() uint64 { return l.Traced + l.Counted + l.Doubtful }

// Doubt is a launch during which records were switched on or off. If a record with this Correlation comes, in a batch of
// this Attachment, it was traced, else not.
type Doubt struct {
	Attachment, Correlation uint32
	// What is the index of its LaunchCount.
	What uint32
}

// CountStats are sums since Open of what counting could not say for certain.
type CountStats struct {
	// Failed calls were refused by the driver, and are not counted.
	Failed uint64
	// Captured were made while a stream was being captured. They are counted; those in the capture did not run.
	Captured uint64
	// Unlisted are doubtful ones that Doubts has no room for.
	Unlisted uint64
	// Lost were not counted for want of memory, Unnamed only as CountOtherKernel.
	Lost, Unnamed uint64
	// Switches is how often records were switched on or off. Beside are the switches, also those of callbacks, that
	// launches did not wait for: CUPTI may make no records of some threads' launches after them. Detached is how often CUPTI was left.
	Switches, Beside, Detached uint64
	// Gap is for how long nothing was seen, where launches were to be counted, because CUPTI was left and taken up again.
	Gap time.Duration
	// Traced is for how long ModeTrace has held until now, but for the time in which launches waited for a switch.
	Traced time.Duration
}

// Reconciler finds out which doubtful launches have records. It belongs to one goroutine.
type Reconciler struct {
	// young are those that wait for a record since the last Age, old those since the one before: what
	// they are of, by attachment and correlation id.
	young, old map[uint64]uint32
	// low and high bound the ids in both.
	low, high uint64
	traced    map[uint32]uint64
	// forgotten are those that found no room, by what.
	forgotten map[uint32]uint64
	// last are the records shown last, a ring: a launch whose thread is held up before its end is a doubtful one only after its
	// record has come.
	last  [lastRecords]uint64
	shown uint64
}

// lastRecords is what is read in some ten milliseconds at a million records a second.
const lastRecords = 1 << 14

// maxDoubts is how many doubtful launches may wait for a record, twice: as many as the core lists.
const maxDoubts = 1 << 16

// NewReconciler returns an empty one.
func NewReconciler() *Reconciler {
	return &Reconciler{young: map[uint64]uint32{}, old: map[uint64]uint32{}, traced: map[uint32]uint64{}, forgotten: map[uint32]uint64{}}
}

// Add takes doubtful launches. It comes before the records of the same time are shown to Record. It returns what those are of that
// have been recorded already, and that Record took for no doubtful ones.
func (r *Reconciler) Add(doubts []Doubt) (before []uint32) {
	if len(doubts) == 0 {
		return nil
	}
	recorded := r.recorded(doubts)
	for _, d := range doubts {
		id := launchID(d.Attachment, d.Correlation)
		if recorded[id] {
			recorded[id] = false
			r.traced[d.What]++
			before = append(before, d.What)
			continue
		}
		if len(r.young) >= maxDoubts {
			r.forgotten[d.What]++
			continue
		}
		if len(r.young)+len(r.old) == 0 {
			r.low, r.high = id, id
		}
		r.low, r.high = min(r.low, id), max(r.high, id)
		r.young[id] = d.What
	}
	return before
}

// recorded says by id which of these launches are among those whose records were shown last. Doubts are few.
func (r *Reconciler) recorded(doubts []Doubt) map[uint64]bool {
	all := make(map[uint64]bool, len(doubts))
	low, high := uint64(math.MaxUint64), uint64(0)
	for _, d := range doubts {
		id := launchID(d.Attachment, d.Correlation)
		low, high = min(low, id), max(high, id)
		all[id] = false
	}
	for _, id := range r.last[:min(r.shown, lastRecords)] {
		if id < low || id > high {
			continue
		}
		if _, ok := all[id]; ok {
			all[id] = true
		}
	}
	return all
}

func launchID(attachment, correlation uint32) uint64 {
	return uint64(attachment)<<32 | uint64(correlation)
}

// Record is shown each record, with its batch's Attachment. It says whether the record's launch was a doubtful one, which is then known
// to be traced. A graph launch may have several records; the first counts.
func (r *Reconciler) Record(attachment, correlation uint32) bool {
	id := launchID(attachment, correlation)
	r.last[r.shown%lastRecords] = id
	r.shown++
	if len(r.young)+len(r.old) == 0 || id < r.low || id > r.high {
		return false
	}
	for _, open := range []map[uint64]uint32{r.young, r.old} {
		if what, ok := open[id]; ok {
			delete(open, id)
			r.traced[what]++
			return true
		}
	}
	return false
}

// Age takes those that were added before the last Age as having no record, and returns their number by what they
// are of, nil if there is none. It is called when all records of that time must have come, some minutes later.
func (r *Reconciler) Age() map[uint32]uint64 {
	var without map[uint32]uint64
	for _, what := range r.old {
		if without == nil {
			without = map[uint32]uint64{}
		}
		without[what]++
	}
	r.old, r.young = r.young, r.old
	clear(r.young)
	return without
}

// Traced is how many doubtful launches of an index turned out to have a record, Forgotten of how many that
// cannot be known.
func (r *Reconciler) Traced(what uint32) uint64 { return r.traced[what] }

// Forgotten is how many doubtful launches of an index found no room.
func (r *Reconciler) Forgotten(what uint32) uint64 { return r.forgotten[what] }

// String returns the mode as telemetry spells it.
func (m Mode) String() string {
	switch m {
	case ModeTrace:
		return "trace"
	case ModeCount:
		return "count"
	case ModeBlind:
		return "blind"
	default:
		return fmt.Sprintf("Mode(%d)", uint8(m))
	}
}
