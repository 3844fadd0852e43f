// SPDX-License-Identifier: Apache-2.0

package cupti

import (
	"testing"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// fuzzBytes bounds an input, so that a run tries many.
const fuzzBytes = 1 << 14

// FuzzDecode reads any bytes as a buffer whose records begin anywhere. Whatever comes: no panic, no
// read outside the buffer, each record counted once, and everything that is handed on plausible.
func FuzzDecode(f *testing.F) {
	var b buffer
	b.add(kernelRecord(216), kernelRecord(200), copyRecord(96, activityMemcpy, copyCorrelation, copyGraphNode),
		copyRecord(96, activityMemcpy2, peerCorrelation, peerGraphNode), memoryRecord(), syncRecord(),
		record(24, 39), record(56, activityGraphTrace), record(56, activityOverhead),
		record(88, activityMemset), record(apiBytes, activityRuntime), record(72, 50))
	var lengths []byte
	for i, begin := range b.begins {
		end := len(b.data)
		if i+1 < len(b.begins) {
			end = int(b.begins[i+1])
		}
		lengths = append(lengths, byte(end-int(begin)))
	}
	f.Add(b.data, lengths)
	f.Add(b.data[:500], lengths)
	f.Add(b.data, []byte{0})
	f.Add([]byte{10, 0, 0}, []byte{255})
	f.Add([]byte{}, []byte{1})
	f.Fuzz(func(t *testing.T, data, lengths []byte) {
		if len(data) > fuzzBytes || len(lengths) > fuzzBytes {
			t.Skip("too long")
		}
		// Lengths follow each other; 0 is a walk that stays where it is.
		var begins []uint32
		at := uint32(0)
		for _, n := range lengths {
			begins = append(begins, at)
			at += uint32(n)
		}
		// A batch has room for many records from the beginning.
		alloctest.Limit{PerByte: 1 << 10, Constant: 1 << 21}.Check(t, len(data)+len(lengths), func() {
			newTestDecoder().decode(data, newIndexWalker(data, begins), nil).Release()
		})
		d := newTestDecoder()
		batch := d.decode(data, newIndexWalker(data, begins), nil)
		check(t, d, batch)
		batch.Release()
	})
}

// check asserts what holds for every batch of a decoder that decoded no other.
func check(t *testing.T, d *decoder, batch *Batch) {
	t.Helper()
	s := counted(d)
	seen := s.Unknown
	for _, n := range s.Rejected {
		seen += n
	}
	overheads := s.Records - seen - uint64(batch.Len())
	if seen+uint64(batch.Len()) > s.Records || overheads == 0 && s.Overhead != 0 || s.Overhead < 0 {
		t.Fatalf("%d records given out, counted %+v", batch.Len(), s)
	}
	for i := range batch.Len() {
		h := batch.Head(i)
		if h.Start <= 0 || h.End < h.Start {
			t.Fatalf("times of %+v", h)
		}
		if h.Device < -1 || h.Bytes < 0 || (h.Kind == KindKernel) != (h.Name != nil) {
			t.Fatalf("head %+v", h)
		}
		var span *gpuevent.Span
		switch h.Kind {
		case KindKernel:
			var k gpuevent.Kernel
			batch.Kernel(i, &k)
			for j := range 3 {
				if k.Grid[j] < 1 || k.Block[j] < 1 || k.Cluster[j] < 0 {
					t.Fatalf("dimensions of %+v", k)
				}
			}
			span = &k.Span
		case KindMemcpy, KindMemcpyP2P:
			var c gpuevent.Copy
			batch.Copy(i, &c)
			span = &c.Span
		case KindMemset:
			var e gpuevent.Set
			batch.Set(i, &e)
			span = &e.Span
		case KindSync:
			var e gpuevent.Sync
			batch.Sync(i, &e)
			span = &e.Span
		case KindMemory:
			var e gpuevent.Memory
			batch.Memory(i, &e)
			span = &e.Span
		case KindGraph:
			var e gpuevent.Graph
			batch.Graph(i, &e)
			span = &e.Span
		case KindRuntimeAPI, KindDriverAPI:
			if !h.Host || len(batch.API(i)) > 64 {
				t.Fatalf("call %+v, %q", h, batch.API(i))
			}
			continue
		case KindNVTX, KindExternal, KindOverhead, NumKinds:
			t.Fatalf("kind of %+v", h)
		}
		if span.StartNs != h.Start || span.EndNs != h.End || span.Correlation.V != int64(h.Correlation) ||
			span.Device.OK != (h.Device >= 0) || span.Stream.OK && span.Stream.V <= 0 {
			t.Fatalf("head %+v, span %+v", h, span)
		}
	}
}
