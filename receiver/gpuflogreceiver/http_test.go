// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/ingest"
)

// exact keeps all items, each as text with its resource.
type exact struct {
	mu     sync.Mutex
	answer func() error
	items  map[string]int
	ended  int // how many different spans of sessions there are
}

func newExact() *exact { return &exact{items: map[string]int{}} }

func (e *exact) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

// put stores the items of a delivery, or rejects it.
func (e *exact) put(items []string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.answer != nil {
		if err := e.answer(); err != nil {
			return err
		}
	}
	for _, it := range items {
		if e.items[it]++; e.items[it] == 1 && strings.HasPrefix(it, "span ") && strings.Contains(it, `"cuda.operation":"session"`) {
			e.ended++
		}
	}
	return nil
}

func (e *exact) say(answer func() error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = answer
}

// words formats a map in the order of its keys.
func words(m pcommon.Map) string {
	b, err := json.Marshal(m.AsRaw())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (e *exact) ConsumeTraces(_ context.Context, td ptrace.Traces) error {
	var items []string
	for _, rs := range td.ResourceSpans().All() {
		resource := words(rs.Resource().Attributes())
		for _, ss := range rs.ScopeSpans().All() {
			for _, sp := range ss.Spans().All() {
				links := ""
				for _, l := range sp.Links().All() {
					links += fmt.Sprint(l.TraceID(), l.SpanID(), words(l.Attributes()))
				}
				items = append(items, fmt.Sprint("span ", resource, sp.TraceID(), sp.SpanID(), sp.ParentSpanID(), sp.Name(),
					sp.Kind(), sp.StartTimestamp(), sp.EndTimestamp(), words(sp.Attributes()), sp.Status().Code(), sp.Status().Message(), links))
			}
		}
	}
	return e.put(items)
}

func (e *exact) ConsumeLogs(_ context.Context, ld plog.Logs) error {
	var items []string
	for _, rl := range ld.ResourceLogs().All() {
		resource := words(rl.Resource().Attributes())
		for _, sl := range rl.ScopeLogs().All() {
			for _, l := range sl.LogRecords().All() {
				items = append(items, fmt.Sprint("log ", resource, l.Timestamp(), l.EventName(), l.SeverityNumber(),
					l.Body().AsString(), l.TraceID(), l.SpanID(), words(l.Attributes())))
			}
		}
	}
	return e.put(items)
}

func (e *exact) ConsumeMetrics(_ context.Context, md pmetric.Metrics) error {
	var items []string
	for _, rm := range md.ResourceMetrics().All() {
		resource := words(rm.Resource().Attributes())
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				points := pmetric.NewNumberDataPointSlice()
				switch m.Type() {
				case pmetric.MetricTypeGauge:
					points = m.Gauge().DataPoints()
				case pmetric.MetricTypeSum:
					points = m.Sum().DataPoints()
				}
				for _, p := range points.All() {
					items = append(items, fmt.Sprint("point ", resource, m.Name(), m.Unit(), m.Type(),
						p.StartTimestamp(), p.Timestamp(), words(p.Attributes()), p.ValueType(), p.IntValue(), p.DoubleValue()))
				}
			}
		}
	}
	return e.put(items)
}

// all returns the distinct items.
func (e *exact) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Keys(e.items))
}

// count returns the number of distinct items with all the parts.
func (e *exact) count(parts ...string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for it := range e.items {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(it, p) }) {
			n++
		}
	}
	return n
}

// sessions returns the number of distinct session spans.
func (e *exact) sessions() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ended
}

// size returns the number of distinct items.
func (e *exact) size() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.items)
}

// twice returns the items that arrived more than once.
func (e *exact) twice() (list []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for it, n := range e.items {
		if n > 1 {
			list = append(list, it)
		}
	}
	return list
}

// consumers are the three signals' consumers.
type consumers interface {
	consumer.Traces
	consumer.Logs
	consumer.Metrics
}

var (
	_ consumers = (*exact)(nil)
	_ consumers = (*sink)(nil)
)

// serve starts a receiver on a free port.
func serve(t *testing.T, e consumers, m *memory, change func(*Config), extensions ...extension) (*running, string) {
	t.Helper()
	r := startWith(t, e, m, func(c *Config) {
		c.Protocols.HTTP.GetOrInsertDefault().NetAddr.Endpoint = "localhost:0"
		c.Protocols.HTTP.Get().ChannelTimeout = time.Hour // no test is about how fast
		if change != nil {
			change(c)
		}
	}, extensions...)
	return r, "http://" + r.server().addr.String()
}

// message is a request to the server.
type message struct {
	path    string
	headers map[string]string
	body    []byte
}

type answer struct {
	status int
	header http.Header
	ingest.Reply
	text string
}

func send(t *testing.T, url string, m message) answer {
	t.Helper()
	a, err := try(t.Context(), http.DefaultClient, url, m)
	require.NoError(t, err)
	return a
}

func try(ctx context.Context, c *http.Client, url string, m message) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+m.path, bytes.NewReader(m.body))
	if err != nil {
		return answer{}, err
	}
	for k, v := range m.headers {
		req.Header.Set(k, v)
	}
	resp, err := c.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{status: resp.StatusCode, header: resp.Header, text: string(text)}
	_ = json.Unmarshal(text, &a.Reply) // refusals of the Collector's own are not JSON
	return a, nil
}

func zipped(t testing.TB, lines string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write([]byte(lines))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Bytes()
}

func unzipped(t testing.TB, b []byte) string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(b))
	require.NoError(t, err)
	text, err := io.ReadAll(z)
	require.NoError(t, err)
	return string(text)
}

// windowFile is a window of a session folder.
type windowFile struct {
	session, channel string
	number           int
	gz               []byte
}

// windowsOf returns the windows under a folder, each session's channels in the given order, or
// sorted by name, as GPU Flight's upload sends them.
func windowsOf(t *testing.T, dir string, channels ...string) (list []windowFile) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*", "*.log.gz"))
	require.NoError(t, err)
	for _, p := range paths {
		name := strings.Split(filepath.Base(p), ".")
		n, err := strconv.Atoi(name[1])
		require.NoError(t, err)
		gz, err := os.ReadFile(p)
		require.NoError(t, err)
		list = append(list, windowFile{session: filepath.Base(filepath.Dir(p)), channel: name[0], number: n, gz: gz})
	}
	slices.SortFunc(list, func(a, b windowFile) int {
		return cmp.Or(cmp.Compare(a.session, b.session), cmp.Compare(slices.Index(channels, a.channel), slices.Index(channels, b.channel)),
			cmp.Compare(a.channel, b.channel), cmp.Compare(a.number, b.number))
	})
	return list
}

// upload is the window as sent by GPU Flight's upload (format document, section 7.1).
func (w windowFile) upload() message {
	return message{path: "/api/v1/events/stream", body: w.gz, headers: map[string]string{
		"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip", "User-Agent": "gpufl-client/1.2.1 (deferred-upload)",
		"X-GpuFlight-Session-Id": w.session, "X-GpuFlight-Hostname": "node-a",
		"X-GpuFlight-Client-Version": "1.2.1", "X-GpuFlight-Wire-Version": "1",
	}}
}

// ship is the window as sent by GPU Flight's agent.
func (w windowFile) ship() message {
	return message{path: "/api/v1/events/stream", body: w.gz, headers: map[string]string{
		"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip",
		"X-GpuFlight-Session-Id": w.session, "X-GpuFlight-Hostname": "node-a",
		"X-GpuFlight-Window-Id":       fmt.Sprintf("%s-%s-%d", w.session, w.channel, w.number),
		"X-GpuFlight-Window-Channel":  w.channel,
		"X-GpuFlight-Window-Sequence": strconv.Itoa(w.number),
		"X-GpuFlight-Window-CRC32":    strconv.FormatUint(uint64(crc32.ChecksumIEEE(w.gz)), 10),
	}}
}

func completed(session string) message {
	return message{path: "/api/v1/events/session-complete", headers: map[string]string{"X-GpuFlight-Session-Id": session}}
}

// enveloped is a line as the agent of the article's time sends it (format document, section 7).
func enveloped(t *testing.T, channel, line string) message {
	t.Helper()
	var rec struct{ Type string }
	require.NoError(t, json.Unmarshal([]byte(line), &rec))
	body, err := json.Marshal(map[string]any{
		"agentSendingTime": time.Now().UnixMilli(), "data": line, "type": rec.Type, "hostname": "node-a", "ipAddr": "192.0.2.7",
	})
	require.NoError(t, err)
	return message{path: "/api/v1/events/" + rec.Type, body: body, headers: map[string]string{
		"Content-Type": "application/json", "X-Topic": "gpu-trace-events", "X-Key": channel,
	}}
}

func recordings(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join("..", "..", "internal", "testing", "testdata", "logs", name)
	require.DirExists(t, dir)
	return dir
}

// tailed returns the telemetry of a folder that is followed.
func tailed(t *testing.T, dir string, sessions int) *exact {
	t.Helper()
	e := newExact()
	r := startWith(t, e, nil, func(c *Config) { c.Include = []string{dir} })
	eventually(t, "the sessions' spans", func() bool { return e.sessions() >= sessions })
	r.stop() // and with it what is being delivered
	return e
}

// same checks that both received the same items, equally often.
func same(t *testing.T, want, got *exact) {
	t.Helper()
	for _, it := range want.all() {
		if want.items[it] != got.items[it] {
			t.Errorf("came %d times, want %d: %s", got.items[it], want.items[it], it)
		}
	}
	for _, it := range got.all() {
		if want.items[it] == 0 {
			t.Errorf("came %d times, is not wanted: %s", got.items[it], it)
		}
	}
}

func TestWindow_EqualsFiles(t *testing.T) {
	for name, sessions := range map[string]int{
		"c3-h200-minigpt": 1, "c2-h200-engines": 2, "golden-c3-session": 1, "golden-c3-rotated": 1,
	} {
		t.Run(name, func(t *testing.T) {
			dir := recordings(t, name)
			want := tailed(t, dir, sessions)
			for _, how := range []string{"upload", "agent"} {
				for _, m := range []*memory{nil, {m: map[string][]byte{}}} {
					if how == "agent" && m == nil {
						continue // see TestWindow_WithoutStorage
					}
					t.Run(fmt.Sprint(how, ", storage ", m != nil), func(t *testing.T) {
						e := newExact()
						r, url := serve(t, e, m, nil)
						ids := map[string]bool{}
						for _, w := range windowsOf(t, dir) {
							msg := w.upload()
							if how == "agent" {
								msg = w.ship()
							}
							a := send(t, url, msg)
							require.Equal(t, http.StatusOK, a.status, a.text)
							assert.EqualValues(t, strings.Count(unzipped(t, w.gz), "\n"), a.Accepted)
							assert.Zero(t, a.Rejected)
							assert.True(t, a.WindowAcknowledged)
							ids[w.session] = true
						}
						if how == "agent" {
							for id := range ids {
								require.Equal(t, http.StatusOK, send(t, url, completed(id)).status)
							}
						}
						r.stop()
						if how == "upload" && m != nil {
							// The upload does not report its end, and waiting data is stored. The
							// second process does not wait for it.
							r, _ = serve(t, e, m, func(c *Config) { c.Protocols.HTTP.Get().ChannelTimeout = time.Millisecond })
							eventually(t, "what was stored", func() bool { return e.size() >= want.size() })
							r.stop()
						}
						same(t, want, e)
					})
				}
			}
		})
	}
}

// TestWindow_WithoutStorage sends windows as the agent does, which deletes acknowledged windows. No
// data of them may wait in memory then.
func TestWindow_WithoutStorage(t *testing.T) {
	dir := recordings(t, "golden-c3-session")
	want := tailed(t, dir, 1)
	ids := func(e *exact) (list []string) {
		for _, it := range e.all() {
			if strings.HasPrefix(it, "span ") && strings.Contains(it, `"cuda.operation":"kernel"`) {
				list = append(list, regexp.MustCompile(`}[0-9a-f]{32} ([0-9a-f]{16})`).FindStringSubmatch(it)[1])
			}
		}
		slices.Sort(list)
		return list
	}
	e := newExact()
	r, url := serve(t, e, nil, nil)
	defer r.stop()
	for _, w := range windowsOf(t, dir) {
		if w.channel != "device" {
			continue
		}
		a := send(t, url, w.ship())
		require.Equal(t, http.StatusOK, a.status, a.text)
		assert.True(t, a.WindowAcknowledged)
		assert.Zero(t, a.Waiting)
	}
	assert.Equal(t, ids(want), ids(e))
	assert.NotEmpty(t, ids(e))
}

// TestLine_EqualsFiles sends line by line, as the agent of the article's time did.
func TestLine_EqualsFiles(t *testing.T) {
	for name, base := range map[string]string{"golden-a2-flat": "demo_train", "golden-b-flat": "demo_train", "a2-h200": "occupancy_demo"} {
		t.Run(name, func(t *testing.T) {
			dir := recordings(t, name)
			files, err := filepath.Glob(filepath.Join(dir, base+".*.log"))
			require.NoError(t, err)
			require.Len(t, files, 3)
			want := newExact()
			tail := startWith(t, want, nil, func(c *Config) { c.Include = files })
			eventually(t, "the session's span", func() bool { return want.sessions() > 0 })
			tail.stop()

			e := newExact()
			r, url := serve(t, e, nil, nil)
			// Send the channels concurrently, each in order, as the agent's threads do.
			var group sync.WaitGroup
			for _, f := range files {
				channel := strings.Split(filepath.Base(f), ".")[1]
				text, err := os.ReadFile(f)
				require.NoError(t, err)
				group.Go(func() {
					for line := range strings.Lines(string(text)) {
						a, err := try(t.Context(), http.DefaultClient, url, enveloped(t, channel, strings.TrimSpace(line)))
						assert.NoError(t, err)
						assert.Equal(t, http.StatusOK, a.status, a.text)
						assert.EqualValues(t, 1, a.Accepted)
					}
				})
			}
			group.Wait()
			r.stop()
			same(t, want, e)
		})
	}
}
