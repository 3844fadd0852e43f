// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
)

// generated returns the channels of a generated session.
func generated(b testing.TB, cfg gpuflgen.Config) group {
	b.Helper()
	cfg.Dir, cfg.RotateBytes, cfg.NoCompress = b.TempDir(), -1, true
	if _, err := gpuflgen.Run(context.Background(), cfg); err != nil {
		b.Fatal(err)
	}
	g := group{session: cfg.Layout != gpuflgen.A2}
	err := filepath.WalkDir(cfg.Dir, func(path string, e os.DirEntry, err error) error {
		m := fileName.FindStringSubmatch(e.Name())
		if err != nil || m == nil {
			return err
		}
		data, err := os.ReadFile(path)
		for ch, name := range channelNames {
			if name == m[2] {
				g.channels[ch] = data
			}
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return g
}

func benchmark(b *testing.B, cfg gpuflgen.Config, signals gpuevent.Signals) {
	g := generated(b, cfg)
	lines := 0
	size := 0
	for _, data := range g.channels {
		lines += bytes.Count(data, []byte("\n"))
		size += len(data)
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	best := time.Duration(1 << 62)
	for range b.N {
		begin := processorTime(b)
		d := NewDecoder(Options{KernelNameInPath: !g.session})
		out := gpuevent.NewBatch(signals)
		var off [NumChannels]int
		spans := 0
		for {
			ch := d.Want()
			if off[ch] == len(g.channels[ch]) {
				ch = Device + Scope - ch
			}
			data := g.channels[ch][off[ch]:]
			if len(data) == 0 {
				break
			}
			if len(data) > 1<<20 {
				data = data[:bytes.LastIndexByte(data[:1<<20], '\n')+1]
			}
			d.Feed(ch, data, int64(off[ch]), 0, out)
			off[ch] += len(data)
			d.EndStep(Step{}, out)
			spans += out.Spans()
			out.Take()
		}
		if st := d.Stats(); signals.Traces && spans < cfgKernels(cfg) || st.Rejects[Malformed] > 0 {
			b.Fatalf("%d spans of %d kernels, %d malformed", spans, cfgKernels(cfg), st.Rejects[Malformed])
		}
		best = min(best, processorTime(b)-begin)
	}
	// The least processor time of a round disturbs least where the machine is shared.
	b.ReportMetric(float64(best.Nanoseconds())/float64(lines), "cpu-ns/line")
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func cfgKernels(c gpuflgen.Config) int { return int(c.Kernels) }

var allSignals = gpuevent.Signals{Traces: true, Logs: true, Metrics: true}

func BenchmarkA2ShortLines(b *testing.B) {
	benchmark(b, gpuflgen.Config{Layout: gpuflgen.A2, Kernels: 100_000, LineBytes: 300, Samples: -1}, allSignals)
}

func BenchmarkA2FullLines(b *testing.B) {
	benchmark(b, gpuflgen.Config{Layout: gpuflgen.A2, Kernels: 50_000, Samples: -1}, allSignals)
}

func BenchmarkC3KernelDetails(b *testing.B) {
	benchmark(b, gpuflgen.Config{Kernels: 100_000, StackBytes: 1500, Samples: -1}, allSignals)
}

// BenchmarkC3DecodeOnly is the decoder's share: nothing is translated.
func BenchmarkC3DecodeOnly(b *testing.B) {
	benchmark(b, gpuflgen.Config{Kernels: 100_000, StackBytes: 1500, Samples: -1}, gpuevent.Signals{})
}

func BenchmarkA2DecodeOnly(b *testing.B) {
	benchmark(b, gpuflgen.Config{Layout: gpuflgen.A2, Kernels: 100_000, LineBytes: 300, Samples: -1}, gpuevent.Signals{})
}
