// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/cubin"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const imageCRC = 7

// source is a collector whose windows yield what the test says.
type source struct {
	mu       sync.Mutex
	image    []byte
	opened   []cupti.DeepConfig
	refuse   error // of OpenDeep
	result   *cupti.DeepResult
	drain    error
	paused   int
	resumed  int
	pauseErr error
	// resumeErrs are what Resume answers first; resumedAt, if set, is told how often it was called.
	resumeErrs []error
	resumedAt  chan int
	// contexts, if set, answers HasContext.
	contexts func() bool
	// hold, if set, keeps CubinImage waiting until it is closed.
	hold chan struct{}
}

func (s *source) OpenDeep(cfg cupti.DeepConfig) (Opened, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened = append(s.opened, cfg)
	if s.refuse != nil {
		return nil, s.refuse
	}
	return s, nil
}

func (s *source) Drain() error { return s.drain }

func (s *source) Close() (*cupti.DeepResult, error) { return s.result, nil }

func (s *source) Pause() error {
	s.paused++
	return s.pauseErr
}

func (s *source) Resume() error {
	s.resumed++
	if s.resumedAt != nil {
		s.resumedAt <- s.resumed
	}
	if len(s.resumeErrs) == 0 {
		return nil
	}
	err := s.resumeErrs[0]
	s.resumeErrs = s.resumeErrs[1:]
	return err
}

func (s *source) HasContext() bool { return s.contexts == nil || s.contexts() }

func (s *source) CubinImage(crc uint64) []byte {
	if s.hold != nil {
		<-s.hold
	}
	if crc != imageCRC {
		return nil
	}
	return s.image
}

// sink keeps windows.
type sink struct {
	mu      sync.Mutex
	opened  []uint64
	closed  []uint64
	windows []*recorder.Window
	texts   []recorder.WindowTexts
	missing uint64
	full    int // how many are refused first
	arrived chan struct{}
}

func (k *sink) AddListings(t recorder.WindowTexts) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.full > 0 {
		k.full--
		return false
	}
	k.texts = append(k.texts, t)
	k.arrived <- struct{}{}
	return true
}

func (k *sink) CountMissingListings(functions uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.missing += functions
}

func newSink() *sink { return &sink{arrived: make(chan struct{}, 4*maxWaiting)} }

func (k *sink) WindowOpened(w deep.Window, _ bool) { k.opened = append(k.opened, w.ID) }
func (k *sink) WindowClosed(w deep.Window)         { k.closed = append(k.closed, w.ID) }

func (k *sink) AddWindow(w *recorder.Window) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.full > 0 {
		k.full--
		return false
	}
	k.windows = append(k.windows, w)
	k.arrived <- struct{}{}
	return true
}

func (k *sink) wait(t *testing.T, n int) []*recorder.Window {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		k.mu.Lock()
		if len(k.windows) >= n {
			defer k.mu.Unlock()
			return k.windows
		}
		k.mu.Unlock()
		select {
		case <-k.arrived:
		case <-limit:
			t.Fatalf("%d windows have not come", n)
		}
	}
}

// golden is a real image: lines.cu of package cubin, compiled for compute capability 9.0.
func golden(t testing.TB) []byte {
	t.Helper()
	image, err := os.ReadFile(filepath.Join("..", "..", "cubin", "testdata", "lines.sm_90.cubin"))
	require.NoError(t, err)
	return image
}

// marked is the number of the line of lines.cu that ends in "// line: NAME".
func marked(t *testing.T, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "cubin", "testdata", "lines.cu"))
	require.NoError(t, err)
	for i, line := range strings.Split(string(text), "\n") {
		if strings.HasSuffix(line, "// line: "+name) {
			return int64(i + 1)
		}
	}
	t.Fatalf("no line is marked %q", name)
	return 0
}

// storeOf is the offset of an instruction of plain that is made of the marked line.
func storeOf(t *testing.T, image []byte) uint64 {
	t.Helper()
	f, err := cubin.Open(image)
	require.NoError(t, err)
	fn, ok := f.Lookup("plain")
	require.True(t, ok)
	for pc := uint64(0); pc < fn.Size; pc += cubin.InstructionBytes {
		frames, reason := f.Locate("plain", pc, nil)
		if reason == cubin.Resolved && int64(frames[0].Line) == marked(t, "plain") {
			return pc
		}
	}
	t.Fatal("no instruction is of that line")
	return 0
}

const (
	longScoreboard = "smsp__pcsamp_warps_issue_stalled_long_scoreboard"
	barrier        = "smsp__pcsamp_warps_issue_stalled_barrier"
)

func samples(store uint64) *cupti.DeepResult {
	return &cupti.DeepResult{
		Engine: cupti.EnginePCSampling, Start: time.Unix(100, 0), End: time.Unix(102, 0), PeriodLog2: 12,
		Functions: []string{"plain", "_Z7unknownv"}, Names: []string{longScoreboard, barrier}, Missing: []string{"never"},
		Rows: []cupti.DeepRow{
			{CRC: imageCRC, Function: 0, PC: store, What: 0, Value: 700},
			{CRC: imageCRC, Function: 0, PC: store, What: 1, Value: 30},
			{CRC: 99, Function: 1, PC: 64, What: 1, Value: 5, Device: 1, Correlation: 12},
		},
		Totals: cupti.DeepTotals{Samples: 740, DroppedSamples: 3, NonUserSamples: 2, HardwareFull: 1, NotIdle: 1, SkippedContexts: 2, LostContexts: 3,
			LostRows: 6, BlockedCalls: 8, BarrierTimeouts: 7, LongestBlock: time.Millisecond},
	}
}

// run opens and closes a window of an engine the way a controller does.
func run(t *testing.T, e *Engines, id uint64, engine deep.Engine) deep.Window {
	t.Helper()
	w := deep.Window{ID: id, Engine: engine, Start: time.Unix(100, 0), End: time.Unix(102, 0), Outcome: deep.Outcome{Status: deep.StatusCollected}}
	e.Opened(w)
	s, err := e.Arm(engine, id)
	require.NoError(t, err)
	require.NoError(t, s.Drain())
	w.Collected, err = s.Disarm()
	require.NoError(t, err)
	e.Closed(w)
	return w
}

func stop(t *testing.T, e *Engines) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, e.Stop(ctx))
}

func TestRowsHaveTheirFunctionAndLine(t *testing.T) {
	t.Setenv(cubin.DisassemblerEnv, filepath.Join(t.TempDir(), "none"))
	image := golden(t)
	store := storeOf(t, image)
	src, k := &source{image: image, result: samples(store)}, newSink()
	k.full = 2 // it is offered again
	e := New(Settings{Serialize: true, PeriodLog2: 12}, src, k, nil)
	e.Start()
	w := run(t, e, 1, deep.PC)
	out := k.wait(t, 1)[0]
	stop(t, e)

	assert.Equal(t, deep.Collected{Rows: 3, Samples: 740, Functions: 2, Lost: 5}, w.Collected)
	assert.Equal(t, []uint64{1}, k.opened)
	assert.Equal(t, []uint64{1}, k.closed)
	assert.Equal(t, 12, src.opened[0].PeriodLog2)
	assert.True(t, src.opened[0].Serialize)
	require.Len(t, out.Samples, 3)
	assert.Empty(t, out.Counters)
	first := out.Samples[0]
	assert.Equal(t, "plain", first.Function.Full)
	assert.Equal(t, longScoreboard, first.Reason)
	assert.Equal(t, int64(700), first.Count)
	assert.Equal(t, "lines.cu", filepath.Base(first.File))
	assert.Equal(t, gpuevent.Some(marked(t, "plain")), first.Line)
	assert.Equal(t, gpuevent.Some(int64(store)), first.PCOffset)
	assert.Equal(t, gpuevent.Some(0), first.Device)
	assert.Equal(t, time.Unix(102, 0).UnixNano(), first.TimeNs)
	assert.False(t, first.Correlation.OK)
	assert.Equal(t, barrier, out.Samples[1].Reason)
	last := out.Samples[2]
	assert.Equal(t, "unknown()", last.Function.Full, "a function of an image that nobody has")
	assert.Equal(t, gpuevent.Int{}, last.Line)
	assert.Equal(t, gpuevent.Some(1), last.Device)
	assert.Equal(t, gpuevent.Some(12), last.Correlation)
	assert.Equal(t, uint64(1), out.Unresolved)
	assert.Equal(t, []string{"never"}, out.Missing)
	assert.Equal(t, "; work that was, or may have been, under way as counting began or ended is not counted whole; 2 CUDA contexts were not looked at; "+
		"3 CUDA contexts ended before all they had was read", out.Outcome.Text)
	assert.EqualValues(t, 4096, out.Period)
	assert.Equal(t, [4]uint64{3, 2, 1, 0}, [4]uint64{out.Dropped, out.NonUser, out.HardwareFull, out.Other})
	assert.Equal(t, [6]uint64{3, 6, 2, 3, 8, 7}, [6]uint64{out.WithoutListing, out.LostRows, out.SkippedContexts, out.LostContexts, out.Held, out.Released})
	assert.Equal(t, time.Millisecond, out.LongestHold)
}

// Whatever the bound leaves out is in the sums, by function, reason and device; and where those are
// too many, without the function.
func TestSmallRowsAreSummed(t *testing.T) {
	t.Setenv(cubin.DisassemblerEnv, filepath.Join(t.TempDir(), "none"))
	for _, tc := range []struct {
		functions, most      int
		rows, sums, nameless int
		summed               uint64
	}{
		{1, 100, 94, 6, 0, 906},    // two metrics on three devices
		{2, 100, 88, 12, 0, 912},   // room for all sums
		{100, 100, 75, 25, 6, 925}, // not for all
		{1000, 1000, 1000, 0, 0, 0},
		{1, 4, 3, 0, 6, 997},       // hardly any room
		{1, 1, 1, 0, 6, 999},       // none
		{500, 999, 922, 70, 0, 78}, // a row that is alone stays
	} {
		t.Run(fmt.Sprint(tc.functions, " ", tc.most), func(t *testing.T) {
			src, k := &source{}, newSink()
			r := &cupti.DeepResult{Engine: cupti.EngineSASS, Names: []string{"inst", "sectors"}}
			for i := range tc.functions {
				r.Functions = append(r.Functions, fmt.Sprint("f", i))
			}
			total, whole := map[string]uint64{}, map[uint32]uint64{}
			for i := range uint64(1000) {
				row := cupti.DeepRow{PC: i * 16, What: uint32(i % 2), Value: 1 + i*i%977, Device: int32(i % 3), Function: uint32(i/7) % uint32(tc.functions)}
				total[r.Names[row.What]+strconv.Itoa(int(row.Device))] += row.Value
				whole[row.What] += row.Value
				r.Rows = append(r.Rows, row)
			}
			src.result = r
			e := New(Settings{MaxRows: tc.most, Metrics: []string{"inst", "sectors"}}, src, k, nil)
			e.Start()
			run(t, e, 1, deep.SASS)
			out := k.wait(t, 1)[0]
			stop(t, e)

			assert.Equal(t, []string{"inst", "sectors"}, src.opened[0].Metrics)
			assert.Equal(t, tc.summed, out.Other)
			got := map[string]uint64{}
			rows, sums, nameless := 0, 0, 0
			own := map[string]bool{}
			for _, c := range out.Counters {
				got[c.Metric+strconv.FormatInt(c.Device.V, 10)] += c.Value
				switch {
				case c.Function.Full == otherName:
					nameless++
					assert.False(t, c.PCOffset.OK)
				case !c.PCOffset.OK:
					sums++
					assert.Empty(t, c.File)
				default:
					rows++
					own[fmt.Sprint(c.PCOffset.V, c.Metric, c.Device.V)] = true
				}
			}
			weight := func(x *cupti.DeepRow) float64 { return float64(x.Value) / float64(whole[x.What]) }
			slices.SortFunc(r.Rows, func(a, b cupti.DeepRow) int { return cmp.Compare(weight(&b), weight(&a)) })
			kept := tc.most - tc.most/sumsShare
			for i := range r.Rows[:kept] {
				if x := &r.Rows[i]; weight(x) > weight(&r.Rows[kept]) {
					assert.True(t, own[fmt.Sprint(x.PC, r.Names[x.What], x.Device)], "the largest have a record of their own")
				}
			}
			assert.Equal(t, total, got)
			assert.Equal(t, [3]int{tc.rows, tc.sums, tc.nameless}, [3]int{rows, sums, nameless})
		})
	}
}

// What metrics say of an instruction comes together, or not at all: threads are 32 times the warps,
// and would have all the rows.
func TestMetricsOfAnInstructionStayTogether(t *testing.T) {
	t.Setenv(cubin.DisassemblerEnv, filepath.Join(t.TempDir(), "none"))
	r := &cupti.DeepResult{Engine: cupti.EngineSASS, Functions: []string{"f"}, Names: []string{"warps", "threads", "sectors"}}
	for i := range uint64(400) {
		warps := 1000 + i*7919%997
		r.Rows = append(r.Rows, cupti.DeepRow{PC: 16 * i, What: 0, Value: warps}, cupti.DeepRow{PC: 16 * i, What: 1, Value: 32 * warps})
		if i%10 == 0 { // memory
			r.Rows = append(r.Rows, cupti.DeepRow{PC: 16 * i, What: 2, Value: 4 * warps})
		}
	}
	src, k := &source{result: r}, newSink()
	e := New(Settings{MaxRows: 200}, src, k, nil)
	e.Start()
	run(t, e, 1, deep.SASS)
	out := k.wait(t, 1)[0]
	stop(t, e)
	metrics, sums := map[int64][]string{}, map[string]uint64{}
	for _, c := range out.Counters {
		if c.PCOffset.OK {
			metrics[c.PCOffset.V] = append(metrics[c.PCOffset.V], c.Metric)
		} else {
			assert.Equal(t, "f", c.Function.Full)
		}
		sums[c.Metric] += c.Value
	}
	torn := 0
	for pc, have := range metrics {
		if want := 2 + map[bool]int{true: 1}[pc/16%10 == 0]; len(have) != want {
			torn++
		}
	}
	assert.Zero(t, torn)
	assert.Greater(t, len(metrics), 70)
	assert.InDelta(t, 199, len(out.Counters), 1)
	assert.Equal(t, sums["warps"]*32, sums["threads"], "nothing is lost")
	for pc := range int64(40) {
		assert.Len(t, metrics[160*pc], 3, "few load, so each has a large share of the sectors")
	}
}

func TestWindowOfBothEnginesIsOne(t *testing.T) {
	t.Setenv(cubin.DisassemblerEnv, filepath.Join(t.TempDir(), "none"))
	image := golden(t)
	src, k := &source{image: image}, newSink()
	e := New(Settings{}, src, k, nil)
	e.Start()
	c, err := deep.New(deep.Config{Blackout: -1, CoolDown: -1, Opened: e.Opened, Closed: e.Closed}, both{e, src, storeOf(t, image)})
	require.NoError(t, err)
	c.Start()
	ticket, err := c.RequestWindow(deep.Request{Engine: deep.Both, For: 20 * time.Millisecond, Cause: deep.CauseCall})
	require.NoError(t, err)
	<-ticket.Done()
	out := k.wait(t, 1)[0]
	require.NoError(t, c.Stop(t.Context()))
	stop(t, e)
	assert.Equal(t, deep.StatusCollected, out.Outcome.Status, out.Outcome.Text)
	assert.Len(t, out.Samples, 3)
	assert.Len(t, out.Counters, 1)
	assert.Equal(t, uint64(4), out.Collected.Rows)
	assert.Equal(t, 1, src.paused)
	assert.Equal(t, 1, src.resumed)
	assert.Equal(t, []bool{false, true}, []bool{out.Parts[0].Paused, out.Parts[1].Paused})
}

// both has each engine yield something of its own.
type both struct {
	*Engines
	src   *source
	store uint64
}

func (b both) Arm(e deep.Engine, window uint64) (deep.Session, error) {
	b.src.result = samples(b.store)
	if e == deep.SASS {
		b.src.result = &cupti.DeepResult{Engine: cupti.EngineSASS, Functions: []string{"plain"}, Names: []string{"inst"}, Rows: []cupti.DeepRow{{CRC: imageCRC, Value: 4}}}
	}
	return b.Engines.Arm(e, window)
}

func TestReasonsBecomeStatuses(t *testing.T) {
	for reason, want := range map[cupti.Reason]deep.Status{
		cupti.ReasonNotSupported:  deep.StatusUnsupported,
		cupti.ReasonNoContext:     deep.StatusNoContext,
		cupti.ReasonCapture:       deep.StatusCapturing,
		cupti.ReasonOtherProfiler: deep.StatusAnotherProfiler,
		cupti.ReasonTaken:         deep.StatusAnotherProfiler,
		cupti.ReasonPermission:    deep.StatusNoPermission,
		cupti.ReasonStuck:         deep.StatusBroken,
		cupti.ReasonUnresponsive:  deep.StatusBroken,
		cupti.ReasonExit:          deep.StatusAtExit,
		cupti.ReasonNotQuiesced:   deep.StatusNotQuiesced,
		cupti.ReasonFailed:        deep.StatusFailed,
	} {
		src := &source{refuse: &cupti.Error{Status: cupti.Status{Reason: reason, Detail: "why not"}}}
		e := New(Settings{}, src, newSink(), nil)
		_, err := e.Arm(deep.SASS, 1)
		var refused *deep.Error
		require.ErrorAs(t, err, &refused)
		assert.Equal(t, want, refused.Outcome.Status)
		if want == deep.StatusFailed {
			assert.Equal(t, "the engine failed (why not)", refused.Outcome.Text)
		} else {
			assert.Equal(t, "why not", refused.Outcome.Text, "one sentence, not two")
		}
		// Where CUPTI has not come back, activity beside what may be armed could lock the driver
		// up.
		want := 1
		if reason == cupti.ReasonStuck {
			want = 0
		}
		assert.Equal(t, want, src.resumed)
	}
	src := &source{pauseErr: cupti.ErrNotRunning}
	_, err := New(Settings{}, src, newSink(), nil).Arm(deep.SASS, 1)
	var refused *deep.Error
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, deep.StatusAtExit, refused.Outcome.Status)
	assert.Empty(t, src.opened)
	_, err = New(Settings{}, &source{pauseErr: errors.New("CUPTI says 7")}, newSink(), nil).Arm(deep.SASS, 1)
	assert.EqualError(t, err, "CUPTI says 7")
}

// What waits is bounded, and what does not fit is reported as lost.
func TestWindowsBeyondTheBoundAreLost(t *testing.T) {
	t.Setenv(cubin.DisassemblerEnv, filepath.Join(t.TempDir(), "none"))
	src, k := &source{image: golden(t), result: samples(0), hold: make(chan struct{})}, newSink()
	e := New(Settings{}, src, k, nil)
	e.Start()
	const all = maxWaiting + 5
	for id := range uint64(all) {
		run(t, e, id+1, deep.PC)
	}
	close(src.hold)
	windows := k.wait(t, all)
	stop(t, e)
	lost, whole := 0, 0
	for _, w := range windows {
		if len(w.Samples) > 0 {
			whole++
			continue
		}
		lost++
		assert.Equal(t, w.Collected.Samples, w.Collected.Lost)
		assert.Contains(t, w.Outcome.Text, "found no room")
	}
	// One is being read, or is about to be.
	assert.GreaterOrEqual(t, whole, maxWaiting)
	assert.GreaterOrEqual(t, lost, 4)
	assert.Equal(t, all, lost+whole)
}

// A recorder that has no room does not keep the program at its end.
func TestStopKeepsItsBound(t *testing.T) {
	t.Setenv(cubin.DisassemblerEnv, filepath.Join(t.TempDir(), "none"))
	k := newSink()
	k.full = 1 << 30
	e := New(Settings{}, &source{result: samples(0)}, k, nil)
	e.Start()
	run(t, e, 1, deep.PC)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	require.NoError(t, e.Stop(ctx))
	assert.Empty(t, k.windows)
}

func TestStopWithoutStart(t *testing.T) {
	e := New(Settings{}, &source{}, newSink(), nil)
	stop(t, e)
	e.Start()
	stop(t, e)
}

func TestDumpsCanBePlayedBack(t *testing.T) {
	t.Setenv(cubin.DisassemblerEnv, filepath.Join(t.TempDir(), "none"))
	dir := t.TempDir()
	src, k := &source{image: golden(t), result: samples(16)}, newSink()
	e := New(Settings{Dump: dir}, src, k, nil)
	e.Start()
	run(t, e, 3, deep.PC)
	k.wait(t, 1)
	stop(t, e)
	text, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(os.Getpid())+"-3-pc_sampling.txt"))
	require.NoError(t, err)
	assert.Equal(t, `gpuflight-deep 1 pc_sampling
name 0 smsp__pcsamp_warps_issue_stalled_long_scoreboard
name 1 smsp__pcsamp_warps_issue_stalled_barrier
function 0 plain
function 1 _Z7unknownv
row 0 7 16 0 0 0 700
row 0 7 16 0 1 0 30
row 1 99 64 1 1 12 5
totals 740 3 2
`, string(text))
	image, err := os.ReadFile(filepath.Join(dir, "7.cubin"))
	require.NoError(t, err)
	assert.Equal(t, src.image, image)
}

func TestSettingsFromEnv(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct {
		env  map[string]string
		want Settings
		err  string
	}{
		{nil, Settings{}, ""},
		{map[string]string{"GPUFLIGHT_DEEP_PERIOD": "12", "GPUFLIGHT_DEEP_SERIALIZE": "on", "GPUFLIGHT_DEEP_METRICS": " a, b,a,", "GPUFLIGHT_DEEP_ROWS": "50", "GPUFLIGHT_DEEP_DUMP": dir},
			Settings{PeriodLog2: 12, Serialize: true, Metrics: []string{"a", "b"}, MaxRows: 50, Dump: dir}, ""},
		{map[string]string{"GPUFLIGHT_DEEP_METRICS": "memory, a"}, Settings{Metrics: append(slices.Clone(cupti.MemoryMetrics), "a")}, ""},
		{map[string]string{"GPUFLIGHT_DEEP_PERIOD": "4"}, Settings{}, `GPUFLIGHT_DEEP_PERIOD is "4"; it must be N of 5 to 31, for a sample every 2^N cycles; 16 is 65,536`},
		{map[string]string{"GPUFLIGHT_DEEP_SERIALIZE": "maybe"}, Settings{}, `GPUFLIGHT_DEEP_SERIALIZE is "maybe"; it must be true or false`},
		{map[string]string{"GPUFLIGHT_DEEP_ROWS": "0"}, Settings{}, `GPUFLIGHT_DEEP_ROWS is "0"; it must be a whole number of 1 to 200000`},
		{map[string]string{"GPUFLIGHT_DEEP_DUMP": filepath.Join(dir, "none")}, Settings{}, "it must be a folder that exists"},
	} {
		got, err := SettingsFromEnv(func(name string) string { return tc.env[name] })
		assert.Equal(t, tc.want, got)
		if tc.err == "" {
			assert.NoError(t, err)
		} else {
			assert.ErrorContains(t, err, tc.err)
		}
	}
}

// TestNothingPatched: a window that had launches and brought nothing says so, unless they waited
// for it to open.
func TestNothingPatched(t *testing.T) {
	const said = "7 launches were made in it and CUPTI patched no kernel: they have no instruction that is counted, or ask again"
	for _, tc := range []struct {
		engine                   cupti.Engine
		launched, patched, gated uint64
		want                     []string
	}{
		{cupti.EngineSASS, 7, 0, 1, []string{said}},
		{cupti.EngineSASS, 7, 0, 7, nil},
		{cupti.EngineSASS, 7, 1, 1, nil},
		{cupti.EngineSASS, 0, 0, 0, nil},
		{cupti.EnginePCSampling, 7, 0, 1, nil},
	} {
		r := &cupti.DeepResult{Engine: tc.engine, Totals: cupti.DeepTotals{Launched: tc.launched, Patched: tc.patched, BlockedCalls: tc.gated}}
		assert.Equal(t, tc.want, diagnostics(r), "%+v", tc)
	}
}
