// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/analysis/ranks"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
)

// recordedRanks reads and compares two ranks of test/gpu/ranks.py.
func recordedRanks(t *testing.T, run string) (*Causes, *ranks.Result) {
	t.Helper()
	var c Causes
	for _, rank := range []string{"0", "1"} {
		_, err := ReadTelemetry("../../test/gpu/ranks/recordings/"+run+"-"+rank+".otlp.jsonl.gz",
			otlp.Handler{Traces: c.Traces, Logs: func(plog.Logs) {}, Metrics: func(pmetric.Metrics) {}})
		require.NoError(t, err)
	}
	got, err := c.Ranks(t.Context(), "", 1000)
	require.NoError(t, err)
	return &c, got
}

// TestRanks_NCCL reads two ranks that trained on two H200 and were connected by NVLink. Rank 1 slept for 15 ms in
// every third of 60 steps, and its clock is moved by 1,234,567,890 ns: test/gpu/ranks.py.
func TestRanks_NCCL(t *testing.T) {
	c, got := recordedRanks(t, "nccl-host")
	require.Len(t, got.Ranks, 2)
	assert.Equal(t, 743, got.Total)

	alone, problem, err := c.Results(t.Context())
	require.NoError(t, err)
	require.Empty(t, problem)
	require.Len(t, alone, 2)
	// In most steps, rank 0 waits for rank 1 inside its kernels. NCCL starts in the first one, which is code of the
	// host, though calls of the runtime are in it.
	assert.Equal(t, analysis.BoundCommunication, alone[0].Steps.Typical.Bound)
	assert.Equal(t, analysis.BoundHost, alone[0].Devices[0].Bound)
	require.Greater(t, len(alone[0].Findings), 1)
	assert.Equal(t, "host", alone[0].Findings[0].Kind)
	assert.Equal(t, "communication", alone[0].Findings[1].Kind)
	// NCCL ends ncclCommInitRankConfig with a payload. It is in the first step.
	counts := map[string]int64{}
	for _, s := range c.Scopes() {
		counts[strings.Join(s.Path, " > ")] = s.Count
	}
	assert.Equal(t, map[string]int64{
		"step": 120, "step > ncclAllReduce": 1440, "step > ncclCommInitRankConfig": 2,
		"ncclAllReduce": 46, "ncclCommDestroy": 2, "ncclCommFinalize": 2,
	}, counts)
	for i := range alone {
		assert.EqualValues(t, 60, alone[i].Steps.Count)
	}

	var text bytes.Buffer
	require.NoError(t, WriteRanks(&text, got, 1, 100))
	assert.Regexp(t, `WAITED +COMM +EXPOSED +OVERLAPPED +MATCHED +HOST\n +0 .+ 416.99ms +450.76ms +450.76ms +0ns +743/743 +vm`, text.String())

	slow := got.Ranks[1]
	require.NotEmpty(t, got.Findings)
	assert.Equal(t, 1, got.Findings[0].Rank)
	assert.InDelta(t, 417.0e6, slow.LateNs, 0.1e6)
	assert.InDelta(t, 407.4e6, slow.LateAtLeastNs, 0.1e6)
	assert.Less(t, got.Ranks[0].LateNs, int64(300_000))
	// The program measured sleeps of 302.4 ms, which are before the first all-reduce of every third step. Before a sleep
	// rank 1 empties its queue, so in all steps its device waits for launches: it needs 1.8 ms until the first all-reduce.
	// That of rank 0 needs 0.5 ms, because its kernels are queued 157 ms before. The 11 others of a step are late by 41 µs
	// each for the same reason.
	slices.SortFunc(got.Collectives, func(a, b ranks.Together) int { return cmp.Compare(a.Parts[0].Enter, b.Parts[0].Enter) })
	var afterSleep, first, others int64
	for i := range got.Collectives {
		late := got.Collectives[i].Late
		require.NotNil(t, late)
		switch {
		case i >= 12*60: // of 256 MiB, after the steps
			assert.Less(t, late.Ns, int64(180_000))
		case i%36 == 24:
			assert.Equal(t, 1, late.Rank)
			assert.InDelta(t, 16.6e6, late.Ns, 0.4e6)
			assert.GreaterOrEqual(t, *late.MinNs, int64(15_120_000))
			afterSleep += late.Ns
		case i%12 == 0:
			assert.Equal(t, 1, late.Rank)
			assert.InDelta(t, 1.2e6, late.Ns, 0.8e6)
			first += late.Ns
		default:
			assert.Less(t, late.Ns, int64(700_000))
			others += late.Ns
		}
	}
	assert.InDelta(t, 302.4e6+20*1.5e6, afterSleep, 1e6)
	assert.InDelta(t, 40*1.42e6, first, 0.1e6)
	assert.InDelta(t, 660*41e3, others, 1e6)
	require.NotNil(t, slow.Cause)
	assert.Equal(t, "host", slow.Cause.Kind)
	assertMoved(t, slow.Offset, 50_000)

	sizes := map[int64]int{}
	for i := range got.Collectives {
		sizes[got.Collectives[i].Bytes]++
	}
	assert.Equal(t, map[int64]int{4 << 10: 360, 4 << 20: 360, 256 << 20: 23}, sizes)
	require.Len(t, got.Groups, 1)
	require.Len(t, got.Groups[0].Bandwidths, 1)
	assert.InDelta(t, 299.0e9, got.Groups[0].Bandwidths[0].Median, 0.1e9, "298.0 GB/s by CUDA events")
	assert.Zero(t, got.Groups[0].Peak, "with another name of the host, the link is unknown")
}

// assertMoved checks that the bounds of a clock contain the 1.23 s by which it was moved, and how far apart they are.
func assertMoved(t *testing.T, clock *ranks.Offset, width int64) {
	t.Helper()
	require.NotNil(t, clock)
	require.NotNil(t, clock.MinNs)
	require.NotNil(t, clock.MaxNs)
	assert.LessOrEqual(t, *clock.MinNs, int64(1_234_567_890))
	assert.GreaterOrEqual(t, *clock.MaxNs, int64(1_234_567_890))
	assert.Less(t, *clock.MaxNs-*clock.MinNs, width)
}

// TestRanks_Gloo reads two ranks with gloo. In every third of 60 steps, rank 1 slept for 15 ms or ran 120 kernels more.
// The clock is moved as that of [TestRanks_NCCL].
func TestRanks_Gloo(t *testing.T) {
	for run, want := range map[string]struct {
		last, proven            int
		measured, late, atLeast float64 // in ms; the first by the program
		cause, scope, kernel    string
		first, longest          int64
	}{
		"gloo-host":    {342, 61, 301.9, 353.1, 308.6, "host", "step *", "", 171_387_783, 0},
		"gloo-kernels": {374, 52, 3255.6, 3312.5, 3266.1, "more_kernels", "", "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8_stage3_warpsize4x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas", 2_815_195_246, 2_696_374},
	} {
		t.Run(run, func(t *testing.T) {
			_, got := recordedRanks(t, run)
			require.Len(t, got.Ranks, 2)
			assert.Equal(t, 720, got.Total)
			assert.Empty(t, got.Problems)
			require.NotEmpty(t, got.Findings)
			assert.Equal(t, 1, got.Findings[0].Rank)

			slow := got.Ranks[1]
			assert.Equal(t, 720, slow.Matched)
			assert.Equal(t, want.last, slow.Last)
			assert.Equal(t, want.proven, slow.Proven)
			assert.InDelta(t, want.late, float64(slow.LateNs)/1e6, 0.1)
			assert.InDelta(t, want.atLeast, float64(slow.LateAtLeastNs)/1e6, 0.1)
			require.NotNil(t, slow.Cause)
			assert.Equal(t, want.cause, slow.Cause.Kind)
			assert.Equal(t, want.scope, slow.Cause.Scope)
			assert.Equal(t, want.kernel, slow.Cause.Kernel)
			assertMoved(t, slow.Offset, 700_000)

			var text bytes.Buffer
			require.NoError(t, WriteRanks(&text, got, 1, 100))
			assert.NotContains(t, text.String(), "EXPOSED", "no collective is a kernel")
			latest := slices.MaxFunc(got.Collectives, func(a, b ranks.Together) int { return cmp.Compare(a.Late.Ns, b.Late.Ns) })
			assert.Equal(t, want.first, latest.Parts[0].Enter)
			assert.Less(t, latest.Parts[0].Enter, latest.Parts[1].Enter)
			assert.Regexp(t, `FIRST ENTERS +LAST +LATE .+\n +`+Time(time.Duration(want.first))+` +rank 1 `, text.String())
			require.NotEmpty(t, slow.Cause.Evidence)
			assert.Equal(t, want.longest, slow.Cause.Evidence[0].DurationNs)

			// A delay is before the first all-reduce of its step.
			slices.SortFunc(got.Collectives, func(a, b ranks.Together) int { return cmp.Compare(a.Parts[0].Enter, b.Parts[0].Enter) })
			var least, estimate, most float64
			for i := range got.Collectives {
				late := got.Collectives[i].Late
				require.NotNil(t, late)
				if i%36 != 24 {
					assert.Less(t, late.Ns, int64(5_000_000))
					continue
				}
				assert.Equal(t, 1, late.Rank)
				least += float64(*late.MinNs) / 1e6
				estimate += float64(late.Ns) / 1e6
				most += float64(*late.MaxNs) / 1e6
			}
			assert.Less(t, least, want.measured)
			assert.Greater(t, most, want.measured)
			assert.InEpsilon(t, want.measured, estimate, 0.002)
		})
	}
}
