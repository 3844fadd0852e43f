// SPDX-License-Identifier: Apache-2.0

package gpuflogencodingextension

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpuflight/gpuflight/extension/encoding/gpuflogencodingextension/internal/metadata"
	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver"
)

// recordings are logs of GPU Flight as it wrote them.
const recordings = "../../../internal/testing/testdata/logs"

var folders = []string{
	"a2-h200", "golden-a2-flat", "golden-a2-rotated", "golden-b-flat", "c2-h200-engines", "golden-c3-session",
	"golden-c3-rotated", "c3-h200-minigpt", "c3-h200-scopes",
}

// topic returns a folder's logs as an agent writes them to Kafka: one message per line, in the order of
// each group's channel. The channel is the message key, which selects the partition.
type topic map[string][][]byte

func readTopic(t testing.TB, folder string) topic {
	t.Helper()
	root := filepath.Join(recordings, folder)
	require.DirExists(t, root)
	type file struct {
		path  string
		index int
	}
	channels := map[string][]file{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name, isLog := strings.CutSuffix(strings.TrimSuffix(filepath.Base(path), ".gz"), ".log")
		if err != nil || d.IsDir() || !isLog || strings.HasPrefix(name, ".") {
			return err
		}
		f := file{path: path}
		parts := strings.Split(name, ".")
		if n, err := strconv.Atoi(parts[len(parts)-1]); err == nil {
			f.index, parts = n, parts[:len(parts)-1]
			if strings.HasPrefix(folder, "golden-a2") {
				f.index = -n // 1 is the newest but for the one without a number
			}
		}
		key := filepath.Join(strings.Replace(filepath.Dir(path), ".tmp", "", 1), strings.Join(parts, "."))
		channels[key] = append(channels[key], f)
		return nil
	}))
	tp := topic{}
	for key, files := range channels {
		slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.index, b.index) })
		for _, f := range files {
			data, err := os.ReadFile(f.path)
			require.NoError(t, err)
			if strings.HasSuffix(f.path, ".gz") {
				z, err := gzip.NewReader(bytes.NewReader(data))
				require.NoError(t, err)
				var plain bytes.Buffer
				_, err = plain.ReadFrom(z)
				require.NoError(t, err)
				data = plain.Bytes()
			}
			for _, line := range bytes.Split(data, []byte{'\n'}) {
				if len(line) > 0 {
					tp[key] = append(tp[key], asMessage(t, line))
				}
			}
		}
	}
	require.NotEmpty(t, tp)
	return tp
}

// asMessage writes a line as the article's agent does.
func asMessage(t testing.TB, line []byte) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	require.NoError(t, e.Encode(string(line)))
	return bytes.TrimSpace(b.Bytes())
}

// mix takes from the channels in an order that next decides on, each channel in its own order.
func (tp topic) mix(next func(left []string) string) (messages [][]byte) {
	at := map[string]int{}
	for {
		var left []string
		for _, key := range slices.Sorted(maps.Keys(tp)) {
			if at[key] < len(tp[key]) {
				left = append(left, key)
			}
		}
		if len(left) == 0 {
			return messages
		}
		key := next(left)
		messages = append(messages, tp[key][at[key]])
		at[key]++
	}
}

// inTurn takes a message of each channel after another.
func (tp topic) inTurn() [][]byte {
	n := 0
	return tp.mix(func(left []string) string { n++; return left[n%len(left)] })
}

// shuffled spreads the channels over 4 partitions and reads these as they come.
func (tp topic) shuffled(seed uint64) [][]byte {
	r := rand.New(rand.NewPCG(seed, 1))
	favourite, run := 0, 0
	return tp.mix(func(left []string) string {
		if run--; run < 0 { // fetches bring many messages of a partition
			favourite, run = r.IntN(4), r.IntN(200)
		}
		return left[favourite%len(left)]
	})
}

// received is the spans that the receiver makes of a folder, by trace and span id.
func received(t *testing.T, folder string) map[string]bool {
	t.Helper()
	factory := gpuflogreceiver.NewFactory()
	cfg := factory.CreateDefaultConfig()
	require.NoError(t, confmap.NewFromStringMap(map[string]any{
		"include": []any{filepath.Join(recordings, folder)}, "start_at": "beginning", "poll_interval": "20ms", "session_timeout": "1s",
	}).Unmarshal(cfg))
	store := testsink.NewStore()
	r, err := factory.CreateTraces(context.Background(), receivertest.NewNopSettings(factory.Type()), cfg, store.Traces())
	require.NoError(t, err)
	require.NoError(t, r.Start(context.Background(), componenttest.NewNopHost()))
	// What is at rest for longer than anything waits for something else is all.
	store.Settle(3500*time.Millisecond, 30*time.Second, func() bool { return store.Counts().Spans > 0 })
	require.NoError(t, r.Shutdown(context.Background()))
	ids := map[string]bool{}
	for _, s := range store.Spans() {
		ids[s.SpanKey.String()] = true
	}
	return ids
}

var ticks atomic.Int64

// tick is a message that brings nothing but the moment.
func tick() []byte {
	return fmt.Appendf(nil, `{"type":"tick","session_id":"tick","n":%d}`, ticks.Add(1))
}

// clock is a time that the test moves.
type clock struct{ now time.Time }

func start(t testing.TB, change func(*Config)) (*encoding, *clock, *componenttest.Telemetry) {
	t.Helper()
	cfg := createDefaultConfig().(*Config)
	if change != nil {
		change(cfg)
	}
	require.NoError(t, cfg.Validate())
	tel := componenttest.NewTelemetry()
	set := extensiontest.NewNopSettings(metadata.Type)
	set.TelemetrySettings = tel.NewTelemetrySettings()
	e, err := newExtension(set, cfg)
	require.NoError(t, err)
	c := &clock{now: time.Unix(1786060000, 0)}
	for _, r := range e.readers() {
		r.now = func() time.Time { return c.now }
	}
	require.NoError(t, e.Start(context.Background(), componenttest.NewNopHost()))
	t.Cleanup(func() {
		require.NoError(t, e.Shutdown(context.Background()))
		require.NoError(t, tel.Shutdown(context.Background()))
	})
	return e, c, tel
}

// spanSet collects spans and how often each came.
type spanSet map[string]int

func (s spanSet) add(td ptrace.Traces) {
	for _, rs := range td.ResourceSpans().All() {
		for _, ss := range rs.ScopeSpans().All() {
			for _, sp := range ss.Spans().All() {
				s[sp.TraceID().String()+"/"+sp.SpanID().String()]++
			}
		}
	}
}

// merge adds another set.
func (s spanSet) merge(o spanSet) {
	for id, n := range o {
		s[id] += n
	}
}

func (s spanSet) ids() map[string]bool {
	ids := map[string]bool{}
	for id := range s {
		ids[id] = true
	}
	return ids
}

// feed gives messages to the extension, and lets time go on at the end.
func feed(t testing.TB, e *encoding, c *clock, messages [][]byte) spanSet {
	t.Helper()
	spans := spanSet{}
	take := func(m []byte) {
		td, err := e.UnmarshalTraces(m)
		require.NoError(t, err)
		spans.add(td)
	}
	for _, m := range messages {
		c.now = c.now.Add(time.Millisecond)
		take(m)
	}
	for range 4 {
		c.now = c.now.Add(10 * time.Minute)
		take(tick())
	}
	return spans
}

func TestMessagesInAnyOrderOfPartitionsGiveTheSpansOfTheFiles(t *testing.T) {
	for _, folder := range folders {
		t.Run(folder, func(t *testing.T) {
			t.Parallel() // received mostly waits
			tp := readTopic(t, folder)
			want := received(t, folder)
			require.NotEmpty(t, want)
			orders := map[string][][]byte{"in turn": tp.inTurn(), "one channel after the other": tp.mix(func(left []string) string { return left[0] }),
				"the last channel first": tp.mix(func(left []string) string { return left[len(left)-1] })}
			shuffles := uint64(1)
			if os.Getenv("GPUFLIGHT_SOAK") != "" {
				shuffles = 4
			}
			for seed := range shuffles {
				orders[fmt.Sprint("shuffled ", seed)] = tp.shuffled(seed)
			}
			for name, messages := range orders {
				e, c, _ := start(t, nil)
				spans := feed(t, e, c, messages)
				assert.Len(t, spans, len(want), name)
				missing, extra := difference(want, spans.ids()), difference(spans.ids(), want)
				assert.Empty(t, missing, name)
				assert.Empty(t, extra, name)
			}
		})
	}
}

func difference(a, b map[string]bool) (d []string) {
	for id := range a {
		if !b[id] {
			d = append(d, id)
		}
	}
	slices.Sort(d)
	return d[:min(len(d), 5)]
}
