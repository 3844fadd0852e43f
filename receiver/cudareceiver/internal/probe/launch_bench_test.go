// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package probe

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/peers"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/stubcuda"
)

// allowed skips a benchmark if eBPF is unavailable.
func allowed(b *testing.B, err error) {
	b.Helper()
	if errors.Is(err, os.ErrPermission) || errors.Is(err, ebpf.ErrNotSupported) {
		b.Skip("needs eBPF: ", err)
	}
	require.NoError(b, err)
}

// observing starts a Probe on the stub driver.
func observing(b *testing.B, l *stubcuda.Libraries, o Options) io.Closer {
	b.Helper()
	p := New(o)
	p.only = l.Contains
	allowed(b, p.Start(b.Context()))
	require.Len(b, p.Libraries(), 1)
	return p
}

// tracedProbe is a Probe with a trace, whose calls are read continuously.
type tracedProbe struct {
	io.Closer
	stop chan struct{}
	done sync.WaitGroup
}

func (t *tracedProbe) Close() error {
	close(t.stop)
	t.done.Wait()
	return t.Closer.Close()
}

// traced starts a Probe with a trace.
func traced(b *testing.B, l *stubcuda.Libraries) io.Closer {
	b.Helper()
	p := observing(b, l, Options{})
	tr, err := p.(*Probe).Trace(TraceOptions{Duration: time.Hour, MaxCalls: 1 << 30, RingBytes: 64 << 20})
	require.NoError(b, err)
	t := &tracedProbe{Closer: p, stop: make(chan struct{})}
	t.done.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-t.stop:
				return
			case <-tick.C:
				tr.Take()
			}
		}
	})
	return t
}

// onProcessor returns the processor time of a program's first thread, in nanoseconds. It does not
// include waiting on a busy machine.
func onProcessor(b *testing.B, c *stubcuda.Program) (ns float64) {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", c.PID()))
	require.NoError(b, err)
	_, err = fmt.Sscan(string(text), &ns)
	require.NoError(b, err)
	return ns
}

// BenchmarkLaunch measures the cost of a launch for its program, in nanoseconds. The variants are no
// probe, a minimal uprobe, our probes, our probes with a trace, and an event for each call, as other
// tools do it. The variants alternate, and the medians are reported. x-bare-uprobe is the added cost
// relative to that of the minimal uprobe in the same round. The driver is a stub, whose launches take
// almost no time.
//
//	go test -run - -bench Launch -benchtime 7x ./receiver/cudareceiver/internal/probe
func BenchmarkLaunch(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root, for eBPF")
	}
	l := stubcuda.Build(b)
	c := l.Start(b)
	c.Must("open %s", l.Library)
	c.Must("function 1 _Z6kernelv")
	ring := func(wake bool) func() io.Closer {
		return func() io.Closer {
			r, err := peers.AttachRing(l.Library, 4<<20, wake)
			allowed(b, err)
			return r
		}
	}
	cases := []struct {
		name   string
		attach func() io.Closer
	}{
		{"bare", func() io.Closer { return io.NopCloser(nil) }},
		{"counting", func() io.Closer {
			c, err := peers.AttachCounting(l.Library)
			allowed(b, err)
			return c
		}},
		{"ours", func() io.Closer { return observing(b, l, Options{}) }},
		{"ours-sampling", func() io.Closer { return observing(b, l, Options{LaunchSampling: 100}) }},
		{"ours-tracing", func() io.Closer { return traced(b, l) }},
		{"ring", ring(true)},
		{"ring-no-wakeup", ring(false)},
	}
	const warm, launches = 10_000, 200_000
	measure := func() float64 {
		c.Must("launch %d 1 8 256", warm)
		began := onProcessor(b, c)
		c.Must("launch %d 1 8 256", launches)
		return (onProcessor(b, c) - began) / launches
	}
	took := make([][]float64, len(cases))
	for b.Loop() {
		round := make([]float64, len(cases))
		for i, k := range cases {
			attached := k.attach()
			round[i] = measure()
			require.NoError(b, attached.Close())
		}
		// Another observer of the machine also attaches to this library and would be measured too.
		const alone = 200 // ns; with a uprobe it is more, without one tenth
		if again := measure(); max(round[0], again) > alone {
			b.Logf("a round is left out: a launch took %.0f and %.0f ns with nothing of ours attached", round[0], again)
			continue
		}
		for i, ns := range round {
			took[i] = append(took[i], ns)
		}
	}
	b.ReportMetric(0, "ns/op") // a round's time says nothing
	if len(took[0]) == 0 {
		b.Skip("another observer is attached to the library")
	}
	b.ReportMetric(float64(len(took[0])), "rounds")
	for i, k := range cases {
		b.ReportMetric(median(took[i]), k.name+"-ns/launch")
		if i < 2 {
			continue
		}
		ratios := make([]float64, len(took[i]))
		for round, ns := range took[i] {
			ratios[round] = (ns - took[0][round]) / (took[1][round] - took[0][round])
		}
		b.ReportMetric(median(ratios), k.name+"-x-bare-uprobe")
	}
}

func median(of []float64) float64 {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)/2]
}
