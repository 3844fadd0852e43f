// SPDX-License-Identifier: Apache-2.0

package distribution_test

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

var demo = process.Binary{Env: "GPUFLIGHT_DEMO", Path: ".tools/demo", Make: "make .tools/demo"}

// demoLimit is several times the duration of a demo on two idle cores.
const demoLimit = 2 * time.Minute

// demoRun is a demo with its own ports and a temporary folder.
type demoRun struct {
	cmd   *exec.Cmd
	out   lockedBuffer
	temp  string
	ui    string
	ports []string
}

func newDemo(t *testing.T, env ...string) *demoRun {
	t.Helper()
	d := &demoRun{temp: t.TempDir()}
	d.cmd = exec.Command(demo.Find(t), "-collector", collector.Find(t),
		"-jaeger", process.Jaeger.Find(t), "-config", filepath.Join(process.Root(t), "config", "demo.yaml"),
		"-recordings", filepath.Join(process.Root(t), "examples", "recordings"))
	d.cmd.Env = append(os.Environ(), "TMPDIR="+d.temp)
	for _, name := range []string{"JAEGER_UI_PORT", "JAEGER_OTLP_PORT", "COLLECTOR_HEALTH_PORT", "COLLECTOR_PROMETHEUS_PORT"} {
		addr := process.FreePort(t)
		_, port, err := net.SplitHostPort(addr)
		require.NoError(t, err)
		d.cmd.Env = append(d.cmd.Env, name+"="+port)
		d.ports = append(d.ports, addr)
	}
	d.ui = "http://" + d.ports[0]
	d.cmd.Env = append(d.cmd.Env, env...)
	d.cmd.Stdout, d.cmd.Stderr = &d.out, &d.out
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the demo's output:\n%s", d.out.String())
		}
	})
	return d
}

// start starts the demo; the returned channel receives its result.
func (d *demoRun) start(t *testing.T) <-chan error {
	t.Helper()
	require.NoError(t, d.cmd.Start())
	done := make(chan error, 1)
	go func() { done <- d.cmd.Wait() }()
	t.Cleanup(func() { _ = d.cmd.Process.Kill() })
	return done
}

func await(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(demoLimit):
		t.Fatalf("the demo still runs after %v", demoLimit)
		return nil
	}
}

// leftNothing checks that no process of the demo holds a port and that no file remains.
func (d *demoRun) leftNothing(t *testing.T) {
	t.Helper()
	for _, addr := range d.ports {
		l, err := net.Listen("tcp", addr)
		if assert.NoError(t, err, "a program of the demo still runs") {
			require.NoError(t, l.Close())
		}
	}
	files, err := os.ReadDir(d.temp)
	require.NoError(t, err)
	assert.Empty(t, files)
}

func TestDemo_Report(t *testing.T) {
	d := newDemo(t, "DEMO_EXIT=1")
	require.NoError(t, await(t, d.start(t)))
	d.leftNothing(t)

	out := d.out.String()
	wrote := regexp.MustCompile(`with (\d+) kernels; waiting for it and for the recordings' (\d+) in Jaeger`).FindStringSubmatch(out)
	require.NotNil(t, wrote)
	arrived := regexp.MustCompile(`(?m)^spans     \d+, (\d+) of them kernels`)
	recorded, out, found := strings.Cut(out, "\ngenerated\n")
	require.True(t, found, "two reports")
	assert.Regexp(t, `(?m)^recorded on NVIDIA H200`, recorded)
	assert.Regexp(t, `(?m)^services  httpserver, pytorch, vectoradd$`, recorded)
	replayed := arrived.FindStringSubmatch(recorded)
	require.NotNil(t, replayed)
	assert.Equal(t, wrote[2], replayed[1])
	assert.NotEqual(t, "0", replayed[1])

	assert.Regexp(t, `(?m)^services  minigpt$`, out)
	assert.Regexp(t, `(?m)^traces    [1-9]\d*$`, out)
	generated := arrived.FindStringSubmatch(out)
	require.NotNil(t, generated)
	assert.Equal(t, wrote[1], generated[1])
	// Time, share, launches, occupancy, grid fill, limiter, kernel.
	kernels := regexp.MustCompile(`(?m)^ *[\d.]+ ms +[\d.]+ % +\d+ +([\d.]+) % +([\d.]+) % +[a-z_, ]+  \w+$`).FindAllStringSubmatch(out, -1)
	assert.Len(t, kernels, 5)
	for _, k := range kernels {
		for _, text := range k[1:] {
			percent, err := strconv.ParseFloat(text, 64)
			require.NoError(t, err)
			assert.True(t, percent > 0 && percent <= 100, k[0])
		}
	}
	// Time, bytes, copies, throughput, share of the link, kind.
	assert.Regexp(t, `(?m)^ *[\d.]+ ms +[1-9]\d* +[1-9]\d* +[\d.]+ GB/s +[\d.]+ %  HtoD$`, out)
	assert.Regexp(t, `(?m)^device    NVIDIA H200 GPU-[0-9a-f-]{36}$`, out)
	assert.Regexp(t, `(?m)^busy      [\d.]+ ms of [\d.]+ ms \([\d.]+ %\)`, out)
	used := regexp.MustCompile(`(?m)^used      .*kernel ([\d.]+) ms`).FindStringSubmatch(out)
	require.NotNil(t, used)
	inJaeger := regexp.MustCompile(`kernels with (\d+\.\d{3})\d*ms of device time`).FindStringSubmatch(out)
	require.NotNil(t, inJaeger)
	metrics, err := strconv.ParseFloat(used[1], 64)
	require.NoError(t, err)
	spans, err := strconv.ParseFloat(inJaeger[1], 64)
	require.NoError(t, err)
	assert.InDelta(t, spans, metrics, 0.0011, "device time of the metrics and of the spans, in ms")
	assert.Regexp(t, `(?m)^cost      minigpt [\d.]+ USD, _idle [\d.]+ USD: 3\.60 USD an hour$`, out)
	assert.Contains(t, out, "open  "+d.ui)
	assert.Contains(t, out, "usage http://"+d.ports[3]+"/metrics")
	assert.NotContains(t, out, "ctrl-C")
}

func TestDemo_Interrupted(t *testing.T) {
	d := newDemo(t)
	done := d.start(t)
	process.Eventually(t, demoLimit, "the demo has printed its report", func() bool {
		select {
		case err := <-done:
			t.Fatalf("the demo ended by itself: %v", err)
		default:
		}
		return strings.Contains(d.out.String(), "ctrl-C stops")
	})
	resp, err := http.Get(d.ui + "/api/services")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, http.StatusOK, resp.StatusCode, "Jaeger can be looked at")

	require.NoError(t, d.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, await(t, done))
	d.leftNothing(t)
}

func TestDemo_Killed(t *testing.T) {
	d := newDemo(t)
	done := d.start(t)
	process.Eventually(t, demoLimit, "the demo has printed its report", func() bool {
		return strings.Contains(d.out.String(), "ctrl-C stops")
	})
	require.NoError(t, d.cmd.Process.Kill())
	require.Error(t, await(t, done))
	for _, addr := range d.ports {
		process.Eventually(t, time.Minute, addr+" is free again", func() bool {
			l, err := net.Listen("tcp", addr)
			return err == nil && l.Close() == nil
		})
	}
}

func TestDemo_PortInUse(t *testing.T) {
	d := newDemo(t)
	l, err := net.Listen("tcp", d.ports[1])
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	_, port, err := net.SplitHostPort(d.ports[1])
	require.NoError(t, err)

	err = await(t, d.start(t))
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 1, exit.Sys().(syscall.WaitStatus).ExitStatus())
	assert.Equal(t, "demo: port "+port+", for Jaeger's OTLP receiver, is in use: "+
		"stop what listens there, or choose another with JAEGER_OTLP_PORT\n", d.out.String())
	files, err := os.ReadDir(d.temp)
	require.NoError(t, err)
	assert.Empty(t, files, "nothing was started")
}
