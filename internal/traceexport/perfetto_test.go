// SPDX-License-Identifier: Apache-2.0

package traceexport

import (
	"bytes"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

// fields is a decoded message. test/export decodes with Perfetto's own classes.
type fields map[protowire.Number][]any

func decode(t *testing.T, b []byte) fields {
	f := fields{}
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		require.Positive(t, n)
		b = b[n:]
		switch kind {
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			require.Positive(t, n)
			f[field], b = append(f[field], v), b[n:]
		case protowire.Fixed64Type:
			v, n := protowire.ConsumeFixed64(b)
			require.Positive(t, n)
			f[field], b = append(f[field], math.Float64frombits(v)), b[n:]
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			require.Positive(t, n)
			f[field], b = append(f[field], v), b[n:]
		default:
			require.Failf(t, "unknown wire type", "%d", kind)
		}
	}
	return f
}

func (f fields) number(field protowire.Number) uint64 {
	if len(f[field]) == 0 {
		return 0
	}
	return f[field][0].(uint64)
}

func (f fields) text(field protowire.Number) string {
	if len(f[field]) == 0 {
		return ""
	}
	return string(f[field][0].([]byte))
}

func (f fields) inner(t *testing.T, field protowire.Number) (list []fields) {
	for _, b := range f[field] {
		list = append(list, decode(t, b.([]byte)))
	}
	return list
}

// perfettoTrace is what a trace has, read as Perfetto reads it.
type perfettoTrace struct {
	byStage   map[string]*total
	kernels   sums
	slices    map[uint64][]traceSlice // by track
	tracks    map[uint64]string
	instants  int
	counters  int
	submitted int
	cleared   int
}

type traceSlice struct {
	start, end int64
	name       string
}

func readPerfetto(t *testing.T, b []byte) *perfettoTrace {
	p := &perfettoTrace{byStage: map[string]*total{}, kernels: sums{}, slices: map[uint64][]traceSlice{}, tracks: map[uint64]string{}}
	var names, specs, kernels map[uint64]string
	var contexts map[uint64]bool
	events := map[uint64]bool{}
	submitted := map[uint64]bool{}
	for _, packet := range decode(t, b).inner(t, fieldPacket) {
		require.EqualValues(t, 1, packet.number(fieldSequence))
		if packet.number(fieldSequenceFlags)&stateCleared != 0 {
			p.cleared++
			names, specs, kernels, contexts = map[uint64]string{}, map[uint64]string{}, map[uint64]string{}, map[uint64]bool{}
		}
		require.NotNil(t, names, "the first packet begins the sequence")
		for _, in := range packet.inner(t, fieldInterned) {
			define := func(field protowire.Number, into map[uint64]string) {
				for _, x := range in.inner(t, field) {
					id := x.number(1)
					require.NotZero(t, id)
					require.NotContains(t, into, id)
					into[id] = x.text(2)
				}
			}
			define(internedEventNames, names)
			define(internedSpecifications, specs)
			define(internedKernels, kernels)
			for _, x := range in.inner(t, internedContexts) {
				contexts[x.number(1)] = true
			}
		}
		at := int64(packet.number(fieldTimestamp))
		for _, e := range packet.inner(t, fieldRenderStage) {
			dur := int64(e.number(2))
			require.False(t, events[e.number(1)])
			events[e.number(1)] = true
			require.Contains(t, specs, e.number(13))
			require.Contains(t, specs, e.number(14))
			require.Contains(t, contexts, e.number(5))
			require.Contains(t, names, e.number(20))
			stage := specs[e.number(14)]
			if p.byStage[stage] == nil {
				p.byStage[stage] = &total{}
			}
			p.byStage[stage].Count++
			p.byStage[stage].Ns += dur
			if stage == "Kernel" {
				require.Contains(t, kernels, e.number(19))
				p.kernels.add(names[e.number(20)], dur)
			}
		}
		for _, e := range packet.inner(t, fieldTrackEvent) {
			track := e.number(eventTrack)
			require.Contains(t, p.tracks, track)
			switch e.number(eventType) {
			case typeBegin:
				p.slices[track] = append(p.slices[track], traceSlice{start: at, name: names[e.number(eventName)]})
				for _, c := range e.inner(t, eventGPU) {
					submitted[c.number(1)] = true
				}
			case typeEnd: // follows its begin in the file
				x := &p.slices[track][len(p.slices[track])-1]
				require.Zero(t, x.end)
				x.end = at
			case typeInstant:
				p.instants++
			case typeCounter:
				p.counters++
			}
		}
		for _, d := range packet.inner(t, fieldTrackDescriptor) {
			require.NotContains(t, p.tracks, d.number(1))
			p.tracks[d.number(1)] = d.text(2)
		}
	}
	for id := range submitted {
		require.True(t, events[id], "a launch names an event that exists")
	}
	p.submitted = len(submitted)
	return p
}

func TestPerfetto_EqualsStore(t *testing.T) {
	each(t, func(t *testing.T, r store.Reader, s *store.SessionInfo) {
		byOperation, kernels := wanted(t, r, s)
		var out bytes.Buffer
		require.NoError(t, Perfetto(t.Context(), r, Query{Project: s.Project, Session: s.ID}, &out))
		p := readPerfetto(t, out.Bytes())
		for k, stage := range map[store.Operation]string{store.OpKernel: "Kernel", store.OpCopy: "Memory copy", store.OpSet: "Memory set", store.OpGraph: "Graph launch"} {
			assert.Equal(t, byOperation[k], p.byStage[stage], stage)
		}
		assert.Equal(t, kernels, p.kernels)
		slices := 0
		for track, list := range p.slices {
			slices += len(list)
			assertNested(t, p.tracks[track], list, func(x traceSlice) (int64, int64) { return x.start, x.end })
		}
		waits := 0
		for _, k := range []store.Operation{store.OpSync, store.OpAlloc, store.OpFree} {
			if n := byOperation[k]; n != nil {
				waits += int(n.Count)
			}
		}
		assert.Equal(t, len(spansOf(t, r, s))+waits+p.submitted, slices)
		assert.Equal(t, 1, p.cleared)
	})
}

func TestPerfetto_InternedStateIsBounded(t *testing.T) {
	m := storetest.NewMemory()
	b := &store.Batch{Session: "a", Shapes: make([]store.Shape, 1), Lanes: []store.Lane{{}, {Device: "d", Key: 1}}}
	const n, limit = 3000, 1000
	for i := 1; i <= n; i++ {
		name := string(rune('a'+i%26)) + spanText(store.SpanID(i))
		b.Shapes = append(b.Shapes, store.Shape{Key: uint64(i), Operation: store.OpKernel, Name: name})
		b.Ops = append(b.Ops, store.Op{StartNs: int64(i), EndNs: int64(i) + 1, Span: store.SpanID(i), Lane: 1, Shape: uint32(i)})
	}
	_, err := m.Write(t.Context(), []*store.Batch{b})
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, writePerfetto(t.Context(), m, Query{Session: "a"}, &out, limit))
	p := readPerfetto(t, out.Bytes())
	assert.EqualValues(t, n, p.byStage["Kernel"].Count)
	assert.Greater(t, p.cleared, 1)
}

func TestExport_Interval(t *testing.T) {
	m, list := load(t, "pytorch")
	s := &list[0]
	from := s.FirstNs + (s.LastNs-s.FirstNs)/3
	to := from + (s.LastNs-s.FirstNs)/3
	all, err := m.Ops(t.Context(), store.OpQuery{Session: s.ID, Limit: 20_000})
	require.NoError(t, err)
	want := 0
	for i := range all.Rows {
		if o := &all.Rows[i]; o.StartNs < to && (o.StartNs >= from || o.EndNs > from) && o.ShapeRef.Operation == store.OpKernel {
			want++
		}
	}
	require.Positive(t, want)
	var out bytes.Buffer
	require.NoError(t, Perfetto(t.Context(), m, Query{Session: s.ID, From: from, To: to}, &out))
	assert.EqualValues(t, want, readPerfetto(t, out.Bytes()).byStage["Kernel"].Count)
	kernels := 0
	for _, e := range exportChrome(t, m, Query{Session: s.ID, From: from, To: to}).TraceEvents {
		if e.Cat == "kernel" {
			kernels++
		}
	}
	assert.Equal(t, want, kernels)
	p := exportProfile(t, m, Query{Session: s.ID, From: from, To: to})
	launches := int64(0)
	for _, x := range p.Sample {
		launches += x.Value[0]
	}
	assert.EqualValues(t, want, launches)
}

func TestExport_Errors(t *testing.T) {
	m, list := load(t, "vectoradd")
	formats := map[string]func(q Query, w io.Writer) error{
		"perfetto": func(q Query, w io.Writer) error { return Perfetto(t.Context(), m, q, w) },
		"chrome":   func(q Query, w io.Writer) error { return Chrome(t.Context(), m, q, w) },
		"pprof":    func(q Query, w io.Writer) error { return Profile(t.Context(), m, q, w) },
	}
	for name, export := range formats {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, export(Query{Session: "absent"}, io.Discard), store.ErrNotFound)
			require.ErrorIs(t, export(Query{Session: list[0].ID, From: 2, To: 1}, io.Discard), store.ErrInvalid)
			require.ErrorIs(t, export(Query{Session: list[0].ID}, full{}), errFull)
		})
	}
}

// full is a destination without space.
type full struct{}

var errFull = io.ErrShortWrite

func (full) Write([]byte) (int, error) { return 0, errFull }
