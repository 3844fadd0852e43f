// SPDX-License-Identifier: Apache-2.0

// Package storageclient opens the storage that a component names in its settings. It knows the
// Collector's storage API and no component.
package storageclient

import (
	"context"
	"fmt"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/xextension/storage"
)

// Open returns the component's client of the storage extension with the given id. It returns nil
// without an error if the id is nil. If the id does not name a storage extension, the error states
// which setting to change.
func Open(ctx context.Context, id *component.ID, host component.Host, kind component.Kind, owner component.ID) (storage.Client, error) {
	if id == nil {
		return nil, nil
	}
	ext, ok := host.GetExtensions()[*id]
	if !ok {
		return nil, fmt.Errorf("storage %q is not configured: add it to extensions and to service::extensions", id)
	}
	st, ok := ext.(storage.Extension)
	if !ok {
		return nil, fmt.Errorf("storage %q is not a storage extension: use for example file_storage", id)
	}
	return st.GetClient(ctx, kind, owner, "")
}
