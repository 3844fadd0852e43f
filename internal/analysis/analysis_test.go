// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// program builds a session: one host thread that launches work of one device.
type program struct {
	ops    []store.OpRow
	spans  []store.SpanRow
	shapes map[string]*store.Shape
	ids    map[string]uint32
	host   int64 // time of the host
	device int64 // end of all work
	span   store.SpanID
}

func newProgram() *program {
	return &program{shapes: map[string]*store.Shape{}, ids: map[string]uint32{}, host: 1000, device: 1000}
}

const µs, ms = int64(1000), int64(1_000_000)

var lane = &store.Lane{Device: "GPU-1", DeviceIndex: store.Some(0), Context: store.Some(1), Stream: store.Some(7)}

func (p *program) row(op store.Operation, name string, start, end int64, attrs ...store.Attr) *store.OpRow {
	p.span++
	key := fmt.Sprint(op, name)
	if p.shapes[key] == nil {
		p.shapes[key] = &store.Shape{Operation: op, Name: name, Attrs: attrs}
		p.ids[key] = uint32(len(p.ids))
	}
	p.ops = append(p.ops, store.OpRow{
		Op:      store.Op{StartNs: start, EndNs: end, Span: p.span, Shape: p.ids[key]},
		LaneRef: lane, ShapeRef: p.shapes[key], OriginRef: &store.Origin{},
	})
	return &p.ops[len(p.ops)-1]
}

// launch launches a kernel: the host needs 5 µs, the device starts 3 µs later or after other work.
func (p *program) launch(name string, ns int64) {
	p.work(store.OpKernel, name, ns)
}

func (p *program) work(op store.Operation, name string, ns int64, attrs ...store.Attr) *store.OpRow {
	begin := p.host
	p.host += 5 * µs
	start := max(p.device, p.host+3*µs)
	row := p.row(op, name, start, start+ns, attrs...)
	row.LaunchStartNs, row.LaunchEndNs = store.Some(begin), store.Some(p.host)
	row.QueueNs = store.Some(start - p.host)
	p.device = start + ns
	return row
}

func (p *program) sync() {
	begin := p.host
	p.host = max(p.host, p.device) + 5*µs
	p.row(store.OpSync, "cudaStreamSynchronize", begin, p.host)
}

func (p *program) alloc(ns int64) {
	row := p.row(store.OpAlloc, "malloc", p.host+ns/2, p.host+ns/2)
	row.LaunchStartNs, row.LaunchEndNs = store.Some(p.host), store.Some(p.host+ns)
	p.host += ns
}

func (p *program) scope(name string, body func()) {
	begin := p.host
	body()
	p.span++
	p.spans = append(p.spans, store.SpanRow{Span: store.Span{StartNs: begin, EndNs: p.host, Span: p.span, Name: name, Operation: "scope"}})
}

// pages is a store of one session that answers in pages.
type pages struct {
	store.Reader
	ops         []store.OpRow
	spans       []store.SpanRow
	first, last int64

	captures   []store.Attrs
	points     map[string][]store.Point // by metric, one for each series
	metric     string
	operations int64
}

func (p *program) reader() *pages {
	r := &pages{ops: p.ops, spans: p.spans, first: 0, last: max(p.host, p.device) + 10*µs}
	slices.SortFunc(r.ops, func(a, b store.OpRow) int {
		return cmp.Or(cmp.Compare(a.StartNs, b.StartNs), cmp.Compare(a.Span, b.Span))
	})
	slices.SortFunc(r.spans, func(a, b store.SpanRow) int {
		return cmp.Or(cmp.Compare(a.StartNs, b.StartNs), cmp.Compare(a.Span.Span, b.Span.Span))
	})
	return r
}

func (r *pages) Session(context.Context, string, string) (store.SessionInfo, error) {
	return store.SessionInfo{FirstNs: r.first, LastNs: r.last, Counts: map[string]int64{"ops": r.operations}}, nil
}

func (r *pages) Ops(_ context.Context, q store.OpQuery) (store.OpPage, error) {
	page := store.OpPage{}
	for i := range r.ops {
		o := &r.ops[i]
		inside := o.StartNs >= q.From && o.StartNs < q.To || o.StartNs < q.From && o.EndNs > q.From
		if !inside || q.After != nil && (o.StartNs < q.After.StartNs || o.StartNs == q.After.StartNs && o.Span <= q.After.Span) {
			continue
		}
		if len(page.Rows) == q.Limit {
			page.More = true
			break
		}
		page.Rows = append(page.Rows, *o)
	}
	return page, nil
}

func (r *pages) Spans(_ context.Context, q store.SpanQuery) (list []store.SpanRow, err error) {
	for i := range r.spans {
		s := &r.spans[i]
		if s.StartNs < q.To && (s.StartNs >= q.From || q.Overlapping && s.EndNs > q.From) && len(list) < q.Limit {
			list = append(list, *s)
		}
	}
	return list, nil
}

func run(t *testing.T, r *pages, page int, o Options) *Result {
	t.Helper()
	src := FromReader(r, "", "s").(*reader)
	src.page = page
	result, err := Run(t.Context(), src, o)
	require.NoError(t, err)
	check(t, result)
	return result
}

// check checks the sums that hold for all results.
func check(t *testing.T, r *Result) {
	t.Helper()
	parts := func(p *Parts, wall int64) {
		t.Helper()
		assert.Equal(t, wall, p.WallNs)
		assert.Equal(t, p.WallNs, p.BusyNs()+p.IdleNs, "%+v", p)
		assert.Equal(t, p.IdleNs, p.Idle.Sum(), "%+v", p)
		for _, ns := range append(p.Idle[:], p.ComputeNs, p.CommunicationNs, p.CopyNs) {
			assert.GreaterOrEqual(t, ns, int64(0), "%+v", p)
		}
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		parts(&d.Parts, r.ToNs-r.FromNs)
		if d.Kernels > 0 {
			parts(&d.Active, d.ActiveToNs-d.ActiveFromNs)
		}
		for j := range d.Gaps {
			assert.Equal(t, d.Gaps[j].EndNs-d.Gaps[j].StartNs, d.Gaps[j].Idle.Sum())
		}
	}
	for i := range r.Steps.Longest {
		parts(&r.Steps.Longest[i].Parts, r.Steps.Longest[i].WallNs)
	}
	for i := range r.Findings {
		f := &r.Findings[i]
		assert.Equal(t, f.OfNs, f.GainNs+f.FloorNs)
		assert.NotEmpty(t, f.Formula)
	}
}

func random(seed uint64) *pages {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := newProgram()
	names := []string{"a", "b", "ncclDevKernel_AllReduce", "c"}
	for range 20 + rng.IntN(200) {
		start := rng.Int64N(2000) * µs
		end := start + rng.Int64N(50)*rng.Int64N(2)*µs + rng.Int64N(3) - 1
		var row *store.OpRow
		switch rng.IntN(6) {
		case 0:
			row = p.row(store.OpSync, []string{"cudaStreamSynchronize", streamWait}[rng.IntN(2)], start, end)
		case 1:
			row = p.row([]store.Operation{store.OpAlloc, store.OpFree}[rng.IntN(2)], "malloc", start, start)
		case 2:
			row = p.row(store.OpCopy, "memcpy HtoD", start, end,
				store.Attr{Key: semconv.CUDAMemcpyKind, Value: store.Value{Kind: store.KindString, Str: "HtoD"}},
				store.Attr{Key: semconv.CUDAMemcpySourceKind, Value: store.Value{Kind: store.KindString, Str: "pageable"}})
		case 3:
			row = p.row([]store.Operation{store.OpSet, store.OpGraph}[rng.IntN(2)], "other", start, end)
		default:
			row = p.row(store.OpKernel, names[rng.IntN(len(names))], start, end)
		}
		if rng.IntN(4) > 0 {
			begin := start - rng.Int64N(100)*µs + rng.Int64N(10)*µs
			row.LaunchStartNs, row.LaunchEndNs = store.Some(begin), store.Some(begin+rng.Int64N(40)*µs-µs)
		}
		if rng.IntN(5) == 0 {
			row.LaneRef = &store.Lane{Device: "GPU-2", Context: store.Some(2)}
		}
		if rng.IntN(10) == 0 {
			row.LaneRef = &store.Lane{}
		}
	}
	for i := range 10 {
		p.span++
		p.spans = append(p.spans, store.SpanRow{Span: store.Span{
			StartNs: int64(i) * 150 * µs, EndNs: int64(i)*150*µs + rng.Int64N(150)*µs, Span: p.span, Name: fmt.Sprint("step ", i), Operation: "scope",
		}})
	}
	p.host, p.device = 2100*µs, 0
	return p.reader()
}

func TestRun_RandomTimelines(t *testing.T) {
	for seed := range uint64(300) {
		r := random(seed)
		for _, o := range []Options{{}, {From: 300 * µs, To: 1500*µs + 17}} {
			want, err := json.Marshal(run(t, r, 20_000, o))
			require.NoError(t, err)
			for _, page := range []int{1, 7} {
				if page == 1 && seed%10 != 0 {
					continue
				}
				src := FromReader(r, "", "s").(*reader)
				src.page = page
				if page < 7 { // many scopes start at different times, so pages of 1 would be slow only
					src.page = 3
				}
				got, err := Run(t.Context(), src, o)
				require.NoError(t, err)
				have, err := json.Marshal(got)
				require.NoError(t, err)
				require.JSONEq(t, string(want), string(have), "seed %d, page %d", seed, page)
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func TestCollection_EqualsReader(t *testing.T) {
	for seed := range uint64(50) {
		r := random(seed)
		want := run(t, r, 1000, Options{})
		var c Collection
		for i := range r.ops {
			o := &r.ops[len(r.ops)-1-i]
			b := &store.Batch{
				Lanes: []store.Lane{*o.LaneRef}, Shapes: []store.Shape{*o.ShapeRef}, Places: make([]store.Place, 1),
				Stacks: make([]store.Stack, 1), Origins: make([]store.Origin, 1), Ops: []store.Op{o.Op, o.Op},
			}
			b.Lanes[0].Key = uint64(o.LaneRef.Context.V)
			b.Shapes[0].Key = uint64(o.Shape) + 1
			for j := range b.Ops {
				b.Ops[j].Lane, b.Ops[j].Shape = 0, 0
			}
			c.Add(b)
		}
		for i := range r.spans {
			c.Add(&store.Batch{Spans: []store.Span{r.spans[i].Span}})
		}
		c.Add(&store.Batch{Logs: []store.Log{{TimeNs: r.first}, {TimeNs: r.last}}})
		got, err := Run(t.Context(), &c, Options{})
		require.NoError(t, err)
		assert.Equal(t, len(r.ops)*2, c.Operations()+len(r.ops), "repeated rows count once")
		a, err := json.Marshal(want)
		require.NoError(t, err)
		b, err := json.Marshal(got)
		require.NoError(t, err)
		require.JSONEq(t, string(a), string(b), "seed %d", seed)
	}
}

// train runs steps of ten kernels of 100 µs.
func train(steps int, step func(p *program, i int)) *program {
	p := newProgram()
	for i := range steps {
		p.scope(fmt.Sprintf("step %d", i), func() { step(p, i) })
	}
	p.sync()
	return p
}

func kernels(p *program, n int, ns int64) {
	for k := range n {
		p.launch(fmt.Sprintf("layer%d", k), ns)
	}
}

func TestRun_Causes(t *testing.T) {
	pageable := []store.Attr{
		{Key: semconv.CUDAMemcpyKind, Value: store.Value{Kind: store.KindString, Str: "HtoD"}},
		{Key: semconv.CUDAMemcpySourceKind, Value: store.Value{Kind: store.KindString, Str: "pageable"}},
	}
	pinned := []store.Attr{pageable[0], {Key: semconv.CUDAMemcpySourceKind, Value: store.Value{Kind: store.KindString, Str: "pinned"}}}
	for name, c := range map[string]struct {
		step  func(p *program, i int)
		first string // kind of the first finding
		bound Bound
		gain  int64 // of 50 steps, at least and at most 10 % more
	}{
		"balanced": {func(p *program, _ int) { kernels(p, 10, 100*µs) }, "", BoundDevice, 0},
		"data loader": {func(p *program, _ int) {
			p.scope("load", func() { p.host += 3 * ms })
			kernels(p, 10, 100*µs)
			p.host += 100 * µs
		}, "host", BoundHost, 49 * 2 * ms},
		"wait": {func(p *program, _ int) {
			kernels(p, 10, 100*µs)
			p.sync()
			p.host += 400 * µs
		}, "sync", BoundHost, 49 * 400 * µs},
		"tiny kernels": {func(p *program, _ int) {
			for k := range 100 {
				p.launch(fmt.Sprintf("tiny%d", k), 2*µs)
				p.host += 4 * µs
			}
		}, "launch", BoundLaunch, 50 * 399 * µs},
		"allocator": {func(p *program, _ int) {
			for range 5 {
				p.alloc(300 * µs)
			}
			kernels(p, 10, 100*µs)
		}, "allocator", BoundHost, 49 * 500 * µs},
		"exposed copies": {func(p *program, _ int) {
			p.work(store.OpCopy, "memcpy HtoD pinned", 800*µs, pinned...)
			kernels(p, 10, 100*µs)
		}, "exposed_copy", BoundDevice, 49 * 800 * µs},
		"pageable copies": {func(p *program, _ int) {
			row := p.work(store.OpCopy, "memcpy HtoD", 800*µs, pageable...)
			p.host = max(p.host, row.EndNs)
			row.LaunchEndNs = store.Some(p.host)
			kernels(p, 10, 100*µs)
		}, "pageable_copy", BoundDevice, 49 * 800 * µs},
		"communication": {func(p *program, _ int) {
			kernels(p, 10, 100*µs)
			p.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 800*µs)
		}, "communication", BoundCommunication, 50 * 800 * µs},
		"slow layer": {func(p *program, i int) {
			kernels(p, 9, 100*µs)
			ns := 100 * µs
			if i == 25 {
				ns = 20 * ms
			}
			p.launch("layer9", ns)
		}, "slow_steps", BoundDevice, 19_000 * µs},
	} {
		t.Run(name, func(t *testing.T) {
			p := train(50, c.step)
			r := run(t, p.reader(), 1000, Options{})
			require.Len(t, r.Devices, 1)
			d := &r.Devices[0]
			assert.Equal(t, c.bound, d.Bound, "%+v", d.Active)
			assert.Equal(t, "scopes", r.Steps.Rule)
			assert.Equal(t, "step", r.Steps.Name)
			assert.Equal(t, int64(50), r.Steps.Count)
			if c.first == "" {
				assert.Empty(t, r.Findings)
				return
			}
			require.NotEmpty(t, r.Findings, "%+v", d.Active)
			f := &r.Findings[0]
			assert.Equal(t, c.first, f.Kind, "%+v\n%+v", r.Findings, d.Active)
			assert.NotEmpty(t, f.Evidence)
			assert.GreaterOrEqual(t, f.GainNs, c.gain)
			assert.LessOrEqual(t, f.GainNs, c.gain+c.gain/5)
			switch name {
			case "data loader":
				assert.Equal(t, "load", d.HostScopes[0].Name)
				assert.Contains(t, f.Text, `in scope "load"`)
			case "wait":
				assert.Equal(t, "cudaStreamSynchronize", d.SyncCalls[0].Name)
			case "communication":
				assert.Contains(t, f.Text, "ranks that come late: see the view Ranks, or gpuflight ranks.")
				assert.Equal(t, BoundCommunication, r.Steps.Typical.Bound)
			case "slow layer":
				require.Len(t, r.Steps.Outliers, 1)
				o := r.Steps.Outliers[0]
				assert.Equal(t, "step 25", o.Name)
				assert.Equal(t, int64(26), o.Number)
				assert.Equal(t, "compute", o.Part)
				assert.Equal(t, "layer9", o.Kernel)
				assert.Equal(t, 19_900*µs, o.KernelExcessNs)
			}
		})
	}
}

// TestRun_SlowSteps has more slow steps than are listed. The first step is slow too.
func TestRun_SlowSteps(t *testing.T) {
	p := train(1000, func(p *program, i int) {
		kernels(p, 9, 100*µs)
		ns := 100 * µs
		if i%5 == 0 {
			ns += 5 * ms
		}
		p.launch("layer9", ns)
	})
	r := run(t, p.reader(), 1000, Options{})
	assert.Equal(t, int64(200), r.Steps.OutlierCount)
	assert.Len(t, r.Steps.Outliers, maxOutliers)
	require.Len(t, r.Findings, 1)
	f := &r.Findings[0]
	assert.Equal(t, "slow_steps", f.Kind)
	assert.Equal(t, 199*5*ms, f.GainNs)
	assert.Contains(t, f.Text, "Of 999 steps after the first, 199 took much longer than the median of 1 ms. ")
	assert.Equal(t, int64(200), NewAnswer(r, 0).Steps.OutlierCount)
}

// TestRun_KernelOfSlowSteps has a kernel that is slow in every third step.
func TestRun_KernelOfSlowSteps(t *testing.T) {
	r := run(t, train(60, func(p *program, i int) {
		kernels(p, 9, 100*µs)
		ns := 100 * µs
		if i%3 == 2 {
			ns += 5 * ms
		}
		p.launch("layer9", ns)
	}).reader(), 1000, Options{})
	require.Len(t, r.Steps.Outliers, 20)
	for _, o := range r.Steps.Outliers {
		assert.Equal(t, "layer9", o.Kernel)
		assert.Equal(t, 5*ms, o.KernelExcessNs)
		assert.Equal(t, o.PartExcessNs, o.KernelExcessNs)
	}
}

// TestRun_SlowStepOfCause has a step that is slow because of a cause of idle time.
func TestRun_SlowStepOfCause(t *testing.T) {
	p := train(50, func(p *program, i int) {
		kernels(p, 10, 100*µs)
		if i == 25 {
			p.host += 60 * ms // it is 24 ms ahead of the device
		}
	})
	r := run(t, p.reader(), 1000, Options{})
	i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Kind == "slow_steps" })
	require.GreaterOrEqual(t, i, 0)
	assert.Contains(t, r.Findings[i].Text, ": its idle time (host code) is ")
	assert.Equal(t, "idle time (queued)", PartText("queued"))
	assert.Equal(t, "copy", PartText("copy"))
}

func TestRun_StepsOfKernels(t *testing.T) {
	for name, c := range map[string]struct {
		step   func(p *program, i int)
		marker string
		count  int64
	}{
		"a network with layers": {func(p *program, _ int) {
			p.launch("embed", 10*µs)
			for range 6 {
				p.launch("norm", 10*µs)
				p.launch("matmul", 90*µs)
			}
			for range 6 {
				p.launch("matmul_back", 90*µs)
				p.launch("norm_back", 10*µs)
			}
			p.launch("adam", 10*µs)
		}, "embed", 40},
		"another kernel every eighth step": {func(p *program, i int) {
			p.launch("embed", 10*µs)
			p.launch("matmul", 90*µs)
			p.launch("matmul_back", 90*µs)
			if i%8 == 0 {
				p.launch("log", 5*µs)
			}
			p.launch("adam", 10*µs)
		}, "embed", 40},
		"random kernels": {func(p *program, i int) {
			rng := rand.New(rand.NewPCG(uint64(i), 2))
			for range 5 + rng.IntN(10) {
				p.launch(fmt.Sprint("k", rng.IntN(8)), 10*µs)
			}
		}, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProgram()
			for i := range 40 {
				c.step(p, i)
			}
			r := run(t, p.reader(), 1000, Options{})
			assert.Equal(t, c.count, r.Steps.Count)
			assert.Equal(t, c.marker, r.Steps.Name)
			if c.marker == "" {
				assert.Equal(t, "none", r.Steps.Rule)
			} else {
				assert.Equal(t, "kernels", r.Steps.Rule)
			}
		})
	}
}

func TestStepScopes(t *testing.T) {
	scope := func(id, parent store.SpanID, name string, start, end int64) Scope {
		return Scope{Span: id, Parent: parent, Name: name, StartNs: start, EndNs: end}
	}
	phases := func() (list []Scope) {
		for i := range int64(5) {
			for j, name := range []string{"load", "forward", "backward"} {
				list = append(list, scope(store.SpanID(i*10+int64(j)+1), 0, name, i*100+int64(j)*30, i*100+int64(j)*30+10+10*int64(j)))
			}
		}
		return list
	}
	for name, c := range map[string]struct {
		scopes []Scope
		want   string
		n      int
	}{
		"none":                  {nil, "", 0},
		"phases":                {phases(), "load", 5},
		"two are too few":       {[]Scope{scope(1, 0, "step 1", 0, 1), scope(2, 0, "step 2", 2, 3)}, "", 0},
		"numbers":               {[]Scope{scope(1, 0, "ProfilerStep#1", 0, 9), scope(2, 0, "ProfilerStep#2", 9, 19), scope(3, 0, "ProfilerStep#3", 20, 30)}, "ProfilerStep", 3},
		"overlapping requests":  {[]Scope{scope(1, 0, "work", 0, 9), scope(2, 0, "work", 8, 19), scope(3, 0, "work", 18, 30)}, "", 0},
		"little of the time":    {[]Scope{scope(1, 0, "log", 0, 1), scope(2, 0, "log", 100, 101), scope(3, 0, "log", 200, 201)}, "", 0},
		"a cycle":               {[]Scope{scope(1, 2, "x", 0, 9), scope(2, 1, "x", 9, 19), scope(3, 2, "x", 20, 30)}, "x", 3},
		"steps of little scope": {append(phases(), scope(91, 0, "iteration", 400, 401), scope(92, 0, "iteration", 410, 411), scope(93, 0, "iteration", 420, 421)), "iteration", 3},
	} {
		t.Run(name, func(t *testing.T) {
			steps, path := stepScopes(c.scopes)
			got, _, _ := strings.Cut(path, pathSeparator)
			assert.Equal(t, c.want, got)
			assert.Len(t, steps, c.n)
		})
	}
}

func TestRun_UnknownLaunches(t *testing.T) {
	p := train(10, func(p *program, _ int) {
		kernels(p, 10, 100*µs)
		p.host += 5 * ms
	})
	for i := range p.ops {
		p.ops[i].LaunchStartNs, p.ops[i].LaunchEndNs, p.ops[i].QueueNs = store.Int{}, store.Int{}, store.Int{}
	}
	r := run(t, p.reader(), 1000, Options{})
	d := &r.Devices[0]
	assert.Equal(t, d.Active.IdleNs, d.Active.Idle[Unknown])
	assert.Equal(t, BoundUnknown, d.Bound)
	require.Len(t, r.Findings, 1)
	assert.Equal(t, "no_launch_times", r.Findings[0].Kind)
	assert.Equal(t, int64(-1), d.QueueP50Ns)
}

// TestRun_UnknownLaunchBefore has a known launch after one at an unknown time. Within 100 µs of it, other code
// of the host cannot be told from the cost of launching.
func TestRun_UnknownLaunchBefore(t *testing.T) {
	for _, c := range []struct {
		host int64
		want CauseSums
	}{
		{60 * µs, CauseSums{Unknown: 62 * µs, Launch: 5 * µs, Latency: 3 * µs}},
		{300 * µs, CauseSums{Host: 302 * µs, Launch: 5 * µs, Latency: 3 * µs}},
	} {
		p := newProgram()
		row := p.work(store.OpKernel, "a", 1*µs)
		row.LaunchStartNs, row.LaunchEndNs = store.Int{}, store.Int{}
		p.host = p.device + c.host + 2*µs
		p.launch("b", 1*µs)
		d := &run(t, p.reader(), 1000, Options{}).Devices[0]
		assert.Equal(t, c.want, d.Active.Idle)
	}
}

func TestRun_Deadline(t *testing.T) {
	p := train(2000, func(p *program, _ int) { kernels(p, 10, 100*µs) })
	r := run(t, p.reader(), 20_000, Options{Deadline: time.Now().Add(-time.Second)})
	assert.False(t, r.Complete)
	assert.Less(t, r.ToNs, p.device)
	assert.Greater(t, r.ToNs, r.FromNs)
}

func TestRun_NoOperations(t *testing.T) {
	r := run(t, &pages{}, 10, Options{})
	assert.True(t, r.Complete)
	assert.Empty(t, r.Devices)
	b, err := json.Marshal(NewAnswer(r, r.FromNs))
	require.NoError(t, err)
	assert.NotContains(t, string(b), "null")
}

// service answers n requests of 1 ms, and waits 20 to 40 ms before each.
func service(n int, name string) *program {
	p := newProgram()
	for i := range n {
		p.host += (20 + int64(i*7%21)) * ms
		p.scope(fmt.Sprintf(name, i), func() {
			kernels(p, 8, 100*µs)
			p.sync()
		})
	}
	return p
}

func TestRun_Service(t *testing.T) {
	r := run(t, service(50, "request %d").reader(), 1000, Options{})
	d := &r.Devices[0]
	assert.Greater(t, float64(d.Active.Idle[NothingQueued]), 0.9*float64(d.Active.WallNs))
	assert.Less(t, d.Active.Idle[Host], ms)
	assert.Equal(t, BoundUnknown, d.Bound)
	assert.Empty(t, r.Findings)

	// The pauses between the steps of a loop are its own.
	r = run(t, service(50, "train_step %d").reader(), 1000, Options{})
	assert.Zero(t, r.Devices[0].Active.Idle[NothingQueued])
	assert.Equal(t, BoundHost, r.Devices[0].Bound)
	require.NotEmpty(t, r.Findings)
	assert.Equal(t, "host", r.Findings[0].Kind)

	// So is time before a launch that is in no scope, such as that of a program with the ranges of a library only.
	p := service(50, "request %d")
	p.spans = p.spans[:1]
	r = run(t, p.reader(), 1000, Options{})
	assert.Zero(t, r.Devices[0].Active.Idle[NothingQueued])
	assert.Equal(t, "host", r.Findings[0].Kind)

	// Code in requests is not waiting.
	p = newProgram()
	for i := range 50 {
		p.host += 5 * ms
		p.scope(fmt.Sprint("request ", i), func() {
			p.host += 20 * ms
			kernels(p, 8, 100*µs)
			p.sync()
		})
	}
	r = run(t, p.reader(), 1000, Options{})
	idle := &r.Devices[0].Active.Idle
	assert.InDelta(t, 49*5*ms, idle[NothingQueued], float64(ms))
	assert.InDelta(t, 49*20*ms, idle[Host]+idle[Sync]+idle[Launch], float64(49*ms))
	assert.Equal(t, "host", r.Findings[0].Kind)
}
