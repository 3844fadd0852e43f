// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"math/rand/v2"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// Training generates a training run for benchmarks: steps of 1,000 kernels in 40 scopes, on 4 lanes, of 600 shapes
// with 200 names, 26,000 kernels each second. Each scope has shapes of its own, and 9 of 10 kernels of
// a shape run on the same lane.
type Training struct {
	*rand.Rand
	now  int64
	step uint64
	ends [4]int64
}

// NewTraining returns a generator of a run, which is always the same, or, if end is not 0, of another
// part of it after this time.
func NewTraining(end int64) *Training {
	return &Training{Rand: rand.New(rand.NewPCG(1, 2+uint64(end))), now: max(end, 1_710_000_000e9)}
}

// TrainingStep is the number of kernels of a step.
const TrainingStep = 1000

// Batch returns the rows of the next steps, in the session "training".
func (g *Training) Batch(steps int) *store.Batch {
	b := &store.Batch{
		Session: "training", Origins: []store.Origin{{}, {Key: 1, ScopeName: "gpuflight"}}, Extras: []store.Extra{{}},
		Lanes: []store.Lane{{}}, Shapes: []store.Shape{{}}, Places: []store.Place{{}}, Stacks: []store.Stack{{}},
		Series: []store.Series{{}},
	}
	for i := range uint64(4) {
		b.Lanes = append(b.Lanes, store.Lane{Key: i + 1, Device: "GPU-0", DeviceIndex: store.Some(0), Stream: store.Some(int64(i))})
	}
	for i := range uint64(600) {
		b.Shapes = append(b.Shapes, store.Shape{
			Key: i + 1, Operation: store.OpKernel, Name: fmt.Sprintf("kernel_%d", i%200), FullName: fmt.Sprintf("void kernel_%d<float>(float*)", i%200),
			Grid: []int64{int64(i), 1, 1}, Block: []int64{256, 1, 1}, Registers: store.Some(64),
		})
	}
	for range steps {
		begin := g.now
		g.step++
		parent := store.SpanID(g.Uint64())
		for scope := range 40 {
			id, start := store.SpanID(g.Uint64()), g.now
			name := fmt.Sprintf("layer%d", scope)
			b.Places = append(b.Places, store.Place{
				Key: g.Uint64() | 1, Trace: store.TraceID{1, byte(g.step)}, Parent: id, ScopeName: name, ScopePath: "train|step|" + name,
			})
			for range TrainingStep / 40 {
				g.kernel(b, scope)
			}
			b.Spans = append(b.Spans, g.scope(name, id, parent, start))
		}
		b.Spans = append(b.Spans, g.scope("step", parent, 1, begin))
	}
	return b
}

// Rows returns a batch with n operations of the next steps, and all scopes of these.
func (g *Training) Rows(n int) *store.Batch {
	b := g.Batch((n + TrainingStep - 1) / TrainingStep)
	b.Ops = b.Ops[:n]
	return b
}

func (g *Training) scope(name string, id, parent store.SpanID, start int64) store.Span {
	return store.Span{
		StartNs: start, EndNs: g.now, Trace: store.TraceID{1, byte(g.step)}, Span: id, Parent: parent, Kind: 1, Name: name,
		Operation: semconv.CUDAOperationScope, Origin: 1,
	}
}

func (g *Training) kernel(b *store.Batch, scope int) {
	g.now += 20_000 + g.Int64N(36_900)
	shape := scope*15 + g.IntN(15)
	lane := shape % 4
	if g.IntN(10) == 0 {
		lane = g.IntN(4)
	}
	start := max(g.now+g.Int64N(20_000), g.ends[lane])
	end := start + 2000 + int64(shape)*100 + g.Int64N(2000)
	g.ends[lane] = end
	launched := g.now - 1000 - g.Int64N(500)
	b.Ops = append(b.Ops, store.Op{
		StartNs: start, EndNs: end, Span: store.SpanID(g.Uint64()), Lane: uint32(lane + 1), Shape: uint32(shape + 1),
		Place: uint32(len(b.Places) - 1), Origin: 1, LaunchStartNs: store.Some(g.now - 5000), LaunchEndNs: store.Some(launched),
		QueueNs: store.Some(start - launched), Correlation: store.Some(int64(len(b.Ops))),
	})
}
