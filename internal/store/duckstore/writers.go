// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import "context"

const (
	// maxRemembered bounds what the writer remembers of all sessions: entries of dictionaries and chains,
	// and kernels that gap_bins does not have yet, at about 64 bytes each. Beyond, it forgets sessions
	// that were not written for the longest time, and reads their entries again on demand.
	maxRemembered = 2 << 20
	// maxTails is the number of kernels of all sessions that gap_bins does not have yet, from which on the
	// writer adds them with each move from the journal.
	maxTails = 1 << 18
)

// remembered returns how much the writer remembers of a session.
func (sess *session) remembered() (n int64) {
	if d := sess.dicts; d != nil {
		for i := range d {
			n += int64(len(d[i].ids))
		}
	}
	if t := sess.chains; t != nil {
		n += t.size() + t.oldSpans.size() + t.oldAnchors.size() + t.oldPending.size()
	}
	for _, seg := range sess.segments {
		n += int64(cap(seg.gapTail.list))
		if seg.known != nil {
			for _, known := range seg.known {
				n += int64(len(known))
			}
		}
	}
	return n
}

// forget removes what the writer remembers of a session. The caller holds Store.write.
func (sess *session) forget() {
	sess.dicts, sess.chains, sess.lastKernels, sess.numbered = nil, nil, nil, nil
	for _, seg := range sess.segments {
		seg.known = nil
		seg.gapTail.forget(seg.newest[0])
	}
}

// remember notes that a session was written, and forgets others if there are too many. The caller holds
// Store.write.
func (s *Store) remember(sess *session) {
	s.written++
	s.writers[sess] = s.written
	total := int64(0)
	for w := range s.writers {
		n := w.remembered()
		if total += n; n == 0 {
			delete(s.writers, w)
		}
	}
	for total > s.maxRemembered && len(s.writers) > 1 {
		oldest := sess
		for w, at := range s.writers {
			if at < s.writers[oldest] {
				oldest = w
			}
		}
		if oldest == sess {
			return
		}
		total -= oldest.remembered()
		oldest.forget()
		delete(s.writers, oldest)
	}
}

// shortenTail adds the kernels of a session to gap_bins if the writer remembers too many of all sessions.
// The caller holds Store.write.
func (s *Store) shortenTail(ctx context.Context, sess *session) {
	total := 0
	for w := range s.writers {
		for _, seg := range w.segments {
			total += len(seg.gapTail.list)
		}
	}
	if total < s.maxTails || sess.id == "" || sess.dropped {
		return
	}
	if err := s.extendGaps(ctx, sess, false); err != nil {
		_ = s.failed(ctx, sess, err) // the next write that needs it tries again
		s.failures.Add(1)
	}
}
