// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"errors"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/recording/budget"
	"github.com/gpuflight/gpuflight/semconv"
)

// Switch is a Source whose records can be switched off while launches are counted: a *cupti.Collector.
type Switch interface {
	SetMode(m cupti.Mode) error
	// Mode is the one in force, which a window may have changed.
	Mode() cupti.Mode
	// Detach leaves CUPTI, and says for how long nothing was seen because of that.
	Detach(m cupti.Mode, limit time.Duration) (time.Duration, error)
	LaunchCounts(dst []cupti.LaunchCount) []cupti.LaunchCount
	Doubts(dst []cupti.Doubt) []cupti.Doubt
	CountStats() cupti.CountStats
	Stats() cupti.Stats
}

const (
	// recordsLate is how long after its end a stratum waits for its records. Those that come later are in all
	// metrics, and not in estimates.
	recordsLate = 5 * time.Second
	// joinsKnown is how often it must have been measured what the first records cost before strata that are told from records alone
	// are estimated; they wait at most for joinsLate.
	joinsKnown = 3
	joinsLate  = time.Minute
	// retry is how often it is tried whether launches can be counted.
	retry = time.Second
	// maxStrata bounds the strata that wait: a recorder that does nothing for so long is held up.
	maxStrata = 4096
	// settle is how long it is waited for the records of what was launched before CUPTI is left: while the program's
	// queue is longer than that it is left as it is.
	settle = 200 * time.Millisecond
	// lackFor is how long a record must be missing for it to be taken as lost, and maxAhead how many there may be before
	// their launches are told of.
	lackFor  = 15 * time.Second
	maxAhead = 64
	// doubtsAge is how often doubtful launches without a record are taken to have none, the second time.
	doubtsAge = time.Minute
)

// governor keeps what recording costs within a budget: it switches the source's records off and on from
// a goroutine of its own, since the recorder's may be at work when a slice is over.
type governor struct {
	src  Switch
	log  *slog.Logger
	ctl  *budget.Controller
	stop chan struct{}
	done chan struct{}
	// own is the processor time of the recorder's goroutine, in nanoseconds, recorded how many records of launches, copies
	// and sets it has read.
	own      atomic.Int64
	recorded atomic.Uint64

	mu     sync.Mutex
	status budget.Status
	strata []*stratum // that the engine has not taken
	lost   uint64     // strata that found no room
	// refused says why nothing can be switched.
	refused string

	// The rest is the governor's goroutine's.
	rows     []cupti.LaunchCount
	launches uint64
	cupti    time.Duration
	ownSeen  time.Duration
	open     *stratum
	// recordedThen is what recorded was when the last slice began, and lasted how long that was. Records and seconds are the
	// sums of both, in which what was longer ago weighs less: some records are read late.
	recordedThen     uint64
	lasted           time.Duration
	records, seconds float64
}

// stratum is what is known of one of the controller's.
type stratum struct {
	number                 uint64
	start                  int64 // Unix ns
	traceShare, countShare float64
	speed                  float64
	before, beforeTold     []uint64 // launches by row when it began, and those of them that were told of while there were records
	// records says that what was launched is to be told from records alone.
	records bool
	// unseen is for how long nothing was seen because CUPTI was left, blind for how long since that was the mode. spoilt says
	// that some step was not what was planned, and the shares mean nothing; untraced that it was one to be traced.
	unseen, blind    time.Duration
	spoilt, untraced bool
	// joins says that the first records since CUPTI was left were made in it.
	joins bool
	// tracedBefore is for how long there had been records when it began, recorded for how long there were in it.
	tracedBefore, recorded time.Duration

	// With the governor's lock: end is 0 while it goes on, counted are the launches in it by row. The rest does not
	// change after that.
	end           int64
	counted, told []uint64

	matched map[uint32]uint64        // the engine's: records by kernel name, but those of doubtful launches
	traced  map[uint32]budget.Traced // the engine's: by kernel name
}

func newGovernor(src Switch, share float64, leave bool, log *slog.Logger) (*governor, error) {
	ctl, err := budget.NewController(budget.Config{Budget: share, CanLeave: leave, Processors: runtime.NumCPU()})
	if err != nil {
		return nil, err
	}
	return &governor{src: src, log: log, ctl: ctl, stop: make(chan struct{}), done: make(chan struct{})}, nil
}

// limitOverhead has a governor switch the source's records.
func (e *engine) limitOverhead(src Source) error {
	sw, ok := src.(Switch)
	if !ok {
		return errors.New("recorder: an overhead budget needs a source whose records can be switched off")
	}
	g, err := newGovernor(sw, e.cfg.OverheadBudget, e.cfg.OverheadLeave, e.log)
	if err != nil {
		return err
	}
	e.untraced, err = newUntraced(g, e.now)
	return err
}

// governed starts the governor, if there is one, and returns what ends it.
func (e *engine) governed() (end func()) {
	if e.untraced == nil {
		return func() {}
	}
	g := e.untraced.g
	go g.run()
	return func() {
		close(g.stop)
		late := time.NewTimer(grace)
		defer late.Stop()
		select {
		case <-g.done:
		case <-late.C: // CUPTI does not come back
			g.log.Warn("CUPTI does not answer: the overhead of recording is no longer limited")
		}
	}
}

// run is the governor's goroutine.
func (g *governor) run() {
	defer close(g.done)
	if err := guarded(g.govern); err != nil {
		g.refuse(firstLine(err.Error()))
		g.log.Error("the overhead of recording is no longer limited", "error", err)
		_ = guarded(func() error { return g.src.SetMode(cupti.ModeTrace) })
	}
}

func (g *governor) govern() error {
	if !g.begin() {
		return nil
	}
	now := time.Now()
	g.count()
	step := g.ctl.Begin(now)
	for {
		g.enter(step, now)
		g.open.joins = g.open.joins || step.Joins
		m, over := g.change(step)
		g.count() // what was launched during the change is no measure of the state
		if over {
			// Stopped; should it be started again, it records everything.
			g.open.spoilt = true
			g.leave(time.Now())
			return nil
		}
		begun, reached := g.launches, time.Now()
		perSecond := g.recordedPerSecond(step)
		mode := g.src.Mode()
		stopped := false
		wait := step.For - reached.Sub(now)
		if step.Records {
			wait += m.Switch
			g.open.unseen += m.Switch
		}
		timer := time.NewTimer(max(0, wait))
		select {
		case <-timer.C:
		case <-g.stop:
			timer.Stop()
			stopped = true
		}
		g.count()
		now = time.Now()
		if other := g.src.Mode(); other != mode {
			// A window has records made. What it cost until then is less than is charged for it.
			mode, m.Failed = other, true
		}
		m.Actual = budget.State(mode)
		if mode == cupti.ModeBlind {
			g.open.blind += now.Sub(reached)
		}
		if m.Failed {
			g.open.spoilt = true
			g.open.untraced = g.open.untraced || step.State == budget.Trace
		}
		m.Launches, m.Known = g.launches-begun, mode != cupti.ModeBlind
		if mode == cupti.ModeTrace {
			g.lasted += now.Sub(reached)
			if recorded := uint64(perSecond * now.Sub(reached).Seconds()); recorded > m.Launches {
				m.Launches, m.Presumed = recorded, recorded-m.Launches
			}
		}
		overhead, own := g.src.Stats().Overhead, time.Duration(g.own.Load())
		m.CUPTI, m.Own = overhead-g.cupti, own-g.ownSeen
		step = g.ctl.Next(now, m)
		g.cupti, g.ownSeen = overhead, own
		status := g.ctl.Status()
		g.mu.Lock()
		g.status = status
		g.mu.Unlock()
		if stopped {
			g.open.spoilt = true // it is shorter than planned
			g.leave(now)
			return nil
		}
	}
}

// change brings about what a step asks for, as far as it can, and says how that went, and whether recording is over.
func (g *governor) change(step budget.Step) (m budget.Interval, over bool) {
	begin := time.Now()
	want := cupti.Mode(step.State)
	var err error
	var left time.Duration // CUPTI
	if step.Finalise {
		if err = g.src.SetMode(cupti.ModeCount); err == nil {
			before := time.Now()
			left, err = g.src.Detach(want, settle)
			m.Waited = max(0, time.Since(before)-left)
			if !step.Records {
				g.open.unseen += left
			}
		}
		switch {
		case errors.Is(err, cupti.ErrNotRunning):
			return m, true
		case errors.Is(err, cupti.ErrCannotDetach): // it is not asked again
			m.Stayed, m.NeverLeaves = true, true
			g.log.Warn("where counting costs more than the overhead budget it is not kept", "error", err)
		case err != nil:
			m.Stayed = left == 0
			g.log.Debug("cannot leave CUPTI", "error", err)
		}
	}
	if g.src.Mode() != want {
		if err = g.src.SetMode(want); errors.Is(err, cupti.ErrNotRunning) {
			return m, true
		}
		if err != nil {
			g.log.Debug("cannot switch records", "mode", step.State.String(), "error", err)
		}
		m.Failed = err != nil
	}
	m.Switch = time.Since(begin) - m.Waited
	return m, false
}

// recordedPerSecond is how many records there were of a second of the slices before this one, where callbacks may not tell of
// all launches; else 0.
func (g *governor) recordedPerSecond(step budget.Step) float64 {
	if step.State != budget.Trace {
		return 0
	}
	const weight = 0.7
	recorded := g.recorded.Load()
	g.records = weight*g.records + float64(recorded-g.recordedThen)
	g.seconds = weight*g.seconds + g.lasted.Seconds()
	g.recordedThen, g.lasted = recorded, 0
	if !step.Records || g.seconds <= 0 {
		return 0
	}
	return g.records / g.seconds
}

// begin has launches counted, and says whether they are. It tries until they are or the recorder stops: a window may
// have recording paused.
func (g *governor) begin() bool {
	for {
		err := g.src.SetMode(cupti.ModeTrace)
		if err == nil {
			g.refuse("")
			return true
		}
		if errors.Is(err, cupti.ErrNotRunning) {
			return false
		}
		g.refuse(firstLine(err.Error()))
		if errors.Is(err, cupti.ErrCannotCount) {
			g.log.Warn("the overhead of recording cannot be limited", "error", err)
			return false
		}
		g.log.Debug("the overhead of recording is not limited yet", "error", err)
		pause(g.stop, retry)
		select {
		case <-g.stop:
			return false
		default:
		}
	}
}

func (g *governor) refuse(why string) {
	g.mu.Lock()
	g.refused = why
	g.mu.Unlock()
}

// count reads how much was launched.
func (g *governor) count() {
	g.rows = g.src.LaunchCounts(g.rows[:0])
	g.launches = 0
	for i := range g.rows {
		g.launches += g.rows[i].Launches()
	}
}

// enter begins the step's stratum, if it is another.
func (g *governor) enter(step budget.Step, now time.Time) {
	if g.open != nil && g.open.number == step.Stratum {
		return
	}
	g.leave(now)
	s := &stratum{
		number: step.Stratum, start: now.UnixNano(), traceShare: step.TraceShare, countShare: step.CountShare, speed: step.Speed, records: step.Records,
		before: launchesOf(g.rows), beforeTold: toldOf(g.rows), traced: map[uint32]budget.Traced{}, matched: map[uint32]uint64{},
		tracedBefore: g.src.CountStats().Traced,
	}
	g.open = s
	g.mu.Lock()
	if len(g.strata) < maxStrata {
		g.strata = append(g.strata, s)
	} else {
		g.lost++
	}
	g.mu.Unlock()
}

// leave ends the stratum that is open.
func (g *governor) leave(now time.Time) {
	s := g.open
	if s == nil {
		return
	}
	counted, told := launchesOf(g.rows), toldOf(g.rows)
	for i, n := range s.before {
		counted[i] -= n
		told[i] -= s.beforeTold[i]
	}
	g.mu.Lock()
	s.end, s.counted, s.told = max(now.UnixNano(), s.start+1), counted, told
	s.recorded = g.src.CountStats().Traced - s.tracedBefore
	g.mu.Unlock()
	g.open = nil
}

func launchesOf(rows []cupti.LaunchCount) []uint64 {
	n := make([]uint64, len(rows))
	for i := range rows {
		n[i] = rows[i].Launches()
	}
	return n
}

func toldOf(rows []cupti.LaunchCount) []uint64 {
	n := make([]uint64, len(rows))
	for i := range rows {
		n[i] = rows[i].Traced
	}
	return n
}

// lack is by how much the records of a kernel are behind what CUPTI told of. What is on its way to the device makes it more
// than it is, so only the least of some time counts, as long as more may come.
type lack struct {
	row           int
	behind, least int64
}

// untraced is the engine's side: what it makes of counts and records. It belongs to the recorder's goroutine.
type untraced struct {
	g          *governor
	estimator  *budget.Estimator[uint32]
	reconciler *cupti.Reconciler
	doubts     []cupti.Doubt
	rows       []cupti.LaunchCount
	seen       []uint64 // counted launches that are in totals, by row
	aged       time.Time
	strata     []*stratum // in the order of time
	// lacks are by kernel name, looked at lacked. missing are launches that CUPTI told of while there were records, and made none
	// of: a thread of the program may be left out when activity is switched on again (H200, CUDA 13.0).
	lacks   map[uint32]*lack
	lacked  time.Time
	missing uint64
	// unmatch are what those launches are of whose records were taken for ones of no doubtful launch.
	unmatch []uint32
	// doubtful says that the record that is read is of a launch that was in flight when records were switched.
	doubtful bool
	// kernels and byOperation are launches without records.
	kernels     uint64
	byOperation [numOperations]uint64
	// late are records of strata that were closed, or none, recorded all of launches, copies and sets.
	late, recorded uint64
}

func newUntraced(g *governor, now time.Time) (*untraced, error) {
	estimator, err := budget.NewEstimator[uint32](budget.EstimatorConfig{MaxKernels: maxNames + 1})
	if err != nil {
		return nil, err
	}
	return &untraced{g: g, estimator: estimator, reconciler: cupti.NewReconciler(), aged: now, lacks: map[uint32]*lack{}, lacked: now}, nil
}

// learn takes what has happened before a buffer that is about to be read.
func (u *untraced) learn() {
	u.doubts = u.g.src.Doubts(u.doubts[:0])
	u.unmatch = append(u.unmatch, u.reconciler.Add(u.doubts)...)
	u.g.mu.Lock()
	u.strata = append(u.strata, u.g.strata...)
	u.g.strata = nil
	u.g.mu.Unlock()
}

// record notes a record of a launch, copy or set.
func (u *untraced) record(attachment, correlation uint32) {
	u.recorded++
	u.doubtful = u.reconciler.Record(attachment, correlation)
}

// kernel notes a kernel's record.
func (u *untraced) kernel(name uint32, start, ns int64) {
	for i := len(u.strata) - 1; i >= 0; i-- {
		if s := u.strata[i]; s.start <= start {
			t := s.traced[name]
			t.Launches++
			t.Seconds += float64(ns) / 1e9
			s.traced[name] = t
			if !u.doubtful {
				s.matched[name]++
			}
			return
		}
	}
	u.late++
	if l := u.lacks[name]; l != nil && !u.doubtful {
		l.behind = max(l.behind-1, -maxAhead)
		l.least = min(l.least, l.behind)
	}
}

// operationOf says what a row of counts is of.
func operationOf(o cupti.CountedOperation) operation {
	switch o {
	case cupti.CountGraph:
		return opGraph
	case cupti.CountHtoD, cupti.CountDtoH, cupti.CountDtoD, cupti.CountOtherCopy:
		return opCopy
	case cupti.CountSet:
		return opSet
	default:
		return opKernel
	}
}

// countUntraced adds to the totals what was launched without a record. At the end all is decided; before,
// launches of which that is not known wait.
func (e *engine) countUntraced(end bool) {
	u := e.untraced
	if u == nil {
		return
	}
	u.g.own.Store(int64(e.ownTime()))
	u.g.recorded.Store(u.recorded)
	u.learn()
	without := map[uint32]uint64{}
	if end || e.now.Sub(u.aged) >= doubtsAge {
		u.aged = e.now
		for range 2 {
			for what, n := range u.reconciler.Age() {
				without[what] += n
			}
			if !end {
				break
			}
		}
	}
	u.rows = u.g.src.LaunchCounts(u.rows[:0])
	for len(u.seen) < len(u.rows) {
		u.seen = append(u.seen, 0)
	}
	for i := range u.rows {
		row := &u.rows[i]
		n := row.Counted - u.seen[i]
		u.seen[i] = row.Counted
		n += without[uint32(i)]
		if end {
			n += u.reconciler.Forgotten(uint32(i))
		}
		if n > 0 {
			e.addUntraced(row, n)
		}
	}
	u.close(e, end)
}

func (e *engine) addUntraced(row *cupti.LaunchCount, n uint64) {
	u := e.untraced
	op := operationOf(row.Operation)
	u.byOperation[op] += n
	switch op {
	case opKernel:
		u.kernels += n
		name := e.totals.names.index(row.Name)
		e.totals.names.all[name].untraced += n
		e.totals.cell(name, labelSession, e.soleDevice()).launches += n
	case opGraph:
		e.totals.work(labelSession, e.soleDevice()).untracedGraphs += n
	default:
	}
}

// soleDevice is the slot of the only device. Counts do not say which one it was: of several it is none.
func (e *engine) soleDevice() uint8 {
	if d := e.session.Devices; len(d) == 1 {
		return deviceSlot(int32(d[0].Index)) //nolint:gosec // Devices are few.
	}
	return 0
}

// close gives strata whose records have come to the estimator.
func (u *untraced) close(e *engine, end bool) {
	// The governor may know of kernels that came after the rows were read.
	u.rows = u.g.src.LaunchCounts(u.rows[:0])
	late := e.now.Add(-recordsLate).UnixNano()
	u.g.mu.Lock()
	join, joins := time.Duration(u.g.status.Join*1e9), u.g.status.Joins
	u.g.mu.Unlock()
	waits := e.now.Add(-joinsLate).UnixNano()
	n := 0
	for _, s := range u.strata {
		u.g.mu.Lock()
		ended, counted, recorded := s.end, s.counted, s.recorded
		u.g.mu.Unlock()
		if ended == 0 || ended > late && !end || s.records && joins < joinsKnown && ended > waits && !end {
			break
		}
		n++
		u.compare(e, s)
		traceShare, countShare, unseen := s.traceShare, s.countShare, s.unseen
		if s.untraced {
			traceShare = 1 // of nothing: it says nothing about the other strata
			clear(s.traced)
		}
		if s.spoilt {
			countShare, unseen = 1, unseen+s.blind
		}
		if s.records && s.spoilt {
			unseen = time.Duration(ended - s.start)
		}
		launched := make(map[uint32]uint64, len(s.traced))
		var counting time.Duration
		if s.records {
			counted, counting = nil, recorded
			if s.joins { // launches stood still for a part of it
				counting -= min(join, recorded/2)
			}
			for name, t := range s.traced {
				launched[name] = t.Launches
			}
		}
		for i, c := range counted {
			if c > 0 && operationOf(u.rows[i].Operation) == opKernel {
				launched[e.totals.names.index(u.rows[i].Name)] += c
			}
		}
		if err := u.estimator.Add(&budget.Stratum[uint32]{
			Seconds: float64(ended-s.start) / 1e9, Unseen: unseen.Seconds(), TraceShare: traceShare, CountShare: countShare, Speed: s.speed,
			Counting: counting.Seconds(), Counted: launched, Traced: s.traced,
		}); err != nil {
			u.g.mu.Lock()
			u.g.lost++
			u.g.mu.Unlock()
		}
	}
	u.strata = slices.Delete(u.strata, 0, n)
	due := end || e.now.Sub(u.lacked) >= lackFor
	if n > 0 || due {
		u.weigh(e)
	}
	if due {
		u.lack(e, end)
	}
}

// lackOf is what is lacking of a kernel name, which is that of a row.
func (u *untraced) lackOf(e *engine, row int) *lack {
	name := e.totals.names.index(u.rows[row].Name)
	l := u.lacks[name]
	if l == nil {
		l = &lack{row: row}
		u.lacks[name] = l
	}
	return l
}

// compare notes how many records there were of what CUPTI told of in a stratum.
func (u *untraced) compare(e *engine, s *stratum) {
	for i, n := range s.told {
		if n > 0 && u.rows[i].Name != nil {
			u.lackOf(e, i).behind += int64(n) //nolint:gosec // Far below.
		}
	}
	for name, n := range s.matched {
		if l := u.lacks[name]; l != nil {
			// Some may have records that nobody told of: those in flight when that began.
			l.behind = max(l.behind-int64(n), -maxAhead) //nolint:gosec // Far below.
		}
	}
}

// weigh notes the least that is lacking. What was told of before a switch may run after it, in a stratum that has not ended and may
// last: so all records of these count, though not what was told of meanwhile.
func (u *untraced) weigh(e *engine) {
	for _, row := range u.unmatch {
		if int(row) < len(u.rows) && u.rows[row].Name != nil {
			u.lackOf(e, int(row)).behind++
		}
	}
	u.unmatch = u.unmatch[:0]
	open := map[uint32]int64{}
	for _, s := range u.strata {
		for name, n := range s.matched {
			open[name] += int64(n) //nolint:gosec // Far below.
		}
	}
	for name, l := range u.lacks {
		l.least = min(l.least, l.behind-open[name])
	}
}

// lack counts what has no record as launched without one: all at the end, and before what has been lacking for some time.
func (u *untraced) lack(e *engine, end bool) {
	u.lacked = e.now
	for _, l := range u.lacks {
		n := l.least
		if end {
			n = l.behind
		}
		if n > 0 {
			u.missing += uint64(n)
			e.addUntraced(&u.rows[l.row], uint64(n))
			l.behind -= n
		}
		l.least = math.MaxInt64 // until it is weighed
	}
}

// OverheadSummary is what a budget for the cost of recording did.
type OverheadSummary struct {
	// Budget is the share of the time that recording may cost, Ratio what it cost by its own estimate, Met whether
	// that is within the budget, also in the last minute, and Excess by how much it is not.
	Budget float64 `json:"budget"`
	Ratio  float64 `json:"ratio"`
	Met    bool    `json:"met"`
	Excess float64 `json:"excess,omitempty"`
	// Floor is what the cheapest mode costs by the same estimate.
	Floor float64 `json:"floor,omitempty"`
	// Traced is the share of the time in which all launches were recorded. Seconds are those in each mode.
	Traced  float64            `json:"traced_ratio"`
	Seconds map[string]float64 `json:"seconds"`
	// TracedSeconds is for how long there were records, but for the time in which launches waited for a switch. What a deep window
	// left out of that is in it.
	TracedSeconds float64 `json:"traced_seconds"`
	// LaunchCostNs is what a record of a launch costs the program, in ns, from so many comparisons.
	LaunchCostNs float64 `json:"launch_cost_ns"`
	Comparisons  int     `json:"comparisons"`
	Switches     uint64  `json:"switches"`
	Failures     uint64  `json:"switches_failed,omitempty"`
	// Beside are switches that launches did not wait for: CUPTI may make no records of some threads' launches after them.
	Beside uint64 `json:"switches_beside,omitempty"`
	// Left is how often CUPTI was left so that launches cost less, and LeftFailed how often that could not be. Launches are not
	// seen while it is being left, which took UnseenSeconds in all.
	Left          uint64  `json:"cupti_left,omitempty"`
	LeftFailed    uint64  `json:"cupti_left_failed,omitempty"`
	UnseenSeconds float64 `json:"unseen_seconds,omitempty"`
	// JoinSeconds is what the first launches with records take longer after each time, all together: estimates make up for it.
	JoinSeconds float64 `json:"join_seconds,omitempty"`
	// Told are the kernels' launches that CUPTI told of while there were records, and Missing those of them of which it made
	// none: they are counted as launched without a record. TellFailed are calls that it told of and the driver refused.
	Told       uint64 `json:"traced_told"`
	Missing    uint64 `json:"records_missing,omitempty"`
	TellFailed uint64 `json:"calls_failed,omitempty"`
	Refused    string `json:"refused,omitempty"`
	// Untraced are launches by operation that were counted and not recorded.
	Untraced map[string]uint64 `json:"untraced,omitempty"`
	// Kernels are estimates by name, the longest first, and of all together: nil where all launches were traced.
	Kernels []EstimateRow `json:"estimates,omitempty"`
	All     *EstimateRow  `json:"estimate,omitempty"`
	// What counting could not say for certain: launches that the list of doubts had no room for, launches during captures,
	// launches without memory or name, strata that found no room, and records that came after theirs.
	Unlisted   uint64 `json:"unlisted,omitempty"`
	Captured   uint64 `json:"captured,omitempty"`
	Uncounted  uint64 `json:"uncounted,omitempty"`
	Unnamed    uint64 `json:"unnamed,omitempty"`
	StrataLost uint64 `json:"strata_lost,omitempty"`
	Late       uint64 `json:"records_late,omitempty"`
}

// EstimateRow says how often a kernel was launched and for how long it ran since the budget began to work,
// and how far that may be off with a confidence of 95 %. A bound of 0 is exact; a SecondsBound below 0 says
// that too little was traced to say anything.
type EstimateRow struct {
	Name          string  `json:"name,omitempty"`
	Launches      float64 `json:"launches"`
	LaunchesBound float64 `json:"launches_bound"`
	Seconds       float64 `json:"seconds"`
	SecondsBound  float64 `json:"seconds_bound"`
}

func estimateRow(name string, x budget.Estimate) EstimateRow {
	r := EstimateRow{Name: name, Launches: x.Launches, LaunchesBound: x.LaunchesBound, Seconds: x.Seconds, SecondsBound: x.SecondsBound}
	if math.IsInf(r.SecondsBound, 0) {
		r.SecondsBound = -1
	}
	return r
}

// overheadSummary is nil without a budget.
func (e *engine) overheadSummary() *OverheadSummary {
	u := e.untraced
	if u == nil {
		return nil
	}
	u.g.mu.Lock()
	status, refused, lost := u.g.status, u.g.refused, u.g.lost
	u.g.mu.Unlock()
	stats := u.g.src.CountStats()
	s := &OverheadSummary{
		Budget: e.cfg.OverheadBudget, Ratio: status.Overhead, Met: status.Met && refused == "", Excess: status.Excess, Floor: status.Floor,
		Traced: status.Duty(), Seconds: map[string]float64{}, LaunchCostNs: status.Costs.Trace * 1e9, Comparisons: status.Comparisons,
		Switches: stats.Switches, TracedSeconds: stats.Traced.Seconds(), Beside: stats.Beside, Failures: status.Failures, Refused: refused,
		Left: stats.Detached, LeftFailed: status.Stayed, UnseenSeconds: stats.Gap.Seconds(), TellFailed: stats.Failed, Missing: u.missing,
		Unlisted: stats.Unlisted, Captured: stats.Captured, Uncounted: stats.Lost, Unnamed: stats.Unnamed, StrataLost: lost, Late: u.late,
	}
	if s.Left > 0 {
		s.JoinSeconds = status.Join
	}
	for i := range u.rows {
		if operationOf(u.rows[i].Operation) == opKernel {
			s.Told += u.rows[i].Traced
		}
	}
	for state, d := range status.In {
		s.Seconds[budget.State(state).String()] = d.Seconds()
	}
	for op, n := range u.byOperation {
		if n > 0 {
			if s.Untraced == nil {
				s.Untraced = map[string]uint64{}
			}
			s.Untraced[operationNames[op]] = n
		}
	}
	if s.Traced < 1 {
		all := estimateRow("", u.estimator.Total())
		s.All = &all
		for name, x := range u.estimator.All() {
			s.Kernels = append(s.Kernels, estimateRow(e.totals.names.all[name].name.Full, x))
		}
		slices.SortFunc(s.Kernels, func(a, b EstimateRow) int {
			switch {
			case a.Seconds != b.Seconds && a.Seconds > b.Seconds, a.Seconds == b.Seconds && a.Name < b.Name:
				return -1
			default:
				return 1
			}
		})
		s.Kernels = s.Kernels[:min(len(s.Kernels), summaryKernels)]
	}
	return s
}

// overhead writes what a budget did.
func (w *metricWriter) overhead() {
	u := w.e.untraced
	if u == nil {
		return
	}
	u.g.mu.Lock()
	status := u.g.status
	u.g.mu.Unlock()
	w.gauge(semconv.MetricGpuflightOverheadBudget).SetDoubleValue(w.e.cfg.OverheadBudget)
	w.gauge(semconv.MetricGpuflightOverheadRatio).SetDoubleValue(status.Overhead)
	start := w.e.totals.start
	modes := w.sum(semconv.MetricGpuflightOverheadModeTime)
	for state, d := range status.In {
		modes.seconds(start, uint64(d)).PutStr(semconv.GpuflightOverheadMode, budget.State(state).String()) //nolint:gosec // Never negative.
	}
	launches := w.sum(semconv.MetricGpuflightLaunchesUntraced)
	for op, n := range u.byOperation {
		if n > 0 {
			launches.int(start, n).PutStr(semconv.CUDAOperation, operationNames[op])
		}
	}
}
