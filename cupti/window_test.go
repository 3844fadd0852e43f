// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package cupti

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// What the fake yields: see fakedeep.h.
const (
	places           = 4
	samplesOfLaunch  = 1 + 2 + 3 + 4
	reasonPrefix     = "smsp__pcsamp_warps_issue_stalled_"
	windowKernel     = "_Z6windowPf"
	otherKernel      = "_Z5otheri"
	cuptiPrivileges  = 35
	cuptiUnsupported = 27
)

// openDeep opens a Collector for windows, on one context of device 0 that is current on this OS
// thread.
func openDeep(t *testing.T, cfg Config) (*cuptitest.Fake, *Collector, cuptitest.Context) {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	cfg.Deep = true
	fake, c := open(t, cfg)
	forgetSASS(fake)
	ctx := fake.NewContext(0)
	t.Cleanup(func() {
		if n := fake.Control("armed", 0); n != 0 {
			t.Errorf("%d things are left armed", n)
		}
		for _, what := range []string{"pc_raced", "sass_raced", "sass_flushed", "mixed", "read_concurrently"} {
			if n := fake.Control(what, 0); n != 0 {
				t.Errorf("%s %d", what, n)
			}
		}
		fake.DestroyContext(ctx)
	})
	return fake, c, ctx
}

// forgetSASS has the core and CUPTI forget that the process has had its window of EngineSASS, as in
// a new process.
func forgetSASS(fake *cuptitest.Fake) {
	coreForgetSASS()
	fake.Control("forget_sass", 1)
}

func openWindow(t *testing.T, c *Collector, cfg DeepConfig) *DeepWindow {
	t.Helper()
	if cfg.Engine == EngineSASS {
		forgetSASS(cuptitest.Libraries(t))
	}
	w, err := c.OpenDeep(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func closeWindow(t *testing.T, w *DeepWindow) *DeepResult {
	t.Helper()
	r, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if r.Problem != nil {
		t.Errorf("problem: %+v", *r.Problem)
	}
	return r
}

// refusal opens a window that must not open.
func refusal(t *testing.T, c *Collector, cfg DeepConfig) Status {
	t.Helper()
	w, err := c.OpenDeep(cfg)
	var e *Error
	if !errors.As(err, &e) {
		if w != nil {
			_, _ = w.Close()
		}
		t.Fatalf("error %v, want one with a status", err)
	}
	return e.Status
}

// figures are a result's rows by words.
func figures(r *DeepResult) map[string]uint64 {
	all := map[string]uint64{}
	for _, row := range r.Rows {
		all[fmt.Sprintf("%d %08x %s+%x %s %d", row.Device, row.CRC, r.Functions[row.Function], row.PC, strings.TrimPrefix(r.Names[row.What], reasonPrefix), row.Correlation)] += row.Value
	}
	return all
}

func sum(r *DeepResult) uint64 {
	var n uint64
	for _, row := range r.Rows {
		n += row.Value
	}
	return n
}

func equalFigures(t *testing.T, got, want map[string]uint64) {
	t.Helper()
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s is %d, want %d", k, got[k], v)
		}
	}
	for k, v := range got {
		if _, ok := want[k]; !ok {
			t.Errorf("%s is %d, want none", k, v)
		}
	}
}

func TestWindowOfPCSampling(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	start(t, c)
	image := []byte("an image of a module")
	fake.LoadModule(image)
	fake.Set(t, "pc_drop", 5)
	fake.Set(t, "pc_non_user", 7)
	fake.Launch(otherKernel, 10) // before the window
	w := openWindow(t, c, DeepConfig{PeriodLog2: 10})
	fake.Launch(windowKernel, 100)
	if err := w.Drain(); err != nil {
		t.Fatal(err)
	}
	fake.Launch(windowKernel, 20)
	fake.Launch(otherKernel, 3)
	r := closeWindow(t, w)
	fake.Launch(otherKernel, 10) // after it

	crc := fake.CRC(image)
	want := map[string]uint64{}
	for i, reason := range []string{"long_scoreboard", "barrier", "wait", "math_pipe_throttle"} {
		want[fmt.Sprintf("0 %08x %s+%x %s 0", crc, windowKernel, 16*(i+1), reason)] = uint64(120 * (i + 1))
		want[fmt.Sprintf("0 %08x %s+%x %s 0", crc, otherKernel, 16*(i+1), reason)] = uint64(3 * (i + 1))
	}
	equalFigures(t, figures(r), want)
	if want := (DeepTotals{Samples: 123 * (samplesOfLaunch + 12), DroppedSamples: 123 * 5, NonUserSamples: 123 * 7, Contexts: 1}); r.Totals != withKept(want, r) {
		t.Errorf("totals %+v, want %+v", r.Totals, want)
	}
	if r.PeriodLog2 != 10 || len(r.Names) != 6 || r.Missing != nil || r.Start.After(r.End) || r.Engine != EnginePCSampling {
		t.Errorf("%+v", r)
	}
	if got := c.CubinImage(crc); !bytes.Equal(got, image) {
		t.Errorf("image %q", got)
	}
	// Activity was recorded all the time.
	stop(t, c, true)
	if n := count(drain(t, c), KindKernel); n != 143 {
		t.Errorf("%d kernels recorded, want 143", n)
	}
	if err := w.Drain(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Drain after Close: %v", err)
	}
	if again, err := w.Close(); again != r || err != nil {
		t.Errorf("Close again: %p, %v, want %p", again, err, r)
	}
}

// withKept takes over what depends on how often CUPTI was asked.
func withKept(want DeepTotals, r *DeepResult) DeepTotals {
	want.NamesKept = r.Totals.NamesKept
	return want
}

func TestWindowTellsLaunchesApart(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	w := openWindow(t, c, DeepConfig{Serialize: true})
	fake.Set(t, "correlation", 100)
	fake.Launch(windowKernel, 2)
	r := closeWindow(t, w)
	by := map[uint32]uint64{}
	for _, row := range r.Rows {
		by[row.Correlation] += row.Value
	}
	if len(by) != 2 || by[101] != samplesOfLaunch || by[102] != samplesOfLaunch {
		t.Errorf("samples by launch: %v", by)
	}
}

func TestWindowOfSASSMetrics(t *testing.T) {
	for layout := range int64(2) {
		t.Run([]string{"instances of all metrics", "instances of one metric"}[layout], func(t *testing.T) {
			fake, c, _ := openDeep(t, Config{})
			fake.Set(t, "sass_layout", layout)
			image := []byte("an image for counting")
			fake.LoadModule(image)
			w := openWindow(t, c, DeepConfig{Engine: EngineSASS, Metrics: append(slices.Clone(DefaultMetrics), "smsp__sass_unheard_of", "smsp__sass_never")})
			k := cuptitest.Kernel{Name: windowKernel, Grid: [3]uint32{5, 2, 1}, Block: [3]uint32{48, 1, 1}} // 10 blocks of 2 warps
			fake.LaunchKernel(k)
			if err := w.Drain(); err != nil {
				t.Error(err)
			}
			fake.LaunchKernel(k)
			r := closeWindow(t, w)
			crc := fake.CRC(image)
			want := map[string]uint64{}
			for i := range places {
				at := fmt.Sprintf("0 %08x %s+%x ", crc, windowKernel, 16*(i+1))
				want[at+"smsp__sass_inst_executed 0"] = 2 * 20
				want[at+"smsp__sass_thread_inst_executed 0"] = 2 * 480
				if i == 1 {
					want[at+"smsp__sass_sectors_mem_global 0"] = 2 * 480
					want[at+"smsp__sass_sectors_mem_global_ideal 0"] = 2 * 60
				}
			}
			equalFigures(t, figures(r), want)
			if !slices.Equal(r.Missing, []string{"smsp__sass_unheard_of"}) {
				t.Errorf("missing %q", r.Missing)
			}
			// As often as it ran, an instruction is patched once.
			if r.Totals != (DeepTotals{Contexts: 1, Patched: places, Launched: 2}) {
				t.Errorf("totals %+v", r.Totals)
			}
		})
	}
}

func TestWindowsWaitForIdleContexts(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	defer fake.Busy(0)
	for e := range NumEngines {
		fake.Busy(3)
		if r := closeWindow(t, openWindow(t, c, DeepConfig{Engine: e})); r.Totals.NotIdle != 0 {
			t.Errorf("%s: three questions were not enough: %+v", e, r.Totals)
		}
		fake.Busy(-1)
		forgetSASS(fake)
		if s := refusal(t, c, DeepConfig{Engine: e, OpenLimit: 400 * time.Millisecond}); s.Reason != ReasonNotQuiesced {
			t.Errorf("%s: %+v", e, s)
		}
		if n := fake.Control("armed", 0); n != 0 {
			t.Errorf("%s: %d things are left armed", e, n)
		}
		fake.Busy(0)
		closeWindow(t, openWindow(t, c, DeepConfig{Engine: e}))
	}
}

// CUPTI's start of sampling may take longer than a launch waits elsewhere; one that went on would
// lock up with it.
func TestLaunchesWaitForASlowStart(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	fake.Set(t, "start_ms", 2500)
	end := launching(fake, 2)
	defer end()
	w := openWindow(t, c, DeepConfig{})
	r := closeWindow(t, w)
	end()
	if n := fake.Control("pc_raced", 0); n != 0 {
		t.Errorf("%d launches went on", n)
	}
	if r.Totals.BarrierTimeouts != 0 || r.Totals.BlockedCalls == 0 || r.Totals.LongestBlock < 2400*time.Millisecond {
		t.Errorf("totals %+v", r.Totals)
	}
}

// launching has threads launch until the function that it returns is called.
func launching(fake *cuptitest.Fake, threads int) (end func()) {
	var over atomic.Bool
	var all sync.WaitGroup
	for range threads {
		all.Go(func() {
			for !over.Load() {
				fake.Launch(windowKernel, 1)
			}
		})
	}
	return sync.OnceFunc(func() {
		over.Store(true)
		all.Wait()
	})
}

// While something else has the counters CUPTI enables sampling and knows no stall reasons: what is
// enabled then is disabled, and not beside launches, which locks up. openDeep looks.
func TestWhatIsRefusedIsDisarmedAtRest(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	defer launching(fake, 3)()
	for range 20 {
		fake.Control("no_reasons", 1)
		if s := refusal(t, c, DeepConfig{}); s.Reason != ReasonOtherProfiler {
			t.Errorf("%+v", s)
		}
		if n := fake.Control("armed", 0); n != 0 {
			t.Errorf("%d things are left armed", n)
		}
		fake.Control("no_reasons", 0)
		if r := closeWindow(t, openWindow(t, c, DeepConfig{})); r.Totals.Contexts != 1 {
			t.Errorf("totals %+v", r.Totals)
		}
	}
}

func TestSASSMetricsWantActivityPaused(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	start(t, c)
	fake.Control("sass_with_activity", 0)
	if s := refusal(t, c, DeepConfig{Engine: EngineSASS}); s.Reason != ReasonActivity {
		t.Errorf("%+v", s)
	}
	fake.Launch(otherKernel, 1)
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := c.Pause(); err != nil {
		t.Fatal("again: ", err)
	}
	if n := fake.Control("enabled", 0); n != 0 {
		t.Errorf("kinds %x are on", n)
	}
	w := openWindow(t, c, DeepConfig{Engine: EngineSASS})
	fake.Launch(windowKernel, 10)
	// There is nothing to flush, and it would be beside launches: openDeep checks that CUPTI is not
	// asked.
	if err := errors.Join(c.Flush(), c.Pause()); err != nil {
		t.Error(err)
	}
	var refused *Error
	if err := c.Resume(); !errors.As(err, &refused) || refused.Status.Reason != ReasonActivity {
		t.Errorf("resumed beside patched kernels: %v", err)
	}
	r := closeWindow(t, w)
	if len(r.Rows) == 0 {
		t.Error("no rows")
	}
	if err := c.Resume(); err != nil {
		t.Fatal(err)
	}
	fake.Launch(otherKernel, 2)
	if n := fake.Control("sass_with_activity", 0); n != 0 {
		t.Errorf("%d times beside activity", n)
	}
	// It can be requested nevertheless.
	w = openWindow(t, c, DeepConfig{Engine: EngineSASS, WithActivity: true})
	closeWindow(t, w)
	if n := fake.Control("sass_with_activity", 0); n != 1 {
		t.Errorf("%d times beside activity, want 1", n)
	}
	stop(t, c, true)
	heads := drain(t, c)
	if n := count(heads, KindKernel); n != 3 {
		t.Errorf("%d kernels are recorded, want the 3 outside of the pause", n)
	}
	if err := c.Pause(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Pause after Stop: %v", err)
	}
	if err := c.Resume(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Resume after Stop: %v", err)
	}
}

func TestResumeSaysWhatIsLost(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	start(t, c)
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	fake.Control("refuse_kind", 10<<16|cuptiPrivileges)
	t.Cleanup(func() { fake.Control("refuse_kind", 10<<16) })
	if err := c.Resume(); err == nil || !strings.Contains(err.Error(), "INSUFFICIENT_PRIVILEGES") {
		t.Errorf("Resume: %v", err)
	}
	if s := c.Status(); s.Kinds.Has(KindKernel) || !s.Missing.Has(KindKernel) || !s.Kinds.Has(KindMemcpy) {
		t.Errorf("%+v", s)
	}
	stop(t, c, false)
}

func TestOneWindowAtATime(t *testing.T) {
	_, c, _ := openDeep(t, Config{})
	for _, first := range []Engine{EnginePCSampling, EngineSASS} {
		w := openWindow(t, c, DeepConfig{Engine: first})
		for _, second := range []Engine{EnginePCSampling, EngineSASS} {
			if s := refusal(t, c, DeepConfig{Engine: second}); s.Reason != ReasonWindowOpen {
				t.Errorf("%s in %s: %+v", second, first, s)
			}
		}
		closeWindow(t, w)
	}
}

func TestWindowsThatDoNotOpen(t *testing.T) {
	fake, c, ctx := openDeep(t, Config{})
	pc, sass := DeepConfig{}, DeepConfig{Engine: EngineSASS}
	for _, test := range []struct {
		what   string
		value  int64
		cfg    DeepConfig
		reason Reason
		detail string
	}{
		{"refuse_pc", cuptiPrivileges, pc, ReasonPermission, "NVreg_RestrictProfilingToAdminUsers=0"},
		{"refuse_pc", 40, pc, ReasonPermission, "virtual GPU"},
		{"refuse_pc", cuptiUnsupported, pc, ReasonNotSupported, "compute capability 7.5"},
		{"refuse_pc", 33, pc, ReasonNotSupported, "virtual machine"},
		{"refuse_pc", 43, pc, ReasonNotSupported, "use a whole GPU"},
		{"refuse_pc", 36, pc, ReasonOtherProfiler, "run without it"},
		{"refuse_pc", 39, pc, ReasonOtherProfiler, "Nsight"},
		{"refuse_pc", 26, pc, ReasonOtherProfiler, "DCGM"},
		{"refuse_pc", 7, pc, ReasonFailed, "another part of this process"},
		{"refuse_pc", 8, pc, ReasonFailed, "make its buffers smaller"},
		{"refuse_pc", 999, pc, ReasonFailed, "CUPTI_ERROR_UNKNOWN"},
		{"no_reasons", 1, pc, ReasonOtherProfiler, "stop it"},
		{"refuse_profiler", cuptiPrivileges, sass, ReasonPermission, "CAP_SYS_ADMIN"},
		{"refuse_sass", cuptiUnsupported, sass, ReasonNotSupported, "SASS metrics"},
		{"refuse_sass", 14, sass, ReasonActivity, "pause recording first"},
		{"refuse_sass", 8, sass, ReasonFailed, "make its buffers smaller"},
		{"unsupported", 1, sass, ReasonNotSupported, "(architecture)"},
		{"unsupported", 3, sass, ReasonNotSupported, "(vGPU)"},
		{"unsupported", 6, sass, ReasonNotSupported, "(WSL)"},
		{"", 0, DeepConfig{Engine: EngineSASS, Metrics: []string{"smsp__sass_unheard_of"}}, ReasonBadRequest, "leave them out"},
		{"", 0, DeepConfig{Engine: 2}, ReasonBadRequest, "no engine 2"},
		{"", 0, DeepConfig{PeriodLog2: 4}, ReasonBadRequest, "from 5 to 31"},
		{"", 0, DeepConfig{PeriodLog2: 32}, ReasonBadRequest, "from 5 to 31"},
		{"", 0, DeepConfig{HardwareBytes: -1}, ReasonBadRequest, "negative size"},
		{"", 0, DeepConfig{MaxRows: -1}, ReasonBadRequest, "cannot keep -1 rows"},
		{"", 0, DeepConfig{OpenLimit: -1}, ReasonBadRequest, "time limit"},
		{"", 0, DeepConfig{Engine: EngineSASS, Metrics: make([]string, 65)}, ReasonBadRequest, "65 names"},
		{"", 0, DeepConfig{Engine: EngineSASS, Metrics: []string{"a\x00b"}}, ReasonBadRequest, "no name"},
	} {
		t.Run(fmt.Sprintf("%s %d", test.what, test.value), func(t *testing.T) {
			if test.what != "" {
				fake.Set(t, test.what, test.value)
			}
			s := refusal(t, c, test.cfg)
			if s.Reason != test.reason || !strings.Contains(s.Detail, test.detail) || s.Library != fake.CUPTI {
				t.Errorf("%+v, want %q with %q", s, test.reason, test.detail)
			}
			if n := fake.Control("armed", 0); n != 0 {
				t.Errorf("%d things are left armed", n)
			}
		})
	}
	t.Run("no context", func(t *testing.T) {
		if !c.HasContext() {
			t.Error("there is a context")
		}
		fake.DestroyContext(ctx)
		if c.HasContext() {
			t.Error("there is none any more")
		}
		for _, cfg := range []DeepConfig{pc, sass} {
			if s := refusal(t, c, cfg); s.Reason != ReasonNoContext {
				t.Errorf("%+v", s)
			}
		}
	})
	for e := range NumEngines {
		if s := c.DeepStatus(e); !s.OK() {
			t.Errorf("%s: %+v", e, s)
		}
	}
	if s := c.DeepStatus(NumEngines); s.Reason != ReasonBadRequest {
		t.Errorf("%+v", s)
	}
}

func TestWindowsMustBeAskedFor(t *testing.T) {
	fake, c := open(t, Config{})
	start(t, c)
	if n := fake.Control("resources", 0) + fake.Control("callbacks", 0); n != 0 {
		t.Errorf("%d callbacks without windows", n)
	}
	if s := refusal(t, c, DeepConfig{}); s.Reason != ReasonDisabled {
		t.Errorf("%+v", s)
	}
	if s := c.DeepStatus(EnginePCSampling); s.Reason != ReasonDisabled {
		t.Errorf("%+v", s)
	}
	stop(t, c, false)
}

func TestLaunchesAreToldFromTheBeginning(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	told := fake.Control("callbacks", 0)
	if told <= 4 {
		t.Errorf("%d callbacks for calls before the first window, want those of launches too", told)
	}
	closeWindow(t, openWindow(t, c, DeepConfig{}))
	if n := fake.Control("callbacks", 0); n != told {
		t.Errorf("%d callbacks after the first window, %d before", n, told)
	}
}

func TestFullHardwareBufferIsCounted(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	w := openWindow(t, c, DeepConfig{})
	fake.Launch(windowKernel, 5)
	fake.Control("pc_full", 2)
	if err := w.Drain(); err != nil {
		t.Fatal(err)
	}
	r := closeWindow(t, w)
	if r.Totals.HardwareFull != 2 || sum(r) != 5*samplesOfLaunch {
		t.Errorf("totals %+v, %d samples in rows", r.Totals, sum(r))
	}
}

func TestBrokenRecordsAreCounted(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	for broken, want := range map[int64]uint64{1: places, 2: places, 3: places, 4: 5} {
		w := openWindow(t, c, DeepConfig{})
		fake.Launch(windowKernel, 1)
		fake.Control("broken", broken)
		if err := w.Drain(); err != nil {
			t.Fatal(err)
		}
		fake.Control("broken", 0)
		r := closeWindow(t, w)
		rows := 0
		if broken == 4 {
			rows = places // and what lies beyond the buffer is not read
			want += 1024 - places
		}
		if r.Totals.Broken != want || len(r.Rows) != rows {
			t.Errorf("broken in way %d: %d counted, %d rows, want %d and %d", broken, r.Totals.Broken, len(r.Rows), want, rows)
		}
	}
	for broken, want := range map[int64]uint64{2: places, 3: places} {
		w := openWindow(t, c, DeepConfig{Engine: EngineSASS})
		fake.Launch(windowKernel, 1)
		fake.Control("broken", broken)
		r := closeWindow(t, w)
		fake.Control("broken", 0)
		if r.Totals.Broken != want {
			t.Errorf("SASS broken in way %d: %d counted, want %d", broken, r.Totals.Broken, want)
		}
	}
}

func TestRowsAreBounded(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	for _, e := range []Engine{EnginePCSampling, EngineSASS} {
		w := openWindow(t, c, DeepConfig{Engine: e, MaxRows: 10, Metrics: DefaultMetrics[:1]})
		const kernels = 3000 // more than one batch
		for i := range kernels {
			fake.Launch(fmt.Sprintf("_Z3k%dv", i), 1)
		}
		// SASS metrics are read at the end only.
		if err := w.Drain(); errors.Is(err, ErrFull) != (e == EnginePCSampling) {
			t.Errorf("%s: %v", e, err)
		}
		r := closeWindow(t, w)
		total := uint64(kernels * samplesOfLaunch)
		if e == EngineSASS {
			total = kernels * places * 6 * 4 // a grid of 1×2×3 with 4 warps each
		}
		if len(r.Rows) != 10 || r.Totals.LostRows != kernels*places-10 || sum(r)+r.Totals.LostValue != total {
			t.Errorf("%s: %d rows with %d, totals %+v, want %d in all", e, len(r.Rows), sum(r), r.Totals, total)
		}
	}
}

func TestLongNamesAreBounded(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	// The fake cuts names at 1023 bytes.
	long := strings.Repeat("x", 1023)
	w := openWindow(t, c, DeepConfig{})
	fake.Launch(long, 1)
	fake.Launch("bad \xff bytes", 1)
	r := closeWindow(t, w)
	if !slices.Contains(r.Functions, long) || !slices.Contains(r.Functions, "bad \uFFFD bytes") {
		t.Errorf("functions %.80q", r.Functions)
	}
}

// What was sampled once is in the samples of every later window of its device, so no other context
// there may have one while it exists.
func TestOneContextOfADeviceIsSampledInAllWindows(t *testing.T) {
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	fake, c, _ := openDeep(t, Config{})
	other := fake.NewContext(0)
	first, second := fake.NewContext(1), fake.NewContext(1)
	defer fake.DestroyContext(second)
	want := func(contexts, skipped uint64) {
		t.Helper()
		if r := closeWindow(t, openWindow(t, c, DeepConfig{})); r.Totals.Contexts != contexts || r.Totals.SkippedContexts != skipped {
			t.Errorf("totals %+v, want %d contexts, and %d skipped", r.Totals, contexts, skipped)
		}
		if n := fake.Control("mixed", 0); n != 0 {
			t.Errorf("%d times a context was sampled where another one had been", n)
		}
	}
	want(2, 2)
	fake.DestroyContext(other) // which has the order change
	want(2, 1)
	want(2, 1)
	fake.DestroyContext(first)
	want(2, 0)
}

func TestContextsComeAndGoInAWindow(t *testing.T) {
	t.Setenv("FAKE_CUDA_DEVICES", "3")
	for _, e := range []Engine{EnginePCSampling, EngineSASS} {
		t.Run(e.String(), func(t *testing.T) {
			fake, c, ctx := openDeep(t, Config{})
			second := fake.NewContext(1)
			w := openWindow(t, c, DeepConfig{Engine: e, Metrics: DefaultMetrics[:1]})
			on := func(device uint32, n int) {
				for range n {
					fake.LaunchKernel(cuptitest.Kernel{Name: windowKernel, Device: device, Block: [3]uint32{32, 1, 1}})
				}
			}
			on(0, 1)
			on(1, 10)
			if n := fake.DestroyContext(second); n != 0 {
				t.Fatal(n)
			}
			third := fake.NewContext(2)
			on(2, 100) // not seen: it is newer than the window
			if err := w.Drain(); err != nil {
				t.Fatal(err)
			}
			on(2, 1000)
			r := closeWindow(t, w)
			by := map[int32]uint64{}
			for _, row := range r.Rows {
				by[row.Device] += row.Value
			}
			each := uint64(samplesOfLaunch)
			want := map[int32]uint64{0: each, 1: 10 * each}
			contexts, lost := uint64(2), uint64(0)
			if e == EngineSASS { // counts from its opening on, in the contexts that there were, if they stay
				want = map[int32]uint64{0: places}
				contexts, lost = 2, 1
			}
			if fmt.Sprint(by) != fmt.Sprint(want) || r.Totals.Contexts != contexts || r.Totals.LostContexts != lost {
				t.Errorf("by device %v, want %v; totals %+v", by, want, r.Totals)
			}
			fake.DestroyContext(third)
			_ = ctx
		})
	}
}

func TestOneContextOfADeviceIsSampled(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	second := fake.NewContext(0)
	defer fake.DestroyContext(second)
	w := openWindow(t, c, DeepConfig{})
	fake.Launch(windowKernel, 1)
	for range 3 {
		if err := w.Drain(); err != nil {
			t.Fatal(err)
		}
	}
	if r := closeWindow(t, w); r.Totals.Contexts != 1 || r.Totals.SkippedContexts != 1 || sum(r) != samplesOfLaunch {
		t.Errorf("totals %+v, %d samples", r.Totals, sum(r))
	}
	// Patched are all, each with code of its own; and of a window without launches nothing.
	w = openWindow(t, c, DeepConfig{Engine: EngineSASS})
	fake.Launch(windowKernel, 1)
	if r := closeWindow(t, w); r.Totals.Contexts != 2 || r.Totals.SkippedContexts != 0 || r.Totals.Patched != 2*places {
		t.Errorf("totals %+v", r.Totals)
	}
	if r := closeWindow(t, openWindow(t, c, DeepConfig{Engine: EngineSASS})); r.Totals.Patched != 0 {
		t.Errorf("totals %+v", r.Totals)
	}
}

func TestNothingIsPausedWhileAGraphIsCaptured(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	start(t, c)
	defer stop(t, c, false)
	before := fake.Control("enabled", 0)
	if rc := fake.BeginCapture(7); rc != 0 {
		t.Fatal(rc)
	}
	var e *Error
	if err := c.Pause(); !errors.As(err, &e) || e.Status.Reason != ReasonCapture {
		t.Errorf("%v", err)
	}
	if now := fake.Control("enabled", 0); now != before {
		t.Errorf("kinds %b, before %b", now, before)
	}
	if err := c.Resume(); err != nil {
		t.Error(err)
	}
	if rc := fake.EndCapture(7); rc != 0 {
		t.Errorf("the capture is spoilt: %d", rc)
	}
	if err := c.Pause(); err != nil {
		t.Error(err)
	}
	if now := fake.Control("enabled", 0); now == before {
		t.Errorf("kinds %b are still on", now)
	}
	if err := c.Resume(); err != nil {
		t.Error(err)
	}
	if now := fake.Control("enabled", 0); now != before {
		t.Errorf("kinds %b, before %b", now, before)
	}
}

func TestContextFromBeforeIsSeen(t *testing.T) {
	fake := cuptitest.Libraries(t)
	fake.RetainPrimary(0)
	defer fake.ReleasePrimary(0)
	_, c := open(t, Config{Deep: true})
	if !c.HasContext() {
		t.Error("there is no context")
	}
}

func TestPrimaryContextFromBefore(t *testing.T) {
	fake := cuptitest.Libraries(t)
	fake.RetainPrimary(0)
	defer fake.ReleasePrimary(0)
	_, c := open(t, Config{Deep: true})
	forgetSASS(fake)
	for _, e := range []Engine{EnginePCSampling, EngineSASS} {
		// Whether a context from before is being captured is not known at first, so it is not asked
		// whether it is idle.
		if e == 0 {
			if s := refusal(t, c, DeepConfig{Engine: e, OpenLimit: 400 * time.Millisecond}); s.Reason != ReasonNotQuiesced {
				t.Errorf("%+v", s)
			}
		}
		var w *DeepWindow
		for begin := time.Now(); w == nil; {
			var err error
			if w, err = c.OpenDeep(DeepConfig{Engine: e}); err != nil && time.Since(begin) > time.Minute {
				t.Fatal(err)
			}
		}
		fake.Launch(windowKernel, 2)
		if r := closeWindow(t, w); len(r.Rows) == 0 || r.Totals.Contexts != 1 || r.Totals.NotIdle != 0 {
			t.Errorf("%s: %d rows, totals %+v", e, len(r.Rows), r.Totals)
		}
	}
}

// TestStopTellsOfLaunchesNoMore: while CUPTI records kernels still, or the next session could know
// no launch's scope.
func TestStopTellsOfLaunchesNoMore(t *testing.T) {
	runtime.LockOSThread() // a scope is of a thread
	defer runtime.UnlockOSThread()
	fake, c := open(t, Config{Kinds: KindsOf(KindKernel, KindExternal)})
	fake.Set(t, "launch_ns", 100_000)
	defer launching(fake, 4)()
	for i := range 5 {
		start(t, c)
		if err := c.PushScope(uint64(i) + 1); err != nil {
			t.Fatal(err)
		}
		if err := c.PopScope(uint64(i) + 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		stop(t, c, false)
		drain(t, c)
	}
	if n := fake.Control("launches_lost", 0); n != 0 {
		t.Errorf("%d callbacks were switched off during launches while no kernels were recorded", n)
	}
}

func TestStopClosesTheWindow(t *testing.T) {
	if !alone(t) {
		return
	}
	fake, c, ctx := openDeep(t, Config{})
	start(t, c)
	w := openWindow(t, c, DeepConfig{})
	fake.Launch(windowKernel, 4)
	stop(t, c, true)
	if n := fake.Control("armed", 0); n != 0 {
		t.Errorf("%d things are armed after Stop", n)
	}
	if r := closeWindow(t, w); sum(r) != 4*samplesOfLaunch {
		t.Errorf("%d samples", sum(r))
	}
	drain(t, c)
	// Finalized, CUPTI tells of nothing; started again, it does.
	if s := refusal(t, c, DeepConfig{}); s.Reason != ReasonDisabled {
		t.Errorf("after finalize: %+v", s)
	}
	start(t, c)
	// What became of contexts meanwhile nobody knows, but for new ones.
	if s := refusal(t, c, DeepConfig{}); s.Reason != ReasonNoContext {
		t.Errorf("%+v", s)
	}
	fresh := fake.NewContext(0)
	defer fake.DestroyContext(fresh)
	if s := refusal(t, c, DeepConfig{}); s.Reason != ReasonTaken || !strings.HasPrefix(s.Detail, "another CUDA context of this process was sampled on this GPU: ") {
		t.Errorf("beside a context that may still be there: %+v", s)
	}
	fake.DestroyContext(ctx)
	w = openWindow(t, c, DeepConfig{})
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if r := closeWindow(t, w); r.Totals.Contexts != 1 {
		t.Errorf("totals %+v", r.Totals)
	}
	if s := refusal(t, c, DeepConfig{}); s.Reason != ReasonExit {
		t.Errorf("after Close: %+v", s)
	}
}

func TestCapturesAreLeftAlone(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	broken := fake.BrokenCaptures()
	if rc := fake.BeginCapture(77); rc != 0 {
		t.Fatal(rc)
	}
	for _, e := range []Engine{EnginePCSampling, EngineSASS} {
		if s := refusal(t, c, DeepConfig{Engine: e}); s.Reason != ReasonCapture {
			t.Errorf("%+v", s)
		}
	}
	if rc := fake.EndCapture(77); rc != 0 {
		t.Errorf("the capture ended with %d", rc)
	}
	// A stream that goes takes its capture along.
	fake.BeginCapture(78)
	fake.DestroyStream(78)
	for _, e := range []Engine{EnginePCSampling, EngineSASS} {
		w := openWindow(t, c, DeepConfig{Engine: e, CloseLimit: 2 * time.Second})
		// A window may read beside a capture, and waits for it before it closes, but not forever.
		if rc := fake.BeginCapture(79); rc != 0 {
			t.Fatal(rc)
		}
		if err := w.Drain(); err != nil {
			t.Fatal(err)
		}
		closeWindow(t, w)
		if rc := fake.EndCapture(79); rc != 0 {
			t.Errorf("%s: the capture ended with %d", e, rc)
		}
	}
	if n := fake.BrokenCaptures(); n != broken {
		t.Errorf("%d captures broken", n-broken)
	}
}

// TestWindowsBesideLaunchesModulesAndCaptures: the fake counts what must not happen at the same
// time.
func TestWindowsBesideLaunchesModulesAndCaptures(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	fake.Set(t, "launch_ns", 20000)
	broken := fake.BrokenCaptures()
	var over atomic.Bool
	var threads sync.WaitGroup
	run := func(f func(i int)) {
		threads.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for i := 0; !over.Load(); i++ {
				f(i)
			}
		})
	}
	run(func(int) { fake.Launch(windowKernel, 20) })
	run(func(int) { fake.Launch(otherKernel, 20) })
	run(func(i int) { fake.UnloadModule(fake.LoadModule(fmt.Appendf(nil, "module %d", i%50))) })
	run(func(int) {
		for range 3 {
			if rc := fake.BeginCapture(5); rc == 0 {
				if rc := fake.EndCapture(5); rc != 0 {
					t.Errorf("a capture ended with %d", rc)
				}
			}
		}
		time.Sleep(200 * time.Microsecond)
	})
	var opened [NumEngines]int
	for i := 0; (opened[EnginePCSampling] < 10 || opened[EngineSASS] < 10) && i < 10000; i++ {
		e := Engine(i % 2)
		if e == EngineSASS {
			forgetSASS(fake)
		}
		w, err := c.OpenDeep(DeepConfig{Engine: e})
		if err != nil {
			var refused *Error
			if !errors.As(err, &refused) || refused.Status.Reason != ReasonCapture && refused.Status.Reason != ReasonNotQuiesced {
				t.Fatal(err)
			}
			continue
		}
		opened[e]++
		for range 5 {
			if err := w.Drain(); err != nil {
				t.Error(err)
			}
		}
		r := closeWindow(t, w)
		if e == EnginePCSampling && sum(r) != r.Totals.Samples {
			t.Errorf("%d samples in rows, totals %+v", sum(r), r.Totals)
		}
		if r.Totals.BarrierTimeouts != 0 {
			t.Errorf("totals %+v", r.Totals)
		}
	}
	over.Store(true)
	threads.Wait()
	t.Logf("opened %v", opened)
	if opened[EnginePCSampling] < 10 || opened[EngineSASS] < 10 {
		t.Errorf("windows opened: %v", opened)
	}
	if n := fake.BrokenCaptures(); n != broken {
		t.Errorf("%d captures broken", n-broken)
	}
}

// held has a module load in progress until what it returns is called.
func held(t *testing.T, fake *cuptitest.Fake) func() {
	t.Helper()
	fake.Control("hold", 1)
	var thread sync.WaitGroup
	thread.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		fake.UnloadModule(fake.LoadModule([]byte("slow to load")))
	})
	process.Eventually(t, time.Minute, "the module is being loaded", func() bool { return fake.Control("held", 0) == 1 })
	return func() {
		fake.Control("hold", 0)
		thread.Wait()
	}
}

func TestRestlessProgram(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	release := held(t, fake)
	for e := range NumEngines {
		if s := refusal(t, c, DeepConfig{Engine: e, OpenLimit: 12 * time.Second}); s.Reason != ReasonNotQuiesced {
			t.Errorf("%s: %+v", e, s)
		}
	}
	release()
	for e := range NumEngines {
		closeWindow(t, openWindow(t, c, DeepConfig{Engine: e}))
	}
}

// TestLaunchWhoseEndIsNotTold: the thread is taken to be in that launch until CUPTI tells of its
// next one.
func TestLaunchWhoseEndIsNotTold(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	closeWindow(t, openWindow(t, c, DeepConfig{})) // launches are watched from now on
	launch, launched := make(chan bool), make(chan bool)
	var thread sync.WaitGroup
	thread.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for range launch {
			fake.Launch(windowKernel, 1)
			launched <- true
		}
	})
	fake.Set(t, "missing_ends", 1)
	launch <- true
	<-launched
	s := refusal(t, c, DeepConfig{OpenLimit: 12 * time.Second})
	if s.Reason != ReasonNotQuiesced || !strings.Contains(s.Detail, "(cuLaunchKernel of thread ") {
		t.Errorf("%+v", s)
	}
	launch <- true
	<-launched
	close(launch)
	thread.Wait()
	for e := range NumEngines {
		closeWindow(t, openWindow(t, c, DeepConfig{Engine: e}))
	}
}

func TestDrainLeavesItForLaterWhileModulesLoad(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	w := openWindow(t, c, DeepConfig{})
	fake.Launch(windowKernel, 3)
	release := held(t, fake)
	for range 2 {
		if err := w.Drain(); err != nil {
			t.Error(err)
		}
	}
	release()
	r := closeWindow(t, w)
	if r.Totals.Deferred != 2 || sum(r) != 3*samplesOfLaunch {
		t.Errorf("totals %+v, %d samples", r.Totals, sum(r))
	}
}

func TestCallsWaitForOurs(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	w := openWindow(t, c, DeepConfig{})
	fake.Control("hang", 1)
	var threads sync.WaitGroup
	threads.Go(func() {
		if err := w.Drain(); err != nil {
			t.Error(err)
		}
	})
	threads.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		// Until the drain has begun this one does not wait, so there is always another.
		for coreDeepTotals().BlockedCalls == 0 {
			fake.UnloadModule(fake.LoadModule([]byte("image")))
		}
	})
	process.Eventually(t, time.Minute, "a call waits", func() bool { return coreDeepTotals().BlockedCalls > 0 })
	fake.Control("hang", 0)
	threads.Wait()
	closeWindow(t, w)
}

// alone runs the test again in a process of its own, for what is for the life of a process, and
// reports true in that one.
// soak reports whether tests run at full length.
func soak() bool { return os.Getenv("GPUFLIGHT_SOAK") != "" }

func alone(t *testing.T) bool {
	t.Helper()
	const variable = "GPUFLIGHT_TEST_ALONE"
	if os.Getenv(variable) == t.Name() {
		return true
	}
	t.Parallel()
	cuptitest.Build(t) // skips where that is not possible
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"="+t.Name())
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Errorf("in its own process: %v\n%s", err, out)
	}
	return false
}

func TestNamesThatAreShared(t *testing.T) {
	if alone(t) {
		namesStayFlat(t, 0)
	}
}

func TestNamesThatAreCopies(t *testing.T) {
	if alone(t) {
		namesStayFlat(t, 1)
	}
}

func namesStayFlat(t *testing.T, copied int64) {
	t.Helper()
	fake, c, _ := openDeep(t, Config{})
	fake.Set(t, "names_copied", copied)
	fake.LoadModule([]byte("one image"))
	c.Cubins() // computes its CRC
	name := "_Z" + strings.Repeat("long", 200)
	var kept uint64
	cycle := func() {
		w := openWindow(t, c, DeepConfig{})
		for range 20 {
			fake.Launch(name, 1)
			if err := w.Drain(); err != nil {
				t.Fatal(err)
			}
		}
		r := closeWindow(t, w)
		if sum(r) != 20*samplesOfLaunch || r.Functions[1] != name {
			t.Fatalf("%d samples of %.20q", sum(r), r.Functions)
		}
		kept = r.Totals.NamesKept
	}
	for range 20 {
		cycle()
	}
	before := measure(t)
	for range 1500 {
		cycle()
	}
	after := measure(t)
	// Copies that nobody frees would be 1500·20·4 times 800 bytes: 92 MiB. The race detector takes
	// some for itself.
	t.Logf("%d names were copied; before %+v, after %+v", fake.Control("names_given", 0), before, after)
	if after.residentKiB > before.residentKiB+40<<10 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if copied == 1 && kept != 0 || copied == 0 && kept == 0 {
		t.Errorf("%d names are kept in the last window", kept)
	}
}

func TestCUPTIThatDoesNotComeBackFromEnabling(t *testing.T) {
	if !alone(t) {
		return
	}
	fake, c, _ := openDeep(t, Config{})
	fake.Control("hang", 2)
	if s := refusal(t, c, DeepConfig{Engine: EngineSASS, OpenLimit: 200 * time.Millisecond}); s.Reason != ReasonStuck || !strings.Contains(s.Detail, "start the process anew") {
		t.Errorf("%+v", s)
	}
	stuck(t, fake, c)
}

func TestCUPTIThatDoesNotComeBackFromReading(t *testing.T) {
	if !alone(t) {
		return
	}
	fake, c, _ := openDeep(t, Config{})
	w := openWindow(t, c, DeepConfig{CloseLimit: 200 * time.Millisecond})
	fake.Control("hang", 1)
	var e *Error
	if err := w.Drain(); !errors.As(err, &e) || e.Status.Reason != ReasonStuck {
		t.Errorf("Drain: %v", err)
	}
	if r, err := w.Close(); err != nil || r.Problem == nil || r.Problem.Reason != ReasonStuck {
		t.Errorf("%+v, %v", r, err)
	}
	stuck(t, fake, c)
}

func TestCUPTIThatDoesNotComeBackFromDisabling(t *testing.T) {
	if !alone(t) {
		return
	}
	fake, c, _ := openDeep(t, Config{})
	w := openWindow(t, c, DeepConfig{CloseLimit: 200 * time.Millisecond})
	fake.Launch(windowKernel, 1)
	if err := w.Drain(); err != nil {
		t.Fatal(err)
	}
	fake.Control("hang", 3)
	r, err := w.Close()
	if err != nil || r.Problem == nil || r.Problem.Reason != ReasonStuck {
		t.Fatalf("%+v, %v", r, err)
	}
	// What had been taken is there.
	if sum(r) != samplesOfLaunch || len(r.Functions) != 2 || r.Functions[1] != windowKernel {
		t.Errorf("%d samples of %q", sum(r), r.Functions)
	}
	stuck(t, fake, c)
}

// stuck sees that a process goes on whose CUPTI hangs, and lets it come back in the end.
func stuck(t *testing.T, fake *cuptitest.Fake, c *Collector) {
	t.Helper()
	for e := range NumEngines {
		if s := refusal(t, c, DeepConfig{Engine: e}); s.Reason != ReasonStuck {
			t.Errorf("%s: %+v", e, s)
		}
	}
	// Nobody waits at the gate, and contexts can be destroyed.
	fake.UnloadModule(fake.LoadModule([]byte("image")))
	if rc := fake.DestroyContext(fake.NewContext(0)); rc != 0 {
		t.Error(rc)
	}
	start(t, c)
	launches := 1 // each blocks for 10 s
	if soak() {
		launches = 5
	}
	fake.Launch(otherKernel, launches)
	if err := c.Stop(true); !errors.Is(err, ErrNotDetached) {
		t.Errorf("Stop: %v", err)
	}
	if n := count(drain(t, c), KindKernel); n != launches {
		t.Errorf("%d kernels", n)
	}
	// When it does come back, it takes everything back.
	fake.Control("hang", 0)
	process.Eventually(t, time.Minute, "nothing is armed", func() bool { return fake.Control("armed", 0) == 0 })
	if s := refusal(t, c, DeepConfig{}); s.Reason != ReasonStuck {
		t.Errorf("%+v", s)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestWindowsLeakNothing(t *testing.T) {
	fake, c, _ := openDeep(t, Config{BufferBytes: 256 << 10, Buffers: 4})
	start(t, c)
	cycle := func(i int) {
		id := fake.LoadModule(fmt.Appendf(nil, "module %d", i%10))
		cfg := DeepConfig{Engine: Engine(i % 2), Serialize: i%4 == 0}
		if cfg.Engine == EngineSASS {
			if err := c.Pause(); err != nil {
				t.Fatal(err)
			}
		}
		w := openWindow(t, c, cfg)
		fake.Launch(windowKernel, 10)
		if err := w.Drain(); err != nil {
			t.Fatal(err)
		}
		fake.Launch(otherKernel, 10)
		r := closeWindow(t, w)
		if cfg.Engine == EngineSASS {
			if err := c.Resume(); err != nil {
				t.Fatal(err)
			}
		} else if sum(r) != 20*samplesOfLaunch {
			t.Fatalf("window %d: %d samples", i, sum(r))
		}
		if len(r.Rows) == 0 || r.Totals.LostRows != 0 {
			t.Fatalf("window %d: %d rows, %+v", i, len(r.Rows), r.Totals)
		}
		if rc := fake.UnloadModule(id); rc != 0 {
			t.Fatal(rc)
		}
		for c.Pending() > 0 {
			b, err := c.Take(time.Second)
			if b == nil || err != nil {
				t.Fatal(b, err)
			}
			b.Release()
		}
	}
	cycles := 80
	if soak() {
		cycles = 240
	}
	for i := range 40 {
		cycle(i)
	}
	before := measure(t)
	for i := range cycles {
		cycle(i)
	}
	after := measure(t)
	t.Logf("before %+v, after %+v", before, after)
	if after.files > before.files || after.threads > before.threads+4 || after.mappings > before.mappings+cycles/6 || after.residentKiB > before.residentKiB+8<<10 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if s := c.CubinStats(); s.Images != 10 || s.Refused != 0 {
		t.Errorf("%+v", s)
	}
	stop(t, c, true)
	drain(t, c)
}

// TestWindowsInAnyOrder does in random order whatever may be done, on several threads, and then
// sees that everything is at rest and that a window works.
func TestWindowsInAnyOrder(t *testing.T) {
	if !alone(t) {
		return
	}
	t.Setenv("FAKE_CUDA_DEVICES", "4")
	rounds := 2
	if soak() {
		rounds = 6
	}
	for seed := range uint64(rounds) {
		fake, c, ctx := openDeep(t, Config{BufferBytes: 64 << 10, Buffers: 4, CubinBytes: 4096})
		var over atomic.Bool
		var threads sync.WaitGroup
		worker := func(n uint64, f func(random *rand.Rand)) {
			threads.Go(func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				random := rand.New(rand.NewPCG(seed, n))
				for !over.Load() {
					f(random)
				}
			})
		}
		worker(1, func(random *rand.Rand) {
			fake.LaunchKernel(cuptitest.Kernel{Name: windowKernel, Device: uint32(random.IntN(3))})
			runtime.Gosched()
		})
		worker(2, func(random *rand.Rand) {
			other := fake.NewContext(random.IntN(3))
			fake.Launch(otherKernel, random.IntN(50))
			fake.DestroyContext(other)
		})
		worker(3, func(random *rand.Rand) {
			id := fake.LoadModule(make([]byte, 1+random.IntN(3000)))
			if random.IntN(2) == 0 {
				fake.BeginCapture(9)
				fake.EndCapture(9)
			}
			fake.UnloadModule(id)
		})
		worker(4, func(*rand.Rand) {
			for _, at := range c.Cubins() {
				if image := c.CubinImage(at.CRC); image != nil && at.CRC != 0 && fake.CRC(image) != at.CRC {
					t.Errorf("the image of %x has CRC %x", at.CRC, fake.CRC(image))
				}
			}
			c.CubinStats()
			c.DeepStatus(EngineSASS)
			b, err := c.Take(time.Millisecond)
			if err == nil && b != nil {
				b.Release()
			}
		})
		random := rand.New(rand.NewPCG(seed, 0))
		var window *DeepWindow
		for range 400 {
			switch random.IntN(9) {
			case 0:
				_ = c.Start()
			case 1:
				_ = c.Stop(random.IntN(2) == 0)
			case 2:
				_ = c.Pause()
			case 3:
				_ = c.Resume()
			case 4, 5:
				began := time.Now()
				if window == nil || window.result != nil {
					forgetSASS(fake)
				}
				w, err := c.OpenDeep(DeepConfig{Engine: Engine(random.IntN(2)), MaxRows: 1 + random.IntN(100), Serialize: random.IntN(2) == 0, OpenLimit: 20 * time.Second, CloseLimit: 20 * time.Second})
				if d := time.Since(began); d > time.Second {
					t.Logf("open took %s: %v", d, err)
				}
				if err == nil {
					window = w
				}
			case 6, 7:
				if window != nil {
					_ = window.Drain()
				}
			case 8:
				if window != nil {
					closeWindow(t, window)
				}
			}
		}
		over.Store(true)
		threads.Wait()
		if window != nil {
			closeWindow(t, window)
		}
		if err := c.Stop(false); err != nil {
			t.Error(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		// CUPTI may have been finalized, and then nobody knows of contexts from before that are not
		// primary.
		if n := fake.DestroyContext(ctx); n != 0 {
			t.Fatal(n)
		}
		fresh := fake.NewContext(3) // where none was sampled whose end may not have been told
		w := openWindow(t, c, DeepConfig{})
		for range 3 {
			fake.LaunchKernel(cuptitest.Kernel{Name: windowKernel, Device: 3, Block: [3]uint32{32, 1, 1}})
		}
		if r := closeWindow(t, w); sum(r) != 3*samplesOfLaunch {
			t.Errorf("%d samples after all that", sum(r))
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		drain(t, c)
		if n := fake.Control("armed", 0); n != 0 {
			t.Fatalf("%d things are left armed", n)
		}
		fake.DestroyContext(fresh)
	}
}

func TestCubins(t *testing.T) {
	fake, c, _ := openDeep(t, Config{CubinBytes: 1000})
	image := func(c byte, n int) []byte { return bytes.Repeat([]byte{c}, n) }
	a, b := image('a', 400), image('b', 400)
	first := fake.LoadModule(a)
	second := fake.LoadModule(a) // the same again
	fake.LoadModule(b)
	if got := c.CubinStats(); got != (CubinStats{Images: 2, Bytes: 800}) {
		t.Errorf("%+v", got)
	}
	want := []Cubin{{CRC: fake.CRC(a), Size: 400, Loaded: true}, {CRC: fake.CRC(b), Size: 400, Loaded: true}}
	if got := c.Cubins(); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	// There is no room for a third, and none is made by what is loaded.
	fake.LoadModule(image('c', 300))
	if got := c.CubinStats(); got != (CubinStats{Images: 2, Bytes: 800, Refused: 1, RefusedBytes: 300}) {
		t.Errorf("%+v", got)
	}
	fake.UnloadModule(first)
	if !c.Cubins()[0].Loaded {
		t.Error("one of two modules is unloaded, and their image is said to be")
	}
	fake.UnloadModule(second)
	if got := c.Cubins(); got[0].Loaded || !got[1].Loaded {
		t.Errorf("%+v", got)
	}
	if got := c.CubinImage(fake.CRC(a)); !bytes.Equal(got, a) {
		t.Errorf("the image of an unloaded module: %q", got)
	}
	d := image('d', 300)
	fake.LoadModule(d)
	if got := c.CubinStats(); got != (CubinStats{Images: 2, Bytes: 700, Refused: 1, RefusedBytes: 300, Evicted: 1}) {
		t.Errorf("%+v", got)
	}
	if got := c.CubinImage(fake.CRC(a)); got != nil {
		t.Errorf("an evicted image: %q", got)
	}
	if got := c.CubinImage(fake.CRC(d)); !bytes.Equal(got, d) {
		t.Errorf("image %q", got)
	}
	// One that is larger than the bound never has room, and takes nobody's.
	fake.LoadModule(image('e', 1001))
	if got := c.CubinStats(); got.Images != 2 || got.Refused != 2 || got.RefusedBytes != 1301 {
		t.Errorf("%+v", got)
	}
}

func TestCubinsOfAClosedCollectorAreGone(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	fake.LoadModule([]byte("gone soon"))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if got := c.CubinStats(); got.Images != 0 || got.Bytes != 0 {
		t.Errorf("%+v", got)
	}
}

// TestFirstPauseIsAtRest: also before there was a window, since launches during the switch may lose
// their records.
func TestFirstPauseIsAtRest(t *testing.T) {
	fake, c := open(t, Config{Kinds: KindsOf(KindKernel), Deep: true})
	start(t, c)
	fake.Set(t, "launch_ns", 100_000)
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() { fake.LaunchThreads(1, 2000, "busy") })
	}
	defer running.Wait()
	time.Sleep(10 * time.Millisecond)
	fake.Control("switched_concurrently", 0)
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	if n := fake.Control("switched_concurrently", 0); n != 0 {
		t.Errorf("switched %d times during launches", n)
	}
	if err := c.Resume(); err != nil {
		t.Fatal(err)
	}
}

func TestQuiesceFailure(t *testing.T) {
	for want, q := range map[string]quiesceFailure{
		"":                                 {},
		" (CUPTI is handing over records)": {what: "CUPTI is handing over records"},
		" (cuLaunchKernel of thread 7 was in flight)": {what: "cuLaunchKernel", thread: 7},
	} {
		if got := q.String(); got != want {
			t.Errorf("%+v: %q, want %q", q, got, want)
		}
	}
}

// TestOneWindowOfSASSMetrics: CUPTI cannot be configured again, so a second window is refused,
// whatever it requests.
func TestOneWindowOfSASSMetrics(t *testing.T) {
	fake, c, _ := openDeep(t, Config{})
	// What CUPTI was not configured for does not count.
	fake.Set(t, "refuse_profiler", cuptiPrivileges)
	if s := refusal(t, c, DeepConfig{Engine: EngineSASS}); s.Reason != ReasonPermission {
		t.Errorf("%+v", s)
	}
	fake.Control("refuse_profiler", 0)
	closeWindow(t, openWindow(t, c, DeepConfig{Engine: EngineSASS}))
	for _, metrics := range [][]string{nil, DefaultMetrics[:1]} {
		s := refusal(t, c, DeepConfig{Engine: EngineSASS, Metrics: metrics})
		if s.Reason != ReasonOnce || s.Detail != "the process has had its window of SASS metrics: request PC sampling, or restart the process" {
			t.Errorf("%+v", s)
		}
	}
	closeWindow(t, openWindow(t, c, DeepConfig{}))
}

// TestHoldLease is no test: another process that runs it holds the lease of each GPU in a folder
// until its input ends.
func TestHoldLease(t *testing.T) {
	path := os.Getenv("GPUFLIGHT_TEST_LEASE")
	if path == "" {
		t.Skip("it is run by TestOneProcessSamplesAGPU")
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		fmt.Println("taken")
		return
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// holdLease has another process hold a lease until what it returns is called, and returns what that
// process said.
func holdLease(t *testing.T, path string) (said string, pid int, release func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHoldLease$")
	cmd.Env = append(os.Environ(), "GPUFLIGHT_TEST_LEASE="+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("ready"))
	if _, err := io.ReadFull(out, line); err != nil {
		t.Fatal(err)
	}
	return string(line), cmd.Process.Pid, func() { _, _ = in.Close(), cmd.Wait() }
}

func TestOneProcessSamplesAGPU(t *testing.T) {
	const device = 6 // which no other test samples
	t.Setenv("FAKE_CUDA_DEVICES", strconv.Itoa(device+1))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fake, c := open(t, Config{Deep: true})
	forgetSASS(fake)
	ctx := fake.NewContext(device)
	defer fake.DestroyContext(ctx)
	dir := t.TempDir()
	path := filepath.Join(dir, "pc-"+strings.ReplaceAll(strings.TrimPrefix(c.Devices()[device].UUID, "GPU-"), "-", "")+".lock")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	said, pid, release := holdLease(t, path)
	if said != "ready" {
		t.Fatal(said)
	}
	want := fmt.Sprintf("process %d samples this GPU, and holds it until it exits: end that process, or request SASS metrics", pid)
	if s := refusal(t, c, DeepConfig{LeaseDir: dir}); s.Reason != ReasonTaken || s.Detail != want {
		t.Errorf("%+v, want %q", s, want)
	}
	if n := fake.Control("armed", 0); n != 0 {
		t.Errorf("%d things are armed", n)
	}
	if r := closeWindow(t, openWindow(t, c, DeepConfig{Engine: EngineSASS, LeaseDir: dir})); r.Totals.Contexts != 1 {
		t.Errorf("SASS metrics: totals %+v", r.Totals)
	}
	release()
	held := func() bool {
		said, _, release := holdLease(t, path)
		release()
		return said == "taken"
	}
	// A window that CUPTI refuses leaves the GPU to others.
	fake.Set(t, "counters_taken", 26)
	if s := refusal(t, c, DeepConfig{LeaseDir: dir}); s.Reason != ReasonOtherProfiler {
		t.Errorf("%+v", s)
	}
	fake.Control("counters_taken", 0)
	if held() {
		t.Error("a window that was refused holds the lease")
	}
	closeWindow(t, openWindow(t, c, DeepConfig{LeaseDir: dir}))
	if !held() {
		t.Error("after a window the lease is free")
	}
}
