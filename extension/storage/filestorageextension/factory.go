// SPDX-License-Identifier: Apache-2.0

package filestorageextension

import (
	"context"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/xextension/storage"

	"github.com/gpuflight/gpuflight/extension/storage/filestorageextension/internal/metadata"
)

// contrib is the factory of the extension that stores.
var contrib = filestorage.NewFactory()

// maxLockTimeout bounds the wait for a file that another process has locked. bbolt waits forever if
// the setting timeout is 0.
const maxLockTimeout = 5 * time.Second

// NewFactory returns the factory of the file_storage extension.
func NewFactory() extension.Factory {
	return extension.NewFactory(metadata.Type, createDefaultConfig, createExtension, metadata.ExtensionStability)
}

func createDefaultConfig() component.Config {
	cfg := contrib.CreateDefaultConfig().(*filestorage.Config)
	cfg.FSync = true
	return cfg
}

func createExtension(ctx context.Context, set extension.Settings, cfg component.Config) (extension.Extension, error) {
	own := *cfg.(*filestorage.Config)
	if own.Timeout <= 0 || own.Timeout > maxLockTimeout {
		own.Timeout = maxLockTimeout
	}
	builder, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	inner := set
	inner.ID = component.NewIDWithName(contrib.Type(), set.ID.Name())
	ext, err := contrib.Create(ctx, inner, &own)
	if err != nil {
		return nil, explain(err, own.Directory)
	}
	return &fileStorage{Extension: ext.(storage.Extension), cfg: &own, logger: set.Logger, telemetry: builder}, nil
}
