// SPDX-License-Identifier: Apache-2.0

package account

// kernelStarts tells the gap that a kernel ends, if it is the first of its stream after a silence.
// The sweep calls it and its neighbours in order of time. A kernel that was settled late starts
// before what its stream has reached, and so ends no gap: gaps of a stream never overlap. Nor does
// the rest of a kernel that was cut, which starts before its own end.
func (l *Ledger) kernelStarts(w *Work) {
	st := l.streams.get(w.Stream)
	if st.kernel >= 0 && w.Start-st.kernel > l.o.GapThreshold {
		after := AfterHost
		ended := int64(-1)
		// A copy that ended together with the previous kernel did not delay the next one. A wait did:
		// the host waited for that kernel.
		if st.copied > st.kernel && st.copied <= w.Start {
			after, ended = AfterCopy, st.copied
		}
		// If both end at once, the wait waited for the copy.
		if p := l.processes.peek(w.Process); p != nil &&
			p.waited >= st.kernel && p.waited <= w.Start && p.waited >= ended {
			after = AfterSync
		}
		l.sweep.to.Gap(w.Stream, w.Process, after, st.kernel, w.Start)
	}
	st.kernel = max(st.kernel, w.End)
}

func (l *Ledger) copyEnds(w *Work) {
	st := l.streams.get(w.Stream)
	st.copied = max(st.copied, w.End)
}

func (l *Ledger) waitEnds(w *Work) {
	p := l.processes.get(w.Process)
	p.waited = max(p.waited, w.End)
}

// recent remembers the last ends of the streams or processes that were used last.
type recent struct {
	limit int
	at    map[uint32]int32
	slots []slot
	// first is the slot that was used last, last the one whose turn it is to be forgotten.
	first, last int32
}

// slot holds the latest ends for one stream (of a kernel, of a copy) or process (of a wait), -1
// where there was none.
type slot struct {
	id                     uint32
	newer, older           int32
	kernel, copied, waited int64
}

const none = -1

// peek returns the slot of an id, nil if there is none. It does not count as a use.
func (r *recent) peek(id uint32) *slot {
	if len(r.slots) == 0 {
		return nil
	}
	if s := &r.slots[r.first]; s.id == id {
		return s
	}
	if i, ok := r.at[id]; ok {
		return &r.slots[i]
	}
	return nil
}

// get returns the slot of an id, a new one if there is none. It is valid until the next call.
func (r *recent) get(id uint32) *slot {
	if len(r.slots) == 0 {
		r.at = map[uint32]int32{}
		r.first, r.last = none, none
	} else if s := &r.slots[r.first]; s.id == id {
		return s
	}
	i, ok := r.at[id]
	switch {
	case ok:
		r.unlink(i)
	case len(r.slots) < r.limit:
		i = int32(len(r.slots))
		r.slots = append(r.slots, slot{})
	default:
		i = r.last
		r.unlink(i)
		delete(r.at, r.slots[i].id)
	}
	s := &r.slots[i]
	if !ok {
		*s = slot{id: id, kernel: -1, copied: -1, waited: -1}
		r.at[id] = i
	}
	s.newer, s.older = none, r.first
	if r.first != none {
		r.slots[r.first].newer = i
	} else {
		r.last = i
	}
	r.first = i
	return s
}

func (r *recent) unlink(i int32) {
	s := &r.slots[i]
	if s.newer != none {
		r.slots[s.newer].older = s.older
	} else {
		r.first = s.older
	}
	if s.older != none {
		r.slots[s.older].newer = s.newer
	} else {
		r.last = s.newer
	}
}
