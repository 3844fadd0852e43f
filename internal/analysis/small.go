// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// SmallKernel is the kernels of a shape whose grid does not fill the device.
type SmallKernel struct {
	// Shape is the id of the shape in the store that was read.
	Shape       uint32
	Name        string
	Grid, Block []int64
	// Fill is the grid fill, from 0 to 0.5: see gridFill.
	Fill float64
	// Waves and Occupancy are cuda.occupancy.waves and cuda.occupancy.theoretical, -1 if they are unknown. Limiter is
	// what limits the occupancy, "" if it is unknown.
	Waves, Occupancy float64
	Limiter          string
	// Count and Ns are the number and the sum of the durations. LostNs is Ns × (1 − Fill).
	Count, Ns, LostNs int64
	// Longest is the longest launch.
	Longest Ref

	longestNs int64
}

// maxSmall bounds the small kernels of a result.
const maxSmall = 20

// gridFill returns the share of the resident blocks of a device that the grid can fill, the last wave
// included: cuda.occupancy.grid_fill. Without this attribute it is the share of the multiprocessors
// that have a block, if there are fewer blocks than multiprocessors. Ok is false if neither is known.
func gridFill(s *store.Shape, resource store.Attrs) (fill float64, ok bool) {
	if v := attr(s.Attrs, semconv.CUDAOccupancyGridFill); v.Kind == store.KindDouble {
		return v.Double, v.Double >= 0 && v.Double <= 1
	}
	sms := attr(s.Attrs, semconv.CUDADeviceSMCount)
	if sms.Kind != store.KindInt {
		sms = attr(resource, semconv.CUDADeviceSMCount)
	}
	if sms.Kind != store.KindInt || sms.Int <= 0 || len(s.Grid) == 0 {
		return 0, false
	}
	blocks := int64(1)
	for _, n := range s.Grid {
		if n <= 0 || n > 1<<31 || blocks > 1<<31 {
			return 0, false
		}
		blocks *= n
	}
	return min(float64(blocks)/float64(sms.Int), 1), true
}

// newSmall returns a kernel whose grid does not fill the device, nil for one that does, or of which that is
// unknown.
func newSmall(s *store.Shape, resource store.Attrs) *SmallKernel {
	fill, known := gridFill(s, resource)
	if !known || fill >= smallFill {
		return nil
	}
	share := func(key string) float64 {
		if v := attr(s.Attrs, key); v.Kind == store.KindDouble && v.Double >= 0 {
			return v.Double
		}
		return -1
	}
	x := &SmallKernel{Name: s.Name, Grid: slices.Clone(s.Grid), Block: slices.Clone(s.Block), Fill: fill, Waves: share(semconv.CUDAOccupancyWaves), Occupancy: share(semconv.CUDAOccupancyTheoretical)}
	var limits []string
	for _, v := range attr(s.Attrs, semconv.CUDAOccupancyLimiter).Slice {
		limits = append(limits, v.Str)
	}
	x.Limiter = strings.Join(limits, ", ")
	return x
}

// addSmall adds a kernel if its grid does not fill the device.
func (t *tally) addSmall(row *store.OpRow, w *work) {
	x, ok := t.small[row.Shape]
	if !ok {
		if t.small == nil {
			t.small = map[uint32]*SmallKernel{}
		}
		if len(t.small) >= maxShapes {
			return
		}
		x = newSmall(row.ShapeRef, row.OriginRef.Resource)
		t.small[row.Shape] = x // nil for those that are large enough
	}
	if x == nil {
		return
	}
	ns := w.end - w.start
	x.Count++
	x.Ns += ns
	if ns > x.longestNs {
		x.Longest, x.longestNs = w.ref, ns
	}
}

func (x *SmallKernel) add(o *SmallKernel) {
	x.Count += o.Count
	x.Ns += o.Ns
	if o.longestNs > x.longestNs {
		x.Longest, x.longestNs = o.Longest, o.longestNs
	}
}

// smallSums are the sums of all small kernels.
type smallSums struct{ shapes, count, ns, lostNs int64 }

// smallKernels returns the small kernels with the most lost time, and the sums of all.
func (t *tally) smallKernels() (list []SmallKernel, all smallSums) {
	list = []SmallKernel{}
	for shape, x := range t.small {
		if x == nil {
			continue
		}
		x.Shape = shape
		x.LostNs = int64(float64(x.Ns) * (1 - x.Fill))
		all.shapes++
		all.count += x.Count
		all.ns += x.Ns
		all.lostNs += x.LostNs
		list = append(list, *x)
	}
	slices.SortFunc(list, func(a, b SmallKernel) int {
		return cmp.Or(cmp.Compare(b.LostNs, a.LostNs), cmp.Compare(a.Longest.StartNs, b.Longest.StartNs), cmp.Compare(a.Longest.Span, b.Longest.Span))
	})
	return list[:min(len(list), maxSmall)], all
}
