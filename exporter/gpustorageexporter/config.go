// SPDX-License-Identifier: Apache-2.0

package gpustorageexporter

import "go.opentelemetry.io/collector/component"

// Config is the exporter's configuration.
type Config struct {
	// Storage is the extension that has the store. Nil selects the only one.
	Storage *component.ID `mapstructure:"storage"`
	// Backend is the name of the store in the extension. Empty selects the only one.
	Backend string `mapstructure:"backend"`
}

func createDefaultConfig() component.Config { return &Config{} }
