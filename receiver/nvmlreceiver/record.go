// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/kubelet"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/metadata"
	"github.com/gpuflight/gpuflight/semconv"
)

// vendor is hw.vendor of all devices of this receiver.
const vendor = "NVIDIA"

// record adds a reading to the metrics of this scrape, as a resource of its own.
func (r *nvmlReceiver) record(id gpu.Identity, state string, reading *gpu.Reading) {
	mb, ts := r.builder, pcommon.NewTimestampFromTime(reading.Time)
	var parent []metadata.MetricAttributeOption
	if id.Parent != "" {
		parent = []metadata.MetricAttributeOption{metadata.WithHwParentMetricAttribute(id.Parent)}
	}
	r.status(ts, id, state, reading.Degraded, parent)
	if state == stateOK {
		for i := range reading.Points {
			r.point(ts, id, &reading.Points[i], parent)
		}
		for i := range reading.Processes {
			r.process(ts, id, &reading.Processes[i], parent)
		}
	}
	for code, n := range r.xids.counts(id.ID) {
		r.since(r.xids.began)
		mb.RecordHwErrorsDataPoint(ts, n, id.ID, id.Name, vendor, semconv.HWTypeGPU, code, parent...)
	}
	holder, known := r.pods.Find(append([]string{id.ID}, id.Aliases...)...)
	if known {
		mb.RecordHwGpuPodCountDataPoint(ts, int64(holder.Pods), id.ID, id.Name, vendor, semconv.HWTypeGPU, parent...)
	}
	resource := pcommon.NewResource()
	r.identify(resource.Attributes(), &id, &holder)
	mb.EmitForResource(metadata.WithResource(resource))
}

// emit returns the metrics of this scrape, with one resource for each device.
func (r *nvmlReceiver) emit() pmetric.Metrics {
	m := r.builder.Emit()
	for _, rm := range m.ResourceMetrics().All() {
		rm.SetSchemaUrl(semconv.SchemaURL)
	}
	return m
}

// identify adds the attributes of a device's resource: the machine, the board, and the pod if
// exactly one has the device.
func (r *nvmlReceiver) identify(a pcommon.Map, id *gpu.Identity, holder *kubelet.Holder) {
	r.machine.Put(a)
	for _, v := range [...]struct{ key, value string }{
		{semconv.HWDriverVersion, id.Driver},
		{semconv.HWSerialNumber, id.Serial},
		{semconv.K8sNamespaceName, holder.Namespace},
		{semconv.K8sPodName, holder.Pod},
		{semconv.K8sContainerName, holder.Container},
	} {
		if v.value != "" {
			a.PutStr(v.key, v.value)
		}
	}
}

// since sets the start time of subsequent points.
func (r *nvmlReceiver) since(t time.Time) {
	r.builder.Reset(metadata.WithStartTime(pcommon.NewTimestampFromTime(t)))
}

func (r *nvmlReceiver) status(ts pcommon.Timestamp, id gpu.Identity, state string, degraded bool, parent []metadata.MetricAttributeOption) {
	holds := semconv.HWStateFailed
	switch {
	case state == stateOK && degraded:
		holds = semconv.HWStateDegraded
	case state == stateOK:
		holds = semconv.HWStateOk
	}
	for _, s := range [...]string{semconv.HWStateOk, semconv.HWStateDegraded, semconv.HWStateFailed} {
		v := int64(0)
		if s == holds {
			v = 1
		}
		r.builder.RecordHwStatusDataPoint(ts, v, id.ID, id.Name, vendor, semconv.HWTypeGPU, s, parent...)
	}
}

func (r *nvmlReceiver) point(ts pcommon.Timestamp, id gpu.Identity, p *gpu.Point, opts []metadata.MetricAttributeOption) {
	if !p.Since.IsZero() {
		r.since(p.Since)
	}
	sensor := func(s string) {
		if s != "" {
			opts = append(opts[:len(opts):len(opts)], metadata.WithHwSensorLocationMetricAttribute(s))
		}
	}
	mb, dev, name, kind := r.builder, id.ID, id.Name, semconv.HWTypeGPU
	switch p.Metric {
	case gpu.Utilization:
		mb.RecordHwGpuUtilizationDataPoint(ts, p.Float, dev, name, vendor, kind, p.Label, opts...)
	case gpu.MemoryUsage:
		mb.RecordHwGpuMemoryUsageDataPoint(ts, p.Int, dev, name, vendor, kind, opts...)
	case gpu.MemoryLimit:
		mb.RecordHwGpuMemoryLimitDataPoint(ts, p.Int, dev, name, vendor, kind, opts...)
	case gpu.MemoryReserved:
		mb.RecordHwGpuMemoryReservedDataPoint(ts, p.Int, dev, name, vendor, kind, opts...)
	case gpu.MemoryUtilization:
		mb.RecordHwGpuMemoryUtilizationDataPoint(ts, p.Float, dev, name, vendor, kind, opts...)
	case gpu.MemoryControllerUtilization:
		mb.RecordHwGpuMemoryControllerUtilizationDataPoint(ts, p.Float, dev, name, vendor, kind, opts...)
	case gpu.MemoryBandwidthUtilization:
		mb.RecordHwGpuMemoryBandwidthUtilizationDataPoint(ts, p.Float, dev, name, vendor, kind, opts...)
	case gpu.IO:
		mb.RecordHwGpuIoDataPoint(ts, p.Int, dev, name, vendor, kind, p.Label, opts...)
	case gpu.InterconnectIO:
		mb.RecordHwGpuInterconnectIoDataPoint(ts, p.Int, dev, name, vendor, kind, p.Label, p.Detail, opts...)
	case gpu.Speed:
		mb.RecordHwGpuSpeedDataPoint(ts, p.Int, dev, name, vendor, kind, p.Label, opts...)
	case gpu.SpeedLimit:
		mb.RecordHwGpuSpeedLimitDataPoint(ts, p.Int, dev, name, vendor, kind, p.Label, p.Detail, opts...)
	case gpu.ThrottleActive:
		mb.RecordHwGpuThrottleActiveDataPoint(ts, p.Int, dev, name, vendor, kind, p.Label, opts...)
	case gpu.ThrottleDuration:
		mb.RecordHwGpuThrottleDurationDataPoint(ts, p.Float, dev, name, vendor, kind, p.Label, opts...)
	case gpu.SMUtilization:
		mb.RecordHwGpuSmUtilizationDataPoint(ts, p.Float, dev, name, vendor, kind, opts...)
	case gpu.SMOccupancy:
		mb.RecordHwGpuSmOccupancyDataPoint(ts, p.Float, dev, name, vendor, kind, opts...)
	case gpu.PipeUtilization:
		mb.RecordHwGpuPipeUtilizationDataPoint(ts, p.Float, dev, name, vendor, kind, p.Label, opts...)
	case gpu.Energy:
		mb.RecordHwEnergyDataPoint(ts, p.Float, dev, name, vendor, kind, opts...)
	case gpu.Power:
		mb.RecordHwPowerDataPoint(ts, p.Float, dev, name, vendor, kind, opts...)
	case gpu.PowerLimit:
		mb.RecordHwPowerLimitDataPoint(ts, p.Float, dev, name, vendor, kind, p.Label, opts...)
	case gpu.Temperature:
		sensor(p.Label)
		mb.RecordHwTemperatureDataPoint(ts, p.Float, dev, name, vendor, kind, opts...)
	case gpu.TemperatureLimit:
		sensor(p.Detail)
		mb.RecordHwTemperatureLimitDataPoint(ts, p.Float, dev, name, vendor, kind, p.Label, opts...)
	case gpu.FanSpeed:
		sensor(p.Label)
		mb.RecordHwFanSpeedRatioDataPoint(ts, p.Float, dev, name, vendor, kind, opts...)
	case gpu.Errors:
		mb.RecordHwErrorsDataPoint(ts, p.Int, dev, name, vendor, kind, p.Label, opts...)
	}
}

func (r *nvmlReceiver) process(ts pcommon.Timestamp, id gpu.Identity, p *gpu.Process, opts []metadata.MetricAttributeOption) {
	opts = opts[:len(opts):len(opts)]
	if p.VPID != 0 {
		opts = append(opts, metadata.WithProcessVpidMetricAttribute(int64(p.VPID)))
	}
	if p.Name != "" {
		opts = append(opts, metadata.WithProcessExecutableNameMetricAttribute(p.Name))
	}
	if p.ContainerID != "" {
		opts = append(opts, metadata.WithContainerIDMetricAttribute(p.ContainerID))
	}
	if p.PodUID != "" {
		opts = append(opts, metadata.WithK8sPodUIDMetricAttribute(p.PodUID))
	}
	if p.HasMemory {
		r.builder.RecordProcessGpuMemoryUsageDataPoint(ts, p.MemoryBytes, id.ID, id.Name, vendor, semconv.HWTypeGPU, int64(p.PID), opts...)
	}
	if p.HasUtilization {
		r.builder.RecordProcessGpuUtilizationDataPoint(ts, p.Utilization, id.ID, id.Name, vendor, semconv.HWTypeGPU, int64(p.PID), opts...)
	}
}
