// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"bytes"
	"testing"
	"time"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// seedLines are one line of each shape, with the corners that the format document names.
var seedLines = []string{
	`{"type":"init","pid":1,"app":"a","session_id":"s","log_path":"x","ts_ns":1773600000000000000,"host":{"cpu_pct":1.5,"ram_used_mib":1,"ram_total_mib":2},"devices":[{"id":0,"name":"G","uuid":"GPU-a","vendor":"NVIDIA","used_mib":1}],"cuda_static_devices":[{"id":0,"compute_major":"9","compute_minor":0,"multi_processor_count":132}]}`,
	`{"version":1,"type":"job_start","pid":1,"app":"a","session_id":"s","ts_ns":1786060800000000000,"gpu_static_devices":[{"id":0,"compute_major":9}],"session_kind":"trace","profiling_engine":"nvidia.trace","analysis_id":"x","pass_index":0}`,
	`{"type":"kernel_event","session_id":"s","name":"k","has_details":true,"device_id":"0","stream_id":"7","stack_trace":"main||f","user_scope":"epoch|k","scope_depth":1,"start_ns":1773600000003000000,"end_ns":1773600000003150123,"api_start_ns":1773600000002991000,"api_exit_ns":1773600000002997000,"grid":"(64,1,1)","block":"(256,1,1)","occupancy":nan,"corr_id":100}`,
	`{"version":1,"type":"kernel_event_batch","session_id":"s","batch_id":1,"base_time_ns":1786060800003000000,"columns":["dt_ns","kernel_id","stream_id","duration_ns","corr_id","dyn_shared","num_regs","has_details"],"rows":[[0,1,7,150123,100,0,40,1],[-100000,2,13,25000,99,0,16,0],[1,2],["x"],[0,1,7,150123,100,0,40,1]]}`,
	`{"version":1,"type":"kernel_detail","session_id":"s","corr_id":100,"grid":"(64,1,1)","block":"(256,1,1)","user_scope":"epoch|step","stack_trace":"main|f"}`,
	`{"version":1,"type":"dictionary_update","session_id":"s","kernel_dict":{"1":"gemm","x":"y"},"scope_name_dict":{"1":"epoch"},"function_dict":{"1":"k@/a.cu"}}`,
	`{"version":3,"type":"scope_event_batch","session_id":"s","batch_id":1,"base_time_ns":1786060800002000000,"columns":["dt_ns","scope_instance_id","name_id","event_type","depth","repeat","warmup","original_start_ns"],"rows":[[0,1,1,0,0,0,0,1786060800002000000],[8000000,1,1,1,0,0,0,1786060800002000000],[9,7,1,1,3,0,0,1786060800002000000]]}`,
	`{"version":1,"type":"profile_sample_batch","session_id":"s","batch_id":1,"base_time_ns":1786060800009500000,"columns":["dt_ns","corr_id","device_id","function_id","pc_offset","metric_id","metric_value","stall_reason","sample_kind","scope_name_id"],"rows":[[0,0,0,1,416,2,12,7,0,1],[0,0,0,1,416,1,18446744073709551615,0,1,1],[0,0,0,1,0,1,1,0,2,0]]}`,
	`{"version":1,"type":"pm_sample_batch","session_id":"s","batch_id":1,"base_time_ns":1786060800009600000,"columns":["sample_index","dt_ns","device_id","metric_id","value","scope_name_id"],"rows":[[1,100000,0,3,1.23457e+06,0],[1,1,0,3,nan,0]]}`,
	`{"version":1,"type":"synchronization_event_batch","session_id":"s","batch_id":1,"base_time_ns":1786060800009700000,"columns":["dt_ns","duration_ns","sync_type","stream_id","event_id","context_id","corr_id","function_id"],"rows":[[0,120000,3,7,4294967295,1,92,2]]}`,
	`{"version":1,"type":"memory_alloc_event_batch","session_id":"s","batch_id":1,"base_time_ns":1786060800001500000,"columns":["dt_ns","duration_ns","memory_op","memory_kind","address","bytes","device_id","stream_id","corr_id"],"rows":[[0,0,1,3,18446744073709551615,4194304,0,0,10]]}`,
	`{"type":"nvtx_marker_event","session_id":"s","name":"forward","domain":"","start_ns":1786060800002200000,"end_ns":1786060800005200000,"marker_id":5}`,
	`{"type":"graph_launch_event","session_id":"s","start_ns":0,"end_ns":0,"graph_id":3,"corr_id":94}`,
	`{"version":1,"type":"capture_capabilities","session_id":"s","ts_ns":1786060812000000000,"capabilities":[{"feature":"kernel_events","requested":true,"status":"collected","mode":"launch_callbacks_synthetic"}]}`,
	`{"version":1,"type":"cubin_disassembly","session_id":"s","cubin_crc":3735928559,"function_name":"_Z1kPf","entries":[{"pc":0,"sass":"MOV"},{"pc":16,"sass":"STS","count":4}]}`,
	`{"version":1,"type":"source_file_content","session_id":"s","source_file_id":1,"lines":["a","b"]}`,
	`{"type":"deep_window_event","session_id":"s","name":"w","engines":["x"],"start_ns":1,"trigger":{"rule_id":"r","threshold":50}}`,
	`{"type":"shutdown","session_id":"s","ts_ns":1786060900000000000,"synthetic":true,"exit_code":139,"signaled":true,"signal":11,"crashed":true}`,
	`{"type":"scope_begin","session_id":"s","name":"epoch","tag":"t","ts_ns":1773600000002000000,"user_scope":"epoch","scope_depth":0,"host":{},"devices":[]}`,
	`{"type":"scope_end","session_id":"s","name":"epoch","ts_ns":1773600000010000000,"user_scope":"epoch","scope_depth":0}`,
	`{"type":"init","system_rate_ms":5,"session_id":"old"}`,
	`{"a":1}`, `{`, "\xff\xfe", `{"type":"x\"y"}`, `{"type":"kernel_event","session_id":"s","name":"\xff","start_ns":9223372036854775807,"end_ns":-9223372036854775808}`,
	`{"type":"memcpy_event","session_id":"s","start_ns":1773600000009000000,"end_ns":1,"bytes":-5,"copy_kind":"HtoD","scope_depth":900000000}`,
}

// FuzzDecoder feeds arbitrary bytes to a channel between sound lines: nothing may panic, every line
// is counted, and what comes out is bounded by what went in.
func FuzzDecoder(f *testing.F) {
	for i, l := range seedLines {
		f.Add(uint8(i), []byte(l+"\n"+seedLines[(i+1)%len(seedLines)]))
	}
	f.Fuzz(func(t *testing.T, ch uint8, data []byte) {
		d := NewDecoder(Options{MaxSpansPerTrace: 16, MaxRows: 8, MaxHeld: 8, MaxScopes: 16, MaxDictionaryBytes: 4096, MaxSessions: 3})
		out := gpuevent.NewBatch(allSignals)
		channel := Channel(ch) % NumChannels
		// A row of two bytes can become some points or a span of a few KiB. What is held at a time is
		// bounded by a full batch; this bounds the work.
		alloctest.Limit{PerByte: 16 << 10, Constant: 4 << 20}.Check(t, len(data), func() {
			d := NewDecoder(d.opt)
			out := gpuevent.NewBatch(allSignals)
			d.WhenFull(func(b *gpuevent.Batch) bool { b.Take(); return true })
			d.Feed(channel, data, 0, 2e18, out)
			d.EndStep(Step{Now: 2e18, Flush: true}, out)
		})
		before := []byte(seedLines[5] + "\n" + seedLines[6] + "\n")
		d.Feed(Scope, before, 0, 2e18, out)
		d.Feed(channel, data, 0, 2e18, out)
		d.EndStep(Step{Now: 2e18}, out)
		state, dicts := d.AppendState(nil), d.AppendDictionaries(nil)
		again := NewDecoder(d.opt)
		if err := again.LoadState(state, dicts); err != nil {
			t.Fatalf("own state refused: %v", err)
		}
		if got := again.AppendState(nil); !bytes.Equal(got, state) {
			t.Fatal("state changed by saving and loading")
		}
		d.Feed(channel, data, 0, 2e18, out)
		d.EndStep(Step{Now: 2e18 + 3e9, AtEnd: [NumChannels]bool{true, true, true, true}, Quiet: time.Hour, Gone: true}, out)
		st := d.Stats()
		want := 2 * bytes.Count(data, []byte("\n"))
		if n := len(data); n > 0 && data[n-1] != '\n' {
			want += 2
		}
		if st.Lines != uint64(want+2) || st.Bytes != uint64(2*len(data)+len(before)) {
			t.Fatalf("counted %d lines and %d bytes of %d and %d", st.Lines, st.Bytes, want+2, 2*len(data)+len(before))
		}
		var records uint64
		for _, n := range st.Records {
			records += n
		}
		if records > st.Lines {
			t.Fatalf("%d records of %d lines", records, st.Lines)
		}
		if rows, events := d.Waiting(); rows+events != 0 {
			t.Fatalf("%d rows and %d events still wait at the end", rows, events)
		}
		// A row takes two bytes at least, and one line gives a handful of items otherwise.
		if n := out.Spans() + out.LogRecords() + out.Points(); n > 40*(len(data)+200) {
			t.Fatalf("%d items of %d bytes", n, len(data))
		}
		out.Take()
	})
}

// FuzzLoadState loads arbitrary checkpoints: refused or usable, never a panic.
func FuzzLoadState(f *testing.F) {
	d := NewDecoder(Options{})
	out := gpuevent.NewBatch(allSignals)
	for i, l := range seedLines {
		d.Feed(Channel(i)%NumChannels, []byte(l+"\n"), 0, 2e18, out)
		f.Add(d.AppendState(nil), d.AppendDictionaries(nil))
	}
	f.Fuzz(func(t *testing.T, state, dicts []byte) {
		var d *Decoder
		var err error
		alloctest.Limit{PerByte: 512, Constant: 1 << 20}.Check(t, len(state)+len(dicts), func() {
			d = NewDecoder(Options{MaxSpansPerTrace: 16})
			err = d.LoadState(state, dicts)
		})
		if err != nil {
			return
		}
		out := gpuevent.NewBatch(allSignals)
		for i, l := range seedLines {
			d.Feed(Channel(i)%NumChannels, []byte(l+"\n"), 0, 2e18, out)
		}
		d.EndStep(Step{Now: 2e18 + 3e9, AtEnd: [NumChannels]bool{true, true, true, true}, Quiet: time.Hour, Gone: true}, out)
		out.Take()
	})
}
