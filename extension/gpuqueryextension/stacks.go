// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
)

type stackAnswer struct {
	Stack []string `json:"stack"`
	Scope []string `json:"scope"`
	Path  uint32   `json:"path"`
	Name  string   `json:"name"`
	Count int64    `json:"count"`
	SumNs int64    `json:"sum_ns"`
}

type stackLine struct {
	Path    uint32 `json:"path"`
	Name    string `json:"name"`
	File    string `json:"file"`
	Line    int64  `json:"line"`
	Samples uint64 `json:"samples"`
}

// stackKernels is the number of operations from which a flame graph is made at most, if it is made from
// rows. A store reads 2 to 5 million in a second.
const stackKernels = 500_000

// stacks answers what a flame graph draws: the kernels by host stack, path and name, and the samples
// of their lines. Of a longer interval it reads a part in the middle.
func (s *server) stacks(ctx context.Context, r *request) (any, error) {
	q := store.StackQuery{Project: r.project, Session: r.session}
	q.From, q.To = r.interval()
	limit := int(r.integer("limit", 10_000, 1, 99_999))
	q.Limit = limit + 1
	if err := r.check(); err != nil {
		return nil, err
	}
	complete := r.info.Counts["ops"] <= s.stackKernels
	var err error
	if sums, ok := s.store.(store.StackSums); ok && !complete && q.From == 0 && q.To == 0 {
		if complete, err = sums.StacksFromSums(ctx, r.project, r.session); err != nil {
			return nil, err
		}
	}
	if !complete {
		if q.From, q.To, complete, err = s.middle(ctx, r, q.From, q.To); err != nil {
			return nil, err
		}
	}
	found, err := s.store.Stacks(ctx, q)
	if err != nil {
		return nil, err
	}
	nodes, err := s.store.Scopes(ctx, r.project, r.session)
	if err != nil {
		return nil, err
	}
	names := pathNames(nodes)
	list := []stackAnswer{}
	for _, x := range found[:min(len(found), limit)] {
		frames := []string{}
		if x.Stack != "" {
			frames = strings.Split(x.Stack, "\n")
			slices.Reverse(frames)
		}
		list = append(list, stackAnswer{frames, names[x.Path], x.Path, x.Name, x.Count, x.SumNs})
	}
	lines, err := s.stackLines(ctx, r, q.From, q.To)
	if err != nil {
		return nil, err
	}
	answer := map[string]any{"base": r.baseText(), "stacks": list, "lines": lines, "truncated": len(found) > limit}
	if !complete {
		answer["part"] = map[string]int64{"from": q.From - r.base, "to": q.To - r.base}
	}
	return answer, nil
}

// middle returns the part of an interval around its median operation in which at most stackKernels
// operations start, by the sums of the timeline. Whole says that this is the interval itself.
func (s *server) middle(ctx context.Context, r *request, from, to int64) (first, last int64, whole bool, err error) {
	first, last = from, to
	// Each round divides the interval by the number of bins, so a burst needs a few rounds. Few bins take
	// less time.
	for range 4 {
		t, err := s.store.Timeline(ctx, store.TimelineQuery{Project: r.project, Session: r.session, From: first, To: last, Bins: 200})
		if err != nil {
			return 0, 0, false, err
		}
		counts := []int64{}
		total := int64(0)
		for _, b := range t.Bins {
			for int(b.Index) >= len(counts) {
				counts = append(counts, 0)
			}
			counts[b.Index] += b.Count
			total += b.Count
		}
		if total <= s.stackKernels {
			return first, last, first == from && last == to, nil
		}
		low, high := around(counts, total, s.stackKernels)
		first, last = t.From+int64(low)*t.Width, t.From+int64(high)*t.Width
		if counts[low] <= s.stackKernels {
			return first, last, false, nil
		}
	}
	return first, last, false, nil
}

// around returns the range of bins with the median operation that grows to both sides while its sum is
// at most limit. It has at least one bin.
func around(counts []int64, total, limit int64) (low, high int) {
	for before := counts[0]; before < total/2; before += counts[low] {
		low++
	}
	high = low + 1
	sum := counts[low]
	for grown := true; grown; {
		grown = false
		if high < len(counts) && sum+counts[high] <= limit {
			sum, high, grown = sum+counts[high], high+1, true
		}
		if low > 0 && sum+counts[low-1] <= limit {
			low--
			sum, grown = sum+counts[low], true
		}
	}
	return low, high
}

// stackLines sums samples by path, kernel and line. Samples have the full name of a kernel.
func (s *server) stackLines(ctx context.Context, r *request, from, to int64) ([]stackLine, error) {
	lines := []stackLine{}
	if r.info.Counts["samples"] == 0 {
		return lines, nil
	}
	samples, err := s.store.Samples(ctx, store.SampleQuery{Project: r.project, Session: r.session, From: from, To: to,
		Kind: store.SampleStall, ByLine: true, ByPath: true, Limit: maxSamples})
	if err != nil {
		return nil, err
	}
	groups, err := s.store.Kernels(ctx, store.KernelQuery{Project: r.project, Session: r.session, Group: store.GroupShape, Limit: 10_000})
	if err != nil {
		return nil, err
	}
	var ids []uint32
	for i := range groups {
		ids = append(ids, groups[i].ID)
	}
	shapes, err := s.store.Shapes(ctx, r.project, r.session, ids)
	if err != nil {
		return nil, err
	}
	short := map[string]string{}
	for _, sh := range shapes {
		short[sh.FullName] = sh.Name
	}
	index := map[stackLine]int{}
	for i := range samples {
		x := &samples[i]
		if !x.Line.OK || !issued(x.What) {
			continue
		}
		k := stackLine{x.Path, x.Kernel, x.File, x.Line.V, 0}
		if name, ok := short[x.Kernel]; ok {
			k.Name = name
		}
		at, ok := index[k]
		if !ok {
			at = len(lines)
			index[k] = at
			lines = append(lines, k)
		}
		lines[at].Samples += x.Value
	}
	return lines, nil
}

// maxSamples is the largest number of sums of samples that a request reads.
const maxSamples = 100_000

// issued reports whether a stall reason counts all samples of its kind. A reason with the suffix counts
// a part of those of the reason without it.
func issued(reason string) bool { return !strings.HasSuffix(reason, "_not_issued") }

// pathFilter reads the parameter path. The function reports whether a path is it or below it; it is nil
// without the parameter.
func (s *server) pathFilter(ctx context.Context, r *request, path *uint32) (func(uint32) bool, error) {
	if path == nil {
		return nil, nil
	}
	nodes, err := s.store.Scopes(ctx, r.project, r.session)
	if err != nil {
		return nil, err
	}
	inside := map[uint32]bool{}
	for i := range nodes {
		if nodes[i].Path == *path || i > 0 && inside[nodes[i].Parent] {
			inside[nodes[i].Path] = true
		}
	}
	if len(inside) == 0 {
		return nil, errNoPath
	}
	return func(p uint32) bool { return inside[p] }, nil
}

// sampleSums are the sums of samples of a scope and of those below it.
type sampleSums struct {
	Samples uint64            `json:"samples"`
	Stalls  map[string]uint64 `json:"stalls"`
	Metrics map[string]uint64 `json:"metrics"`
}

func (s *sampleSums) add(kind store.SampleKind, what string, value uint64) {
	if kind == store.SampleSASS {
		s.Metrics[what] += value
		return
	}
	s.Stalls[what] += value
	if issued(what) {
		s.Samples += value
	}
}

// addSamples adds sums of samples to the nodes that have any.
func (s *server) addSamples(ctx context.Context, r *request, list []*scopeNode) error {
	if r.info.Counts["samples"] == 0 {
		return nil
	}
	found, err := s.store.Samples(ctx, store.SampleQuery{Project: r.project, Session: r.session, ByPath: true, Limit: maxSamples})
	if err != nil {
		return err
	}
	byPath := map[uint32]*scopeNode{}
	for _, n := range list {
		byPath[n.Path] = n
	}
	for i := range found {
		x := &found[i]
		for n := byPath[x.Path]; n != nil; n = byPath[n.Parent] {
			if n.Samples == nil {
				n.Samples = &sampleSums{0, map[string]uint64{}, map[string]uint64{}}
			}
			n.Samples.add(x.Kind, x.What, x.Value)
			if n.Path == 0 {
				break
			}
		}
	}
	return nil
}
