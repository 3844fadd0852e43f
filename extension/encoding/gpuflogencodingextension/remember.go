// SPDX-License-Identifier: Apache-2.0

package gpuflogencodingextension

import (
	"hash/maphash"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// seed makes hashes of lines and messages, which stay in the process.
var seed = maphash.MakeSeed()

// recent remembers the hashes of the last so many things.
type recent struct {
	limit int
	m     map[uint64]struct{}
	ring  []uint64
	next  int
}

// seen reports whether a thing is remembered, and remembers it.
func (r *recent) seen(hash uint64) bool {
	if _, ok := r.m[hash]; ok {
		return true
	}
	if r.m == nil {
		r.m = map[uint64]struct{}{}
	}
	if len(r.ring) < r.limit {
		r.ring = append(r.ring, hash)
	} else {
		delete(r.m, r.ring[r.next])
		r.ring[r.next] = hash
		r.next = (r.next + 1) % r.limit
	}
	r.m[hash] = struct{}{}
	return false
}

// forget makes a thing not remembered. Its place stays taken for a while.
func (r *recent) forget(hash uint64) { delete(r.m, hash) }

// output is the data that came of a message; only that of one signal is set.
type output struct {
	traces  ptrace.Traces
	logs    plog.Logs
	metrics pmetric.Metrics
}

func newOutput() output {
	return output{ptrace.NewTraces(), plog.NewLogs(), pmetric.NewMetrics()}
}

// take moves the events of a batch behind what is there.
func (o *output) take(b *gpuevent.Batch) {
	var more output
	more.traces, more.logs, more.metrics = b.Take()
	o.append(more)
}

// append moves other behind what is there.
func (o *output) append(other output) {
	other.traces.ResourceSpans().MoveAndAppendTo(o.traces.ResourceSpans())
	other.logs.ResourceLogs().MoveAndAppendTo(o.logs.ResourceLogs())
	other.metrics.ResourceMetrics().MoveAndAppendTo(o.metrics.ResourceMetrics())
}

func (o *output) items() int {
	return o.traces.SpanCount() + o.logs.LogRecordCount() + o.metrics.DataPointCount()
}

func (o *output) clone() output {
	c := newOutput()
	o.traces.CopyTo(c.traces)
	o.logs.CopyTo(c.logs)
	o.metrics.CopyTo(c.metrics)
	return c
}

const (
	// maxReturned is how many messages are remembered with their data: more than there are partitions
	// in which one may be tried again while others go on.
	maxReturned = 64
	// maxReturnedItems bounds that data: about 64 MiB of spans.
	maxReturnedItems = 1 << 15
)

// returned remembers the data of the last messages that gave any. When the next component does not
// take it, the receiver gives the extension the same message again, and wants the same.
type returned struct {
	order []uint64
	m     map[uint64]output
	items int
}

// put remembers the data of a message; false if it is too much.
func (r *returned) put(hash uint64, o output) bool {
	n := o.items()
	if n == 0 || n > maxReturnedItems {
		return n == 0
	}
	if r.m == nil {
		r.m = map[uint64]output{}
	}
	if old, ok := r.m[hash]; ok {
		r.items -= old.items()
	} else {
		r.order = append(r.order, hash)
	}
	r.m[hash] = o.clone()
	r.items += n
	for len(r.order) > maxReturned || r.items > maxReturnedItems {
		old := r.m[r.order[0]]
		r.items -= old.items()
		delete(r.m, r.order[0])
		r.order = r.order[1:]
	}
	return true
}

func (r *returned) get(hash uint64) (output, bool) {
	o, ok := r.m[hash]
	if !ok {
		return output{}, false
	}
	return o.clone(), true
}
