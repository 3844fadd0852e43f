// SPDX-License-Identifier: Apache-2.0

package gpustorageextension

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"

	"github.com/gpuflight/gpuflight/extension/gpustorageextension/internal/metadata"
)

// NewFactory returns the factory of the gpu_storage extension.
func NewFactory() extension.Factory {
	return extension.NewFactory(metadata.Type, createDefaultConfig, createExtension, metadata.ExtensionStability)
}

func createExtension(_ context.Context, set extension.Settings, cfg component.Config) (extension.Extension, error) {
	return &gpuStorage{cfg: cfg.(*Config), set: set.TelemetrySettings}, nil
}
