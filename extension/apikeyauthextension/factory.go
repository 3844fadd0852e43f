// SPDX-License-Identifier: Apache-2.0

package apikeyauthextension

import (
	"context"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"

	"github.com/gpuflight/gpuflight/extension/apikeyauthextension/internal/metadata"
	"github.com/gpuflight/gpuflight/internal/collector/audit"
)

// NewFactory returns the factory of the api_key_auth extension.
func NewFactory() extension.Factory {
	return extension.NewFactory(metadata.Type, createDefaultConfig, createExtension, metadata.ExtensionStability)
}

func createExtension(_ context.Context, set extension.Settings, cfg component.Config) (extension.Extension, error) {
	return &apiKeyAuth{file: cfg.(*Config).File, logger: set.Logger, audit: audit.New(set.Logger, time.Now)}, nil
}
