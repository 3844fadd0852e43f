// SPDX-License-Identifier: Apache-2.0

package gpuflogencodingextension

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/gpuflight/gpuflight/extension/encoding/gpuflogencodingextension/internal/metadata"
	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

const id = "11111111-2222-4333-8444-555555555555"

// line writes a line of the session.
func line(format string, args ...any) []byte {
	return []byte(strings.Replace(fmt.Sprintf(format, args...), `,`, `,"session_id":"`+id+`",`, 1))
}

const base = int64(1786060800000000000)

func header() []byte { return line(`{"type":"init","app":"demo","pid":7,"ts_ns":%d}`, base) }
func end() []byte {
	return line(`{"type":"shutdown","app":"demo","pid":7,"ts_ns":%d}`, base+int64(time.Second))
}
func kernel(n int) []byte {
	at := base + int64(n)*1000
	return line(`{"type":"kernel_event","name":"k","corr_id":%d,"api_start_ns":%d,"api_exit_ns":%d,"start_ns":%d,"end_ns":%d,"user_scope":"step|k","scope_depth":1}`,
		n, at, at+10, at+100, at+200)
}

// session is the messages of a small session by channel: 3 channels, one scope around n kernels.
func smallSession(n int) topic {
	tp := topic{"device": {header()}, "scope": {header()}, "system": {header(), end()}}
	tp["scope"] = append(tp["scope"], line(`{"type":"scope_begin","name":"step","user_scope":"step","scope_depth":0,"ts_ns":%d}`, base))
	for i := range n {
		tp["device"] = append(tp["device"], kernel(i+1))
	}
	tp["scope"] = append(tp["scope"], line(`{"type":"scope_end","name":"step","user_scope":"step","scope_depth":0,"ts_ns":%d}`, base+int64(time.Millisecond)), end())
	tp["device"] = append(tp["device"], end())
	return tp
}

// counted returns the extension's own counters, summed up, by name or name/reason.
func counted(t *testing.T, tel *componenttest.Telemetry) map[string]int64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, tel.Reader.Collect(context.Background(), &rm))
	m := map[string]int64{}
	for _, sm := range rm.ScopeMetrics {
		for _, x := range sm.Metrics {
			name := strings.TrimPrefix(x.Name, "otelcol_extension_gpuflog_")
			if sum, ok := x.Data.(metricdata.Sum[int64]); ok {
				for _, p := range sum.DataPoints {
					if reason, ok := p.Attributes.Value(attribute.Key("reason")); ok {
						m[name+"/"+reason.AsString()] += p.Value
					}
					m[name] += p.Value
				}
			}
		}
	}
	return m
}

func TestMessagesOfEveryForm(t *testing.T) {
	plain := smallSession(3).inTurn()
	quote := func(b []byte) []byte { return asMessage(t, b) }
	window := func(lines ...[]byte) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, err := z.Write(append(bytes.Join(lines, []byte("\n")), '\n'))
		require.NoError(t, err)
		require.NoError(t, z.Close())
		return b.Bytes()
	}
	envelope := func(b []byte) []byte {
		m, err := json.Marshal(map[string]any{"agentSendingTime": 1, "data": string(b), "type": "x", "hostname": "h", "ipAddr": "i"})
		require.NoError(t, err)
		return m
	}
	each := func(f func([]byte) []byte) (messages [][]byte) {
		for _, l := range plain {
			messages = append(messages, f(l))
		}
		return messages
	}
	tp := smallSession(3)
	want := spanSet(nil)
	for name, messages := range map[string][][]byte{
		"lines": plain, "strings": each(quote), "strings of strings": each(func(b []byte) []byte { return quote(quote(b)) }),
		"envelopes": each(envelope), "lines with their ends": each(func(b []byte) []byte { return append(bytes.Clone(b), "\r\n"...) }),
		"windows":          {window(tp["scope"]...), window(tp["device"]...), window(tp["system"]...)},
		"many lines":       {bytes.Join(tp["scope"], []byte("\n")), bytes.Join(tp["device"], []byte("\n")), bytes.Join(tp["system"], []byte("\n"))},
		"strings of lines": {quote(bytes.Join(tp["scope"], []byte("\n"))), quote(bytes.Join(tp["device"], []byte("\n"))), quote(bytes.Join(tp["system"], []byte("\n")))},
	} {
		e, c, tel := start(t, nil)
		got := feed(t, e, c, messages)
		require.Len(t, got, 5, "%s: 3 kernels, the scope and the session", name)
		if want == nil {
			want = got
		}
		assert.Equal(t, want, got, name)
		assert.Equal(t, int64(11+4), counted(t, tel)["lines"], name)
	}
}

func TestTheLastEndReturnsWhatWasOpen(t *testing.T) {
	e, _, _ := start(t, nil)
	spans := spanSet{}
	messages := smallSession(3).inTurn()
	for i, m := range messages {
		td, err := e.UnmarshalTraces(m)
		require.NoError(t, err)
		spans.add(td)
		if i == len(messages)-1 {
			assert.Positive(t, td.SpanCount(), "without any time going by")
		}
	}
	assert.Len(t, spans, 5)
}

func TestBadMessagesAndLinesAreCountedAndTheRestIsTaken(t *testing.T) {
	e, c, tel := start(t, func(cfg *Config) { cfg.MaxMessageBytes = 4096 })
	cut := func(b []byte, n int) []byte { return b[:n] }
	var gz bytes.Buffer
	z := gzip.NewWriter(&gz)
	_, err := z.Write(bytes.Repeat([]byte("x"), 10000))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	bad := [][]byte{
		nil, []byte("  "), []byte("nonsense"), []byte(`"not a line"`), []byte(`"an open string`), []byte(`{"no":"type"}`), []byte(`{"data":7}`),
		[]byte(`{"type":"kernel_event"}`), []byte(`{"type":"kernel_event","session_id":"` + strings.Repeat("s", 300) + `"}`),
		cut(kernel(99), 80), make([]byte, 5000), gz.Bytes(), gz.Bytes()[:20], {0x1f, 0x8b, 9}, line(`{"type":"from_the_future","x":1}`),
	}
	r := rand.New(rand.NewPCG(1, 2))
	messages := smallSession(20).inTurn()
	for _, b := range bad {
		at := r.IntN(len(messages) + 1)
		messages = append(messages[:at:at], append([][]byte{b}, messages[at:]...)...)
	}
	spans := feed(t, e, c, messages)
	assert.Len(t, spans, 22)
	got := counted(t, tel)
	assert.Equal(t, int64(len(messages)+4), got["messages"])
	for reason, n := range map[string]int64{
		"unreadable": 5, "no_session": 1, "session_id": 1, "too_large": 2, "truncated": 1, "unknown_type": 1 + 4,
	} {
		assert.Equal(t, n, got["rejects/"+reason], reason)
	}
	assert.Equal(t, int64(4), got["rejects/malformed"], "text, an object without a type, 7, and a kernel that was cut off")
}

func TestMessagesThatComeAgain(t *testing.T) {
	messages := smallSession(200).shuffled(3)
	e, c, _ := start(t, nil)
	want := feed(t, e, c, messages)
	require.Len(t, want, 202)
	for id, n := range want {
		require.Equal(t, 1, n, id)
	}

	t.Run("at once, because the next component did not take the data", func(t *testing.T) {
		e, c, tel := start(t, nil)
		spans, again := spanSet{}, 0
		for _, m := range messages {
			c.now = c.now.Add(time.Millisecond)
			first, err := e.UnmarshalTraces(m)
			require.NoError(t, err)
			n := first.SpanCount()
			kept := spanSet{}
			kept.add(first)
			first.ResourceSpans().RemoveIf(func(ptrace.ResourceSpans) bool { return true }) // the pipeline's own by now
			if n == 0 || bytes.Contains(m, []byte(`"shutdown"`)) {
				spans.merge(kept)
				continue
			}
			second, err := e.UnmarshalTraces(m)
			require.NoError(t, err)
			got := spanSet{}
			got.add(second)
			require.Equal(t, kept, got)
			spans.merge(got)
			again++
		}
		assert.Equal(t, want.ids(), spans.ids())
		assert.Positive(t, again)
		assert.Equal(t, int64(again), counted(t, tel)["returned_again"])
	})

	again := func(seed uint64, ends bool) (*encoding, spanSet, map[string]int64) {
		r := rand.New(rand.NewPCG(seed, 6))
		tp := smallSession(2000)
		for key, list := range tp {
			var out [][]byte
			for i := range list {
				out = append(out, list[i])
				if r.IntN(50) == 0 && (ends || i < len(list)-1) { // the last few again, in their order
					out = append(out, list[max(0, i-200):i+1]...)
				}
			}
			if ends {
				out = append(out, list[max(0, len(list)-20):]...)
			}
			tp[key] = out
		}
		e, c, tel := start(t, nil)
		spans := feed(t, e, c, tp.shuffled(seed))
		return e, spans, counted(t, tel)
	}
	e, c, _ = start(t, nil)
	want = feed(t, e, c, smallSession(2000).inTurn())
	t.Run("later, because the partition was given to another and back", func(t *testing.T) {
		for seed := range uint64(5) {
			_, spans, got := again(seed, false)
			assert.Empty(t, difference(want.ids(), spans.ids()))
			assert.Empty(t, difference(spans.ids(), want.ids()))
			assert.Positive(t, got["repeated"])
			assert.Zero(t, got["rejects/after_end"])
		}
	})

	t.Run("with the end of a channel among them, which cannot be told from that of another", func(t *testing.T) {
		spanIDs := func(s spanSet) map[string]bool {
			ids := map[string]bool{}
			for id := range s {
				_, span, _ := strings.Cut(id, "/")
				ids[span] = true
			}
			return ids
		}
		late := int64(0)
		for seed := range uint64(5) {
			_, spans, got := again(seed, true)
			assert.Empty(t, difference(spanIDs(want), spanIDs(spans)), "no span is lost")
			late += got["rejects/after_end"]
			if got["rejects/after_end"] == 0 {
				assert.Empty(t, difference(want.ids(), spans.ids()), "unless it is counted, all is the same")
			}
		}
		assert.Positive(t, late)
	})
}

func TestSignalsKeepTheirOwnStateAndAreSafeTogether(t *testing.T) {
	tp := readTopic(t, "golden-b-flat")
	e, c, _ := start(t, nil)
	messages := tp.inTurn()
	var wg sync.WaitGroup
	var spans, records, points int
	var mu sync.Mutex
	step := func(f func(m []byte) int, sum *int) {
		wg.Go(func() {
			n := 0
			for _, m := range messages {
				n += f(m)
			}
			mu.Lock()
			*sum += n
			mu.Unlock()
		})
	}
	run := func() {
		step(func(m []byte) int { td, _ := e.UnmarshalTraces(m); return td.SpanCount() }, &spans)
		step(func(m []byte) int { ld, _ := e.UnmarshalLogs(m); return ld.LogRecordCount() }, &records)
		step(func(m []byte) int { md, _ := e.UnmarshalMetrics(m); return md.DataPointCount() }, &points)
		wg.Wait()
	}
	run()
	c.now = c.now.Add(time.Hour)
	messages = [][]byte{tick()}
	run()
	assert.Positive(t, records)
	assert.Positive(t, points)
	want := received(t, "golden-b-flat")
	assert.Equal(t, spans, len(want)) //nolint:testifylint // the failure would print the map
}

func TestSessionsAreBounded(t *testing.T) {
	e, c, tel := start(t, func(cfg *Config) { cfg.MaxSessions = 3 })
	spans := spanSet{}
	for i := range 10 {
		c.now = c.now.Add(time.Second)
		for _, m := range [][]byte{header(), kernel(1)} {
			td, err := e.UnmarshalTraces(bytes.ReplaceAll(m, []byte(id), fmt.Appendf(nil, "%08d-2222-4333-8444-555555555555", i)))
			require.NoError(t, err)
			spans.add(td)
		}
	}
	assert.Len(t, e.traces.sessions, 3)
	assert.Equal(t, int64(7), counted(t, tel)["evicted"])
	c.now = c.now.Add(time.Hour)
	td, err := e.UnmarshalTraces(tick())
	require.NoError(t, err)
	spans.add(td)
	kernels := 10
	assert.Len(t, spans, kernels+10+10, "kernels, sessions and their windows: nothing is lost")

	recent := recent{limit: 10}
	for i := range uint64(1000) {
		assert.False(t, recent.seen(i))
		assert.LessOrEqual(t, len(recent.m), 10)
	}
	assert.True(t, recent.seen(995))
	assert.False(t, recent.seen(5))
}

func TestAMessageOfManySessionsIsBounded(t *testing.T) {
	e, _, tel := start(t, func(cfg *Config) { cfg.MaxSessions = 3 })
	var b bytes.Buffer
	for i := range 500 {
		b.Write(append(bytes.ReplaceAll(kernel(1), []byte(id), fmt.Appendf(nil, "%08d-2222-4333-8444-555555555555", i)), '\n'))
	}
	td, err := e.UnmarshalTraces(b.Bytes())
	require.NoError(t, err)
	assert.Equal(t, 497*3, td.SpanCount(), "a kernel, its window and its session of each that was closed")
	assert.Equal(t, int64(497), counted(t, tel)["evicted"])
	assert.Len(t, e.traces.sessions, 3)
	assert.Equal(t, 3, e.traces.waiting)
}

func TestUnmarshal_MessageThatExpands(t *testing.T) {
	e, c, tel := start(t, func(cfg *Config) { cfg.MaxMessageBytes = 64 << 20 })
	const kernels = 70_000 // more than one message may return
	var b bytes.Buffer
	for i := range kernels {
		b.Write(append(bytes.Replace(kernel(i+1), []byte(`,"user_scope":"step|k","scope_depth":1`), nil, 1), '\n'))
	}
	got := 0
	add := func(td ptrace.Traces, err error) {
		require.NoError(t, err)
		assert.LessOrEqual(t, td.SpanCount(), 66_000)
		for _, rs := range td.ResourceSpans().All() {
			for _, ss := range rs.ScopeSpans().All() {
				for _, span := range ss.Spans().All() {
					if span.Name() == "k" {
						got++
					}
				}
			}
		}
	}
	for _, m := range [][]byte{header(), b.Bytes(), end()} {
		add(e.UnmarshalTraces(m))
	}
	for range 2 { // what a message may not return comes with the next one
		c.now = c.now.Add(time.Hour)
		add(e.UnmarshalTraces(tick()))
	}
	assert.Equal(t, kernels, got)
	assert.Zero(t, counted(t, tel)["rejects/expands"])
}

func TestUnmarshal_LineThatExpands(t *testing.T) {
	e, _, tel := start(t, func(cfg *Config) { cfg.MaxMessageBytes = 64 << 20 })
	const rows, points = 40_000, 8 // a point for each of the columns: more than one message may return
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"type":"device_metric_batch","session_id":"%s","batch_id":1,"base_time_ns":%d,"columns":`+
		`["dt_ns","device_id","gpu_util","mem_util","temp_c","power_mw","used_mib","total_mib","clock_sm"],"rows":[`, id, base)
	for i := range rows {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "[%d,0,1,1,1,1,1,1,1]", i)
	}
	b.WriteString("]}")
	_, err := e.UnmarshalMetrics(header())
	require.NoError(t, err)
	md, err := e.UnmarshalMetrics(b.Bytes())
	require.NoError(t, err)
	assert.Greater(t, md.DataPointCount(), 200_000)
	assert.Less(t, md.DataPointCount(), 270_000)
	assert.Less(t, md.DataPointCount(), rows*points, "the rest is cut")
	assert.Equal(t, int64(1), counted(t, tel)["rejects/expands"], "and counted")
}

func TestASessionWithoutAnEndIsReturnedAfterItsTimeout(t *testing.T) {
	e, c, _ := start(t, nil)
	tp := smallSession(5)
	for key, list := range tp {
		tp[key] = list[:len(list)-1] // no shutdown
	}
	tp["scope"] = tp["scope"][:2] // and the scope open
	spans := spanSet{}
	for _, m := range tp.inTurn() {
		td, err := e.UnmarshalTraces(m)
		require.NoError(t, err)
		spans.add(td)
	}
	require.Empty(t, spans, "all wait for the scope channel")
	c.now = c.now.Add(11 * time.Second)
	td, _ := e.UnmarshalTraces(tick())
	spans.add(td)
	assert.Len(t, spans, 5)
	c.now = c.now.Add(5 * time.Minute)
	td, _ = e.UnmarshalTraces(tick())
	spans.add(td)
	assert.Len(t, spans, 7)
}

// memory is a storage that forgets nothing.
type memory struct {
	component.StartFunc
	component.ShutdownFunc
	m map[string][]byte
}

func (m *memory) GetClient(context.Context, component.Kind, component.ID, string) (storage.Client, error) {
	return m, nil
}
func (m *memory) Get(_ context.Context, key string) ([]byte, error)     { return m.m[key], nil }
func (m *memory) Set(_ context.Context, key string, value []byte) error { m.m[key] = value; return nil }
func (m *memory) Delete(_ context.Context, key string) error            { delete(m.m, key); return nil }
func (m *memory) Close(context.Context) error                           { return nil }
func (m *memory) Batch(ctx context.Context, ops ...*storage.Operation) error {
	for _, op := range ops {
		switch op.Type {
		case storage.Get:
			op.Value = m.m[op.Key]
		case storage.Set:
			_ = m.Set(ctx, op.Key, op.Value)
		case storage.Delete:
			_ = m.Delete(ctx, op.Key)
		}
	}
	return nil
}

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

func TestARestartInTheMiddleChangesNothing(t *testing.T) {
	tp := readTopic(t, "c3-h200-minigpt")
	messages := tp.shuffled(11)
	e, c, _ := start(t, nil)
	want := feed(t, e, c, messages).ids()

	where := component.MustNewID("storage")
	store := &memory{m: map[string][]byte{}}
	cfg := createDefaultConfig().(*Config)
	cfg.Storage = &where
	for _, at := range []int{0, 1, len(messages) / 3, len(messages) / 2, len(messages) - 1} {
		spans := spanSet{}
		for _, part := range [][][]byte{messages[:at], messages[at:]} {
			e, err := newExtension(extensiontest.NewNopSettings(metadata.Type), cfg)
			require.NoError(t, err)
			e.traces.now = func() time.Time { return c.now }
			assert.Equal(t, []component.ID{where}, e.Dependencies())
			require.NoError(t, e.Start(context.Background(), host{where: store}))
			assert.Empty(t, store.m, "what was taken up is not there any more")
			for _, m := range part {
				td, err := e.UnmarshalTraces(m)
				require.NoError(t, err)
				spans.add(td)
			}
			if at < len(messages) && len(part) == len(messages)-at {
				spans.merge(feed(t, e, c, nil))
			}
			require.NoError(t, e.Shutdown(context.Background()))
		}
		assert.Empty(t, difference(want, spans.ids()))
		assert.Empty(t, difference(spans.ids(), want))
		clear(store.m)
	}
	store.m["sessions/traces"] = []byte("damaged")
	e, err := newExtension(extensiontest.NewNopSettings(metadata.Type), cfg)
	require.NoError(t, err)
	require.NoError(t, e.Start(context.Background(), host{where: store}))
	require.NoError(t, e.Shutdown(context.Background()))
	e, err = newExtension(extensiontest.NewNopSettings(metadata.Type), cfg)
	require.NoError(t, err)
	require.ErrorContains(t, e.Start(context.Background(), host{}), `storage "storage" is not configured`)
	require.NoError(t, e.Shutdown(context.Background()))
}

func TestWithoutAStorageWhatWaitsIsCountedAtTheShutdown(t *testing.T) {
	e, _, tel := start(t, nil)
	for _, m := range smallSession(5)["device"] {
		_, err := e.UnmarshalTraces(m)
		require.NoError(t, err)
	}
	require.NoError(t, e.Shutdown(context.Background()))
	assert.Equal(t, int64(5), counted(t, tel)["lost"])
}

func TestWhatWaitsIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("reads 300,000 lines")
	}
	e, _, tel := start(t, nil)
	spans := 0
	var b bytes.Buffer
	b.Write(append(header(), '\n'))
	for n := range 300_000 {
		b.Write(append(kernel(n+1), '\n'))
		if b.Len() > 1<<20 {
			td, err := e.UnmarshalTraces(b.Bytes())
			require.NoError(t, err)
			for _, s := range td.ResourceSpans().All() {
				for _, s := range s.ScopeSpans().At(0).Spans().All() {
					if s.Name() == "k" {
						spans++
					}
				}
			}
			b.Reset()
		}
	}
	assert.LessOrEqual(t, e.traces.waiting, maxWaiting)
	assert.Equal(t, int64(spans+e.traces.waiting), counted(t, tel)["lines"]-1, "each kernel was returned or waits")
	assert.Positive(t, counted(t, tel)["held_overflow"])
}

func TestConfigSaysWhatIsWrong(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	require.NoError(t, cfg.Validate())
	cfg.MaxSessions, cfg.MaxMessageBytes, cfg.RememberedLines, cfg.ChannelTimeout = 0, 1, 0, -time.Second
	err := cfg.Validate()
	require.ErrorContains(t, err, "max_sessions is 0: it must be between 1 and 4096")
	require.ErrorContains(t, err, "max_message_bytes is 1: it must be between 1024 and 1073741824")
	require.ErrorContains(t, err, "remembered_lines is 0")
	require.ErrorContains(t, err, "channel_timeout is -1s: it must be more than 0")
}

// FuzzUnmarshal checks that every message is decoded without a panic or an error, and is counted. Each
// line counts as accepted, repeated or rejected; a message without lines counts as rejected.
func FuzzUnmarshal(f *testing.F) {
	for _, m := range smallSession(2).inTurn() {
		f.Add(m)
		f.Add(asMessage(f, m))
	}
	f.Add([]byte(`{"data":"{\"type\":\"init\"}","type":"init"}`))
	f.Add([]byte{0x1f, 0x8b, 8, 0})
	f.Add([]byte("\"\\n\\n\""))
	cfg := createDefaultConfig().(*Config)
	cfg.MaxSessions, cfg.MaxMessageBytes, cfg.RememberedLines = 4, 1<<16, 100
	f.Fuzz(func(t *testing.T, message []byte) {
		var e *encoding
		// Each message is decoded twice for each of the three signals.
		alloctest.Limit{PerByte: 64 << 10, Constant: 32 << 20}.Check(t, len(message), func() {
			var err error
			if e, err = newExtension(extensiontest.NewNopSettings(metadata.Type), cfg); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				for _, m := range [][]byte{header(), message, end()} {
					if _, err := e.UnmarshalTraces(m); err != nil {
						t.Fatal(err)
					}
					if _, err := e.UnmarshalLogs(m); err != nil {
						t.Fatal(err)
					}
					if _, err := e.UnmarshalMetrics(m); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
		for _, r := range e.readers() {
			if len(r.sessions) > cfg.MaxSessions {
				t.Fatalf("%d sessions", len(r.sessions))
			}
			waits := 0
			for _, s := range r.sessions {
				waits += s.waits
			}
			if waits != r.waiting {
				t.Fatalf("%d wait, %d are counted", waits, r.waiting)
			}
		}
	})
}
