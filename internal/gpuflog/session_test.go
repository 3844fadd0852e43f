// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// script feeds hand-written lines to a Decoder.
type script struct {
	t    *testing.T
	d    *Decoder
	sink *sink
	now  int64
}

const (
	t0  = int64(1786060800000000000)
	sid = "11111111-2222-4333-8444-555555555555"
)

func newScript(t *testing.T, opt Options) *script {
	s := &script{t: t, d: NewDecoder(opt), sink: newSink(), now: t0}
	s.line(Device, `{"version":1,"type":"job_start","pid":1,"app":"demo","session_id":"%s","ts_ns":%d,"hostname":"h"}`, sid, t0)
	s.line(Device, `{"version":1,"type":"dictionary_update","session_id":"%s","kernel_dict":{"1":"gemm","2":"relu"},"scope_name_dict":{"1":"outer","2":"a","3":"b"}}`, sid)
	return s
}

func (s *script) line(ch Channel, format string, args ...any) {
	s.t.Helper()
	s.d.Feed(ch, []byte(fmt.Sprintf(format, args...)+"\n"), 0, s.now, s.sink.batch)
}

// scope writes the begin or, with end, the end of an instance at t0 + at ns.
func (s *script) scope(instance, name, depth int, end bool, at int64) {
	typ := 0
	if end {
		typ = 1
	}
	s.line(Scope, `{"version":3,"type":"scope_event_batch","session_id":"%s","batch_id":1,"base_time_ns":%d,"columns":["dt_ns","scope_instance_id","name_id","event_type","depth"],"rows":[[%d,%d,%d,%d,%d]]}`,
		sid, t0, at, instance, name, typ, depth)
}

// kernel writes a row, and its detail if the scope is not "-".
func (s *script) kernel(corr int, start, duration int64, scope string) {
	s.line(Device, `{"version":1,"type":"kernel_event_batch","session_id":"%s","batch_id":%d,"base_time_ns":%d,"columns":["dt_ns","kernel_id","stream_id","duration_ns","corr_id","dyn_shared","num_regs","has_details"],"rows":[[%d,1,7,%d,%d,0,16,1]]}`,
		sid, corr, t0, start, duration, corr)
	if scope != "-" {
		s.line(Device, `{"version":1,"type":"kernel_detail","session_id":"%s","corr_id":%d,"grid":"(1,1,1)","block":"(32,1,1)","user_scope":"%s"}`, sid, corr, scope)
	}
}

func (s *script) step(st Step) *script {
	st.Now = s.now
	s.d.EndStep(st, s.sink.batch)
	s.sink.flush()
	return s
}

var atEnd = [NumChannels]bool{true, true, true, true}

// end closes the session as a finished log does.
func (s *script) end() {
	for ch := range NumChannels {
		s.line(ch, `{"type":"shutdown","pid":1,"app":"demo","session_id":"%s","ts_ns":%d}`, sid, t0+int64(time.Hour))
	}
	s.step(Step{AtEnd: atEnd})
}

func attr(sp ptrace.Span, key string) string {
	v, ok := sp.Attributes().Get(key)
	if !ok {
		return ""
	}
	return v.AsString()
}

// under returns, per kernel in the order of correlation ids, its parent's name and instance.
func (s *script) under() (out []string) {
	type id struct {
		t pcommon.TraceID
		s pcommon.SpanID
	}
	all := map[id]ptrace.Span{}
	var kernels []ptrace.Span
	for _, sp := range s.sink.spans {
		all[id{sp.TraceID(), sp.SpanID()}] = sp
		if attr(sp, "cuda.operation") == "kernel" {
			kernels = append(kernels, sp)
		}
	}
	slices.SortFunc(kernels, func(a, b ptrace.Span) int {
		return strings.Compare(fmt.Sprintf("%9s", attr(a, "cuda.correlation.id")), fmt.Sprintf("%9s", attr(b, "cuda.correlation.id")))
	})
	for _, k := range kernels {
		p, ok := all[id{k.TraceID(), k.ParentSpanID()}]
		if !ok {
			s.t.Errorf("kernel %s has no parent in its trace", attr(k, "cuda.correlation.id"))
			continue
		}
		out = append(out, p.Name()+attr(p, "cuda.scope.instance.id"))
	}
	return out
}

func (s *script) want(what string, want ...string) {
	s.t.Helper()
	if got := s.under(); !slices.Equal(got, want) {
		s.t.Errorf("%s: kernels hang under %v, want %v", what, got, want)
	}
}

func TestAKernelThatFoundTheDeviceIdleBelongsToTheYoungestRound(t *testing.T) {
	s := newScript(t, Options{})
	for i := range 3 {
		s.scope(i+1, 2, 0, false, int64(i)*1e6)
		s.scope(i+1, 2, 0, true, int64(i)*1e6+5e5)
	}
	for i := range 3 {
		s.kernel(i+1, int64(i)*1e6+1e5, 2e5, "a")
	}
	s.end()
	s.want("idle device", "a1", "a2", "a3")
}

func TestQueuedKernelsFollowTheOrderOfScopes(t *testing.T) {
	// The host runs ahead: scopes of 10 µs each, kernels of 50 µs, back to back.
	s := newScript(t, Options{})
	s.scope(1, 1, 0, false, 0)
	for i := range 6 {
		s.scope(i+2, 2+i%2, 1, false, int64(i)*10_000+1000)
		s.scope(i+2, 2+i%2, 1, true, int64(i)*10_000+9000)
	}
	s.scope(1, 1, 0, true, 1e6)
	for i := range 6 {
		s.kernel(i+1, int64(i)*50_000+2000, 50_000, "outer|"+string(rune('a'+i%2)))
	}
	s.end()
	s.want("queued", "a2", "b3", "a4", "b5", "a6", "b7")
}

func TestKernelsOfOneRoundStayTogetherWhenOthersBeganSince(t *testing.T) {
	s := newScript(t, Options{})
	for i := range 4 { // a b a b, two kernels each, queued
		s.scope(i+1, 2+i%2, 0, false, int64(i)*10_000)
		s.scope(i+1, 2+i%2, 0, true, int64(i)*10_000+9000)
	}
	for i := range 8 {
		s.kernel(i+1, int64(i)*50_000+2000, 50_000, string(rune('a'+i/2%2)))
	}
	s.end()
	s.want("pairs", "a1", "a1", "b2", "b2", "a3", "a3", "b4", "b4")
}

func TestWorkOutsideEveryScopeHangsUnderItsMinute(t *testing.T) {
	s := newScript(t, Options{})
	s.kernel(1, 1000, 10, "global")
	s.kernel(2, 61e9, 10, "global")
	s.end()
	s.want("windows", "demo", "demo")
	traces := map[pcommon.TraceID]bool{}
	for _, sp := range s.sink.spans {
		if attr(sp, "cuda.operation") == "kernel" {
			traces[sp.TraceID()] = true
		}
	}
	if len(traces) != 2 {
		t.Errorf("two minutes share %d traces", len(traces))
	}
}

func TestAScopeThatIsNotInTheLogsIsNamedOnTheSpan(t *testing.T) {
	s := newScript(t, Options{})
	s.kernel(1, 1000, 10, "lost|scope")
	s.step(Step{})
	if n := len(s.under()); n != 0 {
		t.Fatalf("%d kernels did not wait for their scope", n)
	}
	s.now += int64(11 * time.Second)
	s.step(Step{AtEnd: atEnd})
	s.end()
	s.want("lost scope", "demo")
	for _, sp := range s.sink.spans {
		if attr(sp, "cuda.operation") == "kernel" && attr(sp, "cuda.scope.path") != "lost|scope" {
			t.Errorf("path %q", attr(sp, "cuda.scope.path"))
		}
	}
	if n := s.d.Stats().ScopesMissed; n != 1 {
		t.Errorf("%d scopes missed", n)
	}
}

func TestARowWaitsForItsDetailInTheSessionsOwnTime(t *testing.T) {
	s := newScript(t, Options{JoinTimeout: time.Second})
	s.kernel(1, 0, 10, "-")
	s.step(Step{})
	s.now += int64(time.Hour) // wall time alone does not count
	s.step(Step{})
	if rows, _ := s.d.Waiting(); rows != 1 {
		t.Fatalf("%d rows wait", rows)
	}
	s.kernel(2, 2e9, 10, "global")
	s.step(Step{})
	if rows, _ := s.d.Waiting(); rows != 0 || s.d.Stats().JoinsExpired != 1 {
		t.Fatalf("%d rows wait, %d expired", rows, s.d.Stats().JoinsExpired)
	}
	// The detail that comes too late is counted when nothing can join it any more.
	s.line(Device, `{"version":1,"type":"kernel_detail","session_id":"%s","corr_id":1}`, sid)
	s.end()
	if n := s.d.Stats().Rejects[DetailWithoutRow]; n != 1 {
		t.Errorf("%d details without a row", n)
	}
}

func TestADetailMayComeBeforeItsRow(t *testing.T) {
	s := newScript(t, Options{})
	s.line(Device, `{"version":1,"type":"kernel_detail","session_id":"%s","corr_id":1,"grid":"(5,1,1)","block":"(32,1,1)","user_scope":"global"}`, sid)
	s.kernel(1, 1000, 10, "-")
	s.step(Step{})
	if rows, _ := s.d.Waiting(); rows != 0 {
		t.Fatal("the row waits")
	}
	for _, sp := range s.sink.spans {
		if attr(sp, "cuda.kernel.grid") != "[5,1,1]" {
			t.Errorf("grid %q", attr(sp, "cuda.kernel.grid"))
		}
	}
}

func TestRowsOfOneGraphLaunchShareACorrelationID(t *testing.T) {
	s := newScript(t, Options{})
	s.line(Device, `{"version":1,"type":"kernel_event_batch","session_id":"%s","batch_id":1,"base_time_ns":%d,"columns":["dt_ns","kernel_id","stream_id","duration_ns","corr_id","dyn_shared","num_regs","has_details"],"rows":[[0,1,7,5,9,0,16,1],[10,2,7,5,9,0,16,1],[20,1,7,5,9,0,16,0],[30,2,7,5,8,0,16,1]]}`, sid, t0)
	for i := range 2 {
		s.line(Device, `{"version":1,"type":"kernel_detail","session_id":"%s","corr_id":9,"grid":"(%d,1,1)","block":"(32,1,1)","user_scope":"global"}`, sid, i+1)
	}
	s.line(Device, `{"version":1,"type":"kernel_detail","session_id":"%s","corr_id":8,"grid":"(3,1,1)","block":"(32,1,1)","user_scope":"global"}`, sid)
	s.end()
	var grids []string
	for _, sp := range s.sink.spans {
		if attr(sp, "cuda.operation") == "kernel" {
			grids = append(grids, fmt.Sprintf("%d %s", int64(sp.StartTimestamp())-t0, attr(sp, "cuda.kernel.grid")))
		}
	}
	slices.Sort(grids)
	if want := []string{"0 [1,1,1]", "10 [2,1,1]", "20 ", "30 [3,1,1]"}; !slices.Equal(grids, want) {
		t.Errorf("got %q, want %q", grids, want)
	}
}

// TestDecoder_UndetailedRows has rows with and without a promised detail in one batch. The details come before the next
// batch, which releases the other rows.
func TestDecoder_UndetailedRows(t *testing.T) {
	for name, detailed := range map[string]string{
		"first": "10", "last": "01", "last two": "011", "between": "0110", "around": "1001", "none": "00", "all": "11",
		"more than the queue keeps": strings.Repeat("0", 10) + strings.Repeat("1", 5000) + "0",
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, Options{})
			batch := func(id int, detailed string) {
				var rows []string
				for i, c := range detailed {
					rows = append(rows, fmt.Sprintf("[%d,1,7,5,%d,%c]", i, 10_000*id+i, c))
				}
				s.line(Device, `{"version":1,"type":"kernel_event_batch","session_id":"%s","batch_id":%d,"base_time_ns":%d,"columns":["dt_ns","kernel_id","stream_id","duration_ns","corr_id","has_details"],"rows":[%s]}`,
					sid, id, t0, strings.Join(rows, ","))
			}
			batch(1, detailed)
			for i, c := range detailed {
				if c == '1' {
					s.line(Device, `{"version":1,"type":"kernel_detail","session_id":"%s","corr_id":%d,"grid":"(1,1,1)","block":"(1,1,1)"}`, sid, 10_000+i)
				}
			}
			batch(2, "1")
			s.step(Step{})
			rows, _ := s.d.Waiting()
			if rows != 1 {
				t.Errorf("%d rows wait, want only that of the second batch", rows)
			}
			s.end()
			if n := s.d.Stats().JoinsExpired; n != 1 {
				t.Errorf("%d joins expired, want 1", n)
			}
		})
	}
}

func TestAScopeCutBySegmentsKeepsItsBegin(t *testing.T) {
	s := newScript(t, Options{})
	s.line(Scope, `{"version":3,"type":"scope_event_batch","session_id":"%s","batch_id":1,"base_time_ns":%d,"columns":["dt_ns","scope_instance_id","name_id","event_type","depth","repeat","warmup","original_start_ns"],"rows":[[0,4,1,2,0,0,0,%d],[500,4,1,3,0,0,0,%d],[900,5,2,1,0,0,0,%d]]}`, sid, t0, t0-1000, t0-1000, t0+700)
	s.end()
	got := map[string]string{}
	for _, sp := range s.sink.spans {
		if attr(sp, "cuda.operation") == "scope" {
			got[sp.Name()] = fmt.Sprintf("%d %d %s", int64(sp.StartTimestamp())-t0, int64(sp.EndTimestamp())-t0, attr(sp, "cuda.scope.original_start_time_unix_nano"))
		}
	}
	// The second one's begin was never read; its end says when it was.
	if got["outer"] != fmt.Sprintf("0 500 %d", t0-1000) || got["a"] != "700 900 " {
		t.Errorf("got %q", got)
	}
}

func TestACrashedSessionEndsWithItsLastMoment(t *testing.T) {
	s := newScript(t, Options{SessionTimeout: time.Minute})
	s.scope(1, 1, 0, false, 0)
	s.kernel(1, 5000, 10, "outer")
	s.now += int64(time.Second)
	s.step(Step{AtEnd: atEnd, Quiet: 30 * time.Second})
	if n := s.sink.kinds["scope"]; n != 0 {
		t.Fatal("an open scope was ended too early")
	}
	s.step(Step{AtEnd: atEnd, Quiet: 61 * time.Second})
	s.want("crashed", "outer1")
	for _, sp := range s.sink.spans {
		if op := attr(sp, "cuda.operation"); op == "scope" && (attr(sp, "cuda.scope.unfinished") != "true" || int64(sp.EndTimestamp()) != t0+5000) {
			t.Errorf("scope ends at %d: %v", int64(sp.EndTimestamp())-t0, sp.Attributes().AsRaw())
		} else if op == "session" && attr(sp, "cuda.session.unfinished") != "true" {
			t.Errorf("session %v", sp.Attributes().AsRaw())
		}
	}
	if s.sink.kinds["session"] != 1 {
		t.Errorf("%d session spans", s.sink.kinds["session"])
	}
}

func TestASilentSessionMayGoOn(t *testing.T) {
	s := newScript(t, Options{SessionTimeout: time.Minute})
	s.scope(1, 1, 0, false, 0)
	s.kernel(1, 5000, 10, "outer")
	s.step(Step{AtEnd: atEnd, Quiet: 2 * time.Minute})
	s.kernel(2, 9000, 10, "outer")
	s.scope(1, 1, 0, true, 20_000)
	s.end()
	s.want("silence in between", "outer1", "outer1")
	ends := map[string]int{}
	for _, sp := range s.sink.spans {
		if attr(sp, "cuda.operation") == "scope" {
			ends[fmt.Sprintf("%s %d %s", sp.SpanID(), int64(sp.EndTimestamp())-t0, attr(sp, "cuda.scope.unfinished"))]++
		}
	}
	id := s.sink.spans[0].ParentSpanID().String() // the kernel's
	if len(ends) != 2 || ends[id+" 5000 true"] != 1 || ends[id+" 20000 "] != 1 {
		t.Errorf("scope spans %v, want %s at 5000 unfinished and at 20000", ends, id)
	}
}

func TestASessionKilledByASignalSaysSo(t *testing.T) {
	s := newScript(t, Options{})
	s.line(System, `{"type":"shutdown","pid":1,"app":"demo","session_id":"%s","ts_ns":%d,"synthetic":true,"exit_code":139,"signaled":true,"signal":11,"window_stopped":false,"crashed":true}`, sid, t0+9)
	s.step(Step{AtEnd: atEnd, Gone: true})
	for _, sp := range s.sink.spans {
		if sp.Status().Code() != ptrace.StatusCodeError || attr(sp, "process.exit.code") != "139" || attr(sp, "process.exit.signal") != "11" {
			t.Errorf("%v %v", sp.Status().Code(), sp.Attributes().AsRaw())
		}
	}
	if len(s.sink.spans) != 1 {
		t.Errorf("%d spans", len(s.sink.spans))
	}
}

func TestTablesAreBounded(t *testing.T) {
	s := newScript(t, Options{MaxScopes: 100, MaxHeld: 50, MaxRows: 40, MaxDictionaryBytes: 4000, MaxSessions: 3})
	for i := range 1000 {
		s.scope(2*i+1, 2, 0, false, int64(i)*1000) // never ends
		s.scope(2*i+2, 3, 1, false, int64(i)*1000+1)
		s.scope(2*i+2, 3, 1, true, int64(i)*1000+2)
	}
	for i := range 1000 {
		s.kernel(i+1, int64(i)+5e15, 1, "-")
		s.kernel(i+10_000, int64(i)+5e15, 1, "later")
		s.line(Scope, `{"version":1,"type":"synchronization_event_batch","session_id":"%s","batch_id":%d,"base_time_ns":%d,"columns":["dt_ns","duration_ns","sync_type","stream_id"],"rows":[[%d,1,3,7]]}`, sid, i, t0, int64(5e15))
		s.line(Device, `{"version":1,"type":"dictionary_update","session_id":"%s","kernel_dict":{"%d":"kernel number %d"}}`, sid, i, i)
		s.line(System, `{"version":1,"type":"job_start","session_id":"other %d","ts_ns":%d}`, i, t0)
	}
	if rows, events := s.d.Waiting(); rows > 3*40 || events > 3*(3*50+50) {
		t.Errorf("%d rows and %d events wait", rows, events)
	}
	if n := len(s.d.sessions); n > 3 {
		t.Errorf("%d sessions", n)
	}
	for _, x := range s.d.sessions {
		if len(x.scopes.all) > 130 || x.dicts.bytes > 4000 {
			t.Errorf("%d scopes, %d bytes of names", len(x.scopes.all), x.dicts.bytes)
		}
	}
	st := s.d.Stats()
	for _, r := range []Reason{ScopesFull, SessionsFull, DictionaryFull} {
		if st.Rejects[r] == 0 {
			t.Errorf("%s was not counted", r)
		}
	}
	if st.HeldOverflow == 0 {
		t.Error("overflow of held events was not counted")
	}
	if n := len(s.d.AppendState(nil)); n > 1<<20 {
		t.Errorf("checkpoint of %d bytes", n)
	}
}

func TestPartsHoldWhatTheirTraceMay(t *testing.T) {
	s := newScript(t, Options{MaxSpansPerTrace: 16})
	s.scope(1, 1, 0, false, 0)
	s.scope(2, 2, 1, false, 10)
	for i := range 100 {
		s.kernel(i+1, int64(i)*1e6+100, 10, "outer|a")
	}
	s.scope(2, 2, 1, true, 2e8)
	s.scope(1, 1, 0, true, 3e8)
	s.end()
	n := map[pcommon.TraceID]int{}
	roots := map[pcommon.TraceID]int{}
	parts := map[string]bool{}
	for _, sp := range s.sink.spans {
		n[sp.TraceID()]++
		if sp.ParentSpanID().IsEmpty() {
			roots[sp.TraceID()]++
		}
		if p := attr(sp, "cuda.scope.part"); p != "" {
			parts[p] = true
			if sp.Links().Len() != 1 {
				t.Errorf("%s of part %s has %d links", sp.Name(), p, sp.Links().Len())
			}
		}
	}
	for id, c := range n {
		if c > 16 || roots[id] != 1 {
			t.Errorf("trace %s has %d spans and %d roots", id, c, roots[id])
		}
	}
	// 8 kernels in part 0, then 16 a part less the two scopes repeated there.
	if want := (100 - 8 + 13) / 14; len(parts) != want {
		t.Errorf("%d further parts, want %d", len(parts), want)
	}
	checkTree(t, s.sink.spans)
	for _, u := range s.under() {
		if u != "a2" {
			t.Errorf("a kernel hangs under %s", u)
		}
	}
}

// The recorded program launches one kernel in each of sixty scopes of 15 µs, while each kernel runs
// for 30 to 60 µs: most were launched long before they started.
func TestEachScopeOfTheQueuedRecordingGetsItsKernel(t *testing.T) {
	for _, g := range loadGroups(t) {
		if !strings.HasPrefix(g.name, "c2-h200-engines/c20f") {
			continue
		}
		k, _ := decode(t, g, Options{}, whole, false)
		s := script{t: t, sink: k}
		n := map[string]int{}
		for _, u := range s.under() {
			n[u]++
		}
		if len(n) != 60 {
			t.Errorf("60 kernels hang under %d scopes: %v", len(n), n)
		}
		return
	}
	t.Skip("the recording is not there")
}

func TestSegmentsAreToldOnceThoughEveryChannelHasThem(t *testing.T) {
	s := newScript(t, Options{})
	for ch := range NumChannels {
		s.line(ch, `{"version":1,"type":"segment_start","session_id":"%s","run_id":"99999999-aaaa-4bbb-8ccc-dddddddddddd","segment_index":2,"ts_ns":%d,"actual_start_ns":%d,"previous_session_id":null,"requested_boundary_ns":null,"boundary_delay_ns":1500000000,"deferred_by":"deep_window"}`, sid, t0+5, t0)
		s.line(ch, `{"version":1,"type":"run_end","session_id":"%s","run_id":"r","final_segment_index":3,"ts_ns":%d,"ended_ns":%d,"synthetic":true}`, sid, t0+9, t0+8)
	}
	s.end()
	var got []string
	for _, item := range s.sink.items {
		if strings.HasPrefix(item, "log cuda.session.segment") {
			got = append(got, item[strings.Index(item, `" `)+2:])
		}
	}
	want := []string{
		fmt.Sprintf("cuda.run.id=99999999-aaaa-4bbb-8ccc-dddddddddddd;cuda.segment.boundary_delay=1.5;cuda.segment.boundary_time_unix_nano=%d;cuda.segment.deferred_by=deep_window;cuda.segment.index=2;cuda.segment.phase=start;", t0),
		fmt.Sprintf("cuda.record.synthetic=true;cuda.run.id=r;cuda.segment.boundary_time_unix_nano=%d;cuda.segment.index=3;cuda.segment.phase=run_end;", t0+8),
	}
	if got = withoutUIDs(got); !slices.Equal(got, want) {
		t.Errorf("got %q,\nwant %q", got, want)
	}
}

func TestAnOldHeaderWithoutSessionIDIsToldOff(t *testing.T) {
	d := NewDecoder(Options{})
	out := newSink()
	d.Feed(Device, []byte(`{"type":"init","logPath":"x","pid":1,"app":"a","ts_ns":12345}`+"\n"+
		`{"type":"kernel_begin","name":"k"}`+"\n"+`{"type":"scope_begin","name":"x","ts_ns":5}`+"\n"), 0, t0, out.batch)
	if n := d.Stats().Rejects[TooOld]; n != 2 {
		t.Errorf("%d lines are too old", n)
	}
	out.flush()
	if len(out.items) != 0 {
		t.Errorf("%q came out", out.items)
	}
}
