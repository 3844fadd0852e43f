// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"sync"
	"time"

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
)

// worker reads one device in a goroutine of its own, because a call of the driver may hang for good
// and cannot be taken back. At most one reading is under way, so a device that hangs costs one
// goroutine however often it is asked.
type worker struct {
	device   gpu.Device
	requests chan struct{}
	// results has room for the one reading that can be under way: the worker never waits for somebody
	// to take it.
	results chan gpu.Reading
	stop    chan struct{}
	done    chan struct{}
	// close closes stop, once.
	close func()
	// waiting says that a reading was asked for and has not been taken. It belongs to the goroutine
	// that asks.
	waiting bool
}

// startWorker starts to serve requests. every is the time between two collections of samples, 0 for
// none between requests.
func startWorker(d gpu.Device, every time.Duration) *worker {
	w := &worker{
		device:   d,
		requests: make(chan struct{}, 1), results: make(chan gpu.Reading, 1),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	w.close = sync.OnceFunc(func() { close(w.stop) })
	go w.run(every)
	return w
}

func (w *worker) run(every time.Duration) {
	defer close(w.done)
	var tick <-chan time.Time
	if every > 0 {
		t := time.NewTicker(every)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-w.stop:
			return
		case <-tick:
			w.device.ReadSamples()
		case <-w.requests:
			w.results <- w.device.Read()
		}
	}
}

// request asks for a reading, and reports false if the last one is still under way. One goroutine asks
// and awaits.
func (w *worker) request() bool {
	if w.waiting {
		select {
		case <-w.results: // came too late for its scrape
		default:
			return false
		}
	}
	w.waiting = true
	w.requests <- struct{}{} // empty, because the worker has taken the last one
	return true
}

// await waits for the reading that was asked for until one of the channels is closed. One that is there
// counts, even if the time is up: it was spent waiting for another device.
func (w *worker) await(limit, ended <-chan struct{}) (gpu.Reading, bool) {
	select {
	case reading := <-w.results:
		w.waiting = false
		return reading, true
	default:
	}
	select {
	case reading := <-w.results:
		w.waiting = false
		return reading, true
	case <-limit:
	case <-ended:
	}
	return gpu.Reading{}, false
}

// end tells the worker to end when it is idle, and reports whether it has within the time.
func (w *worker) end(limit <-chan struct{}) bool {
	w.close()
	select {
	case <-w.done:
		return true
	case <-limit:
		return false
	}
}
