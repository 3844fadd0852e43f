// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
	"github.com/gpuflight/gpuflight/semconv"
)

// checkPath checks that parts are a partition of the path, and that work lies inside its operation.
func checkPath(t *testing.T, c *CriticalPath, ops []store.OpRow) {
	t.Helper()
	byID := map[store.SpanID]*store.OpRow{}
	for i := range ops {
		byID[ops[i].Span] = &ops[i]
	}
	at := c.FromNs
	var sums [numPathKinds]int64
	for i := range c.Parts {
		p := &c.Parts[i]
		require.Equal(t, at, p.StartNs, "part %d", i)
		require.Greater(t, p.EndNs, p.StartNs, "part %d", i)
		sums[p.Kind] += p.EndNs - p.StartNs
		at = p.EndNs
		if p.Kind >= PathCompute && p.Kind <= PathCopy {
			require.Len(t, p.Spans, 1)
			o := byID[p.Spans[0].Span]
			require.NotNil(t, o)
			require.True(t, o.StartNs <= p.StartNs && p.EndNs <= o.EndNs, "%+v outside %+v", p, o.Op)
		}
	}
	require.Equal(t, c.ToNs, at)
	require.Equal(t, c.Sums, sums)
	var sum int64
	for _, ns := range sums {
		sum += ns
	}
	require.Equal(t, c.ToNs-c.FromNs, sum)
}

func TestStepPath_RandomTimelines(t *testing.T) {
	for seed := range uint64(300) {
		r := random(seed)
		rng := rand.New(rand.NewPCG(seed, 3))
		for range 5 {
			from := rng.Int64N(2000) * µs
			to := from + 1 + rng.Int64N(500)*µs
			if rng.IntN(2) == 0 && len(r.ops) > 0 { // a step ends where an operation starts
				to = max(r.ops[rng.IntN(len(r.ops))].StartNs, from+1)
			}
			device := AnyDevice
			if len(r.ops) > 0 && rng.IntN(2) == 0 {
				device = r.ops[rng.IntN(len(r.ops))].LaneRef.Device
			}
			c, err := StepPath(t.Context(), FromReader(r, "", "s"), from, to, device)
			require.NoError(t, err)
			checkPath(t, c, r.ops)
		}
	}
}

// TestSpanPath_RandomTraces checks the sum over random trees of spans in several sessions, whose spans may
// overlap and leave their parents.
func TestSpanPath_RandomTraces(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 4))
		m := storetest.NewMemory()
		trace := store.TraceID{15: byte(seed + 1)}
		var ops []store.OpRow
		for s := range 3 {
			b := &store.Batch{
				Session: fmt.Sprint("s", s),
				Shapes:  []store.Shape{{}, {Key: 1, Operation: store.OpKernel, Name: "k"}, {Key: 2, Operation: store.OpSync, Name: "cudaDeviceSynchronize"}},
				Places:  []store.Place{{}, {Key: 1, Trace: trace}},
				Lanes:   []store.Lane{{}, {Key: 1, Device: "GPU", Stream: store.Some(7)}},
			}
			for i := range 1 + rng.IntN(12) {
				start := 1 + rng.Int64N(1000)
				b.Spans = append(b.Spans, store.Span{
					StartNs: start, EndNs: start + rng.Int64N(500), Trace: trace, Span: store.SpanID(100*s + i + 1),
					Parent: store.SpanID(rng.IntN(300)), Kind: uint8(1 + rng.IntN(3)), Name: "span",
				})
			}
			for i := range rng.IntN(20) {
				start := 1 + rng.Int64N(1500)
				o := store.Op{StartNs: start, EndNs: start + rng.Int64N(60), Span: store.SpanID(10_000*(s+1) + i), Lane: 1, Shape: uint32(1 + rng.IntN(2)), Place: 1}
				if rng.IntN(2) == 0 {
					launch := start - rng.Int64N(100)
					o.LaunchStartNs, o.LaunchEndNs = store.Some(max(launch, 0)), store.Some(max(launch, 0)+rng.Int64N(120))
				}
				b.Ops = append(b.Ops, o)
				ops = append(ops, store.OpRow{Op: o})
			}
			_, err := m.Write(t.Context(), []*store.Batch{b})
			require.NoError(t, err)
		}
		root := store.SpanRow{Span: store.Span{StartNs: 1, EndNs: 1 + rng.Int64N(2000), Trace: trace, Span: store.SpanID(1 + rng.IntN(3)*100)}}
		c, err := SpanPath(t.Context(), m, "", "s0", &root, func([]byte) []SpanLink { return nil })
		require.NoError(t, err)
		checkPath(t, c, ops)
	}
}

// texts returns parts as short texts.
func texts(c *CriticalPath) (list []string) {
	for i := range c.Parts {
		p := &c.Parts[i]
		list = append(list, fmt.Sprintf("%s %s %d", p.Kind, p.Name, (p.EndNs-p.StartNs)/µs))
	}
	return list
}

func TestStepPath_Wait(t *testing.T) {
	p := newProgram()
	for i := range 3 {
		p.scope(fmt.Sprint("step ", i), func() {
			p.launch("a", 100*µs)
			p.launch("b", 50*µs)
			p.sync()
			p.host += 200 * µs
		})
	}
	r := p.reader()
	c, err := StepPath(t.Context(), FromReader(r, "", "s"), r.ops[0].StartNs, r.ops[3].StartNs, "GPU-1")
	require.NoError(t, err)
	checkPath(t, c, r.ops)
	// The second kernel had been launched long before. The next step began late, because the host ran
	// other code after its wait.
	assert.Equal(t, []string{"compute a 100", "compute b 50", "sync cudaStreamSynchronize 5", "host step 0 200", "launch a 5", "latency a 3"}, texts(c))
	assert.Equal(t, []Ref{{r.ops[1].Span, r.ops[1].StartNs, "cudaStreamSynchronize"}, {r.ops[2].Span, r.ops[2].StartNs, "b"}}, c.Parts[2].Spans)
	assert.Equal(t, r.spans[0].Span.Span, c.Parts[3].Spans[0].Span)
}

func TestStepPath_LaunchBound(t *testing.T) {
	p := newProgram()
	for range 5 {
		p.launch("tiny", 1*µs)
		p.host += 10 * µs
	}
	r := p.reader()
	c, err := StepPath(t.Context(), FromReader(r, "", "s"), r.ops[1].StartNs, r.ops[3].StartNs, "GPU-1")
	require.NoError(t, err)
	checkPath(t, c, r.ops)
	assert.Zero(t, c.Sums[PathCompute], "the kernels delayed nothing")
	assert.Equal(t, 27*µs, c.Sums[Launch])
	assert.Equal(t, 3*µs, c.Sums[Latency])
}

// TestStepPath_PartlyKnown has launches at unknown times between two known ones.
func TestStepPath_PartlyKnown(t *testing.T) {
	p := newProgram()
	forget := func(row *store.OpRow) { row.LaunchStartNs, row.LaunchEndNs = store.Int{}, store.Int{} }
	p.launch("first", 1*µs)
	for range 30 {
		p.host += 10 * µs
		forget(p.work(store.OpKernel, "tiny", 1*µs))
	}
	last := p.host + 3*µs // start of the last of them
	p.host += 200 * µs
	p.launch("next", 1*µs)
	r := p.reader()
	c, err := StepPath(t.Context(), FromReader(r, "", "s"), r.ops[0].StartNs, r.ops[31].StartNs, "GPU-1")
	require.NoError(t, err)
	checkPath(t, c, r.ops)
	assert.Equal(t, []string{"unknown  450", "host  197", "launch next 5", "latency next 3"}, texts(c))
	assert.Equal(t, last, c.Parts[0].EndNs)
	assert.True(t, c.Parts[0].Assumed)
	assert.False(t, c.Parts[1].Assumed)

	// Close to the next launch, the time since is the cost of launching or other code.
	p = newProgram()
	p.launch("first", 1*µs)
	p.host += 200 * µs
	forget(p.work(store.OpKernel, "tiny", 1*µs))
	p.host += 50 * µs
	p.launch("next", 1*µs)
	r = p.reader()
	c, err = StepPath(t.Context(), FromReader(r, "", "s"), r.ops[0].StartNs, r.ops[2].StartNs, "GPU-1")
	require.NoError(t, err)
	checkPath(t, c, r.ops)
	assert.Equal(t, []string{"unknown  252", "launch next 5", "latency next 3"}, texts(c))
}

// TestStepPath_Copy has a copy of pageable memory whose call returns shortly before its end.
func TestStepPath_Copy(t *testing.T) {
	p := newProgram()
	p.launch("a", 10*µs)
	p.host = p.device + 200*µs
	row := p.work(store.OpCopy, "memcpy HtoD", 800*µs, []store.Attr{
		{Key: semconv.CUDAMemcpyKind, Value: store.Value{Kind: store.KindString, Str: "HtoD"}},
		{Key: semconv.CUDAMemcpySourceKind, Value: store.Value{Kind: store.KindString, Str: "pageable"}},
	}...)
	p.host = row.EndNs - 2*µs
	row.LaunchEndNs = store.Some(p.host)
	p.host += 20 * µs
	p.launch("b", 10*µs)
	r := p.reader()
	c, err := StepPath(t.Context(), FromReader(r, "", "s"), r.ops[0].StartNs, r.ops[2].StartNs, "GPU-1")
	require.NoError(t, err)
	checkPath(t, c, r.ops)
	assert.Equal(t, []string{"host  210", "copy_call memcpy HtoD 8", "copy memcpy HtoD 798", "launch  20", "launch b 5", "latency b 3"}, texts(c))
}

// TestStepPath_BlockingCopy has an operation that starts 12 µs after a kernel of 5 ms and takes 20 µs. Its call begins with
// the kernel.
func TestStepPath_BlockingCopy(t *testing.T) {
	copied := func(kind, from, to string) []store.Attr { // sorted by key
		text := func(key, s string) store.Attr {
			return store.Attr{Key: key, Value: store.Value{Kind: store.KindString, Str: s}}
		}
		return []store.Attr{text(semconv.CUDAMemcpyDestinationKind, to), text(semconv.CUDAMemcpyKind, kind), text(semconv.CUDAMemcpySourceKind, from)}
	}
	for _, test := range []struct {
		name     string
		op       store.Operation
		attrs    []store.Attr
		returned int64 // since the start
		want     []string
	}{
		{"pageable to host", store.OpCopy, copied("DtoH", "device", "pageable"), 25 * µs, []string{"compute a 5000", "queued b 2", "latency b 10"}},
		{"pinned to host", store.OpCopy, copied("DtoH", "device", "pinned"), 25 * µs, []string{"compute a 5000", "queued b 2", "latency b 10"}},
		{"pageable from host", store.OpCopy, copied("HtoD", "pageable", "device"), 15 * µs, []string{"compute a 5000", "copy_call b 12"}},
		// These calls did not wait for the kernel.
		{"staged before", store.OpCopy, copied("HtoD", "pageable", "device"), -4 * µs, []string{"copy_call b 5008", "latency b 4"}},
		{"asynchronous", store.OpCopy, copied("DtoH", "device", "pinned"), 15 * µs, []string{"slow_launch b 5012"}},
		{"set", store.OpSet, nil, 25 * µs, []string{"slow_launch b 5012"}},
		{"kernel", store.OpKernel, nil, 25 * µs, []string{"slow_launch b 5012"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newProgram()
			p.launch("a", 5*ms)
			p.device += 12 * µs
			row := p.work(test.op, "b", 20*µs, test.attrs...)
			row.LaunchEndNs = store.Some(row.StartNs + test.returned)
			r := p.reader()
			c, err := StepPath(t.Context(), FromReader(r, "", "s"), r.ops[0].StartNs, r.ops[1].StartNs, "GPU-1")
			require.NoError(t, err)
			checkPath(t, c, r.ops)
			assert.Equal(t, test.want, texts(c))
		})
	}
}

// TestStepPath_ShortBeforeCopy has a call of 2 ms that is not slow to launch: its copy takes nearly all of it.
func TestStepPath_ShortBeforeCopy(t *testing.T) {
	p := newProgram()
	p.launch("a", 10*µs)
	p.host = p.device + 5*µs
	row := p.work(store.OpCopy, "b", 2*ms, store.Attr{Key: semconv.CUDAMemcpyKind, Value: store.Value{Kind: store.KindString, Str: "DtoH"}})
	row.LaunchEndNs = store.Some(row.EndNs + 5*µs)
	r := p.reader()
	c, err := StepPath(t.Context(), FromReader(r, "", "s"), r.ops[0].StartNs, r.ops[1].StartNs, "GPU-1")
	require.NoError(t, err)
	checkPath(t, c, r.ops)
	assert.Equal(t, []string{"launch  15", "launch b 8"}, texts(c))
}

func TestStepPath_TooLong(t *testing.T) {
	p := newProgram()
	row := *p.row(store.OpKernel, "k", 1, 2)
	r := p.reader()
	r.ops = nil
	for i := range maxPathOps + 1 {
		row.StartNs, row.EndNs, row.Span = int64(i), int64(i+1), store.SpanID(i+1)
		r.ops = append(r.ops, row)
	}
	var c Collection
	c.filled, c.sorted = true, true
	c.shapes.all = []store.Shape{*row.ShapeRef}
	for i := range r.ops {
		o := r.ops[i].Op
		o.Shape, o.Lane, o.Origin, o.Place, o.Stack = 0, 0, 0, 0, 0
		c.ops = append(c.ops, o)
	}
	_, err := StepPath(t.Context(), &c, 0, maxPathOps+2, "")
	assert.ErrorIs(t, err, ErrPathTooLong)
}

func TestSpanPath_Services(t *testing.T) {
	m := storetest.NewMemory()
	trace, other := store.TraceID{15: 1}, store.TraceID{15: 2}
	write := func(b *store.Batch) {
		_, err := m.Write(t.Context(), []*store.Batch{b})
		require.NoError(t, err)
	}
	span := func(name string, id, parent store.SpanID, kind uint8, start, end int64) store.Span {
		return store.Span{Name: name, Span: id, Parent: parent, Kind: kind, StartNs: start * µs, EndNs: end * µs, Trace: trace}
	}
	write(&store.Batch{Session: "gateway", Spans: []store.Span{
		span("GET /", 1, 0, 2, 1000, 2000), span("POST /infer", 2, 1, 3, 1100, 1900), span("log", 3, 1, 1, 1050, 1080),
	}})
	queue := span("queue", 11, 10, 1, 1220, 1700)
	queue.Links = []byte("batch")
	batch := span("batch", 20, 0, 1, 1300, 1690)
	batch.Trace = other
	write(&store.Batch{
		Session: "server", Spans: []store.Span{span("infer", 10, 2, 2, 1200, 1800), queue, batch},
		Shapes: []store.Shape{{}, {Key: 1, Operation: store.OpKernel, Name: "gemm"}, {Key: 2, Operation: store.OpSync, Name: "cudaStreamSynchronize"}},
		Places: []store.Place{{}, {Key: 1, Trace: other, Parent: 20}},
		Lanes:  []store.Lane{{}, {Key: 1, Device: "GPU-1", Stream: store.Some(7)}},
		Ops: []store.Op{
			{StartNs: 1320 * µs, EndNs: 1600 * µs, Span: 30, Lane: 1, Shape: 1, Place: 1, LaunchStartNs: store.Some(1310 * µs), LaunchEndNs: store.Some(1316 * µs)},
			{StartNs: 1330 * µs, EndNs: 1605 * µs, Span: 31, Lane: 1, Shape: 2, Place: 1},
		},
	})
	root := &store.SpanRow{Span: span("GET /", 1, 0, 2, 1000, 2000)}
	c, err := SpanPath(t.Context(), m, "", "gateway", root, func(b []byte) []SpanLink {
		assert.Equal(t, "batch", string(b))
		return []SpanLink{{other, 20}}
	})
	require.NoError(t, err)
	checkPath(t, c, []store.OpRow{{Op: store.Op{Span: 30, StartNs: 1320 * µs, EndNs: 1600 * µs}}})
	assert.Equal(t, []string{
		"host GET / 50", "host log 30", "host GET / 20", "remote POST /infer 100", // the gateway
		"host infer 20", "host queue 80", "host batch 10", "launch gemm 6", "latency gemm 4", "compute gemm 280",
		"sync cudaStreamSynchronize 5", "host batch 85", "host queue 10", "host infer 100", // the server
		"remote POST /infer 100", "host GET / 100",
	}, texts(c))
	assert.Equal(t, "server", c.Parts[9].Session)
	assert.Equal(t, store.SpanID(30), c.Parts[9].Spans[0].Span)
}

// TestSpanPath_NothingKnown has neither launch times nor waits of the host.
func TestSpanPath_NothingKnown(t *testing.T) {
	m := storetest.NewMemory()
	trace := store.TraceID{15: 1}
	root := store.Span{Name: "GET /", Span: 1, Kind: 2, StartNs: 1000 * µs, EndNs: 1100 * µs, Trace: trace, Operation: semconv.CUDAOperationScope}
	_, err := m.Write(t.Context(), []*store.Batch{{
		Session: "server", Spans: []store.Span{root}, Shapes: []store.Shape{{}, {Key: 1, Operation: store.OpKernel, Name: "k"}}, Places: []store.Place{{}, {Key: 1, Trace: trace, Parent: 1}},
		Ops: []store.Op{{StartNs: 1020 * µs, EndNs: 1040 * µs, Span: 30, Shape: 1, Place: 1}, {StartNs: 1050 * µs, EndNs: 1080 * µs, Span: 31, Shape: 1, Place: 1}},
	}})
	require.NoError(t, err)
	c, err := SpanPath(t.Context(), m, "", "server", &store.SpanRow{Span: root}, nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"unknown k 20", "compute k 20", "unknown k 10", "compute k 30", "host GET / 20"}, texts(c))
	assert.True(t, c.Parts[4].Assumed)
}

// TestStepPath_MissingWork expects no cause of time without a span.
func TestStepPath_MissingWork(t *testing.T) {
	r := train(3, func(p *program, _ int) {
		p.launch("a", 100*µs)
		p.sync()
		p.host += 200 * µs
	}).reader()
	from, to := r.ops[1].StartNs, r.ops[3].StartNs // of kernels, after their waits
	whole, err := StepPath(t.Context(), FromReader(r, "", "s"), from, to, "GPU-1")
	require.NoError(t, err)
	assert.Nil(t, whole.Missing)
	assert.Positive(t, whole.Sums[Host])

	r.captures = []store.Attrs{{double(semconv.CUDACaptureRecordedRatio, 0.1)}}
	c, err := StepPath(t.Context(), FromReader(r, "", "s"), from, to, "GPU-1")
	require.NoError(t, err)
	checkPath(t, c, r.ops)
	require.NotNil(t, c.Missing)
	assert.InDelta(t, 0.9, c.Missing.Share, 1e-9)
	assert.Equal(t, [numPathKinds]int64{Unknown: to - from - 100*µs, PathCompute: 100 * µs}, c.Sums)
	for _, p := range c.Parts {
		assert.True(t, p.Assumed)
	}
	assert.Equal(t, c.Missing, NewAnswerPath(c, from, 1).Missing)
}

// TestSpanPath_MissingWork expects the same of the parts of one of two sessions.
func TestSpanPath_MissingWork(t *testing.T) {
	m := storetest.NewMemory()
	trace := store.TraceID{15: 1}
	capture := func(ratio float64) []store.Log {
		return []store.Log{{UID: store.UID{1}, TimeNs: 900, Event: semconv.EventCUDACapture, Attrs: store.Attrs{double(semconv.CUDACaptureRecordedRatio, ratio)}}}
	}
	_, err := m.Write(t.Context(), []*store.Batch{
		{Session: "front", Spans: []store.Span{{StartNs: 1, EndNs: 1001, Trace: trace, Span: 1, Name: "request"}}, Logs: capture(1)},
		{Session: "model", Spans: []store.Span{{StartNs: 101, EndNs: 801, Trace: trace, Span: 2, Parent: 1, Name: "infer"}}, Logs: capture(0.5)},
	})
	require.NoError(t, err)
	root := store.SpanRow{Span: store.Span{StartNs: 1, EndNs: 1001, Trace: trace, Span: 1}}
	c, err := SpanPath(t.Context(), m, "", "front", &root, func([]byte) []SpanLink { return nil })
	require.NoError(t, err)
	assert.Equal(t, &Missing{0.5, "About 50 % of the work is missing: an overhead budget left 50 % of the time recorded."}, c.Missing)
	assert.Equal(t, [numPathKinds]int64{Host: 300, Unknown: 700}, c.Sums)
}

// TestNewAnswerPath_Limit lists the longest parts in order, of equal ones the first.
func TestNewAnswerPath_Limit(t *testing.T) {
	c := &CriticalPath{ToNs: 17}
	for _, ns := range []int64{3, 1, 5, 3, 2, 3} {
		at := int64(0)
		if n := len(c.Parts); n > 0 {
			at = c.Parts[n-1].EndNs
		}
		c.Parts = append(c.Parts, PathPart{StartNs: at, EndNs: at + ns})
	}
	for limit, want := range [][]int64{{}, {4}, {0, 4}, {0, 4, 9}, {0, 4, 9, 14}, {0, 4, 9, 12, 14}, {0, 3, 4, 9, 12, 14}, {0, 3, 4, 9, 12, 14}} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			a := NewAnswerPath(c, 0, limit)
			starts, sum := []int64{}, a.MoreNs
			for _, p := range a.Parts {
				starts = append(starts, p.Start)
				sum += p.DurationNs
			}
			assert.Equal(t, want, starts)
			assert.Equal(t, len(c.Parts)-len(want), a.MoreParts)
			assert.Equal(t, c.ToNs, sum)
		})
	}
}
