// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/cubin"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/deepprofile"
	"github.com/gpuflight/gpuflight/internal/recording/profile"
	"github.com/gpuflight/gpuflight/internal/recording/profile/profiletest"
	"github.com/gpuflight/gpuflight/semconv"
)

// profileSink keeps profiles. Only the recorder's goroutine writes it. Tests read it after that has
// ended.
type profileSink struct{ requests []profile.Profiles }

func (s *profileSink) Profiles(p profile.Profiles) { s.requests = append(s.requests, p) }

func figure(reason string, correlation gpuevent.Int) deepprofile.Figure {
	return deepprofile.Figure{
		What: reason, Value: 7, At: cubin.Location{Function: nameOf("gemm")}, PC: gpuevent.Some(64), CRC: 5,
		Device: gpuevent.Some(0), Correlation: correlation,
	}
}

func yielded(w deep.Window) *Window {
	return &Window{Window: w, Profile: &deepprofile.Window{Parts: []*deepprofile.Part{{
		Engine: cupti.EnginePCSampling, Start: at(1000), End: at(5000), PeriodLog2: 10,
		Figures: []deepprofile.Figure{figure("known", gpuevent.Some(77)), figure("outside", gpuevent.Some(79)), figure("unknown", gpuevent.Some(78)), figure("none", gpuevent.Int{})},
	}}}}
}

func TestProfiles_Window(t *testing.T) {
	to := &profileSink{}
	f := newFixture(t, Config{Profiles: to}).start()
	f.src.event(begin(1, 0, 10, 0, "step"), begin(2, 1, 10, 10, "forward"))
	w := windowOf(3, deep.PC, 1000, 5000)
	f.r.WindowOpened(w, true)
	f.src.deliver(in(2, kernel("gemm", 77, 2000, 100)), kernel("gemm", 79, 2200, 100))
	f.r.WindowClosed(w)
	require.True(t, f.r.AddWindow(yielded(w)))
	f.stop()

	all := profiletest.Samples(t, to.requests...)
	require.Len(t, all, 4)
	byReason := map[string]profiletest.Sample{}
	for _, s := range all {
		byReason[s.Attributes[semconv.CUDAStallReason].(string)] = s
		assert.Equal(t, map[string]any{
			semconv.CUDADeepWindowID: int64(3), semconv.CUDADeepWindowCause: string(w.Cause), semconv.CUDADeepWindowWhy: w.Why,
		}, s.Of)
		assert.Equal(t, "app", s.Resource[semconv.ServiceName])
		assert.Equal(t, testInstance, s.Resource[semconv.ServiceInstanceID])
		assert.Equal(t, oneDevice[0].UUID, s.Attributes[semconv.HWID])
		assert.Equal(t, int64(1024), s.Every)
		assert.Equal(t, at(1000).UTC(), s.Start)
		assert.Equal(t, 4*time.Microsecond, s.Length)
		assert.NotZero(t, s.Profile)
	}
	window := f.sink.spanNamed(t, "deep window")
	assert.Equal(t, [16]byte(window.TraceID()), byReason["none"].Trace)
	for _, reason := range []string{"none", "unknown"} {
		assert.Equal(t, [8]byte(window.SpanID()), byReason[reason].Span, reason)
		assert.Equal(t, []string{"gemm"}, byReason[reason].Stack, "where it was launched is not known")
	}
	var known, outside gpuevent.SpanID
	for _, k := range f.sink.operation("kernel") {
		if attr(k.Attributes(), semconv.CUDACorrelationID) == "77" {
			known = gpuevent.SpanID(k.SpanID())
		} else {
			outside = gpuevent.SpanID(k.SpanID())
		}
	}
	assert.Equal(t, [8]byte(known), byReason["known"].Span)
	assert.Equal(t, []string{"gemm", "forward", "step"}, byReason["known"].Stack)
	assert.Equal(t, [8]byte(outside), byReason["outside"].Span)
	assert.Equal(t, []string{"gemm"}, byReason["outside"].Stack)
}

// The ids of profiles are unique, also across sessions.
func TestProfiles_UniqueIDs(t *testing.T) {
	seen := map[[16]byte]bool{}
	for _, instance := range []string{testInstance, NewInstanceID()} {
		to := &profileSink{}
		f := newFixture(t, Config{Profiles: to, InstanceID: instance}).start()
		for id := range uint64(3) {
			w := windowOf(id+1, deep.PC, 1000, 5000)
			f.r.WindowOpened(w, false)
			f.r.WindowClosed(w)
			require.True(t, f.r.AddWindow(yielded(w)))
		}
		f.stop()
		require.Len(t, to.requests, 3)
		for _, p := range to.requests {
			seen[profiletest.Samples(t, p)[0].Profile] = true
		}
	}
	assert.Len(t, seen, 6)
}

// A window has no profile if profiles are disabled.
func TestProfiles_Disabled(t *testing.T) {
	f := newFixture(t, Config{}).start()
	w := windowOf(1, deep.PC, 1000, 5000)
	f.r.WindowOpened(w, false)
	f.r.WindowClosed(w)
	require.True(t, f.r.AddWindow(yielded(w)))
	assert.Empty(t, f.stop().Failure)
	f.sink.spanNamed(t, "deep window")
}
