// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpuflight/gpuflight/internal/recording/recorder"
	"github.com/gpuflight/gpuflight/internal/report/hotspot"
	"github.com/gpuflight/gpuflight/semconv"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares text with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, got, 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got))
}

// measured makes records as a recorder sends them.
type measured struct {
	logs    plog.Logs
	records plog.LogRecordSlice
}

func newMeasured() *measured {
	m := &measured{logs: plog.NewLogs()}
	rl := m.logs.ResourceLogs().AppendEmpty()
	rl.Resource().Attributes().PutStr(semconv.ServiceInstanceID, "a")
	m.records = rl.ScopeLogs().AppendEmpty().LogRecords()
	return m
}

func (m *measured) record(event, function string, pc, line int64) plog.LogRecord {
	r := m.records.AppendEmpty()
	r.SetEventName(event)
	a := r.Attributes()
	if function != "" {
		a.PutStr(semconv.CUDAKernelName, function)
	}
	if pc >= 0 {
		a.PutInt(semconv.CUDAPCOffset, pc)
	}
	if line > 0 {
		a.PutStr(semconv.CodeFilePath, "/home/me/project/src/kernels.cu")
		a.PutInt(semconv.CodeLineNumber, line)
	}
	return r
}

func (m *measured) sample(function string, pc, line int64, reason string, count int64) {
	a := m.record(semconv.EventCUDAPCSample, function, pc, line).Attributes()
	a.PutStr(semconv.CUDAStallReason, reason)
	a.PutInt(semconv.CUDASampleCount, count)
}

func (m *measured) counter(function string, pc, line int64, metric string, value int64) {
	a := m.record(semconv.EventCUDASASSMetric, function, pc, line).Attributes()
	a.PutStr(semconv.CUDAMetricName, metric)
	a.PutInt(semconv.CUDAMetricValue, value)
}

func (m *measured) listing(function, kind, text string) {
	r := m.record(semconv.EventCUDASASSListing, function, -1, 0)
	r.Attributes().PutStr(semconv.CUDAListingKind, kind)
	r.Body().SetStr(text)
}

// slow is a window of each engine over two kernels of examples/slow, with figures that follow from the code.
func slow() plog.Logs {
	m := newMeasured()
	const chase, divergent, strided = "chase(unsigned int const*, unsigned int*, int)", "divergent", "strided"
	m.sample(chase, 0x190, 20, "long_scoreboard", 900)
	m.sample(chase, 0x190, 20, "long_scoreboard_not_issued", 890)
	m.sample(chase, 0x1a0, 20, "long_scoreboard", 50)
	m.sample(chase, 0x1a0, 20, "selected", 10)
	m.sample(chase, 0x330, 19, "wait", 30)
	m.sample(chase, 0x340, 19, "stall_7", 4)
	m.sample(chase, 0x340, 19, "branch_resolving", 3)
	m.sample(chase, 0x340, 19, "not_selected", 2)
	m.sample(chase, 0x340, 19, "no_instructions", 1)
	for pc := int64(0x100); pc < 0x140; pc += 16 {
		m.counter(divergent, pc, 74, "smsp__sass_inst_executed", 1000)
		m.counter(divergent, pc, 74, "smsp__sass_thread_inst_executed", 1000)
	}
	m.counter(divergent, 0x80, 71, "smsp__sass_inst_executed", 100)
	m.counter(divergent, 0x80, 71, "smsp__sass_thread_inst_executed", 3200)
	for _, load := range []struct{ pc, line, sectors int64 }{{0x2d0, 90, 3200}, {0x4a0, 92, 400}} {
		m.counter(strided, load.pc, load.line, "smsp__sass_inst_executed", 100)
		m.counter(strided, load.pc, load.line, "smsp__sass_thread_inst_executed", 3200)
		m.counter(strided, load.pc, load.line, "smsp__sass_sectors_mem_global", load.sectors)
		m.counter(strided, load.pc, load.line, "smsp__sass_sectors_mem_global_ideal", 400)
	}
	m.sample("", -1, 0, "wait", 1)
	m.listing(chase, semconv.CUDAListingKindSASS, "0190  IMAD.WIDE.U32 R8, R7, 0x4, R2\n01a0  LDG.E R9, desc[UR4][R8.64]\n0330  IADD3 R2, R2, -0x10, RZ\n")
	m.listing(divergent, semconv.CUDAListingKindSASS, "0100  FFMA R6, R6, R2, R3  ×4\n")
	m.listing(strided, semconv.CUDAListingKindPTX, ".visible .entry strided() {}")
	return m.logs
}

func TestInsideOfKernelsAsText(t *testing.T) {
	r := New()
	r.Logs(slow())
	inside := r.Inside(10, 5)
	assert.Equal(t, uint64(1001), inside.Samples)
	assert.Equal(t, 4, inside.Functions)
	var out bytes.Buffer
	require.NoError(t, inside.Write(&out))
	golden(t, "slow.txt", out.Bytes())
}

// Where accesses to global memory alone were counted the tables say of what their lanes are.
func TestInsideOfKernelsByTheirMemory(t *testing.T) {
	m := newMeasured()
	for _, load := range []struct{ pc, line, on, sectors int64 }{{0x2d0, 90, 3200, 3200}, {0x4a0, 92, 100, 100}} {
		m.counter("strided", load.pc, load.line, "smsp__sass_inst_executed_op_global", 100)
		m.counter("strided", load.pc, load.line, "smsp__sass_thread_inst_executed_op_global_pred_on", load.on)
		m.counter("strided", load.pc, load.line, "smsp__sass_sectors_mem_global", load.sectors)
		m.counter("strided", load.pc, load.line, "smsp__sass_sectors_mem_global_ideal", 100)
	}
	r := New()
	r.Logs(m.logs)
	var out bytes.Buffer
	inside := r.Inside(10, 5)
	require.NoError(t, inside.Write(&out))
	golden(t, "memory.txt", out.Bytes())
}

func TestInsideOfKernelsIsBounded(t *testing.T) {
	r := New()
	r.Logs(slow())
	inside := r.Inside(2, 1)
	require.Len(t, inside.Listed, 2)
	assert.Equal(t, 2, inside.More)
	assert.Equal(t, uint64(1001), inside.Samples, "the totals are of all")
	assert.Len(t, inside.Listed[0].Lines, 1)
	var out bytes.Buffer
	require.NoError(t, inside.Write(&out))
	assert.Contains(t, out.String(), "(2 functions more)")
	assert.Contains(t, out.String(), "(1 more)")
}

func TestRecordsWithoutAFigureAreCounted(t *testing.T) {
	m := newMeasured()
	m.sample("f", 0, 0, "wait", 0)
	m.sample("f", 0, 0, "wait", -5)
	m.record(semconv.EventCUDAPCSample, "f", 0, 0)
	m.counter("f", 0, 0, "", 1)
	m.counter("f", 0, 0, "smsp__sass_inst_executed", -1)
	m.record(semconv.EventCUDASASSMetric, "f", 0, 0).Attributes().PutStr(semconv.CUDAMetricName, "x")
	big := m.record(semconv.EventCUDASASSMetric, "f", 0, 0).Attributes()
	big.PutStr(semconv.CUDAMetricName, "big")
	big.PutStr(semconv.CUDAMetricValueOverflow, strconv.FormatUint(math.MaxUint64, 10))
	bad := m.record(semconv.EventCUDASASSMetric, "f", 0, 0).Attributes()
	bad.PutStr(semconv.CUDAMetricName, "big")
	bad.PutStr(semconv.CUDAMetricValueOverflow, "many")
	m.records.AppendEmpty().SetEventName(semconv.EventCUDASASSListing)
	noReason := m.record(semconv.EventCUDAPCSample, "f", 0, 0).Attributes()
	noReason.PutInt(semconv.CUDASampleCount, 2)

	r := New()
	r.Logs(m.logs)
	inside := r.Inside(0, 0)
	assert.Equal(t, uint64(7), inside.Unread)
	require.Len(t, inside.Listed, 1)
	assert.Equal(t, []hotspot.Metric{{Name: "big", Value: math.MaxUint64}}, inside.Listed[0].Metrics)
	assert.Equal(t, []hotspot.Reason{{Name: "unknown", Samples: 2, Share: 1}}, inside.Listed[0].Reasons)
	var out bytes.Buffer
	require.NoError(t, inside.Write(&out))
	assert.Contains(t, out.String(), "7 records of samples or counters have no figure")
}

func TestEstimatedTimesAreSaid(t *testing.T) {
	td := someWork("a")
	for _, span := range td.ResourceSpans().At(0).ScopeSpans().At(0).Spans().All() {
		switch span.Name() {
		case "gemm", "step": // two kernels, and a scope, which is no work of the device
			span.Attributes().PutStr(semconv.CUDATiming, semconv.CUDATimingEstimated)
		}
	}
	r := New()
	r.Traces(td)
	r.Traces(someWork("b"))
	md := pmetric.NewMetrics()
	m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName(semconv.MetricGpuflightRecordedTime)
	sum := m.SetEmptySum()
	sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	for _, recorded := range []float64{10, 2} {
		p := sum.DataPoints().AppendEmpty()
		p.SetStartTimestamp(pcommon.Timestamp(time.Second))
		p.SetTimestamp(pcommon.Timestamp(11 * time.Second))
		p.SetDoubleValue(recorded)
	}
	r.Metrics(md)
	r.Session(recorder.Summary{Instance: "c", Overhead: &recorder.OverheadSummary{Slices: 3}})
	r.Session(recorder.Summary{Instance: "d", Overhead: &recorder.OverheadSummary{Slices: 1}})
	totals := r.Totals()
	assert.Equal(t, [3]uint64{2, 1, 2}, [3]uint64{totals.Estimated, totals.Slowed, totals.Sliced})
	var out bytes.Buffer
	require.NoError(t, totals.Write(&out, 0, 0))
	assert.Contains(t, out.String(), "2 kernels, copies and other work of the device have times that are estimated, not measured\n"+
		"1 scopes took longer than usual, because a deep window was open\n"+
		"2 sessions were recorded in time slices, to keep an overhead budget: times and calls are those of\nthe slices\n")
}

func TestContradictoryCountersAreSaid(t *testing.T) {
	m := newMeasured()
	m.counter("f", 0, 1, "smsp__sass_inst_executed", 1)
	m.counter("f", 0, 1, "smsp__sass_thread_inst_executed", 33)
	r := New()
	r.Logs(m.logs)
	inside := r.Inside(0, 0)
	var out bytes.Buffer
	require.NoError(t, inside.Write(&out))
	assert.Contains(t, out.String(), "active lanes are not known: ")
	assert.NotContains(t, out.String(), "33.0")
}

func TestNothingIsPrintedOfWhatWasNotMeasured(t *testing.T) {
	r := New()
	r.Traces(someWork("a"))
	inside := r.Inside(10, 5)
	assert.True(t, inside.Empty())
	var out bytes.Buffer
	require.NoError(t, inside.Write(&out))
	assert.Empty(t, out.String())
	totals := r.Totals()
	windows := r.Windows()
	require.NoError(t, windows.Write(&out, 0))
	assert.Empty(t, out.String())
	require.NoError(t, WriteJSON(&out, &totals, &windows, &inside, nil, 1))
	var got map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &got))
	assert.NotContains(t, got, "inside")
	assert.NotContains(t, got, "windows")
	kernels := got["kernels"].([]any)
	require.Len(t, kernels, 2)
	assert.Equal(t, map[string]any{"name": "gemm<float>", "count": 2.0, "seconds": 0.004, "max_seconds": 0.003}, kernels[0], "the spans have no ids")
	assert.Equal(t, other, kernels[1].(map[string]any)["name"])
}

func TestInsideOfKernelsAsJSON(t *testing.T) {
	r := New()
	r.Logs(slow())
	totals, windows, inside := r.Totals(), r.Windows(), r.Inside(10, 5)
	var out bytes.Buffer
	require.NoError(t, WriteJSON(&out, &totals, &windows, &inside, nil, 20))
	golden(t, "slow.json", out.Bytes())
	var got struct {
		Inside struct {
			Samples    uint64
			ByFunction []struct {
				Name              string
				Lanes             *float64
				SectorsPerRequest *float64 `json:"sectors_per_request"`
				Divergent         []struct {
					Line  int64
					Lanes float64
					SASS  string
				}
				Uncoalesced []struct {
					Line              int64
					SectorsPerRequest float64 `json:"sectors_per_request"`
				}
			} `json:"by_function"`
		}
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &got))
	assert.Equal(t, uint64(1001), got.Inside.Samples)
	require.Len(t, got.Inside.ByFunction, 4)
	chase, divergent, strided := got.Inside.ByFunction[0], got.Inside.ByFunction[2], got.Inside.ByFunction[3]
	assert.Nil(t, chase.Lanes, "what was not counted is absent")
	assert.Nil(t, divergent.SectorsPerRequest)
	assert.Equal(t, int64(74), divergent.Divergent[0].Line)
	assert.InDelta(t, 1.0, divergent.Divergent[0].Lanes, 1e-12)
	assert.Equal(t, "FFMA R6, R6, R2, R3", divergent.Divergent[0].SASS)
	require.Len(t, strided.Uncoalesced, 1)
	assert.Equal(t, int64(90), strided.Uncoalesced[0].Line)
	assert.InDelta(t, 32.0, strided.Uncoalesced[0].SectorsPerRequest, 1e-12)
}

// The recording has SASS metrics of an H200 over two kernels. Their values follow from the code:
// one lane of 32 takes a branch, and loads are 128 bytes apart.
func TestInsideOfKernelsRecordedOnAnH200(t *testing.T) {
	r := New()
	problems, err := r.Read(filepath.Join(recordings(t), "c2-h200-engines"))
	require.NoError(t, err)
	assert.Empty(t, problems)
	inside := r.Inside(10, 5)
	require.Len(t, inside.Listed, 2)
	branchy, strided := inside.Listed[0], inside.Listed[1]
	assert.Equal(t, "branchy", branchy.Name)
	lanes, ok := branchy.Divergent[0].Lanes()
	require.True(t, ok)
	assert.InDelta(t, 1.0, lanes, 1e-12)
	assert.Equal(t, 401, branchy.Divergent[0].Instructions)
	assert.Empty(t, branchy.Uncoalesced)
	require.Len(t, strided.Uncoalesced, 1)
	sectors, _ := strided.Uncoalesced[0].SectorsPerRequest()
	assert.InDelta(t, 32.0, sectors, 1e-12)
	times, _ := strided.Uncoalesced[0].TimesIdeal()
	assert.InDelta(t, 8.0, times, 1e-12)
	assert.True(t, strings.HasPrefix(strided.Uncoalesced[0].SASS, "LDG"), strided.Uncoalesced[0].SASS)
	assert.Empty(t, strided.Divergent)
	var out bytes.Buffer
	require.NoError(t, inside.Write(&out))
	golden(t, "h200.txt", out.Bytes())
}

func TestSamplesOfGPUFlightsLogs(t *testing.T) {
	dir := recordings(t)
	// Logs of the second generation have no source lines.
	for path, line := range map[string]int64{"golden-a2-flat": 42, "golden-b-flat": 0, "golden-c3-session": 42} {
		t.Run(path, func(t *testing.T) {
			r := New()
			_, err := r.Read(filepath.Join(dir, path))
			require.NoError(t, err)
			inside := r.Inside(10, 5)
			assert.Equal(t, uint64(12), inside.Samples)
			require.NotEmpty(t, inside.Listed)
			f := inside.Listed[0]
			require.Len(t, f.Lines, 1)
			assert.Equal(t, line, f.Lines[0].Line)
		})
	}
}

func TestPathsAreShortenedAtNames(t *testing.T) {
	for file, want := range map[string]string{
		"":                                       "(file unknown)",
		"k.cu":                                   "k.cu",
		"/k.cu":                                  "/k.cu",
		"/home/me/k.cu":                          "/home/me/k.cu",
		"a/" + strings.Repeat("b/", 40) + "k.cu": "…/" + strings.Repeat("b/", 22) + "k.cu",
	} {
		assert.Equal(t, want, shortPath(file))
	}
}
