// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

const (
	defaultMinSlice = 50 * time.Millisecond
	defaultMaxSlice = time.Second
	// window is the time over which the budget must hold.
	window = 60 * time.Second
	// planned is the share of the budget that is spent by plan. The bucket holds the rest of a window's
	// budget, so that no window can have more than all of it.
	planned = 0.9
	bucket  = (1 - planned) * 60 // in budgets a second
	// settle is the time over which debts are paid back and savings spent, in seconds.
	settle = 20
	// maxSlots is the most slots of a stratum, maxStratum its greatest length.
	maxSlots   = 1000
	maxStratum = 60 * time.Second
	// maxOn is one slot in this many that is not traced where tracing seems to cost nothing: without it
	// nobody would see when it does.
	maxOn = 32
	// idle is the share of the budget below which everything is traced, without a comparison.
	idle = 0.5
	// fewLaunches in an interval say nothing about what one takes, and neither do neighbours whose rates
	// differ by more than alike: the program has changed.
	fewLaunches = 100
	alike       = 2
	// minProbes is how many comparisons there must be before CUPTI is detached for the sake of speed.
	minProbes = 16
	// switchShare is what changes of state may cost of all that is spent.
	switchShare = 0.2
)

// Controller decides when to trace. It belongs to one goroutine, and has no clock: it is told the time,
// which must not go back.
type Controller struct {
	cfg Config
	rng *rand.Rand

	plan    []Step // of the stratum; the first is the one that runs
	begun   time.Time
	last    time.Time
	stratum uint64

	trace, residual *cost
	// stale says that records were made since CUPTI was attached.
	stale bool
	// rate is launches a second, side what CUPTI and our own threads cost a second of tracing, and
	// changes the seconds that a change of state takes (finalise: one that detaches CUPTI), as lately seen.
	rate, side        float64
	changes, finalise float64
	// tokens are seconds that may be lost; below 0 is a debt.
	tokens float64
	spent  float64
	recent [60]float64 // by second
	second int64
	recall [3]interval // the last intervals, the newest last
	// dear says that counting takes so much of the budget that it is not done all the time.
	dear     bool
	probes   uint64 // of the residual cost
	nextTry  uint64 // the stratum of the next
	detached bool   // the residual cost is avoided by detaching

	status Status
}

// interval is what is remembered of one for comparisons.
type interval struct {
	state    State
	good     bool
	finalise bool
	perOne   float64 // seconds a launch
}

// NewController checks the configuration.
func NewController(cfg Config) (*Controller, error) {
	if cfg.MinSlice == 0 {
		cfg.MinSlice = defaultMinSlice
	}
	if cfg.MaxSlice == 0 {
		cfg.MaxSlice = max(defaultMaxSlice, cfg.MinSlice)
	}
	if cfg.Prior.Count == 0 {
		cfg.Prior.Count = 100e-9
	}
	if cfg.Prior.Trace == 0 {
		cfg.Prior.Trace = 600e-9
	}
	if cfg.Processors == 0 {
		cfg.Processors = 1
	}
	p := cfg.Prior
	switch {
	case !(cfg.Budget > 0 && cfg.Budget <= 1):
		return nil, fmt.Errorf("budget: %v is no share of the time above 0 and at most 1", cfg.Budget)
	case !(cfg.MinObservation >= 0 && cfg.MinObservation <= 1):
		return nil, fmt.Errorf("budget: a least observation of %v is no share of the time", cfg.MinObservation)
	case cfg.MinSlice < time.Millisecond || cfg.MaxSlice < cfg.MinSlice || cfg.MaxSlice > maxStratum:
		return nil, fmt.Errorf("budget: slices of %v to %v; 1ms to %v are possible", cfg.MinSlice, cfg.MaxSlice, maxStratum)
	case cfg.NoCount && cfg.NoBlind:
		return nil, errors.New("budget: nothing but tracing is allowed, so nothing can be saved")
	case cfg.Processors < 0 || !cheap(p.Count) || !cheap(p.Trace) || !cheap(p.Residual):
		return nil, errors.New("budget: a cost is below 0 or above a second")
	}
	seed := cfg.Seed
	if seed == 0 {
		seed = rand.Uint64() //nolint:gosec // No secret: it only must not follow the program's own rhythm.
	}
	return &Controller{
		cfg: cfg, rng: rand.New(rand.NewPCG(seed, 0)), //nolint:gosec // As above.
		trace: newCost(p.Trace, 4), residual: newCost(p.Residual, 1), nextTry: 2,
		status: Status{Budget: cfg.Budget},
	}, nil
}

func cheap(seconds float64) bool { return seconds >= 0 && seconds <= 1 }

// Begin returns the first step.
func (c *Controller) Begin(now time.Time) Step {
	c.begun, c.last = now, now
	c.next()
	return c.plan[0]
}

// Next takes what the step that ends now measured, and returns the one that follows. A step may end
// before its time.
func (c *Controller) Next(now time.Time, m Interval) Step {
	c.account(now, m)
	c.plan = c.plan[1:]
	if len(c.plan) == 0 {
		c.next()
	}
	return c.plan[0]
}

// account charges for an interval and learns from it.
func (c *Controller) account(now time.Time, m Interval) {
	step := c.plan[0]
	dt := max(0, now.Sub(c.last)).Seconds()
	c.last = c.last.Add(max(0, now.Sub(c.last)))
	state := step.State
	switch {
	case m.Failed:
		c.status.Failures++
		state = c.recall[2].state
	case step.Finalise:
		c.status.Finalised++
		c.stale = false
	}
	if state == Trace {
		c.stale = true
	}
	if state != c.recall[2].state {
		c.status.Switches++
	}
	c.status.Elapsed += time.Duration(dt * 1e9)
	c.status.In[state] += time.Duration(dt * 1e9)

	// Without a count the rate is taken to be as it was.
	change := min(max(0, m.Switch.Seconds()), dt)
	launches := c.rate * (dt - change)
	if m.Known {
		launches = float64(m.Launches)
		if seen := dt - change; seen > 0 {
			c.rate += (launches/seen - c.rate) * (1 - math.Exp(-dt/0.5)) // of the last half second or so
			if c.status.Elapsed < time.Second || launches/seen > 4*c.rate {
				c.rate = launches / seen
			}
		}
	}
	extra := max(0, m.CUPTI.Seconds()) + max(0, m.Own.Seconds())/float64(c.cfg.Processors)
	c.charge(launches*c.launch(state)+change+extra, dt)
	if state == Trace && dt > 0 {
		c.side += (extra/dt - c.side) * (1 - math.Exp(-dt/2))
	}
	if change > 0 {
		at := &c.changes
		if step.Finalise {
			at = &c.finalise
		}
		if *at == 0 {
			*at = change
		}
		*at += (change - *at) / 8
	}
	c.compare(interval{
		state: state, good: m.Known && !m.Failed && m.Launches >= fewLaunches && dt > 0,
		finalise: step.Finalise && !m.Failed, perOne: max(0, dt-change) / max(1, launches),
	})
}

// launch is what a launch costs in a state, in seconds.
func (c *Controller) launch(s State) float64 {
	var t float64
	if c.stale {
		t = c.residual.upper
	}
	switch s {
	case Trace:
		return t + c.trace.upper + c.cfg.Prior.Count
	case Count:
		return t + c.cfg.Prior.Count
	default:
		return t
	}
}

// charge takes seconds lost from the bucket, into which dt seconds flowed.
func (c *Controller) charge(lost, dt float64) {
	b := c.cfg.Budget
	c.tokens = min(c.tokens+planned*b*dt, bucket*b) - lost
	c.spent += lost
	if now := int64(c.status.Elapsed / time.Second); now != c.second {
		for s := max(c.second+1, now-int64(len(c.recent))+1); s <= now; s++ {
			c.recent[s%int64(len(c.recent))] = 0
		}
		c.second = now
	}
	c.recent[c.second%int64(len(c.recent))] += lost
}

// compare looks whether the last intervals say what something costs.
func (c *Controller) compare(last interval) {
	c.recall[0], c.recall[1], c.recall[2] = c.recall[1], c.recall[2], last
	before, middle, after := c.recall[0], c.recall[1], c.recall[2]
	if middle.good && after.good && after.finalise && middle.state == Count && after.state == Count {
		if like(middle.perOne, after.perOne) {
			c.residual.add(middle.perOne - after.perOne)
		}
		return
	}
	if middle.good && after.good && after.state == Trace && middle.state == Count && c.plan[0].CountShare < 1 {
		// Nothing will be counted behind it: one neighbour has to do.
		if like(middle.perOne, after.perOne) {
			c.trace.add(after.perOne - middle.perOne)
		}
		return
	}
	if !before.good || !middle.good || !after.good || before.state != after.state || middle.finalise || after.finalise {
		return
	}
	around := (before.perOne + after.perOne) / 2
	if !like(before.perOne, after.perOne) || !like(around, middle.perOne) {
		return
	}
	switch {
	case middle.state == Trace && before.state == Count:
		c.trace.add(middle.perOne - around)
	case middle.state == Count && before.state == Trace:
		c.trace.add(around - middle.perOne)
	}
}

func like(a, b float64) bool { return a <= alike*b && b <= alike*a }

// shape is how the next stratum is divided.
type shape struct {
	off   State
	on    float64 // share of the time to trace
	extra float64 // seconds that the changes of state in it take
	probe bool
	free  bool // tracing costs next to nothing
}

// next plans a stratum.
func (c *Controller) next() {
	c.stratum++
	c.status.Strata++
	s := c.shape()
	if s.free {
		c.plan = append(c.plan[:0], Step{State: Trace, For: c.cfg.MaxSlice, Stratum: c.stratum, TraceShare: 1, CountShare: 1})
		return
	}
	if s.on > 0.5 {
		c.mostly(s)
	} else {
		c.seldom(s)
	}
}

// shape decides what may be spent on tracing.
func (c *Controller) shape() shape {
	b := c.cfg.Budget
	// What a second of tracing costs, by the measured cost and by that assumed at first.
	stale := c.rate * c.residual.upper
	count := c.rate * c.cfg.Prior.Count
	trace := c.rate*c.trace.upper + c.side
	if count+c.rate*max(c.trace.upper, c.cfg.Prior.Trace)+stale+c.side <= idle*b {
		c.status.Floor = 0
		return shape{free: true}
	}
	// Once decided, it takes a clear change to decide otherwise.
	switch {
	case count > 0.6*b:
		c.dear = true
	case count < 0.4*b:
		c.dear = false
	}
	switch {
	case stale > 0.25*b:
		c.detached = true
	case stale < 0.15*b:
		c.detached = false
	}
	s := shape{off: Count, extra: 2 * c.changes}
	floor := count + stale
	switch detach := c.detached && c.cfg.CanFinalise && c.residual.measured >= minProbes; {
	case c.cfg.NoBlind:
	case detach:
		s.off, s.extra, floor = Blind, 2*c.changes+c.finalise, 0
	case c.dear || c.cfg.NoCount:
		s.off, floor = Blind, stale
	}
	c.status.Floor = floor
	// What stays may be what leaves nothing to spend, so that is found out at first, at a debt if need be.
	// Later probes become rarer, so that what they cost goes to nothing.
	learning := c.residual.measured < minProbes && c.probes < 4*minProbes
	if c.cfg.CanFinalise && !c.cfg.NoCount && s.off == Count && (learning || c.stratum >= c.nextTry) {
		s.probe = true
		c.probes++
		c.nextTry = c.stratum + uint64(1)<<min(c.probes/minProbes, 10)
	}
	if c.dear && !c.cfg.NoCount {
		trace += count // what is traced is counted as well
	}
	may := min(planned*b+c.tokens/settle, b) - floor
	s.on = 1
	if trace > may {
		s.on = may / trace
	}
	if s.probe && learning {
		s.on = max(s.on, 1.0/16)
	}
	s.on = min(max(s.on, c.cfg.MinObservation, 1.0/maxSlots), 1-1.0/maxOn)
	return s
}

// length is that of a stratum in which a share is traced, so long that changes of state do not take
// more than their share.
func (c *Controller) length(s shape) time.Duration {
	slice := c.cfg.MinSlice.Seconds()
	l := slice / min(s.on, 1-s.on)
	l = max(l, s.extra/(switchShare*c.cfg.Budget))
	l = min(l, c.cfg.MaxSlice.Seconds()/min(s.on, 1-s.on), maxStratum.Seconds())
	return time.Duration(l * 1e9)
}

// slots is how many slots a stratum has of which one is different, on average 1/share.
func (c *Controller) slots(share float64) int {
	n := 1 / share
	k := int(n)
	if c.rng.Float64() < n-float64(k) {
		k++
	}
	return min(max(k, 2), maxSlots)
}

// seldom plans a stratum of which one slot is traced, any with the same chance. Neighbours of its own
// length are for comparison; where nothing is seen otherwise the slot before it is counted.
func (c *Controller) seldom(s shape) {
	k := c.slots(s.on)
	slot := max(c.length(s)/time.Duration(k), c.cfg.MinSlice)
	at := c.rng.IntN(k)
	c.plan = c.plan[:0]
	traceShare, countShare := 1/float64(k), 1.0
	if s.off == Blind {
		countShare = traceShare
	}
	add := func(state State, slots int, finalise bool) {
		if slots > 0 {
			c.plan = append(c.plan, Step{
				State: state, For: time.Duration(slots) * slot, Finalise: finalise,
				Stratum: c.stratum, TraceShare: traceShare, CountShare: countShare,
			})
		}
	}
	detach := s.off == Blind && c.detached && c.cfg.CanFinalise && c.residual.measured >= minProbes
	if s.off == Blind {
		// The slot that is counted is the one before the traced one, round the stratum's end.
		counted := -1
		if !c.cfg.NoCount && k >= 3 {
			counted = (at + k - 1) % k
			countShare = 2 / float64(k)
		}
		for i := 0; i < k; {
			switch i {
			case at:
				add(Trace, 1, false)
				i++
			case counted:
				add(Count, 1, detach && c.behindTrace())
				i++
			default:
				n := 1
				for i+n < k && i+n != at && i+n != counted {
					n++
				}
				add(Blind, n, detach && c.behindTrace())
				i += n
			}
		}
		return
	}
	before, after := at, k-1-at
	add(Count, before-1, false)
	add(Count, min(before, 1), false)
	add(Trace, 1, false)
	add(Count, min(after, 1), false)
	if s.probe && after > 1 {
		add(Count, 1, true)
		after--
	}
	add(Count, after-1, false)
}

// behindTrace says that the step that is added to the plan follows one that left CUPTI stale.
func (c *Controller) behindTrace() bool {
	if n := len(c.plan); n > 0 {
		return c.plan[n-1].State == Trace
	}
	return c.stale
}

// mostly plans a stratum of which one slot is not traced.
func (c *Controller) mostly(s shape) {
	k := c.slots(1 - s.on)
	slot := max(c.length(s)/time.Duration(k), c.cfg.MinSlice)
	at := c.rng.IntN(k)
	share := 1 - 1/float64(k)
	countShare := 1.0
	if s.off == Blind {
		countShare = share
	}
	c.plan = c.plan[:0]
	add := func(state State, slots int) {
		if slots > 0 {
			c.plan = append(c.plan, Step{
				State: state, For: time.Duration(slots) * slot,
				Stratum: c.stratum, TraceShare: share, CountShare: countShare,
			})
		}
	}
	add(Trace, at-1)
	add(Trace, min(at, 1))
	add(s.off, 1)
	add(Trace, min(k-1-at, 1))
	add(Trace, k-2-at)
}

// Status is what was done until the last Next.
func (c *Controller) Status() Status {
	s := c.status
	s.Costs = Costs{Count: c.cfg.Prior.Count, Trace: c.trace.upper, Residual: c.residual.upper}
	s.Comparisons = c.trace.measured
	if e := s.Elapsed.Seconds(); e > 0 {
		s.Overhead = c.spent / e
		var lately float64
		for _, v := range c.recent {
			lately += v
		}
		s.Window = lately / min(max(e, 1), window.Seconds())
	}
	s.Excess = max(0, s.Overhead-s.Budget)
	if s.Elapsed >= window {
		s.Excess = max(s.Excess, s.Window-s.Budget)
	}
	s.Met = s.Excess == 0
	return s
}
