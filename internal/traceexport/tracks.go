// SPDX-License-Identifier: Apache-2.0

package traceexport

import (
	"fmt"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// maxTracks bounds the tracks of a group. What does not fit is shown as an instant.
const maxTracks = 1000

// Ranks of tracks, topmost first.
const (
	rankSession = iota
	rankRequests
	rankScopes
	rankWindows
	rankInstants
	rankLaunches
	rankWaits
	rankCounters
)

// track is a row of a viewer. Its slices are nested in each other or follow each other, as viewers
// require.
type track struct {
	id   int // unique in the export, from 1
	name string
	rank int     // its place among the tracks of the process
	open []slice // slices that the next may be nested in, outermost first
}

type slice struct {
	end  int64
	span store.SpanID
}

// fits reports whether a slice is within the open slices or after them. Slices come by start.
func (t *track) fits(start, end int64) bool {
	for len(t.open) > 0 && t.open[len(t.open)-1].end <= start {
		t.open = t.open[:len(t.open)-1]
	}
	return len(t.open) == 0 || end <= t.open[len(t.open)-1].end
}

// group is tracks with one purpose.
type group struct {
	name   string
	rank   int
	tracks []*track
}

// place returns the track for a slice, preferably that of its parent. It returns nil if all tracks
// have overlapping slices.
func (a *allocator) place(g *group, start, end int64, span, parent store.SpanID) *track {
	t := a.parents[parent]
	if parent == 0 || t == nil || !t.fits(start, end) {
		t = nil
		for _, x := range g.tracks {
			if x.fits(start, end) {
				t = x
				break
			}
		}
	}
	if t == nil {
		if len(g.tracks) == maxTracks {
			return nil
		}
		t = a.add(g)
	}
	t.open = append(t.open, slice{end, span})
	if span != 0 {
		a.remember(span, t)
	}
	return t
}

// allocator gives slices their tracks.
type allocator struct {
	ids      int
	scopes   group
	requests group
	sessions group
	windows  group
	launches map[int]*group // by lane
	waits    map[int]*group // by lane: operations of the host
	device   map[int]*group // by lane: of Chrome, which cannot show operations that overlap
	instants map[string]*track
	// parents has the tracks of recent spans, order the spans as a ring.
	parents map[store.SpanID]*track
	order   []store.SpanID
	next    int
	// added is called for each new track.
	added func(*track)
}

// rememberedSpans bounds the spans whose children are placed on the same track.
const rememberedSpans = 10_000

func newAllocator(added func(*track)) *allocator {
	return &allocator{
		sessions: group{name: "session", rank: rankSession}, requests: group{name: "requests", rank: rankRequests},
		scopes: group{name: "scopes", rank: rankScopes}, windows: group{name: "deep windows", rank: rankWindows}, launches: map[int]*group{}, waits: map[int]*group{}, device: map[int]*group{}, instants: map[string]*track{},
		parents: map[store.SpanID]*track{}, added: added,
	}
}

func (a *allocator) add(g *group) *track {
	a.ids++
	t := &track{id: a.ids, name: g.name, rank: g.rank}
	if n := len(g.tracks); n > 0 {
		t.name = fmt.Sprintf("%s %d", g.name, n+1)
	}
	g.tracks = append(g.tracks, t)
	a.added(t)
	return t
}

func (a *allocator) remember(span store.SpanID, t *track) {
	if len(a.order) < rememberedSpans {
		a.order = append(a.order, span)
	} else {
		delete(a.parents, a.order[a.next])
		a.order[a.next] = span
		a.next = (a.next + 1) % rememberedSpans
	}
	a.parents[span] = t
}

// instant returns the track of instants with this name.
func (a *allocator) instant(name string) *track {
	t := a.instants[name]
	if t == nil {
		t = a.add(&group{name: name, rank: rankInstants})
		a.instants[name] = t
	}
	return t
}

// span returns the track of a span, and the name of the group if it is nil.
func (a *allocator) span(p *store.SpanRow) (*track, string) {
	g := &a.scopes
	switch p.Operation {
	case semconv.CUDAOperationSession:
		g = &a.sessions
	case semconv.CUDAOperationDeepWindow:
		g = &a.windows
	case "":
		g = &a.requests
	}
	span, parent := p.Span.Span, p.Parent
	if g == &a.sessions || g == &a.windows {
		span, parent = 0, 0 // scopes are not shown below them
	}
	return a.place(g, p.StartNs, end(p.StartNs, p.EndNs), span, parent), g.name
}

// launch returns the track of the host call that launched an operation. Calls of one stream come
// nearly in order, so a track accepts those that begin after its last end.
func (a *allocator) launch(l *lane, start, end int64) *track {
	return a.sequential(a.launches, l, l.name+" launches", rankLaunches, start, end)
}

// wait returns the track of an operation of the host.
func (a *allocator) wait(l *lane, start, end int64) *track {
	return a.sequential(a.waits, l, l.name, rankWaits, start, end)
}

// operation returns the track of an operation of a device.
func (a *allocator) operation(l *lane, start, end int64) *track {
	return a.sequential(a.device, l, l.name, l.index, start, end)
}

func (a *allocator) sequential(groups map[int]*group, l *lane, name string, rank int, start, end int64) *track {
	g := groups[l.index]
	if g == nil {
		g = &group{name: name, rank: rank}
		groups[l.index] = g
	}
	var t *track
	for _, x := range g.tracks {
		if x.open[0].end <= start {
			t = x
			break
		}
	}
	if t == nil {
		if len(g.tracks) == maxTracks {
			return nil
		}
		t = a.add(g)
	}
	t.open = append(t.open[:0], slice{end: end})
	return t
}
