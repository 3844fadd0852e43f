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

// ErrClosed is returned by everything that is used after Set.Close.
var ErrClosed = errors.New("file set is closed")

// Set is all that is watched. See the package comment for which calls exclude each other.
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
	round    uint64 // of looks at every folder
	nextWalk time.Time
	changes  *Changes
	told     map[toldKey]struct{} // problems with folders that were reported, until they are gone
	closed   bool
}

// Changes is what one scan found.
type Changes struct {
	Added    []*Group
	Removed  []*Group // their files are gone and all of them was read or given up; a checkpoint may be dropped
	Problems []Problem
}

// dir is one folder that was searched. A session's .tmp belongs to its session folder.
type dir struct {
	path    string
	stamp   dirStamp
	quiet   int // looks at the folder since its stamp changed
	round   uint64
	depth   int
	all     bool     // every group in it counts
	filters []string // else those with a file that matches one of these patterns
	subdirs []string
	groups  []*Group
	relist  bool
}

// dirStamp changes when a name in a folder, or in its .tmp, does.
type dirStamp struct {
	id, tmpID       fileID
	mtime, tmpMtime int64
}

// quietLooks is how often an unchanged folder is listed all the same: a change within one tick of the file system's
// clock does not move its mtime.
const quietLooks = 3

// New checks the configuration. It reads no folder: the first Scan does.
func New(cfg Config) (*Set, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	s := &Set{
		cfg: cfg, wake: make(chan struct{}, 1),
		dirs: make(map[string]*dir), groups: make(map[string]*Group), told: make(map[toldKey]struct{}),
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

// Wake fires when something happened in a watched folder; many events make one wake-up. It may fire without a reason,
// and where inotify does not work it never fires. Safe from any goroutine.
func (s *Set) Wake() <-chan struct{} { return s.wake }

// Groups gives all groups, ordered by key. The slice belongs to the set and is valid until the next Scan.
func (s *Set) Groups() []*Group { return s.order }

// OpenFiles is how many files are held open now. Safe from any goroutine.
func (s *Set) OpenFiles() int { return s.pool.size() }

// Scan looks for what changed. It is meant to be called at every poll and after every wake-up: known live files are
// looked at each time, folders when something hints at a change and at least every RescanInterval. now must not go
// back; all waiting is measured by it.
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
		s.walk() // for the folders that were just found, or are gone
	}
	s.sweep()
	s.changes = nil
	return c
}

// sortedDirs lists the folders to relist, in a fixed order.
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

// walk looks at every folder, and lists those that changed.
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
		g.touched = true // growth that inotify did not tell is found now
	}
	interval := s.cfg.RescanInterval
	if !s.watch.works() {
		// Without inotify only this finds new files, so do it more often, but spend no more than a twentieth of one core.
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
			s.tell(Problem{Reason: errorReason(err), Path: path, Err: err})
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
			s.tell(Problem{Reason: TooDeep, Path: path})
		}
		return
	}
	for _, sub := range d.subdirs {
		s.visit(sub, depth+1, r, matched)
	}
}

// stampOf looks at a folder; an included one may be a symlink, one found below may not. A .tmp cannot have come as long
// as the folder's own time is the old one, so it is looked for only otherwise.
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

// listDir reads a folder and hands each group its files.
func (s *Set) listDir(d *dir) {
	d.relist = false
	l, unstable, err := s.list(d.path)
	if err != nil || len(l.problems) > 0 {
		d.quiet = 0 // try again at every look
	}
	for _, p := range l.problems {
		s.tell(p)
	}
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			s.nextWalk = s.now // it is gone; find out what else is
			s.dropDir(d.path, d)
			return
		}
		s.tell(Problem{Reason: errorReason(err), Path: d.path, Err: err})
		return
	}
	if len(l.problems) == 0 {
		s.forget(d.path)
	}
	if l.full {
		s.tell(Problem{Reason: TooManyWindows, Path: d.path})
	}
	if g := l.groups[""]; g != nil && g.tmp {
		s.watch.add(filepath.Join(d.path, tmpName))
	} else {
		s.watch.remove(filepath.Join(d.path, tmpName))
	}
	if !slices.Equal(d.subdirs, l.subdirs) {
		d.subdirs = l.subdirs
		s.nextWalk = s.now // visit what is new at the next scan, or in this walk
	}
	for base, gl := range l.groups {
		key := groupKey(d.path, base)
		g := s.groups[key]
		if g == nil {
			if !d.accepts(gl) {
				continue
			}
			if len(s.groups) >= s.cfg.MaxGroups {
				s.tell(Problem{Reason: TooManyGroups, Path: d.path})
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
			g.needList.Store(true) // with the next scan
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

// sweep removes groups that have no files any more and nothing left to read.
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

// maxTold bounds what is remembered as reported; when it is full, reports may repeat.
const maxTold = 10_000

type toldKey struct {
	path   string
	reason Reason
}

// tell reports a folder's problem once, until the folder can be read again or is gone.
func (s *Set) tell(p Problem) {
	key := toldKey{p.Path, p.Reason}
	if _, ok := s.told[key]; ok {
		return
	}
	if len(s.told) >= maxTold {
		clear(s.told)
	}
	s.told[key] = struct{}{}
	s.changes.Problems = addProblem(s.changes.Problems, p)
}

func (s *Set) forget(path string) {
	delete(s.told, toldKey{path, Permission})
	delete(s.told, toldKey{path, ReadError})
}

// Close ends the watching and closes all files. Streams give ErrClosed afterwards. It may be called twice.
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

// use notes that a stream reads, and closes the idlest other one if there are too many. The caller holds s.mu, so
// others are only tried: one that is being read is not idle.
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
