// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	defaultMinSlice = 50 * time.Millisecond
	defaultMaxSlice = time.Second
	// What a launch of an empty kernel took longer on an H200 (CUDA 13.0, driver 580), in seconds: counted by a
	// CUPTI that had made no records, with a record on top of what stays behind records, and with what stays. Those launches came
	// one after the other. In a training of PyTorch with 16 µs from launch to launch each cost 3.3 times as much, most likely since CUPTI's
	// code and data had left the caches. In between, and until it was measured, a cost is
	// taken to grow as that time does.
	defaultCount, defaultTrace, defaultResidual = 220e-9, 400e-9, 270e-9
	dense, coldest                              = 5e-6, 3.3 // seconds from launch to launch up to which it does not; times
	// window is the time over which the budget must hold.
	window = 60 * time.Second
	// planned is the share of the budget that is spent by plan. The bucket holds the rest of a window's
	// budget, so that no window can have more than all of it.
	planned = 0.9
	bucket  = (1 - planned) * 60 // in budgets a second
	// settle is the time over which debts are paid back and savings spent, in seconds.
	settle = 20
	// maxSlots is the most slots of a plan, maxPlan its greatest length.
	maxSlots = 400
	maxPlan  = 20 * time.Second
	// maxOn is one slot in this many that is not traced where tracing seems to cost nothing: without it
	// nobody would see when it does.
	maxOn = 32
	// idle is the share of the budget below which everything is traced, without a comparison.
	idle = 0.5
	// look is how long a step lasts at most, and free one in which all is traced since it costs so little: a program that
	// begins to launch is noticed so soon.
	look = time.Second
	free = 250 * time.Millisecond
	// near is how far apart intervals may be that are compared.
	near = time.Second
	// fewLaunches in an interval say nothing about what one takes, and neither do neighbours whose rates
	// differ by more than alike: the program has changed.
	fewLaunches = 100
	alike       = 2
	// enough comparisons let a cost be taken as known.
	enough = 64
	// switchShare is what changes of state may cost of what is left beside counting.
	switchShare = 0.2
	// cheap and half are what counting may take of the budget where CUPTI was not left: above half of it it is left after each
	// slice, until that is below cheap again. Above dear, until it is below bearable, not all is counted.
	cheap, half    = 0.35, 0.5
	bearable, dear = 0.65, 0.8
	// patience is how often in a row CUPTI may not be left before that is not tried for some time: respite at
	// first, and twice as long each time.
	patience = 8
	respite  = time.Minute
	// burst is how long counting must be dear before CUPTI is left for a debt alone, unless that is deep: so many buckets.
	burst = 2 * time.Second
	deep  = 2
	// leaves is how many seconds leaving CUPTI and coming back are taken to need before they were seen to. What the first
	// launches with records take longer after that, as kernels are prepared anew, is taken to be between joins and slowJoins (H200, a training
	// with some 50 kernels: 0 to 9 ms were measured; 35 were once not accounted for).
	leaves, joins, slowJoins = 0.02, 0.005, 0.035
	// joining is the part of a slice that those launches are looked for in, preparing the most of it that they may cost.
	joining, preparing = 0.6, 0.4
	// away is how long a slice is at least where CUPTI is left in between, and often how far apart they should be.
	away  = 100 * time.Millisecond
	often = time.Second
)

// Controller decides when to trace. It belongs to one goroutine, and has no clock: it is told the time,
// which must not go back.
type Controller struct {
	cfg Config
	rng *rand.Rand

	plan    []Step // the first is the one that runs
	plans   uint64
	last    time.Time
	stratum uint64

	// What a launch costs at the rate of now, and by octave of the rate: a program that waits for the device loses
	// nothing, and may soon be one that does not.
	*costs
	byRate map[int]*costs
	octave int
	given  bool // Config.Prior
	// away says that CUPTI is left, stale that it has made records since it was left last, or ever.
	away, stale bool
	// stays is how often in a row CUPTI could not be left, respite until when that is not tried again, and the last such time.
	stays                   int
	respiteUntil, respiteIs time.Duration
	// rate is launches a second, side what CUPTI and our own threads cost a second of tracing, as lately seen.
	rate, side float64
	// What changes of state take, in seconds, as lately seen: those that leave CUPTI, those that bring records back
	// after that, and all others; and what the first launches with records then take longer.
	leave, come, change float64
	join                *cost
	// first is the interval of those launches, until what follows says how long they should have taken.
	first *interval
	// tokens are seconds that may be lost; below 0 is a debt.
	tokens float64
	spent  float64
	recent [60]float64 // by second
	second int64
	before *interval // the last that says what a launch took
	state  State     // the last
	// leaving says that counting takes so much of the budget that CUPTI is left after each slice, since when leavingSince is; dearest
	// that it takes too much even so.
	leaving, dearest bool
	leavingSince     time.Duration

	status Status
}

// costs are what a launch costs. Only that of a record can be measured: the time that a launch takes is compared with
// that of one that is counted. The others are taken to be in the same proportion to it as on the machine where all were.
type costs struct{ trace *cost }

// newCosts takes a launch to cost so much, as if four comparisons said so.
func newCosts(trace float64) *costs {
	return &costs{trace: newCost(trace, trace, trace, trace)}
}

// interval is what is remembered of one for comparisons.
type interval struct {
	state          State
	stale          bool
	launches, told float64 // told are those that were counted
	seen           float64 // seconds
	from, to       time.Duration
}

// perOne is the seconds that a launch took.
func (i *interval) perOne() float64 { return i.seen / i.launches }

// NewController checks the configuration.
func NewController(cfg Config) (*Controller, error) {
	if cfg.MinSlice == 0 {
		cfg.MinSlice = defaultMinSlice
	}
	if cfg.MaxSlice == 0 {
		cfg.MaxSlice = max(defaultMaxSlice, cfg.MinSlice)
	}
	given := cfg.Prior != Costs{}
	for _, p := range []struct {
		at   *float64
		cost float64
	}{{&cfg.Prior.Count, defaultCount}, {&cfg.Prior.Trace, defaultTrace}, {&cfg.Prior.Residual, defaultResidual}} {
		if *p.at == 0 {
			*p.at = p.cost
		}
	}
	if cfg.Processors == 0 {
		cfg.Processors = 1
	}
	p := cfg.Prior
	switch {
	case !(cfg.Budget > 0 && cfg.Budget <= 1):
		return nil, fmt.Errorf("budget: %v is no share of the time above 0 and at most 1", cfg.Budget)
	case cfg.MinSlice < time.Millisecond || cfg.MaxSlice < cfg.MinSlice || cfg.MaxSlice > maxPlan:
		return nil, fmt.Errorf("budget: slices of %v to %v; 1ms to %v are possible", cfg.MinSlice, cfg.MaxSlice, maxPlan)
	case cfg.Processors < 0 || !plausible(p.Count) || !plausible(p.Trace) || !plausible(p.Residual):
		return nil, errors.New("budget: a cost is below 0 or above a second")
	}
	seed := cfg.Seed
	if seed == 0 {
		seed = rand.Uint64() //nolint:gosec // No secret: it only must not follow the program's own rhythm.
	}
	c := &Controller{
		cfg: cfg, rng: rand.New(rand.NewPCG(seed, 0)), //nolint:gosec // As above.
		byRate: map[int]*costs{}, octave: math.MinInt, join: newCost(joins, slowJoins), given: given, status: Status{Budget: cfg.Budget},
	}
	c.recognise()
	return c, nil
}

// recognise takes the costs that belong to the rate of launches. At the border of two octaves those of before stay.
func (c *Controller) recognise() {
	at := max(0, math.Log2(max(1, c.rate)))
	if at > float64(c.octave)-0.4 && at < float64(c.octave)+1.4 {
		return
	}
	c.octave = int(at)
	before := c.costs
	if c.costs = c.byRate[c.octave]; c.costs == nil {
		known := c.cfg.Prior.Trace * c.cold()
		if before != nil && c.away {
			known = max(known, before.trace.upper) // nothing will be found out
		}
		c.costs = newCosts(known)
		c.byRate[c.octave] = c.costs
	}
	c.before = nil
}

// cold is how many times as much as one after the other launches are taken to cost at their rate.
func (c *Controller) cold() float64 {
	if c.given || c.rate <= 0 {
		return 1
	}
	return min(max(1/c.rate/dense, 1), coldest)
}

func plausible(seconds float64) bool { return seconds >= 0 && seconds <= 1 }

// Begin returns the first step.
func (c *Controller) Begin(now time.Time) Step {
	c.last = now
	c.next()
	return c.plan[0]
}

// Next takes what the step that ends now measured, and returns the one that follows. A step may end
// before its time.
func (c *Controller) Next(now time.Time, m Interval) Step {
	c.account(now, m)
	c.plan = c.plan[1:]
	// A program that has become idle need not wait for the end of the plan. That does not depend on which slot is traced.
	if len(c.plan) == 0 || c.plan[0].State == Count && c.idle() {
		c.next()
	}
	c.plan[0].Finalise = c.plan[0].leave && c.canLeave() && (c.stale || !c.away && c.plan[0].State == Blind)
	if c.firstRecords(c.plan[0].State) {
		one := c.plan[0]
		one.Joins = true
		one.For = time.Duration(joining * float64(one.For))
		c.plan[0].For -= one.For
		c.plan = slices.Insert(c.plan, 0, one)
	}
	return c.plan[0]
}

// firstRecords says whether the first records since CUPTI was left are made in a state.
func (c *Controller) firstRecords(s State) bool {
	return s == Trace && !c.stale && c.status.Finalised > 0
}

// canLeave says whether CUPTI is left where that is planned.
func (c *Controller) canLeave() bool { return c.cfg.CanLeave && c.status.Elapsed >= c.respiteUntil }

// account charges for an interval and learns from it.
func (c *Controller) account(now time.Time, m Interval) {
	step := c.plan[0]
	dt := max(0, now.Sub(c.last)).Seconds()
	c.last = c.last.Add(max(0, now.Sub(c.last)))
	state := step.State
	if m.Failed {
		c.status.Failures++
		state = m.Actual
	}
	waited := min(max(0, m.Waited.Seconds()), dt)
	change := min(max(0, m.Switch.Seconds()), dt-waited)
	seen := dt - waited - change
	// What went on until CUPTI was left was at least counted.
	lost := c.rate * waited * c.launch(Count)

	wasAway := c.away
	if step.Finalise {
		if m.Stayed {
			c.status.Stayed++
			if c.stays++; c.stays >= patience {
				c.stays = 0
				c.respiteIs = max(respite, 2*c.respiteIs)
				c.respiteUntil = c.status.Elapsed + c.respiteIs
			}
		} else {
			c.status.Finalised++
			c.away, c.stale, c.stays = true, false, 0
		}
	}
	if m.NeverLeaves {
		c.cfg.CanLeave = false
	}
	firstRecords := c.firstRecords(state)
	c.away = c.away && state == Blind
	c.stale = c.stale || state == Trace
	if state != c.state {
		c.status.Switches++
	}
	c.state = state
	began := c.status.Elapsed
	c.status.Elapsed += time.Duration(dt * 1e9)
	c.status.In[state] += time.Duration(dt * 1e9)

	// Without a count the rate is taken to be as it was.
	launches := c.rate * seen
	if m.Known {
		launches = float64(m.Launches)
		if seen > 0 {
			c.rate += (launches/seen - c.rate) * (1 - math.Exp(-dt/0.5)) // of the last half second or so
			if c.status.Elapsed < time.Second || launches/seen > 4*c.rate {
				c.rate = launches / seen
			}
		}
	}
	c.recognise()
	extra := max(0, m.CUPTI.Seconds()) + max(0, m.Own.Seconds())/float64(c.cfg.Processors)
	c.charge(lost+launches*c.launch(state)+change+extra, dt)
	if state == Trace && dt > 0 {
		c.side += (extra/dt - c.side) * (1 - math.Exp(-dt/2))
	}
	if change > 0 {
		at := &c.change
		switch {
		case step.Finalise:
			at = &c.leave
		case wasAway:
			at = &c.come
		}
		if *at == 0 {
			*at = change
		}
		*at += (change - *at) / 8
	}
	if !m.Known || m.Failed || seen <= 0 {
		return
	}
	told := launches - float64(min(m.Presumed, m.Launches))
	one := &interval{state: state, stale: c.stale, launches: launches, told: told, seen: seen, from: began, to: c.status.Elapsed}
	switch {
	case firstRecords:
		c.first = one
	case m.Launches >= fewLaunches:
		c.joined(one)
		c.compare(one)
	}
}

// joined charges for what the first launches with records took longer than those that followed.
func (c *Controller) joined(next *interval) {
	first := c.first
	c.first = nil
	if first == nil || next.state != Trace || next.from != first.to || next.told == 0 {
		return
	}
	// Where some are not counted, that is the same part of both.
	c.join.add(first.seen - first.told*next.seen/next.told)
	c.charge(c.join.upper, 0)
}

// launch is what a launch costs in a state, in seconds.
func (c *Controller) launch(s State) float64 {
	if c.away {
		return 0
	}
	switch {
	case s == Trace:
		return c.tracing()
	case s == Count && c.stale:
		return c.counting()
	case s == Count:
		return c.counting() - c.staying()
	case c.stale:
		return c.staying()
	default:
		return 0
	}
}

// charge takes seconds lost from the bucket, into which dt seconds flowed meanwhile.
func (c *Controller) charge(lost, dt float64) {
	b := c.cfg.Budget
	c.tokens = min(c.tokens+planned*b*dt-lost, bucket*b)
	c.spent += lost
	end := int64(c.status.Elapsed / time.Second)
	for s := max(c.second+1, end-int64(len(c.recent))+1); s <= end; s++ {
		c.recent[s%int64(len(c.recent))] = 0
	}
	c.second = end
	if dt <= 0 {
		c.recent[end%int64(len(c.recent))] += lost
		return
	}
	// Steps are short, but whoever asks may be late.
	to := c.status.Elapsed.Seconds()
	for s := end; s >= 0 && s > end-int64(len(c.recent)) && float64(s+1) > to-dt; s-- {
		c.recent[s%int64(len(c.recent))] += lost / dt * (min(to, float64(s+1)) - max(to-dt, float64(s)))
	}
}

// compare looks whether the last two intervals say what something costs. In the long run each difference is taken
// as often before as after, so that a program that becomes slower or faster does not look like a cost.
func (c *Controller) compare(last *interval) {
	before := c.before
	c.before = last
	if before == nil || last.from-before.to > near || !like(before.perOne(), last.perOne()) {
		return
	}
	traced, counted := last, before
	if before.state == Trace {
		traced, counted = before, last
	}
	if traced.state != Trace || counted.state != Count {
		return
	}
	part := 1.0
	if p := &c.cfg.Prior; !counted.stale {
		part = p.Trace / (p.Trace + p.Residual)
	}
	c.trace.add(part * (traced.perOne() - counted.perOne()))
}

func like(a, b float64) bool { return a <= alike*b && b <= alike*a }

// shape is how the next plan is divided.
type shape struct {
	on   float64 // share of the time to trace
	left float64 // share of the time that may be spent on tracing and on the changes of state for it
}

// next makes a plan.
func (c *Controller) next() {
	c.plans++
	c.plan = c.plan[:0]
	b, p := c.cfg.Budget, &c.cfg.Prior
	if c.idle() {
		c.status.Floor = 0
		c.add(Step{State: Trace, TraceShare: 1, CountShare: 1}, 1, max(free, c.cfg.MinSlice))
		return
	}
	may := min(planned*b+c.tokens/settle, b)
	count, residual := c.rate*c.counting(), c.rate*c.staying()
	// Once decided, it takes a clear change to decide otherwise. Whether all is counted is decided by what is likely, and not by
	// what is feared.
	likely := c.rate * c.trace.middle / p.Trace // of what it was taken to be at first
	fresh := likely * p.Count
	// It is no good where much of the time can be traced without it.
	traced := (planned*b - count) / max(c.rate*c.recording()+c.side, 1e-9)
	left := c.leaving
	if c.leaving = above(left, count, cheap*b, half*b) && !above(!left, traced, 0.4, 0.7); !left {
		c.leavingSince = c.status.Elapsed
	}
	c.dearest = above(c.dearest, fresh, bearable*b, dear*b)
	// What tracing costs is found out as long as counts can be believed, but not at any price.
	learned := c.trace.measured >= enough || c.tokens < -bucket*b/2
	lasts := c.trace.measured >= enough || c.status.Elapsed-c.leavingSince >= burst || c.tokens < -deep*bucket*b
	switch top := c.rate*c.recording() + c.side; {
	case c.leaving && c.canLeave() && learned && lasts && !c.dearest:
		c.seldomFresh(count - residual)
	case c.leaving && c.canLeave() && learned && lasts:
		c.seldomAway()
	default:
		c.status.Floor = count
		s := shape{left: may - count, on: 1}
		if top > s.left {
			s.on = s.left / top
		}
		switch {
		case !learned:
			s.on = max(s.on, 0.5)
		case c.leaving && c.canLeave():
			s.on = max(s.on, 1.0/16) // in a short plan: it will soon be seen whether this lasts
		}
		if s = c.bounded(s); s.on > 0.5 {
			c.mostly(s)
		} else {
			c.seldom(s)
		}
	}
}

// recording is what a record costs a launch: the less is known of that, the closer to what it was taken to be at first, if that is more.
func (c *Controller) recording() float64 {
	unknown := max(0, 1-float64(c.trace.measured)/enough)
	return max(c.trace.upper, unknown*c.cfg.Prior.Trace*c.cold())
}

// idle says that all can be traced, by the cost that is known and by that of the machine where all were measured.
func (c *Controller) idle() bool {
	p := &c.cfg.Prior
	return c.rate*max(c.tracing(), (p.Count+p.Residual+p.Trace)*c.cold())+c.side <= idle*c.cfg.Budget
}

// above says whether v is above high, or was and is not below low.
func above(was bool, v, low, high float64) bool { return v > high || was && v >= low }

// tracing, counting and staying are what a launch costs with a record, with a count alone, and with neither, where CUPTI was
// not left since the last record.
func (c *Controller) tracing() float64 { return c.recording() + c.counting() }
func (c *Controller) counting() float64 {
	return c.recording() / c.cfg.Prior.Trace * (c.cfg.Prior.Count + c.cfg.Prior.Residual)
}
func (c *Controller) staying() float64 {
	return c.recording() / c.cfg.Prior.Trace * c.cfg.Prior.Residual
}

func (c *Controller) bounded(s shape) shape {
	s.left = max(s.left, c.cfg.Budget/20)
	s.on = min(max(s.on, 1.0/maxSlots), 1-1.0/maxOn)
	return s
}

// length is that of a plan in which a share is traced, so long that changes of state do not take
// more than their share.
func (c *Controller) length(s shape) time.Duration {
	slice := c.cfg.MinSlice.Seconds()
	l := slice / min(s.on, 1-s.on)
	l = max(l, 2*c.change/(switchShare*s.left))
	l = min(l, c.cfg.MaxSlice.Seconds()/min(s.on, 1-s.on), maxPlan.Seconds())
	return time.Duration(l * 1e9)
}

// slots is how many slots a plan has of which one is different, on average 1/share.
func (c *Controller) slots(share float64) int {
	n := 1 / share
	k := int(n)
	if c.rng.Float64() < n-float64(k) {
		k++
	}
	return min(max(k, 2), maxSlots)
}

// add appends a stratum of so many slots to the plan, or several where it would be too long.
func (c *Controller) add(s Step, slots int, slot time.Duration) {
	for d := time.Duration(max(0, slots) * int(slot)); d > 0; {
		c.stratum++
		one := d / ((d + look - 1) / look)
		c.append(s, one)
		d -= one
	}
}

// append appends a step to the stratum that was begun last.
func (c *Controller) append(s Step, d time.Duration) {
	s.For, s.Stratum = d, c.stratum
	c.plan = append(c.plan, s)
}

// seldom makes a plan of which one slot is traced, any with the same chance, and the others are counted. Its
// neighbours have its own length, for comparison.
func (c *Controller) seldom(s shape) {
	k := c.slots(s.on)
	slot := max(c.length(s)/time.Duration(k), c.cfg.MinSlice)
	at := c.rng.IntN(k)
	traced := Step{State: Trace, TraceShare: 1 / float64(k), CountShare: 1}
	off := Step{State: Count, TraceShare: traced.TraceShare, CountShare: 1}
	c.spread(traced, off, at, k, slot)
}

// spread makes a plan of k slots, of which the one at is different from the others. Its neighbours are strata of their own.
func (c *Controller) spread(one, others Step, at, k int, slot time.Duration) {
	before, after := at, k-1-at
	c.add(others, before-1, slot)
	c.add(others, min(before, 1), slot)
	c.add(one, 1, slot)
	c.add(others, min(after, 1), slot)
	c.add(others, after-1, slot)
}

// slice says how long a slice is and how many slots there are of its length, where CUPTI is left after each and so much of the
// time may be spent on that and on tracing, of which a second costs so much.
func (c *Controller) slice(may, second float64) (slot time.Duration, k int) {
	change := c.leave + c.come
	if change == 0 {
		change = leaves
	}
	change += c.join.upper
	may = max(may, c.cfg.Budget/20)
	length := away.Seconds()
	if (length*second+change)/may < often.Seconds() {
		length = (may*often.Seconds() - change) / max(second, 1e-9)
	}
	length = max(length, c.join.upper/preparing)
	slot = min(max(time.Duration(min(length, maxPlan.Seconds())*1e9), away, c.cfg.MinSlice), c.cfg.MaxSlice)
	k = int(math.Ceil((slot.Seconds()*second + change) / may / slot.Seconds()))
	return slot, min(max(k, 2), int(maxPlan/slot))
}

// seldomFresh makes a plan of which one slot is traced, any with the same chance. After it CUPTI is left, and all others
// are counted by one that has made no records since.
func (c *Controller) seldomFresh(counting float64) {
	c.status.Floor = counting
	may := min(planned*c.cfg.Budget+c.tokens/settle, c.cfg.Budget) - counting
	slot, k := c.slice(may, c.rate*c.tracing()+c.side-counting)
	at := c.rng.IntN(k)
	traced := Step{State: Trace, TraceShare: 1 / float64(k), CountShare: 1}
	off := Step{State: Count, TraceShare: traced.TraceShare, CountShare: 1, leave: true}
	c.spread(traced, off, at, k, slot)
}

// seldomAway makes a plan of which one slot is traced, any with the same chance, and between slices CUPTI is left. All
// of it is one stratum: nothing is counted but what is traced.
func (c *Controller) seldomAway() {
	// The bound of what was launched grows with the longest plan, so debts are paid back slowly.
	c.status.Floor = 0
	may := min(planned*c.cfg.Budget+c.tokens/window.Seconds(), c.cfg.Budget)
	slot, k := c.slice(may, c.rate*c.tracing()+c.side)
	at := c.rng.IntN(k)
	c.stratum++
	// What is launched while there are records takes longer than what is launched in between.
	speed := 1 / (1 - min(0.5, c.rate*c.tracing()))
	traced := Step{State: Trace, TraceShare: 1 / float64(k), CountShare: 1 / float64(k), Records: true, Speed: speed}
	blind := traced
	blind.State, blind.leave = Blind, true
	for _, s := range []struct {
		step  Step
		slots int
	}{{blind, at}, {traced, 1}, {blind, k - 1 - at}} {
		for d := time.Duration(s.slots * int(slot)); d > 0; {
			one := d / ((d + look - 1) / look)
			c.append(s.step, one)
			d -= one
		}
	}
}

// mostly makes a plan of which one slot is counted, and all others are traced.
func (c *Controller) mostly(s shape) {
	k := c.slots(1 - s.on)
	slot := max(c.length(s)/time.Duration(k), c.cfg.MinSlice)
	at := c.rng.IntN(k)
	traced := Step{State: Trace, TraceShare: 1 - 1/float64(k), CountShare: 1}
	off := Step{State: Count, TraceShare: traced.TraceShare, CountShare: 1}
	c.spread(off, traced, at, k, slot)
}

// Status is what was done until the last Next.
func (c *Controller) Status() Status {
	s := c.status
	s.Costs = Costs{Count: c.counting() - c.staying(), Trace: c.recording(), Residual: c.staying()}
	s.Join, s.Joins = c.join.middle, c.join.measured
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
