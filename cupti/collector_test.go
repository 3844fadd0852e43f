// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package cupti

import (
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		removeCoreObjects()
		os.Exit(code)
	}))
}

// open opens a Collector on the fake, and closes it at the end of the test.
func open(t *testing.T, cfg Config) (*cuptitest.Fake, *Collector) {
	t.Helper()
	fake := cuptitest.Libraries(t)
	cfg.Library = fake.CUPTI
	c, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if n := fake.Control("not_zero", 0); n != 0 {
			t.Errorf("%d buffers were promised to be zero and were not", n)
		}
		if n := fake.Control("copied_concurrently", 0); n != 0 {
			t.Errorf("records of copies were switched off or asked for by force %d times beside a copy", n)
		}
	})
	return fake, c
}

// heldCopy has a copy in flight until what it returns is called.
func heldCopy(t *testing.T, fake *cuptitest.Fake) (letGo func()) {
	t.Helper()
	fake.Control("copy_hold", 1)
	done := make(chan struct{})
	go func() { defer close(done); fake.Memory(64) }()
	for fake.Control("copying", 0) == 0 {
		time.Sleep(time.Millisecond)
	}
	letGo = sync.OnceFunc(func() {
		fake.Control("copy_hold", 0)
		<-done
	})
	t.Cleanup(letGo)
	return letGo
}

func start(t *testing.T, c *Collector) {
	t.Helper()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
}

func stop(t *testing.T, c *Collector, finalize bool) {
	t.Helper()
	if err := c.Stop(finalize); err != nil {
		t.Fatal(err)
	}
}

// drain takes everything until io.EOF and returns copies of the heads.
func drain(t *testing.T, c *Collector) []Head {
	t.Helper()
	var all []Head
	for {
		b, err := c.Take(10 * time.Second)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if b == nil {
			t.Fatal("no buffer and no end within 10 s")
		}
		for i := range b.Len() {
			all = append(all, *b.Head(i))
		}
		b.Release()
	}
}

func count(heads []Head, kind Kind) int {
	n := 0
	for i := range heads {
		if heads[i].Kind == kind {
			n++
		}
	}
	return n
}

func TestRecordsWhatWasLaunched(t *testing.T) {
	fake, c := open(t, Config{})
	fake.Control("finalized", 0)
	before := time.Now().UnixNano()
	start(t, c)
	fake.Launch("_Z3addPfS_", 1000)
	fake.Memory(4096)
	fake.Graph(10)
	stop(t, c, true)
	heads := drain(t, c)
	after := time.Now().UnixNano()

	if n := count(heads, KindKernel); n != 1000 {
		t.Errorf("%d kernels, want 1000", n)
	}
	if n := count(heads, KindMemcpy); n != 2 {
		t.Errorf("%d copies, want 2", n)
	}
	if n := count(heads, KindMemset); n != 1 {
		t.Errorf("%d sets, want 1", n)
	}
	if n := count(heads, KindGraph); n != 1 {
		t.Errorf("%d graph launches, want 1", n)
	}
	for i := range heads {
		h := &heads[i]
		if h.Start < before || h.Start > after+int64(time.Second) || h.End < h.Start {
			t.Fatalf("record %d (kind %d) from %d to %d, recorded between %d and %d", i, h.Kind, h.Start, h.End, before, after)
		}
		if h.Kind == KindKernel && h.Name.Symbol != "_Z3addPfS_" {
			t.Fatalf("kernel %d is called %q", i, h.Name.Symbol)
		}
		if h.Scope != 0 {
			t.Fatalf("record %d is in scope %d, and there was none", i, h.Scope)
		}
	}
	if heads[0].Correlation+999 != heads[999].Correlation {
		t.Errorf("correlation ids from %d to %d", heads[0].Correlation, heads[999].Correlation)
	}
	s := c.Stats()
	if s.Records != 1004 || s.Dropped != 0 || s.Unknown != 0 || s.Refused != 0 || s.Requests != 1 {
		t.Errorf("stats %+v", s)
	}
	if n := fake.Control("finalized", 0); n != 1 {
		t.Errorf("CUPTI was finalized %d times, want once", n)
	}
}

func TestNamesOutliveFinalize(t *testing.T) {
	// The fake's names are unmapped by cuptiFinalize: reading one later would be a fault, counted
	// as a reject.
	fake, c := open(t, Config{BufferBytes: 64 << 10})
	for range 3 {
		start(t, c)
		fake.Launch("_Z4gonev", 5000)
		stop(t, c, true)
		heads := drain(t, c)
		if len(heads) != 5000 || heads[4999].Name.Symbol != "_Z4gonev" {
			t.Fatalf("%d heads", len(heads))
		}
	}
	if s := c.Stats(); s.Rejected != [NumRejects]uint64{} {
		t.Errorf("rejects %v", s.Rejected)
	}
}

func TestDropsAreCountedExactly(t *testing.T) {
	fake, c := open(t, Config{})
	start(t, c)
	fake.Control("drop", 123)
	fake.Launch("k", 1000)
	stop(t, c, false)
	if n := len(drain(t, c)); n != 877 {
		t.Errorf("%d records, want 877", n)
	}
	if s := c.Stats(); s.Dropped != 123 || s.Records != 877 {
		t.Errorf("stats %+v", s)
	}
}

func TestFullPoolDropsAndRecovers(t *testing.T) {
	// 4 buffers of 64 KiB hold 303 kernels of 216 bytes each; nobody takes them.
	fake, c := open(t, Config{BufferBytes: 64 << 10, Buffers: 4})
	start(t, c)
	fake.Launch("k", 2000)
	if s := c.Stats(); s.Requests != 4 || s.Refused != 2000-4*303 {
		t.Errorf("stats %+v", s)
	}
	for range 4 {
		b, err := c.Take(time.Second)
		if err != nil || b == nil || b.Len() != 303 {
			t.Fatalf("took %v, %v", b, err)
		}
		b.Release()
	}
	fake.Launch("k", 100)
	stop(t, c, false)
	if n := len(drain(t, c)); n != 100 {
		t.Errorf("%d records after the pool was free again, want 100", n)
	}
	if s := c.Stats(); s.Dropped != 2000-4*303 || s.Records != 4*303+100 {
		t.Errorf("stats %+v", s)
	}
}

func TestManyThreadsAndAThreadOfCUPTIsOwn(t *testing.T) {
	for _, own := range []int64{0, 1} {
		fake, c := open(t, Config{BufferBytes: 256 << 10})
		fake.Set(t, "own_thread", own)
		start(t, c)
		var taken int
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				b, err := c.Take(time.Second)
				if err != nil {
					return
				}
				if b != nil {
					taken += b.Len()
					b.Release()
				}
			}
		})
		done := make(chan struct{})
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(time.Millisecond):
					_ = c.Flush()
					_ = c.Stats()
					_ = c.Pending()
				}
			}
		})
		fake.LaunchThreads(8, 10000, "_Z1kv")
		close(done)
		stop(t, c, true)
		wg.Wait()
		s := c.Stats()
		if uint64(taken)+s.Dropped != 80000 || s.Records != uint64(taken) {
			t.Errorf("own thread %d: %d taken, stats %+v", own, taken, s)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestScopesOfThreads(t *testing.T) {
	fake, c := open(t, Config{})
	start(t, c)
	if n := fake.Control("callbacks", 0); n != 0 {
		t.Errorf("%d callbacks are on before there is a scope", n)
	}
	var mu sync.Mutex
	want := map[string]uint64{}
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			outer, inner := c.NextScopeID(), c.NextScopeID()
			mu.Lock()
			want[name+"outer"], want[name+"inner"], want[name+"none"] = outer, inner, 0
			mu.Unlock()
			if err := c.PushScope(outer); err != nil {
				t.Error(err)
			}
			fake.Launch(name+"outer", 100)
			if err := c.PushScope(inner); err != nil {
				t.Error(err)
			}
			fake.Launch(name+"inner", 100)
			if err := c.PopScope(inner); err != nil {
				t.Error(err)
			}
			fake.Launch(name+"outer", 100)
			if err := c.PopScope(outer); err != nil {
				t.Error(err)
			}
			fake.Launch(name+"none", 100)
		})
	}
	wg.Wait()
	stop(t, c, true)
	heads := drain(t, c)
	if len(heads) != 4*400 {
		t.Fatalf("%d kernels", len(heads))
	}
	for i := range heads {
		if h := &heads[i]; h.Scope != want[h.Name.Full] {
			t.Fatalf("kernel %s is in scope %d, want %d", h.Name.Full, h.Scope, want[h.Name.Full])
		}
	}
	if s := c.Stats(); s.ScopesMisplaced != 0 {
		t.Errorf("%d scopes misplaced", s.ScopesMisplaced)
	}
}

func TestScopesThatAreOpenBeforeStartAndAfterStop(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fake, c := open(t, Config{})
	id := c.NextScopeID()
	if err := c.PushScope(id); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		start(t, c)
		fake.Launch("k", 10)
		stop(t, c, true)
		fake.Launch("k", 10)
		heads := drain(t, c)
		if len(heads) != 10 || heads[0].Scope != id || heads[9].Scope != id {
			t.Fatalf("%d heads, the first in scope %d, want 10 in %d", len(heads), heads[0].Scope, id)
		}
	}
	if err := c.PopScope(id); err != nil {
		t.Error(err)
	}
}

func TestMisplacedScopesAreRepaired(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fake, c := open(t, Config{})
	start(t, c)
	ids := []uint64{c.NextScopeID(), c.NextScopeID(), c.NextScopeID()}
	for _, id := range ids {
		if err := c.PushScope(id); err != nil {
			t.Fatal(err)
		}
	}
	// The middle one ends first: the inner stays.
	if err := c.PopScope(ids[1]); !errors.Is(err, ErrMisplaced) {
		t.Errorf("error %v", err)
	}
	fake.Launch("inner", 1)
	// Another thread ends the inner one: what is launched next is in the outer.
	other := make(chan error)
	go func() {
		runtime.LockOSThread()
		other <- c.PopScope(ids[2])
	}()
	if err := <-other; !errors.Is(err, ErrMisplaced) {
		t.Errorf("error %v", err)
	}
	fake.Launch("outer", 1)
	if err := c.PopScope(ids[0]); err != nil {
		t.Error(err)
	}
	fake.Launch("none", 1)
	stop(t, c, false)
	want := map[string]uint64{"inner": ids[2], "outer": ids[0], "none": 0}
	heads := drain(t, c)
	if len(heads) != 3 {
		t.Fatalf("%d heads", len(heads))
	}
	for i := range heads {
		if h := &heads[i]; h.Scope != want[h.Name.Full] {
			t.Errorf("%s is in scope %d, want %d", h.Name.Full, h.Scope, want[h.Name.Full])
		}
	}
	if s := c.Stats(); s.ScopesMisplaced != 2 {
		t.Errorf("%d scopes misplaced, want 2", s.ScopesMisplaced)
	}
}

func TestTooManyScopesOnAThread(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, c := open(t, Config{})
	var ids []uint64
	for {
		id := c.NextScopeID()
		if err := c.PushScope(id); err != nil {
			if !errors.Is(err, ErrTooDeep) {
				t.Error(err)
			}
			break
		}
		ids = append(ids, id)
	}
	if len(ids) != 256 {
		t.Errorf("room for %d scopes, want 256", len(ids))
	}
	for i := len(ids) - 1; i >= 0; i-- {
		if err := c.PopScope(ids[i]); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCorrelationIDsWrap(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fake, c := open(t, Config{})
	start(t, c)
	id := c.NextScopeID()
	begin := int64(1<<32 - 51)
	fake.Control("correlation", begin)
	if err := c.PushScope(id); err != nil {
		t.Fatal(err)
	}
	fake.Launch("in", 100)
	if err := c.PopScope(id); err != nil {
		t.Fatal(err)
	}
	// The same ids again, now outside.
	fake.Control("correlation", begin)
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	first, err := c.Take(time.Second)
	if err != nil || first == nil || first.Len() != 100 {
		t.Fatalf("took %v, %v", first, err)
	}
	for i := range 100 {
		h := first.Head(i)
		want := id
		if h.Correlation == 0 {
			want = 0 // means none
		}
		if h.Scope != want || h.Correlation != uint32(begin)+1+uint32(i) {
			t.Fatalf("kernel %d: scope %d, correlation %d", i, h.Scope, h.Correlation)
		}
	}
	first.Release()
	fake.Launch("out", 100)
	stop(t, c, false)
	for i, h := range drain(t, c) {
		if h.Scope != 0 {
			t.Fatalf("kernel %d outside is in scope %d", i, h.Scope)
		}
	}
}

func TestScopeTableOfLaterLaunch(t *testing.T) {
	slots := make([]uint64, 1<<scopeTableBits)
	table := scopeTable{slots: slots}
	const correlation = 5<<scopeTableBits | 77
	slots[77] = 5<<(scopeIDBits+1) | 1234
	slots[78] = 5<<(scopeIDBits+1) | 1<<scopeIDBits | 1235
	for _, c := range []struct {
		correlation uint32
		scope       uint64
		inferred    bool
	}{{correlation, 1234, false}, {correlation + 1, 1235, true}, {6<<scopeTableBits | 77, 0, false}, {77, 0, false}, {correlation + 2, 0, false}} {
		if got, inferred := table.of(c.correlation); got != c.scope || inferred != c.inferred {
			t.Errorf("scope of %#x is %d (inferred %t), want %d (%t)", c.correlation, got, inferred, c.scope, c.inferred)
		}
	}
	if got, _ := (scopeTable{}).of(correlation); got != 0 {
		t.Errorf("an empty table knows scope %d", got)
	}
}

func TestRefusedKindsAreMissing(t *testing.T) {
	fake, c := open(t, Config{Kinds: KindsOf(KindKernel, KindMemcpy, KindGraph, KindNVTX)})
	const graphTrace, notSupported = 51, 27
	fake.Control("refuse_kind", graphTrace<<16|notSupported)
	defer fake.Control("refuse_kind", graphTrace<<16)
	start(t, c)
	s := c.Status()
	if s.Kinds != KindsOf(KindKernel, KindMemcpy, KindNVTX) || s.Missing != KindsOf(KindGraph) || !s.OK() || s.Detail == "" {
		t.Errorf("status %+v", s)
	}
	const kernel, memcpy = 10, 1
	if on := fake.Control("enabled", 0); on != 1<<kernel|1<<memcpy {
		t.Errorf("activity kinds %#x", on)
	}
	// Nobody knows whether a copy is in flight.
	stop(t, c, false)
	if on := fake.Control("enabled", 0); on != 1<<memcpy {
		t.Errorf("activity kinds %#x after Stop", on)
	}
}

// TestStopBesideACopy: its records are not switched off, and have no room any more.
func TestStopBesideACopy(t *testing.T) {
	fake, c := open(t, Config{Kinds: KindsOf(KindKernel, KindMemcpy)})
	start(t, c)
	fake.Memory(64) // a copy to the device and one from it
	fake.Launch("one", 1)
	letGo := heldCopy(t, fake)
	stop(t, c, false)
	before := c.Stats()
	letGo()
	all := drain(t, c)
	if kernels, copies := count(all, KindKernel), count(all, KindMemcpy); kernels != 1 || copies != 2 {
		t.Errorf("%d kernels and %d copies", kernels, copies)
	}
	if after := c.Stats(); after.Unreturned != 0 || after.Requests != before.Requests || after.Dropped != 0 {
		t.Errorf("%+v", after)
	}
	start(t, c)
	fake.Memory(64)
	stop(t, c, false)
	if n := count(drain(t, c), KindMemcpy); n != 2 {
		t.Errorf("%d copies of another session", n)
	}
	if after := c.Stats(); after.Dropped != 0 { // none of a session
		t.Errorf("%+v", after)
	}
}

// TestStopWhileCopiesGoOn: what is copied from then on is not lost.
func TestStopWhileCopiesGoOn(t *testing.T) {
	for _, own := range []int64{0, 1} {
		fake, c := open(t, Config{Kinds: KindsOf(KindKernel, KindMemcpy)})
		fake.Set(t, "own_thread", own)
		var over atomic.Bool
		var copied atomic.Int64
		var copying sync.WaitGroup
		for range 3 {
			copying.Go(func() {
				for !over.Load() {
					fake.Memory(64)
					copied.Add(1)
				}
			})
		}
		for range 5 {
			start(t, c)
			for before := copied.Load(); copied.Load() <= before+3; { // one at least that has begun since
				time.Sleep(time.Millisecond)
			}
			stop(t, c, false)
			if n := count(drain(t, c), KindMemcpy); n == 0 {
				t.Error("no copies")
			}
		}
		over.Store(true)
		copying.Wait()
		if s := c.Stats(); s.Dropped != 0 || s.Unreturned != 0 {
			t.Errorf("%+v", s)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStopWithoutTheLastRecord: one that does not become complete keeps its buffer, which is
// counted.
func TestStopWithoutTheLastRecord(t *testing.T) {
	fake, c := open(t, Config{Kinds: KindsOf(KindKernel)})
	start(t, c)
	fake.Launch("one", 1)
	fake.Set(t, "incomplete", 1)
	stop(t, c, false)
	if n := c.Stats().Unreturned; n != 1 {
		t.Errorf("%d buffers were kept", n)
	}
	fake.Control("incomplete", 0)
	start(t, c)
	fake.Launch("two", 2)
	stop(t, c, false)
	if n := count(drain(t, c), KindKernel); n != 2 { // none of the session before
		t.Errorf("%d kernels", n)
	}
}

func TestEveryKindRefused(t *testing.T) {
	fake, c := open(t, Config{Kinds: KindsOf(KindKernel)})
	const kernel, noPrivileges = 10, 35
	fake.Control("refuse_kind", kernel<<16|noPrivileges)
	err := c.Start()
	fake.Control("refuse_kind", kernel<<16)
	var e *Error
	if !errors.As(err, &e) || e.Status.Reason != ReasonPermission {
		t.Fatalf("error %v", err)
	}
	start(t, c) // the refusal is over
	stop(t, c, false)
}

func TestGraphNodes(t *testing.T) {
	fake, c := open(t, Config{GraphNodes: true})
	start(t, c)
	if s := c.Status(); s.Missing != 0 {
		t.Errorf("missing %b", s.Missing)
	}
	fake.Graph(10)
	stop(t, c, false)
	heads := drain(t, c)
	if len(heads) != 10 || !heads[0].GraphNode || heads[0].Correlation != heads[9].Correlation {
		t.Errorf("%d heads, the first %+v", len(heads), heads[0])
	}
}

func TestAnotherProfiler(t *testing.T) {
	fake := cuptitest.Libraries(t)
	fake.Set(t, "refuse_subscribe", 39)
	if s := Available(fake.CUPTI); s.Reason != ReasonOtherProfiler {
		t.Errorf("Available: %+v", s)
	}
	_, err := Open(Config{Library: fake.CUPTI})
	var e *Error
	if !errors.As(err, &e) || e.Status.Reason != ReasonOtherProfiler || e.Status.Version != 130001 || e.Status.Driver != 13000 {
		t.Errorf("Open: %v", err)
	}
}

func TestOneCollectorAtATime(t *testing.T) {
	fake, c := open(t, Config{})
	_, err := Open(Config{Library: fake.CUPTI})
	var e *Error
	if !errors.As(err, &e) || e.Status.Reason != ReasonBusy {
		t.Errorf("second Open: %v", err)
	}
	if s := Available(""); !s.OK() || s.Library != fake.CUPTI {
		t.Errorf("Available beside a Collector: %+v", s)
	}
	if n := fake.Control("subscribed", 0); n != 1 {
		t.Error("not subscribed")
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if n := fake.Control("subscribed", 0); n != 0 {
		t.Error("subscribed after Close")
	}
	again, err := Open(Config{Library: fake.CUPTI})
	if err != nil {
		t.Fatal(err)
	}
	// The closed one is dead, whatever the new one does.
	if b, err := c.Take(time.Second); b != nil || !errors.Is(err, io.EOF) {
		t.Errorf("Take of a closed Collector: %v, %v", b, err)
	}
	if err := c.Start(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Start of a closed Collector: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestTakeWaitsAndIsWoken(t *testing.T) {
	fake, c := open(t, Config{})
	begin := time.Now()
	if b, err := c.Take(150 * time.Millisecond); b != nil || err != nil {
		t.Errorf("took %v, %v before Start", b, err)
	}
	if d := time.Since(begin); d < 150*time.Millisecond || d > 5*time.Second {
		t.Errorf("waited %v", d)
	}
	start(t, c)
	type taken struct {
		n   int
		err error
	}
	got := make(chan taken)
	go func() {
		b, err := c.Take(time.Minute)
		n := 0
		if b != nil {
			n = b.Len()
			b.Release()
		}
		got <- taken{n, err}
		_, err = c.Take(time.Minute)
		got <- taken{0, err}
	}()
	fake.Launch("k", 5)
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	if r := <-got; r.n != 5 || r.err != nil {
		t.Errorf("took %+v", r)
	}
	stop(t, c, true)
	if r := <-got; !errors.Is(r.err, io.EOF) {
		t.Errorf("after Stop: %+v", r)
	}
}

func TestBatchOutlivesClose(t *testing.T) {
	fake, c := open(t, Config{})
	start(t, c)
	fake.Launch("k", 5)
	stop(t, c, true)
	b, err := c.Take(time.Second)
	if err != nil || b == nil {
		t.Fatalf("took %v, %v", b, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if b.Len() != 5 || b.Head(4).Name.Full != "k" {
		t.Error("the batch changed")
	}
	b.Release()
	if err := c.Close(); err != nil {
		t.Error("second Close: ", err)
	}
}

func TestCloseWithoutTaking(t *testing.T) {
	fake, c := open(t, Config{BufferBytes: 64 << 10, Buffers: 8})
	start(t, c)
	fake.Launch("k", 1000)
	if err := c.Close(); err != nil { // stops too
		t.Fatal(err)
	}
	if b, err := c.Take(time.Second); b != nil || !errors.Is(err, io.EOF) {
		t.Errorf("took %v, %v", b, err)
	}
}

func TestFinalizeWithoutCallback(t *testing.T) {
	fake, c := open(t, Config{})
	start(t, c)
	fake.Launch("k", 5)
	fake.Set(t, "silent", 1)
	if err := c.Stop(true); !errors.Is(err, ErrNotDetached) {
		t.Errorf("error %v", err)
	}
	if n := len(drain(t, c)); n != 5 {
		t.Errorf("%d records", n)
	}
	fake.Control("silent", 0)
	start(t, c)
	fake.Launch("k", 5)
	stop(t, c, true)
	if n := len(drain(t, c)); n != 5 {
		t.Errorf("%d records the second time", n)
	}
}

func TestClockOfCUPTIsOwn(t *testing.T) {
	fake, c := open(t, Config{})
	fake.Set(t, "refuse_clock", 1) // the fake's own clock is the monotonic one
	start(t, c)
	before := time.Now()
	fake.Launch("k", 5)
	after := time.Now()
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	b, err := c.Take(time.Second)
	if err != nil || b == nil || b.Len() != 5 {
		t.Fatalf("took %v, %v", b, err)
	}
	const slack = 5 * time.Millisecond
	for i := range b.Len() {
		if at := time.Unix(0, b.Head(i).Start); at.Before(before.Add(-slack)) || at.After(after.Add(slack)) {
			t.Errorf("kernel at %v, launched between %v and %v", at, before, after)
		}
	}
	b.Release()
	stop(t, c, true)
}

func TestBrokenBuffers(t *testing.T) {
	fake, c := open(t, Config{})
	start(t, c)
	junk := make([]byte, 1000)
	for i := range junk {
		junk[i] = byte(i*7 + 1)
	}
	for _, n := range []int{1, 3, 4, 8, 100, 1000} {
		if !fake.Deliver(junk[:n]) {
			t.Fatal("not delivered")
		}
	}
	fake.Launch("k", 5)
	stop(t, c, false)
	if n := len(drain(t, c)); n != 5 {
		t.Errorf("%d records, want the 5 good ones", n)
	}
	if s := c.Stats(); s.Rejected[RejectShort] != 6 {
		t.Errorf("rejects %v, want 6 short ones", s.Rejected)
	}
}

func TestOverheadIsSummed(t *testing.T) {
	fake, c := open(t, Config{})
	fake.Set(t, "overhead_ns", 1000)
	start(t, c)
	for range 3 {
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	stop(t, c, false)
	drain(t, c)
	// A fourth record would come with Stop's flush, but its kind is off by then.
	if s := c.Stats(); s.Overhead != 3*time.Microsecond {
		t.Errorf("overhead %v", s.Overhead)
	}
}

func TestDevicesWaitForTheApplication(t *testing.T) {
	fake, c := open(t, Config{})
	t.Setenv("FAKE_CUDA_LAZY", "2")
	if d := c.Devices(); len(d) != 0 {
		t.Errorf("devices %+v before cuInit", d)
	}
	t.Setenv("FAKE_CUDA_LAZY", "1")
	if rc := fake.Init(); rc != 0 {
		t.Fatalf("cuInit: %d", rc)
	}
	if d := c.Devices(); len(d) != 1 || d[0].Name != "Fake GPU 0" {
		t.Errorf("devices %+v", d)
	}
	if err := InitDriver(); err != nil {
		t.Error(err)
	}
	t.Setenv("FAKE_CUDA_DEVICES", "0")
	var e *Error
	if err := InitDriver(); !errors.As(err, &e) || e.Status.Reason != ReasonNoDevice {
		t.Errorf("InitDriver without a GPU: %v", err)
	}
}

func TestDevicesOfMIG(t *testing.T) {
	_, c := open(t, Config{})
	t.Setenv("FAKE_CUDA_MIG", "1")
	t.Setenv("FAKE_CUDA_BOARD", "258")
	if d := c.Devices(); len(d) != 1 || d[0].UUID != "MIG-aa111213-1415-1617-1819-1a0000010200" {
		t.Errorf("devices %+v", d)
	}
}

func TestDevices(t *testing.T) {
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	t.Setenv("FAKE_CUDA_BOARD", "258")
	_, c := open(t, Config{})
	d := c.Devices()
	if len(d) != 2 || d[1].Index != 1 || d[1].Name != "Fake GPU 1" || d[1].UUID != "GPU-10111213-1415-1617-1819-1a0000010201" ||
		d[1].ComputeMajor.V != 9 || d[1].ComputeMinor.V != 0 || d[1].SMCount.V != 132 || d[1].Vendor != "NVIDIA" {
		t.Errorf("devices %+v", d)
	}
}
