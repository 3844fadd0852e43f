// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"sync"
	"time"

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
)

// worker reads one device in its own goroutine, because a call of the driver may hang forever and
// cannot be cancelled. At most one reading is in flight, so an unresponsive device costs one
// goroutine.
type worker struct {
	device   gpu.Device
	requests chan struct{}
	// results has capacity for the reading in flight, so the worker never blocks on it.
	results chan gpu.Reading
	stop    chan struct{}
	done    chan struct{}
	// close closes stop, once.
	close func()
	// waiting is set if a requested reading has not been received. Only the requesting goroutine
	// uses it.
	waiting bool
}

// startWorker starts a worker. every is the interval of collecting samples between requests; 0
// disables it.
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

// request requests a reading. It returns false if the last one is still in flight. Call request and
// await from one goroutine.
func (w *worker) request() bool {
	if w.waiting {
		select {
		case <-w.results: // it missed the deadline of its scrape
		default:
			return false
		}
	}
	w.waiting = true
	w.requests <- struct{}{} // empty, because the worker has received the last request
	return true
}

// await waits for the requested reading until one of the channels is closed. A result that is
// available counts even after the deadline, which may have passed during the wait for another
// device.
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

// end stops the worker when it is idle. It returns false if that exceeds the time.
func (w *worker) end(limit <-chan struct{}) bool {
	w.close()
	select {
	case <-w.done:
		return true
	case <-limit:
		return false
	}
}
