// SPDX-License-Identifier: Apache-2.0

package gpustorageexporter

import (
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/gpuflight/gpuflight/exporter/gpustorageexporter/internal/metadata"
	"github.com/gpuflight/gpuflight/internal/apikey"
	"github.com/gpuflight/gpuflight/internal/collector/backend"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/rows"
)

// gpuExporter is safe for concurrent use.
type gpuExporter struct {
	cfg       *Config
	telemetry *metadata.TelemetryBuilder
	decoders  sync.Pool
	batcher   *batcher
}

func newExporter(cfg *Config, set exporter.Settings) (*gpuExporter, error) {
	telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	return &gpuExporter{cfg: cfg, telemetry: telemetry, decoders: sync.Pool{New: func() any { return &rows.Decoder{} }}}, nil
}

// Start implements [component.Component].
func (e *gpuExporter) Start(_ context.Context, host component.Host) error {
	b, err := backend.Open(host, e.cfg.Storage, e.cfg.Backend)
	if err != nil {
		return err
	}
	e.batcher = newBatcher(b)
	gauge := func(value func(requests, rows int) int) metric.Int64Callback {
		return func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(int64(value(e.batcher.waiting())))
			return nil
		}
	}
	return errors.Join(
		e.telemetry.RegisterExporterGpuStorageWaitingRequestsCallback(gauge(func(requests, _ int) int { return requests })),
		e.telemetry.RegisterExporterGpuStorageWaitingRowsCallback(gauge(func(_, rows int) int { return rows })),
	)
}

// Shutdown commits what waits.
func (e *gpuExporter) Shutdown(context.Context) error {
	if e.batcher != nil {
		e.batcher.close()
	}
	e.telemetry.Shutdown()
	return nil
}

func (e *gpuExporter) pushTraces(ctx context.Context, td ptrace.Traces) error {
	return e.push(ctx, td.SpanCount(), func(d *rows.Decoder, project string) []*store.Batch { return d.Traces(project, td) })
}

func (e *gpuExporter) pushLogs(ctx context.Context, ld plog.Logs) error {
	return e.push(ctx, ld.LogRecordCount(), func(d *rows.Decoder, project string) []*store.Batch { return d.Logs(project, ld) })
}

func (e *gpuExporter) pushMetrics(ctx context.Context, md pmetric.Metrics) error {
	return e.push(ctx, md.DataPointCount(), func(d *rows.Decoder, project string) []*store.Batch { return d.Metrics(project, md) })
}

func (e *gpuExporter) push(ctx context.Context, count int, decode func(*rows.Decoder, string) []*store.Batch) error {
	release, err := e.batcher.reserve(ctx, count)
	if err != nil {
		return err
	}
	defer release()
	d := e.decoders.Get().(*rows.Decoder)
	before := d.Stats()
	batches := decode(d, projectOf(ctx))
	after := d.Stats()
	e.decoders.Put(d)
	err = e.batcher.write(ctx, batches)
	if err == nil {
		for _, n := range []struct {
			what  string
			count int64
		}{
			{"nested_values", after.TooDeep - before.TooDeep}, {"metric_metadata", after.Metadata - before.Metadata},
			{"dropped_attribute_counts", after.Dropped - before.Dropped},
		} {
			if n.count > 0 {
				e.telemetry.ExporterGpuStorageIncomplete.Add(ctx, n.count, metric.WithAttributes(attribute.String("what", n.what)))
			}
		}
		return nil
	}
	if errors.Is(err, store.ErrRetry) || errors.Is(err, errClosed) || ctx.Err() != nil {
		return err
	}
	failed := 0
	for _, b := range batches {
		failed += b.Rows()
	}
	e.telemetry.ExporterGpuStorageFailedRows.Add(ctx, int64(failed))
	return consumererror.NewPermanent(err)
}

// projectOf returns the project of the client. Headers of requests do not count, since clients set
// them.
func projectOf(ctx context.Context) string {
	if auth := client.FromContext(ctx).Auth; auth != nil {
		if p, ok := auth.GetAttribute(apikey.AttributeProject).(string); ok {
			return p
		}
	}
	return ""
}
