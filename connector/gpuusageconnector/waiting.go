// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

// waiting holds the sums of device work whose parent has not come yet, so that it is not known in
// which scope it ran. They are kept by parent, not by span: a scope of a million kernels is one entry.
type waiting struct {
	byParent map[uint64]*orphans
	// All entries, the oldest first.
	first, last *orphans
	n           int
}

// orphans are the sums of one service under one parent.
type orphans struct {
	parent  uint64
	service uint32
	since   int64
	cells   []*orphanCell

	next, prev *orphans
	// sibling is an entry of the same parent and another service.
	sibling *orphans
}

type orphanCell struct {
	label uint32
	sums
}

func newWaiting() waiting { return waiting{byParent: map[uint64]*orphans{}} }

func (w *waiting) find(service uint32, parent uint64) *orphans {
	o := w.byParent[parent]
	for o != nil && o.service != service {
		o = o.sibling
	}
	return o
}

// has says whether there are sums of a service and parent.
func (w *waiting) has(service uint32, parent uint64) bool { return w.find(service, parent) != nil }

// of returns the sums of a service, parent and device.
func (w *waiting) of(service uint32, parent uint64, label uint32, now int64) *sums {
	o := w.find(service, parent)
	if o == nil {
		o = &orphans{parent: parent, service: service, since: now, sibling: w.byParent[parent], prev: w.last}
		w.byParent[parent] = o
		if w.last != nil {
			w.last.next = o
		} else {
			w.first = o
		}
		w.last = o
		w.n++
	}
	for _, c := range o.cells {
		if c.label == label {
			return &c.sums
		}
	}
	c := &orphanCell{label: label}
	o.cells = append(o.cells, c)
	return &c.sums
}

// take removes the entries of a parent and returns the first; the others follow as siblings.
func (w *waiting) take(parent uint64) *orphans {
	o := w.byParent[parent]
	if o == nil {
		return nil
	}
	delete(w.byParent, parent)
	for s := o; s != nil; s = s.sibling {
		w.unlink(s)
	}
	return o
}

// takeOldest removes the oldest entry and returns it.
func (w *waiting) takeOldest() *orphans {
	o := w.first
	at := w.byParent[o.parent]
	switch {
	case at != o:
		for at.sibling != o {
			at = at.sibling
		}
		at.sibling = o.sibling
	case o.sibling != nil:
		w.byParent[o.parent] = o.sibling
	default:
		delete(w.byParent, o.parent)
	}
	o.sibling = nil
	w.unlink(o)
	return o
}

func (w *waiting) unlink(o *orphans) {
	if o.prev != nil {
		o.prev.next = o.next
	} else {
		w.first = o.next
	}
	if o.next != nil {
		o.next.prev = o.prev
	} else {
		w.last = o.prev
	}
	o.next, o.prev = nil, nil
	w.n--
}
