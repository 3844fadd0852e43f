// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/connector"
	"go.opentelemetry.io/collector/consumer"

	"github.com/gpuflight/gpuflight/connector/gpuusageconnector/internal/metadata"
)

// NewFactory returns the factory of the gpu_usage connector.
func NewFactory() connector.Factory {
	return connector.NewFactory(metadata.Type, createDefaultConfig,
		connector.WithTracesToMetrics(tracesToMetrics, metadata.TracesToMetricsStability))
}

func tracesToMetrics(_ context.Context, set connector.Settings, cfg component.Config, next consumer.Metrics) (connector.Traces, error) {
	return newConnector(cfg.(*Config), set, next), nil
}
