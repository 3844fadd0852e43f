// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/recording/cubin"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
)

// BenchmarkWindow is a window as a training step has it: 27,000 rows in 32 images, in the order of
// their weights, which goes from image to image. The first window of a session reads the images,
// those after it need what is known of them; nothing waits for nvdisasm.
func BenchmarkWindow(b *testing.B) {
	const images, instructions, reasons = 32, 450, 3
	image := golden(b)
	f, err := cubin.Open(image)
	require.NoError(b, err)
	r := &cupti.DeepResult{Engine: cupti.EnginePCSampling, Start: time.Unix(100, 0), End: time.Unix(102, 0), Names: []string{barrier, longScoreboard, "other"}}
	for _, fn := range f.Functions() {
		if !fn.Entry {
			continue
		}
		at := uint32(len(r.Functions))
		r.Functions = append(r.Functions, fn.Name)
		for pc := uint64(0); pc < fn.Size && len(r.Rows) < images*instructions*reasons; pc += cubin.InstructionBytes {
			for i := range uint64(images * reasons) {
				r.Rows = append(r.Rows, cupti.DeepRow{CRC: 1 + i%images, Function: at, PC: pc, What: uint32(i / images), Value: 1 + (i*7919+pc*31)%997})
			}
		}
	}
	for i := range r.Rows {
		r.Totals.Samples += r.Rows[i].Value
	}
	b.Setenv(cubin.DisassemblerEnv, "/nonexistent")
	for name, fresh := range map[string]bool{"first": true, "next": false} {
		b.Run(name, func(b *testing.B) {
			w := New(Settings{}, &source{}, newSink(), nil).worker
			w.places = newPlaces(func(uint64) []byte { return image })
			b.ReportAllocs()
			for b.Loop() {
				if fresh {
					clear(w.places.known)
				}
				out, _ := w.window(&job{window: deep.Window{ID: 1}, results: []*cupti.DeepResult{r}})
				if len(out.Samples) < DefaultMaxRows || out.Unresolved == uint64(len(out.Samples)) {
					b.Fatal(len(out.Samples), out.Unresolved)
				}
			}
			b.ReportMetric(float64(len(r.Rows)), "rows")
		})
	}
}
