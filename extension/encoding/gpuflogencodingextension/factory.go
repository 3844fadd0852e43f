// SPDX-License-Identifier: Apache-2.0

package gpuflogencodingextension

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"

	"github.com/gpuflight/gpuflight/extension/encoding/gpuflogencodingextension/internal/metadata"
)

// NewFactory returns the factory of the gpuflog_encoding extension.
func NewFactory() extension.Factory {
	return extension.NewFactory(metadata.Type, createDefaultConfig, createExtension, metadata.ExtensionStability)
}

func createExtension(_ context.Context, set extension.Settings, cfg component.Config) (extension.Extension, error) {
	return newExtension(set, cfg.(*Config))
}
