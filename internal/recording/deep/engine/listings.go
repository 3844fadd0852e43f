// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/cubin"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
)

const (
	// maxDisassembled is how many functions of one window are disassembled, those with the largest
	// figures first; maxListed how many of a session.
	maxDisassembled = 64
	maxListed       = 4096
	// listingBytes is the most text that is handed over at once. A function whose SASS has more has no text,
	// and one whose SASS and PTX together have more has no PTX.
	listingBytes = 4 << 20
	// disassembly bounds a run of nvdisasm, which has the lowest priority of the machine.
	disassembly = time.Minute
)

// listingKey is a function of an image.
type listingKey struct {
	crc      uint64
	function string
}

// textOf is what is known of a function's text.
type textOf uint8

const (
	textComing textOf = iota + 1 // asked for, or sent
	textNone                     // there is none, or no room for it
)

// textJob is an image, and those of its functions that have no text yet.
type textJob struct {
	crc       uint64
	functions []string
	// of is the window that asked first, and end when that ended.
	of  uint64
	end time.Time
}

// texts has nvdisasm print functions and hands over what it printed, each function once in a
// session. It runs on a goroutine of its own, one image at a time: nvdisasm takes a second or more
// for a large image, and figures must not wait for it. What is not printed when the session ends is
// counted as missing.
type texts struct {
	from Collector
	sink Sink
	log  *slog.Logger
	// hurry is closed when there shall be no more disassembly, abandon when nobody waits any more.
	hurry, abandon <-chan struct{}
	done           chan struct{}

	mu     sync.Mutex
	closed bool
	found  *cubin.Disassembler // nil if there is none
	sought bool
	state  map[listingKey]textOf
	// failed are images of which nvdisasm made nothing: it is not asked again.
	failed map[uint64]struct{}
	queue  []*textJob
	wake   chan struct{}
}

func newTexts(from Collector, sink Sink, log *slog.Logger, hurry, abandon <-chan struct{}) *texts {
	return &texts{
		from: from, sink: sink, log: log, hurry: hurry, abandon: abandon, done: make(chan struct{}),
		state: map[listingKey]textOf{}, failed: map[uint64]struct{}{}, wake: make(chan struct{}, 1),
	}
}

// want decides which of a window's functions, those with the largest figures first, shall have a
// text that has not been asked for yet, and returns those. Ask asks for them.
func (t *texts) want(functions []listingKey) (wanted []listingKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(functions) > 0 {
		t.seek()
	}
	for _, f := range functions {
		if t.state[f] != 0 {
			continue
		}
		if len(wanted) == maxDisassembled || len(t.state) >= maxListed {
			break
		}
		if _, failed := t.failed[f.crc]; failed || t.found == nil {
			t.state[f] = textNone
			continue
		}
		t.state[f] = textComing
		wanted = append(wanted, f)
	}
	return wanted
}

// seek looks for nvdisasm when the first window has figures, not before: the program may not have
// mapped the libraries that it lies beside.
func (t *texts) seek() {
	if t.sought {
		return
	}
	t.sought = true
	d, err := cubin.FindDisassembler("")
	if err != nil {
		t.log.Info("gpuflight: deep windows have no text of instructions", "reason", err)
		return
	}
	d.TimeLimit = disassembly
	t.found = d
}

// coming says whether the text of a function has been sent, or is in flight.
func (t *texts) coming(f listingKey) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state[f] == textComing
}

// ask queues functions for nvdisasm. Those of an image that is queued already come with it.
func (t *texts) ask(window uint64, end time.Time, wanted []listingKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	jobs := map[uint64]*textJob{}
	for _, j := range t.queue {
		jobs[j.crc] = j
	}
	for _, f := range wanted {
		j := jobs[f.crc]
		if j == nil {
			j = &textJob{crc: f.crc, of: window, end: end}
			jobs[f.crc] = j
			t.queue = append(t.queue, j)
		}
		j.functions = append(j.functions, f.function)
	}
	t.signal()
}

func (t *texts) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// close says that nothing is asked for any more.
func (t *texts) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.signal()
}

// next waits for an image; nil says that there is none any more.
func (t *texts) next(ctx context.Context) *textJob {
	for {
		t.mu.Lock()
		if len(t.queue) > 0 && ctx.Err() == nil {
			j := t.queue[0]
			t.queue = t.queue[1:]
			t.mu.Unlock()
			return j
		}
		closed := t.closed
		t.mu.Unlock()
		if closed {
			return nil
		}
		<-t.wake
	}
}

// run is the goroutine. Nothing that goes wrong in it may end the program around it.
func (t *texts) run() {
	defer close(t.done)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-t.hurry:
			cancel()
		case <-ctx.Done():
		}
	}()
	for j := t.next(ctx); j != nil; j = t.next(ctx) {
		if err := t.guarded(ctx, j); err != nil {
			t.log.Info("gpuflight: instructions have no text", "error", err)
		}
	}
	t.mu.Lock()
	missing := 0
	for _, j := range t.queue {
		missing += len(j.functions)
	}
	t.queue = nil
	t.mu.Unlock()
	t.miss(missing)
}

// miss tells of functions that have no text although they were to have one.
func (t *texts) miss(functions int) {
	if functions > 0 {
		t.sink.CountMissingListings(uint64(functions))
	}
}

// guarded prints the functions of an image and returns a panic as an error.
func (t *texts) guarded(ctx context.Context, j *textJob) (err error) {
	handed := 0
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("internal error: %v\n%s", p, debug.Stack())
			t.none(j.crc, j.functions[handed:])
		}
		if err != nil && ctx.Err() == nil {
			t.mu.Lock()
			t.failed[j.crc] = struct{}{}
			t.mu.Unlock()
		}
		t.miss(len(j.functions) - handed)
	}()
	r := cubin.NewResolver(cubin.Settings{Image: t.from.CubinImage, Disassembler: t.found})
	if err := r.Disassemble(ctx, j.crc, j.functions); err != nil {
		t.none(j.crc, j.functions)
		return err
	}
	var list []recorder.WindowListing
	functions, size := 0, 0 // of list
	for i, f := range j.functions {
		sass, ok := r.Listing(j.crc, f)
		if !ok || len(sass.Text) > listingBytes {
			t.none(j.crc, j.functions[i:i+1])
			continue
		}
		all, bytes := []cubin.Listing{sass}, len(sass.Text)
		if ptx, ok := r.PTX(j.crc, f); ok && bytes+len(ptx.Text) <= listingBytes {
			all, bytes = append(all, ptx), bytes+len(ptx.Text)
		}
		if size+bytes > listingBytes {
			if !t.hand(j, list) {
				return nil
			}
			handed += functions
			list, functions, size = nil, 0, 0
		}
		for i := range all {
			list = append(list, recorder.WindowListing{Record: all[i].Record(gpuevent.Ref{}, 0), Text: all[i].Text})
		}
		functions++
		size += bytes
	}
	if len(list) > 0 && t.hand(j, list) {
		handed += functions
	}
	return nil
}

// none notes that functions have no text.
func (t *texts) none(crc uint64, functions []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range functions {
		t.state[listingKey{crc, f}] = textNone
	}
}

// hand offers texts until they are taken. It reports false if nobody waits any more.
func (t *texts) hand(j *textJob, list []recorder.WindowListing) bool {
	tick := time.NewTicker(offer)
	defer tick.Stop()
	for !t.sink.AddListings(recorder.WindowTexts{Window: j.of, End: j.end, Listings: list}) {
		select {
		case <-tick.C:
		case <-t.abandon:
			return false
		}
	}
	return true
}
