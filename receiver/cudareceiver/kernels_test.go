// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"
)

// values is a histogram of n values in one bucket, that of 2 to the power of bucket.
func values(bucket int, n uint64) probe.Histogram {
	h := probe.Histogram{Count: n, Sum: n << bucket, Max: 1 << bucket}
	h.Buckets[bucket] = n
	return h
}

func launch(name string, calls uint64) probe.Launch {
	return probe.Launch{Name: name, Calls: calls, Grid: values(4, calls), Block: values(8, calls)}
}

// shown returns calls and start of each series.
func shown(k *kernels) map[string][2]uint64 {
	out := map[string][2]uint64{}
	k.each(func(name string, created pcommon.Timestamp, w *work) {
		out[name] = [2]uint64{w.calls(), uint64(created)}
	})
	return out
}

func TestTheTopKernelsHaveSeriesOfTheirOwn(t *testing.T) {
	k := newKernels(2, false, 1)
	k.update([]probe.Launch{launch("a", 10), launch("b", 30), launch("c", 20)}, 2)
	assert.Equal(t, map[string][2]uint64{"b": {30, 1}, "c": {20, 1}, otherName: {10, 1}}, shown(k))

	k.update([]probe.Launch{launch("a", 40), launch("b", 30), launch("c", 21)}, 3)
	assert.Equal(t, map[string][2]uint64{"b": {30, 1}, "c": {21, 1}, otherName: {40, 1}}, shown(k), "not twice as many")

	k.update([]probe.Launch{launch("a", 50), launch("b", 30), launch("c", 24)}, 4)
	assert.Equal(t, map[string][2]uint64{"a": {10, 3}, "b": {30, 1}, otherName: {64, 1}}, shown(k),
		"a begins with what it did since it was last in _other, c is in it now")
}

func TestNamesOfSeries(t *testing.T) {
	k := newKernels(10, true, 1)
	k.update([]probe.Launch{
		launch("_Z3addIfEvPT_", 1), launch("_Z3addIdEvPT_", 2),
		{Handle: 0xbeef, Calls: 3}, {Other: true, Calls: 4}, {Name: otherName, Calls: 5},
	}, 2)
	assert.Equal(t, map[string][2]uint64{
		"add": {3, 1}, "unknown@0xbeef": {3, 1}, otherName: {4, 1}, "_other()": {5, 1},
	}, shown(k))

	k = newKernels(10, false, 1)
	k.update([]probe.Launch{{Name: "_Z3addIfEvPT_", Handle: 1, Calls: 1}, {Name: "_Z3addIfEvPT_", Handle: 2, Calls: 2}}, 2)
	assert.Equal(t, map[string][2]uint64{"void add<float>(float*)": {3, 1}}, shown(k), "one kernel in two modules")

	k = newKernels(0, false, 1)
	k.update([]probe.Launch{launch("a", 1), launch("b", 2)}, 2)
	assert.Equal(t, map[string][2]uint64{otherName: {3, 1}}, shown(k))
}

func TestCapturedLaunchesAreKeptApart(t *testing.T) {
	k := newKernels(1, false, 1)
	captured := launch("a", 7)
	captured.Captured = true
	k.update([]probe.Launch{launch("a", 3), captured}, 2)
	k.each(func(name string, _ pcommon.Timestamp, w *work) {
		assert.Equal(t, "a", name)
		assert.Equal(t, uint64(3), w.executed)
		assert.Equal(t, uint64(7), w.captured)
		assert.Equal(t, uint64(3), w.grid.Count, "sizes are those of launches that ran")
	})
	assert.Len(t, shown(k), 1)
}

func TestAKernelWhoseNameIsLearnedOrForgottenIsCountedOnce(t *testing.T) {
	k := newKernels(10, false, 1)
	k.update([]probe.Launch{{Handle: 1, Calls: 5}, launch("a", 2)}, 2)
	require.Equal(t, map[string][2]uint64{"unknown@0x1": {5, 1}, "a": {2, 1}}, shown(k))
	k.update([]probe.Launch{launch("b", 6), launch("a", 2)}, 3)
	assert.Equal(t, map[string][2]uint64{"a": {2, 1}, otherName: {6, 1}}, shown(k))
	k.update([]probe.Launch{launch("b", 8), launch("a", 3)}, 4)
	assert.Equal(t, map[string][2]uint64{"a": {3, 1}, "b": {2, 3}, otherName: {6, 1}}, shown(k))
	// In the same time as a name is learned, nobody knows who did how much.
	k.update([]probe.Launch{launch("b", 9), launch("a", 3), {Handle: 7, Calls: 1}}, 5)
	k.update([]probe.Launch{launch("b", 11), launch("a", 3), launch("c", 1)}, 6)
	assert.Equal(t, map[string][2]uint64{"a": {3, 1}, "b": {3, 3}, otherName: {9, 1}}, shown(k))
	// Two modules had an a; one of the names is forgotten.
	k.update([]probe.Launch{launch("b", 11), launch("a", 1), launch("c", 1), {Handle: 2, Calls: 2}}, 7)
	assert.Equal(t, map[string][2]uint64{"b": {3, 3}, otherName: {12, 1}}, shown(k))
}

func TestASumThatFallsIsNotTaken(t *testing.T) {
	k := newKernels(10, false, 1)
	k.update([]probe.Launch{launch("a", 5)}, 2)
	k.update([]probe.Launch{launch("a", 4)}, 3)
	assert.Equal(t, map[string][2]uint64{"a": {5, 1}}, shown(k))
}

// TestSumsAreExactAndNeverFall runs a process with many kernels, whose names come and go, and holds
// what a store would make of the series beside what was done.
func TestSumsAreExactAndNeverFall(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		k := newKernels(5, false, 1)
		done := make([]uint64, 40) // by handle
		named := make([]bool, len(done))
		var past uint64
		type point struct{ calls, created uint64 }
		before := map[string]point{}
		for step := range 300 {
			var launches []probe.Launch
			total := uint64(0)
			for i := range done {
				done[i] += uint64(rnd.IntN(1 + 200/(1+(i+step/20)%len(done))))
				if rnd.IntN(50) == 0 {
					named[i] = !named[i]
				}
				l := probe.Launch{Handle: uint64(i + 1), Calls: done[i], Grid: values(i%20, done[i]), Block: values(5, done[i])}
				if named[i] {
					l.Name = fmt.Sprintf("k%d", i/2) // each name twice
				}
				launches = append(launches, l)
				total += done[i]
			}
			past += uint64(rnd.IntN(3))
			launches = append(launches, probe.Launch{Other: true, Calls: past, Grid: values(3, past), Block: values(3, past)})
			total += past

			k.update(launches, pcommon.Timestamp(step+2))
			sum, grid, series := uint64(0), uint64(0), 0
			now := map[string]point{}
			k.each(func(name string, created pcommon.Timestamp, w *work) {
				sum += w.calls()
				grid += w.grid.Count
				series++
				was, ok := before[name]
				if ok && was.created == uint64(created) {
					require.GreaterOrEqual(t, w.calls(), was.calls, "%s fell in step %d", name, step)
				}
				now[name] = point{w.calls(), uint64(created)}
			})
			require.Equal(t, total, sum, "step %d", step)
			require.Equal(t, total, grid, "step %d", step)
			require.LessOrEqual(t, series, 6)
			for name, was := range before {
				if p, ok := now[name]; ok && p.created != was.created {
					require.Greater(t, p.created, was.created, "%s begins anew later", name)
				}
			}
			// _other may not fall, whatever came and went.
			require.GreaterOrEqual(t, now[otherName].calls, before[otherName].calls, "step %d", step)
			before = now
			require.LessOrEqual(t, len(k.named)+len(k.shown), 2*len(launches), "nothing is kept of names that are gone")
		}
	}
}
