// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package probe

import (
	"cmp"
	"slices"
)

// line is one line of the kernel's sums, added over all processors.
type line struct {
	key cudaSumKey
	sum cudaSum
}

func (s *cudaSum) add(o cudaSum) {
	s.Calls += o.Calls
	s.First += o.First
	s.Second += o.Second
	s.FirstMax = max(s.FirstMax, o.FirstMax)
	s.SecondMax = max(s.SecondMax, o.SecondMax)
}

func (h *Histogram) add(bucket uint8, count, sum, most uint64) {
	h.Count += count
	h.Sum += sum
	h.Max = max(h.Max, most)
	h.Buckets[min(int(bucket), Buckets-1)] += count
}

// add adds launches of another kernel, without their grids and blocks.
func (l *Launch) add(o *Launch) { l.Calls += o.Calls }

// process converts the lines of a process to a Process. name returns the name of a kernel by run
// and handle.
func process(id ProcessID, lines []line, sampleEvery uint32, name func(run, handle uint64) string) Process {
	p := Process{ID: id, SampleEvery: sampleEvery}
	launches := make(map[Launch]*Launch)
	copies := make(map[Copy]*Copy)
	memory := map[string]*Memory{}
	waits := map[string]*Wait{}
	collectives := map[string]*Collective{}
	faults := map[Error]uint64{}
	for _, l := range lines {
		k, s := l.key, l.sum
		switch cudaSumKind(k.Kind) {
		case cudaSumKindSUM_LAUNCH:
			n := Launch{Captured: k.Flag != 0}
			if k.Handle == 0 {
				n.Other = true
			} else if n.Name = name(k.Run, k.Handle); n.Name == "" {
				n.Handle = k.Handle
			}
			g := get(launches, n, n)
			g.Calls += s.Calls
			g.Grid.add(k.Low, s.Calls, s.First, s.FirstMax)
			g.Block.add(k.High, s.Calls, s.Second, s.SecondMax)
		case cudaSumKindSUM_OTHER:
			n := Launch{Captured: k.Flag != 0, Other: true}
			get(launches, n, n).Calls += s.Calls
		case cudaSumKindSUM_LOST:
			if int(k.Index) < len(lossNames) {
				if p.Lost == nil {
					p.Lost = map[string]uint64{}
				}
				p.Lost[lossNames[k.Index]] += s.Calls
			}
		case cudaSumKindSUM_COPY, cudaSumKindSUM_COPY_TIME:
			n := Copy{Kind: copyKinds[k.Index], Async: k.Flag != 0}
			c := get(copies, n, n)
			if cudaSumKind(k.Kind) == cudaSumKindSUM_COPY {
				c.Bytes.add(k.Low, s.Calls, s.First, s.FirstMax)
			} else {
				c.Time.add(k.Low, s.Calls, s.First, s.FirstMax)
				c.TimedBytes += s.Second
			}
		case cudaSumKindSUM_SET:
			p.Sets.Calls += s.Calls
			p.Sets.Bytes += s.First
		case cudaSumKindSUM_ALLOC, cudaSumKindSUM_FREE:
			if int(k.Index) >= len(memoryKinds) {
				continue
			}
			kind := memoryKinds[k.Index]
			m := get(memory, kind, Memory{Kind: kind})
			m.InUse += int64(s.Second)
			v := &m.Allocated
			if cudaSumKind(k.Kind) == cudaSumKindSUM_FREE {
				v = &m.Freed
			}
			v.Calls += s.Calls
			v.Bytes += s.First
		case cudaSumKindSUM_WAIT:
			f := functionName(k.Index)
			get(waits, f, Wait{Function: f}).Time.add(k.Low, s.Calls, s.First, s.FirstMax)
		case cudaSumKindSUM_ERROR:
			faults[Error{Function: functionName(k.Index), Code: int32(k.Handle)}] += s.Calls
		case cudaSumKindSUM_ENQUEUE:
			p.Enqueue.add(k.Low, s.Calls, s.First, s.FirstMax)
		case cudaSumKindSUM_IDLE:
			p.Idle.add(k.Low, s.Calls, s.First, s.FirstMax)
		case cudaSumKindSUM_GRAPH:
			p.Graphs += s.Calls
			p.GraphNodes += s.First
			if k.Flag == 0 {
				p.GraphsUnknown += s.Calls
			}
		case cudaSumKindSUM_MODULE:
			p.Modules += s.Calls
		case cudaSumKindSUM_COLLECTIVE, cudaSumKindSUM_COLLECTIVE_TIME:
			f := functionName(k.Index)
			c := get(collectives, f, Collective{Function: f})
			if cudaSumKind(k.Kind) == cudaSumKindSUM_COLLECTIVE {
				c.Bytes.add(k.Low, s.Calls, s.First, s.FirstMax)
			} else {
				c.Time.add(k.Low, s.Calls, s.First, s.FirstMax)
			}
		}
	}
	p.Launches = sorted(launches, func(a, b Launch) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Handle, b.Handle), compareBool(a.Other, b.Other), compareBool(a.Captured, b.Captured))
	})
	p.Copies = sorted(copies, func(a, b Copy) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), compareBool(a.Async, b.Async)) })
	p.Memory = sorted(memory, func(a, b Memory) int { return cmp.Compare(a.Kind, b.Kind) })
	p.Waits = sorted(waits, func(a, b Wait) int { return cmp.Compare(a.Function, b.Function) })
	p.Collectives = sorted(collectives, func(a, b Collective) int { return cmp.Compare(a.Function, b.Function) })
	for e, calls := range faults {
		e.Calls = calls
		p.Errors = append(p.Errors, e)
	}
	slices.SortFunc(p.Errors, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Function, b.Function), cmp.Compare(a.Code, b.Code))
	})
	return p
}

// functionName returns the name of a function in the table, or "" if the index is invalid.
func functionName(index uint16) string {
	if int(index) >= len(apiFunctions) {
		return ""
	}
	return apiFunctions[index].name
}

func get[K comparable, V any](m map[K]*V, k K, first V) *V {
	v := m[k]
	if v == nil {
		v = &first
		m[k] = v
	}
	return v
}

func sorted[K comparable, V any](m map[K]*V, compare func(a, b V) int) []V {
	var all []V
	for _, v := range m {
		all = append(all, *v)
	}
	slices.SortFunc(all, compare)
	return all
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
