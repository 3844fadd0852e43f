// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package cupti

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	// drainLimit bounds a call of Drain: CUPTI copies what it has, and does not wait for the
	// device.
	drainLimit = 5 * time.Second
	// grace comes on top of each limit.
	grace = time.Second
	// drainShare is for how long it goes on asking while there is more.
	drainShare = time.Second
	// rcMore is no answer of the core's: there is more to collect.
	rcMore = 1 << 20
	// minQueue is the room for rows in the core, whatever MaxRows is: they are summed only here.
	minQueue = 1 << 16
	// maxRows bounds MaxRows: some 50 bytes each, twice.
	maxRows = 4_000_000
	// maxDeepNames bounds Reasons and Metrics.
	maxDeepNames = 64
)

// DeepWindow is a window that is open. Its methods may be called by any goroutine; they wait for
// each other.
type DeepWindow struct {
	c   *Collector
	cfg DeepConfig

	mu        sync.Mutex
	start     time.Time
	rows      map[DeepRow]uint64 // by what they are about: Value is 0
	functions []string
	lost      DeepTotals // what did not fit in rows
	buffer    []rawDeepRow
	result    *DeepResult
}

// DeepStatus says whether a window of this engine could be opened, as far as that shows without
// opening one: whether the library has it, and whether windows were asked for.
func (c *Collector) DeepStatus(e Engine) Status {
	c.deep.Lock()
	defer c.deep.Unlock()
	if rc := coreDeepSupported(e); rc != 0 {
		return c.deepStatus(e, rc)
	}
	if !c.cfg.Deep {
		return c.deepStatus(e, rcNotDeep)
	}
	return c.Status()
}

// OpenDeep opens a window: the engine is armed on the contexts of this process when it returns. It
// takes at most cfg.OpenLimit. One window is open at a time. An error is an [*Error], whose status
// says what is in the way.
//
// A window of EngineSASS needs activity paused ([Collector.Pause]); one of PC sampling does not.
func (c *Collector) OpenDeep(cfg DeepConfig) (*DeepWindow, error) {
	cfg.MaxRows = cmp.Or(cfg.MaxRows, DefaultMaxRows)
	cfg.OpenLimit = cmp.Or(cfg.OpenLimit, DefaultOpenLimit)
	cfg.CloseLimit = cmp.Or(cfg.CloseLimit, DefaultCloseLimit)
	cfg.HardwareBytes = cmp.Or(cfg.HardwareBytes, DefaultHardwareBytes)
	if cfg.Engine == EnginePCSampling {
		cfg.PeriodLog2 = cmp.Or(cfg.PeriodLog2, DefaultPeriodLog2)
	}
	var names []string
	if cfg.Engine == EngineSASS {
		names = cfg.Metrics
		if len(names) == 0 {
			names = DefaultMetrics
		}
	}
	if problem := badRequest(&cfg, names); problem != "" {
		return nil, &Error{Status: c.withLibrary(Status{Reason: ReasonBadRequest, Detail: problem})}
	}
	c.deep.Lock()
	defer c.deep.Unlock()
	if c.deep.stopping > 0 {
		return nil, &Error{Status: c.deepStatus(cfg.Engine, rcExiting)}
	}
	if c.deep.window != nil {
		return nil, &Error{Status: c.deepStatus(cfg.Engine, rcBusy)}
	}
	if coreDeepUnresponsive() {
		return nil, &Error{Status: c.deepStatus(cfg.Engine, rcUnresponsive)}
	}
	// A quarter of the time is for quiescing the application.
	if rc := bounded(cfg.OpenLimit, func() int { return coreDeepOpen(&cfg, names, cfg.OpenLimit/4) }); rc != 0 {
		return nil, &Error{Status: c.deepStatus(cfg.Engine, rc)}
	}
	w := &DeepWindow{c: c, cfg: cfg, start: time.Now(), rows: map[DeepRow]uint64{}, buffer: make([]rawDeepRow, 4096)}
	c.deep.window = w
	return w, nil
}

// HasContext says whether the process has a context that a window could observe. The driver may
// keep it waiting for seconds, while it makes one: it holds no lock meanwhile.
func (c *Collector) HasContext() bool { return coreDeepContexts() > 0 }

// badRequest says what is wrong with a configuration, "" if nothing is.
func badRequest(cfg *DeepConfig, names []string) string {
	switch {
	case cfg.Engine >= NumEngines:
		return fmt.Sprintf("there is no engine %d: use EnginePCSampling or EngineSASS", cfg.Engine)
	case cfg.PeriodLog2 != 0 && (cfg.PeriodLog2 < MinPeriodLog2 || cfg.PeriodLog2 > MaxPeriodLog2):
		return fmt.Sprintf("a sampling period of 2^%d cycles is not possible: choose an exponent from %d to %d, or 0", cfg.PeriodLog2, MinPeriodLog2, MaxPeriodLog2)
	case cfg.HardwareBytes < 0:
		return "a buffer cannot have a negative size: leave it 0 for CUPTI's own"
	case cfg.MaxRows < 0 || cfg.MaxRows > maxRows:
		return fmt.Sprintf("a window cannot keep %d rows: choose 1 to %d", cfg.MaxRows, maxRows)
	case cfg.OpenLimit < 0 || cfg.CloseLimit < 0:
		return "a time limit cannot be negative: leave it 0 for the default"
	case len(names) > maxDeepNames:
		return fmt.Sprintf("%d names are too many: choose at most %d", len(names), maxDeepNames)
	}
	for _, name := range names {
		if name == "" || len(name) > 127 || slices.Contains([]byte(name), 0) {
			return fmt.Sprintf("%q is no name of a metric", name)
		}
	}
	return ""
}

// bounded has CUPTI do something on a thread that can be left to it. What does not come back in
// time is given up for the life of the process.
func bounded(limit time.Duration, f func() int) int {
	done := make(chan int, 1)
	go func() { done <- f() }()
	// In two parts: where the whole process or machine stood still, the first is over when it goes
	// on.
	for _, part := range []time.Duration{limit, grace} {
		timer := time.NewTimer(part)
		select {
		case rc := <-done:
			timer.Stop()
			return rc
		case <-timer.C:
		}
	}
	coreDeepGiveUp()
	return rcGivenUp
}

// Drain takes what PC sampling has at the moment, of all contexts, and arms contexts that are new.
// It should be called some times a second, or the hardware's buffer may overflow, which is counted.
// For EngineSASS it does nothing: what was counted comes at the end. An error is an [*Error]; the
// window stays open. ErrFull says that figures did not fit and are counted as lost: from now on
// the window leans towards what ran before, so it is time to close it. After Close it returns
// ErrNotRunning.
func (w *DeepWindow) Drain() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.result != nil {
		return ErrNotRunning
	}
	if rc := w.collect(); rc != 0 {
		return &Error{Status: w.c.deepStatus(w.cfg.Engine, rc)}
	}
	if w.lost.LostRows > 0 {
		return ErrFull
	}
	return nil
}

// collect takes what PC sampling has until there is no more, or it has taken long enough: samples
// come all the time. The caller has mu.
func (w *DeepWindow) collect() int {
	until := time.Now().Add(drainShare)
	for {
		rc := bounded(drainLimit, func() int {
			rc, m := coreDeepCollect()
			if m {
				return rcMore
			}
			return rc
		})
		w.read()
		if rc != rcMore {
			return rc
		}
		if time.Now().After(until) {
			return 0
		}
	}
}

// read takes the rows that wait in the core. The caller has mu.
func (w *DeepWindow) read() {
	for {
		n := coreDeepRead(w.buffer)
		for i := range w.buffer[:n] {
			w.add(rowOf(&w.buffer[i]))
		}
		if n < len(w.buffer) {
			return
		}
	}
}

func (w *DeepWindow) add(row DeepRow) {
	for len(w.functions) <= int(row.Function) {
		name, ok := coreDeepFunction(len(w.functions))
		if !ok {
			break
		}
		w.functions = append(w.functions, name)
	}
	value := row.Value
	row.Value = 0
	old, known := w.rows[row]
	if !known && len(w.rows) >= w.cfg.MaxRows {
		w.lost.LostRows++
		w.lost.LostValue += value
		return
	}
	w.rows[row] = old + value
}

// Close takes the rest, disarms the engine and returns what the window yielded. It takes at most
// CloseLimit, and a little for the rest of what Drain would take. DeepResult.Problem says if it did
// not end well; an error there is only where there is no result. It may be called again, and
// returns the same.
func (w *DeepWindow) Close() (*DeepResult, error) {
	w.c.deep.Lock()
	defer w.c.deep.Unlock()
	return w.close(), nil
}

// close is called with the Collector's deep held.
func (w *DeepWindow) close() *DeepResult {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.result != nil {
		return w.result
	}
	rc := 0
	if w.cfg.Engine == EnginePCSampling {
		rc = w.collect()
	}
	if rc != rcGivenUp && rc != rcForked {
		// Half of the time is for quiescing the application: an engine is not disarmed while calls
		// are in flight.
		closed := bounded(w.cfg.CloseLimit, func() int { return coreDeepClose(w.cfg.CloseLimit / 2) })
		if closed == rcNotQuiesced {
			// It stays armed: the window is given up, with what it has.
			coreDeepGiveUp()
		}
		if rc == 0 || closed == rcGivenUp || closed == rcNotQuiesced {
			rc = closed
		}
		w.read()
	}
	w.result = w.build(rc)
	w.rows, w.functions, w.buffer = nil, nil, nil
	w.c.deep.window = nil
	if rc != rcGivenUp && rc != rcNotQuiesced {
		coreDeepEnd()
	}
	return w.result
}

func (w *DeepWindow) build(rc int) *DeepResult {
	r := &DeepResult{
		Engine: w.cfg.Engine, Start: w.start, End: time.Now(), Functions: w.functions,
		Rows: make([]DeepRow, 0, len(w.rows)), Totals: coreDeepTotals(), PeriodLog2: w.cfg.PeriodLog2,
	}
	r.Totals.LostRows += w.lost.LostRows
	r.Totals.LostValue += w.lost.LostValue
	for row, value := range w.rows {
		row.Value = value
		r.Rows = append(r.Rows, row)
	}
	slices.SortFunc(r.Rows, func(a, b DeepRow) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.CRC, b.CRC), cmp.Compare(a.Function, b.Function), cmp.Compare(a.PC, b.PC),
			cmp.Compare(a.What, b.What), cmp.Compare(a.Correlation, b.Correlation))
	})
	for i := 0; ; i++ {
		name, ok := coreDeepName(i)
		if !ok {
			break
		}
		r.Names = append(r.Names, name)
		if coreDeepMissing(i) {
			r.Missing = append(r.Missing, name)
		}
	}
	if rc != 0 {
		status := w.c.deepStatus(w.cfg.Engine, rc)
		r.Problem = &status
	}
	return r
}

// endDeep closes the window that is open, and lets none be opened until what it returns is called.
func (c *Collector) endDeep() func() {
	c.deep.Lock()
	defer c.deep.Unlock()
	c.deep.stopping++
	if c.deep.window != nil {
		c.deep.window.close()
	}
	return func() {
		c.deep.Lock()
		c.deep.stopping--
		c.deep.Unlock()
	}
}

// Pause stops recording activity until Resume, and leaves everything else as it is. What is
// launched meanwhile has no record; what was launched before and had not ended may have none
// either, or come later. Pausing twice does nothing. ErrNotRunning says that nothing is recorded;
// an [*Error] that a graph is being captured, or that the program stayed busy: then nothing is
// paused.
func (c *Collector) Pause() error {
	c.deep.Lock()
	defer c.deep.Unlock()
	c.mu.Lock()
	rc := corePause()
	c.mu.Unlock()
	return c.switched("pause", rc)
}

// switched is the error of switching activity off or on for a window. The caller has deep, and not
// mu.
func (c *Collector) switched(what string, rc int) error {
	switch rc {
	case rcActivity:
		return &Error{Status: Status{Reason: ReasonActivity, Detail: "SASS metrics and activity records together can lock the driver up: close the window first"}}
	case rcCapture, rcNotQuiesced, rcUnresponsive:
		return &Error{Status: c.deepStatus(EngineSASS, rc)}
	}
	return coreError(what, rc)
}

// Resume records again what Pause has stopped. An error says that not all could be; Status says
// what is missing. An [*Error] of ReasonNotQuiesced says that the program stayed busy, and nothing
// is recorded yet: try again. One of ReasonActivity says that a window of SASS metrics is open,
// which must be closed first.
func (c *Collector) Resume() error {
	c.deep.Lock()
	defer c.deep.Unlock()
	c.mu.Lock()
	rc, lost := coreResume()
	c.status.Kinds &^= lost
	c.status.Missing |= lost
	c.mu.Unlock()
	return c.switched("resume", rc)
}

// Cubins lists the images of modules that are kept, oldest first. It computes CRCs that are not
// known yet, which takes a moment after many modules were loaded.
func (c *Collector) Cubins() []Cubin {
	all := coreCubins()
	list := make([]Cubin, 0, len(all))
	for i := range all {
		list = append(list, all[i].Cubin)
	}
	return list
}

// CubinImage returns a copy of the image with that CRC, nil if there is none. Where crc has 32 bits
// it is compared with the low ones, since SASS metrics know no more.
func (c *Collector) CubinImage(crc uint64) []byte {
	for _, at := range coreCubins() {
		if at.hasCRC && (at.CRC == crc || crc>>32 == 0 && uint32(at.CRC) == uint32(crc)) {
			return coreCubinCopy(at.id, at.Size)
		}
	}
	return nil
}

// CubinStats says how many images are kept and were not.
func (c *Collector) CubinStats() CubinStats { return coreCubinStats() }

func (c *Collector) withLibrary(s Status) Status {
	known := c.Status()
	s.Library, s.Version, s.Driver = known.Library, known.Version, known.Driver
	return s
}

// taken says which process holds the lease of a GPU; 0 is unknown.
func taken(pid int) string {
	switch pid {
	case 0:
		return "another process samples this GPU, and holds it until it exits: end that process, or request SASS metrics"
	case os.Getpid():
		return "another CUDA context of this process was sampled on this GPU: destroy it, request SASS metrics, or restart the process"
	}
	return fmt.Sprintf("process %d samples this GPU, and holds it until it exits: end that process, or request SASS metrics", pid)
}

// unresponsiveDetail is what a refused cuptiPCSamplingStart can leave CUPTI as.
const unresponsiveDetail = "another tool used the GPU's counters (Nsight, DCGM profiling metrics) when PC sampling started, " +
	"and CUPTI is unresponsive: nothing more is recorded in this process; restart it, " +
	"and request SASS metrics while another tool uses the counters"

// quiesceFailure is what was busy.
type quiesceFailure struct {
	what   string // a function of the driver where thread is not 0
	thread int    // its id
}

// String is in parentheses.
func (q quiesceFailure) String() string {
	switch {
	case q.what == "":
		return ""
	case q.thread == 0:
		return " (" + q.what + ")"
	}
	return fmt.Sprintf(" (%s of thread %d was in flight)", q.what, q.thread)
}

// deepStatus turns a result of the core, or of CUPTI, into what a user can act on.
func (c *Collector) deepStatus(e Engine, rc int) Status {
	what := [...]string{"PC sampling", "SASS metrics"}[min(e, EngineSASS)]
	s := Status{}
	switch rc {
	case rcUnsupported:
		s.Reason, s.Detail = ReasonNotSupported, "this libcupti has no "+what+": install the one of CUDA 12.4 or later"
	case rcNoLibrary:
		s.Reason, s.Detail = ReasonNoLibrary, "libcupti is not loaded: open a collector first"
	case rcNotDeep:
		s.Reason, s.Detail = ReasonDisabled, "windows were not asked for when recording began: set Config.Deep"
	case rcNoContext:
		s.Reason, s.Detail = ReasonNoContext, "the process has no CUDA context yet: wait until it uses the GPU"
	case rcCapture:
		s.Reason, s.Detail = ReasonCapture, "a CUDA graph is being captured, and a window would spoil it: try again when it is done"
	case rcActivity:
		s.Reason, s.Detail = ReasonActivity, "SASS metrics and activity records together can lock the driver up: pause recording first"
	case rcBusy:
		s.Reason, s.Detail = ReasonWindowOpen, "another window is open: wait for its end"
	case rcExiting, rcStopped:
		s.Reason, s.Detail = ReasonExit, "recording ends: open the window earlier"
	case rcGivenUp:
		s.Reason = ReasonStuck
		s.Detail = "CUPTI did not come back from " + what + " in time"
		if call := coreDeepCall(); call != "" {
			s.Detail += " (" + call + ")"
		}
		s.Detail += " and is not asked again: recording goes on without windows; start the process anew to have them"
	case rcNotQuiesced:
		s.Reason, s.Detail = ReasonNotQuiesced, "the program was busy with launches or module loads until the limit"+coreDeepBusyReason().String()+": try again, or allow more time"
	case rcOnce:
		s.Reason, s.Detail = ReasonOnce, "the process has had its window of SASS metrics: request PC sampling, or restart the process"
	case rcTaken:
		s.Reason, s.Detail = ReasonTaken, taken(coreDeepHolder())
	case rcDevice:
		s.Reason, s.Detail = ReasonNotSupported, "the GPU cannot do "+what+" as it is set up"
		if obstacle := coreDeepObstacle(); obstacle != "" {
			s.Detail += " (" + obstacle + ")"
		}
		s.Detail += ": use another GPU, or a machine that is set up for profiling"
	case rcUnresponsive:
		s.Reason, s.Detail = ReasonUnresponsive, unresponsiveDetail
	case rcBadValue:
		s.Reason, s.Detail = ReasonBadRequest, "the GPU knows none of the metrics that "+what+" was asked for: leave them out for the default, in GPUFLIGHT_DEEP_METRICS if they are from there"
	case cuptiNotSupported, cuptiVirtualized, cuptiConfidential, cuptiMining, cuptiMIG, cuptiSLI, cuptiWSL:
		s.Reason, s.Detail = ReasonNotSupported, what+" does not work on this GPU or in this virtual machine ("+coreText(rc)+"): use a whole GPU of compute capability 7.5 or later"
	case cuptiNotCompatible:
		s.Reason, s.Detail = ReasonActivity, what+" and something else that is recorded exclude each other ("+coreText(rc)+"): pause recording first"
	case cuptiHardwareBusy:
		s.Reason, s.Detail = ReasonOtherProfiler, "something else has the GPU's counters (Nsight, DCGM's profiling metrics, another process's window): stop it"
	case cuptiInvalidOperation:
		s.Reason, s.Detail = ReasonFailed, coreText(rc)+" about "+what+": another part of this process may use CUPTI's profiling"
	case cuptiOutOfMemory:
		s.Reason, s.Detail = ReasonFailed, "there is no memory for "+what+" ("+coreText(rc)+"): make its buffers smaller"
	default:
		s = failed(s, rc)
	}
	return c.withLibrary(s)
}
