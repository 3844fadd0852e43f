// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// ErrClosed is returned by every call after Set.Close.
var ErrClosed = errors.New("file set is closed")

// Set is a set of watched folders. The package comment lists the calls that exclude each other.
type Set struct {
	cfg     Config
	roots   []root
	exclude []excluder
	wake    chan struct{}
	watch   *watcher
	pool    pool

	dirs     map[string]*dir
	groups   map[string]*Group
	order    []*Group // by key
	now      time.Time
	round    uint64 // number of scans of all folders
	nextWalk time.Time
	changes  *Changes
	reported map[reportedKey]struct{} // reported problems with folders, until they are solved
	closed   bool
}

// Changes is the result of one scan.
type Changes struct {
	Added    []*Group
	Removed  []*Group // no files, all data read or given up; the checkpoint may be removed
	Problems []Problem
}

// dir is one searched folder. A session's .tmp belongs to its session folder.
type dir struct {
	path    string
	stamp   dirStamp
	quiet   int // scans of the folder since its stamp changed
	round   uint64
	depth   int
	all     bool     // every group in it counts
	filters []string // otherwise groups with a file that matches a pattern
	subdirs []string
	groups  []*Group
	relist  bool
}

// dirStamp changes when a name in a folder, or in its .tmp, changes.
type dirStamp struct {
	id, tmpID       fileID
	mtime, tmpMtime int64
}

// quietLooks is how often an unchanged folder is still listed: a change within one tick of the file
// system's clock does not change its mtime.
const quietLooks = 3

// New checks the configuration. It reads no folder: the first Scan does.
func New(cfg Config) (*Set, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	s := &Set{
		cfg: cfg, wake: make(chan struct{}, 1),
		dirs: make(map[string]*dir), groups: make(map[string]*Group), reported: make(map[reportedKey]struct{}),
	}
	s.pool.max = cfg.MaxOpenFiles
	for _, p := range cfg.Include {
		r, err := newRoot(p, cfg.MaxDepth)
		if err != nil {
			return nil, fmt.Errorf("include: %w", err)
		}
		s.roots = append(s.roots, r)
	}
	for _, p := range cfg.Exclude {
		e, err := newExcluder(p)
		if err != nil {
			return nil, fmt.Errorf("exclude: %w", err)
		}
		s.exclude = append(s.exclude, e)
	}
	if len(s.roots) == 0 {
		return nil, errors.New("include: empty")
	}
	if !cfg.DisableNotify {
		w, err := newWatcher(cfg.Logger, s.wake)
		if err != nil {
			cfg.Logger.Info("file notification does not work; polling", zap.Error(err))
		} else {
			s.watch = w
		}
	}
	return s, nil
}

// Wake receives when a watched folder changed. Many events make one wake-up. It may receive without
// a change. Without inotify it never receives. Any goroutine may call it.
func (s *Set) Wake() <-chan struct{} { return s.wake }

// Groups returns all groups, ordered by key. The slice belongs to the set and is valid until the
// next Scan.
func (s *Set) Groups() []*Group { return s.order }

// OpenFiles returns the number of open files. Any goroutine may call it.
func (s *Set) OpenFiles() int { return s.pool.size() }

// Scan finds changes. Call it at every poll and after every wake-up. It checks known live files
// each time. It checks folders when they may have changed, and at least every RescanInterval. now
// must not decrease; all delays are measured with it.
func (s *Set) Scan(now time.Time) Changes {
	if s.closed {
		return Changes{}
	}
	s.now = now
	var c Changes
	s.changes = &c
	touchedDirs, all := s.watch.take()
	for path, t := range touchedDirs {
		s.touch(path, t)
	}
	if all || !now.Before(s.nextWalk) {
		s.walk()
	}
	for _, g := range s.order {
		g.poll(now)
		if g.needList.Swap(false) && g.dir != nil {
			g.dir.relist = true
		}
	}
	for _, d := range s.sortedDirs() {
		if d.relist {
			s.listDir(d)
		}
	}
	if !now.Before(s.nextWalk) {
		s.walk() // for added and removed folders
	}
	s.sweep()
	s.changes = nil
	return c
}

// sortedDirs returns the folders to list again, in a fixed order.
func (s *Set) sortedDirs() []*dir {
	var ds []*dir
	for _, d := range s.dirs {
		if d.relist {
			ds = append(ds, d)
		}
	}
	slices.SortFunc(ds, func(a, b *dir) int { return cmp.Compare(a.path, b.path) })
	return ds
}

func (s *Set) touch(path string, t touched) {
	d := s.dirs[path]
	if d == nil && filepath.Base(path) == tmpName {
		d = s.dirs[filepath.Dir(path)]
	}
	if d == nil {
		return
	}
	if t&touchedNames != 0 {
		d.relist = true
	}
	for _, g := range d.groups {
		g.touched = true
	}
}

// walk checks every folder, and lists the changed ones.
func (s *Set) walk() {
	start := time.Now()
	s.round++
	for _, r := range s.roots {
		s.visit(r.dir, 0, r, false)
	}
	for path, d := range s.dirs {
		if d.round != s.round {
			s.dropDir(path, d)
		}
	}
	for _, g := range s.order {
		g.touched = true // finds growth without an inotify event
	}
	interval := s.cfg.RescanInterval
	if !s.watch.works() {
		// Without inotify only this finds new files, so do it more often, but use at most a
		// twentieth of one core.
		interval = min(interval, max(interval/4, 20*time.Since(start)))
	}
	s.nextWalk = s.now.Add(interval)
}

func (s *Set) visit(path string, depth int, r root, matched bool) {
	d := s.dirs[path]
	var old dirStamp
	if d != nil {
		old = d.stamp
	}
	stamp, err := stampOf(path, depth == 0, old)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			s.reportOnce(Problem{Reason: errorReason(err), Path: path, Err: err})
		}
		// An included entry that is a file: its folder is searched for that file's group.
		if depth == 0 && errors.Is(err, unix.ENOTDIR) && r.pattern == "" && path == r.dir {
			up := root{dir: filepath.Dir(path), pattern: escapePattern(path), maxDepth: 0}
			s.visit(up.dir, 0, up, false)
		}
		return
	}
	if d == nil {
		d = &dir{path: path, relist: true, depth: depth}
		s.dirs[path] = d
	}
	matched = matched || r.pattern == "" || doublestar.MatchUnvalidated(r.pattern, path)
	if matched && !d.all {
		d.all, d.relist = true, true
	}
	if !matched && !slices.Contains(d.filters, r.pattern) {
		d.filters, d.relist = append(d.filters, r.pattern), true
	}
	d.round = s.round
	d.depth = min(d.depth, depth)
	s.watch.add(path)
	if stamp.tmpID != (fileID{}) {
		s.watch.add(filepath.Join(path, tmpName))
	}
	if stamp != d.stamp {
		d.stamp, d.quiet = stamp, 0
	}
	if d.quiet < quietLooks {
		d.quiet++
		d.relist = true
	}
	if d.relist {
		s.listDir(d)
	}
	limit := r.maxDepth
	if matched {
		limit = s.cfg.MaxDepth
	}
	if depth >= limit {
		if len(d.subdirs) > 0 && limit == s.cfg.MaxDepth {
			s.reportOnce(Problem{Reason: TooDeep, Path: path})
		}
		return
	}
	for _, sub := range d.subdirs {
		s.visit(sub, depth+1, r, matched)
	}
}

// stampOf returns the stamp of a folder. An included folder may be a symlink, one found below may
// not. A new .tmp changes the folder's own time, so .tmp is checked only if that has changed.
func stampOf(path string, follow bool, old dirStamp) (dirStamp, error) {
	var st unix.Stat_t
	err := retryEINTR(func() error {
		if follow {
			return unix.Stat(path, &st)
		}
		return unix.Lstat(path, &st)
	})
	if err != nil {
		return dirStamp{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return dirStamp{}, unix.ENOTDIR
	}
	stamp := dirStamp{id: statID(&st), mtime: mtimeOf(&st)}
	if stamp == old {
		return stamp, nil
	}
	if retryEINTR(func() error { return unix.Lstat(filepath.Join(path, tmpName), &st) }) == nil {
		stamp.tmpID, stamp.tmpMtime = statID(&st), mtimeOf(&st)
	}
	return stamp, nil
}

func escapePattern(path string) string {
	var b []byte
	for i := range len(path) {
		switch path[i] {
		case '*', '?', '[', ']', '{', '}', '\\':
			b = append(b, '\\')
		}
		b = append(b, path[i])
	}
	return string(b)
}

// listDir reads a folder and assigns the files to groups.
func (s *Set) listDir(d *dir) {
	d.relist = false
	l, unstable, err := s.list(d.path)
	if err != nil || len(l.problems) > 0 {
		d.quiet = 0 // retry at every scan
	}
	for _, p := range l.problems {
		s.reportOnce(p)
	}
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			s.nextWalk = s.now // it is gone: search all folders
			s.dropDir(d.path, d)
			return
		}
		s.reportOnce(Problem{Reason: errorReason(err), Path: d.path, Err: err})
		return
	}
	if len(l.problems) == 0 {
		s.forget(d.path)
	}
	if l.full {
		s.reportOnce(Problem{Reason: TooManyWindows, Path: d.path})
	}
	if g := l.groups[""]; g != nil && g.tmp {
		s.watch.add(filepath.Join(d.path, tmpName))
	} else {
		s.watch.remove(filepath.Join(d.path, tmpName))
	}
	if !slices.Equal(d.subdirs, l.subdirs) {
		d.subdirs = l.subdirs
		s.nextWalk = s.now // visit new folders at the next scan, or in this walk
	}
	for base, gl := range l.groups {
		key := groupKey(d.path, base)
		g := s.groups[key]
		if g == nil {
			if !d.accepts(gl) {
				continue
			}
			if len(s.groups) >= s.cfg.MaxGroups {
				s.reportOnce(Problem{Reason: TooManyGroups, Path: d.path})
				continue
			}
			g = newGroup(s, key, d.path, base)
			s.groups[key] = g
			i, _ := slices.BinarySearchFunc(s.order, key, func(g *Group, k string) int { return cmp.Compare(g.key, k) })
			s.order = slices.Insert(s.order, i, g)
			s.changes.Added = append(s.changes.Added, g)
		}
		if g.dir != d {
			g.dir = d
			d.groups = append(d.groups, g)
		}
		if unstable[base] {
			g.needList.Store(true) // at the next scan
			continue
		}
		g.apply(gl, s.now)
	}
	for _, g := range d.groups {
		if l.groups[g.base] == nil && !unstable[g.base] {
			g.apply(&groupList{}, s.now)
		}
	}
}

func (d *dir) accepts(gl *groupList) bool {
	if d.all {
		return true
	}
	for _, f := range d.filters {
		for i := range gl.entries {
			if doublestar.MatchUnvalidated(f, gl.entries[i].path) {
				return true
			}
		}
	}
	return false
}

func (s *Set) dropDir(path string, d *dir) {
	for _, g := range d.groups {
		g.apply(&groupList{}, s.now)
		g.dir = nil
	}
	d.groups = nil
	delete(s.dirs, path)
	s.forget(path)
	s.watch.remove(path)
	s.watch.remove(filepath.Join(path, tmpName))
}

// sweep removes groups without files and without unread data.
func (s *Set) sweep() {
	s.order = slices.DeleteFunc(s.order, func(g *Group) bool {
		if g.goneSince.IsZero() || s.now.Sub(g.goneSince) < s.cfg.MissingGrace || !g.drained() {
			return false
		}
		delete(s.groups, g.key)
		if g.dir != nil {
			g.dir.groups = slices.DeleteFunc(g.dir.groups, func(o *Group) bool { return o == g })
		}
		s.changes.Removed = append(s.changes.Removed, g)
		return true
	})
}

// maxReported bounds the reported problems in memory. When it is full, reports may repeat.
const maxReported = 10_000

type reportedKey struct {
	path   string
	reason Reason
}

// reportOnce reports a folder's problem once, until the folder can be read again or is gone.
func (s *Set) reportOnce(p Problem) {
	key := reportedKey{p.Path, p.Reason}
	if _, ok := s.reported[key]; ok {
		return
	}
	if len(s.reported) >= maxReported {
		clear(s.reported)
	}
	s.reported[key] = struct{}{}
	s.changes.Problems = addProblem(s.changes.Problems, p)
}

func (s *Set) forget(path string) {
	delete(s.reported, reportedKey{path, Permission})
	delete(s.reported, reportedKey{path, ReadError})
}

// Close stops watching and closes all files. Streams return ErrClosed afterwards. It may be called
// twice.
func (s *Set) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	for _, g := range s.order {
		for _, st := range g.streams {
			st.release()
		}
	}
	return s.watch.close()
}

// pool bounds the number of open files over all streams.
type pool struct {
	mu   sync.Mutex
	max  int
	open []*Stream // least recently used first
}

func (p *pool) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open)
}

// use marks a stream as read, and closes the idlest other stream above the bound. The caller holds
// s.mu, so other locks are only tried: a locked stream is not idle.
func (p *pool) use(s *Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.open); n > 0 && p.open[n-1] == s {
		return
	}
	p.open = slices.DeleteFunc(p.open, func(o *Stream) bool { return o == s })
	for i := 0; len(p.open) >= p.max && i < len(p.open); {
		v := p.open[i]
		if !v.mu.TryLock() {
			i++
			continue
		}
		if v.closeIdle() {
			p.open = slices.Delete(p.open, i, i+1)
		} else {
			i++
		}
		v.mu.Unlock()
	}
	p.open = append(p.open, s)
}

func (p *pool) drop(s *Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = slices.DeleteFunc(p.open, func(o *Stream) bool { return o == s })
}
