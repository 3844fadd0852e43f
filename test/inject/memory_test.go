// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inject

import (
	"debug/elf"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpuflight/gpuflight/internal/procfs"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
)

// used is what all threads of a process but the first have used: page faults that a page was found for in memory, and
// processor time.
func used(t *testing.T, pid int) (faults uint64, took time.Duration) {
	t.Helper()
	folder := fmt.Sprintf("/proc/%d/task", pid)
	threads, err := os.ReadDir(folder)
	require.NoError(t, err)
	for _, thread := range threads {
		s, ok := procfs.ParseStat(procfs.ReadFile(folder + "/" + thread.Name() + "/stat"))
		if !ok || thread.Name() == strconv.Itoa(pid) {
			continue // it has ended, or is the first
		}
		faults += s.Faults
		took += s.Processor
	}
	return faults, took
}

// TestRecorderKeepsItsMemory: what the recorder has used for some spans it uses again for the next. Pages that are given back
// and wanted again cost the recorder time, and each processor that runs the program is interrupted for them.
func TestRecorderKeepsItsMemory(t *testing.T) {
	b := newBench(t)
	in, stdin, err := os.Pipe()
	require.NoError(t, err)
	defer stdin.Close()
	p := b.begin("steady", in)
	require.NoError(t, in.Close())
	began := time.Now()
	time.Sleep(3 * time.Second) // until it has what it needs
	faults, took := used(t, p.pid)
	middle := time.Now()
	time.Sleep(5 * time.Second)
	faultsAfter, tookAfter := used(t, p.pid)
	part := time.Since(middle).Seconds() / time.Since(began).Seconds()
	require.NoError(t, stdin.Close())
	require.NoError(t, p.Wait(), p.stderr)
	all, _, _ := b.recorded()
	spans := part * float64(len(all))
	each := float64(faultsAfter-faults) / spans
	t.Logf("%.0f spans; of each %.3f page faults and %.1f µs", spans, each, float64((tookAfter-took).Microseconds())/spans)
	require.Greater(t, spans, 10_000.0)
	// With the default of the garbage collector it is about 0.3.
	assert.Less(t, each, 0.25)
}

// TestWindowsFillHoles: after a window a thread that launches holds the small free pieces of its heap, and gives them back for the
// next one.
func TestWindowsFillHoles(t *testing.T) {
	for name, choose := range map[string]func(*testing.T, *bench){
		"the first Python": func(*testing.T, *bench) {},
		// As Debian builds it: functions of the C library whose address it takes seem to be its own.
		"one that is not position independent": func(t *testing.T, b *bench) {
			t.Helper()
			const path = "/usr/bin/python3"
			f, err := elf.Open(path)
			if err != nil {
				t.Skip(err)
			}
			defer f.Close()
			if f.Type != elf.ET_EXEC {
				t.Skip(path + " is position independent")
			}
			b.python = path
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := windowBench(t, "GPUFLIGHT_DEEP=1", "GPUFLIGHT_DEEP_BLACKOUT=0s", "GPUFLIGHT_DEEP_COOLDOWN=0s")
			choose(t, b)
			in, stdin, err := os.Pipe()
			require.NoError(t, err)
			defer stdin.Close()
			p := b.begin("window_heap", in)
			require.NoError(t, in.Close())
			free := func() int {
				_, err := fmt.Fprintln(stdin)
				require.NoError(t, err)
				line, err := p.out.ReadString('\n')
				require.NoError(t, err, p.stderr)
				n, err := strconv.Atoi(strings.TrimSpace(line))
				require.NoError(t, err)
				return n
			}
			require.GreaterOrEqual(t, free(), 10_000)
			o := b.run(b.gpuflight, "deep", strconv.Itoa(p.pid), "--for", "50ms", "--engine", "sass")
			require.Zero(t, o.code, "%s%s", o.stdout, o.stderr)
			process.Eventually(t, 10*time.Second, "the holes are filled", func() bool { return free() < 1000 })

			over := make(chan outcome)
			go func() { over <- b.run(b.gpuflight, "deep", strconv.Itoa(p.pid), "--for", "2s", "--engine", "sass") }()
			process.Eventually(t, time.Minute, "they are there for a window", func() bool { return free() >= 9000 })
			o = <-over
			require.Zero(t, o.code, "%s%s", o.stdout, o.stderr)
			process.Eventually(t, 10*time.Second, "and filled after it", func() bool { return free() < 1000 })
			require.NoError(t, stdin.Close())
			require.NoError(t, p.Wait(), p.stderr)
			assert.GreaterOrEqual(t, b.lastGauge(semconv.MetricGpuflightDeepHeap), int64(9000*64))
		})
	}
}

// lastGauge is the value of a metric in the last export that has it, 0 if there is none.
func (b *bench) lastGauge(name string) (value int64) {
	b.t.Helper()
	_, err := otlp.ReadFile(b.file, otlp.Handler{Metrics: func(md pmetric.Metrics) {
		for _, rm := range md.ResourceMetrics().All() {
			for _, sm := range rm.ScopeMetrics().All() {
				for _, m := range sm.Metrics().All() {
					if m.Name() == name {
						value = m.Gauge().DataPoints().At(0).IntValue()
					}
				}
			}
		}
	}})
	require.NoError(b.t, err)
	return value
}
