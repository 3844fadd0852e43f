// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// longLines are a device channel with more kernels in one line than a batch takes, behind their scopes.
func longLines(kernels int) (scopes, device string) {
	const base = 1_790_000_000_000_000_000
	head := fmt.Sprintf(`{"type":"job_start","version":1,"session_id":"s","pid":1,"app":"a","ts_ns":%d}`+"\n", int64(base))
	var s, d strings.Builder
	s.WriteString(head)
	fmt.Fprintf(&s, `{"type":"dictionary_update","version":1,"session_id":"s","scope_name_dict":{"1":"step"}}`+"\n")
	fmt.Fprintf(&s, `{"type":"scope_event_batch","version":1,"session_id":"s","batch_id":1,"base_time_ns":%d,"columns":["dt_ns","scope_instance_id","name_id","event_type","depth"],"rows":[`, int64(base))
	for i := range kernels / 10 {
		if i > 0 {
			s.WriteByte(',')
		}
		fmt.Fprintf(&s, "[%d,%d,1,0,0],[%d,%d,1,1,0]", i*10_000, i+1, i*10_000+9_000, i+1)
	}
	s.WriteString("]}\n")
	d.WriteString(head + `{"type":"dictionary_update","version":1,"session_id":"s","kernel_dict":{"1":"k"}}` + "\n")
	fmt.Fprintf(&d, `{"type":"kernel_event_batch","version":1,"session_id":"s","batch_id":1,"base_time_ns":%d,"columns":["dt_ns","kernel_id","stream_id","duration_ns","corr_id","has_details"],"rows":[`, int64(base))
	for i := range kernels {
		if i > 0 {
			d.WriteByte(',')
		}
		fmt.Fprintf(&d, "[%d,1,0,100,%d,0]", i*1000, i+1)
	}
	d.WriteString("]}\n")
	end := fmt.Sprintf(`{"type":"shutdown","version":1,"session_id":"s","ts_ns":%d}`+"\n", int64(base)+int64(kernels)*1000)
	s.WriteString(end)
	d.WriteString(end)
	return s.String(), d.String()
}

// spans notes what a batch holds, by span id.
func spans(t *testing.T, into map[string]string, td ptrace.Traces) {
	t.Helper()
	for _, rs := range td.ResourceSpans().All() {
		for _, ss := range rs.ScopeSpans().All() {
			for _, s := range ss.Spans().All() {
				id := s.TraceID().String() + s.SpanID().String()
				if _, twice := into[id]; twice {
					require.Fail(t, "a span was sent twice", s.Name())
				}
				into[id] = fmt.Sprint(s.Name(), s.ParentSpanID(), s.StartTimestamp(), s.EndTimestamp())
			}
		}
	}
}

func TestDecoder_FullBatch(t *testing.T) {
	const kernels = 40_000
	scopes, device := longLines(kernels)
	last := Step{Now: 1_800_000_000_000_000_000, AtEnd: [NumChannels]bool{true, true, true, true}, Gone: true, Quiet: dataEnd}
	decode := func(t *testing.T, whenFull func(d *Decoder, all map[string]string) func(*gpuevent.Batch) bool) map[string]string {
		all := map[string]string{}
		d := NewDecoder(Options{MaxHeld: 2 * kernels, MaxRows: 2 * kernels})
		out := gpuevent.NewBatch(gpuevent.Signals{Traces: true})
		take := func() {
			td, _, _ := out.Take()
			spans(t, all, td)
		}
		if whenFull != nil {
			d.WhenFull(whenFull(d, all))
		}
		feed := func(ch Channel, text string) {
			for line := range strings.Lines(text) {
				for row, done := int64(0), false; !done; {
					row, done = d.FeedLine(ch, []byte(line), row, 0, 1, out)
					if !done {
						require.True(t, d.Stopped())
						take()
					}
				}
			}
		}
		// The device channel first: its kernels wait for the scopes.
		feed(Device, device)
		feed(Scope, scopes)
		for d.EndStep(last, out); d.Stopped(); d.EndStep(last, out) {
			take()
		}
		take()
		require.True(t, d.Finished())
		assert.Zero(t, d.Stats().Rejects)
		assert.EqualValues(t, len(strings.Split(scopes+device, "\n"))-1, d.Stats().Lines)
		return all
	}
	want := decode(t, nil)
	require.Greater(t, len(want), kernels+kernels/10)

	t.Run("emptied", func(t *testing.T) {
		calls := 0
		got := decode(t, func(_ *Decoder, all map[string]string) func(*gpuevent.Batch) bool {
			return func(b *gpuevent.Batch) bool {
				calls++
				assert.LessOrEqual(t, b.Spans(), 8192+64, "spans of a full batch, and those of one event")
				td, _, _ := b.Take()
				spans(t, all, td)
				return true
			}
		})
		assert.Equal(t, want, got)
		assert.GreaterOrEqual(t, calls, len(want)/8192-1)
	})
	t.Run("stopped and continued", func(t *testing.T) {
		got := decode(t, func(*Decoder, map[string]string) func(*gpuevent.Batch) bool {
			return func(*gpuevent.Batch) bool { return false }
		})
		assert.Equal(t, want, got)
	})
}
