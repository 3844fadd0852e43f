// SPDX-License-Identifier: Apache-2.0

package occupancyprocessor

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/gpuflight/gpuflight/processor/occupancyprocessor/internal/metadata"
)

// reason is why a figure was left out of a span.
type reason uint8

const (
	none reason = iota
	missingBlock
	missingRegisters
	missingShared
	invalidLaunch
	missingCapability
	unknownCapability
	missingGrid
	invalidGrid
	missingSMCount
	invalidSMCount
	zeroBlocks
	clusterTooLarge
	missingSize
	invalidSize
	estimatedTimes
	zeroDuration
	missingKind
	withoutLink
	unknownPeak
	numReasons
)

// The figures that can be left out.
const (
	figureOccupancy  = "occupancy"
	figureWaves      = "waves"
	figureThroughput = "throughput"
	figureLink       = "link_utilization"
)

// reasons says for each reason which figure it concerns and how the metric names it.
var reasons = [numReasons]struct{ figure, name string }{
	missingBlock:      {figureOccupancy, "missing_block"},
	missingRegisters:  {figureOccupancy, "missing_registers"},
	missingShared:     {figureOccupancy, "missing_shared_memory"},
	invalidLaunch:     {figureOccupancy, "invalid_launch"},
	missingCapability: {figureOccupancy, "missing_compute_capability"},
	unknownCapability: {figureOccupancy, "unknown_compute_capability"},
	missingGrid:       {figureWaves, "missing_grid"},
	invalidGrid:       {figureWaves, "invalid_grid"},
	missingSMCount:    {figureWaves, "missing_sm_count"},
	invalidSMCount:    {figureWaves, "invalid_sm_count"},
	zeroBlocks:        {figureWaves, "zero_active_blocks"},
	clusterTooLarge:   {figureWaves, "cluster_too_large"},
	missingSize:       {figureThroughput, "missing_size"},
	invalidSize:       {figureThroughput, "invalid_size"},
	estimatedTimes:    {figureThroughput, "estimated_times"},
	zeroDuration:      {figureThroughput, "zero_duration"},
	missingKind:       {figureLink, "missing_kind"},
	withoutLink:       {figureLink, "no_link"},
	unknownPeak:       {figureLink, "unknown_peak"},
}

// disagreement is a way in which a computed occupancy contradicts its span.
type disagreement uint8

const (
	// reportedDiffers: the source's own figure is another.
	reportedDiffers disagreement = iota
	// theoreticalDiffers: the span came with another figure under our name.
	theoreticalDiffers
	// ranWithoutRoom: by the numbers of the span, not one block fits; yet the kernel ran.
	ranWithoutRoom
	numDisagreements
)

var disagreementNames = [numDisagreements]string{
	reportedDiffers:    "reported",
	theoreticalDiffers: "theoretical",
	ranWithoutRoom:     "zero_active_blocks",
}

// counts are those of one batch.
type counts struct {
	seen, annotated [numOperations]int64
	left            [numReasons]int64
	disagreements   [numDisagreements]int64
}

// meters write counts to the processor's own metrics. The options are made once: making one
// allocates.
type meters struct {
	telemetry     *metadata.TelemetryBuilder
	operations    [numOperations][]metric.AddOption
	reasons       [numReasons][]metric.AddOption
	disagreements [numDisagreements][]metric.AddOption
}

func newMeters(telemetry *metadata.TelemetryBuilder) *meters {
	m := &meters{telemetry: telemetry}
	for i, name := range operationNames {
		m.operations[i] = option(attribute.String("operation", name))
	}
	for i, r := range reasons {
		m.reasons[i] = option(attribute.String("figure", r.figure), attribute.String("reason", r.name))
	}
	for i, name := range disagreementNames {
		m.disagreements[i] = option(attribute.String("reason", name))
	}
	return m
}

func option(attrs ...attribute.KeyValue) []metric.AddOption {
	return []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attrs...))}
}

func (m *meters) add(ctx context.Context, c *counts) {
	for i := range c.seen {
		add(ctx, m.telemetry.ProcessorOccupancySpans, c.seen[i], m.operations[i])
		add(ctx, m.telemetry.ProcessorOccupancyAnnotated, c.annotated[i], m.operations[i])
	}
	for i := range c.left {
		add(ctx, m.telemetry.ProcessorOccupancyNotComputed, c.left[i], m.reasons[i])
	}
	for i := range c.disagreements {
		add(ctx, m.telemetry.ProcessorOccupancyDisagreements, c.disagreements[i], m.disagreements[i])
	}
}

func add(ctx context.Context, counter metric.Int64Counter, n int64, options []metric.AddOption) {
	if n > 0 {
		counter.Add(ctx, n, options...)
	}
}
