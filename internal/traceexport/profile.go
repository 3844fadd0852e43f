// SPDX-License-Identifier: Apache-2.0

package traceexport

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/pprof/profile"

	otlp "github.com/gpuflight/gpuflight/internal/recording/profile"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
)

const (
	// maxStacks bounds the distinct stacks of a profile.
	maxStacks = 500_000
	// maxSampleSums is the largest number of sums of samples that a store returns.
	maxSampleSums = 100_000
	// maxSpans bounds the spans of the tree of scopes, which is in memory.
	maxSpans = 1_000_000
)

// Profile writes a session as a compressed profile of pprof. A stack is the host stack, the path of
// scopes, the kernel. Its values are the launches and the kernel time in nanoseconds. The third value,
// of PC samples by kernel, function and source line, has stacks of its own, because samples have no
// host stack.
func Profile(ctx context.Context, r store.Reader, q Query, w io.Writer) error {
	b, err := buildProfile(ctx, r, q)
	if err != nil {
		return err
	}
	return b.p.Write(w)
}

// buildProfile sums up a session.
func buildProfile(ctx context.Context, r store.Reader, q Query) (*profileBuilder, error) {
	s, err := open(ctx, r, q)
	if err != nil {
		return nil, err
	}
	b := &profileBuilder{
		p: &profile.Profile{
			SampleType: []*profile.ValueType{
				{Type: "launches", Unit: "count"}, {Type: "kernel_time", Unit: "nanoseconds"}, {Type: "stall_samples", Unit: "count"},
			},
			DefaultSampleType: "kernel_time", TimeNanos: max(s.info.FirstNs, q.From),
			Comments: []string{"session " + s.info.ID},
		},
		info:      &s.info,
		locations: map[frame]*profile.Location{}, samples: map[stackKey]*profile.Sample{}, links: map[*profile.Sample]otlp.Link{},
	}
	b.p.DurationNanos = max(0, s.info.LastNs-b.p.TimeNanos)
	if q.To != 0 {
		b.p.DurationNanos = min(b.p.DurationNanos, q.To-b.p.TimeNanos)
	}
	if b.tree, err = s.tree(); err != nil {
		return nil, err
	}
	if err := s.kernels(b.kernel); err != nil {
		return nil, err
	}
	sums, err := r.Samples(ctx, store.SampleQuery{Project: q.Project, Session: q.Session, From: q.From, To: q.To,
		Kind: store.SampleStall, ByLine: true, Limit: maxSampleSums})
	if err != nil {
		return nil, err
	}
	if len(sums) == maxSampleSums {
		return nil, fmt.Errorf("the session has %d or more sums of PC samples: export a shorter interval: %w", maxSampleSums, store.ErrInvalid)
	}
	for i := range sums {
		b.stall(&sums[i])
	}
	return b, nil
}

// tree returns the tree of scopes of the whole session.
func (s *source) tree() (*answer.Tree, error) {
	var spans []answer.ScopeSpan
	whole := *s
	whole.q.From, whole.q.To = 0, 0
	err := whole.spans(func(p *store.SpanRow) error {
		if len(spans) == maxSpans {
			return fmt.Errorf("the session has more than %d scopes, which a profile cannot sum up: %w", maxSpans, store.ErrInvalid)
		}
		spans = append(spans, answer.ScopeSpan{StartNs: p.StartNs, EndNs: p.EndNs, ID: p.Span.Span, Parent: p.Parent, Name: p.Name, Operation: p.Operation})
		return nil
	})
	slices.SortFunc(spans, func(a, b answer.ScopeSpan) int {
		return cmp.Or(cmp.Compare(a.StartNs, b.StartNs), cmp.Compare(a.ID, b.ID))
	})
	return answer.NewTree(spans, nil), err
}

// kernels calls f for all kernels.
func (s *source) kernels(f func(*store.OpRow) error) error {
	return s.ops(func(o *store.OpRow) error {
		if o.ShapeRef.Operation != store.OpKernel {
			return nil
		}
		return f(o)
	})
}

// frame is a function with a source line.
type frame struct {
	name, system, file string
	line               int64
}

// stackKey distinguishes stacks of kernels.
type stackKey struct {
	stack, scope string
	shape        frame
}

type profileBuilder struct {
	p         *profile.Profile
	info      *store.SessionInfo
	tree      *answer.Tree
	locations map[frame]*profile.Location
	samples   map[stackKey]*profile.Sample
	// links has the span that launched all kernels of a sample, and no span if there are several.
	links map[*profile.Sample]otlp.Link
}

func (b *profileBuilder) location(f frame) *profile.Location {
	l := b.locations[f]
	if l == nil {
		fn := &profile.Function{ID: uint64(len(b.p.Function) + 1), Name: f.name, SystemName: cmp.Or(f.system, f.name), Filename: f.file}
		b.p.Function = append(b.p.Function, fn)
		l = &profile.Location{ID: fn.ID, Line: []profile.Line{{Function: fn, Line: f.line}}}
		b.p.Location = append(b.p.Location, l)
		b.locations[f] = l
	}
	return l
}

func (b *profileBuilder) kernel(o *store.OpRow) error {
	path := b.tree.Path(answer.Site{Parent: o.PlaceRef.Parent, ScopeName: o.PlaceRef.ScopeName, ScopePath: o.PlaceRef.ScopePath})
	k := stackKey{o.StackText, strings.Join(path, "|"), frame{name: cmp.Or(o.ShapeRef.Name, o.ShapeRef.FullName, "unnamed kernel"), system: cmp.Or(o.ShapeRef.Symbol, o.ShapeRef.FullName)}}
	var link otlp.Link
	if o.PlaceRef.Parent != 0 {
		link.Trace = o.PlaceRef.Trace
		binary.BigEndian.PutUint64(link.Span[:], uint64(o.PlaceRef.Parent))
	}
	x := b.samples[k]
	if x == nil {
		if len(b.samples) == maxStacks {
			return fmt.Errorf("the session has more than %d distinct stacks: export a shorter interval: %w", maxStacks, store.ErrInvalid)
		}
		// pprof has the innermost frame first, and so has the text of a stack.
		x = &profile.Sample{Value: make([]int64, 3), Location: []*profile.Location{b.location(k.shape)}}
		for _, name := range slices.Backward(path) {
			x.Location = append(x.Location, b.location(frame{name: name, file: "scope"}))
		}
		for f := range strings.SplitSeq(k.stack, "\n") {
			if f = strings.TrimSpace(f); f != "" {
				x.Location = append(x.Location, b.location(frame{name: f}))
			}
		}
		b.samples[k] = x
		b.p.Sample = append(b.p.Sample, x)
		b.links[x] = link
	}
	if b.links[x] != link {
		b.links[x] = otlp.Link{}
	}
	x.Value[0]++
	x.Value[1] += end(o.StartNs, o.EndNs) - o.StartNs
	return nil
}

func (b *profileBuilder) stall(s *store.SampleSum) {
	line := frame{name: cmp.Or(s.Function, s.Kernel, "unknown function"), file: s.File, line: max(s.Line.V, 0)}
	x := &profile.Sample{
		Value:    []int64{0, 0, int64(min(s.Value, 1<<62))},
		Location: []*profile.Location{b.location(line)},
		Label:    map[string][]string{"stall": {s.What}},
	}
	if s.Kernel != "" && s.Kernel != line.name {
		x.Location = append(x.Location, b.location(frame{name: s.Kernel}))
	}
	b.p.Sample = append(b.p.Sample, x)
}
