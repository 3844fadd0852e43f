// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/semconv"
)

// windowAt is a window as a recorder writes it, in both forms: a span and a log record.
type windowAt struct {
	process, id        int64
	engines            []string
	status, closing    string
	message, why       string
	start, length      int64 // milliseconds
	numbers            map[string]int64
	missing            []string
	pausedMilliseconds int64
	longestHold        float64
}

func (w *windowAt) write(a pcommon.Map) {
	a.PutInt(semconv.CUDADeepWindowID, w.id)
	engines := a.PutEmptySlice(semconv.CUDADeepWindowEngines)
	for _, e := range w.engines {
		engines.AppendEmpty().SetStr(e)
	}
	a.PutStr(semconv.CUDADeepWindowCause, semconv.CUDADeepWindowCauseSchedule)
	a.PutStr(semconv.CUDADeepWindowWhy, w.why)
	a.PutStr(semconv.CUDADeepWindowStatus, w.status)
	a.PutStr(semconv.CUDADeepWindowMessage, w.message)
	a.PutStr(semconv.CUDADeepWindowCloseReason, w.closing)
	a.PutDouble(semconv.CUDADeepWindowPausedDuration, float64(w.pausedMilliseconds)/1e3)
	if w.longestHold > 0 {
		a.PutDouble(semconv.CUDADeepWindowLongestHold, w.longestHold)
	}
	for name, n := range w.numbers {
		a.PutInt(name, n)
	}
	missing := a.PutEmptySlice(semconv.CUDADeepWindowMissing)
	for _, m := range w.missing {
		missing.AppendEmpty().SetStr(m)
	}
}

func (w *windowAt) resource(res pcommon.Resource) {
	res.Attributes().PutStr(semconv.ServiceInstanceID, string(rune('a'+w.process)))
	res.Attributes().PutInt(semconv.ProcessPID, w.process)
}

func (w *windowAt) span() ptrace.Traces {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	w.resource(rs.Resource())
	s := rs.ScopeSpans().AppendEmpty().Spans().AppendEmpty()
	s.SetStartTimestamp(pcommon.Timestamp(w.start * 1e6))
	s.SetEndTimestamp(pcommon.Timestamp((w.start + w.length) * 1e6))
	s.Attributes().PutStr(semconv.CUDAOperation, semconv.CUDAOperationDeepWindow)
	w.write(s.Attributes())
	return td
}

func (w *windowAt) log() plog.Logs {
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	w.resource(rl.Resource())
	r := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
	r.SetEventName(semconv.EventCUDADeepWindow)
	w.write(r.Attributes())
	r.Attributes().PutInt(semconv.CUDADeepWindowStartTimeUnixNano, w.start*1e6)
	r.Attributes().PutInt(semconv.CUDADeepWindowEndTimeUnixNano, (w.start+w.length)*1e6)
	return ld
}

var (
	// wellRead lost samples here and there, as happens.
	wellRead = windowAt{
		process: 7, id: 1, engines: []string{"pc_sampling"}, status: "collected", message: "the window was opened and its data collected",
		closing: "time", why: "30s after the start", start: 1000, length: 2310,
		numbers: map[string]int64{
			semconv.CUDADeepWindowSamples: 10_000, semconv.CUDADeepWindowLost: 220, semconv.CUDADeepWindowSamplesDropped: 200,
			semconv.CUDADeepWindowSamplesNonUser: 20, semconv.CUDADeepWindowRows: 812,
		},
	}
	counted = windowAt{
		message: "the window was opened and its data collected; work that was under way is not counted whole",
		process: 7, id: 2, engines: []string{"sass_metrics"}, status: "collected", closing: "exit", start: 5000, length: 512, pausedMilliseconds: 498,
		numbers: map[string]int64{semconv.CUDADeepWindowSamples: 3000, semconv.CUDADeepWindowRows: 3000, semconv.CUDADeepWindowRowsWithoutSASS: 3000},
		missing: []string{"smsp__sass_sectors_mem_global"},
	}
	overrun = windowAt{
		longestHold: 0.345,
		process:     8, id: 1, engines: []string{"pc_sampling"}, status: "collected", closing: "limit", start: 3000, length: 2000,
		numbers: map[string]int64{
			semconv.CUDADeepWindowSamples: 90_000, semconv.CUDADeepWindowLost: 1700, semconv.CUDADeepWindowSamplesDropped: 500,
			semconv.CUDADeepWindowRows: 10_000, semconv.CUDADeepWindowRowsOther: 345, semconv.CUDADeepWindowRowsLost: 40,
			semconv.CUDADeepWindowRowsUnresolved: 9000, semconv.CUDADeepWindowHardwareFull: 14,
			semconv.CUDADeepWindowContextsSkipped: 1, semconv.CUDADeepWindowContextsLost: 2,
			semconv.CUDADeepWindowCallsHeld: 12, semconv.CUDADeepWindowCallsReleased: 1,
		},
	}
	noPermission = windowAt{
		process: 8, id: 2, status: "no_permission", start: 9000, length: 3,
		message: "this process may not read the GPU's counters; allow it with NVreg_RestrictProfilingToAdminUsers=0 or give it CAP_SYS_ADMIN",
	}
)

func windowText(t *testing.T, w Windows, top int) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, w.Write(&out, top))
	return out.String()
}

func TestWindowsAndWhatTheyLost(t *testing.T) {
	r := New()
	for _, w := range []windowAt{noPermission, overrun, counted, wellRead} {
		// The span and the record of a window are one, and either is enough.
		r.Logs(w.log())
		r.Traces(w.span())
		r.Logs(w.log())
	}
	r.Traces(wellRead.span())
	again := noPermission
	again.id = 3
	again.start = 9500
	r.Traces(again.span())
	ended := newMeasured()
	ended.record(semconv.EventCUDACapture, "", -1, 0).Attributes().PutInt(semconv.CUDACaptureFunctionsWithoutSASS, 4)
	r.Logs(ended.logs)
	w := r.Windows()
	assert.Equal(t, [2]int{3, 2}, [2]int{w.Collected, w.Empty})
	require.Len(t, w.List, 5)
	assert.Equal(t, wellRead.log().ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).Attributes().AsRaw()[semconv.CUDADeepWindowWhy], w.List[0].Why)
	assert.Equal(t, uint64(103_000), w.Sum.Samples)
	assert.Equal(t, uint64(1920), w.Sum.Lost)
	golden(t, "windows.txt", []byte(windowText(t, w, 0)))
	// Counters are no samples: 90,000 are of the second window.
	assert.Contains(t, windowText(t, w, 1), "90,000  1,700  13,000                 (4 more)")

	totals, inside := r.Totals(), r.Inside(0, 0)
	var out bytes.Buffer
	require.NoError(t, WriteJSON(&out, &totals, &w, &inside, nil, 2))
	var got struct {
		Windows map[string]any
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &got))
	list := got.Windows["list"].([]any)
	require.Len(t, list, 2)
	first := list[0].(map[string]any)
	assert.Equal(t, map[string]any{
		"id": 1., "pid": 7., "engines": []any{"pc_sampling"}, "cause": "schedule", "why": "30s after the start", "status": "collected",
		"message": "the window was opened and its data collected", "closed": "time", "start_unix_nano": 1e9, "seconds": 2.31, "paused_seconds": 0.,
		"samples": 10_000., "lost": 220., "samples_dropped": 200., "samples_non_user": 20., "hardware_full": 0., "rows": 812., "rows_other": 0.,
		"rows_lost": 0., "rows_unresolved": 0., "rows_without_sass": 0., "contexts_skipped": 0., "contexts_lost": 0., "calls_held": 0., "calls_released": 0., "longest_hold_seconds": 0.,
	}, first)
	assert.Equal(t, []any{4., 3., 2., 0.498, 14.}, []any{
		got.Windows["functions_without_sass"], got.Windows["collected"], got.Windows["without_figures"], got.Windows["paused_seconds"], got.Windows["hardware_full"],
	})
}

// What is lost at random leaves shares as they are; what is lost late does not.
func TestWhetherSharesHold(t *testing.T) {
	with := func(numbers map[string]int64) windowAt {
		w := wellRead
		w.numbers = map[string]int64{semconv.CUDADeepWindowSamples: 1000, semconv.CUDADeepWindowRows: 10}
		for name, n := range numbers {
			w.numbers[name] = n
		}
		return w
	}
	const hold, rough = "So the shares below hold.", "So the shares below are of what was seen"
	for _, tc := range []struct {
		name    string
		numbers map[string]int64
		want    []string
		not     []string
	}{
		{"nothing", nil, []string{"Nothing that was taken was lost."}, []string{hold, rough}},
		{"dropped", map[string]int64{semconv.CUDADeepWindowLost: 25, semconv.CUDADeepWindowSamplesDropped: 25},
			[]string{"Dropped by the hardware: 25 samples (2.5% of all). ", hold}, []string{rough}},
		{"non user", map[string]int64{semconv.CUDADeepWindowLost: 1, semconv.CUDADeepWindowSamplesNonUser: 1},
			[]string{"Of code that CUPTI does not show: 1 sample (0.1% of all). They are in no share.", hold}, []string{rough}},
		{"mostly non user", map[string]int64{semconv.CUDADeepWindowLost: 900, semconv.CUDADeepWindowSamplesNonUser: 900},
			[]string{"Of code that CUPTI does not show: 900 samples (90.0% of all). These are most samples, and in no share; ", rough}, []string{hold}},
		{"other", map[string]int64{semconv.CUDADeepWindowRowsOther: 2}, []string{"Above the most that a window sends: 2 rows. ", hold}, []string{rough}},
		{"full", map[string]int64{semconv.CUDADeepWindowHardwareFull: 1}, []string{"Buffer of the hardware full: once. ", rough}, []string{hold}},
		{"no room", map[string]int64{semconv.CUDADeepWindowLost: 9, semconv.CUDADeepWindowRowsLost: 3},
			[]string{"Without room while a window was open: 3 rows of 9 samples. ", rough}, []string{hold, "otherwise"}},
		{"broken", map[string]int64{semconv.CUDADeepWindowLost: 9, semconv.CUDADeepWindowSamplesDropped: 4}, []string{"Lost otherwise: 5 figures. ", rough}, []string{hold}},
		{"contexts", map[string]int64{semconv.CUDADeepWindowContextsSkipped: 2}, []string{"Not looked at: 2 CUDA contexts. ", rough}, []string{hold}},
		{"held", map[string]int64{semconv.CUDADeepWindowCallsHeld: 2}, []string{"Had to wait for a window: 2 calls of the program. It lost that time."}, []string{hold, rough}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := with(tc.numbers)
			r := New()
			r.Logs(w.log())
			text := windowText(t, r.Windows(), 0)
			for _, want := range tc.want {
				assert.Contains(t, text, want)
			}
			for _, not := range tc.not {
				assert.NotContains(t, text, not)
			}
		})
	}
	// Of a window of both engines the number of samples is not known by itself.
	both := with(map[string]int64{semconv.CUDADeepWindowLost: 25, semconv.CUDADeepWindowSamplesDropped: 25})
	both.engines = []string{"pc_sampling", "sass_metrics"}
	r := New()
	r.Logs(both.log())
	assert.Contains(t, windowText(t, r.Windows(), 0), "Dropped by the hardware: 25 samples. ")
}

// A recording of others, or a bad one, is no reason to fail.
func TestWindowsThatMakeNoSense(t *testing.T) {
	others := windowAt{}
	bad := windowAt{id: 5, status: "evil\x1b[2J", message: "line\nbreak", start: 9000, length: -8000, engines: []string{"a\tb"}}
	r := New()
	r.Logs(others.log())
	r.Logs(bad.log())
	w := r.Windows()
	require.Len(t, w.List, 1, "of others there are no such figures")
	assert.Zero(t, w.List[0].Length)
	text := windowText(t, w, 0)
	assert.Contains(t, text, "1 window, evil [2J: line break.\n")
	assert.NotContains(t, text, "\x1b")

	most := windowAt{id: 6, status: "collected", numbers: map[string]int64{semconv.CUDADeepWindowSamples: math.MaxInt64, semconv.CUDADeepWindowLost: math.MaxInt64}}
	for i := range int64(3) {
		most.process = i
		r.Logs(most.log())
	}
	assert.Equal(t, uint64(math.MaxUint64), r.Windows().Sum.Samples)
	windowText(t, r.Windows(), 0)
}

func TestReasonsOfWindowsAreBounded(t *testing.T) {
	r := New()
	w := noPermission
	for id := range int64(maxMessages + 3) {
		w.id, w.message = id+1, "reason "+strconv.FormatInt(id, 10)
		r.Logs(w.log())
	}
	text := windowText(t, r.Windows(), 0)
	assert.Contains(t, text, "1 window, no_permission: reason 19.\n3 windows with other messages: --json has them.\n")
}

func TestWindowsAreBounded(t *testing.T) {
	r := New()
	w := noPermission
	for id := range int64(maxWindows + 10) {
		w.id = id + 1
		r.Logs(w.log())
	}
	all := r.Windows()
	assert.Len(t, all.List, maxWindows)
	assert.True(t, all.More)
	assert.Contains(t, windowText(t, all, 1), "There are more windows than 20,000")
}
