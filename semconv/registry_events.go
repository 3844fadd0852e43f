// SPDX-License-Identifier: Apache-2.0

package semconv

// Events are all kinds of log records.
var Events = []Event{
	{"cuda.pc_sample", Extension, sample("cuda.stall.reason", "cuda.sample.count"), "Program counter samples of one instruction for one reason. Without cuda.pc.offset: the sum of those of the function's instructions that have no record of their own."},
	{"cuda.sass_metric", Extension, sample("cuda.metric.name", "cuda.metric.value", "cuda.metric.value_overflow"), "One counter of one instruction. Without cuda.pc.offset: the sum of those of the function's instructions that have no record of their own."},
	{"cuda.marker", Extension, []string{"cuda.marker.name", "cuda.nvtx.domain", "cuda.marker.color", "cuda.marker.id"}, "A moment that the application marked."},
	{"cuda.sass_listing", Extension, text("cuda.listing.kind", "cuda.kernel.name", "cuda.kernel.symbol", "cuda.cubin.crc", "cuda.listing.architecture"), "Disassembly of one function; the body is the text."},
	{"cuda.source", Extension, text("code.file.path", "cuda.source.id"), "Source text of one file; the body is the text."},
	{"cuda.capture", Extension, []string{
		"cuda.capture.requested_engine", "cuda.capture.selected_engine", "cuda.capture.feature", "cuda.capture.requested",
		"cuda.capture.status", "cuda.capture.mode", "cuda.capture.reason", "cuda.capture.message",
		"cuda.capture.records.dropped", "cuda.capture.records.rejected",
		"cuda.capture.kinds.collected", "cuda.capture.kinds.unavailable", "cuda.capture.records.collected",
		"cuda.capture.records.rejected_by_reason", "cuda.capture.kernels", "cuda.capture.spans.emitted",
		"cuda.capture.spans.left_out", "cuda.capture.spans.unsampled", "cuda.capture.overhead.time",
		"cuda.capture.deep_windows", "cuda.capture.functions_without_sass", "cuda.capture.paused.time",
		"cuda.capture.overhead.budget", "cuda.capture.overhead.ratio", "cuda.capture.recorded.time", "cuda.capture.recorded.ratio",
		"cuda.capture.library.path", "cuda.capture.library.version",
	}, "What was requested of the recorder, what it collected, degraded, dropped or rejected, and why."},
	{"gpu.xid", Extension, []string{"hw.id", "hw.name", "hw.vendor", "hw.type", "gpu.xid.code"}, "An error that the driver reported; the body says what the code means."},
	{"cuda.execution_signature", Extension, []string{"cuda.scope.path", "cuda.signature.value", "cuda.signature.launches", "cuda.signature.distinct_kernels"}, "What work was done, to tell whether several runs did the same."},
	{"cuda.deep_window", Extension, []string{
		"cuda.deep_window.name", "cuda.deep_window.id", "cuda.deep_window.cause", "cuda.deep_window.why",
		"cuda.deep_window.status", "cuda.deep_window.message", "cuda.deep_window.close_reason", "cuda.deep_window.engines",
		"cuda.deep_window.start_time_unix_nano", "cuda.deep_window.end_time_unix_nano", "cuda.deep_window.launches",
		"cuda.deep_window.requested_duration", "cuda.deep_window.requested_launches", "cuda.deep_window.paused_duration",
		"cuda.deep_window.samples", "cuda.deep_window.sampling_period", "cuda.deep_window.samples_dropped", "cuda.deep_window.samples_non_user",
		"cuda.deep_window.hardware_full", "cuda.deep_window.rows", "cuda.deep_window.rows_other",
		"cuda.deep_window.rows_unresolved", "cuda.deep_window.rows_without_sass", "cuda.deep_window.rows_lost",
		"cuda.deep_window.contexts_skipped", "cuda.deep_window.contexts_lost", "cuda.deep_window.calls_held",
		"cuda.deep_window.longest_hold", "cuda.deep_window.calls_released", "cuda.deep_window.functions", "cuda.deep_window.lost", "cuda.deep_window.missing",
		"cuda.deep_window.rule.id", "cuda.deep_window.rule.metric", "cuda.deep_window.rule.operator",
		"cuda.deep_window.rule.threshold", "cuda.deep_window.rule.rearm_threshold", "cuda.deep_window.rule.observed",
		"cuda.deep_window.rule.rate_window", "cuda.deep_window.rule.sustained",
		"cuda.deep_window.rule.first_true_time_unix_nano", "cuda.deep_window.rule.fired_time_unix_nano",
	}, "An interval in which an expensive engine was on. The span of the window, a child of the session, has the same attributes."},
	{"cuda.deep_window.rule", Extension, []string{
		"cuda.deep_window.rule.id", "cuda.deep_window.rule.expression", "cuda.deep_window.rule.state",
		"cuda.deep_window.rule.outcome", "cuda.deep_window.rule.reason", "cuda.deep_window.rule.metric_state",
		"cuda.deep_window.rule.samples_seen", "cuda.deep_window.rule.windows_opened",
		"cuda.deep_window.rule.truncated_samples", "cuda.deep_window.rule.quality_resets",
		"cuda.deep_window.rule.quality_reason", "cuda.deep_window.rule.state_sequence",
		"cuda.deep_window.rule.last_value", "cuda.deep_window.rule.last_observed_time_unix_nano",
	}, "The state of a rule that opens such windows."},
	{"cuda.counter_quality", Extension, []string{
		"cuda.counter_quality.source", "cuda.counter_quality.schema_version", "cuda.counter_quality.tracked_counters",
		"cuda.counter_quality.samples_observed", "cuda.counter_quality.registration_rejected",
		"cuda.counter_quality.unknown_id_samples", "cuda.counter_quality.unavailable_samples",
		"cuda.counter_quality.negative_delta_samples", "cuda.counter_quality.rate_windows_discarded",
	}, "How good the application's own counters were."},
	{"cuda.profiler_config", Extension, []string{
		"cuda.profiler.kind", "cuda.profiler.metrics.configured", "cuda.profiler.metrics.skipped",
		"cuda.profiler.interval", "cuda.profiler.max_samples", "cuda.profiler.preset", "cuda.device.index",
	}, "How a profiler was set up."},
	{"cuda.regression", Extension, []string{
		"cuda.regression.baseline.name", "cuda.regression.baseline.session.id", "cuda.regression.names", "cuda.regression.step.change",
	}, "The session is slower than its baseline; the body says why."},
	{"cuda.graph.node", Extension, []string{"cuda.graph.exec.key", "cuda.graph.node.index", "cuda.graph.node.type", "cuda.graph.node.dependencies"}, "One node of an instantiated graph."},
	{"cuda.session.segment", Extension, []string{
		"cuda.segment.phase", "cuda.run.id", "cuda.segment.index", "cuda.segment.previous_session.id",
		"cuda.segment.boundary_time_unix_nano", "cuda.segment.requested_boundary_time_unix_nano",
		"cuda.segment.boundary_delay", "cuda.segment.deferred_by", "cuda.segment.end_reason",
		"cuda.segment.records_outside", "cuda.segment.rollover.reason", "cuda.segment.rollover.time_unix_nano",
		"cuda.segment.rollover.requested_time_unix_nano", "cuda.record.synthetic",
	}, "A boundary of a session that is a segment of a run."},
}

// sample returns the attributes of an event about one instruction.
func sample(own ...string) []string {
	return append(own, "cuda.kernel.name", "cuda.pc.offset", "code.file.path", "code.line.number", "code.function.name", "cuda.correlation.id", "hw.id", "cuda.device.index")
}

// text returns the attributes of an event whose body is a text in pieces.
func text(own ...string) []string {
	return append(own, "cuda.text.chunk.index", "cuda.text.chunk.count", "cuda.text.chunk.first_line")
}
