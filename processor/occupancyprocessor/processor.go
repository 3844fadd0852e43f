// SPDX-License-Identifier: Apache-2.0

package occupancyprocessor

import (
	"context"
	"fmt"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/occupancy"
	"github.com/gpuflight/gpuflight/processor/occupancyprocessor/internal/metadata"
	"github.com/gpuflight/gpuflight/semconv"
)

const (
	// tolerance is how far a source's occupancy may be from the computed one: recorders write as
	// few as two digits.
	tolerance = 0.005
	// same is how far two occupancies may be apart that differ only by rounding of the last bit.
	same = 1e-9
)

// occupancyProcessor annotates spans. Its methods may be called concurrently.
type occupancyProcessor struct {
	devices  []DeviceConfig
	meters   *meters
	cache    occupancy.Cache
	limiters [16]pcommon.Value
}

func newProcessor(cfg *Config, set component.TelemetrySettings) (*occupancyProcessor, error) {
	telemetry, err := metadata.NewTelemetryBuilder(set)
	if err != nil {
		return nil, fmt.Errorf("own telemetry: %w", err)
	}
	p := &occupancyProcessor{devices: cfg.Devices, meters: newMeters(telemetry)}
	for i := range p.limiters {
		p.limiters[i] = limiterValue(occupancy.Limiter(i))
	}
	return p, nil
}

// limiterValue returns the names of a set of resources. They are made once and copied.
func limiterValue(set occupancy.Limiter) pcommon.Value {
	v := pcommon.NewValueSlice()
	for _, r := range []struct {
		limiter occupancy.Limiter
		name    string
	}{
		{occupancy.Warps, semconv.CUDAOccupancyLimiterWarps},
		{occupancy.Registers, semconv.CUDAOccupancyLimiterRegisters},
		{occupancy.SharedMemory, semconv.CUDAOccupancyLimiterSharedMemory},
		{occupancy.Blocks, semconv.CUDAOccupancyLimiterBlocks},
	} {
		if set&r.limiter != 0 {
			v.Slice().AppendEmpty().SetStr(r.name)
		}
	}
	return v
}

func (p *occupancyProcessor) shutdown(context.Context) error {
	p.meters.telemetry.Shutdown()
	return nil
}

// process is what the pipeline calls. It has no error: what is wrong with a span is counted.
func (p *occupancyProcessor) process(ctx context.Context, td ptrace.Traces) (ptrace.Traces, error) {
	c := p.annotate(td)
	p.meters.add(ctx, &c)
	return td, nil
}

// annotate goes through the spans of one batch.
func (p *occupancyProcessor) annotate(td ptrace.Traces) counts {
	b := batch{p: p}
	for _, rs := range td.ResourceSpans().All() {
		b.resource = identity{}
		for k, v := range rs.Resource().Attributes().All() {
			b.resource.read(k, v)
		}
		for _, ss := range rs.ScopeSpans().All() {
			for _, span := range ss.Spans().All() {
				b.span(span)
			}
		}
	}
	return b.counts
}

// batch is the work on one call's spans.
type batch struct {
	p        *occupancyProcessor
	resource identity
	// devices are those of the batch so far, as far as maxDevices goes; the last one asked for is
	// usually asked for again.
	devices []device
	last    int
	// told says that a span of the batch carries the sentence on why there is no occupancy.
	told bool
	counts
}

// maxDevices bounds the search among the devices of one batch.
const maxDevices = 64

func (b *batch) span(span ptrace.Span) {
	var f facts
	attrs := span.Attributes()
	outputs := f.read(attrs)
	b.seen[f.operation]++
	switch f.operation {
	case kernelOperation:
		b.kernel(attrs, &f, outputs)
	case copyOperation:
		b.copy(span, &f, outputs)
	}
}

// device returns what is known of the span's device.
func (b *batch) device(f *facts) *device {
	of := f.device
	if of.capability == "" {
		of.capability = b.resource.capability
	}
	if of.sms == 0 {
		of.sms = b.resource.sms
	}
	if of.name == "" {
		of.name = b.resource.name
	}
	if of.id == "" {
		of.id = b.resource.id
	}
	if b.last < len(b.devices) && b.devices[b.last].identity == of {
		return &b.devices[b.last]
	}
	for i := range b.devices {
		if b.devices[i].identity == of {
			b.last = i
			return &b.devices[i]
		}
	}
	d := resolve(of, b.p.devices)
	if len(b.devices) == maxDevices {
		b.devices[maxDevices-1] = d
	} else {
		b.devices = append(b.devices, d)
	}
	b.last = len(b.devices) - 1
	return &b.devices[b.last]
}

func (b *batch) kernel(attrs pcommon.Map, f *facts, outputs int) {
	why := f.launchProblem()
	if why != none {
		b.left[why]++
		return
	}
	d := b.device(f)
	if d.limits == nil {
		b.left[d.why]++
		b.unavailable(attrs, f, d)
		return
	}
	r, err := b.p.cache.Compute(d.limits, occupancy.Launch{
		Threads: f.block, Registers: f.registers, Shared: f.static + f.dynamic, Carveout: f.executed, Cluster: f.clusterBlocks(),
	})
	if err != nil {
		b.left[invalidLaunch]++
		return
	}
	if r.Blocks == 0 {
		b.disagreements[ranWithoutRoom]++
	}
	waves, fill, why := b.spread(f, d, r.Blocks)
	if why != none {
		b.left[why]++
	}
	b.annotated[kernelOperation]++

	attrs.EnsureCapacity(attrs.Len() + 6 - outputs)
	if f.has&unavailable != 0 {
		attrs.Remove(semconv.CUDAOccupancyUnavailable)
	}
	b.agree(attrs, f, r.Theoretical)
	b.p.limiters[r.Limiter].CopyTo(attrs.PutEmpty(semconv.CUDAOccupancyLimiter))
	attrs.PutInt(semconv.CUDAOccupancyActiveBlocksPerSM, int64(r.Blocks))
	attrs.PutInt(semconv.CUDAOccupancyActiveWarpsPerSM, int64(r.Warps))
	if why == none {
		attrs.PutDouble(semconv.CUDAOccupancyWaves, waves)
		attrs.PutDouble(semconv.CUDAOccupancyGridFill, fill)
	}
}

// clusterBlocks returns the blocks of a cluster, 0 where there is none or its size cannot be used.
func (f *facts) clusterBlocks() int64 {
	if f.bad&cluster != 0 {
		return 0
	}
	return f.cluster
}

// agree writes the theoretical occupancy. What the source says under the name of its own stays; what
// it says under ours and is not ours moves there, if there is room.
func (b *batch) agree(attrs pcommon.Map, f *facts, computed float64) {
	if f.has&theoretical != 0 && !near(f.theoretical, computed, same) {
		if !near(f.theoretical, computed, tolerance) {
			b.disagreements[theoreticalDiffers]++
		}
		if (f.has&reported)|(f.bad&theoretical) == 0 {
			attrs.PutDouble(semconv.CUDAOccupancyReported, f.theoretical)
		}
	}
	if f.has&reported != 0 && !near(f.reported, computed, tolerance) {
		b.disagreements[reportedDiffers]++
	}
	attrs.PutDouble(semconv.CUDAOccupancyTheoretical, computed)
}

// near is false where one of the two is no number.
func near(a, b, by float64) bool { return a-b <= by && b-a <= by }

// spread returns waves and grid fill, or why there are none.
func (b *batch) spread(f *facts, d *device, blocks int) (waves, fill float64, why reason) {
	switch {
	case f.has&grid == 0:
		return 0, 0, missingGrid
	case f.bad&(grid|cluster) != 0:
		return 0, 0, invalidGrid
	case d.sms == 0:
		return 0, 0, d.smsWhy
	case blocks == 0:
		return 0, 0, zeroBlocks
	}
	waves, fill = occupancy.Grid{
		Blocks: f.grid, PerMultiprocessor: int64(blocks), Multiprocessors: d.sms, Cluster: f.cluster,
	}.Spread()
	if waves == 0 {
		return 0, 0, clusterTooLarge
	}
	return waves, fill, none
}

// unavailable says on the first span of the batch for which that is so why it has no occupancy. A
// span that was given one upstream, by who knew more, has no need of that.
func (b *batch) unavailable(attrs pcommon.Map, f *facts, d *device) {
	if b.told || f.has&theoretical != 0 {
		return
	}
	b.told = true
	attrs.PutStr(semconv.CUDAOccupancyUnavailable, d.text)
}

func (b *batch) copy(span ptrace.Span, f *facts, outputs int) {
	throughput, why := f.throughput(span)
	if why != none {
		b.left[why]++
		return
	}
	b.annotated[copyOperation]++
	attrs := span.Attributes()
	attrs.EnsureCapacity(attrs.Len() + 2 - outputs)
	attrs.PutDouble(semconv.CUDAMemcpyThroughput, throughput)

	share, why := b.share(f, throughput)
	if why != none {
		b.left[why]++
		return
	}
	attrs.PutDouble(semconv.CUDAMemcpyLinkUtilization, share)
}

// throughput returns the bytes a second of a copy, or why that is not known.
func (f *facts) throughput(span ptrace.Span) (float64, reason) {
	start, end := span.StartTimestamp(), span.EndTimestamp()
	switch {
	case f.has&size == 0:
		return 0, missingSize
	case f.bad&size != 0:
		return 0, invalidSize
	case f.has&estimated != 0:
		return 0, estimatedTimes
	case end <= start:
		return 0, zeroDuration
	}
	return float64(f.size) * 1e9 / float64(end-start), none
}

// share returns what part of its link's peak a throughput is, or why that is not known. It is above
// 1 where the times or the peak are not the true ones; who reads it should see that.
func (b *batch) share(f *facts, throughput float64) (float64, reason) {
	if f.has&kind == 0 {
		return 0, missingKind
	}
	var peak float64
	switch d := b.device(f); f.kind {
	case hostLink:
		peak = d.host
	case peerLink:
		peak = d.peer
	case deviceMemory:
		peak = d.memory / 2 // each byte is read and written
	default:
		return 0, withoutLink
	}
	if peak == 0 {
		return 0, unknownPeak
	}
	return throughput / peak, none
}
