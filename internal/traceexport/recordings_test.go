// SPDX-License-Identifier: Apache-2.0

package traceexport

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/rows"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

var recordings = [...]string{"httpserver", "pytorch", "vectoradd"}

// load returns a store with a recording of examples/recordings, and its sessions.
func load(tb testing.TB, name string) (*storetest.Memory, []store.SessionInfo) {
	tb.Helper()
	f, err := os.Open(filepath.Join("../../examples/recordings", name+".otlp.jsonl.gz"))
	require.NoError(tb, err)
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	require.NoError(tb, err)
	m := storetest.NewMemory()
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 64<<20)
	var d rows.Decoder
	for lines.Scan() {
		line := lines.Bytes()
		var batches []*store.Batch
		switch {
		case bytes.HasPrefix(line, []byte(`{"resourceSpans"`)):
			td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)
			require.NoError(tb, err)
			batches = d.Traces("", td)
		case bytes.HasPrefix(line, []byte(`{"resourceLogs"`)):
			ld, err := (&plog.JSONUnmarshaler{}).UnmarshalLogs(line)
			require.NoError(tb, err)
			batches = d.Logs("", ld)
		default:
			md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(line)
			require.NoError(tb, err)
			batches = d.Metrics("", md)
		}
		_, err := m.Write(tb.Context(), batches)
		require.NoError(tb, err)
	}
	require.NoError(tb, lines.Err())
	return m, sessions(tb, m)
}

func sessions(tb testing.TB, r store.Reader) []store.SessionInfo {
	list, err := r.Sessions(tb.Context(), store.SessionQuery{})
	require.NoError(tb, err)
	return list
}

// each calls f for the sessions of all recordings, and for generated sessions.
func each(t *testing.T, f func(t *testing.T, r store.Reader, s *store.SessionInfo)) {
	for _, name := range recordings {
		t.Run(name, func(t *testing.T) {
			m, list := load(t, name)
			for i := range list {
				f(t, m, &list[i])
			}
		})
	}
	for _, hostile := range []bool{false, true} {
		name := "generated"
		if hostile {
			name = "hostile"
		}
		t.Run(name, func(t *testing.T) {
			m := storetest.NewMemory()
			_, err := m.Write(t.Context(), storetest.Generate(7, storetest.Options{Projects: 1, Sessions: 3, Ops: 400, Hostile: hostile}))
			require.NoError(t, err)
			for i, list := 0, sessions(t, m); i < len(list); i++ {
				f(t, m, &list[i])
			}
		})
	}
}

// sums counts operations by name.
type sums map[string]*total

type total struct {
	Count, Ns int64
}

func (s sums) add(name string, ns int64) {
	if s[name] == nil {
		s[name] = &total{}
	}
	s[name].Count++
	s[name].Ns += ns
}

// wanted returns the sums of the store, by operation and by kernel.
func wanted(t *testing.T, r store.Reader, s *store.SessionInfo) (byOperation map[store.Operation]*total, kernels sums) {
	byOperation = map[store.Operation]*total{}
	q := store.OpQuery{Project: s.Project, Session: s.ID, Limit: 20_000}
	page, err := r.Ops(t.Context(), q)
	require.NoError(t, err)
	require.False(t, page.More)
	for i := range page.Rows {
		o := &page.Rows[i]
		k := o.ShapeRef.Operation
		if byOperation[k] == nil {
			byOperation[k] = &total{}
		}
		byOperation[k].Count++
		byOperation[k].Ns += max(0, o.EndNs-o.StartNs)
	}
	for k, n := range s.Operations {
		require.Equal(t, n, byOperation[k].Count)
	}
	kernels = sums{}
	stats, err := r.Kernels(t.Context(), store.KernelQuery{Project: s.Project, Session: s.ID, Group: store.GroupName, Limit: 10_000})
	require.NoError(t, err)
	for _, k := range stats {
		kernels[k.Name] = &total{k.Count, k.SumNs}
	}
	return byOperation, kernels
}

func spansOf(t *testing.T, r store.Reader, s *store.SessionInfo) []store.SpanRow {
	spans, err := r.Spans(t.Context(), store.SpanQuery{Project: s.Project, Session: s.ID, Limit: 20_000})
	require.NoError(t, err)
	return spans
}
