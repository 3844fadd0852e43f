// SPDX-License-Identifier: Apache-2.0

// Package backend finds the store that a component names in its settings. It knows the Collector's
// API and the interfaces of package store, and no component.
package backend

import (
	"fmt"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/component"

	"github.com/gpuflight/gpuflight/internal/store"
)

// Open returns the store with the name from the extension with the id. A nil id selects the only
// extension that has stores, and the name "" its only store. An error states which setting to
// change. Call Open in Start of the component: extensions start first.
func Open(host component.Host, id *component.ID, name string) (store.Backend, error) {
	ext, err := find(host, id)
	if err != nil {
		return nil, err
	}
	return ext.Backend(name)
}

func find(host component.Host, id *component.ID) (store.Storage, error) {
	extensions := host.GetExtensions()
	if id != nil {
		ext, ok := extensions[*id]
		if !ok {
			return nil, fmt.Errorf("storage %q is not configured: add it to extensions and to service::extensions", id)
		}
		s, ok := ext.(store.Storage)
		if !ok {
			return nil, fmt.Errorf("storage %q has no store: use gpu_storage", id)
		}
		return s, nil
	}
	var found store.Storage
	var names []string
	for id, ext := range extensions {
		if s, ok := ext.(store.Storage); ok {
			found = s
			names = append(names, id.String())
		}
	}
	switch len(names) {
	case 0:
		return nil, fmt.Errorf("no store is configured: add gpu_storage to extensions and to service::extensions")
	case 1:
		return found, nil
	}
	slices.Sort(names)
	return nil, fmt.Errorf("several stores are configured: set storage to one of %s", strings.Join(names, ", "))
}
