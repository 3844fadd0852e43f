// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
	"github.com/gpuflight/gpuflight/semconv"
)

// work is one span of device work.
type work struct {
	operation, name, kind, scope string
	took                         time.Duration
	bytes                        int64
}

func traces(instance string, all ...work) ptrace.Traces {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	rs.Resource().Attributes().PutStr(semconv.ServiceInstanceID, instance)
	spans := rs.ScopeSpans().AppendEmpty().Spans()
	for _, w := range all {
		s := spans.AppendEmpty()
		s.SetName(w.name)
		s.SetStartTimestamp(1_000_000_000)
		s.SetEndTimestamp(pcommon.Timestamp(1_000_000_000 + w.took))
		a := s.Attributes()
		a.PutStr(semconv.CUDAOperation, w.operation)
		if w.scope != "" {
			a.PutStr(semconv.CUDAScopeName, w.scope)
		}
		switch w.operation {
		case semconv.CUDAOperationKernel:
			a.PutStr(semconv.CUDAKernelName, w.name+"<float>")
		case semconv.CUDAOperationMemcpy:
			a.PutStr(semconv.CUDAMemcpyKind, w.kind)
			a.PutInt(semconv.CUDAMemcpySize, w.bytes)
		case semconv.CUDAOperationMemset:
			a.PutInt(semconv.CUDAMemsetSize, w.bytes)
		}
	}
	return td
}

func someWork(instance string) ptrace.Traces {
	return traces(instance,
		work{operation: semconv.CUDAOperationKernel, name: "gemm", took: 3 * time.Millisecond, scope: "step"},
		work{operation: semconv.CUDAOperationKernel, name: "gemm", took: time.Millisecond, scope: "step"},
		work{operation: semconv.CUDAOperationKernel, name: "relu", took: time.Microsecond},
		work{operation: semconv.CUDAOperationMemcpy, name: "memcpy HtoD", kind: "HtoD", took: time.Millisecond, bytes: 5_000_000},
		work{operation: semconv.CUDAOperationMemset, name: "memset", took: time.Microsecond, bytes: 64},
		work{operation: semconv.CUDAOperationGraph, name: "graph", took: time.Millisecond},
		work{operation: semconv.CUDAOperationScope, name: "step", took: 10 * time.Millisecond},
		work{operation: semconv.CUDAOperationSession, name: "session", took: time.Second},
	)
}

func TestSpansAreAddedUp(t *testing.T) {
	r := New()
	r.Traces(someWork("a"))
	r.Traces(someWork("b"))
	got := r.Totals()
	assert.Equal(t, 2, got.Sessions)
	assert.Equal(t, []Row{
		{Name: "gemm<float>", Count: 4, Timed: 4, Total: 8 * time.Millisecond, Max: 3 * time.Millisecond},
		{Name: "relu<float>", Count: 2, Timed: 2, Total: 2 * time.Microsecond, Max: time.Microsecond},
	}, got.Kernels)
	assert.Equal(t, []Row{{Name: "HtoD", Count: 2, Timed: 2, Total: 2 * time.Millisecond, Max: time.Millisecond, Bytes: 10_000_000, TimedBytes: 10_000_000}}, got.Copies)
	assert.InDelta(t, 5.0, got.Copies[0].GBPerSecond(), 1e-9)
	assert.Equal(t, Row{Count: 2, Timed: 2, Total: 2 * time.Microsecond, Max: time.Microsecond, Bytes: 128, TimedBytes: 128}, got.Sets)
	assert.Equal(t, uint64(2), got.Graphs)
	require.Len(t, got.Scopes, 1)
	assert.Equal(t, Row{Name: "step", Count: 2, Timed: 2, Total: 20 * time.Millisecond, Max: 10 * time.Millisecond, Device: 8 * time.Millisecond}, got.Scopes[0])
	assert.False(t, got.Empty())
}

// durations are the metrics of one moment: by kernel name, how many and how many seconds.
func durations(instance string, at pcommon.Timestamp, by map[string][2]float64) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(semconv.ServiceInstanceID, instance)
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName(semconv.MetricGPUCUDAKernelDuration)
	h := m.SetEmptyExponentialHistogram()
	h.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	for name, v := range by {
		p := h.DataPoints().AppendEmpty()
		p.SetTimestamp(at)
		p.SetCount(uint64(v[0]))
		p.SetSum(v[1])
		p.SetMax(v[1] / v[0])
		p.Attributes().PutStr(semconv.CUDAKernelName, name)
	}
	return md
}

func TestMetricsWinWhereSpansWereLeftOut(t *testing.T) {
	r := New()
	r.Traces(someWork("a"))
	r.Metrics(durations("a", 10, map[string][2]float64{"gemm<float>": {100, 1}, "once": {7, 7}}))
	// once is no longer among the names that have a series of their own: it has gone into other.
	r.Metrics(durations("a", 20, map[string][2]float64{"gemm<float>": {150, 2}, other: {8, 8}}))
	r.Metrics(durations("a", 15, map[string][2]float64{"late": {1000, 1}}))
	got := r.Totals()
	assert.Equal(t, []Row{
		{Name: "gemm<float>", Count: 150, Timed: 150, Total: 2 * time.Second, Max: 13333333 * time.Nanosecond},
		{Name: other, Count: 8, Timed: 8, Total: 8 * time.Second, Max: time.Second},
	}, got.Kernels)
}

func TestMetricsOlderThanSpansDoNotWin(t *testing.T) {
	r := New()
	r.Metrics(durations("a", 10, map[string][2]float64{"gemm<float>": {2, 1}}))
	r.Traces(someWork("a"))
	got := r.Totals()
	require.Len(t, got.Kernels, 2)
	assert.Equal(t, 4*time.Millisecond, got.Kernels[0].Total)
}

func TestCapturesTellWhatIsMissing(t *testing.T) {
	ld := plog.NewLogs()
	records := ld.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords()
	for range 2 {
		record := records.AppendEmpty()
		record.SetEventName(semconv.EventCUDACapture)
		record.Attributes().PutInt(semconv.CUDACaptureRecordsDropped, 3)
		record.Attributes().PutInt(semconv.CUDACaptureRecordsRejected, 4)
		record.Attributes().PutInt(semconv.CUDACaptureSpansLeftOut, 5)
		record.Attributes().PutInt(semconv.CUDACaptureSpansUnsampled, -6)
	}
	records.AppendEmpty().Attributes().PutInt(semconv.CUDACaptureRecordsDropped, 1000) // of something else
	r := New()
	r.Logs(ld)
	assert.Equal(t, Lost{Dropped: 6, Rejected: 8, LeftOut: 10}, r.Totals().Lost)
}

func TestSummariesReplaceTelemetry(t *testing.T) {
	dir := t.TempDir()
	full := recorder.Summary{
		PID: 7, Instance: "a", StartNs: 5, EndNs: 9,
		Kernels:      []recorder.KernelRow{{Name: "gemm", Count: 10, Seconds: 2, MaxSeconds: 0.5}},
		KernelsOther: &recorder.KernelRow{Name: other, Count: 3, Seconds: 0.25, MaxSeconds: 0.125},
		KernelCount:  13,
		Copies:       []recorder.CopyRow{{Kind: "HtoD", Count: 2, Bytes: 1000, Seconds: 1e-6}},
		Graphs:       4,
		Records:      recorder.RecordCounts{Dropped: 1, Unread: 2, Rejected: 3},
		Spans:        recorder.SpanCounts{LeftOut: 4, Unsampled: 5},
	}
	require.NoError(t, full.Write(dir))
	nothing := recorder.Summary{PID: 8, Instance: "b", StartNs: 1, Reason: cupti.ReasonNoLibrary, Detail: "no CUPTI here"}
	require.NoError(t, nothing.Write(dir))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "9-c.json"), []byte("{"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "9-c.json.part"), []byte("{"), 0o600))

	sessions, err := ReadSessions(dir)
	require.ErrorContains(t, err, "9-c.json")
	require.Len(t, sessions, 2)
	assert.Equal(t, nothing, sessions[0], "the first to begin comes first")
	r := New()
	r.Traces(someWork("a"))
	for _, s := range sessions {
		r.Session(s)
	}
	got := r.Totals()
	assert.Equal(t, []Row{
		{Name: "gemm", Count: 10, Timed: 10, Total: 2 * time.Second, Max: 500 * time.Millisecond},
		{Name: other, Count: 3, Timed: 3, Total: 250 * time.Millisecond, Max: 125 * time.Millisecond},
	}, got.Kernels)
	assert.Equal(t, uint64(1000), got.Copies[0].Bytes)
	assert.Equal(t, Lost{Dropped: 3, Rejected: 3, LeftOut: 4, Unsampled: 5}, got.Lost)
	assert.Equal(t, uint64(4), got.Graphs)
	assert.Zero(t, got.Unended)
	r.Session(recorder.Summary{PID: 10, Instance: "killed", StartNs: 3})
	assert.Equal(t, 1, r.Totals().Unended)
	assert.Equal(t, []Nothing{{Reason: cupti.ReasonNoLibrary, Detail: "no CUPTI here", Processes: 1}}, got.Nothing)
}

func TestTheTable(t *testing.T) {
	totals := Totals{
		Kernels: []Row{
			{Name: "a\tname\nof " + strings.Repeat("x", 200), Count: 1_234_567, Timed: 1_234_567, Total: 90 * time.Second, Max: time.Second},
			{Name: "b", Count: 1, Timed: 1, Total: 9 * time.Second, Max: 9 * time.Second},
			{Name: other, Count: 2, Timed: 2, Total: time.Second, Max: time.Second},
		},
		Copies: []Row{{Name: "HtoD", Count: 3, Bytes: 1 << 20}},
		Lost:   Lost{Dropped: 1200},
	}
	var out bytes.Buffer
	require.NoError(t, totals.Write(&out, 2, 0))
	x := strings.Repeat("x", 60)
	assert.Equal(t, `    TIME   SHARE      CALLS      MEAN    MAX  KERNEL
  90.00s   90.0%  1,234,567   72.90µs  1.00s  a name of `+x[:59]+"…"+x[:20]+`
   9.00s    9.0%          1     9.00s  9.00s  b
   1.00s    1.0%          2  500.00ms  1.00s  (1 more)
   1m40s  100.0%  1,234,570   81.00µs  9.00s  (all)

  TIME  CALLS      BYTES  GB/S  COPY
   0ns      3  1,048,576     -  HtoD

1,200 records dropped: they came faster than they could be read
`, out.String())
}

func TestDurationsOfNonsense(t *testing.T) {
	for seconds, want := range map[float64]time.Duration{1.5: 1500 * time.Millisecond, -1: 0, 1e300: 1<<63 - 1} {
		assert.Equal(t, want, duration(seconds))
	}
	var zero float64
	assert.Zero(t, duration(zero/zero))
}

// recordings returns the folder of recorded sessions.
func recordings(t *testing.T) string {
	t.Helper()
	dir := filepath.Join("..", "testing", "testdata", "logs")
	require.DirExists(t, dir)
	return dir
}

func TestLogsOfGPUFlight(t *testing.T) {
	dir := recordings(t)
	for _, tc := range []struct {
		path    string
		kernels uint64
		first   string
		copies  uint64
	}{
		{"a2-h200", 401, "block_reduce_naive(float const*, float*, int)", 2},
		{"golden-a2-rotated", 60, "sgemm \"quoted\" \\ tab\t", 1},
		{"golden-b-flat", 4, "void gemm<float>(float const*, float*, int)", 2},
		{"golden-c3-rotated", 80, "void gemm<float>(float const*, float*, int)", 40},
		{"c3-h200-minigpt", 2180, "", 143},
		// One file brings its session with it.
		{"golden-a2-rotated/demo_train.device.3.log.gz", 60, "", 1},
		{"golden-c3-session/11111111-2222-4333-8444-555555555555/scope.1.log.gz", 2, "", 1},
	} {
		t.Run(tc.path, func(t *testing.T) {
			r := New()
			problems, err := r.Read(filepath.Join(dir, tc.path))
			require.NoError(t, err)
			assert.Empty(t, problems)
			got := r.Totals()
			var kernels, copies uint64
			for _, row := range got.Kernels {
				kernels += row.Count
			}
			for _, row := range got.Copies {
				copies += row.Count
			}
			assert.Equal(t, tc.kernels, kernels)
			assert.Equal(t, tc.copies, copies)
			if tc.first != "" {
				assert.Equal(t, tc.first, got.Kernels[0].Name)
			}
		})
	}
}

func TestFilesOfOTLPAndWhatIsNone(t *testing.T) {
	dir := t.TempDir()
	line, err := (&ptrace.JSONMarshaler{}).MarshalTraces(someWork("a"))
	require.NoError(t, err)
	text := string(line) + "\nnonsense\n" + string(line[:len(line)/2])
	require.NoError(t, os.WriteFile(filepath.Join(dir, "run.otlp.jsonl"), []byte(text), 0o600))
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err = z.Write([]byte(strings.ReplaceAll(string(line), `"a"`, `"b"`) + "\n"))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "other.jsonl.gz"), packed.Bytes(), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("mine"), 0o600))

	r := New()
	problems, err := r.Read(dir)
	require.NoError(t, err)
	require.Len(t, problems, 2)
	assert.Contains(t, problems[0], "run.otlp.jsonl:2: ")
	assert.Contains(t, problems[1], "ends in the middle of a line")
	got := r.Totals()
	assert.Equal(t, 2, got.Sessions)
	assert.Equal(t, uint64(4), got.Kernels[0].Count)

	_, err = New().Read(filepath.Join(dir, "notes.txt"))
	require.ErrorContains(t, err, "neither recorded OTLP")
	_, err = New().Read(filepath.Join(dir, "missing.jsonl"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = New().Read(t.TempDir())
	require.ErrorContains(t, err, "neither recorded OTLP")
}

func TestATornLogEndsAtItsLastWholeRecord(t *testing.T) {
	from := filepath.Join(recordings(t), "golden-a2-flat")
	dir := t.TempDir()
	for _, channel := range []string{"device", "scope", "system"} {
		data, err := os.ReadFile(filepath.Join(from, "demo_train."+channel+".log"))
		require.NoError(t, err)
		data = append(data, []byte(`{"type":"kernel_event","session_id":"x","start_n`)...)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "demo_train."+channel+".log"), data, 0o600))
	}
	broken := []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "demo_train.device.1.log.gz"), broken, 0o600))
	r := New()
	problems, err := r.Read(dir)
	require.NoError(t, err)
	require.Len(t, problems, 1)
	assert.Contains(t, problems[0], "demo_train.device.1.log.gz: the rest cannot be read")
	var kernels uint64
	for _, row := range r.Totals().Kernels {
		kernels += row.Count
	}
	assert.Equal(t, uint64(3), kernels)
}
