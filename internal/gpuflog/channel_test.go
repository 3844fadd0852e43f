// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"testing"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

func TestChannelsOfRecordTypes(t *testing.T) {
	want := map[string]Channel{
		"kernel_event": Device, "kernel_detail": Device, "memcpy_event_batch": Device, "kernel_perf_metric_event": Device,
		"scope_begin": Scope, "scope_event_batch": Scope, "nvtx_marker_event": Scope, "perf_metric_event": Scope,
		"system_sample": System, "host_metric_batch": System, "ptx_disassembly": Sass,
	}
	for name, ch := range want {
		if got, ok := ChannelOf(name); !ok || got != ch {
			t.Errorf("%s: %v %v, want %v", name, got, ok, ch)
		}
	}
	for _, name := range []string{"init", "job_start", "shutdown", "dictionary_update", "capture_capabilities", "run_end", "new_thing"} {
		if ch, ok := ChannelOf(name); ok {
			t.Errorf("%s stands in every channel or is unknown, got %v", name, ch)
		}
	}
	for ch := range NumChannels {
		if got, ok := ChannelNamed(ch.String()); !ok || got != ch {
			t.Errorf("%v: %v %v", ch, got, ok)
		}
	}
	if _, ok := ChannelNamed("unknown"); ok {
		t.Error("a channel named unknown")
	}
}

func TestTypeAndSessionOfALine(t *testing.T) {
	for line, want := range map[string][2]string{
		`{"version":1,"type":"job_start","pid":1,"session_id":"s1"}`:  {"job_start", "s1"},
		`{"session_id":"s\u0032","x":{"session_id":"no"},"type":"a"}`: {"a", "s2"},
		`{"x":{"session_id":"no","type":"no"}}`:                       {"", ""},
		`[1]`:                                                         {"", ""},
		`{"type":"a","session_id":7}`:                                 {"a", ""},
		`{"type":"a","session_id":"`:                                  {"a", ""},
	} {
		if got := TypeOf([]byte(line)); got != want[0] {
			t.Errorf("type of %s: %q, want %q", line, got, want[0])
		}
		if got := SessionOf([]byte(line)); got != want[1] {
			t.Errorf("session of %s: %q, want %q", line, got, want[1])
		}
	}
}

func TestAFlushReleasesWhatWaitsAndEndsNothing(t *testing.T) {
	const id = `"session_id":"11111111-2222-4333-8444-555555555555"`
	d := NewDecoder(Options{})
	out := gpuevent.NewBatch(gpuevent.Signals{Traces: true})
	d.Feed(Device, []byte(`{"version":1,"type":"job_start","pid":1,"app":"a",`+id+`,"ts_ns":1786060800000000000,"session_kind":"trace"}
{"version":1,"type":"kernel_event_batch",`+id+`,"batch_id":1,"base_time_ns":1786060800003000000,"columns":["dt_ns","kernel_id","stream_id","duration_ns","corr_id","dyn_shared","num_regs","has_details"],"rows":[[0,1,7,150,100,0,40,1],[500,1,7,150,101,0,40,0]]}
`), 0, 1, out)
	if rows, held := d.Waiting(); rows+held != 2 || out.Spans() != 0 {
		t.Fatalf("%d rows and %d events wait, %d spans are out: want 2 waiting", rows, held, out.Spans())
	}
	d.EndStep(Step{Now: 2, Flush: true}, out)
	if rows, held := d.Waiting(); rows+held != 0 || out.Spans() != 2 {
		t.Fatalf("%d rows and %d events wait, %d spans are out: want 2 spans", rows, held, out.Spans())
	}
	if d.Finished() {
		t.Error("a flush ended the session")
	}
	if d.LinesRejected() != 0 {
		t.Error("a flush rejected a line")
	}
	d.Feed(Device, []byte("{\n{\"type\":\"kernel_event\"}\n{\"type\":\"new_thing\"}\n"), 0, 3, out)
	if n := d.LinesRejected(); n != 2 {
		t.Errorf("%d lines rejected, want 2: an unknown type is whole", n)
	}
}
