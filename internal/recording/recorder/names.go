// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"github.com/gpuflight/gpuflight/internal/glob"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/deep/rule"
)

const (
	// maxNames bounds kernel names that are told apart. PyTorch with its compiler makes a few thousand.
	maxNames = 8192
	// otherIndex is the index of all names and scopes beyond the bounds.
	otherIndex = 0
	// otherName is what they are called.
	otherName = "_other"
)

// kernelName is what is known of one kernel name in the session.
type kernelName struct {
	name *gpuevent.KernelName
	// filtered says that the settings want no spans of it.
	filtered bool
	count    uint64
	ns       uint64
	maxNs    int64
	// own says that it has series of its own; see metrics.
	own bool
	// usages are its figures by device.
	usages []*usage
	cells  []*cell
	// series is what rules look at, nil if none does.
	series *rule.Series
}

// names gives each kernel name an index. Names are known by their pointers: that two of equal text
// have one is the source's promise, and where it is not kept both are counted as one in metrics,
// since byText is asked once for each pointer.
type names struct {
	byPointer map[*gpuevent.KernelName]uint32
	byText    map[string]uint32
	all       []kernelName
	// last is a memory of the name that came last: launches come in runs.
	last      *gpuevent.KernelName
	lastIndex uint32

	include, exclude []string
	// figures are those of rules, nil if there are none.
	figures *rule.Figures
}

func newNames(include, exclude []string) *names {
	n := &names{
		byPointer: map[*gpuevent.KernelName]uint32{}, byText: map[string]uint32{},
		include: include, exclude: exclude,
	}
	n.all = append(n.all, kernelName{
		name: &gpuevent.KernelName{Full: otherName, Short: otherName}, own: true,
	})
	return n
}

// observe has rules see kernels. It is called before the first name.
func (n *names) observe(f *rule.Figures) {
	n.figures = f
	n.all[otherIndex].series = f.Kernel(otherName, "")
}

// index returns the name's index, otherIndex past the bound.
func (n *names) index(name *gpuevent.KernelName) uint32 {
	if name == n.last && name != nil {
		return n.lastIndex
	}
	i, ok := n.byPointer[name]
	if !ok {
		i = n.add(name)
	}
	n.last, n.lastIndex = name, i
	return i
}

func (n *names) add(name *gpuevent.KernelName) uint32 {
	if name == nil {
		return otherIndex
	}
	i, ok := n.byText[name.Full]
	if !ok {
		if len(n.all) > maxNames {
			return otherIndex
		}
		i = uint32(len(n.all))
		n.byText[name.Full] = i
		n.all = append(n.all, kernelName{name: name, filtered: !n.wanted(name)})
		if n.figures != nil {
			n.all[i].series = n.figures.Kernel(name.Short, name.Full)
		}
	}
	if len(n.byPointer) < 4*maxNames {
		n.byPointer[name] = i
	}
	return i
}

// wanted says whether the settings want spans of the name.
func (n *names) wanted(name *gpuevent.KernelName) bool {
	return (len(n.include) == 0 || matches(n.include, name)) && !matches(n.exclude, name)
}

func matches(globs []string, name *gpuevent.KernelName) bool {
	for _, g := range globs {
		if glob.Match(g, name.Short) || glob.Match(g, name.Full) {
			return true
		}
	}
	return false
}
