// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/deep/control"
)

// deepEngines is a fake that arms immediately. SASS has no permission unless the test grants it,
// and kernels are not recorded while it is armed.
type deepEngines struct {
	sass   bool
	disarm error
}

func (deepEngines) Ready() bool  { return true }
func (deepEngines) Drain() error { return nil }

func (e deepEngines) Arm(engine deep.Engine, _ uint64) (deep.Session, error) {
	if engine == deep.SASS && !e.sass {
		return nil, deep.NewError(deep.StatusNoPermission, "")
	}
	return e, nil
}

func (e deepEngines) Disarm() (deep.Collected, error) {
	return deep.Collected{Rows: 1234, Samples: 56789, Functions: 1, Lost: 5}, e.disarm
}

// listenDeep makes this process accept window requests, as the environment configures it.
func listenDeep(t *testing.T, cfg deep.Config, e deepEngines, process control.Process) (pid string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", dir)
	if cfg.Blackout == 0 {
		cfg.Blackout = -1
	}
	cfg.CoolDown = -1
	c, err := deep.New(cfg, e)
	if err != nil {
		t.Fatal(err)
	}
	c.Start()
	s, err := control.Listen(control.PlaceFromEnv(os.Getenv), process, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := c.Stop(ctx); err != nil {
			t.Error(err)
		}
		s.Close()
	})
	return strconv.Itoa(os.Getpid())
}

func receive[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(2 * time.Minute):
		t.Fatal("nothing came")
	}
	return v
}

func TestDeep_WindowCollects(t *testing.T) {
	pid := listenDeep(t, deep.Config{}, deepEngines{}, control.Process{})
	code, stdout, stderr := command("deep", pid, "--for", "20ms", "--engine", "both")
	if code != 0 || stderr != "gpuflight: window 1 of process "+pid+" is open: both for 20ms\n" {
		t.Errorf("status %d, stderr %q", code, stderr)
	}
	want := regexp.MustCompile(`^window 1: the window was opened and its data collected; not with sass: this process may not read the GPU's counters; [^\n]+; it closed after \S+ \(time\)
  pc: 56,789 samples in 1,234 rows from 1 function, 5 lost
$`)
	if !want.MatchString(stdout) {
		t.Errorf("stdout %q", stdout)
	}
	code, stdout, _ = command("deep", "--json", pid, "--for=20ms")
	var w deep.Window
	if err := json.Unmarshal([]byte(stdout), &w); err != nil || code != 0 || w.ID != 2 || w.Collected.Rows != 1234 || w.Outcome.Status != deep.StatusCollected {
		t.Errorf("status %d, %v, %+v", code, err, w)
	}
	code, stdout, _ = command("deep", "--engine=sass", pid)
	if code != exitRefused || !strings.HasPrefix(stdout, "window 3 did not open: this process may not read the GPU's counters") {
		t.Errorf("status %d, stdout %q", code, stdout)
	}
}

func TestDeep_WindowRefusedOrFailed(t *testing.T) {
	pid := listenDeep(t, deep.Config{Blackout: time.Hour}, deepEngines{}, control.Process{})
	code, stdout, stderr := command("deep", pid)
	if code != exitRefused || stdout != "" || !strings.HasPrefix(stderr, "gpuflight deep: process "+pid+" refuses: windows are not yet allowed so soon after the start (allowed in ") {
		t.Errorf("status %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	code, stdout, _ = command("deep", pid, "--json")
	var refused deep.Window
	if err := json.Unmarshal([]byte(stdout), &refused); err != nil || code != exitRefused || refused.Outcome.Status != deep.StatusBlackout {
		t.Errorf("status %d, stdout %q: %v", code, stdout, err)
	}
	code, stdout, _ = command("deep", pid, "--status", "--json")
	if code != 0 || strings.Contains(stdout, `"next"`) {
		t.Errorf("without a schedule: status %d, stdout %q", code, stdout)
	}
	code, stdout, stderr = command("deep", pid, "--close")
	if code != exitRefused || stdout != "" || stderr != "gpuflight deep: no window is open in process "+pid+"\n" {
		t.Errorf("status %d, stdout %q, stderr %q", code, stdout, stderr)
	}

	pid = listenDeep(t, deep.Config{}, deepEngines{disarm: errors.New("odd \x1b[2J")}, control.Process{})
	code, stdout, _ = command("deep", pid, "--for=20ms")
	if code != 1 || !strings.Contains(stdout, "window 1: the engine failed (odd \uFFFD[2J); it closed after ") || !strings.Contains(stdout, "(failure)\n") {
		t.Errorf("status %d, stdout %q", code, stdout)
	}
}

func TestDeep_AfterSASSWindow(t *testing.T) {
	pid := listenDeep(t, deep.Config{CoolDown: -1}, deepEngines{sass: true}, control.Process{})
	const used = "the process has had its window of sass, since CUPTI cannot be configured twice; ask for pc, or restart the process"
	sass := []string{"deep", pid, "--for", "20ms", "--engine", "sass"}
	if code, stdout, _ := command(sass...); code != 0 || strings.Contains(stdout, used) {
		t.Errorf("status %d, stdout %q", code, stdout)
	}
	code, stdout, stderr := command(sass...)
	if code != exitRefused || stdout != "" || stderr != "gpuflight deep: process "+pid+" refuses: "+used+"\n" {
		t.Errorf("status %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	code, stdout, stderr = command("deep", pid, "--for", "20ms", "--engine", "both")
	if code != 0 || !strings.Contains(stderr, " is open: pc for 20ms\n") || !strings.Contains(stdout, "; not with sass: "+used+"; it closed after ") {
		t.Errorf("status %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	if _, stdout, _ = command("deep", pid, "--status"); !strings.Contains(stdout, "refused because of sass_used: 1\n") {
		t.Errorf("stdout %q", stdout)
	}
}

func TestDeep_Interrupted(t *testing.T) {
	closed := make(chan deep.Window, 1)
	pid := listenDeep(t, deep.Config{Closed: func(w deep.Window) { closed <- w }}, deepEngines{}, control.Process{})
	ctx, cancel := context.WithCancel(t.Context())
	var stdout bytes.Buffer
	stderr := &cancelling{cancel: cancel}
	if code := run(ctx, []string{"deep", pid, "--for=300ms"}, &stdout, stderr); code != 1 || stdout.Len() > 0 {
		t.Errorf("status %d, stdout %q", code, &stdout)
	}
	if want := "gpuflight deep: interrupted; the window of process " + pid + " ends by itself\n"; !strings.HasSuffix(stderr.String(), want) {
		t.Errorf("stderr %q", stderr)
	}
	if w := receive(t, closed); w.Closed != deep.ClosedTime {
		t.Errorf("window %+v", w)
	}
}

// cancelling is a stderr that cancels the context at the first write, as ctrl-C would.
type cancelling struct {
	bytes.Buffer
	cancel func()
}

func (c *cancelling) Write(b []byte) (int, error) {
	c.cancel()
	return c.Buffer.Write(b)
}

func TestDeep_ListAndStatus(t *testing.T) {
	when, err := deep.ParseRules("scope(step).p95 > 2ms for 1s")
	if err != nil {
		t.Fatal(err)
	}
	opened := make(chan deep.Window, 10)
	pid := listenDeep(t, deep.Config{Every: time.Hour, When: when, Opened: func(w deep.Window) { opened <- w }}, deepEngines{},
		control.Process{Service: "train\x07er", Command: "python3 train.py"})
	code, stdout, stderr := command("deep", "--list")
	lines := strings.Split(stdout, "\n")
	if code != 0 || stderr != "" || len(lines) < 3 || !strings.HasPrefix(lines[0], "PID ") {
		t.Fatalf("status %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	row := regexp.MustCompile(fmt.Sprintf(`(?m)^%s +%d +0 +- +train\x{FFFD}er +python3 train.py$`, pid, os.Geteuid()))
	if !row.MatchString(stdout) {
		t.Errorf("stdout %q", stdout)
	}
	if code, _, _ := command("deep", pid, "--engine=sass"); code != exitRefused {
		t.Errorf("status %d", code)
	}
	receive(t, opened)
	done := make(chan int)
	go func() {
		code, _, _ := command("deep", pid, "--for=1m")
		done <- code
	}()
	receive(t, opened)
	code, stdout, stderr = command("deep", pid, "--status")
	if code != 0 || stderr != "" {
		t.Errorf("status %d, stderr %q", code, stderr)
	}
	for _, want := range []string{
		"process " + pid + ", train\uFFFDer python3 train.py\n", "0 windows, 1 attempt without data\n", "open since ", ": pc for 1m0s, by socket\n", "next scheduled window: ",
		"WINDOW  START", "sass    socket  -       0     no_permission  gpuflight deep, process " + pid,
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in %q", want, stdout)
		}
	}
	var list []listing
	_, stdout, _ = command("deep", "--list", "--json")
	if err := json.Unmarshal([]byte(stdout), &list); err != nil {
		t.Fatal(err)
	}
	found := false
	for _, l := range list {
		found = found || strconv.Itoa(l.PID) == pid && l.Open != nil && l.Process.Service == "train\x07er"
	}
	if !found {
		t.Errorf("list %+v", list)
	}
	var all struct {
		Process control.Process
		Report  deep.Report
	}
	_, stdout, _ = command("deep", "--status", "--json", pid)
	if err := json.Unmarshal([]byte(stdout), &all); err != nil || all.Report.Attempts != 1 || all.Process.Command != "python3 train.py" {
		t.Errorf("%v, %+v", err, all)
	}
	if code, stdout, stderr = command("deep", "--close", pid); code != 0 || stdout != "" || stderr != "" {
		t.Errorf("status %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	if code := receive(t, done); code != 0 {
		t.Errorf("status %d", code)
	}
}

func TestDeep_Arguments(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	own := strconv.Itoa(os.Getpid())
	for _, tc := range []struct {
		name   string
		args   []string
		code   int
		stderr string
	}{
		{"nothing", nil, 2, "give the id of one process"},
		{"two processes", []string{"1", "2"}, 2, "give the id of one process"},
		{"a name", []string{"train"}, 2, `"train" is not a process id`},
		{"zero", []string{"0"}, 2, `"0" is not a process id`},
		{"an engine that there is not", []string{"1", "--engine", "nvtx"}, 2, `--engine: "nvtx" is no engine; there are pc, sass and both`},
		{"too long", []string{"1", "--for", "2m"}, 2, "--for 2m0s: a window is 10ms to 1m0s long"},
		{"of no length", []string{"1", "--for", "0s"}, 2, "--for 0s: a window is 10ms to 1m0s long"},
		{"no duration", []string{"1", "--for", "long"}, 2, "write a duration with its unit, such as 500ms or 2s (see gpuflight deep --help)"},
		{"a flag that there is not", []string{"1", "--frob"}, 2, "there is no flag --frob (see gpuflight deep --help)"},
		{"two things", []string{"1", "--status", "--close"}, 2, "exclude each other"},
		{"a list of one", []string{"1", "--list"}, 2, "--list takes no process"},
		{"a length for nothing", []string{"1", "--status", "--for", "1s"}, 2, "are for a new window"},
		{"a process that is not there", []string{"2147483647"}, 1, "process 2147483647: there is no such process"},
		{"a process that does not listen", []string{own}, 1, "process " + own + ": the process takes no requests for deep windows"},
		{"the status of one", []string{"--status", own}, 1, "process " + own + ": the process takes no requests for deep windows"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := command(append([]string{"deep"}, tc.args...)...)
			if code != tc.code || stdout != "" || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("status %d, stdout %q, stderr %q", code, stdout, stderr)
			}
		})
	}
	if code, stdout, _ := command("deep", "--help"); code != 0 || !strings.Contains(stdout, "gpuflight deep 4711 --for 2s --engine sass") || !strings.Contains(stdout, "  --for DURATION\n") {
		t.Errorf("status %d, stdout %q", code, stdout)
	}
}
