// SPDX-License-Identifier: Apache-2.0

package deepprofile

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/cubin"
	"github.com/gpuflight/gpuflight/internal/recording/profile"
	"github.com/gpuflight/gpuflight/internal/recording/profile/profiletest"
	"github.com/gpuflight/gpuflight/semconv"
)

// session has all launches in the same scopes.
func session(scopes ...string) *Session {
	return &Session{
		Resource: pcommon.NewResource(), ID: func(n uint64) [16]byte { return [16]byte{byte(n + 1)} },
		Launch: func(gpuevent.Int) (gpuevent.Ref, []string) { return gpuevent.Ref{}, scopes },
	}
}

func place(kernel string, frames ...string) cubin.Location {
	at := cubin.Location{Function: gpuevent.NewKernelName(kernel)}
	for i, f := range frames {
		at.Frames = append(at.Frames, cubin.NamedFrame{Function: gpuevent.NewKernelName(f), File: "a.cu", Line: i + 1})
	}
	return at
}

func TestStacks(t *testing.T) {
	for name, tc := range map[string]struct {
		at     cubin.Location
		scopes []string
		want   []string
	}{
		"with its lines":                      {place("k", "inner", "k"), nil, []string{"inner a.cu:1", "k a.cu:2"}},
		"in a function that the kernel calls": {place("k", "inner", "called"), []string{"step"}, []string{"inner a.cu:1", "called a.cu:2", "k", "step"}},
		"of an image that nobody has":         {place("k"), []string{"forward", "step"}, []string{"k", "forward", "step"}},
		"without a name":                      {cubin.Location{}, []string{""}, []string{"unknown", "unknown"}},
	} {
		f := Figure{What: "inst", Value: 1, At: tc.at, PC: gpuevent.Some(32), CRC: 9}
		w := &Window{Parts: []*Part{{Engine: cupti.EngineSASS, Figures: []Figure{f}}}}
		all := profiletest.Samples(t, w.Profiles(session(tc.scopes...))...)
		require.Len(t, all, 1, name)
		assert.Equal(t, tc.want, all[0].Stack, name)
		assert.Equal(t, uint64(32), all[0].Address)
		assert.Equal(t, map[string]any{semconv.CUDACubinCRC: "9"}, all[0].Mapping)
	}
}

func TestTypesOfSamples(t *testing.T) {
	at := place("k")
	start := time.Unix(5, 0)
	w := &Window{Parts: []*Part{
		{Engine: cupti.EnginePCSampling, Start: start, End: start.Add(time.Second), Figures: []Figure{
			{What: "smsp__pcsamp_warps_issue_stalled_wait_not_issued", Value: 2, At: at},
			{What: "smsp__pcsamp_warps_issue_stalled_wait", Value: 5, At: at},
			{What: "smsp__pcsamp_warps_issue_stalled_barrier", Value: 0, At: at}, // nothing
		}},
		{Engine: cupti.EngineSASS, PeriodLog2: 12, Figures: []Figure{
			{What: "threads", Value: math.MaxUint64, At: at}, {What: "inst_not_issued", Value: 4, At: at, Device: gpuevent.Some(2)},
		}},
	}}
	requests := w.Profiles(session())
	type row struct {
		kind, reason string
		value        int64
	}
	var got []row
	ids := map[[16]byte]bool{}
	for _, s := range profiletest.Samples(t, requests...) {
		reason, _ := s.Attributes[semconv.CUDAStallReason].(string)
		got = append(got, row{s.Type, reason, s.Value})
		assert.Zero(t, s.Every, "not known, or not of this engine")
		assert.Empty(t, s.Period)
		assert.Empty(t, s.File)
		ids[s.Profile] = true
	}
	assert.Equal(t, []row{
		{"gpu_samples/count", "wait", 5}, {"gpu_samples_not_issued/count", "wait_not_issued", 2},
		{"inst_not_issued/count", "", 4},
		{"threads/count", "", math.MaxInt64}, {"threads/count", "", math.MaxInt64}, {"threads/count", "", 1},
	}, got)
	assert.Len(t, ids, 4)
	assert.Equal(t, 4, requests[0].Count())
}

func TestWindowWithoutFigures(t *testing.T) {
	assert.Empty(t, (&Window{}).Profiles(session()))
	w := &Window{Parts: []*Part{{Engine: cupti.EngineSASS, Figures: []Figure{{What: "inst"}}}}}
	assert.Empty(t, w.Profiles(session()))
}

// BenchmarkProfiles converts a window of 10,000 figures, the default maximum.
func BenchmarkProfiles(b *testing.B) {
	p := &Part{Engine: cupti.EnginePCSampling, PeriodLog2: 12}
	at := place("_Z4gemmILi32EEvPfPKf", "load", "_Z4gemmILi32EEvPfPKf")
	for i := range 10_000 {
		f := Figure{What: "smsp__pcsamp_warps_issue_stalled_wait", Value: 7, At: at, PC: gpuevent.Some(int64(i / 4 * 16)), CRC: 5, Device: gpuevent.Some(0)}
		if i%4 == 0 {
			f.What = "smsp__pcsamp_warps_issue_stalled_barrier"
		}
		p.Figures = append(p.Figures, f)
	}
	w := &Window{Parts: []*Part{p}}
	var requests []profile.Profiles
	for b.Loop() {
		requests = w.Profiles(session())
	}
	bytes := 0
	for _, r := range requests {
		bytes += r.Size()
	}
	b.ReportMetric(float64(bytes)/10_000, "B/figure")
	b.ReportMetric(float64(len(requests)), "requests")
}
