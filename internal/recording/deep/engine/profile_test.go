// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/cubin"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/deepprofile"
	"github.com/gpuflight/gpuflight/internal/recording/profile"
	"github.com/gpuflight/gpuflight/internal/recording/profile/profiletest"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
	"github.com/gpuflight/gpuflight/semconv"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const (
	inlinedSymbol = "_Z7inlinedILi32EEvPfPKf"
	launched      = 12 // the launch that is known
)

// belonging is where the profiles of a test belong.
func belonging() *deepprofile.Session {
	r := pcommon.NewResource()
	r.Attributes().PutStr(semconv.ServiceName, "trainer")
	return &deepprofile.Session{
		Resource: r, Devices: []gpuevent.Device{{Index: 0, UUID: "GPU-0"}},
		Attributes: []profile.Attribute{{Key: semconv.CUDADeepWindowID, Int: 3, IsInt: true}},
		ID:         func(n uint64) (id [16]byte) { id[0], id[15] = 7, byte(n); return id },
		Launch: func(correlation gpuevent.Int) (gpuevent.Ref, []string) {
			ref := gpuevent.Ref{Trace: gpuevent.TraceID{1}, Span: gpuevent.SpanID{2}}
			if correlation == gpuevent.Some(launched) {
				ref.Span = gpuevent.SpanID{3}
				return ref, []string{"forward", "train_step"}
			}
			return ref, nil
		},
	}
}

// offsetOf is the offset of an instruction of a function that has so many frames, the innermost in
// a function whose symbol has a word in it.
func offsetOf(t *testing.T, image []byte, function string, frames int, word string) uint64 {
	t.Helper()
	f, err := cubin.Open(image)
	require.NoError(t, err)
	fn, ok := f.Lookup(function)
	require.True(t, ok)
	for pc := uint64(0); pc < fn.Size; pc += cubin.InstructionBytes {
		got, reason := f.Locate(function, pc, nil)
		if reason == cubin.Resolved && len(got) == frames && strings.Contains(got[0].Function, word) {
			return pc
		}
	}
	t.Fatalf("%s has no instruction with %d frames in %q", function, frames, word)
	return 0
}

// yield runs one window of each result and returns them.
func yield(t *testing.T, s Settings, image []byte, engine deep.Engine, results ...*cupti.DeepResult) []*recorder.Window {
	t.Helper()
	t.Setenv(cubin.DisassemblerEnv, filepath.Join(t.TempDir(), "none"))
	src, k := &source{image: image}, newSink()
	e := New(s, src, k, nil)
	e.Start()
	for i, r := range results {
		src.result = r
		run(t, e, uint64(i+1), engine)
	}
	windows := k.wait(t, len(results))
	stop(t, e)
	return windows
}

func TestWindowAsProfile(t *testing.T) {
	image := golden(t)
	squared, outlined := offsetOf(t, image, inlinedSymbol, 2, "squared"), offsetOf(t, image, inlinedSymbol, 1, "outlined")
	store := storeOf(t, image)
	stalls := &cupti.DeepResult{
		Engine: cupti.EnginePCSampling, Start: time.Unix(100, 0), End: time.Unix(102, 0), PeriodLog2: 12,
		Functions: []string{"plain", inlinedSymbol, "_Z7unknownv"}, Names: []string{longScoreboard, longScoreboard + "_not_issued", barrier},
		Rows: []cupti.DeepRow{
			{CRC: imageCRC, Function: 1, PC: squared, What: 0, Value: 700, Correlation: launched},
			{CRC: imageCRC, Function: 1, PC: squared, What: 1, Value: 600, Correlation: launched},
			{CRC: imageCRC, Function: 1, PC: outlined, What: 0, Value: 50},
			{CRC: imageCRC, Function: 0, PC: store, What: 2, Value: 30, Device: 1},
			{CRC: 99, Function: 2, PC: 64, What: 2, Value: 5, Device: -1},
			{CRC: 99, Function: 2, PC: 80, What: 2, Value: 1, Device: -1},
		},
	}
	w := yield(t, Settings{Profiles: true, MaxRows: 5}, image, deep.PC, stalls)[0]
	require.NotNil(t, w.Profile)
	requests := w.Profile.Profiles(belonging())
	require.Len(t, requests, 1)

	line, err := requests[0].JSON()
	require.NoError(t, err)
	path := filepath.Join("testdata", "profile.json")
	if *update {
		var text bytes.Buffer
		require.NoError(t, json.Indent(&text, line, "", " "))
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, append(text.Bytes(), '\n'), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.JSONEq(t, string(want), string(line))

	all := profiletest.Samples(t, requests...)
	require.Len(t, all, 5)
	s := all[0]
	assert.Equal(t, "gpu_samples/count", s.Type)
	assert.Equal(t, "sm_clock/cycles", s.Period)
	assert.Equal(t, int64(4096), s.Every)
	assert.Equal(t, time.Unix(100, 0).UTC(), s.Start)
	assert.Equal(t, 2*time.Second, s.Length)
	assert.Equal(t, map[string]any{semconv.CUDADeepWindowID: int64(3)}, s.Of)
	assert.Equal(t, map[string]any{semconv.CUDACubinCRC: "7"}, s.Mapping)
	assert.Equal(t, "7.cubin", s.File)
	assert.Equal(t, squared, s.Address)
	assert.Equal(t, map[string]any{semconv.CUDAStallReason: "long_scoreboard", semconv.HWID: "GPU-0", semconv.CUDADeviceIndex: int64(0)}, s.Attributes)
	assert.Equal(t, [8]byte{3}, s.Span, "the launch's")
	assert.Equal(t, int64(700), s.Value)
	// What was inlined is inside its caller, that is inside the scopes around the launch.
	require.Len(t, s.Stack, 4)
	assert.Contains(t, s.Stack[0], "squared(float) ")
	assert.Contains(t, s.Stack[0], "lines.cuh:")
	assert.Contains(t, s.Stack[1], "void inlined<32>(float*, float const*) ")
	assert.True(t, strings.HasSuffix(s.Stack[1], "lines.cu:"+strconv.FormatInt(marked(t, "inlined"), 10)), s.Stack[1])
	assert.Equal(t, []string{"forward", "train_step"}, s.Stack[2:])
	assert.Equal(t, inlinedSymbol, s.Symbols[1])

	// A function that is called stands in the kernel, from where is not known.
	s = all[1]
	require.Len(t, s.Stack, 2)
	assert.Contains(t, s.Stack[0], "outlined(float, int) ")
	assert.Equal(t, "void inlined<32>(float*, float const*)", s.Stack[1])
	assert.Equal(t, [8]byte{2}, s.Span, "the window's")

	assert.Equal(t, map[string]any{semconv.CUDAStallReason: "barrier", semconv.CUDADeviceIndex: int64(1)}, all[2].Attributes)
	assert.Equal(t, []string{"unknown()"}, all[3].Stack, "what the bound left out, by function")
	assert.Empty(t, all[3].File, "an image without an address says nothing")
	assert.Equal(t, int64(6), all[3].Value)
	// What is counted twice is in a profile of its own.
	assert.Equal(t, "gpu_samples_not_issued/count", all[4].Type)
	assert.Equal(t, "long_scoreboard_not_issued", all[4].Attributes[semconv.CUDAStallReason])
	assert.Equal(t, int64(600), all[4].Value)
	assert.NotEqual(t, all[0].Profile, all[4].Profile)
}

func TestNoProfileUnlessWanted(t *testing.T) {
	assert.Nil(t, yield(t, Settings{}, golden(t), deep.PC, samples(0))[0].Profile)
}

// Whatever a window has and however its requests are cut, the profiles' sums are those of the logs.
func TestSumsOfProfilesAreThoseOfLogs(t *testing.T) {
	image := golden(t)
	r := rand.New(rand.NewPCG(5, 6))
	functions := []string{"plain", inlinedSymbol, "_Z9remainderPxx", "_Z7unknownv"}
	for round := range 6 {
		engine, what := deep.PC, cupti.EnginePCSampling
		if round%2 == 1 {
			engine, what = deep.SASS, cupti.EngineSASS
		}
		result := &cupti.DeepResult{Engine: what, Functions: functions, Names: []string{"a", "a_not_issued", "b", "c"}}
		for range 20_000 {
			result.Rows = append(result.Rows, cupti.DeepRow{
				CRC: uint64(imageCRC + r.IntN(2)), Function: uint32(r.IntN(len(functions) + 1)), PC: uint64(r.IntN(200)) * cubin.InstructionBytes,
				What: uint32(r.IntN(5)), Device: int32(r.IntN(3) - 1), Correlation: uint32(r.IntN(20)), Value: uint64(r.IntN(1000)),
			})
		}
		w := yield(t, Settings{Profiles: true, MaxRows: 100 + 15_000*(round%3)}, image, engine, result)[0]
		type key struct {
			what   string
			device any
		}
		logs, profiles := map[key]uint64{}, map[key]uint64{}
		device := func(n gpuevent.Int) any {
			if !n.OK {
				return nil
			}
			return n.V
		}
		for _, s := range w.Samples {
			logs[key{s.Reason, device(s.Device)}] += uint64(s.Count)
		}
		for _, c := range w.Counters {
			logs[key{c.Metric, device(c.Device)}] += c.Value
		}
		requests := w.Profile.Profiles(belonging())
		for _, s := range profiletest.Samples(t, requests...) {
			name := strings.TrimSuffix(s.Type, "/count")
			if reason, ok := s.Attributes[semconv.CUDAStallReason]; ok {
				assert.Equal(t, strings.HasSuffix(reason.(string), "_not_issued"), name == "gpu_samples_not_issued")
				name = reason.(string)
			}
			profiles[key{name, s.Attributes[semconv.CUDADeviceIndex]}] += uint64(s.Value)
		}
		require.Equal(t, logs, profiles)
		for _, p := range requests {
			require.LessOrEqual(t, p.Size(), 4<<20-1024)
			line, err := p.JSON()
			require.NoError(t, err)
			require.Less(t, len(line), 1<<20)
		}
	}
}
