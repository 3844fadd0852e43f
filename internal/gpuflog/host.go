// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/semconv"
)

// syncBatch decodes synchronization_event_batch (format document, section 4.6).
func (d *Decoder) syncBatch(r *record) bool {
	var b batch
	s, ok := d.batch(r, &b)
	if s == nil {
		return ok
	}
	for b.next(d) {
		start, end, ok := b.span(d)
		if !ok {
			continue
		}
		s.saw(d.channel, start)
		ev := &d.ev.sync
		*ev = gpuevent.Sync{Event: b.row.optPos(colEventID)}
		if k := b.row.get(colSyncType); k > 0 && k <= int64(gpuevent.SyncContext) {
			ev.Kind = gpuevent.SyncKind(k)
		}
		ev.StartNs, ev.EndNs = start, end
		ev.Ref.Span = s.key.Span(gpuevent.KindSync, uint64(b.id), uint64(b.index))
		ev.Stream, ev.Context = b.row.optID(colStream), b.row.optID(colContextID)
		ev.Correlation = b.row.optPos(colCorr)
		if id := b.row.get(colFunctionID); id != 0 {
			if stack, ok := s.dicts.lookup(dictFunction, id); ok {
				ev.Stack = d.stacks.get([]byte(stack))
			} else {
				d.reject(UnknownID, "host stack of a synchronisation")
			}
		}
		d.item = item{lane: hostLane, at: start, exact: true, sync: ev}
		s.submit(d, &d.item)
	}
	return true
}

// The values of memory_op.
const (
	memoryAlloc = 1
	memoryFree  = 2
)

// memoryBatch decodes memory_alloc_event_batch (format document, section 4.6).
func (d *Decoder) memoryBatch(r *record) bool {
	var b batch
	s, ok := d.batch(r, &b)
	if s == nil {
		return ok
	}
	for b.next(d) {
		start, end, ok := b.span(d)
		if !ok {
			continue
		}
		op := b.row.get(colMemoryOp)
		if op != memoryAlloc && op != memoryFree {
			d.reject(BadRow, "memory_op is neither 1 nor 2")
			continue
		}
		s.saw(d.channel, start)
		s.hostSeen = max(s.hostSeen, start)
		ev := &d.ev.memory
		*ev = gpuevent.Memory{
			Free: op == memoryFree, Kind: gpuevent.MemoryKind(b.row.get(colMemoryKind)),
			Bytes: b.row.opt(colBytes), Address: b.row.optPos(colAddress),
		}
		ev.StartNs, ev.EndNs = start, end
		ev.Ref.Span = s.key.Span(gpuevent.KindMemory, uint64(b.id), uint64(b.index))
		ev.Device, ev.Stream = b.row.optID(colDevice), b.row.optID(colStream)
		ev.Correlation = b.row.optPos(colCorr)
		d.item = item{lane: hostLane, at: start, exact: true, memory: ev}
		s.submit(d, &d.item)
	}
	s.drain(d)
	return true
}

// graphLaunch decodes graph_launch_event. Where CUPTI had no times both are 0: the launch is then
// put at the newest time of its channel and marked as estimated.
func (d *Decoder) graphLaunch(r *record) bool {
	ev := &gpuevent.Graph{}
	var start, end, dur, device, stream gpuevent.Int
	var exec []byte
	if !r.fields(func(key []byte) (ok bool) {
		switch string(key) {
		case "start_ns":
			ok = r.intInto(&start)
		case "end_ns":
			ok = r.intInto(&end)
		case "duration_ns":
			ok = r.intInto(&dur)
		case "graph_id":
			ok = r.intInto(&ev.GraphID)
		case "device_id":
			ok = r.intInto(&device)
		case "stream_id":
			ok = r.intInto(&stream)
		case "corr_id":
			ok = r.intInto(&ev.Correlation)
		case "graph_exec_key":
			ok = r.strInto(&exec)
		default:
			ok = r.field(key)
		}
		return ok
	}) {
		return false
	}
	s := d.owner(&r.head, start.V)
	if s == nil {
		return true
	}
	if start.V < minTime || start.V > maxTime || end.V > maxTime {
		if start.V != 0 {
			d.reject(BadRow, "graph_launch_event without a time")
			return true
		}
		start.V = max(s.timeIn(d.channel), minTime)
		end.V = start.V
		ev.Estimated = true
	}
	ev.StartNs, ev.EndNs = start.V, max(start.V, end.V)
	ev.Device, ev.Stream, ev.Correlation = device, stream, positive(ev.Correlation)
	ev.ExecKey = d.text.get(exec)
	ev.Ref.Span = s.key.Span(gpuevent.KindGraph, uint64(ev.Correlation.V)<<20^uint64(ev.GraphID.V), uint64(start.V))
	s.submit(d, &item{lane: hostLane, at: start.V, graph: ev})
	return true
}

// graphNode decodes graph_node_definition; nodes have no times.
func (d *Decoder) graphNode(r *record) bool {
	var exec []byte
	var index, typ, deps gpuevent.Int
	if !r.fields(func(key []byte) (ok bool) {
		switch string(key) {
		case "graph_exec_key":
			ok = r.strInto(&exec)
		case "node_index":
			ok = r.intInto(&index)
		case "node_type":
			ok = r.intInto(&typ)
		case "dependency_count":
			ok = r.intInto(&deps)
		default:
			ok = r.field(key)
		}
		return ok
	}) {
		return false
	}
	s := d.owner(&r.head, 0)
	if s == nil {
		return true
	}
	var attrs attrList
	attrs.str(semconv.CUDAGraphExecKey, d.text.get(exec))
	attrs.int(semconv.CUDAGraphNodeIndex, index)
	attrs.int(semconv.CUDAGraphNodeType, typ)
	attrs.int(semconv.CUDAGraphNodeDependencies, deps)
	s.record(d, 0, s.logRef(), semconv.EventCUDAGraphNode, "graph node of "+text(exec), attrs...)
	return true
}

// attrList collects the attributes that are known.
type attrList []gpuevent.Attr

func (l *attrList) str(key, v string) {
	if v != "" {
		*l = append(*l, gpuevent.Str(key, v))
	}
}

func (l *attrList) int(key string, v gpuevent.Int) {
	if v.OK {
		*l = append(*l, gpuevent.I(key, v.V))
	}
}

func (l *attrList) float(key string, v gpuevent.Float) {
	if v.OK {
		*l = append(*l, gpuevent.F(key, v.V))
	}
}

func (l *attrList) strs(key string, v []string) {
	if len(v) > 0 {
		*l = append(*l, gpuevent.Strs(key, v))
	}
}
