// SPDX-License-Identifier: Apache-2.0

// Package budget decides when a program is recorded, so that recording costs it no more than a share of
// its time. It depends neither on CUPTI nor on OpenTelemetry, and has no clock.
//
// The recorder is either attached, and records everything, or detached, and costs nothing. A
// [Controller] keeps an account. The budget flows in with the time; recording, attaching and detaching are
// paid from it. All costs are upper bounds, see the constants. A program whose recording costs less than the budget
// is recorded all the time.
//
// Otherwise it is recorded in slices. A slice begins when the account holds what it will cost, and a
// random time later, so that slices do not fall in step with a period of the program.
package budget

import (
	"errors"
	"math"
	"math/rand/v2"
	"time"
)

const (
	// RecordCost is the assumed cost of one record. A recorded launch of an empty kernel takes 0.85
	// µs longer (H200, CUDA 13.0). A launch of a PyTorch training takes up to 3 µs longer, because
	// it uses the caches differently (docs/internals/decisions.md).
	RecordCost = 3 * time.Microsecond
	// SwitchCost is the assumed minimum cost of an attach or a detach. Each takes about 12 ms on an
	// H200. The program is assumed to be blocked meanwhile.
	SwitchCost = 12 * time.Millisecond
	// FirstLaunches is the assumed extra cost of the first launches after an attach, in total. Up
	// to 9 ms were measured in a PyTorch training on an H200.
	FirstLaunches = 9 * time.Millisecond

	// A slice is shorter only if the session ends. Below minSlice, most launches are first
	// launches. maxSlice bounds the cost to a program that starts to launch during a slice.
	minSlice, maxSlice = 100 * time.Millisecond, time.Second
	// jitter is the longest random delay of a slice, as a share of the pause before it.
	jitter = 0.5
)

// Usage is what happened since the last call of [Controller.Spend]. Negative values count as 0.
type Usage struct {
	Elapsed time.Duration
	// Recording says that records were made in this time.
	Recording bool
	// Records is the number of records that were read. CUPTI is the sum of its overhead records, Own the processor time of
	// the recorder's threads.
	Records    uint64
	CUPTI, Own time.Duration
}

// Controller decides when to record. It belongs to one goroutine.
type Controller struct {
	budget float64
	rng    *rand.Rand
	// account is what may be spent, in seconds; below 0 is a debt.
	account float64
	spent   float64
	// rate is what recording lately cost, in seconds a second, without attaching and detaching. sliceCost and sliceTime are
	// sums since the last attach, in seconds.
	rate                 float64
	sliceCost, sliceTime float64
	status               Status
}

// Status is what a Controller has found.
type Status struct {
	// Elapsed is the time since the beginning, Recorded that in which records were made.
	Elapsed, Recorded time.Duration
	// Overhead is the share of Elapsed that recording cost at most, Met whether that is within the budget.
	Overhead float64
	Met      bool
	// Slices is how often recording began.
	Slices uint64
}

// RecordedRatio is the share of the time in which records were made, 1 before any time passed.
func (s *Status) RecordedRatio() float64 {
	if s.Elapsed <= 0 {
		return 1
	}
	return float64(s.Recorded) / float64(s.Elapsed)
}

// NewController returns the controller of a program that is being recorded. budget is above 0 and at most 1. A
// seed other than 0 makes its choices repeatable.
func NewController(budget float64, seed uint64) (*Controller, error) {
	if math.IsNaN(budget) || budget <= 0 || budget > 1 {
		return nil, errors.New("budget: the share is not above 0 and at most 1")
	}
	if seed == 0 {
		seed = rand.Uint64()
	}
	return &Controller{budget: budget, rng: rand.New(rand.NewPCG(seed, 0)), status: Status{Slices: 1}}, nil
}

// Spend accounts for some time.
func (c *Controller) Spend(u Usage) {
	dt := max(0, u.Elapsed.Seconds())
	c.status.Elapsed += max(0, u.Elapsed)
	cost := float64(u.Records)*RecordCost.Seconds() + max(0, u.CUPTI.Seconds()) + max(0, u.Own.Seconds())
	if u.Recording && dt > 0 {
		c.status.Recorded += u.Elapsed
		c.sliceTime += dt
		// Half of it is of the last slice of minSlice, and more of a longer one.
		c.rate += (cost/dt - c.rate) * (1 - math.Exp2(-dt/minSlice.Seconds()))
	}
	c.sliceCost += cost
	c.account += c.budget * dt
	c.charge(cost)
	c.account = min(c.account, c.cycle()) // an idle program may not save for an expensive minute
}

func (c *Controller) charge(cost float64) {
	c.account -= cost
	c.spent += cost
}

// Attached accounts for an attach that took so long.
func (c *Controller) Attached(took time.Duration) {
	c.charge((max(took, SwitchCost) + FirstLaunches).Seconds())
	c.status.Slices++
	c.sliceCost, c.sliceTime = 0, 0
}

// Detached accounts for a detach. drain is the wait for work in flight; its launches cost at most
// as much as in the slice before. held is the time in which CUPTI was finalized. All records of the
// slice have been spent.
func (c *Controller) Detached(drain, held time.Duration) {
	if c.sliceTime > 0 {
		// Many records of a short slice are read after its end.
		c.rate = max(c.rate, c.sliceCost/c.sliceTime)
	}
	c.charge(c.rate*drain.Seconds() + max(held, SwitchCost).Seconds())
}

// fixed is what a slice costs whatever its length, in seconds.
const fixed = float64(2*SwitchCost+FirstLaunches) / float64(time.Second)

// Slice is how long a slice is to be: so long that switching is half of what it costs, within bounds. It changes
// with what is spent.
func (c *Controller) Slice() time.Duration {
	if c.rate <= fixed/maxSlice.Seconds() {
		return maxSlice
	}
	return max(minSlice, time.Duration(fixed/c.rate*float64(time.Second)))
}

// cycle is what the next slice will cost, in seconds.
func (c *Controller) cycle() float64 { return fixed + c.rate*c.Slice().Seconds() }

// Pause is called after a slice. It returns for how long to detach, 0 to go on recording.
func (c *Controller) Pause() time.Duration {
	if c.rate <= c.budget || c.account >= c.cycle() {
		return 0
	}
	// Detaching is a part of the next cycle's cost, but is due now; attaching is due then.
	wait := max(minSlice.Seconds(), (c.cycle()-c.account)/c.budget)
	wait += c.rng.Float64() * jitter * wait
	return time.Duration(min(wait, math.MaxInt32) * float64(time.Second))
}

// Status is what was found until the last call of another method.
func (c *Controller) Status() Status {
	s := c.status
	if e := s.Elapsed.Seconds(); e > 0 {
		s.Overhead = c.spent / e
	}
	s.Met = s.Overhead <= c.budget
	return s
}
