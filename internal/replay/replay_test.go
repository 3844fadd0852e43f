// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.uber.org/goleak"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Connections that SDKs keep open, and what the file exporter of 0.158 leaves behind at its end.
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("github.com/open-telemetry/opentelemetry-collector-contrib/exporter/fileexporter.(*fileWriter).startFlusher.func1"))
}

// spans returns spans numbered from first, whose ids say their number.
func spans(first, n int) ptrace.Traces {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	rs.Resource().Attributes().PutStr("service.name", "trainer")
	ss := rs.ScopeSpans().AppendEmpty()
	for i := first; i < first+n; i++ {
		s := ss.Spans().AppendEmpty()
		s.SetName("kernel")
		s.SetTraceID([16]byte{1, byte(i >> 16), byte(i >> 8), byte(i)})
		s.SetSpanID([8]byte{2, byte(i >> 16), byte(i >> 8), byte(i)})
		s.SetStartTimestamp(1)
		s.SetEndTimestamp(2)
	}
	return td
}

func records(first, n int) plog.Logs {
	ld := plog.NewLogs()
	sl := ld.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty()
	for i := first; i < first+n; i++ {
		r := sl.LogRecords().AppendEmpty()
		r.SetTimestamp(3)
		r.Body().SetStr(fmt.Sprint("record ", i))
	}
	return ld
}

func points(first, n int) pmetric.Metrics {
	md := pmetric.NewMetrics()
	sm := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty()
	for i := first; i < first+n; i++ {
		x := sm.Metrics().AppendEmpty()
		x.SetName(fmt.Sprint("metric ", i))
		x.SetEmptyGauge().DataPoints().AppendEmpty().SetIntValue(int64(i))
	}
	return md
}

// collector is a Sender that remembers how often each item came. Before each batch it asks fail, and
// after it lost, whether that is the moment at which everything ends.
type collector struct {
	spans, records, points map[string]int
	batches                [][]string
	fail, lost             func(batch int) error
	off                    map[otlp.Signal]bool
}

func newCollector() *collector {
	return &collector{spans: map[string]int{}, records: map[string]int{}, points: map[string]int{}}
}

func (c *collector) Takes(s otlp.Signal) bool { return !c.off[s] }

func (c *collector) take(to map[string]int, ids []string) (otlp.Answer, error) {
	if c.fail != nil {
		if err := c.fail(len(c.batches)); err != nil {
			return otlp.Answer{}, err
		}
	}
	c.batches = append(c.batches, ids)
	for _, id := range ids {
		to[id]++
	}
	if c.lost != nil {
		if err := c.lost(len(c.batches) - 1); err != nil {
			return otlp.Answer{}, err
		}
	}
	return otlp.Answer{Sent: len(ids)}, nil
}

func (c *collector) Traces(_ context.Context, td ptrace.Traces) (otlp.Answer, error) {
	var ids []string
	for _, rs := range td.ResourceSpans().All() {
		for _, ss := range rs.ScopeSpans().All() {
			for _, s := range ss.Spans().All() {
				ids = append(ids, s.TraceID().String()+"/"+s.SpanID().String())
			}
		}
	}
	return c.take(c.spans, ids)
}

func (c *collector) Logs(_ context.Context, ld plog.Logs) (otlp.Answer, error) {
	var ids []string
	for _, rl := range ld.ResourceLogs().All() {
		for _, sl := range rl.ScopeLogs().All() {
			for _, r := range sl.LogRecords().All() {
				ids = append(ids, r.Body().AsString())
			}
		}
	}
	return c.take(c.records, ids)
}

func (c *collector) Metrics(_ context.Context, md pmetric.Metrics) (otlp.Answer, error) {
	var ids []string
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				switch m.Type() {
				case pmetric.MetricTypeGauge:
					for i := range m.Gauge().DataPoints().Len() {
						ids = append(ids, fmt.Sprint(m.Name(), "#", i))
					}
				case pmetric.MetricTypeSum:
					for i := range m.Sum().DataPoints().Len() {
						ids = append(ids, fmt.Sprint(m.Name(), "#", i))
					}
				}
			}
		}
	}
	return c.take(c.points, ids)
}

// jsonFile writes messages as lines and returns the file.
func jsonFile(t *testing.T, path string, messages ...any) string {
	t.Helper()
	var b strings.Builder
	for _, m := range messages {
		var line []byte
		var err error
		switch m := m.(type) {
		case ptrace.Traces:
			line, err = (&ptrace.JSONMarshaler{}).MarshalTraces(m)
		case plog.Logs:
			line, err = (&plog.JSONMarshaler{}).MarshalLogs(m)
		case pmetric.Metrics:
			line, err = (&pmetric.JSONMarshaler{}).MarshalMetrics(m)
		case string:
			line = []byte(m)
		}
		require.NoError(t, err)
		b.Write(line)
		b.WriteByte('\n')
	}
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	return path
}

// archive makes a folder with objects of all signals, 3 bad messages among them, and GPU Flight's logs.
func archive(t *testing.T) string {
	dir := t.TempDir()
	for hour := range 3 {
		jsonFile(t, fmt.Sprintf("%s/otlp/year=2026/month=08/day=07/hour=%02d/traces_1.json", dir, hour),
			spans(100*hour, 10), spans(100*hour+10, 10), `{"resourceSpans":[{"scopeSpans":3}]}`, spans(100*hour+20, 25), records(100*hour, 3), points(100*hour, 4), spans(100*hour+45, 5))
	}
	lines := []string{
		`{"type":"job_start","session_id":"11111111-2222-4333-8444-555555555555","app":"a","pid":7,"ts_ns":1786060800000000000}`,
	}
	for i := range 40 {
		lines = append(lines, fmt.Sprintf(`{"type":"kernel_event","session_id":"11111111-2222-4333-8444-555555555555","name":"k","corr_id":%d,"start_ns":%d,"end_ns":%d}`,
			i+1, 1786060800000000000+int64(i)*1000, 1786060800000000500+int64(i)*1000))
	}
	lines = append(lines, `{"type":"shutdown","session_id":"11111111-2222-4333-8444-555555555555","ts_ns":1786060801000000000}`)
	folder := filepath.Join(dir, "raw", "11111111-2222-4333-8444-555555555555")
	require.NoError(t, os.MkdirAll(folder, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "device.1.log"), []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	return dir
}

func run(t *testing.T, opt Options) Counts {
	t.Helper()
	counts, err := Run(t.Context(), opt)
	require.NoError(t, err)
	return counts
}

func TestReplaySendsAFolderAndCountsIt(t *testing.T) {
	dir := archive(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "README.md"), []byte("not telemetry"), 0o600))
	c := newCollector()
	var problems []Problem
	counts := run(t, Options{Sources: []Source{source(t, dir)}, Sender: c, Problem: func(p Problem) { problems = append(problems, p) }})
	assert.Equal(t, 4, counts.Objects)
	assert.Equal(t, 3*50+42, counts.Spans) // the session, its window and 40 kernels
	assert.Len(t, c.spans, counts.Spans)
	assert.Len(t, c.records, 9)
	assert.Len(t, c.points, 12)
	assert.Equal(t, map[string]int{SkippedOther: 1}, counts.Skipped)
	assert.Equal(t, map[string]int{ReasonMalformed: 3}, counts.Rejected)
	require.Len(t, problems, 3)
	line, err := (&ptrace.JSONMarshaler{}).MarshalTraces(spans(0, 10))
	require.NoError(t, err)
	assert.True(t, strings.HasSuffix(problems[0].Object, "hour=00/traces_1.json"))
	assert.InDelta(t, 2*len(line)+2, problems[0].Offset, 40)
	for id, n := range c.spans {
		assert.Equal(t, 1, n, id)
	}

	// Without a sender the same is counted.
	dry := run(t, Options{Sources: []Source{source(t, dir)}})
	assert.Equal(t, counts, dry)

	// A signal that is off is left out.
	c = newCollector()
	c.off = map[otlp.Signal]bool{otlp.Traces: true}
	counts = run(t, Options{Sources: []Source{source(t, dir)}, Sender: c})
	assert.Equal(t, 192, counts.LeftOut)
	assert.Empty(t, c.spans)
	assert.Len(t, c.records, 9)
}

func TestReplayPutsMessagesTogetherButKeepsThemWhole(t *testing.T) {
	file := jsonFile(t, filepath.Join(t.TempDir(), "x.json"), spans(0, 4), spans(4, 4), spans(8, 4), spans(12, 100), spans(112, 1))
	c := newCollector()
	counts := run(t, Options{Sources: []Source{source(t, file)}, Sender: c, BatchItems: 10})
	var sizes []int
	for _, b := range c.batches {
		sizes = append(sizes, len(b))
	}
	assert.Equal(t, []int{8, 4, 100, 1}, sizes)
	assert.Equal(t, 4, counts.Batches)
}

func TestReplayTakesTheTimeOfNames(t *testing.T) {
	dir := archive(t)
	at := func(hour int) time.Time { return time.Date(2026, 8, 7, hour, 0, 0, 0, time.UTC) }
	c := newCollector()
	counts := run(t, Options{Sources: []Source{source(t, dir)}, Sender: c, From: at(1), To: at(2)})
	assert.Equal(t, 1, counts.Objects)
	assert.Len(t, c.spans, 50)
	assert.Equal(t, map[string]int{SkippedTime: 2, SkippedTimeless: 1}, counts.Skipped)
	counts = run(t, Options{Sources: []Source{source(t, dir)}, From: at(1).Add(30 * time.Minute)})
	assert.Equal(t, 2, counts.Objects, "an object is of its whole hour")
	counts = run(t, Options{Sources: []Source{source(t, dir)}, To: at(1), Zone: time.FixedZone("", 3600)})
	assert.Equal(t, 2, counts.Objects, "in a zone an hour ahead two of them begin before")
}

func TestPartition(t *testing.T) {
	for name, want := range map[string][2]string{
		"s3://b/year=2026/month=08/day=07/hour=10/minute=59/traces_1.json": {"2026-08-07T10:59:00Z", "2026-08-07T11:00:00Z"},
		"s3://b/p/year=2026/month=12/traces_1.json":                        {"2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		"s3://b/year=2024/x":                         {"2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"},
		"/a/2026/08/07/23/traces_1.binpb":            {"2026-08-07T23:00:00Z", "2026-08-08T00:00:00Z"},
		"s3://b/year=2026/month=13/x":                {},
		"s3://b/year=2026/month=02/day=30/x":         {},
		"s3://b/2026/08/07/25/x":                     {},
		"s3://b/traces_1.json":                       {},
		"s3://b/year=2026/month=08/day=07/hour=24/x": {},
	} {
		from, to, ok := partition(name, time.UTC)
		if want[0] == "" {
			assert.False(t, ok, name)
			continue
		}
		assert.True(t, ok, name)
		assert.Equal(t, want, [2]string{from.Format(time.RFC3339), to.Format(time.RFC3339)}, name)
	}
}

// errKilled stands for the end of the process.
var errKilled = errors.New("killed")

// TestReplayResumesAfterAKillAtEachStep ends a replay before, in and after each batch, and in the middle of
// each line of the journal, and goes on: with every step once, and again at each step of what was left.
func TestReplayResumesAfterAKillAtEachStep(t *testing.T) {
	dir := archive(t)
	whole := newCollector()
	want := run(t, Options{Sources: []Source{source(t, dir)}, Sender: whole, BatchItems: 15})
	require.Greater(t, want.Batches, 12)

	kills := []struct {
		name string
		// kill ends the n-th batch; it returns what is to be done to the journal's file.
		kill func(c *collector, n int) (torn bool)
	}{
		{"before it is sent", func(c *collector, n int) bool {
			c.fail = func(batch int) error {
				if batch == n {
					return errKilled
				}
				return nil
			}
			return false
		}},
		{"sent and not written down", func(c *collector, n int) bool {
			c.lost = func(batch int) error {
				if batch == n {
					return errKilled
				}
				return nil
			}
			return false
		}},
		{"half written down", func(c *collector, n int) bool {
			c.fail = func(batch int) error {
				if batch == n {
					return errKilled
				}
				return nil
			}
			return true
		}},
	}
	for _, kill := range kills {
		for n := range want.Batches {
			state := filepath.Join(t.TempDir(), "state")
			c := newCollector()
			torn := kill.kill(c, n)
			killed := 0
			for {
				j, err := OpenJournal(state)
				require.NoError(t, err)
				before := len(c.batches)
				_, err = Run(t.Context(), Options{Sources: []Source{source(t, dir)}, Sender: c, BatchItems: 15, Journal: j})
				require.NoError(t, j.Close())
				if err == nil {
					break
				}
				require.ErrorIs(t, err, errKilled)
				if killed++; killed > 1 {
					require.FailNow(t, "killed twice at a batch")
				}
				c.fail, c.lost = nil, nil
				if torn && len(c.batches) > before {
					cutLastLine(t, state)
				}
			}
			again := map[string]bool{}
			for name, m := range map[string][2]map[string]int{"spans": {c.spans, whole.spans}, "records": {c.records, whole.records}, "points": {c.points, whole.points}} {
				require.Equal(t, slices.Sorted(maps.Keys(m[1])), slices.Sorted(maps.Keys(m[0])), "%s: batch %d: %s", kill.name, n, name)
				for id, count := range m[0] {
					require.LessOrEqual(t, count, 2)
					if count > 1 {
						again[id] = true
					}
				}
			}
			// What came twice is one batch, and with the first kind of kill nothing did.
			twice := 0
			for _, batch := range whole.batches {
				if again[batch[0]] {
					twice++
					for _, id := range batch {
						require.True(t, again[id], "%s: batch %d", kill.name, n)
					}
					require.Len(t, again, len(batch), "%s: batch %d", kill.name, n)
				}
			}
			wantTwice := map[string]int{"sent and not written down": 1, "half written down": min(n, 1)}[kill.name]
			require.Equal(t, wantTwice, twice, "%s: batch %d", kill.name, n)
			require.LessOrEqual(t, len(c.batches), len(whole.batches)+1, "%s: batch %d", kill.name, n)
		}
	}
}

// cutLastLine leaves half of a file's last line, as a kill in the middle of writing does.
func cutLastLine(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	begin := strings.LastIndexByte(string(data[:len(data)-1]), '\n') + 1
	require.Positive(t, begin)
	require.NoError(t, os.WriteFile(path, data[:begin+(len(data)-begin)/2], 0o600))
}

func TestReplayDoneIsNotSentAgainUnlessTheObjectIsAnother(t *testing.T) {
	file := jsonFile(t, filepath.Join(t.TempDir(), "x.json"), spans(0, 4))
	state := filepath.Join(t.TempDir(), "state")
	again := func() (Counts, *collector) {
		j, err := OpenJournal(state)
		require.NoError(t, err)
		defer j.Close()
		c := newCollector()
		return run(t, Options{Sources: []Source{source(t, file)}, Sender: c, Journal: j}), c
	}
	counts, c := again()
	assert.Equal(t, 4, counts.Spans)
	assert.Len(t, c.spans, 4)
	counts, c = again()
	assert.Empty(t, c.spans)
	assert.Equal(t, map[string]int{SkippedDone: 1}, counts.Skipped)
	jsonFile(t, file, spans(0, 4), spans(4, 4))
	_, c = again()
	assert.Len(t, c.spans, 8)
}

func TestReplayEndsWhereTheEndpointRefusesUnlessToldOtherwise(t *testing.T) {
	file := jsonFile(t, filepath.Join(t.TempDir(), "x.json"), spans(0, 4), spans(4, 4), spans(8, 4))
	c := newCollector()
	refusals := 0
	c.fail = func(batch int) error {
		if batch == 1 && refusals == 0 {
			refusals++
			return &otlp.RefusedError{Err: errors.New("400 Bad Request")}
		}
		return nil
	}
	counts, err := Run(t.Context(), Options{Sources: []Source{source(t, file)}, Sender: c, BatchItems: 4})
	require.ErrorContains(t, err, "400 Bad Request")
	assert.Equal(t, 4, counts.Spans)
	assert.Equal(t, 0, counts.Objects)

	refusals = 0
	c.batches = nil
	counts = run(t, Options{Sources: []Source{source(t, file)}, Sender: c, BatchItems: 4, SkipRefused: true})
	assert.Equal(t, 8, counts.Spans)
	assert.Equal(t, 4, counts.RefusedItems)
	assert.Equal(t, map[string]int{ReasonRefused: 1}, counts.Rejected)
	assert.Equal(t, 1, counts.Lost())
}

func TestJournalRefusesWhatIsNotOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	for content, want := range map[string]string{
		"hello\n":                               "not the state of a replay",
		"a file of the user's own":              "not the state of a replay",
		`{"gpuflight_replay":2}` + "\n":         "has form 2",
		`{"gpuflight_replay":1}` + "\n" + "x\n": "line 2 is damaged",
	} {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := OpenJournal(path)
		require.ErrorContains(t, err, want)
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, content, string(data), "it stays as it is")
		left, err := os.ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		assert.Len(t, left, 1, "nothing else is left behind")
	}
}

func TestJournalIsOfOneProcessAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	j, err := OpenJournal(path)
	require.NoError(t, err)
	_, err = OpenJournal(path)
	require.ErrorIs(t, err, errInUse)
	require.NoError(t, j.Close())
	j, err = OpenJournal(path)
	require.NoError(t, err)
	require.NoError(t, j.Close())
}

func TestPacerKeepsTheRate(t *testing.T) {
	now := time.Unix(1000, 0)
	p := NewPacer(100)
	p.now = func() time.Time { return now }
	var waits []time.Duration
	p.wait = func(_ context.Context, d time.Duration) error {
		waits = append(waits, d)
		now = now.Add(d)
		return nil
	}
	require.NoError(t, p.Pace(t.Context(), 50))
	require.NoError(t, p.Pace(t.Context(), 200))
	now = now.Add(500 * time.Millisecond) // the request takes time
	require.NoError(t, p.Pace(t.Context(), 1))
	now = now.Add(time.Hour) // an endpoint that was away is not made up for
	require.NoError(t, p.Pace(t.Context(), 100))
	require.NoError(t, p.Pace(t.Context(), 100))
	assert.Equal(t, []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond, time.Second}, waits)

	p.wait = func(context.Context, time.Duration) error { return context.Canceled }
	require.ErrorIs(t, p.Pace(t.Context(), 1), context.Canceled)
}
