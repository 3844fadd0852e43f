// SPDX-License-Identifier: Apache-2.0

//go:build linux

package recordings_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
)

// checkLogs compares the log records with the lines.
func checkLogs(t *testing.T, sessions map[string]*session, store *testsink.Store, tr tree) {
	t.Helper()
	counted, wanted := map[string]int{}, map[string]int{}
	samples := map[string]int{}
	for _, l := range store.LogRecords() {
		require.Contains(t, sessions, l.Session)
		assert.NotEmpty(t, l.Event, "a log record without an event name")
		assert.NotEmpty(t, l.Body, "body of %s", l.Event)
		switch l.Event {
		case "cuda.pc_sample", "cuda.sass_metric":
			samples[l.Session+" "+sampleKey(l)] += l.Count
		case "cuda.sass_listing", "cuda.source":
			// A long text is split; its first part represents the record.
			if n, ok := l.Attrs["cuda.text.chunk.index"]; ok && n != int64(0) {
				continue
			}
		case "cuda.capture":
			if _, ok := l.Attrs["cuda.capture.requested_engine"]; !ok {
				continue // the receiver's own summary of the session, not a record
			}
		}
		counted[l.Session+" "+l.Event] += l.Count
		if !l.Span.IsEmpty() {
			_, ok := tr[l.SpanKey]
			assert.True(t, ok, "%s belongs to span %s, which is not there", l.Event, l.SpanKey)
		}
	}
	wantSamples := map[string]int{}
	for _, s := range sessions {
		for event, n := range s.logs {
			wanted[s.id+" "+event] = n
		}
		for _, r := range s.samples {
			wantSamples[s.id+" "+s.rawSampleKey(r)]++
		}
		s.checkSignatures(t, store)
	}
	assert.Equal(t, wanted, counted, "numbers of log records by session and event")
	assert.Equal(t, wantSamples, samples, "PC samples and SASS metrics, each with all its values")
}

// sampleKey returns one line with all values of a sample.
func sampleKey(l testsink.LogRecord) string {
	get := func(key string) string {
		if v, ok := l.Attrs[key]; ok {
			return fmt.Sprint(v)
		}
		return ""
	}
	value := cmp.Or(get("cuda.metric.value"), get("cuda.metric.value_overflow"))
	return strings.Join([]string{
		l.Event, strconv.FormatUint(l.TimeNs, 10), get("cuda.kernel.name"), get("cuda.pc.offset"),
		get("cuda.stall.reason"), get("cuda.sample.count"), get("cuda.metric.name"), value,
		get("code.file.path"), get("code.line.number"),
	}, " ")
}

// rawSampleKey returns the same from the line or row.
func (s *session) rawSampleKey(r record) string {
	event, reason, count, metric, value := "cuda.sass_metric", "", "", "", ""
	function, file, line, offset := r.str("function_name"), r.str("source_file"), r.int("source_line"), ""
	raw := func(key string) string { n, _ := r[key].(json.Number); return n.String() }
	if r.str("type") == "" { // a row of a batch
		function, _, _ = strings.Cut(s.dict["function_dict"][r.int("function_id")], "@")
		file = s.dict["source_file_dict"][r.int("source_file_id")]
		if _, at, ok := strings.Cut(s.dict["function_dict"][r.int("function_id")], "@"); ok && file == "" {
			file = at
		}
		offset = raw("pc_offset")
		if r.int("sample_kind") == 0 {
			event, count = "cuda.pc_sample", raw("metric_value")
			reason = s.dict["metric_dict"][r.int("metric_id")]
			if reason == "" {
				// Older records have only a number, whose meaning depends on the device.
				reason = "stall_" + raw("stall_reason")
			}
		} else {
			metric, value = s.dict["metric_dict"][r.int("metric_id")], raw("metric_value")
		}
	} else {
		if n, err := strconv.ParseUint(strings.TrimPrefix(r.str("pc_offset"), "0x"), 16, 64); err == nil {
			offset = strconv.FormatUint(n, 10)
		}
		if r.str("sample_kind") == "pc_sampling" {
			event, reason, count = "cuda.pc_sample", r.str("reason_name"), raw("sample_count")
		} else {
			metric, value = r.str("metric_name"), raw("metric_value")
		}
	}
	at := cmp.Or(r.int("start_ns"), r.int("ts_ns"))
	lineText := ""
	if line > 0 {
		lineText = formatInt(line)
	}
	return strings.Join([]string{
		event, formatInt(at), function, offset,
		strings.TrimPrefix(reason, "smsp__pcsamp_warps_issue_stalled_"), count, metric, value, file, lineText,
	}, " ")
}

// checkSignatures compares execution signatures exactly; their hash uses all 64 bits.
func (s *session) checkSignatures(t *testing.T, store *testsink.Store) {
	t.Helper()
	want, have := map[string]int{}, map[string]int{}
	for _, r := range s.signatures {
		want[fmt.Sprintf("%s %s launches %d", r.str("scope_name"), r.str("signature"), r.int("launch_count"))]++
	}
	for _, l := range store.LogRecords() {
		if l.Event == "cuda.execution_signature" && l.Session == s.id {
			have[fmt.Sprintf("%v %v launches %v", l.Attrs["cuda.scope.path"],
				l.Attrs["cuda.signature.value"], l.Attrs["cuda.signature.launches"])]++
		}
	}
	assert.Equal(t, want, have, "execution signatures")
}
