// SPDX-License-Identifier: Apache-2.0

package gpuflogencodingextension

import (
	"bytes"
	"time"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

// session is what is known of one session for one signal.
type session struct {
	id  string
	dec *gpuflog.Decoder
	// recent are the lines that came; those of every channel are not among them.
	recent recent
	// last is when anything came, lastOf when something of a channel did.
	last   time.Time
	lastOf [gpuflog.NumChannels]time.Time
	// flat: the session has the three channels of the article's layout. Later ones have four, and those
	// between them three.
	flat bool
	// ends counts the shutdown records, of which each channel has one, and end is the last. It is fed
	// when all channels have come to it: a message does not say which channel it is of.
	ends  int
	end   []byte
	ended bool
	// touched says that the message being taken has lines of the session.
	touched bool
	// waits is the session's share of what waits.
	waits int
	told  gpuflog.Stats
}

func newSession(id string, opt gpuflog.Options, remembered int, now time.Time) *session {
	s := &session{id: id, dec: gpuflog.NewDecoder(opt), recent: recent{limit: remembered}, last: now}
	for ch := range s.lastOf {
		s.lastOf[ch] = now
	}
	return s
}

// everyChannel are the record types that stand in every channel.
var everyChannel = func() map[string]bool {
	m := map[string]bool{}
	for _, typ := range gpuflog.RecordTypes() {
		if _, one := gpuflog.ChannelOf(typ); !one && typ != "unknown" {
			m[typ] = true
		}
	}
	return m
}()

// feed takes a line of a type. Records of every channel are fed as of the system channel, on which
// nothing waits. late says that the session was taken for ended already, done that all rows were decoded.
func (s *session) feed(line []byte, typ string, now time.Time, out *gpuevent.Batch) (late, done bool) {
	s.last = now
	switch typ {
	case "shutdown":
		s.ends++
		s.end = bytes.Clone(line)
		return false, true
	case "init":
		s.flat = true
	}
	ch, ok := gpuflog.ChannelOf(typ)
	if ok {
		s.lastOf[ch] = now
	} else {
		ch = gpuflog.System
	}
	_, done = s.dec.FeedLine(ch, line, 0, 0, gpuflog.Now(now), out)
	return s.ended && (ch == gpuflog.Device || ch == gpuflog.Scope), done
}

// channels is how many channels a session has whose end was read in so many.
func (s *session) channels() int {
	if s.flat {
		return int(gpuflog.NumChannels) - 1
	}
	return int(gpuflog.NumChannels)
}

// step does what a time brings about. early says that the session was taken for ended before it was in
// all channels.
func (s *session) step(now time.Time, timeout time.Duration, out *gpuevent.Batch) (early bool) {
	silent := now.Sub(s.last) >= timeout
	if s.end != nil && (s.ends >= s.channels() || silent) {
		early = s.ends < int(gpuflog.NumChannels)-1
		for ch := range gpuflog.NumChannels {
			s.dec.Feed(ch, s.end, 0, gpuflog.Now(now), out)
		}
		s.end, s.ended = nil, true
	}
	st := gpuflog.Step{Now: gpuflog.Now(now), Quiet: max(now.Sub(s.last), 0)}
	for ch := range st.AtEnd {
		st.AtEnd[ch] = now.Sub(s.lastOf[ch]) >= timeout
	}
	s.dec.EndStep(st, out)
	return early
}

// finish releases all that waits and ends the session.
func (s *session) finish(now time.Time, out *gpuevent.Batch) {
	s.dec.EndStep(gpuflog.Step{Now: gpuflog.Now(now), Gone: true, Flush: true, AtEnd: [gpuflog.NumChannels]bool{true, true, true, true}}, out)
}

// waiting is the number of rows and spans that wait.
func (s *session) waiting() int {
	rows, events := s.dec.Waiting()
	return rows + events
}

// before says which of two sessions is closed first to make room.
func (s *session) before(o *session) bool {
	if a, b := s.dec.Finished(), o.dec.Finished(); a != b {
		return a
	}
	return s.last.Before(o.last)
}
