// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"github.com/gpuflight/gpuflight/internal/glob"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/deep/rule"
)

const (
	// maxNames bounds the distinguished kernel names. PyTorch with its compiler generates a few
	// thousand.
	maxNames = 8192
	// otherIndex is the index of all names and scopes above the bounds.
	otherIndex = 0
	// otherName is their name in metrics.
	otherName = "_other"
)

// kernelName is the state of one kernel name in the session.
type kernelName struct {
	name *gpuevent.KernelName
	// filtered means that the settings exclude spans of this name.
	filtered bool
	count    uint64
	ns       uint64
	maxNs    int64
	// own means that the name has series of its own; see metrics.
	own bool
	// usages holds its counts by device.
	usages []*usage
	cells  []*cell
	// series is the input of rules; nil if no rule observes the name.
	series *rule.Series
}

// names gives each kernel name an index. It looks names up by pointer, because the source interns
// them. Two pointers with equal text still get the same index through byText.
type names struct {
	byPointer map[*gpuevent.KernelName]uint32
	byText    map[string]uint32
	all       []kernelName
	// last caches the latest name: equal launches often follow each other.
	last      *gpuevent.KernelName
	lastIndex uint32

	include, exclude []string
	// figures are the inputs of rules; nil without rules.
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

// observe connects kernels to rules. It must be called before the first name is added.
func (n *names) observe(f *rule.Figures) {
	n.figures = f
	n.all[otherIndex].series = f.Kernel(otherName, "")
}

// index returns the name's index, or otherIndex above the bound.
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

// wanted reports whether the settings include spans of the name.
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
