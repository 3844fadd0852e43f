// SPDX-License-Identifier: Apache-2.0

package semconv

// Metrics are all metrics. Those of a device carry [DevicePoint] in addition to their own attributes.
var Metrics = []Metric{
	// A device's meters. Ratios are 0–1, never percent.
	{"hw.gpu.utilization", Gauge, "1", OpenTelemetry, device("hw.gpu.task"), "Part of the time in which the device, or the named part of it, was busy."},
	{"hw.gpu.memory.usage", UpDownCounter, "By", OpenTelemetry, device(), "Device memory in use."},
	{"hw.gpu.memory.limit", UpDownCounter, "By", OpenTelemetry, device(), "Device memory in all."},
	{"hw.gpu.memory.free", UpDownCounter, "By", Extension, device(), "Device memory that is free, where the source says so."},
	{"hw.gpu.memory.reserved", UpDownCounter, "By", Extension, device(), "Device memory that the driver keeps for itself."},
	{"hw.gpu.memory.utilization", Gauge, "1", OpenTelemetry, device(), "Device memory in use ÷ device memory in all."},
	{"hw.gpu.memory.controller.utilization", Gauge, "1", Extension, device(), "Part of the time in which device memory was read or written."},
	{"hw.gpu.memory.bandwidth.utilization", Gauge, "1", Extension, device(), "Device memory traffic ÷ its peak."},
	{"hw.gpu.io", Counter, "By", OpenTelemetry, device("network.io.direction"), "Bytes over the link to the host."},
	{"hw.gpu.io.throughput", Gauge, "By/s", Extension, device("network.io.direction"), "Bytes a second over the link to the host, where the source gives a rate; without a direction where it gives only the sum."},
	{"hw.gpu.interconnect.io", Counter, "By", Extension, device("hw.gpu.interconnect.type", "network.io.direction"), "Bytes over the links between devices."},
	{"hw.gpu.speed", Gauge, "Hz", Extension, device("hw.gpu.clock_domain"), "Clock."},
	{"hw.gpu.speed.limit", Gauge, "Hz", Extension, device("hw.gpu.clock_domain", "hw.limit_type"), "Limit of the clock."},
	{"hw.gpu.throttle.active", Gauge, "1", Extension, device("hw.gpu.throttle.reason"), "1 while the device slows down for this reason, else 0."},
	{"hw.gpu.throttle.duration", Counter, "s", Extension, device("hw.gpu.throttle.reason"), "Time in which the device slowed down for this reason."},
	{"hw.gpu.sm.utilization", Gauge, "1", Extension, device(), "Multiprocessors with work ÷ multiprocessors."},
	{"hw.gpu.sm.occupancy", Gauge, "1", Extension, device(), "Resident warps ÷ the most that fit."},
	{"hw.gpu.pipe.utilization", Gauge, "1", Extension, device("hw.gpu.pipe"), "Part of the time in which an execution pipe was busy."},
	{"hw.energy", Counter, "J", OpenTelemetry, device(), "Energy used since the driver was loaded."},
	{"hw.power", Gauge, "W", OpenTelemetry, device(), "Power drawn."},
	{"hw.power.limit", Gauge, "W", Extension, device("hw.limit_type"), "Limit of the power."},
	{"hw.voltage", Gauge, "V", OpenTelemetry, device(), "Voltage."},
	{"hw.temperature", Gauge, "Cel", OpenTelemetry, device("hw.sensor_location"), "Temperature."},
	{"hw.temperature.limit", Gauge, "Cel", OpenTelemetry, device("hw.sensor_location", "hw.limit_type"), "Limit of the temperature."},
	{"hw.fan.speed_ratio", Gauge, "1", OpenTelemetry, device("hw.sensor_location"), "Speed of the fan ÷ its highest."},
	{"hw.errors", Counter, "{error}", OpenTelemetry, device("error.type"), "Errors since the driver was loaded. Row remapping and page retirement count over the life of the board, XID errors since the Collector subscribed."},
	{"hw.status", UpDownCounter, "1", OpenTelemetry, device("hw.state"), "1 for the state that holds, 0 for the others."},
	{"hw.gpu.pod.count", UpDownCounter, "{pod}", Extension, device(), "Kubernetes pods that have the device, as the kubelet says; 0 for one that a pod could have. Absent for a device that pods cannot have."},
	{"process.gpu.memory.usage", UpDownCounter, "By", Extension, device(DeviceProcess...), "Device memory that a process uses."},
	{"process.gpu.utilization", Gauge, "1", Extension, device(DeviceProcess...), "Part of the time in which a process kept the device busy."},

	// The host's meters.
	{"system.cpu.utilization", Gauge, "1", OpenTelemetry, nil, "Load of the whole machine."},
	{"system.memory.usage", UpDownCounter, "By", OpenTelemetry, []string{"system.memory.state"}, "Memory in use."},
	{"system.memory.limit", UpDownCounter, "By", OpenTelemetry, nil, "Memory in all."},

	// A profiler's counters.
	{"gpu.cuda.counter", Gauge, "", Extension, device("cuda.metric.name", "cuda.scope.path", "cuda.kernel.name", "cuda.kernel.launch_ordinal"), "A hardware counter, by the profiler's own name and in its own unit."},

	// CUDA work.
	{"gpu.cuda.kernel.launch.calls", Counter, "{call}", OBI, []string{"cuda.kernel.name", "cuda.scope.name", "hw.id", "hw.name"}, "Kernels started one by one."},
	{"gpu.cuda.kernel.grid.size", Histogram, "1", OBI, []string{"cuda.kernel.name"}, "Blocks of a launch."},
	{"gpu.cuda.kernel.block.size", Histogram, "1", OBI, []string{"cuda.kernel.name"}, "Threads of a block."},
	{"gpu.cuda.kernel.captured.launches", Counter, "{launch}", Extension, []string{"cuda.kernel.name"}, "Launches that were recorded into a graph and not executed."},
	{"gpu.cuda.kernel.launch.duration", Histogram, "s", Extension, nil, "Durations of the host's calls that launch kernels, of a sample of them; they grow when the device's queue is full."},
	{"gpu.cuda.idle.duration", Histogram, "s", Extension, nil, "Time from the end of a wait for the device to the thread's next launch, in which it gave the device no work."},
	{"gpu.cuda.graph.unknown.launches", Counter, "{call}", Extension, nil, "Graphs started whose kernels are not known, because they were captured before the source looked."},
	{"gpu.cuda.graph.launch.calls", Counter, "{call}", OBI, []string{"cuda.scope.name", "hw.id", "hw.name"}, "Graphs started."},
	{"gpu.cuda.graph.node.launches", Counter, "{launch}", Extension, []string{"cuda.scope.name", "hw.id", "hw.name"}, "Kernels started as nodes of graphs."},
	{"gpu.cuda.memory.allocations", Counter, "By", OBI, []string{"cuda.memory.kind"}, "Bytes allocated."},
	{"gpu.cuda.memory.free.bytes", Counter, "By", OBI, []string{"cuda.memory.kind"}, "Bytes released."},
	{"gpu.cuda.memory.in_use", UpDownCounter, "By", Extension, []string{"cuda.memory.kind"}, "Bytes allocated and not released."},
	{"gpu.cuda.memory.allocation.calls", Counter, "{call}", Extension, []string{"cuda.memory.kind"}, "Allocations."},
	{"gpu.cuda.memory.free.calls", Counter, "{call}", Extension, []string{"cuda.memory.kind"}, "Releases."},
	{"gpu.cuda.memory.copies", Histogram, "By", OBI, []string{"cuda.memcpy.kind", "cuda.memcpy.async", "hw.id", "hw.name"}, "Sizes of copies; the sum is the bytes copied."},
	{"gpu.cuda.memory.copy.duration", Histogram, "s", Extension, []string{"cuda.memcpy.kind", "cuda.memcpy.async"}, "Durations of copies that the host waited for. If cuda.memcpy.async is true, the duration is from the call to the end of the wait that followed, and at least that of the copy."},
	{"gpu.cuda.memory.copy.timed.bytes", Counter, "By", Extension, []string{"cuda.memcpy.kind", "cuda.memcpy.async"}, "Bytes of the copies in gpu.cuda.memory.copy.duration: divided by its sum they are the bandwidth, a lower bound where cuda.memcpy.async is true."},
	{"gpu.cuda.memset.bytes", Counter, "By", OBI, nil, "Bytes set."},
	{"gpu.cuda.memset.calls", Counter, "{call}", Extension, nil, "Sets."},
	{"gpu.cuda.module.loads", Counter, "{load}", Extension, nil, "Modules and libraries loaded."},
	{"gpu.cuda.collective.size", Histogram, "By", Extension, []string{"cuda.api.name"}, "Bytes of NCCL calls; the count is the calls, their durations are in gpu.cuda.api.duration."},
	{"gpu.cuda.api.duration", Histogram, "s", Extension, []string{"cuda.api.name"}, "Durations of driver or runtime calls."},
	{"gpu.cuda.sync.wait.duration", Histogram, "s", Extension, []string{"cuda.api.name"}, "Durations of waits for the device."},
	{"gpu.cuda.errors", Counter, "{error}", Extension, []string{"error.type", "cuda.api.name"}, "Failed calls."},
	{"gpu.cuda.calls.lost", Counter, "{call}", Extension, []string{"cuda.lost.reason"}, "Calls that are missing from the other metrics of the process, or are in them only in part. The process had used up its share of the tables, or the call was not understood."},
	{"gpu.cuda.kernel.duration", ExponentialHistogram, "s", Extension, []string{"cuda.kernel.name", "hw.id", "hw.name"}, "Durations of kernels."},
	{"gpu.cuda.queue.duration", ExponentialHistogram, "s", Extension, []string{"hw.id", "hw.name", "cuda.operation"}, "From the end of the host call to the start on the device."},
	{"gpu.cuda.stream.gap.duration", ExponentialHistogram, "s", Extension, []string{"hw.id", "hw.name", "cuda.gap.after"}, "Time between two kernels of a stream in which the stream ran none, where it is above a threshold."},
	{"gpu.cuda.busy.time", Counter, "s", Extension, []string{"hw.id", "hw.name"}, "Time in which at least one kernel ran on the device: overlapping streams count once, so that the rate is the utilisation."},
	{"gpu.cuda.observed.time", Counter, "s", Extension, []string{"hw.id", "hw.name"}, "Time of the device that is accounted for, idle or not: what gpu.cuda.cost covers."},
	{"gpu.cuda.time", Counter, "s", Extension, []string{"hw.id", "hw.name", "cuda.scope.name", "cuda.operation"}, "Device seconds; work that overlaps counts each."},
	{"gpu.cuda.cost", Counter, "{currency}", Extension, []string{"hw.id", "hw.name", "cuda.scope.name", "cuda.request.operation", "cuda.cost.currency"}, "Cost of the device's time. Where work overlaps it is shared; idle time is under the service _idle."},

	// The recorder's own figures.
	{"gpuflight.spans.left_out", Counter, "{span}", Extension, []string{"cuda.operation", "cuda.kernel.name", "hw.id", "hw.name"}, "Device work without a span of its own, by the limit on spans a second, a filter or because its trace was not sampled. The metrics of gpu.cuda count it."},
	{"gpuflight.records.collected", Counter, "{record}", Extension, nil, "Records read from CUPTI."},
	{"gpuflight.records.dropped", Counter, "{record}", Extension, nil, "Records that CUPTI dropped because no buffer was free."},
	{"gpuflight.records.rejected", Counter, "{record}", Extension, []string{"error.type"}, "Invalid records, by reason."},
	{"gpuflight.deep.windows", Counter, "{window}", Extension, []string{"cuda.deep_window.status"}, "Deep windows that were opened, or tried, by what came of them."},
	{"gpuflight.paused.time", Counter, "s", Extension, nil, "Time in which activity records were off for deep windows: work that was launched then is in no span and no other metric."},
	{"gpuflight.overhead.time", Counter, "s", Extension, []string{"gpuflight.overhead.kind"}, "Time that recording took: cupti is what CUPTI says of itself, library the processor time of our own threads."},
	{"gpuflight.overhead.budget", Gauge, "1", Extension, nil, "Overhead budget: the share of the program's time that recording may cost."},
	{"gpuflight.overhead.ratio", Gauge, "1", Extension, nil, "Share of the program's time that recording has cost since it began, with an overhead budget. It is an upper bound, estimated by the recorder."},
	{"gpuflight.recorded.time", Counter, "s", Extension, nil, "Time in which records were made, if there is an overhead budget. Its rate is the share of the time that spans and metrics of device work cover."},
}

// DevicePoint are the attributes by which a data point names its device.
var DevicePoint = []string{"hw.id", "hw.name", "hw.vendor", "hw.type", "hw.parent", "cuda.device.index"}

// DeviceProcess are the attributes by which a data point names a process that uses a device.
var DeviceProcess = []string{"process.pid", "process.vpid", "process.executable.name", "container.id", "k8s.pod.uid"}

// device returns the attributes of a device's metric.
func device(own ...string) []string {
	return append(append([]string(nil), DevicePoint...), own...)
}
