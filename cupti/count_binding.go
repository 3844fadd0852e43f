// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package cupti

/*
#include "gpufl_count.h"
*/
import "C"

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// counts is what a Collector remembers of counting.
type counts struct {
	mu     sync.Mutex
	rows   []C.gpufl_count
	doubts []C.gpufl_doubt
	// begin is what the core had counted when the Collector was opened.
	begin      []C.gpufl_count
	beginStats C.gpufl_count_stats
	names      []*gpuevent.KernelName
}

// open notes where the core's counts stand, and forgets doubts of another Collector.
func (n *counts) open() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.read()
	n.begin = append(n.begin[:0], n.rows...)
	C.gpufl_count_get_stats(&n.beginStats)
	for n.readDoubts() > 0 {
	}
}

func (n *counts) read() {
	for {
		all := int(C.gpufl_counts(rowsAt(n.rows), C.uint32_t(len(n.rows))))
		if all == len(n.rows) {
			return
		}
		n.rows = make([]C.gpufl_count, all)
	}
}

func rowsAt(rows []C.gpufl_count) *C.gpufl_count {
	if len(rows) == 0 {
		return nil
	}
	return &rows[0]
}

func (n *counts) readDoubts() int {
	if n.doubts == nil {
		n.doubts = make([]C.gpufl_doubt, 256)
	}
	return int(C.gpufl_count_doubts(&n.doubts[0], C.uint32_t(len(n.doubts))))
}

// SetMode switches records off and on while launches are counted by kernel name. It begins counting, which
// goes on until Stop; before its first call nothing is counted, and all is as in ModeTrace. It does
// not wait for launches, and not for records: those of launches before the switch still come. While a window is open
// the mode stays as it is: ErrPaused.
//
// In ModeTrace and ModeCount every launch that the driver accepts is counted once. ModeBlind has
// neither records nor counts, and no scopes of launches. An error leaves the mode as it was, or, where
// records could not be switched on, at ModeCount: ErrNotRunning, ErrPaused, ErrCannotCount, or CUPTI's own
// words.
func (c *Collector) SetMode(m Mode) error {
	c.deep.Lock()
	defer c.deep.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running {
		return ErrNotRunning
	}
	if c.deep.window != nil {
		return ErrPaused
	}
	return setMode(m)
}

func setMode(m Mode) error {
	switch rc := int(C.gpufl_count_mode(C.int(m))); rc {
	case C.GPUFL_BUSY:
		return ErrPaused
	case C.GPUFL_NO_SYMBOL:
		return ErrCannotCount
	default:
		return coreError("mode", rc)
	}
}

// Mode is the mode in force: ModeTrace where SetMode was not called since Start, and the last one after Stop. A window that samples program counters makes
// it ModeTrace, since CUPTI knows no kernels where none are recorded.
func (c *Collector) Mode() Mode { return Mode(C.gpufl_count_now()) } //nolint:gosec // One of three.

// recordForWindow has records made while a window is open. The caller holds deep.
func (c *Collector) recordForWindow() error {
	if c.Mode() == ModeTrace {
		return nil
	}
	return setMode(ModeTrace)
}

// Detach leaves CUPTI and goes on in ModeCount or ModeBlind. Once records were made CUPTI makes every launch slower,
// whatever is recorded, until it is left. In ModeCount it is subscribed to anew for nothing but launches; SetMode
// brings back what another mode needs.
//
// Records must be off already. Detach waits at most limit for those of what was launched before, and decodes them:
// they come by Take as always. What is launched while CUPTI is left and taken up, for some milliseconds, is not
// seen: gap is how long. It may be above 0 with an error: then CUPTI was left, could not be taken up again, and the mode
// is ModeBlind. In ModeCount after Detach a later ModeBlind goes on counting: CUPTI would go deaf if its callbacks were switched off and
// on. Errors: ErrNotRunning, ErrBusy, ErrUnderWay,
// ErrCannotDetach, ErrCannotCount, or CUPTI's own words.
func (c *Collector) Detach(m Mode, limit time.Duration) (gap time.Duration, err error) {
	if c.cfg.Deep {
		return 0, fmt.Errorf("%w: deep windows are allowed", ErrCannotDetach)
	}
	c.deep.Lock()
	defer c.deep.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running {
		return 0, ErrNotRunning
	}
	// The names in records are CUPTI's: nobody may decode while it goes.
	c.take.Lock()
	defer c.take.Unlock()
	if c.deep.window != nil {
		return 0, ErrBusy
	}
	if err := c.settle(limit); err != nil {
		return 0, err
	}
	var ns C.int64_t
	rc := int(C.gpufl_count_detach(C.int(m), &ns))
	return time.Duration(ns), detachError(rc)
}

// settle decodes what CUPTI still has, and returns when it has nothing. The caller holds take.
func (c *Collector) settle(limit time.Duration) error {
	until := time.Now().Add(limit)
	for {
		rc := int(C.gpufl_settle())
		if rc != C.GPUFL_OK && rc != C.GPUFL_TIMEOUT {
			return detachError(rc)
		}
		for {
			b, err := c.decodeNext()
			if err != nil {
				return err
			}
			if b == nil {
				break
			}
			c.decoded = append(c.decoded, b)
		}
		switch {
		case rc == C.GPUFL_OK:
			return nil
		case !time.Now().Before(until):
			return ErrUnderWay
		}
		time.Sleep(time.Millisecond)
	}
}

func detachError(rc int) error {
	switch rc {
	case C.GPUFL_BUSY:
		return ErrBusy
	case C.GPUFL_NOT_DETACHED:
		return ErrCannotDetach
	case C.GPUFL_NO_SYMBOL:
		return ErrCannotCount
	default:
		return coreError("detach", rc)
	}
}

// coreAttachment is how often CUPTI was left.
func coreAttachment() uint32 { return uint32(C.gpufl_attachment()) }

// LaunchCounts appends to dst how often everything was launched since Open, by a number that stays the same: first the
// operations, then kernels by name.
func (c *Collector) LaunchCounts(dst []LaunchCount) []LaunchCount {
	n := &c.counts
	n.mu.Lock()
	defer n.mu.Unlock()
	n.read()
	for i := range n.rows {
		r := n.rows[i]
		if i < len(n.begin) {
			b := n.begin[i]
			r.traced -= b.traced
			r.counted -= b.counted
			r.doubtful -= b.doubtful
			r.bytes -= b.bytes
		}
		l := LaunchCount{
			Operation: CountedOperation(min(i, int(CountKernel))), //nolint:gosec // At most CountKernel.
			Traced:    uint64(r.traced), Counted: uint64(r.counted), Doubtful: uint64(r.doubtful), Bytes: uint64(r.bytes),
		}
		if l.Operation == CountKernel {
			l.Name = n.name(i)
		}
		dst = append(dst, l)
	}
	return dst
}

func (n *counts) name(i int) *gpuevent.KernelName {
	for len(n.names) <= i {
		n.names = append(n.names, nil)
	}
	if n.names[i] == nil {
		text := C.GoString(C.gpufl_count_name(C.uint32_t(i)))
		n.names[i] = gpuevent.NewKernelName(strings.ToValidUTF8(text, "\uFFFD"))
	}
	return n.names[i]
}

// Doubts appends to dst the launches that were in flight when records were switched, since the last call.
func (c *Collector) Doubts(dst []Doubt) []Doubt {
	n := &c.counts
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		got := n.readDoubts()
		for _, d := range n.doubts[:got] {
			dst = append(dst, Doubt{Attachment: uint32(d.attachment), Correlation: uint32(d.correlation), What: uint32(d.what)})
		}
		if got < len(n.doubts) {
			return dst
		}
	}
}

// CountStats returns the sums since Open.
func (c *Collector) CountStats() CountStats {
	var s C.gpufl_count_stats
	C.gpufl_count_get_stats(&s)
	b := &c.counts.beginStats
	return CountStats{
		Failed: uint64(s.failed - b.failed), Captured: uint64(s.captured - b.captured), Unlisted: uint64(s.unlisted - b.unlisted),
		Lost: uint64(s.no_memory - b.no_memory), Unnamed: uint64(s.no_room - b.no_room), Switches: uint64(s.switches - b.switches),
		Beside: uint64(s.beside - b.beside), Detached: uint64(s.detached - b.detached), Gap: time.Duration(s.gap_ns - b.gap_ns),
		Traced: time.Duration(s.traced_ns - b.traced_ns),
	}
}
