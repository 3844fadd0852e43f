// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"cmp"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

// Layout determines the names and the order of a group's files (log format, sections 2 and 5).
type Layout uint8

const (
	// Undecided: the files so far fit several layouts. It lasts at most MissingGrace, and nothing
	// is read meanwhile.
	Undecided Layout = iota
	// Flat is <base>.<channel>.log with rotated .N.log.gz, 1 the newest (A2, B).
	Flat
	// C1 is a session folder with <channel>.log on top, rotated like Flat and gzipped at the clean
	// close.
	C1
	// Windows is a session folder with .tmp and published log files, which GPU Flight calls
	// windows. 1 is the oldest (C2, C3).
	Windows
	// Numbered is <base>.<channel>.<N>.log without any unnumbered file: A0 and A1, ascending, the
	// highest is live.
	Numbered
)

// String names the layout for logs.
func (l Layout) String() string {
	switch l {
	case Undecided:
		return "undecided"
	case Flat:
		return "flat"
	case C1:
		return "c1"
	case Windows:
		return "windows"
	case Numbered:
		return "numbered"
	}
	return "unknown"
}

// shifts reports whether a rotation renames all files, so that a number does not identify a log
// file.
func (l Layout) shifts() bool { return l == Flat || l == C1 }

// Liveness is the known state of a session's writer.
type Liveness uint8

const (
	// WriterUnknown: the layout does not show it.
	WriterUnknown Liveness = iota
	// WriterAlive: the writer holds its lock, or was active recently.
	WriterAlive
	// WriterGone: the files will not grow.
	WriterGone
)

// Group holds the files of one flat base, or of one session folder.
type Group struct {
	set     *Set
	dir     *dir // nil once the folder is gone
	key     string
	path    string
	base    string
	layout  Layout
	strong  bool // the layout is certain
	streams [gpuflog.NumChannels]*Stream

	tmp        bool // .tmp exists
	files      int  // data files in the last listing
	firstSeen  time.Time
	lastChange time.Time
	newestFile time.Time // newest file time in lastChange
	listed     time.Time // time of the last listing
	goneSince  time.Time // since when it has no file; zero if it has one
	touched    bool      // inotify event in the folder since the last poll
	needList   atomic.Bool
}

func groupKey(dir, base string) string {
	if base == "" {
		return "dir:" + dir
	}
	return "flat:" + filepath.Join(dir, base)
}

func newGroup(s *Set, key, dir, base string) *Group {
	g := &Group{set: s, key: key, path: dir, base: base, firstSeen: s.now}
	for ch := range g.streams {
		g.streams[ch] = &Stream{group: g, ch: gpuflog.Channel(ch), fps: make(map[fileKey]fpInfo)}
	}
	return g
}

// Key names the group. It is the same after a restart.
func (g *Group) Key() string { return g.key }

// Dir returns the folder of the files. For a session folder it is the folder itself.
func (g *Group) Dir() string { return g.path }

// Base is the name before the channel, or empty for a session folder.
func (g *Group) Base() string { return g.base }

// Layout returns the layout by the names. A loaded state keeps its layout. Numbered means A0 or A1
// unless the content differs.
func (g *Group) Layout() Layout { return g.layout }

// Stream returns a channel's stream, which may be empty but never nil. ch must be below
// gpuflog.NumChannels.
func (g *Group) Stream(ch gpuflog.Channel) *Stream { return g.streams[ch] }

// Streams returns all streams in the order of the channels.
func (g *Group) Streams() [gpuflog.NumChannels]*Stream { return g.streams }

// Whole returns the path of a file that has a whole channel, so that this file alone has the group's
// layout when it is compressed.
func (g *Group) Whole(ch gpuflog.Channel) string {
	name := ch.String()
	if g.base != "" {
		name = g.base + "." + name
	}
	if g.layout == Windows || g.layout == Numbered {
		name += ".1"
	}
	return filepath.Join(g.path, name+".log")
}

// Files gives the paths of the group's data files as they were listed last, oldest first in each
// channel.
func (g *Group) Files() []string {
	var paths []string
	for _, s := range g.streams {
		s.mu.Lock()
		for i := range s.files {
			paths = append(paths, s.files[i].path)
		}
		s.mu.Unlock()
	}
	return paths
}

// Changed reports whether a stream may have new data.
func (g *Group) Changed() bool {
	for _, s := range g.streams {
		if s.Changed() {
			return true
		}
	}
	return false
}

// LastChange is the time of the newest change to the group's files, as far as known. For files of
// the first scan it is the file's time, later the time of the scan with the change.
func (g *Group) LastChange() time.Time { return g.lastChange }

// writerQuiet is how long a session without a locked lock file must be unchanged until its writer
// counts as gone. The upstream agent uses the same time (log format, section 6.2).
const writerQuiet = 30 * time.Second

// Writer returns the state of the writer. Only C2 and C3 session folders show it.
func (g *Group) Writer(now time.Time) Liveness {
	if g.layout != Windows {
		return WriterUnknown
	}
	if !g.tmp && g.files > 0 {
		return WriterGone // the close removes .tmp; a new session has no other file either
	}
	// O_NONBLOCK: the name could belong to a FIFO.
	fd, err := unix.Open(filepath.Join(g.path, lockName), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return WriterUnknown
	}
	defer unix.Close(fd)
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := retryEINTR(func() error { return unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &lock) }); err != nil {
		return WriterUnknown
	}
	if lock.Type != unix.F_UNLCK || now.Sub(g.lastChange) < writerQuiet {
		return WriterAlive
	}
	return WriterGone
}

// apply applies a stable listing.
func (g *Group) apply(l *groupList, now time.Time) {
	g.tmp, g.files = l.tmp, len(l.entries)
	g.listed = now
	if len(l.entries) == 0 && !l.control {
		if g.goneSince.IsZero() {
			g.goneSince = now
		}
	} else {
		g.goneSince = time.Time{}
	}
	newest := g.noteTimes(l, now)
	g.decide(l, now, newest)
	if g.layout == Undecided {
		g.needList.Store(true)
		return
	}
	var lists [gpuflog.NumChannels][]entry
	for _, e := range l.entries {
		lists[e.name.Channel] = append(lists[e.name.Channel], e)
	}
	for ch, s := range g.streams {
		s.setFiles(g.arrange(lists[ch]), l.sidecarMax[ch], l.losses[ch], now)
	}
}

// noteTimes moves lastChange to the newest file time. It converts a file's age to a time of the
// monotonic clock at the first sight, so that a later change of the wall clock does not matter. A
// file time in the future counts as now, once.
func (g *Group) noteTimes(l *groupList, now time.Time) (newest time.Time) {
	for i := range l.entries {
		if t := time.Unix(0, l.entries[i].mtime); t.After(newest) {
			newest = t
		}
	}
	noted := newest
	newest = now.Add(-max(now.Sub(newest), 0))
	if noted.After(g.newestFile) && newest.After(g.lastChange) {
		g.lastChange = newest
	}
	g.newestFile = noted
	return newest
}

// decide finds the layout. It waits if names fit two layouts. During a rotation a group can briefly
// have x.1.log alone, which looks like A1, or like a C2 log file without compression.
func (g *Group) decide(l *groupList, now, newest time.Time) {
	var unnumbered, plainNumbered, gzNumbered bool
	for i := range l.entries {
		switch e := &l.entries[i]; {
		case e.tmp:
		case !e.name.Numbered():
			unnumbered = true
		case e.name.Compressed:
			gzNumbered = true
		default:
			plainNumbered = true
		}
	}
	if g.strong || (len(l.entries) == 0 && !l.control) {
		return
	}
	settled := now.Sub(newest) >= g.set.cfg.MissingGrace || now.Sub(g.firstSeen) >= g.set.cfg.MissingGrace
	if g.base != "" {
		switch {
		case unnumbered || gzNumbered:
			g.layout, g.strong = Flat, true
		case g.layout == Undecided && settled:
			g.layout = Numbered
		}
		return
	}
	switch {
	case l.control || l.tmp:
		g.layout, g.strong = Windows, true
	case unnumbered:
		g.layout, g.strong = C1, true
	case g.layout == Undecided && (settled || !plainNumbered):
		g.layout = Windows
	}
}

// arrange sorts a channel's files into time order, oldest first, and marks files that may grow. Of
// two files with one number the one that is easier to read comes first.
func (g *Group) arrange(es []entry) []entry {
	switch g.layout {
	case Undecided:
	case Flat, C1:
		for i := range es {
			es[i].open = !es[i].name.Numbered() && !es[i].name.Compressed
		}
		slices.SortStableFunc(es, func(a, b entry) int {
			if a.name.Numbered() != b.name.Numbered() {
				return boolOrder(b.name.Numbered(), a.name.Numbered())
			}
			return cmp.Or(cmp.Compare(b.name.Index, a.name.Index), boolOrder(a.name.Compressed, b.name.Compressed))
		})
	case Windows:
		for i := range es {
			e := &es[i]
			e.open = e.tmp && !e.name.Numbered() && !e.name.Compressed
			if e.name.Numbered() {
				e.seq = uint64(e.name.Index)
			}
		}
		slices.SortStableFunc(es, func(a, b entry) int {
			if a.name.Numbered() != b.name.Numbered() {
				return boolOrder(b.name.Numbered(), a.name.Numbered())
			}
			// A published file stays; a staged one will move.
			return cmp.Or(cmp.Compare(a.seq, b.seq), boolOrder(a.name.Compressed, b.name.Compressed), boolOrder(a.tmp, b.tmp))
		})
	case Numbered:
		for i := range es {
			if es[i].name.Numbered() {
				es[i].seq = uint64(es[i].name.Index) + 1
			}
		}
		slices.SortStableFunc(es, func(a, b entry) int { return cmp.Compare(a.seq, b.seq) })
		if n := len(es); n > 0 {
			es[n-1].open = true
		}
	}
	return es
}

// boolOrder sorts false before true.
func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// quietAfter is the time after which an unchanged group in a watched folder is polled only by
// inotify and the regular scans.
const quietAfter = 5 * time.Second

// poll checks the files that can grow, without listing the folder.
func (g *Group) poll(now time.Time) {
	if g.layout == Undecided {
		return
	}
	check := g.dir != nil && (g.touched || now.Sub(g.lastChange) < quietAfter ||
		g.set.watch == nil || !g.set.watch.watched[g.path] || (g.tmp && !g.set.watch.watched[filepath.Join(g.path, tmpName)]))
	g.touched = false
	for _, s := range g.streams {
		if s.poll(now, check) {
			g.lastChange = now
		}
	}
}

// drained reports whether nothing is open or waiting to be reported.
func (g *Group) drained() bool {
	for _, s := range g.streams {
		if s.busy() {
			return false
		}
	}
	return true
}
