// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"math"
	"slices"
)

// maxDifferences is how many comparisons are remembered: enough that the median of differences that are
// off by a fifth is good to a few hundredths.
const maxDifferences = 128

// cost is what one thing costs a launch, from comparisons of neighbouring intervals with and without
// it. A median is not moved by the few pairs between which the program changed.
type cost struct {
	differences []float64 // seconds a launch, a ring
	next        int
	measured    int
	// middle is the median, upper the median and its standard error.
	middle, upper float64
	sorted        []float64
}

// newCost returns a cost that is assumed at first to be what so many comparisons would say.
func newCost(priors ...float64) *cost {
	c := &cost{}
	for _, p := range priors {
		c.put(p)
	}
	c.update()
	return c
}

func (c *cost) put(d float64) {
	if len(c.differences) < maxDifferences {
		c.differences = append(c.differences, d)
		return
	}
	c.differences[c.next] = d
	c.next = (c.next + 1) % maxDifferences
}

// add takes a comparison.
func (c *cost) add(d float64) {
	if math.IsNaN(d) || math.IsInf(d, 0) {
		return
	}
	c.put(d)
	c.measured++
	c.update()
}

// update makes middle, and upper from the median of deviations. The latter is what is
// charged, so that a cost that is not well known is not taken to be less than it is.
func (c *cost) update() {
	c.sorted = append(c.sorted[:0], c.differences...)
	middle := median(c.sorted)
	for i, d := range c.sorted {
		c.sorted[i] = math.Abs(d - middle)
	}
	c.middle = max(0, middle)
	// 1.4826 makes a standard deviation of it, 1.2533 that of a median.
	c.upper = max(0, middle+1.4826*1.2533*median(c.sorted)/math.Sqrt(float64(len(c.sorted))))
}

// median sorts values, of which there is at least one.
func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}
