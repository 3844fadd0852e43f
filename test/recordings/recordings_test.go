// SPDX-License-Identifier: Apache-2.0

//go:build linux

package recordings_test

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver"
)

// folders returns the recordings. Each is read separately, because the synthetic ones share a
// session.
func folders(t *testing.T) []string {
	t.Helper()
	root := process.Recordings(t)
	entries, err := os.ReadDir(root)
	require.NoError(t, err)
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, filepath.Join(root, e.Name()))
		}
	}
	require.NotEmpty(t, out)
	return out
}

// read runs the receiver in this process over dir until want items have arrived and no more data
// arrives.
func read(t *testing.T, dir string, settings map[string]any, want testsink.Counts) *testsink.Store {
	t.Helper()
	factory := gpuflogreceiver.NewFactory()
	cfg := factory.CreateDefaultConfig()
	all := map[string]any{"include": []any{dir}, "poll_interval": "50ms"}
	maps.Copy(all, settings)
	require.NoError(t, confmap.NewFromStringMap(all).Unmarshal(cfg))

	store := testsink.NewStore()
	set := receivertest.NewNopSettings(factory.Type())
	traces, err := factory.CreateTraces(t.Context(), set, cfg, store.Traces())
	require.NoError(t, err)
	logs, err := factory.CreateLogs(t.Context(), set, cfg, store.Logs())
	require.NoError(t, err)
	metrics, err := factory.CreateMetrics(t.Context(), set, cfg, store.Metrics())
	require.NoError(t, err)
	components := []component.Component{traces, logs, metrics}
	for _, c := range components {
		require.NoError(t, c.Start(t.Context(), componenttest.NewNopHost()))
	}
	// want does not include the spans of sessions and repeated spans, so it is a minimum. The
	// comparison finds surplus items.
	store.Settle(time.Second, 60*time.Second, func() bool {
		have := store.Distinct()
		return have.Spans >= want.Spans && have.Logs >= want.Logs && have.Points >= want.Points
	})
	for _, c := range components {
		require.NoError(t, c.Shutdown(t.Context()))
	}
	return store
}

// expected returns the minimum number of items for these sessions.
func expected(sessions map[string]*session) testsink.Counts {
	var c testsink.Counts
	for _, s := range sessions {
		c.Spans += len(s.work) + len(s.scopes)
		for event, n := range s.logs {
			if event != "cuda.pc_sample" && event != "cuda.sass_metric" { // equal rows are one distinct record
				c.Logs += n
			}
		}
		c.Points += len(s.devices)
	}
	return c
}

func TestRecordings_Telemetry(t *testing.T) {
	for _, dir := range folders(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			sessions := recount(t, dir)
			store := read(t, dir, nil, expected(sessions))
			checkTree(t, store.Spans(), 10000)
			check(t, sessions, store)
		})
	}
}

func TestRecordings_ReadTwice(t *testing.T) {
	for _, dir := range folders(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			want := expected(recount(t, dir))
			first, second := read(t, dir, nil, want), read(t, dir, nil, want)
			assert.Equal(t, spanDigests(first), spanDigests(second))
			assert.Equal(t, logDigests(first), logDigests(second))
			assert.Equal(t, pointDigests(first), pointDigests(second))
		})
	}
}

func TestRecordings_TraceSize(t *testing.T) {
	const limit = 100
	for _, dir := range folders(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			sessions := recount(t, dir)
			settings := map[string]any{"max_spans_per_trace": limit}
			store := read(t, dir, settings, expected(sessions))
			checkTree(t, store.Spans(), limit)
			check(t, sessions, store)
			again := read(t, dir, settings, expected(sessions))
			assert.Equal(t, spanDigests(store), spanDigests(again))
		})
	}
}

// TestRecordings_Binary sends one recording through the distribution and OTLP. The output must
// equal that of the receiver in this process, so the other tests cover the binary as well.
func TestRecordings_Binary(t *testing.T) {
	process.Collector.Find(t)
	for _, name := range []string{"c3-h200-minigpt", "a2-h200", "golden-c3-rotated"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(process.Recordings(t), name)
			want := read(t, dir, nil, expected(recount(t, dir)))

			got := testsink.NewStore()
			server, err := testsink.Listen(got, "")
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, server.Close()) })
			p := process.CollectorConfig{Include: []string{dir}, Endpoint: server.Endpoint()}.Start(t)
			got.Settle(time.Second, time.Minute, func() bool { return got.Distinct() == want.Distinct() })
			p.Stop(20 * time.Second)
			assert.Equal(t, spanDigests(want), spanDigests(got))
			assert.Equal(t, logDigests(want), logDigests(got))
			assert.Equal(t, pointDigests(want), pointDigests(got))
		})
	}
}

// check compares everything in store with the raw lines.
func check(t *testing.T, sessions map[string]*session, store *testsink.Store) {
	t.Helper()
	spans := store.Spans()
	byWork := map[string][]testsink.Span{}
	var scopes []testsink.Span
	for _, sp := range spans {
		require.Contains(t, sessions, sp.Session, "span of a session that is not in the lines")
		switch op := sp.Attrs["cuda.operation"]; {
		case repeated(sp) || op == "session": // checked by checkTree
		case op == "scope":
			scopes = append(scopes, sp)
		default:
			key := workKey(sp.Session, fmt.Sprint(op), int64(sp.StartNs), int64(sp.EndNs), sp.Attrs["cuda.correlation.id"])
			byWork[key] = append(byWork[key], sp)
		}
	}

	// Compare numbers and sums by session and operation.
	counted, wanted := map[string]int64{}, map[string]int64{}
	for _, sp := range spans {
		op := fmt.Sprint(sp.Attrs["cuda.operation"])
		if repeated(sp) || op == "session" {
			continue
		}
		if op == "scope" {
			op += " " + fmt.Sprint(sp.Attrs["cuda.scope.source"])
		}
		counted[sp.Session+" "+op]++
		counted[sp.Session+" "+op+" ns"] += int64(sp.EndNs - sp.StartNs)
		for _, key := range []string{"cuda.memcpy.size", "cuda.memset.size", "cuda.memory.size"} {
			if v, ok := sp.Attrs[key]; ok {
				counted[sp.Session+" "+op+" "+key] += v.(int64)
			}
		}
	}
	for _, s := range sessions {
		for _, w := range s.work {
			op := w.op
			if op == "nvtx" {
				op = "scope nvtx"
			}
			wanted[s.id+" "+op]++
			wanted[s.id+" "+op+" ns"] += w.end - w.start
			if n, ok := w.raw.num("bytes"); ok {
				size := map[string]string{"memcpy": "cuda.memcpy.size", "memset": "cuda.memset.size"}[op]
				wanted[s.id+" "+op+" "+cmp.Or(size, "cuda.memory.size")] += n
			}
		}
		for _, sc := range s.scopes {
			wanted[s.id+" scope gpuflight"]++
			wanted[s.id+" scope gpuflight ns"] += sc.end - sc.start
		}
	}
	require.Equal(t, wanted, counted, "numbers of spans, sums of durations and bytes by session and operation")

	// Compare each span with all its data.
	tree := index(spans)
	wrong := 0
	for _, s := range sessions {
		for _, w := range s.work {
			if w.op == "nvtx" {
				continue
			}
			key := workKey(s.id, w.op, w.start, w.end, correlation(w.raw))
			require.NotEmpty(t, byWork[key], "no span for %s of %s", key, w.name)
			sp := byWork[key][0]
			byWork[key] = byWork[key][1:]
			attributes := s.attributes(w)
			if name := scopeName(tree, w, sp); name != "" {
				attributes["cuda.scope.name"] = name
			}
			ok := assert.Equal(t, attributes, sp.Attrs, "attributes of %s %s", w.op, w.name)
			ok = assert.Equal(t, spanName(w, sp), sp.Name) && ok
			ok = s.checkParent(t, tree, w, sp) && ok
			if !ok {
				if wrong++; wrong == 5 {
					t.Fatal("too many wrong spans")
				}
			}
		}
		s.checkScopes(t, tree, scopes)
		s.checkResource(t, spans)
	}
	checkLogs(t, sessions, store, tree)
	checkPoints(t, sessions, store)
	checkCounters(t, sessions, store)
}

// scopeName returns the name of the innermost scope: that of the line, or otherwise that of the
// parent, which checkParent checks.
func scopeName(tr tree, w *work, sp testsink.Span) string {
	if w.pathKnown {
		return w.path[strings.LastIndexByte(w.path, '|')+1:]
	}
	if parent, ok := tr.parent(sp); ok && parent.Attrs["cuda.operation"] == "scope" {
		return parent.Name
	}
	return ""
}

func repeated(sp testsink.Span) bool { _, ok := sp.Attrs["cuda.scope.part"]; return ok }

func workKey(session, op string, start, end int64, corr any) string {
	return fmt.Sprintf("%s %s %d-%d corr %v", session, op, start, end, corr)
}

func correlation(r record) any {
	if n := r.int("corr_id"); n != 0 {
		return n
	}
	return nil
}

// tree finds spans by their ids.
type tree map[testsink.SpanKey]testsink.Span

func index(spans []testsink.Span) tree {
	t := tree{}
	for _, sp := range spans {
		t[sp.SpanKey] = sp
	}
	return t
}

func (tr tree) parent(sp testsink.Span) (testsink.Span, bool) {
	p, ok := tr[testsink.SpanKey{Trace: sp.Trace, Span: sp.Parent}]
	return p, ok
}

// path returns the names of the scopes above sp in the recorder's user_scope.
func (tr tree) path(sp testsink.Span) string {
	var names []string
	for p, ok := tr.parent(sp); ok; p, ok = tr.parent(p) {
		if p.Attrs["cuda.operation"] == "scope" && p.Attrs["cuda.scope.source"] != "nvtx" {
			names = append(names, p.Name)
		}
	}
	slices.Reverse(names)
	return strings.Join(names, "|")
}

// checkParent compares the parent of a span with the scope path and the scope times of the lines.
func (s *session) checkParent(t *testing.T, tr tree, w *work, sp testsink.Span) bool {
	t.Helper()
	parent, ok := tr.parent(sp)
	if !assert.True(t, ok, "%s %s has no parent in its trace", w.op, sp.SpanKey) {
		return false
	}
	if !w.pathKnown {
		return true
	}
	if w.path == "" {
		return assert.Equal(t, "session", parent.Attrs["cuda.operation"], "%s outside every scope", sp.Name)
	}
	// A2 has the time of the launch, which determines the instance. Batches have only the start on
	// the device. A queue may delay it beyond the scope's end, so any earlier instance may be
	// right.
	at, launched := w.raw.num("api_start_ns")
	if !launched {
		at = w.start
	}
	var begun, within *scope
	for _, sc := range s.scopes {
		if sc.path != w.path || sc.start > at {
			continue
		}
		begun = sc
		if at < sc.end {
			within = sc
		}
	}
	if begun == nil {
		// Times in the lines contradict the path. At least the name must be present.
		got := tr.path(sp)
		return got == w.path || assert.Equal(t, w.path, sp.Attrs["cuda.scope.path"], "scope path of %s", sp.Name)
	}
	ok = assert.Equal(t, w.path, tr.path(sp), "scopes above %s %s", w.op, sp.Name)
	ok = assert.LessOrEqual(t, parent.StartNs, sp.StartNs, "%s starts before its scope", sp.Name) && ok
	if launched && within != nil && !repeated(parent) {
		ok = assert.Equal(t, [2]int64{within.start, within.end}, [2]int64{int64(parent.StartNs), int64(parent.EndNs)},
			"the scope instance around %s", sp.Name) && ok
	}
	return ok
}

func (s *session) checkScopes(t *testing.T, tr tree, spans []testsink.Span) {
	t.Helper()
	have := map[string]testsink.Span{}
	for _, sp := range spans {
		if sp.Session == s.id {
			have[fmt.Sprintf("%s %s %d-%d", sp.Attrs["cuda.scope.source"], sp.Name, sp.StartNs, sp.EndNs)] = sp
		}
	}
	for _, sc := range s.scopes {
		sp, ok := have[fmt.Sprintf("gpuflight %s %d-%d", sc.name, sc.start, sc.end)]
		if !assert.True(t, ok, "no span for scope %s at %d", sc.path, sc.start) {
			continue
		}
		want := map[string]any{
			"cuda.operation": "scope", "cuda.scope.source": "gpuflight", "cuda.scope.depth": sc.depth,
		}
		set := func(key string, v int64) {
			if v != 0 {
				want[key] = v
			}
		}
		set("cuda.scope.instance.id", sc.instance)
		set("cuda.scope.repeat", sc.repeat)
		set("cuda.scope.warmup", sc.warmup)
		if sc.tag != "" {
			want["cuda.scope.tag"] = sc.tag
		}
		assert.Equal(t, want, sp.Attrs, "attributes of scope %s", sc.path)
		above := ""
		if i := strings.LastIndexByte(sc.path, '|'); i >= 0 {
			above = sc.path[:i]
		}
		assert.Equal(t, above, tr.path(sp), "scopes above scope %s", sc.path)
	}
	for _, w := range s.work {
		if w.op != "nvtx" {
			continue
		}
		sp, ok := have[fmt.Sprintf("nvtx %s %d-%d", w.raw.str("name"), w.start, w.end)]
		if assert.True(t, ok, "no span for NVTX range %s", w.raw.str("name")) {
			want := map[string]any{
				"cuda.operation": "scope", "cuda.scope.source": "nvtx",
				"cuda.scope.instance.id": w.raw.int("marker_id"),
			}
			if d := w.raw.str("domain"); d != "" {
				want["cuda.nvtx.domain"] = d
			}
			assert.Equal(t, want, sp.Attrs)
		}
	}
}

func (s *session) checkResource(t *testing.T, spans []testsink.Span) {
	t.Helper()
	want := s.resource()
	for _, sp := range spans {
		if sp.Session == s.id {
			require.Equal(t, want, sp.Resource, "resource of %s", sp.Name)
		}
	}
}

// checkTree checks properties of every tree of spans, independent of the lines.
func checkTree(t *testing.T, spans []testsink.Span, limit int) {
	t.Helper()
	all := index(spans)
	traces := map[pcommon.TraceID][]testsink.Span{}
	for _, sp := range spans {
		require.Equal(t, 1, sp.Count, "%v span %s (%s) came more than once", sp.Attrs["cuda.operation"], sp.SpanKey, sp.Name)
		traces[sp.Trace] = append(traces[sp.Trace], sp)
	}
	for id, members := range traces {
		assert.LessOrEqual(t, len(members), limit, "spans in trace %s", id)
		roots := 0
		for _, sp := range members {
			op := sp.Attrs["cuda.operation"]
			groups := op == "scope" || op == "session"
			if sp.Parent.IsEmpty() {
				roots++
				assert.True(t, groups, "%v span %s is a root", op, sp.Name)
			} else {
				p, ok := all.parent(sp)
				if assert.True(t, ok, "parent of %s %s is not in its trace", op, sp.SpanKey) {
					pop := p.Attrs["cuda.operation"]
					assert.True(t, pop == "scope" || pop == "session", "parent of %s is a %v", sp.Name, pop)
				}
			}
			if !repeated(sp) {
				continue
			}
			assert.True(t, groups, "only scopes and sessions are repeated, not %v", op)
			assert.GreaterOrEqual(t, sp.Attrs["cuda.scope.part"], int64(0))
			if assert.Len(t, sp.Links, 1, "a repeated %v links to its first", op) {
				first, ok := all[sp.Links[0]]
				assert.True(t, ok, "the first of repeated %v %s is missing", op, sp.Name)
				assert.Equal(t, first.Name, sp.Name)
				assert.NotEqual(t, first.Trace, sp.Trace)
				assert.NotContains(t, first.Attrs, "cuda.scope.part")
			}
		}
		assert.Equal(t, 1, roots, "roots of trace %s with %d spans", id, len(members))
	}
}

func spanDigests(s *testsink.Store) map[string]testsink.Digest {
	out := map[string]testsink.Digest{}
	for _, sp := range s.Spans() {
		out[fmt.Sprintf("%s %s %s parent %s", sp.SpanKey, sp.Attrs["cuda.operation"], sp.Name, sp.Parent)] = sp.Digest
	}
	return out
}

func logDigests(s *testsink.Store) map[testsink.Digest]int {
	out := map[testsink.Digest]int{}
	for _, l := range s.LogRecords() {
		out[l.Digest] = l.Count
	}
	return out
}

func pointDigests(s *testsink.Store) map[testsink.Digest]int {
	out := map[testsink.Digest]int{}
	for _, p := range s.Points() {
		out[p.Digest] = p.Count
	}
	return out
}

// dims reads "(x,y,z)".
func dims(s string) []any {
	parts := strings.Split(strings.Trim(s, "()"), ",")
	if len(parts) != 3 {
		return nil
	}
	var out []any
	for _, p := range parts {
		n, err := strconv.ParseInt(strings.TrimSpace(p), 10, 64)
		if err != nil {
			return nil
		}
		out = append(out, n)
	}
	return out
}
