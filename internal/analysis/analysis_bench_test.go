// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

// endless is a training without end: steps of 50 kernels, with a wait after each.
type endless struct {
	n      int
	scopes bool
	every  int
	at     func(i int)
}

func (e *endless) Extent(context.Context) (first, last int64, err error) {
	return 0, int64(e.n)*10*µs + 1, nil
}

func (e *endless) Ops(_ context.Context, _, _ int64, visit func(*store.OpRow) error) error {
	shapes := make([]store.Shape, 51)
	for i := range shapes {
		shapes[i] = store.Shape{Operation: store.OpKernel, Name: fmt.Sprint("kernel", i), Grid: []int64{100}}
	}
	shapes[50] = store.Shape{Operation: store.OpSync, Name: "cudaStreamSynchronize"}
	row := store.OpRow{LaneRef: lane, OriginRef: &store.Origin{}}
	for i := range e.n {
		start := int64(i) * 10 * µs
		k := i % 51
		row.Op = store.Op{StartNs: start, EndNs: start + 5*µs + int64(i*7919%3000), Span: store.SpanID(i + 1), Shape: uint32(k)}
		row.ShapeRef = &shapes[row.Shape]
		row.LaunchStartNs, row.LaunchEndNs, row.QueueNs = store.Some(start-7*µs), store.Some(start-3*µs), store.Some(3*µs)
		if e.every > 0 && i%e.every == 0 {
			e.at(i)
		}
		if err := visit(&row); err != nil {
			return err
		}
	}
	return nil
}

func (e *endless) Scopes(context.Context, int64, int64, int) (list []Scope, more bool, err error) {
	for i := 0; e.scopes && i < min(e.n/51, 1000); i++ {
		list = append(list, Scope{StartNs: int64(i) * 510 * µs, EndNs: int64(i+1) * 510 * µs, Name: "step", Span: store.SpanID(i + 1)})
	}
	return list, false, nil
}

func BenchmarkRun(b *testing.B) {
	const n = 1_000_000
	for _, name := range []string{"scopes", "kernels"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r, err := Run(b.Context(), &endless{n: n, scopes: name == "scopes"}, Options{})
				if err != nil || r.Steps.Rule != name {
					b.Fatal(r.Steps.Rule, err)
				}
			}
			b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "ops/s")
		})
	}
}

// TestRun_Memory compares the heap after a million operations with the heap later.
func TestRun_Memory(t *testing.T) {
	n := 3_000_000
	if os.Getenv("GPUFLIGHT_SOAK") != "" {
		n = 30_000_000
	}
	var heaps []uint64
	e := &endless{n: n, scopes: true, every: 1_000_000, at: func(int) {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		heaps = append(heaps, m.HeapAlloc)
	}}
	r, err := Run(t.Context(), e, Options{})
	require.NoError(t, err)
	assert.Equal(t, int64(n), r.Operations)
	assert.Less(t, heaps[len(heaps)-1], heaps[1]+1<<20, "%v", heaps)
}
