// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// TestDecoder_Expansion decodes, for each kind of record that can expand, the input that expands most.
// It bounds what is allocated and what is sent for a byte of input.
func TestDecoder_Expansion(t *testing.T) {
	const (
		base = 1_790_000_000_000_000_000
		rows = 5000
		// wireLimit is the most that is sent for a byte of input. A row of 20 bytes can repeat a text
		// of 16 KiB, and that is the worst.
		wireLimit = 1024
	)
	long := strings.Repeat("n", 300_000)
	record := func(typ, rest string) string {
		return fmt.Sprintf(`{"version":1,"type":"%s","session_id":"s","pid":1,"ts_ns":%d,%s}`+"\n", typ, int64(base), rest)
	}
	repeated := func(n int, row func(i int) string) string {
		list := make([]string, n)
		for i := range list {
			list[i] = row(i)
		}
		return strings.Join(list, ",")
	}
	batch := func(typ, columns string, n int, row func(i int) string) string {
		return record(typ, fmt.Sprintf(`"batch_id":1,"base_time_ns":%d,"columns":["%s"],"rows":[%s]`,
			int64(base), strings.ReplaceAll(columns, " ", `","`), repeated(n, row)))
	}
	job := func(rest string) string { return record("job_start", `"app":"a"`+rest) }
	kernels := batch("kernel_event_batch", "dt_ns kernel_id stream_id duration_ns corr_id", rows,
		func(i int) string { return fmt.Sprintf("[%d,1,0,9,%d]", i*10, i+1) })
	dictionary := func(kind, text string) string {
		return record("dictionary_update", fmt.Sprintf(`"%s":{"1":"%s"}`, kind, text))
	}
	nested := func(n int) string {
		return batch("scope_event_batch", "dt_ns scope_instance_id name_id event_type depth", n,
			func(i int) string { return fmt.Sprintf("[%d,%d,1,0,%d]", i, i+1, i) })
	}
	for _, tt := range []struct {
		name string
		opt  Options
		text [NumChannels]string
		cut  Reason // the reason that is counted, if any
	}{
		{"kernels", Options{}, [NumChannels]string{Device: job("") + kernels}, NumReasons},
		{"device metrics", Options{}, [NumChannels]string{System: job("") + batch("device_metric_batch",
			"dt_ns device_id gpu_util mem_util temp_c power_mw used_mib total_mib clock_sm", rows,
			func(i int) string { return fmt.Sprintf("[%d,0,1,1,1,1,1,1,1]", i) })}, NumReasons},
		{"samples", Options{}, [NumChannels]string{Device: job("") + batch("pm_sample_batch",
			"sample_index dt_ns device_id metric_id value", rows,
			func(i int) string { return fmt.Sprintf("[%d,%d,0,3,1]", i, i) })}, NumReasons},
		{"a long application name", Options{}, [NumChannels]string{
			Device: record("job_start", `"app":"`+long+`"`) + kernels}, TextTooLong},
		{"a long device id", Options{}, [NumChannels]string{
			System: job(`,"devices":[{"id":0,"uuid":"`+long+`"},{"id":1,"uuid":"b"}]`) + batch("device_metric_batch",
				"dt_ns device_id gpu_util", rows, func(i int) string { return fmt.Sprintf("[%d,0,1]", i) })}, TextTooLong},
		{"a long kernel name", Options{}, [NumChannels]string{
			Device: job("") + dictionary("kernel_dict", long) + kernels}, TextTooLong},
		{"a long scope name", Options{}, [NumChannels]string{
			Scope: job("") + dictionary("scope_name_dict", long) + nested(1), Device: job("") + kernels}, TextTooLong},
		{"nested scopes with a long name", Options{}, [NumChannels]string{
			Scope: job("") + dictionary("scope_name_dict", long[:15_000]) + nested(400)}, ScopesFull},
		{"nested scopes in small traces", Options{MaxSpansPerTrace: 100}, [NumChannels]string{
			Scope: job("") + dictionary("scope_name_dict", "n") + nested(2000)}, ScopesFull},
		{"a scope of 20,000 names", Options{}, [NumChannels]string{
			Scope: job("") + record("scope_begin", `"name":"x","scope_depth":1,"user_scope":"`+strings.Repeat("|", 20_000)+`x"`)}, TextTooLong},
		{"dictionary", Options{}, [NumChannels]string{Device: job("") + record("dictionary_update",
			`"kernel_dict":{`+repeated(rows, func(i int) string { return fmt.Sprintf(`"%d":"k"`, i) })+"}")}, NumReasons},
		{"devices", Options{}, [NumChannels]string{System: job(`,"devices":[` + repeated(rows, func(i int) string {
			return fmt.Sprintf(`{"id":%d}`, i)
		}) + "]")}, NumReasons},
		{"listing", Options{}, [NumChannels]string{Sass: job("") + record("cubin_disassembly", `"function_name":"k","entries":[`+
			repeated(rows, func(int) string { return "{}" })+"]")}, NumReasons},
		{"source", Options{}, [NumChannels]string{Sass: job("") + record("source_file_content",
			`"lines":[`+repeated(rows, func(int) string { return `""` })+"]")}, NumReasons},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := 0
			for _, text := range tt.text {
				in += len(text)
			}
			var d *Decoder
			var sent, most int
			allocated := alloctest.Limit{PerByte: 400, Constant: 4 << 20}.Check(t, in, func() {
				sent, most = 0, 0
				d = NewDecoder(tt.opt)
				out := gpuevent.NewBatch(gpuevent.Signals{Traces: true, Logs: true, Metrics: true})
				take := func(b *gpuevent.Batch) bool {
					most = max(most, b.Spans()+b.LogRecords()+b.Points()/4)
					td, ld, md := b.Take()
					sent += (&ptrace.ProtoMarshaler{}).TracesSize(td) + (&plog.ProtoMarshaler{}).LogsSize(ld) +
						(&pmetric.ProtoMarshaler{}).MetricsSize(md)
					return true
				}
				d.WhenFull(take)
				for _, ch := range []Channel{System, Scope, Device, Sass} {
					d.Feed(ch, []byte(tt.text[ch]), 0, base, out)
				}
				d.EndStep(Step{
					Now: base + 1e12, AtEnd: [NumChannels]bool{true, true, true, true}, Gone: true, Quiet: time.Hour,
				}, out)
				take(out)
			})
			t.Logf("%d KB: %d bytes allocated and %d sent for each byte, %d items at most", in>>10, allocated/uint64(in), sent/in, most)
			assert.LessOrEqual(t, sent, wireLimit*in, "bytes sent")
			assert.LessOrEqual(t, most, 8192+200, "items of a batch")
			if tt.cut < NumReasons {
				assert.NotZero(t, d.Stats().Rejects[tt.cut], tt.cut.String())
			}
		})
	}
}
