// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/semconv"
)

const recordings = "../testing/testdata/logs"

// group is the channels of one flat base or session folder, windows joined in order.
type group struct {
	name     string
	session  bool // a session folder
	channels [NumChannels][]byte
}

var fileName = regexp.MustCompile(`^(?:(.+)\.)?(device|scope|system|sass)(?:\.(\d+))?\.log(\.gz)?$`)

// loadGroups reads every recording. It knows only the two layouts that the recordings have.
func loadGroups(t testing.TB) []group {
	t.Helper()
	type window struct {
		n    int
		data []byte
	}
	found := map[string]*[NumChannels][]window{}
	session := map[string]bool{}
	err := filepath.WalkDir(recordings, func(path string, e os.DirEntry, err error) error {
		m := fileName.FindStringSubmatch(e.Name())
		if err != nil || m == nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if m[4] != "" {
			z, err := gzip.NewReader(bytes.NewReader(data))
			if err != nil {
				return err
			}
			if data, err = io.ReadAll(z); err != nil {
				return err
			}
		}
		key := filepath.Join(filepath.Dir(path), m[1])
		n, _ := strconv.Atoi(m[3])
		if m[1] != "" { // 1 is the newest, the live file newer still
			n = -n
		} else {
			session[key] = true
		}
		if found[key] == nil {
			found[key] = &[NumChannels][]window{}
		}
		ch := slices.Index(channelNames[:], m[2])
		found[key][ch] = append(found[key][ch], window{n, data})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var groups []group
	for _, key := range slices.Sorted(maps.Keys(found)) {
		g := group{name: strings.TrimPrefix(key, filepath.Clean(recordings)+"/"), session: session[key]}
		for ch, ws := range found[key] {
			sort.Slice(ws, func(i, j int) bool { return ws[i].n < ws[j].n })
			for _, w := range ws {
				g.channels[ch] = append(g.channels[ch], w.data...)
			}
		}
		groups = append(groups, g)
	}
	if len(groups) == 0 {
		t.Fatal("no recording found")
	}
	return groups
}

// sink collects what a Decoder sends, as sorted text, one line an item.
type sink struct {
	batch *gpuevent.Batch
	items []string
	kinds map[string]int
	spans []ptrace.Span
	logs  []plog.LogRecord
}

func newSink() *sink {
	return &sink{batch: gpuevent.NewBatch(gpuevent.Signals{Traces: true, Logs: true, Metrics: true}), kinds: map[string]int{}}
}

func (k *sink) flush() {
	td, ld, md := k.batch.Take()
	for _, rs := range td.ResourceSpans().All() {
		for _, ss := range rs.ScopeSpans().All() {
			for _, sp := range ss.Spans().All() {
				op, _ := sp.Attributes().Get("cuda.operation")
				kind := op.Str()
				if _, ok := sp.Attributes().Get("cuda.scope.part"); ok {
					kind += " part"
				}
				k.kinds[kind]++
				k.spans = append(k.spans, sp)
				k.items = append(k.items, fmt.Sprintf("span %s %s %s %q %d %d %v %v", sp.TraceID(), sp.SpanID(), sp.ParentSpanID(),
					sp.Name(), sp.StartTimestamp(), sp.EndTimestamp(), attrText(sp.Attributes()), attrText(rs.Resource().Attributes())))
			}
		}
	}
	for _, rl := range ld.ResourceLogs().All() {
		for _, sl := range rl.ScopeLogs().All() {
			for _, r := range sl.LogRecords().All() {
				k.kinds[r.EventName()]++
				k.items = append(k.items, logText(r))
				k.logs = append(k.logs, r)
			}
		}
	}
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				for _, p := range points(m).All() {
					k.kinds[m.Name()]++
					k.items = append(k.items, fmt.Sprintf("point %s %d %v %v %v", m.Name(), p.Timestamp(), p.DoubleValue(), p.IntValue(), attrText(p.Attributes())))
				}
			}
		}
	}
}

func points(m pmetric.Metric) pmetric.NumberDataPointSlice {
	if m.Type() == pmetric.MetricTypeSum {
		return m.Sum().DataPoints()
	}
	return m.Gauge().DataPoints()
}

func logText(r plog.LogRecord) string {
	return fmt.Sprintf("log %s %s %s %d %q %v", r.EventName(), r.TraceID(), r.SpanID(), r.Timestamp(), r.Body().AsString(), attrText(r.Attributes()))
}

func attrText(m pcommon.Map) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m.AsRaw())) {
		v, _ := m.Get(k)
		fmt.Fprintf(&b, "%s=%s;", k, v.AsString())
	}
	return b.String()
}

func (k *sink) sorted() []string {
	s := slices.Clone(k.items)
	slices.Sort(s)
	return s
}

// decode feeds a group as the receiver does, in chunks of whole lines of about the given size.
func decode(t testing.TB, g group, opt Options, chunk func() int, reload bool) (*sink, *Decoder) {
	t.Helper()
	opt.KernelNameInPath = !g.session
	d := NewDecoder(opt)
	k := newSink()
	var off [NumChannels]int
	now := int64(2e18)
	left := func(ch Channel) []byte { return g.channels[ch][off[ch]:] }
	feed := func(ch Channel) {
		data := left(ch)
		if n := chunk(); n < len(data) {
			cut := bytes.LastIndexByte(data[:n], '\n')
			if cut < 0 {
				cut = n + bytes.IndexByte(data[n:], '\n')
				if cut < n {
					cut = len(data) - 1
				}
			}
			data = data[:cut+1]
		}
		d.Feed(ch, data, int64(off[ch]), now, k.batch)
		off[ch] += len(data)
	}
	for {
		now += 1e6
		done := true
		for _, ch := range []Channel{System, Sass} {
			if len(left(ch)) > 0 {
				feed(ch)
				done = false
			}
		}
		want := d.Want()
		if len(left(want)) == 0 {
			want = Scope + Device - want
		}
		if len(left(want)) > 0 {
			feed(want)
			done = false
		}
		st := Step{Now: now}
		for ch := range st.AtEnd {
			st.AtEnd[ch] = len(left(Channel(ch))) == 0
		}
		d.EndStep(st, k.batch)
		k.flush()
		if reload {
			state, dict := d.AppendState(nil), d.AppendDictionaries(nil)
			again := NewDecoder(opt)
			if err := again.LoadState(state, dict); err != nil {
				t.Fatalf("state after %v: %v", off, err)
			}
			if got := again.AppendState(nil); !bytes.Equal(got, state) {
				t.Fatalf("state changed by saving and loading after %v", off)
			}
			again.stats = d.stats
			d = again
		}
		if done {
			break
		}
	}
	d.EndStep(Step{Now: now + 3e9, AtEnd: [NumChannels]bool{true, true, true, true}, Quiet: 3 * time.Second}, k.batch)
	k.flush()
	return k, d
}

func whole() int { return 1 << 20 }

func TestRecordingsAreDecodedWithoutRejects(t *testing.T) {
	for _, g := range loadGroups(t) {
		t.Run(g.name, func(t *testing.T) {
			k, d := decode(t, g, Options{}, whole, false)
			st := d.Stats()
			for r := range NumReasons {
				if n := st.Rejects[r]; n > 0 && !(r == ValueOutOfRange) {
					t.Errorf("%d rejects: %s", n, r)
				}
			}
			for _, p := range d.TakeProblems() {
				t.Errorf("problem %s at %d: %s", p.Reason, p.Offset, p.Detail)
			}
			if rows, events := d.Waiting(); rows+events != 0 {
				t.Errorf("%d rows and %d events still wait", rows, events)
			}
			t.Log(k.kinds, "expired", st.JoinsExpired, "missed", st.ScopesMissed)
			want := countRaw(t, g)
			for kind, n := range want {
				if k.kinds[kind] != n {
					t.Errorf("%s: got %d, want %d", kind, k.kinds[kind], n)
				}
			}
			checkTree(t, k.spans)
		})
	}
}

// countRaw counts the records of the kinds that map one to one to spans and logs.
func countRaw(t testing.TB, g group) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, data := range g.channels {
		for _, line := range bytes.Split(data, []byte("\n")) {
			if len(line) == 0 {
				continue
			}
			var r struct {
				Type    string
				Columns []string
				Rows    [][]json.Number
			}
			if err := json.Unmarshal(line, &r); err != nil {
				t.Fatal(err)
			}
			col := func(row []json.Number, name string) string { return row[slices.Index(r.Columns, name)].String() }
			switch r.Type {
			case "kernel_event":
				n["kernel"]++
			case "kernel_event_batch":
				n["kernel"] += len(r.Rows)
			case "memcpy_event":
				n["memcpy"]++
			case "memcpy_event_batch":
				n["memcpy"] += len(r.Rows)
			case "memset_event":
				n["memset"]++
			case "scope_begin", "nvtx_marker_event":
				n["scope"]++
			case "graph_launch_event":
				n["graph"]++
			case "synchronization_event_batch":
				n["synchronize"] += len(r.Rows)
			case "scope_event_batch":
				for _, row := range r.Rows {
					if col(row, "event_type") == "0" {
						n["scope"]++
					}
				}
			case "memory_alloc_event_batch":
				for _, row := range r.Rows {
					n[map[string]string{"1": "malloc", "2": "free"}[col(row, "memory_op")]]++
				}
			case "profile_sample_batch":
				for _, row := range r.Rows {
					n[map[string]string{"0": "cuda.pc_sample", "1": "cuda.sass_metric", "2": "isa"}[col(row, "sample_kind")]]++
				}
			case "execution_signature":
				n["cuda.execution_signature"]++
			}
		}
	}
	delete(n, "isa")
	return n
}

// checkTree checks that every span's parent is in its trace and that ids are distinct.
func checkTree(t testing.TB, spans []ptrace.Span) {
	t.Helper()
	type id struct {
		t pcommon.TraceID
		s pcommon.SpanID
	}
	all := map[id]bool{}
	var session ptrace.Span
	for _, s := range spans {
		if _, window := s.Attributes().Get("cuda.session.window"); !window && s.ParentSpanID().IsEmpty() {
			if op, _ := s.Attributes().Get("cuda.operation"); op.Str() == "session" {
				session = s
			}
		}
		k := id{s.TraceID(), s.SpanID()}
		if all[k] {
			t.Errorf("span %v twice: %s", k, s.Name())
		}
		all[k] = true
	}
	for _, s := range spans {
		op, _ := s.Attributes().Get("cuda.operation")
		if s.ParentSpanID().IsEmpty() {
			if op.Str() != "scope" && op.Str() != "session" {
				t.Errorf("%s %q has no parent", op.Str(), s.Name())
			}
			if s == session {
				continue
			}
			_, part := s.Attributes().Get("cuda.scope.part")
			if n := s.Links().Len(); n != 1 {
				t.Errorf("the root %q of a trace has %d links", s.Name(), n)
			} else if to := s.Links().At(0); !part && (to.TraceID() != session.TraceID() || to.SpanID() != session.SpanID()) {
				t.Errorf("the root %q of a trace links to %s, not to the session", s.Name(), to.SpanID())
			} else if !all[id{to.TraceID(), to.SpanID()}] {
				t.Errorf("the root %q of a trace links to a span that is not there", s.Name())
			}
			continue
		}
		if !all[id{s.TraceID(), s.ParentSpanID()}] {
			t.Errorf("parent of %s %q is not in its trace", op.Str(), s.Name())
		}
	}
}

func TestChunksAndRestartsChangeNothing(t *testing.T) {
	for _, g := range loadGroups(t) {
		t.Run(g.name, func(t *testing.T) {
			for i, limit := range []int{10000, 100} {
				opt := Options{MaxSpansPerTrace: limit}
				want, _ := decode(t, g, opt, whole, false)
				seeds := []uint64{0, 1, 2, 3} // odd ones restart
				if os.Getenv("GPUFLIGHT_SOAK") == "" {
					seeds = seeds[2*i : 2*i+2]
				}
				for _, seed := range seeds {
					rng := rand.New(rand.NewPCG(seed, 1))
					got, _ := decode(t, g, opt, func() int { return rng.IntN(8000) }, seed%2 == 1)
					compare(t, fmt.Sprintf("limit %d seed %d", limit, seed), want.sorted(), got.sorted())
				}
			}
		})
	}
}

func compare(t testing.TB, what string, want, got []string) {
	t.Helper()
	if slices.Equal(want, got) {
		return
	}
	in := map[string]int{}
	for _, s := range want {
		in[s]++
	}
	for _, s := range got {
		in[s]--
	}
	n := 0
	for _, s := range slices.Sorted(maps.Keys(in)) {
		if in[s] != 0 {
			if n++; n <= 6 {
				t.Logf("%+d %s", -in[s], s[:min(len(s), 400)])
			}
		}
	}
	t.Errorf("%s: %d items differ", what, n)
}

func TestTracesStayWithinTheirBound(t *testing.T) {
	for _, g := range loadGroups(t) {
		for _, limit := range []int{5, 16, 100, 1000} {
			k, _ := decode(t, g, Options{MaxSpansPerTrace: limit}, whole, false)
			n := map[pcommon.TraceID]int{}
			for _, s := range k.spans {
				n[s.TraceID()]++
			}
			for id, c := range n {
				if c > limit {
					t.Errorf("%s: trace %s has %d spans, the limit is %d", g.name, id, c, limit)
				}
			}
			checkTree(t, k.spans)
		}
	}
}

// TestTheOrderOfKeysDoesNotMatter writes every line again with its keys in the reverse order of the
// alphabet, so that the type, the session and the columns come late.
func TestTheOrderOfKeysDoesNotMatter(t *testing.T) {
	for _, g := range loadGroups(t) {
		want, _ := decode(t, g, Options{}, whole, false)
		turned := g
		for ch, data := range g.channels {
			var out []byte
			for _, line := range bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")) {
				var fields map[string]json.RawMessage
				if err := json.Unmarshal(line, &fields); err != nil {
					continue // an empty channel
				}
				keys := slices.Sorted(maps.Keys(fields))
				slices.Reverse(keys)
				for i, k := range keys {
					out = append(out, "{,"[min(i, 1)])
					out = append(append(append(out, strconv.Quote(k)...), ':'), fields[k]...)
				}
				out = append(out, "}\n"...)
			}
			turned.channels[ch] = out
		}
		got, _ := decode(t, turned, Options{}, whole, false)
		compare(t, g.name, slices.Sorted(slices.Values(withoutUIDs(want.items))), slices.Sorted(slices.Values(withoutUIDs(got.items))))
	}
}

// withoutUIDs removes the ids of log records, which depend on the bytes of their line.
func withoutUIDs(items []string) []string {
	uid := regexp.MustCompile(semconv.LogRecordUID + "=[0-9a-f]{32};")
	for i := range items {
		items[i] = uid.ReplaceAllString(items[i], "")
	}
	return items
}

// TestLogRecordUIDs counts copies. TestChunksAndRestartsChangeNothing shows that decoding a line
// again gives the same ids.
func TestLogRecordUIDs(t *testing.T) {
	total := 0
	for _, g := range loadGroups(t) {
		k, _ := decode(t, g, Options{}, whole, false)
		seen := map[string]string{}
		for _, r := range k.logs {
			uid, ok := r.Attributes().Get(semconv.LogRecordUID)
			require.True(t, ok, "%s: %s", g.name, logText(r))
			require.Len(t, uid.Str(), 32)
			if first, ok := seen[uid.Str()]; ok {
				require.Equal(t, first, logText(r), "%s: one id for two records", g.name)
			}
			seen[uid.Str()] = logText(r)
		}
		assert.Len(t, seen, len(k.logs), g.name)
		total += len(seen)
	}
	assert.Equal(t, 34_546, total)
}
