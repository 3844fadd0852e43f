// SPDX-License-Identifier: Apache-2.0

package account

import (
	"encoding/binary"
	"math"
	"slices"
)

const (
	ledgerVersion = 1

	// The byte before each saved work: its class and where its request is.
	savedClass      = 0x03
	requestAsBefore = 0x10
	requestFollows  = 0x20

	// leastWork and leastSlot are the bytes of the shortest work and slot.
	leastWork = 15
	leastSlot = 4
)

// AppendState appends the ledger to b, pending works included: about 20 bytes for each, and 16 more
// where the request changes.
func (l *Ledger) AppendState(b []byte) []byte {
	l.gather()
	b = append(b, ledgerVersion)
	b = binary.AppendUvarint(b, uint64(l.forced))
	b = binary.AppendUvarint(b, uint64(l.newestEnd+1))
	b = binary.AppendVarint(b, l.newestLag)
	b = l.intervals.AppendState(b)
	b = l.streams.appendState(b)
	b = l.processes.appendState(b)

	works := l.pending[l.head:]
	b = binary.AppendUvarint(b, uint64(len(works)))
	var prev Work
	for i := range works {
		w := &works[i]
		head := byte(w.Class)
		switch w.Request {
		case [16]byte{}:
		case prev.Request:
			head |= requestAsBefore
		default:
			head |= requestFollows
		}
		b = append(b, head)
		b = binary.AppendUvarint(b, uint64(w.Start-prev.Start))
		b = binary.AppendUvarint(b, uint64(w.End-w.Start))
		b = binary.LittleEndian.AppendUint64(b, w.Key)
		b = binary.AppendUvarint(b, uint64(w.Payer))
		b = binary.AppendUvarint(b, uint64(w.Stream))
		b = binary.AppendUvarint(b, uint64(w.Process))
		// Wraps around if need be, and back again when it is read.
		b = binary.AppendVarint(b, w.Arrived-prev.Arrived)
		if head&requestFollows != 0 {
			b = append(b, w.Request[:]...)
		}
		prev = *w
	}
	return b
}

// LoadState replaces the ledger by what AppendState wrote at the front of b and returns the bytes
// behind it. The options stay: of more streams or intervals than they allow, the oldest are
// forgotten; with more pending works, the ledger is full. On an error, which wraps [ErrState], the
// ledger is as it was.
func (l *Ledger) LoadState(b []byte) (rest []byte, err error) {
	r := newReader(b)
	r.version(ledgerVersion)
	loaded := NewLedger(l.o)
	loaded.forced = r.natural()
	loaded.newestEnd = r.natural() - 1
	loaded.newestLag = r.Int()
	if r.OK() {
		if r.Rest, err = loaded.intervals.LoadState(r.Rest); err != nil {
			return nil, err
		}
	}
	loaded.streams.load(r)
	loaded.processes.load(r)
	loaded.loadWorks(r)
	if err := r.err("ledger"); err != nil {
		return nil, err
	}
	*l = *loaded
	return r.Rest, nil
}

func (l *Ledger) loadWorks(r *reader) {
	n := r.Count(leastWork)
	l.pending = make([]Work, 0, n)
	var prev Work
	for range n {
		head := r.Byte()
		gap, length := r.natural(), r.natural()
		w := Work{
			Class:   Class(head & savedClass),
			Key:     r.Fixed(),
			Payer:   r.id(),
			Stream:  r.id(),
			Process: r.id(),
			Arrived: prev.Arrived + r.Int(),
		}
		w.Start = plus(prev.Start, gap)
		w.End = plus(w.Start, length)
		switch head &^ savedClass {
		case 0:
		case requestAsBefore:
			w.Request = prev.Request
		case requestFollows:
			copy(w.Request[:], r.Bytes(len(w.Request)))
		default:
			r.Fail("a work with unknown marks")
		}
		if w.Class > Wait || length > 0 && w.Class == Wait ||
			w.Start-prev.Start != gap || w.End-w.Start != length || w.End == math.MaxInt64 {
			r.Fail("a work that cannot be")
		}
		if !r.OK() {
			return
		}
		l.pending = append(l.pending, w)
		prev = w
	}
	slices.SortFunc(l.pending, func(a, b Work) int { return compare(&a, &b) })
}

// appendState appends the slots, the one that was used last at the end.
func (r *recent) appendState(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(r.slots)))
	if len(r.slots) == 0 {
		return b
	}
	for i := r.last; i != none; i = r.slots[i].newer {
		s := &r.slots[i]
		b = binary.AppendUvarint(b, uint64(s.id))
		for _, end := range []int64{s.kernel, s.copied, s.waited} {
			b = binary.AppendUvarint(b, uint64(end+1))
		}
	}
	return b
}

func (r *recent) load(from *reader) {
	n := from.Count(leastSlot)
	for i := range n {
		id := from.id()
		kernel, copied, waited := from.natural()-1, from.natural()-1, from.natural()-1
		if !from.OK() {
			return
		}
		if i < r.limit && r.peek(id) != nil {
			from.Fail("a stream or process that is there twice")
			return
		}
		s := r.get(id)
		s.kernel, s.copied, s.waited = kernel, copied, waited
	}
}
