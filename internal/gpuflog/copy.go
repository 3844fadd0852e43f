// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"fmt"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// memoryKindByName maps A2's spelling.
var memoryKindByName = map[string]string{
	"Pageable": "pageable", "Pinned": "pinned", "Device": "device", "Array": "array",
	"Managed": "managed", "DeviceStatic": "device_static", "ManagedStatic": "managed_static",
}

// transfer is a memcpy_event or memset_event (format document, section 3.4); memset_event is
// written by every generation.
type transfer struct {
	workFields
	startI, endI, bytes    gpuevent.Int
	kind, srcKind, dstKind []byte
}

func (d *Decoder) memcpyEvent(r *record) bool {
	var t transfer
	s, ok := d.transfer(r, &t)
	if s == nil {
		return ok
	}
	ev := &d.ev.copy
	*ev = gpuevent.Copy{Bytes: t.bytes}
	if kind := string(t.kind); kind != "Unknown" {
		ev.Kind = d.text.get(t.kind)
	}
	ev.SourceKind, ev.DestinationKind = memoryKindByName[string(t.srcKind)], memoryKindByName[string(t.dstKind)]
	it := d.work(s, &ev.Span, deviceLane, &t.workFields)
	ev.Ref.Span = s.key.Span(gpuevent.KindCopy, uint64(t.start), t.identity(&ev.Span))
	it.copy = ev
	s.submit(d, it)
	return true
}

func (d *Decoder) memsetEvent(r *record) bool {
	var t transfer
	s, ok := d.transfer(r, &t)
	if s == nil {
		return ok
	}
	ev := &d.ev.set
	*ev = gpuevent.Set{Bytes: t.bytes}
	it := d.work(s, &ev.Span, deviceLane, &t.workFields)
	ev.Ref.Span = s.key.Span(gpuevent.KindSet, uint64(t.start), t.identity(&ev.Span))
	it.set = ev
	s.submit(d, it)
	return true
}

// identity distinguishes transfers that start at the same time.
func (t *transfer) identity(sp *gpuevent.Span) uint64 {
	return uint64(t.corr.V)<<32 ^ uint64(sp.Stream.V)<<16 ^ uint64(sp.Device.V) ^ uint64(t.bytes.V)<<24
}

func (d *Decoder) transfer(r *record, t *transfer) (sess *session, ok bool) {
	for {
		key, done, ok := r.next()
		if !ok {
			return nil, false
		}
		if done {
			break
		}
		switch string(key) {
		case "device_id":
			ok = r.strInto(&t.device)
		case "stream_id":
			ok = r.strInto(&t.stream)
		case "stack_trace":
			ok = r.strInto(&t.stack)
		case "user_scope":
			ok = r.strInto(&t.scope)
		case "scope_depth":
			ok = r.intInto(&t.depth)
		case "start_ns":
			ok = r.intInto(&t.startI)
		case "end_ns":
			ok = r.intInto(&t.endI)
		case "api_start_ns":
			ok = r.intInto(&t.apiStart)
		case "api_exit_ns":
			ok = r.intInto(&t.apiEnd)
		case "corr_id":
			ok = r.intInto(&t.corr)
		case "bytes":
			ok = r.intInto(&t.bytes)
		case "copy_kind":
			ok = r.strInto(&t.kind)
		case "src_kind":
			ok = r.strInto(&t.srcKind)
		case "dst_kind":
			ok = r.strInto(&t.dstKind)
		default:
			ok = r.field(key)
		}
		if !ok {
			return nil, false
		}
	}
	if !t.startI.OK || !t.endI.OK {
		d.reject(MissingField, recordNames[r.typ]+" without start_ns or end_ns")
		return nil, true
	}
	if sess = d.owner(&r.head, t.startI.V); sess == nil {
		return nil, true
	}
	if !plausible(t.startI.V, t.endI.V) {
		d.reject(BadRow, fmt.Sprintf("%s at %d to %d", recordNames[r.typ], t.startI.V, t.endI.V))
		return nil, true
	}
	t.start, t.end = t.startI.V, t.endI.V
	return sess, true
}

func (d *Decoder) memcpyBatch(r *record) bool {
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
		ev := &d.ev.copy
		*ev = gpuevent.Copy{Kind: gpuevent.CopyKind(b.row.get(colCopyKind)), Bytes: b.row.opt(colBytes)}
		ev.StartNs, ev.EndNs = start, end
		ev.Ref.Span = s.key.Span(gpuevent.KindCopy, uint64(b.id), uint64(b.index))
		ev.Stream = b.row.optID(colStream)
		ev.Correlation = b.row.optPos(colCorr)
		d.item = item{lane: deviceLane, at: start, copy: ev}
		s.submit(d, &d.item)
	}
	return true
}
