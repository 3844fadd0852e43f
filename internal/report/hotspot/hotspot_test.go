// SPDX-License-Identifier: Apache-2.0

package hotspot

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

func at(function string, pc int64, line int64) Place {
	p := Place{Function: function, PC: pc, HasPC: true, Line: line}
	if line > 0 {
		p.File = "k.cu"
	}
	return p
}

func only(t *testing.T, table *Table, o Options) Function {
	t.Helper()
	all, more := table.Functions(o)
	require.Len(t, all, 1)
	require.Zero(t, more)
	return all[0]
}

func TestSamplesByFunctionReasonAndLine(t *testing.T) {
	table := New(Limits{})
	// The figures of CUPTI's own tutorial: 42 samples, 39 of them in cycles in which nothing was issued.
	table.Sample(at("add", 0xd0, 12), "smsp__pcsamp_warps_issue_stalled_long_scoreboard_not_issued", 39)
	table.Sample(at("add", 0xd0, 12), "smsp__pcsamp_warps_issue_stalled_long_scoreboard", 42)
	table.Sample(at("add", 0xe0, 12), "wait", 8)
	table.Sample(at("add", 0x40, 11), "imc_miss", 14)
	table.Sample(at("add", 0x40, 11), "imc_miss_not_issued", 14)
	table.Sample(at("add", 0xd0, 12), "long_scoreboard", 6) // of another window
	table.Sample(at("mul", 0, 0), "selected", 30)
	table.Listing("add", "0040  LDC R1, c[0x0][0x28]\n00d0  IADD3 R7, R2, R5, RZ\n00e0  STG.E desc[UR4][R4.64], R7\n")

	assert.Equal(t, Totals{Samples: 100, Functions: 2, Places: 4}, table.Totals())
	all, more := table.Functions(Options{})
	require.Len(t, all, 2)
	assert.Zero(t, more)
	add := all[0]
	assert.Equal(t, "add", add.Name)
	assert.Equal(t, uint64(70), add.Samples)
	assert.InDelta(t, 0.7, add.Share, 1e-12)
	assert.Equal(t, []Reason{
		{Name: "long_scoreboard", Samples: 48, Share: 48.0 / 70, NotIssued: 39},
		{Name: "imc_miss", Samples: 14, Share: 0.2, NotIssued: 14},
		{Name: "wait", Samples: 8, Share: 8.0 / 70},
	}, add.Reasons)
	require.Len(t, add.Lines, 2)
	worst := add.Lines[0]
	assert.Equal(t, "k.cu", worst.File)
	assert.Equal(t, int64(12), worst.Line)
	assert.Equal(t, uint64(56), worst.Samples)
	assert.InDelta(t, 0.8, worst.Share, 1e-12)
	assert.Equal(t, "long_scoreboard", worst.Reasons[0].Name)
	assert.Equal(t, int64(0xd0), *worst.PC)
	assert.Equal(t, "IADD3 R7, R2, R5, RZ", worst.SASS)
	assert.Equal(t, 2, worst.Instructions)
	assert.Empty(t, add.Divergent)
	assert.Empty(t, add.Uncoalesced)
	_, known := add.Lanes()
	assert.False(t, known, "what was not counted is unknown")

	mul := all[1]
	assert.Zero(t, mul.Lines[0].Line)
	assert.Equal(t, int64(0), *mul.Lines[0].PC)
	assert.Empty(t, mul.Lines[0].SASS)
}

func TestASourceThatAskedForNotIssuedOnly(t *testing.T) {
	table := New(Limits{})
	table.Sample(at("f", 16, 1), "barrier_not_issued", 5)
	f := only(t, table, Options{})
	assert.Equal(t, []Reason{{Name: "barrier", Samples: 5, Share: 1, NotIssued: 5}}, f.Reasons)
}

// counted adds an instruction with its warp and thread instructions.
func counted(table *Table, p Place, executed, threads uint64) {
	table.Counter(p, "smsp__sass_inst_executed", executed)
	table.Counter(p, "smsp__sass_thread_inst_executed", threads)
}

func TestDivergence(t *testing.T) {
	table := New(Limits{})
	counted(table, at("f", 0, 1), 1000, 32000)
	counted(table, at("f", 16, 2), 1000, 32000)
	counted(table, at("f", 32, 3), 4000, 4000)
	counted(table, at("f", 48, 3), 1000, 1000)
	counted(table, at("f", 64, 4), 1000, 16000)
	table.Counter(at("f", 64, 4), "smsp__sass_thread_inst_executed_pred_on", 4000)
	table.Counter(at("f", 80, 5), "smsp__sass_inst_executed", 77) // its threads were not counted

	f := only(t, table, Options{Lines: 5})
	lanes, ok := f.Lanes()
	require.True(t, ok)
	assert.InDelta(t, float64(32000+32000+4000+1000+16000)/8000, lanes, 1e-12)
	on, ok := f.LanesOn()
	require.True(t, ok)
	assert.InDelta(t, 4.0, on, 1e-12)
	require.Len(t, f.Divergent, 2)
	assert.Equal(t, int64(3), f.Divergent[0].Line)
	lanes, _ = f.Divergent[0].Lanes()
	assert.InDelta(t, 1.0, lanes, 1e-12)
	assert.Equal(t, uint64(31*5000), f.Divergent[0].IdleLanes())
	assert.Equal(t, int64(32), *f.Divergent[0].PC)
	lanes, _ = f.Divergent[1].Lanes()
	assert.InDelta(t, 16.0, lanes, 1e-12)
	assert.Contains(t, f.Metrics, Metric{"smsp__sass_inst_executed", 8077})
}

// Where accesses to global memory alone were counted, lanes are those that took part in them, and sectors are of as many requests.
func TestAccessesToMemoryAlone(t *testing.T) {
	table := New(Limits{})
	access := func(function string, pc, line int64, executed, on, sectors, ideal uint64) {
		p := at(function, pc, line)
		table.Counter(p, "smsp__sass_inst_executed_op_global", executed)
		table.Counter(p, "smsp__sass_thread_inst_executed_op_global_pred_on", on)
		table.Counter(p, "smsp__sass_sectors_mem_global", sectors)
		table.Counter(p, "smsp__sass_sectors_mem_global_ideal", ideal)
	}
	access("f", 16, 1, 1000, 32000, 32000, 4000)
	access("f", 32, 2, 100, 100, 100, 100)
	access("g", 16, 1, 2000, 64000, 8000, 8000)
	all, _ := table.Functions(Options{Lines: 5})
	require.Len(t, all, 2)
	assert.Equal(t, "g", all[0].Name, "the one with most accesses")
	assert.Empty(t, all[0].Divergent)
	f := all[1]
	_, ok := f.Lanes()
	assert.False(t, ok)
	lanes, of, ok := f.KnownLanes()
	require.True(t, ok)
	assert.InDelta(t, 32100.0/1100, lanes, 1e-12)
	assert.Equal(t, uint64(1100), of)
	require.Len(t, f.Divergent, 1)
	assert.Equal(t, int64(2), f.Divergent[0].Line)
	assert.Equal(t, uint64(3100), f.Divergent[0].IdleLanes())
	require.Len(t, f.Uncoalesced, 1)
	sectors, _ := f.Uncoalesced[0].SectorsPerRequest()
	ideal, _ := f.Uncoalesced[0].IdealPerRequest()
	assert.Equal(t, [2]float64{32, 4}, [2]float64{sectors, ideal})

	// All instructions say more than some of them.
	both := New(Limits{})
	counted(both, at("f", 16, 1), 10, 320)
	both.Counter(at("f", 16, 1), "smsp__sass_inst_executed_op_global", 10)
	both.Counter(at("f", 16, 1), "smsp__sass_thread_inst_executed_op_global_pred_on", 10)
	f = only(t, both, Options{Lines: 5})
	assert.Equal(t, Counts{Executed: 10, ExecutedThreads: 320}, f.Counts)
}

// What a window sums up for a whole function is in the function's figures, and in no line.
func TestSumsOfFunctionsAreInTheirFigures(t *testing.T) {
	table := New(Limits{})
	load := Place{Function: "f", PC: 16, HasPC: true}
	counted(table, load, 100, 3200)
	table.Counter(load, "smsp__sass_sectors_mem_global", 3200)
	table.Counter(load, "smsp__sass_sectors_mem_global_ideal", 400)
	rest := Place{Function: "f"}
	counted(table, rest, 300, 300)
	table.Counter(rest, "smsp__sass_sectors_mem_global", 800)
	table.Counter(rest, "smsp__sass_sectors_mem_global_ideal", 600)
	f := only(t, table, Options{})
	assert.Equal(t, Counts{
		Executed: 400, ExecutedThreads: 3500, Sectors: 4000, SectorsIdeal: 1000,
		Requests: 100, RequestSectors: 3200, IdealRequests: 100, RequestIdeal: 400,
	}, f.Counts)
	require.Len(t, f.Uncoalesced, 1)
	assert.Equal(t, uint64(2800), f.Uncoalesced[0].Excess())
	assert.Empty(t, f.Divergent, "which lines they are is not known")

	table = New(Limits{})
	counted(table, Place{Function: Other}, 300, 300)
	assert.Equal(t, Counts{}, only(t, table, Options{}).Counts)
}

// A recording that has lost some of its rows has more threads than there were lanes: that is no figure.
func TestContradictoryCountersGiveNoLanes(t *testing.T) {
	table := New(Limits{})
	p := Place{Function: "f", PC: 16, HasPC: true}
	counted(table, p, 100, 3200)
	table.Counter(p, "smsp__sass_thread_inst_executed", 3200) // of another window, without its instructions
	f := only(t, table, Options{})
	assert.True(t, f.Contradictory())
	_, ok := f.Lanes()
	assert.False(t, ok)
	_, ok = f.LanesOn()
	assert.False(t, ok)
	assert.Zero(t, f.IdleLanes())
	assert.Empty(t, f.Divergent)
}

func TestABranchWithoutSourceLinesIsOne(t *testing.T) {
	table := New(Limits{})
	for pc := range int64(10) {
		threads := uint64(32)
		if pc >= 3 && pc < 8 {
			threads = 1
		}
		counted(table, at("f", 16*pc, 0), 100, 100*threads)
	}
	counted(table, at("f", 16*20, 0), 100, 100) // somewhere else
	f := only(t, table, Options{})
	require.Len(t, f.Divergent, 2)
	assert.Equal(t, int64(48), *f.Divergent[0].PC)
	assert.Equal(t, 5, f.Divergent[0].Instructions)
	assert.Equal(t, uint64(5*31*100), f.Divergent[0].IdleLanes())
	assert.Equal(t, int64(320), *f.Divergent[1].PC)
}

func TestCoalescing(t *testing.T) {
	for name, metrics := range map[string][2]string{
		"all accesses together": {"smsp__sass_sectors_mem_global", "smsp__sass_sectors_mem_global_ideal"},
		"by kind of access":     {"smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ld", "smsp__sass_sectors_mem_global_op_ld_ideal"},
	} {
		t.Run(name, func(t *testing.T) {
			table := New(Limits{})
			load := func(p Place, executed, sectors, ideal uint64) {
				counted(table, p, executed, 32*executed)
				table.Counter(p, metrics[0], sectors)
				table.Counter(p, metrics[1], ideal)
			}
			load(at("f", 16, 7), 100, 3200, 400)
			counted(table, at("f", 32, 7), 100, 3200) // an addition beside the load
			load(at("f", 48, 8), 100, 400, 400)
			load(at("f", 64, 9), 50, 0, 0) // all lanes were off
			f := only(t, table, Options{Lines: 1})
			perRequest, ok := f.SectorsPerRequest()
			require.True(t, ok)
			assert.InDelta(t, 18.0, perRequest, 1e-12)
			require.Len(t, f.Uncoalesced, 1)
			assert.Zero(t, f.MoreUncoalesced, "a line at its ideal is not among them")
			line := f.Uncoalesced[0]
			assert.Equal(t, int64(7), line.Line)
			perRequest, _ = line.SectorsPerRequest()
			assert.InDelta(t, 32.0, perRequest, 1e-12)
			ideal, _ := line.IdealPerRequest()
			assert.InDelta(t, 4.0, ideal, 1e-12)
			times, _ := line.TimesIdeal()
			assert.InDelta(t, 8.0, times, 1e-12)
			assert.Equal(t, uint64(2800), line.Excess())
		})
	}
}

func TestAnUnknownIdealIsNotZero(t *testing.T) {
	table := New(Limits{})
	p := at("f", 16, 7)
	counted(table, p, 10, 320)
	table.Counter(p, "smsp__sass_sectors_mem_global", 320)
	f := only(t, table, Options{})
	perRequest, ok := f.SectorsPerRequest()
	assert.True(t, ok)
	assert.InDelta(t, 32.0, perRequest, 1e-12)
	_, ok = f.TimesIdeal()
	assert.False(t, ok)
	assert.Zero(t, f.Excess())
	assert.Empty(t, f.Uncoalesced)
}

func TestEqualsKeepTheOrderOfTheSource(t *testing.T) {
	var want []Function
	for seed := range uint64(20) {
		var add []func(*Table)
		for line := range int64(8) {
			add = append(add, func(table *Table) { table.Sample(at("b", 16*line, line), "wait", 1) },
				func(table *Table) { table.Sample(at("a", 16*line, 3), "b_"+strconv.Itoa(int(line)), 1) })
		}
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(add), func(i, j int) { add[i], add[j] = add[j], add[i] })
		table := New(Limits{})
		for _, f := range add {
			f(table)
		}
		got, _ := table.Functions(Options{})
		if want == nil {
			want = got
			assert.Equal(t, "a", got[0].Name)
			assert.Equal(t, int64(1), got[1].Lines[0].Line)
			assert.Zero(t, got[1].Lines[7].Line, "a place without a line comes last")
		}
		require.Equal(t, want, got, "seed %d", seed)
	}
}

func TestLimitsLoseNothingUncounted(t *testing.T) {
	table := New(Limits{Functions: 2, Places: 9, Names: 2, ListingBytes: 200})
	for f := range 4 {
		for pc := range int64(4) {
			for reason := range 4 {
				table.Sample(Place{Function: "f" + strconv.Itoa(f), PC: pc, HasPC: true}, "r"+strconv.Itoa(reason), 1)
			}
		}
	}
	table.Counter(at("f0", 0, 0), "one", 5)
	table.Counter(at("f0", 0, 0), "two", 5)
	table.Counter(at("f0", 0, 0), "three", 5)
	table.Listing("f0", "0000  NOP\n0010  NOP\n0020  NOP\n0030  NOP\nnonsense\n")
	table.Listing("", "0000  NOP\n")
	totals := table.Totals()
	assert.Equal(t, uint64(64), totals.Samples)
	assert.Equal(t, 3, totals.Functions)
	assert.Equal(t, 3, totals.Places)
	assert.Equal(t, uint64(32), totals.LeftOut.Functions)
	// Three places of f0 with three reasons each are there; the fourth, and all of f1, are in the totals only.
	assert.Equal(t, uint64(4+16), totals.LeftOut.Places)
	assert.Equal(t, uint64(32+1), totals.LeftOut.Names)
	assert.Equal(t, uint64(2+1+1), totals.LeftOut.Instructions)

	all, more := table.Functions(Options{Functions: 2, Lines: 2})
	require.Len(t, all, 2)
	assert.Equal(t, 1, more)
	assert.Equal(t, uint64(16), all[0].Samples)
	assert.Equal(t, []Reason{{"r0", 4, 0.25, 0}, {"r1", 4, 0.25, 0}, {Other, 8, 0.5, 0}}, all[0].Reasons)
	assert.Len(t, all[0].Lines, 2)
	assert.Equal(t, 1, all[0].MoreLines)
	assert.Equal(t, []Metric{{"one", 5}, {"two", 5}}, all[0].Metrics)
	all, _ = table.Functions(Options{})
	assert.Equal(t, Other, all[2].Name, "what is not told apart is the last, whatever its samples")
	assert.Equal(t, uint64(32), all[2].Samples)
}

func TestReasonsAreBounded(t *testing.T) {
	table := New(Limits{Places: 300})
	for n := range 1000 {
		table.Sample(at("f", 0, 1), "r"+strconv.Itoa(n), 1)
		table.Sample(at("f", 16, 1), "r"+strconv.Itoa(n), 1)
	}
	f := only(t, table, Options{})
	assert.Equal(t, uint64(2000), f.Samples)
	assert.Len(t, f.Reasons, maxReasonNames+1)
	assert.Equal(t, Reason{Name: Other, Samples: 2 * (1000 - maxReasonNames), Share: 0.744}, f.Reasons[maxReasonNames])
	left := table.Totals().LeftOut
	assert.Equal(t, uint64(2*(1000-maxReasonNames)), left.Names)
	// What is not with its place is counted: the line has the rest.
	assert.Equal(t, f.Samples, f.Lines[0].Samples+left.Places)
	assert.NotZero(t, left.Places)
}

func TestSumsThatDoNotFitStayAtTheLargest(t *testing.T) {
	table := New(Limits{})
	p := at("f", 0, 1)
	for range 2 {
		table.Sample(p, "wait", math.MaxUint64)
		table.Counter(p, "smsp__sass_inst_executed", math.MaxUint64)
		table.Counter(p, "smsp__sass_thread_inst_executed", 7)
	}
	f := only(t, table, Options{})
	assert.Equal(t, uint64(math.MaxUint64), f.Samples)
	assert.Equal(t, uint64(math.MaxUint64-14), f.IdleLanes())
	assert.Equal(t, uint64(4), table.Totals().LeftOut.Saturated, "of function and place, samples and counter")
}

func TestFoldedInstructionsHaveTheirText(t *testing.T) {
	table := New(Limits{})
	table.Listing("f", "0010  FFMA R1, R1, R2, R3  ×3\n0040  EXIT\r\n\n0050  NOP  ×0\n")
	for pc, want := range map[int64]string{
		0: "", 16: "FFMA R1, R1, R2, R3", 32: "FFMA R1, R1, R2, R3", 48: "FFMA R1, R1, R2, R3", 40: "",
		64: "EXIT", 80: "NOP  ×0", 96: "", 1 << 40: "", -16: "",
	} {
		assert.Equal(t, want, table.sass("f", pc), "at %#x", pc)
	}
	assert.Empty(t, table.sass("g", 16))
	table.Listing("f", "0040  RET\n0010  FFMA R1, R1, R2, R3  ×3\n0060  BRA `(.L)\n")
	assert.Empty(t, table.sass("f", 64), "two builds of a function differ here")
	assert.Equal(t, "FFMA R1, R1, R2, R3", table.sass("f", 32))
	assert.Equal(t, "BRA `(.L)", table.sass("f", 96))
	assert.Zero(t, table.Totals().LeftOut.Instructions)
}

func TestEveryReasonOfCUPTIIsExplained(t *testing.T) {
	// As libcupti 13.0 names them.
	for _, reason := range strings.Fields(`barrier branch_resolving dispatch_stall drain imc_miss lg_throttle
		long_scoreboard math_pipe_throttle membar mio_throttle misc no_instructions not_selected selected
		short_scoreboard sleeping tex_throttle wait warpgroup_arrive`) {
		e, ok := Explain("smsp__pcsamp_warps_issue_stalled_" + reason + "_not_issued")
		assert.True(t, ok, reason)
		assert.NotEmpty(t, e.Means, reason)
		assert.NotEmpty(t, e.Try, reason)
	}
	assert.Len(t, explanations, 19)
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "deep-profiling.md"))
	require.NoError(t, err)
	for reason := range explanations {
		assert.Contains(t, string(page), "| `"+reason+"` |", "docs/deep-profiling.md explains every reason")
	}
	_, ok := Explain("stall_7")
	assert.False(t, ok)
}

func FuzzListing(f *testing.F) {
	f.Add("0010  FFMA R1, R1, R2, R3  ×3\n0040  EXIT\n", int64(32))
	f.Add("ffffffffffffffff  X\n-10  Y\n7fffffffffffffff  Z  ×65536\n", int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, text string, pc int64) {
		alloctest.Limit{PerByte: 1 << 7, Constant: 1 << 18}.Check(t, len(text), func() {
			New(Limits{ListingBytes: 1 << 12}).Listing("f", text)
		})
		table := New(Limits{ListingBytes: 1 << 12})
		table.Listing("f", text)
		kept := uint64(0)
		for _, l := range table.listings.texts {
			kept += uint64(len(l.at))
		}
		lines := uint64(0)
		for line := range strings.Lines(text) {
			if strings.TrimSpace(strings.TrimRight(line, "\r\n")) != "" {
				lines++
			}
		}
		if kept+table.left.Instructions > lines {
			t.Fatalf("%d kept and %d left out of %d lines", kept, table.left.Instructions, lines)
		}
		if table.listings.bytes > 1<<12 {
			t.Fatalf("%d bytes are kept", table.listings.bytes)
		}
		if sass := table.sass("f", pc); len(sass) > maxInstruction || sass != "" && !strings.Contains(text, sass) {
			t.Fatalf("%q at %d", sass, pc)
		}
	})
}
