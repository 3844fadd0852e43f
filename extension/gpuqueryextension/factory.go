// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"

	"github.com/gpuflight/gpuflight/extension/gpuqueryextension/internal/metadata"
)

// NewFactory returns the factory of the gpu_query extension.
func NewFactory() extension.Factory {
	return extension.NewFactory(metadata.Type, createDefaultConfig, createExtension, metadata.ExtensionStability)
}

func createExtension(_ context.Context, set extension.Settings, cfg component.Config) (extension.Extension, error) {
	return &gpuQuery{cfg: cfg.(*Config), set: set.TelemetrySettings, version: set.BuildInfo.Version}, nil
}
