// SPDX-License-Identifier: Apache-2.0

package recorder

import "github.com/gpuflight/gpuflight/cupti"

// maxStacks bounds the launches whose stack waits for their record, twice. Most records arrive
// within a second, in which there are at most about 1,000 of them.
const maxStacks = 1 << 14

// launchStacks are the host stacks of launches whose records have not arrived. The zero value is
// empty. It belongs to the engine.
type launchStacks struct {
	// recent and older are by correlation id. When recent is full it replaces older: those launches
	// have no span, or were captured.
	recent, older map[uint32]launchStack
	attachment    uint32
	events        []cupti.StackEvent
}

// launchStack is the stack of a launch, and the one that samples found before it; "" if unknown.
type launchStack struct{ launch, before string }

// learn adds the pending events of the source.
func (s *launchStacks) learn(src Source) {
	s.events = src.StackEvents(s.events[:0])
	for i := range s.events {
		e := &s.events[i]
		if e.Attachment != s.attachment || s.recent == nil {
			*s = launchStacks{recent: map[uint32]launchStack{}, attachment: e.Attachment, events: s.events}
		}
		if len(s.recent) >= maxStacks {
			s.recent, s.older = map[uint32]launchStack{}, s.recent
		}
		x := s.recent[e.Correlation]
		if e.Samples > 0 {
			x.before = e.Text
		} else {
			x.launch = e.Text
		}
		s.recent[e.Correlation] = x
	}
	clear(s.events)
}

// of returns the stacks of a launch. Several records may have its id.
func (s *launchStacks) of(correlation, attachment uint32) launchStack {
	if len(s.recent)+len(s.older) == 0 || attachment != s.attachment || correlation == 0 {
		return launchStack{}
	}
	if x, ok := s.recent[correlation]; ok {
		return x
	}
	return s.older[correlation]
}
