// SPDX-License-Identifier: Apache-2.0

package gpuflog

// Channel is one of the files that a session writes side by side (format document, section 1.3).
type Channel uint8

// The channels. Their values are part of checkpoints: never renumber.
const (
	Device Channel = iota
	Scope
	System
	Sass
	NumChannels
)

var channelNames = [NumChannels]string{"device", "scope", "system", "sass"}

// String returns the channel's name as it stands in file names.
func (c Channel) String() string {
	if c < NumChannels {
		return channelNames[c]
	}
	return "unknown"
}

// Reason says why a line, a row or a part of one was not taken as it stands. The names are the
// values of the reason attribute of the receiver's telemetry.
type Reason uint8

// The reasons.
const (
	// Malformed: the line is not the JSON that its type promises; the line is skipped.
	Malformed Reason = iota
	// UnknownType: a record type that this version does not know; the line is skipped.
	UnknownType
	// MissingField: a field without which the record means nothing; the line is skipped.
	MissingField
	// RowLength: a row whose length is not that of its batch's columns; the row is skipped.
	RowLength
	// BadRow: a row with a cell that is not a number in range; the row is skipped.
	BadRow
	// UnknownID: a dictionary id that no dictionary has; the row is delivered without the name.
	UnknownID
	// InvalidUTF8: a string with bytes that are not UTF-8; delivered with U+FFFD in their place.
	InvalidUTF8
	// TooOld: a record of the generations A0 and A1, which are not supported; skipped.
	TooOld
	// ScopeWithoutBegin: the end of a scope whose begin was never read; skipped.
	ScopeWithoutBegin
	// DetailWithoutRow: a kernel_detail whose kernel row did not come; skipped.
	DetailWithoutRow
	// DictionaryFull: a dictionary entry beyond the bound; skipped.
	DictionaryFull
	// ScopesFull: a scope beyond the bound was evicted for a newer one. Its work may become a child
	// of its parent or of the session.
	ScopesFull
	// SessionsFull: a session was forgotten to make room for a newer one.
	SessionsFull
	// ValueOutOfRange: a counter above 2^63-1, delivered as decimal digits.
	ValueOutOfRange
	// TextTooLong: a line with a text above 16 KiB; the text is delivered without its end.
	TextTooLong
	// NumReasons is their number.
	NumReasons
)

var reasonNames = [NumReasons]string{
	"malformed", "unknown_type", "missing_field", "row_length", "bad_row", "unknown_dictionary_id",
	"invalid_utf8", "too_old", "scope_without_begin", "detail_without_row", "dictionary_full",
	"scopes_full", "sessions_full", "value_out_of_range", "text_too_long",
}

// String returns the reason's name in telemetry.
func (r Reason) String() string {
	if r < NumReasons {
		return reasonNames[r]
	}
	return "unknown"
}

// Stats counts what a Decoder did since it was made. The counts only grow.
type Stats struct {
	// Lines and Bytes were fed, blank lines included.
	Lines, Bytes uint64
	// Records are lines by record type; see RecordTypes for the order.
	Records [numRecordTypes]uint64
	// Rejects are counted by Reason: lines, rows or values.
	Rejects [NumReasons]uint64
	// JoinsExpired are kernel rows that went out without their kernel_detail although the recorder
	// said that there would be one.
	JoinsExpired uint64
	// ScopesMissed are device events whose named scope was not found. They are children of the
	// session's time slice and have the scope's path as an attribute.
	ScopesMissed uint64
	// HeldOverflow are events released before the scope channel had been read far enough, because
	// too many were held back.
	HeldOverflow uint64
}

// Problem is one thing that was counted as a reject, for the log.
type Problem struct {
	Reason Reason
	// Offset is where the line begins, in bytes of the uncompressed channel's window.
	Offset int64
	// Detail says more in a few words.
	Detail string
}

// maxProblems bounds the problems kept of one step; the counts go on.
const maxProblems = 32

func (d *Decoder) reject(r Reason, detail string) {
	d.stats.Rejects[r]++
	if len(d.problems) < maxProblems {
		d.problems = append(d.problems, Problem{Reason: r, Offset: d.offset, Detail: detail})
	}
}

// recordType is an index into recordNames.
type recordType uint8

// The record types of the format document, sections 3 and 4.
const (
	recInit recordType = iota
	recShutdown
	recKernelEvent
	recMemcpyEvent
	recMemsetEvent
	recScopeBegin
	recScopeEnd
	recProfileSample
	recPerfMetric
	recSystemStart
	recSystemStop
	recSystemSample
	recJobStart
	recDictionary
	recCapabilities
	recSegmentStart
	recSegmentEnd
	recRunEnd
	recKernelBatch
	recKernelDetail
	recMemcpyBatch
	recSassConfig
	recKernelPerfMetric
	recScopeBatch
	recSampleBatch
	recPMConfig
	recPMBatch
	recSyncBatch
	recMemoryBatch
	recNVTX
	recGraphLaunch
	recGraphNode
	recSignature
	recDeepWindow
	recDeepRule
	recCounterQuality
	recDeviceBatch
	recHostBatch
	recSource
	recCubin
	recPTX
	recUnknown
	numRecordTypes
)

var recordNames = [numRecordTypes]string{
	recInit: "init", recShutdown: "shutdown", recKernelEvent: "kernel_event",
	recMemcpyEvent: "memcpy_event", recMemsetEvent: "memset_event", recScopeBegin: "scope_begin",
	recScopeEnd: "scope_end", recProfileSample: "profile_sample", recPerfMetric: "perf_metric_event",
	recSystemStart: "system_start", recSystemStop: "system_stop", recSystemSample: "system_sample",
	recJobStart: "job_start", recDictionary: "dictionary_update", recCapabilities: "capture_capabilities",
	recSegmentStart: "segment_start", recSegmentEnd: "segment_end", recRunEnd: "run_end",
	recKernelBatch: "kernel_event_batch", recKernelDetail: "kernel_detail",
	recMemcpyBatch: "memcpy_event_batch", recSassConfig: "sass_config",
	recKernelPerfMetric: "kernel_perf_metric_event", recScopeBatch: "scope_event_batch",
	recSampleBatch: "profile_sample_batch", recPMConfig: "pm_sampling_config",
	recPMBatch: "pm_sample_batch", recSyncBatch: "synchronization_event_batch",
	recMemoryBatch: "memory_alloc_event_batch", recNVTX: "nvtx_marker_event",
	recGraphLaunch: "graph_launch_event", recGraphNode: "graph_node_definition",
	recSignature: "execution_signature", recDeepWindow: "deep_window_event",
	recDeepRule: "deep_window_rule_summary", recCounterQuality: "counter_data_quality_summary",
	recDeviceBatch: "device_metric_batch", recHostBatch: "host_metric_batch",
	recSource: "source_file_content", recCubin: "cubin_disassembly", recPTX: "ptx_disassembly",
	recUnknown: "unknown",
}

var recordByName = func() map[string]recordType {
	m := make(map[string]recordType, numRecordTypes)
	for i, n := range recordNames {
		m[n] = recordType(i)
	}
	delete(m, "unknown")
	return m
}()

// RecordTypes returns the names of the record types in the order of Stats.Records. The last,
// "unknown", counts all others.
func RecordTypes() []string { return append([]string(nil), recordNames[:]...) }
