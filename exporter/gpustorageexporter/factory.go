// SPDX-License-Identifier: Apache-2.0

package gpustorageexporter

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configretry"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"

	"github.com/gpuflight/gpuflight/exporter/gpustorageexporter/internal/metadata"
	"github.com/gpuflight/gpuflight/internal/collector/sharedcomponent"
)

// NewFactory returns the factory of the gpu_storage exporter.
func NewFactory() exporter.Factory {
	f := &factory{}
	return exporter.NewFactory(metadata.Type, createDefaultConfig,
		exporter.WithTraces(f.traces, metadata.TracesStability),
		exporter.WithLogs(f.logs, metadata.LogsStability),
		exporter.WithMetrics(f.metrics, metadata.MetricsStability))
}

// factory lets the pipelines of one configuration share an instance, so that they share commits.
type factory struct {
	shared sharedcomponent.Map[*Config, *gpuExporter]
}

func (f *factory) get(set exporter.Settings, cfg component.Config) (*sharedcomponent.Shared[*gpuExporter], []exporterhelper.Option, error) {
	s, err := f.shared.Get(cfg.(*Config), func() (*gpuExporter, error) { return newExporter(cfg.(*Config), set) })
	if err != nil {
		return nil, nil, err
	}
	return s, []exporterhelper.Option{
		exporterhelper.WithStart(s.Start), exporterhelper.WithShutdown(s.ShutdownLast),
		exporterhelper.WithCapabilities(consumer.Capabilities{MutatesData: false}),
		// The sender's deadline counts. A full disk may have space again.
		exporterhelper.WithTimeout(exporterhelper.TimeoutConfig{}),
		exporterhelper.WithRetry(configretry.NewDefaultBackOffConfig()),
	}, nil
}

func (f *factory) traces(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Traces, error) {
	s, options, err := f.get(set, cfg)
	if err != nil {
		return nil, err
	}
	return exporterhelper.NewTraces(ctx, set, cfg, s.Unwrap().pushTraces, options...)
}

func (f *factory) logs(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Logs, error) {
	s, options, err := f.get(set, cfg)
	if err != nil {
		return nil, err
	}
	return exporterhelper.NewLogs(ctx, set, cfg, s.Unwrap().pushLogs, options...)
}

func (f *factory) metrics(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Metrics, error) {
	s, options, err := f.get(set, cfg)
	if err != nil {
		return nil, err
	}
	return exporterhelper.NewMetrics(ctx, set, cfg, s.Unwrap().pushMetrics, options...)
}
