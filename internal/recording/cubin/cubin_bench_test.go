// SPDX-License-Identifier: Apache-2.0

//go:build linux

package cubin

import (
	"bytes"
	"debug/dwarf"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkLines measures the time to find the lines of 210 kernels, as after a window in a process
// with a large library. The image has 50 MB, 21,000 kernels and 2.5 million instructions.
//
// It compares with two other readers. The standard library's readers of ELF files and line tables
// have no index of functions, so they read all rows. They ignore inlined calls and keep nothing.
// nvdisasm -gi reads an image with only those 210 kernels. The ratio is the other reader's time to
// ours.
func BenchmarkLines(b *testing.B) {
	const kernels, used = 21_000, 210
	image := bigImage(b, kernels)
	b.Logf("%d MB", len(image)>>20)
	names := make([]string, used)
	for i := range names {
		names[i] = fmt.Sprint("kernel", i*kernels/used)
	}
	var ours time.Duration
	b.Run("cubin", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f, err := Open(image)
			require.NoError(b, err)
			resolved := 0
			var frames []Frame
			for _, name := range names {
				fn, _ := f.Lookup(name)
				for pc := uint64(0); pc < fn.Size; pc += InstructionBytes {
					var reason Reason
					if frames, reason = f.Locate(name, pc, frames); reason == Resolved {
						resolved++
					}
				}
			}
			if resolved < used*100 {
				b.Fatal(resolved)
			}
		}
		ours = b.Elapsed() / time.Duration(b.N)
	})
	ratio := func(b *testing.B) {
		if ours > 0 {
			b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(ours), "×cubin")
		}
	}
	b.Run("debug_dwarf", func(b *testing.B) {
		b.ReportAllocs()
		f, err := Open(image)
		require.NoError(b, err)
		_, unit, data := standardUnit(b, f) // relocated beforehand
		b.ResetTimer()
		for b.Loop() {
			file, err := elf.NewFile(bytes.NewReader(image))
			require.NoError(b, err)
			symbols, err := file.Symbols()
			require.NoError(b, err)
			lines, err := data.LineReader(unit)
			require.NoError(b, err)
			rows := 0
			var e dwarf.LineEntry
			for lines.Next(&e) == nil {
				rows++
			}
			if rows < kernels*10 || len(symbols) < kernels {
				b.Fatal(rows)
			}
		}
		ratio(b)
	})
	b.Run("nvdisasm", func(b *testing.B) {
		tools(b)
		// The image has those kernels only: nvdisasm needs minutes for the large image.
		path := filepath.Join(b.TempDir(), "small.cubin")
		require.NoError(b, os.WriteFile(path, bigImage(b, used), 0o600))
		b.ResetTimer()
		for b.Loop() {
			if out := tool(b, "nvdisasm", "-gi", "-c", "-ndf", path); len(out) < used*1000 {
				b.Fatal(len(out))
			}
		}
		ratio(b)
	})
}

// BenchmarkResolve measures the lookup of one instruction, as the sums of a window need it.
func BenchmarkResolve(b *testing.B) {
	image := bigImage(b, 100)
	r := NewResolver(Settings{Image: func(uint64) []byte { return image }})
	names := make([]string, 100)
	for i := range names {
		names[i] = fmt.Sprint("kernel", i)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		loc, reason := r.Resolve(1, names[i%len(names)], uint64(i%100)*InstructionBytes)
		if reason != Resolved || loc.Line == 0 {
			b.Fatal(reason)
		}
		i++
	}
}
