// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

// keeping is a source that keeps parts of 20 operations in memory.
type keeping struct {
	Source
	rows   *pages
	mu     sync.Mutex // of values, begun and cut
	values map[string][]byte
	swept  atomic.Int64
	full   bool  // keep fails
	ops    int64 // of a part
	times  int64 // counts returns so many times the operations, 0 is 1
	few    bool  // Scopes returns a 5,000th of the scopes that it may return
	// early says that Scopes returns one scope if it is asked for those before its last interval. It sets cut if there
	// are others. begun is the begin of that interval.
	early, cut bool
	begun      int64
}

const keepingGrid = 16 * µs

func (r *pages) keeping() *keeping {
	return &keeping{Source: FromReader(r, "", "s"), rows: r, values: map[string][]byte{}, ops: 20}
}

func (k *keeping) Scopes(ctx context.Context, from, to int64, n int) ([]Scope, bool, error) {
	if k.few {
		n /= 5000
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.early || to > k.begun {
		k.begun = from
		return k.Source.Scopes(ctx, from, to, n)
	}
	list, more, err := k.Source.Scopes(ctx, from, to, 1)
	k.cut = k.cut || more
	return list, more, err
}

func (k *keeping) namedScopes(ctx context.Context, from, to int64, prefixes []string) ([]Scope, error) {
	list, _, err := k.Source.Scopes(ctx, from, to, maxNamed)
	return slices.DeleteFunc(list, func(s Scope) bool {
		return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s.Name, p) })
	}), err
}

func (k *keeping) partSize() (ops, grid int64) { return k.ops, keepingGrid }

func (k *keeping) names(context.Context) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.values)), nil
}

// parts returns the names of the kept parts.
func (k *keeping) parts() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(k.values)), func(name string) bool { return !strings.HasPrefix(name, "part-") })
}

func (k *keeping) value(_ context.Context, name string) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.values[name], nil
}

func (k *keeping) keep(_ context.Context, name string, value []byte) error {
	if k.full {
		return errors.New("no space left on device")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.values, name)
	if value != nil {
		k.values[name] = value
	}
	return nil
}

func (k *keeping) operations(context.Context) (int64, error) { return int64(len(k.rows.ops)), nil }

func (k *keeping) counts(_ context.Context, from, to int64, visit func(*store.OpCount) error) error {
	all := map[int64]int64{}
	for i := range k.rows.ops {
		if t := k.rows.ops[i].StartNs; t >= from && t < to {
			all[t/keepingGrid*keepingGrid] += max(k.times, 1)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(all)) {
		if err := visit(&store.OpCount{FromNs: at, Ops: all[at]}); err != nil {
			return err
		}
	}
	return nil
}

func (k *keeping) scopeSums(_ context.Context, from, to int64, visit func(*store.ScopeSum) error) error {
	var list []store.ScopeSum
	for i := range k.rows.spans {
		s := &k.rows.spans[i]
		if s.StartNs >= to || max(s.StartNs, s.EndNs) <= from {
			continue
		}
		h := hashOf(s)
		list = append(list, store.ScopeSum{FromNs: s.StartNs / keepingGrid * keepingGrid, Starts: h},
			store.ScopeSum{FromNs: max(s.StartNs, s.EndNs) / keepingGrid * keepingGrid, Ends: h})
	}
	slices.SortFunc(list, func(a, b store.ScopeSum) int { return cmp.Compare(a.FromNs, b.FromNs) })
	for i := range list {
		if err := visit(&list[i]); err != nil {
			return err
		}
	}
	return nil
}

func hashOf(s *store.SpanRow) uint64 {
	return fnvOf(fmt.Sprint(s.StartNs, s.EndNs, s.Span.Span, s.Parent, s.Name))
}

func (k *keeping) scan(ctx context.Context, from, to int64, _ bool, visit func(*store.OpRow) error) error {
	return k.Source.Ops(ctx, from, to, func(row *store.OpRow) error {
		if row.StartNs >= from {
			k.swept.Add(1)
		}
		return visit(row)
	})
}

// text returns all that a result says.
func (r *Result) text(t *testing.T) string {
	t.Helper()
	b, err := json.Marshal(NewAnswer(r, 0))
	require.NoError(t, err)
	return string(b)
}

// sameText fails with the part in which two texts differ.
func sameText(t *testing.T, want, got string) {
	t.Helper()
	for i := range min(len(want), len(got)) {
		if want[i] != got[i] {
			i = max(i-200, 0)
			require.Equal(t, want[i:min(i+400, len(want))], got[i:min(i+400, len(got))])
		}
	}
	require.Len(t, got, len(want))
}

// analysed returns the result with and without kept parts, which must be equal, and how many operations
// were swept for the former.
func analysed(t *testing.T, k *keeping, o Options) (r *Result, swept int) {
	t.Helper()
	want, err := Run(t.Context(), k.Source, o)
	require.NoError(t, err)
	k.swept.Store(0)
	r, err = Run(t.Context(), k, o)
	require.NoError(t, err)
	check(t, r)
	sameText(t, want.text(t), r.text(t))
	swept = int(k.swept.Load())
	if o == (Options{}) {
		want, err := NewProfile(t.Context(), k.Source, o)
		require.NoError(t, err)
		for range 2 {
			got, err := NewProfile(t.Context(), k, o)
			require.NoError(t, err)
			sameText(t, want.Result.text(t), got.Result.text(t))
			want.Result, got.Result = nil, nil
			require.Equal(t, want, got)
			want.Result = r
		}
	}
	return r, swept
}

// merge returns the rows of both in order.
func (r *pages) add(o *pages) {
	r.ops = append(r.ops, o.ops...)
	r.spans = append(r.spans, o.spans...)
	seen := map[string]bool{}
	r.ops = slices.DeleteFunc(r.ops, func(o store.OpRow) bool {
		key := fmt.Sprint(o.StartNs, " ", o.Span)
		defer func() { seen[key] = true }()
		return seen[key]
	})
	p := program{ops: r.ops, spans: r.spans}
	sorted := p.reader()
	r.ops, r.spans = sorted.ops, sorted.spans
}

func TestRun_Parts(t *testing.T) {
	seeds := uint64(40)
	if os.Getenv("GPUFLIGHT_SOAK") != "" {
		seeds = 2000
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 4))
			all := random(seed)
			if rng.IntN(2) == 0 {
				all.spans = nil
			}
			// Some rows and scopes are late.
			now, late := *all, *all
			now.ops, now.spans, late.ops, late.spans = nil, nil, nil, nil
			few := rng.IntN(10)
			for _, o := range all.ops {
				if rng.IntN(10) < few && o.StartNs > all.ops[0].StartNs {
					late.ops = append(late.ops, o)
				} else {
					now.ops = append(now.ops, o)
				}
			}
			for _, s := range all.spans {
				if rng.IntN(4) == 0 {
					late.spans = append(late.spans, s)
				} else {
					now.spans = append(now.spans, s)
				}
			}
			k := now.keeping()
			window := func() Options {
				from := rng.Int64N(1500 * µs)
				return Options{From: from, To: from + 1 + rng.Int64N(600*µs)}
			}
			for _, o := range []Options{{}, window(), window(), {}} {
				analysed(t, k, o)
			}
			now.add(&late)
			for _, o := range []Options{window(), {}, window(), {}} {
				analysed(t, k, o)
			}
		})
	}
}

func TestRun_PartsAreUsed(t *testing.T) {
	p := train(200, func(p *program, i int) {
		p.launch("first", 30*µs)
		kernels(p, 9, 20*µs)
		if i%3 == 0 {
			p.sync()
		}
	})
	for _, scopes := range []bool{true, false} {
		t.Run(fmt.Sprint("scopes=", scopes), func(t *testing.T) {
			r := p.reader()
			if !scopes {
				r.spans = nil
			}
			k := r.keeping()
			result, swept := analysed(t, k, Options{})
			assert.Equal(t, int64(200), result.Steps.Count)
			assert.Less(t, swept, 2*len(r.ops)+1)
			assert.Greater(t, len(k.values), 80)
			markers := 0
			if !scopes {
				markers = len(r.ops) // fewer than maxPatternOps, whose markers are not kept
			}
			_, swept = analysed(t, k, Options{})
			assert.Less(t, swept-markers, 40, "the rest of the session")
			_, swept = analysed(t, k, Options{From: r.last / 4, To: r.last / 4 * 3})
			assert.Less(t, swept-markers, 120, "both ends of the window")
			for name, b := range k.values {
				for _, damaged := range [][]byte{nil, b[:len(b)/2], append(slices.Clone(b), 0), make([]byte, len(b))} {
					k.values[name] = damaged
				}
			}
			_, swept = analysed(t, k, Options{})
			assert.Greater(t, swept-markers, len(r.ops)/2, "all parts are damaged")
		})
	}
}

// TestRun_WindowsUseParts has windows that begin and end in parts. Only these two parts are swept.
func TestRun_WindowsUseParts(t *testing.T) {
	r := train(400, func(p *program, _ int) { kernels(p, 10, 20*µs); p.sync() }).reader()
	k := r.keeping()
	k.ops = 200
	analysed(t, k, Options{})
	parts := len(k.parts())
	assert.Greater(t, parts, 15)
	all := 0
	for n := range int64(20) {
		from := r.last/4 + n*r.last/100
		_, swept := analysed(t, k, Options{From: from, To: from + r.last/2})
		all += swept
	}
	assert.Less(t, all, 20*220, "half of the first and of the last part on average")
	assert.Len(t, k.parts(), parts)
}

// TestRun_KeptMarkers has markers that are of other rows, and of these.
func TestRun_KeptMarkers(t *testing.T) {
	r := train(60, func(p *program, _ int) { kernels(p, 10, 20*µs) }).reader()
	r.spans = nil
	k := r.keeping()
	k.times = maxPatternOps + 1
	a := &analysis{}
	list, err := a.partsOf(t.Context(), k, r.first, r.last)
	require.NoError(t, err)
	want := map[string]string{"GPU-1": "kept"}
	for _, other := range []int64{1, 0} {
		first, ops := r.first, list[0].ops+other
		c := newKept()
		c.ints(&first, &ops)
		entries(c, &want, func(id, marker *string) { c.text(id); c.text(marker) })
		k.values[markersName] = c.closed()
		a := &analysis{shapes: map[uint32]*shapeInfo{}}
		got, err := a.findMarkers(t.Context(), k, r.first, r.last, time.Time{})
		require.NoError(t, err)
		assert.Equal(t, other == 0, maps.Equal(want, got), got)
	}
}

// TestRun_PartsThatOverlap has kept parts that no analysis uses.
func TestRun_PartsThatOverlap(t *testing.T) {
	r := train(60, func(p *program, _ int) { kernels(p, 10, 20*µs) }).reader()
	k := r.keeping()
	analysed(t, k, Options{})
	parts := k.parts()
	p, ok := parsePart(parts[5])
	require.True(t, ok)
	for _, x := range []part{{from: p.from, to: p.to + keepingGrid, ops: p.ops}, {from: p.to - keepingGrid, to: p.to, ops: 1}, {from: p.from + 1, to: p.to + 1, ops: 1}} {
		k.values[x.named()] = k.values[p.name]
	}
	k.values[(&part{from: p.to - keepingGrid}).groupsName()] = []byte("groups")
	before := len(k.values)
	analysed(t, k, Options{From: p.to, To: r.last})
	assert.Len(t, k.values, before, "an interval that begins later")
	analysed(t, k, Options{})
	assert.Equal(t, parts, k.parts())
	assert.LessOrEqual(t, len(k.values), 2*len(parts), "one value of groups for each part")
}

// TestRun_PartsOfDecades has an operation before the others whose clock was not set.
func TestRun_PartsOfDecades(t *testing.T) {
	r := train(60, func(p *program, _ int) { kernels(p, 10, 20*µs) }).reader()
	const decades = 50 * 365 * 24 * time.Hour
	for i := range r.ops {
		if i > 0 {
			r.ops[i].StartNs += int64(decades)
			r.ops[i].EndNs += int64(decades)
		}
	}
	r.spans, r.last = nil, r.last+int64(decades)
	k := r.keeping()
	analysed(t, k, Options{})
	assert.Greater(t, len(k.values), 20)
	_, swept := analysed(t, k, Options{})
	assert.Less(t, swept-len(r.ops), 40, "the rest of the session, besides the markers")
}

// TestRun_PartsAreNotKept analyses while the store cannot keep parts.
func TestRun_PartsAreNotKept(t *testing.T) {
	k := train(60, func(p *program, _ int) { kernels(p, 10, 20*µs) }).reader().keeping()
	k.full = true
	r, _ := analysed(t, k, Options{})
	assert.Equal(t, int64(60), r.Steps.Count)
	_, err := runWith(t.Context(), k, Options{}, &Update{})
	assert.ErrorContains(t, err, "no space left on device")
}

func TestSumScopes(t *testing.T) {
	k := random(3).keeping()
	list := []part{{from: 10 * keepingGrid, to: 20 * keepingGrid}, {from: 20 * keepingGrid, to: 21 * keepingGrid}, {from: 21 * keepingGrid, to: 60 * keepingGrid}}
	sums, err := sumScopes(t.Context(), k, list)
	require.NoError(t, err)
	require.Len(t, sums, len(list)+1, "one for each bound, however many scopes there are")
	want := func(from, to int64) (sum uint64) {
		for i := range k.rows.spans {
			if s := &k.rows.spans[i]; s.StartNs/keepingGrid < to && max(s.StartNs, s.EndNs)/keepingGrid >= from {
				sum ^= hashOf(s)
			}
		}
		return sum
	}
	for _, c := range []struct{ from, bound, last int64 }{{10, 20, 10}, {15, 20, 10}, {20, 21, 20}, {59, 60, 21}, {12, 60, 10}} {
		sum := want(c.last, c.bound)
		assert.NotZero(t, sum, c)
		assert.Equal(t, sum, sums.of(c.from*keepingGrid+1, c.bound*keepingGrid), c)
	}
}

func TestKeepParts(t *testing.T) {
	p := train(60, func(p *program, i int) {
		kernels(p, 10, 20*µs)
		if i%3 == 0 {
			p.sync()
		}
	})
	all := p.reader()
	k := (&pages{first: all.first}).keeping()
	var sum DeviceTime
	update := func(last bool) {
		u, err := keepParts(t.Context(), k, last)
		require.NoError(t, err)
		for _, d := range u.Devices {
			sum.Parts = sum.plus(&d.Parts)
			sum.Steps += d.Steps
		}
	}
	for i := range 5 {
		last := i == 2 || i == 4 // the session pauses, and ends
		n := len(all.ops) / 5 * (i + 1)
		if i == 4 {
			n = len(all.ops)
		}
		k.rows.ops = all.ops[:n]
		end := k.rows.ops[n-1].StartNs
		k.rows.last, k.rows.spans = end+1, nil
		for _, s := range all.spans {
			if s.EndNs <= end || i == 4 {
				k.rows.spans = append(k.rows.spans, s)
			}
		}
		if i == 4 {
			k.rows.last = all.last
		}
		if i%2 == 1 { // an analysis keeps parts before the update
			analysed(t, k, Options{})
		}
		update(last)
		if last {
			again := sum
			update(true)
			assert.Equal(t, again, sum, "nothing is new")
		}
	}
	want, err := Run(t.Context(), k.Source, Options{})
	require.NoError(t, err)
	assert.Equal(t, want.Devices[0].BusyNs(), sum.BusyNs())
	assert.Equal(t, want.Devices[0].WallNs, sum.WallNs)
	assert.Equal(t, want.Steps.Count, sum.Steps)
}

// TestKeepParts_EarlyRows has rows that arrive late and start before all kept parts. They are too few for a
// part, and the parts after them are still kept.
func TestKeepParts_EarlyRows(t *testing.T) {
	all := train(60, func(p *program, _ int) { kernels(p, 10, 20*µs) }).reader()
	k := (&pages{first: all.first, spans: all.spans}).keeping()
	reach := func(from, to int) (end int64) {
		k.rows.ops = all.ops[from:to]
		k.rows.first, k.rows.last = k.rows.ops[0].StartNs, k.rows.ops[to-from-1].StartNs+1
		_, err := keepParts(t.Context(), k, false)
		require.NoError(t, err)
		for name := range k.values {
			if p, ok := parsePart(name); ok {
				end = max(end, p.to)
			}
		}
		return end
	}
	first := reach(10, len(all.ops)/2)
	require.Positive(t, first)
	assert.Greater(t, reach(0, len(all.ops)), first+all.last/4)
	analysed(t, k, Options{})
}

// TestRun_ManySteps has more scopes than those that decide which ones are steps.
func TestRun_ManySteps(t *testing.T) {
	const steps = 20_000
	b := &store.Batch{
		Lanes: []store.Lane{{}, {Key: 1, Device: "GPU-1"}}, Shapes: []store.Shape{{}, {Key: 1, Operation: store.OpKernel, Name: "k"}},
		Places: []store.Place{{}}, Stacks: []store.Stack{{}}, Origins: []store.Origin{{}},
	}
	for i := range int64(steps) {
		at := 1 + i*10*µs
		b.Ops = append(b.Ops, store.Op{StartNs: at + 5*µs, EndNs: at + 7*µs, Span: store.SpanID(i + 1), Lane: 1, Shape: 1})
		step := store.SpanID(1_000_000 + 3*i)
		for j, name := range []string{fmt.Sprintf("train step %d", i), "forward", "backward"} {
			x := store.Span{StartNs: at + int64(j), EndNs: at + 9*µs - int64(j), Span: step + store.SpanID(j), Name: name, Operation: "scope"}
			if j > 0 {
				x.Parent = step
			}
			b.Spans = append(b.Spans, x)
		}
	}
	var c Collection
	c.Add(b)
	r, err := Run(t.Context(), &c, Options{})
	require.NoError(t, err)
	check(t, r)
	assert.Equal(t, "train step", r.Steps.Name)
	assert.Equal(t, int64(steps), r.Steps.Count)
	assert.False(t, r.Steps.More)
}

// FuzzPart changes what follows the key and the carry before a part, so that the analysis reads it.
func FuzzPart(f *testing.F) {
	rows := random(7)
	rows.spans = nil
	k := rows.keeping()
	if _, err := Run(f.Context(), k, Options{}); err != nil {
		f.Fatal(err)
	}
	names := k.parts()
	original := maps.Clone(k.values)
	heads := map[string][]byte{}
	for i, name := range names {
		b := original[name]
		c := openKept(b)
		var counted bool
		var key string
		var before, after []byte
		c.bools(&counted)
		c.text(&key)
		c.sized(&before)
		heads[name] = b[:len(b)-4-len(c.in.Rest)]
		c.sized(&after)
		f.Add(uint8(i), i%2 == 1, after, c.in.Rest)
	}
	f.Fuzz(func(t *testing.T, i uint8, update bool, after, rest []byte) {
		name := names[int(i)%len(names)]
		c := &codec{out: slices.Clone(heads[name])}
		c.sized(&after)
		c.out = append(c.out, rest...)
		k.values = maps.Clone(original)
		k.values[name] = c.closed()
		var err error
		if update {
			_, err = keepParts(t.Context(), k, true)
		} else {
			_, err = Run(t.Context(), k, Options{})
		}
		require.NoError(t, err)
	})
}

func FuzzGroups(f *testing.F) {
	k := random(7).keeping()
	if _, err := NewProfile(f.Context(), k, Options{}); err != nil {
		f.Fatal(err)
	}
	for name, b := range k.values {
		if !strings.HasPrefix(name, "groups-") {
			continue
		}
		c := openKept(b)
		var more bool
		var earliest int64
		var sums [2]uint64
		c.uint(&sums[0])
		c.bools(&more)
		c.ints(&earliest)
		c.uint(&sums[1])
		f.Add(c.in.Rest, 3)
	}
	f.Fuzz(func(t *testing.T, b []byte, steps int) {
		var all map[string]*groups
		if reading(b).allGroups(&all); len(all) == 0 {
			return
		}
		var sum groups
		for range 2 {
			for _, id := range slices.Sorted(maps.Keys(all)) {
				sum.merge(all[id], max(steps, 0)%maxSteps, 7)
			}
		}
		for kind, groups := range sum.all {
			require.LessOrEqual(t, len(groups), maxGroups)
			for _, g := range sum.sorted(kind) {
				require.LessOrEqual(t, max(len(g.Calls.Cells), len(g.Steps.Cells)), maxCells)
			}
		}
	})
}

// TestNewProfile_Parts reads groups from kept parts, and operations again if a scope of their launches is late.
func TestNewProfile_Parts(t *testing.T) {
	p := train(200, func(p *program, i int) {
		p.scope("forward", func() {
			row := p.work(store.OpKernel, "first", 30*µs)
			row.PlaceRef.Parent = p.span + 1
		})
		kernels(p, 9, 20*µs)
		p.sync()
	})
	r := p.reader()
	i := slices.IndexFunc(r.spans, func(s store.SpanRow) bool { return s.Name == "forward" && s.StartNs > r.last/4 })
	late := r.spans[i]
	r.spans = slices.Delete(r.spans, i, i+1)
	k := r.keeping()
	profile := func() (p *Profile, swept int) {
		k.swept.Store(0)
		p, err := NewProfile(t.Context(), k, Options{})
		require.NoError(t, err)
		return p, int(k.swept.Load())
	}
	want, swept := profile()
	assert.Equal(t, len(r.ops), swept)
	assert.Equal(t, int64(199), find(t, want.Scopes, "forward").Count)
	got, swept := profile()
	assert.Equal(t, want, got)
	assert.Less(t, swept, 40, "the rest of the session")
	launches := func(p *Profile) (n int64) {
		for _, c := range find(t, p.Scopes, "forward").Steps.Cells {
			n += c.Count
		}
		return n
	}
	assert.Equal(t, int64(199), launches(got))

	r.spans = slices.Insert(r.spans, i, late)
	got, swept = profile()
	assert.Equal(t, int64(200), find(t, got.Scopes, "forward").Count)
	assert.Equal(t, int64(200), launches(got))
	assert.Less(t, swept, 100, "the part with the launch, and the rest")

	for name := range k.values {
		if strings.HasPrefix(name, "groups-") {
			k.values[name] = nil
		}
	}
	_, swept = analysed(t, k, Options{})
	assert.Less(t, swept, 40, "an analysis needs no groups")
	_, swept = profile()
	assert.Less(t, swept, 40, "the comparison in analysed swept over all parts again")
}
