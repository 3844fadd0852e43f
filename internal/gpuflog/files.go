// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"cmp"
	slashed "path"
	"slices"
	"strconv"
	"strings"
)

// Unnumbered is the Index of a file whose name has no number.
const Unnumbered = -1

// FileName is what the path of a log says: [base.]channel[.N].log[.gz] in some folder.
type FileName struct {
	// Path is what was taken apart.
	Path    string
	Group   FileGroup
	Channel Channel
	// Index is the number of a window or of a rotation, Unnumbered if there is none.
	Index int
	// Compressed files end in .gz.
	Compressed bool
	// Staged files lie in .tmp, where a session has what it has not published.
	Staged bool
}

// Numbered reports whether the name has a number.
func (f FileName) Numbered() bool { return f.Index != Unnumbered }

// FileGroup names files that belong together: those of a session's folder, then Base is empty, or those of a base name
// in a folder.
type FileGroup struct{ Dir, Base string }

// MaxFileIndex bounds the numbers in names: no rotation gets there.
const MaxFileIndex = 999_999_999

// ParseFileName takes a path with slashes apart; false if it is not of a log. Dir is as the path has it, empty if that
// has no folder.
//
// Numbers are canonical: device.01.log is no window of its own beside device.1.log. The oldest recorders called the
// device channel kernel, in numbered files with a base name only (format document, section 2).
func ParseFileName(p string) (FileName, bool) {
	dir, name := slashed.Split(p)
	f := FileName{Path: p, Index: Unnumbered}
	name, f.Compressed = strings.CutSuffix(name, ".gz")
	name, ok := strings.CutSuffix(name, ".log")
	if !ok {
		return FileName{}, false
	}
	base, last, dotted := cutLast(name)
	if n, ok := ParseFileIndex(last); ok && dotted {
		f.Index = n
		base, last, dotted = cutLast(base)
	}
	if base == "" && dotted {
		return FileName{}, false // .device.log has an empty base: neither layout
	}
	if f.Channel, ok = ChannelNamed(last); !ok {
		if last != "kernel" || !f.Numbered() || f.Compressed || base == "" {
			return FileName{}, false
		}
		f.Channel = Device
	}
	f.Group = FileGroup{strings.TrimSuffix(dir, "/"), base}
	if base == "" && slashed.Base(f.Group.Dir) == ".tmp" {
		f.Group.Dir, f.Staged = slashed.Dir(f.Group.Dir), true
	}
	return f, true
}

// ParseFileIndex reads a number as it stands in names: canonical decimals up to MaxFileIndex.
func ParseFileIndex(s string) (int, bool) {
	if s == "" || len(s) > 1 && s[0] == '0' || s[0] < '0' || s[0] > '9' {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil && n <= MaxFileIndex
}

// cutLast cuts at the last dot; dotted says whether there is one.
func cutLast(s string) (before, last string, dotted bool) {
	if i := strings.LastIndexByte(s, '.'); i >= 0 {
		return s[:i], s[i+1:], true
	}
	return "", s, false
}

// Windowed reports whether files of one group are a session's windows, whose numbers rise. In what is older a file
// without a number, outside .tmp, is the newest.
func Windowed[F any](files []F, name func(F) FileName) bool {
	return !slices.ContainsFunc(files, func(f F) bool {
		n := name(f)
		return n.Group.Base != "" || n.Index == Unnumbered && !n.Staged
	})
}

// Ordered returns a channel's files among those of one group, the oldest first, and each number once. The numbers of
// windows rise, and a window without one is not complete yet; in the older layouts 1 is the newest but for the file
// without a number. Of a window that is there twice, published and staged or compressed and not, the published and
// then the first by name counts.
func Ordered[F any](files []F, name func(F) FileName, channel Channel, windowed bool) []F {
	var of []F
	rising := true
	for _, f := range files {
		if n := name(f); n.Channel == channel {
			of = append(of, f)
			rising = rising && (windowed || n.Index != Unnumbered)
		}
	}
	slices.SortFunc(of, func(x, y F) int {
		a, b := name(x), name(y)
		index := cmp.Compare(a.Index, b.Index)
		// The one without a number is the last in both.
		if !rising || a.Index == Unnumbered || b.Index == Unnumbered {
			index = -index
		}
		if index == 0 && a.Staged != b.Staged {
			if a.Staged {
				return 1
			}
			return -1
		}
		return cmp.Or(index, cmp.Compare(a.Path, b.Path))
	})
	return slices.CompactFunc(of, func(x, y F) bool { return name(x).Index == name(y).Index })
}
