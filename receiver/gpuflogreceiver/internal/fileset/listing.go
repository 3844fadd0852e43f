// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

const (
	tmpName = ".tmp"
	// maxListed bounds the entries of one folder's listing, about 10 MB.
	maxListed = 65536
	// maxLosses bounds the loss markers per channel.
	maxLosses = 1024
)

// entry is one data file of the last listing.
type entry struct {
	path  string
	name  gpuflog.FileName
	tmp   bool // in .tmp
	id    fileID
	size  int64
	mtime int64 // Unix ns
	irreg bool  // not a regular file

	// The group sets the following, because it has the layout.
	open bool   // may still be appended to
	seq  uint64 // file number, from 1; 0 if the layout gives none
}

// groupList is the result of one listing for one group.
type groupList struct {
	entries    []entry
	tmp        bool // .tmp exists
	control    bool // some .gpufl-* file exists
	sidecarMax [gpuflog.NumChannels]uint64
	losses     [gpuflog.NumChannels][]uint64
}

// dirList is one listing of a folder, .tmp included. Its groups are named by their base; "" is the
// session folder's own.
type dirList struct {
	subdirs  []string
	groups   map[string]*groupList
	problems []Problem
	listed   int
	full     bool // maxListed was reached
}

func (l *dirList) group(base string) *groupList {
	g := l.groups[base]
	if g == nil {
		g = &groupList{}
		l.groups[base] = g
	}
	return g
}

// list reads a folder. Names change meanwhile, and a rotation renames many files. So a listing of a
// group's files is valid only if two consecutive listings have the same names and inodes. Every
// single rename or unlink of a rotation changes the set of names. unstable has the groups that kept
// changing.
func (s *Set) list(path string) (l dirList, unstable map[string]bool, err error) {
	l, err = s.listOnce(path)
	if err != nil {
		return l, nil, err
	}
	for range 4 {
		again, err := s.listOnce(path)
		if err != nil {
			return l, nil, err
		}
		unstable = make(map[string]bool)
		for base, g := range again.groups {
			if old := l.groups[base]; old == nil || !sameFiles(old, g) {
				unstable[base] = true
			}
		}
		for base := range l.groups {
			if again.groups[base] == nil {
				unstable[base] = true
			}
		}
		l = again
		if len(unstable) == 0 {
			break
		}
	}
	return l, unstable, nil
}

func sameFiles(a, b *groupList) bool {
	return a.tmp == b.tmp && slices.EqualFunc(a.entries, b.entries, func(x, y entry) bool {
		return x.path == y.path && x.id == y.id
	})
}

func (s *Set) listOnce(path string) (dirList, error) {
	l := dirList{groups: make(map[string]*groupList)}
	// Read .tmp first: a file that moves from there to the session folder meanwhile is then seen
	// twice instead of never.
	tmp := filepath.Join(path, tmpName)
	err := s.listInto(&l, tmp, true)
	switch {
	case err == nil:
		l.group("").tmp = true
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
	default:
		l.group("").tmp = true
		l.problems = addProblem(l.problems, Problem{Reason: errorReason(err), Path: tmp, Err: err})
	}
	if err := s.listInto(&l, path, false); err != nil {
		l.problems = nil // this one says it all
		return l, err
	}
	if g := l.groups[""]; g != nil && len(g.entries) == 0 && !g.control {
		delete(l.groups, "") // a .tmp of somebody else
	}
	for _, g := range l.groups {
		slices.SortFunc(g.entries, func(a, b entry) int { return cmp.Compare(a.path, b.path) })
	}
	return l, nil
}

func (s *Set) listInto(l *dirList, path string, tmp bool) error {
	// O_DIRECTORY and O_NONBLOCK: a FIFO that replaced the folder must not block.
	d, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC|os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		names, err := d.ReadDir(512)
		for _, n := range names {
			s.classify(l, path, n, tmp)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *Set) classify(l *dirList, dir string, d fs.DirEntry, tmp bool) {
	name := d.Name()
	path := filepath.Join(dir, name)
	fn, isData := gpuflog.ParseFileName(name)
	if l.listed >= maxListed {
		l.full = true
		return
	}
	if !isData {
		if d.IsDir() {
			if !tmp && name != tmpName && !s.excluded(path) {
				l.listed++
				l.subdirs = append(l.subdirs, path)
			}
			return
		}
		if kind, ch, n := parseControl(name); kind != controlNone && !tmp && !s.excluded(path) {
			g := l.group("")
			g.control = true
			switch kind {
			case controlSidecar:
				g.sidecarMax[ch] = max(g.sidecarMax[ch], n)
			case controlLoss:
				if len(g.losses[ch]) < maxLosses {
					g.losses[ch] = append(g.losses[ch], n)
				}
			case controlNone, controlLock, controlOther:
			}
		}
		return
	}
	if (tmp && fn.Group.Base != "") || s.excluded(path) {
		return
	}
	var st unix.Stat_t
	// stat and not lstat: a file may be a symlink. The target is checked again when it is opened.
	if err := retryEINTR(func() error { return unix.Stat(path, &st) }); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		l.problems = addProblem(l.problems, Problem{Reason: errorReason(err), Path: path, Err: err})
		return
	}
	l.listed++
	g := l.group(fn.Group.Base)
	g.entries = append(g.entries, entry{
		path: path, name: fn, tmp: tmp, id: statID(&st), size: st.Size, mtime: mtimeOf(&st),
		irreg: st.Mode&unix.S_IFMT != unix.S_IFREG,
	})
}

func (s *Set) excluded(path string) bool {
	for _, e := range s.exclude {
		if e.match(path) {
			return true
		}
	}
	return false
}

func errorReason(err error) Reason {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return Permission
	case errors.Is(err, errNotRegular), errors.Is(err, unix.ENXIO): // ENXIO: a socket, or a device without a driver
		return NotRegular
	default:
		return ReadError
	}
}
