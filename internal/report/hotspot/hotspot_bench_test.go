// SPDX-License-Identifier: Apache-2.0

package hotspot

import (
	"strconv"
	"testing"
)

// A window's worth of rows: 100 functions of 500 instructions, each with four reasons.
func BenchmarkWindow(b *testing.B) {
	const functions, instructions = 100, 500
	reasons := [4]string{"long_scoreboard", "long_scoreboard_not_issued", "wait", "selected"}
	var names [functions]string
	for i := range names {
		names[i] = "kernel_" + strconv.Itoa(i)
	}
	rows := functions * instructions * len(reasons)
	b.ReportAllocs()
	for b.Loop() {
		table := New(Limits{})
		for _, name := range names {
			for pc := range int64(instructions) {
				p := Place{Function: name, PC: 16 * pc, HasPC: true, File: "kernels.cu", Line: 1 + pc/4}
				for _, r := range reasons {
					table.Sample(p, r, 3)
				}
			}
		}
		got, more := table.Functions(Options{Functions: 10, Lines: 5})
		if len(got) != 10 || more != functions-10 || table.Totals().Samples != uint64(9*functions*instructions) {
			b.Fatalf("%d functions, %d more, %d samples", len(got), more, table.Totals().Samples)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*rows), "ns/row")
}
