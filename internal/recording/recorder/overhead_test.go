// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/budget"
	"github.com/gpuflight/gpuflight/semconv"
)

// program is a source that launches two kernels as fast as it can, in the time of the test's bubble.
type program struct {
	*source
	log    bytes.Buffer // the governor's
	mu     sync.Mutex
	last   time.Time
	mode   cupti.Mode
	carry  float64
	number uint32 // of launches
	perOne [3]time.Duration
	// stays is what a launch takes longer once there were records, until CUPTI is left, which takes leaves and wants
	// the records of before; joins is for how long it stands still with the first records after that, of which still is left.
	stays, leaves, joins, still time.Duration
	// lags is how long it takes until records are off, traced for how long they were on.
	lags, traced time.Duration
	stale        bool
	refuse       error // of Detach
	deaf         bool  // no records are made of the first kernel, though its launches are told of
	unrecorded   uint64
	left         int
	attachment   uint32
	batches      []*records // of attachments before
	counts       []cupti.LaunchCount
	doubts       []cupti.Doubt
	doubtAt      []time.Time
	held         time.Duration // for so long the threads of doubtful launches are held up before the launch's end
	heads        []cupti.Head
	launched     [2]uint64
	recorded     [2]uint64
	lost         float64 // seconds
	paused       bool
	stopped      bool
}

var (
	gemm    = gpuevent.NewKernelName("gemm")
	addTo   = gpuevent.NewKernelName("add")
	lengths = [2]int64{8000, 2000} // of the kernels, in ns
)

func newProgram() *program {
	p := &program{
		source: &source{devices: oneDevice}, last: time.Now(),
		perOne: [3]time.Duration{cupti.ModeTrace: 10_700, cupti.ModeCount: 10_100, cupti.ModeBlind: 10_000},
	}
	for op := range cupti.CountKernel {
		p.counts = append(p.counts, cupti.LaunchCount{Operation: op})
	}
	p.counts = append(p.counts, cupti.LaunchCount{Operation: cupti.CountKernel, Name: gemm}, cupti.LaunchCount{Operation: cupti.CountKernel, Name: addTo})
	return p
}

// advance launches what fits into the time since the last call. The caller has the lock.
func (p *program) advance() {
	now := time.Now()
	dt := now.Sub(p.last)
	if p.stopped || dt <= 0 {
		return
	}
	still := min(p.still, dt)
	p.still -= still
	p.lost += still.Seconds()
	p.last, dt = p.last.Add(still), dt-still
	one := p.perOne[p.mode]
	if p.stale {
		one += p.stays
	}
	p.lost += dt.Seconds() * (1 - float64(p.perOne[cupti.ModeBlind])/float64(one))
	if p.mode == cupti.ModeTrace {
		p.traced += still + dt
	}
	p.carry += float64(dt) / float64(one)
	begin := p.last
	for n := 0; p.carry >= 1; n++ {
		p.carry--
		p.launch(begin.Add(time.Duration(n)*one), p.mode == cupti.ModeTrace, false)
	}
	p.last = now
}

// launch makes one launch, with a record or without.
func (p *program) launch(at time.Time, traced, doubtful bool) {
	p.number++
	k := 0
	if p.number%5 == 0 {
		k = 1
	}
	p.launched[k]++
	row := &p.counts[int(cupti.CountKernel)+k]
	switch {
	case doubtful:
		row.Doubtful++
		p.doubtAt = append(p.doubtAt, at)
		p.doubts = append(p.doubts, cupti.Doubt{Attachment: p.attachment, Correlation: p.number, What: uint32(int(cupti.CountKernel) + k)}) //nolint:gosec // Small.
	case p.mode == cupti.ModeBlind:
	case traced:
		row.Traced++
	default:
		row.Counted++
	}
	if traced && p.deaf && k == 0 {
		if !doubtful {
			p.unrecorded++
		}
		return
	}
	if traced {
		p.recorded[k]++
		start := at.UnixNano()
		p.heads = append(p.heads, cupti.Head{
			Kind: cupti.KindKernel, Correlation: p.number, Start: start, End: start + lengths[k],
			Name: []*gpuevent.KernelName{gemm, addTo}[k],
		})
	}
}

func (p *program) SetMode(m cupti.Mode) error {
	if m != cupti.ModeTrace && p.Mode() == cupti.ModeTrace {
		time.Sleep(p.lags)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.advance()
	switch {
	case p.stopped:
		return cupti.ErrNotRunning
	case p.paused:
		return cupti.ErrPaused
	case (m == cupti.ModeTrace) != (p.mode == cupti.ModeTrace):
		p.launch(time.Now(), p.number%2 == 0, true)
	}
	p.mode = m
	if m == cupti.ModeTrace && !p.stale && p.left > 0 {
		p.still = p.joins
	}
	p.stale = p.stale || m == cupti.ModeTrace
	return nil
}

func (p *program) Mode() cupti.Mode {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode
}

func (p *program) Detach(m cupti.Mode, _ time.Duration) (time.Duration, error) {
	p.mu.Lock()
	p.advance()
	var err error
	switch {
	case p.stopped:
		err = cupti.ErrNotRunning
	case p.refuse != nil:
		err = p.refuse
	case p.paused || p.mode == cupti.ModeTrace:
		err = cupti.ErrBusy
	}
	if err != nil {
		p.mu.Unlock()
		return 0, err
	}
	p.mode, p.stale = cupti.ModeBlind, false
	p.left++
	p.mu.Unlock()
	time.Sleep(p.leaves) // the program goes on, and nobody looks
	p.mu.Lock()
	defer p.mu.Unlock()
	p.advance()
	p.mode = m
	p.batches = append(p.batches, &records{heads: p.heads, attachment: p.attachment})
	p.heads = nil
	p.attachment++
	p.number = 0 // correlation ids begin anew
	return p.leaves, nil
}

func (p *program) LaunchCounts(dst []cupti.LaunchCount) []cupti.LaunchCount {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.advance()
	return append(dst, p.counts...)
}

func (p *program) Doubts(dst []cupti.Doubt) []cupti.Doubt {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for n < len(p.doubts) && (p.stopped || time.Since(p.doubtAt[n]) >= p.held) {
		n++
	}
	dst = append(dst, p.doubts[:n]...)
	p.doubts, p.doubtAt = p.doubts[n:], p.doubtAt[n:]
	return dst
}

func (p *program) CountStats() cupti.CountStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.advance()
	return cupti.CountStats{Detached: uint64(p.left), Gap: time.Duration(p.left) * p.leaves, Traced: p.traced} //nolint:gosec // Small.
}

func (p *program) Take(wait time.Duration) (Records, error) {
	time.Sleep(wait)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.advance()
	if len(p.batches) > 0 {
		b := p.batches[0]
		p.batches = p.batches[1:]
		return b, nil
	}
	if len(p.heads) > 0 {
		b := &records{heads: p.heads, attachment: p.attachment}
		p.heads = nil
		return b, nil
	}
	if p.stopped {
		return nil, io.EOF
	}
	return nil, nil
}

func (p *program) Flush() error { return nil }
func (p *program) Pending() int { return 0 }

func (p *program) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.advance()
	p.stopped = true
}

// record runs a program under a budget for some time. The recorder's own processor time is real while all other times are not,
// so it is shared by very many processors.
func record(t *testing.T, p *program, share float64, d time.Duration) (Summary, *sink) {
	t.Helper()
	out := &sink{}
	r, err := New(Config{InstanceID: testInstance, ServiceName: "app", MaxSpansPerSecond: -1, OverheadBudget: share, OverheadLeave: true}, p, out)
	require.NoError(t, err)
	prior := budget.Costs{Count: 220e-9, Trace: 400e-9, Residual: 270e-9} // what h200 takes, at any rate of launches
	r.engine.untraced.g.ctl, err = budget.NewController(budget.Config{Budget: share, CanLeave: true, Prior: prior, Processors: 1 << 20, Seed: 1})
	require.NoError(t, err)
	r.engine.untraced.g.log = slog.New(slog.NewTextHandler(&p.log, nil))
	r.Start()
	time.Sleep(d)
	p.end()
	s := r.Stop(context.Background())
	require.Empty(t, s.Failure)
	return s, out
}

func TestOverheadBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := h200(10 * time.Microsecond)
		s, out := record(t, p, 0.08, 40*time.Second)

		o := s.Overhead
		require.NotNil(t, o)
		assert.InDelta(t, 0.08, o.Budget, 0)
		assert.LessOrEqual(t, p.lost/40, 0.08)
		assert.Greater(t, o.Traced, 0.01)
		assert.Less(t, o.Traced, 0.9)
		assert.InDelta(t, 40, o.Seconds["trace"]+o.Seconds["count"]+o.Seconds["blind"], 1.5)
		assert.Zero(t, o.Failures+o.Late+o.StrataLost)

		// Every launch is in a record or a count, and in no more than one.
		points := out.points(semconv.MetricGPUCUDAKernelLaunchCalls)
		assert.InDelta(t, p.launched[0], points["gemm|"], 0, points)
		assert.InDelta(t, p.launched[1], points["add|"], 0)
		assert.Len(t, points, 2)
		assert.Equal(t, p.recorded[0]+p.recorded[1], s.KernelCount)
		untraced := p.launched[0] + p.launched[1] - s.KernelCount
		assert.Equal(t, map[string]uint64{"kernel": untraced}, o.Untraced)
		assert.Equal(t, untraced, out.total(semconv.MetricGpuflightLaunchesUntraced))

		// What the kernels took is estimated from the slices, within its bound.
		require.Len(t, o.Kernels, 2)
		for i, row := range o.Kernels {
			assert.Equal(t, []string{"gemm", "add"}[i], row.Name)
			assert.Zero(t, row.LaunchesBound)
			assert.GreaterOrEqual(t, row.SecondsBound, 0.0)
			// The last step may have ended before the program did.
			assert.InEpsilon(t, p.launched[i], row.Launches, 0.02)
			assert.InDelta(t, row.Launches*float64(lengths[i])/1e9, row.Seconds, row.SecondsBound+1e-6)
		}
		require.NotNil(t, o.All)

		log := out.logs[len(out.logs)-1].Attributes().AsRaw()
		assert.InDelta(t, 0.08, log[semconv.CUDACaptureOverheadBudget], 0)
		assert.InDelta(t, o.Traced, log[semconv.CUDACaptureTracedRatio], 0)
		assert.Equal(t, int64(untraced), log[semconv.CUDACaptureLaunchesUntraced]) //nolint:gosec // Small.
		assert.Contains(t, out.logs[len(out.logs)-1].Body().Str(), "launches counted without a record")
		assert.InDelta(t, o.Ratio, onlyPoint(t, out, semconv.MetricGpuflightOverheadRatio), 0)
		assert.InDelta(t, 0.08, onlyPoint(t, out, semconv.MetricGpuflightOverheadBudget), 0)
		modes := map[string]float64{}
		for _, x := range out.metrics[len(out.metrics)-1].ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
			if x.Name() == semconv.MetricGpuflightOverheadModeTime {
				for _, p := range x.Sum().DataPoints().All() {
					modes[attr(p.Attributes(), semconv.GpuflightOverheadMode)] = p.DoubleValue()
				}
			}
		}
		assert.InDeltaMapValues(t, o.Seconds, modes, 1e-6)
	})
}

// onlyPoint is the value of a gauge.
func onlyPoint(t *testing.T, s *sink, name string) float64 {
	t.Helper()
	for _, x := range s.metrics[len(s.metrics)-1].ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		if x.Name() == name {
			return x.Gauge().DataPoints().At(0).DoubleValue()
		}
	}
	t.Errorf("no metric %s", name)
	return 0
}

// A program that counting alone would slow down too much is only looked at now and then: then counts are
// estimates with a bound.
func TestOverheadBudgetWithoutCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgram()
		s, _ := record(t, p, 0.01, time.Minute)
		o := s.Overhead
		require.NotNil(t, o)
		assert.LessOrEqual(t, p.lost/60, 0.0125) // of it the first second, when nothing is known
		assert.Greater(t, o.Seconds["blind"], 20.0)
		require.NotNil(t, o.All)
		assert.Positive(t, o.All.LaunchesBound)
		assert.InDelta(t, p.launched[0]+p.launched[1], o.All.Launches, o.All.LaunchesBound)
		assert.Less(t, s.KernelCount+o.Untraced["kernel"], p.launched[0]+p.launched[1])
	})
}

// h200 is a program on a GPU where what a launch costs stays behind records until CUPTI is left.
func h200(bare time.Duration) *program {
	p := newProgram()
	p.perOne = [3]time.Duration{cupti.ModeTrace: bare + 620, cupti.ModeCount: bare + 220, cupti.ModeBlind: bare}
	p.stays, p.leaves, p.joins = 270, 12*time.Millisecond, 35*time.Millisecond
	return p
}

// within says whether the estimates of a program are.
func (p *program) within(t *testing.T, o *OverheadSummary) {
	t.Helper()
	require.Len(t, o.Kernels, 2)
	for i, row := range o.Kernels {
		assert.Equal(t, []string{"gemm", "add"}[i], row.Name)
		assert.InDelta(t, p.launched[i], row.Launches, row.LaunchesBound+1)
		assert.InDelta(t, row.Launches*float64(lengths[i])/1e9, row.Seconds, row.SecondsBound+1e-6)
	}
	assert.InDelta(t, p.launched[0]+p.launched[1], o.All.Launches, o.All.LaunchesBound+1)
}

// says compares what was lost with what the recorder says of it.
func (p *program) says(t *testing.T, s *Summary, seconds float64) {
	t.Helper()
	t.Logf("lost %.4f, says %.4f", p.lost/seconds, s.Overhead.Ratio)
	assert.InEpsilon(t, p.lost/seconds, s.Overhead.Ratio, 0.2)
}

func TestOverheadBudgetLeavesCUPTI(t *testing.T) {
	for _, test := range []struct {
		name  string
		bare  time.Duration
		share float64
		left  bool
		blind bool
		bound float64 // of launches
		lags  time.Duration
	}{
		{"few launches", 50 * time.Microsecond, 0.02, false, false, 0, 0},
		{"counted after CUPTI was left", 25 * time.Microsecond, 0.02, true, false, 0.03, 0},
		{"bound by launches", 10 * time.Microsecond, 0.02, true, true, 1, 0}, // few slices: coming back to CUPTI is dear
		{"five per cent", 15 * time.Microsecond, 0.05, false, false, 0, 0},
		{"five per cent of nothing but launches", 5 * time.Microsecond, 0.05, true, true, 1, 0},
		{"records are switched off late", 5 * time.Microsecond, 0.05, true, true, 1, 15 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := h200(test.bare)
				p.lags = test.lags
				s, out := record(t, p, test.share, time.Minute)
				o := s.Overhead
				require.NotNil(t, o)
				t.Logf("lost %.4f, left %d times, blind %.1f s, traced %.3f, %.0f ± %.0f of %d launches",
					p.lost/60, o.Left, o.Seconds["blind"], o.Traced, o.All.Launches, o.All.LaunchesBound, p.launched[0]+p.launched[1])
				assert.LessOrEqual(t, p.lost/60, test.share)
				assert.True(t, o.Met, "%+v", o)
				assert.Greater(t, o.Traced, 0.002)
				assert.Equal(t, test.blind, o.Seconds["blind"] > 0)
				assert.Zero(t, o.Failures+o.LeftFailed+o.Late+o.StrataLost)
				assert.Equal(t, test.left, o.Left > 0)
				assert.InDelta(t, float64(p.left)*p.leaves.Seconds(), o.UnseenSeconds, 1e-9)
				if test.left {
					assert.InDelta(t, p.joins.Seconds(), o.JoinSeconds, 0.005)
				} else {
					assert.Zero(t, o.JoinSeconds)
				}
				assert.LessOrEqual(t, o.All.LaunchesBound, test.bound*o.All.Launches)
				p.within(t, o)
				off := 0.001
				if test.blind {
					off = 0.06 // far better than the bound says
				}
				assert.InEpsilon(t, p.launched[0]+p.launched[1], o.All.Launches, off)
				// Nothing is in two places, and where all is counted only what was launched while CUPTI was being left is in
				// none.
				points := out.points(semconv.MetricGPUCUDAKernelLaunchCalls)
				for i, name := range []string{"gemm|", "add|"} {
					assert.LessOrEqual(t, points[name], float64(p.launched[i]))
					if !test.blind {
						unseen := 1.1 * float64(p.left) * p.leaves.Seconds() / 60
						assert.GreaterOrEqual(t, points[name], float64(p.launched[i])*(1-unseen))
					}
				}
			})
		})
	}
}

// A thread that CUPTI tells of and makes no records of, as it may happen when activity is switched on again: what it launches is
// counted all the same, and in time.
func TestOverheadBudgetWithoutRecordsOfAThread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := h200(20 * time.Microsecond)
		set := func(deaf bool) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.advance()
			p.deaf = deaf
		}
		go func() {
			time.Sleep(10 * time.Second)
			set(true)
			time.Sleep(15 * time.Second)
			set(false)
		}()
		s, out := record(t, p, 0.08, time.Minute)
		assert.Positive(t, p.unrecorded)
		assert.Equal(t, p.unrecorded, s.Overhead.Missing)
		points := out.points(semconv.MetricGPUCUDAKernelLaunchCalls)
		assert.InDelta(t, p.launched[0], points["gemm|"], 0)
		assert.InDelta(t, p.launched[1], points["add|"], 0)
		assert.Equal(t, p.recorded[0]+p.recorded[1], s.KernelCount)
		assert.Equal(t, p.launched[0]+p.launched[1]-s.KernelCount, s.Overhead.Untraced["kernel"])
		// They were not only counted when it was over.
		before := &sink{metrics: out.metrics[:len(out.metrics)-1]}
		assert.Greater(t, before.points(semconv.MetricGPUCUDAKernelLaunchCalls)["gemm|"], 0.7*float64(p.launched[0]))
	})
}

// A thread that is held up in a launch: its record is read before anybody knows that it met a switch.
func TestOverheadBudgetWithRecordsBeforeTheirDoubts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := h200(20 * time.Microsecond)
		p.held = 300 * time.Millisecond
		p.leaves = 0
		p.refuse = cupti.ErrCannotDetach
		s, out := record(t, p, 0.08, time.Minute)
		require.Greater(t, s.Overhead.Switches+p.counts[cupti.CountKernel].Doubtful, uint64(10))
		points := out.points(semconv.MetricGPUCUDAKernelLaunchCalls)
		assert.InDelta(t, p.launched[0], points["gemm|"], 0)
		assert.InDelta(t, p.launched[1], points["add|"], 0)
		assert.Zero(t, s.Overhead.Missing)
		assert.Zero(t, p.unrecorded)
	})
}

func TestOverheadBudgetWhereCUPTICannotBeLeft(t *testing.T) {
	for _, test := range []struct {
		why         error
		least, most uint64
		log         int // lines
	}{{cupti.ErrCannotDetach, 1, 1, 1}, {cupti.ErrUnderWay, 8, 16, 0}} {
		t.Run(test.why.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := h200(10 * time.Microsecond)
				p.refuse = test.why
				s, _ := record(t, p, 0.02, time.Minute)
				o := s.Overhead
				assert.Zero(t, o.Left)
				assert.GreaterOrEqual(t, o.LeftFailed, test.least)
				assert.LessOrEqual(t, o.LeftFailed, test.most)
				assert.False(t, o.Met) // what stays is more than the budget
				assert.Equal(t, test.log, bytes.Count(p.log.Bytes(), []byte("level=WARN")), "%s", &p.log)
				p.says(t, &s, 60)
				p.within(t, o)
			})
		})
	}
}

// A window has records made and lets nobody change that for ten seconds.
func TestOverheadBudgetBesideAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := h200(10 * time.Microsecond)
		p.refuse = cupti.ErrCannotDetach // as where windows were asked for
		go func() {
			time.Sleep(20 * time.Second)
			_ = p.SetMode(cupti.ModeTrace)
			p.mu.Lock()
			p.paused = true
			p.mu.Unlock()
			time.Sleep(10 * time.Second)
			p.mu.Lock()
			p.paused = false
			p.mu.Unlock()
		}()
		s, _ := record(t, p, 0.02, time.Minute)
		o := s.Overhead
		assert.Greater(t, o.Seconds["trace"], 9.0)
		assert.Positive(t, o.Failures)
		assert.False(t, o.Met)
		p.says(t, &s, 60)
		p.within(t, o)
	})
}

func TestOverheadBudgetWhilePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgram()
		p.paused = true // by a window, from the beginning
		go func() {
			time.Sleep(10500 * time.Millisecond)
			p.mu.Lock()
			p.paused = false
			p.mu.Unlock()
		}()
		s, _ := record(t, p, 0.04, 30*time.Second)
		require.NotNil(t, s.Overhead)
		assert.Empty(t, s.Overhead.Refused)
		assert.InDelta(t, 19, s.Overhead.Seconds["trace"]+s.Overhead.Seconds["count"]+s.Overhead.Seconds["blind"], 1.5)

		p = newProgram()
		p.paused = true
		s, _ = record(t, p, 0.04, 5*time.Second)
		assert.Contains(t, s.Overhead.Refused, "paused")
		assert.False(t, s.Overhead.Met)
	})
}

func TestBadOverheadBudgets(t *testing.T) {
	_, err := New(Config{OverheadBudget: 0.02}, &source{}, &sink{})
	assert.ErrorContains(t, err, "switched off")
	for _, share := range []float64{-1, 1.5} {
		_, err := New(Config{OverheadBudget: share}, newProgram(), &sink{})
		assert.ErrorContains(t, err, "share of the time")
	}
	for text, want := range map[string]float64{"": 0, "2%": 0.02, "0.5": 0.5} {
		s, err := SettingsFromEnv(func(name string) string {
			if name == "GPUFLIGHT_OVERHEAD_BUDGET" {
				return text
			}
			return ""
		})
		require.NoError(t, err)
		assert.InDelta(t, want, s.OverheadBudget, 1e-15)
		c := s.Config()
		assert.InDelta(t, want, c.OverheadBudget, 1e-15)
	}
	_, err = SettingsFromEnv(func(name string) string {
		if name == "GPUFLIGHT_OVERHEAD_BUDGET" {
			return "much"
		}
		return ""
	})
	assert.ErrorContains(t, err, "GPUFLIGHT_OVERHEAD_BUDGET")
}

var errSwitch = errors.New("no")

// broken is a program whose records cannot be switched.
type broken struct{ *program }

func (broken) SetMode(cupti.Mode) error { return errSwitch }

func TestOverheadBudgetThatCannotWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgram()
		out := &sink{}
		r, err := New(Config{InstanceID: testInstance, ServiceName: "app", MaxSpansPerSecond: -1, OverheadBudget: 0.01}, broken{p}, out)
		require.NoError(t, err)
		r.Start()
		time.Sleep(5 * time.Second)
		p.end()
		s := r.Stop(context.Background())
		assert.Equal(t, p.launched[0]+p.launched[1], s.KernelCount)
		assert.Equal(t, "no", s.Overhead.Refused)
		assert.False(t, s.Overhead.Met)
	})
}
