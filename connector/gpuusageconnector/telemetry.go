// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/collector/connector"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/gpuflight/gpuflight/connector/gpuusageconnector/internal/metadata"
)

// telemetry is what the connector tells of itself. It is safe for concurrent use.
type telemetry struct {
	b *metadata.TelemetryBuilder

	// Options with attributes, made once: counting must not cost more than what is counted.
	operations [numOperations]metric.AddOption
	rejections [numRejections]metric.AddOption
	overflows  [numOverflows]metric.AddOption
	noDevice   metric.AddOption
	noSpan     metric.AddOption

	mu     sync.Mutex
	logged time.Time
}

// levels are the sizes of the state.
type levels struct{ devices, pending, series, unresolved int64 }

func newTelemetry(set connector.Settings) (*telemetry, error) {
	b, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	with := func(key, value string) metric.AddOption {
		return metric.WithAttributeSet(attribute.NewSet(attribute.String(key, value)))
	}
	t := &telemetry{b: b, noDevice: with("kind", "device"), noSpan: with("kind", "span")}
	for i, name := range operationNames {
		if name != "" {
			t.operations[i] = with("operation", name)
		}
	}
	for i, name := range rejectionNames {
		t.rejections[i] = with("reason", name)
	}
	for i, name := range overflowNames {
		t.overflows[i] = with("kind", name)
	}
	return t, nil
}

func (t *telemetry) Rejected(ctx context.Context, counts *[numRejections]int64) {
	for i, n := range counts {
		if n > 0 {
			t.b.ConnectorGpuUsageRejected.Add(ctx, n, t.rejections[i])
		}
	}
}

func (t *telemetry) Counted(ctx context.Context, s *stats) {
	for i, n := range s.spans {
		if n > 0 {
			t.b.ConnectorGpuUsageSpans.Add(ctx, n, t.operations[i])
		}
	}
	for i, n := range s.overflow {
		if n > 0 {
			t.b.ConnectorGpuUsageOverflow.Add(ctx, n, t.overflows[i])
		}
	}
	add := func(to metric.Int64Counter, n int64, o ...metric.AddOption) {
		if n > 0 {
			to.Add(ctx, n, o...)
		}
	}
	add(t.b.ConnectorGpuUsageDuplicates, s.duplicates)
	add(t.b.ConnectorGpuUsageUnidentified, s.noDeviceID, t.noDevice)
	add(t.b.ConnectorGpuUsageUnidentified, s.noSpanID, t.noSpan)
	add(t.b.ConnectorGpuUsageForced, s.forced)
	add(t.b.ConnectorGpuUsageScopesMissed, s.missed)
	if s.late > 0 {
		t.b.ConnectorGpuUsageLateSpans.Add(ctx, s.late)
		t.b.ConnectorGpuUsageLateTime.Add(ctx, float64(s.lateNS)/1e9)
	}
	if s.forgotten > 0 {
		t.b.ConnectorGpuUsageForgottenTime.Add(ctx, float64(s.forgotten)/1e9)
	}
}

// levels returns the sizes of the state.
func (s *state) levels() levels {
	return levels{
		devices: int64(len(s.devices)), pending: int64(s.pending()), series: int64(s.series), unresolved: int64(s.waiting.n),
	}
}

func (t *telemetry) Levels(ctx context.Context, l levels) {
	t.b.ConnectorGpuUsageDevices.Record(ctx, l.devices)
	t.b.ConnectorGpuUsagePending.Record(ctx, l.pending)
	t.b.ConnectorGpuUsageSeries.Record(ctx, l.series)
	t.b.ConnectorGpuUsageUnresolved.Record(ctx, l.unresolved)
}

func (t *telemetry) FlushError(ctx context.Context)   { t.b.ConnectorGpuUsageFlushErrors.Add(ctx, 1) }
func (t *telemetry) StateReset(ctx context.Context)   { t.b.ConnectorGpuUsageStateResets.Add(ctx, 1) }
func (t *telemetry) StorageError(ctx context.Context) { t.b.ConnectorGpuUsageStorageErrors.Add(ctx, 1) }

// mayLog is true once a minute.
func (t *telemetry) mayLog(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.logged.IsZero() && now.Sub(t.logged) < time.Minute {
		return false
	}
	t.logged = now
	return true
}

func (t *telemetry) Shutdown() { t.b.Shutdown() }
